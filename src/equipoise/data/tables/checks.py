"""Notes on columns of numbers that tell the label, name rows, say nothing, or hold a number that stands for a missing one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.columns import MANY, PROBLEMS, Column, Columns, UserData, listed, option
from equipoise.data.tables.numbers import BLOCK, LEAST, counting
from equipoise.data.tables.schema import NUMBER
from equipoise.data.tables.words import EXACT

INDICES = re.compile("id|idx|index|level_0|no|nr|row(_?id|_?number|names|num)?")
IDENTIFIER = re.compile(r"(.*[^a-z])?(id|uid|uuid|no|nr|number|code|key|mrn|index)|.*[a-z](ID|Id|No|Nr|Code)")
STAND_INS = [-9, -99, -999, -9999, -99999, 99, 999, 9999, 99999, 999999]  # for missing numbers
MAGNITUDE = 10  # times the other medians: a column is in another unit
DIFFERENT = 10  # numbers, from which on a zero among them may be odd
FEW = 1024  # rows that are looked at first
CHANCE = 1e-6  # of a note on a table without any column that tells the class
STEPS = 12  # up, and none down: by chance once in 12!
REPEATS = 10  # numbers that would occur again, if they were measurements without any order
DIGITS = 1e8  # from which on whole numbers are codes of which few need to be the same
LONGEST = 1e20  # from which on they are no codes


def doubts(own: UserData, columns: Columns) -> Iterator[str]:
    """What to know of the features before they are trained on, in sentences; nothing of images, and of sequences of whole numbers."""
    x = own.inputs.numbers() if isinstance(own.inputs, RawTable) else own.inputs
    if not isinstance(x, np.ndarray) or not _measured(x, whole="function" not in own.about):
        return
    x = x.astype(np.float64) if x.dtype == np.float16 else x  # whose largest number is below the limits here
    names = own.features or tuple(f"x[:, {k}]" for k in range(x.shape[1]))
    source = own.about.get("file", own.source)

    leave = [*columns.leave_out]

    def said(which: Sequence[int], verbs: tuple[str, str], why: str) -> str:
        called, many = [names[k] for k in which], len(which) > 1
        leave.extend(called)
        todo = option("leave_out", leave[:MANY]) if own.features else "leave it out"
        return f"{source}: the column{'s' * many} {listed(called)} {verbs[many]} {why}: {todo}."

    what, part = ("number to predict", "") if own.regression else ("class", ", or some classes from the others,")
    y = own.targets if own.regression else np.unique(np.array(own.label), return_inverse=True)[1]
    if telling := (follows if own.regression else tells)(x, y):
        yield said(
            telling,
            ("tells", "tell, each alone,"),
            f"the {what}{part} of all {len(x):,} samples. If made from the {what}, or known only after it",
        )
    kept = {k for k, name in enumerate(names) if name in columns.keep}
    if naming := sorted({*identifiers(x, names)} - kept - {*counting(x), *telling}):
        yield said(
            naming,
            ("may number", "may number"),
            "the rows, or name people or visits, by its name or as whole numbers differ from row to row; then rows are learnt by heart",
        )
    low, high = x.min(0), x.max(0)
    if constant := np.flatnonzero((low == high) & (np.abs(low) < EXACT)).tolist():
        yield said(constant, ("holds", "hold"), "the same number in every row, which tells nothing")
    numbers = _present(own, x, names)
    for name, values in numbers.items():
        yield from (f"{source}: {name} is {said}" for said in _standing_in(values[np.isfinite(values)], name, own))
    if own.client is not None and numbers:
        said_of = [
            said for name, each in _medians(numbers, own.client).items() for said in unlike(name, each, "client")
        ]
        yield from (f"{source}: {sentence}" for sentence in shortened(said_of))


def shortened(sentences: Sequence[str]) -> list[str]:
    """The first sentences, and how many more there are."""
    more = len(sentences) - PROBLEMS
    return [*sentences[:PROBLEMS], *[f"{more:,} more notes of that kind are left out."] * (more > 0)]


def _present(own: UserData, x: NDArray[Any], names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """The columns of numbers, of which NaN are missing."""
    if not isinstance(own.inputs, RawTable):
        return dict(zip(names, x.T.astype(np.float64, copy=False), strict=True))
    return {f.name: own.inputs.columns[f.name].values for f in own.inputs.schema.features if f.kind == NUMBER}


def _medians(columns: Mapping[str, NDArray[np.float64]], client: Column) -> dict[str, dict[str, float]]:
    """By column and client the median; NaN if every cell is missing, and nothing of few rows, or of half zeros and half others."""
    import pandas as pd

    groups: Any = pd.DataFrame(columns).groupby(np.array(client, object))
    medians, low, high = groups.median(), groups.min(), groups.max()
    sites = [name for name, n in groups.size().items() if name and n >= LEAST]
    return {
        name: {
            str(site): float(medians[name][site])
            for site in sites
            if medians[name][site] or low[name][site] == high[name][site]
        }
        for name, values in columns.items()
        if np.isnan(values).any() or len(np.unique(values[:FEW])) >= DIFFERENT
    }


def unlike(column: str, medians: Mapping[str, float], what: str, empty: str = "every cell is missing") -> Iterator[str]:
    """Notes on a column that is empty at some clients or sites, or whose median there is an order of magnitude from all others.

    Parameters
    ----------
    column : its name.
    medians : of each client, by its name; NaN if every cell is missing.
    what : ``"client"`` or ``"site"``.
    """
    present = {name: median for name, median in medians.items() if not np.isnan(median)}
    if present and (lost := [name for name in medians if name not in present]):
        yield f"column {column}: every cell is missing at {what}{'s' * (len(lost) > 1)} {listed(lost)}, and not elsewhere."
    for name, median in present.items():
        others = [abs(other) for other_name, other in present.items() if other_name != name]
        least, most = min(others, default=0.0), max(others, default=0.0)
        if least > 0 and (abs(median) * MAGNITUDE <= least or abs(median) >= most * MAGNITUDE):
            elsewhere = f"{least:g}" if f"{least:g}" == f"{most:g}" else f"{least:g} to {most:g}"
            yield (
                f"column {column}: the median at {what} {name} is {median:g}, and {elsewhere} elsewhere. Is its unit the same? If not, convert "
                f"the numbers there. Does a number mark missing cells? In a table name it under [columns], missing_values = [{median:g}]."
            )


def _measured(x: NDArray[Any], *, whole: bool) -> bool:
    """Whether these may be measurements in columns, with rows enough to doubt them; ``whole`` numbers, too."""
    columns = x.ndim == 2 and len(x) >= LEAST and x.shape[1] > 0
    return columns and x.dtype != np.uint8 and (whole or x.dtype.kind == "f")


def _standing_in(x: NDArray[Any], name: str, own: UserData) -> Iterator[str]:
    """What of a column may stand for missing numbers."""
    todo = "fill it in, or remove these rows"
    if isinstance(own.inputs, RawTable):
        todo = "add missing_values = [{:g}] to {} under [columns]"
    ends = {x.min(initial=0), x.max(initial=0)}
    for number, rows in stand_ins(x) if ends & {*STAND_INS} else ():
        missing = f"If that stands for a missing number: {todo.format(number, name)}."
        yield f"{number:g} in {rows:,} row{'s' * (rows > 1)}, far from all its other numbers. {missing}"
    if zeros := odd_zeros(x):
        missing = f"If 0 stands for a missing number: {todo.format(0, name)}."
        yield f"0 in {zeros[0]:,} of {len(x):,} rows, and the number next to it is {zeros[1]:g}. {missing}"


def odd_zeros(x: NDArray[np.float64]) -> tuple[int, float] | None:
    """How many numbers are 0, and the one next to it, if it is farther off than twice what those next to that lie apart."""
    zeros = int((x == 0).sum())
    if not zeros or x.min() < 0 < x.max():
        return None
    others = np.unique(np.abs(x))[1:]
    if len(others) < DIFFERENT or others[0] <= 2 * np.diff(others[: len(others) // 2 + 1]).max():
        return None
    return zeros, float(np.sign(x.min() + x.max()) * others[0])


def tells(x: NDArray[Any], y: NDArray[Any]) -> list[int]:
    """Columns of ``x`` [n, D] that each alone tell the classes ``y`` [n], or some of them from the others, and do not so by chance.

    Either no number occurs with two classes, and many occur again; or each class has an interval of its own.
    """
    rows = _few(len(x))
    step = max(1, BLOCK // len(rows))
    chances = [_chance(x[rows, k : k + step], y[rows]) for k in range(0, x.shape[1], step)]
    maybe = np.flatnonzero(np.concatenate(chances) <= 0)
    limit, step = log(CHANCE / x.shape[1]), max(1, BLOCK // len(x))
    blocks = [maybe[first : first + step] for first in range(0, len(maybe), step)]
    return [k for block in blocks for k in block[_chance(x[:, block], y) < limit].tolist()]


def follows(x: NDArray[Any], y: NDArray[Any]) -> list[int]:
    """Columns of ``x`` [n, D] that only rise, or only fall, with the numbers ``y`` [n], in so many steps that it is no chance."""

    def follow(rows: NDArray[np.int64] | slice, k: int, sign: int) -> bool:
        values, up = x[rows, k], sign * y[rows]
        order = np.lexsort((up, values))
        rise = np.diff(up[order])
        return bool((rise >= 0).all() and (rise[np.diff(values[order]) > 0] > 0).sum() >= STEPS)

    few, every = _few(len(x)), slice(None)
    return [k for k in range(x.shape[1]) if any(follow(few, k, s) and follow(every, k, s) for s in (1, -1))]


def _chance(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Logarithm of the chance that a column that has nothing to do with the class tells it so well; infinite where it does not tell it."""
    n = len(y)
    present = np.unique(y, return_counts=True)[1]
    order = np.argsort(x, axis=0)
    values, classes = np.take_along_axis(x, order, 0), y[order]
    repeats, changes = values[1:] == values[:-1], classes[1:] != classes[:-1]
    again = repeats.sum(0)
    chance = np.where((repeats & changes).any(0), np.inf, again * log(np.square(present / n).sum()))
    for k in np.flatnonzero((chance <= 0) & (changes.sum(0) == len(present) - 1)).tolist():  # an interval for each
        begins = np.append(True, ~repeats[:, k])
        each = np.unique(classes[begins, k], return_counts=True)[1]
        chance[k] += lgamma(len(each) + 1) + sum(lgamma(count + 1) for count in each) - lgamma(sum(each) + 1)
    for k in np.flatnonzero((chance > 0) & (again == n - 2)).tolist():  # two numbers, of some classes each
        cut = int(repeats[:, k].argmin()) + 1
        if not {*classes[:cut, k].tolist()} & {*classes[cut:, k].tolist()}:
            chance[k] = len(present) * log(2) + lgamma(cut + 1) + lgamma(n - cut + 1) - lgamma(n + 1)
    return chance


def identifiers(x: NDArray[Any], names: Sequence[str]) -> list[int]:
    """Columns of ``x`` [n, D] with whole numbers that seem to name rows.

    They are called as indices are; or have many digits and are mostly different; or they are all different, and only rise or only
    fall, are called as identifiers are, or lie so close that measurements would occur again.
    """
    n = len(x)
    some = np.sort(x[_few(n)], axis=0)
    called = np.array([INDICES.fullmatch(name.casefold()) is not None for name in names], bool)
    maybe = called | (some[1:] != some[:-1]).all(0) | (np.abs(some).min(0) >= DIGITS)
    maybe &= (some == np.rint(some)).all(0)
    return [k for k in np.flatnonzero(maybe).tolist() if _names_rows(x[:, k], names[k], called[k])]


def _names_rows(x: NDArray[Any], name: str, called: bool) -> bool:
    n, values = len(x), np.sort(x).astype(np.float64)
    whole = bool((values == np.rint(values)).all())
    if called or not whole:
        return called and whole
    different = 1 + int((np.diff(values) > 0).sum())
    if DIGITS <= np.abs(values).min() <= np.abs(values).max() < LONGEST and different > n // 4:
        return True
    if different < n:
        return False
    if IDENTIFIER.fullmatch(name) or IDENTIFIER.fullmatch(name.casefold()):
        return True
    step = np.diff(x.astype(np.float64))
    return bool((step > 0).all() or (step < 0).all() or n * n > 2 * REPEATS * (values[-1] - values[0]))


def _few(n: int) -> NDArray[np.int64]:
    """Rows that are looked at first: what fails in them fails in all."""
    return np.unique(np.linspace(0, n - 1, min(n, FEW)).astype(np.int64))


def stand_ins(x: NDArray[Any]) -> list[tuple[float, int]]:
    """The numbers of a column that may stand for missing ones, as -999 does, and how often: farther off than all others lie apart."""
    others = x[~np.isin(x, STAND_INS)].astype(np.float64)
    if not len(others) or others.min() == others.max():
        return []
    low, high = others.min(), others.max()
    return [
        (float(number), int((x == number).sum()))
        for number in np.unique(x[np.isin(x, STAND_INS)])
        if max(low - number, number - high) > high - low
    ]
