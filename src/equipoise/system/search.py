"""Where the value of a setting is searched when methods are tuned: an interval, on a scale, or a list of values."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from equipoise.system import calls, suggestions, text

EXAMPLES = "log(0.001, 1), uniform(0, 1) or a list such as 1,2,4"


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, every one as likely as any other, or every order of magnitude if ``logarithmic``; only ``whole`` ones if so.

    ``final`` is whether the lower and the upper end are those of what the setting may be, so that nothing is beyond.
    """

    low: float
    high: float
    logarithmic: bool = False
    whole: bool = False
    final: tuple[bool, bool] = (False, False)

    def __post_init__(self) -> None:
        ends: tuple[Any, ...] = (self.low, self.high)
        numbers = all(isinstance(end, int | float) and math.isfinite(end) for end in ends)
        if not numbers or self.low >= self.high or (self.logarithmic and self.low <= 0):
            raise ValueError(
                f"{'log' if self.logarithmic else 'uniform'}{ends}: the ends must be finite numbers in order"
                f"{' and above 0' * self.logarithmic}, such as (0.001, 1)."
            )

    def at(self, share: float) -> float:
        """The value below which this share of the draws is, with three significant digits, or more where the interval is narrow."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        value = low * (high / low) ** share if self.logarithmic else low + (high - low) * share
        digits = 3 + int(-math.log10((high - low) / max(abs(low), abs(high))))
        return min(max(round(value) if self.whole else float(f"{value:.{digits}g}"), self.low), self.high)

    def whole_numbers(self) -> "Interval":
        """The whole numbers in it."""
        low, high = math.ceil(self.low), math.floor(self.high)
        if low >= high:
            raise ValueError(f"{self}: the ends must have two whole numbers or more between them.")
        return Interval(low, high, self.logarithmic, whole=True)

    @property
    def ends(self) -> tuple[float, float]:
        """Its lowest and highest value."""
        return self.low, self.high

    def edge(self, share: float) -> str:
        """Which end the value at this share is close to, ``"lower"`` or ``"upper"``: within a tenth; empty if neither, or if nothing is beyond."""
        lower, upper = self.final
        return "lower" if share < 0.1 and not lower else "upper" if share > 0.9 and not upper else ""

    def __str__(self) -> str:
        return f"{'log' if self.logarithmic else 'uniform'}({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class Values:
    """Some values, each as likely as any other."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            options = ", ".join(map(repr, self.values))
            raise ValueError(f"among({options}): expected two values or more, such as among(1, 2, 4).")

    def at(self, share: float) -> Any:
        """The value at this share of the list."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    @property
    def ends(self) -> tuple[Any, ...]:
        """All its values."""
        return self.values

    def edge(self, share: float) -> str:
        """Empty: a list has no edges."""
        return ""

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Space = Interval | Values


def log_uniform(low: float, high: float) -> Interval:
    """Numbers in [low, high], every order of magnitude as likely as any other."""
    return Interval(low, high, logarithmic=True)


def uniform(low: float, high: float) -> Interval:
    """Numbers in [low, high], every one as likely as any other."""
    return Interval(low, high)


def among(*options: Any) -> Values:
    """One of some values."""
    return Values(options)


KINDS = {"log": True, "log_uniform": True, "uniform": False}  # whether it is logarithmic


def read(name: str, given: object) -> Space:
    """The space of a setting from text, from a list of values, or as it is.

    Raises
    ------
    ValueError : naming the setting, what was expected and what was found.
    """
    if isinstance(given, Interval | Values):
        return given
    call, listed = calls.read("among"), given
    if isinstance(given, str):
        call = calls.read(given if "(" in given else f"among({given})")
        listed = [text.read_value("=".join(filter(None, pair))) for pair in call.pairs or ()]
    try:
        if isinstance(listed, list | tuple) and len(listed) > 1 and call.complete:
            if call.name == "among":
                return Values(tuple(listed))
            if call.name in KINDS and len(listed) == 2:
                low, high = listed
                return Interval(low, high, KINDS[call.name])
    except ValueError as error:
        raise ValueError(f"search {name}: {error}") from None
    suggestion = suggestions.near(call.name, KINDS) if call.name not in (*KINDS, "among") else ""
    raise ValueError(f"search {name}: expected {EXAMPLES}; found {given!r}.{suggestion}")


def share(seed: int, draw: int, name: str) -> float:
    """A number in [0, 1) that follows from these three alone, so that methods with a setting of one name share its draws."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{draw}/{name}".encode()).digest()[:8]) / 2**64
