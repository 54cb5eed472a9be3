"""The results of sites on their test sets: checked, and averaged over sites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from equipoise.core.task import CLASSIFICATION, Task
from equipoise.data.samples import n_held
from equipoise.federation.guard import LARGEST
from equipoise.flower.codec import UNFIT
from equipoise.metrics.classification import RATES
from equipoise.metrics.groups import rates_of
from equipoise.records.record import Score, number


@dataclass(frozen=True)
class Tested:
    """A site's results on its test sets: scores, samples, and the main measure of the model it predicts with over all samples.

    ``hidden`` are the sets that are too small for the site to send a number of.
    """

    scores: dict[str, Score]
    sizes: dict[str, int]
    main: float | None
    hidden: tuple[str, ...] = ()

    @property
    def numbers(self) -> bool:
        """Whether all losses are numbers, but for those of sets on which the model has outputs that are none."""
        return all(plausible(score["loss"]) or "undefined" in score for score in self.scores.values())

    @staticmethod
    def of(
        fields: Mapping[str, Any], tests: Mapping[str, int], measures: Iterable[str], n_classes: int, task: Task
    ) -> Tested | str:
        """The results in the answer of a site with these ``tests``, and their samples; or the reason why they cannot be used."""
        try:
            every = {name: int(fields["sizes"][name]) for name in tests}
            hidden = tuple(name for name, n in every.items() if n == 0 and name not in fields["scores"])
            sizes = {name: n for name, n in every.items() if name not in hidden}
            scores = {name: _score(fields["scores"][name], measures, n_classes, task) for name in sizes}
            if every != dict(tests) or any(scores[name].get("undefined", 0) > n for name, n in sizes.items()):
                raise ValueError("sizes")
            for name, n in sizes.items():
                if RATES in measures and isinstance(of := scores[name][RATES], dict) and sum(of["true"]) != n:
                    raise ValueError("counts")
                scores[name]["n"] = n
            return Tested(scores, sizes, task.read(fields)[task.main] if sizes else None, hidden)
        except UNFIT:
            return "sent scores that cannot be used"


def held_out(fields: Mapping[str, Any], size: int, share: float, task: Task) -> Score | str | None:
    """A site's score on what it holds out, None if it holds out nothing; or why it cannot be used.

    ``size`` are the samples that it trains on, and ``share`` is what it holds out of all.
    """
    try:
        if not fields["found"]:
            return None
        sent = fields["found"]
        score, loss, n = task.read(sent), float(sent["loss"]), int(sent["n"])
        if n < 1 or n != n_held(size + n, share) or loss < 0:
            raise ValueError("counts")
    except UNFIT:
        return "sent scores that cannot be used"
    return {**score, "loss": loss, "n": n}


def plausible(loss: float | None) -> bool:
    """Whether a mean loss is a number that a model of any use may have."""
    return number(loss) <= LARGEST


def alone(plausible: Mapping[int, bool]) -> list[int]:
    """The clients whose loss is no number, where that of most is one: where it is none at most, the model is at fault."""
    strange = [m for m, fine in plausible.items() if not fine]
    return strange if 2 * len(strange) < len(plausible) else []


def _score(fields: Mapping[str, Any], measures: Iterable[str], n_classes: int, task: Task) -> Score:
    """A site's scores on one of its test sets; a measure other than accuracy may be NaN, if it is not defined."""
    score, loss = task.read(fields), float(fields["loss"])
    more = {name: fraction(fields[name], nan=True) for name in measures if name not in score and name != RATES}
    score |= cast(Score, {"loss": loss, **more})
    if RATES in measures:
        score[RATES] = _counts(fields[RATES], n_classes)
    if loss < 0:
        raise ValueError("loss")
    if (undefined := int(fields.get("undefined", 0))) > 0:
        score["undefined"] = undefined
    missing = [int(c) for c in fields.get("missing", ())]
    if missing != sorted({*missing} & {*range(n_classes)}):
        raise ValueError("missing")
    return {**score, "missing": missing} if missing else score


def _counts(fields: Any, n_classes: int) -> dict[str, list[int]] | float:
    """Counts per class that fit together; or NaN, if the outputs of the model were not finite.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError, OverflowError : the counts do not fit together.
    """
    if isinstance(fields, float) and math.isnan(fields):
        return fields
    counts = {name: [int(count) for count in fields[name]] for name in ("right", "true", "chosen")}
    if len(counts["true"]) != n_classes:
        raise ValueError("counts")
    rates_of(counts)
    return counts


def fraction(fields: Any, *, nan: bool = False) -> float:
    """A number in [0, 1].

    Raises
    ------
    TypeError, ValueError, OverflowError : it is not.
    """
    if not (0 <= (x := float(fields)) <= 1 or (nan and math.isnan(x))):
        raise ValueError(fields)
    return x


def pooled(found: Sequence[Tested], task: Task) -> dict[str, Score]:
    """Scores by test set; sets of one name at several sites are averaged by samples. One that is too small at all of them has none."""
    groups: dict[str, list[tuple[int, Score]]] = {}
    for tested in found:
        for name, score in tested.scores.items():
            groups.setdefault(name, []).append((tested.sizes[name], score))
    hidden: dict[str, Score] = {name: {"n": 0} for tested in found for name in tested.hidden if name not in groups}
    return hidden | {name: _together(parts, task) for name, parts in groups.items()}


def _together(parts: Sequence[tuple[int, Score]], task: Task) -> Score:
    """One score of several; of measures that are means the means by samples, over the sites where they are defined."""
    if len(parts) == 1:
        return parts[0][1].copy()
    if task != CLASSIFICATION:
        return task.pooled([{**score, "n": n} for n, score in parts])

    def mean(key: str) -> float:
        known = [(n, x) for n, score in parts if not math.isnan(x := number(score.get(key))) or key == "loss"]
        return sum(n * x for n, x in known) / sum(n for n, _ in known) if known else math.nan

    keys = [key for key in parts[0][1] if key not in ("missing", "undefined", "n", RATES)]
    means = cast(Score, {key: mean(key) for key in keys})
    if undefined := sum(score.get("undefined", 0) for _, score in parts):
        means["undefined"] = undefined
    means["n"] = sum(n for n, _ in parts)
    if known := [counts for _, score in parts if isinstance(counts := score.get(RATES), Mapping)]:
        means[RATES] = {name: np.sum([counts[name] for counts in known], axis=0).tolist() for name in known[0]}
    missing = sorted({x for _, score in parts for x in score.get("missing", [])})
    return {**means, "missing": missing} if missing else means
