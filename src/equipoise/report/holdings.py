"""Who has what, drawn: clients by classes, sizes and groups, and a few images; from what `equipoise.data.holdings` found."""

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from equipoise.privacy.suppression import enough, hidden, in_words, text_of
from equipoise.records.meta import Content
from equipoise.report import drawing
from equipoise.report.drawing import INK, PALETTE, SHORT, Axes, Figure, Vector
from equipoise.system.text import plural, span

ROWS: Final = 30  # clients with names of their own; of more, cells are drawn instead of circles
CLASSES: Final = 20  # of more, cells
Holdings = Content
Holders = Sequence[Content]  # clients, or test sets
Colours = Mapping[str, str]  # by group


def who_has_what(holdings: Holdings, least: int = 1) -> Figure:
    """Samples of every client by class, and in all; its colour is its group. Below, the same of the test sets.

    The area of a circle, or of many clients or classes the strength of a cell's colour, is the number of samples.

    Parameters
    ----------
    holdings : what `equipoise.data.holdings.holdings` found, and `classes`, names of the classes, if they have any.
    least : samples that a bar, a circle or a cell must be about; of fewer nothing is drawn.
    """
    blocks, n_classes = _blocks(holdings)
    groups = list(dict.fromkeys(holder["group"] for holder in holdings["clients"]))
    groups = groups if 1 < len(groups) <= len(PALETTE) else []
    heights = [1.0 if len(block) <= ROWS else 24 / len(block) for block in blocks.values()]
    total = sum(len(block) * height + 1 for block, height in zip(blocks.values(), heights, strict=True))
    figure, panels = drawing.panels(1 + bool(n_classes), columns=1 + bool(n_classes), height=0.145 * total + 0.2)
    left, right = panels[0], panels[-1]
    left.get_gridspec().set_width_ratios([3, 1][: len(panels)])  # type: ignore[union-attr]
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for (noun, block), height in zip(blocks.items(), heights, strict=True):
        end = top + height * len(block)
        at = np.arange(len(block), dtype=np.float64) * height + top + height / 2
        colours = {group: drawing.color(groups.index(group) if group in groups else 0) for group in map(_group, block)}
        if n_classes:
            _draw_classes(left, block, n_classes, at, colours, (end, top), least)
        _draw_sizes(right, block, at, colours, height, [] if top else groups, least)
        names = [(y, drawing.plain(holder["name"], SHORT)) for y, holder in zip(at.tolist(), block, strict=True)]
        ticks += names if len(block) <= ROWS else [((top + end) / 2, plural(len(block), noun))]
        # over the names, where the one panel is that of the samples
        x, side = (0, "left") if n_classes else (-0.02, "right")
        place = left.get_yaxis_transform()
        left.text(x, top - 0.1, f"{noun}s", size=7, color=INK, ha=side, va="bottom", transform=place)
        top = end + 1
    right.text(0, -0.1, "samples", size=7, color=INK, va="bottom", transform=right.get_yaxis_transform())
    left.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    left.set_ylim(top - 0.9, -0.1)
    right.set_xticks([])
    right.set_xlim(0, 1.5)
    for axes in panels:
        drawing.bare(axes)
    if n_classes:
        _name_classes(left, [str(name) for name in holdings.get("classes") or range(n_classes)])
    return drawing.legend(figure, right, groups)


def _blocks(holdings: Holdings) -> tuple[dict[str, Holders], int]:
    """By what they are the clients and the test sets, if any; and how many classes their samples have."""
    held = {"client": holdings["clients"], "test set": holdings["tests"]}
    blocks = {noun: holders for noun, holders in held.items() if holders}
    return blocks, max(len(holder["counts"] or ()) for block in blocks.values() for holder in block)


def _name_classes(axes: Axes, classes: Sequence[str]) -> None:
    """The axis of the classes, with their names where they are few."""
    shown = [drawing.plain(name, SHORT) for name in classes]
    if len(classes) <= CLASSES:
        drawing.names_below(axes, range(len(classes)), shown, sum(map(len, shown)) > 28)
    axes.set_xlim(-0.6, len(classes) - 0.4)
    drawing.labels(axes, "class")


def _draw_classes(
    axes: Axes, block: Holders, n_classes: int, at: Vector, colours: Colours, ends: tuple[float, float], least: int
) -> None:
    """Samples by class at heights `at`: circles, or cells between both ends where there are many."""
    from matplotlib.colors import to_rgba

    table = np.array([holder["counts"] or [0] * n_classes for holder in block], dtype=np.float64)
    people = np.array([holder.get("people_of_class") or holder["counts"] or [0] * n_classes for holder in block])
    table[~enough(people, least)] = 0
    share = table / table.max(initial=1)
    if len(block) <= ROWS and n_classes <= CLASSES:
        rows, columns = share.nonzero()
        area = (72 * min(0.115, 1.5 / n_classes)) ** 2  # points
        of_rows = [colours[_group(block[row])] for row in rows]
        axes.scatter(columns, at[rows], area * share[rows, columns], of_rows, linewidths=0)
    else:
        cells = np.array([[to_rgba(colours[_group(holder)])] * n_classes for holder in block])
        cells[..., 3] = np.sqrt(share)
        axes.imshow(cells, aspect="auto", interpolation="none", extent=(-0.5, n_classes - 0.5, *ends))
    for y, holder in zip(at, block, strict=True):
        if len(block) <= ROWS and holder["counts"] is None:
            axes.text((n_classes - 1) / 2, y, "not known", size=6.5, color=INK, ha="center", va="center")


def _draw_sizes(
    axes: Axes, block: Holders, at: Vector, colours: Colours, height: float, labelled: Collection[str], least: int
) -> None:
    """Bars of the samples in all at heights `at`, by the names of groups, with their numbers where there are few."""
    named = len(block) <= ROWS
    names = np.array([*map(_group, block)])
    sizes = np.array([holder["size"] for holder in block])
    unshown = unsaid(block, least)
    sizes[np.array([holder["name"] in unshown for holder in block])] = 0
    shown = sizes / max(sizes.max(), 1)
    for name, colour in colours.items():
        rows = np.flatnonzero(names == name)
        label = drawing.plain(name) if name in labelled else None
        axes.barh(at[rows], shown[rows], (0.7 if named else 1) * height, color=colour, label=label)
    for row in range(len(block)) if named else [int(sizes.argmax())]:
        axes.text(shown[row] + 0.05, at[row], size(block[row], unshown, least), size=6.5, color=INK, va="center")


def unsaid(holders: Holders, least: int) -> set[str]:
    """The names of clients, or test sets, of which must not be shown how many samples they have, see `equipoise.privacy.suppression.hidden`."""
    return hidden({str(holder["name"]): int(holder.get("people") or holder["size"]) for holder in holders}, least)


def size(holder: Mapping[str, Any], unshown: Collection[str], least: int) -> str:
    """How many samples a client or a test set has; that they are about too few people, or a dash where they would tell how many another has."""
    few = not enough(int(holder.get("people") or holder["size"]), least)
    return text_of(None if holder["name"] in unshown else holder["size"], least, few=few)


def size_range(holders: Holders, least: int) -> str:
    """How many samples clients have, from the fewest to the most; empty if one of these numbers would tell how many another has."""
    unshown = unsaid(holders, least)
    ends = [choose(holders, key=lambda row: row["size"]) for choose in (min, max)]
    if any(row["name"] in unshown and enough(int(row.get("people") or row["size"]), least) for row in ends):
        return ""
    return span(*(in_words(row["size"], least) for row in ends))


def _group(holder: Content) -> str:
    """The group of a client, or the name of a test set."""
    return str(holder.get("group", holder["name"]))


def example_images(holdings: Holdings) -> Figure:
    """A few images of every group of clients, a row each."""
    from PIL import Image

    strips = holdings["examples"]
    figure, panels = drawing.panels(len(strips), height=0.45)
    for axes, (group, text) in zip(panels, strips.items(), strict=True):
        axes.imshow(np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))), interpolation="none")
        axes.set_anchor("W")
        axes.set_axis_off()
        axes.set_title(drawing.plain(group), size=7, color=INK, loc="left", pad=2)
    return figure


def sentence(holdings: Holdings, classes: bool = True, least: int = 1) -> str:
    """What `who_has_what` shows, in words; ``classes``: whether samples have such. No number of samples is below ``least``."""
    clients = holdings["clients"]
    sizes = size_range(clients, least)
    text = f"{plural(len(clients), 'client')}{f' with {sizes} samples each' * bool(sizes)}"
    counts = [client["counts"] for client in clients if client["counts"]]
    classes_held = ""
    if counts:
        numbers = [sum(n > 0 for n in row) for row in counts]
        classes_held = f", of {span(min(numbers), max(numbers))} of {len(counts[0])} classes"
    away = sum(client["counts"] is None for client in clients)
    unknown = f" The classes of {plural(away, 'client')} are not known here." * (classes and away > 0)
    return f"{text}{classes_held}.{unknown}"


def marks(holdings: Holdings, least: int = 1) -> str:
    """What the circles and cells of `who_has_what` mean, of those that it draws, and that it draws none of fewer samples than ``least``."""
    blocks, n_classes = _blocks(holdings)
    circles = {len(block) <= ROWS and n_classes <= CLASSES for block in blocks.values() if n_classes}
    numbers = [n for block in blocks.values() for holder in block for n in (holder["size"], *(holder["counts"] or ()))]
    small = any(n > 0 and not enough(n, least) for n in numbers)
    return (
        " Circles: the area is the number of samples." * (True in circles)
        + " Cells: the stronger the colour, the more samples." * (False in circles)
        + f" Of fewer than {least} samples nothing is drawn." * small
    )
