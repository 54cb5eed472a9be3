"""The command ``equipoise benchmark``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from equipoise.cli.console import out, print_json, progress_bar, say
from equipoise.cli.options import Base, Jobs, Json

SUBMIT = "submit"


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
