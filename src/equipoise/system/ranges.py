"""Values that must be in a range: arguments of a function, and fields of a dataclass; one error message for both.

A field of a dataclass can also have what other modules ask about it, see :func:`setting`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

from equipoise.system import own_code, search as spaces
from equipoise.system.search import Interval, Space, Values

among, log_uniform, uniform = spaces.among, spaces.log_uniform, spaces.uniform  # for the fields of methods
INF = float("inf")
MARKS = (  # see :func:`setting`
    "together", "simulated", "presence", "machine", "operation", "shown", "about", "solver", "data", "planned", "apart", "free", "local", "newer",
    "agreed", "written", "column", "share",
)  # fmt: skip


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
        ends = (self.above and number == self.low) or (self.below and number == self.high)
        return not (self.finite and math.isinf(number)) and bool(self.low <= number <= self.high and not ends)

    def __str__(self) -> str:
        low, high = (str(end) if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high))
        within = (
            f"{low}..{high}" if self.whole else f"{'(' if self.above else '['}{low}, {high}{')' if self.below else ']'}"
        )
        beyond = f"{'>' if self.above else '>='} {low}{' and finite' * self.below}"
        return "a whole number " * self.whole + (beyond if self.high == INF else f"in {within}")


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
        numbers = self.numbers and value in Numbers()
        own = self.own and isinstance(value, str) and own_code.is_reference(value)
        return numbers or own or any(type(value) is type(option) and value == option for option in self.values)

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
        raise ValueError(f"{name} must be {_expected(allowed, value)}{meaning}; found {value!r}.")


def _expected(allowed: object, value: object) -> str:
    """What is allowed, with what has to be said where the value is infinite or no number."""
    if not isinstance(allowed, Range):
        return str(allowed)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    kind = "" if plain or allowed.whole else "a number "
    return f"{kind}{allowed}{' and finite' * (allowed.finite and value == INF)}"


def check_number(
    name: str, value: Any, low: float, high: float = INF, meaning: str = "", *, above: bool = False, below: bool = False
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
    whole : only whole numbers; so it is wherever the default is one. With ``search`` the annotation must agree: ``float`` with ``1.0``, ``int`` with ``1``.
    infinite : whether infinity, which most equations cannot bear, has a meaning.
    search : where its value is searched if methods are tuned; None: nowhere.

    Raises
    ------
    ValueError : a space with values that the field may not have; see :func:`check_fields` for the annotation.
    """
    whole = whole or isinstance(default, int)
    return _searched(Range(low, high, above, below, whole, not infinite), default, search)


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
    values = tuple(option for option in options if option is not None)
    return _searched(Options(values, own, numbers), options[0], search)


def _searched(allowed: Range | Options, default: object, search: object) -> Any:
    """A field whose values are searched in a space."""
    made: Any = field(default=default, metadata={"allowed": allowed, "search": search})
    if search is not None:
        if not isinstance(search, Interval | Values):
            expected = "eq.log_uniform(low, high), eq.uniform(low, high) or eq.among(1, 2, 4)"
            raise ValueError(f"search must be {expected}; found {search!r}.")
        fitting("search", search, made)
    return made


def fitting(name: str, space: Space, parameter: Field[Any]) -> Space:
    """A space for a parameter: of whole numbers where it has only these.

    Raises
    ------
    ValueError : it has values that the parameter may not have; the message begins with ``name``.
    """
    allowed = parameter.metadata.get("allowed")
    whole = allowed.whole if isinstance(allowed, Range) else type(parameter.default) is int
    if isinstance(space, Interval) and whole:
        try:
            space = space.whole_numbers()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if isinstance(space, Interval) and isinstance(allowed, Range):
        space = replace(space, final=(space.low == allowed.low, space.high == allowed.high))
    for end in space.ends:
        if fault := misfit(parameter, end):
            raise ValueError(f"{name}: a value {fault}.")
    return space


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
    ValueError : a field is out of its range, or its annotation contradicts its default.
    """
    for parameter in fields(holder):
        if fault := _mistyped(parameter) or misfit(parameter, getattr(holder, parameter.name)):
            raise ValueError(f"{owner}{parameter.name} {fault}.")


def _mistyped(parameter: Field[Any]) -> str:
    """What the annotation of a number must be, if it is another one; else an empty text."""
    allowed = parameter.metadata.get("allowed")
    if parameter.metadata.get("search") is None or not isinstance(allowed, Range):  # no number is drawn
        return ""
    kinds = {*re.findall(r"\b(?:int|float)\b", getattr(parameter.type, "__name__", str(parameter.type)))}
    if kinds != {"float" if allowed.whole else "int"}:
        return ""
    right, numbers = ("int", "only whole numbers") if allowed.whole else ("float", "fractions")
    instead = (
        "fractions, write number(1.0, ...)" if allowed.whole else "whole numbers, write number(1, ...) or whole=True"
    )
    return f"must be annotated {right}: its default {parameter.default!r} allows {numbers}; found {kinds.pop()}. For {instead}"


def misfit(parameter: Field[Any], value: object) -> str:
    """What a field must be and what was found, if the value does not fit; else an empty text."""
    optional = ", or None" if parameter.default is None else ""
    expected = _expected(parameter.metadata.get("allowed") or describe(parameter), value)
    return "" if _fits(parameter, value) else f"must be {expected}{optional}; found {value!r}"


def _fits(parameter: Field[Any], value: Any) -> bool:
    allowed = parameter.metadata.get("allowed")
    if allowed is None:
        return not isinstance(parameter.default, bool) or isinstance(value, bool)
    if value is None:
        return parameter.default is None
    fits = not isinstance(allowed, Range) or isinstance(value, int | float)  # the numbers that a results file can hold
    return fits and value in allowed


def setting(
    parameter: Any, meaning: str, usual: str = "", *, example: object = None, group: str = "Training", marks: str = ""
) -> Any:
    """A field with its documentation, and with all that other modules ask about it.

    Parameters
    ----------
    parameter : a field with a default and a range.
    meaning : one line; ``{a|b}`` in it is ``a`` where classes are predicted, and ``b`` where numbers are.
    usual : the default in words, if a run has another than the field.
    example : a value to show where the default is None.
    group : the title under which the help shows it.
    marks : words with blanks between them. ``together``: it changes only what clients reach together, not what each reaches alone.
        ``simulated``: only a simulation has it; ``presence``: it is about clients that come and go. ``machine``: it is about how runs are
        computed. ``operation``: no result depends on it. ``shown``: it changes what is shown where, and no training. ``about``: it describes
        a run, which is the same without it. ``solver``: it is the local optimiser's. ``data``: it decides the data of a run. ``planned``: a
        file that plans several runs has its own place for it. ``apart``: no choice of settings depends on it, or one that does records it
        elsewhere. ``free``: a run, or a choice, that was begun with a different value may continue. ``local``: each site has its own, or
        none, and no server sets it. ``newer``: earlier versions lack it, and did what the default does. Of the user's own data, ``agreed``:
        all sites have it in common; ``written``: it is about tables that are text; ``column``: it names one; ``share``: it decides which
        client has which sample.
    """
    more = {"meaning": meaning, "usual": usual, "example": example, "group": group, "marks": _checked(marks.split())}
    default: Any = {"default": parameter.default, "default_factory": parameter.default_factory}
    return field(**default, compare=parameter.compare, metadata={**parameter.metadata, **more})


def marked(cls: Any, *marks: str) -> tuple[str, ...]:
    """The names of the settings of a class that have one of some marks."""
    chosen = _checked(marks)
    return tuple(f.name for f in fields(cls) if not chosen.isdisjoint(f.metadata.get("marks", ())))


def _checked(marks: Sequence[str]) -> frozenset[str]:
    """Some marks, which must be among :data:`MARKS`: of a misspelt one no setting would ever be found."""
    if wrong := {*marks} - {*MARKS}:
        raise ValueError(f"A setting has no mark {min(wrong)!r}: expected {', '.join(MARKS)}.")
    return frozenset(marks)


def like(cls: Any, name: str, default: object) -> Any:
    """The setting of a class with another default."""
    return field(default=default, metadata=cls.__dataclass_fields__[name].metadata)


def meaning(f: Field[Any], *, numbers: bool = False) -> str:
    """The meaning of a setting, and its range if it is a bounded fraction; where ``numbers`` are predicted it may be empty."""
    allowed, text = f.metadata.get("allowed"), re.sub(r"{(.*?)\|(.*?)}", rf"\{1 + numbers}", f.metadata["meaning"])
    bounded = isinstance(allowed, Range) and not allowed.whole and allowed.high < float("inf")
    return f"{text}, {describe(f)}" if bounded else text


def usual(f: Field[Any]) -> str:
    """The default of a setting, in words."""
    return f.metadata["usual"] or str(f.default)
