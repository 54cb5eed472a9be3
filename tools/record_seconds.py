"""How long tests take, for tests/seconds.json: `pytest --junitxml=REPORT ...`, then `python tools/record_seconds.py REPORT`.

A test whose cases take longer than their share together has so many cases in `make test` as fit it; see tests/conftest.py.
A test that the report does not name keeps the seconds that it had.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

FILE = Path(__file__).parents[1] / "tests" / "seconds.json"
SHARE = 0.2  # seconds of `make test` that a test has for all its cases, if its mark `share` says nothing else


def measured(report: Path) -> dict[str, float]:
    """Seconds of a case of every test in a JUnit report, on average; none of a test whose cases take less than `SHARE` together."""
    times: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/")
        times[f"{path}.py::{case.attrib['name'].split('[')[0]}"].append(float(case.attrib["time"]))
    return {test: round(mean(seconds), 3) if sum(seconds) > SHARE else 0.0 for test, seconds in times.items()}


def main() -> None:
    """Write the seconds of the tests of a report, beside those of the tests that it does not name."""
    old = json.loads(FILE.read_text()) if FILE.exists() else {}
    seconds = {test: cost for test, cost in {**old, **measured(Path(sys.argv[1]))}.items() if cost}
    FILE.write_text(json.dumps(dict(sorted(seconds.items())), indent=1) + "\n")
    print(f"{len(seconds)} tests in {FILE.name}")


if __name__ == "__main__":
    main()
