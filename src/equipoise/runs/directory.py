"""Runs as directories: a configuration that can be run again, a manifest, one line per round, a checkpoint, a summary."""

import atexit
import hashlib
import json
import logging
import re
import shlex
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor, nn

from equipoise import flower, networks, scenarios
from equipoise.core import draws, simulation, task
from equipoise.core.model import Model
from equipoise.core.rule import Setup, overrides
from equipoise.core.settings import made
from equipoise.data.holdings import examples
from equipoise.data.memory_mapped import labels
from equipoise.data.samples import trained_on
from equipoise.data.tables.options import several
from equipoise.engines import distributed
from equipoise.federation import checkpoint, forecast as forecasts, stopping
from equipoise.federation.directory import noting_failure
from equipoise.federation.federation import Federation
from equipoise.federation.history import History
from equipoise.federation.inputs import frame, require_people
from equipoise.federation.method import Method, parse
from equipoise.federation.round import summable
from equipoise.metrics import groups
from equipoise.metrics.classification import RATES
from equipoise.records.identity import CODE, Identity, stated
from equipoise.records.meta import OF_DATA, Contribution
from equipoise.records.record import Record
from equipoise.runs import unchanged
from equipoise.runs.configuration import FLOWER, RunConfig, RunError, whole
from equipoise.scenarios import Scenario
from equipoise.system import claims, environment, hashes, own_code, places, ranges, suggestions, trust
from equipoise.system.files import cache_directory, locked, read_regular, require_own, sweep, write_atomically
from equipoise.system.seals import open_toml, sealed_json, sealed_text
from equipoise.system.text import Said, key_of, plural
from equipoise.system.workers import cores

# Settings that no training depends on: a run goes on with others.
log = logging.getLogger(__name__)

ON_DISK = "The updates of a round, %s, exceed the free memory and are kept in a file in %s. A round is slower; results are the same."
UNTRAINED = ranges.marked(RunConfig, "about", "operation", "shown")
MEASURED = ("standalone_test", "standalone_val")
OWN = (*ranges.marked(RunConfig, "together"), *UNTRAINED)  # settings that do not matter alone
MANIFEST = (
    "client_names", "client_groups", "measures", "classes", "client_tests", "personal", "bound", "contribution",
    "units", "machines", "hostile", "attributes", "in_force", "printed", "decides", "task", "unit",
)  # fmt: skip
ALONE = 1  # raise it whenever what a client reaches alone may come out differently
LONGEST = 120  # characters of a method's text in the name of a directory


def start(config: RunConfig, directory: Path) -> None:
    """Make the directory of a new run, or accept that of the same run begun earlier.

    Raises
    ------
    RunError : a directory that holds another run, the same on other data, or something else.
    """
    path = directory / "config.toml"
    if path.exists():
        before = load(directory, checked=False)
        again = made(RunConfig, places.read(tomllib.loads(_text(config, directory)), directory))  # lists for tuples
        now = replace(again, label=before.label)
        changes = _identity(before).differences(_identity(again))
        if changes and not _same(before, again, directory):
            if all(change.kind == CODE for change in changes):
                _check_code(before, directory)
            raise RunError(f"{directory} holds a run with {stated(changes)}. Choose another --name, or delete it.")
        if before.tuned and not again.tuned:
            raise RunError(
                f"{directory} holds a run whose settings were chosen by tuning, and these are not. Choose another --name, or delete it."
            )
        _check_code(again, directory)
        unchanged.check(config, directory)
        if before != now:
            _write(now, directory)
            if finished(directory):
                _summarise(directory)
        if not _links(directory):  # the same command names what the run names
            trust.enter(_content(read_regular(path), directory))
        return
    require_own(directory, "run", path.name, another="Choose another --name")
    directory.mkdir(parents=True, exist_ok=True)
    _write(config, directory)


def _identity(config: RunConfig) -> Identity:
    """What must not change in a run that is continued; options of the scenario by how they are given."""
    settings = {name: value for name, value in config.table().items() if name not in ("own_code", *UNTRAINED)}
    options = {f"--set {name}": value for name, value in settings.pop("scenario_options").items()}
    return Identity(settings | options, config.own_code or {})


def _same(before: RunConfig, now: RunConfig, directory: Path) -> bool:
    """Whether two configurations differ only in where the user's files are; data are compared by :mod:`equipoise.runs.unchanged`."""
    if not {*(before.own_code or {}).values()} <= {*(now.own_code or {}).values()}:  # an earlier version kept fewer
        return False
    if before.data != now.data and not (before.data and now.data and unchanged.comparable(directory)):
        return False
    return not _identity(elsewhere(before)).differences(_identity(elsewhere(now)))


def identity(config: RunConfig) -> dict[str, Any]:
    """What a run is, wherever it and the user's files are: settings as JSON has them, without its data, which it checks itself."""
    table: dict[str, Any] = json.loads(json.dumps(elsewhere(config).key()))
    return table


def elsewhere(config: RunConfig) -> RunConfig:
    """A configuration without paths: with the hashes of the user's code and weights, without that of the data."""
    digests = config.own_code or {}
    table = places.replaced(vars(config), (*places.CODE, ("data",)), lambda text: own_code.by_content(text, digests))
    if config.weights is not None and config.weights.is_file():
        table["network_options"] = {**config.network_options, "weights": hashes.file_hash(config.weights)}
    if not own_code.is_reference(config.data or ""):
        table["data"] = None
    return replace(config, **{**table, "own_code": None})


def _write(config: RunConfig, directory: Path) -> None:
    """Write the configuration of a run, of which it stays known whether it was begun here."""
    path, text = directory / "config.toml", _text(config, directory)
    own = not path.exists() or trust.known(_content(read_regular(path), directory))
    write_atomically(path, text)
    if own:
        trust.enter(_content(text.encode(), directory))


def _content(text: bytes, directory: Path) -> bytes:
    """What a run is known by: its configuration, and where links in its directory lead."""
    return text + "".join(_links(directory)).encode()


def _links(directory: Path) -> list[str]:
    links = (path for path in directory.rglob("*") if path.is_symlink())
    return sorted(f"{link.relative_to(directory)} -> {link.readlink()}" for link in links)


def _named(table: Mapping[str, Any], directory: Path) -> list[str]:
    """What a run's settings name that would be run, read, written or contacted; not its tracker, which is not asked."""
    names, paths = trust.named({**table, "label": ""}), [*map(str, table.get("own_code") or ())]

    def noted(path: str) -> str:
        paths.append(path)
        return path

    places.mapped({**table, "track": None}, noted)
    files = (path for path in paths if not any(name.startswith(f"{path}:") for name in names))
    return [*names, *files, *_links(directory)]


def _text(config: RunConfig, directory: Path) -> str:
    table = places.written(config.table(), directory, project_of(directory))
    return sealed_text(tomli_w.dumps({name: value for name, value in table.items() if value is not None}))


def project_of(directory: Path) -> Path:
    """To what the paths of a run are relative: where we are, if it is new."""
    try:
        return places.project_of(open_toml(read_regular(directory / "config.toml").decode()), directory)
    except (OSError, ValueError):
        return Path.cwd()


def load(directory: Path, *, checked: bool = True) -> RunConfig:
    """Read the configuration of a run; if it is to be ``checked``, because it will be used, only one whose code is what it was.

    Raises
    ------
    RunError : no run there, one between sites, a configuration that cannot be read, other code, or :func:`trust.require`.
    """
    path = directory / "config.toml"
    try:
        table = open_toml((text := read_regular(path)).decode())
    except (FileNotFoundError, NotADirectoryError):
        inside = sorted(file.parent.as_posix() for file in directory.glob("*/config.toml"))
        hint = "Runs are in runs/; see: equipoise run --help."
        where = f"Give one of the runs in it: {suggestions.some(inside)}." if inside else hint
        raise ValueError(f"{directory} is not a run: it has no config.toml. {where}") from None
    except ValueError as error:
        raise RunError(
            f"{path} is damaged: {error}. Put it back as it was, or delete {directory}; the records of its rounds are intact."
        ) from None
    if table.get("engine") == "flower":
        raise RunError(
            f"{directory} is a run between sites: continue it with the command that began it, equipoise flower up or equipoise "
            "flower run. Its models are at the sites, as model.safetensors in the state-dir of each that was there at the end; the same "
            "command sends it to one that was away."
        )
    try:
        settings = places.read(table, directory)
        if checked:
            trust.require(path, _named(settings, directory), _content(text, directory))
            if table.get("own_code"):
                own_code.findable(places.project_of(table, directory))
        config = made(RunConfig, settings)
    except ValueError as error:
        raise RunError(f"{path} cannot be used: {error}") from None
    if checked:
        _check_code(config, directory)
    return config


def _check_code(config: RunConfig, directory: Path) -> None:
    """Require that the user's code is what a run was begun with."""
    before = config.own_code or {}
    if changes := Identity(code=before).differences(Identity(code={file: own_code.digest(file) for file in before})):
        moved = " If it has moved, give the command that began the run again, with where it is now."
        raise RunError(
            f"{directory} was begun with {stated(changes[:1])}. Put it back as it was, or begin a new run with another "
            f"--name.{'' if changes[0].now else moved}"
        )


def located(directory: Path, data: str | None = None) -> RunConfig:
    """The configuration of a run whose data are there: where it says, or at ``data``.

    Raises
    ------
    RunError : see :func:`load`; the data are gone, or are not those it was begun with.
    """
    config = load(directory)
    if data is not None:
        if config.data is None:
            raise RunError(f"{directory} makes its own data, and --data {data} would not be read. Leave it out.")
        config = replace(config, data=whole(data))
        unchanged.check(config, directory)
    path = config.data or ""
    if path and not (path.startswith(places.HUB) or own_code.is_reference(path) or Path(path).exists()):
        raise RunError(
            f"The data of {directory} are not at {path}. Say where they are now: equipoise resume {shlex.quote(str(directory))} --data PATH."
        )
    return config


def finished(directory: Path) -> bool:
    """Whether a run reached its last round."""
    return (directory / "summary.json").exists()


def check(config: RunConfig) -> None:
    """Require, before its directory is made, that a run fits into the memory that is free, as far as that is certain.

    Raises
    ------
    ForecastError : it does not.
    ValueError : its settings name clients that are not there, or its network cannot be trained.
    """
    made = data, net = _made(config)
    check_networks([config], made)
    if config.on is None:
        _check_memory(config, data, net)
    simulation.Presence.of(config, data.client_names, data.client_groups, data.sizes)
    simulation.Attackers.of(config, data.client_names, data.client_groups, here=config.engine != FLOWER)


def check_networks(configs: Sequence[RunConfig], made: tuple[Scenario, nn.Module] | None = None) -> None:
    """Require, before any of them trains, that the network of several runs, which differ in their methods only, suits them.

    Parameters
    ----------
    made : data and network of the first, if they are there already.

    Raises
    ------
    ValueError : it cannot be trained as it is, or lacks what a method uses.
    """
    first, (data, net) = configs[0], made or _made(configs[0])
    if first.on is not None:  # whose device is not here
        first = replace(first, device="cpu")
    names = data.client_names or tuple(f"client-{k}" for k in range(len(data.clients)))
    inputs = frame(
        net, data.clients[:1], first.settings, names[:1],
        lr=first.solver.lr, tests={}, transform=data.transform, head=first.head, task=_task(first, data),
    )  # fmt: skip
    sizes = {name: len(y) for name, y in zip(names, _trained_on(first, data), strict=True)}
    for config in configs:
        method = parse(config.method)
        trained = sizes if method.sharing.clients else {"all clients": sum(sizes.values())}
        inputs.suit(method, config.settings, trained)
        _check_people(config, method, data, inputs.model)


def _check_people(config: RunConfig, method: Method, data: Scenario, model: Model) -> None:
    """Require that the rules for groups of people can begin: that these data have the attributes and values that they name."""
    if not (rules := [rule for rule in method.rules if "sensitive" in rule.declared.needs]):
        return
    require_people(method, data.attributes, here=True)
    values = {name: len(words) for name, words in data.attributes.items()}
    target = groups.positive_class(config.positive, data.classes or tuple(map(str, range(data.n_classes))))
    positive = None if target is None else target.number
    setup = Setup(
        model.initial, model.layout, torch.tensor(data.sizes), config.solver, data.n_classes, attributes=values,
        positive=positive,
    )  # fmt: skip
    for rule in rules:
        rule.server_state(setup)


def doubts(config: RunConfig) -> list[str]:
    """Why a run can be expected to learn little, by the rules of its method; see :meth:`equipoise.Rule.doubt`."""
    if not (rules := [rule for rule in parse(config.method).rules if overrides(rule, "doubt")]):
        return []
    data, net = _made(config)
    model, sizes = Model(net), torch.tensor(data.sizes)
    setup = Setup(model.initial, model.layout, sizes, asked=draws.cohort_size(len(sizes), config.participation))
    return [why for rule in rules if (why := rule.doubt(setup))]


def assumed(config: RunConfig) -> str:
    """What is assumed about the positive class of a run that measures rates; empty where nothing is."""
    data = scenarios.describe(config.scenario, config.data, **config.scenario_options)
    measures = (*data.measures, *several(config.measures or ()))
    classes = data.classes or tuple(map(str, range(data.n_classes)))
    positive = groups.positive_class(config.positive, classes) if RATES in measures else None
    return positive.sentence if positive is not None and positive.why == "assumed" else ""


def _task(config: RunConfig, data: Scenario) -> task.Task:
    """What the labels mean, with what that takes from all that clients train on."""
    return task.task_of(data.task).fitted(_trained_on(config, data))


def _trained_on(config: RunConfig, data: Scenario) -> list[Tensor]:
    """Of every client the labels of what it trains on."""
    draw = config.validation, config.seed
    people = [None] * len(data.clients) if data.people is None else [each.numpy() for each in data.people]
    clients = zip(data.clients, data.client_names, people, strict=True)
    return [trained_on(labels(samples), draw, name, who) for samples, name, who in clients]


def _made(config: RunConfig) -> tuple[Scenario, nn.Module]:
    data = unchanged.data_of(config)
    return data, networks.build(config.network, data.shape, data.outputs, seed=config.seed, **config.network_options)


def _check_memory(config: RunConfig, data: Scenario, net: nn.Module) -> None:
    model, method = Model(net), parse(config.method)
    private = method.private(model) is not None
    added = summable(method, config.settings) and not private and config.device == "cpu"
    cohort = 1 if added else draws.cohort_size(len(data.clients), config.participation)
    if updates := forecasts.check_memory(model, cohort, private, config.device):
        log.warning(ON_DISK, forecasts.size(updates), tempfile.gettempdir())


def federation(
    config: RunConfig, workers: int | None = None, *, trains: bool = False, directory: Path | None = None
) -> tuple[Federation, Scenario]:
    """Build the federation a configuration describes, to be trained by so many workers (default: all cores).

    ``directory`` is where the run is kept; with the engine ``flower-inproc`` the sites keep their states there.

    Raises
    ------
    ForecastError : it ``trains``, and what that takes for certain does not fit into the memory that is free.
    """
    data, net = _made(config)
    if trains:
        _check_memory(config, data, net)
    tests, client_tests = data.test_sets
    settings, make = config.settings, partial(Federation, client_tests=client_tests, select=config.select)
    here = None if config.engine == distributed.NAME else cores()  # which starts no processes without being asked to
    if config.engine == FLOWER and directory is not None:
        make = partial(flower.in_process, states=directory / "sites")
    elif config.engine == FLOWER or (config.engine == distributed.NAME and not trains):
        # to look at: the same, in order
        settings = replace(settings, engine="sequential")
    fed = make(
        net, data.holders, config.method, config.solver, settings=settings, workers=workers or here,
        tests=tests, transform=data.transform, task=_task(config, data), head=config.head,
        names=data.client_names, groups=data.client_groups, attributes=data.attributes or None,
        measures=(*data.measures, *several(config.measures or ())), classes=data.classes or None,
        positive=config.positive, least_group=config.least_group,
        server_validation=data.server_validation, collaborative=data.collaborative,
    )  # fmt: skip
    return fed, data


def serve(config: RunConfig, workers: int | None = None) -> None:
    """Where torchrun has started this process and rank 0 owns the run: train clients until that ends, then end this process."""
    if config.engine != distributed.NAME:
        return
    distributed.require(workers, config.device)
    if not distributed.rank():
        if distributed.launched():
            atexit.register(distributed.leave)
        return
    torch.set_num_threads(config.threads)
    with distributed.reporting():
        federation(config, workers, trains=True)


def serve_resumed(directory: Path, data: str | None, workers: int | None) -> None:
    """The same, of a run that is in a directory, with its data where they are now."""
    if distributed.launched():
        serve(located(directory, data), workers)


def plan(config: RunConfig, base: Path, *, workers: int | None = None, progress: bool = True) -> forecasts.Forecast:
    """What a run would take, after one round that is thrown away; ``base`` is where the run would be kept."""
    torch.set_num_threads(config.threads)
    fed, data = federation(config, workers, trains=True)
    if fed.collaborative and (alone := _kept(_alone_path(config, fed, data), len(data.clients))):
        fed.alone = alone
        fed.prepare(config.rounds, progress=progress)
    forecast = forecasts.forecast(fed, config.rounds, directory=base, keep=config.keep_checkpoints, progress=progress)
    if config.engine != FLOWER:
        return forecast
    return replace(forecast, engine=FLOWER, why="one client after the other; what its messages take comes on top")


def prepare(config: RunConfig, fed: Federation, data: Scenario, *, progress: bool = True) -> None:
    """Find out what each client reaches alone, once for all methods on the same data: the answer is kept in the cache.

    Processes that need the same answer wait for the one that is at it.
    """
    if fed.collaborative and fed.alone is None:
        fed.alone = _alone(config, fed, data, progress)
    fed.prepare(config.rounds, progress=progress)


def _alone_path(config: RunConfig, fed: Federation, data: Scenario) -> Path:
    """Where the cache keeps what each client reaches alone."""
    recipe = {name: value for name, value in config.key().items() if name not in OWN}
    recipe |= {"engine": fed.engine_choice.engine, "data": data.manifest.get("sha256"), "version": ALONE}
    if config.weights is not None:
        recipe["weights"] = hashes.file_hash(config.weights)  # the file's path says little
    marks = fed.fingerprint  # of the validation data only if the method needs them: they follow from the scenario
    recipe |= {"labels": marks["labels"], "data": {k: v for k, v in marks["data"].items() if k != "validation"}}
    recipe |= {name: version(name) for name in ("torch", "numpy")}
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode()).hexdigest()[:32]
    return cache_directory() / f"alone-{key}.json"


def _alone(config: RunConfig, fed: Federation, data: Scenario, progress: bool) -> Contribution:
    path = _alone_path(config, fed, data)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock"), wait=True):
            if (contribution := _kept(path, len(fed.trial.data))) is None:
                contribution = trained_alone(fed, config.rounds, progress=progress)
                write_atomically(path, json.dumps(contribution))
            return contribution
    except OSError:  # a folder that cannot be written costs only the time
        return trained_alone(fed, config.rounds, progress=progress)


def distinct(labels: Sequence[str]) -> None:
    """Require that runs of several methods have folders of their own.

    Raises
    ------
    ValueError : naming two whose folders would have one name.
    """
    for k, label in enumerate(labels):
        if twice := [other for other in labels[:k] if slug(other) == slug(label)]:
            raise ValueError(
                f"methods: the runs of {twice[0]!r} and {label!r} would share the folder {slug(label)}. Give them other labels."
            )


def trained_alone(fed: Federation, rounds: int, *, progress: bool) -> Contribution:
    """What each client reaches alone, with the seconds that this takes."""
    began = time.perf_counter()
    return {**fed.standalone(rounds, progress=progress), "seconds": round(time.perf_counter() - began, 4)}


def _kept(path: Path, n: int) -> Contribution | None:
    """What is in a file of the cache, or None if there is nothing of use."""
    try:
        contribution = json.loads(path.read_text())
        useful = all(values is None or len(values) == n for values in (contribution[name] for name in MEASURED))
    except (OSError, ValueError, TypeError, KeyError):  # missing or damaged: that costs only the time
        return None
    return contribution if useful else None


def execute(
    directory: Path,
    *,
    progress: bool = True,
    on_round: Callable[[Record], None] | None = None,
    workers: int | None = None,
    from_round: int | None = None,
    data: str | None = None,
    until: int | None = None,
    **changes: Any,
) -> History:
    """Run to the end what a directory describes, from its last complete round on, or from the state after ``from_round`` rounds.

    ``data`` is where the data are, if not where they were. After ``until`` rounds in all, the run pauses.

    ``workers`` is how many clients to visit at a time (default: as many as there are cores); no result depends on it. ``changes``
    are settings from now on, of those that may change.

    Raises
    ------
    RunError : no run, one that another process is at, or one whose files contradict each other.
    CheckpointError, QuorumError : see there; what was reached is kept.
    """
    if finished(directory) and from_round is None:
        history = History.from_run(directory)
        if data is not None:  # its next reader finds them
            _write(located(directory, data), directory)
        elif history.meta["config"].get("engine") != "flower":  # between sites, which have their data
            unchanged.check(load(directory), directory)
        return history
    config = located(directory, data)
    unchanged.check(config, directory, says=False)  # the checkpoint says it
    with claims.claimed(directory), noting_failure(directory):
        config = replace(config, **changes)
        sweep(directory)
        torch.set_num_threads(config.threads)
        before = unchanged.stamp(config)
        fed, scenario = federation(config, workers, trains=True, directory=directory)
        rest = config.rounds
        if from_round is not None or checkpoint.exists(directory / "checkpoint"):
            rest = fed.resume(directory, from_round)
            _check_agreement(config, directory, fed, rest)
            checkpoint.tidy(directory / "checkpoint")
        if config != load(directory):
            _write(config, directory)
        forecasts.check_disk(fed.progress, directory)
        prepare(config, fed, scenario, progress=progress)
        _describe(config, directory, fed, scenario, before)

        def shown(record: Record) -> bool:
            paused = on_round is not None and on_round(record) is True
            return paused or (until is not None and record["round"] + 1 >= until)

        if rest > 0 and (until is None or fed.progress.t < until):
            states = {"checkpoint_every": config.checkpoint_every, "keep_checkpoints": config.keep_checkpoints}
            stop = stopping.EarlyStopping.of(config)
            fed.fit(rest, directory=directory, progress=progress, on_round=shown, stop=stop, **states)
        history = History.from_run(directory)
        if fed.progress.t >= config.rounds or history.stopped:  # not where on_round paused it
            _summarise(directory)
        return history


def _describe(config: RunConfig, directory: Path, fed: Federation, data: Scenario, before: str | None) -> None:
    """Write what is trained, on which data and with which versions, into the manifest of a run."""
    header = [*fed.header, f"{plural(config.threads, 'processor thread')}, {config.device}"]
    header += [Said(f"{OF_DATA}{note}", key_of(note)) for note in data.manifest.get("notes", ())]
    meta = fed.history.meta
    manifest = {
        **environment.environment(),
        "data": data.manifest,
        "contents": unchanged.contents(config, data, before),
    }
    manifest |= {key: meta.get(key) for key in MANIFEST if key in meta}
    manifest |= {"header": header, "header_keys": [*map(key_of, header)]}
    manifest["holdings"] = fed.holdings | {"classes": data.manifest.get("classes")}
    if config.data is None:  # there are no examples of the user's files
        manifest["holdings"] |= {"examples": examples(data.client_groups, data.clients)}
    if config.weights is not None:
        manifest["weights"] = {"file": config.weights.name, "sha256": hashes.file_hash(config.weights)}
    # whole paths would say whose machine it was
    project, path = project_of(directory), config.data or ""
    names = {path: places.portable(path, project)} if Path(path).is_absolute() else {}
    write_atomically(directory / "manifest.json", sealed_json(places.private(manifest, names, project)))


def _summarise(directory: Path) -> None:
    """Write the numbers that summarise a run."""
    write_atomically(directory / "summary.json", sealed_json(History.from_run(directory).summary()))


def trained(directory: Path, data: str | None = None) -> Federation:
    """The federation of a run, at its last complete round; its data are where they were, or at ``data``.

    Raises
    ------
    RunError, CheckpointError : no run there, none that has finished a round, or damaged files.
    """
    config = load(directory)
    if not checkpoint.exists(directory / "checkpoint"):
        command = f"equipoise resume {shlex.quote(str(directory))}"
        raise RunError(f"{directory} has no checkpoint yet. Run it first: {command}.")
    if config.engine == FLOWER:
        raise RunError(
            f"{directory} was run with --engine {FLOWER}, so what its clients remember is with them. Run it with another "
            "engine, which gives the same result, to look into it."
        )
    torch.set_num_threads(config.threads)
    fed, _ = federation(located(directory, data))
    fed.resume(directory)
    return fed


def _check_agreement(config: RunConfig, directory: Path, fed: Federation, rest: int) -> None:
    t = fed.progress.t
    if t + rest != config.rounds:
        raise RunError(
            f"{directory / 'config.toml'} plans {config.rounds} rounds, and the run was begun with {t + rest}. "
            "Set it back, or start another run."
        )
    rounds = [record["round"] for record in fed.records]
    if missing := sorted(set(range(t)) - set(rounds)):
        raise RunError(
            f"{directory / 'metrics.jsonl'} lacks round {missing[0]}, and the checkpoint is after round {t - 1}. "
            f"Put the file back, or delete {directory / 'checkpoint'} to start the run again."
        )


def slug(text: str) -> str:
    """A method's text as a directory name; where that is too long, its beginning and a hash of all."""
    name = re.sub(r"[^A-Za-z0-9+._=-]+", "-", text).strip("-")
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def place(base: Path, name: str | None, default: str) -> Path:
    """The directory of a run: ``base/name``, or a free one near ``default`` where no name is given.

    Raises
    ------
    ValueError : a name that is not one plain folder name.
    """
    if name is not None:
        if slug(name) != name or not name.strip("."):
            raise ValueError(
                f"--name {name!r}: a run's name may hold up to {LONGEST} letters, digits and . _ + = - only, for example {slug(name)[:LONGEST].strip('.') or 'my-run'!r}."
            )
        return base / name
    paths = (base / name for name in (default, *(f"{default}-{number}" for number in range(2, 10_000))))
    if (free := next((path for path in paths if not path.exists()), None)) is not None:
        return free
    raise RunError(f"{base} is full of runs called {default}. Give one a --name.")
