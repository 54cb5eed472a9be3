"""Digits whose classes are spread unevenly: the label skew of FedLD's retina experiments, from 5 clients to 50.

The images are those of ``digits``, all domains mixed, so that clients differ in their labels alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from equipoise.scenarios import cache, digits, partition
from equipoise.scenarios.scenario import Protocol, Scenario

VERSION = 1  # raise it whenever a part changes

TRAIN = (300, 300, 800, 300)  # images per domain
TEST = (250, 250, 250, 250)
CLIENTS = 5
MANY = 50  # clients from which on a tenth of them trains in a round

PROTOCOL = Protocol(rounds=60, epochs=2, batch_size=32, lr=0.02, momentum=0.9, weight_decay=1e-5)
PROTOCOL_MANY = replace(PROTOCOL, rounds=100, participation=0.1)

SUMMARY = "Digits of all domains; each client holds a random share of each class."


def scenario(
    seed: int = 0,
    *,
    clients: int = CLIENTS,
    alpha: float = 0.5,
    train: Sequence[int] = TRAIN,
    test: Sequence[int] = TEST,
) -> Scenario:
    """Digits, where the classes of the clients differ; all are tested on the same images.

    The partition is the capped Dirichlet. A client has at least 10 images, or half of the mean where that is less.

    Parameters
    ----------
    seed : >= 0; another seed draws other images and another partition.
    clients : >= 1; from 50 on the scenario recommends that a tenth of them train in a round.
    alpha : >= 0.01; 100 makes the clients nearly alike, 0.1 leaves most of them few classes.
    train, test : images per domain, in the order of ``digits.DOMAINS``; the first two of both up to 1,797.

    Raises
    ------
    ValueError if an option is out of its range, or leaves no partition.
    """
    data = digits.recall(seed, train, test)
    x, y = digits.joined(data, "train")
    least = min(10, len(y) // (2 * clients)) if clients > 0 else 1
    parts = partition.dirichlet(y, clients, alpha, seed, cap=True, min_size=max(1, least))
    names = tuple(f"client-{k}" for k in range(1, clients + 1))
    return Scenario(
        name="digits-label-skew",
        summary=SUMMARY,
        clients=tuple((x[part], y[part]) for part in parts),
        client_names=names,
        client_groups=None,
        tests={"test": digits.joined(data, "test")},
        transform=digits.TRANSFORM,
        n_classes=10,
        network="cnn",
        protocol=PROTOCOL if clients < MANY else PROTOCOL_MANY,
        measures=("accuracy", "balanced", "auc"),
        manifest={
            "scenario": "digits-label-skew",
            **digits.recipe(seed, train, test),
            "label_skew": {"version": VERSION, "alpha": alpha, "cap": True, "min_size": max(1, least)},
            "sha256": cache.digest(data),
            # Positions in the training images of all domains, joined in the order of DOMAINS.
            "clients": dict(zip(names, parts, strict=True)),
        },
    )
