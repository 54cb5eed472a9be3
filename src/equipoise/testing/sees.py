"""What a rule uses of single clients: the last round of a method is replayed with different answers.

The answers are changed ever less, so that ever more of what the server learns stays as it was. The first change that it does not
notice, in the model, in its state, and in what clients get, shows what it uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from equipoise.core.maths import Mask
from equipoise.core.rule import Cohort, Rule, Sees, State
from equipoise.core.solver import SGD
from equipoise.engines.job import Answer, Job
from equipoise.federation import guard
from equipoise.federation.method import Method
from equipoise.federation.round import one_round
from equipoise.federation.trial import Progression, Trial
from equipoise.system.tree import flatten, tree_map
from equipoise.testing.federations import ROUNDS, client_axes, federation, normal, watched

CONTRIBUTION = (0.5, 0.9, 0.6, 0.4, 0.7)


# one round, and what came of it
@dataclass(frozen=True)
class Look(Rule):
    """Note the cohorts that made the steps, and change nothing."""

    notes: tuple[list[Cohort], ...]

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        """Note the cohort."""
        self.notes[0].append(cohort)
        return state, given


@dataclass(frozen=True)
class Replay:
    """The last round of a run: what was there ``before`` it, what clients sent, and what the server made of it."""

    trial: Trial
    before: Progression
    answer: Answer
    received: Tensor
    cohort: Cohort

    def outcome(self, updates: Tensor, reports: list[State]) -> dict[str, Tensor]:
        """All that the server stores and sends after the round, if clients had sent these ``updates`` [M, G] and ``reports``."""

        def engine(job: Job) -> Iterator[Answer]:
            yield replace(self.answer, trained=self.received + updates, reports=reports)

        after, _ = one_round(replace(self.trial, engine=engine), self.before, ROUNDS)
        result = {"vector": after.vector, "server": after.server}
        return flatten(result if after.given is None else {**result, "given": after.given})

    def notices(self, updates: Tensor, reports: list[State]) -> bool:
        """Whether the server does anything else than it did."""
        was, now = self.plain, self.outcome(updates, reports)
        assert was.keys() == now.keys()
        return any(not torch.allclose(was[k].double(), now[k].double(), rtol=1e-8, atol=1e-8) for k in was)

    @cached_property
    def plain(self) -> dict[str, Tensor]:
        """What came of the round as it was."""
        return self.outcome(self.updates, self.answer.reports)

    @property
    def updates(self) -> Tensor:
        """What was sent [M, G]."""
        return self.answer.trained - self.received

    @property
    def weights(self) -> Tensor:
        """Weights of the updates in the step [M, T], for each tensor."""
        c = self.cohort.weights if self.cohort.coefficients is None else self.cohort.coefficients
        return c if c.dim() == 2 else c[:, None].expand(-1, len(self.cohort.layout))

    @property
    def pair(self) -> list[int]:
        """Rows of the two clients that counted most."""
        return self.weights.abs().sum(1).topk(2).indices.tolist()

    def counted(self) -> Tensor:
        """Coordinates [G] that both clients of the pair hold and that count in the step."""
        c, shape = self.cohort, self.updates.shape
        inside = torch.ones(shape, dtype=torch.bool) if c.held is None else c.held
        masks = (c.mask, c.updates), (c.buffer_mask, c.buffer_updates)
        return (inside & torch.cat([dense(mask, x) for mask, x in masks], 1))[self.pair].all(0)


def dense(mask: Mask | None, like: Tensor) -> Tensor:
    """A mask as a boolean tensor, of the shape of ``like``."""
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    return mask if isinstance(mask, Tensor) else mask.dense().bool()


def last_round(method: Method, people: bool = False) -> Replay:
    """The last of the rounds of a method, in which two of five clients are absent and BatchNorm has statistics."""
    seen: list[tuple[Job, Answer]] = []
    look = Look(([],))
    settings: dict[str, Any] = {"kind": "batchnorm", "contribution": CONTRIBUTION, "epochs": 1, "people": people}
    settings["solver"] = SGD(0.5)  # large updates
    fed = federation(Method((*method.rules, look), str(method)), engine=watched(seen), **settings)
    fed.fit(ROUNDS - 1, progress=False)
    before = fed.progress
    del seen[:]
    one_round(fed.trial, before, ROUNDS)
    job, order = seen[0][0], torch.tensor([row for _, answer in seen for row in answer.rows]).argsort()
    columns = zip(*((answer.trained, answer.reports, answer.states) for _, answer in seen), strict=True)
    trained, reports, states = (tree_map(lambda *x: torch.cat(x)[order], *parts) for parts in columns)
    sent = Answer(tuple(range(len(order))), trained, reports, states)
    return Replay(fed.trial, before, sent, job.received, look.notes[0][-1])


# other answers
def noise(r: Replay, seed: int) -> tuple[Tensor, list[State]]:
    """Nothing is as it was."""
    updates = r.updates + 0.01 * normal(*r.updates.shape, seed=seed)
    return updates, tree_map(lambda x: x.roll(1, 0) + 0.01, r.answer.reports)


def shifted(r: Replay, seed: int) -> tuple[Tensor, list[State]]:
    """The sums are as they were: of the updates by their weights, of the reports as rules add them up."""
    change = 0.05 * normal(r.updates.shape[1], seed=seed) * r.counted()
    rules = zip(r.trial.method.rules, r.answer.reports, strict=True)
    return moved(r, change), [with_sums(report, r.pair) for _, report in rules]


def turned(r: Replay, seed: int) -> tuple[Tensor, list[State]]:
    """The sums are as they were, and so are all reports, and the length of every update and of each of its tensors.

    Two updates are reflected at their weighted sum, so that their products with others are not what they were.
    """
    (i, j), P, on = r.pair, r.cohort.updates.shape[1], r.counted()
    draw = normal(len(on), seed=seed) * on
    updates = moved(r, 0.05 * draw * (torch.arange(len(on)) >= P))
    start = 0
    for n, w in zip(r.cohort.layout, r.weights.T, strict=True):
        part = slice(start, start := start + n)
        total = (w[i] * updates[i, part] + w[j] * updates[j, part]) * on[part]
        v = draw[part] - draw[part] @ total / total.square().sum().clamp(min=1e-300) * total
        if v.norm() > 1e-6:  # one coordinate cannot be turned
            v = v / v.norm()
            updates[r.pair, part] -= 2 * (updates[r.pair, part] @ v)[:, None] * v
    return updates, r.answer.reports


def moved(r: Replay, change: Tensor) -> Tensor:
    """The updates [M, G] with a ``change`` [G] between the pair, by weight."""
    i, j = r.pair
    columns = [w.expand(n, -1) for n, w in zip(r.cohort.layout, r.weights.T, strict=True)]
    W = torch.cat([*columns, r.cohort.weights.expand(len(change) - sum(r.cohort.layout), -1)]).T
    updates = r.updates
    updates[i] += W[j] * change
    updates[j] -= W[i] * change
    return updates


def with_sums(report: State, pair: list[int]) -> State:
    """Other reports of the pair with the same sums."""
    i, j = pair
    report = {k: x.clone() for k, x in report.items()}
    for k, x in report.items():
        if k != "share" and x.is_floating_point():  # a mean over those who have some: who has none stays so
            x[i] += 0.1
            x[j] -= 0.1
        x[[i, j]] = x[[j, i]]  # who reported which is not seen either
    return report


# what is used
def looked_at(replay: Replay) -> Sees:
    """What the server looks at; seeds are several, as what is judged by its accuracy may change without notice."""
    with patch.object(guard, "out_of_range", lambda *_: {}):  # changed reports need not be such as clients make
        for sees, change in (("nothing", noise), ("sum", shifted), ("scalars+sum", turned)):
            if not any(replay.notices(*change(replay, seed)) for seed in range(3)):
                return cast(Sees, sees)
    return "matrix"


def follows_contribution(last: Replay) -> bool:
    """Whether what clients get depends on what they reach alone, in the first round (submodels) or in the last (rewards)."""
    other = replace(last.trial, contribution=torch.tensor(CONTRIBUTION, dtype=torch.float64).roll(1))
    for t in (0, ROUNDS - 1):
        r = replace(last, before=replace(last.before, t=t))
        now = replace(r, trial=other).plain
        if any(not torch.equal(r.plain[k], now[k]) for k in now):
            return True
    return False


def kept_of_clients(trial: Trial) -> list[str]:
    """What the server keeps with an entry for each client."""
    return [name for name, axes in client_axes(trial).items() if name.startswith("server") and axes]
