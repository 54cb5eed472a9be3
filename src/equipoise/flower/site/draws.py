"""What a site has held out in its runs: numbers of two draws, subtracted, are about the people between them."""

import json
from pathlib import Path

import numpy as np

from equipoise.data.samples import Draw, Samples, held_rows, n_held
from equipoise.privacy.differences import exposed
from equipoise.system.files import locked, make_private, read_regular, write_atomically
from equipoise.system.seals import read_json


def require_apart(path: Path, name: str, data: Samples, draw: Draw, least: int) -> None:
    """Store what a site holds out, unless numbers of fewer than ``least`` people follow from it and what it held out before.

    Without people the numbers of rows follow from the shares, and no other number leaves of fewer rows than ``least``.

    Parameters
    ----------
    path : the file of all draws of the sites that keep their states in one directory.
    name : of the site.
    data : all its training data.

    Raises
    ------
    ValueError : such numbers would follow, or the file is damaged.
    """
    n, people = data.size, data.people
    if not draw[0] or (people is None and n_held(n, draw[0]) < least):
        return
    y = None if data.shape_and_labels is None else data.shape_and_labels[1].cpu().numpy()
    make_private(path.parent)
    with locked(path.with_suffix(".lock"), wait=True, private=True):
        try:
            past = read_json(read_regular(path).decode()) if path.exists() else {}
            earlier = [held_rows(n, y, share, seed, name, people) for share, seed in past.get(name, [])]
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"its file {path.name} is damaged; put it back from a copy") from None
        rows = held_rows(n, y, *draw, name, people)
        if any(np.array_equal(rows, other) for other in earlier):
            return
        sums = np.stack([np.ones(n, dtype=bool), rows, *earlier])
        if exposed(sums, np.arange(n), np.arange(n) if people is None else people, least).any():
            raise ValueError(
                f"with what it held out before, validation={draw[0]:g} and seed={draw[1]} would tell of fewer people than its "
                "least-group; choose validation and seed of an earlier run, or validation=0"
            )
        write_atomically(path, json.dumps({**past, name: [*past.get(name, []), draw]}), private=True)
