"""Forecasts: what is there is counted to the byte, and nothing is refused or changed wrongly."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core import client_rows as rows
from equipoise.federation import forecast as forecasts
from equipoise.federation.forecast import duration, size
from equipoise.federation.round import one_round
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from equipoise.system import memory
from equipoise.system.memory import LIMIT, free
from helpers import UNEQUAL, clients, federation, identical, samples
from run_helpers import SCENARIO, TINY, cache, equipoise

METHODS = (
    "fedavg",
    "scaffold+fedheal",
    "ditto-personal+fedprox+fphl(tau=0.6)",
    "fedproto+fedsac",
    "cffl",
)  # all kinds of state


def foretold(fed: eq.Federation, rounds: int = 4, **more: Any) -> eq.Forecast:
    return eq.forecast(fed, rounds, progress=False, **more)


def test_words_for_amounts() -> None:
    assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30)] == ["0 B", "1,023 B", "1.5 KiB", "5.0 MiB", "3.0 GiB"]
    told = [duration(s) for s in (0.0123, 0.5, 59, 119, 180, 7200, 200_000)]
    assert told == ["0.012 s", "0.5 s", "59 s", "119 s", "3.0 min", "2.0 h", "2.3 days"]


def test_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("2048", 2048), ("1.5 MiB", 3 << 19)):
        monkeypatch.setenv(LIMIT, text)
        assert free(torch.device("cpu")) == expected
    for text in ("-1", "3 bananas", "9" * 400):
        monkeypatch.setenv(LIMIT, text)
        with pytest.raises(ValueError, match=rf"{LIMIT}={text}: expected a number of bytes"):
            free(torch.device("cpu"))


# every method
@pytest.mark.parametrize("method", METHODS)
def test_a_forecast_leaves_no_trace(method: str, tmp_path: Path) -> None:
    """State and files are counted right, and the federation stays as it was."""
    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    fed, other = (federation(method, net=net, tests={"a": samples(30, 1)}) for _ in range(2))
    plan, bare = foretold(fed, directory=tmp_path / "run"), foretold(other)
    assert identical(fed, other)
    assert fed.records == []
    assert not list(tmp_path.iterdir())
    trial = fed.trial
    assert (plan.rounds, plan.clients, plan.cohort) == (4, 5, 4)
    private = trial.method.private(trial.model) is not None
    assert trial.model.size * 8 * (11 if private else 7) <= plan.needed
    assert min(plan.training, plan.evaluation) > 0
    assert (plan.alone > 0) == fed.collaborative
    told = json.loads(json.dumps(plan.as_dict()))
    assert (told["needed"], told["seconds"]) == (plan.needed, plan.seconds)
    assert ("every client trains alone" in str(plan)) == fed.collaborative

    fed.fit(4, progress=False, directory=tmp_path / "run")
    other.fit(4, progress=False)
    assert identical(fed, other), "the forecast left a trace"
    state = sum(x.nbytes for x in fed.progress.tensors().values())
    (file,) = (tmp_path / "run/checkpoint").glob("state-*.safetensors")
    assert state <= file.stat().st_size <= state + 5000
    written = (tmp_path / "run/metrics.jsonl").stat().st_size
    assert bare.disk == 0
    assert 0.5 < (plan.disk - 2 * state) / written < 2


def test_checkpoints_that_are_kept_take_space(tmp_path: Path) -> None:
    one, three = (foretold(federation("scaffold"), directory=tmp_path, keep=keep) for keep in (1, 3))
    fed = federation("scaffold")
    fed.fit(4, directory=tmp_path, progress=False, keep_checkpoints=3)
    state = sum(x.nbytes for x in fed.progress.tensors().values())
    assert abs(three.disk - one.disk - 2 * state) < 100  # records differ by their digits
    assert sum(x.stat().st_size for x in tmp_path.glob("checkpoint/*")) < three.disk + 4 * 5000


def test_steps_are_those_of_training() -> None:
    assert foretold(federation(steps=5)).steps == 5
    steps = [-(-n // 8) * 2 for n in UNEQUAL]
    assert foretold(federation()).steps == sum(steps) / 5


def test_what_absent_clients_remember_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = foretold(federation("scaffold", participation=0.4))
    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    outside = foretold(fed := federation("scaffold", participation=0.4))
    assert (inside.disk, outside.disk) == (0, 5 * fed.model.n_params * 8)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_time_is_that_of_a_round(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that counts the rounds: a long round is trained once, a short one twice."""
    fed = federation("scaffold", engine=engine, workers=2, tests={"a": samples(30, 1)})
    for long, expected in ((False, 2), (True, 1)):
        taken = []

        def counted(*told: Any, taken: list[int] = taken) -> Any:
            taken.append(told[1].t)
            return one_round(*told)

        monkeypatch.setattr(forecasts, "one_round", counted)
        monkeypatch.setattr(forecasts, "SHORT", 0.0 if long else 1e9)
        plan = foretold(fed)
        assert taken == [0] * expected
        assert (plan.engine, plan.why) == fed.engine_choice
        assert plan.workers == (1 if engine == "sequential" else 2)
        assert plan.seconds == pytest.approx(4 * plan.seconds_per_round)


def test_what_cannot_be_forecast() -> None:
    with pytest.raises(ValueError, match="rounds must be a whole number >= 1; found 0"):
        foretold(federation(), 0)
    data = [(x * float("nan"), y) for x, y in clients()]
    with pytest.raises(eq.QuorumError, match="client-0"):
        foretold(federation(data=data, participation=1.0))


# refusal
def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = foretold(federation())
    assert plan.check() is plan
    tight = replace(plan, free=int(plan.needed) - plan.held + 1)
    assert tight.check() is tight
    assert replace(plan, free=None).check() is not None


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    plan = replace(foretold(federation(), directory=tmp_path), free=0, held=10)
    with pytest.raises(
        eq.ForecastError,
        match=r"needs about .* of memory \(a round of 4 clients\), and there are 10 B for it\. Let fewer",
    ):
        plan.check()
    with pytest.raises(eq.ForecastError, match=r"needs about .* of disk, and 7 B are free\. Free some"):
        replace(plan, free=None, disk_free=7).check()


def test_what_is_certain_is_refused_without_a_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory for one client in training, and for the updates of a round memory or a disk."""
    settings = {
        "network": "mlp",
        "scenario_options": {"clients": 40, "train": [400] * 4, "test": [20] * 4},
        "rounds": 1,
    }
    every = configure("fedavg", "digits", **settings)
    monkeypatch.setenv(LIMIT, "5MiB")
    with pytest.raises(
        eq.ForecastError, match=r"at least \S+ MiB of memory \(40 clients x 656,810 numbers\).*--participation"
    ):
        runs.check(every)
    monkeypatch.setenv(LIMIT, "30MiB")
    runs.check(configure("fedavg", "digits", participation=0.2, **settings))
    assert caplog.messages == []
    runs.check(every)
    assert "updates of a round, 100.2 MiB, exceed the free memory and are kept in a file" in caplog.messages[0]
    with pytest.raises(eq.ForecastError, match=r"at least 107\.7 MiB of memory"):  # 40 own copies, and 3 in training
        runs.check(configure("standalone", "digits", **settings))
    with monkeypatch.context() as small:  # temporary files are in memory
        small.setattr(memory, "holds", lambda _: True)
        with pytest.raises(
            eq.ForecastError, match=r"at least 107\.7 MiB of memory .* set TMPDIR to a directory on a disk"
        ):  # 40 updates, and 3 in training
            runs.check(every)
    with monkeypatch.context() as full:
        full.setattr(forecasts.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
        with pytest.raises(
            eq.ForecastError, match=r"take 100\.2 MiB .*30\.0 MiB of memory are free, and 1\.0 MiB on the"
        ):
            runs.check(every)
    monkeypatch.setenv(LIMIT, "8GiB")
    runs.check(every)
    assert len(caplog.messages) == 1


def test_updates_on_disk_are_no_need_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 MB of updates in a file, of which the system keeps what it likes in memory."""
    data = [(torch.zeros(4, 500), torch.tensor([0, 1, 0, 1]))] * 60
    net = nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 2))
    fed = eq.Federation(net, data, "fedavg", batch_size=4, engine="sequential", workers=1)
    whole = forecasts.forecast(fed, 1, progress=False)
    monkeypatch.setenv(LIMIT, "20MiB")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    small = forecasts.forecast(fed, 1, progress=False)
    assert (whole.disk, small.disk) == (0, 0)  # of the run's folder
    if Path("/proc/self/status").exists():
        assert small.needed < whole.needed


@pytest.mark.parametrize(("kind", "inside"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("btrfs", False)])
def test_whether_a_folder_is_in_memory(
    kind: str, inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(
        f"/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nx {tmp_path} {kind} rw 0 0\n"
    )
    monkeypatch.setattr(memory, "Path", lambda path: tmp_path / "mounts" if path == "/proc/mounts" else Path(path))
    assert memory.holds(str(tmp_path)) == memory.holds(str(tmp_path / "deeper")) == inside
    assert not memory.holds("/var")
    assert memory.holds("/dev/shm/x")
    (tmp_path / "mounts").unlink()
    assert not memory.holds("/dev/shm")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named() -> None:
    """Also in a task of a cluster, which looks at the memory first."""
    with pytest.raises(ValueError, match="device 'cuda' needs a CUDA build of PyTorch and a GPU"):
        runs.federation(configure("fedavg", "digits", device="cuda"), trains=True)


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
        "time  ",
        "the whole run: about",
        "engine stacked",
    ):
        assert word in done.out
    assert list(tmp_path.iterdir()) == []


def test_dry_run_as_json(equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text("rounds = 9\nquorum = 0.25\n[set]\nfedprox.mu = 0.5\nfedheal.tau = 0.5\n")
    words = ("--config", "my.toml", "--method", "fedprox", "--rounds", "7")
    done = equipoise("run", "--dry-run", "--json", *TINY, *words)
    plan = json.loads(done.out)
    settings = {name: (x["value"], x["origin"]) for name, x in plan["settings"].items()}
    assert (settings["rounds"], settings["fedprox.mu"]) == ((7, "command line"), (0.5, "my.toml"))
    assert (settings["quorum"], settings["least_group"]) == ((0.25, "my.toml"), (10, "default"))
    assert (settings["lr"][1], settings["seed"][1], "fedheal.tau" in settings) == ("scenario", "default", False)
    assert plan["seconds"] == pytest.approx(7 * (plan["training"] + plan["evaluation"]))
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
    monkeypatch.setattr(memory, "taken", lambda device: 0)
    done = equipoise("run", "--dry-run", *TINY)
    assert (done.status, "the whole run" in done.out) == (1, True)
    assert "needs about" in done.err


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
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from equipoise.system import memory
config = configure(sys.argv[1], "digits", network=sys.argv[2], rounds=2, epochs=1)
torch.set_num_threads(1)
if sys.argv[3] == "plan":
    print(runs.plan(config, runs.Path("."), progress=False).needed)
else:
    fed, data = runs.federation(config)
    fed.fit(2, progress=False)
    print(memory.most_taken(torch.device('cpu')))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell the memory of a process")
@pytest.mark.parametrize(("method", "network"), [("scaffold", "mlp"), ("fedavg", "cnn")])
def test_memory_is_about_what_a_run_takes(method: str, network: str, tmp_path: Path) -> None:
    """The forecast beside what a run of two rounds, in a process of its own, took at most."""
    told, real = (
        float(
            subprocess.run(
                [sys.executable, "-c", TRUTH, method, network, what], capture_output=True, text=True, check=True
            ).stdout
        )
        for what in ("plan", "run")
    )
    assert 0.6 < told / real < 1.4
