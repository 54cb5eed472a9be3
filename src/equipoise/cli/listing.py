"""The commands ``equipoise methods`` and ``equipoise scenarios``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from equipoise.cli import completion
from equipoise.cli.catalogue import catalogue
from equipoise.cli.console import out, plain_table, print_json
from equipoise.cli.options import Json


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, in full.", autocompletion=completion.methods)] = None,
    json_: Json = False,
) -> None:
    """List the methods: what they do, their hyper-parameters, where they come from."""
    described = catalogue()["methods"]
    name = name if name is None else catalogue()["aliases"].get(name, name)
    if name is not None and name not in described:
        from equipoise.federation.method import MethodError, parse

        parse(name)  # says what is wrong, with a suggestion
        raise MethodError(f"{name!r} is a sum; ask for its parts one by one.")
    if json_:
        print_json(described if name is None else {name: described[name]})
    elif name is not None:
        _show_method(name, described[name])
    else:
        _show_methods(described)


def _show_methods(described: dict[str, dict[str, Any]]) -> None:
    table = plain_table()
    for column in ("method", "what it does", "hyper-parameters", "server sees", "from"):
        table.add_column(column, overflow="fold", no_wrap=column in ("method", "server sees"))
    for name, d in described.items():
        main = " ".join(f"{p['name']}={p['default']}" for p in d["hyper_parameters"] if p["main"])
        table.add_row(f"[bold]{name}[/]", d["summary"], main, d["sees"], d["citation"].split(":")[0])
    out.print(table)
    out.print(
        "\nSums combine them: [bold]fedproto+fedheal[/], [bold]moon+afl[/]. One in full, with its presets: [bold]equipoise methods fedheal[/]."
    )


def _show_method(name: str, d: dict[str, Any]) -> None:
    out.print(f"[bold]{name}[/]: {d['summary']}\n{d['citation']}\nparts: {', '.join(d['parts'])}\n", highlight=False)
    table = plain_table()
    for column in ("hyper-parameter", "default", "values"):
        table.add_column(column)
    for p in d["hyper_parameters"]:
        table.add_row(p["name"], str(p["default"]), p["values"])
    out.print(table)
    for preset, values in d["presets"].items():
        shown = ", ".join(f"{k}={v}" for k, v in values.items()) or "the defaults"
        out.print(f"{name}:{preset}  {shown}", highlight=False)
    out.print(f"the server must see: {catalogue()['visibility'][d['sees']]}", highlight=False)
    if d["needs"]:
        out.print(f"needs: {'; '.join(d['needs'])}", highlight=False)
    if d["preset_in_a_sum"]:
        out.print(f"As one part of a sum, {name} means {name}:{d['preset_in_a_sum']}.", highlight=False)
    for part in d["parts"]:
        documentation = catalogue()["rules"][part.split(" (")[0]]
        out.print("\n" + escape("\n".join(documentation)), highlight=False)


def scenarios(json_: Json = False) -> None:
    """List the scenarios and the networks."""
    listed = {kind: catalogue()[kind] for kind in ("scenarios", "networks")}
    if json_:
        print_json(listed)
        return
    for kind, entries in listed.items():
        table = plain_table()
        table.add_column(kind.removesuffix("s"))
        table.add_column("what it is", overflow="fold")
        for name, summary in entries.items():
            table.add_row(f"[bold]{name}[/]", summary)
        out.print(table)
        out.print()
