"""The configuration of a run: everything that it depends on, completed with what its scenario recommends."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from equipoise import methods, networks, scenarios
from equipoise.core import rates, task
from equipoise.core.settings import OF_SOLVER, RunSettings, Settings, made, operating
from equipoise.data.tables.options import several
from equipoise.engines import ENGINES, distributed
from equipoise.federation.method import Method, parse
from equipoise.federation.stopping import NONE
from equipoise.metrics import groups
from equipoise.metrics.classification import divided
from equipoise.records.meta import Content
from equipoise.scenarios.scenario import Protocol
from equipoise.system import calls, devices, gpus, own_code, places, queues
from equipoise.system.errors import RunError as RunError  # also by this name, with what is refused here
from equipoise.system.ranges import marked, number, setting, text
from equipoise.system.suggestions import some
from equipoise.system.text import read_value

FLOWER = "flower-inproc"  # the engine that asks clients through Flower's messages, in this process
sealing = partial(setting, marks="newer data apart")


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings, RunSettings):
    """Everything a run depends on; ``config.toml`` holds it whole.

    ``seed`` decides the data, too; ``threads`` changes the last bits of a result and is therefore fixed at the start.
    """

    label: str = setting(text(), "what tables call the run", marks="shown apart")
    scenario: str = setting(text(), "data and their division", marks="data")
    scenario_options: dict[str, Any] = setting(field(default_factory=dict), "their options", marks="data apart")
    data: str | None = setting(text(None), "the user's files, from which they are made", marks="data apart")
    network: str = text()
    network_options: dict[str, Any] = field(default_factory=dict)
    checkpoint_every: int = operating(number(1, 1), "rounds from one checkpoint to the next")
    sealed: bool = sealing(field(default=False), "no test data, as settings are being chosen")
    rewarded: bool = sealing(field(default=False), "of these, by what clients get for their data")
    left_out: str | None = sealing(text(None), "client whose samples are the test set, for the same")
    own_code: dict[str, str] | None = setting(field(default=None), "SHA-256 of files of the user's code", marks="apart")
    # how the settings were chosen, see `equipoise.records.meta.Tuned`; what reports for readers outside state, see `About` there
    tuned: dict[str, Any] | None = setting(field(default=None), "how settings were chosen", marks="about apart")
    report: dict[str, str] | None = setting(field(default=None), "words of a report", marks="about apart")
    origins: dict[str, str] | None = setting(
        field(default=None, compare=False),
        "who chose settings that others than the scenario chose",
        marks="about apart",
    )

    @property
    def weights(self) -> Path | None:
        """The file that the network starts from, if it does."""
        path = self.network_options.get("weights")
        return Path(path).expanduser() if isinstance(path, str) else None

    def table(self) -> Content:
        """Every setting by name, what the run is about first."""
        about = dict.fromkeys(("method", *RunConfig.__annotations__))
        return about | asdict(self)

    def key(self) -> Content:
        """The same without settings that are newer than some runs, where they are as they were, and without what only reports say.

        By this a run is found again.
        """
        usual = {name: getattr(RunConfig, name) for name in marked(RunConfig, "newer")}
        return {name: v for name, v in self.table().items() if usual.get(name, ...) != v and name not in ABOUT}


ABOUT = marked(RunConfig, "about")


@dataclass(frozen=True)
class Layer:
    """What one origin chooses for a run.

    Parameters
    ----------
    origin : in words, such as ``"command line"``.
    table : fields of :class:`RunConfig` by name, and hyper-parameters by ``part.name``; of the fields, None means not chosen.
    shared : several methods have the layer, so hyper-parameters whose part a method lacks are left out.
    """

    origin: str
    table: Mapping[str, Any]
    shared: bool = False


def stacked(layers: Iterable[Layer]) -> Content:
    """The layers as one table: a later one overrides the earlier ones, and a scenario their data as well."""
    table: Content = {}
    for layer in layers:
        chosen = {name: value for name, value in layer.table.items() if value is not None or "." in name}
        if "scenario" in chosen:
            table = {name: value for name, value in table.items() if name not in ("data", "scenario_options")}
        elif "scenario_options" in chosen:
            chosen["scenario_options"] = {**table.get("scenario_options", {}), **chosen["scenario_options"]}
        table |= chosen
    return table


def overrides_of(method: str, layers: Iterable[Layer]) -> Content:
    """The hyper-parameters of a method in some layers, by ``part.name``."""
    parts = parse(method).parts
    return {
        name: value
        for layer in layers
        for name, value in layer.table.items()
        if "." in name and (not layer.shared or name.split(".", 1)[0] in parts)
    }


def label_of(method: str, layers: Iterable[Layer]) -> str:
    """What a run is called: the method as it was written, or with its hyper-parameters if layers have any."""
    overrides = overrides_of(method, layers)
    return own_code.short(str(parse(method, overrides)) if overrides else method)


def configure(method: str, scenario: str = "digits", *, overrides: Content | None = None, **choices: Any) -> RunConfig:
    """Complete a configuration with what the scenario recommends; no data are made or read for it.

    Parameters
    ----------
    method : text of the method; also its label.
    scenario : name of the scenario.
    overrides : hyper-parameters by part, ``{"fedheal.tau": 0.4}``.
    choices : fields of :class:`RunConfig`; None means not chosen.

    Raises
    ------
    ValueError : naming the field, what was expected and what was found.
    """
    table = {"method": method, "scenario": scenario, **choices, **(overrides or {})}
    return layered([Layer("arguments", table)])[0]


def layered(layers: Sequence[Layer]) -> tuple[RunConfig, dict[str, tuple[Any, str]]]:
    """The one way to a configuration: defaults, what the scenario recommends, then some layers; and each value with its origin.

    Parameters
    ----------
    layers : each overrides those before; together they name a method and a scenario.

    Raises
    ------
    ValueError : naming the field, what was expected and what was found.
    """
    table = stacked(layers)
    method, scenario = table["method"], table["scenario"]
    chosen = _with_whole_paths({name: x for name, x in table.items() if "." not in name and name != "method"})
    rules = parse(method, overrides := overrides_of(method, layers))
    _check_options(scenario, chosen.get("scenario_options", {}), rules.parts)
    data = _described(scenario, chosen)
    if (engine := chosen.get("engine", "auto")) not in ("auto", *ENGINES, FLOWER):
        raise ValueError(f"Unknown engine {engine!r}. Choose one of: auto, {', '.join(ENGINES)}, {FLOWER}.")
    recommended = training_of(data.protocol, chosen)
    if "network" not in chosen:
        recommended |= {"network": data.network, "network_options": dict(data.network_options)}
    texts = (*(chosen.get(name, "") for name in ("network", "data", "optimizer")), data.task)
    code = own_code.hashes(str(rules), chosen.get("measures"), *(own_code.split(each)[0] for each in texts)) or None
    if (positive := _positive(data, chosen)) is not None:
        recommended["positive"] = positive
    named = {"method": str(rules), "own_code": code, "label": chosen.get("label") or label_of(method, layers)}
    config = made(RunConfig, {**recommended, **chosen, **named})
    net = networks.build(config.network, data.shape, data.outputs, **config.network_options)
    config = _placed(config, chosen)
    _check_selection(config, chosen, rules)
    lr = rates.rate(config.solver.lr)
    rates.check_rounds(lr, config.rounds)
    if isinstance(lr, rates.Layers):
        lr.check([name for name, _ in net.named_parameters()])
    _check_rules(rules, config, data)
    values = {**config.table(), **overrides}
    origins = dict.fromkeys(values, "default") | dict.fromkeys(recommended, "scenario")
    for layer in layers:
        origins |= {name: layer.origin for name in stacked([layer]) if name in table}
    chosen_by = {k: Path(origin).name for k, origin in origins.items() if origin not in ("", "default", "scenario")}
    return replace(config, origins=chosen_by), {name: (value, origins[name]) for name, value in values.items()}


def _placed(config: RunConfig, chosen: Content) -> RunConfig:
    """A configuration whose devices are there; refuse GPUs that are not, or beside another statement of where runs are trained."""
    if config.devices is not None:
        if stated := [n for n, free in (("on", None), ("device", "cuda")) if chosen.get(n) not in (None, free)]:
            raise ValueError(f"devices states where runs are trained, and {stated[0]} does, too. Leave one out.")
        for gpu in gpus.gpus(config.devices):
            devices.usable_device(gpu.name)
        return replace(config, device="cuda")  # which is the only one that its process sees
    if config.on is None:
        devices.usable_device(config.device)
    elif chosen.get("engine") == distributed.NAME:
        raise ValueError(f"--on {config.on}: torchrun starts the processes of engine distributed. Leave one out.")
    else:  # the devices are those of another place
        queues.launch_of(config.on)
    return config


def _check_rules(rules: Method, config: RunConfig, data: scenarios.Description) -> None:
    """Require the solver, the task and the data that rules need."""
    rules.check(config.solver)
    rules.require(task.task_of(data.task))
    if rules.needs & {"validation", "contribution"} and not data.has_server_validation:
        share = "server_validation" in scenarios.SCENARIOS[config.scenario].options
        todo = f"Choose one that does: {', '.join(scenarios.with_server_validation())}."
        raise ValueError(
            f"{rules} measures on validation data of the server's own, and the scenario {config.scenario} holds none out. "
            f"{'Give it a share of the training samples: --set server_validation=0.1' if share else todo}"
        )


def _with_whole_paths(chosen: Content) -> Content:
    """What was chosen, with paths and references to the user's code as they hold in any folder."""
    if measures := several(chosen.get("measures", "")):
        chosen = {**chosen, "measures": ", ".join(measures)}
    if "data" in chosen:
        chosen = {**chosen, "data": whole(str(chosen["data"]))}
    chosen = places.replaced(places.replaced(chosen, places.PATHS, whole), places.CODE, own_code.whole)
    divided(several(chosen.get("measures", "")))  # or a measure that is not known
    return chosen


def _check_options(scenario: str, options: Content, parts: Sequence[str]) -> None:
    """Refuse a hyper-parameter without its part, which would be an option of the scenario."""
    if scenario not in scenarios.SCENARIOS:
        return
    for option, value in options.items():
        having = [name for name, entry in methods.METHODS.items() if option in entry.defaults]
        if option not in scenarios.SCENARIOS[scenario].options and having:
            part = next((name for name in parts if name in having), "PART")
            written = shlex.quote(f"{part}.{option}={value}")
            raise ValueError(
                f"{option}={value}: this is no option of scenario {scenario!r}, but a hyper-parameter of {some(having, 3)}. Write the part "
                f"of the method before it: --set {written}."
            )


def _described(scenario: str, chosen: Content) -> scenarios.Description:
    """What the scenario is, and in ``chosen`` the folder that it reads, if it reads one."""
    options = chosen.get("scenario_options", {})
    try:
        if (folder := scenarios.folder(scenario, chosen.get("data"))) is not None:
            chosen["data"] = str(folder)
        data = scenarios.describe(scenario, chosen.get("data"), **options)
        task.task_of(data.task)  # or a wrong option
    except TypeError as error:
        written = ", ".join(f"{name}={value}" for name, value in options.items())
        raise ValueError(f"scenario {scenario} cannot be made with {written}: {error}.") from None
    return data


def training_of(protocol: Protocol, chosen: Content) -> Content:
    """How to train: what the scenario recommends, as far as it holds with what was chosen."""
    recommended = asdict(protocol)
    if "epochs" in chosen and "steps" in chosen:
        raise ValueError(f"--epochs {chosen['epochs']} and --steps {chosen['steps']}: give one of them.")
    if "epochs" in chosen:
        recommended["steps"] = None
    optimizer = chosen.get("optimizer", protocol.optimizer)
    if optimizer != protocol.optimizer and "sgd" in (optimizer, protocol.optimizer):
        # The rate of one means nothing to another.
        recommended |= {"momentum": 0.0, "lr": 0.01 if optimizer == "sgd" else 0.001}
    if own_code.split(optimizer)[0]:
        for name in sorted({*OF_SOLVER} - {"lr", *own_code.takes(optimizer)}):
            if given := chosen.get(name):
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} {given}: {optimizer} takes no {name}. Leave it out.")
            recommended[name] = getattr(RunSettings, name)
    elif optimizer != "sgd" and chosen.get("momentum"):
        raise ValueError(f"--momentum belongs to SGD; {optimizer} has its own. Leave it out.")
    return recommended


def _positive(data: scenarios.Description, chosen: Content) -> object:
    """The positive class, as chosen or as the data say; None if neither does."""
    own = data.positive
    if (positive := chosen.get("positive", own)) is None:
        return None
    if own is not None and positive != own:
        raise ValueError(f"The positive class is given twice: {positive} and, for the data, {own}. Leave one out.")
    if data.n_classes == 0:
        raise ValueError(f"--positive {positive} names a class, and the labels are numbers to predict. Leave it out.")
    if data.n_classes > 1:
        groups.positive_class(positive, data.classes or tuple(map(str, range(data.n_classes))))
    return positive


def _check_selection(config: RunConfig, chosen: Content, rules: Method) -> None:
    """Require validation where a round is chosen by it, and clients that keep their data where a method lets them."""
    given = [f"--select {config.select}"] * (config.select != "last")
    given += [f"--patience {config.patience}"] * (config.patience is not None)
    if given and not config.validation:
        raise ValueError(f"{given[0]} {NONE}. Add --validation 0.2, for example.")
    if config.select != "last" and config.engine == FLOWER:
        raise ValueError(f"--select {config.select}: sites keep no state of an earlier round. Choose another engine.")
    if "stop_on" in chosen and not config.patience:
        measure = config.stop_on
        raise ValueError(f"--stop-on {measure} is the measure of --patience. Add --patience 10, or leave it out.")
    if not rules.sharing.clients and config.engine == FLOWER:
        raise ValueError(
            f"{rules} needs the data of all clients in one place, and sites keep theirs. Choose another engine."
        )


def option_value(scenario: str, name: str, text: str) -> Any:
    """Read an option of a scenario as the command line has it: names stay as they are written, 007 and 1e3 too.

    Quoted text and lists are read as Python writes them; a list of names may also be text with commas.
    """
    kinds = scenarios.SCENARIOS[scenario].kinds if scenario in scenarios.SCENARIOS else {}
    kind, word = kinds.get(name, ""), text.strip() or text
    if not kind.startswith("str") or "float" in kind:
        return read_value(text)
    if word == "none":
        return None
    if word.startswith(("'", "[", "(")) or (word.startswith('"') and "Sequence" not in kind):
        given = read_value(word)
        return given if isinstance(given, str | list | tuple) else word
    return word


def called(option: str, text: str, example: str) -> tuple[str, Content]:
    """Read ``name`` or ``name(key=value, ...)``, as ``option`` was given.

    Raises
    ------
    ValueError : brackets that are not such pairs.
    """
    reference, options = own_code.split(text)
    call = calls.read(options)
    name, pairs = reference + call.name, [*filter(any, call.pairs or ())]
    written = all(key.isidentifier() and value and value[0] != "=" for key, value in pairs)
    if not call.complete or not written or len(dict(pairs)) < len(pairs):
        raise ValueError(f"{option} {text}: write NAME=VALUE in the brackets and close them, for example {example}.")
    return name, {key: option_value(name, key, value) for key, value in pairs}


def whole(data: str, folder: Path | None = None) -> str:
    """The user's path, relative to ``folder``, here by default, as it holds in any folder; an address such as ``hub:owner/name`` stays."""
    if own_code.is_reference(data):
        return own_code.whole(data, folder)
    return data if data.startswith(places.HUB) else places.absolute((folder or Path()) / Path(data).expanduser())
