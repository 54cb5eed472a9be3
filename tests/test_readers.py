"""Readers of the plain data sets, on tiny files in the real formats: what they give, and what they say of bad files."""

from __future__ import annotations

import bz2
import gzip
import pickle
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat

import fixture_data as made
from equipoise.data.batch import Batch
from equipoise.data.contents import Contents, DataError
from equipoise.data.locations import find, located
from equipoise.data.memory_mapped import Mapped, labels
from equipoise.data.sets import catalog, digits
from helpers import in_one

MAKERS: dict[str, Callable[[Path], made.Written]] = {
    "mnist": made.mnist,
    "fashion-mnist": made.fashion,
    "usps": made.usps,
    "svhn": lambda root: made.svhn(root, extra=11),
    "synth": made.synth,
    "cifar10": made.cifar10,
    "syn": made.syn,
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path_factory.mktemp("cache")))


def arrays(found: Contents) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All images and labels that a reader found."""
    data = found.data
    batch = data.gather(range(len(data))) if isinstance(data, Mapped) else Batch(*data)
    assert batch.x.dtype == torch.uint8
    assert batch.y.dtype == torch.int64
    return batch.x.numpy(), batch.y.numpy()


def same(found: Contents, written: tuple[Any, Any]) -> None:
    x, y = arrays(found)
    np.testing.assert_array_equal(x, written[0])
    np.testing.assert_array_equal(y, written[1])


# what is written is what is read
@pytest.mark.parametrize("name", MAKERS)
def test_gives_the_bytes_and_labels_that_were_written(name: str, tmp_path: Path) -> None:
    for split, written in MAKERS[name](tmp_path).items():
        found = catalog.read(name, tmp_path, split)
        same(found, written)
        assert len(found) == len(written[1])
        assert found.classes == catalog.SETS[name].classes


def test_idx_packed_or_not_is_the_same(tmp_path: Path) -> None:
    for packed in (True, False):
        written = made.mnist(tmp_path / str(packed), packed=packed)
        same(catalog.read("mnist", tmp_path / str(packed), "test"), written["test"])


def test_only_the_folder_tells_mnist_from_fashion_mnist(tmp_path: Path) -> None:
    digits, clothes = made.mnist(tmp_path), made.fashion(tmp_path)
    same(catalog.read("mnist", tmp_path, "train"), digits["train"])
    same(catalog.read("fashion-mnist", tmp_path, "train"), clothes["train"])
    assert catalog.read("fashion-mnist", tmp_path, "train").classes[9] == "Ankle boot"
    with pytest.raises(DataError, match="FashionMNIST/raw/train-images-idx3-ubyte"):
        catalog.read("fashion-mnist", tmp_path / "MNIST", "train")
    shutil.copytree(tmp_path / "MNIST/raw", tmp_path / "files")
    with pytest.raises(DataError, match="have the same file names, so the folder must tell which"):
        catalog.read("mnist", tmp_path / "files", "train")


@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "MNIST"), ("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST"), ("cifar10", "cifar-10-batches-py"), ("syn", "syn")],
)  # fmt: skip
def test_the_folder_of_the_set_itself_will_do(name: str, folder: str, tmp_path: Path) -> None:
    written = MAKERS[name](tmp_path)
    for split in ("train", "test"):
        same(catalog.read(name, tmp_path / folder, split), written[split])


@pytest.mark.parametrize(
    ("old", "new"), [("MNIST", "mnist"), ("MNIST/raw/t10k-images-idx3-ubyte", "MNIST/raw/t10k-images.idx3-ubyte")]
)
def test_other_spellings_of_folders_and_files(old: str, new: str, tmp_path: Path) -> None:
    written = made.mnist(tmp_path)
    (tmp_path / old).rename(tmp_path / new)
    same(catalog.read("mnist", tmp_path, "test"), written["test"])


def test_usps_labels_count_from_one_and_lines_may_be_sparse(tmp_path: Path) -> None:
    """Unlike SVHN, 1 stands for the digit 0; a number that is left out is 0, which is byte 127 and not 0."""
    lines = "1 3:1 1:-1\n10 256:0.5\n\n"
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(lines.encode()))
    x, y = arrays(catalog.read("usps", tmp_path, "train"))
    assert y.tolist() == [0, 9]
    expected = np.full((2, 256), 127)
    expected[0, 0], expected[0, 2], expected[1, 255] = 0, 255, 191  # 1.5 / 2 * 255 = 191.25
    assert x.reshape(2, 256).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 1:0.5", "label 1..10, where 1 is the digit 0, .*found '0 1:0.5'"),
        ("1.5 1:0.5", "label 1..10"),
        ("11 1:0.5", "label 1..10"),
        ("2 0:0.5", "places 1..256"),
        ("2 257:0.5", "places 1..256"),
        ("2 1:1.5", r"values in \[-1, 1\]"),
        ("2 1:nan", r"values in \[-1, 1\]"),
        ("two 1:0.5", "found 'two 1:0.5'"),
        ("2 0.5 0.5", "expected 'label 1:v 2:v ...'"),
    ],
)
def test_usps_lines_that_are_wrong(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(f"1 1:0\n{line}\n".encode()))
    with pytest.raises(DataError, match=rf"usps.bz2, line 2: .*{words}"):
        catalog.read("usps", tmp_path, "train")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["", "USPS", "usps"])
def test_usps_of_the_book_is_that_of_libsvm(folder: str, packed: bool, tmp_path: Path) -> None:
    written = made.usps(tmp_path / "libsvm")
    made.usps_of_the_book(tmp_path / "book" / folder, packed=packed)
    for split in ("train", "test"):
        same(catalog.read("usps", tmp_path / "book", split), written[split])


NUMBERS = "0.5 " * 255


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"10 {NUMBERS}1", "a digit 0..9 and .*found '10 0.5"),
        (f"0.5 {NUMBERS}1", "a digit 0..9 and .*found '0.5 0.5"),
        (f"-1 {NUMBERS}1", "a digit 0..9 and .*found '-1 0.5"),
        (f"3 {NUMBERS}", "256 numbers .*, 255 values"),
        (f"3 {NUMBERS}1 1", "257 values"),
        ("3", "found '3', 0 values"),
        (f"3 {NUMBERS}1.5", "256 numbers in \\[-1, 1\\]"),
        (f"3 {NUMBERS}nan", "numbers in \\[-1, 1\\]"),
        (f"3 {NUMBERS}white", "256 numbers in .*found '3 0.5"),
        ("4 1:0.5", "256 numbers in .*found '4 1:0.5'"),
    ],
)
def test_lines_of_the_book_that_are_wrong(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "zip.train.gz").write_bytes(gzip.compress(f"3 {NUMBERS}1\n{line}\n".encode()))
    with pytest.raises(DataError, match=rf"zip.train.gz, line 2: expected .*{words}"):
        catalog.read("usps", tmp_path, "train")


def test_svhn_ten_is_the_digit_zero_and_images_stand_upright(tmp_path: Path) -> None:
    x = np.zeros((32, 32, 3, 2), np.uint8)
    x[5, 20, 2, 1] = 200  # row 5, column 20, blue, second image
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": np.array([[10], [1]], np.uint8)})
    found, digits = arrays(catalog.read("svhn", tmp_path, "train"))
    assert digits.tolist() == [0, 1]
    assert found[1, 2, 5, 20] == 200
    assert found.astype(int).sum() == 200


@pytest.mark.parametrize("n", [1, digits.CHUNK + 1])
def test_svhn_of_one_image_and_of_more_than_a_piece(n: int, tmp_path: Path) -> None:
    x, y = made.pixels(n, 3, 32, 0)
    made.mat(tmp_path / "SVHN" / "test_32x32.mat", x, y, compressed=False)
    same(catalog.read("svhn", tmp_path, "test"), (x, y))


def test_synth_is_not_syn(tmp_path: Path) -> None:
    made.synth(tmp_path)
    with pytest.raises(DataError, match="syn/train/0"):
        catalog.read("syn", tmp_path, "train")


def test_syn_as_kaggle_unpacks_it(tmp_path: Path) -> None:
    """``imgs_train`` and ``imgs_valid`` in ``synthetic_digits``; the test split is the one called valid."""
    written = made.syn(tmp_path, kaggle=True)
    for split in ("train", "test"):
        same(catalog.read("syn", tmp_path, split), written[split])


def test_syn_images_of_other_sizes_are_resized(tmp_path: Path) -> None:
    made.syn(tmp_path, 10, 10, side=64)
    found = catalog.read("syn", tmp_path, "train")
    assert isinstance(found.data, Mapped)
    assert found.data.shape == (3, 32, 32)
    assert found.names is not None
    assert found.names[3] == "3/3_00003.png"


# Office-Caltech10
@pytest.mark.parametrize(
    "folder",
    [
        "office_caltech_10",
        "Office_Caltech_10",
        "Office-Caltech10",
        "Office-Caltech",
        "OfficeCaltechDomainAdaptation/images",
    ],
)
def test_office_in_any_spelling(folder: str, tmp_path: Path) -> None:
    made.office(tmp_path, 2, folder=folder)
    for root in (tmp_path, tmp_path / folder):
        found = catalog.read("office-caltech10", root, "dslr")
        assert isinstance(found.data, Mapped)
        assert found.data.shape == (3, 192, 192)
        assert labels(found.data).tolist() == [k for k in range(10) for _ in range(2)]


def test_office_classes_in_other_spellings_keep_their_numbers(tmp_path: Path) -> None:
    made.office(tmp_path, 1)
    domain = tmp_path / "office_caltech_10/webcam"
    before, _ = arrays(catalog.read("office-caltech10", tmp_path, "webcam"))
    for old, new in (("back_pack", "BackPack"), ("calculator", "Calculator"), ("laptop_computer", "Laptop_Computer")):
        (domain / old).rename(domain / new)
    found = catalog.read("office-caltech10", tmp_path, "webcam")
    assert labels(found.data).tolist() == list(range(10))
    assert found.classes[2] == "calculator"
    np.testing.assert_array_equal(arrays(found)[0], before)


@pytest.mark.parametrize(("domain", "name"), [("caltech", "caltech10"), ("caltech", "Caltech10"), ("amazon", "Amazon")])
@pytest.mark.parametrize("laptop", ["laptop", "Laptop"])
def test_office_as_other_copies_call_it(domain: str, name: str, laptop: str, tmp_path: Path) -> None:
    made.office(tmp_path, 1)
    top = tmp_path / "office_caltech_10"
    before, _ = arrays(catalog.read("office-caltech10", tmp_path, domain))
    (top / domain / "laptop_computer").rename(top / domain / laptop)
    (top / domain).rename(top / name)
    for root in (tmp_path, top):
        found = catalog.read("office-caltech10", root, domain)
        assert labels(found.data).tolist() == list(range(10))
        np.testing.assert_array_equal(arrays(found)[0], before)


@pytest.mark.parametrize(("name", "other"), [("laptop_computer", "laptop"), ("mug", "Mug"), ("back_pack", "backpack")])
def test_a_class_of_office_in_two_folders_is_refused(name: str, other: str, tmp_path: Path) -> None:
    made.office(tmp_path, 1)
    domain = tmp_path / "office_caltech_10/dslr"
    shutil.copytree(domain / name, domain / other)
    with pytest.raises(
        DataError, match=r"dslr: expected one folder per class, .*; one class in two folders: \w+ and \w+\.$"
    ):
        catalog.read("office-caltech10", tmp_path, "dslr")


def test_office_is_sorted_by_class_and_file_name_as_text(tmp_path: Path) -> None:
    """The published split takes every image by its place in this order."""
    made.office(tmp_path, 1)
    bike = tmp_path / "office_caltech_10/amazon/bike"
    x, _ = made.pixels(1, 3, 24, 0)
    for name in ("frame_10.JPG", "frame_9.png", "Frame_2.jpeg"):
        made.image(bike / name, x[0])
    for other in ("Thumbs.db", ".DS_Store", "list.txt", "amazon_train.pkl"):
        (bike / other).write_bytes(b"no image")
    (bike.parent / "amazon_train.pkl").write_bytes(b"a list of FedBN's archive")
    names = catalog.read("office-caltech10", tmp_path, "amazon").names
    assert names is not None
    assert [name for name in names if name.startswith("bike")] == [
        "bike/Frame_2.jpeg", "bike/frame_0001.jpg", "bike/frame_10.JPG", "bike/frame_9.png",
    ]  # fmt: skip


def test_grey_jpegs_of_caltech_become_three_channels(tmp_path: Path) -> None:
    made.office(tmp_path, 2)
    x, _ = arrays(catalog.read("office-caltech10", tmp_path, "caltech"))
    assert (x[0, 0] == x[0, 1]).all()
    assert (x[0, 0] == x[0, 2]).all()
    assert (x[1, 0] != x[1, 1]).any()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda domain: shutil.rmtree(domain / "mug"), "missing: mug"),
        (lambda domain: (domain / "mug").rename(domain / "cup"), "missing: mug; unknown: cup"),
        (lambda domain: (domain / "zebra").mkdir(), "unknown: zebra"),
        (lambda domain: [path.unlink() for path in (domain / "mug").iterdir()], "mug: expected images .*found none"),
        (lambda domain: (domain / "mug/frame_0001.jpg").write_bytes(b""), "frame_0001.jpg: this image cannot be decoded"),
        (lambda domain: cut(domain / "mug/frame_0001.jpg"), "frame_0001.jpg: this image cannot be decoded"),
    ],
)  # fmt: skip
def test_office_folders_that_are_wrong(spoil: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    made.office(tmp_path, 1)
    spoil(tmp_path / "office_caltech_10/amazon")
    with pytest.raises(DataError, match=words):
        catalog.read("office-caltech10", tmp_path, "amazon")


# CIFAR-10
def test_cifar_pickled_by_python_3_is_read_too(tmp_path: Path) -> None:
    made.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    x, y = made.pixels(10, 3, 32, 9)
    for protocol in (2, 3, 4):
        for keys in ((b"data", b"labels"), ("data", "labels")):
            values = (x.reshape(10, -1), y.tolist())
            path.write_bytes(pickle.dumps(dict(zip(keys, values, strict=True)), protocol=protocol))
            same(catalog.read("cifar10", tmp_path, "test"), (x, y))


class Runs:
    """Pickles into a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    ("function", "name"),
    [(eval, "eval"), (subprocess.check_call, "check_call"), (np.load, "load"), (getattr, "getattr"), (Runs, "Runs")],
)
def test_cifar_file_that_wants_to_run_something_is_refused(
    function: Any, name: str, protocol: int, tmp_path: Path
) -> None:
    """The first of them would write a file."""
    made.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    harm = tmp_path / "harm"
    argument = f"open({str(harm)!r}, 'w')" if function is eval else ["touch", str(harm)]
    path.write_bytes(pickle.dumps({"data": Runs(function, argument), "labels": []}, protocol=protocol))
    with pytest.raises(DataError, match=rf"test_batch: refused, because it asks for .*{name}, which no data needs"):
        catalog.read("cifar10", tmp_path, "test")
    assert not harm.exists()


def test_cifar_name_with_dots_is_refused(tmp_path: Path) -> None:
    """Protocol 4 may ask for an attribute of an attribute of what is allowed."""
    made.cifar10(tmp_path)
    name, attribute = b"numpy", b"ndarray.__class__"
    load = b"\x8c" + bytes([len(name)]) + name + b"\x8c" + bytes([len(attribute)]) + attribute + b"\x93."
    (tmp_path / "cifar-10-batches-py/test_batch").write_bytes(b"\x80\x04" + load)
    with pytest.raises(DataError, match=r"asks for numpy.ndarray.__class__"):
        catalog.read("cifar10", tmp_path, "test")


def test_cifar_archive_must_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz: must be unpacked first: tar -xzf"):
        catalog.read("cifar10", tmp_path, "train")
    written = made.cifar10(tmp_path)  # beside its content it does no harm
    same(catalog.read("cifar10", tmp_path, "train"), written["train"])


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"data": np.zeros((2, 3072), np.uint8)},
        {"data": np.zeros((2, 3072)), "labels": [0, 1]},
        {"data": np.zeros((2, 1024), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": ["cat", "dog"]},
        {"data": np.zeros((0, 3072), np.uint8), "labels": []},
    ],
)
def test_cifar_content_that_is_wrong(content: Any, tmp_path: Path) -> None:
    made.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=rf"^{path}: expected "):
        catalog.read("cifar10", tmp_path, "test")


# damaged files
FILES = {
    "mnist": ("MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte"),
    "fashion-mnist": ("FashionMNIST/raw/train-images-idx3-ubyte.gz", "FashionMNIST/raw/train-labels-idx1-ubyte.gz"),
    "usps": ("usps.bz2",),
    "svhn": ("train_32x32.mat",),
    "synth": ("synth_train_32x32.mat",),
    "cifar10": ("cifar-10-batches-py/data_batch_3",),
    "syn": ("syn/train/0/0_00000.png",),
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "cut at the end": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "a head alone": lambda path: path.write_bytes(path.read_bytes()[:6]),
    "noise": lambda path: path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size)),
    "a page of HTML": lambda path: path.write_text("<html>404 not found</html>"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in FILES.items() for file in files])
def test_damaged_file_is_one_error_that_names_it(name: str, file: str, damage: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    DAMAGES[damage](tmp_path / file)
    with pytest.raises(DataError) as error:
        catalog.read(name, tmp_path, "train")
    text = str(error.value)
    assert text.startswith(str(tmp_path / file))
    assert "\n" not in text
    assert text.endswith(".")


@pytest.mark.parametrize("damage", ["empty", "cut", "cut at the end", "noise"])
def test_damaged_file_that_is_not_compressed(damage: str, tmp_path: Path) -> None:
    made.mat(tmp_path / "train_32x32.mat", *made.pixels(20, 3, 32, 0), compressed=False)
    DAMAGES[damage](tmp_path / "train_32x32.mat")
    with pytest.raises(DataError, match=r"train_32x32.mat: "):
        catalog.read("svhn", tmp_path, "train")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "'y' is missing"),
        ({"y": np.ones((2, 1))}, "'X' is missing"),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))}, "uint8 32 x 32 x 3 x n; found float64"),
        ({"X": np.zeros((2, 3, 32, 32), np.uint8), "y": np.ones((2, 1))}, "uint8 32 x 32 x 3 x n"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))}, "a label 1..10 for each of the 2 images"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])}, "a label 1..10"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [1.5]])}, "a label 1..10"),
    ],
)
def test_matlab_content_that_is_wrong(content: dict[str, Any], words: str, tmp_path: Path) -> None:
    savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(DataError, match=words):
        catalog.read("svhn", tmp_path, "train")


@pytest.mark.parametrize(
    ("images", "digits", "words"),
    [
        (made.idx(np.zeros((2, 28, 28))), made.idx(np.zeros(3)), "labels-idx1-ubyte: expected a label for each of the 2 images"),
        (made.idx(np.zeros((0, 28, 28))), made.idx(np.zeros(0)), "found 0"),
        (made.idx(np.zeros((2, 28, 28))), made.idx(np.array([0, 10])), r"labels 0..9; found 10"),
        (made.idx(np.zeros(2)), made.idx(np.zeros(2)), "begins with 00 00 08 03; found 00 00 08 01"),
        (made.idx(np.zeros((2, 28, 28))) + b"0", made.idx(np.zeros(2)), "2 x 28 x 28 = 1568 bytes, and there are 1569"),
        (b"\0\0\x0d\3" + made.idx(np.zeros((2, 28, 28)))[4:], made.idx(np.zeros(2)), "found 00 00 0d 03"),
    ],
)  # fmt: skip
def test_idx_content_that_is_wrong(images: bytes, digits: bytes, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "MNIST/raw"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").write_bytes(images)
    (folder / "train-labels-idx1-ubyte").write_bytes(digits)
    with pytest.raises(DataError, match=words):
        catalog.read("mnist", tmp_path, "train")


def test_little_endian_sizes_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST"
    folder.mkdir()
    right = made.idx(np.zeros((2, 28, 28)))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(right[:4] + right[4:16][::-1] + right[16:]))
    (folder / "train-labels-idx1-ubyte").write_bytes(made.idx(np.zeros(2)))
    with pytest.raises(DataError, match="It is damaged, or made to fill the memory"):
        catalog.read("mnist", tmp_path, "train")


@pytest.mark.parametrize(
    ("name", "file"),
    [("mnist", FILES["mnist"][0]), ("fashion-mnist", FILES["fashion-mnist"][0]), ("usps", "usps.bz2"), ("cifar10", FILES["cifar10"][0])],
)  # fmt: skip
def test_failure_of_the_system_is_not_called_damage(name: str, file: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    (tmp_path / file).unlink()
    (tmp_path / file).mkdir()
    with pytest.raises(IsADirectoryError):
        catalog.read(name, tmp_path, "train")


# wrong folders
@pytest.mark.parametrize("name", [*MAKERS, "office-caltech10"])
def test_wrong_folder_says_what_it_looked_for_and_what_is_there(name: str, tmp_path: Path) -> None:
    split = next(iter(catalog.SETS[name].splits))
    (tmp_path / "holidays").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError) as error:
        catalog.read(name, tmp_path, split)
    text = str(error.value)
    assert text.startswith(f"{name}: expected ")
    assert f"in {tmp_path}; found there: holidays/, notes.txt." in text
    assert text.endswith(f"`equipoise data get {name} --data {tmp_path}` says where to get it.")
    with pytest.raises(DataError, match="there is no such folder"):
        catalog.read(name, tmp_path / "nowhere", split)
    with pytest.raises(DataError, match="that is a file and no folder"):
        catalog.read(name, tmp_path / "notes.txt", split)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="that folder is empty"):
        catalog.read(name, tmp_path / "empty", split)


def test_a_long_folder_is_listed_in_part(tmp_path: Path) -> None:
    for k in range(20):
        (tmp_path / f"{k:02d}").mkdir()
    with pytest.raises(DataError, match=r"found there: 00/, 01/, .*07/ and 12 more"):
        located("usps", tmp_path, ["usps.bz2"])


def test_places_are_found_from_any_folder_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "Sets/MNIST/raw").mkdir(parents=True)
    file = tmp_path / "Sets/MNIST/raw/x"
    file.write_text("")
    for root in ("Sets", "Sets/MNIST", "Sets/MNIST/raw"):
        assert find(tmp_path / root, ["mnist/raw/x"]) == file
    assert find(tmp_path, ["mnist/raw/x"]) is None
    assert find(tmp_path / "Sets", ["raw/x", "MNIST/raw/y"]) is None
    assert find(tmp_path / "Sets", ["nothing", "MNIST"]) == tmp_path / "Sets/MNIST"
    assert find(tmp_path / "Sets/MNIST", ["MNIST"]) == tmp_path / "Sets/MNIST"


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Unknown data set 'minst'. Did you mean 'mnist'\?"):
        catalog.read("minst", tmp_path, "train")
    with pytest.raises(ValueError, match=r"Unknown split of svhn 'val'.*train, test, extra"):
        catalog.read("svhn", tmp_path, "val")


# resources
def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}


@pytest.mark.parametrize("name", MAKERS)
def test_reading_leaves_the_folder_alone(name: str, tmp_path: Path) -> None:
    """So that a folder that cannot be written will do."""
    root = tmp_path / "sets"
    written = MAKERS[name](root)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    before = snapshot(root)
    same(catalog.read(name, root, "train"), written["train"])
    assert snapshot(root) == before
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.parametrize(("name", "copies"), [("mnist", 1), ("fashion-mnist", 1), ("svhn", 1), ("cifar10", 2)])
def test_memory_while_reading(name: str, copies: int, tmp_path: Path) -> None:
    """What a reader takes at most, in units of what it returns; buffers do not grow with the data."""
    n = 3000
    {
        "mnist": lambda: made.mnist(tmp_path, n),
        "fashion-mnist": lambda: made.fashion(tmp_path, n),
        "svhn": lambda: made.mat(tmp_path / "train_32x32.mat", *made.pixels(n, 3, 32, 0), compressed=False),
        "cifar10": lambda: made.cifar10(tmp_path, n),
    }[name]()
    if name == "svhn":
        loadmat(tmp_path / "train_32x32.mat", variable_names=["y"])  # what SciPy imports does not count
    tracemalloc.start()
    found = catalog.read(name, tmp_path, "train")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found.data, tuple)
    returned = sum(part.numel() * part.element_size() for part in found.data)
    assert peak < (copies + 0.2) * returned + 2**20


# records
def test_what_is_recorded_of_files_is_which_they_are(tmp_path: Path) -> None:
    made.usps(tmp_path)
    first = catalog.read("usps", tmp_path, "train").about
    assert first["files"]["usps.bz2"]["bytes"] == (tmp_path / "usps.bz2").stat().st_size
    made.usps(tmp_path, seed=99)
    assert catalog.read("usps", tmp_path, "train").about != first


PUBLISHED = {
    "mnist": (60000, 10000), "usps": (7291, 2007), "svhn": (73257, 26032, 531131), "syn": (10000, 2000),
    "office-caltech10": (958, 1123, 157, 295), "isic2019": (20262, 5069), "fashion-mnist": (60000, 10000),
    "cifar10": (50000, 10000),
}  # fmt: skip


@in_one("name", catalog.SETS)
def test_published_counts(name: str) -> None:
    entry = catalog.SETS[name]
    if name in PUBLISHED:
        assert tuple(count and count.images for count in entry.splits.values()) == PUBLISHED[name]
    for count in (*entry.splits.values(), entry.whole):
        if count is not None and count.classes is not None:
            assert len(count.classes) == len(entry.classes)
            assert sum(count.classes) == count.images
    if entry.whole is not None and None not in entry.splits.values():
        assert sum(count.images for count in entry.splits.values() if count) == entry.whole.images
    assert set(entry.optional) < set(entry.splits)


def test_addresses_are_plain_and_checked() -> None:
    with_files = {name for name, entry in catalog.SETS.items() if entry.files}
    assert with_files == {"mnist", "fashion-mnist", "usps", "svhn", "cifar10"}
    addresses = [file for entry in catalog.SETS.values() for file in entry.files]
    assert len({file.place for file in addresses}) == len({file.md5 for file in addresses}) == len(addresses)
    for file in addresses:
        assert file.url.startswith(("https://", "http://ufldl.stanford.edu/"))
        assert file.url.rsplit("/", 1)[1] == Path(file.place).name
        assert len(bytes.fromhex(file.md5)) == 16
    sizes = {name: sum(file.size for file in catalog.SETS[name].files if file.split != "extra") for name in with_files}
    assert {name: round(size / 1e6, 1) for name, size in sizes.items()} == {
        "mnist": 11.6, "fashion-mnist": 30.9, "usps": 8.4, "svhn": 246.3, "cifar10": 170.5,
    }  # fmt: skip
