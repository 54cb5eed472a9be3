"""Turn what is unreleased into a version: ``release.py 0.2.0`` writes it into all files that name it, and into CHANGELOG.md.

Nothing is committed; ``make release VERSION=0.2.0`` does that after everything has passed.
"""

import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+")
NAMED = re.compile(
    r'(^version = "|^version: |^__version__ = "|equipoise-(?=\d+\.\d+\.\d+-py3))\d+\.\d+\.\d+', flags=re.M
)
NAMES = (
    "pyproject.toml",
    "src/equipoise/system/version.py",
    "CITATION.cff",
    "docs/install.md",
    "docs/runbook.md",
    "CHANGELOG.md",
)
UNRELEASED = re.compile(r"^## \[Unreleased\]\n(.*?)(?=^## \[)", flags=re.M | re.S)


def released(version: str, texts: dict[str, str], day: date) -> dict[str, str]:
    """The files of ``NAMES`` with a new version.

    Raises
    ------
    ValueError : no version, not a newer one, or nothing that is unreleased.
    """
    if not VERSION.fullmatch(version):
        raise ValueError(f"expected a version such as 0.2.0; found {version!r}.")
    before = re.search(r'^version = "(.*)"', texts["pyproject.toml"], flags=re.M)
    assert before is not None
    if [*map(int, version.split("."))] <= [*map(int, before[1].split("."))]:
        raise ValueError(f"expected a version after {before[1]}; found {version}.")
    changes = UNRELEASED.search(texts["CHANGELOG.md"])
    if changes is None or not changes[1].strip():
        raise ValueError("CHANGELOG.md has nothing under [Unreleased].")
    heading = f"## [Unreleased]\n\n## [{version}] - {day.isoformat()}\n{changes[1]}"
    made = {name: NAMED.sub(lambda found: found[1] + version, text) for name, text in texts.items()}
    return made | {"CHANGELOG.md": UNRELEASED.sub(lambda _: heading, texts["CHANGELOG.md"], count=1)}


if __name__ == "__main__":
    try:
        files = released(
            sys.argv[1], {name: (ROOT / name).read_text("utf-8") for name in NAMES}, datetime.now(UTC).date()
        )
    except (IndexError, ValueError) as error:
        sys.exit(f"make release VERSION=X.Y.Z: {error}")
    for name, text in files.items():
        (ROOT / name).write_text(text, encoding="utf-8")
