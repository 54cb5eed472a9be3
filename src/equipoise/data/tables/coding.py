"""Rows of a table as inputs of a network, and what is learnt for it from sums over the training rows of clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.tables.cells import Cells, Place, Raw, RawTable, raw_of, read_cells, typed_numbers
from equipoise.data.tables.columns import require_columns, together
from equipoise.data.tables.options import listed, option
from equipoise.data.tables.schema import CATEGORY, NUMBER, Feature, Schema, number_of
from equipoise.data.tables.words import missing, same_numbers
from equipoise.privacy.suppression import enough, hidden
from equipoise.system.seals import typed
from equipoise.system.suggestions import some

BLOCK = 1 << 20  # numbers that are added up at once
POINTS = 1000  # that a site gives of a column, at most
NARROW = 2.0**-40  # a distance of quartiles that is so much smaller than the standard deviation
FLAT = 2.0**-50  # a standard deviation that is so much smaller than the mean is a rounding error

Rows = Sequence[int] | NDArray[np.int64]
Counts = Sequence[int] | NDArray[np.int64]
OTHER, MISSING = "other", "missing"  # names of inputs
MANY, UNLIKE = 10, 3.0  # rows, and standard deviations from the mean: a median so far off is noted
APART = 50  # times, which a percentage or a number of thousands is of its own fraction
FAR = {"standard": 20.0, "log": 20.0}  # standard deviations from the mean: such a number is noted


class Sums(NamedTuple):
    """Of one column over some rows: these add over clients.

    Parameters
    ----------
    rows, present : how many cells there are, and how many are not missing.
    total, deviation : of numbers the sum, and the standard deviation (ddof 0).
    fractions : how many numbers are not whole.
    points, counts : the numbers that are not missing, sorted; of a site the means of groups of neighbours, and how many each stands for.
    words : how often each category occurs; ``""`` counts those that are not named.
    """

    rows: int = 0
    present: int = 0
    total: float = 0.0
    deviation: float = 0.0
    fractions: int = 0
    points: Sequence[float] | NDArray[np.float64] = ()
    counts: Counts = ()
    words: Mapping[str, int] = MappingProxyType({})

    @staticmethod
    def over(parts: Sequence[Sums]) -> Sums:
        """Those of all clients; in whatever order, the same.

        ``n STD^2 = sum_k n_k (STD_k^2 + (mean_k - mean)^2)`` (Chan, Golub, LeVeque 1983), which loses no digits where means are large.
        """
        words = Counter[str]()
        for of_client in filter(None, (part.words for part in parts)):
            words.update(of_client)
        points = np.concatenate([part.points for part in parts] or [()])
        order = np.argsort(points, kind="stable")
        counted = any(len(part.counts) for part in parts)
        counts = np.concatenate([part.weights for part in parts])[order] if counted else ()
        present, total = sum(part.present for part in parts), math.fsum(part.total for part in parts)
        mean = total / present if present else 0.0
        deviation = _pooled((part.present, part.mean - mean, part.deviation) for part in parts)
        rows, fractions = sum(part.rows for part in parts), sum(part.fractions for part in parts)
        return Sums(rows, present, total, deviation, fractions, points[order], counts, words)

    @property
    def weights(self) -> NDArray[np.int64]:
        """How many numbers each point stands for: one, unless counts are given."""
        return np.asarray(self.counts, np.int64) if len(self.counts) else np.ones(len(self.points), np.int64)

    def suppressed(self, least: int) -> Sums:
        """The same without names of categories, and without numbers, of fewer rows than ``least``.

        Rare categories are counted together. If they are too few even so, the next rarest category gives them as many of its rows as they
        lack, or is counted with them where it would keep fewer than ``least``. Numbers are given in groups of neighbours, at most ``POINTS``,
        each of ``least`` or more, by their mean; equal numbers are in one group. Of numbers that are not whole it is kept only whether there are any.
        """
        if self.present and not enough(self.present, least):  # what so few rows have is theirs
            return Sums(self.rows)
        rare = hidden(self.words, least)
        words = {word: n for word, n in self.words.items() if word and word not in rare}
        if rest := sum(self.words.values()) - sum(words.values()):
            last = max(rare, key=lambda word: (self.words[word], word), default="")
            named = {last: rest - least} if last and enough(self.words[last], least) and enough(rest, 2 * least) else {}
            words |= {**named, "": rest - sum(named.values())}
        points, counts = grouped(np.asarray(self.points, np.float64), max(least, math.ceil(self.present / POINTS)))
        return self._replace(words=words, points=points, counts=counts, fractions=int(self.fractions > 0))

    @property
    def mean(self) -> float:
        """Of the cells that are there; 0 if none is."""
        return self.total / self.present if self.present else 0.0

    def quantile(self, *shares: float) -> list[float]:
        """The smallest numbers that at least a share of the cells do not exceed; of sites the mean of its group, whole if all are."""
        if not len(self.points):
            return [0.0 for _ in shares]
        n = int(sum(self.counts)) or len(self.points)
        ranks = [max(1, math.ceil(share * n)) for share in shares]
        places = np.searchsorted(np.cumsum(self.counts), ranks).tolist() if len(self.counts) else [k - 1 for k in ranks]
        numbers = [float(self.points[k]) for k in places]
        return numbers if self.fractions else [float(round(number)) for number in numbers]


def grouped(values: NDArray[np.float64], least: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Groups of ``least`` or more neighbouring numbers, of which equal ones are in one: what stands for each, and how many are in it.

    A number that ``least`` cells have stands for its group, else their mean.
    """
    different, counts = np.unique(values, return_counts=True)
    ends, size = list[int](), 0
    for k, n in enumerate(counts.tolist()):
        size += n
        if enough(size, least):
            ends.append(k + 1)
            size = 0
    ends[-1:] = [len(different)] * bool(ends)  # fewer than that remain: they are in the last group
    parts = [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]
    sizes = [int(counts[part].sum()) for part in parts]
    return tuple(_middle(different[part], counts[part], least) for part in parts), tuple(sizes)


def _middle(values: NDArray[np.float64], counts: NDArray[np.int64], least: int) -> float:
    common = int(counts.argmax())
    if enough(counts[common], least):
        return float(values[common])
    return math.fsum((values * counts).tolist()) / int(counts.sum())


def add_up(feature: Feature, cells: Cells, rows: Rows) -> Sums:
    """The sums of one column over some rows: what a client gives."""
    values = cells.values[np.asarray(rows, np.int64)]
    if feature.kind == CATEGORY:
        words = {word: n for word, n in Cells(values, cells.words).counts.items() if n}
        return Sums(len(values), int((values >= 0).sum()), words=words)
    return _sums([logarithm(feature, values[~np.isnan(values)])[None]], len(rows))[0]


def _sums(parts: Sequence[NDArray[np.float64]], rows: int) -> list[Sums]:
    """The sums of columns of numbers over all clients, [D, n] of each, none of which is missing, of ``rows`` cells."""
    totals, present = [exact_sums(values) for values in parts], sum(values.shape[1] for values in parts)
    total = exact_sums(np.stack(totals, 1))
    clients = list[list[tuple[int, float, float]]]()
    for values, of_client in zip(parts, totals, strict=True):
        n = max(1, values.shape[1])
        apart = np.abs(values - of_client[:, None] / n)
        unit = apart.max(1, initial=0)
        unit[unit == 0] = 1.0  # without it squares would be zero or infinite
        deviations = unit * np.sqrt(exact_sums(np.square(apart / unit[:, None])) / n)
        gaps = of_client / n - total / max(1, present)
        clients.append([(values.shape[1], *pair) for pair in zip(gaps.tolist(), deviations.tolist(), strict=True)])
    points = np.sort(np.concatenate(parts, axis=1), axis=1)
    spread, fractions = map(_pooled, zip(*clients, strict=True)), (points % 1 != 0).sum(1).tolist()
    columns = zip(total.tolist(), spread, fractions, points, strict=True)
    return [Sums(rows, present, *column) for column in columns]


def _pooled(clients: Iterable[tuple[int, float, float]]) -> float:
    """The standard deviation over all clients, of how many numbers each has, how far its mean is from that of all, and its deviation."""
    clients = [client for client in clients if client[0]]
    unit = max((max(deviation, abs(gap)) for _, gap, deviation in clients), default=0.0) or 1.0
    squares = math.fsum(n * ((deviation / unit) ** 2 + (gap / unit) ** 2) for n, gap, deviation in clients)
    return unit * math.sqrt(squares / max(1, sum(n for n, _, _ in clients)))


def exact_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of rows [D, n], exact and then rounded, as those of ``math.fsum``: whatever the order of numbers.

    Many short rows are added up together, each sum as two numbers without a rounding error (Knuth 1969), where two are enough.
    """
    if len(values) <= values.shape[1]:
        return np.array([math.fsum(row) for row in values.tolist()])
    high, low, lost = np.zeros((3, len(values)))
    for column in values.T:
        high, error = _exact_sum(high, column)
        low, error = _exact_sum(low, error)
        lost += np.abs(error)
    total: NDArray[np.float64] = high + low
    for k in np.flatnonzero(lost).tolist():
        total[k] = math.fsum(values[k].tolist())
    return total


def _exact_sum(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounded sum, and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def logarithm(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``log(1 + x)`` where the column is scaled so."""
    if feature.scaling != "log":
        return values
    if (values <= -1).any():
        raise DataError(f'column {feature.name}: scaling = "log" needs numbers above -1; found {np.nanmin(values):g}.')
    return np.log1p(values)


@dataclass(frozen=True)
class Fitted:
    """What was learnt of one column: a number x becomes ``(x - centre) / scale``.

    Parameters
    ----------
    fill : what stands for a missing number, or the category that stands for a missing one.
    flagged : whether an input says that the cell is missing.
    categories : those with an input of their own, or the order of an ordinal column.
    joined : whether all others share an input.
    """

    centre: float = 0.0
    scale: float = 1.0
    fill: float | str = 0.0
    flagged: bool = False
    categories: tuple[str, ...] = ()
    joined: bool = False


def add_up_all(table: RawTable, clients: Iterable[Rows]) -> dict[str, Sums]:
    """The sums of all columns over some rows of all clients: each client gives its sums."""
    features, columns, sums = table.schema.features, table.columns, dict[str, Sums]()
    every = [np.asarray(rows, np.int64) for rows in clients]
    n = sum(map(len, every))
    plain = [f for f in features if f.kind != CATEGORY and f.scaling != "log"]
    step = max(1, BLOCK // max(1, n))
    for block in (plain[k : k + step] for k in range(0, len(plain), step)):
        values = np.stack([columns[f.name].values for f in block])
        parts = [values[:, rows] for rows in every]
        full = ~np.any([np.isnan(part).any(1) for part in parts], axis=0)
        names = [f.name for f, complete in zip(block, full, strict=True) if complete]
        sums |= zip(names, _sums([part[full] for part in parts], n), strict=True)
    for f in features:
        if f.name not in sums:
            sums[f.name] = Sums.over([add_up(f, columns[f.name], rows) for rows in every])
    return sums


def learn(schema: Schema, sums: Mapping[str, Sums]) -> dict[str, Fitted]:
    """What the sums over all clients give, by column.

    Raises
    ------
    DataError : columns of which every training cell is missing.
    """
    if empty := [f.name for f in schema.features if not sums[f.name].present]:
        s = "s" * (len(empty) > 1)
        raise DataError(
            f"column{s} {listed(empty)}: every cell of the training rows is missing. Leave {'them' if s else 'it'} out: {option('leave_out', empty)}."
        )
    return {f.name: (fit_categories if f.kind == CATEGORY else fit_numbers)(f, sums[f.name]) for f in schema.features}


def fit_numbers(feature: Feature, sums: Sums) -> Fitted:
    """Centre and scale of a column of numbers."""
    centre, scale = sums.mean, sums.deviation if sums.deviation > FLAT * abs(sums.mean) else 0.0
    low, middle, high = sums.quantile(0.25, 0.5, 0.75)
    if feature.scaling == "robust":
        centre, scale = middle, high - low
        scale = scale if scale > NARROW * sums.deviation else 0.0
    if feature.scaling == "none":
        centre, scale = 0.0, 1.0
    fill = sums.mean if feature.missing == "mean" else middle
    if feature.scaling == "log":
        fill = math.expm1(fill)
    return Fitted(centre, scale or 1.0, fill, sums.present < sums.rows)


def fit_categories(feature: Feature, sums: Sums) -> Fitted:
    """The categories of a column, of the counts of its words."""
    names = feature.categories or tuple(sorted(word for word, n in sums.words.items() if word and n >= feature.least))
    rest = sum(n for word, n in sums.words.items() if word not in names)
    common = max(sorted(filter(None, sums.words)), key=lambda word: sums.words[word], default="")
    own = feature.missing == "own" and sums.present < sums.rows
    fitted = Fitted(fill=common, flagged=own, categories=names, joined=rest > 0)
    if feature.coding == "one-hot":
        return fitted
    places = {word: k for k, word in enumerate(names)}
    numbers = [(places[word], n) for word, n in sums.words.items() if word in places]
    count = sum(n for _, n in numbers) or 1
    mean = sum(k * n for k, n in numbers) / count
    deviation = math.sqrt(math.fsum(n * (k - mean) ** 2 for k, n in numbers) / count)
    return replace(fitted, centre=mean, scale=deviation or 1.0)


@dataclass(frozen=True)
class Coder:
    """Makes inputs of rows, each on its own: a row has the same inputs in every table."""

    schema: Schema
    fitted: Mapping[str, Fitted]

    @staticmethod
    def fitted_to(table: RawTable, clients: Iterable[Rows]) -> Coder:
        """What is learnt from the training rows of every client."""
        return Coder(table.schema, learn(table.schema, add_up_all(table, clients)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the inputs, in order: ``age``, ``age missing``, ``sex=Male``."""
        return tuple(name for f in self.schema.features for name in input_names(f, self.fitted[f.name]))

    def __call__(self, columns: Mapping[str, Cells]) -> NDArray[np.float32]:
        """The inputs [n, D] of rows."""
        made, place = np.empty((len(next(iter(columns.values())).values), len(self.names)), np.float32), 0
        for feature in self.schema.features:
            part = _coded(feature, self.fitted[feature.name], columns[feature.name])
            made[:, place : place + part.shape[1]] = part
            place += part.shape[1]
        if not np.isfinite(made).all():
            row, column = np.argwhere(~np.isfinite(made))[0].tolist()
            raise DataError(
                f"input {self.names[column]} of row {row + 1} is too large for float32. Correct or scale it."
            )
        return made

    def encode_frame(self, frame: Any, source: str = "the table") -> tuple[NDArray[np.float32], list[str]]:
        """The inputs of a pandas frame, whose columns are matched by name, and notes on what training has not seen.

        Raises
        ------
        DataError : columns are missing, or cells are not what the schema says; all problems at once.
        """
        names = [str(name).strip() for name in frame.columns]
        if doubled := {name for name in self.schema.names if names.count(name) > 1}:
            raise DataError(f"{source}: two columns are called {some(sorted(doubled))}. Rename one.")
        require_columns(names, self.schema.names, source)
        columns = {f.name: frame.iloc[:, names.index(f.name)] for f in self.schema.features}
        raw = {name: raw_of(column) for name, column in columns.items()}
        made, notes = self.encode_columns(raw, source, lambda k: f"row {k + 1}")
        for name, column in columns.items():
            marks = [word for word in self.fitted[name].categories if missing(word)]
            if marks and (gone := int(column.isna().sum())):
                seen = f"Training has {some([*map(repr, marks)])} among its categories"
                why = "which pandas takes for missing, unless it reads with keep_default_na=False"
                notes.append(f"column {name}: cells that are missing: {gone:,}. {seen}, {why}.")
        return made, notes

    def encode_columns(
        self, raw: Mapping[str, Raw], source: str, at: Place, signs: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], list[str]]:
        """The inputs of columns as a reader gives them, and notes; ``at(k)`` is the place of row k, ``signs`` options of this table."""
        if not len(next(iter(raw.values()))):
            raise DataError(f"{source} holds no row, so there is nothing to predict.")
        columns, problems = {}, list[str]()
        for feature in self.schema.features:
            if signs and feature.kind == NUMBER:
                feature = replace(feature, **signs)
            columns[feature.name], wrong = read_cells(feature, raw[feature.name], at)
            problems += wrong + _unlike(feature, self.fitted[feature.name], raw[feature.name])
        notes = self.notes(columns, source, problems)
        return self(columns), notes

    def notes(self, columns: Mapping[str, Cells], source: str, problems: Sequence[str] = ()) -> list[str]:
        """Notes on cells that training has not seen.

        Raises
        ------
        DataError : there are ``problems``, or most cells of a column seem to be written otherwise than in training.
        """
        texts, problems = list[str](), [*problems]
        for f in self.schema.features:
            for text, problem in strangers(f, self.fitted[f.name], columns[f.name]):
                (problems if problem else texts).append(f"column {f.name}: {text}")
        if problems:
            raise DataError(together(source, problems))
        return texts

    def as_json(self) -> dict[str, Any]:
        """As a mapping that JSON holds, with the schema's hash."""
        fitted = {name: vars(learnt) | {"categories": [*learnt.categories]} for name, learnt in self.fitted.items()}
        return self.schema.as_json() | {"sha256": self.schema.digest, "fitted": fitted}

    @staticmethod
    def of(content: Mapping[str, Any]) -> Coder:
        """What :meth:`as_json` gave."""
        return Coder(Schema.of(content["columns"], content["left_out"]), typed(dict[str, Fitted], content["fitted"]))


def strangers(feature: Feature, fitted: Fitted, cells: Cells) -> Iterator[tuple[str, bool]]:
    """Sentences on cells of a column that training has not seen, each with whether it is a problem: other categories, missing ones, far numbers.

    A column of which most cells are unknown categories is a problem, as it is probably written otherwise. Where training joined rare ones,
    their names are not kept, so that it is one only if a cell is a category in other capitals, or without its leading zeros.
    """
    gone, n = int(cells.missing.sum()), len(cells.values)
    if n >= MANY and gone == n:
        yield f"every cell of {n:,} is missing, and counts as {fitted.fill}. Is the column empty at its source?", False
        return
    if gone and not fitted.flagged:
        stands = "none of its categories" if feature.kind == CATEGORY and feature.missing == "own" else f"{fitted.fill}"
        lost = f"{gone:,} cells are missing, and count" if gone > 1 else "1 cell is missing, and counts"
        yield f"{lost} as {stands}; in training none was missing.", False
    yield from (_strange_words if feature.kind == CATEGORY else _far_numbers)(feature, fitted, cells)


def _far_numbers(feature: Feature, fitted: Fitted, cells: Cells) -> Iterator[tuple[str, bool]]:
    """Notes on numbers that are far from those of training."""
    if feature.scaling not in FAR:
        return
    away = np.abs(logarithm(feature, cells.values[~cells.missing]) - fitted.centre) / fitted.scale
    if far := int((away > FAR[feature.scaling]).sum()):
        many = "numbers are" if far > 1 else "number is"
        yield f"{far:,} {many} very far from those of training. Is the unit the same?", False
    elif len(away) >= MANY and np.median(away) > UNLIKE:
        middle = np.nanmedian(cells.values)
        yield f"the median is {middle:g}, far from the numbers of training. Is its unit the same?", False


def _strange_words(feature: Feature, fitted: Fitted, cells: Cells) -> Iterator[tuple[str, bool]]:
    """Problems and notes on words that are no category of training."""
    place = places_of(fitted, cells.words)
    new = {word: n for word, n in cells.counts.items() if n and word not in place}
    strange, present = sum(new.values()), sum(cells.counts.values())
    most = 2 * strange > present > 1
    if not new or (fitted.joined and not most):
        return
    spelled = {_spelling(word): word for word in fitted.categories}
    meant = [f"{word!r} for {spelled[_spelling(word)]!r}" for word in new if _spelling(word) in spelled]
    named = some([f"{word!r} in {n:,}" for word, n in new.items()], 5)
    share = f"{strange:,} of {present:,} cells"
    if most and (meant or not fitted.joined):
        reason = "It is written otherwise than in training" if meant else "Is it written as in training"
        advice = f": {some(meant, 3)}." if meant else "?"
        if any(word.isdigit() for word in new):
            advice += f" In pandas, read it as text, dtype={{{feature.name!r}: str}}."
        words = some([*map(repr, fitted.categories)], 5)
        yield f"{share} are no category of training ({named}; in training {words}). {reason}{advice}", True
    elif fitted.joined:
        yield f"{share} are rare or unknown categories. Is it written as in training?", False
    else:
        stands = "halfway between its two" if _single(fitted) else "none of its"
        yield f"{share} did not occur in training ({named}), and count as {stands} categories.", False


def _unlike(feature: Feature, fitted: Fitted, raw: Raw) -> list[str]:
    """What is wrong with numbers that a program made of text which training read otherwise.

    Training has several categories that are one number, 3.1 and 3.10; or 251.690 was 251,690 there, or 45 % were 45, and not 0.45.
    """
    values, signs = typed_numbers(raw), feature.thousands or feature.unit
    alike = [" and ".join(map(repr, same)) for same in same_numbers(fitted.categories) if float(same[0]) in values]
    reasons = [f", and {words} are one number and different categories of training" for words in alike]
    if signs and len(values) and np.abs(values).max() * APART <= abs(fitted.centre):
        about = f"{signs!r} gave numbers about {fitted.centre:,.6g}"
        reasons.append(f" such as {values[0]:g}, and in training text with {about}")
    todo = f"Give text; in pandas: dtype={{{feature.name!r}: str}}."
    return [f"column {feature.name}: it holds numbers{reason}. {todo}" for reason in reasons]


def places_of(fitted: Fitted, words: Iterable[str]) -> dict[str, int]:
    """The places of the words that are categories: as they are written, or as the only category that is the same number."""
    exact, alike = {word: k for k, word in enumerate(fitted.categories)}, dict[str, list[int]]()
    for word, k in exact.items():
        alike.setdefault(number_of(word), []).append(k)
    same = {word: [exact[word]] if word in exact else alike.get(number_of(word), []) for word in words}
    return {word: places[0] for word, places in same.items() if len(places) == 1}


def _spelling(word: str) -> str:
    """A category without what programs change: capitals and leading zeros."""
    return word.casefold().lstrip("0") or "0"


def input_names(feature: Feature, fitted: Fitted) -> list[str]:
    """The inputs that a column becomes, in order."""
    flag = [f"{feature.name} {MISSING}"] * fitted.flagged
    if feature.kind != CATEGORY or feature.coding == "ordinal":
        return [feature.name, *flag]
    shown = fitted.categories[1:] if _single(fitted) else fitted.categories
    return [*(f"{feature.name}={word}" for word in shown), *[f"{feature.name} {OTHER}"] * fitted.joined, *flag]


def _single(fitted: Fitted) -> bool:
    """Whether one input says all of two categories."""
    return len(fitted.categories) == 2 and not fitted.joined and not fitted.flagged


def _coded(feature: Feature, fitted: Fitted, cells: Cells) -> NDArray[np.float64]:
    gone = cells.missing
    flag = gone[:, None].astype(np.float64)[:, : int(fitted.flagged)]
    if feature.kind != CATEGORY:
        values = logarithm(feature, np.where(gone, float(fitted.fill), cells.values))
    else:
        place, rest = places_of(fitted, cells.words), len(fitted.categories) if fitted.joined else -1
        lookup = np.array([*(place.get(word, rest) for word in cells.words), -1], np.int64)  # -1 is the last
        codes = lookup[cells.values]
        if feature.missing != "own":
            places = {word: k for k, word in enumerate(fitted.categories)}
            codes = np.where(gone, places.get(str(fitted.fill), -1), codes)
        if feature.coding == "one-hot":
            if _single(fitted):  # halfway where it is neither
                return np.where(codes < 0, 0.5, codes)[:, None].astype(np.float64)
            one_hot = codes[:, None] == np.arange(len(fitted.categories) + int(fitted.joined))
            return np.concatenate([one_hot.astype(np.float64), flag], axis=1)
        values = np.where((codes < 0) | (codes == len(fitted.categories)), fitted.centre, codes)
    return np.concatenate([((values - fitted.centre) / fitted.scale)[:, None], flag], axis=1)
