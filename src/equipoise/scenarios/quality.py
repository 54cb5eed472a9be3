"""Digits of unequal quality: some clients photograph badly, and everybody is tested on good and on bad images.

The design of FedISM+: classes are spread unevenly among the clients, and the images of the last few clients are
corrupted once. What is corrupted and how strongly are options. The images are those of ``digits``, all domains mixed.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from equipoise.scenarios import digits, partition
from equipoise.scenarios.corruption import CORRUPTIONS, Corruption, check_severity, motion_blur, qualities
from equipoise.scenarios.scenario import Described, Divided, Protocol
from equipoise.system.suggestions import require_known

VERSION = 1  # raise it whenever a byte or a part changes

TRAIN = (300, 300, 800, 300)  # images per domain
TEST = (250, 250, 250, 250)
CLIENTS = 20
CORRUPTED = 4

# A digit fills its image: a smear in proportion to that of photographs, of 224 pixels, would hardly show.
BLUR_SIDE = 96
CORRUPT: Mapping[str, Corruption] = CORRUPTIONS | {"motion-blur": partial(motion_blur, side=BLUR_SIDE)}

# BatchNorm, as the networks of FedISM+ have it; it also trains with larger search distances than group normalisation.
NETWORK = {"norm": "batch", "width": 8}
PROTOCOL = Protocol(rounds=50, epochs=2, batch_size=32, lr=0.02, momentum=0.9, weight_decay=1e-5)
MEASURES = ("accuracy", "balanced", "auc", "auc_ovr")
TRAINED: Mapping[str, Any] = {"network_options": NETWORK, "protocol": PROTOCOL, "measures": MEASURES}

SUMMARY = "Digits of all domains; the images of a few clients are noisy or blurred."


def scenario(
    *,
    clients: int = CLIENTS,
    corrupted: int = CORRUPTED,
    alpha: float = 1.0,
    corruption: str = "gaussian-noise",
    severity: int = 4,
    train: Sequence[int] = TRAIN,
    test: Sequence[int] = TEST,
) -> Described:
    """Digits, where the images of some clients are corrupted.

    The test groups ``clean`` and ``corrupted`` show the same images, before and after the corruption. A client has at
    least a quarter of the mean number of images: the class-wise draw is repeated until it does.

    Parameters
    ----------
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
    require_known("corruption", CORRUPTIONS, corruption)
    description = digits.described("digits-quality", SUMMARY, train, test, **TRAINED)
    partition.check("digits-quality", sum(train), clients, alpha, corrupted=corrupted)
    corrupt = CORRUPT[corruption]
    check_severity(corrupt, severity)
    least = max(1, sum(train) // (4 * clients))

    def divide(seed: int, data: digits.Tensors) -> Divided:
        (x, y), (clean, labels) = digits.joined(data, "train"), digits.joined(data, "test")
        # The stream's key is one that the images do not use. Samples come sorted by domain, which must not decide.
        rng = digits.stream(seed, len(digits.DOMAINS) + 1)
        for_parts, for_train, for_test = rng.integers(0, 2**32, 3).tolist()
        order = torch.from_numpy(rng.permutation(len(y)))
        drawn = partition.quality(y[order], clients, corrupted, alpha, for_parts, min_size=least)
        parts = [order[part].tolist() for part in drawn]
        bad = [row for part in parts[clients - corrupted :] for row in part]
        x[bad] = corrupt(x[bad], severity, for_train)
        tests = {"clean": (clean, labels), "corrupted": (corrupt(clean, severity, for_test), labels)}
        made = {"train/x": x, "train/y": y} | {f"test/{name}/x": images for name, (images, _) in tests.items()}
        worse = {"corrupted": corrupted, "corruption": corruption, "severity": severity}
        quality = {"version": VERSION, **worse, "alpha": alpha, "min_size": least}
        checked, groups = made | {"test/y": labels}, qualities(clients, corrupted)
        recipe = {"quality": quality}
        return Divided(parts, tests, groups=groups, train=(x, y), checked=checked, recipe=recipe)

    return digits.scenario(description, train, test, divide)
