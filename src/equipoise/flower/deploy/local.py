"""A federation of real processes on this machine: a SuperLink and a SuperNode for each site, on loopback, ended with all they started."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from equipoise.flower.deploy.certificates import key_problems, make_certificates, problems, site_names
from equipoise.flower.deploy.superlink import Outcome, SuperLink, environment, last_lines, program
from equipoise.system.errors import RunError
from equipoise.system.files import locked, make_private, open_private, write_atomically

HOST = "127.0.0.1"
CONNECTION = "local"
LINK = "superlink"
ONLINE = "SuperNode ID"  # what a SuperNode prints once the SuperLink knows it


class LocalFederation:
    """A SuperLink and SuperNodes as processes of this machine, as long as a ``with`` block lasts.

    Everything they write goes to ``directory``, for its owner only: logs, Flower's home and database, certificates, and under ``sites/`` what
    each site remembers. Nothing outside this machine can reach them, and no other SuperLink is touched.

    Parameters
    ----------
    directory : made if missing; may be used again, by one federation at a time.
    app : the folder of the Flower app.
    sites : names of the sites; a number n is for ``site-0`` ... ``site-<n-1>``.
    tls : encrypt, and let in only sites whose keys are registered; certificates are made where missing.
    node_config : by site, its node config besides ``site``, ``state-dir``, ``partition-id`` and
        ``num-partitions``.
    patience : seconds for a process to be ready.
    variables : more environment variables of all processes.

    Raises
    ------
    RunError : a process did not start, with the last lines of its log; or another federation uses the directory.
    """

    def __init__(
        self,
        directory: str | Path,
        app: str | Path,
        sites: int | Sequence[str] = 3,
        *,
        tls: bool = False,
        node_config: Mapping[str, Mapping[str, Any]] | None = None,
        patience: float = 60.0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        home = Path(directory).resolve()
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # the sites share this machine's cores
        more = {**threads, **(variables or {}), "FLWR_HOME": str(home / "home")}
        self.directory, self.variables, self.patience = home, environment(**more), patience
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.app = Path(app).resolve()
        self.sites = site_names(sites)
        self.tls, self.certificates = tls, home / "certs"
        self._node_config = node_config or {}
        self.superlink = SuperLink(CONNECTION, self.variables)
        self._ports: list[int] = []
        self._lock = ExitStack()

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self._ports[0]}"

    def __enter__(self) -> LocalFederation:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the SuperLink, register the sites where keys are used, start their SuperNodes, and wait for all."""
        make_private(self.directory / "home")
        try:
            self._lock.enter_context(locked(self.directory / ".lock"))
        except BlockingIOError as error:
            raise RunError(f"Process {error} runs a federation in {self.directory}. Stop it first.") from None
        self._ports = free_ports(1 + len(self.sites))
        if self.tls:
            certify(self.certificates, self.sites)
        connection: dict[str, Any] = {"address": self.address}
        connection |= {"root-certificates": str(self.certificates / "ca.crt")} if self.tls else {"insecure": True}
        settings = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        write_atomically(self.directory / "home/config.toml", tomli_w.dumps(settings), private=True)
        for old in self.directory.glob("superlink.db*"):  # of another time, with sites that are not there now
            old.unlink()
        self.start_server()
        for site in self.sites if self.tls else ():
            key = str(self.certificates / f"{site}.pub")
            self.superlink.call("supernode", "register", key, CONNECTION, "--name", site)
        for site in self.sites:
            self.start_site(site, wait=False)
        for site in self.sites:
            self._wait_for_site(site)

    def start_server(self) -> None:
        """Start the SuperLink, also again: it keeps its port, and what it knows is in its database."""
        files = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
        secure = [f"--ssl-{flag}={self.certificates / name}" for flag, name in files.items()]
        arguments = [f"--host={HOST}", f"--port={self._ports[0]}", f"--database={self.directory / 'superlink.db'}"]
        arguments += ["--disable-runtime-dependency-installation"]
        arguments += [*secure, "--enable-supernode-auth"] if self.tls else ["--insecure"]
        self.launch(LINK, "flower-superlink", arguments)
        self.wait(LINK, lambda: healthy(self.address, self.certificates / "ca.crt" if self.tls else None, self.tls))

    def start_site(self, site: str, *, key: str | Path | None = None, wait: bool = True) -> None:
        """Start a site's SuperNode, also again; ``key`` is the private key it logs in with (default: its own)."""
        number = self.sites.index(site)
        state = self.directory / "sites" / site
        make_private(state)
        node_config: dict[str, Any] = {"site": site, "partition-id": number, "num-partitions": len(self.sites)}
        node_config |= {"state-dir": str(state), **self._node_config.get(site, {})}
        settings = write_atomically(self.directory / f"{site}.toml", tomli_w.dumps(node_config), private=True)
        arguments = [f"--superlink={self.address}", f"--port={self._ports[1 + number]}", f"--node-config={settings}"]
        login = f"--auth-supernode-private-key={key or self.certificates / site}"
        secure = [f"--root-certificates={self.certificates / 'ca.crt'}", login]
        arguments += secure if self.tls else ["--insecure"]
        self.launch(site, "flower-supernode", arguments)
        if wait:
            self._wait_for_site(site)

    def run(
        self, config: Mapping[str, Any], *, limit: float | None = None, watch: Callable[[], None] = lambda: None
    ) -> Outcome:
        """Run the app with some values of its run configuration changed, and wait for its end.

        Parameters
        ----------
        config : run configuration by key; the app's ``pyproject.toml`` must know the keys.
        limit : seconds after which the run is stopped.
        watch : called a few times per second.

        Raises
        ------
        RunError : the run could not be submitted, took too long, or a process died meanwhile.
        """
        run = self.superlink.submit(self.app, config)

        def look() -> None:
            self.check(LINK)
            watch()

        try:
            return self.superlink.follow(run, self.directory / "run.log", look, limit)
        except RunError:
            self.check(LINK)
            raise

    def named(self, text: str) -> str:
        """A text with the names of sites instead of their numbers on the SuperLink, which knows names of registered keys only."""
        for site in self.sites:
            if match := re.search(rf"{ONLINE}: (\d+)", self.log(site)):
                text = text.replace(f"node {match[1]} ({site})", site).replace(f"node {match[1]}", site)
        return text

    def _wait_for_site(self, site: str) -> None:
        self.wait(site, lambda: ONLINE in self.log(site))

    # its programs, each with its own log
    def launch(self, name: str, program_name: str, arguments: Iterable[str]) -> None:
        """Start Flower's program ``program_name`` under a name."""
        with open_private(self.directory / f"{name}.log") as file, _uninterrupted():
            self._running[name] = subprocess.Popen(
                [program(program_name), *arguments],
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C is for this program, which then stops them in order
            )

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until a process is ready.

        Raises
        ------
        RunError : it has ended, or takes too long; with the last lines of its log.
        """
        limit = time.monotonic() + self.patience
        while not ready():
            self.check(name)
            if time.monotonic() > limit:
                raise RunError(f"{name} was not ready in {self.patience:g} s. {self._end_of(name)}")
            time.sleep(0.1)

    def check(self, name: str) -> None:
        """Raise RunError, with the last lines of its log, if a process has ended."""
        if name in self._running and self._running[name].poll() is not None:
            raise RunError(f"{name} ended with status {self._running[name].returncode}. {self._end_of(name)}")

    def log(self, name: str) -> str:
        """What a process (``"superlink"``, a site, or ``"run"``: the app on the server) has printed so far."""
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _end_of(self, name: str) -> str:
        return f"The end of {self.directory / f'{name}.log'}:\n{last_lines(self.log(name))}"

    def kill(self, name: str) -> None:
        """End a process (``"superlink"`` or a site) at once, and all that it started, as a power cut would."""
        self._end([name], descendants(self._running[name].pid))

    def _end(self, names: Sequence[str], started: Sequence[psutil.Process]) -> None:
        for name in names:
            process = self._running.pop(name)
            process.kill()
            process.wait()
        end(started)

    def stop(self) -> None:
        """Stop all processes, politely, then at once, and let others use the directory.

        The sites come first, as those that lose their SuperLink would only try again.
        """
        with self._lock:
            names = sorted(self._running, key=lambda name: name == LINK)
            started = [process for name in names for process in descendants(self._running[name].pid)]
            try:
                for group in (names[:-1], names[-1:]):
                    for name in group:
                        self._running[name].terminate()
                    limit = time.monotonic() + 10
                    for name in group:
                        with suppress(subprocess.TimeoutExpired):
                            self._running[name].wait(max(0.1, limit - time.monotonic()))
            finally:
                self._end(names, started)


def certify(certificates: Path, sites: Sequence[str]) -> None:
    """Make the certificates and keys that are missing, and check all.

    Raises
    ------
    RunError : one that is there cannot be used.
    """
    missing = [site for site in sites if not (certificates / site).exists()]
    server = certificates / "server.pem"
    hosts = () if server.exists() else ("localhost", HOST)
    if missing or hosts:
        make_certificates(certificates, hosts, missing, days=365)
    wrong = problems(server, certificates / "ca.crt", HOST)
    wrong += [text for site in sites for text in key_problems(certificates / site)]
    if wrong:
        raise RunError(f"{' '.join(wrong)} Or delete {certificates} to make new ones.")


def free_ports(n: int) -> list[int]:
    """Free ports of the loopback interface."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for listener in sockets:
            listener.bind((HOST, 0))
        return [int(listener.getsockname()[1]) for listener in sockets]


def healthy(address: str, ca: Path | None, secure: bool) -> bool:
    """Whether a SuperLink answers at ``host:port``; if ``secure`` over TLS, with the certificate of its authority if it is a private one."""
    context = ssl.create_default_context(cafile=None if ca is None else str(ca)) if secure else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"http{'s' * secure}://{address}/health", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM while a program starts: one that is not known yet would be left running."""
    if threading.current_thread() is not threading.main_thread():  # signals do not come here
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def descendants(pid: int) -> list[psutil.Process]:
    """A process and all that it started, the youngest first; none if it has ended.

    Flower starts each app in a new session, which a signal to a process group does not reach.
    """
    try:
        parent = psutil.Process(pid)
        return [*reversed(parent.children(recursive=True)), parent]
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[psutil.Process], patience: float = 5.0) -> None:
    """Kill processes, but none that has its number from one of them, and see them gone."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, patience)
