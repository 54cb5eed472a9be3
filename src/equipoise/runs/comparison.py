"""Several runs at once: every method with every seed, side by side in a few processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from equipoise.core.settings import simulated
from equipoise.federation.history import History
from equipoise.records.directory import CHOSEN, CONDITIONS, ORDER
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.runs.plan import Cell, How, finish
from equipoise.system.files import write_atomically
from equipoise.system.seals import sealed_json

log = logging.getLogger(__name__)


def directories(base: Path, configs: Sequence[RunConfig]) -> list[Path]:
    """One run directory per configuration, inside ``base``."""
    return [base / f"{runs.slug(c.label)}-seed{c.seed}" for c in configs]


def compare(configs: Sequence[RunConfig], base: Path, **how: Unpack[How]) -> list[History]:
    """Run what is not finished yet, and return every history in the order of ``configs``.

    Parameters
    ----------
    configs : the runs; a finished one of the same settings is reused, a killed one continues.
    base : directory of the comparison.
    how : the runs are trained, see :class:`equipoise.runs.plan.How`.
    """
    if any((base / name).exists() for name in (CONDITIONS, CHOSEN)):
        raise RunError(f"{base} holds a benchmark, or a choice of settings. Choose another --name.")
    paths = directories(base, configs)
    cells = [Cell(path.name, config, path) for config, path in zip(configs, paths, strict=True)]
    for k, path in enumerate(paths):
        if path in paths[:k]:
            raise ValueError(f"The method {configs[k].label} is given twice. Name each once.")
    if simulated(configs[0]):
        runs.check(configs[0])
    if why := runs.assumed(configs[0]):
        log.warning("%s", why)
    begins: dict[str, RunConfig] = {}  # of each method the first seed, as of configs[0]
    for cell in cells:
        if not runs.finished(cell.folder):
            begins.setdefault(cell.config.label, cell.config)
    if begins:
        runs.check_networks([*begins.values()])
    for label, config in begins.items():
        for why in runs.doubts(config):
            log.warning("%s: %s", label, why)
    for cell in cells:
        runs.start(cell.config, cell.folder)
    write_atomically(base / ORDER, sealed_json({"runs": [path.name for path in paths]}))
    if failed := [outcome for outcome in finish(cells, **how) if outcome.why]:
        named = "\n".join(f"{outcome.cell.folder.name}: {outcome.why}" for outcome in failed)
        rest = f"\nThe others are complete, in {base}." * (len(failed) < len(paths))
        raise RunError(f"{len(failed)} of {len(paths)} runs failed.\n{named}{rest}")
    return [History.from_run(path) for path in paths]
