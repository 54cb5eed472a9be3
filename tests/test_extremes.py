"""Numbers at the ends of what a rule accepts: right by an independent computation in higher precision, or refused; never NaN."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core import cells, maths
from equipoise.core.rule import Cohort, Rule, State, overrides
from equipoise.federation import guard
from equipoise.federation.method import parse
from equipoise.methods import METHODS
from equipoise.methods.cffl import judged
from equipoise.methods.cgsv import share
from equipoise.methods.fedave import likeness
from equipoise.methods.fedga import FedGA
from equipoise.methods.fedsac import prefixes, reputations, scores
from equipoise.methods.gsam import orthogonal
from equipoise.methods.krum import Krum
from equipoise.methods.margin import Margin
from equipoise.methods.moon import contrast
from equipoise.methods.principal import Principal
from equipoise.methods.sam import perturbation
from equipoise.system.ranges import Range
from equipoise.system.tree import flatten
from helpers import Server, in_one, tensor

mp.mp.dps = 60
M, P, LAYOUT = 4, 12, (6, 3, 2, 1)
LOSSES = {
    "zero": (0.0, 0.0, 0.0, 0.0),
    "equal": (1.0, 1.0, 1.0, 1.0),
    "tiny": (1e-30, 2e-30, 3e-30, 5e-30),
    "huge": (1e30, 2e30, 3e30, 5e30),
    "spread": (1e-30, 1e-10, 1.0, 1e30),
    "one zero": (0.0, 1.0, 2.0, 3.0),
    "in range": (1e12, 1e11, 1.0, 1e-3),
    "usual": (0.5, 1.0, 2.0, 3.0),
}
UPDATES = {  # lengths of the clients' updates; "same" and "opposite" are of one direction
    "usual": (1.0, 2.0, 1.0, 0.5),
    "tiny": (1e-30, 2e-30, 1e-30, 5e-31),
    "long": (1e12, 2e12, 1e12, 5e11),
    "zero": (0.0, 0.0, 0.0, 0.0),
    "mixed": (1e-30, 1.0, 1e12, 0.0),
    "same": (1.0, 1.0, 1.0, 1.0),
    "opposite": (1.0, -1.0, 1.0, -1.0),
}
SIZES = {"usual": (10.0, 20.0, 30.0, 40.0), "one in a million": (1.0, 1e6, 1.0, 1e6)}

HELD = torch.arange(M)[:, None] >= torch.arange(P) % (M + 1)  # submodels; some parameters nobody holds


def vectors(kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Updates [M, P] of the lengths in ``UPDATES``."""
    drawn = torch.randn(M, P, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = drawn[:1].expand(M, P) if kind in ("same", "opposite") else drawn
    return (drawn * tensor(UPDATES[kind])[:, None]).to(dtype)


class Judge:
    """Validation data on which models have some accuracy, which may be 0 and 1."""

    def tally(self, vector: Tensor) -> SimpleNamespace:
        return SimpleNamespace(goodness=tensor((0.0, 0.3, 1.0)[int(vector.sum() * 7) % 3]))


def report(rule: Rule, losses: Sequence[float]) -> State:
    """What clients report where all that they measured is as large as ``losses``."""
    x = tensor(losses).float()
    wide = torch.ones(M, 3, 2) * x[:, None, None]
    protos = {"proto": wide, "share": torch.ones(M, 3)}
    known: dict[str, Callable[[], State]] = {
        "AFL": lambda: {"loss": x},
        "QFFL": lambda: {"loss": x},
        "Term": lambda: {"loss": x},
        "AAggFF": lambda: {"loss": x},
        "GIFAIR": lambda: {"loss": x},
        "EAGLE": lambda: {"gap": x},
        "FedFV": lambda: {"loss": x},
        "FedMDFG": lambda: {"loss": x},
        "FedPW": lambda: {"loss": x},
        "FedLF": lambda: {"loss": x},
        "FairFed": lambda: {"accuracy": x.clamp(0, 1), **of_cells(rule, x)},
        "FedCE": lambda: {"metric": x.clamp(0, 1), "measured": torch.ones(M)},
        "FedGA": lambda: {"gap": x - x.flip(0), "seen": torch.ones(M)},
        "SAGA": lambda: {"value": x},
        "FedNova": lambda: {"a": x},
        "Scaffold": lambda: {"dc": torch.ones(M, P) * x[:, None]},
        "FedProto": lambda: protos,
        "FedProc": lambda: protos,
        "FedPAC": lambda: {**protos, "H": wide, "V": x},
        "FedAVE": lambda: {"kl": x.double()},
        "CFFL": lambda: {"classes": x.clamp(0, 1)},
        "LoGoFair": lambda: {"n": torch.ones(M, 2) * x.clamp(0, 1)[:, None], "cost": torch.ones(M, 31) * x[:, None]},
        "Thresholds": lambda: {"hist": torch.ones(M, 2, 2, rule.bins) * x.clamp(0, 1)[:, None, None, None]},  # type: ignore[attr-defined]
    }
    return known.get(type(rule).__name__, lambda: of_cells(rule, x))()


def of_cells(rule: Rule, x: Tensor) -> State:
    """Sums by class and group of two samples a cell, of which the first client has none of a cell and nobody has any of another."""
    n = torch.full((M, 2 if getattr(rule, "binary", False) else 3, 2), 2.0)
    n[0, 1, 1] = n[:, 0, 1] = 0
    most = {key: bounds for key, bounds in rule.declared.ranges.items() if key in cells.RANGES}
    return {
        key: n if key == "n" else n / 2 * (x.clamp(0, 1) if bounds.samples else x)[:, None, None]
        for key, bounds in most.items()
    }


def faults(method: str, losses: Sequence[float], updates: Tensor, sizes: Sequence[float], rounds: int = 2) -> list[str]:
    """What is not a number, or not convex, after some rounds; what the guard refuses in a sentence is none."""
    server = Server(method, torch.zeros(P), sizes, LAYOUT, solver=eq.SGD(0.1), n_classes=3, n_features=2)
    server.setup = dataclasses.replace(server.setup, head=torch.arange(P) < 2)
    server.state = [rule.server_state(server.setup) for rule in server.rules]
    given: dict[str, Any] = {"oracle": Judge(), "contribution": tensor([0.0, 0.1, 0.5, 1.0]), "rounds": 9}
    if method.startswith(("fedsac", "fedrac")):
        given["held"] = HELD
        updates = updates * HELD
    for _ in range(rounds):
        before = server.state
        told = [report(rule, losses) for rule in server.rules]
        cohort = server.round(updates, reports=told, **given)
        try:
            for rule, old, new in zip(server.rules, before, server.state, strict=True):
                guard.weights(cohort.weights, rule)
                guard.state(old, new, rule)
            guard.step(server.theta, method)
        except guard.ServerError as error:
            return [] if "must set weights" not in str(error) else [str(error)]
        shown = {"weights": cohort.weights, "coefficients": cohort.coefficients, "kept": cohort.kept}
        shown |= flatten({"state": server.state})
        bad = [name for name, x in shown.items() if x is not None and x.is_floating_point() and not x.isfinite().all()]
        notes = [
            (name, x) for name, given in cohort.notes.items() for x in (given if isinstance(given, list) else [given])
        ]
        bad += [name for name, x in notes if isinstance(x, float) and not math.isfinite(x)]
        if bad:
            return bad
    return []


def of_server(name: str) -> bool:
    rules = [rule() for rule in METHODS[name].rules]
    return any(overrides(rule, "aggregate") for rule in rules)


SERVERS = [name for name in METHODS if of_server(name)]
QUICK = [name for name in SERVERS if len(METHODS[name].rules) == 1 and not METHODS[name].values]
FEW = ("spread", "zero", "huge", "tiny")


@pytest.mark.parametrize(
    ("name", "wide"),
    [(name, False) for name in QUICK] + [pytest.param(name, True, marks=pytest.mark.slow) for name in SERVERS],
)
def test_a_server_at_the_ends_of_its_inputs(name: str, wide: bool) -> None:
    wrong: dict[str, list[str]] = {}
    for method in (name, *(f"{name}:{preset}" for preset in METHODS[name].presets if wide)):
        cases = [(losses, "usual", "usual") for losses in (LOSSES if wide else FEW)]
        cases += [("usual", kind, "usual") for kind in (UPDATES if wide else ("tiny", "long", "opposite", "same"))]
        cases += [("spread", "mixed", "one in a million"), ("zero", "zero", "one in a million")]
        for losses, kind, sizes in cases:
            if found := faults(method, LOSSES[losses], vectors(kind), SIZES[sizes]):
                wrong[f"{method}: losses {losses}, updates {kind}, sizes {sizes}"] = found
    assert not wrong


def ends(name: str) -> list[str]:
    """The method with each of its numbers at either end of what is declared, or far out where there is no end."""
    found = []
    for field in {f.name: f for rule in METHODS[name].rules for f in dataclasses.fields(rule)}.values():
        allowed = field.metadata.get("allowed")
        if isinstance(allowed, Range) and field.name not in ("R", "iterations", "f"):
            far = [0, 1, 10**6] if allowed.whole else [allowed.low, allowed.high, 1e-300, 1e3, 1e10, 1e300]
            found += [f"{name}({field.name}={x})" for x in far if x in allowed]
    return found


@pytest.mark.parametrize(
    ("name", "wide"),
    [(name, False) for name in QUICK] + [pytest.param(name, True, marks=pytest.mark.slow) for name in SERVERS],
)
def test_a_server_at_the_ends_of_its_hyper_parameters(name: str, wide: bool) -> None:
    wrong = {}
    for method in ends(name):
        for losses, kind in (("spread", "mixed"), ("usual", "usual"), ("zero", "zero"))[: 3 if wide else 1]:
            if found := faults(method, LOSSES[losses], vectors(kind), SIZES["usual"]):
                wrong[f"{method}: losses {losses}, updates {kind}"] = found
    assert not wrong


def test_infinity_is_refused_where_an_equation_cannot_bear_it() -> None:
    for name, entry in METHODS.items():
        for field in {f.name: f for rule in entry.rules for f in dataclasses.fields(rule)}.values():
            allowed = field.metadata.get("allowed")
            if isinstance(allowed, Range) and allowed.high == math.inf and allowed.finite:
                with pytest.raises(ValueError, match=rf"{field.name} must be .*; found inf"):
                    parse(f"{name}({field.name}=inf)")
    with pytest.raises(ValueError, match=r"^qffl: q must be >= 0 and finite; found inf\.$"):
        parse("qffl(q=inf)")


# by mpmath
numbers = st.one_of(st.just(0.0), st.floats(-30, 30).map(lambda e: 10.0**e))
positive = st.floats(-30, 30).map(lambda e: 10.0**e)
few = {"min_size": 2, "max_size": 5}
powered = st.one_of(st.just(0.0), st.floats(-3, 3).map(lambda e: 10.0**e))


def close(found: Tensor, expected: Sequence[Any], tolerance: float = 1e-10) -> None:
    for x, y in zip(found.tolist(), expected, strict=True):
        assert abs(mp.mpf(x) - y) <= tolerance * max(1, abs(y)), (found.tolist(), [mp.nstr(e, 8) for e in expected])


def scaled(w: Sequence[Any]) -> list[Any]:
    """Weights of sum one in high precision; equal ones where all are zero."""
    total = mp.fsum(w)
    return [x / total for x in w] if total > 0 else [mp.mpf(1) / len(w)] * len(w)


def one_round(
    method: str, losses: Sequence[float], sizes: Sequence[float], key: str, updates: Tensor | None = None
) -> Cohort:
    x = torch.ones(len(losses), 3, dtype=torch.float64) if updates is None else updates
    server = Server(method, torch.zeros(x.shape[1], dtype=torch.float64), sizes)
    return server.round(x, reports=[{key: tensor(losses)}])


@settings(max_examples=15)
@given(losses=st.lists(numbers, **few), q=powered, eps=st.sampled_from([0.0, 1e-10, 1.0]), data=st.data())
def test_q_ffl_weights(losses: list[float], q: float, eps: float, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([1.0, 3.0, 1e6]), min_size=len(losses), max_size=len(losses)))
    F = [mp.mpf(x) + mp.mpf(eps) for x in losses]
    top = max(F)
    expected = scaled([n * ((f / top) ** q if top > 0 else 1) for n, f in zip(sizes, F, strict=True)])
    close(one_round(f"qffl(q={q}, eps={eps})", losses, sizes, "loss").weights, expected, 1e-9)


@settings(max_examples=15)
@given(
    losses=st.lists(positive, **few),
    q=powered,
    length=st.floats(-12, 12).map(lambda e: 10.0**e),
    L=st.sampled_from([1e-6, 1.0, 10.0, 1e6]),
)
def test_q_fed_avg_step(losses: list[float], q: float, length: float, L: float) -> None:
    updates = length * torch.ones(len(losses), 2, dtype=torch.float64)
    found = one_round(f"qffl:full(q={q}, eps=0.0, lipschitz={L})", losses, [1.0] * len(losses), "loss", updates)
    F, square = [mp.mpf(x) for x in losses], 2 * mp.mpf(length) ** 2
    h = mp.fsum(q * f ** (q - 1) * L**2 * square + L * f**q for f in F)
    assert found.coefficients is not None
    for x, f in zip(found.coefficients.tolist(), F, strict=True):
        expected = L * f**q / h
        assert abs(x - expected) <= 1e-9 * abs(expected) + mp.mpf(10) ** -290


@settings(max_examples=15)
@given(values=st.lists(numbers, **few), q=powered, floor=st.sampled_from([1e-300, 1e-30, 1e-10, 1.0]))
def test_saga_weights(values: list[float], q: float, floor: float) -> None:
    v = [max(mp.mpf(x), mp.mpf(floor)) for x in values]
    expected = scaled([(x / max(v)) ** q for x in v])
    close(one_round(f"saga(q={q}, floor={floor}, beta=1.0)", values, [1.0] * len(v), "value").weights, expected, 1e-9)


@settings(max_examples=15)
@given(losses=st.lists(numbers, **few), gamma=st.sampled_from([1e-6, 0.01, 1.0, 1e6]))
def test_afl_climbs(losses: list[float], gamma: float) -> None:
    """The next multipliers, from equal ones: by bisection for the threshold of the projection."""
    x = torch.ones(len(losses), 1, dtype=torch.float64)
    server = Server(f"afl(gamma={gamma})", torch.zeros(1, dtype=torch.float64), [1.0] * len(losses))
    server.round(x, reports=[{"loss": tensor(losses)}])
    v = [mp.mpf(1) / len(losses) + mp.mpf(gamma) * mp.mpf(f) for f in losses]
    ranked = sorted(v, reverse=True)
    rho = max(k for k in range(1, len(v) + 1) if ranked[k - 1] * k > mp.fsum(ranked[:k]) - 1)
    threshold = (mp.fsum(ranked[:rho]) - 1) / rho
    close(server.state[0]["lam"], [max(y - threshold, mp.mpf(0)) for y in v], 1e-9)


def test_multipliers_of_absent_clients_are_projected_with_the_others() -> None:
    server = Server("afl(gamma=1.0)", torch.zeros(1, dtype=torch.float64), [1.0] * 3)
    server.round(torch.ones(2, 1, dtype=torch.float64), ids=[0, 2], reports=[{"loss": tensor([1e30, 1e30])}])
    assert server.state[0]["lam"].tolist() == pytest.approx([0.5, 0.0, 0.5])


@settings(max_examples=15)
@given(lengths=st.lists(st.floats(-30, 12).map(lambda e: 10.0**e), **few), beta=st.sampled_from([0.0, 1e-9, 0.4, 1.0]))
def test_fael_weights(lengths: list[float], beta: float) -> None:
    updates = tensor(lengths)[:, None] * torch.ones(1, 2, dtype=torch.float64)
    found = one_round(f"fael(beta={beta})", lengths, [1.0] * len(lengths), "none", updates).weights
    d = scaled([mp.mpf(x) ** 2 for x in lengths])
    close(found, scaled([mp.mpf(1) / len(d) + mp.mpf(beta) * x for x in d]))


@settings(max_examples=15)
@given(
    gaps=st.lists(st.floats(-30, 30).map(lambda e: 10.0**e), **few, unique=True),
    d=st.sampled_from([0.0, 1e-6, 0.2, 1000.0]),
)
def test_fedga_weights(gaps: list[float], d: float) -> None:
    n = len(gaps)
    deviations = (
        tensor(gaps) - tensor(gaps).mean()
    )  # in doubles, where gaps that differ in their last bit have no exact mean
    a = FedGA(d=d)._adjust(torch.full((n,), 1 / n, dtype=torch.float64), deviations, d, tensor(1.0))
    away = [mp.mpf(x) for x in deviations.tolist()]
    expected = scaled([max(mp.mpf(1) / n + d * x / max(map(abs, away)), mp.mpf(0)) for x in away])
    close(a, expected, 1e-8)


@settings(max_examples=15)
@given(offset=st.sampled_from([0.0, 1.0, 1e6, 1e12]), apart=st.permutations([0.0, 1.0, 2.0, 100.0, 300.0]))
def test_krum_among_updates_that_are_nearly_the_same(offset: float, apart: list[float]) -> None:
    """Differences of squared lengths would be rounding alone."""
    small = offset * 1e-12 if offset else 1e-30
    updates = (tensor(apart)[:, None] * small + offset).expand(-1, 6).contiguous()
    exact = [
        [sum((mp.mpf(x) - mp.mpf(y)) ** 2 for x, y in zip(a, b, strict=True)) for b in updates.tolist()]
        for a in updates.tolist()
    ]
    expected = [mp.fsum(sorted(row)[1:3]) for row in exact]  # of 5 clients, of whom 1 may lie, 2 neighbours
    found = Krum(f=1)._scores(maths.gram(updates), updates)
    for x, y in zip(found.tolist(), expected, strict=True):
        assert abs(x - y) <= mp.mpf(1e-6) * y


SCALELESS = (
    "fedfv",
    "fedlf",
    "fedpw",
    "fedgh",
    "fedgh(form=sequential)",
    "principal",
    "krum",
    "median",
    "geometric-median(nu=1e-300)",
)
SCALELESS = (*SCALELESS, "fael-exact", "clipping", "centred-clipping")


@in_one("kind", ["usual", "tiny", "long", "mixed"])
@in_one("method", SCALELESS)
def test_steps_follow_the_scale_of_the_updates(method: str, kind: str) -> None:
    """A power of two is exact: what has no scale of its own gives the same digits at another scale."""
    updates = vectors(kind, torch.float64).sub(0.1 * vectors(kind, torch.float64).mean(0))
    few_losses = tensor([3.0, 1.0, 2.0, 4.0])

    def step(by: float) -> Tensor:
        server = Server(method, torch.zeros(P, dtype=torch.float64), SIZES["usual"], LAYOUT)
        for _ in range(2):
            cohort = server.round(updates * by, reports=[{"loss": few_losses} for _ in server.rules])
        return cohort.step()

    for by in (2.0**-40, 2.0**20):
        plain, moved = step(1.0), step(by)
        size = float(plain.abs().max())
        assert torch.allclose(moved / by, plain, rtol=1e-6, atol=1e-9 * size)
        assert bool(moved.isfinite().all())


@settings(max_examples=15)
@given(w=st.lists(st.one_of(st.just(0.0), st.floats(-320, 300).map(lambda e: 10.0**e)), **few))
def test_simplex_of_any_scale(w: list[float]) -> None:
    close(maths.simplex(tensor(w)), scaled([mp.mpf(x) for x in w]))
    infinite = maths.simplex(tensor([*w, math.inf, math.inf]))
    assert infinite.tolist() == [0.0] * len(w) + [0.5, 0.5]


def test_unknown_weights_stay_unknown() -> None:
    assert maths.simplex(tensor([1.0, math.nan])).isnan().all()


@settings(max_examples=15)
@given(scale=st.floats(-10, 18).map(lambda e: 10.0**e), shorter=st.sampled_from([1.0, 1e-3, 1e-6]))
def test_the_orthogonal_part_has_no_scale(scale: float, shorter: float) -> None:
    g, g_p = torch.tensor([3.0, 4.0]) * scale, torch.tensor([1.0, 0.0]) * scale * shorter
    assert orthogonal(g, g_p).tolist() == pytest.approx([0.0, 4 * scale], rel=1e-5, abs=1e-6 * scale)
    assert orthogonal(g, torch.zeros(2)).tolist() == g.tolist()


def test_a_perturbation_has_the_length_rho_or_is_no_number() -> None:
    for scale in (1e-3, 1.0, 1e18):
        assert float(perturbation(scale * torch.ones(4), 0.05).norm()) == pytest.approx(0.05)
    assert perturbation(1e30 * torch.ones(4), 0.05).isnan().all()  # then training has diverged, and says so
    assert perturbation(torch.zeros(4), 0.05).tolist() == [0.0] * 4


class Logits:
    """A batch of which only the logits count."""

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.ok = logits, None

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(-1)


@in_one("size", [0.0, 1e-30, 1e-3, 1.0, 30.0, 1e9, 1e18, 1e30])
def test_margin_and_its_gradient(size: float) -> None:
    z = (size * torch.tensor([[3.0, -4.0]])).requires_grad_()
    term = Margin(lam=1.0).loss(Logits(z), None)  # type: ignore[arg-type]
    term.backward()
    square = (mp.mpf(5) * mp.mpf(float(torch.tensor(size)))) ** 2
    assert float(term.detach()) == pytest.approx(float(mp.log(1 + square)), rel=1e-5)
    assert z.grad is not None
    expected = [float(2 * mp.mpf(x) / (1 + square)) for x in z.flatten().tolist()]
    assert z.grad.flatten().tolist() == pytest.approx(expected, rel=1e-4, abs=1e-37)


@in_one("temperature", [1e-6, 1e-3, 0.5, 1e6, 1e30])
def test_contrast_at_any_temperature(temperature: float) -> None:
    z, near, far = (torch.tensor([x]) for x in ([1.0, 0.0], [0.6, 0.8], [0.8, -0.6]))
    expected = mp.log(1 + mp.exp((mp.mpf("0.8") - mp.mpf("0.6")) / mp.mpf(temperature)))
    assert float(contrast(z, near, far, temperature)) == pytest.approx(float(expected), rel=1e-4)


@settings(max_examples=15)
@given(c=st.lists(st.floats(0, 1), **few), beta=st.one_of(st.just(0.0), st.floats(-300, 300).map(lambda e: 10.0**e)))
def test_rewards_of_contributions(c: list[float], beta: float) -> None:
    """FedSAC's reputations; the shares of CGSV, FedAVE and CFFL."""
    top = max(map(mp.mpf, c))
    close(reputations(tensor(c), beta), [100 * mp.exp(mp.mpf(beta) * (mp.mpf(x) - top)) for x in c], 1e-9)
    t = [mp.tanh(mp.mpf(beta) * mp.mpf(x)) for x in c]
    if max(t) > mp.mpf(10) ** -290:  # else no number of this type
        close(share(tensor(c), beta), [x / max(t) for x in t], 1e-9)
    assert share(torch.zeros(2, dtype=torch.float64), beta).tolist() == [1.0, 1.0]


@in_one("kind", ["adam", "yogi", "adagrad"])
@in_one("tau", [1e-12, 1e-3, 1e12])
@in_one("size", [0.0, 1e-30, 1e-6, 1.0, 1e12])
def test_adaptive_servers(kind: str, tau: float, size: float) -> None:
    server = Server(f"fedadam(kind={kind}, tau={tau}, eta=1.0)", torch.zeros(2, dtype=torch.float64), [1.0])
    m = x = mp.mpf(0)
    v, d = mp.mpf(tau) ** 2, mp.mpf(size)
    for _ in range(3):
        server.round(torch.full((1, 2), size, dtype=torch.float64))
        m = mp.mpf("0.9") * m + mp.mpf("0.1") * d
        sign = mp.sign(v - d**2)
        v = {
            "adam": mp.mpf("0.99") * v + mp.mpf("0.01") * d**2,
            "yogi": v - mp.mpf("0.01") * d**2 * sign,
            "adagrad": v + d**2,
        }[kind]
        x += m / (mp.sqrt(v) + tau)
    close(server.theta, [x, x], 1e-9)


def test_who_takes_no_step_adds_nothing_to_fednova() -> None:
    updates = tensor([[1.0], [0.0], [4.0]])
    found = one_round("fednova", [1.0, 0.0, 2.0], [1.0, 1.0, 2.0], "a", updates)
    assert found.step().tolist() == pytest.approx([1.25 * (0.25 * 1 + 0.5 * 4 / 2)])


def test_a_refusal_names_the_numbers_of_the_user_not_the_author() -> None:
    rule = parse("qffl(q=1e5)").rules[0]
    with pytest.raises(
        guard.ServerError,
        match=r"^qffl\(q=100000\.0\) gives weights that are not numbers: .* other hyper-parameters, may help",
    ):
        guard.weights(tensor([math.nan, 0.5]), rule)
    with pytest.raises(guard.ServerError, match=r"^QFFL must set weights >= 0 that sum to 1; found a sum of 0.5"):
        guard.weights(tensor([0.5, 0.0]), rule)
    with pytest.raises(
        guard.ServerError, match=r"^qffl\(q=100000\.0\) cannot continue: its state 'v' left the range of numbers"
    ):
        guard.state({"v": torch.ones(2)}, {"v": tensor([1.0, math.inf])}, rule)
    same = {"v": tensor([1.0, math.inf])}
    guard.state(same, same, rule)  # not of this round


# contributions, likeness, reputations and axes
unequal = st.lists(st.floats(-8, 8).map(lambda e: 10.0**e), min_size=3, max_size=3)


@settings(max_examples=15)
@given(lengths=unequal, floor=st.sampled_from([0.0, 1e-6, 1.0, 1e300]), metric=st.sampled_from([0.0, 0.3, 1.0]))
def test_fedce_weights(lengths: list[float], floor: float, metric: float) -> None:
    u = vectors("usual", torch.float64)[:3] * tensor(lengths)[:, None]
    server = Server(f"fedce(floor={floor})", torch.zeros(P, dtype=torch.float64), [1.0] * 3)
    told = {"metric": tensor([metric, metric / 2, 1.0]), "measured": torch.ones(3, dtype=torch.float64)}
    found = server.round(u, reports=[told]).weights
    rows = [[mp.mpf(x) for x in row] for row in u.tolist()]
    a, b = [], [1 - mp.mpf(x) for x in told["metric"].tolist()]
    for m, own in enumerate(rows):
        rest = [mp.fsum(column) for column in zip(*(row for k, row in enumerate(rows) if k != m), strict=True)]
        long = mp.sqrt(mp.fsum(x * x for x in own) * mp.fsum(x * x for x in rest))
        a.append(1 - mp.fsum(x * y for x, y in zip(own, rest, strict=True)) / long)
    a, b = (scaled([max(x, mp.mpf(floor)) for x in v]) for v in (a, b))
    close(found, scaled([x * y for x, y in zip(a, b, strict=True)]), 1e-8)


@in_one("preset", ["ffl4mia", "nvflare2023", "nvflare2026"])
@in_one("scale", [1e-12, 1.0, 1e9])
def test_fedce_weighs_updates_of_one_direction_equally(preset: str, scale: float) -> None:
    """Their contributions are zero, and rounding is none."""
    updates = torch.linspace(-1, 2, P).expand(M, P) * scale * torch.tensor([[1.0], [1.7], [0.3], [0.9]])
    told = {"metric": torch.zeros(M), "measured": torch.ones(M)}
    server = Server(f"fedce:{preset}", torch.zeros(P), SIZES["usual"], LAYOUT)
    assert server.round(updates, reports=[told]).weights.tolist() == pytest.approx([0.25] * M)


@settings(max_examples=15)
@given(
    accuracy=st.lists(
        st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-30, 0).map(lambda e: 10.0**e)), min_size=3, max_size=3
    ),
    beta=st.sampled_from([0.0, 1e-300, 1e-6, 0.5, 1000.0]),
    clip=st.booleans(),
    sizes=st.sampled_from([(1.0, 1e6, 1.0), (1.0, 2.0, 3.0)]),
)
def test_fairfed_weights(accuracy: list[float], beta: float, clip: bool, sizes: tuple[float, ...]) -> None:
    server = Server(f"fairfed:accuracy(beta={beta}, clip={clip})", torch.zeros(2, dtype=torch.float64), sizes)
    p = bar = scaled([mp.mpf(n) for n in sizes])
    acc = [mp.mpf(x) for x in accuracy]
    for _ in range(2):
        found = server.round(torch.ones(3, 2, dtype=torch.float64), reports=[{"accuracy": tensor(accuracy)}])
        overall = mp.fsum(x * y for x, y in zip(p, acc, strict=True))
        gap = [abs(x - overall) for x in acc]
        bar = [w - beta * (g - mp.fsum(gap) / 3) for w, g in zip(bar, gap, strict=True)]
        bar = [max(x, mp.mpf(0)) for x in bar] if clip else bar
    used = found.weights if found.coefficients is None else found.coefficients
    close(used, [x / mp.fsum(bar) for x in bar], 1e-9)


@settings(max_examples=15)
@given(kl=st.lists(numbers, **few), eps=st.sampled_from([1e-300, 1e-12, 0.01, 1e300]))
def test_likeness_of_losses(kl: list[float], eps: float) -> None:
    inverse = [1 / (mp.mpf(x) + mp.mpf(eps)) for x in kl]
    close(likeness(tensor(kl), eps), [x / max(inverse) for x in inverse], 1e-9)


@settings(max_examples=15)
@given(
    accuracy=st.lists(st.one_of(st.just(0.0), st.floats(-30, 0).map(lambda e: 10.0**e)), min_size=4, max_size=4),
    alpha=st.sampled_from([1e-300, 1e-6, 5.0, 300.0, 600.0]),
    port=st.booleans(),
)
def test_reputations_of_cffl(accuracy: list[float], alpha: float, port: bool) -> None:
    before = {"reputation": tensor([0.1, 0.2, 0.3, 0.4]), "reputable": torch.ones(4, dtype=torch.bool)}
    state = {**before, "seen": torch.ones(4, dtype=torch.bool)}
    found = judged(state, torch.ones(4, dtype=torch.bool), tensor(accuracy), alpha, 0.8, 0.0, port=port)
    x, old = scaled([mp.mpf(v) for v in accuracy]), [mp.mpf(v) for v in before["reputation"].tolist()]
    if port:
        curve = [(mp.sinh(alpha * v) + v) / 2 for v in x]
    else:
        new = 1 - mp.mpf(0.8)
        curve = [mp.sinh(alpha * (mp.mpf(0.8) * r + new * v)) for r, v in zip(old, x, strict=True)]
    close(found["reputation"], scaled(curve), 1e-9)


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.floats(-3, 3).map(lambda e: 10.0**e), min_size=3, max_size=3),
    eigen=st.sampled_from(["l2_kept", "literal", "l1_all"]),
)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e12])
def test_principal_axes(scale: float, lengths: list[float], eigen: str) -> None:
    """The step with axes of the size of the model, by eigenvectors in high precision."""
    u = scale * vectors("usual", torch.float64)[:3] * tensor(lengths)[:, None]
    rule = Principal(eigen=eigen, scope="model", keep=1.0)
    p = tensor([0.2, 0.3, 0.5])
    coefficients, jumps = rule._coefficients(maths.gram(u), p)
    if jumps:
        return
    rows = mp.matrix(u.tolist())
    lam, e = mp.eigsy(rows * rows.T / 3)
    total = {"l2_kept": mp.norm(mp.matrix(lam)), "l1_all": mp.fsum(lam), "literal": None}[eigen]
    step = [mp.mpf(0)] * P
    for k in range(3):
        if lam[k] < mp.mpf(10) ** -12 * max(lam):
            continue
        axis = rows.T * e[:, k]
        axis = axis / mp.norm(axis)
        along = rows * axis
        weight = mp.fsum(mp.mpf(w) * mp.norm(rows[m, :]) * mp.sign(along[m]) for m, w in enumerate(p.tolist()))
        weight *= 1 if total is None else lam[k] / total
        step = [x + weight * y for x, y in zip(step, axis, strict=True)]
    size = max(map(abs, step))
    close((coefficients @ u) / float(size), [x / size for x in step], 1e-3)


@settings(max_examples=30)
@given(
    importance=st.lists(
        st.one_of(st.just(0.0), st.floats(-7, 30).map(lambda e: 10.0**e), st.just(-1.0)), min_size=1, max_size=6
    ),
    c=st.lists(st.floats(0, 1), min_size=2, max_size=4),
    beta=st.sampled_from([0.0, 1.0, 1e300]),
)
def test_submodels_of_fedsac(importance: list[float], c: list[float], beta: float) -> None:
    """The largest prefix that each reputation buys; a case within the slack of a tie is left out."""
    I, r = tensor(importance), reputations(tensor(c), beta)
    order = I.argsort(stable=True)
    found = prefixes(scores(I)[order].cumsum(0), r)
    positive = [max(mp.mpf(importance[k]), mp.mpf(0)) for k in order.tolist()]
    spent = [100 * mp.fsum(scaled(positive)[: k + 1]) for k in range(len(positive))]
    top = max(map(mp.mpf, c))
    for k, x in zip(found.tolist(), c, strict=True):
        bought = 100 * mp.exp(mp.mpf(beta) * (mp.mpf(x) - top))
        if min(abs(bought - s) for s in spent) > 1e-8 and bought < 100 - 1e-8:
            assert k == sum(s < bought for s in spent)
    assert max(found.tolist()) == len(importance)  # the best contributor has the whole network
