"""FedLD's margin control: keep the logits of local training small."""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core.rule import CatalogueEntry, Out, Rule, Visit
from equipoise.system.ranges import choice, log_uniform, number

LARGE = 2.0**50


@dataclass(frozen=True)
class Margin(Rule):
    r"""Add a slowly growing penalty on the length of each sample's logits :math:`z_b` to the local loss.

    .. math:: F_m(\theta) + \frac{\lambda}{B} \sum_b \log(1 + \lVert z_b \rVert^2)

    Zeng, Guo, Wang, Wang, Zhou, Qu, MICCAI 2024, Eq. 3. The gradient by :math:`z_b` is at most :math:`\lambda / B` long, at
    :math:`\lVert z_b \rVert = 1`, and falls as :math:`2 \lambda / (B \lVert z_b \rVert)`.

    Parameters
    ----------
    lam : strength, >= 0; 0 is FedAvg. Paper: 0.1, 0.03 and 0.03 on its three splits of Retina (mild to strong label skew),
        0.01 on COVID-FL.
    form : ``"paper"`` as above; ``"released"`` is one term
        :math:`\lambda \log(1 + \sum_b \lVert \operatorname{softmax}(z_b) \rVert^2)` per batch, which depends on the size of the batch.

    Differs: Eq. 3 is written for one sample; a batch takes the mean, as it does of the cross-entropy. With the released
    term a short last batch is penalised less.
    """

    needs = frozenset({"classes"})
    lam: float = number(0.03, low=0, search=log_uniform(0.01, 0.1))
    form: str = choice("paper", "released")

    def loss(self, out: Out, visit: Visit) -> Tensor:
        if self.form == "paper":
            # squares of what is shorter stay in range
            large = (out.logits.detach().abs().amax(-1) / LARGE).clamp(min=1)
            squares = (out.logits / large.unsqueeze(-1)).square().sum(-1)
            return self.lam * out.mean((squares + (large**-2 - 1)).log1p() + 2 * large.log())
        squares = out.logits.softmax(-1).square().sum(-1)  # [..., B]
        masked = squares if out.ok is None else squares * out.ok
        return self.lam * masked.sum(-1).log1p()


PAPER = "Zeng et al.: Tackling Data Heterogeneity in Federated Learning via Loss Decomposition, MICCAI 2024"
RELEASED = {"form": "released"}
CATALOGUE = CatalogueEntry((Margin,), "keep the logits of local training small", PAPER, {"released": RELEASED})
