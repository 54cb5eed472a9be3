"""The commands ``equipoise methods`` and ``equipoise scenarios``."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.markup import escape

import equipoise as eq
from equipoise.cli import completion
from equipoise.cli.console import out, print_json, print_table
from equipoise.cli.options import Json, option
from equipoise.system import errors, own_code, ranges
from equipoise.system.suggestions import require_use, some


def methods(
    name: str | None = option(None, "One method, in full.", "[NAME]", autocompletion=completion.methods),
    check: bool = option(False, "Test it against the contract of all methods; your own is `mine.py:Prox`."),
    json_: Json = False,
) -> Iterator[object]:
    """List the methods: what they do, their hyper-parameters, where they come from."""
    if check:
        _check(name, json_)
        return
    described = completion.catalogue()["methods"]
    name = name if name is None else completion.catalogue()["aliases"].get(name, name)
    if name is not None and name not in described:
        yield from _show_own(name)
    elif name is not None:
        yield {name: described[name]}
        _show_method(name, described[name])
    else:
        yield described
        _show_methods(described)


def _check(name: str | None, json_: bool) -> None:
    from equipoise.testing import RuleError, check_rule

    if name is None:
        raise ValueError("--check needs a method, such as `equipoise methods mine.py:Prox --check`.")
    failure = None
    try:
        conformance = check_rule(name, progress=not json_)
    except RuleError as error:
        failure, conformance = error, error.conformance
    if json_:
        print_json({name: conformance.document})
    else:
        out.print(escape(str(conformance)), highlight=False, soft_wrap=True)
    if failure is not None:
        raise errors.RunError(f"{name} fails {some(list(conformance.broken))}.") from failure


def _show_own(name: str) -> Iterator[object]:
    method = eq.parse(name)  # says what is wrong, with a suggestion
    if "+" in name:
        raise eq.MethodError(f"{name!r} is a sum; ask for its parts one by one.")
    if not own_code.is_reference(name):
        raise eq.MethodError(f"{name!r} has values or a preset; ask for {own_code.split(name)[0] or method.parts[0]}.")
    rule = method.rules[0]
    parameters = []
    for f in fields(rule):
        about = {"name": f.name, "default": f.default, "values": ranges.describe(f)}
        parameters.append(about | {"search": str(f.metadata.get("search") or "")})
    yield {name: {"hyper_parameters": parameters, "sees": method.sees}}
    out.print(escape(f"{name}\n{inspect.getdoc(rule) or ''}\n"), highlight=False)
    _show_parameters(parameters, method.sees)
    out.print(f"To test it: [bold]equipoise methods {escape(name)} --check[/]", highlight=False)


def _show_parameters(parameters: Sequence[dict[str, Any]], sees: str, presets: Sequence[str] = ()) -> None:
    rows = ((p["name"], str(p["default"]), p["values"], p["search"]) for p in parameters)
    print_table(("hyper-parameter", "default", "values", "searched by tune"), rows)
    for preset in presets:
        out.print(preset, highlight=False)
    out.print(f"the server must see: {completion.catalogue()['visibility'][sees]}", highlight=False)


def _show_methods(described: dict[str, dict[str, Any]]) -> None:
    columns = ("method", "what it does", "hyper-parameters", "server sees", "from")
    rows = []
    for name, d in described.items():
        main = " ".join(f"{p['name']}={p['default']}" for p in d["hyper_parameters"] if p["main"])
        rows.append((f"[bold]{name}[/]", d["summary"], main, d["sees"], d["citation"].split(":")[0]))
    print_table(columns, rows, fold=columns, whole=("method", "server sees"))
    out.print(
        "\nSums combine them: [bold]fedproto+fedheal[/], [bold]moon+afl[/]. One in full, with its presets: [bold]equipoise methods fedheal[/]."
    )


def _show_method(name: str, d: dict[str, Any]) -> None:
    out.print(f"[bold]{name}[/]: {d['summary']}\n{d['citation']}\nparts: {', '.join(d['parts'])}\n", highlight=False)
    shown = {preset: ", ".join(f"{k}={v}" for k, v in values.items()) for preset, values in d["presets"].items()}
    presets = [f"{name}:{preset}  {values or 'the defaults'}" for preset, values in shown.items()]
    _show_parameters(d["hyper_parameters"], d["sees"], presets)
    if d["needs"]:
        out.print(f"needs: {'; '.join(d['needs'])}", highlight=False)
    for part in d["parts"]:
        rule = part.split(" (")[0]
        lines = [line for line in completion.catalogue()["rules"][rule] if set(line) != {"-"}]  # without underlines
        text = "\n".join("Hyper-parameters:" if line == "Parameters" else line for line in lines)
        out.print(f"\n[bold]{rule}[/]\n{escape(text)}", highlight=False)


def scenarios(
    name: str | None = option(
        None, "One, as for --scenario: the data of each client.", "[NAME]", autocompletion=completion.scenarios
    ),
    figure: Path | None = option(None, "Draw the data of each client, into a .png, .pdf or .svg file.", metavar="FILE"),
    examples: bool = option(False, "Draw a few images of each group instead."),
    data: str | None = option(None, "Your files, if it reads any.", "--data -d", metavar="PATH"),
    seed: int | None = option(None, "Decides the division of the data [default: 0].", min=0),
) -> Iterator[object]:
    """List the scenarios and the networks; for one scenario, the data of each client."""
    if name is not None or data is not None:
        yield from _show_scenario(name or "own", figure, examples, data, seed or 0)
        return
    of_one = {"--figure": figure, "--examples": examples, "--seed": seed is not None}
    require_use(of_one, without="a scenario, such as `equipoise scenarios digits --figure who.png`")
    listed = {kind: completion.catalogue()[kind] for kind in ("scenarios", "networks")}
    yield listed
    for kind, entries in listed.items():
        rows = ((f"[bold]{name}[/]", summary) for name, summary in entries.items())
        print_table((kind.removesuffix("s"), "what it is"), rows, fold=("what it is",))
        out.print()


def _show_scenario(text: str, figure: Path | None, examples: bool, data: str | None, seed: int) -> Iterator[object]:
    from equipoise import scenarios
    from equipoise.data import holdings
    from equipoise.report import drawing, holdings as report
    from equipoise.runs.configuration import called, whole

    require_use({"--examples": figure is None and examples}, without="--figure FILE.png")
    if figure is not None and figure.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--figure must name a file that ends in .png, .pdf or .svg; found {figure}.")
    name, options = called("scenarios", text, "digits(clients=8)")
    made = scenarios.load(name, seed, data and whole(data), **options)
    held = holdings.holdings(made.client_names, made.client_groups, made.clients, made.tests, made.n_classes)
    held |= {"classes": made.manifest.get("classes")}
    predicted, attributes = _predicted(made), {attribute: list(values) for attribute, values in made.attributes.items()}
    if figure is not None:
        held |= {"examples": holdings.examples(made.client_groups, made.clients)} if examples else {}
        if examples and not held["examples"]:
            raise ValueError(f"--examples: {name} has no images [channels, height, width].")
        drawn = report.example_images(held) if examples else report.who_has_what(held)
        drawing.save({figure.stem: drawn}, figure.parent, (figure.suffix[1:],))
    yield held | {"predicted": predicted, **({"attributes": attributes} if attributes else {})}
    rows = [
        (escape(holder["name"]), escape(holder.get("group", "test set")), str(holder["size"]), *counts)
        for holder in (*held["clients"], *held["tests"])
        for counts in [[" ".join(map(str, holder["counts"]))] if holder["counts"] else []]
    ]
    print_table(("client", "group", "samples", *["of each class"] * bool(made.n_classes)), rows, right=("samples",))
    out.print(f"\n{name}: {report.sentence(held)}", highlight=False)
    said = [
        *[made.summary] * (data is None),
        f"Predicted: {predicted}.",
        f"Groups between which fairness is measured: the test sets {some([*made.tests], 20)}.",
    ]
    said += [f"Sensitive attribute {attribute}: {some(values, 20)}." for attribute, values in attributes.items()]
    said += [made.remark] * bool(made.remark)
    out.print(escape("\n".join(said)), highlight=False)


def _predicted(made: "eq.Scenario") -> str:
    """What the labels of a scenario are, with the range of numbers or the names of classes."""
    import torch

    from equipoise import scenarios
    from equipoise.core.task import Regression, task_of
    from equipoise.data.memory_mapped import labels
    from equipoise.data.sets import catalog

    what = f"{made.predicts}, " if made.predicts else ""
    if isinstance(task := task_of(made.task), Regression):
        y = torch.cat([labels(data) for data in (*made.clients, *made.tests.values())])
        return f"{what}a number from {y.min():g} to {y.max():g}{f' {task.unit}' if task.unit else ''}"
    reads = scenarios.SCENARIOS[made.name].reads if not made.classes else ()
    names = made.classes or (catalog.data_set(reads[0]).classes if reads else tuple(map(str, range(made.n_classes))))
    return f"{what}one of {len(names)} classes: {some(list(names), 20)}"
