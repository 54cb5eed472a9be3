"""The network of a bundle as a graph of ONNX, which other software runs; with the packages of the extra ``onnx``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data.batch import Inputs
from equipoise.data.samples import Samples
from equipoise.system.errors import InputError
from equipoise.system.files import ANYWHERE, LARGE, read_regular

BLOCK = 256  # samples at once
NEEDED = ("onnx", "onnxscript", "onnxruntime")


def _require(*packages: str) -> None:
    if lacking := [name for name in packages if find_spec(name) is None]:
        raise InputError(f"A graph of ONNX needs the package {lacking[0]}: pip install 'equipoise[onnx]'.")


def graph(net: nn.Module, x: Inputs) -> bytes:
    """A network in evaluation mode as a graph, whose input is ``inputs`` [n, ...], like ``x``, and whose output is ``outputs`` [n, C]."""
    _require(*NEEDED)
    batch = torch.export.Dim("n", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, on itself
        made = torch.onnx.export(
            net.eval(),
            (x,),
            dynamo=True,
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_shapes=({0: batch},),
            external_data=False,
            verbose=False,
        )
    assert made is not None
    content: bytes = made.model_proto.SerializeToString()
    return content


def session(path: Path) -> Callable[[Samples], Tensor]:
    """The outputs of samples by a graph.

    Raises
    ------
    InputError : the package has no implementation of an operation in the precision of the network.
    """
    _require("onnxruntime")
    runtime: Any = import_module("onnxruntime")
    try:
        run = runtime.InferenceSession(read_regular(path, ANYWHERE, LARGE), providers=["CPUExecutionProvider"]).run
    except Exception as error:  # of kinds of its own
        raise InputError(
            f"The package onnxruntime {runtime.__version__} cannot run this network ({str(error).split(' : ')[-1].rstrip('. ')}). It has many "
            "operations in single precision only. Train the network in that, net.float(); one of eq.network needs no graph."
        ) from error

    def forward(samples: Samples) -> Tensor:
        inputs: Any = (samples.batch(rows, None).x for rows in torch.arange(samples.size).split(BLOCK))
        return torch.cat([torch.from_numpy(run(None, {"inputs": x.numpy()})[0]) for x in inputs])

    return forward
