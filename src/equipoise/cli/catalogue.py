"""The description of methods, scenarios and networks that ships with the package, read without importing them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalogue.json")  # written by tools/describe.py


@cache
def catalogue() -> dict[str, Any]:
    """What ``tools/describe.py`` gave when the file was written."""
    described: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return described
