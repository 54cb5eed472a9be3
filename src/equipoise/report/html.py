"""The report of one or several runs: one HTML file that needs nothing else."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

from equipoise.metrics.definitions import Statistic
from equipoise.metrics.measures import Measure, measures_of
from equipoise.records.history import History
from equipoise.records.meta import LEAK
from equipoise.report import answer, figures as drawings, layout, page as pages, provenance, rendering, thresholds
from equipoise.report.columns import anchor, hint, notation, terms_of, typeset
from equipoise.report.document import mean_of, tables
from equipoise.report.drawing import Figure, svg
from equipoise.report.figures_of_clients import MEASURED, measured_in
from equipoise.report.figures_of_groups import loss_curve, loss_limit
from equipoise.report.formatting import FAILED, without
from equipoise.report.holdings import marks, sentence
from equipoise.report.notes import listed
from equipoise.report.page import Block, Bullets, Code, Link, Page, Picture, Pictures, Section, Table, Text, of_texts
from equipoise.report.sentences import evidence, left_out, limits, tested_on, verdict, when, worst_named
from equipoise.report.statistics import Comparison
from equipoise.system.files import real_path, write_atomically
from equipoise.system.text import plural, visible

CHOICE: Final = "choosing/tuning.html"  # next to the report of a comparison whose settings were chosen


def write(histories: Sequence[History] | Comparison, path: str | os.PathLike[str], *, figures: bool = False) -> Path:
    """Write the report of one or several runs of a scenario, atomically; return its path.

    Parameters
    ----------
    histories : runs of one scenario, or a comparison of them; the first method is the one the others are compared with.
    path : the HTML file to write, replaced if it exists.
    figures : also write every figure as PDF and PNG, and every table as LaTeX, into `<stem>-figures/` beside it.

    Raises
    ------
    ValueError : there is no run, the scenarios differ, or two runs have the same label and seed.
    """
    path = Path(path)
    compared = Comparison.of(histories)
    chosen = any(run.tuned for run in compared.histories) and (path.parent / CHOICE).exists()
    page = render(compared, CHOICE * chosen)
    if figures:
        real_path(beside := path.with_name(f"{path.stem}-figures"), path.parent)
        drawings.save_all(compared, beside)
        rendering.save_latex(compared, beside)
    return write_atomically(path, page)


def render(histories: Sequence[History] | Comparison, choice: str = "") -> str:
    """The report as a string of HTML; ``choice`` is the page with all draws of a choice of settings, as a relative address."""
    return page(Comparison.of(histories), choice).html()


def page(compared: Comparison, choice: str = "") -> Page:
    """The report of some runs: the answer, then the evidence in the order of questions."""
    document = compared.document
    measured = layout.sheets(document)
    tests = layout.paired_tests(measured)
    of_groups, of_clients = layout.over_groups(compared), layout.over_clients(compared)
    terms = terms_of([compared.measure, *measures_of(compared)[1:]])
    parts, panels = parts_of_captions(compared), answer.panels(document)
    drawn = {}
    for name, figure in drawings.draw_all(compared).items():
        heading = answer.title_of_figure(name, compared, drawings.PLOTS[name].heading.format(**parts), panels)
        drawn[name] = Picture(name, heading, svg(name, figure, [*compared.runs]), caption(name, parts))
    few = answer.few(panels, pages.ROWS)
    of_each = [layout.every_client(compared), *layout.people_of_clients(compared)]
    served = [*_sheets(measured[1:], compared), *_sheets(of_each), *_thresholds(compared)]
    costs = [make(compared) for make in (layout.communication, layout.time, layout.who_was_there, layout.every_site)]
    numbers = [
        Section("verdict", "What the numbers show", [Text(verdict(document)), Bullets(evidence(document))]),
        Section("limits", "What this cannot show", [Bullets([*without(document["notes"], LEAK), *limits(compared)])]),
        *_sheets([*measured[:1], layout.other_rounds(document)], compared),
        *_tests(compared, tests),
        *_sheets([*of_groups, *of_clients]),
        *_legend(compared, [*measured, *of_groups, *of_clients], tests, terms),
    ]
    badly = ": ".join(filter(None, ("Who is served badly", answer.served_worst(compared))))
    sections = [
        Section("who", badly, _plates(drawn, WHO), served),
        Section("costs", "What it costs: rounds, bytes and seconds", parts=_sheets(costs)),
        Section("training", "How training went", _plates(drawn, TRAINING), [_left_out(compared)]),
        Section("statistics", "Statistics: every number, test and limit", _plates(drawn, STATISTICS), numbers),
        Section("data", "The data: who has what", _plates(drawn, drawings.DATA)),
        Section("again", "How it was run, and how to run it again", parts=_origin(compared)),
    ]
    legend = answer.legend(document, few) + MANY.format(len(compared.runs)) * (len(compared.runs) > pages.ROWS)
    return Page(
        answer.title(compared), "Equipoise report", _facts(compared), answer.headline(document, panels), few, legend,
        first=[Table(answer.table(few), kind="numbers tall")] * bool(few), notices=answer.notices(document),
        links=[Link("How settings were chosen, with all draws", choice)] * bool(choice),
        sections=[section for section in sections if section.blocks or section.parts], folded=True, methods=[*compared.runs],
        terms={title: (anchor(title, terms), hint(title, terms)) for title in terms}, footer=_footer(compared),
    )  # fmt: skip


VALUE: Final = ("Value",)
MANY: Final = " Of {} methods the first is shown, and those that are best for the worst; Statistics has all."
WHO: Final = ("bars", "rates", "spread", "plane", "contributions", "presence")
TRAINING: Final = ("convergence", "losses", "clients", "weights", "measured", "consistency", "neurons")
STATISTICS: Final = ("tradeoff", "differences")


def _plates(drawn: Mapping[str, Picture], names: Sequence[str]) -> list[Block]:
    """Some figures side by side, if any of them was drawn."""
    pictures = [drawn[name] for name in names if name in drawn]
    return [Pictures(pictures)] if pictures else []


def _sheets(sheets: Iterable[layout.Sheet | None], compared: Comparison | None = None) -> list[Section]:
    """Tables with their text; of a ``compared`` measure with what sums up the groups before them."""
    return [_sheet(sheet, compared) for sheet in sheets if sheet]


def _sheet(sheet: layout.Sheet, compared: Comparison | None) -> Section:
    text, grid, title = sheet.explanations[0], sheet.grid, sheet.heading
    if compared:
        text, title = _below(sheet, compared.measure), answer.title_of_table(sheet, compared)
        places = range(len(grid.titles))  # what sums up the groups comes before them, where it is seen on a phone
        grid = grid.at([*places[-sheet.totals :], *places[: -sheet.totals]])
    return Section(sheet.name, title, [Table(grid, "", sheet.head, "numbers", sheet.totals), Text(text, "caption")])


def _thresholds(compared: Comparison) -> Iterator[Section]:
    """The threshold of every run that has one: what it does, how probabilities are, and its figure."""
    runs = {f"{label}, seed {s}": run.history for label, by in compared.runs.items() for s, run in by.items()}
    of_runs = {name: chosen for name, history in runs.items() if (chosen := history.threshold) is not None}
    for k, (name, chosen) in enumerate(of_runs.items()):
        drawn = svg(f"threshold-{k}", thresholds.figure(chosen))
        blocks: list[Block] = [
            *map(Text, thresholds.sentences(chosen)),
            Table(thresholds.rates(chosen), "What the threshold does", "Test rows"),
            Table(thresholds.probabilities(chosen), "Probabilities", "Test rows"),
            Text(" ".join(thresholds.explained(chosen)), "caption"),
            Pictures([Picture(f"threshold-{k}", "Reliability and ROC", drawn, thresholds.CAPTION)]),
        ]
        title = "Threshold and calibration" + f" of {name}" * (len(compared.histories) > 1)
        yield Section(f"threshold-{k}", title, blocks)


def _tests(compared: Comparison, tests: Sequence[layout.Sheet]) -> Iterator[Section]:
    """The paired tests, a table per measure, or why there are none."""
    if not (len([m for m in compared["methods"] if not m["bound"]]) > 1 or tests):
        return
    alone, first = len(compared["seeds"]) == 1, compared["methods"][0]["method"]
    made: list[Block] = [Table(sheet.grid, f"{sheet.heading}: difference to {first}", kind="lines") for sheet in tests]
    none = "No test is possible: it takes two common seeds, and differences that vary between them."
    points = compared.measure.points
    the = f"In {points}: the" if points else "The"
    texts = [ONE_SEED.format(the=the)] if alone else [PAIRED.format(the=the), *[HOLM] * any(s.corrected for s in tests)]
    made += [Text(" ".join(texts), "caption") if tests else Text(NO_TEST if alone else none)]
    yield Section("tests", "Statistical tests", made)


NO_TEST: Final = "One seed per method: no test is possible."
ONE_SEED: Final = (
    "One seed: no test is possible. {the} difference, and its 95\u00a0% interval [low, high] over the test samples: what other samples of the "
    "same kind might have shown of these same models. Another seed gives other models. The samples are drawn by the Bayesian bootstrap, the same "
    "ones for all methods, in each group apart."
)
PAIRED: Final = (
    "Paired t-test, two-sided, one pair per seed: both methods start from the same model and see the same data in the same order. {the} mean "
    "difference, its 95\u00a0% confidence interval [low, high], and p, how likely a difference at least this large would be by the choice of "
    "seeds alone, were the methods equal on average. It is not the probability that they are equal."
)
HOLM: Final = (
    "Holm: p corrected for the number of differences that are shown of a column, of every method to the first and of the leading one to every "
    "other; calling only those below .05 real is wrong about any of a column in at most 5\u00a0% of such studies. Columns and tables are not "
    "corrected for, and neither is the interval: it can exclude zero at a corrected p above .05."
)


def _left_out(compared: Comparison) -> Section:
    """The clients that did not count in some round."""
    title, rows = "Clients that were left out", [*provenance.quarantined(compared.histories)]
    if not rows:
        return Section("left-out", title, [Text("None: every answer that came passed the check.")])
    text = (
        "These clients did not count in a round that they were to take part in: they were not connected, no answer came, or it did not pass the "
        "check that every answer must pass before it is used. The round went on without them."
    )
    lines = [(client, [reason, method, str(seed), spans]) for method, seed, client, reason, spans in rows]
    return Section("left-out", title, [Text(text), of_texts(lines, ("Reason", "Method", "Seed", "Rounds"), "Client")])


def _legend(
    compared: Comparison, sheets: Sequence[layout.Sheet], tests: Sequence[layout.Sheet], terms: Mapping[str, Statistic]
) -> Iterator[Section]:
    """What the columns on the page mean, with formulas, in the order of the terms."""
    from markupsafe import Markup, escape

    titles = {title for sheet in sheets for title in sheet.grid.titles[-sheet.totals :]}
    titles |= {title for table in tests for title in table.grid.titles}
    titles |= {of_measure["title"] for of_measure in tables(compared.document)} | ({"p", "Holm p"} if tests else set())
    if titles.isdisjoint(terms):
        return
    rounds = "averaged over the last evaluated rounds first" if compared["averaged"] > 1 else when(compared.document)
    formula = Markup('<span id="{}" class="formula">{}</span>')
    rows = [
        (title, [formula.format(anchor(title, terms), Markup(typeset(term.formula))), term.better or "–", escape(term.source)])
        for title, term in terms.items() if title in titles
    ]  # fmt: skip
    note = Text(Markup(typeset(notation(compared.measure, rounds))), "caption")
    table = of_texts(rows, ("Formula", "Better", "Source"), "Measure")
    yield Section("legend", "What the numbers mean", [note, table])


def _origin(compared: Comparison) -> list[Section]:
    """How runs were made: what they printed, settings, machines, and the commands that make them again."""
    histories = compared.histories
    by_label = {label: [run.history for run in by.values()] for label, by in compared.runs.items()}
    commands, (common, differing) = provenance.commands(histories), provenance.settings(by_label)
    again: list[Block] = [Code(commands), Text(provenance.conditions(histories), "caption")]
    headers: list[Block] = []
    for labels, lines in provenance.headers(histories):
        headers += [*[Text(labels, "heading")] * bool(labels), Bullets(lines)]
    shared = [(name, [text]) for name, text in common]
    tables: list[Block] = [
        *[of_texts(differing, [*compared.runs], "Setting", "What differs")] * bool(differing),
        *[of_texts(shared, VALUE, "Setting", "What all runs share" if differing else "All settings")] * bool(shared),
    ]
    environment = [(name, [text]) for name, text in provenance.environment(histories)]
    sections = [
        Section("commands", "Run it again", again * bool(commands)),
        Section("how", "How it ran", headers),
        Section("configuration", "Configuration", tables),
        Section("environment", "Environment", [of_texts(environment, VALUE, "Name")] * bool(environment)),
    ]
    return [section for section in sections if section.blocks]


def _footer(compared: Comparison) -> str:
    versions = "".join(f" · {package} {version}" for package, version in provenance.versions(compared.histories))
    measured = "Accuracies are" if compared.measure.unit == "%" else f"{compared.measure.title} is"
    model = f"{measured} of the global model unless stated"
    return f"Written {date.today().isoformat()}{versions}. {model}; rounds count from 0."


BOLD: Final = (
    "In bold: the best of a column, if a test distinguishes it from every other method; elsewhere nothing is bold."
)


def _below(sheet: layout.Sheet, measure: Measure) -> str:
    """The text below a table of a comparison."""
    first = sheet.name == measure.name
    explained = without(sheet.explanations, "plus-minus", *["in-force"] * (not first))
    deviation = [text for text in sheet.explanations if text not in without([text], "plus-minus")]
    best = [BOLD] * any(cell.best for _, cells in sheet.grid.rows for cell in cells)
    return " ".join([sheet.caption, *explained, *best, *deviation, *(() if first else sheet.notes)])


def _facts(compared: Comparison) -> list[str]:
    clients = max(len(history.client_names) for history in compared.histories)
    counts = (len(compared["methods"]), len(compared["seeds"]), compared["rounds"], clients)
    facts = [plural(n, noun) for n, noun in zip(counts, ("method", "seed", "round", "client"), strict=True) if n]
    of_rounds = (
        "means of the last evaluated rounds" if compared["averaged"] > 1 else f"numbers after {compared['shown']}"
    )
    return [*facts, of_rounds]


def _whiskers(compared: Comparison) -> str:
    methods = compared["methods"]
    over_seeds = any(cell["ci95"] is not None for method in methods for cell in method["groups"].values())
    kinds = ["over seeds"] * over_seeds + ["over the test samples"] * any(method["intervals"] for method in methods)
    return f" Whiskers: 95\u00a0% intervals {', of one seed '.join(kinds)}." if kinds else ""


def caption(name: str, parts: Mapping[str, str]) -> str:
    """The caption of a figure."""
    text = drawings.CAPTIONS[name].format(**parts)
    return text if name in drawings.DATA else f"{text}{parts['failed']}"


def parts_of_captions(compared: Comparison) -> dict[str, str]:
    """Parts of the captions of figures that depend on the runs."""
    several = any(len(method["seeds"]) > 1 for method in compared["methods"])
    collaborating = (compared["collaboration"] or {}).get("methods", ())
    worst = worst_named(compared["methods"]) if len(compared["methods"][0]["groups"]) > 1 else []
    missing = any(method["untested"] for method in compared["methods"])
    undefined = any(mean_of(method, "fairness") is None for method in collaborating)
    over_seeds = "95\u00a0% intervals over the seeds (Student's t)"
    positive = (compared["group_fairness"] or {}).get("positive")
    holdings, classes, least = drawings.held(compared), not compared.get("task"), compared["least"]
    document, measure = compared.document, compared.measure
    losses = measure.loss and f",{measure.loss}"
    return {
        "title": measure.title,
        "noun": measure.noun,
        "up": "up" if measure.better == "higher" else "down",
        "when": when(document),
        "first": compared["methods"][0]["method"],
        "tested": tested_on(compared.histories),
        "clients": left_out(compared),
        "ranks": " Mean over seeds, rank by rank." * several,
        "positive": f"; the positive class is {positive}" * bool(positive),
        "whiskers": _whiskers(compared),
        "crosses": f" Crosses: {over_seeds}." * several,
        "dashed": " Dashed: methods whose fairness is not defined." * undefined,
        "bands": f" Bands: {over_seeds}." * several,
        "training": " Below: loss in training, mean over the clients that took part, and its range over clients and seeds."
        * any(record.get("losses") for history in compared.histories for record in history.records),
        "range": " Line: median over seeds; band: from the lowest to the highest." * several,
        "beyond": _beyond(compared),
        "failed": f"{FAILED}: diverged, or no better than guessing." * any(m["failed"] for m in document["methods"]),
        "tests": " that were tested in a round" * missing,
        "grouped": " (thin) and mean of its group (bold)" * any(any(run.client_groups) for run in compared.histories),
        "complete": " in which all groups were tested" * missing,
        "worst": "".join(f" {text[:-1]}, {when(document)}." for text in worst),
        "seed": " Drawn for the lowest seed." * several,
        "classes": ", classes" * classes,
        "holdings": sentence(holdings, classes, least) + marks(holdings, least) if holdings else "",
        "measured": " ".join(MEASURED[key].meaning.format(loss=losses) for key in measured_in(compared.histories)),
        "kept": _kept(compared),
    }


def _kept(compared: Comparison) -> str:
    """Which share of the entries of updates each method kept."""
    records = {label: [r for run in by.values() for r in run.history.records] for label, by in compared.runs.items()}
    shares = {label: [r["kept"] for r in rows if r.get("kept") is not None] for label, rows in records.items()}
    texts = [f"{label} {100 * sum(numbers) / len(numbers):.0f}\u00a0%" for label, numbers in shares.items() if numbers]
    return f" Share of update entries kept, mean over rounds: {', '.join(texts)}." if texts else ""


def _beyond(compared: Comparison) -> str:
    """Which losses do not fit the axis."""
    curves = {label: [loss_curve(r.history) for r in seeds.values()] for label, seeds in compared.runs.items()}
    end = loss_limit([curve for seeds in curves.values() for curve in seeds])
    over = [label for label, seeds in curves.items() if any(max(curve.values(), default=0) > end for curve in seeds)]
    return f" Triangles: beyond the axis, or not finite ({listed(over)})." if over else ""


# in a notebook, in light and dark
STYLE = "--rule: #8885; --blue: #3d94d1; max-width: 46rem"  # ink is that of the page


def card(compared: Comparison, figure: str) -> str:
    """The table of the accuracy, a figure by name, and the headline; without an evaluation what the runs are."""
    if not compared["methods"][0]["groups"]:
        return block(repr(compared))
    import pandas as pd

    titles, rows = layout.sheets(compared.document)[0].grid
    texts = {visible(name): [visible(cell.text) for cell in cells] for name, cells in rows}
    table = pd.DataFrame.from_dict(texts, orient="index", columns=[*map(visible, titles)]).to_html()
    return block(answer.headline(compared.document), table, drawings.draw(compared, figure))


def block(text: str, table: str = "", figure: "Figure | None" = None) -> str:
    """A table in HTML, a figure, and a sentence that describes it."""
    from markupsafe import escape

    name = hashlib.sha256((text + table).encode()).hexdigest()[:12]  # ids are unique on the page
    drawn = "" if figure is None else f'<div style="max-width: 26rem">{svg(name, figure)}</div>'
    return f'<div style="{STYLE}">{table}{drawn}<p id="caption-{name}">{escape(visible(text))}</p></div>'
