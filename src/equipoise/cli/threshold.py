"""The command ``equipoise threshold``."""

from typing import Annotated

from rich.markup import escape
from typer import Option

from equipoise.cli.console import out, plain_table, print_json, say
from equipoise.cli.options import Json, Moved, Run


def threshold(
    directory: Run,
    sensitivity: Annotated[
        float | None, Option(metavar="X", help="Recognise at least this share of the positive class, in (0, 1].")
    ] = None,
    specificity: Annotated[
        float | None, Option(metavar="X", help="Recognise at least this share of the others, in (0, 1].")
    ] = None,
    cost: Annotated[
        str | None,
        Option(metavar="FN:FP", help="The least cost, if a missed case costs so much and a false alarm so much."),
    ] = None,
    youden: Annotated[
        bool, Option("--youden", help="The largest sum of sensitivity and specificity (Youden).")
    ] = False,
    by_group: Annotated[
        bool,
        Option("--by-group", help="A threshold for each group of people. It uses the group of a person at prediction."),
    ] = False,
    attribute: Annotated[
        str | None, Option(metavar="NAME", help="The attribute of `--by-group`, if the data have several.")
    ] = None,
    recalibrate: Annotated[
        str | None,
        Option(metavar="KIND", help="Also fit a function to better probabilities, on the same rows: platt, isotonic."),
    ] = None,
    data: Moved = None,
    json_: Json = False,
) -> None:
    """Choose the threshold of a binary classifier on validation rows; print what it does by group on test rows."""
    from equipoise.federation.thresholds import choose_threshold
    from equipoise.records.threshold import FILE
    from equipoise.report import thresholds as shown
    from equipoise.runs import directory as runs

    chosen = choose_threshold(
        runs.trained(directory, data),
        sensitivity=sensitivity,
        specificity=specificity,
        cost=cost,
        youden=youden,
        by_group=attribute or by_group,
        recalibrate=recalibrate,
    )
    document, path = chosen.document, directory / FILE
    replaced = path.exists()
    chosen.save(directory)
    if json_:
        print_json(document)
        return
    for line in shown.sentences(document):
        say(line)
    for grid in (shown.rates(document), shown.probabilities(document)):
        table = plain_table(
            shown.HEAD.lower(), *map(escape, grid.titles), right=[*map(escape, grid.titles)], fold=(shown.HEAD.lower(),)
        )
        for name, cells in grid.rows:
            table.add_row(escape(name), *("\n".join(filter(None, (cell.mean, escape(cell.ends)))) for cell in cells))
        out.print(table)
    say(" ".join(shown.explained(document)))
    say(f"threshold: {path}{', in place of the one that was there' * replaced}")
