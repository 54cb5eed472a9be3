"""Which model is evaluated, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.data.samples import Samples, Stream
from equipoise.draws import Plan, seeded
from equipoise.model import Bound
from equipoise.oracle import Oracle
from equipoise.round import Experiment, Progression, Record
from equipoise.rule import overrides

PERSONAL_EVERY = 5  # rounds between evaluations of personal models, which cost one test pass per client
LAST = 5  # rounds that make the reported figures


class Score(NamedTuple):
    """Share of samples classified correctly, and mean cross-entropy."""

    accuracy: float
    loss: float


def published(e: Experiment, p: Progression) -> Tensor:
    """The global model as it is evaluated and given out: a whole vector [G].

    What clients keep to themselves is there as the mean over clients, by samples.
    """
    vector = p.vector
    if e.private is not None and p.own is not None:  # as FedBN's authors do for a client from outside
        share = (e.setup.sizes / e.setup.sizes.sum()).to(vector.dtype)
        vector = torch.where(e.private, share @ p.own, vector)
    theta = vector[: e.model.n_params]
    for rule, state in zip(e.method.rules, p.server, strict=True):
        theta = rule.publish(theta, state)
    return torch.cat([theta, vector[e.model.n_params :]])


def deployed(e: Experiment, p: Progression, m: int) -> Tensor:
    """The model client ``m`` predicts with: a whole vector [G]."""
    vector = published(e, p) if p.given is None else p.given[m]
    if e.private is not None and p.own is not None:
        vector = torch.where(e.private, p.own[m], vector)
    for rule, state, server in zip(e.method.rules, p.clients, p.server, strict=True):
        if overrides(rule, "deploy"):
            vector = rule.deploy(vector, {k: v[m] for k, v in state.items()}, rule.message(server, m))
    return vector


def personal(e: Experiment, p: Progression) -> bool:
    """Whether clients predict with models of their own."""
    return e.private is not None or p.given is not None or bool(e.method.overriding("deploy"))


@dataclass(frozen=True)
class Tests:
    """Named evaluation sets, and for each client the one it belongs to (None: all of them)."""

    __test__ = False  # not a test case

    sets: Mapping[str, Samples | Stream]
    groups: tuple[str, ...] | None
    bound: Bound

    def score(self, e: Experiment, vector: Tensor, data: Samples | Stream) -> Score:
        """Score a whole vector [G] on one data set."""
        with seeded(0) if isinstance(data, Stream) else nullcontext():  # a data set may draw random numbers
            return self._score(e, vector, data)

    def _score(self, e: Experiment, vector: Tensor, data: Samples | Stream) -> Score:
        nothing = Plan(torch.empty(0, 0, dtype=torch.int64, device=vector.device), None)
        accuracy, loss = Oracle(self.bound, data, e.solver, nothing, e.model.n_params).score(vector)
        return Score(float(accuracy), float(loss))

    def record(self, e: Experiment, p: Progression, rounds: int) -> Record:
        """Scores of the global model on every set, and the accuracy of what each client predicts with."""
        vector = published(e, p)
        scores = {name: self.score(e, vector, data) for name, data in self.sets.items()}
        record: Record = {"groups": {name: score._asdict() for name, score in scores.items()}}
        if not personal(e, p):
            clients = [self._average(scores, m) for m in range(len(e.data))]
        elif p.t % PERSONAL_EVERY and p.t <= rounds - LAST:
            return record
        else:
            clients = []
            for m in range(len(e.data)):
                vector = deployed(e, p, m)
                clients.append(self._average({n: self.score(e, vector, self.sets[n]) for n in self._own(m)}, m))
        return {**record, "clients": {"accuracy": clients}}

    def _own(self, m: int) -> Sequence[str]:
        return tuple(self.sets) if self.groups is None else (self.groups[m],)

    def _average(self, scores: Mapping[str, Score], m: int) -> float:
        """Accuracy over all samples of the sets client ``m`` belongs to."""
        own = self._own(m)
        return sum(scores[n].accuracy * self.sets[n].size for n in own) / sum(self.sets[n].size for n in own)
