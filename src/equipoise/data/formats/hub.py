"""A data set of the Hugging Face Hub, by the package ``datasets``; it is downloaded only if the user allows it."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

from equipoise.data.contents import DataError
from equipoise.data.formats.typed import Frame
from equipoise.data.pictures import Pictures, Source
from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.columns import (
    SPLITS,
    WRITTEN,
    Column,
    Columns,
    UserData,
    check_purposes,
    column,
    listed,
    together,
)
from equipoise.data.tables.groups import described, groups_of
from equipoise.data.tables.numbers import left_out, nameless
from equipoise.data.tables.reading import read_raw
from equipoise.data.tables.roles import named_columns, read_roles
from equipoise.data.tables.words import Origin

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")  # switches of datasets and huggingface_hub, by version


def read(address: str, columns: Columns, *, download: bool) -> UserData:
    """Read a data set that is on this machine, or that may be downloaded.

    Parameters
    ----------
    address : ``OWNER/NAME`` or ``OWNER/NAME/CONFIGURATION``.
    columns : ``label`` and ``client`` name columns; ``image`` one of images, by default the first of them.
    download : whether it may be downloaded.
    """
    columns.require_none(WRITTEN, f"hub:{address}", "a table that is text")
    parts = address.strip("/").split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise DataError(f"hub:{address}: expected hub:OWNER/NAME, or hub:OWNER/NAME/CONFIGURATION.")
    repository, configuration = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
    by_part, notes = _parts(repository, _loaded(repository, configuration, download))
    tables = list(by_part.values())
    what = f"hub:{address}"
    features = tables[0].features
    names = list(features)
    named = _named(what, features, columns)
    image = named.pop("image", None)
    groups = groups_of(columns, names, what)
    cells = _frame(what, tables, dict.fromkeys(named.values())).words([*named.values()])
    roles, problems = read_roles(
        what,
        columns,
        named,
        groups,
        cells.__getitem__,
        lambda name: Origin(f"{what}, column {name}", "sample {}".format),
        notes,
    )
    if problems:
        raise DataError(together(what, problems))
    taken = {image, *named.values(), *columns.leave_out}
    rest = [name for name in names if name not in taken]
    facts = {
        "name": address,
        "samples": {part: len(table) for part, table in by_part.items()},
        **described(groups.values()),
    }
    facts["fingerprints"] = [str(getattr(table, "_fingerprint", "")) for table in tables]
    inputs: Any
    if image is not None:
        inputs = _images(tables, image, facts, roles["label"])
        if rest:
            notes.append(f"{what}: columns in addition to the images are not used: {listed(rest)}.")
    else:
        inputs = _inputs(what, tables, rest, columns, notes)
        rest = [*inputs.schema.names]
    split = tuple(part for part, table in by_part.items() for _ in range(len(table)))
    layout = "a data set of the Hub: " + ("images" if image is not None else f"a table of {len(rest)} columns")
    roles |= {"split": split if len(by_part) > 1 else None, "features": () if image is not None else tuple(rest)}
    return UserData(source=what, layout=layout, inputs=inputs, about=facts, notes=tuple(notes), **roles)


def _named(what: str, features: Mapping[str, Any], columns: Columns) -> dict[str, str]:
    """The columns of labels, clients, groups and images, as far as there are any."""
    names = list(features)
    used = named_columns(columns, names, what, ("label", "client", "subject"))
    if used["label"] is None:
        raise DataError(
            f"{what} has no column label; its columns are {listed(names)}. Name the one with the {columns.labelled}: --set label=COLUMN."
        )
    used["image"] = next((name for name in names if type(features[name]).__name__ == "Image"), None)
    if columns.image:
        used["image"] = column(names, columns.image, "", what)
    check_purposes(used, what)
    return {role: name for role, name in used.items() if name is not None}


def _datasets() -> ModuleType:
    try:
        return import_module("datasets")
    except ImportError:
        raise DataError("Data sets of the Hub need the package datasets: pip install 'equipoise[hub]'.") from None


def _loaded(name: str, configuration: str | None, download: bool) -> Any:
    datasets = _datasets()
    try:
        if download:
            return datasets.load_dataset(name, configuration)
        here = datasets.DownloadConfig(local_files_only=True)
        with _offline(datasets):
            return datasets.load_dataset(name, configuration, download_config=here)
    except Exception as error:  # of many kinds, and of the packages below
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if download:
            raise DataError(f"hub:{name} cannot be loaded: {reason}.") from error
        raise DataError(
            f"hub:{name} is not on this machine, and may not be downloaded without --set download=true. ({reason}.)"
        ) from error


@contextmanager
def _offline(datasets: ModuleType) -> Iterator[None]:
    """Keep the packages from using the network inside: they read these switches before they do."""
    places: list[Any] = [datasets.config]
    with suppress(ImportError):
        places.append(import_module("huggingface_hub.constants"))
    before = [(place, key, vars(place)[key]) for place in places for key in OFFLINE if key in vars(place)]
    for place, key, _ in before:
        setattr(place, key, True)
    try:
        yield
    finally:
        for place, key, value in before:
            setattr(place, key, value)


def _parts(name: str, loaded: Any) -> tuple[dict[str, Any], list[str]]:
    """Tables by train, test and validation."""
    if not isinstance(loaded, Mapping):
        return {"train": loaded}, []
    tables: dict[str, Any] = {}
    others = []
    for part, table in loaded.items():
        split = SPLITS.get(str(part).lower())
        if split is None or split in tables:
            others.append(str(part))
        else:
            tables[split] = table
    if "train" not in tables:
        raise DataError(f"hub:{name} has no part train; it has {listed(map(str, loaded))}.")
    return tables, [f"hub:{name}: the part{'s' * (len(others) > 1)} {listed(others)} ignored."] if others else []


def _frame(what: str, tables: Sequence[Any], names: Iterable[str]) -> Frame:
    """Some columns of all parts; a cell with a class has its name.

    Raises
    ------
    DataError : a class has no name.
    """
    import pandas as pd

    columns = {}
    for name in names:
        cells = [cell for table in tables for cell in table[name]]
        if (classes := getattr(tables[0].features[name], "names", None)) is not None:
            if strange := [k for k, cell in enumerate(cells) if cell is not None and not -1 <= cell < len(classes)]:
                raise DataError(
                    f"{what}, column {name}: the class of sample {strange[0]} is {cells[strange[0]]}, and only classes from 0 to "
                    f"{len(classes) - 1} have names ({listed(classes)}). Correct the data set, or its names."
                )
            cells = [None if cell in (None, -1) else str(classes[cell]) for cell in cells]  # -1: without a class
        columns[name] = pd.Series(cells, dtype=object)
    return Frame.of(pd.DataFrame(columns), what)


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


def _inputs(what: str, tables: Sequence[Any], names: Sequence[str], columns: Columns, notes: list[str]) -> RawTable:
    """The columns that become inputs, as those of a table."""
    unnamed, names = nameless(names, columns.keep)
    if unnamed:
        notes.append(left_out(unnamed, columns.keep, what, "a column without a name is an index of the rows as a rule"))
    raw = _frame(what, tables, names).columns(names)
    inputs, wrong, said = read_raw(what, raw, columns, "sample {}".format)
    notes += said
    if wrong:
        raise DataError(together(what, wrong))
    if not inputs.columns:
        raise DataError(f"{what} has neither a column of images nor columns of which something can be learnt.")
    return inputs
