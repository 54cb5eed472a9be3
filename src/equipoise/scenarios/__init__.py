"""Named, seeded federations of data: ``load("digits", seed=0)``.

Imports ``data``, ``metrics`` and ``system``.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.locations import where_from
from equipoise.data.samples import NOTHING, Draw
from equipoise.data.sets import catalog
from equipoise.data.tables.options import Options
from equipoise.scenarios import (
    collaboration,
    diabetes,
    digits,
    fedheal,
    fedism,
    fedld,
    fedsac,
    label_skew,
    own,
    partition,
    quality,
    tables,
)
from equipoise.scenarios.corruption import CORRUPTIONS as CORRUPTIONS
from equipoise.scenarios.scenario import (
    Described,
    Description as Description,
    Images as Images,
    Protocol as Protocol,
    Scenario as Scenario,
    kind_of,
)
from equipoise.system.ranges import check_whole
from equipoise.system.suggestions import require_known

TASK = "task"  # an option of every scenario: what its labels are, which only own data leave open
HELD = "held"  # what clients hold out in a run, a parameter of scenarios that learn from their rows
KINDS: dict[str, tuple[Any, str]] = {
    "int": (Integral, "a whole number"),
    "Sequence[int]": (list | tuple | range | np.ndarray, "a list of whole numbers, such as [300, 800]"),
}
DATA_SEED = "data_seed"  # an option of every scenario: what its data are drawn with, instead of the run's seed


@dataclass(frozen=True)
class ScenarioEntry:
    """A line of the list of scenarios.

    Parameters
    ----------
    summary : one line for the reader.
    describe : takes the user's folder, if the scenario reads files, and the scenario's own options, which are its
        keyword-only parameters, and checks them; gives the description, and the function that makes the data from a seed.
    reads : what the scenario reads from the user's files, for errors and lists; empty if it needs none.
    takes : the class of its options, if that is not said by the parameters of ``describe``.
    """

    summary: str
    describe: Callable[..., Described]
    reads: tuple[str, ...] = ()
    takes: Callable[..., Any] | None = None

    def _parameters(self) -> list[inspect.Parameter]:
        parameters = inspect.signature(self.takes or self.describe).parameters.values()
        return [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != HELD]

    @property
    def options(self) -> Mapping[str, Any]:
        """The scenario's own options and their defaults, and those that all have."""
        return {TASK: None, **{p.name: p.default for p in self._parameters()}, DATA_SEED: None}

    @property
    def kinds(self) -> Mapping[str, str]:
        """What each option is declared to be, as ``"str | None"``."""
        own = {p.name: inspect.formatannotation(p.annotation).strip("'") for p in self._parameters()}
        return {TASK: "str | None", **own, DATA_SEED: "int | None"}


SCENARIOS: dict[str, ScenarioEntry] = {
    "digits": ScenarioEntry(digits.SUMMARY, digits.by_domain),
    "digits-iid": ScenarioEntry(digits.SUMMARY_IID, digits.iid),
    "digits-quality": ScenarioEntry(quality.SUMMARY, quality.scenario),
    "digits-label-skew": ScenarioEntry(label_skew.SUMMARY, label_skew.scenario),
    "digits-pow": ScenarioEntry(collaboration.SUMMARY_POW, collaboration.by_size),
    "digits-cla": ScenarioEntry(collaboration.SUMMARY_CLA, collaboration.by_classes),
    "digits-dir": ScenarioEntry(collaboration.SUMMARY_DIR, collaboration.by_shares),
    "diabetes": ScenarioEntry(diabetes.SUMMARY, diabetes.scenario),
    "heart": ScenarioEntry(tables.HEART.summary, tables.heart),
    "adult": ScenarioEntry(tables.ADULT.summary, tables.adult),
    "fedheal-digits": ScenarioEntry(fedheal.SUMMARY_DIGITS, fedheal.digits, fedheal.DIGITS),
    "fedheal-office": ScenarioEntry(fedheal.SUMMARY_OFFICE, fedheal.office, ("office-caltech10",)),
    "fedld-retina": ScenarioEntry(fedld.SUMMARY_RETINA, fedld.retina, ("retina",)),
    "fedld-covid": ScenarioEntry(fedld.SUMMARY_COVID, fedld.covid, ("covid-fl",)),
    "fedism-rsna": ScenarioEntry(fedism.RSNA.summary, fedism.rsna, (fedism.RSNA.reads,)),
    "fedism-isic": ScenarioEntry(fedism.ISIC.summary, fedism.isic, (fedism.ISIC.reads,)),
    **{
        name: ScenarioEntry(entry.summary, partial(fedsac.scenario, name), (entry.reads,))
        for name, entry in fedsac.SETS.items()
    },
    "own": ScenarioEntry(own.SUMMARY, own.scenario, ("your own files",), Options),
}


def describe(name: str, data: str | Path | None = None, **options: Any) -> Description:
    """Say what a scenario is, without making or reading its data.

    Parameters
    ----------
    name, data, options : as in :func:`load`; without ``data`` nobody looks whether the files are there. Only ``own`` needs them.

    Raises
    ------
    ValueError if the name or an option is unknown, an option is out of its range, or files are missing.
    """
    return _described(name, data, options)[0]


def with_server_validation() -> list[str]:
    """The scenarios whose server holds validation data, whatever the user's files."""
    return [name for name in SCENARIOS if name != "own" and describe(name).has_server_validation]


def folder(name: str, data: str | Path | None) -> str | Path | None:
    """The folder that a scenario reads: the user's, or where packages of the system have put all its data sets; None if it reads none.

    Raises
    ------
    ValueError : the scenario is unknown, or ``data`` is missing or not needed.
    """
    reads = _entry(name).reads
    if data is not None and not reads:
        raise ValueError(f"scenario {name} makes its own data, and data={str(data)!r} would not be read. Leave it out.")
    if data is not None or not reads:
        return data
    asked = f"scenario {name} reads {', '.join(reads)}: say where the files are, with --data DIR."
    if name == "own":
        raise ValueError(f"{asked} `equipoise init --data DIR` lists them.")
    if all(map(catalog.installed, reads)):
        return catalog.INSTALLED
    packages = [catalog.data_set(name).package for name in reads]
    packed = f" On Debian and Ubuntu without: `apt-get install {' '.join(map(str, packages))}`." * all(packages)
    complete = "`equipoise data check --data data` checks whether they are complete."
    raise ValueError(f"{asked}{packed} {where_from(reads, Path('data'))} {complete}")


def load(
    name: str, seed: int = 0, data: str | Path | None = None, *, validation: float = 0.0, **options: Any
) -> Scenario:
    """Build a scenario by name.

    Parameters
    ----------
    name : a key of ``SCENARIOS``.
    seed : >= 0; decides every random choice in the data and the partition.
    data : where the files are, for a scenario that reads some; None if packages of the system have put all of them into
        ``/usr/share/datasets``.
    validation : in [0, 1), the share of its training samples that each client holds out, as in ``Federation(validation=...)`` of the
        same ``seed``: means, categories and all else that scenarios learn from their rows are then learnt from the others only.
    options : the scenario's own options, such as ``clients=8``; ``task``, what the labels are, ``"classification"`` or
        ``"regression"``, which own data leave open; and ``data_seed``, >= 0, with which the data are drawn instead of ``seed``:
        runs that differ in their seeds then share one division.

    Raises
    ------
    ValueError if the name or an option is unknown, an option is out of its range, or ``data`` is missing or not needed.
    """
    data = folder(name, data)
    check_whole("seed", seed, 0)
    held, seed = (validation, seed), _seed(name, options, seed)
    if name == "own" or data is None:
        return _described(name, data, options, held)[1](seed)
    place = Path(data).expanduser().absolute()
    changed = place.stat().st_mtime_ns if place.exists() else 0
    return _read(name, seed, place, changed, tuple((key, _frozen(options[key])) for key in sorted(options)))


@lru_cache(maxsize=1)
def _read(name: str, seed: int, data: Path, _changed: int, options: tuple[tuple[str, Any], ...]) -> Scenario:
    """The last scenario that was read is kept, as runs of several methods on the same data ask for it one after the other.

    Files that change while a program runs are not seen before the folder's own time of change says so.
    """
    return _described(name, data, dict(options))[1](seed)


def _seed(name: str, options: Mapping[str, Any], seed: int) -> int:
    """What the data are drawn with: the option that says so, or else the run's seed."""
    fixed: int | None = options.get(DATA_SEED)
    if fixed is None:
        return seed
    check_whole(f"{name}: {DATA_SEED}", fixed, 0)
    return fixed


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _entry(name: str) -> ScenarioEntry:
    require_known("scenario", SCENARIOS, name)
    return SCENARIOS[name]


def _described(name: str, data: str | Path | None, options: Mapping[str, Any], held: Draw = NOTHING) -> Described:
    entry = _entry(name)
    for option in options:
        require_known(f"option of scenario '{name}':", entry.options, option)
    _seed(name, options, 0)
    if name == "own":
        folder(name, data)
    files = (None if data is None else Path(data).expanduser(),) if entry.reads else ()
    task: str | None = options.get(TASK)
    kind = None if task is None else kind_of(task)  # before files are read
    learning = {HELD: held} if HELD in inspect.signature(entry.describe).parameters else {}
    apart = {DATA_SEED} if name == "own" else {DATA_SEED, TASK}
    given = {option: value for option, value in options.items() if option not in apart}
    try:
        description, build = partition.errors_of(name)(entry.describe)(*files, **given, **learning)
    except TypeError:
        _check_kinds(name, entry, given)
        raise
    _check_kinds(name, entry, given)  # what the scenario's own checks, which name the range, let pass
    build = partition.errors_of(name)(build)
    if task is None:
        return description, build
    if kind != kind_of(description.task):
        raise ValueError(f"scenario {name}: its task is {description.task}; found task={task}. Leave it out.")
    return replace(description, task=task), lambda seed: replace(build(seed), task=task)


def _check_kinds(name: str, entry: ScenarioEntry, given: Mapping[str, Any]) -> None:
    kinds, usual = entry.kinds, entry.options
    for option, value in given.items():
        declared, expected = KINDS.get(kinds[option].removesuffix(" | None").rpartition(".")[2], (object, ""))
        right = isinstance(value, declared) and not (declared is Integral and isinstance(value, bool))
        if not right and value is not usual[option]:
            raise ValueError(f"{name}: {option} must be {expected}; found {value!r}.") from None
