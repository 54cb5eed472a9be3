"""Settings of methods chosen by runs in directories, which have no test data; the choice is on the disk before any run has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from equipoise import scenarios
from equipoise.federation import fingerprint
from equipoise.federation.directory import MANIFEST, METRICS
from equipoise.federation.history import History
from equipoise.federation.method import Method, MethodError, parse
from equipoise.metrics.classification import RATES
from equipoise.records.criteria import COLLABORATION, LEAVE_OUT, ORACLE, rungs
from equipoise.records.directory import TRIALS
from equipoise.records.meta import Content, Tuned
from equipoise.runs import directory as runs, tuning, unchanged
from equipoise.runs.comparison import Progress, complete, fitting
from equipoise.runs.configuration import FLOWER, RunConfig, configure
from equipoise.runs.tuning import RATE, Budget, Outcome, Trial, Tuning
from equipoise.scenarios.scenario import REGRESSION, Description, kind_of
from equipoise.system import files, hashes, own_code, places
from equipoise.system.errors import CODE, SETTINGS, RunError
from equipoise.system.seals import open_json
from equipoise.system.search import Space
from equipoise.system.suggestions import unknown
from equipoise.system.text import key_of
from equipoise.system.workers import Workers

APART: Final = (  # fields of a configuration that are no conditions of a choice, or have an entry of their own
    "label", "method", "lr", "seed", "data", "scenario_options", "own_code", "tuned", "report", "sealed", "rewarded", "left_out", "validation",
    "measures", "engine", "chunk", "device", "threads", "track", "checkpoint_every", "keep_checkpoints", "least_group",
)  # fmt: skip
OWN_CODE: Final = (*places.CODE, ("task",))  # in the table of a file
TRIAL: Final = "trial"  # kind of errors: a trial failed for another reason than its settings
FOLDER: Final = "choosing"  # of a comparison whose settings are chosen


@dataclass(frozen=True)
class Candidates:
    """The methods to tune: by label the text and the user's hyper-parameters; and what they share.

    ``chosen`` are fields of :class:`equipoise.runs.configuration.RunConfig`, ``search`` spaces of the user's own, by name.
    """

    methods: Mapping[str, tuple[str, Mapping[str, Any]]]
    scenario: str
    chosen: Mapping[str, Any]
    search: Mapping[str, Space]

    def config(self, label: str, settings: Mapping[str, Any], **more: Any) -> RunConfig:
        """The configuration of a run of a method with settings by name."""
        text, overrides = self.methods[label]
        values = {name: value for name, value in settings.items() if name != RATE}
        lr = {RATE: settings[RATE]} if RATE in settings else {}
        config = configure(text, self.scenario, overrides={**overrides, **values}, **{**self.chosen, **lr, **more})
        return replace(config, label=label)

    def file(self) -> dict[str, Any]:
        """What the methods share, as a configuration file has it."""
        shared = {name: value for name, value in self.chosen.items() if value is not None}
        options = {name: value for name, value in shared.pop("scenario_options", {}).items() if value is not None}
        columns = {"columns": columns} if (columns := options.pop("columns", None)) else {}
        if inside := ", ".join(f"{name}={value}" for name, value in shared.pop("network_options", {}).items()):
            network = shared.get("network") or self.config(next(iter(self.methods)), {}).network
            shared["network"] = f"{network}({inside})"
        shared, options = (places.replaced(each, OWN_CODE, own_code.whole) for each in (shared, options))
        return {"scenario": self.scenario, **shared, **({"set": options} if options else {}), **columns}

    def parsed(self, label: str) -> Method:
        """A method with the user's hyper-parameters."""
        return parse(*self.methods[label])


LACKING: Final = {  # what criteria need of the data
    "eo": "classes, and groups of people (sensitive attributes). Name their column: --set group=COLUMN, in a suite the option group, in Python clients (x, y, s)",
    COLLABORATION: "data for collaborative fairness, with validation data of the server's. Choose digits-pow, digits-cla, digits-dir or a "
    "scenario of FedSAC, in Python give collaborative=True, server_validation=(x, y) and no groups",
    LEAVE_OUT: "at least two clients. Divide the data among more",
    ORACLE: "test data. Give tests={...} or client_tests=[...]",
}


def require_models(by: str, methods: Mapping[str, Method]) -> None:
    """Refuse to compare what clients receive where that is the same for all, by every method.

    Raises
    ------
    ValueError : naming the methods.
    """
    if by == COLLABORATION and not any(method.differing for method in methods.values()):
        raise ValueError(
            f"by={by}: every client receives the same model by {', '.join(methods)}, so that nothing is to compare. "
            "Add a method such as fedsac or cgsv, or choose by another criterion."
        )


def require(by: str, present: Mapping[str, Callable[[], bool]]) -> None:
    """Refuse a criterion whose data are not ``present``.

    Raises
    ------
    ValueError : naming what it needs.
    """
    if by in present and not present[by]():
        raise ValueError(f"by={by} needs {LACKING[by]}, or choose by another criterion.")


def require_data(by: str, described: Description, first: RunConfig) -> None:
    """Refuse a criterion that the data of a run do not define.

    Raises
    ------
    ValueError : naming what it needs.
    """
    present = {
        "eo": lambda: kind_of(described.task) != REGRESSION and bool(unchanged.data_of(first).attributes),
        COLLABORATION: lambda: described.collaborative and described.has_server_validation,
        LEAVE_OUT: lambda: len(unchanged.data_of(first).clients) > 1,
    }
    require(by, present)


def check(methods: Mapping[str, Method], budget: Budget, search: Mapping[str, Space]) -> None:
    """Refuse what would look at test data while settings are chosen, and spaces of settings that no method has.

    Raises
    ------
    MethodError : naming the method, and what to use instead.
    ValueError : naming the setting.
    """
    for label, method in methods.items():
        if "contribution_on_test" in method.needs and budget.by != ORACLE:
            raise MethodError(
                f"{label} measures contributions on test data before the first round, and test data are sealed while settings are chosen. "
                "Use a form that measures them on the server's validation data, such as fedsac, or leave it out."
            )
        if budget.by == LEAVE_OUT and not (method.sharing.global_model and method.sharing.clients):
            raise MethodError(
                f"{label} has no global model for a client that takes no part. Choose by another criterion, or leave it out."
            )
    typed = {name for method in methods.values() for name in method.typed}
    names = {name for m in methods.values() for name, *_ in tuning.hyper_parameters(m) if name not in m.typed} | {RATE}
    for name in search:
        if name in typed - names:
            raise ValueError(
                f"search {name}: it has a value already, which would not be searched. Leave one of them out."
            )
        if name not in names:
            raise ValueError(f"search {name}: {unknown('setting', name, sorted(names))}")


def choose(
    candidates: Candidates,
    budget: Budget,
    base: Path,
    *,
    jobs: int | None = None,
    on_progress: Progress | None = None,
    lines: bool = False,
    trials_in: Path | None = None,
    workers: Workers | None = None,
) -> Tuning:
    """Choose the settings of every method, and write them to ``base``; the same call continues after a stop, bit for bit.

    The runs are kept in the folder ``trials_in``, by default one in ``base``; ``workers`` are processes that train them, else new ones.

    Raises
    ------
    MethodError, ValueError : see :func:`check`.
    RunError : a directory that holds something else; or, of the kind :data:`TRIAL`, a trial failed for another reason than its settings.
    """
    methods = {label: candidates.parsed(label) for label in candidates.methods}
    check(methods, budget, candidates.search)
    runs.distinct([*methods])
    for name in ("patience", "select"):
        if candidates.chosen.get(name) not in (None, "last"):
            raise ValueError(f"--{name}: settings are chosen by the last rounds, the same for all draws. Leave it out.")
    if candidates.chosen.get("engine") == FLOWER:
        raise ValueError(
            f"--engine {FLOWER}: settings are chosen in simulations. Choose another engine, or leave it out."
        )
    plain = {label: candidates.config(label, {}, seed=budget.seeds[0]) for label in methods}
    rounds = next(iter(plain.values())).rounds
    spaces = {label: tuning.space_of(method, candidates.search) for label, method in methods.items()}
    tuning.claim(base, budget, rounds, methods if trials_in is None else None)  # a suite's cells keep their own
    sealed, jobs = _sealed(candidates, budget, plain), jobs or fitting([*plain.values()])
    folder = trials_in or base / TRIALS
    done, total = [0], budget.planned(rounds) * len(methods)

    def shown(now: int, _: int, before: int) -> None:
        done[0] = before + now
        if on_progress is not None:
            on_progress(min(done[0], total), total)

    def ended(configs: Mapping[tuple[Trial, str], RunConfig], **how: Any) -> dict[Trial, list[Outcome]]:
        return _trained(folder, configs, partial(complete, jobs=jobs, lines=lines, workers=kept, **how))

    def train(trials: Sequence[Trial], until: int) -> dict[Trial, list[Outcome]]:
        configs = {
            (trial, str(seed)): candidates.config(trial.label, trial.settings, seed=seed, **sealed)
            for trial in trials
            for seed in budget.seeds
        }
        return ended(configs, on_progress=partial(shown, before=done[0]), until=until)

    def leave_out(trials: Sequence[Trial]) -> dict[Trial, list[Outcome]]:
        names = unchanged.data_of(next(iter(plain.values()))).client_names
        configs = {
            (trial, f"{seed}-without-{k}-{name}"): candidates.config(
                trial.label, trial.settings, seed=seed, left_out=name
            )
            for trial in trials
            for seed in budget.seeds
            for k, name in enumerate(names)
        }
        return ended(configs)

    with files.claimed(base), nullcontext(workers) if workers else Workers() as kept:
        chosen = tuning.choose(
            spaces, {label: config.lr for label, config in plain.items()}, budget, rounds, train, leave_out
        )
        label, config = next(iter(plain.items()))
        manifest = _place(folder, Trial(label, 0, {}), str(config.seed)) / MANIFEST
        contents = open_json(files.read_regular(manifest).decode()).get("contents", {}) if manifest.exists() else {}
        conditions = {**_conditions(config), "contents": {**contents, **_file(config)}}
        chosen = replace(chosen, methods=methods, conditions=dict.fromkeys(methods, conditions))
        return tuning.write(chosen, base, candidates.file())


def _sealed(candidates: Candidates, budget: Budget, plain: Mapping[str, RunConfig]) -> dict[str, Any]:
    """What the runs that choose have: no test data, rows held out, counts to recognise a model that guesses, and few checkpoints."""
    first = next(iter(plain.values()))
    described = scenarios.describe(first.scenario, first.data, **first.scenario_options)
    require_data(budget.by, described, first)
    numbers = kind_of(described.task) == REGRESSION
    measured = str(candidates.chosen.get("measures") or "")
    more: dict[str, Any] = (
        {} if numbers else {"measures": ", ".join(filter(None, [measured, RATES * (RATES not in measured)]))}
    )
    if first.checkpoint_every == 1:  # a kill costs no more than the first rung
        more["checkpoint_every"] = min(rungs(first.rounds))
    return {**_seals(budget.by, budget.validation), **more}


def _seals(by: str, validation: float) -> dict[str, Any]:
    """What decides the data of a run that chooses by a criterion."""
    rewarded = {"rewarded": True} if by == COLLABORATION else {}
    return {"validation": validation, "sealed": by != ORACLE, **rewarded}


def _conditions(config: RunConfig) -> Content:
    """What a choice depends on, but its budget and the settings of methods: of a configuration, with hashes in place of the user's code."""
    weights = {} if config.weights is None else {"weights": hashes.of_file(config.weights)}
    table = {**vars(config), "network_options": {**config.network_options, **weights}}
    options = {**scenarios.SCENARIOS[config.scenario].options, **config.scenario_options}
    options["task"] = options["task"] or "classification"  # as is assumed of own data

    def coded(value: object) -> object:
        own = isinstance(value, str) and own_code.split(value)[0]
        return f"{own_code.nameless(str(value))} {own_code.version(str(value))}" if own else value

    tables = {"settings": conditional(table), "options": plain(options)}
    return {key: {name: coded(value) for name, value in each.items()} for key, each in tables.items()}


def conditional(settings: Mapping[str, Any]) -> Content:
    """Those of some settings that a choice depends on, in plain JSON types."""
    return plain({name: value for name, value in settings.items() if name not in APART})


def plain(table: Mapping[str, Any]) -> Content:
    """A table in plain JSON types, without what is None."""
    kept = {name: value for name, value in table.items() if value is not None}
    return dict(json.loads(json.dumps(kept, default=str)))


def _file(config: RunConfig) -> dict[str, str]:
    """The hash of the user's file, whatever a run takes from it."""
    path = Path(config.data or "")
    return {"file": hashes.of_file(path)} if path.is_file() else {}


def changed(tuned: Tuned, conditions: Content, config: RunConfig) -> list[str]:
    """What decides the results of a run, by ``conditions`` of a choice, and is not as it was, by its names; data in words."""
    now, by_python = _conditions(config), ["all that Python was given"] * ("python" in conditions)
    # what is newer than a choice had its default there
    options = plain(scenarios.SCENARIOS[config.scenario].options)
    usual = {"settings": {f.name: f.default for f in fields(RunConfig)}, "options": options}
    names = list[str]()
    for key in ("options", "settings"):
        its, then = now[key], conditions.get(key, {})
        names += sorted(n for n in (then if by_python else its | then) if its.get(n) != then.get(n, usual[key].get(n)))
    if tuned["by"] != "eo" and "positive" in names:  # no other criterion looks at it
        names.remove("positive")
    if config.validation not in (0, tuned["validation"]):
        names.append("validation")
    contents = conditions.get("contents", {})
    if contents and now["options"] == conditions["options"]:
        more = {"seed": tuned["seeds"][0], "tuned": None, **_seals(tuned["by"], tuned["validation"])}
        names += _data_changed(contents, replace(config, **more))
    return [*by_python, *names]


@lru_cache(maxsize=4)  # for all methods and seeds of a command
def _contents(decisive: str) -> dict[str, Any]:
    """The hashes of the user's data, by the fields of a configuration that decide them, as JSON."""
    return unchanged.contents(configure("fedavg", **json.loads(decisive)))


def _data_changed(contents: Content, config: RunConfig) -> list[str]:
    """In words, which of the user's data are not those that chose; the name of their file where only what did not choose differs."""
    file, its_file = contents.get("file"), _file(config).get("file")
    if file is not None and file == its_file:
        return []
    draws = {name: getattr(config, name) for name in ("seed", "validation", "sealed", "rewarded")}
    of_data = {name: getattr(config, name) for name in ("scenario", "scenario_options", "data")}
    words = fingerprint.changed(contents, _contents(json.dumps({**of_data, **draws})))
    rows = [Path(config.data or "").name] * (None not in (file, its_file))
    return [words] if words else rows


def _place(trials_in: Path, trial: Trial, seed: str) -> Path:
    """The directory of a run of a trial."""
    return trials_in / f"{runs.slug(trial.label)}-draw{trial.draw:02d}-seed{runs.slug(seed)}"


def _trained(
    trials_in: Path, configs: Mapping[tuple[Trial, str], RunConfig], train: Callable[..., Mapping[Path, str]]
) -> dict[Trial, list[Outcome]]:
    """The runs of trials, which ``train`` continues, and why those failed that did by their settings."""
    places = {key: _place(trials_in, *key) for key in configs}
    for key, config in configs.items():
        runs.start(config, places[key])
    failed = train({places[key]: config for key, config in configs.items()})
    for label in {trial.label for trial, _ in configs}:
        whys = [failed.get(path, "") for (trial, _), path in places.items() if trial.label == label]
        others = [why for why in whys if why and key_of(why) != SETTINGS]
        if others and (len(others) == len(whys) or CODE in map(key_of, others)):
            raise RunError(f"{label} cannot be tuned: {others[0]}.", TRIAL)
    ended: dict[Trial, list[Outcome]] = {}
    for (trial, _), path in places.items():
        run = History.from_run(path) if path not in failed or (path / METRICS).exists() else None
        ended.setdefault(trial, []).append((run, failed.get(path, "")))
    return ended
