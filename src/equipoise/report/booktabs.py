"""The tables of a report as LaTeX files for the package booktabs, one table per file."""

import os
from collections.abc import Sequence
from pathlib import Path

from equipoise.records.history import History
from equipoise.report import layout
from equipoise.report.rendering import latex_sheet
from equipoise.report.statistics import Comparison
from equipoise.system.files import write_atomically


def save(histories: Sequence[History] | Comparison, directory: str | os.PathLike[str]) -> list[Path]:
    """Write every table of the report, to be taken into a paper by input; return the paths.

    The tables of the measures, what clients get for what they give, every index of spread, the paired tests, the traffic.
    They need the package booktabs; the wider ones fit a page turned on its side.

    Parameters
    ----------
    histories : runs of one scenario, or a comparison of them; the first method is the one the others are compared with.
    directory : where to write; made if missing.

    Raises
    ------
    ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
    """
    directory = Path(directory)
    compared = Comparison.of(histories)
    shown = [
        *layout.sheets(compared.document),
        *layout.over_groups(compared),
        *layout.over_clients(compared),
        layout.every_client(compared),
        *layout.people_of_clients(compared),
        layout.communication(compared),
        *layout.paired_tests(compared.document),
    ]
    return [write_atomically(directory / f"{sheet.name}.tex", latex_sheet(sheet)) for sheet in shown if sheet]
