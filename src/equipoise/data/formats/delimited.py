"""Tables that are text: what is between their cells, which lines are rows, and the cells, which pandas reads."""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import re
import warnings
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import ROW, DataError, check_bytes, explain_damage, lines
from equipoise.data.tables.cells import Raw, Words
from equipoise.data.tables.columns import Columns
from equipoise.data.tables.options import listed, option
from equipoise.data.tables.schema import EXPONENT
from equipoise.data.tables.words import EXACT, LARGEST, Signs, respelt
from equipoise.system.text import plain_cell

if TYPE_CHECKING:
    import pandas as pd

SPOKEN = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}  # as one types them
COMPRESSED: Mapping[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # with which files begin that Excel calls Unicode text
SAMPLE = 1 << 16  # characters from which the separator is guessed, and at least three lines
CHUNK = 1 << 21  # cells that are text at once
LEAST = 50  # rows in which they are looked for in wide tables
FIRST = 1000  # rows in which columns of numbers are looked for
SHOWN = 10  # lines in an error
# why lines are no rows
COMMENTS = "lines that begin with # are comments and left out"
REPEATS, EMPTY = "lines that repeat the header are left out", "rows without any content are left out"
FEW = 200  # different fractions, which may be codes
BLOCK = 1 << 20  # numbers that are looked at at once
ROUNDING = 1e-6  # of thousandths
CODE = rf"[+-]?0\d|{EXPONENT}\s*\n"  # 007 and 1E1
CODES = re.compile(rf"[^\S\n]*(?:{CODE})", re.ASCII)
ODD = re.compile(rf"(?:^|\n)[^\S\n]*(?:{CODE})|\.000\s*\n", re.ASCII)
END = "\ue000"  # is read after the last line: a quotation mark that is open takes it into a cell
WHOLE = re.compile(r"[+-]?\d{1,300}", re.ASCII)
GAPS = ("", "NA", "NaN", "nan", "NULL", "null", "None", "?")  # in columns of numbers; other words make them text
Records = Iterator[tuple[int, tuple[int, list[str]]]]  # the number of each, the line that it ends in, and its cells
# what pandas makes of every file: no header, and each cell as it is written
PLAINLY = {"header": None, "index_col": False, "keep_default_na": False, "low_memory": False, "engine": "c"}


@dataclass(frozen=True)
class Delimited:
    """A table in a text file.

    Parameters
    ----------
    path, encoding, sep, decimal : the file, and how it is written.
    names : of its columns; one without a name is ``Unnamed: k``.
    lines : of every row, the line of the file that it ends in.
    skipped : records that are no rows: the header, comments, and lines without content.
    width : cells of a row; one more than there are names where every line ends with a separator.
    spaced : whether blanks after a separator are no part of a cell.
    head : the cells of the first rows, of a small table all.
    notes : sentences about what was left out.
    declared : whether the user gave ``decimal``, so that a point cannot be between thousands.
    codes, rounds : columns with cells such as 007 or 1E1, or 45.000, below the first rows.
    """

    path: Path
    encoding: str
    sep: str
    decimal: str
    names: tuple[str, ...]
    lines: Sequence[int]
    skipped: tuple[int, ...]
    width: int
    spaced: bool
    head: Sequence[Sequence[str]] = ()
    notes: tuple[str, ...] = ()
    declared: bool = False
    codes: frozenset[int] = frozenset()
    rounds: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.lines)

    def at(self, row: int) -> str:
        """The place of a row."""
        return f"line {self.lines[row]}"

    def words(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The cells of some columns as text."""
        return {name: [text.words[k] for k in text.codes.tolist()] for name, text in self._text(names).items()}

    def columns(self, names: Sequence[str], text: Collection[str] = ()) -> dict[str, Raw]:
        """Some columns as numbers, where every cell is one or empty, or else as text; those of ``text``, whose numbers have signs, in any case."""
        if not len(self) or not names:
            return {name: Words.of(()) for name in names}
        check_bytes(self.path, 8 * len(self) * len(names))
        first = [*zip(*self.head, strict=True)]
        place = self._places(names)
        cells = {name: first[k] for name, k in place.items()}
        number = [name for name in self._numeric(cells) if name not in text and place[name] not in self.codes]
        try:
            x = self._numbers(number)
        except ValueError:  # of a cell below the first rows
            number, x = [], np.empty((0, len(self)))
        good: NDArray[np.bool_] = ~np.any(np.abs(x) > LARGEST, axis=1)
        fitting = [name for name, fits in zip(number, good, strict=True) if fits]
        rounds = [place[name] in self.rounds for name in fitting]
        good[good] = ~self._doubtful(x[good], [cells[name] for name in fitting], rounds)
        numeric = {name: values for name, values, fits in zip(number, x, good, strict=True) if fits}
        read = {**numeric, **self._text([name for name in names if name not in numeric])}
        return {name: read[name] for name in names}

    @property
    def _whole(self) -> bool:
        """Whether the first rows are all."""
        return len(self.head) == len(self)

    def _numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Columns of numbers [D, n]."""
        places = [*self._places(names).values()]
        if not self._whole and names:
            frames = [*self._frames(places, np.float64, len(self) + 1)]  # one, and then that it has all rows
            return frames[0].to_numpy(np.float64).T
        x = np.empty((len(names), len(self)))
        for k, row in enumerate(self.head):
            cells = [row[place] for place in places]
            plain = cells if self.decimal == "." else [cell.replace(",", ".") for cell in cells]
            if not {*GAPS}.isdisjoint(plain):
                plain = ["nan" if cell in GAPS else cell for cell in plain]
            x[:, k] = np.fromiter(map(float, plain), np.float64, len(names))
        return x

    def _numeric(self, cells: Mapping[str, Sequence[str]]) -> list[str]:
        """The columns that hold numbers and gaps alone in these rows, none of which may be a code."""
        number, sign = Signs(decimal=self.decimal).pattern.pattern, re.escape(self.decimal)
        usual = rf"-?+(?:[1-9]\d*+|0)(?:{sign}\d*+)?+\n"  # which is found sooner
        gaps = "|".join(map(re.escape, GAPS))
        numbers = re.compile(rf"(?:{usual}|(?:{gaps})\n|\s*+(?!{CODE})(?:{number})[^\S\n]*+\n)*+", re.ASCII)
        fitting = (name for name, column in cells.items() if numbers.fullmatch("\n".join(column) + "\n"))
        return [name for name in fitting if not {*GAPS}.issuperset(cells[name])]

    def _doubtful(self, x: NDArray[np.float64], first: list[Sequence[str]], rounds: list[bool]) -> NDArray[np.bool_]:
        """Which columns of numbers [D, n] must be read as text, as it may have another meaning: 1.234 without another fraction, or 3.1 and 3.10.

        ``first`` are the cells of the first rows, by column, and ``rounds`` has those with a cell such as 45.000 below them.
        """
        doubtful = np.zeros(len(x), bool)
        step = max(1, BLOCK // max(1, x.shape[1]))
        for k in range(0, len(x), step):
            part = x[k : k + step]
            present = np.nan_to_num(part)
            size, fraction = np.abs(present), present != np.floor(present)
            milli = size * 1000
            near = np.abs(milli - np.rint(milli)) < ROUNDING
            grouped = ~fraction | ((size >= 1) & (size < 1000) & near)
            doubtful[k : k + step] = grouped.all(1) & fraction.any(1) & (not self.declared)
            different = (np.diff(np.sort(part[:, :FIRST])) > 0).sum(1) + 1
            for j in np.flatnonzero(~fraction.any(1)).tolist() if not self.declared else ():
                doubtful[k + j] = rounds[k + j] or any(cell.rstrip().endswith(".000") for cell in first[k + j])
            short = fraction.any(1) & near.all(1) & (different < min(FIRST, x.shape[1]))
            for j in np.flatnonzero(short).tolist():
                words = {*first[k + j]}.difference(GAPS)
                few = x.shape[1] > FIRST and different[j] <= FEW and len(np.unique(part[j])) <= FEW
                doubtful[k + j] |= few or (len(words) > different[j] and respelt(map(str.strip, words)))
        return doubtful

    def merged(self, columns: Mapping[str, Raw]) -> list[str]:
        """Columns with whole numbers so long that different ones are the same in double precision."""
        numbers = {name: x for name, x in columns.items() if isinstance(x, np.ndarray)}
        large = [name for name, x in numbers.items() if not x @ x < EXACT and np.any(np.abs(x) >= EXACT)]
        cells = {name: {cell.strip() for cell in every} for name, every in self.words(large).items()}
        whole = {name: [cell for cell in every if WHOLE.fullmatch(cell)] for name, every in cells.items()}
        return [name for name, every in whole.items() if len({*map(int, every)}) > len({*map(float, every)})]

    def _text(self, names: Sequence[str]) -> dict[str, Words]:
        """Some columns as text, of which different cells are kept once."""
        places = self._places(names)
        if self._whole:
            return {name: Words.from_text([plain_cell(row[k]) for row in self.head]) for name, k in places.items()}
        import pandas as pd

        code: dict[str, dict[str, int]] = {name: {} for name in places}
        codes = {name: np.empty(len(self), np.int32) for name in places}
        first = 0
        for frame in self._frames([*places.values()], str, max(1, CHUNK // len(places))) if places else ():
            for name, k in places.items():
                part, words = pd.factorize(frame[k])
                numbers = [code[name].setdefault(plain_cell(word), len(code[name])) for word in words]
                codes[name][first : first + len(frame)] = np.array(numbers, np.int32)[part]
            first += len(frame)
        return {name: Words(codes[name], tuple(code[name])) for name in places}

    def _places(self, names: Sequence[str]) -> dict[str, int]:
        place = {name: k for k, name in enumerate(self.names)}
        return {name: place[name] for name in names}

    def open_quotes(self) -> DataError:
        """That a quotation mark is not closed, or pandas finds other rows."""
        last = f", perhaps below line {self.lines[-2]}" if len(self) > 1 else ""
        return DataError(f"{self.path}: a quotation mark is opened and not closed{last}. Close or remove it.")

    def _frames(self, where: Sequence[int], dtype: type, rows: int) -> Iterator[pd.DataFrame]:
        """What pandas makes of some columns, so many ``rows`` at a time."""
        import pandas as pd

        read: Any = pd.read_csv
        n = 0
        with opened(self.path, self.encoding, None) as file, warnings.catch_warnings():
            # pandas loses an empty first cell after a line that ends in a carriage return alone: it sees none
            warnings.simplefilter("ignore")  # float_precision will have one value only, that which is asked for
            options: dict[str, Any] = {"sep": self.sep, "skipinitialspace": self.spaced, "decimal": self.decimal}
            options |= {"names": range(self.width), "usecols": where, "skiprows": self.skipped, "dtype": dtype}
            options |= {"na_filter": False} if dtype is str else {"na_values": GAPS, "float_precision": "round_trip"}
            try:
                for frame in read(file, chunksize=rows, **options, **PLAINLY):
                    n += len(frame)
                    yield frame[[*where]]  # pandas gives columns in the order of the file
            except pd.errors.ParserError:
                raise self.open_quotes() from None
        if n != len(self):
            raise self.open_quotes()


def read(path: Path, columns: Columns) -> Delimited:
    """Find out how a table is written, and which of its lines are rows.

    The separator is the one of comma, semicolon, tabulator and bar by which the first lines have the same number of cells.
    Empty lines are ignored, and so are lines that begin with #, if they are above the header or are no rows.
    """
    decimal = columns.decimal or "."
    sep = None if columns.sep is None else SPOKEN.get(columns.sep, columns.sep)
    if sep is not None and (len(sep) != 1 or sep in '"\r\n#' or sep.isalnum()):
        raise DataError(f"{path}: sep must be one sign between cells, or tab or space; found {columns.sep!r}.")
    encoding, unpacking = columns.encoding or "UTF-8", (EOFError, OSError, lzma.LZMAError, zlib.error)
    text = explain_damage(f"{path} cannot be read as a table", "Expected UTF-8 text with a header.", (csv.Error,))
    with explain_damage(f"{path} cannot be unpacked", "Pack it again.", unpacking), text:
        try:
            encoding = _encoding(path, columns.encoding)
            return replace(_structure(path, encoding, sep, decimal), declared=columns.decimal is not None)
        except UnicodeError as error:
            other = option("encoding", "latin-1" if encoding.lower().startswith("utf") else "utf-8")
            fault = f"{path} cannot be read as a table: it is no {encoding.removesuffix('-sig').upper()} text ({error})"
            raise DataError(f"{fault}. Save it as UTF-8; or, if it is text of Western Europe: {other}.") from None


def opened(path: Path, encoding: str, newline: str | None = "") -> TextIO:
    """The text of a file, which may be compressed, with line ends as they are, or all as one sign where ``newline`` is None."""
    open_file = COMPRESSED.get(path.suffix.lower(), open)
    return cast(TextIO, open_file(path, "rt", encoding=encoding, newline=newline))


def _encoding(path: Path, declared: str | None) -> str:
    """How the letters of a file are written: as is said, by the mark at its beginning, or UTF-8."""
    if declared is not None:
        try:
            opened(path, declared).close()
        except LookupError:
            raise DataError(
                f"{path}: encoding={declared} is none that Python knows, such as latin-1, cp1252, utf-16 or shift_jis."
            ) from None
        return declared
    with COMPRESSED.get(path.suffix.lower(), open)(path, "rb") as file:
        return MARKS.get(file.read(2), "utf-8-sig")


def _text(file: TextIO, path: Path) -> Iterator[str]:
    for k, line in enumerate(lines(file, path), start=1):
        if "\0" in line:
            wide = option("encoding", "utf-16-le" if line.index("\0") % 2 else "utf-16-be")
            raise DataError(f"{path}, line {k} has a NUL, as no text does. Save it as UTF-8; if it is UTF-16: {wide}.")
        yield line


def _records(file: TextIO, path: Path, sep: str, spaced: bool) -> Iterator[tuple[int, list[str]]]:
    """Every record with the line that it ends in."""
    reader = csv.reader(chain(_text(file, path), [END]), delimiter=sep, skipinitialspace=spaced)
    try:
        yield from ((reader.line_num - _open(row), row) for row in reader if row != [END])
    except csv.Error as error:
        if "field limit" in str(error):
            fault = f"a cell has more than {csv.field_size_limit():,} characters"
            raise DataError(f"{path}, line {reader.line_num}: {fault}. Is a quotation mark open?") from None
        raise


def _open(row: Sequence[str]) -> bool:
    """Whether a quotation mark in the last row is not closed."""
    return bool(row) and row[-1].endswith(END)


def _structure(path: Path, encoding: str, declared: str | None, decimal: str) -> Delimited:
    with opened(path, encoding) as file:
        sample, size = list[str](), 0
        for line in _text(file, path):
            if line.strip() and not line.startswith("#"):
                sample.append(line)
                size += len(line)
            if size > SAMPLE and len(sample) >= 3:
                break
    hint = re.fullmatch(r"sep=(.)\s*", sample[0]) if sample else None  # as Excel writes and reads
    sep = declared or (hint[1] if hint else _separator(sample))
    spaced = sep != " " and any(f'{sep} "' in line for line in sample)
    with opened(path, encoding) as file:
        records = enumerate(_records(file, path, sep, spaced))
        try:
            return _rows(Delimited(path, encoding, sep, decimal, (), (), (), 0, spaced), records, hint is not None)
        except DataError as error:
            if not declared or (other := _separator(sample)) == sep:
                raise
            spoken = next((word for word, sign in SPOKEN.items() if sign == other), other)
            raise DataError(f"{error} If another sign is between the cells: {option('sep', spoken)}.") from None


def _separator(sample: Sequence[str]) -> str:
    def agreement(sep: str) -> tuple[bool, float, int]:
        try:
            widths = [len(row) for row in csv.reader(sample, delimiter=sep, skipinitialspace=True) if row] or [0]
        except csv.Error:  # a line without this sign is longer than any cell
            return False, 0.0, 0
        return widths[0] > 1, sum(0 <= w - widths[0] <= 1 for w in widths) / len(widths), widths[0]

    return max(",;\t|", key=agreement)


def _rows(table: Delimited, records: Records, hinted: bool) -> Delimited:
    """The table with its names and with what of its records is rows, which are as long as the header."""
    path, skipped = table.path, list[int]()
    header, above = _header(path, records, hinted, skipped)
    left_out: dict[str, list[str]] = {COMMENTS: [f"{above} above the header"] * bool(above), REPEATS: [], EMPTY: []}
    ragged, trailing = list[tuple[int, int]](), False
    rows, head, row, codes, rounds = array("q"), list[list[str]](), header, set[int](), set[int]()
    n = len(header)
    most = max(LEAST, min(FIRST, CHUNK // (n + 1)))
    check_bytes(path, n * (ROW + 8 * most))
    names = _names(path, header)
    for k, (line, row) in records:
        closed = len(row) == n + 1 and not row[-1].strip()
        fits = closed or len(row) == n
        if reason := _reason(row, header, fits):
            skipped.append(k)
            if reason != EMPTY or len(row) > 1:
                left_out[reason].append(f"line {line}")
            continue
        rows.append(line)
        trailing |= closed
        if not fits:
            ragged.append((line, len(row)))
        if len(rows) <= most:
            # lines in a cell end as pandas gives them
            head.append([cell.replace("\r\n", "\n").replace("\r", "\n") for cell in row])
        elif ODD.search("\n".join(row) + "\n"):
            codes.update(j for j, cell in enumerate(row) if CODES.match(f"{cell}\n"))
            rounds.update(j for j, cell in enumerate(row) if cell.rstrip().endswith(".000"))
    if ragged:
        raise DataError(_ragged(path, n, ragged, len(rows)))
    notes = [f"{path.name}: {reason}: {listed(places)}." for reason, places in left_out.items() if places]
    head = [row + [""] * (n + trailing - len(row)) for row in head]
    table = replace(table, names=names, lines=rows, skipped=tuple(skipped), width=n + trailing)
    if _open(row):
        raise table.open_quotes()
    return replace(table, head=head, notes=tuple(notes), codes=frozenset(codes), rounds=frozenset(rounds))


def _reason(row: Sequence[str], header: Sequence[str], fits: bool) -> str:
    """Why a record is no row; nothing if it is one."""
    if row == header and len(row) > 1:
        return REPEATS
    if not _filled(row):
        return EMPTY
    return COMMENTS if not fits and row[0].startswith("#") else ""


def _filled(row: Sequence[str]) -> bool:
    """Whether a row has any content; most have some in their first cell."""
    return bool(row and row[0].strip()) or any(cell.strip() for cell in row)


def _header(path: Path, records: Records, hinted: bool, skipped: list[int]) -> tuple[list[str], int]:
    """The header, empty if there is none, and how many comments are above it; notes in ``skipped`` which records these are."""
    header, before = list[str](), list[list[str]]()
    for k, (_, row) in records:
        skipped.append(k)
        if not _filled(row):
            continue
        if not (hinted and not before) and not row[0].startswith("#"):
            header = row
            break
        before.append(row)
    above = [row for row in before if row[0].startswith("#")]
    if above and before[-1] is above[-1] and len(above[-1]) == len(header) > 1:
        fault = f"a line that begins with # has as many cells as the line below it ({listed(above[-1])})"
        raise DataError(f"{path}: {fault}. If it is the header, remove the #; if it is a comment, remove the line.")
    return header, len(above)


def _names(path: Path, header: Sequence[str]) -> tuple[str, ...]:
    stripped = [plain_cell(name).strip() for name in header]
    given = {*stripped}
    numbered = [f"Unnamed: {k}{'.1' * (f'Unnamed: {k}' in given)}" for k in range(len(stripped))]
    names = tuple(name or number for name, number in zip(stripped, numbered, strict=True))
    require_different(names, path)
    return names


def require_different(names: Sequence[str], source: Path | str) -> None:
    """Require columns of different names."""
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        lone = "one of each" if len(doubled) > 1 else "one"
        raise DataError(f"{source}: two columns are called {listed(map(repr, doubled))}. Rename {lone}.")


def _ragged(path: Path, n: int, ragged: Sequence[tuple[int, int]], rows: int) -> str:
    first = ", ".join(f"line {line} has {cells}" for line, cells in ragged[:SHOWN])
    more = f", and {len(ragged) - SHOWN:,} lines more" * (len(ragged) > SHOWN)
    hint = ""
    if len(ragged) == rows and {cells for _, cells in ragged} == {n + 1}:
        hint = " Every row has one cell more: if these are names of the rows, as R writes them, name their column in the header."
    elif all(cells > n for _, cells in ragged):
        hint = " A cell that holds the separator must be in quotation marks."
    return f"{path}: the header has {n} cells, and {len(ragged):,} of {rows:,} rows {'have' if len(ragged) > 1 else 'has'} another number: {first}{more}.{hint}"
