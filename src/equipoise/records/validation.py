"""Which round is the best by what clients hold out of their own samples: functions of the records alone.

No function here looks at results on test data.
"""

import math
from collections.abc import Iterable

from equipoise.metrics.measures import main_in
from equipoise.records.record import Record, Validation, by_client, number

BEST = "best-validation"  # as a setting names the choice of the best round


def value(record: Record, measure: str) -> float | None:
    """A measure of a round on what clients hold out, the higher the better; None where it was not measured."""
    if not (held_out := record.get("validation")):
        return None
    main = main_in(held_out)
    name = "loss" if measure == "loss" else main.name
    score = worst_of(held_out) if measure == "worst" else number(held_out.get(name))
    score = -score if measure == "loss" or main.better == "lower" else score
    return score if math.isfinite(score) or measure == "worst" else -math.inf


def worst_of(held_out: Validation) -> float:
    """The main measure of the worst group on what clients hold out; where they belong to no groups, of the worst 10 % of the clients."""
    main = main_in(held_out)
    groups = [number(scores.get(main.name)) for scores in held_out["groups"].values()]
    clients = [number(x) for x in by_client(held_out.get("clients", {}), main) if x is not None]
    return (main.worst(groups) if len(groups) > 1 or not clients else main.worst_share(clients)).value


def selected(records: Iterable[Record]) -> int | None:
    """The round with the best accuracy, or other main measure, on what clients hold out; of equal ones the lower loss, then the earlier round."""
    best: tuple[float, float] | None = None
    best_round = None
    for record in records:
        accuracy, loss = value(record, "accuracy"), value(record, "loss")
        if accuracy is not None and loss is not None and (best is None or (accuracy, loss) > best):
            best, best_round = (accuracy, loss), int(record["round"])
    return best_round
