"""Tables as people have them: each is read right, to the last cell, or refused with all problems at once and advice that works."""

from __future__ import annotations

import csv
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.coding import Coder
from equipoise.data.tables.columns import Columns, UserData
from equipoise.data.tables.words import same_numbers
from equipoise.runs.configuration import option_value
from equipoise.scenarios import own

N = 24  # rows
PLAIN = [(row * 7) % 11 / 2 for row in range(N)]
LABELS = ["sick", "well", "well", "sick"] * (N // 4)
DATES = [f"2020-01-{day:02}" for day in range(1, N + 1)]
DAY = 18262.0  # 2020-01-01, in days since 1970


def text(columns: dict[str, Sequence[object]], sep: str = ",", end: str = "\r\n") -> str:
    """A table with these columns, whose cells are repeated down to the longest."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=sep, lineterminator=end)
    writer.writerow(columns)
    length = max(map(len, columns.values()))
    writer.writerows([[cells[row % len(cells)] for cells in columns.values()] for row in range(length)])
    return file.getvalue()


def beside(cells: Sequence[object], **how: Any) -> str:
    """A table with a column x of these cells, next to a plain one and the label."""
    return text({"plain": PLAIN, "x": cells, "label": LABELS}, **how)


def alone(cells: Sequence[object], **how: Any) -> str:
    """The same next to whole numbers, which do not show the sign before fractions."""
    return text({"plain": [row * 7 % 11 for row in range(N)], "x": cells, "label": LABELS}, **how)


def read(path: Path, content: str | bytes, **options: Any) -> UserData:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_user_data(path, own.columns_of(**options))


def cells_of(data: UserData, name: str) -> list[Any]:
    """The cells of a column as they were read: numbers, words, or None."""
    assert isinstance(data.inputs, RawTable)
    cells = data.inputs.columns[name]
    if cells.words:
        return [cells.words[code] if code >= 0 else None for code in cells.values.tolist()]
    return [None if number != number else number for number in cells.values.tolist()]


def kind_of(data: UserData, name: str) -> str:
    assert isinstance(data.inputs, RawTable)
    return next(feature.kind for feature in data.inputs.schema.features if feature.name == name)


READ: dict[str, tuple[str | bytes, Sequence[Any]]] = {  # the table, and its column x
    "unicode": (beside(["男", "女", "ä", "e\u0301"]), ["男", "女", "ä", "e\u0301"]),
    "quotes": (beside(['say "a"', "b, c", "d\ne", "f"]), ['say "a"', "b, c", "d\ne", "f"]),
    "byte order mark": ("\ufeff" + beside(PLAIN), PLAIN),
    "utf-16": (beside(["ä", "ö", "ü", "a"]).encode("utf-16"), ["ä", "ö", "ü", "a"]),
    "old line ends": (beside(PLAIN, end="\r"), PLAIN),
    "empty lines": (beside(PLAIN, end="\n\n\n"), PLAIN),
    "comment above": ("# exported in May\n" + beside(PLAIN), PLAIN),
    "sep= of Excel": ("sep=;\r\n" + beside(PLAIN, sep=";"), PLAIN),
    "tabulators": (beside(PLAIN, sep="\t"), PLAIN),
    "bars": (beside(["a b", "c", "d", "e"], sep="|"), ["a b", "c", "d", "e"]),
    "trailing separators": (beside(PLAIN, end=",\r\n"), PLAIN),
    "trailing separators of rows": (beside(PLAIN, end=",\r\n").replace("label,", "label", 1), PLAIN),
    "blanks around names and cells": (
        text({"plain": PLAIN, " x ": [" a", "b ", " c ", "d"], "label": LABELS}),
        ["a", "b", "c", "d"],
    ),
    "header twice": (beside(PLAIN) + "plain,x,label\r\n", PLAIN),
    "header twice among words": (
        text({"plain": "pqpr", "x": "abca", "label": LABELS}) + text({"plain": "p", "x": "b", "label": ["sick"]}),
        [*"abca" * 6, "b"],
    ),
    "thousands with a comma": (beside(["1,234", "12,345", "999", "1,234,567"]), [1234, 12345, 999, 1234567]),
    "thousands with a point": (beside(["1.234,5", "12.345,25", "999,0", "1.234.567"]), [1234.5, 12345.25, 999, 1234567]),
    "thousands with an apostrophe": (beside(["1'234", "12'345.5", "999", "-1'000'000"]), [1234, 12345.5, 999, -1e6]),
    "thousands with a narrow blank": (beside(["1\u202f234", "12\u202f345,5", "9", "7"]), [1234, 12345.5, 9, 7]),
    "decimal commas": (beside(["1,5", "2,25", "-3,0", "4,125"], sep=";"), [1.5, 2.25, -3, 4.125]),
    "scientific": (beside(["1e3", "1.5E-2", "-2e+1", "3"]), [1000, 0.015, -20, 3]),
    "negative zero": (beside(["-0", "0", "-0.0", "1"]), [0, 0, 0, 1]),
    "large, but not too large": (beside(["1e38", "-1e38", "0", "5"]), [1e38, -1e38, 0, 5]),
    "tiny": (beside(["1e-300", "-1e-300", "0", "2e-300"]), [1e-300, -1e-300, 0, 2e-300]),
    "percent": (beside(["12%", "15.5 %", "-3%", "100%"]), [12, 15.5, -3, 100]),
    "dollars": (beside(["$1,234.50", "$3.20", "-$12.00", "$7"]), [1234.5, 3.2, -12, 7]),
    "euros": (beside(["1.234,50 €", "3,20 €", "12,00 €", "7,00 €"], sep=";"), [1234.5, 3.2, 12, 7]),
    "yes and no": (beside(["yes", "no", "Yes", "NO"]), [1, 0, 1, 0]),
    "powers that programs write": (beside(["1e+05", "1.5E2", "100000", "2"]), [1e5, 150, 1e5, 2]),
    "letters of which some are of truth": (beside(["F", "N", "T", "F"]), ["F", "N", "T", "F"]),
    "truth with gaps": (beside(["True", "", "False", "NA"]), [1, None, 0, None]),
    "blank cells": (beside([" ", "\t", "1", "2"]), [None, None, 1, 2]),
    "many words for missing": (beside(["?", "n/a", "1.5", "-", "NULL", "2", "nan", "#N/A"]), [None, None, 1.5, None, None, 2, None, None]),
    "codes with letters": (beside(["1E1", "10", "A5", "2E0"]), ["1E1", "10", "A5", "2E0"]),
    "codes with zeros": (beside(["007", "012", "101", "003"]), ["007", "012", "101", "003"]),
    "numbers and words as names": (beside(["a", "b", "2", "c", "a", "b", "c", "b"]), ["a", "b", "2", "c", "a", "b", "c", "b"]),
    "one word and gaps": (beside(["x", "", "x", ""]), ["x", None, "x", None]),
    "one number": (beside(["7"]), [7]),
    "dates": (beside(DATES), [DAY + k for k in range(N)]),
    "German dates": (beside([f"{k}.1.2020" for k in range(1, N + 1)]), [DAY + k for k in range(N)]),
    "American dates": (beside([f"1/{k}/2020" for k in range(1, N + 1)]), [DAY + k for k in range(N)]),
    "times": (beside([f"{day} 12:00:00" for day in DATES]), [DAY + k + 0.5 for k in range(N)]),
    "zones of time": (beside(["2020-01-01T13:00:00+01:00", "2020-01-02T00:00:00Z"]), [DAY + 0.5, DAY + 1]),
    "parts of seconds": (beside(["2020-01-01 12:00:00.0", "2020-01-01 06:00:00.000000"]), [DAY + 0.5, DAY + 0.25]),
    "dates with gaps": (beside([*DATES[:-1], ""]), [*(DAY + k for k in range(N - 1)), None]),
    "dates of a leap year and before 1970": (beside(["2000-02-29", "1969-12-31", "1900-01-01"]), [11016, -1, -25567]),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_table_is_read_right(name: str, tmp_path: Path) -> None:
    content, wanted = READ[name]
    data = read(tmp_path / "t.csv", content)
    found = cells_of(data, "x")
    assert found == [wanted[row % len(wanted)] for row in range(len(found))]
    assert len(found) >= N
    assert {*data.label} == {"sick", "well"}
    coder = Coder.fitted_to(data.inputs, [range(len(data))])  # type: ignore[arg-type]
    inputs = coder(data.inputs.columns)  # type: ignore[union-attr]
    assert np.isfinite(inputs).all()
    mine = [k for k, of in enumerate(coder.names) if re.match(r"x\b", of)]
    assert len({*map(tuple, inputs[:, mine].tolist())}) == len({*wanted} - {""})  # different cells are different inputs


LEFT: dict[str, tuple[str, str, dict[str, Any], Sequence[Any]]] = {  # the table, what the note is, the advice, and x with it
    "every cell missing": (beside(["", "NA"]), "every cell is missing", {}, []),
    "one word": (beside(["same"]), "the same in every row", {}, []),
    "names of rows": (beside([f"P{k:05}" for k in range(N)]), "names of rows", {}, []),
    "free text": (beside([f"patient {k} feels ill" for k in range(N)]), "text", {}, []),
    "row numbers": (beside(range(N)), "numbers of the rows.*--set keep=x", {"keep": "x"}, range(N)),
    "years of two digits": (
        beside(["01.02.20", "02.03.20", "12.01.20"]),
        "dates of several forms, or of a rare one.*give their form",
        {"columns": {"x": {"form": "%d.%m.%y"}}},
        [DAY + 31, DAY + 61, DAY + 11],
    ),
    "zones of time, without seconds": (
        beside(["2020-01-01 13:00+01:00", "2020-01-02 00:00+0000"]),
        "dates of several forms, or of a rare one.*give their form",
        {"columns": {"x": {"form": "%Y-%m-%d %H:%M%z"}}},
        [DAY + 0.5, DAY + 1],
    ),
    "dates in three forms": (beside(["2020-01-01", "01.02.2020", "3/4/2020"]), "dates of several forms", {}, []),
    "a name that looks missing": (
        beside(["NA", "DE", "US", "NA"]),
        "'NA' in 12 cells marks a missing cell. If it is a category: --set not_missing=NA",
        {"not_missing": "NA"},
        ["NA", "DE", "US", "NA"],
    ),
    "none of a scale": (
        beside(["None", "mild", "", "severe"]),
        "'None' in 6 cells marks a missing cell. If it is a category: --set not_missing=None",
        {"not_missing": "None"},
        ["None", "mild", None, "severe"],
    ),
    "spellings": (beside(["Male", "male", "MALE", "female"]), "'Male' and 'male'.*differ only in capital", {}, []),
    "a number that gives the label away": (
        beside([1 if label == "sick" else 0 for label in LABELS]), "column x tells the class", {}, []
    ),
    "a word that gives the label away": (
        beside(["in" if label == "sick" else "out" for label in LABELS]), "column x tells the class", {}, []
    ),
    "a number that stands for none": (beside([*(k / 2 for k in range(N - 2)), -999, -999]), "x is -999 in 2 rows", {}, []),
    "numbers of sixty bits": (beside([2**60 + k for k in range(N)][::-1]), "so many digits", {}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_may_mean_something_else_is_said_and_the_advice_works(name: str, tmp_path: Path) -> None:
    content, note, advice, wanted = LEFT[name]
    data = read(tmp_path / "t.csv", content)
    assert re.search(note, " ".join(data.notes)), data.notes
    assert cells_of(data, "plain") == PLAIN
    if advice:
        data = read(tmp_path / "t.csv", content, **advice)
        assert cells_of(data, "x") == [wanted[row % len(wanted)] for row in range(N)]
        assert not re.search(note, " ".join(data.notes))


ASKED: dict[str, tuple[str | bytes, str, dict[str, Any], Sequence[Any]]] = {  # the table, the question, an answer, the cells then
    "a comma with two meanings": (
        alone(["1,500", "2,250", "3,000", "4,125"], sep=";"),
        "'1,500' is 1500.*thousands = \",\".*'1,500' is 1.5.*decimal = \",\".*--set 'thousands=,' or --set 'decimal=,'",
        {"columns": {"x": {"decimal": ","}}},
        [1.5, 2.25, 3, 4.125],
    ),
    "the same comma, thousands": (
        alone(["1,500", "2,250", "3,000", "4,125"], sep=";"),
        "'1,500' is 1500.*thousands = \",\".*'1,500' is 1.5.*decimal = \",\"",
        {"columns": {"x": {"thousands": ","}}},
        [1500, 2250, 3000, 4125],
    ),
    "pounds with that comma": (
        alone(["£1,500", "£2,250"]),
        "'£1,500' is 1500.*thousands = \",\".*unit = \"£\"",
        {"columns": {"x": {"unit": "£", "thousands": ","}}},
        [1500, 2250],
    ),
    "days or months": (
        alone(["01/02/2020", "02/03/2020", "12/01/2020"]),
        "is 2020-02-01: kind = \"date\", form = \"%d/%m/%Y\", or .* is 2020-01-02: kind = \"date\", form = \"%m/%d/%Y\"",
        {"columns": {"x": {"form": "%d/%m/%Y"}}},
        [DAY + 31, DAY + 61, DAY + 11],
    ),
    "three spellings of truth": (
        alone(["yes", "Y", "1", "no", "n", "0", "TRUE", "false"]), "truth = .*or .*category", {"columns": {"x": {"kind": "number"}}},
        [1, 1, 1, 0, 0, 0, 1, 0],
    ),
    "numbers or codes with exponents": (
        alone(["1E1", "10", "2E0", "1E1"]), "'1[Ee].' is .*kind = \"number\".*kind = \"category\"",
        {"columns": {"x": {"kind": "category"}}}, ["1E1", "10", "2E0", "1E1"],
    ),
    "numbers with exponents": (
        alone(["1e5", "20", "3", "1e2"]), "'1[Ee].' is .*kind = \"number\".*kind = \"category\"", {"columns": {"x": {"kind": "number"}}},
        [100000, 20, 3, 100],
    ),
    "days as numbers": (
        alone(["19700102", "19700131", "20200101"]), "'19700102' is 1970-01-02: kind = \"date\", form = \"%Y%m%d\", or .* is 19700102: kind = \"number\"",
        {"columns": {"x": {"kind": "date", "form": "%Y%m%d"}}}, [1, 30, DAY],
    ),
    "a point with two meanings": (alone(["76.586", "999", "1.250"]), "'76.586' is 76.586.*'76.586' is 76586", {"thousands": "."}, [76586, 999, 1250]),
    "a point that is declared": (alone(["76.586", "999", "1.250"]), "'76.586' is 76.586", {"decimal": "."}, [76.586, 999, 1.25]),
    "two pairs of truth": (alone(["yes", "no", "Y", "n"]), "truth = .*or .*kind = \"category\"", {"columns": {"x": {"kind": "number"}}}, [1, 0, 1, 0]),
    "one number in two spellings": (
        alone(["3.1", "3.10", "2.5", "3.10"]), "is 3.1: kind = \"number\".*'3.1", {"columns": {"x": {"kind": "number"}}}, [3.1, 3.1, 2.5, 3.1],
    ),
    "codes in two spellings": (
        alone(["3.1", "3.10", "2.5", "3.10"]), "kind = \"category\", categories = ", {"columns": {"x": {"categories": ["2.5", "3.1", "3.10"], "kind": "category"}}},
        ["3.1", "3.10", "2.5", "3.10"],
    ),
    "a whole number in two spellings": (
        alone(["250", "250.0", "low", "mid", "high"]), "is 250: .*categories = .\"250\", \"high\".*is 250.0: ",
        {"columns": {"x": {"kind": "category", "categories": ["250", "250.0", "high", "low", "mid"]}}}, ["250", "250.0", "low", "mid", "high"],
    ),
    "a whole number in one category": (
        alone(["1", "1.0", "x", "y", "z"]), "'1' in .* and '1.0' in ", {"columns": {"x": {"kind": "category", "categories": ["1", "x", "y", "z"]}}},
        ["1", "1", "x", "y", "z"],
    ),
    "codes with and without zeros": (
        alone(["007", "7", "12", "007"]), "'007' in .* and '7' in .* is 7: kind = \"number\"", {"columns": {"x": {"kind": "category", "categories": ["007", "12", "7"]}}},
        ["007", "7", "12", "007"],
    ),
    "few numbers with a unit": (
        alone(["4 °C", "2 °C", "3.5 °C"]), "'4 °C' is 4: kind = \"number\", unit = \"°C\".* is 4 °C: kind = \"category\"",
        {"columns": {"x": {"kind": "number", "unit": "°C"}}}, [4, 2, 3.5],
    ),
    "categories that begin with a number": (
        alone(["2 doors", "4 doors"]), "'2 doors' is 2: .*kind = \"category\"", {"columns": {"x": {"kind": "category"}}}, ["2 doors", "4 doors"],
    ),
    "codes with and without zeros as numbers": (
        alone(["007", "7", "12", "007"]), "are one number", {"columns": {"x": {"kind": "number"}}}, [7, 7, 12, 7],
    ),
}  # fmt: skip


@pytest.mark.parametrize("sign", [".", ","])
def test_another_column_shows_the_sign_before_fractions(sign: str, tmp_path: Path) -> None:
    shown = [f"{k},5".replace(",", sign) for k in range(N)]
    other = {".": ",", ",": "."}[sign]
    for cells, wanted in (([f"76{other}586", "999"], [76586, 999]), ([f"1{sign}250", "999"], [1.25, 999])):
        content = text({"shown": shown, "x": cells, "label": LABELS}, sep=";")
        assert cells_of(read(tmp_path / "t.csv", content), "x")[:2] == wanted
    content = text({"shown": ["17_624", "5_724"], "x": ["76.586", "999"], "label": LABELS}, sep=";")
    with pytest.raises(DataError, match="column x: more than one reading"):
        read(tmp_path / "t.csv", content)
    content = text({"both": shown, "signs": [f"1{other}5"], "x": ["76.586", "999"], "label": LABELS}, sep=";")
    with pytest.raises(DataError, match="column x: more than one reading"):
        read(tmp_path / "t.csv", content)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"decimal": "."}, [76.586, 999]),
        ({"kind": "number", "decimal": "."}, [76.586, 999]),
        ({"thousands": "."}, [76586, 999]),
        ({"kind": "number", "decimal": ",", "thousands": "."}, [76586, 999]),
    ],
)
def test_a_declared_sign_wins_over_that_of_other_columns(
    options: dict[str, str], wanted: list[float], tmp_path: Path
) -> None:
    content = text({"shown": [f"{k},5" for k in range(N)], "x": ["76.586", "999"], "label": LABELS}, sep=";")
    data = read(tmp_path / "t.csv", content, columns={"x": options})
    assert cells_of(data, "x")[:2] == wanted
    assert not [note for note in data.notes if "column x" in note]


def test_one_sign_is_not_between_thousands_and_before_fractions(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column x: thousands and decimal are both '\.'"):
        read(tmp_path / "t.csv", beside(["1.5", "2.5"]), columns={"x": {"thousands": "."}})


@pytest.mark.parametrize("name", ASKED)
def test_what_can_be_read_in_two_ways_is_asked_and_each_answer_works(name: str, tmp_path: Path) -> None:
    content, question, answer, wanted = ASKED[name]
    with pytest.raises(DataError, match=question) as refused:
        read(tmp_path / "t.csv", content)
    assert "column x: more than one reading is possible" in str(refused.value)
    data = read(tmp_path / "t.csv", content, **answer)
    assert cells_of(data, "x") == [wanted[row % len(wanted)] for row in range(N)]
    chosen = read_user_data(tmp_path / "t.csv", Columns(choose=True))
    assert isinstance(chosen.inputs, RawTable)
    assert chosen.inputs.others["x"]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["76.586", "999", "1.250"], "number"),
        (["76.586 kg", "999 kg"], "number"),
        (["01/02/2020", "03/04/2021"], "date"),
    ],
)
def test_a_kind_alone_answers_no_question_about_signs(cells: Sequence[str], kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column x: more than one reading is possible"):
        read(tmp_path / "t.csv", alone(cells), columns={"x": {"kind": kind}})
    if kind == "number":
        shown = [f"{k},5" for k in range(N)]
        content = text({"shown": shown, "x": cells, "label": LABELS}, sep=";")
        data = read(tmp_path / "t.csv", content, columns={"x": {"kind": kind}})
        assert any("column x: '76.586" in note and "is 76586, by the sign before" in note for note in data.notes)


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ([f"{60 + k} mmHg" for k in range(N)], [*range(60, 60 + N)]),
        ([f"{k},5 kg/m2" for k in range(N)], [k + 0.5 for k in range(N)]),
    ],
)
def test_many_numbers_with_a_unit_are_numbers(cells: Sequence[str], wanted: Sequence[float], tmp_path: Path) -> None:
    assert cells_of(read(tmp_path / "t.csv", alone(cells)), "x") == wanted


@pytest.mark.parametrize(
    "cells", [["007A", "008A"], ["5E3 kg", "6E3 kg"], ["Grade 1", "Grade 2"], ["1st", "2nd", "3rd"]]
)
def test_words_with_numbers_that_are_no_units_are_categories(cells: Sequence[str], tmp_path: Path) -> None:
    assert kind_of(read(tmp_path / "t.csv", alone(cells)), "x") == "category"


MANY_ROWS = 1100  # more than are looked at first
ANSWERED: dict[str, tuple[str, dict[str, Any], str]] = {  # a table, its options, and what is asked, refused or noted of x
    "thousands without other digits": (alone(["45.000", "66.000", "7.000"]), {}, "more than one reading is possible, '45.000' is 45"),
    "thousands below the first rows": (
        text({"x": [*map(str, range(900, 999))] * 11 + ["1.000"] * 50, "label": LABELS}), {}, "'1.000' is 1: .*'1.000' is 1000",
    ),
    "codes below the first rows": (
        text({"x": [str(k % 9) for k in range(MANY_ROWS)] + ["007"] * 30, "label": LABELS}), {}, "'7' in .* and '007' in 30 cells are one number",
    ),
    "a cell without the unit": (alone([*[f"{50 + k} kg" for k in range(22)], "71", "72"]), {}, "2 of 24 are no number with unit = \"kg\""),
    "a word among percentages": (alone([*[f"{40 + k}%" for k in range(23)], "unknown"]), {}, "1 of 24 is no number"),
    "two units": (alone([f"{k} kg" if k % 2 else f"{k}00 g" for k in range(1, 25)]), {}, "12 of 24 are no number"),
    "a declared unit that some cells lack": (
        alone(["25%", "0.25"]), {"columns": {"x": {"kind": "number", "unit": "%"}}}, "12 of 24 are no number with unit = \"%\"",
    ),
    "a minus of another script": (alone(["\u22125", "3", "4"]), {}, "are no number"),
    "a number in brackets": (alone(["(1,234)", "3", "4"]), {}, "are no number"),
    "pairs of codes": (alone(["152 156", "101 202"]), {}, "all 24 are no number .*kind"),
    "none among numbers": (alone(["none", "1", "2", "5"]), {}, "'none' in 6 cells marks a missing cell. If it is 0"),
    "bands without their unit": (alone([f"{k}%" for k in range(1, 25)]), {"group": "x:0.5"}, "column x: '1%' is 1, without '%'"),
    "a stand-in among bands": (alone([*range(30, 52), 999, 999]), {"group": "x:40"}, "column x is 999 in 2 rows, far from all its other numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERED)
def test_what_seems_to_be_a_number_is_not_read_in_silence(name: str, tmp_path: Path) -> None:
    content, options, answer = ANSWERED[name]
    try:
        said = "\n".join(read(tmp_path / "t.csv", content, **options).notes)
    except DataError as error:
        said = str(error)
    assert re.search(answer, said), said


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1€50", "2€75"], "category"),
        (["01.11", "01.50", "10.10"], "category"),
        (["05MAR2020", "06MAR2020"], "category"),
        ([f"{k:02} Mar 2020" for k in range(1, 25)], "date"),
        ([f"3/{k}/2020 10:15:00" for k in range(1, 25)], "date"),
        (["1A", "1B", "2A", "3A"], "category"),
    ],
    ids=str,
)
def test_words_that_are_no_numbers(cells: Sequence[str], kind: str, tmp_path: Path) -> None:
    assert kind_of(read(tmp_path / "t.csv", alone(cells)), "x") == kind


@pytest.mark.parametrize(
    ("typed", "words", "why"),
    [
        ([0.4, 0.45], ["41%", "46%"], "some cells are numbers and others text with '%'"),
        ([pd.Timestamp(2020, k, 3) for k in range(1, 13)], [f"{k}/03/2020" for k in range(13, 25)], "some cells are dates and others text"),
    ],
)  # fmt: skip
def test_typed_cells_beside_text_of_another_kind_are_left_out(
    typed: Sequence[Any], words: Sequence[str], why: str, tmp_path: Path
) -> None:
    cells = [*typed, *words] * (N // (len(typed) + len(words)))
    pd.DataFrame({"plain": PLAIN, "x": cells, "label": LABELS}).to_excel(tmp_path / "t.xlsx", index=False)
    data = read_user_data(tmp_path / "t.xlsx")
    assert isinstance(data.inputs, RawTable)
    assert why in data.inputs.schema.left_out["x"]


def test_numbers_to_predict_are_of_one_type(tmp_path: Path) -> None:
    frame = pd.DataFrame({"plain": PLAIN, "label": [1.234, "1.345,5"] * (N // 2)})
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    with pytest.raises(DataError, match=r"column label: some cells are numbers, and others text such as '1\.345,5'"):
        read_user_data(tmp_path / "t.xlsx", own.columns_of(task="regression"))


def test_a_missing_value_is_no_day(tmp_path: Path) -> None:
    cells = ["1997-05-17", "1997-05-18", "1997-05-19"]  # the second is day 9999
    data = read(
        tmp_path / "t.csv",
        alone(cells),
        columns={"x": {"kind": "date", "form": "%Y-%m-%d", "missing_values": ["9999"]}},
    )
    assert None not in cells_of(data, "x")
    days = {"kind": "date", "form": "%Y%m%d"}
    with pytest.raises(DataError, match="no date of the form %Y%m%d"):
        read(tmp_path / "t.csv", alone(["20201101", "2020111"]), columns={"x": days})


def test_the_advised_name_none_can_be_typed(tmp_path: Path) -> None:
    content = text({"plain": PLAIN, "label": ["none", "mild"] * (N // 2)})
    with pytest.raises(DataError) as refused:
        read(tmp_path / "t.csv", content)
    typed = next(shlex.split(part)[1] for part in re.findall(r"--set \S+", str(refused.value)) if "none" in part)
    name, _, value = typed.rstrip(".").partition("=")
    given = option_value("own", name, value)
    assert set(read(tmp_path / "t.csv", content, not_missing=given).classes) == {"none", "mild"}


HIGH = [f"{k * 1.5}" for k in range(N)]
REFUSED: dict[str, tuple[str | bytes, Sequence[str]]] = {  # the table, and what the message is
    "stray words": (
        beside([*HIGH[:-3], "high", "n.d.", ">500"]),
        ["column x: 3 of 24 are no number ('high' in line 23, 'n.d.' in line 24, '>500' in line 25)", "--set leave_out=x"],
    ),
    "two columns with faults": (
        text({"a": [*HIGH[:-1], "high"], "plain": PLAIN, "b": ["<1", *HIGH[1:]], "label": LABELS}),
        ["2 problems", "column a: 1 of 24 is no number ('high' in line 25)", "column b", "'<1' in line 2", "leave_out=a,b"],
    ),
    "a date that never was": (
        beside([*DATES[:-1], "2020-02-30"]),
        ["column x: 1 of 24 is no date of the form %Y-%m-%d ('2020-02-30' in line 25)", "--set leave_out=x"],
    ),
    "another form of date": (
        beside([*DATES[:-2], "23.01.2020", "24.01.2020"]),
        ["2 of 24 are no date of the form %Y-%m-%d ('23.01.2020' in line 24", "--set leave_out=x"],
    ),
    "1e300": (beside(["1e300", *HIGH[1:]]), ["column x: 1 of 24 is too large ('1e300' in line 2)", "--set leave_out=x"]),
    "integers of 400 digits": (beside([10**400 + k for k in range(N)]), ["all 24 are too large", "--set leave_out=x"]),
    "infinity": (beside(["inf", "-Infinity", *HIGH[2:]]), ["2 of 24 are no number ('inf' in line 2", "--set leave_out=x"]),
    "Arabic digits": (beside(["١", *HIGH[1:]]), ["1 of 24 is no number ('١' in line 2)", "--set leave_out=x"]),
    "a minus of typographers": (beside(["−1", *HIGH[1:]]), ["'−1' in line 2", "--set leave_out=x"]),
    "names twice": ("x,x,label\n1,2,a\n3,4,b\n", ["two columns are called 'x'. Rename one"]),
    "a short row": (beside(PLAIN) + "1,2\r\n", ["the header has 3 cells, and 1 of 25 rows has another number: line 26 has 2"]),
    "a separator in a cell": (
        "plain,x,label\n" + "1,2,a,\n" * 2 + "1,2,3,b\n",
        ["line 4 has 4", "must be in quotation marks"],
    ),
    "latin letters of one byte": (
        beside(["ä", "ö", "ü", "a"]).encode("latin-1"),
        ["it is no UTF-8 text", "--set encoding=latin-1"],
    ),
    "wide letters without a mark": (beside(["a", "b"]).encode("utf-16-le"), ["has a NUL", "--set encoding=utf-16-le"]),
    "an open quotation mark": (beside(PLAIN) + '3,"2,sick\r\n1,2,well\r\n', ["the header has 3 cells", "line 27 has 2"]),
    "no rows": ("plain,x,label\n", ["holds no sample"]),
    "nothing": ("", ["has no column label"]),
    "no label": (text({"plain": PLAIN, "x": PLAIN}), ["has no column label", "--set label=COLUMN"]),
    "no label, and stray words": (
        text({"plain": PLAIN, "x": ["high", *HIGH[1:]]}),
        ["2 problems", "no column label", "column x: 1 of 24 is no number"],
    ),
    "labels missing": (
        text({"x": PLAIN, "label": ["a", "b", "", "b"]}),
        ["the label is missing in 6 of 24 samples", "line 4"],
    ),
    "one class": (text({"x": PLAIN, "label": ["a"]}), ["all 24 samples are of one class"]),
    "nothing to learn from": (text({"x": ["same"], "label": LABELS}), ["the same in every row"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_is_refused_with_advice_that_works(name: str, tmp_path: Path) -> None:
    content, wanted = REFUSED[name]
    with pytest.raises(DataError) as caught:
        read(tmp_path / "t.csv", content)
    message = str(caught.value)
    for words in wanted:
        assert words in message
    advice = [re.sub(r"[.)]+$", "", word) for word in re.findall(r"--set (\S+)", message)]
    if advice and "COLUMN" not in message:  # the table that it helps is another problem's
        options = dict(shlex.split(word)[0].split("=", 1) for word in advice)
        data = read(tmp_path / "t.csv", content, **options)
        if "unlabelled" in options:
            assert len(data) == N - 6
        else:
            assert cells_of(data, "plain") == PLAIN


def columns_of(**options: Any) -> dict[str, Any]:
    return {"columns": {"x": options}}


WRONG: dict[str, tuple[dict[str, Any], Sequence[str]]] = {  # options of column x, and what the message is
    "a kind with another spelling": ({"kind": "left_out"}, ["Unknown kind 'left_out'. Did you mean 'left out'?"]),
    "a kind of other programs": ({"kind": "categorical"}, ["Did you mean 'category'?"]),
    "a category twice": ({"kind": "category", "categories": ["1", "2", "1"]}, ["categories has '1' twice"]),
    "a category twice in two spellings": ({"kind": "category", "categories": [2, "2", 3]}, ["categories has '2' twice"]),
    "categories as text": ({"kind": "category", "categories": "low"}, ["categories must be a list", "found 'low'"]),
    "a bound as text": ({"kind": "number", "low": "0"}, ["low must be a number; found '0'"]),
    "the mean of logarithms": (
        {"kind": "number", "scaling": "log", "missing": "mean"}, ["would be that of logarithms", 'missing = "median"']
    ),
    "a scaling of categories": ({"kind": "category", "scaling": "log"}, ["scaling is no option of a category", "coding"]),
    "a coding of numbers": ({"kind": "number", "coding": "ordinal"}, ["coding is no option of a number", "scaling"]),
    "an embedding": ({"kind": "category", "coding": "embedding"}, ["Unknown coding 'embedding'", "one-hot, ordinal", 'higher "least"']),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_options_of_a_column_that_mean_nothing_are_refused(name: str, tmp_path: Path) -> None:
    options, wanted = WRONG[name]
    with pytest.raises(DataError) as caught:
        read(tmp_path / "t.csv", beside([1, 2, 3, 2]), **columns_of(**options))
    assert all(words in str(caught.value) for words in ["column x: ", *wanted]), caught.value


@pytest.mark.parametrize("words", [["yes", "no"], ["T", "F"], ["Y", "n"]])
def test_numbers_are_no_answers_of_yes_and_no(words: list[str], tmp_path: Path) -> None:
    """A column of yes and no at one site has 5 and 2 at another, which would be read as numbers."""
    made = read(tmp_path / "t.csv", beside(words))
    assert isinstance(made.inputs, RawTable)
    agreed = made.inputs.schema.as_json()["columns"]
    for cells, refused in (([5, 2], "24 numbers are more than high = 1"), ([0, 1], ""), ([-1, 0], "less than low = 0")):
        if not refused:
            assert cells_of(read(tmp_path / "t.csv", beside(cells), columns=agreed), "x")[:2] == cells
            continue
        with pytest.raises(DataError, match=refused):
            read(tmp_path / "t.csv", beside(cells), columns=agreed)


def test_a_category_that_is_named_is_not_missing(tmp_path: Path) -> None:
    cells = ["None", "mild", "severe", "mild"]
    data = read(tmp_path / "t.csv", beside(cells), **columns_of(kind="category", categories=["None", "mild", "severe"]))
    assert cells_of(data, "x") == cells * (N // 4)


PARQUET: dict[str, tuple[Any, Sequence[Any]]] = {  # cells of a column with a type, and how they are read
    "truth with gaps": ([True, None, False], [1, None, 0]),
    "whole numbers with gaps": (pd.array([1, None, 3], dtype="Int64"), [1, None, 3]),
    "days": (pd.to_datetime(["2020-01-01", None, "2020-01-03"]), [DAY, None, DAY + 2]),
    "times": (pd.to_datetime(["2020-01-01 06:00:00", "2020-01-02 12:00:00.5"], format="ISO8601"), [DAY + 0.25, DAY + 1.5 + 0.5 / 86400]),
    "zones": (pd.to_datetime(["2020-01-01 13:00", "2020-01-02 01:00"]).tz_localize("Europe/Berlin"), [DAY + 0.5, DAY + 1]),
    "categories": (pd.Categorical(["a", None, "b"]), ["a", None, "b"]),
    "numbers as text": (["1,234.5", "2.5", "12,345"], [1234.5, 2.5, 12345]),
    "codes": (["007", "008", None], ["007", "008", None]),
}  # fmt: skip


@pytest.mark.parametrize("name", PARQUET)
def test_a_parquet_file_is_read_right(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cells, wanted = PARQUET[name]
    column = pd.concat([pd.Series(cells)] * 12, ignore_index=True)
    frame = pd.DataFrame({"x": column, "pair": [[1, 2]] * len(column)}).assign(
        label=lambda t: ["a", "b"] * (len(t) // 2)
    )
    frame.to_parquet(tmp_path / "t.parquet")
    data = read_user_data(tmp_path / "t.parquet")
    cells_ = [*wanted] * 12
    assert cells_of(data, "x") == (pytest.approx(cells_) if name == "times" else cells_)
    assert any("the column pair is left out: the same in every row" in note for note in data.notes)


# several sites


def of_sites(tmp_path: Path, **columns: Sequence[object]) -> tuple[UserData, Coder, dict[str, list[int]]]:
    rows = {"plain": PLAIN, **columns, "client": ["north", "south", "west"], "label": LABELS}
    data = read(tmp_path / "t.csv", text(rows))
    parts = own.divided(data, 0)
    return data, own.coder_of(data, parts), parts.train


def test_a_category_that_one_site_has_is_an_input_of_all(tmp_path: Path) -> None:
    data, coder, _ = of_sites(tmp_path, ward=["a", "b", "rare"] * 8)
    assert coder.names == ("plain", "ward=a", "ward=b", "ward=rare")
    assert isinstance(data.inputs, RawTable)
    assert coder(data.inputs.columns)[:, 1:].tolist() == [[float(k % 3 == j) for j in range(3)] for k in range(N)]


def test_a_column_that_is_empty_at_a_site_is_filled_with_the_median_of_the_others(tmp_path: Path) -> None:
    data, coder, train = of_sites(tmp_path, dose=["" if k % 3 == 0 else k for k in range(N)])
    assert isinstance(data.inputs, RawTable)
    inputs = coder(data.inputs.columns)
    assert coder.names == ("plain", "dose", "dose missing")
    assert inputs[:, 2].tolist() == [float(k % 3 == 0) for k in range(N)]
    mine = [k for rows in train.values() for k in rows if k % 3]
    middle = np.quantile(mine, 0.5, method="inverted_cdf")
    assert inputs[0, 1] == pytest.approx((middle - np.mean(mine)) / np.std(mine), rel=1e-5)


def test_categories_that_training_has_not_seen_are_between_the_others(tmp_path: Path) -> None:
    data = read(tmp_path / "t.csv", beside(["a", "b", "a", "b"]))
    coder = Coder.fitted_to(data.inputs, [range(N)])  # type: ignore[arg-type]
    inputs, notes = coder.encode_frame(pd.DataFrame({"plain": [1.0, 2.0, 3.0], "x": ["a", "new", None]}))
    assert coder.names == ("plain", "x=b")
    assert inputs[:, 1].tolist() == [0, 0.5, 0.5]
    assert any("cells did not occur in training ('new' in" in note for note in notes)


def test_columns_are_matched_by_name_wherever_they_stand(tmp_path: Path) -> None:
    """Also with more columns, other kinds of numbers, and dates that pandas has read."""
    columns = {"age": range(20, 44), "dose": [k / 4 for k in range(N)], "ward": ["p", "q", "r"], "day": DATES}
    data = read(tmp_path / "t.csv", text({**columns, "label": LABELS}), keep=["age"])
    coder = Coder.fitted_to(data.inputs, [range(N)])  # type: ignore[arg-type]
    expected = coder(data.inputs.columns)  # type: ignore[union-attr]
    frame = pd.DataFrame({name: [cells[k % len(cells)] for k in range(N)] for name, cells in columns.items()})
    frame = frame.assign(other="z", day=pd.to_datetime(frame["day"]), age=frame["age"].astype("float32"))
    assert np.array_equal(coder.encode_frame(frame[["day", "other", "ward", "dose", "age"]])[0], expected)
    for same in (frame.astype({"dose": str, "ward": "category"}), frame.convert_dtypes(), frame.astype(object)):
        assert np.array_equal(coder.encode_frame(same)[0], expected)
    gaps = frame.convert_dtypes()
    gaps.loc[1, ["dose", "ward", "day"]] = pd.NA
    assert np.array_equal(coder.encode_frame(gaps)[0][2:], expected[2:])
    with pytest.raises(DataError, match=r"no column 'dose', 'ward'"):
        coder.encode_frame(frame[["age", "day"]])
    with pytest.raises(DataError, match=r"two columns are called ward"):
        coder.encode_frame(frame.rename(columns={"other": "ward"}))
    faulty = frame.astype({"age": object, "day": str})
    faulty.loc[3, ["age", "day"]] = ["old", "soon"]
    with pytest.raises(DataError, match=r"(?s)2 problems.*column age: 1 of 24 is no number.*column day: 1 of 24 is no"):
        coder.encode_frame(faulty)


# many columns, many rows


@pytest.mark.slow
def test_five_thousand_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 5000)).round(3)
    lines = [",".join([*(f"gene {k}" for k in range(5000)), "label"])]
    lines += [",".join([*map(str, row.tolist()), "ab"[k % 2]]) for k, row in enumerate(x)]
    data = read(tmp_path / "t.csv", "\n".join(lines))
    assert isinstance(data.inputs, RawTable)
    assert np.array_equal(data.inputs.numbers(), x)
    coder = Coder.fitted_to(data.inputs, [range(8)])
    np.testing.assert_allclose(coder(data.inputs.columns), (x - x.mean(0)) / x.std(0), rtol=1e-4, atol=1e-5)


def test_two_hundred_faulty_columns_are_said_in_short(tmp_path: Path) -> None:
    columns: dict[str, Sequence[object]] = {f"c{k}": [f"bad{k}", *HIGH[1:]] for k in range(200)}
    with pytest.raises(DataError) as caught:
        read(tmp_path / "t.csv", text({**columns, "label": LABELS}))
    assert "has 200 problems" in str(caught.value)
    assert "And 190 more." in str(caught.value)
    assert len(str(caught.value)) < 5000


NUMBERS: dict[str, Sequence[str]] = {
    "fractions": [f"{row * 7 % 11 / 4}" for row in range(N)],
    "whole numbers": [f"{row * 13 % 17}" for row in range(N)],
    "thousands or fractions": [f"{row % 9 + 1}.{row * 37 % 900 + 100}" for row in range(N)],
    "zeros at the end": [f"3.{row}" for row in range(N)],
    "round thousands": [f"{row + 10}.000" for row in range(N)],
    "codes": [f"{row * 5 % 23:03}" for row in range(N)],
    "codes with letters": ["1E1", "2E1", "12", "7"] * (N // 4),
    "eight digits": [f"202001{row % 28 + 1:02}" for row in range(N)],
    "truth": [*"0110" * (N // 4)],
    "too large": ["1e39", *map(str, range(1, N))],
}


@pytest.mark.parametrize("gap", ["", "NA", "NaN", "nan", "NULL", "null", "None", "?"])
@pytest.mark.parametrize("rows", [N, 1200])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_gap_among_numbers_changes_no_other_cell(name: str, rows: int, gap: str, tmp_path: Path) -> None:
    """As a column with a word that makes it text, ``n/a``: the same numbers, notes and questions."""
    found = []
    for word in (gap, "n/a"):
        cells = [*NUMBERS[name]] * (rows // N)
        cells[5] = cells[-2] = word
        try:
            data = read(tmp_path / "t.csv", alone(cells, sep=";"))
            feature = next((f for f in data.inputs.schema.features if f.name == "x"), None)
            notes = [note for note in data.notes if "marks a missing cell" not in note]
            found.append((feature, feature and cells_of(data, "x"), notes))
        except DataError as error:
            found.append((str(error).replace(repr(word), "gap"),))
    assert found[0] == found[1]


def test_a_declared_sign_between_cells_that_does_not_fit_is_named(tmp_path: Path) -> None:
    table = text({"a, b": PLAIN, "label": LABELS}, sep="\t")
    with pytest.raises(DataError, match=r"If another sign is between the cells: --set sep=tab"):
        read(tmp_path / "t.csv", table, sep=",")
    assert len(read(tmp_path / "t.csv", table, sep="tab")) == N


def test_long_numbers_beside_a_gap_are_told(tmp_path: Path) -> None:
    cells = [f"{2**53 + row}" for row in range(N)]
    for gap in ("12", "", "NA"):
        assert "different ones are the same" in " ".join(read(tmp_path / "t.csv", alone([gap, *cells[1:]])).notes)


PEAK = """
import resource, sys
from pathlib import Path
from equipoise.data.tables.columns import Columns
from equipoise.data.formats.reading import read_user_data
from equipoise.data.tables.coding import Coder
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = read_user_data(Path(sys.argv[1]), Columns())
coder = Coder.fitted_to(data.inputs, [range(0, len(data), 2), range(1, len(data), 2)])
inputs = coder(data.inputs.columns)
print(len(data), inputs.shape[1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_million_rows_in_bounded_memory(tmp_path: Path) -> None:
    """Twenty columns, of which five are words and two have gaps: at most 7 times what the inputs take."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    frame = pd.DataFrame({f"number {k}": rng.normal(size=n).astype(np.float32) for k in range(13)})
    for k in range(5):
        frame[f"word {k}"] = np.array(["low", "middle", "high", "none at all"])[rng.integers(4, size=n)]
    frame["gaps"] = frame["number 0"].where(rng.random(n) > 0.1)
    frame["label"] = np.array(["a", "b"])[rng.integers(2, size=n)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    ended = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "t.csv")], capture_output=True, text=True, check=True
    )
    rows, width, kilobytes = map(int, ended.stdout.split())
    assert rows == n
    assert kilobytes < 7 * rows * width * 4 / 1024


def test_what_long_names_look_like_is_not_compared() -> None:
    assert len(same_numbers(["\uff41" * 1000, "a" * 1000], names=True)) == 1
    assert not same_numbers(
        ["\uff41" * 1001, "a" * 1001], names=True
    )  # this may take time with the square of the length
