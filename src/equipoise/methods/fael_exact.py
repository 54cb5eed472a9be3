"""The exact solution of FedHEAL's objective, which FAEL approximates."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.core.maths import gram, simplex
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.methods.fphl import PAPER
from equipoise.system.ranges import number, uniform

RIDGE = 1e-10  # picks the solution nearest to the sample weights where there are many


def equidistant(K: Tensor, p0: Tensor) -> Tensor:
    r"""Weights on the simplex that make the clients' models as equally far from their mean as can be.

    .. math:: \min_{p \in \Delta} \operatorname{Var}_m \lVert U - w_m \rVert^2, \quad U = \sum_j p_j w_j

    With the centred Gram matrix ``K`` [M, M] and its diagonal k, the distances are :math:`k - 2 K p` up to a constant, so
    this is a convex least-squares problem in p: :math:`\lVert C (k - 2 K p) \rVert^2` with :math:`C = I - 11^T/M`. Its support is
    found by non-negative least squares, its values by the optimality conditions on the support. ``p0`` [M] breaks ties.
    """
    from scipy.optimize import nnls  # half a second, which every other start would pay

    M = len(K)
    trace = float(K.trace())
    if M == 1 or trace <= 0:
        return p0
    gramian = (K / trace).double().cpu().numpy()
    start = p0.double().cpu().numpy()
    centre = np.eye(M) - 1 / M
    ridge = np.sqrt(RIDGE * M) * np.eye(M)
    A = np.concatenate([2 * centre @ gramian, ridge])
    b = np.concatenate([centre @ gramian.diagonal(), ridge @ start])
    heavy = 1e4 * np.ones(M)  # sum(p) = 1, nearly
    support = nnls(np.vstack([A, heavy]), np.append(b, 1e4), maxiter=100 * M)[0] > 1e-9
    S = A[:, support]
    n = int(support.sum())
    conditions = np.block([[S.T @ S, np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    solution = np.linalg.lstsq(conditions, np.append(S.T @ b, 1.0), rcond=None)[0][:n]
    p = np.zeros(M)
    p[support] = solution.clip(min=0)
    return simplex(torch.from_numpy(p).to(p0))


@dataclass(frozen=True)
class FAELExact(Rule):
    r"""Solve FedHEAL's Eq. 10 exactly: equal distances from the global model to every client's.

    .. math:: \min_{p \in \Delta} \operatorname{Var}_m \lVert \sum_j p_j w_j - w_m \rVert^2

    Chen, Huang, Ye, CVPR 2024, Eq. 10; with FPHL, on the masked updates. See :func:`equidistant`.

    Parameters
    ----------
    beta : in (0, 1]; share of this round's solution in the weights. 1 uses it alone.

    Server state: ``p`` [N].
    Server sees: inner products of updates.
    Traffic: none. Inner products of all updates, then a problem in M numbers.
    Differs: the paper proposes Eq. 10 and then approximates it; this solves it, as a convex least-squares problem in p.
    It is aggressive: with many clients, some get weight 0. Without a unique solution it takes the one nearest to the
    sample weights. Every record has ``distances`` [M] and ``distance_variance`` as with ``fael``, of updates of any size.
    """

    owns = frozenset({"weights"})
    beta: float = number(1.0, low=0, high=1, above=True, search=uniform(0.1, 1))

    def server_state(self, setup: Setup) -> State:
        return {"p": simplex(setup.sizes)}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i, M = cohort.ids, len(cohort.ids)
        before = state["p"][i]
        centre = torch.eye(M, dtype=torch.float64, device=before.device) - 1 / M
        K = gram(cohort.updates, cohort.mask)
        apart = centre @ K @ centre
        if apart.trace() <= 1e-12 * K.trace():  # all updates are equal, except for rounding
            apart = torch.zeros_like(K)
        best = equidistant(apart, simplex(cohort.sizes))
        p = (1 - self.beta) * simplex(before) + self.beta * best
        both = torch.stack([simplex(cohort.sizes), p]).double()
        variance = (K.diagonal() - 2 * both @ K).var(1, correction=0)  # of squared distances, up to a constant
        notes = {**cohort.notes, "distances": K.diagonal().tolist(), "distance_variance": variance.tolist()}
        return {"p": state["p"].index_copy(0, i, before.sum() * p)}, replace(cohort, weights=p, notes=notes)


CATALOGUE = CatalogueEntry(
    (FAELExact,), "weights that make the clients equally far from the global model", PAPER, printed="FAEL (exact)"
)
