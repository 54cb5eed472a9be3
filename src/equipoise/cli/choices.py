"""What the command line and a configuration file choose for a run; the command line overrides the file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from equipoise.cli.init import read as read_file
from equipoise.cli.options import SETTINGS, Values, pairs_of

if TYPE_CHECKING:
    from equipoise.runs.configuration import RunConfig


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choices:
    """Everything chosen for one or several runs.

    Parameters
    ----------
    method : the method of the file.
    seed : the seed of the file.
    of_file : hyper-parameters in the file, by ``part.name``.
    of_command : hyper-parameters given by ``--set``, by ``part.name``.
    fields : fields of :class:`equipoise.runs.directory.RunConfig`.
    of_methods : settings by method that ``equipoise tune`` chose: the learning rate, and hyper-parameters by ``part.name``.
    tuned : by method how they were chosen, see :class:`equipoise.records.meta.Tuned`.
    rated : whether the command has a learning rate, which takes the place of those that were chosen.
    """

    method: str
    seed: int
    of_file: Mapping[str, Any]
    of_command: Mapping[str, Any]
    fields: Mapping[str, Any]
    of_methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)
    rated: bool = False

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
        return next(iter(self.of_methods), self.method)

    def config(self, method: str, seed: int, *, every: bool = False) -> RunConfig:
        """The configuration of a run of one of the methods; its label is as without what was chosen for it.

        Hyper-parameters of the command that the method does not have are refused if ``every``, else left out.

        Raises
        ------
        ValueError : see :func:`equipoise.runs.configuration.configure`.
        """
        from equipoise.runs.configuration import configure

        of_file = for_parts(self.of_file, method)
        overrides = {**of_file, **(self.of_command if every else for_parts(self.of_command, method))}
        config = configure(method, overrides=overrides, seed=seed, **self.fields)
        if method not in self.of_methods:
            return config
        from equipoise.core.rates import rate
        from equipoise.runs import choosing
        from equipoise.system import own_code

        own, tuned = {**self.of_methods[method]}, cast(Any, {**self.tuned.get(method, {})})
        lr, conditions = own.pop("lr", None), tuned.pop("conditions", {})
        changed = choosing.changed(tuned, conditions, config) if conditions else []
        if self.rated or lr is None:
            changed += ["lr"] * (lr is not None and rate(lr) != rate(config.lr))
            lr = config.lr
        changed += [name for name, value in overrides.items() if own.get(name) != value]
        changed += ["its code"] * (tuned.get("code", "") != own_code.version(method))
        if seed in tuned.get("seeds", ()):
            raise ValueError(f"--seed {seed}: the settings of {method} were chosen with this seed. Take another.")
        more = {"tuned": {**tuned, "changed": changed}} if tuned else {}
        chosen = configure(method, overrides={**own, **overrides}, seed=seed, **{**self.fields, "lr": lr, **more})
        return replace(chosen, label=config.label)


def read(given: Values) -> Choices:
    """Combine the options of a command with the configuration file that one of them names.

    Raises
    ------
    ValueError : a file that cannot be used, options that contradict each other, or that cannot be read.
    """
    from equipoise.system import hashes

    file = given["config_file"]
    method, of_file, seed, fields = ("fedavg", {}, 0, {}) if file is None else read_file(file)
    of_command, options = _settings(given["set_"])
    if (task := given["task"]) is not None:
        if "task" in options:
            raise ValueError(f"task is given twice: --task {task} and --set task={options['task']}. Leave one out.")
        options["task"] = task
    fields = dict(fields)
    of_methods, tuned = fields.pop("methods", {}), fields.pop("tuned", {})
    if of_methods and not ("scenario" in fields or given["scenario"] or given["data"]):
        raise ValueError(
            f"{file} was written from Python and names no data. Give the same ones with --scenario or --data."
        )
    chosen = _fields(fields, options, given)
    if file is not None and of_methods:
        tuned = {name: {**each, "chosen": hashes.of_file(file)} for name, each in tuned.items()}
    return Choices(method, seed, of_file, of_command, chosen, of_methods, tuned, given["lr"] is not None)


def for_parts(hyper_parameters: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Those hyper-parameters whose part the method has."""
    from equipoise.federation.method import parse

    parts = parse(method).parts
    return {key: value for key, value in hyper_parameters.items() if key.split(".", 1)[0] in parts}


def warn_of_defaults(chosen: Choices, methods: Sequence[str]) -> None:
    """Say of which methods a file of chosen settings has none."""
    if chosen.tuned and (untuned := [method for method in methods if method not in chosen.of_methods]):
        names = ", ".join(chosen.of_methods)
        log.warning("%s: no settings were chosen; the file has those of %s.", ", ".join(untuned), names)


def check_parts(chosen: Choices, methods: Sequence[str]) -> None:
    """Refuse a hyper-parameter of the command whose part none of the methods has."""
    from equipoise.federation.method import MethodError

    used = {key for method in methods for key in for_parts(chosen.of_command, method)}
    for key in chosen.of_command:
        if key not in used:
            raise MethodError(f"--set {key}: {key.split('.', 1)[0]!r} is not part of any of {', '.join(methods)}.")


def _fields(file: Mapping[str, Any], options: Mapping[str, str], given: Values) -> dict[str, Any]:
    """Fields of a configuration: those of a file, and those of the command line, which override them."""
    from equipoise.runs.configuration import called, option_value, whole

    chosen = {name: value for name, value in given.items() if value is not None and name in SETTINGS}
    scenario, data, network = given["scenario"], given["data"], given["network"]
    chosen |= {"data": whole(data)} if data else {}
    if scenario is None and "scenario" in file:
        typed = {key: option_value(file["scenario"], key, text) for key, text in options.items()}
        chosen["scenario_options"] = {**file["scenario_options"], **typed}
    else:
        file = {k: v for k, v in file.items() if k not in ("data", "scenario", "scenario_options")}
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
    return {**file, **chosen}


def _settings(pairs: Sequence[str] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Read ``--set``: hyper-parameters by ``part.name``, and options of the scenario by name, as they are written."""
    from equipoise.system.text import read_value

    either = "PART.NAME=VALUE, for example fedheal.tau=0.4, or NAME=VALUE for an option of the scenario, for example clients=8"
    values = pairs_of("--set", pairs, either)
    hyper_parameters = {key: read_value(text) for key, text in values.items() if "." in key}
    return hyper_parameters, {key: text for key, text in values.items() if "." not in key}
