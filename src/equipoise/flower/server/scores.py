"""The results of sites on their test sets: checked, and averaged over sites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, cast

import numpy as np
import torch

from equipoise.core.tally import Tally, together
from equipoise.core.task import Task
from equipoise.data.samples import n_held
from equipoise.federation.guard import LARGEST
from equipoise.flower.codec import UNFIT
from equipoise.metrics.classification import RATES
from equipoise.metrics.failure import usefulness
from equipoise.records.record import Score, Sums, number
from equipoise.system.grouping import grouped

Classes = dict[str, list[int]]  # samples by class of test sets by name


@dataclass(frozen=True)
class Tested:
    """A site's results on its test sets: tallies, measures that do not follow from these, and the tally of the model it predicts with over all samples.

    ``hidden`` are the sets that are too small for the site to send a number of, ``classes`` the samples by class of the others, where the site
    was asked for rates. ``people`` are sums by sensitive attribute, of the sets of which the site sends them.
    """

    tallies: dict[str, Tally]
    more: dict[str, Score]
    own: Tally | None
    hidden: tuple[str, ...] = ()

    classes: Classes = field(default_factory=dict)
    people: dict[str, list[Sums]] = field(default_factory=dict)

    @staticmethod
    def of(
        fields: Mapping[str, Any],
        tests: Mapping[str, int],
        measures: Sequence[str],
        n_classes: int,
        task: Task,
        own: bool = False,
        values: Sequence[int] = (),
    ) -> Tested | str:
        """The results in the answer of a site with these ``tests``, and their samples; or the reason why they cannot be used.

        ``own`` is true where the site predicts with another model than that of the scores; else its tally follows from these. ``values`` are the
        number of values of each sensitive attribute.
        """
        try:
            sent, width = fields["scores"], n_classes if RATES in measures else 1
            tallies = {name: read(task, sent[name]["sums"], width, n) for name, n in tests.items() if n}
            if sent.keys() != tallies.keys():
                raise ValueError("sets")
            more = {name: _more(sent[name], tally, measures, n_classes) for name, tally in tallies.items()}
            hidden = tuple(name for name, n in tests.items() if not n)
            if not tallies:
                return Tested({}, {}, None, hidden)
            every = read(task, fields["own"], 1, sum(tests.values())) if own else together(tallies.values())
            counts = {name: tally.score([RATES]).get(RATES) for name, tally in tallies.items()} if width > 1 else {}
            classes = {name: [*count["true"]] for name, count in counts.items() if isinstance(count, Mapping)}
            people = {
                name: _people(sent[name]["people"], tally, values)
                for name, tally in tallies.items()
                if "people" in sent[name] and width > 1 and values
            }
            return Tested(tallies, more, every, hidden, classes, people)
        except UNFIT:
            return UNUSABLE


UNUSABLE = "sent scores that cannot be used"
NO_NUMBER = "has predictions that are no numbers, so that its loss and errors do not count"


def read(task: Task, sums: Any, width: int, n: int) -> Tally:
    """The tally in a message, of ``n`` samples and numbers of so many classes.

    Raises
    ------
    TypeError, ValueError, OverflowError : it cannot be.
    """
    tally = task.sums.from_vector(torch.tensor([*map(float, sums)], dtype=torch.float64), width)
    if int(tally.n) != n:
        raise ValueError("samples")
    return tally


COUNTS: tuple[Literal["right", "true", "chosen"], ...] = ("right", "true", "chosen")


def _people(sent: Any, tally: Tally, values: Sequence[int]) -> list[Sums]:
    """A site's sums by sensitive attribute on a test set, whose own sums they do not exceed.

    Raises
    ------
    KeyError, TypeError, ValueError, OverflowError : they cannot be.
    """
    whole = np.array([getattr(tally, key).tolist() for key in COUNTS])
    every = list[Sums]()
    for sums, V in zip(sent, values, strict=True):
        codes = [int(value) for value in sums["value"]]
        counts = np.array([sums[key] for key in COUNTS], dtype=np.float64)
        counts = counts if codes else counts.reshape(len(COUNTS), 0, whole.shape[1])
        unknown = int(tally.n) - counts[1].sum()
        fits = counts.shape == (len(COUNTS), len(codes), whole.shape[1]) and bool((counts.sum(1) <= whole).all())
        fits = fits and bool(((counts >= 0) & (counts % 1 == 0) & (counts[0] <= counts)).all())
        if not fits or codes != sorted({*codes} & {*range(V)}) or sums.get("unknown", 0) != unknown:
            raise ValueError("people")
        right, true, chosen = counts.astype(int).tolist()
        every.append({"value": codes, "unknown": int(unknown), "right": right, "true": true, "chosen": chosen})
    return every


def people_together(of_sites: Sequence[Tested], values: Sequence[int], C: int) -> dict[str, list[Sums]]:
    """By test set the sums of the people at all sites that have it; those of a site that sends none are unknown. Empty if no site sends any."""
    parts = grouped((name, tested) for tested in of_sites for name in tested.tallies)
    sets = {name: few for name, few in parts.items() if any(name in tested.people for tested in few)}
    return {name: [_added(few, name, k, V, C) for k, V in enumerate(values)] for name, few in sets.items()}


def _added(parts: Sequence[Tested], name: str, k: int, V: int, C: int) -> Sums:
    """The sums of the k-th attribute on one test set, over sites."""
    totals, unknown = np.zeros((len(COUNTS), V, C), dtype=np.int64), 0
    for tested in parts:
        if name not in tested.people:
            unknown += int(tested.tallies[name].n)
            continue
        sums = tested.people[name][k]
        unknown += sums["unknown"]
        totals[:, sums["value"]] += np.array([sums[key] for key in COUNTS], dtype=np.int64).reshape(len(COUNTS), -1, C)
    codes = totals[1].any(-1).nonzero()[0]
    right, true, chosen = totals[:, codes].tolist()
    merged: Sums = {"value": codes.tolist(), "right": right, "true": true, "chosen": chosen}
    return {**merged, "unknown": unknown} if unknown else merged


def held_out(
    fields: Mapping[str, Any], size: int, share: float, task: Task, *, people: bool = False
) -> Tally | str | None:
    """A site's tally of what it holds out, None if it holds out nothing, or too little; or why it cannot be used.

    ``size`` are the samples that it trains on, and ``share`` is what it holds out of all, or of all ``people``.
    """
    try:
        if not fields["found"]:
            return None
        n = int(fields["found"][0])
        return read(task, fields["found"], 1, n if (people and n > 0) or n == n_held(size + n, share) else 0)
    except UNFIT:
        return UNUSABLE


def reached(fields: Mapping[str, Any], n: int, last: int, task: Task) -> float | None:
    """The mean of the main measure over what a site reaches alone in each of so many ``last`` rounds, on ``n`` samples; None without any.

    Raises
    ------
    KeyError, TypeError, ValueError, OverflowError : it cannot be.
    """
    tallies = [read(task, sums, 1, n) for sums in fields["tallies"]]
    if len(tallies) != (last if n else 0):
        raise ValueError("tallies")
    return fmean(tally.main for tally in tallies) if tallies else None


def plausible(tally: Tally) -> bool:
    """Whether the mean loss and the main measure are numbers that a model of any use may have."""
    return float(tally.mean_loss) <= LARGEST and abs(tally.main) <= LARGEST


def judged(results: Mapping[int, Iterable[Tally]]) -> dict[int, str]:
    """Why tallies of some clients do not count, or not all of their sums; if they are more than half, the model is at fault, and none is.

    An honest client without a mean has predictions that are no numbers either. Then its counts are what they are.
    """
    broken = dict[int, str]()
    for m, tallies in results.items():
        if strange := [tally for tally in tallies if not plausible(tally)]:
            honest = all("undefined" in tally.score() or not math.isfinite(tally.main) for tally in strange)
            broken[m] = NO_NUMBER if honest else UNUSABLE
    return {} if 2 * len(broken) > len(results) else broken


def heard(every: Mapping[str, Score], sound: Mapping[str, Score]) -> dict[str, Score]:
    """Scores by test set in which what is no number, because of a few sites, is that of the others; a set of none of these has no loss."""
    scores: dict[str, Score] = {}
    for name, score in every.items():
        others = cast(dict[str, Any], sound.get(name, {}))
        lacking = [key for key, x in score.items() if isinstance(x, float) and not math.isfinite(x) and key != "loss"]
        theirs = [key for key in lacking if math.isfinite(number(others.get(key)))]
        replaced = {key: others[key] for key in (*theirs, *(["n"] if theirs else []), "loss") if key in others}
        scores[name] = cast(
            Score, {key: x for key, x in {**score, **replaced}.items() if key != "loss" or key in replaced}
        )
    return scores


def _more(fields: Mapping[str, Any], tally: Tally, measures: Iterable[str], n_classes: int) -> Score:
    """A site's measures on one of its test sets that do not follow from its tally; NaN where one is not defined."""
    follow = (*tally.score(), RATES)
    more = {name: float(fields[name]) for name in measures if name not in follow}
    if not all(0 <= x <= 1 or math.isnan(x) for x in more.values()):
        raise ValueError("measures")
    missing = [int(c) for c in fields.get("missing", ())]
    if missing != sorted({*missing} & {*range(n_classes)}):
        raise ValueError("missing")
    score = cast(Score, {**more, "missing": missing} if missing else more)
    if "ranks" in fields and RATES in measures:
        score["ranks"] = [[float(weight), float(excess)] for weight, excess in fields["ranks"]]
        if len(score["ranks"]) != n_classes or not all(
            0 <= w <= tally.n and 2 * abs(x) <= w + 0.01 for w, x in score["ranks"]
        ):
            raise ValueError("ranks")
    if "useless" in fields:
        score["useless"] = "the test of the task finds it no better than a guess" * bool(fields["useless"])
    return score


def pooled(results: Sequence[Tested], measures: Sequence[str]) -> dict[str, Score]:
    """Scores by test set, of the samples of all sites with a set of this name. One that is too small at all of them has none.

    Of a measure that does not follow from tallies it is the mean by samples, over the sites where it is defined.
    """
    names = dict.fromkeys(name for tested in results for name in tested.tallies)
    scores: dict[str, Score] = {name: {"n": 0} for tested in results for name in tested.hidden if name not in names}
    for name in names:
        parts = [(tested.tallies[name], tested.more[name]) for tested in results if name in tested.tallies]
        every = together(tally for tally, _ in parts)
        more = parts[0][1] if len(parts) == 1 else _means([(int(tally.n), more) for tally, more in parts])
        scores[name] = every.score([RATES] if RATES in measures else []) | more
    return scores


def _means(parts: Sequence[tuple[int, Score]]) -> Score:
    """Means by samples, and the classes that any lacks."""

    def mean(key: str) -> float:
        values = [(n, x) for n, score in parts if not math.isnan(x := number(score.get(key)))]
        return sum(n * x for n, x in values) / sum(n for n, _ in values) if values else math.nan

    scores = [score for _, score in parts]
    means: dict[str, Any] = {key: mean(key) for key in scores[0] if key not in ("missing", "ranks", "useless")}
    missing = sorted({x for score in scores for x in score.get("missing", [])})
    return cast(Score, {**means, **({"missing": missing} if missing else {}), **usefulness(scores)})
