"""Draw the figures of the pages of results from the tables in docs/data.

Run ``python tools/draw_results.py docs/assets``.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from stored import MARKS, Rows, axes, stored

COLOURS = {"holds": "#0072b2", "does not hold here": "#d55e00", "cannot be told": "#888888"}
SHAPES = {"holds": "o", "does not hold here": "X", "cannot be told": "D"}
NUMBER = r"[+−]?[\d.]+"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\]")
Mark = tuple[str, tuple[float, float, float], str]  # label, mean and ends of the interval, verdict


def interval(text: str) -> tuple[float, float, float]:
    """The mean of a difference, and the ends of its interval."""
    match = INTERVAL.search(text)
    assert match is not None, text
    mean, low, high = (float(part.replace("−", "-")) for part in match.groups())
    return mean, low, high


def draw(place: Axes, marks: Iterable[Mark], title: str, unit: str = "points", labels: Iterable[str] = ()) -> None:
    """One line per label, from above, with a dot and its interval for each of its differences; ``labels`` come first."""
    by_label: dict[str, list[Mark]] = {label: [] for label in labels}
    for mark in marks:
        by_label.setdefault(mark[0], []).append(mark)
    for number, of_label in enumerate(by_label.values()):
        for k, (_, (mean, low, high), verdict) in enumerate(of_label):
            y = number + (k - (len(of_label) - 1) / 2) * 0.7 / len(of_label)
            place.plot([low, high], [y, y], color=COLOURS[verdict], linewidth=1.3)
            place.plot([mean], [y], SHAPES[verdict], color=COLOURS[verdict], markersize=4)
    place.axvline(0, color="black", linewidth=0.8)
    place.set_yticks(range(len(by_label)), [*by_label], fontsize=7)
    place.set_ylim(len(by_label) - 0.4, -0.6)
    place.set_title(title, fontsize=9, loc="left")
    place.set_xlabel(unit, fontsize=8)
    place.tick_params(axis="x", labelsize=7)
    place.grid(axis="y", color="#eeeeee")
    place.spines[["top", "right", "left"]].set_visible(False)


def legend(figure: Figure, titles: Iterable[str] = MARKS) -> None:
    """The verdicts by colour and shape, below all panels."""
    handles = [
        Line2D([], [], color=COLOURS[verdict], marker=SHAPES[verdict], markersize=5, label=title)
        for verdict, title in zip(MARKS, titles, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def of_claims(rows: Rows, label: Iterable[str], skipped: str = "nats") -> list[Mark]:
    """The marks of a table of claims, without those in a unit that is not points."""
    label = [*label]
    marks = []
    for _, where, ran, difference, _, verdict in rows[1:]:
        key = axes(ran, where)
        if skipped not in key["measure"]:
            key["measure"] = key["measure"].partition(":")[0]
            marks.append((", ".join(key[name] for name in label), interval(difference), verdict.partition(":")[0]))
    return marks


def claims() -> Figure:
    """The papers' claims on embedded data."""
    figure = Figure(figsize=(8, 9.5), layout="constrained")
    places = figure.subplots(2, 2, height_ratios=(24, 16))
    draw(places[0, 0], of_claims(stored("claims/fedheal"), ["what", "measure"]), "FedHEAL: digits of four domains")
    draw(places[0, 1], of_claims(stored("claims/fedism"), ["what", "measure"]), "FedISM+: noisy images")
    draw(places[1, 0], of_claims(stored("claims/fedld"), ["what"]), "FedLD: label skew, four settings")
    draw(
        places[1, 1],
        of_claims(stored("claims/fedsac"), ["what", "measure"]),
        "FedSAC: rewards",
        "points; logarithmic beyond 10",
    )
    places[1, 1].set_xscale("symlog", linthresh=10)
    places[1, 1].set_xlim(-140, 60)
    places[1, 1].set_xticks(ticks := [-100, -30, -10, 0, 10, 30], [*map(str, ticks)])
    legend(figure)
    return figure


def real_data() -> Figure:
    """FedHEAL on photographs and handwriting."""
    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    for place, part, title in zip(
        figure.subplots(1, 2),
        ("office", "digits"),
        ("Office-Caltech10, 64 pixels", "MNIST and USPS, 16 pixels"),
        strict=True,
    ):
        draw(place, of_claims(stored(f"claims/fedheal-real {part} claims"), ["what", "measure"]), title)
    figure.axes[1].tick_params(labelleft=False)
    legend(figure)
    return figure


def benchmarks() -> Figure:
    """The worst group of tuned methods, compared with tuned FedAvg's."""
    head, *rows = stored("fair-small worst")
    figure = Figure(figsize=(7.8, 4.4), layout="constrained")
    for place, number in zip(figure.subplots(1, len(head) - 1, sharey=True), range(1, len(head)), strict=True):
        marks = []
        for row in rows:
            if not INTERVAL.search(row[number]):
                continue  # the reference, or a failure
            mean, low, high = interval(row[number])
            significant = float(row[number].strip("*").rpartition(" ")[2]) < 0.05
            verdict = "cannot be told" if not significant else "holds" if mean > 0 else "does not hold here"
            marks.append((row[0], (mean, low, high), verdict))
        labels = [row[0] for row in rows if any(map(INTERVAL.search, row))]
        draw(place, marks, head[number], labels=labels)
    legend(figure, ("better than FedAvg (p < .05)", "worse (p < .05)", "no difference shown"))
    return figure


def defaults() -> Figure:
    """The accuracy of every method at its defaults, by scenario."""
    head, *rows = stored("defaults")
    figure = Figure(figsize=(7.6, 3), layout="constrained")
    place = figure.subplots()
    for number, _ in enumerate(head[1:]):
        shown = {row[0].strip("`"): row[number + 1] for row in rows if row[number + 1] != "–"}
        for name, cell in shown.items():
            verdict = "does not hold here" if "†" in cell else "holds"
            x = float(cell.strip("†"))
            place.plot([x], [number], SHAPES[verdict], color=COLOURS[verdict], alpha=0.45, markersize=6)
            if name in ("fedavg", "centralised"):
                place.annotate(name, (x, number), (0, 7), textcoords="offset points", fontsize=6.5, ha="center")
    place.set_yticks(range(len(head) - 1), [name.strip("`") for name in head[1:]], fontsize=8)
    place.set_ylim(len(head) - 1.4, -0.7)
    place.set_xlim(0, 100)
    place.set_xlabel("accuracy of the models that clients predict with, in percent; chance is 10", fontsize=8)
    place.axvline(10, color="black", linewidth=0.8, linestyle=":")
    place.grid(axis="y", color="#eeeeee")
    place.spines[["top", "right", "left"]].set_visible(False)
    titles = {"holds": "learns", "does not hold here": "only guesses"}
    handles = [Line2D([], [], color=COLOURS[v], marker=SHAPES[v], linestyle="", label=t) for v, t in titles.items()]
    place.legend(handles=handles, loc="lower right", fontsize=7, frameon=False)
    return figure


def main(folder: str) -> None:
    for name, figure in (
        ("claims", claims()), ("real-data", real_data()), ("benchmarks", benchmarks()), ("defaults", defaults()),
    ):  # fmt: skip
        path = Path(folder) / f"{name}.png"
        figure.savefig(path, dpi=140, metadata={"Software": None})
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
