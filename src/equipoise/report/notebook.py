"""Results in a notebook: a small table and a figure in HTML, in light and dark."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from equipoise.report.html import svg
from equipoise.report.layout import sheets
from equipoise.report.statistics import Comparison
from equipoise.system.text import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = "--rule: #8885; --blue: #3d94d1; max-width: 46rem"  # ink is that of the page


def card(compared: Comparison, figure: str) -> str:
    """The table of the accuracy, a figure by name, and the verdict; without an evaluation what the runs are."""
    if not compared["methods"][0]["groups"]:
        return block(repr(compared))
    import pandas as pd

    titles, rows = sheets(compared.document)[0].grid
    texts = {visible(name): [visible(cell.text) for cell in cells] for name, cells in rows}
    table = pd.DataFrame.from_dict(texts, orient="index", columns=[*map(visible, titles)]).to_html()
    return block(compared.verdict, table, compared.figure(figure))


def block(text: str, table: str = "", figure: Figure | None = None) -> str:
    """A table in HTML, a figure, and a sentence that describes it."""
    from markupsafe import escape

    name = hashlib.sha256((text + table).encode()).hexdigest()[:12]  # ids are unique on the page
    drawn = "" if figure is None else f'<div style="max-width: 26rem">{svg(name, figure)}</div>'
    return f'<div style="{STYLE}">{table}{drawn}<p id="caption-{name}">{escape(visible(text))}</p></div>'
