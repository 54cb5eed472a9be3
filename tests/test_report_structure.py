"""How a report is made: every run is summed up once, a column is one entry, and private names stay in their file."""

from __future__ import annotations

import ast
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

import equipoise
from equipoise.federation.history import History
from equipoise.metrics import columns
from equipoise.metrics.columns import GROUPS, Column
from equipoise.metrics.performance import Value
from equipoise.records import summary
from equipoise.report import booktabs, comparison, figures, latex, markdown, render, rich_table, statistics, write
from test_report import several

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
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda self, file, **more: file.write('<svg viewBox="0 0 1 1"></svg>') if hasattr(file, "write") else None,
    )
    write(runs, tmp_path / "report.html", figures=True)
    assert len(runs) == 9
    assert calls["summary"] == 9
    assert calls["group_table"] <= 2 * 9  # once in the summary, once for curves and indices
    assert calls["client_table"] <= 4 * 9


MEDIAN = Column(
    "median",
    "median",
    lambda values, counts, measure: Value(float(np.median(values)), bool(np.isfinite(values).all())),
    "higher",
    "the middle value",
)


def test_a_column_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = several(3)
    before = comparison(runs)
    for module in (statistics, summary, columns):  # the list, wherever it is read
        monkeypatch.setattr(module, "GROUPS", (*GROUPS, MEDIAN))
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
    booktabs.save(runs, tmp_path)
    for shown in (
        text.getvalue(),
        markdown(found),
        latex(found),
        render(runs),
        (tmp_path / "tests-accuracy.tex").read_text(),
    ):
        assert "median" in shown


def test_no_private_name_is_taken_from_another_file() -> None:
    for file in sorted(SOURCE.rglob("*.py")):
        takes_no_private_name(file)


def takes_no_private_name(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise"):
            private = [alias.name for alias in node.names if alias.name.startswith("_") and alias.name != "__version__"]
            assert not private, f"{file.name} imports {private} from {node.module}"
            package = SOURCE.joinpath(*(node.module or "").split(".")[1:])
            modules |= {
                alias.asname or alias.name
                for alias in node.names
                if (package / f"{alias.name}.py").exists() or (package / alias.name).is_dir()
            }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert not node.attr.startswith("_") or node.attr.startswith("__"), f"{file.name}: {ast.unparse(node)}"
