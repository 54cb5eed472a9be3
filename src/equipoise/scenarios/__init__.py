"""Named, seeded federations of data: ``load("digits", seed=0)``."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.scenarios import collaboration, digits, label_skew, quality
from equipoise.scenarios.corruption import CORRUPTIONS
from equipoise.scenarios.scenario import Images, Protocol, Scenario
from equipoise.words import unknown

__all__ = ["CORRUPTIONS", "SCENARIOS", "Images", "Protocol", "Scenario", "ScenarioEntry", "load"]


@dataclass(frozen=True)
class ScenarioEntry:
    """A line of the list of scenarios.

    Parameters
    ----------
    summary : one line for the reader.
    build : takes ``seed`` and the scenario's own options, which are its keyword-only parameters.
    """

    summary: str
    build: Callable[..., Scenario]


SCENARIOS: dict[str, ScenarioEntry] = {
    "digits": ScenarioEntry(digits.SUMMARY, digits.by_domain),
    "digits-iid": ScenarioEntry(digits.SUMMARY_IID, digits.iid),
    "digits-quality": ScenarioEntry(quality.SUMMARY, quality.scenario),
    "digits-label-skew": ScenarioEntry(label_skew.SUMMARY, label_skew.scenario),
    "digits-pow": ScenarioEntry(collaboration.SUMMARY_POW, collaboration.by_size),
    "digits-cla": ScenarioEntry(collaboration.SUMMARY_CLA, collaboration.by_classes),
    "digits-dir": ScenarioEntry(collaboration.SUMMARY_DIR, collaboration.by_shares),
}


def load(name: str, seed: int = 0, **options: Any) -> Scenario:
    """Build a scenario by name.

    Parameters
    ----------
    name : a key of ``SCENARIOS``.
    seed : >= 0; decides every random choice in the data and the partition.
    options : the scenario's own options, such as ``clients=8``.

    Raises
    ------
    ValueError if the name or an option is unknown, or an option is out of its range.
    """
    if name not in SCENARIOS:
        raise ValueError(unknown("scenario", name, SCENARIOS))
    build = SCENARIOS[name].build
    known = [p.name for p in inspect.signature(build).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(unknown(f"option of scenario '{name}':", option, known))
    return build(seed, **options)
