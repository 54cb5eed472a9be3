"""The models of the server and of the clients that are evaluated, and their scores."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.core.alignment import aligned
from equipoise.core.draws import noise, schedule, seeded
from equipoise.core.model import Bound
from equipoise.core.oracle import EVALUATION_BATCH, Oracle
from equipoise.core.rule import State, Visit, overrides
from equipoise.core.solver import at
from equipoise.core.task import CLASSIFICATION, Task
from equipoise.data.samples import Absent, Awaited, LoadError, Samples, Stream, at_once
from equipoise.federation.round import submodels
from equipoise.federation.trial import Progression, Trial
from equipoise.metrics.classification import CORRECT, RATES
from equipoise.metrics.own import Found, Measure, recorded
from equipoise.records.record import Clients, Record, Score, number
from equipoise.system.threads import run_in_order

log = logging.getLogger(__name__)

BLOCK = 256  # clients whose models are averaged at a time
EVERY = 5  # rounds between costly evaluations: personalised models (a test pass per client), areas (a sort per pair of classes)
LAST = 5  # last rounds, over which results are averaged: always evaluated

Outputs = tuple[np.typing.NDArray[Any], np.typing.NDArray[Any]]  # probabilities [n, C], labels [n]


def published(trial: Trial, p: Progression) -> Tensor:
    """The global model as it is evaluated and returned: a whole vector [G].

    Private coordinates are the mean over clients, weighted by samples.
    """
    vector = _shared(trial, p)
    if trial.private is None or p.own is None:
        return vector
    share = (trial.setup.sizes / trial.setup.sizes.sum()).to(vector.dtype)
    mean = torch.zeros_like(vector)
    for k in range(0, len(share), BLOCK):
        mean += share[k : k + BLOCK] @ p.own[k : k + BLOCK]
    return torch.where(trial.private, mean, vector)  # as FedBN's authors do for a client from outside


def _shared(trial: Trial, p: Progression) -> Tensor:
    """The global model [G] as the rules publish it; its private coordinates have no meaning."""
    theta = p.vector[: trial.model.n_params]
    for rule, state in zip(trial.method.rules, p.server, strict=True):
        theta = rule.publish(theta, state)
    return torch.cat([theta, p.vector[trial.model.n_params :]])


def deployed(trial: Trial, p: Progression, m: int) -> Tensor:
    """The model client ``m`` predicts with: a whole vector [G].

    Raises
    ------
    LoadError : it must train first, and its data cannot be loaded.
    """
    return _deployed(trial, p, m, bool(trial.method.overriding("deploy")))


def _deployed(trial: Trial, p: Progression, m: int, deploys: bool) -> Tensor:
    own = None if p.own is None else p.own[m]
    states = [{k: v[m] for k, v in state.items()} for state in p.clients]
    return used(trial, p.t, m, trial.data[m], handed(trial, p, m), own, states, deploys=deploys)


@dataclass(frozen=True)
class Handed:
    """What the server sends to a client that predicts: a whole vector [G], its hidden units [K], and messages.

    ``units`` is None for the whole network; there is a message per rule if any rule uses them.
    """

    vector: Tensor
    units: Tensor | None
    messages: list[State]


def handed(trial: Trial, p: Progression, m: int) -> Handed:
    """The server's part of the model with which client ``m`` predicts."""
    units = submodels(trial, p.server, [m])
    vector = _shared(trial, p) if p.given is None else p.given[m]
    deploys = bool(trial.method.overriding("deploy"))
    messages = [rule.message(s, m) for rule, s in zip(trial.method.rules, p.server, strict=True)] if deploys else []
    return Handed(vector, None if units is None else units[0], messages)


def used(
    trial: Trial,
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
    if trial.private is not None and own is not None:
        vector = torch.where(trial.private, own, vector)
    whole = None if given.units is None or trial.neurons is None else trial.neurons.held(given.units)
    held = None if whole is None else whole[: trial.model.n_params]
    vector = vector if whole is None else vector.where(whole, 0)
    if not deploys or not given.messages:
        return vector
    oracle = oracle_of(trial, t, m, data)
    random = trial.model.random or not isinstance(data, Samples)
    with seeded(noise(trial.settings.seed, t, m) if random else None):
        for rule, state, message in zip(trial.method.rules, states, aligned(given.messages), strict=True):
            if overrides(rule, "deploy"):
                visit = Visit(vector, trial.model.n_params, state, message, oracle, t, t, held)
                vector = rule.deploy(vector, visit)
    return vector if whole is None else vector.where(whole, 0)


def compact(trial: Trial, p: Progression, client: int | None, vector: Tensor) -> nn.Module:
    """The smaller network of a client's submodel, with the values of a whole vector [G]."""
    units = None if client is None else submodels(trial, p.server, [client])
    if units is None or trial.neurons is None:
        why = "the global model is whole" if client is None else f"{trial.method} gives clients the whole network"
        raise ValueError(f"compact: there is no submodel to cut out, because {why}. Leave compact out.")
    if not trial.neurons.fits(units[0]):
        raise ValueError(
            "compact: this network cannot be made smaller (its code may name sizes, or a convolution would have no "
            "channel left). Leave compact out: what the client does not hold is zero."
        )
    model, index = trial.neurons.extract(units[0])
    return model.network(vector[index])


def deployable(trial: Trial, p: Progression, m: int) -> Tensor:
    """The model with which client ``m`` predicts; without its own training if its data cannot be loaded."""
    try:
        return deployed(trial, p, m)
    except LoadError as error:
        log.warning("%s; it is tested without its own training", error)
        return _deployed(trial, p, m, deploys=False)


def oracle_of(trial: Trial, t: int, m: int, known: Samples | Stream | Absent) -> Oracle:
    """Client ``m``'s data with one epoch of batches, loaded on first use."""
    data = Awaited(known) if isinstance(known, Absent) else known
    drawn = schedule(
        trial.settings.seed,
        t,
        [m],
        [known.size],
        1,
        trial.settings.batch_size,
        chances=trial.chances,
        drop_single=trial.model.batch_norm,
    )  # the batches of the next round's first epoch
    solver = at(trial.solver, max(t - 1, 0), max(trial.rounds, t, 1), trial.model)  # of the last round
    return Oracle(trial.bound, data, solver, drawn.to(trial.setup.initial.device).of(0), trial.model.n_params)


def costly(t: int, rounds: int) -> bool:
    """Whether the costly evaluations take place after ``t`` of ``rounds`` rounds."""
    return t % EVERY == 0 or t > rounds - LAST


def personal(trial: Trial, p: Progression) -> bool:
    """Whether clients predict with personalised models."""
    return trial.private is not None or p.given is not None or any(map(trial.method.overriding, ("deploy", "submodel")))


def answers(trial: Trial, vector: Tensor, sets: Sequence[Samples | Stream]) -> list[tuple[Tensor, Tensor]]:
    """Logits [n, C] and labels [n] of each data set at a whole vector [G], computed by all workers."""
    P, random = trial.model.n_params, trial.model.random or any(isinstance(d, Stream) for d in sets)
    width = [at_once(d, EVALUATION_BATCH) for d in sets]
    blocks = [
        (d, rows)
        for d, w in zip(sets, width, strict=True)
        for rows in torch.arange(d.size, device=vector.device).split(w)
    ]
    n = 1 if random or vector.device.type != "cpu" else min(trial.workers, len(blocks))
    used = {trial.bound}

    def make() -> Callable[[tuple[Samples | Stream, Tensor]], tuple[Tensor, Tensor]]:
        bound = trial.bound if n == 1 else Bound(trial.model)
        used.add(bound)

        def logits(block: tuple[Samples | Stream, Tensor]) -> tuple[Tensor, Tensor]:
            x, y = block[0].batch(block[1], None)
            return bound.forward(vector[:P], vector[P:].clone(), x)[0], y

        return logits

    with seeded(0 if random else None):  # a data set or a transform may draw random numbers
        results = iter(run_in_order(blocks, make, n))
    for bound in used:
        bound.check(vector)
    parts = [list(islice(results, -(-d.size // w))) for d, w in zip(sets, width, strict=True)]
    return [(torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])) for part in parts]


def _outputs(trial: Trial, logits: Tensor, y: Tensor) -> Outputs:
    """Probabilities [n, C], or what else the task predicts, and targets [n] of an answer."""
    return trial.model.task.outputs(logits).cpu().numpy(), y.cpu().numpy()


@dataclass(frozen=True)
class EvaluationSets:
    """Named evaluation sets, and for each of ``n`` clients the one it belongs to (None: all of them), or a test set of its own."""

    sets: Mapping[str, Samples | Stream]
    groups: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)
    of_clients: tuple[Samples | Stream | None, ...] | None = None
    n: int = 0
    own: tuple[Measure, ...] = ()  # recorded beside the others

    @staticmethod
    def of(
        sets: Mapping[str, Samples | Stream],
        groups: Sequence[str] | None,
        n: int,
        measures: tuple[str, ...],
        of_clients: tuple[Samples | Stream | None, ...] | None = None,
        own: tuple[Measure, ...] = (),
    ) -> EvaluationSets:
        """The sets of ``n`` clients."""
        if of_clients is not None and len(of_clients) != n:
            raise ValueError(
                f"client_tests must have a test set, or None, for each of the {n} clients; found {len(of_clients)} entries."
            )
        if groups is None:
            return EvaluationSets(sets, None, measures, of_clients, n, own)
        strange = sorted(set(groups) - set(sets))
        if len(groups) != n or strange:
            found = f"unknown {', '.join(strange)}" if strange else f"{len(groups)} entries"
            expected = f"{n} clients; test sets: {', '.join(sets) or 'none'}"
            raise ValueError(f"groups must name one test set per client ({expected}); found {found}.")
        return EvaluationSets(sets, tuple(groups), measures, of_clients, n, own)

    def score(
        self, trial: Trial, vector: Tensor, data: Samples | Stream, measures: Sequence[str] | None = None
    ) -> Score:
        """Accuracy, loss and other measures (None: all of the run) of a whole vector [G] on one data set."""
        [answer] = answers(trial, vector, [data])
        score = trial.model.task.score(*answer, self.measures if measures is None else measures)
        if measures is None and self.own:
            found = self._found([_outputs(trial, *answer)])
            score |= cast(Score, {measure.name: value for measure, (value, _) in zip(self.own, found, strict=True)})
        return score

    def scores(self, trial: Trial, vector: Tensor, measures: Sequence[str]) -> dict[str, Score]:
        """Scores of a whole vector [G] on every set: accuracy, loss, and other ``measures``."""
        return self._scores(trial, vector, self.sets, measures)

    def _scores(
        self, trial: Trial, vector: Tensor, sets: Mapping[str, Samples | Stream], measures: Sequence[str]
    ) -> dict[str, Score]:
        outputs = zip(sets, answers(trial, vector, list(sets.values())), strict=True)
        return {name: trial.model.task.score(*answer, measures) for name, answer in outputs}

    def record(self, trial: Trial, p: Progression, rounds: int) -> Record:
        """Scores of the global model on every set, and the accuracy of the model with which each client predicts."""
        if not trial.method.sharing.global_model:  # there is no global model
            return self._alone(trial, p) if costly(p.t, rounds) else {}
        vector = published(trial, p)
        answered = dict(zip(self.sets, answers(trial, vector, list(self.sets.values())), strict=True))
        task = trial.model.task
        measures = self.measured(task, p.t, rounds)
        scores = {name: task.score(*answer, measures) for name, answer in answered.items()}
        record: Record = {"groups": scores}
        named = answered if self.own and costly(p.t, rounds) else {}
        own = {name: _outputs(trial, *answer) for name, answer in named.items()}
        found: list[list[Found] | None] = []  # the user's own measures of the clients
        if self.of_clients is not None or personal(trial, p):
            if not costly(p.t, rounds):
                return record
            clients = self._accuracies(trial, p, vector)
            for m in range(self.n) if own else ():
                model = self._used(trial, p, m, vector)
                found.append(None if model is None else self._found([self._outputs(trial, model, m)]))
        else:
            same = {of: self.pooled(trial, scores, of) for of in set(map(self._own, range(self.n)))}
            clients = [same[self._own(m)] for m in range(self.n)]
            if own:
                alike = {of: self._found([own[name] for name in of]) for of in same}
                found = [alike[self._own(m)] for m in range(self.n)]
        return {**record, "clients": self._tested(trial, clients), **(self._entry(trial, found, own) if own else {})}

    def _accuracies(self, trial: Trial, p: Progression, shared: Tensor) -> list[float | None]:
        """Accuracy of the model with which each client predicts; None for one without a test set where others have their own.

        The ``shared`` one is tested on all sets in one pass, personal ones client by client.
        """
        if self.of_clients is None or personal(trial, p):
            models = (self._used(trial, p, m, shared) for m in range(self.n))
            return [None if model is None else self.accuracy(trial, model, m) for m, model in enumerate(models)]
        sets = [d for d in self.of_clients if d is not None]
        task = trial.model.task
        scores = (task.score(*answer)[task.main] for answer in answers(trial, shared, sets))
        return [None if d is None else next(scores) for d in self.of_clients]

    def _tested(self, trial: Trial, scores: Sequence[float | None]) -> Clients:
        """The main measure of the clients in a record, and of test sets of their own how many samples each has."""
        clients = cast(Clients, {trial.model.task.main: list(scores)})
        if self.of_clients is not None:
            clients["n"] = [0 if d is None else d.size for d in self.of_clients]
        return clients

    def _alone(self, trial: Trial, p: Progression) -> Record:
        """Accuracy on every set, the mean over its clients, each with its own model; NaN of a set without clients."""
        found: dict[str, list[float]] = {name: [] for name in self.sets}
        main = trial.model.task.main
        clients: list[float | None] = []
        values: list[list[Found] | None] = []
        for m in range(self.n):
            own, vector = self._own(m), deployable(trial, p, m)
            scores = self._scores(trial, vector, {name: self.sets[name] for name in own}, ())
            for name in own:
                found[name].append(number(scores[name][main]))
            mine = None if self.of_clients is None else self.of_clients[m]
            average = self.pooled(trial, scores, own) if self.of_clients is None else None
            clients.append(average if mine is None else self.accuracy(trial, vector, m))
            tested = bool(self.own) and clients[-1] is not None
            values.append(self._found([self._outputs(trial, vector, m)]) if tested else None)
        means = {name: float(np.mean(of)) if of else math.nan for name, of in found.items()}
        groups = {name: cast(Score, {main: mean}) for name, mean in means.items()}
        record: Record = {"groups": groups, "clients": self._tested(trial, clients)}
        return {**record, **(self._entry(trial, values, {}) if self.own else {})}

    def measured(self, task: Task, t: int, rounds: int) -> tuple[str, ...]:
        """What is computed after ``t`` of ``rounds`` rounds beside accuracy and loss: counts per class to see whether a model
        only guesses, and in the last rounds which samples are right, from which intervals are computed.
        """
        if not costly(t, rounds):
            return ()
        if task != CLASSIFICATION:
            return self.measures
        return (*self.measures, RATES, *((CORRECT,) if t > rounds - LAST else ()))

    def _used(self, trial: Trial, p: Progression, m: int, shared: Tensor) -> Tensor | None:
        """The model with which client ``m`` predicts; None if others have a test set of their own, and it has none."""
        if self.of_clients is not None and self.of_clients[m] is None:
            return None
        return deployable(trial, p, m) if personal(trial, p) else shared

    def _entry(self, trial: Trial, clients: Sequence[list[Found] | None], own: Mapping[str, Outputs]) -> Record:
        """The user's own measures in a record, of the clients and of the global model's outputs on every set, if there is one."""
        names = [("client", trial.names[m] if m < len(trial.names) else str(m)) for m in range(self.n)]
        found = {("group", name): self._found([own[name]]) if own else None for name in self.sets}
        found |= dict(zip(names, clients, strict=True)) | {
            ("all", "samples"): self._found([*own.values()]) if own else None
        }
        return {"measures": recorded(self.own, found)}

    def _outputs(self, trial: Trial, vector: Tensor, m: int) -> Outputs:
        """Probabilities by a whole vector [G], and labels, of all samples on which client ``m`` is tested."""
        mine = None if self.of_clients is None else self.of_clients[m]
        x, y = zip(
            *answers(trial, vector, [self.sets[n] for n in self._own(m)] if mine is None else [mine]), strict=True
        )
        return _outputs(trial, torch.cat(x), torch.cat(y))

    def _found(self, parts: Sequence[Outputs]) -> list[Found]:
        """The user's own measures on samples in parts."""
        p, y = (np.concatenate(of) for of in zip(*parts, strict=True))
        return [measure(p, y) for measure in self.own]

    def accuracy(self, trial: Trial, vector: Tensor, m: int) -> float:
        """Accuracy of a whole vector [G] on client ``m``'s own test set, or over all samples of the sets it belongs to."""
        if self.of_clients is not None and (mine := self.of_clients[m]) is not None:
            return number(self.score(trial, vector, mine, ())[trial.model.task.main])
        own = self._own(m)
        return self.pooled(trial, self._scores(trial, vector, {n: self.sets[n] for n in own}, ()), own)

    def _own(self, m: int) -> tuple[str, ...]:
        return tuple(self.sets) if self.groups is None else (self.groups[m],)

    @staticmethod
    def pooled(trial: Trial, scores: Mapping[str, Score], own: Sequence[str]) -> float:
        """The main measure over all samples of some sets."""
        return number(trial.model.task.pooled([scores[name] for name in own])[trial.model.task.main])
