"""Numbers that may differ by group or client, as text or a table: ``0.8``, ``0.9, south=0.3``, ``{"south": 0.3}``."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise.system.ranges import Range


@dataclass(frozen=True)
class ByName:
    """Numbers in ``each``, for all clients or by name."""

    each: Range

    def __contains__(self, value: object) -> bool:
        try:
            return all(number in self.each for number in self.read(value).values())
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.each}, or by name of a group or client, such as south={10 if self.each.whole else 0.3}"

    def read(self, value: object) -> dict[str, Any]:
        """The number of each name; that of all others has the name ``""``, if it is given."""
        if isinstance(value, str):
            pieces = next(csv.reader([value], skipinitialspace=True), [])  # a name with a comma is in quotes
            pairs = [piece.rpartition("=")[::2] for piece in pieces]
            kind = int if self.each.whole else float
            numbers: dict[str, Any] = {name.strip(): kind(number) for name, number in pairs}
            if not pairs or len(numbers) < len(pairs):
                raise ValueError(value)
            return numbers
        if not isinstance(value, Mapping):
            return {"": value}
        if not value or not all(isinstance(name, str) for name in value):
            raise ValueError(value)
        return dict(value)

    def plain(self, value: object) -> float | str:
        """A number, or the text that :meth:`read` reads."""
        numbers = self.read(value)
        if numbers.keys() == {""}:
            return int(numbers[""]) if self.each.whole else float(numbers[""])
        pieces = [f"{name}={number}" if name else str(number) for name, number in numbers.items()]
        return ", ".join('"' + p.replace('"', '""') + '"' if {",", '"'} & {*p} else p for p in pieces)


def by_name(default: float, low: float, high: float = math.inf, **ends: bool) -> Any:
    """A field that holds a number in [low, high], or such numbers by group or client; ``ends`` as of :class:`Range`."""
    allowed = ByName(Range(low, high, whole=isinstance(default, int), **ends))
    return field(default=default, metadata={"allowed": allowed})
