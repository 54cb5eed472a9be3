"""The results of sites on their test sets: checked, and averaged over sites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from equipoise.core.tally import Tally, together
from equipoise.core.task import Task
from equipoise.data.samples import n_held
from equipoise.federation.guard import LARGEST
from equipoise.flower.codec import UNFIT
from equipoise.metrics.classification import RATES
from equipoise.records.record import Score, number


@dataclass(frozen=True)
class Tested:
    """A site's results on its test sets: tallies, measures that do not follow from these, and the tally of the model it predicts with over all samples.

    ``hidden`` are the sets that are too small for the site to send a number of.
    """

    tallies: dict[str, Tally]
    more: dict[str, Score]
    own: Tally | None
    hidden: tuple[str, ...] = ()

    @property
    def numbers(self) -> bool:
        """Whether all losses are numbers, but for those of sets on which the model has outputs that are none."""
        return all(plausible(tally) or "undefined" in tally.score() for tally in self.tallies.values())

    @staticmethod
    def of(
        fields: Mapping[str, Any], tests: Mapping[str, int], measures: Sequence[str], n_classes: int, task: Task
    ) -> Tested | str:
        """The results in the answer of a site with these ``tests``, and their samples; or the reason why they cannot be used."""
        try:
            sent, sizes = fields["scores"], {name: int(fields["sizes"][name]) for name in tests}
            hidden = tuple(name for name, n in sizes.items() if n == 0 and name not in sent)
            width = n_classes if RATES in measures else 1
            tallies = {name: task.sums.read(sent[name], width) for name in sizes if name not in hidden}
            more = {name: _more(sent[name], tally, measures, n_classes) for name, tally in tallies.items()}
            own = task.sums.read(fields["own"], 1) if tallies else None
            counted = {name: int(tally.n) for name, tally in tallies.items()}
            if sizes != dict(tests) or {**sizes, **counted} != sizes or (own and own.n != sum(counted.values())):
                raise ValueError("sizes")
            return Tested(tallies, more, own, hidden)
        except UNFIT:
            return "sent scores that cannot be used"


def held_out(fields: Mapping[str, Any], size: int, share: float, task: Task) -> Tally | str | None:
    """A site's tally of what it holds out, None if it holds out nothing; or why it cannot be used.

    ``size`` are the samples that it trains on, and ``share`` is what it holds out of all.
    """
    try:
        if not fields["found"]:
            return None
        tally = task.sums.read(fields["found"], 1)
        if (n := int(tally.n)) != n_held(size + n, share):
            raise ValueError("counts")
    except UNFIT:
        return "sent scores that cannot be used"
    return tally


def plausible(tally: Tally) -> bool:
    """Whether a mean loss is a number that a model of any use may have."""
    return float(tally.mean_loss) <= LARGEST


def alone(plausible: Mapping[int, bool]) -> list[int]:
    """The clients whose loss is no number, where that of most is one: where it is none at most, the model is at fault."""
    strange = [m for m, fine in plausible.items() if not fine]
    return strange if 2 * len(strange) < len(plausible) else []


def _more(fields: Mapping[str, Any], tally: Tally, measures: Iterable[str], n_classes: int) -> Score:
    """A site's measures on one of its test sets that do not follow from its tally; NaN where one is not defined."""
    told = (*tally.score(), RATES)
    more = cast(Score, {name: fraction(fields[name], nan=True) for name in measures if name not in told})
    missing = [int(c) for c in fields.get("missing", ())]
    if missing != sorted({*missing} & {*range(n_classes)}):
        raise ValueError("missing")
    return {**more, "missing": missing} if missing else more


def fraction(fields: Any, *, nan: bool = False) -> float:
    """A number in [0, 1].

    Raises
    ------
    TypeError, ValueError, OverflowError : it is not.
    """
    if not (0 <= (x := float(fields)) <= 1 or (nan and math.isnan(x))):
        raise ValueError(fields)
    return x


def pooled(found: Sequence[Tested], measures: Sequence[str]) -> dict[str, Score]:
    """Scores by test set, of the samples of all sites with a set of this name. One that is too small at all of them has none.

    Of a measure that does not follow from tallies it is the mean by samples, over the sites where it is defined.
    """
    names = dict.fromkeys(name for tested in found for name in tested.tallies)
    scores: dict[str, Score] = {name: {"n": 0} for tested in found for name in tested.hidden if name not in names}
    for name in names:
        parts = [(tested.tallies[name], tested.more[name]) for tested in found if name in tested.tallies]
        every = together(tally for tally, _ in parts)
        more = parts[0][1] if len(parts) == 1 else _means([(int(tally.n), more) for tally, more in parts])
        scores[name] = every.score([RATES] if RATES in measures else []) | more
    return scores


def _means(parts: Sequence[tuple[int, Score]]) -> Score:
    """Means by samples, and the classes that any lacks."""

    def mean(key: str) -> float:
        known = [(n, x) for n, score in parts if not math.isnan(x := number(score.get(key)))]
        return sum(n * x for n, x in known) / sum(n for n, _ in known) if known else math.nan

    means = cast(Score, {key: mean(key) for key in parts[0][1] if key != "missing"})
    missing = sorted({x for _, score in parts for x in score.get("missing", [])})
    return {**means, "missing": missing} if missing else means
