"""A user's own data: what is read from folders, tables, arrays and the Hub, how it is divided, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

from equipoise import scenarios
from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.memory_mapped import Mapped, labels
from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.columns import Columns, UserData, ordered
from equipoise.scenarios import own as own_scenario
from equipoise.scenarios.own import divided
from run_helpers import cache, complaints, equipoise

__all__ = ["cache", "equipoise"]


# what a user may have
def picture(path: Path, value: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = Image.new(mode, size, value if mode == "L" else (value, value, value))
    shown.paste((value + 30) if mode == "L" else (value + 30,) * 3, (0, 0, size[0], size[1] // 2))
    shown.save(path)
    return path


def folders(top: Path, names: Iterable[str], each: int = 5) -> Path:
    """Folders with images in them; those of cats are dark and those of dogs bright."""
    for name in names:
        for k in range(each):
            picture(top / name / f"{k}.png", (40 if name.endswith("cat") else 180) + k)
    return top


def plain(top: Path, each: int = 5) -> Path:
    return folders(top, [f"{client}/{kind}" for client in ("north", "south") for kind in ("cat", "dog")], each)


def table(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


HEADER = ("age", "pulse", "label", "client", "sex")


def people(n: int = 40) -> list[tuple[object, ...]]:
    draw = np.random.default_rng(0)
    rows = []
    for k in range(n):
        age = int(draw.integers(20, 80))
        rows.append(
            (age, round(float(draw.normal(70, 9)), 1), "sick" if age > 50 else "well", "ab"[k % 2], "fm"[k // 2 % 2])
        )
    return rows


def arrays(path: Path, **more: Any) -> Path:
    x = np.random.default_rng(1).normal(3.0, 2.0, (24, 4))
    told = {"x": x, "y": (x[:, 0] > 3).astype(int), "client": np.arange(24) % 3} | more
    np.savez(path, **{name: value for name, value in told.items() if value is not None})
    return path


def rows_of(parts: Iterable[Sequence[int]]) -> list[int]:
    return sorted(row for part in parts for row in part)


# folders
def test_folders_per_client(tmp_path: Path) -> None:
    top = plain(tmp_path)
    (top / "north" / "cat" / ".DS_Store").write_bytes(b"x")
    (top / "Thumbs.db").write_bytes(b"x")
    found = read_user_data(top)
    assert found.clients == ("north", "south")
    assert found.classes == ("cat", "dog")
    assert len(found) == 20
    assert found.split is found.group is None
    assert found.notes == ("2 files of operating systems are left out: Thumbs.db, north/cat/.DS_Store.",)
    assert dict(zip(found.names, found.label, strict=True))["south/dog/3.png"] == "dog"
    assert found.about["files"] == 20


def test_images_are_read_once_and_right(tmp_path: Path) -> None:
    made = scenarios.load("own", 0, plain(tmp_path), size=12)
    assert made.client_names == made.client_groups == ("north", "south")
    assert made.sizes == (8, 8)
    assert {name: len(labels(data)) for name, data in made.tests.items()} == {"north": 2, "south": 2}
    assert (made.shape, made.n_classes, made.network, made.measures) == ((3, 12, 12), 2, "cnn", ("accuracy",))
    for x, y in [*made.clients, *made.tests.values()]:
        assert x.dtype == torch.uint8
        assert ((x.float().mean((1, 2, 3)) > 100) == (y == 1)).all()  # cats are dark
    assert made.manifest["classes"] == ["cat", "dog"]
    assert made.manifest["notes"] == [
        "20% of each client's samples were drawn for testing, as evenly over the classes as possible."
    ]
    train, test = made.manifest["clients"], made.manifest["tests"]
    assert rows_of([*train.values(), *test.values()]) == list(range(20))


def test_many_images_stay_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scenarios.load("own", 0, plain(tmp_path), size=8)
    monkeypatch.setattr(own_scenario, "IN_MEMORY", 100)
    mapped = scenarios.load("own", 0, tmp_path, size=8)
    assert all(isinstance(data, Mapped) for data in (*mapped.clients, *mapped.tests.values()))
    for one, other in zip(mapped.clients, whole.clients, strict=True):
        assert isinstance(one, Mapped)
        assert isinstance(other, tuple)
        batch = one.gather(range(len(one)))
        assert torch.equal(batch.x, other[0])
        assert torch.equal(batch.y, other[1])
    assert mapped.manifest == whole.manifest


@pytest.mark.parametrize(
    ("names", "split", "clients"),
    [
        (
            [f"{s}/{c}/{k}" for s in ("train", "test") for c in "ab" for k in ("cat", "dog")],
            {"train": 20, "test": 20},
            ("a", "b"),
        ),
        (
            [f"{c}/{s}/{k}" for s in ("Train", "VAL") for c in "ab" for k in ("cat", "dog")],
            {"train": 20, "validation": 20},
            ("a", "b"),
        ),
        (
            [*(f"train/{c}/{k}" for c in "ab" for k in ("cat", "dog")), "test/cat", "test/dog"],
            {"train": 20, "test": 10},
            ("a", "b"),
        ),
        (["training/cat", "training/dog", "testing/dog"], {"train": 10, "test": 5}, ()),
        (["a/train", "a/bus", "b/train", "b/bus"], None, ("a", "b")),  # a class may be called train
    ],
)
def test_parts_in_folders(
    tmp_path: Path, names: list[str], split: dict[str, int] | None, clients: tuple[str, ...]
) -> None:
    found = read_user_data(folders(tmp_path, names))
    assert found.clients == clients
    assert (
        split is None if found.split is None else {part: found.split.count(part) for part in set(found.split)} == split
    )


def test_given_parts_are_kept(tmp_path: Path) -> None:
    top = folders(tmp_path, [f"{s}/{c}/{k}" for s in ("train", "test", "val") for c in "ab" for k in ("cat", "dog")], 2)
    made = scenarios.load("own", 3, top, size=8)
    read = read_user_data(top)
    for name, rows in made.manifest["tests"].items():
        assert all(read.names[row].startswith(f"test/{name}/") for row in rows)
    assert all(
        read.names[row].startswith(f"train/{name}/") for name, rows in made.manifest["clients"].items() for row in rows
    )
    assert made.server_validation is not None
    assert len(labels(made.server_validation)) == 8


def test_common_test_set(tmp_path: Path) -> None:
    top = folders(tmp_path, [*(f"train/{c}/{k}" for c in "ab" for k in ("cat", "dog")), "test/cat", "test/dog"])
    made = scenarios.load("own", 0, top, size=8)
    assert made.client_groups is None
    assert {name: len(labels(data)) for name, data in made.tests.items()} == {"all": 10}
    assert made.sizes == (10, 10)


def test_test_data_of_somebody_who_does_not_train(tmp_path: Path) -> None:
    top = folders(tmp_path, [*(f"train/{c}/{k}" for c in "ab" for k in ("cat", "dog")), "test/c/cat", "test/a/dog"])
    made = scenarios.load("own", 0, top, size=8)
    assert set(made.tests) == {"a", "c"}
    assert made.client_groups is None  # b has none
    assert made.manifest["notes"] == [
        "b: no sample to test on, so there is no test set of its own.",
        "c: no sample to train on, so it is for testing only.",
    ]


def test_folders_of_classes_are_divided(tmp_path: Path) -> None:
    top = folders(tmp_path, ["cat", "dog"], 20)
    with pytest.raises(DataError, match=r"a folder per class, 2 classes \(cat, dog\).*--set clients=8"):
        scenarios.load("own", 0, top, size=8)
    made = scenarios.load("own", 0, top, size=8, clients=3, alpha=1.0)
    assert made.client_names == ("client-1", "client-2", "client-3")
    assert rows_of([*made.manifest["clients"].values(), *made.manifest["tests"].values()]) == list(range(40))
    assert scenarios.load("own", 0, top, size=8, clients=3, alpha=1.0).manifest == made.manifest
    assert scenarios.load("own", 1, top, size=8, clients=3, alpha=1.0).manifest["clients"] != made.manifest["clients"]
    with pytest.raises(DataError, match="has 2 clients of its own"):
        scenarios.load("own", 0, plain(tmp_path / "other"), clients=3)


def test_what_is_no_image_is_said(tmp_path: Path) -> None:
    top = plain(tmp_path)
    (top / "north" / "notes.txt").write_text("x")
    (top / "east" / "cat").mkdir(parents=True)
    found = read_user_data(top)
    assert found.notes == ("1 file is no image and ignored: north/notes.txt.", "No image in east/cat: ignored.")
    assert found.clients == ("north", "south")


def test_links_are_followed(tmp_path: Path) -> None:
    plain(tmp_path / "real")
    (tmp_path / "my" / "west").mkdir(parents=True)
    (tmp_path / "my" / "east").symlink_to(tmp_path / "real" / "north", target_is_directory=True)
    for kind in ("cat", "dog"):
        (tmp_path / "my" / "west" / kind).symlink_to(tmp_path / "real" / "south" / kind, target_is_directory=True)
    assert read_user_data(tmp_path / "my").clients == ("east", "west")
    (tmp_path / "my" / "west" / "up").symlink_to(tmp_path / "my", target_is_directory=True)
    with pytest.raises(DataError, match="is a link to a folder that it is in"):
        read_user_data(tmp_path / "my")


def broken_folders(top: Path, kind: str) -> None:
    match kind:
        case "nothing":
            pass
        case "empty clients":
            (top / "north" / "cat").mkdir(parents=True)
        case "no image":
            (top / "north" / "cat").mkdir(parents=True)
            (top / "north" / "cat" / "a.txt").write_text("x")
        case "loose":
            picture(plain(top) / "x.png", 0)
        case "deep":
            picture(plain(top) / "north" / "cat" / "more" / "and" / "x.png", 0)
        case "uneven":
            picture(plain(top) / "north" / "cat" / "more" / "x.png", 0)
        case "parts beside":
            folders(top, ["train/a/cat", "train/a/dog", "extra/a/cat"])
        case "parts of one":
            folders(top, ["a/train/cat", "a/train/dog", "b/cat", "b/dog"])
        case "only parts":
            folders(top, ["train", "test"])
        case "parts of clients without classes":
            folders(top, ["a/train", "a/test", "b/train"])
        case "case":
            folders(top, ["North/cat", "North/dog", "north/cat"])
        case "case of a class":
            folders(top, ["a/cat", "a/dog", "b/Cat"])
        case "one class":
            folders(top, ["a/cat", "b/cat"])
        case "unknown in test":
            folders(top, ["train/a/cat", "train/a/dog", "test/a/bird"])
        case "only test":
            folders(top, ["test/a/cat", "test/a/dog"])
        case "lost link":
            (plain(top) / "north" / "cat" / "z.png").symlink_to(top / "nowhere.png")
        case "two tables":
            table(top / "a.csv", [HEADER])
            table(top / "b.csv", [HEADER])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("nothing", r"has no images .*found nothing\. Expected CLIENT/CLASS/image\.jpg"),
        ("empty clients", r"has no images .*found nothing"),
        ("no image", r"found 1 of \.txt"),
        ("loose", r"x\.png is not in folders of the same form"),
        ("deep", r"x\.png is not in folders of the same form"),
        ("uneven", r"more/x\.png is not in folders of the same form"),
        ("parts beside", "train is next to extra"),
        ("parts of one", r"b/cat/0\.png is not in folders of the same form"),
        ("only parts", "test, train hold images directly, and there are no folders of classes"),
        ("parts of clients without classes", "test, train hold images directly"),
        ("case", "client 'North' and client 'north' differ only in capital letters or spaces"),
        ("case of a class", "class 'cat' and class 'Cat' differ only in capital letters"),
        ("one class", "all 10 samples are of one class, 'cat'"),
        ("unknown in test", "'bird' is in the test or validation data but in no training data"),
        ("only test", "no sample is marked as train"),
        ("lost link", r"z\.png is a link to a file that does not exist"),
        ("two tables", r"several tables \(a\.csv, b\.csv\)"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, kind: str, said: str) -> None:
    broken_folders(tmp_path, kind)
    with pytest.raises(DataError, match=said):
        read_user_data(tmp_path)


def test_an_image_that_is_none(tmp_path: Path) -> None:
    (plain(tmp_path) / "north" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"north/cat/1\.png: this image cannot be decoded"):
        scenarios.load("own", 0, tmp_path, size=8)


def test_paths_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere does not exist\. Give a folder"):
        read_user_data(tmp_path / "nowhere")
    (tmp_path / "a.xls").write_bytes(b"x")
    with pytest.raises(DataError, match=r"expected a folder, or a file that ends in \.csv"):
        read_user_data(tmp_path / "a.xls")
    with pytest.raises(DataError, match="label is an option of a table"):
        read_user_data(plain(tmp_path / "my"), Columns(label="kind"))
    with pytest.raises(DataError, match="download=true is for data sets of the Hub"):
        read_user_data(tmp_path, download=True)


# tables
def test_table_of_numbers(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [HEADER, *people()])
    found = read_user_data(tmp_path, Columns(group="sex"))  # a folder with one table
    assert found.source == str(path)
    assert (found.classes, found.clients, found.features) == (("sick", "well"), ("a", "b"), ("age", "pulse"))
    made = scenarios.load("own", 0, path, group="sex")
    assert (made.network, made.transform, made.shape) == ("mlp", None, (2,))
    assert set(made.tests) == {"f", "m"}
    assert made.client_groups is None
    assert made.measures == ("accuracy", "rates")
    x = torch.cat([data[0] for data in made.clients])
    assert x.mean(0).abs().max() < 1e-5
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-5
    assert made.manifest["inputs"] == ["age", "pulse"]
    rows = [row for part in made.manifest["clients"].values() for row in part]
    assert made.manifest["schema"]["fitted"]["age"]["centre"] == pytest.approx(
        np.mean([people()[row][0] for row in rows])
    )
    tested = made.manifest["tests"]
    assert rows_of([*made.manifest["clients"].values(), *tested.values()]) == list(range(40))
    assert all(people()[row][4] == name for name, part in tested.items() for row in part)


def test_groups_that_are_whole_clients(tmp_path: Path) -> None:
    rows = [(*row[:4], {"a": "old", "b": "new"}[str(row[3])]) for row in people()]
    made = scenarios.load("own", 0, table(tmp_path / "t.csv", [HEADER, *rows]), group="sex")
    assert made.client_groups == ("old", "new")


def test_table_without_a_client_is_divided(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [HEADER[:3], *(row[:3] for row in people())])
    with pytest.raises(DataError, match=r"name the column with --set client=COLUMN; or have the samples divided"):
        scenarios.load("own", 0, path)
    assert len(scenarios.load("own", 0, path, clients=2).clients) == 2


@pytest.mark.parametrize("text", [
    "\ufefflabel;client;v\n1;a;0.5\n0;a;1,5e0\n".replace("1,5e0", "1.5"),
    "label\tclient\tv\n1\ta\t0.5\n0\ta\t1.5\n",
    "Label,Client, v\n1.0, a ,0.5\r\n0.0,a, 1.5\r\n",
])  # fmt: skip
def test_tables_of_other_programs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8", newline="")
    found = read_user_data(path)
    assert (found.label, found.clients) == (("1", "0"), ("a",))
    assert isinstance(found.inputs, RawTable)
    assert found.inputs.numbers()[:, 0].tolist() == [0.5, 1.5]


def test_table_of_images(tmp_path: Path) -> None:
    plain(tmp_path / "images")
    files = sorted((tmp_path / "images").rglob("*.png"))
    rows = [
        (
            p.relative_to(tmp_path).as_posix(),
            p.parent.name,
            p.parent.parent.name,
            "test" if p.stem == "0" else "train",
            7,
        )
        for p in files
    ]
    path = table(tmp_path / "t.csv", [("path", "label", "client", "split", "weight"), *rows])
    made = scenarios.load("own", 0, path, size=8)
    assert made.sizes == (8, 8)
    assert {name: len(labels(data)) for name, data in made.tests.items()} == {"north": 2, "south": 2}
    assert made.manifest["notes"] == ["t.csv: the column weight is not used."]
    x, y = made.clients[0]  # type: ignore[misc]
    assert ((x.float().mean((1, 2, 3)) > 100) == (y == 1)).all()
    twice = table(tmp_path / "twice.csv", [("path", "label", "client"), *(row[:3] for row in rows), rows[0][:3]])
    assert read_user_data(twice).notes == (
        "twice.csv: 1 line repeats an image of another; it counts each time, perhaps in training and in test data.",
    )
    table(twice, [("path", "label", "client"), rows[0][:3], (rows[0][0], "dog", "a")])
    with pytest.raises(DataError, match=r"line 3: .* is 'dog' here and 'cat' before \(.*line 2"):
        read_user_data(twice)


def test_columns_by_other_names(tmp_path: Path) -> None:
    rows = [(k, *row) for k, row in enumerate(people())]
    path = table(tmp_path / "t.csv", [("id", "age", "pulse", "state", "site", "sex"), *rows])
    made = scenarios.load("own", 0, path, label="state", client="site", leave_out="id, sex")
    assert made.manifest["inputs"] == ["age", "pulse"]
    with pytest.raises(DataError, match=r"t\.csv: Unknown column 'stat'\. Did you mean 'state'\?"):
        scenarios.load("own", 0, path, label="stat")
    with pytest.raises(DataError, match="the column site is named for two purposes"):
        scenarios.load("own", 0, path, label="site", client="site")
    with pytest.raises(DataError, match=r"has no column label; its columns are id, age"):
        scenarios.load("own", 0, path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column label; its columns are none"),
        ("label,client,v\n", "holds no sample"),
        ("label,client,v\na,x\n", "the header has 3 cells, and 1 of 1 rows has another number: line 2 has 2"),
        ("label,client,v\na,x,1,2\nb,x,1\n", "the header has 3 cells, and 1 of 2 rows has another number: line 2 has 4"),
        ("label,client,v\n\na,x,1\n\nb,x,1_0\n", r"v: 1 of 2 is no number \('1_0' in line 5\)"),
        ("label,client,v\na,x,1\nb,x,1e300\n", r"v: 1 of 2 is too large \('1e300' in line 3\)"),
        ("label,client,v\na,x,1\nb,x,inf\n", r"v: 1 of 2 is no number \('inf' in line 3\)"),
        ("label,client,v\na,x,1\n ,x,1\n", "column label: the label is missing in 1 of 2 samples: line 3"),
        ("label,client,v\nnan,x,1\nb,x,1\n", r"column label: the label is missing in 1 of 2 samples \('nan'\): line 2\..*--set not_missing=nan"),
        ("label,client,v\na,x,1\nb,,1\n", "column client: the client is missing in 1 of 2 samples: line 3"),
        ("label,client,group,v\na,x,f,1\nb,x,,1\n", "column group: the group is missing in 1 of 2 samples: line 3"),
        ("label,client,v,split\na,x,1,train\nb,x,1,later\n", r"column split \(line 3\): expected train, test or validation, found 'later'"),
        ("label,client,v\n0.5,x,1\n1,x,1\n", r"column label: the label is 0\.5 \(line 2\), and labels are classes"),
        ("label,client\na,x\nb,x\n", "neither a column path nor any of which something can be learnt"),
        ("label,label,v\na,x,1\n", "two columns are called 'label'"),
        ("label,client,path\na,x,no.png\nb,x,\n", r"no image for 2 of 2 rows: line 2 .no\.png., line 3 .empty."),
        ("label,client,v\na,x,1\nb,X,1\n", "client 'x' and client 'X' differ only in capital"),
        ("label,client,subject,v\na,x,p7,1\nb,x,P7,1\n", "subject 'p7' and subject 'P7' differ only in capital"),
        ("label,client,subject,v\na,x,p 7,1\nb,x,p  7,1\n", "subject 'p 7' and subject 'p  7' differ only in"),
        ("label,client,v,split\na,x,1,train\nb,x,1,train\nc,x,1,test\n", "'c' is in the test or validation data"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_user_data(path)


def test_a_table_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("label,client,v\nä,x,1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"t\.csv cannot be read as a table"):
        read_user_data(tmp_path / "t.csv")


# arrays
def test_arrays(tmp_path: Path) -> None:
    made = scenarios.load("own", 0, arrays(tmp_path / "a.npz"))
    assert made.client_names == ("0", "1", "2")
    assert made.manifest["classes"] == ["0", "1"]
    assert made.shape == (4,)
    words = arrays(
        tmp_path / "b.npz", y=np.array(["no", "yes"] * 12), group=np.array([b"old", b"new"] * 12), other=np.zeros(3)
    )
    made = scenarios.load("own", 0, words)
    assert made.manifest["classes"] == ["no", "yes"]
    assert set(made.tests) == {"new", "old"}
    assert made.manifest["notes"][0] == "b.npz: other is not used."


@pytest.mark.parametrize(
    ("x", "shape", "network"),
    [
        (np.arange(24 * 64).reshape(24, 8, 8).astype(np.uint8), (1, 8, 8), "cnn"),
        (np.zeros((24, 8, 9, 3), np.uint8), (3, 8, 9), "cnn"),
        (np.zeros((24, 1, 6, 6), np.uint8), (1, 6, 6), "mlp"),
        (np.random.default_rng(0).normal(size=(24, 2, 5)), (2, 5), "mlp"),
        (np.random.default_rng(0).normal(size=(24, 2, 8, 8)), (2, 8, 8), "mlp"),
    ],
)
def test_arrays_of_many_shapes(tmp_path: Path, x: np.ndarray[Any, Any], shape: tuple[int, ...], network: str) -> None:
    made = scenarios.load("own", 0, arrays(tmp_path / "a.npz", x=x))
    assert (made.shape, made.network) == (shape, network)
    assert (made.transform is not None) == (x.dtype == np.uint8)
    if x.ndim == 4 and x.dtype != np.uint8:
        assert len(made.manifest["standardised"]["mean"]) == 2  # one number per channel


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": None}, r"has no array x; it holds y, client"),
        ({"y": None}, "has no array y"),
        ({"client": np.arange(23)}, r"client has shape \[23\] and x \[24, 4\]; expected one client per sample, \[24\]"),
        ({"y": np.zeros((24, 1))}, r"y has shape \[24, 1\]|label has shape"),
        ({"y": np.linspace(0, 1, 24)}, r"y: the label is 0\.04\d* \(y\[1\]"),
        ({"y": np.zeros(24)}, "all 24 samples are of one class, '0'"),
        ({"x": np.full((24, 4), np.nan)}, r"x\[0, 0\] is not a finite number, in 24 samples in all"),
        ({"x": np.zeros(24)}, r"must be numbers \[n, \.\.\.\], at least one each; found float64 \[24\]"),
        ({"x": np.array([["a"] * 4] * 24)}, "must be numbers"),
        ({"x": np.zeros((24, 8, 8, 5), np.uint8)}, "images have 1 or 3 channels"),
        (
            {"client": np.array([object()] * 24)},
            "an array holds Python objects, which are not read because they could run code",
        ),
    ],
)
def test_arrays_that_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_user_data(arrays(tmp_path / "a.npz", **changes))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"x" + b[1:], lambda b: b""])
def test_damaged_arrays(tmp_path: Path, damage: Any) -> None:
    path = arrays(tmp_path / "a.npz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        read_user_data(path)


# the Hub
class Table:
    """As much of ``datasets.Dataset`` as is used."""

    _fingerprint = "f"

    def __init__(self, features: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        self.features, self.columns = features, columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def cast_column(self, key: str, feature: Any) -> Table:
        """The files of the images, not decoded."""
        assert feature == {"decode": False}

        def content(picture: Any) -> dict[str, Any]:
            file = io.BytesIO()
            if isinstance(picture, Image.Image):
                picture.save(file, "PNG")
            return {"bytes": file.getvalue(), "path": None}

        return Table(self.features, {key: list(map(content, self.columns[key]))})

    def __getitem__(self, key: str | int) -> Any:
        return (
            self.columns[key] if isinstance(key, str) else {name: values[key] for name, values in self.columns.items()}
        )


Picture = type("Image", (), {})  # the package tells images by a feature of this name


def hub(monkeypatch: pytest.MonkeyPatch, found: Any, here: bool = True) -> list[dict[str, Any]]:
    """A package ``datasets`` that has one data set, on this machine or not; returns what it was asked for."""
    asked: list[dict[str, Any]] = []
    module = SimpleNamespace(
        config=SimpleNamespace(HF_HUB_OFFLINE=False), DownloadConfig=lambda **told: told, Image=lambda **told: told
    )

    def load_dataset(name: str, configuration: str | None, **told: Any) -> Any:
        asked.append({"name": name, "configuration": configuration, "offline": module.config.HF_HUB_OFFLINE, **told})
        if not here and module.config.HF_HUB_OFFLINE:
            raise ConnectionError(f"Couldn't reach the Hugging Face Hub for dataset '{name}'\nmore")
        return found

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def hub_images(n: int, label: int | None = None) -> Table:
    kinds = [k % 2 if label is None else label for k in range(n)]
    images = [
        Image.linear_gradient("L").resize((9, 9)).point([v // 4 + 150 * kind for v in range(256)]) for kind in kinds
    ]
    features = {"picture": Picture(), "label": SimpleNamespace(names=["cat", "dog"]), "site": SimpleNamespace()}
    return Table(features, {"picture": images, "label": kinds, "site": [f"site-{k % 3}" for k in range(n)]})


def test_hub_images(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, {"train": hub_images(24), "test": hub_images(6), "extra": hub_images(4)})
    made = scenarios.load("own", 0, "hub:some/cats/small", client="site", size=8)
    assert asked == [
        {"name": "some/cats", "configuration": "small", "offline": True, "download_config": {"local_files_only": True}}
    ]
    assert made.client_names == ("site-0", "site-1", "site-2")
    assert made.sizes == (8, 8, 8)
    assert made.manifest["notes"] == ["hub:some/cats: the part extra ignored."]
    for x, y in [*made.clients, *made.tests.values()]:
        assert x.shape[1:] == (3, 8, 8)
        assert ((x.float().mean((1, 2, 3)) > 100) == (y == 1)).all()
    assert sys.modules["datasets"].config.HF_HUB_OFFLINE is False


def test_hub_images_keep_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of 12 bits in files of 16, which the package itself would cut at 255."""
    table = hub_images(24)
    pixels = [np.random.default_rng(k).integers(100, 4000, (8, 8)).astype(np.uint16) for k in range(24)]
    table.columns["picture"] = [Image.fromarray(x) for x in pixels]
    hub(monkeypatch, {"train": table})
    made = scenarios.load("own", 0, "hub:some/scans", client="site", size=8)
    low, high = int(np.min(pixels)), int(np.max(pixels))
    assert made.manifest["read"]["range"] == [low, high]
    every = np.concatenate([np.asarray(data[0])[:, 0] for data in [*made.clients, *made.tests.values()]])  # type: ignore[index]
    expected = np.rint((np.stack(pixels).astype(float) - low) / (high - low) * 255)
    np.testing.assert_array_equal(np.unique(every), np.unique(expected))
    assert scenarios.load("own", 0, "hub:some/scans", client="site", size=8, range="0,4095").manifest["read"][
        "range"
    ] == [0, 4095]


def test_hub_images_of_other_formats_are_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    table = hub_images(24)
    files = Table(table.features, {"picture": [{"bytes": b"%!PS-Adobe-3.0 EPSF-3.0", "path": None}] * 24})
    monkeypatch.setattr(Table, "cast_column", lambda *_: files)
    hub(monkeypatch, table)
    with pytest.raises(
        DataError,
        match=r"some/cats: 24 of 24 images cannot be decoded\. sample 0 of picture, .*: it is no image.*; and 14 more\.",
    ):
        scenarios.load("own", 0, "hub:some/cats", client="site", size=8)


def test_hub_downloads_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub(monkeypatch, hub_images(12), here=False)
    with pytest.raises(
        DataError,
        match=r"hub:some/cats is not on this machine, .*--set download=true\. \(Couldn't reach .*'some/cats'\.\)",
    ):
        read_user_data("hub:some/cats", Columns(client="site"))
    assert read_user_data("hub:some/cats", Columns(client="site"), download=True).clients == (
        "site-0",
        "site-1",
        "site-2",
    )
    assert [one["offline"] for one in asked] == [True, False]


def test_hub_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_ = SimpleNamespace()
    features = {"a": plain_, "b": plain_, "note": plain_, "label": plain_, "client": plain_}
    columns = {"a": [1, 2, 3, 4], "b": [0.5] * 4, "note": list("wxyz"), "label": ["u", "v"] * 2, "client": [7, 7, 8, 8]}
    hub(monkeypatch, Table(features, columns))
    found = read_user_data("hub:some/numbers")
    assert (
        "hub:some/numbers: the column note is left out: text, or names of rows: 4 different words in 4 rows."
        in found.notes[0]
    )
    assert isinstance(found.inputs, RawTable)
    assert found.inputs.numbers().tolist() == [[1, 0.5], [2, 0.5], [3, 0.5], [4, 0.5]]
    assert (found.clients, found.features, found.split) == (("7", "8"), ("a", "b"), None)


def test_hub_data_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"expected hub:OWNER/NAME"):
        read_user_data("hub:cats")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'equipoise\[hub\]'"):
        read_user_data("hub:some/cats")
    hub(monkeypatch, {"test": hub_images(4)})
    with pytest.raises(DataError, match="has no part train; it has test"):
        read_user_data("hub:some/cats")
    hub(monkeypatch, hub_images(4))
    with pytest.raises(DataError, match=r"Unknown column 'place'"):
        read_user_data("hub:some/cats", Columns(client="place"))
    with pytest.raises(DataError, match=r"has no column label|Unknown column 'kind'"):
        read_user_data("hub:some/cats", Columns(label="kind"))
    hub(monkeypatch, hub_images(4, label=-1))
    with pytest.raises(DataError, match="column label: the label is missing in 4 of 4 samples: sample 0"):
        read_user_data("hub:some/cats")
    broken = hub_images(4)
    broken.columns["picture"][2] = None
    hub(monkeypatch, broken)
    with pytest.raises(DataError, match=r"some/cats, sample 2 of picture: this image cannot be decoded"):
        scenarios.load("own", 0, "hub:some/cats", client="site", size=8)


@pytest.mark.parametrize(("role", "cell"), [("label", 2), ("client", 7), ("kind", -2)])
def test_a_class_of_the_hub_without_a_name(monkeypatch: pytest.MonkeyPatch, role: str, cell: int) -> None:
    classes, n = SimpleNamespace(names=["high", "low"]), 12
    columns = {"v": [k * 7 % 11 for k in range(n)], "kind": [0, 0, 1] * 4, "label": [0, 1] * 6, "client": [0, 1, 1] * 4}
    features = {"v": SimpleNamespace(), "kind": classes, "label": classes, "client": classes}
    hub(monkeypatch, Table(features, columns))
    own = read_user_data("hub:some/set")
    assert (own.classes, own.clients) == (("high", "low"), ("high", "low"))
    assert isinstance(own.inputs, RawTable)
    assert own.inputs.columns["kind"].words == ("high", "low")
    columns[role][5] = cell
    said = rf"some/set, column {role}: the class of sample 5 is {cell}, and only classes from 0 to 1 have names \(high, low\)"
    with pytest.raises(DataError, match=said):
        read_user_data("hub:some/set")


def test_cells_of_the_hub_keep_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_ = SimpleNamespace()
    columns = {
        "few": [None, 2, 3.5] * 4,
        "word": [b"a", b"b", None] * 4,
        "truth": [True, False, None] * 4,
        "label": [True, False] * 6,
        "client": ["x", "y", "y"] * 4,
    }
    hub(monkeypatch, Table(dict.fromkeys(columns, plain_), columns))
    own = read_user_data("hub:some/set")
    assert own.classes == ("False", "True")
    assert isinstance(own.inputs, RawTable)
    assert own.inputs.columns["word"].words == ("a", "b")
    assert np.isnan(own.inputs.columns["few"].values).tolist() == [True, False, False] * 4
    assert own.inputs.columns["truth"].values[:2].tolist() == [1, 0]
    columns["word"][0] = b"\xff"
    with pytest.raises(DataError, match=r"some/set, column word: its cells are bytes"):
        read_user_data("hub:some/set")


# how samples are divided
def own(label: Sequence[object], client: Sequence[object], **more: Any) -> UserData:
    return UserData(
        "x", "test", tuple(map(str, label)), np.zeros((len(label), 1), np.float32), tuple(map(str, client)), **more
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=4, max_size=60),
    st.floats(0.05, 0.5),
    st.integers(0, 3),
)
@settings(max_examples=30)
def test_division(samples: list[tuple[int, int]], share: float, seed: int) -> None:
    """Every sample is somewhere once, every class is trained on, and who has two samples of a class keeps one to train on."""
    data = own(*zip(*samples, strict=True))
    parts = divided(data, seed, test=share)
    assert rows_of([*parts.train.values(), *parts.test.values()]) == list(range(len(samples)))
    trained = {data.label[row] for row in parts.training}
    assert trained == set(data.label)
    for name in data.clients:
        mine = [k for k, who in enumerate(data.client or ()) if who == name]
        test = parts.test.get(name, [])
        kinds = [data.label[row] for row in mine]
        for kind in set(kinds):
            n, taken = kinds.count(kind), [data.label[row] for row in test].count(kind)
            if n > 1:
                assert taken < n
        assert len(test) <= max(1, round(share * len(mine)))
    assert divided(data, seed, test=share) == parts


def test_drawn_tests_are_as_even_as_can_be() -> None:
    data = own([0] * 50 + [1] * 30 + [2] * 20, ["a"] * 100)
    test = [data.label[row] for row in divided(data, 0, test=0.2).test["a"]]
    assert [test.count(k) for k in "012"] == [10, 6, 4]
    groups = ["f", "m"] * 50
    parts = divided(own([0] * 50 + [1] * 50, ["a"] * 100, attributes={"group": tuple(groups)}), 0, test=0.2)
    of = [groups[row] for row in parts.test["a"]]
    assert abs(of.count("f") - of.count("m")) <= 2


def test_validation_is_drawn_or_given_not_both() -> None:
    data = own([0, 1] * 20, ["a", "b", "c", "d"] * 10)
    parts = divided(data, 0, server_validation=0.25)
    assert len(parts.validation) == 8  # a quarter of the eight that each trains on
    assert rows_of([*parts.train.values(), *parts.test.values(), parts.validation]) == list(range(40))
    given_ = own([0, 1] * 20, ["a", "b", "c", "d"] * 10, split=("train",) * 36 + ("validation",) * 4)
    assert divided(given_, 0).validation == [36, 37, 38, 39]
    assert "as no part is called test" in divided(given_, 0).notes[0]
    with pytest.raises(DataError, match=r"has validation data of its own, and server_validation=0\.2 draws some"):
        divided(given_, 0, server_validation=0.2)


def test_given_test_data_stay_test_data() -> None:
    """Even where the server draws the only training sample of a class: it gets that one back."""
    data = own([0, 1, 0, 1], ["a"] * 4, split=("train", "train", "test", "test"))
    for seed in range(5):
        parts = divided(data, seed, server_validation=0.5)
        assert parts.test == {"a": [2, 3]}
        assert sorted(parts.train["a"]) == [0, 1]


def test_who_has_one_sample_trains_on_it() -> None:
    parts = divided(own([0, 1, 0, 1, 1], ["a", "a", "a", "a", "b"]), 0)
    assert parts.train["b"] == [4]
    assert parts.notes[1] == "b: no sample to test on, so there is no test set of its own."


def test_groups_without_a_test_sample_are_said() -> None:
    data = own(
        [0, 1] * 4, ["a"] * 8, attributes={"group": ("x",) * 7 + ("y",)}, split=("train", "train", "test", "test") * 2
    )
    lost = own(
        [0, 1] * 4,
        ["a"] * 8,
        attributes={"group": ("x", "y") + ("x",) * 6},
        split=("train", "train", "test", "test") * 2,
    )
    assert divided(data, 0).notes == ()
    assert divided(lost, 0).notes == ("Group y: no sample to test on, so nothing is measured for it.",)


def test_columns_that_are_numbers(tmp_path: Path, equipoise: Any) -> None:
    path = table(
        tmp_path / "t.csv", [("1", "2", "3", "client"), *((k % 2, k * 7 % 12, k, "ab"[k % 3 > 0]) for k in range(12))]
    )
    found = equipoise(
        "init", "--data", path, "--set", "label=1", "--set", "leave_out=3", "--output", tmp_path / "a.toml"
    )
    assert found.status == 0
    assert scenarios.load("own", 0, path, label=1, leave_out=3).manifest["inputs"] == ["2"]


def test_many_clients_are_tested_together(tmp_path: Path) -> None:
    rows = [(*row[:3], f"client-{k % 21}", row[4]) for k, row in enumerate(people(126))]
    path = table(tmp_path / "t.csv", [HEADER, *rows])
    made = scenarios.load("own", 0, path, leave_out=["sex"])
    assert list(made.tests) == ["all"]
    assert made.client_groups is None
    assert made.client_names[:3] == ("client-0", "client-1", "client-2")
    apart = scenarios.load("own", 0, path, leave_out=["sex"], tests="clients")
    assert apart.client_groups == apart.client_names == tuple(apart.tests)


def test_measures_may_be_asked_for(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [HEADER, *people()])
    assert scenarios.load("own", 0, path, leave_out="sex", measures="auc,balanced").measures == (
        "accuracy",
        "balanced",
        "auc",
    )
    with pytest.raises(ValueError, match="Unknown measure 'acu'"):
        scenarios.load("own", 0, path, leave_out="sex", measures=["acu"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"test": 0.6}, r"test must be in \(0, 0\.5\].*found 0\.6"),
        ({"test": 0}, r"test must be in \(0, 0\.5\]"),
        ({"server_validation": -0.1}, r"server_validation must be in \[0, 0\.5\]"),
        ({"size": 4}, "size must be a whole number >= 8 pixels; found 4"),
        ({"tests": "people"}, "tests must be one of groups, clients, all; found 'people'"),
        ({"clients": 0}, "clients must be a whole number >= 1"),
        ({"tests": "groups"}, "has no column group, which tests=groups asks for"),
        ({"groups": "sex"}, r"Unknown option of scenario 'own': 'groups'\. Did you mean 'group'\?"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, option: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        scenarios.load("own", 0, plain(tmp_path), **({"size": 8} | option))


def test_nothing_to_test_on(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [("v", "label", "client"), (1, "a", "x"), (2, "b", "y")])
    with pytest.raises(DataError, match="no client has a sample to spare for testing"):
        scenarios.load("own", 0, path)


def test_digest_is_of_the_data_and_not_of_their_place(tmp_path: Path) -> None:
    digest = lambda path: scenarios.load("own", 0, path, size=8).manifest["sha256"]  # noqa: E731
    one, other = digest(plain(tmp_path / "a")), digest(plain(tmp_path / "b"))
    assert one == other
    (tmp_path / "b" / "north" / "cat" / "0.png").rename(tmp_path / "b" / "north" / "cat" / "9.png")
    assert digest(tmp_path / "b") != one


def test_names_are_in_natural_order() -> None:
    assert ordered(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert ordered(["client-10", "client-2", "Client-3", "b"]) == ("Client-3", "b", "client-2", "client-10")


# from the command line
SHORT = ("--rounds", "2", "--no-report")


def run_of(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    (directory,) = (tmp_path / "runs").iterdir()
    return json.loads((directory / "manifest.json").read_text()), json.loads((directory / "summary.json").read_text())


def test_run_on_folders(tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain(tmp_path / "my")
    done = equipoise("run", "--data", "my/", "--set", "size=8", "--least-group", "2", *SHORT)
    assert (done.status, complaints(done.err)) == (0, [])
    manifest, summary = run_of(tmp_path)
    assert list(summary["groups"]) == ["north", "south"]
    assert summary["group_fairness"] is None
    assert any(line.startswith("data: 20% of each client's samples") for line in manifest["header"])


def test_run_on_a_table(tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.csv", [HEADER, *people()])
    done = equipoise("run", "-m", "fedheal", "--data", "t.csv", "--set", "group=sex", *SHORT)
    assert (done.status, complaints(done.err)) == (0, [])
    assert "Group fairness on own" in equipoise("report", next((tmp_path / "runs").iterdir()), "--details").out
    assert "The positive class is well: an assumption" in done.out
    _, summary = run_of(tmp_path)
    assert set(summary["group_fairness"]["groups"]) == {"f", "m"}


def test_run_on_arrays_that_stream(tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_scenario, "IN_MEMORY", 100)
    plain(tmp_path / "my")
    assert equipoise("run", "-d", "my", "--set", "size=8", "--set", "test=0.4", *SHORT).status == 0
    arrays(tmp_path / "a.npz")
    assert equipoise("run", "-m", "afl", "-d", "a.npz", *SHORT).status == 0


PAGE = Path(__file__).parents[1] / "docs/own-data.md"


def test_the_examples_of_the_page(tmp_path: Path, equipoise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page makes for folders, a table and arrays is what its commands train on."""
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    section = text[text.index("### Folders") : text.index("### A data set of the Hub")]
    makers = re.findall(r"^```python\n(.*?)^```$", section, flags=re.M | re.S)
    commands = re.findall(r"^equipoise (run .*)$", section, flags=re.M)
    assert (len(makers), len(commands)) == (3, 3)
    namespace: dict[str, Any] = {}
    for maker, command in zip(makers, commands, strict=True):
        code = [line for line in maker.splitlines() if line and not line.startswith(("import", "from", "rng ="))]
        assert len(code) <= 10
        exec(compile(maker, str(PAGE), "exec"), namespace)
        done = equipoise(*shlex.split(command), "--rounds", "2", "--no-report")
        assert (done.status, complaints(done.err)) == (0, [])
        assert equipoise("init", *shlex.split(command)[1:-2], "--force").status == 0
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_errors_are_one_line(tmp_path: Path, equipoise: Any) -> None:
    folders(tmp_path, ["cat", "dog"])
    done = equipoise("run", "--data", tmp_path, *SHORT)
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert done.err.startswith(f"error: {tmp_path} does not say whose the samples are")


def test_rates_by_client_use_one_column_for_both(tmp_path: Path) -> None:
    rows = [[k * 7 % 11, k % 5, "yx"[k % 2], "abc"[k % 3]] for k in range(60)]
    path = table(tmp_path / "t.csv", [["u", "v", "label", "site"], *rows])
    made = scenarios.load("own", 0, path, client="site", group="site")
    assert made.client_names == ("a", "b", "c") == tuple(made.tests) == made.client_groups
    assert "rates" in made.measures
    x = np.array([row[:2] for row in rows], np.float64)
    np.savez(tmp_path / "t.npz", x=x, y=[row[2] for row in rows], site=[row[3] for row in rows])
    own = read_user_data(tmp_path / "t.npz", Columns(client="site", group="site"))
    assert own.client == own.group
    for wrong in ({"client": "y"}, {"group": "x"}, {"split": "y"}):
        with pytest.raises(DataError, match="named for two purposes"):
            read_user_data(tmp_path / "t.npz", Columns(**wrong))


@pytest.mark.parametrize(
    ("brackets", "call"),
    [
        ("(n=25)", "clients(n=25, seed=seed)"),
        ("()", "clients(seed=seed)"),
        ("(25, k=2)", "clients(25, k=2, seed=seed)"),
    ],
)
def test_brackets_after_a_function_of_data_are_refused_with_what_to_write(
    brackets: str, call: str, tmp_path: Path
) -> None:
    path = tmp_path / "data.py"
    path.write_text("def clients(n=3, k=1, seed=0):\n    return []\n")
    with pytest.raises(DataError) as told:
        read_user_data(f"{path}:clients{brackets}")
    assert f"'def mine(seed): return {call}'" in str(told.value)
    assert f"give {path}:mine" in str(told.value)
    assert "does not exist" not in str(told.value)
