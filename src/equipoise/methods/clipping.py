"""Clipping: shorten long updates before the server does anything else with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.maths import median, square_norms
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, State
from equipoise.system.ranges import number


def factors(lengths: Sequence[Tensor], longest: float | None) -> list[Tensor]:
    """For each part of what clients send, the factors [M] that shorten its ``lengths`` [M].

    The first part may be ``longest``, or, if that is None, as long as the median. Another part may be as many times its median
    long as the first is, because it has another unit.
    """
    usual = [median(length) for length in lengths]
    most = usual if longest is None else [usual[0].new_tensor(longest), *(longest / usual[0] * m for m in usual[1:])]
    return [torch.where(x > bound, bound / x, 1.0) for x, bound in zip(lengths, most, strict=True)]


@dataclass(frozen=True)
class Clipping(Rule):
    r"""Shorten every update to the length c or less, so that a client moves the model no farther than others do.

    .. math:: \Delta_m \gets \Delta_m \min\Big(1, \frac{c}{\lVert \Delta_m \rVert}\Big)

    A fixed c is the norm thresholding of Sun, Kairouz, Suresh, McMahan, *Can You Really Backdoor Federated Learning?*, 2019; the
    median of the round's lengths is the bound of Geyer, Klein, Nabi, *Differentially Private Federated Learning: A Client Level
    Perspective*, 2017, Algorithm 1, without the noise.

    Parameters
    ----------
    c : the largest length, > 0, or None for the median of the lengths in the round. inf does not clip.

    Server sees: updates, which it shortens.
    Notes: ``clipped`` is how many of the clients were shortened.
    Differs: the server clips what it was sent, and whatever it does with updates it does with shortened ones: in a sum this rule
    comes first, wherever it is written. Other reports of a client are not clipped. Changes of BatchNorm's running
    statistics are shortened by themselves: to the median of their lengths, or, with c, to as many times that median as c is of
    the updates'. Clipped updates are a second matrix of their size, if any has to be clipped.
    """

    owns = frozenset({"updates"})
    c: float | None = number(None, low=0, above=True, infinite=True)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        parts = cohort.updates, cohort.buffer_updates
        clips = factors([square_norms(x).sqrt() for x in parts], self.c)
        short = [x * by[:, None].to(x.dtype) if bool((by < 1).any()) else x for x, by in zip(parts, clips, strict=True)]
        notes = {**cohort.notes, "clipped": int((clips[0] < 1).sum())}
        return state, replace(cohort, updates=short[0], buffer_updates=short[1], notes=notes)


CATALOGUE = CatalogueEntry(
    (Clipping,), "shorten long updates before anything is done with them", "Sun et al., 2019; Geyer, Klein, Nabi 2017"
)
