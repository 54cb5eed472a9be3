"""The models of the server and of the clients that are evaluated, and their scores on test sets and on what clients hold out."""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.core.draws import noise, schedule, seeded
from equipoise.core.oracle import Oracle
from equipoise.core.outputs import Outputs, outputs_of, overlapping
from equipoise.core.rule import State, Visit, overrides
from equipoise.core.solver import at
from equipoise.core.tally import Tally, together
from equipoise.core.task import Classification, Task
from equipoise.data.samples import Absent, Awaited, LoadError, Samples, joined, loaded
from equipoise.federation.round import submodels
from equipoise.federation.trial import Progression, Trial
from equipoise.metrics.classification import CORRECT, RATES, Found, Measure, recorded
from equipoise.metrics.failure import usefulness
from equipoise.records.record import Clients, Record, Score, Sums, Validation
from equipoise.system.errors import MEMORY
from equipoise.system.grouping import grouped
from equipoise.system.suggestions import some
from equipoise.system.tree import aligned

log = logging.getLogger(__name__)

BLOCK = 256  # clients whose models are averaged at a time
EVERY = 5  # rounds between costly evaluations: personalised models (a test pass per client), areas (a sort per pair of classes)
LAST = 5  # last rounds, over which results are averaged: always evaluated
FEW = 12  # groups that all sensitive attributes together may have to be recorded


class Judged(NamedTuple):
    """The main measure of a model, users' own measures, and sums by sensitive attribute, if there are any."""

    main: float
    own: list[Found]
    people: list[Sums] | None


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


def deployed(trial: Trial, p: Progression, m: int, *, deploys: bool = True) -> Tensor:
    """The model client ``m`` predicts with: a whole vector [G]; unless it ``deploys``, without its own training.

    Raises
    ------
    LoadError : it must train first, and its data cannot be loaded.
    """
    given, own = handed(trial, p, m), None if p.own is None else p.own[m]
    given = given if deploys else replace(given, messages=[])
    return used(trial, p.t, m, trial.data[m], given, own, _states(p, m))


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
    trial: Trial, t: int, m: int, data: Samples | Absent, given: Handed, own: Tensor | None, states: Sequence[State]
) -> Tensor:
    """The model with which a client predicts, a whole vector [G], from what the server sent; without messages it does not train for that.

    ``data`` are those of client ``m``, ``own`` [G] has its private coordinates, ``states`` its state per rule.
    """
    vector, own, states = aligned((given.vector, own, states))
    if trial.private is not None and own is not None:
        vector = torch.where(trial.private, own, vector)
    whole = None if given.units is None or trial.neurons is None else trial.neurons.held(given.units)
    held = None if whole is None else whole[: trial.model.n_params]
    vector = vector if whole is None else vector.where(whole, 0)
    if not given.messages:
        return vector
    oracle = oracle_of(trial, t, m, data)
    random = trial.model.random or data.content is None
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
        if error.kind == MEMORY and not trial.away:  # no result depends on the memory of a machine
            raise
        log.warning("%s; it is tested without its own training", error)
        return deployed(trial, p, m, deploys=False)


def oracle_of(trial: Trial, t: int, m: int, data: Samples | Absent) -> Oracle:
    """Client ``m``'s data with one epoch of batches, loaded on first use."""
    s, model = trial.settings, trial.model
    # the batches of the next round's first epoch
    sizes, drop = [data.size], model.batch_norm
    drawn = schedule(s.seed, t, [m], sizes, 1, s.batch_size, chances=trial.chances, drop_single=drop)
    solver = at(trial.solver, max(t - 1, 0), max(trial.rounds, t, 1), model)  # of the last round
    source = Awaited(data) if isinstance(data, Absent) else data
    return Oracle(trial.bound, source, solver, drawn.to(trial.setup.initial.device).of(0), model.n_params)


def costly(t: int, rounds: int) -> bool:
    """Whether the costly evaluations take place after ``t`` of ``rounds`` rounds."""
    return t % EVERY == 0 or t > rounds - LAST


def personal(trial: Trial, p: Progression) -> bool:
    """Whether clients predict with personalised models."""
    changes = any(map(trial.method.overriding, ("deploy", "submodel")))
    return trial.private is not None or p.given is not None or changes or bool(trial.method.own_decisions)


def deciding(trial: Trial, p: Progression, m: int | None) -> list[State]:
    """The states by which rules decide what is predicted: the server's, with client ``m``'s own; None for what is no client's."""
    if m is None or not trial.method.own_decisions:
        return p.server
    return [{**server, **client} for server, client in zip(p.server, _states(p, m), strict=True)]


def _states(p: Progression, m: int) -> list[State]:
    """The state of client ``m`` for each rule."""
    return [{key: x[m] for key, x in state.items()} for state in p.clients]


def answers(trial: Trial, vector: Tensor, sets: Sequence[Samples], server: Sequence[State]) -> list[Outputs]:
    """The outputs of a whole vector [G] on each data set, computed by all workers, with decisions by states, see :func:`deciding`; () for none."""
    every = outputs_of(trial.bound, vector, sets, trial.workers)
    for k in trial.method.overriding("decide") if server else ():
        decide, state = trial.method.rules[k].decide, server[k]
        every = [replace(each, predicted=decide(each.predicted, each.values, each.s, state)) for each in every]
    return every


def check_groups(groups: Sequence[str] | None, sets: Collection[str], clients: int) -> None:
    """Require that groups, if there are any, name one of the test sets for each client.

    Raises
    ------
    ValueError : they do not.
    """
    strange = sorted({*(groups or ())} - {*sets}) if sets else []
    if groups is not None and (len(groups) != clients or strange):
        given = f"unknown {', '.join(strange)}" if strange else f"{len(groups)} entries"
        expected = f"{clients} clients; test sets: {', '.join(sets) or 'none'}"
        raise ValueError(f"groups must name one test set per client ({expected}); found {given}.")


@dataclass(frozen=True)
class EvaluationSets:
    """Named evaluation sets, and for each of ``n`` clients the one it belongs to (None: all of them), or its own test set."""

    sets: Mapping[str, Samples]
    groups: tuple[str, ...] | None
    measures: tuple[str, ...] = ("accuracy",)
    of_clients: tuple[Samples | None, ...] | None = None
    n: int = 0
    own: tuple[Measure, ...] = ()  # recorded in addition to the others

    def __post_init__(self) -> None:
        if self.of_clients is not None and len(self.of_clients) != self.n:
            raise ValueError(
                f"client_tests must have a test set, or None, for each of the {self.n} clients; found {len(self.of_clients)} entries."
            )
        check_groups(self.groups, self.sets, self.n)

    def score(
        self, trial: Trial, vector: Tensor, data: Samples, called: Mapping[str, Sequence[str]], server: Sequence[State]
    ) -> dict[str, Any]:
        """All measures of the run, of a whole vector [G] on one data set, and those of sums by sensitive attribute, as these are ``called``.

        Raises
        ------
        ValueError : the data have other attributes.
        """
        [outputs] = answers(trial, vector, [data], server)
        values = _measured(self.own, [outputs]) if self.own else []
        own = {measure.name: value for measure, (value, _) in zip(self.own, values, strict=True)}
        columns = () if outputs.s is None else outputs.s.unbind(-1)
        called = called or {f"s[{k}]" if len(columns) > 1 else "s": () for k in range(len(columns))}
        if columns and len(columns) != len(called):
            names = ", ".join(called)
            raise ValueError(
                f"evaluation data: expected {len(called)} sensitive attributes s ({names}); found {len(columns)}."
            )
        of_people = {
            name: {
                values[k] if k < len(values) else str(k): outputs.take(codes == k).tally.score(self.measures)
                for k in codes[codes >= 0].unique().tolist()
            }
            for (name, values), codes in zip(called.items(), columns, strict=False)
        }
        return {**outputs.score(self.measures), **own, **({"by": of_people} if of_people else {})}

    def answered(self, trial: Trial, vector: Tensor, server: Sequence[State]) -> dict[str, Outputs]:
        """The outputs of a whole vector [G] on every set."""
        return dict(zip(self.sets, answers(trial, vector, list(self.sets.values()), server), strict=True))

    def record_global(self, trial: Trial, answered: Mapping[str, Outputs], t: int, rounds: int) -> Record:
        """What a record holds of the outputs of the global model on every set after ``t`` of ``rounds`` rounds."""
        measures = self.measured(trial.model.task, t, rounds)
        record: Record = {"groups": {name: outputs.score(measures) for name, outputs in answered.items()}}
        if costly(t, rounds):
            joined = _joined(trial)
            by = {name: people for name, outputs in answered.items() if (people := outputs.people(joined=joined))}
            record |= {"by": {"groups": by}} if by else {}
            if by and overlapping(every := [*answered.values()]):
                record["by"]["all"] = Outputs.joined(every).people(joined=joined) or []
        return record

    def accuracy(self, trial: Trial, vector: Tensor, m: int) -> float:
        """The main measure of a whole vector [G] on client ``m``'s own test set, or over all samples of the sets it belongs to."""
        return together(outputs.tally for outputs in answers(trial, vector, self._tests(m), ())).main

    def record(self, trial: Trial, p: Progression, rounds: int) -> Record:
        """Scores of the global model on every set, and the main measure of the model with which each client predicts."""
        everything = costly(p.t, rounds)
        if not trial.method.sharing.global_model:
            return self._alone(trial, p) if everything else {}
        vector = published(trial, p)
        answered = self.answered(trial, vector, p.server)
        record = self.record_global(trial, answered, p.t, rounds)
        own = self.own if everything else ()
        if self.of_clients is not None or personal(trial, p):
            if not everything:
                return record
            judged: list[Judged | None] = [
                None if parts is None else _judged(own, parts, joined=_joined(trial))
                for parts in self._by_client(trial, p, vector)
            ]
        else:
            belongs = [self._own(m) for m in range(self.n)]
            same = {names: _judged(own, [answered[name] for name in names]) for names in set(belongs)}
            judged = [same[names] for names in belongs]
        return self._with_clients(trial, record, judged, answered if own else {})

    def _by_client(self, trial: Trial, p: Progression, shared: Tensor) -> Iterator[list[Outputs] | None]:
        """The outputs of the model with which each client predicts; None for one without a test set where others have their own.

        The ``shared`` one is tested on all sets in one pass, personal ones client by client.
        """
        sets = self.of_clients
        if sets is not None and not personal(trial, p):
            every = iter(answers(trial, shared, [d for d in sets if d is not None], p.server))
            yield from (None if d is None else [next(every)] for d in sets)
            return
        for m in range(self.n):
            lacks = sets is not None and sets[m] is None
            yield None if lacks else answers(trial, deployable(trial, p, m), self._tests(m), deciding(trial, p, m))

    def _alone(self, trial: Trial, p: Progression) -> Record:
        """The main measure on every set, the mean over its clients, each with its own model; NaN of a set without clients."""
        reached: dict[str, list[float]] = {name: [] for name in self.sets}
        judged: list[Judged | None] = []
        of_own: list[Outputs] = []
        for m in range(self.n):
            names, vector, states = self._own(m), deployable(trial, p, m), deciding(trial, p, m)
            parts = answers(trial, vector, [self.sets[name] for name in names], states)
            for name, outputs in zip(names, parts, strict=True):
                reached[name].append(outputs.tally.main)
            if self.of_clients is not None:
                parts = [] if self.of_clients[m] is None else answers(trial, vector, self._tests(m), states)
                of_own += parts
            judged.append(_judged(self.own, parts, joined=_joined(trial)) if parts else None)
        means = {name: float(np.mean(values)) if values else math.nan for name, values in reached.items()}
        groups = {name: cast(Score, {trial.model.task.main: mean}) for name, mean in means.items()}
        record: Record = {"groups": groups}
        if overlapping(of_own) and (every := Outputs.joined(of_own).people(joined=_joined(trial))):
            record["by"] = {"all": every}
        return self._with_clients(trial, record, judged, {})

    def measured(self, task: Task, t: int, rounds: int) -> tuple[str, ...]:
        """What is computed after ``t`` of ``rounds`` rounds in addition to accuracy and loss: counts per class to see whether a model
        only guesses, and in the last rounds which samples are right, from which intervals are computed.
        """
        if not costly(t, rounds):
            return ()
        if not isinstance(task, Classification):
            return self.measures
        return (*self.measures, RATES, *((CORRECT,) if t > rounds - LAST else ()))

    def _with_clients(
        self, trial: Trial, record: Record, judged: Sequence[Judged | None], answered: Mapping[str, Outputs]
    ) -> Record:
        """A record with the clients, and one's own measures, with those of the global model on every set, if there is one."""
        clients = cast(Clients, {trial.model.task.main: [None if model is None else model.main for model in judged]})
        if self.of_clients is not None:
            clients["n"] = [0 if d is None else d.persons for d in self.of_clients]
        record = {**record, "clients": clients}
        people = [None if model is None else model.people for model in judged]
        if any(people):
            record["by"] = {**record.get("by", {}), "clients": people}
        if not (self.own and (answered or not trial.method.sharing.global_model)):
            return record
        values = {("group", name): _measured(self.own, [answered[name]]) if answered else None for name in self.sets}
        for m, model in enumerate(judged):
            values["client", trial.names[m] if m < len(trial.names) else str(m)] = None if model is None else model.own
        values["all", "samples"] = _measured(self.own, [*answered.values()]) if answered else None
        return {**record, "measures": recorded(self.own, values)}

    def _own(self, m: int) -> tuple[str, ...]:
        return tuple(self.sets) if self.groups is None else (self.groups[m],)

    def _tests(self, m: int) -> list[Samples]:
        """The test set of client ``m``, or the sets it belongs to."""
        mine = None if self.of_clients is None else self.of_clients[m]
        return [self.sets[name] for name in self._own(m)] if mine is None else [mine]


def _judged(own: Sequence[Measure], parts: Sequence[Outputs], *, joined: bool | None = None) -> Judged:
    """A model by its outputs on samples in parts, and unless ``joined`` is None also by their sensitive attributes, as `Outputs.people`."""
    main = together(outputs.tally for outputs in parts).main
    people = None if joined is None else Outputs.joined(parts).people(joined=joined)
    return Judged(main, _measured(own, parts) if own else [], people)


def _joined(trial: Trial) -> bool:
    """Whether records have sums by all sensitive attributes together: of few groups."""
    return math.prod(trial.setup.attributes.values()) <= FEW


def _measured(own: Sequence[Measure], parts: Sequence[Outputs]) -> list[Found]:
    """Users' own measures on samples in parts."""
    p, y, predicted = (np.concatenate(arrays) for arrays in zip(*(outputs.given for outputs in parts), strict=True))
    return [measure(p, y, predicted) for measure in own]


# on what clients hold out of their own training samples
EVERYBODY = "all"  # what the clients are called together where they belong to no groups

Held = Samples | Absent | None
Tallied = Tally | None  # None: not measured


@dataclass(frozen=True)
class HeldOut:
    """The samples that each client holds out, None where it has too few, and the group it belongs to."""

    sets: tuple[Held, ...]
    groups: tuple[str, ...] | None

    @cached_property
    def _together(self) -> tuple[list[int], Samples | None]:
        """The clients whose samples are in memory and of one kind, and all of these as one data set."""
        here = {m: d for m, d in enumerate(self.sets) if isinstance(d, Samples)}
        kinds = {m: d.content.kind for m, d in here.items() if d.content is not None}
        alike = [m for m, kind in kinds.items() if kind == next(iter(kinds.values()))]
        return alike, joined([here[m] for m in alike]) if alike else None

    def header(self, names: Sequence[str], share: float) -> list[str]:
        """A line about what is held out, and who holds out nothing."""
        lacking = [name for name, d in zip(names, self.sets, strict=True) if d is None]
        held = sum(d.size for d in self.sets if d is not None)
        people = any(d is not None and d.persons < d.size for d in self.sets)
        source = "the people in its training samples" if people else "its own training samples"
        line = f"validation: each client holds out {100 * share:g} % of {source}, {held} samples in all"
        if lacking:
            line += f"; too few to hold one out, so no validation of {some(lacking, 3)}"
        return [line]

    def record(self, trial: Trial, p: Progression, rounds: int, measures: Sequence[str] = ()) -> Record:
        """How the model with which each client predicts does on what it held out; personal models in rounds of costly evaluations.

        ``measures`` are recorded by group, as far as they follow from sums; sums by sensitive attribute in rounds of costly evaluations.
        """
        alone = personal(trial, p)
        if alone and not costly(p.t, rounds):
            return {}
        tallies, answered = self._answered(trial, p, alone=alone)
        record = pooled(trial.model.task, tallies, self.groups, measures)
        if record and costly(p.t, rounds):
            if people := Outputs.joined(answered).people(joined=False):
                record["validation"]["by"] = people
            wanted = (RATES,) if RATES in measures else (trial.model.task.main,)
            scores = [outputs.score(wanted) for outputs in answered]
            cast(dict[str, Any], record["validation"]).update(usefulness(scores))
        return record

    def _answered(self, trial: Trial, p: Progression, *, alone: bool) -> tuple[list[Tallied], list[Outputs]]:
        """The tallies of all clients, and all outputs: of one model for clients in memory in one pass, of others one after another."""
        tallies: list[Tallied] = [None] * len(self.sets)
        every: list[Outputs] = []
        shared = None if alone else (published(trial, p), p.server)
        here, data = self._together
        if shared is not None and data is not None:
            every += answers(trial, shared[0], [data], shared[1])
            sizes = [d.size for m in here if (d := self.sets[m]) is not None]
            for m, n, end in zip(here, sizes, accumulate(sizes), strict=True):
                tallies[m] = every[0].take(slice(end - n, end)).tally
        for m, d in enumerate(self.sets):
            if d is None or tallies[m] is not None:
                continue
            vector, states = shared or (deployable(trial, p, m), deciding(trial, p, m))
            name = trial.names[m] if m < len(trial.names) else f"client {m}"
            if (outputs := measured(trial, vector, d, name, states)) is not None:
                tallies[m] = outputs.tally
                every.append(outputs)
        return tallies, every


def measured(trial: Trial, vector: Tensor, data: Samples | Absent, who: str, server: Sequence[State]) -> Outputs | None:
    """The outputs of a whole vector [G] for one client's samples; None, with a warning, if they cannot be read."""
    try:
        outputs = answers(trial, vector, [loaded(data)], server)[0]
        _ = outputs.tally  # or what a user's task raises
        return outputs
    except Exception as error:  # whatever a user's data set raises concerns this client only
        if data.content is not None:
            raise
        log.warning("%s is not validated: its data cannot be read: %s: %s", who, type(error).__name__, error)
        return None


def pooled(
    task: Task, tallies_of_clients: Sequence[Tallied], groups: Sequence[str] | None, measures: Sequence[str] = ()
) -> Record:
    """The entry of a record: over all samples that are held out, by group, with more ``measures``, and by client."""
    groups = [EVERYBODY] * len(tallies_of_clients) if groups is None else groups
    members = grouped(zip(groups, tallies_of_clients, strict=True))
    by_group = {group: together(tallies) for group, several in members.items() if (tallies := [*filter(None, several)])}
    if not by_group:
        return {}
    clients = {
        task.main: [None if tally is None else tally.main for tally in tallies_of_clients],
        "loss": [None if tally is None else float(tally.mean_loss) for tally in tallies_of_clients],
    }
    groups_of = {group: tally.score(measures) for group, tally in by_group.items()}
    every = together(filter(None, tallies_of_clients)).score()
    return {"validation": cast(Validation, {**every, "groups": groups_of, "clients": clients})}
