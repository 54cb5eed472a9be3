"""Files of named tensors, written as a whole and identified by the hash of their content.

Checkpoints and the stored states of a site use them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from equipoise.system.files import write_atomically


class DamagedError(ValueError):
    """The content of a file is not what was written."""


def packed(tensors: Mapping[str, Tensor]) -> tuple[bytes, str]:
    """The content of a file of tensors, no two of which share memory, and its SHA-256 in hexadecimal."""
    content = save({name: x.detach().cpu().contiguous() for name, x in tensors.items()})
    return content, hashlib.sha256(content).hexdigest()


def write(path: Path, tensors: Mapping[str, Tensor], *, private: bool = False) -> str:
    """Write a file of tensors, or replace it; returns its SHA-256. ``private``: only its owner may read it.

    Raises
    ------
    OSError : a full disk or a directory that cannot be written; the old file stays.
    """
    content, digest = packed(tensors)
    write_atomically(path, content, private=private)
    return digest


def read(path: Path, sha256: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file, which must have this hash if one is given.

    Raises
    ------
    FileNotFoundError : it does not exist.
    DamagedError : it has another content; the text is meant to follow the words "is damaged".
    """
    content = path.read_bytes()
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedError(": its content is not what was written")
    try:
        return load(content)
    except SafetensorError as error:
        raise DamagedError(f" ({error})") from None
