"""Advice on columns that hold no numbers: the line of pandas works as pasted, and no purpose is guessed."""

from __future__ import annotations

import re
import shlex
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from equipoise.data.contents import DataError
from equipoise.data.own.columns import Columns, several
from equipoise.data.own.reading import read_user_data

N = 24
SEPARATORS = {"semicolon": ";", "tab": "\t"}
NAMES = {"parquet": "t.parquet", "gz": "t.csv.gz", "tab": "t.tsv"}


def frame() -> pd.DataFrame:
    k = np.arange(N)
    return pd.DataFrame(
        {
            "site": np.array(["north", "süd's", "west, far"])[k % 3],
            "age": np.where(k % 5 == 0, "?", (30 + k).astype(str)),
            "cost": [f"{1000 + 37 * j:,}.5".replace(",", " ").replace(".", ",") for j in k],
            "seen": [f"2020-01-{j + 1:02}" for j in k],
            "v": (k * 7 % 11).astype(str),
            "nothing": "",
            "salary": np.array(["low", "high"])[k % 2],
        }
    )


def write(path: Path, how: str) -> Path:
    file = path / NAMES.get(how, "t 1.csv")
    if how == "parquet":
        frame().to_parquet(file)
        return file
    encoding = "latin-1" if how == "latin" else "utf-8"
    frame().to_csv(file, index=False, sep=SEPARATORS.get(how, ","), encoding=encoding)
    if how == "comments":
        text = file.read_text("utf-8").splitlines()
        file.write_text("\n".join(["# made today", "", *text[:4], "# a comment", *text[4:], ",,,,,,"]) + "\n", "utf-8")
    return file


def refused(path: Path, columns: Columns) -> str:
    with pytest.raises(DataError) as error:
        read_user_data(path, columns)
    return str(error.value)


def paste(said: str, path: Path) -> list[str]:
    """Do what is advised; gives the options with which to go on."""
    line = next(line for line in said.splitlines() if line.startswith("python -c"))
    with chdir(path):
        exec(shlex.split(line)[2])
    return shlex.split(re.findall("continue with (.*)", said)[0])


@pytest.mark.parametrize("how", ["plain", "semicolon", "tab", "gz", "comments", "latin", "parquet"])
def test_the_line_works_as_pasted(how: str, tmp_path: Path) -> None:
    encoding = "latin-1" if how == "latin" else None
    words = paste(refused(write(tmp_path, how), Columns(label="salary", encoding=encoding)), tmp_path)
    leave = several(words[3].removeprefix("leave_out="))
    assert leave == ("site", "seen", "nothing")
    own = read_user_data(words[1], Columns(label="salary", client="site", leave_out=leave, encoding=encoding))
    assert own.features == ("age", "cost", "v", "site_north", "site_süd's", "site_west, far")
    assert own.label == tuple(frame().salary)
    assert own.clients == ("north", "süd's", "west, far")
    k = np.arange(N)
    ages = np.where(k % 5 == 0, np.nan, 30.0 + k)
    expected = [np.where(np.isnan(ages), np.nanmedian(ages), ages), 1000.5 + 37 * k, k * 7 % 11, k % 3 == 0]
    assert isinstance(own.inputs, np.ndarray)
    np.testing.assert_array_equal(own.inputs[:, :4].T, expected)


def test_no_purpose_is_guessed_and_the_class_is_not_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "plain")
    said = refused(path, Columns())
    assert "Few different words: site (3), salary (2)." in said
    assert all(f"--set {role}=COLUMN if" in said for role in ("label", "client", "group"))
    assert said.rstrip().endswith("Name the label first; advice about the other columns follows then.")
    assert not re.search(r"leave_out|get_dummies", said)
    assert "leave_out=site,age,cost,seen,nothing" in refused(path, Columns(label="salary"))
    assert "In cost the sign ' ' is between thousands" in said
    assert "client=COLUMN" not in refused(path, Columns(label="salary", client="site"))


@pytest.mark.parametrize(
    ("cells", "sign"),
    [(["2.330,0", "1.000,5"], "."), (["2,330.5", "999"], ","), (["1'000", "12'000.5"], "'"), (["1.000.000", "3"], ".")],
)
def test_signs_between_thousands_are_named(cells: list[str], sign: str, tmp_path: Path) -> None:
    rows = "\n".join(f"{cells[k % 2]};{'xy'[k % 2]}" for k in range(8))
    (tmp_path / "t.csv").write_text(f"v;label\n{rows}\n")
    said = refused(tmp_path / "t.csv", Columns())
    assert f"In v the sign {sign!r} is between thousands" in said
    own = read_user_data(paste(said, tmp_path)[1])
    assert isinstance(own.inputs, np.ndarray)
    assert own.inputs[:2, 0].tolist() == [float(cell.replace(sign, "").replace(",", ".")) for cell in cells]


def test_without_a_label_no_line_makes_features_of_what_may_be_the_class(tmp_path: Path) -> None:
    rows = [f"{'ABC'[k % 3]},{'mf'[k % 2]},{k},{'yes' if k % 4 else 'no'},{k * 2}" for k in range(24)]
    (tmp_path / "t.csv").write_text("\n".join(["hospital,sex,age,readmitted,days", *rows]))
    with pytest.raises(DataError) as refused:
        read_user_data(str(tmp_path / "t.csv"), Columns())
    assert "Name the label first" in str(refused.value)
    assert "get_dummies" not in str(refused.value)
    with pytest.raises(DataError) as refused:
        read_user_data(str(tmp_path / "t.csv"), Columns(label="readmitted", client="hospital"))
    assert 'get_dummies(t[["sex"]]' in str(refused.value)
