"""Groups of the user's table: several columns, and bands of numbers."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.tables.columns import Columns
from equipoise.data.tables.roles import Group
from equipoise.runs.configuration import option_value

N = 90
AGES = [18 + 7 * k % 80 for k in range(N)]
SEX = ["fm"[k % 2] for k in range(N)]
RACE = ["abc"[k // 2 % 3] for k in range(N)]
CODES = [str(k % 45) for k in range(N)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["v", "label", "client", "sex", "race", "age", "size, mm", "ward"])
        for k in range(N):
            row = [k * 7 % 11, "xy"[k % 7 > 3], "AB"[k % 4 > 1], SEX[k], RACE[k], AGES[k], "sl"[k % 2], CODES[k]]
            writer.writerow(row)
    return path


def load(path: Path, group: Any, **options: Any) -> eq.Scenario:
    text = {"sex", "race", "age", "size, mm", "ward", "client"}
    used = {"leave_out": sorted(text - ({group} if isinstance(group, str) else set()) - _columns(group)), **options}
    return eq.scenario("own", data=str(path), group=group, **used)


def _columns(group: Any) -> set[str]:
    words = group if isinstance(group, list) else re.split(",", group)
    return {word.partition(":")[0] for word in words} | {"client"}


@pytest.mark.parametrize("group", ["sex,race", ["sex", "race"], "sex, race"])
def test_several_columns_are_attributes_and_their_values_together_test_sets(table: Path, group: Any) -> None:
    made = load(table, group)
    assert made.attributes == {"sex": ("f", "m"), "race": ("a", "b", "c")}
    assert list(made.tests) == [f"{sex}, {race}" for sex in "fm" for race in "abc"]
    for name, data in made.tests.items():
        assert {("fm"[s], "abc"[r]) for s, r in data[2].tolist()} == {tuple(name.split(", "))}
    fed = eq.Federation(
        eq.network("mlp", made.shape, 2, hidden=[4]), list(made.clients), tests=made.tests, attributes=made.attributes
    )
    by = fed.evaluate(*made.clients[0])["by"]
    assert {name: list(values) for name, values in by.items()} == {"sex": ["f", "m"], "race": ["a", "b", "c"]}
    assert sum(score["n"] for score in by["sex"].values()) == len(made.clients[0][1])


@pytest.mark.parametrize("group", ["age:40,60", ["age:40,60"], '"age:40,60"'])
def test_numbers_are_divided_into_the_bands_that_were_given(table: Path, group: Any) -> None:
    own = read_user_data(
        table,
        Columns(
            group=tuple(group) if isinstance(group, list) else group, leave_out=("race", "sex", "size, mm", "ward")
        ),
    )
    expected = ["< 40" if age < 40 else ">= 60" if age >= 60 else ">= 40 and < 60" for age in AGES]
    assert own.group == tuple(expected)
    assert own.values == {"age": ("< 40", ">= 40 and < 60", ">= 60")}
    assert "age" not in own.features


def test_bands_and_columns_go_together_and_the_command_line_reads_them(table: Path) -> None:
    for text in ("sex,age:50", "age:50,sex", "['sex', 'age:50']", '"age:50",sex'):
        made = load(table, option_value("own", "group", text), leave_out=["race", "size, mm", "ward"])
        assert {name: set(values) for name, values in made.attributes.items()} == {
            "sex": {"f", "m"},
            "age": {"< 50", ">= 50"},
        }
        assert len(made.tests) == 4


def test_a_column_whose_name_has_a_comma_is_one_column(table: Path) -> None:
    own = read_user_data(table, Columns(group="size, mm", leave_out=("race", "sex", "age", "ward")))
    assert own.values == {"size, mm": ("l", "s")}


@pytest.mark.parametrize("others", ["", "sex,"])
def test_many_different_numbers_are_refused_and_the_advice_works(table: Path, others: str) -> None:
    leave = ("race", "size, mm", "ward", *(["sex"] if not others else []))
    with pytest.raises(
        DataError, match=r"age has 80 different numbers, and each would be a group\. Choose bands"
    ) as refused:
        read_user_data(table, Columns(group=f"{others}age", leave_out=leave))
    (typed,) = re.findall(r"--set ('[^']*'|\S+)", str(refused.value))
    advised = shlex.split(typed)[0].rstrip(".").removeprefix("group=")
    own = read_user_data(table, Columns(group=option_value("own", "group", advised), leave_out=leave))
    assert len(own.values["age"]) == 3


def test_codes_of_clients_may_be_groups(table: Path) -> None:
    own = read_user_data(
        table, Columns(group="ward", client="ward", leave_out=("race", "sex", "size, mm", "age", "client"))
    )
    assert len(own.values["ward"]) == 45


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("age:60,40", r"edges of the bands in group=age:60,40 must be increasing numbers, such as age:40,60"),
        ("age:", r"edges of the bands in group=age: must be increasing numbers"),
        ("age:nan", "must be increasing numbers"),
        ("sex:40", r"group=sex:\.\.\. needs a number in every row of sex"),
        ("sex,rice", r"Unknown column 'rice'\. Did you mean 'race'"),
        ("sex,label", r"the column label is named for two purposes, label and group label"),
        ("age:40,age:60", r"group=age:40,age:60 names a column twice"),
    ],
)
def test_groups_that_cannot_be(table: Path, group: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_user_data(table, Columns(group=group, leave_out=("size, mm",)))


@pytest.mark.parametrize("form", ["npz", "mat"])
def test_arrays_have_several_groups_too(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"t.{form}"
    arrays = {"x": np.arange(2.0 * N).reshape(N, 2) % 7, "y": np.arange(N) % 2, "client": np.arange(N) % 3}
    arrays |= {"sex": np.array(SEX), "age": np.array(AGES)}
    if form == "npz":
        np.savez(path, **arrays)
    else:
        from scipy.io import savemat

        savemat(path, arrays)
    own = read_user_data(path, Columns(group="sex,age:40"))
    assert own.values == {"sex": ("f", "m"), "age": ("< 40", ">= 40")}
    assert own.codes is not None
    assert own.codes.shape == (N, 2)
    assert own.attributes["sex"] == tuple(SEX)


@given(
    numbers=st.lists(st.integers(-99, 99), min_size=1, max_size=30),
    edges=st.lists(st.integers(-90, 90), min_size=1, max_size=4, unique=True).map(sorted),
)
def test_every_number_is_in_the_one_band_that_holds_it(numbers: list[int], edges: list[int]) -> None:
    group = Group("age", "age", tuple(map(float, edges)))
    bands = group.values(tuple(map(str, numbers)), Columns(), "t", client=False)
    for number, band in zip(numbers, bands, strict=True):
        for part in band.split(" and "):
            sign, edge = part.split()
            assert number < int(edge) if sign == "<" else number >= int(edge)
    assert len({*bands}) == len({sum(number >= edge for edge in edges) for number in numbers})
