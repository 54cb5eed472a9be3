"""Updates of which only the mean counts are added as they come, and give the round that a matrix of them gives."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core import client_rows
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation import round as rounds
from equipoise.federation.forecast import ForecastError

N = 12


def network(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(6, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).double()


def data(spoilt: int | None = None) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    sizes = [8 + 3 * (k % 5) for k in range(N)]
    x = [torch.randn(n, 6, generator=draw, dtype=torch.float64) for n in sizes]
    if spoilt is not None:
        x[spoilt][0] = torch.inf
    return [(own, torch.randint(0, 3, (len(own),), generator=draw)) for own in x]


def federation(
    method: str = "fedavg", *, norm: bool = False, spoilt: int | None = None, **options: object
) -> eq.Federation:
    solver = eq.SGD(lr=0.1, momentum=0.9)
    return eq.Federation(network(norm=norm), data(spoilt), method, solver, batch_size=4, **options)  # type: ignore[arg-type]


def trained(fed: eq.Federation) -> Tensor:
    fed.fit(3, progress=False)
    return fed.progress.vector


def engine(change: object = None, *, backwards: bool = False) -> object:
    """The clients one by one, with what each sends changed, in one order or the other."""

    def answers(job: Job) -> Iterator[Answer]:
        every = [*sequential(job)]
        for answer in every[::-1] if backwards else every:
            yield answer if change is None else change(answer)  # type: ignore[operator]

    return answers


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MATRIX", 0)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each round's matrix has."""
    asked: list[int] = []
    real = client_rows.matrix
    monkeypatch.setattr(client_rows, "matrix", lambda n, row: asked.append(n) or real(n, row))
    return asked


METHODS = ("fedavg", "uniform", "population", "fedprox", "fedavgm", "fedadam", "feddyn")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["sequential", "workers", "stacked"])
@pytest.mark.parametrize("norm", [False, True])
def test_the_mean_is_that_of_the_matrix(
    method: str, how: str, norm: bool, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"fedavg(weights={method})" if method in ("uniform", "population") else method
    apart = trained(federation(text, norm=norm, participation=0.6, engine=how))
    monkeypatch.setattr(rounds, "MATRIX", 0)
    together = trained(federation(text, norm=norm, participation=0.6, engine=how))
    assert rows[:3] == [7, 7, 7]
    assert rows[3:] == ([0, 0, 0] if rounds.only_mean(federation(text).trial, N) else [7] * 3)
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("added")
def test_the_bits_depend_on_no_order() -> None:
    one = trained(federation(engine=engine()))
    assert torch.equal(one, trained(federation(engine=engine(backwards=True))))
    assert torch.equal(one, trained(federation(engine="workers", workers=2)))
    assert torch.equal(one, trained(federation(engine="workers", workers=1)))


@pytest.mark.parametrize("method", METHODS[:1] + METHODS[3:6])
def test_some_methods_need_no_more(method: str, added: None) -> None:
    assert rounds.only_mean(federation(method).trial, N)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("median", {}),
        ("fedheal", {}),
        ("qffl", {}),
        ("scaffold", {}),
        ("fedbn", {"norm": True}),
        ("fedavg(weights=[1,2,3,4,5,6,7,8,9,10,11,12])", {}),
        ("fedavg", {"norm_limit": 5.0}),
        ("fedavg", {"attack": "sign-flip", "attackers": 0.2}),
    ],
)
def test_whoever_looks_at_single_updates_gets_them(
    method: str, options: dict[str, object], rows: list[int], added: None
) -> None:
    fed = federation(method, **options)  # type: ignore[arg-type]
    fed.fit(1, progress=False)
    assert rows == [N]
    assert not rounds.only_mean(fed.trial, N)


def negative(answer: Answer) -> Answer:
    """Client 4 sends a running variance that nothing has."""
    if answer.rows != (4,):
        return answer
    model = eq.Model(network(norm=True))
    spoilt = answer.trained.clone()
    spoilt[:, model.variances] = -1
    return replace(answer, trained=spoilt)


def failing(answer: Answer) -> Answer:
    return answer.failed(4, TimeoutError("no answer")) if answer.rows == (4,) else answer


@pytest.mark.parametrize("fault", ["infinite data", "a negative variance", "no answer"])
@pytest.mark.parametrize("how", ["one by one", "stacked"])
def test_who_is_left_out_does_not_count(fault: str, how: str, rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "stacked" and fault != "infinite data":
        pytest.skip("the engine cannot be made to send this")
    change = {"a negative variance": negative, "no answer": failing}.get(fault)
    options = {"norm": True, "spoilt": 4 if fault == "infinite data" else None}
    one = federation(engine=how if how == "stacked" else engine(change), **options)  # type: ignore[arg-type]
    apart = trained(one)
    monkeypatch.setattr(rounds, "MATRIX", 0)
    other = federation(engine=how if how == "stacked" else engine(change), **options)  # type: ignore[arg-type]
    together = trained(other)
    assert rows == [N] * 3 + [0] * 3
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)
    for before, after in zip(one.records, other.records, strict=True):
        assert before["quarantined"] == after["quarantined"]
        assert [q["client"] for q in after["quarantined"]] == [4]
        assert before["ids"] == after["ids"]
        assert before["weights"] == after["weights"]


def test_updates_that_are_added_need_no_memory(added: None, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    from equipoise.federation import forecast

    monkeypatch.setattr(client_rows, "on_a_disk", lambda device: False)
    fed, other = federation(), federation("median")
    row = fed.trial.model.initial.nbytes
    monkeypatch.setenv("EQUIPOISE_MEMORY", str(8 * row))
    assert forecast.check_memory(fed.trial.model, 1, private=False) == 0
    eq.forecast(fed, 1, progress=False)
    with pytest.raises(ForecastError, match="needs at least"):
        eq.forecast(other, 1, progress=False)


def talking(answer: Answer) -> Answer:
    """Client 4 reports what no rule reads."""
    more = [{**report, "said": torch.ones(1, 2)} for report in answer.reports]
    return replace(answer, reports=more) if answer.rows == (4,) else answer


def test_reports_that_no_rule_reads_leave_nobody_out(added: None) -> None:
    fed = federation(engine=engine(talking))
    assert torch.equal(trained(fed), trained(federation(engine=engine())))
    assert all("quarantined" not in record for record in fed.records)
