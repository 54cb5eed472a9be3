"""Whether the user's files are still those that a run was begun with."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from equipoise import scenarios
from equipoise.data.memory_mapped import Data, labels
from equipoise.data.samples import Samples, read
from equipoise.federation.directory import UNKNOWN
from equipoise.federation.fingerprint import contents as hashed
from equipoise.records.directory import ORDER, TRIALS, manifest
from equipoise.records.identity import Identity, stated
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.system import environment, hashes

log = logging.getLogger(__name__)

LISTS = (".csv", ".tsv", ".gz", ".bz2", ".xz", ".parquet", ".xlsx")  # tables may name images that lie anywhere


def stamp(config: RunConfig) -> str | None:
    """What changes with the user's files, see :func:`equipoise.system.hashes.stamp`; None if that is not certain."""
    path = Path(config.data or "")
    if config.data is None or not path.exists():  # or it is an address
        return None
    tables = [path] if path.is_file() else path.iterdir()
    return None if any(table.suffix.lower() in LISTS for table in tables) else hashes.stamp(path)


def data_of(config: RunConfig) -> scenarios.Scenario:
    """The data of a run; nothing is learnt of rows that clients hold out, and a run that chooses settings has no test data."""
    held_out, options = config.validation, config.scenario_options
    data = scenarios.load(config.scenario, config.seed, config.data, validation=held_out, **options)
    if config.left_out is not None:
        return data.leaving(config.left_out)
    return data.sealed(rewarded=config.rewarded) if config.sealed else data


def contents(config: RunConfig, data: scenarios.Scenario | None = None, before: str | None = None) -> dict[str, Any]:
    """Hashes of all that a run takes from the user's files, by the keys of ``PARTS`` of fingerprints; and ``weights``.

    Data that come with Equipoise follow from the configuration: nothing is hashed. Otherwise all files below the folder are
    looked at, and only if a name, a size or a time is new is the scenario made and hashed.

    Parameters
    ----------
    config : of the run.
    data : its scenario, where that was made already, from files with the stamp ``before``.
    """
    digests: dict[str, Any] = {} if config.weights is None else {"weights": hashes.file_hash(config.weights)}
    if config.data is None:
        return digests

    def make() -> str:
        return json.dumps(_of(data or data_of(config)))

    draw = config.seed, config.validation, config.sealed, config.rewarded, config.left_out
    key = json.dumps([config.data, config.scenario, config.scenario_options, draw, environment.source()])
    of_data: dict[str, Any] = json.loads(hashes.remembered(key, stamp(config) if data is None else before, make))
    return digests | of_data


def _of(data: scenarios.Scenario) -> dict[str, str]:
    tests = {name: _samples(samples) for name, samples in data.tests.items()}
    held = None if data.server_validation is None else _samples(data.server_validation)
    return hashed([_samples(samples) for samples in data.clients], tests, data.client_groups, held)


def _samples(data: Data) -> Samples:
    made = read(data, "data", torch.int64, torch.device("cpu"), target=labels(data).dtype)
    assert isinstance(made, Samples)
    return made


def check(config: RunConfig, directory: Path, *, says: bool = True) -> None:
    """Require that a run that was begun, or finished, in a directory saw the data that its configuration names now.

    It ``says`` where that cannot be checked.
    """
    if (config.data is None and config.weights is None) or not (noted := manifest(directory)):
        return
    if (then := noted.get("contents")) is None:
        if says:
            log.warning("%s %s", directory, UNKNOWN)
        return
    try:
        now = contents(config)
    except (OSError, ValueError) as error:
        log.warning("%s: that its data are the same could not be checked: %s", directory, error)
        return
    if changes := Identity(data=then).differences(Identity(data=now)):
        same = source(noted) == environment.source()
        otherwise = "" if same else ", or this version of Equipoise reads them otherwise"
        raise RunError(
            f"{directory} holds a run on {stated(changes)} are not those it was begun with. "
            f"{config.data or config.weights} has changed since{otherwise}. Put the old files back, choose another --name, or "
            f"delete {_base(directory)}."
        )


def _base(directory: Path) -> Path:
    """The comparison or choice that a run belongs to, whose runs all saw the same data; else its own directory."""
    if directory.parent.name == TRIALS:
        directory = directory.parents[1]
    return directory.parent if (directory.parent / ORDER).exists() else directory


def comparable(directory: Path) -> bool:
    """Whether :func:`check` can tell other data in a directory: it has the hashes of its own, or no round was trained there."""
    noted = manifest(directory)
    return "contents" in noted if noted else not (directory / "checkpoint").exists()


def source(manifest: Mapping[str, Any]) -> str:
    """The hash of the code that computed a run last, see :func:`equipoise.system.environment.source`; empty if it is not recorded."""
    machines = manifest.get("machines") or [{}]
    return str(machines[-1].get("source", ""))
