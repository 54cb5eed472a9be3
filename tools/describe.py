"""Write what is made of the code: the description of the catalogue that the command line reads, and the tables of the settings.

Run it after a change of a method, a scenario, a network or a setting: python tools/describe.py
"""

import re
from dataclasses import fields
from pathlib import Path

from equipoise.cli import description
from equipoise.cli.catalogue import FILE
from equipoise.core.settings import RunSettings, Settings, meaning, usual

DOCS = Path(__file__).parents[1] / "docs"


def settings_table() -> str:
    """The settings as fields: name, default and meaning."""
    rows = [f"| `{f.name}` | `{f.default!r}` | {meaning(f)} |" for f in fields(Settings)]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])


def options_table() -> str:
    """The settings as options of the command line: name, meaning and what holds without it."""
    short = {"method": ", `-m`", "rounds": ", `-r`"}
    rows = [
        f"| `--{f.name.replace('_', '-')}`{short.get(f.name, '')} | {meaning(f)} | {usual(f)} |"
        for f in (*fields(RunSettings), *fields(Settings))
    ]
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *rows])


def replace_block(page: Path, name: str, content: str) -> None:
    """Write ``content`` between a page's comments ``name`` and ``/name``."""
    block = f"<!-- {name} -->\n{content}\n<!-- /{name} -->"
    text = re.sub(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _: block, page.read_text(encoding="utf-8"), flags=re.S)
    page.write_text(text, encoding="utf-8")
    print(f"wrote {page}")


FILE.write_text(description.as_json(), encoding="utf-8")
print(f"wrote {FILE}")
replace_block(DOCS / "api.md", "settings", settings_table())
replace_block(DOCS / "command-line.md", "options", options_table())
