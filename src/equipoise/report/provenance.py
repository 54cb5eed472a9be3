"""The origin of runs: machines, versions, data, settings, and the commands that repeat them."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Final

from equipoise.core.settings import RunSettings, Settings
from equipoise.metrics.groups import POSITIVE_CLASS
from equipoise.metrics.measures import ACCURACY
from equipoise.records.history import History
from equipoise.records.meta import Content
from equipoise.system.environment import kind, versions as installed_versions
from equipoise.system.grouping import grouped
from equipoise.system.text import key_of

SOURCE, COMMIT = "source of Equipoise", "git commit"
_READ: Final = ("true", "false", "none", "inf")  # words that the command line reads as other values


def environment(histories: Sequence[History]) -> list[tuple[str, str]]:
    """What the runs were made with: packages, machine, source, data; differing values side by side."""
    return _side_by_side(note for run in histories for note in _made_with(run))


def _made_with(run: History) -> Iterator[tuple[str, object]]:
    """Packages, machines, source and data of a run, as far as recorded."""
    yield from (run.meta.get("versions") or {}).items()
    for machine in run.meta.get("machines") or ():
        yield "system", f"{machine['system']} {machine['architecture']}"
        yield SOURCE, machine.get("source")
        yield "computed with", f"{kind(machine)} · {machine['threads']} threads"
    yield COMMIT, str(run.meta.get("git") or "")[:12]
    yield f"data, seed {run.seed}: SHA-256", data_digest(run)


def _side_by_side(notes: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """Texts by name, those that differ side by side, each once."""
    return [(name, ", ".join(dict.fromkeys(texts))) for name, texts in _stated(notes).items()]


def _stated(notes: Iterable[tuple[str, object]]) -> dict[str, list[str]]:
    """Texts by name, without empty ones."""
    return grouped((name, str(text)) for name, text in notes if text)


def mixed(histories: Sequence[History]) -> bool:
    """Whether runs were made by different sources, or with different versions of packages."""
    stated = _stated(note for run in histories for note in _made_with(run))
    packages = {name for run in histories for name in run.meta.get("versions") or {}}
    return any(len({*stated.get(name, ())}) > 1 for name in (SOURCE, COMMIT, *packages))


def commands(histories: Sequence[History]) -> list[str]:
    """What to type to make these runs again: one `compare` where that does it, else a `run` each; none if not known."""
    configs = [_asked(run) for run in histories]
    if not all({"method", "scenario", "rounds"} <= config.keys() for config in configs):
        return []
    if any(run.at_sites for run in histories):
        real = all(run.at_sites for run in histories)
        return [_at_sites(config, f"again-{k}") for k, config in enumerate(configs, start=1)] if real else []
    methods = list(dict.fromkeys(config["method"] for config in configs))
    seeds = sorted({config.get("seed", 0) for config in configs})
    same = {_options(config) for config in configs}
    renamed = {
        config["method"]: " --label " + shlex.quote(f"{config['method']}={run.label}")
        for run, config in zip(histories, configs, strict=True)
        if run.label != config.get("label", run.label)
    }
    if len(methods) * len(seeds) == len(configs) > 1 and seeds == list(range(len(seeds))) and len(same) == 1:
        several = f" --seeds {len(seeds)}" if len(seeds) > 1 else ""
        return [f"equipoise compare {shlex.join(methods)}{same.pop()}{several}{''.join(renamed.values())}"]
    return [
        f"equipoise run --method {shlex.quote(config['method'])}{_options(config)} --seed {config.get('seed', 0)}"
        + renamed.get(config["method"], "")
        for config in configs
    ]


def _asked(run: History) -> Content:
    """The configuration of a run, with the positive class and the least group that its report has."""
    config = dict(run.meta.get("config") or {})
    shown = {key: run.meta[key] for key in ("positive", "least_group") if run.meta.get(key)}
    return {**config, **shown} if config else {}


def conditions(histories: Sequence[History]) -> str:
    """Under what conditions the commands give the same numbers."""
    if any(run.at_sites for run in histories):
        return (
            "In the folder of the app's project, where federation is the name of the SuperLink in Flower's configuration, and the sites have the "
            "same data; the results go to another folder on the server. Which sites are away, and when, also decides the result."
        )
    return "With the versions above. On the same kind of machine the numbers are the same, bit for bit."


def _at_sites(config: Content, directory: str) -> str:
    """What to type in the project of an app to run it again with the same settings."""
    named = {"method": config.get("label") or config["method"], "run_dir": f"runs/{directory}"}
    settings = {f.name for f in (*fields(RunSettings), *fields(Settings))} | {"secure", "task"}
    values = {key: value for key, value in config.items() if key in settings and key != "engine"} | named
    text = " ".join(f"{key.replace('_', '-')}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    return f"equipoise flower run . federation -c {shlex.quote(text)}"


def data_digest(run: History) -> str:
    """SHA-256 of the samples of a run; empty where it is not known."""
    return str((run.meta.get("data") or {}).get("sha256") or "")


def _options(config: Content) -> str:
    """All options but the method and the seed, each with a blank before it."""
    words = ["--scenario", _called(config["scenario"], config.get("scenario_options") or {})]
    words += ["--data", str(config["data"])] if config.get("data") else []
    if config.get("network"):
        words += ["--network", _called(config["network"], config.get("network_options") or {})]
    elsewhere = {"method", "seed"} | ({"epochs"} if config.get("steps") is not None else set())
    for f in (*fields(RunSettings), *fields(Settings)):
        value = config.get(f.name)
        if f.name not in elsewhere and value is not None and (f.metadata["usual"] or value != f.default):
            words += [f"--{f.name.replace('_', '-')}", str(value)]
    return f" {shlex.join(words)}"


def _called(name: str, options: Content) -> str:
    return f"{name}({', '.join(f'{key}={_value(value)}' for key, value in options.items())})" if options else name


def _value(value: object) -> str:
    """A value as the command line reads it back."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w-]*", value) and value.lower() not in _READ
    return str(value) if plain else repr(value)


def quarantined(histories: Sequence[History]) -> Iterator[tuple[str, int, str, str, str]]:
    """Label, seed, client, reason and rounds of everything the guard kept out."""
    for run in histories:
        entries = ((entry, record["round"]) for record in run.records for entry in record.get("quarantined", ()))
        rounds = grouped(
            ((str(e.get("name") or e.get("client", "?")), str(e.get("reason", "no reason was recorded"))), t)
            for e, t in entries
        )
        for (name, reason), when in rounds.items():
            yield run.label, run.seed, name, reason, _spans(when)


def _spans(rounds: Sequence[int]) -> str:
    """`[3, 4, 5, 9]` as `3–5, 9`."""
    spans = [[t for _, t in run] for _, run in groupby(enumerate(rounds), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)


def _away(run: History) -> list[str]:
    """A line about the rounds in which not all real sites took part."""
    n = len(run.client_names)
    short = [len(record.get("ids", ())) for record in run.records if len(record.get("ids", ())) < n]
    fewest = f"In {len(short)} of {len(run)} rounds fewer than all {n} sites took part, {min(short, default=0)} at the fewest."
    return [fewest] if short and run.at_sites and run.meta.get("header") else []


def headers(histories: Sequence[History]) -> list[tuple[str, list[str]]]:
    """The header lines of the runs, those of several runs once: which runs, and the lines."""

    def lines_of(run: History) -> tuple[str, ...]:
        about = "" if run.positive is None else run.positive.sentence  # which the report may have chosen
        written = run.meta.get("header") or ()
        return (*(about if about and key_of(line) == POSITIVE_CLASS else line for line in written), *_away(run))

    runs = grouped((lines, run.label) for run in histories if (lines := lines_of(run)))
    everyone = len(runs) == 1
    return [("" if everyone else ", ".join(dict.fromkeys(labels)), [*lines]) for lines, labels in runs.items()]


def settings(histories: Mapping[str, Sequence[History]]) -> tuple[list[tuple[str, str]], list[tuple[str, list[str]]]]:
    """Settings that all runs share, and those that differ: name, and one text per method, such as `0.05 (command line)`."""
    methods = [[dict(_flat(_in_words_of_task(run))) for run in runs] for runs in histories.values()]
    origins = [[(run.meta.get("config") or {}).get("origins") or {} for run in runs] for runs in histories.values()]
    common, differing = [], []
    for name in dict.fromkeys(name for configs in methods for config in configs for name in config):
        texts = [", ".join(dict.fromkeys(config.get(name, "–") for config in configs)) for configs in methods]
        chosen = [{origin.get(name.partition(".")[0], "") for origin in of_runs} for of_runs in origins]
        if len(set(texts)) == 1:
            common.append((name, _chosen_by(texts[0], name, set().union(*chosen))))
        else:
            differing.append((name, [_chosen_by(text, name, by) for text, by in zip(texts, chosen, strict=True)]))
    return common, differing


def _chosen_by(text: str, name: str, origins: Iterable[str]) -> str:
    """The text of a setting with its origins, other than the scenario; of a method and a seed these are no news."""
    by = ", ".join(sorted(filter(None, origins)))
    return f"{text} ({by})" if by and name not in ("method", "seed") else text


def _in_words_of_task(run: History) -> Content:
    """The configuration of a run, where the main measure of any task is called accuracy, with the name of its own."""
    config = {key: x for key, x in (run.meta.get("config") or {}).items() if key not in ("report", "origins")}
    return {**config, "stop_on": run.main.name} if config.get("stop_on") == ACCURACY.name else config


def _flat(config: Content, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)


def versions(histories: Sequence[History]) -> list[tuple[str, str]]:
    """Versions that the runs recorded; if none did, those installed now."""
    if recorded := [note for run in histories for note in (run.meta.get("versions") or {}).items()]:
        return _side_by_side(recorded)
    return [(name, now) for name, now in installed_versions().items() if name in ("equipoise", "torch", "numpy")]
