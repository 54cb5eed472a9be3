"""By what settings are chosen: how good a run is on what clients hold out of their own training samples, the higher the better.

Every number is that of the tables, over the last five rounds that were evaluated, never the best round.
"""

import math
from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Final, cast

from equipoise.metrics.collaborative import SERVER
from equipoise.metrics.failure import diverged
from equipoise.metrics.performance import last_rounds
from equipoise.records.history import History
from equipoise.records.meta import Content
from equipoise.records.record import Validation, number
from equipoise.records.results import People

LAST: Final = 5  # rounds
MOST: Final = 3  # times that draws are halved
COLLABORATION: Final = "collaboration"
LEAVE_OUT: Final = "leave-one-client-out"
ORACLE: Final = "oracle"
CRITERIA: Final = {  # by name, in words
    "mean": "the mean over groups of clients (over clients where these belong to none)",
    "samples": "all held-out samples together",
    "worst": "the worst group of clients (the worst client where these belong to none)",
    "mean-std": "the mean over groups of clients less their standard deviation",
    "worst10": "the mean of the worst 10 % of the clients",
    "eo": "the equal-opportunity gap between groups of people, as small as possible",
    COLLABORATION: "collaborative fairness, how closely what clients receive follows what they reach alone, on the server's validation data",
    LEAVE_OUT: "the mean over clients that take no part, of the model that the others train",
    ORACLE: "the mean over groups of the test data, which is no fair choice",
}
OF_HELD_OUT: Final = tuple(name for name in CRITERIA if name not in (LEAVE_OUT, ORACLE))


def rungs(rounds: int, halvings: int = MOST) -> dict[int, int]:
    """After which of so many rounds draws are ranked, and how often they are halved there: an eighth, a quarter, half; the last is the end."""
    return {**Counter(max(1, rounds // 2**k) for k in range(halvings, 0, -1)), rounds: 0}


def scores(history: History) -> dict[str, float]:
    """Every criterion of `OF_HELD_OUT`, as tables show its number: percent, or the unit of the target with a minus; NaN if not defined."""
    run, sign = history.on_held_out(), 1 if history.main.better == "higher" else -1
    if not run.records:
        return dict.fromkeys(OF_HELD_OUT, math.nan)
    numbers = run.summary(LAST)
    mean, std, worst = (number(numbers[key]) for key in ("avg", "std", "worst"))
    of_clients = last_rounds(history.on_held_out(clients=True).group_table()[1], LAST)
    tenth = run.main.shown(run.main.worst_share(of_clients))
    return {
        "mean": sign * mean,
        "samples": sign * fmean(run.main.scale * number(held_out.get(run.main.name)) for held_out in _last(history)),
        "worst": sign * worst,
        "mean-std": sign * mean - std,
        "worst10": sign * number(tenth),
        "eo": -_equal_opportunity(numbers.get("people", {})),
        COLLABORATION: _collaboration(history),
    }


def _last(history: History) -> list[Validation]:
    """What clients held out did in the last rounds in which that was measured."""
    return [record["validation"] for record in history.records if record.get("validation")][-LAST:]


def _collaboration(history: History) -> float:
    """Collaborative fairness as tables show it; NaN where it is not measured on the server's validation data alone."""
    if {*history.sizes} != {SERVER}:
        return math.nan
    rewards = history.summary(LAST)["collaboration"]
    return number(rewards and rewards["fairness_mean"])


def _equal_opportunity(people: Mapping[str, People]) -> float:
    """The largest gap of any attribute; NaN where none can be computed."""
    treated = [cast(Content, each["treated"] or {}) for each in people.values()]
    gaps = [number(of_attribute.get("equal_opportunity")) for of_attribute in treated]
    return max((gap for gap in gaps if not math.isnan(gap)), default=math.nan)


def tested(history: History) -> float:
    """The mean over the groups of the test sets, as tables show it, with a minus where a lower one is better."""
    return (1 if history.main.better == "higher" else -1) * number(history.summary(LAST)["avg"])


def left_out(history: History) -> float:
    """The same where the test set is a client that took no part, however few samples it has."""
    return tested(history.of_any_size)


def failed(history: History) -> str:
    """Why a run is of no use by what clients hold out: it diverged, or it guesses; empty if it is of use."""
    if not (last := _last(history)):
        return "nothing was measured on what clients hold out: all have too few samples, or an earlier version began the run"
    scores_of_rounds = {str(k): cast(Content, held_out) for k, held_out in enumerate(last)}
    loss = "validation loss"
    return diverged(scores_of_rounds, which=loss) or history.on_held_out(clients=False).failure(LAST, loss)
