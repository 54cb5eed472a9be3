"""Reports of runs: tables, figures, and one self-contained HTML page.

Imports the settings of ``core``, ``metrics`` and ``system``.
"""

from equipoise.report.figures import draw_all, save_all
from equipoise.report.html import render, write
from equipoise.report.rendering import latex, markdown, rich_table
from equipoise.report.sentences import verdict
from equipoise.report.statistics import comparison

__all__ = ["comparison", "draw_all", "latex", "markdown", "render", "rich_table", "save_all", "verdict", "write"]
