"""Train every method with its defaults on the embedded scenarios, and write what it reaches into docs/defaults.md.

python tools/defaults.py            # run what is missing (hours on two cores), below runs/defaults, and write the page
python tools/defaults.py --page     # only write the page, of the runs that are finished
"""

import argparse
from pathlib import Path

import numpy as np
from rich.progress import Progress

from equipoise import scenarios
from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.methods import METHODS
from equipoise.runs import directory as runs
from equipoise.runs.comparison import complete
from equipoise.runs.configuration import RunConfig, configure
from equipoise.system.threads import cores

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "defaults.md"
START, END = "<!-- defaults -->\n", "<!-- /defaults -->"
# first those that are made for the four papers
SCENARIOS = ("digits", "digits-label-skew", "digits-quality", "digits-pow", "digits-cla", "digits-dir", "digits-iid")
ROUNDS = 12
SEEDS = range(3)


def meant(method: str, scenario: str) -> bool:
    """Whether the scenario has what the method needs."""
    server = bool(parse(method).needs & {"validation", "contribution"})
    return scenarios.describe(scenario).has_server_validation or not server


def configs(method: str, scenario: str) -> list[RunConfig]:
    """The runs of a cell: nothing is set but their rounds; none for a scenario that lacks what the method needs."""
    return [configure(method, scenario, seed=s, rounds=ROUNDS) for s in SEEDS if meant(method, scenario)]


def place(base: Path, config: RunConfig) -> Path:
    """Where a run is kept."""
    return base / config.scenario / f"{runs.slug(config.label)}-seed{config.seed}"


def reached(history: History) -> tuple[float, bool]:
    """Accuracy in percent, and whether the model is of use.

    The mean over the test sets; where clients are compared, over the clients, each with the model that it predicts with.
    """
    summary = history.summary()
    return float((summary["collaboration"] or {"mean": summary["avg"]})["mean"]), not history.failure()


def cell(found: list[tuple[float, bool] | None]) -> str:
    """Mean and range over the seeds; in bold how many have learnt nothing, and how many are missing (None).

    No seeds at all: the scenario lacks what the method needs.
    """
    values, useless = [one[0] for one in found if one], sum(not one[1] for one in found if one)
    shown = f"{np.mean(values):.1f} ({min(values):.0f}–{max(values):.0f})" if values else "–" * (not found)
    missing = found.count(None)
    notes = [f"{useless} of {len(found)} learnt nothing"] * bool(useless) + [
        f"{missing} of {len(found)} missing"
    ] * bool(missing)
    return f"{shown} **{', '.join(notes)}**".strip() if notes else shown


def table(base: Path) -> str:
    """All methods by the scenarios of which there are finished runs."""

    def found(method: str, scenario: str) -> list[tuple[float, bool] | None]:
        paths = [place(base, config) for config in configs(method, scenario)]
        return [reached(History.from_run(path)) if runs.finished(path) else None for path in paths]

    every = {scenario: {method: found(method, scenario) for method in METHODS} for scenario in SCENARIOS}
    shown = {name: cells for name, cells in every.items() if any(one for seeds in cells.values() for one in seeds)}
    lines = ["| method | " + " | ".join(f"`{name}`" for name in shown) + " |", "|---" * (len(shown) + 1) + "|"]
    lines += [f"| `{m}` | " + " | ".join(cell(cells[m]) for cells in shown.values()) + " |" for m in METHODS]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "defaults", help="where the runs are kept")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this one; repeatable")
    given = parser.parse_args()
    if not given.page:
        made = [c for name in given.scenario or SCENARIOS for m in METHODS for c in configs(m, name)]
        planned = {place(given.runs, config): config for config in made}
        for path, config in planned.items():
            runs.start(config, path)
        with Progress() as progress:
            task = progress.add_task("rounds", total=ROUNDS * len(planned))
            failed = complete(list(planned), cores(), lambda done: progress.update(task, completed=done))
        for path, reason in failed.items():
            print(f"{path}: {reason}")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(before + START + table(given.runs) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
