"""The two halves of a Flower app: what runs at a site, and what runs on the server."""

import json
import logging
import secrets
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import tomli_w
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from equipoise.bundle import files, saving
from equipoise.core.rule import Rule
from equipoise.core.settings import Settings, changed
from equipoise.core.solver import Solver, checked
from equipoise.core.task import CLASSIFICATION, task_of
from equipoise.data import batch, samples
from equipoise.federation import checkpoint, evaluation, inputs, standing, stopping, thresholds
from equipoise.federation.federation import Federation
from equipoise.federation.fingerprint import code
from equipoise.federation.history import History
from equipoise.federation.method import Method, require_own_weights
from equipoise.flower.codec import KEYS, CodecError, Parcel
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.secagg import site as masked_site
from equipoise.flower.server.consortium import Consortium, description, federation
from equipoise.flower.server.sites import Exchange, Known, Sites
from equipoise.flower.settings import AppSettings, faults
from equipoise.flower.site.site import Site, harmless, open_site, sendable
from equipoise.flower.site.store import BUNDLE, Store
from equipoise.flower.site.task import Task, TaskFunction
from equipoise.metrics.classification import divided
from equipoise.metrics.groups import positive_class
from equipoise.records.identity import Identity, stated
from equipoise.records.record import Record
from equipoise.report.sites import prometheus
from equipoise.scenarios.shared import SharedSchema
from equipoise.system import claims, environment, logs, own_code, places, ranges, text
from equipoise.system.errors import RunError, SiteError, refusal
from equipoise.system.files import read_regular, require_own, sweep, write_atomically
from equipoise.system.seals import open_json, open_toml, sealed_json, sealed_text

log = logging.getLogger(__name__)

ANOTHER = "Choose another run-dir, such as --config 'run-dir=\"runs/two\"'"
OPEN = 64  # sites of which a process keeps the data it has read
TRIED = 64  # rows by which a bundle is tried
LOOKS = 512  # samples that a check of a site looks at
OF_TASK = ("transform", "head", "neurons", "attributes")  # further keywords of in_process
OF_SERVER = sorted({*(Federation.__init__.__kwdefaults__ or ()), "secure"} - {"client_tests", "memory", "population"})


def make_client_app(
    task: TaskFunction, method: str | Rule | Method | None = None, *, keep: int = OPEN, simulated: bool = False
) -> ClientApp:
    """What runs at every site: ``clientapp`` of a Flower app.

    Parameters
    ----------
    task : the one function that a site writes, ``task(node_config, run_config) -> Task``. ``node_config`` has the site's
        own settings: ``site`` (its name), ``state-dir`` (where its state is kept), ``device``, and your own,
        which begin with ``data``. It is called again for every message, in a new process: let it read from disk what is costly to make.
    method : where it is given, the site takes part in runs of this method and in no other: rules of your own, which no text
        names, or ``"fedavg+dp(noise=1.1)"`` at a site that does not leave its privacy to the server's settings.
    keep : sites of which a process that lives on keeps the data, >= 1; only simulations have several.
    simulated : let ``dp`` draw its noise from the seed, so that a simulation can be repeated; it then protects no client.
    """
    opened: dict[str, Site] = {}
    app = ClientApp()
    own_method = None if method is None else Method.of(method)
    app.__dict__.update(task=task, method=own_method)  # for check_site

    def site(asked: Parcel, context: Context) -> Site:
        fields, name, node = asked.fields.pop("experiment"), _name(context), context.node_config
        key = json.dumps([name, fields, dict(node), dict(context.run_config)], sort_keys=True)
        if key not in opened:
            if wrong := faults(node):
                raise refusal(
                    f"its node-config cannot be used: {' '.join(wrong.values())}",
                    "its node-config cannot be used; its own log says more",
                )
            directory = node.get("state-dir")  # of the owner, never of the run
            base = Path(str(directory)).expanduser() if directory else places.own_state()
            store = Store.at(base, str(fields["name"]), name)
            torch.set_num_threads(int(node.get("threads", 0)) or torch.get_num_threads())
            own_task = task(node, context.run_config).told(context.run_config)
            described = {**fields, "device": str(node.get("device", "cpu"))}
            more = {"node_config": node, "run_config": context.run_config}
            opened[key] = open_site(
                name, own_task, described, store, own_method, simulated=simulated, draws=base / "draws.json", **more
            )
            if len(opened) > keep:
                del opened[next(iter(opened))]  # the first
        return opened[key]

    def answered(message: Message, context: Context) -> Message:
        kind, name = message.metadata.message_type, _name(context)
        named = {"name": name} if kind == "query.describe" else {}  # later the server knows the name
        about: dict[str, Any] = {"site": name, "kind": kind}
        form = {**context.run_config, **context.node_config}.get("log")
        with logs.logging_as(form if form in logs.FORMS else "text", about):
            try:
                asked = Parcel.of(message.content)
                about["experiment"] = asked.fields["experiment"]["name"]
                about |= {"round": asked.fields.get("t")} if kind.startswith("train") else {}
                reply = masked_site.answer(site(asked, context), kind, asked)
                reply.fields["name"] = name
            except (SiteError, CodecError) as error:
                log.error("%s, %s: %s", name, kind, error)
                key = text.key_of(sent := sendable(error)) or error.kind
                reply = Parcel({"error": sent, "key": key if key in KEYS else "", **named})
            except Exception as error:  # its text stays in the site's log
                log.exception("%s, %s", name, kind)
                reply = Parcel({"error": f"failed with {harmless(error)}; its own log says more", **named})
        return Message(reply.records(), reply_to=message)

    for kind in masked_site.KINDS:
        category, _, action = kind.partition(".")
        getattr(app, category)(*([action] if action else []))(answered)
    return app


def check_site(
    client: Any, name: str, node: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, tuple[bool, str]]:
    """What a site would find in a run of its app ``client``, by what was looked at: whether it is well, and words or the code of an aspect."""
    if (task := getattr(client, "task", None)) is None:
        return {"data": (True, "not looked at, as the app is not one of make_client_app")}
    run, own_method = AppSettings.of(config), client.method
    if own_method is not None and str(own_method) != str(Method.of(run.method)):
        words = f"the sites take part in runs of {own_method} only (in make_client_app), and pyproject.toml has method = {run.method}"
        return {"method": (False, words)}
    try:
        fields = description(own_method or Method.of(run.method), run.solver, run.settings, (), "check")
        fields["device"] = str(node.get("device", "cpu"))
        site = open_site(name, task(node, config).told(config), fields, Store(Path()), own_method)
        described = site.answer("query.describe", Parcel()).fields
        sets = {f"test set {test!r}": data for test, data in site.tests.sets.items()}
        for label, data in {f"training data of {name}": samples.loaded(site.trial.data[0]), **sets}.items():
            seen = torch.arange(min(data.size, samples.at_once(data, LOOKS)), device=data.sizes.device)
            first = data.batch(seen, None)
            samples.check(replace(data, store=first), label, None, site.trial.setup.n_classes)
            if bad := int((~batch.finite(first.x)).sum()):
                raise ValueError(
                    f"{label}: {bad} of the first {len(first)} samples hold NaN or infinity. Correct them, or leave them out"
                )
    except (Exception, SystemExit) as error:  # of the user's function
        file = str(getattr(sys.modules.get(task.__module__), "__file__", ""))
        name = f"{task.__module__}:{getattr(task, '__name__', 'task')}"
        return {"data": (False, f"{name} failed: {own_code.reason(error, file)}.")}
    tests, codes = ", ".join(described["tests"]) or "none", described["agreement"]
    about = f"{described['size']} samples of shape {described['shape']}, {described['dtype']}; test sets: {tests}"
    return {"data": (True, about)} | {label: (True, x) for label, x in {**codes, "all of these": code(codes)}.items()}


def check_positive(client: Any, config: Mapping[str, Any]) -> str:
    """Why the positive class of a run is none of the classes that the task of the app ``client`` names; empty if it may be."""
    task, run = getattr(client, "task", None), AppSettings.of(config)
    if task is None or run.positive is None:
        return ""
    try:
        classes = task({}, config).classes
    except (Exception, SystemExit):  # of the user's function, which may need what only the server has
        return ""
    try:
        positive_class(run.positive, classes or ())
    except ValueError as error:
        return str(error) if classes else ""
    return ""


def _name(context: Context) -> str:
    """The site's name; a node of Flower's simulation, which has none, is named by its number."""
    node = context.node_config
    return str(node.get("site") or f"site-{node.get('partition-id', context.node_id)}")


def make_server_app(task: TaskFunction, method: str | Rule | Method | None = None) -> ServerApp:
    """What runs on the server: ``serverapp`` of a Flower app.

    It waits for the sites, trains by the same rounds as a simulation, and writes the same run directory. A run in that
    directory that was stopped is resumed.

    Parameters
    ----------
    task : as for :func:`make_client_app`; its ``node_config`` names no site here.
    method : rules of your own, instead of the ``method`` of the run's configuration.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        ours = logging.getLogger("equipoise")
        ours.setLevel(logging.INFO)
        if not ours.hasHandlers():  # in a process of Flower's, whose log `flwr run --stream` shows
            ours.addHandler(logging.StreamHandler())
        settings = AppSettings.of(context.run_config)  # errors of which come first
        serve(grid, task(context.node_config, context.run_config).told(context.run_config), settings, method)

    return app


def serve(grid: Grid, task: Task, settings: AppSettings, method: str | Rule | Method | None = None) -> History:
    """Train across the sites behind a grid, or resume the run in the run directory.

    Raises
    ------
    RunError : sites are missing, or do not fit together.
    QuorumError, CheckpointError, ValueError : as in a simulation.
    """
    directory, threads = Path(settings.run_dir).expanduser().absolute(), torch.get_num_threads()
    try:
        with claims.claimed(directory, wait=ANOTHER):
            torch.set_num_threads(settings.threads)
            sweep(directory)
            made = Method.of(method if method is not None else settings.method)
            run = _identify(directory, settings, made)
            with logs.logging_as(settings.log, {"experiment": run[0]}):
                return _train(grid, task, settings, directory, made, run)
    finally:  # the process may be a notebook's
        torch.set_num_threads(threads)


def _train(
    grid: Grid, task: Task, settings: AppSettings, directory: Path, made: Method, run: tuple[str, list[Known], int]
) -> History:
    name, earlier, stops = run
    fields = description(made, settings.solver, settings.settings, measures=task.measures, name=name)
    sites = Sites(Exchange(grid, fields, settings.deadline, settings.poll))
    log.info("%s: waiting for sites", directory)
    if settings.secure:
        require_own_weights(made)
    sites.most = settings.max_samples
    sites.gather(settings.min_sites, settings.names, settings.wait, earlier)
    about = {"experiment": name, "sites": [asdict(s) for s in sites.members], "unfinished": stops}
    write_atomically(directory / "sites.json", sealed_json(about))
    more = {name: getattr(settings, name) for name in ("secure", "select", "positive", "least_group")}
    more |= {"classes": task.classes, "attributes": task.attributes, "masks": directory / "masks.json"}
    fed = federation(task, sites, made, settings.solver, settings=settings.settings, **more)
    rest = settings.rounds
    if settings.from_round or checkpoint.exists(directory / "checkpoint"):
        rest = fed.resume(directory, settings.from_round)
        checkpoint.tidy(directory / "checkpoint")
        log.info("going on after round %d", fed.progress.t)
    fed.prepare(settings.rounds, progress=False)
    meta = {**environment.environment(), **fed.history.meta, "rounds": settings.rounds, "unfinished": stops}
    write_atomically(directory / "manifest.json", sealed_json(meta))

    def tell(record: Record) -> None:
        log.info("%s", log_line(fed.judged(record)), extra={"about": {"round": record["round"]}})
        metrics = prometheus([*map(fed.judged, fed.records)], fed.names, settings.rounds, name)
        write_atomically(directory / "metrics.prom", metrics)

    if rest > 0:
        log.info("round %d of %d begins: %d sites train", fed.progress.t + 1, settings.rounds, len(sites.members))
        stop, n_kept = stopping.EarlyStopping.of(settings), settings.keep_checkpoints
        fed.fit(rest, directory=directory, progress=False, on_round=tell, stop=stop, keep_checkpoints=n_kept)
    history = History.from_run(directory)
    write_atomically(directory / "summary.json", sealed_json(history.summary()))
    lost = cast(Consortium, fed.population).finish(fed.trial, fed.progress)
    meta |= {"machines": fed.machines, "without_model": lost}
    write_atomically(directory / "manifest.json", sealed_json(meta))
    history = replace(history, meta={**history.meta, "without_model": lost})
    try:
        history.report(directory / "report.html")
    except Exception:  # the sites get their models nevertheless
        log.exception("the report failed; the run is complete: equipoise report %s makes it again", directory)
    if task.schema is not None:
        _take_home(task.schema, task.about, fed, history, directory / BUNDLE)
    log.info("done: %s", directory / "report.html")
    return history


def _take_home(schema: SharedSchema, data: Mapping[str, Any], fed: Federation, history: History, folder: Path) -> None:
    """Write the global model of sites with tables as a bundle, with what the sites measured.

    Random rows try it, small and large, as the server has no others.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of a run that went on
    labels = torch.zeros(TRIED, dtype=torch.int64 if schema.classes else torch.float64)
    drawn = torch.randn(TRIED, len(schema.inputs), generator=torch.Generator().manual_seed(0))
    rows = samples.loaded(fed.inputs.reading((drawn * torch.logspace(-1, 1, TRIED)[:, None], labels), "rows"))
    last = replace(history, records=history.records[-1:])
    vector = evaluation.published(fed.trial, fed.chosen)
    try:
        decision = thresholds.decision_of(fed.trial, fed.chosen.server, schema.values)
        made = saving.Trained(fed.model, vector, rows, last, "", data, decision)
        saving.save(folder, made, name=files.KEPT)
    except (OSError, ValueError) as error:
        log.warning("the model cannot be taken home as a bundle: %s", error)


def log_line(record: Record) -> str:
    """One line of a round, for a log."""
    scores = " ".join(standing.accuracies(record, 1))
    lost = "; ".join(f"{q['name']}: {q['reason']}" for q in record.get("quarantined", []))
    took = f", {record['seconds']:.1f} s" if "seconds" in record else ""
    left_out = f" (left out: {lost})" if lost else ""
    return f"round {record['round'] + 1}: {len(record['ids'])} sites {scores}{took}{left_out}"


def _identify(directory: Path, settings: AppSettings, method: Method) -> tuple[str, list[Known], int]:
    """The name of the experiment in a run directory, its sites, and rounds that may have been begun in vain; a new name for a new run.

    Raises
    ------
    RunError : the directory holds another run, or something else; or a file of it is damaged.
    """
    config = {**settings.config(), "method": str(method), "label": settings.method}
    path, started = directory / "config.toml", checkpoint.exists(directory / "checkpoint")
    try:
        old = open_toml(read_regular(path).decode()) if path.exists() else {}
    except ValueError:
        raise RunError(
            f"{path} cannot be read, or was changed. Put it back, choose another run-dir, or delete this one."
        ) from None
    require_own(directory, "run", path.name, another=ANOTHER)
    free = ranges.marked(AppSettings, "free")
    then, now, usual = (
        Identity({key.replace("_", "-"): value for key, value in table.items() if key not in free})
        for table in (old, config, AppSettings().config())
    )
    changes = then.differences(now, usual.settings)
    if changes and (started or old.get("scenario", "sites") != "sites"):  # settings may change until the first round
        raise RunError(f"{directory} holds a run with {stated(changes)}. {ANOTHER}, or delete it.")
    write_atomically(path, sealed_text(tomli_w.dumps(config)))
    if started and (directory / "sites.json").exists():
        try:
            fields = open_json(read_regular(directory / "sites.json").decode(errors="replace"))
            unfinished = int(fields.get("unfinished", 0)) + (not (directory / "summary.json").exists())
            return str(fields["experiment"]), [Known.of(site) for site in fields["sites"]], unfinished
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise RunError(
                f"{directory / 'sites.json'} is damaged. Put it back, or choose another run-dir; the records of the rounds are intact."
            ) from None
    return f"{directory.name}-{secrets.token_hex(4)}", [], 0


def in_process(
    net: nn.Module,
    clients: Iterable[Any],
    method: str | Rule | Method = "fedavg",
    solver: Solver | None = None,
    *,
    settings: Settings | None = None,
    tests: Mapping[str, Any] | None = None,
    groups: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    server_validation: Any = None,
    measures: Sequence[Any] = ("accuracy",),
    task: Any = "classification",
    states: str | Path | None = None,
    **more: Any,
) -> Federation:
    """A federation whose clients answer Flower's messages in this process: the code that sites run, without a network.

    Parameters, also those in ``more``, are those of :class:`equipoise.Federation`, and ``secure``. ``states`` is
    where the sites keep their states (default: a temporary directory). Every site has the test set of its group, or all.
    """
    of_task, of_server = ({name: more.pop(name) for name in keys if name in more} for keys in (OF_TASK, OF_SERVER))
    settings = changed(settings, more, (*(in_process.__kwdefaults__ or ()), *OF_TASK, *OF_SERVER))
    parts, sets = list(clients), dict(tests or {})
    site_names, made, optimiser = inputs.names_of(parts, names), Method.of(method), checked(solver)
    evaluation.check_groups(groups, sets, len(parts))
    # checked here, where an error may say everything: sites send what is harmless only
    alike: dict[str, Any] = {"tests": {}, "task": task_of(task)}
    alike |= {name: of_task[name] for name in ("transform", "head") if name in of_task}
    several = parts[:1] if task_of(task) == CLASSIFICATION else parts  # whose targets determine centre and scale
    task = inputs.frame(net, several, settings, site_names[: len(several)], lr=optimiser.lr, **alike).model.task
    server = Task(net, None, sets or None, server_validation, measures=tuple(measures), task=task, **of_task)
    tasks = {}
    for k, (name, data) in enumerate(zip(site_names, parts, strict=True)):
        mine = {groups[k]: sets[groups[k]]} if groups is not None and sets else sets
        tasks[name] = replace(server, train=data, test=mine or None, server_validation=None)
    with ExitStack() as cleaning:
        if states is None:
            states = tempfile.mkdtemp(prefix="equipoise-sites-")
            cleaning.callback(shutil.rmtree, states, ignore_errors=True)
        nodes = [{"site": name, "state-dir": str(states), "device": settings.device} for name in site_names]
        client = make_client_app(lambda node, _: tasks[str(node["site"])], made, keep=len(site_names), simulated=True)
        fields = description(made, optimiser, settings, divided(measures)[0], "run")
        sites = Sites(Exchange(InProcessGrid(client, nodes, {}), fields, deadline=1e9))
        sites.gather(len(site_names), site_names, 0.0)
        of_server |= {"attributes": server.attributes, "masks": Path(states) / "masks.json"}
        fed = federation(server, sites, made, optimiser, settings=settings, **of_server)
        weakref.finalize(fed, cleaning.pop_all().close)
    return fed
