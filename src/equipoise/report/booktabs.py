"""The tables of a report as LaTeX files for the package booktabs, one table per file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.report.details import Block, Tests, communication, every_client, over_clients, over_groups, tests
from equipoise.report.table import Cell, Grid, Sheet, _latex, comparison, sheets, tables
from equipoise.system.files import write_atomically

if TYPE_CHECKING:
    from equipoise.federation.history import History


def save(histories: Sequence[History], directory: str | os.PathLike[str]) -> list[Path]:
    """Write every table of the report, to be taken into a paper by input; return the paths.

    The tables of the measures, what clients get for what they give, every index of spread, the paired tests, the traffic.
    They need the package booktabs; the wider ones fit a page turned on its side.

    Parameters
    ----------
    histories
        Runs of one scenario; the first method is the one the others are compared with.
    directory
        Where to write; made if missing.

    Raises
    ------
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    found = comparison(histories)
    names = [one["measure"] for one in tables(found)]
    names += [name for name in ("collaboration", "group_fairness") if found[name]]
    content = dict(zip((name.replace("_", "-") for name in names), sheets(found), strict=True))
    blocks = [*over_groups(histories), *over_clients(histories), every_client(histories), communication(histories)]
    content |= {block.name: _sheet(block) for block in blocks if block}
    content |= {one.name: _tested(one, found["methods"][0]["method"]) for one in tests(found)}
    return [write_atomically(directory / f"{name}.tex", _latex(sheet)) for name, sheet in content.items()]


def _sheet(block: Block) -> Sheet:
    return Sheet(f"{block.heading}.", block.grid, [block.caption], [], [], head=block.head)


def _tested(one: Tests, first: str) -> Sheet:
    grid = Grid(
        one.titles,
        tuple((name, tuple(Cell(test.text if test else "–") for test in cells)) for name, cells in one.rows),
    )
    caption = f"{one.heading}: differences to {first}, paired by seed."
    holm = ", and that by Holm" * any(test.holm for _, cells in one.rows for test in cells if test)
    return Sheet(caption, grid, [f"Mean, 95 % interval, p-value of the paired t-test{holm}."], [], [])
