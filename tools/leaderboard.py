"""Write the results of a suite into docs/data and docs/benchmarks.md, from the folder in which it was run.

equipoise benchmark fair-small
python tools/leaderboard.py runs/fair-small
"""

import argparse
from pathlib import Path

from claims import filled
from stored import Rows, grid, selected, store, stored, without_rule

from equipoise.report.leaderboard import leaderboard
from equipoise.report.rendering import markdown_grid
from equipoise.runs import benchmark

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
SHOWN = ("overall", "worst")  # tables of the leaderboard
TITLES = ("method", "Worst W/T/L", "Worst B/E/W", "Worst rank", "Mean W/T/L", "STD W/T/L")  # of the page's table


def page(text: str, name: str, rows: Rows) -> str:
    """The page with a suite's methods over all its scenarios."""
    return filled(text, name, grid(selected(rows, TITLES)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="RUNS/SUITE")
    directory = parser.parse_args().directory
    board = leaderboard(benchmark.document(benchmark.read_suite(directory.name), directory))
    print(board.headline)
    for sheet in board.sheets():
        if sheet.name in SHOWN:
            store(f"{directory.name} {sheet.name}", without_rule(markdown_grid(sheet)))
    rows = stored(f"{directory.name} overall")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), directory.name, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
