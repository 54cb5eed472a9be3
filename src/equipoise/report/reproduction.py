"""A reproduced table: ours beside the paper's, and what a paper claims with what our runs say of it; for the terminal, Markdown, LaTeX, CSV and HTML."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from equipoise.metrics.communication import traffic
from equipoise.metrics.definitions import GROUPS
from equipoise.metrics.statistics import MOST, Judgement
from equipoise.records.history import History
from equipoise.records.meta import Content
from equipoise.report.document import Numbers
from equipoise.report.drawing import Figure, svg
from equipoise.report.formatting import UNDEFINED, Cell, Grid, grid_of, number
from equipoise.report.layout import Sheet
from equipoise.report.page import Bullets, Link, Page, Picture, Pictures, Section, Table, Text, made_with
from equipoise.report.rendering import rich_sheets
from equipoise.report.statistics import summary_of
from equipoise.system.text import csv_text, plural

if TYPE_CHECKING:
    from rich.console import Group

EMBEDDED = "These runs are on the embedded stand-in data, scaled down, and the paper's numbers are on its own data: compare the order of the rows, never the values."


CALIBRATED = (
    "A row fits if its mean lies within two standard deviations of both together of the paper's, 2 √(s² + p²): s is ours over seeds, or over "
    "divisions where there are several, p the paper's. Fewer than three cannot tell. One division is the paper's or not; several say whether the "
    "paper's could be one of them."
)
NUMBERS = (  # of a cell, in the file for a program
    "part", "row", "column", "mean", "std", "ci95", "seeds", "paper", "paper_std", "difference", "embedded", "divisions", "within",
)  # fmt: skip
PAPER = "paper"  # the name of rows with the paper's numbers
LEAST, FEW = 3, "fewer than three seeds or divisions"  # by whose spread nothing is judged
AVERAGED = "of the last five rounds that were evaluated, in percent"
LAST = "of the last round that was evaluated, in percent"
LAST_20 = "mean over the last 20 rounds in which clients were evaluated, or all if fewer"
BEST = "in the best of all rounds, chosen by the test data, so that nobody could have stopped there"


class RunNumber(NamedTuple):
    """A number of one run that a column of a reproduced table shows.

    Parameters
    ----------
    compute : makes it, of a history, how many of the last rounds to average, and a measure; None where it is not
        defined.
    measured : in which unit and rounds it is.
    correlates : whether it is a correlation of contributions with rewards.
    """

    compute: "Callable[[History, int, str], float | None]"
    measured: str = AVERAGED
    correlates: bool = False


def group_numbers(history: "History", last: int, measure: str) -> Numbers:
    """Summary of a run as the tables show it; empty if it did not record the measure."""
    return summary_of(history, last, measure) if measure in history.measures else {}


def _group_number(key: str, measured: str = AVERAGED) -> RunNumber:
    return RunNumber(lambda history, last, measure: group_numbers(history, last, measure).get(key), measured)


def _client_number(key: str, measured: str = LAST, over: int | None = None, correlates: bool = False) -> RunNumber:
    return RunNumber(
        lambda run, last, _: (run.summary(over or last)["collaboration"] or {}).get(key), measured, correlates
    )


def _correlation(key: str, when: str = "in the last round that was evaluated", over: int | None = None) -> RunNumber:
    return _client_number(key, f"100 times the correlation, {when}", over, correlates=True)


def _mean_client(history: "History", last: int, measure: str) -> float | None:
    """Mean accuracy of the clients' own models in one round, the last with an evaluation, like `last`."""
    table = history.client_table()[1]
    accuracy = 100 * float(table[-1].mean()) if table.size else math.nan
    return accuracy if math.isfinite(accuracy) else None


def _traffic(history: "History", last: int, measure: str) -> float | None:
    """MiB that a client receives and sends in a round."""
    return traffic(history.records).total / 2**20 if any("bytes" in r for r in history.records) else None


STATISTICS: "Mapping[str, RunNumber]" = {  # what columns of an experiment's file can name
    **{column.key: _group_number(column.key) for column in GROUPS},
    "last": _group_number("last", LAST),
    "best": _group_number("best", "of the best of all rounds by the test data, in percent"),
    "fairness": _correlation("fairness"),
    "spearman": _correlation("spearman"),
    **{key: _client_number(key) for key in ("max", "min", "mean")},
    "fairness_last20": _correlation("fairness_mean", LAST_20, 20),
    "fairness_best": _correlation("fairness_oracle", BEST),
    "max_last20": _client_number("max_mean", f"{LAST_20}, in percent", 20),
    "max_best": _client_number("max_oracle", f"{BEST}, in percent"),
    "mean_client": RunNumber(_mean_client, LAST),
    "traffic": RunNumber(_traffic, "in MiB, of one client in one round"),
}


class ReproducedValue(NamedTuple):
    """A cell: the values of the seeds, their mean, spread (ddof 1) and 95 % half-width, and what the paper prints.

    Of several ``divisions`` of the data spread and half-width are those of the divisions' means, and ``within`` is the spread over the seeds
    of one. ``mark`` is shown behind the number: `≈` where it may be of noise.
    """

    values: tuple[float, ...]
    mean: float
    std: float
    ci95: float
    paper: float | None = None
    paper_std: float | None = None
    within: float = math.nan
    divisions: int = 0
    mark: str = ""

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.paper is None or math.isnan(self.mean) else self.mean - self.paper


@dataclass(frozen=True)
class Block:
    """A block of the table: its columns, its rows and their entries; ``missing`` says why a row has none.

    ``measured`` says in which unit and rounds the numbers are, ``doubts`` are warnings about them; ``divisions`` of the data each have all
    seeds, 0 where each seed draws its own.
    """

    name: str
    title: str
    scenario: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    entries: Mapping[tuple[str, str], ReproducedValue]
    missing: Mapping[str, str] = field(default_factory=dict)
    seeds: int = 0
    measured: str = AVERAGED
    doubts: tuple[str, ...] = ()
    divisions: int = 0

    def agreement(self, column: str) -> tuple[float, int] | None:
        """Kendall's tau-b between our order of the rows and the paper's, and over how many rows; None below three."""
        from scipy.stats import kendalltau

        both = [e for row in self.rows if (e := self.entries[row, column]).difference is not None]
        if len(both) < 3:
            return None
        tau = float(kendalltau([e.mean for e in both], [e.paper for e in both]).statistic)
        return None if math.isnan(tau) else (tau, len(both))


class Calibrated(NamedTuple):
    """A row by which a part is calibrated: ours beside the paper's; ``why`` is the reason that it says nothing.

    It fits if both means differ by no more than two standard deviations of both together, `2 √(s² + p²)`: s is ours over the seeds of a
    division, or over three divisions or more, and p the paper's.
    """

    part: str
    row: str
    column: str
    entry: ReproducedValue
    why: str = ""

    @property
    def allowed(self) -> float:
        """How far apart both means may be."""
        return 2 * math.hypot(self.entry.std, self.entry.paper_std or 0.0)

    @property
    def fits(self) -> bool | None:
        """Whether ours is the paper's within both spreads; None if that cannot be told."""
        return None if self.why or self.entry.difference is None else abs(self.entry.difference) <= self.allowed

    def __str__(self) -> str:
        e, away = self.entry, self.entry.difference or 0.0
        apart = f"{number(abs(away))} {'lower' if away < 0 else 'higher'}, {number(self.allowed)} allowed"
        numbers = f"{number(e.mean)} ±{number(e.std)}, the paper's {theirs(e, embedded=True) or UNDEFINED}"
        return f"{self.row} {self.column} {numbers}: {self.why or apart}"


def calibration(rows: Sequence[Calibrated]) -> str:
    """Whether the division of a part is the paper's within its spread, and by which numbers."""
    if wrong := [row.row for row in rows if row.fits is False]:
        text = f"Not calibrated: {' and '.join(wrong)} {'do' if len(wrong) > 1 else 'does'} not fit"
        text += "; the division, or how clients train alone, is not the paper's" if wrong[0] == rows[0].row else ""
        text += ", so differences of other rows to the paper's need not be due to their methods"
    elif all(row.fits for row in rows):
        text = "Calibrated: the division is the paper's within its spread"
    else:
        text = "Not known: whether the division is the paper's cannot be told, so conclude nothing from other rows yet"
    return f"{text}. {'; '.join(map(str, rows))}."


HOW = (
    "Difference: mean with its 95 % interval over seeds (Student's t), or over divisions of the data where there are several, paired by seed "
    "where two rows are compared. Each interval is one by itself, not corrected for how many claims there are: of 20 claims where in truth there is "
    "no difference (or just one as large as the margin), about one would seem to hold or not to hold by chance alone, and more where seeds were "
    "added after a look at the first. The seeds that would tell do so in four of five cases, if mean and spread stay as they are."
)
EMBEDDED_CLAIMS = "All this is of embedded data that come with Equipoise, not of the paper's own."
DOUBTS = "Before you rely on a verdict, read the doubts that stand below the numbers of:"
CHOSEN = (
    "Tried: the mean accuracy, in percent, over trial runs with seeds of their own and the last five rounds that were validated, on "
    "samples that clients held out of their own training data. The best is taken, the first of those that are equal; the runs of the "
    "table train on all samples. Test data decide nothing here."
)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim in one part: ``row``, less the row ``than`` or less ``value``, has a direction.

    ``planned`` is how many seeds it should have, ``judgement`` what those say that all its rows have, and ``why`` the reason that they say
    nothing, or that there are none.
    """

    text: str
    source: str
    part: str
    title: str
    row: str
    than: str | None
    value: float | None
    column: str
    direction: str
    margin: float | None
    planned: int
    judgement: Judgement
    why: str = ""

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold here``, ``cannot be told`` or ``not run``."""
        if self.why:
            return "cannot be told" if self.judgement.n else "not run"
        return self.judgement.verdict + " here" * (self.judgement.verdict == "does not hold")

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        judged, remark = self.judgement, self.why
        equal = "" if self.margin is None else f" (up to {self.margin:g} counts as equal)"
        ends = "" if math.isnan(judged.low) else f" [{number(judged.low, sign=True)}, {number(judged.high, sign=True)}]"
        if not remark and not math.isnan(n := judged.seeds_needed):
            remark = f"{'no number of' if math.isinf(n) else f'more than {MOST:,}' if n > MOST else f'about {n:.0f}'} seeds would tell"
        ran = f"{self.row} − {self.than or f'{self.value:g}'}, {self.column}: {self.direction}{equal}"
        seeds = str(judged.n) if judged.n == self.planned else f"{judged.n} of {self.planned}"
        verdict = f"{self.verdict}: {remark}" if remark else self.verdict
        return (f"{self.text} ({self.source})", self.title, ran, number(judged.mean, sign=True) + ends, seeds, verdict)

    def plain(self) -> Content:
        """Plain JSON types."""
        judged, needed = self.judgement, self.judgement.seeds_needed
        stated = ("text", "source", "part", "row", "than", "value", "column", "direction", "margin")
        numbers = {"mean": judged.mean, "low": judged.low, "high": judged.high}
        return {
            **{name: getattr(self, name) for name in stated}, "seeds": judged.n,
            **{key: None if math.isnan(v) else v for key, v in numbers.items()}, "verdict": self.verdict,
            "seeds_needed": int(needed) if needed <= MOST and not self.why else None, "why": self.why,
        }  # fmt: skip


class Tried(NamedTuple):
    """A candidate: its settings, its mean validation accuracy in percent, NaN if it is out, and why it is."""

    settings: Mapping[str, object]
    accuracy: float
    why: str = ""

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.settings.items())


class Chosen(NamedTuple):
    """What a row tried in a part."""

    part: str
    title: str
    row: str
    tried: tuple[Tried, ...]

    @property
    def taken(self) -> Tried | None:
        """The candidate with the best accuracy, the first of those; None if all are out."""
        left = [trial for trial in self.tried if not math.isnan(trial.accuracy)]
        return max(left, key=lambda trial: trial.accuracy, default=None)

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        tried = (f"{trial}: {f'out ({trial.why})' if trial.why else number(trial.accuracy)}" for trial in self.tried)
        return self.title, self.row, "; ".join(tried), str(self.taken or UNDEFINED)

    def plain(self) -> Content:
        """Plain JSON types."""
        candidates = [
            {"settings": dict(trial.settings), "accuracy": None if trial.why else trial.accuracy, "why": trial.why} for trial in self.tried
        ]  # fmt: skip
        taken = None if self.taken is None else dict(self.taken.settings)
        return {"part": self.part, "row": self.row, "candidates": candidates, "taken": taken}


def decided(
    claims: Sequence[JudgedClaim], chosen: Sequence[Chosen], *, embedded: bool, doubted: Sequence[str] = ()
) -> list[Sheet]:
    """The claims, and what was chosen: those of the two that there are.

    Parameters
    ----------
    claims, chosen : line by line.
    embedded : the data come with Equipoise.
    doubted : titles of parts with doubts about their runs.
    """
    columns = ("claim", "where", "what we ran", "difference", "seeds", "verdict")
    doubts = [f"{DOUBTS} {'; '.join(doubted)}."] * bool(doubted)
    tables: list[tuple[str, str, tuple[str, ...], Sequence[JudgedClaim | Chosen], str]] = [
        ("claims", "What the paper claims", columns, claims, " ".join([HOW, *[EMBEDDED_CLAIMS] * embedded, *doubts])),
        ("choices", "What was chosen", ("where", "row", "tried", "taken"), chosen, CHOSEN),
    ]
    return [
        Sheet(name, heading, f"{heading}.", _grid(rows, titles), [text], narrow=True, prose=True, head=head)
        for name, heading, (head, *titles), rows, text in tables
        if rows
    ]


def _grid(rows: Sequence[JudgedClaim | Chosen], titles: Sequence[str]) -> Grid:
    """The last of the cells of claims or choices, as many as there are titles, next to the first."""
    return grid_of([(row.cells[0], row.cells[-len(titles) :]) for row in rows], titles)


def claims_csv(claims: Sequence[JudgedClaim]) -> str:
    """For a program: one line per claim and part."""
    return csv_text([claims[0].plain(), *(claim.plain().values() for claim in claims)])


@dataclass(frozen=True)
class Result:
    """A reproduced table or figure; ``embedded`` says that stand-ins are set beside a paper's numbers, ``reads`` whether files were read."""

    title: str
    citation: str
    about: str
    note: str
    embedded: bool
    parts: tuple[Block, ...]
    ours: tuple[tuple[str, str], ...]
    settings: Mapping[str, str]
    claims: tuple[JudgedClaim, ...] = ()
    chosen: tuple[Chosen, ...] = ()
    reads: bool = True
    calibrated: tuple[Calibrated, ...] = ()

    def calibration(self, part: str) -> str:
        """Whether the division of a part is the paper's; empty if nothing calibrates it."""
        rows = [row for row in self.calibrated if row.part == part]
        return calibration(rows) if rows else ""

    @property
    def fits(self) -> str:
        """Which parts are calibrated, which are not, and by which rule; empty if nothing calibrates."""
        texts = {part.title: text for part in self.parts if (text := self.calibration(part.name))}
        verdicts = "; ".join(f"{title}: {text.partition(':')[0].lower()}" for title, text in texts.items())
        return f"Whether the division is the paper's. {verdicts}. {CALIBRATED}" if texts else ""

    @property
    def decided(self) -> list[Sheet]:
        """The claims with their verdicts, and what rows chose."""
        parts = {claim.part for claim in self.claims}
        doubted = [part.title for part in self.parts if part.doubts and part.name in parts]
        return decided(self.claims, self.chosen, embedded=not self.reads, doubted=doubted)


def ours(entry: ReproducedValue) -> str:
    """Mean and 95 % half-width over seeds; of several divisions also both spreads."""
    spreads = f" ({number(entry.within)}, {number(entry.std)})" if entry.divisions > 1 else ""
    return number(entry.mean) + entry.mark + ("" if math.isnan(entry.ci95) else f" ±{number(entry.ci95)}") + spreads


def theirs(entry: ReproducedValue, *, embedded: bool) -> str:
    """The paper's number and, on the same data, the difference of ours."""
    if entry.paper is None:
        return ""
    text = number(entry.paper) + ("" if entry.paper_std is None else f" ±{number(entry.paper_std)}")
    return text if embedded or entry.difference is None else f"{text} ({number(entry.difference, sign=True)})"


def sheet(result: Result, part: Block) -> Sheet:
    """A block as a table: our numbers of every row, and below them the paper's, if it has any."""
    rows: list[tuple[str, list[str]]] = []
    for row in part.rows:
        entries = [part.entries[row, column] for column in part.columns]
        rows.append((row, [*map(ours, entries)]))
        if any(entry.paper is not None for entry in entries):
            rows.append((PAPER, [theirs(entry, embedded=result.embedded) for entry in entries]))
    texts = [*filter(None, [result.calibration(part.name)]), *sentences(result, part)]
    return Sheet(part.name, part.title, f"{result.title}: {part.title}.", grid_of(rows, part.columns), texts)


def sentences(result: Result, part: Block) -> list[str]:
    """The sentences below a block."""
    interval = "one seed, so no interval"
    if part.seeds > 1:
        interval = "mean ± half the 95 % interval over seeds (Student's t)"
    if part.divisions > 1:
        interval = (
            f"mean ± half the 95 % interval over {part.divisions} divisions of the data (Student's t), and in brackets the standard deviation "
            "over the seeds of one division and that over the divisions' means; figures and the full report are of the first division"
        )
    texts = [f"Ours: {interval}, {part.measured}.", *part.doubts]
    if any(e.paper is not None for e in part.entries.values()):
        less = "" if result.embedded else ", and in brackets ours less the paper's"
        texts.append(f"{PAPER!r}: the paper's number{less}.")
        if any(e.paper_std is not None for e in part.entries.values()):
            texts.append("The paper's ± is a standard deviation.")
    if result.embedded:
        texts.append(EMBEDDED)
    taus = {column: agreement for column in part.columns if (agreement := part.agreement(column))}
    if orders := [f"{column} {number(tau, sign=True)} ({n} rows)" for column, (tau, n) in taus.items()]:
        order = "Order of the rows, Kendall's tau with the paper's (1: the same, 0: unrelated)"
        texts.append(f"{order}: {', '.join(orders)}.")
    texts += [f"{row}: {why}." for row, why in part.missing.items()]
    return texts


def _sheets(result: Result) -> list[Sheet]:
    """A table per block, then the claims and what was chosen."""
    return [*(sheet(result, part) for part in result.parts), *result.decided]


def rich_tables(result: Result, width: int) -> "Group":
    """For the terminal."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Text | Group] = [Text(result.fits), *rich_sheets(_sheets(result), width), Text(result.note)]
    return Group(*[line for part in parts if part for line in (part, "")])


def as_dict(result: Result) -> Content:
    """Plain JSON types."""

    def plain(value: float | None) -> float | None:
        return None if value is None or math.isnan(value) else float(value)

    def numbers(e: ReproducedValue) -> Content:
        return {
            "values": list(e.values), "mean": plain(e.mean), "std": plain(e.std), "ci95": plain(e.ci95), "paper": e.paper, "paper_std": e.paper_std,
            "difference": None if result.embedded else plain(e.difference), "divisions": e.divisions, "within": plain(e.within),
        }  # fmt: skip

    return {
        "title": result.title, "citation": result.citation, "embedded": result.embedded, "settings": dict(result.settings),
        "ours": [{"what": what, "why": why} for what, why in result.ours], "note": result.note,
        "doubts": {part.name: list(part.doubts) for part in result.parts if part.doubts},
        "cells": [
            {"part": part.name, "row": row, "column": column, **numbers(e), "noise": bool(e.mark)}
            for part in result.parts for row, column in product(part.rows, part.columns) for e in [part.entries[row, column]]
        ],
        "calibration": [
            {"part": part, "row": row, "column": column, **numbers(e), "allowed": plain(c.allowed), "fits": c.fits, "why": why}
            for c in result.calibrated for part, row, column, e, why in [c]
        ],
        "calibrated": {part.name: text for part in result.parts if (text := result.calibration(part.name))},
        "claims": [claim.plain() for claim in result.claims], "chosen": [choice.plain() for choice in result.chosen],
        "missing": {f"{part.name}/{row}": why for part in result.parts for row, why in part.missing.items()},
    }  # fmt: skip


def _numbers(result: Result) -> list[list[object]]:
    """For a program: one line per cell."""
    lines: list[list[object]] = [[*NUMBERS]]
    for cell in as_dict(result)["cells"]:
        numbers = cell | {"seeds": len(cell["values"]), "embedded": int(result.embedded)}
        lines.append([round(x, 4) if isinstance(x, float) else x for x in map(numbers.get, NUMBERS)])
    return lines


def page(
    result: Result,
    figures: Mapping[str, Figure] | None = None,
    reports: Mapping[str, str] | None = None,
    versions: Sequence[tuple[str, str]] = (),
) -> Page:
    """Which claims hold, then every number.

    Parameters
    ----------
    figures : by name; a figure's label (``Figure.set_label``) is its caption.
    reports : by part, the address of the full report of its runs, relative to the page.
    versions : packages and their versions, for the last line.
    """
    plates = [Picture(name, "", svg(name, figure), str(figure.get_label())) for name, figure in (figures or {}).items()]
    grid = _grid(result.claims, ("difference", "seeds", "verdict"))
    first = [Table(grid, head="Claim", kind="settings")] * bool(result.claims)
    about = [Text(result.about), Text(f"Source: {result.citation}."), *[Text(result.fits, "note")] * bool(result.fits)]
    left_out = [Bullets([f"{what} {why}" for what, why in result.ours])]
    judged = Section("about", "What this is, and how it is judged", [*about, *[Text(result.note)] * bool(result.note)])
    sections = [
        *[judged] * bool(result.fits),  # whether the division is the paper's decides how the rest is read
        *(Section(x.name, x.heading, [_table(x), Bullets(x.sentences)]) for x in result.decided),
        *[Section("figures", "Figures", [Pictures([picture]) for picture in plates])] * bool(plates),
        *(_part(result, part, (reports or {}).get(part.name, "")) for part in result.parts),
        *[judged] * (not result.fits),
        *[Section("left-out", "What the paper left out", left_out)] * bool(result.ours),
    ]
    facts = [plural(len(result.parts), "part"), f"written {date.today().isoformat()}"]
    return Page(
        result.title, "Reproduction", facts, headline(result), notices=[EMBEDDED] * result.embedded, first=first,
        sections=sections, folded=bool(result.claims), footer=made_with(versions),
        sheets=_sheets(result), numbers=_numbers(result),
    )  # fmt: skip


def headline(result: Result) -> str:
    """How many claims hold, or how our rows are ordered compared with the paper's, and which divisions are not the paper's."""
    taus = [agreement[0] for part in result.parts for c in part.columns if (agreement := part.agreement(c))]
    counts = Counter(claim.verdict for claim in result.claims)
    if counts:
        of_verdicts = ", ".join(f"{verdict} {n}" for verdict, n in counts.items())
        text = f"Verdicts on {plural(len(result.claims), 'claim')} of the paper: {of_verdicts}"
    elif taus:
        between = f" to {number(max(taus), sign=True)}" if len(taus) > 1 else ""
        text = f"The order of our rows has a Kendall's tau of {number(min(taus), sign=True)}{between} with the paper's, where 1 is the same"
    else:
        text = "Our numbers are below; of so few rows with numbers of the paper no order is compared"
    wrong = {row.part for row in result.calibrated if row.fits is False}
    away = f"; the division of {len(wrong)} of {plural(len(result.parts), 'part')} is not the paper's" if wrong else ""
    return f"{text}{away}."


def _part(result: Result, part: Block, report: str) -> Section:
    """A part: its settings, its calibration, our numbers with the paper's below them."""
    texts = [Text(f"{result.settings[part.name]}.")]
    texts += [Text(text, "note")] if (text := result.calibration(part.name)) else []
    links = [Link("Everything about these runs", report)] * bool(report)
    table = _table(sheet(result, part))
    return Section(part.name, part.title, [*texts, *links, table, Bullets(sentences(result, part))])


def _table(sheet: Sheet) -> Table:
    """A table of the page: texts, or our numbers with the paper's below each."""
    merged: list[tuple[str, tuple[Cell, ...]]] = []
    for name, cells in sheet.grid.rows:
        if name == PAPER:
            name, ours = merged.pop()
            cells = tuple(x._replace(ends=f"{PAPER} {y.mean}" * bool(y.mean)) for x, y in zip(ours, cells, strict=True))
        merged.append((name, cells))
    return Table(Grid(sheet.grid.titles, tuple(merged)), head=sheet.head, kind="settings" if sheet.prose else "lines")
