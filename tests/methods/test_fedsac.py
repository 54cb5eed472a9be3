"""FedSAC: the submodels, their aggregation, and what travels."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core import wire
from equipoise.core.model import Model
from equipoise.federation.round import submodels
from equipoise.methods import fedsac
from equipoise.methods.fedsac import FedSAC, allocate, prefixes, reputations, scores
from equipoise.networks import build
from equipoise.submodels.discovery import find
from helpers import UNEQUAL, Server, difference, federation, fitted, in_one, network, normal, samples, size_of

TESTS = {"a": samples(40, 1), "b": samples(20, 3)}


def importances(K: int, seed: int) -> Tensor:
    """Random numbers with negatives, zeros and ties."""
    return (normal(K, seed=seed) * 3).round() / 3


# the submodels
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
@pytest.mark.parametrize("form", ["clip", "paper"])
@pytest.mark.parametrize("prefix", ["largest_le", "smallest_ge"])
@pytest.mark.parametrize("least", [0, 1, 3])
def test_a_higher_reputation_holds_a_superset(seed: int, form: str, prefix: str, least: int) -> None:
    sizes = (5, 1, 9)
    I = importances(15, seed) if seed else -torch.ones(15, dtype=torch.float64)
    r = torch.cat([100 * torch.rand(20, generator=torch.Generator().manual_seed(seed)), torch.tensor([0.0, 100.0])])
    r = r.double().sort().values
    order = I.argsort(stable=True)
    units = allocate(order, prefixes(scores(I, form)[order].cumsum(0), r, prefix), sizes, least)
    for less, more in itertools.pairwise(units):
        assert not (less & ~more).any()
    assert units[-1].all()
    kept = [part.sum(1).min() for part in units.split(sizes, 1)]
    assert all(k >= min(least, size) for k, size in zip(kept, sizes, strict=True))
    if least == 0 and prefix == "largest_le" and form == "clip":  # never worth more than the reputation
        assert ((units * scores(I)).sum(1) <= r + 1e-6).all()


def naive_units(I: list[float], r: float, beta_scores: str) -> list[int]:
    """Eqs. 4 and 7 as loops."""
    positive = [max(v, 0.0) for v in I] if beta_scores == "clip" else I
    total = sum(positive)
    s = [100 * v / total for v in positive] if abs(total) > 1e-12 else [100 / len(I)] * len(I)
    order = sorted(range(len(I)), key=lambda k: (I[k], k))
    if r >= 100 - 1e-9:
        return sorted(order)
    best, spent = 0, 0.0
    for j, k in enumerate(order, start=1):
        spent += s[k]
        if spent <= r + 1e-9:
            best = j
    return sorted(order[:best])


@in_one("seed", range(8))
@in_one("form", ["clip", "paper"])
def test_submodels_equal_a_naive_loop(seed: int, form: str) -> None:
    I, r = importances(13, seed), torch.tensor([100.0, 71.0, 50.0, 12.5, 0.3, 0.0], dtype=torch.float64)
    order = I.argsort(stable=True)
    units = allocate(order, prefixes(scores(I, form)[order].cumsum(0), r))
    for row, reputation in zip(units, r.tolist(), strict=True):
        assert row.nonzero().flatten().tolist() == naive_units(I.tolist(), reputation, form)


def test_reputations() -> None:
    c = torch.tensor([0.2, 0.5, 0.35], dtype=torch.float64)
    expected = [100 * torch.exp(torch.tensor(7.0 * (v - 0.5), dtype=torch.float64)) for v in c.tolist()]
    assert torch.allclose(reputations(c, 7.0), torch.stack(expected))
    assert reputations(c, 0.0).tolist() == [100.0] * 3
    assert reputations(c, 2000.0).isfinite().all()


def test_importances_that_are_not_finite_count_as_the_most_important() -> None:
    I = torch.tensor([0.3, float("inf"), -1.0, 2.0], dtype=torch.float64)
    order = I.argsort(stable=True)
    assert order.tolist() == [2, 0, 3, 1]
    assert prefixes(scores(I)[order].cumsum(0), torch.tensor([99.0, 100.0])).tolist() == [3, 4]


def test_a_distance_to_the_whole_model_shrinks_with_the_reputation() -> None:
    """Theorem 1: nested submodels, so delta is not increasing in r; the best contributor has the global model itself."""
    fed = fitted("fedsac(beta=8)", 3, participation=1.0, contribution=[0.1, 0.9, 0.4, 0.6, 0.3])
    trial, p = fed.trial, fed.progress
    units = submodels(trial, p.server, range(5))
    held = trial.neurons.held(units)
    delta = (p.vector - p.vector * held).norm(dim=1)
    r = p.server[0]["r"]
    order = r.argsort()
    assert (delta[order].diff() <= 0).all()
    assert delta[order[-1]] == 0
    assert delta[order[0]] > 0
    assert torch.equal(fed._vector(int(order[-1])), fed._vector(None))


@in_one("seed", range(20))
def test_theorem_1_on_isotropic_quadratics(seed: int) -> None:
    """F = L/2 |theta - theta*|^2: if the gradient at theta_g is within Eq. 16's bound, the larger submodel is not worse."""
    D, L = 12, 1.7
    g = normal(D, seed=seed)
    star = g + 10 ** (-seed % 4 - 1.0) * normal(D, seed=seed + 100)
    larger = torch.rand(D, generator=torch.Generator().manual_seed(seed)) < 0.8
    smaller = larger & (torch.rand(D, generator=torch.Generator().manual_seed(seed + 1)) < 0.6)
    a, b = g * larger, g * smaller
    assert (g - a).norm() <= (g - b).norm()
    bound = L * ((g - a).norm() ** 2 - (g - b).norm() ** 2).abs() / (2 * (a - b).norm()).clamp(min=1e-300)
    if (L * (g - star)).norm() <= bound:
        assert (a - star).square().sum() <= (b - star).square().sum() + 1e-12


# the aggregation
@in_one("count", ["structural", "update_nonzero"])
@in_one("seed", range(4))
def test_aggregation_equals_a_naive_loop(count: str, seed: int) -> None:
    M, P, B = 6, 40, 5
    held = torch.rand(M, P + B, generator=torch.Generator().manual_seed(seed)) < 0.4
    held[:, 3] = False  # nobody
    updates = normal(M, P + B, seed=seed) * held
    updates[1] = 0  # a client that did not move
    theta = normal(P + B, seed=seed + 50)
    expected = theta.clone()
    for e in range(P + B):
        of = [m for m in range(M) if held[m, e] and (count == "structural" or updates[m, e] != 0)]
        if of:
            expected[e] += sum(updates[m, e] for m in of) / len(of)
    server = Server(FedSAC(count=count), theta[:P], [5.0, 1, 9, 2, 2, 7], buffers=theta[P:])
    server.round(updates[:, :P], buffer_updates=updates[:, P:], held=held)
    after = torch.cat([server.theta, server.buffers])
    assert torch.allclose(after, expected, atol=1e-12)
    assert after[3] == theta[3]


def test_equal_contributions_are_fedavg_with_equal_weights() -> None:
    a = fitted("fedsac(beta=25)", 3, contribution=[0.4] * 5)
    b = fitted("fedavg:uniform", 3)
    assert torch.allclose(a.progress.vector, b.progress.vector, atol=1e-12)


def test_who_is_absent_has_no_part_in_the_count() -> None:
    fed = federation("fedsac(beta=9)", contribution=[0.1, 0.2, 0.3, 0.4, 0.9], participation=0.6)
    before = fed.progress.vector.clone()
    fed.fit(1, progress=False)
    units = submodels(fed.trial, fed.progress.server, fed.records[0]["ids"])
    nobody = ~fed.trial.neurons.held(units).any(0)
    assert (4 in fed.records[0]["ids"]) == (not nobody.any())
    assert torch.equal(fed.progress.vector[nobody], before[nobody])


# training a submodel
def deep(kind: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "mlp":
            return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)).double()
        return nn.Sequential(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3),
        ).double()  # fmt: skip


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
@pytest.mark.parametrize("solver", [eq.SGD(0.05, 0.9, 1e-3), eq.SGD(0.1, clip=0.5), eq.Adam(0.01)])
def test_a_really_smaller_network_gives_the_same_numbers(
    kind: str, solver: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extraction (the sequential engine) and masking."""
    settings = {"net": deep(kind), "contribution": [0.1, 0.9, 0.5, 0.7, 0.3], "solver": solver, "participation": 1.0}
    shrunk: list[int] = []
    extract = type(find(Model(deep(kind)), samples(4, 0)[0])).extract

    def watched(self: object, units: Tensor) -> object:
        shrunk.append(int(units.sum()))
        return extract(self, units)

    monkeypatch.setattr("equipoise.core.hidden_units.Neurons.extract", watched)
    small = fitted("fedsac(beta=4)", 3, **settings)
    assert shrunk
    monkeypatch.setattr("equipoise.core.hidden_units.Neurons.fits", lambda self, units: False)
    taken = len(shrunk)
    masked = fitted("fedsac(beta=4)", 3, **settings)
    assert len(shrunk) == taken + 1  # a trial when the federation was made
    assert difference(small, masked) < 1e-10


def test_what_is_not_held_does_not_move_and_weight_decay_leaves_it_alone() -> None:
    fed = federation(
        "fedsac(beta=30)", solver=eq.SGD(0.1, 0.9, 0.5), contribution=[0.1, 0.1, 0.1, 0.1, 0.9], participation=1.0
    )
    seen: list[Tensor] = []

    def engine(job: object) -> object:
        from equipoise.engines.sequential import sequential

        for answer in sequential(job):
            seen.append(answer.trained[0][~job.held[answer.rows[0]]])
            yield answer

    fed.trial = replace(fed.trial, engine=engine)
    fed.fit(1, progress=False)
    assert all(not x.any() for x in seen)
    assert sum(len(x) for x in seen) > 0


# looks, options
def test_importances_are_looked_at_every_so_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Tensor] = []
    original = fedsac.ablation

    def counted(neurons: Any, vector: Tensor, batches: Any) -> tuple[Tensor, Tensor]:
        looks.append(vector.clone())
        return original(neurons, vector, batches)

    monkeypatch.setattr(fedsac, "ablation", counted)
    fed = federation("fedsac(every=2)", contribution=[0.1, 0.2, 0.3, 0.4, 0.9])
    vectors = [fed.progress.vector.clone()]
    fed.fit(5, progress=False, on_round=lambda _: vectors.append(fed.progress.vector.clone()))
    assert len(looks) == 3
    assert all(torch.equal(a, b) for a, b in zip(looks, vectors[:5:2], strict=True))  # before the round, on its model
    fitted("fedsac-no-allocation", 3, contribution=[0.1, 0.2, 0.3, 0.4, 0.9])
    assert len(looks) == 3


def test_without_allocation_the_submodels_are_as_large_and_drawn_anew() -> None:
    fed = fitted("fedsac-no-allocation(every=1, beta=2)", 4, contribution=[0.1, 0.2, 0.3, 0.4, 0.9], participation=1.0)
    units = [r["units"] for r in fed.records]
    K = fed.trial.neurons.n
    r = fed.progress.server[0]["r"]
    for found in units:
        held = torch.tensor(found["held"]).sum(1)
        floor = (r * K / 100 + 1e-9).floor()
        assert ((held >= floor) & (held <= floor + 1)).all()  # one more where the least important was not among them
    assert len({bits[0] for bits in (u["bits"] for u in units)}) > 1


def test_what_is_recorded() -> None:
    """Reputations of those present in every round; importances where they are measured, as they were measured."""
    options = {"contribution": [0.1, 0.9, 0.4, 0.6, 0.3]}
    fed = fitted("fedsac(every=2, beta=2)", 4, **options)
    r = reputations(torch.tensor(options["contribution"], dtype=torch.float64), 2.0)
    assert all(record["reputation"] == r[record["ids"]].tolist() for record in fed.records)
    assert ["importance" in record for record in fed.records] == [True, False, True, False]
    fed = federation("fedsac(every=2, beta=2)", **options)
    without, whole = fedsac.ablation(fed.trial.neurons, fed.progress.vector, fed.trial.oracle.batches())
    fed.fit(1, progress=False)
    assert fed.records[0]["importance"] == pytest.approx((without - whole).tolist(), abs=1e-7)
    other = fitted("fedsac-no-allocation", 1, **options)
    assert "importance" not in other.records[0]
    assert "importance" not in other.progress.server[0]
    assert fitted("fedsac-no-aggregation", 1, **options).records[0].keys() >= {"importance", "reputation"}


def test_an_importance_that_is_not_finite_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(neurons: Any, *_: Any) -> tuple[Tensor, Tensor]:
        without = torch.ones(neurons.n, dtype=torch.float64)
        without[1] = torch.nan
        return without, torch.zeros((), dtype=torch.float64)

    monkeypatch.setattr(fedsac, "ablation", broken)
    assert fitted("fedsac", 1, contribution=[0.5] * 5).records[0]["importance"][:3] == [1.0, None, 1.0]


def test_the_source_of_contributions() -> None:
    a = fitted("fedsac", 2, tests=TESTS)
    b = fitted("fedsac:published", 2, tests=TESTS)
    for fed, source in ((a, "standalone_val"), (b, "standalone_test")):
        told = fed.history.meta["contribution"]
        assert told["used"] == source
        assert torch.equal(fed.trial.contribution, torch.tensor(told[source], dtype=torch.float64))
        assert torch.allclose(fed.progress.server[0]["r"], reputations(fed.trial.contribution, 10.0))
    assert a.history.meta["contribution"]["standalone_val"] == b.history.meta["contribution"]["standalone_val"]


def test_contributions_are_those_of_the_method_standalone() -> None:
    fed = fitted("fedsac", 3, tests=TESTS, participation=0.5)
    alone = fitted("standalone", 3, tests=TESTS, participation=1.0)
    expected = [alone.evaluate(*TESTS["a"], client=m)["accuracy"] * 40 for m in range(5)]
    expected = [(a + alone.evaluate(*TESTS["b"], client=m)["accuracy"] * 20) / 60 for m, a in enumerate(expected)]
    assert fed.history.meta["contribution"]["standalone_test"] == pytest.approx(expected)


# what travels
def test_a_smaller_submodel_travels_in_fewer_bytes() -> None:
    """The bytes of a record are those of the messages, which carry all that the client needs."""
    fed = fitted("fedsac(beta=6)", 2, participation=1.0, contribution=[0.1, 0.9, 0.4, 0.6, 0.3])
    trial, p, told = fed.trial, fed.progress, fed.records[-1]["bytes"]
    units = submodels(trial, p.server, range(5))
    held = trial.neurons.held(units)
    for m in range(5):
        message = wire.pack_submodel(p.vector, units[m], held[m])
        assert told["down"][m] == size_of(message)
        assert told["up"][m] == int(held[m].sum()) * 8
        again = wire.unpack_units(message, trial.neurons.n)
        assert torch.equal(again, units[m])
        assert torch.equal(wire.unpack_submodel(message, trial.neurons.held(again)), p.vector * held[m])
    order = p.server[0]["r"].argsort()
    down = torch.tensor(told["down"])[order]
    assert (down.diff() >= 0).all()
    assert down[0] < down[-1]
    assert down[-1] == told["full"] + -(-trial.neurons.n // 8)


def test_the_bytes_of_a_submodel_of_the_papers_network() -> None:
    """4 [(d + 1) k1 + (k1 + 1) k2 + (k2 + 1) C], and a bit for each hidden unit."""
    model = Model(build("mlp", (3, 32, 32), 10, seed=0))
    neurons = find(model, torch.zeros(2, 3, 32, 32))
    units = torch.zeros(400, dtype=torch.bool)
    units[:37], units[200:311] = True, True
    held = neurons.held(units)
    entries = 3073 * 37 + 38 * 111 + 112 * 10
    assert int(held.sum()) == entries
    assert size_of(wire.pack_submodel(model.initial, units, held)) == 4 * entries + 50
    assert wire.submodel_size(entries, 400, 4) == 4 * entries + 50


# what a client owns
def test_a_client_predicts_with_its_submodel_of_the_last_model() -> None:
    fed = fitted("fedsac(beta=6)", 3, tests=TESTS, participation=1.0, contribution=[0.1, 0.9, 0.4, 0.6, 0.3])
    held = fed.trial.neurons.held(submodels(fed.trial, fed.progress.server, range(5)))
    x, y = TESTS["a"]
    for m in range(5):
        net = network()
        net.load_state_dict(fed.trial.model.state_dict(fed.progress.vector * held[m]))
        expected = net(x).argmax(1)
        assert torch.equal(fed.predict(x, client=m), expected)
        small = fed.network(client=m, compact=True)
        assert torch.allclose(small(x), fed.network(client=m)(x), atol=1e-12)
        assert sum(p.numel() for p in small.parameters()) == int(held[m].sum())
    assert len({round(a, 6) for a in fed.records[-1]["clients"]["accuracy"]}) > 1
    assert int(y[0]) in range(3)


# bad input
def test_no_validation_data() -> None:
    with pytest.raises(ValueError, match=r"fedsac measures on validation data .* Give server_validation=\(x, y\)"):
        federation("fedsac", server_validation=None)


def test_a_network_without_hidden_units() -> None:
    with pytest.raises(ValueError, match="no hidden units"):
        federation("fedsac", net=nn.Linear(6, 3).double())


@pytest.mark.parametrize(
    ("contribution", "said"),
    [
        ([0.1, 0.2], "one number per client: expected 5, found 2"),
        ([0.1, 0.2, 0.3, 0.4, 1.5], r"fractions in \[0, 1\]; found 0.1 to 1.5"),
        ([40, 50, 60, 70, 80], r"fractions in \[0, 1\]; found 40 to 80. Divide percentages by 100"),
    ],
)
def test_bad_contributions(contribution: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=f"contribution must hold {said}"):
        federation("fedsac", contribution=contribution)


def test_published_contributions_need_tests() -> None:
    with pytest.raises(ValueError, match=r"fedsac.* measured on tests="):
        federation("fedsac:published")
    with pytest.raises(ValueError, match=r"cgsv.* measured on server_validation="):
        federation("cgsv:contribution", server_validation=None)
    assert federation("cgsv:contribution", server_validation=None, contribution=[0.1] * 5)


@in_one("bad", ["fedsac(beta=-1)", "fedsac(every=0)", "fedsac(prefix=nearest)", "fedsac(min_per_layer=-1)"])
def test_bad_hyper_parameters(bad: str) -> None:
    with pytest.raises(ValueError, match=r"fedsac: \w+ must be"):
        federation(bad)


def test_one_client_and_one_sample() -> None:
    fed = fitted("fedsac", 2, data=[samples(1, 0)], tests=TESTS)
    assert fed.progress.server[0]["r"].tolist() == [100.0]
    assert torch.allclose(fed.progress.vector, fitted("fedavg", 2, data=[samples(1, 0)]).progress.vector)


def test_clients_are_as_many_as_ever() -> None:
    assert len(UNEQUAL) == 5  # the lists above have five contributions


class Sigmoid(nn.Sequential):
    """Units whose output is not zero when all their weights are."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 9), nn.Sigmoid(), nn.Linear(9, 3))
        self.double()


@pytest.mark.parametrize("name", ["fedsac+finetune", "fedsac+ditto-personal", "moon+fedsac-no-aggregation"])
def test_what_a_client_does_not_hold_is_not_there_in_sums_either(name: str) -> None:
    torch.manual_seed(0)
    net = Sigmoid()
    fed = fitted(
        name, 3, net=net, contribution=[0.1, 0.9, 0.5, 0.7, 0.3], participation=1.0, server_validation=samples(30, 2)
    )
    held = fed.trial.neurons.held(submodels(fed.trial, fed.progress.server, range(5)))
    assert not held[0].all()
    x = samples(20, 4)[0]
    for m in range(5):
        assert not fed._vector(m)[~held[m]].any()
        small, whole = fed.network(client=m, compact=True), fed.network(client=m)
        assert torch.allclose(small(x), whole(x), atol=1e-12)
    nobody = ~held.any(0)
    assert torch.equal(fed.progress.vector[nobody], fed.model.initial[nobody])


@in_one("other", ["ditto", "fedpac", "cgsv", "fedave", "cffl", "finetune:every-round"])
def test_rules_that_give_or_keep_another_model_are_refused(other: str) -> None:
    with pytest.raises(ValueError, match="each set"):
        federation(f"fedsac-no-aggregation+{other}")


def test_compact_where_there_is_no_submodel() -> None:
    fed = fitted("fedsac(beta=6)", 1, contribution=[0.1, 0.9, 0.4, 0.6, 0.3])
    with pytest.raises(ValueError, match=r"compact: .* the global model is whole"):
        fed.network(compact=True)
    with pytest.raises(ValueError, match=r"compact: .* fedavg gives clients the whole network"):
        fitted("fedavg", 1).network(client=0, compact=True)
    with pytest.raises(ValueError, match="client must be a whole number in"):
        fed.network(client="client-1")


@pytest.mark.parametrize("bad", [{"client-0": 0.1}, "0.1 0.2", ["a"] * 5])
def test_contributions_that_are_no_numbers(bad: object) -> None:
    with pytest.raises(TypeError, match="contribution must be a list of numbers"):
        federation("fedsac", contribution=bad)


def test_validation_data_that_are_not_finite() -> None:
    x, y = samples(20, 1)
    with pytest.raises(ValueError, match="validation holds numbers that are not finite"):
        federation("fedsac", server_validation=(x.index_fill(0, torch.tensor(3), float("nan")), y))


def test_hidden_units_by_hand_are_a_mapping() -> None:
    with pytest.raises(TypeError, match="neurons must be a mapping"):
        federation("fedsac", neurons=["0"])
