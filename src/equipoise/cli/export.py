"""The commands for a trained model: ``equipoise export``, ``threshold`` and ``predict``."""

import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

import equipoise as eq
from equipoise.cli.console import note, print_table, progress_bar, require_free, say
from equipoise.cli.options import MOVED, Run, option, reading_of
from equipoise.data.tables.options import WRITTEN
from equipoise.system import own_code, seals
from equipoise.system.files import read_regular, real_path, write_atomically
from equipoise.system.suggestions import require_use, some
from equipoise.system.text import csv_text, formulas


@dataclass(frozen=True)
class OfBundle:
    """What a bundle has beside its model."""

    use: str = option("", "With --bundle: what the model is for, for its card.", metavar="TEXT")
    license: str = option(
        "", "With --bundle: of the data and the model, one line, such as `cc-by-4.0`.", metavar="NAME"
    )
    onnx: bool = option(False, "With --bundle: also write the network as a graph of ONNX.")
    recalibrate: str | None = option(
        None, "With --bundle: recalibrate probabilities on validation rows: platt, isotonic.", metavar="KIND"
    )


def export(
    directory: Run,
    *,
    client: str | None = option(
        None, "Name of a client, whose own model is written; `all` for every client [default: the global model]."
    ),
    compact: bool = option(False, "A client of FedSAC: the really smaller network of what it holds."),
    output: Path | None = option(None, "Folder for the files [default: RUN/models].", "--output -o"),
    bundle: Path | None = option(
        None, "Write a bundle into a new folder: all that predicting takes, and a model card.", metavar="DIR"
    ),
    card: OfBundle,
    data: str | None = MOVED,
) -> None:
    """Write trained models as safetensors, the global one or what clients own; or one model as a bundle to predict with."""
    if bundle is not None:
        others = {"--compact": compact, "--output": output, "--client all": client == "all"}
        require_use(others, together="--bundle, which writes one whole model into its folder")
        _bundle(directory, bundle, client, data, **vars(card))
        return
    require_use({f"--{name}": value for name, value in vars(card).items()}, without="--bundle DIR")
    require_use({"--compact": compact and client is None}, without="--client NAME or --client all")
    from safetensors.torch import save

    from equipoise.runs import directory as runs

    fed = runs.trained(directory, data)
    about = {**_about(fed), **_inputs(directory)}
    if compact:  # each client's is another
        del about["network"]
    names = fed.names
    folder = output or directory / "models"
    for number in _numbers(client, names):
        path = folder / f"{'global' if number is None else runs.slug(names[number])}.safetensors"
        state = fed.network(client=number, compact=compact).state_dict()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save({name: tensor.contiguous().clone() for name, tensor in state.items()}, about))
        size = sum(t.numel() for t in state.values())
        say(f"{path}: {size:,} numbers")
    said = f"The metadata of each file describe it: {', '.join(about)}."
    if "schema" in about:
        said += " Of these, schema has how the columns of a table become the inputs, in this order."
    if "mean" in about:
        said += " Give the network (x - mean) / std of these numbers, in this order; where std is 0, x - mean."
    if "centre" in about:
        said += " A prediction is centre + scale * output."
    say(said)


def _bundle(directory: Path, folder: Path, client: str | None, data: str | None, **options: Any) -> None:
    """Write a bundle of the global model, or of a client's own."""
    from equipoise.records.threshold import FILE
    from equipoise.runs import directory as runs

    # of a federation between sites, whose server made it
    if client is None and (made := directory / "bundle").is_dir() and _trained_at_sites(directory):
        from equipoise.bundle.files import take

        given = {f"--{name}": value for name, value in {**options, "data": data}.items()}
        require_use(given, together="the bundle that the server has made: change README.md and card.html of the copy")
        take(real_path(made, directory), folder)
        announce(folder, "a bundle of the server's last model")
        return
    fed, history = runs.trained(directory, data), eq.History.from_run(directory)
    (number,) = _numbers(client, fed.names)
    options["config"] = history.meta.get("config") or {}
    about = options["config"].get("report") or {}
    options["use"] = options["use"] or about.get("purpose", "")
    options["contact"] = ", ".join(about[key] for key in ("author", "contact") if about.get(key))
    if history.threshold is not None and number is None:
        options["threshold"] = eq.Threshold(history.threshold)
        if (fitted := history.threshold["recalibration"]) is not None and not options["recalibrate"]:
            say(f"Probabilities are not recalibrated in this bundle. To do so: --recalibrate {fitted['kind']}.")
    elif (directory / FILE).exists():
        say(f"{directory / FILE} is of another model, and the threshold of this bundle is 0.5.")
    manifest = seals.open_json(read_regular(directory / "manifest.json").decode())
    fed.save_bundle(folder, client=number, data=manifest.get("data"), **options)
    announce(folder, "a bundle")


def announce(folder: Path, what: str) -> None:
    """Say where a bundle is, what to know of it first, and how to predict with it."""
    from equipoise.bundle.files import cautions

    for text in cautions(folder):
        note(text)
    say(f"{folder}: {what}, with its model card in README.md and card.html")
    say(f"Predict with it: equipoise predict {shlex.quote(str(folder))} DATA --output predictions.csv")


def _trained_at_sites(directory: Path) -> bool:
    """Whether a run is that of a server, whose configuration names no scenario of its own."""
    config = seals.open_toml(read_regular(directory / "config.toml").decode())
    return bool(config.get("scenario", "sites") == "sites")


def _about(fed: "eq.Federation") -> dict[str, str]:
    """The metadata of the file: the origin of the model, and the meaning of its outputs."""
    from equipoise.core.task import Regression
    from equipoise.data.transforms import Images

    about, task = {"method": own_code.short(str(fed.method))}, fed.model.task
    if isinstance(task, Regression):
        about |= {name: str(getattr(task, name)) for name in ("centre", "scale", "unit")}
    else:
        about["classes"] = json.dumps(list(fed.classes), ensure_ascii=False)
    if fed.positive is not None:
        about |= {"positive": fed.positive.name, "positive is": fed.positive.why}
    if isinstance(fed.transform, Images):
        shown = {"mean": fed.transform.mean, "std": fed.transform.std, "range": fed.transform.levels or (0, 255)}
        about["images"] = json.dumps(shown)
    return about


def _inputs(directory: Path) -> dict[str, str]:
    """The network, and how its inputs are made of the user's data: by the schema of a table, or by means and standard deviations."""
    from equipoise.runs import directory as runs

    config = runs.load(directory, checked=False)
    options = ", ".join(f"{name}={value!r}" for name, value in config.network_options.items())
    data = seals.open_json(read_regular(directory / "manifest.json").decode()).get("data") or {}
    numbers = data.get("standardised") or {name: data[name] for name in ("inputs", "schema") if name in data}
    return {
        "network": f"{own_code.short(config.network)}{f'({options})' * bool(options)}",
        **{name: json.dumps(value, ensure_ascii=False) for name, value in numbers.items()},
    }


def _numbers(client: str | None, names: Sequence[str]) -> Sequence[int | None]:
    """The clients whose models are asked for; None is the global model."""
    if client is None:
        return [None]
    if client == "all":
        return range(len(names))
    if client in names:
        return [names.index(client)]
    raise ValueError(
        f"--client {client}: the run has no such client. Give a name ({', '.join(names[:4])}{', ...' * (len(names) > 4)}), or all."
    )


@dataclass(frozen=True)
class Criterion:
    """How a threshold is chosen, as :func:`equipoise.federation.thresholds.choose_threshold` takes it; and an attribute."""

    sensitivity: float | None = option(
        None, "Recognise at least this share of the positive class, in (0, 1].", metavar="X"
    )
    specificity: float | None = option(None, "Recognise at least this share of the others, in (0, 1].", metavar="X")
    cost: str | None = option(
        None, "The least cost, if a missed case costs so much and a false alarm so much.", metavar="FN:FP"
    )
    youden: bool = option(False, "The largest sum of sensitivity and specificity (Youden).")
    by_group: bool = option(False, "A threshold for each group of people. It uses the group of a person at prediction.")
    attribute: str | None = option(None, "The attribute of `--by-group`, if the data have several.", metavar="NAME")
    recalibrate: str | None = option(
        None, "Also fit a function to better probabilities, on the same rows: platt, isotonic.", metavar="KIND"
    )


def threshold(directory: Run, *, criterion: Criterion, data: str | None = MOVED) -> Iterator[object]:
    """Choose the threshold of a binary classifier on validation rows; print what it does by group on test rows."""
    from equipoise.records.threshold import FILE
    from equipoise.report import thresholds as shown
    from equipoise.runs import directory as runs

    given = dict(vars(criterion))
    by_group = given.pop("attribute") or given.pop("by_group")
    chosen = eq.choose_threshold(runs.trained(directory, data), **{**given, "by_group": by_group})
    document, path = chosen.document, directory / FILE
    replaced = path.exists()
    chosen.save(directory)
    yield document
    for line in shown.sentences(document):
        say(line)
    for grid in (shown.rates(document), shown.probabilities(document)):
        titles, head = [*map(escape, grid.titles)], shown.HEAD.lower()
        rows = (
            (escape(name), *("\n".join(filter(None, (cell.mean, escape(cell.ends)))) for cell in cells))
            for name, cells in grid.rows
        )
        print_table((head, *titles), rows, right=titles, fold=(head,))
    say(" ".join(shown.explained(document)))
    say(f"threshold: {path}{', in place of the one that was there' * replaced}")


def predict(
    bundle: Path = option(..., "A folder that `equipoise export --bundle` wrote.", "BUNDLE"),
    data: Path = option(
        ...,
        "A table with the columns that the model was trained with; a folder of images; or an array, a .npy file.",
        "DATA",
    ),
    output: Path = option(..., "The table of predictions to write.", "--output -o", metavar="CSV"),
    identifier: str | None = option(
        None, "A column of the table that names its rows [default: their numbers].", "--id", metavar="COLUMN"
    ),
    set_: list[str] | None = option(
        None,
        "How the table is written, `sep`, `decimal` or `encoding` [default: as the one of the run].",
        "--set",
        metavar="NAME=VALUE",
    ),
    force: bool = option(False, "Replace the file if it exists."),
) -> None:
    """Predict with a bundle: a row for every row of a table, with its prediction and the probability of every class."""
    from equipoise.bundle import files, inputs, predictor

    require_free(output, force)
    model = predictor.load(bundle)
    (x, notes), names, table = model.inputs.read_inputs(data, reading_of(set_, WRITTEN))
    first = ("row" if table is not None or model.inputs.names else "sample") if identifier is None else identifier
    if identifier is not None:
        if table is None or identifier not in table.names:
            present = "no columns" if table is None else f"the columns {some(table.names)}"
            raise ValueError(f"--id {identifier}: {data} has {present}.")
        names = ["" if name is None else str(name) for name in table.words([identifier])[identifier]]
    column = model.content.groups
    words = None if column is None or table is None else inputs.group_cells(table, column.column, str(data))
    codes, unknown = model.codes(words, len(x))
    classes = model.classes_.tolist() if isinstance(model, predictor.Classifier) else []
    for text in filter(None, (*files.cautions(bundle), *notes, unknown, *formulas([first, *names, *classes]))):
        note(text)
    rows: list[Collection[object]] = [[first, "prediction", *(f"probability {name}" for name in classes)]]
    with progress_bar("rows", shown=len(x) > predictor.ROWS) as progress:
        task, done = progress.add_task("predicting", total=len(x)), 0
        for outputs in model.content.outputs(x):
            part = slice(done, done + len(outputs))
            made = model.decided(outputs, None if codes is None else codes[part])
            columns: list[Any] = [names[part], made.tolist()]
            if isinstance(model, predictor.Classifier):
                columns += [map(str, of_class) for of_class in model.probabilities(outputs).T]  # all digits that count
            rows += zip(*columns, strict=True)
            done += len(outputs)
            progress.update(task, completed=done)
    write_atomically(output, csv_text(rows))
    say(f"{output}: {len(x):,} predictions")
