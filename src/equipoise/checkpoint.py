"""Checkpoints: tensors in safetensors, the rest in JSON, written so that a crash at any moment leaves a whole one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from equipoise.files import sweep, write_atomically

POINTER = "checkpoint.json"


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, damaged, or of another experiment."""


def write(directory: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint; the JSON file, written last, names the tensor file and its hash.

    Raises
    ------
    OSError : a full disk or a directory that cannot be written; the checkpoint before stays valid.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content = save({name: t.detach().contiguous().cpu() for name, t in tensors.items()})
    name = f"state-{meta['t']:06d}.safetensors"
    write_atomically(directory / name, content)
    pointer = {**meta, "tensors": name, "sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(directory / POINTER, json.dumps(pointer, indent=1).encode())
    tidy(directory)


def tidy(directory: Path) -> None:
    """Remove tensors that the checkpoint does not name and what was left half written; for the one who writes there."""
    name = json.loads((directory / POINTER).read_bytes())["tensors"]
    for old in directory.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)
    sweep(directory)


def exists(directory: Path) -> bool:
    """Whether a checkpoint was completed there."""
    return (directory / POINTER).is_file()


def read(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the rest of a checkpoint.

    Raises
    ------
    CheckpointError : missing or damaged, naming the file.
    """
    try:
        meta: dict[str, Any] = json.loads((directory / POINTER).read_bytes())
        path, digest = directory / str(meta["tensors"]), meta["sha256"]
        if not all(isinstance(meta[key], int) for key in ("t", "rounds")) or not isinstance(meta["fingerprint"], dict):
            raise ValueError("t, rounds or fingerprint is not what was written")
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(
            f"No complete checkpoint in {directory}: {Path(error.filename).name} is missing. Delete {directory} to start the run again."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{directory / POINTER} is damaged ({error}). Delete {directory} to start the run again."
        ) from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(
            f"{path} is damaged: its content is not what was written. Delete {directory} to start the run again."
        )
    try:
        return load(content), meta
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged ({error}). Delete {directory} to start the run again.") from None
