"""Networks that remember something from step to step: it is part of every client's model, or the network is refused by name."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import equipoise as eq
from equipoise.core.copies import NetworkError, Watch, copied, differences, same
from equipoise.core.draws import schedule
from equipoise.core.model import UNIT, Bound, Model
from equipoise.core.observation import observe
from equipoise.flower.app import check_site
from equipoise.flower.site.site import harmless
from helpers import (
    N_CLASSES,
    N_INPUTS,
    clients,
    consortium,
    difference,
    federation,
    fitted,
    identical,
    in_one,
    normal,
    others_slow,
    samples,
)
from stateful import ACCEPTED, REFUSED, Base, Counting, Warm, stateful

X = normal(4, N_INPUTS)


def fit(name: str, engine: str = "sequential", **more: Any) -> eq.Federation:
    return fitted("fedavg", 2, net=stateful(name), engine=engine, tests={"all": samples(30, 9)}, **more)


# accepted: the same bits everywhere
@pytest.mark.parametrize("name", others_slow(ACCEPTED, fast=(0, 2, 4)))
def test_every_engine_gives_the_same(name: str) -> None:
    one = fit(name)
    assert all(
        identical(one, fit(name, engine, workers=n))
        for engine, n in (("sequential", 2), ("workers", 1), ("workers", 3))
    )
    assert difference(one, fit(name, "auto")) < 1e-12
    sites = consortium(net=stateful(name), tests={"all": samples(30, 9)})
    sites.fit(2, progress=False)
    assert torch.equal(one.progress.vector, sites.progress.vector)
    assert one.records[-1]["groups"] == sites.records[-1]["groups"]


@pytest.mark.slow
def test_worker_processes_give_the_same() -> None:
    one, other = fit("Average"), fit("Average", "processes", workers=1)
    assert identical(one, other)


@pytest.mark.parametrize("name", others_slow(["Warm", "Replacing", "Average", "Shown"], fast=(0, 2)))
def test_a_stack_gives_the_same(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also where a batch that is padded would have an influence on what is kept."""
    assert difference(fit(name), fit(name, "stacked", workers=2)) < 1e-12
    assert "one by one" not in caplog.text


@pytest.mark.parametrize("name", ["Cumulative", "Normed"])
def test_what_cannot_be_stacked_is_not(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert fit(name, "auto").engine_choice.engine == "workers"
    assert "one by one" not in caplog.text
    assert fit("Warm", "auto").engine_choice.engine == "stacked"


@pytest.mark.parametrize("name", ["Warm", "Replacing", "Average", "Cumulative"])
def test_it_is_averaging_of_state_dictionaries(name: str) -> None:
    """By hand: every tensor of the state is the mean of the clients', by samples; whole numbers are rounded where the network runs."""
    sizes, lr, rounds = (8, 24), 0.1, 3
    data = clients(sizes)
    fed = federation(net=stateful(name), data=data, solver=eq.SGD(lr), participation=1.0, epochs=1, batch_size=8)
    fed.fit(rounds, progress=False)
    net = stateful(name)
    state = {n: t.double() for n, t in net.state_dict().items()}
    for t in range(rounds):
        drawn = schedule(3, t, [0, 1], sizes, 1, 8, drop_single=False)
        trained = []
        for m, (x, y) in enumerate(data):
            own = copy.deepcopy(net).train()
            own.load_state_dict(
                {
                    n: v.round().to(own.state_dict()[n].dtype) if not own.state_dict()[n].is_floating_point() else v
                    for n, v in state.items()
                }
            )
            for rows in drawn.of(m).index:
                if (rows >= 0).any():
                    own.zero_grad()
                    functional.cross_entropy(own(x[rows[rows >= 0]]), y[rows[rows >= 0]]).backward()
                    with torch.no_grad():
                        for p in own.parameters():
                            p -= lr * p.grad
            trained.append({n: v.detach().double() for n, v in own.state_dict().items()})
        state = {n: (8 * trained[0][n] + 24 * trained[1][n]) / 32 for n in state}
    found = fed.state_dict()
    for n, v in state.items():
        expected = v if found[n].is_floating_point() else v.round()
        assert torch.allclose(found[n].double(), expected, rtol=0, atol=1e-12), n
    assert (
        name != "Warm" or int(found["steps"]) == 6
    )  # 2.5 a round on average, of which the nearest even number goes on
    loaded = stateful(name)
    loaded.load_state_dict(found)
    assert torch.allclose(loaded.eval()(X), fed.network()(X))


def test_a_killed_run_goes_on_with_its_counters(tmp_path: Path) -> None:
    whole = federation(net=stateful("Average"))
    whole.fit(3, directory=tmp_path / "whole", progress=False)
    part = federation(net=stateful("Average"))
    part.fit(2, directory=tmp_path / "part", progress=False)
    again = federation(net=stateful("Average"))
    again.resume(tmp_path / "part")
    again.fit(1, progress=False)
    assert identical(whole, again)


def test_what_is_private_keeps_its_counter() -> None:
    fed = fitted("fedbn", 2, net=stateful("Cumulative"), participation=1.0)
    counts = [int(fed.state_dict(client=m)["norm.num_batches_tracked"]) for m in range(5)]
    assert counts == [4 * (-(-n // 8) - (n % 8 == 1)) for n in (7, 13, 9, 4, 18)]
    assert fitted("fedavg", 2, net=stateful("Cumulative"), participation=1.0).state_dict()[
        "norm.num_batches_tracked"
    ] in range(4, 13)


def test_batch_norm_with_a_momentum_is_as_it_was() -> None:
    """Its counter, on which nothing depends, is not part of the model."""
    fed = federation(kind="batchnorm")
    assert fed.model.buffer_names == ("norm.running_mean", "norm.running_var")
    assert fed.model.whole == ()


def test_evaluation_changes_nothing() -> None:
    fed = fit("Average")
    before = fed.progress.vector.clone()
    again = [fed.evaluate(*samples(30, 9)) for _ in range(3)]
    assert again[0] == again[1] == again[2]
    assert torch.equal(before, fed.progress.vector)


def test_counters_weigh_nothing_in_lengths_and_distances() -> None:
    """Or a client with more batches would be an outlier for Krum, and clipping would take all but the counter away."""
    fed = fit("Warm")
    assert float(fed.progress.vector[-1]) == pytest.approx(int(fed.state_dict()["steps"]) * UNIT, rel=0.1)
    for method in ("krum", "geometric-median", "centred-clipping"):
        assert int(fit_with(method, "Warm").state_dict()["steps"]) > 0


@pytest.mark.parametrize("name", others_slow(["Warm", "Average"], fast=(1,)))
def test_a_masked_sum_has_the_counters(name: str) -> None:
    """Its numbers are of a fixed point, and must not round a counter away."""
    sites = consortium(net=stateful(name), participation=1.0, secure=True)
    sites.fit(2, progress=False)
    expected = fitted("fedavg", 2, net=stateful(name), participation=1.0).state_dict()
    found = sites.state_dict()
    assert all(torch.equal(found[n], x) for n, x in expected.items() if not x.is_floating_point())
    assert any(int(x.sum()) for x in expected.values() if not x.is_floating_point())


def fit_with(method: str, name: str) -> eq.Federation:
    return fitted(method, 2, net=stateful(name), participation=1.0)


# refused
@pytest.mark.parametrize("change", REFUSED)
def test_what_no_model_holds_is_refused(change: str) -> None:
    message = f"The network keeps what is not part of a client's model: .*{REFUSED[change]}"
    with pytest.raises(NetworkError, match=f"^{message}") as found:
        federation(net=Counting(change).double())
    assert "\n" not in str(found.value)


def test_a_site_refuses_it_too() -> None:
    """In one process with all words; between machines with the names only, which the server's network has as well."""
    with pytest.raises(NetworkError, match=r"attribute 'steps'.*register_buffer"):
        consortium(net=Counting("number").double())
    task = eq.flower.Task(Counting("number").double(), samples(9, 0))
    client = eq.flower.make_client_app(lambda node, run: task)
    well, words = check_site(client, "north", {"site": "north"}, {})["data"]
    assert not well
    assert "attribute 'steps' (changed in training)" in words
    with pytest.raises(NetworkError) as found:
        federation(net=Counting("number").double())
    assert harmless(found.value) == "NetworkError: what it keeps: attribute 'steps'"
    assert harmless(ValueError("a secret")) == "ValueError"


def test_all_faults_are_named_at_once() -> None:
    class Two(Base):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.of = 0, [0]

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            self.of[0] += 1
            return self.head(self.hidden(x))

    with pytest.raises(NetworkError, match=r"attribute 'n' .*, attribute 'of' .*torch.zeros.*Keep it outside"):
        federation(net=Two().double())


def test_the_advice_works_as_printed() -> None:
    """The statement in the message, in the place of the attribute."""

    class Counted(Base):
        def __init__(self, statement: str = "self.steps = 0") -> None:
            super().__init__()
            exec(statement)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.steps += 1
            return self.head(self.hidden(x)) * min(1, self.steps / 20)

    with pytest.raises(NetworkError) as found:
        federation(net=Counted().double())
    statement = str(found.value).split("as running statistics are: ")[1].removesuffix(".")
    fed = fitted("fedavg", 2, net=Counted(statement).double())
    assert int(fed.state_dict()["steps"]) > 0


class Late(Base):
    """Changes what no model holds in its fifth step, when the look at it is over."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change, self.n = change, 0
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("other", torch.zeros((), dtype=torch.long))
        self.past: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            if int(self.steps) == 5:
                self.apply_change()
        return self.head(self.hidden(x))

    def apply_change(self) -> None:
        if self.change == "number":
            self.n += 1
        elif self.change == "list":
            self.past.append(1)
        elif self.change == "whole":
            self.other += 1
        else:
            self.other = self.other + 1


@pytest.mark.parametrize("engine", ["sequential", "workers", "stacked", "auto"])
@pytest.mark.parametrize(
    ("change", "what"),
    [("number", "attribute 'n'"), ("list", "attribute 'past'"), ("whole", "buffer 'other'"), ("put", "buffer 'other'")],
)
def test_what_changes_later_is_named_when_it_does(change: str, what: str, engine: str) -> None:
    """No client is trained with what another left, and nobody goes on as if nothing were."""
    fed = federation(net=Late(change).double(), engine=engine, participation=1.0)
    fed.fit(1, progress=False)  # the largest client takes six steps
    assert [q["client"] for q in fed.records[0]["quarantined"]] == [4]
    assert what in fed.records[0]["quarantined"][0]["reason"]
    assert "register_buffer" in fed.records[0]["quarantined"][0]["reason"]


def test_counters_that_are_not_exact_are_refused() -> None:
    def begun(n: int) -> nn.Module:
        net = Warm()
        net.steps += n
        return net

    net: Any
    for net, message in (
        (
            begun(2**24),
            r"^steps of the network holds whole numbers of 16777216 or more, which float32 cannot hold .*net.double\(\)",
        ),
        (
            Warm().half(),
            r"of float16, which holds whole numbers up to 2048 only, and steps changes in training\. Use net.float\(\)",
        ),
        (Warm().bfloat16(), "whole numbers up to 256 only"),
    ):
        with pytest.raises(NetworkError, match=message):
            federation(net=net)
    fed = federation(net=begun(2**24 - 4), participation=1.0)
    with pytest.raises(eq.QuorumError, match="steps of the network has come to 16777216 or more"):
        fed.fit(3, progress=False)
    assert federation(net=begun(2**40).double()).fit(1, progress=False)


@in_one("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_whole_numbers_survive_the_vector(dtype: torch.dtype) -> None:
    model = Model(stateful("Warm").float())
    numbers = torch.tensor([0, 1, 100], dtype=dtype)
    part = model.written(numbers, torch.float32)
    assert torch.equal(model.read(part, dtype), numbers)
    assert torch.equal(model.read(part * 1.001, dtype), numbers)  # nearly the same, as a mean may be
    far = model.read(torch.tensor([-1e30, 1e30]), dtype)  # an attacker's
    assert far.dtype == dtype
    assert far[0] <= far[1]


# what a look at a network takes
def test_a_network_is_run_a_few_times_whatever_its_size() -> None:
    runs: list[int] = []

    class Heard(Base):
        def forward(self, x: Tensor) -> Tensor:
            runs.append(len(x))
            return self.head(self.hidden(x))

    net = Heard().double()
    before = torch.random.get_rng_state()
    observe(net, X[:2])
    assert len(runs) <= 4
    assert set(runs) == {2}
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_cache_of_a_step_is_no_state() -> None:
    found = observe(stateful("Shown"), X[:2])
    assert found.caches == {("", "last"), ("", "table")}
    assert not found.mixes


@in_one(("name", "mixes"), [("Warm", False), ("Average", True), ("Cumulative", True), ("Normed", False)])
def test_whether_samples_of_a_batch_have_an_influence_on_each_other(name: str, mixes: bool) -> None:
    assert observe(stateful(name), X[:2]).mixes is mixes


def test_batch_statistics_of_the_users_own_are_not_padded() -> None:
    class Centred(Base):
        def forward(self, x: Tensor) -> Tensor:
            h = self.hidden(x)
            return self.head(h - h.mean(0) if self.training else h)

    net = Centred().double()
    one, other = (fitted("fedavg", 2, net=net, engine=engine) for engine in ("sequential", "stacked"))
    assert difference(one, other) < 1e-12


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: float(torch.rand(()))])
def test_random_numbers_from_anywhere_follow_the_seed(draw: Callable[[], float]) -> None:
    class Dropped(Base):
        def forward(self, x: Tensor) -> Tensor:
            h = self.hidden(x)
            return self.head(h * draw() if self.training else h)

    net = Dropped().double()
    one, other = (fitted("fedavg", 2, net=net, engine="auto") for _ in range(2))
    assert one.model.random
    assert identical(one, other)
    with pytest.raises(ValueError, match="draws random numbers in training"):
        fitted("fedavg", 1, net=net, engine="workers")


_calls = [0]


def test_memory_outside_of_the_network_is_seen_by_what_it_does() -> None:
    class Outside(Base):
        def forward(self, x: Tensor) -> Tensor:
            _calls[0] += 1
            return self.head(self.hidden(x) * _calls[0])

    with pytest.raises(NetworkError, match=r"gives something else for the same input.*global variable"):
        federation(net=Outside().double())


# copies
def test_computed_tensors_are_copied() -> None:
    """PyTorch's deepcopy refuses them; ``torch.nn.utils.weight_norm`` has one."""
    with pytest.warns(FutureWarning):
        net = nn.Sequential(nn.utils.weight_norm(nn.Linear(N_INPUTS, 8)), nn.ReLU(), nn.Linear(8, N_CLASSES)).double()
    assert torch.equal(copied(net)(X), net(X))
    one, other = (fitted("fedavg", 2, net=net, engine=engine) for engine in ("sequential", "auto"))
    assert difference(one, other) < 1e-12
    assert {"0.weight_g", "0.weight_v"} <= set(one.state_dict())
    assert torch.equal(copy.deepcopy(one.network())(X), one.network()(X))
    old = nn.Sequential(nn.utils.spectral_norm(nn.Linear(N_INPUTS, 8)), nn.ReLU(), nn.Linear(8, N_CLASSES)).double()
    old(X)
    assert identical(*(fitted("fedavg", 2, net=old, engine=engine) for engine in ("sequential", "workers")))


def test_what_cannot_be_copied_is_named() -> None:
    net = Base().double()
    net.a.source = (k for k in range(3))  # type: ignore[assignment]
    with pytest.raises(
        NetworkError, match=r"cannot be copied.*attribute 'a.source', of type generator \(cannot pickle"
    ):
        federation(net=net)


def test_differences_between_copies() -> None:
    net = Counting("number").double()
    other = copied(net)
    assert differences(net, other) == []
    assert Watch(net, set(), set()).changed() == []
    other.nested["n"][0] = 1
    other.a.bias.data += 1
    next(other.counter)
    other.register_buffer("new", torch.zeros(1))
    assert [str(place) for place in differences(net, other)] == [
        "buffer 'new'",
        "attribute 'nested'",
        "attribute 'counter'",
        "parameter 'a.bias'",
    ]
    assert same(float("nan"), float("nan"))
    assert same({1, 2}, {2, 1})
    assert not same([1], (1,))


def test_what_is_watched_may_be_large() -> None:
    """After every visit the first parts of an attribute are looked at, and how many it has."""
    net = Base()
    net.words, net.table = {str(k): k for k in range(10**5)}, np.zeros(10**6)  # type: ignore[assignment]
    watch = Watch(net, set(), set())
    assert watch.changed() == []
    net.words["more"] = 1  # type: ignore[index,operator]
    net.table += 1
    assert [place.name for place in watch.changed()] == ["words", "table"]


def test_ordinary_networks_keep_their_vector() -> None:

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, N_CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x.unflatten(1, (3, 2)))[0][:, -1])

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True)
            self.encoder, self.head = (
                nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
                nn.Linear(2, N_CLASSES),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(x.unflatten(1, (3, 2))).mean(1))

    for net in (Recurrent().double(), Attending().double()):
        fed = fitted("fedavg", 1, net=net, engine="auto")
        assert fed.model.size == sum(p.numel() for p in net.parameters())
        assert fed.model.observed.caches == frozenset()
        assert fed.model.head_name == "head"
        assert difference(fed, fitted("fedavg", 1, net=net)) < 1e-12


def test_a_view_takes_over_what_a_step_replaces() -> None:
    net = stateful("Average")
    model = Model(net, observed=observe(net, X[:2]))
    theta, buffers = model.initial[: model.n_params], model.initial[model.n_params :].clone()
    bound = Bound(model)
    for _ in range(3):
        bound.gradient(theta, buffers, X, lambda logits, _: logits.square().mean())
    other = stateful("Average").train()
    for _ in range(3):
        other(X)
    state = model.state_dict(torch.cat([theta, buffers]))
    assert all(torch.equal(state[n], t) for n, t in other.state_dict().items())
    assert state["rows"].tolist() == [3, 6]
    bound.require_unchanged(torch.cat([theta, buffers]))
