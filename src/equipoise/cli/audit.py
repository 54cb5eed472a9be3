"""The command ``equipoise audit``."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from equipoise.cli.console import out, print_json, say
from equipoise.cli.options import Json, reading_of

READING = ("sep", "decimal", "thousands", "encoding", "not_missing")  # of a table that is text


def audit(
    source: Annotated[
        Path, Argument(metavar="PREDICTIONS", help="A table with a row per person: .csv, .tsv, .xlsx or .parquet.")
    ],
    label: Annotated[str | None, Option(metavar="COLUMN", help="What is true of the person [default: label].")] = None,
    probability: Annotated[
        str | None, Option(metavar="COLUMN", help="The probability of the positive class, in [0, 1].")
    ] = None,
    prediction: Annotated[
        str | None, Option(metavar="COLUMN", help="The predicted class, or number, instead of a threshold.")
    ] = None,
    group: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN",
            help="A group of people, `sex` or `age:40,60`; several times for several [default: group].",
        ),
    ] = None,
    site: Annotated[
        str | None,
        Option(metavar="COLUMN", help="The site, in each of which groups are compared, too [default: site]."),
    ] = None,
    subject: Annotated[
        str | None,
        Option(
            metavar="COLUMN",
            help="The person, if one has several rows: intervals take these together [default: subject].",
        ),
    ] = None,
    positive: Annotated[
        str | None, Option(metavar="CLASS", help="The class that rates are about [default: the second of two].")
    ] = None,
    threshold: Annotated[
        float | None,
        Option(min=0, max=1, help="The positive class is predicted from this probability on [default: 0.5]."),
    ] = None,
    least: Annotated[int, Option(min=1, metavar="N", help="People that a number must be about.")] = 30,
    task: Annotated[
        str | None, Option(metavar="TASK", help="`regression` for numbers to predict [default: classification].")
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="How the table is written: sep, decimal, encoding, not_missing."),
    ] = None,
    output: Annotated[Path, Option("--output", "-o", help="The page to write.")] = Path("audit.html"),
    json_: Json = False,
) -> None:
    """Measure how differently any model treats groups of people, from its predictions; nothing is trained."""
    from equipoise.report.audit import SITE
    from equipoise.report.audit import audit as audited
    from equipoise.report.layout import Sheet
    from equipoise.report.rendering import rich_sheets
    from equipoise.system.suggestions import unknown

    if task not in (None, "classification", "regression"):
        raise ValueError(f"--task: {unknown('task', task, ('classification', 'regression'))}")
    made = audited(
        source,
        label=label,
        probability=probability,
        prediction=prediction,
        group=group[0] if group and len(group) == 1 else group,
        site=site,
        subject=subject,
        positive=positive,
        threshold=threshold,
        least=least,
        task=task,
        **reading_of(set_, READING),
    )
    written = made.save(output)
    if json_:
        print_json(made.document)
        return
    say(made.summary)
    tables = [(each, each.grid) for each in made.sections if each.grid is not None and each.head != SITE]
    sheets = [Sheet("", each.title, f"{each.title}.", grid, each.below, head=each.head) for each, grid in tables]
    for table in rich_sheets(sheets, out.width):
        out.print("", table)
    for text in made.sections[-1].below:
        say(text)
    say(f"audit: {written}")
