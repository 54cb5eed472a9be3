"""Checks of every answer before it is used, so that one broken client cannot spoil the global model."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.core.maths import in_memory
from equipoise.core.model import UNIT
from equipoise.core.rule import Bounds, Rule, State
from equipoise.engines.job import OUT_OF_MEMORY, Answer, Job
from equipoise.federation.method import text_of
from equipoise.system.errors import CODE, MEMORY, SETTINGS, RunError
from equipoise.system.text import key_of, plural
from equipoise.system.tree import flatten

PAST = 25  # updates of a client whose lengths are remembered
SHOWN = 3  # names or reasons in an error; all are in the file next to it
# Keys of the reasons of :mod:`equipoise.federation.diagnosis`, which begin with them; what to do follows a colon.
DIVERGED, NETWORK = "training diverged", "the network gives a loss that is not finite before any training"
DATA = "the data hold NaN or infinity"
DIAGNOSED = (DIVERGED, NETWORK, DATA, OUT_OF_MEMORY)
NEAR = 10.0  # times the median: who is as near is never too long because others have grown
PASSES = 100  # through the network in training for each step, at most: SAM has two
ROUNDING, NEGATIVE = 1 + 1e-6, -1e-6  # of numbers that should be equal, and of what should be 0
LARGEST = 2.0**40  # of the numbers that a client may send: larger ones, whose squares overflow, come from no training


class Quarantined(NamedTuple):
    """A client whose answer was not used in a round, and why."""

    client: int
    reason: str


class QuorumError(RunError):
    """Too few clients answered well for the round to count, or this machine had too little memory for one of them.

    Parameters
    ----------
    text : one sentence for each cause.
    t : the round.
    bad : name and reason of every client whose answer was not used.
    """

    def __init__(self, text: str, t: int = 0, bad: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.t, self.bad = t, tuple(bad)
        keys = {key_of(reason) for _, reason in bad}
        self.kind = CODE if {CODE, DATA} & keys else MEMORY if OUT_OF_MEMORY in keys else SETTINGS


def inspect(answer: Answer, like: Tensor, states: Sequence[State]) -> dict[int, str]:
    """Find the rows of an answer that must not be used, with the reason.

    Parameters
    ----------
    answer : of m clients.
    like : a whole model vector [G]; shape and dtype must be its own.
    states : one client's earlier state, per rule; keys, shapes and dtypes must not change.
    """
    if reason := misfit(answer, like, states):
        return dict.fromkeys(answer.rows, reason)
    return {} if bool(finite(answer).all()) else not_finite(answer)


def misfit(answer: Answer, like: Tensor, states: Sequence[State]) -> str:
    """Why no row of an answer can be used, by its shapes alone; empty if they are right. See :func:`inspect`."""
    if answer.error is not None:
        return answer.error
    m = len(answer.rows)
    expected = (m, *like.shape)
    if answer.trained.shape != expected or answer.trained.dtype != like.dtype:
        form = f"{list(answer.trained.shape)} of {answer.trained.dtype}"
        return f"the update has the wrong shape: expected {list(expected)} of {like.dtype}, found {form}"
    forms = {k: (x.shape[1:], x.dtype) for k, x in flatten(answer.states).items()}
    if forms != {k: (x.shape, x.dtype) for k, x in flatten(list(states)).items()}:
        return "the client's state changed its shape"
    for what, value in _values(answer):
        if value.dim() == 0 or len(value) != m:
            return f"the {what} has no row per client: expected {m}, found shape {list(value.shape)}"
    return ""


def finite(answer: Answer) -> Tensor:
    """Whether all values of each row of an answer are in the range [m], see :data:`LARGEST`, without a wait for a GPU."""
    numbers = (value for _, value in _values(answer) if value.is_floating_point() and value.numel())
    rows = [value.reshape(len(value), -1) for value in numbers]
    inside = [(x.amax(1) <= LARGEST) & (x.amin(1) >= -LARGEST) for x in rows]  # of NaN, neither is true
    return torch.stack([x.to(answer.trained.device) for x in inside]).all(0)


def not_finite(answer: Answer) -> dict[int, str]:
    """The rows of an answer with values out of the range, with the first of them."""
    problems: dict[int, str] = {}
    for what, value in _values(answer):
        for row, x in zip(answer.rows, value, strict=True):
            if value.is_floating_point() and x.numel() and not bool((x.abs() <= LARGEST).all()):
                beyond = f"{float(x.flatten()[x.abs().argmax()]):.3g}, which no training gives (beyond {LARGEST:.2g})"
                extreme = "NaN" if bool(x.isnan().any()) else "infinity" if bool(x.isinf().any()) else beyond
                problems.setdefault(row, f"the {what} holds {extreme}")
    return problems


def out_of_range(answers: Iterable[Answer], job: Job) -> dict[int, str]:
    """The rows of answers with an undeclared or out-of-bounds report, each with its first such report.

    All numbers leave the GPU at once.
    """
    problems: dict[int, str] = {}
    places, numbers = list[tuple[int, str, Bounds]](), list[Tensor]()
    declared = [rule.declared for rule in job.rules]
    for answer in answers:
        for rule, own, report in zip(job.rules, declared, answer.reports, strict=True):
            ranges, stays = own.ranges, own.stays
            if ranges and report.keys() - stays != ranges.keys() - stays:
                fault = f"it reports {_listed(report)}, where {text_of(rule)} reports {_listed(ranges)}"
                problems |= dict.fromkeys(answer.rows, fault)
            for key, bounds in ranges.items():
                if key in report and report[key].numel() and bounds != Bounds(length=bounds.length):
                    x = report[key].reshape(len(answer.rows), -1).double()
                    places += [(row, key, bounds) for row in answer.rows]
                    numbers.append(torch.stack([x.amin(1), x.amax(1), x.sum(1)], 1))
    if not numbers:
        return problems
    ends = torch.cat([x.to(numbers[0].device) for x in numbers]).tolist()
    for (row, key, bounds), (low, high, total) in zip(places, ends, strict=True):
        if fault := _misfit(low, high, total, bounds, job, row):
            problems.setdefault(row, f"the report {key!r} {fault}")
    return problems


def _misfit(low: float, high: float, total: float, bounds: Bounds, job: Job, row: int) -> str:
    """What is wrong with a report of the client at ``row``, by its least and largest number and their sum; empty if nothing is."""
    if low < bounds.low or high > bounds.high:
        return f"holds {low if low < bounds.low else high:.4g}, which must be {bounds}"
    if bounds.samples and total > (n := job.data[row].size) * ROUNDING:
        return f"counts {total:.6g} samples, and the client has {n}"
    if bounds.steps:
        most = job.settings.steps_of(job.data[row].size)
        first, last = job.local.travel(torch.tensor([[1.0], [most]], dtype=torch.float64)).amax(-1).tolist()
        if not (high == 0 or first / ROUNDING <= low <= high <= last * ROUNDING):
            return f"is {high:.4g}, which no 1 to {most} steps go: they go {first:.4g} to {last:.4g}"
    return ""


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(repr, keys)) or "nothing"


def bad_buffers(trained: Tensor, job: Job, rows: Sequence[int]) -> dict[int, str]:
    """The rows, of ``rows`` of trained models [M, G], with negative running variances or with counts that no training of the round gives."""
    problems: dict[int, str] = {}
    if len(at := job.model.variances):
        least = trained[:, at].amin(1).tolist()
        fault = "a running variance of BatchNorm is {:.4g}, and none is below 0"
        problems |= {row: fault.format(least[row]) for row in rows if least[row] < NEGATIVE}
    if whole := job.model.n_whole:
        largest, most = trained[:, -whole:].abs().amax(1).tolist(), job.model.most * UNIT
        fault = f"a count of the network is {{:.4g}}, and {job.model.most} is the most"
        problems |= {row: fault.format(largest[row] / UNIT) for row in rows if largest[row] >= most}
    if len(at := job.model.batches):
        new = ((trained[:, at] - job.received[:, at]) / UNIT).round()
        least, largest = new.amin(1).tolist(), new.amax(1).tolist()
        for row in rows:
            most = PASSES * job.settings.steps_of(job.data[row].size)
            if least[row] < 0 or largest[row] > most:
                n = least[row] if least[row] < 0 else largest[row]
                fault = f"BatchNorm has counted {n:.4g} batches in a round, and 0 to {most} is possible"
                problems.setdefault(row, fault)
    return problems


def lengths(answers: Iterable[Answer], job: Job, shown: Callable[[Tensor], Tensor]) -> dict[str, dict[int, float]]:
    """The lengths by row of each report that is compared, of what is ``shown`` of it, for one sample where it grows with them."""
    every: dict[str, dict[int, float]] = {}
    declared = [rule.declared.ranges for rule in job.rules]
    for answer in answers:
        for ranges, report in zip(declared, answer.reports, strict=True):
            for key, bounds in ranges.items():
                if not bounds.length or key not in report:
                    continue
                for row, x in zip(answer.rows, shown(report[key]), strict=True):
                    by = job.data[row].size if bounds.length == "sample" else 1
                    every.setdefault(f"report {key!r}", {})[row] = float(x.double().norm()) / by
    return every


def grown(lengths: Mapping[int, float], past: Mapping[int, Sequence[float]], faster: float = 1.0) -> float:
    """How many times as long as they were most clients' updates are, at least 1: the median over the round of what each has grown.

    ``faster`` is the part of it that the learning rate explains.
    """
    own = {row: _median(past.get(row, ())) for row in lengths}
    return max(1.0, _median([length / own[row] for row, length in lengths.items() if own[row]]) / faster)


def far(lengths: Mapping[int, float], limit: float, growth: float = 1.0, what: str = "update") -> dict[int, str]:
    """The rows with a length of more than ``limit`` times the median of the round, with the reason.

    Where the updates of most clients have grown by a factor of ``growth``, something has moved the model, and whoever is the
    longest of the round is the first to be asked: the limit is then as many times less, but not below :data:`NEAR`. Of fewer
    than three there is no median: which of them is wrong is unknown.
    """
    median, reasons = _median(lengths.values()), dict[int, str]()
    for row, length in lengths.items():
        times = length / median if median else 0.0
        if times > max(limit / growth, min(limit, NEAR)):
            grown = "" if times > limit else f", while all have grown {growth:.3g}-fold"
            long = f"{times:.3g} times as long as the median of the round"
            reasons[row] = f"the {what} is {long}, and norm_limit is {limit:g}{grown}"
    return reasons


def far_from_own(lengths: Mapping[int, float], limit: float, past: Mapping[int, Sequence[float]]) -> dict[int, str]:
    """As :func:`far`, by the median of the client's own ``past`` lengths (NaN before the first): the only measure for fewer than three clients."""
    own = {row: _median(past.get(row, ())) for row in lengths if len(lengths) < 3}
    return {
        row: f"the update is {lengths[row] / median:.3g} times as long as the median of its own past ones, and norm_limit is {limit:g}"
        for row, median in own.items()
        if median and lengths[row] > limit * median
    }


def _median(lengths: Iterable[float]) -> float:
    """The median, 0 of fewer than three lengths; NaN is none."""
    numbers = [x for x in lengths if not math.isnan(x)]
    return statistics.median(numbers) if len(numbers) > 2 else 0.0


def _values(answer: Answer) -> list[tuple[str, Tensor]]:
    """All tensors of an answer [m, ...], with what they are called in a reason: two rules may use one name."""
    named = [("update", answer.trained)]
    for what, tree in (("report", answer.reports), ("state", answer.states)):
        named += [(f"{what} {k.split('/')[-1]!r}", v) for k, v in flatten(tree).items()]
    return named


OTHERS = "The last complete round is kept; a smaller learning rate, or other hyper-parameters, may help."


class ServerError(RunError):
    """A rule made the server compute something that cannot be a model."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text, SETTINGS)


def weights(weights: Tensor, rule: Rule) -> None:
    """Require convex client weights [M].

    Raises
    ------
    ServerError : naming the rule that set them.
    """
    if not bool(weights.isfinite().all()):
        raise ServerError(
            f"{text_of(rule)} gives weights that are not numbers: what it computes leaves their range. {OTHERS}"
        )
    if not bool((weights >= 0).all()) or abs(float(weights.sum()) - 1) > 1e-4:
        raise ServerError(
            f"{type(rule).__name__} must set weights >= 0 that sum to 1; found a sum of {float(weights.sum()):g} and a "
            f"smallest of {float(weights.min()):g}. Coefficients of another kind go into cohort.coefficients."
        )


def state(before: State, after: State, rule: Rule) -> None:
    """Require finite numbers in what a rule remembers of this round: vectors, as rows of clients were checked when they came.

    Raises
    ------
    ServerError : naming the rule.
    """
    for key, x in after.items():
        new = x is not before.get(key) and in_memory(x) and x.dim() <= 1 and x.is_floating_point()
        if new and not bool(x.isfinite().all()):
            raise ServerError(
                f"{text_of(rule)} cannot continue: its state {key!r} left the range of numbers although every update was in it. {OTHERS}"
            )


def step(vector: Tensor, method: str) -> None:
    """Require a finite global model [G].

    Raises
    ------
    ServerError : naming the method.
    """
    if not bool(torch.isfinite(vector).all()):
        raise ServerError(f"The server's step of {method} is not finite although every update was. {OTHERS}")


def quorum(
    good: int,
    asked: int,
    share: float,
    bad: Sequence[tuple[str, str]],
    t: int = 0,
    cause: Exception | None = None,
    *,
    away: bool = False,
) -> None:
    """Stop unless at least ``share`` of the selected clients (and at least one) answered well.

    Where clients are not ``away``, all must answer if memory ran out: it is that of this machine, on which no result depends.

    Raises
    ------
    QuorumError : a sentence for each reason; ``cause`` is the first error raised, for its traceback.
    """
    full = [] if away else [(name, reason) for name, reason in bad if key_of(reason) == OUT_OF_MEMORY]
    enough = good >= max(1, share * asked)
    if enough and not full:
        return
    of_head: dict[str, list[tuple[str, str]]] = {}
    for name, reason in full if enough else bad:  # what a quorum allows ended nothing
        of_head.setdefault(split(reason)[0], []).append((name, reason))
    often = sorted(of_head.values(), key=lambda some: -len(some))
    said = [blamed(some, asked, f"round {t}") for some in often[:SHOWN]]
    if more := sum(map(len, often[SHOWN:])):
        said.append(f"{plural(more, 'more client')} for other reasons")
    needed = "no result depends on the memory of a machine" if full else f"the quorum is {share:.0%}"
    count = f"{good} of {asked} clients answered well, and {needed}."
    why = f"{'; '.join(said)}."
    diagnosed = bool(split(often[0][0][1])[1])
    text = f"{count} {why}" if not diagnosed else f"{why} {count}" if good or len(often) > 1 else why
    error = QuorumError(text + (f" The state before round {t} is kept." if t else ""), t, bad)
    error.kind = MEMORY if enough else error.kind
    raise error from cause


def split(reason: str) -> tuple[str, str]:
    """What happened, and what to do, which only a diagnosed reason has."""
    head = key_of(reason)
    return (head, reason.removeprefix(f"{head}: ")) if head in DIAGNOSED else (reason, "")


def blamed(clients: Sequence[tuple[str, str]], asked: int, when: str) -> str:
    """In words, what happened to ``clients`` (name and reason of each) of so many ``asked``, and what to do; ``when`` is a round."""
    names, (head, advice) = [name for name, _ in clients], split(clients[0][1])
    few = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    count = f"{len(names)} of {asked} clients" + (f" ({few})" if len(names) < asked else "")
    if not advice:
        return f"{count if len(names) > 1 else few}: {head}"
    if len({reason for _, reason in clients}) > 1:
        advice = ", ".join(f"{name}: {split(reason)[1]}" for name, reason in clients[:SHOWN])
    return f"{head} in {count} in {when}: {advice}"
