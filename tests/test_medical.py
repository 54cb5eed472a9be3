"""The medical readers on tiny files in the exact layouts, with each trap of the real ones."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import convert_rsna
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import fixture_medical as fixture
from equipoise.data.contents import Contents, DataError
from equipoise.data.decoding import resized
from equipoise.data.memory_mapped import Mapped
from equipoise.data.sets import catalog, image_lists as lists, isic, retina, rsna

try:
    import pydicom
except ImportError:
    DICOM = False
else:
    DICOM = True
dicom = pytest.mark.skipif(not DICOM, reason="pydicom is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def images(found: Contents) -> NDArray[np.uint8]:
    assert isinstance(found.data, Mapped)
    return found.data.gather(range(len(found))).x.numpy()


def targets(found: Contents) -> list[int]:
    assert isinstance(found.data, Mapped)
    return found.data.targets.tolist()


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


# Retina and COVID-FL


def test_retina_as_shipped(tmp_path: Path) -> None:
    folder = fixture.retina(tmp_path)
    found = retina.read(tmp_path, "train")
    assert found.classes == ("normal", "diseased")
    assert found.names == tuple(sorted(f"{k}_left.npy" for k in range(20)))
    assert targets(found) == [int(name.split("_")[0]) % 2 for name in found.names]
    assert images(found).shape == (20, 3, 256, 256)
    for name in ("0_left.npy", "1_left.npy", "2_left.npy"):  # in colour, grey, with a fourth channel
        stored = np.load(folder / "train" / name).astype(
            np.uint8
        )  # floats lose their fraction, as in the released code
        rgb = np.dstack([stored] * 3) if stored.ndim == 2 else stored[:, :, :3]
        expected = np.asarray(Image.fromarray(rgb).resize((256, 256), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(images(found)[found.names.index(name)], expected.transpose(2, 0, 1))
    assert list(found.parts) == [f"split_{s}/client_{k}" for s in (1, 2, 3) for k in (1, 2, 3, 4, 5)]
    for s in (1, 2, 3):
        assert sorted(r for k in range(1, 6) for r in found.parts[f"split_{s}/client_{k}"]) == list(range(20))
    assert {found.names[row] for row in found.parts["split_2/client_3"]} == {f"{k}_left.npy" for k in range(2, 20, 5)}
    test = retina.read(tmp_path, "test")
    assert (len(test), test.parts) == (6, {})
    assert found.about["images"] == 20
    assert set(found.about["files"]) == {"labels.csv", "train.csv"}


def test_a_data_set_is_found_from_its_own_folder_under_any_name(tmp_path: Path) -> None:
    fixture.retina(tmp_path).rename(tmp_path / "eyes")
    fixture.covid(tmp_path).rename(tmp_path / "chests")
    assert len(retina.read(tmp_path / "eyes", "test")) == 6
    assert len(retina.covid(tmp_path / "chests", "test")) == 6
    with pytest.raises(DataError, match=r"covid-fl: expected COVID-FL/labels\.csv .* found there: .*5_clients/"):
        retina.covid(tmp_path / "eyes", "test")


def test_clients_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = fixture.retina(tmp_path)
    fixture.rows(folder / "5_clients/split_1/client_10.csv", [["3_left.npy"]])
    found = retina.read(tmp_path, "train")
    assert [name for name in found.parts if name.startswith("split_1")][-2:] == [
        "split_1/client_5",
        "split_1/client_10",
    ]


def test_a_list_may_have_labels_blank_lines_and_repeats(tmp_path: Path) -> None:
    folder = fixture.retina(tmp_path)
    before = retina.read(tmp_path, "train")
    path = folder / "train.csv"
    path.write_text("\n".join(f"{line},1.0" for line in path.read_text().split()) + "\n\n0_left.npy\n")
    assert retina.read(tmp_path, "train").names == before.names


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "labels.csv",
            "3_left.npy,1.0\n",
            "",
            r"labels\.csv: 1 of 20 images of train have no label there: 3_left\.npy",
        ),
        ("labels.csv", "3_left.npy,1.0", "3_left.npy", r"labels\.csv, line 4: expected file,label"),
        (
            "labels.csv",
            "3_left.npy,1.0",
            "3_left.npy,2.0",
            r"labels\.csv, line 4: expected a class in 0\.\.1, found '2\.0'",
        ),
        ("labels.csv", "3_left.npy,1.0", "3_left.npy,0.5", r"expected a class in 0\.\.1, found '0\.5'"),
        ("labels.csv", "3_left.npy,1.0", "3_left.npy,nan", r"expected a class in 0\.\.1, found 'nan'"),
        ("labels.csv", "3_left.npy,1.0", "name,label", r"line 4: expected a class in 0\.\.1, found 'label'"),
        ("train.csv", "3_left.npy\n", "lost.npy\n", r"lost\.npy"),
    ],
)
def test_damaged_lists_are_named(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    folder = fixture.retina(tmp_path)
    replace(folder / file, old, new)
    with pytest.raises(DataError, match=said):
        retina.read(tmp_path, "train", side=4)


def test_missing_images_are_counted_and_named(tmp_path: Path) -> None:
    folder = fixture.retina(tmp_path)
    for k in range(5):
        (folder / "train" / f"{k}_left.npy").unlink()
    with pytest.raises(
        DataError, match=r"retina train: 5 of 20 listed images are missing in .*train: 0_left.npy, .* and 2 more"
    ):
        retina.read(tmp_path, "train")
    shutil.rmtree(folder / "train")
    with pytest.raises(DataError, match="20 of 20 listed images are missing"):
        retina.read(tmp_path, "train")


def test_a_missing_or_binary_list_is_named(tmp_path: Path) -> None:
    folder = fixture.retina(tmp_path)
    (folder / "test.csv").unlink()
    with pytest.raises(DataError, match=r"test\.csv: expected the list of the images of this split"):
        retina.read(tmp_path, "test")
    (folder / "test.csv").write_text("\n")
    with pytest.raises(DataError, match=r"test\.csv: expected one image a line"):
        retina.read(tmp_path, "test")
    (folder / "labels.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match=r"labels\.csv: expected a CSV file of text"):
        retina.read(tmp_path, "train")


def test_a_damaged_array_is_named(tmp_path: Path) -> None:
    folder = fixture.retina(tmp_path)
    path = folder / "train" / "7_left.npy"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"7_left\.npy: this image cannot be decoded"):
        retina.read(tmp_path, "train", side=4)


def test_an_array_on_the_scale_of_one_is_no_black_image(tmp_path: Path) -> None:
    folder = fixture.retina(tmp_path)
    np.save(folder / "train" / "7_left.npy", np.random.default_rng(0).random((40, 40, 3)))
    with pytest.raises(DataError, match=r"7_left\.npy.*expected numbers in 0\.\.255"):
        retina.read(tmp_path, "train", side=4)


def test_retina_from_kaggle(tmp_path: Path) -> None:
    fixture.kaggle_retina(tmp_path)
    parts = {split: retina.read(tmp_path, split, side=32) for split in ("train", "test")}
    names = {split: set(found.names or ()) for split, found in parts.items()}
    assert len(names["test"]) == 4
    assert len(names["train"] | names["test"]) == 20
    patients = {split: {name.split("_")[0] for name in some} for split, some in names.items()}
    assert not patients["train"] & patients["test"]
    grades = {f"{k // 2}_{('left', 'right')[k % 2]}": k % 5 for k in range(20)}
    for found in parts.values():
        assert targets(found) == [int(grades[name] >= 1) for name in found.names or ()]
    strict = retina.read(tmp_path, "train", side=32, positive_from=3)
    assert targets(strict) == [int(grades[name] >= 3) for name in strict.names or ()]
    assert strict.about["positive_from"] == 3
    assert set(retina.read(tmp_path, "test", side=32, seed=1).names or ()) != names["test"]
    assert len(retina.read(tmp_path / "diabetic-retinopathy-detection", "test", side=32)) == 4


@pytest.mark.parametrize("option", [{"positive_from": 0}, {"positive_from": 5}, {"test": 0.0}, {"test": 1.0}])
def test_retina_options_out_of_range(tmp_path: Path, option: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="retina: positive_from must be in"):
        retina.read(tmp_path, "train", **option)  # type: ignore[arg-type]


def test_kaggle_errors(tmp_path: Path) -> None:
    folder = fixture.kaggle_retina(tmp_path)
    replace(folder / "trainLabels.csv", "3_left,1", "3_left,7")
    with pytest.raises(DataError, match=r"trainLabels\.csv: 3_left: expected a class in 0\.\.4, found '7'"):
        retina.read(tmp_path, "train")
    (folder / "trainLabels.csv").write_text("image,grade\n")
    with pytest.raises(DataError, match=r"expected a first line with image,level; level is missing in image,grade"):
        retina.read(tmp_path, "train")
    (folder / "trainLabels.csv").write_text("image,level\n")
    with pytest.raises(DataError, match="expected images under the header"):
        retina.read(tmp_path, "train")


def test_an_eye_is_brought_to_grey_128_without_its_slow_changes(tmp_path: Path) -> None:
    ramp = np.linspace(40, 200, 300)[None, :, None] * np.ones((300, 1, 3))
    ramp[150:153, 100:200] += 30  # a vessel
    Image.fromarray(ramp.astype(np.uint8)).save(tmp_path / "eye.png")
    found = retina.fundus(tmp_path / "eye.png").astype(int)
    inner = found[100:400, 100:400]
    assert abs(np.median(inner) - 128) <= 4
    assert np.ptp(inner[:100]) < 24  # of 160 grey levels
    assert inner[155:165].max() > 170


def test_covid_as_shipped(tmp_path: Path) -> None:
    fixture.covid(tmp_path)
    found = retina.covid(tmp_path, "train", side=16)
    assert found.classes == ("normal", "pneumonia", "COVID-19")
    assert found.names == tuple(sorted(f"tr-{k}.png" for k in range(24)))
    assert list(found.parts) == [f"split_real/{name}" for name in fixture.COVID_CLIENTS]
    assert {found.names[row] for row in found.parts["split_real/gz"]} == {"tr-3.png", "tr-15.png"}
    grey = np.asarray(Image.open(tmp_path / "COVID-FL" / "train" / "tr-1.png"))
    np.testing.assert_array_equal(
        images(found)[found.names.index("tr-1.png")], resized(grey, (16, 16), "crop")
    )  # the longer side is cut, not pressed
    assert len(retina.covid(tmp_path, "test", side=16)) == 6


# RSNA


def kinds() -> dict[str, int]:
    """Slices of the fixture with exactly one subtype."""
    return {name: on[0] for name, on in fixture.slices().items() if len(on) == 1}


def test_slices_with_exactly_one_subtype_count(tmp_path: Path) -> None:
    folder = fixture.rsna(tmp_path, dicom=False)
    assert rsna.single(folder / "stage_2_train.csv") == kinds()
    assert Counter(kinds().values()) == dict.fromkeys(range(5), 10)


def test_the_damaged_slice_is_left_out(tmp_path: Path) -> None:
    folder = fixture.rsna(tmp_path, dicom=False)
    name = next(iter(kinds()))
    path = folder / "stage_2_train.csv"
    path.write_text(path.read_text().replace(name, "ID_6431af929"))
    assert rsna.single(path) == {other: k for other, k in kinds().items() if other != name}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ID,Label", "id,label", "expected a first line 'ID,Label', found 'id,label'"),
        ("_subdural,", "_dural,", r"line 6: expected ID_<slice>_<subtype>"),
        ("_subdural,0", "_subdural,2", r"line 6: expected ID_<slice>_<subtype>,<0 or 1>, found"),
        ("_any,0\n", "_any,0", "expected 6 lines for a slice"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    folder = fixture.rsna(tmp_path, dicom=False)
    replace(folder / "stage_2_train.csv", old, new)
    with pytest.raises(DataError, match=rf"stage_2_train\.csv.*{said}"):
        rsna.read(tmp_path, "train", n=50)


def test_a_table_that_was_cut_short_is_named(tmp_path: Path) -> None:
    folder = fixture.rsna(tmp_path, dicom=False)
    path = folder / "stage_2_train.csv"
    kept = path.read_text().splitlines()[: 1 + 6 * 3 + 2]
    path.write_text("\n".join(kept) + "\n")
    with pytest.raises(DataError, match=r"expected 6 lines for a slice, found 2 for ID_"):
        rsna.single(path)


@dicom
def test_slices_are_drawn_class_by_class_and_divided_8_to_2(tmp_path: Path) -> None:
    fixture.rsna(tmp_path)
    parts = {split: rsna.read(tmp_path, split, n=25, side=8) for split in ("train", "test")}
    assert Counter(targets(parts["train"])) == dict.fromkeys(range(5), 4)
    assert Counter(targets(parts["test"])) == dict.fromkeys(range(5), 1)
    names = [name for found in parts.values() for name in found.names or ()]
    assert len(set(names)) == 25
    for found in parts.values():
        assert targets(found) == [kinds()[name] for name in found.names or ()]
    other = rsna.read(tmp_path, "train", n=25, side=8, seed=1)
    assert set(other.names or ()) != set(parts["train"].names or ())
    assert len(rsna.read(tmp_path, "train", side=8)) == 40  # fewer than the 25 000 of the paper: all


@dicom
def test_patients_are_kept_in_one_part_if_asked(tmp_path: Path) -> None:
    fixture.rsna(tmp_path)
    patient = {name: k // 3 for k, name in enumerate(fixture.slices())}
    whole = {s: {patient[n] for n in rsna.read(tmp_path, s, side=8).names or ()} for s in ("train", "test")}
    assert whole["train"] & whole["test"]
    parts = {s: rsna.read(tmp_path, s, side=8, group_by="PatientID") for s in ("train", "test")}
    kept = {s: {patient[n] for n in found.names or ()} for s, found in parts.items()}
    assert not kept["train"] & kept["test"]
    assert 10 <= len(parts["test"]) <= 12
    assert len(parts["train"]) + len(parts["test"]) == 50


@dicom
@pytest.mark.parametrize(("twelve", "multiple"), [(False, False), (False, True), (True, False), (True, True)])
def test_windows_of_known_units(tmp_path: Path, twelve: bool, multiple: bool) -> None:
    units = np.array([[-1000, -1, 0, 10], [20, 40, 60, 79], [80, 81, 200, 1000]])
    path = fixture.write_dicom(tmp_path / "one.dcm", units, twelve, multiple)
    np.testing.assert_array_equal(rsna.hounsfield(pydicom.dcmread(path)), units)
    brain = [[0, 0, 0, 32], [64, 128, 191, 252], [255, 255, 255, 255]]  # 255 * units / 80
    np.testing.assert_array_equal(rsna.brain(path), brain)
    three = rsna.three(path)
    np.testing.assert_array_equal(three[:, :, 0], brain)
    subdural, soft = units / 200 + 0.1, (units + 150) / 380  # from -20 to 180, from -150 to 230
    for k, share in ((1, subdural), (2, soft)):
        assert np.abs(three[:, :, k] - 255 * share.clip(0, 1)).max() <= 0.5 + 1e-9


@dicom
def test_twelve_unsigned_bits_with_an_intercept_do_not_wrap(tmp_path: Path) -> None:
    import pydicom

    path = fixture.write_dicom(tmp_path / "one.dcm", np.zeros((4, 4), int), twelve=True)
    one = pydicom.dcmread(path)
    one.RescaleIntercept, one.RescaleSlope = "-1024", "2"
    one.PixelData = np.full((4, 4), 3500, np.uint16).tobytes()
    np.testing.assert_array_equal(rsna.hounsfield(one), 2 * 3500 - 1024)


@dicom
def test_png_files_are_written_once_and_read_as_the_dicom_files(tmp_path: Path) -> None:
    folder = fixture.rsna(tmp_path)
    for window in ("brain", "three"):
        direct = {s: rsna.read(tmp_path, s, n=25, side=16, window=window) for s in ("train", "test")}
        out = convert_rsna.convert(tmp_path, tmp_path / "out", window, n=25, side=16)
        for split, expected in direct.items():
            found = rsna.read(tmp_path / "out", split, side=16, window=window)
            assert found.names == expected.names
            assert targets(found) == targets(expected)
            np.testing.assert_array_equal(images(found), images(expected))
        files = sorted(out.rglob("*.png"))
        assert len(files) == 25
        with Image.open(files[0]) as image:
            assert image.mode == ("L" if window == "brain" else "RGB")
    files[3].unlink()  # as if it had been stopped
    before = {path: path.stat().st_mtime_ns for path in files if path.exists()}
    assert convert_rsna.convert(tmp_path, tmp_path / "out", "three", n=25, side=16) == out
    assert files[3].exists()
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert [p.name for p in out.rglob(".*")] == []
    shutil.rmtree(folder)
    with pytest.raises(DataError, match=r"stage_2_train\.csv"):
        convert_rsna.convert(tmp_path, tmp_path / "out", n=25)


@dicom
def test_a_damaged_slice_is_named(tmp_path: Path) -> None:
    folder = fixture.rsna(tmp_path)
    path = folder / "stage_2_train" / f"{next(iter(kinds()))}.dcm"
    path.write_bytes(path.read_bytes()[:-200])
    for act in (
        lambda: [rsna.read(tmp_path, split, side=8) for split in ("train", "test")],
        lambda: convert_rsna.convert(tmp_path, tmp_path / "out", side=8),
    ):
        with pytest.raises(DataError, match=rf"{path.name}: this image cannot be decoded"):
            act()
    path.write_text("nothing of the kind")
    with pytest.raises(DataError, match=rf"{path.name}: its PatientID cannot be read"):
        rsna.read(tmp_path, "train", side=8, group_by="PatientID")
    path.unlink()
    with pytest.raises(DataError, match=rf"{path.name}: its PatientID cannot be read, as the file is missing"):
        rsna.read(tmp_path, "train", side=8, group_by="PatientID")
    with pytest.raises(DataError, match=r"1 of \d+ listed images are missing"):
        convert_rsna.convert(tmp_path, tmp_path / "out", side=8)


def test_dicom_files_without_pydicom_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    fixture.rsna(tmp_path, dicom=False)
    for act in (
        lambda: rsna.read(tmp_path, "train"),
        lambda: rsna.read(tmp_path, "train", group_by="PatientID"),
        lambda: convert_rsna.convert(tmp_path, tmp_path / "out"),
    ):
        with pytest.raises(DataError, match=r"pip install 'equipoise\[medical\]'"):
            act()


def test_ready_made_slices_need_no_pydicom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    folder = fixture.ready(tmp_path, "ICH_20", "png", 5)
    found = rsna.read(tmp_path, "train")
    listed = [line.split(",") for line in (folder / "train.csv").read_text().split()[1:]]
    assert found.names == tuple(name for name, _ in listed)  # in the order of the list, which decides partitions
    assert targets(found) == [int(k) for _, k in listed]
    expected = np.asarray(Image.open(folder / "train" / "clean" / f"{found.names[7]}.png"))
    np.testing.assert_array_equal(images(found)[7], np.stack([expected] * 3))
    assert len(rsna.read(folder, "test")) == 10
    with pytest.raises(DataError, match="ICH_20-three"):
        rsna.read(tmp_path, "train", window="three")
    with pytest.raises(ValueError, match=r"group_by=PatientID .* Leave one out"):
        rsna.read(tmp_path, "train", group_by="PatientID")


@dicom
def test_lists_of_the_user_decide(tmp_path: Path) -> None:
    fixture.rsna(tmp_path)
    names = list(kinds())
    for split, some in (("train", names[5:9]), ("test", names[:3])):
        fixture.rows(tmp_path / "mine" / f"{split}.csv", [("id", "class"), *((name, kinds()[name]) for name in some)])
    found = rsna.read(tmp_path, "train", lists=tmp_path / "mine", side=8)
    assert found.names == tuple(names[5:9])
    assert set(found.about["files"]) == {"train.csv", "test.csv"}
    assert rsna.read(tmp_path, "test", lists=str(tmp_path / "mine"), side=8).names == tuple(names[:3])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("name,label\nx,1\n", "expected a first line with id,class; id is missing in name,label"),
        ("id,class\n", "expected images under the header id,class; found none"),
        ("id,class\nx,1\nx,1\n", "x is listed twice"),
        ("id,class\nx,5\n", r"x: expected a class in 0\.\.4, found '5'"),
        ("id,class\nx\n", "line 2: expected 2 cells, found 1"),
        ("", "an empty file"),
    ],
)
def test_a_damaged_id_list_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    folder = fixture.ready(tmp_path, "ICH_20", "png", 5)
    (folder / "train.csv").unlink()
    if text is not None:
        (folder / "train.csv").write_text(text)
    with pytest.raises(DataError, match=rf"train\.csv.*{said}"):
        rsna.read(tmp_path, "train")


def test_rsna_options_out_of_range(tmp_path: Path) -> None:
    fixture.rsna(tmp_path, dicom=False)
    with pytest.raises(ValueError, match="group_by PatientID or nothing; found 50 and 'StudyID'"):
        rsna.read(tmp_path, "train", n=50, group_by="StudyID")
    with pytest.raises(ValueError, match="n must be at least 5"):
        rsna.read(tmp_path, "train", n=4)


@dicom
def test_an_unknown_window_is_named(tmp_path: Path) -> None:
    fixture.rsna(tmp_path)
    with pytest.raises(ValueError, match="brian"):
        rsna.read(tmp_path, "train", window="brian")


# ISIC


def test_isic_as_shipped(tmp_path: Path) -> None:
    folder = fixture.isic(tmp_path)
    parts = {split: isic.read(tmp_path, split, side=16) for split in ("train", "test")}
    assert Counter(targets(parts["train"])) == dict.fromkeys(range(8), 4)
    assert Counter(targets(parts["test"])) == dict.fromkeys(range(8), 2)
    names = [name for found in parts.values() for name in found.names or ()]
    assert sorted(names) == sorted(path.stem for path in (folder / "ISIC_2019_Training_Input").iterdir())
    assert sum(name.endswith("_downsampled") for name in names) == 8
    for found in parts.values():
        assert targets(found) == [int(name.split("_")[1]) % 8 for name in found.names or ()]
    train = parts["train"]
    assert train.names is not None
    file = folder / "ISIC_2019_Training_Input" / f"{train.names[5]}.jpg"
    expected = Image.open(file).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(images(train)[5], np.asarray(expected).transpose(2, 0, 1))
    assert set(isic.read(tmp_path, "test", side=16, seed=1).names or ()) != set(parts["test"].names or ())


def test_within_a_class_images_are_in_random_order(tmp_path: Path) -> None:
    """The quality partition takes the first images of a class: sorted by id they would be those of one centre."""
    fixture.isic(tmp_path)
    found = isic.read(tmp_path, "train", side=4)
    first = [name for name, k in zip(found.names or (), targets(found), strict=True) if k == 0]
    assert len(first) > 2
    orders = {tuple(np.argsort(first).tolist())}
    for seed in (1, 2):
        other = isic.read(tmp_path, "train", side=4, seed=seed)
        some = [name for name, k in zip(other.names or (), targets(other), strict=True) if k == 0]
        orders.add(tuple(np.argsort(some).tolist()))
    assert len(orders) > 1


def test_centres_of_isic(tmp_path: Path) -> None:
    fixture.isic(tmp_path)
    for split in ("train", "test"):
        found = isic.read(tmp_path, split, side=4)
        assert found.names is not None
        number = {name: int(name.split("_")[1]) for name in found.names}
        centre = {0: "BCN", 1: "HAM", 2: "MSK4"}  # 3 has no lesion_id: in no part
        for k, name in centre.items():
            assert {found.names[row] for row in found.parts[name]} == {n for n in found.names if number[n] % 4 == k}
        assert set(found.parts) == set(centre.values())


def test_the_sources_of_ham10000_are_centres_if_its_table_is_there(tmp_path: Path) -> None:
    folder = fixture.isic(tmp_path, ham=True)
    found = isic.read(tmp_path, "train", side=4)
    assert set(found.parts) == {"BCN", "HAM-rosendahl", "HAM-vidir_modern", "MSK4"}
    rows = [found.parts[name] for name in ("HAM-rosendahl", "HAM-vidir_modern")]
    assert {int((found.names or ())[row].split("_")[1]) % 8 for row in rows[0]} == {5}
    assert {int((found.names or ())[row].split("_")[1]) % 8 for row in rows[1]} == {1}
    (folder / "ISIC_2019_Training_Metadata.csv").unlink()
    assert isic.read(tmp_path, "train", side=4).parts == {}


# Images of each class at each of FLamby's six centres (its train_test_split, and the table of HAM10000, read image by image).
CENTRES = {
    "BCN": (2857, 4206, 2809, 737, 1138, 124, 111, 431),
    "HAM-vidir_molemax": (24, 3720, 2, 0, 124, 30, 54, 0),
    "HAM-vidir_modern": (680, 1832, 211, 21, 475, 51, 82, 11),
    "HAM-rosendahl": (342, 803, 296, 109, 490, 30, 3, 186),
    "MSK4": (215, 415, 0, 0, 189, 0, 0, 0),
    "HAM-vienna_dias": (67, 350, 5, 0, 10, 4, 3, 0),
}


def test_isic_has_the_published_centres_and_division(tmp_path: Path) -> None:
    """All 25,331 ids, with the classes and centres of the real ones: 20,262 and 5,069, and FLamby's 23,247 in six centres."""
    whole = catalog.SETS["isic2019"].whole
    assert whole is not None
    assert whole.classes is not None
    known = [n - sum(of) for n, of in zip(whole.classes, zip(*CENTRES.values(), strict=True), strict=True)]
    everywhere = [
        (k, who) for who, counts in {**CENTRES, "": known}.items() for k, n in enumerate(counts) for _ in range(n)
    ]
    assert len(everywhere) == whole.images == 25_331
    order = np.random.default_rng(0).permutation(len(everywhere))
    images = [
        (f"ISIC_{i:07d}" + "_downsampled" * (who == "MSK4"), k, who)
        for i, (k, who) in zip(order, everywhere, strict=True)
    ]
    truth = ((name, *(float(j == k) for j in range(9))) for name, k, _ in images)
    fixture.rows(tmp_path / isic.TRUTH, [("image", *isic.CLASSES, "UNK"), *truth])
    told = ((name, who and f"{who[:4].ljust(4, '_').replace('HAM-', 'HAM_')}000001") for name, _, who in images)
    fixture.rows(tmp_path / isic.METADATA, [("image", "lesion_id"), *told])
    theirs = ((name, who.removeprefix("HAM-")) for name, _, who in images if who.startswith("HAM"))
    fixture.rows(tmp_path / isic.HAM[0], [("image_id", "dataset"), *theirs])

    classes = isic.labelled(tmp_path / isic.TRUTH)
    assert tuple(Counter(classes.values())[k] for k in range(8)) == whole.classes
    parts = lists.divided(classes, isic.TEST, np.random.default_rng(0))
    published = {split: count and count.images for split, count in catalog.SETS["isic2019"].splits.items()}
    assert {split: len(names) for split, names in parts.items()} == published == {"train": 20_262, "test": 5_069}
    assert Counter(parts["test"].values()) == {0: 905, 1: 2575, 2: 665, 3: 174, 4: 525, 5: 48, 6: 51, 7: 126}
    names = [name for name, *_ in images]
    centres = isic.centres(names, tmp_path / isic.METADATA, tmp_path / isic.HAM[0])
    assert {who: len(rows) for who, rows in centres.items()} == {
        "BCN": 12_413, "HAM-rosendahl": 2_259, "HAM-vidir_modern": 3_363, "HAM-vidir_molemax": 3_954, "HAM-vienna_dias": 439, "MSK4": 819,
    }  # fmt: skip
    assert sum(map(len, centres.values())) == 23_247
    assert all(images[row][2] == who for who, rows in centres.items() for row in rows)
    alone = isic.centres(names, tmp_path / isic.METADATA)
    assert {who: len(rows) for who, rows in alone.items()} == {"BCN": 12_413, "HAM": 10_015, "MSK4": 819}


def test_ready_made_photographs(tmp_path: Path) -> None:
    folder = fixture.ready(tmp_path, "ISIC2019_20", "jpg", 8)
    found = isic.read(tmp_path, "train")
    listed = [line.split(",") for line in (folder / "train.csv").read_text().split()[1:]]
    assert found.names == tuple(name for name, _ in listed)
    expected = np.asarray(Image.open(folder / "train" / "clean" / f"{found.names[3]}.jpg")).transpose(2, 0, 1)
    np.testing.assert_array_equal(images(found)[3], expected)
    assert len(isic.read(folder, "test")) == 10
    (folder / "test" / "clean" / f"{isic.read(folder, 'test').names[0]}.jpg").unlink()  # type: ignore[index]
    with pytest.raises(DataError, match="isic2019 test: 1 of 10 listed images are missing"):
        isic.read(tmp_path, "test")


def test_id_lists_with_the_challenge_files(tmp_path: Path) -> None:
    fixture.isic(tmp_path)
    path = fixture.rows(
        tmp_path / "mine" / "train.csv", [("id", "class"), ("ISIC_0000011_downsampled", 3), ("ISIC_0000001", 1)]
    )
    found = isic.read(tmp_path, "train", lists=tmp_path / "mine", side=4)
    assert (found.names, targets(found)) == (("ISIC_0000011_downsampled", "ISIC_0000001"), [3, 1])
    replace(path, "ISIC_0000001,1", "ISIC_0000001,2")
    with pytest.raises(DataError, match=r"ISIC_0000001 has class 2 \(BCC\), and .* says NV"):
        isic.read(tmp_path, "train", lists=tmp_path / "mine")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("SCC,UNK", "SCCX,UNK", r"SCC is missing in image,MEL,NV"),
        ("ISIC_0000000,1.0", "ISIC_0000000,0.0", "ISIC_0000000 must be in exactly one of MEL.*found none"),
        ("ISIC_0000000,1.0,0.0", "ISIC_0000000,1.0,1.0", "found MEL, NV"),
        ("ISIC_0000000,1.0", "ISIC_0000000,yes", "ISIC_0000000: expected 0.0 or 1.0, found 'yes'"),
        ("ISIC_0000000,1.0,0.0", "ISIC_0000000,1.0", "line 2: expected 10 cells, found 9"),
        (",0.0\nISIC_0000001,", ",1.0\nISIC_0000001,", "found MEL, UNK"),
    ],
)
def test_a_damaged_ground_truth_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    folder = fixture.isic(tmp_path)
    replace(folder / "ISIC_2019_Training_GroundTruth.csv", old, new)
    with pytest.raises(DataError, match=rf"GroundTruth\.csv.*{said}"):
        isic.read(tmp_path, "train")


def test_unknown_lesions_are_named(tmp_path: Path) -> None:
    folder = fixture.isic(tmp_path)
    path = folder / "ISIC_2019_Training_GroundTruth.csv"
    first = path.read_text().splitlines()[1]
    replace(path, first, "ISIC_0000000" + ",0.0" * 8 + ",1.0")
    with pytest.raises(DataError, match=r"ISIC_0000000 must be in exactly one of .*; found UNK"):
        isic.read(tmp_path, "train")


@pytest.mark.parametrize(
    ("read", "name"),
    [(retina.read, "retina"), (retina.covid, "covid-fl"), (rsna.read, "rsna-ich"), (isic.read, "isic2019")],
)
def test_a_wrong_folder_says_what_was_looked_for_and_what_is_there(
    tmp_path: Path, read: Callable[..., object], name: str
) -> None:
    (tmp_path / "holiday").mkdir()
    with pytest.raises(DataError, match=rf"expected .* or .* in {tmp_path}; found there: holiday/") as error:
        read(tmp_path, "train")
    assert f"equipoise data get {name}" in str(error.value)


# Draws


@pytest.mark.parametrize(
    ("counts", "tests"),
    [
        ((548, 5127, 3247, 5364, 10714), (110, 1026, 650, 1073, 2143)),  # the lists of FedISM's code: 19 998 and 5 002
        ((4522, 12875, 3323, 867, 2624, 239, 253, 628), (905, 2575, 665, 174, 525, 48, 51, 126)),  # 20 262 and 5 069
    ],
)
def test_the_test_part_has_the_published_sizes(counts: tuple[int, ...], tests: tuple[int, ...]) -> None:
    classes = {f"{k}-{i}": k for k, n in enumerate(counts) for i in range(n)}
    parts = lists.divided(classes, 0.2, np.random.default_rng(0))
    assert tuple(Counter(parts["test"].values())[k] for k in range(len(counts))) == tests
    assert len(parts["train"]) == sum(counts) - sum(tests)
    assert parts["train"].keys() | parts["test"].keys() == classes.keys()


def test_a_draw_keeps_shares_and_does_not_depend_on_the_order_of_ids() -> None:
    classes = {f"{k}-{i}": k for k, n in enumerate((10, 33, 57)) for i in range(n)}
    drawn = lists.sample(classes, 25, np.random.default_rng(0))
    assert sorted(Counter(drawn.values()).items()) in ([(0, 3), (1, 8), (2, 14)], [(0, 2), (1, 9), (2, 14)])
    assert all(classes[name] == k for name, k in drawn.items())
    again = lists.sample(dict(reversed(classes.items())), 25, np.random.default_rng(0))
    assert list(again) == list(drawn)
    assert len(lists.sample(classes, 1000, np.random.default_rng(0))) == 100
