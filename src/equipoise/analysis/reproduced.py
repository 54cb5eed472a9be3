"""The papers' figures that take a look into the trained models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.analysis.consistency import consistency
from equipoise.analysis.decomposition import decomposition
from equipoise.analysis.landscape import landscape
from equipoise.federation.method import parse
from equipoise.report import analysis as draw
from equipoise.runs.directory import load
from equipoise.system.own_code import short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(figure: Mapping[str, Any], directories: Mapping[tuple[str, str], Sequence[Path]]) -> dict[str, Figure]:
    """The figures that an experiment's file asks for, by the name of their files.

    ``draw = "landscape"``: the loss on the test set ``group`` around the models of the first seed, in each part; ``points``,
    ``grid``, ``draws`` and ``span`` are those of :func:`equipoise.analysis.landscape`, and may be left out.
    ``draw = "heterogeneity"``: both losses of FedLD's decomposition in every ``every``-th round against the option ``alpha``
    of the scenarios, with one round of each method of ``try`` from the same models; one figure of all parts.
    ``draw = "consistency"``: of the parameters of one ``layer`` (the largest, if it is left out), in windows of rounds, in each part;
    for this the runs of the first row are trained once more.

    Parameters
    ----------
    figure : the table ``[figure]``.
    directories : of the finished runs, one per seed, by part and row.
    """
    if figure["draw"] == "landscape":
        made: dict[str, Figure] = {}
        how = {key: figure[key] for key in ("points", "grid", "draws", "span") if key in figure}
        for part in dict.fromkeys(where for where, _ in directories):
            first = {row: paths[0] for (where, row), paths in directories.items() if where == part}
            landscapes = landscape(list(first.values()), figure["group"], **how)
            # An experiment that shares the run may call it otherwise.
            named = [replace(around, label=row) for row, around in zip(first, landscapes, strict=True)]
            made[f"{part}-line"] = draw.lines(named)
            if len(named[0].grid_at):
                made[f"{part}-plane"] = draw.planes(named)
        return made
    if figure["draw"] == "consistency":
        firsts: dict[str, Sequence[Path]] = {}
        for (part, _), paths in directories.items():
            firsts.setdefault(part, paths)
        layer = figure.get("layer", "")
        return {part: draw.consistency([consistency(path, layer) for path in paths]) for part, paths in firsts.items()}
    if figure["draw"] == "heterogeneity" and directories:
        return {"heterogeneity": draw.heterogeneity(_skews(figure, directories))}
    return {}


def _skews(figure: Mapping[str, Any], directories: Mapping[tuple[str, str], Sequence[Path]]) -> Any:
    """A frame with the columns ``method, alpha, seed, round, local, shift, aggregation, total``, methods in their order."""
    import pandas as pd

    others = [str(parse(text)) for text in figure["try"]]
    rows: list[dict[str, Any]] = []
    for paths in directories.values():
        for path in paths:
            config = load(path)
            of_run = {"alpha": float(config.scenario_options["alpha"]), "seed": config.seed}
            rows += [of_run | row for row in decomposition(path, figure["every"], others)]
    others = [*map(short, others)]
    order = list(dict.fromkeys([*(row["method"] for row in rows if row["method"] not in others), *others]))
    rows.sort(key=lambda row: order.index(row["method"]))
    return pd.DataFrame(rows)
