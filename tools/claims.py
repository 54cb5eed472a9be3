"""Write the verdicts of the claims' experiments into docs/data and docs/claims.md, and print what there is to doubt about them.

equipoise reproduce claims/fedheal    # and fedld, fedism, fedsac
python tools/claims.py
python tools/claims.py --stored       # only the page, from docs/data

A claim whose runs are not there keeps the line that it has.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from stored import Rows, grid, store, stored, verdicts, without_rule

from equipoise.analysis.landscape import landscape, states
from equipoise.metrics.statistics import judge
from equipoise.report.rendering import markdown_grid
from equipoise.report.reproduction import JudgedClaim, decided
from equipoise.runs import agreement, directory as runs, reproduce
from equipoise.runs.experiment import read_experiment

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
RHO = 0.1  # search distance at which clients' sharpness is compared
VERDICTS = ("holds", "does not hold here", "cannot be told")
SHORT = {  # what makes the rows and the columns of a paper's table on the page
    "claims/fedheal": (["what"], ["measure"]),
    "claims/fedism": (["measure"], ["what"]),
    "claims/fedld": (["what"], ["where"]),
    "claims/fedsac": (["where"], ["what", "measure"]),
}
MODELS = {  # FedISM+'s claims about the models themselves: source, what is measured, and its unit in nats
    "corrupted images": ("Figure 7", "rise of the loss on corrupted test images one filter norm away, in nats", 1.0),
    "corrupted clients": (
        "our measure, Eq. 10",
        f"sharpness at rho {RHO:g} on corrupted clients' training data, in 0.01 nats",
        0.01,
    ),
    "clean clients": (
        "our control, Eq. 10",
        f"sharpness at rho {RHO:g} on clean clients' training data, in 0.01 nats",
        0.01,
    ),
}


def between(text: str, name: str) -> list[str]:
    """The lines of the page between the marks of a name."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0].splitlines()


def filled(text: str, name: str, lines: Iterable[str]) -> str:
    """The page with these lines between the marks of a name.

    Raises
    ------
    ValueError : it has not both marks.
    """
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, there, rest = text.partition(start)
    _, ends, after = rest.partition(end)
    if not there or not ends:
        raise ValueError(f"The page has no {start.strip()} with {end} after it.")
    return before + start + "".join(f"{line}\n" for line in lines) + end + after


def overview(papers: Mapping[str, Rows]) -> Iterator[list[str]]:
    """A row per paper: how many claims it makes, in each setting in which they were tried, and how many times each verdict was given.

    Raises
    ------
    ValueError : a claim has no verdict.
    """
    yield ["paper", "claims", "verdicts", *VERDICTS]
    for paper, rows in papers.items():
        given = [row[-1].partition(":")[0] for row in rows[1:]]
        if unknown := {*given} - {*VERDICTS}:
            raise ValueError(f"{paper}: expected a verdict; found {', '.join(unknown)}.")
        claimed = {row[0].rpartition(" (")[0] for row in rows[1:]}
        yield [paper, *map(str, (len(claimed), len(given), *map(given.count, VERDICTS)))]


def page(text: str, tables: Mapping[str, Rows]) -> str:
    """The page with the short form of each table, by name, and the counts of all of them."""
    for name, rows in tables.items():
        text = filled(text, name, grid(verdicts(rows, *SHORT[name])))
    papers = {read_experiment(name).paper: rows for name, rows in tables.items()}
    return filled(text, "claims", grid(overview(papers)))


def measured(path: Path) -> dict[str, float]:
    """How steep the loss is around the model of a run, by the keys of ``MODELS``."""
    around = landscape([path], "corrupted", points=3, grid=0)[0].line  # [draws, 3]: before it, the model, beyond it
    found, groups = states([path], rho_max=RHO, points=2)[0], ("clean", "corrupted")
    of = {f"{g} clients": found.sharpness[np.array(found.groups) == g, -1].mean() for g in groups}
    return {"corrupted images": float((around[:, [0, 2]].mean(1) - around[:, 1]).mean()), **of}


def flatness(planned: reproduce.ReproductionPlan) -> Iterator[JudgedClaim]:
    """FedISM+'s claim that its minima are flatter: no column of a record, but found from the models."""
    part = planned.experiment.part[0]
    rows = ("FedAvg", "FedISM+ (S)", "FedISM+ (L)")
    seen = {
        row: {one.seed: measured(one.path) for one in planned.runs if one.row == row and runs.finished(one.path)}
        for row in rows
        if (part.name, row) in planned.chosen
    }
    for row in rows[1:]:
        for where, (source, what, unit) in MODELS.items():
            planned_seeds = planned.seeds(part.name, ["FedAvg", row])
            seeds = sorted(seen.get(row, {}).keys() & seen.get("FedAvg", {}).keys() & planned_seeds)
            yield JudgedClaim(
                f"{row} has flatter minima for {where}", source, part.name, part.title or "", row, "FedAvg", None, what, "lower", None,
                len(planned_seeds), judge([(seen[row][seed][where] - seen["FedAvg"][seed][where]) / unit for seed in seeds], "lower"),
                "" if len(seeds) == len(planned_seeds) else "not all of its runs are there",
            )  # fmt: skip


def settled(planned: reproduce.ReproductionPlan, claim: JudgedClaim) -> bool:
    """Whether all runs of a claim are there, and what its rows choose is known."""
    rows = {claim.row} | ({claim.than} if claim.than else set())
    unchosen = {row for part, row in planned.candidates.keys() - planned.chosen.keys() if part == claim.part}
    return claim.judgement.n == claim.planned and not rows & unchosen


def judged(planned: reproduce.ReproductionPlan, claims: Sequence[JudgedClaim], kept: Rows) -> Iterator[list[str]]:
    """The table of claims, where those that are not settled keep the line they have.

    Raises
    ------
    ValueError : such a claim has no line, or one of another number of seeds.
    """
    known = {tuple(row[:3]): row for row in kept}
    head, *new = without_rule(markdown_grid(decided(tuple(claims), (), embedded=True, doubted=())[0]))
    yield head
    for claim, row in zip(claims, new, strict=True):
        if settled(planned, claim):
            yield row
            continue
        where = f"{claim.text}, {claim.title}"
        old = known.get(tuple(row[:3]))
        if old is None or old[4] != str(claim.planned):
            raise ValueError(
                f"{where}: not all of its runs are there, and the table has no line of {claim.planned} seeds to keep."
            )
        print(f"{where}: the line stays as it is, since not all of its runs are there.")
        yield old


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "reproduce", help="where the runs are kept")
    parser.add_argument("--stored", action="store_true", help="only the page, from docs/data")
    given = parser.parse_args()
    for name in () if given.stored else SHORT:
        planned = reproduce.plan(name, given.runs)
        result = agreement.collect(planned)
        told = (*result.claims, *(flatness(planned) if name == "claims/fedism" else ()))
        for part in result.parts if any(settled(planned, claim) for claim in told) else ():
            for doubt in part.doubts:
                print(f"{name}, {part.title}: {doubt}")
        store(name, [*judged(planned, told, stored(name))])
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page(text, {name: stored(name) for name in SHORT}), encoding="utf-8")


if __name__ == "__main__":
    main()
