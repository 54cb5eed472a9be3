"""Tensors as bytes: what comes back is what was written, and nothing else is read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from equipoise.system import tensor_files
from equipoise.system.errors import DamagedError
from equipoise.system.tensor_files import NAMES, TYPES, as_bytes, from_bytes
from helpers import in_one


def numbers(kind: str, shape: tuple[int, ...]) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(TYPES[kind])


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes(as_bytes(a)) == bytes(as_bytes(b))


def again(x: Tensor) -> Tensor:
    return from_bytes(bytes(as_bytes(x)), NAMES[x.dtype], tuple(x.shape))


@in_one("shape", [(), (1,), (0,), (0, 4), (2, 3), (1, 1, 1)])
@in_one("kind", TYPES)
def test_tensors_come_back(kind: str, shape: tuple[int, ...]) -> None:
    x = numbers(kind, shape)
    assert same(again(x), x)


def test_tensors_that_lie_otherwise_in_memory_come_back() -> None:
    x = numbers("F32", (4, 6))
    for odd in (x.t(), x[::2], x[:, 1::3], x[1], torch.ones(1).expand(3, 2), torch.zeros(2, 0).t(), x[0, 0].expand(1)):
        assert torch.equal(again(odd), odd)
    assert same(
        again(torch.tensor([float("nan"), -0.0, float("inf")])), torch.tensor([float("nan"), -0.0, float("inf")])
    )
    assert torch.equal(again(x.requires_grad_()), x)


def test_what_was_read_is_the_readers_own() -> None:
    content = bytes(as_bytes(torch.ones(3)))
    x = from_bytes(content, "F32", (3,))
    x += 1
    assert from_bytes(content, "F32", (3,)).tolist() == [1, 1, 1]


def test_a_truth_is_0_or_1() -> None:
    x = from_bytes(b"\0\1\2\xff", "BOOL", (4,))
    assert bytes(as_bytes(x)) == b"\0\1\1\1"


@in_one(
    ("content", "kind", "shape"),
    [
        (b"123", "F32", (1,)),
        (b"12345678", "F32", (1,)),
        (b"", "F32", (1,)),
        (b"", "F32", ()),
        (b"1234", "F32", (-1,)),
        (b"1234", "F32", (-1, -1)),
        (b"1234", "F32", (2**40,)),
        (b"1234", "F32", (2**62, 4)),  # as many bytes modulo 2**64 as there are
        (b"", "F32", (2**70, 0)),
        (b"", "F32", (2**62, 2**62, 0)),
        (b"", "F32", (0,) * 65),
        (b"1234", "float32", (1,)),
        (b"12345678", "O", (1,)),
        (b"1234", "|V4", (1,)),
        (b"1234", "", (1,)),
    ],
)
def test_bytes_that_are_no_such_tensor_are_refused(content: bytes, kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        from_bytes(content, kind, shape)


def test_files_are_those_of_safetensors(tmp_path: Path) -> None:
    tensors = {f'{kind} \u00e4/"{n}"': numbers(kind, (n, 3)) for kind in TYPES for n in (0, 1, 5)}
    tensors |= {"view": numbers("F32", (4, 6)).t(), "same": tensors['F32 \u00e4/"5"'], "number": torch.tensor(3)}
    path = tmp_path / "x.safetensors"
    digest = tensor_files.write(path, tensors)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    for found in (load_file(path), tensor_files.read(path, digest)):
        assert found.keys() == tensors.keys()
        assert [name for name in tensors if not same(found[name], tensors[name].contiguous())] == []
    assert tensor_files.write(tmp_path / "y", dict(reversed(tensors.items()))) == digest
    tensor_files.write(path, {})
    assert tensor_files.read(path) == {}


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    digest = tensor_files.write(path, {"a": torch.ones(1000)})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="not what was written"):
        tensor_files.read(path, digest)
    path.write_bytes(content[:-1])
    with pytest.raises(DamagedError):
        tensor_files.read(path)
