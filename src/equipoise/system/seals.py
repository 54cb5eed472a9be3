"""Text files that carry the hash of their own content, by which a change is found.

The hash is part of the file and is replaced together with it, so it is never that of an older content, whenever a process
dies. A file without one is of an earlier version or written by hand, and is taken as it is. A hash finds what has changed by
accident, and says nothing of who wrote a file: for that see :mod:`equipoise.system.trust`.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from equipoise.system.errors import DamagedError, RunError
from equipoise.system.files import read_regular

CHANGED = "its content is not what was written"
DEEP = "its lists and tables are nested too deeply"
DEEPEST = 100  # levels of lists and tables in each other
NESTING: frozenset[type] = frozenset({dict, list})
Kind = TypeVar("Kind")
_LONG = re.compile(r"[=:,\[\s-]\d[\da-fA-F_xob]{300}")  # a number that no float can hold
# tomllib takes time with the square of a key's parts
_DOTTED = re.compile(r"""(?<!["'\w-])(?:["'\w-]++[ \t]*+\.[ \t]*+)++""")
_JSON = re.compile(r'\{\n "seal": "([0-9a-f]{64})",')
_HEAD = "# sha256 of all that follows, so that a change is found: "
_TEXT = re.compile(rf"{_HEAD}([0-9a-f]{{64}})\n")


def sealed_json(content: Mapping[str, Any]) -> str:
    """An object, not empty, as JSON that begins with the hash of the rest."""
    body = json.dumps(dict(content), indent=1)
    return f'{{\n "seal": "{_digest(body)}",{body[1:]}'


def open_json(text: str) -> Any:
    """The content of a JSON file, without its hash.

    Raises
    ------
    ValueError : not what was written.
    """
    if match := _JSON.match(text):
        body = "{" + text[match.end() :]
        if _digest(body) != match[1]:
            raise DamagedError(CHANGED)
        return read_json(body)
    try:
        content = read_json(text)
    except json.JSONDecodeError:
        raise DamagedError(CHANGED) from None
    if isinstance(content, dict) and "seal" in content:
        raise DamagedError(CHANGED)
    return content


def read_sealed(path: Path, kind: type[Kind]) -> Kind:
    """The content of a JSON file, as :func:`typed` reads it.

    Raises
    ------
    OSError : it cannot be read.
    RunError : it is not what was written, naming the file.
    """
    try:
        return typed(kind, open_json(read_regular(path).decode()))
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}). Put it back, or begin in another folder.") from None


def typed(kind: type[Kind], content: Any) -> Kind:
    """A dataclass from the mapping that ``asdict`` and JSON made of it: lists become tuples and nested mappings dataclasses; other keys are ignored.

    Raises
    ------
    ValueError : a field is missing, or of another type.
    """
    from pydantic import TypeAdapter, ValidationError  # here, because it takes a fifth of a second

    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None


def sealed_text(text: str) -> str:
    """A text with the hash of it in a first line, which is a comment in TOML."""
    return f"{_HEAD}{_digest(text)}\n{text}"


def read_json(text: str) -> Any:
    """The content of JSON that others may have written.

    Raises
    ------
    ValueError : it is none, is nested more than :data:`DEEPEST` levels deep, or holds a number of hundreds of digits.
    """
    return _read(text, json.loads)


def open_toml(text: str) -> dict[str, Any]:
    """The content of a TOML file that others may have written, with or without the line of its hash.

    Raises
    ------
    ValueError : not what was written; or as :func:`read_json`.
    """
    match = _TEXT.match(text)
    if text.startswith("# sha256") and (match is None or _digest(text[match.end() :]) != match[1]):
        raise DamagedError(CHANGED)
    if any(key[0].count(".") > 10 * DEEPEST for key in _DOTTED.finditer(text)):
        raise ValueError(DEEP)
    return _read(text, tomllib.loads)


def _read(text: str, parse: Callable[[str], Kind]) -> Kind:
    if _LONG.search(text):
        raise ValueError("it holds a number of hundreds of digits")
    try:
        content = parse(text)
    except RecursionError:
        raise ValueError(DEEP) from None
    level, depth = list[Any]([content] * (type(content) in NESTING)), 0
    while level:
        if (depth := depth + 1) > DEEPEST:
            raise ValueError(DEEP)
        level = [x for node in level for x in (node.values() if type(node) is dict else node) if type(x) in NESTING]
    return content


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
