"""Codes of sensitive attributes: they are beside the labels wherever samples are, and leave no site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import equipoise as eq
from equipoise.core import draws
from equipoise.core.rule import Out, Visit
from equipoise.data.batch import Batch
from equipoise.data.samples import Absent, Loaded, Samples, read
from equipoise.engines.processes import Processes
from equipoise.federation.method import Method
from equipoise.flower import in_process
from helpers import UNEQUAL, clients, federation, network, samples

SOLVER = eq.SGD(0.05)
WEIGHTS = torch.tensor([[0.5, 3.0], [2.0, 0.0], [1.0, 4.0]], dtype=torch.float64)  # [y, s]


@dataclass(frozen=True)
class Weighted(eq.Rule):
    """Weigh samples by their label and the first of their attributes; those of whom it is unknown count once."""

    def loss(self, out: Out, visit: Visit) -> Tensor:
        assert out.s is not None
        s = out.s[..., 0]
        weights = torch.where(s < 0, 1.0, WEIGHTS[out.y, s.clamp(min=0)])
        return out.mean((weights - 1) * out.task.losses(out.logits, out.y))


def codes(n: int, seed: int, A: int = 2) -> Tensor:
    return torch.randint(-1, 2, (n, A), generator=torch.Generator().manual_seed(seed))


def people(sizes: tuple[int, ...] = UNEQUAL) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(x, y, codes(len(y), k)) for k, (x, y) in enumerate(clients(sizes))]


class Items(Dataset[Any]):
    """Samples that are streamed, as each is another time its input with a last bit of noise."""

    def __init__(self, data: tuple[Any, ...], change: float = 0.0) -> None:
        self.data, self.change = data, change

    def __len__(self) -> int:
        return len(self.data[1])

    def __getitem__(self, row: int) -> Any:
        x, y, s = (part[row] for part in self.data)
        return {"x": x + self.change * torch.rand(()), "y": int(y), "s": s.tolist()}


def taken(data: Any, **settings: Any) -> Loaded:
    found = read(data, "ward 7", torch.float64, torch.device("cpu"), **settings)
    assert not isinstance(found, Absent)
    return found


def test_all_ways_to_give_them_are_the_same() -> None:
    x, y, s = people()[0]
    one = s[:, 0]
    ways: list[tuple[Any, Tensor]] = [
        ((x, y, s), s),
        ([x, y, s.tolist()], s),
        ({"x": x, "y": y, "s": s}, s),
        (Batch(x, y, s), s),
        (TensorDataset(x, y, s), s),
        (Items((x, y, s)), s),
        ((x, y, one), one[:, None]),
        ((x.numpy(), y.numpy(), one.numpy().astype(float)), one[:, None]),
        ((x, y, one.numpy().astype(np.int8)), one[:, None]),
        ((x, y, one > 0), (one > 0).long()[:, None]),
    ]
    for data, expected in ways:
        got = taken(data)
        assert isinstance(got, Samples)
        assert got.content.s is not None
        assert got.content.s.dtype == torch.int64
        assert torch.equal(got.content.s, expected)
        assert got.attributes == expected.shape[1]
    for none in ((x, y), (x, y, None), {"x": x, "y": y}, TensorDataset(x, y)):
        assert taken(none).attributes == 0


@pytest.mark.parametrize(
    ("s", "message"),
    [
        ([0, 1, -2, 0], r"hold codes of sensitive attributes.* found \[4\] of torch.int64, with -2\."),
        ([0.0, 0.5, 1.0, 0.0], r"found \[4\] of torch.float64, with 0.5\."),
        ([0.0, np.nan, 1.0, 0.0], r"found \[4\] of torch.float64, with nan\."),
        ([0, 1, 0], r"for n = 4 samples; found \[3\] of torch.int64\."),
        (torch.zeros(4, 2, 1), r"found \[4, 2, 1\] of torch.float32\."),
        (torch.zeros(4, 0), r"found \[4, 0\] of torch.float32\."),
        (torch.zeros(4) + 0j, r"found \[4\] of torch.complex64\."),
        (["f", "m", "f", "f"], r"be a tensor or an array of numbers; found list: words\. Number the values, in"),
    ],
)
def test_codes_that_cannot_be(s: Any, message: str) -> None:
    x, y = samples(4, 1)
    with pytest.raises((TypeError, ValueError), match=f"^ward 7: s must .*{message}"):
        taken((x, y, s))


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_samples_of_a_data_set_that_cannot_be(memory: int) -> None:
    x, y = samples(4, 1)
    for s in ([0, 1, 2.5, 0], [0, 1, "f", 0], [[0], [0], [0, 1], [0]], [0, 1, -2, 0]):
        data = [(x[k], int(y[k]), s[k]) for k in range(4)]

        class Own(Dataset[Any]):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, row: int, data: Any = data) -> Any:
                return data[row]

        with pytest.raises((TypeError, ValueError), match=r"sample 2: s must|some samples have 2 sensitive attributes"):
            taken(Own(), memory=memory).batch(torch.arange(4), None)


def test_all_clients_have_as_many() -> None:
    data: list[Any] = people()
    data[3] = data[3][:2]
    with pytest.raises(
        ValueError,
        match=r"as many sensitive attributes s; found none: client-3; 2: client-0, client-1, client-2 and 1 more",
    ):
        federation(data=data)
    data[3] = (*data[3], codes(len(data[3][1]), 0, 1))
    with pytest.raises(ValueError, match=r"found 1: client-3; 2: client-0"):
        federation(data=data)
    lazy = [eq.Lazy(lambda one=one: one, len(one[1])) for one in data]
    fed = federation(data=lazy, participation=1.0)
    fed.fit(1, progress=False)
    (left_out,) = fed.records[0]["quarantined"]
    assert left_out["client"] == 3
    assert "All clients must have as many sensitive attributes s; found 1: client-3; 2: client-0." in left_out["reason"]


# training
def naive(data: list[tuple[Tensor, Tensor, Tensor]], rounds: int) -> Tensor:
    """FedAvg on weighted losses, step by step."""
    net = network()
    theta = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    sizes = [len(y) for _, y, _ in data]
    for t in range(rounds):
        plan = draws.schedule(3, t, range(len(data)), sizes, 2, 8, drop_single=False)
        trained = []
        for m, (x, y, s) in enumerate(data):
            torch.nn.utils.vector_to_parameters(theta.clone(), net.parameters())
            for batch in plan.index[m]:
                if len(rows := batch[batch >= 0]):
                    weights = torch.tensor([1.0 if s[k, 0] < 0 else WEIGHTS[y[k], s[k, 0]] for k in rows])
                    loss = (weights * functional.cross_entropy(net(x[rows]), y[rows], reduction="none")).mean()
                    grads = torch.autograd.grad(loss, list(net.parameters()))
                    with torch.no_grad():
                        for p, g in zip(net.parameters(), grads, strict=True):
                            p -= SOLVER.lr * g
            trained.append(torch.nn.utils.parameters_to_vector(net.parameters()).detach())
        theta = sum((n / sum(sizes)) * one for n, one in zip(sizes, trained, strict=True))  # type: ignore[assignment]
    return theta


@pytest.fixture(scope="module")
def expected() -> Tensor:
    return naive(people(), 2)


@pytest.fixture(scope="module")
def pool() -> Processes:
    return Processes(1)


FORMS: Mapping[str, Any] = {
    "tensors": lambda one: one,
    "mappings": lambda one: dict(zip("xys", one, strict=True)),
    "streamed": lambda one: Items(one, 1e-15),
    "lazy": lambda one: eq.Lazy(lambda: one, len(one[1])),
}
WAYS = [("sequential", kind) for kind in FORMS] + [("stacked", "tensors"), ("stacked", "lazy")]
WAYS += [(engine, kind) for engine in ("processes", "sites") for kind in ("tensors", "streamed")] + [
    ("workers", "tensors")
]


@pytest.mark.parametrize(("engine", "kind"), WAYS)
def test_a_rule_sees_them_as_a_plain_loop_does(engine: str, kind: str, expected: Tensor, pool: Processes) -> None:
    data = [FORMS[kind](one) for one in people()]
    given: dict[str, Any] = {"epochs": 2, "batch_size": 8, "seed": 3}
    if engine == "sites":
        fed = in_process(network(), data, Method.of(Weighted()), SOLVER, **given)
    else:
        given |= {"engine": pool if engine == "processes" else engine, "workers": 2}
        fed = eq.Federation(network(), data, Weighted(), SOLVER, **given)
    fed.fit(2, progress=False)
    assert "quarantined" not in fed.records[-1]
    assert float((fed.progress.vector - expected).abs().max()) < 1e-12
