"""FedSAC's scenarios: CIFAR-10, SVHN and Fashion-MNIST for collaborative fairness.

Wang et al., "FedSAC: Dynamic Submodel Allocation for Collaborative Fairness in Federated Learning" (KDD 2024), whose code
is unreleased; POW and CLA are those of the code that it cites, of CFFL and CGSV, and DIR that of FedRAC's (CVPR 2026, by the same
first author), which draws it with FLGo: what clients reach alone there is what FedSAC's Table 2 says.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.data.contents import Contents
from equipoise.data.memory_mapped import labels
from equipoise.scenarios import collaboration, papers, partition
from equipoise.scenarios.collaboration import HELD, TRAINED, Division
from equipoise.scenarios.scenario import Described, Divided, Images, Protocol
from equipoise.system.suggestions import require_known

VERSION = 1  # raise it whenever a part changes
RECIPES = {**collaboration.RECIPES, "dir": ("mixtures", "released", "plain", "capped")}
SEEDS = (12, 97)  # of FedRAC's task generator: PyTorch's, for what the server holds, and NumPy's, for the mixtures

SAMPLES = 2000  # images of a client on average


class _Set(NamedTuple):
    """A data set, how its images are normalised (numbers of its own training images), and how one trains on them."""

    reads: str
    title: str
    sample: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rounds: int
    steps: int
    batch_size: int
    lr: float

    @property
    def summary(self) -> str:
        """One line about the scenario."""
        return f"FedSAC's {self.title}: clients bring more and more images, classes, or a random share of each."


SETS = {
    "fedsac-cifar10": _Set("cifar10", "CIFAR-10", (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 200, 15, 32, 0.03),
    "fedsac-svhn": _Set("svhn", "SVHN", (3, 32, 32), (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), 500, 20, 64, 0.05),
    "fedsac-fashion": _Set("fashion-mnist", "Fashion-MNIST", (1, 28, 28), (0.2860,), (0.3530,), 200, 20, 32, 0.05),
}  # fmt: skip


def scenario(
    name: str,
    data: Path | None,
    *,
    scene: str = "pow",
    clients: int = 10,
    alpha: float | None = None,
    samples: int | None = None,
    recipe: str | None = None,
    holdout: str | None = None,
) -> Described:
    """Images divided among clients that bring more or less; all are tested on the whole test set.

    Parameters
    ----------
    name : of the scenario.
    data : the folder that holds the data set.
    scene : "pow" (sizes grow, labels are alike), "cla" (classes grow, sizes are alike) or "dir" (a random share of each
        class).
    clients : >= 1; the paper has 10 and 20, and for "dir" also 40 and 60.
    alpha : >= 0.01, of "dir" only, 1 if None; the higher it is, the more clients are alike. The paper has 1, 2 and 3; its DIR(1.0)
        is what ``alpha=1.5`` gives.
    samples : images of a client on average; 2,000 if None, or for "dir" all that the server leaves.
    recipe : "released" or "exact" rounding for "pow"; "exact" or "released" (with replacement) for "cla"; "mixtures", "released"
        (these as FedRAC draws them: with ``data_seed=0`` the paper's own division), "plain" or "capped" for "dir". The first of
        these if None.
    holdout : what the server holds, a tenth, "stratified" by class or drawn at "random"; "stratified" if None. The "released" recipe of
        "dir" has its own.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or there are too few images. DataError if the data are not there.
    """
    require_known(f"scene of {name}:", RECIPES, scene)
    if alpha is not None and scene != "dir":
        raise ValueError(f"{name}: alpha={alpha} belongs to scene=dir; {scene} has none. Leave it out.")
    images = SAMPLES if samples is None else samples
    drawing = RECIPES[scene][0] if recipe is None else recipe
    require_known(f"recipe of {name}(scene={scene}):", RECIPES[scene], drawing)
    released = scene == "dir" and drawing == "released"
    for option, value in {"samples": samples, "holdout": holdout}.items() if released else ():
        if value is not None:
            raise ValueError(
                f"{name}(recipe=released) divides all images as FedRAC's code does: leave {option}={value} out."
            )
    server = "random" if released else holdout or "stratified"
    method, evenness = "mixtures" if released else drawing, 1.0 if alpha is None else alpha
    division = Division(name, scene, clients, images, method, server, evenness)

    def divide(train: Contents, _: Contents, seed: int) -> Divided:
        y = labels(train.data)
        rest = len(y) - int(np.rint(HELD * len(y)))
        pool = rest if scene == "cla" or (scene == "dir" and samples is None) else images * clients
        if pool > rest:
            raise ValueError(
                f"{name}: {clients} clients of {images} images on average need {pool}, and {rest} are left of the {len(y)} "
                "for training, of which the server holds a tenth. Take fewer clients, or lower samples."
            )
        rng = np.random.default_rng(seed)
        held, parts = _released(division, y, rest, seed) if released else division.parts(y, pool, rng)
        average = images if scene == "cla" else pool // clients
        recipe = {"version": VERSION, "scene": scene, "samples": average, "recipe": drawing, "holdout": server}
        recipe |= {"alpha": division.alpha} if scene == "dir" else {}
        return Divided(parts, held=held, recipe=recipe)

    entry = SETS[name]
    protocol = Protocol(entry.rounds, 1, entry.batch_size, entry.lr, momentum=0.0, weight_decay=0.0, steps=entry.steps)
    fields = {"sample": entry.sample, "transform": Images(entry.mean, entry.std), "protocol": protocol, **TRAINED}
    return papers.from_splits(name, entry.reads, entry.summary, data, divide, {}, **fields)


def _released(division: Division, y: Tensor, rest: int, seed: int) -> tuple[list[int], list[list[int]]]:
    """Positions of the server's images and of the ``rest``, each client's, as FedRAC's code draws them: its own at seed 0."""
    of_server, of_clients = ((start + seed) % 2**32 for start in SEEDS)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(of_server))
    left = order[:rest]
    parts = partition.mixtures(y[left], division.clients, division.alpha, of_clients, released=True)
    return order[rest:].sort().values.tolist(), [left[part].tolist() for part in parts]
