"""Methods, scenarios and networks in words, as JSON-able dictionaries, for the lists of the command line and for the documentation.

Run it after a change of one of them: it writes :func:`catalogue` to src/equipoise/cli/catalogue.json, so that ``equipoise methods`` need
not import PyTorch. With ``--check`` nothing is written: it fails if the file is stale. The pages in docs/ need no such copy: they are
filled in when the site is built (tools/pages.py).
"""

import inspect
import json
import re
import sys
from dataclasses import fields
from typing import Any

from equations import plain_equation

from equipoise.cli.completion import FILE
from equipoise.core.rule import HOOKS, Rule, Sees
from equipoise.data.sets.catalog import SETS
from equipoise.federation.method import parse
from equipoise.methods import ALIASES, METHODS
from equipoise.networks import NETWORKS
from equipoise.scenarios import SCENARIOS
from equipoise.system.ranges import Range, describe

REQUIREMENTS = {  # what Rule.needs names
    "classes": "targets that are classes",
    "contribution": "what each client reaches alone, on the server's validation data (measured before the first round)",
    "contribution_on_test": "what each client reaches alone, on the test data (measured before the first round)",
    "neurons": "a network whose hidden units can be removed one by one",
    "sensitive": "samples with sensitive attributes (own tables: group=COLUMN; scenarios adult, heart)",
    "validation": "validation data of the server's own (scenarios digits-pow, digits-cla, digits-dir)",
}
VISIBILITY: dict[Sees, str] = {  # what Rule.sees names
    "nothing": "nothing",
    "sum": "sums over the clients, with weights known before the round",
    "scalars+sum": "a few numbers of each client, then sums over the clients",
    "matrix": "what each client sends",
}
STATE_AND_MESSAGES = ("client_state", "server_state", "message")  # hooks that say nothing of what a rule does


def catalogue() -> dict[str, Any]:
    """Everything that the lists of the command line show.

    Returns
    -------
    ``methods`` by name, see :func:`describe_method`; ``aliases`` of methods; ``rules``, the documentation of each rule by its
    class, in lines; ``visibility``, what each value of ``sees`` means; ``scenarios``, ``networks`` and ``data_sets``, a line for each name.
    """
    return {
        "methods": {name: describe_method(name) for name in METHODS},
        "aliases": dict(ALIASES),
        "rules": {rule.__name__: plain(rule).splitlines() for entry in METHODS.values() for rule in entry.rules},
        "visibility": dict(VISIBILITY),
        "scenarios": {name: entry.summary for name, entry in SCENARIOS.items()},
        "networks": {name: entry.summary for name, entry in NETWORKS.items()},
        "data_sets": {name: entry.title for name, entry in SETS.items()},
    }


def as_json() -> str:
    """The catalogue as the text of ``catalogue.json``."""
    return json.dumps(catalogue(), indent=1, ensure_ascii=False) + "\n"


def describe_method(name: str) -> dict[str, Any]:
    """One name of the catalogue of methods, as ``equipoise methods NAME --json`` prints it.

    Returns
    -------
    ``printed`` (the name in tables of papers), ``summary``, ``citation``, ``remarks``, ``parts`` (its rules, with the hooks that each
    defines), ``hyper_parameters``, ``presets``,
    ``needs`` (what the federation must have, in words) and ``sees`` (what the server must see).
    """
    entry, method = METHODS[name], parse(name)
    return {
        "printed": entry.name,
        "summary": entry.summary,
        "citation": entry.citation,
        "remarks": entry.remarks,
        "parts": [f"{rule.__name__} ({', '.join(hooks(rule))})" for rule in entry.rules],
        "hyper_parameters": hyper_parameters(name),
        "presets": {"paper": {}, **{preset: dict(values) for preset, values in entry.presets.items()}},
        "needs": [REQUIREMENTS[need] for need in sorted(method.needs)],
        "sees": method.sees,
    }


def hyper_parameters(name: str) -> list[dict[str, Any]]:
    """The hyper-parameters of a method: name, default, values in words, where it is searched, its rules, and whether it is a number with a range."""
    entry = METHODS[name]
    parameters: dict[str, dict[str, Any]] = {}
    for rule in entry.rules:
        for f in fields(rule):
            shown = parameters.setdefault(f.name, {"name": f.name, "default": entry.defaults[f.name], "part": ""})
            search = f.metadata.get("search")
            shown |= {"search": "" if search is None else str(search)}
            shown |= {"values": describe(f), "main": isinstance(f.metadata.get("allowed"), Range)}
            shown["part"] += (" and " if shown["part"] else "") + rule.__name__  # both rules of FedISM+ have a radius
    return list(parameters.values())


def hooks(rule: type[Rule]) -> list[str]:
    """The hooks that a rule has, in order of time, without those that only declare state and messages."""
    own = (hook for hook in HOOKS if getattr(rule, hook) is not getattr(Rule, hook))
    return [hook for hook in own if hook not in STATE_AND_MESSAGES]


def plain(rule: type[Rule]) -> str:
    """The docstring of a rule without indentation and markup, with equations as text."""
    text = re.sub(
        r"^( *)\.\. math:: ?(.*(?:\n+ +\S.*)*)",
        lambda m: "".join(f"\n    {line.strip()}" for line in plain_equation(m[2]).splitlines() if line.strip())[1:],
        inspect.cleandoc(rule.__doc__ or ""),
        flags=re.M,
    )
    return re.sub(
        r":(math|func|meth|class):`([^`]*)`",
        lambda m: plain_equation(m[2]) if m[1] == "math" else m[2],
        text.replace("``", ""),
    )


if __name__ == "__main__":
    fresh = FILE.read_text(encoding="utf-8") == as_json()
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if fresh else f"{FILE.name} is stale: run python tools/describe.py")
    FILE.write_text(as_json(), encoding="utf-8")
    print("nothing has changed" if fresh else f"wrote {FILE.name}")
