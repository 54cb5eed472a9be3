"""Text such as ``cosine(0.1, warmup=5)``: a name, and in brackets values, some of them with a key."""

import re
from itertools import accumulate, pairwise
from typing import NamedTuple

TOKEN = re.compile(r"""'[^']*'|"[^"]*"|.""", re.DOTALL)
BRACKETS = {"(": 1, "[": 1, ")": -1, "]": -1}


class Call(NamedTuple):
    """A name, the :func:`pairs` in the brackets after it (None without brackets), and whether these are closed, at the end."""

    name: str
    pairs: list[tuple[str, str]] | None
    closed: bool


def read(text: str) -> Call:
    """The parts of a call."""
    name, bracket, inside = text.strip().partition("(")
    depths = [*accumulate(BRACKETS.get(token, 0) for token in TOKEN.findall(bracket + inside))]
    closed = 0 in depths and depths.index(0) == len(depths) - 1
    return Call(name.strip(), pairs(inside.removesuffix(")")) if bracket else None, closed)


def pairs(text: str) -> list[tuple[str, str]]:
    """Key and value of each part between the commas outside brackets and quotes; the key of a value alone is empty."""
    tokens = TOKEN.findall(text)
    depths = accumulate(BRACKETS.get(token, 0) for token in tokens)
    ends = [k for k, (token, depth) in enumerate(zip(tokens, depths, strict=True)) if token == "," and not depth]
    return [_pair("".join(tokens[a + 1 : b])) for a, b in pairwise([-1, *ends, len(tokens)])]


def _pair(part: str) -> tuple[str, str]:
    key, equals, value = part.partition("=")
    alone = not equals or "(" in key or "[" in key
    return ("", part.strip()) if alone else (key.strip(), value.strip())
