"""Reports of runs: tables, figures, and one self-contained HTML page.

Imports the settings of ``core``, ``metrics`` and ``system``.
"""

from equipoise.report.figures import draw_all, save_all
from equipoise.report.html import render, write
from equipoise.report.table import comparison, latex, markdown, rich_table, verdict

__all__ = ["comparison", "draw_all", "latex", "markdown", "render", "rich_table", "save_all", "verdict", "write"]
