"""Digits for collaborative fairness: does a client that brings more get more?

The partitions of CFFL, CGSV, FedAVE and FedSAC: clients that differ in how many images they have (POW), in how many
classes (CLA), or in both (DIR). All are tested on the same images, so that what a client gets can be compared with what
it reaches alone, and the server holds a tenth of the training images. The images are those of ``digits``, all domains
mixed, without random crops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.random import Generator
from torch import Tensor

from equipoise.scenarios import digits, partition
from equipoise.scenarios.scenario import Described, Divided, Protocol
from equipoise.system.ranges import check_whole
from equipoise.system.suggestions import require_known

VERSION = 1  # raise it whenever a part changes

MIX = (1, 1, 4, 6)  # images of each domain, as long as there is handwriting
TEST = (100, 100, 400, 600)  # in the same mix; an accuracy of 40 % then has a standard error of 1.4 points
SAMPLES = 300  # images of a client on average
CLIENTS = 10
HELD = 0.1  # the server's share
LEAST = 10  # images of the smallest client
CLASSES = 10
ROOM = 12  # clients' worth of images that CLA needs at least: everybody owns the first class

RECIPES = {"pow": ("released", "exact"), "cla": ("exact", "released"), "dir": ("plain", "capped", "mixtures")}
HOLDOUTS = ("stratified", "random")

# Steps, batch and learning rate are those of FedSAC on CIFAR10.
PROTOCOL = Protocol(rounds=40, epochs=1, batch_size=32, lr=0.03, momentum=0.0, weight_decay=0.0, steps=15)

TRAINED: Mapping[str, Any] = {
    "network": "mlp", "network_options": {"hidden": [200, 200]}, "has_server_validation": True, "collaborative": True,
}  # fmt: skip

SUMMARY_POW = "Digits of all domains; clients hold more and more images of all classes."
SUMMARY_CLA = "Digits of all domains; clients hold equally many images of more and more classes."
SUMMARY_DIR = "Digits of all domains; each client holds a random share of each class, and all sizes differ."


@dataclass(frozen=True)
class Division:
    """How images are divided among a server and clients that bring more or less.

    Parameters
    ----------
    name : of the scenario, for errors.
    scene : "pow" (sizes grow, labels are alike), "cla" (classes grow, sizes are alike) or "dir" (a random share of each
        class).
    clients : >= 1.
    samples : >= 1, images of a client on average.
    recipe : one of ``RECIPES`` of the scene.
    holdout : what the server holds, a tenth, "stratified" by class or drawn at "random".
    alpha : >= 0.01, of "dir" only.

    Raises
    ------
    ValueError if an option is out of its range or unknown.
    """

    name: str
    scene: str
    clients: int
    samples: int
    recipe: str
    holdout: str
    alpha: float = 1.0

    def __post_init__(self) -> None:
        require_known(f"recipe of {self.name}:", RECIPES[self.scene], self.recipe)
        require_known(f"holdout of {self.name}:", HOLDOUTS, self.holdout)
        if self.clients < 1 or self.samples < 1:
            raise ValueError(
                f"{self.name}: clients and samples must be >= 1; found clients={self.clients} and samples={self.samples}."
            )
        n = self.samples * self.clients
        if self.scene == "pow":
            partition.power_sizes(n, self.clients, recipe=self.recipe, min_size=LEAST)
        elif self.scene == "cla":
            partition.class_ramp_counts(self.clients, CLASSES, self.samples)
        else:
            least, meaning = 1 if self.recipe == "mixtures" else LEAST, " on average, the least that a client has"
            check_whole(f"{self.name}: samples", self.samples, least, meaning=meaning)
            partition.check(self.name, n, self.clients, self.alpha)

    def parts(self, y: Tensor, pool: int, rng: Generator) -> tuple[list[int], list[list[int]]]:
        """Positions of the server's samples and of each client's.

        Parameters
        ----------
        y : int64 [n], the classes of all samples.
        pool : how many of those that the server leaves are divided.
        rng : decides everything.

        Raises
        ------
        ValueError if the samples leave no partition.
        """
        for_holdout, for_parts = rng.integers(0, 2**32, 2).tolist()
        held, rest = partition.holdout(y, for_holdout, fraction=HELD, stratified=self.holdout == "stratified")
        order = torch.from_numpy(rng.permutation(rest)[:pool])  # samples may come sorted, which must not decide
        return held, [order[part].tolist() for part in self._parts(y[order], for_parts)]

    def _parts(self, y: Tensor, seed: int) -> list[list[int]]:
        if self.scene == "pow":
            return partition.power(len(y), self.clients, seed, recipe=self.recipe, min_size=LEAST)
        if self.scene == "cla":
            return partition.class_ramp(y, self.clients, self.samples, seed, replacement=self.recipe == "released")
        if self.recipe == "mixtures":
            return partition.mixtures(y, self.clients, self.alpha, seed)
        return partition.dirichlet(y, self.clients, self.alpha, seed, cap=self.recipe == "capped", min_size=LEAST)


def by_size(
    *,
    clients: int = CLIENTS,
    samples: int = SAMPLES,
    recipe: str = "released",
    holdout: str = "stratified",
    test: Sequence[int] = TEST,
) -> Described:
    """Digits where client 1 has 0.12 and the last client 1.88 times the mean number of images (POW).

    Parameters
    ----------
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
    return _scenario(SUMMARY_POW, Division("digits-pow", "pow", clients, samples, recipe, holdout), test)


def by_classes(
    *,
    clients: int = CLIENTS,
    samples: int = SAMPLES,
    recipe: str = "exact",
    holdout: str = "stratified",
    test: Sequence[int] = TEST,
) -> Described:
    """Digits where client 1 has one class and the last client all ten, at equal sizes (CLA).

    Clients overlap: they draw independently from the images of at least twelve clients.

    Parameters
    ----------
    clients, holdout, test : as in ``by_size``.
    samples : >= 10, images of a client.
    recipe : "exact", where no client has an image twice, or "released", where it draws with replacement.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or leaves no partition.
    """
    return _scenario(SUMMARY_CLA, Division("digits-cla", "cla", clients, samples, recipe, holdout), test)


def by_shares(
    *,
    clients: int = CLIENTS,
    alpha: float = 1.0,
    samples: int = SAMPLES,
    recipe: str = "plain",
    holdout: str = "stratified",
    test: Sequence[int] = TEST,
) -> Described:
    """Digits where each client has a random share of each class, at least 10 images in all (DIR).

    Parameters
    ----------
    clients, holdout, test : as in ``by_size``.
    alpha : >= 0.01; the paper has 1, 2 and 3, and the higher it is, the more the clients are alike.
    samples : images of a client on average.
    recipe : "plain" or "capped" for ``partition.dirichlet``; "mixtures" for ``partition.mixtures``, at equal sizes.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or leaves no partition.
    """
    return _scenario(SUMMARY_DIR, Division("digits-dir", "dir", clients, samples, recipe, holdout, alpha), test)


def _scenario(summary: str, division: Division, test: Sequence[int]) -> Described:
    clients = max(division.clients, ROOM) if division.scene == "cla" else division.clients
    pool = division.samples * clients
    train = _images(division.name, pool, test)
    trained = {"transform": replace(digits.TRANSFORM, crop=0), "protocol": PROTOCOL, **TRAINED}
    description = digits.described(division.name, summary, train, test, **trained)

    def divide(seed: int, data: digits.Tensors) -> Divided:
        # The stream's key is one that neither the images nor another scenario use.
        rng = digits.stream(seed, len(digits.DOMAINS) + 2)
        held, parts = division.parts(digits.joined(data, "train")[1], pool, rng)
        about = {"samples": division.samples, "holdout": division.holdout, "recipe": division.recipe}
        about |= {"alpha": division.alpha} if division.scene == "dir" else {}
        tests, recipe = {"test": digits.joined(data, "test")}, {"collaboration": {"version": VERSION, **about}}
        return Divided(parts, tests, held=held, recipe=recipe)

    return digits.scenario(description, train, test, divide)


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
    sizes = [*written, printed, total - sum(written) - printed]
    if min(sizes) < 1:
        raise ValueError(f"{name}: {pool} images are too few for {len(MIX)} domains. Raise samples.")
    return sizes
