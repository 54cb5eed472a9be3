"""The trackers to which runs can be sent, and a run as they show it."""

import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from equipoise.federation.history import History
from equipoise.records.history import LEAST

FILES = ("config.toml", "manifest.json", "metrics.jsonl", "summary.json", "report.html")  # sent with a complete run
PROJECT = "equipoise"  # the experiment or project, where none is named


@dataclass(frozen=True)
class Tracked:
    """A run as a tracker shows it.

    Parameters
    ----------
    path : its directory.
    first : hash of its first record, by which a tracker knows it again.
    group : name of the comparison it belongs to; empty if it belongs to none.
    """

    path: Path
    first: str
    group: str

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """Its description, see :class:`equipoise.History`."""
        return History.from_run(self.path).meta

    @property
    def settings(self) -> dict[str, Any]:
        """Its configuration; of a run from Python what is known of it."""
        config = self.about.get("config") or {key: self.about.get(key) for key in ("method", "seed", "rounds")}
        return {key: value for key, value in config.items() if value is not None}

    @property
    def least(self) -> int:
        """How many test samples a number must be about to be sent."""
        return int(self.about.get("least_group") or LEAST)

    @property
    def at_sites(self) -> bool:
        """Whether the clients are sites that keep their data."""
        return bool(self.settings.get("engine") == "flower")

    @property
    def names(self) -> list[str]:
        """The names of the clients."""
        return [str(name) for name in self.about.get("client_names") or ()]

    @property
    def summary(self) -> dict[str, float]:
        """The numbers that summarise it, in percent."""
        return numbers(History.from_run(self.path).summary(), "summary/")

    @property
    def files(self) -> list[Path]:
        """What it has written for people."""
        return [self.path / name for name in FILES if (self.path / name).exists()]


class Sink(Protocol):
    """An open run of a tracker; ``begin`` is the first round that it does not have yet."""

    begin: int

    def log(self, t: int, values: Mapping[str, float]) -> None:
        """Send the numbers of round ``t``."""
        ...

    def close(self, run: Tracked, *, complete: bool) -> None:
        """Send the summary and the files of a complete run; nothing of one that still trains. Then end."""
        ...


class MLflow:
    """A run of MLflow: in the experiment of its comparison, below a run that stands for the comparison."""

    def __init__(self, run: Tracked, place: str) -> None:
        import mlflow

        self.client = mlflow.MlflowClient(place or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        existing = self.client.get_experiment_by_name(name)
        experiment = self.client.create_experiment(name) if existing is None else existing.experiment_id
        tags = {}
        self.open: list[str] = []
        if run.group:
            # its name may be nobody's business
            folder = hashlib.sha256(str(run.path.parent.resolve()).encode()).hexdigest()
            parent, _ = self._run(experiment, folder, run.group, {})
            tags = {"mlflow.parentRunId": parent.info.run_id}
            self.open.append(parent.info.run_id)
        entry, new = self._run(experiment, run.first, run.path.name, tags)
        self.id = entry.info.run_id
        self.open.append(self.id)
        if new:
            params = [mlflow.entities.Param(key, str(value)[:6000]) for key, value in run.settings.items()]
            self.client.log_batch(self.id, params=params)
        self.begin = int(entry.data.metrics.get("round", -1)) + 1

    def _run(self, experiment: str, key: str, name: str, tags: Mapping[str, str]) -> tuple[Any, bool]:
        """The run with a key, and whether it is new."""
        safe = key.replace("'", "")
        entries = self.client.search_runs([experiment], f"tags.`equipoise.run` = '{safe}'", max_results=1)
        if entries:
            return entries[0], False
        return self.client.create_run(experiment, tags={"equipoise.run": safe, **tags}, run_name=name), True

    def log(self, t: int, values: Mapping[str, float]) -> None:
        self._log(values, t)
        self._log({"round": t}, t)  # last: it says that all of the round are there

    def _log(self, values: Mapping[str, float], t: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        named = [Metric(re.sub(r"[^\w\-./ :]", "_", name), value, now, t) for name, value in values.items()]
        for k in range(0, len(named), 1000):  # as many as a request may hold
            self.client.log_batch(self.id, metrics=named[k : k + 1000])

    def close(self, run: Tracked, *, complete: bool) -> None:
        if not complete:
            return
        self._log(run.summary, 0)
        for path in run.files:
            self.client.log_artifact(self.id, str(path))
        for run_id in self.open:
            self.client.set_terminated(run_id)


class TensorBoard:
    """Event files of a run below a folder, which ``tensorboard --logdir`` shows."""

    def __init__(self, run: Tracked, place: str) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        base = run.path.parent.parent if run.group else run.path.parent
        folder = Path(place or base / "tensorboard") / run.group / f"{run.path.name}-{run.first[:8]}"
        events = EventAccumulator(str(folder), size_guidance={"scalars": 1}).Reload() if folder.exists() else None
        rounds = [e.step for e in events.Scalars("round")] if events and "round" in events.Tags()["scalars"] else []
        self.begin = max(rounds, default=-1) + 1
        self.writer = SummaryWriter(str(folder))
        if not self.begin:
            self.writer.add_text("configuration", "\n".join(f"    {k} = {v}" for k, v in run.settings.items()))

    def log(self, t: int, values: Mapping[str, float]) -> None:
        for name, value in {**values, "round": t}.items():
            self.writer.add_scalar(name, value, t)
        self.writer.flush()

    def close(self, run: Tracked, *, complete: bool) -> None:
        for name, value in run.summary.items() if complete else ():
            self.writer.add_scalar(name, value, self.begin)
        self.writer.close()


class WandB:
    """A run of Weights & Biases, in the group of its comparison."""

    def __init__(self, run: Tracked, place: str) -> None:
        import wandb

        self.run = wandb.init(
            project=place or os.environ.get("WANDB_PROJECT") or PROJECT,
            id=run.first,
            name=run.path.name,
            group=run.group or None,
            config=run.settings,
            resume="allow",
            reinit="create_new",
        )
        self.begin = int(self.run.step)

    def log(self, t: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, "round": t}, step=t)

    def close(self, run: Tracked, *, complete: bool) -> None:
        self.run.summary.update(run.summary if complete else {})
        self.run.finish()


class Trackio:
    """A run of Trackio, in the group of its comparison."""

    def __init__(self, run: Tracked, place: str) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        project, name = place or PROJECT, f"{run.path.name}-{run.first[:8]}"
        settings = {key: str(value) for key, value in run.settings.items()}
        last = SQLiteStorage.get_max_step_for_run(project, name)
        self.begin = -1 if last is None else last + 1
        self.run = trackio.init(project, name, run.group or None, config=settings, resume="allow", embed=False)

    def log(self, t: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, "round": t}, step=t)

    def close(self, run: Tracked, *, complete: bool) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[Tracked, str], Sink]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
}


def numbers(table: Mapping[str, Any], above: str = "") -> dict[str, float]:
    """Every finite number in nested tables, by its path: ``{"groups/photo/accuracy": 0.9}``."""
    flat: dict[str, float] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{above}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            flat[f"{above}{key}"] = float(value)
    return flat
