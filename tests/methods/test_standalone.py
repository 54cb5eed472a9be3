"""Standalone: training alone, step by step, and what does not move."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import equipoise as eq
from equipoise.methods.standalone import Standalone
from helpers import UNEQUAL, clients, federation, fitted, network, samples


def test_every_client_trains_alone_on_its_own_data() -> None:
    """Whole data sets as batches: torch's own loop, from the common start, for all epochs of all rounds."""
    fed = fitted("standalone", 3, batch_size=64, participation=1.0, solver=eq.SGD(0.1))
    for m, (x, y) in enumerate(clients()):
        net = network()
        for _ in range(3 * 2):
            net.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
        expected = nn.utils.parameters_to_vector(net.parameters()).detach()
        assert torch.allclose(fed.progress.own[m], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_nothing_is_sent_and_the_global_model_stays(kind: str) -> None:
    fed = fitted("standalone", 2, kind=kind, participation=1.0)
    assert torch.equal(fed.progress.vector, fed.model.initial)
    assert fed.records[-1]["bytes"]["up"] == fed.records[-1]["bytes"]["down"] == [0] * len(UNEQUAL)
    assert bool(Standalone().private(fed.model).all())


def test_a_client_alone_is_a_federation_of_one() -> None:
    """The same batches, whoever else there is: what makes it comparable with a run of the same length."""
    sizes = UNEQUAL[:1]
    alone = fitted("standalone", 3, participation=1.0)
    avg = fitted("fedavg", 3, sizes=sizes, participation=1.0)
    assert torch.allclose(alone.progress.own[0], avg.progress.vector, rtol=0, atol=1e-12)


def test_every_client_is_scored_with_its_own_model() -> None:
    x, y = samples(40, 1)
    fed = fitted("standalone", 2, participation=1.0, tests={"a": (x, y)})
    found = [float((fed.model.network(own)(x).argmax(1) == y).double().mean()) for own in fed.progress.own]
    assert fed.records[-1]["clients"]["accuracy"] == pytest.approx(found)
    assert len(set(found)) > 1


def test_it_is_what_the_library_takes_for_the_contribution() -> None:
    """The accuracies found out before a run that needs them are those of a standalone run of the same length."""
    tests, validation = {"a": samples(40, 1)}, samples(50, 2)
    settings = {"participation": 1.0, "tests": tests, "server_validation": validation}
    fed = federation("cffl:contribution", **settings)
    fed.fit(3, progress=False)
    alone = fitted("standalone", 3, **settings)
    x, y = validation
    found = [float((alone.logits(x, client=m).argmax(1) == y).double().mean()) for m in range(len(UNEQUAL))]
    assert fed.alone["standalone_val"] == pytest.approx(found)
    assert fed.alone["standalone_test"] == pytest.approx(alone.records[-1]["clients"]["accuracy"])
