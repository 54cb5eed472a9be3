"""The command ``equipoise contribution``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from equipoise.cli.console import counted, out, print_table, say
from equipoise.cli.options import Json, Runs, option

EVALUATOR = "How values are computed: auto (exact for ten clients a round or fewer, else gtg), exact, gtg, loo, banzhaf, owen, strata, comfedsv, alone, tmc, ..."


def contribution(
    directories: Runs,
    evaluator: str = option("auto", EVALUATOR),
    utility: list[str] | None = option(
        None, "What is valued: loss, accuracy, and of groups worst, std, gap. Repeatable [default: loss, accuracy]."
    ),
    retrain: bool = option(
        False, "Train a federation of every coalition from the start, 2^N of N clients, instead of the run once more."
    ),
    budget: float | None = option(None, "Share this amount in proportion to the values by the first utility.", min=0.0),
    floor: float | None = option(None, "The least that everybody gets of --budget.", min=0.0),
    output: Path | None = option(
        None,
        "File of the page: .html, .md, .tex or .csv [default: contribution.html in the directory of the first run].",
        "--output -o",
    ),
    json_: Json = False,
) -> Iterator[object]:
    """Show what each client gave to a model: what it would have lacked without the client, over all coalitions.

    Runs are trained once more, which gives the same updates, and models of coalitions are measured on what clients held out (--validation), never on
    test samples. Give runs of one method that differ by their seeds to see which differences hold.
    """
    from equipoise.analysis.contribution import contributions
    from equipoise.records.directory import all_members
    from equipoise.report import contribution as report
    from equipoise.system import suggestions

    suggestions.require_use({"--floor": floor is not None and budget is None}, together="no --budget")
    suggestions.require_use({"--output": output and json_}, together="--json, which writes no files")
    paths = all_members(directories)
    with counted("rounds", shown=not json_) as on_round:
        worth = contributions(paths, evaluator, utility or ("loss", "accuracy"), retrain=retrain, on_round=on_round)
    document = worth.document()
    if budget is not None:
        shares = worth.reward(budget, floor or 0.0)
        document["rewards"] = dict(zip(worth.clients, shares.amounts.tolist(), strict=True))
    yield document
    out.print(report.headline(document))
    grid = report.table(document).grid
    columns = ("client", *grid.titles)
    print_table(
        columns,
        [(name, *(f"{x.mean} ±{x.half}" if x.half else x.mean for x in cells)) for name, cells in grid.rows],
        right=columns[1:],
        whole=columns,
    )
    if budget is not None:
        print_table(
            ("client", "amount"),
            [(name, f"{amount:,.2f}") for name, amount in document["rewards"].items()],
            right=("amount",),
        )
    for sentence in report.sentences(document):
        say(sentence)
    say(f"wrote {report.page(document).save(output or paths[0] / 'contribution.html')}")
