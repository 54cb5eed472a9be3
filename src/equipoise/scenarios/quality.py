"""Digits of unequal quality: some clients photograph badly, and everybody is tested on good and on bad images.

The design of FedISM+: classes are spread unevenly among the clients, and the images of the last few clients are
corrupted once. What is corrupted and how strongly are options. The images are those of ``digits``, all domains mixed.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from equipoise.scenarios import cache, digits, partition
from equipoise.scenarios.corruption import CORRUPTIONS, Corruption, motion_blur
from equipoise.scenarios.scenario import Protocol, Scenario
from equipoise.system.suggestions import unknown

VERSION = 1  # raise it whenever a byte or a part changes

TRAIN = (300, 300, 800, 300)  # images per domain
TEST = (250, 250, 250, 250)
CLIENTS = 20
CORRUPTED = 4

# A digit fills its image: a smear in proportion to that of photographs, of 224 pixels, would hardly show.
BLUR_SIDE = 96
CORRUPT: Mapping[str, Corruption] = CORRUPTIONS | {"motion-blur": partial(motion_blur, side=BLUR_SIDE)}

# Sharpness-aware training from scratch needs BatchNorm, which the networks of FedISM+ have: with the group normalisation
# of the other scenarios, SAM of the usual radius never leaves the initial plateau, in a federation or out of it.
NETWORK = {"norm": "batch", "width": 8}
PROTOCOL = Protocol(rounds=50, epochs=2, batch_size=32, lr=0.02, momentum=0.9, weight_decay=1e-5)

SUMMARY = "Digits of all domains; the images of a few clients are noisy or blurred."


def scenario(
    seed: int = 0,
    *,
    clients: int = CLIENTS,
    corrupted: int = CORRUPTED,
    alpha: float = 1.0,
    corruption: str = "gaussian-noise",
    severity: int = 4,
    train: Sequence[int] = TRAIN,
    test: Sequence[int] = TEST,
) -> Scenario:
    """Digits, where the images of some clients are corrupted.

    The test groups ``clean`` and ``corrupted`` show the same images, before and after the corruption. A client has at
    least a quarter of the mean number of images: the class-wise draw is repeated until it does.

    Parameters
    ----------
    seed : >= 0; another seed draws other images, another partition and other noise.
    clients : >= 1, clients in all.
    corrupted : in 0..clients; the last so many. Of 20 clients, 1, 2, 4 and 6 are 5, 10, 20 and 30 %.
    alpha : >= 0.01; how evenly a class is spread, among the clean clients and among the corrupted ones.
    corruption : a key of ``CORRUPTIONS``; the lengths of ``motion-blur`` are those for images of ``BLUR_SIDE`` pixels.
    severity : 0..5; 0 leaves the images as they are.
    train, test : images per domain, in the order of ``digits.DOMAINS``; the first two of both up to 1,797.

    Raises
    ------
    ValueError if an option is out of its range or unknown, or leaves no partition.
    """
    if corruption not in CORRUPTIONS:
        raise ValueError(unknown("corruption", corruption, CORRUPTIONS))
    data = digits.recall(seed, train, test)
    (x, y), (clean, labels) = digits.joined(data, "train"), digits.joined(data, "test")
    # The stream's key is one that the images do not use. Samples come sorted by domain, which must not decide.
    rng = digits.stream(seed, len(digits.DOMAINS) + 1)
    for_parts, for_train, for_test = rng.integers(0, 2**32, 3).tolist()
    order = torch.from_numpy(rng.permutation(len(y)))
    least = max(1, len(y) // (4 * clients)) if clients > 0 else 1
    drawn = partition.quality(y[order], clients, corrupted, alpha, for_parts, min_size=least)
    parts = [order[part] for part in drawn]
    corrupt = CORRUPT[corruption]
    bad = torch.cat(parts[clients - corrupted :]) if corrupted else order[:0]
    x[bad] = corrupt(x[bad], severity, for_train)
    tests = {"clean": (clean, labels), "corrupted": (corrupt(clean, severity, for_test), labels)}
    groups = ("clean",) * (clients - corrupted) + ("corrupted",) * corrupted
    names = tuple(f"{group}-{k}" for group in ("clean", "corrupted") for k in range(1, groups.count(group) + 1))
    made = {"train/x": x, "train/y": y} | {f"test/{name}/x": images for name, (images, _) in tests.items()}
    return Scenario(
        name="digits-quality",
        summary=SUMMARY,
        clients=tuple((x[part], y[part]) for part in parts),
        client_names=names,
        client_groups=groups,
        tests=tests,
        transform=digits.TRANSFORM,
        n_classes=10,
        network="cnn",
        network_options=NETWORK,
        protocol=PROTOCOL,
        measures=("accuracy", "balanced", "auc", "auc_ovr"),
        manifest={
            "scenario": "digits-quality",
            **digits.recipe(seed, train, test),
            "quality": {
                "version": VERSION,
                "corrupted": corrupted,
                "corruption": corruption,
                "severity": severity,
                "alpha": alpha,
                "min_size": least,
            },
            "sha256": cache.digest({**made, "test/y": labels}),
            # Positions in the training images of all domains, joined in the order of DOMAINS.
            "clients": {name: part.tolist() for name, part in zip(names, parts, strict=True)},
        },
    )
