"""FedBN: what stays with the clients, and what the others get."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.client import visit_client
from equipoise.core.draws import schedule
from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.methods.fedbn import FedBN
from helpers import clients, federation, fitted, network, oracle_of, samples

SIZES = (9, 13, 9, 13, 9)


class Two(nn.Module):
    """Two BatchNorm layers, one of which has no ``bn`` in its name, and a GroupNorm, which is shared."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn1 = nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4)
        self.downsample = nn.Sequential(nn.Conv1d(4, 4, 1), nn.SyncBatchNorm(4), nn.GroupNorm(2, 4))
        self.fc = nn.Linear(4, 3)


def names(model: Model, mask: Tensor) -> set[str]:
    parts = model.parts(mask[: model.n_params], mask[model.n_params :])
    assert all(bool(part.all()) or not part.any() for part in parts.values())
    return {name for name, part in parts.items() if part.all()}


def test_by_type_and_by_name() -> None:
    model = Model(Two())
    layer = {"weight", "bias", "running_mean", "running_var"}
    first, second = ({f"{name}.{what}" for what in layer} for name in ("bn1", "downsample.1"))
    assert names(model, FedBN().private(model)) == first | second
    assert names(model, FedBN(by="name").private(model)) == first


def test_a_round_typed_out() -> None:
    """Two rounds by hand: each client trains from the shared part and its own BatchNorm; only the shared part is averaged."""
    settings = {"kind": "batchnorm", "sizes": SIZES, "participation": 1.0}
    fed = fitted("fedbn", 2, **settings)
    model, share = fed.model, torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    norm = model.norm
    vector, own = model.initial, model.initial.expand(5, -1)
    for t in range(2):
        start = torch.where(norm, own, vector)
        own = torch.stack([trained_by(m, start[m], t) for m in range(5)])
        vector = torch.where(norm, vector, share @ own)
    assert torch.allclose(fed.progress.vector[~norm], vector[~norm], rtol=0, atol=1e-12)
    assert torch.equal(fed.progress.vector[norm], model.initial[norm])
    assert torch.allclose(fed.progress.own[:, norm], own[:, norm], rtol=0, atol=1e-12)


def trained_by(m: int, start: Tensor, t: int) -> Tensor:
    """The model of client ``m`` after its training in round ``t`` from ``start``, on the batches of a federation."""
    x, y = clients(SIZES)[m]
    asked = oracle_of(network("batchnorm"), x, y, eq.SGD(0.05, 0.9, 1e-4))
    batches = schedule(3, t, [m], [len(y)], 2, 8, chances=(), drop_single=True).of(0)
    oracle = Oracle(asked.evaluator, asked.source, asked.solver, batches, asked.n_params)
    return visit_client([], oracle, t, 2, start, [], [])[0]


def test_who_is_absent_keeps_its_own_and_a_first_visit_starts_from_the_initial() -> None:
    fed = federation("fedbn", kind="batchnorm", sizes=SIZES, participation=0.4)
    norm, seen = fed.model.norm, set()
    for _ in range(3):
        fed.fit(1, progress=False)
        seen |= set(fed.records[-1]["ids"])
    for m in range(5):
        assert torch.equal(fed.progress.own[m, norm], fed.model.initial[norm]) == (m not in seen)


def test_the_global_model_has_the_mean_of_the_clients_layers() -> None:
    fed = fitted("fedbn", 2, kind="batchnorm", sizes=SIZES, participation=1.0)
    x, _ = samples(20, 1)
    share = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
    mean = torch.where(fed.model.norm, share @ fed.progress.own, fed.progress.vector)
    assert torch.allclose(fed.logits(x), fed.model.network(mean)(x).detach(), rtol=0, atol=1e-12)
    assert not torch.allclose(fed.logits(x, client=0), fed.logits(x, client=1))


def test_less_is_sent() -> None:
    a, b = (fitted(name, 1, kind="batchnorm", sizes=SIZES).records[0]["bytes"]["up"][0] for name in ("fedavg", "fedbn"))
    assert a - b == 4 * 7 * 8  # scale, shift, mean and variance of seven channels


@pytest.mark.parametrize(("method", "kind"), [("fedbn", "mlp"), ("fedbn:released", "batchnorm")])
def test_without_batchnorm_it_warns_once_and_is_fedavg(
    method: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The BatchNorm of this network is called ``norm``."""
    a, b = (fitted(name, 2, kind=kind, sizes=SIZES) for name in (method, "fedavg"))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("equipoise.methods.fedbn", logging.WARNING)
    assert record.getMessage().startswith("fedbn: the network has no ")
    assert torch.equal(a.progress.vector, b.progress.vector)


def test_presets_and_bad_input() -> None:
    assert eq.parse("fedbn").rules == (FedBN(by="type"),)
    assert eq.parse("fedbn:released").rules == (FedBN(by="name"),)
    with pytest.raises(ValueError, match="FedBN: by must be one of type, name; found 'layer'"):
        FedBN(by="layer")
