"""Hyper-parameters that know their range, so that rules hold no checks."""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import Any

INF = float("inf")


def number(default: float | None, low: float, high: float = INF, *, above: bool = False) -> Any:
    """A number in [low, high], or in (low, high] if ``above``; None only where it is the default."""
    return field(default=default, metadata={"low": low, "high": high, "above": above})


def choice(*options: object) -> Any:
    """One of the options; the first is the default."""
    return field(default=options[0], metadata={"options": options})


def describe(parameter: Field[Any]) -> str:
    """The values a hyper-parameter may take, in words."""
    if options := parameter.metadata.get("options"):
        return "one of " + ", ".join(map(str, options))
    if "low" not in parameter.metadata:
        return "true or false" if isinstance(parameter.default, bool) else ""
    low, high, above = (parameter.metadata[key] for key in ("low", "high", "above"))
    if high == INF:
        return f"{'>' if above else '>='} {low:g}"
    return f"in {'(' if above else '['}{low:g}, {high:g}]"


def check(rule: Any) -> None:
    """Compare every hyper-parameter of a rule with its range.

    Raises
    ------
    ValueError : naming the rule, the parameter, what was expected and what was found.
    """
    for parameter in fields(rule):
        value = getattr(rule, parameter.name)
        if not _fits(parameter, value):
            raise ValueError(f"{type(rule).__name__}: {parameter.name} must be {describe(parameter)}; found {value!r}.")


def _fits(parameter: Field[Any], value: Any) -> bool:
    if options := parameter.metadata.get("options"):
        return any(type(value) is type(option) and value == option for option in options)
    if "low" in parameter.metadata:
        low, high, above = (parameter.metadata[key] for key in ("low", "high", "above"))
        if value is None:
            return parameter.default is None
        whole = isinstance(parameter.default, int)
        kind = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        return kind and (low < value if above else low <= value) and value <= high
    return not isinstance(parameter.default, bool) or isinstance(value, bool)
