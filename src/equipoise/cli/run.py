"""The commands that train: ``equipoise run``, ``compare``, ``quickstart`` and ``resume``, ``tune`` and ``benchmark``."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import typer
from rich.markup import escape

import equipoise as eq
from equipoise.cli import completion, init, options
from equipoise.cli.console import counted, out, print_json, print_table, say
from equipoise.cli.options import SETTINGS, Json, Place, Training, Values, option, pairs_of
from equipoise.system import hashes, own_code
from equipoise.system.search import read as read_space
from equipoise.system.suggestions import require_known, require_use, some
from equipoise.system.text import plural, read_value
from equipoise.system.workers import Workers, cores, loading, read_jobs

if TYPE_CHECKING:
    from equipoise.records.meta import Content
    from equipoise.runs.configuration import Layer, RunConfig
    from equipoise.runs.plan import How

log = logging.getLogger(__name__)
TYPED = "command line"  # an origin
STARTS = {  # the comparison that each stands for
    "digits": "fedavg fedheal --scenario digits --rounds 10 --seeds 3 --name quickstart",
    "fashion": "standalone fedavg-finetune cffl fedsac --scenario 'fedsac-fashion(scene=cla)' --rounds 40 --name quickstart-fashion",
}
SUBMIT = "submit"  # the word of ``benchmark`` before methods of the user's own


@dataclass(frozen=True)
class Choices:
    """Everything chosen for one or several runs.

    Parameters
    ----------
    below, above : the layers that the settings of a method in ``of_methods`` override, and those that override them.
    of_methods : settings by method that ``equipoise tune`` chose: the learning rate, and hyper-parameters by ``part.name``.
    tuned : by method how they were chosen, see :class:`equipoise.records.meta.Tuned`.
    """

    below: tuple[Layer, ...]
    above: tuple[Layer, ...] = ()
    of_methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers but those of methods."""
        return (*self.below, *self.above)

    @property
    def table(self) -> Content:
        """What all methods share, as one table."""
        from equipoise.runs.configuration import stacked

        return stacked(self.layers)

    @property
    def only_method(self) -> str:
        """The method of a run that names none.

        Raises
        ------
        ValueError : the file has the settings of several methods.
        """
        if len(self.of_methods) > 1:
            names = ", ".join(self.of_methods)
            raise ValueError(f"The file has settings of several methods. Name one with --method: {names}.")
        return next(iter(self.of_methods), self.table["method"])

    def layered(self, method: str, seed: int) -> tuple[RunConfig, dict[str, tuple[Any, str]]]:
        """The configuration of a run of one of the methods, and the origins of its values; its label is as without what was chosen for it.

        Raises
        ------
        ValueError : see :func:`equipoise.runs.configuration.layered`.
        """
        from equipoise.core.rates import rate
        from equipoise.runs import choosing
        from equipoise.runs.configuration import Layer, label_of, layered, overrides_of

        named = {name: x for name, x in {"method": method, "seed": seed}.items() if x != self.table[name]}
        last = Layer(TYPED, named), Layer("", {"label": label_of(method, self.layers)})
        if method not in self.of_methods:
            return layered([*self.layers, *last])
        own, tuned = self.of_methods[method], cast(Any, {**self.tuned.get(method, {})})
        if seed in tuned.get("seeds", ()):
            raise ValueError(f"--seed {seed}: the settings of {method} were chosen with this seed. Take another.")
        eq.parse(method, {name: value for name, value in own.items() if name != "lr"})  # or what is wrong with them
        conditions = tuned.pop("conditions", {})
        config, origins = layered([*self.below, Layer("equipoise tune", own), *self.above, *last])
        if not tuned:
            return config, origins
        changed = choosing.changed(tuned, conditions, config) if conditions else []
        changed += ["lr"] * ("lr" in own and rate(own["lr"]) != rate(config.lr))
        changed += [name for name, x in overrides_of(method, self.above).items() if own.get(name) != x]
        changed += ["its code"] * (tuned.get("code", "") != own_code.version(method))
        return replace(config, tuned={**tuned, "changed": changed}), origins


def read(given: Values, *, shared: bool = True) -> Choices:
    """Combine the options of a command with the configuration file that one of them names.

    Hyper-parameters of the command that a method does not have are left out if they are ``shared`` by several, else refused.

    Raises
    ------
    ValueError : a file that cannot be used, options that contradict each other, or that cannot be read.
    """
    from equipoise.runs.configuration import Layer

    file = given["config_file"]
    table = {} if file is None else init.read(file)
    either = "PART.NAME=VALUE, for example fedheal.tau=0.4, or NAME=VALUE for an option of the scenario, for example clients=8"
    pairs = pairs_of("--set", given["set_"], either)
    hyper_parameters = {name: read_value(text) for name, text in pairs.items() if "." in name}
    options = {name: text for name, text in pairs.items() if "." not in name}
    if (task := given["task"]) is not None:
        if "task" in options:
            raise ValueError(f"task is given twice: --task {task} and --set task={options['task']}. Leave one out.")
        options["task"] = task
    of_methods, tuned = table.pop("methods", {}), table.pop("tuned", {})
    if of_methods and not ("scenario" in table or given["scenario"] or given["data"]):
        advice = "Give the same ones with --scenario or --data."
        raise ValueError(f"{file} was written from Python and names no data. {advice}")
    if file is not None and of_methods:
        tuned = {name: {**each, "chosen": hashes.file_hash(file)} for name, each in tuned.items()}
    typed = Layer(TYPED, {**_fields(table, options, given), **hyper_parameters}, shared)
    usual = Layer("default", {name: SETTINGS[name].default for name in ("method", "seed")})
    settings, parts = (
        Layer(str(file), {name: x for name, x in table.items() if ("." in name) is dotted}, shared=True)
        for dotted in (False, True)
    )
    return Choices((usual, settings), (parts, typed), of_methods, tuned)


def warn_of_defaults(chosen: Choices, methods: Sequence[str]) -> None:
    """Say of which methods a file of chosen settings has none."""
    if chosen.tuned and (untuned := [method for method in methods if method not in chosen.of_methods]):
        names = ", ".join(chosen.of_methods)
        log.warning("%s: no settings were chosen; the file has those of %s.", ", ".join(untuned), names)


def check_parts(chosen: Choices, methods: Sequence[str]) -> None:
    """Refuse a hyper-parameter of the command whose part none of the methods has."""
    parts = {part for method in methods for part in eq.parse(method).parts}
    for key in chosen.layers[-1].table:
        if "." in key and key.split(".", 1)[0] not in parts:
            raise eq.MethodError(f"--set {key}: {key.split('.', 1)[0]!r} is not part of any of {', '.join(methods)}.")


def _fields(file: Mapping[str, Any], options: Mapping[str, str], given: Values) -> dict[str, Any]:
    """Fields of a configuration that the command line has; with a scenario, unless it is that of the file."""
    from equipoise.runs.configuration import called, option_value, whole

    chosen = {name: value for name, value in given.items() if value is not None and name in SETTINGS}
    scenario, data, network = given["scenario"], given["data"], given["network"]
    chosen |= {"data": whole(data)} if data else {}
    if scenario is None and "scenario" in file:
        chosen["scenario_options"] = {key: option_value(file["scenario"], key, text) for key, text in options.items()}
    else:
        scenario = scenario or ("own" if data else "digits")
        name, bracketed = called("--scenario", scenario, "digits(clients=8)")
        for option in options.keys() & bracketed.keys():
            by = "--task" if option == "task" and given["task"] else "--set"
            raise ValueError(f"{option} is given twice: in --scenario {scenario} and by {by}. Leave one out.")
        typed = {key: option_value(name, key, text) for key, text in options.items()}
        chosen |= {"scenario": name, "scenario_options": {**bracketed, **typed}}
    if network is not None:
        name, bracketed = called("--network", network, "resnet10(width=64)")
        chosen |= {"network": name, "network_options": bracketed}
    return chosen


def run(
    given: options.Training,
    place: options.Place,
    output: options.Output,
    method: str | None = option(None, options.help_of("method"), "--method -m", autocompletion=completion.methods),
    seed: int | None = option(None, options.help_of("seed"), min=0, metavar="N"),
    workers: int | None = options.WORKERS,
    dry_run: bool = option(
        False, "Say how much memory, disk and time the run would take, after one round that is thrown away."
    ),
) -> None:
    """Train one method and show how fair it is."""
    from equipoise.runs import directory as runs, plan, tracking

    output.check()
    chosen = read(vars(given), shared=False)
    name_of_method = chosen.only_method if method is None else method
    config, origins = chosen.layered(name_of_method, chosen.table["seed"] if seed is None else seed)
    if config.devices is not None:
        raise ValueError(f"--devices {config.devices} is for several runs. State --device cuda:0, or another.")
    runs.serve(config, workers)
    warn_of_defaults(chosen, [name_of_method])
    labels = _labels(output.label, {method or config.label: config})
    if dry_run:
        _show_forecast(runs.plan(config, place.base, workers=workers, progress=not output.json_), origins, output.json_)
        return
    runs.check(config)
    _say_data(config, chosen, output.json_)
    directory = place.folder(f"{runs.slug(config.label)}-{config.scenario}-seed{config.seed}")
    runs.start(config, directory)
    with tracking.Tracking(directory, config.track):
        if config.on is not None:
            plan.finish([plan.Cell(directory.name, config, directory)], lines=not output.json_)[0].require()
        histories = options.relabelled([_execute(directory, quiet=output.json_, workers=workers)], labels)
        _show_results(histories, directory, output)


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
class First(Searched):
    """Whether settings are chosen first."""

    draws: int | None = option(
        None,
        "First choose the settings of each method among N draws, on held-out training samples.",
        "--tune",
        min=1,
        metavar="N",
    )


def compare(
    *,
    methods: list[str] = option(
        ..., "The methods; the others are tested against the first.", "METHODS...", autocompletion=completion.methods
    ),
    given: options.Training,
    first: First,
    place: options.Place,
    output: options.Output,
    seeds: int = option(1, "How many seeds: 0, 1, ...", min=1, metavar="N"),
    bounds: bool = option(
        False, "Also run `standalone` and `centralised`: what clients reach alone, and with all data in one place."
    ),
    jobs: str | None = options.JOBS_OF_PLAN,
) -> None:
    """Run several methods over seeds and compare them: mean, spread, 95 % interval, paired test."""
    output.check()
    require_use({} if first.draws else {"--by": first.by, "--search": first.search}, without="--tune 16")
    with started(given, jobs, len(methods) * max(seeds, first.draws or 1), place) as kept:
        with loading():
            from equipoise.runs import choosing, plan, tracking

        chosen = read(vars(given))
        bound = [name for name in ("standalone", "centralised") if bounds and name not in methods]
        check_parts(chosen, [*methods, *bound])
        warn_of_defaults(chosen, methods)
        directory = place.folder(f"compare-{chosen.table['scenario']}")
        if first.draws is not None:
            folder, how = directory / choosing.FOLDER, plan.How(jobs=jobs, lines=not output.json_, workers=kept)
            tuning = choose(methods, chosen, first, folder, **how)
            if not output.json_:
                show(tuning.document(), folder)
            tuned = {method: tuning.tuned(method) for method in methods}
            # the search began at the given rate, so what it chose is above all else
            chosen = replace(chosen, below=chosen.layers, above=(), of_methods=tuning.settings(), tuned=tuned)
        configs = [chosen.layered(method, k)[0] for method in (*methods, *bound) for k in range(seeds)]
        labels = _labels(output.label, dict(zip((*methods, *bound), configs[::seeds], strict=True)))
        _say_data(configs[0], chosen, output.json_)
        shown = counted(f"{len(configs)} runs", "rounds", shown=not output.json_)
        with tracking.Tracking(directory, configs[0].track), shown as on_progress:
            how = plan.How(jobs=jobs, on_progress=on_progress, lines=not output.json_, workers=kept)
            histories = plan.compare(configs, directory, **how)
    _show_results(options.relabelled(histories, labels), directory, output)


def _labels(given: list[str] | None, configs: Mapping[str, RunConfig]) -> dict[str, str]:
    """What ``--label`` asks for, where methods are called as they were given, as they are, or by their labels."""
    names = {name: c.label for method, c in configs.items() for name in (method, c.method, c.label)}
    return options.new_labels(given, names)


def _say_data(config: RunConfig, chosen: Choices, json_: bool) -> None:
    """Say where data are that nobody named."""
    if config.data and "data" not in chosen.table and not json_:
        say(f"data: {config.data}, where a package of the system has put them")


def quickstart(
    context: typer.Context,
    name: str = option(
        "digits", "`digits`, which are embedded, or `fashion`: photographs of clothes, Fashion-MNIST.", "[NAME]"
    ),
    data: str | None = option(None, "Where Fashion-MNIST is.", "--data -d", metavar="DIR"),
    jobs: int | None = options.JOBS,
) -> None:
    """Compare a few methods in two minutes, and show the command that did it."""
    require_known("quickstart", STARTS, name)
    words = ["compare", *shlex.split(STARTS[name]), *(["--data", data] if data else [])]
    words += ["--jobs", str(jobs)] if jobs else []
    say(shlex.join(["equipoise", *words]))
    context.find_root().command.main(words, standalone_mode=False)


@dataclass(frozen=True)
class Continued:
    """How a run continues, as :func:`equipoise.runs.directory.execute` takes it."""

    workers: int | None = options.WORKERS
    from_round: int | None = option(
        None, "Round from which to continue (counted from 0), with a kept checkpoint.", "--from", min=0
    )
    until: int | None = option(None, "Pause after N rounds in all; `resume` continues from there.", min=1, metavar="N")
    norm_limit: float | None = options.option_of("norm_limit")
    quorum: float | None = options.option_of("quorum")
    data: str | None = options.MOVED


def resume(
    directory: options.Run,
    *,
    quiet: bool = option(False, "Print nothing but errors, and write no report."),
    how: Continued,
    track: str | None = options.option_of("track"),
    shown: options.Shown,
) -> None:
    """Continue a run that was stopped or killed; the result is the same, bit for bit."""
    from equipoise.runs import directory as runs, tracking

    runs.serve_resumed(directory, how.data, how.workers)
    json_ = shown.json_
    asked = {"--details": shown.details, "--explain": shown.explain}
    require_use({name: on and (quiet or json_) for name, on in asked.items()}, together="--quiet or --json")
    if not (quiet or json_ or track) and (before := runs.load(directory).track):
        say(f"The run names the tracker {before}. To send its rounds there, add: --track {shlex.quote(before)}")
    with tracking.Tracking(directory, track):
        given = {name: value for name, value in vars(how).items() if value is not None}
        history = _execute(directory, quiet=quiet or json_, **given)
        if json_ or not quiet:
            output = options.Output(json_, shown.report and not quiet, shown.details, shown.explain)
            _show_results([history], directory, output)


def _execute(directory: Path, *, quiet: bool, **given: Any) -> eq.History:
    from equipoise.runs import directory as runs

    finished = runs.finished(directory) and not {"from_round", "data"} & given.keys()
    history = runs.execute(directory, progress=not quiet, **given)  # may refuse the directory
    if finished and not quiet:
        out.print(f"{directory} is finished; its results:", highlight=False)
    return history


def _show_results(histories: list[eq.History], directory: Path, output: options.Output) -> None:
    from equipoise.report import html, rendering, statistics

    with shown_again(directory):
        compared = statistics.Comparison.of(histories)
        written = html.write(compared, directory / "report.html", figures=output.figures) if output.report else None
        document = compared.document
        table = None if output.json_ else rendering.rich_table(document, out.width, output.details, output.explain)
    if output.json_:
        print_json(document)
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


def _show_forecast(forecast: eq.Forecast, origins: Mapping[str, tuple[Any, str]], json_: bool) -> None:
    """Print the settings of a run with their origins, and what it would take; an error if that does not fit."""
    if json_:
        settings = {name: {"value": value, "origin": origin} for name, (value, origin) in origins.items() if origin}
        print_json(forecast.as_dict() | {"settings": settings})
    else:
        chosen = {name: pair for name, pair in origins.items() if pair[1] not in ("", "default")}
        rows = ((name, escape(str(value)), escape(origin)) for name, (value, origin) in chosen.items())
        print_table(("setting", "value", "origin"), rows, fold=("value",))
        say(f"All other settings have their defaults.\n\n{forecast}")
    forecast.check()


def _who_trained(history: eq.History, attendance: Any) -> str:
    """A line about clients that come and go."""
    trained, late, dropped, absent, _ = ((attendance == k).sum(0) for k in range(5))
    return (
        f"{history.label} seed {history.seed}: clients trained in {trained.min()} to {trained.max()} of {len(attendance)} rounds "
        f"(fewest: {history.client_names[trained.argmin()]}); {absent.sum()} times one was absent, {late.sum()} late, "
        f"{dropped.sum()} dropped out; in {(attendance != 0).all(1).sum()} rounds nobody trained"
    )


def _quarantined(history: eq.History) -> list[str]:
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
        f"({plural(len({*rounds}), 'round')}, first in round {rounds[0]})"
        for names, rounds, reason in refused.values()
    ]


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
    jobs: str | None = options.JOBS_OF_PLAN,
    json_: Json = False,
) -> Iterator[object]:
    """Choose the hyper-parameters and the learning rate of each method on held-out training samples; test data are not built."""
    with started(given, jobs, len(methods) * drawn.draws * drawn.trials, place) as workers:
        with loading():
            from equipoise.runs.plan import How

        chosen = read(vars(given))
        directory = place.folder(f"tune-{chosen.table['scenario']}")
        how = How(jobs=jobs, lines=not json_, workers=workers)
        tuning = choose(methods, chosen, drawn, directory, **how)
    yield (document := tuning.document())
    show(document, directory)
    path = directory / "chosen.toml"
    again = shlex.join(["equipoise", "compare", *methods, "--config", str(path), "--seeds", "5"])
    say(f"chosen: {path}\nTest them: {again}")


def started(given: Training, jobs: str | None, runs: int, place: Place) -> Workers:
    """Processes for new runs, which load PyTorch while this one does: as many as their settings let expect."""
    require_use({"--jobs": jobs} if given.on else {}, together="--on")
    complete = place.name and (place.base / place.name).exists()  # perhaps
    if given.on or given.devices or complete:
        return Workers()
    fitting = max(1, cores() // (given.threads or 1)) if given.device in (None, "cpu") else 1
    number, per_device = (fitting, False) if jobs is None else read_jobs(jobs)
    return Workers(min(fitting if per_device else number, runs))


def choose(methods: Sequence[str], chosen: Choices, asked: Searched, directory: Path, **how: Unpack[How]) -> eq.Tuning:
    """Choose the settings of some methods in a directory, with a progress bar if there are ``lines``."""
    from equipoise.runs import choosing, configuration

    if chosen.of_methods:
        raise ValueError("--config: the settings in the file are chosen already. Leave out the file, or --tune.")
    if twice := [method for k, method in enumerate(methods) if method in methods[:k]]:
        raise ValueError(f"The method {twice[0]} is given twice. Name each once.")
    check_parts(chosen, methods)
    spaces = {name: read_space(name, text) for name, text in pairs_of("--search", asked.search).items()}
    shared = {name: value for name, value in chosen.table.items() if name not in ("method", "seed")}
    validation = {"validation": shared.pop("validation")} if "validation" in shared else {}
    layer = configuration.Layer("", shared, shared=True)
    candidates = choosing.Candidates({method: method for method in methods}, layer, spaces)
    choosing.require_models(str(asked.by), candidates.parsed)
    budget = {key: value for key, value in vars(asked).items() if key != "search" and value is not None}
    given = choosing.Budget(**budget, **validation)
    with counted("choosing", "rounds", shown=how["lines"]) as on_progress:
        how["on_progress"] = on_progress
        return choosing.choose_in_processes(candidates, given, directory, **how)


def show(document: dict[str, Any], directory: Path) -> None:
    """Print what was chosen, how, and at what cost, and where the page with all draws is."""
    from equipoise.report import tuning as report

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
    jobs: str | None = options.JOBS_OF_PLAN,
    on: str | None = option(None, options.help_of("on")),
    devices: str | None = option(None, options.help_of("devices")),
    place: OfSuite,
    retry: bool = option(False, "List and run again cells that failed to run; one that guesses did run."),
    json_: Json = False,
) -> Iterator[object]:
    """Tune and test the methods of a suite on all of its scenarios alike, and write the leaderboard."""
    from equipoise.report import leaderboard, rendering
    from equipoise.runs import benchmark as suites, directory as runs

    require_use({"--jobs": jobs} if on else {}, together="--on")
    submitted = words[1:] if words[0] == SUBMIT else []
    if words[0] == SUBMIT and not submitted:
        raise ValueError("submit: name your rule, equipoise benchmark submit mine.py:Rule.")
    if words[0] != SUBMIT and (suite or words[1:]):
        advice = "To add your own method: equipoise benchmark submit mine.py:Rule."
        raise ValueError(f"{suite or words[1]}: name one suite. {advice}")
    called = (suite or "fair-small") if submitted else words[0]
    chosen = suites.read_suite(called)
    directory = place.base / (place.name or runs.slug(Path(called).stem if called.endswith(".toml") else called))
    with counted("", "rounds", shown=not json_) as on_progress:
        where = {name: value for name, value in (("on", on), ("devices", devices)) if value is not None}
        how: dict[str, Any] = {"jobs": jobs, "on_progress": on_progress, "lines": not json_, "retry": retry}
        suites.run(chosen, directory, methods=submitted, shard=suites.shard_of(shard), where=where, **how)
    results = suites.document(chosen, directory, submitted)
    board = leaderboard.leaderboard(results)
    path = board.save(directory / "leaderboard.html")
    yield results | board.as_dict
    say(board.headline)
    for table in rendering.rich_sheets(board.sheets(), out.width):
        out.print("", table)
    for gap in board.gaps:
        say(gap)
    say(f"leaderboard: {path}")
