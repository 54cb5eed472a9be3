"""What is learnt from the training rows of a table: sums over clients, and means, quantiles and categories made of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.tables.cells import Cells, RawTable
from equipoise.data.tables.columns import listed, option
from equipoise.data.tables.schema import CATEGORY, Feature, Schema
from equipoise.metrics.groups import hidden

ERROR = 0.005  # of a quantile, relative to it
FAR = 10**6  # more than any index of a bin
BASE = (1 + ERROR) / (1 - ERROR)  # a number x is in the bin of the sketch with index ceil(log |x| / log BASE)
NARROW = 2.0**-40  # so is a distance of quartiles that is so much smaller than the standard deviation
FLAT = 2.0**-50  # a standard deviation that is so much smaller than the mean is a rounding error

Rows = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Sums:
    """Of one column over some rows: these add over clients.

    Parameters
    ----------
    rows, present : how many cells there are, and how many are not missing.
    total, deviation : of numbers the sum, and the standard deviation (ddof 0).
    fractions : how many numbers are not whole.
    bins : a sketch of the numbers: how many have the sign s and the index k of a logarithmic grid, by ``"s k"`` (DDSketch, Masson,
        Rim, Lee 2019).
    words : how often each category occurs; ``""`` counts those that are not named.
    """

    rows: int = 0
    present: int = 0
    total: float = 0.0
    deviation: float = 0.0
    fractions: int = 0
    bins: Mapping[str, int] = field(default_factory=dict)
    words: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def over(parts: Sequence[Sums]) -> Sums:
        """Those of all clients; in whatever order, the same.

        ``n STD^2 = sum_k n_k (STD_k^2 + (mean_k - mean)^2)`` (Chan, Golub, LeVeque 1983), which loses no digits where means are large.
        """
        bins, words = Counter[str](), Counter[str]()
        for part in parts:
            bins.update(part.bins)
            words.update(part.words)
        rows, present, fractions = (
            sum(getattr(part, name) for part in parts) for name in ("rows", "present", "fractions")
        )
        whole = Sums(rows, present, math.fsum(part.total for part in parts), 0.0, fractions, bins, words)
        apart = [(part.present, part.deviation, part.mean - whole.mean) for part in parts if part.present]
        unit = max((max(deviation, abs(gap)) for _, deviation, gap in apart), default=0.0) or 1.0
        squares = math.fsum(n * ((deviation / unit) ** 2 + (gap / unit) ** 2) for n, deviation, gap in apart)
        return replace(whole, deviation=unit * math.sqrt(squares / max(1, present)))

    def suppressed(self, least: int) -> Sums:
        """The same without names of categories, and without bins of the sketch, of fewer rows than ``least``.

        Rare categories are counted together. If they are too few even so, the next rarest category gives them as many of its rows as they
        lack, or is counted with them where it would keep fewer than ``least``. A bin of few rows is joined to the next larger one, the last
        to the one before. Of numbers that are not whole it is kept only whether there are any.
        """
        if 0 < self.present < least:  # what so few rows have is theirs
            return Sums(self.rows)
        rare = hidden(self.words, least)
        words = {word: n for word, n in self.words.items() if word and word not in rare}
        if rest := sum(self.words.values()) - sum(words.values()):
            last = max(rare, key=lambda word: (self.words[word], word), default="")
            named = {last: rest - least} if last and self.words[last] >= least and rest >= 2 * least else {}
            words |= {**named, "": rest - sum(named.values())}
        bins, carried, last = dict[str, int](), 0, ""
        for place in sorted(self.bins, key=_order):
            carried += self.bins[place]
            if carried >= least:
                last = place
                bins[last], carried = carried, 0
        if carried and last:
            bins[last] += carried
        return replace(self, words=words, bins=bins, fractions=int(self.fractions > 0))

    @property
    def mean(self) -> float:
        """Of the cells that are there; 0 if none is."""
        return self.total / self.present if self.present else 0.0

    def quantile(self, share: float) -> float:
        """The smallest number that at least a share of the cells do not exceed, within ``ERROR`` of it; whole if all are.

        Its bin is found by the counts, and answered by the middle of the bin; by Cantelli's inequality it is no further from the mean
        than ``sqrt(share / (1 - share))`` standard deviations above, and ``sqrt((1 - share) / share)`` below.
        """
        rank, below = max(1, math.ceil(share * sum(self.bins.values()))), 0  # bins of few rows may be left out
        for place in sorted(self.bins, key=_order):
            below += self.bins[place]
            if below >= rank:
                sign, k = map(int, place.split())
                middle = sign * 2 * BASE**k / (BASE + 1)
                if 0 < share < 1:
                    low, high = math.sqrt((1 - share) / share), math.sqrt(share / (1 - share))
                    middle = min(max(middle, self.mean - low * self.deviation), self.mean + high * self.deviation)
                return middle if self.fractions else float(round(middle))
        return self.mean


def add_up(feature: Feature, cells: Cells, rows: Rows) -> Sums:
    """The sums of one column over some rows: what a client gives."""
    values = cells.values[np.asarray(rows, np.int64)]
    if feature.kind == CATEGORY:
        counts = np.bincount(values[values >= 0], minlength=len(cells.words)).tolist()
        words = {word: n for word, n in zip(cells.words, counts, strict=True) if n}
        return Sums(len(values), int((values >= 0).sum()), words=words)
    values = logarithm(feature, values[~np.isnan(values)])
    total = math.fsum(values.tolist())  # whatever the order of rows
    return Sums(len(rows), len(values), total, _deviation(values, total), int((values % 1 != 0).sum()), _bins(values))


def _order(place: str) -> int:
    """By which bins are in the order of their numbers."""
    sign, k = map(int, place.split())
    return sign * (k + FAR)


def _deviation(values: NDArray[np.float64], total: float) -> float:
    """The standard deviation of numbers with this sum, also where their squares would be zero or infinite."""
    apart = np.abs(values - total / max(1, len(values)))
    unit = float(apart.max(initial=0)) or 1.0
    return unit * math.sqrt(math.fsum(np.square(apart / unit).tolist()) / max(1, len(values)))


def logarithm(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``log(1 + x)`` where the column is scaled so."""
    if feature.scaling != "log":
        return values
    if (values <= -1).any():
        raise DataError(f'column {feature.name}: scaling = "log" needs numbers above -1; found {np.nanmin(values):g}.')
    return np.log1p(values)


def _bins(values: NDArray[np.float64]) -> dict[str, int]:
    """How many numbers are in each bin; zero has a bin of its own."""
    bins = {"0 0": int((values == 0).sum())} if (values == 0).any() else {}
    for sign in (-1, 1):
        if len(same := np.abs(values[np.sign(values) == sign])):
            index, counts = np.unique(np.ceil(np.log(same) / math.log(BASE)).astype(np.int64), return_counts=True)
            bins |= {f"{sign} {k}": n for k, n in zip(index.tolist(), counts.tolist(), strict=True)}
    return bins


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


def fit(table: RawTable, clients: Sequence[Rows]) -> dict[str, Fitted]:
    """What is learnt from the training rows of every client, by column: each client gives sums.

    Raises
    ------
    DataError : columns of which every training cell is missing.
    """
    parts = [{f.name: add_up(f, table.columns[f.name], rows) for f in table.schema.features} for rows in clients]
    return learn(table.schema, parts)


def learn(schema: Schema, parts: Sequence[Mapping[str, Sums]]) -> dict[str, Fitted]:
    """What the sums of all clients give, by column.

    Raises
    ------
    DataError : columns of which every training cell is missing.
    """
    sums = {feature.name: Sums.over([part[feature.name] for part in parts]) for feature in schema.features}
    if empty := [name for name, each in sums.items() if not each.present]:
        s = "s" * (len(empty) > 1)
        raise DataError(
            f"column{s} {listed(empty)}: every cell of the training rows is missing. Leave {'them' if s else 'it'} out: {option('leave_out', empty)}."
        )
    return {f.name: (of_categories if f.kind == CATEGORY else of_numbers)(f, sums[f.name]) for f in schema.features}


def of_numbers(feature: Feature, sums: Sums) -> Fitted:
    """Centre and scale of a column of numbers."""
    centre, scale = sums.mean, sums.deviation if sums.deviation > FLAT * abs(sums.mean) else 0.0
    if feature.scaling == "robust":
        centre, scale = sums.quantile(0.5), sums.quantile(0.75) - sums.quantile(0.25)
        scale = scale if scale > NARROW * sums.deviation else 0.0
    if feature.scaling == "none":
        centre, scale = 0.0, 1.0
    fill = sums.mean if feature.missing == "mean" else sums.quantile(0.5)
    if feature.scaling == "log":
        fill = math.expm1(fill)
    return Fitted(centre, scale or 1.0, fill, sums.present < sums.rows)


def of_categories(feature: Feature, sums: Sums) -> Fitted:
    """The categories of a column, of the counts of its words."""
    kept = feature.categories or tuple(sorted(word for word, n in sums.words.items() if word and n >= feature.least))
    rest = sum(n for word, n in sums.words.items() if word not in kept)
    common = max(sorted(filter(None, sums.words)), key=lambda word: sums.words[word], default="")
    own = feature.missing == "own" and sums.present < sums.rows
    fitted = Fitted(fill=common, flagged=own, categories=kept, joined=rest > 0)
    if feature.coding == "one-hot":
        return fitted
    places = {word: k for k, word in enumerate(kept)}
    numbers = [(places[word], n) for word, n in sums.words.items() if word in places]
    count = sum(n for _, n in numbers) or 1
    mean = sum(k * n for k, n in numbers) / count
    deviation = math.sqrt(math.fsum(n * (k - mean) ** 2 for k, n in numbers) / count)
    return replace(fitted, centre=mean, scale=deviation or 1.0)
