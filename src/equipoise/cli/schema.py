"""The commands ``equipoise schema``: one schema for the tables of several sites, from sums."""

from pathlib import Path

import typer

from equipoise.cli.console import print_table, require_free, say
from equipoise.cli.options import add, option
from equipoise.system.files import write_atomically
from equipoise.system.seals import sealed_json
from equipoise.system.suggestions import require_use, some

app = typer.Typer(
    name="schema",
    no_args_is_help=True,
    help="One schema for the tables of several sites, from sums over their training rows.",
)


@add(app)
def sums(
    table: Path = option(..., "The site's own table.", "TABLE"),
    config: Path = option(..., "A file of `equipoise init`, the same at all sites.", "--config -c"),
    output: Path = option(..., "The file of sums that leaves the site.", "--output -o"),
    seed: int = option(0, "Of the draw of test rows, if no column states them.", min=0),
    site: str | None = option(None, "The site's name in runs, if they hold rows out for validation."),
    least: int = option(10, "Training rows of a category whose count leaves the site.", min=1),
    force: bool = option(False, "Replace the output if it exists."),
) -> None:
    """At a site: write the sums of its training rows, which is all that leaves it; look at the file before you send it.

    The sums are not masked: whoever gets the file sees this site's own sums and counts.
    """
    from equipoise.cli.init import read
    from equipoise.scenarios.shared import site_sums

    require_free(output, force)
    choices = read(config)
    options, held = choices["scenario_options"], choices.get("validation", 0.0)
    require_use({"--site": site and not held}, without=f"validation in {config}")
    test = options.get("test", 0.2)
    content = site_sums(table, options, seed=seed, test=test, least=least, validation=held, site=site)
    write_atomically(output, sealed_json(content))
    say(
        f"{output}: sums of {content['rows']:,} training rows, {len(content['columns'])} columns. Counts of fewer than {least} rows are joined; "
        "that of missing cells is exact. "
        "The sums are not masked: whoever gets this file sees those of this site."
    )


@add(app)
def join(
    files: list[Path] = option(..., "The files of sums of all sites.", "FILES..."),
    output: Path = option(Path("schema.json"), "The schema, for all sites and the server.", "--output -o"),
    force: bool = option(False, "Replace the output if it exists."),
) -> None:
    """At the server: make the schema of all sites from their sums, which are not masked: the server sees those of each site."""
    from equipoise.data.tables.coding import input_names
    from equipoise.scenarios.shared import join as joined, lacking, load_sums, unlike_sites

    require_free(output, force)
    if len(files) < 2:
        raise ValueError(
            f"{files[0]} are the sums of one site, and a schema of several needs those of each. For one table: equipoise run --data TABLE."
        )
    content = {str(path): load_sums(path) for path in files}
    schema = joined(content)
    schema.save(output)
    rows, numbers = [], ("centre", "scale", "inputs")
    for feature in schema.coder.schema.features:
        fitted = schema.coder.fitted[feature.name]
        scaling = [f"{fitted.centre:.6g}", f"{fitted.scale:.6g}"] if not fitted.categories else ["", ""]
        rows.append([feature.name, feature.kind, *scaling, str(len(input_names(feature, fitted)))])
    print_table(("column", "kind", *numbers), rows, right=numbers)
    for name in schema.coder.schema.names:
        if names := lacking(content, name):
            say(
                f"{name}: no sums of {some(names)}, where all training cells or all but a few are missing. The other sites decide."
            )
    for note in unlike_sites({str(Path(name).with_suffix("")): sums for name, sums in content.items()}):
        say(note)
    say(
        f"{output}: {len(schema.inputs)} inputs, {len(schema.classes)} classes, from {sum(schema.rows):,} training rows of {len(files)} sites."
    )
