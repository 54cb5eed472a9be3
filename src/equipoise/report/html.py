"""The report of one or several runs: one HTML file that needs nothing else."""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from equipoise.metrics.measures import Measure, measures_of
from equipoise.records.threshold import Chosen
from equipoise.report import drawing, figures as drawings, layout, notes, provenance, thresholds
from equipoise.report.columns import Term, anchor, hint, notation, terms_of, typeset
from equipoise.report.document import mean_of, tables
from equipoise.report.figures_of_groups import loss_curve, loss_limit
from equipoise.report.figures_of_training import MEASURED, measured_in
from equipoise.report.formatting import FAILED, Grid, without
from equipoise.report.holdings import marks, sentence
from equipoise.report.rendering import save_latex
from equipoise.report.sentences import evidence, left_out, limits, tested_on, verdict, when, worst_named
from equipoise.report.statistics import Comparison
from equipoise.system.files import real_path, write_atomically
from equipoise.system.text import plural, visible

CHOICE: Final = "choosing/tuning.html"  # next to the report of a comparison whose settings were chosen

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

    from equipoise.records.history import History

ENDS = re.compile(r"(?<=[+,(=])")  # where a line of a name may end
SECTIONS = re.compile(r'<section id="([^"]+)">\s*<h2>(.*?)</h2>')  # their ids and headings


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
        save_latex(compared, beside)
    return write_atomically(path, page)


@cache
def template(name: str) -> Template:
    """A page's template, compiled once: that takes longer than to fill it in."""
    from jinja2 import Environment, StrictUndefined

    source = resources.files("equipoise.report").joinpath(name).read_text(encoding="utf-8")
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=shown
    ).from_string(source, globals={"typeset": typeset, "contents": SECTIONS.findall, "pieces": ENDS.split})


def shown(value: object) -> object:
    """What a page shows of a value: text without signs that steer; markup and all else as it is."""
    return visible(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value


def render(histories: Sequence[History] | Comparison, choice: str = "") -> str:
    """The report as a string of HTML; ``choice`` is the page with all draws of a choice of settings, as a relative address."""
    compared = Comparison.of(histories)
    runs = {label: [run.history for run in seeds.values()] for label, seeds in compared.runs.items()}
    common, differing = provenance.settings(runs)
    document, of_groups, of_clients = compared.document, layout.over_groups(compared), layout.over_clients(compared)
    measured, tests, parts = layout.sheets(document), layout.paired_tests(document), parts_of_captions(compared)
    measure = compared.measure
    terms = terms_of([measure, *measures_of(compared)[1:]])
    drawn = {
        name: (name, drawings.PLOTS[name].heading.format(**parts), caption(name, parts), svg(name, figure))
        for name, figure in drawings.draw_all(compared).items()
    }
    return template("report.html.j2").render(
        title=_title(compared),
        facts=_facts(compared),
        compared=compared,
        verdict=verdict(document),
        evidence=evidence(document),
        origin=provenance,
        leaks=(leaks := notes.leaks(compared.histories)),
        choice=choice,
        notes=[note for note in compared["notes"] if note not in leaks],
        limits=limits(compared),
        measured=[(_statistics_first(sheet), _below(sheet, measure)) for sheet in measured],
        other=_statistics_first(other) if (other := layout.other_rounds(document)) else None,
        tests=tests,
        groups=of_groups,
        clients=of_clients,
        every=[sheet for sheet in (layout.every_client(compared), *layout.people_of_clients(compared)) if sheet],
        trained=[drawn.pop("presence")] if "presence" in drawn else [],
        data=[drawn.pop(name) for name in drawings.DATA if name in drawn],
        figures=list(drawn.values()),
        thresholds=_thresholds(compared),
        of_threshold=thresholds,
        terms=_terms(compared, [*measured, *of_groups, *of_clients], tests, terms),
        notation=notation(
            measure, "averaged over the last evaluated rounds first" if compared["averaged"] > 1 else when(document)
        ),
        hint=partial(hint, terms=terms),
        anchor=partial(anchor, terms=terms),
        measure=measure,
        layout=layout,
        common=common,
        differing=differing,
        today=date.today().isoformat(),
    )


def _thresholds(compared: Comparison) -> list[tuple[str, Chosen, str]]:
    """Of every run with a threshold: its name if several have one, the threshold, and its figure."""
    runs = [
        (f"{label}, seed {s}", chosen)
        for label, by in compared.runs.items()
        for s, run in by.items()
        if (chosen := run.history.threshold) is not None
    ]
    several = len(compared.histories) > 1
    return [
        (name * several, chosen, svg(f"threshold-{k}", thresholds.figure(chosen)))
        for k, (name, chosen) in enumerate(runs)
    ]


def _terms(
    compared: Comparison, shown: Sequence[layout.Sheet], tests: Sequence[layout.Sheet], terms: Mapping[str, Term]
) -> list[tuple[str, str, Term]]:
    """What the legend explains, in the order of the terms: id, title, and the term; only what is on the page."""
    titles = {title for sheet in shown for title in sheet.grid.titles[-sheet.totals :]}
    titles |= {title for table in tests for title in table.grid.titles}
    titles |= {of_measure["title"] for of_measure in tables(compared.document)} | ({"p", "Holm p"} if tests else set())
    return [(anchor(title, terms), title, term) for title, term in terms.items() if title in titles]


def _statistics_first(sheet: layout.Sheet) -> layout.Sheet:
    """The same table with what sums up the groups before them, where it is seen on a phone."""

    def turned(cells: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*cells[len(cells) - sheet.totals :], *cells[: len(cells) - sheet.totals])

    rows = tuple((name, turned(cells)) for name, cells in sheet.grid.rows)
    return replace(sheet, grid=Grid(turned(sheet.grid.titles), rows))


def _below(sheet: layout.Sheet, measure: Measure) -> str:
    """The text below a table of a comparison."""
    first = sheet.name == measure.name
    explained = without(sheet.explanations, "plus-minus", *["in-force"] * (not first))
    deviation = [text for text in sheet.explanations if text not in without([text], "plus-minus")]
    bold = any(cell.best for _, cells in sheet.grid.rows for cell in cells)
    best = [
        "In bold: the best of a column, if a test distinguishes it from every other method; elsewhere nothing is bold."
    ] * bold
    remarks = () if first else sheet.notes  # those of the main measure are at the top of the page
    return " ".join([sheet.caption, *explained, *best, *deviation, *remarks])


def _title(compared: Comparison) -> str:
    methods = list(compared.runs)
    what = notes.listed(methods) if len(methods) < 4 else f"{len(methods)} methods"
    return f"{what} on {compared['scenario']}" if compared["scenario"] else what


def _facts(compared: Comparison) -> list[str]:
    counts = {
        "seed": len(compared["seeds"]),
        "round": compared["rounds"],
        "group": len(compared["methods"][0]["groups"]),
        "client": max(len(history.client_names) for history in compared.histories),
    }
    return [plural(n, noun) for noun, n in counts.items() if n]


def _whiskers(compared: Comparison) -> str:
    kinds = {"over seeds": "ci95", "over the test samples": "intervals"}
    present = {
        "ci95": any(cell["ci95"] is not None for method in compared["methods"] for cell in method["groups"].values()),
        "intervals": any(method["intervals"] for method in compared["methods"]),
    }
    shown = [kind for kind, key in kinds.items() if present[key]]
    return f" Whiskers: 95\u00a0% intervals {', of one seed '.join(shown)}." if shown else ""


def caption(name: str, parts: Mapping[str, str]) -> str:
    """The caption of a figure."""
    text = drawings.PLOTS[name].caption.format(**parts)
    return text if name in drawings.DATA else f"{text}{parts['failed']}"


def parts_of_captions(compared: Comparison) -> dict[str, str]:
    """Parts of the captions of figures that depend on the runs."""
    several = any(len(method["seeds"]) > 1 for method in compared["methods"])
    collaborating = (compared["collaboration"] or {}).get("methods", ())
    worst = worst_named(compared["methods"]) if len(compared["methods"][0]["groups"]) > 1 else []
    missing = any(method["untested"] for method in compared["methods"])
    undefined = any(mean_of(method, "fairness") is None for method in collaborating)
    over_seeds = "95\u00a0% intervals over the seeds (Student's t)"
    document, measure = compared.document, compared.measure
    return {
        "title": measure.title,
        "noun": measure.noun,
        "up": "up" if measure.better == "higher" else "down",
        "when": when(document),
        "first": compared["methods"][0]["method"],
        "tested": tested_on(compared.histories),
        "clients": left_out(compared),
        "ranks": " Mean over seeds, rank by rank." * several,
        "positive": f"; the positive class is {positive}"
        if (positive := (compared["group_fairness"] or {}).get("positive"))
        else "",
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
        "classes": ", classes" * (not compared.get("task")),
        "holdings": sentence(held, not compared.get("task"), compared["least"]) + marks(held, compared["least"])
        if (held := drawings.held(compared))
        else "",
        "measured": " ".join(
            MEASURED[key].caption.format(loss=measure.loss and f",{measure.loss}")
            for key in measured_in(compared.histories)
        ),
        "kept": _kept(compared),
    }


def _kept(compared: Comparison) -> str:
    """Which share of the entries of updates each method kept."""
    kept = [
        f"{label} {100 * sum(shares) / len(shares):.0f}\u00a0%"
        for label, seeds in compared.runs.items()
        if (shares := [r["kept"] for run in seeds.values() for r in run.history.records if r.get("kept") is not None])
    ]
    return f" Share of update entries kept, mean over rounds: {', '.join(kept)}." if kept else ""


def _beyond(compared: Comparison) -> str:
    """Which losses do not fit the axis."""
    curves = {label: [loss_curve(r.history) for r in seeds.values()] for label, seeds in compared.runs.items()}
    end = loss_limit([curve for seeds in curves.values() for curve in seeds])
    over = [label for label, seeds in curves.items() if any(max(curve.values(), default=0) > end for curve in seeds)]
    return f" Triangles: beyond the axis, or not finite ({notes.listed(over)})." if over else ""


def svg(name: str, figure: Figure) -> str:
    """A figure as an SVG element with the font and the ink of the page, and with unique ids."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.StringIO()
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)  # the page's own ground shows
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's fonts draw the text
        # savefig would draw twice
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})  # type: ignore[no-untyped-call]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", file.getvalue(), flags=re.DOTALL)
    opening, drawn = re.search(r"<svg([^>]*)>(.*)", svg, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    box = re.search(r'viewBox="[^"]*"', opening).group()  # type: ignore[union-attr]
    drawn = drawn.replace("xlink:href", "href")
    drawn = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", drawn)
    drawn = re.sub(r"font-family: [^;\"]*; ?", "", drawn)
    drawn = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+|\s*\n", r"\1", path.group()), drawn)
    drawn = drawn.replace(drawing.INK, "currentColor").replace(drawing.FAINT, "var(--rule)")
    drawn = drawn.replace(drawing.PALETTE[0], "var(--blue)")
    return f'<svg role="img" aria-labelledby="caption-{name}" {box}>{drawn}'


# in a notebook, in light and dark
STYLE = "--rule: #8885; --blue: #3d94d1; max-width: 46rem"  # ink is that of the page


def card(compared: Comparison, figure: str) -> str:
    """The table of the accuracy, a figure by name, and the verdict; without an evaluation what the runs are."""
    if not compared["methods"][0]["groups"]:
        return block(repr(compared))
    import pandas as pd

    titles, rows = layout.sheets(compared.document)[0].grid
    texts = {visible(name): [visible(cell.text) for cell in cells] for name, cells in rows}
    table = pd.DataFrame.from_dict(texts, orient="index", columns=[*map(visible, titles)]).to_html()
    return block(verdict(compared.document), table, drawings.draw(compared, figure))


def block(text: str, table: str = "", figure: Figure | None = None) -> str:
    """A table in HTML, a figure, and a sentence that describes it."""
    from markupsafe import escape

    name = hashlib.sha256((text + table).encode()).hexdigest()[:12]  # ids are unique on the page
    drawn = "" if figure is None else f'<div style="max-width: 26rem">{svg(name, figure)}</div>'
    return f'<div style="{STYLE}">{table}{drawn}<p id="caption-{name}">{escape(visible(text))}</p></div>'
