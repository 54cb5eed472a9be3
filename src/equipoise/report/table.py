"""Tables of several runs, from Python: the numbers, the verdict, and the tables as text."""

from equipoise.report.rendering import latex, markdown, rich_table
from equipoise.report.sentences import verdict
from equipoise.report.statistics import comparison

__all__ = ["comparison", "latex", "markdown", "rich_table", "verdict"]
