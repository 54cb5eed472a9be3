"""Write what is made of the code: the description of the catalogue that the command line reads, and the table of the settings.

Run it after a change of a method, a scenario, a network or a setting: python tools/describe.py
"""

import re
from dataclasses import fields
from pathlib import Path

from equipoise.cli import description
from equipoise.cli.catalogue import FILE
from equipoise.core.settings import Settings, meaning

API = Path(__file__).parents[1] / "docs" / "api.md"


def settings_table() -> str:
    """The settings in Markdown: name, default and meaning."""
    rows = [f"| `{f.name}` | `{f.default!r}` | {meaning(f)} |" for f in fields(Settings)]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


FILE.write_text(description.as_json(), encoding="utf-8")
print(f"wrote {FILE}")
block = f"<!-- settings -->\n{settings_table()}\n<!-- /settings -->"
text = API.read_text(encoding="utf-8")
API.write_text(re.sub(r"<!-- settings -->.*?<!-- /settings -->", lambda _: block, text, flags=re.S), encoding="utf-8")
print(f"wrote {API}")
