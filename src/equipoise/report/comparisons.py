"""Several runs as users hold them: a comparison that states, draws and writes what its numbers show."""

import io
import os
from pathlib import Path

from equipoise.report import answer, figures, html, rendering, sentences, statistics
from equipoise.report.drawing import Figure
from equipoise.system.terminal import Terminal


class Comparison(statistics.Comparison):
    """Several runs of one scenario, and every number that tables, figures and pages show of them.

    As a mapping it is its document, see `equipoise.report.document.Document`.

    Parameters
    ----------
    runs : by method and seed; methods in the order of their first appearance, seeds in increasing order.
    histories : the runs in the order in which they were given.
    last : how many of the last evaluated rounds are averaged.
    document : everything in plain JSON types.
    """

    @property
    def headline(self) -> str:
        """What the corrected tests show, in a sentence of at most 25 words: the first one of the report."""
        return answer.headline(self.document)

    @property
    def verdict(self) -> str:
        """What the runs show in at most five sentences, and two about gaps between people, with no more certainty than seeds and test samples allow."""
        return sentences.verdict(self.document)

    @property
    def evidence(self) -> list[str]:
        """The numbers behind `verdict`: differences, intervals, p-values, and what there was no room for."""
        return sentences.evidence(self.document)

    def figure(self, name: str) -> Figure:
        """A figure of the report by name, such as `"tradeoff"`, which a notebook shows.

        Raises
        ------
        ValueError : these runs hold no data for it.
        """
        return figures.draw(self, name)

    def report(self, path: str | os.PathLike[str], *, figures: bool = False) -> Path:
        """Write the report, see `equipoise.report.html.write`; return its path."""
        return html.write(self, path, figures=figures)

    def __str__(self) -> str:
        console = Terminal(file=io.StringIO(), width=100, color_system=None, force_jupyter=False)
        console.print(rendering.rich_table(self.document, 100))
        return "\n".join(map(str.rstrip, console.file.getvalue().splitlines()))  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return html.card(self, "bars")
