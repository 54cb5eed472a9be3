"""Train methods with an honest minority and with attackers, and write the table in docs/robustness.md.

python tools/robustness.py    # a few minutes on one core; finished runs are kept
"""

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from claims import filled
from sklearn.datasets import load_digits
from torch import nn

import equipoise as eq
from equipoise.federation.history import History
from equipoise.runs.directory import slug

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "robustness.md"
METHODS = (
    "fedavg", "fedheal", "afl", "median", "trimmed-mean(beta=0.2)", "krum(f=4)", "multi-krum(f=4)", "geometric-median",
    "centred-clipping", "clipping", "fedheal+clipping",
)  # fmt: skip
UPRIGHT, TURNED = 16, 4  # clients
HOSTILE = 4  # of those whose images are upright
ATTACKS = {  # by the name of a column
    "nobody attacks": {},
    "sign-flip, λ = 4": {"attack": "sign-flip", "attack_scale": 4.0},
    "alie, z = 1.5": {"attack": "alie", "attack_scale": 1.5},
    "label-flip": {"attack": "label-flip"},
}
ROUNDS, LAST, SEEDS, TESTED = 20, 5, range(3), 400
Found = dict[str, dict[str, list[History]]]  # by column and method, one per seed


def trained(base: Path, *, rounds: int = ROUNDS, methods: tuple[str, ...] = METHODS, progress: bool = True) -> Found:
    """Run what is not finished yet: handwritten digits of 8 x 8 pixels, which four of twenty clients hold turned by 90 degrees."""
    digits = load_digits()
    found: Found = {column: {method: [] for method in methods} for column in ATTACKS}
    names = [*(f"upright-{k}" for k in range(UPRIGHT)), *(f"turned-{k}" for k in range(TURNED))]
    groups = ["upright"] * UPRIGHT + ["turned"] * TURNED
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(digits.target))
        images, labels = digits.images[order].astype(np.float32) / 16, digits.target[order]
        turned = np.ascontiguousarray(np.rot90(images, axes=(1, 2)))
        parts = np.array_split(np.arange(TESTED, len(labels)), UPRIGHT + TURNED)
        data = [(images[p] if k < UPRIGHT else turned[p], labels[p]) for k, p in enumerate(parts)]
        tests = {"upright": (images[:TESTED], labels[:TESTED]), "turned": (turned[:TESTED], labels[:TESTED])}
        same = {"names": names, "groups": groups, "tests": tests, "solver": eq.SGD(0.2), "epochs": 2, "batch_size": 16}
        for (column, attack), method in product(ATTACKS.items(), methods):
            place = base / column.split(",")[0].replace(" ", "-") / f"seed{seed}"
            whom = {"upright": HOSTILE / UPRIGHT} if attack else 0.0
            given = {**same, **attack, "attackers": whom, "seeds": [seed], "rounds": rounds, "directory": place}
            try:
                found[column][method] += eq.compare(_network, data, [method], progress=progress, **given).histories
            except eq.QuorumError:  # diverged so far that no client can answer: the rounds before count
                found[column][method].append(History.from_run(place / f"{slug(method)}-seed{seed}"))
    return found


def _network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def table(found: Found) -> Iterator[str]:
    """A line per method: the worst group and the average over the groups."""
    yield f"| method | {' | '.join(found)} |"
    yield "|---|" + "---:|" * len(found)
    for method in found["nobody attacks"]:
        yield f"| `{method}` | {' | '.join(shown(of[method]) for of in found.values())} |"


def shown(histories: list[History]) -> str:
    """Means over the seeds, of the worst group with its standard deviation."""
    each = [history.summary(LAST) for history in histories]
    avg, worst = ([of[key] for of in each] for key in ("avg", "worst"))
    return f"{mean(worst):.1f} ±{stdev(worst):.1f}, {mean(avg):.1f}"


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "robustness", help="where the runs are kept")
    found = trained(parser.parse_args().runs)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "robustness", table(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
