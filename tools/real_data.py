"""Write what was measured on real images into docs/data and docs/real-data.md, and print what there is to doubt about it.

equipoise reproduce claims/fedheal-real --data DIR
python tools/real_data.py --data DIR
equipoise reproduce fedsac/table2 --data /usr/share/datasets --part fashion-pow
python tools/real_data.py --data /usr/share/datasets --fedsac
python tools/real_data.py             # only the page, from docs/data

A cell whose runs are not all there is shown with the seeds that are, and a claim about it as one that cannot be told; one without any
is left out.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np
from claims import ROOT, filled
from stored import Rows, grid, pivot, selected, store, stored, verdicts, without_rule

from equipoise.federation.history import History
from equipoise.metrics.statistics import judge
from equipoise.report.formatting import UNDEFINED, number
from equipoise.report.rendering import markdown_grid
from equipoise.report.reproduction import Block, Chosen, ReproducedValue, decided, ours
from equipoise.runs import agreement, reproduce

PAGE = ROOT / "docs" / "real-data.md"
NAME = "claims/fedheal-real"
FEDHEAL = "+FedHEAL"
SCENES = ("fashion-pow", "fashion-cla", "fashion-dir1", "fashion-dir2", "fashion-dir3")
TITLES = ("", "AVG", "AVG, paper", "STD", "STD, paper")  # of the page's table of results on photographs
COLLABORATION = (
    "method",
    *(f"{what}, {of}" for what in ("fairness", "best client") for of in ("last", "last 20", "best", "paper")),
    "seeds",
)
BLOCK = 5  # rounds whose models are averaged, as in the table

Runs = Mapping[tuple[str, str], Sequence[History]]


def results(part: Block, chosen: Mapping[str, Chosen], runs: Runs) -> Iterator[str]:
    """A line per row: its AVG and STD, the paper's, its domains, its rate, and how long a run took."""
    whole = [column for column in part.columns if column in ("AVG", "STD")]
    compared = [column for column in whole if any(part.entries[row, column].paper is not None for row in part.rows)]
    domains = [column for column in part.columns if column not in whole]
    columns = [
        "",
        *whole,
        *(f"{c}, paper" for c in compared),
        *domains,
        "rate (tried, by validation)",
        "seeds",
        "minutes",
    ]
    yield f"| {' | '.join(columns)} |"
    yield f"|---|{'---:|' * (len(columns) - 4)}---|---:|---:|"
    for row in part.rows:
        of_row = runs.get((part.name, row), ())
        papers = (part.entries[row, column].paper for column in compared)
        shown = [
            row,
            *(ours(part.entries[row, column]) for column in whole),
            *(UNDEFINED if paper is None else number(paper) for paper in papers),
            *(ours(part.entries[row, column]) for column in domains),
            _rate(chosen.get(row)),
            str(max(len(part.entries[row, column].values) for column in part.columns)),
            number(median(sum(r["seconds"] for r in run.records) for run in of_row) / 60) if of_row else UNDEFINED,
        ]
        yield f"| {' | '.join(shown)} |"


def _rate(chosen: Chosen | None) -> str:
    """The learning rate that a row took, and the validation accuracy of all that it tried."""
    if chosen is None or chosen.taken is None:
        return UNDEFINED
    tried = ", ".join(f"{one.settings['lr']}: {one.why or f'{one.accuracy:.1f}'}" for one in chosen.tried)
    return f"{chosen.taken.settings['lr']} ({tried})"


def table(run: History) -> np.ndarray:
    """AVG and STD of a run, of blocks of rounds, in percent: shape [blocks, 2]; each group is averaged over the rounds first."""
    accuracy = 100 * run.group_table()[1]
    blocks = np.array([accuracy[a:b].mean(0) for a, b in pairwise(range(0, len(accuracy) + 1, BLOCK))])
    return np.stack([blocks.mean(1), blocks.std(1, ddof=1)], 1)


def course(part: str, runs: Runs) -> Iterator[str]:
    """A line per way to train: what FedHEAL changes in AVG and STD, by blocks of rounds."""
    lines = []
    for row, with_it in ((r, f"{r}{FEDHEAL}") for where, r in runs if where == part):
        plain, fair = ({h.seed: table(h) for h in runs.get((part, name), ())} for name in (row, with_it))
        changes = np.array([fair[seed] - plain[seed] for seed in plain.keys() & fair.keys()])  # [seeds, blocks, 2]
        if len(changes):
            cells = (" / ".join(number(v, sign=True) for v in block) for block in changes.mean(0))
            lines.append(f"| {row} | {' | '.join(cells)} |")
            n = changes.shape[1]
    if lines:
        yield f"| AVG / STD | {' | '.join(f'{BLOCK * k + 1}–{BLOCK * (k + 1)}' for k in range(n))} |"
        yield f"|---|{'---:|' * n}"
    yield from lines


def intervals(part: str, runs: Runs) -> Iterator[str]:
    """A line per block of rounds: FedAvg with and without FedHEAL, and the differences with their intervals."""
    plain, fair = ({h.seed: table(h) for h in runs.get((part, row), ())} for row in ("FedAvg", f"FedAvg{FEDHEAL}"))
    seeds = sorted(plain.keys() & fair.keys())
    if not seeds:
        return
    yield "| rounds | AVG FedAvg | AVG with FedHEAL | AVG difference | STD FedAvg | STD with FedHEAL | STD difference |"
    yield f"|---|{'---:|' * 6}"
    for k in range(len(plain[seeds[0]])):
        shown = [f"{BLOCK * k + 1}–{BLOCK * (k + 1)}"]
        for j in range(2):
            told = judge([fair[seed][k, j] - plain[seed][k, j] for seed in seeds], "higher")
            ends = f"[{number(told.low, sign=True)}, {number(told.high, sign=True)}]"
            shown += [number(mean(of[seed][k, j] for seed in seeds)) for of in (plain, fair)]
            shown.append(f"{number(told.mean, sign=True)} {ends}")
        yield f"| {' | '.join(shown)} |"


def collaboration(part: Block, reached: Block) -> Iterator[list[str]]:
    """A row per method: its fairness and its best client, in the last round, over the last 20 and in the best one, and the paper's."""
    for row in reached.rows:
        shown, n = [row], 0
        for block, what in ((part, "fairness"), (reached, "max")):
            entries = [block.entries.get((row, column)) for column in (what, "last 20", "best round")]
            shown += [UNDEFINED if entry is None or not entry.values else ours(entry) for entry in entries]
            shown.append(_published(entries[0]))
            n = max([n, *(len(entry.values) for entry in entries if entry is not None)])
        if n:
            yield [*shown, str(n)]


def _published(entry: ReproducedValue | None) -> str:
    """The paper's number and, where it has one, its spread over seeds."""
    if entry is None or entry.paper is None:
        return UNDEFINED
    return number(entry.paper) + ("" if entry.paper_std is None else f" ± {entry.paper_std:g}")


def store_collaboration(data: str, base: Path) -> None:
    """Store FedSAC's scenes, and what it is without either half."""
    fairness, best, fairness_without, best_without = (
        {part.name: part for part in agreement.collect(planned).parts}
        for planned in (
            reproduce.plan(f"fedsac/table{k}", base, data=data, parts=SCENES, seeds=3) for k in (1, 2, 3, 4)
        )
    )
    for name, ours_of, reached in (("fashion", fairness, best), ("ablation", fairness_without, best_without)):
        rows = [
            [ours_of[scene].title.split()[-1], *row]
            for scene in SCENES
            for row in collaboration(ours_of[scene], reached[scene])
        ]
        store(f"fedsac {name}", [["scene", *COLLABORATION], *rows])


def beside_paper(rows: Rows, what: str) -> Iterator[list[str]]:
    """A row per method and a column per scene: the mean over the last 20 rounds, and the paper's number in brackets."""
    scene, method, last, paper = (
        rows[0].index(name) for name in ("scene", "method", f"{what}, last 20", f"{what}, paper")
    )
    shown = (row for row in rows[1:] if row[last] != UNDEFINED)
    return pivot(
        ((row[method], row[scene], f"{row[last]} ({row[paper].partition(' ')[0]})") for row in shown), "method"
    )


def page(text: str) -> str:
    """The page with the short forms of what is stored."""
    text = filled(text, "office results", grid(selected(stored(f"{NAME} office results"), TITLES)))
    head, *judged = stored(f"{NAME} office claims")
    judged += stored(f"{NAME} digits claims")[1:]
    text = filled(text, NAME, grid(verdicts([head, *judged], ["what"], ["where", "measure"])))
    for what in ("fairness", "best client"):
        text = filled(text, f"fedsac {what}", grid(beside_paper(stored("fedsac fashion"), what)))
    return filled(text, "fedsac ablation", grid(beside_paper(stored("fedsac ablation"), "fairness")))


def main() -> None:
    """Store what was measured, and fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the folder of the papers' data sets; without it, only the page is filled in")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "reproduce", help="where the runs are kept")
    parser.add_argument("--fedsac", action="store_true", help="store FedSAC on Fashion-MNIST instead of FedHEAL")
    given = parser.parse_args()
    if given.data and given.fedsac:
        store_collaboration(str(Path(given.data).absolute()), given.runs)
    elif given.data:
        store_domains(str(Path(given.data).absolute()), given.runs)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def store_domains(data: str, base: Path) -> None:
    """Store FedHEAL's rows, claims and rounds."""
    planned = reproduce.plan(NAME, base, data=data)
    runs = reproduce.histories(planned)
    result = agreement.collect(planned, ended=runs)
    for part in result.parts:
        for doubt in part.doubts:
            print(f"{part.title}: {doubt}")
        chosen = {row: told for (where, row), told in planned.chosen.items() if where == part.name}
        claims = [claim for claim in result.claims if claim.part == part.name and claim.judgement.n]
        for what, lines in (
            ("results", results(part, chosen, runs)),
            ("claims", markdown_grid(decided(claims, (), embedded=False)[0]) if claims else ()),
            ("rounds", intervals(part.name, runs)),
            ("course", course(part.name, runs)),
        ):
            if rows := [*lines]:
                store(f"{NAME} {part.name} {what}", without_rule(rows))


if __name__ == "__main__":
    main()
