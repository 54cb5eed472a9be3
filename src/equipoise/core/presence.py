"""Clients that come and go, in simulation: available clients of a round, clients that fail in the middle of it, slow clients."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core import draws
from equipoise.core.settings import COMING, ByName, Settings, simulated
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
