"""Measure which evaluator of contributions ranks a special client below honest ones, where the truth is known; print the table.

python tools/worth.py --output runs/worth    # some five minutes on two cores; finished runs are kept

The federation: handwritten digits of scikit-learn, 8 clients with 110 images each, an MLP 64-32-10, 10 rounds of 12 steps; utilities are
measured on 500 images of the server. Client 7 is special: what it sends is replaced by an engine, or its data are changed.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

import equipoise as eq
from equipoise.contribution.directions import cosines_with_sum
from equipoise.contribution.evaluators import EVALUATORS
from equipoise.contribution.game import Evaluator, Game, Values, values_of
from equipoise.core.maths import gram
from equipoise.data.samples import Samples
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation import worth
from equipoise.system.files import write_atomically

ROOT = Path(__file__).parents[1]
CLIENTS, IMAGES, HELD, ROUNDS, SPECIAL = 8, 110, 500, 10, 7
TRAINING = {"solver": eq.SGD(0.2), "epochs": 3, "batch_size": 28}  # 12 steps a round
LEAST = 1e-3  # of the largest value: a smaller sum of all values has no shares
UTILITIES = ("loss", "accuracy", "worst")
RULES = ("fedavg", "median")
DISGUISE, WRONG, BLUR, SCALE = 0.3, 0.6, 0.8, 3.0
ALONE_HOLDS, OWN, OTHERS = 9, 60, 20  # the class that client 7 alone holds, and its numbers of images
COLUMNS = {  # by the heading
    "exact, loss": "exact loss", "exact, accuracy": "exact accuracy", "exact, worst class": "exact worst",
    "Banzhaf, loss": "banzhaf loss", "GTG, loss": "gtg loss", "LOO, loss": "loo loss", "LOO, accuracy": "loo accuracy",
    "alone, loss": "alone loss", "cosine": "cosine",
}  # fmt: skip
Array = NDArray[np.float64]
Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Sent:
    """What the special client may make its update of: those of all clients [M, G], the last step of the global model [G], and a generator."""

    updates: Tensor
    last: Tensor
    random: torch.Generator

    @property
    def own(self) -> Tensor:
        """The honest update [G] of the special client."""
        return self.updates[SPECIAL]

    def noise(self, norm: Tensor) -> Tensor:
        """A random direction [G] of this norm."""
        x = torch.randn(len(self.last), generator=self.random)
        return x * (norm / x.norm())

    @cached_property
    def honest_norm(self) -> Tensor:
        """The mean norm of the other updates."""
        return self.updates[:SPECIAL].norm(dim=1).mean()


SENDS: Mapping[str, Callable[[Sent], Tensor]] = {  # what client 7 sends instead of its update
    "duplicate": lambda sent: sent.updates[0],
    "zero": lambda sent: torch.zeros_like(sent.own),
    "stale": lambda sent: sent.last,
    "noise": lambda sent: sent.noise(sent.honest_norm),
    "disguised": lambda sent: sent.last + sent.noise(DISGUISE * sent.last.norm()),
    "scaled": lambda sent: SCALE * sent.own,
}
KINDS = ("clean", *(kind for kind in SENDS if kind != "scaled"), "labels", "images", "colluders", "scaled", "minority")


@dataclass
class Planted:
    """An engine whose last client sends something else; it keeps the cosine of each update with the sum, by round."""

    kind: str
    seed: int
    cosines: list[Array] = field(default_factory=list)
    before: Tensor | None = None

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers of a round."""
        answers = [*sequential(job)]
        given = job.received[0]
        last = torch.zeros_like(given) if self.before is None else given - self.before
        self.before = given.clone()
        updates = torch.cat([answer.trained for answer in answers]) - given
        if self.kind in SENDS:
            random = torch.Generator().manual_seed(1_000 * self.seed + job.t)
            updates[SPECIAL] = SENDS[self.kind](Sent(updates, last, random))
            answers[SPECIAL] = replace(answers[SPECIAL], trained=(given + updates[SPECIAL])[None])
        sizes = [data.size for data in job.data]
        self.cosines.append(cosines_with_sum(gram(updates).double().numpy(), sizes))
        yield from answers


@dataclass(frozen=True)
class Several(Evaluator):
    """Several evaluators of the same games; each coalition is evaluated once."""

    names: tuple[str, ...] = ("exact", "banzhaf", "loo", "alone", "gtg")

    def __call__(self, game: Game, generator: np.random.Generator) -> Values:
        """The values by all evaluators [n, evaluators * utilities]."""
        parts = [EVALUATORS[name](game, generator).values for name in self.names]
        names = tuple(f"{name} {utility}" for name, utility in product(self.names, game.names))
        return replace(values_of(game, np.concatenate(parts, axis=1)), names=names)


def drawn(kind: str, seed: int) -> tuple[list[Arrays], Arrays]:
    """The clients' data and the server's."""
    digits, random = load_digits(), np.random.default_rng(seed)
    order = random.permutation(len(digits.target))
    x, y = digits.data[order].astype(np.float32) / 16, digits.target[order].astype(np.int64)
    server, rest = np.arange(HELD), np.arange(HELD, len(y))
    parts = np.split(rest[: CLIENTS * IMAGES], CLIENTS)
    if kind == "minority":
        rare, common = rest[y[rest] == ALONE_HOLDS], rest[y[rest] != ALONE_HOLDS]
        parts = np.split(common[: SPECIAL * IMAGES], SPECIAL)
        parts += [np.append(rare[:OWN], common[SPECIAL * IMAGES :][:OTHERS])]
    data = [(x[part], y[part]) for part in parts]
    for client in {"labels": [SPECIAL], "colluders": [SPECIAL - 1, SPECIAL]}.get(kind, []):
        mine, wrong = data[client][1].copy(), random.random(IMAGES) < WRONG
        mine[wrong] = random.integers(0, 10, int(wrong.sum()))
        data[client] = (data[client][0], mine)
    if kind == "images":
        mine, labels = data[SPECIAL]
        data[SPECIAL] = (mine + BLUR * random.standard_normal(mine.shape).astype(np.float32), labels)
    return data, (x[server], y[server])


def measured(rule: str, kind: str, seed: int) -> dict[str, list[float]]:
    """The values of the clients after a run, by evaluator and utility."""
    data, server = drawn(kind, seed)
    engine = Planted(kind, seed)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    fed = eq.Federation(net, data, rule, server_validation=server, engine=engine, seed=seed, **TRAINING)
    with mock.patch.object(worth, "validation_of", by_class):
        found = worth.ledger(fed, ROUNDS, Several(), UTILITIES)
    total = found.rounds.total
    values = dict(zip(total.names, total.values.T.tolist(), strict=True))
    return {**values, "cosine": np.mean(engine.cosines, axis=0).tolist()}


def by_class(fed: eq.Federation) -> dict[str, Samples]:
    """The server's data, each class a group."""
    data = fed.inputs.server_validation
    labels = data.batch(torch.arange(data.size), None).y
    return {str(c): data.take(torch.nonzero(labels == c).flatten()) for c in labels.unique().tolist()}


def runs(folder: Path, rules: Sequence[str], seeds: int) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """The rule, the kind of the special client, and the values of each run; what is not in the folder yet is measured."""
    cells = [*product(range(seeds), rules, KINDS)]
    for done, (seed, rule, kind) in enumerate(cells, 1):
        path = folder / rule / f"{kind}-seed{seed}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(measured(rule, kind, seed)))
            print(f"{done} of {len(cells)}: {rule}, {kind}, seed {seed}", flush=True)
        yield rule, kind, json.loads(path.read_text())


def area(values: Sequence[float], kind: str) -> float:
    """The share of pairs of a special and an honest client in which the special one has less; ties count half: AUC of one run."""
    first = SPECIAL - (kind == "colluders")
    below = np.subtract.outer(values[:first], values[first:])
    return float(np.mean((below > 0) + 0.5 * (below == 0)))


def share(values: Sequence[float], kind: str) -> float:
    """The mean value of the special clients as a multiple of an equal share of all values; NaN where they sum to about 0."""
    first, total = SPECIAL - (kind == "colluders"), sum(values)
    return (
        float(np.mean(values[first:]) * len(values) / total) if abs(total) > LEAST * max(map(abs, values)) else np.nan
    )


def interval(areas: Sequence[float], draws: int = 10_000) -> tuple[float, float]:
    """A 95 % interval of the mean over seeds: percentiles of the bootstrap."""
    x = np.asarray(areas)
    means = x[np.random.default_rng(0).integers(0, len(x), (draws, len(x)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def cell(values: Sequence[Sequence[float]], kind: str, *, whole: bool) -> str:
    """Mean AUC over the seeds, its interval unless all seeds agree, and, if ``whole``, the mean value in equal shares."""
    areas = [area(each, kind) for each in values]
    low, high = interval(areas)
    around = "" if low == high else f" ({short(low)}–{short(high)})"
    mine = mean(share(each, kind) for each in values)
    of_equal = "" if not whole else " [–]" if np.isnan(mine) else f" [{mine:+.1f}]"
    return f"{short(mean(areas))}{around}{of_equal}"


def short(x: float) -> str:
    """Two digits without the zero before the point."""
    return f"{x:.2f}".removeprefix("0")


def table(found: Mapping[str, Sequence[Mapping[str, Any]]], *, whole: bool = True) -> Iterator[str]:
    """A line for every kind of special client."""
    yield f"| client 7 | {' | '.join(COLUMNS)} |"
    yield "|---|" + "---:|" * len(COLUMNS)
    for kind, every in found.items():
        cells = [cell([values[key] for values in every], kind, whole=whole) for key in COLUMNS.values()]
        yield f"| {kind} | {' | '.join(cells)} |"


def main() -> None:
    """Measure what is lacking, and print a table for each rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "worth", help="where values are kept")
    parser.add_argument("--seeds", type=int, default=8, help="how many divisions of the images")
    parser.add_argument("--rules", nargs="+", default=RULES, help="methods that train")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {rule: {kind: list[Any]() for kind in KINDS} for rule in given.rules}
    for rule, kind, values in runs(given.output, given.rules, given.seeds):
        found[rule][kind].append(values)
    for rule, every in found.items():
        print(f"\n{rule}, {given.seeds} seeds: AUC (95 % interval) [value in equal shares]\n")
        print("\n".join(table(every)))


if __name__ == "__main__":
    main()
