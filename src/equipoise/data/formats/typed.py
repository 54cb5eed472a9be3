"""Tables whose cells have types: Parquet files, sheets of Excel, and frames of pandas; no number or date of them becomes text."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.data.contents import DataError
from equipoise.data.declared import check_bytes
from equipoise.data.tables.cells import Raw, cells_of, raw_of, word_of
from equipoise.data.tables.columns import listed, option

if TYPE_CHECKING:
    import pandas as pd

GROWTH = 4  # times the size of its text that a sheet takes in memory, about
EMPTY = (None, "")
UNSTORED = re.compile(
    rb'<c (?![^>]*t="str")[^>]*>\s*<f[ >/](?:(?!</c>).)*?(?:</f>|/>)\s*(?:<v\s*/>|<v></v>)?\s*</c>', re.DOTALL
)  # formulas alone


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
        if not frame.columns.is_unique:
            doubled = frame.columns[frame.columns.duplicated()][0]
            raise DataError(f"{source}: two columns are called {doubled!r}. Rename one.")
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
        first = {
            name: column.iloc[0] for name in self.names if self.n and (column := self.column(name)).dtype == object
        }
        return [name for name, cell in first.items() if is_picture(cell)]

    def merged(self, columns: Mapping[str, Raw]) -> list[str]:
        """Columns with whole numbers so long that different ones are the same in double precision."""
        whole = {name: x for name, x in columns.items() if self.column(name).dtype.kind in "iu" and self.n}
        return [name for name, x in whole.items() if self.column(name).nunique() > len(np.unique(np.asarray(x)))]

    def _read(self, name: str, meaning: Callable[[pd.Series], Any]) -> Any:
        try:
            return meaning(self.column(name))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.source}, column {name}: its cells are bytes, and not all are UTF-8 text ({error}). Save it as text, or leave it "
                f"out: {option('leave_out', [name])}."
            ) from None


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

    pa, pq = _package(path, "pyarrow", "Parquet", "pyarrow"), import_module("pyarrow.parquet")
    try:
        with pq.ParquetFile(path) as file:
            about = file.metadata
            check_bytes(path, sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups)))
            check_bytes(path, 8 * about.num_rows * about.num_columns)
        frame = pd.read_parquet(path, engine="pyarrow", dtype_backend="numpy_nullable")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file ({error}).") from None
    index = {name: frame.index.get_level_values(k) for k, name in enumerate(frame.index.names) if name is not None}
    for name, values in reversed(index.items()):
        if name not in frame.columns:
            frame.insert(0, name, values.array)
        elif [*map(word_of, frame[name])] != [*map(word_of, values)]:  # pandas can keep a column also as an index
            raise DataError(f"{path}: the index and a column are both called {name!r}, and differ. Rename one.")
    return Frame.of(frame, str(path))


def excel(path: Path) -> Frame:
    """Read the only sheet with anything in it of an Excel file, by the package openpyxl; formulas are what Excel stored as their result."""
    import pandas as pd

    openpyxl = _package(path, "openpyxl", "Excel", "'equipoise[excel]'")
    try:
        with zipfile.ZipFile(path) as file:
            check_bytes(path, GROWTH * sum(part.file_size for part in file.infolist()))
            parts = [part for part in file.namelist() if part.startswith("xl/worksheets/sheet")]
            unstored = any(UNSTORED.search(file.read(part)) for part in parts)
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheets = {sheet.title: _rows(sheet) for sheet in book.worksheets}
        book.close()
    except DataError:
        raise
    except Exception as error:  # openpyxl raises many kinds for a damaged file
        raise DataError(f"{path} cannot be read as an Excel file ({type(error).__name__}: {error}).") from None
    filled = [name for name, rows in sheets.items() if rows]
    if len(filled) != 1:
        several = f"several sheets with content ({listed(filled)}). Save the one that counts as a file of its own"
        raise DataError(f"{path} has {several if filled else 'no cell with content'}.")
    if unstored:
        raise DataError(
            f"{path} has formulas without a stored result. Open it in Excel or LibreOffice, and save it there."
        )
    (_, header), *rows = sheets[filled[0]].items()
    width = max(len(header), *(len(row) for _, row in rows))
    names = [
        f"Unnamed: {k}" if name in EMPTY else name for k, name in enumerate(header + [None] * (width - len(header)))
    ]
    cells = pd.DataFrame([row + [None] * (width - len(row)) for _, row in rows], columns=names, dtype=object)
    nothing = [name not in header and cells.iloc[:, k].isin(EMPTY).all() for k, name in enumerate(names)]
    places = [f"row {k}" for k, _ in rows]
    return replace(Frame.of(cells.loc[:, ~np.array(nothing)], str(path)), at=places.__getitem__)


def _rows(sheet: Any) -> dict[int, list[Any]]:
    """The rows of a sheet that have any content, by their numbers; nothing of errors such as #N/A."""
    sheet.reset_dimensions()  # which some programs declare too small
    rows = {
        k: [None if cell.data_type == "e" else cell.value for cell in row] for k, row in enumerate(sheet.iter_rows(), 1)
    }
    return {k: row for k, row in rows.items() if any(cell not in EMPTY for cell in row)}


def _package(path: Path, name: str, files: str, install: str) -> Any:
    if find_spec(name) is None:
        raise DataError(f"{path}: {files} files need the package {name}: pip install {install}. Or write a .csv file.")
    return import_module(name)
