"""How a report is made: every run is summed up once, a column is one entry, and private names stay in their file."""

from __future__ import annotations

import ast
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest
from matplotlib.figure import Figure
from pages import GENERATED
from rich.console import Console

import equipoise
from equipoise.federation.history import History
from equipoise.metrics import definitions
from equipoise.metrics.definitions import GROUPS, PARITY, Statistic
from equipoise.metrics.gaps import Estimate
from equipoise.metrics.groups import OF_CLASS
from equipoise.metrics.performance import Value, percent
from equipoise.report import (
    comparison,
    document,
    figures,
    latex,
    markdown,
    render,
    rich_table,
    write,
)
from equipoise.report.document import Document
from equipoise.report.rendering import save_latex
from helpers import in_one
from test_collaborative_report import made
from test_regression_report import several as errors
from test_report import several
from test_true_rates import hospital

pytestmark = pytest.mark.drawn

SOURCE = Path(equipoise.__file__).parent


def test_every_run_is_summed_up_once_in_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        method = getattr(History, name)

        def call(self: History, *arguments: Any) -> Any:
            calls[name] += 1
            return method(self, *arguments)

        monkeypatch.setattr(History, name, call)

    for name in ("summary", "group_table", "client_table"):
        counted(name)
    runs = several(3)

    def drawn(self: Figure, file: Any, **more: Any) -> None:
        text = '<svg viewBox="0 0 1 1"></svg>'
        file.write(text.encode() if isinstance(file, io.BytesIO) else text)

    monkeypatch.setattr(Figure, "savefig", drawn)
    write(runs, tmp_path / "report.html", figures=True)
    assert len(runs) == 9
    assert calls["summary"] == 9
    assert calls["group_table"] <= 2 * 9  # once in the summary, once for curves and indices
    assert calls["client_table"] <= 4 * 9


MEDIAN = Statistic(
    "median",
    lambda values, counts, measure: Value(float(np.median(values)), bool(np.isfinite(values).all())),
    "higher",
    "the middle value",
)


def test_a_statistic_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = several(3)
    before = comparison(runs)
    monkeypatch.setattr(definitions, "GROUPS", (*GROUPS, MEDIAN))
    monkeypatch.setattr(figures, "draw_all", lambda found: {})
    found = comparison(runs)
    expected = 100 * np.mean([np.median(of.group_table()[1][-5:].mean(axis=0)) for of in runs if of.label == "afl"])
    assert found["methods"][1]["median"]["mean"] == pytest.approx(expected)
    assert found["methods"][1]["versus"]["median"]["p"] is not None
    assert runs[0].summary()["median"] is not None
    for method in found["methods"]:
        for numbers in (method, method["pooled"], method["versus"] or {}):
            numbers.pop("median", None)
    for numbers in (found["leaders"], *found["other_rounds"]["methods"]):
        numbers.pop("median")
    assert found == before
    found = comparison(runs)
    text = io.StringIO()
    Console(file=text, width=200).print(rich_table(found, 200))
    save_latex(runs, tmp_path)
    for shown in (
        text.getvalue(),
        markdown(found),
        latex(found),
        render(runs),
        (tmp_path / "tests-accuracy.tex").read_text(),
    ):
        assert "median" in shown


SUFFICIENCY = Statistic(
    "sufficiency",
    lambda between: between.largest("ppv", "npv"),
    "lower",
    "the larger of max_g PPV(g) − min_g PPV(g) and max_g NPV(g) − min_g NPV(g)",
    "Barocas, Hardt and Narayanan, 2023",
    rates=("ppv", "npv"),
    difference="the larger of those of both predictive values",
)
OVERALL = Statistic(
    "distance",
    lambda between: Estimate(percent(between.fairness.gap("tpr").to_overall)),
    "lower",
    "max_g |TPR(g) − TPR|",
    "FairBatch",
)


def without(found: Any, *keys: str) -> Any:
    """A document without the numbers of some gaps."""
    for part in ({"methods": [found["group_fairness"]]}, found["group_fairness"], found["other_rounds"] or {}):
        for row in part.get("methods", []):
            for numbers in (row, row.get("versus"), row.get("intervals"), row.get("leaders")):
                for key in keys:
                    (numbers or {}).pop(key, None)
    return found


def test_a_gap_is_one_entry_and_one_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = [hospital(n, 15, seed, label) for seed, n in enumerate((20, 40)) for label in ("fedavg", "afl")]
    before = comparison(runs)
    monkeypatch.setattr(definitions, "PARITY", (*PARITY, SUFFICIENCY, OVERALL))
    monkeypatch.setattr(figures, "draw_all", lambda found: {})
    found = comparison(runs)
    first, other = found["group_fairness"]["methods"]
    expected = []
    for treated in (run.group_fairness() for run in runs if run.label == "fedavg"):
        woman, man = treated["groups"].values()
        expected.append(max(abs(woman[key][0] - man[key][0]) for key in ("ppv", "npv")))
        assert (
            treated["intervals"]["sufficiency"][0] <= treated["sufficiency"] <= treated["intervals"]["sufficiency"][1]
        )
    assert first["sufficiency"]["mean"] == pytest.approx(np.mean(expected))
    assert first["distance"]["mean"] is not None
    assert first["intervals"]["distance"] is None
    assert runs[0].statistics()["group_fairness"]["sufficiency"] == pytest.approx(expected[0])
    assert other["versus"]["sufficiency"]["seeds"] == 2
    assert found["group_fairness"]["leaders"]["sufficiency"]["leading"] == "fedavg"
    text = io.StringIO()
    Console(file=text, width=200).print(rich_table(found, 200))
    save_latex(runs, tmp_path)
    page, tests = render(runs), (tmp_path / "tests-group-fairness.tex").read_text()
    for shown in (text.getvalue(), markdown(found), latex(found), page, tests, GENERATED["gaps between groups"]()):
        assert "sufficiency" in shown
        assert "distance" in shown
    for shown in (page, GENERATED["gaps between groups"]()):
        assert "Barocas, Hardt and Narayanan, 2023" in shown
    for shown in (page, markdown(found)):
        assert "; sufficiency, the larger of those of both predictive values." in shown
    assert without(found, "sufficiency", "distance") == before


@pytest.mark.share(4)
def test_no_private_name_is_taken_from_another_file() -> None:
    for file in sorted(SOURCE.rglob("*.py")):
        takes_no_private_name(file)


def takes_no_private_name(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = set()
    nodes = [*ast.walk(tree)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise"):
            private = [alias.name for alias in node.names if alias.name.startswith("_") and alias.name != "__version__"]
            assert not private, f"{file.name} imports {private} from {node.module}"
            package = SOURCE.joinpath(*(node.module or "").split(".")[1:])
            modules |= {
                alias.asname or alias.name
                for alias in node.names
                if (package / f"{alias.name}.py").exists() or (package / alias.name).is_dir()
            }
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert not node.attr.startswith("_") or node.attr.startswith("__"), f"{file.name}: {ast.unparse(node)}"


BY_COLUMN: dict[str, Any] = {  # rows that have the keys of columns, too
    "Versus": document.Difference,
    "RatesOfGroup": document.Rate,
    **dict.fromkeys(("Measured", "Gaps", "Rewarded", "OverClients"), document.OverSeeds),
}
LISTS = (GROUPS, definitions.INDICES, definitions.COLLABORATION, definitions.PARITY, definitions.ERRORS)
KEYS = {statistic.key for statistics in LISTS for statistic in statistics}
KEYS |= {"accuracy", *OF_CLASS, "bias", "calibration_error", "rmse", "mae", "error", "prediction"}


def misfits(value: Any, kind: Any, where: str = "document") -> Iterator[str]:
    """Where a value is not of a type of typed dictionaries, lists and plain JSON."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any or origin is NotRequired:
        yield from () if kind is Any else misfits(value, inside[0], where)
    elif is_typeddict(kind) and isinstance(value, dict):
        fields, of_columns = get_type_hints(kind), BY_COLUMN.get(kind.__name__)
        missing = [key for key in kind.__required_keys__ if key not in value]
        more = [key for key in value if key not in fields and not (of_columns and key in KEYS)]
        yield from (f"{where}: {key}" for key in (*missing, *more))
        for key in value.keys() - {*more}:
            yield from misfits(value[key], fields.get(key, of_columns), f"{where}.{key}")
    elif origin is dict and isinstance(value, dict):
        for key, of in value.items():
            yield from misfits(of, inside[1], f"{where}.{key}")
    elif origin in (list, tuple) and isinstance(value, (list, tuple)):
        for of in value:
            yield from misfits(of, inside[0], f"{where}[]")
    elif origin is UnionType:
        if all([*misfits(value, one, where)] for one in inside):
            yield f"{where}: {value!r} is not {kind}"
    elif origin or is_typeddict(kind) or not isinstance(value, (int, float) if kind is float else kind):
        yield f"{where}: {value!r} is not {kind}"


@pytest.mark.parametrize(
    "histories",
    [
        lambda: several(1),
        lambda: several(3),
        lambda: [replace(run, records=run.records[:0]) for run in several(1)],
        lambda: errors(2),
        lambda: [made(label, seed) for label in ("standalone", "fedsac") for seed in (0, 1)],
        lambda: [hospital(n, 6, seed, label) for seed, n in enumerate((9, 40)) for label in ("fedavg", "afl")],
    ],
)
def test_the_types_of_a_comparison_are_those_of_its_document(histories: Any) -> None:
    assert [*misfits(comparison(histories()), Document)] == []


CLASSES = [one for one in ast.parse(Path(document.__file__).read_text()).body if isinstance(one, ast.ClassDef)]


@in_one("kind", CLASSES)
def test_every_key_of_a_document_is_described(kind: ast.ClassDef) -> None:
    text = ast.get_docstring(kind) or ""
    keys = {field.target.id for field in kind.body if isinstance(field, ast.AnnAssign)}
    assert "Attributes" not in text or keys <= set(re.findall(r"\w+", text))


def test_every_part_of_a_document_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
    described = set(re.findall(r"equipoise\.report\.document\.(\w+)", page))
    bases = {base.id for kind in CLASSES for base in kind.bases if isinstance(base, ast.Name)} - described
    parts = {kind.name for kind in CLASSES if any(getattr(base, "id", "") != "NamedTuple" for base in kind.bases)}
    assert parts - bases <= described


def test_every_figure_has_its_words() -> None:
    assert figures.CAPTIONS.keys() == figures.PLOTS.keys()
