"""What many models do on a data set, together, beside each of them by itself."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.model import Model, Stacked
from equipoise.core.tally import Tally
from equipoise.core.task import CLASSIFICATION, Classification, Regression, Task
from equipoise.data.samples import Samples, read
from equipoise.federation import scoring
from equipoise.federation.scoring import Mixture, Models, tally_of
from equipoise.networks import build
from equipoise.system import threads

pytestmark = pytest.mark.share(5)
S, K, V, C = 7, 3, 41, 4


@dataclass(frozen=True)
class Halved(Classification):
    """A user's own loss."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().losses(outputs, y) / 2


def layers(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


NETWORKS = {
    "mlp": (lambda: build("mlp", (12,), C, hidden=[9, 8]), (12,)),
    "wide outputs": (lambda: layers(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, C)), (2,)),
    "tanh": (lambda: layers(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, C)), (12,)),
    "gelu": (lambda: layers(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, C)), (12,)),
    "no bias": (lambda: layers(nn.Linear(12, 9, bias=False), nn.Sigmoid(), nn.Linear(9, C, bias=False)), (12,)),
    "one layer": (lambda: build("mlp", (12,), C, hidden=[]), (12,)),
    "linear": (lambda: nn.Linear(12, C), (12,)),
    "flatten": (lambda: layers(nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, C)), (3, 2, 2)),
    "cnn": (lambda: build("cnn", (1, 8, 8), C, width=4), (1, 8, 8)),
    "batch norm": (lambda: build("resnet10", (1, 8, 8), C, width=2), (1, 8, 8)),
}


def model_of(name: str, dtype: torch.dtype, task: Task = CLASSIFICATION) -> Model:
    torch.manual_seed(0)
    return Model(NETWORKS[name][0]().to(dtype), task=task)


def data_of(name: str, dtype: torch.dtype, n: int = V) -> Samples:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, *NETWORKS[name][1], generator=generator, dtype=torch.float64).to(dtype)
    return samples(x, torch.randint(0, C, (n,), generator=generator))


def samples(x: Tensor, y: Tensor, task: Task = CLASSIFICATION) -> Samples:
    read_in = read((x, y), "a set", x.dtype, torch.device("cpu"), target=task.dtype)
    assert isinstance(read_in, Samples)
    return read_in


def mixture(model: Model) -> Mixture:
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64).to(model.initial)

    parts = 0.3 * draw(K, model.size)
    return Mixture(model.initial, parts, draw(S, K))


def slowly(model: Model, models: Models, data: Samples) -> Tally:
    """By vmap, and counted by the task."""
    some, P = models[:], model.n_params
    batch = data.batch(torch.arange(data.size), None)
    x = batch.x.expand(len(some), *batch.x.shape)
    logits, _ = Stacked(model).forward(some[:, :P], some[:, P:].clone(), x)
    return model.task.tally(logits, batch.y.expand(len(some), -1))


def compare(one: Tally, other: Tally, within: float) -> None:
    assert type(one) is type(other)
    for a, b in zip(astuple(one), astuple(other), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=within, atol=within * V, equal_nan=True)


def both(model: Model) -> tuple[Models, Models]:
    models = mixture(model)
    return models, models[:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_together_as_one_by_one(name: str, dtype: torch.dtype) -> None:
    model, data = model_of(name, dtype), data_of(name, dtype)
    for models in both(model):
        compare(tally_of(model, models, data), slowly(model, models, data), 1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_neither_threads_nor_blocks_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = model_of(name, torch.float64), data_of(name, torch.float64)
    models = mixture(model)
    monkeypatch.setattr(scoring, "AT_ONCE", 2)
    tallies = []
    for n in (1, 2, 3):
        with threads.allow(n):
            tallies.append(tally_of(model, models, data))
    for tally in tallies[1:]:
        assert all(torch.equal(a, b) for a, b in zip(astuple(tally), astuple(tallies[0]), strict=True))
    monkeypatch.setattr(scoring, "EVALUATION_BATCH", 10)
    monkeypatch.setattr("equipoise.data.samples.IMAGES", 3)
    monkeypatch.setattr("equipoise.data.samples.PIXELS", 0)
    compare(tally_of(model, models, data), tallies[0], 1e-12)


def test_a_task_of_ones_own_computes_its_loss() -> None:
    data = data_of("mlp", torch.float64)
    plain, halved = (model_of("mlp", torch.float64, task) for task in (CLASSIFICATION, Halved()))
    for models in both(plain):
        one, half = tally_of(plain, models, data), tally_of(halved, models, data)
        torch.testing.assert_close(half.loss, one.loss / 2)


def test_numbers_are_predicted() -> None:
    task = Regression(centre=1.0, scale=2.0)
    model = Model(build("mlp", (12,), 1, hidden=[9]).double(), task=task)
    x = torch.randn(V, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    data = samples(x, x.sum(1), task)
    for models in both(model):
        compare(tally_of(model, models, data), slowly(model, models, data), 1e-12)


def test_ties_go_to_the_lowest_class_and_no_number_is_no_class() -> None:
    model = model_of("linear", torch.float32)
    models = torch.zeros(5, model.size)
    models[1, -C:] = torch.tensor([0.0, 1.0, 1.0, 0.0])
    models[2, -1], models[3, -1], models[4, -1] = torch.nan, torch.inf, -torch.inf
    data = data_of("linear", torch.float32)
    fast = tally_of(model, models, data)
    compare(fast, slowly(model, models, data), 1e-6)
    assert fast.chosen.tolist() == [[V, 0, 0, 0], [0, V, 0, 0], [0] * C, [0] * C, [V, 0, 0, 0]]


@pytest.mark.parametrize("name", ["mlp", "batch norm"])
def test_the_game_of_a_round_has_the_utilities_of_its_models(name: str) -> None:
    from equipoise.federation.coalitions import RoundGame
    from equipoise.federation.round import Played, one_round

    clients = [data_of(name, torch.float32, n) for n in (8, 12, 16)]
    given = [(d.batch(torch.arange(d.size), None).x, d.batch(torch.arange(d.size), None).y) for d in clients]
    federation = eq.Federation(model_of(name, torch.float32).net, given, "fedavg", eq.SGD(lr=0.1), batch_size=4)
    seen = list[Played]()
    one_round(federation.trial, federation.progress, 1, seen.append)
    sets = {group: data_of(name, torch.float32, n) for group, n in (("a", 20), ("b", 30))}
    game = RoundGame(federation.trial, seen[0], sets, ("loss", "accuracy", "worst"))
    U, model = game.utilities(range(8)), federation.trial.model
    for places, models in game.models(range(8)):
        tallies = [slowly(model, models, data) for data in sets.values()]
        right = torch.stack([tally.right.sum(-1) / tally.n for tally in tallies]).double().numpy()
        loss = -sum(tally.loss for tally in tallies) / 50
        assert U[places, 0] == pytest.approx(loss.numpy(), rel=1e-5)
        assert U[places, 1] == pytest.approx((20 * right[0] + 30 * right[1]) / 50, abs=1e-6)
        assert U[places, 2] == pytest.approx(right.min(0), abs=1e-6)
