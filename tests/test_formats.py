"""Files as the field has them: LEAF, MedMNIST, Keras, PFLlib, MATLAB, Parquet, Excel, and tables of images made on Windows."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import zipfile
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.io import savemat
from scipy.sparse import csc_matrix

import equipoise as eq
from equipoise import scenarios
from equipoise.data import pictures
from equipoise.data.contents import DataError
from equipoise.data.formats import table
from equipoise.data.formats.reading import read_user_data
from equipoise.data.formats.table import opened
from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.columns import Columns, UserData
from equipoise.system.errors import RunError
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

RNG = np.random.default_rng(0)


# LEAF
def leaf(path: Path, sizes: dict[str, int], seed: int = 0, **changes: Any) -> Path:
    """A JSON file of LEAF, with so many samples of each user."""
    rng = np.random.default_rng(seed)
    data = {}
    for user, n in sizes.items():
        y = (np.arange(n) % 2).tolist()
        data[user] = {"x": rng.normal(np.array(y)[:, None], 1, (n, 6)).round(3).tolist(), "y": y}
    content = {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data, **changes}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_leaf_with_parts(tmp_path: Path) -> None:
    leaf(tmp_path / "train/all_data_0.json", {"f01": 8, "f02": 6})
    leaf(tmp_path / "train/all_data_1.json", {"007": 4})
    leaf(tmp_path / "test/all_data_0.json", {"f01": 2, "f02": 2, "007": 2}, 1)
    leaf(tmp_path / "all_data/all_data.json", {"f01": 10, "f02": 8, "007": 6}, 2)  # from which the parts were drawn
    made = scenarios.load("own", 0, tmp_path)
    assert dict(zip(made.client_names, made.sizes, strict=True)) == {"007": 4, "f01": 8, "f02": 6}
    assert {name: len(data[1]) for name, data in made.tests.items()} == {"007": 2, "f01": 2, "f02": 2}  # type: ignore[index]
    assert made.manifest["layout"] == "users of LEAF, 3 files: numbers [6]"
    x = read_user_data(tmp_path).inputs
    given = json.loads((tmp_path / "train/all_data_0.json").read_text())["user_data"]["f02"]["x"]
    np.testing.assert_array_equal(np.asarray(x)[8:14], np.array(given, np.asarray(x).dtype))


@pytest.mark.parametrize("apart", ["sample", "user"])
def test_femnist_as_leaf_leaves_it(tmp_path: Path, apart: str) -> None:
    """Files of up to 100 writers, in ``data/train`` and ``data/test`` with the names of its script; images as 784 numbers."""
    writers = [f"f{k:04d}_{7 * k:02d}" for k in range(4)]
    rng, data = np.random.default_rng(0), tmp_path / "femnist/data"
    written = {}
    for part, of, n in (("train", writers[:3], 62), ("test", writers[:3] if apart == "sample" else writers[3:], 12)):
        images = {who: {"x": rng.random((n, 784)).round(3).tolist(), "y": list(range(n))} for who in of}
        for k, who in enumerate(of):  # a file each
            content = {"users": [who], "num_samples": [n], "user_data": {who: images[who]}}
            file = data / part / f"all_data_{k}_niid_0_keep_64_{part}_9.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content))
        written[part] = images
    (data / "all_data").mkdir()
    (data / "all_data/all_data_0.json").write_text('{"users": ["other"]}')  # is not read beside the parts
    for other in ("intermediate", "sampled_data", "rem_user_data"):
        (data / other).mkdir()
    for source in (tmp_path / "femnist", data):
        made = scenarios.load("own", 0, source)
        assert dict(zip(made.client_names, made.sizes, strict=True)) == dict.fromkeys(writers[:3], 62)
        assert {name: len(y) for name, (_, y) in made.tests.items()} == dict.fromkeys(written["test"], 12)  # type: ignore[misc]
        assert (made.n_classes, made.shape) == (62, (784,))
        classes = made.classes or ()
        assert [int(classes[k]) for k in made.clients[1][1]] == list(range(62))  # type: ignore[index]


@pytest.mark.parametrize("where", ["all_data", ".", "one file", "train", "data/all_data"])
def test_leaf_without_parts(tmp_path: Path, where: str) -> None:
    path = leaf(tmp_path / ("x.json" if where == "one file" else f"{where}/x.json"), {"a": 10, "b": 20})
    source = path if where == "one file" else path.parent if where == "train" else tmp_path
    own = read_user_data(source)
    assert (own.clients, own.split, len(own)) == (("a", "b"), None, 30)


def test_leaf_in_python_and_on_the_command_line(
    tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    leaf(tmp_path / "femnist/all_data/0.json", {"a": 10, "b": 20})
    assert eq.scenario("own", data="femnist").sizes == (8, 16)
    assert "users of LEAF" in equipoise("init", "--data", "femnist").out
    done = equipoise("run", "--config", "equipoise.toml", "--rounds", "1", "--no-report")
    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": ["a"]}, "b in user_data, but not in users"),
        ({"users": ["a", "b", "c"]}, "cannot be read as JSON of LEAF .*'c' is missing"),
        ({"num_samples": [4, 3]}, "user b: 4 samples and 4 labels, num_samples is 3"),
        ({"user_data": {"a": {"x": [[1, 2]], "y": [0]}, "b": {"x": [[1, 2], [1]], "y": [0, 1]}}, "num_samples": [1, 2]}, "different lengths"),
        ({"user_data": {"a": {"x": [[1, 2]], "y": [0]}, "b": {"x": [[1]], "y": [0]}}, "num_samples": [1, 1]}, r"\[2\] of user a and numbers \[1\] of user b"),
        ({"user_data": {"a": {"x": ["so it was"], "y": ["s"]}, "b": {"x": ["and"], "y": ["t"]}}, "num_samples": [1, 1]}, "2 problems:.*x holds text .*take numbers"),
        ({"user_data": {"a": {"x": [["id", "a tweet"]], "y": [0]}, "b": {"x": [[1, 2]], "y": [1]}}, "num_samples": [1, 1]}, "x holds text .'id'"),
        ({"user_data": {"a": {"x": [[1, 2]], "y": [[0, 1]]}, "b": {"x": [[1, 2]], "y": [1]}}, "num_samples": [1, 1]}, r"a label is \[0, 1\]"),
    ],
)  # fmt: skip
def test_leaf_that_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=f"(?s){said}"):
        read_user_data(leaf(tmp_path / "a.json", {"a": 4, "b": 4}, **changes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"users": ["a"', "cannot be read as JSON of LEAF"),
        ('{"users": ' + "[" * 5000 + "]" * 5000 + "}", "cannot be read as JSON of LEAF"),
        (
            '{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [1]}, "a": {"x": [[2]], "y": [0]}}}',
            "'a' is there twice",
        ),
        ('{"users": ["a"], "user_data": {"a": {"x": [[NaN]], "y": [1]}}}', "not a finite number"),
        ('{"images": [], "annotations": []}', "cannot be read as JSON of LEAF .*'users' is missing"),
    ],
)
def test_leaf_that_is_damaged(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=f"(?s){said}"):
        read_user_data(tmp_path / "a.json")


def test_a_user_in_two_files_is_refused_and_so_are_all_problems_at_once(tmp_path: Path) -> None:
    leaf(tmp_path / "1.json", {f"u{k}": 2 for k in range(14)})
    leaf(tmp_path / "2.json", {f"u{k}": 2 for k in range(14)})
    with pytest.raises(DataError, match=r"(?s)14 problems:\s\(1\) 2\.json, user u0: also in 1\.json.*And 4 more"):
        read_user_data(tmp_path)


def test_json_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = leaf(tmp_path / "a.json", {"a": 400, "b": 4})
    monkeypatch.setenv("EQUIPOISE_MEMORY", "100KiB")
    with pytest.raises(DataError, match=r"a\.json would take .* of memory"):
        read_user_data(path)


def test_a_stray_json_file_leaves_a_folder_one_of_images(tmp_path: Path) -> None:
    for k in range(8):
        path = tmp_path / "ab"[k // 4] / "xy"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    (tmp_path / "annotations.json").write_text('{"images": []}')
    assert len(read_user_data(tmp_path)) == 8


def pasted(text: str) -> str:
    """Run the line of an error as one would paste it, and give what it says is to be given with --data then."""
    line = text.split("\n\n")[1].strip()
    subprocess.run(line, shell=True, check=True, env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
    [new] = shlex.split(text.split("--data ")[1].split(":\n")[0])
    return new


# arrays by part
def medmnist(path: Path, shape: tuple[int, ...] = (8, 8, 3), labels: int = 1) -> Path:
    arrays: dict[str, Any] = {}
    for part, n in {"train": 20, "val": 6, "test": 8}.items():
        arrays[f"{part}_images"] = RNG.integers(0, 256, (n, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.stack([np.arange(n) % 3] * labels, 1).astype(np.uint8)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8)])
def test_medmnist(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = medmnist(tmp_path / "pathmnist.npz", shape)
    with pytest.raises(DataError, match="--set clients=8"):
        scenarios.load("own", 0, path)
    made = scenarios.load("own", 0, path, clients=2)
    assert (sum(made.sizes), made.shape, made.n_classes) == (20, (3 if len(shape) == 3 else 1, 8, 8), 3)
    assert [len(data[1]) for data in (*made.tests.values(), made.server_validation)] == [8, 6]  # type: ignore[index]
    with np.load(path) as given:
        own = read_user_data(path)
        expected = given["val_images"].transpose(0, 3, 1, 2) if len(shape) == 3 else given["val_images"][:, None]
        np.testing.assert_array_equal(np.asarray(own.inputs)[[k == "validation" for k in own.split or ()]], expected)


def test_medmnist_that_is_refused(tmp_path: Path) -> None:
    path = medmnist(tmp_path / "chestmnist.npz", (8, 8), 14)
    with pytest.raises(DataError, match=r"the labels are \[20, 14\], several for each sample") as error:
        read_user_data(path)
    pasted(str(error.value))
    assert len(read_user_data(tmp_path / "chestmnist-0.npz")) == 34
    with pytest.raises(DataError, match=r"holds bytes \[34, 8, 8, 8\]: images have 1 or 3 channels"):
        read_user_data(medmnist(tmp_path / "organmnist3d.npz", (8, 8, 8)))
    np.savez(
        tmp_path / "lone.npz",
        train_images=np.zeros((4, 8, 8)),
        train_labels=np.arange(4),
        test_images=np.zeros((4, 8, 8)),
    )
    with pytest.raises(DataError, match="test_images is there without its pair"):
        read_user_data(tmp_path / "lone.npz")
    y = np.arange(4)
    np.savez(
        tmp_path / "two.npz", x_train=np.zeros((4, 8, 8), np.uint8), y_train=y, x_test=np.zeros((4, 8, 8)), y_test=y
    )
    with pytest.raises(
        DataError, match=r"of one type and shape; found uint8 \[8, 8\] of train and float64 \[8, 8\] of test"
    ):
        read_user_data(tmp_path / "two.npz")


@pytest.mark.parametrize("names", [("x_{}", "y_{}"), ("X_{}", "Y_{}"), ("{}_x", "{}_y"), ("{}_data", "{}_labels")])
def test_arrays_by_part(tmp_path: Path, names: tuple[str, str]) -> None:
    arrays = {}
    for part, n in {"train": 12, "test": 4}.items():
        arrays |= {names[0].format(part): RNG.normal(size=(n, 3)), names[1].format(part): np.arange(n) % 2}
    np.savez(tmp_path / "mnist.npz", **arrays, extra=np.zeros(2))
    np.savez(tmp_path / "whole.npz", **arrays, x=np.zeros((6, 3)), y=np.arange(6) % 2)
    assert len(read_user_data(tmp_path / "whole.npz")) == 6
    own = read_user_data(tmp_path / "mnist.npz")
    assert (own.split or ()).count("train") == 12
    assert any("extra is not used" in note for note in own.notes)


# a file per client
def pfllib(top: Path, pickled: bool = True) -> Path:
    """PFLlib's files: a pickled dictionary in an array of one element."""
    for part, n in {"train": 12, "test": 4}.items():
        (top / part).mkdir(parents=True)
        for client in range(3):
            y = np.arange(n) % 2
            told = {"x": RNG.normal(y[:, None], 1, (n, 5)).astype(np.float32), "y": y}
            path = top / part / f"{client}.npz"
            if pickled:
                np.savez_compressed(path, data=np.array(told, dtype=object))
            else:
                np.savez(path, **told)
    return top


@pytest.mark.parametrize("name", ["Cifar10", "my 'own' \"data\" $x"])
def test_pfllib_is_refused_with_a_line_that_works(tmp_path: Path, name: str) -> None:
    top = pfllib(tmp_path / name)
    with pytest.raises(DataError, match="holds Python objects, as PFLlib saves them") as error:
        read_user_data(top)
    new = pasted(str(error.value))
    made = scenarios.load("own", 0, new)
    assert (made.client_names, made.sizes) == (("0", "1", "2"), (12, 12, 12))
    assert [len(data[1]) for data in made.tests.values()] == [4, 4, 4]  # type: ignore[index]


def test_a_file_per_client(tmp_path: Path) -> None:
    made = scenarios.load("own", 0, pfllib(tmp_path, pickled=False))
    assert (made.client_names, made.sizes) == (("0", "1", "2"), (12, 12, 12))
    assert made.manifest["layout"] == "a file per client and part: numbers [5]"
    pfllib(tmp_path / "other", pickled=False)
    for path in (tmp_path / "other/test").iterdir():
        path.unlink()
    assert scenarios.load("own", 0, tmp_path / "other").sizes == (10, 10, 10)
    np.savez(tmp_path / "train/1.npz", x=np.zeros((3, 4)), y=np.zeros(3))
    np.savez(tmp_path / "train/2.npz", x=np.zeros((3, 5)))
    np.savez(tmp_path / "test/2.npz", x=np.zeros((3, 5)), y=np.zeros(2))
    with pytest.raises(
        DataError,
        match=r"3 problems:\s\(1\) train/2\.npz holds x, expected x and y\.\s\(2\) test/2\.npz: x is \[3, 5\] and y \[2\]",
    ):
        read_user_data(tmp_path)


def test_channels_last_are_put_first(tmp_path: Path) -> None:
    x = RNG.integers(0, 4096, (24, 9, 8, 3)).astype(np.uint16)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(24) % 2, client=np.arange(24) // 12)
    made = scenarios.load("own", 0, tmp_path / "a.npz")
    assert (made.shape, len(made.manifest["standardised"]["mean"])) == ((3, 9, 8), 3)
    assert any("taken as images with the channels last" in note for note in made.manifest["notes"])
    np.testing.assert_array_equal(np.asarray(read_user_data(tmp_path / "a.npz").inputs), x.transpose(0, 3, 1, 2))


def test_the_scale_of_float_arrays_does_not_matter(tmp_path: Path) -> None:
    x = RNG.integers(0, 4096, (24, 3, 6, 6))
    made = []
    for k, stored in enumerate((x.astype(np.uint16), x / 4095, x.astype(np.float32) - 1000, (255 * x / 4095))):
        np.savez(tmp_path / f"{k}.npz", x=stored, y=np.arange(24) % 2, client=np.arange(24) // 12)
        made.append(np.asarray(scenarios.load("own", 0, tmp_path / f"{k}.npz").clients[0][0]))  # type: ignore[index]
    for other in made[1:]:
        np.testing.assert_allclose(other, made[0], atol=1e-4)
    assert len(np.unique(made[0])) > 0.9 * len(np.unique(x[:12]))


def test_bytes_of_one_client_and_shares_of_another_are_not_put_together(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ny = np.arange(6) % 2\n"
        "def clients():\n    return {'a': (np.zeros((6, 1, 8, 8), np.uint8), y), 'b': (np.zeros((6, 1, 8, 8)), y)}\n"
    )
    with pytest.raises(
        DataError, match=r"of one type and shape; found uint8 \[1, 8, 8\] of a and numbers \[1, 8, 8\] of b"
    ):
        read_user_data(f"{tmp_path / 'mine.py'}:clients")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.pt", "could run code. Save arrays"),
        ("x.npy", r"np\.savez\('data\.npz', x=x, y=y\)"),
        ("t.xls", r"as \.xlsx or CSV"),
        ("t.zip", "Unpack it"),
        ("t.txt", r"\.json of LEAF; text may be packed\.$"),
    ],
)
def test_files_that_are_not_read_say_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError, match=f"(?s){said}"):
        read_user_data(tmp_path / name)


# MATLAB
@pytest.mark.parametrize(
    ("x", "shape", "note"),
    [
        (RNG.normal(size=(24, 5)), (5,), ""),
        (RNG.normal(size=(5, 24)), (5,), "has the samples last"),
        (RNG.integers(0, 256, (8, 9, 3, 24), dtype=np.uint8), (3, 8, 9), "has the samples last"),
        (RNG.integers(0, 256, (8, 9, 24), dtype=np.uint8), (1, 8, 9), "has the samples last"),
        (RNG.integers(0, 256, (24, 8, 9), dtype=np.uint8), (1, 8, 9), ""),
        (RNG.normal(size=(24, 24)), (24,), "as many rows as columns; rows are samples"),
    ],
)
def test_matlab(tmp_path: Path, x: np.ndarray[Any, Any], shape: tuple[int, ...], note: str) -> None:
    y, client = np.arange(24) % 2 + 1.0, np.array(["north", "south"] * 12, dtype=object)
    savemat(tmp_path / "a.mat", {"X": x, "y": y[:, None], "client": client[:, None], "info": {"by": "me"}})
    own = read_user_data(tmp_path / "a.mat")
    assert (own.classes, own.clients) == (("1", "2"), ("north", "south"))
    assert np.asarray(own.inputs).shape == (24, *shape)
    assert any(note in said for said in own.notes) or not note
    assert "a.mat: info is not used." in own.notes
    last = x.shape[-1] == 24 != x.shape[0]
    first = np.asarray(x[..., 0] if last else x[0])
    found = np.asarray(own.inputs)[0]
    expected = first.transpose(2, 0, 1) if first.ndim == 3 else first
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-6)
    assert scenarios.load("own", 0, tmp_path / "a.mat").client_names == ("north", "south")


def test_matlab_with_other_names(tmp_path: Path) -> None:
    savemat(tmp_path / "faces.mat", {"fea": RNG.normal(size=(24, 5)), "gnd": np.arange(24) % 3})
    with pytest.raises(DataError, match=r"holds fea, gnd\. .*--set image=NAME --set label=NAME"):
        read_user_data(tmp_path / "faces.mat")
    assert len(scenarios.load("own", 0, tmp_path / "faces.mat", image="fea", label="gnd", clients=2).clients) == 2


def test_matlab_that_is_refused(tmp_path: Path) -> None:
    y = np.arange(24) % 2
    savemat(tmp_path / "sparse.mat", {"x": csc_matrix(RNG.normal(size=(24, 5))), "y": y})
    with pytest.raises(DataError, match=r"x is neither an array of numbers .* x = full\(x\)"):
        read_user_data(tmp_path / "sparse.mat")
    savemat(tmp_path / "cells.mat", {"x": RNG.normal(size=(24, 5)), "y": y, "client": {"a": 1}})
    with pytest.raises(DataError, match=r"client is neither .* client = cellstr\(client\)"):
        read_user_data(tmp_path / "cells.mat")
    (tmp_path / "new.mat").write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF\r\n\x1a\n")
    with pytest.raises(DataError, match=r"version 7\.3, .*load\('new\.mat'\); save\('new-v7\.mat', '-v7'\)"):
        read_user_data(tmp_path / "new.mat")
    savemat(tmp_path / "a.mat", {"x": RNG.normal(size=(24, 50)), "y": np.arange(24) % 2})
    whole = (tmp_path / "a.mat").read_bytes()
    for k, content in enumerate((whole[: len(whole) // 2], b"none", b"")):
        (tmp_path / f"{k}.mat").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read as a MATLAB file|no array|holds"):
            read_user_data(tmp_path / f"{k}.mat")


def test_matlab_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savemat(tmp_path / "a.mat", {"x": np.zeros((1000, 100)), "y": np.arange(1000) % 2}, do_compression=True)
    monkeypatch.setenv("EQUIPOISE_MEMORY", "400KiB")
    with pytest.raises(DataError, match=r"a\.mat would take .* of memory"):
        read_user_data(tmp_path / "a.mat")


@pytest.mark.parametrize("packed", [False, True])
def test_so_are_cells_that_hold_more_than_they_say(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.empty(4, object)
    y[:] = ["a", "b", "a", "b" * 300_000]
    savemat(tmp_path / "a.mat", {"x": np.arange(8.0).reshape(4, 2), "y": y}, do_compression=packed)
    assert len(read_user_data(tmp_path / "a.mat")) == 4
    monkeypatch.setenv("EQUIPOISE_MEMORY", "400KiB")
    if packed:
        with pytest.raises(DataError, match=r"a\.mat would take .* of memory"):
            read_user_data(tmp_path / "a.mat")


@pytest.mark.parametrize("kind", ["user", "label"])
def test_one_long_name_does_not_make_all_others_as_long(kind: str, tmp_path: Path) -> None:
    path = leaf(tmp_path / "a.json", {"a" * 10**6 if kind == "user" else "a": 4000})
    if kind == "label":
        content = json.loads(path.read_text())
        content["user_data"]["a"]["y"][0] = "b" * 10**6
        path.write_text(json.dumps(content))
    assert len(read_user_data(path)) == 4000  # of four bytes a sign these would be 16 GB


def test_text_among_numbers_is_found_before_they_are_an_array(tmp_path: Path) -> None:
    path = leaf(tmp_path / "a.json", {"a": 4000})
    content = json.loads(path.read_text())
    content["user_data"]["a"]["x"][-1] = ["b" * 10**6]
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="x holds text"):
        read_user_data(path)


def test_arrays_of_nothing_are_not_without_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.empty(10_000, "V0")
    np.savez(tmp_path / "a.npz", train_images=np.zeros((4, 2)), train_labels=y)
    monkeypatch.setenv("EQUIPOISE_MEMORY", "1MiB")
    with pytest.raises(DataError, match=r"train_labels would take 1\.2 MiB of memory"):
        read_user_data(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("row", "cell", "fault"), [(2000, "A2000", "has a row below 1,000"), (40, "ZZ40", "would take")]
)
def test_cells_far_away_do_not_fill_the_memory(
    row: int, cell: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openpyxl import Workbook

    book = Workbook()
    book.active["A1"], book.active["B1"] = "x", "label"
    for k in range(2, 30):
        book.active[f"A{k}"], book.active[f"B{k}"] = k % 5, "ab"[k % 2]
    book.active[cell] = 1
    book.save(tmp_path / "t.xlsx")
    monkeypatch.setattr(table, "LAST", 1000)
    monkeypatch.setenv("EQUIPOISE_MEMORY", "300KiB")
    with pytest.raises(DataError, match=fault):
        opened(tmp_path / "t.xlsx", Columns())


@pytest.mark.parametrize("kind", ["list", "struct", "fixed", "view"])
def test_repeated_cells_of_any_type_are_counted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    word = "a" * 1000
    cells = {
        "list": pa.array([[word]] * 400),
        "struct": pa.array([{"a": word}] * 400),
        "fixed": pa.array([word.encode()] * 400, pa.binary(1000)),
        "view": pa.array([word] * 400, pa.string_view()),
    }
    pq.write_table(pa.table({"label": ["a", "b"] * 200, "z": cells[kind]}), tmp_path / "t.parquet")
    monkeypatch.setenv("EQUIPOISE_MEMORY", "100KiB")
    with pytest.raises(DataError, match="column z would take"):
        opened(tmp_path / "t.parquet", Columns())


def test_a_header_of_many_columns_is_refused_before_they_have_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.csv").write_text("x,label" + "," * 100_000 + "\n")
    monkeypatch.setenv("EQUIPOISE_MEMORY", "64MiB")
    with pytest.raises(DataError, match="would take"):
        opened(tmp_path / "t.csv", Columns())


def test_a_pipe_in_a_folder_of_data_is_not_waited_for(tmp_path: Path) -> None:
    for name, read in (
        ("leaf/a.json", lambda path: read_user_data(path.parent)),
        ("pfllib/train/a.npz", lambda path: read_user_data(path.parents[1])),
        ("images/0.png", pictures.stored),
        ("arrays/0.npy", pictures.stored),
    ):
        (path := tmp_path / name).parent.mkdir(parents=True)
        os.mkfifo(path)
        with pytest.raises(RunError, match="is a pipe or a device"):
            read(path)


# tables of images, made on Windows
def windows(top: Path, rows: list[str], head: str = "path,label,client") -> Path:
    """A table of images with the line ends and the mark of Windows, and images north/Cat/0.png to 11.png beside it."""
    for k in range(12):
        path = top / ("north" if k < 6 else "south") / "Cat" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    (top / "t.csv").write_bytes(b"\xef\xbb\xbf" + "".join(f"{row}\r\n" for row in [head, *rows]).encode())
    return top / "t.csv"


def rows_of(form: str) -> list[str]:
    return [
        f"{form.format(site='north' if k < 6 else 'south', k=k)},{'xy'[k % 2]},{'north' if k < 6 else 'south'}"
        for k in range(12)
    ]


@pytest.mark.parametrize(
    ("form", "note"),
    [
        ("{site}/Cat/{k}.png", ""),
        ("{site}\\Cat\\{k}.png", r"\ in paths is read as /"),
        (".\\{site}\\Cat\\{k}.png", r"\ in paths is read as /"),
        ("{site}\\cat\\{k}.PNG", "although capital letters or accents differ and in 11 more"),
        ('"{site}\\Cat\\{k}.png"', r"\ in paths is read as /"),
    ],
)
def test_tables_of_images_made_on_windows(tmp_path: Path, form: str, note: str) -> None:
    own = read_user_data(windows(tmp_path, rows_of(form)))
    assert (len(own), own.clients, own.classes) == (12, ("north", "south"), ("x", "y"))
    assert any(note in said for said in own.notes) or not note
    made = scenarios.load("own", 0, tmp_path / "t.csv", size=8)
    assert sum(made.sizes) + sum(len(data[1]) for data in made.tests.values()) == 12  # type: ignore[index]


def test_accents_in_either_form(tmp_path: Path) -> None:
    windows(tmp_path, [])
    for k in range(8):
        Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / f"Mu\u0308ller{k}.png")
    (tmp_path / "t.csv").write_text(
        "path,label,client\n" + "".join(f"M\u00fcller{k}.png,{k % 2},{k // 4}\n" for k in range(8)), "utf-8"
    )
    assert len(read_user_data(tmp_path / "t.csv")) == 8


def test_files_of_systems_are_left_out(tmp_path: Path) -> None:
    more = [
        "north\\Thumbs.db,x,north",
        "south\\.DS_Store,y,south",
        "__MACOSX\\north\\._1.png,x,north",
        "north\\desktop.ini,?,north",
    ]
    own = read_user_data(windows(tmp_path, rows_of("{site}\\Cat\\{k}.png") + more[:3]))
    assert len(own) == 12
    assert any(
        "3 rows name files of operating systems, which are left out: north\\Thumbs.db" in note for note in own.notes
    )
    for name in ("Thumbs.db", ".DS_Store", "desktop.ini", "._1.png", "__MACOSX/._2.png"):
        (tmp_path / "my/a/x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "my/a/x" / name).write_bytes(b"x")
    for k in range(8):
        path = tmp_path / "my" / "ab"[k // 4] / "xy"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    own = read_user_data(tmp_path / "my")
    assert len(own) == 8
    assert any("5 files of operating systems are left out" in note and "Thumbs.db" in note for note in own.notes)


def test_images_that_are_not_there_are_named_at_once(tmp_path: Path) -> None:
    path = windows(tmp_path, rows_of("{site}\\Dog\\{k}.png"))
    with pytest.raises(DataError, match=r"no image for 12 of 12 rows: .*line 2.* \(north\\Dog\\0\.png\).* and 2 more"):
        read_user_data(path)
    path = windows(tmp_path, rows_of("C:\\study\\{site}\\Cat\\{k}.png"))
    with pytest.raises(DataError, match=r"Remove C:\\study\\ at the beginning of each path: the rest is here"):
        read_user_data(path)
    path = windows(tmp_path, rows_of("\\\\server\\share\\{k}.png"))
    with pytest.raises(DataError, match="is a path of another machine"):
        read_user_data(path)
    with pytest.raises(DataError, match="no image for 1 of 1 rows"):
        read_user_data(windows(tmp_path, ["x" * 300 + ".png,x,a"]))
    if not (tmp_path / "NORTH").exists():  # a system on which capital letters count
        (tmp_path / "north/Cat/a.png").write_bytes(b"x")
        (tmp_path / "north/Cat/A.png").write_bytes(b"y")
        with pytest.raises(DataError, match="no image for 1 of 13 rows"):
            read_user_data(windows(tmp_path, [*rows_of("{site}\\Cat\\{k}.png"), "north\\cat\\A.PNG,x,north"]))


def test_parquet_with_images_in_it(tmp_path: Path) -> None:
    """As data sets of the Hub are kept."""

    def cell(k: int, **options: Any) -> dict[str, Any]:
        file = io.BytesIO()
        Image.fromarray((RNG.integers(0, 200, (8, 8)) + 3000 * (k % 2)).astype(np.uint16)).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": f"{k}.png", **options}

    frame = pd.DataFrame(
        {
            "image": [cell(k) for k in range(12)],
            "label": [k % 2 for k in range(12)],
            "client": ["ab"[k // 6] for k in range(12)],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    made = scenarios.load("own", 0, tmp_path / "a.parquet", size=8)
    assert (made.shape, made.manifest["layout"], sum(made.sizes)) == ((3, 8, 8), "a table of images", 10)
    assert made.manifest["read"]["range"][1] > 3000
    for x, y in made.clients:
        assert ((np.asarray(x).mean((1, 2, 3)) > 100) == (np.asarray(y) == 1)).all()
    frame.rename(columns={"image": "scan"}).to_parquet(tmp_path / "b.parquet")
    assert len(read_user_data(tmp_path / "b.parquet", Columns(image="scan"))) == 12
    frame.loc[3, "image"]["bytes"] = None
    frame.to_parquet(tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet, row 4: this image cannot be decoded \(it is missing\)"):
        read_user_data(tmp_path / "c.parquet")


# MATLAB: a class is what MATLAB says, whatever type the file stores
def matlab(path: Path, **variables: tuple[str, np.ndarray[Any, Any]]) -> Path:
    """A file of variables of class double, each stored in a smaller type, as MATLAB stores whole numbers."""
    kinds = {"u1": 2, "i1": 1, "u2": 4, "i2": 3, "i4": 5}

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)

    parts = [b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"]
    for name, (stored, x) in variables.items():
        shape = x.shape if x.ndim > 1 else (len(x), 1)
        body = element(6, struct.pack("<II", 6, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
        body += element(1, name.encode()) + element(kinds[stored], x.astype(f"<{stored}").tobytes(order="F"))
        parts.append(element(14, body))
    path.write_bytes(b"".join(parts))
    return path


@pytest.mark.parametrize("stored", ["u1", "i1", "u2", "i2", "i4"])
@pytest.mark.parametrize("shape", [(24, 6, 5), (24, 6, 5, 3), (24, 7)])
def test_doubles_of_matlab_are_numbers_however_they_are_stored(
    tmp_path: Path, stored: str, shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).integers(0, 100, shape)
    y, client = np.arange(24) % 2, np.arange(24) // 2 % 2
    own = read_user_data(matlab(tmp_path / "a.mat", x=(stored, x), y=("u1", y), client=("u1", client)))
    np.savez(tmp_path / "a.npz", x=x.astype(float), y=y, client=client)
    same = read_user_data(tmp_path / "a.npz")
    assert own.layout == same.layout
    np.testing.assert_array_equal(np.asarray(own.inputs), np.asarray(same.inputs))
    assert (own.label, own.client) == (same.label, same.client)


@pytest.mark.parametrize("shape", [(24, 6, 5), (24, 6, 5, 3), (24, 7)])
def test_truth_values_of_matlab_are_those_of_numpy(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {"x": RNG.random(shape) > 0.5, "y": np.arange(24) % 3 > 0, "client": np.arange(24) // 2 % 2}
    savemat(tmp_path / "a.mat", arrays)
    np.savez(tmp_path / "a.npz", **arrays)
    own, same = (read_user_data(tmp_path / name) for name in ("a.mat", "a.npz"))
    assert (own.layout, own.label) == (same.layout, same.label)
    np.testing.assert_array_equal(np.asarray(own.inputs), np.asarray(same.inputs))


# views of arrays
def of_function(tmp_path: Path, code: str) -> UserData:
    (tmp_path / "mine.py").write_text(
        f"import numpy as np\nrng = np.random.default_rng(0)\ndef clients():\n    {code}\n"
    )
    return read_user_data(f"{tmp_path / 'mine.py'}:clients")


@pytest.mark.parametrize("turn", ["[::-1]", "[:, ::-1]", "[::-2]"])
def test_turned_arrays_of_a_function_are_copied(tmp_path: Path, turn: str) -> None:
    x = f"rng.integers(0, 255, (40, 8, 8), dtype=np.uint8){turn}"
    own = of_function(
        tmp_path, f"x = {x}; n = len(x); return {{'x': x, 'y': np.arange(n)[::-1] % 2, 'client': np.arange(n) % 2}}"
    )
    assert np.asarray(own.inputs).flags.c_contiguous
    expected = eval(x, {"np": np, "rng": np.random.default_rng(0)})
    np.testing.assert_array_equal(np.asarray(own.inputs)[:, 0], expected)


# Parquet and Excel: one table of types
def typed(tmp_path: Path, kind: str, frame: pd.DataFrame) -> Path:
    """The same table as a file of a kind."""
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path, index=False)
    else:
        pytest.importorskip("openpyxl")
        frame.to_excel(path, index=False)
    return path


def people(n: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.permutation(n) + 20,
            "dose": np.where(np.arange(n) % 7, rng.normal(size=n).round(3), np.nan),
            "smokes": rng.random(n) > 0.5,
            "ward": rng.choice(["east", "west", "north"], n),
            "code": ["007", "08"] * (n // 2),
            "label": np.arange(n) % 3 > 0,
            "client": ["x", "y"] * (n // 2),
            "sex": rng.random(n) > 0.5,
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "xlsx"])
def test_a_typed_table_means_what_the_same_csv_means(tmp_path: Path, kind: str) -> None:
    columns = Columns(group="sex", schema=json.dumps({"smokes": {"kind": "category"}}))
    own, same = (read_user_data(typed(tmp_path, name, people()), columns) for name in (kind, "csv"))
    assert (own.label, own.classes) == (same.label, ("False", "True"))
    assert (own.client, own.attributes, own.features) == (same.client, same.attributes, same.features)
    assert isinstance(own.inputs, RawTable)
    assert isinstance(same.inputs, RawTable)
    for name, cells in same.inputs.columns.items():
        np.testing.assert_array_equal(own.inputs.columns[name].values, cells.values)
        assert own.inputs.columns[name].words == cells.words
    assert own.inputs.columns["smokes"].words == ("False", "True")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (pd.to_datetime(["2024-01-03", None, "2024-01-05"]), ["2024-01-03", "NaT", "2024-01-05"]),
        (pd.to_datetime(["2024-01-03 06:00:00.000005", None, "2024-01-05"], format="ISO8601"), ["2024-01-03T06:00:00.000005", "NaT", "2024-01-05"]),
        (pd.to_datetime(["2024-01-03 01:00", "2024-07-03 02:00"]).tz_localize("Europe/Berlin"), ["2024-01-03", "2024-07-03"]),
        ([date(1969, 7, 20), None, date(9999, 12, 31)], ["1969-07-20", "NaT", "9999-12-31"]),
        (pd.Categorical([datetime(2024, 1, 3), datetime(2024, 1, 4)]), ["2024-01-03", "2024-01-04"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["parquet", "xlsx"])
def test_typed_dates_are_no_text(tmp_path: Path, cells: Any, expected: list[str], kind: str) -> None:
    frame = pd.DataFrame({"seen": cells})
    if kind == "xlsx":
        column = (
            frame["seen"]
            .astype(object)
            .map(lambda cell: cell.tz_convert(None) if getattr(cell, "tzinfo", None) else cell)
        )
        frame = pd.DataFrame({"seen": column})
    seen = opened(typed(tmp_path, kind, frame.assign(a=1)), Columns()).columns(["seen"])["seen"]
    assert isinstance(seen, np.ndarray)
    assert seen.dtype.kind == "M"
    assert seen.astype("datetime64[ms]").tolist() == np.array(expected, "datetime64[ms]").tolist()


@pytest.mark.parametrize("kind", ["binary", "large_binary", "dictionary"])
def test_bytes_of_parquet_are_text_in_every_column(tmp_path: Path, kind: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    frame, path = people(), tmp_path / "t.parquet"

    def blob(words: Any) -> Any:
        cells = [str(word).encode() for word in words]
        return (
            pa.array(cells, pa.binary()).dictionary_encode()
            if kind == "dictionary"
            else pa.array(cells, getattr(pa, kind)())
        )

    table = {
        name: blob(frame[name]) if name in ("ward", "label", "client") else pa.array(frame[name]) for name in frame
    }
    pq.write_table(pa.table(table), path)
    own = read_user_data(path)
    assert isinstance(own.inputs, RawTable)
    assert own.inputs.columns["ward"].words == ("east", "north", "west")
    assert (own.classes, own.clients) == (("False", "True"), ("x", "y"))
    table["ward"] = pa.array([b"\xff\xfe"] * len(frame), pa.binary())
    pq.write_table(pa.table(table), path)
    with pytest.raises(DataError, match=r"t\.parquet, column ward: its cells are bytes, .*--set leave_out=ward"):
        read_user_data(path)
    assert "ward" not in read_user_data(path, Columns(leave_out=("ward",))).features


@pytest.mark.parametrize("name", ["age", "ward", "dose"])
def test_an_index_of_parquet_with_the_name_of_a_column(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    frame = people()
    frame.set_index(name, drop=False).to_parquet(tmp_path / "same.parquet")
    frame.to_parquet(tmp_path / "t.parquet")
    own, same = (read_user_data(tmp_path / file) for file in ("same.parquet", "t.parquet"))
    assert own.features == same.features
    other = frame.set_index(name, drop=False)
    other[name] = other[name].to_numpy()[::-1]
    other.to_parquet(tmp_path / "other.parquet")
    with pytest.raises(
        DataError, match=rf"other\.parquet: the index and a column are both called '{name}', and differ"
    ):
        read_user_data(tmp_path / "other.parquet")


def workbook(path: Path, **sheets: list[list[Any]]) -> Path:
    """An Excel file of these cells."""
    book = pytest.importorskip("openpyxl").Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


HEAD, BODY = ["v", "label", "client"], [[k * 7 % 23, "ab"[k % 2], "xy"[k // 2 % 2]] for k in range(20)]


def test_excel_with_empty_rows_columns_and_sheets(tmp_path: Path) -> None:
    rows = [[], [], [None, *HEAD], [], *([None, *row] for row in BODY[:9]), [""], *([None, *row] for row in BODY[9:])]
    path = workbook(tmp_path / "t.xlsx", Notes=[], Data=rows, Sheet3=[[""]])
    own = read_user_data(path)
    assert (own.features, len(own), own.clients) == (("v",), 20, ("x", "y"))
    rows[5][2] = None
    with pytest.raises(DataError, match=r"column label: the label is missing in 1 of 20 samples: row 6\."):
        read_user_data(workbook(path, Data=rows))
    with pytest.raises(
        DataError, match=r"several sheets with content \(Data, Codes\)\. Save the one that counts as a file of its own"
    ):
        read_user_data(workbook(path, Data=rows, Codes=[["x", "north"]]))
    with pytest.raises(DataError, match="has no cell with content"):
        read_user_data(workbook(path, Data=[]))
    with pytest.raises(DataError, match=r"t\.xlsx holds no sample"):
        read_user_data(workbook(path, Data=[HEAD]))


def test_excel_errors_are_missing_and_words_stay(tmp_path: Path) -> None:
    rows = [[*row, 0.5 + k, "one" if k % 2 else "NA"] for k, row in enumerate(BODY)]
    for k, error in enumerate(("#N/A", "#DIV/0!", "#VALUE!")):
        rows[k][3] = error
    path = workbook(tmp_path / "t.xlsx", Data=[[*HEAD, "dose", "word"], *rows])
    dose = opened(path, Columns()).columns(["dose", "word"])["dose"]
    assert isinstance(dose, np.ndarray)
    assert np.isnan(dose).tolist() == [True] * 3 + [False] * 17
    own = read_user_data(path, Columns(not_missing=("NA",)))
    assert isinstance(own.inputs, RawTable)
    assert own.inputs.columns["word"].words == ("NA", "one")


def test_excel_formulas_have_their_stored_result(tmp_path: Path) -> None:
    rows = [[*row, f"=A{k + 2}*2"] for k, row in enumerate(BODY)]
    path = workbook(tmp_path / "t.xlsx", Data=[[*HEAD, "twice"], *rows])
    with pytest.raises(DataError, match=r"formulas without a stored result\. Open and save it in Excel or LibreOffice"):
        read_user_data(path)
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    numbers = iter([row[0] * 2 for row in BODY])
    parts[sheet] = re.sub(rb"</f><v ?/?>(</v>)?", lambda _: b"</f><v>%d</v>" % next(numbers), parts[sheet])
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    twice = opened(path, Columns()).columns(["twice"])["twice"]
    assert np.asarray(twice).tolist() == [row[0] * 2 for row in BODY]


def test_excel_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = workbook(tmp_path / "t.xlsx", Data=[HEAD, *BODY])
    with pytest.raises(DataError, match=r"t\.xlsx: decimal is an option of a table that is text"):
        read_user_data(path, Columns(decimal=","))
    monkeypatch.setenv("EQUIPOISE_MEMORY", "1KiB")
    with pytest.raises(DataError, match=r"t\.xlsx would take"):
        read_user_data(path)
    monkeypatch.delenv("EQUIPOISE_MEMORY")
    for content in (path.read_bytes()[:200], b"PK", b""):
        (tmp_path / "b.xlsx").write_bytes(content)
        with pytest.raises(DataError, match=r"b\.xlsx cannot be read as an Excel file"):
            read_user_data(tmp_path / "b.xlsx")
    with pytest.raises(DataError, match=r"two columns are called 'v'"):
        read_user_data(workbook(path, Data=[["v", " v ", "label"], *BODY]))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"Excel files need the package openpyxl: pip install 'equipoise\[excel\]'"):
        read_user_data(path)
