"""Runs that share the GPUs of a machine: which GPU a process sees, when the next run starts, what follows if memory runs out."""

import importlib
import math
import os
import sys
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.runs.plan import at_once
from equipoise.system import gpus as module
from equipoise.system.errors import MEMORY, RunError
from equipoise.system.gpus import Gpu, Room, gpus
from equipoise.system.workers import Processes, Workers
from helpers import clients, difference, until
from run_helpers import complaints, config, equipoise as equipoise

SMI = """#!/bin/sh
case "$*" in
  *query-gpu=index*) printf '0\\n1\\n' ;;
  *) cat "$(dirname "$0")/memory" ;;
esac
"""
RUNS = '''
import os
from pathlib import Path


def train(folder):
    """Three rounds; the first call of a run that has a file `full` finds no memory."""
    path = Path(folder)
    path.mkdir(exist_ok=True)
    (path / "gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"] + " " + os.environ["CUDA_DEVICE_ORDER"])
    if (path / "full").exists():
        (path / "full").unlink()
        raise MemoryError("no room")
    (path / "new").write_text("3")
    (path / "new").replace(path / "rounds")  # never read half written
'''


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file from which a stand-in of nvidia-smi reads the memory, MiB used and all."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o700)
    (folder / "memory").write_text("1000, 8000\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(module.VISIBLE, raising=False)
    monkeypatch.setattr(module, "PAUSE", 0.02)
    module._indices.cache_clear()
    return folder / "memory"


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that processes can call, in place of training."""
    (tmp_path / "standin_runs.py").write_text(RUNS)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("standin_runs", None)
    return importlib.import_module("standin_runs").train


def told(file: Path, text: str) -> None:
    """Let the stand-in, or its file of memory, be another from now on, never half of it."""
    new = file.with_name("new")
    new.write_text(text)
    new.chmod(0o700)
    new.replace(file)


def rounds(folder: Path) -> int:
    """Rounds that a stand-in of a run has ended."""
    return int(file.read_text()) if (file := folder / "rounds").exists() else 0


def test_gpus_are_named_as_cuda_and_the_environment_name_them(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus("auto") == [Gpu("cuda:0", "0"), Gpu("cuda:1", "1")]
    assert gpus("cuda:3, cuda:1") == [Gpu("cuda:3", "3"), Gpu("cuda:1", "1")]
    monkeypatch.setenv(module.VISIBLE, "GPU-8f,5")
    assert gpus("auto") == [Gpu("cuda:0", "GPU-8f"), Gpu("cuda:1", "5")]
    assert gpus("cuda:1") == [Gpu("cuda:1", "5")]
    assert gpus("cuda:1")[0].environment[module.VISIBLE] == "5"
    with pytest.raises(ValueError, match=r"devices: cuda:2 is not there: CUDA_VISIBLE_DEVICES is 'GPU-8f,5'\."):
        gpus("cuda:0,cuda:2")


@pytest.mark.parametrize("text", ["", "cuda", "cuda:", "0,1", "cuda:0;cuda:1", "cuda:-1", "cuda:0,", "all"])
def test_a_text_that_names_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="devices must be auto, or GPUs with commas, cuda:0,cuda:1; found"):
        gpus(text)


@pytest.mark.parametrize("text", ["cuda:0,cuda:0", "cuda:1,cuda:01"])
def test_a_gpu_that_is_named_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names a GPU twice"):
        gpus(text)


def test_all_gpus_need_somebody_who_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    module._indices.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(module.VISIBLE, raising=False)
    with pytest.raises(RunError, match=r"nvidia-smi names no GPU .* Name them: --devices cuda:0,cuda:1"):
        gpus("auto")
    assert Gpu("cuda:0", "0").memory == (0, float("inf"))


def enter(
    room: Room, path: Path, entered: list[str], leave: threading.Event, *, alone: bool = False
) -> threading.Thread:
    """A run that starts when there is room, and stays until an event."""

    def stay() -> None:
        with room.entered(path, alone=alone):
            entered.append(path.name)
            leave.wait(20)

    thread = threading.Thread(target=stay, daemon=True)
    thread.start()
    return thread


def test_a_run_waits_for_the_first_round_of_those_before_it_and_for_memory(smi: Path, tmp_path: Path) -> None:
    room = Room(Gpu("cuda:0", "0"), rounds)
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for path in (one, two, three):
        path.mkdir()
    entered: list[str] = []
    ends = [threading.Event() for _ in range(3)]
    threads = [enter(room, one, entered, ends[0])]
    until(lambda: entered == ["one"])
    threads.append(enter(room, two, entered, ends[1]))
    time.sleep(0.2)
    assert entered == ["one"]  # which has no round yet: what it needs is not known
    told(smi, "5000, 8000\n")
    told(one / "rounds", "1")
    time.sleep(0.2)
    assert entered == ["one"]  # which takes 5,000 of 8,000 MiB
    told(smi, "3000, 8000\n")
    time.sleep(0.2)
    assert entered == ["one"]  # it has taken 5,000 at a time
    room.need = 3000
    until(lambda: entered == ["one", "two"])
    threads.append(enter(room, three, entered, ends[2]))
    told(two / "rounds", "1")
    told(smi, "6000, 8000\n")
    time.sleep(0.2)
    assert entered == ["one", "two"]
    ends[0].set()
    ends[1].set()
    until(lambda: entered == ["one", "two", "three"])
    ends[2].set()
    for thread in threads:
        thread.join(20)
    assert (room.running, room.new) == (set(), {})


def test_nobody_starts_beside_a_run_that_has_the_gpu_alone(smi: Path, tmp_path: Path) -> None:
    room = Room(Gpu("cuda:0", "0"), lambda _: int(time.monotonic() * 1000))  # every run has a new round at any time
    entered: list[str] = []
    ends = {name: threading.Event() for name in ("other", "lonely", "second", "later")}
    threads = [enter(room, tmp_path / "other", entered, ends["other"])]
    until(lambda: entered == ["other"])
    threads.append(enter(room, tmp_path / "lonely", entered, ends["lonely"], alone=True))
    until(lambda: room.lonely == 1)
    threads.append(enter(room, tmp_path / "later", entered, ends["later"]))
    time.sleep(0.2)
    assert entered == ["other"]
    ends["other"].set()
    until(lambda: entered == ["other", "lonely"])
    threads.append(enter(room, tmp_path / "second", entered, ends["second"], alone=True))
    time.sleep(0.2)
    assert entered == ["other", "lonely"]  # also after its first round
    ends["lonely"].set()
    until(lambda: entered == ["other", "lonely", "second"])
    ends["second"].set()
    until(lambda: entered == ["other", "lonely", "second", "later"])
    ends["later"].set()
    for thread in threads:
        thread.join(20)
    assert room.lonely == 0


def test_a_gpu_that_does_not_answer_is_waited_for_and_a_plan_ends_meanwhile(smi: Path, tmp_path: Path) -> None:
    script, asked, go = smi.with_name("nvidia-smi"), tmp_path / "asked", tmp_path / "go"
    room = Room(Gpu("cuda:0", "0"), lambda _: time.monotonic_ns())
    entered: list[str] = []
    end = threading.Event()
    first = enter(room, tmp_path / "first", entered, end)
    until(lambda: entered == ["first"])
    refused: list[str] = []

    def wait_for_room() -> None:
        try:
            with room.entered(tmp_path / "second"):
                entered.append("second")
        except RunError as error:
            refused.append(str(error))

    second = threading.Thread(target=wait_for_room, daemon=True)
    for answer in ("exit 9", "true", "echo 5"):  # the driver is away; it says nothing, or half of a line
        told(script, f'#!/bin/sh\necho >> "{asked}"\n{answer}\n')
        if not second.is_alive():
            second.start()
        asked.unlink(missing_ok=True)
        until(lambda: asked.exists() and asked.stat().st_size > 2)  # asked again, as the answer let nobody in
        assert entered == ["first"]
    told(script, f'#!/bin/sh\necho > "{tmp_path}/late"\nwhile [ ! -e "{go}" ]; do sleep .05; done\necho 0, 8000\n')
    until((tmp_path / "late").exists)
    closing = threading.Thread(target=room.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()  # nobody holds the lock while the GPU is asked
    go.touch()
    second.join(20)
    end.set()
    first.join(20)
    assert (entered, refused) == (["first"], ["it was stopped before it began"])


def test_a_part_of_a_gpu_has_no_number_and_no_limit(smi: Path) -> None:
    assert Gpu("cuda:0", "0").memory == (1000, 8000)
    told(smi, "[N/A], [N/A]\n")
    assert Gpu("cuda:0", "0").memory == (0, math.inf)
    told(smi, "[Not Supported], 8000\n")
    assert Gpu("cuda:0", "0").memory == (0, math.inf)


def test_processes_that_are_there_already_see_their_gpu(smi: Path, tmp_path: Path, train: Any) -> None:
    """As those that a command starts before it has read a settings file."""
    with Workers(1) as kept, Processes(1, kept, [Room(Gpu("cuda:1", "1"), rounds)]) as where:
        where.submit(train, str(tmp_path / "run")).result(60)
    assert (tmp_path / "run" / "gpu").read_text() == "1 PCI_BUS_ID"


def test_processes_see_one_gpu_each(smi: Path, tmp_path: Path, train: Any) -> None:
    rooms = [Room(gpu, rounds) for gpu in gpus("auto")]
    with Processes(2, rooms=rooms) as where:
        futures = [where.submit(train, str(tmp_path / f"run{k}")) for k in range(4)]
        wait(futures, 60)
        assert all(future.exception() is None for future in futures)
    seen = {(tmp_path / f"run{k}" / "gpu").read_text() for k in range(4)}
    assert seen == {"0 PCI_BUS_ID", "1 PCI_BUS_ID"}


def test_a_run_without_memory_is_tried_once_more_alone(
    smi: Path, tmp_path: Path, train: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
        (folder / "full").touch()
    with Processes(2, rooms=[Room(Gpu("cuda:0", "7"), rounds)]) as where:
        futures: list[Future[Any]] = [where.submit(train, str(folder)) for folder in folders]
        wait(futures, 60)
    assert [future.exception() for future in futures] == [None, None]
    assert [rounds(folder) for folder in folders] == [3, 3]
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [f"{name}: the memory of cuda:0 ran out. It continues alone there." for name in ("first", "second")]


def test_a_run_that_has_too_little_memory_alone_fails(
    smi: Path, tmp_path: Path, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "standin_runs.py").write_text(RUNS.replace('(path / "full").unlink()', "pass"))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "full").touch()
    with Processes(1, rooms=[Room(Gpu("cuda:0", "7"), rounds)]) as where:
        future = where.submit(train, str(folder))
        wait([future], 60)
    with pytest.raises(RunError) as error:
        future.result()
    assert error.value.kind == MEMORY


def test_jobs_of_each_device_are_counted(smi: Path) -> None:
    shared = replace(config(), device="cuda", devices="cuda:0,cuda:1")
    assert at_once("2-per-device", [shared]) == 4
    assert at_once(None, [shared] * 9) == 2
    assert at_once("3", [shared]) == at_once(3, [shared]) == 3
    with pytest.raises(ValueError, match="--jobs 2-per-device needs --devices"):
        at_once("2-per-device", [config()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "gpu0"], "devices must be auto, or GPUs with commas, cuda:0,cuda:1; found 'gpu0'"),
        (["--devices", "cuda:0", "--device", "cuda:1"], "devices states where runs are trained, and device does, too"),
        (["--devices", "cuda:0", "--on", "ray"], "devices states where runs are trained, and on does, too"),
        (["--jobs", "2-per-device"], "--jobs 2-per-device needs --devices"),
        (["--jobs", "0"], "--jobs 0: expected a number >= 1, or one for each of --devices, 2-per-device"),
        (["--jobs", "two"], "--jobs two: expected a number >= 1"),
    ],
)
def test_what_cannot_be_done_with_devices_is_said(
    tmp_path: Path, equipoise: Any, arguments: list[str], message: str
) -> None:
    code, _, err = equipoise("compare", "fedavg", "qffl", "--runs", tmp_path, "--rounds", 1, *arguments)
    assert code == 2
    assert any(message in line for line in complaints(err))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["compare", "fedavg", "qffl"], ["tune", "fedavg"], ["benchmark", "fair-small"]])
def test_a_gpu_that_is_not_there_is_said(tmp_path: Path, equipoise: Any, command: list[str]) -> None:
    code, _, err = equipoise(*command, "--runs", tmp_path, "--devices", "cuda:0,cuda:1")
    assert code == 2
    assert "device 'cuda:0' needs a CUDA build of PyTorch and a GPU" in " ".join(complaints(err))


def test_no_result_depends_on_the_memory_of_the_machine(tmp_path: Path) -> None:
    """A client whose training found no memory is not left out: the run ends, and continues with all."""
    data, full = clients(), [False]

    def load() -> Any:
        if full[0]:
            raise MemoryError("Unable to allocate 8 GiB")
        return data[0]

    def federation() -> eq.Federation:
        torch.manual_seed(0)
        net = nn.Linear(6, 3).double()
        lazy = [eq.Lazy(load, len(data[0][1])), *data[1:]]
        return eq.Federation(net, lazy, "fedavg", solver=eq.SGD(0.1), seed=4, engine="sequential")

    whole = federation()
    whole.fit(3, progress=False)
    fed = federation()
    fed.fit(1, directory=tmp_path / "run", progress=False)
    full[0] = True
    with pytest.raises(
        eq.QuorumError, match=r"^memory ran out in 1 of 5 clients \(.*no result depends on the memory"
    ) as error:
        fed.fit(2, directory=tmp_path / "run", progress=False)
    assert error.value.kind == MEMORY
    full[0] = False
    again = federation()
    again.resume(tmp_path / "run")
    again.fit(2, directory=tmp_path / "run", progress=False)
    assert difference(again, whole) == 0
