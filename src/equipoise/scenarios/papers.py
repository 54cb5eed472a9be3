"""What the scenarios that read a paper's data sets have in common: normalisation, and the record of what was read."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from equipoise.data.contents import Contents
from equipoise.data.memory_mapped import labels, shape
from equipoise.data.sets import catalog
from equipoise.scenarios.scenario import Described, Description, Divided, Scenario

MEAN: Final = (0.485, 0.456, 0.406)  # the usual ImageNet numbers, per channel
STD: Final = (0.229, 0.224, 0.225)

Divide = Callable[[Contents, Contents, int], Divided]  # from the training split, the test split and a seed


def scenario(description: Description, seed: int, files: Mapping[str, Contents], made: Divided) -> Scenario:
    """A scenario that was read from ``files``, by name, with the record of what was read.

    ``sha256`` of the record is of the labels, the names and the shape of all samples, and of what the reader says about its
    files. The pixels are not in it: there may be gigabytes of them, and files of one size and name rarely differ.
    """
    total = hashlib.sha256()
    for file in sorted(files):
        contents = files[file]
        # a cached file, named by times
        facts = {key: value for key, value in contents.about.items() if key != "images"}
        about = [file, list(shape(contents.data)), list(contents.classes), contents.names, facts]
        total.update(json.dumps(about, sort_keys=True, default=str).encode())
        total.update(labels(contents.data).numpy().tobytes())
    about_files = {file: {"samples": len(contents), **contents.about} for file, contents in files.items()}
    manifest = {"scenario": description.name, "seed": seed, "recipe": made.recipe, "read": about_files}
    manifest["sha256"] = total.hexdigest()
    train = files["train"].data if made.clients is None else None
    made = made if made.tests else made._replace(tests={"test": files["test"].data})
    return made.scenario(description, train, manifest)


def from_splits(
    name: str, reads: str, summary: str, data: Path | None, divide: Divide, reading: Mapping[str, Any], **more: Any
) -> Described:
    """The scenario ``name`` of the training and test split of one data set.

    Parameters
    ----------
    reads, data : the data set, and the folder that holds it.
    divide : what is made of both splits.
    reading : options of the reader.
    summary, more : fields of the description.
    """
    require(data, {reads: ("train", "test")})
    description = Description(name=name, summary=summary, n_classes=len(catalog.data_set(reads).classes), **more)

    def build(seed: int) -> Scenario:
        files = {split: read(reads, data, split, **reading) for split in ("train", "test")}
        return scenario(description, seed, files, divide(files["train"], files["test"], seed))

    return description, build


def require(data: Path | None, wanted: Mapping[str, Iterable[str]]) -> None:
    """Require the files of some splits, by data set, before any is read; nothing if the folder is not known yet.

    Raises
    ------
    DataError : some are missing; names those of all sets.
    """
    if data is not None:
        catalog.require(data, wanted)


def read(name: str, data: Path | None, split: str, **options: Any) -> Contents:
    """Read one split of a data set, as :func:`equipoise.data.sets.catalog.read` does."""
    if data is None:
        raise ValueError(f"{name} cannot be read without the folder that holds it.")
    return catalog.read(name, data, split, **options)
