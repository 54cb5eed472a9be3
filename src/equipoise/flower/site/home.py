"""The model that a site predicts with, as a bundle: the site writes it at the end of a run, and its people take it."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from equipoise.bundle import files
from equipoise.bundle.saving import save
from equipoise.core.rule import State
from equipoise.core.task import Regression
from equipoise.data.holdings import holdings
from equipoise.data.samples import loaded
from equipoise.federation.taking import trained
from equipoise.flower.site.site import Site
from equipoise.flower.site.store import BUNDLE, MODEL, NO_BUNDLE
from equipoise.records.meta import Meta
from equipoise.system.files import write_atomically
from equipoise.system.own_code import short
from equipoise.system.suggestions import some

log = logging.getLogger(__name__)


def keep_bundle(site: Site, vector: Tensor, t: int, rounds: int, server: Sequence[State]) -> None:
    """Store the model ``vector`` [G] after ``t`` of ``rounds`` rounds as a bundle, with what it does on the site's own test rows.

    ``server`` are the states by which rules decide.

    Why it cannot be a bundle, if it cannot, is kept in its place.
    """
    folder, why = site.store.directory / BUNDLE, ""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that went on
    try:
        trial, tests, task = site.trial, site.shown, site.trial.model.task
        meta: Meta = {
            "method": short(str(trial.method)),
            "seed": trial.settings.seed,
            "rounds": rounds,
            "client_names": list(trial.names),
            "measures": list(tests.measures),
            "classes": list(site.task.classes or map(str, range(trial.setup.n_classes))),
            "least_group": site.least,
            "positive": str(site.run_config.get("positive") or "") or None,
            "header": list(site.doubts),
            "holdings": holdings(trial.names, None, trial.data, tests.sets, trial.setup.n_classes),
        }
        if isinstance(task, Regression):
            meta |= {"task": task.name, "unit": task.unit}
        if site.attributes:
            meta["attributes"] = {name: list(values) for name, values in site.attributes.items()}
        rows, name, data = loaded(trial.data[0]), trial.names[0], site.task.about
        of_site = trained(trial, vector, t, tests, meta, samples=rows, client=name, data=data, server=server)
        save(folder, of_site, name=files.KEPT)
        for path in (folder, *folder.rglob("*")):  # they have numbers about the site's own people
            path.chmod(0o700 if path.is_dir() else 0o600)
    except (OSError, ValueError) as error:
        why = str(error)
    except Exception as error:  # of the user's network: the model itself is stored
        log.exception("no bundle could be made of the model of this site")
        why = f"{type(error).__name__}; the site's log has more."
    write_atomically(site.store.directory / NO_BUNDLE, why, private=True)


def take(states: str | Path, folder: str | Path, *, run: str | None = None) -> str:
    """Copy the bundle of the model that a site predicts with, its own where the method gives it one.

    Parameters
    ----------
    states : the ``state-dir`` of the site's node config.
    folder : a new one.
    run : the name of the run, where the site took part in several; where several sites share the folder, ``RUN/SITE``.

    Returns
    -------
    The name of the run.

    Raises
    ------
    ValueError : there is no model, there are several, or it was not a bundle's.
    """
    base = Path(states)
    kept = sorted(base.glob(f"*/*/{MODEL}"), key=lambda path: path.stat().st_mtime)
    sites = {path.parent.relative_to(base).as_posix(): path.parent for path in kept}
    chosen = [name for name in sites if run is None or run in (name, name.partition("/")[0])]
    if not sites:
        raise ValueError(
            f"{base} holds no model. Give the state-dir of the site's node config; a site gets its model at the end of a run."
        )
    if len(chosen) != 1:
        runs = {name.partition("/")[0]: name for name in sites}
        names = [*(runs if len(runs) == len(sites) else sites)]
        asked = (
            f"--run {run}: not the name of one of them" if run is not None else "Say which one, the newest is the last"
        )
        raise ValueError(
            f"{base} holds the models of {len(sites)} runs: {some(names, 20)}. {asked}: --run {names[-1]}."
        )
    (name,) = chosen
    if not (sites[name] / BUNDLE).is_dir():
        reason = sites[name] / NO_BUNDLE
        why = reason.read_text(encoding="utf-8") if reason.exists() else "An earlier Equipoise stored it."
        raise ValueError(f"{sites[name]} has the weights, {MODEL}, and no bundle of them. {why}")
    files.take(sites[name] / BUNDLE, Path(folder))
    return name
