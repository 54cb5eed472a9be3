"""The configuration of a run: everything that it depends on, completed with what its scenario recommends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from equipoise import networks, scenarios
from equipoise.core.model import Model
from equipoise.core.solver import SGD, Adam, Solver
from equipoise.engines import ENGINES
from equipoise.federation import forecast as forecasts
from equipoise.federation.method import parse, read_value
from equipoise.scenarios import Scenario
from equipoise.system.errors import ExpectedError

COLLABORATIVE = ("digits-pow", "digits-cla", "digits-dir", "fedsac-cifar10", "fedsac-svhn", "fedsac-fashion")
FLOWER = "flower-inproc"  # the engine that asks clients through Flower's messages, in this process
PAIR = re.compile(  # NAME=VALUE at the beginning of a list; commas in brackets or quotes are part of the value
    r"""\s*(\w+)\s*=\s*+((?:[^,=()\[\]'"]|'[^']*'|"[^"]*"|\([^()]*\)|\[[^\[\]]*\])+)(?:,|$)"""
)


class RunConfig(BaseModel):
    """Everything a run depends on; ``config.toml`` holds it whole.

    ``seed`` decides the data, the first model and every random choice; ``threads`` is the number of processor threads,
    which changes the last bits of a result and is therefore fixed at the start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str
    label: str
    scenario: str
    scenario_options: dict[str, Any] = {}
    data: str | None = None
    network: str
    network_options: dict[str, Any] = {}
    rounds: int = Field(ge=1)
    seed: int = Field(ge=0, lt=2**63, default=0)
    epochs: int = Field(ge=1)
    steps: int | None = Field(ge=1, default=None)
    batch_size: int = Field(ge=1)
    participation: float = Field(gt=0, le=1, default=1.0)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(gt=0)
    momentum: float = Field(ge=0, lt=1, default=0.0)
    weight_decay: float = Field(ge=0, default=0.0)
    clip: float | None = Field(gt=0, default=None)
    engine: str = "auto"
    chunk: int | None = Field(ge=1, default=None)
    precision: Literal["full", "bf16"] = "full"
    quorum: float = Field(ge=0, le=1, default=0.5)
    threads: int = Field(ge=1, le=1024, default=1)
    device: str = "cpu"
    checkpoint_every: int = Field(ge=1, default=1)

    @property
    def weights(self) -> Path | None:
        """The file that the network starts from, if it does."""
        told = self.network_options.get("weights")
        return Path(told).expanduser() if isinstance(told, str) else None

    @property
    def solver(self) -> Solver:
        """The local optimiser."""
        if self.optimizer == "sgd":
            return SGD(self.lr, self.momentum, self.weight_decay, self.clip)
        return Adam(self.lr, weight_decay=self.weight_decay, decoupled=self.optimizer == "adamw", clip=self.clip)


class RunError(ExpectedError):
    """A run directory that cannot be used."""


def configure(
    method: str, scenario: str = "digits", *, overrides: Mapping[str, Any] | None = None, **choices: Any
) -> RunConfig:
    """Complete a configuration with what the scenario recommends.

    Parameters
    ----------
    method : text of the method; also its label.
    scenario : name of the scenario.
    overrides : hyper-parameters by part, ``{"fedheal.tau": 0.4}``.
    choices : fields of :class:`RunConfig`; None means not chosen.

    Raises
    ------
    ValueError : naming the field, what was expected and what was found.
    ForecastError : what the run takes for certain does not fit into the memory that is free.
    """
    chosen = {name: value for name, value in choices.items() if value is not None}
    if isinstance(weights := chosen.get("network_options", {}).get("weights"), str):
        chosen["network_options"] = {**chosen["network_options"], "weights": whole(weights)}
    made = parse(method, overrides)
    options = chosen.get("scenario_options", {})
    try:
        data = scenarios.load(scenario, int(chosen.get("seed", 0)), chosen.get("data"), **options)
    except TypeError as error:
        raise ValueError(f"scenario {scenario} cannot be made with {_listed(options)}: {error}.") from None
    if chosen.get("engine", "auto") not in ("auto", *ENGINES, FLOWER):
        raise ValueError(f"Unknown engine {chosen['engine']!r}. Choose one of: auto, {', '.join(ENGINES)}, {FLOWER}.")
    protocol = asdict(data.protocol)
    if "chunk" in chosen and chosen.get("engine", "auto") not in ("auto", "stacked"):
        raise ValueError(f"--chunk belongs to the engine stacked; {chosen['engine']} makes no stacks. Leave it out.")
    if "epochs" in chosen and "steps" in chosen:
        raise ValueError(f"--epochs {chosen['epochs']} and --steps {chosen['steps']}: give one of them.")
    if "epochs" in chosen:
        protocol["steps"] = None
    optimizer = chosen.get("optimizer", data.protocol.optimizer)
    if optimizer != data.protocol.optimizer and "sgd" in (optimizer, data.protocol.optimizer):
        # The rate of one means nothing to another.
        protocol |= {"momentum": 0.0, "lr": 0.01 if optimizer == "sgd" else 0.001}
    if optimizer != "sgd" and chosen.get("momentum"):
        raise ValueError(f"--momentum belongs to SGD; {optimizer} has its own. Leave it out.")
    label = method if not overrides else str(made)
    network = {"network": data.network, "network_options": dict(data.network_options)}
    named = {"method": str(made), "label": label, "scenario": scenario}
    fields = {**({} if "network" in chosen else network), **protocol, **chosen, **named}
    try:
        config = RunConfig(**fields)
    except ValidationError as error:
        raise ValueError("; ".join(sentence(e) for e in error.errors())) from None
    try:
        net = networks.build(
            config.network, data.shape, data.n_classes, **config.network_options
        )  # or a wrong name or option
    except TypeError as error:
        told = _listed(config.network_options)
        raise ValueError(
            f"network {config.network} cannot be made with {told}: {str(error).splitlines()[0]}."
        ) from None
    _check_device(config.device)
    made.check(config.solver)
    if made.needs & {"validation", "contribution"} and data.validation is None:
        raise ValueError(
            f"{made} measures on validation data of the server's own, and the scenario {scenario} holds none out. "
            f"Choose one that does: {', '.join(COLLABORATIVE)}."
        )
    check_memory(config, net, data)
    return config


def check_memory(config: RunConfig, net: nn.Module, data: Scenario) -> None:
    """Require that what a run takes for certain fits into the memory that is free.

    Raises
    ------
    ForecastError : it does not.
    """
    sizes = torch.tensor(data.sizes)
    forecasts.check(Model(net), parse(config.method), config.solver, sizes, config.participation, config.device)


def called(option: str, text: str, example: str) -> tuple[str, dict[str, Any]]:
    """Read ``name`` or ``name(key=value, ...)``, as ``option`` was given.

    Raises
    ------
    ValueError : brackets that are not such pairs.
    """
    name, bracket, inside = text.partition("(")
    rest, given = inside.strip(), dict[str, Any]()
    if not bracket:
        return name.strip(), {}
    closed, rest = rest.endswith(")"), rest[:-1].strip()
    while closed and rest and (pair := PAIR.match(rest)) and pair[1] not in given:
        given[pair[1]] = read_value(pair[2])
        rest = rest[pair.end() :]
    if rest or not closed:
        raise ValueError(f"{option} {text}: write NAME=VALUE in the brackets and close them, for example {example}.")
    return name.strip(), given


def whole(data: str) -> str:
    """The user's path as it holds in any folder; an address such as ``hub:owner/name`` stays."""
    return data if data.startswith("hub:") else str(Path(data).expanduser().resolve())


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"Unknown device {device!r}. Choose cpu or cuda.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} needs a CUDA build of PyTorch and a GPU; found none. Use cpu.")


def sentence(error: Any) -> str:
    """An error of pydantic in our words."""
    field = ".".join(str(part) for part in error["loc"]) or "configuration"
    return f"{field}: {error['msg'][0].lower()}{error['msg'][1:]}; found {error['input']!r}."
