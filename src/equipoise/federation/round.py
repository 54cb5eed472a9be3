"""One round of any method, as a function of what the run remembers."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from equipoise.core import draws, wire
from equipoise.core.alignment import aligned
from equipoise.core.client_rows import Rows
from equipoise.core.maths import put
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Briefing, Cohort, Rule, Setup, State, overrides
from equipoise.core.settings import Settings
from equipoise.core.solver import Solver
from equipoise.core.tree import flatten, span, tree_map, unflatten
from equipoise.data.samples import Absent, Samples, Stream, loaded
from equipoise.engines.job import Answer, Engine, Job
from equipoise.federation import guard
from equipoise.federation.method import Method
from equipoise.submodels.hidden_units import Neurons
from equipoise.system import threads

Record = dict[str, Any]  # what a round leaves in metrics.jsonl
RECEIPT = {  # of a state that a client keeps where it is: the round it is from (-1: none yet), and the hash of it
    "round": torch.tensor(-1),
    "sha256": torch.zeros(32, dtype=torch.uint8),
}
CLIENT_HOOKS = ("begin", "trains", "loss", "correction", "gradient", "upload", "finish")


@dataclass(frozen=True)
class Experiment:
    """Everything about a run that does not change: see :class:`equipoise.Federation` for the meaning of each.

    ``oracle`` answers questions about the server's validation data, ``contribution`` [N] is what each client reaches
    alone, ``neurons`` are the network's hidden units; each is None where no rule needs it. ``workers`` is how many cores
    evaluation may use. Clients that are ``away`` keep their state and their private coordinates where they are.
    """

    model: Model
    bound: Bound
    method: Method
    solver: Solver
    engine: Engine
    setup: Setup
    data: tuple[Samples | Stream | Absent, ...]
    names: tuple[str, ...]
    private: Tensor | None
    settings: Settings
    chances: tuple[int, ...]
    oracle: Oracle | None = None
    contribution: Tensor | None = None
    neurons: Neurons | None = None
    workers: int = 1
    away: bool = False

    @cached_property
    def labels(self) -> str:
        """Hash of the labels of all clients, as far as they are known without reading samples."""
        total = hashlib.sha256()
        for d in self.data:
            if not isinstance(d, Absent) and d.known is not None:
                total.update(d.known[1].cpu().numpy().tobytes())
        return total.hexdigest()


@dataclass(frozen=True)
class Progression:
    """All that a run remembers after ``t`` rounds: a tree of tensors, which is the checkpoint.

    ``vector`` [G] is the global model; ``clients`` and ``server`` hold one dictionary per rule, client values [N, ...];
    of clients that are away there is one dictionary of receipts instead.
    ``given`` [N, G] is what each client was handed, if a rule rewards them differently, and ``sent`` [N] the bytes that
    took; ``own`` [N, G] is what each trained, if a rule keeps coordinates private. What there is of every client may be
    :class:`equipoise.core.client_rows.Rows`, see :meth:`equipoise.Setup.per_client`.
    """

    t: int
    vector: Tensor
    clients: list[State]
    server: list[State]
    given: Tensor | None = None
    own: Tensor | None = None
    sent: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("vector", "clients", "server", "given", "own"):
            object.__setattr__(self, name, aligned(getattr(self, name)))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its path."""
        tree = {
            "vector": self.vector,
            "clients": self.clients,
            "server": self.server,
            "given": self.given,
            "own": self.own,
            "sent": self.sent,
        }
        return flatten({name: part for name, part in tree.items() if part is not None})

    def restored(self, tensors: Mapping[str, Tensor | Rows], t: int) -> Progression:
        """The same, with the values of a checkpoint; ``KeyError`` names a missing one."""
        leaves = {name: x.to(self.vector.device) for name, x in tensors.items()}
        tree = {"vector": self.vector, "clients": self.clients, "server": self.server}
        here = {**tree, "own": self.own} if self.own is not None else tree
        back = tree_map(_as_before, here, unflatten(here, leaves))
        given, sent = (cast("Tensor | None", leaves.get(name)) for name in ("given", "sent"))
        return Progression(t, back["vector"], back["clients"], back["server"], given, back.get("own"), sent)


def _as_before(old: Tensor | Rows, new: Tensor | Rows) -> Tensor | Rows:
    """The values of a checkpoint, in memory or on disk as they are in this federation."""
    if isinstance(new, Rows):
        return new if isinstance(old, Rows) else new[:].to(old.device)
    return old.index_copy(0, torch.arange(len(old)), new.to(old.dtype)) if isinstance(old, Rows) else new


def begin(e: Experiment) -> Progression:
    """What is remembered before the first round."""
    rules = e.method.rules
    kept = [{**RECEIPT}] if e.away else [rule.client_state(e.setup) for rule in rules]
    clients = tree_map(e.setup.per_client, kept)
    server = [rule.server_state(e.setup) for rule in rules]
    own = None if e.private is None or e.away else e.setup.per_client(e.setup.initial)
    return Progression(0, e.setup.initial.clone(), clients, server, None, own)


def one_round(e: Experiment, now: Progression, rounds: int) -> tuple[Progression, Record]:
    """Train the clients of round ``now.t`` (of ``rounds``) once, and let the server answer.

    Returns
    -------
    What is remembered afterwards, and the record of the round: who took part with which weight, who was quarantined.

    Raises
    ------
    QuorumError : too few clients answered well; ``now`` is still whole.
    """
    with threads.allow(e.workers):
        return _round(e, now, rounds)


def _round(e: Experiment, now: Progression, rounds: int) -> tuple[Progression, Record]:
    asked = draws.participants(e.settings.seed, now.t, len(e.data), e.settings.participation).to(now.vector.device)
    received = now.vector.expand(len(asked), -1) if now.given is None else now.given[asked]
    if e.private is not None and now.own is not None:
        received = torch.where(e.private, now.own[asked], received)
    before, now = now, replace(now, server=_prepared(e, now, asked, received, rounds))
    units = submodels(e, now.server, asked.tolist())
    held = None if units is None or e.neurons is None else e.neurons.held(units)
    if held is not None:
        received = received.where(held, 0)
    data, lost = _loaded(e, asked.tolist())
    job = _job(e, now, asked, received, rounds, units, held, data)
    with closing(_visits(e, job, lost)) as visits:  # at once, whoever holds on to an error's traceback
        answers = _collect(e, now, asked, visits)
    good, ids = answers.rows, asked[answers.rows]
    whole = len(good) == len(asked)
    received, held = (received, held) if whole else (received[good], None if held is None else held[good])
    known = _known(e, now, received)
    own = None
    if now.own is not None:
        trained = answers.trained if held is None else torch.where(held, answers.trained, now.own[ids])
        own = now.own.index_copy(0, ids, trained)
    updates = answers.trained.sub_(received)
    for out in (e.private, None if held is None else ~held):
        updates = updates if out is None else updates.masked_fill(out, 0)
    reports = tree_map(partial(public, e), answers.reports)
    traffic = _traffic(e, now, job, answers, updates, ids)
    P = e.model.n_params
    sizes = e.setup.sizes[ids]
    cohort = Cohort(
        t=now.t,
        rounds=rounds,
        n_clients=len(e.data),
        theta=now.vector[:P],
        updates=updates[:, :P],
        ids=ids,
        sizes=sizes,
        weights=sizes / sizes.sum(),
        layout=e.model.layout,
        buffer_updates=updates[:, P:],
        received=known,
        kept=known,
        held=held,
        seed=e.settings.seed,
        oracle=e.oracle,
        contribution=e.contribution,
    )
    server = []
    with looking(e, now.t):
        for rule, state, report in zip(e.method.rules, now.server, reports, strict=True):
            after, cohort = rule.aggregate(state, replace(cohort, reports=report))
            guard.weights(cohort.weights, rule)
            server.append(after)
    if now.given is not None:  # who was absent has old statistics: average what they became, not how they changed
        stale = (received - now.vector)[:, P:]
        for hidden in (e.private, None if held is None else ~held):
            stale = stale if hidden is None else stale.masked_fill(hidden[..., P:], 0)
        cohort = replace(cohort, buffer_updates=cohort.buffer_updates + stale)
    vector = now.vector + torch.cat([cohort.step(), cohort.buffer_step()])
    guard.step(vector, str(e.method))
    server, given, sent = _reward(e, now, replace(cohort, theta=vector[:P]), vector, server)
    following = Progression(
        now.t + 1,
        vector,
        tree_map(lambda old, new: put(old, ids, new), now.clients, answers.states),
        server,
        given,
        own,
        sent,
    )
    return following, {**_record(cohort, answers.bad, e.names), **traffic, **_who_holds_what(e, before, now)}


def _prepared(e: Experiment, now: Progression, asked: Tensor, received: Tensor, rounds: int) -> list[State]:
    """The server's state when it begins the round."""
    if not e.method.overriding("prepare"):
        return now.server
    briefing = Briefing(
        t=now.t,
        rounds=rounds,
        n_params=e.model.n_params,
        vector=now.vector,
        received=_known(e, now, received),
        ids=asked,
        sizes=e.setup.sizes,
        seed=e.settings.seed,
        oracle=e.oracle,
        contribution=e.contribution,
        neurons=e.neurons,
    )
    with looking(e, now.t):
        return [rule.prepare(state, briefing) for rule, state in zip(e.method.rules, now.server, strict=True)]


def _known(e: Experiment, now: Progression, received: Tensor) -> Tensor:
    """What clients received [M, G], as far as the server knows: of private coordinates it has its own values."""
    return received if e.private is None else torch.where(e.private, now.vector, received)


def looking(e: Experiment, t: int) -> AbstractContextManager[None]:
    """Let the server look at its validation data, which may draw random numbers, in round ``t``."""
    random = e.oracle is not None and isinstance(e.oracle.source, Stream)
    return draws.seeded(draws.noise(e.settings.seed, t, len(e.data)) if random else None)


def submodels(e: Experiment, server: Sequence[State], ids: Sequence[int]) -> Tensor | None:
    """The hidden units [M, K] (boolean) that some clients get; None where all get the whole network."""
    if e.neurons is None:
        return None
    for rule, state in zip(e.method.rules, server, strict=True):
        if overrides(rule, "submodel"):
            everything = torch.ones(e.neurons.n, dtype=torch.bool, device=e.setup.initial.device)
            told = [rule.submodel(state, m) for m in ids]
            return torch.stack([everything if units is None else units for units in told])
    return None


def _who_holds_what(e: Experiment, before: Progression, now: Progression) -> Record:
    """How many hidden units of each group every client holds; where that changed, which ones."""
    everybody = range(len(e.data))
    units = submodels(e, now.server, everybody)
    if units is None or e.neurons is None:
        return {}
    counts = torch.stack([part.sum(1) for part in units.split(e.neurons.sizes, 1)], 1)
    found: Record = {"held": counts.tolist()}
    last = submodels(e, before.server, everybody)
    if now.t == 0 or last is None or not torch.equal(units, last):
        found["bits"] = [np.packbits(row).tobytes().hex() for row in units.cpu().numpy()]
    return {"units": found}


def _hidden(e: Experiment, x: Tensor) -> Tensor | None:
    """The private coordinates of clients' vectors ``x`` [M, ..., P] or [M, ..., G]; None if it holds none."""
    if e.private is None or x.dim() < 2 or x.shape[-1] not in (e.model.n_params, e.model.size):
        return None
    return e.private[: x.shape[-1]]


def public(e: Experiment, report: Tensor) -> Tensor:
    """A report without the coordinates that must not leave the client."""
    hidden = _hidden(e, report)
    return report if hidden is None else report.masked_fill(hidden, 0)


def _bytes(e: Experiment, told: list[State]) -> int:
    """Bytes of one client's messages or reports, less the private coordinates of vectors."""
    total = 0
    for x in flatten(told).values():
        hidden = _hidden(e, x)
        shown = 1.0 if hidden is None else 1 - float(hidden.double().mean())
        total += round(x[:1].nbytes * shown)
    return total


def _traffic(e: Experiment, now: Progression, job: Job, answers: _Answers, updates: Tensor, ids: Tensor) -> Record:
    """Bytes that each client that answered received and sent: its model, messages and reports, less what is private."""
    item, rows = updates.element_size(), range(len(ids))
    n = e.model.size - (0 if e.private is None else int(e.private.sum()))
    down = up = [n * item for _ in rows]
    if now.sent is not None:
        down = now.sent[ids].tolist()
    if job.held is not None and job.units is not None:
        held = job.held[answers.rows] if e.private is None else job.held[answers.rows] & ~e.private
        entries = held.sum(1).tolist()
        down = [wire.submodel_size(k, job.units.shape[1], item) for k in entries]
        up = [k * item for k in entries]
    if e.method.overriding("upload"):
        up = [wire.change_size(int(u.count_nonzero()), n, item) for u in updates]
    more_down, more_up = _bytes(e, job.messages), _bytes(e, answers.reports)
    full = e.model.size * item
    return {"bytes": {"down": [b + more_down for b in down], "up": [b + more_up for b in up], "full": full}}


def _job(
    e: Experiment,
    now: Progression,
    asked: Tensor,
    received: Tensor,
    rounds: int,
    units: Tensor | None,
    held: Tensor | None,
    data: Sequence[Samples | Stream],
) -> Job:
    ids = asked.tolist()
    return Job(
        model=e.model,
        rules=e.method.rules,
        solver=e.solver,
        settings=e.settings,
        t=now.t,
        rounds=rounds,
        chances=e.chances,
        ids=tuple(ids),
        received=received,
        states=tree_map(lambda leaf: leaf[span(ids)], now.clients),
        messages=[_messages(rule, state, ids) for rule, state in zip(e.method.rules, now.server, strict=True)],
        data=data,
        private=e.private,
        units=units,
        held=held,
        neurons=e.neurons if plain(e) else None,
    )


def plain(e: Experiment) -> bool:
    """Whether clients do nothing but train, so that a submodel may be cut out and trained in place of the masked whole."""
    return e.private is None and not any(map(e.method.overriding, CLIENT_HOOKS))


def _loaded(e: Experiment, ids: Sequence[int]) -> tuple[list[Samples | Stream], list[Answer]]:
    """The clients' data; and for those who have none, as loading it failed, an answer that says why."""
    data, lost = [], []
    for row, m in enumerate(ids):
        d = e.data[m]
        try:
            data.append(loaded(d))
        except Exception as error:  # whatever a user's function raises concerns this client only
            data.append(cast(Samples, d))  # holds the place, and is never given to an engine
            lost.append(Answer.failed(row, error))
    return data, lost


def _visits(e: Experiment, job: Job, lost: Sequence[Answer]) -> Generator[Answer, None, None]:
    """The answers of all clients of a job, of which some are lost."""
    if not lost:
        yield from e.engine(job)
        return
    yield from lost
    gone = {row for answer in lost for row in answer.rows}
    if rest := [row for row in range(len(job.ids)) if row not in gone]:
        for answer in e.engine(job.part(rest)):
            yield answer.within(rest)


def _messages(rule: Rule, state: State, ids: Sequence[int]) -> State:
    """What each client is told, [M, ...]; a view where all are told the same."""
    if not overrides(rule, "message"):
        return {}
    told = [rule.message(state, m) for m in ids]
    first = told[0]
    if all(other[k] is first[k] for other in told[1:] for k in first):
        return {k: v.expand(len(ids), *v.shape) for k, v in first.items()}
    stacked: State = tree_map(lambda *leaves: torch.stack(leaves), *told)
    return stacked


@dataclass(frozen=True)
class _Answers:
    """The good answers in the order of the clients: ``rows`` [M] of the clients asked, and what they sent [M, ...]."""

    rows: Tensor
    trained: Tensor
    reports: list[State]
    states: list[State]
    bad: list[guard.Quarantined]


def _collect(e: Experiment, now: Progression, asked: Tensor, answers: Iterator[Answer]) -> _Answers:
    """Check every answer as it comes, in whatever order, and keep the good ones."""
    ids = asked.tolist()
    trained = torch.empty(len(ids), len(now.vector), dtype=now.vector.dtype, device=now.vector.device)
    blank = tree_map(lambda leaf: leaf[0], now.clients)
    sent: list[tuple[list[int], list[State], list[State]]] = []
    bad: list[guard.Quarantined] = []
    cause: Exception | None = None
    for answer in answers:
        cause = cause or answer.cause
        problems = guard.inspect(answer, now.vector, blank)
        bad += [guard.Quarantined(ids[row], reason) for row, reason in problems.items()]
        good = [k for k, row in enumerate(answer.rows) if row not in problems]
        if not good:
            continue
        some = slice(None) if len(good) == len(answer.rows) else good  # a slice copies nothing
        trained[span([answer.rows[k] for k in good])] = answer.trained[some]
        reports, states = tree_map(lambda leaf, some=some: leaf[some], (answer.reports, answer.states))
        sent.append(([answer.rows[k] for k in good], reports, states))
    sent, odd = _alike(sent)
    bad += [guard.Quarantined(ids[row], "its report has another shape than those of other clients") for row in odd]
    rows = [row for some, _, _ in sent for row in some]
    silent = set(range(len(ids))) - set(rows) - {ids.index(q.client) for q in bad}
    bad += [guard.Quarantined(ids[row], "the client did not answer") for row in sorted(silent)]
    guard.quorum(len(rows), len(ids), e.settings.quorum, [(e.names[q.client], q.reason) for q in sorted(bad)], cause)

    at = torch.tensor(rows, device=asked.device)
    order, at = span(at.argsort().tolist()), at.sort().values
    reports, states = tree_map(lambda *leaves: torch.cat(leaves)[order], *(trees for _, *trees in sent))
    return _Answers(at, trained if len(rows) == len(ids) else trained[at], reports, states, sorted(bad))


def _alike(
    sent: list[tuple[list[int], list[State], list[State]]],
) -> tuple[list[tuple[list[int], list[State], list[State]]], list[int]]:
    """What most clients sent, by the names, shapes and types in their reports; and the rows of the others."""
    kinds = [
        sorted((name, tuple(x.shape[1:]), str(x.dtype)) for name, x in flatten(reports).items())
        for _, reports, _ in sent
    ]
    if all(kind == kinds[0] for kind in kinds):
        return sent, []
    count = [sum(len(rows) for (rows, _, _), other in zip(sent, kinds, strict=True) if other == kind) for kind in kinds]
    most = min(range(len(sent)), key=lambda k: (-count[k], min(sent[k][0])))
    alike = [part for part, kind in zip(sent, kinds, strict=True) if kind == kinds[most]]
    return alike, [row for (rows, _, _), kind in zip(sent, kinds, strict=True) if kind != kinds[most] for row in rows]


def _reward(
    e: Experiment, now: Progression, cohort: Cohort, vector: Tensor, server: list[State]
) -> tuple[list[State], Tensor | None, Tensor | None]:
    """The server's state after the rewards; what each client holds, if that differs [N, G], and its bytes [N]."""
    shared = given = vector.expand(len(cohort.ids), -1)
    after = []
    for rule, state in zip(e.method.rules, server, strict=True):
        if overrides(rule, "reward"):
            handed = given.clone()
            state, kept = rule.reward(state, cohort, handed)
            given = given if kept is handed else kept
        after.append(state)
    if given is shared and now.given is None:
        return after, None, None
    N, item = len(e.data), vector.element_size()
    changed = given != cohort.kept if e.private is None else (given != cohort.kept) & ~e.private
    n = e.model.size - (0 if e.private is None else int(e.private.sum()))
    sizes = [wire.change_size(k, n, item) for k in changed.sum(1).tolist()]
    new = torch.tensor(sizes, dtype=torch.int64, device=vector.device)
    first = torch.full((N,), n * item, dtype=torch.int64, device=vector.device)  # who was never rewarded has the model
    sent = (first if now.sent is None else now.sent).index_copy(0, cohort.ids, new)
    held = e.setup.per_client(now.vector) if now.given is None else now.given  # who is absent keeps what it has
    return after, held.index_copy(0, cohort.ids, given), sent


def _record(cohort: Cohort, bad: Sequence[guard.Quarantined], names: Sequence[str]) -> Record:
    record: Record = {"round": cohort.t, "ids": cohort.ids.tolist(), "weights": cohort.counted.tolist(), **cohort.notes}
    if bad:
        record["quarantined"] = [{"client": q.client, "name": names[q.client], "reason": q.reason} for q in bad]
    return record
