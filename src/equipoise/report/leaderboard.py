"""Every method of a benchmark against the tuned reference: per scenario, and over the scenarios; as a page, tables, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.ranking import Probabilities, critical_difference, friedman, mean_ranks, signed_rank
from equipoise.records.meta import Content
from equipoise.report.formatting import PERCENT, UNDEFINED, number, p_value
from equipoise.report.grid import Cell, Grid
from equipoise.report.html import template
from equipoise.report.layout import Sheet
from equipoise.report.notes import chosen_by, listed, settings_of
from equipoise.report.rendering import latex_sheet
from equipoise.system.files import write_atomically
from equipoise.system.text import cell as safe
from equipoise.system.text import plural

REGION: Final = 1.0  # points: smaller differences do not matter in practice
SURE: Final = 0.95  # the probability from which a method is called better
LEVEL: Final = 0.05  # of p-values by Holm
MISSING, FAILED, SKIPPED = "not run", "failed", "left out"
OF_TUNING: Final = ("tuning_seconds", "tuning_rounds")


class Criterion(NamedTuple):
    """A number by which methods are compared; `sign` is 1 if a higher one is better, else -1."""

    key: str
    title: str
    noun: str
    sign: int


CRITERIA: Final = (
    Criterion("mean", "mean", "the mean", 1),
    Criterion("worst", "worst", "the worst group or client", 1),
    Criterion("std", "STD", "the STD", -1),
)


class Standing(NamedTuple):
    """A method against the reference over the scenarios, by a criterion."""

    wins: int
    ties: int
    losses: int
    probabilities: Probabilities | None
    rank: float | None


class Ranking(NamedTuple):
    """Friedman's p and Nemenyi's critical difference of the mean ranks of k methods over N scenarios."""

    methods: int
    scenarios: int
    p: float
    critical: float

    def __str__(self) -> str:
        n, k = plural(self.scenarios, "scenario"), self.methods
        power = (
            "can show next to nothing" if self.critical > (k - 1) / 2 else "are distinguishable beyond this difference"
        )
        return (
            f"Nemenyi's critical difference is {number(self.critical, 1)} of at most {k - 1} ranks: "
            f"with {k} methods and {n}, mean ranks {power}."
        )


@dataclass(frozen=True)
class Leaderboard:
    """The results of a benchmark.

    Parameters
    ----------
    document : as `leaderboard` takes it.
    """

    document: Content

    @property
    def reference(self) -> str:
        """The method that all others are compared with."""
        return str(self.document["reference"])

    @property
    def _scenarios(self) -> list[str]:
        return [scenario["name"] for scenario in self.document["scenarios"]]

    def cells(self, method: str) -> list[Content | None]:
        """The results of a method, in the order of the scenarios; None if it has not run."""
        return [self.document["cells"].get(scenario, {}).get(method) for scenario in self._scenarios]

    def scores(self, by: Criterion) -> NDArray[np.float64]:
        """Higher is better: minus infinity for a failed cell, NaN for a missing one; shape [scenarios, methods]."""
        columns = [[score(cell, by) for cell in self.cells(method)] for method in self.document["methods"]]
        return np.array(columns, dtype=np.float64).reshape(len(columns), -1).T

    @cached_property
    def standings(self) -> Mapping[str, Mapping[str, Standing]]:
        """By criterion and method."""
        return {by.key: self._standings(by) for by in CRITERIA}

    def _standings(self, by: Criterion) -> dict[str, Standing]:
        scores, methods = self.scores(by), self.document["methods"]
        reference = scores[:, methods.index(self.reference)]
        names, complete = self._complete(by)
        ranks = dict(zip(names, mean_ranks(complete).tolist(), strict=True)) if names else {}
        standings = {}
        for method, column in zip(methods, scores.T, strict=True):
            outcomes = [self.outcome(method, scenario, by.key) for scenario in self._scenarios]
            both = ~np.isnan(column) & ~np.isnan(reference) & (np.isfinite(column) | np.isfinite(reference))
            differences = np.clip(column[both] - reference[both], -100, 100)  # a failure is 100 points lower
            odds = signed_rank(differences, REGION) if method != self.reference and differences.size else None
            wins, ties, losses = map(outcomes.count, (1, 0, -1))
            standings[method] = Standing(wins, ties, losses, odds, ranks.get(method))
        return standings

    def _complete(self, by: Criterion) -> tuple[list[str], NDArray[np.float64]]:
        """The methods with scores on all scenarios on which any method has one, and these scores; shape [scenarios, methods]."""
        scores = self.scores(by)
        scores = scores[~np.isnan(scores).all(axis=1)]
        kept = [j for j, column in enumerate(scores.T) if len(column) and not np.isnan(column).any()]
        return [self.document["methods"][j] for j in kept], scores[:, kept]

    @cached_property
    def rankings(self) -> Mapping[str, Ranking]:
        """By criterion, where at least two methods have results on the same scenarios."""
        every = {by.key: self._complete(by)[1] for by in CRITERIA}
        return {
            key: Ranking(scores.shape[1], len(scores), friedman(scores), critical_difference(*scores.shape[::-1]))
            for key, scores in every.items()
            if scores.shape[1] > 1
        }

    def outcome(self, method: str, scenario: str, key: str) -> int | None:
        """1 if a method is better than the reference in a scenario (Holm), -1 if worse, 0 if neither; None if not compared."""
        cells = self.document["cells"].get(scenario, {})
        cell, other = cells.get(method), cells.get(self.reference)
        if cell is None or other is None or method == self.reference or SKIPPED in (absent(cell), absent(other)):
            return None
        if cell["failed"] or other["failed"]:
            return None if cell["failed"] and other["failed"] else -1 if cell["failed"] else 1
        if cell[key] is None or other[key] is None:
            return None
        test = (cell["versus"] or {}).get(key) or {}
        if test.get("holm") is None or test["holm"] >= LEVEL:
            return 0
        better = test["difference"] > 0
        return 1 if better == (key != "std") else -1

    @cached_property
    def order(self) -> list[str]:
        """The methods, best mean rank first, by the criterion that settings were chosen by (the mean, if it is none of the three)."""
        by = self.document["budget"]["by"]
        standings = self.standings[by if by in self.standings else "mean"]

        ranks = {method: standing.rank for method, standing in standings.items()}
        return sorted(ranks, key=lambda method: ranks[method] or math.inf)

    def absent(self, kind: str) -> dict[str, list[str]]:
        """By scenario, the methods without numbers, of which the kind is `MISSING`, `FAILED` or `SKIPPED`, and why."""
        names: dict[str, list[str]] = {}
        for method in self.document["methods"]:
            for scenario, cell in zip(self._scenarios, self.cells(method), strict=True):
                if absent(cell) == kind:
                    why = cell and (cell.get("skipped") or cell["failed"])
                    names.setdefault(scenario, []).append(f"{method} ({why})" if why else method)
        return names

    def better(self, by: Criterion) -> list[str]:
        """The methods with results on all scenarios that are better than the reference with a probability above .95."""
        whole = [m for m in self.document["methods"] if None not in self.cells(m)]
        return [m for m in whole if (odds := self.standings[by.key][m].probabilities) and odds.better > SURE]

    @cached_property
    def headline(self) -> str:
        """Whether any method beats the tuned reference; if none does, that is the headline."""
        cells, waiting = (
            len(self._scenarios) * len(self.document["methods"]),
            sum(map(len, self.absent(MISSING).values())),
        )
        so_far = f"Not complete ({cells - waiting} of {cells} cells have run). " if waiting else ""
        if None in self.cells(self.reference):
            return f"{so_far}Tuned {self.reference} has not run on every scenario, so nothing can be stated."
        winners = {by.noun: names for by in CRITERIA if (names := self.better(by))}
        if not winners:
            return f"{so_far}No method beats tuned {self.reference}: neither by the mean nor by the worst group or client nor by the STD."
        every = [m for m in self.order if any(m in names for names in winners.values())]
        won = [f"{m} by {listed([noun for noun in winners if m in winners[noun]])}{self._cost(m)}" for m in every]
        losers = [by.noun for by in CRITERIA if by.noun not in winners]
        none = f" None does by {' or by '.join(losers)}." if losers else ""
        beat = f"{plural(len(every), 'method')} beat{'s' * (len(every) == 1)} tuned {self.reference}"
        return f"{so_far}{beat}: {'; '.join(won)}.{none}"

    def _cost(self, method: str) -> str:
        odds = self.standings["mean"][method].probabilities
        return ", with a lower mean" if odds and odds.worse > SURE else ""

    @cached_property
    def notes(self) -> list[str]:
        """What to know before reading a table: what was chosen and tested, at what cost, what is missing and what failed."""
        return list(self._notes())

    def _notes(self) -> Iterator[str]:
        given, n = self.document["budget"], len(self._scenarios)
        scenarios = [f"{s['name']} ({s['title']}, {s['rounds']} rounds)" for s in self.document["scenarios"]]
        yield (
            f"A method beats another over the scenarios if it is better by more than {REGION:g} point with a probability above "
            f"{100 * SURE:g}{PERCENT} (Bayesian signed-rank test over {plural(n, 'scenario')})."
        )
        for by in CRITERIA:
            every = [self.standings[by.key][m] for m in self.document["methods"]]
            wins, ties, losses = (sum(counts) for counts in zip(*(s[:3] for s in every), strict=True))
            yield f"By {by.noun}, in single scenarios: {plural(wins, 'win')}, {ties} ties, {losses} losses against {self.reference} (Holm)."
        yield f"Nothing corrects these probabilities for the number of methods: of {len(self.document['methods']) - 1}, one can pass by chance."
        powers = {str(ranking) for ranking in self.rankings.values()}
        yield from sorted(powers)
        yield f"Scenarios: {'; '.join(scenarios)}."
        yield f"{chosen_by(given['by'], given['draws'], given['validation'])} Reported with {plural(given['seeds'], 'other seed')}."
        every_cell = [cell for m in self.document["methods"] for cell in self.cells(m) if cell]
        seconds, rounds = (sum(cell[key] or 0 for cell in every_cell) for key in OF_TUNING)
        yield f"Choosing cost {rounds:,} rounds and {number(seconds / 60, 1)} processor minutes."
        for kind in (MISSING, FAILED, SKIPPED):
            for scenario, names in self.absent(kind).items():
                yield f"{kind.capitalize()} on {scenario}: {', '.join(names)}."

    def sheets(self) -> list[Sheet]:
        """The standing over the scenarios; per scenario mean, worst, STD; seconds, bytes, cost of tuning."""
        return [
            self._over_scenarios(),
            *map(self._of_criterion, CRITERIA),
            self._of_costs("seconds", "Seconds", "Seconds of training of a run, mean over seeds.", ("seconds",), 1),
            self._of_costs("bytes", "Traffic", "MB that all clients receive and send in a round.", ("bytes",), 1e6),
            self._of_costs("tuning", "Cost of tuning", "Seconds of choosing, and below them its rounds.", OF_TUNING, 1),
        ]

    def _over_scenarios(self) -> Sheet:
        parts = ("W/T/L", "B/E/W", "rank")
        titles = tuple(f"{by.title} {part}" for by in CRITERIA for part in parts)
        rows = [
            (m, tuple(cell for by in CRITERIA for cell in _standing(self.standings[by.key][m]))) for m in self.order
        ]
        ps = [f"{by.title} {p_value(self.rankings[by.key].p)}" for by in CRITERIA if by.key in self.rankings]
        texts = [
            f"W/T/L: wins, ties and losses against {self.reference}. A win or a loss has a p-value by Holm below .05, paired over seeds; a failure is a loss.",
            f"B/E/W: probabilities to be better by more than {REGION:g} point over such scenarios, equal, or worse (Bayesian signed-rank test).",
            "Rank: mean over the scenarios, 1 for the best. A failure ranks last.",
            *([f"Friedman's p: {', '.join(ps)}."] if ps else []),
        ]
        caption = f"Over {plural(len(self._scenarios), 'scenario')}, every method against tuned {self.reference}."
        return Sheet("overall", "Over the scenarios", caption, Grid(titles, tuple(rows)), texts)

    def _of_criterion(self, by: Criterion) -> Sheet:
        rows = [
            (m, tuple(self._result(m, s, cell, by) for s, cell in zip(self._scenarios, self.cells(m), strict=True)))
            for m in self.order
        ]
        texts = [
            f"Below each number: the difference to {self.reference}, its 95{PERCENT} interval over seeds, and its p-value by Holm.",
            "In bold: a win.",
        ]
        heading, better = by.noun.removeprefix("the "), "higher" if by.sign == 1 else "lower"
        unit = "percent" if by.sign == 1 else "points, over groups or clients"
        caption = f"{heading[0].upper()}{heading[1:]} in {unit}, {better} is better."
        return Sheet(
            by.key, heading[0].upper() + heading[1:], caption, Grid(tuple(self._scenarios), tuple(rows)), texts
        )

    def _result(self, method: str, scenario: str, cell: Content | None, by: Criterion) -> Cell:
        if cell is None or absent(cell):
            return Cell(absent(cell))
        test = (cell["versus"] or {}).get(by.key) or {}
        return Cell(number(cell[by.key], 2), ends=_difference(test), best=self.outcome(method, scenario, by.key) == 1)

    def _of_costs(self, name: str, heading: str, caption: str, keys: Sequence[str], unit: float) -> Sheet:
        def of(cell: Content | None) -> Cell:
            if cell is None or absent(cell):
                return Cell(absent(cell))
            first, *more = (cell[key] for key in keys)
            shown = UNDEFINED if first is None else number(first / unit, 2 if first < 10 * unit else 1)
            return Cell(shown, ends=", ".join(f"{n:,}" for n in more if n is not None))

        rows = [(m, tuple(map(of, self.cells(m)))) for m in self.order]
        return Sheet(name, heading, caption, Grid(tuple(self._scenarios), tuple(rows)))

    def latex(self) -> str:
        """The tables in LaTeX, for the package booktabs; those per scenario fit a page turned on its side."""
        comments = (f"% {text}" for text in (self.headline, *self.notes))
        return "\n".join(["% needs the package booktabs", *comments, *map(latex_sheet, self.sheets())])

    def csv(self) -> str:
        """A line per scenario and method, with every number, setting and failure."""
        file = io.StringIO()
        parts = ("difference", "low", "high", "p", "holm")
        costs = ("seconds", "bytes", *OF_TUNING)
        measured = [by.key if part is None else f"{by.key}_{part}" for by in CRITERIA for part in (None, *parts)]
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["scenario", "method", *measured, *costs, "settings", "failed"])
        for method in self.document["methods"]:
            for scenario, cell in zip(self._scenarios, self.cells(method), strict=True):
                if cell is None:
                    writer.writerow([safe(scenario), safe(method), *[None] * (len(measured) + len(costs) + 1), MISSING])
                    continue
                tests = {by.key: (cell["versus"] or {}).get(by.key) or {} for by in CRITERIA}
                numbers = [x for by in CRITERIA for x in (cell[by.key], *map(tests[by.key].get, parts))]
                texts = (settings_of(cell["settings"]), cell.get("skipped") or cell["failed"] or "")
                writer.writerow([safe(scenario), safe(method), *numbers, *map(cell.get, costs), *map(safe, texts)])
        return file.getvalue()

    @property
    def as_dict(self) -> Content:
        """Headline, notes, and of every method its standing by each criterion, as plain JSON types."""
        plain = {
            key: {
                method: s._asdict() | {"probabilities": s.probabilities and s.probabilities._asdict()}
                for method, s in standings.items()
            }
            for key, standings in self.standings.items()
        }
        return {
            "headline": self.headline,
            "notes": self.notes,
            "reference": self.reference,
            "standings": plain,
            "rankings": {
                key: r._asdict() | {"p": None if math.isnan(r.p) else r.p} for key, r in self.rankings.items()
            },
            **{kind: self.absent(kind) for kind in (MISSING, FAILED, SKIPPED)},
        }

    def html(self) -> str:
        """The page; it needs nothing else, and sorts and filters its tables."""
        anchors = {(m, s): f"choice-{i}-{j}" for i, m in enumerate(self.order) for j, s in enumerate(self._scenarios)}
        choices = [
            (anchors[m, s["name"]], m, s, cell, settings_of(cell["settings"]) if cell else "")
            for m in self.order
            for s, cell in zip(self.document["scenarios"], self.cells(m), strict=True)
        ]
        scenarios = {s["name"]: s for s in self.document["scenarios"]}
        return template("leaderboard.html.j2").render(
            board=self, anchors=anchors, choices=choices, scenarios=scenarios, absent=absent
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, and next to it leaderboard.csv and leaderboard.tex, atomically; return the page's path."""
        page = Path(path)
        write_atomically(page.with_name("leaderboard.csv"), self.csv())
        write_atomically(page.with_name("leaderboard.tex"), self.latex())
        return write_atomically(page, self.html())


def leaderboard(document: Content) -> Leaderboard:
    """The leaderboard of a benchmark.

    Parameters
    ----------
    document : title, about, reference, budget (draws, by, seeds, validation), scenarios (name, title, rounds, report), methods, and
        cells by scenario and method: None, or mean, worst and std in percent, costs, settings, failed, versus and tuning, and `skipped`, why a method is left out.

    Raises
    ------
    ValueError : the reference is not among the methods.
    """
    if document["reference"] not in document["methods"]:
        raise ValueError(
            f"the reference must be one of the methods: expected one of {', '.join(document['methods'])}, found {document['reference']}. "
            "Add it to the methods of the suite."
        )
    return Leaderboard(document)


def score(cell: Content | None, by: Criterion) -> float:
    """The number of a cell, higher is better; minus infinity if it failed, NaN if it does not exist."""
    if cell is None or cell.get("skipped"):
        return math.nan
    return -math.inf if cell["failed"] else math.nan if cell[by.key] is None else by.sign * float(cell[by.key])


def absent(cell: Content | None) -> str:
    """Why a cell has no numbers, in a word or two; empty if it has."""
    return MISSING if cell is None else SKIPPED if cell.get("skipped") else FAILED if cell["failed"] else ""


def _difference(test: Mapping[str, float | None]) -> str:
    if (difference := test.get("difference")) is None:
        return ""
    shown = number(difference, 1, sign=True)
    if test.get("low") is None or test.get("high") is None:
        return shown
    holm = "" if test.get("holm") is None else f" {p_value(float(test['holm'] or 0))}"
    return f"{shown} [{number(test['low'], 1, sign=True)}, {number(test['high'], 1, sign=True)}]{holm}"


def _standing(standing: Standing) -> Iterator[Cell]:
    odds = standing.probabilities
    yield Cell(UNDEFINED if odds is None else f"{standing.wins}/{standing.ties}/{standing.losses}")
    yield Cell(
        UNDEFINED if odds is None else "/".join(f"{p:.2f}".removeprefix("0") for p in odds[::-1]),
        best=odds is not None and odds.better > SURE,
    )
    yield Cell(number(standing.rank, 1))
