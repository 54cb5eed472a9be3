"""A table with a row per sample: of images, or of numbers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.decoding import dated
from equipoise.data.formats import delimited, paths
from equipoise.data.formats.typed import Frame, excel, is_picture, parquet
from equipoise.data.pictures import Pictures, of_files
from equipoise.data.tables.cells import Raw, Words, taken, word_of
from equipoise.data.tables.columns import (
    MANY,
    ROLES,
    WRITTEN,
    Column,
    Columns,
    UserData,
    check_purposes,
    column,
    listed,
    together,
)
from equipoise.data.tables.groups import described, groups_of, label_of
from equipoise.data.tables.reading import counting_columns, left_out, nameless, read_raw, signed, signs_in
from equipoise.data.tables.roles import named_columns, read_roles, with_signs
from equipoise.data.tables.words import Origin, missing
from equipoise.system.suggestions import some

TEXT = (".csv", ".tsv")
TYPED = {".parquet": parquet, ".xlsx": excel}
SUFFIXES = (*TEXT, *TYPED)
Table = delimited.Delimited | Frame  # whose cells are read when they are asked for


def read(path: Path, columns: Columns) -> UserData:
    """The user's data in a table: a row per sample, its class, and the path of an image or a number in every other column."""
    return of_table(opened(path, columns), path, columns, {"file": path.name, "bytes": path.stat().st_size})


def of_table(
    table: Table,
    source: Path | str,
    columns: Columns,
    about: Mapping[str, Any],
    roles_of: Sequence[str] = ROLES,
    images: tuple[str | None, Callable[[Column], Pictures]] | None = None,
) -> UserData:
    """The user's data in a table that was opened.

    Parameters
    ----------
    table, source : the table, and its file, or what it is called.
    about : facts for the record of a run.
    roles_of : purposes that columns may have by their usual names.
    images : the column of images, if there is one, and what gives these for the labels; None: as a file has them.
    """
    header, file = table.names, source.name if isinstance(source, Path) else source
    bands = label_of(columns, header, file)
    named_by = columns if bands is None else replace(columns, label=bands.column)
    used = named_columns(named_by, header, file, ("label", *roles_of))
    used["path"] = column(header, columns.image, "path", file) if images is None else images[0]
    if used["path"] is None and images is None and isinstance(table, Frame):
        used["path"] = next((name for name in table.pictures if name not in used.values()), None)
    image = used["path"]
    named = {role: name for role, name in used.items() if name is not None}
    check_purposes(used, source)
    _require_options(file, columns, header, named)
    apart = {*named.values(), *columns.leave_out}
    rest = [name for name in header if name not in apart]
    notes = list(table.notes)
    if image is not None:
        columns.require_none(("inputs", "keep", "schema"), source, "a table of numbers")
    elif columns.inputs is not None:
        unused = [name for name in rest if name not in columns.inputs]
        rest = [name for name in rest if name in columns.inputs]
        notes += [f"{file}: {listed(unused)}: not among inputs, and not used."] * bool(unused)
    if images is not None:
        named.pop("path", None)
    cells: Mapping[str, Sequence[Any]] = table.words([*named.values()])
    rows = np.arange(len(table))
    if "path" in named:
        rows = _needed(file, cells[named["path"]], notes)
    if columns.unlabelled and "label" in named:
        rows = _labelled(file, cells[named["label"]], rows, columns, notes)
    if len(rows) < len(table):
        cells = {name: [every[k] for k in rows.tolist()] for name, every in cells.items()}

    def at(k: int) -> str:
        return table.at(int(rows[k]))

    def origin(name: str) -> Origin:
        return Origin(f"{source}, column {name}", at)

    raw, counts = ({}, set()) if image is not None else _raw(file, columns, table, rest, rows, notes)
    signs, shown = signs_in(raw, columns, text=not isinstance(table, Frame))
    groups = with_signs(groups_of(columns, header, file), cells, columns, source, shown)
    if bands is not None:
        (bands,) = with_signs({"label": bands}, cells, columns, source, shown).values()
    roles, problems = read_roles(source, columns, named, groups, cells.__getitem__, origin, notes, bands, shown)
    if "label" not in named:
        problems.insert(
            0,
            f"{source} has no column label; its columns are {some(header, MANY) or 'none'}. "
            f"Name the one with the {columns.labelled}: --set label=COLUMN.",
        )
    inputs: Any = None
    if image is None:
        if not len(rows) and not problems:
            raise DataError(f"{source} holds no sample.")
        inputs, wrong, said = read_raw(file, raw, columns, at, signs, counts, [n for n in header if n not in raw])
        problems += [f"{source}, {problem}" for problem in wrong]
        notes += said
        if not inputs.columns and not problems:
            reasons = "".join(f" {note}" for note in said)
            problems.append(
                f"{source} has neither a column path nor columns of which something can be learnt.{reasons}"
            )
    if problems:
        raise DataError(together(source, problems))
    if image is None:
        features, names = inputs.schema.names, tuple(map(at, range(len(rows))))
        layout = f"a table of {len(features)} columns"
    else:
        label = roles["label"]
        inputs = images[1](label) if images else _images(Path(source), image, cells[image], label, at, notes)
        if rest:
            are = "s {} are" if len(rest) > 1 else " {} is"
            notes.append(f"{file}: the column{are.format(listed(rest))} not used.")
        layout, features, names = "a table of images", (), tuple(inputs.names)
    about = {**about, **described(groups.values(), columns)}
    roles |= {"inputs": inputs, "features": features, "names": names, "notes": tuple(notes)}
    return UserData(source=str(source), layout=layout, about=about, **roles)


def _require_options(what: str, columns: Columns, header: Sequence[str], named: Mapping[str, str]) -> None:
    """Require that the columns of options exist, and that none is to be kept as an input that has another purpose."""
    written = {} if columns.agreed else json.loads(columns.schema or "{}")
    for name in sorted({*columns.leave_out, *columns.keep, *(columns.inputs or ()), *written} - {*header}):
        column(header, name, "", what)  # which says that there is none
    for role, name in named.items():
        if name in columns.keep:
            raise DataError(
                f"{what}: keep={name} cannot make an input of the column of the {role}. Leave it out, or copy the column under another name."
            )


def _labelled(
    file: str, labels: Sequence[Any], rows: NDArray[np.int64], columns: Columns, notes: list[str]
) -> NDArray[np.int64]:
    """The rows that have a label."""
    words = [word_of(labels[k]) for k in rows.tolist()]
    present = np.array([not missing(word) or word in columns.not_missing for word in words], bool)
    notes.append(f"{file}: {(~present).sum():,} of {len(rows):,} rows have no label, and are left out.")
    labelled: NDArray[np.int64] = rows[present]
    return labelled


def _needed(file: str, cells: Sequence[Any], notes: list[str]) -> NDArray[np.int64]:
    """The rows of images, without those of files that operating systems write."""
    needless = {k: cell for k, cell in enumerate(cells) if isinstance(cell, str) and paths.needless(cell)}
    if needless:
        many, named = len(needless) > 1, listed(needless.values())
        notes.append(
            f"{file}: {len(needless)} row{'s name files' if many else ' names a file'} of operating systems, which "
            f"{'are' if many else 'is'} left out: {named}."
        )
    return np.array([k for k in range(len(cells)) if k not in needless], np.int64)


def _images(
    path: Path, name: str, cells: Sequence[Any], labels: Sequence[str], at: Callable[[int], str], notes: list[str]
) -> Pictures:
    """The images that the cells of a column name, or hold."""
    if any(map(is_picture, cells)):
        places = [at(k) for k in range(len(cells))]
        return Pictures(str(path), places, partial(_held, cells), partial(dated, [path], name))
    names = [str(cell) for cell in cells]
    files, said = paths.located(path, names, at)
    notes += [*said, *_repeats(path, files, labels, at)]
    return of_files(files, str(path), names)


def _held(cells: Sequence[Any], row: int) -> BytesIO:
    if not is_picture(cells[row]) or not cells[row]["bytes"]:
        raise ValueError("it is missing")
    return BytesIO(cells[row]["bytes"])


def _raw(
    file: str, columns: Columns, table: Table, rest: list[str], rows: NDArray[np.int64], notes: list[str]
) -> tuple[dict[str, Raw], set[str]]:
    """The columns that may become inputs, those with a name; and which of them count all rows of the table."""
    unnamed, rest = nameless(rest, columns.keep)
    raw = table.columns([*rest, *unnamed], signed(columns.schema))
    if merged := table.merged({name: raw[name] for name in rest}):
        notes.append(
            f"{file}: {listed(merged)}: whole numbers of so many digits that different ones are the same in double precision. "
            "Divide them into several columns if the last digits matter."
        )
    if filled := [name for name in unnamed if not _empty(raw[name])]:
        notes.append(left_out(filled, columns.keep, file, "a column without a name is an index of the rows as a rule"))
    counts = counting_columns({name: raw[name] for name in rest})
    return {name: raw[name] if len(rows) == len(table) else taken(raw[name], rows) for name in rest}, counts


def _empty(raw: Raw) -> bool:
    """Whether no cell of a column has any content."""
    return isinstance(raw, Words) and [*raw.counts] == [""]


def _repeats(path: Path, files: Sequence[Path], labels: Sequence[str], at: Callable[[int], str]) -> list[str]:
    """A note if some images are there several times."""
    first_row: dict[Path, int] = {}
    again = 0
    for k, file in enumerate(files):
        first = first_row.setdefault(file, k)
        again += first != k
        if labels[first] != labels[k]:
            raise DataError(
                f"{path}, {at(k)}: {file.name} is {labels[k]!r} here and {labels[first]!r} before ({at(first)}). An image has one label."
            )
    repeat = "line repeats an image of another" if again == 1 else "lines repeat images of others"
    note = f"{path.name}: {again} {repeat}; it counts each time, perhaps in training and in test data."
    return [note] * (again > 0)


def is_text(path: Path) -> bool:
    """Whether a table is text, by the ending of its file."""
    plain = path.stem if path.suffix.lower() in delimited.COMPRESSED else path.name
    return Path(plain).suffix.lower() in TEXT


def opened(path: Path, columns: Columns) -> Table:
    """The table in a file, whatever its format, of which nothing but the header was read.

    Raises
    ------
    DataError : no such file, or no table.
    """
    if not path.is_file():
        raise DataError(f"{path} is no file. Give a table: {', '.join(SUFFIXES)}.")
    if read_typed := TYPED.get(path.suffix.lower()):
        columns.require_none(WRITTEN, path, "a table that is text")
        return read_typed(path)
    if not is_text(path):
        raise DataError(f"{path}: expected a table, a file that ends in {', '.join(SUFFIXES)}; a text may be packed.")
    return delimited.read(path, columns)
