"""What all figures share: size, colours, marks, axes, legends, and how they are written to files."""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.measures import Measure
from equipoise.metrics.statistics import half_interval
from equipoise.report.formatting import FAILED, lines
from equipoise.report.statistics import Comparison, Run
from equipoise.system.files import open_regular, write_atomically

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# the names of types of Matplotlib, which takes long to import
Axes: TypeAlias = "matplotlib.axes.Axes"
Figure: TypeAlias = "matplotlib.figure.Figure"
T = TypeVar("T")
Vector = NDArray[np.float64]

Curve = Mapping[int, float]  # values by round
Style = dict[str, Any]  # how something is drawn: keyword arguments of Matplotlib
ANY: Final = (-np.inf, np.inf)
RC = Path("matplotlibrc")  # settings of matplotlib
WIDTH: Final = 3.4  # inches: one column of a two-column paper
FULL: Final = 46  # characters of a name that fit this width
SHORT: Final = 22  # characters of a name beside an axis
INK: Final = "#222222"
FAINT: Final = "#dddddd"
# Okabe and Ito (2008), without yellow and black: distinct for colour-blind readers, on white and on dark grey.
PALETTE: Final = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c8c")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final = ("-", "--", ":", "-.")


def save(
    figures: Mapping[str, Figure], directory: str | os.PathLike[str], formats: Sequence[str] = ("pdf", "png")
) -> list[Path]:
    """Write figures by name, fit for a paper and the same bytes every time; return the paths.

    Parameters
    ----------
    figures : by the name of their files.
    directory, formats : as in `save_all`.
    """
    import matplotlib

    directory = Path(directory)
    paths = []
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "equipoise"}):
        for name, figure in figures.items():
            for ending in formats:
                date = {"pdf": "CreationDate", "svg": "Date"}.get(ending)
                drawn = io.BytesIO()
                figure.savefig(drawn, format=ending, dpi=300, metadata={date: None} if date else None)
                paths.append(write_atomically(directory / f"{name}.{ending}", drawn.getvalue()))
    return paths


def point(axes: Axes, x: Vector, y: Vector, label: str, i: int) -> None:
    """A method's mean over its seeds, with crosses of 95 % intervals over them if there are several."""
    ends: Style = {"xerr": half_interval(x), "yerr": half_interval(y)} if len(x) > 1 else {}
    axes.errorbar(x.mean(), y.mean(), **ends, markersize=5, elinewidth=0.8, **mark(label, i))


def mark(label: str, i: int) -> Style:
    """How the marks of the i-th method look: its colour, another shape for each, hollow when the palette repeats."""
    fill = "none" if i // len(PALETTE) % 2 else "full"
    look = {"color": color(i), "marker": MARKERS[i % len(MARKERS)], "fillstyle": fill}
    return {**look, "linestyle": "", "label": plain(label)}


def band(axes: Axes, x: Any, low: Any, high: Any, i: int, alpha: float = 0.15) -> None:
    """From the lowest to the highest of what a curve in the colour of the i-th method is the mean of."""
    axes.fill_between(x, low, high, color=color(i), alpha=alpha, linewidth=0).set_gid(f"m{i}")


def line(axes: Axes, x: Any, y: Any, label: str, i: int, **style: Any) -> None:
    """A curve in the colour and dash of the i-th method; a mark where it is one point."""
    look = {"color": color(i), "linestyle": dash(i), "linewidth": 1.4, "label": plain(label)}
    axes.plot(x, y, **{**look, "marker": "o" if len(x) == 1 else None, "markersize": 3, **style})


def mean_line(
    axes: Axes,
    curves: Sequence[Curve],
    label: str,
    i: int,
    ends: Sequence[float] = ANY,
    alpha: float = 0.15,
    **look: Any,
) -> None:
    """The mean of the curves of several seeds, and as a band its 95 % interval, within ``ends``."""
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[t] for t in rounds] for curve in curves])  # [seeds, R]
    mean = values.mean(axis=0)
    line(axes, rounds, mean, label, i, **look)
    if len(values) > 1:
        low, high = ((mean + sign * half_interval(values)).clip(*ends) for sign in (-1, 1))
        band(axes, rounds, low, high, i, alpha)


def labels(panel: Axes | Figure, x: str = "", y: str = "") -> None:
    """What the axes of a panel, or those of all panels of a figure, show."""
    for axis, text in (("x", x), ("y", y)):
        if text:
            write = getattr(panel, f"set_{axis}label", None) or getattr(panel, f"sup{axis}label")
            write(text, size=8, color=INK)


def title(axes: Axes, label: str, right: str = "") -> None:
    """What a panel shows; a long label takes several lines, for which the figure grows."""
    from matplotlib.figure import Figure

    spec = axes.get_subplotspec()
    columns = 1 if spec is None else spec.get_gridspec().ncols
    text = plain(label, FULL // columns - len(right))
    axes.set_title(text, size=8, color=INK, loc="left")
    axes.set_title(right, size=8, color=INK, loc="right")
    if isinstance(figure := axes.get_figure(), Figure):
        figure.set_figheight(figure.get_figheight() + 0.13 * text.count("\n"))


def beyond(axes: Axes, x: ArrayLike, y: ArrayLike, where: ArrayLike, marker: str, i: int) -> None:
    """Triangles on an edge of the panel, where something lies beyond it."""
    out = np.asarray(where, dtype=np.bool_)
    across, along = (np.broadcast_to(np.asarray(places, dtype=np.float64), out.shape)[out] for places in (x, y))
    look: Style = {"color": color(i), "marker": marker, "markersize": 4, "linestyle": "", "clip_on": False}
    for line in axes.plot(across, along, zorder=5, **look) if out.any() else ():
        line.set_in_layout(False)


def panels(
    titles: int | Sequence[str], *, height: float, columns: int = 1, sharex: bool = False, sharey: bool | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure of one column's width with panels of `height` inches; those side by side have one scale unless told otherwise.

    Parameters
    ----------
    titles : of the panels; or of panels without titles, how many there are.
    """
    if RC.exists():  # in the current folder, which others may have made: it can have text written by programs
        open_regular(RC).close()
        import matplotlib

        matplotlib.rcdefaults()
    from matplotlib.figure import Figure

    titles = [""] * titles if isinstance(titles, int) else titles
    n = len(titles)
    rows = -(-n // columns)
    figure = Figure(figsize=(WIDTH, rows * height + 0.35), layout="constrained")
    sharey = columns > 1 if sharey is None else sharey
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    for axes in grid.flat[n:]:
        axes.remove()
    used = list(grid.flat[:n])
    setattr(figure, "_repr_png_", partial(_png, figure))  # noqa: B010 (by which a notebook shows it, without pyplot)
    for axes, text in zip(used, titles, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set(color=INK, linewidth=0.6)
        axes.tick_params(labelsize=7, width=0.6, length=2.5, color=INK, labelcolor=INK)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        if text:
            title(axes, text)
    return figure, used


def plane(height: float) -> tuple[Figure, Axes]:
    """A figure whose one panel shows a number against another, with lines from both sides."""
    figure, (axes,) = panels(1, height=height)
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.margins(0.08)
    return figure, axes


def bare(axes: Axes) -> None:
    """A panel without lines and ticks of its axes."""
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def names_below(axes: Axes, at: Sequence[float], names: Sequence[str], crowded: bool) -> None:
    """Names at places of the axis below, turned if there is little room."""
    turned: Style = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(at, names, **(turned if crowded else {}))


def logarithmic(axes: Axes, values: Vector) -> bool:
    """Whether values differ by a factor of 100; if so, the scale of the panel becomes logarithmic."""
    wide = bool(0 < 100 * values.min(initial=math.inf) <= values.max(initial=0))
    if wide:
        axes.set_yscale("log")
    return wide


def upright_grid(axes: Axes) -> None:
    """Lines from below instead of from the side, for bars and intervals that lie."""
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT, linewidth=0.5)


def rows(axes: Axes, names: Sequence[str], edge: float = 0.5) -> None:
    """A panel of lying intervals: a name per row beside it, from above."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 1 + edge, -edge)
    axes.tick_params(axis="y", length=0)
    upright_grid(axes)


def _png(figure: Figure) -> bytes:
    figure.savefig(file := io.BytesIO(), format="png", dpi=140)
    return file.getvalue()


def whole_numbers(axes: Axes) -> None:
    """Ticks of the axis below at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))


def legend(figure: Figure, axes: Axes, labels: Sequence[str]) -> Figure:
    """The figure with one legend above all panels, in as many columns as fit the width; none for a single name."""
    if len(labels) < 2:
        return figure
    handles, names = axes.get_legend_handles_labels()
    longest = max(len(line) for label in labels for line in lines(label, FULL))
    columns = max(1, min(len(names), int((WIDTH - 0.1) / (0.45 + 0.062 * longest))))
    more = sum(name.count("\n") for name in names)
    figure.set_figheight(figure.get_figheight() + 0.16 * -(-len(names) // columns) + 0.13 * more)
    look: dict[str, Any] = {"frameon": False, "labelcolor": INK, "handlelength": 1.4, "columnspacing": 1.2}
    figure.legend(handles, names, loc="outside upper center", ncols=columns, fontsize=7.5, **look)
    return figure


def plain(text: str, width: int = FULL) -> str:
    """A name as plain text: matplotlib reads dollars as mathematics and hides labels that start with an underscore."""
    return (" " if text.startswith("_") else "") + "\n".join(lines(text, width)).replace("$", r"\$")


def height(names: Sequence[str]) -> float:
    """Inches that the highest of some names beside an axis takes; 0 if each is one line."""
    most = max(name.count("\n") for name in names)
    return 0.13 * (most + 1) if most else 0.0


def color(i: int) -> str:
    """Colour of the i-th method, from 0; the palette repeats."""
    return PALETTE[i % len(PALETTE)]


def dash(i: int) -> str:
    """Line style of the i-th method, from 0: another when the palette repeats."""
    return DASHES[i // len(PALETTE) % len(DASHES)]


def axis_ends(measure: Measure) -> tuple[float | None, float | None]:
    """The ends of an axis that shows every possible value of a measure; None where it has no end."""
    low, high = (end if math.isfinite(end) else None for end in measure.ends)
    return low, high


def runs_with(compared: Comparison, has: Callable[[Run], bool], data: str) -> dict[str, list[Run]]:
    """Runs that have the data of a figure, by label; one with a run that failed is marked."""
    runs = {label + FAILED * any(run.failure for run in own): own for label, own in compared.runs_with(has).items()}
    if not runs:
        raise ValueError(f"this figure shows {data}, which no record of {', '.join(compared.runs)} holds.")
    return runs


def numbered(comparison: Comparison, by_method: Mapping[str, T]) -> Iterator[tuple[int, str, T]]:
    """Each of some methods with its number among all: colours, dashes and marks are the same in every figure, also in those that show only some."""
    every = list(comparison.runs)
    return ((every.index(label.removesuffix(FAILED)), label, value) for label, value in by_method.items())


def svg(name: str, figure: Figure, methods: Sequence[str] = ()) -> str:
    """A figure as an SVG element with the font and the ink of the page, and with unique ids; what shows a method has its number."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file = io.StringIO()
    for axes in figure.axes:
        named: list[Any] = [*axes.lines, *axes.containers]
        for artist in named:
            if (label := str(artist.get_label()).removesuffix(FAILED)) in methods:
                for part in artist.get_children() or [artist]:
                    part.set_gid(f"m{methods.index(label)}")
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
    drawn = re.sub(r'\bid="m(\d+)"', r'data-m="\1"', drawn)
    drawn = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", drawn)
    drawn = re.sub(r"font-family: [^;\"]*; ?", "", drawn)
    drawn = re.sub(r'\bd="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+|\s*\n", r"\1", path.group()), drawn)
    drawn = drawn.replace(INK, "currentColor").replace(FAINT, "var(--rule)")
    drawn = drawn.replace(PALETTE[0], "var(--blue)")
    return f'<svg role="img" aria-labelledby="caption-{name}" {box}>{drawn}'
