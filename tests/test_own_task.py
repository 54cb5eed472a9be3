"""The task of the tutorial docs/own-task.md: a loss of one's own on every engine, at sites and over a restart."""

from __future__ import annotations

import copy
import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import f1_score, matthews_corrcoef
from torch import Tensor

import equipoise as eq
from equipoise.core.task import task_of
from equipoise.federation.checkpoint import CheckpointError
from equipoise.flower import in_process
from equipoise.flower.settings import AppSettings
from equipoise.flower.site.task import Task, meaning
from equipoise.records.criteria import failed
from equipoise.runs.directory import federation, load
from helpers import normal
from run_helpers import cache, equipoise
from test_docs import ROOT, blocks

__all__ = ["cache", "equipoise"]


@pytest.fixture(scope="module")
def counts() -> Any:
    """The class of the page, as its reader types it."""
    page: dict[str, Any] = {"__name__": __name__}
    exec(compile(blocks(ROOT / "docs" / "own-task.md", "python")[0], "own-task.md", "exec", dont_inherit=True), page)
    return page["Counts"]()


def ward(n: int, seed: int) -> tuple[Tensor, Tensor]:
    x = normal(n, 3, seed=seed)
    return x, (x @ torch.tensor([0.5, -0.4, 0.3]).double()).exp().round()


CLIENTS = [ward(30, 0), ward(12, 1), ward(18, 2)]


def given(task: Any, **more: Any) -> dict[str, Any]:
    net = torch.nn.Linear(3, 1).double()
    torch.nn.init.constant_(net.weight, 0.1)
    torch.nn.init.zeros_(net.bias)
    return {
        "net": net,
        "clients": CLIENTS,
        "method": "fedavg",
        "solver": eq.SGD(0.05),
        "task": task,
        "batch_size": 64,
        "steps": 3,
        "seed": 0,
        "tests": {"all": ward(40, 3)},
        **more,
    }


@pytest.mark.parametrize("engine", ["sequential", "stacked", "workers"])
def test_every_engine_trains_the_loss_of_the_page(counts: Any, engine: str) -> None:
    fed = eq.Federation(**given(counts, engine=engine, workers=2 if engine == "workers" else None))
    fed.fit(3, progress=False)
    theta = torch.tensor([0.1, 0.1, 0.1, 0.0], dtype=torch.float64)
    n = sum(len(y) for _, y in CLIENTS)
    for _ in range(3):
        models = []
        for x, y in CLIENTS:
            inputs, model = torch.cat([x, torch.ones(len(y), 1).double()], 1), theta
            for _ in range(3):
                model = model - 0.05 * inputs.T @ ((inputs @ model).exp() - y) / len(y)
            models.append(len(y) / n * model)
        theta = torch.stack(models).sum(0)
    assert torch.allclose(fed.progress.vector, theta, rtol=0, atol=1e-12)
    rates = (ward(40, 3)[0] @ theta[:3] + theta[3]).exp()
    assert fed.records[-1]["groups"]["all"]["rmse"] == pytest.approx(
        float((rates - ward(40, 3)[1]).square().mean().sqrt()), rel=1e-9
    )


@dataclass(frozen=True)
class Focal(eq.Classification):
    """Lin et al. 2017."""

    gamma: float = 0.0

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        losses = super().losses(outputs, y)
        return (1 - (-losses).exp()) ** self.gamma * losses


def test_a_task_derived_from_classification_has_classes() -> None:
    """Their number, counts of each, which samples are right, the check of labels, and the failure of a model that guesses."""
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())
    runs = []
    for task in ("classification", Focal()):
        torch.manual_seed(0)
        fed = eq.Federation(torch.nn.Linear(3, 2), [data, data], "fedavg", eq.SGD(0.1), tests={"a": data}, task=task)
        fed.fit(2, progress=False)
        runs.append((fed.trial.setup.n_classes, fed.records[-1]["groups"], fed.history.failure(1)))
    assert runs[0] == runs[1]
    assert runs[0][0] == 2
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.1"):
        eq.Federation(torch.nn.Linear(3, 2), [(x, data[1] + 1)], task=Focal(2.0))


@dataclass(frozen=True)
class Cautious(eq.Classification):
    """Predicts the second of two classes from a probability of 0.1 on."""

    def predictions(self, outputs: Tensor) -> Tensor:
        return (outputs.softmax(-1)[..., 1] >= 0.1).long()


@dataclass(frozen=True)
class High(eq.Regression):
    """The 90 % quantile, by the pinball loss: far from the mean, so its RMSE is worse than that of the mean."""

    reason: str | None = None

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        error = (y - (self.centre or 0)) / (self.scale or 1) - outputs.squeeze(-1)
        return torch.maximum(0.9 * error, -0.1 * error)

    def useless(self, outputs: Tensor, predicted: Tensor, y: Tensor) -> str | None:
        return self.reason


def test_measures_follow_the_predictions_of_the_task() -> None:
    x = torch.randn(600, 3, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] + torch.randn(600, generator=torch.Generator().manual_seed(1)) > 1.6).long())
    torch.manual_seed(0)
    net, measures = torch.nn.Linear(3, 2), ("rates", "f1", "mcc")
    fed = eq.Federation(net, [data, data], "fedavg", eq.SGD(0.1), tests={"a": data}, task=Cautious(), measures=measures)
    record = fed.fit(3, progress=False).records[-1]
    predicted = (fed.predict_proba(x)[:, 1] >= 0.1).long()
    assert (predicted != fed.logits(x).argmax(1)).any()
    assert record["groups"]["a"]["rates"]["chosen"] == predicted.bincount(minlength=2).tolist()
    assert record["measures"]["f1"]["groups"]["a"] == pytest.approx(f1_score(data[1], predicted, average="macro"))
    assert record["measures"]["mcc"]["groups"]["a"] == pytest.approx(matthews_corrcoef(data[1], predicted))


@pytest.mark.parametrize("between_sites", [False, True])
@pytest.mark.parametrize(("reason", "useless"), [("", False), ("its quantile is off", True), (None, True)])
def test_a_task_may_bring_its_own_test_of_use(reason: str | None, useless: bool, between_sites: bool) -> None:
    """Else it is judged by the errors of the mean."""
    data = [(x, y + 30 * (torch.arange(len(y)) % 9 == 0)) for x, y in CLIENTS]
    settings = given(High(centre=3.0, scale=10.0, reason=reason), clients=data, validation=0.3, tests={"all": data[0]})
    first = [settings.pop(key) for key in ("net", "clients", "method", "solver")]
    fed = (in_process if between_sites else eq.Federation)(*first, **settings)
    history = fed.fit(5, progress=False)
    assert bool(history.failure()) == useless
    assert ("quantile" in history.failure()) == bool(reason)
    if not between_sites:
        assert bool(failed(history)) == useless


def test_sites_train_it_too(counts: Any) -> None:
    settings = given(counts)
    simulated = eq.Federation(**settings)
    simulated.fit(2, progress=False)
    sites = in_process(
        settings.pop("net"),
        settings.pop("clients"),
        settings.pop("method"),
        settings.pop("solver"),
        **settings,
    )
    sites.fit(2, progress=False)
    assert torch.equal(simulated.progress.vector, sites.progress.vector)
    assert meaning(counts) is counts


def test_sites_say_a_loss_below_zero(counts: Any) -> None:
    """As that of counts may be; what they hold out is validated as in a simulation."""
    shifted = [(x, y + 30) for x, y in CLIENTS]
    settings = given(counts, validation=0.3, clients=shifted, solver=eq.SGD(0.001))
    simulated = eq.Federation(**settings)
    first = [settings.pop(key) for key in ("net", "clients", "method", "solver")]
    sites = in_process(*first, **settings)
    ours, theirs = (fed.fit(2, progress=False).records[-1]["validation"] for fed in (simulated, sites))
    same = ("rmse", "mae", "loss", "n", "clients")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert ours["loss"] < 0


def test_a_run_goes_on_with_its_own_task_only(counts: Any, tmp_path: Path) -> None:
    eq.Federation(**given(counts)).fit(1, progress=False, directory=tmp_path)
    same = eq.Federation(**given(counts))
    same.resume(tmp_path)
    assert same.progress.t == 1
    with pytest.raises(CheckpointError, match=r"Counts\(.*regression\(|regression\(.*Counts\("):
        eq.Federation(**given(eq.Regression(centre=0.0, scale=1.0))).resume(tmp_path)


class Weighted(eq.Classification):
    """Not a dataclass, and with an attribute that is made when it is needed."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    @cached_property
    def total(self) -> Tensor:
        return self.weights.sum()

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return super().losses(outputs, y) * self.weights[y] / self.total


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Focal(0.5), Focal(2.0)),
        (Weighted(torch.tensor([1.0, 2.0])), Weighted(torch.tensor([2.0, 1.0]))),
        (Focal(0.5), "classification"),
    ],
)
def test_one_class_with_other_options_is_another_task(before: Any, after: Any, tmp_path: Path) -> None:
    """For a checkpoint, and between sites."""
    x = normal(12, 3, seed=0)
    data = (x, (x[:, 0] > 0).long())

    def made(task: Any) -> eq.Federation:
        return eq.Federation(torch.nn.Linear(3, 2).double(), [data, data], seed=0, task=copy.deepcopy(task))

    net = torch.nn.Linear(3, 2).double()
    eq.Federation(net, [data, data], seed=0, task=before).fit(1, progress=False, directory=tmp_path)
    made(before).resume(tmp_path)
    with pytest.raises(CheckpointError, match="task"):
        made(after).resume(tmp_path)
    codes = [Task(net, data, task=task).agreement(made(task).trial, torch.Size([3])) for task in (before, after)]
    assert codes[0]["task"] != codes[1].get("task")


def test_sites_agree_on_the_code_of_their_task(tmp_path: Path) -> None:
    """Another file with a class of the same name is other code."""
    text = "import equipoise as eq\nclass Halved(eq.Classification):\n    def losses(self, outputs, y):\n        return super().losses(outputs, y) / "
    data, codes = (normal(6, 3, seed=0), torch.tensor([0, 1] * 3)), list[str]()
    for name, divisor in (("a", "2"), ("b", "2"), ("c", "4")):
        (tmp_path / f"{name}.py").write_text(f"{text}{divisor}\n")
        net, task = torch.nn.Linear(3, 2).double(), task_of(f"{tmp_path}/{name}.py:Halved")
        trial = eq.Federation(net, [data], task=task).trial
        codes.append(Task(net, data, task=task).agreement(trial, torch.Size([3]))["own code"])
    assert codes[0] == codes[1] != codes[2]


def test_a_loss_of_the_batch_and_a_prediction_with_an_axis_too_many_are_named(counts: Any) -> None:
    class Mean(type(counts)):  # type: ignore[misc]
        def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
            return super().losses(outputs, y).mean()

    class Column(type(counts)):  # type: ignore[misc]
        def predictions(self, outputs: Tensor) -> Tensor:
            return outputs.exp()

    with pytest.raises(ValueError, match=r"Mean\.losses must give one number per sample, of shape \[1\].*found \[\]\."):
        eq.Federation(**given(Mean()))
    with pytest.raises(ValueError, match=r"Column\.predictions must give one number .*found \[1, 1\]\."):
        eq.Federation(**given(Column()))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's class in a file and a table of three wards."""
    page = blocks(ROOT / "docs" / "own-task.md", "python")[0]
    (tmp_path / "mine.py").write_text(f"from __future__ import annotations\n{page}\ntold = Counts()\nother = 3\n")
    rows = [f"{ward},{a:.3f},{b:.3f},{c:.3f},{int(y)}" for ward, (x, y) in zip("ABC", CLIENTS, strict=True)
            for (a, b, c), y in zip(x.tolist(), y.tolist(), strict=True)]  # fmt: skip
    (tmp_path / "wards.csv").write_text("\n".join(["client,a,b,c,label", *rows]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_knows_it_as_other_code_of_ones_own(mine: Path, equipoise: Any) -> None:
    given = ("--data", "wards.csv", "--network", "mlp(hidden=[])", "--runs", "runs", "--no-report", "--name", "a")
    equipoise("run", *given, "--task", "mine.py:Counts(unit=days)", "--rounds", "2")
    record = json.loads((mine / "runs/a/metrics.jsonl").read_text().splitlines()[-1])
    assert record["round"] == 1
    assert {"rmse", "r2"} <= {*next(iter(record["groups"].values()))}
    fed, _ = federation(load(mine / "runs/a"))
    assert fed.model.task.predictions(torch.zeros(1, 1)).tolist() == [1.0]
    assert str(fed.model.task).endswith("unit=days)")
    config = tomllib.loads((mine / "runs/a/config.toml").read_text())
    assert config["scenario_options"]["task"] == "mine.py:Counts(unit=days)"  # in any folder
    assert [*config["own_code"]] == ["mine.py"]
    (mine / "mine.py").write_text((mine / "mine.py").read_text() + "# another\n")
    changed = equipoise("resume", "runs/a").err
    assert "mine.py has changed since" in changed


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("mine.py:Count", "Did you mean 'Counts'?"),
        ("mine.py:other", "Unknown task"),
        ("mine.py:Counts(rate=2)", "unexpected keyword argument 'rate'"),
        ("mine.py:Counts(scale=2", "Unknown task"),
        ("nowhere.py:Counts", "cannot be read"),
    ],
)
def test_what_is_no_task_is_one_sentence(mine: Path, equipoise: Any, task: str, message: str) -> None:
    assert message in equipoise("run", "--data", "wards.csv", "--task", task).err


def test_a_site_runs_no_task_that_the_server_names(mine: Path) -> None:
    assert task_of("mine.py:told") == task_of("mine.py:Counts")
    for text in ("mine.py:Counts", "mine.py:Counts(unit=days)"):
        with pytest.raises(ValueError, match="no code that a server names"):
            AppSettings(task=text)
        with pytest.raises(ValueError, match="no code that a server names"):
            Task(torch.nn.Linear(3, 1)).told({"task": text})
