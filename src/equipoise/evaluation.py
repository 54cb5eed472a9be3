"""Which model is evaluated, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.data.samples import Samples, Stream
from equipoise.draws import Plan, noise, plan, seeded
from equipoise.metrics.classification import AREAS, classification
from equipoise.oracle import Oracle
from equipoise.round import Experiment, Progression, Record, submodels
from equipoise.rule import Visit, cross_entropy, overrides

EVERY = 5  # rounds between evaluations of what costs much: personal models (a test pass per client), areas (a sort per pair of classes)
LAST = 5  # rounds that make the reported figures

Score = dict[str, Any]  # accuracy, loss, the other measures asked for; "missing": classes that an area leaves out


def published(e: Experiment, p: Progression) -> Tensor:
    """The global model as it is evaluated and given out: a whole vector [G].

    What clients keep to themselves is there as the mean over clients, by samples.
    """
    theta = p.vector[: e.model.n_params]
    for rule, state in zip(e.method.rules, p.server, strict=True):
        theta = rule.publish(theta, state)
    vector = torch.cat([theta, p.vector[e.model.n_params :]])
    if e.private is None or p.own is None:
        return vector
    share = (e.setup.sizes / e.setup.sizes.sum()).to(vector.dtype)
    return torch.where(e.private, share @ p.own, vector)  # as FedBN's authors do for a client from outside


def deployed(e: Experiment, p: Progression, m: int) -> Tensor:
    """The model client ``m`` predicts with: a whole vector [G]."""
    vector = published(e, p) if p.given is None else p.given[m]
    if e.private is not None and p.own is not None:
        vector = torch.where(e.private, p.own[m], vector)
    units = submodels(e, p.server, [m])
    whole = None if units is None or e.neurons is None else e.neurons.held(units[0])
    held = None if whole is None else whole[: e.model.n_params]
    vector = vector if whole is None else vector.where(whole, 0)
    if not e.method.overriding("deploy"):
        return vector
    oracle = _at_home(e, p, m)
    random = e.model.random or isinstance(e.data[m], Stream)
    with seeded(noise(e.seed, p.t, m) if random else None):
        for rule, state, server in zip(e.method.rules, p.clients, p.server, strict=True):
            if overrides(rule, "deploy"):
                own, told = {k: v[m] for k, v in state.items()}, rule.message(server, m)
                visit = Visit(vector, e.model.n_params, own, told, oracle, p.t, p.t, held)
                vector = rule.deploy(vector, visit)
    return vector if whole is None else vector.where(whole, 0)


def _at_home(e: Experiment, p: Progression, m: int) -> Oracle:
    """Client ``m``'s own data, with one epoch to train on."""
    drawn = plan(
        e.seed, p.t, [m], [e.data[m].size], 1, e.batch_size, crop=e.crop, drop_single=e.model.batch_norm
    )  # the batches of the next round's first epoch
    return Oracle(e.bound, e.data[m], e.solver, drawn.to(p.vector.device).of(0), e.model.n_params)


def personal(e: Experiment, p: Progression) -> bool:
    """Whether clients predict with models of their own."""
    return e.private is not None or p.given is not None or any(map(e.method.overriding, ("deploy", "submodel")))


@dataclass(frozen=True)
class Tests:
    """Named evaluation sets, and for each client the one it belongs to (None: all of them)."""

    __test__ = False  # not a test case

    sets: Mapping[str, Samples | Stream]
    groups: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)

    def score(
        self, e: Experiment, vector: Tensor, data: Samples | Stream, measures: Sequence[str] | None = None
    ) -> Score:
        """Accuracy, loss and other measures (None: all that were asked for) of a whole vector [G] on one data set.

        The data set is passed through the network once, whatever is measured.
        """
        with seeded(0 if isinstance(data, Stream) else None):  # a data set may draw random numbers
            nothing = Plan(torch.empty(0, 0, dtype=torch.int64, device=vector.device), None)
            logits, y = Oracle(e.bound, data, e.solver, nothing, e.model.n_params).logits(vector)
        accuracy = (logits.argmax(-1) == y).double().mean()
        score: Score = {"accuracy": float(accuracy), "loss": float(cross_entropy(logits, y).double().mean())}
        if more := [name for name in (self.measures if measures is None else measures) if name not in score]:
            found = classification(logits.double().cpu().numpy(), y.cpu().numpy(), more, logits=True)
            score |= {name: found[name] for name in more}
            if found["missing"] and set(AREAS) & set(more):
                score["missing"] = list(found["missing"])
        return score

    def record(self, e: Experiment, p: Progression, rounds: int) -> Record:
        """Scores of the global model on every set, and the accuracy of what each client predicts with."""
        vector = published(e, p)
        counts = p.t % EVERY == 0 or p.t > rounds - LAST
        scores = {n: self.score(e, vector, d, self.measures if counts else ()) for n, d in self.sets.items()}
        record: Record = {"groups": scores}
        if not personal(e, p):
            clients = [self._average(scores, m) for m in range(len(e.data))]
        elif not counts:
            return record
        else:
            clients = [self.accuracy(e, deployed(e, p, m), m) for m in range(len(e.data))]
        return {**record, "clients": {"accuracy": clients}}

    def accuracy(self, e: Experiment, vector: Tensor, m: int) -> float:
        """Accuracy of a whole vector [G] over all samples of the sets client ``m`` belongs to."""
        return self._average({n: self.score(e, vector, self.sets[n], ()) for n in self._own(m)}, m)

    def _own(self, m: int) -> Sequence[str]:
        return tuple(self.sets) if self.groups is None else (self.groups[m],)

    def _average(self, scores: Mapping[str, Score], m: int) -> float:
        """Accuracy over all samples of the sets client ``m`` belongs to."""
        own = self._own(m)
        right = sum(float(scores[n]["accuracy"]) * self.sets[n].size for n in own)
        return right / sum(self.sets[n].size for n in own)
