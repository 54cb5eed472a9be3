"""FedCE: both contributions in scalars, the model of the others, and the forms of three released codes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core.maths import gram
from equipoise.methods.fedce import FedCE, cosines, without
from helpers import Server, federation, fitted, in_one, normal, oracle_of, samples, tensor, visit_of, watched

Vector = list[float]
COHORTS = [[0, 1, 2], [0, 1, 2], [1, 2, 3], [0, 2, 3], [3], [0, 1, 2, 3], [0, 3]]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def shares(w: Vector) -> Vector:
    return [x / sum(w) for x in w]


def cosine(k: int, updates: list[Vector], c: Vector) -> float:
    """Of update k with the consensus without it."""
    consensus = [sum(w * x for w, x in zip(c, column, strict=True)) for column in zip(*updates, strict=True)]
    others = [x - c[k] * u for x, u in zip(consensus, updates[k], strict=True)]
    length = math.sqrt(dot(others, others) * dot(updates[k], updates[k]))
    return dot(others, updates[k]) / length if length > 1e-9 else 0.0


class Naive:
    """The server of FedCE with loops over clients and lists of all that was seen."""

    def __init__(self, rule: FedCE, N: int) -> None:
        self.rule = rule
        self.c = [1 / N] * N
        self.cos, self.metric, self.coefficients = ({m: [] for m in range(N)} for _ in range(3))

    def scaled(self, v: Vector, *, last: bool = False) -> Vector:
        floor = self.rule.floor
        if self.rule.floors == "after":
            return [max(x, floor) for x in shares(v)]
        return shares(v if last else [max(x, floor) for x in v])

    def round(self, ids: list[int], updates: list[Vector], metric: Vector, measured: list[bool]) -> Vector:
        mass = sum(self.c[m] for m in ids)
        prior = [1 / len(ids)] * len(ids) if self.rule.prior == "uniform" else [self.c[m] / mass for m in ids]
        for k, m in enumerate(ids):
            if measured[k]:
                self.metric[m].append(metric[k])
            elif self.rule.first_zero and not self.cos[m]:
                self.metric[m].append(0.0)
            self.cos[m].append(cosine(k, updates, prior))
        a = [1 - sum(self.cos[m]) / len(self.cos[m]) for m in ids]
        b = [1 - sum(self.metric[m]) / len(self.metric[m]) if self.metric[m] else None for m in ids]
        known = [x for x in b if x is not None]
        b = [(sum(known) / len(known) if known else 1.0) if x is None else x for x in b]
        a, b = self.scaled(a), self.scaled(b)
        both = [x * y if self.rule.mode == "times" else x + y for x, y in zip(a, b, strict=True)]
        now = self.scaled(both, last=True)
        for m, x in zip(ids, now, strict=True):
            self.coefficients[m].append(mass * x)
        means = [sum(self.coefficients[m]) / len(self.coefficients[m]) for m in ids]
        weights = shares(means if self.rule.coef_average else now)
        for m, w in zip(ids, weights, strict=True):
            self.c[m] = mass * w
        return weights


@in_one("preset", ["paper", "ffl4mia", "nvflare2026", "nvflare2023"])
@in_one("mode", ["times", "plus"])
def test_the_equations_typed_out(preset: str, mode: str) -> None:
    """Changing cohorts: newcomers and those who return have no model of the others."""
    method = eq.parse(f"fedce:{preset}(mode={mode})")
    server, naive = Server(method, normal(5), [1, 9, 4, 2]), Naive(method.rules[0], 4)
    before: set[int] = set()
    for t, ids in enumerate(COHORTS):
        updates = normal(len(ids), 5, seed=10 + t)
        metric = torch.rand(len(ids), generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        measured = tensor([float(m in before and len(before) > 1) for m in ids])
        cohort = server.round(updates, ids, [{"metric": metric * measured, "measured": measured}])
        expected = naive.round(ids, updates.tolist(), metric.tolist(), (measured > 0).tolist())
        assert cohort.weights.tolist() == pytest.approx(expected, abs=1e-12), t
        assert server.state[0]["c"].tolist() == pytest.approx(naive.c, abs=1e-12), t
        assert float(server.state[0]["c"].sum()) == pytest.approx(1)
        used = [expected[ids.index(m)] if m in ids else -1.0 for m in range(4)]
        assert server.state[0]["used"].tolist() == pytest.approx(used, abs=1e-12)
        assert [float(server.rules[0].message(server.state[0], m)["c"]) for m in range(4)] == pytest.approx(used)
        before = set(ids)


def test_the_first_round_by_hand() -> None:
    """Updates (1, 0), (1, 0), (0, 1): cosines sqrt(1/2), sqrt(1/2), 0 with the sum of the others."""
    server = Server(FedCE(), torch.zeros(2, dtype=torch.float64), [1, 1, 1])
    none = {"metric": torch.zeros(3), "measured": torch.zeros(3)}
    cohort = server.round(tensor([[1, 0], [1, 0], [0, 1]]), reports=[none])
    a = [1 - math.sqrt(0.5), 1 - math.sqrt(0.5), 1.0]
    assert cohort.weights.tolist() == pytest.approx([x / sum(a) for x in a])


@given(seed=st.integers(0, 10**6), M=st.integers(1, 6))
def test_cosines_from_the_gram_matrix(seed: int, M: int) -> None:
    updates, c = normal(M, 7, seed=seed), torch.rand(M, generator=torch.Generator().manual_seed(seed)).double()
    found = cosines(gram(updates), c)
    assert found.tolist() == pytest.approx([cosine(k, updates.tolist(), c.tolist()) for k in range(M)], abs=1e-9)


@in_one(
    ("updates", "expected"),
    [
        ([[0.0, 0.0], [1.0, 0.0]], [0.0, 0.0]),  # a client that did not move
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        ([[3.0, 4.0]], [0.0]),  # alone
        ([[0.3, 0.1], [0.1, 0.7], [-0.1, -0.7]], [0.0, None, None]),  # the others cancel
        ([[1.0, 2.0], [1.0, 2.0]], [1.0, 1.0]),
    ],
)
def test_cosines_without_length_are_zero(updates: list[Vector], expected: list[float | None]) -> None:
    found = cosines(gram(tensor(updates)), torch.full((len(updates),), 1 / len(updates), dtype=torch.float64))
    for one, two in zip(found.tolist(), expected, strict=True):
        assert two is None or one == pytest.approx(two, abs=1e-12)


@in_one("seed", range(12))
def test_what_rounding_leaves_of_others_that_cancel_has_no_direction(seed: int) -> None:
    updates = normal(4, 5, seed=seed)
    updates[3] = -(updates[1] + updates[2])
    assert float(cosines(gram(updates), torch.full((4,), 0.25, dtype=torch.float64))[0]) == 0


def test_equal_updates_are_floored() -> None:
    """a is 0 for everybody: the floor, or else equal weights, keep the shares defined."""
    for method in ("fedce", "fedce:ffl4mia", "fedce:nvflare2023"):
        server = Server(eq.parse(method), torch.zeros(2, dtype=torch.float64), [1, 5])
        for _ in range(2):
            report = {"metric": torch.ones(2), "measured": torch.ones(2)}
            cohort = server.round(tensor([[1, 2], [1, 2]]), reports=[report])
            assert cohort.weights.tolist() == pytest.approx([0.5, 0.5])


def test_a_floor_above_all_contributions_is_equal_weights() -> None:
    assert all(r["weights"] == pytest.approx([0.25] * 4) for r in fitted("fedce(floor=2)", 4).records)


def test_the_model_of_the_others() -> None:
    models, c = normal(3, 4), tensor([0.2, 0.5, 0.3])
    for m in range(3):
        others = [k for k in range(3) if k != m]
        expected = sum(c[k] * models[k] for k in others) / sum(c[k] for k in others)
        assert torch.allclose(without(c @ models, models[m], c[m : m + 1]), expected, rtol=0, atol=1e-14)


@in_one(("c", "measured"), [(-1.0, 0), (0.0, 1), (0.4, 1), (1.0, 0), (1 - 1e-9, 0)])
@in_one("metric", ["balanced", "accuracy"])
def test_what_a_client_measures(c: float, measured: int, metric: str) -> None:
    """Nothing where it was absent (-1) or alone (1): the model of the others would be noise."""
    fed = federation()
    x, y = samples(18, 3)
    oracle = oracle_of(fed.model.network(fed.model.initial), x, y, eq.SGD(0.1))
    received, previous = (normal(fed.model.size, seed=k) for k in (1, 2))
    visit = visit_of(oracle, received, {"previous": previous}, {"c": tensor(c)})
    report, _ = FedCE(metric=metric).finish(received, visit)
    assert float(report["measured"]) == measured
    expected = 0.0
    if measured:
        right = fed.model.network((received - c * previous) / (1 - c))(x).argmax(-1) == y
        classes = [right[y == k].double().mean() for k in y.unique()]
        expected = float(torch.stack(classes).mean() if metric == "balanced" else right.double().mean())
    assert float(report["metric"]) == pytest.approx(expected, abs=1e-12)


def test_the_others_of_a_run_are_the_others() -> None:
    """Over two rounds: what a client takes out of the model handed out is what it put in, buffers included."""
    for method in ("fedce", "fedce:nvflare2023"):
        seen: list = []
        fed = federation(method, kind="batchnorm", participation=1.0, engine=watched(seen))
        fed.fit(2, progress=False)
        trained = {t: {} for t in range(2)}
        for job, answer in seen:
            trained[job.t] |= {job.ids[row]: answer.trained[k] for k, row in enumerate(answer.rows)}
        (second,) = {id(job): job for job, _ in seen if job.t == 1}.values()
        c = second.messages[0]["c"]
        assert c.tolist() == pytest.approx(fed.records[0]["weights"])
        for k, m in enumerate(second.ids):
            others = [j for j in range(5) if j != m]
            expected: Tensor = sum(c[j] * trained[0][j] for j in others) / sum(c[j] for j in others)
            own = second.states[0]["previous"][k]
            assert torch.equal(own, trained[0][m])
            assert torch.allclose(without(second.received[k], own, c[k : k + 1]), expected, rtol=0, atol=1e-12)


def test_who_was_absent_measures_nothing() -> None:
    seen: list = []
    federation("fedce", participation=0.6, engine=watched(seen)).fit(6, progress=False)
    present, measured = {}, {}
    for job, answer in seen:
        for k, row in enumerate(answer.rows):
            present.setdefault(job.t, set()).add(job.ids[row])
            measured[job.t, job.ids[row]] = bool(answer.reports[0]["measured"][k])
    assert measured == {(t, m): m in present.get(t - 1, set()) for t in present for m in present[t]}
    assert any(present[t] != present[t + 1] for t in range(5))


def test_a_client_without_which_all_goes_well_counts_less() -> None:
    """b falls with the accuracy of the model of the others."""
    server = Server(FedCE(), torch.zeros(3, dtype=torch.float64), [1, 1, 1])
    report = {"metric": tensor([0.9, 0.5, 0.1]), "measured": torch.ones(3)}
    weights = server.round(torch.eye(3, dtype=torch.float64), reports=[report]).weights.tolist()
    assert all(x < y for x, y in pairwise(weights))


def test_twins_keep_equal_weights() -> None:
    fed = federation("fedce", data=[samples(8, 1), samples(8, 1)], participation=1.0, batch_size=8)
    fed.fit(3, progress=False)
    assert all(r["weights"] == pytest.approx([0.5, 0.5], abs=1e-9) for r in fed.records)


def test_presets() -> None:
    assert eq.parse("fedce").rules == (FedCE(mode="times", coef_average=True, prior="last", floor=1e-6),)
    assert eq.parse("fedce:ffl4mia").rules == (FedCE(first_zero=True, floor=0.0),)
    assert eq.parse("fedce:nvflare2026").rules == (FedCE(mode="plus", coef_average=False, first_zero=True),)
    old = FedCE(coef_average=False, prior="uniform", first_zero=True, floor=1e-3, floors="after")
    assert eq.parse("fedce:nvflare2023").rules == (old,)


@in_one("values", [{"mode": "sum"}, {"coef_average": 1}, {"prior": "first"}, {"floor": -1.0}, {"metric": "dice"}])
def test_bad_values(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"FedCE: {next(iter(values))} must be"):
        FedCE(**values)
