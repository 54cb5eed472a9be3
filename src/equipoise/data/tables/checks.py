"""Notes on columns of numbers that tell the label, name rows, say nothing, or hold a number that stands for a missing one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from math import lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.precision import BLOCK, LEAST, counting
from equipoise.data.tables.cells import Cells, RawTable
from equipoise.data.tables.columns import MANY, PROBLEMS, Column, Columns, UserData
from equipoise.data.tables.options import listed, option
from equipoise.data.tables.schema import CATEGORY, NUMBER, Feature
from equipoise.data.tables.words import EXACT
from equipoise.records.meta import LEAK
from equipoise.system.grouping import grouped
from equipoise.system.text import Said, noun

INDICES = re.compile("id|idx|index|level_0|no|nr|row(_?id|_?number|names|num)?")
IDENTIFIER = re.compile(r"(.*[^a-z])?(id|uid|uuid|no|nr|number|code|key|mrn|index)|.*[a-z](ID|Id|No|Nr|Code)")
PERSON = re.compile(
    r"subject|patient|person|participant|member|customer|employee|student|mrn|(.*[^a-z])?u?u?id|.*[a-z]I[dD]"
)
# numbers that stand for missing ones also where they are few, or among few others
STAND_INS = {sign * int(digit * n) for digit in "789" for n in range(2, 7) for sign in (-1, 1)} | {-9, -8, -7, 666}
RATIO = 5  # of a median to the other medians: a column is in another unit
DIFFERENT = 10  # numbers, from which on one among them may be odd
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the quantiles by which clients are compared
COMMON = 0.1  # of a client's cells: a category that only it has is noted
FEW = 1024  # rows that are looked at first
CHANCE = 1e-6  # of a note on a table without any column that tells the class
STEPS = 12  # up, and none down: by chance once in 12!
REPEATS = 10  # numbers that would occur again, if they were measurements without any order
DIGITS = 1e8  # from which on whole numbers are codes of which few need to be the same
TODO = "fill it in, or remove these rows"
LONGEST = 1e20  # from which on they are no codes


def doubts(own: UserData, columns: Columns) -> Iterator[str]:
    """What to know of the features before they are trained on, in sentences; nothing of images, and of sequences of whole numbers."""
    table = own.inputs if isinstance(own.inputs, RawTable) else None
    x = own.inputs if table is None else table.numbers()
    if not isinstance(x, np.ndarray) or x.ndim != 2 or len(x) < LEAST or not x.shape[1] or x.dtype == np.uint8:
        return  # too few rows, or no measurements in columns
    if "function" in own.about and x.dtype.kind != "f":
        return
    x = x.astype(np.float64) if x.dtype == np.float16 else x  # whose largest number is below the limits here
    names = own.features or tuple(f"x[:, {k}]" for k in range(x.shape[1]))
    source = own.about.get("file", own.source)

    leave = [*columns.leave_out]

    def note(which: Sequence[int], verbs: tuple[str, str], reason: str) -> str:
        called, many = [names[k] for k in which], len(which) > 1
        leave.extend(called)
        todo = option("leave_out", leave[:MANY]) if own.features else "leave it out"
        return f"{source}: the column{'s' * many} {listed(called)} {verbs[many]} {reason}: {todo}."

    what, part = ("number to predict", "") if own.regression else ("class", ", or some classes from the others,")
    y = own.targets if own.regression else np.unique(np.array(own.label, object), return_inverse=True)[1]
    people = [] if columns.subject else [k for k in people_in(x, names) if names[k] not in columns.keep]
    if telling := [k for k in (follows if own.regression else tells)(x, y) if k not in people]:
        words = f"the {what}{part} of all {len(x):,} samples. If made from the {what}, or known only after it"
        yield Said(note(telling, ("tells", "tell, each alone,"), words), LEAK)
    for name in (names[k] for k in people):
        doubt = f"{source}: the column {name} may name people, who have several rows, and a model learns them by heart"
        todo = f"keep the rows of each together, and the column out of the inputs: {option('subject', name)}"
        yield f"{doubt}. If so, {todo}. If not, and it is no feature: {option('leave_out', [*columns.leave_out, name][:MANY])}."
    wanted = {k for k, name in enumerate(names) if name in columns.keep}
    if naming := sorted({*identifiers(x, names)} - wanted - {*counting(x), *telling, *people}):
        rows = "the rows, or name people or visits, by its name or as whole numbers differ from row to row; then rows are learnt by heart"
        yield note(naming, ("may number", "may number"), rows)
    low, high = x.min(0), x.max(0)
    if constant := np.flatnonzero((low == high) & (np.abs(low) < EXACT)).tolist():
        yield note(constant, ("holds", "hold"), "the same number in every row, which tells nothing")
    for first, same in grouped(copies(x)).items():
        if first not in constant:
            yield note(same, ("is", "are"), f"the same as {names[first]} in every row, which tells nothing more")
    gaps = () if table is None or own.regression else _missing_by_class(own, table)
    at_clients = () if own.client is None else _by_client(own.client, table, x, names)
    for sentence in (*shortened([*gaps]), *_stand_ins(table, x, names), *shortened([*at_clients])):
        yield f"{source}: {sentence}"


def shortened(sentences: Sequence[str]) -> list[str]:
    """The first sentences, and how many more there are."""
    more = len(sentences) - PROBLEMS
    return [*sentences[:PROBLEMS], *[f"{more:,} more notes of that kind are left out."] * (more > 0)]


def _stand_ins(table: RawTable | None, x: NDArray[Any], names: Sequence[str]) -> Iterator[str]:
    """Notes on numbers and dates that may stand for missing ones."""
    low, high = x.min(0), x.max(0)
    second = np.where(x > low, x, np.inf).min(0), np.where(x < high, x, -np.inf).max(0)
    far = (second[0] - low > high - second[0]) | (high - second[1] > second[1] - low)
    for k, name in enumerate(names):
        feature = table.schema.features[k] if table is not None else Feature(name)
        incomplete = table is not None and table.missing[k].any()
        if feature.kind != CATEGORY and (far[k] or low[k] == 0 or high[k] == 0 or incomplete):
            values = table.columns[name].values if table is not None else x[:, k].astype(np.float64)
            todo = f"add missing_values = [{{}}] to {name} under [columns]" if table is not None else TODO
            yield from (f"{name} is {text}" for text in standing_in(values[np.isfinite(values)], todo, feature.form))


def _missing_by_class(own: UserData, table: RawTable) -> Iterator[str]:
    """Notes on columns that are empty for all samples of some classes, and not of others: then a gap tells the class."""
    y, n = own.targets, np.bincount(own.targets)
    for k in np.flatnonzero(table.missing.any(1)).tolist():
        name, gone = table.schema.features[k].name, table.missing[k]
        empty, large = np.bincount(y[gone], minlength=len(n)) == n, n >= LEAST
        if (empty & large).any() and (~empty & large).any():
            classes = [own.classes[k] for k in np.flatnonzero(empty & large).tolist()]
            gap = f"every cell is missing for the class{'es' * (len(classes) > 1)} {listed(classes)}, and not for others, so that a gap tells the class"
            yield f"column {name}: {gap}. If it is known only after the class: {option('leave_out', name)}."


def _by_client(client: Column, table: RawTable | None, x: NDArray[Any], names: Sequence[str]) -> Iterator[str]:
    """Notes on columns that are unlike at a client: empty, in another unit, or with categories of its own."""
    of_client = grouped(zip(client, range(len(client)), strict=True))
    rows = {name: np.array(where) for name, where in of_client.items() if name and len(where) >= LEAST}
    if len(rows) < 2:
        return
    features = table.schema.features if table is not None else ()
    numbers = [k for k in range(len(names)) if not features or features[k].kind == NUMBER]
    values = x[:, numbers].astype(np.float64)
    if table is not None:
        values[table.missing[numbers].T] = np.nan
    few = np.sort(values[:FEW], axis=0)
    many = (np.diff(few, axis=0) > 0).sum(0) + 1 >= DIFFERENT
    quantiles = {name: quantiles_of(values[where]) for name, where in rows.items()}
    yield from unlike([names[k] for k in numbers], quantiles, "client", many)
    for feature in features:
        if feature.kind == CATEGORY and table is not None:
            cells = table.columns[feature.name]
            counts = {name: Cells(cells.values[where], cells.words).counts for name, where in rows.items()}
            yield from unlike_words(feature.name, counts, "client")


def quantiles_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The quantiles at ``SHARES`` of columns [n, D], without missing cells; NaN of a column without any."""
    order = np.sort(values, axis=0)  # NaN are last
    n = (~np.isnan(values)).sum(0)
    ranks = np.clip(np.ceil(np.array(SHARES)[:, None] * n).astype(np.int64) - 1, 0, len(values) - 1)
    made: NDArray[np.float64] = np.take_along_axis(order, ranks, 0)
    made[:, n == 0] = np.nan
    return made


def unlike(
    columns: Sequence[str], quantiles: Mapping[str, NDArray[np.float64]], what: str, many: NDArray[np.bool_]
) -> Iterator[str]:
    """Notes on columns that are empty at some clients or sites, or whose numbers there are unlike those of all others.

    Unlike is a median by a factor of ``RATIO``, where numbers have one sign, or numbers of which few are in the range of the others.

    Parameters
    ----------
    columns : their names, D of them.
    quantiles : of each client, by its name, at ``SHARES`` [5, D]; NaN if every cell is missing.
    what : ``"client"`` or ``"site"``.
    many : [D], whether there are several different numbers, so that they are measured.
    """
    clients, every = [*quantiles], np.stack([*quantiles.values()], 1)  # [5, M, D]
    low, lower, median, upper, high = every
    empty, size = np.isnan(median), np.abs(median)
    one_sign = ~((low < 0) & (high > 0)).any(0)
    least, most = _least_of_others(size), -_least_of_others(-size)
    ratio = one_sign & (least > 0) & (least < np.inf) & ((size * RATIO <= least) | (size >= RATIO * most))
    beyond = (upper < _least_of_others(low)) & (high < _least_of_others(lower))
    beyond |= (lower > -_least_of_others(-high)) & (low > -_least_of_others(-upper))
    alone = (~empty).sum(0) < 2
    odd = (ratio | (beyond & (low < high))) & (many | (lower == upper)) & ~empty & ~alone
    for k in np.flatnonzero((empty.any(0) & ~empty.all(0)) | odd.any(0)).tolist():
        column = f"column {columns[k]}:"
        if lost := [name for name, gone in zip(clients, empty[:, k], strict=True) if gone]:
            yield f"{column} every cell is missing at {noun(what, len(lost))} {listed(lost)}, and not elsewhere."
        for m in np.flatnonzero(odd[:, k]).tolist()[: 1 if len(clients) == 2 else None]:
            others = np.delete(median[:, k], m)
            ends = [*dict.fromkeys(f"{end:.6g}" for end in (np.nanmin(others), np.nanmax(others)))]
            mark = f" If that number marks missing cells, in a table: under [columns], missing_values = [{median[m, k]:.15g}]."
            todo = f"Is its unit the same? If not, convert the numbers there.{mark * bool(lower[m, k] == upper[m, k])}"
            yield f"{column} the median at {what} {clients[m]} is {median[m, k]:.6g}, and {' to '.join(ends)} elsewhere. {todo}"


def _least_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least of all other rows of ``values`` [M, D], without NaN; infinite if there is none."""
    filled = np.where(np.isnan(values), np.inf, values)
    first, second = np.sort(np.concatenate([filled, np.full((1, values.shape[1]), np.inf)]), axis=0)[:2]
    return np.asarray(np.where(filled == first, second, first))


def unlike_words(column: str, counts: Mapping[str, Mapping[str, int]], what: str) -> Iterator[str]:
    """Notes on categories that are common at one client or site, and do not occur at any other."""
    for name, mine in counts.items():
        others = [words for other, words in counts.items() if other != name and any(words.values())]
        least = max(LEAST, COMMON * sum(mine.values()))
        common = (word for word, n in mine.items() if word and n >= least)
        alone = [word for word in common if not any(words.get(word) or words.get("") for words in others)]
        if others and alone:
            todo = "Is it written as elsewhere? If not, write it alike."
            yield f"column {column}: {listed(map(repr, alone))} at {what} {name} only. {todo}"
            if len(counts) == 2:
                return


def copies(x: NDArray[Any]) -> list[tuple[int, int]]:
    """Pairs of columns of ``x`` [n, D] that are equal in every row: the first, and each other one."""
    first, pairs = dict[int, int](), list[tuple[int, int]]()
    for k, content in enumerate(map(hash, map(bytes, np.ascontiguousarray(x.T)))):
        other = first.setdefault(content, k)
        pairs += [(other, k)] * (other != k and bool((x[:, k] == x[:, other]).all()))
    return pairs


def people_in(x: NDArray[Any], names: Sequence[str]) -> list[int]:
    """Columns of ``x`` [n, D] of whole numbers that seem to name people by their name, and come again, by about 2 to 50 rows of each."""
    n = len(x)
    called = (k for k, name in enumerate(names) if PERSON.fullmatch(name) or PERSON.match(name.casefold()))
    whole = (k for k in called if (x[:, k] == np.rint(x[:, k])).all())
    return [k for k in whole if max(DIFFERENT, n / 50) <= len(np.unique(x[:, k])) <= 0.9 * n]


def standing_in(x: NDArray[Any], todo: str = TODO, form: str = "") -> Iterator[str]:
    """What of a column may stand for missing numbers, or dates of a ``form``."""
    for number, rows in stand_ins(x):
        shown = f"{number:.15g}" if not form else str(np.datetime64(int(number), "D"))
        marked = shown if not form else f'"{np.datetime64(int(number), "D").astype(date).strftime(form)}"'
        missing = f"If that stands for a missing {'date' if form else 'number'}: {todo.format(marked)}."
        yield f"{shown} in {rows:,} {noun('row', rows)}, far from all its other {'dates' if form else 'numbers'}. {missing}"
    if not form and (zeros := odd_zeros(x)):
        missing = f"If 0 stands for a missing number: {todo.format(0)}."
        yield f"0 in {zeros[0]:,} of {len(x):,} rows, and the number next to it is {zeros[1]:g}. {missing}"


def odd_zeros(x: NDArray[np.float64]) -> tuple[int, float] | None:
    """The number of zeros that look like a code for "missing", and the nearest other value; None if they do not.

    They do if the nearest value is more than twice as far from 0 as any two neighbouring values of the lower half are from each other.
    """
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
        sizes = np.unique(classes[begins, k], return_counts=True)[1]
        chance[k] += lgamma(len(sizes) + 1) + sum(lgamma(count + 1) for count in sizes) - lgamma(sum(sizes) + 1)
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
    step, by_name = np.diff(x.astype(np.float64)), any(map(IDENTIFIER.fullmatch, (name, name.casefold())))
    close = n * n > 2 * REPEATS * (values[-1] - values[0])
    return bool(by_name or close or (step > 0).all() or (step < 0).all())


def _few(n: int) -> NDArray[np.int64]:
    """Rows that are looked at first: what fails in them fails in all."""
    return np.unique(np.linspace(0, n - 1, min(n, FEW)).astype(np.int64))


def stand_ins(x: NDArray[Any]) -> list[tuple[float, int]]:
    """The numbers of a column that may stand for missing ones, as -999 does, and how often: farther off than all others lie apart.

    They occur again, or are numbers that programs and people use so. The lowest and the highest are taken off as long as one is so far.
    """
    values, counts = np.unique(x.astype(np.float64), return_counts=True)
    low, high, odd = 0, len(values) - 1, list[int]()
    while high - low > 1:
        spread_below, spread_above = values[high] - values[low + 1], values[high - 1] - values[low]
        if values[low + 1] - values[low] > spread_below > 0:
            odd.append(low)
            low += 1
        elif values[high] - values[high - 1] > spread_above > 0:
            odd.append(high)
            high -= 1
        else:
            break
    many = high - low + 1 >= DIFFERENT
    usual = [k for k in odd if values[k] in STAND_INS or (many and counts[k] > 1 and values[k] != 0)]
    return sorted((float(values[k]), int(counts[k])) for k in usual)
