"""The report of one or several runs: one HTML file that needs nothing else."""

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

from equipoise.files import write_atomically
from equipoise.history import History
from equipoise.report import figures as drawings
from equipoise.report.table import (
    Comparison,
    by_label,
    caption,
    client_grid,
    comparison,
    grid,
    legend,
    statistics,
    tables,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS: Final = {
    "bars": "Accuracy on every group, mean over the last {averaged} evaluated rounds.{whiskers}",
    "convergence": "Average over the groups and worst group, round by round.{bands}",
    "spread": "Accuracy of the model each client predicts with, clients sorted from worst to best, on the test set of "
    "the client's own group.",
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
        Also write every figure as PDF and PNG into `<stem>-figures/` beside it.

    Raises
    ------
    ValueError
        There is no run, the scenarios differ, or two runs have the same label and seed.
    """
    path = Path(path)
    page = render(histories)
    if figures:
        drawings.save_all(histories, path.with_name(f"{path.stem}-figures"))
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
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("equipoise.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        title=_title(found),
        facts=_facts(found, histories),
        verdict=verdict(found),
        notes=found["notes"],
        measured=list(map(_measured, tables(found))),
        reference=found["methods"][0]["method"],
        clients=client_grid(found),
        figures=[
            (name, CAPTIONS[name].format(**notes), _svg(name, figure))
            for name, figure in drawings.draw_all(histories).items()
        ],
        quarantined=list(_quarantined(histories)),
        headers=_headers(histories),
        common=common,
        differing=differing,
        labels=list(by_label(histories)),
        versions=_versions(histories),
        today=date.today().isoformat(),
    )


def _measured(found: Comparison) -> dict[str, Any]:
    """What the page shows of one measure."""
    content, totals = grid(found), len(statistics(found))
    best = ["Best value of each column in bold."] if len(content.rows) > 1 else []
    explained, spread = legend(found), []
    if explained and explained[-1].startswith("±"):
        explained, spread = explained[:-1], explained[-1:]
    notes = found["notes"] if found["measure"] != "accuracy" else []  # those of the accuracy stand above
    return {
        "heading": f"{found['title']} on every group",
        "grid": content,
        "totals": totals,
        "caption": " ".join([caption(found), *explained, *best, *spread, *notes]),
        "differences": [
            (name, texts) for name, cells in content.rows if any(texts := [cell.difference for cell in cells[-totals:]])
        ],
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
    kept = [
        f"{label} {100 * sum(shares) / len(shares):.0f}\u00a0%"
        for label, seeds in by_label(histories).items()
        if (shares := [r["kept"] for run in seeds.values() for r in run.records if r.get("kept") is not None])
    ]
    return {
        "averaged": found["averaged"],
        "whiskers": " Whiskers: standard deviation over seeds." if several else "",
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


def _svg(name: str, figure: "Figure") -> str:
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
