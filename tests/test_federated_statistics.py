"""What is learnt of a table's columns, from sums over clients: that of the pooled training rows, whoever has them; test rows add nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings, strategies as st
from numpy.typing import NDArray

from equipoise import scenarios
from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.tables.cells import Cells, RawTable, Words, read_cells
from equipoise.data.tables.coding import POINTS, Coder, Sums, add_up, exact_sums
from equipoise.data.tables.columns import Columns
from equipoise.data.tables.schema import CATEGORY, DATE, SCALINGS, Feature, Schema
from equipoise.scenarios import own

QUICK = settings(max_examples=60, deadline=None)
REUSED = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZES = st.floats(-1e9, 1e9, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-9 else x)
NUMBERS = st.one_of(st.integers(-1000, 1000).map(float), SIZES, st.just(float("nan")))
WORDS = st.sampled_from(["", "a", "b", "B", "ä", "a=b", "other", "missing", "NA"])


@st.composite
def divisions(draw: st.DrawFn, cells: st.SearchStrategy[Any]) -> tuple[list[Any], list[list[int]]]:
    """Cells of a column, and the training rows of each client: some clients have none, and some rows are nobody's."""
    column = draw(st.lists(cells, min_size=1, max_size=40))
    whose = draw(st.lists(st.integers(-1, 3), min_size=len(column), max_size=len(column)))
    return column, [[row for row, client in enumerate(whose) if client == k] for k in range(4)]


def of_numbers(values: list[float], **options: Any) -> RawTable:
    feature = Feature("x", **options)
    return RawTable(Schema((feature,)), {"x": Cells(np.array(values, np.float64))})


def of_words(words: list[str], **options: Any) -> RawTable:
    feature = Feature("x", CATEGORY, **options)
    cells, problems = read_cells(feature, Words.of(words), str)
    assert not problems
    return RawTable(Schema((feature,)), {"x": cells})


def pooled(clients: list[list[int]]) -> list[int]:
    return [row for rows in clients for row in rows]


@QUICK
@example(([0.0, 0.0, 1.25, 0.0], [[0, 1, 2], [3], [], []]), "robust", "mean")  # the quartiles differ by rounding
@given(divisions(NUMBERS), st.sampled_from(SCALINGS), st.sampled_from(["mean", "median"]))
def test_numbers_are_fitted_as_the_pooled_training_rows(
    data: tuple[list[float], list[list[int]]], scaling: str, missing: str
) -> None:
    values, clients = data
    if scaling == "log":
        values, missing = [abs(value) for value in values], "median"
    rows = pooled(clients)
    present = np.array([values[row] for row in rows if values[row] == values[row]])
    assume(len(present))
    table = of_numbers(values, scaling=scaling, missing=missing)
    together, divided = Coder.fitted_to(table, [rows]).fitted["x"], Coder.fitted_to(table, clients).fitted["x"]
    assert (together.fill if missing == "median" else 0) == (divided.fill if missing == "median" else 0)
    largest = float(np.abs(present).max())
    for name in ("centre", "scale", "fill"):
        a, b = getattr(together, name), getattr(divided, name)
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12 * largest), name
    assert together.flagged == divided.flagged == (len(present) < len(rows))
    if scaling in ("standard", "log"):
        x = np.log1p(present) if scaling == "log" else present
        assert divided.centre == pytest.approx(x.mean(), rel=1e-9, abs=1e-12 * largest)
        if x.std() > 1e-9 * np.abs(x).max():
            assert divided.scale == pytest.approx(x.std(), rel=1e-6)
        else:
            assert divided.scale == 1 or divided.scale == pytest.approx(x.std(), abs=1e-9 * largest)
    if scaling == "robust":
        assert_near(divided.centre, present, 0.5)
    if scaling == "none":
        assert (divided.centre, divided.scale) == (0, 1)
    if missing == "median" and scaling != "log":
        assert_near(divided.fill, present, 0.5)


def assert_near(quantile: Any, values: NDArray[np.float64], share: float) -> None:
    """NumPy's, to the last bit."""
    assert quantile == float(np.quantile(values, share, method="inverted_cdf"))


@QUICK
@given(divisions(NUMBERS), st.floats(0, 1))
def test_any_quantile_of_sums_is_that_of_all_numbers(data: tuple[list[float], list[list[int]]], share: float) -> None:
    values, clients = data
    feature, cells = Feature("x"), Cells(np.array(values, np.float64))
    present = np.array([values[row] for row in pooled(clients) if values[row] == values[row]])
    assume(len(present))
    sums = [add_up(feature, cells, rows) for rows in clients]
    whole, other = Sums.over(sums), Sums.over(sums[::-1])
    assert whole.quantile(share) == [float(np.quantile(present, share, method="inverted_cdf"))]
    assert str(other) == str(whole)  # whichever client answers first


@pytest.mark.parametrize("centre", [0.0, 19_000.0, 3e7, -1e12])
@pytest.mark.parametrize("least", [1, 10, 40])
def test_quantiles_of_sites_are_near_as_a_share_of_the_spread(centre: float, least: int) -> None:
    """Whatever the size of the numbers: of years, dates and prices alike. Sites give groups of neighbours only."""
    rng = np.random.default_rng(least)
    parts = [centre + rng.normal(site / 4, 1, 3000) for site in range(3)]
    sums = [add_up(Feature("x"), Cells(x), range(len(x))).suppressed(least) for x in parts]
    assert all(min(each.counts) >= least and len(each.counts) <= POINTS for each in sums)
    exact = np.quantile(np.concatenate(parts), [0.05, 0.25, 0.5, 0.75])
    assert np.abs(np.array(Sums.over(sums).quantile(0.05, 0.25, 0.5, 0.75)) - exact).max() < 0.03


def test_a_number_that_many_have_is_given_as_it_is() -> None:
    x = np.array([1.5] * 3 + [2.25] * 100 + [7.75] * 4)
    sums = add_up(Feature("x"), Cells(x), range(len(x))).suppressed(10)
    assert (sums.points, sums.counts) == ((2.25,), (107,))
    assert add_up(Feature("x"), Cells(x[:9]), range(9)).suppressed(10).points == ()


@QUICK
@given(
    divisions(WORDS),
    st.integers(1, 3),
    st.sampled_from(["own", "most-frequent"]),
    st.sampled_from(["one-hot", "ordinal"]),
)
def test_categories_are_those_of_the_pooled_training_rows(
    data: tuple[list[str], list[list[int]]], least: int, missing: str, coding: str
) -> None:
    words, clients = data
    rows = pooled(clients)
    present = [words[row] for row in rows if words[row] not in ("", "NA")]
    assume(present)
    table = of_words(words, least=least, missing=missing, coding=coding)
    divided = Coder.fitted_to(table, clients).fitted["x"]
    assert divided == Coder.fitted_to(table, [rows]).fitted["x"]
    assert divided.categories == tuple(sorted({word for word in present if present.count(word) >= least}))
    assert divided.joined == any(present.count(word) < least for word in present)
    assert present.count(str(divided.fill)) == max(map(present.count, present))


@QUICK
@given(divisions(st.tuples(NUMBERS, WORDS)), st.randoms(use_true_random=False))
def test_rows_of_nobody_change_nothing(data: tuple[list[tuple[float, str]], list[list[int]]], random: Any) -> None:
    """Also where they hold other numbers, other words, or nothing at all; and in whatever order rows come."""
    cells, clients = data
    rows = pooled(clients)
    assume(any(cells[row][0] == cells[row][0] for row in rows) and any(cells[row][1] not in ("", "NA") for row in rows))

    def coder(cells: list[tuple[float, str]], clients: list[list[int]]) -> str:
        numbers, words = (list(column) for column in zip(*cells, strict=True))
        features = Feature("n"), Feature("w", CATEGORY, least=2)
        columns = {"n": Cells(np.array(numbers)), "w": read_cells(features[1], Words.of(words), str)[0]}
        return json.dumps(Coder.fitted_to(RawTable(Schema(features), columns), clients).as_json())

    poison = [(random.choice([1e30, float("nan"), -7.25]), random.choice(["", "poison", "a"])) for _ in cells]
    poisoned = [cell if row in rows else poison[row] for row, cell in enumerate(cells)]
    assert coder(poisoned, clients) == coder(cells, clients)
    order = random.sample(range(len(cells)), len(cells))
    moved = [[order.index(row) for row in mine] for mine in clients]
    assert coder([cells[row] for row in order], moved) == coder(cells, clients)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [",".join(rows[0]), *(",".join(str(row[name]) for name in rows[0]) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def people(n: int = 60) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    return [
        {
            "age": int(rng.integers(20, 80)),
            "dose": "" if k % 7 == 3 else round(float(rng.gamma(2.0)), 3),
            "ward": "xyz"[int(rng.integers(3))],
            "since": f"20{10 + int(rng.integers(10))}-0{1 + int(rng.integers(9))}-1{int(rng.integers(9))}",
            "site": "abc"[k % 3],
            "split": ("train", "train", "train", "test", "validation")[k % 5],
            "label": ("sick", "well")[int(rng.integers(2))],
        }
        for k in range(n)
    ]


POISON = {"age": 10**9, "dose": -1e20, "ward": "poison", "since": "1700-01-01"}


@REUSED
@given(st.integers(0, 2**20), st.sampled_from(["test", "validation"]))
def test_poisoned_test_rows_of_a_file_change_nothing(tmp_path: Path, mask: int, part: str) -> None:
    """From the file to the coder that a run keeps: numbers, missing cells, categories and dates."""
    columns = Columns(client="site")
    clean = people()
    theirs = [k for k, row in enumerate(clean) if row["split"] == part]
    poisoned = [
        row | POISON | ({"dose": ""} if mask >> (k % 20) & 2 else {}) if k in theirs and mask >> (k % 20) & 1 else row
        for k, row in enumerate(clean)
    ]
    coders = []
    for name, rows in (("clean", clean), ("poisoned", poisoned)):
        data = read_user_data(written(tmp_path / f"{name}.csv", rows), columns)
        coders.append(own.coder_of(data, own.divided(data, 0)))
    assert json.dumps(coders[0].as_json()) == json.dumps(coders[1].as_json())
    assert [f.kind for f in coders[0].schema.features] == ["number", "number", CATEGORY, DATE]


@pytest.mark.parametrize(("name", "drawn"), [("heart", 0), ("heart", 7)])
def test_a_scenario_is_fitted_to_its_training_rows(name: str, drawn: int) -> None:
    """Against NumPy on the rows that the record of a run names; those of test sets and of the server are others."""
    made = scenarios.load(name, drawn, server_validation=0.1)
    x = np.concatenate([np.asarray(data[0]) for data in made.clients])
    columns = made.manifest["inputs"]
    for number in ("age", "oldpeak", "thalach"):
        k = columns.index(number)
        there = x[:, columns.index(f"{number} missing")] == 0 if f"{number} missing" in columns else x[:, k] == x[:, k]
        assert (x[there, k].mean(), x[there, k].std()) == pytest.approx((0, 1), abs=1e-5)
    tested = np.concatenate([np.asarray(data[0]) for data in made.tests.values()])
    assert abs(tested[:, columns.index("age")].mean()) > 1e-4


def test_all_columns_without_a_training_cell_are_named_at_once() -> None:
    features = Feature("a"), Feature("b", CATEGORY), Feature("c")
    columns = {
        "a": Cells(np.array([np.nan, np.nan, 1.0])),
        "b": Cells(np.array([-1, -1, 0]), ("w",)),
        "c": Cells(np.array([1.0, 2.0, 3.0])),
    }
    with pytest.raises(DataError, match=r"columns a, b: every cell of the training rows is missing.*leave_out=a,b"):
        Coder.fitted_to(RawTable(Schema(features), columns), [[0], [1]])


def test_signs_of_numbers_hold_for_every_table(tmp_path: Path) -> None:
    """A table all of whose cells could be plain numbers, 2.000, is read by the signs of the schema; other notations are refused."""
    signs = {"pay": {"kind": "number", "thousands": ".", "decimal": ","}}
    for text, expected in (("2.000;a\n3.500;b\n", [2000, 3500]), ("2.000;a\n1.234,5;b\n", [2000, 1234.5])):
        (tmp_path / "t.csv").write_text("pay;label\n" + text)
        own = read_user_data(tmp_path / "t.csv", Columns(schema=json.dumps(signs)))
        assert own.inputs.columns["pay"].values.tolist() == expected
    (tmp_path / "t.csv").write_text("pay;label\n1,234.5;a\n2,000.25;b\n")
    with pytest.raises(DataError, match="no number"):
        read_user_data(tmp_path / "t.csv", Columns(schema=json.dumps(signs)))


@pytest.mark.parametrize("scale", [1.0, 1e-290, 1e30])
def test_sums_of_many_short_columns_are_those_of_fsum(scale: float) -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(400, 9)) * scale * 10.0 ** rng.integers(-12, 12, (400, 9))
    values[:50, 1] = -values[:50, 0]
    assert exact_sums(values).tolist() == [math.fsum(column) for column in values.tolist()]
    assert exact_sums(np.round(values, 3)).tolist() == [math.fsum(column) for column in np.round(values, 3).tolist()]
