"""The commands ``equipoise flower``."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

import equipoise as eq
from equipoise.cli.console import out, print_json, print_table, progress_bar, say, stopping
from equipoise.cli.export import announce
from equipoise.cli.options import Json, add, command, option
from equipoise.system.errors import RunError
from equipoise.system.files import read_regular
from equipoise.system.ranges import marked
from equipoise.system.seals import open_json, open_toml
from equipoise.system.suggestions import require_use, some

if TYPE_CHECKING:
    from equipoise.flower.deploy.checks import CheckResult
    from equipoise.flower.deploy.superlink import Outcome, SuperLink
    from equipoise.records.record import Record


app = typer.Typer(
    name="flower",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run a federation across machines, on Flower: a project, certificates, a trial on this machine, checks, runs.",
    epilog="Start with `equipoise flower init my-federation`, then `equipoise flower up my-federation --sites 3 --tls`.",
)

CONFIG = option(
    None,
    "Change settings of pyproject.toml for this run, for example `-c 'rounds=40 lr=0.05'`. Repeatable.",
    "--config -c",
    metavar="NAME=VALUE...",
)
NODES = option(
    None, "TOML file with what sites are started with: a table per site, or the keys of one site.", metavar="FILE"
)
HOSTS = option(None, "Name or address by which sites reach the server. Repeatable.")


Row = dict[str, Any]
LAST = 10  # rounds in which it is counted how often a site was missing
EMPTY = {"state": "not known", "seconds": "not yet", "missing": "not yet"}  # for cells without a value
ENDED = {"state": "ended", "seconds": "never", "missing": "never"}  # after the last round
SINCE = {"online": "last_activated_at", "offline": "last_deactivated_at", "registered": "registered_at"}

CONNECTION = option(..., "Name of the SuperLink in Flower's config.toml.", "CONNECTION")
YES = option(False, "Do it; without this it is only said what would be done.")


@contextmanager
def flower_errors() -> Iterator[None]:
    """Turn the absence of Flower into a failure of the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "cryptography"):
            raise
        raise RunError("Flower is not installed. Install it: pip install 'equipoise[flower]'.") from None


def _add(*examples: str) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Add a function to the app, as a command that needs Flower."""
    return lambda function: add(app, *examples)(flower_errors()(command(function)))


@_add("`equipoise flower init my-federation --sites 3`")
def init(
    directory: Path = option(..., "Folder of the new project; its name is the app's.", "DIR"),
    sites: int = option(3, "How many sites it starts with: site-0, site-1, ...", min=2),
    schema: Path | None = option(
        None, "For a table of each site: the file of `equipoise schema join` [default: digits]."
    ),
    config: Path | None = option(
        None, "A file of `equipoise init` or `tune`, whose settings the project gets.", "--config -c", metavar="FILE"
    ),
    method: str | None = option(None, "The method, of several in a file of `equipoise tune`."),
) -> None:
    """Write a project that works as it is: an app for Flower, its settings, a README, certificates, containers."""
    from equipoise.flower.deploy import project

    chosen, others = (None, []) if config is None else _settings(config, method)
    for path in project.init(directory, sites, schema, chosen):
        say(f"wrote {path}")
    if others:
        say(
            f"{config}: not taken, as each site has its own or the schema has it: {some(others)}. See {directory}/mytask.py."
        )
    if schema is not None and config is None:
        say(
            f"Its settings are those for the digits, with the method {project.PROTOCOL['method']}. To take those of a file of "
            "`equipoise init`, write it with --config FILE. Or change pyproject.toml, and the method in myapp.py, too."
        )
    nodes = f"--sites {sites}"
    if schema is not None:
        nodes = "--node-config local.toml"
        say(
            "The sums that made this schema were exchanged as they are: secure = true masks the updates of rounds, and never these sums.\n"
            'Name the table of each site in local.toml: [site-0], and below it data-path = "/data/north.csv", and so on.'
        )
    say(f"Try it: equipoise flower up {directory} {nodes} --tls")


@_add("`equipoise flower up my-federation --sites 3 --tls -c 'rounds=5'`")
def up(
    directory: Path = option(Path(), "Folder of the project.", "[DIR]"),
    sites: int | None = option(None, "How many sites [default: those of --node-config, or 3].", min=1),
    tls: bool = option(False, "Encrypt, and let in only sites whose keys are registered, as in earnest."),
    config: list[str] | None = CONFIG,
    node_config: Path | None = NODES,
    limit: float | None = option(None, "Seconds after which the run is stopped [default: none]."),
    only_check: bool = option(False, "Only check what would be started; start nothing.", "--check"),
    json_: Json = False,
) -> Iterator[object]:
    """Try a federation on this machine: start a server and sites as real processes, run the app, stop them.

    Logs and certificates go to DIR/local, the run to the run-dir of the settings. The same command continues a stopped run.
    """
    from equipoise.flower.deploy import checks, project
    from equipoise.flower.deploy.local import LocalFederation
    from equipoise.report import rendering, statistics

    settings = project.settings(directory)
    changes = project.overrides(config or (), settings)
    nodes = _sites(node_config, sites)
    names = list(nodes)
    changes = {"min-sites": len(names)} | changes
    whole = {**settings, **changes}
    run = (directory / str(whole["run-dir"])).resolve()
    changes["run-dir"] = str(run)
    base = directory / "local"
    states = {name: {"state-dir": str(base.resolve() / "sites" / name), **node} for name, node in nodes.items()}
    certificates = base / "certs" if tls and (base / "certs").exists() else None
    findings = checks.check(directory, certificates=certificates, node_configs=states, config=changes, present=names)
    if only_check:
        _show(findings, json_)
    if wrong := [f"{each.what}: {each.text}" for each in findings if not each.ok]:
        raise RunError("Nothing was started. " + " ".join(wrong))
    tell = (lambda text: None) if json_ else say
    tell(f"starting a server and {len(names)} sites{', with TLS and keys' * tls}; their logs are in {base}")
    with (
        stopping("Stopped. The same command continues after the last complete round."),
        LocalFederation(base, directory, names, tls=tls, node_config=nodes) as local,
        progress(run, base / "run.log", int(whole["rounds"]), not json_, local.named) as look_again,
    ):
        outcome = local.run(changes, limit=limit, watch=look_again)
        log = local.directory / "run.log"
        look_again()
        outcome = replace(outcome, reason=local.named(outcome.reason))
    check_outcome(outcome, log)
    compared = statistics.comparison([eq.History.from_run(run)])
    yield compared
    out.print(rendering.rich_table(compared, out.width))
    say(f"run: {run}\nreport: {run / 'report.html'}")


@_add("`equipoise flower run my-federation federation -c 'rounds=40'`")
def run(
    directory: Path = option(..., "Folder of the project.", "DIR"),
    connection: str = option(..., "Name of the SuperLink in Flower's config.toml.", "CONNECTION"),
    config: list[str] | None = CONFIG,
    json_: Json = False,
) -> None:
    """Run a project on a server that is there already, and show what it prints; a failed run ends with status 1.

    Ctrl-C stops watching, not the run.
    """
    from equipoise.flower.deploy import checks, project, superlink

    settings = project.settings(directory)
    changes = project.overrides(config or (), settings)
    wrong = project.problems({**settings, **changes})
    if not wrong and not (answer := checks.reach(connection)).ok:
        wrong = [answer.text]
    if wrong:
        raise RunError("Nothing was started. " + " ".join(wrong))
    link = superlink.SuperLink(connection, superlink.environment())
    number = link.submit(directory.resolve(), changes)
    tell = (lambda text: None) if json_ else say
    tell(f"run {number} has begun; to stop it: equipoise flower stop {connection} {number}")
    left = f"Run {number} continues without you. To see it: flwr log {number} {connection}; to stop it: equipoise flower stop {connection} {number}."
    with stopping(left), tempfile.TemporaryDirectory() as place:
        log = Path(place) / "run.log"
        with log.open("w+") as file:

            def show() -> None:
                tell(superlink.plain(file.read()).rstrip("\n"))

            outcome = link.follow(number, log, show)
            show()
    if json_:
        print_json({"run": number, "status": outcome.status, "reason": outcome.reason})
    check_outcome(outcome, None)
    tell(f"run {number} is complete; its results are on the server, in run-dir")


@_add("`equipoise flower check my-federation --connection federation --certs certs --host fl.example.org`")
def check(
    directory: Path | None = option(None, "Folder of the project.", "[DIR]"),
    connection: str | None = option(
        None, "Name of a SuperLink in Flower's config.toml: does it answer, and prove its identity?"
    ),
    certs: Path | None = option(None, "Folder of certificates and keys."),
    host: list[str] | None = HOSTS,
    key: list[Path] | None = option(None, "Private key of a site. Repeatable."),
    node_config: Path | None = NODES,
    port: list[int] | None = option(None, "A port that must be free on this machine. Repeatable."),
    json_: Json = False,
) -> None:
    """Find out what would stop a run before it begins: versions, settings, a site's data, certificates, keys, ports, the server."""
    from equipoise.flower.deploy.checks import check as look

    require_use({"--host": host and not certs}, without="--certs")
    findings = look(
        directory, connection=connection, certificates=certs, hosts=host or ("127.0.0.1",), keys=key or (), ports=port or (),
        node_configs=_nodes(node_config), data=True,
    )  # fmt: skip
    _show(findings, json_)


@_add(
    "`equipoise flower certs certs --host fl.example.org`",
    "at a site: `equipoise flower certs certs --site hospital-0`",
    "before the server's certificate ends: `equipoise flower certs certs --renew`",
)
def certs(
    directory: Path = option(..., "Folder for certificates and keys.", "DIR"),
    host: list[str] | None = HOSTS,
    site: list[str] | None = option(None, "Name of a site that gets a key pair. Repeatable."),
    days: int | None = option(None, "Life of the server certificate [default: 365].", min=1),
    renew: bool = option(False, "A new server certificate; the old one is kept."),
) -> None:
    """Make a server certificate (--host), key pairs of sites (--site), or both. Nothing is ever overwritten.

    Let every site make its own key and send only NAME.pub to the server, and keep ca.key offline. With --renew the old
    certificate is kept; sites connect as before once the SuperLink was started again.
    """
    from equipoise.flower.deploy.certificates import make_certificates

    if not host and not site and not renew:
        raise ValueError("Give --host NAME for a server certificate, or --site NAME for the key pair of a site.")
    require_use({"--days": not (host or renew) and days}, without="--host or --renew")
    for path in make_certificates(directory, host or (), site or (), days or 365, renew):
        say(f"wrote {path}")


@_add("`equipoise flower status my-federation --connection federation --certs certs`")
def status(
    directory: Path = option(Path(), "Directory of a run, or its project.", "[DIR]"),
    connection: str | None = option(None, "SuperLink in Flower's config.toml: who is online?"),
    certs: Path | None = option(None, "Folder of certificates: how long do they last?"),
) -> Iterator[object]:
    """Show how a run is going: its rounds, its sites, who was missing and why, disk space, certificates.

    Without --connection or --certs it shows the content of the directory. It names what it could not determine.
    """
    from equipoise.report.formatting import size

    about = overview(directory, connection, certs)
    yield about
    ended = about["run"].get("state") == "complete"
    for key, value in about["run"].items():
        if value is not None or key == "last_round_ended":
            shown = size(value) if "bytes" in key else "not yet" if value is None else value
            say(f"{key.removesuffix('_bytes').replace('_', ' ')}: {shown}")
    _show_rows(about["sites"], empty=ENDED if ended else {})
    _show_rows(about["certificates"])
    for what in about["unknown"]:
        say(f"not known: {what}")


def overview(directory: Path, connection: str | None, certs: Path | None) -> Row:
    """What there is to know of a run, its sites and certificates; in ``unknown``, what there is not, and why."""
    about: Row = {"run": {}, "sites": [], "certificates": [], "unknown": []}
    records: tuple[Record, ...] = ()
    names, nodes, absent = list[str](), dict[str, Row](), None
    if not (directory / "config.toml").exists() and (directory / "pyproject.toml").exists():
        from equipoise.flower.deploy import project

        directory /= str(project.settings(directory).get("run-dir", ""))
    if (directory / "config.toml").exists():
        about["run"], records, names = _run(directory)
    elif connection is None:
        raise ValueError(f"{directory} holds no run. Give the directory of one, or ask its server: --connection NAME.")
    else:
        about["unknown"].append(f"the run ({directory} holds none)")
    try:
        with flower_errors():
            nodes = {node["site"] or node["node"]: node for node in _registered(_link(connection))}
            absent = "not registered"
    except RunError as error:
        about["unknown"].append(f"which sites are online ({str(error).rstrip('.')})")
    for name in dict.fromkeys([*names, *nodes]):
        node = nodes.get(name, {"state": absent, "since": None})
        m = names.index(name) if name in names else None
        about["sites"].append({"site": name, "state": node["state"], "since": node["since"], **_site(m, records)})
    for path in (*certs.glob("server.pem"), certs / "ca.crt") if certs else ():
        from equipoise.flower.deploy.certificates import days_left, read

        certificate = read(path)
        ends, days = _utc(certificate.not_valid_after_utc), days_left(certificate)
        about["certificates"].append({"certificate": path.name, "ends": ends, "days_left": days})
    return about


def _run(directory: Path) -> tuple[Row, tuple[Record, ...], list[str]]:
    """The status of a run by its directory, its records, and the names of its sites."""
    from equipoise.records.record import parse_lines
    from equipoise.runs.status import run_status

    names = ("config.toml", "metrics.jsonl", "sites.json", "manifest.json")
    config, metrics, roster, manifest = (directory / name for name in names)
    try:
        settings = open_toml(read_regular(config).decode())
        records = parse_lines(read_regular(metrics).decode()) if metrics.exists() else ()
        lost = open_json(read_regular(manifest).decode()).get("without_model", []) if manifest.exists() else []
        sites = [site["name"] for site in open_json(read_regular(roster).decode())["sites"]] if roster.exists() else []
    except ValueError as error:
        raise ValueError(f"A file of the run {directory} is damaged: {error}.") from None
    how = run_status(directory)
    state = f"running as process {how.process}" if how.state == "running" else how.state
    written = None if how.written is None else _utc(datetime.fromtimestamp(how.written, UTC))
    run: Row = {"directory": str(directory), "method": settings.get("method"), "state": state}
    run |= {"round": len(records), "rounds": settings.get("rounds"), "last_round_ended": written}
    run |= {"sites_without_model": ", ".join(lost) or None, "bytes": _bytes(directory.rglob("*"))}
    return {**run, "free_bytes": shutil.disk_usage(directory).free}, records, sites


def _site(m: int | None, records: Sequence[Record]) -> Row:
    """How often site ``m`` was missing in the last rounds, why, how long its last answer took, and its bytes in all rounds."""
    last = records[-LAST:]
    sent = [] if m is None else [(w["down"][m], w["up"][m]) for r in records for w in r.get("sent", {}).values()]
    missed = [q["reason"] for r in last for q in r.get("quarantined", ()) if q["client"] == m]
    took = [r["times"]["answered"][r["ids"].index(m)] for r in records if "times" in r and m in r["ids"]]
    counts = {} if m is None else {"missing": len(missed), "of": len(last)}
    traffic = {"received_bytes": sum(down for down, _ in sent), "sent_bytes": sum(up for _, up in sent)}
    about: Row = {"missing": None, "of": None, **counts, "seconds": took[-1] if took else None}
    return {**about, **traffic, "missing_because": missed[-1] if missed else None}


@_add("`equipoise flower stop federation`")
def stop(
    connection: str = CONNECTION, run: int | None = option(None, "Needed if several are running.", "[RUN]")
) -> None:
    """Stop a run on a server. What it has learnt up to its last complete round is kept."""
    link = _link(connection)
    runs = {int(each["run-id"]): str(each["status"]) for each in link.call("ls", connection).get("runs", [])}
    running = [number for number, how in runs.items() if not how.startswith("finished")]
    listed = f"Running at {connection}: {', '.join(map(str, running)) or 'none'}."
    if run is None and len(running) != 1:
        raise RunError(f"{listed} {'Say which one to stop.' if running else 'There is nothing to stop.'}")
    number = running[0] if run is None else run
    if number not in running:
        raise RunError(f"Run {number} {f'has {runs[number]}' if number in runs else 'is not known'}. {listed}")
    link.stop(number)
    say(
        f"Run {number} is stopped. Its run-dir on the server has the records and the model of its last complete round, and sites keep "
        f"their states. To continue from there, with the same settings: equipoise flower run DIR {connection}"
    )


@_add("`equipoise flower sites federation --remove hospital-2 --yes`")
def sites(
    connection: str = CONNECTION,
    remove: str | None = option(None, "Remove the key of this site from the list, permanently.", metavar="NAME"),
    yes: bool = YES,
) -> Iterator[object]:
    """List the sites whose keys a server knows, or remove one, whose key can then never connect again.

    A run in progress continues without the site, and its records name it, as long as `quorum` of its sites answer.
    """
    require_use({"--yes": yes and remove is None}, without="--remove NAME")
    link = _link(connection)
    nodes = _registered(link)
    gone = [node for node in nodes if remove and node["site"] == remove]
    if remove is not None and not gone:
        names = ", ".join(sorted(node["site"] for node in nodes if node["site"])) or "none"
        raise RunError(f"No site {remove} is registered at {connection}. Registered: {names}.")
    for node in gone if yes else ():
        link.call("supernode", "unregister", node["node"], connection)
    yield {"sites": nodes, "removed": gone if yes else []}
    _show_rows(gone or nodes, "No site is registered.")
    if gone:
        say("Without --yes nothing was done. With it:" if not yes else "It is removed.")
        left_out = "A run in progress leaves the site out, and stops if fewer than quorum answer."
        say(f"Its key is refused, permanently. {left_out}")


@_add("`equipoise flower take /var/lib/equipoise --bundle our-model`")
def take(
    states: Path = option(..., "The state-dir of a site.", "STATE_DIR"),
    bundle: Path = option(..., "A new folder for the bundle.", "", metavar="DIR"),
    run: str | None = option(
        None, "Which run, if the site took part in several [default: the only one].", metavar="NAME"
    ),
) -> None:
    """At a site: take the model that this site predicts with home, as a bundle with a model card.

    It is the site's own where the method gives it one, else the last global model that it received.
    """
    from equipoise.flower.site.store import take as copied

    name = copied(states, bundle, run=run)
    announce(bundle, f"a bundle of the site's model of {name}")


@_add("`equipoise flower clean /var/lib/equipoise --older-than 90 --yes`")
def clean(
    directory: Path = option(..., "The state-dir of a site.", "STATE_DIR"),
    names: list[str] | None = option(None, "Remove these.", "[EXPERIMENT]..."),
    older_than: float | None = option(None, "Remove those not changed for so many days.", min=0),
    models: bool = option(False, "Remove their final models, too."),
    yes: bool = YES,
) -> None:
    """List what a site keeps of its experiments, and remove what it needs no more; never the newest one.

    A run cannot be resumed without the states. The site's final model, model.safetensors and its bundle, stays unless --models is given.
    """
    from equipoise.flower.site.store import BUNDLE, MODEL

    asked = names or []
    nothing = not asked and older_than is None
    require_use({"--models": nothing and models, "--yes": nothing and yes}, without="--older-than or an experiment")
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory. Give the state-dir of the site's node config.")
    experiments, rows, kept = _experiments(directory), list[Row](), () if models else (MODEL, BUNDLE)
    old = [*experiments][:-1]
    if strange := [name for name in asked if name not in old]:
        raise ValueError(f"{strange[0]} cannot be removed from {directory}; what can: {', '.join(old) or 'nothing'}.")
    for name, files in experiments.items():
        days = (time.time() - _changed(files)) / 86400
        chosen = name in asked or (name in old and older_than is not None and days >= older_than)
        gone = [path for path in files if chosen and path.relative_to(directory / name).parts[1] not in kept]
        done = "removed_bytes" if yes else "to_remove_bytes"
        rows.append({"experiment": name, "bytes": _bytes(files), "days": round(days), done: _bytes(gone)})
        if yes:
            _remove(gone, directory)
    _show_rows(rows, "There is no experiment.")


def _remove(files: Iterable[Path], base: Path) -> None:
    """Remove files below a folder, and the folders between that hold nothing else."""
    for path in files:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # a folder that still holds something
            for parent in path.parents[: len(path.relative_to(base).parts) - 1]:
                parent.rmdir()


def _experiments(base: Path) -> dict[str, list[Path]]:
    """The files of each experiment in a state directory, by its folder, the newest experiment last.

    A folder is one if its name is of the form that servers give, and it holds nothing but what sites store.
    """
    from equipoise.flower.site.store import FILES

    experiments = {}
    for folder in base.iterdir():
        files = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
        within = [path.relative_to(folder).as_posix().partition("/")[2] for path in files]
        stored = all(re.fullmatch(FILES, path) for path in within) and re.fullmatch(".+-[0-9a-f]{8}", folder.name)
        if files and stored and not any(path.is_symlink() for path in (folder, *files)):
            experiments[folder.name] = files
    return dict(sorted(experiments.items(), key=lambda each: _changed(each[1])))


def _link(connection: str | None) -> SuperLink:
    """The server of a connection, which answers."""
    from equipoise.flower.deploy import checks, superlink

    if connection is None:
        raise RunError("no server was asked: there is no --connection")
    if not (answer := checks.reach(connection)).ok:
        raise RunError(answer.text)
    return superlink.SuperLink(connection, superlink.environment())


def _registered(link: SuperLink) -> list[Row]:
    """The sites that a server knows: name, number, state, and since when."""
    rows = []
    for node in link.nodes():
        since = node.get(SINCE.get(node["status"], ""))
        since = _utc(datetime.fromisoformat(since)) if since else None
        rows.append({"site": node.get("name", ""), "node": node["node_id"], "state": node["status"], "since": since})
    return rows


def _show_rows(rows: Sequence[Row], nothing: str = "", empty: Mapping[str, str] = {}) -> None:
    """Print rows of the same keys as a table, or a sentence if there are none; ``empty`` are words for missing cells."""
    from equipoise.report.formatting import size

    words = {**EMPTY, **empty}

    def cell(key: str, value: Any) -> str:
        shown = words.get(key, "-") if value is None else size(value) if "bytes" in key else value
        return escape(str(shown))

    if rows:
        columns = [key.removesuffix("_bytes").replace("_", " ") for key in rows[0]]
        print_table(columns, ([cell(*item) for item in row.items()] for row in rows), fold=columns, whole=("site",))
    elif nothing:
        say(nothing)


def _utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}Z"


def _changed(files: Iterable[Path]) -> float:
    return max(path.stat().st_mtime for path in files)


def _bytes(files: Iterable[Path]) -> int:
    total = 0
    for path in files:
        with suppress(FileNotFoundError):  # a run in progress replaces files
            total += path.stat().st_size * path.is_file()
    return total


def _settings(path: Path, of_method: str | None) -> tuple[dict[str, Any], list[str]]:
    """The settings of a run between sites in a file of ``equipoise init``, and the names of others; what it lacks is as in simulations."""
    from equipoise.cli.init import read
    from equipoise.flower.settings import AppSettings
    from equipoise.runs.configuration import Layer, overrides_of, stacked, training_of
    from equipoise.scenarios.own import PROTOCOL

    choices = read(path)
    method, seed = choices.pop("method", "fedavg"), choices.pop("seed", 0)
    of_methods = choices.pop("methods", {})
    choices.pop("tuned", None)
    if of_methods:
        method = of_method or (next(iter(of_methods)) if len(of_methods) == 1 else "")
        if method not in of_methods:
            every = ", ".join(of_methods)
            raise ValueError(f"{path} has settings of several methods. Name one of them with --method: {every}.")
    elif of_method:
        raise ValueError(
            f"--method {of_method} names one of the methods in a file of `equipoise tune`, and {path} is none. Leave it out."
        )
    layers = [Layer(str(path), choices), Layer("equipoise tune", own := of_methods.get(method, {}))]
    table = stacked(layers)
    of_data, left_out = table.pop("scenario_options"), ("data", "scenario", "report", "network_options")
    given = {name: value for name, value in table.items() if name not in left_out and "." not in name}
    given |= {"positive": of_data["positive"]} if "positive" in of_data else {}
    names = {f.name for f in fields(AppSettings)} - {*marked(AppSettings, "local")}
    taken = {name: value for name, value in given.items() if name in names}
    overrides = overrides_of(method, layers) | {name: value for name, value in own.items() if name != "lr"}
    named = {"method": str(eq.parse(method, overrides)), "seed": seed}
    return {**training_of(PROTOCOL, taken), **taken, **named}, [name for name in given if name not in names]


def _nodes(path: Path | None, several: bool = False) -> dict[str, dict[str, Any]]:
    """What sites are started with, by their names."""
    if path is None:
        return {}
    try:
        nodes = open_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"--node-config {path} cannot be read: {why}.") from None
    except ValueError as error:
        raise ValueError(f"--node-config {path}: {error}. Write NAME = VALUE, with quotes around text.") from None
    tables = [value for value in nodes.values() if isinstance(value, dict)]
    if several and len(tables) < len(nodes):
        raise ValueError(f"--node-config {path}: expected a table per site, such as [site-0], with its keys below it.")
    return nodes if len(tables) == len(nodes) > 0 else {str(nodes.get("site", path.stem)): nodes}


def _sites(path: Path | None, number: int | None) -> dict[str, dict[str, Any]]:
    """What each site is started with, by its name: of this number, or else of those in the file, or of three."""
    nodes = _nodes(path, several=True)
    names = [f"site-{k}" for k in range(number or 3)] if number or not nodes else list(nodes)
    if strangers := sorted(nodes.keys() - set(names)):
        raise ValueError(f"{path} has settings of {', '.join(strangers)}; the sites are {some(names)}.")
    return {name: nodes.get(name, {}) for name in names}


def _show(results: list[CheckResult], json_: bool) -> None:
    """Print what was found, and end: with status 1 if something is wrong."""
    wrong = [each for each in results if not each.ok]
    if json_:
        listed = [{"what": each.what, "ok": each.ok, "text": each.text} for each in results]
        print_json({"ok": not wrong, "findings": listed})
    else:
        states = {True: "[green]ok[/]", False: "[bold red]wrong[/]"}
        rows = ((states[each.ok], escape(each.what), escape(each.text)) for each in results)
        print_table(("", "what", "found"), rows, whole=("what",), fold=("found",))
        out.print(f"{len(wrong)} of {len(results)} are wrong." if wrong else "All is well.", highlight=False)
    raise typer.Exit(1 if wrong else 0)


@contextmanager
def progress(
    directory: Path, log: Path, rounds: int, wanted: bool, named: Callable[[str], str]
) -> Iterator[Callable[[], None]]:
    """The server's log with sites ``named``, and a progress bar of the rounds in a run directory; the returned function updates both."""
    from equipoise.flower.deploy.superlink import ours

    path, last, shown = directory / "metrics.jsonl", [0.0], [0]
    with progress_bar(shown=wanted) as bar:
        task = bar.add_task("rounds", total=rounds)

        def look() -> None:
            if wanted and log.exists():
                lines = log.read_bytes().decode(errors="replace").split("\n")[:-1]
                said = list(ours(lines))
                for line in said[shown[0] :]:
                    bar.console.print(escape(named(line)), soft_wrap=True, highlight=False)
                shown[0] = len(said)
            if time.monotonic() - last[0] > 1 and path.exists():
                last[0] = time.monotonic()
                bar.update(task, completed=path.read_bytes().count(b"\n"))

        yield look


def check_outcome(outcome: Outcome, log: Path | None) -> None:
    """Fail if a run did."""
    if not outcome.completed:
        why = outcome.status if outcome.reason in ("", "N/A") else outcome.reason
        where = f" Its log: {log}" if log else ""
        raise RunError(f"The run failed: {why.removeprefix('ServerApp failed with exception: ')}{where}")
