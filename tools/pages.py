"""What the pages say that the code knows: a hook of MkDocs that fills in the parts of docs/*.md between markers when the site is built.

A page holds ``<!-- NAME -->`` where a key of ``GENERATED`` shall stand, and ``<!-- data/NAME.csv -->`` where that table shall.
"""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import describe
import typer
from docstrings import Docstrings, parts
from mkdocs.structure.files import File

from equipoise.cli import main as cli
from equipoise.core.rule import SEES, Rule
from equipoise.core.settings import RunSettings, Settings
from equipoise.methods import METHODS
from equipoise.metrics import definitions
from equipoise.metrics.measures import ACCURACY
from equipoise.networks import NETWORKS
from equipoise.records.record import Record
from equipoise.runs.experiment import experiment_names, read_experiment
from equipoise.system.ranges import meaning as said, usual

COMMANDS: dict[str, Any] = {
    name: command for name, command in vars(typer.main.get_command(cli.app))["commands"].items() if not command.hidden
}
RULES: dict[str, type[Rule]] = {rule.__name__: rule for entry in METHODS.values() for rule in entry.rules}
DOCS = Path(__file__).parents[1] / "docs"
STORED = re.compile(r"<!-- (data/[\w-]+\.csv) -->")
LABEL = re.compile(r"^((?:[A-Z][a-z]+)(?: [a-z]+)?): ", flags=re.M)


def row(*cells: object) -> str:
    """One row of a Markdown table; a bar inside a cell is escaped, but for those in code."""
    safe = ["".join(re.sub(r"`[^`]*`|\|", lambda m: m[0] if len(m[0]) > 1 else r"\|", str(cell))) for cell in cells]
    return "| " + " | ".join(safe) + " |"


def table(*titles: str) -> list[str]:
    """The first two lines of a Markdown table."""
    return [row(*titles), "|" + "---|" * len(titles)]


def code(text: object) -> str:
    """Text as Markdown code, safe in a table."""
    return f"`{text}`"


def plain(text: str) -> str:
    """Double backticks to Markdown's single ones, on one line."""
    return " ".join(text.replace("``", "`").split())


def facts(rule: type[Rule]) -> dict[str, str]:
    """The lines of a rule's docstring that begin with a label, such as ``Client state``, ``Reports`` or ``Differs``."""
    *_, after = parts(rule.__doc__ or "")
    text = re.sub(r"(Server state: )", r"\n\1", after)  # may share the line of the client's
    _, *found = LABEL.split(text)
    return {label: value.strip() for label, value in zip(found[::2], found[1::2], strict=True)}


def meanings(rule: type[Rule]) -> dict[str, str]:
    """What the docstring of a rule says of each hyper-parameter."""
    _, sections, _ = parts(rule.__doc__ or "")
    return {name: text for section in sections if section.title == "Parameters" for name, text in section.items.items()}


# the catalogue of methods
def home(rule: type[Rule]) -> str:
    """The first name of the catalogue that is this rule alone: where it is described."""
    return next(name for name, entry in METHODS.items() if entry.rules == (rule,))


def method(name: str) -> str:
    """The section of one method."""
    entry, shown = METHODS[name], describe.describe_method(name)
    text = [f"## {name}", f"*{shown['summary'][0].upper()}{shown['summary'][1:]}.* {shown['citation']}."]
    described = [rule for rule in entry.rules if home(rule) == name]
    others = " and ".join(f"[{home(rule)}](#{home(rule)})" for rule in entry.rules if rule not in described)
    text += [parts(rule.__doc__ or "")[0] for rule in described]
    if others:
        changed = ", ".join(code(f"{key}={value}") for key, value in entry.values.items())
        what = "The sum of " if len(entry.rules) > 1 else "A form of "
        text.append(f"{what}{others}{f', with {changed}' if changed else ''}.")
    text.append(entry.remarks)
    if shown["hyper_parameters"]:
        rows = [
            row(code(p["name"]), code(p["default"]), p["values"], p["search"] or "–", meaning(entry.rules, p["name"]))
            for p in shown["hyper_parameters"]
        ]
        text.append("\n".join([*table("parameter", "default", "values", "searched", "meaning"), *rows]))
    presets = [
        f"{code(f'{name}:{preset}')} ({', '.join(code(f'{k}={v}') for k, v in values.items())})"
        for preset, values in entry.presets.items()
    ]
    if presets:
        text.append(f"**Presets:** {', '.join(presets)}.")
    if shown["needs"]:
        text.append(f"**Needs:** {'; '.join(shown['needs'])}.")
    text.append(f"**The server must see** {seen(name)}.")
    for rule in described:
        text += [f"**{label}:** {value}" for label, value in facts(rule).items() if label != "Server sees"]
    return "\n\n".join(filter(None, text))


def meaning(rules: tuple[type[Rule], ...], name: str) -> str:
    """What the rules of a method say of a hyper-parameter; ``rho`` of FedISM+ is one of both."""
    said = [meanings(rule)[name] for rule in rules if name in meanings(rule)]
    return said[0] if said else ""


def seen(name: str) -> str:
    """What the server must see of single clients, with the details of the rules that ask for the most."""
    entry, sees = METHODS[name], describe.describe_method(name)["sees"]
    details = "; ".join(facts(rule)["Server sees"].rstrip(".") for rule in entry.rules if "Server sees" in facts(rule))
    return f"`{sees}`" + (f": {plain(details).removeprefix('sums ')}" if details else "")


def methods() -> str:
    """The page of the methods, without its introduction."""
    return "\n\n".join(map(method, METHODS))


def method_table() -> str:
    """A line for each method."""
    rows = [
        row(code(name), entry.summary, entry.citation, ", ".join(rule.__name__ for rule in entry.rules))
        for name, entry in METHODS.items()
    ]
    return "\n".join([*table("name", "what it does", "paper", "parts"), *rows])


def what_leaves() -> str:
    """What a client sends and keeps, and what the server must see, for every method."""

    def joined(name: str, label: str, otherwise: str) -> str:
        said = [plain(found[label]).rstrip(".") for rule in METHODS[name].rules if label in (found := facts(rule))]
        return "; ".join(said) or otherwise

    rows = [
        row(
            code(name),
            joined(name, "Model sent", "whole"),
            joined(name, "Reports", "none"),
            joined(name, "Client state", "nothing"),
            seen(name),
        )
        for name in METHODS
    ]
    titles = ("method", "model it sends", "reports beside it", "stays at the site", "the server must see")
    return "\n".join([*table(*titles), *rows])


def by_sight() -> str:
    """The methods by what the server must see of single clients, from least to most."""
    kinds = {
        "nothing": "nothing",
        "sum": "sums over the clients",
        "scalars+sum": "a few numbers of each client, then sums",
    }
    seen_of = {name: describe.describe_method(name)["sees"] for name in METHODS}
    rows = [
        row(
            kinds.get(kind, "what each client sends"), ", ".join(code(n) for n, sees in seen_of.items() if sees == kind)
        )
        for kind in SEES
    ]
    return "\n".join([*table("the server must see", "methods"), *rows])


# scenarios and networks
def scenarios() -> str:
    """A line for each scenario."""
    rows = [row(f"[{name}](#{name})", said) for name, said in describe.catalogue()["scenarios"].items()]
    return "\n".join([*table("scenario", "what it is"), *rows])


def networks() -> str:
    """A line for each network, with its options."""
    rows = [row(code(name), entry.summary) for name, entry in NETWORKS.items()]
    return "\n".join([*table("network", "what it is"), *rows])


def settings() -> str:
    """The settings of training: name, default and meaning."""
    rows = [row(code(f.name), code(repr(f.default)), said(f)) for f in fields(Settings)]
    return "\n".join([*table("setting", "default", "meaning"), *rows])


def options() -> str:
    """The settings as options of the command line: name, meaning, and what holds without it."""
    short = {"method": ", `-m`", "rounds": ", `-r`"}
    rows = [
        row(code(f"--{f.name.replace('_', '-')}") + short.get(f.name, ""), said(f), usual(f))
        for f in (*fields(RunSettings), *fields(Settings))
    ]
    return "\n".join([*table("option", "meaning", "default"), *rows])


# commands
def commands() -> str:
    """A line for each command."""
    rows = [row(code(name), summary_of(command)) for name, command in COMMANDS.items()]
    return "\n".join([*table("command", "what it does"), *rows])


def summary_of(command: Any) -> str:
    """The first line of a command's help."""
    return plain(str(command.help).splitlines()[0])


def options_of(name: str) -> str:
    """The arguments and options of a command, or of the commands of a group, except those of the table of settings and of ``run``."""
    rows = [*parameter_rows(COMMANDS[name], SHARED.get(name, frozenset()))]
    for part, command in getattr(COMMANDS[name], "commands", {}).items():
        required = "".join(f" {argument_name(p)}" for p in command.params if p.param_type_name == "argument")
        rows += [row(code(f"{name} {part}{required}"), summary_of(command), ""), *parameter_rows(command)]
    return "\n".join([*table("option", "meaning", "default"), *rows])


def argument_name(argument: Any) -> str:
    """An argument as the line of usage writes it."""
    return argument.metavar or argument.name.upper()


def parameter_rows(command: Any, without: frozenset[str] = frozenset()) -> Iterator[str]:
    """A row for each argument and option of a command; its help has the default in brackets, or it is a plain value."""
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        if not parameter.help or {"--json", *without} & {*names}:
            continue
        meaning, _, default = parameter.help.partition(" [default: ")
        if not default and not (parameter.default is None or parameter.default is False or parameter.default == ""):
            default = "yes" if parameter.default is True else str(parameter.default)
        shown = argument_name(parameter)
        if parameter.param_type_name == "option":
            names[0] += f" {parameter.metavar}" * bool(parameter.metavar)
            shown = ", ".join(map(code, names))
        yield row(shown, re.sub(r"(?<!\.)\.$", "", meaning), default.rstrip(".").removesuffix("]"))


SETTINGS = {f"--{f.name.replace('_', '-')}" for f in (*fields(RunSettings), *fields(Settings))}
OF_RUN = SETTINGS | {option for parameter in COMMANDS["run"].params for option in parameter.opts}
SHARED = {"run": frozenset(SETTINGS), "compare": frozenset(OF_RUN), "tune": frozenset(OF_RUN - {"--seed"})}


def record() -> str:
    """The keys of a record, which its type describes."""
    _, (section,), _ = parts(Record.__doc__ or "")
    rows = [row(", ".join(map(code, names.split(", "))), plain(said)) for names, said in section.items.items()]
    return "\n".join([*table("key", "meaning"), *rows])


def experiments() -> str:
    """A line for each experiment of a paper."""
    rows = []
    for name in experiment_names():
        experiment = read_experiment(name)
        small = experiment.runs(embedded=True) or "–" if experiment.reads else "not needed"
        where = "claims" if name.startswith("claims/") else experiment.citation.rsplit(", ", 1)[1]
        rows.append(row(code(name), where, experiment.title, experiment.runs(), small, len(experiment.ours)))
    titles = ("experiment", "of the paper", "what it shows", "runs", "with `--embedded`", "choices of ours")
    return "\n".join([*table(*titles), *rows])


def stored(path: Path) -> str:
    """A table of results that a CSV file holds."""
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    return "\n".join([*table(*head), *(row(*cells) for cells in rows)])


def statistics(name: str) -> str:
    """A list of `equipoise.metrics.definitions`: title, key, formula, better direction and source of each statistic."""
    rows = [
        row(entry.title, code(entry.key), entry.formula or "–", entry.better or "–", entry.source)
        for entry in (statistic.of(ACCURACY) for statistic in getattr(definitions, name) if statistic.column)
    ]
    return "\n".join([*table("column", "key", "formula", "better", "source"), *rows])


GENERATED = {
    "experiments": experiments,
    "record": record,
    "settings": settings,
    "options": options,
    "commands": commands,
    **{f"options of {name}": partial(options_of, name) for name in COMMANDS},
    "method table": method_table,
    "methods": methods,
    "what leaves a site": what_leaves,
    "by what the server sees": by_sight,
    "scenarios": scenarios,
    "networks": networks,
    "statistics over groups": partial(statistics, "GROUPS"),
    "indices over clients": partial(statistics, "INDICES"),
    "numbers of collaboration": partial(statistics, "COLLABORATION"),
    "gaps between groups": partial(statistics, "PARITY"),
    "gaps of predicted numbers": partial(statistics, "ERRORS"),
}


# the hook
def on_config(config: Any) -> Any:
    """Let every page, and every docstring on one, be written as docstrings are."""
    config.markdown_extensions.append(Docstrings())
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in what is generated, and lead from notebooks to their pages."""
    markdown = re.sub(r"\]\((notebooks/\w+)\.ipynb\)", r"](\1.md)", markdown)
    for name, generate in GENERATED.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", generate())
    return STORED.sub(lambda found: stored(DOCS / found[1]), markdown)


def on_files(files: Any, config: Any) -> Any:
    """Add a page for every notebook, with the outputs that it holds."""
    for path in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook(path)))
    return files


def notebook(path: Path) -> str:
    """A notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if "image/png" in data:
                alt = html.escape(source.splitlines()[-1])
                parts.append(f'<img alt="{alt}" src="data:image/png;base64,{"".join(data["image/png"].split())}">')
            elif "text/html" in data:
                parts.append(f"<div>{' '.join(data['text/html'].split(chr(10)))}</div>")
            else:
                text = "".join(output.get("text", data.get("text/plain", ""))).strip()
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join([*parts, f"The notebook itself: [{path.name}]({path.name})."])


def on_post_build(config: Any) -> None:
    """Delete the page that a web server shows for a missing one: opened from disk it finds neither styles nor links."""
    (Path(config.site_dir) / "404.html").unlink()
