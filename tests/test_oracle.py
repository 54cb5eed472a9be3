"""One client's data as something to ask: loss, gradient, features, and the one training loop."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import equipoise as eq
from equipoise.core import draws, oracle
from equipoise.core.model import Bound, Model, Stacked
from equipoise.core.oracle import Oracle
from equipoise.data.samples import read, stack
from helpers import N_INPUTS, clients, in_one, network, normal, oracle_of, samples


def plan(sizes: list[int], batch: int = 4, epochs: int = 2) -> draws.Schedule:
    return draws.schedule(3, 0, list(range(len(sizes))), sizes, epochs, batch, drop_single=False)


def together(kind: str, sizes: list[int], solver: object) -> tuple[Oracle, list[Oracle], Model]:
    """A stack of clients and the same clients one by one, on the same plan."""
    model = Model(network(kind))
    data = [read(c, "c", torch.float64, torch.device("cpu")) for c in clients(sizes)]
    drawn = plan(sizes)
    whole = Oracle(Stacked(model), stack(data), solver, drawn, model.n_params)
    bound = Bound(model)
    each = [Oracle(bound, d, solver, draws.Schedule(drawn.index[m], None), model.n_params) for m, d in enumerate(data)]
    return whole, each, model


@pytest.mark.parametrize("width", [512, 7])
def test_questions_are_means_over_the_data_set(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one pass or in several, the last of which is shorter."""
    monkeypatch.setattr(oracle, "EVALUATION_BATCH", width)
    net = network("batchnorm")
    x, y = samples(23, 1)
    asked, at = oracle_of(net, x, y, eq.SGD(0.1)), Model(net).initial
    net.eval()
    logits = net(x)
    loss = functional.cross_entropy(logits, y)
    assert float(asked.loss(at)) == pytest.approx(loss.item(), abs=1e-14)
    assert float(asked.accuracy(at)) == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(net.parameters()))])
    assert torch.allclose(asked.gradient(at), expected, rtol=0, atol=1e-14)
    features, labels, ok = asked.features(at)
    assert torch.allclose(features, torch.tanh(net.norm(net.a(x))), rtol=0, atol=1e-14)
    assert torch.equal(labels, y)
    assert bool(ok.all())


@pytest.mark.parametrize("width", [512, 7])
def test_a_stack_answers_as_its_clients(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padded samples count nowhere."""
    monkeypatch.setattr(oracle, "EVALUATION_BATCH", width)
    sizes = [5, 13, 1, 8]
    whole, each, model = together("mlp", sizes, eq.SGD(0.1))
    vectors = model.initial + 0.2 * normal(4, model.size)
    losses, accuracies, gradients = whole.loss(vectors), whole.accuracy(vectors), whole.gradient(vectors)
    features, labels, ok = whole.features(vectors)
    for m, alone in enumerate(each):
        assert float(losses[m]) == pytest.approx(float(alone.loss(vectors[m])), abs=1e-13)
        assert float(accuracies[m]) == float(alone.accuracy(vectors[m]))
        assert torch.allclose(gradients[m], alone.gradient(vectors[m]), rtol=0, atol=1e-13)
        z, y, _ = alone.features(vectors[m])
        assert torch.allclose(features[m][ok[m]], z, rtol=0, atol=1e-13)
        assert torch.equal(labels[m][ok[m]], y)
        assert int(ok[m].sum()) == sizes[m]


SOLVERS = [
    eq.SGD(0.1),
    eq.SGD(0.1, 0.9, 1e-2),
    eq.SGD(0.1, 0.5, clip=0.3),
    eq.Adam(0.02),
    eq.Adam(0.02, weight_decay=0.1, decoupled=True),
]


@in_one("solver", SOLVERS)
def test_training_is_pytorchs(solver: object) -> None:
    """The same batches through ``torch.optim``: momentum, weight decay, clipping and all."""
    net = network()
    x, y = samples(13, 1)
    model = Model(net)
    drawn = plan([13])
    asked = Oracle(
        Bound(model),
        read((x, y), "c", torch.float64, torch.device("cpu")),
        solver,
        draws.Schedule(drawn.index[0], None),
        model.n_params,
    )
    got = asked.solve(model.initial)
    if isinstance(solver, eq.SGD):
        optimiser = torch.optim.SGD(net.parameters(), solver.lr, solver.momentum, weight_decay=solver.weight_decay)
    else:
        make = torch.optim.AdamW if solver.decoupled else torch.optim.Adam
        optimiser = make(net.parameters(), solver.lr, solver.betas, solver.eps, solver.weight_decay)
    for rows in drawn.index[0]:
        rows = rows[rows >= 0]
        optimiser.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        if getattr(solver, "clip", None):
            torch.nn.utils.clip_grad_norm_(net.parameters(), solver.clip)
        optimiser.step()
    assert torch.allclose(got, torch.cat([p.detach().reshape(-1) for p in net.parameters()]), rtol=0, atol=1e-13)


@in_one("solver", SOLVERS)
def test_a_stack_trains_as_its_clients(solver: object) -> None:
    """Clients of one to four batches an epoch: a step that is padding moves neither parameters nor slots."""
    whole, each, model = together("mlp", [5, 13, 1, 8], solver)
    starts = model.initial + 0.2 * normal(4, model.size)
    trained = whole.solve(starts)
    assert whole.steps.flatten().tolist() == [4, 8, 2, 4]
    for m, alone in enumerate(each):
        assert torch.allclose(trained[m], alone.solve(starts[m]), rtol=0, atol=1e-12)
        assert int(alone.steps) == int(whole.steps[m])


def test_terms_correction_and_wrap() -> None:
    """``terms`` replaces the loss, ``correction`` is added to its gradient, ``wrap`` may look elsewhere first."""
    net = network()
    x, y = samples(9, 1)
    model = Model(net)
    asked, at = oracle_of(net, x, y, eq.SGD(1.0)), model.initial
    g = asked.gradient(at)
    c = normal(model.n_params)
    assert torch.allclose(at - asked.solve(at), g, rtol=0, atol=1e-14)
    assert torch.allclose(at - asked.solve(at, lambda out: 3 * out.cross_entropy), 3 * g, rtol=0, atol=1e-13)
    assert torch.allclose(at - asked.solve(at, correction=lambda theta: c), g + c, rtol=0, atol=1e-13)
    assert torch.allclose(at - asked.solve(at, correction=lambda theta: 2 * theta), g + 2 * at, rtol=0, atol=1e-13)
    up = at + 0.1 * g / g.norm()
    sharp = asked.solve(at, wrap=lambda grad, theta: grad(theta + 0.1 * grad(theta) / grad(theta).norm()))
    assert torch.allclose(at - sharp, asked.gradient(up), rtol=0, atol=1e-12)
    assert not torch.allclose(at - sharp, g, atol=1e-4)


def test_a_second_look_does_not_move_the_statistics_twice() -> None:
    net = network("batchnorm")
    x, y = samples(9, 1)
    asked, at = oracle_of(net, x, y, eq.SGD(0.1)), Model(net).initial
    P = asked.n_params
    once, twice = asked.solve(at), asked.solve(at, wrap=lambda grad, theta: grad(theta + 0.1 * grad(theta)))
    assert torch.equal(once[P:], twice[P:])
    assert not torch.equal(once[P:], at[P:])
    assert not torch.equal(once[:P], twice[:P])


def test_training_does_not_touch_its_start() -> None:
    net = network("batchnorm")
    x, y = samples(9, 1)
    asked, at = oracle_of(net, x, y, eq.SGD(0.1, 0.9), steps=3), Model(net).initial
    before = at.clone()
    first = asked.solve(at)
    assert torch.equal(at, before)
    assert torch.equal(first, asked.solve(at))
    assert x.shape == (9, N_INPUTS)


def test_travel_is_exact_in_float64() -> None:
    """Steps are whole numbers; times a rate they must not be rounded to float32."""
    asked = oracle_of(network(), *samples(9, 1), eq.SGD(0.1), steps=3)
    assert asked.travel.dtype == torch.float64
    assert float(asked.travel) == pytest.approx(0.3, abs=1e-16)


def test_the_mean_of_a_batch_leaves_padding_out() -> None:
    values = torch.tensor([[1.0, 3.0, 100.0], [2.0, 4.0, 6.0], [7.0, 7.0, 7.0]])
    ok = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    out = eq.Out(torch.zeros(3, 3, 2), torch.zeros(3, 3, 2), torch.zeros(3, 3, dtype=torch.int64), ok, lambda v: v)
    assert out.mean(values).tolist() == [2.0, 4.0, 0.0]


@pytest.mark.parametrize("width", [512, 7])
def test_classes_are_counted_and_weigh_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a client lacks a class, and in a stack with padding."""
    from sklearn.metrics import balanced_accuracy_score

    monkeypatch.setattr(oracle, "EVALUATION_BATCH", width)
    whole, each, model = together("mlp", [5, 13, 1, 8], eq.SGD(0.1))
    vectors = model.initial + 0.2 * normal(4, model.size)
    counts = torch.stack([one.class_counts(4) for one in each])
    assert torch.equal(whole.class_counts(4), counts)
    assert counts.sum(1).tolist() == [5, 13, 1, 8]
    assert counts[2].count_nonzero() == 1
    found = [one.balanced_accuracy(v) for one, v in zip(each, vectors, strict=True)]
    assert torch.allclose(whole.balanced_accuracy(vectors), torch.stack(found), rtol=0, atol=1e-14)
    for one, v, value in zip(each, vectors, found, strict=True):
        net = model.network(v)
        labels = one.source.content.y.tolist()
        predicted = net(one.source.content.x).argmax(1)
        recalls = [float((predicted[one.source.content.y == c] == c).double().mean()) for c in range(3) if c in labels]
        assert float(value) == pytest.approx(sum(recalls) / len(recalls))
    everything = each[1]
    expected = balanced_accuracy_score(
        everything.source.content.y, model.network(vectors[1])(everything.source.content.x).argmax(1)
    )
    assert float(found[1]) == pytest.approx(expected)


@pytest.mark.parametrize("solver", [eq.SGD(0.1, 0.9, 0.1), eq.Adam(0.01, weight_decay=0.1, decoupled=True)])
def test_only_some_coordinates_are_trained(solver: object) -> None:
    """The rest keeps its value whatever the solver adds, in a stack as alone; the trained ones move as if alone."""
    whole, each, model = together("mlp", [5, 13], solver)
    head = model.head[: model.n_params]
    starts = model.initial + 0.1 * normal(2, model.size)
    trained = whole.solve(starts, only=head)
    assert torch.equal(trained[:, ~head], starts[:, ~head])
    assert not torch.isclose(trained[:, head], starts[:, head]).any()
    for one, start, found in zip(each, starts, trained, strict=True):
        assert torch.allclose(one.solve(start, only=head), found, rtol=0, atol=1e-12)
    own = torch.stack([head, ~head])  # another part for each client of the stack
    mixed = whole.solve(starts, only=own)
    assert torch.equal(mixed[~own], starts[~own])
    assert torch.allclose(mixed[0], trained[0], rtol=0, atol=1e-12)


def test_training_may_stop_after_an_epoch_and_take_another_solver() -> None:
    model = Model(network())
    data = read(clients([13])[0], "c", torch.float64, torch.device("cpu"))
    one, three = (
        Oracle(Bound(model), data, eq.SGD(0.1), plan([13], epochs=epochs).of(0), model.n_params) for epochs in (1, 3)
    )
    first = one.solve(model.initial)
    assert torch.equal(three.solve(model.initial, epochs=1), first)
    assert torch.equal(three.solve(model.initial, epochs=3), three.solve(model.initial))
    slow = Oracle(Bound(model), data, eq.SGD(0.01), one.schedule, model.n_params).solve(model.initial)
    assert torch.equal(one.solve(model.initial, solver=eq.SGD(0.01)), slow)
    assert not torch.equal(first, slow)


def test_losses_are_summed_in_float64() -> None:
    """A float32 network's loss over many samples is that of its float32 logits, not of a float32 sum."""
    net = network().float()
    x, y = samples(5000, 1)
    asked = oracle_of(net, x.float(), y, eq.SGD(0.1))
    theta = Model(net).initial
    exact = functional.cross_entropy(net(x.float()), y, reduction="none").detach().double().mean()
    assert asked.tally(theta).mean_loss.dtype == torch.float64
    assert float(asked.tally(theta).mean_loss) == pytest.approx(float(exact), rel=1e-8)
    assert asked.loss(theta).dtype == torch.float32


@pytest.mark.parametrize("several", [True, False])
def test_losses_of_batches(several: bool) -> None:
    """A naive loop over the batches of the first epoch; a stack gives those of each client."""
    net, data = network(), [samples(n, k) for k, n in enumerate((7, 21, 12))]
    model = Model(net)
    read_ = [read(d, "client", torch.float64, torch.device("cpu")) for d in data]
    drawn = draws.schedule(0, 0, [0, 1, 2], [7, 21, 12], 2, 8, drop_single=False)
    if several:
        oracle = Oracle(Stacked(model), stack(read_), eq.SGD(), drawn, model.n_params)
        losses, there = oracle.batch_losses(model.initial.expand(3, -1))
    else:
        each = [Oracle(Bound(model), d, eq.SGD(), drawn.of(m), model.n_params) for m, d in enumerate(read_)]
        found = [oracle.batch_losses(model.initial) for oracle in each]
        losses, there = (torch.stack(part) for part in zip(*found, strict=True))
    assert losses.shape == there.shape == (3, 3)
    for m, (x, y) in enumerate(data):
        for k in range(3):
            rows = drawn.index[m, k][drawn.index[m, k] >= 0]
            assert bool(there[m, k]) == bool(len(rows))
            expected = functional.cross_entropy(net(x[rows]), y[rows]).item() if len(rows) else 0.0
            assert losses[m, k].item() == pytest.approx(expected, abs=1e-12)
