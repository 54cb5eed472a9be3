"""DP: clip the update and add noise to it before it leaves the client."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core.model import Model
from equipoise.core.rule import CatalogueEntry, Rule, Setup, Visit
from equipoise.system.ranges import INF, number
from equipoise.system.text import plural

FAINTEST = 2.0**-20  # eight times the distance of float32 numbers at 1, where weights are
LOUD = 10  # times the longest update: where noise leaves little or nothing of what is learnt


@dataclass(frozen=True)
class DP(Rule):
    r"""Send the update at length C or less, with noise in every coordinate: differential privacy of a client's data.

    .. math:: u_m \gets u_m \min\Big(1, \frac{C}{\lVert u_m \rVert}\Big) + \mathcal{N}(0, z^2 C^2 I)

    The norm is over all that leaves the client. The clipping of McMahan, Ramage, Talwar, Zhang, ICLR 2018, Algorithm 1, and Geyer,
    Klein, Nabi, 2017, with the noise added by each client, so that the server need not be trusted. What it is worth:
    :func:`equipoise.privacy.accounting.spent`.

    Parameters
    ----------
    clip : C > 0, the largest length of an update; inf does not clip.
    noise : z >= 0, the noise in each coordinate as a multiple of C. 0 promises nothing, and allows everything; else z C must be
        at least 2^-20, and z too. It is drawn and added in float64, and only the sum is rounded to float32, which would lose less.

    Raises
    ------
    ValueError : noise without a finite C, or less than float32 can represent next to an update and the weights of a network.

    Model sent: clipped, with noise, without running statistics; with ``noise=0`` clipped only, and with them.
    Client state: running statistics of BatchNorm.
    Differs: the noise is added by each client, not to the sum by a server that has to be trusted, so it is the square
    root of M times as large in the mean. C is fixed, where Geyer et al. take the median length, which would depend on
    the data. With noise, rules that report something of the data are refused (:attr:`equipoise.Rule.seals`), and the
    running statistics of BatchNorm stay with the client, as in Andreux et al., DCL at MICCAI 2020. An update that is
    not finite is sent as zero: it would show that training diverged.
    """

    owns = frozenset({"upload"})
    sees = "sum"
    clip: float = number(1.0, low=0, above=True, infinite=True)
    noise: float = number(1.0, low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise and self.clip == INF:
            raise ValueError(f"DP: noise={self.noise:g} is a multiple of clip, which must be finite then; found inf.")
        if self.seals and self.noise * self.clip < (least := FAINTEST * max(1, self.clip)):
            raise ValueError(f"DP: clip={self.clip:g} times noise={self.noise:g} must be >= {least:.3g} in float32.")

    @property
    def seals(self) -> bool:
        return self.noise > 0

    def doubt(self, setup: Setup) -> str:
        # the noise with which their mean is C long
        quiet = math.sqrt((M := setup.asked or setup.n_clients) / setup.n_params)
        if self.noise < LOUD * quiet:
            return ""
        return (
            f"the noise in the mean of {plural(M, 'client')} is about {self.noise / quiet:,.0f} times as long as an update may be, "
            f"so little or nothing can be learnt. It would be as long with noise={quiet:.2g}, which protects less; "
            "more clients in a round or a smaller network bring it down, too."
        )

    def private(self, model: Model) -> Tensor | None:
        buffers = torch.arange(model.size) >= model.n_params
        return buffers if self.seals and buffers.any() else None

    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        if self.clip == INF:
            return update
        update = update if visit.shared is None else update * visit.shared
        length = torch.linalg.vector_norm(update, dim=-1, keepdim=True, dtype=torch.float64)
        kind = torch.float64 if self.seals else update.dtype
        update = torch.where(length.isfinite(), update.to(kind) * (self.clip / length).clamp(max=1).to(kind), 0)
        return update + self.noise * self.clip * visit.normal() if self.seals else update


CATALOGUE = CatalogueEntry(
    (DP,),
    "clip every update and add noise to it: differential privacy of a client's data",
    "McMahan et al., ICLR 2018; Geyer, Klein, Nabi 2017",
    {"clip": {"noise": 0.0}},
)
