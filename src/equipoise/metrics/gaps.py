"""How differently a model treats groups of people: what gaps between groups are computed of, with intervals over the people who were tested.

The gaps themselves are the entries of `equipoise.metrics.definitions.PARITY` and `ERRORS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics import groups
from equipoise.metrics.calibration import calibration_of_sums
from equipoise.metrics.groups import OF_CLASS, OF_NUMBERS, Counts, Gap, Parity, Rates
from equipoise.metrics.intervals import NONE, Interval, log_ratio, means_gap, newcombe, sizes_by, wilson
from equipoise.metrics.performance import UNDEFINED, Value, gap_between, percent

Row = Mapping[str, NDArray[np.float64]]  # sums over the samples with one value of an attribute
Mean = tuple[float, float, float]  # a mean, its variance over people, and their number


class Estimate(NamedTuple):
    """A gap as it is shown, None if it is not defined, and the ends of its 95 % interval over the people; None if such gaps have none."""

    value: float | None
    ends: Interval | None = None


@dataclass(frozen=True)
class Group:
    """How a classifier treats a group of people: decisions become counts, and counts rates, in runs, audits, thresholds and sites alike.

    Parameters
    ----------
    counts : see `equipoise.metrics.class_counts`.
    rates : that follow from them, see `equipoise.metrics.rates_of`.
    rounds : how many rounds the counts are the sum of, on the same samples.
    """

    counts: Counts
    rates: Rates
    rounds: int = 1

    @classmethod
    def of(cls, counts: Counts, least: int = 1, rounds: int = 1) -> Self:
        """By counts; a rate about fewer than ``least`` people is undefined."""
        return cls(counts, groups.rates_of(counts, least * rounds), rounds)

    @cached_property
    def people(self) -> dict[str, list[float]]:
        """By the name of a rate, how many people it is about for each class, in one round."""
        return {key: [n / self.rounds for n in every] for key, every in groups.people_of(self.counts).items()}

    @cached_property
    def sizes(self) -> dict[str, list[float]]:
        """The same in independent samples, see `sizes_by`."""
        return sizes_by(self.counts, self.rounds)

    def share(self, key: str, c: int = 0) -> tuple[float, float]:
        """A rate of a class, and of how many independent samples; NaN of none if no class is recognised worst."""
        if key == "worst_recall":
            if self.rates.hardest is None:
                return math.nan, 0
            key, c = "tpr", self.rates.hardest
        return self.rates.of(key, c).value, self.sizes[key][c]

    def interval(self, key: str, c: int = 0, level: float = 0.95) -> Interval:
        """Wilson's interval of a rate."""
        return wilson(*self.share(key, c), level)


@dataclass(frozen=True)
class Decisions:
    """How a classifier decides about groups of people; its gaps are in points.

    The interval of a gap is Newcombe's of the pair of groups that attains it, at level `1 - (1 - level) / (A (A - 1) / 2)` for A groups
    (Bonferroni), and ends at 0; that of a ratio is `log_ratio`, and ends at 1. If several rates or classes count, the ends are the largest of
    theirs. Of people with several rows the samples are those of `sizes_by`.

    Parameters
    ----------
    groups : counts of every group, see `equipoise.metrics.class_counts`.
    positive : as in `equipoise.metrics.parity`.
    rounds : how many rounds the counts are the sum of, on the same samples.
    least : as in `parity`, samples of one round.
    level : in (0, 1), of the intervals.
    """

    groups: Mapping[str, Counts]
    positive: int | None = None
    rounds: int = 1
    least: int = 1
    level: float = 0.95

    @cached_property
    def fairness(self) -> Parity:
        """The rates of the groups, and their gaps."""
        return groups.parity(self.groups, self.positive, self.least * self.rounds)

    def largest(self, *rates: str) -> Estimate:
        """The largest gap of some rates, over the classes in which all of these are defined."""
        gaps, classes = self.fairness.gaps, self.fairness.classes if rates[0] in OF_CLASS else (0,)
        whole = [c for c in classes if all(gaps[key, c].difference.defined for key in rates)]
        if not whole:
            return Estimate(None, NONE)
        lows, highs = zip(*(self._interval(key, c) for c in whole for key in rates), strict=True)
        largest = max(gaps[key, c].difference.value for c in whole for key in rates)
        return Estimate(100 * largest, Interval(max(lows), max(highs)).times(100))

    def ratio(self, rate: str) -> Estimate:
        """The lowest rate in percent of the highest, in the class in which these differ most."""
        gap = self.fairness.gap(rate)
        if not gap.ratio.defined:
            return Estimate(None, NONE)
        (c,) = [c for c in self.fairness.classes if self.fairness.gaps[rate, c] is gap]
        lowest, highest = (self.rated[name].share(rate, c) for name in (gap.lowest, gap.highest))
        low, high = log_ratio(*lowest, *highest, self._corrected(gap))
        # everybody is selected in both if it has no width, which no number of people would change
        interval = Interval(low, min(1.0, high)).holding(gap.ratio.value) if low < high else NONE
        return Estimate(percent(gap.ratio), interval.times(100))

    @cached_property
    def calibrated(self) -> dict[str, dict[str, float | None]]:
        """By group its calibration error and its bias, in percent; None without probabilities, or of too few people."""
        calibrated = {}
        # sums are of the second of two classes
        sign = -1 if self.positive == 0 and len(next(iter(self.groups.values()))["true"]) == 2 else 1
        for name, group in self.groups.items():
            counts, least = cast(Mapping[str, Any], group), self.least * self.rounds
            enough = "scores" in counts and counts.get("scored", least) >= least  # people, of whom rows are no fewer
            error, bias = calibration_of_sums(counts["scores"], least) if enough else (UNDEFINED, UNDEFINED)
            points = percent(Value(sign * bias.value, bias.defined))
            calibrated[name] = {"bias": points, "calibration_error": percent(error)}
        return calibrated

    @property
    def bias(self) -> Estimate:
        """The gap of the bias, the mean probability less the share of the class; with Welch's interval."""
        means = {name: mean for name, counts in self.groups.items() if (mean := _bias(counts, self.rounds, self.least))}
        return Estimate(gap_between(each["bias"] for each in self.calibrated.values()), means_gap(means).times(100))

    @property
    def calibration_error(self) -> Estimate:
        """The gap of the calibration error, without an interval, since chance alone raises it."""
        return Estimate(gap_between(each["calibration_error"] for each in self.calibrated.values()))

    @cached_property
    def rated(self) -> dict[str, Group]:
        """The groups with their rates."""
        return {name: Group(counts, self.fairness.rates[name], self.rounds) for name, counts in self.groups.items()}

    def _corrected(self, gap: Gap) -> float:
        """The level of the interval of the pair of groups that attains a gap."""
        return 1 - (1 - self.level) / (gap.groups * (gap.groups - 1) / 2)

    def _interval(self, key: str, c: int) -> Interval:
        """That of the gap of a rate in a class."""
        gap = self.fairness.gaps[key, c]
        pair, level = [self.rated[name] for name in (gap.highest, gap.lowest)], self._corrected(gap)
        (p, of_p), (q, of_q) = ((group.share(key, c)[0], group.interval(key, c, level)) for group in pair)
        low, high = newcombe(p, of_p, q, of_q)
        return Interval(max(0.0, low), high)


def _bias(counts: Mapping[str, Any], rounds: int, least: int) -> Mean | None:
    """Mean probability less class of one group, its variance, and the people, from counts that are the sum of so many rounds."""
    if "bias" not in counts or (people := float(counts["scored"]) / rounds) < least:
        return None
    n, error = float(np.asarray(counts["scores"])[0].sum()) / rounds, calibration_of_sums(counts["scores"])[1].value
    return error, groups.variance(np.asarray(counts["bias"]) / rounds, people, n, error, (0, 1), (1, 0)), people


@dataclass(frozen=True)
class Errors:
    """How large the errors of predicted numbers are, by group; gaps are in the unit of the target.

    Parameters
    ----------
    groups : by group the sums over its people, of each of some rounds, see `equipoise.records.record.Sums`.
    level : in (0, 1), of the intervals: Welch's, see `means_gap`.
    """

    groups: Mapping[str, Sequence[Row]]
    level: float = 0.95

    def means(self, key: str) -> dict[str, Mean]:
        """By group the error of this name, of those in which it is finite."""
        return {name: mean for name, rows in self.groups.items() if math.isfinite((mean := _mean(rows, key))[0])}

    def largest(self, key: str) -> Estimate:
        """The gap of an error."""
        means = self.means(key)
        return Estimate(gap_between(mean for mean, *_ in means.values()), means_gap(means, self.level))


def _mean(rows: Sequence[Row], key: str) -> Mean:
    """An error of a group, the mean over some rounds, with its variance over people (that of one round), NaN if unknown, and their number.

    The variance of the root of a mean square follows from that of the mean square (delta method).
    """
    name = {"rmse": "squares", "mae": "absolute"}.get(key, key)
    top, bottom = (np.array(OF_NUMBERS) == column for column in (name, "n"))
    means, spreads = [], []
    for row in rows:
        total, people = row["error"] + row["target"] if key == "prediction" else row[name], float(row.get("persons", 0))
        mean, moments = float(total / row["n"]), row.get("moments")
        spread = math.nan if moments is None else groups.variance(moments, people, float(row["n"]), mean, top, bottom)
        means.append(math.sqrt(mean) if key == "rmse" else mean)
        spreads.append(spread / (4 * mean) if key == "rmse" and mean > 0 else spread)
    return float(np.mean(means)), float(np.mean(spreads)), people
