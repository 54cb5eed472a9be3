"""What the tests of the methods that reward with gradients share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.core.rule import Cohort, Rule, Setup, State

Vector = list[float]


def top(u: Vector, q: float, layout: tuple[int, ...], form: str) -> Vector:
    """The entries of u that are kept, tensor by tensor, one after the other; the others 0."""
    out, start = [], 0
    for n in (len(u),) if form == "paper_global" else layout:
        part = u[start : start + n]
        first = sorted(range(n), key=lambda j: (-abs(part[j]), j))
        kept = first[: math.floor(q * n) if form == "paper_global" else math.ceil(q * n)]
        if form == "released_layer" and kept:
            least = abs(part[first[min(len(kept), max(n - 1, 1)) - 1]])
            kept = [j for j in range(n) if abs(part[j]) >= least]
        out += [x if j in kept else 0.0 for j, x in enumerate(part)]
        start += n
    return out


def one_round(rule: Rule, updates: Tensor, state: State | None = None, **told: Any) -> tuple[State, Cohort, Tensor]:
    """State, cohort and what the clients get (all start at 0) after one round of clients of one size."""
    M, P = updates.shape
    sizes, zero = torch.ones(M, dtype=torch.float64), updates.new_zeros(M, P)
    cohort = Cohort(
        t=0,
        rounds=9,
        n_clients=M,
        theta=zero[0],
        updates=updates,
        ids=torch.arange(M),
        sizes=sizes,
        weights=sizes / M,
        layout=(P,),
        buffer_updates=zero[:, :0],
        received=zero,
        kept=zero,
    )
    before = rule.server_state(Setup(zero[0], (P,), sizes)) if state is None else state
    after, cohort = rule.aggregate(before, replace(cohort, **told))
    step = cohort.step()
    after, given = rule.reward(after, replace(cohort, theta=step), step.expand(M, -1))
    return after, cohort, given
