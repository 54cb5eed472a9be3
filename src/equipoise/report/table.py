"""Several runs as one table: for the terminal, for LaTeX, for Markdown, and as plain JSON."""

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from equipoise.history import History
from equipoise.metrics.classification import AREAS, MEASURES
from equipoise.metrics.pooling import Moments, pooled
from equipoise.metrics.statistics import paired, summary_over_seeds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

Comparison = dict[str, Any]

STATISTICS: Final = {"avg": "AVG", "std": "STD", "worst": "worst", "gap": "gap", "client_std": "client STD"}
_LOWER: Final = ("std", "gap", "client_std")  # is better
SPREAD: Final = {  # measure of the clients: title, larger is better, digits
    "mean": ("mean", True, 2),
    "worst10": ("worst 10 %", True, 2),
    "best10": ("best 10 %", True, 2),
    "gap": ("gap", False, 2),
    "variance": ("variance", False, 1),
    "jain": ("Jain", True, 3),
    "gini": ("Gini", False, 3),
}
UNDEFINED: Final = "–"
_PERCENT: Final = "\u00a0%"  # not to be torn from its number


def by_label(histories: Sequence[History]) -> dict[str, dict[int, History]]:
    """Runs by label and seed, labels in the order of their first appearance, seeds in increasing order.

    Parameters
    ----------
    histories
        Runs of one scenario.

    Raises
    ------
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
    """
    if not histories:
        raise ValueError("there is nothing to compare: expected at least one history, found none.")
    scenarios = sorted({history.scenario for history in histories})
    if len(scenarios) > 1:
        raise ValueError(
            f"only runs of one scenario can be compared: found {', '.join(name or '(no name)' for name in scenarios)}. "
            "Compare them scenario by scenario."
        )
    runs: dict[str, dict[int, History]] = {}
    for history in histories:
        seeds = runs.setdefault(history.label, {})
        if history.seed in seeds:
            raise ValueError(
                f"{history.label} with seed {history.seed} is given twice. "
                'Leave one out, or tell them apart with meta["label"].'
            )
        seeds[history.seed] = history
    return {label: dict(sorted(seeds.items())) for label, seeds in runs.items()}


def comparison(histories: Sequence[History], last: int = 5) -> Comparison:
    """Compare methods over seeds; the content of every table, in percent and plain JSON types.

    Parameters
    ----------
    histories
        Runs of one scenario, any number of seeds per method; the first method is the one compared with.
    last
        How many of the last evaluated rounds to average, at least 1.

    Returns
    -------
    `scenario`; `rounds`, the longest run; `seeds`, all of them; `measure` and `title`, what was measured, here the
    accuracy; `averaged`, the value of `last`; `notes`, sentences about what makes the runs hard to compare; `methods`, a
    list of

    - `method`, the label, and `seeds`;
    - `avg`, `std`, `worst`, `gap`, `client_std`: over seeds, `{"mean", "std" (ddof 1), "ci95" (half-width)}`; within one
      seed they are those of `History.summary`, of another measure than the accuracy the means of those of every round;
    - `groups`: `{group: {"mean", "std", "ci95"}}`; `clients`: the same for every measure of
      `equipoise.metrics.spread`, empty when no client was evaluated;
    - `versus`: `{"method", "seeds", "avg", "std", "worst", "gap", "client_std"}` with `{"difference", "ci95", "p"}`, this
      method minus the first, paired over the `seeds` common seeds; null for the first method;
    - `pooled`: the same numbers as FedISM+ makes them, `{"groups", "avg", ..., "n"}` with `{"mean", "std" (ddof 0)}` over
      the last rounds of all seeds, see `equipoise.metrics.pooled`;

    and `measures`: all of this again for every measure that was recorded, `{name: ...}`.

    Numbers that are not defined are null.

    Raises
    ------
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
    """
    runs = by_label(histories)
    measures = [name for name in MEASURES if any(name in history.measures for history in histories)]
    found = {name: _measured(runs, last, name) for name in dict.fromkeys(("accuracy", *measures))}
    of_accuracy = found["accuracy"]
    of_accuracy["notes"] = [*_notes(runs), *of_accuracy["notes"]]
    return {**of_accuracy, "measures": {name: found[name] for name in measures}}


def tables(comparison: Comparison) -> list[Comparison]:
    """What has a table of its own: the accuracy, then every other measure that was recorded.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    return [comparison, *(found for name, found in comparison.get("measures", {}).items() if name != "accuracy")]


def _measured(runs: dict[str, dict[int, History]], last: int, measure: str) -> Comparison:
    histories = [run for seeds in runs.values() for run in seeds.values()]
    summaries = {label: {k: _summary(run, last, measure) for k, run in seeds.items()} for label, seeds in runs.items()}
    groups = list(dict.fromkeys(group for history in histories for group in history.groups))
    first = next(iter(runs))
    methods = []
    for label, seeds in summaries.items():
        found = list(seeds.values())
        spreads = dict.fromkeys(name for summary in found for name in summary["clients"])
        methods.append(
            {
                "method": label,
                "seeds": list(seeds),
                **{key: _over_seeds([summary[key] for summary in found]) for key in STATISTICS},
                "groups": {group: _over_seeds([s["groups"].get(group) for s in found]) for group in groups},
                "clients": {name: _over_seeds([s["clients"].get(name) for s in found]) for name in spreads},
                "versus": None if label == first else _versus(first, seeds, summaries[first]),
                "pooled": _pooled(list(runs[label].values()), groups, last, measure),
            }
        )
    return {
        "scenario": histories[0].scenario,
        "measure": measure,
        "title": MEASURES[measure],
        "rounds": max(len(history) for history in histories),
        "averaged": min(last, max(len(run.group_table(measure)[0]) for run in histories) or last),
        "seeds": sorted({history.seed for history in histories}),
        "notes": list(_missing(histories)) if measure in AREAS else [],
        "methods": methods,
    }


def _summary(run: History, last: int, measure: str) -> dict[str, Any]:
    """Summary of a run; for another measure than the accuracy made in every round first, as the tables show it."""
    summary = run.summary(last, measure)
    if measure == "accuracy":
        return summary
    of_rounds = _pooled([run], run.groups, last, measure)
    return summary | {key: of_rounds[key]["mean"] for key in STATISTICS}


def _pooled(runs: Sequence[History], groups: Sequence[str], last: int, measure: str) -> dict[str, Any]:
    """The numbers of `equipoise.metrics.pooled` in percent, by the names they have elsewhere."""
    same = len({run.group_counts for run in runs}) == 1
    of_group = dict(zip(runs[0].groups, runs[0].group_counts or (), strict=False)) if same else {}
    blocks = []
    for run in runs:
        _, values = run.group_table(measure)
        column = dict(zip(run.groups, values.T, strict=True))
        blocks.append(
            np.stack([column.get(g, np.full(len(values), math.nan)) for g in groups], 1) if groups else values
        )
    found = pooled(blocks, last, [of_group.get(g, 0) for g in groups] if of_group else None)

    def percent(moments: Moments) -> dict[str, float | None]:
        return {"mean": _json(100 * moments.mean), "std": _json(100 * moments.std) if found.n > 1 else None}

    moments = (found.average, found.std, found.worst, found.gap, found.client_std)
    return {
        "groups": {group: percent(m) for group, m in zip(groups, found.groups, strict=True)},
        **{key: percent(m) for key, m in zip(STATISTICS, moments, strict=True)},
        "n": found.n,
    }


def _missing(histories: Sequence[History]) -> Iterator[str]:
    """What an area leaves out."""
    found: dict[str, set[int]] = {}
    for run in histories:
        for record in run.records:
            for group, result in record.get("groups", {}).items():
                if result.get("missing"):
                    found.setdefault(group, set()).update(result["missing"])
    for group, classes in found.items():
        which = f"class{'es' * (len(classes) > 1)} {', '.join(map(str, sorted(classes)))}"
        yield f"{group} has no test sample of {which}, which the AUC leaves out."


def _over_seeds(values: Sequence[float | None]) -> dict[str, float | None]:
    found = summary_over_seeds([math.nan if value is None else value for value in values])
    return {"mean": _json(found.mean), "std": _json(found.std), "ci95": _json(found.ci95)}


def _versus(first: str, seeds: dict[int, dict[str, Any]], reference: dict[int, dict[str, Any]]) -> dict[str, Any]:
    common = [seed for seed in seeds if seed in reference]

    def test(key: str) -> dict[str, float | None]:
        a, b = ([math.nan if s[seed][key] is None else s[seed][key] for seed in common] for s in (seeds, reference))
        found = paired(a, b)
        return {"difference": _json(found.difference), "ci95": _json(found.ci95), "p": _json(found.p)}

    return {"method": first, "seeds": len(common)} | {key: test(key) for key in STATISTICS}


def _json(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _notes(runs: dict[str, dict[int, History]]) -> Iterator[str]:
    histories = [run for seeds in runs.values() for run in seeds.values()]
    rounds = max(max(len(run) for run in histories), *(int(run.meta.get("rounds") or 0) for run in histories))
    for run in histories:
        if len(run) < rounds:
            yield f"{run.label}, seed {run.seed}, stopped after {len(run)} of {rounds} rounds."
    all_seeds = {run.seed for run in histories}
    for label, seeds in runs.items():
        if missing := sorted(all_seeds - set(seeds)):
            yield f"{label} has no run with seed {', '.join(map(str, missing))}."
    groups = {frozenset(run.groups) for run in histories}
    if len(groups) > 1:
        yield "Not all runs were evaluated on the same groups; AVG, STD and worst are not comparable between them."


class Cell(NamedTuple):
    """One entry of a table: the mean, its spread over seeds, the difference to the first method, whether it is best."""

    mean: str
    spread: str = ""
    difference: str = ""
    best: bool = False

    @property
    def text(self) -> str:
        """Mean and spread in one line."""
        return f"{self.mean} ±{self.spread}" if self.spread else self.mean


class Grid(NamedTuple):
    """A comparison laid out for reading: titles of the columns, and name and cells of every row."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


class _Column(NamedTuple):
    title: str
    path: tuple[str, ...]
    upwards: bool = True
    digits: int = 2
    key: str = ""  # in `versus`, for a statistic


def statistics(comparison: Comparison) -> dict[str, str]:
    """The statistics over groups that a table shows, by key, with their titles.

    AVG, STD and worst for the accuracy; for another measure the gap in place of the STD of two groups, the STD over
    clients for an AUC, and of one group its AVG alone.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    keys, groups = ["avg", "std", "worst"], len(comparison["methods"][0]["groups"])
    if comparison["measure"] != "accuracy":
        if groups < 2:
            return {"avg": STATISTICS["avg"]}
        keys[1] = "gap" if groups == 2 else "std"
        if comparison["measure"] in AREAS and any(
            method["client_std"]["mean"] is not None for method in comparison["methods"]
        ):
            keys.append("client_std")
    return {key: STATISTICS[key] for key in keys}


def grid(comparison: Comparison) -> Grid:
    """Lay out the values of every group and the statistics over them.

    Of the accuracy: mean and spread over seeds. Of another measure: FedISM+'s mean and spread over rounds and seeds.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    root = () if comparison["measure"] == "accuracy" else ("pooled",)
    groups = [_Column(group, (*root, "groups", group)) for group in comparison["methods"][0]["groups"]]
    statistics_ = [
        _Column(title, (*root, key), upwards=key not in _LOWER, key=key)
        for key, title in statistics(comparison).items()
    ]
    return _lay_out(comparison["methods"], groups + statistics_)


def client_grid(comparison: Comparison) -> Grid | None:
    """Lay out the spread over clients, or `None` when no client was evaluated.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    methods = [method for method in comparison["methods"] if method["clients"]]
    columns = [_Column(title, ("clients", key), up, digits) for key, (title, up, digits) in SPREAD.items()]
    return _lay_out(methods, columns) if methods else None


def _lay_out(methods: list[dict[str, Any]], columns: list[_Column]) -> Grid:
    by_column = [list(_cells(methods, column)) for column in columns]
    rows = ((method["method"], cells) for method, cells in zip(methods, zip(*by_column, strict=True), strict=True))
    return Grid(tuple(column.title for column in columns), tuple(rows))


def _cells(methods: list[dict[str, Any]], column: _Column) -> Iterator[Cell]:
    numbers = [reduce(getitem, column.path, method) for method in methods]
    means = [_number(n["mean"], column.digits) for n in numbers]
    known = {float(mean) for mean in means if mean != UNDEFINED}
    top = (max if column.upwards else min)(known, default=math.nan)
    for method, mean, n in zip(methods, means, numbers, strict=True):
        yield Cell(
            mean,
            "" if n["std"] is None else _number(n["std"], column.digits),
            difference(method["versus"][column.key]) if column.key and method["versus"] else "",
            len(known) > 1 and mean != UNDEFINED and float(mean) == top,
        )


def _number(value: float | None, digits: int = 2) -> str:
    return UNDEFINED if value is None else f"{value:.{digits}f}"


def difference(found: dict[str, float | None]) -> str:
    """A paired difference in words: `+2.10 ±0.80, p=.031`, or nothing when it rests on fewer than two seeds.

    Parameters
    ----------
    found
        One entry of `versus`: `{"difference", "ci95", "p"}`.
    """
    if found["difference"] is None or found["ci95"] is None or found["p"] is None:
        return ""
    p = "p<.001" if found["p"] < 0.001 else f"p={found['p']:.3f}".replace("=0", "=")
    return f"{found['difference']:+.2f} ±{found['ci95']:.2f}, {p}".replace("-", "−")


def rich_table(comparison: Comparison) -> "Group":
    """A comparison for the terminal: one row per method, the best value of each column in bold; one table per measure.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    from rich.console import Group

    said: set[str] = set()
    shown: list[Table | str] = []
    for found in tables(comparison):
        shown += [*([""] if shown else []), _rich_table(found, said)]
    return Group(*shown)


def _rich_table(comparison: Comparison, said: set[str]) -> "Table":
    """The table of one measure; sentences below it that were `said` below another are left out, the others added."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    titles, rows = grid(comparison)
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0),
        title=Text(caption(comparison)),
        title_justify="left",
        title_style="italic",
        min_width=None if comparison["measure"] == "accuracy" else 60,  # the sentences take the width of the table
    )
    sentences = [s for s in (*_legend(comparison), *_test(comparison)) if s not in said]
    said.update(sentences)
    table.caption = Text("\n".join([*sentences, *_differences(comparison)]))
    table.caption_justify = "left"
    table.add_column("method", no_wrap=True)
    for title in titles:
        table.add_column(Text(title), justify="right", no_wrap=True, min_width=6)
    for name, cells in rows:
        texts = []
        for cell in cells:
            text = Text(cell.mean, style="bold green" if cell.best else "")
            text.append(f"\n±{cell.spread}" if cell.spread else "", style="not bold dim default")
            texts.append(text)
        table.add_row(Text(name), *texts)
    return table


def markdown(comparison: Comparison) -> str:
    """A comparison as Markdown, a table per measure: the best of each column in bold, differences in a list below.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    return "\n".join(map(_markdown, tables(comparison)))


def _markdown(comparison: Comparison) -> str:
    titles, rows = grid(comparison)

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"{caption(comparison)}", "", row(["method", *titles]), "|---|" + "---:|" * len(titles)]
    lines += [row([name, *(f"**{cell.text}**" if cell.best else cell.text for cell in cells)]) for name, cells in rows]
    notes = [*_legend(comparison), *_test(comparison), *_differences(comparison)]
    lines += ["", *(f"- {text}" for text in notes)]
    return "\n".join(lines).rstrip() + "\n"


def latex(comparison: Comparison) -> str:
    """A comparison in LaTeX for the package booktabs: a `table` per measure, the best value of each column in bold.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    return "\n".join(map(_latex, tables(comparison)))


def _latex(comparison: Comparison) -> str:
    titles, rows = grid(comparison)

    def entry(cell: Cell) -> str:
        mean = "--" if cell.mean == UNDEFINED else cell.mean
        mean = rf"\textbf{{{mean}}}" if cell.best else mean
        return rf"{mean}\,{{\scriptsize$\pm$\,{cell.spread}}}" if cell.spread else mean

    body = [" & ".join([_tex(name), *map(entry, cells)]) + r" \\" for name, cells in rows]
    text = " ".join([caption(comparison), *_legend(comparison)])
    comments = [*_test(comparison), *_differences(comparison)]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_tex(text)}}}",
            rf"  \begin{{tabular}}{{l{'r' * len(titles)}}}",
            r"    \toprule",
            "    " + " & ".join(["Method", *map(_tex, titles)]) + r" \\",
            r"    \midrule",
            *("    " + line for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            *("% " + " ".join(comment.split()) for comment in comments),
            "",
        ]
    )


def _tex(text: str) -> str:
    special = {character: "\\" + character for character in "&%$#_{}"} | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
    }
    return "".join(special.get(character, character) for character in text)


def caption(comparison: Comparison) -> str:
    """What the numbers of a comparison are, in one sentence.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    where = f" on {comparison['scenario']}" if comparison["scenario"] else ""
    last = f"the last {comparison['averaged']} evaluated rounds" if comparison["averaged"] > 1 else "the last round"
    what = f"{comparison['title']} of the global model{where} in percent"
    return f"{what}, mean over {last}."


def legend(comparison: Comparison) -> list[str]:
    """What the columns of a table are, a sentence each.

    Parameters
    ----------
    comparison
        What `comparison` returned, or one of its `measures`.
    """
    keys, several = statistics(comparison), len(comparison["seeds"])
    text = []
    if "std" in keys:
        text.append("STD: standard deviation over the groups (ddof 1), lower is fairer.")
    if "gap" in keys:
        text.append("gap: the better group less the worse, lower is fairer.")
    if "client_std" in keys:
        text.append("client STD: standard deviation over clients that each have the value of their group (ddof 0).")
    if comparison["measure"] != "accuracy":
        if max(method["pooled"]["n"] for method in comparison["methods"]) > 1:
            of = f" and {several} seeds" if several > 1 else ""
            text.append(f"±: standard deviation (ddof 0) over these rounds{of}, pooled as in FedISM+.")
    elif several > 1:
        text.append(f"±: standard deviation over {several} seeds.")
    return text


def _legend(comparison: Comparison) -> list[str]:
    return [*legend(comparison), *comparison["notes"]]


def _test(comparison: Comparison) -> Iterator[str]:
    if any(True for _ in _differences(comparison)):
        yield (
            f"Differences are to {comparison['methods'][0]['method']}, paired by seed: mean, ± half of the 95 % "
            "confidence interval, p-value of the paired t-test (not corrected for the number of methods)."
        )


def _differences(comparison: Comparison) -> Iterator[str]:
    titles = statistics(comparison).values()
    for name, cells in grid(comparison).rows:
        found = zip(titles, cells[-len(titles) :], strict=True)
        if texts := [f"{title} {cell.difference}" for title, cell in found if cell.difference]:
            yield f"{name}: {'; '.join(texts)}."


def verdict(comparison: Comparison) -> str:
    """What a comparison shows, in plain language and without more certainty than the seeds allow.

    Parameters
    ----------
    comparison
        What `comparison` returned.
    """
    methods, seeds = comparison["methods"], len(comparison["seeds"])
    if all(method["avg"]["mean"] is None for method in methods):
        return "No method was evaluated on all groups in the last rounds, so there is nothing to judge yet."
    if len(methods) == 1:
        text, tests = _judge_one(methods[0]), list[float]()
    else:
        text, tests = _judge_many(methods)
        text += _objections(comparison)
    if seeds == 1:
        other = "another can reverse the order" if len(methods) > 1 else "another can look different"
        return f"{text} This is one seed, and one seed proves nothing: {other}. Run at least three."
    if seeds == 2 and tests:
        return f"{text} Two seeds are few to judge a difference by; run at least three."
    if any(p >= 0.05 for p in tests):
        return f"{text} With {seeds} seeds, a difference with p above 0.05 cannot be told from chance."
    return text


def _judge_one(method: dict[str, Any]) -> str:
    groups = {group: accuracy["mean"] for group, accuracy in method["groups"].items()}
    text = f"{method['method']} reaches {method['avg']['mean']:.2f}{_PERCENT} on average over {_count(groups)}"
    if len(groups) == 1:
        return f"{text}."
    low = min(groups, key=lambda group: groups[group])
    return (
        f"{text}, with a standard deviation of {_number(method['std']['mean'])} points between them; "
        f"the worst is {low} at {groups[low]:.2f}{_PERCENT}."
    )


def _judge_many(methods: list[dict[str, Any]]) -> tuple[str, list[float]]:
    """Sentences about the lowest STD and the best worst group, and the p-values they quote."""
    first, groups = methods[0], _count(methods[0]["groups"])
    sentences: list[str] = []
    tests: list[float] = []

    def against(method: dict[str, Any], key: str, unit: str) -> str:
        if method is first or first[key]["mean"] is None:
            return ""
        text = f", against {first[key]['mean']:.2f}{unit} for {first['method']}"
        if found := difference(method["versus"][key]):
            tests.append(method["versus"][key]["p"])
            return f"{text} (paired difference {found})"
        return text

    fairest = _extreme(methods, "std", min)
    kindest = _extreme(methods, "worst", max) if len(first["groups"]) > 1 else None
    if fairest is not None:
        who = (
            f"No method is fairer than {first['method']}" if fairest is first else f"{fairest['method']} is the fairest"
        )
        std = fairest["std"]["mean"]
        sentences.append(
            f"{who}: its accuracy varies least over {groups}, by {std:.2f} points (STD){against(fairest, 'std', '')}."
        )
    if kindest is not None:
        who = "It also" if kindest is fairest else kindest["method"]
        worst = kindest["worst"]["mean"]
        sentences.append(
            f"{who} serves the worst group best, at {worst:.2f}{_PERCENT}{against(kindest, 'worst', _PERCENT)}."
        )
    if fairest is not None and (more := against(fairest, "avg", _PERCENT)):
        whose = "Its" if kindest is fairest else "The"
        avg, reference = fairest["avg"]["mean"], first["avg"]["mean"]
        of_whom = "" if kindest is fairest else f" of {fairest['method']}"
        how = "the same" if abs(avg - reference) < 0.005 else "higher" if avg > reference else "lower"
        sentences.append(f"{whose} average accuracy{of_whom} is {how}: {avg:.2f}{_PERCENT}{more}.")
    if not sentences:
        top = _extreme(methods, "avg", max) or first
        sentences.append(f"{top['method']} is the most accurate, at {top['avg']['mean']:.2f}{_PERCENT} on average.")
    return " ".join(sentences), tests


def _objections(comparison: Comparison) -> str:
    """Which other measures name another method that serves the worst group best."""
    kindest = _extreme(comparison["methods"], "worst", max)
    found: dict[str, list[str]] = {}
    for other in tables(comparison)[1:]:
        best = _extreme(other["methods"], "worst", max)
        if len(other["methods"][0]["groups"]) > 1 and best and kindest and best["method"] != kindest["method"]:
            what = other["title"].split(" (")[0]
            found.setdefault(best["method"], []).append(what[0].lower() + what[1:])
    return "".join(f" By {' and '.join(whats)}, {who} serves the worst group best." for who, whats in found.items())


def _extreme(methods: list[dict[str, Any]], key: str, choose: Callable[..., Any]) -> dict[str, Any] | None:
    known = [method for method in methods if method[key]["mean"] is not None]
    found: dict[str, Any] | None = choose(known, key=lambda method: method[key]["mean"], default=None)
    return found


def _count(groups: Sized) -> str:
    return f"{len(groups)} group{'s' * (len(groups) != 1)}"
