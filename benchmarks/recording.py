"""What it costs to record losses, counts and hashes: a round on `digits` with them, as a ratio of one without.

The two federations are the same and take turns, a round each; both write their records and checkpoints. Without: the loss in
training is not kept, the global model is tested without counts and without the list of samples that are right, and lines and
files carry no hash. Processor time of the process, so that what else the machine does counts little.

    python benchmarks/recording.py            # print the table
    python benchmarks/recording.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.table import Table
from round import machine, options, show

import equipoise as eq
from equipoise.core.training import Training
from equipoise.federation import directory
from equipoise.federation.evaluation import EvaluationSets
from equipoise.networks import build
from equipoise.records import record as records
from equipoise.system import seals
from equipoise.system.claims import claimed

BOUND = 1.03
NETWORKS: dict[str, dict[str, Any]] = {"the scenario's": {}, "mlp": {"hidden": [64]}}


@dataclass(frozen=True)
class Result:
    """Of one network: processor time of a round with all records over that without, its range, and the bound."""

    network: str
    ratio: float
    low: float
    high: float
    bound: float = BOUND


class Forgetful(list[Any]):
    """A list that keeps nothing."""

    def append(self, item: Any) -> None:
        """Drop it."""


@contextmanager
def unrecorded() -> Iterator[None]:
    """Rounds without losses, counts and hashes."""
    objective, slopes = Training._objective, Training._slopes
    plain = records.line
    with ExitStack() as stack:
        for what, name, instead in (
            (Training, "_objective", lambda self, *given: objective(self, *given[:-1], Forgetful())),
            (Training, "_slopes", lambda self, *given: slopes(self, *given[:-1], Forgetful())),
            (EvaluationSets, "measured", lambda self, task, t, rounds: ()),
            (directory, "line", lambda record, before=None: plain(record)),
            (directory, "last_hash", lambda path: ""),
            (seals, "_digest", lambda text: 64 * "0"),
        ):
            stack.enter_context(patch.object(what, name, instead))
        yield


def federation(network: str, options: dict[str, Any]) -> eq.Federation:
    """FedAvg on `digits` as the command line trains it."""
    data = eq.scenario("digits", seed=0)
    name, more = (data.network, data.network_options) if network == "the scenario's" else (network, options)
    p = data.protocol
    return eq.Federation(
        build(name, data.shape, data.n_classes, seed=0, **more), data.clients, "fedavg",
        eq.SGD(0.001, p.momentum, p.weight_decay), tests=data.tests, groups=data.client_groups, transform=data.transform,
        epochs=p.epochs, batch_size=p.batch_size, workers=1,
    )  # fmt: skip


def measure(network: str, options: dict[str, Any], alternations: int) -> Result:
    """Both sides, one round each in turn, the last rounds of a run: in them most is recorded."""
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: (federation(network, options), Path(folder) / name) for name in ("with", "without")}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(alternations + 1):
            for name in sides if turn % 2 else reversed(sides):
                fed, path = sides[name]
                with claimed(path), unrecorded() if name == "without" else ExitStack():
                    began = time.process_time()
                    fed.fit(1, progress=False)
                    directory.append(path, fed.records[-1])
                    fed.save(path)
                    times[name].append(time.process_time() - began)
    pairs = [a / b for a, b in zip(times["with"][1:], times["without"][1:], strict=True)]
    ratio = statistics.median(times["with"][1:]) / statistics.median(times["without"][1:])
    return Result(network, ratio, min(pairs), max(pairs))


COLUMNS = ("network", "with records, times without", "range", "at most")


def row(result: Result) -> tuple[str, ...]:
    return result.network, f"{result.ratio:.3f}", f"{result.low:.3f} to {result.high:.3f}", f"{result.bound:g}"


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="A round on digits: what records cost")
    for result in results:
        grid.add_row(*row(result), style=None if result.ratio <= result.bound else "red")
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", "---:", "---:", "---:"), *(row(r) for r in results)]
    grid = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    command = shlex.join(["python", "benchmarks/recording.py", *sys.argv[1:]])
    return f"""# What records cost

Made by `{command}`; do not edit.

{where}.

{grid}

Processor time of a round of FedAvg on `digits` (20 clients) that records the loss of every client in training, counts per class and which
test samples are right, and writes records and checkpoint with their hashes, over that of a round without all these; median
of {arguments.alternations} alternations, and the range of single ones.
"""


def main() -> None:
    arguments = options("Time a round with and without all that is recorded, as a ratio.", "networks").parse_args()
    where = machine()
    torch.set_num_threads(1)
    chosen = {name: o for name, o in NETWORKS.items() if arguments.only.lower() in name}
    show(arguments, where, [measure(n, o, arguments.alternations) for n, o in chosen.items()], table, markdown)


if __name__ == "__main__":
    main()
