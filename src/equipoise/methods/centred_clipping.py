"""Centred clipping: clients may move the step only so far from the one before."""

from dataclasses import dataclass, replace

import torch

from equipoise.core.maths import combine, square_distances_to
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.methods.clipping import factors
from equipoise.system.ranges import number


@dataclass(frozen=True)
class CentredClipping(Rule):
    r"""Start from the step before, and let every client move it by a vector of length tau or less.

    .. math:: v \gets v + \frac1n \sum_i (\Delta_i - v) \min\Big(1, \frac{\tau}{\lVert \Delta_i - v \rVert}\Big), \qquad
        \theta^{t+1} = \theta^t + v

    for each iteration, from the v of the last round, at first 0. Karimireddy, He, Jaggi, ICML 2021 (CClip).

    Parameters
    ----------
    tau : the radius, > 0, or None for the median of the n distances in every iteration. inf does not clip.
    iterations : in a round, >= 1. The authors' code takes one: v is close already.

    Server state: ``v`` [P]; ``buffers`` [G - P], the v of the running statistics of BatchNorm.
    Server sees: distances of updates from the step before.
    Differs: the paper clips momenta of the clients, here updates of local training. Its tau is a number that fits the lengths of
    gradients; the median is ours, so that one default fits every learning rate. Running statistics have a v of their own and
    are clipped by themselves: at the median of their distances, or, with tau, at as many times that as tau is of the updates'.
    Clients count alike, whatever their samples.
    """

    owns = frozenset({"mask", "weights", "direction"})
    tau: float | None = number(None, low=0, above=True, infinite=True)
    iterations: int = number(1, low=1)

    def server_state(self, setup: Setup) -> State:
        return {"v": torch.zeros_like(setup.theta), "buffers": torch.zeros_like(setup.initial[setup.n_params :])}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        parts, centres, n = (cohort.updates, cohort.buffer_updates), (state["v"], state["buffers"]), len(cohort.ids)
        share = list[torch.Tensor]()
        for _ in range(self.iterations):
            apart = [square_distances_to(x, v).sqrt() for x, v in zip(parts, centres, strict=True)]
            share = factors(apart, self.tau)
            near = zip(parts, centres, share, strict=True)
            v, buffers = (combine(x, s / n) + (1 - s.mean()).to(v.dtype) * v for x, v, s in near)
            centres = v, buffers
        v, buffers = centres
        agreed = buffers.expand_as(cohort.buffer_updates)
        cohort = replace(cohort, weights=cohort.uniform, coefficients=share[0] / n, moved=cohort.stepped(v))
        return {"v": v, "buffers": buffers}, replace(cohort, buffer_updates=agreed)


CATALOGUE = CatalogueEntry(
    (CentredClipping,),
    "clip updates around the step before, against clients that lie",
    "Karimireddy, He, Jaggi, ICML 2021",
    printed="Centred clipping",
)
