"""Parquet files, which pandas reads by the package pyarrow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_bytes
from equipoise.data.tables.cells import Raw, Words

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Frame:
    """A table of a Parquet file, with the types that it declares."""

    frame: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(self.frame.columns)

    def __len__(self) -> int:
        return len(self.frame)

    def at(self, row: int) -> str:
        """The place of a row, counted from 1."""
        return f"row {row + 1}"

    def words(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """The cells of some columns; ``None`` where there is nothing."""
        return {name: _cells(self.frame[name]) for name in names}

    def columns(self, names: Sequence[str], text: Collection[str] = ()) -> dict[str, Raw]:
        """Some columns as numbers, of which NaN are missing, or as text."""
        return {name: _raw(self.frame[name]) for name in names}

    @property
    def pictures(self) -> list[str]:
        """Columns of images as data sets of the Hub have them: their files are in the cells."""
        objects = [name for name in self.names if self.frame[name].dtype == object and len(self)]
        return [name for name in objects if is_picture(self.frame[name].iloc[0])]

    def merged(self, columns: Mapping[str, Raw]) -> list[str]:
        """Columns with whole numbers so long that different ones are the same in double precision."""
        whole = {name: x for name, x in columns.items() if self.frame[name].dtype.kind in "iu" and len(self)}
        return [name for name, x in whole.items() if self.frame[name].nunique() > len(np.unique(np.asarray(x)))]


def is_picture(cell: Any) -> bool:
    """Whether a cell is the file of an image, with its name."""
    return isinstance(cell, dict) and cell.keys() == {"bytes", "path"}


def _cells(column: pd.Series) -> list[Any]:
    if column.dtype.kind == "M":
        column = column.astype(str).where(column.notna())
    return [None if gone else cell for cell, gone in zip(column.tolist(), column.isna(), strict=True)]


def _raw(column: pd.Series) -> Raw:
    if column.dtype.kind in "biuf":
        numbers: NDArray[np.float64] = column.to_numpy(np.float64, na_value=np.nan)
        return numbers
    if column.dtype.kind == "M" and column.dt.microsecond.any():  # then all with parts of seconds
        column = column.dt.strftime("%Y-%m-%d %H:%M:%S.%f%z")
    return Words.of(_cells(column))


def read(path: Path) -> Frame:
    """Read a Parquet file."""
    if find_spec("pyarrow") is None:
        raise DataError(f"{path}: Parquet files need the package pyarrow: pip install pyarrow. Or write a .csv file.")
    import pandas as pd

    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")

    try:
        with pq.ParquetFile(path) as file:
            about = file.metadata
            check_bytes(path, sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups)))
            check_bytes(path, 8 * about.num_rows * about.num_columns)
        frame = pd.read_parquet(path, engine="pyarrow", dtype_backend="numpy_nullable")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file ({error}).") from None
    named = [name for name in frame.index.names if name is not None]
    if named:
        frame = frame.reset_index()[[*named, *frame.columns]]
    frame.columns = [str(name).strip() for name in frame.columns]
    if not frame.columns.is_unique:
        doubled = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{path}: two columns are called {doubled!r}. Rename one.")
    return Frame(frame)
