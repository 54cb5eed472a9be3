"""The index of a folder: its comparisons, what each shows, and where its page is."""

from collections.abc import Mapping

from equipoise.report import answer
from equipoise.report.formatting import UNDEFINED, Cell, Grid
from equipoise.report.page import Page, Table
from equipoise.report.statistics import Comparison
from equipoise.system.text import plural


def page(folder: str, comparisons: Mapping[str, Comparison | str], reports: Mapping[str, str]) -> Page:
    """The index of a folder.

    Parameters
    ----------
    folder : its name.
    comparisons : by name, comparisons and single runs, or why one cannot be read.
    reports : by name, the address of the full report, relative to the index; only those that exist.
    """
    read = [compared for compared in comparisons.values() if not isinstance(compared, str)]
    several = [compared for compared in read if len(compared.runs) > 1]
    deciding = [c for c in several if any(e.better is not None for p in answer.panels(c.document) for e in p.effects)]
    rows = tuple((name, _row(compared, reports.get(name, ""))) for name, compared in comparisons.items())
    text = f"{len(deciding)} of {plural(len(several), 'comparison')} show{'s' * (len(deciding) == 1)} a difference to the first method."
    table = Table(Grid(("data", "what it shows", "runs", "page"), rows), head="Folder", kind="lines")
    return Page(f"Comparisons in {folder}", "Index", [plural(len(rows), "folder")], text, first=[table])


def _row(compared: Comparison | str, report: str) -> tuple[Cell, ...]:
    """What a comparison is of and shows, how many runs it has, and a link to its page."""
    page = Cell("report" if report else "", link=report)
    if isinstance(compared, str):
        return Cell(UNDEFINED), Cell(compared), Cell(UNDEFINED), page
    runs = f"{plural(len(compared.runs), 'method')}, {plural(len(compared['seeds']), 'seed')}"
    return Cell(answer.title(compared)), Cell(answer.headline(compared.document)), Cell(runs), page
