"""Fine-tuning: every client trains one more pass over its data before it predicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from equipoise.core.catalogue import CatalogueEntry
from equipoise.core.rule import Rule, Visit
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedsac import PAPER
from equipoise.system.ranges import choice


@dataclass(frozen=True)
class FineTune(Rule):
    r"""Predict with the model received after one epoch on the client's own data.

    .. math:: \theta_m = \operatorname{SGD}_{1\,\text{epoch}}(\theta^{t+1};\, F_m)

    by the run's solver, started afresh, in the run's batches, on cross-entropy. It lets clients that share one model differ, as
    the comparisons of collaborative fairness need: Wang et al., FedSAC, KDD 2024, Section 5.1, after Lyu, Xu, Wang, Yu 2020 and
    Xu et al., NeurIPS 2021.

    Parameters
    ----------
    form : ``"last"`` trains a copy that only predicts, and the global model is what it would be without; ``"every_round"``
        also starts the client's next round from it (not the first one), as the code of FedRAC does.

    Traffic: none. One epoch per client before it predicts; with ``every_round`` one more every round but the first.
    Differs: cross-entropy only, whatever other rules add to the local loss. With ``every_round`` the update counts from
    the model received, so it holds both trainings. Where a round is shorter than an epoch, it begins with as many
    batches of it as the round has. ``qffl:full+finetune`` is q-FedAvg with one more epoch, as FedSAC compares with it.
    """

    form: Literal["last", "every_round"] = choice("last", "every_round")

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"use", "start"} if self.form == "every_round" else {"use"})

    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        if self.form == "last" or visit.t == 0:
            return start
        return visit.oracle.solve(start, only=visit.held, epochs=1)  # the batches that deploy would read in this round

    def deploy(self, received: Tensor, visit: Visit) -> Tensor:
        return visit.oracle.solve(received, only=visit.held)


CATALOGUE = {
    "finetune": CatalogueEntry(
        (FineTune,),
        "one more epoch on its own data before a client predicts",
        PAPER,
        {"every-round": {"form": "every_round"}},
    ),
    "fedavg-finetune": CatalogueEntry(
        (FedAvg, FineTune),
        "FedAvg, and one more epoch on its own data before a client predicts",
        PAPER,
        {"fedrac": {"form": "every_round", "weights": "uniform"}},
        remarks="``fedrac`` is after the code of FedRAC, which trains three times after every aggregation where this trains "
        "once. CFFL's released FedAvg adds the updates one client after the other and lets each go on from the sum so far, so "
        "that its clients differ by their order; that is not offered. Here clients differ by one epoch only, so a low or "
        "negative correlation with their contributions is to be expected.",
    ),
}
