"""Numbers that may differ by group or client, as text or a table: ``0.8``, ``0.9, south=0.3``, ``cycle(1, 0.2, period=24)``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from equipoise.system.ranges import Range

PIECE = re.compile(r'(?:[^,()"]|"(?:[^"\\]|\\.)*"|\([^()]*\))+')  # commas in brackets or quotes do not divide
PAIR = re.compile(r"(?:(.+?)=)?\s*(cycle\(.*\)|[^=()]+)")  # NAME=VALUE, or a value
CYCLE = re.compile(r"cycle\(([^,=]+),([^,=]+),\s*period\s*=([^,=]+)\)")


class Cycle(NamedTuple):
    """A chance that goes from ``first`` to ``other`` and back in ``period`` rounds, as half a cosine each way."""

    first: float
    other: float
    period: int

    def __call__(self, t: int) -> float:
        """The chance in round ``t``."""
        return self.first + (self.other - self.first) * (1 - math.cos(2 * math.pi * t / self.period)) / 2


@dataclass(frozen=True)
class ByName:
    """Numbers in ``each``, for all clients or by name; chances may go in cycles."""

    each: Range

    def __contains__(self, value: object) -> bool:
        try:
            self.read(value)
        except ValueError:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.each}, or by name of a group or client, such as south={0.3 if not self.each.whole else 10}"

    def read(self, value: object) -> dict[str, float | Cycle]:
        """The number of each name; that of all others has the name ``""``, if it is given.

        Raises
        ------
        ValueError : it is no such number, text or table.
        """
        if not isinstance(value, Mapping):
            text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
            pairs = [(name, of) for piece in PIECE.findall(text) for name, of in [_pair(piece)]]
            if ",".join(PIECE.findall(text)) != text or len(dict(pairs)) != len(pairs):
                raise ValueError(value)
            value = dict(pairs)
        if not value or not all(isinstance(name, str) for name in value):
            raise ValueError(value)
        return {name: self._number(of) for name, of in value.items()}

    def _number(self, value: Any) -> float | Cycle:
        if isinstance(value, str) and (match := CYCLE.fullmatch(value)) and not self.each.whole:
            value = Cycle(float(match[1]), float(match[2]), int(match[3]))
            fits = value.first in self.each and value.other in self.each and value.period > 1
        else:
            value = (int if self.each.whole else float)(value) if isinstance(value, str) else value
            fits = value in self.each
        if not fits:
            raise ValueError(value)
        return value  # type: ignore[no-any-return]

    def plain(self, value: object) -> float | str:
        """A number, or the text that :meth:`read` reads."""
        found = self.read(value)
        if found.keys() == {""} and not isinstance(found[""], Cycle):
            return found[""] if self.each.whole else float(found[""])
        if isinstance(value, str):
            return value
        return ", ".join(f"{_quoted(name)}={_text(of)}" if name else _text(of) for name, of in found.items())


def by_name(default: float, low: float, high: float = math.inf, **ends: bool) -> Any:
    """A field that holds a number in [low, high], or such numbers by group or client; ``ends`` as of :class:`Range`."""
    return field(
        default=default, metadata={"allowed": ByName(Range(low, high, whole=isinstance(default, int), **ends))}
    )


def _pair(piece: str) -> tuple[str, str]:
    match = PAIR.fullmatch(piece.strip())
    if match is None:
        raise ValueError(piece)
    name = (match[1] or "").strip()
    return json.loads(name) if name.startswith('"') else name, match[2].strip()


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False) if re.search(r'[,="()\\]|^\s|\s$', name) else name


def _text(of: float | Cycle) -> str:
    return f"cycle({of.first}, {of.other}, period={of.period})" if isinstance(of, Cycle) else str(of)
