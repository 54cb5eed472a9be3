"""Small federations with known answers, a server without clients, and rules that only tests use."""

from __future__ import annotations

import inspect
import pickle
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core import draws, maths
from equipoise.core.client import visit_client
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Cohort, Out, Rule, Setup, State, Trained, Visit
from equipoise.data.batch import Batch
from equipoise.data.samples import read
from equipoise.engines.job import Answer, Job
from equipoise.federation.method import Method
from equipoise.metrics.definitions import PARITY
from equipoise.metrics.gaps import Decisions
from equipoise.metrics.intervals import Interval
from equipoise.records.history import History
from equipoise.records.record import lines
from equipoise.testing.federations import (  # noqa: F401 (for the tests that import them from here)
    N_CLASSES,
    N_INPUTS,
    UNEQUAL,
    BatchNormNet,
    client_axes,
    clients,
    consortium,
    federation,
    generator,
    identical,
    network,
    normal,
    samples,
    told,
    watched,
    widest,
)

# What the fast suite takes where a property belongs to the engine or the round rather than to the method; every method and
# sum follows in `make test-all`. Together they have every hook, every kind of state, private coordinates and submodels.
REPRESENTATIVE = (
    "scaffold",
    "moon+fedheal",
    "fedproto+afl",
    "ditto-personal",
    "fedpac",
    "sam",
    "fedsac",
    "cffl",
    "dp",
)


def size_of(message: dict[str, Tensor]) -> int:
    """Bytes of a message."""
    return sum(part.nbytes for part in message.values())


def fitted(method: Any, rounds: int = 4, **settings: Any) -> eq.Federation:
    """A :func:`federation` after so many rounds."""
    fed = federation(method, **settings)
    fed.fit(rounds, progress=False)
    return fed


def difference(a: eq.Federation, b: eq.Federation) -> float:
    """Largest difference between the states of two federations, which must have the same entries."""
    return widest(a, b)[1]


def write_records(history: History, path: Path) -> None:
    """Write the records of a run as its `metrics.jsonl` has them."""
    path.write_text("".join(lines(history.records)), encoding="utf-8")


def bits(mask: Tensor) -> maths.Bits:
    """A boolean matrix at one bit an entry."""
    made = maths.Bits.empty(mask)
    for part in maths.blocks(*mask.shape):
        made.put(part, mask[:, part].to(torch.uint8))
    return made


def fast_first(names: Iterable[Any], fast: Container[Any] = REPRESENTATIVE) -> list[Any]:
    """Cases of a parametrized test, of which those not in ``fast`` wait for `make test-all`."""
    return [pytest.param(n, id=str(n), marks=[pytest.mark.slow] * (n not in fast)) for n in names]


def others_slow(cases: Iterable[Any], fast: Container[int]) -> list[Any]:
    """Cases of a parametrized test, of which those at other places than ``fast`` wait for `make test-all`."""
    every = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[pytest.mark.slow] * (k not in fast)) for k, case in enumerate(every)]


def in_one(argnames: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, with all cases in one test: for many that are quick and change nothing.

    The first that fails ends the test, and is named beneath its error.
    """
    names = argnames.replace(" ", "").split(",") if isinstance(argnames, str) else list(argnames)
    cases = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        taken = inspect.signature(test)

        @wraps(test)
        def run(**given: Any) -> None:
            for case in cases:
                values = dict(zip(names, case if len(names) > 1 else (case,), strict=True))
                try:
                    test(**given, **values)
                except Exception as error:
                    error.add_note(f"in the case {values}")
                    raise

        left = [parameter for name, parameter in taken.parameters.items() if name not in names]
        run.__signature__ = taken.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def tensor(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


# a server without clients
class Server:
    """The server side of a round: the rules' ``aggregate`` in order, the step, and ``reward``.

    ``theta`` and ``buffers`` are the global model; ``state`` has one entry per rule.
    """

    def __init__(
        self,
        method: Any,
        theta: Tensor,
        sizes: Sequence[float] | Tensor,
        layout: Sequence[int] | None = None,
        buffers: Tensor | None = None,
        solver: Any = None,
        n_classes: int = 0,
        n_features: int = 0,
    ) -> None:
        self.rules = Method.of(method).rules
        self.theta, self.sizes = theta, tensor(sizes)
        self.buffers = theta.new_zeros(0) if buffers is None else buffers
        self.layout = tuple(layout or (len(theta),))
        self.setup = self.made(torch.cat([theta, self.buffers]), self.layout, self.sizes, solver, n_classes, n_features)
        self.state = [rule.server_state(self.setup) for rule in self.rules]
        self.t = 0

    def made(self, *about: Any) -> Setup:
        """The setup, of what is known of every federation, with a sensitive attribute of two values."""
        return Setup(*about, attributes={"a": 2}, positive=1)

    def position(self, kind: type[Rule]) -> int:
        return next(k for k, rule in enumerate(self.rules) if type(rule) is kind)

    def cohort(self, updates: Tensor, ids: Sequence[int] | None = None, buffer_updates: Tensor | None = None) -> Cohort:
        i = torch.arange(len(updates)) if ids is None else torch.tensor(ids)
        sizes = self.sizes[i]
        n = len(self.sizes)
        rest = updates.new_zeros(len(updates), 0) if buffer_updates is None else buffer_updates
        held = torch.cat([self.theta, self.buffers]).expand(len(updates), -1)
        return Cohort(
            self.t,
            10**6,
            n,
            self.theta,
            updates,
            i,
            sizes,
            maths.simplex(sizes),
            self.layout,
            rest,
            received=held,
            kept=held,
        )

    def round(
        self,
        updates: Tensor,
        ids: Sequence[int] | None = None,
        reports: Sequence[State] | None = None,
        buffer_updates: Tensor | None = None,
        **more: Any,
    ) -> Cohort:
        """One round; ``updates`` [M, P] and ``reports`` (one per rule) are those of the clients ``ids``."""
        cohort = replace(self.cohort(updates, ids, buffer_updates), **more)
        after = []
        for k, (rule, state) in enumerate(zip(self.rules, self.state, strict=True)):
            state, cohort = rule.aggregate(state, replace(cohort, reports={} if reports is None else reports[k]))
            after.append(state)
        self.theta = self.theta + cohort.step()
        self.buffers = self.buffers + cohort.buffer_step()
        given = torch.cat([self.theta, self.buffers]).expand(len(cohort.ids), -1)
        done = replace(cohort, theta=self.theta)
        for k, rule in enumerate(self.rules):
            after[k], given = rule.reward(after[k], done, given)
        self.state = after
        self.t += 1
        return cohort


def setup_of(model: Model, n_clients: int = 1, n_classes: int = 0, n_features: int = 0) -> Setup:
    return Setup(model.initial, model.layout, torch.ones(n_clients, dtype=torch.float64), None, n_classes, n_features)


# one client
def full_batches(n: int, steps: int) -> draws.Schedule:
    """``steps`` steps, each on all ``n`` samples in their order; without steps one empty batch, as padding is."""
    return draws.Schedule(torch.arange(n).repeat(steps, 1) if steps else torch.full((1, n), -1), None)


def oracle_of(net: nn.Module, x: Tensor, y: Tensor, solver: Any, steps: int = 1, head: str | None = None) -> Oracle:
    """One client's oracle that takes full-batch steps in the order of the samples."""
    model = Model(net, head)
    data = read((x, y), "client", model.initial.dtype, torch.device("cpu"))
    return Oracle(Bound(model), data, solver, full_batches(len(y), steps), model.n_params)


def visit_of(
    oracle: Oracle,
    received: Tensor,
    state: State | None = None,
    message: State | None = None,
    t: int = 0,
    rounds: int = 10,
) -> Visit:
    """A visit whose training has left the model as it was received."""
    done = Trained(received[..., : oracle.n_params], received)
    return Visit(received, oracle.n_params, state or {}, message or {}, oracle, t, rounds, done=done)


def out_of(oracle: Oracle, theta: Tensor) -> Out:
    """The whole data set of a client as one batch, in eval mode at ``theta`` [G]."""
    P = oracle.n_params
    batch = oracle.source.batch(torch.arange(int(oracle.source.sizes)), None)

    def ask(vector: Tensor) -> tuple[Tensor, Tensor]:
        return oracle.evaluator.forward(vector[:P], vector[P:].clone(), batch.x)

    logits, features = oracle.evaluator.forward(theta[:P], theta[P:].clone(), batch.x)
    return Out(logits, features, batch.y, None, ask)


def one_step_gradient(
    rules: Sequence[Rule],
    oracle: Oracle,
    at: Tensor,
    received: Tensor,
    states: Sequence[State],
    messages: Sequence[State],
    t: int = 0,
    rounds: int = 10,
) -> Tensor:
    """The gradient the local training uses at ``at``: what one full-batch step of length 1 subtracts."""
    assert oracle.solver == eq.SGD(1.0)
    begin = {"at": at}
    trained, _, _, _ = visit_client([StartAt(), *rules], oracle, t, rounds, received, [begin, *states], [{}, *messages])
    return (at - trained)[: oracle.n_params]


class Quadratic:
    r"""The network and data of a client whose loss is :math:`\tfrac12 y^T A y - b^T y`, so that its gradient is A y - b."""

    model: Any = SimpleNamespace(dense=None)

    def __init__(self, A: Tensor, b: Tensor) -> None:
        self.A, self.b = A, b
        self.size, self.content, self.shape_and_labels = 1, None, None

    @property
    def sizes(self) -> Tensor:
        return torch.tensor(1)

    def batch(self, rows: Tensor, shift: Tensor | None) -> Batch:
        return Batch(torch.zeros(len(rows), 1, dtype=torch.float64), torch.zeros(len(rows), dtype=torch.int64))

    def forward(self, theta: Tensor, buffers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("a quadratic client has no logits")

    def gradient(
        self, theta: Tensor, buffers: Tensor, x: Tensor, objective: Callable[..., Tensor], *, train: bool = True
    ) -> Tensor:
        return self.A @ theta - self.b

    def cut(self, theta: Tensor) -> tuple[Tensor]:
        return (theta,)

    def gradients(self, theta: Tensor, buffers: Tensor, x: Tensor, objective: Callable[..., Tensor]) -> tuple[Tensor]:
        return (self.gradient(theta, buffers, x, objective),)

    def oracle(self, solver: Any, steps: int) -> Oracle:
        return Oracle(self, self, solver, full_batches(1, steps), len(self.b))


# rules and engines for tests
@dataclass(frozen=True)
class StartAt(Rule):
    """Start local training from the vector in the client's state."""

    owns = frozenset({"start"})

    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        return visit.state["at"]


@dataclass(frozen=True)
class KeepHead(Rule):
    """The classifier never leaves the client (as FedPer)."""

    def private(self, model: Model) -> Tensor:
        return model.head


@dataclass(frozen=True)
class KeepNorm(Rule):
    """Normalisation layers never leave the client (as FedBN)."""

    def private(self, model: Model) -> Tensor:
        return model.norm


@dataclass(frozen=True)
class Portion(Rule):
    """Hand client m only the share ``(m + 1) / N`` of the round's step."""

    def server_state(self, setup: Setup) -> State:
        return {"before": setup.theta.clone()}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return {"before": cohort.theta}, cohort

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        P = cohort.theta.numel()
        share = (cohort.ids + 1).to(given.dtype)[:, None] / cohort.n_clients
        theta = state["before"] + share * (given[:, :P] - state["before"])
        return state, torch.cat([theta, given[:, P:]], 1)


@dataclass(frozen=True)
class Unstable(Rule):
    """A rule whose report is not finite where the client's data is not."""

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {"loss": visit.oracle.loss(visit.received)}, visit.state


def scripted(
    updates: Iterable[Tensor], reports: Callable[[Job], list[State]] | None = None
) -> Callable[[Job], Iterator[Answer]]:
    """An engine whose clients answer with given updates [M, G], one matrix per round."""
    rounds = iter(updates)

    def engine(job: Job) -> Iterator[Answer]:
        answered = [{} for _ in job.rules] if reports is None else reports(job)
        yield Answer(tuple(range(len(job.ids))), job.received + next(rounds), answered, job.states)

    return engine


def reported_prototypes(local: Tensor, counts: Tensor, weighted: bool = False) -> State:
    """The reports of FedProto's clients, from their mean features [M, C, D] and samples of each class [M, C]."""
    share = counts if weighted else (counts > 0).to(counts.dtype)
    return {"proto": local * share[..., None], "share": share}


def shares(weights: Tensor, mask: Tensor) -> Tensor:
    """Weight [M, G] of each client in each column, of ``weights`` [M] and a ``mask`` [M, G] (FedHEAL, Eq. 9); 0 where all are masked."""
    c = mask.to(weights.dtype)
    return weights[:, None] * c * torch.nan_to_num(weights.sum() / (weights @ c), 0, 0, 0)


def rate_gaps(*given: Any, **more: Any) -> dict[str, Interval]:
    """Intervals of the gaps of rates in a table, in [0, 1]."""
    gaps = [gap for gap in PARITY if gap.column and "calibration" not in gap.key]
    return {gap.key: Interval(*(end / 100 for end in gap.compute(Decisions(*given, **more)).ends)) for gap in gaps}


class Twice(ThreadPoolExecutor):
    """An executor that pickles what it is given and what comes back, as those of other machines do."""

    def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        sent = pickle.dumps((function, arguments, keywords))

        def call() -> Any:
            function, arguments, keywords = pickle.loads(sent)
            try:
                return pickle.loads(pickle.dumps(function(*arguments, **keywords)))
            except Exception as error:
                raise pickle.loads(pickle.dumps(error)) from None

        return super().submit(call)


def until(condition: Any, seconds: float = 20) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()
