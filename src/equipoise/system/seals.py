"""Text files that carry the hash of their own content, by which a change is found.

The hash is part of the file and is replaced together with it, so it is never that of an older content, whenever a process
dies. A file without one is of an earlier version or written by hand, and is taken as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

CHANGED = "its content is not what was written"
_JSON = re.compile(r'\{\n "seal": "([0-9a-f]{64})",')
_TEXT = re.compile(r"# sha256 of all that follows, so that a change is found: ([0-9a-f]{64})\n")


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
            raise ValueError(CHANGED)
        return json.loads(body)
    try:
        content = json.loads(text)
    except ValueError:
        raise ValueError(CHANGED) from None
    if isinstance(content, dict) and "seal" in content:
        raise ValueError(CHANGED)
    return content


def sealed_text(text: str) -> str:
    """A text with the hash of it in a first line, which is a comment in TOML."""
    return f"# sha256 of all that follows, so that a change is found: {_digest(text)}\n{text}"


def open_text(text: str) -> str:
    """A text without the line of its hash.

    Raises
    ------
    ValueError : not what was written.
    """
    if not text.startswith("# sha256"):
        return text
    match = _TEXT.match(text)
    if match is None or _digest(text[match.end() :]) != match[1]:
        raise ValueError(CHANGED)
    return text[match.end() :]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
