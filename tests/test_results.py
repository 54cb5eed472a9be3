"""What the library exists for: fairer results on real digits, and no harm where nothing is unfair (minutes each)."""

import statistics

import pytest

import equipoise as eq
from equipoise.federation.history import History
from equipoise.networks import build

pytestmark = pytest.mark.slow


def train(method: str, scenario: str, seed: int, rounds: int, **options: int) -> History:
    """With the network of the scenario, at a width of 8: a quarter of the work, and the same answers."""
    data = eq.scenario(scenario, seed=seed, **options)
    p = data.protocol
    federation = eq.Federation(
        build(data.network, seed=seed, **data.network_options | {"width": 8}),
        data.clients,
        method,
        eq.SGD(p.lr, p.momentum, p.weight_decay),
        tests=data.tests,
        epochs=p.epochs,
        batch_size=p.batch_size,
        seed=seed,
        transform=data.transform,
    )
    return federation.fit(rounds, progress=False)


def test_fedheal_is_fairer_than_fedavg_on_differing_domains():
    plain, fair = ([train(m, "digits", seed, 20).summary() for seed in range(2)] for m in ("fedavg", "fedheal"))
    for one, other in zip(plain, fair, strict=True):
        assert other["std"] < one["std"]
        assert other["worst"] > one["worst"]


def test_plain_averaging_serves_bad_images_worse():
    """The question of the scenario: without a gap there would be nothing to close."""
    for seed in range(2):
        groups = train("fedavg", "digits-quality", seed, 20).summary()["groups"]
        assert groups["clean"] - groups["corrupted"] > 5


def test_fedavg_reaches_the_centralised_accuracy_where_clients_are_alike():
    federated = [train("fedavg", "digits-iid", seed, 15, clients=5).summary()["avg"] for seed in range(2)]
    central = [train("fedavg", "digits-iid", seed, 15, clients=1).summary()["avg"] for seed in range(2)]
    assert abs(statistics.mean(federated) - statistics.mean(central)) < 2  # seeds differ by about a point
