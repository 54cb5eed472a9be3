"""A site gives no sums of rows that are few people apart from those it gave before."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.data.contents import DataError
from equipoise.scenarios.shared import site_sums

Rows = list[dict[str, Any]]
COLUMNS = {"age": {"kind": "number"}, "job": {"kind": "category"}}


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "equipoise" / "sums"


def rows(n: int = 120, seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    return [
        {
            "age": int(draw.integers(18, 90)),
            "job": "abc"[k % 3],
            "label": "yn"[k // 3 % 2],
            "id": f"p{k // 20}",
            "split": "train",
        }
        for k in range(n)
    ]


def sums(path: Path, table: Rows, least: int = 10, columns: Any = COLUMNS, **more: Any) -> dict[str, Any]:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows([*table, *({**row, "split": "test", "id": "t"} for row in rows(12, seed=9))])
    options = {"label": "label", "split": "split", "leave_out": ["id"], "columns": columns, **more.pop("options", {})}
    return site_sums(path, options, least=least, site="north", **more)


@pytest.mark.parametrize(
    "change", ["without a row", "one more", "another cell", "a row for testing", "other columns", "validation"]
)
def test_sums_of_two_versions_are_no_row(change: str, tmp_path: Path) -> None:
    table = rows()
    sums(tmp_path / "first.csv", table)
    assert sums(tmp_path / "again.csv", [dict(reversed(row.items())) for row in table[::-1]])["rows"] == len(table)
    more: dict[str, Any] = {}
    match change:
        case "without a row" | "other columns":
            table = table[1:]
            more = (
                {"columns": {"age": {"kind": "category"}, "job": {"kind": "category"}}}
                if change == "other columns"
                else {}
            )
        case "one more":
            table = [*table, rows(1, seed=1)[0]]
        case "another cell":
            table[5]["age"] += 1
        case "a row for testing":
            table[5]["split"] = "test"
        case "validation":
            more = {"validation": 0.02}
    with pytest.raises(
        DataError, match=r"would tell of fewer than 10 people.*If an earlier file was never sent, delete its rows"
    ):
        sums(tmp_path / "second.csv", table, **more)
    sums(tmp_path / "allowed.csv", table, least=1, **more)


@pytest.mark.parametrize("how", ["a column more", "a column less", "another name", "zeros and spaces", "capitals"])
def test_a_new_export_of_the_table_with_one_more_is_known(how: str, tmp_path: Path) -> None:
    """It has the same people, whatever all its rows look like."""
    table = rows()
    sums(tmp_path / "first.csv", table)

    def exported(row: dict[str, Any]) -> dict[str, Any]:
        match how:
            case "a column more":
                return {**row, "note": row["job"] * 2}
            case "a column less":
                return {key: x for key, x in row.items() if key != "id"}
            case "another name":
                return {{"id": "number"}.get(key, key): x for key, x in row.items()}
            case "zeros and spaces":
                return {**row, "age": f"{row['age']}.00 "}
        return {**row, "job": row["job"].upper()}

    left_out = {"a column more": ["id", "note"], "a column less": [], "another name": ["number"]}.get(how, ["id"])
    new = [*table, rows(1, seed=1)[0]]
    test = [{**row, "split": "test", "id": "t"} for row in rows(12, seed=9)]
    path = tmp_path / "second.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, exported(table[0]))
        writer.writeheader()
        writer.writerows(map(exported, [*new, *test]))
    options = {"label": "label", "split": "split", "leave_out": left_out, "columns": COLUMNS}
    with pytest.raises(DataError, match="would tell of fewer than 10 people"):
        site_sums(path, options)


def test_sums_of_many_other_rows_and_of_other_tables_are_given(tmp_path: Path, own_state: Path) -> None:
    table = rows()
    sums(tmp_path / "a.csv", table)
    sums(tmp_path / "b.csv", table[:80])
    sums(tmp_path / "c.csv", [*rows(60, seed=5), *table[:3]])  # a few rows of both
    with pytest.raises(DataError, match="would tell of fewer"):  # a is the sum of b and these, and one
        sums(tmp_path / "d.csv", table[80:-1])
    if os.name == "posix":
        assert {path.stat().st_mode & 0o777 for path in own_state.glob("*.safetensors")} == {0o600}
    next(own_state.glob("*.safetensors")).write_bytes(b"x")
    with pytest.raises(DataError, match="is damaged"):
        sums(tmp_path / "e.csv", table)


def test_all_rows_of_a_person_are_one(tmp_path: Path) -> None:
    """Twenty rows of each: a version without a person, and one without five."""
    table, named = rows(400), {"options": {"subject": "id", "leave_out": []}}
    sums(tmp_path / "a.csv", table, least=5, **named)
    with pytest.raises(DataError, match="fewer than 5 people"):
        sums(tmp_path / "b.csv", table[20:], least=5, **named)
    assert sums(tmp_path / "c.csv", table[100:], least=5, **named)["rows"] == 300
