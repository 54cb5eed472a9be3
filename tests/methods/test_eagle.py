"""EAGLE: the least loss that a client has reached."""

from __future__ import annotations

from itertools import pairwise

import torch

from equipoise.methods.eagle import EAGLE
from helpers import federation


def test_the_gap_is_to_the_least_loss_so_far() -> None:
    fed = federation(EAGLE(alone=2), participation=1.0)
    best = []
    fed.fit(3, progress=False, on_round=lambda _: best.append(fed.progress.tensors()["clients/0/best"].clone()))
    assert best[0].isfinite().all()
    assert all((later <= earlier).all() for earlier, later in pairwise(best))


def test_training_alone_lowers_what_a_client_is_compared_with() -> None:
    """Only in round 0."""
    best = {}
    for alone in (0, 3):
        fed = federation(EAGLE(alone=alone), participation=1.0)
        fed.fit(1, progress=False)
        best[alone] = fed.progress.tensors()["clients/0/best"]
    assert (best[3] <= best[0]).all()
    assert (best[3] < best[0]).any()
    assert not torch.equal(best[3], best[0])
