"""FedISM and FedISM+: their names, and their sum with logit adjustment as a loop over clients and steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.methods.afl import AFL
from equipoise.methods.gsam import GSAM
from equipoise.methods.logit_adjust import LogitAdjust
from equipoise.methods.moon import Moon
from equipoise.methods.saga import SAGA
from helpers import difference, federation, fitted, in_one, network, samples, tensor

PLUS = (GSAM(0.1, 0.5, 0.1), SAGA("S", 0.1, 0.5, 2.0, 0.5))


@in_one(
    ("text", "rules", "shown"),
    [
        ("fedism+", PLUS, "fedism+"),
        ("fedism+:S", PLUS, "fedism+"),
        ("fedismplus", PLUS, "fedism+"),
        ("fedism+:L", (PLUS[0], SAGA("L")), "fedism+(variant=L)"),
        ("fedismplus(variant=L)", (PLUS[0], SAGA("L")), "fedism+(variant=L)"),
        ("fedism+(rho=0.2)", (GSAM(0.2, 0.5), SAGA(rho=0.2)), "fedism+(rho=0.2)"),
        ("fedism+:released(tau=1)", (GSAM(0.1, 1), SAGA(tau=1, offset=1e-10)), "fedism+(tau=1, offset=1e-10)"),
        ("fedism", (GSAM(0.05, 0.0), SAGA(rho=0.05, tau=0.0)), "fedism"),
        ("fedism(rho=0.1)", (GSAM(0.1, 0.0), SAGA(rho=0.1, tau=0.0)), "fedism(rho=0.1)"),
        ("moon+fedism+", (Moon(), *PLUS), "moon+fedism+"),
        ("fedism++moon", (PLUS[0], Moon(), PLUS[1]), "fedism++moon"),
        ("fedism+moon", (GSAM(0.05, 0.0), Moon(), SAGA(rho=0.05, tau=0.0)), "fedism+moon"),
        ("fedism+ + moon", (PLUS[0], Moon(), PLUS[1]), "fedism++moon"),
        ("logit-adjust+fedism+:L", (LogitAdjust(), PLUS[0], SAGA("L")), "logit-adjust+fedism+(variant=L)"),
        ("gsam+saga", (GSAM(), SAGA()), "gsam+saga"),
    ],
)
def test_names(text: str, rules: tuple[eq.Rule, ...], shown: str) -> None:
    """The longest name wins: a plus sign may belong to it or join it."""
    method = eq.parse(text)
    assert method.rules == rules
    assert str(method) == shown
    assert eq.parse(str(method)) == method
    bare = eq.Method(rules)
    assert bare == method
    assert eq.parse(str(bare)) == method


def test_a_hyper_parameter_said_apart_is_set_in_both_rules() -> None:
    method = eq.parse("moon+fedism+", {"fedism+.rho": 0.3, "moon.mu": 2.0})
    assert method.rules == (Moon(2.0), GSAM(0.3, 0.5), SAGA(rho=0.3))
    assert eq.parse(str(method)) == method


@pytest.mark.parametrize(("text", "name"), [("fedism++afl", r"fedism\+"), ("fedism+afl", "fedism")])
def test_two_rules_that_weigh_clients_are_a_conflict(text: str, name: str) -> None:
    with pytest.raises(eq.MethodError, match=f"'{name}' and 'afl' each set the weights of the clients"):
        eq.parse(text)
    with pytest.raises(eq.MethodError, match="appears twice"):
        eq.parse("gsam+fedism+")
    with pytest.raises(eq.MethodError, match="each set the weights"):
        eq.parse("fedism+") + eq.Method((AFL(),))


def test_errors_know_the_name() -> None:
    with pytest.raises(eq.MethodError, match=r"fedism\+ has no hyper-parameter 'roh'\. Did you mean 'rho'\?"):
        eq.parse("fedism+(roh=0.1)")
    with pytest.raises(eq.MethodError, match=r"fedism\+ has no preset 'M'\..*It has: paper, S, L, released\."):
        eq.parse("fedism+:M")


class Naive:
    """FedISM+ with logit adjustment by autograd: full batches, plain SGD, everybody takes part."""

    def __init__(self, data: list[tuple[Tensor, Tensor]], variant: str, rounds: int) -> None:
        self.net, self.data, self.variant, self.rounds = network(), data, variant, rounds
        self.theta = nn.utils.parameters_to_vector(self.net.parameters()).detach()
        self.w: list[float] | None = None

    def loss(self, theta: Tensor, k: int, tau: float) -> Tensor:
        x, y = self.data[k]
        shapes = [p.shape for p in self.net.parameters()]
        parts = [v.view(s) for v, s in zip(theta.split([s.numel() for s in shapes]), shapes, strict=True)]
        z = torch.func.functional_call(self.net, dict(zip(dict(self.net.named_parameters()), parts, strict=True)), x)
        share = [int((y == c).sum()) / len(y) for c in range(3)]
        z = z + tensor([tau * math.log(p) if p else -1e9 * tau for p in share])
        return functional.cross_entropy(z, y)

    def grad(self, theta: Tensor, k: int, tau: float) -> Tensor:
        theta = theta.clone().requires_grad_()
        return torch.autograd.grad(self.loss(theta, k, tau), theta)[0]

    def round(self, t: int, lr: float, steps: int) -> None:
        rho = 0.1 * ((t + 1) / self.rounds) ** 0.5
        values, models = [], []
        for k in range(len(self.data)):
            g = self.grad(self.theta, k, 0.0)
            high = float(self.loss(self.theta + rho * g / g.norm(), k, 0.0))
            low = float(self.loss(self.theta, k, 0.0))
            values.append(max(high - low if self.variant == "S" else high, 1e-10))
            local = self.theta
            for _ in range(steps):
                g = self.grad(local, k, 1.0)
                g_p = self.grad(local + rho * g / g.norm(), k, 1.0)
                local = local - lr * (g_p - 0.1 * (g - (g @ g_p) / (g_p @ g_p) * g_p))
            models.append(local)
        fresh = [v**2 / sum(u**2 for u in values) for v in values]
        self.w = fresh if self.w is None else [0.5 * f + 0.5 * u for f, u in zip(fresh, self.w, strict=True)]
        self.theta = sum(w * m for w, m in zip(self.w, models, strict=True))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("variant", ["S", "L"])
def test_three_rounds_typed_out(variant: str, engine: str) -> None:
    """The second client has no sample of one class."""
    data = [samples(n, k) for k, n in enumerate((12, 9, 15))]
    data[1][1].clamp_(max=1)
    naive = Naive(data, variant, 3)
    fed = federation(
        f"logit-adjust+fedism+:{variant}",
        data=data,
        solver=eq.SGD(0.1),
        batch_size=64,
        epochs=2,
        participation=1.0,
        engine=engine,
    )
    fed.fit(3, progress=False)
    for t in range(3):
        naive.round(t, 0.1, 2)
        assert fed.records[t]["weights"] == pytest.approx(naive.w, abs=1e-8)
    assert torch.allclose(fed.progress.vector, naive.theta, rtol=0, atol=1e-9)


def test_the_search_distance_of_training_and_measuring_is_the_same() -> None:
    """A rho of its own for either gives another model."""
    both = fitted("fedism+", 2)
    for gsam, saga in ((0.1, 0.2), (0.2, 0.1)):
        other = fitted(f"gsam(rho={gsam}, tau=0.5)+saga(rho={saga})", 2)
        assert difference(both, other) > 1e-6
    assert difference(both, fitted("gsam(rho=0.1, tau=0.5)+saga", 2)) == 0


def test_the_rounds_planned_set_the_distance() -> None:
    a, b = (federation("fedism+") for _ in range(2))
    a.fit(4, progress=False)
    b.fit(2, progress=False)
    b.fit(2, progress=False)
    assert difference(a, b) > 1e-6
    c, d = (federation("fedism") for _ in range(2))
    c.fit(4, progress=False)
    d.fit(2, progress=False)
    d.fit(2, progress=False)
    assert difference(c, d) == 0


SGD, ADAM = eq.SGD(0.05, 0.9, 1e-4), eq.Adam(3e-3, weight_decay=5e-4)


@pytest.mark.parametrize(
    ("method", "solver"),
    [
        ("scaffold+gsam+saga", SGD),
        *((m, s) for m in ("fedism", "fedism+:L", "logit-adjust+fedism+") for s in (SGD, ADAM)),
    ],
)
def test_engines_agree_with_any_solver(method: str, solver: eq.SGD | eq.Adam) -> None:
    a, b = (fitted(method, 3, solver=solver, engine=e) for e in ("sequential", "stacked"))
    assert difference(a, b) < 1e-9
