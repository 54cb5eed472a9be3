"""The settings of a run across sites: the flat table of an app's ``pyproject.toml``, which ``flwr run -c`` overrides.

And the keys of a site's node config that Equipoise reads, which a site that runs and a trial beforehand check alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final

from equipoise.core.settings import RunSettings, Settings, check_settings, operating, simulated
from equipoise.system import logs, own_code
from equipoise.system.ranges import Options, Range, Text, check, choice, like, misfit, number, setting, text
from equipoise.system.suggestions import near


@dataclass(frozen=True, kw_only=True)
class AppSettings(Settings, RunSettings):
    """Settings of a run across sites; in ``pyproject.toml`` with hyphens: ``batch-size = 32``.

    What a simulation has, too, means what it means there; what may be None there is off at 0. ``sites`` names the sites in
    their order, separated by commas (empty: those that are there when at least ``min_sites`` are, in the natural order of
    their names). ``wait`` is how long to wait for them, ``deadline`` how long a site may take for an answer, ``poll`` the
    time between looks, all in seconds. ``run_dir`` is where the run is kept, on the server; a run that is there is gone on
    with. ``secure`` lets the server see sums of the sites' updates only. ``max_samples`` is the largest number of samples that a
    site may say it has: it may decide its weight. ``norm_limit`` is on here; a large number lets everything through.
    ``from_round`` (from 0) is done again, with all later ones, if the state before it is one of the ``keep_checkpoints`` that are kept.
    ``log`` is the form of log lines, here and at the sites. ``task`` is what labels mean at all nodes, as of :class:`equipoise.Federation`;
    empty: as the app's own function says.
    """

    secure: bool = setting(field(default=False), "whether the server sees only sums of updates")
    norm_limit: float | None = like(Settings, "norm_limit", 100.0)
    keep_checkpoints: int = like(RunSettings, "keep_checkpoints", 3)
    from_round: int | None = operating(number(None, 1, whole=True), "round, from 0, to repeat with all later ones")
    max_samples: int = operating(number(1_000_000, 1), "largest number of samples that a site may state")
    min_sites: int = operating(number(2, 1), "least number of sites")
    sites: str = operating(text(""), "names of the sites in their order, with commas")
    wait: float = operating(number(600.0, 0, above=True, below=True), "longest wait for the sites, in seconds")
    deadline: float = operating(number(600.0, 0, above=True, below=True), "longest time of an answer, in seconds")
    poll: float = operating(number(0.3, 0, above=True, below=True), "time between looks, in seconds")
    run_dir: str = operating(text("runs/flower"), "folder of the run, on the server")
    log: str = operating(choice(*logs.FORMS), "form of log lines, here and at the sites")
    task: str = setting(text(""), "what labels mean at all nodes; empty: as the app's own function states")

    def __post_init__(self) -> None:
        check_settings(self)
        if any(own_code.references(f"{self.method},{self.optimizer},{self.task}")):
            raise ValueError(
                f"method = {self.method!r}, optimizer = {self.optimizer!r}, task = {self.task!r}: sites run no code that a server names. Give "
                "your own rules in the app, to make_client_app(task, method=MyRule()) and make_server_app(task, method=MyRule()), and your own "
                "task in its function, Task(..., task=MyTask())."
            )
        if self.task:
            from equipoise.flower.site.task import meaning  # torch, which is slow to load

            meaning(self.task)
        for name in simulated(self):
            raise ValueError(f"{_key(name)} is for simulation: what sites do, they do themselves. Leave it out.")
        if not self.run_dir:
            raise ValueError("run-dir must be the path of a directory; found ''.")

    @staticmethod
    def of(config: Mapping[str, Any]) -> AppSettings:
        """From a run's configuration, which may also hold other keys of the app.

        Raises
        ------
        ValueError : a value is out of its range, or a key is probably misspelt.
        """
        own = {_key(f.name): f for f in fields(AppSettings) if "local" not in f.metadata["marks"]}
        if "measures" in config:
            raise ValueError(
                "measures: sites measure what their own task says, Task(measures=...). Leave it out of the run's configuration."
            )
        values: dict[str, Any] = {}
        for key, value in config.items():
            if f := own.get(key):
                values[f.name] = None if f.default is None and value == _off(f) else value
                if fault := misfit(f, values[f.name]):
                    raise ValueError(f"The run's configuration cannot be used: {key} {fault}.")
            elif meant := near(key, own, cutoff=0.85):
                raise ValueError(f"Unknown setting {key!r}.{meant} A key of your own needs a name less like it.")
        return AppSettings(**values)

    @property
    def names(self) -> list[str]:
        """The names in ``sites``."""
        return [name.strip() for name in self.sites.split(",") if name.strip()]

    def table(self) -> dict[str, Any]:
        """The settings as in ``pyproject.toml``, where a value is never None."""
        own = [f for f in fields(self) if {"local", "simulated"}.isdisjoint(f.metadata["marks"])]
        return {_key(f.name): _off(f) if (value := getattr(self, f.name)) is None else value for f in own}

    def config(self) -> dict[str, Any]:
        """The settings on which the result depends, for ``config.toml``."""
        names = {_key(f.name): f.name for f in fields(self) if "operation" not in f.metadata["marks"]}
        decisive = {names[key]: value for key, value in self.table().items() if key in names}
        if not self.task:  # as in runs of earlier versions
            del decisive["task"]
        return {**decisive, "scenario": "sites", "engine": "flower"}


def _off(f: Field[Any]) -> float | str:
    """The value that represents None, of the type of the setting."""
    allowed = f.metadata["allowed"]
    return (0 if allowed.whole else 0.0) if isinstance(allowed, Range) else ""


def _key(name: str) -> str:
    return name.replace("_", "-")


# of a site's own node config
KEYS: Final[Mapping[str, Range | Options | Text]] = {
    **dict.fromkeys(("site", "state-dir", "device", "peers"), Text()),
    **dict.fromkeys(("threads", "partition-id", "num-partitions"), Range(0, whole=True)),  # the last two are Flower's
    **dict.fromkeys(("least-group", "least-count", "min-batch"), Range(1, whole=True)),
    "max-steps": Range(1),
    "max-decay": Range(0),
    "max-epsilon": Range(0, above=True, below=True),
    "delta": Range(0, 1, above=True, below=True),
    "secure": Options((True, False)),
    "least-sites": Range(2, whole=True),
    "most-weight": Range(0, 1),
    "log": Options(logs.FORMS),
}
OWN: Final = "data"  # keys of the user's own function begin with it


def faults(node_config: Mapping[str, Any]) -> dict[str, str]:
    """What is wrong in a node config, by key: a value out of its range, or a key that is neither of :data:`KEYS` nor begins with ``data``."""
    wrong: dict[str, str] = {}
    for key, value in node_config.items():
        if key in KEYS:
            try:
                check(key, value, KEYS[key])
            except ValueError as error:
                wrong[key] = str(error)
        elif not key.startswith(OWN):
            wrong[key] = f"unknown.{near(key, KEYS)} A key of your own function begins with {OWN}, such as {OWN}-{key}."
    return wrong
