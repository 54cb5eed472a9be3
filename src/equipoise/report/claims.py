"""What a paper claims with what our runs say of it, and what rows of an experiment chose to train with, as tables of text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from equipoise.metrics.statistics import MOST, Judgement
from equipoise.records.meta import Content
from equipoise.report.formatting import UNDEFINED, number
from equipoise.report.grid import Cell, Grid
from equipoise.report.layout import Sheet
from equipoise.system.text import cell, csv_text

HOW = (
    "Difference: mean with its 95 % interval over seeds (Student's t), or over divisions of the data where there are several, paired by seed "
    "where two rows are compared. Each interval is one by itself, not corrected for how many claims there are: of 20 claims where in truth there is "
    "no difference (or just one as large as the margin), about one would seem to hold or not to hold by chance alone, and more where seeds were "
    "added after a look at the first. The seeds that would tell do so in four of five cases, if mean and spread stay as they are."
)
EMBEDDED = "All this is of embedded data that come with Equipoise, not of the paper's own."
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
        judged, why = self.judgement, self.why
        equal = "" if self.margin is None else f" (up to {self.margin:g} counts as equal)"
        ends = "" if math.isnan(judged.low) else f" [{number(judged.low, sign=True)}, {number(judged.high, sign=True)}]"
        if not why and not math.isnan(n := judged.seeds_needed):
            why = f"{'no number of' if math.isinf(n) else f'more than {MOST:,}' if n > MOST else f'about {n:.0f}'} seeds would tell"
        return (
            f"{self.text} ({self.source})",
            self.title,
            f"{self.row} − {self.than or f'{self.value:g}'}, {self.column}: {self.direction}{equal}",
            number(judged.mean, sign=True) + ends,
            str(judged.n) if judged.n == self.planned else f"{judged.n} of {self.planned}",
            f"{self.verdict}: {why}" if why else self.verdict,
        )

    def plain(self) -> Content:
        """Plain JSON types."""
        judged, needed = self.judgement, self.judgement.seeds_needed
        numbers = {"mean": judged.mean, "low": judged.low, "high": judged.high}
        return {
            "text": self.text, "source": self.source, "part": self.part, "row": self.row, "than": self.than, "value": self.value,
            "column": self.column, "direction": self.direction, "margin": self.margin, "seeds": judged.n,
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


def tables(
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
    below = [HOW, *([EMBEDDED] if embedded else []), *([f"{DOUBTS} {'; '.join(doubted)}."] if doubted else [])]
    sheets = []
    for heading, (head, *titles), rows, text in (
        ("What the paper claims", columns, claims, " ".join(below)),
        ("What was chosen", ("where", "row", "tried", "taken"), chosen, CHOSEN),
    ):
        grid = Grid(tuple(titles), tuple((row.cells[0], tuple(map(Cell, row.cells[1:]))) for row in rows))
        sheets.append(Sheet("", heading, f"{heading}.", grid, [text], narrow=True, prose=True, head=head))
    return [sheet for sheet in sheets if sheet.grid.rows]


def claims_csv(claims: Sequence[JudgedClaim]) -> str:
    """For a program: one line per claim and part."""
    return csv_text([claims[0].plain(), *(map(cell, claim.plain().values()) for claim in claims)])
