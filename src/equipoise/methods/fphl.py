"""FPHL, the first half of FedHEAL: drop what does not keep its direction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from equipoise.hyper import choice, number
from equipoise.rule import Cohort, Rule, Setup, State

BINS = 20


def agreement(up: Tensor, ups: Tensor, rounds: Tensor) -> Tensor:
    """Rounds [M, G] in which a parameter moved as now: ``ups`` where it rises (``up``), the others where it falls."""
    return torch.where(up, ups, rounds[:, None] - ups)


@dataclass(frozen=True)
class FPHL(Rule):
    r"""Keep a client's update of a parameter only if its direction agrees with the client's history.

    .. math:: l_{m,i} = \frac1t \sum_{r \le t} [\Delta^r_{m,i} \ge 0], \qquad
        c_{m,i} = l_{m,i}\ \text{if}\ \Delta_{m,i} \ge 0\ \text{else}\ 1 - l_{m,i}, \qquad
        \text{keep} \iff c_{m,i} \ge \tau

    and average each parameter over those who keep it. Federated Parameter-Harmonized Learning: Chen, Huang, Ye, CVPR
    2024, Eqs. 5-9, Algorithm 1.

    Parameters
    ----------
    tau : threshold, in [0, 1]; 0.3 (Digits) and 0.4 (Office-Caltech). 0 keeps everything.
    history : ``"inclusive"`` counts this round (Algorithm 1); ``"exclusive"`` compares with earlier rounds only.
    strict : keep if c > tau instead of c >= tau.
    zero : whether an update of exactly 0 counts as ``"up"`` or ``"down"``.
    mask_buffers : also mask BatchNorm statistics.

    Server state: integer counts, so that the comparison is exact: ``ups`` [N, G], ``rounds`` [N] (rounds each took part).
    """

    owns = frozenset({"mask"})
    tau: float = number(0.3, low=0, high=1)
    history: Literal["inclusive", "exclusive"] = choice("inclusive", "exclusive")
    strict: bool = False
    zero: Literal["up", "down"] = choice("up", "down")
    mask_buffers: bool = False

    def server_state(self, setup: Setup) -> State:
        columns = setup.n_params + self.mask_buffers * setup.n_buffers
        new = setup.initial.new_zeros
        return {
            "ups": new(setup.n_clients, columns, dtype=torch.int16),
            "rounds": new(setup.n_clients, dtype=torch.int16),
        }

    def needed(self, rounds: Tensor) -> Tensor:
        """Smallest agreement [M] that reaches the threshold; the slack absorbs the rounding of tau n."""
        bound = self.tau * rounds.double()
        slack = 1e-9 * rounds
        need = (bound + slack).floor() + 1 if self.strict else (bound - slack).ceil()
        return torch.where(rounds == 0, 0, need).to(rounds.dtype)  # no history: keep everything

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        updates = torch.cat([cohort.updates, cohort.buffer_updates], 1) if self.mask_buffers else cohort.updates
        up = updates >= 0 if self.zero == "up" else updates > 0
        before, seen = state["ups"][cohort.ids], state["rounds"][cohort.ids]
        ups, rounds = before + up, seen + 1
        if int(rounds.min()) < 0:
            raise OverflowError("FPHL counts at most 32,767 rounds of a client.")
        past, n = (ups, rounds) if self.history == "inclusive" else (before, seen)
        agree = agreement(up, past, n)
        mask = agree >= self.needed(n)[:, None]
        state = {
            "ups": state["ups"].index_copy(0, cohort.ids, ups),
            "rounds": state["rounds"].index_copy(0, cohort.ids, rounds),
        }
        P = cohort.updates.shape[1]
        notes = {**cohort.notes, "kept": float(mask.float().mean()), "consistency": histogram(agree, n)}
        return state, replace(
            cohort, mask=mask[:, :P], buffer_mask=mask[:, P:] if self.mask_buffers else None, notes=notes
        )


def histogram(agree: Tensor, rounds: Tensor) -> list[int]:
    """Numbers of update entries by consistency c = agree / rounds, in equal bins over [0, 1] (FedHEAL, Fig. 2)."""
    bins = torch.zeros(BINS, dtype=torch.int64)
    for row, n in zip(agree, rounds.tolist(), strict=True):
        if n:
            counts = torch.bincount(row.int(), minlength=n + 1)  # exact: agreement is a whole number in 0..n
            place = (torch.arange(n + 1) * BINS // n).clamp(max=BINS - 1)
            bins.index_add_(0, place, counts.cpu())
    return [int(count) for count in bins]
