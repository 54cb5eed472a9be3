"""A table with a row per sample, of images or of numbers: files of text, Parquet files, sheets of Excel, and frames of pandas.

No number or date whose cell has a type becomes text.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import ROW, DataError, check_bytes, check_zip, explain_damage, optional_package
from equipoise.data.decoding import dated
from equipoise.data.formats import delimited
from equipoise.data.formats.folders import located, needless
from equipoise.data.pictures import Pictures, from_files
from equipoise.data.tables.cells import Raw, Words, cells_of, raw_of, taken, word_of
from equipoise.data.tables.columns import MANY, ROLES, Column, Columns, UserData, check_purposes, column, together
from equipoise.data.tables.options import WRITTEN, listed, option
from equipoise.data.tables.reading import counting_columns, left_out, nameless, read_raw, signed, signs_in
from equipoise.data.tables.roles import described, groups_of, label_of, named_columns, read_roles, with_signs
from equipoise.data.tables.words import Origin, missing
from equipoise.system.suggestions import some

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 1 << 20  # rows that are looked at together
LAST = 1 << 20  # row of a sheet
FEW = 64  # rows between two looks at the memory
GROWTH = 4  # times the size of its text that a sheet takes in memory, about
EMPTY = (None, "")
UNSTORED = re.compile(
    rb'<c (?![^<>]*t="str")[^<>]*>\s*<f(?=[ >/])[^<>]*+(?:(?<=/)>|>[^<]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>'
)  # formulas alone
TEXT = (".csv", ".tsv")


@dataclass(frozen=True)
class Frame:
    """A table whose cells have types.

    Parameters
    ----------
    names, n : its columns, and how many rows it has.
    column : gives a column by its name.
    source : what it is called.
    notes : sentences about what was left out.
    at : the place of a row.
    """

    names: tuple[str, ...]
    n: int
    column: Callable[[str], pd.Series]
    source: str
    notes: tuple[str, ...] = ()
    at: Callable[[int], str] = lambda row: f"row {row + 1}"

    @staticmethod
    def of(frame: pd.DataFrame, source: str) -> Frame:
        """A frame of pandas, whose columns have different names, without blanks around them."""
        frame = frame.set_axis([str(name).strip() for name in frame.columns], axis=1)
        delimited.require_different([*frame.columns], source)
        return Frame(tuple(frame.columns), len(frame), frame.__getitem__, source)

    def __len__(self) -> int:
        return self.n

    def words(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """The cells of some columns, of which names are made; ``None`` where there is nothing."""
        return {name: self._read(name, _named) for name in names}

    def columns(self, names: Sequence[str], text: Collection[str] = ()) -> dict[str, Raw]:
        """Some columns as numbers, of which NaN are missing, as dates in UTC, of which NaT are, or else as they are."""
        return {name: self._read(name, raw_of) for name in names}

    @property
    def pictures(self) -> list[str]:
        """Columns of images as data sets of the Hub have them: their files are in the cells."""
        first = {name: cells.iloc[0] for name in self.names if self.n and (cells := self.column(name)).dtype == object}
        return [name for name, cell in first.items() if is_picture(cell)]

    def merged(self, columns: Mapping[str, Raw]) -> list[str]:
        """Columns with whole numbers so long that different ones are the same in double precision."""
        whole = {name: x for name, x in columns.items() if self.column(name).dtype.kind in "iu" and self.n}
        return [name for name, x in whole.items() if self.column(name).nunique() > len(np.unique(np.asarray(x)))]

    def _read(self, name: str, meaning: Callable[[pd.Series], Any]) -> Any:
        try:
            return meaning(self.column(name))
        except UnicodeDecodeError as error:
            fault = f"{self.source}, column {name}: its cells are bytes, and not all are UTF-8 text ({error})"
            raise DataError(f"{fault}. Save it as text, or leave it out: {option('leave_out', [name])}.") from None


def _named(column: pd.Series) -> list[Any]:
    """Cells as a file of text has them: truth values are True and False, and dates have a time of day where any has one."""
    import pandas as pd

    raw = raw_of(column)
    if isinstance(raw, np.ndarray) and raw.dtype.kind == "M":
        column = column if column.dtype.kind == "M" else pd.Series(raw)
        column = column.astype(str).where(column.notna())
    return [str(cell) if isinstance(cell, bool) else cell for cell in cells_of(column)]


def is_picture(cell: Any) -> bool:
    """Whether a cell is the file of an image, with its name."""
    return isinstance(cell, dict) and cell.keys() == {"bytes", "path"}


def parquet(path: Path) -> Frame:
    """Read a Parquet file, by pandas and the package pyarrow."""
    import pandas as pd

    pa = optional_package("pyarrow", f"{path}: Parquet files", "pyarrow", " Or write a .csv file.")
    pq = import_module("pyarrow.parquet")
    damaged = (pa.ArrowException, OSError, ValueError)
    with explain_damage(f"{path} cannot be read as a Parquet file", "Write it again.", damaged):
        with pq.ParquetFile(path) as file:
            about = file.metadata
            groups = [about.row_group(k) for k in range(about.num_row_groups)]
            values = sum(group.column(k).num_values for group in groups for k in range(group.num_columns))
            check_bytes(path, 8 * max(values, about.num_rows * about.num_columns))
            check_bytes(path, sum(group.total_byte_size for group in groups))
        _check_repeated(path, pq)
        frame = pd.read_parquet(path, engine="pyarrow", dtype_backend="numpy_nullable")
    index = {name: frame.index.get_level_values(k) for k, name in enumerate(frame.index.names) if name is not None}
    for name, values in reversed(index.items()):
        if name not in frame.columns:
            frame.insert(0, name, values.array)
        elif [*map(word_of, frame[name])] != [*map(word_of, values)]:  # pandas can keep a column also as an index
            raise DataError(f"{path}: the index and a column are both called {name!r}, and differ. Rename one.")
    return Frame.of(frame, str(path))


def _check_repeated(path: Path, pq: Any) -> None:
    """Require that text fits into memory where a Parquet file has each word once, and how often it occurs."""
    plain = import_module("pyarrow.types").is_primitive
    with pq.ParquetFile(path) as file:
        fields = [field.name for field in file.schema_arrow if str(field.type).endswith(("string", "binary"))]
        for name in (field.name for field in file.schema_arrow if field.name not in fields and not plain(field.type)):
            size = 0
            for batch in file.iter_batches(FEW, columns=[name]):
                size += batch.nbytes
                check_bytes(f"{path}, column {name}", size)
    with pq.ParquetFile(path, read_dictionary=fields) as file:
        sizes, lengths_of = dict.fromkeys(fields, 0), import_module("pyarrow.compute").binary_length
        for name in fields:
            for batch in file.iter_batches(BLOCK, columns=[name]):
                cells = batch.column(0)
                lengths = lengths_of(cells.dictionary).fill_null(0).to_numpy(zero_copy_only=False)
                counts = np.bincount(cells.indices.drop_null().to_numpy(), minlength=len(lengths))
                sizes[name] += int(counts @ lengths)
                check_bytes(f"{path}, column {name}", sizes[name])


def excel(path: Path) -> Frame:
    """Read the only sheet with anything in it of an Excel file, by the package openpyxl; formulas are what Excel stored as their result."""
    import pandas as pd

    openpyxl = optional_package("openpyxl", f"{path}: Excel files", "'equipoise[excel]'", " Or write a .csv file.")
    with explain_damage(f"{path} cannot be read as an Excel file", "Save it again."):  # openpyxl raises many kinds
        with zipfile.ZipFile(path) as file:
            check_zip(file, GROWTH)
            parts = [part for part in file.namelist() if part.startswith("xl/worksheets/sheet")]
            unstored = any(UNSTORED.search(file.read(part)) for part in parts)
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheets = {sheet.title: _rows(path, sheet) for sheet in book.worksheets}
        book.close()
    filled = [name for name, rows in sheets.items() if rows]
    if len(filled) != 1:
        several = f"several sheets with content ({listed(filled)}). Save the one that counts as a file of its own"
        raise DataError(f"{path} has {several if filled else 'no cell with content'}.")
    if unstored:
        raise DataError(f"{path} has formulas without a stored result. Open and save it in Excel or LibreOffice.")
    sheet = sheets[filled[0]]
    columns = dict(enumerate(zip_longest(*sheet.values())))  # of which the first cell is the name
    kept = {k: column for k, column in columns.items() if not {*column} <= {*EMPTY}}
    names = [f"Unnamed: {k}" if column[0] in EMPTY else column[0] for k, column in kept.items()]
    cells = pd.DataFrame([*zip(*kept.values(), strict=True)][1:], columns=names, dtype=object)
    return replace(Frame.of(cells, str(path)), at=[f"row {k}" for k in sheet][1:].__getitem__)


def _rows(path: Path, sheet: Any) -> dict[int, list[Any]]:
    """The rows of a sheet that have any content, by their numbers; nothing of errors such as #N/A."""
    sheet.reset_dimensions()  # which some programs declare too small
    rows, widest = dict[int, list[Any]](), 0
    for k, row in enumerate(sheet.iter_rows(), 1):
        if k > LAST:
            raise DataError(f"{path} has a row below {LAST:,}, and Excel writes none there. Save it again.")
        cells = [None if cell.data_type == "e" else cell.value for cell in row]
        if any(cell not in EMPTY for cell in cells):
            rows[k], wider = cells, len(cells) > widest
            widest = max(widest, len(cells))
            if wider or not k % FEW:  # all become as wide as the widest
                check_bytes(path, len(rows) * (ROW + 8 * widest))
    return rows


TYPED = {".parquet": parquet, ".xlsx": excel}
SUFFIXES = (*TEXT, *TYPED)
Table = delimited.Delimited | Frame  # whose cells are read when they are asked for


def read(path: Path, columns: Columns) -> UserData:
    """The user's data in a table: a row per sample, its class, and the path of an image or a number in every other column."""
    return from_table(opened(path, columns), path, columns, {"file": path.name, "bytes": path.stat().st_size})


def from_table(
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
    apart, notes = {*named.values(), *columns.leave_out}, [*table.notes]
    rest = [name for name in header if name not in apart]
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
        labels = cells[named["label"]]
        present = np.array([is_present(labels[k], columns) for k in rows.tolist()], bool)
        notes.append(f"{file}: {(~present).sum():,} of {len(rows):,} rows have no label, and are left out.")
        rows = rows[present]
    if len(rows) < len(table):
        cells = {name: [every[k] for k in rows.tolist()] for name, every in cells.items()}

    def at(k: int) -> str:
        return table.at(int(rows[k]))

    def origin(name: str) -> Origin:
        return Origin(f"{source}, column {name}", at)

    raw, counts = ({}, set()) if image is not None else _raw(file, columns, table, rest, rows, notes)
    readings = signs_in(raw, columns, text=not isinstance(table, Frame))
    groups = groups_of(columns, header, file) | ({} if bands is None else {"label": bands})
    groups = with_signs(groups, cells, columns, source, readings[1], notes)
    roles, problems, role_notes = read_roles(source, columns, named, groups, cells.__getitem__, origin, readings[1])
    notes += role_notes
    if "label" not in named:
        lost = f"{source} has no column label; its columns are {some(header, MANY) or 'none'}"
        labelled = "number to predict" if columns.regression else "class"
        problems.insert(0, f"{lost}. Name the one with the {labelled}: --set label=COLUMN.")
    layout = "a table of images"
    if image is None:
        if not len(rows) and not problems:
            raise DataError(f"{source} holds no sample.")
        inputs, wrong, input_notes = read_raw(file, header, raw, columns, at, readings, counts)
        problems += [f"{source}, {problem}" for problem in wrong]
        notes += input_notes
        if not inputs.columns and not problems:
            reasons = "".join(f" {note}" for note in input_notes)
            problems.append(f"{source} has neither a column path nor any of which something can be learnt.{reasons}")
        layout = f"a table of {len(inputs.schema.names)} columns"
        roles |= {"inputs": inputs, "features": inputs.schema.names, "names": tuple(map(at, range(len(rows))))}
    elif not problems:
        label = roles["label"]
        pictures = images[1](label) if images else _images(Path(source), image, cells[image], label, at, notes)
        roles |= {"inputs": pictures, "names": tuple(pictures.names)}
        are = "s {} are" if len(rest) > 1 else " {} is"
        notes += [f"{file}: the column{are.format(listed(rest))} not used."] * bool(rest)
    if problems:
        raise DataError(together(source, problems))
    about = {**about, **described(groups, columns)}
    return UserData(str(source), layout, about=about, notes=tuple(notes), **roles)


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


def is_present(cell: Any, columns: Columns) -> bool:
    """Whether a cell that has a name is not missing."""
    word = word_of(cell)
    return not missing(word) or word in columns.not_missing


def _needed(file: str, cells: Sequence[Any], notes: list[str]) -> NDArray[np.int64]:
    """The rows of images, without those of files that operating systems write."""
    systems = {k: cell for k, cell in enumerate(cells) if isinstance(cell, str) and needless(cell)}
    if systems:
        row, are = ("rows name files", "are") if len(systems) > 1 else ("row names a file", "is")
        left = f"of operating systems, which {are} left out: {listed(systems.values())}"
        notes.append(f"{file}: {len(systems)} {row} {left}.")
    return np.array([k for k in range(len(cells)) if k not in systems], np.int64)


def _images(
    path: Path, name: str, cells: Sequence[Any], labels: Sequence[str], at: Callable[[int], str], notes: list[str]
) -> Pictures:
    """The images that the cells of a column name, or hold."""
    if any(map(is_picture, cells)):
        places = [at(k) for k in range(len(cells))]
        return Pictures(str(path), places, partial(_held, cells), partial(dated, [path], name))
    names = [str(cell) for cell in cells]
    files, path_notes = located(path, names, at)
    notes += [*path_notes, *_repeats(path, files, labels, at)]
    return from_files(files, str(path), names)


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
        same = "whole numbers of so many digits that different ones are the same in double precision"
        notes.append(f"{file}: {listed(merged)}: {same}. Divide them into several columns if the last digits matter.")
    if filled := [name for name in unnamed if not isinstance(cells := raw[name], Words) or [*cells.counts] != [""]]:
        notes.append(left_out(filled, columns.keep, file, "a column without a name is an index of the rows as a rule"))
    counts = counting_columns({name: raw[name] for name in rest})
    return {name: raw[name] if len(rows) == len(table) else taken(raw[name], rows) for name in rest}, counts


def _repeats(path: Path, files: Sequence[Path], labels: Sequence[str], at: Callable[[int], str]) -> list[str]:
    """A note if some images are there several times."""
    first_row: dict[Path, int] = {}
    for k, file in enumerate(files):
        first = first_row.setdefault(file, k)
        if labels[first] != labels[k]:
            raise DataError(
                f"{path}, {at(k)}: {file.name} is {labels[k]!r} here and {labels[first]!r} before ({at(first)}). An image has one label."
            )
    again = len(files) - len(first_row)
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
