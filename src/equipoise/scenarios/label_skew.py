"""Digits whose classes are spread unevenly: the label skew of FedLD's retina experiments, from 5 clients to 50.

The images are those of ``digits``, all domains mixed, so that clients differ in their labels alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from equipoise.scenarios import digits, partition
from equipoise.scenarios.scenario import Described, Divided, Protocol

VERSION = 1  # raise it whenever a part changes

TRAIN = (300, 300, 800, 300)  # images per domain
TEST = (250, 250, 250, 250)
CLIENTS = 5
MANY = 50  # clients from which on a tenth of them trains in a round

PROTOCOL = Protocol(rounds=60, epochs=2, batch_size=32, lr=0.02, momentum=0.9, weight_decay=1e-5)
PROTOCOL_MANY = replace(PROTOCOL, rounds=100, participation=0.1)
MEASURES = ("accuracy", "balanced", "auc")

SUMMARY = "Digits of all domains; each client holds a random share of each class."


def scenario(
    *, clients: int = CLIENTS, alpha: float = 0.5, train: Sequence[int] = TRAIN, test: Sequence[int] = TEST
) -> Described:
    """Digits, where the classes of the clients differ; all are tested on the same images.

    The partition is the capped Dirichlet. A client has at least 10 images, or half of the mean where that is less.

    Parameters
    ----------
    clients : >= 1; from 50 on the scenario recommends that a tenth of them train in a round.
    alpha : >= 0.01; 100 makes the clients nearly alike, 0.1 leaves most of them few classes.
    train, test : images per domain, in the order of ``digits.DOMAINS``; the first two of both up to 1,797.

    Raises
    ------
    ValueError if an option is out of its range, or leaves no partition.
    """
    protocol = PROTOCOL if clients < MANY else PROTOCOL_MANY
    description = digits.described("digits-label-skew", SUMMARY, train, test, protocol=protocol, measures=MEASURES)
    partition.check("digits-label-skew", sum(train), clients, alpha)
    least = max(1, min(10, sum(train) // (2 * clients)))

    def divide(seed: int, data: digits.Tensors) -> Divided:
        y = digits.joined(data, "train")[1]
        parts = partition.dirichlet(y, clients, alpha, seed, cap=True, min_size=least)
        skew = {"version": VERSION, "alpha": alpha, "cap": True, "min_size": least}
        tests = {"test": digits.joined(data, "test")}
        return Divided(parts, tests, recipe={"label_skew": skew})

    return digits.scenario(description, train, test, divide)
