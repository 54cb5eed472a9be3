"""FedSAC's scenarios: CIFAR-10, SVHN and Fashion-MNIST for collaborative fairness.

Wang et al., "FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning" (KDD 2024), whose code
is unreleased; the partitions are those of the code that it cites, of CFFL and CGSV.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.data.memory_mapped import labels, take
from equipoise.data.sets import catalog
from equipoise.scenarios import partition
from equipoise.scenarios.papers import manifest
from equipoise.scenarios.scenario import Images, Protocol, Scenario
from equipoise.system.suggestions import unknown

VERSION = 1  # raise it whenever a part changes

SAMPLES = 2000  # images of a client on average
HELD = 0.1  # the server's share of the training images
LEAST = 10  # images of the smallest client

RECIPES = {"pow": ("released", "exact"), "cla": ("exact", "released"), "dir": ("plain", "capped", "mixtures")}
HOLDOUTS = ("stratified", "random")
NETWORK = {"hidden": [200, 200]}


@dataclass(frozen=True)
class _Set:
    """A data set, how its images are normalised (numbers of its own training images), and how one trains on them."""

    scenario: str
    reads: str
    summary: str
    transform: Images
    protocol: Protocol


def _plain(rounds: int, steps: int, batch_size: int, lr: float) -> Protocol:
    return Protocol(rounds, 1, batch_size, lr, momentum=0.0, weight_decay=0.0, steps=steps)


CIFAR10 = _Set(
    "fedsac-cifar10",
    "cifar10",
    "FedSAC's CIFAR-10: clients bring more and more images, classes, or a random share of each.",
    Images((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    _plain(200, 15, 32, 0.03),
)
SVHN = _Set(
    "fedsac-svhn",
    "svhn",
    "FedSAC's SVHN: clients bring more and more images, classes, or a random share of each.",
    Images((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    _plain(500, 20, 64, 0.05),
)
FASHION = _Set(
    "fedsac-fashion",
    "fashion-mnist",
    "FedSAC's Fashion-MNIST: clients bring more and more images, classes, or a random share of each.",
    Images((0.2860,), (0.3530,)),
    _plain(200, 20, 32, 0.05),
)


def _scenario(
    of: _Set,
    seed: int,
    data: Path,
    *,
    scene: str = "pow",
    clients: int = 10,
    alpha: float | None = None,
    samples: int | None = None,
    recipe: str | None = None,
    holdout: str = "stratified",
) -> Scenario:
    """Images divided among clients that bring more or less; all are tested on the whole test set.

    Parameters
    ----------
    of : the data set.
    seed : >= 0; decides what the server holds and what each client has.
    data : the folder that holds the data set.
    scene : "pow" (sizes grow, labels are alike), "cla" (classes grow, sizes are alike) or "dir" (a random share of each
        class).
    clients : >= 1; the paper has 10 and 20, and for "dir" also 40 and 60.
    alpha : >= 0.01, of "dir" only, 1 if None; the paper has 1, 2 and 3, and the higher it is, the more clients are alike.
    samples : images of a client on average; 2,000 if None, or for "dir" as many as there are where that is less.
    recipe : "released" or "exact" rounding for "pow"; "exact" or "released" (with replacement) for "cla"; "plain",
        "capped" or "mixtures" for "dir". The first of these if None.
    holdout : what the server holds, a tenth, "stratified" by class or drawn at "random".

    Raises
    ------
    ValueError if an option is out of its range or unknown, or there are too few images. DataError if the data are not there.
    """
    name = of.scenario
    if scene not in RECIPES:
        raise ValueError(unknown(f"scene of {name}:", scene, RECIPES))
    how = RECIPES[scene][0] if recipe is None else recipe
    if how not in RECIPES[scene]:
        raise ValueError(unknown(f"recipe of {name}(scene={scene}):", how, RECIPES[scene]))
    if holdout not in HOLDOUTS:
        raise ValueError(unknown(f"holdout of {name}:", holdout, HOLDOUTS))
    if clients < 1 or (samples is not None and samples < 1):
        raise ValueError(f"{name}: clients and samples must be >= 1; found clients={clients} and samples={samples}.")
    if alpha is not None and scene != "dir":
        raise ValueError(f"{name}: alpha={alpha} belongs to scene=dir; {scene} has none. Leave it out.")
    spread = 1.0 if alpha is None else alpha
    train, test = (catalog.read(of.reads, data, split) for split in ("train", "test"))
    y = labels(train.data)
    rng = np.random.default_rng(seed)
    for_holdout, for_parts = rng.integers(0, 2**32, 2).tolist()
    held, rest = partition.holdout(y, for_holdout, fraction=HELD, stratified=holdout == "stratified")
    each = SAMPLES if samples is None else samples
    pool = len(rest) if scene == "cla" else each * clients
    if scene == "dir" and samples is None:
        pool = min(pool, len(rest))
    if pool > len(rest):
        raise ValueError(
            f"{name}: {clients} clients of {each} images on average need {pool}, and {len(rest)} are left of the {len(y)} "
            "for training, of which the server holds a tenth. Take fewer clients, or lower samples."
        )
    order = torch.from_numpy(rng.permutation(rest)[:pool])  # files may come sorted, which must not decide

    def divide(known: Tensor) -> list[list[int]]:
        if scene == "pow":
            return partition.power(len(known), clients, for_parts, recipe=how, min_size=LEAST)
        if scene == "cla":
            return partition.class_ramp(known, clients, each, for_parts, replacement=how == "released")
        if how == "mixtures":
            return partition.mixtures(known, clients, spread, for_parts)
        return partition.dirichlet(known, clients, spread, for_parts, cap=how == "capped", min_size=LEAST)

    parts = [order[part].tolist() for part in divide(y[order])]
    names = tuple(f"client-{k}" for k in range(1, clients + 1))
    options = {
        "scene": scene,
        "samples": each if scene == "cla" else pool // clients,
        "recipe": how,
        "holdout": holdout,
    }
    return Scenario(
        name=name,
        summary=of.summary,
        clients=tuple(take(train.data, part) for part in parts),
        client_names=names,
        client_groups=None,
        tests={"test": test.data},
        transform=of.transform,
        n_classes=10,
        network="mlp",
        network_options=NETWORK,
        protocol=of.protocol,
        validation=take(train.data, held),
        collaborative=True,
        manifest=manifest(
            name,
            seed,
            VERSION,
            options | ({"alpha": spread} if scene == "dir" else {}),
            {"train": train, "test": test},
            names,
            parts,
            held,
        ),
    )


cifar10: Callable[..., Scenario] = partial(_scenario, CIFAR10)
svhn: Callable[..., Scenario] = partial(_scenario, SVHN)
fashion: Callable[..., Scenario] = partial(_scenario, FASHION)
