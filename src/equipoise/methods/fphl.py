"""FPHL, the first half of FedHEAL: drop what does not keep its direction."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core.compiled import as_rows, loops
from equipoise.core.maths import Bits, at_least, in_memory, over_columns, put, take
from equipoise.core.rule import CatalogueEntry, Cohort, Rule, Setup, State
from equipoise.system.ranges import choice, number, uniform

BINS = 20
LONGEST = 400  # numbers of a record; of more rounds the bins say as much
BYTE = 254  # rounds up to which a byte counts; beyond, 16 bits do


def agreement(up: Tensor, ups: Tensor, rounds: Tensor) -> Tensor:
    """Rounds [M, G] in which a parameter moved as now: ``ups`` where it rises (``up`` is 1), the others where it falls (0)."""
    downs = rounds[:, None] - ups
    return downs.addcmul(up, ups - downs)


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

    Server state: integer counts, so that the comparison is exact: ``ups`` [N, G] (in memory bytes, while no client took
    part more than 254 times), ``rounds`` [N] (rounds each took part).
    Server sees: the sign of every entry of every update.
    Differs: nothing by default; the presets have what the released code does. Every record has ``kept``, the share of
    update entries kept, ``consistency``, their histogram, and ``agreement``, their exact numbers.
    """

    owns = frozenset({"mask"})
    tau: float = number(0.3, low=0, high=1, search=uniform(0.1, 0.6))
    history: str = choice("inclusive", "exclusive")
    strict: bool = False
    zero: str = choice("up", "down")
    mask_buffers: bool = False

    def server_state(self, setup: Setup) -> State:
        columns = setup.n_params + self.mask_buffers * setup.n_buffers
        new = setup.initial.new_zeros
        ups = setup.per_client(new(columns, dtype=torch.uint8))
        if not in_memory(ups):  # what is on disk keeps its type
            ups = setup.per_client(new(columns, dtype=torch.int16))
        return {"ups": ups, "rounds": new(setup.n_clients, dtype=torch.int16)}

    def _needed(self, rounds: Tensor) -> Tensor:
        """Smallest agreement [M] that reaches the threshold; the slack absorbs the rounding of tau n."""
        bound = self.tau * rounds.double()
        slack = 1e-9 * rounds
        need = (bound + slack).floor() + 1 if self.strict else (bound - slack).ceil()
        return torch.where(rounds == 0, 0, need).to(rounds.dtype)  # no history: keep everything

    def _keep(self, updates: Tensor, before: Tensor, after: Tensor, n: Tensor) -> tuple[Bits, Tensor]:
        """Which updates [M, G] are kept, and how many of them agree with 0, 1, ... rounds, by what ``n`` [M] has: [L, max n + 1].

        ``before`` and ``after`` [M, G] count the rises up to the last round and up to this one; ``after`` is written.
        """
        mask, most = Bits.empty(updates), int(n.max()) + 1
        lengths, kind = n.unique(return_inverse=True)
        groups = [n == k for k in lengths] if len(lengths) > 1 else [slice(None)]
        fast = loops(updates)
        need, n = self._needed(n).to(after.dtype)[:, None], n.to(after.dtype)

        def some(parts: list[slice]) -> Tensor:
            tally = torch.zeros(len(groups), most, dtype=torch.int64, device=n.device)
            if fast is not None:
                matrices = tuple(map(as_rows, (updates, before, after)))
                limits = n.numpy(), need[:, 0].numpy(), kind.numpy()
                place = parts[0].start, parts[-1].stop, self.zero == "down", self.history == "inclusive"
                fast.agreements(matrices, limits, place, tally.numpy(), mask.bits.numpy())
                return tally
            for part in parts:
                up = at_least(updates[:, part], 0, above=self.zero == "down")
                ups = torch.add(before[:, part], up, out=after[:, part])
                agree = agreement(up, ups if self.history == "inclusive" else before[:, part], n)
                for counts, rows in zip(tally, groups, strict=True):
                    counts += torch.bincount(agree[rows].flatten(), minlength=most)
                mask.put(part, torch.ge(agree, need, out=agree).to(torch.uint8))
            return tally

        return mask, torch.stack(over_columns(some, updates)).sum(0)

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        seen = state["rounds"][cohort.ids]
        rounds = seen + 1
        if int(rounds.min()) < 0:
            raise OverflowError("FPHL counts at most 32,767 rounds of a client.")
        history = state["ups"] if int(rounds.max()) <= BYTE else state["ups"].to(torch.int16)
        before = take(history, cohort.ids)
        after = torch.empty_like(before)
        n = rounds if self.history == "inclusive" else seen
        P, buffer_mask = cohort.updates.shape[1], None
        mask, tally = self._keep(cohort.updates, before[:, :P], after[:, :P], n)
        if self.mask_buffers:
            buffer_mask, more = self._keep(cohort.buffer_updates, before[:, P:], after[:, P:], n)
            tally += more
        lengths = n.unique()
        count = sum(int(counts[k:].sum()) for counts, k in zip(tally, self._needed(lengths).tolist(), strict=True))
        shares = {"kept": count / int(tally.sum()), "consistency": histogram(tally, lengths)}
        notes = {**cohort.notes, **shares, "agreement": exact(tally, lengths)}
        state = {"ups": put(history, cohort.ids, after), "rounds": put(state["rounds"], cohort.ids, rounds)}
        return state, replace(cohort, mask=mask, buffer_mask=buffer_mask, notes=notes)


def histogram(tally: Tensor, lengths: Tensor) -> list[int]:
    """Numbers of update entries by consistency c = agreement / rounds, in equal bins over [0, 1] (FedHEAL, Fig. 2).

    ``tally`` [L, ...] are the numbers that agree with 0, 1, ... of ``lengths`` [L] rounds.
    """
    bins = torch.zeros(BINS, dtype=torch.int64)
    for counts, n in zip(tally.cpu(), lengths.tolist(), strict=True):
        if n:
            place = (torch.arange(n + 1) * BINS // n).clamp(max=BINS - 1)  # exact: agreement is a whole number in 0..n
            bins.index_add_(0, place, counts[: n + 1])
    return [int(count) for count in bins]


def exact(tally: Tensor, lengths: Tensor) -> list[list[int]]:
    """Numbers of update entries that agree with 0, 1, ..., n of n rounds, a list for each n > 0; none if that were too long."""
    rows = [counts[: n + 1] for counts, n in zip(tally.tolist(), lengths.tolist(), strict=True) if n]
    return rows if sum(map(len, rows)) <= LONGEST else []


PAPER = "Chen, Huang, Ye: Fair Federated Learning under Domain Skew, CVPR 2024"
RELEASED = {"history": "exclusive", "strict": True, "zero": "down", "mask_buffers": True}
CATALOGUE = CatalogueEntry((FPHL,), "drop updates whose direction is inconsistent", PAPER, {"released": RELEASED})
