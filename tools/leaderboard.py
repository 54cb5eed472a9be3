"""Fill the results of a suite in docs/benchmarks.md in, from the folder in which it was run.

equipoise benchmark fair-small
python tools/leaderboard.py runs/fair-small
"""

import argparse
from pathlib import Path

from claims import filled

from equipoise.report.leaderboard import leaderboard
from equipoise.report.rendering import markdown_grid
from equipoise.runs import benchmark

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
SHOWN = ("overall", "worst")  # tables of the leaderboard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="RUNS/SUITE")
    directory = parser.parse_args().directory
    board = leaderboard(benchmark.document(benchmark.read_suite(directory.name), directory))
    lines = [f"**{board.headline}**"]
    for sheet in board.sheets():
        if sheet.name in SHOWN:
            lines += [
                "",
                f"### {sheet.heading}",
                "",
                *markdown_grid(sheet),
                "",
                *(f"- {text}" for text in sheet.sentences),
            ]
    PAGE.write_text(filled(PAGE.read_text(), directory.name, lines))


if __name__ == "__main__":
    main()
