"""Images are decoded once into one file, whatever they are and whatever stops it; a damaged one is named."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import equipoise as eq
from equipoise.data import decoding as module, samples
from equipoise.data.contents import DataError
from equipoise.data.decoding import ahead, array, decoded, picture, resized
from equipoise.data.memory_mapped import Mapped
from equipoise.system.workers import cores
from helpers import in_one

LOADED: list[str] = []


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    LOADED.clear()
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Six PNG files of different shapes, the first 4 pixels high and 5 wide."""
    folder = tmp_path / "images"
    folder.mkdir()
    paths = []
    for k in range(6):
        path = folder / f"{k}.png"
        Image.fromarray(pixels((4 + k, 5, 3), k)).save(path)
        paths.append(path)
    return paths


def pixels(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def counted(path: Path) -> NDArray[np.uint8]:
    LOADED.append(path.name)
    return picture(path)


def seen(path: Path) -> NDArray[np.uint8]:
    return picture(path)


def test_images_are_kept_in_order_and_an_image_of_the_right_size_as_it_is(files: list[Path]) -> None:
    path = decoded(files[::-1], (4, 5), what="My Set/1")
    kept = np.load(path, allow_pickle=False)
    assert kept.shape == (6, 3, 4, 5)
    assert kept.dtype == np.uint8
    assert kept.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(kept[5], pixels((4, 5, 3), 0).transpose(2, 0, 1))
    for k, file in enumerate(files[::-1]):
        expected = np.asarray(Image.open(file).resize((5, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        np.testing.assert_array_equal(kept[k], expected)
    assert path.name.startswith("my-set-1-")


def test_what_is_kept_is_read_as_mapped_samples(files: list[Path]) -> None:
    path = decoded(files, 8, what="set")
    batch = Mapped(path, np.arange(6), torch.arange(6)).gather([4, 2])
    np.testing.assert_array_equal(batch.x.numpy(), np.load(path)[[4, 2]])
    assert batch.y.tolist() == [4, 2]


def test_a_file_that_something_cut_short_meanwhile_is_named(files: list[Path]) -> None:
    path = decoded(files, 8, what="set")
    data = Mapped(path, np.arange(6), torch.arange(6))
    path.write_bytes(path.read_bytes()[:-1])
    assert data.gather([4]).x.shape == (1, 3, 8, 8)
    with pytest.raises(ValueError, match=rf"{path.name}: ends before image 5"):
        data.gather([4, 5])


def test_few_large_images_are_evaluated_in_one_pass(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """512 images of 224 by 224 would fill the memory with activations, streamed or not."""
    path = decoded(files, 8, what="set")
    streamed = Mapped(path, np.arange(6), torch.arange(6))
    held = streamed.gather(range(6))
    widths: list[int] = []

    def transform(x: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
        widths.append(len(x))
        return x.float() / 255

    found = []
    for images, most in ((512 * 3 * 64 * 64, 6), (2 * 3 * 8 * 8 + 5, 2), (1, 1)):
        monkeypatch.setattr(samples, "VALUES", images)
        for data in (streamed, held):
            network = eq.network("mlp", in_shape=(3, 8, 8), n_classes=6)
            federation = eq.Federation(network, [held], transform=transform, tests={"a": data}, engine="sequential")
            widths.clear()
            found.append(federation.evaluate()["a"]["accuracy"])
            assert max(widths) == most
            assert federation.evaluate(held.x, held.y)["loss"] == pytest.approx(federation.evaluate()["a"]["loss"])
    assert len(set(found)) == 1


def test_images_in_another_order_of_axes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "turned.npy", np.asfortranarray(pixels((4, 3, 5, 6))))
    with pytest.raises(ValueError, match=r"turned\.npy: .* in Fortran's order"):
        Mapped(tmp_path / "turned.npy", np.arange(4), torch.arange(4))


@in_one(("h", "w"), [(10, 20), (20, 10), (9, 30), (31, 10), (8, 8), (3, 5)])
def test_crop_keeps_the_shape_and_the_middle(h: int, w: int) -> None:
    image = pixels((h, w, 3))
    short, long = min(h, w), max(h, w)
    longer = int(8 * long / short)  # torchvision's Resize(8): the shorter side, and the other one rounded down
    size = (longer, 8) if w > h else (8, longer)
    whole = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR))
    top, left = round((size[1] - 8) / 2), round((size[0] - 8) / 2)  # its CenterCrop(8)
    expected = whole[top : top + 8, left : left + 8]
    np.testing.assert_array_equal(resized(image, (8, 8), "crop"), expected.transpose(2, 0, 1))


def test_crop_to_a_shape_that_is_no_square_fills_it() -> None:
    image = np.zeros((10, 40, 3), np.uint8)
    image[:, 10:30] = 255
    assert resized(image, (10, 20), "crop").min() == 255
    assert resized(image, (20, 10), "crop").shape == (3, 20, 10)


def test_every_kind_of_image_becomes_three_channels(tmp_path: Path) -> None:
    grey = pixels((6, 7))
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "grey16.png")
    Image.fromarray(np.dstack([pixels((6, 7, 3)), grey])).save(tmp_path / "rgba.png")
    Image.fromarray(grey > 127).save(tmp_path / "bits.png")
    Image.fromarray(pixels((6, 7, 4)), "CMYK").save(tmp_path / "cmyk.jpg")
    palette = Image.fromarray(pixels((6, 7, 3))).quantize(8)
    palette.save(tmp_path / "palette.png", transparency=bytes(range(8)))  # Pillow warns of this one
    for name in ("grey", "grey16"):
        np.testing.assert_array_equal(resized(picture(tmp_path / f"{name}.png"), (6, 7)), np.stack([grey] * 3))
    np.testing.assert_array_equal(picture(tmp_path / "rgba.png"), pixels((6, 7, 3)))
    np.testing.assert_array_equal(picture(tmp_path / "bits.png"), np.dstack([np.where(grey > 127, 255, 0)] * 3))
    np.testing.assert_array_equal(picture(tmp_path / "palette.png"), np.asarray(palette.convert("RGB")))
    assert picture(tmp_path / "cmyk.jpg").shape == (6, 7, 3)


def test_a_note_on_how_to_turn_the_image_is_not_followed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter
    Image.fromarray(pixels((6, 7, 3))).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(picture(tmp_path / "turned.png"), pixels((6, 7, 3)))


def test_arrays_are_cut_to_bytes_and_lose_their_fraction(tmp_path: Path) -> None:
    values = np.array([[-3.0, 0.9, 128.99], [254.2, 255.0, 999.0]])
    expected = np.array([[0, 0, 128], [254, 255, 255]], np.uint8)
    for name, stored in (("flat", values), ("four", np.dstack([values] * 4)), ("one", values[:, :, None])):
        np.save(tmp_path / f"{name}.npy", stored)
        np.testing.assert_array_equal(resized(array(tmp_path / f"{name}.npy"), (2, 3)), np.stack([expected] * 3))
    np.save(tmp_path / "bytes.npy", pixels((2, 3, 3)))
    found = resized(array(tmp_path / "bytes.npy"), (2, 3))
    np.testing.assert_array_equal(found, pixels((2, 3, 3)).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((4, 4), np.nan), "not finite"),
        (np.linspace(0, 1, 16).reshape(4, 4), r"0\.\.255.*multiply"),
        (np.zeros((4, 4, 2)), "channels"),
        (np.zeros(4), r"\[H, W\]"),
        (np.zeros((0, 4)), r"\[0, 4\]"),
        (np.array([["a"]]), r"\[H, W\]"),
        (np.array([[None]]), "Python objects"),
    ],
)
def test_an_array_that_is_no_image_is_named(tmp_path: Path, values: NDArray[Any], said: str) -> None:
    path = tmp_path / "wrong.npy"
    np.save(path, values)
    with pytest.raises(DataError, match=f"wrong.npy: this image cannot be decoded.*{said}"):
        decoded([path], 4, what="set", load=array)


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "gone", "folder"])
def test_a_damaged_image_is_named_and_nothing_is_kept(files: list[Path], cache: Path, damage: str) -> None:
    bad = files[3]
    if damage == "cut":
        bad.write_bytes(bad.read_bytes()[:-40])
    elif damage in ("text", "empty"):
        bad.write_text("not an image" * (damage == "text"))
    else:
        bad.unlink()
        if damage == "folder":
            bad.mkdir()
    with pytest.raises(DataError, match=r"3\.png: (this image cannot be decoded|cannot be read)"):
        decoded(files, 8, what="set")
    assert [p.name for p in (cache.iterdir() if cache.exists() else ()) if p.suffix != ".lock"] == []


def test_floating_point_pictures_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "depth.tiff")
    with pytest.raises(DataError, match=r"depth\.tiff.*floating-point"):
        decoded([tmp_path / "depth.tiff"], 4, what="set")


def test_grey_levels_of_more_than_16_bits_are_refused(tmp_path: Path) -> None:
    for k, level in enumerate((70_000, -1)):
        Image.fromarray(np.full((4, 4), level, np.int32)).save(tmp_path / f"{k}.tiff")
        with pytest.raises(DataError, match=rf"{k}\.tiff.*expected grey levels in 0\.\.65535, found {level}"):
            decoded([tmp_path / f"{k}.tiff"], 4, what="set")


def test_images_are_decoded_once(files: list[Path]) -> None:
    first = decoded(files, 8, what="set", load=counted)
    assert sorted(LOADED) == [f"{k}.png" for k in range(6)]
    assert decoded(files, (8, 8), what="set", load=counted) == first
    assert len(LOADED) == 6


def test_a_copy_of_the_folder_needs_no_decoding_and_a_change_does(files: list[Path], tmp_path: Path) -> None:
    first = decoded(files, 8, what="set", load=counted)
    shutil.copytree(files[0].parent, tmp_path / "moved")  # with times of change
    assert decoded([tmp_path / "moved" / file.name for file in files], 8, what="set", load=counted) == first
    assert len(LOADED) == 6
    others = {
        decoded(files[::-1], 8, what="set", load=counted),
        decoded(files, 9, what="set", load=counted),
        decoded(files, 8, what="set", load=counted, fit="crop"),
        decoded(files, 8, what="set", load=seen),
    }
    os.utime(files[2], ns=(1, 1))
    others.add(decoded(files, 8, what="set", load=counted))
    assert len(others | {first}) == 6


def test_paths_may_be_relative(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = decoded(files, 8, what="set")
    monkeypatch.chdir(files[0].parent)
    assert decoded([Path(file.name) for file in files], 8, what="set") == first


@pytest.mark.parametrize("damage", ["cut", "longer", "other", "empty"])
def test_a_damaged_file_of_the_cache_is_made_anew(files: list[Path], damage: str) -> None:
    path = decoded(files, 8, what="set")
    whole = path.read_bytes()
    if damage == "other":
        np.save(path, np.zeros((6, 3, 8, 8), np.int8))
    else:
        path.write_bytes({"cut": whole[:-1], "longer": whole + b"x", "empty": b""}[damage])
    assert decoded(files, 8, what="set") == path
    assert path.read_bytes() == whole


def test_two_that_need_the_same_images_decode_them_once(files: list[Path]) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(decoded(files, 8, what="set", load=counted))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert len(LOADED) == 6


def test_a_cache_that_cannot_be_written_is_named(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"set: .*kept in .*file.*EQUIPOISE_CACHE"):
        decoded(files, 8, what="set")


def test_too_little_room_is_said_before_the_work(
    files: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(DataError, match=r"set: .* GB free.*EQUIPOISE_CACHE"):
        decoded(files, 8, what="set", load=counted)
    assert not LOADED


def test_a_disk_that_gets_full_is_named_and_leaves_nothing(
    files: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(DataError, match=r"No space left on device.*EQUIPOISE_CACHE"):
        decoded(files, 8, what="set")
    assert [p.suffix for p in cache.iterdir()] == [".lock"]


def test_nothing_to_decode_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        decoded([], 8, what="set")
    with pytest.raises(ValueError, match="sides >= 1"):
        decoded([Path("x")], 0, what="set")


def test_results_come_in_order_and_few_are_made_ahead() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for k in range(1000):
            asked.append(k)
            yield k

    results = ahead(lambda k: k * k, items())
    assert next(results) == 0
    assert len(asked) <= 4 * cores() + 1
    assert list(results) == [k * k for k in range(1, 1000)]


@pytest.mark.parametrize(("patience", "shown"), [(0.0, True), (3600.0, False)])
def test_a_bar_is_shown_when_it_takes_long(
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    patience: float,
    shown: bool,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes Rich believe in a terminal
    monkeypatch.setattr(module, "PATIENCE", patience)
    decoded(files, 8, what="my set")
    output = capsys.readouterr()
    assert ("decoding my set" in output.err) == shown
    assert output.out == ""
