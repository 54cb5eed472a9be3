"""What a user may get wrong when a federation is made: each is one sentence, at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.core.task import CLASSIFICATION
from equipoise.flower.server import scores as site_scores
from equipoise.metrics import class_counts, classification, parity, rates_of
from helpers import in_one

x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
y = torch.arange(12) % 3
nan = math.nan
PACKED = np.zeros(12, [("n", "u1"), ("x", "f4", 4), ("y", "i8")])  # whose steps are no multiples of a number's bytes
PACKED["x"], PACKED["y"] = x.numpy(), y.numpy()


class Gives(nn.Module):
    """A network whose output is made of the logits."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 3), make

    def forward(self, inputs: Tensor) -> Any:
        return self.make(self.layer(inputs))


class Items(Dataset[Any]):
    def __init__(self, *item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> Any:
        return self.item


class Endless(Dataset[Any]):
    def __getitem__(self, row: int) -> Any:
        return x[0], 0


def filled(value: float) -> nn.Module:
    net = nn.Linear(4, 3)
    nn.init.constant_(net.weight, value)
    return net


def federation(**changes: Any) -> eq.Federation:
    given = {"net": nn.Linear(4, 3), "clients": [(x, y), (x, y)], "tests": {"all": (x, y)}} | changes
    return eq.Federation(given.pop("net"), given.pop("clients"), **given)


@in_one(
    ("changes", "message"),
    [
        ({"solver": "sgd"}, r"solver must be one of equipoise, such as equipoise.SGD\(lr=0.01\) .*found 'sgd'\.$"),
        (
            {"solver": torch.optim.SGD(nn.Linear(4, 3).parameters())},
            "found SGD of PyTorch, which belongs to one network's",
        ),
        ({"solver": eq.SGD}, r"found the class SGD: write SGD\(\)"),
        ({"tests": (x, y)}, r'tests must give each test set a name, such as \{"all": \(x, y\)\}; found tuple'),
        ({"tests": {1: (x, y), "1": (x, y)}}, "Every test set needs a name of its own; found 1, 1"),
        ({"method": None}, "method must be text such as 'fedavg', a Rule, several Rules, or a Method; found None"),
        ({"method": ["fedprox", "fedheal"]}, r"found 'fedprox'\. Join names by \+, such as 'fedprox\+fedheal'"),
        ({"method": eq.parse("fedprox").rules[0].__class__}, r"found the class FedProx: write FedProx\(\)"),
        (
            {"net": nn.Sequential(nn.LazyLinear(3))},
            r"The size of '0.weight' is not known yet.*Call the network .* net\(x\)",
        ),
        (
            {"net": nn.Linear(4, 3, device="meta")},
            "'weight' of the network is on the meta device, where there are no numbers",
        ),
        ({"net": nn.Linear(4, 3, dtype=torch.complex64)}, "'weight' of the network holds complex numbers"),
        ({"net": filled(nan)}, "'weight' of the network holds NaN or infinity"),
        ({"net": nn.Linear}, "net must be an nn.Module .*found the class Linear"),
        ({"net": "mlp"}, "net must be an nn.Module .*found str"),
        ({"net": Gives(lambda z: (z, z))}, "must give logits, one tensor of shape .*it gives a tuple of 2"),
        ({"net": Gives(lambda z: {"logits": z})}, "it gives a dictionary with logits"),
        ({"net": Gives(lambda z: None)}, "it gives NoneType"),
        ({"net": Gives(lambda z: z[0])}, r"for 2 samples it gives \[3\]"),
        ({"net": Gives(lambda z: z[:1])}, r"for 2 samples it gives \[1, 3\]"),
        ({"net": Gives(lambda z: z[:, :1])}, r"it gives \[2, 1\]\. Give it one output per class"),
        ({"net": Gives(lambda z: z.to(torch.complex64))}, "it gives torch.complex64"),
        ({"net": Gives(lambda z: z.detach())}, "its output has no gradient"),
        (
            {"clients": {"a": (x, y)}},
            r"clients must be a list .*found dict\. Give list\(clients.values\(\)\) and names=",
        ),
        ({"clients": (x, y)}, r"clients must be a list that holds \(x, y\) of each client.*found one \(x, y\)"),
        ({"clients": 5}, "clients must be a list .*found int"),
        ({"names": "ab"}, "names must be a list with a name for each of the clients; found 'ab'"),
        ({"names": [None, "b"]}, "names must hold text; found None"),
        (
            {"groups": "all"},
            "groups must be a list with a name for each of the clients, that of its test set; found 'all'",
        ),
        (
            {"client_tests": {"a": (x, y)}},
            r"client_tests must be a list with \(x, y\) or None for each client; found dict",
        ),
        ({"settings": {"epochs": 2}}, r"settings must be equipoise.Settings\(epochs=2, ...\); found \{'epochs': 2\}"),
        ({"memory": "1GB"}, "memory must be a whole number >= 0 bytes; found '1GB'"),
        ({"measures": None}, "measures must be several, such as"),
        ({"contribution": 5}, r"contribution must be a list of numbers in \[0, 1\], one per client; found 5"),
        ({"engine": 5}, "engine must be the name of one, or a function from a Job to Answers; found 5"),
        ({"device": "meta"}, "Unknown device 'meta'"),
        ({"transform": 5}, r"transform must be a function transform\(x, shift\); found int"),
        (
            {"transform": lambda x: x},
            r"The transform does not take the data of client-0: transform\(x, None\) must give a",
        ),
        ({"transform": lambda x, shift: None}, r"The transform does not take the data of client-0"),
        ({"batch_size": 32.0}, "batch_size must be a whole number >= 1; found 32.0"),
        ({"seed": -1}, r"seed must be a whole number in 0\.\.\d+; found -1"),
    ],
)
def test_arguments_that_cannot_be_used(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as found:
        federation(**changes)
    assert "\n" not in str(found.value)


@in_one(
    ("data", "message"),
    [
        (
            (x.to(torch.complex64), y),
            r"x holds complex numbers, whose imaginary part would be dropped\. .*view_as_real",
        ),
        (Items(x[0] * 1j, 0), "x holds complex numbers"),
        (
            (x.double().index_fill(0, torch.tensor(2), 1e308), y),
            r"x\[2, 0\] is 1e\+308, too large for the network's float32",
        ),
        (Items(np.full(4, 1e308), 0), r"x\[0, 0\] is 1e\+308, too large"),
        ((x.to_sparse(), y), r"x must be a dense tensor; found one that is torch.sparse_coo\. .*x.to_dense\(\)"),
        ((x.to("meta"), y), "found one that is without numbers"),
        ((np.zeros((12, 4), "M8[s]"), y), "found ndarray: dates"),
        ((np.full((12, 4), None), y), "found ndarray: no numbers"),
        (
            (pd.DataFrame({"a": [1, 2], "b": ["u", "v"]}), [0, 1]),
            "x must be a tensor or an array of numbers; found DataFrame",
        ),
        ((1.0, y), r"x must hold one input per sample, of shape \[n, ...\]; found the single number 1.0"),
        ((x, torch.eye(3)[y]), r"found \[12, 3\] of torch.float32\. One-hot rows become labels by y.argmax\(1\)"),
        ((x, y[:, None]), r"found \[12, 1\] of torch.int64\. A column becomes labels by y.reshape\(-1\)"),
        ((x, y * math.inf), "y must be one integer label per sample"),
        ((x, y + 0j), r"found \[12\] of torch.complex64"),
        ((x, 1), r"found \[\] of torch.int64"),
        (
            (x, list("abc") * 4),
            r"found list: words\. Number the classes, in one order for all clients: numpy.searchsorted",
        ),
        ((x, y - 1), r"labels must be in 0\.\.2, because the network has 3 outputs; found -1\.\.1"),
        ((x, torch.where(y == 1, -(2**31), y).int()), r"labels must be in 0\.\.2, .*; found NaN that was made a whole"),
        ((x, torch.where(y == 1, -(2**63), y)), r"labels must be in 0\.\.2, .*; found NaN that was made a whole"),
        (Items(x[0], 0.5), r"sample 0: y must be one integer label .* found \[1\] of torch.float64, with 0\.5"),
        (Items(x[0], torch.eye(3)[0]), r"sample 0: y must be one integer label .* found \[1, 3\] of torch.float32"),
        (Items(x[0], "cat"), "sample 0: y must be a tensor or an array of numbers; found str: words"),
        (Items(x[0], 0, 0, 0), r"sample 0 must be a pair \(x, label\); found tuple of 4"),
        (Endless(), "Endless does not say how many samples it has"),
    ],
)
def test_data_of_a_client_that_cannot_be_used(data: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^client-1.*{message}"):
        federation(clients=[(x, y), data])


@in_one(
    "data",
    [
        (x.tolist(), y.tolist()),
        (pd.DataFrame(x.tolist()).to_numpy().copy(), y.numpy().astype(np.uint64)),
        (x.numpy().astype(">f8"), y.float()),
        (torch.ones(12, 4, dtype=torch.uint8), y > 0),
        (x.numpy()[::-1], y.numpy()[::-1]),
        (x.numpy()[:, ::-1], y.numpy()),
        {"x": x.numpy().astype(">f4")[::-1], "y": y.numpy()[::-1], "s": y.numpy()[::-1]},
        (PACKED["x"], PACKED["y"]),
        eq.OfPeople((x.numpy()[::-1], y.numpy()[::-1]), np.arange(12)[::-1]),
        eq.Lazy(lambda: (x.numpy()[::-1], y.numpy()[::-1]), 12),
        Items(x[0].numpy()[::-1], 0),
    ],
)
def test_numbers_of_other_kinds_are_taken(data: Any) -> None:
    attributes = {"s": y.numpy()} if isinstance(data, dict) else {}
    first, tests = {"x": x, "y": y, **attributes}, {} if isinstance(data, eq.Lazy) else {"a": data}
    federation(clients=[first, data], tests=tests).fit(1, progress=False)


def test_turned_arrays_are_the_same_numbers() -> None:
    fed = federation(clients=[(x, y)])
    for turned in (x.numpy()[::-1], x.numpy()[:, ::-1], x.numpy()[::-3, ::2], PACKED["x"]):
        wide = np.pad(turned, [(0, 0), (0, 4 - turned.shape[1])])[::-1]
        assert torch.equal(fed.predict(wide), fed.predict(torch.from_numpy(wide.copy())))


def test_complex_inputs_are_for_the_transform() -> None:
    fed = federation(clients=[(x * 1j, y)], tests={}, transform=lambda x, shift: x.abs())
    assert torch.equal(fed.predict(x * 1j), federation(clients=[(x, y)], net=fed.network()).predict(x.abs()))
    with pytest.raises(ValueError, match="input of the network holds complex numbers"):
        federation(clients=[(x * 1j, y)], tests={}, transform=lambda x, shift: x)


@in_one("name", ["solver", "method", "settings", "tests", "transform", "epochs", "lr"])
def test_nothing_that_a_run_would_ignore_can_be_set(name: str) -> None:
    fed = federation()
    with pytest.raises(
        AttributeError, match=f"{name} cannot be set on a federation that is made: it would train as before"
    ):
        setattr(fed, name, eq.SGD(lr=1e-9))


def test_inputs_to_predict_and_evaluate() -> None:
    fed = federation()
    with pytest.raises(
        ValueError, match=r"The network does not take prediction: an input of shape \[1, 7\] gives RuntimeError"
    ):
        fed.predict(torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"evaluation data: labels must be in 0\.\.2"):
        fed.evaluate(x, y + 1)
    with pytest.raises(TypeError, match="prediction: x must be a tensor or an array of numbers; found Endless"):
        fed.predict(Endless())
    with pytest.raises(ValueError, match=r"client must be a whole number in 0\.\.1; found 0\.0"):
        fed.predict(x, client=0.0)  # type: ignore[arg-type]


# outputs that are not finite
def test_a_prediction_from_nan_is_none() -> None:
    logits = torch.tensor(
        [[nan, nan], [1.0, 0.0], [nan, 1.0], [math.inf, 0.0], [-math.inf, 0.0], [-math.inf, -math.inf]]
    )
    assert CLASSIFICATION.predictions(logits).tolist() == [-1, 0, -1, -1, 1, -1]
    tally = CLASSIFICATION.tally(logits, torch.tensor([0, 0, 1, 0, 1, 0]))
    n, _, *counts = tally.vector(classes=True).tolist()
    assert (n, counts) == (6, [1, 1, 4, 2, 1, 1])
    assert tally.score()["undefined"] == 4


def test_scores_of_outputs_that_are_not_finite() -> None:
    scores = np.array([[nan, nan], [2.0, 1.0], [0.0, 1.0], [nan, 0.0]])
    found = classification(scores, [0, 0, 1, 1], ["accuracy", "balanced", "auc", "auc_ovr", "rates"], logits=True)
    assert found["accuracy"] == found["balanced"] == 0.5
    assert math.isnan(found["auc"])
    assert math.isnan(found["auc_ovr"])
    assert (
        found["rates"]
        == {"right": [1, 1], "true": [2, 2], "chosen": [1, 1]}
        == class_counts([0, 0, 1, 1], [-1, 0, 1, -1], 2)
    )
    rates = rates_of(found["rates"])
    assert rates.accuracy.value == 0.5
    assert [r.value for r in rates.selection_rate] == [0.25, 0.25]
    blind = classification(np.full((4, 2), nan), [0, 0, 1, 1], ["accuracy", "rates"], logits=True)
    assert blind["accuracy"] == 0
    assert parity({"a": found["rates"], "b": blind["rates"]}).accuracy.value == 0.5


def test_the_record_says_how_many_outputs_are_not_finite() -> None:
    broken = x.clone()
    broken[:5] = nan
    fed = federation(tests={"whole": (x, y), "torn": (broken, y)}, measures=("accuracy", "auc", "rates"))
    groups = fed.fit(1, progress=False).records[0]["groups"]
    assert "undefined" not in groups["whole"]
    assert groups["torn"]["undefined"] == 5
    assert sum(groups["torn"]["rates"]["chosen"]) == 7
    assert groups["torn"]["accuracy"] == pytest.approx(sum(groups["torn"]["rates"]["right"]) / 12)
    assert fed.predict(broken)[:5].tolist() == [-1] * 5


def test_sites_say_how_many_outputs_are_not_finite() -> None:
    sent, good = ({"scores": {"t": {"sums": [4, loss, 2, 4, n]}}} for loss, n in ((nan, 2), (4.0, 4)))
    found = [site_scores.Tested.of(each, {"t": 4}, ["accuracy"], 2, CLASSIFICATION) for each in (sent, good, sent)]
    assert (
        site_scores.pooled([each for each in found if not isinstance(each, str)], ["accuracy"])["t"]["undefined"] == 4
    )
