"""Both losses of FedLD's decomposition against the label skew: the kind of its Fig. 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.analysis.decomposition import decomposition, measured
from equipoise.federation.method import parse
from equipoise.runs import directory as runs
from equipoise.runs.comparison import fitting, side_by_side
from equipoise.runs.configuration import RunConfig, RunError, configure
from equipoise.system.own_code import short

if TYPE_CHECKING:
    import pandas as pd

METHODS = (
    "fedavg",
    "principal",
    "fedgh",
    "margin",
    "fedld",
    "margin+fedgh",
)  # three aggregations, without and with margin
ALPHAS = (100.0, 10.0, 1.0, 0.1, 0.01)
SCENARIO = "digits-label-skew"


@dataclass(frozen=True)
class GridRun:
    """One run of the figure: FedAvg at a label skew with a seed, and where it is."""

    alpha: float
    seed: int
    config: RunConfig
    path: Path


def cells(base: Path, alphas: Sequence[float] = ALPHAS, seeds: int = 1, **choices: Any) -> list[GridRun]:
    """Every run of the figure, each started in its own directory unless it was before.

    Parameters
    ----------
    base : directory of the figure. alphas : Dirichlet concentrations, > 0. seeds : 0, 1, ..., seeds - 1.
    choices : fields of :class:`equipoise.runs.configuration.RunConfig`; ``scenario_options`` may not hold ``alpha``.
    """
    options = dict(choices.pop("scenario_options", {}))
    found = []
    for alpha in alphas:
        for seed in range(seeds):
            config = configure(
                "fedavg", SCENARIO, seed=seed, scenario_options={**options, "alpha": float(alpha)}, **choices
            )
            found.append(GridRun(float(alpha), seed, config, base / f"alpha{alpha:g}-seed{seed}"))
    for cell in found:  # once all are known to be possible
        runs.start(cell.config, cell.path)
    return found


def measure(
    found: Sequence[GridRun],
    methods: Sequence[str] = METHODS,
    *,
    every: int = 5,
    jobs: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Train every cell by FedAvg, each in its own process, and one round of every method from the same models.

    So the local models of ``fedavg``, ``principal`` and ``fedgh`` are the same, as in FedLD's figure ("in one FL round").
    Finished measurements are not repeated.

    Returns
    -------
    Columns ``method, alpha, seed, round, local, shift, aggregation, total``; one row per measured round.

    Raises
    ------
    RunError : some cells failed; the others are kept, and the same call resumes.
    """
    import pandas as pd

    names = list(dict.fromkeys(str(parse(method)) for method in methods))
    others = [text for text in names if text != "fedavg"]
    options = ["analyse", "decomposition", "--quiet", f"--every={every}", *(f"--try={text}" for text in others), "--"]
    waiting = [cell.path for cell in found if not measured(cell.path, every, others)]

    def progress(ended: int) -> None:
        if on_progress is not None:
            on_progress(len(found) - len(waiting) + ended, len(found))

    width = jobs or fitting([cell.config for cell in found])
    if failed := side_by_side({path: [*options, str(path)] for path in waiting}, width, progress):
        named = "\n".join(f"{path.name}: {reason}" for path, reason in failed.items())
        rest = "\nThe others are kept." if len(failed) < len(found) else ""
        raise RunError(f"{len(failed)} of {len(found)} runs failed.\n{named}{rest}")
    names = [*map(short, names)]
    rows: list[dict[str, Any]] = [
        {"alpha": cell.alpha, "seed": cell.seed, **row}
        for cell in found
        for row in decomposition(cell.path, every, others)
        if row["method"] in names
    ]
    rows.sort(key=lambda row: names.index(row["method"]))
    return pd.DataFrame(rows)
