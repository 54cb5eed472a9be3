"""Give FedSAC other contributions than the accuracy of clients alone: values of a FedAvg run; print the table.

python tools/worth_fedsac.py --output runs/worth-fedsac    # finished runs are kept

Contributions of a client are max(value, 0) / max of all values, of the FedAvg run before, on the server's validation data. Fairness is always
the correlation of the accuracy alone and the accuracy after FedSAC, on test data.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest import mock

import numpy as np
import torch
from worth import by_class

import equipoise as eq
from equipoise.federation import worth
from equipoise.metrics.collaborative import client_range, collaborative_fairness
from equipoise.system.files import write_atomically

ROOT = Path(__file__).parents[1]
SCENARIOS = ("digits-pow", "digits-cla", "digits-dir")
UTILITIES = {"loss": "loss", "accuracy": "accuracy", "worst": "worst class"}
ALONE = "alone"
SOURCES = (ALONE, *UTILITIES)
COLUMNS = ("fairness", "mean", "max")
Result = Mapping[str, Any]


def federation(scenario: eq.Scenario, seed: int, method: str, **given: Any) -> eq.Federation:
    """A federation with the settings of the scenario."""
    how = scenario.protocol
    return eq.Federation(
        eq.network("mlp", in_shape=scenario.shape, n_classes=scenario.n_classes, **scenario.network_options),
        scenario.clients, method, eq.SGD(how.lr, momentum=how.momentum), tests=scenario.tests,
        transform=scenario.transform, server_validation=scenario.server_validation, epochs=how.epochs,
        batch_size=how.batch_size, steps=how.steps, seed=seed, **given,
    )  # fmt: skip


def shares(values: Sequence[float]) -> list[float]:
    """Contributions in [0, 1] from values: max(value, 0) / max; 0 for all clients if no value is positive."""
    positive = np.maximum(values, 0)
    return (positive / max(positive.max(), np.finfo(float).tiny)).tolist()


def measured(name: str, seed: int, rounds: int, evaluator: str) -> Result:
    """Contributions by source, and what clients reach with them."""
    scenario, began = eq.scenario(name, seed), time.perf_counter()
    fed = federation(scenario, seed, "fedavg")
    alone = fed.standalone(rounds, progress=False)
    with mock.patch.object(worth, "validation_of", by_class):
        found = worth.ledger(fed, rounds, evaluator, tuple(UTILITIES))
    seconds = {"values": time.perf_counter() - began}
    sources = {ALONE: alone["standalone_val"]}
    sources |= {key: shares(column) for key, column in zip(UTILITIES, found.values.T.tolist(), strict=True)}
    rewards = dict[str, list[float]]()
    for source, contribution in sources.items():
        began = time.perf_counter()
        rewarded = federation(scenario, seed, "fedsac", contribution=contribution)
        rewards[source] = rewarded.fit(rounds, progress=False).over_clients(1).tolist()
        seconds[source] = time.perf_counter() - began
    return {"alone": alone["standalone_test"], "contribution": sources, "rewards": rewards, "seconds": seconds}


def numbers(result: Result, source: str) -> list[float]:
    """Fairness, mean and highest accuracy of the clients, in percent."""
    rewards = np.array(result["rewards"][source])
    highest, average, _ = client_range(rewards)
    return [collaborative_fairness(result["alone"], rewards).value, 100 * average.value, 100 * highest.value]


def table(found: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """A line for every scenario and source: means with standard deviations over seeds, and the paired difference of the fairness from ``alone``."""
    yield f"| scenario | contributions | {' | '.join(COLUMNS)} | fairness less alone's |"
    yield "|---|---|" + "---:|" * (len(COLUMNS) + 1)
    for (name, results), source in product(found.items(), SOURCES):
        every = np.array([numbers(result, source) for result in results])
        less = every[:, 0] - [numbers(result, ALONE)[0] for result in results]
        paired = "–" if source == ALONE else spread(less.tolist(), sign="+")
        cells = [spread(column.tolist()) for column in every.T]
        yield f"| {name} | {UTILITIES.get(source, source)} | {' | '.join(cells)} | {paired} |"


def spread(x: Sequence[float], sign: str = "") -> str:
    """Mean and standard deviation; of a single number only that."""
    return f"{mean(x):{sign}.1f}" + (f" ±{stdev(x):.1f}" if len(x) > 1 else "")


def main() -> None:
    """Measure what is lacking, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "worth-fedsac", help="where results are kept")
    parser.add_argument("--seeds", type=int, default=5, help="how many divisions of the images")
    parser.add_argument("--rounds", type=int, default=20, help="of FedAvg, of clients alone and of FedSAC")
    parser.add_argument("--evaluator", default="exact", help="of the values")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: list[Result]() for name in SCENARIOS}
    for seed, name in product(range(given.seeds), SCENARIOS):
        path = given.output / f"{name}-seed{seed}-{given.rounds}rounds-{given.evaluator}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(measured(name, seed, given.rounds, given.evaluator)))
            print(f"{name}, seed {seed}", flush=True)
        found[name].append(json.loads(path.read_text()))
    print(f"\n{given.seeds} seeds, {given.rounds} rounds, {given.evaluator}\n")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
