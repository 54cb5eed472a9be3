"""FedISM's scenarios: CT slices of the brain and photographs of the skin, which some clients record badly.

Wu et al., "From Optimization to Generalization: Fair Federated Learning against Quality Shift via Inter-Client Sharpness
Matching" (IJCAI 2024), its extension FedISM+ (arXiv 2503.09587), and their released code where the papers are silent.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from equipoise.data.contents import Contents, DataError
from equipoise.data.memory_mapped import labels, take
from equipoise.scenarios import papers, partition
from equipoise.scenarios.corruption import CORRUPTIONS, check_severity, corrupted as corrupt, qualities
from equipoise.scenarios.papers import MEAN, STD
from equipoise.scenarios.scenario import Described, Divided, Images, Protocol
from equipoise.system.suggestions import require_known

VERSION = 1  # raise it whenever a byte or a part changes

CLIENTS = 20
CORRUPTED = 4
CENTRE = "centre"
SEVERITY = {"gaussian-noise": 3, "motion-blur": 1}  # those of the released code
RECIPES = ("shuffled", "released")
RELEASED_SEED = 2024  # of the published partitions
NOISE = {"train": 0, "test": 1}  # seeds of the corruption: as in the papers, all runs see the same bad images
SIDE = 224  # of an image, pixels

TRANSFORM = Images(MEAN, STD, pad="zero", rotate=10.0, translate=0.02, flip=True)
PROTOCOL = Protocol(rounds=300, epochs=1, batch_size=32, lr=3e-4, momentum=0.0, weight_decay=5e-4, optimizer="adam")
MEASURES = ("accuracy", "balanced", "auc", "auc_ovr")


class _Quality(NamedTuple):
    """How images are divided, and those of the last ``corrupted`` clients made worse; see :func:`rsna`."""

    corrupted: int
    alpha: float
    corruption: str
    severity: int | None
    recipe: str


class _Set(NamedTuple):
    """A scenario's name, the data set that it reads, and one line about it."""

    name: str
    reads: str
    summary: str


QUALITY_SHIFT = "the images of a few clients are noisy or blurred."
RSNA = _Set("fedism-rsna", "rsna-ich", f"FedISM's CT slices of bleeding in the brain; {QUALITY_SHIFT}")
ISIC = _Set("fedism-isic", "isic2019", f"FedISM's photographs of skin lesions; {QUALITY_SHIFT}")


def rsna(
    data: Path | None,
    *,
    clients: int = CLIENTS,
    corrupted: int = CORRUPTED,
    alpha: float = 1.0,
    corruption: str = "gaussian-noise",
    severity: int | None = None,
    recipe: str = "shuffled",
    window: str = "brain",
    lists: str | None = None,
    group_by: str | None = None,
    size: int = SIDE,
) -> Described:
    """CT slices with one of five kinds of bleeding; the tests ``clean`` and ``corrupted`` show the same images.

    The seed decides the partition, and neither which slices there are nor how each is corrupted.

    Parameters
    ----------
    data : the folder that holds the data set.
    clients : >= 1, clients in all.
    corrupted : in 0..clients; the images of the last so many are corrupted, once. Of 20, the papers have 1, 2, 4 and 6.
    alpha : >= 0.01; how evenly a class is spread, among the clean clients and among the corrupted ones.
    corruption : "gaussian-noise" or "motion-blur".
    severity : 0..5, for training and test; 3 of the noise and 1 of the blur if None.
    recipe : "released" repeats the published partitions with the published lists of images and seed 0; "shuffled" mixes the
        images first, since the first ones of each class go to clean clients, and files may come sorted by their source.
    window : how a slice becomes grey levels, as the reader of the set says.
    lists : folder of ``train.csv`` and ``test.csv``, which say what slices there are; a fixed draw of 25,000 if None.
    group_by : "PatientID" keeps all slices of a patient in training or in test, which the papers do not.
    size : side of an image in pixels.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or leaves no partition. DataError if the data are not there.
    """
    options = {"window": window, "lists": lists, "group_by": group_by, "size": size}
    return _unequal(RSNA, data, clients, _Quality(corrupted, alpha, corruption, severity, recipe), options)


def isic(
    data: Path | None,
    *,
    clients: int | str = CLIENTS,
    corrupted: int | None = None,
    alpha: float = 1.0,
    corruption: str = "gaussian-noise",
    severity: int | None = None,
    recipe: str = "shuffled",
    lists: str | None = None,
    size: int = SIDE,
) -> Described:
    """Photographs of eight kinds of skin lesions; the tests ``clean`` and ``corrupted`` show the same images.

    Parameters
    ----------
    data, alpha, corruption, severity, recipe, size : as in ``rsna``.
    clients : >= 1, clients in all; or "centre", where each medical centre is a client, no image is corrupted, and there is
        one test for each centre.
    corrupted : as in ``rsna``; 4 if None.
    lists : folder of ``train.csv`` and ``test.csv``, which say what images there are; a fixed draw of 8 to 2 if None.

    Raises
    ------
    ValueError, DataError as in ``rsna``.
    """
    if isinstance(clients, str) and clients != CENTRE:
        raise ValueError(f"fedism-isic: clients must be a whole number or {CENTRE!r}; found {clients!r}.")
    worse = {"corruption": corruption != "gaussian-noise", "severity": severity}
    asked = {"alpha": alpha != 1.0, **worse, "recipe": recipe != "shuffled"}
    if clients == CENTRE and (idle := [option for option, value in asked.items() if value]):
        raise ValueError(
            f"fedism-isic: with clients={CENTRE} nothing is divided or corrupted, and {', '.join(idle)} would do nothing. Leave it out."
        )
    if clients == CENTRE and corrupted:
        raise ValueError(
            f"fedism-isic: with clients={CENTRE} images stay as the centres took them; found corrupted={corrupted}. Leave it out."
        )

    options = {"lists": lists, "size": size}
    if isinstance(clients, str):
        return _centres(data, options)
    bad = CORRUPTED if corrupted is None else corrupted
    return _unequal(ISIC, data, clients, _Quality(bad, alpha, corruption, severity, recipe), options)


def _unequal(entry: _Set, data: Path | None, clients: int, quality: _Quality, options: Mapping[str, Any]) -> Described:
    """Clients whose classes differ, the last few with corrupted images."""
    name, (corrupted, alpha, corruption, severity, recipe) = entry.name, quality
    require_known(f"corruption of {name}:", CORRUPTIONS, corruption)
    require_known(f"recipe of {name}:", RECIPES, recipe)
    strength = SEVERITY[corruption] if severity is None else severity
    check_severity(CORRUPTIONS[corruption], strength)
    if clients > 0:  # how many there can be depends on the files
        partition.check(name, clients, clients, alpha, corrupted)
    groups = qualities(clients, corrupted)
    clean = clients - corrupted
    about = {"version": VERSION, **quality._replace(severity=strength)._asdict(), **options}

    def divide(train: Contents, test: Contents, seed: int) -> Divided:
        if recipe == "released":
            order, for_parts = np.arange(len(train)), RELEASED_SEED + seed
        else:
            rng = np.random.default_rng(seed)
            order, for_parts = rng.permutation(len(train)), int(rng.integers(2**32))
        drawn = partition.quality(labels(train.data)[order], clients, corrupted, alpha, for_parts)
        parts = [order[part].tolist() for part in drawn]
        bad = [row for part in parts[clean:] for row in part]
        worse = corrupt(train.data, bad, corruption, strength, NOISE["train"], f"{name} train")
        place = {row: k for k, row in enumerate(bad)}
        of_clients = [take(train.data, part) for part in parts[:clean]]
        of_clients += [take(worse, [place[row] for row in part]) for part in parts[clean:]]
        bad_test = corrupt(test.data, range(len(test)), corruption, strength, NOISE["test"], f"{name} test")
        tests = {"clean": test.data, "corrupted": bad_test}
        return Divided(parts, tests, groups=groups, clients=of_clients, recipe=about)

    return _scenario(entry, data, divide, options)


def _centres(data: Path | None, options: Mapping[str, Any]) -> Described:
    """A client and a test for every medical centre that has images in both splits."""
    name = ISIC.name

    def divide(train: Contents, test: Contents, _: int) -> Divided:
        if not train.parts or not test.parts:
            raise DataError(
                f"{name}: clients={CENTRE} needs to know where each image comes from, which the metadata of the data set say; "
                "found none. Put them next to the images, or give a number of clients."
            )
        names = tuple(centre for centre, rows in train.parts.items() if rows and test.parts.get(centre))
        if missing := sorted({*train.parts, *test.parts} - {*names}):
            raise DataError(
                f"{name}: centre {missing[0]} has no image to train on, or none to test. Give a number of clients."
            )
        parts = [train.parts[centre] for centre in names]
        tests = {centre: take(test.data, test.parts[centre]) for centre in names}
        return Divided(parts, tests, names, names, recipe={"version": VERSION, "clients": CENTRE, **options})

    return _scenario(ISIC, data, divide, options)


def _scenario(entry: _Set, data: Path | None, divide: papers.Divide, options: Mapping[str, Any]) -> Described:
    side = options["size"]
    reading = {"side" if option == "size" else option: value for option, value in options.items()}
    fixed = {"transform": TRANSFORM, "network": "resnet18", "protocol": PROTOCOL, "measures": MEASURES}
    fields = {"sample": (3, side, side), **fixed}
    return papers.from_splits(entry.name, entry.reads, entry.summary, data, divide, reading, **fields)
