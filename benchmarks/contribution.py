"""Contribution of clients: the models of 256 coalitions, scored together and one after another; exact values of a round.

Of 8 clients, on 500 samples: mean loss and accuracy of each model. The plain loop loads each model by `load_state_dict` and evaluates
the whole set in one forward pass; making the models of the coalitions is not in its time.

    python benchmarks/contribution.py            # print the table
    python benchmarks/contribution.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.table import Table
from round import machine, options, show
from torch import Tensor
from torch.nn import functional

import equipoise as eq
from equipoise.contribution.exact import Exact
from equipoise.federation.coalitions import RoundGame
from equipoise.federation.round import Played, one_round
from equipoise.federation.scoring import Mixture, tally_of
from equipoise.networks import build
from equipoise.system import threads

CLIENTS, COALITIONS, SAMPLES, CLASSES = 8, 256, 500, 10
TOLERANCE = 1e-5  # largest difference of a mean loss, relative where that is above 1


@dataclass(frozen=True)
class Workload:
    """A network, and how many times as fast its models are to be scored; None: without a promise."""

    name: str
    network: str
    shape: tuple[int, ...]
    target: float | None
    options: dict[str, Any] = field(default_factory=dict)
    coalitions: int = COALITIONS


WORKLOADS = (
    Workload("mlp, 60-32-10", "mlp", (60,), 8, {"hidden": [32]}),
    Workload("mlp, 3x32x32", "mlp", (3, 32, 32), 5),
    Workload("mlp, 1x28x28", "mlp", (1, 28, 28), None),
    Workload("mlp, 64 inputs", "mlp", (64,), None),
    Workload("cnn, 3x32x32", "cnn", (3, 32, 32), 5),
    Workload("cnn, 1x28x28", "cnn", (1, 28, 28), None),
    Workload("resnet10, 3x32x32", "resnet10", (3, 32, 32), None, coalitions=16),
)


@dataclass(frozen=True)
class Result:
    """Milliseconds, medians, of the plain loop and of Equipoise; the ratio of single alternations; largest difference of a mean loss."""

    name: str
    plain: float | None
    ours: float
    low: float | None
    high: float | None
    target: float | None
    difference: float | None


def federation(work: Workload, clients: int) -> tuple[eq.Federation, tuple[Tensor, Tensor]]:
    """Clients of 20 samples, and a set to score on."""
    generator = torch.Generator().manual_seed(0)

    def data(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, *work.shape, generator=generator), torch.randint(0, CLASSES, (n,), generator=generator)

    net, test = build(work.network, work.shape, CLASSES, seed=0, **work.options), data(SAMPLES)
    given = [data(20) for _ in range(clients)]
    return eq.Federation(net, given, "fedavg", eq.SGD(lr=0.01), batch_size=10, server_validation=test), test


def milliseconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - began)


def measure(work: Workload, alternations: int) -> Result:
    """Score the same models by both sides in turn."""
    fed, (x, y) = federation(work, CLIENTS)
    model, data = fed.trial.model, fed.trial.oracle.source
    generator = torch.Generator().manual_seed(1)
    parts = 0.01 * torch.randn(CLIENTS, model.size, generator=generator).abs()
    weights = torch.rand(work.coalitions, CLIENTS, generator=generator)
    mixture = Mixture(model.initial, parts, weights / weights.sum(1, keepdim=True))
    models = mixture if model.dense is not None else mixture[:]
    net = build(work.network, work.shape, CLASSES, seed=0, **work.options).eval()
    found, P = dict[str, Any](), model.n_params
    states = [model.parts(vector[:P], vector[P:]) for vector in mixture[:]]

    @torch.no_grad()
    def plain() -> None:
        scores = []
        for state in states:
            net.load_state_dict(state, strict=False)  # without counters of batches
            logits = net(x)
            scores.append((float(functional.cross_entropy(logits, y)), float((logits.argmax(1) == y).float().mean())))
        found["plain"] = torch.tensor(scores)

    def ours() -> None:
        found["ours"] = tally_of(model, models, data)

    plain(), ours()
    losses = found["plain"][:, 0]
    difference = float(((losses - found["ours"].mean_loss).abs() / losses.clamp(min=1)).max())
    if not difference < TOLERANCE:
        raise SystemExit(f"{work.name}: mean losses differ by {difference:.1e}; expected < {TOLERANCE}.")
    turns = [(milliseconds(plain), milliseconds(ours)) for _ in range(alternations)]
    a, b = (statistics.median(side) for side in zip(*turns, strict=True))
    ratios = [first / second for first, second in turns]
    return Result(work.name, a, b, min(ratios), max(ratios), work.target, difference)


def exact(work: Workload, alternations: int) -> Result:
    """Exact Shapley values of a round of 10 clients: all 1,024 coalitions, from their weights to the values."""
    fed, _ = federation(work, 10)
    seen = list[Played]()
    one_round(fed.trial, fed.progress, 1, seen.append)
    sets = {"validation": fed.trial.oracle.source}

    def values() -> None:
        game = RoundGame(fed.trial, seen[0], sets, ("loss", "accuracy")).game()
        Exact()(game, np.random.default_rng(0))

    values()
    taken = statistics.median(milliseconds(values) for _ in range(alternations))
    return Result(f"exact values of 10 clients: {work.name}", None, taken, None, None, None, None)


COLUMNS = ("models", "plain, ms", "Equipoise, ms", "times as fast", "range", "target", "difference")


def row(r: Result) -> tuple[str, ...]:
    if r.plain is None:
        return r.name, "", f"{r.ours:.0f}", "", "", "", ""
    target = "" if r.target is None else f"{r.target:g}"
    times = f"{r.plain / r.ours:.1f}", f"{r.low:.1f} to {r.high:.1f}"
    return r.name, f"{r.plain:.0f}", f"{r.ours:.0f}", *times, target, f"{r.difference:.0e}"


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="Models of coalitions")
    for result in results:
        met = result.plain is None or result.target is None or result.plain / result.ours >= result.target
        grid.add_row(*row(result), style=None if met else "red")
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", *["---:"] * 6), *map(row, results)]
    grid = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"""# Models of coalitions

Made by `{shlex.join(["python", "benchmarks/contribution.py", *sys.argv[1:]])}`; do not edit.

{where}.

{grid}

Mean loss and accuracy of the models of {COALITIONS} coalitions (16 of resnet10) of {CLIENTS} clients on {SAMPLES} samples, medians of
{arguments.alternations} alternations, {arguments.threads} threads on both sides. **plain**: `load_state_dict`, one forward pass over the whole
set, loss and accuracy of each model; **times as fast**: the one over the other; **range**: in single alternations; **difference**: largest of a
mean loss, relative where that is above 1. **exact values**: a round's Shapley values of loss and accuracy by all 1,024 coalitions, with the rule's weights of each.
"""


def main() -> None:
    parser = options("Time the scoring of the models of coalitions, beside a plain loop.", "networks")
    parser.set_defaults(threads=1)
    parser.add_argument("--quick", action="store_true", help="a quarter of the coalitions")
    arguments = parser.parse_args()
    where = machine()
    torch.set_num_threads(arguments.threads)
    works = [work for work in WORKLOADS if arguments.only.lower() in work.name]
    if arguments.quick:
        works = [replace(work, coalitions=max(8, work.coalitions // 4)) for work in works]
    with threads.allow(arguments.threads):
        results = [measure(work, arguments.alternations) for work in works]
        results += [exact(work, arguments.alternations) for work in works if len(work.shape) == 1]
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
