"""What a paper claims with what our runs say of it, and what rows of an experiment chose to train with, as tables of text."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from equipoise.metrics.statistics import MOST, Judgement
from equipoise.report.formatting import UNDEFINED, number
from equipoise.system.text import cell

TRIAL = "a quick trial"  # why it cannot tell


class Table(NamedTuple):
    """A table of text below its title and above its sentences."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class JudgedClaim:
    """A claim in one part: ``row`` less ``than`` (a row or a number) has a direction; ``why`` it was not run, or cannot tell.

    ``found`` is of the ``planned`` seeds that both rows have; None: there are none.
    """

    text: str
    source: str
    part: str
    title: str
    row: str
    than: str | float
    column: str
    direction: str
    margin: float | None
    planned: int
    found: Judgement | None
    why: str = ""

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold here``, ``cannot be told`` or ``not run``."""
        if self.found is None:
            return "not run"
        said = "cannot be told" if self.why else self.found.verdict
        return "does not hold here" if said == "does not hold" else said

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        less = self.than if isinstance(self.than, str) else f"{self.than:g}"
        equal = "" if self.margin is None else f" (up to {self.margin:g} counts as equal)"
        found = self.found
        shown = UNDEFINED if found is None else number(found.mean, sign=True)
        if found is not None and math.isfinite(found.low):
            shown += f" [{number(found.low, sign=True)}, {number(found.high, sign=True)}]"
        seeds = 0 if found is None else found.n
        return (
            f"{self.text} ({self.source})",
            self.title,
            f"{self.row} − {less}, {self.column}: {self.direction}{equal}",
            shown,
            str(seeds) if seeds == self.planned else f"{seeds} of {self.planned}",
            f"{self.verdict}{f': {self.why}' if self.why else self._needed()}",
        )

    def _needed(self) -> str:
        if self.found is None or math.isnan(needed := self.found.seeds_needed):
            return ""
        most = f"more than {MOST:,} seeds" if needed > MOST else f"{needed:.0f} seeds"
        return f": {'no number of seeds' if math.isinf(needed) else most} would tell"

    def plain(self) -> dict[str, Any]:
        """Plain JSON types."""
        found = self.found or Judgement(math.nan, math.nan, math.nan, 0, "cannot be told")
        numbers = {
            k: None if math.isnan(v) else v for k, v in (("mean", found.mean), ("low", found.low), ("high", found.high))
        }
        needed = found.seeds_needed
        versus = "than" if isinstance(self.than, str) else "value"
        return {
            "text": self.text, "source": self.source, "part": self.part, "row": self.row, versus: self.than, "column": self.column,
            "direction": self.direction, "margin": self.margin, "seeds": found.n, **numbers, "verdict": self.verdict,
            "seeds_needed": None if self.why or math.isnan(needed) or needed > MOST else int(needed), "why": self.why,
        }  # fmt: skip


class Tried(NamedTuple):
    """A candidate: its settings, its mean validation accuracy in percent, NaN if it is out, and why it is."""

    settings: Mapping[str, Any]
    accuracy: float
    why: str = ""

    def __str__(self) -> str:
        return ", ".join(f"{key} = {value}" for key, value in self.settings.items())


class Chosen(NamedTuple):
    """What a row tried in a part."""

    part: str
    title: str
    row: str
    tried: tuple[Tried, ...]

    @property
    def taken(self) -> Tried | None:
        """The candidate with the best accuracy, the first of those; None if all are out."""
        left = [one for one in self.tried if not math.isnan(one.accuracy)]
        return max(left, key=lambda one: one.accuracy, default=None)


def tables(claims: Sequence[JudgedClaim], chosen: Sequence[Chosen], *, embedded: bool) -> list[Table]:
    """The claims, and what was chosen: those of the two that there are.

    Parameters
    ----------
    claims, chosen : line by line.
    embedded : the data come with Equipoise.
    """
    said = (
        "Difference: mean with its 95 % interval over seeds (Student's t), paired by seed where two rows are compared. Each interval "
        "is one by itself, not corrected for how many claims there are: of 20 claims where in truth there is no difference (or just "
        "one as large as the margin), about one would seem to hold or not to hold by chance alone. The seeds that would tell are "
        "those if mean and spread stayed as they are.",
        *["All this is of embedded data that come with Equipoise, not of the paper's own."] * embedded,
    )
    headers = ("claim", "where", "what we ran", "difference", "seeds", "verdict")
    found = [Table("What the paper claims", headers, tuple(claim.cells for claim in claims), said)] if claims else []
    if not chosen:
        return found
    rows = [
        (one.title, one.row, "; ".join(f"{tried}: {f'out ({tried.why})' if tried.why else number(tried.accuracy)}" for tried in one.tried), str(one.taken or UNDEFINED))
        for one in chosen
    ]  # fmt: skip
    how = (
        "Tried: the mean accuracy, in percent, over trial runs with seeds of their own and the last five rounds that were validated, on "
        "samples that clients held out of their own training data. The best is taken, the first of those that are equal; the runs of "
        "the table train on all samples. Test data decide nothing here.",
    )
    return [*found, Table("What was chosen", ("where", "row", "tried", "taken"), tuple(rows), how)]


def claims_csv(claims: Sequence[JudgedClaim]) -> str:
    """For a program: one line per claim and part.

    Parameters
    ----------
    claims : line by line.
    """
    file = io.StringIO()
    names = [
        "text", "source", "part", "row", "than", "value", "column", "direction", "margin", "seeds", "mean", "low", "high", "verdict",
        "seeds_needed", "why",
    ]  # fmt: skip
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: cell(value) for key, value in claim.plain().items()} for claim in claims)
    return file.getvalue()
