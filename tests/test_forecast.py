"""Forecasts: what is there is counted to the byte, what takes time follows its law, and nothing is refused or changed wrongly."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core import client_rows as rows
from equipoise.data.samples import read
from equipoise.engines.job import Answer, Job
from equipoise.federation import forecast as forecasts
from equipoise.federation.forecast import LIMIT, Part, duration, free_memory, size
from equipoise.federation.tensor_memory import Watch
from equipoise.methods import METHODS
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from helpers import UNEQUAL, clients, federation, identical, samples
from run_helpers import SCENARIO, TINY, cache, equipoise

SUMS = ("scaffold+fedheal", "ditto-personal+fedprox+fphl(tau=0.6)", "fedproto+fedsac-no-aggregation(beta=3)")


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is measured once: no test looks at how long anything took."""
    monkeypatch.setattr(forecasts, "BUDGET", 0.0)


def foretold(fed: eq.Federation, rounds: int = 4, **more: Any) -> eq.Forecast:
    return eq.forecast(fed, rounds, progress=False, **more)


def part(parts: tuple[Part, ...], name: str) -> float:
    (found,) = [p.amount for p in parts if p.name == name]
    return found


# counting
def test_watch_counts_what_is_new_and_still_there() -> None:
    old = torch.zeros(1000)
    with Watch() as watch:
        old.add_(1)
        _ = old[:500].view(-1, 2)
        assert watch.peak == 0
        a = torch.zeros(100)
        b = a * 2
        assert watch.live == watch.peak == 800
        del a
        assert watch.live == 400
        b.mul_(3)
        c = b[3:]
        del b
        assert watch.live == 400, "a view keeps the memory"
        assert watch.start() == 400
        assert watch.peak == 400
        del c
    assert watch.live == 0


def test_watch_sees_what_backward_needs() -> None:
    w = torch.ones(10, requires_grad=True)
    with Watch() as watch:
        y = (w.exp() * 2).exp().sum()
        held = watch.live
        y.backward()
    assert held >= 2 * 40, "both exponentials are kept"
    assert watch.live < held + 40


def test_words_for_amounts() -> None:
    assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 GiB"]
    told = [duration(s) for s in (0.0123, 0.5, 59, 119, 180, 7200, 200_000)]
    assert told == ["0.012 s", "0.5 s", "59 s", "119 s", "3.0 min", "2.0 h", "2.3 days"]


@pytest.mark.parametrize(
    ("told", "expected"), [("2048", 2048), ("8GiB", 8 << 30), ("1.5 MiB", 3 << 19), ("2GB", 2 * 10**9)]
)
def test_limit_is_what_was_told(told: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, told)
    assert free_memory(torch.device("cpu")) == expected


@pytest.mark.parametrize("told", ["much", "-1", "3 bananas", "GiB", "9" * 400])
def test_limit_that_cannot_be_read(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, told)
    with pytest.raises(ValueError, match=rf"{LIMIT}={told}: expected a number of bytes"):
        free_memory(torch.device("cpu"))


# every method
@pytest.mark.parametrize("method", [*METHODS, *SUMS])
def test_every_method(method: str, tmp_path: Path) -> None:
    """State and updates are foretold to the byte, the federation stays as it was, and what is certain is not too much."""
    fed, other = (federation(method, tests={"a": samples(30, 1)}) for _ in range(2))
    plan = foretold(fed, directory=tmp_path / "run")
    assert identical(fed, other)
    assert fed.records == []
    assert not list(tmp_path.iterdir())
    e = fed.experiment
    assert (plan.rounds, plan.clients, plan.cohort) == (4, 5, 4)
    assert part(plan.memory, "updates of the round") == 4 * e.model.size * 8
    certain = forecasts.certain(e.model, e.method, e.solver, e.setup.sizes, e.settings.participation)
    sure = {p.name: p.amount for p in certain}
    for name in ("updates of the round", "answers beside them"):
        sure["updates of the round"] -= part(plan.memory, name)
    assert sure["updates of the round"] <= 0
    assert all(p.amount >= 0 for p in chain(plan.memory, plan.disk, plan.time, plan.once))
    assert plan.seconds > 0
    assert json.loads(json.dumps(plan.as_dict()))["needed"] == plan.needed
    assert str(plan).count("together") == 3 + bool(plan.once)

    fed.fit(4, progress=False, directory=tmp_path / "run")
    other.fit(4, progress=False)
    assert identical(fed, other), "the forecast left a trace"
    state = sum(x.nbytes for x in fed.progress.tensors().values())
    assert part(plan.memory, "state of the method") == state
    assert sure.get("state of the method", 0) <= state
    (file,) = (tmp_path / "run/checkpoint").glob("state-*.safetensors")
    assert state <= file.stat().st_size <= state + 5000
    assert part(plan.disk, "checkpoint") == 2 * state
    written = (tmp_path / "run/metrics.jsonl").stat().st_size
    assert 0.5 < part(plan.disk, "records") / written < 2


def test_steps_are_those_of_training() -> None:
    assert foretold(federation(steps=5)).steps == 5
    steps = [-(-n // 8) * 2 for n in UNEQUAL]
    assert foretold(federation()).steps == sum(steps) / 5


def test_what_absent_clients_remember_is_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = foretold(federation("scaffold", participation=0.4))
    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    outside = foretold(fed := federation("scaffold", participation=0.4), directory=tmp_path)
    P = fed.model.n_params
    moved = part(inside.memory, "state of the method") - part(outside.memory, "state of the method")
    assert moved == part(outside.disk, "absent clients") == 5 * P * 8
    sure = forecasts.certain(fed.model, fed.method, fed.solver, fed.experiment.setup.sizes, 0.4)
    assert part(sure, "state of the method") == P * 8, "the server's control variate"


def test_lazy_clients_count_while_they_take_part() -> None:
    data = clients((16, 16, 16, 16))
    here = foretold(federation(data=data, participation=0.5, validation=None))
    lazy = [eq.Lazy(lambda d=d: d, 16) for d in data]
    later = foretold(federation(data=lazy, participation=0.5, validation=None))
    each = sum(x.nbytes for x in data[0])
    assert part(here.memory, "data") - part(later.memory, "data") == 2 * each


def test_contributions_are_in_the_time() -> None:
    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    assert [p.name for p in foretold(federation("fedsac", net=net)).once] == ["every client alone"]
    given = federation("fedsac", net=net, contribution=[0.5] * 5)
    assert foretold(given).once == ()


@pytest.mark.parametrize("engine", ["sequential", "workers", "stacked"])
def test_every_engine(engine: str) -> None:
    fed = federation("scaffold", engine=engine, workers=2)
    plan = foretold(fed)
    assert plan.workers == (1 if engine == "sequential" else 2)
    assert (plan.engine, plan.why) == fed.engine_choice
    assert any(p.name.startswith("training of ") for p in plan.memory)


def test_a_client_that_cannot_train() -> None:
    data = [(x * float("nan"), y) if k == 4 else (x, y) for k, (x, y) in enumerate(clients())]

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.isnan().any():
                raise RuntimeError("not a number")
            return self.inner(x)

    fed = federation(data=data, net=Fails(), participation=1.0)
    with pytest.raises(
        ValueError, match=r"Nothing can be foretold, because client-4 cannot train: RuntimeError: not a nu"
    ):
        foretold(fed)


def test_rounds_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="rounds must be a whole number >= 1; found 0"):
        foretold(federation(), 0)


# time
class Clockwork:
    """An engine that takes exactly as long as a law says, on a clock of its own."""

    def __init__(self, stack: int = 1) -> None:
        self.now, self.stack, self.visited = 0.0, stack, 0

    def __call__(self, job: Job) -> Iterator[Answer]:
        for k in range(0, len(job.ids), self.stack):
            s, group = job.settings, range(k, min(k + self.stack, len(job.ids)))
            n = max(job.data[row].size for row in group)
            self.now += self.cost(n, s.batch_size, s.epochs, s.steps) * len(group) / self.stack
            self.visited += len(group)
            yield Answer(tuple(group), torch.empty(0), [], [])

    @staticmethod
    def cost(n: int, batch: int, epochs: int, steps: int | None) -> float:
        each = -(-n // batch)
        taken = epochs * each if steps is None else steps
        return 0.5 + 0.003 * n + 0.2 * taken + 0.01 * taken * n / each


def clocked(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], stack: int = 1, **settings: Any
) -> tuple[Any, Clockwork]:
    """The clock of a federation, run by clockwork, and that engine."""
    fed = federation(sizes=sizes, participation=1.0, **settings)
    engine = Clockwork(stack)
    e = replace(fed.experiment, engine=engine)
    seen, _, _ = forecasts._rehearse(e, fed.progress, 4)

    def seconds(f: Any, _: Any) -> float:
        before = engine.now
        f()
        return engine.now - before

    monkeypatch.setattr(forecasts, "_seconds", seconds)
    return forecasts._Clock(e, seen.job, len(sizes) if stack > 1 else 1), engine


@pytest.mark.parametrize("settings", [{"epochs": 10}, {"epochs": 1}, {"steps": 40}, {"steps": 1}])
def test_time_follows_its_law(settings: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From clients with few samples, epochs or steps to those with many."""
    sizes = (200, 210, 500, 900, 170)
    clock, engine = clocked(monkeypatch, sizes, **settings)
    expected = [Clockwork.cost(n, 8, settings.get("epochs", 2), settings.get("steps")) for n in sizes]
    assert clock.visit(sizes) == pytest.approx(sum(expected) / 5, rel=0.02)
    assert engine.visited <= 20


def test_time_of_small_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (5, 5, 6, 4, 5)
    clock, _ = clocked(monkeypatch, sizes, epochs=3)
    assert clock.visit(sizes) == pytest.approx(sum(Clockwork.cost(n, 8, 3, None) for n in sizes) / 5, rel=0.1)


def test_time_of_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is in a stack waits for the longest of it."""
    sizes = (100, 104, 97, 101, 40, 41)
    clock, _ = clocked(monkeypatch, sizes, stack=2, epochs=4)
    pairs = [Clockwork.cost(n, 8, 4, None) / 2 for n in (41, 41, 100, 100, 104, 104)]
    assert clock.stack == 2
    assert clock.visit(sizes) == pytest.approx(sum(pairs) / 6, rel=0.02)


def test_cut_data_are_the_first_samples() -> None:
    x, y = samples(10, 0)
    data = read((x, y), "a", x.dtype, x.device)
    few = forecasts._cut(data, 4)
    assert few.size == int(few.sizes) == 4
    assert torch.equal(few.batch(torch.arange(4), None)[0], x[:4])
    assert forecasts._cut(data, 10) is data


# refusal
def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = foretold(federation())
    assert plan.check() is plan
    tight = replace(plan, free=int(plan.needed) - plan.held + 1)
    assert tight.check() is tight
    assert replace(plan, free=None, disk_free=None).check() is not None


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    plan = replace(foretold(federation(), directory=tmp_path), free=0, held=10)
    with pytest.raises(
        eq.ForecastError, match=r"needs about .* of memory, and there are 10 B for it\. The largest part: .*"
    ):
        plan.check()
    with pytest.raises(
        eq.ForecastError, match=r"needs about .* of disk, and 7 B are free\. The largest part: checkpoint"
    ):
        replace(plan, free=None, disk_free=7).check()


def test_advice_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """The participation that the error names does fit, and twice as much does not."""
    settings = {
        "network": "mlp",
        "scenario_options": {"clients": 40, "train": [400] * 4, "test": [20] * 4},
        "rounds": 1,
    }
    monkeypatch.setenv(LIMIT, "30MiB")
    with pytest.raises(eq.ForecastError) as error:
        configure("fedavg", "digits", **settings)
    told = re.search(
        r"at least (\S+ MiB).*updates of the round.*40 clients x 656,810 numbers.*participation (0\.\d+)",
        str(error.value),
    )
    assert told is not None, str(error.value)
    share = float(told[2])
    assert configure("fedavg", "digits", participation=share, **settings).participation == share
    with pytest.raises(eq.ForecastError):
        configure("fedavg", "digits", participation=2 * share, **settings)
    monkeypatch.setenv(LIMIT, "8GiB")
    configure("fedavg", "digits", **settings)


def test_state_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"scenario_options": {"clients": 40, "train": [400] * 4, "test": [20] * 4}, "network": "mlp"}
    monkeypatch.setenv(LIMIT, "150MiB")
    configure("fedavg", "digits", **options)
    with pytest.raises(eq.ForecastError, match=r"updates of the round|state of the method"):
        configure("scaffold", "digits", **options)


def test_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation()
    forecasts.check_disk(fed.progress, tmp_path / "not/yet/there")
    full = type("Usage", (), {"free": 3})
    monkeypatch.setattr(forecasts.shutil, "disk_usage", lambda _: full)
    with pytest.raises(
        eq.ForecastError, match=r"A checkpoint of this run takes at least .*, and 3 B are free on the disk"
    ):
        forecasts.check_disk(fed.progress, tmp_path)


# the command line
def test_dry_run_writes_nothing(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = equipoise("run", "--dry-run", *TINY, "--method", "scaffold", "--rounds", "7")
    assert done.status == 0, done.err
    for word in (
        "7 rounds, 4 of 4 clients",
        "memory",
        "disk",
        "time of a round",
        "the whole run: about",
        "engine stacked",
    ):
        assert word in done.out
    assert list(tmp_path.iterdir()) == []


def test_dry_run_as_json(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = equipoise("run", "--dry-run", "--json", *TINY, "--rounds", "7")
    plan = json.loads(done.out)
    assert plan["needed"] == sum(p["amount"] for p in plan["memory"])
    assert plan["seconds"] == pytest.approx(7 * sum(p["amount"] for p in plan["time"]))
    assert (plan["rounds"], plan["clients"], plan["cohort"]) == (7, 4, 4)


@pytest.mark.parametrize("words", [("--dry-run",), ()])
def test_run_that_cannot_fit_stops_before_it_starts(
    equipoise: Any, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(LIMIT, "1MiB")
    done = equipoise("run", *words, "--scenario", SCENARIO, "--network", "mlp")
    assert done.status == 1
    assert "needs at least" in done.err
    assert "EQUIPOISE_MEMORY" in done.err
    assert list(tmp_path.iterdir()) == []


def test_dry_run_of_what_hardly_fits(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is certain fits, what is foretold does not: the plan is shown, and the status is 1."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(LIMIT, "700KiB")
    monkeypatch.setattr(forecasts, "resident", lambda peak=False: 0)
    done = equipoise("run", "--dry-run", *TINY)
    assert (done.status, "the whole run" in done.out) == (1, True)
    assert "needs about" in done.err


@pytest.mark.parametrize("workers", ["1", "3"])
def test_dry_run_with_as_many_workers_as_told(
    workers: str, equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = equipoise("run", "--dry-run", "--json", *TINY, "--engine", "workers", "--workers", workers)
    assert json.loads(done.out)["workers"] == int(workers)


def test_only_training_is_refused(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are written, and finished runs shown, where there is no memory for a round."""
    monkeypatch.chdir(tmp_path)
    assert equipoise("run", *TINY, "--rounds", "1", "--name", "one").status == 0
    monkeypatch.setenv(LIMIT, "1KiB")
    assert equipoise("export", "runs/one").status == 0
    assert equipoise("resume", "runs/one").status == 0
    (tmp_path / "runs/one/summary.json").unlink()
    assert "needs at least" in equipoise("resume", "runs/one").err


# the truth
TRUTH = """
import sys
import torch
from equipoise.federation import forecast as forecasts
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
config = configure(sys.argv[1], "digits", network=sys.argv[2], rounds=2, epochs=1)
torch.set_num_threads(1)
if sys.argv[3] == "plan":
    print(runs.plan(config, runs.Path("."), progress=False).needed)
else:
    fed, data = runs.federation(config)
    fed.fit(2, progress=False)
    print(forecasts.resident(peak=True))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell the memory of a process")
@pytest.mark.parametrize(("method", "network"), [("scaffold", "mlp"), ("fedavg", "cnn")])
def test_memory_is_about_what_a_run_takes(method: str, network: str, tmp_path: Path) -> None:
    told, real = (
        float(
            subprocess.run(
                [sys.executable, "-c", TRUTH, method, network, what], capture_output=True, text=True, check=True
            ).stdout
        )
        for what in ("plan", "run")
    )
    assert 0.6 < told / real < 1.4
