"""Weights from secure sums: the protocols against SAGA in clear text, and what the server gets to see."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.flower.secagg import masks as secure
from equipoise.flower.secagg.masks import DropOutError, SecureSum
from equipoise.methods.saga import SAGA
from helpers import Server, normal, tensor

N, G, Q, BETA = 6, 5, 2.0, 0.5
COHORTS = [[0, 1, 2, 3, 4, 5], [0, 2, 3], [1, 4], [0, 1, 2, 3, 4, 5], [3, 4, 5], [1, 2]]


class Protocol:
    """All clients and the server of a protocol in one place; ``seen`` is everything the server was sent."""

    def __init__(self, beta: float = BETA, q: float = Q, bits: int = 44) -> None:
        self.beta, self.q, self.bits, self.t = beta, q, bits, 0
        self.keys = secure.agree(range(N))
        self.last = [0.0] * N  # of each client, kept there
        self.reference, self.weights = 1.0, dict[int, float]()
        self.seen: list[Tensor] = []

    def total(self, phase: str, contents: dict[int, Tensor]) -> Tensor:
        sums = SecureSum(tuple(contents), f"round {self.t}, {phase}", limit=2.0**14, bits=self.bits)
        sent = {k: sums.masked(k, x, self.keys[k]) for k, x in contents.items()}
        self.seen += sent.values()
        return sums.total(sent)

    def scalars(self, ids: Sequence[int], values: Sequence[float]) -> dict[int, float]:
        return {k: secure.scalar(v, self.q, self.reference) for k, v in zip(ids, values, strict=True)}

    def done(self, a: dict[int, float], A: float, U: float) -> None:
        self.weights = {k: secure.weight(a[k], A, self.last[k], U, self.beta) for k in a}
        for k, w in self.weights.items():
            self.last[k] = w
        self.reference, self.t = secure.reference(A, len(a), self.q, self.reference), self.t + 1

    def p0(self, ids: Sequence[int], values: Sequence[float], models: Tensor) -> Tensor:
        a = self.scalars(ids, values)
        A, model = secure.mean(self.total("P0", {k: secure.weighted(a[k], models[k]) for k in ids}))
        self.reference, self.t = secure.reference(A, len(a), self.q, self.reference), self.t + 1
        return model

    def p1(self, ids: Sequence[int], values: Sequence[float], models: Tensor) -> Tensor:
        a = self.scalars(ids, values)
        contents = {k: secure.doubled(a[k], self.last[k], models[k]) for k in ids}
        A, U, model = secure.smoothed(self.total("P1", contents), self.beta)
        self.done(a, A, U)
        return model

    def p2(self, ids: Sequence[int], values: Sequence[float], models: Tensor, gone: Sequence[int] = ()) -> Tensor:
        a = self.scalars(ids, values)
        A, U = self.total("phase 1", {k: tensor([a[k], self.last[k]]) for k in ids}).tolist()
        w = {k: secure.weight(a[k], A, self.last[k], U, self.beta) for k in ids}
        there = [k for k in ids if k not in gone]
        _, model = secure.mean(self.total("phase 2", {k: secure.weighted(w[k], models[k]) for k in there}))
        self.done(a, A, U)
        return model


def plain(server: Server, ids: Sequence[int], values: Sequence[float], models: Tensor) -> Tensor:
    """The same round of SAGA in clear text: models [N, G] are those trained, the step starts where the server is."""
    server.round(models[list(ids)] - server.theta, list(ids), [{"value": tensor(values)}])
    return server.theta


def values_of(t: int, n: int) -> list[float]:
    return (0.1 * 1.5**t * (normal(n, seed=t).abs() + 0.2)).tolist()


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("name", ["p1", "p2"])
def test_the_moving_average_over_rounds_with_changing_cohorts(name: str, q: float) -> None:
    protocol, server = Protocol(q=q), Server(SAGA(q=q, beta=BETA), normal(G), [1.0] * N)
    for t, ids in enumerate(COHORTS):
        values, models = values_of(t, len(ids)), normal(N, G, seed=20 + t)
        got = getattr(protocol, name)(ids, values, models)
        assert torch.allclose(got, plain(server, ids, values, models), rtol=0, atol=1e-10), t
        stored = [protocol.last[k] for k in range(N)]
        assert stored == pytest.approx(server.state[0]["w"].tolist(), abs=1e-10)


@pytest.mark.parametrize("name", ["p0", "p1", "p2"])
def test_without_a_moving_average_all_three_agree(name: str) -> None:
    protocol, server = Protocol(beta=1.0), Server(SAGA(beta=1.0), normal(G), [1.0] * N)
    for t, ids in enumerate(COHORTS):
        values, models = values_of(t, len(ids)), normal(N, G, seed=20 + t)
        got = getattr(protocol, name)(ids, values, models)
        assert torch.allclose(got, plain(server, ids, values, models), rtol=0, atol=1e-10), t


def test_without_sampling_the_sum_of_last_weights_is_one() -> None:
    """So u_k need not be sent: U = 1 gives the same weights."""
    protocol = Protocol()
    ids = range(N)
    for t in range(4):
        values = values_of(t, N)
        a = protocol.scalars(ids, values)
        before = list(protocol.last)
        A = sum(a.values())
        protocol.p2(ids, values, normal(N, G, seed=t))
        if t:
            expected = [secure.weight(a[k], A, before[k], 1.0, BETA) for k in ids]
            assert protocol.last == pytest.approx(expected, abs=1e-10)


def test_the_weights_unroll_to_the_sums_and_the_clients_own_numbers() -> None:
    """w_{k,t} = beta sum_{s=2..t} (1 - beta)^(t-s) a_{k,s} / A_s + (1 - beta)^(t-1) a_{k,1} / A_1."""
    protocol, fresh = Protocol(), []
    for t in range(5):
        values = values_of(t, N)
        powers = [v**Q for v in values]
        fresh.append([p / sum(powers) for p in powers])
        protocol.p2(range(N), values, normal(N, G, seed=t))
    t = len(fresh)
    for k in range(N):
        w = BETA * sum((1 - BETA) ** (t - s) * fresh[s - 1][k] for s in range(2, t + 1))
        assert protocol.last[k] == pytest.approx(w + (1 - BETA) ** (t - 1) * fresh[0][k], abs=1e-10)


def test_numbers_of_the_published_protocol() -> None:
    """Three clients, S = 0.1431, 0.0886, 0.1284, q = 2: a, A and the first weights by hand."""
    S = [0.1431, 0.0886, 0.1284]
    a = [secure.scalar(v, 2.0) for v in S]
    assert a == pytest.approx([0.02047761, 0.00784996, 0.01648656], rel=1e-12)
    w = [secure.weight(x, sum(a)) for x in a]
    assert w == pytest.approx([x / 0.04481413 for x in (0.02047761, 0.00784996, 0.01648656)], rel=1e-12)
    assert secure.weight(0.2, 1.0, 0.3, 0.6, 0.25) == pytest.approx(0.25 * 0.2 + 0.75 * 0.5)


# clients that vanish
def test_a_drop_out_known_before_phase_2_is_divided_out() -> None:
    protocol, models = Protocol(), normal(N, G)
    protocol.p2(range(N), values_of(0, N), models)
    values, before = values_of(1, N), list(protocol.last)
    a = [v**Q for v in values]
    w = [BETA * x / sum(a) + (1 - BETA) * u for x, u in zip(a, before, strict=True)]
    got = protocol.p2(range(N), values, models, gone=[1, 4])
    there = [0, 2, 3, 5]
    expected = sum(w[k] * models[k] for k in there) / sum(w[k] for k in there)
    assert torch.allclose(got, expected, rtol=0, atol=1e-10)


def test_a_drop_out_after_masking_aborts() -> None:
    ids = (3, 5, 8)
    keys, sums = secure.agree(ids), SecureSum(ids, "round 7, phase 2")
    sent = {k: sums.masked(k, normal(4, seed=k), keys[k]) for k in ids}
    del sent[5]
    with pytest.raises(
        DropOutError, match=r"round 7, phase 2: no masked vector of client 5, so the masks do not cancel"
    ):
        sums.total(sent)
    again = replace(sums, ids=(3, 8), label="round 7, phase 2, again")
    total = again.total({k: again.masked(k, normal(4, seed=k), keys[k]) for k in (3, 8)})
    assert torch.allclose(total, normal(4, seed=3) + normal(4, seed=8), rtol=0, atol=1e-9)


def test_a_summand_of_somebody_else_is_refused() -> None:
    keys, sums = secure.agree((0, 1, 2)), SecureSum((0, 1), "a")
    sent = {k: sums.masked(k, normal(2), keys[k]) for k in (0, 1)}
    with pytest.raises(ValueError, match=r"a: client 2 is not part of this sum over \[0, 1\]"):
        sums.total(sent | {2: sent[0]})


# what the server sees
def uniform(x: Tensor) -> bool:
    """Whether the bytes of 64-bit integers look uniform: chi-square over 256 values within six standard deviations."""
    counts = torch.bincount(x.view(torch.uint8).long(), minlength=256).double()
    expected = counts.sum() / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    return abs(chi - 255) < 6 * math.sqrt(2 * 255)


def test_a_masked_vector_looks_uniform_whatever_is_in_it() -> None:
    keys = secure.agree((0, 1, 2))
    sums = SecureSum((0, 1, 2), "x")
    for content in (torch.zeros(20_000).double(), torch.full((20_000,), 1e5).double(), normal(20_000)):
        assert uniform(sums.masked(0, content, keys[0]))
    encoded = SecureSum((0, 1, 2), "x").total({k: torch.zeros(20_000).long() for k in range(3)})
    assert not uniform((encoded + 1).long())  # the test can fail


def test_masks_differ_between_sums_clients_and_agreements() -> None:
    content = normal(1000)
    keys, other = secure.agree((0, 1, 2)), secure.agree((0, 1, 2))
    a, b = (SecureSum((0, 1, 2), label) for label in ("phase 1", "phase 2"))
    views = [a.masked(0, content, keys[0]), b.masked(0, content, keys[0]), a.masked(1, content, keys[1])]
    views.append(a.masked(0, content, other[0]))
    for i, one in enumerate(views):
        for two in views[:i]:
            assert not bool((one == two).any())
            assert uniform(one - two)


def test_the_sum_of_all_but_one_says_nothing_of_it() -> None:
    """Only with every summand do the masks cancel."""
    content = torch.zeros(20_000).double()
    keys, sums = secure.agree((0, 1, 2, 3)), SecureSum((0, 1, 2, 3), "x")
    sent = [sums.masked(k, content, keys[k]) for k in range(4)]
    assert uniform(sent[0] + sent[1] + sent[2])
    assert not bool((sent[0] + sent[1] + sent[2] + sent[3]).any())


def test_the_server_is_never_sent_a_value_a_weight_or_a_model() -> None:
    protocol, models = Protocol(), normal(N, G)
    protocol.p2(range(N), values_of(0, N), models)
    assert len(protocol.seen) == 2 * N
    scale = 2.0**protocol.bits
    for sent in protocol.seen:
        open_text = sent.double() / scale
        for model in models:
            assert float((open_text[-G:] - model).abs().max()) > 1e-3 if len(sent) > G else True
        assert float(open_text.abs().max()) > 100  # of the order of 2^63 / 2^44


def test_what_the_public_part_holds() -> None:
    """The object that server and clients share has no secret in it."""
    sums = SecureSum((0, 1), "x")
    assert json.dumps(vars(sums)) == '{"ids": [0, 1], "label": "x", "limit": 1048576.0, "bits": 32}'
    keys = secure.agree((0, 1, 2))
    assert keys[0][1] == keys[1][0] != keys[0][2]
    assert all(m not in row and len(row) == 2 for m, row in keys.items())


# fixed point
@given(
    bits=st.integers(24, 40), M=st.integers(2, 8), seed=st.integers(0, 10**6), size=st.sampled_from([1e-3, 1.0, 1000.0])
)
def test_the_sum_is_exact_to_the_resolution(bits: int, M: int, seed: int, size: float) -> None:
    ids = tuple(range(M))
    keys, sums = secure.agree(ids), SecureSum(ids, "x", limit=2.0**14, bits=bits)
    rows = (size * normal(M, 7, seed=seed)).clamp(-(2.0**14), 2.0**14)
    total = sums.total({k: sums.masked(k, rows[k], keys[k]) for k in ids})
    assert float((total - rows.sum(0)).abs().max()) <= M * 2.0 ** -(bits + 1) + 1e-9 * size


def test_both_ends_of_the_range_fit() -> None:
    """Sums as large as declared neither wrap nor lose their sign."""
    ids = (0, 1, 2)
    keys, sums = secure.agree(ids), SecureSum(ids, "x", limit=2.0**20, bits=41)
    rows = tensor([[2.0**20, -(2.0**20), 0.0]] * 3)
    assert sums.total({k: sums.masked(k, rows[k], keys[k]) for k in ids}).tolist() == [3 * 2.0**20, -3 * 2.0**20, 0]


@pytest.mark.parametrize("wrong", [1e7, -1e7, float("nan"), float("inf")])
def test_a_value_out_of_range_is_refused(wrong: float) -> None:
    keys, sums = secure.agree((0, 1)), SecureSum((0, 1), "x")
    with pytest.raises(ValueError, match=r"Client 1: number 2 is .*, outside the declared range \[-1\.04858e\+06, "):
        sums.masked(1, tensor([0.0, 1.0, wrong]), keys[1])


def test_a_sum_that_might_not_fit_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match=r"A sum over 3 clients .* does not fit in 64 bits with 42 fractional bits"):
        SecureSum((0, 1, 2), "x", limit=2.0**20, bits=42)
    with pytest.raises(ValueError, match="does not fit in 64 bits"):
        SecureSum((0, 1), "x", limit=float("inf"))
    with pytest.raises(ValueError, match=r"bits must be a whole number >= 24; found 20"):
        SecureSum((0, 1), "x", bits=20)


@pytest.mark.parametrize("ids", [(), (4,), (1, 1)])
def test_a_sum_over_one_client_hides_nothing(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least two clients, each named once"):
        SecureSum(ids, "x")


# scalars
def test_a_scalar_is_clipped_and_floored() -> None:
    assert secure.scalar(5.0, 2.0) == pytest.approx(25.0)
    assert secure.scalar(1e6, 10.0) == pytest.approx(2.0**10)
    assert secure.scalar(1e300, 1000.0, ceiling=8.0) == pytest.approx(8.0)
    assert secure.scalar(-3.0, 1.0) == pytest.approx(1e-10)
    assert secure.scalar(-3.0, 1.0, reference=1e-10) == pytest.approx(1.0)
    assert secure.scalar(0.0, 1000.0) == 0.0
    assert secure.scalar(7.0, 0.0) == 1.0


def test_the_reference_keeps_scalars_near_one_and_cancels() -> None:
    """Sharpness of 1e-3 with q = 10 would be 1e-30: nothing would be left of it in fixed point."""
    values = [1e-3, 2e-3, 1.5e-3]
    expected = [v**10 / sum(u**10 for u in values) for v in values]
    fresh = [secure.scalar(v, 10.0, 1e-3) for v in values]
    after = secure.reference(sum(fresh), 3, 10.0, 1e-3)
    assert after == pytest.approx((sum(v**10 for v in values) / 3) ** 0.1)
    for ref in (1e-3, after):
        a = [secure.scalar(v, 10.0, ref) for v in values]
        assert [secure.weight(x, sum(a)) for x in a] == pytest.approx(expected)
    assert secure.reference(4.0, 2, 0.0, 0.7) == 0.7


def test_a_sum_of_nothing_is_an_error() -> None:
    zero = torch.zeros(6).double()
    for call in (lambda: secure.weight(0.0, 0.0), lambda: secure.mean(zero), lambda: secure.smoothed(zero)):
        with pytest.raises(ValueError, match=r"must be > 0; found 0\..*smaller reference"):
            call()


def test_a_model_of_any_dtype_is_added_in_float64() -> None:
    assert secure.weighted(0.5, torch.ones(3)).dtype == torch.float64
    assert secure.doubled(0.5, 0.25, torch.ones(2)).tolist() == [0.5, 0.25, 0.5, 0.5, 0.25, 0.25]
