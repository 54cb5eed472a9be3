"""Scenarios of collaborative fairness: POW, CLA and DIR on digits, the server's hold-out, and their partitions."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from equipoise.scenarios import digits, load, partition
from equipoise.scenarios.collaboration import TEST
from equipoise.scenarios.scenario import Protocol
from helpers import fast_first, in_one

NAMES = ("digits-pow", "digits-cla", "digits-dir")
SMALL = {"clients": 4, "samples": 90, "test": (5, 5, 20, 30)}
each = pytest.mark.parametrize("name", NAMES)

LABELS = np.random.default_rng(0).integers(0, 4, 400)


@pytest.fixture(autouse=True)
def folder(tmp_path_factory, monkeypatch):
    """One cache for the whole file: never the user's own."""
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def indices(parts):
    return sorted(index for part in parts for index in part)


# POW


@given(clients=st.integers(1, 30), each=st.integers(1, 300), more=st.integers(0, 29))
def test_released_sizes_one_by_one(clients, each, more):
    """Against the recipe as a loop: slices of a list, each rounded up, the last as long as the list allows."""
    n = clients * each + min(more, clients - 1)
    low, high = 0.01 ** (1 / 1.65911332899), 0.99 ** (1 / 1.65911332899)
    b = np.linspace(low, high, clients)
    rest, slices = list(range(n)), []
    for k in range(clients):
        length = int(np.ceil(b[k] / b.sum() * (n // clients * clients)))
        slices.append(rest[:length])
        rest = rest[length:]
    if all(slices):
        assert partition.power_sizes(n, clients) == [len(part) for part in slices]
        assert len(rest) < clients
    else:
        with pytest.raises(ValueError, match=r"would have 0: expected 1 or more"):
            partition.power_sizes(n, clients)


@given(clients=st.integers(2, 60), each=st.integers(85, 400), more=st.integers(0, 59))
def test_exact_sizes_share_everything_and_grow(clients, each, more):
    n = clients * each + more
    sizes = partition.power_sizes(n, clients, recipe="exact", min_size=10)
    assert sum(sizes) == n
    assert all(a < b for a, b in pairwise(sizes))
    assert np.abs(np.array(sizes) - partition.power_ramp(clients) * n).max() < 1
    assert partition.power_ramp(clients)[-1] / partition.power_ramp(clients)[0] == pytest.approx(15.95, abs=0.01)


@in_one(("n", "clients"), [(20_000, 10), (40_000, 20), (3_000, 5), (850, 10)])
def test_released_sizes_grow_from_the_first_client_to_the_last(n, clients):
    sizes = partition.power_sizes(n, clients, min_size=10)
    assert all(a < b for a, b in pairwise(sizes))
    assert sum(sizes) == n


@pytest.mark.parametrize("recipe", partition.RECIPES)
def test_power_cuts_one_shuffled_list(recipe):
    parts = partition.power(1003, 7, 3, recipe=recipe)
    assert [len(part) for part in parts] == partition.power_sizes(1003, 7, recipe=recipe)
    joined = [index for part in parts for index in part]
    assert joined == np.random.default_rng(3).permutation(1003)[: len(joined)].tolist()
    assert (indices(parts) == list(range(1003))) == (sum(map(len, parts)) == 1003)
    assert parts == partition.power(1003, 7, 3, recipe=recipe) != partition.power(1003, 7, 4, recipe=recipe)
    assert all(type(index) is int for part in parts for index in part)


def test_one_client_of_power_gets_everything():
    for recipe in partition.RECIPES:
        assert indices(partition.power(33, 1, 0, recipe=recipe)) == list(range(33))


@in_one(
    ("given", "message"),
    [
        ({"clients": 401}, "power_sizes: each client needs .* expected 1 to 400 clients for 400 samples, found 401"),
        ({"clients": 0}, "found 0"),
        ({"recipe": "exakt"}, "Unknown recipe of power_sizes: 'exakt'. Did you mean 'exact'"),
        ({"exponent": 0.0}, "exponent must be > 0 and finite; found 0"),
        ({"exponent": float("nan")}, "exponent must be > 0 and finite; found nan"),
        ({"min_size": 0}, "min_size must be a whole number >= 1; found 0"),
        ({"seed": -1}, "power: seed must be a whole number >= 0; found -1"),
        # rounding up takes 21 of 20 samples before the last client
        (
            {"n": 20, "clients": 10},
            r"of 10 clients that share 20 samples one would have 0: expected 1 or more. Give more samples per client\.$",
        ),
        (
            {"n": 800, "clients": 10, "min_size": 11},
            "one would have 10: expected 11 or more. Give more samples per client",
        ),
    ],
)
def test_errors_of_power(given, message):
    with pytest.raises(ValueError, match=message):
        partition.power(**({"n": 400, "clients": 4, "seed": 0} | given))


# CLA


def test_class_counts_of_twenty_clients():
    counts = partition.class_ramp_counts(20, 10, 2000)
    owned = [sum(count > 0 for count in row) for row in counts]
    assert owned == [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10]


@given(clients=st.integers(1, 40), classes=st.integers(1, 30), more=st.integers(0, 500))
def test_class_counts_are_nested_and_equal_in_size(clients, classes, more):
    m = classes + more
    counts = np.array(partition.class_ramp_counts(clients, classes, m))
    owned = (counts > 0).sum(1)
    assert (counts.sum(1) == m).all()
    assert owned[0] == 1
    assert owned[-1] == (classes if clients > 1 else 1)
    assert (np.diff(owned) >= 0).all()
    for row, k in zip(counts, owned, strict=True):
        assert (row[: k - 1] == m // k).all()
        assert row[k - 1] == m // k + m % k
        assert (row[k:] == 0).all()


@pytest.mark.parametrize("replacement", [False, True])
def test_class_ramp_holds_what_the_counts_say(replacement):
    parts = partition.class_ramp(LABELS, 7, 61, 5, replacement=replacement)
    counts = [np.bincount(LABELS[part], minlength=4).tolist() for part in parts]
    assert counts == partition.class_ramp_counts(7, 4, 61)
    assert parts == partition.class_ramp(LABELS.tolist(), 7, 61, 5, replacement=replacement)
    assert parts == partition.class_ramp(torch.from_numpy(LABELS), 7, 61, 5, replacement=replacement)
    assert parts != partition.class_ramp(LABELS, 7, 61, 6, replacement=replacement)
    assert all(type(index) is int for part in parts for index in part)
    repeats = [len(part) - len(set(part)) for part in parts]
    assert all(repeats) if replacement else not any(repeats)
    assert len(set(indices(parts))) < 7 * 61  # clients overlap


def test_the_remainder_of_the_released_recipe_is_nobody_elses():
    """It comes from the head of the last class's pool: client 3 of 3 classes has 62 % 3 = 2 of class 2."""
    labels = np.arange(300) % 3
    parts = partition.class_ramp(labels, 3, 62, 0, replacement=True)
    assert parts[2][-2:] == [2, 5]
    again = partition.class_ramp(labels, 6, 62, 0, replacement=True)  # 1, 1, 1, 2, 2, 3 classes
    assert again[5][-2:] == [2, 5]
    longer = partition.class_ramp(np.arange(40) % 4, 9, 7, 0, replacement=True)  # 1, 1, 1, 2, 2, 2, 3, 3, 4 classes
    taken = {3: [1], 4: [5], 5: [9], 6: [2], 7: [6], 8: [3, 7, 11]}
    for j, head in taken.items():
        assert longer[j][-len(head) :] == head
        assert not any(set(head) & set(part) for part in longer[j + 1 :])


@in_one(
    ("given", "message"),
    [
        ({"clients": 401}, "class_ramp: each client needs .* found 401"),
        ({"clients": 0}, "found 0"),
        ({"labels": [[0, 1]]}, r"labels must be one class per sample, \[n\]; found \[1, 2\]"),
        ({"m": 3}, "each of the 4 classes: expected 4 or more, found 3"),
        ({"seed": -1}, "class_ramp: seed must be a whole number >= 0; found -1"),
        (
            {"m": 200},
            r"client 1 needs 200 different samples of class 0 .* has 90 left. Take fewer samples per client, or draw with replacement",
        ),
        (
            # 1, 1, 1, 1, 2, 2, 2, 2, 3 classes: the remainders of the first two of two classes empty class 1
            {"labels": [0, 0, 0, 0, 0, 1, 1, 2, 2], "clients": 9, "m": 3, "replacement": True},
            r"client 7 needs 1 different samples of class 1 .* has 0 left. Take fewer samples per client, or fewer clients\.$",
        ),
    ],
)
def test_errors_of_class_ramp(given, message):
    usual = {"labels": LABELS, "clients": 4, "m": 40, "seed": 0}
    with pytest.raises(ValueError, match=message):
        partition.class_ramp(**(usual | given))


def test_counts_without_clients_or_classes_are_refused():
    for clients, classes in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match=f"found {clients} clients and {classes} classes"):
            partition.class_ramp_counts(clients, classes, 5)


# mixtures


@given(
    labels=st.lists(st.integers(0, 3), min_size=40, max_size=120),
    clients=st.integers(1, 8),
    alpha=st.floats(0.5, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_mixtures_deal_everything_once(labels, clients, alpha, seed):
    try:
        parts = partition.mixtures(labels, clients, alpha, seed, tolerance=1e-3)
    except ValueError as error:
        assert "would have no sample" in str(error)  # noqa: PT017 (not every draw gives such a partition)
        return
    assert len(parts) == clients
    assert indices(parts) == list(range(len(labels)))
    assert parts == partition.mixtures(labels, clients, alpha, seed, tolerance=1e-3)


def test_mixtures_have_equal_sizes_and_uneven_classes():
    """Unlike shares of classes, whose sizes vary, at an alpha that leaves labels as even."""
    labels = np.arange(3000) % 10

    def ratio(parts):
        return max(map(len, parts)) / min(map(len, parts))

    def evenness(parts):
        """Effective number of classes."""
        shares = [np.bincount(labels[part], minlength=10) / len(part) for part in parts]
        return np.mean([1 / np.square(share).sum() for share in shares])

    for seed in range(3):
        mixed, plain = partition.mixtures(labels, 10, 10.0, seed), partition.dirichlet(labels, 10, 1.0, seed)
        assert ratio(mixed) < 1.15 < ratio(plain)
        assert evenness(mixed) == pytest.approx(evenness(plain), abs=1.5)
        assert evenness(partition.mixtures(labels, 10, 1.0, seed)) < evenness(plain) - 1.5


def test_a_class_that_no_mixture_has_is_dealt_evenly():
    """A rare class and the smallest alpha: its shares underflow for everybody."""
    labels = [0] * 50 + [1] * 4
    q = partition._balanced(np.array([50, 4]) / 54, 2, 0.01, 10.0, 1, np.random.default_rng(0))
    assert q[:, 1].tolist() == [0, 0]
    parts = partition.mixtures(labels, 2, 0.01, 0, tolerance=10.0)
    assert indices(parts) == list(range(54))
    assert [sum(index >= 50 for index in part) for part in parts] == [2, 2]


def test_exchanges_bring_the_mean_mixture_to_the_shares_of_the_classes():
    prior = np.array([0.5, 0.3, 0.2])
    for seed in range(5):
        q = partition._balanced(prior, 6, 1.0, 1e-6, 500, np.random.default_rng(seed))
        assert q.sum(1) == pytest.approx(np.ones(6))
        # 500 exchanges per power of ten: a few thousand draws reach 1e-4 with ease
        assert np.square(q.mean(0) - prior).sum() <= 1e-4
        rng = np.random.default_rng(seed)
        first = rng.dirichlet(prior, 6)
        assert np.square(first.mean(0) - prior).sum() > np.square(q.mean(0) - prior).sum()


@in_one(
    ("given", "message"),
    [
        ({"clients": 401}, "mixtures: each client needs .* found 401"),
        ({"alpha": 0}, "mixtures: alpha must be >="),
        ({"tolerance": 0}, "tolerance must be > 0 and finite; found 0"),
        ({"tolerance": float("nan")}, "found nan"),
        ({"patience": 0}, "patience must be a whole number >= 1; found 0"),
        (
            {"labels": [0] * 12 + [1] * 12, "clients": 24, "alpha": 0.5},
            r"24 samples were never divided among 24 clients .* in 1 draw 1 of them or more had fewer. Take fewer clients, or a higher alpha\.$",
        ),
    ],
)
def test_errors_of_mixtures(given, message):
    with pytest.raises(ValueError, match=message):
        partition.mixtures(**({"labels": LABELS, "clients": 4, "alpha": 1.0, "seed": 0} | given))


# the hold-out


@given(
    labels=st.lists(st.integers(0, 4), min_size=5, max_size=90),
    fraction=st.floats(0.1, 0.9),
    stratified=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_holdout_and_the_rest_are_everything(labels, fraction, stratified, seed):
    size = round(fraction * len(labels))
    if not 0 < size < len(labels):
        with pytest.raises(ValueError, match=f"is {size}: expected 1 to {len(labels) - 1}"):
            partition.holdout(labels, seed, fraction=fraction, stratified=stratified)
        return
    held, rest = partition.holdout(labels, seed, fraction=fraction, stratified=stratified)
    assert (held, rest) == partition.holdout(labels, seed, fraction=fraction, stratified=stratified)
    assert (len(held), sorted(held), sorted(rest)) == (size, held, rest)
    assert sorted(held + rest) == list(range(len(labels)))
    if stratified:
        for label in set(labels):
            mine = sum(labels[k] == label for k in held)
            assert abs(mine - size * labels.count(label) / len(labels)) < 1


def test_a_random_holdout_is_not_stratified():
    labels = np.arange(400) % 4
    counts = [np.bincount(labels[partition.holdout(labels, s, stratified=False)[0]], minlength=4) for s in range(20)]
    assert any(count.tolist() != [10, 10, 10, 10] for count in counts)
    assert partition.holdout(labels, 0)[0] != partition.holdout(labels, 1)[0]
    assert np.bincount(labels[partition.holdout(torch.from_numpy(labels), 0)[0]]).tolist() == [10, 10, 10, 10]


@in_one(
    ("given", "message"),
    [
        ({"fraction": 0.0}, r"fraction must be in \(0, 1\); found 0"),
        ({"fraction": float("nan")}, "found nan"),
        ({"labels": [0, 1, 1]}, r"0\.1 of 3 samples, rounded, is 0: expected 1 to 2"),
        ({"labels": []}, "holdout: each client needs"),
        ({"labels": [[0]]}, r"found \[1, 1\]"),
        ({"seed": -1}, "holdout: seed must be a whole number >= 0; found -1"),
    ],
)
def test_errors_of_holdout(given, message):
    with pytest.raises(ValueError, match=message):
        partition.holdout(**({"labels": LABELS, "seed": 0} | given))


# the scenarios


@each
def test_everybody_is_tested_alike_and_the_server_holds_a_tenth(name):
    scenario = load(name, seed=1, **SMALL)
    assert scenario.collaborative
    assert scenario.client_groups is None
    assert [len(y) for _, y in scenario.tests.values()] == [60]
    assert scenario.client_names == ("client-1", "client-2", "client-3", "client-4")
    assert (scenario.transform.crop, scenario.network, scenario.network_options) == (0, "mlp", {"hidden": [200, 200]})
    protocol = scenario.protocol
    assert (protocol.steps, protocol.batch_size, protocol.momentum, protocol.weight_decay) == (15, 32, 0, 0)
    held = scenario.server_validation[1]
    assert len(held) == round(0.1 * sum(scenario.manifest["train"]))
    assert held.bincount(minlength=10).min() > 0


@each
def test_the_manifest_says_where_all_came_from(name):
    first, again, other = (load(name, seed=seed, **SMALL) for seed in (2, 2, 3))
    told = first.manifest
    assert told == again.manifest
    assert json.loads(json.dumps(told)) == told
    assert told["clients"] != other.manifest["clients"]
    assert (told["scenario"], told["seed"], told["collaboration"]["samples"]) == (name, 2, 90)
    data = digits.recall(2, told["train"], told["test"])
    assert told["sha256"] == digits.digest(data)
    images, labels = digits.joined(data, "train")
    held = told["validation"]
    for part, (x, y) in zip((*told["clients"].values(), held), (*first.clients, first.server_validation), strict=True):
        assert torch.equal(images[part], x)
        assert torch.equal(labels[part], y)
        assert part is held or not set(held) & set(part)


@pytest.mark.parametrize("name", fast_first(NAMES, ("digits-dir",)))
def test_domains_are_mixed_among_the_clients(name):
    """The images come sorted by domain: a partition of the sorted ones would give a client one or two of them."""
    scenario = load(name, seed=0)
    domain = np.repeat(np.arange(4), scenario.manifest["train"])
    mix = np.array([1, 1, 4, 6]) / 12
    for part in (*scenario.manifest["clients"].values(), scenario.manifest["validation"]):
        shares = np.bincount(domain[part], minlength=4) / len(part)
        assert (np.abs(shares - mix) < 4 * np.sqrt(mix * (1 - mix) / len(part)) + 1 / len(part)).all()
    assert [len(y) for _, y in scenario.tests.values()] == [sum(TEST)]
    np.testing.assert_allclose(np.array(TEST) / sum(TEST), mix)


def test_sizes_of_pow():
    scenario = load("digits-pow", seed=1)
    assert [len(y) for _, y in scenario.clients] == partition.power_sizes(3000, 10)
    exact = load("digits-pow", seed=1, recipe="exact")
    assert [len(y) for _, y in exact.clients] == partition.power_sizes(3000, 10, recipe="exact")
    taken = indices(exact.manifest["clients"].values())
    assert len(set(taken)) == len(taken) == 3000
    assert exact.manifest["sha256"] == scenario.manifest["sha256"]
    assert exact.manifest["collaboration"] == {
        "version": 1,
        "samples": 300,
        "holdout": "stratified",
        "recipe": "exact",
    }


def test_classes_of_cla():
    for recipe in ("exact", "released"):
        scenario = load("digits-cla", seed=1, recipe=recipe)
        counts = [y.bincount(minlength=10).tolist() for _, y in scenario.clients]
        assert counts == partition.class_ramp_counts(10, 10, 300)
        repeats = [len(part) - len(set(part)) for part in scenario.manifest["clients"].values()]
        assert any(repeats) == (recipe == "released")


@pytest.mark.parametrize("recipe", ["plain", "capped", "mixtures"])
def test_shares_of_dir(recipe):
    scenario = load("digits-dir", seed=1, recipe=recipe, alpha=2.0)
    assert sum(len(y) for _, y in scenario.clients) == 3000
    assert min(len(y) for _, y in scenario.clients) >= 10
    taken = indices(scenario.manifest["clients"].values())
    assert len(set(taken)) == len(taken)
    assert scenario.manifest["collaboration"]["alpha"] == 2.0


def test_the_recipes_of_dir_differ():
    drawn = [load("digits-dir", recipe=recipe).manifest["clients"] for recipe in ("plain", "capped", "mixtures")]
    assert drawn[0] != drawn[1] != drawn[2]


def test_labels_of_dir_grow_even_with_alpha():
    def classes(alpha):
        shares = [y.bincount(minlength=10) / len(y) for _, y in load("digits-dir", alpha=alpha).clients]
        return torch.stack(shares).square().sum(1).reciprocal().mean()

    assert classes(0.1) < 4 < classes(1.0) < 7.5 < classes(10.0)


@each
def test_the_holdout_may_be_random(name):
    even, random = (load(name, seed=1, holdout=holdout) for holdout in ("stratified", "random"))
    labels = [s.server_validation[1].bincount(minlength=10) / len(s.server_validation[1]) for s in (even, random)]
    train = digits.joined(digits.recall(1, even.manifest["train"], even.manifest["test"]), "train")[1]
    shares = train.bincount(minlength=10) / len(train)
    off = [(share - shares).abs().max() * len(even.server_validation[1]) for share in labels]
    assert off[0] < 1 < off[1]


@pytest.mark.parametrize(("name", "clients"), [("digits-pow", 20), ("digits-cla", 20), ("digits-dir", 20)])
def test_twenty_clients(name, clients):
    scenario = load(name, seed=0, clients=clients, samples=90)
    assert len(scenario.clients) == clients
    assert sum(len(y) for _, y in scenario.clients) == 90 * clients


@pytest.mark.slow
@pytest.mark.parametrize("clients", [40, 60])
def test_many_clients_of_dir(clients):
    scenario = load("digits-dir", seed=0, clients=clients, samples=100)
    assert sum(len(y) for _, y in scenario.clients) == 100 * clients
    assert min(len(y) for _, y in scenario.clients) >= 10


@each
def test_one_client(name):
    ((x, y),) = load(name, **SMALL | {"clients": 1}).clients
    assert len(x) == 90
    assert len(y.unique()) == (1 if name == "digits-cla" else 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits-pow", {"recipe": "plain"}, "Unknown recipe of digits-pow: 'plain'.* All: released, exact"),
        ("digits-cla", {"recipe": "exakt"}, "Unknown recipe of digits-cla: 'exakt'. Did you mean 'exact'"),
        ("digits-dir", {"recipe": "exact"}, "Unknown recipe of digits-dir: 'exact'.* All: plain, capped, mixtures"),
        ("digits-pow", {"holdout": "strat"}, "Unknown holdout of digits-pow: 'strat'"),
        ("digits-pow", {"clients": 0}, "digits-pow: clients and samples must be >= 1; found clients=0"),
        ("digits-dir", {"samples": 0}, "found clients=10 and samples=0"),
        (
            "digits-pow",
            {"samples": 50},
            r"^digits-pow: .* one would have 6: expected 10 or more. Give more samples per client\.$",
        ),
        (
            "digits-cla",
            {"samples": 9},
            r"^digits-cla: a client needs a sample of each of the 10 classes: expected 10 or more, found 9\.$",
        ),
        ("digits-dir", {"alpha": 0.0}, "alpha must be >="),
        pytest.param(
            "digits-dir",
            {"alpha": 0.01, "clients": 20},
            r"so that each has 10 or more.*Take fewer clients, or a higher alpha",
            marks=pytest.mark.slow,
        ),
        (
            "digits-dir",
            {"test": (900, 897, 10, 10)},
            "a test of 1797 handwriting samples leaves none of 1797 to train on",
        ),
        ("digits-pow", {"seed": -1}, "seed must be .*>= 0; found -1"),
        ("digits-pow", {"test": (10, 10, 10)}, "test must be 4 positive numbers"),
    ],
)
def test_options_out_of_range_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        load(name, **options)


def test_an_unknown_option_is_named():
    with pytest.raises(ValueError, match="Unknown option of scenario 'digits-pow': 'alpha'"):
        load("digits-pow", alpha=1.0)


def test_validation_data_are_checked_like_the_others():
    scenario = load("digits-pow", **SMALL)
    x, y = scenario.server_validation
    for wrong, message in [
        ((x.int(), y), "'server_validation' must have uint8 images"),
        ((x, y[:-1]), "'server_validation' must have uint8 images"),
        ((x[:0], y[:0]), "'server_validation' must have at least one label"),
        ((x, y + 1), r"'server_validation' must have at least one label, all in 0\.\.9"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(scenario, server_validation=wrong)
    assert replace(scenario, server_validation=None).server_validation is None
    assert load("digits", train=(20, 20, 24, 20), test=(20, 20, 20, 20), clients=8).server_validation is None
    assert not load("digits", train=(20, 20, 24, 20), test=(20, 20, 20, 20), clients=8).collaborative


def test_steps_of_a_protocol():
    assert Protocol(1, 1, 8, 0.1, 0.0, 0.0).steps is None
    with pytest.raises(ValueError, match="steps must be >= 1, or None for epochs; found 0"):
        Protocol(1, 1, 8, 0.1, 0.0, 0.0, steps=0)


@pytest.mark.slow
def test_print_stands_in_where_handwriting_ends():
    train = load("digits-dir", seed=0, clients=60, samples=90, test=(700, 700, 20, 30)).manifest["train"]
    assert train[:2] == [198, 198]  # half of what the test leaves of 1,797
    assert sum(train) == 6000
    assert abs(train[2] * 6 - train[3] * 4) < 10
