"""Clients that are unfair to different people, made as FeDa4Fair makes them: the positive rows of a group are dropped or flipped."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np

from equipoise.data.tables.columns import UserData
from equipoise.system.ranges import check_number
from equipoise.system.suggestions import unknown

STREAM = 44  # of the random numbers, other than those that divide the rows


@dataclass(frozen=True)
class Bias:
    """Drops and flips positive rows of a group at some clients, before the rows are divided into those for training and testing.

    Source: X. Heilmann, L. Corbucci, M. Cerrato, A. Monreale 2025, FeDa4Fair, arXiv:2506.21095, and their code (``drop_data``, then
    ``flip_data``). With values of one attribute this is their value bias, with values of several their attribute bias.

    Parameters
    ----------
    against : the values of attributes that clients are unfair to, in turn.
    biased : in (0, 1], share of the clients, the first ones in the order of their names, at least one.
    drop : in [0, 1], share of the positive rows of that value that a client loses, rounded down.
    flip : in [0, 1], share of the remaining ones whose label becomes the other one, rounded down.
    """

    against: tuple[str, ...]
    biased: float = 1.0
    drop: float = 0.5
    flip: float = 0.0

    @classmethod
    def of(
        cls, scenario: str, values: Collection[str], bias: str | Sequence[str] | None, **amounts: float
    ) -> "Bias | None":
        """The bias of a scenario's options, if there is any; ``amounts`` are ``biased``, ``drop`` and ``flip``.

        Raises
        ------
        ValueError : a value is unknown, an amount is out of its range or without effect.
        """
        for name, amount in amounts.items():
            check_number(f"{scenario}: {name}", amount, 0, 1, above=name == "biased")
        if bias is None:
            if unused := [f"{name}={amount}" for name, amount in amounts.items() if amount != getattr(cls, name)]:
                raise ValueError(
                    f"{scenario}: {', '.join(unused)} has no effect without bias, the people whom clients treat worse. Add "
                    f"bias={sorted(values)[0]}, or leave it out."
                )
            return None
        against = tuple(bias) if isinstance(bias, (list, tuple)) else tuple(str(bias).split("+"))
        if wrong := [value for value in against if value not in values]:
            raise ValueError(unknown(f"bias of scenario {scenario}:", str(wrong[0]), sorted(values)))
        if not against or len({*against}) < len(against):
            raise ValueError(
                f"{scenario}: bias must be different values, at least one; found {', '.join(against) or 'none'}."
            )
        if not (amounts["drop"] or amounts["flip"]):
            raise ValueError(
                f"{scenario}: bias={'+'.join(against)} changes nothing with drop=0 and flip=0. Raise one, or leave bias out."
            )
        return cls(against, **amounts)

    def applied(self, rows: UserData, positive: str, seed: int) -> tuple[UserData, dict[str, Any]]:
        """The rows with this bias, and what was done at each client; a dropped row is no client's."""
        (other,) = {*rows.classes} - {positive}
        label, client = np.array(rows.label, object), np.array(rows.client, object)
        values = np.array([*rows.attributes.values()], object)  # [A, n]
        rng = np.random.default_rng([seed, STREAM])
        done = {}
        for name, value in zip(rows.clients[: max(1, round(self.biased * len(rows.clients)))], cycle(self.against)):
            which = np.flatnonzero((client == name) & (label == positive) & (values == value).any(0))
            which = rng.permutation(which)
            dropped, kept = np.split(which, [int(self.drop * len(which))])
            flipped = kept[: int(self.flip * len(kept))]
            client[dropped], label[flipped] = "", other
            done[name] = {"against": value, "positive": len(which), "dropped": len(dropped), "flipped": len(flipped)}
        return replace(rows, label=tuple(label), client=tuple(client)), done
