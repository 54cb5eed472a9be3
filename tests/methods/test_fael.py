"""FAEL: Eqs. 11 and 12 in scalars, their fixed point, and absent clients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

import equipoise as eq
from equipoise.methods.fael import FAEL
from equipoise.methods.fphl import FPHL
from helpers import Server, in_one, normal

RELEASED = {"distance": "norms", "init": "uniform", "carry": "raw"}
LAYOUT, SIZES = (2, 3, 1), [10, 30, 5, 15]


def naive_distance(row: list[float], kind: str) -> float:
    if kind == "squared":
        return sum(x * x for x in row)
    parts, start = [], 0
    for n in LAYOUT:
        parts.append(math.sqrt(sum(x * x for x in row[start : start + n])))
        start += n
    return sum(parts)


@in_one("beta", [0.0, 0.4, 1.0])
@in_one("options", [{}, RELEASED, {"init": "uniform"}, {"carry": "raw"}, {"distance": "norms"}])
def test_equations_typed_out(beta: float, options: dict[str, str]) -> None:
    rule = FAEL(beta=beta, **options)
    server = Server(rule, normal(6), SIZES, LAYOUT)
    p = [1 / 4] * 4 if rule.init == "uniform" else [n / sum(SIZES) for n in SIZES]
    dp = [0.0] * 4
    for t in range(5):
        updates = normal(4, 6, seed=t)
        cohort = server.round(updates)
        d = [naive_distance(row, rule.distance) for row in updates.tolist()]
        dp = [(1 - beta) * x + beta * y / sum(d) for x, y in zip(dp, d, strict=True)]
        raw = [x + y for x, y in zip(p, dp, strict=True)]
        used = [x / sum(raw) for x in raw]
        p = raw if rule.carry == "raw" else used
        assert cohort.weights.tolist() == pytest.approx(used, abs=1e-14)
        assert server.state[0]["p"].tolist() == pytest.approx(p, abs=1e-14)
        assert server.state[0]["dp"].tolist() == pytest.approx(dp, abs=1e-14)


def test_distances_are_taken_after_the_mask() -> None:
    """FPHL comes first whatever the order of the sum, and FAEL reads its mask."""
    method = eq.parse("fael") + eq.parse("fphl(tau=0.6)")
    assert [type(r) for r in method.rules] == [FPHL, FAEL]
    server = Server(method, normal(6), SIZES, LAYOUT)
    for t in range(4):
        updates = normal(4, 6, seed=t)
        cohort = server.round(updates)
        d = server.rules[1]._distances(cohort)
        norms = FAEL(distance="norms")._distances(cohort)
        for m in range(4):
            kept = [
                x if keep else 0.0 for x, keep in zip(updates[m].tolist(), cohort.mask.dense()[m].tolist(), strict=True)
            ]
            assert float(d[m]) == pytest.approx(naive_distance(kept, "squared"), abs=1e-14)
            assert float(norms[m]) == pytest.approx(naive_distance(kept, "norms"), abs=1e-14)
    assert not bool(cohort.mask.dense().all())


@settings(max_examples=15)
@given(beta=st.floats(0.2, 1), shares=st.lists(st.floats(0.01, 10), min_size=2, max_size=6))
def test_a_constant_share_is_the_fixed_point(beta: float, shares: list[float]) -> None:
    """p goes to the share for every beta > 0, about half of the way each round once dp has settled."""
    s = torch.tensor(shares, dtype=torch.float64)
    share = s / s.sum()
    server = Server(FAEL(beta=beta), torch.zeros(1, dtype=torch.float64), list(range(1, len(s) + 1)))
    for _ in range(120):
        cohort = server.round(s.sqrt()[:, None])
        assert float(cohort.weights.sum()) == pytest.approx(1, abs=1e-12)
        assert bool((cohort.weights > 0).all())
    assert torch.allclose(cohort.weights, share, rtol=0, atol=1e-6)


def test_speed_at_the_papers_beta() -> None:
    """After ten rounds at beta 0.4 the gap to the share is below a thousandth of the first gap."""
    server = Server(FAEL(), torch.zeros(1, dtype=torch.float64), [9, 1])
    for _ in range(10):
        cohort = server.round(torch.tensor([[1.0], [2.0]], dtype=torch.float64))
    assert abs(float(cohort.weights[0]) - 0.2) < 1e-3 * (0.9 - 0.2) + 1e-3


def test_beta_1_is_the_mean_of_the_weights_and_the_share() -> None:
    server = Server(FAEL(beta=1.0), torch.zeros(1, dtype=torch.float64), [3, 1])
    cohort = server.round(torch.tensor([[1.0], [3.0]], dtype=torch.float64))
    assert cohort.weights.tolist() == pytest.approx([(0.75 + 0.1) / 2, (0.25 + 0.9) / 2])


def test_absent_clients_keep_their_weight() -> None:
    """Those present share out the mass they had together; p stays on the simplex."""
    server = Server(FAEL(beta=0.7), normal(6), SIZES)
    for t, ids in enumerate([[0, 1, 2, 3], [1, 3], [0, 2], [2]]):
        before = server.state[0]
        updates = normal(len(ids), 6, seed=t)
        cohort = server.round(updates, ids)
        after = server.state[0]
        away = [m for m in range(4) if m not in ids]
        for key in ("p", "dp"):
            assert torch.equal(after[key][away], before[key][away])
        mass = sum(float(before["p"][m]) for m in ids)
        here = [float(before["p"][m]) / mass for m in ids]
        d = [naive_distance(row, "squared") for row in updates.tolist()]
        dp = [0.3 * float(before["dp"][m]) + 0.7 * x / sum(d) for m, x in zip(ids, d, strict=True)]
        raw = [a + b for a, b in zip(here, dp, strict=True)]
        assert cohort.weights.tolist() == pytest.approx([x / sum(raw) for x in raw], abs=1e-14)
        assert after["p"][ids].tolist() == pytest.approx([mass * x / sum(raw) for x in raw], abs=1e-14)
        assert float(after["p"].sum()) == pytest.approx(1)


@pytest.mark.parametrize("options", [{}, RELEASED], ids=["paper", "released"])
def test_nobody_moved(options: dict[str, str]) -> None:
    server = Server(FAEL(**options), normal(6), SIZES, LAYOUT)
    server.round(normal(4, 6))
    before = server.state[0]
    cohort = server.round(torch.zeros(4, 6, dtype=torch.float64))
    assert server.state[0]["p"].tolist() == pytest.approx(before["p"].tolist(), abs=1e-15)
    assert torch.equal(server.state[0]["dp"], before["dp"])
    assert bool(cohort.weights.isfinite().all())


def test_larger_moves_get_more_weight() -> None:
    server = Server(FAEL(), torch.zeros(3, dtype=torch.float64), [1, 1, 1])
    u = torch.tensor([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 3.0]], dtype=torch.float64)
    weights = server.round(u).weights
    assert weights[0] < weights[1] < weights[2]


def test_buffers_are_averaged_with_the_same_weights_and_never_masked() -> None:
    server = Server("fedheal(tau=1)", normal(6), SIZES, LAYOUT, buffers=torch.zeros(2, dtype=torch.float64))
    for t in range(3):
        before, moves = server.buffers, normal(4, 2, seed=30 + t)
        cohort = server.round(normal(4, 6, seed=t), buffer_updates=moves)
        assert torch.allclose(server.buffers - before, cohort.weights @ moves, rtol=0, atol=1e-14)
    assert not bool(cohort.mask.dense().all())


def naive_variance(rows: list[list[float]], p: list[float]) -> float:
    """Eq. 10 in loops: the population variance of the squared distances to the mean under p."""
    U = [sum(w * row[i] for w, row in zip(p, rows, strict=True)) for i in range(len(rows[0]))]
    d = [sum((u - x) ** 2 for u, x in zip(U, row, strict=True)) for row in rows]
    return sum((x - sum(d) / len(d)) ** 2 for x in d) / len(d)


@pytest.mark.parametrize("method", ["fael", "fedheal(tau=0.6)", "fphl(tau=0.6)+fael-exact"])
def test_what_is_recorded(method: str) -> None:
    """d of Eq. 11 and the variance of Eq. 10, by samples and by the method's weights, after the mask, of those present."""
    server = Server(method, normal(6), SIZES, LAYOUT)
    for t, ids in enumerate([[0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3], [0, 3]]):
        updates = normal(len(ids), 6, seed=t)
        cohort = server.round(updates, ids)
        rows = (updates if cohort.mask is None else updates * cohort.mask.dense()).tolist()
        n = sum(SIZES[m] for m in ids)
        before, after = [SIZES[m] / n for m in ids], cohort.weights.tolist()
        assert cohort.notes["distances"] == pytest.approx([naive_distance(row, "squared") for row in rows], abs=1e-12)
        assert cohort.notes["distance_variance"] == pytest.approx(
            [naive_variance(rows, before), naive_variance(rows, after)], abs=1e-12
        )
        assert before != pytest.approx(after)


def test_of_large_models_only_distances_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.methods.fael.MEASURED", 23)
    assert Server("fael", normal(6), SIZES).round(normal(4, 6)).notes.keys() == {"distances"}
    assert Server("fael", normal(5), SIZES).round(normal(4, 5)).notes.keys() == {"distances", "distance_variance"}


def test_presets() -> None:
    assert eq.parse("fael:released").rules == (FAEL(**RELEASED),)
    assert FAEL(**RELEASED) in eq.parse("fedheal:released").rules
    assert eq.parse("fedheal").rules == (FPHL(tau=0.3), FAEL(beta=0.4))
