"""Every method of a benchmark against the tuned reference: per scenario, and over the scenarios; as a page, tables, CSV and LaTeX."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.statistics import Probabilities, critical_difference, friedman, mean_ranks, signed_rank
from equipoise.records.meta import Content
from equipoise.report.formatting import PERCENT, UNDEFINED, Cell, Grid, brief, number, p_value, same_in_every_seed
from equipoise.report.layout import Sheet
from equipoise.report.notes import SHARED, chosen_by, cost_of_choice, listed, marked, settings_of
from equipoise.report.page import ROWS, SHOWN, Block, Bullets, Link, Page, Section, Table, Text
from equipoise.system.grouping import grouped
from equipoise.system.text import plural

REGION: Final = 1.0  # points: smaller differences do not matter in practice
SURE: Final = 0.95  # the probability above which a method is called better
LEVEL: Final = 0.05  # of p-values by Holm
MISSING, FAILED, SKIPPED = "not run", "failed", "left out"
TESTED: Final = ("difference", "low", "high", "p", "holm")
CHOICE: Final = "choice"  # the name of the rows of choices
IN_ROUND, DRAWS = "that all clients receive and send in a round", "the settings, all draws"
COSTS: Final = {  # by key: name, heading and unit of their table, and how it shows a number
    "seconds": ("seconds", "Seconds", "of training of a run, mean over seeds", brief),
    "bytes": ("traffic", "MB", IN_ROUND, lambda n: number(n / 1e6)),
    "tuning_seconds": ("choosing", "Seconds of choosing", DRAWS, brief),
    "tuning_rounds": ("rounds", "Rounds of choosing", DRAWS, "{:,}".format),
}


class Criterion(NamedTuple):
    """A number by which methods are compared; `sign` is 1 if a higher one is better, else -1."""

    key: str
    title: str
    noun: str
    sign: int


WORST: Final = Criterion("worst", "Worst", "the worst group or client", 1)
CRITERIA: Final = (Criterion("mean", "Mean", "the mean", 1), WORST, Criterion("std", "STD", "the STD", -1))


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
        weak = self.critical > (self.methods - 1) / 2
        power = "can show next to nothing" if weak else "are distinguishable beyond this difference"
        return (
            f"Nemenyi's critical difference is {number(self.critical, 1)} of at most {plural(self.methods - 1, 'rank')}: "
            f"with the {self.methods} methods that ran on every scenario ({self.scenarios}), mean ranks {power}."
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

    def cells(self, method: str) -> dict[str, Content]:
        """The results of a method by scenario; empty where it has not run."""
        names = (scenario["name"] for scenario in self.document["scenarios"])
        return {name: self.document["cells"].get(name, {}).get(method) or {} for name in names}

    @cached_property
    def every(self) -> list[tuple[str, str, Content]]:
        """Method, scenario and results of every cell."""
        return [(method, *cell) for method in self.document["methods"] for cell in self.cells(method).items()]

    def scores(self, by: Criterion) -> NDArray[np.float64]:
        """Higher is better: minus infinity for a failed cell, NaN for a missing one; shape [scenarios, methods]."""
        columns = [[score(cell, by) for cell in self.cells(method).values()] for method in self.document["methods"]]
        return np.array(columns, dtype=np.float64).T

    @cached_property
    def standings(self) -> Mapping[str, Mapping[str, Standing]]:
        """By criterion and method."""
        return {by.key: dict(self._standings(by)) for by in CRITERIA}

    def _standings(self, by: Criterion) -> Iterator[tuple[str, Standing]]:
        scores, methods = self.scores(by), self.document["methods"]
        names, complete = self._complete(by)
        ranks = dict(zip(names, mean_ranks(complete).tolist(), strict=True)) if names else {}
        with np.errstate(invalid="ignore"):  # if both failed
            differences = scores.T - scores[:, methods.index(self.reference)]
        for method, of_method in zip(methods, differences, strict=True):
            outcomes = [self.outcome(method, scenario, by) for scenario in self.cells(method)]
            compared = np.clip(of_method[~np.isnan(of_method)], -100, 100)  # a failure is 100 points lower
            odds = signed_rank(compared, REGION) if method != self.reference and compared.size else None
            wins, ties, losses = map(outcomes.count, (1, 0, -1))
            yield method, Standing(wins, ties, losses, odds, ranks.get(method))

    def _complete(self, by: Criterion) -> tuple[list[str], NDArray[np.float64]]:
        """The methods with scores on all scenarios on which any method has one, and these scores; shape [scenarios, methods]."""
        scores = self.scores(by)
        scores = scores[~np.isnan(scores).all(axis=1)]
        places = [j for j, column in enumerate(scores.T) if len(column) and not np.isnan(column).any()]
        return [self.document["methods"][j] for j in places], scores[:, places]

    @cached_property
    def rankings(self) -> Mapping[str, Ranking]:
        """By criterion, where at least two methods have results on the same scenarios."""
        every = {by.key: scores for by in CRITERIA if (scores := self._complete(by)[1]).shape[1] > 1}
        sizes = {key: (scores.shape[1], len(scores)) for key, scores in every.items()}
        return {key: Ranking(*sizes[key], friedman(every[key]), critical_difference(*sizes[key])) for key in every}

    def outcome(self, method: str, scenario: str, by: Criterion) -> int | None:
        """1 if a method is better than the reference in a scenario (Holm), -1 if worse, 0 if neither; None if not compared."""
        cell = self.cells(method)[scenario]
        difference = score(cell, by) - score(self.cells(self.reference)[scenario], by)
        if method == self.reference or math.isnan(difference):
            return None
        holm = tested(cell, by).get("holm")
        if math.isfinite(difference) and (holm is None or holm >= LEVEL):
            return 0
        return 1 if difference > 0 else -1

    @cached_property
    def order(self) -> list[str]:
        """The methods, best mean rank first, by the criterion that settings were chosen by (the mean, if it is none of the three)."""
        standings = self.standings.get(self.document["budget"]["by"], self.standings["mean"])
        return sorted(standings, key=lambda method: standings[method].rank or math.inf)

    def absent(self, kind: str) -> dict[str, list[str]]:
        """By scenario, the methods without numbers, of which the kind is `MISSING`, `FAILED` or `SKIPPED`, and why."""
        cells = [(method, scenario, reason(cell)) for method, scenario, cell in self.every if absent(cell) == kind]
        return grouped((scenario, f"{method} ({text})" if text else method) for method, scenario, text in cells)

    def better(self, by: Criterion) -> list[str]:
        """The methods that have run on all scenarios and are better than the reference with a probability above .95."""
        whole = [method for method in self.order if all(self.cells(method).values())]
        return [m for m in whole if (odds := self.standings[by.key][m].probabilities) and odds.better > SURE]

    @cached_property
    def headline(self) -> str:
        """Whether any method beats the tuned reference; if none does, that is the headline."""
        ran = [bool(cell) for _, _, cell in self.every]
        so_far = "" if all(ran) else f"Not complete ({sum(ran)} of {len(ran)} cells have run). "
        if not all(self.cells(self.reference).values()):
            return f"{so_far}Tuned {self.reference} has not run on every scenario, so nothing can be stated."
        if failed := [f"{name} ({absent(cell)})" for name, cell in self.cells(self.reference).items() if absent(cell)]:
            so_far += f"Tuned {self.reference} has no result on {listed(failed)}. "
        if len(failed) == len(self.document["scenarios"]):
            return f"{so_far}So nothing can be stated."
        won = self.won
        if not won:
            none = "no method beats it, neither by the mean nor by the worst group or client nor by the STD"
            return f"{so_far}If {self.reference} is tuned as well, over the scenarios {none}.{self._in_single()}"
        winners = [f"{method} by {listed(nouns)}{self._price(method)}" for method, nouns in won.items()]
        lost = [by.noun for by in CRITERIA if not any(by.noun in nouns for nouns in won.values())]
        none = f" None does by {' or by '.join(lost)}." if lost else ""
        beat = f"{plural(len(won), 'method')} beat{'s' * (len(won) == 1)} tuned {self.reference}"
        return f"{so_far}{beat}: {'; '.join(winners)}.{none}"

    @property
    def won(self) -> dict[str, list[str]]:
        """By method that beats the reference over the scenarios, by what."""
        better = {by.noun: self.better(by) for by in CRITERIA}
        return {m: nouns for m in self.order if (nouns := [noun for noun, names in better.items() if m in names])}

    @property
    def answer(self) -> str:
        """The headline in at most 25 words, of what has run."""
        cells, tuned = self.cells(self.reference).values(), f"tuned {self.reference}"
        if not all(cells) or all(map(absent, cells)):
            gap = "no result" if all(cells) else "not run on every scenario"
            return f"T{tuned[1:]} has {gap}, so nothing can be stated."
        if not self.won:
            return f"Over the scenarios no method beats {tuned}, by mean, worst group or STD."
        method, nouns = next(iter(self.won.items()))
        gains = f"by {listed(nouns)}{self._price(method)}"
        if len(self.won) == 1:
            return f"Over the scenarios {method} beats {tuned} {gains}."
        return f"Over the scenarios {len(self.won)} methods beat {tuned}; {method} does {gains}."

    def _in_single(self) -> str:
        """The scenarios on which methods beat the reference by the worst group or client, and which they are."""
        won = {s: [m for m in self.order if self.outcome(m, s, WORST) == 1] for s in self.cells(self.reference)}
        where = [f"on {name} {listed(methods)}" for name, methods in won.items() if methods]
        return f" In single scenarios some do, by {WORST.noun}: {'; '.join(where)}." if where else ""

    def _price(self, method: str) -> str:
        odds = self.standings["mean"][method].probabilities
        return ", with a lower mean" if odds and odds.worse > SURE else ""

    @cached_property
    def notes(self) -> list[str]:
        """What to know before reading a table: what was chosen and tested, at what cost, what is missing and what failed."""
        return list(self._notes())

    def _notes(self) -> Iterator[str]:
        given, scenarios, methods = (self.document[key] for key in ("budget", "scenarios", "methods"))
        yield (
            f"A method beats another over the scenarios if it is better by more than {REGION:g} point with a probability above "
            f"{100 * SURE:g}{PERCENT} (Bayesian signed-rank test over {self._compared()})."
        )
        yield f"Nothing corrects these probabilities for the number of methods: of {len(methods) - 1} rivals, one can pass by chance."
        for by in CRITERIA:
            counts = zip(*(standing[:3] for standing in self.standings[by.key].values()), strict=True)
            wins, ties, losses = map(sum, counts)
            yield f"By {by.noun}, in single scenarios: {plural(wins, 'win')}, {plural(ties, 'tie')}, {losses} loss{'es' * (losses != 1)} against {self.reference} (Holm)."
        yield from sorted({str(ranking) for ranking in self.rankings.values()})
        rounds = [s["rounds"] for s in scenarios if s["rounds"]]
        yield f"Scenarios: {'; '.join(map(_described, scenarios))}."
        yield f"{chosen_by(given['by'], given['draws'], given['validation'], *rounds)} Reported with {plural(given['seeds'], 'other seed')}."
        yield SHARED
        costs = ("tuning_seconds", "tuning_rounds")
        yield cost_of_choice(*(sum(cell.get(key) or 0 for *_, cell in self.every) for key in costs))
        yield from self.gaps

    @property
    def gaps(self) -> list[str]:
        """The cells without numbers, and why."""
        by_kind = {kind.capitalize(): self.absent(kind) for kind in (MISSING, FAILED, SKIPPED)}
        return [f"{kind} on {s}: {', '.join(names)}." for kind, cells in by_kind.items() for s, names in cells.items()]

    def _compared(self) -> str:
        """How many scenarios the reference is not left out on."""
        return plural(sum(absent(cell) != SKIPPED for cell in self.cells(self.reference).values()), "scenario")

    def row(self, method: str) -> str:
        """A method as rows show it."""
        return marked(method, self.document["budget"]["by"])

    def sheets(self) -> list[Sheet]:
        """The standing over the scenarios; per scenario mean, worst, STD; seconds, bytes, cost of tuning."""
        return [self._over_scenarios(), *map(self._criterion_sheet, CRITERIA), *map(self._cost_sheet, COSTS)]

    def _over_scenarios(self) -> Sheet:
        titles = tuple(f"{by.title} {part}" for by in CRITERIA for part in ("W/T/L", "B/E/W", "rank"))
        standings = {m: [self.standings[by.key][m] for by in CRITERIA] for m in self.order}
        rows = ((self.row(m), tuple(chain.from_iterable(map(_standing, row)))) for m, row in standings.items())
        ps = [f"{by.title} {p_value(r.p)}" for by in CRITERIA if (r := self.rankings.get(by.key)) and r.p >= 0]
        texts = [
            f"W/T/L: wins, ties and losses against {self.reference}. A win or a loss has a p-value by Holm below .05, paired over seeds; a failure is a loss.",
            f"B/E/W: probabilities to be better by more than {REGION:g} point over such scenarios, equal, or worse (Bayesian signed-rank test).",
            "Rank: mean over the scenarios, 1 for the best. A failure ranks last. A method that did not run on every scenario has none.",
            *([f"Friedman's p: {', '.join(ps)}."] if ps else []),
        ]
        caption = f"Every method against tuned {self.reference}, over {self._compared()}."
        return Sheet("overall", "Over the scenarios", caption, Grid(titles, tuple(rows)), texts)

    def _criterion_sheet(self, by: Criterion) -> Sheet:
        def show(method: str, scenario: str, cell: Content) -> Cell:
            outcome, ends = self.outcome(method, scenario, by), _difference(tested(cell, by))
            return Cell(number(cell[by.key]), ends=ends, best=outcome == 1, worse=outcome == -1)

        unit = "in percent, higher is better" if by.sign == 1 else "over groups or clients in points, lower is better"
        below = f"Below each number: the difference to {self.reference}, its 95{PERCENT} interval over seeds, and its p-value by Holm."
        if self.document["budget"]["seeds"] == 1:
            below = f"Below each number: the difference to {self.reference} and its 95{PERCENT} interval over the test samples of the one seed."
        noun = by.noun.removeprefix("the ")
        heading = noun[0].upper() + noun[1:]
        return self._table(by.key, heading, f"{unit}{self._when()}", show, (below, "In bold: a win."))

    def _when(self) -> str:
        """The rounds that the numbers are of, once if all scenarios agree, after a comma or a full stop."""
        names = grouped((s["shown"], s["name"]) for s in self.document["scenarios"] if s["shown"])
        if len(names) == 1:
            return f", {next(iter(names))}"
        return "".join(f". On {listed(those)}: {rounds}" for rounds, those in names.items())

    def _cost_sheet(self, key: str) -> Sheet:
        name, heading, about, show = COSTS[key]
        return self._table(name, heading, about, lambda _, __, x: Cell(UNDEFINED if x[key] is None else show(x[key])))

    def _table(
        self, name: str, heading: str, about: str, show: Callable[[str, str, Content], Cell], texts: Sequence[str] = ()
    ) -> Sheet:
        """A table with a column per scenario; its numbers lead to the choices that they are of."""
        names, places, rows = (*self.cells(self.reference),), count(), []
        for m in self.order:
            cells = (_absent(x) if absent(x) else show(m, s, x) for s, x in self.cells(m).items())
            rows.append((self.row(m), tuple(cell._replace(link=f"#{CHOICE}-{next(places)}") for cell in cells)))
        return Sheet(name, heading, f"{heading} {about}.", Grid(names, tuple(rows)), texts)

    @property
    def _printed(self) -> dict[str, str]:
        """The names of methods in papers, of those that ran."""
        return {method: printed for method, _, cell in self.every if (printed := cell.get("printed"))}

    def _numbers(self) -> Iterator[list[object]]:
        """A line per scenario and method, with every number, setting and failure."""
        measured = [name for by in CRITERIA for name in (by.key, *(f"{by.key}_{part}" for part in TESTED))]
        yield ["scenario", "method", *measured, *COSTS, "settings", "failed"]
        for method, scenario, cell in self.every:
            numbers = [x for by in CRITERIA for x in (cell.get(by.key), *map(tested(cell, by).get, TESTED))]
            texts = (chosen(cell), reason(cell) or absent(cell))
            yield [scenario, self.row(method), *numbers, *map(cell.get, COSTS), *texts]

    @property
    def as_dict(self) -> Content:
        """Headline, notes, and of every method its standing by each criterion, as plain JSON types."""

        def plain(standing: Standing) -> Content:
            return standing._asdict() | {"probabilities": standing.probabilities and standing.probabilities._asdict()}

        standings = {key: {m: plain(standing) for m, standing in by.items()} for key, by in self.standings.items()}
        rankings = {key: x._asdict() | {"p": x.p if x.p >= 0 else None} for key, x in self.rankings.items()}
        return {
            "headline": self.headline, "notes": self.notes, "reference": self.reference, "standings": standings, "rankings": rankings,
            "missing": self.absent(MISSING), "failed": self.absent(FAILED), "skipped": self.absent(SKIPPED),
        }  # fmt: skip

    @cached_property
    def page(self) -> Page:
        """The headline and the best methods over the scenarios, then every table, choice and failure."""
        document, (overall, *sheets), seeds = self.document, self.sheets(), self.document["budget"]["seeds"]
        parts = zip(("W/T/L", "B/E/W", "rank"), overall.explanations, strict=False)
        counts = Counter(absent(cell) for *_, cell in self.every)
        gaps = ", ".join(f"{counts[kind]} {kind}" for kind in (MISSING, FAILED, SKIPPED) if counts[kind])
        summary: list[Block] = [Text(self.headline), Bullets(self.notes)]
        best = Table(overall.grid._replace(rows=overall.grid.rows[:ROWS]))
        facts = ((len(self.order), "method"), (len(document["scenarios"]), "scenario"), (seeds, "seed"))
        return Page(
            document["title"], "Leaderboard", [plural(n, noun) for n, noun in facts], self.answer,
            notices=[f"Cells without a number: {gaps}; see every choice and failure below."] * bool(gaps),
            links=[Link("All numbers as CSV", "leaderboard.csv"), Link("All tables in LaTeX", "leaderboard.tex")],
            sections=[Section(SHOWN, "What the numbers show", summary), *map(_section, (overall, *sheets)), self._choices()],
            terms={f"{by.title} {part}": (overall.name, text) for part, text in parts for by in CRITERIA},
            first=[best, Text(f"{overall.caption} {document['about']}", "caption")], folded=True,
            sheets=(overall, *sheets), numbers=[*self._numbers()], names=self._printed,
        )  # fmt: skip

    def _choices(self) -> Section:
        """What was chosen for each method on each scenario, and why a cell has no number."""
        reports, rows = {scenario["name"]: scenario["report"] for scenario in self.document["scenarios"]}, []
        for method in self.order:
            for scenario, cell in self.cells(method).items():
                draws, runs = cell.get("tuning") or "", reports[scenario] * (cell.get("seconds") is not None)
                gap = _absent(cell, reason(cell))
                links = (Cell("draws" * bool(draws), link=draws), Cell("curves" * bool(runs), link=runs))
                rows.append((self.row(method), (Cell(scenario), Cell(chosen(cell) or UNDEFINED), gap, *links)))
        grid = Grid(("scenario", "chosen", "no result", "all draws", "reported runs"), tuple(rows))
        more = [Link(f"All about the runs on {name}", address) for name, address in reports.items() if address]
        return Section("choices", "Every choice and failure", [Table(grid, kind="lines", name=CHOICE), *more])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, and next to it leaderboard.csv and leaderboard.tex, atomically; return the page's path."""
        for name in ("leaderboard.csv", "leaderboard.tex"):
            self.page.save(Path(path).with_name(name))
        return self.page.save(path)


def leaderboard(document: Content) -> Leaderboard:
    """The leaderboard of a benchmark.

    Parameters
    ----------
    document : title, about, reference, budget (draws, by, seeds, validation), scenarios (name, title, rounds, the rounds shown, report), methods, and
        cells by scenario and method: None, or the printed name of the method, mean, worst and std in percent, costs, settings, failed, versus and tuning. A cell with
        `skipped`, the reason, is left out.
    """
    return Leaderboard(document)


def _section(sheet: Sheet) -> Section:
    """A table with its sentences."""
    blocks: list[Block] = [Text(sheet.caption), Table(sheet.grid, kind="lines"), Bullets(sheet.sentences)]
    return Section(sheet.name, sheet.heading, blocks)


def score(cell: Content, by: Criterion) -> float:
    """The number of a cell, higher is better; minus infinity if it failed, NaN if it does not exist."""
    if absent(cell):
        return -math.inf if absent(cell) == FAILED else math.nan
    return math.nan if cell[by.key] is None else by.sign * float(cell[by.key])


def tested(cell: Content, by: Criterion) -> Content:
    """The difference of a cell to the reference; empty if there is none."""
    return (cell.get("versus") or {}).get(by.key) or {}


def absent(cell: Content) -> str:
    """Why a cell has no numbers, in a word or two; empty if it has."""
    return MISSING if not cell else SKIPPED if cell.get("skipped") else FAILED if cell["failed"] else ""


def _absent(cell: Content, *more: str) -> Cell:
    """Why a cell has no numbers, as tables have it."""
    return Cell(": ".join(filter(None, (absent(cell), *more))), worse=absent(cell) == FAILED)


def reason(cell: Content) -> str:
    """Why a cell failed or is left out; empty if it is neither."""
    return str(cell.get("skipped") or cell.get("failed") or "")


def chosen(cell: Content) -> str:
    """The settings of a cell; empty if none were chosen."""
    return settings_of(cell["settings"], cell.get("defaults", {})) if cell.get("tuning") else ""


def _described(scenario: Content) -> str:
    title = f"{scenario['title']}, " * (scenario["title"] not in ("", scenario["name"]))
    return f"{scenario['name']} ({title}{plural(scenario['rounds'], 'round') if scenario['rounds'] else MISSING})"


def _difference(test: Mapping[str, Any]) -> str:
    if (mean := test.get("difference")) is None:
        return ""
    if test.get("low") is None:
        return same_in_every_seed(mean, 1) if (test.get("seeds") or 0) > 1 else ""
    difference, low, high = (number(test.get(key), 1, sign=True) for key in TESTED[:3])
    holm = "" if (p := test.get("holm")) is None else f" {p_value(p)}"
    return f"{difference} [{low}, {high}]{holm}"


def _standing(standing: Standing) -> Iterator[Cell]:
    odds = standing.probabilities
    yield Cell(f"{standing.wins}/{standing.ties}/{standing.losses}" if odds else UNDEFINED)
    shares = "/".join(f"{p:.2f}".removeprefix("0") for p in odds[::-1]) if odds else UNDEFINED
    yield Cell(shares, best=odds is not None and odds.better > SURE)
    yield Cell(number(standing.rank, 1))
