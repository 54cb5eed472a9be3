"""Write what is described from the catalogue: src/equipoise/cli/catalogue.json.

Run it after a change of a method, a scenario or a network. With ``--check`` nothing is written: it fails if the file is stale.
The pages in docs/ need no such copy: they are filled in when the site is built (tools/pages.py).
"""

import sys
from pathlib import Path

from equipoise.cli import description
from equipoise.cli.catalogue import FILE

ROOT = Path(__file__).parents[1]


def described() -> dict[Path, str]:
    """The files and what they must hold."""
    return {FILE: description.as_json()}


if __name__ == "__main__":
    stale = [path for path, text in described().items() if path.read_text(encoding="utf-8") != text]
    names = ", ".join(str(path.resolve().relative_to(ROOT)) for path in stale)
    if sys.argv[1:] == ["--check"]:
        sys.exit(f"{names} must be written anew: run python tools/describe.py" if stale else 0)
    for path in stale:
        path.write_text(described()[path], encoding="utf-8")
    print(f"wrote {names}" if stale else "nothing has changed")
