"""Many clients on a Ray cluster, through Flower's simulation: the app of the sites, unchanged."""

import functools
import importlib
import logging
import os
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from equipoise.flower.deploy import project
from equipoise.flower.deploy.superlink import FlowerError
from equipoise.flower.internals import telemetry
from equipoise.system.files import make_private

MISSING = "Ray is not installed. Install it: pip install 'equipoise[flower-sim]'."
NEAR = {"poll": 0.05, "wait": 5.0, "deadline": 1e6}  # clients are local, and many wait for the same processors
SILENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}


@dataclass(frozen=True)
class Cluster:
    """Where clients are simulated, and what each of them takes: this decides how many train at the same time.

    Parameters
    ----------
    address : of a Ray cluster that runs, as ``ray.init`` takes it (``auto``: the one of this machine); None: one is started
        here, and stopped at the end.
    cpus, gpus : that a client takes, > 0 and >= 0; parts are possible.
    memory : GB that a client takes, >= 0; at 0 it is not counted.
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus <= 0 or self.gpus < 0 or self.memory < 0:
            raise ValueError(
                f"A client takes cpus > 0, gpus >= 0 and memory >= 0; found {self.cpus:g}, {self.gpus:g}, {self.memory:g}."
            )

    def share(self) -> dict[str, Any]:
        """What Flower reserves for a client on the cluster. Flower counts no memory, so CPUs are reserved in its place.

        Raises
        ------
        FlowerError : not one client fits.
        """
        import ray

        cpus = self.cpus
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        machines = [node["Resources"] for node in nodes if node["Alive"] and node["Resources"].get("CPU")]
        for machine in machines:
            if self.memory:
                room = int(machine.get("memory", 0.0) / (self.memory * 1e9))
                cpus = max(cpus, machine["CPU"] / room if room else machine["CPU"] + 1)
        if not any(machine["CPU"] >= cpus and machine.get("GPU", 0.0) >= self.gpus for machine in machines):
            each = ((m["CPU"], m.get("GPU", 0), m.get("memory", 0) / 1e9) for m in machines)
            have = "; ".join("{:g} CPUs, {:g} GPUs, {:.1f} GB".format(*of) for of in each)
            raise FlowerError(
                f"A client takes {self.cpus:g} CPUs, {self.gpus:g} GPUs and {self.memory:g} GB, and no machine of the Ray cluster "
                f"has that: {have or 'none is there'}. Let a client take less."
            )
        return {"num_cpus": cpus, "num_gpus": self.gpus}


@dataclass(frozen=True)
class Reference:
    """An app of a project's folder, by ``module:name``; a process loads it once, so a client's data are read once."""

    directory: Path
    name: str

    def load(self) -> Any:
        """The app.

        Raises
        ------
        FlowerError : it is not there.
        """
        return _loaded(self)

    def __call__(self, message: Message, context: Context) -> Message:
        """What the client app answers."""
        return cast(Message, self.load()(message, context))


@functools.cache
def _loaded(reference: Reference) -> Any:
    module, _, name = reference.name.partition(":")
    if str(reference.directory) not in sys.path:
        sys.path.insert(0, str(reference.directory))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        found = None
    where = getattr(found, "__file__", None)
    if found is None or where is None or not Path(where).resolve().is_relative_to(reference.directory):
        raise FlowerError(
            f"{reference.directory}: there is no module {module!r} here{f', but one in {where}' if where else ''}. Every "
            "machine of the cluster must see the project's folder at the same place."
        )
    if not hasattr(found, name):
        raise FlowerError(f"{where} has no {name!r}, which [tool.flwr.app.components] of pyproject.toml names.")
    return getattr(found, name)


@dataclass(frozen=True)
class Virtual:
    """A client app whose nodes have settings beside the number that Flower's simulation gives them."""

    app: ClientApp | Reference
    run_config: dict[str, Any]
    node_config: dict[str, Any]
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name, in their order, the settings of each
    states: Path | None = None

    def __call__(self, message: Message, context: Context) -> Message:
        """What the node answers."""
        k = int(context.node_config["partition-id"])
        name = list(self.sites)[k] if self.sites else f"site-{k}"
        own: dict[str, Any] = {"site": name, **self.node_config}
        if self.states is not None:
            make_private(self.states / name)
            own["state-dir"] = str(self.states / name)
        node = {**context.node_config, **own, **self.sites.get(name, {})}
        given = replace(context, node_config=node, run_config=dict(self.run_config))
        reply = self.app(message, given)
        context.state = given.state
        return reply


def simulate(
    server: ServerApp,
    client: ClientApp | Reference,
    clients: int,
    run_config: Mapping[str, Any] | None = None,
    *,
    sites: Mapping[str, Mapping[str, Any]] | None = None,
    states: Path | None = None,
    cluster: Cluster | None = None,
) -> None:
    """Run a Flower app with many clients on a Ray cluster.

    Parameters
    ----------
    server, client : Flower's, unchanged.
    clients : how many; the node config of the k-th has ``partition-id`` k, ``num-partitions``, ``threads`` and ``device``, and its name
        ``site``: ``site-k``, or the k-th of ``sites``.
    run_config : as in the app's ``pyproject.toml``.
    sites : more of the node config of each client, by its name, in their order.
    states : where each client has a folder for what it remembers; every machine of the cluster must see it at this place.
    cluster : where, and what a client takes.

    Raises
    ------
    FlowerError : the run failed, with the reason.
    ValueError : there are more or fewer ``sites`` than clients.
    """
    if sites and len(sites) != clients:
        raise ValueError(f"sites must name all {clients} clients; found {len(sites)}.")
    if find_spec("ray") is None:
        raise FlowerError(MISSING)
    cluster, config = cluster or Cluster(), dict(run_config or {})
    node = {"threads": max(1, int(cluster.cpus)), "device": "cuda" if cluster.gpus else "cpu"}
    virtual = Virtual(client, config, node, {name: dict(own) for name, own in (sites or {}).items()}, states)
    over, ended = threading.Event(), threading.Event()
    failures: list[Exception] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            server(cast(Grid, Watched(grid, over)), replace(context, run_config=config))
            ended.set()
        except Exception as error:
            failures.append(error)
            raise

    with _ray(cluster):
        share = cluster.share()
        from flwr.simulation import run_simulation

        try:
            run_simulation(app, cast(ClientApp, virtual), clients, backend_config={"client_resources": share})
        except Exception as error:
            raise FlowerError(f"The run failed: {failures[0] if failures else _first(error)}") from error
        finally:
            over.set()  # the server's thread would wait for clients that are no more
    if not ended.is_set():
        raise FlowerError("The run failed: the server app ended before its time, without a reason.")


class Watched:
    """A grid that says so when the simulation behind it is over."""

    def __init__(self, grid: Grid, over: threading.Event) -> None:
        self._grid, self._over = grid, over

    def __getattr__(self, name: str) -> Any:
        if self._over.is_set():
            raise FlowerError("the simulation is over.")
        return getattr(self._grid, name)


def run(
    directory: Path,
    clients: int,
    changes: Mapping[str, Any] | None = None,
    *,
    sites: Mapping[str, Mapping[str, Any]] | None = None,
    cluster: Cluster | None = None,
) -> Path:
    """Run a project's app with many clients on a Ray cluster; the run directory.

    Parameters
    ----------
    directory : of the project, as :func:`equipoise.flower.deploy.project.init` writes it.
    clients : how many, >= 1.
    changes : of its run configuration. ``min-sites`` is ``clients`` without a word here, ``poll``, ``wait`` and ``deadline``
        are what suits clients that are near.
    sites, cluster : as for :func:`simulate`.

    Raises
    ------
    FlowerError : there is no project, its settings cannot be used, or the run failed.
    """
    directory = directory.resolve()
    settings = project.settings(directory)
    config = {**settings, **NEAR, "min-sites": clients, **(changes or {})}
    config["run-dir"] = str((directory / str(config.get("run-dir", "runs/flower"))).resolve())
    if wrong := project.problems(config, list(sites or {})):
        raise FlowerError("Nothing was started. " + " ".join(wrong))
    about = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    parts = about["tool"]["flwr"]["app"]["components"]
    server = Reference(directory, parts["serverapp"]).load()
    client = Reference(directory, parts["clientapp"])
    client.load()  # what is wrong with it is better known before
    states = None if config.get("state-dir") else directory / "local" / "sites"
    simulate(server, client, clients, config, sites=sites, states=states, cluster=cluster)
    return Path(config["run-dir"])


@contextmanager
def _ray(cluster: Cluster) -> Iterator[None]:
    """Ray and Flower, without telemetry, and printing errors only.

    Raises
    ------
    FlowerError : Ray cannot be started, or is not at the address.
    """
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    import ray

    flower = logging.getLogger("flwr")
    level, telemetric = flower.level, telemetry.FLWR_TELEMETRY_ENABLED
    flower.setLevel(logging.ERROR)
    telemetry.FLWR_TELEMETRY_ENABLED = "0"
    try:
        if not ray.is_initialized():
            _start(cluster)
        yield
    finally:
        if ray.is_initialized():
            ray.shutdown()
        flower.setLevel(level)
        telemetry.FLWR_TELEMETRY_ENABLED = telemetric


def _start(cluster: Cluster) -> None:
    import ray

    try:
        address = cluster.address or "local"  # without, Ray would join a cluster that it finds
        ray.init(address, include_dashboard=None if cluster.address else False, logging_level=logging.ERROR)
    except Exception as error:
        where = f"at {cluster.address}" if cluster.address else "on this machine"
        raise FlowerError(f"Ray cannot be used {where}: {error}") from error


def _first(error: BaseException) -> BaseException:
    """What came first: Flower's own errors hide it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
