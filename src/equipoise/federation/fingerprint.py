"""What must agree between a checkpoint and the federation that goes on from it, and between a server and its sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.core.settings import Settings
from equipoise.data.samples import Samples, Stream
from equipoise.federation.trial import Trial
from equipoise.submodels.hidden_units import Neurons


def structure(model: Model, neurons: Neurons | None) -> dict[str, Any]:
    """What of a network must agree wherever it is trained, beside its values."""
    units = None if neurons is None else [[g.name, list(g.rows), list(g.columns)] for g in neurons.groups]
    return {
        "parameters": {n: list(s) for n, s in zip(model.names, model.shapes, strict=True)},
        "fixed": hashlib.sha256(b"".join(_bytes(x) for x in model.fixed())).hexdigest(),
        "hidden units": units,
    }


def fingerprint(trial: Trial) -> dict[str, Any]:
    """What must agree for a checkpoint to be continued."""
    return {
        "method": str(trial.method),
        "seed": trial.settings.seed,
        "clients": len(trial.data),
        "sizes": [d.size for d in trial.data],
        "labels": trial.labels,
        **structure(trial.model, trial.neurons),
        "validation": None if trial.oracle is None or not trial.method.needs else _validation(trial.oracle),
        "solver": repr(trial.solver),
        **trial.settings.decisive,
    }


def differing(its: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """The first entry in which two fingerprints differ; a setting that is newer than a checkpoint had its default there."""
    its = {**Settings().decisive, **its}
    return next((key for key in {**ours, **its} if its.get(key) != ours.get(key)), None)


def _validation(oracle: Oracle) -> str:
    source = oracle.source
    known = source.known if isinstance(source, Samples | Stream) else None
    return str(int(source.sizes)) if known is None else hashlib.sha256(_bytes(known[1])).hexdigest()


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if x.numel() else b""
