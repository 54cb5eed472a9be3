"""One broken client costs itself: the round goes on without it, and the record says who and why."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.core.rule import Rule, State, Visit
from equipoise.engines import ENGINES, distributed
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.engines.stacked import Stacks
from equipoise.federation import guard
from helpers import UNEQUAL, clients, difference, fast_first, federation, fitted, identical, samples, told, watched

HERE = [name for name in ENGINES if name != distributed.NAME]  # engines that need no other processes from outside
BAD = 2  # the client that misbehaves
Engine = Callable[[Job], Iterator[Answer]]


def spoilt(change: Callable[[Answer], Answer], when: int | None = None, engine: Engine = sequential) -> Engine:
    """An engine in which the answer of one client is changed on its way (in round ``when``, or always)."""

    def broken(job: Job) -> Iterator[Answer]:
        for answer in engine(job):
            hit = job.ids[answer.rows[0]] == BAD and when in (None, job.t)
            yield change(answer) if hit else answer

    return broken


def with_value(value: float) -> Callable[[Answer], Answer]:
    def change(answer: Answer) -> Answer:
        trained = answer.trained.clone()
        trained[0, 5] = value
        return replace(answer, trained=trained)

    return change


def reported(change: Callable[[State], State], part: str = "reports") -> Callable[[Answer], Answer]:
    return lambda answer: replace(answer, **{part: [change(s) for s in getattr(answer, part)]})


nan, inf = float("nan"), float("inf")
WRONG = "the update has the wrong shape: expected [1, 73] of torch.float64, found "
BROKEN = {
    "nan": (with_value(nan), "the update holds NaN"),
    "inf": (with_value(inf), "the update holds infinity"),
    "minus inf": (with_value(-inf), "the update holds infinity"),
    "far": (with_value(1e30), "the update holds 1e+30, which no training gives (beyond 1.1e+12)"),
    "report far": (
        reported(lambda r: {k: v * 0 - 1e13 for k, v in r.items()}),
        "the report 'dc' holds -1e+13, which no training gives (beyond 1.1e+12)",
    ),
    "short": (lambda a: replace(a, trained=a.trained[:, :-1]), WRONG + "[1, 72] of torch.float64"),
    "float32": (lambda a: replace(a, trained=a.trained.float()), WRONG + "[1, 73] of torch.float32"),
    "two rows": (lambda a: replace(a, trained=a.trained.expand(2, -1)), WRONG + "[2, 73] of torch.float64"),
    "report nan": (reported(lambda r: {k: v * nan for k, v in r.items()}), "the report 'dc' holds NaN"),
    "report rows": (reported(lambda r: {k: v[:0] for k, v in r.items()}), "the report 'dc' has no row per client: expected 1, found shape [0, 73]"),
    "report scalar": (reported(lambda r: {k: v.sum() for k, v in r.items()}), "the report 'dc' has no row per client: expected 1, found shape []"),
    "state nan": (reported(lambda s: {k: v * nan for k, v in s.items()}, "states"), "the state 'c_i' holds NaN"),
    "state shape": (reported(lambda s: {k: v[:, :1] for k, v in s.items()}, "states"), "the client's state changed its shape"),
    "state dtype": (reported(lambda s: {k: v.float() for k, v in s.items()}, "states"), "the client's state changed its shape"),
    "state keys": (reported(lambda s: {**s, "more": s["c_i"]}, "states"), "the client's state changed its shape"),
    "raised": (lambda a: Answer.failed(a.rows[0], OSError("disk on fire")), "OSError: disk on fire"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_answer_is_not_used(what: str) -> None:
    change, reason = BROKEN[what]
    seen: list[tuple[Job, Answer]] = []
    names = ["ann", "bob", "cid", "dee", "eve"]
    fed = federation("scaffold", engine=spoilt(change, engine=watched(seen)), participation=1.0, names=names)
    assert fed.model.size == 73
    fed.fit(1, progress=False)
    record = fed.records[0]
    assert record["quarantined"] == [{"client": BAD, "name": "cid", "reason": reason, "key": ""}]
    assert record["ids"] == [0, 1, 3, 4]
    assert record["weights"] == pytest.approx([0.25] * 4)
    others = torch.cat([a.trained for job, a in seen if job.ids[a.rows[0]] != BAD])
    assert torch.allclose(fed.progress.vector, others.mean(0), rtol=0, atol=1e-14)
    state = fed.progress.clients[0]["c_i"]
    assert not state[BAD].any()
    assert all(bool(state[m].any()) for m in (0, 1, 3, 4))


@pytest.mark.parametrize("broken", [0, 1])
def test_two_rules_may_report_one_name(broken: int) -> None:
    reports = [{"loss": torch.full((1,), nan if k == broken else 1.0)} for k in range(2)]
    like = torch.zeros(3)
    found = guard.inspect(Answer((4,), torch.zeros(1, 3), reports, [{}, {}]), like, [{}, {}])
    assert found == {4: "the report 'loss' holds NaN"}


def test_it_takes_part_again_when_it_is_well() -> None:
    fed = federation("fedavg", engine=spoilt(with_value(nan), when=1), participation=1.0)
    fed.fit(3, progress=False)
    assert [r["ids"] for r in fed.records] == [[0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]]
    assert ["quarantined" in r for r in fed.records] == [False, True, False]


def test_one_row_of_a_stack_is_not_used() -> None:
    """The others of the same answer are."""

    def broken(job: Job) -> Iterator[Answer]:
        for answer in Stacks(1)(job):
            trained = answer.trained.clone()
            if BAD in answer.rows:
                trained[answer.rows.index(BAD), 0] = nan
            yield replace(answer, trained=trained)

    fed = federation("scaffold", engine=broken, participation=1.0)
    fed.fit(2, progress=False)
    assert [r["ids"] for r in fed.records] == [[0, 1, 3, 4]] * 2
    plain = fitted("scaffold", 2, engine=spoilt(with_value(nan)), participation=1.0)
    assert torch.allclose(fed.progress.vector, plain.progress.vector, rtol=0, atol=1e-12)


def test_answers_may_come_in_any_order() -> None:
    fed = fitted("scaffold+fedheal", 3, engine=lambda job: iter(list(sequential(job))[::-1]))
    assert identical(fed, fitted("scaffold+fedheal", 3))


def test_a_client_that_never_answers_is_named() -> None:
    def forgetful(job: Job) -> Iterator[Answer]:
        return (a for a in sequential(job) if job.ids[a.rows[0]] != BAD)

    fed = fitted("scaffold", 1, engine=forgetful, participation=1.0)
    assert fed.records[0]["ids"] == [0, 1, 3, 4]
    assert fed.records[0]["quarantined"] == [
        {"client": BAD, "name": "client-2", "reason": "the client did not answer", "key": ""}
    ]


# broken on the client's side, in both engines
@pytest.mark.parametrize("engine", fast_first(HERE, ("sequential", "stacked")))
@pytest.mark.parametrize("method", ["fedavg", "scaffold+fedheal", "afl", "fedproto"])
def test_data_that_is_not_finite(engine: str, method: str) -> None:
    """Its update is NaN; in a stack the others are computed beside it and stay what they are alone."""
    data = clients()
    x, y = data[BAD]
    spoilt_x = x.clone()
    spoilt_x[0, 0] = nan
    data[BAD] = (spoilt_x, y)
    fed = fitted(method, 2, engine=engine, data=data, participation=1.0)
    assert [r["ids"] for r in fed.records] == [[0, 1, 3, 4]] * 2
    assert fed.records[0]["quarantined"][0]["name"] == "client-2"
    assert "NaN" in fed.records[0]["quarantined"][0]["reason"]
    assert all(bool(t.isfinite().all()) for t in fed.progress.tensors().values() if t.is_floating_point())
    well = fitted(method, 2, engine=spoilt(with_value(nan)), participation=1.0)
    assert torch.allclose(fed.progress.vector, well.progress.vector, rtol=0, atol=1e-12)


@dataclasses.dataclass(frozen=True)
class Picky(Rule):
    """Raises where the client's loss is above a bound."""

    bound: float = 20.0

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        loss = visit.oracle.loss(visit.received)
        if bool((loss > self.bound).any()):
            raise ArithmeticError("the loss is out of bounds")
        return {"loss": loss}, visit.state


@pytest.mark.parametrize("engine", fast_first(HERE, ("sequential", "stacked")))
def test_a_rule_that_raises_for_one_client(engine: str) -> None:
    """A stack that raises is visited one by one, so that only the culprit is left out."""
    data = clients()
    x, y = data[BAD]
    data[BAD] = (1e3 * x, y)
    net = nn.Linear(6, 3, dtype=torch.float64)
    torch.nn.init.normal_(net.weight, generator=torch.Generator().manual_seed(0))
    settings = {"net": net, "data": data, "participation": 1.0, "solver": eq.SGD(1e-3)}
    fed = fitted(Picky(), 2, engine=engine, **settings)
    reason = "ArithmeticError: the loss is out of bounds"
    for record in fed.records:
        assert record["quarantined"] == [{"client": BAD, "name": "client-2", "reason": reason, "key": ""}]
        assert record["ids"] == [0, 1, 3, 4]
    assert difference(fed, fitted(Picky(), 2, **settings)) < 1e-12  # everybody else's answer is their own


class Torn(Dataset):
    """Cannot be read beyond its fourth sample, after it was looked at once."""

    def __init__(self) -> None:
        self.x, self.y = samples(9, 1)
        self.noise = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 9

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        if k > 3:
            raise OSError("cannot read the scan")
        return self.x[k] + torch.randn(6, generator=self.noise, dtype=torch.float64), int(self.y[k])


def test_data_that_raises() -> None:
    fed = fitted("fedavg", 2, data=[*clients((7, 9)), Torn(), *clients((5, 5))], participation=1.0)
    for record in fed.records:
        assert record["quarantined"] == [
            {"client": 2, "name": "client-2", "reason": "OSError: cannot read the scan", "key": ""}
        ]


# quorum
def failing(ids: set[int], when: int) -> Engine:
    """In round ``when`` the clients ``ids`` do not come through."""

    def engine(job: Job) -> Iterator[Answer]:
        for answer in sequential(job):
            m = job.ids[answer.rows[0]]
            yield Answer.failed(answer.rows[0], RuntimeError("gone")) if m in ids and job.t == when else answer

    return engine


@pytest.mark.parametrize(
    ("ids", "share", "enough"),
    [
        ({0}, 0.8, True),
        ({0, 1}, 0.8, False),
        ({0, 1}, 0.6, True),
        ({0, 1, 2}, 0.5, False),
        ({0, 1, 2, 3}, 0.0, True),
        ({0, 1, 2, 3, 4}, 0.0, False),
        ({0}, 1.0, False),
    ],
)
def test_quorum(ids: set[int], share: float, enough: bool) -> None:
    fed = federation("scaffold", engine=failing(ids, 1), participation=1.0, quorum=share)
    if enough:
        fed.fit(2, progress=False)
        assert len(fed.records[1]["ids"]) == 5 - len(ids)
    else:
        with pytest.raises(
            eq.QuorumError, match=rf"{5 - len(ids)} of 5 clients answered well, and the quorum is {share:.0%}"
        ):
            fed.fit(2, progress=False)
        assert fed.progress.t == 1
        assert len(fed.records) == 1


def test_the_error_names_clients_and_reasons() -> None:
    fed = federation("fedavg", sizes=UNEQUAL + UNEQUAL, engine=failing(set(range(8)), 0), participation=1.0)
    with pytest.raises(
        eq.QuorumError,
        match=r"2 of 10 .*50%\. 8 of 10 clients \(client-0, client-1, client-2, \.\.\.\): RuntimeError: gone\.$",
    ):
        fed.fit(1, progress=False)


@pytest.mark.parametrize("method", ["scaffold+fedheal", "moon", "ditto"])
def test_below_quorum_the_last_round_is_kept_and_can_be_continued(method: str, tmp_path: Path) -> None:
    never = fitted(method, 4, participation=1.0)
    fed = federation(method, engine=failing({1, 2, 3}, 2), participation=1.0)
    with pytest.raises(eq.QuorumError):
        fed.fit(4, directory=tmp_path, progress=False)
    again = federation(method, participation=1.0)
    assert again.resume(tmp_path) == 2
    assert identical(again, fed)
    again.fit(2, directory=tmp_path, progress=False)
    assert identical(again, never)
    assert told(again) == told(never)


# the length of updates
def longer(times: float) -> Callable[[Answer], Answer]:
    """The update of a client that does not start at zero, so many times as long."""
    return lambda answer: replace(answer, trained=START + (answer.trained - START) * times)


START = federation("fedavg").trial.setup.initial


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "afl"])
def test_an_update_that_is_too_long_does_not_count(method: str) -> None:
    given: dict[str, object] = {"participation": 1.0, "norm_limit": 20.0}
    fed, without = federation(method, **given), federation(method, **given)
    fed.trial = replace(fed.trial, engine=spoilt(longer(1000), when=0))
    without.trial = replace(without.trial, engine=spoilt(with_value(nan), when=0))
    for one in (fed, without):
        one.fit(1, progress=False)
    (found,) = fed.records[0]["quarantined"]
    assert found["client"] == BAD
    assert torch.equal(fed.progress.vector, without.progress.vector)
    assert re.fullmatch(
        r"the update is \S+ times as long as the median of the round, and norm_limit is 20", found["reason"]
    )


def test_lengths_far_from_the_median() -> None:
    norms = {0: 1.0, 3: 2.0, 4: 250.0, 5: 3.0}
    assert guard.far(norms, 99.0) == {
        4: "the update is 100 times as long as the median of the round, and norm_limit is 99"
    }
    assert guard.far(norms, 100.0) == {}
    assert guard.far({0: 1.0, 1: 1e9}, 2.0) == {}  # which of two is wrong, nobody knows
    assert guard.far({0: 0.0, 1: 0.0, 2: 1.0}, 2.0) == {}


def test_where_all_have_grown_the_longest_is_asked_first() -> None:
    lengths = {0: 5.0, 1: 6.0, 2: 7.0, 3: 300.0}
    past = {0: [1.0, 1.0, 1.0], 1: [1.0, 1.5, 1.0], 2: [nan, 1.0, 1.0], 3: [60.0, 60.0, 60.0]}
    assert guard.grown(lengths, past) == 5.0  # of the last but one, two past lengths are too few
    assert guard.far(lengths, 100.0) == {}
    assert guard.far(lengths, 100.0, 5.0) == {
        3: "the update is 46.2 times as long as the median of the round, and norm_limit is 100, while all have grown 5-fold"
    }
    assert guard.grown({row: x / 100 for row, x in lengths.items()}, past) == 1.0
    assert guard.far({0: 1.0, 1: 1.0, 2: 10.0}, 100.0, 1e9) == {}  # nobody is left out for the growth of others alone
    assert guard.far({0: 1.0, 1: 1.0, 2: 3.0}, 2.0, 1e9).keys() == {2}


def test_lengths_far_from_a_clients_own() -> None:
    own = "the update is 10 times as long as the median of its own past ones, and norm_limit is 9"
    past = {0: [nan, 1.0, 1.0, 7.0], 1: [nan, nan, 1.0, 2.0], 2: [0.0, 0.0, 0.0, 1.0]}
    assert guard.far_from_own({0: 10.0, 1: 1e9}, 9.0, past) == {0: own}  # two past lengths are too few
    assert guard.far_from_own({2: 1e9}, 9.0, past) == {}  # as with a learning rate of 0
    assert guard.far_from_own({0: 9.0}, 9.0, past) == {}
    assert guard.far_from_own({0: 27.0}, 9.0, {0: [1.0, 3.0, 9.0]}) == {}  # who rises slowly is not found
    assert guard.far_from_own({0: 10.0, 5: 1.0, 6: 1.0}, 9.0, past) == {}  # a round of three has a median of its own


@pytest.mark.parametrize("engine", [sequential, Stacks(1)])
def test_of_two_clients_each_is_held_to_its_own_past(engine: Engine, tmp_path: Path) -> None:
    """Where a median of the round says nothing; what a client sent before is remembered over a stop, and a refused length is not."""

    def late(when: set[int]) -> Engine:
        def liar(job: Job) -> Iterator[Answer]:
            for answer in engine(job):
                trained = answer.trained.clone()
                for k, row in enumerate(answer.rows):
                    if job.t in when and job.ids[row] == 1:
                        trained[k] = job.received[row] + 1e6 * (trained[k] - job.received[row])
                yield replace(answer, trained=trained)

        return liar

    def make(when: set[int], **given: object) -> eq.Federation:
        return federation("scaffold", sizes=(8, 5), engine=late(when), participation=1.0, **given)

    fed = make(set(), norm_limit=20.0)
    fed.fit(3, directory=tmp_path, progress=False)
    again = make({3, 4}, norm_limit=20.0)
    again.resume(tmp_path)
    again.fit(4, directory=tmp_path, progress=False)
    assert [record["ids"] for record in again.records] == [[0, 1]] * 3 + [[0]] * 2 + [[0, 1]] * 2
    (found,) = again.records[4]["quarantined"]
    assert re.fullmatch(
        r"the update is \S+ times as long as the median of its own past ones, and norm_limit is 20", found["reason"]
    )
    off = make({3})
    off.fit(4, progress=False)
    assert off.progress.norms is None
    assert off.records[3]["ids"] == [0, 1]
