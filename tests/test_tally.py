"""Sums of a model on a data set: those of a union are the sums of both, and all scores follow from them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import accuracy_score, mean_absolute_error, r2_score, recall_score, root_mean_squared_error
from torch import Tensor
from torch.utils.data import TensorDataset

import equipoise as eq
from equipoise.core.outputs import Outputs
from equipoise.core.tally import ClassTally, NumberTally, Tally, together
from equipoise.core.task import CLASSIFICATION, Regression, Task
from equipoise.metrics.classification import MEASURES, classification
from equipoise.metrics.measures import TASKS
from helpers import in_one

REGRESSION = Regression(centre=3.0, scale=2.0)
few = settings(max_examples=25, deadline=None)


def outputs(task: Task, n: int, seed: int, width: int = 4) -> tuple[Tensor, Tensor]:
    """Outputs [n, C], some of a classifier equal or not finite, and targets [n]."""
    draw = torch.Generator().manual_seed(seed)
    if task is REGRESSION:
        return torch.randn(n, 1, generator=draw), 3 + 2 * torch.randn(n, generator=draw, dtype=torch.float64)
    x = torch.randn(n, width, generator=draw).round(decimals=1)
    x[torch.rand(n, generator=draw) < 0.1] = math.nan
    return x, torch.randint(0, width, (n,), generator=draw)


def same(a: Tally, b: Tally) -> None:
    one, other = (tally.vector(classes=True) for tally in (a, b))
    assert one.numpy() == pytest.approx(other.numpy(), rel=1e-12, nan_ok=True)
    if isinstance(a, NumberTally) and isinstance(b, NumberTally):
        assert float(a.mean) == pytest.approx(float(b.mean), rel=1e-12)


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION], ids=str)
@few
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_the_sum_of_tallies_is_the_tally_of_the_union(task: Task, n: int, m: int, seed: int) -> None:
    parts = [outputs(task, n, seed), outputs(task, m, seed + 1)]
    tallies = [task.tally(x, y) for x, y in parts]
    whole = task.tally(*(torch.cat(of) for of in zip(*parts, strict=True)))
    same(tallies[0] + tallies[1], whole)
    same(together(reversed(tallies)), whole)


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION], ids=str)
@few
@given(st.integers(1, 40), st.integers(0, 99))
def test_outputs_of_some_samples_are_those_of_a_part(task: Task, n: int, seed: int) -> None:
    """Bit by bit, whatever was decided about them; samples without attributes have unknown ones."""
    x, y = outputs(task, n, seed)
    s = torch.randint(-1, 3, (n, 2), generator=torch.Generator().manual_seed(seed))
    every = Outputs(task, x, task.predictions(x).roll(1), y, s)
    rows = [*((codes == k) for codes in s.unbind(1) for k in (0, 1, 2) if bool((codes == k).any())), slice(n // 2, n)]
    for part in rows:
        some = every.take(part)
        tally = task.tally(x[part], y[part], predicted=task.predictions(x).roll(1)[part])
        assert some.tally.vector(classes=True).numpy() == pytest.approx(
            tally.vector(classes=True).numpy(), rel=0, nan_ok=True
        )
        assert torch.equal(some.codes(1), s[part, 1])
    assert replace(every, s=None).codes(0).tolist() == [-1] * n


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION], ids=str)
def test_padding_does_not_count(task: Task) -> None:
    """In a stack of clients of several sizes, each is tallied as by itself."""
    parts = [outputs(task, n, n) for n in (3, 9, 5)]
    x = torch.stack([torch.cat([x, x[:1].expand(9 - len(x), -1)]) for x, _ in parts])
    y = torch.stack([torch.cat([y, y[:1].expand(9 - len(y))]) for _, y in parts])
    ok = torch.arange(9) < torch.tensor([3, 9, 5])[:, None]
    stacked, alone = task.tally(x, y, ok=ok), [task.tally(*part) for part in parts]
    assert stacked.n.tolist() == [3, 9, 5]
    assert torch.allclose(stacked.goodness, torch.stack([tally.goodness for tally in alone]), rtol=0, atol=1e-14)
    assert torch.allclose(stacked.mean_loss, torch.stack([t.mean_loss for t in alone]), rtol=1e-14, equal_nan=True)
    empty = task.tally(x, y, ok=ok & (torch.arange(3) > 0)[:, None]) + task.tally(x, y, ok=ok)
    assert float(empty.goodness[0]) == pytest.approx(float(alone[0].goodness))


@few
@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 99))
def test_measures_of_classes_are_those_of_whole_outputs(n: int, width: int, seed: int) -> None:
    """Bit by bit, and so are the loss and the number of samples."""
    x, y = outputs(CLASSIFICATION, n, seed, width)
    tally = CLASSIFICATION.tally(x, y)
    score: dict[str, Any] = {**tally.score(("balanced", "rates"))}
    values = classification(x.double().numpy(), y.numpy(), ("accuracy", "balanced", "rates"), logits=True)
    assert score | values == {**score, "missing": values["missing"]}
    recall = recall_score(y, CLASSIFICATION.predictions(x), labels=y.unique(), average="macro", zero_division=0)
    assert score["balanced"] == recall
    assert score["accuracy"] == accuracy_score(y, CLASSIFICATION.predictions(x))
    assert score["n"] == n
    assert score.get("undefined", 0) == int(x.isnan().any(1).sum())
    losses = CLASSIFICATION.losses(x, y).double()
    assert score["loss"] == float(losses.mean()) or (math.isnan(score["loss"]) and losses.isnan().any())
    assert isinstance(tally, ClassTally)
    assert float(tally.balanced) == pytest.approx(score["balanced"], rel=1e-14)


@few
@given(st.integers(2, 60), st.integers(0, 99))
def test_measures_of_numbers_are_those_of_scikit_learn(n: int, seed: int) -> None:
    x, y = outputs(REGRESSION, n, seed)
    p, score = REGRESSION.predictions(x).numpy(), REGRESSION.tally(x, y).score()
    assert score["rmse"] == pytest.approx(root_mean_squared_error(y, p), rel=1e-12)
    assert score["mae"] == pytest.approx(mean_absolute_error(y, p), rel=1e-12)
    assert score["r2"] == pytest.approx(r2_score(y, p), rel=1e-9)


@pytest.mark.parametrize("value", [0.1, 5.0, -1e9 / 3])
def test_r2_of_targets_that_are_all_the_same_is_not_defined(value: float) -> None:
    """Three times 0.1 is not 0.3, so that a mean of equal numbers may differ from each of them."""
    y = torch.full((3,), value, dtype=torch.float64)
    tally = REGRESSION.tally(torch.zeros(3, 1), y)
    assert tally.score()["r2"] is None
    assert (tally + tally).score()["r2"] is None
    assert REGRESSION.tally(torch.zeros(1, 1), y[:1]).score()["r2"] is None


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION], ids=str)
def test_what_a_site_tells_can_be_read_and_pooled(task: Task) -> None:
    tallies = [task.tally(*(part.nan_to_num() for part in outputs(task, n, n))) for n in (20, 30)]
    for classes in (False, True) if task is CLASSIFICATION else (False,):
        told = [json.loads(json.dumps(tally.vector(classes=classes).tolist())) for tally in tallies]
        read = [task.sums.from_vector(sent(*sums), 4 if classes else 1) for sums in told]
        for one, tally in zip(read, tallies, strict=True):
            assert one.score() == tally.score()
        whole = {key: x for key, x in together(tallies).score().items() if key != "r2"}  # whose mean is not told
        assert together(read).score() == whole


@in_one("unit", [1e-5, 2e-3, 1.0, 1e6])
@in_one("noise", [0.0, 0.8, 3.0])
def test_rounded_numbers_are_near_the_exact_ones_in_every_unit(unit: float, noise: float) -> None:
    draw = np.random.default_rng(0)
    y, e = unit * torch.from_numpy(draw.normal(size=(2, 200)))
    tally = NumberTally.of(e.square().sum(), y + noise * e, y, torch.ones_like(y, dtype=torch.bool), 1)
    exact, rounded = tally.score(), tally.rounded(3).score()
    assert rounded["r2"] == pytest.approx(exact["r2"], abs=6e-4)
    for name in ("rmse", "mae"):
        assert rounded[name] == pytest.approx(exact[name], rel=1e-2)  # type: ignore[literal-required]


def test_a_label_that_pytorch_ignores_is_no_label() -> None:
    with pytest.raises(IndexError, match="-100"):
        CLASSIFICATION.losses(torch.zeros(2, 3), torch.tensor([0, -100]))


def test_rounded_means() -> None:
    tally = REGRESSION.tally(*outputs(REGRESSION, 30, 1)).rounded(3)
    score, loss = tally.score(), float(tally.mean_loss)
    for x in (score["rmse"], score["mae"], score["r2"], loss):
        assert x == pytest.approx(round(float(x or 0), 3), abs=1e-12)
    counts = CLASSIFICATION.tally(*(part.nan_to_num() for part in outputs(CLASSIFICATION, 30, 1)))
    assert torch.equal(counts.rounded(3).vector(classes=True)[2:], counts.vector(classes=True)[2:])


def sent(*sums: float) -> Tensor:
    return torch.tensor(sums, dtype=torch.float64)


def test_vectors_add_as_tallies_do() -> None:
    """Also as the fixed-point numbers of a masked sum, of which counts come out exactly."""
    for task, width in ((CLASSIFICATION, 4), (REGRESSION, 1)):
        tallies = [task.tally(*(part.nan_to_num() for part in outputs(task, n, n))) for n in (7, 20, 30)]
        total = torch.stack([(tally.vector(classes=True) * 2.0**40).round() for tally in tallies]).sum(0) * 2.0**-40
        whole = task.sums.from_vector(total, width, len(tallies)).score(("rates",))
        right = {key: x for key, x in together(tallies).score(("rates",)).items() if key != "r2"}
        assert whole.pop("rates", None) == right.pop("rates", None)
        assert whole == pytest.approx(right, rel=1e-9)


NUMBERS = {"n": 5.0, "loss": 2.0, "squares": 3.0, "absolute": 2.0, "spread": 4.0}
COUNTS = {"n": 5.0, "loss": 2.0, "r0": 2.0, "r1": 0.0, "t0": 3.0, "t1": 2.0, "c0": 4.0, "c1": 0.0}


@in_one("change", [
    {"n": 0}, {"n": 2.0**53}, {"n": 2.5}, {"n": math.nan}, {"squares": -1.0}, {"absolute": -math.inf}, {"spread": -1e-9}, {"spread": math.nan},
    {"spread": math.inf}, {"squares": 4.2}, {"absolute": 4.0}, {"squares": 0.0}, {"absolute": 0.0},
])  # fmt: skip
def test_sums_of_errors_that_cannot_be(change: dict[str, float]) -> None:
    assert NumberTally.from_vector(sent(*NUMBERS.values()), 1).score()["n"] == 5
    assert (
        NumberTally.from_vector(sent(*{**NUMBERS, "loss": -5.0}.values()), 1).score()["loss"] == -1
    )  # of a task of one's own
    with pytest.raises(ValueError, match=r"errors|counts"):
        NumberTally.from_vector(sent(*{**NUMBERS, **change}.values()), 1)
    with pytest.raises(ValueError, match="counts"):
        NumberTally.from_vector(sent(*[*NUMBERS.values()][1:]), 1)


@in_one("change", [
    {"n": 6.0}, {"loss": -0.1}, {"r0": 3.5}, {"r0": 5.0}, {"r1": 1.0}, {"r1": -1.0}, {"c1": 2.0}, {"t0": math.nan}, {"c0": math.inf}, {"t1": 1e300},
])  # fmt: skip
def test_counts_that_cannot_be(change: dict[str, float]) -> None:
    assert ClassTally.from_vector(sent(*COUNTS.values()), 2).score()["undefined"] == 1
    assert math.isnan(ClassTally.from_vector(sent(*{**COUNTS, "loss": math.nan}.values()), 2).score()["loss"] or 0)
    with pytest.raises(ValueError, match="counts"):
        ClassTally.from_vector(sent(*{**COUNTS, **change}.values()), 2)
    with pytest.raises(ValueError, match="counts"):
        ClassTally.from_vector(sent(*COUNTS.values()), 3)


@few
@given(st.integers(1, 40), st.integers(0, 99), st.sampled_from([1e-170, 1e-5, 1.0, 1e150, 1e200]), st.booleans())
def test_sums_of_errors_that_can_be(n: int, seed: int, unit: float, short: bool) -> None:
    """In every unit, also with few digits: no site is left out for its rounding, nor one whose model has left all bounds."""
    draw = np.random.default_rng(seed)
    y, e = torch.from_numpy(draw.standard_cauchy(size=(2, n)))
    y, e = min(unit, 1.0) * y / 1000, unit * e
    tally = NumberTally.of(e.square().sum(), y + e, y, torch.ones_like(y, dtype=torch.bool), 1)
    vector = (tally.rounded(3) if short else tally).vector()
    assert int(NumberTally.from_vector(vector, 1).n) == n


@pytest.mark.parametrize("streamed", [False, True])
def test_a_model_is_evaluated_by_sensitive_attribute(streamed: bool) -> None:
    x, y, s = (
        torch.randn(40, 3),
        torch.arange(40) % 2,
        torch.stack([torch.arange(40) % 3 - 1, torch.arange(40) % 5], 1),
    )
    data: Any = TensorDataset(x, y, s) if streamed else (x, y, s)
    fed = eq.Federation(
        torch.nn.Linear(3, 2),
        [(x, y), (x, y)],
        tests={"all": data, "plain": (x, y)},
        measures=("accuracy", "auc"),
        attributes={"sex": ["f", "m"], "age": list("01234")},
    )
    found, right = fed.evaluate(), fed.predict(x) == y
    assert "by" not in found["plain"]
    assert {name: list(of) for name, of in found["all"]["by"].items()} == {"sex": ["f", "m"], "age": list("01234")}
    assert found["all"] == fed.evaluate(data) == fed.evaluate(x, y, s)
    for k, of in enumerate(found["all"].pop("by").values()):
        for code, score in enumerate(of.values()):
            assert score["accuracy"] == float(right[s[:, k] == code].double().mean())
            assert score["n"] == int((s[:, k] == code).sum())
    assert found["all"] == found["plain"]
    with pytest.raises(ValueError, match=r"expected 2 sensitive attributes s \(sex, age\); found 1"):
        fed.evaluate(x, y, s[:, 0])


def test_a_task_takes_its_measures_from_their_list() -> None:
    for task in (CLASSIFICATION, REGRESSION):
        assert task.measures == tuple(measure.name for measure in TASKS[task.name])
        assert [measure.name for measure in TASKS[task.name] if measure.main] == [task.main]
        x, y = outputs(task, 9, 0)
        assert task.tally(x, y).main == task.tally(x, y).score()[task.main]  # type: ignore[literal-required]
    assert np.array_equal([*MEASURES], CLASSIFICATION.measures)
