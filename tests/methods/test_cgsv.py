"""CGSV: the server typed out with lists, the largest entries of a vector, and what nobody's reward may depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core import maths
from equipoise.core.maths import add_largest
from equipoise.engines.job import Answer, Job
from equipoise.federation.method import MethodError, parse
from equipoise.methods.cgsv import CGSV, consensus, share
from helpers import UNEQUAL, federation, fitted, normal, scripted, tensor, watched
from reward_helpers import Vector, one_round, top

FORMS = ("exact_layer", "released_layer", "paper_global")


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


class Naive:
    """The server of CGSV and the models of its clients, with loops."""

    def __init__(self, rule: CGSV, start: Vector, layout: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        self.rule, self.layout, self.sizes = rule, layout, sizes
        self.server, self.r = list(start), [0.0] * len(sizes)
        self.models = [list(start) for _ in sizes]

    def round(self, ids: list[int], updates: list[Vector]) -> None:
        rule, sent = self.rule, []
        for update in updates:
            length = math.sqrt(dot(update, update))
            sent.append([rule.gamma * x / (length + 1e-7) for x in update])
        known = sum(self.r[m] for m in ids) > 0
        raw = [self.r[m] if known else self.sizes[m] for m in ids]
        u = [sum(a / sum(raw) * x for a, x in zip(raw, column, strict=True)) for column in zip(*sent, strict=True)]
        self.server = [w + x for w, x in zip(self.server, u, strict=True)]
        for m, own in zip(ids, sent, strict=True):
            length = math.sqrt(dot(own, own) * dot(u, u))
            phi = dot(own, u) / length if length > 1e-10 else 0.0
            self.r[m] = max(rule.alpha * self.r[m] + (1 - rule.alpha) * phi, 1e-3)
        total = sum(self.r)
        self.r = [x / total for x in self.r]
        t = [math.tanh(rule.beta * x) for x in self.r]
        for m in ids:
            q = t[m] / max(t) if max(t) > 0 else 1.0
            part = top(u, q, self.layout, rule.sparsify)
            self.models[m] = [w + x for w, x in zip(self.models[m], part, strict=True)]


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("form", FORMS)
def test_rounds_typed_out(form: str, participation: float) -> None:
    rule = CGSV(alpha=0.7, beta=1.5, gamma=0.3, sparsify=form)
    M, T = round(participation * len(UNEQUAL)), 6
    updates = [normal(M, 73, seed=t) + normal(73, seed=99) for t in range(T)]  # some agree, some do not
    fed = federation(rule, engine=scripted(updates), participation=participation)
    naive = Naive(rule, fed.model.initial.tolist(), fed.model.layout, UNEQUAL)
    seen: set[int] = set()
    for t in range(T):
        fed.fit(1, progress=False)
        ids = fed.records[-1]["ids"]
        seen |= set(ids)
        naive.round(ids, updates[t].tolist())
        state = fed.progress
        assert state.vector.tolist() == pytest.approx(naive.server, abs=1e-12)
        assert state.server[0]["r"].tolist() == pytest.approx(naive.r, abs=1e-12)
        assert fed.records[-1]["reputation"] == pytest.approx([naive.r[m] for m in ids], abs=1e-12)
        for m in range(len(UNEQUAL)):
            assert state.given[m].tolist() == pytest.approx(naive.models[m], abs=1e-12)
    assert seen == set(range(len(UNEQUAL)))
    assert len({tuple(row) for row in fed.progress.given.tolist()}) == len(UNEQUAL)


# the largest entries
@given(
    values=st.lists(st.integers(-3, 3), min_size=6, max_size=6),
    q=st.lists(
        st.integers(0, 997).map(lambda k: k / 997), min_size=1, max_size=4
    ),  # not so near to a whole number that rounding decides
    form=st.sampled_from(FORMS),
)
def test_the_largest_entries_typed_out(values: list[int], q: list[float], form: str) -> None:
    """With many ties and zeros, over tensors of 1, 2 and 3 entries."""
    layout, rows = (2, 1, 3), normal(len(q), 8)
    before = rows.clone()
    after = add_largest(rows, tensor(values), tensor(q), layout, form)
    assert torch.equal(rows, before)
    assert torch.equal(after[:, 6:], rows[:, 6:])
    for m, share_ in enumerate(q):
        kept = top([float(v) for v in values], share_, layout, form)
        assert (after[m, :6] - rows[m, :6]).tolist() == pytest.approx(kept, abs=1e-15)


@given(q=st.lists(st.floats(0, 1), min_size=2, max_size=2), form=st.sampled_from(FORMS))
def test_more_is_more_of_the_same(q: list[float], form: str) -> None:
    low, high = add_largest(torch.zeros(2, 12), normal(12).float(), tensor(sorted(q)), (5, 7), form)
    assert bool((low[low != 0] == high[low != 0]).all())


def test_a_share_a_little_off_counts_as_what_it_should_be() -> None:
    """0.1 + 0.2 is above 0.3, and the largest of equal reputations may come out below one."""
    u, rows = normal(10), torch.zeros(2, 10, dtype=torch.float64)
    q = tensor([0.1 + 0.2, 1 - 2**-53])
    for form in ("exact_layer", "paper_global"):
        assert (add_largest(rows, u, q, (10,), form) != 0).sum(1).tolist() == [3, 10]


def test_the_released_mask_never_gives_everything() -> None:
    u, one = normal(7), torch.ones(1, dtype=torch.float64)
    kept = add_largest(torch.zeros(1, 7).double(), u, one, (6, 1), "released_layer")[0]
    assert kept[u[:6].abs().argmin()] == 0
    assert int((kept != 0).sum()) == 6  # a tensor of one entry, on which the released code fails, is given
    assert torch.equal(add_largest(torch.zeros(1, 7).double(), u, one, (6, 1), "exact_layer")[0], u)


# reputations and shares
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_the_cosine_is_that_of_the_sum(seed: int, M: int) -> None:
    updates, c = normal(M, 9, seed=seed), normal(M, seed=seed + 1).abs() + 0.1
    expected = torch.cosine_similarity(updates, c @ updates, -1)
    assert torch.allclose(consensus(maths.gram(updates), c), expected, rtol=0, atol=1e-12)


@given(r=st.lists(st.floats(0.001, 1), min_size=1, max_size=8), beta=st.floats(0.01, 1e7), factor=st.floats(0.1, 1e3))
def test_reputations_and_shares_are_shares(r: list[float], beta: float, factor: float) -> None:
    q = share(tensor(r), beta)
    assert float(q.max()) == 1
    assert bool((q > 0).all())
    assert bool((q.argsort(stable=True) == tensor(r).argsort(stable=True)).all()) or len(set(q.tolist())) < len(q)
    updates = normal(len(r), 5)
    before = {"r": maths.simplex(tensor(r))}
    state, cohort, _ = one_round(CGSV(), updates, before)
    after = state["r"]
    assert float(after.sum()) == pytest.approx(1)
    assert bool((after > 0).all())
    longer = updates * torch.cat([tensor([factor]), torch.ones(len(r) - 1, dtype=torch.float64)])[:, None]
    again, other, _ = one_round(CGSV(), longer, before)  # lengths do not count
    assert torch.allclose(after, again["r"], rtol=0, atol=1e-5)
    assert torch.allclose(cohort.step(), other.step(), rtol=0, atol=1e-5)


def test_the_first_round_weighs_by_samples_and_the_next_by_reputation() -> None:
    updates = normal(3, 5) + 1
    state, cohort, _ = one_round(CGSV(), updates, sizes=tensor([1, 2, 5]))
    assert cohort.weights.tolist() == pytest.approx([1 / 8, 2 / 8, 5 / 8])
    _, cohort, _ = one_round(CGSV(), updates, state, sizes=tensor([1, 2, 5]))
    assert torch.equal(cohort.weights, maths.simplex(state["r"]))


def test_a_client_that_does_not_move_or_goes_the_other_way_has_the_least_reputation() -> None:
    updates = torch.stack([normal(6), 2 * normal(6), 0 * normal(6), -normal(6)])
    state, cohort, given = one_round(CGSV(), updates, sizes=tensor([4, 4, 1, 1]))
    least = 1e-3 / (2 * 0.05 + 2e-3)
    assert state["r"].tolist() == pytest.approx([0.5 - least, 0.5 - least, least, least])
    assert bool(cohort.coefficients.isfinite().all())
    assert (given != 0).sum(1).tolist() == [6, 6, 1, 1]  # and even so the largest entry


@pytest.mark.parametrize("updates", [torch.zeros(2, 4), torch.stack([normal(4), -normal(4)])], ids=["zero", "cancel"])
def test_without_a_sum_all_are_equal(updates: Tensor) -> None:
    state, cohort, given = one_round(CGSV(), updates.double())
    assert state["r"].tolist() == [0.5, 0.5]
    assert float(cohort.step().abs().max()) < 1e-16
    assert float(given.abs().max()) < 1e-16


@pytest.mark.parametrize("beta", [0.0, 1e7])
def test_at_both_ends_of_beta_all_hold_the_global_model(beta: float) -> None:
    fed = fitted(CGSV(beta=beta), 3, participation=1.0)
    assert torch.allclose(fed.progress.given, fed.progress.vector.expand(5, -1), rtol=0, atol=1e-15)
    assert float((fed.progress.vector - fed.model.initial).norm()) > 0.1


def test_a_step_has_the_length_it_is_told() -> None:
    for gamma in (0.1, 2.0):
        _, cohort, _ = one_round(CGSV(gamma=gamma), normal(1, 7))
        assert float(cohort.step().norm()) == pytest.approx(gamma, rel=1e-6)


# who gets what
def test_clients_do_not_keep_their_own_work_and_the_better_get_more_bytes() -> None:
    """What a client holds changes by entries of the common step, and by nothing else."""
    fed = federation("cgsv", participation=1.0)
    for _ in range(3):
        before, vector = fed.progress, fed.progress.vector
        held = vector.expand(5, -1) if before.given is None else before.given
        fed.fit(1, progress=False)
        step, got = fed.progress.vector - vector, fed.progress.given - held
        there = got.abs() > 1e-12
        assert torch.allclose(got, torch.where(there, step, 0), rtol=0, atol=1e-12)
    fed.fit(1, progress=False)
    counts, down = there.sum(1).tolist(), fed.records[-1]["bytes"]["down"]
    order = sorted(range(5), key=lambda m: fed.records[2]["reputation"][m])
    assert [counts[m] for m in order] == sorted(counts)
    assert [down[m] for m in order] == sorted(down)
    assert counts[order[0]] < counts[order[-1]] == fed.model.size
    assert down[order[0]] < down[order[-1]]


def test_running_statistics_are_given_whole() -> None:
    fed = fitted("cgsv(beta=0.5)", 2, kind="batchnorm", participation=1.0)
    P = fed.model.n_params
    assert torch.equal(fed.progress.given[:, P:], fed.progress.vector[P:].expand(5, -1))
    assert not torch.equal(fed.progress.given[0, :P], fed.progress.given[1, :P])
    assert not torch.equal(fed.progress.vector[P:], fed.model.initial[P:])


def test_clients_with_old_statistics_do_not_spoil_the_new_ones() -> None:
    """The global ones are the mean of those present, whatever these started from; no variance falls below zero."""
    seen: list[tuple[Job, Answer]] = []
    spy = {"engine": watched(seen), "kind": "batchnorm", "sizes": (9, 13, 9, 13, 9)}
    fed = federation("cgsv", participation=0.2, epochs=6, seed=3, **spy)
    P = fed.model.n_params
    for _ in range(8):
        seen.clear()
        fed.fit(1, progress=False)
        assert torch.allclose(fed.progress.vector[P:], seen[0][1].trained[0, P:], rtol=0, atol=1e-14)
    assert bool((fed.progress.vector[P + 7 :] > 0).all())


def test_absent_clients_keep_their_model_and_their_standing() -> None:
    fed = fitted("cgsv", 3, participation=1.0)
    before = fed.progress
    part = federation("cgsv", participation=0.4)
    part.progress = before
    part.fit(1, progress=False)
    absent = [m for m in range(5) if m not in part.records[-1]["ids"]]
    assert len(absent) == 3
    assert torch.equal(part.progress.given[absent], before.given[absent])
    old, new = before.server[0]["r"][absent], part.progress.server[0]["r"][absent]
    assert torch.allclose(new / new.sum(), old / old.sum(), rtol=0, atol=1e-14)


# contributions
def test_rewards_by_contribution_leave_the_sum_as_it_is() -> None:
    c = [0.28, 0.35, 0.41, 0.1, 0.41]
    own, by = (
        fitted(CGSV(beta=2.0, reputation=what), 1, participation=1.0, contribution=c)
        for what in ("own", "contribution")
    )
    assert torch.equal(own.progress.vector, by.progress.vector)
    assert torch.equal(own.progress.server[0]["r"], by.progress.server[0]["r"])
    step = by.progress.vector - by.model.initial
    q = [math.tanh(2 * x) / math.tanh(2 * 0.41) for x in c]
    for m in range(5):
        expected = by.model.initial + tensor(top(step.tolist(), q[m], by.model.layout, "exact_layer"))
        assert torch.allclose(by.progress.given[m], expected, rtol=0, atol=1e-15)


def test_what_it_needs() -> None:
    assert CGSV().needs == frozenset()
    assert CGSV(reputation="contribution").needs == {"contribution"}
    with pytest.raises(ValueError, match="needs contributions, and there is none"):
        one_round(CGSV(reputation="contribution"), normal(2, 4))


# names and sums
def test_presets_and_sums() -> None:
    assert parse("cgsv:released").rules == (CGSV(sparsify="released_layer"),)
    assert parse("cgsv:paper-global").rules == (CGSV(sparsify="paper_global"),)
    assert parse("cgsv:contribution").rules == (CGSV(reputation="contribution"),)
    assert len(parse("fedprox+moon+cgsv").rules) == 3
    for other in ("fedheal", "qffl", "fphl", "fedave", "fedgh", "fedsac"):
        with pytest.raises(MethodError, match="each set"):
            parse(f"cgsv+{other}")
    fed = fitted("fedprox(mu=1)+cgsv", 2)
    assert eq.Method.of("fedprox(mu=1)+cgsv") == fed.method
    assert not torch.equal(fed.progress.vector, fitted("cgsv", 2).progress.vector)
