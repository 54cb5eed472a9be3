"""FedLD beside FedAvg from pre-trained first weights: what claims/fedld does with random ones, with its solver, rounds and data.

The default network first learns printed digits, drawn with other seeds than any run's, alone and in one place. All methods take a rate of 0.05: with
0.1, FedAvg's choice in a trial run at alpha 0.5, some of its runs diverged.

python tools/pretrained.py --alpha 0.1
"""

import argparse
from functools import cache
from statistics import mean

from torch import nn, set_num_threads

import equipoise as eq
from equipoise.federation.history import History
from equipoise.metrics.statistics import judge

METHODS = ("fedavg", "principal", "fedld")
ROUNDS, SEEDS, RATE = 30, 5, 0.05
PRINT = {"clients": 1, "train": (1, 1, 1000, 1), "test": (1, 1, 250, 1)}


@cache
def pretrained(seed: int) -> tuple[nn.Module, float]:
    """The default network after 10 passes over printed digits, and its accuracy on others of them."""
    s = eq.scenario("digits-iid", seed=1000 + seed, **PRINT)
    net = eq.network("cnn", s.shape, s.n_classes, seed=seed)
    fed = eq.Federation(
        net, s.clients, "fedavg", eq.SGD(0.02, 0.9), tests=s.tests, transform=s.transform, epochs=10, seed=seed
    )
    history = fed.fit(1, progress=False)
    return fed.network(), history.summary()["groups"]["fonts"]


def train(method: str, alpha: float, seed: int) -> History:
    """One run of 30 rounds."""
    s = eq.scenario("digits-label-skew", seed=seed, alpha=alpha)
    fed = eq.Federation(
        pretrained(seed)[0], s.clients, method, eq.SGD(RATE, 0.5, 0.0005), tests=s.tests, transform=s.transform,
        epochs=s.protocol.epochs, batch_size=s.protocol.batch_size, seed=seed,
    )  # fmt: skip
    return fed.fit(ROUNDS, progress=False)


def main() -> None:
    """Print a line per method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alpha", type=float, default=0.5, help="of the Dirichlet draw of the classes")
    alpha = parser.parse_args().alpha
    set_num_threads(1)
    print(f"pre-trained networks on printed digits: {mean(pretrained(seed)[1] for seed in range(SEEDS)):.1f} %")
    found: dict[str, list[float]] = {}
    for method in METHODS:
        found[method] = [train(method, alpha, seed).summary()["avg"] for seed in range(SEEDS)]
        less = judge([a - b for a, b in zip(found[method], found["fedavg"], strict=True)], "higher")
        beside = f"; less FedAvg's: {less.mean:+.2f} [{less.low:+.2f}, {less.high:+.2f}]" if method != "fedavg" else ""
        print(f"alpha {alpha:g}, {method}: {mean(found[method]):.2f} %{beside}", flush=True)


if __name__ == "__main__":
    main()
