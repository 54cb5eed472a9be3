"""What a real GPU computes, beside a processor; on a machine without one, test_devices.py and test_replay.py pretend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.methods import METHODS
from equipoise.networks import build
from equipoise.system import replay
from helpers import N_CLASSES, federation, fitted, identical, normal, told

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
ENGINES = ["sequential", "stacked"]


def trained(method: str, engine: str = "sequential", **given: Any) -> eq.Federation:
    """Two rounds in double precision, of clients with up to nine steps an epoch."""
    settings = {"kind": "batchnorm", "engine": engine, "batch_size": 4, "device": "cuda"}
    return fitted(method, 2, **settings | given)


def convolutional(**given: Any) -> eq.Federation:
    """Two rounds of a small ResNet in single precision."""
    net = build("resnet10", (3, 16, 16), N_CLASSES, width=8)
    data = [(normal(n, 3, 16, 16, seed=n).float(), torch.arange(n) % N_CLASSES) for n in (64, 40, 52)]
    return fitted("fedavg", 2, net=net, data=data, server_validation=data[0], device="cuda", **given)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_gpu_agrees_with_the_processor(method, engine):
    on_gpu = trained(method, engine).progress.tensors()
    on_processor = trained(method, engine, device="cpu").progress.tensors()
    assert all(x.is_cuda for x in on_gpu.values())
    assert on_gpu.keys() == on_processor.keys()
    for name, value in on_processor.items():
        torch.testing.assert_close(on_gpu[name].cpu(), value, rtol=1e-7, atol=1e-8, msg=name)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_replayed_steps_and_a_second_run_have_the_same_bits(monkeypatch, method, engine):
    replayed, again = trained(method, engine), trained(method, engine)
    assert identical(replayed, again)
    assert told(replayed) == told(again)
    monkeypatch.setenv(replay.SWITCH, "0")
    assert identical(replayed, trained(method, engine))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gpu_makes_graphs(monkeypatch, engine):
    replays = []
    capture = replay._CudaGraphs.capture
    monkeypatch.setattr(
        replay._CudaGraphs, "capture", lambda self, call: replays.append(capture(self, call)) or replays[-1]
    )
    trained("fedavg", engine)
    assert replays
    assert replay.graphs(torch.device("cuda")).refused is None


@pytest.mark.parametrize("switch", ["1", "0"])
def test_convolutions_repeat_their_bits(monkeypatch, switch):
    monkeypatch.setenv(replay.SWITCH, switch)
    assert identical(convolutional(batch_size=8), convolutional(batch_size=8))


def test_half_precision_runs_on_a_gpu():
    full, half = convolutional(batch_size=8), convolutional(batch_size=8, precision="bf16")
    assert not identical(full, half)
    assert all(x.isfinite().all() for x in half.progress.tensors().values())


def test_a_run_that_starts_on_a_gpu_may_end_on_a_processor(tmp_path):
    fitted("fedbn+scaffold", 1, kind="batchnorm", device="cuda").save(tmp_path)
    for device in ("cuda", "cpu"):
        later = federation("fedbn+scaffold", kind="batchnorm", device=device)
        later.resume(tmp_path)
        later.fit(1, progress=False)
        whole = fitted("fedbn+scaffold", 2, kind="batchnorm", device="cpu")
        for name, value in whole.progress.tensors().items():
            torch.testing.assert_close(later.progress.tensors()[name].cpu(), value, rtol=1e-7, atol=1e-8, msg=name)


def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"device 'cuda:99' is not there; found \d+ GPUs?, the first is cuda:0\."):
        fitted("fedavg", 1, device="cuda:99")
