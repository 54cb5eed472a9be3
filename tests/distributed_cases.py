"""Federations of test_distributed.py, which its processes build again: ``python distributed_cases.py CASE DIRECTORY ROUNDS [WORKERS]``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.engines import distributed
from equipoise.testing.federations import N_INPUTS, UNEQUAL, clients, federation, network, samples

TESTS = {"a": samples(40, 1), "b": samples(20, 3)}
METHODS = ("fedavg", "scaffold", "fedheal", "fedsac", "saga", "fedfv", "feddyn", "krum", "ditto", "fedbn")
HERE = os.environ.get("RANK", "0")


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are others whenever they are read, so they are streamed."""

    def __init__(self, m: int) -> None:
        self.x, self.y = samples(UNEQUAL[m], m)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row] + 0.1 * torch.randn(N_INPUTS, dtype=torch.float64), self.y[row]


class Loading:
    """Loads a client's data, and notes in a folder which rank did."""

    def __init__(self, m: int, folder: Path) -> None:
        self.m, self.folder = m, folder

    def __call__(self) -> tuple[Tensor, Tensor]:
        (self.folder / f"{self.m}-{HERE}").touch()
        if self.m == 2 and "broken" in sys.argv:
            raise OSError("no such disk")
        return samples(UNEQUAL[self.m], self.m)


class Crop:
    """Shifts inputs by random numbers."""

    chances = (3,)

    def __call__(self, x: Tensor, shift: Tensor | None) -> Tensor:
        return x if shift is None else x + shift[:, :1].to(x.dtype)


class Fails(nn.Sequential):
    """A network that raises on the inputs of one client."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 50).any()):
            raise ArithmeticError("too large")
        out: Tensor = super().forward(x)
        return out


def dropping() -> nn.Module:
    layers = [*network().children()]
    return nn.Sequential(*layers[:2], nn.Dropout(0.4), *layers[2:]).double()


def failing() -> dict[str, Any]:
    data = clients()
    data[1] = (data[1][0] + 100, data[1][1])
    return {"data": data, "net": Fails(*network().children()), "participation": 1.0}


def lazy(folder: Path) -> list[eq.Lazy]:
    folder.mkdir(exist_ok=True)
    return [eq.Lazy(Loading(m, folder), n) for m, n in enumerate(UNEQUAL)]


def make(case: str, folder: Path, engine: Any, workers: int | None = None) -> eq.Federation:
    """The federation of a case; a name that is none is a method."""
    more: dict[str, Any] = {
        "absent": lambda: {"availability": 0.7, "dropout": 0.1, "participation": 1.0},
        "batchnorm": lambda: {"kind": "batchnorm", "sizes": (9, 13, 9, 13, 9)},
        "dropout": lambda: {"net": dropping()},
        "streamed": lambda: {"data": [Noisy(m) for m in range(5)], "net": network()},
        "lazy": lambda: {"data": lazy(folder / "loads"), "net": network(), "participation": 1.0},
        "broken": lambda: {"data": lazy(folder / "loads"), "net": network(), "participation": 1.0},
        "flips": lambda: {"data": lazy(folder / "loads"), "net": network(), "attack": "label-flip", "attackers": 0.4},
        "transform": lambda: {"transform": Crop()},
        "failing": failing,
        "alone": lambda: {"collaborative": True},
        "validated": lambda: {"validation": 0.2, "select": "best-validation"},
    }.get(case, dict)()
    method = {"absent": "scaffold", "batchnorm": "fedbn", "alone": "cffl"}.get(
        case, case if case in METHODS else "fedavg"
    )
    return federation(method, engine=engine, workers=workers, **{"tests": TESTS, **more})


def trouble(what: str) -> None:
    """Let rank 1 get into trouble; all others look out for it sooner."""
    distributed.PATIENCE = 3.0
    if HERE != "1":
        return
    if what in ("kill", "stop"):
        number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
        before = distributed._own
        visits: list[int] = []

        def own(*given: Any) -> Any:
            visits.append(1)
            if len(visits) == 3:
                os.kill(os.getpid(), number)
            return before(*given)

        distributed._own = own
    if what == "raise":
        distributed._own = lambda *given: {}["oh"]  # type: ignore[assignment]
    if what == "leave":
        raise SystemExit(3)


def main(case: str, folder: str, rounds: str, workers: str = "", what: str = "") -> None:
    torch.set_num_threads(1)
    trouble(what)
    if HERE == "1" and what in ("settings", "data"):
        more = {"batch_size": 9} if what == "settings" else {"sizes": (7, 13, 9, 4, 17)}
        federation("fedavg", engine=distributed.NAME, workers=int(workers) if workers else None, tests=TESTS, **more)
    fed = make(case, Path(folder), distributed.NAME, int(workers) if workers else None)
    run = Path(folder) / "run"
    if (run / "checkpoint").exists():
        rest = fed.resume(run)
        fed.fit(max(rest, int(rounds) - fed.progress.t), directory=run, progress=False)
    else:
        fed.fit(int(rounds), directory=run, progress=False)
    sys.stdout.write(f"trained by {fed.engine_choice.engine}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
