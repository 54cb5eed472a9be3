"""Partitions by class: complete, disjoint, the same for the same seed, and honest where no partition exists."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from equipoise import scenarios
from equipoise.scenarios import partition
from helpers import in_one

LABELS = np.random.default_rng(0).integers(0, 4, 120)


def capped(labels, clients, alpha, seed, **options):
    return partition.dirichlet(labels, clients, alpha, seed, cap=True, **options)


def quality(labels, clients, alpha, seed, **options):
    return partition.quality(labels, clients, clients // 4, alpha, seed, **options)


ALL = {"dirichlet": partition.dirichlet, "capped": capped, "retina": partition.retina, "quality": quality}
each = pytest.mark.parametrize("name", ALL)


def indices(parts):
    return sorted(index for part in parts for index in part)


def test_quality_without_clients_is_about_clients() -> None:
    with pytest.raises(ValueError, match=r"quality: each client needs .* found 0"):
        partition.quality(np.arange(100) % 10, 0, 1, 1.0, 0)


@each
@given(
    labels=st.lists(st.integers(-3, 5), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    alpha=st.floats(0.01, 1000),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_goes_to_one_client(name, labels, clients, alpha, seed):
    clients = min(clients, len(labels))
    parts = ALL[name](labels, clients, alpha, seed, min_size=0)
    assert len(parts) == clients
    assert indices(parts) == list(range(len(labels)))
    assert parts == ALL[name](labels, clients, alpha, seed, min_size=0)


@each
@given(seed=st.integers(0, 1000), least=st.integers(1, 12))
def test_no_client_has_fewer_than_the_minimum(name, seed, least):
    assert min(map(len, ALL[name](LABELS, 5, 2.0, seed, min_size=least))) >= least


@each
def test_labels_may_be_a_list_an_array_or_a_tensor(name):
    parts = ALL[name](LABELS, 4, 1.0, 3)
    assert parts == ALL[name](LABELS.tolist(), 4, 1.0, 3) == ALL[name](torch.from_numpy(LABELS), 4, 1.0, 3)
    assert all(type(index) is int for part in parts for index in part)


@each
def test_another_seed_gives_another_partition(name):
    assert ALL[name](LABELS, 4, 1.0, 3) != ALL[name](LABELS, 4, 1.0, 4)


@each
def test_one_client_gets_everything(name):
    assert indices(ALL[name](LABELS, 1, 0.5, 0)) == list(range(120))


@each
def test_a_low_alpha_makes_labels_differ_and_a_high_one_does_not(name):
    def spread(alpha):
        tables = []
        for seed in range(5):
            parts = ALL[name](np.arange(2000) % 4, 4, alpha, seed, min_size=1)
            shares = np.stack([np.bincount(np.array(part) % 4, minlength=4) / len(part) for part in parts])
            tables.append(shares.std(0).mean())
        return np.mean(tables)

    assert spread(0.1) > 0.2 > 0.1 > spread(100)


def test_the_cap_evens_the_sizes_out():
    def ratio(parts):
        return max(map(len, parts)) / min(map(len, parts))

    labels = np.arange(2000) % 10
    plain, with_cap = (
        np.mean([ratio(partition.dirichlet(labels, 5, 0.5, seed, cap=cap)) for seed in range(20)])
        for cap in (False, True)
    )
    assert with_cap < plain / 1.5


def test_a_capped_client_gets_no_further_class():
    """The shares of a class are nought for whoever had n / clients samples before it, unless all had."""
    classes = [np.flatnonzero(np.arange(300) % 6 == label) for label in range(6)]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        *owned, shares = partition.classwise(classes, 3, 0.3, rng, cap=True)
        parts = partition.parts_of(*owned, 3)
        held = np.zeros(3)
        for members, row in zip(classes, shares, strict=True):
            full = held >= 100
            assert row.sum() == pytest.approx(1)
            assert (row[full] == 0).all() or full.all()
            held += [np.isin(members, part).sum() for part in parts]


def test_one_class_that_fills_everybody_keeps_the_shares():
    """After a class that gave each of two clients exactly half of all samples, the cap has nobody to give to."""

    class Fixed:
        def shuffle(self, x):
            pass

        def dirichlet(self, alpha):
            return np.array([0.5, 0.5]) if not hasattr(self, "again") else np.array([0.25, 0.75])

    classes = [np.arange(4), np.arange(0)]
    *owned, shares = partition.classwise(classes, 2, 1.0, Fixed(), cap=True)
    assert partition.parts_of(*owned, 2) == [[0, 1], [2, 3]]
    assert shares.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@given(
    labels=st.lists(st.integers(0, 3), min_size=20, max_size=80),
    clients=st.integers(1, 20),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_quality_splits_each_class_by_the_number_of_clients(labels, clients, share, seed):
    corrupted = round(share * clients)
    clean = clients - corrupted
    parts = partition.quality(labels, clients, corrupted, 1.0, seed, min_size=0)
    labels = np.array(labels)
    mine = set(indices(parts[:clean]))
    for label in set(labels.tolist()):
        members = np.flatnonzero(labels == label).tolist()
        assert [index in mine for index in members] == sorted([index in mine for index in members], reverse=True)
        assert sum(index in mine for index in members) == int(np.round(clean / clients * len(members)))
    assert all(part == sorted(part) for part in parts)


@pytest.mark.parametrize("corrupted", [0, 6])
def test_quality_where_all_are_alike(corrupted):
    parts = partition.quality(LABELS, 6, corrupted, 1.0, 0)
    assert indices(parts) == list(range(120))
    assert min(map(len, parts)) > 0


def test_quality_sample_by_sample():
    """Against the released recipe as a loop: Dirichlet, Dirichlet, choice, choice for every class."""
    rng = np.random.RandomState(5)
    expected = [[] for _ in range(7)]
    for label in range(4):
        members = np.flatnonzero(label == LABELS)
        n = int(np.round(5 / 7 * len(members)))
        p, q = rng.dirichlet([0.7] * 5), rng.dirichlet([0.7] * 2)
        for index, k in zip(members[:n], rng.choice(5, n, p=p), strict=True):
            expected[k].append(int(index))
        for index, k in zip(members[n:], rng.choice(2, len(members) - n, p=q), strict=True):
            expected[5 + k].append(int(index))
    assert partition.quality(LABELS, 7, 2, 0.7, 5, min_size=0) == [sorted(part) for part in expected]


@each
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clients": 121}, "expected 1 to 120 clients for 120 samples, found 121"),
        ({"clients": 0}, "found 0"),
        ({"labels": [[0, 1]]}, r"labels must be one class per sample, \[n\]; found \[1, 2\]"),
        ({"alpha": 0}, r"alpha must be >= 0\.01 and finite; found 0"),
        ({"alpha": float("inf")}, "found inf"),
        ({"alpha": float("nan")}, "found nan"),
        ({"seed": -1}, "seed must be a whole number .*found -1"),
        (
            {"min_size": 31},
            "4 clients that share 120 samples have at most 30 each: expected 31 or more",
        ),
        ({"min_size": -1}, "min_size must be a whole number >= 0; found -1"),
        ({"redraws": 0}, "redraws must be a whole number >= 1; found 0"),
        (
            {"alpha": 0.01, "min_size": 30, "redraws": 50},
            r"120 samples were never divided among 4 clients at alpha=0\.01 so that each has 30 or more: in 50 draws \d of them or "
            r"more had fewer\. Take fewer clients, or a higher alpha\.$",
        ),
    ],
)
def test_errors_name_what_to_change(name, given, message):
    usual = {"labels": LABELS, "clients": 4, "alpha": 1.0, "seed": 0}
    with pytest.raises(ValueError, match=message):
        ALL[name](**(usual | given))


def test_errors_of_one_kind_only():
    for corrupted in (-1, 5):
        with pytest.raises(
            ValueError, match=rf"corrupted must be a whole number in 0\.\.4, the number of clients; found {corrupted}"
        ):
            partition.quality(LABELS, 4, corrupted, 1.0, 0)
    for what in (partition.retina, quality):
        with pytest.raises(ValueError, match=r"seed must be a whole number in 0\.\.4294967295"):
            what(LABELS, 4, 1.0, 2**32)
    assert partition.dirichlet(LABELS, 4, 1.0, 2**32)


def test_shares_that_came_out_as_nought_by_nought_are_drawn_again():
    """One corrupted client and the smallest alpha: about one draw in a thousand, 0 / 0 in numpy's older generator."""
    labels = np.arange(4000) % 2000
    assert indices(partition.quality(labels, 2, 1, 0.01, 0, min_size=0)) == list(range(4000))


def test_redraws_go_on_where_the_last_ended():
    """A partition that needed several draws is not one of the first draw of another seed."""
    classes = [np.flatnonzero(label == LABELS) for label in range(4)]
    rng = np.random.default_rng(1)
    expected = [[]] * 5
    while min(map(len, expected)) < 15:
        expected = partition.parts_of(*partition.classwise(classes, 5, 0.5, rng, cap=False)[:2], 5)
    assert partition.dirichlet(LABELS, 5, 0.5, 1, min_size=15) == expected


# domains, as FedHEAL samples them


@given(
    sizes=st.lists(st.integers(12, 60), min_size=1, max_size=3),
    clients=st.integers(1, 4),
    share=st.floats(0.1, 0.24),
    seed=st.integers(0, 2**32 - 1),
    cover=st.booleans(),
)
def test_every_client_has_its_share_of_one_domain(sizes, clients, share, seed, cover):
    labels = [np.arange(n) % 2 for n in sizes]
    domains = [d for _ in range(clients) for d in range(len(sizes))]
    if cover and int(share * min(sizes)) < 2:
        with pytest.raises(ValueError, match=r"takes 1 of the .* expected 2 to"):
            partition.domain_samples(labels, domains, share, seed, cover=True)
        return
    parts = partition.domain_samples(labels, domains, share, seed, cover=cover)
    assert parts == partition.domain_samples(labels, domains, share, seed, cover=cover)
    for d, n in enumerate(sizes):
        mine = [part for part, domain in zip(parts, domains, strict=True) if domain == d]
        assert all(len(part) == len(set(part)) == int(share * n) for part in mine)
        assert set(indices(mine)) <= set(range(n))
        if cover:
            assert all({labels[d][k] for k in part} == {0, 1} for part in mine)
        else:
            assert len(set(indices(mine))) == len(indices(mine))


def test_clients_of_a_domain_share_all_of_it_and_no_more():
    labels = [np.zeros(8), np.zeros(40)]
    assert indices(partition.domain_samples(labels, [0, 0, 0, 0], 0.25, 5)) == list(range(8))
    with pytest.raises(
        ValueError, match=r"client 5 takes 2 of the 0 samples that are left of domain 0.*with share=0.25. Lower share\."
    ):
        partition.domain_samples(labels, [0] * 5, 0.25, 5)
    assert partition.domain_samples(labels, [1], 0.5, 5) != partition.domain_samples(labels, [1], 0.5, 6)


@in_one("seed", range(20))
def test_a_class_is_completed_by_what_nobody_has(seed):
    """As long as there is any: of the rare class there are three for four clients."""
    labels = [np.array([0] * 37 + [1] * 3)]
    four = partition.domain_samples(labels, [0] * 4, 0.25, seed, cover=True, overlap=False)
    assert [sum(labels[0][k] for k in part) > 0 for part in four] == [True] * 4
    enough = [np.array([0] * 30 + [1] * 10)]
    parts = partition.domain_samples(enough, [0] * 4, 0.1, seed, cover=True, overlap=False)
    assert len(set(indices(parts))) == len(indices(parts)) == 16
    assert all({enough[0][k] for k in part} == {0, 1} for part in parts)


def test_an_error_calls_a_domain_by_its_name():
    with pytest.raises(ValueError, match="left of domain mnist"):
        partition.domain_samples([np.zeros(8)], [0] * 5, 0.25, 5, names=["mnist"])


def test_every_tenth_splits_ten_into_eight_and_two():
    assert partition.every_tenth(23) == ([*range(8), *range(10, 18), 20, 21, 22], [8, 9, 18, 19])


@in_one(
    ("given", "message"),
    [
        ({"share": 0.0}, r"share must be in \(0, 1\].*found 0\.0"),
        ({"share": 1.1}, r"share must be .*found 1\.1"),
        ({"seed": -1}, "seed must be .*found -1"),
        ({"domains": [0, 2]}, r"domains a number in 0\.\.1 per client; found .* domains \[0, 2\]"),
        ({"labels": [[[0, 1]]], "domains": [0]}, r"found labels \[\[1, 2\]\]"),
        (
            {"share": 0.01},
            r"takes 0 of the 20 samples .* expected 1 to 20, with share=0.01. Raise share\.",
        ),
    ],
)
def test_errors_of_domain_samples(given, message):
    usual = {"labels": [np.arange(20) % 3, np.arange(30) % 3], "domains": [0, 1], "share": 0.2, "seed": 0}
    with pytest.raises(ValueError, match=message):
        partition.domain_samples(**(usual | given))


REFUSED = [  # requests that a scenario cannot meet, what it advises, and options that follow the advice
    ("own", {"clients": 1000, "alpha": 0.1}, "Take fewer clients, or a higher alpha", {"clients": 20}),
    ("digits-label-skew", {"clients": 50, "alpha": 0.05}, "or a higher alpha", {"alpha": 1.0}),
    ("digits-quality", {"clients": 60, "corrupted": 10, "alpha": 0.02}, "or a higher alpha", {"alpha": 1.0}),
    ("digits-pow", {"samples": 20}, "Give more samples per client", {"samples": 90}),
    ("digits-cla", {"samples": 5}, "expected 10 or more, found 5", {"samples": 10}),
    ("digits", {"clients": 4000}, "expected 1 to 300 clients per domain", {"clients": 1200}),
]


@pytest.mark.parametrize(("scenario", "options", "advice", "changed"), REFUSED)
def test_advice_names_options_of_the_scenario_and_works(scenario, options, advice, changed, tmp_path):
    if scenario == "own":
        path, rng = tmp_path / "table.npz", np.random.default_rng(0)
        np.savez(path, x=rng.normal(size=(2000, 4)).astype(np.float32), y=rng.integers(0, 10, 2000))
        options = {"data": str(path), **options}
    with pytest.raises(ValueError, match=rf"^{scenario}: .*{advice}\.?"):
        scenarios.load(scenario, **options)
    assert scenarios.load(scenario, **options | changed).clients


def test_what_is_out_of_reach_is_seen_in_a_few_draws(monkeypatch):
    """The case of 1,000 clients with an alpha of 0.1: 20 draws instead of 1,000."""
    draws, cut = [], partition._cut
    monkeypatch.setattr(partition, "_cut", lambda *given: draws.append(1) or cut(*given))
    with pytest.raises(partition.InputError, match=r"in 20 draws .* of them or more had fewer"):
        partition.dirichlet(np.arange(2000) % 10, 1000, 0.1, 0, min_size=1)
    assert len(draws) < 10 * 1000
