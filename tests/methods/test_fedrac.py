"""FedRAC: which submodel a reputation gets, and one allocation worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch

from equipoise.core.rule import Briefing
from equipoise.federation.method import parse
from equipoise.methods.fedrac import FedRAC, prefixes
from helpers import fitted, tensor

A = tensor([0.1, 0.3, 0.5, 0.4, 0.8])
R, C = tensor([0.35, 0.2, 0.9]), tensor([0.3, 0.2, 0.6])


def test_the_largest_submodel_that_a_reputation_pays() -> None:
    assert prefixes(A, R, C).tolist() == [2, 1, 5]


def test_as_the_code_has_it() -> None:
    """Typed out: from the largest submodel down to one above that of the client before, and one pack less than is compared."""
    packs, last = [0, 0, 5], 0
    for i in (1, 0):
        s = last + 1
        for k in range(4, last, -1):
            s = k
            if A[k] <= R[i]:
                break
        packs[i], last = s, s
    assert prefixes(A, R, C, "released").tolist() == packs == [2, 1, 5]


def test_nobody_gets_less_than_a_smaller_contributor() -> None:
    """The accuracy of submodels need not rise with their size."""
    assert prefixes(tensor([0.5, 0.2, 0.9]), tensor([0.3, 0.1, 1.0]), tensor([0.2, 0.1, 0.3])).tolist() == [2, 1, 3]
    assert prefixes(A, tensor([0.9, 0.9]), tensor([0.4, 0.4])).tolist() == [5, 5]


def test_an_allocation_by_hand() -> None:
    """Four units in two layers, of which a submodel is as accurate as it is large; the units held least come first."""
    neurons: Any = SimpleNamespace(n=4, sizes=(2, 2), held=lambda units: units)
    oracle: Any = SimpleNamespace(accuracy=lambda vector: vector.count_nonzero() / 5)
    state = {
        "r": torch.ones(2).double(),
        "units": torch.ones(2, 4, dtype=torch.bool),
        "f": torch.tensor([3.0, 1, 2, 0]),
    }
    vector, c = torch.ones(4).double(), tensor([0.1, 0.5])
    briefing = Briefing(1, 9, 4, vector, vector.expand(2, -1), torch.arange(2), torch.ones(2), 0, oracle, c, neurons)
    after = FedRAC(beta=2.0, packs=4, min_per_layer=0).prepare(state, briefing)
    dynamic = 0.8 * (1 - 0.2 * (1 - 1 / math.log(0.3 * 2 + 3)))
    r = [0.1 + dynamic * math.exp(2 * 0.1 - 2 * 0.5), 0.5 + dynamic]
    assert torch.allclose(after["r"], tensor(r))
    assert 0.4 < r[0] < 0.6  # two units reach 0.4, three 0.6
    assert after["units"].tolist() == [[False, True, False, True], [True] * 4]
    assert after["f"].tolist() == [4, 3, 3, 2]


def test_all_units_are_held_about_as_often() -> None:
    held = fitted("fedrac(packs=5)", 6, participation=1.0).progress.server[0]["f"]
    assert held.min() > 0
    assert held.max() - held.min() <= 5  # clients


def test_the_released_form_measures_contributions_on_test_data() -> None:
    assert "contribution_on_test" in parse("fedrac:released").needs
    assert "contribution_on_test" not in parse("fedrac").needs
