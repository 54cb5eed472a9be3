"""FedGA: the adjustment in scalars, in its three forms, and the gaps that clients report a round later."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.methods.fedga import FedGA
from helpers import Server, clients, federation, in_one, normal, samples, tensor, watched

R = 8
COHORTS = [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2], [0, 2, 3], [3], [0, 1, 2, 3], [0, 3]]


def shares(w: list[float]) -> list[float]:
    """Scaled to sum one; equal where nothing is left."""
    return [x / sum(w) for x in w] if sum(w) > 0 else [1 / len(w)] * len(w)


def rounds(rule: FedGA, N: int, cohorts: list[list[int]], gaps: list[Tensor]) -> list[list[float]]:
    """Weights of all clients after each round; every client reports a gap from its second round on."""
    server = Server(rule, torch.zeros(1, dtype=torch.float64), [1.0] * N)
    state, seen, after = server.state[0], set(), []
    for t, (ids, gap) in enumerate(zip(cohorts, gaps, strict=True)):
        cohort = replace(server.cohort(normal(len(ids), 1), ids), t=t, rounds=R)
        known = tensor([float(m in seen) for m in ids])
        state, cohort = rule.aggregate(state, replace(cohort, reports={"gap": gap * known, "seen": known}))
        assert cohort.weights.tolist() == pytest.approx(shares(state["a"][ids].tolist()), abs=1e-13)
        seen |= set(ids)
        after.append(state["a"].tolist())
    return after


def naive(form: str, d: float, N: int, cohorts: list[list[int]], gaps: list[list[float]]) -> list[list[float]]:
    a, seen, after = [1 / N] * N, set(), []
    for t, (ids, gap) in enumerate(zip(cohorts, gaps, strict=True)):
        known = [m for m in ids if m in seen]
        G = {m: g for m, g in zip(ids, gap, strict=True) if m in seen}
        seen |= set(ids)
        if known:
            mean = 0 if form == "official" else sum(G.values()) / len(G)
            top = max(abs(g - mean) for g in G.values())
            mass = len(known) / N if form == "released" else sum(a[m] for m in known)
            if top > 1e-12:
                dr = (1 - (t - 2 if form == "official" else t) / R) * d / N
                new = [a[m] + dr * (G[m] - mean) / top for m in known]
                if form == "released":
                    new = [max(mass * x, 0.0) for x in shares(new)]
                else:
                    most = 1.0 if form == "official" else float("inf")
                    new = [mass * x for x in shares([min(max(x, 0.0), most) for x in new])]
                for m, x in zip(known, new, strict=True):
                    a[m] = x
        after.append(list(a))
    return after


@in_one("form", ["paper", "released", "official"])
@in_one("d", [0.0, 0.2, 3.0])
def test_the_equation_typed_out(form: str, d: float) -> None:
    gaps = [normal(len(ids), seed=t) for t, ids in enumerate(COHORTS)]
    found = rounds(FedGA(d=d, form=form), 4, COHORTS, gaps)
    expected = naive(form, d, 4, COHORTS, [g.tolist() for g in gaps])
    for t, (one, two) in enumerate(zip(found, expected, strict=True)):
        assert one == pytest.approx(two, abs=1e-12), t
    assert found[0] == [0.25] * 4  # no gap is known yet


def test_one_round_by_hand() -> None:
    """Gaps 1 and 0 of two clients, the first of eight rounds with gaps: 1/2 +- (1 - 1/8) 0.2 / 2."""
    (_, after) = rounds(FedGA(d=0.2), 2, [[0, 1]] * 2, [tensor([0.0, 0.0]), tensor([1.0, 0.0])])
    assert after == pytest.approx([0.5875, 0.4125])


def test_d_by_itself() -> None:
    (_, after) = rounds(FedGA(d=0.2, relative=False), 2, [[0, 1]] * 2, [tensor([0.0, 0.0]), tensor([1.0, 0.0])])
    assert after == pytest.approx([0.675, 0.325])


@given(seed=st.integers(0, 10**6), shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_only_the_order_of_gaps_and_their_ratios_count(seed: int, shift: float, scale: float) -> None:
    gaps = [normal(4, seed=seed + t) for t in range(3)]
    one = rounds(FedGA(), 4, [[0, 1, 2, 3]] * 3, gaps)
    two = rounds(FedGA(), 4, [[0, 1, 2, 3]] * 3, [shift + scale * g for g in gaps])
    assert one[-1] == pytest.approx(two[-1], abs=1e-9)
    assert sum(one[-1]) == pytest.approx(1)


@in_one("gap", [0.0, 0.1, -7.3])
@in_one("form", ["paper", "released"])
def test_equal_gaps_leave_the_weights(gap: float, form: str) -> None:
    """Also where their mean is off by rounding."""
    gaps = [normal(3), normal(3, seed=1), torch.full((3,), gap, dtype=torch.float64)]
    after = rounds(FedGA(form=form), 3, [[0, 1, 2]] * 3, gaps)
    assert after[2] == after[1] != after[0]


def test_all_weight_gone_is_equal_weights() -> None:
    """The official form does not centre: with a large step all gaps below 0 take every weight to 0."""
    gaps = [tensor([0.0, 0.0]), tensor([-1.0, -1.0])]
    assert rounds(FedGA(d=50.0, form="official"), 2, [[0, 1]] * 2, gaps)[1] == [0.5, 0.5]


def test_a_newcomer_keeps_its_weight() -> None:
    after = rounds(FedGA(), 3, [[0, 1], [0, 1, 2]], [normal(2), normal(3, seed=4)])
    assert after[1][2] == pytest.approx(1 / 3)
    assert after[1][0] != after[1][1]
    assert after[1][0] + after[1][1] == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_gap_is_what_averaging_cost(metric: str) -> None:
    """The model handed out against the client's own of the round before, on its training data."""
    seen: list = []
    fed = federation(f"fedga(metric={metric})", participation=1.0, engine=watched(seen))
    fed.fit(3, progress=False)
    jobs = {id(job): job for job, _ in seen}
    reports = {t: {} for t in range(3)}
    trained = {t: {} for t in range(3)}
    for job, answer in seen:
        for k, row in enumerate(answer.rows):
            reports[job.t][job.ids[row]] = {key: float(v[k]) for key, v in answer.reports[0].items()}
            trained[job.t][job.ids[row]] = answer.trained[k]
    received = {job.t: job.received[0] for job in jobs.values()}

    def value(vector: Tensor, m: int) -> float:
        x, y = clients()[m]
        logits = fed.model.network(vector)(x).detach()
        right = (logits.argmax(-1) == y).double().mean()
        return float(torch.nn.functional.cross_entropy(logits, y) if metric == "loss" else -right)

    for m in range(5):
        assert reports[0][m] == {"gap": 0.0, "seen": 0.0}
        for t in (1, 2):
            expected = value(received[t], m) - value(trained[t - 1][m], m)
            assert reports[t][m]["gap"] == pytest.approx(expected, abs=1e-10)
            assert reports[t][m]["seen"] == 1


def test_the_weights_of_a_round_follow_the_gaps_of_the_round_before() -> None:
    fed = federation("fedga(d=0.1)", participation=1.0)
    fed.fit(2, progress=False)
    assert fed.records[0]["weights"] == [0.2] * 5
    assert max(abs(w - 0.2) for w in fed.records[1]["weights"]) == pytest.approx((1 - 1 / 2) * 0.1 / 5)


def test_twins_keep_equal_weights() -> None:
    fed = federation("fedga", data=[samples(8, 1), samples(8, 1)], participation=1.0, batch_size=8)
    fed.fit(3, progress=False)
    assert all(r["weights"] == pytest.approx([0.5, 0.5], abs=1e-12) for r in fed.records)


def test_presets() -> None:
    assert eq.parse("fedga").rules == (FedGA(d=0.2),)
    assert eq.parse("fedga:released").rules == (FedGA(d=0.05, form="released"),)
    assert eq.parse("fedga:official").rules == (FedGA(form="official"),)
    assert eq.parse("fedga:official-acc").rules == (FedGA(form="official", metric="accuracy"),)


@in_one("values", [{"d": -0.1}, {"relative": 0}, {"metric": "auc"}, {"form": "published"}])
def test_bad_values(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"FedGA: {next(iter(values))} must be"):
        FedGA(**values)
