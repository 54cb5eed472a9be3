"""Tensors as bytes, and files of named tensors, written as a whole and identified by the hash of their content.

Messages between sites hold such bytes. Checkpoints and the stored states of a site are such files, in the format of safetensors,
written here from where the numbers lie: the library's own function makes two copies of them first.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from equipoise.system.errors import DamagedError
from equipoise.system.files import LARGE, read_regular, write_atomically

TYPES = {  # by their names in safetensors
    "BOOL": torch.bool, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items()}


def as_bytes(x: Tensor) -> memoryview:
    """The numbers of a tensor, row by row and little end first; of a contiguous one on a CPU not copied."""
    flat = x.detach().cpu().contiguous().as_strided((x.numel(),), (1,))  # a single number may have any stride
    return flat.view(torch.uint8).numpy().data


def from_bytes(content: bytes, kind: str, shape: Sequence[int]) -> Tensor:
    """A new tensor of what :func:`as_bytes` gave of one with the type ``kind``, one of :data:`TYPES`, and this shape.

    Raises
    ------
    ValueError : they do not belong together.
    """
    dtype = TYPES.get(kind)
    if dtype is None or len(shape) > 64 or any(n < 0 for n in shape):
        raise ValueError(f"no tensor is of type {kind!r} and shape {list(shape[:8])}")
    if math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are not a tensor of type {kind} and shape {list(shape)}")
    numbers = np.frombuffer(content, np.uint8)
    if dtype == torch.bool:
        numbers = numbers != 0  # another byte than 0 and 1 is none of torch's
    x = torch.empty(shape, dtype=dtype)  # begins where torch lets tensors begin
    x.view(-1).view(torch.uint8).numpy()[:] = numbers
    return x


def packed(tensors: Mapping[str, Tensor]) -> tuple[list[bytes | memoryview], str]:
    """The parts of a file of tensors, in order, and its SHA-256 in hexadecimal."""
    widest = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    ends = accumulate(x.nbytes for _, x in widest)
    about = {
        name: {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [end - x.nbytes, end]}
        for (name, x), end in zip(widest, ends, strict=True)
    }
    head = json.dumps(about).encode()
    head += b" " * (-len(head) % 8)
    parts: list[bytes | memoryview] = [len(head).to_bytes(8, "little") + head, *(as_bytes(x) for _, x in widest)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return parts, digest.hexdigest()


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
    content = read_regular(path, most=LARGE)
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedError(": its content is not what was written")
    try:
        return load(content)
    except SafetensorError as error:
        raise DamagedError(f" ({error})") from None
