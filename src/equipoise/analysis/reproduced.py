"""The papers' figures that take a look into the trained models.

One of them is measured here: how steadily clients push the parameters of one layer one way, in windows of rounds (FedHEAL's Fig. 2).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.analysis.decomposition import Watcher, again, begun, decomposition, repeats, stored
from equipoise.analysis.landscape import landscape
from equipoise.core.maths import at_least
from equipoise.core.model import Model
from equipoise.engines.job import Answer, Job
from equipoise.federation.federation import Federation
from equipoise.federation.method import parse
from equipoise.federation.round import one_round
from equipoise.methods.fphl import agreement
from equipoise.report import analysis as draw
from equipoise.runs import directory as runs
from equipoise.system.files import write_atomically
from equipoise.system.grouping import grouped
from equipoise.system.own_code import short
from equipoise.system.suggestions import require_known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "consistency.json"  # what was measured of a run, in its directory
SHORT = 10  # rounds of the first and of the last window; the one between is of all rounds

Window = dict[str, Any]  # layer, first, end, agreement


def trace(fed: Federation, rounds: int, layer: str = "", on_round: Watcher | None = None) -> list[Window]:
    """Train a federation and count how the updates of one layer agree with those of the same window of rounds.

    The consistency of a parameter is that of Eq. 7 of Chen et al., CVPR 2024, at the last round of a window, with the window as
    its history.

    Parameters
    ----------
    fed : a federation before its first round.
    rounds : >= 1, planned and trained.
    layer : name of a tensor of the network; by default the one with most parameters.
    on_round : called with each round and its record.

    Returns
    -------
    For the first ten rounds, for all, and for the last ten: ``layer``, ``first`` and ``end`` (which is no longer part of it), and
    ``agreement``, for clients that took part n times the n + 1 numbers of update entries that agree with 0, 1, ..., n of them.

    Raises
    ------
    ValueError : no tensor has this name.
    """
    trial = begun(fed, rounds)
    part = _part(trial.model, layer)
    ends = dict.fromkeys([(0, min(SHORT, rounds)), (0, rounds), (max(rounds - SHORT, 0), rounds)])
    windows: list[Window] = [{"layer": part[0], "first": first, "end": end} for first, end in ends]
    counts: list[dict[int, tuple[Tensor, int]]] = [{} for _ in windows]  # by client: rises [n], rounds
    now: dict[int, Tensor] = {}

    def watching(job: Job) -> Iterator[Answer]:
        for answer in trial.engine(job):
            for row, x in zip(answer.rows, answer.trained, strict=False):
                now[job.ids[row]] = at_least(x[part[1]] - job.received[row][part[1]], 0).short()
            yield answer

    for t in range(rounds):
        now.clear()
        fed.progress, record = one_round(replace(trial, engine=watching), fed.progress, rounds)
        if on_round is not None:
            on_round(t, record)
        ups = {m: now[m] for m in record["ids"]}  # without those in quarantine
        for window, counted in zip(windows, counts, strict=True):
            for m, up in ups.items() if window["first"] <= t < window["end"] else ():
                rises, n = counted.get(m, (0, 0))
                counted[m] = (up + rises, n + 1)
            if t == window["end"] - 1:
                window["agreement"] = _agreement(ups, counted)
    return windows


def _part(model: Model, layer: str) -> tuple[str, slice]:
    """A tensor of the network by name, and its place in the vector."""
    sizes = dict(zip(model.names, model.layout, strict=True))
    name = layer or max(sizes, key=sizes.__getitem__)
    require_known("layer", sizes, name)
    start = sum(model.layout[: model.names.index(name)])
    return name, slice(start, start + sizes[name])


def _agreement(ups: dict[int, Tensor], counted: dict[int, tuple[Tensor, int]]) -> list[list[int]]:
    """The numbers of update entries of the clients present that agree with 0, 1, ..., n rounds, a list for each n."""
    counts: dict[int, Tensor] = {}
    for m, up in ups.items():
        rises, n = counted[m]
        agree = agreement(up[None], rises[None], rises.new_tensor([n]))
        counts[n] = counts.get(n, 0) + torch.bincount(agree.flatten(), minlength=n + 1)
    return [counts[n].tolist() for n in sorted(counts)]


def consistency(directory: str | Path, layer: str = "") -> list[Window]:
    """Train a run again and return the result of :func:`trace`; it is stored with the run and not measured again.

    Parameters
    ----------
    directory : of a run from the command line.
    layer : as in :func:`trace`.

    Raises
    ------
    ValueError : no run there, or no such layer. RunError : what is stored is damaged, or the repetition differs from the run.
    """
    path, config = Path(directory), runs.load(Path(directory))
    file, key = path / FILE, [runs.identity(config), layer]
    if windows := stored(file, "windows", "of", key):
        return windows
    windows = trace(again(config), config.rounds, layer, repeats(path))
    write_atomically(file, json.dumps({"of": key, "windows": windows}))
    return windows


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
    by_part = grouped((part, (row, paths)) for (part, row), paths in directories.items())
    made: dict[str, Figure] = {}
    how = {key: figure[key] for key in ("points", "grid", "draws", "span") if key in figure}
    for part, rows in by_part.items():
        (_, firsts), *_ = rows
        if figure["draw"] == "consistency":
            made[part] = draw.consistency([consistency(path, figure.get("layer", "")) for path in firsts])
        if figure["draw"] == "landscape":
            landscapes = landscape([paths[0] for _, paths in rows], figure["group"], **how)
            # An experiment that shares the run may call it otherwise.
            named = [replace(around, label=row) for (row, _), around in zip(rows, landscapes, strict=True)]
            made[f"{part}-line"] = draw.lines(named)
            if len(named[0].grid_at):
                made[f"{part}-plane"] = draw.planes(named)
    if figure["draw"] == "heterogeneity" and directories:
        made["heterogeneity"] = draw.heterogeneity(_skews(figure, directories))
    return made


def _skews(figure: Mapping[str, Any], directories: Mapping[tuple[str, str], Sequence[Path]]) -> Any:
    """A frame with the columns ``method, alpha, seed, round, local, shift, aggregation, total``, methods in their order."""
    import pandas as pd

    others = [str(parse(text)) for text in figure["try"]]
    rows: list[dict[str, Any]] = []
    for paths in directories.values():
        for path in paths:
            config = runs.load(path)
            of_run = {"alpha": float(config.scenario_options["alpha"]), "seed": config.seed}
            rows += [of_run | row for row in decomposition(path, figure["every"], others)]
    others = [*map(short, others)]
    order = list(dict.fromkeys([*(row["method"] for row in rows if row["method"] not in others), *others]))
    rows.sort(key=lambda row: order.index(row["method"]))
    return pd.DataFrame(rows)
