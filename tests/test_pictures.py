"""Images of any depth keep their range, are turned as the camera says, and nothing all black enters training unsaid."""

from __future__ import annotations

import io
import json
import struct
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from PIL import Image

import equipoise as eq
import fixture_medical
from equipoise import scenarios
from equipoise.data.contents import DataError
from equipoise.data.decoding import levels
from equipoise.data.formats.reading import read_user_data
from equipoise.data.pictures import Pictures, from_files, stored
from equipoise.flower.site.task import Task
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

try:
    import pydicom

    DICOM = True
except ImportError:
    DICOM = False
dicom = pytest.mark.skipif(not DICOM, reason="pydicom is not installed")

GREY = np.arange(24).reshape(4, 6) * 9 + 1  # in no symmetry


def scan(k: int, side: int = 12) -> NDArray[np.int64]:
    """A patient's image with 12 bits; those with odd numbers have a bright spot."""
    x = np.random.default_rng(k).integers(200, 1200, (side, side))
    x[3:9, 3:9] += 2000 * (k % 2)
    return x


def saved(path: Path, pixels: NDArray[Any], **options: Any) -> Path:
    """An image file of these numbers, by the ending of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, pixels)
    elif path.suffix == ".pgm":
        path.write_bytes(b"P5 %d %d 65535\n" % pixels.shape[::-1] + pixels.astype(">u2").tobytes())
    elif path.suffix == ".dcm":
        fixture_medical.write_dicom(path, pixels)
    else:
        Image.fromarray(pixels).save(path, **options)
    return path


def folder(top: Path, suffix: str, dtype: str, n: int = 24, scale: float = 1) -> Path:
    for k in range(n):
        saved(
            top / f"site-{k // 2 % 2}" / ("ill" if k % 2 else "well") / f"{k}{suffix}", (scan(k) * scale).astype(dtype)
        )
    return top


def whole(made: scenarios.Scenario) -> NDArray[np.uint8]:
    """All images of the clients and the tests, in the order of the files."""
    of = made.manifest
    rows = [*of["clients"].values(), *of["tests"].values()]
    every = np.concatenate([np.asarray(data[0]) for data in [*made.clients, *made.tests.values()]])  # type: ignore[index]
    return every[np.argsort(np.concatenate(rows), kind="stable")]


# pixels of every kind
@pytest.mark.parametrize(
    ("suffix", "dtype", "options"),
    [
        (".png", "uint16", {}),
        (".tif", "uint16", {}),
        (".tif", ">u2", {}),
        (".tif", "uint16", {"compression": "tiff_lzw"}),
        (".tif", "int32", {}),
        (".tif", "float32", {}),
        (".tif", "float32", {"compression": "tiff_adobe_deflate"}),
        (".pgm", "uint16", {}),
        (".npy", "int16", {}),
        (".npy", "float64", {}),
        (".npy", "uint16", {}),
    ],
)
def test_deep_grey_levels_survive(tmp_path: Path, suffix: str, dtype: str, options: dict[str, Any]) -> None:
    x = (scan(1) + 40_000 * (dtype in ("int32", "float32"))).astype(dtype)
    image = Image.frombytes("I;16B", (12, 12), x.tobytes()) if dtype == ">u2" else None
    if image is not None:
        image.save(tmp_path / f"a{suffix}")
    else:
        saved(tmp_path / f"a{suffix}", x, **options)
    found = stored(tmp_path / f"a{suffix}")
    assert found.deep
    np.testing.assert_array_equal(found.pixels, x)


def tiff(path: Path, kind: int, bits: int, sign: int, content: bytes, side: int) -> Path:
    """A grey TIFF file, by its tags."""
    tags = [(256, side), (257, side), (258, bits), (259, 1), (262, kind), (273, 8), (277, 1), (278, side)]
    tags += [(279, len(content)), (339, sign)]
    body = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    path.write_bytes(struct.pack("<2sHI", b"II", 42, 8 + len(content)) + content + body + bytes(4))
    return path


@pytest.mark.parametrize(("dtype", "sign"), [("uint32", 1), ("int8", 2), ("int16", 2), ("int32", 2)])
def test_kinds_of_tiff_that_pillow_wraps_around(tmp_path: Path, dtype: str, sign: int) -> None:
    about = np.iinfo(dtype)
    x = np.linspace(about.min, about.max, 36).astype(dtype).reshape(6, 6)
    found = stored(tiff(tmp_path / "a.tif", 1, about.bits, sign, x.tobytes(), 6))
    np.testing.assert_array_equal(found.pixels, x)


def test_where_the_least_number_is_white(tmp_path: Path) -> None:
    x = scan(1).astype(np.uint16)
    found = stored(tiff(tmp_path / "a.tif", 0, 16, 1, x.tobytes(), 12))
    assert found.inverted
    np.testing.assert_array_equal(found.as_bytes((0, 4095)), 255 - levels(x, 0, 4095))


def test_a_portable_map_says_what_white_is_and_keeps_its_numbers(tmp_path: Path) -> None:
    x = scan(1).astype(">u2")
    (tmp_path / "a.pgm").write_bytes(b"P5 12 12 4095\n" + x.tobytes())
    np.testing.assert_array_equal(stored(tmp_path / "a.pgm").pixels, x)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK"])
def test_bytes_stay_as_they_are(tmp_path: Path, mode: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    if mode[-1] == "A":
        image.putalpha(100)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    image.save(path)
    found = stored(path)
    with Image.open(path) as expected:
        np.testing.assert_array_equal(found.pixels, np.asarray(expected.convert("RGB")))
    assert (found.deep, stored(path, skim=True).pixels) == (False, None)
    assert found.remark == ("alpha" if mode[-1] == "A" else "CMYK" if mode == "CMYK" else "")


@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp", ".jpg", "16.png", "16.tif", "f.tif", "p.tif", "lzw.tif"])
@pytest.mark.parametrize("note", range(1, 9))
def test_images_are_turned_as_the_camera_notes(tmp_path: Path, suffix: str, note: int) -> None:
    stored_as = {
        1: GREY, 2: GREY[:, ::-1], 3: GREY[::-1, ::-1], 4: GREY[::-1], 5: GREY.T, 6: np.rot90(GREY), 7: np.rot90(GREY, 2).T,
        8: np.rot90(GREY, -1),
    }[note]  # fmt: skip
    kind = {"1": np.uint16, "f": np.float32}.get(suffix[0], np.uint8)
    exif = Image.Exif()
    exif[0x0112] = note
    image = Image.fromarray(np.ascontiguousarray(stored_as).astype(kind))
    more: dict[str, Any] = {".webp": {"lossless": True}, ".jpg": {"quality": 100}}.get(suffix, {})
    more |= {"compression": "tiff_lzw"} if suffix[0] == "l" else {}
    (image.convert("P") if suffix[0] == "p" else image).save(tmp_path / f"a{suffix}", exif=exif, **more)
    for source in (tmp_path / f"a{suffix}", io.BytesIO((tmp_path / f"a{suffix}").read_bytes())):
        found = stored(source).pixels
        assert found is not None
        shown = found if found.ndim == 2 else found[:, :, 0]
        assert shown.shape == GREY.shape
        assert np.abs(shown.astype(int) - GREY).max() <= 3 * (suffix == ".jpg")


def test_a_damaged_note_of_the_camera_is_no_part_of_the_image(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.uint8)).save(tmp_path / "a.png", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12")
    np.testing.assert_array_equal(np.asarray(stored(tmp_path / "a.png").pixels)[:, :, 0], GREY)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(2**31), 2**32 - 1), min_size=2, max_size=40),
    st.floats(-1e9, 1e9),
    st.floats(1e-3, 1e9),
)
def test_levels_are_a_line_between_two_ends(numbers: list[int], low: float, width: float) -> None:
    x = np.array(numbers)[None]
    made = levels(x, low, low + width)[0]
    exact = np.clip((x[0] - low) / ((low + width) - low), 0, 1) * 255
    assert np.abs(made - exact).max() <= 0.5001
    assert (np.diff(made[np.argsort(x[0], kind="stable")].astype(int)) >= 0).all()
    np.testing.assert_array_equal(levels(np.arange(256)[None], 0, 255)[0], np.arange(256))


# what is refused
def many(tmp_path: Path, kind: str) -> Path:
    frames = [Image.fromarray(np.full((8, 8), 40 * k + 20, np.uint8)) for k in range(3)]
    path = tmp_path / {"tif": "a.tif", "gif": "a.gif", "apng": "a.png", "webp": "a.webp"}[kind]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    return path


@pytest.mark.parametrize("kind", ["tif", "gif", "apng", "webp"])
def test_files_of_several_pages_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ValueError, match="it has 3 pages or frames; save the one that counts"):
        stored(many(tmp_path, kind))


def test_a_photo_with_its_preview_is_one_image(tmp_path: Path) -> None:
    photo, preview = (Image.fromarray(np.full((side, side, 3), 90, np.uint8)) for side in (16, 4))
    photo.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[preview])
    assert np.asarray(stored(tmp_path / "a.jpg").pixels).shape == (16, 16, 3)


def png16(path: Path, colours: int) -> Path:
    """A PNG file with 16 bits in each of 2 or 3 channels, which Pillow does not write."""
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes(4 * 2 * colours) for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 16, {2: 4, 3: 2}[colours], 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    return path


@pytest.mark.parametrize("colours", [2, 3])
def test_sixteen_bits_of_colour_are_refused(tmp_path: Path, colours: int) -> None:
    with pytest.raises(ValueError, match="16 bits in each of several channels"):
        stored(png16(tmp_path / "a.png", colours), skim=True)


def test_all_files_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    folder(tmp_path, ".png", "uint8", 30)
    wrong = sorted(tmp_path.rglob("1*.png"))
    for path in wrong[:-1]:
        many(tmp_path, "tif").replace(path)
    wrong[-1].write_bytes(b"none")
    with pytest.raises(DataError) as error:
        read_user_data(tmp_path)
    said = str(error.value)
    assert f"{len(wrong)} of 30 images cannot be decoded. site-" in said
    assert said.count("it has 3 pages or frames") == 1
    assert said.count(".png") == 10
    assert f"and {len(wrong) - 10} more" in said


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    x = np.ones((4, 4), np.float32)
    x[1, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        stored(saved(tmp_path / "a.tif", x))


# a whole data set
@pytest.mark.parametrize(
    ("suffix", "dtype", "scale"),
    [
        (".png", "uint16", 1),
        (".tif", "int32", 100),
        (".tif", "float32", 1e-3),
        (".npy", "int16", 1),
        (".npy", "float64", 1),
    ],
)
def test_one_range_for_a_whole_data_set(tmp_path: Path, suffix: str, dtype: str, scale: float) -> None:
    top = folder(tmp_path / "my", suffix, dtype, scale=scale)
    made = scenarios.load("own", 0, top, size=12)
    every = np.stack([scan(int(name.stem)) * scale for name in sorted(top.rglob(f"*{suffix}"))]).astype(dtype)
    low, high = float(every.min()), float(every.max())
    assert made.manifest["read"]["range"] == [low, high]
    assert made.transform.levels == (low, high)  # type: ignore[union-attr]
    expected = levels(every, low, high)
    np.testing.assert_array_equal(np.unique(whole(made)), np.unique(expected))
    assert len(np.unique(expected)) > 150
    again = scenarios.load("own", 0, top, size=12, range=[low, high])
    np.testing.assert_array_equal(whole(again), whole(made))
    assert any("become 0 to 255" in note and "least and the largest" in note for note in made.manifest["notes"])


def test_a_table_folders_and_arrays_agree(tmp_path: Path) -> None:
    made = [scenarios.load("own", 0, folder(tmp_path / "my", ".png", "uint16"), size=12)]
    rows = ["path,label,client"]
    for path in sorted((tmp_path / "my").rglob("*.png")):
        site, label, _ = path.relative_to(tmp_path / "my").parts
        rows.append(f"my/{site}/{label}/{path.name},{label},{site}")
    (tmp_path / "t.csv").write_text("\n".join(rows))
    made.append(scenarios.load("own", 0, tmp_path / "t.csv", size=12))
    made.append(scenarios.load("own", 0, folder(tmp_path / "other", ".npy", "int16"), size=12))
    for other in made[1:]:
        assert other.manifest["read"]["range"] == made[0].manifest["read"]["range"]
        np.testing.assert_array_equal(np.sort(whole(other), 0), np.sort(whole(made[0]), 0))


def test_an_image_of_a_table_that_changes_is_seen(tmp_path: Path) -> None:
    folder(tmp_path / "my", ".png", "uint16", 8)
    files = sorted((tmp_path / "my").rglob("*.png"))
    rows = [f"{path.relative_to(tmp_path)},{path.parts[-2]},{path.parts[-3]}" for path in files]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,client", *rows]))
    before = scenarios.load("own", 0, tmp_path / "t.csv", size=12)
    saved(files[0], np.full((12, 12), 9999, np.uint16))
    after = scenarios.load("own", 0, tmp_path / "t.csv", size=12)
    assert after.manifest["read"]["range"] == [before.manifest["read"]["range"][0], 9999]
    assert not np.array_equal(whole(before), whole(after))


def test_a_declared_range_counts_and_what_it_cuts_is_said(tmp_path: Path) -> None:
    top = folder(tmp_path, ".png", "uint16")
    for edges in ([0, 4095], (0, 4095), "0,4095"):
        made = scenarios.load("own", 0, top, size=12, range=edges)
        assert made.manifest["read"]["range"] == [0, 4095]
        assert "0% of all pixels are outside" in made.manifest["notes"][0]
    cut = scenarios.load("own", 0, top, size=12, range=[500, 1000])
    outside = 100 * np.mean([(scan(k) < 500) | (scan(k) > 1000) for k in range(24)])
    assert f"{outside:.3g}% of all pixels are outside of that and become black or white" in cut.manifest["notes"][0]


@pytest.mark.parametrize("given", [[0], [0, 0], [5, 1], "a,b", [0, float("nan")], [0, float("inf")], 7, "0"])
def test_a_range_that_is_none(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ValueError, match="own: range must be two numbers"):
        scenarios.load("own", 0, folder(tmp_path, ".png", "uint8", 8), range=given)


def test_a_range_is_for_images_in_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((8, 3)), y=np.arange(8) % 2, client=np.arange(8) % 2)
    with pytest.raises(DataError, match="range is for images in files"):
        scenarios.load("own", 0, tmp_path / "a.npz", range=[0, 1])


def test_images_of_several_depths_have_no_range_in_common(tmp_path: Path) -> None:
    folder(tmp_path, ".png", "uint16")
    saved(tmp_path / "site-0/well/8bit.png", np.full((12, 12), 7, np.uint8))
    with pytest.raises(
        DataError, match=r"24 of 25 images have grey levels of more than 8 bits, from \d+ to \d+, .*--set range="
    ):
        read_user_data(tmp_path)
    assert scenarios.load("own", 0, tmp_path, range="0,4095").manifest["read"]["range"] == [0, 4095]


def test_deep_images_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    for k in range(8):
        saved(tmp_path / "a" / "xy"[k % 2] / f"{k}.png", np.full((8, 8), 300, np.uint16))
    with pytest.raises(DataError, match="all pixels of all images are 300"):
        read_user_data(tmp_path)


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    folder(tmp_path, ".png", "uint8", 12, 0.07)
    for k in range(3):
        image = Image.fromarray(scan(k).astype(np.uint8))
        image.putalpha(k)
        image.save(tmp_path / "site-0/well" / f"alpha{k}.png")
    notes = " ".join(read_user_data(tmp_path).notes)
    assert "3 images have an alpha channel, which is left out" in notes


@pytest.mark.parametrize(("value", "dtype"), [(0, "uint8"), (255, "uint8"), (4095, "uint16")])
def test_images_of_one_colour_are_named(tmp_path: Path, value: int, dtype: str) -> None:
    folder(tmp_path, ".png", dtype, 12, 0.07 if dtype == "uint8" else 1)
    saved(tmp_path / "site-0/well/blank.png", np.full((12, 12), value, dtype))
    notes = scenarios.load("own", 0, tmp_path, size=12).manifest["notes"]
    assert "1 of 13 images has one colour everywhere: site-0/well/blank.png." in notes


def test_images_that_a_hot_pixel_makes_black_are_said(
    tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, ".png", "uint16")
    x = scan(1).astype(np.uint16)
    x[0, 0] = 65535
    saved(tmp_path / "site-0/well/hot.png", x)
    notes = scenarios.load("own", 0, tmp_path, size=12).manifest["notes"]
    assert any("Nearly all pixels" in note for note in notes)
    [said] = [
        note for note in read_user_data(tmp_path).notes if "But nearly all pixels are from" in note
    ]  # as init says
    monkeypatch.chdir(tmp_path)
    equipoise("init", "--data", ".", "--output", "../hot.toml")
    assert (
        "range" not in tomllib.loads((tmp_path / "../hot.toml").read_text())["set"]
    )  # nothing that is doubted is kept
    low, high = map(float, said.split("range=")[1].rstrip(".").split(","))
    better = scenarios.load("own", 0, tmp_path, size=12, range=[low, high])
    assert not [note for note in better.manifest["notes"] if "early all pixels" in note]
    assert len(np.unique(whole(better))) > 150


def test_black_arrays_are_said(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    x[4] = 0
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(12) % 2, client=np.arange(12) // 6)
    notes = scenarios.load("own", 0, tmp_path / "a.npz").manifest["notes"]
    assert "1 of 12 images has one colour everywhere: x[4]." in notes
    np.savez(tmp_path / "b.npz", x=x // 128, y=np.arange(12) % 2, client=np.arange(12) // 6)
    notes = scenarios.load("own", 0, tmp_path / "b.npz").manifest["notes"]
    assert any("Nearly all pixels of all images are within 2 of 256 grey levels" in note for note in notes)


def test_a_look_at_all_images_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = folder(tmp_path / "my", ".png", "uint16")
    files = sorted(top.rglob("*.png"))
    first = from_files(files, "my", [path.name for path in files])
    assert first.range is not None
    monkeypatch.setattr(Pictures, "_survey", lambda _: pytest.fail("looked again"))
    assert from_files(files, "my", [path.name for path in files]).range == first.range
    saved(files[3], np.full((12, 12), 9999, np.uint16))
    monkeypatch.undo()
    assert from_files(files, "my", [path.name for path in files]).range == (first.range[0], 9999)


def test_init_writes_the_range_and_a_run_takes_it(
    tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "my", ".tif", "uint16")
    shown = equipoise("init", "--data", "my").out
    every = np.stack([scan(k) for k in range(24)])
    assert f"Grey levels from {every.min()} to {every.max()}" in shown
    written = tomllib.loads((tmp_path / "equipoise.toml").read_text())["set"]
    assert written["range"] == [every.min(), every.max()]
    equipoise(
        "run", "--config", "equipoise.toml", "--rounds", "1", "--set", "size=12", "--network", "mlp", "--no-report"
    )
    [run] = (tmp_path / "runs").iterdir()
    assert "range = [" in (run / "config.toml").read_text()
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["data"]["read"]["range"] == written["range"]
    assert any(line.startswith("data: Grey levels from") for line in manifest["header"])
    common = ("--rounds", "1", "--network", "mlp", "--no-report")
    equipoise("run", "--data", "my", "--scenario", "own(size=12, range=[0, 4095])", *common)
    [other] = set((tmp_path / "runs").iterdir()) - {run}
    assert json.loads((other / "manifest.json").read_text())["data"]["read"]["range"] == [0, 4095]


def test_sites_must_have_the_same_range(tmp_path: Path) -> None:
    codes = []
    for name, edges in (("a", None), ("b", None), ("c", "0,4095"), ("d", "0,4095")):
        top = folder(tmp_path / name, ".png", "uint16", 8, 1 + len(codes))
        data = eq.scenario("own", data=top, size=12, range=edges)
        net = eq.network(data.network, data.shape, data.n_classes)
        task = Task(net, train=data.clients[0], transform=data.transform)
        fed = eq.Federation(net, [data.clients[0]], transform=data.transform)
        codes.append(task.agreement(fed.trial, (3, 12, 12))["grey levels"])
    assert codes[0] != codes[1]
    assert codes[2] == codes[3] != codes[0]


# DICOM
def slice_(path: Path, pixels: NDArray[Any], **more: Any) -> Path:
    """A DICOM file with these stored numbers."""
    fixture_medical.write_dicom(path, pixels.astype(int) - 1024)
    one = pydicom.dcmread(path)
    for name, value in more.items():
        one.add_new(name, "SS", value) if name.startswith("PixelPadding") else setattr(one, name, value)
    one.save_as(path)
    return path


@dicom
def test_dicom_has_the_units_of_the_file(tmp_path: Path) -> None:
    x = scan(3)
    found = stored(slice_(tmp_path / "a.dcm", x))
    np.testing.assert_array_equal(found.pixels, x - 1024)
    found = stored(slice_(tmp_path / "IM0001", x, RescaleSlope="2.5", RescaleIntercept="10"))
    np.testing.assert_array_equal(found.pixels, 2.5 * x + 10)
    assert not found.inverted
    assert stored(slice_(tmp_path / "a.dcm", x, PhotometricInterpretation="MONOCHROME1")).inverted
    x[0, :5] = -2000
    found = stored(slice_(tmp_path / "b.dcm", x, PixelPaddingValue=-2000))
    assert found.padding is not None
    assert found.padding.sum() == 5
    made = found.as_bytes((-1024, 3071))
    assert (made[0, :5] == 0).all()
    assert made[1:].min() > 0


@dicom
@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_dicom_with_bytes(tmp_path: Path, kind: str) -> None:
    x = np.random.default_rng(0).integers(1, 255, (8, 9))
    path = slice_(tmp_path / "a.dcm", x)
    one = pydicom.dcmread(path)
    one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 8, 8, 7, 0
    one.RescaleIntercept, one.PhotometricInterpretation, one.PixelData = "0", kind, x.astype(np.uint8).tobytes()
    one.save_as(path)
    found = stored(path)
    assert not found.deep
    np.testing.assert_array_equal(found.as_bytes(None), 255 - x if kind == "MONOCHROME1" else x)
    one.add_new("PixelPaddingValue", "US", int(x[0, 0]))
    one.save_as(path)
    padded = np.where(x == x[0, 0], 0, 255 - x if kind == "MONOCHROME1" else x)
    np.testing.assert_array_equal(stored(path).as_bytes(None), padded)
    assert stored(path, skim=True).pixels is None


@dicom
def test_a_folder_of_dicom_files(tmp_path: Path) -> None:
    for k in range(24):
        x = scan(k)
        x[0, 0] = -2000
        name = f"{k}.dcm" if k % 3 else f"IM{k:06}"
        path = tmp_path / f"site-{k // 2 % 2}" / ("ill" if k % 2 else "well") / name
        slice_(path, x, PixelPaddingValue=-2000)
    made = scenarios.load("own", 0, tmp_path, size=12)
    every = np.stack([scan(k) - 1024 for k in range(24)])
    assert sum(made.sizes) + sum(len(t[1]) for t in made.tests.values()) == 24  # type: ignore[index]
    low, high = made.manifest["read"]["range"]
    assert every.min() <= low <= every.min() + 5
    assert high == every.max()
    window = scenarios.load("own", 0, tmp_path, size=12, range="0,80")
    assert "% of all pixels are outside" in window.manifest["notes"][0]


@dicom
def test_dicom_files_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="it has 2 frames"):
        stored(slice_(tmp_path / "a.dcm", scan(1), NumberOfFrames=2))
    with pytest.raises(ValueError, match="palette"):
        stored(slice_(tmp_path / "a.dcm", scan(1), PhotometricInterpretation="PALETTE COLOR"))
    for k in range(4):
        slice_(tmp_path / "my" / "a" / "xy"[k % 2] / f"{k}.dcm", scan(k))
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(
        DataError, match=r"^DICOM files need the package pydicom: pip install 'equipoise\[medical\]'\.$"
    ):
        read_user_data(tmp_path / "my")


# images of another depth than those of a training
@pytest.mark.parametrize(
    ("suffix", "dtype", "scale", "levels", "said"),
    [
        (".png", "uint8", 1 / 16, (0, 4095), "bytes, and those of the training had more, from 0 to 4095"),
        (".png", "uint8", 1 / 16, (-1024, 200), "bytes, and those of the training had more, from -1024 to 200"),
        (".png", "uint16", 1, None, "more than 8 bits, and those of the training had bytes"),
        (".tif", "float32", 1 / 4095, None, "more than 8 bits, and those of the training had bytes"),
    ],
)
def test_images_of_another_depth_than_in_training_are_refused(
    tmp_path: Path, suffix: str, dtype: str, scale: float, levels: tuple[float, float] | None, said: str
) -> None:
    files = sorted(folder(tmp_path, suffix, dtype, 8, scale).rglob(f"*{suffix}"))
    with pytest.raises(DataError, match=f"^my: 8 of 8 images have {said}"):
        from_files(files, "my", [path.name for path in files]).as_trained(levels)


@pytest.mark.parametrize(
    ("suffix", "dtype", "scale", "levels", "fits"),
    [
        (".png", "uint8", 1 / 16, None, True),
        (".png", "uint8", 1 / 16, (10, 220), True),
        (".png", "uint8", 1 / 16, (0.0, 1.0), False),
        (".png", "uint16", 1, (0, 4095), True),
        (".png", "uint16", 16, (0, 4095), False),
        (".tif", "float32", 1 / 4095, (0, 4095), False),
        (".tif", "float32", 1 / 4095, (0.0, 1.0), True),
    ],
)
def test_images_in_another_unit_than_in_training_are_noted(
    tmp_path: Path, suffix: str, dtype: str, scale: float, levels: tuple[float, float] | None, fits: bool
) -> None:
    files = sorted(folder(tmp_path, suffix, dtype, 8, scale).rglob(f"*{suffix}"))
    made, notes = from_files(files, "my", [path.name for path in files]).as_trained(levels)
    assert (made.declared, not notes) == (levels, fits), notes


# DICOM of few bits, and tables of grey levels
def dicom_file(path: Path, pixels: NDArray[Any], stored_bits: int, **more: Any) -> Path:
    """A DICOM file of these numbers; of one bit if there are no others."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    one = Dataset()
    one.file_meta = FileMetaDataset()
    one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = generate_uid()
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, more.pop("kind", "MONOCHROME2")
    one.PixelRepresentation = int(pixels.dtype.kind == "i")
    one.Rows, one.Columns = pixels.shape
    one.BitsAllocated = 1 if stored_bits == 1 else 8 * pixels.itemsize
    one.BitsStored, one.HighBit = stored_bits, stored_bits - 1
    packed = np.packbits(pixels, bitorder="little") if stored_bits == 1 else pixels
    one.add_new("PixelData", "OW" if one.BitsAllocated > 8 else "OB", packed.tobytes())
    for name, value in more.items():
        setattr(one, name, value)
    one.save_as(path, enforce_file_format=True)
    return path


@dicom
@pytest.mark.parametrize("bits", [1, 2, 4, 6])
def test_dicom_of_few_bits_is_as_bright_as_a_png(tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    white = 2**bits - 1
    x = np.random.default_rng(bits).integers(0, white + 1, (8, 8)).astype(np.uint8)
    expected = np.rint(x * (255 / white))
    np.testing.assert_array_equal(stored(dicom_file(tmp_path / "a.dcm", x, bits)).as_bytes(None), expected)
    turned = stored(dicom_file(tmp_path / "b.dcm", x, bits, kind="MONOCHROME1"))
    np.testing.assert_array_equal(turned.as_bytes(None), 255 - expected)
    if bits == 1:
        Image.fromarray(x > 0).save(tmp_path / "c.png")
        np.testing.assert_array_equal(stored(tmp_path / "c.png").as_bytes(None)[:, :, 0], expected)
    monkeypatch.setattr("pydicom.pixels.pixel_array", lambda _: np.full((8, 8), 255, np.uint8))
    with pytest.raises(ValueError, match=rf"declares {bits} bits, and has the number 255"):
        stored(tmp_path / "a.dcm")


@dicom
@pytest.mark.parametrize(
    ("dtype", "first", "entries", "pixel", "entry"),
    [
        ("int16", -1024, 4096, 32000, 4095),
        ("int16", -1024, 4096, -32000, 0),
        ("int16", -1024, 4096, 0, 1024),
        ("int8", -128, 256, 127, 255),
        ("int8", -100, 150, 127, 149),
        ("uint8", 10, 20, 255, 19),
        ("uint16", 60000, 100, 65535, 99),
    ],
)
def test_what_is_beyond_a_dicom_table_is_its_end(
    tmp_path: Path, dtype: str, first: int, entries: int, pixel: int, entry: int
) -> None:
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence

    table = Dataset()
    table.add_new("LUTDescriptor", "SS" if first < 0 else "US", [entries, first, 16])
    table.ModalityLUTType = "US"
    table.add_new("LUTData", "OW", (np.arange(entries, dtype=np.uint16) + 7).tobytes())
    x = np.full((8, 8), pixel, dtype)
    path = dicom_file(tmp_path / "a.dcm", x, 8 * x.itemsize, ModalityLUTSequence=Sequence([table]))
    assert np.unique(stored(path).pixels).tolist() == [entry + 7]
