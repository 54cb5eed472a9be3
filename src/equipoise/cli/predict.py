"""The command ``equipoise predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from equipoise.cli.console import note, progress_bar, require_free, say
from equipoise.cli.options import reading_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from equipoise.data.formats.table import Table


def predict(
    bundle: Annotated[Path, Argument(metavar="BUNDLE", help="A folder that `equipoise export --bundle` wrote.")],
    data: Annotated[
        Path,
        Argument(
            metavar="DATA",
            help="A table with the columns that the model was trained with; a folder of images; or an array, a .npy file.",
        ),
    ],
    output: Annotated[Path, Option("--output", "-o", metavar="CSV", help="The table of predictions to write.")],
    identifier: Annotated[
        str | None,
        Option("--id", metavar="COLUMN", help="A column of the table that names its rows [default: their numbers]."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="How the table is written, `sep`, `decimal` or `encoding` [default: as the one of the run].",
        ),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Predict with a bundle: a row for every row of a table, with its prediction and the probability of every class."""
    from equipoise.bundle.files import cautions
    from equipoise.bundle.inputs import group_cells
    from equipoise.bundle.predictor import ROWS, Classifier, load
    from equipoise.data.tables.columns import WRITTEN
    from equipoise.system.files import write_atomically
    from equipoise.system.text import csv_text, formulas

    require_free(output, force)
    model = load(bundle)
    (x, notes), names, table = model.inputs.of_file(data, reading_of(set_, WRITTEN))
    first = ("row" if table is not None or model.inputs.names else "sample") if identifier is None else identifier
    names = names if identifier is None else _named(identifier, table, data)
    column = model.content.groups
    words = None if column is None or table is None else group_cells(table, column.column, str(data))
    codes, unknown = model.codes(words, len(x))
    classes = model.classes_.tolist() if isinstance(model, Classifier) else []
    for text in filter(None, (*cautions(bundle), *notes, unknown, *formulas([first, *names, *classes]))):
        note(text)
    rows: list[Iterable[object]] = [[first, "prediction", *(f"probability {name}" for name in classes)]]
    with progress_bar("rows", shown=len(x) > ROWS) as progress:
        task, done = progress.add_task("predicting", total=len(x)), 0
        for outputs in model.content.outputs(x):
            part = slice(done, done + len(outputs))
            made = model.decided(outputs, None if codes is None else codes[part])
            columns: list[Any] = [names[part], made.tolist()]
            if isinstance(model, Classifier):
                columns += [map(str, of_class) for of_class in model.probabilities(outputs).T]  # all digits that count
            rows += zip(*columns, strict=True)
            done += len(outputs)
            progress.update(task, completed=done)
    write_atomically(output, csv_text(rows))
    say(f"{output}: {len(x):,} predictions")


def _named(identifier: str, table: Table | None, data: Path) -> list[str]:
    """The names of the rows."""
    from equipoise.system.suggestions import some

    if table is None or identifier not in table.names:
        columns = "no columns" if table is None else f"the columns {some(table.names)}"
        raise ValueError(f"--id {identifier}: {data} has {columns}.")
    return ["" if name is None else str(name) for name in table.words([identifier])[identifier]]
