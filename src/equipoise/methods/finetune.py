"""Fine-tuning: every client trains a little more on its own data before it predicts."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Rule, Visit
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedsac import PAPER
from equipoise.system.ranges import choice, number


@dataclass(frozen=True)
class FineTune(Rule):
    r"""Predict with the model received after one epoch, or some steps, on the client's own data.

    .. math:: \theta_m = \operatorname{SGD}_{S\,\text{steps}}(\theta^{t+1};\, F_m)

    by the run's solver, started afresh, in the run's batches, on cross-entropy. It lets clients that share one model differ, as
    the comparisons of collaborative fairness need: Wang et al., FedSAC, KDD 2024, Section 5.1, after Lyu, Xu, Wang, Yu 2020 and
    Xu et al., NeurIPS 2021.

    Parameters
    ----------
    form : ``"last"`` trains a copy that only predicts, and the global model is what it would be without; ``"every_round"``
        also starts the client's next round from it (not the first one), as the code of FedRAC does.
    steps : S, whole and >= 1; None for one epoch. After the last batch that there is comes the first again.

    Traffic: none. One epoch, or S steps, per client before it predicts; with ``every_round`` as many more in every round but the
    first.
    Differs: cross-entropy only, whatever other rules add to the local loss. With ``every_round`` the update counts from
    the model received, so it holds both trainings: FedAvg of E local steps with S = 3 E is that of 4 E, except for the order
    of the batches. Without ``steps``, where a round is shorter than an epoch, it begins with as many batches of it as the
    round has. ``qffl:full+finetune`` is q-FedAvg with one more epoch, as FedSAC compares with it.
    """

    form: str = choice("last", "every_round")
    steps: int | None = number(None, low=1, whole=True)

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"use", "start"} if self.form == "every_round" else {"use"})

    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        if self.form == "last" or visit.t == 0:
            return start
        return visit.oracle.solve(start, only=visit.held, epochs=None if self.steps else 1, steps=self.steps)

    def deploy(self, received: Tensor, visit: Visit) -> Tensor:
        return visit.oracle.solve(received, only=visit.held, steps=self.steps)


CATALOGUE = {
    "finetune": CatalogueEntry(
        (FineTune,),
        "one more epoch on its own data before a client predicts",
        PAPER,
        {"every-round": {"form": "every_round"}},
        printed="Fine-tuning",
    ),
    "fedavg-finetune": CatalogueEntry(
        (FedAvg, FineTune),
        "FedAvg, and one more epoch on its own data before a client predicts",
        PAPER,
        {"fedrac": {"form": "every_round", "weights": "uniform"}},
        remarks="``fedrac`` is after the code of FedRAC, which trains three more visits of E steps after every aggregation: "
        "``steps`` = 3 E; without it this trains an epoch. CFFL's released FedAvg adds the updates one client after the "
        "other and lets each continue from the sum so far, so that its clients differ by their order; that is not offered. Here "
        "clients differ by the training after the last aggregation only, so a low or negative correlation with their "
        "contributions is to be expected.",
    ),
}
