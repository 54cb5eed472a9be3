"""Many registered clients: data that are loaded when they are needed, and what must not grow with who is absent."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import equipoise as eq
from equipoise.data.samples import Absent
from equipoise.engines.job import Job
from equipoise.engines.sequential import sequential
from helpers import UNEQUAL, clients, federation, identical, in_one, others_slow, samples, told

Data = tuple[Tensor, Tensor]
TESTS = {"a": samples(30, 1), "b": samples(20, 3)}


def counted(count: Counter[int]) -> list[eq.Lazy]:
    """The usual clients, lazily; ``count`` says how often each was loaded."""

    def loader(m: int, data: Data) -> Callable[[], Data]:
        def load() -> Data:
            count[m] += 1
            return data

        return load

    return [eq.Lazy(loader(m, data), len(data[1])) for m, data in enumerate(clients())]


def lazy(*data: Any, sizes: tuple[int, ...] = UNEQUAL) -> list[eq.Lazy]:
    """Lazy clients whose functions give ``data``, or raise it."""

    def loader(given: Any) -> Callable[[], Any]:
        def load() -> Any:
            if isinstance(given, Exception):
                raise given
            return given

        return load

    return [eq.Lazy(loader(given), n) for given, n in zip(data, sizes, strict=True)]


# lazy data
@pytest.mark.parametrize(
    "method",
    others_slow(
        ["fedavg", "scaffold+fedheal", "fedbn", "fedavg-finetune", "moon", "cffl", "fedproto", "standalone"],
        fast=(1, 3, 5),
    ),
)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_lazy_data_give_the_same_bits(method: str, engine: str) -> None:
    settings = {"tests": TESTS, "participation": 0.5, "engine": engine, "server_validation": samples(70, 2)}
    feds = [federation(method, data=data, **settings) for data in (clients(), counted(Counter()))]
    for fed in feds:
        fed.fit(3, progress=False)
    assert identical(*feds)
    assert told(feds[0]) == told(feds[1])
    x = samples(9, 0)[0]
    assert all(torch.equal(feds[0].logits(x, client=m), feds[1].logits(x, client=m)) for m in range(5))


def test_only_who_takes_part_is_loaded() -> None:
    count = Counter[int]()
    fed = federation(data=counted(count), participation=0.4, tests=TESTS)
    assert count == {0: 1}  # to see whether the network takes the data
    fed.fit(3, progress=False)
    asked = Counter(m for record in fed.records for m in record["ids"])
    assert count == asked + Counter([0])
    assert all(isinstance(d, Absent) for d in fed.trial.data)


def test_no_samples_are_kept_after_the_round() -> None:
    seen: list[Tensor] = []
    alive: list[int] = []

    def engine(job: Job) -> Any:
        for d in job.data:
            assert d.content is not None  # an engine never sees lazy data
            seen.append(d.content.x)
        yield from sequential(job)

    import weakref

    fed = federation(data=lazy_copies(), participation=0.4, engine=engine)
    fed.fit(1, progress=False)
    references = [weakref.ref(x) for x in seen]
    seen.clear()
    alive += [1 for reference in references if reference() is not None]
    assert len(references) == 2
    assert alive == []


def lazy_copies() -> list[eq.Lazy]:
    """Clients whose samples are made anew by each call."""
    return [eq.Lazy(lambda m=m, n=n: samples(n, m), n) for m, n in enumerate(UNEQUAL)]


def test_a_lazy_data_set_and_streamed_data() -> None:
    data = [TensorDataset(*d) for d in clients()]
    settings = {"participation": 0.5, "tests": TESTS, "server_validation": samples(70, 2)}
    plain = federation(data=clients(), **settings)
    whole = federation(data=lazy(*data), **settings)
    streamed = federation(data=lazy(*data), memory=1, **settings)
    for fed in (plain, whole, streamed):
        fed.fit(2, progress=False)
    assert identical(plain, whole)
    assert identical(plain, streamed)


def test_tests_and_validation_may_be_lazy() -> None:
    tests = {name: eq.Lazy(lambda d=d: d, len(d[1])) for name, d in TESTS.items()}
    a, b = (
        federation("cffl", tests=t, server_validation=v, data=clients())
        for t, v in ((TESTS, samples(70, 2)), (tests, eq.Lazy(lambda: samples(70, 2), 70)))
    )
    for fed in (a, b):
        fed.fit(2, progress=False)
    assert told(a) == told(b)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (samples(12, 1), "ValueError: client-1: Lazy promises 13 samples, and load() gave 12."),
        (OSError("no such file: b.csv"), "OSError: no such file: b.csv"),
        ((samples(13, 1)[0][:, :5], samples(13, 1)[1]), "client-1: samples have shape [5], those of client-0 have [6]."),
        ((samples(13, 1)[0], torch.full((13,), 3)), "client-1: labels must be in 0..2, because the network has 3 outputs;"),
        (None, "client-1: expected a pair (x, y) or a torch Dataset; found NoneType."),
        (eq.Lazy(lambda: samples(13, 1), 13), "client-1: load() gave another Lazy; it must give (x, y) or a torch Dataset."),
    ],
)  # fmt: skip
def test_a_client_whose_data_cannot_be_loaded_is_left_out(broken: Any, reason: str) -> None:
    good = clients()
    fed = federation(data=lazy(good[0], broken, *good[2:]), participation=1.0, tests=TESTS)
    fed.fit(2, progress=False)
    for record in fed.records:
        assert record["ids"] == [0, 2, 3, 4]
        (found,) = record["quarantined"]
        assert (found["client"], found["name"]) == (1, "client-1")
        assert reason in found["reason"]
    others = federation(data=[*good[:1], (good[1][0] * float("nan"), good[1][1]), *good[2:]], participation=1.0)
    others.fit(2, progress=False)
    assert identical(fed, others)  # as if it had answered with what cannot be used


@pytest.mark.parametrize("method", others_slow(["ditto", "ditto-personal", "cffl", "fedpac"], fast=(1, 3)))
def test_a_model_of_its_own_needs_no_data_to_be_tested(method: str) -> None:
    count = Counter[int]()
    settings = {"tests": TESTS, "server_validation": samples(70, 2), "contribution": [0.5] * 5}
    fed = federation(method, data=counted(count), participation=0.4, **settings)
    fed.fit(5, progress=False)
    assert count == Counter(m for record in fed.records for m in record["ids"]) + Counter([0])
    assert len(fed.records[-1]["clients"]["accuracy"]) == 5


def test_who_cannot_be_loaded_is_tested_without_its_own_training(caplog: pytest.LogCaptureFixture) -> None:
    good = clients()
    data = lazy(good[0], OSError("gone"), *good[2:])
    fed = federation("fedavg-finetune", data=data, participation=1.0, tests=TESTS)
    fed.fit(5, progress=False)
    assert "The data of client-1 cannot be loaded: OSError: gone; it is tested without its own training" in caplog.text
    scores = fed.records[-1]["groups"].values()
    sizes = [len(y) for _, y in TESTS.values()]
    expected = sum(n * score["accuracy"] for n, score in zip(sizes, scores, strict=True)) / sum(sizes)
    assert fed.records[-1]["clients"]["accuracy"][1] == pytest.approx(expected)
    with pytest.raises(RuntimeError, match="The data of client-1 cannot be loaded: OSError: gone"):
        fed.predict(samples(3, 0)[0], client=1)


def test_a_count_by_numpy_is_a_number() -> None:
    lazily = eq.Lazy(lambda: samples(4, 0), np.bincount([0, 1, 1, 1, 1])[1])
    assert (lazily.size, type(lazily.size)) == (4, int)


def test_where_nobody_can_be_loaded_the_run_stops_and_says_why() -> None:
    good = clients()[0]
    fed = federation(data=lazy(good, *[OSError("gone")] * 4), participation=1.0)
    with pytest.raises(
        eq.QuorumError, match=r"1 of 5 clients answered well.* 4 of 5 clients \(client-1, .*\): OSError: gone"
    ) as caught:
        fed.fit(1, progress=False)
    assert isinstance(caught.value.__cause__, OSError)


def test_the_first_client_must_load() -> None:
    with pytest.raises(ValueError, match=r"client-0: Lazy promises 7 samples, and load\(\) gave 9"):
        federation(data=lazy(samples(9, 0), *clients()[1:]))


@in_one(
    ("load", "size", "error", "message"),
    [
        (samples(4, 0), 4, TypeError, "Lazy: load must be a function without arguments; found tuple."),
        (lambda: samples(4, 0), 0, ValueError, "Lazy: size must be a whole number >= 1; found 0."),
        (lambda: samples(4, 0), 4.0, ValueError, "found 4.0"),
        (lambda: samples(4, 0), True, ValueError, "found True"),
    ],
)
def test_what_lazy_refuses(load: Any, size: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace(".", r"\.")):
        eq.Lazy(load, size)


def test_a_run_on_lazy_data_resumes(tmp_path: Path) -> None:
    def built() -> eq.Federation:
        return federation("scaffold", data=lazy_copies(), participation=0.4, tests=TESTS)

    whole = built()
    whole.fit(4, progress=False)
    built().fit(2, progress=False, directory=tmp_path)
    again = built()
    again.resume(tmp_path)
    again.fit(2, progress=False, directory=tmp_path)
    assert identical(whole, again)
    other = federation("scaffold", data=lazy_copies()[::-1], participation=0.4, tests=TESTS)
    with pytest.raises(eq.CheckpointError, match="sizes is"):
        other.resume(tmp_path)


def test_everybody_alone_on_lazy_data() -> None:
    a, b = (
        federation(data=d, tests=TESTS, participation=0.4, server_validation=samples(70, 2)).standalone(
            2, progress=False
        )
        for d in (clients(), lazy_copies())
    )
    assert a == b


# memory
GROWTH = """
import sys, torch, equipoise as eq
torch.set_num_threads(1)
N, method, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def loader(k):
    return lambda: (torch.randn(8, 500, generator=torch.Generator().manual_seed(k)), torch.arange(8) % 10)

net = torch.nn.Sequential(torch.nn.Linear(500, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
fed = eq.Federation(
    net, [eq.Lazy(loader(k), 8) for k in range(N)], method, participation=20 / N, engine="sequential", tests={"a": loader(0)()}
)
fed.fit(12, progress=False, directory=directory or None)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedfv"])
@pytest.mark.parametrize("saved", [False, True])
def test_memory_grows_with_who_takes_part_not_with_who_is_registered(method: str, saved: bool, tmp_path: Path) -> None:
    """State of 10,000 clients in memory would be 2 GB."""
    few, many = (
        int(
            subprocess.run(
                [sys.executable, "-c", GROWTH, str(n), method, str(tmp_path / str(n)) if saved else ""],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for n in (100, 10_000)
    )
    assert many < 1.3 * few
