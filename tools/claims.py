"""Write the verdicts of the claims' experiments into docs/claims.md, and print what there is to doubt about them.

equipoise reproduce claims/fedheal    # and fedld, fedism, fedsac
python tools/claims.py
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from equipoise.analysis.states import states
from equipoise.metrics.statistics import judge
from equipoise.report.claims import JudgedClaim
from equipoise.report.reproduction import Result
from equipoise.runs import agreement, reproduce
from equipoise.runs import directory as runs
from equipoise.runs.experiment import experiment_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
RHO = 0.1  # search distance at which minima are compared
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


def flatness(planned: reproduce.ReproductionPlan) -> Iterator[JudgedClaim]:
    """FedISM+'s claim that its minima are flatter for both kinds of clients: no column of a record, but found from the models."""

    def sharpness(row: str, group: str) -> dict[int, float]:
        found = [
            states([one.path], rho_max=RHO, points=2)[0]
            for one in planned.runs
            if one.row == row
            if runs.finished(one.path)
        ]
        return {one.seed: float(one.sharpness[np.array(one.groups) == group, -1].mean()) for one in found}

    for row in ("FedISM+ (S)", "FedISM+ (L)"):
        for group in ("clean", "corrupted"):
            ours, less = sharpness(row, group), sharpness("FedAvg", group)
            seeds = sorted(ours.keys() & less.keys())
            yield JudgedClaim(
                f"{row} finds flatter minima for {group} clients", "Figure 7", planned.experiment.part[0].name, planned.experiment.part[0].title or "",
                row, "FedAvg", None, f"sharpness of {group} clients at rho {RHO:g} in hundredths of a nat", "lower", None, len(seeds),
                judge([100 * (ours[seed] - less[seed]) for seed in seeds], "lower"),
            )  # fmt: skip


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
        if name == "claims/fedism":
            result = replace(result, claims=(*result.claims, *flatness(planned)))
        for part in result.parts:
            for doubt in part.doubts:
                print(f"{name}, {part.title}: {doubt}")
        text = filled(text, name, result.said[0].markdown())
        told.append((planned.experiment.paper, result))
    PAGE.write_text(filled(text, "claims", overview(told)), encoding="utf-8")


if __name__ == "__main__":
    main()
