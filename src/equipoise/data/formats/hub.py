"""A data set of the Hugging Face Hub, by the package ``datasets``; it is downloaded only if the user allows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.data.contents import DataError, optional_package
from equipoise.data.formats.table import Frame, from_table
from equipoise.data.pictures import Pictures, Source
from equipoise.data.tables.columns import SPLITS, Column, Columns, UserData, column
from equipoise.data.tables.options import WRITTEN, listed
from equipoise.system.grouping import grouped
from equipoise.system.text import noun

if TYPE_CHECKING:
    import pandas as pd

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")  # switches of datasets and huggingface_hub, by version


def read(address: str, columns: Columns, *, download: bool) -> UserData:
    """Read a data set that is on this machine, or that may be downloaded.

    Parameters
    ----------
    address : ``OWNER/NAME`` or ``OWNER/NAME/CONFIGURATION``.
    columns : ``label`` and ``client`` name columns; ``image`` one of images, by default the first of them.
    download : whether it may be downloaded.
    """
    columns.require_none((*WRITTEN, "inputs", "unlabelled"), f"hub:{address}", "a table in a file")
    parts = address.strip("/").split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise DataError(f"hub:{address}: expected hub:OWNER/NAME, or hub:OWNER/NAME/CONFIGURATION.")
    repository, configuration = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
    by_part, notes = _parts(repository, _loaded(repository, configuration, download))
    tables, what = list(by_part.values()), f"hub:{address}"
    split = tuple(part for part, table in by_part.items() for _ in range(len(table)))
    names = tuple(tables[0].features)
    facts = {"name": address, "samples": {part: len(table) for part, table in by_part.items()}}
    facts["fingerprints"] = [str(getattr(table, "_fingerprint", "")) for table in tables]
    image = next((name for name in names if type(tables[0].features[name]).__name__ == "Image"), None)
    if columns.image:
        image = column(names, columns.image, "", what)
    table = Frame(names, len(split), cache(partial(_column, what, tables)), what, tuple(notes), "sample {}".format)
    images = image, partial(_images, tables, image or "", facts)
    own = from_table(table, what, columns, facts, ("client", "subject"), images)
    return replace(own, layout=f"a data set of the Hub: {own.layout}", split=split if len(by_part) > 1 else None)


def _datasets() -> Any:
    return optional_package("datasets", "Data sets of the Hub", "'equipoise[hub]'")


def _loaded(name: str, configuration: str | None, download: bool) -> Any:
    datasets = _datasets()
    here = None if download else datasets.DownloadConfig(local_files_only=True)
    try:
        with nullcontext() if download else _offline(datasets):
            return datasets.load_dataset(name, configuration, download_config=here)
    except Exception as error:  # of many kinds, and of the packages below
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        elsewhere = "is not on this machine, and may not be downloaded without --set download=true"
        raise DataError(f"hub:{name} {'cannot be loaded' if download else elsewhere}. ({first}.)") from error


@contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Keep the packages from using the network inside: they read these switches before they do."""
    places: list[Any] = [datasets.config]
    with suppress(ImportError):
        places.append(import_module("huggingface_hub.constants"))
    with ExitStack() as stack:
        for place, key in product(places, OFFLINE):
            if key in vars(place):
                stack.callback(setattr, place, key, vars(place)[key])
                setattr(place, key, True)
        yield


def _parts(name: str, loaded: Any) -> tuple[dict[str, Any], list[str]]:
    """Tables by train, test and validation."""
    if not isinstance(loaded, Mapping):
        return {"train": loaded}, []
    by_split = grouped((SPLITS.get(str(part).lower(), ""), part) for part in loaded)
    used = {split: parts[0] for split, parts in by_split.items() if split}
    if "train" not in used:
        raise DataError(f"hub:{name} has no part train; it has {listed(map(str, loaded))}.")
    others = [str(part) for part in loaded if part not in used.values()]
    notes = [f"hub:{name}: the {noun('part', len(others))} {listed(others)} ignored."] * bool(others)
    return {split: loaded[part] for split, part in used.items()}, notes


def _column(what: str, tables: Sequence[Any], name: str) -> pd.Series:
    """A column of all parts; a cell with a class has its name."""
    import pandas as pd

    cells = [cell for table in tables for cell in table[name]]
    if (classes := getattr(tables[0].features[name], "names", None)) is not None:
        if strange := [k for k, cell in enumerate(cells) if cell is not None and not -1 <= cell < len(classes)]:
            fault = f"{what}, column {name}: the class of sample {strange[0]} is {cells[strange[0]]}"
            named = f"only classes from 0 to {len(classes) - 1} have names ({listed(classes)})"
            raise DataError(f"{fault}, and {named}. Correct the data set, or its names.")
        cells = [None if cell in (None, -1) else str(classes[cell]) for cell in cells]  # -1: without a class
    return pd.Series(cells, dtype=object)


def _images(tables: Sequence[Any], key: str, facts: Mapping[str, Any], label: Column) -> Pictures:
    """All images, from their files: what the package makes of them has 8 bits."""
    recipe = json.dumps([facts, key, hashlib.sha256(json.dumps(label).encode()).hexdigest()], sort_keys=True)
    what = f"hub:{facts['name']}"
    files = [table.cast_column(key, _datasets().Image(decode=False)) for table in tables]
    places = [(file, k) for file, table in zip(files, tables, strict=True) for k in range(len(table))]

    def fetch(row: int) -> Source:
        file, k = places[row]
        if (content := file[k][key]) is None:
            raise ValueError("it is missing")
        return Path(content["path"]) if content["bytes"] is None else BytesIO(content["bytes"])

    names = [f"sample {k} of {key}" for k in range(len(places))]
    return Pictures(what, names, fetch, lambda: recipe)
