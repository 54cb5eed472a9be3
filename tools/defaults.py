"""Train every method on every scenario that comes with Equipoise, at the defaults, and write the table in docs/defaults.md.

python tools/defaults.py                          # or make defaults: three quarters of an hour on two cores; finished runs are kept
python tools/defaults.py --method sam --method qffl
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean

import numpy as np
from claims import filled
from rich.progress import TaskID

from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.federation.progress_bar import progress_bar
from equipoise.methods import METHODS
from equipoise.metrics.performance import last_rounds
from equipoise.report.notes import mixed_machines, releases
from equipoise.runs import directory as runs
from equipoise.runs.comparison import complete, directories
from equipoise.runs.configuration import RunConfig, RunError, configure
from equipoise.scenarios import SCENARIOS, describe
from equipoise.system.threads import cores

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "defaults.md"
EMBEDDED = tuple(
    name for name, entry in SCENARIOS.items() if not entry.reads and name != "digits-iid"
)  # whose clients are alike
SEEDS = range(3)
ROUNDS = {"digits-pow": 10, "digits-cla": 10, "digits-dir": 10}  # 6 elsewhere: as much work as a first look needs
LAST = 2  # rounds that are averaged

Found = dict[str, dict[str, list[History]]]  # by method and scenario, one per seed


def configured(method: str, scenario: str) -> list[RunConfig]:
    """The runs of a cell, one per seed; none where the method needs validation data that the scenario's server has not."""
    if parse(method).needs & {"validation", "contribution"} and not describe(scenario).has_server_validation:
        return []
    return [configure(method, scenario, seed=seed, rounds=ROUNDS.get(scenario, 6)) for seed in SEEDS]


def trained(methods: Iterable[str], base: Path, jobs: int, progress: bool = True) -> Found:
    """Run what is not finished yet.

    Raises
    ------
    RunError : runs failed, or were made by other versions or processors than the others.
    """
    found: Found = {method: {} for method in methods}
    failed: dict[Path, str] = {}
    with progress_bar(progress) as bar:
        for scenario in EMBEDDED:
            cells = {method: configured(method, scenario) for method in found}
            places = {method: directories(base / scenario, cell) for method, cell in cells.items()}
            every = {
                path: config
                for method, cell in cells.items()
                for path, config in zip(places[method], cell, strict=True)
            }
            for path, config in every.items():
                runs.start(config, path)
            task = bar.add_task(scenario, total=sum(config.rounds for config in every.values()), accuracy="")

            def on_progress(done: int, task: TaskID = task) -> None:
                bar.update(task, completed=done)

            failed |= complete([*every], jobs, on_progress)
            for method, paths in places.items():
                found[method][scenario] = [History.from_run(path) for path in paths if path not in failed]
    if failed:
        raise RunError("; ".join(f"{path}: {reason}" for path, reason in failed.items()))
    histories = [history for of in found.values() for cell in of.values() for history in cell]
    if doubts := [*mixed_machines(histories), *releases(histories)]:
        raise RunError(f"{' '.join(doubts)} Delete {base}, and run all again.")
    return found


def accuracy(history: History) -> float:
    """Of the models that clients predict with: mean over the clients and the last rounds, in percent."""
    return 100 * float(np.nanmean(last_rounds(history.client_table()[1], LAST)))


def learned(history: History) -> bool:
    """Whether the model is better than guessing, as a report judges it."""
    return not history.failure(LAST)


def table(found: Found) -> Iterator[str]:
    """A line per method."""
    yield f"| method | {' | '.join(f'`{name}`' for name in EMBEDDED)} |"
    yield "|---|" + "---:|" * len(EMBEDDED)
    for method, cells in found.items():
        yield f"| `{method}` | {' | '.join(shown(cells[name]) for name in EMBEDDED)} |"


def shown(cell: list[History]) -> str:
    """The mean over the seeds, with a dagger for each seed in which nothing was learned; a dash where it cannot be run."""
    if not cell:
        return "–"
    return f"{mean(map(accuracy, cell)):.0f}" + "†" * sum(not learned(history) for history in cell)


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", action="append", help="only this one, printed and not written; repeatable")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "defaults", help="where the runs are kept")
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time")
    given = parser.parse_args()
    found = trained(given.method or METHODS, given.runs, given.jobs)
    lines = [*table(found)]
    if given.method:
        print("\n".join(lines))
    else:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "defaults", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
