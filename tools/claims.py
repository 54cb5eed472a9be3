"""Write the verdicts of the claims' experiments into docs/claims.md, and print what there is to doubt about them.

equipoise reproduce claims/fedheal    # and fedld, fedism, fedsac
python tools/claims.py
"""

import argparse
from pathlib import Path

from equipoise.runs import agreement, reproduce
from equipoise.runs.experiment import experiment_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "reproduce", help="where the runs are kept")
    base = parser.parse_args().runs
    text = PAGE.read_text(encoding="utf-8")
    for name in [name for name in experiment_names() if f"<!-- {name} -->" in text]:
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(start)
        result = agreement.collect(reproduce.plan(name, base))
        for part in result.parts:
            for doubt in part.doubts:
                print(f"{name}, {part.title}: {doubt}")
        lines = result.said[0].markdown()
        text = before + start + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
