"""From uint8 images to what a network takes: random crops, flips, turns and windows, then normalisation."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equipoise.data.batch import Inputs
from equipoise.system.ranges import check_fields, choice, number

Numbers = tuple[float, ...]
Window = tuple[Tensor, ...]  # top, left, height and width in pixels, of each image or of all
FINE = 1 << 16  # values that a continuous quantity may take: for 512 pixels turned by any angle, steps of 0.02 pixels


@dataclass(frozen=True)
class Images:
    r"""Turn a batch of uint8 images into normalised floats, changed at random in training.

    .. math:: (x / 255 - \text{mean}) / \text{std}

    of the image as it is, or in training of what is left when a window was cut from it, turned, moved and mirrored, in
    this order. Whole pixels are moved where that is enough (``crop``, ``flip``, ``translate``). Otherwise each image is
    sampled once, bilinearly.

    The class is long because what is drawn and where it is applied must agree, step by step.

    Parameters
    ----------
    mean, std : one number per channel, or one for all, on the scale where white is 1; ``std`` > 0.
    crop : >= 0, pixels: the image is padded by so many on each side, and cut to its size at a random place.
    pad : what is outside of the image: ``"edge"`` repeats its last pixels, ``"zero"`` is black.
    flip : mirror left and right, for every other image.
    rotate : in [0, 180], degrees: turn by an angle drawn evenly from -rotate to rotate, around the middle.
    translate : in [0, 1): move by up to this share of height and width, in whole pixels.
    area : share of the image's area that a random window has, drawn evenly between two numbers > 0; None cuts none.
    ratio : width over height of the window, drawn evenly between the logarithms of two numbers > 0.
    size : >= 1, height and width of the result; None leaves those of the image. Where no window is drawn, the shorter side
        is made so long, and the longer one cut on both ends.
    levels : the grey levels of the files that 0 and 255 stand for, where these are others. It changes nothing here, and
        must be the same wherever a model is trained or used.

    Differs: torchvision's RandomResizedCrop draws a window up to ten times until it lies in the image. Here it is drawn
    once, and cut to the image, which also gives a meaning to an area above 1. Its RandomRotation and RandomAffine take the
    nearest pixel, and a composition of them samples the image several times. A window or turn that makes an image smaller
    does so without antialiasing; ``size`` alone does it with.

    Raises
    ------
    ValueError if a number is out of its range, or ``mean`` and ``std`` differ in length.
    """

    mean: Numbers
    std: Numbers
    crop: int = number(0, 0)
    _: KW_ONLY
    pad: Literal["edge", "zero"] = choice("edge", "zero")
    flip: bool = False
    rotate: float = number(0.0, 0, 180)
    translate: float = number(0.0, 0, 1, below=True)
    area: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    size: int | None = number(None, 1, whole=True)
    levels: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                f"Images: mean and std must have one number per channel each; found {len(self.mean)} and {len(self.std)}."
            )
        if min(self.std) <= 0:
            raise ValueError(f"Images: every std must be > 0; found {self.std}.")
        check_fields(self, "Images: ")
        pairs: dict[str, tuple[float, ...] | None] = {"area": self.area, "ratio": self.ratio}
        for name, pair in pairs.items():
            if pair is not None and (len(pair) != 2 or not 0 < pair[0] <= pair[1] < math.inf):
                raise ValueError(f"Images: {name} must be two numbers with 0 < low <= high; found {pair}.")

    @property
    def chances(self) -> tuple[int, ...]:
        """How many values each random number of an image may take: of crop (2), flip, turn, move (2) and window (4)."""
        continuous = bool(self.rotate) + 2 * bool(self.translate) + 4 * (self.area is not None)
        return (2 * self.crop + 1,) * (2 * bool(self.crop)) + (2,) * self.flip + (FINE,) * continuous

    def shape(self, sample: tuple[int, ...]) -> tuple[int, ...]:
        """Shape [C, H, W] of what becomes of an image of the shape ``sample``."""
        return sample if self.size is None else (*sample[:-2], self.size, self.size)

    def __call__(self, x: Inputs, shift: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normalise ``x``, after changing each image as ``shift`` says.

        Parameters
        ----------
        x : uint8 [..., C, H, W], with any leading dimensions; never changed.
        shift : int64 [..., k], random numbers of each image drawn by the caller, number j in 0..chances[j] - 1;
            ``None`` (evaluation) changes nothing at random.
        dtype : floating type of the result.

        Returns
        -------
        Tensor [..., C, H, W] in contiguous memory: on a CPU all this is faster there than in channels-last order, and a
        convolution whose weights are channels-last converts on its own. No image depends on the others in its batch.
        """
        if isinstance(x, dict):
            raise TypeError(
                f"Images: expected images, one tensor; found a dictionary of {', '.join(x)}. Write a function transform(x, shift) that calls Images on the images."
            )
        if x.dtype != torch.uint8:
            raise TypeError(f"Images: expected uint8 pixels, found {x.dtype}; pass images before they are normalised.")
        if x.dim() < 3 or len(self.mean) not in (1, x.shape[-3]):
            raise ValueError(
                f"Images: expected [..., {len(self.mean)}, H, W], found {list(x.shape)}; give mean and std one number per channel."
            )
        lead, images = x.shape[:-3], x.reshape(-1, *x.shape[-3:])
        k = len(self.chances)
        if shift is not None and shift.shape != (*lead, k):
            raise ValueError(f"Images: shift must be {[*lead, k]}, {k} numbers per image; found {list(shift.shape)}.")
        if shift is None or not k:
            pixels = self._fitted(images, dtype)
        else:
            pixels = self._changed(images, shift.reshape(-1, k), dtype)
        scale, offset = _affine(self.mean, self.std, dtype, x.device)
        # Two plain operations, not one fused: their rounding does not depend on the shape of the batch.
        return pixels.to(dtype).mul_(scale).sub_(offset).view(*lead, *pixels.shape[1:])

    def _fitted(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The middle of each image [n, C, H, W], as large as it must be: bytes where nothing is to be done."""
        height, width = x.shape[-2:]
        size = self.size
        if size is None or (height, width) == (size, size):
            return x.contiguous()
        short = min(height, width)
        tall, wide = size * height // short, size * width // short
        x = functional.interpolate(x.to(dtype), (tall, wide), mode="bilinear", align_corners=False, antialias=True)
        top, left = round((tall - size) / 2), round((wide - size) / 2)
        return x[..., top : top + size, left : left + size].contiguous()

    def _changed(self, x: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
        """Each image [n, C, H, W] as its numbers [n, k] say."""
        drawn = iter(shift.unbind(1))
        height, width = self.shape(tuple(x.shape))[-2:]
        dy = dx = shift.new_zeros(len(shift))  # how far the place that a pixel is read from lies off
        if self.crop:
            dy, dx = next(drawn) - self.crop, next(drawn) - self.crop
        side = 1 - 2 * next(drawn) if self.flip else torch.ones_like(dy)
        turn = next(drawn) if self.rotate else None
        if self.translate:
            moves = ((n * self.translate * (2 * _share(next(drawn)) - 1)).round().long() for n in (height, width))
            dy, dx = (d - move for d, move in zip((dy, dx), moves, strict=True))
        if turn is None and self.area is None:
            return self._moved(self._fitted(x, dtype), dy, dx, side)
        window = self._window(x, None if self.area is None else [*drawn])
        return self._sampled(x.contiguous().to(dtype), dy, dx, side, turn, window)

    def _moved(self, x: Tensor, dy: Tensor, dx: Tensor, side: Tensor) -> Tensor:
        # One gather over flat pixel numbers: measured 1.4 to 5 times as fast as padding and slicing.
        channels, height, width = x.shape[-3:]
        across = torch.arange(width, device=x.device)
        down = torch.arange(height, device=x.device) + dy[:, None]  # [n, H]
        across = torch.where(side[:, None] > 0, across, width - 1 - across) + dx[:, None]  # [n, W]
        rows, columns = down.clamp(0, height - 1) * width, across.clamp(0, width - 1)
        index = (rows[:, :, None] + columns[:, None, :]).flatten(1)  # [n, HW]
        index = index[:, None, :].expand(-1, channels, -1)  # [n, C, HW]
        out = x.view(-1, channels, height * width).gather(2, index).view(x.shape)
        if self.pad == "edge":
            return out
        outside = ((down < 0) | (down >= height))[:, :, None] | ((across < 0) | (across >= width))[:, None, :]
        return out.masked_fill_(outside[:, None], 0)

    def _window(self, x: Tensor, drawn: list[Tensor] | None) -> Window:
        """Top, left, height and width [n or 1] of the part of each image that becomes the result, in pixels."""
        height, width = x.shape[-2:]
        if drawn is None or self.area is None:
            tall, wide = (height, width) if self.size is None else (min(height, width),) * 2
            box = torch.tensor([(height - tall) / 2, (width - wide) / 2, tall, wide], dtype=torch.float64)
            return tuple(box.to(x.device)[:, None])
        area = height * width * (self.area[0] + (self.area[1] - self.area[0]) * _share(drawn[0]))
        low, high = map(math.log, self.ratio)
        ratio = _table(np.exp, low, high, x.device)[drawn[1]]
        down = (area / ratio).sqrt().round().clamp(1, height)
        across = (area * ratio).sqrt().round().clamp(1, width)
        top = (_share(drawn[2]) * (height - down + 1)).floor()
        left = (_share(drawn[3]) * (width - across + 1)).floor()
        return top, left, down, across

    def _sampled(self, x: Tensor, dy: Tensor, dx: Tensor, side: Tensor, turn: Tensor | None, window: Window) -> Tensor:
        """Pixels [n, C, *shape] between those of ``x`` [n, C, H, W], which is of the floating type of the result."""
        (tall, wide), (top, left, down, across) = self.shape(tuple(x.shape))[-2:], window
        y = _middle(tall, x.device) + dy[:, None]  # [n, H] from the middle, in pixels of the result
        z = _middle(wide, x.device) * side[:, None] + dx[:, None]  # [n, W]
        angle = math.radians(self.rotate)
        cos, sin = torch.ones_like(y[:, :1]), torch.zeros_like(y[:, :1])
        if turn is not None:
            cos, sin = (_table(f, -angle, angle, x.device)[turn][:, None] for f in (np.cos, np.sin))
        grid = x.new_empty(len(x), tall, wide, 2)  # where each pixel is read, on the scale where the window is -1..1
        for k, parts in enumerate((((cos * z), (sin * y), wide), ((-sin * z), (cos * y), tall))):
            by_column, by_row = (2 / parts[2] * part for part in parts[:2])
            torch.add(by_row.to(x.dtype)[:, :, None], by_column.to(x.dtype)[:, None, :], out=grid[..., k])
        outside = (grid.abs() > 1).any(-1) if self.pad == "zero" else None
        for k, (start, length, whole) in enumerate(((left, across, x.shape[-1]), (top, down, x.shape[-2]))):
            part, offset = (v.to(x.dtype)[:, None, None] for v in (length / whole, (2 * start + length) / whole - 1))
            grid[..., k].mul_(part).add_(offset)
        out = functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
        return out if outside is None else out.masked_fill_(outside[:, None], 0)


def _share(drawn: Tensor) -> Tensor:
    """Numbers of 0..FINE - 1 as shares in (0, 1), float64."""
    return (drawn.double() + 0.5) / FINE


def _middle(n: int, device: torch.device) -> Tensor:
    """How far each of n pixels lies from the middle, float64 [n]."""
    return torch.arange(n, dtype=torch.float64, device=device) - (n - 1) / 2


@lru_cache(maxsize=16)
def _table(function: Callable[..., Any], low: float, high: float, device: torch.device) -> Tensor:
    """What a function gives for the shares of the way from ``low`` to ``high`` that can be drawn, float64 [FINE].

    From a table, since the last bit of torch's own sine depends on where in a batch an image stands.
    """
    with torch.inference_mode(False):  # a kept tensor must serve outside inference mode too
        return torch.from_numpy(function(low + (high - low) * (np.arange(FINE) + 0.5) / FINE)).to(device)


@lru_cache(maxsize=16)
def _affine(mean: Numbers, std: Numbers, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scale and offset [C, 1, 1] with ``(x / 255 - mean) / std = x * scale - offset``.

    Kept, so that a batch on an accelerator does not wait for two copies from the host.
    """
    with torch.inference_mode(False):  # a kept tensor must serve outside inference mode too
        m, s = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
        return (1 / (255 * s)).to(device, dtype), (m / s).to(device, dtype)
