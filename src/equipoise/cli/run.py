"""The commands ``equipoise run``, ``compare``, ``quickstart`` and ``resume``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from equipoise.cli import completion, options
from equipoise.cli.choices import Choices, check_parts, read, warn_of_defaults
from equipoise.cli.console import out, plain_table, print_json, progress_bar, say
from equipoise.cli.tune import By, Search, started, tuned_choices
from equipoise.system.suggestions import require_use, some, unknown
from equipoise.system.workers import loading

if TYPE_CHECKING:
    from equipoise.federation.forecast import Forecast
    from equipoise.federation.history import History
    from equipoise.runs.configuration import RunConfig


STARTS = {  # the comparison that each stands for
    "digits": "fedavg afl qffl fedheal --scenario digits --rounds 25 --name quickstart",
    "fashion": "standalone fedavg-finetune cffl fedsac --scenario 'fedsac-fashion(scene=cla)' --rounds 40 --name quickstart-fashion",
}


@options.training_options
def run(
    method: Annotated[
        str | None, Option("--method", "-m", help=options.help_of("method"), autocompletion=completion.methods)
    ] = None,
    seed: Annotated[int | None, Option(min=0, metavar="N", help=options.help_of("seed"))] = None,
    given: options.Values = {},  # noqa: B006 (never changed)
    workers: options.Workers = None,
    name: options.Name = None,
    base: options.Base = Path("runs"),
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Say how much memory, disk and time the run would take, after one round that is thrown away.",
        ),
    ] = False,
    label: options.Labels = None,
    json_: options.Json = False,
    report: options.Report = True,
    figures: options.Figures = False,
    details: options.Details = False,
) -> None:
    """Train one method and show how fair it is."""
    from equipoise.runs import directory as runs
    from equipoise.runs.tracking import Tracking

    _require_shown(json_=json_, report=report, figures=figures, details=details)
    chosen = read(given, shared=False)
    name_of_method = chosen.only_method if method is None else method
    warn_of_defaults(chosen, [name_of_method])
    config, origins = chosen.layered(name_of_method, chosen.table["seed"] if seed is None else seed)
    labels = options.new_labels(
        label, dict.fromkeys((method or config.label, config.method, config.label), config.label)
    )
    if dry_run:
        _show_forecast(runs.plan(config, base, workers=workers, progress=not json_), origins, json_)
        return
    runs.check(config)
    _say_data(config, chosen, json_)
    directory = runs.place(base, name, f"{runs.slug(config.label)}-{config.scenario}-seed{config.seed}")
    runs.start(config, directory)
    with Tracking(directory, config.track):
        histories = options.relabelled([_execute(directory, quiet=json_, workers=workers)], labels)
        _show_results(histories, directory, json_=json_, report=report, figures=figures, details=details)


@options.training_options
def compare(
    methods: Annotated[
        list[str],
        Argument(help="The methods; the others are tested against the first.", autocompletion=completion.methods),
    ],
    seeds: Annotated[int, Option(min=1, metavar="N", help="How many seeds: 0, 1, ...")] = 1,
    bounds: Annotated[
        bool,
        Option(
            "--bounds",
            help="Also run `standalone` and `centralised`: what clients reach alone, and with all data in one place.",
        ),
    ] = False,
    tune: Annotated[
        int | None,
        Option(
            min=1,
            metavar="N",
            help="First choose the settings of each method among N draws, on held-out training samples.",
        ),
    ] = None,
    by: By = None,
    search: Search = None,
    given: options.Values = {},  # noqa: B006 (never changed)
    jobs: options.Jobs = None,
    name: options.Name = None,
    base: options.Base = Path("runs"),
    label: options.Labels = None,
    json_: options.Json = False,
    report: options.Report = True,
    figures: options.Figures = False,
    details: options.Details = False,
) -> None:
    """Run several methods over seeds and compare them: mean, spread, 95 % interval, paired test."""
    _require_shown(json_=json_, report=report, figures=figures, details=details)
    require_use({} if tune else {"--by": by, "--search": search}, without="--tune 16")
    with started(given, jobs, len(methods) * max(seeds, tune or 1), name and base / name) as kept:
        with loading():
            from equipoise.runs import comparison, directory as runs, plan
            from equipoise.runs.tracking import Tracking

        chosen = read(given)
        bound = [name for name in ("standalone", "centralised") if bounds and name not in methods]
        check_parts(chosen, [*methods, *bound])
        warn_of_defaults(chosen, methods)
        directory = runs.place(base, name, f"compare-{chosen.table['scenario']}")
        if tune is not None:
            budget = {"draws": tune, "by": by}
            chosen = tuned_choices(
                methods, chosen, budget, directory, search=search, jobs=jobs, json_=json_, workers=kept
            )
        configs = [chosen.config(method, k) for method in (*methods, *bound) for k in range(seeds)]
        called = {
            text: config.label
            for method, config in zip((*methods, *bound), configs[::seeds], strict=True)
            for text in (method, config.method, config.label)
        }
        labels = options.new_labels(label, called)
        _say_data(configs[0], chosen, json_)
        with Tracking(directory, configs[0].track), progress_bar("rounds", shown=not json_) as bar:
            task = bar.add_task(f"{len(configs)} runs", total=sum(c.rounds for c in configs))
            histories = comparison.compare(
                configs,
                directory,
                jobs=jobs or plan.fitting(configs),
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
                lines=not json_,
                workers=kept,
            )
    histories = options.relabelled(histories, labels)
    _show_results(histories, directory, json_=json_, report=report, figures=figures, details=details)


def _require_shown(*, json_: bool, report: bool, figures: bool, details: bool) -> None:
    """Refuse options about results that are not shown."""
    require_use({"--details": json_ and details}, together="--json, which prints everything")
    require_use({"--figures": figures and not report}, together="--no-report")


def _say_data(config: RunConfig, chosen: Choices, json_: bool) -> None:
    """Say where data are that nobody named."""
    if config.data and "data" not in chosen.table and not json_:
        say(f"data: {config.data}, where a package of the system has put them")


def quickstart(
    context: typer.Context,
    name: Annotated[
        str, Argument(help="`digits`, which are embedded, or `fashion`: photographs of clothes, Fashion-MNIST.")
    ] = "digits",
    data: Annotated[str | None, Option("--data", "-d", metavar="DIR", help="Where Fashion-MNIST is.")] = None,
    jobs: options.Jobs = None,
) -> None:
    """Compare a few methods in two minutes, and show the command that did it."""
    if name not in STARTS:
        raise ValueError(unknown("quickstart", name, STARTS))
    words = ["compare", *shlex.split(STARTS[name]), *(["--data", data] if data else [])]
    words += ["--jobs", str(jobs)] if jobs else []
    say(shlex.join(["equipoise", *words]))
    context.find_root().command.main(words, standalone_mode=False)


def resume(
    directory: options.Run,
    quiet: Annotated[bool, Option("--quiet", help="Print nothing but errors, and write no report.")] = False,
    workers: options.Workers = None,
    from_: Annotated[
        int | None,
        Option("--from", min=0, help="Round from which to continue (counted from 0), with a kept checkpoint."),
    ] = None,
    until: Annotated[
        int | None,
        Option("--until", min=1, metavar="N", help="Pause after N rounds in all; `resume` continues from there."),
    ] = None,
    norm_limit: options.option("norm_limit") = None,  # type: ignore[valid-type]
    quorum: options.option("quorum") = None,  # type: ignore[valid-type]
    data: options.Moved = None,
    track: options.option("track") = None,  # type: ignore[valid-type]
    json_: options.Json = False,
    report: options.Report = True,
    details: options.Details = False,
) -> None:
    """Continue a run that was stopped or killed; the result is the same, bit for bit."""
    from equipoise.runs.directory import load
    from equipoise.runs.tracking import Tracking

    require_use({"--details": details and (quiet or json_)}, together="--quiet or --json")
    if not (quiet or json_ or track) and (before := load(directory).track):
        say(f"The run names the tracker {before}. To send its rounds there, add: --track {shlex.quote(before)}")
    with Tracking(directory, track):
        free = {name: value for name, value in (("norm_limit", norm_limit), ("quorum", quorum)) if value is not None}
        history = _execute(
            directory, quiet=quiet or json_, workers=workers, from_round=from_, data=data, until=until, **free
        )
        if json_ or not quiet:
            _show_results(
                [history], directory, json_=json_, report=report and not quiet, figures=False, details=details
            )


def _execute(directory: Path, *, quiet: bool, from_round: int | None = None, **more: Any) -> History:
    from equipoise.runs import directory as runs

    finished = runs.finished(directory) and from_round is None and more.get("data") is None
    history = runs.execute(directory, progress=not quiet, from_round=from_round, **more)  # may refuse the directory
    if finished and not quiet:
        out.print(f"{directory} is finished; its results:", highlight=False)
    return history


def _show_results(
    histories: list[History], directory: Path, *, json_: bool, report: bool, figures: bool, details: bool
) -> None:
    from equipoise.report.html import write
    from equipoise.report.rendering import rich_table
    from equipoise.report.statistics import Comparison

    with shown_again(directory):
        compared = Comparison.of(histories)
        written = write(compared, directory / "report.html", figures=figures) if report else None
        table = None if json_ else rich_table(compared.document, out.width, details)
    if json_:
        print_json(compared.document)
        return
    for line in histories[0].meta.get("header", []) if len(histories) == 1 else []:
        if any(note in line for note in compared["notes"]):  # which is below the table
            continue
        out.print(f"[dim]{escape(line)}[/]", highlight=False)
    for history in histories:
        for line in _quarantined(history):
            out.print(f"[yellow]quarantined[/] {escape(line)}", highlight=False)
        if (attendance := history.attendance) is not None:
            out.print(escape(_who_trained(history, attendance)), highlight=False)
    out.print(table)
    say(f"run: {directory}" + (f"\nreport: {written}" if written else ""))


@contextmanager
def shown_again(directory: Path) -> Iterator[None]:
    """Note on an error how the results of finished runs are shown again."""
    try:
        yield
    except Exception as error:
        command = shlex.join(["equipoise", "report", str(directory), "--output", str(directory / "report.html")])
        error.add_note(f"The training is complete and kept in {directory}: `{command}` makes the report again.")
        raise


def _show_forecast(forecast: Forecast, origins: Mapping[str, tuple[Any, str]], json_: bool) -> None:
    """Print the settings of a run with their origins, and what it would take; an error if that does not fit."""
    if json_:
        settings = {name: {"value": value, "origin": origin} for name, (value, origin) in origins.items() if origin}
        print_json(forecast.as_dict() | {"settings": settings})
    else:
        table = plain_table("setting", "value", "origin", fold=("value",))
        for name, (value, origin) in origins.items():
            if origin not in ("", "default"):
                table.add_row(name, escape(str(value)), escape(origin))
        out.print(table)
        say(f"All other settings have their defaults.\n\n{forecast}")
    forecast.check()


def _who_trained(history: History, attendance: Any) -> str:
    """A line about clients that come and go."""
    trained, late, dropped, absent, _ = ((attendance == k).sum(0) for k in range(5))
    return (
        f"{history.label} seed {history.seed}: clients trained in {trained.min()} to {trained.max()} of {len(attendance)} rounds "
        f"(fewest: {history.client_names[trained.argmin()]}); {absent.sum()} times one was absent, {late.sum()} late, "
        f"{dropped.sum()} dropped out; in {(attendance != 0).all(1).sum()} rounds nobody trained"
    )


def _quarantined(history: History) -> list[str]:
    """A line for every reason for which updates were refused: whose, and when."""
    refused: dict[str, tuple[dict[str, None], list[int], str]] = {}
    for record in history.records:
        for q in record.get("quarantined", []):
            kind = re.sub(r"[0-9.e+-]+", "0", q["reason"])  # the same with another learning rate
            names, rounds, _ = refused.setdefault(kind, ({}, [], q["reason"]))
            names[q["name"]] = None
            rounds.append(record["round"])
    return [
        f"{history.label} seed {history.seed}: {some([*names], 5)}: {reason} "
        f"({len({*rounds})} round{'s' * (len({*rounds}) > 1)}, first in round {rounds[0]})"
        for names, rounds, reason in refused.values()
    ]
