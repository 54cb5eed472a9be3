"""GIFAIR-FL: pull up the clients, or groups of clients, whose loss is above the others'."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import simplex
from equipoise.core.rule import CatalogueEntry, Cohort, LossRule, Out, Setup, State, Visit, read_per_client
from equipoise.core.solver import Solver, proportional
from equipoise.system.ranges import choice, number, numbers, uniform


def group_losses(loss: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss of each client's group [M], and the number of clients in it [M]."""
    together = (group[:, None] == group).double()
    return together @ loss / together.sum(1), together.sum(1)


def ranks(loss: Tensor, group: Tensor) -> Tensor:
    """How many groups have a smaller loss than each client's, less how many have a larger one: r [M]."""
    level, size = group_losses(loss, group)
    above = torch.where(group[:, None] == group, 0, (level[:, None] - level).sign())
    return (above / size).sum(1)


def pulls(loss: Tensor, p: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """The ratio r / |A| [M], and the largest factor of it that leaves every weight positive."""
    _, size = group_losses(loss, group)
    others = (1 / size).sum() - 1  # groups
    return ranks(loss, group) / size, (p * size).min() / others.clamp(min=1)


@dataclass(frozen=True)
class GIFAIR(LossRule):
    r"""Add the differences of all pairs of losses to the objective, so that clients, or groups of them, become alike.

    .. math:: \sum_k p_k F_k + \lambda \sum_{i < j} |L_i - L_j| = \sum_k \Big(p_k + \lambda \frac{r_k}{|A_{s_k}|}\Big) F_k, \qquad
        r_k = \sum_{j \ne s_k} \operatorname{sign}(L_{s_k} - L_j)

    with the mean loss :math:`L_j` of the clients :math:`A_j` of group j. Yue, Nouiehed, Al Kontar, INFORMS Journal on Data Science 2023, Lemma 1.

    Parameters
    ----------
    coeff : :math:`\lambda` as a share of the largest that keeps all weights positive, :math:`\min_k p_k |A_{s_k}| / (d - 1)` for d groups; in [0, 1), 0 is FedAvg.
    groups : the group of each client, as whole numbers in the order of the clients; None: every client is a group.
    form : ``"server"`` weighs the updates; ``"local"`` multiplies the loss of client k by :math:`1 + \lambda r_k / (p_k |A_{s_k}|)` in the next round.

    Server state: ``group`` [N], if there are groups; if ``local``, also ``loss``, the last of each client, ``multiplier`` and ``p`` [N].
    Reports: ``loss``, mean loss of the model it received on its training data.
    Server sees: the ``loss``.
    Traffic: one number up; ``local``: one down. One more pass over the local data.
    Presets: ``released`` is ``local`` at half the largest factor.
    Differs: the weights at the server are those of another public version; the authors change the learning rates of the clients. ``local`` multiplies
    the loss, which is the same for SGD, except that weight decay is not multiplied. The authors draw clients by samples and average
    equally; here clients are drawn equally and count by samples. Equal losses have equal ranks, as in the paper; the authors' code ranks them by
    number, begins at random (here: without a factor until a client's loss is known), and uses the mean loss during training.
    """

    sees = "scalars+sum"
    coeff: float = number(0.1, low=0, high=1, below=True, search=uniform(0, 0.9))
    groups: tuple[int, ...] | None = numbers(whole=True)
    form: str = choice("server", "local")

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"weights"} if self.form == "server" else ())

    def check(self, solver: Solver) -> None:
        if self.form == "local":
            proportional(solver)

    def server_state(self, setup: Setup) -> State:
        state = {} if self.groups is None else {"group": read_per_client(self.groups, setup, "GIFAIR: groups")}
        if self.form == "server":
            return state
        ones = torch.ones_like(setup.sizes)
        return {**state, "loss": -ones, "multiplier": ones, "p": simplex(setup.sizes)}

    def message(self, state: State, m: int) -> State:
        return {"multiplier": state["multiplier"][m]} if self.form == "local" else {}

    def loss(self, out: Out, visit: Visit) -> Tensor | float:
        return (visit.message["multiplier"] - 1) * out.cross_entropy if self.form == "local" else 0.0

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        loss = cohort.reports["loss"].double()
        group = state.get("group", torch.arange(cohort.n_clients, device=loss.device))
        if self.form == "server":
            p = simplex(cohort.sizes.double())
            pull, most = pulls(loss, p, group[cohort.ids])
            return state, replace(cohort, weights=simplex((p + self.coeff * most * pull).clamp(min=0)))
        last = state["loss"].index_copy(0, cohort.ids, loss.to(state["loss"].dtype))
        members = (last >= 0).nonzero().flatten()
        p = state["p"][members].double()
        pull, most = pulls(last[members].double(), p, group[members])
        multiplier = state["multiplier"].index_copy(0, members, (1 + self.coeff * most * pull / p).to(last.dtype))
        return {**state, "loss": last, "multiplier": multiplier}, cohort


CATALOGUE = CatalogueEntry(
    (GIFAIR,),
    "weights by the ranks of the clients' losses",
    "Yue et al., INFORMS Journal on Data Science 2023",
    {"released": {"form": "local", "coeff": 0.5}},
    printed="GIFAIR-FL",
)
