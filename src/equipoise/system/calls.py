"""Text such as ``cosine(0.1, warmup=5)``: a name, and in brackets values, some of them with a key.

Nothing in it is run, and the time is in proportion to its length. Python's own parser would refuse much of what may be written, such as
``007`` or a path with blanks.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

TOKEN = re.compile(r"""'[^']*'|"[^"]*"|.""", re.DOTALL)
BRACKETS = {"(": 1, "[": 1, ")": -1, "]": -1}


class Call(NamedTuple):
    """A name, the :func:`pairs` in the brackets after it (None without brackets), and the text after these (None if they are not closed)."""

    name: str
    pairs: list[tuple[str, str]] | None
    rest: str | None

    @property
    def complete(self) -> bool:
        """Whether the brackets, if any, are closed at the end."""
        return self.rest == ""


def read(text: str) -> Call:
    """The parts of a call."""
    name, bracket, inside = text.strip().partition("(")
    if not bracket:
        return Call(name.strip(), None, "")
    end = next((token for token, depth in _tokens(inside) if depth < 0), None)
    if end is None or end[0] != ")":
        return Call(name.strip(), pairs(inside), None)
    return Call(name.strip(), pairs(inside[: end.start()]), inside[end.end() :])


def pairs(text: str) -> list[tuple[str, str]]:
    """Key and value of each part between the commas outside brackets and quotes; the key of a value alone is empty."""
    ends = [token.start() for token, depth in _tokens(text) if token[0] == "," and not depth]
    return [_pair(text[a + 1 : b]) for a, b in pairwise([-1, *ends, len(text)])]


def _tokens(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Every sign or quoted text, and how many brackets are open after it."""
    depth = 0
    for token in TOKEN.finditer(text):
        depth += BRACKETS.get(token[0], 0)
        yield token, depth


def _pair(part: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    return ("", part.strip()) if not equals or "(" in key or "[" in key else (key.strip(), value.strip())
