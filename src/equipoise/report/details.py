"""What the page shows beside the comparison: every index of spread, tests, traffic, limits, how to run it again."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from equipoise.metrics.communication import full_model, overhead, traffic
from equipoise.metrics.performance import last_rounds, spread
from equipoise.metrics.statistics import holm
from equipoise.report.table import (
    PARITY,
    TESTED,
    UNDEFINED,
    Cell,
    Comparison,
    Grid,
    _Column,
    _lay_out,
    _number,
    _over_seeds,
    by_label,
    statistics,
    tables,
)
from equipoise.report.terms import TERMS
from equipoise.system.environment import kind

if TYPE_CHECKING:
    from equipoise.federation.history import History

LEVELS: Final = {  # key of `equipoise.metrics.spread`: title and digits
    "mean": ("mean", 2),
    "worst10": ("worst 10\u00a0%", 2),
    "min": ("min", 2),
    "max": ("max", 2),
    "best10": ("best 10\u00a0%", 2),
}
DISTANCES: Final = {"gap": ("gap", 2), "std": ("STD₀", 2), "variance": ("variance", 1)}
EVENNESS: Final = {
    "cov": ("CoV", 4),
    "jain": ("Jain", 4),
    "cosine": ("cosine", 4),
    "angle": ("angle", 2),
    "entropy": ("entropy", 4),
    "kl": ("KL", 4),
    "gini": ("Gini", 4),
}
MANY: Final = 100  # clients: more are in the figure only
_READ: Final = ("true", "false", "none", "inf")  # as something else than a word
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_DEFAULTS: Final = {  # what need not be told on the command line
    "optimizer": "sgd",
    "engine": "auto",
    "precision": "full",
    "quorum": 0.5,
    "threads": 1,
    "device": "cpu",
}
_PROTOCOL: Final = (
    "rounds",
    "epochs",
    "steps",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
    "participation",
    "clip",
    "chunk",
)


class Block(NamedTuple):
    """A table of the report: name of its file, heading, content, and what is said about it."""

    name: str
    heading: str
    grid: Grid
    caption: str
    head: str = "Method"  # what the names of the rows are


class Test(NamedTuple):
    """A paired difference to the first method as text: its mean, the 95 % interval, p-value, and that by Holm."""

    difference: str
    interval: str
    p: str
    holm: str = ""

    @property
    def text(self) -> str:
        """All of it in one line."""
        corrected = f", Holm {self.holm}" if self.holm else ""
        return f"{self.difference} {self.interval}, p {self.p}{corrected}"


class Tests(NamedTuple):
    """Paired tests of one table against the first method: titles of its columns, and a test per cell."""

    name: str
    heading: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Test | None, ...]], ...]


def over_groups(histories: Sequence[History], last: int = 5) -> list[Block]:
    """Every index of spread over the groups, of the global model; empty unless there are several.

    Parameters
    ----------
    histories
        Runs of one scenario.
    last
        How many of the last evaluated rounds to average.
    """
    if max((len(history.groups) for history in histories), default=0) < 2:
        return []
    found = [
        {"method": label, "spread": _spreads([last_rounds(run.group_table()[1], last) for run in seeds.values()])}
        for label, seeds in by_label(histories).items()
    ]
    caption = (
        "Accuracy of the global model, every group counting the same whatever its size. In percent; the variance in "
        "percent², the angle in degrees, entropy and KL in nats."
    )
    columns = {"gap": DISTANCES["gap"], "variance": DISTANCES["variance"], **EVENNESS}
    return [Block("groups", "Evenness over the groups", _spread_grid(found, columns), caption)]


def over_clients(histories: Sequence[History], last: int = 5) -> list[Block]:
    """Every index of spread over the clients, each with the model it predicts with; empty if none was evaluated.

    Parameters
    ----------
    histories
        Runs of one scenario.
    last
        How many of the last evaluated rounds to average.
    """
    found = [
        {"method": label, "spread": _spreads([last_rounds(run.client_table()[1], last) for run in seeds.values()])}
        for label, seeds in by_label(histories).items()
        if any(run.client_table()[1].size for run in seeds.values())
    ]
    if not found:
        return []
    whose = (
        "Every client is tested with the model it predicts with, on the test set of its own group; clients of one group "
        "share it."
    )
    return [
        Block(
            "clients-level",
            "Level and distance over the clients",
            _spread_grid(found, LEVELS | DISTANCES),
            f"{whose} In percent; the variance in percent².",
        ),
        Block(
            "clients-evenness",
            "Evenness over the clients",
            _spread_grid(found, EVENNESS),
            "Relative to the mean, so that a method is not even because it is bad everywhere. The angle in degrees, entropy "
            "and KL in nats.",
        ),
    ]


def every_client(histories: Sequence[History], last: int = 5) -> Block | None:
    """The accuracy of every client with every method, or `None` for very many clients, and when none was evaluated.

    Parameters
    ----------
    histories
        Runs of one scenario.
    last
        How many of the last evaluated rounds to average.
    """
    runs = {
        label: [run for run in seeds.values() if run.client_table()[1].size]
        for label, seeds in by_label(histories).items()
    }
    runs = {label: seeds for label, seeds in runs.items() if seeds}
    sizes = {run.client_table()[1].shape[1] for seeds in runs.values() for run in seeds}
    if len(sizes) != 1 or max(sizes) > MANY:
        return None
    first = next(iter(runs.values()))[0]
    columns = []
    for seeds in runs.values():
        of_seeds = 100 * np.array([last_rounds(run.client_table()[1], last) for run in seeds])  # [seeds, N]
        columns.append([_over_seeds(values) for values in of_seeds.T.tolist()])
    rows = []
    for m in range(sizes.pop()):
        group = first.client_groups[m]
        name = first.client_names[m] + (f" ({group})" if group and group not in first.client_names[m] else "")
        rows.append((name, tuple(_cell(column[m]) for column in columns)))
    caption = "Accuracy in percent of the model that each client predicts with, on the test set of its group."
    return Block("every-client", "Every client", Grid(tuple(runs), tuple(rows)), caption, head="Client")


def tests(comparison: Comparison) -> list[Tests]:
    """Paired tests against the first method, a table per measure, with p-values corrected for the number of methods.

    Parameters
    ----------
    comparison
        What `equipoise.report.table.comparison` returned.
    """
    found = [
        _tests(f"tests-{one['measure'].replace('_', '-')}", one["title"], one["methods"], statistics(one))
        for one in tables(comparison)
    ]
    if together := comparison["collaboration"]:
        titles = {key: key for key in TESTED}
        found.append(_tests("tests-collaboration", "Collaborative fairness", together["methods"], titles))
    if between := comparison["group_fairness"]:
        found.append(_tests("tests-group-fairness", "Group fairness", between["methods"], PARITY))
    return [one for one in found if one.rows]


def communication(histories: Sequence[History]) -> Block | None:
    """Bytes that travel: per client and round, per round, in the whole run, and against the first method.

    Parameters
    ----------
    histories
        Runs of one scenario; those that did not record bytes are left out.
    """
    runs = {
        label: [run for run in seeds.values() if any(r.get("bytes", {}).get("down") for r in run.records)]
        for label, seeds in by_label(histories).items()
    }
    runs = {label: seeds for label, seeds in runs.items() if seeds}
    if not runs:
        return None
    first = next(iter(runs))
    totals = {label: float(np.mean([_bytes(run)[1] for run in seeds])) for label, seeds in runs.items()}
    rows = []
    for label, seeds in runs.items():
        down, up = np.mean([traffic(run.records) for run in seeds], axis=0)
        per_round = float(np.mean([_bytes(run)[0] for run in seeds]))
        times = f"{overhead(totals[label], totals[first]):.3f}" if totals[first] else UNDEFINED
        cells = [Cell(size(x)) for x in (down, up, per_round, totals[label])]
        rows.append((label, (*cells, Cell(times))))
    full = full_model(next(iter(runs.values()))[0].records)
    whole = f" The whole model takes {size(full.value)}." if full.defined else ""
    caption = (
        f"Mean over clients, rounds and seeds; kB are 1000 bytes.{whole} Counted from the tensors that a client gets and "
        "sends: its part of the model without what is private, and the method's messages and reports. What a network adds "
        "(headers, encryption) or saves (compression) is not in it, nor are the clients' measurements for this report."
    )
    titles = ("to a client, per round", "from a client, per round", "all, per round", "whole run", f"times {first}")
    return Block("communication", "Communication", Grid(titles, tuple(rows)), caption)


def limits(comparison: Comparison, histories: Sequence[History]) -> list[str]:
    """What the numbers cannot show, a sentence each: only what applies to these runs.

    Parameters
    ----------
    comparison
        What `equipoise.report.table.comparison` returned for the histories.
    histories
        Runs of one scenario.
    """
    return [*_limits(comparison, histories)]


def environment(histories: Sequence[History]) -> list[tuple[str, str]]:
    """What the runs were made with: packages, machine, source, data; differing values side by side.

    Parameters
    ----------
    histories
        Runs of one scenario.
    """
    found: dict[str, dict[str, None]] = {}

    def note(name: str, text: object) -> None:
        if text:
            found.setdefault(name, {})[str(text)] = None

    for run in histories:
        for package, version in (run.meta.get("versions") or {}).items():
            note(str(package), version)
        for machine in run.meta.get("machines") or ():
            note("system", f"{machine['system']} {machine['architecture']}")
            note("computed with", f"{kind(machine)} · {machine['threads']} threads")
        note("git commit", str(run.meta.get("git") or "")[:12])
        if digest := _digest(run):
            note(f"data, seed {run.seed}: SHA-256", digest)
    return [(name, ", ".join(texts)) for name, texts in found.items()]


def commands(histories: Sequence[History]) -> list[str]:
    """What to type to make these runs again: one `compare` where that does it, else a `run` each; none if not known.

    Parameters
    ----------
    histories
        Runs of one scenario, made from the command line.
    """
    configs = [run.meta.get("config") or {} for run in histories]
    if not all({"method", "scenario", "rounds"} <= config.keys() for config in configs):
        return []
    methods = list(dict.fromkeys(config["method"] for config in configs))
    seeds = sorted({config.get("seed", 0) for config in configs})
    same = {_options(config) for config in configs}
    if len(methods) * len(seeds) == len(configs) > 1 and seeds == list(range(len(seeds))) and len(same) == 1:
        several = f" --seeds {len(seeds)}" if len(seeds) > 1 else ""
        return [f"equipoise compare {shlex.join(methods)}{same.pop()}{several}"]
    return [
        f"equipoise run --method {shlex.quote(config['method'])}{_options(config)} --seed {config.get('seed', 0)}"
        for config in configs
    ]


def size(n: float) -> str:
    """A number of bytes with three digits and its unit, `93.5 MB`.

    Parameters
    ----------
    n
        Bytes, at least 0.
    """
    power = min(len(_UNITS) - 1, max(0, math.floor(math.log10(n) / 3 + 1e-12))) if n >= 1 else 0
    scaled = n / 1000**power
    digits = 0 if power == 0 else max(0, 2 - math.floor(math.log10(scaled)))
    return f"{scaled:.{digits}f}\u00a0{_UNITS[power]}"


def _spreads(seeds: Sequence[np.typing.NDArray[np.float64]]) -> dict[str, dict[str, float | None]]:
    """Every index over one vector of accuracies per seed."""
    found = [spread(accuracies) for accuracies in seeds if accuracies.size]
    return {
        name: _over_seeds([one[name].value if one[name].defined else None for one in found])
        for name in (found[0] if found else spread([]))
    }


def _spread_grid(methods: list[dict[str, Any]], titles: dict[str, tuple[str, int]]) -> Grid:
    return _lay_out(
        methods,
        [
            _Column(title, ("spread", key), TERMS[title].better == "higher", digits)
            for key, (title, digits) in titles.items()
        ],
    )


def _cell(found: dict[str, float | None]) -> Cell:
    return Cell(_number(found["mean"]), "" if found["std"] is None else _number(found["std"]))


def _tests(name: str, heading: str, methods: list[dict[str, Any]], titles: dict[str, str]) -> Tests:
    others = [method for method in methods if method["versus"]]
    columns: list[list[Test | None]] = []
    for key in titles:
        found = [method["versus"][key] for method in others]
        corrected = holm([math.nan if one["p"] is None else one["p"] for one in found])
        family = int(np.isfinite(corrected).sum())
        columns.append(
            [_test(one, q if family > 1 else math.nan) for one, q in zip(found, corrected.tolist(), strict=True)]
        )
    rows = [(m["method"], cells) for m, cells in zip(others, zip(*columns, strict=True), strict=False)]
    kept = tuple((label, cells) for label, cells in rows if any(cells))
    return Tests(name, heading, tuple(titles.values()), kept)


def _test(found: dict[str, float | None], corrected: float) -> Test | None:
    difference, half, p = found["difference"], found["ci95"], found["p"]
    if difference is None or half is None or p is None:
        return None
    low, high = (f"{end:+.2f}".replace("-", "−") for end in (difference - half, difference + half))
    return Test(
        f"{difference:+.2f}".replace("-", "−"),
        f"[{low}, {high}]",
        _p(p),
        _p(corrected) if math.isfinite(corrected) else "",
    )


def _p(p: float) -> str:
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1.000"


def _bytes(run: History) -> tuple[float, float]:
    """Mean bytes of a round, all clients and both ways, and those of the whole run."""
    rounds = [sum(r["bytes"]["down"]) + sum(r["bytes"]["up"]) for r in run.records if r.get("bytes")]
    return sum(rounds) / len(rounds), sum(rounds)


def _limits(comparison: Comparison, histories: Sequence[History]) -> Iterator[str]:
    n, methods = len(comparison["seeds"]), comparison["methods"]
    if n == 1:
        yield "One seed: no difference here can be told from chance, and no test is possible."
    elif n < 5:
        wide = {2: "9.0", 3: "2.5", 4: "1.6"}[n]
        yield (
            f"{n} seeds: the 95 % interval reaches {wide} standard deviations to each side, so that only large differences "
            "show. A p-value above 0.05 does not say that methods are equal."
        )
    if len(methods) > 1:
        yield (
            "Seeds change the draw of the data, the first model and the order of samples. Nothing here is about other data, "
            "networks or hyper-parameters; a method tuned longer than its rival looks better than it is."
        )
    if all(history.meta.get("config") and not history.meta["config"].get("data") for history in histories):
        yield (
            "The data are the small sets that come with Equipoise, made to compare methods in minutes: neither the accuracies "
            "nor the order of methods carry over to another task by themselves."
        )
    rising = [label for label, seeds in by_label(histories).items() if _rises(list(seeds.values()))]
    if rising:
        yield (
            f"Still rising in the end, by more than 1 point from the five rounds before to the last five: "
            f"{', '.join(rising)}. More rounds may change the order."
        )
    known = [method for method in methods if method["std"]["mean"] is not None and method["avg"]["mean"] is not None]
    if len(known) > 1:
        even = min(known, key=lambda method: method["std"]["mean"])
        if even["avg"]["mean"] < max(method["avg"]["mean"] for method in known) - 1 and even["avg"]["mean"] == min(
            method["avg"]["mean"] for method in known
        ):
            yield (
                f"{even['method']} has the lowest STD and the lowest average: a model that fails everywhere is even, too."
            )
    for seed in comparison["seeds"]:
        digests = {digest for run in histories if run.seed == seed and (digest := _digest(run))}
        if len(digests) > 1:
            yield f"With seed {seed} not all runs had the same data: their SHA-256 differ. Compare them with care."
    if any(
        ", " in text for name, text in environment(histories) if not name.startswith(("data", "system", "computed"))
    ):
        yield "Not all runs were made with the same source and versions, see Environment."


def _rises(runs: Sequence[History]) -> bool:
    tables_ = [table for run in runs if len(table := run.group_table()[1]) >= 10]
    if len(tables_) < len(runs):
        return False
    return float(np.mean([100 * (t[-5:].mean() - t[-10:-5].mean()) for t in tables_])) > 1


def _digest(run: History) -> str:
    return str((run.meta.get("data") or {}).get("sha256") or "")


def _options(config: dict[str, Any]) -> str:
    """All options but the method and the seed, each with a blank before it."""
    words = ["--scenario", _called(config["scenario"], config.get("scenario_options") or {})]
    words += ["--data", str(config["data"])] if config.get("data") else []
    if config.get("network"):
        words += ["--network", _called(config["network"], config.get("network_options") or {})]
    for name in (*_PROTOCOL, *_DEFAULTS):
        value = config.get(name)
        replaced = name == "epochs" and config.get("steps") is not None
        if value is not None and value != _DEFAULTS.get(name) and not replaced:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return f" {shlex.join(words)}"


def _called(name: str, options: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_value(value)}' for key, value in options.items())})" if options else name


def _value(value: Any) -> str:
    """A value as the command line reads it back."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w-]*", value) and value.lower() not in _READ
    return value if plain else repr(value)
