"""Random runs about people, with what they were counted from, for tests that compute every sentence of a page again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from equipoise.core.outputs import Outputs, overlapping
from equipoise.core.task import CLASSIFICATION, Regression
from equipoise.federation.history import History
from equipoise.metrics import class_counts
from equipoise.records.meta import TOGETHER

LABELS = ("fedavg", "afl", "qffl", "fedprox(mu=0.1)", "ditto")
SITES = ("north", "south ward", "east")
IN_FORCE = {
    "fedavg": "weights=samples",
    "qffl": "q=1.0, form=weights (not the published form, which has form=full)",
    "fedprox(mu=0.1)": "mu=0.1, form=squared",
}


@dataclass(frozen=True)
class People:
    """Test rows of people, the same for all methods and seeds, and what every method predicts with every seed.

    `classes` is empty for numbers to predict; `sex` is -1 where it is not known; `person` is None where each row is about a person of its own.
    """

    classes: tuple[str, ...]
    positive: str | None
    least: int
    site: NDArray[np.int64]
    sex: NDArray[np.int64]
    person: NDArray[np.int64] | None
    y: NDArray[Any]
    predicted: dict[tuple[str, int], NDArray[Any]]
    scores: dict[tuple[str, int], NDArray[np.float64]]
    attributes: bool

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for label, _ in self.predicted))

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.predicted})

    @property
    def histories(self) -> list[History]:
        return [self.history(label, seed) for label, seed in self.predicted]

    def history(self, label: str, seed: int) -> History:
        p, task = self.predicted[label, seed], CLASSIFICATION if self.classes else Regression()
        record: dict[str, Any] = {"round": 0, "groups": {}}
        sizes = {}
        leaves = (np.zeros((len(p), len(self.classes))), p, self.y, self.sex[:, None], self.person)
        values, told, true, s, person = (None if x is None else torch.from_numpy(x) for x in leaves)
        every = Outputs(task, values, told, true, s, person)  # type: ignore[arg-type]
        second = self.scores.get((label, seed))

        def by_sex(which: NDArray[np.int64]) -> Any:
            part, scores = (
                every.take(torch.from_numpy(which)),
                None if second is None else torch.from_numpy(second[which]),
            )
            return task.people(
                part.predicted, part.y, part.s, len(self.classes), scores, joined=True, person=part.person
            )  # type: ignore[arg-type]

        for k in np.unique(self.site):
            rows, name = np.flatnonzero(self.site == k), SITES[k]
            sizes[name] = len(rows)
            error = p[rows] - self.y[rows]
            score: dict[str, Any] = {"loss": 0.5, "n": len(rows)}
            if self.person is not None:
                score["persons"] = len(np.unique(self.person[rows]))
            if self.classes:
                score |= {"accuracy": float((error == 0).mean())}
                score["rates"] = class_counts(self.y[rows], p[rows], len(self.classes))
                if self.person is not None:
                    score["rates"] = every.take(torch.from_numpy(rows)).counts
            else:
                spread = float(((self.y[rows] - self.y[rows].mean()) ** 2).mean())
                square = float((error**2).mean())
                score |= {"rmse": square**0.5, "mae": float(abs(error).mean()), "r2": 1 - square / spread}
            record["groups"][name] = score
            if self.attributes:
                record.setdefault("by", {"groups": {}})["groups"][name] = by_sex(rows)
        parts = [every.take(torch.from_numpy(self.site == k)) for k in np.unique(self.site)]
        if self.attributes and overlapping(parts):
            record["by"]["all"] = by_sex(np.arange(len(p)))
        held = [{"name": name, "size": 3 * n, "counts": None} for name, n in sizes.items()]
        meta: dict[str, Any] = {
            "method": label, "seed": seed, "rounds": 1, "scenario": "own", "classes": [*self.classes], "positive": self.positive,
            "least_group": self.least, "client_names": [*sizes], "client_groups": [*sizes], "in_force": IN_FORCE.get(label, ""),
            "holdings": {"clients": held, "tests": [{"name": name, "size": n} for name, n in sizes.items()]},
            "config": {"method": label, "seed": seed, "rounds": 1, "scenario": "own", "data": "people.csv", "lr": 0.1},
            "data": {"sha256": "a", "rows": "b"}, "header": [TOGETHER] if self.person is not None else [],
        }  # fmt: skip
        if self.attributes:
            meta["attributes"] = {"sex": ["f", "m"]}
        return History([record], meta | ({} if self.classes else {"task": "regression", "unit": "kg"}))


@st.composite
def people(draw: st.DrawFn, methods: int = 5) -> People:
    """Rare and common outcomes, of two or three classes or numbers, few and many rows, one or several rows of a person."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kind = draw(st.sampled_from(["two", "two", "three", "numbers"]))
    n = draw(st.sampled_from([60, 240, 900]))
    rare = draw(st.sampled_from([0.04, 0.3, 0.5]))
    skill = draw(st.sampled_from([0.4, 0.8]))
    gap = draw(st.sampled_from([0.0, 0.25]))
    labels = LABELS[: draw(st.integers(1, methods))]
    seeds = draw(st.sampled_from([1, 1, 2, 3]))
    sites = draw(st.integers(1, 3))
    attributes = draw(st.booleans())
    site = rng.integers(0, sites, n)
    site[:sites] = range(sites)
    sex = rng.integers(0, 2, n)
    if draw(st.booleans()):
        sex[rng.random(n) < 0.1] = -1
    few = draw(st.sampled_from([None, 6, 20]))  # women of the rare class
    person = rng.integers(0, n // 2, n) if draw(st.booleans()) else None
    predicted: dict[tuple[str, int], NDArray[Any]] = {}
    scores: dict[tuple[str, int], NDArray[np.float64]] = {}
    if kind == "numbers":
        y: NDArray[Any] = rng.normal(50, 10, n)
    else:
        C = 2 if kind == "two" else 3
        y = rng.choice(C, n, p=[1 - rare, rare] if C == 2 else [1 - rare - 0.2, 0.2, rare])
        if few is not None:
            women = np.flatnonzero((sex == 0) & (y == C - 1))
            y[women[few:]] = 0
    for label in labels:
        better = rng.normal(0, 0.1)
        for seed in range(seeds):
            if kind == "numbers":
                predicted[label, seed] = y + rng.normal(gap * 8 * (sex == 1), 12 - 10 * skill + abs(better), n)
                continue
            right = rng.random(n) < np.clip(skill + better - gap * (sex == 0) + rng.normal(0, 0.02), 0.02, 0.98)
            predicted[label, seed] = np.where(right, y, rng.integers(0, C, n))
            if kind == "two":
                scores[label, seed] = np.clip(predicted[label, seed] * 0.6 + rng.random(n) * 0.4, 0.001, 0.999)
    classes = {"two": ("no", "yes"), "three": ("a", "b", "c"), "numbers": ()}[kind]
    positive = draw(st.sampled_from(["yes", "yes", None])) if kind == "two" else None
    least = draw(st.sampled_from([10, 10, 1, 30]))
    return People(classes, positive, least, site, sex, person, y, predicted, scores, attributes)
