"""The commands ``equipoise tune``, with what ``compare --tune`` shares with it, and ``equipoise benchmark``, which tunes and tests."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.markup import escape

from equipoise.cli import completion
from equipoise.cli.choices import Choices, check_parts, read
from equipoise.cli.console import counted, out, print_table, say
from equipoise.cli.options import JOBS, Json, Place, Training, option, pairs_of
from equipoise.system.search import read as read_space
from equipoise.system.workers import Workers, cores, loading

if TYPE_CHECKING:
    from equipoise.runs.choosing import Tuning
    from equipoise.runs.plan import How

SUBMIT = "submit"  # the word of ``benchmark`` before methods of the user's own


@dataclass(frozen=True)
class Searched:
    """By what settings are chosen, and where they are searched."""

    by: str | None = option(
        None,
        "What the best settings are: `mean`, `samples`, `worst`, `mean-std`, `worst10`, `eo` (equal opportunity), `collaboration`, "
        "`leave-one-client-out`, or `oracle`, which looks at test data [default: mean].",
        metavar="CRITERION",
    )
    search: list[str] | None = option(
        None,
        "Where a setting is searched: `lr=log(0.001, 1)`, `fedprox.mu=0.01,0.1,1`. Repeatable.",
        metavar="NAME=SPACE",
    )


@dataclass(frozen=True)
class Draws(Searched):
    """Fields of :class:`equipoise.runs.choosing.Budget`, and where settings are searched."""

    draws: int = option(16, "Settings to try per method, the defaults first.", min=1, metavar="N")
    trials: int = option(1, "Runs of each draw, with seeds of their own.", min=1, metavar="N")
    halving: bool = option(
        True,
        "Continue only the better half after an eighth, a quarter and half of the rounds.",
        "--halving/--no-halving",
    )
    sampler: str = option("random", "`random`, or `optuna` (an extra), which learns from draws.")
    seed: int = option(0, "Decides the draws.", min=0, metavar="N")


def tune(
    *,
    methods: list[str] = option(
        ..., "The methods; all have the same draws.", "METHODS...", autocompletion=completion.methods
    ),
    drawn: Draws,
    given: Training,
    place: Place,
    jobs: int | None = JOBS,
    json_: Json = False,
) -> Iterator[object]:
    """Choose the hyper-parameters and the learning rate of each method on held-out training samples; test data are not built."""
    with started(given, jobs, len(methods) * drawn.draws * drawn.trials, place) as workers:
        with loading():
            from equipoise.runs.plan import How

        chosen = read(vars(given))
        directory = place.folder(f"tune-{chosen.table['scenario']}")
        budget = {name: value for name, value in vars(drawn).items() if name != "search"}
        how = How(jobs=jobs, lines=not json_, workers=workers)
        tuning = choose(methods, chosen, budget, directory, search=drawn.search, **how)
    yield tuning.document()
    show(tuning, directory)
    path = directory / "chosen.toml"
    again = shlex.join(["equipoise", "compare", *methods, "--config", str(path), "--seeds", "5"])
    say(f"chosen: {path}\nTest them: {again}")


def started(given: Training, jobs: int | None, runs: int, place: Place) -> Workers:
    """Processes for new runs, which load PyTorch while this one does: as many as their settings let expect."""
    if place.name and (place.base / place.name).exists():  # perhaps all are complete
        return Workers()
    fitting = max(1, cores() // (given.threads or 1)) if given.device in (None, "cpu") else 1
    return Workers(min(jobs or fitting, runs))


def tuned_choices(
    methods: Sequence[str], chosen: Choices, budget: Mapping[str, Any], directory: Path, **how: Any
) -> Choices:
    """The same with settings that are chosen first, in a folder of a comparison's directory."""
    from equipoise.runs.choosing import FOLDER

    tuning = choose(methods, chosen, budget, directory / FOLDER, **how)
    if how["lines"]:
        show(tuning, directory / FOLDER)
    of_methods, tuned = tuning.settings(), {method: tuning.tuned(method) for method in methods}
    # the search began at the given rate, so what it chose is above all else
    return replace(chosen, below=chosen.layers, above=(), of_methods=of_methods, tuned=tuned)


def choose(
    methods: Sequence[str],
    chosen: Choices,
    budget: Mapping[str, Any],
    directory: Path,
    *,
    search: list[str] | None,
    **how: Unpack[How],
) -> Tuning:
    """Choose the settings of some methods in a directory, with a progress bar if there are ``lines``."""
    from equipoise.runs import choosing
    from equipoise.runs.choosing import Budget
    from equipoise.runs.configuration import Layer

    if chosen.of_methods:
        raise ValueError("--config: the settings in the file are chosen already. Leave out the file, or --tune.")
    if twice := [method for k, method in enumerate(methods) if method in methods[:k]]:
        raise ValueError(f"The method {twice[0]} is given twice. Name each once.")
    check_parts(chosen, methods)
    spaces = {name: read_space(name, text) for name, text in pairs_of("--search", search).items()}
    shared = {name: value for name, value in chosen.table.items() if name not in ("method", "seed")}
    validation = {"validation": shared.pop("validation")} if "validation" in shared else {}
    candidates = choosing.Candidates({method: method for method in methods}, Layer("", shared, shared=True), spaces)
    choosing.require_models(str(budget["by"]), candidates.parsed)
    given = Budget(**{key: value for key, value in budget.items() if value is not None}, **validation)
    with counted("choosing", "rounds", shown=how["lines"]) as on_progress:
        how["on_progress"] = on_progress
        return choosing.choose_in_processes(candidates, given, directory, **how)


def show(tuning: Tuning, directory: Path) -> None:
    """Print what was chosen, how, and at what cost, and where the page with all draws is."""
    from equipoise.report import tuning as report

    document = tuning.document()
    rows = (map(escape, row) for row in report.rows(document))
    print_table(report.COLUMNS, rows, right=report.COLUMNS[2:], fold=("chosen",), whole=("method",))
    for line in report.sentences(document):
        say(line)
    say(f"all draws: {directory / 'tuning.html'}")


@dataclass(frozen=True)
class OfSuite(Place):
    """Where a suite keeps its results."""

    name: str | None = option(None, "Keep the results in RUNS/NAME [default: the suite's name].")


def benchmark(
    words: list[str] = option(
        ..., "A suite, `fair-small`, or your own, `mine.toml`; or `submit` and methods of your own.", "SUITE"
    ),
    *,
    suite: str | None = option(None, "With `submit`: the suite [default: fair-small]."),
    shard: str = option("1/1", "Run the K-th of N parts of the cells; machines share the folder.", metavar="K/N"),
    jobs: int | None = JOBS,
    place: OfSuite,
    retry: bool = option(False, "List and run again cells that failed to run; one that guesses did run."),
    json_: Json = False,
) -> Iterator[object]:
    """Tune and test the methods of a suite on all of its scenarios alike, and write the leaderboard."""
    from equipoise.report.leaderboard import leaderboard
    from equipoise.report.rendering import rich_sheets
    from equipoise.runs import benchmark as suites
    from equipoise.runs.directory import slug

    submitted = words[1:] if words[0] == SUBMIT else []
    if words[0] == SUBMIT and not submitted:
        raise ValueError("submit: name your rule, equipoise benchmark submit mine.py:Rule.")
    if words[0] != SUBMIT and (suite or words[1:]):
        raise ValueError(
            f"{suite or words[1]}: name one suite. To add your own method: equipoise benchmark submit mine.py:Rule."
        )
    called = (suite or "fair-small") if submitted else words[0]
    chosen = suites.read_suite(called)
    directory = place.base / (place.name or slug(Path(called).stem if called.endswith(".toml") else called))
    with counted("", "rounds", shown=not json_) as on_progress:
        how: dict[str, Any] = {"jobs": jobs, "on_progress": on_progress, "lines": not json_, "retry": retry}
        suites.run(chosen, directory, methods=submitted, shard=suites.shard_of(shard), **how)
    results = suites.document(chosen, directory, submitted)
    board = leaderboard(results)
    path = board.save(directory / "leaderboard.html")
    yield results | board.as_dict
    say(board.headline)
    for table in rich_sheets(board.sheets(), out.width):
        out.print("", table)
    for gap in board.gaps:
        say(gap)
    say(f"leaderboard: {path}")
