"""FPHL: Eqs. 5 to 9 in scalars, thresholds compared exactly, and who is left in each column."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.core import client_rows as rows
from equipoise.methods.fphl import BINS, FPHL, LONGEST, exact, histogram
from helpers import Server, fitted, in_one, normal

PAPER: dict[str, object] = {}
RELEASED = {"history": "exclusive", "strict": True, "zero": "down", "mask_buffers": True}


class Naive:
    """The server of FPHL in fractions, one parameter of one client at a time."""

    def __init__(
        self,
        N: int,
        columns: int,
        tau: str,
        *,
        history: str = "inclusive",
        strict: bool = False,
        zero: str = "up",
        mask_buffers: bool = False,
    ) -> None:
        self.ups = [[0] * columns for _ in range(N)]
        self.seen = [0] * N
        self.tau, self.history, self.strict, self.zero = Fraction(tau), history, strict, zero

    def mask(self, updates: list[list[float]], ids: list[int]) -> list[list[bool]]:
        rows = []
        for row, m in zip(updates, ids, strict=True):
            kept = []
            for i, u in enumerate(row):
                up = u > 0 or (u == 0 and self.zero == "up")
                past, n = self.ups[m][i], self.seen[m]
                if self.history == "inclusive":
                    past, n = past + up, n + 1
                if n == 0:
                    kept.append(True)
                else:
                    rising = Fraction(past, n)
                    c = rising if up else 1 - rising
                    kept.append(c > self.tau if self.strict else c >= self.tau)
                self.ups[m][i] += up
            self.seen[m] += 1
            rows.append(kept)
        return rows


def ties(shape: tuple[int, ...], seed: int) -> Tensor:
    """Updates with many zeros, so that their direction matters."""
    x = normal(*shape, seed=seed)
    return torch.where(x.abs() < 0.3, 0.0, x)


@in_one("tau", ["0.3", "0.4", "0.5", "1", "0.6666"])
@in_one("options", [PAPER, RELEASED, {"history": "exclusive"}, {"strict": True, "zero": "down"}])
def test_equations_typed_out(tau: str, options: dict[str, object]) -> None:
    N, G, B, sizes = 4, 7, 3, [10, 30, 5, 15]
    server = Server(FPHL(tau=float(tau), **options), normal(G), sizes, buffers=normal(B, seed=2))
    columns = G + B if options.get("mask_buffers") else G
    naive = Naive(N, columns, tau, **options)
    theta, buffers = server.theta.tolist(), server.buffers.tolist()
    for t, ids in enumerate([[0, 1, 2, 3]] * 3 + [[1, 3], [0, 2, 3], [2], [0, 1, 2, 3]]):
        updates, moves = ties((len(ids), G), 10 + t), ties((len(ids), B), 50 + t)
        cohort = server.round(updates, ids, buffer_updates=moves)
        whole = torch.cat([updates, moves], 1)[:, :columns]
        mask = naive.mask(whole.tolist(), ids)
        assert cohort.mask.dense().tolist() == [row[:G] for row in mask]
        total = sum(sizes[m] for m in ids)
        for i in range(G):
            kept = [k for k in range(len(ids)) if mask[k][i]]
            mass = sum(sizes[ids[k]] for k in kept)
            theta[i] += sum(sizes[ids[k]] / mass * float(updates[k, i]) for k in kept)
        for i in range(B):
            kept = [k for k in range(len(ids)) if columns == G or mask[k][G + i]]
            mass = sum(sizes[ids[k]] for k in kept)
            buffers[i] += sum(sizes[ids[k]] / mass * float(moves[k, i]) for k in kept)
        assert server.theta.tolist() == pytest.approx(theta, abs=1e-13)
        assert server.buffers.tolist() == pytest.approx(buffers, abs=1e-13)
        assert server.state[0]["rounds"].tolist() == naive.seen
        assert server.state[0]["ups"].tolist() == naive.ups
        assert cohort.notes["kept"] == pytest.approx(sum(map(sum, mask)) / (len(ids) * columns))
        assert total == sum(sizes[m] for m in ids)


@given(k=st.integers(0, 1000), d=st.integers(1, 1000), n=st.integers(1, 30000), strict=st.booleans())
def test_the_threshold_is_exact(k: int, d: int, n: int, strict: bool) -> None:
    """The smallest whole agreement a with a / n >= tau (or > tau), for every tau with up to three digits and beyond."""
    tau = Fraction(min(k, d), d)
    rule = FPHL(tau=float(tau), strict=strict)
    need = int(rule._needed(torch.tensor([n], dtype=torch.int16 if n < 2**15 else torch.int32))[0])
    fits = (lambda a: Fraction(a, n) > tau) if strict else (lambda a: Fraction(a, n) >= tau)
    assert fits(need)
    assert need == 0 or not fits(need - 1)


@pytest.mark.parametrize("strict", [False, True])
def test_every_threshold_in_hundredths_is_exact(strict: bool) -> None:
    """0.07 of 100 rounds is 7, although 0.07 * 100 is 7.000000000000001 in floats."""
    n = torch.arange(1, 401, dtype=torch.int16)
    for k in range(101):
        expected = k * n.long() // 100 + 1 if strict else -(-k * n.long() // 100)
        assert torch.equal(FPHL(tau=k / 100, strict=strict)._needed(n).long(), expected), k


@in_one(("tau", "first"), [(0.0, None), (0.3, 4), (0.4, 3), (0.5, 3), (0.51, 2), (1.0, 2)])
def test_first_round_that_masks(tau: float, first: int | None) -> None:
    """c >= 1 / n with this round counted, so the first direction against all others is dropped once 1 / n < tau."""
    for n in range(1, 7):
        server = Server(FPHL(tau=tau), torch.zeros(1, dtype=torch.float64), [1])
        for t in range(n):
            cohort = server.round(torch.tensor([[1.0 if t < n - 1 else -1.0]], dtype=torch.float64))
        assert bool(cohort.mask.dense().all()) == (first is None or n < first)


def test_the_released_code_masks_in_the_second_round() -> None:
    server = Server("fphl:released", torch.zeros(2, dtype=torch.float64), [1])
    assert bool(server.round(torch.tensor([[1.0, 1.0]], dtype=torch.float64)).mask.dense().all())
    assert server.round(torch.tensor([[1.0, -1.0]], dtype=torch.float64)).mask.dense().tolist() == [[True, False]]


def test_a_parameter_that_everybody_masks_stays() -> None:
    server = Server(FPHL(tau=1.0), torch.zeros(2, dtype=torch.float64), [1, 2])
    server.round(torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=torch.float64))
    before = server.theta
    cohort = server.round(torch.tensor([[-1.0, 1.0], [-1.0, 4.0]], dtype=torch.float64))
    assert cohort.mask.dense().tolist() == [[False, True], [False, True]]
    assert server.theta.tolist() == [before[0], pytest.approx(before[1] + 3.0)]


def test_a_still_parameter_dilutes_the_others() -> None:
    """An update of 0 counts as a rise and stays in the denominator of Eq. 9."""
    server = Server(FPHL(tau=0.5), torch.zeros(1, dtype=torch.float64), [1, 1])
    cohort = server.round(torch.tensor([[0.0], [3.0]], dtype=torch.float64))
    assert bool(cohort.mask.dense().all())
    assert float(server.theta) == 1.5


def test_a_late_client_starts_its_own_history() -> None:
    server = Server(FPHL(tau=1.0), torch.zeros(1, dtype=torch.float64), [1, 1])
    up, down = torch.ones(1, 1, dtype=torch.float64), -torch.ones(1, 1, dtype=torch.float64)
    for _ in range(3):
        server.round(up, [0])
    assert server.round(down, [1]).mask.dense().tolist() == [[True]]
    assert server.round(down, [0]).mask.dense().tolist() == [[False]]


def test_histogram_counts_every_entry_in_its_bin() -> None:
    """2, 0, 3 entries agree with 0, 1, 2 of two rounds, and so on; a client without history is not counted."""
    tally, lengths = torch.tensor([[7, 0, 0, 0, 0], [2, 0, 3, 0, 0], [1, 5, 0, 4, 6]]), [0, 2, 4]
    expected = [0] * BINS
    for row, n in zip(tally.tolist(), lengths, strict=True):
        for a, count in enumerate(row[: n + 1] if n else []):
            expected[min(BINS - 1, int(Fraction(a, n) * BINS))] += count
    assert histogram(tally, torch.tensor(lengths)) == expected
    assert sum(expected) == 21
    assert exact(tally, torch.tensor(lengths)) == [[2, 0, 3], [1, 5, 0, 4, 6]]
    assert exact(torch.ones(1, LONGEST + 1, dtype=torch.int64), torch.tensor([LONGEST])) == []


@pytest.mark.parametrize("options", [PAPER, RELEASED], ids=["paper", "released"])
def test_the_histogram_of_a_round_typed_out(options: dict[str, object]) -> None:
    """Also when clients have been there different numbers of times."""
    server = Server(FPHL(**options), normal(9), [1, 2, 3], buffers=normal(2))
    for t, ids in enumerate([[0, 1, 2], [1], [0, 1], [0, 1, 2]]):
        before = server.state[0]
        updates, moves = ties((len(ids), 9), t), ties((len(ids), 2), 40 + t)
        found = server.round(updates, ids, buffer_updates=moves).notes["consistency"]
        past = before if options else server.state[0]
        expected = [0] * BINS
        for m, row in zip(ids, torch.cat([updates, moves], 1)[:, : past["ups"].shape[1]].tolist(), strict=True):
            for i, u in enumerate(row):
                up, n = u >= 0 if not options else u > 0, int(past["rounds"][m])
                agree = int(past["ups"][m, i]) if up else n - int(past["ups"][m, i])
                if n:
                    expected[min(BINS - 1, int(Fraction(agree, n) * BINS))] += 1
        assert found == expected


def test_counts_are_kept_for_parameters_only() -> None:
    """Running statistics are neither counted nor masked, unless asked for."""
    fed = fitted("fphl(tau=0.6)", 3, kind="batchnorm", participation=1.0)
    P, G = fed.model.n_params, fed.model.size
    assert fed.progress.server[0]["ups"].shape == (5, P)
    assert fed.progress.server[0]["ups"].dtype == torch.uint8
    released = fitted("fphl:released", 3, kind="batchnorm", participation=1.0)
    assert released.progress.server[0]["ups"].shape == (5, G)
    assert 0 < fed.records[-1]["kept"] < 1


@pytest.mark.parametrize(
    "options", [{"tau": 0.3}, {"tau": 1.0, "strict": True}, {"tau": 0.6, "history": "exclusive"}], ids=str
)
def test_counts_grow_beyond_a_byte(options: dict[str, object]) -> None:
    """Each round gives the same with counts in bytes as with 16 bits, until a client has taken part 255 times."""
    wide, narrow = (Server(FPHL(**options), torch.zeros(5, dtype=torch.float64), [1, 2]) for _ in range(2))
    wide.state[0]["ups"] = wide.state[0]["ups"].to(torch.int16)
    bias = torch.tensor([-3.0, -0.4, 0.0, 0.4, 3.0], dtype=torch.float64)
    for t in range(262):
        updates, ids = normal(2, 5, seed=t) + bias, [0, 1] if t % 2 else [0]
        a, b = (server.round(updates[: len(ids)], ids) for server in (wide, narrow))
        assert torch.equal(a.mask.dense(), b.mask.dense())
        assert a.notes == b.notes
        assert torch.equal(wide.state[0]["ups"], narrow.state[0]["ups"].to(torch.int16))
        assert narrow.state[0]["ups"].dtype == (torch.uint8 if t + 1 <= 254 else torch.int16)
    assert wide.state[0]["rounds"].tolist() == [262, 131]


def test_counts_on_disk_are_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a byte would overflow."""
    memory, disk = (Server(FPHL(tau=0.4), torch.zeros(6, dtype=torch.float64), [1, 2, 3]) for _ in range(2))
    monkeypatch.setattr(rows, "IN_MEMORY", 0)
    disk.state = [rule.server_state(replace(disk.setup, asked=1)) for rule in disk.rules]
    assert isinstance(disk.state[0]["ups"], rows.Rows)
    for t in range(260):
        ids = [0, 1, 2] if t % 50 == 0 else [1]
        one, other = (server.round(normal(len(ids), 6, seed=t) + 0.5, ids) for server in (memory, disk))
        assert torch.equal(one.mask.dense(), other.mask.dense())
        assert one.notes == other.notes
    assert torch.equal(memory.state[0]["ups"].long(), disk.state[0]["ups"][[0, 1, 2]].long())
    assert int(disk.state[0]["rounds"][1]) == 260


def test_more_rounds_than_can_be_counted() -> None:
    server = Server(FPHL(), torch.zeros(1, dtype=torch.float64), [1])
    server.state[0] = {"ups": torch.full((1, 1), 7, dtype=torch.int16), "rounds": torch.tensor([2**15 - 1]).short()}
    with pytest.raises(OverflowError, match=r"FPHL counts at most 32,767 rounds of a client\."):
        server.round(torch.ones(1, 1, dtype=torch.float64))


def test_a_round_changes_no_state_in_place() -> None:
    """Of all clients and of some: the state before is still the state before."""
    server = Server(FPHL(), torch.zeros(20, dtype=torch.float64), [1, 2, 3])
    for t, ids in enumerate([[0, 1, 2], [0, 2], [2, 0, 1]]):
        before, copy = server.state[0], {k: v.clone() for k, v in server.state[0].items()}
        server.round(normal(len(ids), 20, seed=t), ids)
        assert all(torch.equal(before[k], copy[k]) for k in copy)
        assert not torch.equal(server.state[0]["ups"], before["ups"])


def test_presets() -> None:
    assert eq.parse("fphl:released").rules == (FPHL(**RELEASED),)
    assert FPHL(tau=0.4) in eq.parse("fedheal:office").rules
    assert eq.parse("fphl").rules == (FPHL(tau=0.3, history="inclusive", strict=False, zero="up", mask_buffers=False),)
