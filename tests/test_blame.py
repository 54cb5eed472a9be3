"""An error names what has to change: the learning rate, a rule's number, the data, the network, or the code that raised."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.rule import State, Visit
from equipoise.engines.job import Answer
from equipoise.federation import guard
from equipoise.flower import in_process
from equipoise.runs import plan
from equipoise.runs.configuration import RunError
from equipoise.runs.plan import Outcome
from equipoise.system.errors import CODE, MEMORY, out_of_memory
from equipoise.system.text import Said
from helpers import clients, in_one, others_slow
from run_helpers import config

SIMULATED = ("sequential", "stacked", "workers")
NAN = float("nan")
Data = list[tuple[Tensor, Tensor]]


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def convolved() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    ).double()


class Odd(nn.Module):
    """Divides by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) / (x - x).sum(-1, keepdim=True)
        return out


def far(data: Data) -> Data:
    return [(1e3 * x, y) for x, y in data]


def spoilt(data: Data, which: tuple[int, ...]) -> Data:
    return [(x.index_fill(0, torch.tensor([0, 2]), NAN) if k in which else x, y) for k, (x, y) in enumerate(data)]


def said(fed: eq.Federation, rounds: int = 2, **how: Any) -> str:
    with pytest.raises(eq.QuorumError) as error:
        fed.fit(rounds, progress=False, **how)
    return str(error.value)


def federation(
    method: str = "fedavg", lr: Any = 0.05, net: Callable[[], nn.Module] = deep, **given: Any
) -> eq.Federation:
    data = given.pop("data", None) or clients()
    make = in_process if given.get("engine") == "sites" else eq.Federation
    return make(net(), data, method, eq.SGD(lr), **{k: x for k, x in given.items() if x != "sites"})


@in_one("engine", [*SIMULATED, "sites"])
@in_one(("method", "net", "lr"), [("fedavg", deep, 1e9), ("scaffold+fedheal", convolved, 1e13), ("afl", deep, 1e20)])  # fmt: skip
def test_a_learning_rate_that_is_too_large_is_named(engine: str, method: str, net: Any, lr: float) -> None:
    fed = federation(method, lr, net, data=far(clients()), engine=engine, epochs=3)
    assert said(fed) == f"training diverged in 5 of 5 clients in round 0: lower the learning rate ({lr:g})."


def test_the_rate_is_that_of_the_round() -> None:
    jump = lambda t: (1e-12, 1e30)[t]  # noqa: E731
    fed = federation(lr=jump, epochs=3)
    assert said(fed) == (
        "training diverged in 5 of 5 clients in round 1: lower the learning rate (1e+30). The state before round 1 is kept."
    )
    layers = federation(lr={"": 1e10, "2": 1e20, "0": 0.0}, data=far(clients()), epochs=3)
    assert "in round 0: lower the learning rate (1e+20)" in said(layers)


@pytest.mark.parametrize("engine", ["sequential", "stacked", "sites"])
@pytest.mark.parametrize(
    ("method", "blame"),
    others_slow(
        [
            ("fedprox(mu=1e12)", "it does not without fedprox(mu=1000000000000.0); change mu, or"),
            ("fedavgm+fedprox(mu=1e12)+scaffold", "it does not without fedprox(mu=1000000000000.0); change mu, or"),
            (
                "dp(noise=1e300, clip=1e300)",
                "it does not without dp(clip=1e+300, noise=1e+300); change clip or noise, or",
            ),
            ("ditto(lam=1e11)", "it does not without ditto(lam=100000000000.0); change lam, or"),
        ],
        fast=(1, 2),
    ),
)
def test_a_rule_whose_term_is_too_strong_is_named(engine: str, method: str, blame: str) -> None:
    told = said(federation(method, engine=engine, epochs=20))
    assert told == f"training diverged in 5 of 5 clients in round 0: {blame} lower the learning rate (0.05)."


def test_data_are_named_by_client() -> None:
    fed = federation(data=spoilt(clients(), (1, 3)), quorum=0.5)
    fed.fit(1, progress=False)
    reason = "the data hold NaN or infinity: correct 2 of 13 samples, or leave them out"
    assert [(q["name"], q["reason"]) for q in fed.records[0]["quarantined"]] == [
        ("client-1", reason.replace("13", str(len(clients()[1][1])))),
        ("client-3", reason.replace("13", str(len(clients()[3][1])))),
    ]
    told = said(federation(data=spoilt(clients(), (0, 1, 2, 4))))
    assert told.startswith(
        "the data hold NaN or infinity in 4 of 5 clients (client-0, client-1, client-2, ...) in round 0: client-0: correct 2 of "
    )
    assert told.endswith("leave them out. 1 of 5 clients answered well, and the quorum is 50%.")


def test_a_network_that_gives_no_number_is_named() -> None:
    assert said(federation(net=Odd)) == (
        "the network gives a loss that is not finite before any training in 5 of 5 clients in round 0: look at its layers, and "
        "at the scale of the inputs."
    )


@dataclasses.dataclass(frozen=True)
class Raising(eq.Rule):
    """Has a fault."""

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        raise KeyError("my rule")


@pytest.mark.parametrize("engine", SIMULATED)
def test_an_error_of_the_users_code_is_said_once(engine: str) -> None:
    fed = eq.Federation(deep(), clients(), Raising(), engine=engine)
    assert said(fed) == "0 of 5 clients answered well, and the quorum is 50%. 5 of 5 clients: KeyError: 'my rule'."


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 99 bytes\nmore")]
)
def test_full_memory_is_no_fault_of_a_client(error: Exception) -> None:
    reason = Answer.failed(0, error).error
    assert reason is not None
    with pytest.raises(
        eq.QuorumError,
        match=r"^memory ran out in 2 of 2 clients in round 3: take a smaller batch size, or fewer workers \(",
    ):
        guard.quorum(0, 2, 0.5, [("a", reason), ("b", reason)], 3)


def test_what_a_quorum_allows_is_not_blamed_for_full_memory() -> None:
    full = Answer.failed(0, MemoryError("no room")).error
    assert full is not None
    bad = [("a", Said("the data hold NaN or infinity: x", guard.DATA)), ("b", Said("TypeError: y", CODE)), ("c", full)]
    guard.quorum(8, 10, 0.5, bad[:2])
    guard.quorum(7, 10, 0.5, bad, away=True)
    with pytest.raises(eq.QuorumError, match=r"^memory ran out in 1 of 10 clients \(c\)") as error:
        guard.quorum(7, 10, 0.5, bad)
    assert (error.value.kind, error.value.bad) == (MEMORY, tuple(bad))
    assert "NaN" not in str(error.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
)
def test_the_errors_of_a_full_gpu_are_known(error: Exception) -> None:
    assert out_of_memory(error)


def test_reasons_of_several_kinds_are_counted() -> None:
    diverged = Said("training diverged: lower the learning rate (1)", guard.DIVERGED)
    bad = [("a", diverged), ("b", "OSError: gone"), ("c", "OSError: gone"), ("d", "x"), ("e", "y")]  # fmt: skip
    with pytest.raises(eq.QuorumError) as error:
        guard.quorum(1, 6, 0.5, bad)
    assert str(error.value) == (
        "1 of 6 clients answered well, and the quorum is 50%. 2 of 6 clients (b, c): OSError: gone; training diverged in 1 of 6 "
        "clients (a) in round 0: lower the learning rate (1); d: x; 1 more client for other reasons."
    )
    assert error.value.bad == tuple(bad)


def test_the_directory_keeps_who_failed_until_it_goes_on(tmp_path: Path) -> None:
    told = said(federation(lr=1e20, data=far(clients())), directory=tmp_path)
    kept = json.loads((tmp_path / "failed.json").read_text())
    assert (kept["round"], kept["error"], len(kept["quarantined"])) == (0, told, 5)
    again = federation(lr=1e20, data=far(clients()), quorum=0.0)
    again.resume(tmp_path)
    assert said(again, directory=tmp_path) == told
    with pytest.raises(
        eq.QuorumError, match=r"^fedprox, seed 4: training diverged in 5 of 5 clients in round 0: lower"
    ):
        eq.compare(deep(), far(clients()), ["fedprox"], [4], rounds=1, solver=eq.SGD(1e20), progress=False)


@pytest.mark.parametrize("failing", [1, 2])
def test_of_compared_runs_each_has_a_line_and_others_are_named_where_there_are_any(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "training diverged in 3 of 3 clients in round 0: lower the learning rate (1e+30)"
    monkeypatch.setattr(
        plan, "finish", lambda cells, *_, **__: [Outcome(cell, RunError(why)) for cell in cells[:failing]]
    )
    with pytest.raises(RunError) as error:
        plan.compare([config("fedavg", lr=1e30, seed=seed) for seed in range(2)], tmp_path)
    first, *lines = str(error.value).splitlines()
    assert first == f"{failing} of 2 runs failed."
    assert lines[:failing] == [f"fedavg-seed{k}: {why}" for k in range(failing)]
    assert lines[failing:] == [f"The others are complete; their page: equipoise report {tmp_path}"] * (failing < 2)
