"""The commands ``equipoise flower``."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from equipoise.cli.console import out, plain_table, print_json, progress_bar, say
from equipoise.cli.operation import clean, flower_errors, sites, status, stop, take
from equipoise.cli.options import Json
from equipoise.system.errors import RunError
from equipoise.system.seals import open_toml
from equipoise.system.suggestions import require_use, some

if TYPE_CHECKING:
    from equipoise.flower.deploy.checks import CheckResult
    from equipoise.flower.deploy.superlink import Outcome

app = typer.Typer(
    name="flower",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run a federation across machines, on Flower: a project, certificates, a trial on this machine, checks, runs.",
    epilog="Start with `equipoise flower init my-federation`, then `equipoise flower up my-federation --sites 3 --tls`.",
)

Config = Annotated[
    list[str] | None,
    Option(
        "--config",
        "-c",
        metavar="NAME=VALUE...",
        help="Change settings of pyproject.toml for this run, for example `-c 'rounds=40 lr=0.05'`. Repeatable.",
    ),
]
Nodes = Annotated[
    Path | None,
    Option(
        "--node-config",
        metavar="FILE",
        help="TOML file with what sites are started with: a table per site, or the keys of one site.",
    ),
]
Hosts = Annotated[
    list[str] | None, Option("--host", help="Name or address by which sites reach the server. Repeatable.")
]
Here = Annotated[Path, Argument(metavar="[DIR]", help="Folder of the project.")]


@app.command(epilog="Example: `equipoise flower init my-federation --sites 3`")
def init(
    directory: Annotated[Path, Argument(metavar="DIR", help="Folder of the new project; its name is the app's.")],
    sites: Annotated[int, Option(min=2, help="How many sites it starts with: site-0, site-1, ...")] = 3,
    schema: Annotated[
        Path | None, Option(help="For a table of each site: the file of `equipoise schema join` [default: digits].")
    ] = None,
    config: Annotated[
        Path | None,
        Option(
            "--config",
            "-c",
            metavar="FILE",
            help="A file of `equipoise init` or `tune`, whose settings the project gets.",
        ),
    ] = None,
    method: Annotated[str | None, Option(help="The method, of several in a file of `equipoise tune`.")] = None,
) -> None:
    """Write a project that works as it is: an app for Flower, its settings, a README, certificates, containers."""
    with flower_errors():
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
            "The sums that made this schema were exchanged as they are: secure = true masks the updates of rounds, and never these sums."
        )
        say(
            'Name the table of each site in local.toml: [site-0], and below it data-path = "/data/north.csv", and so on.'
        )
    say(f"Try it: equipoise flower up {directory} {nodes} --tls")


@app.command(epilog="Example: `equipoise flower up my-federation --sites 3 --tls -c 'rounds=5'`")
def up(
    directory: Here = Path(),
    sites: Annotated[int | None, Option(min=1, help="How many sites [default: those of --node-config, or 3].")] = None,
    tls: Annotated[
        bool, Option("--tls", help="Encrypt, and let in only sites whose keys are registered, as in earnest.")
    ] = False,
    config: Config = None,
    node_config: Nodes = None,
    limit: Annotated[float | None, Option(help="Seconds after which the run is stopped [default: none].")] = None,
    only_check: Annotated[bool, Option("--check", help="Only check what would be started; start nothing.")] = False,
    json_: Json = False,
) -> None:
    """Try a federation on this machine: start a server and sites as real processes, run the app, stop them.

    Logs and certificates go to DIR/local, the run to the run-dir of the settings. The same command continues a stopped run.
    """
    with flower_errors():
        from equipoise.flower.deploy import project
        from equipoise.flower.deploy.checks import check as look
        from equipoise.flower.deploy.local import LocalFederation

        settings = project.settings(directory)
        changes = project.overrides(config or (), settings)
        nodes = _sites(node_config, sites)
        names = list(nodes)
        changes = {"min-sites": len(names)} | changes
        changes["run-dir"] = str((directory / str(({**settings, **changes})["run-dir"])).resolve())
        base = directory / "local"
        states = {name: {"state-dir": str(base.resolve() / "sites" / name), **node} for name, node in nodes.items()}
        certificates = base / "certs" if tls and (base / "certs").exists() else None
        findings = look(directory, certificates=certificates, node_configs=states, config=changes, present=names)
        if only_check:
            _show(findings, json_)
        if wrong := [f"{each.what}: {each.text}" for each in findings if not each.ok]:
            raise RunError("Nothing was started. " + " ".join(wrong))
        run = Path(changes["run-dir"])
        rounds = int({**settings, **changes}["rounds"])
        tell = (lambda text: None) if json_ else say
        tell(f"starting a server and {len(names)} sites{', with TLS and keys' * tls}; their logs are in {base}")
        with (
            stopping("Stopped. The same command continues after the last complete round."),
            LocalFederation(base, directory, names, tls=tls, node_config=nodes) as local,
            progress(run, base / "run.log", rounds, not json_, local.named) as look_again,
        ):
            outcome = local.run(changes, limit=limit, watch=look_again)
            log = local.directory / "run.log"
            look_again()
            outcome = replace(outcome, reason=local.named(outcome.reason))
        check_outcome(outcome, log)
    _finish(run, json_)


@app.command(epilog="Example: `equipoise flower run my-federation federation -c 'rounds=40'`")
def run(
    directory: Annotated[Path, Argument(metavar="DIR", help="Folder of the project.")],
    connection: Annotated[str, Argument(help="Name of the SuperLink in Flower's config.toml.")],
    config: Config = None,
    json_: Json = False,
) -> None:
    """Run a project on a server that is there already, and show what it prints; a failed run ends with status 1.

    Ctrl-C stops watching, not the run.
    """
    with flower_errors():
        from equipoise.flower.deploy import project
        from equipoise.flower.deploy.checks import reach
        from equipoise.flower.deploy.superlink import SuperLink, environment, plain

        settings = project.settings(directory)
        changes = project.overrides(config or (), settings)
        wrong = project.problems({**settings, **changes})
        wrong = wrong or [answer.text for answer in [reach(connection)] if not answer.ok]
        if wrong:
            raise RunError("Nothing was started. " + " ".join(wrong))
        link = SuperLink(connection, environment())
        number = link.submit(directory.resolve(), changes)
        tell = (lambda text: None) if json_ else say
        tell(f"run {number} has begun; to stop it: equipoise flower stop {connection} {number}")
        left = f"Run {number} continues without you. To see it: flwr log {number} {connection}; to stop it: equipoise flower stop {connection} {number}."
        with stopping(left), tempfile.TemporaryDirectory() as place:
            log = Path(place) / "run.log"
            with log.open("w+") as file:

                def show() -> None:
                    tell(plain(file.read()).rstrip("\n"))

                outcome = link.follow(number, log, show)
                show()
        if json_:
            print_json({"run": number, "status": outcome.status, "reason": outcome.reason})
        check_outcome(outcome, None)
    tell(f"run {number} is complete; its results are on the server, in run-dir")


@app.command(
    epilog="Example: `equipoise flower check my-federation --connection federation --certs certs --host fl.example.org`"
)
def check(
    directory: Annotated[Path | None, Argument(metavar="[DIR]", help="Folder of the project.")] = None,
    connection: Annotated[
        str | None, Option(help="Name of a SuperLink in Flower's config.toml: does it answer, and prove its identity?")
    ] = None,
    certs: Annotated[Path | None, Option(help="Folder of certificates and keys.")] = None,
    host: Hosts = None,
    key: Annotated[list[Path] | None, Option(help="Private key of a site. Repeatable.")] = None,
    node_config: Nodes = None,
    port: Annotated[list[int] | None, Option(help="A port that must be free on this machine. Repeatable.")] = None,
    json_: Json = False,
) -> None:
    """Find out what would stop a run before it begins: versions, settings, a site's data, certificates, keys, ports, the server."""
    with flower_errors():
        from equipoise.flower.deploy.checks import check as look

        require_use({"--host": host and not certs}, without="--certs")
        findings = look(
            directory,
            connection=connection,
            certificates=certs,
            hosts=host or ("127.0.0.1",),
            keys=key or (),
            node_configs=_nodes(node_config),
            ports=port or (),
            data=True,
        )
    _show(findings, json_)


@app.command(
    epilog="Example: `equipoise flower certs certs --host fl.example.org`; at a site: `equipoise flower certs certs --site hospital-0`; "
    "before the server's certificate ends: `equipoise flower certs certs --renew`"
)
def certs(
    directory: Annotated[Path, Argument(metavar="DIR", help="Folder for certificates and keys.")],
    host: Hosts = None,
    site: Annotated[list[str] | None, Option(help="Name of a site that gets a key pair. Repeatable.")] = None,
    days: Annotated[int | None, Option(min=1, help="Life of the server certificate [default: 365].")] = None,
    renew: Annotated[bool, Option("--renew", help="A new server certificate; the old one is kept.")] = False,
) -> None:
    """Make a server certificate (--host), key pairs of sites (--site), or both. Nothing is ever overwritten.

    Let every site make its own key and send only NAME.pub to the server, and keep ca.key offline. With --renew the old
    certificate is kept; sites connect as before once the SuperLink was started again.
    """
    with flower_errors():
        from equipoise.flower.deploy.certificates import make_certificates

        if not host and not site and not renew:
            raise ValueError("Give --host NAME for a server certificate, or --site NAME for the key pair of a site.")
        require_use({"--days": not (host or renew) and days}, without="--host or --renew")
        for path in make_certificates(directory, host or (), site or (), days or 365, renew):
            say(f"wrote {path}")


OPERATION: dict[Callable[..., None], str] = {  # with examples
    status: "equipoise flower status my-federation --connection federation --certs certs",
    stop: "equipoise flower stop federation",
    sites: "equipoise flower sites federation --remove hospital-2 --yes",
    take: "equipoise flower take /var/lib/equipoise --bundle our-model",
    clean: "equipoise flower clean /var/lib/equipoise --older-than 90 --yes",
}
for command, example in OPERATION.items():
    app.command(epilog=f"Example: `{example}`")(flower_errors()(command))


def _settings(path: Path, of_method: str | None) -> tuple[dict[str, Any], list[str]]:
    """The settings of a run between sites in a file of ``equipoise init``, and the names of others; what it lacks is as in simulations."""
    from equipoise.cli.init import read
    from equipoise.federation.method import parse
    from equipoise.flower.settings import AppSettings
    from equipoise.runs.configuration import Layer, overrides_of, stacked, training_of
    from equipoise.scenarios.own import PROTOCOL
    from equipoise.system.ranges import marked

    choices = read(path)
    method, seed = choices.pop("method", "fedavg"), choices.pop("seed", 0)
    chosen_by_method = choices.pop("methods", {})
    choices.pop("tuned", None)
    if chosen_by_method:
        method = of_method or (next(iter(chosen_by_method)) if len(chosen_by_method) == 1 else "")
        if method not in chosen_by_method:
            raise ValueError(
                f"{path} has settings of several methods. Name one of them with --method: {', '.join(chosen_by_method)}."
            )
    elif of_method:
        raise ValueError(
            f"--method {of_method} names one of the methods in a file of `equipoise tune`, and {path} is none. Leave it out."
        )
    layers = [Layer(str(path), choices), Layer("equipoise tune", own := chosen_by_method.get(method, {}))]
    table = stacked(layers)
    of_data, left_out = table.pop("scenario_options"), ("data", "scenario", "report", "network_options")
    given = {name: value for name, value in table.items() if name not in left_out and "." not in name}
    given |= {name: of_data[name] for name in ("positive",) if name in of_data}
    names = {f.name for f in fields(AppSettings)} - {*marked(AppSettings, "local")}
    taken = {name: value for name, value in given.items() if name in names}
    overrides = overrides_of(method, layers) | {name: value for name, value in own.items() if name != "lr"}
    named = {"method": str(parse(method, overrides)), "seed": seed}
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
        table = plain_table("", "what", "found", whole=("what",), fold=("found",))
        for each in results:
            table.add_row("[green]ok[/]" if each.ok else "[bold red]wrong[/]", escape(each.what), escape(each.text))
        out.print(table)
        out.print(f"{len(wrong)} of {len(results)} are wrong." if wrong else "All is well.", highlight=False)
    raise typer.Exit(1 if wrong else 0)


@contextmanager
def stopping(left: str) -> Iterator[None]:
    """Add to a stop of the command here what it leaves running."""
    try:
        yield
    except BaseException as stop:
        if not isinstance(stop, Exception):  # Ctrl-C, a polite kill
            stop.add_note(left)
        raise


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
        why = outcome.reason if outcome.reason not in ("", "N/A") else outcome.status
        why = why.removeprefix("ServerApp failed with exception: ")
        raise RunError(f"The run failed: {why}" + (f" Its log: {log}" if log else ""))


def _finish(directory: Path, json_: bool) -> None:
    from equipoise.federation.history import History
    from equipoise.report.rendering import rich_table
    from equipoise.report.statistics import comparison

    compared = comparison([History.from_run(directory)])
    if json_:
        print_json(compared)
        return
    out.print(rich_table(compared, out.width))
    say(f"run: {directory}\nreport: {directory / 'report.html'}")
