"""The commands of ``equipoise flower`` that keep a federation going: ``status``, ``stop``, ``sites``, ``take``, ``clean``."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from typer import Argument, Option

from equipoise.cli.console import out, plain_table, print_json, say
from equipoise.cli.export import announce
from equipoise.cli.options import Json
from equipoise.system.errors import RunError
from equipoise.system.files import read_regular
from equipoise.system.seals import open_json, open_toml
from equipoise.system.suggestions import require_use

if TYPE_CHECKING:
    from equipoise.flower.deploy.superlink import SuperLink
    from equipoise.records.record import Record

Row = dict[str, Any]
LAST = 10  # rounds in which it is counted how often a site was missing
EMPTY = {"state": "not known", "seconds": "not yet", "missing": "not yet"}  # for cells without a value
ENDED = {"state": "ended", "seconds": "never", "missing": "never"}  # after the last round
SINCE = {"online": "last_activated_at", "offline": "last_deactivated_at", "registered": "registered_at"}

Connection = Annotated[str, Argument(help="Name of the SuperLink in Flower's config.toml.")]
Remove = Annotated[str | None, Option(metavar="NAME", help="Remove the key of this site from the list, permanently.")]
Yes = Annotated[bool, Option("--yes", help="Do it; without this it is only said what would be done.")]


def status(
    directory: Annotated[Path, Argument(metavar="[DIR]", help="Directory of a run, or its project.")] = Path(),
    connection: Annotated[str | None, Option(help="SuperLink in Flower's config.toml: who is online?")] = None,
    certs: Annotated[Path | None, Option(help="Folder of certificates: how long do they last?")] = None,
    json_: Json = False,
) -> None:
    """Show how a run is going: its rounds, its sites, who was missing and why, disk space, certificates.

    Without --connection or --certs it shows the content of the directory. It names what it could not determine.
    """
    from equipoise.report.formatting import size

    about = overview(directory, connection, certs)
    if json_:
        print_json(about)
        return
    ended = about["run"].get("state") == "complete"
    for key, value in about["run"].items():
        if value is not None or key == "last_round_ended":
            shown = size(value) if "bytes" in key else "not yet" if value is None else value
            say(f"{key.removesuffix('_bytes').replace('_', ' ')}: {shown}")
    _show(about["sites"], empty=ENDED if ended else {})
    _show(about["certificates"])
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
            nodes, absent = {node["site"] or node["node"]: node for node in _nodes(_link(connection))}, "not registered"
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
    run = {
        "directory": str(directory),
        "method": settings.get("method"),
        "state": f"running as process {how.process}" if how.state == "running" else how.state,
        "round": len(records),
        "rounds": settings.get("rounds"),
        "last_round_ended": None if how.written is None else _utc(datetime.fromtimestamp(how.written, UTC)),
        "sites_without_model": ", ".join(lost) or None,
        "bytes": _bytes(directory.rglob("*")),
        "free_bytes": shutil.disk_usage(directory).free,
    }
    return run, records, sites


def _site(m: int | None, records: Sequence[Record]) -> Row:
    """How often site ``m`` was missing in the last rounds, why, how long its last answer took, and its bytes in all rounds."""
    last = records[-LAST:]
    sent = [] if m is None else [(w["down"][m], w["up"][m]) for r in records for w in r.get("sent", {}).values()]
    missed = [q["reason"] for r in last for q in r.get("quarantined", ()) if q["client"] == m]
    took = [r["times"]["answered"][r["ids"].index(m)] for r in records if "times" in r and m in r["ids"]]
    return {
        "missing": None if m is None else len(missed),
        "of": None if m is None else len(last),
        "seconds": took[-1] if took else None,
        "received_bytes": sum(down for down, _ in sent),
        "sent_bytes": sum(up for _, up in sent),
        "missing_because": missed[-1] if missed else None,
    }


def stop(
    connection: Connection,
    run: Annotated[int | None, Argument(metavar="[RUN]", help="Needed if several are running.")] = None,
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


def sites(connection: Connection, remove: Remove = None, yes: Yes = False, json_: Json = False) -> None:
    """List the sites whose keys a server knows, or remove one, whose key can then never connect again.

    A run in progress continues without the site, and its records name it, as long as `quorum` of its sites answer.
    """
    require_use({"--yes": yes and remove is None}, without="--remove NAME")
    link = _link(connection)
    nodes = _nodes(link)
    gone = [node for node in nodes if remove and node["site"] == remove]
    if remove is not None and not gone:
        names = ", ".join(sorted(node["site"] for node in nodes if node["site"])) or "none"
        raise RunError(f"No site {remove} is registered at {connection}. Registered: {names}.")
    for node in gone if yes else ():
        link.call("supernode", "unregister", node["node"], connection)
    if json_:
        print_json({"sites": nodes, "removed": gone if yes else []})
        return
    _show(gone or nodes, "No site is registered.")
    if gone:
        say("Without --yes nothing was done. With it:" if not yes else "It is removed.")
        say(
            "Its key is refused, permanently. A run in progress leaves the site out, and stops if fewer than quorum answer."
        )


def clean(
    directory: Annotated[Path, Argument(metavar="STATE_DIR", help="The state-dir of a site.")],
    names: Annotated[list[str] | None, Argument(metavar="[EXPERIMENT]...", help="Remove these.")] = None,
    older_than: Annotated[float | None, Option(min=0, help="Remove those not changed for so many days.")] = None,
    models: Annotated[bool, Option("--models", help="Remove their final models, too.")] = False,
    yes: Yes = False,
) -> None:
    """List what a site keeps of its experiments, and remove what it needs no more; never the newest one.

    A run cannot be resumed without the states. The site's final model, model.safetensors and its bundle, stays unless --models is given.
    """
    from equipoise.flower.site.store import BUNDLE, MODEL

    nothing = not names and older_than is None
    require_use({"--models": nothing and models, "--yes": nothing and yes}, without="--older-than or an experiment")
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory. Give the state-dir of the site's node config.")
    experiments, rows = _experiments(directory), list[Row]()
    old = [*experiments][:-1]
    if strange := [name for name in names or () if name not in old]:
        raise ValueError(f"{strange[0]} cannot be removed from {directory}; what can: {', '.join(old) or 'nothing'}.")
    for name, files in experiments.items():
        home = directory / name
        days = (time.time() - _changed(files)) / 86400
        chosen = name in old and (name in (names or ()) or (older_than is not None and days >= older_than))
        gone = [path for path in files if chosen and (models or path.relative_to(home).parts[1] not in (MODEL, BUNDLE))]
        done = "removed_bytes" if yes else "to_remove_bytes"
        rows.append({"experiment": name, "bytes": _bytes(files), "days": round(days), done: _bytes(gone)})
        for path in gone if yes else ():
            path.unlink(missing_ok=True)
            with suppress(OSError):  # a folder that still holds something
                for parent in path.parents[: len(path.relative_to(directory).parts) - 1]:
                    parent.rmdir()
    _show(rows, "There is no experiment.")


def take(
    states: Annotated[Path, Argument(metavar="STATE_DIR", help="The state-dir of a site.")],
    bundle: Annotated[Path, Option(metavar="DIR", help="A new folder for the bundle.")],
    run: Annotated[
        str | None, Option(metavar="NAME", help="Which run, if the site took part in several [default: the only one].")
    ] = None,
) -> None:
    """At a site: take the model that this site predicts with home, as a bundle with a model card.

    It is the site's own where the method gives it one, else the last global model that it received.
    """
    with flower_errors():
        from equipoise.flower.site.store import take as copied

        name = copied(states, bundle, run=run)
    announce(bundle, f"a bundle of the site's model of {name}")


def _experiments(base: Path) -> dict[str, list[Path]]:
    """The files of each experiment in a state directory, by its folder, the newest experiment last.

    A folder is one if its name is of the form that servers give, and it holds nothing but what sites store.
    """
    from equipoise.flower.site.store import FILES

    experiments = {}
    for folder in base.iterdir():
        files = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
        within = [path.relative_to(folder).as_posix().partition("/")[2] for path in files]
        linked = any(path.is_symlink() for path in folder.rglob("*"))
        stored = not linked and all(re.fullmatch(FILES, path) for path in within)
        if files and stored and not folder.is_symlink() and re.fullmatch(".+-[0-9a-f]{8}", folder.name):
            experiments[folder.name] = files
    return dict(sorted(experiments.items(), key=lambda each: _changed(each[1])))


def _link(connection: str | None) -> SuperLink:
    """The server of a connection, which answers."""
    from equipoise.flower.deploy.checks import reach
    from equipoise.flower.deploy.superlink import SuperLink, environment

    if connection is None:
        raise RunError("no server was asked: there is no --connection")
    if not (answer := reach(connection)).ok:
        raise RunError(answer.text)
    return SuperLink(connection, environment())


def _nodes(link: SuperLink) -> list[Row]:
    """The sites that a server knows: name, number, state, and since when."""
    rows = []
    for node in link.nodes():
        since = node.get(SINCE.get(node["status"], ""))
        since = _utc(datetime.fromisoformat(since)) if since else None
        rows.append({"site": node.get("name", ""), "node": node["node_id"], "state": node["status"], "since": since})
    return rows


def _show(rows: Sequence[Row], nothing: str = "", empty: Mapping[str, str] = {}) -> None:
    """Print rows of the same keys as a table, or a sentence if there are none; ``empty`` are words for missing cells."""
    from equipoise.report.formatting import size

    columns = [key.removesuffix("_bytes").replace("_", " ") for key in (rows[0] if rows else ())]
    table = plain_table(*columns, fold=columns, whole=("site",))
    for row in rows:
        shown = [size(x) if "bytes" in key and x is not None else x for key, x in row.items()]
        words = {**EMPTY, **empty}
        cells = (words.get(key, "-") if x is None else x for key, x in zip(row, shown, strict=True))
        table.add_row(*(escape(str(cell)) for cell in cells))
    if rows:
        out.print(table)
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


@contextmanager
def flower_errors() -> Iterator[None]:
    """Turn the absence of Flower into a failure of the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "cryptography"):
            raise
        raise RunError("Flower is not installed. Install it: pip install 'equipoise[flower]'.") from None
