"""What the command line and a configuration file choose for a run; the command line overrides the file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from equipoise.cli.init import read as read_file
from equipoise.cli.options import SETTINGS, Values, pairs_of
from equipoise.system.text import read_value

if TYPE_CHECKING:
    from equipoise.records.meta import Content
    from equipoise.runs.configuration import Layer, RunConfig


log = logging.getLogger(__name__)
TYPED = "command line"  # an origin


@dataclass(frozen=True)
class Choices:
    """Everything chosen for one or several runs.

    Parameters
    ----------
    below, above : the layers that the settings of a method in ``of_methods`` override, and those that override them.
    of_methods : settings by method that ``equipoise tune`` chose: the learning rate, and hyper-parameters by ``part.name``.
    tuned : by method how they were chosen, see :class:`equipoise.records.meta.Tuned`.
    """

    below: tuple[Layer, ...]
    above: tuple[Layer, ...] = ()
    of_methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers but those of methods."""
        return (*self.below, *self.above)

    @property
    def table(self) -> Content:
        """What all methods share, as one table."""
        from equipoise.runs.configuration import stacked

        return stacked(self.layers)

    @property
    def only_method(self) -> str:
        """The method of a run that names none.

        Raises
        ------
        ValueError : the file has the settings of several methods.
        """
        if len(self.of_methods) > 1:
            raise ValueError(
                f"The file has settings of several methods. Name one with --method: {', '.join(self.of_methods)}."
            )
        return next(iter(self.of_methods), self.table["method"])

    def config(self, method: str, seed: int) -> RunConfig:
        """The configuration of a run of one of the methods, see :meth:`layered`."""
        return self.layered(method, seed)[0]

    def layered(self, method: str, seed: int) -> tuple[RunConfig, dict[str, tuple[Any, str]]]:
        """The configuration of a run of one of the methods, and the origins of its values; its label is as without what was chosen for it.

        Raises
        ------
        ValueError : see :func:`equipoise.runs.configuration.layered`.
        """
        from equipoise.core.rates import rate
        from equipoise.federation.method import parse
        from equipoise.runs import choosing
        from equipoise.runs.configuration import Layer, label_of, layered, overrides_of
        from equipoise.system import own_code

        named = {name: x for name, x in {"method": method, "seed": seed}.items() if x != self.table[name]}
        last = Layer(TYPED, named), Layer("", {"label": label_of(method, self.layers)})
        if method not in self.of_methods:
            return layered([*self.layers, *last])
        own, tuned = self.of_methods[method], cast(Any, {**self.tuned.get(method, {})})
        if seed in tuned.get("seeds", ()):
            raise ValueError(f"--seed {seed}: the settings of {method} were chosen with this seed. Take another.")
        parse(method, {name: value for name, value in own.items() if name != "lr"})  # or what is wrong with them
        conditions = tuned.pop("conditions", {})
        config, origins = layered([*self.below, Layer("equipoise tune", own), *self.above, *last])
        if not tuned:
            return config, origins
        changed = choosing.changed(tuned, conditions, config) if conditions else []
        changed += ["lr"] * ("lr" in own and rate(own["lr"]) != rate(config.lr))
        changed += [name for name, x in overrides_of(method, self.above).items() if own.get(name) != x]
        changed += ["its code"] * (tuned.get("code", "") != own_code.version(method))
        return replace(config, tuned={**tuned, "changed": changed}), origins


def read(given: Values, *, shared: bool = True) -> Choices:
    """Combine the options of a command with the configuration file that one of them names.

    Hyper-parameters of the command that a method does not have are left out if they are ``shared`` by several, else refused.

    Raises
    ------
    ValueError : a file that cannot be used, options that contradict each other, or that cannot be read.
    """
    from equipoise.runs.configuration import Layer
    from equipoise.system import hashes

    file = given["config_file"]
    table = {} if file is None else read_file(file)
    of_command, options = _settings(given["set_"])
    if (task := given["task"]) is not None:
        if "task" in options:
            raise ValueError(f"task is given twice: --task {task} and --set task={options['task']}. Leave one out.")
        options["task"] = task
    of_methods, tuned = table.pop("methods", {}), table.pop("tuned", {})
    if of_methods and not ("scenario" in table or given["scenario"] or given["data"]):
        raise ValueError(
            f"{file} was written from Python and names no data. Give the same ones with --scenario or --data."
        )
    if file is not None and of_methods:
        tuned = {name: {**each, "chosen": hashes.file_hash(file)} for name, each in tuned.items()}
    typed = Layer(TYPED, {**_fields(table, options, given), **of_command}, shared)
    usual = Layer("default", {name: SETTINGS[name].default for name in ("method", "seed")})
    settings, parts = (
        Layer(str(file), {name: x for name, x in table.items() if ("." in name) is dotted}, shared=True)
        for dotted in (False, True)
    )
    return Choices((usual, settings), (parts, typed), of_methods, tuned)


def warn_of_defaults(chosen: Choices, methods: Sequence[str]) -> None:
    """Say of which methods a file of chosen settings has none."""
    if chosen.tuned and (untuned := [method for method in methods if method not in chosen.of_methods]):
        names = ", ".join(chosen.of_methods)
        log.warning("%s: no settings were chosen; the file has those of %s.", ", ".join(untuned), names)


def check_parts(chosen: Choices, methods: Sequence[str]) -> None:
    """Refuse a hyper-parameter of the command whose part none of the methods has."""
    from equipoise.federation.method import MethodError, parse

    parts = {part for method in methods for part in parse(method).parts}
    for key in chosen.layers[-1].table:
        if "." in key and key.split(".", 1)[0] not in parts:
            raise MethodError(f"--set {key}: {key.split('.', 1)[0]!r} is not part of any of {', '.join(methods)}.")


def _fields(file: Mapping[str, Any], options: Mapping[str, str], given: Values) -> dict[str, Any]:
    """Fields of a configuration that the command line has; with a scenario, unless it is that of the file."""
    from equipoise.runs.configuration import called, option_value, whole

    chosen = {name: value for name, value in given.items() if value is not None and name in SETTINGS}
    scenario, data, network = given["scenario"], given["data"], given["network"]
    chosen |= {"data": whole(data)} if data else {}
    if scenario is None and "scenario" in file:
        chosen["scenario_options"] = {key: option_value(file["scenario"], key, text) for key, text in options.items()}
    else:
        scenario = scenario or ("own" if data else "digits")
        name, bracketed = called("--scenario", scenario, "digits(clients=8)")
        for option in options.keys() & bracketed.keys():
            by = "--task" if option == "task" and given["task"] else "--set"
            raise ValueError(f"{option} is given twice: in --scenario {scenario} and by {by}. Leave one out.")
        typed = {key: option_value(name, key, text) for key, text in options.items()}
        chosen |= {"scenario": name, "scenario_options": {**bracketed, **typed}}
    if network is not None:
        name, bracketed = called("--network", network, "resnet10(width=64)")
        chosen |= {"network": name, "network_options": bracketed}
    return chosen


def _settings(pairs: Sequence[str] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Read ``--set``: hyper-parameters by ``part.name``, and options of the scenario by name, as they are written."""
    either = "PART.NAME=VALUE, for example fedheal.tau=0.4, or NAME=VALUE for an option of the scenario, for example clients=8"
    values = pairs_of("--set", pairs, either)
    hyper_parameters = {key: read_value(text) for key, text in values.items() if "." in key}
    return hyper_parameters, {key: text for key, text in values.items() if "." not in key}
