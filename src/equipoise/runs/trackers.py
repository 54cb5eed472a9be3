"""The trackers to which runs can be sent, and a run as they show it."""

import hashlib
import math
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from equipoise.federation.history import History

LONG = 100  # signs of a name; MLflow takes 250 of a whole metric
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
    def begun(self) -> History:
        """What it has recorded by now, with its description."""
        return History.from_run(self.path)

    @property
    def settings(self) -> dict[str, Any]:
        """Its configuration, of a run from Python what is known of it; and long names, by their parts of metrics."""
        about, names = self.begun.meta, (*self.begun.client_names, *self.begun.groups)
        config = about.get("config") or {key: about.get(key) for key in ("method", "seed", "rounds")}
        long = {part(name): name for name in names if len(escaped(name)) > LONG}
        return {key: value for key, value in {**config, "long_names": long or None}.items() if value is not None}

    @property
    def summary(self) -> dict[str, float]:
        """The numbers that summarise it, in percent."""
        return numbers(History.from_run(self.path).summary(), "summary/")

    @property
    def files(self) -> list[Path]:
        """What it has written for people."""
        return [self.path / name for name in FILES if (self.path / name).exists()]


class Sink(Protocol):
    """An open run of a tracker; ``begin`` is the first round that it does not have yet, which the sender counts on."""

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
        self._log({**values, "round": t}, t)  # last, as only a round that has it is complete

    def _log(self, values: Mapping[str, float], t: int) -> None:
        from mlflow.entities import Metric

        named = [Metric(name, value, int(1000 * time.time()), t) for name, value in values.items()]
        for k in range(0, len(named), 1000):  # as many as a request may hold
            self.client.log_batch(self.id, metrics=named[k : k + 1000])

    def close(self, run: Tracked, *, complete: bool) -> None:
        if not complete:
            return
        sent = self.client.get_run(self.id).data.metrics
        self._log({name: value for name, value in run.summary.items() if sent.get(name) != value}, self.begin - 1)
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
        last = {tag: events.Scalars(tag)[-1].step for tag in events.Tags()["scalars"]} if events else {}
        self.begin = last.get("round", -1) + 1
        self.ended = max((step for tag, step in last.items() if tag.startswith("summary/")), default=-1)
        self.writer = SummaryWriter(str(folder))
        if not self.begin:
            self.writer.add_text("configuration", "\n".join(f"    {k} = {v}" for k, v in run.settings.items()))

    def log(self, t: int, values: Mapping[str, float]) -> None:
        for name, value in {**values, "round": t}.items():
            self.writer.add_scalar(name, value, t)
        self.writer.flush()

    def close(self, run: Tracked, *, complete: bool) -> None:
        for name, value in run.summary.items() if complete and self.ended < self.begin - 1 else ():
            self.writer.add_scalar(name, value, self.begin - 1)
        self.writer.close()


class WandB:
    """A run of Weights & Biases, in the group of its comparison."""

    def __init__(self, run: Tracked, place: str) -> None:
        import wandb

        project = place or os.environ.get("WANDB_PROJECT") or PROJECT
        self.run = wandb.init(
            project=project, id=run.first, name=run.path.name, group=run.group or None, config=run.settings,
            resume="allow", reinit="create_new",
        )  # fmt: skip
        offline = Path(self.run.dir).parents[1].glob(f"offline-run-*-{run.first}/*.wandb") if self.run.offline else ()
        self.begin = max(int(self.run.step), 1 + max((t for path in offline for t in rounds_in(path)), default=-1))

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
        rows = SQLiteStorage.get_logs(project, name)
        self.begin = max((row["step"] for row in rows), default=-1) + 1
        self.ended = max((row["step"] for row in rows if "summary/rounds" in row), default=-1)
        self.run = trackio.init(project, name, run.group or None, config=settings, resume="allow", embed=False)

    def log(self, t: int, values: Mapping[str, float]) -> None:
        self.run.log({**values, "round": t}, step=t)

    def close(self, run: Tracked, *, complete: bool) -> None:
        if complete and self.ended < self.begin - 1:
            self.run.log(run.summary, step=self.begin - 1)
        self.run.finish()


Opening = Callable[[Tracked, str], Sink]
TRACKERS: dict[str, Opening] = {"mlflow": MLflow, "tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}


def rounds_in(path: Path) -> Iterator[int]:
    """The rounds in a file of Weights & Biases that was written offline: records in blocks of 32 kB, as those of LevelDB."""
    record = import_module("wandb.proto.wandb_internal_pb2").Record
    content, at, text = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        length, kind = struct.unpack_from("<4xHB", content, at)
        text += content[at + 7 : at + 7 + length]
        at += 7 + length
        at += left if (left := -at % 32768) < 7 else 0  # too short for a head
        if kind in (1, 4) and at <= len(content):  # whole, or the last part
            items, text = record.FromString(text).history.item, b""
            yield from (int(item.value_json) for item in items if "round" in (item.key, *item.nested_key))


def escaped(name: str) -> str:
    """A name in letters, digits and ``_ - .`` and blanks, which every tracker takes; others as in Office Open XML, ``<65`` as ``_x003C_65``."""
    sign = r"[^\w\-. ]"
    pattern = rf"_(?=x[0-9A-F]*(?:_|{sign}))|{sign}|^\.+$|^$"
    return re.sub(pattern, lambda match: "".join(f"_x{ord(c):04X}_" for c in match[0]) or "_x_", name)


def part(name: object) -> str:
    """A name as one part of a metric's, another for each: :func:`escaped`, and of a long one its beginning and a code."""
    text = escaped(str(name))
    return text if len(text) <= LONG else f"{text[: LONG - 20]}_x{hashlib.sha256(str(name).encode()).hexdigest()[:16]}_"


def numbers(table: Mapping[str, Any], above: str = "") -> dict[str, float]:
    """Every finite number in nested tables, by its path: ``{"groups/photo/accuracy": 0.9}``."""
    flat: dict[str, float] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{above}{part(key)}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            flat[f"{above}{part(key)}"] = float(value)
    return flat
