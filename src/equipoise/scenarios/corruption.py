"""Make images worse as bad cameras and bad acquisition do: by name and severity, the same for the same seed.

The strengths are those of the common corruptions (Hendrycks and Dietterich 2019), in the form FedISM+ uses. Every
function takes uint8 images [n, C, H, W] as a tensor and returns new ones; severity 0 returns the images themselves.
The arithmetic is float64 NumPy, so the bytes do not depend on the number of threads.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.decoding import ahead, kept
from equipoise.data.memory_mapped import Data, Mapped, take
from equipoise.system.ranges import check_whole

KEPT_VERSION = 1  # raise it whenever a byte changes: it is part of the name of the kept file

Array = NDArray[np.float64]

SIGMA = (0.08, 0.12, 0.18, 0.26, 0.38)  # of the noise, by severity, where white is 1
BLUR = ((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0))  # radius and sigma in pixels, by severity
BLUR_SIDE = 224  # side, in pixels, of the images that BLUR is meant for
BLUR_ANGLE = 45.0  # degrees, both ways
CHUNK = 1024  # images worked on at once: their float64 copies stay below 100 MB at 64 x 64 pixels


def gaussian_noise(images: Tensor, severity: int, seed: int) -> Tensor:
    """Add normal noise to every value: ``floor(255 * clip(x / 255 + N(0, sigma ** 2), 0, 1))``.

    FedISM+ (Sec. 4, "GN"), as released. Numbers are drawn pixel by pixel with the channels of a pixel together. An
    image whose channels are all equal stays grey: the field of its first channel serves all of them, as in FedISM+,
    while the other numbers are drawn and left unused, so that no image changes the noise of another.

    Parameters
    ----------
    images : uint8 [n, C, H, W].
    severity : 0..5; the standard deviation is 0.08, 0.12, 0.18, 0.26 or 0.38 of white.
    seed : in 0..2**32 - 1.

    Returns
    -------
    uint8 [n, C, H, W].

    Raises
    ------
    ValueError, TypeError if an argument is not as above.
    """
    _check("gaussian_noise", images, severity, seed)
    if severity == 0:
        return images
    rng, pixels, made = RandomState(seed), images.numpy(), np.empty(tuple(images.shape), np.uint8)
    for first in range(0, len(pixels), CHUNK):
        x = pixels[first : first + CHUNK]
        n, channels, height, width = x.shape
        field = rng.normal(0, SIGMA[severity - 1], (n, height, width, channels)).transpose(0, 3, 1, 2)
        grey = (x == x[:, :1]).all((1, 2, 3))[:, None, None, None]
        noise = np.where(grey, field[:, :1], field)
        made[first : first + CHUNK] = (np.clip(x / 255 + noise, 0, 1) * 255).astype(np.uint8)
    return torch.from_numpy(made)


def motion_kernel(severity: int) -> Array:
    """Weights of the shifts by 0, 1, ..., 2 * radius pixels: ``exp(-i ** 2 / (2 * sigma ** 2))``, scaled to sum one."""
    radius, sigma = BLUR[severity - 1]
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    return np.asarray(weights / weights.sum())


def motion_blur(images: Tensor, severity: int, seed: int, *, side: int = BLUR_SIDE) -> Tensor:
    """Smear every image along a line at a random angle in (-45, 45) degrees to the horizontal.

    The weighted sum, by ``motion_kernel``, of the image moved by i = 0, 1, ... pixels along the line, each move
    rounded to whole pixels (halves down) and the edge repeated; rounded to the nearest byte.

    Differs: FedISM+ calls ImageMagick, which this approximates; and the lengths i are multiplied by H / ``side``, as
    they are meant for images of 224 pixels and would leave nothing of a small one.

    Parameters
    ----------
    images : uint8 [n, C, H, W].
    severity : 0..5; sigma is 3, 5, 8, 12 or 15 pixels of an image of ``side`` pixels.
    seed : in 0..2**32 - 1.
    side : >= 1, height in pixels of an image whose smear has the lengths above; a smaller number smears more.

    Returns
    -------
    uint8 [n, C, H, W].

    Raises
    ------
    ValueError, TypeError if an argument is not as above.
    """
    _check("motion_blur", images, severity, seed)
    check_whole("motion_blur: side", side, 1, meaning=" pixels")
    if severity == 0:
        return images
    angle = np.deg2rad(RandomState(seed).uniform(-BLUR_ANGLE, BLUR_ANGLE, len(images)))
    weights = motion_kernel(severity)
    length = np.arange(len(weights)) * images.shape[2] / side
    right, down = (np.ceil(length * f(angle)[:, None] - 0.5).astype(np.int64) for f in (np.cos, np.sin))  # [n, taps]
    made = np.empty(tuple(images.shape), np.uint8)
    for first in range(0, len(images), CHUNK):
        part = slice(first, first + CHUNK)
        made[part] = _smeared(images[part].numpy(), right[part], down[part], weights)
    return torch.from_numpy(made)


Corruption = Callable[[Tensor, int, int], Tensor]

CORRUPTIONS: dict[str, Corruption] = {"gaussian-noise": gaussian_noise, "motion-blur": motion_blur}


def _smeared(x: NDArray[np.uint8], right: NDArray[np.int64], down: NDArray[np.int64], weights: Array) -> Array:
    """Weighted sum over taps of x [n, C, H, W] moved by (down, right) [n, taps], to the nearest whole number."""
    (height, width), n = x.shape[2:], np.arange(len(x))
    # Most taps share a move with another: sum their weights, and move each image once per move it has.
    reach = max(int(np.abs(right).max()), int(np.abs(down).max()), 0)
    total = np.zeros((len(x), 2 * reach + 1, reach + 1))
    for tap, weight in enumerate(weights):
        total[n, down[:, tap] + reach, right[:, tap]] += weight
    padded = np.pad(x, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    out = np.zeros(x.shape)
    for i, j in np.argwhere(total.any(0)).tolist():
        has = np.flatnonzero(total[:, i, j])
        top, left = 2 * reach - i, reach - j  # the pixel that arrives at (0, 0)
        out[has] += total[has, i, j][:, None, None, None] * padded[has, :, top : top + height, left : left + width]
    return np.rint(out)


def _check(who: str, images: Tensor, severity: int, seed: int) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise TypeError(
            f"{who}: expected uint8 images [n, C, H, W], found {images.dtype} {list(images.shape)}; pass images before "
            "they are normalised."
        )
    check_whole(f"{who}: severity", severity, 0, len(SIGMA))
    check_whole(f"{who}: seed", seed, 0, 2**32 - 1)


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

    def image(k: int) -> NDArray[np.uint8]:
        x = chosen.images([k]) if isinstance(chosen, Mapped) else chosen[0][k : k + 1]
        return np.ascontiguousarray(change(x, severity, seeds[rows[k]])[0].numpy())

    count = range(len(rows))
    if not isinstance(chosen, Mapped):
        return torch.from_numpy(np.stack(list(ahead(image, count)))), *chosen[1:]
    about = chosen.path.stat()
    source = [chosen.path.name, about.st_size, about.st_mtime_ns, chosen.rows.tolist()]
    recipe = json.dumps([KEPT_VERSION, source, list(rows), corruption, severity, seed])
    stem = f"{what.replace(' ', '-')}-{hashlib.sha256(recipe.encode()).hexdigest()[:32]}"
    path = kept(stem, (len(rows), *chosen.shape), lambda: ahead(image, count), what=what, doing=f"{corruption} on")
    return replace(chosen, path=path, rows=np.arange(len(rows)))


def check_severity(corruption: Corruption, severity: int) -> None:
    """Raise the error of a severity that is out of range before any work."""
    corruption(torch.zeros(0, 1, 1, 1, dtype=torch.uint8), severity, 0)


def qualities(clients: int, corrupted: int) -> tuple[str, ...]:
    """The test group that each client belongs to: ``clean`` or, of the last ones, ``corrupted``."""
    return ("clean",) * (clients - corrupted) + ("corrupted",) * corrupted
