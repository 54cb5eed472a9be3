"""The stored state of a site: files, because the process that answers a message ends with it.

A message names the state it builds on by a receipt: its round and its hash. The states before and after the last visit are
both stored until the server lets the site train again and names one of them: it may not have used the answer. The states of
the checkpoints that the server keeps are also stored, because the server may resume from each.

What it has held out in its runs is stored, too: numbers of two draws, and models of the rest, subtracted, are about the people between them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.bundle import files
from equipoise.data.samples import Draw, Samples, held_rows
from equipoise.privacy.suppression import enough, exposed
from equipoise.system import seals, suggestions, tensor_files
from equipoise.system.errors import DamagedError, SiteError
from equipoise.system.files import PART, locked, make_private, read_regular, real_path, write_atomically

SALT = "salt"
NOTHING = bytes(32)  # the hash of an empty state
MODEL, BUNDLE, NO_BUNDLE = "model.safetensors", "bundle", "no-bundle.txt"
FILES = (  # what a site stores, under its folder
    r"(state-\d+|base|model|update)\.safetensors|masks\.json|answers\.lock|questions\.json|no-bundle\.txt|\.[^/]+\.part"
    rf"|({BUNDLE}|\.{BUNDLE}\.[^/]+\.part)/[^/]+"
)


@dataclass(frozen=True)
class Receipt:
    """The state of a site after round ``t`` (-1: before its first), and the SHA-256 of the file that has it."""

    t: int = -1
    sha256: bytes = NOTHING

    def tensors(self) -> dict[str, Tensor]:
        """As the server stores it."""
        return {"round": torch.tensor(self.t), "sha256": torch.frombuffer(bytearray(self.sha256), dtype=torch.uint8)}

    @staticmethod
    def of(state: Mapping[str, Tensor]) -> Receipt:
        """From the state that the server stores."""
        return Receipt(int(state["round"]), state["sha256"].cpu().numpy().tobytes())

    @property
    def fields(self) -> list[Any]:
        """As in messages."""
        return [self.t, self.sha256.hex()]

    @staticmethod
    def read(fields: Any) -> Receipt:
        """From a message.

        Raises
        ------
        ValueError : the fields are not a receipt.
        """
        match fields:
            case [int(t), str(digest)] if not isinstance(t, bool) and re.fullmatch("[0-9a-f]{64}", digest):
                return Receipt(t, bytes.fromhex(digest))
        raise ValueError("not a receipt")

    @staticmethod
    def after(t: int, fields: Mapping[str, Any]) -> Receipt | None:
        """The receipt of a site's state after round ``t`` in its answer; None if there is none."""
        try:
            receipt = Receipt.read(fields.get("receipt"))
        except ValueError:
            return None
        return receipt if receipt.t == t else None


@dataclass(frozen=True)
class Store:
    """The files of one site in one experiment, under ``directory``."""

    directory: Path

    @staticmethod
    def at(base: Path, experiment: str, site: str) -> Store:
        """The store of a site in an experiment, under the directory ``base``."""
        return Store(base / _plain(experiment) / _plain(site))

    def recall(self, receipt: Receipt) -> dict[str, Tensor] | None:
        """The state of a receipt; None if it is empty.

        Raises
        ------
        SiteError : it is missing or damaged.
        """
        if receipt.sha256 == NOTHING:
            return None
        try:
            tensors = tensor_files.read(self._state(receipt.t), receipt.sha256.hex())
        except (FileNotFoundError, DamagedError) as error:
            fault = "missing" if isinstance(error, FileNotFoundError) else "damaged"
            raise SiteError(
                f"its state of round {receipt.t} is {fault}. Put the site's state directory back from a copy, "
                "or start a new run."
            ) from None
        return {name: x for name, x in tensors.items() if name != SALT}

    def settle(self, rounds: Collection[int]) -> None:
        """Remove all states but those of some rounds, and files partly written by a killed process."""
        present = {self._state(t) for t in rounds}
        for old in {*self.directory.glob("state-*.safetensors"), *self.directory.glob(f".state-*{PART}")} - present:
            old.unlink(missing_ok=True)

    def _state(self, t: int) -> Path:
        return self.directory / f"state-{t:06d}.safetensors"

    def keep(self, t: int, state: Mapping[str, Tensor]) -> Receipt:
        """Write the state after round ``t``, and keep the earlier one."""
        if not state:
            return Receipt(t)
        # the server sees the hash, from which it must not be able to guess the state
        salt = torch.frombuffer(bytearray(secrets.token_bytes(32)), dtype=torch.uint8)
        return Receipt(t, bytes.fromhex(tensor_files.write(self._state(t), {SALT: salt, **state}, private=True)))

    # the last received model, so that the server needs to send only changes
    def base(self, token: str) -> Tensor | None:
        """The vector [n] that was stored under a token; None if there is none."""
        try:
            return tensor_files.read(self.directory / "base.safetensors").get(token)
        except (FileNotFoundError, DamagedError):
            return None

    def keep_base(self, token: str, vector: Tensor) -> None:
        """Store a vector [n] in place of the earlier one."""
        tensor_files.write(self.directory / "base.safetensors", {token: vector}, private=True)

    def keep_model(self, state_dict: Mapping[str, Tensor]) -> None:
        """Write the network's state dictionary."""
        tensor_files.write(self.directory / MODEL, state_dict, private=True)


def _plain(name: str) -> str:
    """A name that is valid for a folder; a hash distinguishes names that would become equal."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:80].strip("-")
    return plain if plain == name else f"{plain or 'x'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def take(states: str | Path, folder: str | Path, *, run: str | None = None) -> str:
    """Copy the bundle of the model that a site predicts with, its own where the method gives it one.

    Parameters
    ----------
    states : the ``state-dir`` of the site's node config.
    folder : a new one.
    run : the name of the run, where the site took part in several; where several sites share the folder, ``RUN/SITE``.

    Returns
    -------
    The name of the run.

    Raises
    ------
    ValueError : there is no model, there are several, or it was not a bundle's.
    """
    base = Path(states)
    models = sorted(base.glob(f"*/*/{MODEL}"), key=lambda path: path.stat().st_mtime)
    sites = {path.parent.relative_to(base).as_posix(): path.parent for path in models}
    chosen = [name for name in sites if run is None or run in (name, name.partition("/")[0])]
    if not sites:
        raise ValueError(
            f"{base} holds no model. Give the state-dir of the site's node config; a site gets its model at the end of a run."
        )
    if len(chosen) != 1:
        runs = {name.partition("/")[0]: name for name in sites}
        names = [*(runs if len(runs) == len(sites) else sites)]
        asked = (
            f"--run {run}: not the name of one of them" if run is not None else "Say which one, the newest is the last"
        )
        raise ValueError(
            f"{base} holds the models of {len(sites)} runs: {suggestions.some(names, 20)}. {asked}: --run {names[-1]}."
        )
    (name,) = chosen
    if not (sites[name] / BUNDLE).is_dir():
        reason = sites[name] / NO_BUNDLE
        why = read_regular(reason).decode() if reason.exists() else "An earlier Equipoise stored it."
        raise ValueError(f"{sites[name]} has the weights, {MODEL}, and no bundle of them. {why}")
    files.take(real_path(sites[name] / BUNDLE, base), Path(folder))
    return name


def require_apart(path: Path, name: str, data: Samples, draw: Draw, least: int) -> None:
    """Store what a site holds out, unless sums of fewer than ``least`` people follow from it and what it held out before.

    What it trains on gives sums, such as an update, and so does what it holds out of at least ``least`` people. A first draw of fewer is always stored.

    Parameters
    ----------
    path : the file of all draws of the sites that keep their states in one directory.
    name : of the site.
    data : all its training data.

    Raises
    ------
    ValueError : such numbers would follow, or the file is damaged.
    """
    n, people = data.size, data.people
    person = np.arange(n) if people is None else people
    y = None if data.shape_and_labels is None else data.shape_and_labels[1].cpu().numpy()
    make_private(path.parent)
    with locked(path.with_suffix(".lock"), wait=True, private=True):
        try:
            past = seals.read_json(read_regular(path).decode()) if path.exists() else {}
            earlier = [held_rows(n, y, share, seed, name, people) for share, seed in past.get(name, [])]
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"its file {path.name} is damaged; put it back from a copy") from None
        draws = [held_rows(n, y, *draw, name, people), *earlier]
        if any(np.array_equal(draws[0], other) for other in earlier):
            return
        published = [held for held in draws if enough(np.unique(person[held]).size, least)]
        sums = np.stack([*(~held for held in draws), *published])
        if (earlier or published) and exposed(sums, np.arange(n), person, least).any():
            raise ValueError(
                f"with what it held out before, validation={draw[0]:g} and seed={draw[1]} would tell of fewer people than its "
                "least-group; choose validation and seed of an earlier run"
            )
        write_atomically(path, json.dumps({**past, name: [*past.get(name, []), draw]}), private=True)
