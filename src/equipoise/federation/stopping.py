"""When to stop, by what clients hold out of their own samples: a function of the records alone.

It never looks at results on test data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise.core.settings import RunSettings, Settings
from equipoise.metrics.measures import main_in
from equipoise.records.record import Record
from equipoise.records.validation import value
from equipoise.system.ranges import check_fields, choice, number as number_field
from equipoise.system.text import plural

MEASURES = {"accuracy": "{main}", "loss": "loss", "worst": "{main} of the worst group"}  # in words
Stop = Callable[[Sequence[Record]], object]  # all records so far -> why to stop; empty or False to continue
NONE = "needs what clients hold out of their own samples"


@dataclass(frozen=True)
class EarlyStopping:
    """Stop where validation has not improved for ``patience`` rounds: ``fit(100, stop=EarlyStopping(10))``.

    A pure function of the records, so that a resumed run stops in the same round. Prechelt: Early Stopping - But When?, 1998.

    Parameters
    ----------
    patience : rounds without an improvement, >= 1.
    measure : "accuracy" (of another task its main measure) or "loss", over all samples that clients hold out, or "worst", the accuracy
        of the worst group (of the worst 10 % of the clients where they belong to no groups).
    on : "validation"; results on test data would no longer hold for new data if training had looked at them.
    min_delta : what counts as an improvement, >= 0: accuracies in [0, 1], losses in nats.

    Raises
    ------
    ValueError : naming the parameter, what was expected and what was found.
    """

    patience: int = number_field(10, 1)
    measure: str = choice(*MEASURES)
    on: str = "validation"
    min_delta: float = number_field(0.0, 0, below=True)

    def __post_init__(self) -> None:
        check_fields(self, "EarlyStopping: ")
        if self.on != "validation":
            why = ": a model that is chosen by test data looks better on them than on new data" * (self.on == "test")
            raise ValueError(
                f"EarlyStopping: on must be 'validation', what clients hold out of their own samples; found {self.on!r}"
                f"{why}."
            )

    @staticmethod
    def of(settings: RunSettings) -> EarlyStopping | None:
        """What the settings of a run ask for; None where it goes to its last round."""
        return None if settings.patience is None else EarlyStopping(settings.patience, settings.stop_on)

    def __call__(self, records: Sequence[Record]) -> str:
        """Why to stop after these rounds; empty to continue.

        Raises
        ------
        ValueError : nothing was held out.
        """
        best, at = -math.inf, None
        for record in records:
            now = value(record, self.measure)
            if now is not None and (at is None or now > best + self.min_delta):
                best, at = now, int(record["round"])
        if at is None:
            if records:
                raise ValueError(f"EarlyStopping {NONE}: give validation=0.2.")
            return ""
        if int(records[-1]["round"]) - at < self.patience:
            return ""
        better = f" by more than {self.min_delta:g}" if self.min_delta else ""
        what = MEASURES[self.measure].format(main=main_in(records[-1].get("validation", ())).noun)
        return f"the validation {what} has not improved{better} for {plural(self.patience, 'round')}"


def reason(stop: Stop | None, records: Sequence[Record]) -> str:
    """Why training ends after these records; empty if it continues."""
    answer = stop(records) if stop is not None and records else False
    return answer if isinstance(answer, str) else "stop returned True" * bool(answer)


def check_stop(stop: Stop | None, settings: Settings) -> None:
    """Require a function of all records, and validation for one that looks at it."""
    if isinstance(stop, type) or not (stop is None or callable(stop)):
        raise TypeError(f"stop must be a function of all records, such as EarlyStopping(10); found {stop!r}.")
    if isinstance(stop, EarlyStopping) and not settings.validation:
        raise ValueError(f"EarlyStopping {NONE}: give validation=0.2.")
