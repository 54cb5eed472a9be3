"""What clients compute from numbers at the ends of what a rule accepts: right by an independent computation, or not finite."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Out, State, Trained, Visit
from equipoise.data.batch import Batch
from equipoise.federation.guard import QuorumError, ServerError
from equipoise.methods.cffl import CFFL, largest
from equipoise.methods.ditto import Ditto
from equipoise.methods.dp import DP
from equipoise.methods.fedave import divergence
from equipoise.methods.fedce import FedCE, without
from equipoise.methods.feddyn import FedDyn
from equipoise.methods.fedga import FedGA
from equipoise.methods.fedpac import FedPAC
from equipoise.methods.fedproc import FedProc
from equipoise.methods.fedproto import FedProto, local_prototypes
from equipoise.methods.fedprox import FedProx
from equipoise.methods.gsam import orthogonal
from equipoise.methods.logit_adjust import LogitAdjust
from equipoise.methods.moon import contrast
from equipoise.methods.saga import SAGA
from equipoise.methods.scaffold import Scaffold
from helpers import federation, in_one, samples, tensor

mp.mp.dps = 60
SINGLE = torch.finfo(torch.float32).max
AT_ZERO = Trained(torch.zeros(0), torch.zeros(3))  # what training did, where a rule looks at it only
SIZES = (0.0, 1e-30, 1e-12, 1e-8, 1.0, 1e18, 1e30)
STRENGTHS = (0.0, 1e-30, 1.0, 1e10, 1e30)
exponents = st.floats(-30, 30).map(lambda e: 10.0**e)


class Told:
    """A client's data as a rule asks about them: what a test says of them, whatever the model."""

    layout, n_params = (2, 1), 3

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: self.answers[name]


def visit(
    received: Tensor | None = None, state: State | None = None, message: State | None = None, **more: Any
) -> Visit:
    given_here = {k: more.pop(k) for k in ("done", "normal", "shared") if k in more}
    start = torch.zeros(3) if received is None else received
    oracle: Any = Told(**more)
    return Visit(start, 3, state or {}, message or {}, oracle, 0, 10, **given_here)


def batch(logits: Tensor, features: Tensor, y: Sequence[int]) -> Out:
    return Out(logits, features, torch.tensor(y), None, lambda vector: (logits, features))


def exact(x: Tensor) -> list[Any]:
    """The numbers of a tensor as they are, in high precision."""
    return [mp.mpf(v) for v in x.flatten().tolist()]


def close(found: Tensor, expected: Sequence[Any], relative: float = 1e-5, absolute: float = 1e-37) -> None:
    """Right in single precision, or not finite where the right number is out of its range."""
    assert len(found.flatten()) == len(expected)
    for x, y in zip(found.flatten().tolist(), expected, strict=True):
        shown = f"{found.tolist()}, expected {[mp.nstr(mp.mpf(e), 8) for e in expected]}"
        if abs(y) > SINGLE:
            assert not math.isfinite(x), shown
        else:
            assert abs(mp.mpf(x) - y) <= relative * abs(y) + absolute, shown


def cosine(z: Sequence[Any], p: Sequence[Any]) -> Any:
    lengths = mp.sqrt(mp.fsum(x * x for x in z) * mp.fsum(x * x for x in p))
    return mp.fsum(x * y for x, y in zip(z, p, strict=True)) / lengths if lengths else mp.mpf(0)


def cosine_slope(z: Sequence[Any], p: Sequence[Any]) -> list[Any]:
    """The gradient of the cosine by z; zero at zero."""
    length, other = (mp.sqrt(mp.fsum(x * x for x in v)) for v in (z, p))
    if not length or not other:
        return [mp.mpf(0)] * len(z)
    cos = cosine(z, p)
    return [(y / other - cos * x / length) / length for x, y in zip(z, p, strict=True)]


# losses on features
@in_one("size", SIZES)
@in_one(("proto", "temperature"), [(1.0, 0.5), (1e-30, 1e-2), (1e12, 1e30), (0.0, 1.0)])
def test_prototypes_as_anchors(size: float, proto: float, temperature: float) -> None:
    z = (size * torch.tensor([[3.0, -4.0]])).requires_grad_()
    P = proto * torch.tensor([[1.0, 0.2], [0.3, -1.0], [5.0, 5.0]])
    here = visit(message={"proto": P, "known": torch.tensor([[1.0], [1.0], [0.0]])})
    term = FedProc(temperature=temperature)._contrast(batch(torch.zeros(1, 3), z, [0]), here)
    term.backward()
    point, anchors = exact(z.detach()), [exact(p) for p in P[:2]]
    powers = [mp.exp(cosine(point, p) / temperature) for p in anchors]
    close(term.detach(), [-mp.log(powers[0] / mp.fsum(powers))], 1e-4)
    pulls = [w / mp.fsum(powers) - (k == 0) for k, w in enumerate(powers)]
    slopes = [cosine_slope(point, p) for p in anchors]
    expected = [mp.fsum(w * s[d] for w, s in zip(pulls, slopes, strict=True)) / temperature for d in range(2)]
    assert z.grad is not None
    close(z.grad, expected, 1e-3)


@in_one(("near", "far"), [(1.0, 1.0), (1e-30, 1e30), (1e30, 1e-12), (0.0, 1.0)])
@in_one("size", SIZES)
def test_contrast_of_models(size: float, near: float, far: float) -> None:
    z = (size * torch.tensor([[3.0, -4.0]])).requires_grad_()
    others = near * torch.tensor([[1.0, 0.2]]), far * torch.tensor([[0.3, -1.0]])
    term = contrast(z, *others, 0.5).sum()
    term.backward()
    point, (g, p) = exact(z.detach()), (exact(x) for x in others)
    away = mp.exp((cosine(point, p) - cosine(point, g)) / mp.mpf("0.5"))
    close(term.detach(), [mp.log(1 + away)])
    slopes = zip(cosine_slope(point, p), cosine_slope(point, g), strict=True)
    assert z.grad is not None
    close(z.grad, [away / (1 + away) * (a - b) / mp.mpf("0.5") for a, b in slopes], 1e-3)


@pytest.mark.parametrize("lam", [0.0, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("size", SIZES)
def test_the_pull_to_prototypes(size: float, lam: float) -> None:
    """Only its gradient trains; a class without a prototype has none, however long the features are."""
    z = (size * torch.tensor([[3.0, -4.0], [1.0, 1.0]])).requires_grad_()
    P = size * torch.tensor([[1.0, 0.2], [0.0, 0.0]])
    known = torch.tensor([[1.0], [0.0]])
    y = torch.tensor([0, 1])
    FedProto(lam=lam).loss(batch(torch.zeros(2, 2), z, [0, 1]), visit(message={"proto": P, "known": known})).backward()
    gap = [a - b for a, b in zip(exact(z.detach()[0]), exact(P[0]), strict=True)]
    assert z.grad is not None
    close(z.grad, [mp.mpf(lam) * x / 2 for x in gap] + [mp.mpf(0)] * 2)
    own, z.grad = 2 * P + 0, None
    here = visit(message={"proto": P, "known": known}, moments=(own.double(), None, None))
    assert torch.equal(FedPAC(lam=lam)._targets(y, here), torch.stack([P[0], own[1]]))
    FedPAC(lam=lam).loss(batch(torch.zeros(2, 2), z, [0, 1]), here).backward()
    close(z.grad[0], [mp.mpf(lam) * x / 2 for x in gap])


@in_one("counts", [(1, 999_999, 0), (5, 5, 0), (0, 1, 0), (1, 1, 1)])
@in_one("tau", [*STRENGTHS, 1e300])
@in_one("size", [0.0, 1e-30, 1.0, 1e9])
def test_adjusted_logits(size: float, tau: float, counts: tuple[int, ...]) -> None:
    """Gradient of what is trained on: softmax of the adjusted logits less the label; 0 for a class the client lacks."""
    z = (size * torch.tensor([[3.0, -4.0, 1.0]])).requires_grad_()
    out = batch(z, torch.zeros(1, 2), [1])
    (out.cross_entropy + LogitAdjust(tau=tau).loss(out, visit(class_counts=torch.tensor(counts)))).backward()
    prior = [mp.mpf(n) / sum(counts) for n in counts]
    best = max(prior)
    there = [k for k, p in enumerate(prior) if p or not tau]
    shifted = {
        k: x + (tau * mp.log(prior[k] / best) if tau else 0) for k, x in enumerate(exact(z.detach())) if k in there
    }
    top = max(shifted.values())
    weights = {k: mp.exp(x - top) for k, x in shifted.items()}
    share = [weights.get(k, mp.mpf(0)) / mp.fsum(weights.values()) for k in range(3)]
    assert z.grad is not None
    close(z.grad, [p - (k == 1) for k, p in enumerate(share)], 1e-4, 1e-5)


# corrections and control variates
@in_one("size", SIZES)
@in_one("strength", STRENGTHS[1:])
def test_pulls_to_the_model_received(size: float, strength: float) -> None:
    theta = size * torch.tensor([3.0, -4.0, 1.0])
    here = visit(state={"g": 2 * theta})
    gap = exact(theta)
    for pull in (FedProx(mu=strength), Ditto(lam=strength)):
        close(pull.correction(theta, here), [strength * x for x in gap])
    close(FedDyn(alpha=strength).correction(theta, here), [strength * x - 2 * x for x in gap], 1e-5)
    lengths = [abs(5 * mp.mpf(x)) / 5 for x in (size * 5, size * 5, size)]
    unit = [x / n if n else mp.mpf(0) for x, n in zip(gap, lengths, strict=True)]
    close(FedProx(mu=strength, form="norm").correction(theta, here), [strength * x for x in unit])
    _, after = FedDyn(alpha=strength).finish(theta, here)
    close(after["g"], [2 * x - strength * x for x in gap], 1e-5)


@in_one("rho", [0.0, 0.9, 0.999, 0.99999, 1 - 1e-9, 1 - 1e-15])
@in_one("steps", [1, 2, 7, 1000])
@in_one("lr", [1e-30, 1.0, 1e30])
def test_control_variates_are_divided_by_the_distance_travelled(rho: float, steps: int, lr: float) -> None:
    exactly = speed = mp.mpf(0)
    for _ in range(steps):  # constant unit gradient
        speed = mp.mpf(rho) * speed + 1
        exactly += speed
    travel = eq.SGD(lr, rho).travel(torch.tensor([float(steps)], dtype=torch.float64))
    close(travel, [mp.mpf(lr) * exactly], 1e-7, 0)
    moved = lr * torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    here = visit(zero, {"c_i": zero}, {"c": zero}, done=Trained(moved, zero), travel=travel)
    here.oracle.travel = travel
    _, after = Scaffold().finish(zero, here)
    close(after["c_i"], [x / exactly for x in (3, -4, 0)], 1e-6)


@settings(max_examples=15)
@given(now=exponents, last=exponents, seen=st.sampled_from([0.0, 1.0]))
def test_gaps_of_losses(now: float, last: float, seen: float) -> None:
    state = {"last": torch.tensor(last), "seen": torch.tensor(seen)}
    report, after = FedGA().finish(torch.zeros(3), visit(state=state, loss=torch.tensor(now), done=AT_ZERO))
    x, y = exact(torch.tensor([now, last]))
    close(report["gap"], [seen * (x - y)], 1e-6)
    assert after["seen"].item() == 1
    assert after["last"].item() == pytest.approx(now)


@in_one("size", SIZES)
@in_one("c", [0.0, 1e-30, 0.3, 0.999, 1 - 1e-5])
def test_the_model_of_the_others(size: float, c: float) -> None:
    """What the others made of the mean; rounding grows by 1 / (1 - c), as it has in the mean itself."""
    own, others = (size * torch.tensor(v, dtype=torch.float64) for v in ([3.0, -4.0, 1.0], [1.0, 2.0, -7.0]))
    mean = c * own + (1 - c) * others
    close(without(mean, own, torch.tensor([c], dtype=torch.float64)), exact(others), 1e-9, 0)
    state = {"previous": own}
    for told, measured in ((c, 1.0), (1.0, 0.0), (1 - 1e-7, 0.0), (-1.0, 0.0)):
        here = visit(mean, state, {"c": tensor(told)}, balanced_accuracy=torch.tensor(0.5), done=Trained(mean, own))
        report, _ = FedCE().finish(own, here)
        assert (float(report["measured"]), float(report["metric"])) == (measured, measured / 2)


@in_one("size", SIZES)
@in_one("rho", [0.0, 1e-30, 0.1, 1e30])
def test_sharpness_is_measured_at_the_search_distance(size: float, rho: float) -> None:
    asked: list[Tensor] = []
    here = visit(torch.zeros(3), gradient=size * torch.tensor([3.0, -4.0, 0.0]))
    here.oracle.tally = lambda vector: (asked.append(vector), SimpleNamespace(mean_loss=tensor(len(asked))))[1]  # type: ignore[method-assign]
    report, _ = SAGA(rho=rho, tau=0.0).finish(torch.zeros(3), here)
    length = 5 * mp.mpf(float(torch.tensor(size)))
    if size > 1e18 or rho * size > SINGLE:  # training has diverged, and the model is no number
        assert not asked[0].isfinite().all()
    else:
        unit = length / (length + mp.mpf(10) ** -12)
        close(asked[0], [rho * unit * x for x in (mp.mpf("0.6"), mp.mpf("-0.8"), 0)], 1e-5, 1e-33)
    assert float(report["value"]) == -1.0  # the loss there less that of the model itself


# uploads
@in_one("size", SIZES[:-2])  # longer ones are refused
@in_one("clip", [1e-300, 1e-30, 1e-3, 1.0, 1e30, 1e300, math.inf])
def test_clipped_updates(size: float, clip: float) -> None:
    update = size * torch.tensor([3.0, -4.0, 0.0])
    length = mp.sqrt(mp.fsum(x * x for x in exact(update)))
    factor = min(mp.mpf(1), mp.mpf(clip) / length) if length else mp.mpf(1)
    close(DP(clip=clip, noise=0.0).upload(update, visit()), [factor * x for x in exact(update)], 1e-5)
    cut = [max(min(x, mp.mpf(clip)), -mp.mpf(clip)) for x in exact(update)]
    close(CFFL(clip=clip).upload(update, visit()), cut, 1e-5, 1e-44)


@in_one("noise", [1e-6, 1.0, 1e30, 1e300])
@in_one("clip", [1e-6, 1.0, 1e30])
def test_noise_is_in_proportion_to_the_clip_or_out_of_range(noise: float, clip: float) -> None:
    if clip == noise == 1e-6:
        with pytest.raises(ValueError, match="in float32"):
            DP(clip=clip, noise=noise)
        return
    drawn = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for bad in (math.nan, math.inf):
        sent = DP(clip=clip, noise=noise).upload(torch.tensor([1.0, bad, 0.0]), visit(normal=lambda: drawn))
        close(sent.float(), [mp.mpf(noise) * clip * x for x in (1, -2, mp.mpf("0.5"))])


@in_one("scale", [2.0**-90, 1.0, 2.0**90])
@in_one("share", [0.0, 1e-30, 0.3, 0.5, 1.0])
@in_one("up", [False, True])
def test_the_largest_entries(scale: float, share: float, up: bool) -> None:
    size = scale * torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0, 0.5]])
    kept = largest(size, tensor([[share]]), (4, 2), up=up)
    for part, mask in zip(size[0].split([4, 2]), kept[0].split([4, 2]), strict=True):
        exactly = Fraction(share).limit_denominator(10**6) * len(part)
        n = math.ceil(exactly) if up else math.floor(exactly)
        assert sorted(part[mask].tolist(), reverse=True) == sorted(part.tolist(), reverse=True)[:n]


@in_one("size", SIZES[1:])
@in_one("other", SIZES)
def test_the_orthogonal_part_at_any_scale(size: float, other: float) -> None:
    found = orthogonal(size * torch.tensor([3.0, 4.0]), other * torch.tensor([1.0, 0.0]))
    close(found, exact(size * torch.tensor([0.0 if other else 3.0, 4.0])), 1e-6)


# reports
lists = st.lists(st.one_of(st.just(0.0), exponents), min_size=1, max_size=5)


@settings(max_examples=20)
@given(own=lists, server=lists, ordered=st.booleans())
def test_divergence_of_losses(own: list[float], server: list[float], ordered: bool) -> None:
    padded = torch.nn.functional.pad(tensor(own), (0, 2), value=7.0)
    there = torch.arange(len(padded)) < len(own)
    found = divergence(padded, there, tensor(server), ordered=ordered)
    if ordered:
        own, server = sorted(own), sorted(server)
    n = min(len(own), len(server))
    a, b = ([max(mp.mpf(x), mp.mpf("1e-12")) for x in v[:n]] for v in (own, server))
    p, s = ([x / mp.fsum(v) for x in v] for v in (a, b))
    expected = mp.fsum(x * mp.log(x / y) for x, y in zip(p, s, strict=True))
    assert abs(mp.mpf(float(found)) - expected) < 1e-12 * (1 + abs(expected))


@in_one("apart", [0.0, 1e-30, 1e-3, 1.0])
@in_one("offset", [0.0, 1.0, 1e3, 1e5])
@in_one("n", [1, 9])
def test_variances_of_features(offset: float, apart: float, n: int) -> None:
    """A client of one class, whose features are nearly the same: differences of squares would be rounding alone."""
    drawn = torch.randn(n, 2, generator=torch.Generator().manual_seed(3))
    z = offset + apart * drawn
    found = statistics(z, torch.zeros(n, dtype=torch.int64))
    exactly = [[mp.mpf(x) for x in row] for row in z.tolist()]
    mean = [mp.fsum(column) / n for column in zip(*exactly, strict=True)]
    expected = mp.fsum((x - m) ** 2 for row in exactly for x, m in zip(row, mean, strict=True)) / n**2
    close(found["V"], [expected], 1e-4, 1e-15 * offset**2 + 1e-40)
    close(found["H"], [*mean, 0, 0], 1e-6)
    assert float(found["V"]) >= 0


def statistics(z: Tensor, y: Tensor) -> State:
    """What a client of FedPAC reports whose features are ``z`` [n, 2] of the classes ``y`` [n]."""
    from equipoise.core.oracle import Oracle

    ok = torch.ones(len(z), dtype=torch.bool)
    oracle: Any = Oracle(None, SimpleNamespace(sizes=torch.tensor(len(z))), None, None, 0)  # type: ignore[arg-type]
    oracle.passes = lambda vector: iter([(z, z, Batch(z, y), ok)])
    here = Visit(torch.zeros(0), 0, {}, {"proto": torch.zeros(2, 2)}, oracle, 0, 10, done=AT_ZERO)
    report, _ = FedPAC().finish(torch.zeros(0), here)
    return report


@in_one("size", SIZES)
def test_means_of_classes(size: float) -> None:
    z, y = size * torch.tensor([[3.0, -4.0], [1.0, 2.0], [5.0, 5.0]]), torch.tensor([0, 0, 2])
    here = visit(features=(z, y, torch.ones(3, dtype=torch.bool)), done=AT_ZERO)
    found = local_prototypes(here, 4, weighted=True)
    assert found["share"].tolist() == [2.0, 0.0, 1.0, 0.0]
    rows = exact(z)
    close(found["proto"], [rows[0] + rows[2], rows[1] + rows[3], 0, 0, rows[4], rows[5], 0, 0])


def least_on_simplex(Q: list[list[Any]]) -> list[Any]:
    """The point of the simplex at which a quadratic form is least, by trying every support."""
    best: tuple[Any, list[Any]] = (mp.inf, [])
    n = len(Q)
    for k in range(1, n + 1):
        for on in itertools.combinations(range(n), k):
            try:
                b = mp.lu_solve(mp.matrix([[Q[i][j] for j in on] for i in on]), mp.matrix([1] * k))
            except ZeroDivisionError:
                continue
            if any(x < 0 for x in b) or not mp.fsum(b):
                continue
            a = [mp.mpf(0)] * n
            for i, x in zip(on, b, strict=True):
                a[i] = x / mp.fsum(b)
            value = mp.fsum(a[i] * Q[i][j] * a[j] for i in range(n) for j in range(n))
            best = min(best, (value, a), key=lambda pair: pair[0])
    return best[1]


@settings(max_examples=8, deadline=None)
@given(
    scale=st.floats(-28, 11).map(lambda e: 10.0**e),
    apart=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    V=st.lists(st.sampled_from([0.1, 1.0, 7.0, 1e3]), min_size=3, max_size=3),
)
def test_mixtures_of_classifiers(scale: float, apart: float, V: list[float]) -> None:
    H = scale * apart * torch.tensor([[[1.0, 2.0]], [[2.0, 1.0]], [[-1.0, 0.5]]], dtype=torch.float64)
    found = FedPAC(threshold=0.0)._mixtures(H, scale**2 * tensor(V))
    rows = [exact(h) for h in H]
    for m, a in enumerate(found):
        away = [[x - y for x, y in zip(rows[m], row, strict=True)] for row in rows]
        Q = [
            [
                mp.fsum(x * y for x, y in zip(away[i], away[j], strict=True)) + (i == j) * mp.mpf(scale) ** 2 * V[i]
                for j in range(3)
            ]
            for i in range(3)
        ]
        for x, y in zip(a.tolist(), least_on_simplex(Q), strict=True):
            assert abs(x - y) < 1e-6
    alone = FedPAC()._mixtures(torch.zeros(3, 1, 2), torch.zeros(3))
    assert torch.equal(alone, torch.eye(3, dtype=torch.float64))


# whole visits
ROUNDS = ("fedproc", "fedpac(threshold=1.0)", "logit-adjust(tau=1e300)", "fedsac(beta=1e300)", "finetune")
WIDE = (
    *("fedproto(lam=1e300)", "fedprox(mu=1e300)", "feddyn(alpha=1e-300)", "ditto(lam=1e300)", "scaffold(eta=1e300)"),
    *("moon(temperature=1e-6)", "cffl(theta_u=1e-300)", "saga(rho=1e300)", "fedave(eps=1e-300)", "cgsv(gamma=1e300)"),
    *(
        "fedce",
        "fedga(d=1000.0)",
        "dp(clip=1e-300, noise=0)",
        "dp(noise=1e300)",
        "gsam(rho=1e300)",
        "fedism+",
        "fedld",
        "fedsac:literal",
    ),
    *("ditto-personal(lam=1e300)", "fedsac(beta=0.0)", "fedsac-no-allocation", "fedsac-no-aggregation"),
)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
@pytest.mark.parametrize("method", [*ROUNDS, *(pytest.param(name, marks=pytest.mark.slow) for name in WIDE)])
def test_whole_rounds_give_finite_models_or_are_refused(method: str, size: float) -> None:
    """One client has one sample, another one class only."""
    (x, y), (x2, _), last = samples(1, 0), samples(5, 1), samples(4, 2)
    data = [(size * x, y), (size * x2, torch.ones(5, dtype=torch.int64)), (size * last[0], last[1])]
    fed = federation(
        method, data=data, server_validation=last, contribution=[0.1, 0.5, 0.9], participation=1.0, epochs=1
    )
    with contextlib.suppress(QuorumError, ServerError):
        fed.fit(2, progress=False)
    numbers = fed.progress.tensors().items()
    assert not [key for key, x in numbers if x.is_floating_point() and not x.isfinite().all()]
