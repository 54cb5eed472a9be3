"""What a site has held out in its runs: numbers of two draws, and models of the rest, subtracted, are about the people between them."""

import json
from pathlib import Path

import numpy as np

from equipoise.data.samples import Draw, Samples, held_rows
from equipoise.privacy.differences import exposed
from equipoise.system.files import locked, make_private, read_regular, write_atomically
from equipoise.system.seals import read_json


def require_apart(path: Path, name: str, data: Samples, draw: Draw, least: int) -> None:
    """Store what a site holds out, unless sums of fewer than ``least`` people follow from it and what it held out before.

    Whatever it trains on gives sums, such as an update, and what it holds out if that is of ``least`` people. A first draw of fewer is stored in any case.

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
    person = np.arange(n) if people is None else people
    y = None if data.shape_and_labels is None else data.shape_and_labels[1].cpu().numpy()
    make_private(path.parent)
    with locked(path.with_suffix(".lock"), wait=True, private=True):
        try:
            past = read_json(read_regular(path).decode()) if path.exists() else {}
            earlier = [held_rows(n, y, share, seed, name, people) for share, seed in past.get(name, [])]
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"its file {path.name} is damaged; put it back from a copy") from None
        draws = [held_rows(n, y, *draw, name, people), *earlier]
        if any(np.array_equal(draws[0], other) for other in earlier):
            return
        told = [held for held in draws if np.unique(person[held]).size >= least]
        sums = np.stack([*(~held for held in draws), *told])
        if (earlier or told) and exposed(sums, np.arange(n), person, least).any():
            raise ValueError(
                f"with what it held out before, validation={draw[0]:g} and seed={draw[1]} would tell of fewer people than its "
                "least-group; choose validation and seed of an earlier run"
            )
        write_atomically(path, json.dumps({**past, name: [*past.get(name, []), draw]}), private=True)
