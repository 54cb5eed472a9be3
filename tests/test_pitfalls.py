"""Networks, rules and data that once gave wrong numbers without an error."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.core import maths
from equipoise.core.rule import Cohort, Rule, State
from equipoise.federation.guard import ServerError
from helpers import clients, difference, federation, fitted, generator, identical, in_one, normal


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3, dtype=torch.float64)  # registered first, called last
        self.body = nn.Linear(6, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.dropout(torch.tanh(self.body(x)), 0.5, self.training))


def test_dropout_that_is_no_layer_follows_the_seed():
    net = Dropping()
    one, other = (fitted("fedavg", 2, net=net, engine="auto") for _ in range(2))
    assert one.engine_choice.engine == "sequential"
    assert difference(one, other) == 0


def test_the_classifier_is_the_layer_called_last():
    net = Dropping()
    assert federation(net=net).model.head_name == "head"
    assert difference(fitted("fedproto", 3, net=net), fitted("fedproto(lam=0)", 3, net=net)) > 1e-6
    with pytest.raises(ValueError, match=r"'tail'"):
        federation(net=net, head="tail")


def test_a_transform_sees_samples_in_every_engine():
    def standardise(x: Tensor, shift: Tensor | None) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)

    one, other = (fitted("fedavg", 2, transform=standardise, engine=e) for e in ("sequential", "stacked"))
    assert difference(one, other) < 1e-12


def test_a_rule_without_decorator_is_refused():
    class Bare(Rule):
        mu: float = 0.1

    with pytest.raises(eq.MethodError, match="@dataclass"):
        federation(Bare())


@dataclass(frozen=True)
class Heavy(Rule):
    factor: float = 2.0

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, replace(cohort, weights=cohort.weights * self.factor)


@dataclass(frozen=True)
class Endless(Rule):
    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, replace(cohort, scale=float("inf"))


@pytest.mark.parametrize(("rule", "message"), [(Heavy(), "sum to 1"), (Endless(), "not finite")])
def test_a_server_that_computes_no_model_stops(rule: Rule, message: str):
    fed = federation(rule)
    before = fed.progress
    with pytest.raises(ServerError, match=message):
        fed.fit(1, progress=False)
    assert fed.progress is before


@dataclass(frozen=True)
class Greedy(Rule):
    def loss(self, out: eq.Out, visit: eq.Visit) -> Tensor:
        return out.features.square().sum()  # over everything, clients of a stack included

    def private(self, model: eq.Model) -> None:
        return None


def test_a_loss_over_all_clients_of_a_stack_is_not_used(caplog: pytest.LogCaptureFixture):
    assert difference(fitted(Greedy(), 2), fitted(Greedy(), 2, engine="stacked")) < 1e-12
    assert "one number per client" in caplog.text


def test_private_coordinates_do_not_travel_in_reports():
    @dataclass(frozen=True)
    class Own(Rule):
        def private(self, model: eq.Model) -> Tensor:
            return model.head

    from equipoise.methods.scaffold import Scaffold

    fed = fitted([Own(), Scaffold()], 3, participation=1.0)
    private = fed.model.head[: fed.model.n_params]
    c = fed.progress.server[1]["c"]
    assert float(c[private].abs().max()) == 0 < float(c[~private].abs().max())


def test_a_directory_is_not_taken_over_by_another_method(tmp_path):
    federation("fedavg").fit(1, directory=tmp_path, progress=False)
    other = federation("fedprox")
    other.fit(1, progress=False)
    with pytest.raises(ValueError, match="holds another run"):
        other.fit(1, directory=tmp_path, progress=False)


def test_all_rounds_are_kept_when_a_directory_comes_later(tmp_path):
    fed = federation("fedavg", data=clients((9, 9, 9)))
    fed.fit(2, progress=False)
    fed.fit(1, directory=tmp_path, progress=False)
    assert [r["round"] for r in eq.History.from_run(tmp_path).records] == [0, 1, 2]


class Scaled(nn.Module):
    """A network with a parameter and a buffer that are single numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor(0.5, dtype=torch.float64))
        self.head = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale + self.shift)


def test_a_parameter_that_is_one_number_can_be_stacked(caplog: pytest.LogCaptureFixture):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Scaled()
    one, other = (fitted("fedheal", 3, net=net, engine=e) for e in ("sequential", "stacked"))
    assert difference(one, other) < 1e-10
    assert not caplog.records


@in_one("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
def test_a_mask_of_numbers_counts_as_one_of_booleans(dtype: torch.dtype):
    draw = torch.Generator().manual_seed(0)
    rows, mask = torch.randn(3, 10, generator=draw), torch.rand(3, 10, generator=draw) > 0.4
    weights = torch.tensor([0.2, 0.3, 0.5])
    for measure in (maths.square_norms, maths.gram, lambda x, mask: maths.combine(x, weights, mask)):
        assert torch.equal(measure(rows, mask.to(dtype)), measure(rows, mask))


def test_sparse_gradients_of_an_embedding() -> None:
    """A step takes them as the dense ones that they stand for."""
    words = [(torch.randint(9, (12, 4), generator=generator(k)), torch.arange(12) % 3) for k in range(3)]

    def trained(sparse: bool) -> eq.Federation:
        table = nn.Embedding(9, 5, sparse=sparse, dtype=torch.float64)
        with torch.no_grad():
            table.weight.copy_(normal(9, 5))
        head = nn.Linear(20, 3).double()
        with torch.no_grad():
            head.weight.copy_(normal(3, 20, seed=1))
            head.bias.zero_()
        net = nn.Sequential(table, nn.Flatten(), head)
        return fitted("fedavg", 2, net=net, data=words, participation=1.0, server_validation=None)

    assert identical(trained(False), trained(True))
