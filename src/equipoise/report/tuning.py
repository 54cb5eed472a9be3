"""How settings were chosen, in words and tables: of a document of all draws, and of runs with chosen settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from equipoise.records.criteria import CRITERIA, ORACLE
from equipoise.records.meta import Content, Tuned
from equipoise.report.formatting import number
from equipoise.system.text import plural

if TYPE_CHECKING:
    from equipoise.records.history import History

NOTHING: Final = (
    "Nothing was tuned: every method has its default hyper-parameters and the same given learning rate, which may favour one of them. "
    "`--tune 16` chooses both for each method on held-out training samples."
)
COLUMNS: Final = ("method", "chosen", "score", "defaults", "draw", "rounds", "seconds")
EDGE: Final = "its best value may be outside; search further with --search"


def cost(seconds: float, rounds: int, runs: int) -> str:
    """What choosing took."""
    return f"{runs:,} runs, {rounds:,} rounds, {number(seconds / 60, 1)} processor minutes"


def settings_of(settings: Mapping[str, Any]) -> str:
    """Chosen settings in a line."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "the defaults"


def budget(document: Content) -> str:
    """What was chosen by, on which data, at what cost, in two sentences."""
    given, methods = document["budget"], document["methods"].values()
    runs = sum(len(method["trials"]) for method in methods) * given["trials"]
    return (
        _how(given["by"], given["draws"], given["validation"])
        + " "
        + _cost(sum(m["seconds"] for m in methods), sum(m["trained"] for m in methods), runs)
    )


def _how(by: str, draws: int, validation: float) -> str:
    oracle = "Chosen by test data, which makes every number here too good: " if by == ORACLE else "Chosen by "
    on = "" if by == ORACLE else f", on {100 * validation:g} % of each client's training samples"
    return f"{oracle}{CRITERIA[by]}{on}; {plural(draws, 'draw')} for each method."


def _cost(seconds: float, rounds: int, runs: int) -> str:
    return f"Choosing cost {cost(seconds, rounds, runs)}."


def sentences(document: Content) -> Iterator[str]:
    """What to know of the choices: edges of ranges, disagreement between criteria, early ranks that misled, useless draws."""
    yield budget(document)
    by = document["budget"]["by"]
    for label, method in document["methods"].items():
        for name, end in method["edges"].items():
            yield f"{label}: {name} = {method['settings'][name]} is at the {end} end of its range; {EDGE}."
        others = {name: draw for name, draw in method["by_criterion"].items() if draw != method["draw"] and name != by}
        if others:
            yield f"{label}: another draw is the best by {', '.join(f'{name} ({draw})' for name, draw in others.items())}."
        if useless := sum(trial["failed"] is not None for trial in method["trials"]):
            yield f"{label}: {useless} of {plural(len(method['trials']), 'draw')} diverged or guess."
        for early in method["agreement"]:
            if early["spearman"] is not None and early["spearman"] < 0.5:
                yield (
                    f"{label}: the ranks after {early['rounds']} rounds hardly predict the last ones (Spearman {number(early['spearman'], 2)}). "
                    "Compare with --no-halving."
                )


def rows(document: Content) -> list[tuple[str, ...]]:
    """A row per method, in the order of `COLUMNS`."""
    return [
        (
            label,
            settings_of(method["settings"]),
            *(("–" if value is None else number(value, 2)) for value in (method["score"], method["default"])),
            str(method["draw"]),
            f"{method['trained']:,}",
            f"{method['seconds']:,.0f}",
        )
        for label, method in document["methods"].items()
    ]


def aligned(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows with cells of one width in each column, the first two to the left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        [
            cell.ljust(width) if k < 2 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in table
    ]


def of_runs(histories: Sequence[History]) -> list[str]:
    """What the first screen of a comparison states about tuning; nothing of a single method."""
    labels = {history.label for history in histories if history.sharing.federated}
    tuned = {history.label: history.tuned for history in histories if history.tuned}
    if not tuned:
        return [NOTHING] if len(labels) > 1 else []
    first = next(iter(tuned.values()))
    said = [_how(first["by"], first["draws"], first["validation"])]
    every = _each(tuned)
    runs = sum(each["draws"] * len(each["seeds"]) for each in tuned.values())
    said.append(
        _cost(sum(each["seconds"] for each in tuned.values()), sum(each["trained"] for each in tuned.values()), runs)
    )
    said += [f"Chosen: {every}."]
    if untuned := sorted(labels - tuned.keys()):
        said.append(f"Not tuned: {', '.join(untuned)}.")
    return said


def _each(tuned: Mapping[str, Tuned]) -> str:
    return "; ".join(f"{label} ({settings_of(each['settings'])})" for label, each in tuned.items())
