"""A bundle predicts what the run predicted, bit for bit, and is refused once it was edited."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted
from torch import nn

import equipoise as eq
from equipoise import scenarios
from equipoise.bundle import card, files
from equipoise.data.contents import DataError
from equipoise.data.tables.cells import Words
from equipoise.data.tables.schema import plain as plain_name
from equipoise.metrics.calibration import Decision, Recalibration
from equipoise.networks import RECIPE
from equipoise.records.history import History
from equipoise.report import committee, holdings
from equipoise.report.sentences import limits
from equipoise.runs import directory as runs
from equipoise.system.errors import InputError
from equipoise.system.seals import open_json, sealed_json, typed
from equipoise.system.text import plain_cell
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

N = 120


def table(n: int = N, seed: int = 3) -> pd.DataFrame:
    """People of three hospitals: numbers, words, a yes or no, and cells that are missing."""
    draw = np.random.default_rng(seed)
    ill = draw.permutation(np.arange(n) % 2)
    pain = np.array(["none", "typical", "atypical", ""])[draw.integers(0, 4, n)]
    stage = np.where(draw.random(n) < 0.2, "", draw.integers(0, 3, n).astype(str))
    columns = {
        "age": np.round(50 + 9 * draw.normal(size=n) + 6 * ill, 1),
        "pain": pain,
        "smokes": np.where(draw.random(n) < 0.5, "true", "false"),
        "stage": stage,
        "site": np.array(["north", "south", "west"])[np.arange(n) % 3],
        "sex": np.array(["f", "m"])[draw.integers(0, 2, n)],
        "label": np.array(["well", "ill"])[ill],
    }
    return pd.DataFrame(columns)


OPTIONS: dict[str, Any] = {"client": "site", "group": "sex", "columns": {"stage": {"kind": "category"}}, "test": 0.4}


def federation(path: Path, method: str = "fedavg", rounds: int = 2, **options: Any) -> tuple[eq.Federation, Any]:
    data = scenarios.load("own", 0, str(path), **(OPTIONS | options))
    net = eq.network("mlp", data.shape, data.outputs, seed=0, hidden=[7])
    fed = eq.Federation(
        net, data.clients, method, eq.SGD(lr=0.1), tests=data.tests, names=data.client_names, groups=data.client_groups,
        classes=data.classes or None, attributes=data.attributes or None, transform=data.transform, task=data.task,
    )  # fmt: skip
    fed.fit(rounds, progress=False)
    return fed, data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[eq.Federation, Any, Path, pd.DataFrame]:
    """A federation, its scenario, its bundle, and its table as pandas reads it."""
    place = tmp_path_factory.mktemp("bundle")
    table().to_csv(place / "t.csv", index=False)
    fed, data = federation(place / "t.csv")
    fed.save_bundle(place / "model", data=data.manifest, license="cc-by-4.0", use="For tests.")
    return fed, data, place / "model", pd.read_csv(place / "t.csv")


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


ELSEWHERE = """
import sys, pickle, numpy, pandas, torch
import equipoise as eq
def refuse(*_, **__): raise AssertionError("something was unpickled")
model = eq.load(sys.argv[1])
pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse
model = eq.load(sys.argv[1])
rows = [int(row) for row in sys.argv[3].split(",")]
sys.stdout.buffer.write(model.predict_proba(pandas.read_csv(sys.argv[2]).iloc[rows]).tobytes())
"""


@pytest.mark.share(8)
def test_another_process_elsewhere_gives_the_same_bits(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame], tmp_path: Path
) -> None:
    fed, data, folder, frame = made
    moved = copied(folder, tmp_path / "moved")
    frame.to_csv(tmp_path / "again.csv", index=False)
    name, rows = next(iter(data.manifest["tests"].items()))
    code = [sys.executable, "-W", "error", "-c", ELSEWHERE, str(moved), "again.csv", ",".join(map(str, rows))]
    done = subprocess.run(code, capture_output=True, check=True, cwd=tmp_path)
    expected = fed.predict_proba(data.tests[name][0]).numpy()
    assert done.stdout == expected.tobytes()
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors", ".md", ".html"}


def test_every_test_set_has_the_bits_and_the_accuracy_of_the_run(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame],
) -> None:
    fed, data, folder, frame = made
    model = eq.load(folder)
    last = fed.records[-1]["groups"]
    for name, rows in data.manifest["tests"].items():
        x = data.tests[name][0]
        part = frame.iloc[rows]
        assert model.predict_proba(part).tobytes() == fed.predict_proba(x).numpy().tobytes()
        assert model.predict(part).tolist() == [data.classes[k] for k in fed.predict(x)]
        assert np.mean(model.predict(part) == part["label"]) == pytest.approx(last[name]["accuracy"])
        assert model.about["measures"]["sets"][name]["accuracy"] == pytest.approx(100 * last[name]["accuracy"])
        assert model.score(part, part["label"]) == pytest.approx(last[name]["accuracy"])
    assert model.classes_.tolist() == ["ill", "well"]
    assert model.feature_names_in_.tolist() == ["age", "pain", "smokes", "stage"]
    assert model.n_features_in_ == 4


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(["age", "pain", "smokes", "stage", "site", "sex", "label"]))
def test_the_order_of_columns_does_not_matter(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame], order: list[str]
) -> None:
    _, _, folder, frame = made
    model = eq.load(folder)
    assert model.predict_proba(frame[order]).tobytes() == model.predict_proba(frame).tobytes()


# scikit-learn
def test_it_is_an_estimator_that_is_fitted(made: tuple[eq.Federation, Any, Path, pd.DataFrame]) -> None:
    _, _, folder, frame = made
    model = eq.load(folder)
    check_is_fitted(model)
    whole = make_pipeline(FunctionTransformer(lambda x: x.assign(age=x["age"] + 0)), model)
    assert (whole.predict_proba(frame) == model.predict_proba(frame)).all()
    assert whole.classes_.tolist() == ["ill", "well"]
    assert model.get_params() == {"directory": folder}
    assert (clone(model).predict(frame) == model.predict(frame)).all()
    assert (pickle.loads(pickle.dumps(model)).predict(frame) == model.predict(frame)).all()
    with pytest.raises(InputError, match=r"trained model and learns nothing more.*FrozenEstimator"):
        whole.fit(frame, frame["label"])
    assert model.set_params(directory=folder) is model
    for changed in ({"directory": "other"}, {"threshold": 0.3}):
        with pytest.raises(InputError, match=r"cannot be changed\. Load the other bundle"):
            model.set_params(**changed)
    with pytest.raises(InputError, match=r"takes a table, a pandas frame with the columns age, pain"):
        model.predict(np.zeros((3, 4)))


def test_in_what_fits(made: tuple[eq.Federation, Any, Path, pd.DataFrame]) -> None:
    """Frozen, as scikit-learn says it, it goes through cross-validation and a pipeline that is fitted."""
    _, _, folder, frame = made
    model, y = eq.load(folder), frame["label"]
    frozen = pytest.importorskip("sklearn.frozen").FrozenEstimator(model)
    assert (make_pipeline(FunctionTransformer(), frozen).fit(frame, y).predict(frame) == model.predict(frame)).all()
    made_ = cross_val_predict(frozen, frame, y, cv=3, method="predict_proba")
    assert np.abs(made_ - model.predict_proba(frame)).max() < 1e-6
    assert cross_val_score(frozen, frame, y, cv=3, scoring="roc_auc").shape == (3,)


# what is refused
@pytest.mark.parametrize("name", ["model.safetensors", "bundle.json", "schema.json"])
def test_an_edited_file_is_named(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame], tmp_path: Path, name: str
) -> None:
    folder = copied(made[2], tmp_path / "b")
    content = (folder / name).read_bytes()
    flipped = bytes([*content[:-9], content[-9] ^ 1, *content[-8:]])
    for change in (flipped, b"{" + content, content + b" ", content[:-1], b""):
        (folder / name).write_bytes(change)
        with pytest.raises(InputError, match=rf"{name} was edited"):
            eq.load(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"it has no {name}" if name == files.ABOUT else f"{name} is missing"):
        eq.load(folder)


def test_a_card_may_be_edited_and_files_added(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame], tmp_path: Path
) -> None:
    folder = copied(made[2], tmp_path / "b")
    (folder / "README.md").write_text("Ask Ada.")
    (folder / "card.html").unlink()
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    assert eq.load(folder).predict(made[3]).tolist() == eq.load(made[2]).predict(made[3]).tolist()


EVIL = "import pathlib\npathlib.Path('ran').touch()\ndef build(**_): pass\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"network": {"name": "nets.py:build"}}, "has no network 'nets.py:build'"),
        ({"network": {"name": "resnet18", "weights": "w.pt"}}, "has no network 'resnet18'"),
        ({"network": {"name": "mlp", "in_shape": [7], "n_classes": 2, "hidden": [8]}}, "does not hold the tensors"),
        (
            {"network": {"name": "mlp", "in_shape": [7], "n_classes": 2, "hidden": [1 << 30, 1 << 30]}},
            "does not hold the tensors",
        ),
        (
            {"network": {"name": "mlp", "in_shape": [7], "n_classes": 2, "hidden": [1] * 1001}},
            "has 1,001 layers, and at most 1,000",
        ),
        ({"network": 3}, "is not what Equipoise writes"),
        ({"inputs": {"kind": "numbers", "shape": "x"}}, "is not what Equipoise writes"),
        ({"dtype": "object"}, "is not what Equipoise writes"),
        ({"task": {"name": "regression", "loss": "own"}}, "is not what Equipoise writes"),
        ({"format": 3}, "has format 3, and this Equipoise reads 2"),
        ({"decision": {"edges": [0.5]}}, "is not what Equipoise writes"),
        ({"decision": {"attribute": "sex", "groups": ["f"], "edges": [0.5], "calibration": None}}, "expected 2 edges"),
        ({"files": {"../model.safetensors": ""}}, "is missing, which the bundle needs"),
    ],
)
def test_a_bundle_of_somebody_else_runs_no_code(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(EVIL)
    folder = copied(made[2], tmp_path / "b")
    about = open_json((folder / files.ABOUT).read_text())
    (folder / files.ABOUT).write_text(sealed_json(about | change))
    with pytest.raises(InputError, match=said):
        eq.load(folder)
    assert not (tmp_path / "ran").exists()


def test_another_table_is_refused_in_one_sentence(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame],
) -> None:
    _, _, folder, frame = made
    model = eq.load(folder)
    with pytest.raises(
        DataError,
        match=r"^the table has no column 'age', 'stage', which the model was trained with\. Its columns are pain",
    ):
        model.predict(frame[["pain", "smokes", "site"]])
    with pytest.raises(DataError, match=r"two columns are called age"):
        model.predict(pd.concat([frame, frame[["age"]]], axis=1))
    wrong = frame.astype({"age": object})
    wrong.loc[[2, 5], "age"] = ["old", "young"]
    wrong["smokes"] = wrong["smokes"].astype(str)
    wrong.loc[7, "smokes"] = "often"
    with pytest.raises(DataError) as error:
        model.predict(wrong)
    assert all(word in str(error.value) for word in ("2 problems", "old", "row 3", "row 6", "often", "row 8"))


def test_what_training_has_not_seen_is_said(made: tuple[eq.Federation, Any, Path, pd.DataFrame]) -> None:
    _, _, folder, frame = made
    model = eq.load(folder)
    for column, value, said in (
        ("pain", "stabbing", r"column pain: 1 of \d+ cells did not occur in training \('stabbing' in 1\)"),
        ("age", np.nan, "column age: 1 cell is missing, and counts as"),
        ("age", 51_000.0, "column age: 1 number is very far from those of training"),
    ):
        other = frame.copy()
        other.loc[0, column] = value
        with pytest.warns(UserWarning, match=said):
            assert np.isfinite(model.predict_proba(other)).all()


WRONG: list[tuple[Any, str]] = [
    (lambda x: x.iloc[:0], "holds no row, so there is nothing to predict"),
    (lambda x: x["age"], r"found Series of shape \[120\]: of a row x\.to_frame\(\)\.T"),
    (lambda x: x.iloc[0], "found Series of shape"),
    (lambda x: 3.5, "takes a table, a pandas frame with the columns age, .*; found float"),
    (lambda x: None, "found NoneType"),
    (lambda x: x.to_numpy(), "found ndarray of shape .* in a Pipeline, set_output"),
    (lambda x: x.iloc[0].to_dict(), "found dict: put each value into a list"),
    (lambda x: {"age": [1, 2], "pain": ["none"]}, "Columns differ in length: age 2, pain 1"),
    (lambda x: {}, "has no column 'age'"),
    (lambda x: x.iloc[:, :2], "has no column 'smokes', 'stage'"),
    (lambda x: "gone.csv", "gone.csv is no file"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_what_is_no_table_has_one_clear_error(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame], change: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        eq.load(made[2]).predict(change(made[3]))


CODES = ["001", "002", "013"]


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, pd.DataFrame]:
    """A model of codes with leading zeros, one column with few and one with rare ones that are joined."""
    place, draw = tmp_path_factory.mktemp("coded"), np.random.default_rng(5)
    frame = table().assign(
        code=[CODES[k] for k in draw.integers(0, 3, N)],
        town=[f"0{k}" if k < 3 else f"1{j:03}" for j, k in enumerate(draw.integers(0, 5, N))],
        pain=lambda x: x["pain"].replace({"": "dull", "none": "dull"}),
    )
    frame[["age", "pain", "code", "town", "site", "label"]].to_csv(place / "t.csv", index=False)
    columns = {"town": {"kind": "category", "least": 5}, "code": {"kind": "category"}}
    fed, data = federation(place / "t.csv", group=None, columns=columns, rounds=1)
    fed.save_bundle(place / "b", data=data.manifest)
    return eq.load(place / "b"), place / "t.csv", pd.read_csv(place / "t.csv", dtype=str, keep_default_na=False)


def test_a_file_is_read_as_that_of_the_run(coded: tuple[Any, Path, pd.DataFrame]) -> None:
    """The code of the card, which pandas alone would read with codes as numbers."""
    model, path, text = coded
    made = model.predict_proba(path)
    assert (model.predict_proba(str(path)) == made).all()
    assert (model.predict_proba(text) == made).all()
    assert 'model.predict("table.csv")' in (Path(model.directory) / "README.md").read_text()


def replaced(name: str, change: Any, rows: slice = slice(None)) -> Any:
    def made(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[frame.index[rows], name] = frame[name].iloc[rows].map(change)
        return frame

    return made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            replaced("code", lambda v: str(int(v))),
            r"120 of 120 cells are no category .*'1' for '001'.*dtype=\{'code': str\}",
        ),
        (
            replaced("pain", str.upper, slice(0, 70)),
            r"70 of 120 cells are no category .*'DULL' for 'dull'.*'typical'\.$",
        ),
        (
            replaced("pain", "p{}".format),
            r"120 of 120 .*in training 'atypical', 'dull', 'typical'\)\. Is it written as in",
        ),
        (replaced("town", lambda v: v.lstrip("0") or "0"), r"column town: 120 of 120 .*'1' for '01'"),
        (lambda x: x.head(2).assign(pain="new"), "column pain: 2 of 2 cells"),
    ],
)
def test_a_column_that_is_written_otherwise_is_refused(
    coded: tuple[Any, Path, pd.DataFrame], change: Any, said: str
) -> None:
    model, _, text = coded
    with pytest.raises(DataError, match=said):
        model.predict(change(text.copy()))


def test_few_unknown_categories_are_a_note_with_counts(coded: tuple[Any, Path, pd.DataFrame]) -> None:
    model, _, text = coded
    for change, said in (
        (replaced("code", "x{}".format, slice(0, 50)), r"column code: 50 of 120 cells did not occur in training \('x0"),
        (lambda x: x.head(1).assign(pain="new"), r"column pain: 1 of 1 cells did not occur"),  # a row alone
        (replaced("town", "x{}".format), "column town: 120 of 120 cells are rare or unknown"),
    ):
        with pytest.warns(UserWarning, match=said):
            model.predict(change(text.copy()))


def test_decimal_commas_name_the_option(coded: tuple[Any, Path, pd.DataFrame], tmp_path: Path, equipoise: Any) -> None:
    model, _, text = coded
    comma = text.assign(age=text["age"].str.replace(".", ","))
    comma.to_csv(tmp_path / "c.csv", index=False)
    done = equipoise("predict", model.directory, tmp_path / "c.csv", "-o", tmp_path / "p.csv")
    assert (done.status, "--set 'decimal=,'" in done.err) == (2, True), done.err
    done = equipoise("predict", model.directory, tmp_path / "c.csv", "-o", tmp_path / "p.csv", "--set", "decimal=,")
    assert done.status == 0, done.err
    assert (
        pd.read_csv(tmp_path / "p.csv")["probability ill"].astype(np.float32) == model.predict_proba(text)[:, 0]
    ).all()
    with pytest.raises(DataError, match=r"pandas: decimal=','"):
        model.predict(comma)
    with pytest.raises(DataError) as error:
        model.predict(text.assign(age="old"))
    assert "decimal" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.assign(stage=x["stage"].astype("Int64")),
        lambda x: x.assign(stage=x["stage"].astype(object), smokes=x["smokes"].astype(bool)),
        lambda x: x.assign(pain=x["pain"].astype("category"), stage=x["stage"].map("{:.1f}".format)),
        lambda x: x.assign(pain=x["pain"].astype("string"), age=x["age"].astype(str)),
        lambda x: x.astype({"smokes": float}).convert_dtypes(),
        lambda x: x.set_index("site"),
        lambda x: {name: x[name].tolist() for name in x},
    ],
)
def test_the_type_of_a_column_does_not_matter(made: tuple[eq.Federation, Any, Path, pd.DataFrame], change: Any) -> None:
    _, _, folder, frame = made
    model = eq.load(folder)
    assert model.predict_proba(change(frame)).tobytes() == model.predict_proba(frame).tobytes()


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("1.0", "1"),
        ("007", "007"),
        ("0.5", "0.5"),
        ("1e+03", "1000"),
        ("1E1", "1E1"),
        ("1e3", "1e3"),
        ("-2.", "-2"),
        ("x1", "x1"),
        ("9" * 17, "9" * 17),
    ],
)
def test_a_code_is_one_category_however_it_is_written(word: str, name: str) -> None:
    assert plain_name(word) == name == plain_name(name)
    number = word if word in ("x1", "007", "1E1", "1e3") else float(word)
    assert len(name) > 16 or Words.of([number]).words == (name,)


# tasks and inputs
def test_a_regression_predicts_in_the_users_unit(tmp_path: Path) -> None:
    frame = table().assign(label=lambda x: 1000 + 3 * x["age"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    fed, data = federation(tmp_path / "t.csv", "fedbn+ditto", task="regression")
    fed.save_bundle(tmp_path / "b", data=data.manifest)
    model = eq.load(tmp_path / "b")
    rows = next(iter(data.manifest["tests"].values()))
    expected = fed.predict(next(iter(data.tests.values()))[0])
    made = model.predict(pd.read_csv(tmp_path / "t.csv").iloc[rows])
    assert (made == expected.numpy()).all()
    assert 1000 < made.mean() < 1500
    assert not hasattr(model, "predict_proba")
    assert model.score(frame, frame["label"]) <= 1


def test_a_client_takes_its_own_model(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "t.csv", index=False)
    fed, data = federation(tmp_path / "t.csv", "ditto-personal")
    frame = pd.read_csv(tmp_path / "t.csv")
    fed.save_bundle(tmp_path / "south", client=1, data=data.manifest)
    fed.save_bundle(tmp_path / "global", data=data.manifest)
    x = torch.cat([part[0] for part in data.tests.values()])
    rows = [row for part in data.manifest["tests"].values() for row in part]
    south, every = eq.load(tmp_path / "south"), eq.load(tmp_path / "global")
    assert (south.predict_proba(frame.iloc[rows]) == fed.predict_proba(x, client=1).numpy()).all()
    assert (south.predict_proba(frame) != every.predict_proba(frame)).any()
    assert south.about["client"] == "south"
    assert "the own model of the client south" in (tmp_path / "south/README.md").read_text()


def arrays(seed: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (12, *shape), generator=draw, dtype=torch.uint8), torch.arange(12) % 2


def test_images_in_arrays_and_in_files(tmp_path: Path, equipoise: Any) -> None:
    for k, (pixels, label) in enumerate(zip(*arrays(0, 9, 8), strict=True)):
        path = tmp_path / f"data/{'ab'[k % 3 == 0]}/{label}"
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.numpy()).save(path / f"{k}.png")
    data = scenarios.load("own", 0, str(tmp_path / "data"), size=8, tests="all")
    net = eq.network("cnn", data.shape, data.outputs, seed=0, width=4)
    fed = eq.Federation(net, data.clients, tests=data.tests, transform=data.transform, names=data.client_names)
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b", data=data.manifest)
    model = eq.load(tmp_path / "b")
    names = sorted((tmp_path / "data").rglob("*.png"))
    (x, *_), rows = data.tests["all"], data.manifest["tests"]["all"]
    expected = fed.predict_proba(x).numpy()
    assert model.predict_proba(x.numpy()).tobytes() == expected.tobytes()
    of_files = model.predict_proba(tmp_path / "data")
    assert np.abs(of_files[rows] - expected).max() < 1e-6
    assert model.predict_proba([names[row] for row in rows]).tobytes() == expected.tobytes()
    assert equipoise("predict", tmp_path / "b", tmp_path / "data", "-o", tmp_path / "p.csv").status == 0
    written = pd.read_csv(tmp_path / "p.csv")
    assert written["sample"].tolist() == [name.relative_to(tmp_path / "data").as_posix() for name in names]
    assert written["prediction"].tolist() == model.predict(names).tolist()
    with pytest.raises(InputError, match=r"images as bytes \(uint8\) \[n, 3, 8, 8\]; found float32"):
        model.predict(x.numpy().astype(np.float32))


def plain(net: nn.Module | None = None, **options: Any) -> eq.Federation:
    data = [(torch.randn(20, 5, generator=torch.Generator().manual_seed(k)), torch.arange(20) % 2) for k in range(2)]
    net = net or eq.network("mlp", (5,), 2, hidden=[3])
    return eq.Federation(net, data, **({"tests": {"all": data[0]}} | options))


def test_arrays_without_a_schema(tmp_path: Path, equipoise: Any) -> None:
    fed = plain(classes=["0", "7"])
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b", threshold=0.9)
    model, x = eq.load(tmp_path / "b"), torch.randn(700, 5)
    assert model.predict_proba(x).tobytes() == fed.predict_proba(x).numpy().tobytes()
    assert model.classes_.tolist() == [0, 7]
    assert not hasattr(model, "feature_names_in_")
    assert (model.predict(x) == np.where(fed.predict_proba(x)[:, 1].numpy() >= 0.9, 7, 0)).all()
    np.save(tmp_path / "x.npy", x)
    assert equipoise("predict", tmp_path / "b", tmp_path / "x.npy", "-o", tmp_path / "p.csv").status == 0
    written = pd.read_csv(tmp_path / "p.csv", dtype=str)
    assert written["prediction"].tolist() == [str(k) for k in model.predict(x)]
    assert (written["probability 7"].astype(np.float32) == model.predict_proba(x)[:, 1]).all()
    for wrong in (torch.randn(3, 4), torch.randn(5), np.full((2, 5), np.nan), np.array([["a"] * 5]), np.zeros((0, 5))):
        with pytest.raises(ValueError):
            model.predict(wrong)


def fitted(net: nn.Module) -> eq.Federation:
    fed = plain(net)
    fed.fit(1, progress=False)
    return fed


class Own(eq.Classification):
    pass


@pytest.mark.parametrize("way", ["number", "chosen", "by group", "recalibrated"])
def test_a_card_has_the_numbers_of_what_the_bundle_predicts(held: Any, tmp_path: Path, way: str) -> None:
    fed = held[0]
    options: dict[str, Any] = {
        "number": {"threshold": 0.35},
        "chosen": {"threshold": eq.choose_threshold(fed, sensitivity=0.8)},
        "by group": {"threshold": eq.choose_threshold(fed, youden=True, by_group="sex")},
        "recalibrated": {"recalibrate": "platt"},
    }[way]
    fed.save_bundle(tmp_path / "b", **options)
    model, (name, samples) = eq.load(tmp_path / "b"), next(iter(fed.tests.sets.items()))
    store, sexes = samples.store, [fed.attributes["sex"][code] for code in samples.store.s[:, 0].tolist()]
    more = {"groups": sexes} if way == "by group" else {}
    predicted = model.predict(store.x.numpy(), **more)
    right = predicted == np.array(fed.classes)[store.y.numpy()]
    assert model.about["measures"]["sets"][name]["accuracy"] == pytest.approx(100 * right.mean())
    rates = next(iter(model.about["measures"]["people"].values()))["treated"]["groups"]
    assert sum(group["n"] for group in rates.values()) == sum(len(each.store.y) for each in fed.tests.sets.values())
    assert " at 0.5" not in (tmp_path / "b" / "README.md").read_text()
    assert "The numbers of this card are those of these decisions." in (tmp_path / "b" / "README.md").read_text()


@pytest.mark.parametrize(
    ("fed", "options", "said"),
    [
        (lambda: plain(nn.Linear(5, 2)), {}, r"network is your own code \(Linear\)"),
        (lambda: plain(task=Own()), {}, "task Own is your own code"),
        (lambda: plain(transform=lambda x, shift: 2 * x), {}, "transform is your own code"),
        (plain, {"threshold": 1.5}, "threshold must be between 0 and 1"),
        (lambda: plain(eq.network("mlp", (5,), 3)), {"threshold": 0.4}, "threshold is for two classes"),
    ],
)
def test_what_a_bundle_cannot_hold(tmp_path: Path, fed: Any, options: dict[str, Any], said: str) -> None:
    made = fed()
    with pytest.raises(InputError, match="replaces nothing"):
        made.save_bundle(Path(__file__))
    made.fit(1, progress=False)
    with pytest.raises(InputError, match=said):
        made.save_bundle(tmp_path / "b", **options)
    assert not [*tmp_path.iterdir()]


def test_a_network_that_was_changed_after_it_was_built(tmp_path: Path) -> None:
    net = eq.network("mlp", (5,), 2, hidden=[3])
    net.register_forward_hook(lambda module, given, out: 2 * out)
    assert vars(net)[RECIPE]["name"] == "mlp"
    with pytest.raises(InputError, match="would not predict as the model does"):
        fitted(net).save_bundle(tmp_path / "b")
    with pytest.raises(InputError, match="No round was trained"):
        plain().save_bundle(tmp_path / "b")
    broken = plain()
    broken.progress = replace(broken.progress, vector=broken.progress.vector * np.nan)
    with pytest.raises(InputError, match="NaN or infinity"):
        broken.save_bundle(tmp_path / "b")
    assert not [*tmp_path.iterdir()]


def test_a_chosen_threshold_is_taken_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    monkeypatch.chdir(tmp_path)
    table(300).to_csv("t.csv", index=False)
    told = ("--set", "client=site", "--set", "group=sex", "--set", "test=0.4", "--validation", 0.3, "--positive", "ill")
    run = ("run", "--data", "t.csv", *told, "--rounds", 2, "--network", "mlp(hidden=[7])", "--name", "a", "--no-report")
    assert equipoise(*run).status == 0
    assert equipoise("threshold", "runs/a", "--sensitivity", 0.9).status == 0
    assert equipoise("export", "runs/a", "--bundle", "b").status == 0
    fed, model = runs.trained(Path("runs/a")), eq.load("b")
    chosen = eq.choose_threshold(fed, sensitivity=0.9)
    assert model.about["threshold"] == chosen.value != 0.5
    frame = pd.read_csv("t.csv")
    for name, rows in open_json(Path("runs/a/manifest.json").read_text())["data"]["tests"].items():
        scores = fed.logits(fed.tests.sets[name].store.x).double().softmax(-1)[:, 0]
        assert (model.predict(frame.iloc[rows]) == np.where(chosen.decide(scores), "ill", "well")).all()
    text = Path("b/README.md").read_text()
    assert "## At the threshold" in text
    assert f"| sex f | {len(fed.tests.sets['f'].store)} |" in text
    for said in limits([History.from_run("runs/a")]):  # as other pages of the run
        assert f"- {said}\n" in text
    assert "is of another model" in equipoise("export", "runs/a", "--bundle", "c", "--client", "south").out
    fed.fit(1, progress=False)
    with pytest.raises(InputError, match="chosen for another model"):
        fed.save_bundle("d", threshold=chosen)


# decisions by group, and recalibrated probabilities
@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[eq.Federation, Any, Path, pd.DataFrame]:
    """A federation that holds out validation rows, with the sex, age and hospital of every person, and its table."""
    place = tmp_path_factory.mktemp("held")
    table(400).to_csv(place / "t.csv", index=False)
    options: dict[str, Any] = OPTIONS | {
        "group": "sex,age:50,60",
        "leave_out": "sex",
        "positive": "ill",
        "tests": "all",
    }
    data = scenarios.load("own", 0, str(place / "t.csv"), **options)
    net = eq.network("mlp", data.shape, data.outputs, seed=0, hidden=[7])
    fed = eq.Federation(
        net, data.clients, "fedavg", eq.SGD(lr=0.1), tests=data.tests, names=data.client_names, classes=data.classes,
        attributes=data.attributes, validation=0.4, positive="ill",
    )  # fmt: skip
    fed.fit(2, progress=False)
    return fed, data, place, pd.read_csv(place / "t.csv")


@pytest.mark.parametrize("why", ["", "training diverged: the loss is not a number"])
def test_of_a_model_of_no_use_that_is_said_first(why: str, tmp_path: Path) -> None:
    files.write(tmp_path / "b", {"measures": {"failure": why} if why else {}, "decision": None}, {})
    assert files.cautions(tmp_path / "b") == [f"The model is of no use: {why}."] * bool(why)


@pytest.mark.parametrize("attribute", ["sex", "age"])
def test_thresholds_by_group_are_taken_home(
    held: tuple[eq.Federation, Any, Path, pd.DataFrame], tmp_path: Path, attribute: str, equipoise: Any
) -> None:
    """The decisions are those of the threshold, of a frame, a file and the command, and of people of unknown group the common one."""
    fed, data, _, frame = held
    chosen = eq.choose_threshold(fed, sensitivity=0.7, by_group=attribute)
    assert len({*chosen.by_group.values()}) > 1
    fed.save_bundle(tmp_path / "b", data=data.manifest, threshold=chosen)
    model, (rows,) = eq.load(tmp_path / "b"), data.manifest["tests"].values()
    part = frame.iloc[rows].reset_index(drop=True)
    bands = np.select([part["age"] < 50, part["age"] < 60], ["< 50", ">= 50 and < 60"], ">= 60")
    groups = part["sex"].tolist() if attribute == "sex" else bands.tolist()
    x = next(iter(data.tests.values()))[0]
    scores = fed.logits(x).double().softmax(-1)[:, 0]
    expected = np.where(chosen.decide(scores, groups), "ill", "well").tolist()
    assert model.predict(part).tolist() == expected
    assert model.predict(part, groups=groups).tolist() == expected
    assert make_pipeline(FunctionTransformer(lambda t: t), model).predict(part).tolist() == expected
    assert model.predict_proba(part).tobytes() == fed.predict_proba(x).numpy().tobytes()
    assert expected != np.where(chosen.decide(scores, ["?"] * len(groups)), "ill", "well").tolist()
    part.to_csv(tmp_path / "p.csv", index=False)
    assert model.predict(tmp_path / "p.csv").tolist() == expected
    done = equipoise("predict", tmp_path / "b", tmp_path / "p.csv", "-o", tmp_path / "o.csv")
    assert done.status == 0
    assert f"note: A threshold by {attribute} uses {attribute} of each person" in done.err
    assert pd.read_csv(tmp_path / "o.csv")["prediction"].tolist() == expected
    text = (tmp_path / "b/README.md").read_text()
    assert f"uses {attribute} of each person at prediction" in text
    assert "disparate treatment" in text
    assert f"depends on {attribute}" in text
    if attribute == "age":  # whose cells are numbers
        return
    gone = part.assign(sex=part["sex"].mask(np.arange(len(part)) % 2 == 0))
    common = [name if k % 2 else "" for k, name in enumerate(groups)]
    with pytest.warns(
        UserWarning, match=rf"of {sum(not c for c in common)} of {len(part)} people the group is not known.*common one"
    ):
        made = model.predict(gone).tolist()
    assert made == np.where(chosen.decide(scores, common), "ill", "well").tolist()
    assert model.predict(part.assign(sex=part["sex"].str.upper())).tolist() == expected
    with pytest.raises(DataError, match="has no column 'sex'"):
        model.predict(part.drop(columns="sex"))
    with pytest.raises(
        DataError, match=r"people have a group that is not known \('(fe)?male', '(fe)?male'\)\. The groups are f, m\."
    ):
        model.predict(part.assign(sex=part["sex"].map({"f": "female", "m": "male"})))
    with pytest.raises(InputError, match="Give the sex of each of the"):
        model.predict(part, groups=["f"])
    part.drop(columns="sex").to_csv(tmp_path / "q.csv", index=False)
    assert "no column 'sex'" in equipoise("predict", tmp_path / "b", tmp_path / "q.csv", "-o", tmp_path / "q").err


def test_groups_that_a_table_calls_otherwise(tmp_path: Path) -> None:
    """The heart scenario calls 0 and 1 female and male."""
    data = scenarios.load("heart", 0)
    net = eq.network("mlp", data.shape, data.outputs, seed=0, hidden=[4])
    fed = eq.Federation(
        net, data.clients, tests=data.tests, names=data.client_names, classes=data.classes, attributes=data.attributes,
        validation=0.4, positive=data.positive,
    )  # fmt: skip
    fed.fit(1, progress=False)
    chosen = eq.choose_threshold(fed, sensitivity=0.8, by_group="sex")
    fed.save_bundle(tmp_path / "b", data=data.manifest, threshold=chosen)
    model = eq.load(tmp_path / "b")
    frame = pd.DataFrame({name: [1] * 4 for name in model.feature_names_in_}).assign(sex=[0, 1, 1.0, 0], thal=3)
    scores = torch.from_numpy(model.predict_proba(frame)[:, 1])
    expected = chosen.decide(scores, ["female", "male", "male", "female"])
    assert (model.predict(frame) == np.where(expected, *reversed(data.classes))).all()
    assert (model.predict(frame, groups=["female", "male", "male", "female"]) == model.predict(frame)).all()


def test_groups_of_arrays_are_given(tmp_path: Path, equipoise: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(60, 5, generator=draw), torch.arange(60) % 2, (torch.arange(60) // 2) % 2) for _ in range(2)]
    fed = eq.Federation(
        eq.network("mlp", (5,), 2, hidden=[3]),
        data,
        tests={"all": data[0]},
        validation=0.4,
        attributes={"sex": ["f", "m"]},
    )
    fed.fit(1, progress=False)
    chosen = eq.choose_threshold(fed, youden=True, by_group=True)
    fed.save_bundle(tmp_path / "b", threshold=chosen)
    model, x, groups = eq.load(tmp_path / "b"), data[0][0].numpy(), ["f", "m", "?"] * 20
    with pytest.warns(UserWarning, match="groups: of 20 of 60 people"):
        made = model.predict(x, groups=groups)
    scores = model.content.task.outputs(model.outputs(x))[:, 1]
    assert (made == chosen.decide(scores, groups)).all()
    with pytest.raises(InputError, match=r"groups=\[\.\.\.\]\); found none"):
        model.predict(x)
    np.save(tmp_path / "x.npy", x)
    assert (
        "Give the sex of each of the 60"
        in equipoise("predict", tmp_path / "b", tmp_path / "x.npy", "-o", tmp_path / "p").err
    )
    assert "groups=[...]" in (tmp_path / "b/README.md").read_text()
    fed.save_bundle(tmp_path / "c")
    with pytest.raises(InputError, match="about all groups alike"):
        eq.load(tmp_path / "c").predict(x, groups=groups)


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_recalibrated_probabilities(
    held: tuple[eq.Federation, Any, Path, pd.DataFrame], tmp_path: Path, kind: str
) -> None:
    """The function is that of the validation rows; decisions with a threshold stay, those without are by the new probabilities."""
    fed, data, _, frame = held
    chosen = eq.choose_threshold(fed, sensitivity=0.7, recalibrate=kind)
    assert chosen.document["recalibration"] is not None
    fit = typed(Recalibration, chosen.document["recalibration"])
    fed.save_bundle(tmp_path / "a", data=data.manifest, recalibrate=kind)
    fed.save_bundle(tmp_path / "b", data=data.manifest, recalibrate=kind, threshold=chosen)
    fed.save_bundle(tmp_path / "c", data=data.manifest, threshold=chosen)
    alone, both, plain_ = (eq.load(tmp_path / name) for name in "abc")
    scores = plain_.content.task.outputs(plain_.outputs(frame))[:, 0].numpy()
    for model in (alone, both):
        made = model.predict_proba(frame)
        assert (made[:, 0] == fit(scores)).all()
        assert (made.sum(1) == 1).all()
    assert (alone.predict(frame) == np.where(fit(scores) >= 0.5, "ill", "well")).all()
    assert (both.predict(frame) == plain_.predict(frame)).all()
    assert (both.predict(frame) == np.where(chosen.decide(scores), "ill", "well")).all()
    text = (tmp_path / "b/README.md").read_text()
    assert f"recalibrated ({kind}), by {chosen.document['rows']['n']} validation rows" in text
    assert f"of {chosen.document['everyone']['brier']:.3f} into {chosen.document['recalibration']['brier']:.3f}" in text
    with pytest.raises(ValueError, match="is for the global model"):
        fed.save_bundle(tmp_path / "d", recalibrate=kind, client=0)
    with pytest.raises(ValueError, match="Unknown recalibration 'beta'"):
        fed.save_bundle(tmp_path / "d", recalibrate="beta")


def test_test_rows_do_not_recalibrate(tmp_path: Path) -> None:
    numbers = []
    for flip in (0, 1):
        data = [
            (torch.randn(60, 5, generator=torch.Generator().manual_seed(k)), torch.arange(60) % 2) for k in range(3)
        ]
        fed = eq.Federation(
            eq.network("mlp", (5,), 2, hidden=[3], seed=0),
            data[:2],
            tests={"all": (data[2][0] * 9, data[2][1] ^ flip)},
            validation=0.4,
        )
        fed.fit(1, progress=False)
        fed.save_bundle(tmp_path / f"{flip}", recalibrate="platt")
        made = eq.load(tmp_path / f"{flip}").about
        numbers.append((made["decision"], made["recalibration"]["brier"]))
    assert numbers[0][0] == numbers[1][0]
    assert numbers[0][1] != numbers[1][1]
    bare = plain()
    bare.fit(1, progress=False)
    with pytest.raises(ValueError, match="holds out no rows for validation"):
        bare.save_bundle(tmp_path / "b", recalibrate="platt")


def test_a_bundle_of_the_first_format(tmp_path: Path) -> None:
    fed = plain(classes=["a", "b"])
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b", threshold=0.45)
    x, about = torch.randn(90, 5), open_json((tmp_path / "b" / files.ABOUT).read_text())
    expected = eq.load(tmp_path / "b").predict(x)
    for name in ("decision", "recalibration"):
        del about[name]
    (tmp_path / "b" / files.ABOUT).write_text(sealed_json(about | {"format": 1}))
    assert (eq.load(tmp_path / "b").predict(x) == expected).all()
    assert (expected == np.where(fed.predict_proba(x)[:, 1].numpy() >= 0.45, "b", "a")).all()


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(-1, 2)), min_size=1, max_size=20),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_each_group_has_its_edge(people: list[tuple[float, int]], edges: list[float]) -> None:
    decision = Decision("sex", ("a", "b", "c"), tuple(edges))
    p, codes = map(np.array, zip(*people, strict=True))
    assert decision(p, codes).tolist() == [score >= edges[k] for score, k in people]
    assert decision(p).tolist() == [score >= edges[3] for score, _ in people]
    assert typed(Decision, json.loads(json.dumps(asdict(decision)))) == decision
    with pytest.raises(ValueError, match="expected 4 edges"):
        Decision("sex", ("a", "b", "c"), tuple(edges[:3]))


# the card
@pytest.mark.parametrize(
    ("sizes", "shown", "total"),
    [
        ([4, 30, 40, 50], ["< 10", "–", "40", "50"], "124"),  # 4 would be 124 without the others
        ([4, 7, 40], ["< 10", "< 10", "40"], "51"),
        ([3, 4, 40, 12], ["< 10", "< 10", "40", "–"], "59"),
        ([20, 30], ["20", "30"], "50"),
        ([4, 5], ["< 10", "< 10"], "fewer than 10"),
    ],
)
def test_no_count_of_few_people_follows_from_the_card(
    sizes: list[int], shown: list[str], total: str, tmp_path: Path
) -> None:
    data = [(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 2) for n in sizes]
    names = [f"c{k}" for k in range(len(sizes))]
    fed = eq.Federation(eq.network("mlp", (3,), 2, seed=0), data, names=names)
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b")
    card = (tmp_path / "b" / "README.md").read_text()
    assert f"It learnt from {total} training samples" in card
    rows = dict(re.findall(r"^\| (c\d) \| ([^|]+) \|", card, flags=re.M))
    assert list(rows.values()) == shown
    sentence = ", ".join(
        f"{name} not shown" if n == "–" else f"{n.replace('< 10', 'fewer than 10 people')} of {name}"
        for name, n in zip(names, shown, strict=True)
    )
    assert committee._sizes(fed.holdings["clients"], 10) == sentence
    least = "fewer than 10" if min(sizes) < 10 else str(min(sizes))
    assert f"clients with {least}" in holdings.sentence(fed.holdings, least=10)


def test_no_count_of_few_people_follows_from_who_was_away(tmp_path: Path) -> None:
    sizes = [200, 4, 60, 100]
    data = [(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 2) for n in sizes]
    names = [f"c{k}" for k in range(len(sizes))]
    fed = eq.Federation(eq.network("mlp", (3,), 2, seed=0), data, names=names, joins="c2=9")
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b")
    card = (tmp_path / "b" / "README.md").read_text()
    assert "It was given 364 training samples of 4 clients; c2 trained in no round." in card
    assert dict(re.findall(r"^\| (c\d) \| ([^|]+) \|", card, flags=re.M))["c1"] == "< 10"
    page = committee.render(eq.Comparison.of([fed.history]))
    assert "was given 364 rows of 4 sites" in page
    assert "c2 trained in no round" in page


def test_the_card_says_who_is_served_how_well(made: tuple[eq.Federation, Any, Path, pd.DataFrame]) -> None:
    fed, _, folder, _ = made
    text, page = ((folder / name).read_text() for name in ("README.md", "card.html"))
    header = text.split("---\n")[1]
    values = {line.split(": ", 1)[0]: json.loads(line.split(": ", 1)[1]) for line in header.splitlines()}
    assert values["license"] == "cc-by-4.0"
    assert {"equipoise", "tabular-classification"} <= {*values["tags"]}
    metrics = {of["dataset"]["name"]: of["metrics"][0]["value"] for of in values["model-index"][0]["results"]}
    groups = fed.records[-1]["groups"]
    assert metrics == pytest.approx({name: 100 * of["accuracy"] for name, of in groups.items()})
    for word in ("For tests.", "| north |", "true-positive rate", "95\u00a0% interval", "| sex f |", "fedavg, seed 0"):
        assert word in text, word
    for name, of in groups.items():
        assert f"| sex {name} | {of['n']} | {100 * of['accuracy']:.1f} [" in text
        assert f'<th scope="row">sex {name}<wbr></th><td class="">{of["n"]}</td>' in page


def header_of(text: str) -> dict[str, Any]:
    """The metadata, as YAML reads them."""
    yaml = pytest.importorskip("yaml")
    _, block, _ = text.split("---\n", 2)
    made: dict[str, Any] = yaml.safe_load(block)
    return made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (" CC-BY-4.0 ", {"license": "cc-by-4.0"}),
        ("MIT", {"license": "mit"}),
        ("Our own: see #2 'here' \"there\" {x}", {"license": "other"}),
        ("yes", {"license": "other"}),
        ("données ouvertes – 2.0 😀", {"license": "other"}),
        ("", {}),
    ],
)
def test_the_metadata_are_yaml(tmp_path: Path, name: str, expected: dict[str, str]) -> None:
    fed = plain()
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b #: 2", license=name, use="a\n\n---\nevil: 1", contact="x\n# y")
    text = (tmp_path / "b #: 2/README.md").read_text()
    header = header_of(text)
    if expected.get("license") == "other":
        expected = {**expected, "license_name": name.strip()}
    assert {key: value for key, value in header.items() if key.startswith("license")} == expected
    assert header.keys() - {"license", "license_name"} == {
        "library_name",
        "pipeline_tag",
        "tags",
        "metrics",
        "model-index",
    }
    assert header["metrics"] == ["accuracy"]
    assert header["model-index"][0]["name"] == "b #: 2"
    assert "\nevil" not in text
    assert "\n# y" not in text


def test_a_data_set_of_the_hub_is_named(made: tuple[eq.Federation, Any, Path, pd.DataFrame], tmp_path: Path) -> None:
    fed, data, _, _ = made
    for source, expected in (
        ("hub:owner/people/2019", ["owner/people"]),
        ("hub:owner/people", ["owner/people"]),
        ("/home/a/b.csv", None),
    ):
        fed.save_bundle(tmp_path / "b", data={**data.manifest, "source": source})
        text = (tmp_path / "b/README.md").read_text()
        assert header_of(text).get("datasets") == expected
        assert "/home" not in text + (tmp_path / "b/bundle.json").read_text()
        shutil.rmtree(tmp_path / "b")


def test_the_folder_comes_back_from_the_hub(
    made: tuple[eq.Federation, Any, Path, pd.DataFrame], tmp_path: Path
) -> None:
    """As its cache lays files out, by links; and a clone without Git LFS is refused with what to do."""
    _, _, folder, frame = made
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots/1").mkdir(parents=True)
    for k, file in enumerate(folder.iterdir()):
        shutil.copy(file, tmp_path / f"blobs/{k}")
        (tmp_path / "snapshots/1" / file.name).symlink_to(tmp_path / f"blobs/{k}")
    assert (eq.load(tmp_path / "snapshots/1").predict(frame) == eq.load(folder).predict(frame)).all()
    clone_ = copied(folder, tmp_path / "clone")
    (clone_ / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(InputError, match=r"model\.safetensors is a pointer of Git LFS.*git lfs pull"):
        eq.load(clone_)


@pytest.mark.parametrize("name", ["mit\n---\nevil: 1", "a\rb", "\x1b[31m", "a\u2028b", "x" * 101, None, 4])
def test_a_licence_is_one_line(tmp_path: Path, name: Any) -> None:
    fed = plain()
    fed.fit(1, progress=False)
    with pytest.raises(InputError, match="must be the name of a licence on one line"):
        fed.save_bundle(tmp_path / "b", license=name)
    assert not [*tmp_path.iterdir()]


def test_any_text_is_one_value_of_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    for text in ("a\x85b", "\u2028", "\ufeffx", "---", "\x7f", "tab\t", "\\n", 'quote " x', "1e3", "😀"):
        line = f"key: {card._yaml([text])}"
        assert len(line.splitlines()) == 1
        assert yaml.safe_load(line) == {"key": [text]}


def test_groups_that_are_numbers_are_called_by_their_attribute(tmp_path: Path) -> None:
    """In the sentence of the card, too, and of a federation without a scenario."""
    s, y = torch.arange(60) % 2, (torch.arange(60) // 2) % 2
    data = [(torch.randn(60, 5, generator=torch.Generator().manual_seed(k)), y, s) for k in range(2)]
    tests = {str(k): tuple(part[s == k] for part in data[0]) for k in (0, 1)}
    fed = eq.Federation(eq.network("mlp", (5,), 2, hidden=[3]), data, tests=tests, attributes={"sex": ["0", "1"]})
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b")
    text = (tmp_path / "b/README.md").read_text()
    assert re.search(r"in group sex [01] .* and \d+ in group sex [01]", text)
    assert "in group 0" not in text
    assert "sex sex" not in text


@pytest.mark.parametrize(
    ("words", "risky"),
    [(("+", "-"), 0), (("=1+1", "@SUM"), 2), (("-0", "+b"), 1), (("'+", '+,"x"'), 1), ((" a", "-a b"), 1)],
)
def test_predictions_have_classes_and_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any, words: tuple[str, str], risky: int
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = table()
    classes = [word.strip() for word in words]
    frame["label"] = np.where(frame["label"] == "ill", words[0], words[1])
    names = [f"{'=+-@'[k % 4]}A{k}" if risky else f"{'a ,;'[k % 4]}{k}" for k in range(N)]
    frame.assign(name=names).to_csv("t.csv", index=False)
    how = ("--set", "leave_out=name", "--set", "client=site", "--set", "not_missing=-")
    done = equipoise(
        "run", "--data", "t.csv", *how, "--rounds", 1, "--network", "mlp(hidden=[7])", "--name", "a", "--no-report"
    )
    assert done.status == 0, done.err
    assert equipoise("export", "runs/a", "--bundle", "model").status == 0
    done = equipoise("predict", "model", "t.csv", "--output", "p.csv", "--id", "name")
    assert done.status == 0, done.err
    assert done.err.count("would run cells of the file as formulas, such as '=A0'") == (risky > 0)
    made = pd.read_csv("p.csv", keep_default_na=False)
    assert [*map(plain_cell, made["name"])] == names
    assert made["name"].str.startswith("ʼ").all() == (risky > 0)
    assert {*map(plain_cell, made["prediction"])} <= {*classes}
    assert {*made.columns} == {"name", "prediction", *(f"probability {name}" for name in classes)}
    made.assign(label=frame["label"], sex=frame["sex"]).to_csv("q.csv", index=False)
    done = equipoise(
        "audit",
        "q.csv",
        "--prediction",
        "prediction",
        "--group",
        "sex",
        "--positive",
        classes[0],
        "--set",
        "not_missing=-",
        "--json",
    )
    assert done.status == 0, done.err


# the command line
def test_the_journey_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    """A European table: semicolons, decimal commas, no UTF-8; predictions of one with a missing cell, and without a label."""
    monkeypatch.chdir(tmp_path)
    how = {"sep": ";", "decimal": ",", "index": False}
    frame = table().rename(columns={"pain": "Schmerz ü"}).assign(number=lambda x: np.arange(len(x)) * 7)
    frame.to_csv("t.csv", encoding="latin-1", **how)
    told = [
        f
        for name, value in {**OPTIONS, "encoding": "latin-1", "decimal": ",", "leave_out": "number"}.items()
        if name != "columns"
        for f in ("--set", f"{name}={value}")
    ]
    run = ("run", "--data", "t.csv", *told, "--rounds", 2, "--network", "mlp(hidden=[7])", "--name", "a", "--no-report")
    assert equipoise(*run).status == 0
    done = equipoise("export", "runs/a", "--bundle", "model")
    assert (done.status, "model: a bundle" in done.out) == (0, True), done.err
    other = frame.drop(columns="label")
    other.loc[4, "age"] = np.nan
    other.to_csv("new.csv", encoding="latin-1", **how)
    done = equipoise("predict", "model", "new.csv", "--output", "p.csv", "--id", "number")
    assert (done.status, "note: column age: 1 cell is missing" in done.err) == (0, True), done.err
    made = pd.read_csv("p.csv")
    assert [*made] == ["number", "prediction", "probability ill", "probability well"]
    assert made["number"].tolist() == frame["number"].tolist()
    fed = runs.trained(tmp_path / "runs/a")
    manifest = open_json(Path("runs/a/manifest.json").read_text())["data"]
    for name, rows in manifest["tests"].items():
        kept = [k for k, row in enumerate(rows) if row != 4]
        expected = fed.predict_proba(fed.tests.sets[name].store.x)[kept].numpy()
        assert np.abs(made.iloc[rows].iloc[kept, 2:].to_numpy() - expected).max() < 1e-6
    said = equipoise("predict", "model", "new.csv", "--output", "p.csv")
    assert (said.status, "p.csv exists" in said.err) == (2, True)
    for arguments, why in (
        (("new.csv", "--id", "name"), "has the columns"),
        (("new.csv", "--set", "seperator=;"), "Unknown option 'seperator'"),
        (("new.csv", "--set", "encoding=utf-8"), "--set encoding=latin-1"),
        (("gone.csv",), "is no file"),
    ):
        said = equipoise("predict", "model", *arguments, "--output", "q.csv")
        assert (said.status, why in said.err) == (2, True), said.err
    assert not Path("q.csv").exists()
    for arguments in (("--compact",), ("--output", "x"), ("--client", "all")):
        assert (
            "has no effect together with --bundle" in equipoise("export", "runs/a", "--bundle", "other", *arguments).err
        )
    assert "replaces nothing" in equipoise("export", "runs/a", "--bundle", "model").err
    assert "without --bundle DIR. Add that" in equipoise("export", "runs/a", "--license", "mit").err


# ONNX
def test_the_graph_agrees(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    x = torch.randn(300, 5)
    for k, net in enumerate((None, nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))):
        fed = plain(net)
        fed.fit(1, progress=False)
        fed.save_bundle(tmp_path / f"{k}", onnx=True)
        session = runtime.InferenceSession(io.BytesIO((tmp_path / f"{k}/model.onnx").read_bytes()).getvalue())
        (given_,) = session.run(None, {"inputs": x.numpy()})
        assert np.abs(given_ - fed.logits(x).numpy()).max() < 1e-5
        assert np.abs(eq.load(tmp_path / f"{k}").predict_proba(x) - fed.predict_proba(x).numpy()).max() < 1e-5


@pytest.mark.parametrize(("dtype", "runs"), [("float64", False), ("bfloat16", False), ("float16", True)])
def test_a_graph_that_onnxruntime_cannot_run_is_not_called_damaged(tmp_path: Path, dtype: str, runs: bool) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Linear(9, 2))
    fed = plain(net.to(getattr(torch, dtype)))
    fed.fit(1, progress=False)
    if runs:
        fed.save_bundle(tmp_path / "b", onnx=True)
        assert eq.load(tmp_path / "b").predict_proba(np.zeros((3, 5))).shape == (3, 2)
        return
    with pytest.raises(
        InputError, match=r"onnxruntime \S+ cannot run this network \(.*single precision only\. .*net\.float\(\)"
    ):
        fed.save_bundle(tmp_path / "b", onnx=True)
    assert not (tmp_path / "b").exists()


def test_arrays_of_any_layout_predict_the_same(tmp_path: Path) -> None:
    fed = plain()
    fed.fit(1, progress=False)
    fed.save_bundle(tmp_path / "b")
    model, x = eq.load(tmp_path / "b"), np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    packed = np.zeros(20, [("n", "u1"), ("x", "f4", 5)])
    packed["x"] = x
    for same in (x[::-1][::-1], x.astype(">f4"), np.asfortranarray(x), packed["x"], x.astype(">f8")[::-1][::-1]):
        assert np.array_equal(model.predict_proba(same), model.predict_proba(x))


def test_a_bundle_in_the_folder_of_a_run_is_not_taken_for_that_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    """Only the server of sites writes one there."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(
        "v,label,client\n" + "".join(f"{k * 7 % 11},{k % 2},{'ab'[k % 3 > 0]}\n" for k in range(40))
    )
    assert equipoise("run", "--data", "t.csv", "--rounds", "1", "--name", "a", "--no-report").status == 0
    Path("runs/a/bundle").mkdir()
    assert equipoise("export", "runs/a", "--bundle", "b", "--use", "none").status == 0
    assert eq.load("b").predict({"v": [1.0, 2.0]}).shape == (2,)
