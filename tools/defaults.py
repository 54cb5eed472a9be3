"""Train every method on every scenario of digits that comes with Equipoise, at the defaults, and write the table of docs/defaults.md.

python tools/defaults.py                          # or make defaults: three quarters of an hour on two cores; finished runs are kept
python tools/defaults.py --method mine            # only its row
"""

import argparse
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
from claims import filled
from rich.progress import Progress, TaskID
from stored import Rows, grid, store, stored

from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.federation.standing import progress_bar
from equipoise.methods import METHODS
from equipoise.metrics.performance import last_rounds
from equipoise.report.notes import mixed_machines, releases
from equipoise.runs.configuration import RunConfig, RunError, configure
from equipoise.runs.plan import compare
from equipoise.scenarios import SCENARIOS, describe
from equipoise.system.workers import cores

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "defaults.md"
ALIKE = "digits-iid"  # whose clients are: left out
EMBEDDED = tuple(  # of images
    name for name, of in SCENARIOS.items() if not of.reads and name != ALIKE and describe(name).transform is not None
)
SEEDS = range(3)
ROUNDS = {"digits-pow": 10, "digits-cla": 10, "digits-dir": 10}  # 6 elsewhere: as much work as a first look needs
LAST = 2  # rounds that are averaged

Found = dict[str, dict[str, list[History]]]  # by method and scenario, one per seed


def configured(method: str, scenario: str) -> list[RunConfig]:
    """The runs of a cell, one per seed; none where the method needs validation data that the scenario's server has not, or groups of people."""
    needs = parse(method).needs
    if "sensitive" in needs or (
        needs & {"validation", "contribution"} and not describe(scenario).has_server_validation
    ):
        return []
    return [configure(method, scenario, seed=seed, rounds=ROUNDS.get(scenario, 6)) for seed in SEEDS]


def trained(methods: Iterable[str], base: Path, jobs: int, progress: bool = True) -> Found:
    """Run what is not finished yet.

    Raises
    ------
    RunError : runs failed, or were made by other versions or processors than the others.
    """
    found: Found = {method: {} for method in methods}
    with progress_bar(progress) as bar:
        for scenario in EMBEDDED:
            asked = {method: configured(method, scenario) for method in found}
            configs = [config for cell in asked.values() for config in cell]
            task = bar.add_task(scenario, accuracy="")
            on_progress = partial(_advance, bar, task)
            histories = iter(compare(configs, base / scenario, jobs=jobs, on_progress=on_progress) if configs else ())
            for method, cell in asked.items():
                found[method][scenario] = [next(histories) for _ in cell]
    every = [history for of in found.values() for cell in of.values() for history in cell]
    if doubts := [*mixed_machines(every), *releases(every)]:
        raise RunError(f"{' '.join(doubts)} Delete {base}, and run all again.")
    return found


def _advance(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def accuracy(history: History) -> float:
    """Of the models that clients predict with: mean over the clients and the last rounds, in percent."""
    return 100 * float(np.nanmean(last_rounds(history.client_table()[1], LAST)))


def learned(history: History) -> bool:
    """Whether the model is better than guessing, as a report judges it."""
    return not history.failure(LAST)


def table(found: Found) -> Iterator[list[str]]:
    """A row per method."""
    yield ["method", *(f"`{name}`" for name in EMBEDDED)]
    for method, of in found.items():
        yield [f"`{method}`", *(shown(of[name]) for name in EMBEDDED)]


def summary(rows: Rows) -> Iterator[list[str]]:
    """A row per scenario: FedAvg, the bound of pooled data, the lowest and the median method that learns, and the methods that do not."""
    yield ["scenario", "`fedavg`", "`centralised`", "median of the methods", "lowest that learns", "only guesses"]
    names = [row[0] for row in rows[1:]]
    for number, scenario in enumerate(rows[0][1:], 1):
        cells = {name: row[number] for name, row in zip(names, rows[1:], strict=True) if row[number] != "–"}
        learning = {name: int(cell) for name, cell in cells.items() if "†" not in cell}
        lowest = min(learning, key=lambda name: learning[name])
        guessing = ", ".join(name for name in cells if name not in learning)
        middle = f"{median(learning.values()):.0f}"
        yield [scenario, cells["`fedavg`"], cells["`centralised`"], middle, f"{learning[lowest]} ({lowest})", guessing]


def shown(cell: list[History]) -> str:
    """The mean over the seeds, with a dagger for each seed in which nothing was learned; a dash where it cannot be run."""
    if not cell:
        return "–"
    return f"{mean(map(accuracy, cell)):.0f}" + "†" * sum(not learned(history) for history in cell)


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", action="append", help="only its row; repeatable")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "defaults", help="where the runs are kept")
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time")
    given = parser.parse_args()
    suitable = [name for name in METHODS if "sensitive" not in parse(name).needs]  # images have no sensitive attributes
    found = trained(given.method or suitable, given.runs, given.jobs)
    head, *rows = table(found)
    known = {row[0]: row for row in (*(stored("defaults")[1:] if given.method else ()), *rows)}
    ordered = [head, *(known[name] for name in map("`{}`".format, METHODS) if name in known)]
    store("defaults", ordered)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "defaults", grid(summary(ordered))), encoding="utf-8")


if __name__ == "__main__":
    main()
