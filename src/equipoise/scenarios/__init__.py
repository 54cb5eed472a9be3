"""Named, seeded federations of data: ``load("digits", seed=0)``.

Imports ``data``, ``metrics`` and ``system``.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.scenarios import collaboration, digits, fedheal, fedism, fedld, fedsac, label_skew, own, quality
from equipoise.scenarios.corruption import CORRUPTIONS
from equipoise.scenarios.papers import remembered
from equipoise.scenarios.scenario import Images, Protocol, Scenario
from equipoise.system.suggestions import unknown

__all__ = ["CORRUPTIONS", "SCENARIOS", "Images", "Protocol", "Scenario", "ScenarioEntry", "load"]


@dataclass(frozen=True)
class ScenarioEntry:
    """A line of the list of scenarios.

    Parameters
    ----------
    summary : one line for the reader.
    build : takes ``seed``, the user's folder if the scenario reads files, and the scenario's own options, which are its
        keyword-only parameters.
    reads : what the scenario reads from the user's files, for errors and lists; empty if it needs none.
    """

    summary: str
    build: Callable[..., Scenario]
    reads: tuple[str, ...] = ()


SCENARIOS: dict[str, ScenarioEntry] = {
    "digits": ScenarioEntry(digits.SUMMARY, digits.by_domain),
    "digits-iid": ScenarioEntry(digits.SUMMARY_IID, digits.iid),
    "digits-quality": ScenarioEntry(quality.SUMMARY, quality.scenario),
    "digits-label-skew": ScenarioEntry(label_skew.SUMMARY, label_skew.scenario),
    "digits-pow": ScenarioEntry(collaboration.SUMMARY_POW, collaboration.by_size),
    "digits-cla": ScenarioEntry(collaboration.SUMMARY_CLA, collaboration.by_classes),
    "digits-dir": ScenarioEntry(collaboration.SUMMARY_DIR, collaboration.by_shares),
    "fedheal-digits": ScenarioEntry(fedheal.SUMMARY_DIGITS, remembered(fedheal.digits), fedheal.DIGITS),
    "fedheal-office": ScenarioEntry(fedheal.SUMMARY_OFFICE, remembered(fedheal.office), ("office-caltech10",)),
    "fedld-retina": ScenarioEntry(fedld.SUMMARY_RETINA, remembered(fedld.retina), ("retina",)),
    "fedld-covid": ScenarioEntry(fedld.SUMMARY_COVID, remembered(fedld.covid), ("covid-fl",)),
    "fedism-rsna": ScenarioEntry(fedism.SUMMARY_RSNA, remembered(fedism.rsna), ("rsna-ich",)),
    "fedism-isic": ScenarioEntry(fedism.SUMMARY_ISIC, remembered(fedism.isic), ("isic2019",)),
    "fedsac-cifar10": ScenarioEntry(fedsac.CIFAR10.summary, remembered(fedsac.cifar10), (fedsac.CIFAR10.reads,)),
    "fedsac-svhn": ScenarioEntry(fedsac.SVHN.summary, remembered(fedsac.svhn), (fedsac.SVHN.reads,)),
    "fedsac-fashion": ScenarioEntry(fedsac.FASHION.summary, remembered(fedsac.fashion), (fedsac.FASHION.reads,)),
    "own": ScenarioEntry(own.SUMMARY, own.scenario, reads=("your own files",)),
}


def load(name: str, seed: int = 0, data: str | Path | None = None, **options: Any) -> Scenario:
    """Build a scenario by name.

    Parameters
    ----------
    name : a key of ``SCENARIOS``.
    seed : >= 0; decides every random choice in the data and the partition.
    data : where the files are, for a scenario that reads some.
    options : the scenario's own options, such as ``clients=8``.

    Raises
    ------
    ValueError if the name or an option is unknown, an option is out of its range, or ``data`` is missing or not needed.
    """
    if name not in SCENARIOS:
        raise ValueError(unknown("scenario", name, SCENARIOS))
    build = SCENARIOS[name].build
    known = [p.name for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(unknown(f"option of scenario '{name}':", option, known))
    reads = SCENARIOS[name].reads
    if not reads:
        if data is not None:
            raise ValueError(
                f"scenario {name} makes its own data, and data={str(data)!r} would not be read. Leave it out."
            )
        return build(seed, **options)
    if data is None:
        help_ = (
            "`equipoise init --data DIR` tells what is found there."
            if name == "own"
            else "`equipoise data` tells where to get them, `equipoise data check --data DIR` whether they are complete."
        )
        raise ValueError(f"scenario {name} reads {', '.join(reads)}: say where the files are, with --data DIR. {help_}")
    return build(seed, Path(data).expanduser(), **options)
