"""Keep generated tensors in files that can be trusted: named by their recipe, written whole, verified when read."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from equipoise.system.files import cache_directory, write_atomically

log = logging.getLogger(__name__)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Sha256, in hexadecimal, of names, types, shapes and bytes, whatever the order of the names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        total.update(tensor.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def recall(stem: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors kept under a name, or make and keep them.

    A missing, damaged or unreadable file only costs the time to make the tensors again, and so does a folder that
    cannot be written.

    Parameters
    ----------
    stem : file name without extension; it must name everything that ``make`` depends on.
    make : makes the tensors.

    Returns
    -------
    Tensors by name, equal to ``make()``.
    """
    path = cache_directory() / f"{stem}.safetensors"
    kept = _read(path)
    if kept is not None:
        return kept
    made = make()
    _write(path, made)
    return made


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        with safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get("sha256")
            # Copies: a tensor mapped to the file would change, or crash, with it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        log.info("%s cannot be read (%s): making its contents again.", path, error)
        return None
    if digest(tensors) != expected:
        log.info("%s is damaged: making its contents again.", path)
        return None
    return tensors


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        write_atomically(path, save(tensors, metadata={"sha256": digest(tensors)}))
    except OSError as error:
        log.info("%s cannot be written (%s): going on without it.", path, error)
