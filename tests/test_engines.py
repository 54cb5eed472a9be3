"""Clients spread over threads and processes: the same bits for any number of them, whoever dies on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.core.model import Model
from equipoise.core.rule import Rule, Visit
from equipoise.engines import Processes, Stacks, Workers, choose
from equipoise.engines.job import Answer, Job
from equipoise.engines.processes import Board, shared_tensors
from equipoise.federation import guard
from equipoise.federation.guard import QuorumError
from equipoise.networks import build
from equipoise.system.errors import RunError
from equipoise.system.threads import one_thread, run_unordered
from helpers import (
    N_CLASSES,
    N_INPUTS,
    UNEQUAL,
    clients,
    difference,
    federation,
    fitted,
    identical,
    in_one,
    network,
    others_slow,
    samples,
    told,
    watched,
)
from test_several_inputs import Flat, Two, split, trained

MARK = 13.0  # the first input of a client that is in for trouble


# threads
def test_spread_does_every_task_once_and_in_any_order() -> None:
    makers: list[int] = []

    def make() -> Callable[[int], tuple[int, int]]:
        makers.append(threading.get_ident())
        return lambda task: (task * task, torch.get_num_threads())

    for n in (1, 2, 5):
        makers.clear()
        found = dict(run_unordered(range(7), make, n))
        assert found == {k: (k * k, 1) for k in range(7)}
        assert len(set(makers)) == len(makers) <= n


def test_threads_inside_operations_are_put_back() -> None:
    torch.set_num_threads(2)
    try:
        assert len(list(run_unordered([0.0, 0.0, 0.0], lambda: time.sleep, 3))) == 3
        assert torch.get_num_threads() == 2
        with one_thread():
            assert torch.get_num_threads() == 1
        fresh: list[int] = []
        asked = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        asked.start()
        asked.join()
        assert fresh == [2]
    finally:
        torch.set_num_threads(1)


def test_what_a_task_raises_is_raised_and_the_rest_is_dropped() -> None:
    done: list[int] = []

    def do(task: int) -> None:
        if task == 1:
            raise KeyError("one")
        time.sleep(0.01)
        done.append(task)

    with pytest.raises(KeyError, match="one"):
        list(run_unordered(range(200), lambda: do, 2))
    assert len(done) < 100


def test_what_a_thread_needs_may_fail_and_says_why() -> None:
    def make() -> Callable[[int], int]:
        raise MemoryError("no room for another network")

    with pytest.raises(MemoryError, match="no room"):
        list(run_unordered(range(4), make, 2))


def test_a_stop_ends_the_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the error is kept, as a console and a notebook do: nobody trains on, and the threads inside are back."""

    def stop(*anything: Any) -> None:
        raise KeyboardInterrupt

    fed = federation("fedavg", engine="workers", workers=2)
    monkeypatch.setattr(guard, "misfit", stop)
    before = threading.active_count()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt) as kept:
            fed.fit(1, progress=False)
        assert torch.get_num_threads() == 2
        assert threading.active_count() == before
        assert kept.value.__traceback__ is not None
    finally:
        torch.set_num_threads(1)


# the same bits
def image_clients() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(5)
    sizes = (9, 30, 4, 17, 22)
    return [(torch.randn(n, 3, 16, 16, generator=draw), torch.randint(4, (n,), generator=draw)) for n in sizes]


@pytest.mark.parametrize("method", ["scaffold+fedheal", "moon", "fedld"])
@pytest.mark.parametrize("kind", ["cnn", pytest.param("resnet10", marks=pytest.mark.slow)])
def test_number_of_workers_does_not_change_a_bit(method: str, kind: str) -> None:
    """In float32, where the order of sums would show; with one thread inside operations the sequential engine agrees."""
    options: dict[str, Any] = {"width": 8}
    net = build(kind, (3, 16, 16), 4, **options)
    make = lambda **how: fitted(method, 2, net=net, data=image_clients(), epochs=1, **how)  # noqa: E731
    alone = make(engine="sequential")
    for n in (1, 2, 4):
        assert identical(alone, make(engine="workers", workers=n))


def test_workers_ignore_the_threads_inside_operations() -> None:
    net = build("mlp", (1, 28, 28), 4, hidden=(400, 300))
    draw = torch.Generator().manual_seed(5)
    data = [(torch.randn(64, 1, 28, 28, generator=draw), torch.randint(4, (64,), generator=draw)) for _ in range(3)]
    one = fitted("fedavg", 1, net=net, data=data, engine="workers", workers=2, batch_size=64)
    torch.set_num_threads(2)
    try:
        assert identical(one, fitted("fedavg", 1, net=net, data=data, engine="workers", workers=3, batch_size=64))
        assert federation(net=net, data=data).workers == 2  # as many as PyTorch may use
    finally:
        torch.set_num_threads(1)


def test_a_stack_depends_on_its_size_only() -> None:
    net = network().float()
    data = [(x.float(), y) for x, y in clients((8,) * 9)]
    make = lambda **how: fitted("moon", 3, net=net, data=data, engine="stacked", participation=1.0, **how)  # noqa: E731
    assert identical(make(workers=1, chunk=2), make(workers=3, chunk=2))
    assert identical(make(workers=1), make(workers=4))
    assert difference(make(chunk=2), make(chunk=9)) < 1e-3


@in_one(
    ("clients", "chunk", "expected"),
    [(9, None, [9]), (60, None, [20, 20, 20]), (200, None, [50] * 4), (9, 4, [4, 4, 1])],
)
def test_sizes_of_stacks(clients: int, chunk: int | None, expected: list[int]) -> None:
    seen: list[int] = []

    def engine(job: Job) -> Iterator[Answer]:
        for answer in Stacks(2, chunk)(job):
            seen.append(len(answer.rows))
            yield answer

    fitted("fedavg", 1, sizes=(4,) * clients, engine=engine, participation=1.0, server_validation=None)
    assert sorted(seen, reverse=True) == expected


@pytest.mark.parametrize(("sizes", "memory", "expected"), [((4, 4, 4), 1, [1, 1, 1]), ((4, 40, 41), None, [1, 2])])
def test_clients_are_stacked_where_memory_and_sizes_allow(
    sizes: tuple[int, ...], memory: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if memory is not None:
        monkeypatch.setattr("equipoise.engines.stacked.MEMORY", memory)
    seen: list[int] = []

    def engine(job: Job) -> Iterator[Answer]:
        for answer in Stacks(2)(job):
            seen.append(len(answer.rows))
            yield answer

    fitted("fedavg", 1, sizes=sizes, engine=engine, participation=1.0, server_validation=None)
    assert sorted(seen) == expected


# who cannot be spread over threads
def test_what_draws_random_numbers_is_not_for_threads() -> None:
    net = nn.Sequential(nn.Dropout(0.3), *network())
    with pytest.raises(ValueError, match=r"The network, or .* draws random numbers.*engine='processes'"):
        fitted("fedavg", 1, net=net, engine="workers")
    assert federation(net=net, engine="auto", workers=4).engine_choice.engine == "sequential"


def noisy(x: Tensor, shift: Tensor | None) -> Tensor:
    return x + 0.1 * torch.rand_like(x)


@pytest.mark.parametrize(
    "net", [network(), nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 2, 1), nn.Flatten())]
)
def test_a_transform_that_draws_random_numbers_follows_the_seed(net: nn.Module) -> None:
    net = nn.Sequential(*net, nn.LazyLinear(N_CLASSES)).double()
    net(torch.zeros(2, N_INPUTS, dtype=torch.float64))
    make = lambda **how: fitted("fedavg", 2, net=net, transform=noisy, workers=2, **how)  # noqa: E731
    one, other = make(engine="auto"), make(engine="auto")
    assert one.engine_choice.engine == "sequential"
    assert identical(one, other)
    for engine in ("workers", "stacked"):
        with pytest.raises(ValueError, match="transform"):
            make(engine=engine)


@in_one(("name", "value"), [("workers", 0), ("workers", 1.5), ("chunk", 0), ("chunk", True)])
def test_numbers_out_of_range(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be a whole number >= 1(, or None)?; found {value}\."):
        federation(**{name: value})


@in_one(
    ("net", "n", "threads", "engine"),
    [
        (nn.Linear(4, 3), 4, 1, "stacked"),
        (nn.Linear(4, 3), 3, 2, "workers"),
        (nn.Linear(400, 300), 50, 2, "workers"),
        (nn.Linear(400, 300), 1, 2, "sequential"),
        (nn.Linear(400, 300), 3, 8, "sequential"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3)), 50, 2, "workers"),
        (nn.Sequential(nn.Dropout(), nn.Linear(4, 3)), 50, 2, "sequential"),
    ],
)
def test_choice_of_the_engine(net: nn.Module, n: int, threads: int, engine: str) -> None:
    if isinstance(net[0] if isinstance(net, nn.Sequential) else net, nn.Conv2d):
        net(torch.zeros(2, 3, 8, 8))
    assert choose(Model(net), [], n, threads, lambda: True).engine == engine


@pytest.mark.parametrize("threads", [1, 2])
def test_workers_have_no_part_in_the_choice(threads: int) -> None:
    """With several threads inside operations, the engines differ in the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        net = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(15, 3))
        choices = {federation(net=net, engine="auto", participation=1.0, workers=n).engine_choice for n in (1, 2, 64)}
    finally:
        torch.set_num_threads(before)
    assert [choice.engine for choice in choices] == ["workers"]


# processes
class Troubled(nn.Module):
    """Kills the worker process that shows it a marked input: the first time, or always."""

    def __init__(self, flag: str, always: bool = False) -> None:
        super().__init__()
        self.flag, self.always = Path(flag), always
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        inside = multiprocessing.parent_process() is not None
        if inside and bool((x[:, 0] == MARK).any()) and (self.always or not self.flag.exists()):
            self.flag.write_text("was here")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


class Unsendable(nn.Linear):
    """Cannot be pickled, for a reason that looks like a broken pipe."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Unsendable:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise FileNotFoundError("weights.bin")


@dataclass(frozen=True)
class OneTooMany(Rule):
    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        return torch.cat([start, start[..., -1:]], -1)


def streamed() -> Dataset[tuple[Tensor, int]]:
    return Numbers()


class Numbers(Dataset[tuple[Tensor, int]]):
    """Draws what it shows anew each time, from the global generator."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        return torch.rand(N_INPUTS, dtype=torch.float64) + k / 9, k % N_CLASSES


@pytest.fixture(scope="module")
def pool() -> Processes:
    return Processes(2)


def marked() -> list[tuple[Tensor, Tensor]]:
    data = clients()
    data[2][0][:, 0] = MARK
    return data


@pytest.mark.parametrize(
    "method",
    others_slow(
        ["fedavg", "scaffold+fedheal", "moon", "fedproto+fedheal", "fedbn", "fedsac", "cgsv", "dp"], fast=(1, 5, 7)
    ),
)
@pytest.mark.parametrize("kind", ["mlp", pytest.param("batchnorm", marks=pytest.mark.slow)])
@pytest.mark.share(3)
def test_processes_give_the_same_bits(method: str, kind: str, pool: Processes) -> None:
    sizes = (9, 13, 9, 13, 9) if kind == "batchnorm" else UNEQUAL
    alone, spread_out = (fitted(method, 3, kind=kind, sizes=sizes, engine=e) for e in ("sequential", pool))
    assert identical(alone, spread_out)
    assert told(alone) == told(spread_out)


def test_several_inputs_go_to_other_processes(pool: Processes) -> None:
    one, two = trained(Flat(), tuple), trained(Two(), split, engine=pool)
    assert torch.equal(one.progress.vector, two.progress.vector)


def test_random_numbers_are_the_clients_own_in_every_process(pool: Processes) -> None:
    net = nn.Sequential(nn.Dropout(0.3), *network())
    assert identical(fitted("moon", 3, net=net), fitted("moon", 3, net=net, engine=pool))
    data = [Numbers(), samples(7, 0), Numbers()]
    one, other = (fitted("fedavg", 2, data=data, engine=e, participation=1.0) for e in ("sequential", pool))
    assert identical(one, other)


@pytest.mark.slow
def test_a_worker_killed_in_mid_round_changes_nothing(tmp_path: Path, pool: Processes) -> None:
    flag = tmp_path / "flag"

    def make(engine: Any) -> eq.Federation:
        return fitted("scaffold", 3, net=Troubled(str(flag)), data=marked(), participation=1.0, engine=engine)

    killed = make(pool)
    assert flag.exists()
    assert not any("quarantined" in record for record in killed.records)
    assert identical(make("sequential"), killed)


@pytest.mark.slow
def test_workers_killed_between_rounds_are_replaced(pool: Processes) -> None:
    fed = federation("fedavg", engine=pool, participation=1.0)
    fed.fit(1, progress=False)
    for worker in pool.workers:
        os.kill(worker.process.pid or 0, signal.SIGKILL)
        worker.process.join()
    fed.fit(1, progress=False)
    assert identical(fitted("fedavg", 2, participation=1.0), fed)


@pytest.mark.slow
def test_a_client_that_kills_every_worker_is_quarantined(tmp_path: Path, pool: Processes) -> None:
    fed = fitted("fedavg", 1, net=Troubled(str(tmp_path / "flag"), True), data=marked(), participation=1.0, engine=pool)
    (found,) = fed.records[0]["quarantined"]
    assert found["client"] == 2
    assert "its worker process died 2 times, last with exit code -9" in found["reason"]
    assert fed.records[0]["ids"] == [0, 1, 3, 4]


def test_what_a_client_raises_in_a_worker_concerns_it_alone(pool: Processes) -> None:
    data = clients()
    data[1] = (data[1][0] * float("nan"), data[1][1])
    assert identical(*(fitted("fedavg", 1, data=data, engine=e, participation=1.0) for e in ("sequential", pool)))


@pytest.mark.slow
def test_a_round_that_was_given_up_does_not_disturb_the_next(pool: Processes) -> None:
    def impatient(job: Job) -> Iterator[Answer]:
        yield next(iter(pool(job)))
        raise KeyboardInterrupt

    fed = federation("fedavg", engine=impatient, participation=1.0)
    with pytest.raises(KeyboardInterrupt):
        fed.fit(1, progress=False)
    assert identical(fitted("fedavg", 2), fitted("fedavg", 2, engine=pool))


@pytest.mark.slow
def test_a_network_that_cannot_be_sent_says_so(pool: Processes) -> None:
    class Local(nn.Linear):
        pass

    with pytest.raises(RunError, match=r"cannot be sent to worker processes.*top of a module.*engine='workers'"):
        fitted("fedavg", 1, net=Local(N_INPUTS, N_CLASSES).double(), engine=pool)
    assert identical(fitted("fedavg", 1), fitted("fedavg", 1, engine=pool))


def test_a_network_whose_pickling_fails_like_a_pipe_says_so(pool: Processes) -> None:
    with pytest.raises(RunError, match=r"The Model cannot be sent to worker processes \(weights\.bin\)"):
        fitted("fedavg", 1, net=Unsendable(N_INPUTS, N_CLASSES).double(), engine=pool)


@pytest.mark.slow
def test_a_vector_of_the_wrong_size_is_told_as_elsewhere(pool: Processes) -> None:
    for engine in ("sequential", pool):
        with pytest.raises(QuorumError, match=r"5 of 5 clients: the update has the wrong shape: expected .* found"):
            fitted(OneTooMany(), 1, engine=engine, participation=1.0)


def test_workers_drop_unused_objects() -> None:
    pool = Processes(1)
    fed = federation("fedavg", data=[eq.Lazy(streamed, 9) for _ in range(3)], engine=pool, participation=1.0)
    fed.fit(1, progress=False)
    known = len(pool.constants)
    fed.fit(3, progress=False)
    assert len(pool.constants) == known
    assert pool.workers[0].holds == set(pool.constants)
    assert identical(fitted("fedavg", 4, data=[Numbers() for _ in range(3)], participation=1.0), fed)


@pytest.mark.slow
def test_a_round_that_was_given_up_ends_its_workers(pool: Processes) -> None:
    job = pool(_some_job())
    next(job)
    processes = [worker.process for worker in pool.workers]
    job.close()
    for process in processes:
        process.join(10)
        assert process.exitcode == -signal.SIGTERM
    assert not pool.workers


def _some_job() -> Job:
    seen: list[tuple[Job, Answer]] = []
    fitted("fedavg", 1, engine=watched(seen), participation=1.0)
    return seen[0][0]


def test_a_board_holds_what_was_put_on_it() -> None:
    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "same": torch.arange(3.0, dtype=torch.float64).expand(4, 3),
        "bits": torch.tensor([True, False]),
        "none": torch.empty(0, 5),
        "number": torch.tensor(7),
    }
    board = Board(tensors)
    seen = shared_tensors(board.path, board.places)
    assert all(torch.equal(seen[k], x[:1] if k == "same" else x) for k, x in tensors.items())
    seen["a"][0, 0] = 9
    assert float(board.tensors["a"][0, 0]) == 9
    assert float(tensors["a"][0, 0]) == 0


def test_engines_as_objects() -> None:
    assert identical(fitted("fedavg", 2), fitted("fedavg", 2, engine=Workers(2)))
    assert eq.Federation(network(), clients(), engine=Workers(2)).engine_choice.engine == "Workers"


# precision
@pytest.mark.parametrize("engine", ["sequential", "workers", "stacked"])
def test_bf16_rounds_and_keeps_the_dtype(engine: str, tmp_path: Path) -> None:
    make = lambda precision: fitted("fedprox+fedheal", 2, net=network().float(), engine=engine, precision=precision)  # noqa: E731
    exact, rounded = make("full"), make("bf16")
    assert rounded.progress.vector.dtype == torch.float32
    assert 1e-5 < difference(exact, rounded) < 0.1
    assert "autocast to bf16" in rounded.header[1]
    assert "bf16" not in exact.header[1]
    rounded.save(tmp_path)
    with pytest.raises(eq.CheckpointError, match="precision is bf16 there and full here"):
        federation("fedprox+fedheal", net=network().float(), engine=engine).resume(tmp_path)
    with pytest.raises(ValueError, match=r"precision must be one of full, bf16; found 'half'\."):
        make("half")


def weight_normed(*more: nn.Module) -> nn.Sequential:
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(N_INPUTS, N_CLASSES))
    return nn.Sequential(*more, normed).double()


def test_the_engine_that_is_advised_can_train_the_network(pool: Processes) -> None:
    """A network that threads and processes cannot train is not sent from one to the other."""
    with pytest.raises(ValueError, match=r"one generator\. Use engine='sequential'\.$"):
        fitted("fedavg", 1, net=weight_normed(nn.Dropout(0.3)), engine="workers")
    with pytest.raises(RunError, match=r"(?s)cannot be sent .* otherwise use engine='sequential'\.$"):
        fitted("fedavg", 1, net=weight_normed(nn.Dropout(0.3)), engine=pool)
    with pytest.raises(RunError, match=r"(?s)cannot be sent .* otherwise use engine='workers' or 'sequential'\.$"):
        fitted("fedavg", 1, net=weight_normed(), engine=pool)
    with pytest.raises(ValueError, match=r"Use engine='processes', where every worker has its own, or engine='seq"):
        fitted("fedavg", 1, net=nn.Sequential(nn.Dropout(0.3), *network()), engine="workers")
    for kind in (weight_normed(nn.Dropout(0.3)), weight_normed()):
        fitted("fedavg", 1, net=kind, engine="sequential")


@in_one("layer", [nn.Dropout(0.0), nn.AlphaDropout(0.0), nn.FeatureAlphaDropout(0.0), nn.Dropout1d(0)])
def test_dropout_of_nothing_draws_nothing(layer: nn.Module) -> None:
    assert not Model(nn.Sequential(layer, nn.Linear(3, 2))).random
    assert Model(nn.Sequential(layer, nn.Dropout(0.1), nn.Linear(3, 2))).random
    if isinstance(layer, nn.Dropout):
        fits = [fitted("fedavg", 2, net=nn.Sequential(layer, *network()), engine=e) for e in ("sequential", "workers")]
        assert identical(*fits)


def test_that_stacks_fail_is_said_once_a_run(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        caplog.clear()
        net = nn.Sequential(nn.Linear(N_INPUTS, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, N_CLASSES)).double()
        fitted("fedavg", 3, net=net, engine="stacked", participation=1.0)
        (said,) = [message for message in caplog.messages if "one by one" in message]
        assert "appears once per run" in said
        assert len(said) < 330
