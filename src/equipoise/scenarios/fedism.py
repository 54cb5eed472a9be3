"""FedISM's scenarios: CT slices of the brain and photographs of the skin, which some clients record badly.

Wu et al., "From Optimization to Generalization: Fair Federated Learning against Quality Shift via Inter-Client Sharpness
Matching" (IJCAI 2024), its extension FedISM+ (arXiv 2503.09587), and their released code where the papers are silent.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.contents import DataError, Found
from equipoise.data.memory_mapped import Data, labels, take
from equipoise.data.sets import catalog
from equipoise.scenarios import partition
from equipoise.scenarios.corrupted import corrupted as corrupt
from equipoise.scenarios.corruption import CORRUPTIONS
from equipoise.scenarios.papers import MEAN, STD, manifest
from equipoise.scenarios.scenario import Images, Protocol, Scenario
from equipoise.system.suggestions import unknown

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

SUMMARY_RSNA = "FedISM's CT slices of bleeding in the brain; the images of a few clients are noisy or blurred."
SUMMARY_ISIC = "FedISM's photographs of skin lesions; the images of a few clients are noisy or blurred."


def rsna(
    seed: int,
    data: Path,
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
) -> Scenario:
    """CT slices with one of five kinds of bleeding; the tests ``clean`` and ``corrupted`` show the same images.

    Parameters
    ----------
    seed : >= 0; decides the partition, and neither which slices there are nor how each is corrupted.
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

    def read(split: str) -> Found:
        return catalog.read("rsna-ich", data, split, window=window, side=size, lists=lists, group_by=group_by)

    options = {"window": window, "lists": lists, "group_by": group_by, "size": size}
    return _quality(
        "fedism-rsna", SUMMARY_RSNA, seed, read, clients, corrupted, alpha, corruption, severity, recipe, options
    )


def isic(
    seed: int,
    data: Path,
    *,
    clients: int | str = CLIENTS,
    corrupted: int | None = None,
    alpha: float = 1.0,
    corruption: str = "gaussian-noise",
    severity: int | None = None,
    recipe: str = "shuffled",
    lists: str | None = None,
    size: int = SIDE,
) -> Scenario:
    """Photographs of eight kinds of skin lesions; the tests ``clean`` and ``corrupted`` show the same images.

    Parameters
    ----------
    seed, data, alpha, corruption, severity, recipe, size : as in ``rsna``.
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
    told = {
        "alpha": alpha != 1.0,
        "corruption": corruption != "gaussian-noise",
        "severity": severity,
        "recipe": recipe != "shuffled",
    }
    if clients == CENTRE and (idle := [option for option, value in told.items() if value]):
        raise ValueError(
            f"fedism-isic: with clients={CENTRE} nothing is divided or corrupted, and {', '.join(idle)} would do nothing. Leave it out."
        )
    if clients == CENTRE and corrupted:
        raise ValueError(
            f"fedism-isic: with clients={CENTRE} images stay as the centres took them; found corrupted={corrupted}. Leave it out."
        )

    def read(split: str) -> Found:
        return catalog.read("isic2019", data, split, side=size, lists=lists)

    options = {"lists": lists, "size": size}
    if isinstance(clients, str):
        return _centres("fedism-isic", SUMMARY_ISIC, seed, read, options)
    bad = CORRUPTED if corrupted is None else corrupted
    return _quality("fedism-isic", SUMMARY_ISIC, seed, read, clients, bad, alpha, corruption, severity, recipe, options)


def _quality(
    name: str,
    summary: str,
    seed: int,
    read: Callable[[str], Found],
    clients: int,
    corrupted: int,
    alpha: float,
    corruption: str,
    severity: int | None,
    recipe: str,
    options: Mapping[str, Any],
) -> Scenario:
    """Clients whose classes differ, the last few with corrupted images."""
    if corruption not in CORRUPTIONS:
        raise ValueError(unknown(f"corruption of {name}:", corruption, CORRUPTIONS))
    if recipe not in RECIPES:
        raise ValueError(unknown(f"recipe of {name}:", recipe, RECIPES))
    strength = SEVERITY[corruption] if severity is None else severity
    train, test = read("train"), read("test")
    if recipe == "released":
        order, for_parts = np.arange(len(train)), RELEASED_SEED + seed
    else:
        rng = np.random.default_rng(seed)
        order, for_parts = rng.permutation(len(train)), int(rng.integers(2**32))
    drawn = partition.quality(labels(train.data)[order], clients, corrupted, alpha, for_parts)
    parts = [order[part].tolist() for part in drawn]
    clean = clients - corrupted
    bad = [row for part in parts[clean:] for row in part]
    worse = corrupt(train.data, bad, corruption, strength, NOISE["train"], f"{name} train")
    ends = np.cumsum([len(part) for part in parts[clean:]]).tolist()
    groups = ("clean",) * clean + ("corrupted",) * corrupted
    return _scenario(
        name,
        summary,
        seed,
        {"train": train, "test": test},
        (
            *(take(train.data, part) for part in parts[:clean]),
            *(take(worse, range(end - len(part), end)) for end, part in zip(ends, parts[clean:], strict=True)),
        ),
        tuple(f"{group}-{k}" for group in ("clean", "corrupted") for k in range(1, groups.count(group) + 1)),
        groups,
        {
            "clean": test.data,
            "corrupted": corrupt(test.data, range(len(test)), corruption, strength, NOISE["test"], f"{name} test"),
        },
        parts,
        {
            "corrupted": corrupted,
            "alpha": alpha,
            "corruption": corruption,
            "severity": strength,
            "recipe": recipe,
            **options,
        },
    )


def _centres(name: str, summary: str, seed: int, read: Callable[[str], Found], options: Mapping[str, Any]) -> Scenario:
    """A client and a test for every medical centre that has images in both splits."""
    train, test = read("train"), read("test")
    if not train.parts or not test.parts:
        raise DataError(
            f"{name}: clients={CENTRE} needs to know where each image comes from, which the metadata of the data set say; "
            "found none. Put them beside the images, or give a number of clients."
        )
    names = tuple(who for who, rows in train.parts.items() if rows and test.parts.get(who))
    if missing := sorted({*train.parts, *test.parts} - {*names}):
        raise DataError(
            f"{name}: centre {missing[0]} has no image to train on, or none to test. Give a number of clients."
        )
    parts = [train.parts[who] for who in names]
    return _scenario(
        name,
        summary,
        seed,
        {"train": train, "test": test},
        tuple(take(train.data, part) for part in parts),
        names,
        names,
        {who: take(test.data, test.parts[who]) for who in names},
        parts,
        {"clients": CENTRE, **options},
    )


def _scenario(
    name: str,
    summary: str,
    seed: int,
    found: Mapping[str, Found],
    clients: tuple[Data, ...],
    names: tuple[str, ...],
    groups: tuple[str, ...],
    tests: Mapping[str, Data],
    parts: Sequence[Sequence[int]],
    options: Mapping[str, Any],
) -> Scenario:
    return Scenario(
        name=name,
        summary=summary,
        clients=clients,
        client_names=names,
        client_groups=groups,
        tests=tests,
        transform=TRANSFORM,
        n_classes=len(found["train"].classes),
        network="resnet18",
        protocol=PROTOCOL,
        measures=MEASURES,
        manifest=manifest(name, seed, VERSION, options, found, names, parts),
    )
