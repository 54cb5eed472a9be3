"""Values that must be in a range: arguments of a function, and fields of a dataclass; one error message for both."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from equipoise.system import own_code
from equipoise.system.search import Space

INF = float("inf")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, without ``low`` if ``above``, without ``high`` if ``below``; only ``whole`` or ``finite`` ones."""

    low: float
    high: float = INF
    above: bool = False
    below: bool = False
    whole: bool = False
    finite: bool = False

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return False
        number: Any = value
        if self.finite and math.isinf(number):
            return False
        ends = (self.above and number == self.low) or (self.below and number == self.high)
        return bool(self.low <= number <= self.high and not ends)

    def __str__(self) -> str:
        low, high = (str(end) if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        if self.high == INF:
            limits = f"{'>' if self.above else '>='} {low}{' and finite' if self.below else ''}"
        elif self.whole:
            limits = f"in {low}..{high}"
        else:
            limits = f"in {'(' if self.above else '['}{low}, {high}{')' if self.below else ']'}"
        return f"a whole number {limits}" if self.whole else limits


@dataclass(frozen=True)
class Numbers:
    """A list of numbers >= 0, only ``whole`` ones if so."""

    whole: bool = False

    def __contains__(self, value: object) -> bool:
        number = Range(0, whole=self.whole, finite=True)
        return isinstance(value, list | tuple) and bool(value) and all(entry in number for entry in value)

    def __str__(self) -> str:
        return f"a list of {'whole ' * self.whole}numbers >= 0, such as [1, 2, 3]"


@dataclass(frozen=True)
class Options:
    """One of several values, of the same type as the option; with ``numbers`` also a list of them."""

    values: tuple[object, ...]
    own: bool = False
    numbers: bool = False

    def __contains__(self, value: object) -> bool:
        if self.numbers and value in Numbers():
            return True
        if self.own and isinstance(value, str) and own_code.is_reference(value):
            return True
        return any(type(value) is type(option) and value == option for option in self.values)

    def __str__(self) -> str:
        more = ", or a reference to your own, FILE.py:NAME" * self.own + f", or {Numbers()}" * self.numbers
        return "one of " + ", ".join(map(str, self.values)) + more


@dataclass(frozen=True)
class Text:
    """Any text."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str)

    def __str__(self) -> str:
        return "text"


@dataclass(frozen=True)
class Rates:
    """Learning rates: numbers above 0, and text, which :func:`equipoise.core.rates.read` reads."""

    def __contains__(self, value: object) -> bool:
        plain = self.plain(value)
        return isinstance(plain, str) or plain in Range(0, above=True, below=True)

    def __str__(self) -> str:
        return "> 0 and finite, or a schedule such as cosine(0.1, warmup=5)"

    @staticmethod
    def plain(value: object) -> object:
        """A number where text is one."""
        try:
            return value if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return value


def check(name: str, value: object, allowed: Range | Options | Text | Rates, meaning: str = "") -> None:
    """Compare a value with what is allowed.

    Parameters
    ----------
    name : of the argument or setting, as the user knows it.
    meaning : text after the range: a unit, or what the value is, beginning with a space or a comma.

    Raises
    ------
    ValueError : the value is not allowed.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be {allowed}{_finite(allowed, value)}{meaning}; found {value!r}.")


def _finite(allowed: object, value: object) -> str:
    """What has to be said of a range where the value is infinite."""
    return " and finite" if isinstance(allowed, Range) and allowed.finite and value == INF else ""


def check_number(
    name: str,
    value: object,
    low: float,
    high: float = INF,
    meaning: str = "",
    *,
    above: bool = False,
    below: bool = False,
) -> None:
    """Check a number in [low, high], without ``low`` if ``above``, without ``high`` if ``below``; see :func:`check`."""
    check(name, value, Range(low, high, above, below), meaning)


def check_whole(name: str, value: object, low: int, high: float = INF, meaning: str = "") -> None:
    """Check a whole number in low..high; see :func:`check`."""
    check(name, value, Range(low, high, whole=True), meaning)


def check_option(name: str, value: object, options: Sequence[object]) -> None:
    """Check that a value is one of the options; see :func:`check`."""
    check(name, value, Options(tuple(options)))


def number(
    default: float | None,
    low: float,
    high: float = INF,
    *,
    above: bool = False,
    below: bool = False,
    whole: bool = False,
    infinite: bool = False,
    search: Space | None = None,
) -> Any:
    """A field that holds a number in [low, high].

    Parameters
    ----------
    default : its default; None is allowed only where it is the default.
    low, high : the ends of the range.
    above, below : leave out ``low``, or ``high``.
    whole : only whole numbers; so it is wherever the default is one.
    infinite : whether infinity, which most equations cannot bear, has a meaning.
    search : where its value is searched if methods are tuned; None: nowhere.
    """
    whole = whole or isinstance(default, int)
    allowed = Range(low, high, above, below, whole, not infinite)
    return field(default=default, metadata={"allowed": allowed, "search": search})


def rates(default: float) -> Any:
    """A field that holds a learning rate: a number, or a schedule as text."""
    return field(default=default, metadata={"allowed": Rates()})


def numbers(*, whole: bool = False) -> Any:
    """A field that holds a list of numbers >= 0; None is its default."""
    return field(default=None, metadata={"allowed": Numbers(whole)})


def choice(*options: object, own: bool = False, numbers: bool = False, search: Space | None = None) -> Any:
    """A field that holds one of the options, the first is the default; if ``own``, or a reference to own code; if ``numbers``, or a list of them.

    ``search`` has the options among which it is searched if methods are tuned.
    """
    allowed = Options(tuple(option for option in options if option is not None), own, numbers)
    return field(default=options[0], metadata={"allowed": allowed, "search": search})


def text(default: Any = MISSING) -> Any:
    """A field that holds text; None is allowed only where it is the default."""
    return field(default=default, metadata={"allowed": Text()})


def describe(parameter: Field[Any]) -> str:
    """The values that a field may hold, in words."""
    allowed = parameter.metadata.get("allowed", "")
    return "true or false" if isinstance(parameter.default, bool) and not allowed else str(allowed)


def check_fields(holder: Any, owner: str = "") -> None:
    """Compare every field of a dataclass with its range; the error message begins with ``owner``.

    Raises
    ------
    ValueError : a field is out of its range.
    """
    for parameter in fields(holder):
        if fault := misfit(parameter, getattr(holder, parameter.name)):
            raise ValueError(f"{owner}{parameter.name} {fault}.")


def misfit(parameter: Field[Any], value: object) -> str:
    """What a field must be and what was found, if the value does not fit; else an empty text."""
    optional = ", or None" if parameter.default is None else ""
    return (
        ""
        if _fits(parameter, value)
        else f"must be {describe(parameter)}{_finite(parameter.metadata.get('allowed'), value)}{optional}; found {value!r}"
    )


def _fits(parameter: Field[Any], value: Any) -> bool:
    allowed = parameter.metadata.get("allowed")
    if allowed is None:
        return not isinstance(parameter.default, bool) or isinstance(value, bool)
    if value is None:
        return parameter.default is None
    if isinstance(allowed, Range) and not isinstance(value, int | float):  # the numbers that a results file can hold
        return False
    return value in allowed
