"""What the scenarios that read a paper's data sets have in common: normalisation, and the record of what was read."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from equipoise.data.contents import Contents
from equipoise.data.memory_mapped import Data, labels, shape
from equipoise.data.sets import catalog
from equipoise.scenarios.scenario import Description, Scenario

MEAN: Final = (0.485, 0.456, 0.406)  # the usual ImageNet numbers, per channel
STD: Final = (0.229, 0.224, 0.225)


def scenario(
    description: Description,
    seed: int,
    recipe: Mapping[str, Any],
    files: Mapping[str, Contents],
    parts: Sequence[Sequence[int]],
    clients: Iterable[Data],
    tests: Mapping[str, Data],
    *,
    names: Sequence[str],
    groups: Sequence[str] | None = None,
    held: tuple[Data, Sequence[int]] | None = None,
) -> Scenario:
    """A scenario that was read from files, with the record of what was read.

    ``sha256`` of the record is of the labels, the names and the shape of all samples, and of what the reader says about its
    files. The pixels are not in it: there may be gigabytes of them, and files of one size and name rarely differ.

    Parameters
    ----------
    description, seed, recipe : what the scenario was made by; raise ``version`` of the recipe whenever a part of it changes.
    files : what was read, by name.
    parts : the positions of each client's samples in the training part of what was read.
    clients, tests, names, groups : as in ``Scenario``.
    held : the server's samples and their positions, if it has any.
    """
    total = hashlib.sha256()
    for what in sorted(files):
        contents = files[what]
        facts = {
            key: value for key, value in contents.about.items() if key != "images"
        }  # a cached file, named by times
        about = [what, list(shape(contents.data)), list(contents.classes), contents.names, facts]
        total.update(json.dumps(about, sort_keys=True, default=str).encode())
        total.update(labels(contents.data).numpy().tobytes())
    return Scenario(
        **vars(description),
        clients=tuple(clients),
        client_names=tuple(names),
        client_groups=None if groups is None else tuple(groups),
        tests=tests,
        server_validation=None if held is None else held[0],
        manifest={
            "scenario": description.name,
            "seed": seed,
            "recipe": recipe,
            "read": {what: {"samples": len(contents), **contents.about} for what, contents in files.items()},
            "sha256": total.hexdigest(),
            "clients": {client: list(part) for client, part in zip(names, parts, strict=True)},
            **({} if held is None else {"validation": list(held[1])}),
        },
    )


def require(data: Path | None, wanted: Mapping[str, Iterable[str]]) -> None:
    """Require the files of some splits, by data set, before any is read; nothing if the folder is not known yet.

    Raises
    ------
    MissingError : some are missing; names those of all sets.
    """
    if data is not None:
        catalog.require(data, wanted)


def read(name: str, data: Path | None, split: str, **options: Any) -> Contents:
    """Read one split of a data set, as :func:`equipoise.data.sets.catalog.read` does."""
    if data is None:
        raise ValueError(f"{name} cannot be read without the folder that holds it.")
    return catalog.read(name, data, split, **options)
