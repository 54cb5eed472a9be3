"""Corrupted copies of images, made once: in memory if the images are there, else in a file of the cache."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.decoding import ahead, kept
from equipoise.data.memory_mapped import Data, Mapped, take
from equipoise.scenarios.corruption import CORRUPTIONS, Corruption

VERSION = 1  # raise it whenever a byte changes: it is part of the name of the kept file


def corrupted(data: Data, rows: Sequence[int], corruption: str, severity: int, seed: int, what: str) -> Data:
    """Corrupt some of the images, each by a random number of its own, which neither ``rows`` nor the way it is kept changes.

    Parameters
    ----------
    data : uint8 images [n, C, H, W]; of ``Mapped`` ones only a few are in memory at a time.
    rows : which of them to corrupt; the result has them in this order.
    corruption : a key of ``CORRUPTIONS``.
    severity : 0..5; 0 leaves the images as they are.
    seed : in 0..2**32 - 1.
    what : what the images are, for the progress bar, the name of the file and errors.

    Raises
    ------
    ValueError : the severity is out of range. DataError : the cache's folder cannot be written or is full.
    """
    chosen = take(data, rows)
    if not len(rows):
        return chosen
    change = CORRUPTIONS[corruption]
    # its beginning does not depend on its length
    seeds = np.random.SeedSequence(seed).generate_state(max(rows) + 1).tolist()
    check_severity(change, severity)
    if severity == 0:
        return chosen

    def one(k: int) -> NDArray[np.uint8]:
        x = chosen.images([k]) if isinstance(chosen, Mapped) else chosen[0][k : k + 1]
        made: NDArray[np.uint8] = np.ascontiguousarray(change(x, severity, seeds[rows[k]])[0].numpy())
        return made

    count = range(len(rows))
    if not isinstance(chosen, Mapped):
        return torch.from_numpy(np.stack(list(ahead(one, count)))), *chosen[1:]
    about = chosen.path.stat()
    source = [chosen.path.name, about.st_size, about.st_mtime_ns, chosen.rows.tolist()]
    recipe = json.dumps([VERSION, source, list(rows), corruption, severity, seed])
    stem = f"{what.replace(' ', '-')}-{hashlib.sha256(recipe.encode()).hexdigest()[:32]}"
    path = kept(stem, (len(rows), *chosen.shape), lambda: ahead(one, count), what=what, doing=f"{corruption} on")
    return replace(chosen, path=path, rows=np.arange(len(rows)))


def check_severity(corruption: Corruption, severity: int) -> None:
    """Raise the error of a severity that is out of range before any work."""
    corruption(torch.zeros(0, 1, 1, 1, dtype=torch.uint8), severity, 0)


def qualities(clients: int, corrupted: int) -> tuple[str, ...]:
    """The test group that each client belongs to: ``clean`` or, of the last ones, ``corrupted``."""
    return ("clean",) * (clients - corrupted) + ("corrupted",) * corrupted
