"""Transforms of images: each against a plain loop, the same bits in any batch, stack and engine."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import equipoise as eq
from equipoise.core import draws
from equipoise.data.memory_mapped import Mapped
from equipoise.data.transforms import FINE, Images
from equipoise.networks import build
from helpers import consortium, federation, generator, identical, in_one, told

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
EVERYTHING: dict[str, Any] = {
    "crop": 2,
    "pad": "zero",
    "flip": True,
    "rotate": 20.0,
    "translate": 0.1,
    "area": (0.5, 1.1),
    "size": 12,
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"crop": 2},
    {"crop": 3, "pad": "zero"},
    {"flip": True},
    {"translate": 0.2, "pad": "zero"},
    {"crop": 1, "flip": True, "translate": 0.3},
    {"rotate": 30.0},
    {"rotate": 180.0, "pad": "zero"},
    {"rotate": 10.0, "translate": 0.1, "crop": 2, "flip": True, "pad": "zero"},
    {"area": (0.3, 1.0)},
    {"area": (0.8, 1.2), "pad": "zero", "size": 20},
    {"size": 8},
    {"size": 24, "flip": True, "crop": 1},
    {"size": 14, "rotate": 15.0},
    EVERYTHING,
]


def made(**settings: Any) -> Images:
    return Images(MEAN, STD, **settings)


def photos(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(seed))


def lots(images: Images, *lead: int, seed: int = 1) -> Tensor:
    """Random numbers [*lead, k] as a plan would draw them."""
    columns = [torch.randint(0, n, lead, generator=generator(seed + j)) for j, n in enumerate(images.chances)]
    return torch.stack(columns, -1) if columns else torch.zeros(*lead, 0, dtype=torch.int64)


def normalised(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    return (pixels / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]


# the definition, one pixel after another
def naive(images: Images, x: NDArray[np.uint8], drawn: list[int]) -> NDArray[np.float64]:
    """One image [C, H, W] by the definition; only where no antialiasing is asked for."""
    channels, height, width = x.shape
    tall, wide = (images.size or height), (images.size or width)
    numbers = iter(drawn)

    def share() -> float:
        return (next(numbers) + 0.5) / FINE

    up = left_by = 0
    if images.crop:
        up, left_by = next(numbers) - images.crop, next(numbers) - images.crop
    mirrored = bool(images.flip and next(numbers))
    angle = images.rotate * (2 * share() - 1) if images.rotate else 0.0
    if images.translate:
        up -= round(tall * images.translate * (2 * share() - 1))
        left_by -= round(wide * images.translate * (2 * share() - 1))
    top, left, down, across = 0.0, 0.0, float(height), float(width)
    if images.area:
        area = height * width * (images.area[0] + (images.area[1] - images.area[0]) * share())
        ratio = math.exp(math.log(images.ratio[0]) + (math.log(images.ratio[1]) - math.log(images.ratio[0])) * share())
        down = min(max(round(math.sqrt(area / ratio)), 1), height)
        across = min(max(round(math.sqrt(area * ratio)), 1), width)
        top, left = math.floor(share() * (height - down + 1)), math.floor(share() * (width - across + 1))
    elif images.size:
        down = across = min(height, width)
        top, left = (height - down) / 2, (width - across) / 2
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    out = np.zeros((channels, tall, wide))
    for i, j in itertools.product(range(tall), range(wide)):
        b = (wide - 1 - j if mirrored else j) - (wide - 1) / 2 + left_by  # from the middle, before the move
        a = i - (tall - 1) / 2 + up
        a, b = -sin * b + cos * a, cos * b + sin * a  # before the turn
        inside = abs(a) <= tall / 2 and abs(b) <= wide / 2
        if images.pad == "zero" and not inside:
            continue
        r = top + (a + tall / 2) * down / tall - 0.5  # row and column in the image, on which pixels are whole numbers
        c = left + (b + wide / 2) * across / wide - 0.5
        r, c = min(max(r, 0.0), height - 1.0), min(max(c, 0.0), width - 1.0)
        r0, c0 = min(int(r), height - 2), min(int(c), width - 2)
        dr, dc = r - r0, c - c0
        out[:, i, j] = (1 - dr) * ((1 - dc) * x[:, r0, c0] + dc * x[:, r0, c0 + 1]) + dr * (
            (1 - dc) * x[:, r0 + 1, c0] + dc * x[:, r0 + 1, c0 + 1]
        )
    return normalised(out)


@pytest.mark.parametrize("settings", [s for s in SETTINGS if set(s) - {"size"} and s.get("size", 16) >= 12], ids=str)
def test_every_pixel_is_what_the_definition_says(settings: dict[str, Any]) -> None:
    shape = (16, 16) if "size" in settings and not (settings.get("area") or settings.get("rotate")) else (16, 13)
    settings = settings if shape == (16, 13) else {**settings, "size": 16}  # enlarging is tested against Pillow
    images, x = made(**settings), photos(6, 3, *shape)
    shift = lots(images, 6)
    out = images(x, shift, torch.float64)
    for n in range(6):
        expected = naive(images, x[n].numpy(), shift[n].tolist())
        # a pixel whose place is on the border of the window up to rounding may be black or not
        assert np.mean(np.abs(out[n].numpy() - expected) > 1e-6) < 0.01
    if not (images.rotate or images.area):
        torch.testing.assert_close(
            out, torch.from_numpy(np.stack([naive(images, x[n].numpy(), shift[n].tolist()) for n in range(6)]))
        )


def test_moved_pixels_are_the_images_own() -> None:
    """A crop and a flip invent nothing: every value is one of the image, or black."""
    images, x = made(crop=3, pad="zero", flip=True), photos(8, 3, 9, 9)
    out = images(x, lots(images, 8))
    plain = images(torch.cat([x, torch.zeros_like(x[:, :, :1])], 2))
    for n in range(8):
        assert set(out[n, 0].flatten().tolist()) <= set(plain[n, 0].flatten().tolist())
    middle = torch.tensor([[3, 3, 0]] * 8)
    assert torch.equal(images(x, middle), images(x))
    mirrored = torch.tensor([[3, 3, 1]] * 8)
    assert torch.equal(images(x, mirrored), images(x).flip(-1))
    corner = torch.tensor([[0, 0, 0]] * 8)
    assert torch.equal(images(x, corner)[..., 3:, 3:], images(x)[..., :-3, :-3])
    black = images(torch.zeros(1, 3, 9, 9, dtype=torch.uint8))
    assert torch.equal(images(x, corner)[:1, :, :3], black[:, :, :3])


# against another implementation
def smooth(height: int, width: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[:height, :width]
    return (127 + 60 * np.sin(x / 5) + 60 * np.cos(y / 7)).astype(np.uint8)


def as_pixels(out: Tensor) -> NDArray[np.float64]:
    return (out[0, 0].double().numpy() * 0.25 + 0.5) * 255


def test_a_turn_is_that_of_pillow() -> None:
    images, x = Images((0.5,), (0.25,), rotate=40.0), smooth(40, 40)
    for lot in (0, 9_000, 50_000, FINE - 1):
        angle = 40 * (2 * (lot + 0.5) / FINE - 1)
        ours = as_pixels(images(torch.from_numpy(x)[None, None], torch.tensor([[lot]])))
        theirs = np.asarray(
            Image.fromarray(x.astype(np.float32)).rotate(-angle, Image.Resampling.BILINEAR)
        )  # its angles run the other way
        assert np.abs(ours - theirs)[12:28, 12:28].max() < 0.05


def test_a_window_is_that_of_pillow() -> None:
    images, x = Images((0.5,), (0.25,), area=(0.2, 0.9), size=64), smooth(40, 30)
    height, width = x.shape
    for drawn in lots(images, 12):
        area, ratio, down, right = ((int(v) + 0.5) / FINE for v in drawn)
        pixels, shape = height * width * (0.2 + 0.7 * area), (3 / 4) * (16 / 9) ** ratio
        h, w = min(round(math.sqrt(pixels / shape)), height), min(round(math.sqrt(pixels * shape)), width)
        top, left = int(down * (height - h + 1)), int(right * (width - w + 1))
        theirs = Image.fromarray(x.astype(np.float32)).resize(
            (64, 64), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h)
        )
        ours = as_pixels(images(torch.from_numpy(x)[None, None], drawn[None]))
        assert np.abs(ours - np.asarray(theirs)).max() < 0.02


@in_one(("height", "width", "size"), [(40, 40, 24), (50, 37, 24), (31, 60, 48), (24, 24, 24)])
def test_size_alone_is_resize_and_centre_crop(height: int, width: int, size: int) -> None:
    x = smooth(height, width)
    short = min(height, width)
    tall, wide = size * height // short, size * width // short
    theirs = np.asarray(Image.fromarray(x.astype(np.float32)).resize((wide, tall), Image.Resampling.BILINEAR))
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    ours = as_pixels(Images((0.5,), (0.25,), size=size)(torch.from_numpy(x)[None, None]))
    assert np.abs(ours - theirs[top : top + size, left : left + size]).max() < 0.02


# what is drawn
def test_angles_moves_and_windows_stay_in_their_bounds() -> None:
    """Seen in images whose value is their row or column."""
    row = torch.arange(101, dtype=torch.uint8)
    x = torch.stack([row[:, None].expand(101, 101), row.expand(101, 101)]).expand(400, 2, 101, 101)

    def places(**settings: Any) -> Tensor:
        images = Images((0.0,), (1.0,), **settings)
        return images(x, lots(images, 400), torch.float64) * 255

    windows = places(area=(0.25, 0.64), ratio=(0.5, 2.0))
    down, across = windows[:, 0, :, 50], windows[:, 1, 50]
    inner = (down[:, 0] > 0) & (down[:, -1] < 100) & (across[:, 0] > 0) & (across[:, -1] < 100)  # no repeated pixel
    tall, wide = ((line[:, -1] - line[:, 0])[inner] * 101 / 100 for line in (down, across))
    shares, ratios = tall * wide / 101**2, wide / tall
    assert 0.24 < shares.min() < 0.28
    assert 0.57 < shares.max() < 0.65
    assert 0.49 < ratios.min() < 0.56
    assert 1.75 < ratios.max() < 2.05
    assert abs(float(ratios.log().mean())) < 0.1

    moves = places(translate=0.1)
    for line in (moves[:, 0, 50, 50], moves[:, 1, 50, 50]):
        by = line.round().long() - 50
        assert set(by.tolist()) == set(range(-10, 11))
        assert abs(float(by.double().mean())) < 1

    turned = places(rotate=30.0)
    slope = turned[:, 0, 50, 70] - turned[:, 0, 50, 30]  # rows climbed over 40 columns
    angles = torch.rad2deg(torch.asin(slope / 40))
    assert 28 < angles.max() < 30.01
    assert -30.01 < angles.min() < -28
    assert abs(float(angles.mean())) < 2.5


def test_half_of_the_images_are_mirrored() -> None:
    images = made(flip=True)
    shift = draws.schedule(0, 0, [0], [4000], 1, 4000, chances=images.chances, drop_single=False).shift
    assert shift is not None
    assert abs(float(shift.double().mean()) - 0.5) < 0.03


def test_an_area_above_one_is_the_whole_image() -> None:
    images, x = made(area=(2.0, 2.0), ratio=(1.0, 1.0)), photos(3, 3, 10, 10)
    torch.testing.assert_close(images(x, lots(images, 3)), images(x), atol=1e-4, rtol=0)


# what must not matter
def test_what_does_nothing_is_plain_normalisation() -> None:
    x = photos(4, 3, 8, 8)
    plain = made()(x)
    assert made().chances == ()
    for idle in (made(rotate=0.0), made(size=8), made(translate=0.0, pad="zero"), made(ratio=(1.0, 1.0))):
        assert idle.chances == ()
        assert torch.equal(idle(x), plain)
        assert torch.equal(idle(x, torch.zeros(4, 0, dtype=torch.int64)), plain)
    everything = made(**{**EVERYTHING, "size": 8})
    assert torch.equal(everything(x), plain)  # in evaluation


@in_one("settings", SETTINGS)
def test_an_image_does_not_depend_on_its_batch(settings: dict[str, Any]) -> None:
    images, x = made(**settings), photos(3, 7, 3, 18, 15)
    shift = lots(images, 3, 7)
    for given in (shift, None):
        stack = images(x, given)
        assert stack.shape == (3, 7, *images.shape((3, 18, 15)))
        assert stack.is_contiguous()
        flat = images(x.flatten(0, 1), None if given is None else given.flatten(0, 1))
        assert torch.equal(stack.flatten(0, 1), flat)
        for m, n in itertools.product(range(3), range(7)):
            assert torch.equal(images(x[m, n], None if given is None else given[m, n]), stack[m, n])
    last = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    before = last.clone()
    assert torch.equal(images(last, shift.flatten(0, 1)), images(x, shift).flatten(0, 1))
    assert torch.equal(last, before)


def test_the_same_in_any_number_of_threads() -> None:
    images, x = made(**EVERYTHING), photos(32, 3, 40, 40)
    shift = lots(images, 32)
    alone = images(x, shift)
    torch.set_num_threads(3)
    try:
        assert torch.equal(images(x, shift), alone)
    finally:
        torch.set_num_threads(1)


def test_large_images_take_a_few_times_their_own_memory() -> None:
    """What the transform keeps beside its result, in numpy's and Python's memory and by the sizes of its tensors."""
    images, x = made(rotate=10.0, flip=True, area=(0.6, 1.0), size=384), photos(50, 3, 256, 256)
    sizes: list[int] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                sizes.append(out.untyped_storage().nbytes())
            return out

    tracemalloc.start()
    with Watch():
        out = images(x, lots(images, 50))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(sizes) <= out.nbytes
    assert peak < 50e6


# what travels to the clients
class Plain:
    """A user's transform that knows of crops only."""

    crop = 2

    def __call__(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        moved = x.float() if shift is None else x.float() + shift.sum(-1).view(-1, 1, 1, 1)
        return moved / 255


class Own(Plain):
    """A user's transform with random numbers of its own."""

    crop = 0
    chances = (4, 1, 300)


def test_what_a_transform_asks_for() -> None:
    assert draws.chances(None) == ()
    assert draws.chances(Plain()) == (5, 5)
    assert draws.chances(Own()) == (4, 1, 300)
    assert draws.chances(made()) == ()
    assert draws.chances(made(crop=3)) == (7, 7)
    assert draws.chances(made(crop=1, flip=True, rotate=5.0)) == (3, 3, 2, FINE)
    assert draws.chances(made(**EVERYTHING)) == (5, 5, 2, *[FINE] * 7)
    empty = Own()
    empty.chances = (4, 0, 1)
    with pytest.raises(ValueError, match=r"Own: chances must be whole numbers >= 1.*found \(4, 0, 1\)"):
        draws.chances(empty)


def test_each_random_number_takes_its_values_evenly() -> None:
    shift = draws.schedule(3, 1, [4], [6000], 1, 500, chances=(5, 1, 3), drop_single=False).shift
    assert shift is not None
    assert shift.shape == (1, 12, 500, 3)
    for j, n in enumerate((5, 1, 3)):
        counts = shift[..., j].flatten().bincount(minlength=n)
        assert len(counts) == n
        assert float((counts - 6000 / n).abs().max()) < 180
    pairs = shift[..., 0] * 3 + shift[..., 2]  # the numbers of a sample do not follow from each other
    assert float((pairs.flatten().bincount() - 400).abs().max()) < 90


def test_numbers_of_a_crop_are_those_they_always_were() -> None:
    """Published results rest on them."""
    shift = draws.schedule(3, 1, [4, 9], [6, 5], 2, 4, chances=(5, 5), drop_single=False).shift
    assert shift is not None
    position = np.arange(2)[:, None] * 6 + np.arange(6)
    expected = draws.bits(3, 1, [4], draws.SHIFT, (position[..., None] * 2 + np.arange(2))[None]) % np.uint64(5)
    found = shift[0].reshape(2, 8, 2)[:, :6].numpy()
    assert np.array_equal(found, expected[0].astype(np.int64))
    assert shift[0, 0].tolist() == GOLDEN


GOLDEN = [[0, 2], [1, 3], [0, 2], [2, 4]]


SIZES = (9, 12, 6)


def photographers(n: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    return [(photos(k, 3, 14, 14, seed=k), torch.arange(k) % 4) for k in n]


def trained(engine: str, transform: Any = None, data: Any = None, **settings: Any) -> eq.Federation:
    fed = federation(
        "fedprox",
        data=data or photographers(),
        net=build("cnn", (3, 12, 12), 4, width=4, seed=2).double(),
        transform=transform or made(**EVERYTHING),
        engine=engine,
        server_validation=None,
        participation=1.0,
        **settings,
    )
    fed.fit(2, progress=False)
    return fed


@pytest.fixture(scope="module")
def alone() -> eq.Federation:
    return trained("sequential")


def test_engines_agree(alone: eq.Federation) -> None:
    assert identical(trained("workers", workers=2), alone)
    stacked = trained("stacked").progress.vector
    torch.testing.assert_close(stacked, alone.progress.vector, rtol=0, atol=1e-9)
    assert not torch.equal(trained("sequential", made(size=12)).progress.vector, alone.progress.vector)


@pytest.mark.slow
def test_processes_agree(alone: eq.Federation) -> None:
    assert identical(trained("processes", workers=2), alone)


def test_sites_agree(alone: eq.Federation, tmp_path: Path) -> None:
    fed = consortium(
        "fedprox",
        data=photographers(),
        net=build("cnn", (3, 12, 12), 4, width=4, seed=2).double(),
        transform=made(**EVERYTHING),
        participation=1.0,
        server_validation=None,
        states=tmp_path,
    )
    fed.fit(2, progress=False)
    assert torch.equal(fed.progress.vector, alone.progress.vector)


def test_a_stopped_run_goes_on_with_the_same_numbers(alone: eq.Federation, tmp_path: Path) -> None:
    def fed() -> eq.Federation:
        return federation(
            "fedprox",
            data=photographers(),
            net=build("cnn", (3, 12, 12), 4, width=4, seed=2).double(),
            transform=made(**EVERYTHING),
            server_validation=None,
            participation=1.0,
        )

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fed().fit(2, directory=tmp_path, progress=False, on_round=stop)
    again = fed()
    again.fit(again.resume(tmp_path), directory=tmp_path, progress=False)
    assert identical(again, alone)
    assert told(again) == told(alone)


def test_images_on_disk_are_changed_alike(alone: eq.Federation, tmp_path: Path) -> None:
    pairs = photographers()
    np.save(tmp_path / "images.npy", torch.cat([x for x, _ in pairs]).numpy())
    ends = np.cumsum([0, *SIZES])
    data = [
        Mapped(tmp_path / "images.npy", np.arange(a, b), y)
        for a, b, (_, y) in zip(ends[:-1], ends[1:], pairs, strict=True)
    ]
    assert identical(trained("sequential", data=data), alone)


def test_a_transform_of_ones_own_gets_its_numbers() -> None:
    for transform in (Plain(), Own()):
        one, other = (trained(engine, transform, data=photographers()) for engine in ("sequential", "stacked"))
        torch.testing.assert_close(one.progress.vector, other.progress.vector, rtol=0, atol=1e-9)


# what is refused
@in_one(
    ("settings", "message"),
    [
        ({"pad": "white"}, "pad must be one of edge, zero; found 'white'"),
        ({"rotate": 181.0}, r"rotate must be in \[0, 180\]; found 181"),
        ({"rotate": -1.0}, "rotate must be in"),
        ({"translate": 1.0}, r"translate must be in \[0, 1\); found 1"),
        ({"area": (0.0, 1.0)}, r"area must be two numbers with 0 < low <= high; found \(0.0, 1.0\)"),
        ({"area": (0.9, 0.6)}, "area must be two numbers"),
        ({"area": (0.9,)}, "area must be two numbers"),
        ({"ratio": (1.0, float("inf"))}, "ratio must be two numbers"),
        ({"size": 0}, "size must be a whole number >= 1, or None; found 0"),
    ],
)
def test_values_out_of_range_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**settings)


def test_numbers_that_do_not_fit_are_refused() -> None:
    images = made(crop=1, flip=True)
    with pytest.raises(ValueError, match=r"shift must be \[2, 3\], 3 numbers per image; found \[2, 2\]"):
        images(photos(2, 3, 4, 4), torch.zeros(2, 2, dtype=torch.int64))
