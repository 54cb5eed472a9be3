"""Fine-tuning: one epoch typed out, what it leaves alone, and where the next round starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import equipoise as eq
from equipoise.core import draws
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation import evaluation
from equipoise.methods.finetune import FineTune
from helpers import UNEQUAL, clients, federation, fitted, samples

SETTINGS = {"participation": 1.0, "solver": eq.SGD(0.1)}


def one_epoch(
    fed: eq.Federation,
    vector: Tensor,
    m: int,
    t: int,
    lr: float = 0.1,
    steps: int | None = None,
    there: int | None = None,
) -> Tensor:
    """Plain gradient steps through the batches that client ``m`` reads first in round ``t``: an epoch, or ``steps``.

    After the last batch, of the epoch or of ``there``, comes the first.
    """
    x, y = clients()[m]
    plan = draws.schedule(3, t, [m], [len(y)], 1, 8, chances=(), drop_single=False, steps=there)
    net = fed.model.network(vector).train()
    batches = [rows[rows >= 0] for rows in plan.index[0]]
    for k in range(len(batches) if steps is None else steps):
        rows = batches[k % len(batches)]
        net.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= lr * p.grad
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize("name", ["finetune", "fedavg-finetune", "qffl(form=full)+finetune"])
def test_a_client_predicts_after_one_more_epoch(name: str) -> None:
    fed = fitted(name, 2, **SETTINGS)
    x, _ = samples(9, 1)
    for m in range(len(UNEQUAL)):
        own = one_epoch(fed, fed.progress.vector, m, t=2)
        assert torch.allclose(fed.logits(x, client=m), fed.model.network(own)(x).detach(), rtol=0, atol=1e-12)
        assert not torch.allclose(fed.logits(x, client=m), fed.logits(x), rtol=0, atol=1e-4)


def test_the_global_model_knows_nothing_of_it() -> None:
    tests = {"a": samples(40, 1)}
    a, b = (fitted(name, 3, **SETTINGS, tests=tests) for name in ("qffl:full(q=2)", "qffl(q=2, form=full)+finetune"))
    assert torch.equal(a.progress.vector, b.progress.vector)
    assert b.progress.given is None
    assert b.records[-1]["bytes"] == a.records[-1]["bytes"]
    assert b.records[-1]["groups"] == a.records[-1]["groups"]
    assert len(set(b.records[-1]["clients"]["accuracy"])) > 1
    assert "clients" not in a.records[-1] or len(set(a.records[-1]["clients"]["accuracy"])) == 1


def test_every_round_starts_where_the_client_left_off() -> None:
    """From the second round on the local epochs come after the one that the client predicted with."""
    jobs: list[Job] = []

    def engine(job: Job) -> Iterator[Answer]:
        jobs.append(job)
        yield from sequential(job)

    fed = federation("fedavg-finetune:fedrac", engine=engine, **SETTINGS)
    x, _ = samples(9, 1)
    for t in range(3):
        before = fed.progress.vector
        start = torch.stack([before if t == 0 else one_epoch(fed, before, m, t) for m in range(len(UNEQUAL))])
        if t:
            for m in range(len(UNEQUAL)):
                mine = fed.model.network(start[m])(x).detach()
                assert torch.allclose(fed.logits(x, client=m), mine, rtol=0, atol=1e-12)
        fed.fit(1, progress=False)
        plain = sequential(replace(jobs[-1], rules=(), received=start, states=[], messages=[]))
        trained = torch.cat([answer.trained for answer in plain])
        assert torch.allclose(fed.progress.vector, trained.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_steps_take_the_first_batch_again_after_the_last(engine: str) -> None:
    """Clients with one to three batches an epoch, rounds of two local steps, and seven steps of fine-tuning."""
    name = "fedavg-finetune:fedrac(steps=7)"
    fed = federation(name, engine=engine, steps=2, **SETTINGS)
    x, _ = samples(9, 1)
    for t in range(3):
        before = fed.progress.vector
        ends = []
        for m in range(len(UNEQUAL)):
            mine = one_epoch(fed, before, m, t, steps=7)
            if t:
                assert torch.allclose(fed.logits(x, client=m), fed.model.network(mine)(x).detach(), rtol=0, atol=1e-12)
            start = one_epoch(fed, before, m, t, steps=7, there=2) if t else before
            ends.append(one_epoch(fed, start, m, t, steps=2, there=2))
        fed.fit(1, progress=False)
        assert torch.allclose(fed.progress.vector, torch.stack(ends).mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["last", "every_round"])
def test_a_client_alone_in_batch_norm(form: str) -> None:
    """Its statistics follow the extra epoch; both engines and a stack of one agree on the global model."""
    settings = {"kind": "batchnorm", "sizes": (9, 13, 9), **SETTINGS}
    a, b = (fitted(FineTune(form), 3, engine=e, **settings) for e in ("sequential", "stacked"))
    assert torch.allclose(a.progress.vector, b.progress.vector, rtol=0, atol=1e-10)
    x, _ = samples(9, 1)
    assert torch.allclose(a.logits(x, client=1), b.logits(x, client=1), rtol=0, atol=1e-10)
    assert not torch.allclose(a.logits(x, client=1), a.logits(x), rtol=0, atol=1e-3)


def test_only_every_round_sets_the_start() -> None:
    assert FineTune().owns == {"use"}
    assert FineTune("every_round").owns == {"use", "start"}
    assert (
        eq.parse("fedavg-finetune:fedrac").rules
        == (eq.parse("fedavg:uniform") + eq.parse("finetune:every-round")).rules
    )


def test_bad_form_is_refused() -> None:
    with pytest.raises(ValueError, match="form must be one of last, every_round"):
        FineTune("always")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be a whole number >= 1, or None; found 0"):
        FineTune(steps=0)


def test_looking_changes_nothing() -> None:
    fed = fitted("finetune", 1, **SETTINGS)
    x, _ = samples(9, 1)
    before = {k: v.clone() for k, v in fed.progress.tensors().items()}
    first = fed.logits(x, client=2)
    assert torch.equal(first, fed.logits(x, client=2))
    assert all(torch.equal(v, before[k]) for k, v in fed.progress.tensors().items())


@pytest.mark.parametrize("name", ["ditto", "ditto-personal", "fedpac"])
def test_it_comes_last(name: str) -> None:
    """Whatever model a client would predict with is trained once more."""
    plain, tuned = (fitted(text, 2, participation=1.0) for text in (name, f"finetune+{name}"))
    trial, p = plain.trial, plain.progress
    for m in range(2):
        oracle = evaluation.oracle_of(trial, p.t, m, trial.data[m])
        assert torch.equal(tuned._vector(m), oracle.solve(plain._vector(m)))
