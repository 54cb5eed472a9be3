"""Checkpoints: tensors in safetensors, the rest in JSON, written so that a crash at any moment leaves a whole one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

POINTER = "checkpoint.json"


class CheckpointError(RuntimeError):
    """A checkpoint that is missing, damaged, or of another experiment."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is either the old one or the new one, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write(directory: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint; the JSON file, written last, names the tensor file and its hash.

    Raises
    ------
    OSError : a full disk or a directory that cannot be written; the checkpoint before stays valid.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content = save({name: t.detach().contiguous().cpu() for name, t in tensors.items()})
    name = f"state-{meta['t']:06d}.safetensors"
    write_bytes(directory / name, content)
    pointer = {**meta, "tensors": name, "sha256": hashlib.sha256(content).hexdigest()}
    write_bytes(directory / POINTER, json.dumps(pointer, indent=1).encode())
    for old in directory.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


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
        meta: dict[str, Any] = json.loads((directory / POINTER).read_text())
        path = directory / str(meta["tensors"])
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"No complete checkpoint in {directory}: {Path(error.filename).name} is missing. Start the run again.") from None
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{directory / POINTER} is damaged ({error}). Delete {directory} to start the run again.") from None
    if hashlib.sha256(content).hexdigest() != meta["sha256"]:
        raise CheckpointError(f"{path} is damaged: its content is not what was written. Delete {directory} to start the run again.")
    try:
        return load(content), meta
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged ({error}). Delete {directory} to start the run again.") from None
