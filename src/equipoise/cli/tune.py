"""The commands ``equipoise tune``, with what ``compare --tune`` shares with it, and ``equipoise benchmark``, which tunes and tests."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from typer import Argument, Option

from equipoise.cli import completion
from equipoise.cli.choices import Choices, check_parts, read
from equipoise.cli.console import out, plain_table, print_json, progress_bar, say
from equipoise.cli.options import Base, Jobs, Json, Name, Values, pairs_of, training_options
from equipoise.system.workers import Workers, cores, loading

if TYPE_CHECKING:
    from equipoise.runs.tuning import Tuning

SUBMIT = "submit"  # the word of ``benchmark`` before methods of the user's own
By = Annotated[
    str | None,
    Option(
        "--by",
        metavar="CRITERION",
        help="What the best settings are: `mean`, `samples`, `worst`, `mean-std`, `worst10`, `eo` (equal opportunity), `collaboration`, "
        "`leave-one-client-out`, or `oracle`, which looks at test data [default: mean].",
    ),
]
Search = Annotated[
    list[str] | None,
    Option(
        "--search",
        metavar="NAME=SPACE",
        help="Where a setting is searched: `lr=log(0.001, 1)`, `fedprox.mu=0.01,0.1,1`. Repeatable.",
    ),
]


@training_options
def tune(
    methods: Annotated[
        list[str], Argument(help="The methods; all have the same draws.", autocompletion=completion.methods)
    ],
    draws: Annotated[int, Option(min=1, metavar="N", help="Settings to try per method, the defaults first.")] = 16,
    by: By = None,
    trials: Annotated[int, Option(min=1, metavar="N", help="Runs of each draw, with seeds of their own.")] = 1,
    halving: Annotated[
        bool, Option(help="Continue only the better half after an eighth, a quarter and half of the rounds.")
    ] = True,
    sampler: Annotated[str, Option(help="`random`, or `optuna` (an extra), which learns from draws.")] = "random",
    seed: Annotated[int, Option(min=0, metavar="N", help="Decides the draws.")] = 0,
    search: Search = None,
    given: Values = {},  # noqa: B006 (never changed)
    jobs: Jobs = None,
    name: Name = None,
    base: Base = Path("runs"),
    json_: Json = False,
) -> None:
    """Choose the hyper-parameters and the learning rate of each method on held-out training samples; test data are not built."""
    with started(given, jobs, len(methods) * draws * trials, name and base / name) as workers:
        with loading():
            from equipoise.runs import directory as runs

        chosen = read(given)
        directory = runs.place(base, name, f"tune-{chosen.table['scenario']}")
        budget = {"draws": draws, "by": by, "trials": trials, "halving": halving, "sampler": sampler, "seed": seed}
        tuning = choose(methods, chosen, budget, directory, search=search, jobs=jobs, json_=json_, workers=workers)
    if json_:
        print_json(tuning.document())
        return
    show(tuning, directory)
    path = directory / "chosen.toml"
    again = shlex.join(["equipoise", "compare", *methods, "--config", str(path), "--seeds", "5"])
    say(f"chosen: {path}\nTest them: {again}")


def started(given: Values, jobs: int | None, runs: int, directory: Path | str | None) -> Workers:
    """Processes for new runs, which load PyTorch while this one does: as many as their settings let expect."""
    if directory and Path(directory).exists():  # perhaps all are complete
        return Workers()
    fitting = max(1, cores() // (given["threads"] or 1)) if given["device"] in (None, "cpu") else 1
    return Workers(min(jobs or fitting, runs))


def tuned_choices(
    methods: Sequence[str], chosen: Choices, budget: Mapping[str, Any], directory: Path, **more: Any
) -> Choices:
    """The same with settings that are chosen first, in a folder of a comparison's directory."""
    from equipoise.runs.choosing import FOLDER

    tuning = choose(methods, chosen, budget, directory / FOLDER, **more)
    if not more.get("json_"):
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
    search: list[str] | None = None,
    jobs: int | None = None,
    json_: bool = False,
    workers: Workers | None = None,
) -> Tuning:
    """Choose the settings of some methods in a directory, with a progress bar."""
    from equipoise.runs import choosing
    from equipoise.runs.configuration import Layer
    from equipoise.runs.tuning import Budget
    from equipoise.system.search import read as read_space

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
    with progress_bar("rounds", shown=not json_) as bar:
        task = bar.add_task("choosing", total=None)
        return choosing.choose_in_processes(
            candidates,
            given,
            directory,
            jobs=jobs,
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            lines=not json_,
            workers=workers,
        )


def show(tuning: Tuning, directory: Path) -> None:
    """Print what was chosen, how, and at what cost, and where the page with all draws is."""
    from equipoise.report import tuning as report

    document = tuning.document()
    table = plain_table(*report.COLUMNS, right=report.COLUMNS[2:], fold=("chosen",), whole=("method",))
    for row in report.rows(document):
        table.add_row(*map(escape, row))
    out.print(table)
    for line in report.sentences(document):
        say(line)
    say(f"all draws: {directory / 'tuning.html'}")


def benchmark(
    words: Annotated[
        list[str],
        Argument(
            metavar="SUITE",
            help="A suite, `fair-small`, or your own, `mine.toml`; or `submit` and methods of your own.",
        ),
    ],
    suite: Annotated[str | None, Option("--suite", help="With `submit`: the suite [default: fair-small].")] = None,
    shard: Annotated[
        str, Option(metavar="K/N", help="Run the K-th of N parts of the cells; machines share the folder.")
    ] = "1/1",
    jobs: Jobs = None,
    name: Annotated[str | None, Option(help="Keep the results in RUNS/NAME [default: the suite's name].")] = None,
    base: Base = Path("runs"),
    retry: Annotated[
        bool, Option("--retry", help="List and run again cells that failed to run; one that guesses did run.")
    ] = False,
    json_: Json = False,
) -> None:
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
    directory = base / (name or slug(Path(called).stem if called.endswith(".toml") else called))
    with progress_bar("rounds", shown=not json_) as bar:
        task = bar.add_task("", total=None)
        suites.run(
            chosen,
            directory,
            methods=submitted,
            shard=suites.shard_of(shard),
            jobs=jobs,
            on_progress=lambda part, done, total: bar.update(task, description=part, completed=done, total=total),
            lines=not json_,
            retry=retry,
        )
    results = suites.document(chosen, directory, submitted)
    board = leaderboard(results)
    path = board.save(directory / "leaderboard.html")
    if json_:
        print_json(results | board.as_dict)
        return
    say(board.headline)
    for table in rich_sheets(board.sheets(), out.width):
        out.print("", table)
    for gap in board.gaps:
        say(gap)
    say(f"leaderboard: {path}")
