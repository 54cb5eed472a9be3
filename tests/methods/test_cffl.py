"""CFFL: rounds typed out client by client, reputations in scalars, and the zero cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Cohort, Setup
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.methods.cffl import CFFL, judged, largest
from helpers import N_CLASSES, UNEQUAL, clients, difference, federation, fitted, in_one, normal, samples, tensor

VALIDATION = samples(50, 2)
N = len(UNEQUAL)


# the equations, one client and one entry at a time
def top(vector: list[float], k: int) -> list[bool]:
    """The k largest magnitudes, and what ties with the last of them."""
    if k == 0:
        return [False] * len(vector)
    edge = sorted((abs(x) for x in vector), reverse=True)[k - 1]
    return [abs(x) >= edge * (1 - 1e-9) for x in vector]


def parts(vector: list[float], layout: tuple[int, ...]) -> Iterator[list[float]]:
    for n in layout:
        yield vector[:n]
        vector = vector[n:]


class Naive:
    """CFFL by hand, with full participation: ``w`` are the clients' own models, ``w_g`` the server's."""

    def __init__(self, rule: CFFL, fed: eq.Federation) -> None:
        self.rule, self.fed = rule, fed
        self.w = [fed.model.initial.tolist() for _ in range(N)]
        self.w_g = fed.model.initial.tolist()
        self.rep, self.R = [0.0] * N, list(range(N))

    def accuracy(self, vector: list[float]) -> float:
        x, y = VALIDATION
        return float((self.fed.model.network(tensor(vector))(x).argmax(1) == y).double().mean())

    def uploaded(self, clipped: list[float]) -> list[float]:
        rule = self.rule
        if rule.criterion == "layer":
            pieces = list(parts(clipped, self.fed.model.layout))
            keep = [b for p in pieces for b in top(p, math.ceil(rule.theta_u * len(p) - 1e-9))]
        else:
            keep = top(clipped, int(rule.theta_u * len(clipped)))
        return [x if b else 0.0 for x, b in zip(clipped, keep, strict=True)]

    def round(self, job: Job) -> None:
        rule, P, t = self.rule, len(self.w_g), job.t
        told = replace(job, rules=(), received=tensor(self.w), states=[], messages=[])
        trained = [row.tolist() for answer in sequential(told) for row in answer.trained]
        delta = [
            [a - b for a, b in zip(after, before, strict=True)] for after, before in zip(trained, self.w, strict=True)
        ]
        if rule.port:
            sent = []
            for d in delta:
                length = math.sqrt(sum(x * x for x in d)) + 1e-7
                sent.append([rule.gamma * x / length for x in d])
            mine = delta
        else:
            mine = [[min(max(x, -rule.clip), rule.clip) for x in d] for d in delta]
            sent = [self.uploaded(c) for c in mine]
        base = [self.w_g] * N if rule.theta_u < 1 else self.w
        judged_by = sent if rule.theta_u < 1 else mine
        vacc = [self.accuracy([b + s for b, s in zip(base[i], judged_by[i], strict=True)]) for i in range(N)]
        self.judge(vacc, rule.alpha * (1 + t / job.rounds) if rule.decay else rule.alpha)

        if rule.by == "samples":
            size = [n / max(UNEQUAL) for n in UNEQUAL]
            mean = [n / sum(UNEQUAL) for n in UNEQUAL]
        else:
            size = mean = [len(set(y.tolist())) / N_CLASSES for _, y in clients()]
        a = {"sum": [1.0] * N, "reputation": self.rep, "mean": mean}[rule.aggregation]
        u = [sum(a[i] * sent[i][j] for i in self.R) for j in range(P)]
        self.w_g = [w + x for w, x in zip(self.w_g, u, strict=True)]
        for i in range(N):
            if rule.port and i not in self.R:
                continue  # not even its own work
            self.w[i] = [w + x for w, x in zip(self.w[i], mine[i], strict=True)]
            if i not in self.R:
                continue
            q = self.rep[i] / max(self.rep) * size[i]
            o = size[i] / max(size) if rule.aggregation == "mean" else 1.0
            got = self.allocated(u, self.rep[i] if rule.criterion == "layer" else q, t)
            self.w[i] = [w + g - o * s for w, g, s in zip(self.w[i], got, sent[i], strict=True)]

    def judge(self, vacc: list[float], alpha: float) -> None:
        before, total = N if self.rule.port else len(self.R), sum(vacc[i] for i in self.R)
        rep = [0.0] * N
        for i in self.R:
            x = vacc[i] / total
            if self.rule.port:
                rep[i] = 0.5 * (math.sinh(alpha * x) + x)
            else:
                old = 0.8 if self.rule.fade else 0.5
                rep[i] = math.sinh(alpha * (old * self.rep[i] + (1 - old) * x))
        rep = [r / sum(rep) for r in rep]
        self.R = [i for i in self.R if rep[i] >= self.rule.coef / before]
        rep = [r if i in self.R else 0.0 for i, r in enumerate(rep)]
        self.rep = [r / sum(rep) for r in rep]

    def allocated(self, u: list[float], q: float, t: int) -> list[float]:
        layered = self.rule.port or self.rule.criterion == "layer"
        layout = self.fed.model.layout if layered else (len(u),)
        size = u
        if self.rule.download == "random":
            size = torch.randperm(len(u), generator=torch.Generator().manual_seed(1_000_003 * 3 + t)).double().tolist()
        keep: list[bool] = []
        for piece in parts(size, layout):
            k = math.ceil(q * len(piece) - 1e-9) if layered else math.floor(q * len(piece) + 1e-9)
            keep += top(piece, k)
        return [x if b else 0.0 for x, b in zip(u, keep, strict=True)]


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "clipped": {"aggregation": "sum", "clip": 0.002},
    "part": {"aggregation": "sum", "theta_u": 0.3, "clip": 0.02},
    "part-layer": {"aggregation": "sum", "theta_u": 0.3, "criterion": "layer"},
    "released": {"aggregation": "sum"},
    "reputation": {"aggregation": "reputation", "decay": True},
    "random": {"aggregation": "sum", "download": "random"},
    "random-part-mean": {"download": "random", "theta_u": 0.5},
    "layer": {"aggregation": "sum", "criterion": "layer", "fade": False},
    "classes": {"aggregation": "sum", "by": "classes", "coef": 1 / 6},
    "classes-mean": {"by": "classes"},
    "isolates": {"aggregation": "sum", "coef": 0.95},
    "port": {"port": True},
    "port-isolates": {"port": True, "coef": 0.6},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_rounds_typed_out(options: dict[str, Any]) -> None:
    """The server's model, every client's own model and the reputations, after each of four rounds."""
    jobs: list[Job] = []

    def engine(job: Job) -> Iterator[Answer]:
        jobs.append(job)
        yield from sequential(job)

    rule = CFFL(**options)
    settings = {"participation": 1.0, "server_validation": VALIDATION, "solver": eq.SGD(0.1)}
    fed = federation(rule, engine=engine, **settings)
    naive = Naive(rule, fed)

    def compare(record: dict[str, Any]) -> None:
        naive.round(jobs[-1])
        now = fed.progress
        own = now.given if not rule.theta_u < 1 else now.given + now.clients[0]["residual"]
        assert record["reputation"] == pytest.approx(naive.rep, abs=1e-12)
        assert now.server[0]["reputable"].nonzero().flatten().tolist() == naive.R
        assert torch.allclose(now.vector, tensor(naive.w_g), rtol=0, atol=1e-12)
        assert torch.allclose(own, tensor(naive.w), rtol=0, atol=1e-12)

    fed.fit(4, progress=False, on_round=compare)
    assert len({tuple(w) for w in naive.w}) == N
    assert (len(naive.R) < N) == ("coef" in options and options["coef"] > 0.5)


def test_a_client_predicts_with_all_of_its_own_work() -> None:
    fed = fitted(CFFL(theta_u=0.3), 2, participation=1.0, server_validation=VALIDATION)
    x, _ = samples(9, 1)
    own = fed.progress.given[1] + fed.progress.clients[0]["residual"][1]
    assert float(fed.progress.clients[0]["residual"][1].abs().max()) > 1e-3
    assert torch.equal(fed.logits(x, client=1), fed.model.network(own)(x).detach())


# reputations
def state(
    reputation: list[float], reputable: list[bool] | None = None, seen: list[bool] | None = None
) -> dict[str, Tensor]:
    n = len(reputation)
    flags = (torch.tensor(f if f is not None else [True] * n) for f in (reputable, seen))
    return {"reputation": tensor(reputation), **dict(zip(("reputable", "seen"), flags, strict=True))}


def here(*ids: int, n: int = 4) -> Tensor:
    return torch.zeros(n, dtype=torch.bool).index_fill(0, torch.tensor(ids), True)


def test_accuracies_of_zero_count_as_equal() -> None:
    start = CFFL().server_state(Setup(normal(1), (1,), torch.ones(4, dtype=torch.float64)))
    after = judged(start, here(0, 1, 2, 3), torch.zeros(4).double(), 5, 0.8, 1 / 3)
    assert after["reputation"].tolist() == pytest.approx([0.25] * 4)
    assert bool(after["reputable"].all())


def test_the_reputable_are_never_nobody() -> None:
    """A threshold above 1 sends everybody away; they stay, with the reputations of the round."""
    after = judged(state([0.25] * 4), here(0, 1, 2, 3), tensor([0.4, 0.3, 0.2, 0.0]), 5, 0.8, 3.0)
    assert bool(after["reputable"].all())
    curve = [math.sinh(5 * (0.8 * 0.25 + 0.2 * x)) for x in (4 / 9, 3 / 9, 2 / 9, 0)]
    assert after["reputation"].tolist() == pytest.approx([c / sum(curve) for c in curve])


def test_who_was_sent_away_stays_away() -> None:
    start = state([0.5, 0.5, 0, 0], [True, True, False, False])
    after = judged(start, here(0, 1, 2, 3), tensor([0.1, 0.2, 0.9, 0.9]), 5, 0.8, 1 / 3)
    assert after["reputation"][2:].tolist() == [0, 0]
    assert after["reputable"].tolist() == [True, True, False, False]
    x = [1 / 3, 2 / 3]
    curve = [math.sinh(5 * (0.8 * 0.5 + 0.2 * v)) for v in x]
    assert after["reputation"][:2].tolist() == pytest.approx([c / sum(curve) for c in curve])
    assert judged(start, here(2, 3), tensor([0, 0, 0.9, 0.9]), 5, 0.8, 1 / 3) is start


def test_absent_clients_keep_their_share() -> None:
    after = judged(state([0.1, 0.2, 0.3, 0.4]), here(1, 3), tensor([0, 0.5, 0, 0.25]), 5, 0.8, 0.0)
    r = after["reputation"].tolist()
    assert r[0] == pytest.approx(0.1)
    assert r[2] == pytest.approx(0.3)
    x = [0.6 * 2 / 3, 0.6 / 3]  # of what these two hold together
    curve = [math.sinh(5 * (0.8 * old + 0.2 * v)) for old, v in zip((0.2, 0.4), x, strict=True)]
    assert [r[1], r[3]] == pytest.approx([0.6 * c / sum(curve) for c in curve])


def test_an_absent_client_is_not_sent_away() -> None:
    """Even far below the threshold; one that is present is, and what it held goes to the others in proportion."""
    after = judged(state([0.01, 0.29, 0.3, 0.4]), here(1, 2), tensor([0, 0.0, 1.0, 0]), 50, 0.0, 0.9)
    assert after["reputable"].tolist() == [True, False, True, True]
    assert after["reputation"].tolist() == pytest.approx([0.01, 0, 0.59, 0.4])


@given(
    rounds=st.lists(
        st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=5, max_size=5), min_size=1, max_size=6
    ),
    coef=st.floats(0, 1),
    fade=st.booleans(),
    port=st.booleans(),
)
def test_reputations_are_shares(rounds: list[list[tuple[bool, float]]], coef: float, fade: bool, port: bool) -> None:
    """Non-negative, 0 outside R and for who was never seen; those in R who were hold their part of one; R only shrinks."""
    rule = CFFL(fade=fade, coef=coef)
    now = rule.server_state(Setup(normal(1), (1,), torch.ones(5, dtype=torch.float64)))
    for clients_now in rounds:
        present, accuracy = torch.tensor([p for p, _ in clients_now]), tensor([a for _, a in clients_now])
        before, now = now, {**now, **judged(now, present, accuracy, rule.alpha, rule.old, coef, port=port)}
        r, R, seen = now["reputation"], now["reputable"], now["seen"]
        assert bool(r.isfinite().all())
        assert bool((r >= 0).all())
        assert not bool(r[~R].any())
        assert not bool(r[~seen].any())
        assert bool((before["reputable"] >= R).all())
        assert bool(R.any())
        assert float(r.sum()) == pytest.approx(int((R & seen).sum()) / int(R.sum()))


# what is handed out
@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("layout", [(9,), (4, 5), (1, 8)])
@given(values=st.lists(st.integers(-3, 3), min_size=9, max_size=9), share=st.floats(0, 1))
def test_largest_keeps_ties_and_no_fewer(layout: tuple[int, ...], up: bool, values: list[int], share: float) -> None:
    found = largest(tensor(values)[None].abs(), tensor([[share]]), layout, up=up)[0].tolist()
    expected: list[bool] = []
    for piece in parts([float(v) for v in values], layout):
        k = math.ceil(share * len(piece) - 1e-9) if up else math.floor(share * len(piece) + 1e-9)
        expected += top(piece, k)
    assert found == expected


def test_rounding_does_not_part_a_tie() -> None:
    """0.1 + 0.2 - 0.3 in another order: sums of clipped updates that are one number by rights."""
    size = tensor([[0.1 + 0.2, 0.3, 0.2 + 0.1, 0.05, 1.0]])
    assert float(size[0, 0]) != float(size[0, 1])
    assert largest(size, tensor([[0.4]]), (5,), up=False).tolist() == [[True, True, True, False, True]]


def cohort(rule: CFFL, contribution: list[float], sizes: list[float], updates: Tensor, start: Tensor) -> Cohort:
    n = tensor(sizes)
    return Cohort(
        t=0,
        rounds=1,
        n_clients=len(n),
        theta=normal(updates.shape[1], seed=9),
        updates=updates,
        ids=torch.arange(len(n)),
        sizes=n,
        weights=n / n.sum(),
        layout=(updates.shape[1],),
        buffer_updates=updates.new_zeros(len(n), 0),
        received=start,
        kept=start,
        contribution=tensor(contribution),
    )


def test_who_is_to_get_nothing_gets_nothing() -> None:
    """The released code reads the list of entries at -1 there, and gives everything."""
    updates, start = normal(3, 10, seed=1), normal(3, 10, seed=2)
    rule = CFFL(reputation="contribution")
    asked = cohort(rule, [0.02, 0.48, 0.5], [50, 30, 20], updates, start)
    first = rule.server_state(Setup(start[0], (10,), asked.sizes))
    now, asked = rule.aggregate(first, asked)
    _, given_back = rule.reward(now, asked, start)
    assert torch.equal(given_back[0], start[0])  # o = 1: what it uploaded is taken from it, too
    assert int((given_back[1] != asked.kept[1]).sum()) == 5  # 0.96 x 0.6 x 10
    assert int((given_back[2] != asked.kept[2]).sum()) == 4


def test_contribution_decides_in_place_of_the_reputation() -> None:
    """c / max c times n / max n; nobody is isolated, and no validation data are needed."""
    rule = CFFL(reputation="contribution")
    assert rule.needs == {"classes", "contribution"}
    assert CFFL().needs == {"classes", "validation"}
    asked = cohort(rule, [0.28, 0.35, 0.0], [100, 200, 300], normal(3, 4), normal(3, 4))
    now, _ = rule.aggregate(rule.server_state(Setup(normal(4), (4,), asked.sizes)), asked)
    assert now["share"].tolist() == pytest.approx([0.8 / 3, 2 / 3, 0])
    assert bool(now["reputable"].all())


@in_one("length", [0.05, 0.2, 0.29, 0.31, 2.0])
def test_updates_shorter_than_gamma_turn_the_port_back(length: float) -> None:
    """Of its own direction the largest client keeps its update, less gamma, and its part of the sum; as released it keeps that part."""
    moved = []
    for rule in (CFFL(port=True, gamma=0.5, reputation="contribution"), CFFL(reputation="contribution")):
        start, updates = normal(4, 4, seed=1), length * torch.eye(4, dtype=torch.float64)  # which do not agree
        asked = cohort(rule, [0.7, 0.8, 0.6, 0.7], [20, 40, 20, 20], updates, start)
        now, asked = rule.aggregate(rule.server_state(Setup(start[0], (4,), asked.sizes)), asked)
        moved.append(float((rule.reward(now, asked, start)[1] - start)[1, 1]))
    assert moved == pytest.approx([length - 0.5 + 0.4 * 0.5, 0.4 * length], abs=1e-6)
    assert (moved[0] < 0) is (length < 0.3)


def test_it_asks_for_validation_data() -> None:
    with pytest.raises(ValueError, match="validation"):
        fitted(CFFL(), 1, server_validation=None)


def test_the_contribution_is_found_out_by_itself() -> None:
    fed = fitted("cffl:contribution", 2, participation=1.0, server_validation=VALIDATION)
    c = tensor(fed.records[0]["reputation"])
    assert float(c.sum()) == pytest.approx(1)
    assert fed.progress.server[0]["share"].tolist() == pytest.approx(
        [float(r / c.max()) * n / max(UNEQUAL) for r, n in zip(c, UNEQUAL, strict=True)]
    )


@pytest.mark.parametrize("name", ["cffl", "cffl(theta_u=0.4)", "cffl:group-port", "cffl:cla", "cffl:mnist"])
def test_engines_agree_on_every_form(name: str) -> None:
    settings = {"server_validation": VALIDATION, "participation": 0.8}
    assert difference(*(fitted(name, 3, engine=e, **settings) for e in ("sequential", "stacked"))) < 1e-10


def test_isolated_clients_keep_their_own_work_and_get_nothing() -> None:
    """A client that falls out of R trains on alone: as standalone, for updates that the clip does not touch."""
    name = "cffl(aggregation=sum, coef=0.95, clip=100)"
    settings = {"participation": 1.0, "server_validation": VALIDATION}
    fed = fitted(name, 1, **settings)
    away = (~fed.progress.server[0]["reputable"]).nonzero().flatten().tolist()
    assert 0 < len(away) < N
    fed.fit(2, progress=False)
    alone = fitted("standalone", 3, participation=1.0)
    for m in away:
        assert torch.allclose(fed.progress.given[m], alone.progress.own[m], rtol=0, atol=1e-12)
        assert fed.records[-1]["bytes"]["down"][m] == 0
    assert fed.records[-1]["weights"] == [0 if m in away else pytest.approx(1 / (N - len(away))) for m in range(N)]


def test_batch_norm_statistics_stay_the_clients_own() -> None:
    settings = {"kind": "batchnorm", "sizes": (9, 13, 9), "participation": 1.0, "server_validation": VALIDATION}
    fed = fitted("cffl:released", 1, **settings)
    alone = fitted("standalone", 1, kind="batchnorm", sizes=(9, 13, 9), participation=1.0)
    P = fed.model.n_params
    assert torch.allclose(fed.progress.given[:, P:], alone.progress.own[:, P:], rtol=0, atol=1e-12)
    assert torch.allclose(fed.progress.vector[P:], fed.progress.given[:, P:].mean(0), rtol=0, atol=1e-12)


def test_downloads_and_uploads_are_paid_for_what_they_hold() -> None:
    fed = fitted("cffl(theta_u=0.1, clip=100)", 2, participation=1.0, server_validation=VALIDATION)
    record = fed.records[-1]["bytes"]
    assert all(up < record["full"] / 4 for up in record["up"])
    shares = fed.progress.server[0]["share"]
    down = torch.tensor(record["down"])
    assert down[shares.argmax()] == down.max()
    assert down[shares.argmin()] == down.min()
    assert int(down.max()) > int(down.min())


def test_it_decides_what_nobody_else_may() -> None:
    assert CFFL().owns == {"weights", "direction", "upload", "reward"}
    assert CFFL(theta_u=0.5).owns == CFFL().owns | {"start"}
    with pytest.raises(eq.MethodError, match="weights"):
        eq.parse("cffl+fedheal")
    assert eq.parse("cffl:group-port").rules == (CFFL(port=True),)
    assert eq.parse("cffl:released").rules == (CFFL(aggregation="sum"),)


@pytest.mark.parametrize("theta_u", [1.0, 0.3])
def test_what_stays_at_home_is_neither_sent_nor_counted_twice(theta_u: float) -> None:
    fed = fitted(f"fedbn+cffl(theta_u={theta_u})", 3, kind="batchnorm", participation=1.0)
    trial, p = fed.trial, fed.progress
    for m in range(5):
        assert torch.equal(fed._vector(m)[trial.private], p.own[m][trial.private])
