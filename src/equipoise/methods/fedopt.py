"""FedAdagrad, FedAdam, FedYogi: adaptive optimisers at the server."""

from dataclasses import dataclass, replace

import torch

from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.system.ranges import choice, log_uniform, number


@dataclass(frozen=True)
class FedOpt(Rule):
    r"""Take the mean update for the gradient of an adaptive optimiser at the server.

    .. math:: m_t = \beta_1 m_{t-1} + (1 - \beta_1) \Delta_t, \qquad
        \theta^{t+1} = \theta^t + \eta \frac{m_t}{\sqrt{v_t} + \tau}, \qquad \Delta_t = \sum_{m \in S_t} p_m \Delta_m

    with :math:`v_t = v_{t-1} + \Delta_t^2` (``adagrad``),
    :math:`v_t = \beta_2 v_{t-1} + (1 - \beta_2) \Delta_t^2` (``adam``) or
    :math:`v_t = v_{t-1} - (1 - \beta_2) \Delta_t^2 \operatorname{sign}(v_{t-1} - \Delta_t^2)` (``yogi``),
    :math:`m_{-1} = 0` and :math:`v_{-1} = \tau^2`. Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, ICLR 2021, Algorithm 2.

    Parameters
    ----------
    kind : how v_t changes.
    eta : server learning rate, > 0: about the largest change of a parameter in a round. The paper tunes it for every task.
    beta1 : decay of the mean, in [0, 1); the paper takes 0 for ``adagrad``, else 0.9.
    beta2 : decay of the second moment, in [0, 1); not of ``adagrad``.
    tau : how little adaptive it is, in [1e-12, 1e12]; 1e-5 to 0.1.

    Server state: ``m`` [P], ``v`` [P].
    Server sees: sums of updates.
    Differs: clients count by samples, as in the paper's experiments, where its Algorithm 2 has 1/|S|; another rule may set the weights.
    In a sum, Delta is the step as the other rules combine it; a parameter whose update is masked out still follows its mean. Running
    statistics of BatchNorm are averaged. There is no correction of the bias of m and v, as in the paper. The default of ``eta`` is ours.
    """

    owns = frozenset({"step"})
    sees = "sum"
    kind: str = choice("adam", "yogi", "adagrad")
    eta: float = number(0.01, 0, above=True, search=log_uniform(1e-3, 0.1))
    beta1: float = number(0.9, 0, 1, below=True)
    beta2: float = number(0.99, 0, 1, below=True)
    tau: float = number(0.001, 1e-12, 1e12, search=log_uniform(1e-4, 0.1))

    def server_state(self, setup: Setup) -> State:
        return {"m": torch.zeros_like(setup.theta), "v": torch.full_like(setup.theta, self.tau**2)}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        delta, v = cohort.step(), state["v"]
        m, square = self.beta1 * state["m"] + (1 - self.beta1) * delta, delta.square()
        if self.kind == "adagrad":
            v = v + square
        elif self.kind == "adam":
            v = self.beta2 * v + (1 - self.beta2) * square
        else:
            v = v - (1 - self.beta2) * square * (v - square).sign()
        return {"m": m, "v": v}, replace(cohort, moved=self.eta * m / (v.sqrt() + self.tau))


CITATION = "Reddi et al., ICLR 2021"
CATALOGUE = {
    "fedadam": CatalogueEntry((FedOpt,), "Adam at the server", CITATION, printed="FedAdam"),
    "fedyogi": CatalogueEntry((FedOpt,), "Yogi at the server", CITATION, values={"kind": "yogi"}, printed="FedYogi"),
    "fedadagrad": CatalogueEntry(
        (FedOpt,), "Adagrad at the server", CITATION, values={"kind": "adagrad", "beta1": 0.0}, printed="FedAdagrad"
    ),
}
