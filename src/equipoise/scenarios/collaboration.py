"""Digits for collaborative fairness: does a client that brings more get more?

The partitions of CFFL, CGSV, FedAVE and FedSAC: clients that differ in how many images they have (POW), in how many
classes (CLA), or in both (DIR). All are tested on the same images, so that what a client gets can be compared with what
it reaches alone, and the server holds a tenth of the training images. The images are those of ``digits``, all domains
mixed, without random crops.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.scenarios import cache, digits, partition
from equipoise.scenarios.scenario import Protocol, Scenario
from equipoise.system.suggestions import unknown

VERSION = 1  # raise it whenever a part changes

MIX = (1, 1, 4, 6)  # images of each domain, as long as there is handwriting
TEST = (100, 100, 400, 600)  # in the same mix; an accuracy of 40 % then has a standard error of 1.4 points
SAMPLES = 300  # images of a client on average
CLIENTS = 10
HELD = 0.1  # the server's share
LEAST = 10  # images of the smallest client
ROOM = 12  # clients' worth of images that CLA needs at least: everybody owns the first class

HOLDOUTS = ("stratified", "random")
CLASS_RECIPES = ("exact", "released")
SHARES = ("plain", "capped", "mixtures")

NETWORK = {"hidden": [200, 200]}
# Steps, batch and learning rate are those of FedSAC on CIFAR10.
PROTOCOL = Protocol(rounds=40, epochs=1, batch_size=32, lr=0.03, momentum=0.0, weight_decay=0.0, steps=15)

SUMMARY_POW = "Digits of all domains; clients hold more and more images of all classes."
SUMMARY_CLA = "Digits of all domains; clients hold equally many images of more and more classes."
SUMMARY_DIR = "Digits of all domains; each client holds a random share of each class, and all sizes differ."

Parts = list[list[int]]


def by_size(
    seed: int = 0,
    *,
    clients: int = CLIENTS,
    samples: int = SAMPLES,
    recipe: str = "released",
    holdout: str = "stratified",
    test: Sequence[int] = TEST,
) -> Scenario:
    """Digits where client 1 has 0.12 and the last client 1.88 times the mean number of images (POW).

    Parameters
    ----------
    seed : >= 0; another seed draws other images and another partition.
    clients : >= 1.
    samples : images of a client on average; at least 85 leave the smallest client 10, which it must have.
    recipe : "released" or "exact", the rounding of ``partition.power_sizes``.
    holdout : what the server holds, "stratified" by class or drawn at "random".
    test : images per domain, in the order of ``digits.DOMAINS``; fewer than 1,796 of the first two. A sixth of the training images is
        handwriting too, or what the test leaves of 1,797.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or leaves no partition.
    """
    if recipe not in partition.RECIPES:
        raise ValueError(unknown("recipe of digits-pow:", recipe, partition.RECIPES))

    def divide(labels: Tensor, seed: int) -> Parts:
        return partition.power(len(labels), clients, seed, recipe=recipe, min_size=LEAST)

    told = {"recipe": recipe}
    return _scenario("digits-pow", SUMMARY_POW, seed, clients, samples, samples * clients, holdout, test, divide, told)


def by_classes(
    seed: int = 0,
    *,
    clients: int = CLIENTS,
    samples: int = SAMPLES,
    recipe: str = "exact",
    holdout: str = "stratified",
    test: Sequence[int] = TEST,
) -> Scenario:
    """Digits where client 1 has one class and the last client all ten, at equal sizes (CLA).

    Clients overlap: they draw independently from the images of at least twelve clients.

    Parameters
    ----------
    seed, clients, holdout, test : as in ``by_size``.
    samples : >= 10, images of a client.
    recipe : "exact", where no client has an image twice, or "released", where it draws with replacement.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or leaves no partition.
    """
    if recipe not in CLASS_RECIPES:
        raise ValueError(unknown("recipe of digits-cla:", recipe, CLASS_RECIPES))

    def divide(labels: Tensor, seed: int) -> Parts:
        return partition.class_ramp(labels, clients, samples, seed, replacement=recipe == "released")

    pool, told = samples * max(clients, ROOM), {"recipe": recipe}
    return _scenario("digits-cla", SUMMARY_CLA, seed, clients, samples, pool, holdout, test, divide, told)


def by_shares(
    seed: int = 0,
    *,
    clients: int = CLIENTS,
    alpha: float = 1.0,
    samples: int = SAMPLES,
    recipe: str = "plain",
    holdout: str = "stratified",
    test: Sequence[int] = TEST,
) -> Scenario:
    """Digits where each client has a random share of each class, at least 10 images in all (DIR).

    Parameters
    ----------
    seed, clients, holdout, test : as in ``by_size``.
    alpha : >= 0.01; the paper has 1, 2 and 3, and the higher it is, the more the clients are alike.
    samples : images of a client on average.
    recipe : "plain" or "capped" for ``partition.dirichlet``; "mixtures" for ``partition.mixtures``, at equal sizes.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or leaves no partition.
    """
    if recipe not in SHARES:
        raise ValueError(unknown("recipe of digits-dir:", recipe, SHARES))

    def divide(labels: Tensor, seed: int) -> Parts:
        if recipe == "mixtures":
            return partition.mixtures(labels, clients, alpha, seed)
        return partition.dirichlet(labels, clients, alpha, seed, cap=recipe == "capped", min_size=LEAST)

    told = {"recipe": recipe, "alpha": alpha}
    return _scenario("digits-dir", SUMMARY_DIR, seed, clients, samples, samples * clients, holdout, test, divide, told)


def _scenario(
    name: str,
    summary: str,
    seed: int,
    clients: int,
    samples: int,
    pool: int,
    holdout: str,
    test: Sequence[int],
    divide: Callable[[Tensor, int], Parts],
    told: dict[str, Any],
) -> Scenario:
    """Make the images, set the server's aside, and give ``pool`` of the others to ``divide``, in random order."""
    if holdout not in HOLDOUTS:
        raise ValueError(unknown(f"holdout of {name}:", holdout, HOLDOUTS))
    if clients < 1 or samples < 1:
        raise ValueError(f"{name}: clients and samples must be >= 1; found clients={clients} and samples={samples}.")
    train = _images(name, pool, test)
    data = digits.recall(seed, train, test)
    x, y = digits.joined(data, "train")
    # The stream's key is one that neither the images nor another scenario use.
    rng = digits.stream(seed, len(digits.DOMAINS) + 2)
    for_holdout, for_parts = rng.integers(0, 2**32, 2).tolist()
    held, rest = partition.holdout(y, for_holdout, fraction=HELD, stratified=holdout == "stratified")
    # Samples come sorted by domain, which must not decide.
    order = torch.from_numpy(rng.permutation(rest)[:pool])
    parts = [order[part] for part in divide(y[order], for_parts)]
    names = tuple(f"client-{k}" for k in range(1, clients + 1))
    return Scenario(
        name=name,
        summary=summary,
        clients=tuple((x[part], y[part]) for part in parts),
        client_names=names,
        client_groups=None,
        tests={"test": digits.joined(data, "test")},
        transform=replace(digits.TRANSFORM, crop=0),
        n_classes=10,
        network="mlp",
        network_options=NETWORK,
        protocol=PROTOCOL,
        validation=(x[held], y[held]),
        collaborative=True,
        manifest={
            "scenario": name,
            **digits.recipe(seed, train, test),
            "collaboration": {"version": VERSION, "samples": samples, "holdout": holdout, **told},
            "sha256": cache.digest(data),
            # Positions in the training images of all domains, joined in the order of DOMAINS.
            "clients": {who: part.tolist() for who, part in zip(names, parts, strict=True)},
            "validation": held,
        },
    )


def _images(name: str, pool: int, test: Sequence[int]) -> list[int]:
    """Training images per domain of which ``pool`` remain after the hold-out."""
    total = pool
    while total - round(HELD * total) < pool:
        total += 1
    left = (digits.SAMPLES - sum(test[:2])) // 2
    if left < 1:
        raise ValueError(
            f"{name}: a test of {sum(test[:2])} handwriting samples leaves none of {digits.SAMPLES} to train on. Take fewer."
        )
    written = [min(total * share // sum(MIX), left) for share in MIX[:2]]
    printed = (total - sum(written)) * MIX[2] // sum(MIX[2:])
    return [*written, printed, total - sum(written) - printed]
