"""Checks before a run across machines."""

import json
import os
import re
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from equipoise.flower import internals, settings
from equipoise.flower.deploy import local, project
from equipoise.flower.deploy.certificates import days_left, hosts_of, key_problems, problems, read
from equipoise.flower.deploy.superlink import FLWR, environment, last_lines
from equipoise.system import files, seals, workers
from equipoise.system.errors import InputError, RunError
from equipoise.system.suggestions import some

SOON = 30  # days before its end at which a certificate is worth a word
PACKAGES = ("equipoise", "torch", "cryptography", "flwr")
APPS = """
import contextlib, importlib, json, sys
sys.path.insert(0, sys.argv.pop(1))
sites, config = json.load(sys.stdin)
with contextlib.redirect_stdout(sys.stderr):  # what the project prints
    for name in sys.argv[1:]:
        module, _, attribute = name.partition(":")
        app = getattr(importlib.import_module(module), attribute)
    from equipoise.flower.app import check_positive, check_site
    found = {name: check_site(app, name, node, config) for name, node in sites.items()}
    print(json.dumps([found, check_positive(app, config)]), file=sys.__stdout__)
"""


@dataclass(frozen=True)
class CheckResult:
    """One check: ``what`` was checked, whether it is ``ok``, and in ``text`` the result or what to do."""

    what: str
    ok: bool
    text: str


def check(
    app: str | Path | None = None,
    *,
    connection: str | None = None,
    certificates: str | Path | None = None,
    hosts: Sequence[str] = ("127.0.0.1",),
    keys: Sequence[str | Path] = (),
    node_configs: Mapping[str, Mapping[str, Any]] | None = None,
    ports: Sequence[int] = (),
    config: Mapping[str, Any] | None = None,
    present: Sequence[str] = (),
    data: bool = False,
) -> list[CheckResult]:
    """Check everything that is given; nothing is changed.

    Parameters
    ----------
    app : folder of the Flower app.
    connection : of Flower's ``config.toml``: does its SuperLink answer, and is its certificate valid?
    certificates : directory of :func:`equipoise.flower.deploy.certificates.make_certificates`; a server certificate in it
        must be valid for all of ``hosts``.
    keys : private keys of sites.
    node_configs : the node configs of sites, by name.
    ports : that must be free on this machine.
    config : changes of the app's run configuration.
    present : names of all sites that will take part, if known.
    data : load the data of the sites of ``node_configs`` as the app would, and tell the codes of what all sites must agree on.
    """
    results = [_tried(name, partial(_version, name)) for name in PACKAGES]
    nodes = dict[str, Mapping[str, Any]]()
    for name, node_config in (node_configs or {}).items():
        try:
            nodes[name] = internals.flatten_dict(dict(node_config))
        except ValueError as error:  # Flower's own words
            results.append(CheckResult(f"{name}: node config", False, str(error)))
    if app is not None:
        results += _project(Path(app), config or {}, present, nodes if data else {})
    results += [result for name in nodes for result in _node(name, nodes[name])]
    if certificates is not None:
        results += _certificates(Path(certificates), hosts)
    results += [_joined(f"key {key}", key_problems(key), "ECDSA, readable by its owner only") for key in keys]
    results += [_tried(f"port {port}", partial(_port, port)) for port in ports]
    return results if connection is None else [*results, reach(connection)]


def _version(name: str) -> str:
    try:
        installed = version(name)
    except PackageNotFoundError:
        raise InputError("is not installed. Install it: pip install 'equipoise[flower]'.") from None
    if name != "flwr":
        return installed
    lowest, numbers, tested = (tuple(map(int, re.findall(r"\d+", text)[:2])) for text in (FLWR[0], installed, FLWR[1]))
    if numbers < lowest:
        raise InputError(
            f"{installed} is too old. Install {FLWR[0]} or newer: pip install --upgrade 'equipoise[flower]'."
        )
    newer = f", newer than {FLWR[1]}, the last that this Equipoise was tested with"
    return installed + newer * (numbers > tested)


def _project(
    app: Path, config: Mapping[str, Any], present: Sequence[str], sites: Mapping[str, Mapping[str, Any]]
) -> Iterator[CheckResult]:
    try:
        run_config = {**project.settings(app), **config}
    except RunError as error:
        yield CheckResult("app", False, str(error))
        return
    wrong = project.problems(run_config, present)
    yield _joined("settings", wrong, f"{run_config.get('method')}, {run_config.get('rounds')} rounds")
    with tempfile.TemporaryDirectory() as bundle:
        try:
            size, packed, names = internals.unpacked_bundle(app, bundle)
        except Exception as error:  # Flower's own words, of whatever kind
            yield CheckResult("bundle", False, str(error))
            return
        yield CheckResult("bundle", True, f"{size / 1024:.0f} KiB go to the server and every site")
        for result in _apps(bundle, names, *(({}, {}) if wrong else (sites, run_config))):
            lost = "" if result.ok else _left_out(app, bundle, packed, result.text)
            yield replace(result, text=result.text + lost)


def _apps(
    bundle: str, names: Sequence[str], sites: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[CheckResult]:
    """Whether server app and client app can be imported from a bundle, and what ``sites`` find in a run of it, in another process."""
    command, asked = workers.python("-c", APPS, bundle, *names), json.dumps([sites, config])
    done = subprocess.run(command, env=environment(), input=asked, capture_output=True, text=True, check=False)
    ok = done.returncode == 0
    yield CheckResult("apps", ok, " and ".join(names) if ok else last_lines(done.stderr, 3))
    results, positive = json.loads(done.stdout.splitlines()[-1]) if ok else ({}, "")
    if positive:
        yield CheckResult("positive", False, positive)
    yield from (CheckResult(f"{name}: {what}", *result) for name in results for what, result in results[name].items())


def _left_out(app: Path, bundle: str, packed: Iterable[str], error: str) -> str:
    """A sentence about the files of a project that an import or a path in an error needs, and that Flower does not send."""
    _, _, words = error.partition("Error: ")
    names = [re.sub(rf"^{re.escape(bundle)}/", "", name) for name in re.findall("'([^']+)'", words)]
    starts = tuple(f"{name}{end}" for name in (*names, *(name.replace(".", "/") for name in names)) for end in "/.")
    own = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_symlink() or not path.is_dir()}
    lost = [name for name in sorted(own - {*packed}) if f"{name}/".startswith(starts)]
    return f" Flower sends no {some(lost)}: by name, folder, kind of file, as a link, or by .gitignore." if lost else ""


def _node(name: str, node_config: Mapping[str, Any]) -> Iterator[CheckResult]:
    if "state-dir" not in node_config:
        yield CheckResult(f"{name}: state-dir", False, 'is missing: add state-dir = "/a/directory/that/is/kept".')
    wrong = settings.faults(node_config)
    for key, value in node_config.items():
        what, path = f"{name}: {key}", Path(str(value))
        if key in wrong:
            yield CheckResult(what, False, wrong[key])
        elif key == "state-dir":
            yield _tried(what, partial(_writable, path))
        elif isinstance(value, str) and (path.is_absolute() or key.endswith(("-path", "-dir", "_path", "_dir"))):
            ok = path.exists() and os.access(path, os.R_OK)
            fault = "does not exist" if not path.exists() else "cannot be read by this user"
            yield CheckResult(what, ok, str(path) if ok else f"{path} {fault}. Correct the path in its node config.")


def _writable(path: Path) -> str:
    if not path.is_absolute():
        raise InputError(f"{path} must be a whole path, from / on: Flower starts apps in other directories.")
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{nearest} cannot be written by this user. Choose another, or chown it.")
    return str(path)


def _certificates(base: Path, hosts: Iterable[str]) -> Iterator[CheckResult]:
    server, ca = base / "server.pem", base / "ca.crt"
    certificate = server if server.exists() else ca
    try:
        if not ca.exists():
            raise InputError(f"{base} holds no ca.crt. Make certificates: equipoise flower certs {base}.")
        seen = read(certificate)
        wrong = [text for host in hosts for text in problems(server, ca, host)] if certificate == server else []
        left = min(days_left(read(path)) for path in {certificate, ca})
    except InputError as error:
        yield CheckResult("certificates", False, str(error))
        return
    soon = f" It ends in {left} days: make a new one soon." if left < SOON else ""
    names = ", ".join(hosts_of(seen)) or "no host"
    until = f"{certificate.name} until {seen.not_valid_after_utc:%Y-%m-%d}, for {names}.{soon}"
    yield _joined("certificates", dict.fromkeys(wrong), until)
    if (base / "server.key").exists() and files.open_to_others(base / "server.key"):
        yield CheckResult("server.key", False, f"can be read by others: chmod 600 {base / 'server.key'}.")
    for public in sorted(base.glob("*.pub")):
        private = public.with_suffix("")
        if private.exists():
            yield _joined(f"key {private.name}", key_problems(private), "ECDSA, readable by its owner only")


def _port(port: int) -> str:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise InputError(f"{error.strerror}. Stop what listens there, or choose another port.") from None
    return "free"


def reach(name: str) -> CheckResult:
    """Whether the SuperLink of a connection of Flower's ``config.toml`` answers with a valid certificate."""
    return _tried(f"connection {name}", partial(_reached, name))


def _reached(name: str) -> str:
    path = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"
    try:
        connections = seals.open_toml(path.read_text(encoding="utf-8")).get("superlink", {})
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}. Put [superlink.{name}] with an address there.") from None
    entry = connections.get(name)
    address = entry.get("address") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(address, str):
        names = ", ".join(key for key, value in connections.items() if isinstance(value, dict)) or "none"
        raise InputError(f"{path} has no [superlink.{name}] with an address. Known: {names}.")
    insecure, ca = bool(entry.get("insecure")), entry.get("root-certificates")
    ca = path.parent / Path(ca).expanduser() if ca else None
    if ca is not None and not ca.is_file():
        raise InputError(f"root-certificates {ca} does not exist. Ask the server's people for their ca.crt.")
    if not insecure:
        _shake_hands(address, ca)
    way = "without encryption" if insecure else "over TLS"
    if not local.healthy(address, ca, not insecure):
        raise InputError(f"No SuperLink answers at {address} {way}. Is it running, and is the port open from here?")
    return f"a SuperLink answers at {address}, {way}"


def _shake_hands(address: str, ca: Path | None) -> None:
    """Require that an encrypted connection can be made."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        with socket.create_connection((host, int(port)), 5) as plain, context.wrap_socket(plain, server_hostname=host):
            return
    except ssl.SSLCertVerificationError as error:
        fault = f"The server at {address} does not prove who it is: {error.verify_message}. Is root-certificates its ca.crt, and {host} in its certificate?"
    except ssl.SSLError as error:
        fault = f"The server at {address} does not speak TLS ({error.reason}). Is it one started with --insecure?"
    except (OSError, ValueError) as error:
        fault = f"Nothing answers at {address}: {error}. Is the SuperLink running, and is the port open from here?"
    raise InputError(fault)


def _tried(what: str, look: Callable[[], str]) -> CheckResult:
    """The result of a check that gives words, or raises an InputError with what to do."""
    try:
        return CheckResult(what, True, look())
    except InputError as error:
        return CheckResult(what, False, str(error))


def _joined(what: str, wrong: Iterable[str], right: str) -> CheckResult:
    texts = list(wrong)
    return CheckResult(what, not texts, " ".join(texts) or right)
