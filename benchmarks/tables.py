"""Wide tables: what reading and coding one takes, as a multiple of what NumPy takes to read its numbers.

Makes a CSV file of random numbers with a label and a client, and makes the scenario `own` of it, in processor time.

    python benchmarks/tables.py            # print the table; half a minute
    python benchmarks/tables.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table
from round import machine, options, show

from equipoise import scenarios

SHAPES = {"20,000 x 60": (20_000, 60), "2,000 x 600": (2_000, 600), "200 x 6,000": (200, 6_000)}  # columns, rows


@dataclass(frozen=True)
class Result:
    """Seconds of processor, medians; and as a multiple of those of NumPy, in single alternations."""

    name: str
    seconds: float
    numpy: float
    low: float
    high: float


def write(path: Path, columns: int, rows: int) -> None:
    """A table of numbers with three decimals."""
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(f"gene{k}" for k in range(columns)) + ",label,client\n")
        for row in range(rows):
            numbers = ",".join(f"{number:.3f}" for number in rng.normal(size=columns))
            file.write(f"{numbers},{row % 2},{row % 3}\n")


def seconds(work: Callable[[], object]) -> float:
    """Of processor."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure(name: str, alternations: int) -> Result:
    """Read a table by Equipoise and by NumPy in turn."""
    ours, theirs = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for k in range(alternations):
            path = Path(folder) / f"{k}.csv"  # a new one, as the last file is kept
            write(path, *SHAPES[name])
            theirs.append(seconds(lambda path=path: np.loadtxt(path, delimiter=",", skiprows=1)))
            ours.append(seconds(lambda path=path: scenarios.load("own", 0, path)))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Result(name, statistics.median(ours), statistics.median(theirs), min(ratios), max(ratios))


COLUMNS = ("columns x rows", "seconds", "NumPy", "multiple")


def row(r: Result) -> tuple[str, str, str, str]:
    return r.name, f"{r.seconds:.2f}", f"{r.numpy:.2f}", f"{r.low:.1f} to {r.high:.1f}"


def table(results: list[Result]) -> Table:
    grid = Table(*COLUMNS, title="Wide tables")
    for result in results:
        grid.add_row(*row(result))
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    lines = [COLUMNS, ("---", "---:", "---:", "---:"), *map(row, results)]
    grid = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"""# Wide tables

Made by `python benchmarks/tables.py --write`; do not edit.

{where}.

{grid}

**seconds**: processor time from a CSV file of numbers to the inputs of three clients, with all checks, the median of
{arguments.alternations} alternations; **NumPy**: that of `numpy.loadtxt`, which reads the numbers alone; **multiple**: the one over the other, in single
alternations.
"""


def main() -> None:
    arguments = options("Time the reading of wide tables, as a multiple of numpy.loadtxt.", "shapes").parse_args()
    where = machine()
    chosen = [name for name in SHAPES if arguments.only.lower() in name]
    show(arguments, where, [measure(name, arguments.alternations) for name in chosen], table, markdown)


if __name__ == "__main__":
    main()
