"""What each client gave, as a page: who gave most and least, in how many runs, and what to be careful with."""

from collections.abc import Iterator

from equipoise.records.meta import Content
from equipoise.report import drawing
from equipoise.report.drawing import svg
from equipoise.report.formatting import UNDEFINED, Cell, Grid, number
from equipoise.report.page import Block, Bullets, Page, Picture, Pictures, Section, Table, Text
from equipoise.system.text import plural

COPY = 0.98  # cosine from which updates are taken for copies
UNITS = {"loss": (1.0, 4, "decrease of the loss"), "accuracy": (100.0, 2, "points of accuracy"), "worst": (100.0, 2, "points of the worst group"),
         "std": (100.0, 2, "points of decrease of the STD over groups"), "gap": (100.0, 2, "points of decrease of the gap between groups")}  # fmt: skip
GAMED = (
    "Values can be gamed: a copy of a client raises what both get by Shapley values, and takes both to nothing by leave-one-out; an update that "
    "is made longer may gain by leave-one-out (norm_limit bounds it)."
)


def _order(document: Content) -> list[int]:
    """Places of the clients, the largest value of the first utility first; who was in no round last."""
    first = [row[0] for row in document["mean"]]
    return sorted(range(len(first)), key=lambda k: (first[k] is None, -(first[k] or 0.0)))


def _shown(document: Content, place: int, k: int) -> Cell:
    """The value of a client by a utility, with half of its interval over runs."""
    scale, digits, _ = UNITS[document["utilities"][k]]
    value, half = document["mean"][place][k], document["half"][place][k]
    sign = None if value is None else scale * value
    return Cell(number(sign, digits, sign=True), "" if half is None else number(scale * half, digits))


def headline(document: Content) -> str:
    """Who gave most and least, as far as runs tell them apart."""
    order = [k for k in _order(document) if document["mean"][k][0] is not None]
    names, utility = [document["clients"][k] for k in order], UNITS[document["utilities"][0]][2]
    if len(names) < 2:
        return f"{names[0] if names else 'Nobody'} alone took part, so all that was gained is its own."
    if document["runs"] > 1 and [names[0], names[-1]] in [sorted(pair, key=names.index) for pair in document["alike"]]:
        return f"{plural(document['runs'], 'run')} do not tell who gave most: {names[0]} and {names[-1]} differ by no more than runs do."
    said = "In this run" if document["runs"] == 1 else f"Over {document['runs']} runs"
    return f"{said}, by {utility}, {names[0]} gave most and {names[-1]} least."


def _how(document: Content) -> str:
    """By what evaluator, and of how many coalitions."""
    counted = f"{document['evaluations']:,} of {document['coalitions']:,} coalitions"
    if document["evaluator"] in ("auto", "exact") and document["evaluations"] == document["coalitions"]:
        return f"Exact Shapley values, of all {document['coalitions']:,} coalitions."
    return f"Evaluator {document['evaluator'].replace('auto', 'gtg')}, by {counted}."


def sentences(document: Content) -> Iterator[str]:
    """What to know of the values."""
    groups = ", ".join(f"{n} of {name}" for name, n in document["measured_on"].items())
    yield f"Measured on samples that nobody trained on, and that are not test samples: {groups}. {_how(document)}"
    if document["runs"] == 1:
        yield "One run: clients of equal worth differ by chance as well. Name runs of several seeds to see which differences hold."
    elif document["alike"]:
        pairs, n = [" and ".join(pair) for pair in document["alike"]], len(document["clients"])
        yield f"Not told apart at 5 % (paired t, Holm): {'; '.join(pairs) if len(pairs) < 7 else f'{len(pairs)} of {n * (n - 1) // 2} pairs'}."
    if document["kendall"] is not None:
        yield f"Rankings of two runs agree with a Kendall tau of {number(document['kendall'])} on average (1: the same ranking)."
    for name, best, worst in document["contradictions"]:
        yield f"{name} is first by {best} and last by {worst}: say which of the two counts before anybody is rewarded."
    if document["closest"] and (pair := document["closest"])[2] >= COPY:
        yield f"{pair[0]} and {pair[1]} send almost the same updates (mean cosine {number(pair[2])}): one may copy the other. No value tells a copy from its original."
    if not document["converged"]:
        yield "The values have not converged: sampling ended at its bound. Rank nobody by them."
    if document["refused"]:
        yield f"{plural(document['refused'], 'round')} without values, because a coalition's model had no numbers."
    yield GAMED


def table(document: Content) -> Table:
    """A row per client: its value by each utility, and in how many rounds its updates counted."""
    utilities, got = range(len(document["utilities"])), document["got"]
    titles = (*document["utilities"], "rounds", *(["got"] if got else []))
    rows = []
    for k in _order(document):
        others = [str(document["attended"][k]), *([number(100 * got[k])] if got else [])]
        rows.append((document["clients"][k], (*(_shown(document, k, u) for u in utilities), *map(Cell, others))))
    everybody = [
        number(UNITS[u][0] * gain, UNITS[u][1], sign=True)
        for u, gain in zip(document["utilities"], document["gain"], strict=True)
    ]
    total = ("all together", (*map(Cell, everybody), *[Cell(UNDEFINED)] * (1 + bool(got))))
    return Table(Grid(titles, (*rows, total)), "", "Client")


def figure(document: Content) -> str:
    """The value of each client by the first utility, with intervals over runs, as SVG."""
    scale, _, words = UNITS[document["utilities"][0]]
    order = [k for k in _order(document) if document["mean"][k][0] is not None]
    names = [drawing.plain(document["clients"][k]) for k in order]
    shown, (axes,) = drawing.panels(1, height=0.35 + 0.2 * len(names))
    drawing.rows(axes, names)
    for at, k in enumerate(order):
        half = document["half"][k][0]
        axes.errorbar(
            scale * document["mean"][k][0],
            at,
            xerr=None if half is None else scale * half,
            fmt="o",
            markersize=3.5,
            color=drawing.color(0),
        )
    axes.axvline(0, color=drawing.INK, linewidth=0.6)
    drawing.labels(axes, words)
    return svg("contribution", shown)


def page(document: Content) -> Page:
    """The page of a document: ``clients``, ``utilities``, ``mean`` and ``half`` [N, K], and what :func:`sentences` states."""
    notes, units = [*sentences(document)], [f"{name}: {UNITS[name][2]}" for name in document["utilities"]]
    units += ["got: test accuracy of its model after the last round"] * bool(document["got"])
    caption = (
        "Value of each client; bars are 95 % intervals over runs."
        if document["runs"] > 1
        else "Value of each client in this run."
    )
    values: list[Block] = [Pictures([Picture("contribution", "Who gave what", figure(document), caption)])]
    return Page(
        "What each client gave", "Contribution", [plural(len(document["clients"]), "client"), plural(document["runs"], "run"), document["method"]],
        headline(document), first=[table(document), Text(f"Units: {'; '.join(units)}. Values of all clients sum to what all together gained.")],
        notices=notes[1:-1], sections=[Section("values", "Values", values), Section("how", "How they were measured", [Bullets([notes[0], notes[-1]])])],
        footer="Made by equipoise contribution.",
    )  # fmt: skip
