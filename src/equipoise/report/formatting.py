"""Numbers as text: digits, signs, p-values, bytes; and the tables that hold such texts."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from equipoise.metrics.measures import Measure
from equipoise.report.document import Difference
from equipoise.system.text import key_of

UNDEFINED: Final = "–"
FAILED: Final = " †"  # behind the name of a method whose training diverged, or that is no better than guessing
PERCENT: Final = "\u00a0%"  # not to be torn from its number
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def without(texts: Iterable[str], *keys: str) -> list[str]:
    """Sentences but those with one of some keys."""
    return [text for text in texts if key_of(text) not in keys]


def number(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """A number with a real minus sign and never `-0.00`; a dash where it is not defined.

    Parameters
    ----------
    value : the number; None or NaN where it is not defined.
    digits : behind the point.
    sign : whether a positive number has its sign, too.
    """
    if value is None or math.isnan(value):
        return UNDEFINED
    return f"{round(value, digits) + 0.0:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def brief(seconds: float) -> str:
    """Seconds with about three digits, so that short runs do not show 0."""
    return f"{seconds:,.{0 if seconds >= 100 else 1 if seconds >= 1 else 2}f}"


def interval(ends: Sequence[float | None] | None, digits: int = 2, *, sign: bool = False) -> str:
    """The ends of an interval: `[1.30, 2.90]`; nothing where there is none."""
    return "" if ends is None or None in ends else f"[{', '.join(number(end, digits, sign=sign) for end in ends)}]"


def ends_of_test(test: Difference, digits: int) -> str:
    """The 95 % interval of a difference, with signs; nothing where there is none."""
    return interval((test["low"], test["high"]), digits, sign=True)


def with_unit(value: float | None, measure: Measure) -> str:
    """A number of a measure as it is shown, with its unit."""
    return number(value, measure.digits) + (f"\u00a0{measure.unit}" if measure.unit else "")


def p_value(p: float) -> str:
    """A p-value with three digits, `.031`, or `< .001`."""
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1.000"


def same_in_every_seed(mean: float, digits: int) -> str:
    """What is said of a difference without spread over seeds, of which there is no test."""
    if abs(mean) < 0.5 / 10**digits:
        return "no difference in any seed"
    return f"the difference is {number(mean, digits, sign=True)} in every seed"


def difference(test: Difference, digits: int = 2, *, p: bool = True) -> str:
    """A difference with its 95 % interval: `+2.10 [+1.30, +2.90], p=.031`; nothing where there is no interval.

    Parameters
    ----------
    test : of a family of several the p-value by Holm is quoted.
    digits : behind the point.
    p : whether to quote the p-value.
    """
    mean, low, high = test["difference"], test["low"], test["high"]
    if mean is None:
        return ""
    if low is None or high is None:
        return same_in_every_seed(mean, digits) if test["seeds"] > 1 else ""
    text = f"{number(mean, digits, sign=True)} {ends_of_test(test, digits)}"
    quoted = test["holm"] if corrected(test) else test["p"]
    if quoted is None or not p:
        return text
    return f"{text}, {'Holm ' * corrected(test)}{'p<.001' if quoted < 0.001 else f'p={p_value(quoted)}'}"


def corrected(test: Difference) -> bool:
    """Whether the p-value of a difference that is shown is that by Holm."""
    return test["p"] is not None and test["holm"] is not None and test["family"] > 1


def size(n: float) -> str:
    """A number of bytes with three digits and its unit, `93.5 MB`."""
    power = min(len(_UNITS) - 1, max(0, math.floor(math.log10(n) / 3 + 1e-12))) if n >= 1 else 0
    scaled = n / 1000**power
    digits = 0 if power == 0 else max(0, 2 - math.floor(math.log10(scaled)))
    return f"{scaled:.{digits}f}\u00a0{_UNITS[power]}"


def lines(name: str, width: int) -> list[str]:
    """A name in lines that lose nothing of it, broken behind a sign or a blank where there is one."""
    wrapped = [""]
    for part in re.findall(rf"[\w.]{{1,{width - 1}}}[^\w.]?|.", name):
        if wrapped[-1] and len(wrapped[-1]) + len(part.rstrip()) > width:
            wrapped.append("")
        wrapped[-1] += part
    return [line.rstrip() for line in wrapped]


class Cell(NamedTuple):
    """One entry of a table: a number, half of its 95 % interval, whether it is the best, and a text in brackets or below.

    `ends` is the 95 % interval of the number. `worse` is whether a test shows that it is worse than the first, and `link` a place or file that
    explains it.
    """

    mean: str
    half: str = ""
    best: bool = False
    ends: str = ""
    worse: bool = False
    link: str = ""

    @property
    def text(self) -> str:
        """Number and half of its interval, or its ends, in one line."""
        return f"{self.mean} ±{self.half}" if self.half else f"{self.mean} {self.ends}" if self.ends else self.mean


def cell_of(test: Difference | None, digits: int) -> Cell:
    """A difference, and beside it its interval, its p-value, and that by Holm if there are several; a dash without an interval."""
    if test is None or (mean := test["difference"]) is None:
        return Cell(UNDEFINED)
    shown = number(mean, digits, sign=True)
    if test["low"] is None or test["high"] is None:
        return Cell(shown, ends=f"({same_in_every_seed(mean, digits)})") if test["seeds"] > 1 else Cell(UNDEFINED)
    p = "" if test["p"] is None else f", p {p_value(test['p'])}"
    by_holm = f", Holm {p_value(test['holm'] or 0)}" * corrected(test)
    return Cell(shown, ends=f"{ends_of_test(test, digits)}{p}{by_holm}")


Rows = Iterable[tuple[str, Iterable[str]]]  # of texts


class Grid(NamedTuple):
    """Titles of the columns, and name and cells of every row."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    def at(self, places: Sequence[int]) -> "Grid":
        """The columns at some places, in their order."""
        rows = tuple((name, tuple(cells[k] for k in places)) for name, cells in self.rows)
        return Grid(tuple(self.titles[k] for k in places), rows)


def grid_of(rows: Rows, titles: Iterable[str]) -> Grid:
    """Rows of texts."""
    return Grid((*titles,), tuple((name, tuple(map(Cell, cells))) for name, cells in rows))
