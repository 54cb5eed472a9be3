"""The models of the server and of the clients that are evaluated, and their scores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from equipoise.core import task
from equipoise.core.alignment import aligned
from equipoise.core.draws import noise, schedule, seeded
from equipoise.core.model import Bound
from equipoise.core.oracle import EVALUATION_BATCH, Oracle
from equipoise.core.rule import State, Visit, overrides
from equipoise.data.samples import Absent, Awaited, LoadError, Samples, Stream, at_once
from equipoise.federation.round import Experiment, Progression, Record, submodels
from equipoise.metrics.classification import AREAS, classification
from equipoise.system.threads import run_in_order

log = logging.getLogger(__name__)

BLOCK = 256  # clients whose models are averaged at a time
EVERY = 5  # rounds between costly evaluations: personalised models (a test pass per client), areas (a sort per pair of classes)
LAST = 5  # last rounds, over which results are averaged: always evaluated

Score = dict[str, Any]  # accuracy, loss, other measures; "missing": classes that an area leaves out


def published(e: Experiment, p: Progression) -> Tensor:
    """The global model as it is evaluated and returned: a whole vector [G].

    Private coordinates are the mean over clients, weighted by samples.
    """
    vector = _shared(e, p)
    if e.private is None or p.own is None:
        return vector
    share = (e.setup.sizes / e.setup.sizes.sum()).to(vector.dtype)
    mean = torch.zeros_like(vector)
    for k in range(0, len(share), BLOCK):
        mean += share[k : k + BLOCK] @ p.own[k : k + BLOCK]
    return torch.where(e.private, mean, vector)  # as FedBN's authors do for a client from outside


def _shared(e: Experiment, p: Progression) -> Tensor:
    """The global model [G] as the rules publish it; its private coordinates have no meaning."""
    theta = p.vector[: e.model.n_params]
    for rule, state in zip(e.method.rules, p.server, strict=True):
        theta = rule.publish(theta, state)
    return torch.cat([theta, p.vector[e.model.n_params :]])


def deployed(e: Experiment, p: Progression, m: int) -> Tensor:
    """The model client ``m`` predicts with: a whole vector [G].

    Raises
    ------
    LoadError : it must train first, and its data cannot be loaded.
    """
    return _deployed(e, p, m, bool(e.method.overriding("deploy")))


def _deployed(e: Experiment, p: Progression, m: int, deploys: bool) -> Tensor:
    own = None if p.own is None else p.own[m]
    states = [{k: v[m] for k, v in state.items()} for state in p.clients]
    return used(e, p.t, m, e.data[m], handed(e, p, m), own, states, deploys=deploys)


@dataclass(frozen=True)
class Handed:
    """What the server sends to a client that predicts: a whole vector [G], its hidden units [K], and messages.

    ``units`` is None for the whole network; there is a message per rule if any rule uses them.
    """

    vector: Tensor
    units: Tensor | None
    messages: list[State]


def handed(e: Experiment, p: Progression, m: int) -> Handed:
    """The server's part of the model with which client ``m`` predicts."""
    units = submodels(e, p.server, [m])
    vector = _shared(e, p) if p.given is None else p.given[m]
    deploys = bool(e.method.overriding("deploy"))
    messages = [rule.message(s, m) for rule, s in zip(e.method.rules, p.server, strict=True)] if deploys else []
    return Handed(vector, None if units is None else units[0], messages)


def used(
    e: Experiment,
    t: int,
    m: int,
    data: Samples | Stream | Absent,
    given: Handed,
    own: Tensor | None,
    states: Sequence[State],
    *,
    deploys: bool = True,
) -> Tensor:
    """The model with which a client predicts, a whole vector [G], from what the server sent.

    ``data`` are those of client ``m``, ``own`` [G] has its private coordinates, ``states`` its state per rule.
    """
    vector, own, states = aligned((given.vector, own, states))
    if e.private is not None and own is not None:
        vector = torch.where(e.private, own, vector)
    whole = None if given.units is None or e.neurons is None else e.neurons.held(given.units)
    held = None if whole is None else whole[: e.model.n_params]
    vector = vector if whole is None else vector.where(whole, 0)
    if not deploys or not given.messages:
        return vector
    oracle = _oracle(e, t, m, data)
    random = e.model.random or not isinstance(data, Samples)
    with seeded(noise(e.settings.seed, t, m) if random else None):
        for rule, state, message in zip(e.method.rules, states, aligned(given.messages), strict=True):
            if overrides(rule, "deploy"):
                visit = Visit(vector, e.model.n_params, state, message, oracle, t, t, held)
                vector = rule.deploy(vector, visit)
    return vector if whole is None else vector.where(whole, 0)


def _deployable(e: Experiment, p: Progression, m: int) -> Tensor:
    """The model with which client ``m`` predicts; without its own training if its data cannot be loaded."""
    try:
        return deployed(e, p, m)
    except LoadError as error:
        log.warning("%s; it is tested without its own training", error)
        return _deployed(e, p, m, deploys=False)


def _oracle(e: Experiment, t: int, m: int, known: Samples | Stream | Absent) -> Oracle:
    """Client ``m``'s data with one epoch of batches, loaded on first use."""
    data = Awaited(known) if isinstance(known, Absent) else known
    drawn = schedule(
        e.settings.seed,
        t,
        [m],
        [known.size],
        1,
        e.settings.batch_size,
        chances=e.chances,
        drop_single=e.model.batch_norm,
    )  # the batches of the next round's first epoch
    return Oracle(e.bound, data, e.solver, drawn.to(e.setup.initial.device).of(0), e.model.n_params)


def costly(t: int, rounds: int) -> bool:
    """Whether the costly evaluations take place after ``t`` of ``rounds`` rounds."""
    return t % EVERY == 0 or t > rounds - LAST


def personal(e: Experiment, p: Progression) -> bool:
    """Whether clients predict with personalised models."""
    return e.private is not None or p.given is not None or any(map(e.method.overriding, ("deploy", "submodel")))


def answers(e: Experiment, vector: Tensor, sets: Sequence[Samples | Stream]) -> list[tuple[Tensor, Tensor]]:
    """Logits [n, C] and labels [n] of each data set at a whole vector [G], computed by all workers."""
    P, random = e.model.n_params, e.model.random or any(isinstance(d, Stream) for d in sets)
    width = [at_once(d, EVALUATION_BATCH) for d in sets]
    blocks = [
        (d, rows)
        for d, w in zip(sets, width, strict=True)
        for rows in torch.arange(d.size, device=vector.device).split(w)
    ]
    n = 1 if random or vector.device.type != "cpu" else min(e.workers, len(blocks))

    def make() -> Callable[[tuple[Samples | Stream, Tensor]], tuple[Tensor, Tensor]]:
        bound = e.bound if n == 1 else Bound(e.model)

        def logits(block: tuple[Samples | Stream, Tensor]) -> tuple[Tensor, Tensor]:
            x, y = block[0].batch(block[1], None)
            return bound.forward(vector[:P], vector[P:].clone(), x)[0], y

        return logits

    with seeded(0 if random else None):  # a data set or a transform may draw random numbers
        results = iter(run_in_order(blocks, make, n))
    parts = [list(islice(results, -(-d.size // w))) for d, w in zip(sets, width, strict=True)]
    return [(torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])) for part in parts]


@dataclass(frozen=True)
class EvaluationSets:
    """Named evaluation sets, and for each client the one it belongs to (None: all of them)."""

    sets: Mapping[str, Samples | Stream]
    groups: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)

    def score(
        self, e: Experiment, vector: Tensor, data: Samples | Stream, measures: Sequence[str] | None = None
    ) -> Score:
        """Accuracy, loss and other measures (None: all of the run) of a whole vector [G] on one data set."""
        return self._scores(e, vector, {"": data}, self.measures if measures is None else measures)[""]

    def scores(self, e: Experiment, vector: Tensor, measures: Sequence[str]) -> dict[str, Score]:
        """Scores of a whole vector [G] on every set: accuracy, loss, and other ``measures``."""
        return self._scores(e, vector, self.sets, measures)

    def _scores(
        self, e: Experiment, vector: Tensor, sets: Mapping[str, Samples | Stream], measures: Sequence[str]
    ) -> dict[str, Score]:
        outputs = zip(sets, answers(e, vector, list(sets.values())), strict=True)
        return {name: self._score(logits, y, measures) for name, (logits, y) in outputs}

    def _score(self, logits: Tensor, y: Tensor, measures: Sequence[str]) -> Score:
        accuracy, loss = (each.double().mean() for each in (task.correct(logits, y), task.losses(logits, y)))
        score: Score = {"accuracy": float(accuracy), "loss": float(loss)}
        if more := [name for name in measures if name not in score]:
            values = classification(logits.double().cpu().numpy(), y.cpu().numpy(), more, logits=True)
            score |= {name: values[name] for name in more}
            if values["missing"] and set(AREAS) & set(more):
                score["missing"] = list(values["missing"])
        return score

    def record(self, e: Experiment, p: Progression, rounds: int) -> Record:
        """Scores of the global model on every set, and the accuracy of the model with which each client predicts."""
        vector = published(e, p)
        counts = costly(p.t, rounds)
        scores = self.scores(e, vector, self.measures if counts else ())
        record: Record = {"groups": scores}
        if not personal(e, p):
            same = {own: self.average(scores, own) for own in set(map(self._own, range(len(e.data))))}
            clients = [same[self._own(m)] for m in range(len(e.data))]
        elif not counts:
            return record
        else:
            clients = [self.accuracy(e, _deployable(e, p, m), m) for m in range(len(e.data))]
        return {**record, "clients": {"accuracy": clients}}

    def accuracy(self, e: Experiment, vector: Tensor, m: int) -> float:
        """Accuracy of a whole vector [G] over all samples of the sets client ``m`` belongs to."""
        own = self._own(m)
        return self.average(self._scores(e, vector, {n: self.sets[n] for n in own}, ()), own)

    def _own(self, m: int) -> tuple[str, ...]:
        return tuple(self.sets) if self.groups is None else (self.groups[m],)

    def average(self, scores: Mapping[str, Score], own: Sequence[str]) -> float:
        """Accuracy over all samples of some sets."""
        right = sum(float(scores[n]["accuracy"]) * self.sets[n].size for n in own)
        return right / sum(self.sets[n].size for n in own)
