"""The index of a folder: its comparisons, what each shows, and where its page is."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.report import answer
from equipoise.report.formatting import Cell, Grid
from equipoise.report.page import Page, Table
from equipoise.report.statistics import Comparison
from equipoise.system.text import plural


def page(folder: str, comparisons: Mapping[str, Comparison], reports: Mapping[str, str]) -> Page:
    """The index of a folder.

    Parameters
    ----------
    folder : its name.
    comparisons : by name, comparisons and single runs.
    reports : by name, the address of the full report, relative to the index; only those that exist.
    """
    several = [compared for compared in comparisons.values() if len(compared.runs) > 1]
    shown = [c for c in several if any(e.better is not None for p in answer.panels(c.document) for e in p.effects)]
    rows = tuple(
        (
            name,
            (
                Cell(answer.title(compared)),
                Cell(answer.headline(compared.document)),
                Cell(f"{plural(len(compared.runs), 'method')}, {plural(len(compared['seeds']), 'seed')}"),
                Cell("report" if name in reports else "", link=reports.get(name, "")),
            ),
        )
        for name, compared in comparisons.items()
    )
    text = f"{len(shown)} of {plural(len(several), 'comparison')} show{'s' * (len(shown) == 1)} a difference to the first method."
    table = Table(Grid(("data", "what it shows", "runs", "page"), rows), head="Folder", kind="lines")
    return Page(f"Comparisons in {folder}", "Index", [plural(len(rows), "folder")], text, first=[table])
