"""FedProc: prototypes as anchors of a contrastive loss that fades out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import maths
from equipoise.core.rule import CatalogueEntry, Out, Presets, State, Visit
from equipoise.methods.fedproto import PrototypeRule, local_prototypes, prototype_bounds
from equipoise.system.ranges import number


@dataclass(frozen=True)
class FedProc(PrototypeRule):
    r"""Blend a prototypical contrastive loss into cross-entropy.

    .. math:: a_t \ell_{con} + (1 - a_t) \ell_{ce}, \quad a_t = 1 - t / (T - 1), \qquad
        \ell_{con} = -\log \frac{e^{\cos(z, P_y)/\tau}}{\sum_k e^{\cos(z, P_k)/\tau}}

    Mu, Shen, Cheng, Geng, Fu, Zhang, Zhang, FGCS 2023 (arXiv 2109.12273), Eqs. 4-6. Classes without a prototype are
    left out of the sum, and their samples add 0.

    Parameters
    ----------
    temperature : tau, >= 1e-6; 1.
    strict : keep the factor 1 - a of cross-entropy even where there is no prototype yet, as the released code does
        (then the first round trains nothing).

    Server state: ``proto`` [C, D], ``known`` [C, 1].
    Reports: ``share`` [C], one for each class that it holds; ``proto`` [C, D], mean features of each of these.
    Server sees: sums of updates, ``proto`` and ``share``.
    Traffic: C D numbers down; C D and C up. One more pass over the local data.
    Differs: without prototypes (the first round) it is plain cross-entropy. Prototypes are computed after local
    training in evaluation mode, not collected while weights change. A class that no client holds keeps its last prototype.
    The cosine with zero is 0.
    """

    ranges = prototype_bounds()
    temperature: float = number(1.0, low=1e-6)
    strict: bool = False

    def _share(self, t: int, rounds: int) -> float:
        """The weight a_t of the contrastive term in round t of ``rounds``."""
        return 1 - t / max(rounds - 1, 1)

    def _contrast(self, out: Out, visit: Visit) -> Tensor:
        """The contrastive loss of the batch [...]."""
        proto, defined = visit.message["proto"], visit.message["known"]
        cos = maths.directions(out.features) @ maths.directions(proto).mT / self.temperature
        cos = torch.where(defined.mT > 0, cos, torch.finfo(cos.dtype).min)  # [..., B, C]
        here = maths.pick(defined, out.y).squeeze(-1)
        term = cos.logsumexp(-1) - cos.gather(-1, out.y.unsqueeze(-1)).squeeze(-1)
        return out.mean(torch.where(here > 0, term, 0.0))

    def loss(self, out: Out, visit: Visit) -> Tensor:
        a, begun = self._share(visit.t, visit.rounds), 1.0 if self.strict else visit.message["known"].amax((-2, -1))
        return a * begun * (self._contrast(out, visit) - out.cross_entropy)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return local_prototypes(visit, visit.message["proto"].shape[-2]), visit.state


PRESETS: Presets = {"released": {"strict": True}}
CATALOGUE = CatalogueEntry((FedProc,), "class prototypes as contrastive anchors", "Mu et al., FGCS 2023", PRESETS)
