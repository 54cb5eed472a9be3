"""What a federation keeps in a directory: a line per round, a manifest, a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.federation import checkpoint
from equipoise.federation.checkpoint import CheckpointError
from equipoise.federation.fingerprint import differing, fingerprint
from equipoise.federation.records import Record, line
from equipoise.federation.trial import Progression, Trial
from equipoise.system.files import write_atomically

METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint"


def claim(directory: Path, trial: Trial, t: int, records: Sequence[Record]) -> None:
    """Make sure that a directory holds this run and no other, with the records of its ``t`` rounds so far.

    Raises
    ------
    ValueError : it holds another run.
    """
    if checkpoint.exists(directory / CHECKPOINT):
        meta = checkpoint.about(directory / CHECKPOINT)
        if meta["t"] != t or differing(meta.get("fingerprint", {}), fingerprint(trial)):
            raise ValueError(
                f"{directory} holds another run, at round {meta['t']}, and this federation is at {t}. "
                "Call resume() to go on with a run, or choose another directory."
            )
    if records or (directory / METRICS).exists():
        write_atomically(directory / METRICS, "".join(map(line, records)))


def write_manifest(directory: Path, meta: Mapping[str, Any], machines: Sequence[Mapping[str, Any]]) -> None:
    """Write what computed the run into its manifest, and all of ``meta`` where there is no manifest yet."""
    path = directory / "manifest.json"
    known = json.loads(path.read_text()) if path.exists() else meta
    write_atomically(path, json.dumps({**known, "machines": machines}, indent=1))


def append(directory: Path, record: Record) -> None:
    """Add the record of a round; it is on the disk before the checkpoint that counts on it."""
    with (directory / METRICS).open("ab") as file:
        file.write(line(record).encode())
        file.flush()
        os.fsync(file.fileno())


def save(directory: Path, trial: Trial, now: Progression, meta: Mapping[str, Any]) -> None:
    """Write a checkpoint, atomically, with what else it is to say."""
    about = {"t": now.t, "fingerprint": fingerprint(trial), **meta}
    checkpoint.write(directory / CHECKPOINT, now.tensors(), about)


def restore(directory: Path, trial: Trial, now: Progression) -> tuple[Progression, dict[str, Any]]:
    """The progression of a checkpoint, in the form of ``now``, and what else it says.

    Raises
    ------
    CheckpointError : missing, damaged, or of a federation with other settings, naming the first that differs.
    """
    tensors, meta = checkpoint.read(directory / CHECKPOINT)
    ours, its = fingerprint(trial), meta["fingerprint"]
    if key := differing(its, ours):
        raise CheckpointError(
            f"The checkpoint in {directory} is of another experiment: "
            f"its {key} is {_short(its.get(key))}, here it is {_short(ours.get(key))}."
        )
    try:
        return now.restored(tensors, int(meta["t"])), meta
    except KeyError as error:
        raise CheckpointError(
            f"The checkpoint in {directory} lacks {error}. Delete it to start the run again."
        ) from None


def trim(path: Path, t: int) -> list[Record]:
    """Drop what a killed run wrote to ``metrics.jsonl`` after its last checkpoint, and return the rest.

    Raises
    ------
    CheckpointError : a damaged line before that, which no kill explains; the file stays as it is.
    """
    if not path.exists():
        return []
    records: list[Record] = []
    lines = path.read_bytes().decode(errors="replace").split("\n")  # what follows the last newline is empty, or torn
    for number, text in enumerate(lines[:-1], start=1):
        if len(records) == t or (records and records[-1]["round"] >= t - 1):
            break
        try:
            record = json.loads(text)
            if record["round"] >= t:
                break
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"{path}: line {number} is damaged. Put the file back, or delete {path.parent / CHECKPOINT} to start the run again."
            ) from None
        records.append(record)
    write_atomically(path, "".join(map(line, records)))
    return records


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
