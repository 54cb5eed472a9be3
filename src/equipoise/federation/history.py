"""The history of a run as users hold it: one that writes its own report."""

import os
from pathlib import Path

from equipoise.records import history
from equipoise.report.html import card, write
from equipoise.report.statistics import Comparison


class History(history.History):
    """The records of one run, one per round, and its description; it writes its own report.

    Parameters
    ----------
    records : one dictionary per round, in increasing order of `"round"`, see `equipoise.records.record.Record`.
    meta : what the run was, see `equipoise.records.meta.Meta`.

    Raises
    ------
    ValueError : a record or the meta data does not follow this form.
    """

    def report(self, path: str | os.PathLike[str], *, figures: bool = False) -> Path:
        """Write the report of this run, one self-contained HTML file; return its path.

        Parameters
        ----------
        path : the file to write, replaced if it exists.
        figures : also write every figure as PDF and PNG, and every table as LaTeX, into `<stem>-figures/` beside it.
        """
        return write([self], path, figures=figures)

    def _repr_html_(self) -> str:
        return card(Comparison.of([self]), "convergence")
