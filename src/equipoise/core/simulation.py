"""What clients do in a simulation: which come and go, fail in the middle of a round or are slow; which attack, and what these send."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core import draws, maths
from equipoise.core.settings import ATTACKS, COMING, ByName, Settings, simulated
from equipoise.records.record import Record
from equipoise.system.suggestions import near, some


@dataclass(frozen=True)
class Presence:
    """What decides who takes part, one entry per client.

    ``keys`` stand for the clients' names, so that a client draws the same numbers wherever it is in the list; ``availability``
    is the chance that it is there, ``dropout`` that it fails, ``joins`` its first round, ``late`` whether it misses every round.
    """

    seed: int
    keys: tuple[int, ...]
    availability: NDArray[np.float64]
    joins: NDArray[np.int64]
    dropout: NDArray[np.float64]
    late: NDArray[np.bool_]

    @staticmethod
    def of(
        settings: Settings, names: Sequence[str], groups: Sequence[str] | None, sizes: Sequence[int]
    ) -> Presence | None:
        """From the settings, and the clients' names, groups and numbers of samples; None if all clients are always available.

        Raises
        ------
        ValueError : a name that no group or client has; a spread of speeds without a limit.
        """
        if not simulated(settings, COMING):
            return None
        given = (by_whom(settings, setting, names, groups) for setting in ("availability", "joins", "dropout"))
        availability, joins, dropout = (np.array([value[name] for name in entries]) for value, entries in given)
        late = _late(settings, keys := keys_of(names), sizes)
        return Presence(settings.seed, keys, availability, joins, dropout, late)

    def round(self, t: int, share: float) -> tuple[Tensor, Record]:
        """The clients whose work counts in round ``t``, and the ids of those absent, late and dropped.

        ``share`` of all clients are selected, or all that are there if these are fewer.
        """
        present = (draws.uniform(self.seed, t, self.keys, draws.THERE) < self.availability) & (self.joins <= t)
        asked = draws.participants(self.seed, t, len(self.keys), share, present).numpy()
        fails = (draws.uniform(self.seed, t, self.keys, draws.DROPOUT) < self.dropout)[asked]
        slow = self.late[asked] & ~fails
        lost = {"absent": np.flatnonzero(~present), "late": asked[slow], "dropped": asked[fails]}
        counted = torch.from_numpy(asked[~(fails | slow)])
        return counted, cast(Record, {kind: ids.tolist() for kind, ids in lost.items()})


def keys_of(names: Sequence[str]) -> tuple[int, ...]:
    """A number for each client's name, from which it draws."""
    return tuple(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") for name in names)


def by_whom(
    settings: Settings, setting: str, names: Sequence[str], groups: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """The values of a setting by name, and for every client which holds: its own name, its group's, or ``""`` of all others."""
    allowed: ByName = Settings.__dataclass_fields__[setting].metadata["allowed"]
    given = {"": getattr(Settings, setting), **allowed.read(getattr(settings, setting))}
    candidates = [*dict.fromkeys(groups or ()), *names]
    for name in given:
        if name not in ("", *candidates):
            near_one, listed = near(name, candidates), some(candidates)
            raise ValueError(f"{setting}: no group or client is called {name!r}.{near_one} There are: {listed}.")
    return given, [n if n in given else g if g in given else "" for n, g in zip(names, groups or names, strict=True)]


def _late(settings: Settings, keys: Sequence[int], sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which clients take longer than the limit, in units of the median client's time."""
    if settings.time_limit is None:
        if settings.speed_spread:
            raise ValueError(
                f"speed_spread={settings.speed_spread:g} has no effect without a time limit. Give time_limit=2, for example."
            )
        return np.zeros(len(keys), np.bool_)
    work = np.array(sizes, np.float64) if settings.steps is None else np.ones(len(keys))
    lots = draws.uniform(settings.seed, 0, keys, draws.SPEED)
    speed = np.exp([settings.speed_spread * NormalDist().inv_cdf(u) for u in np.clip(lots, 2**-54, None)])
    return work / speed > settings.time_limit * np.median(work / speed)


# clients that attack
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
            counted = f"{len(attacking)} of {len(names)}"
            fault = f"attackers: some clients must attack, and some not; found {counted}. Try 0.2."
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
