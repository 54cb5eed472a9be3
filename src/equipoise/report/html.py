"""The report of one or several runs: one HTML file that needs nothing else."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import metadata, resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from equipoise.report import booktabs
from equipoise.report import figures as drawings
from equipoise.report.details import (
    Block,
    commands,
    communication,
    environment,
    every_client,
    limits,
    over_clients,
    over_groups,
    tests,
)
from equipoise.report.table import (
    PARITY,
    Comparison,
    Grid,
    by_label,
    caption,
    collaboration_caption,
    collaboration_grid,
    collaboration_legend,
    comparison,
    grid,
    group_fairness,
    legend,
    statistics,
    tables,
    verdict,
)
from equipoise.report.terms import NOTATION, TERMS, Term, anchor, hint, typeset
from equipoise.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from equipoise.federation.history import History

TITLES: Final = {
    "bars": "Accuracy by group",
    "tradeoff": "Accuracy and fairness",
    "differences": "Differences and their intervals",
    "convergence": "Convergence",
    "plane": "Fairness of contribution and reward",
    "contributions": "Contribution and reward",
    "clients": "Clients over the rounds",
    "neurons": "Hidden units by client",
    "spread": "Clients from worst to best",
    "weights": "Weights",
    "consistency": "Update consistency",
}
CAPTIONS: Final = {
    "bars": "Accuracy on every group, mean over the last {averaged} evaluated rounds.{whiskers}",
    "tradeoff": "Average accuracy against its standard deviation over the groups, mean over the last {averaged} evaluated "
    "rounds: up and to the left is better.{crosses}",
    "differences": "Paired differences to {first}, with 95 % intervals over seeds. Where an interval holds 0, the dashed line, "
    "these seeds do not tell the methods apart. A lower STD is fairer.",
    "convergence": "Average over the groups and worst group, round by round.{bands}",
    "spread": "Accuracy of the model each client predicts with, clients sorted from worst to best, on the test set of "
    "the client's own group.",
    "contributions": "Accuracy that every client reaches alone, and that of the model it owns; clients in the order of what "
    "they reach alone. The number is the fairness; the axis need not begin at 0.{seed}",
    "plane": "Collaborative fairness against the accuracy of the best client: up and right is better.{crosses}{dashed}",
    "clients": "Accuracy of the model every client owns, round by round; the colour is what it reaches alone.{seed}",
    "neurons": "Hidden units that every client holds (filled), those that most clients hold on the left; clients in the order "
    "of what they reach alone, the best on top.{seed}",
    "weights": "Weight of every client (thin) and mean of its group (bold). The dashed line is an equal share.{seed}",
    "consistency": "Update consistency: the share of rounds in which a client moved a parameter the way it moves it "
    "now. Mass at the right means that clients keep pulling the same way.{kept}",
}


def write(histories: Sequence[History], path: str | os.PathLike[str], *, figures: bool = False) -> Path:
    """Write the report of one or several runs of a scenario, atomically; return its path.

    Parameters
    ----------
    histories
        Runs of one scenario; the first method is the one the others are compared with.
    path
        The HTML file to write, replaced if it exists.
    figures
        Also write every figure as PDF and PNG, and every table as LaTeX, into `<stem>-figures/` beside it.

    Raises
    ------
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
    """
    path = Path(path)
    page = render(histories)
    if figures:
        beside = path.with_name(f"{path.stem}-figures")
        drawings.save_all(histories, beside)
        booktabs.save(histories, beside)
    return write_atomically(path, page)


def render(histories: Sequence[History]) -> str:
    """The report as a string of HTML.

    Parameters
    ----------
    histories
        Runs of one scenario; the first method is the one the others are compared with.

    Raises
    ------
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
    """
    from jinja2 import Environment, StrictUndefined

    found = comparison(histories)
    common, differing = _configurations(histories)
    notes = _notes_of(found, histories)
    source = resources.files("equipoise.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(source, globals={"hint": hint, "anchor": anchor, "typeset": typeset, "contents": _contents})
    spreads = {"groups": over_groups(histories), "clients": over_clients(histories)}
    measured = [*map(_measured, tables(found)), *_collaboration(found), *_between_groups(group_fairness(histories))]
    tested = tests(found)
    return template.render(
        title=_title(found),
        facts=_facts(found, histories),
        verdict=verdict(found),
        notes=found["notes"],
        limits=limits(found, histories),
        measured=measured,
        reference=found["methods"][0]["method"],
        tests=tested,
        corrected=any(test.holm for one in tested for _, cells in one.rows for test in cells if test),
        seeds=len(found["seeds"]),
        methods=len(found["methods"]),
        **spreads,
        every=every_client(histories),
        traffic=communication(histories),
        figures=[
            (name, TITLES[name], CAPTIONS[name].format(**notes), svg(name, figure))
            for name, figure in drawings.draw_all(histories).items()
        ],
        quarantined=list(_quarantined(histories)),
        terms=_terms(found, [block for found in spreads.values() for block in found], tested),
        notation=NOTATION,
        headers=_headers(histories),
        common=common,
        differing=differing,
        labels=list(by_label(histories)),
        commands=commands(histories),
        environment=environment(histories),
        versions=_versions(histories),
        today=date.today().isoformat(),
    )


def _contents(body: str) -> list[tuple[str, str]]:
    """Id and heading of every section of a page."""
    return re.findall(r'<section id="([^"]+)">\s*<h2>(.*?)</h2>', body)


def _terms(found: Comparison, blocks: Sequence[Block], tested: Sequence[object]) -> list[tuple[str, str, Term]]:
    """What the legend explains, in the order of `TERMS`: id, title, and the term; only what is on the page."""
    titles = {title for one in tables(found) for title in (one["title"], *statistics(one).values())}
    titles |= {title for block in blocks for title in block.grid.titles}
    if content := collaboration_grid(found):
        titles |= set(content.titles)
    titles |= set(PARITY.values()) if found["group_fairness"] else set()
    titles |= {"p", "Holm p"} if tested else set()
    return [(anchor(title), title, term) for title, term in TERMS.items() if title in titles]


def _measured(found: Comparison) -> dict[str, Any]:
    """What the page shows of one measure."""
    totals = list(statistics(found).values())
    notes = found["notes"] if found["measure"] != "accuracy" else []  # those of the accuracy stand above
    heading = f"{found['title']} on every group"
    return _block(heading, found["measure"], caption(found), grid(found), legend(found), notes, len(totals))


def _collaboration(found: Comparison) -> Iterator[dict[str, Any]]:
    """What the page shows of contribution and reward, if it is known."""
    if content := collaboration_grid(found):
        said, notes = collaboration_legend(found), found["collaboration"]["notes"]
        yield _block("Collaborative fairness", "collaboration", collaboration_caption(found), content, said, notes, 0)


def _between_groups(found: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """What the page shows of how differently groups are treated, if it is known."""
    if found:
        yield _block("Group fairness", "group-fairness", found["caption"], found["grid"], found["legend"], [], 0)


def _block(
    heading: str,
    name: str,
    opening: str,
    content: Grid,
    explained: Sequence[str],
    notes: Sequence[str],
    totals: int,
) -> dict[str, Any]:
    """A table of the page, whose last columns are `totals`, and what is said below it."""
    best = ["Best value of each column in bold."] if len(content.rows) > 1 else []
    spread = [text for text in explained if text.startswith("±")]
    told = [text for text in explained if text not in spread]
    return {
        "heading": heading,
        "id": name,
        "grid": content,
        "totals": totals,
        "caption": " ".join([opening, *told, *best, *spread, *notes]),
    }


def _title(found: dict[str, Any]) -> str:
    *others, last = (method["method"] for method in found["methods"])
    what = (
        last if not others else f"{', '.join(others)} and {last}" if len(others) < 3 else f"{len(others) + 1} methods"
    )
    return f"{what} on {found['scenario']}" if found["scenario"] else what


def _facts(found: dict[str, Any], histories: Sequence[History]) -> list[str]:
    clients = max(len(history.client_names) for history in histories)
    counts = {
        "seed": len(found["seeds"]),
        "round": found["rounds"],
        "group": len(found["methods"][0]["groups"]),
        "client": clients,
    }
    return [f"{n} {noun}{'s' * (n != 1)}" for noun, n in counts.items() if n]


def _notes_of(found: dict[str, Any], histories: Sequence[History]) -> dict[str, Any]:
    """What the captions say only when it applies."""
    several = any(len(method["seeds"]) > 1 for method in found["methods"])
    collaborating = (found["collaboration"] or {}).get("methods", ())
    undefined = any(method["fairness"]["mean"] is None for method in collaborating)
    kept = [
        f"{label} {100 * sum(shares) / len(shares):.0f}\u00a0%"
        for label, seeds in by_label(histories).items()
        if (shares := [r["kept"] for run in seeds.values() for r in run.records if r.get("kept") is not None])
    ]
    return {
        "averaged": found["averaged"],
        "first": found["methods"][0]["method"],
        "whiskers": " Whiskers: standard deviation over seeds." if several else "",
        "crosses": " Crosses: standard deviation over seeds." if several else "",
        "dashed": " Dashed: methods whose fairness is not defined." if undefined else "",
        "bands": " Bands: standard deviation over seeds." if several else "",
        "seed": " Drawn for the lowest seed." if several else "",
        "kept": f" Share of update entries kept, mean over rounds: {', '.join(kept)}." if kept else "",
    }


def _quarantined(histories: Sequence[History]) -> Iterator[tuple[str, int, str, str, str]]:
    """Label, seed, client, reason and rounds of everything the guard kept out."""
    for run in histories:
        rounds: dict[tuple[str, str], list[int]] = {}
        for record in run.records:
            for entry in record.get("quarantined", ()):
                name = str(entry.get("name") or entry.get("client", "?"))
                rounds.setdefault((name, str(entry.get("reason", "no reason was recorded"))), []).append(
                    record["round"]
                )
        for (name, reason), when in rounds.items():
            yield run.label, run.seed, name, reason, _spans(when)


def _spans(rounds: Sequence[int]) -> str:
    """`[3, 4, 5, 9]` as `3–5, 9`."""
    spans = [[t for _, t in run] for _, run in groupby(enumerate(rounds), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)


def _headers(histories: Sequence[History]) -> list[tuple[str, list[str]]]:
    """The header lines of the runs, those of several runs once: which runs, and the lines."""
    runs: dict[tuple[str, ...], list[str]] = {}
    for run in histories:
        if lines := tuple(str(line) for line in run.meta.get("header") or ()):
            runs.setdefault(lines, []).append(run.label)
    everyone = len(runs) == 1
    return [("" if everyone else ", ".join(dict.fromkeys(labels)), list(lines)) for lines, labels in runs.items()]


def _configurations(histories: Sequence[History]) -> tuple[list[tuple[str, str]], list[tuple[str, list[str]]]]:
    """Settings that all runs share, and those that differ: name, and one text per method."""
    runs = {
        label: [dict(_flat(run.meta.get("config") or {})) for run in seeds.values()]
        for label, seeds in by_label(histories).items()
    }
    common, differing = [], []
    for name in dict.fromkeys(name for configs in runs.values() for config in configs for name in config):
        texts = [", ".join(dict.fromkeys(config.get(name, "–") for config in configs)) for configs in runs.values()]
        if len(set(texts)) == 1:
            common.append((name, texts[0]))
        else:
            differing.append((name, texts))
    return common, differing


def _flat(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)


def _versions(histories: Sequence[History]) -> list[tuple[str, str]]:
    """Versions the runs recorded; where none did, those installed now."""
    found: dict[str, dict[str, None]] = {}
    for run in histories:
        for package, version in (run.meta.get("versions") or {}).items():
            found.setdefault(str(package), {})[str(version)] = None
    if not found:
        for package in ("equipoise", "torch", "numpy"):
            try:
                found[package] = {metadata.version(package): None}
            except metadata.PackageNotFoundError:
                continue
    return [(package, ", ".join(versions)) for package, versions in found.items()]


def svg(name: str, figure: Figure) -> str:
    """A figure as an SVG element that takes its font and its ink from the page, with ids of its own."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's fonts draw the text
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", file.getvalue(), flags=re.DOTALL)
    opening, drawing = re.search(r"<svg([^>]*)>(.*)", svg, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    box = re.search(r'viewBox="[^"]*"', opening).group()  # type: ignore[union-attr]
    drawing = drawing.replace("xlink:href", "href")
    drawing = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", drawing)
    drawing = re.sub(r"font-family: [^;\"]*; ?", "", drawing)
    drawing = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+|\s*\n", r"\1", path.group()), drawing)
    drawing = drawing.replace(drawings.INK, "currentColor").replace(drawings.FAINT, "var(--rule)")
    drawing = drawing.replace(drawings.PALETTE[0], "var(--blue)")
    return f'<svg role="img" aria-labelledby="caption-{name}" {box}>{drawing}'
