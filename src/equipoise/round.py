"""One round of any method, as a function of what the run remembers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from equipoise import draws, guard
from equipoise.data.samples import Samples, Stream
from equipoise.engines.job import Answer, Engine, Job
from equipoise.method import Method
from equipoise.model import Model
from equipoise.rule import Cohort, Rule, Setup, State, overrides
from equipoise.solver import Solver
from equipoise.tree import flatten, span, tree_map, unflatten

Record = dict[str, Any]  # what a round leaves in metrics.jsonl


@dataclass(frozen=True)
class Experiment:
    """Everything about a run that does not change: see :class:`equipoise.Federation` for the meaning of each."""

    model: Model
    method: Method
    solver: Solver
    engine: Engine
    setup: Setup
    data: tuple[Samples | Stream, ...]
    names: tuple[str, ...]
    private: Tensor | None
    epochs: int
    batch_size: int
    participation: float
    seed: int
    crop: int
    quorum: float


@dataclass(frozen=True)
class Progression:
    """All that a run remembers after ``t`` rounds: a tree of tensors, which is the checkpoint.

    ``vector`` [G] is the global model; ``clients`` and ``server`` hold one dictionary per rule, client values [N, ...].
    ``given`` [N, G] is what each client was handed, if a rule rewards them differently; ``own`` [N, G] is what each
    trained, if a rule keeps coordinates private.
    """

    t: int
    vector: Tensor
    clients: list[State]
    server: list[State]
    given: Tensor | None = None
    own: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its path."""
        tree = {
            "vector": self.vector,
            "clients": self.clients,
            "server": self.server,
            "given": self.given,
            "own": self.own,
        }
        return flatten({name: part for name, part in tree.items() if part is not None})

    def restored(self, tensors: Mapping[str, Tensor], t: int) -> Progression:
        """The same, with the values of a checkpoint; ``KeyError`` names a missing one."""
        leaves = {name: x.to(self.vector.device) for name, x in tensors.items()}
        tree = {"vector": self.vector, "clients": self.clients, "server": self.server}
        back = unflatten(tree, leaves)
        return Progression(t, back["vector"], back["clients"], back["server"], leaves.get("given"), leaves.get("own"))


def begin(e: Experiment) -> Progression:
    """What is remembered before the first round."""
    N, rules = len(e.data), e.method.rules
    clients = tree_map(lambda leaf: leaf.expand(N, *leaf.shape).clone(), [rule.client_state(e.setup) for rule in rules])
    server = [rule.server_state(e.setup) for rule in rules]
    own = None if e.private is None else e.setup.initial.expand(N, -1).clone()
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
    asked = draws.participants(e.seed, now.t, len(e.data), e.participation).to(now.vector.device)
    received = now.vector.expand(len(asked), -1) if now.given is None else now.given[asked]
    if e.private is not None and now.own is not None:
        received = torch.where(e.private, now.own[asked], received)
    job = _job(e, now, asked, received, rounds)
    answers = _collect(e, now, asked, e.engine(job))
    reports = (
        answers.reports
        if e.private is None
        else tree_map(partial(_public, e.private, e.model.n_params), answers.reports)
    )

    ids = asked[answers.rows]
    own = None if now.own is None else now.own.index_copy(0, ids, answers.trained)
    traffic = _traffic(e, job, answers)
    updates = answers.trained.sub_(received if len(ids) == len(asked) else received[answers.rows])
    P = e.model.n_params
    sizes = e.setup.sizes[ids]
    if e.private is not None:
        updates = updates.masked_fill(e.private, 0)
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
    )
    server = []
    for rule, state, report in zip(e.method.rules, now.server, reports, strict=True):
        after, cohort = rule.aggregate(state, replace(cohort, reports=report))
        guard.weights(cohort.weights, rule)
        server.append(after)
    vector = now.vector + torch.cat([cohort.step(), cohort.buffer_step()])
    guard.step(vector, str(e.method))
    server, given = _reward(e, now, replace(cohort, theta=vector[:P]), vector, server)
    following = Progression(
        now.t + 1,
        vector,
        tree_map(lambda old, new: old.index_copy(0, ids, new), now.clients, answers.states),
        server,
        given,
        own,
    )
    return following, {**_record(cohort, answers.bad, e.names), **traffic}


def _public(private: Tensor, n_params: int, report: Tensor) -> Tensor:
    """A report without the coordinates that must not leave the client."""
    n = report.shape[-1]
    return report.masked_fill(private[:n], 0) if report.dim() > 1 and n in (n_params, len(private)) else report


def _traffic(e: Experiment, job: Job, answers: _Answers) -> Record:
    """Bytes that each client that answered received and sent: its model, messages and reports, less what is private."""
    n = len(answers.rows)
    down, up = (
        sum(_bytes(e, x) for x in [job.received, *flatten(told).values()]) for told in (job.messages, answers.reports)
    )
    return {"bytes": {"down": [down] * n, "up": [up] * n}}


def _bytes(e: Experiment, x: Tensor) -> int:
    """Bytes of one client's row of ``x`` [M, ...], less the private coordinates of a vector [P] or [G]."""
    hidden = 0
    if e.private is not None and x.dim() == 2 and x.shape[1] in (e.model.n_params, e.model.size):
        hidden = int(e.private[: x.shape[1]].sum())
    return int(x[:1].nbytes) - hidden * x.element_size()


def _job(e: Experiment, now: Progression, asked: Tensor, received: Tensor, rounds: int) -> Job:
    ids = asked.tolist()
    return Job(
        model=e.model,
        rules=e.method.rules,
        solver=e.solver,
        seed=e.seed,
        t=now.t,
        rounds=rounds,
        epochs=e.epochs,
        batch_size=e.batch_size,
        crop=e.crop,
        ids=tuple(ids),
        received=received,
        states=tree_map(lambda leaf: leaf[span(ids)], now.clients),
        messages=[_messages(rule, state, ids) for rule, state in zip(e.method.rules, now.server, strict=True)],
        data=[e.data[k] for k in ids],
        private=e.private,
    )


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
    rows: list[int] = []
    sent: list[tuple[list[State], list[State]]] = []
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
        sent.append(tree_map(lambda leaf, some=some: leaf[some], (answer.reports, answer.states)))
        rows += [answer.rows[k] for k in good]
    silent = set(range(len(ids))) - set(rows) - {ids.index(q.client) for q in bad}
    bad += [guard.Quarantined(ids[row], "the client did not answer") for row in sorted(silent)]
    guard.quorum(len(rows), len(ids), e.quorum, [(e.names[q.client], q.reason) for q in bad], cause)

    at = torch.tensor(rows, device=asked.device)
    order, at = span(at.argsort().tolist()), at.sort().values
    reports, states = tree_map(lambda *leaves: torch.cat(leaves)[order], *sent)
    return _Answers(at, trained if len(rows) == len(ids) else trained[at], reports, states, sorted(bad))


def _reward(
    e: Experiment, now: Progression, cohort: Cohort, vector: Tensor, server: list[State]
) -> tuple[list[State], Tensor | None]:
    """The server's state after the rewards, and what each client holds, if that differs [N, G]."""
    shared = given = vector.expand(len(cohort.ids), -1)
    after = []
    for rule, state in zip(e.method.rules, server, strict=True):
        if overrides(rule, "reward"):
            handed = given.clone()
            state, kept = rule.reward(state, cohort, handed)
            given = given if kept is handed else kept
        after.append(state)
    if given is shared and now.given is None:
        return after, None
    held = now.vector.expand(len(e.data), -1) if now.given is None else now.given  # who is absent keeps what it has
    return after, held.index_copy(0, cohort.ids, given)


def _record(cohort: Cohort, bad: Sequence[guard.Quarantined], names: Sequence[str]) -> Record:
    record: Record = {"round": cohort.t, "ids": cohort.ids.tolist(), "weights": cohort.counted.tolist(), **cohort.notes}
    if bad:
        record["quarantined"] = [{"client": q.client, "name": names[q.client], "reason": q.reason} for q in bad]
    return record
