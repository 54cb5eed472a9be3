"""Who has what: how many samples of which class every client and every test set has, and a few images."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.batch import Batch
from equipoise.data.memory_mapped import Data, Mapped
from equipoise.data.samples import Absent, Samples
from equipoise.system.grouping import grouped
from equipoise.system.tree import flatten

Known = Samples | Absent | Data
SIDE, MOST = 32, 40_000  # pixels of an example, and characters that all examples of a run take together, at most


def holdings(
    names: Sequence[str], groups: Sequence[str] | None, clients: Sequence[Known], tests: Mapping[str, Known], C: int
) -> dict[str, Any]:
    """What clients and test sets hold: ``{"clients": [{"name", "size", "counts", "group"}], "tests": [{"name", "size", "counts"}]}``.

    ``counts`` [C] are samples per class, None where that takes reading samples (:class:`equipoise.Lazy`, streams, sites), and empty
    where labels are numbers to predict. If people are named, ``people`` are how many, and ``people_of_class`` [C] those with samples of each.
    """

    def described(name: str, data: Known) -> dict[str, Any]:
        samples = _at_hand(data)
        y = None if samples.shape_and_labels is None else samples.shape_and_labels[1]
        counts = None if y is None else [] if y.is_floating_point() else y.bincount(minlength=C).tolist()
        about = {"name": name, "size": samples.size, "counts": counts}
        if samples.people is None:
            return about
        people_of_class = [len(np.unique(samples.people[(y == c).cpu().numpy()])) for c in range(len(counts or ()))]  # type: ignore[union-attr]
        return {**about, "people": samples.persons, "people_of_class": people_of_class}

    client_data = zip(names, groups or [""] * len(names), clients, strict=True)
    of_clients = [described(name, data) | {"group": group} for name, group, data in client_data]
    return {"clients": of_clients, "tests": [described(name, data) for name, data in tests.items()]}


def examples(groups: Sequence[str] | None, clients: Sequence[Known]) -> dict[str, str]:
    """A few images of every group (of all clients if there are none) side by side, as PNG in base64; empty if there are none at hand.

    The first of each class in turn, of one client of the group after another.
    """
    images_of_clients = zip(groups or [""] * len(clients), map(_images, clients), strict=True)
    members = grouped((group, images) for group, images in images_of_clients if images is not None)
    for n in (6, 4, 2, 1):
        strips = {name: _strip([_example(*ours[k % len(ours)], k) for k in range(n)]) for name, ours in members.items()}
        if sum(map(len, strips.values())) <= MOST:
            return strips
    return {}


def _at_hand(data: Known) -> Samples | Absent:
    """Data of a scenario as those of a client."""
    if isinstance(data, tuple | Mapped):
        return Samples(Batch(*data) if isinstance(data, tuple) else data, torch.int64, torch.device("cpu"))
    return data


def _images(given: Known) -> tuple[Tensor, Callable[[int], Tensor]] | None:
    """Labels, and the image of a row, where these are images [C, H, W] with one or three channels."""
    data = _at_hand(given)
    if not isinstance(data, Samples) or data.shape_and_labels is None:
        return None
    shape, y = data.shape_and_labels
    if isinstance(shape, dict) or len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) <= 4:
        return None
    return y, lambda row: flatten(data.store.gather(torch.tensor([row], device=y.device)).x)[""][0]


def _example(y: Tensor, image: Callable[[int], Tensor], k: int) -> Tensor:
    """One image, uint8 [H, W, 3]."""
    classes = y.unique()
    x = image(int((y == classes[k % len(classes)]).nonzero()[0])).cpu()
    if x.dtype != torch.uint8:  # numbers on any scale: the least is black, the largest white
        x = x.double() - x.min()
        x = (255 * x / x.max().clamp(min=1e-12)).byte()
    return x.permute(1, 2, 0).expand(-1, -1, 3).contiguous()


def _strip(images: Sequence[Tensor]) -> str:
    from PIL import Image

    strip = Image.fromarray(torch.cat([*images], 1).numpy())
    strip.thumbnail((SIDE * len(images), SIDE))
    strip.save(file := io.BytesIO(), format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
