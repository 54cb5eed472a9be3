"""Which round is the best by what clients hold out of their own samples: functions of the records alone.

No function here looks at results on test data.
"""

import math
from collections.abc import Iterable

from equipoise.metrics.performance import worst_share
from equipoise.records.record import Record, number

BEST = "best-validation"  # as a setting names the choice of the best round


def value(record: Record, measure: str) -> float | None:
    """A measure of a round on what clients hold out, the higher the better; None where it was not measured."""
    if not (found := record.get("validation")):
        return None
    if measure == "worst":
        return worst_of(found)
    of = number(found[measure])
    of = -of if measure == "loss" else of
    return of if math.isfinite(of) else -math.inf


def worst_of(found: Record) -> float:
    """The accuracy of the worst group on what clients hold out; where they belong to no groups, of the worst 10 % of the clients."""
    groups = [number(scores["accuracy"]) for scores in found["groups"].values()]
    clients = [number(a) for a in found.get("clients", {}).get("accuracy", ()) if a is not None]
    return min(groups) if len(groups) > 1 or not clients else worst_share(clients).value


def selected(records: Iterable[Record]) -> int | None:
    """The round with the best accuracy on what clients hold out; of equal ones the lower loss, then the earlier round."""
    best: tuple[float, float] | None = None
    found = None
    for record in records:
        accuracy, loss = value(record, "accuracy"), value(record, "loss")
        if accuracy is not None and loss is not None and (best is None or (accuracy, loss) > best):
            best, found = (accuracy, loss), int(record["round"])
    return found
