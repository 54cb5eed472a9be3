"""Clients that attack, in simulation: who they are, and what they send instead of what they trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from equipoise.core import draws, maths
from equipoise.core.presence import by_whom, keys_of
from equipoise.core.settings import ATTACKS, Settings

FLIPS = ("label-flip", "model-replacement")  # of which attackers train on flipped labels
WHOLE = ("scaling", "model-replacement", "free-rider")  # which change models; a gradient has no running statistics


def z_max(n: int, m: int) -> float:
    r"""Standard deviations by which m attackers of n clients may leave the mean, so that enough others are farther from it.

    .. math:: z = \Phi^{-1}\Big(\frac{n - m - s}{n - m}\Big), \qquad s = \lfloor n/2 + 1 \rfloor - m

    Baruch, Baruch, Goldberg, NeurIPS 2019. Where attackers are the majority, s is 1; where the fraction is 0, z is 0.
    """
    honest = max(n - m, 1)
    share = (honest - max(n // 2 + 1 - m, 1)) / honest
    return NormalDist().inv_cdf(share) if share > 0 else 0.0


# of the attackers' updates [A, P], the honest ones (where there are none, the attackers'), the clients of the round, and a number
LIES: dict[str, Callable[[Tensor, Tensor, int, float | None], Tensor]] = {
    "sign-flip": lambda own, honest, n, scale: own * -(scale or 1.0),
    "scaling": lambda own, honest, n, scale: own * (scale or n / len(own)),
    "model-replacement": lambda own, honest, n, scale: own * (scale or n / len(own)),
    "alie": lambda own, honest, n, z: honest.mean(0) - (z or z_max(n, len(own))) * honest.std(0, correction=0),
    "ipm": lambda own, honest, n, epsilon: honest.mean(0) * -(epsilon or 0.1),
    "free-rider": lambda own, honest, n, scale: own * 0,
}


@dataclass(frozen=True)
class Attackers:
    """The ``clients`` that attack, ascending, and how: ``attack`` of ``ATTACKS``, and its number ``scale``, None: its own."""

    attack: str
    scale: float | None
    clients: tuple[int, ...]

    @staticmethod
    def of(settings: Settings, names: Sequence[str], groups: Sequence[str] | None, *, here: bool) -> Attackers | None:
        """From the settings, and the clients' names and groups; None if no client attacks.

        Every client draws a number from the seed and its name; of a share, those with the least attack.
        """
        attack, scale = settings.attack, settings.attack_scale
        shares, entries = by_whom(settings, "attackers", names, groups)
        lots = draws.uniform(settings.seed, 0, keys_of(names), draws.ATTACKS)
        attacking: list[int] = []
        for name, share in shares.items():
            members = [m for m, its in enumerate(entries) if its == name]
            count = math.floor(share * len(members) + 1e-9)
            if share and members and not count:
                given = f"{name}={share:g}" if name else f"{share:g}"
                raise ValueError(f"attackers: {given} of {len(members)} clients is less than one client. Give more.")
            attacking += sorted(members, key=lots.__getitem__)[:count]
        fault = ""
        if attack is None and (settings.attackers or scale):
            fault = f"attackers and attack_scale say nothing without attack. Give one of {', '.join(ATTACKS)}."
        elif attack and not here:
            fault = f"attack={attack} is for simulation, and sites send what they send. Choose another engine."
        elif attack and not 0 < len(attacking) < len(names):
            fault = (
                f"attackers: some clients must attack, and some not; found {len(attacking)} of {len(names)}. Try 0.2."
            )
        elif attack in ("label-flip", "free-rider") and scale:
            fault = f"attack_scale={scale:g} has no effect with {attack}, which has no number. Leave it out."
        if fault:
            raise ValueError(fault)
        return None if attack is None else Attackers(attack, scale, tuple(sorted(attacking)))

    def sent(self, trained: Tensor, received: Tensor, own: list[int], others: list[int], n_params: int) -> Tensor:
        """What the attackers in rows ``own`` send [A, G], who know what the honest clients in rows ``others`` send.

        Of the models ``trained`` and ``received`` [M, G] the first ``n_params`` are trainable scalars.
        """
        made, n = trained[own], len(own) + len(others)
        for part in maths.blocks(len(trained), trained.shape[1] if self.attack in WHOLE else n_params):
            before = received[:, part].double()
            changes = trained[:, part].double() - before
            made[:, part] = before[own] + LIES[self.attack](changes[own], changes[others or own], n, self.scale)
        return made
