"""Write the verdicts of the claims' experiments into docs/claims.md, and print what there is to doubt about them.

equipoise reproduce claims/fedheal    # and fedld, fedism, fedsac
python tools/claims.py
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from equipoise.report.reproduction import Result
from equipoise.runs import agreement, reproduce
from equipoise.runs.experiment import experiment_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
VERDICTS = ("holds", "does not hold here", "cannot be told")


def filled(text: str, name: str, lines: Iterable[str]) -> str:
    """The page with these lines between the marks of a name."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(start)
    return before + start + "".join(f"{line}\n" for line in lines) + end + rest.partition(end)[2]


def overview(results: Iterable[tuple[str, Result]]) -> Iterator[str]:
    """A line per claim: in how many of the settings it was tried in each verdict was given."""
    yield f"| paper | claim | {' | '.join(VERDICTS)} |"
    yield "|---|---|---:|---:|---:|"
    for paper, result in results:
        for text in dict.fromkeys(claim.text for claim in result.claims):
            given = [claim.verdict for claim in result.claims if claim.text == text]
            yield f"| {paper} | {text} | {' | '.join(str(given.count(v) or '') for v in VERDICTS)} |"


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "reproduce", help="where the runs are kept")
    base = parser.parse_args().runs
    text = PAGE.read_text(encoding="utf-8")
    told = []
    for name in [name for name in experiment_names() if f"<!-- {name} -->" in text]:
        planned = reproduce.plan(name, base)
        result = agreement.collect(planned)
        for part in result.parts:
            for doubt in part.doubts:
                print(f"{name}, {part.title}: {doubt}")
        text = filled(text, name, result.said[0].markdown())
        told.append((planned.experiment.paper, result))
    PAGE.write_text(filled(text, "claims", overview(told)), encoding="utf-8")


if __name__ == "__main__":
    main()
