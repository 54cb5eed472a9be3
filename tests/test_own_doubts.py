"""Notes on columns that tell the class, name rows, say nothing, or hold a number that stands for a missing one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from sklearn import datasets

from equipoise.data.formats.reading import read_user_data
from equipoise.data.tables.checks import identifiers, stand_ins, tells
from equipoise.data.tables.columns import Columns
from equipoise.data.tables.schema import Feature, Schema
from equipoise.federation.history import History
from equipoise.report import comparison, render, rich_table
from equipoise.report.notes import leaks
from equipoise.system.terminal import Terminal
from equipoise.system.text import Said, key_of
from helpers import in_one

N = 120
RNG = np.random.default_rng(7)
Y = RNG.permutation(np.arange(N) % 4)
TELLING = {
    "equal": Y * 1.0,
    "copied one to one": np.array([7, -2, 30, 5])[Y],
    "more exact than the class": Y * 10 + RNG.integers(0, 4, N),
    "an interval for each class": Y + RNG.random(N) / 2,
    "one class and the others": (Y == 2) * 1.0,
    "two classes and two others": np.isin(Y, [0, 3]) * 1.0,
}
NAMING = {
    "patient_id": RNG.permutation(10**6)[:N],
    "caseNo": RNG.permutation(10**6)[:N],
    "visit": 198_712_260_000 + RNG.integers(0, 10**6, N) * 100,
    "seen": RNG.permutation(N) + 1001,
    "long": 123_456_789_012_345_678 + RNG.integers(0, 10**9, N),
    "year": 1900 + np.arange(N) * 2,
}


@in_one("name", TELLING)
def test_a_column_that_tells_the_class_alone(name: str) -> None:
    x = np.stack([RNG.normal(size=N), TELLING[name], RNG.integers(0, 3, N)], 1)
    assert tells(x, Y) == [1]
    x[N // 2, 1] = (
        x[Y[N // 2] == (Y + 2) % 4, 1][0] if len({*TELLING[name]}) > 2 else 1 - x[N // 2, 1]
    )  # one row is otherwise
    assert tells(x, Y) == []


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([8, 12, 30, 200, 1500]),
    st.integers(2, 5),
    st.sampled_from([2, 5, 50, 10**6]),
)
def test_columns_that_have_nothing_to_do_with_the_class_are_not_said(
    seed: int, n: int, classes: int, values: int
) -> None:
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(0.6, n) - 1, classes - 1)  # unequal classes
    x = np.concatenate([rng.integers(0, values, (n, 10)), rng.normal(size=(n, 10))], 1)
    assert tells(x, np.unique(y, return_inverse=True)[1]) == []


@in_one("name", ["iris", "wine", "breast_cancer", "digits"])
def test_measurements_are_no_false_alarm(name: str) -> None:
    data = getattr(datasets, f"load_{name}")()
    assert tells(data.data, data.target) == []
    assert identifiers(data.data, ["v"] * data.data.shape[1]) == []
    assert not any(stand_ins(column) for column in data.data.T)


def test_columns_that_name_rows_and_those_that_measure() -> None:
    x = np.stack([*NAMING.values()], 1).astype(np.float64)
    assert identifiers(x, [*NAMING]) == [*range(len(NAMING))]
    measured = {
        "age": RNG.integers(18, 90, N),
        "income": RNG.permutation(90_000)[:N],
        "z": RNG.normal(size=N) * 1e9,
        "code": Y,
    }
    assert identifiers(np.stack([*measured.values()], 1), [*measured]) == []


@in_one(
    ("column", "expected"),
    [
        ([20, 35, -999, 61, -999, 44], [(-999.0, 2)]),
        ([1, 2, 2, -9, 3, 1], [(-9.0, 1)]),
        ([0, 2000, 99999, 41000, 0, 10], [(99999.0, 1)]),
        ([20, 35, -999, 61, 999, 44], [(-999.0, 1), (999.0, 1)]),
        ([20, 35, 99, 61, 80, 44], []),
        ([-9, -7, -3, 0, 4, 9], []),
        ([999, 999, 5, 5, 5, 5], []),
        ([900, 950, 999, 990, 940, 800], []),
    ],
)
def test_numbers_that_may_stand_for_missing_ones(column: list[int], expected: list[tuple[float, int]]) -> None:
    assert stand_ins(np.array(column)) == expected


def frame() -> pd.DataFrame:
    age = RNG.integers(20, 90, N)
    age[[3, 50, 51]] = -999
    label = np.array(["well", "ill"])[Y % 2]
    return pd.DataFrame(
        {"age": age, "patient_id": NAMING["patient_id"], "num": Y, "ward": 3, "v": RNG.normal(size=N), "label": label}
    )


EXPECTED = {
    "num tells the class": "num",
    "patient_id may number the rows": "patient_id",
    "ward holds the same number in every row": "ward",
    "age is -999 in 3 rows": "",
}


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_tables_say_it_with_an_option_that_works(name: str, tmp_path: Path) -> None:
    table = frame()
    table.to_csv(tmp_path / name, index=False) if name == "t.csv" else table.to_parquet(tmp_path / name)
    notes = read_user_data(tmp_path / name).notes
    assert len(notes) == len(EXPECTED)
    for note, said in zip(notes, EXPECTED, strict=True):
        assert said in note
    assert "--set leave_out=num,patient_id,ward." in notes[2]  # of all, so that the last one may be pasted
    (left,) = read_user_data(tmp_path / name, Columns(leave_out=("num", "patient_id", "ward"))).notes
    assert left == notes[3]


@pytest.mark.parametrize(
    ("columns", "label"),
    [(["num"], "label"), (["num", "again"], "label"), (["rise"], "y"), (["rise", "fall"], "y")],
)
def test_a_report_begins_with_columns_that_give_the_label_away(
    columns: list[str], label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    y = RNG.normal(size=N).round(6) + 0.5
    table = frame().drop(columns="num").assign(y=y, num=Y, again=Y * 1.0, rise=2 * y, fall=-y)
    table[["age", "patient_id", "ward", *columns, label]].to_csv(tmp_path / "t.csv", index=False)
    found = read_user_data(tmp_path / "t.csv", Columns(label=label, task="regression" if label == "y" else None))
    record = {"round": 0, "groups": {"a": {"accuracy": 0.9, "loss": 1.0, "n": 90}}}
    meta = {"method": "m", "header": [Said(f"data: {note}", key_of(note)) for note in found.notes]}
    runs = [History([record], meta), History([record], {**meta, "method": "n"})]
    (note,) = leaks(runs)
    assert all(name in note for name in columns)
    assert note in found.notes
    document, page = comparison(runs), render(runs)
    assert document["notes"][0] == note
    assert page.count(f"<li>{note.replace('&', '&amp;')}</li>") == 1
    assert (
        page.index('class="headline"')
        < page.index(note)
        < page.index("one seed proves nothing")
        < page.index('class="part"')
    )
    Terminal(width=200).print(rich_table(document, 200, details=False))
    assert " ".join(note.split()) in " ".join(capsys.readouterr().out.split())


def test_arrays_and_functions_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = frame()
    x, y = table.drop(columns="label").to_numpy(np.float64), (table.label == "ill").to_numpy(int)
    np.savez(tmp_path / "t.npz", x=x, y=y)
    monkeypatch.chdir(tmp_path)
    Path("made.py").write_text("import numpy as np\ndef clients():\n    return dict(np.load('t.npz'))\n")
    for source in ("t.npz", "made.py:clients"):
        notes = [note for note in read_user_data(source).notes if "x[:, " in note]
        assert [
            any(said in note for note in notes)
            for said in ("x[:, 2] tells the class", "x[:, 3] holds the same", "x[:, 0] is -999")
        ] == [True] * 3
        assert not any("leave_out" in note for note in notes)
    np.savez(tmp_path / "i.npz", x=np.zeros((N, 8, 8), np.uint8), y=y)
    assert read_user_data("i.npz").notes == ()


def test_numbers_of_half_precision_are_looked_at_as_others_are(tmp_path: Path) -> None:
    x = np.column_stack([RNG.normal(size=N), np.full(N, 3), Y]).astype(np.float16)
    notes = []
    for dtype in (np.float16, np.float32):
        np.savez(tmp_path / "t.npz", x=x.astype(dtype), y=Y)
        notes.append(read_user_data(tmp_path / "t.npz").notes)
    assert len(notes[0]) == 2
    assert notes[0] == notes[1]


def hospitals(n: int = 120) -> pd.DataFrame:
    draw = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "pressure": np.round(draw.normal(130, 18, n)),
            "sugar": np.round(draw.normal(5.5, 0.8, n), 2),
            "visits": draw.poisson(1.0, n),
            "gain": np.where(draw.random(n) < 0.9, 0, np.round(draw.lognormal(7, 1.5, n))),
            "change": np.round(draw.normal(0, 1, n), 2),
            "ward": draw.choice(["a", "b", "c"], n),
            "client": np.array(["north", "south", "west"])[np.arange(n) % 3],
            "label": draw.permutation(np.arange(n) % 2),
        }
    )


def notes(path: Path, frame: pd.DataFrame, **options: str) -> list[str]:
    frame.to_csv(path / "t.csv", index=False)
    return list(read_user_data(path / "t.csv", Columns(**options)).notes)  # type: ignore[arg-type]


def test_numbers_as_they_are_raise_no_question(tmp_path: Path) -> None:
    """Counts, amounts that are mostly zero, and differences around zero are no marks of missing cells."""
    assert notes(tmp_path, hospitals()) == []
    small = hospitals().assign(client=lambda f: [f"c{k // 4}" for k in range(len(f))])
    small.loc[:3, "pressure"] = np.nan  # all four rows of one client, which are too few
    assert notes(tmp_path, small) == []


@in_one("column", ["pressure", "sugar"])
def test_zeros_far_from_all_other_numbers_are_asked_about(
    column: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, frame = tmp_path_factory.mktemp(column), hospitals()
    frame.loc[frame.index % 5 == 1, column] = 0
    frame.loc[frame.index % 7 == 3, column] = np.nan
    (said,) = notes(path, frame)
    zeros, present = int((frame[column] == 0).sum()), int(frame[column].notna().sum())
    near = frame[column][frame[column] > 0].min()
    assert f"{column} is 0 in {zeros} of {present} rows, and the number next to it is {near:g}" in said
    assert f"add missing_values = [0] to {column} under [columns]" in said
    columns = json.dumps({column: {"missing_values": [0]}})
    assert notes(path, frame, schema=columns) == []
    own = read_user_data(path / "t.csv", Columns(schema=columns))
    assert own.inputs.columns[column].missing.sum() == zeros + frame[column].isna().sum()  # type: ignore[union-attr]


@in_one("other", ["-999", "n.d.", "unknown"])
def test_values_that_a_user_names_are_missing(other: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Numbers and words, in columns of numbers and of categories; and a schema has its old hash without them."""
    path, frame = tmp_path_factory.mktemp("named"), hospitals().astype({"sugar": object})
    frame.loc[frame.index % 6 == 2, ["sugar", "ward"]] = other
    columns = {"sugar": {"kind": "number", "low": 0, "missing_values": [other]}, "ward": {"missing_values": [other]}}
    frame.to_csv(path / "t.csv", index=False)
    own = read_user_data(path / "t.csv", Columns(schema=json.dumps(columns)))
    cells = own.inputs.columns  # type: ignore[union-attr]
    assert all((cells[name].missing == (frame.index % 6 == 2)).all() for name in columns)
    assert cells["ward"].words == ("a", "b", "c")
    feature = next(f for f in own.inputs.schema.features if f.name == "ward")  # type: ignore[union-attr]
    assert Schema((feature,)).digest != Schema((replace(feature, missing_values=()),)).digest
    assert Schema((Feature("x"),)).digest.startswith("6c7da3d45a67")


UNLIKE = {
    "empty": (lambda x: x * np.nan, "column sugar: every cell is missing at client south, and not elsewhere"),
    "in another unit": (lambda x: x * 18.02, "column sugar: the median at client south is 9[0-9].*, and 5.* to 5.* elsewhere"),
    "a thousandth": (lambda x: x / 1000, "the median at client south is 0.005"),
    "zero": (lambda x: x * 0, "the median at client south is 0, and 5"),
}  # fmt: skip


@in_one("kind", UNLIKE)
def test_a_client_at_which_a_column_is_unlike_is_named(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path, frame = tmp_path_factory.mktemp("unlike"), hospitals()
    change, said = UNLIKE[kind]
    there = frame["client"] == "south"
    frame.loc[there, "sugar"] = change(frame.loc[there, "sugar"])
    assert any(re.search(said, note) for note in notes(path, frame))
    shuffled = frame.assign(client=np.random.default_rng(0).permutation(frame["client"]))
    assert not any("client" in note for note in notes(path, shuffled))


def test_many_columns_that_differ_are_said_in_short(tmp_path: Path) -> None:
    frame = hospitals()
    for k in range(30):
        frame[f"x{k}"] = np.where(frame["client"] == "west", 1000, 1) * frame["sugar"] + k
    said = notes(tmp_path, frame)
    assert len(said) == 11
    assert said[-1].endswith("20 more notes of that kind are left out.")


def test_a_table_of_words_only_is_read(tmp_path: Path) -> None:
    assert notes(tmp_path, hospitals()[["ward", "client", "label"]]) == []
