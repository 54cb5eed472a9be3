"""From what a user has to inputs of the network, as the run that trained it made them: rows of a table, numbers, or images."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from equipoise.bundle.files import SCHEMA
from equipoise.data.contents import DataError
from equipoise.data.formats.folders import SUFFIXES, needless
from equipoise.data.formats.table import Table, is_text, opened
from equipoise.data.pictures import from_files
from equipoise.data.precision import single
from equipoise.data.tables.cells import word_of
from equipoise.data.tables.coding import Coder
from equipoise.data.tables.columns import Columns, require_columns
from equipoise.data.tables.options import WRITTEN
from equipoise.data.tables.roles import band
from equipoise.data.tables.schema import CATEGORY, plain
from equipoise.data.tables.words import PLAIN, Signs, missing
from equipoise.data.transforms import Images
from equipoise.system.errors import InputError
from equipoise.system.suggestions import some

Made = tuple[NDArray[Any], list[str]]  # what the network takes, before a transform; and notes on it


@dataclass(frozen=True, kw_only=True)
class GroupColumn(Signs):
    """The column of a table with the groups of people, and the signs in its numbers, where they are text.

    Parameters
    ----------
    column : its name.
    bands : edges at which numbers are divided, see :class:`equipoise.data.tables.roles.Group`.
    names : of groups, where a table has other words for them.
    unknown : the group of people whose cell is missing; none if it is empty.
    """

    column: str
    bands: tuple[float, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    unknown: str = ""

    def group_of(self, cell: Any) -> str:
        """The group that a cell names."""
        word = word_of(cell)
        if missing(word):
            return self.unknown
        if not self.bands:
            return self.names.get(word, word)
        text = isinstance(cell, str) or self.unit  # 0.4 is no 40 %
        number = self.number(word) if text else PLAIN.number(word)
        return band(number, self.bands) if number == number else ""


def codes_of(words: Sequence[str], groups: Sequence[str], what: str) -> tuple[NDArray[np.int64], str]:
    """The codes [n] of groups, -1 for any other word, and a note on these.

    Raises
    ------
    DataError : most words that are there, and at least two, are no groups: they are probably written otherwise.
    """
    alike = {plain(group).casefold(): k for k, group in reversed([*enumerate(groups)])}  # of several the first
    code = alike | {group: k for k, group in enumerate(groups)}  # as they are before what is alike
    codes = np.array([code.get(word, code.get(plain(word).casefold(), -1)) for word in words], np.int64)
    strange = Counter(word for word, k in zip(words, codes.tolist(), strict=True) if k < 0 and not missing(word))
    choices = f"The groups are {some([*groups])}."
    n = strange.total()
    if 2 * n > int((codes >= 0).sum()) + n > 1:
        raise DataError(
            f"{what}: {n:,} of {len(words):,} people have a group that is not known ({some([*map(repr, strange)], 5)}). {choices}"
        )
    unknown = int((codes < 0).sum())
    note = f"{what}: of {unknown:,} of {len(words):,} people the group is not known. {choices}"
    return codes, note * bool(unknown)


@dataclass(frozen=True)
class Rows:
    """Columns of a table, which are matched by name and coded as the schema says; ``written`` is how the table of the run was written."""

    coder: Coder
    written: Mapping[str, str]
    transform: ClassVar[None] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return self.coder.schema.names

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row."""
        return (len(self.names),)

    def __call__(self, x: Any) -> Made:
        """The inputs of a pandas frame, or of columns by name."""
        return self.coder.encode_frame(self.frame(x))

    def frame(self, x: Any) -> Any:
        """A table as a pandas frame."""
        import pandas as pd

        if hasattr(x, "iloc") and hasattr(x, "columns"):
            return x
        columns = x.values() if isinstance(x, Mapping) else [None]
        if not all(isinstance(cells, Sized) and not isinstance(cells, str) for cells in columns):
            frame = f"a pandas frame with the columns {some(self.names)}, which are matched by name, lists by name, or the path of a file"
            raise InputError(f"This model takes a table, {frame}; found {_described(x)}.")
        if len({len(cells) for cells in x.values()}) > 1:
            raise DataError(f"Columns differ in length: {some([f'{name} {len(cells)}' for name, cells in x.items()])}.")
        return pd.DataFrame({name: list(cells) for name, cells in x.items()})

    def cells(self, x: Any, column: str) -> list[Any]:
        """The cells of a column."""
        if isinstance(x, str | Path):
            return group_cells(opened(Path(x), self._columns(Path(x), {})), column, str(x))
        frame = self.frame(x)
        places = [k for k, name in enumerate(frame.columns) if str(name).strip() == column]
        if len(places) != 1:
            raise DataError(_lacks("the table", column))
        return list(frame.iloc[:, places[0]].tolist())

    def _columns(self, path: Path, options: Mapping[str, str]) -> Columns:
        """How a table is written: as that of the run, if it is text."""
        written: dict[str, Any] = {**(self.written if is_text(path) else {}), **options}
        return Columns(**written)

    def read_inputs(self, path: Path, options: Mapping[str, str]) -> tuple[Made, Sequence[str], Table | None]:
        """The inputs of a table, which is read as that of the run was."""
        columns = self._columns(path, options)
        table = opened(path, columns)
        require_columns(table.names, self.names, path.name)
        if not len(table):
            raise DataError(f"{path} holds no row.")
        text = {f.name for f in self.coder.schema.features if f.thousands or f.unit or f.kind == CATEGORY}
        raw = table.columns(self.names, text)
        signs = {"decimal": columns.decimal} if columns.decimal else {}
        if {"decimal", "thousands"} & options.keys():
            signs = {"decimal": columns.decimal or ".", "thousands": columns.thousands or ""}
        made = self.coder.encode_columns(raw, path.name, table.at, signs)
        return made, [str(k + 1) for k in range(len(table))], table

    def as_json(self) -> dict[str, Any]:
        """What of it is not in the file of the schema."""
        return {"kind": "table", "schema": self.coder.schema.digest, "written": dict(self.written)}


@dataclass(frozen=True)
class Numbers:
    """Arrays of numbers, less ``mean`` and by ``std`` where these are known; a feature that never varied is only shifted."""

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    transform: ClassVar[None] = None

    def __call__(self, x: Any) -> Made:
        """The inputs of an array [n, *shape], or of a frame with named columns."""
        if self.names and hasattr(x, "columns"):
            require_columns([*map(str, x.columns)], self.names, "the table")
            x = x[list(self.names)].to_numpy()
        numbers = _array(x, self.shape)
        if numbers.dtype.kind not in "biuf" or not np.isfinite(numbers).all():
            raise DataError(
                f"Expected finite numbers [n, {', '.join(map(str, self.shape))}]; some are missing, infinite or text."
            )
        if not self.mean:
            return numbers, []
        across = (1, -1, *[1] * (len(self.shape) - 1)) if len(self.mean) < np.prod(self.shape) else (1, *self.shape)
        mean, std = (np.array(values).reshape(across) for values in (self.mean, self.std))
        return single((numbers.astype(np.float64) - mean) / np.where(std > 0, std, 1), lambda at: f"x{at}"), []

    def read_inputs(self, path: Path, options: Mapping[str, str]) -> tuple[Made, Sequence[str], Table | None]:
        """The inputs of arrays in a file of NumPy."""
        if path.suffix.lower() != ".npy" or options:
            raise InputError(
                f"{path}: this model takes arrays: save x with numpy.save, and give a .npy file; or in Python: eq.load(DIR).predict(x)."
            )
        return _from_array(self, path)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {"kind": "numbers", **asdict(self)}


@dataclass(frozen=True)
class Pictures:
    """Images: bytes [n, C, H, W], or where the run had files (``side`` pixels, as they were scaled) a folder or list of files."""

    shape: tuple[int, ...]
    side: int | None
    transform: Images
    names: ClassVar[tuple[str, ...]] = ()

    def __call__(self, x: Any) -> Made:
        """The inputs of an array of bytes, or of a list of files."""
        if isinstance(x, list | tuple) and x and isinstance(x[0], str | Path):
            return self._from_files([*map(Path, x)], "the images")
        pixels = _array(x, self.shape)
        if pixels.dtype != np.uint8:
            raise InputError(
                f"Expected images as bytes (uint8) [n, {', '.join(map(str, self.shape))}]; found {pixels.dtype}."
            )
        return pixels, []

    def _from_files(self, files: Sequence[Path], what: str) -> Made:
        if self.side is None:
            raise InputError(
                "This model was trained with images in arrays: give bytes (uint8) [n, C, H, W], in Python eq.load(DIR).predict(x)."
            )
        if gone := [file for file in files if not file.is_file()]:
            raise DataError(f"{what}: {some([*map(str, gone)])} cannot be found.")
        pictures, notes = from_files(files, what, [*map(str, files)]).as_trained(self.transform.levels)
        return np.load(pictures(self.side), allow_pickle=False), notes

    def read_inputs(self, path: Path, options: Mapping[str, str]) -> tuple[Made, Sequence[str], Table | None]:
        """The inputs of the images in a folder and those below it, in the order of their names."""
        if path.suffix.lower() == ".npy" and not options:
            return _from_array(self, path)
        if not path.is_dir() or options:
            raise DataError(f"{path}: this model takes images. Give a folder of them, or an array in a .npy file.")
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and not needless(file.name))
        if not files:
            raise DataError(f"{path} has no images ({', '.join(SUFFIXES)}).")
        return self._from_files(files, str(path)), [file.relative_to(path).as_posix() for file in files], None

    def as_json(self) -> dict[str, Any]:
        """All that matters when nothing is drawn at random."""
        options = {name: getattr(self.transform, name) for name in ("mean", "std", "size", "levels")}
        return {"kind": "images", "shape": self.shape, "side": self.side, **options}


Inputs = Rows | Numbers | Pictures


def _from_array(inputs: Numbers | Pictures, path: Path) -> tuple[Made, Sequence[str], None]:
    made = inputs(np.load(path, allow_pickle=False))
    return made, [str(k + 1) for k in range(len(made[0]))], None


def group_cells(table: Table, column: str, source: str) -> list[Any]:
    """The groups of people, of a column of a table."""
    if column not in table.names:
        raise DataError(_lacks(source, column))
    return table.words([column])[column]


def _lacks(source: str, column: str) -> str:
    return f"{source} has no column {column!r}, or two: the model has a threshold for each of its groups. Add it, empty where it is not known."


def _described(x: Any) -> str:
    """What somebody gave: a row, a number, an array of some shape."""
    advice = {
        "Series": ": of a row x.to_frame().T, of a column x.to_frame()",
        "dict": ": put each value into a list",
        "ndarray": ": in a Pipeline, set_output(transform='pandas')",
    }
    shape = f" of shape {list(x.shape)}" if hasattr(x, "shape") else ""
    return f"{type(x).__name__}{shape}{advice.get(type(x).__name__, '')}"


def _array(x: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        made = np.asarray(x)
    except ValueError:  # rows of unequal length
        made = np.empty(0)
    if made.ndim != len(shape) + 1 or made.shape[1:] != shape:
        raise InputError(
            f"Expected an array [n, {', '.join(map(str, shape))}], a sample in each row; found {list(made.shape)}."
        )
    if not len(made):
        raise DataError("There is no sample to predict.")
    return made


def inputs_of(about: Mapping[str, Any], schema: Callable[[], Mapping[str, Any]]) -> Inputs:
    """What ``as_json`` gave; ``schema`` reads that of a table."""
    kind = about["kind"]
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in about.items() if key != "kind"}
    if kind == "table":
        coder = Coder.of(schema())
        if coder.schema.digest != values["schema"]:
            raise InputError(f"{SCHEMA} is not the schema that the model was trained with.")
        return Rows(coder, values["written"])
    shape = tuple(map(int, values.pop("shape")))
    if kind == "numbers":
        return Numbers(shape, **values)
    return Pictures(shape, values.pop("side"), Images(**values))


def inputs_of_run(data: Mapping[str, Any], shape: tuple[int, ...], transform: object) -> Inputs:
    """How a run made inputs of its data.

    Parameters
    ----------
    data : what its manifest says of them; nothing where arrays were given to a federation.
    shape : of a sample as the federation has it.
    transform : of the federation.
    """
    if isinstance(transform, Images):
        return Pictures(shape, data.get("side"), transform)
    if transform is not None:
        raise InputError("The transform is your own code, which a bundle does not hold, as loading one runs no code.")
    if "schema" in data:
        read = data.get("read", {})
        return Rows(Coder.of(data["schema"]), {name: read[name] for name in WRITTEN if name in read})
    standardised = data.get("standardised") or {}
    names, mean, std = (tuple(standardised.get(name, ())) for name in ("features", "mean", "std"))
    return Numbers(shape, names, mean, std)
