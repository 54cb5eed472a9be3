"""How settings were chosen, in words and tables: of a document of all draws, and of runs with chosen settings."""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from equipoise.metrics.failure import HUGE
from equipoise.records.criteria import COLLABORATION, CRITERIA, LAST, ORACLE
from equipoise.records.meta import Content
from equipoise.report import drawing
from equipoise.report.drawing import Axes, Figure, svg
from equipoise.report.formatting import UNDEFINED, brief, number
from equipoise.report.notes import SHARED, chosen_by, cost_of_choice, listed, marked, none_of_use, settings_of
from equipoise.report.page import Block, Bullets, Page, Picture, Pictures, Section, Text, of_texts
from equipoise.system.text import plural

COLUMNS: Final = ("method", "chosen", "score", "defaults", "draw", "rounds", "seconds")
SHORTER: Final = f"Numbers of draws that were trained for fewer rounds are means over the last rounds that they had, up to {LAST}, and are not comparable with others."
LONGER: Final = "Compare with --no-halving, in Python halving=False."
EDGE: Final = (
    "its best value may be outside; search further under another name: equipoise tune --search, in Python search={...}"
)


def budget(document: Content) -> str:
    """What was chosen by, on which data, over which rounds, at what cost, in three sentences."""
    given, methods = document["budget"], document["methods"].values()
    cost = (sum(method[key] for method in methods) for key in ("seconds", "trained", "runs"))
    return f"{chosen_by(given['by'], given['draws'], given['validation'], given['rounds'])} {cost_of_choice(*cost)}"


def _without_score(method: Content, by: str, last: int) -> Iterator[str]:
    """Why a method has no score, or its defaults have none."""
    ended = {trial["draw"]: trial["failed"] for trial in method["trials"] if trial["rungs"][-1]["rounds"] == last}
    if method["score"] is None and all(ended.values()):
        yield f"none of the draws that were trained to the end ({len(ended)}) is of use, so the defaults are taken. {LONGER}"
    elif method["score"] is None:
        equal = " It is not where clients receive equally good models in one of the last rounds."
        yield f"{by} is not defined in all runs of any of its draws, so the defaults are taken.{equal * (by == COLLABORATION)}"
    elif method["default"] is None:
        useless = f"are of no use ({ended.get(0) or by + ' is not defined'})"
        yield f"the defaults {useless if 0 in ended else 'were not trained to the end'}, so they have no score to compare with."


def sentences(document: Content) -> Iterator[str]:
    """What to know of the choices: edges of ranges, disagreement between criteria, early ranks that misled, useless draws."""
    yield budget(document)
    by, (*early, last) = document["budget"]["by"], document["rungs"]
    if early and (first := next(iter(document["methods"].values()), None)):
        draws = [sum(len(trial["rungs"]) > k for trial in first["trials"]) for k in range(len(early) + 1)]
        yield f"After {listed([*map(str, early)])} of {last} rounds only the better {listed([*map(str, draws[1:])])} of {draws[0]} draws went on."
    for label, method in document["methods"].items():
        if method["given"]:
            yield f"{label}: not searched, as it was given: {settings_of(method['given'], {})}."
        for name, end in method["edges"].items():
            value = method["settings"][name]
            advice = "its best value may be outside; give another to search further" if isinstance(value, str) else EDGE
            yield f"{label}: {name} = {value} is at the {end} end of its range; {advice}."
        others = {name: draw for name, draw in method["by_criterion"].items() if draw != method["draw"] and name != by}
        if others:
            yield f"{label}: another draw is the best by {', '.join(f'{name} ({draw})' for name, draw in others.items())}."
        if method["useless"] == len(method["trials"]):
            yield none_of_use(label, method["useless"])
            continue
        yield from (f"{label}: {text}" for text in _without_score(method, by, last))
        if useless := method["useless"]:
            yield f"{label}: {useless} of {plural(len(method['trials']), 'draw')} diverged or guess{'es' * (useless == 1)}."
        for rung in method["agreement"]:
            if rung["spearman"] is not None and rung["spearman"] < 0.5:
                yield f"{label}: the ranks after {rung['rounds']} rounds hardly predict the last ones (Spearman {number(rung['spearman'], 2)}). {LONGER}"


def rows(document: Content) -> Iterator[tuple[str, ...]]:
    """A row per method, in the order of `COLUMNS`."""
    for label, method in document["methods"].items():
        texts = (marked(label, method["by"]), settings_of(method["settings"], method["defaults"]))
        costs = (str(method["draw"]), f"{method['trained']:,}", brief(method["seconds"]))
        yield *texts, number(method["score"]), number(method["default"]), *costs


def aligned(table: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows with cells of one width in each column, the first two to the left."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    ways = [str.ljust, str.ljust, *[str.rjust] * len(widths[2:])]
    return [[put(cell, width) for put, cell, width in zip(ways, row, widths, strict=True)] for row in table]


def headline(document: Content) -> str:
    """For which methods the search is better than the defaults, on the samples that it had."""
    by, methods = document["budget"]["by"], document["methods"]
    scored = {label: m for label, m in methods.items() if None not in (m["score"], m["default"])}
    better = [label for label, method in scored.items() if method["score"] > method["default"]]
    if not scored:
        return f"Settings are chosen by {by}; the defaults were not trained to the end, so they are not compared with them."
    if not better:
        dropped = len(methods) - len(scored)
        rest = f"; those of {plural(dropped, 'method')} were not trained to the end" * bool(dropped)
        return f"No search found better settings than the defaults by {by}{rest}."
    names = listed(better) if len(better) < 3 else f"{len(better)} of {len(methods)} methods"
    return f"On the samples that chose them, settings of {names} are better than the defaults by {by}."


def page(document: Content) -> Page:
    """The choice of settings as a page: what was chosen and how, and of every method all draws and what each setting does."""
    made, oracle = [*rows(document)], document["budget"]["by"] == ORACLE
    shared = [Text(SHARED)] * (document["budget"]["sampler"] == "random")
    blocks: list[Block] = [Text(budget(document)), *shared, Bullets([*sentences(document)][1:])]
    of_methods = (_of(document, k, label) for k, label in enumerate(document["methods"]))
    return Page(
        "How settings were chosen", "Tuning", [plural(len(made), "method"), plural(document["budget"]["draws"], "draw")], headline(document),
        sections=[Section("how", "How they were chosen, and what to doubt", blocks), *of_methods], folded=True,
        footer=f"Made by equipoise tune; the runs that chose had {'the' if oracle else 'no'} test data.",
        first=[of_texts([(name, texts) for name, *texts in made], COLUMNS[1:], "Method")],
    )  # fmt: skip


def _of(document: Content, place: int, label: str) -> Section:
    """The draws of a method."""
    method, by = document["methods"][label], document["budget"]["by"]
    last = [trial["rungs"][-1] for trial in method["trials"]]
    criteria = [name for name in CRITERIA if any(rung.get(name) is not None for rung in last)]
    lines = []
    for trial, rung in zip(method["trials"], last, strict=True):
        numbers = [str(rung["rounds"]) if len(rung) > 1 else UNDEFINED, *(number(rung.get(name)) for name in criteria)]
        name = f"{trial['draw']}{' (chosen)' * (trial['draw'] == method['draw'])}"
        lines.append((name, (settings_of(trial["settings"], method["defaults"]), *numbers)))
    searched = "; ".join(f"{name}: {space}" for name, space in method["spaces"].items())
    failures = [f"Draw {trial['draw']}: {trial['failed']}." for trial in method["trials"] if trial["failed"]]
    notes = Bullets([*failures, *[SHORTER] * (len({rung["rounds"] for rung in last}) > 1)])
    table = of_texts(lines, ("settings", "rounds", *criteria), "Draw", kind="lines")
    blocks: list[Block] = [Text(f"Searched: {searched}."), table, notes]
    figure, pointed = sensitivity(label, method, by), {trial["draw"] for trial in drawn(method, by)}
    if figure is not None:
        away = [str(trial["draw"]) for trial in method["trials"] if trial["draw"] not in pointed]
        absent = f" Without a point: {plural(len(away), 'draw')} ({', '.join(away)}), whose {by} is not defined or out of range."
        caption = (
            "The criterion against each setting that is a number: a point per draw, larger after more rounds, hollow if the draw diverged or guesses. "
            f"Dotted: the chosen value{'; dashed: the score of the defaults' * with_default(method, by)}.{absent * bool(away)}"
        )
        name = f"sensitivity-{place}"
        blocks.append(Pictures([Picture(name, f"{by} against each setting", svg(name, figure), caption)]))
    return Section(f"draws-{place}", label, blocks)


def drawn(method: Content, by: str) -> list[Content]:
    """The draws that have a point: a score, and of a useless draw one that is not so low that the others would look equal."""
    scores = [(t, abs(score)) for t in method["trials"] if (score := t["rungs"][-1].get(by)) is not None]
    most = max((score for t, score in scores if not t["failed"]), default=math.inf)
    return [t for t, score in scores if score <= HUGE * most]


def with_default(method: Content, by: str) -> bool:
    """Whether the defaults have a score, and a point."""
    return method["default"] is not None and any(not trial["settings"] for trial in drawn(method, by))


def sensitivity(label: str, method: Content, by: str) -> "Figure | None":
    """The criterion against every setting that is a number: a point per draw, larger after more rounds; None if no draw has a number."""
    trials, defaults = drawn(method, by), method["defaults"]
    every = [(trial, {**defaults, **trial["settings"]}, trial["rungs"][-1]) for trial in trials]
    names = [n for n in defaults if every and all(isinstance(values[n], int | float) for _, values, _ in every)]
    if not names:
        return None
    columns = min(3, len(names))
    figure, axes = drawing.panels(len(names), height=1.6, columns=columns)
    longest, dashed = max(last["rounds"] for _, _, last in every), with_default(method, by)
    for panel, name in zip(axes, names, strict=True):
        for trial, values, last in every:
            size, hollow = 2.5 + 4 * last["rounds"] / longest, bool(trial["failed"])
            look = {"fillstyle": "none"} if hollow else {"mew": 0, "alpha": 0.7}
            panel.plot([values[name]], [last[by]], "o", markersize=size, color=drawing.color(0), clip_on=False, **look)
        if dashed:
            panel.axhline(method["default"], color=drawing.INK, linewidth=0.6, linestyle="--")
        chosen = {**defaults, **method["settings"]}[name]
        panel.axvline(chosen, color=drawing.INK, linewidth=0.6, linestyle=":")
        _ends(panel, {chosen, *(values[name] for _, values, _ in every)}, "log" in method["spaces"].get(name, ""))
        drawing.labels(panel, drawing.plain(name, drawing.FULL // columns), by if panel is axes[0] else "")
    drawing.title(axes[0], label)
    return figure


def _ends(panel: Axes, values: Collection[float], logarithmic: bool) -> None:
    """An axis below whose ends are the lowest and the highest value, as more numbers have no room in a narrow panel."""
    from matplotlib.ticker import NullFormatter

    if logarithmic and min(values) > 0:
        panel.set_xscale("log")
        panel.xaxis.set_minor_formatter(NullFormatter())
    ends = sorted({min(values), max(values)})
    panel.set_xticks(ends, [f"{value:.3g}" for value in ends])
    if len(ends) > 1:
        first, last = panel.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
