"""The command ``equipoise init``: look at the user's data and write a commented configuration; and reading one."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.markup import escape

from equipoise.cli.console import out, print_table, require_free, say
from equipoise.cli.options import SETTINGS, TASK, help_of, option
from equipoise.core.settings import SCENARIO
from equipoise.data.tables.options import SHARE, Options, listed
from equipoise.system import errors, own_code, places, seals, trust
from equipoise.system.files import ANYWHERE, read_regular, write_atomically
from equipoise.system.ranges import meaning
from equipoise.system.suggestions import unknown

if TYPE_CHECKING:
    from equipoise.data.tables.cells import RawTable
    from equipoise.data.tables.columns import UserData
    from equipoise.records.meta import About
    from equipoise.scenarios.own import Parts


TABLE = "columns"  # of the schema, in a file
CHOSEN = ("methods", "tuned")  # in a file of `equipoise tune`: settings by method, and how they were chosen
DIVIDED = 8  # clients among whom data without clients are divided
MOST_CLIENTS = 20  # in a table
ROWS, SHOWN_INPUTS = 3, 8  # of a table, before and after; inputs of one column
SCHEMA = "kind number, category, date or left out; see docs/tables.md"
MANY = 100  # features in a sentence
OPTIONS = {f.name: f for f in fields(Options)}
MEANINGS = {  # in the order of the file
    "method": meaning(SETTINGS["method"]),
    "data": "your data; relative to the folder of this file",
    "task": meaning(OPTIONS["task"]),
    "scenario": "what the data are, with options in brackets: see `equipoise scenarios`",
    "network": 'mlp, cnn, resnet10 ..., with options in brackets: "cnn(width=32)"',
    **{name: meaning(f) for name, f in SETTINGS.items()},
}


ABOUT: About = {
    "title": "Sepsis within 24 hours",
    "purpose": "Which patients a nurse looks at again. It does not decide about treatment.",
    "author": "Name, department",
    "contact": "name@hospital.example",
}


@dataclass(frozen=True)
class Columns:
    """Options of the user's own data that have options of the command."""

    label: str | None = option(None, meaning(OPTIONS["label"]), metavar="COLUMN")
    client: str | None = option(None, meaning(OPTIONS["client"]), metavar="COLUMN")
    group: list[str] | None = option(None, f"{meaning(OPTIONS['group'])}, or sex race.", metavar="COLUMN...")
    more_groups: list[str] | None = option(None, "", "[GROUP]...", hidden=True)
    subject: str | None = option(None, meaning(OPTIONS["subject"]), metavar="COLUMN")
    task: str | None = TASK
    positive: str | None = option(None, help_of("positive"))


def init(
    data: str | None = option(
        None, "Your data, as of `equipoise run --data` [default: the scenario digits].", "--data -d", metavar="PATH"
    ),
    set_: list[str] | None = option(
        None, "An option of the data, for example `label=income`. Repeatable.", "--set", metavar="NAME=VALUE"
    ),
    *,
    named: Columns,
    dry_run: bool = option(False, "Show the first rows of a table as they are and as inputs; write nothing."),
    output: Path = option(Path("equipoise.toml"), "The file to write.", "--output -o"),
    force: bool = option(False, "Replace the file if it exists."),
) -> Iterator[object]:
    """Read your data, describe them, and write a commented file of all settings for `equipoise run --config`."""
    require_free(output, force or dry_run)
    from equipoise.data.tables.cells import RawTable

    options, task = _options(set_ or (), named, data), named.task
    content = None if data is None else _data(data, options)
    lines, regression, table = list[str](), False, None
    if content is not None:
        _complete(options, *content[:2])
        lines, regression = _facts(*content, options.get("positive")), content[0].regression
        table = content[0].inputs if isinstance(content[0].inputs, RawTable) else None
    if task is not None:
        options["task"] = own_code.moved(task, lambda path: str(_beside(path, output)))
    if dry_run:
        if content is None or table is None:
            raise ValueError("--dry-run shows the first rows of a table before and after: give one with --data.")
        _show(*content, lines)
        _show_rows(table, content[0], content[1])
        return
    beside = _beside(data, output)
    written = _text(beside, options, lines, regression) + ("" if table is None else _columns(table))
    write_atomically(output, written.replace("\x7f", r"\u007f"))  # which JSON may have, and TOML not
    names = [own_code.whole(str(text or ""), output.parent) for text in (beside, options.get("task"))]
    trust.enter(trust.settings_file(output, trust.named(names)))
    yield {"file": str(output), **({} if content is None else _described(*content))}
    if content is not None:
        _show(*content, lines)
    say(f"wrote {output}. Start it: equipoise run --config {output}")


def _options(pairs: Sequence[str], named: Columns, data: str | None) -> dict[str, Any]:
    """The options of the data, of ``--set`` and by their own options."""
    from equipoise.runs.configuration import option_value

    if (more := named.more_groups) and not named.group:
        raise ValueError(f"Got an unexpected argument: {more[0]}. Give your data with --data {more[0]}.")
    groups = [*(named.group or ()), *(more or ())]
    group = groups[0] if len(groups) == 1 else groups
    given = {"label": named.label, "client": named.client, "group": group, "subject": named.subject}
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    columns, typed = [*options], (("task", named.task), ("positive", named.positive))
    for pair in [*pairs, *(f"{name}={value}" for name, value in typed if value is not None)]:
        name, equals, value = pair.partition("=")
        if not equals or (name := name.strip()) not in OPTIONS:
            raise ValueError(f"--set {pair}: {unknown('option of your own data:', name.strip(), OPTIONS)}")
        if name in columns:
            raise ValueError(f"--set {pair}: {name} is given twice, also as --{name}. Leave one out.")
        options[name] = option_value("own", name, value)
    if options and data is None:
        raise ValueError(f"{next(iter(options))}: this is an option of your own data. Give their path with --data.")
    return options


def _data(data: str, options: Mapping[str, Any]) -> tuple[UserData, Parts, dict[str, list[int]]]:
    """The user's data, and their division with seed 0."""
    from equipoise.data.formats.reading import read_user_data
    from equipoise.scenarios.own import columns_of, divided, edges, require_used, rounding, test_sets

    download, between = options.get("download", False), edges(options.get("range"))
    columns = replace(columns_of(**options), choose=True)
    own = read_user_data(data, columns, download=download, between=between)
    require_used(own, Options(**options))
    division = {name: options[name] for name in SHARE if name in options}
    if own.client is None:
        division.setdefault("clients", min(DIVIDED, max(1, len(own) // 2)))
    parts = divided(own, 0, **division)
    own = replace(own, notes=(*own.notes, *rounding(own, parts)))
    return own, parts, test_sets(own, parts, options.get("tests"))[0]


def _complete(options: dict[str, Any], own: UserData, parts: Parts) -> None:
    """Add what the data decide where the user did not, and the class that counts as positive by its whole name."""
    from equipoise.data.pictures import Pictures
    from equipoise.data.tables.cells import RawTable
    from equipoise.scenarios.own import check_positive

    if isinstance(own.inputs, RawTable):
        options.setdefault("inputs", [*own.inputs.schema.names, *own.inputs.schema.left_out])
    if "positive" in options:
        options["positive"] = check_positive(own, options["positive"])
    if own.client is None:
        options.setdefault("clients", len(parts.train))
    if isinstance(own.inputs, Pictures) and own.inputs.survey.deep and not own.inputs.survey.stretched:
        options.setdefault("range", own.about["range"])  # stays when images are added, and on other machines


def _facts(own: UserData, parts: Parts, sets: Mapping[str, list[int]], positive: str | None) -> list[str]:
    """Sentences about the data."""
    from equipoise.data.tables.columns import counts
    from equipoise.metrics.groups import positive_class

    chosen = None if own.regression else positive_class(positive, own.classes)
    if own.regression:
        numbers = "numbers to predict: {least:g} to {largest:g}, mean {mean:g}, standard deviation {std:g}"
        described = numbers.format(**_target(own))
    else:
        sizes = listed(f"{name} {n:,}" for name, n in counts(own.label).items())
        described = f"{_many(len(own.classes), 'class')}: {sizes}"
    more = f" and {len(own.features) - MANY:,} more, which --json shows" * (len(own.features) > MANY)
    whose = _many(len(parts.train), "client") if own.client else f"no clients: divided among {len(parts.train)} of them"
    return [
        f"{own.source}: {own.layout}",
        f"{_many(len(own), 'sample')}, {whose}",
        described,
        *([chosen.sentence] if chosen else []),
        *([f"{_many(len(own.features), 'feature')}: {', '.join(own.features[:MANY])}{more}"] if own.features else []),
        *([f"groups: {listed(f'{name} {n:,}' for name, n in counts(own.group).items())}"] if own.group else []),
        *([f"subjects: {len({*own.subject}):,}, each with all rows in one part"] if own.subject else []),
        *([f"parts: {listed(f'{name} {n:,}' for name, n in Counter(own.split).items())}"] if own.split else []),
        f"test sets: {listed(f'{name} {len(rows):,}' for name, rows in sets.items())}",
        *own.notes,
        *parts.notes,
    ]


def _target(own: UserData) -> dict[str, float]:
    y = own.targets
    return {"least": y.min().item(), "largest": y.max().item(), "mean": y.mean().item(), "std": y.std().item()}


def _many(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}{'es' if word.endswith('s') else 's'}"


def _described(own: UserData, parts: Parts, sets: Mapping[str, list[int]]) -> dict[str, Any]:
    from equipoise.data.tables.columns import counts

    sizes = {n: {"train": len(rows), "test": len(parts.test.get(n, []))} for n, rows in parts.train.items()}
    target = {"target": _target(own)} if own.regression else {"classes": counts(own.label)}
    return {
        "source": own.source, "layout": own.layout, "samples": len(own), **target, "features": list(own.features),
        **{name: own.about[name] for name in ("range",) if name in own.about},
        "groups": None if own.group is None else counts(own.group), "clients": sizes,
        "validation": len(parts.validation), "tests": {name: len(rows) for name, rows in sets.items()},
        "notes": [*own.notes, *parts.notes],
    }  # fmt: skip


def _show(own: UserData, parts: Parts, sets: Mapping[str, list[int]], lines: list[str]) -> None:
    for line in lines:
        say(line)
    numbers, table = ("train", "test", "mean" if own.regression else "classes"), []
    for name, rows in list(parts.train.items())[:MOST_CLIENTS]:
        labels = f"{own.targets[rows].mean():g}" if own.regression else str(len({own.label[row] for row in rows}))
        table.append((escape(name), f"{len(rows):,}", f"{len(parts.test.get(name, [])):,}", labels))
    print_table(("client", *numbers), table, right=numbers)
    if (more := len(parts.train) - MOST_CLIENTS) > 0:
        out.print(f"and {more} more clients")


def _show_rows(raw: RawTable, own: UserData, parts: Parts) -> None:
    """The first rows of a table, a line for each column: its cells, and the inputs they become."""
    from equipoise.data.tables import coding, reading, schema
    from equipoise.scenarios.own import coder_of

    coder = coder_of(own, parts)
    x, first, place = coder(raw.columns), range(min(ROWS, len(own))), 0
    rows, samples = [], [own.names[k] for k in first]
    for feature in coder.schema.features:
        cells, written = raw.columns[feature.name], reading.day if feature.kind == schema.DATE else "{:g}".format
        shown = [
            "" if cells.missing[k] else cells.words[cells.values[k]] if cells.words else written(cells.values[k])
            for k in first
        ]
        names = coding.input_names(feature, coder.fitted[feature.name])
        after = ["\n".join(f"{value:.4g}" for value in x[k, place : place + len(names)][:SHOWN_INPUTS]) for k in first]
        more = [f"and {len(names) - SHOWN_INPUTS} more"] * (len(names) > SHOWN_INPUTS)
        inputs = escape("\n".join([*names[:SHOWN_INPUTS], *more]))
        rows.append((escape(feature.name), feature.kind, *map(escape, shown), inputs, *after))
        place += len(names)
    print_table(("column", "kind", *samples, "inputs", *samples), rows)


def _beside(data: str | None, output: Path) -> str | None:
    """The user's path, relative to the folder of the file ``output``."""
    if data is None or data.startswith((places.HUB, "~")) or Path(data).is_absolute():
        return data
    return Path(os.path.relpath(data, output.parent)).as_posix()


def _text(data: str | None, options: Mapping[str, Any], facts: list[str], regression: bool) -> str:
    """The file: facts about the data, then every setting, commented out if it is not given; of a ``regression`` those that it has."""
    from equipoise import scenarios

    own = data is not None
    protocol = scenarios.own.PROTOCOL if own else scenarios.digits.PROTOCOL
    examples: dict[str, Any] = {"data": "my/", "scenario": "own", "network": "cnn", "task": "regression"}
    examples |= {name: f.default for name, f in SETTINGS.items()} | vars(protocol)
    usual = {"network": "cnn for images, mlp for numbers" if own else "cnn", "task": "classification"}
    chosen: dict[str, Any] = {"method": "fedavg", "seed": 0, **({"data": data} if own else {"scenario": "digits"})}
    # settings of a run as well, which are said once
    chosen |= {name: value for name, value in options.items() if name in MEANINGS}
    lines = [
        "# Settings of a run of Equipoise. Start it: equipoise run --config THIS_FILE",
        "# A line that begins with # shows a default; options of the command line override this file.",
        *(["#", "# What was found:"] if facts else []),
        *(f"#   {_printable(fact)}" for fact in facts),
        "",
    ]
    for name, text in (MEANINGS | {name: meaning(f, numbers=regression) for name, f in SETTINGS.items()}).items():
        value = chosen.get(name, examples.get(name))
        if value is None:
            about = SETTINGS[name].metadata
            value = "mine.py:cost" if regression and name == "measures" else about["example"]
            usual[name] = "none" if about["usual"] == SCENARIO else about["usual"]
        default = f"; default: {usual[name]}" if name in usual and name not in chosen else ""
        lines += [_line(name, value, text + default, off=name not in chosen)] * bool(text)
    of_data = ", and options of the data" if own else ""
    lines += ["", f"[set]  # hyper-parameters of the method{of_data}", "# fedheal.tau = 0.4"]
    for name, column in OPTIONS.items() if own else ():
        text, example = meaning(column, numbers=regression), column.metadata["example"]
        if name in MEANINGS or name == TABLE or not text:  # which has a table of its own, or needs classes
            continue
        text += f"; default: {column.metadata['usual']}" * (example is not None and name not in options)
        example = column.default if example is None else example
        value = options.get(name, name if example is None else example)
        lines.append(_line(name, value, text, off=name not in options))
    lines += ["", "[report]  # what `equipoise report RUN --for committee` says of it; changes no result"]
    lines += [_line(name, text, "", off=True).removesuffix("  # ").rstrip() for name, text in ABOUT.items()]
    return "\n".join(lines) + "\n"


def _columns(table: RawTable) -> str:
    """The schema of a table, a line for each column, with what is in it."""
    from equipoise.data.tables.reading import described, reading_of
    from equipoise.data.tables.schema import CATEGORY, LEFT_OUT

    lines = ["", f"[columns]  # what columns are, and how they become inputs: {SCHEMA}"]
    for f in table.schema.features:
        least = {"least": f.least} if f.kind == CATEGORY and not f.categories else {}
        said = f"{reading_of(f, table)}; {described(f, table.columns[f.name])}"
        lines.append(_column(f.name, f.written() | least, said))
    lines += [_column(name, {"kind": LEFT_OUT}, why) for name, why in table.schema.left_out.items()]
    return "\n".join([*lines, ""])


def _column(name: str, options: Mapping[str, Any], said: str) -> str:
    values = ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in options.items())
    from equipoise.data.tables.reading import key_of

    return f"{key_of(name)} = {{ {values} }}".ljust(40) + f"  # {_printable(said)}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _line(name: str, value: Any, meaning: str, *, off: bool = False) -> str:
    """A line of TOML, which writes numbers, words and lists of these as JSON does; a comment if it is ``off``."""
    return f"{'# ' * off}{name} = {json.dumps(value, ensure_ascii=False)}".ljust(28) + f"  # {meaning}"


def read(path: Path) -> dict[str, Any]:
    """Read a configuration that ``equipoise init`` or a user wrote: a table as of :class:`equipoise.runs.configuration.Layer`, and :data:`CHOSEN`."""
    from equipoise.runs.configuration import called, whole

    table = _opened(path)
    settings = table.pop("set", {})
    _check(path, table, settings)
    if not about_in(path, table):
        table.pop("report", None)
    flat = dict[str, Any]()  # hyper-parameters as part.name = ..., or as a table; and options of the scenario
    for name, value in settings.items():
        flat |= {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    overrides, options = ({k: v for k, v in flat.items() if ("." in k) is dotted} for dotted in (True, False))
    if isinstance(table.get("measures"), list):
        table["measures"] = ", ".join(map(str, table["measures"]))
    table = places.replaced(table, (*places.CODE, ("data",)), partial(own_code.whole, folder=path.parent))
    trust.require_file(path, {**table, "set": settings}, *filter(None, [table.get("track")]))
    if "data" in table:
        table["data"] = whole(table["data"], path.parent)
    of_python = "methods" in table and not {"scenario", "data"} & table.keys()  # which names no data
    text = table.get("scenario") or ("own" if "data" in table else "digits")
    scenario, bracketed = called(f"{path}: scenario =", text, "digits(clients=8)")
    table |= {} if of_python else {"scenario": scenario}
    for name in options.keys() & bracketed.keys():
        raise ValueError(f"{path}: {name} is given twice, in scenario and in [set]. Leave one out.")
    options = {**bracketed, **options}
    if "task" in table and "task" in options:
        raise ValueError(f"{path}: task is given twice. Leave one out.")
    table["scenario_options"] = options | {name: table.pop(name) for name in (TABLE, "task") if name in table}
    if "network" in table:
        name, bracketed = called(f"{path}: network =", table["network"], "resnet10(width=64)")
        table |= {"network": name, "network_options": bracketed}
    return table | overrides


def _opened(path: Path) -> dict[str, Any]:
    """The tables of a file, without how settings were chosen if they count as the user's."""
    try:
        table = seals.open_toml(written := read_regular(path, ANYWHERE).decode())
    except OSError as error:
        from equipoise.records.directory import CHOSEN as CHOICE
        from equipoise.runs.choosing import FOLDER

        files = (path / CHOICE, path / FOLDER / CHOICE, path.parent / FOLDER / CHOICE)
        chosen = next((f"The settings that were chosen are in {file}" for file in files if file.exists()), "")
        advice = chosen or "Correct the path, or write a file with: equipoise init"
        raise ValueError(f"{path} cannot be read ({error.strerror}). {advice}.") from None
    except errors.DamagedError:
        raise ValueError(
            f"{path} was changed after it was written, so its settings are not those that were chosen. Put it back, or delete its first "
            "line, and the settings count as yours."
        ) from None
    except ValueError as error:
        advice = "Correct it, or write one with: equipoise init."
        raise ValueError(f"{path} is no TOML file: {str(error).rstrip('.')}. {advice}") from None
    return table if written.startswith("# sha256") else {k: v for k, v in table.items() if k != "tuned"}


def _check(path: Path, table: Mapping[str, Any], settings: object) -> None:
    """Refuse settings that there are not, and values of other types."""
    for name in CHOSEN:
        of_methods = table.get(name, {})
        if not isinstance(of_methods, dict) or not all(isinstance(v, dict) for v in of_methods.values()):
            raise ValueError(
                f"{path}: {name} must have a table for each method, as `equipoise tune` writes it; found {of_methods!r}."
            )
    for name in (name for name in table if name not in {*MEANINGS, TABLE, "report", *CHOSEN}):
        belongs = name in OPTIONS or "." in name
        hint = " Options of the data and hyper-parameters are in the table [set]." * belongs
        raise ValueError(f"{path}: {unknown('setting', name, (*MEANINGS, 'set', TABLE, 'report'))}{hint}")
    for name, kind in {"method": str, "data": str, "task": str, "scenario": str, "network": str, "seed": int}.items():
        if name in table and (not isinstance(table[name], kind) or isinstance(table[name], bool)):
            what = "a whole number" if kind is int else "text in quotes"
            raise ValueError(f"{path}: {name} must be {what}; found {table[name]!r}.")
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: set must be a table, [set]; found {settings!r}.")


def about_in(path: Path, table: Mapping[str, Any]) -> About:
    """The table [report] of a file that was read.

    Raises
    ------
    ValueError : it holds something else than texts, by names that there are.
    """
    about = table.get("report", {})
    if not isinstance(about, dict):
        raise ValueError(f"{path}: report must be a table, [report]; found {about!r}.")
    for name, text in about.items():
        if name not in ABOUT:
            raise ValueError(f"{path}: {unknown('field of [report]', name, ABOUT)}")
        if not isinstance(text, str):
            raise ValueError(f"{path}: [report] {name} must be text in quotes; found {text!r}.")
    return cast("About", about)
