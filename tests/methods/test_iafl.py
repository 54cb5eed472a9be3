"""IAFL: how many updates each client gets, and its model after a round."""

from __future__ import annotations

import torch

from equipoise.methods.iafl import IAFL, sharing
from helpers import Server, in_one, normal, tensor


@in_one(
    ("kappa", "others"),
    [(0.0, [1, 1, 2, 3]), (0.5, [1, 2, 3, 3]), (1.0, [3, 3, 3, 3])],
)
def test_how_many_updates_a_contribution_earns(kappa: float, others: list[int]) -> None:
    """gamma^(1 - kappa) * 3, rounded up, its own besides; those of the least lots."""
    lots = normal(4, 4)
    W = sharing(tensor([0.1, 1 / 3, 0.5, 1.0]), kappa, lots)
    assert ((W > 0).sum(1) - 1).tolist() == others
    assert torch.allclose(W.sum(1), torch.ones(4).double())
    assert (W.diagonal() > 0).all()
    for i in range(4):
        chosen = [j for j in range(4) if j != i and W[i, j] > 0]
        left = [j for j in range(4) if j != i and W[i, j] == 0]
        assert all(lots[i, j] < lots[i, k] for j in chosen for k in left)


def test_a_client_moves_its_own_model() -> None:
    """Of two clients, the larger gets the mean of both updates, the smaller of ceil(0.1) = 1 other: the same."""
    server = Server(IAFL(), normal(3), [10, 100, 50])
    cohort = server.cohort(normal(3, 3, seed=1))
    kept = normal(3, 3, seed=2)
    given = server.theta.expand(3, -1)
    state = server.state[0]
    _, after = server.rules[0].reward(state, cohort.__class__(**{**vars(cohort), "kept": kept}), given)
    mean = cohort.updates.mean(0)
    assert torch.allclose(after[1], kept[1] + mean)
    pairs = [(cohort.updates[0] + cohort.updates[j]) / 2 for j in (1, 2)]
    assert any(torch.allclose(after[0], kept[0] + pair) for pair in pairs)


def test_the_chance_of_the_global_model() -> None:
    updates = normal(3, 3, seed=1)
    given = normal(3).expand(3, -1)
    for q, same in ((1.0, True), (0.0, False)):
        server = Server(IAFL(q=q), normal(3), [10, 100, 50])
        _, after = server.rules[0].reward(server.state[0], server.cohort(updates), given)
        assert torch.equal(after, given) == same
