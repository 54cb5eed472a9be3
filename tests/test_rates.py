"""Learning rates over rounds and by layers: against PyTorch's schedulers, and against loops of the equations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import equipoise as eq
from equipoise.core import rates
from equipoise.core.rates import check_rounds, rate, read, text
from helpers import BatchNormNet, clients, federation, in_one, others_slow

T = 12


def theirs(make: object, lr: float) -> list[float]:
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = make(optimiser)  # type: ignore[operator]
    found = []
    for _ in range(T):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return found


def warm(optimiser: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    w = 4
    first = lr_scheduler.LinearLR(optimiser, start_factor=1 / w, total_iters=w - 1)
    return lr_scheduler.SequentialLR(optimiser, [first, lr_scheduler.CosineAnnealingLR(optimiser, T - w, 0.01)], [w])


@pytest.mark.filterwarnings("ignore")  # of PyTorch's scheduler about its own call
@pytest.mark.parametrize(
    ("given", "make"),
    [
        ("cosine(0.3)", lambda o: lr_scheduler.CosineAnnealingLR(o, T)),
        ("cosine(0.3, warmup=4, final=0.01)", warm),
        ("step(0.3, every=5, gamma=0.5)", lambda o: lr_scheduler.StepLR(o, 5, 0.5)),
        ("exponential(0.3, gamma=0.8)", lambda o: lr_scheduler.ExponentialLR(o, 0.8)),
    ],
)
def test_schedules_are_those_of_pytorch(given: str, make: object) -> None:
    schedule = read(given)
    assert [rates.at(schedule, t, T) for t in range(T)] == pytest.approx(theirs(make, 0.3), abs=1e-12)
    assert text(schedule) == given
    assert read(text(schedule)) == schedule


@pytest.mark.parametrize("given", [0.0, -0.1, float("inf"), float("nan")])
def test_a_rate_is_positive_and_finite(given: float) -> None:
    with pytest.raises(ValueError, match=r"lr must be .*> 0 and finite.*found"):
        rate(given)


def test_schedules_have_the_defaults_of_pytorch_beside_a_rate_of_a_tenth() -> None:
    kinds = rates.SCHEDULES
    assert {name: vars(kind()) for name, kind in kinds.items()} == {
        "cosine": {"lr": 0.1, "rounds": None, "warmup": 0, "final": 0.0},
        "step": {"lr": 0.1, "every": 10, "gamma": 0.1},
        "exponential": {"lr": 0.1, "gamma": 0.95},
    }


@pytest.mark.parametrize(
    "given", ["0.01", "layers(0.01, head=step(0.1, every=3), a.weight=0)", "cosine(1e-05, rounds=7)"]
)
def test_text_reads_back(given: str) -> None:
    assert read(text(read(given))) == read(given)


@in_one(
    ("given", "expected"),
    [
        ("fast", "lr must be a number > 0, or a schedule such as cosine(0.1, warmup=5); found 'fast'"),
        ("-1", "lr must be a number > 0"),
        ("nan", "lr must be a number > 0"),
        ("cosin(0.1)", "Unknown schedule 'cosin'. Did you mean 'cosine'?"),
        ("cosine(0.1", "close the bracket, cosine(0.1)"),
        ("cosine()", "there is nothing between two commas or brackets"),
        ("cosine(warmup=2)", "say from which rate it starts, cosine(0.1)"),
        ("cosine(0.1, warm=2)", "Unknown parameter of cosine 'warm'. Did you mean 'warmup'?"),
        ("cosine(0.1, 0.2)", "Give each once"),
        ("step(0.1, gamma=2)", "step: gamma must be in (0, 1]; found 2"),
        ("step(0.1, every=1.5)", "step: every must be a whole number >= 1; found 1.5"),
        ("cosine(x)", "cosine: lr must be a number > 0 and finite; found 'x'"),
        ("layers(head=0.1)", "give the rate of all other parameters first"),
        ("layers(0, head=0)", "all rates are 0"),
        ("layers(0.1, head=0.2, head=0.3)", "give the rate of each part once; found all others, head, head"),
        ("layers(0.1, head=layers(0.1))", "layers cannot stand inside layers"),
    ],
)
def test_bad_text(given: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        read(given)


@in_one(
    ("lr", "expected"),
    [
        ("cosine(0.1, rounds=10)", "lr cosine(0.1, rounds=10): the schedule ends after 10 rounds, and the run has 12"),
        ("cosine(0.1, warmup=12)", "lr cosine(0.1, warmup=12): a warm-up of 12 rounds leaves none of 12"),
        (lambda t: 0.1 - 0.01 * t, "the rate must be > 0 and finite in every round; in round 10 it is"),
        (lambda t: float("nan"), "the rate must be > 0 and finite in every round; in round 0 it is nan"),
    ],
)  # fmt: skip
def test_schedules_that_do_not_fit_the_run(lr: object, expected: str) -> None:
    fed = federation(solver=eq.SGD(lr=lr))
    with pytest.raises(ValueError, match=re.escape(expected)):
        fed.fit(T, progress=False)
    assert not fed.records
    check_rounds(rate("cosine(0.1, warmup=11)"), 12)


def test_the_rate_of_every_round_is_used_and_recorded() -> None:
    """Rounds with one rate after the other are those of a run with a schedule."""
    scheduled = federation(solver=eq.SGD("exponential(0.1, gamma=0.5)", 0.9))
    scheduled.fit(3, progress=False)
    assert [record["lr"] for record in scheduled.records] == [0.1, 0.05, 0.025]
    apart = federation(solver=eq.SGD(0.1, 0.9))
    for t in range(3):
        now = apart.progress
        apart = federation(solver=eq.SGD(0.1 * 0.5**t, 0.9))
        apart.progress = now
        apart.fit(1, progress=False)
    assert torch.equal(scheduled.progress.vector, apart.progress.vector)
    assert "lr" not in apart.records[0]


@pytest.mark.parametrize("solver", [eq.SGD, eq.Adam])
def test_rates_by_layers_are_those_of_parameter_groups(solver: type) -> None:
    """One client and one round are local training: PyTorch's optimiser with parameter groups."""
    data = clients((16,))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = data[0]
    net[0] = nn.Linear(x.shape[1], 5).double()
    lr = {"": 0.05, "head": 0.2, "2": "step(0.1)"}
    fed = eq.Federation(net, data, "fedavg", solver(lr=lr, weight_decay=1e-3), batch_size=16, seed=1)
    fed.fit(2, progress=False)
    groups = [
        {"params": net[0].parameters(), "lr": 0.05},
        {"params": net[2].parameters(), "lr": 0.1},
        {"params": net[4].parameters(), "lr": 0.2},
    ]
    make = torch.optim.SGD if solver is eq.SGD else torch.optim.Adam
    for _ in range(2):
        optimiser = make(groups, weight_decay=1e-3)  # a visit begins anew
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    for name, value in fed.state_dict().items():
        assert torch.allclose(value, net.state_dict()[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize(
    "method", others_slow(["fedavg", "scaffold", "fedprox(mu=0.1)+fedheal", "fednova", "sam"], fast=(1, 3))
)
@pytest.mark.parametrize(
    "lr", ["cosine(0.1, warmup=1)", "layers(0.05, head=0.1)", "layers(exponential(0.1), a=0, norm=0)"]
)
def test_engines_agree(method: str, lr: str) -> None:
    vectors = []
    for engine in ("sequential", "stacked", "workers"):
        fed = federation(method, kind="batchnorm", solver=eq.SGD(lr, 0.9, 1e-4), engine=engine)
        fed.fit(3, progress=False)
        vectors.append(torch.cat([v.double().flatten() for v in fed.state_dict().values()]))
    assert torch.allclose(vectors[1], vectors[0], rtol=0, atol=1e-9)
    assert torch.allclose(vectors[2], vectors[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_what_is_frozen_stays(engine: str) -> None:
    net = BatchNormNet().double()
    net.norm.running_mean.fill_(0.3)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    fed = eq.Federation(
        net, clients(), "fedavg", eq.SGD({"": 0.1, "a": 0, "norm": 0}, 0.9, 0.1), batch_size=8, engine=engine
    )
    fed.fit(2, progress=False)
    after = fed.state_dict()
    changed = {k for k in before if not torch.equal(before[k], after[k].to(before[k].dtype))}
    assert changed == {"head.weight", "head.bias"}
    x = clients()[0][0][:5]
    hidden = torch.tanh(net.eval().norm(net.a(x)))  # the statistics it came with, in training too
    assert torch.allclose(fed.logits(x), hidden @ after["head.weight"].T + after["head.bias"], atol=1e-12)


def test_scaffold_by_layers_typed_out() -> None:
    """Option II divides each parameter's move by the distance that its own rate and the momentum give."""
    fed = federation(
        "scaffold", solver=eq.SGD({"": 0.02, "head": 0.1}, 0.5), sizes=(8,), participation=1.0, epochs=3, batch_size=8
    )
    start = fed.progress.vector.clone()
    fed.fit(1, progress=False)
    P, K, rho = fed.model.n_params, 3, 0.5
    unit = (K - rho * (1 - rho**K) / (1 - rho)) / (1 - rho)
    moved = (start - fed.progress.vector)[:P]
    lr = 0.02 + 0.08 * fed.model.head[:P].double()
    assert torch.allclose(fed.progress.clients[0]["c_i"][0], moved / (lr * unit), rtol=0, atol=1e-12)


def test_qffl_takes_the_rate_of_the_round() -> None:
    fed = federation("qffl:full", solver=eq.SGD("step(0.1, every=1, gamma=0.5)"))
    for expected in (10.0, 20.0, 40.0):
        fed.fit(1, progress=False)
        assert float(fed.progress.server[0]["L"]) == pytest.approx(expected)
    with pytest.raises(TypeError, match=r"Set qffl\.lipschitz"):
        federation("qffl:full", solver=eq.SGD({"": 0.1, "head": 0.2}))


def test_a_prefix_that_is_in_no_name() -> None:
    with pytest.raises(ValueError, match=r"no parameter of the network begins with 'hed'\. Did you mean 'head'\?"):
        federation(solver=eq.SGD({"": 0.1, "hed": 0.2}))


def test_another_schedule_is_another_run(tmp_path: Path) -> None:
    fed = federation(solver=eq.SGD(lr=lambda t: 0.1 / (1 + t)))
    fed.fit(2, directory=tmp_path, progress=False)
    same = federation(solver=eq.SGD(lr=lambda t: 0.1 / (t + 1)))
    assert same.resume(tmp_path) == 0
    with pytest.raises(eq.CheckpointError, match="solver"):
        federation(solver=eq.SGD(lr=lambda t: 0.2 / (1 + t))).resume(tmp_path)


def test_a_schedule_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = federation("scaffold", solver=eq.SGD("cosine(0.1, warmup=1)"))
    whole.fit(4, progress=False)

    def stop(record: dict) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    first = federation("scaffold", solver=eq.SGD("cosine(0.1, warmup=1)"))
    with pytest.raises(KeyboardInterrupt):
        first.fit(4, directory=tmp_path, progress=False, on_round=stop)
    again = federation("scaffold", solver=eq.SGD("cosine(0.1, warmup=1)"))
    again.fit(again.resume(tmp_path), progress=False)
    assert torch.equal(again.progress.vector, whole.progress.vector)


@pytest.mark.parametrize("frozen", [{"": 0.05, "0": 0}, {"": 0.05}])
def test_a_group_norm_whose_input_has_no_gradient(frozen: dict[str, float]) -> None:
    """With channels innermost, PyTorch crashes there."""
    first = nn.Conv2d(3, 4, 1) if len(frozen) > 1 else nn.Identity()
    norm = nn.GroupNorm(1, 4 if len(frozen) > 1 else 3)
    net = nn.Sequential(first, norm, nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2))
    data = [(torch.randn(6, 3, 5, 5), torch.tensor([0, 1] * 3)) for _ in range(2)]
    net(data[0][0])
    fed = eq.Federation(net, data, solver=eq.SGD(frozen), engine="sequential")
    before = fed.state_dict()
    fed.fit(1, progress=False)
    moved = {name for name, x in fed.state_dict().items() if not torch.equal(x, before[name])}
    assert moved == {name for name in before if not name.startswith("0.")}
    assert not fed.model.channels_last
