"""One round of any method, as a function of what the run remembers."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from equipoise.core import client_rows, draws, wire
from equipoise.core.maths import combine, put
from equipoise.core.rates import LayerRates
from equipoise.core.rule import Briefing, Cohort, Rule, State, overrides, told
from equipoise.core.settings import Settings
from equipoise.core.simulation import FLIPS, LIES
from equipoise.core.solver import at
from equipoise.data.samples import Absent, Samples, loaded
from equipoise.engines.job import Answer, Job
from equipoise.federation import diagnosis, guard
from equipoise.federation.method import Method
from equipoise.federation.trial import Progression, Trial, cohort_of
from equipoise.records.record import Bytes, Record
from equipoise.system import threads
from equipoise.system.places import private
from equipoise.system.text import key_of
from equipoise.system.tree import flatten, span, tree_map

_Sent = tuple[list[int], list[State], list[State]]  # rows of clients, what they report to each rule, and their states
MATRIX = 64 << 20  # bytes of updates that are kept apart, where their mean is all that counts
APART = ("upload", "finish", "reward")  # hooks that need each client's update or report
CLIENT_HOOKS = ("begin", "trains", "loss", "correction", "gradient", "upload", "finish")


@dataclass(frozen=True)
class Played:
    """A round whose clients have answered: what was remembered ``before``, with what the server prepared, and the updates that the rules combine.

    ``cohort`` are the clients that count, ``reports`` what they tell each rule [M, ...].
    """

    before: Progression
    cohort: Cohort
    reports: list[State]


def one_round(
    trial: Trial, now: Progression, rounds: int, seen: Callable[[Played], object] | None = None
) -> tuple[Progression, Record]:
    """Train the clients of round ``now.t`` (of ``rounds``) once, and let the server answer. ``seen`` is called with their answers.

    Returns
    -------
    What is remembered afterwards, and the record of the round: who took part with which weight, who was quarantined.

    Raises
    ------
    QuorumError : too few clients answered well; ``now`` is still whole.
    """
    with threads.allow(trial.workers):
        return _round(trial, now, rounds, seen)


def _round(
    trial: Trial, before: Progression, rounds: int, seen: Callable[[Played], object] | None
) -> tuple[Progression, Record]:
    """The moments of a round in their order, as the page on architecture lists them."""
    asked, missing = _who(trial, before.t)
    if not len(asked):
        nobody: Bytes = {"down": [], "up": [], "full": before.vector.nbytes}
        record: Record = {"round": before.t, "ids": [], "weights": [], **missing, "bytes": nobody}
        return replace(before, t=before.t + 1), {**record, **_who_holds_what(trial, before, before)}
    asked = asked.to(before.vector.device)
    now, job, lost = _hand_out(trial, before, asked, rounds, apart=seen is not None)
    with closing(_visits(trial, job, lost)) as visits:  # at once, whoever holds on to an error's traceback
        answers = _collect(trial, now, asked, job, visits)
    ids = asked[answers.rows]
    received, held = _received(job, answers)
    own = _own(now, ids, answers.trained, held)
    if answers.mean is not None:
        updates = answers.mean.expand(len(ids), -1)
    else:
        updates = _shown(trial, answers.trained.sub_(received), held)  # take the memory of the trained models
    traffic = _traffic(trial, now, job, answers, updates, ids)
    cohort = cohort_of(trial, now, rounds, ids, _known(trial, now, received), updates, held)
    played = Played(now, cohort, tree_map(partial(public, trial), answers.reports))
    if seen is not None:
        seen(played)
    server, cohort = combined(trial, played)
    vector = stepped(trial, now, cohort)
    cohort = replace(cohort, theta=vector[: trial.model.n_params])
    server, given, sent = rewarded(trial, now, cohort, vector, server)
    states = tree_map(lambda old, new: put(old, ids, new), now.clients, answers.states)
    following = Progression(now.t + 1, vector, states, server, given, own, sent, answers.norms)
    return following, {
        **_record(trial, cohort, answers),
        **missing,
        **_rate(trial, job),
        **traffic,
        **_who_holds_what(trial, before, now),
    }


def _who(trial: Trial, t: int) -> tuple[Tensor, Record]:
    """The clients that train in a round, and a record of those whom a simulation lets be away, late or fail.

    Of these the server hears nothing, as of clients that were not selected: the quorum counts the others.
    """
    s = trial.settings
    if trial.presence is None:
        return draws.participants(s.seed, t, len(trial.data), s.participation), {}
    return trial.presence.round(t, s.participation)


def prepared(trial: Trial, now: Progression, asked: Tensor, received: Tensor, rounds: int) -> Progression:
    """The same, with the server's state as it is when the round begins."""
    if not trial.method.overriding("prepare"):
        return now
    briefing = Briefing(
        t=now.t,
        rounds=rounds,
        n_params=trial.model.n_params,
        vector=now.vector,
        received=_known(trial, now, received),
        ids=asked,
        sizes=trial.setup.sizes,
        seed=trial.settings.seed,
        oracle=trial.oracle,
        contribution=trial.contribution,
        neurons=trial.neurons,
        solver=at(trial.solver, now.t, rounds, trial.model),
    )
    with looking(trial, now.t):
        server = [rule.prepare(state, briefing) for rule, state in zip(trial.method.rules, now.server, strict=True)]
    return replace(now, server=server)


def _hand_out(
    trial: Trial, before: Progression, asked: Tensor, rounds: int, *, apart: bool
) -> tuple[Progression, Job, list[Answer]]:
    """The server's preparation; what the clients are to do; and answers for those whose data cannot be loaded.

    Updates are kept ``apart``, even if their mean is all that the rules need.
    """
    received = before.vector.expand(len(asked), -1) if before.given is None else before.given[asked]
    if trial.private is not None and before.own is not None:
        received = torch.where(trial.private, before.own[asked], received)
    now = prepared(trial, before, asked, received, rounds)
    ids = asked.tolist()
    units = submodels(trial, now.server, ids)
    held = None if units is None or trial.neurons is None else trial.neurons.held(units)
    data, lost = _loaded(poisoned(trial, ids), load=not getattr(trial.engine, "loads", False))
    job = replace(
        blank_job(trial, data),
        t=now.t,
        rounds=rounds,
        ids=tuple(ids),
        received=received if held is None else received.where(held, 0),
        states=tree_map(lambda leaf: leaf[span(ids)], now.clients),
        messages=[_messages(rule, state, ids) for rule, state in zip(trial.method.rules, now.server, strict=True)],
        units=units,
        held=held,
        added=not apart and only_mean(trial, len(ids)),
    )
    return now, job, lost


def poisoned(trial: Trial, ids: Sequence[int] | None = None) -> list[Samples | Absent]:
    """The data of some clients, or of all, as those use them that attack by their labels; perhaps not loaded."""
    attackers = trial.attackers
    flipping = frozenset(attackers.clients) if attackers is not None and attackers.attack in FLIPS else frozenset()
    chosen = range(len(trial.data)) if ids is None else ids
    return [trial.data[m].flipped(trial.setup.n_classes) if m in flipping else trial.data[m] for m in chosen]


def blank_job(trial: Trial, data: Sequence[Samples | Absent]) -> Job:
    """What all rounds have in common: the job of clients with ``data``, perhaps not loaded, without what they receive."""
    return Job(
        model=trial.model,
        rules=trial.method.rules,
        solver=trial.solver,
        settings=trial.settings,
        t=0,
        rounds=0,
        chances=trial.chances,
        ids=tuple(range(len(data))),
        received=trial.setup.initial,
        states=[],
        messages=[],
        data=cast(list[Samples], data),
        private=trial.private,
        neurons=trial.neurons if plain(trial) else None,
    )


def _received(job: Job, answers: _Answers) -> tuple[Tensor, Tensor | None]:
    """What those who answered well had received [M, G], and which of its coordinates are their submodels'."""
    if len(answers.rows) == len(job.ids):
        return job.received, job.held
    return job.received[answers.rows], None if job.held is None else job.held[answers.rows]


def _own(now: Progression, ids: Tensor, trained: Tensor, held: Tensor | None) -> Tensor | None:
    """What each client trained [N, G], where rules keep coordinates private; outside a submodel it stays."""
    if now.own is None:
        return None
    return now.own.index_copy(0, ids, trained if held is None else torch.where(held, trained, now.own[ids]))


def _shown(trial: Trial, change: Tensor, held: Tensor | None, first: int = 0) -> Tensor:
    """A change of coordinates ``first``... of the model, zero where they are private or outside a client's submodel."""
    for hidden in (trial.private, None if held is None else ~held):
        change = change if hidden is None else change.masked_fill(hidden[..., first:], 0)
    return change


def combined(trial: Trial, played: Played) -> tuple[list[State], Cohort]:
    """Let the rules say, one after the other, how the updates are combined; the server's state, and the cohort, after them."""
    server, now, cohort = [], played.before, played.cohort
    with looking(trial, now.t):
        for rule, state, report in zip(trial.method.rules, now.server, played.reports, strict=True):
            after, cohort = rule.aggregate(state, replace(cohort, reports=report))
            guard.weights(cohort.weights, rule)
            guard.state(state, after, rule)
            server.append(after)
    return server, _with_present_buffers(trial, now, cohort)


def _with_present_buffers(trial: Trial, now: Progression, cohort: Cohort) -> Cohort:
    """Who was absent has old statistics: average what they became, not how they changed."""
    if now.given is None:
        return cohort
    P = trial.model.n_params
    stale = _shown(trial, (cohort.received - now.vector)[:, P:], cohort.held, P)
    return replace(cohort, buffer_updates=cohort.buffer_updates + stale)


def stepped(trial: Trial, now: Progression, cohort: Cohort) -> Tensor:
    """The new global model [G]."""
    vector = now.vector + torch.cat([cohort.step(), cohort.buffer_step()])
    at = trial.model.variances
    vector[at] = vector[at].clamp(min=0)  # a mean of variances, except for rounding and for what a masked sum hides
    guard.step(vector, str(trial.method))
    return vector


def _known(trial: Trial, now: Progression, received: Tensor) -> Tensor:
    """What clients received [M, G], as far as the server knows: of private coordinates it has its own values."""
    return received if trial.private is None else torch.where(trial.private, now.vector, received)


def looking(trial: Trial, t: int) -> AbstractContextManager[None]:
    """Let the server look at its validation data, which may draw random numbers, in round ``t``."""
    random = trial.oracle is not None and trial.oracle.source.content is None
    return draws.seeded(draws.noise(trial.settings.seed, t, len(trial.data)) if random else None)


def submodels(trial: Trial, server: Sequence[State], ids: Sequence[int]) -> Tensor | None:
    """The hidden units [M, K] (boolean) that some clients get; None where all get the whole network."""
    if trial.neurons is None:
        return None
    for rule, state in zip(trial.method.rules, server, strict=True):
        if overrides(rule, "submodel"):
            everything = torch.ones(trial.neurons.n, dtype=torch.bool, device=trial.setup.initial.device)
            given = [rule.submodel(state, m) for m in ids]
            return torch.stack([everything if units is None else units for units in given])
    return None


def _who_holds_what(trial: Trial, before: Progression, now: Progression) -> Record:
    """How many hidden units of each group every client holds; where that changed, which ones."""
    everybody = range(len(trial.data))
    units = submodels(trial, now.server, everybody)
    if units is None or trial.neurons is None:
        return {}
    counts = torch.stack([part.sum(1) for part in units.split(trial.neurons.sizes, 1)], 1)
    holding: dict[str, list[Any]] = {"held": counts.tolist()}
    last = submodels(trial, before.server, everybody)
    if now.t == 0 or last is None or not torch.equal(units, last):
        holding["bits"] = [np.packbits(row).tobytes().hex() for row in units.cpu().numpy()]
    return {"units": holding}


def _hidden(trial: Trial, x: Tensor) -> Tensor | None:
    """The private coordinates of clients' vectors ``x`` [M, ..., P] or [M, ..., G]; None if it holds none."""
    if trial.private is None or x.dim() < 2 or x.shape[-1] not in (trial.model.n_params, trial.model.size):
        return None
    return trial.private[: x.shape[-1]]


def public(trial: Trial, report: Tensor) -> Tensor:
    """A report without the coordinates that must not leave the client."""
    hidden = _hidden(trial, report)
    return report if hidden is None else report.masked_fill(hidden, 0)


def _bytes(trial: Trial, messages: list[State]) -> int:
    """Bytes of one client's messages or reports, less the private coordinates of vectors."""
    total = 0
    for x in flatten(messages).values():
        hidden = _hidden(trial, x)
        shown = 1.0 if hidden is None else 1 - float(hidden.double().mean())
        total += round(x[:1].nbytes * shown)
    return total


def _traffic(trial: Trial, now: Progression, job: Job, answers: _Answers, updates: Tensor, ids: Tensor) -> Record:
    """Bytes that each client that answered received and sent: its model, messages and reports, less what is private."""
    item, rows = updates.element_size(), range(len(ids))
    n = trial.model.size - (0 if trial.private is None else int(trial.private.sum()))
    down = up = [n * item for _ in rows]
    if now.sent is not None:
        down = now.sent[ids].tolist()
    if job.held is not None and job.units is not None:
        held = job.held[answers.rows] if trial.private is None else job.held[answers.rows] & ~trial.private
        entries = held.sum(1).tolist()
        down = [wire.submodel_size(k, job.units.shape[1], item) for k in entries]
        up = [k * item for k in entries]
    if trial.method.overriding("upload"):
        up = [wire.change_size(int(u.count_nonzero()), n, item) for u in updates]
    more_down, more_up = _bytes(trial, job.messages), _bytes(trial, told(trial.method.rules, answers.reports))
    full = trial.model.size * item
    return {"bytes": {"down": [b + more_down for b in down], "up": [b + more_up for b in up], "full": full}}


def plain(trial: Trial) -> bool:
    """Whether clients do nothing but train, so that a submodel may be cut out and trained instead of the masked whole."""
    return trial.private is None and not any(map(trial.method.overriding, CLIENT_HOOKS))


def _loaded(clients: Sequence[Samples | Absent], *, load: bool) -> tuple[list[Samples], list[Answer]]:
    """The clients' data; and for clients whose data failed to load, an answer with the reason. The engine may ``load`` them instead."""
    data, lost = [], []
    for row, d in enumerate(clients):
        try:
            data.append(loaded(d) if load else cast(Samples, d))
        except Exception as error:  # whatever a user's function raises concerns this client only
            data.append(cast(Samples, d))  # holds the place, and is never given to an engine
            lost.append(Answer.failed(row, error))
    return data, lost


def _visits(trial: Trial, job: Job, lost: Sequence[Answer]) -> Generator[Answer, None, None]:
    """The answers of all clients of a job, of which some are lost."""
    if not lost:
        yield from trial.engine(job)
        return
    yield from lost
    gone = {row for answer in lost for row in answer.rows}
    if rest := [row for row in range(len(job.ids)) if row not in gone]:
        for answer in trial.engine(job.part(rest)):
            yield answer.within(rest)


def _messages(rule: Rule, state: State, ids: Sequence[int]) -> State:
    """The message to each client, [M, ...]; a view where it is the same for all."""
    if not overrides(rule, "message"):
        return {}
    messages = [rule.message(state, m) for m in ids]
    first = messages[0]
    if all(other[k] is first[k] for other in messages[1:] for k in first):
        return {k: v.expand(len(ids), *v.shape) for k, v in first.items()}
    stacked: State = tree_map(lambda *leaves: torch.stack(leaves), *messages)
    return stacked


@dataclass(frozen=True)
class _Answers:
    """The good answers in the order of the clients: ``rows`` [M] of the clients asked, and what they sent [M, ...].

    If only the ``mean`` [G] of their updates counts, ``trained`` is empty.
    """

    rows: Tensor
    trained: Tensor
    reports: list[State]
    states: list[State]
    losses: Tensor | None
    norms: Tensor | None
    bad: list[guard.Quarantined]
    mean: Tensor | None = None


def _collect(trial: Trial, now: Progression, asked: Tensor, job: Job, answers: Iterator[Answer]) -> _Answers:
    """Check the answers of the clients ``asked`` [M], which come in whatever order, and keep the good ones."""
    ids = asked.tolist()
    mean = _Mean(job, trial.factors[asked]) if job.added and trial.factors is not None else None
    taken = _take(now, ids, answers, mean)
    problems = _not_finite(trial, job, taken) if mean is None else mean.explained(trial)
    problems |= _attack(trial, job, taken.trained, sorted(set(taken.rows) - problems.keys()))
    past, limit = now.norms, trial.settings.norm_limit
    if mean is None and not trial.summed:  # of a sum nobody sees one client's answer
        cannot_be = guard.bad_buffers(taken.trained, job, taken.rows) | guard.out_of_range(taken.fitting, job)
        problems |= {row: why for row, why in cannot_be.items() if row not in problems}
        if limit is not None:
            past = _check_lengths(trial, now, asked, job, taken, limit, problems)
    sent, odd = _alike(_good(taken.fitting, problems))
    problems |= dict.fromkeys(odd, "its report has another shape than those of other clients")
    rows = [row for some, _, _ in sent for row in some]
    silent = set(range(len(ids))) - set(rows) - problems.keys() - taken.unfit.keys()
    problems |= dict.fromkeys(sorted(silent), "the client did not answer") | taken.unfit
    bad = sorted(guard.Quarantined(ids[row], reason) for row, reason in problems.items())
    named = [(trial.names[q.client], q.reason) for q in bad]
    guard.quorum(len(rows), len(ids), trial.settings.quorum, named, now.t, taken.cause, away=trial.away)

    at = torch.tensor(rows, device=asked.device)
    order, at = span(at.argsort().tolist()), at.sort().values
    reports, states = tree_map(lambda *leaves: torch.cat(leaves)[order], *(trees for _, *trees in sent))
    losses = taken.losses
    training_losses = torch.stack([losses[row] for row in sorted(rows)]) if losses.keys() >= set(rows) else None
    if mean is not None:
        return _Answers(at, taken.trained, reports, states, training_losses, past, bad, mean.value(at))
    for k, row in enumerate(sorted(rows)):  # without a second matrix
        if k != row:
            taken.trained[k] = taken.trained[row]
    return _Answers(at, taken.trained[: len(rows)], reports, states, training_losses, past, bad)


def summable(method: Method, settings: Settings) -> bool:
    """Whether no rule and no setting looks at the update of a single client, as far as that is known before the run."""
    sums = all(rule.declared.sees == "sum" for rule in method.rules) and not any(map(method.overriding, APART))
    return sums and settings.attack is None and settings.norm_limit is None


def only_mean(trial: Trial, clients: int) -> bool:
    """Whether the updates of so many clients are added as they come: they are large, and only their mean has an effect."""
    vector = trial.setup.initial
    large = clients * vector.nbytes > MATRIX and vector.device.type == "cpu"
    here = large and not trial.summed and trial.private is None and trial.neurons is None
    return here and summable(trial.method, trial.settings) and trial.factors is not None


class _Mean:
    """The mean of updates with ``factors`` [M], added in one order, whatever order they come in.

    It is that of the least places of their clients, by number of samples.
    """

    def __init__(self, job: Job, factors: Tensor) -> None:
        self.job, self.factors, self.place = job, factors, {row: k for k, row in enumerate(job.longest_first)}
        self.total = torch.zeros_like(job.received[0], dtype=torch.float64)
        self.waiting, self.came, self.next = dict[int, Tensor](), set[int](), 0
        self.problems = dict[int, str]()

    def add(self, answer: Answer, fine: Tensor | None) -> None:
        """Take an answer of which some rows are ``fine`` [m]; None: nothing of it can be used."""
        places = [self.place[row] for row in answer.rows]
        if fine is not None:
            checked, model = fine.tolist(), self.job.model
            problems = {} if all(checked) else guard.not_finite(answer)
            if model.size > model.n_params:
                of_buffers = guard.bad_buffers(answer.trained, self.job.part(answer.rows), range(len(places)))
                problems |= {answer.rows[k]: why for k, why in of_buffers.items() if checked[k]}
            good = [k for k, row in enumerate(answer.rows) if row not in problems]
            weights = self.factors[[answer.rows[k] for k in good]] / self.factors.sum()
            if good:
                self.waiting[min(places)] = combine(answer.trained[span(good)], weights, origin=self.job.received[0])
            self.problems |= problems
        self.came.update(places)
        while self.next in self.came:
            self.next += 1
        self._add_before(self.next)

    def _add_before(self, end: int) -> None:
        for place in sorted(k for k in self.waiting if k < end):
            self.total += self.waiting.pop(place)

    def explained(self, trial: Trial) -> dict[int, str]:
        """Why some updates were left out, by row."""
        here = self.problems and not trial.away
        return diagnosis.explained(self.job, self.problems) if here else self.problems

    def value(self, rows: Tensor) -> Tensor:
        """The mean [G], if all good updates are those of ``rows``."""
        self._add_before(len(self.place))
        return (self.total * (self.factors.sum() / self.factors[rows].sum())).to(self.job.received.dtype)


@dataclass(frozen=True)
class _Taken:
    """Answers as they came: what fits, in ``trained`` [M, G] and without it, whether it is finite, and by row why others do not fit."""

    trained: Tensor
    fitting: list[Answer]
    finite: list[Tensor]
    losses: dict[int, Tensor]
    unfit: dict[int, str]
    cause: Exception | None

    @property
    def rows(self) -> list[int]:
        """Those that fit."""
        return [row for answer in self.fitting for row in answer.rows]


def _take(now: Progression, ids: Sequence[int], answers: Iterator[Answer], mean: _Mean | None) -> _Taken:
    """All answers, with those that have the shape of the model in one matrix, or in the ``mean``."""
    trained = client_rows.matrix(len(ids) if mean is None else 0, now.vector)
    blank = tree_map(lambda leaf: leaf[0], now.clients)
    fitting: list[Answer] = []
    finite: list[Tensor] = []
    losses: dict[int, Tensor] = {}
    unfit: dict[int, str] = {}
    cause: Exception | None = None
    seen: set[int] = set()
    for answer in answers:
        if twice := seen.intersection(answer.rows):
            raise ValueError(
                f"The engine answers twice for client {ids[min(twice)]}: it must yield each row of a job once."
            )
        seen.update(answer.rows)
        cause = cause or answer.cause
        if reason := guard.misfit(answer, now.vector, blank):
            unfit |= dict.fromkeys(answer.rows, reason)
            if mean is not None:
                mean.add(answer, None)
            continue
        finite.append(guard.finite(answer))
        if mean is not None:
            mean.add(answer, finite[-1])
            answer = replace(answer, reports=[{} for _ in answer.reports])  # which no rule reads
        else:
            trained[span(answer.rows)] = answer.trained
        fitting.append(replace(answer, trained=trained[:0]))
        if answer.losses is not None:
            losses |= zip(answer.rows, answer.losses, strict=True)
    return _Taken(trained, fitting, finite, losses, unfit, cause)


def _not_finite(trial: Trial, job: Job, taken: _Taken) -> dict[int, str]:
    """Why some answers are not finite, by row; a GPU is waited for once, when all have trained."""
    sizes = [len(answer.rows) for answer in taken.fitting]
    checked = torch.cat(taken.finite).cpu().split(sizes) if sizes else ()
    problems: dict[int, str] = {}
    for answer, fine in zip(taken.fitting, checked, strict=True):
        if not bool(fine.all()):
            problems |= guard.not_finite(replace(answer, trained=taken.trained[list(answer.rows)]))
    if problems and not trial.away:  # whose data are elsewhere explain themselves there
        return diagnosis.explained(job, problems)
    return problems


def _check_lengths(
    trial: Trial, now: Progression, asked: Tensor, job: Job, taken: _Taken, limit: float, problems: dict[int, str]
) -> Tensor:
    """The lengths of each client's last updates [N, 25] after this round; who is too far from the others is added to ``problems``."""
    norms = {
        row: float(_shown(trial, taken.trained[row] - job.received[row], None).double().norm())
        for row in taken.rows
        if row not in problems
    }
    past = now.norms
    if past is None:
        past = now.vector.new_full((len(trial.data), guard.PAST), torch.nan, dtype=torch.float64)
    before = dict(enumerate(past[asked].tolist()))
    growth = guard.grown(norms, before, _faster(trial, job))
    problems |= guard.far(norms, limit, growth) | guard.far_from_own(norms, limit, before)
    for what, lengths in guard.lengths(taken.fitting, job, partial(public, trial)).items():
        problems |= guard.far({row: x for row, x in lengths.items() if row not in problems}, limit, growth, what)
    new = {row: norm for row, norm in norms.items() if row not in problems}
    m = asked[[*new]]
    return past.index_copy(0, m, torch.cat([past[m, 1:], past.new_tensor([*new.values()])[:, None]], 1))


def _good(fitting: Sequence[Answer], problems: Container[int]) -> list[_Sent]:
    """The rows without problems of each answer, with their reports and states."""
    sent: list[_Sent] = []
    for answer in fitting:
        good = [k for k, row in enumerate(answer.rows) if row not in problems]
        if not good:
            continue
        some = slice(None) if len(good) == len(answer.rows) else good  # a slice copies nothing
        reports, states = tree_map(lambda leaf, some=some: leaf[some], (answer.reports, answer.states))
        sent.append(([answer.rows[k] for k in good], reports, states))
    return sent


def _faster(trial: Trial, job: Job) -> float:
    """How many times as large as the least of the last rounds the learning rate is: so much longer updates grow by themselves."""
    rounds = range(max(0, job.t - guard.PAST), job.t + 1)
    rates = [at(trial.solver, t, job.rounds, trial.model).lr for t in rounds]
    most = [max(lr.rates) if isinstance(lr, LayerRates) else cast(float, lr) for lr in rates]
    return most[-1] / min(most)


def _attack(trial: Trial, job: Job, trained: Tensor, rows: Sequence[int]) -> dict[int, str]:
    """Let the attackers among the clients at ``rows`` send something else in ``trained`` [M, G]; which cannot be used, and why.

    Only what leaves a client changes: its private coordinates, and those outside its submodel, stay as it trained them.
    """
    attackers = trial.attackers
    own = [
        row for row in rows if attackers is not None and attackers.attack in LIES and job.ids[row] in attackers.clients
    ]
    if attackers is None or not own:
        return {}
    lies = attackers.sent(trained, job.received, own, [row for row in rows if row not in own], trial.model.n_params)
    lies[:, trial.model.variances] = lies[:, trial.model.variances].clamp(min=0)  # or the guard would find them out
    leaves = _shown(trial, torch.ones_like(lies, dtype=torch.bool), None if job.held is None else job.held[own])
    trained[own] = torch.where(leaves, lies, trained[own])
    return guard.not_finite(Answer(tuple(own), trained[own], [], []))


def _alike(sent: list[_Sent]) -> tuple[list[_Sent], list[int]]:
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


def rewarded(
    trial: Trial, now: Progression, cohort: Cohort, vector: Tensor, server: list[State]
) -> tuple[list[State], Tensor | None, Tensor | None]:
    """The server's state after the rewards; what each client holds, if that differs [N, G], and its bytes [N]."""
    shared = given = vector.expand(len(cohort.ids), -1)
    after = []
    for rule, state in zip(trial.method.rules, server, strict=True):
        if overrides(rule, "reward"):
            handed = given.clone()
            state, kept = rule.reward(state, cohort, handed)
            given = given if kept is handed else kept
        after.append(state)
    if given is shared and now.given is None:
        return after, None, None
    N, item = len(trial.data), vector.element_size()
    changed = given != cohort.kept if trial.private is None else (given != cohort.kept) & ~trial.private
    n = trial.model.size - (0 if trial.private is None else int(trial.private.sum()))
    sizes = [wire.change_size(k, n, item) for k in changed.sum(1).tolist()]
    new = torch.tensor(sizes, dtype=torch.int64, device=vector.device)
    first = torch.full((N,), n * item, dtype=torch.int64, device=vector.device)  # who was never rewarded has the model
    sent = (first if now.sent is None else now.sent).index_copy(0, cohort.ids, new)
    held = trial.setup.per_client(now.vector) if now.given is None else now.given  # who is absent keeps what it has
    return after, held.index_copy(0, cohort.ids, given), sent


def _rate(trial: Trial, job: Job) -> Record:
    """The learning rate of the round, where it changes over the rounds: a number, or by the network's tensors."""
    lr = job.local.lr
    if lr is trial.solver.lr:
        return {}
    return {
        "lr": dict(zip(trial.model.names, lr.rates, strict=True)) if isinstance(lr, LayerRates) else cast(float, lr)
    }


def _record(trial: Trial, cohort: Cohort, answers: _Answers) -> Record:
    ids, names = cohort.ids.tolist(), trial.names
    record: Record = {"round": cohort.t, "ids": ids, "weights": cohort.counted.tolist(), **cast(Record, cohort.notes)}
    if trial.attackers is not None:
        record["attackers"] = [m for m in ids if m in trial.attackers.clients]
    if answers.losses is not None:
        record["losses"] = answers.losses.tolist()
    if answers.bad:
        record["quarantined"] = [
            {"client": q.client, "name": names[q.client], "reason": private(q.reason), "key": key_of(q.reason)}
            for q in answers.bad
        ]
    return record
