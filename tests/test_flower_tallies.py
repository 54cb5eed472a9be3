"""Sites that lie about their tests, whose data are broken, or whose model diverged: each is judged by itself and named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.core.settings import Settings
from equipoise.core.tally import ClassTally
from equipoise.federation.method import Method
from equipoise.flower.app import in_process, make_client_app
from equipoise.flower.codec import Parcel
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.server.consortium import description, federation
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.site.task import Task
from equipoise.metrics.failure import ranks
from equipoise.system.errors import RunError
from helpers import in_one, others_slow
from lying import bent

nan, NAMES = math.nan, ("ward-0", "ward-1", "ward-2", "ward-3")
COUNTED = "has predictions that are no numbers, so that its loss and errors do not count"
UNUSABLE = "sent scores that cannot be used"
NUMBERS = "regression(centre=1, scale=2)"
Data = tuple[Tensor, ...]


def rows(n: int, seed: int, task: str = "classification") -> Data:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() if task != NUMBERS else 1 + 2 * x[:, 0].double()


def sites(
    tmp_path: Path,
    task: str = "classification",
    *,
    method: str = "fedavg",
    change: Callable[[int, Task], Task] = lambda m, own: own,
    one_name: bool = True,
    node: dict[str, Any] | None = None,
    measures: tuple[str, ...] = ("accuracy",),
    values: Mapping[str, Sequence[str]] | None = None,
    **given: Any,
) -> eq.Federation:
    """Four sites with test sets of 12 samples each, of one name, or of their own."""
    settings = Settings(batch_size=8, seed=3, **given)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1 if task == NUMBERS else 2))
    server = Task(net, task=task, measures=measures, attributes=values)
    tasks = {}
    for m, name in enumerate(NAMES):
        test = {"all" if one_name else name: rows(12, m + 9, task)}
        tasks[name] = change(m, replace(server, train=rows(20, m, task), test=test))
    nodes = [{"site": name, "state-dir": str(tmp_path), **(node or {"least-group": 1})} for name in NAMES]
    grid = InProcessGrid(make_client_app(lambda node, _: tasks[str(node["site"])]), nodes, {})
    told = description(Method.of(method), eq.SGD(0.05), settings, measures, "run")
    asked = Sites(Exchange(grid, told, deadline=1e9))
    asked.gather(len(NAMES), NAMES, 0.0)
    return federation(server, asked, method, eq.SGD(0.05), settings=settings, attributes=values)


def saying(fed: eq.Federation, sums: list[float], who: tuple[str, ...] = ("ward-1",), kind: str = "evaluate") -> Any:
    """The record of a round in which some sites say these sums of their tests."""

    def bend(asked: str, site: str, answer: Parcel) -> Parcel:
        if asked != kind or site not in who:
            return answer
        if kind == "evaluate":
            return Parcel({"scores": {name: {"sums": sums} for name in answer.fields["scores"]}})
        return Parcel({"found": sums})

    bent(fed, bend).fit(1, progress=False)
    return fed.records[0]


# models that rank
def rare(n: int, seed: int, share: float = -3.5) -> Data:
    """Of few samples the second class, the more probable the larger the first number."""
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=make)
    return x, (torch.rand(n, generator=make) < torch.sigmoid(share + 1.3 * x[:, 0])).long()


def of_rare(m: int, own: Task) -> Task:
    """The last site has fewer cases than numbers are shown about."""
    return replace(own, train=rare(600, m), test={"all": rare(500, m + 9, -9.0 if m == 3 else -3.5)})


def test_sites_send_how_well_a_model_ranks_and_nothing_about_few(tmp_path: Path) -> None:
    more: dict[str, Any] = {"measures": ("accuracy", "rates"), "node": {"least-group": 10}}
    fed = sites(tmp_path, change=of_rare, **more)
    history = fed.fit(2, progress=False)
    score = history.records[-1]["groups"]["all"]
    assert history.failure() == ""
    expected = torch.zeros(2, 2)
    for m in range(3):
        x, y = rare(500, m + 9)
        assert int(y.sum()) >= 10
        expected += torch.tensor(ranks(fed.predict_proba(x).double(), y))
    assert score["rates"]["chosen"][1] <= 3
    assert torch.allclose(torch.tensor(score["ranks"]), expected, atol=0.02)
    assert 0 < int(rare(500, 12, -9.0)[1].sum()) + 1 < 10


@pytest.mark.parametrize(
    "lie", [[[1.0, 0.6], [1.0, 0.2]], [[nan, 0.0], [1.0, 0.0]], [[1.0, 0.0]], [[600.0, 1.0], [1.0, 0.0]], "ranks"]
)
def test_ranks_that_cannot_be_are_refused(lie: Any, tmp_path: Path) -> None:
    fed = sites(tmp_path, change=of_rare, measures=("accuracy", "rates"))

    def bend(asked: str, site: str, answer: Parcel) -> Parcel:
        if asked != "evaluate" or site != "ward-1":
            return answer
        return Parcel({"scores": {name: {**scores, "ranks": lie} for name, scores in answer.fields["scores"].items()}})

    bent(fed, bend).fit(1, progress=False)
    assert fed.records[-1]["unmeasured"] == {"ward-1": UNUSABLE}


class Strict(eq.Classification):
    """Is of no use, whatever it does, in words that stay at the site."""

    def useless(self, outputs: Tensor, predicted: Tensor, y: Tensor) -> str:
        return "secret words"


def test_a_site_sends_that_a_model_is_of_no_use_by_its_task_and_no_word_of_why(tmp_path: Path) -> None:
    fed = sites(tmp_path, task=Strict())  # type: ignore[arg-type]
    seen = []

    def bend(asked: str, site: str, answer: Parcel) -> Parcel:
        seen.append(str(answer.fields))
        return answer

    bent(fed, bend).fit(1, progress=False)
    assert fed.history.failure().endswith("the test of the task finds it no better than a guess")
    assert not any("secret" in text for text in seen)


@pytest.mark.parametrize("loss", others_slow([nan, math.inf, 1e300], fast=(0,)))
@pytest.mark.parametrize("one_name", [True, False])
def test_one_site_without_a_loss_does_not_take_it_from_all(loss: float, one_name: bool, tmp_path: Path) -> None:
    """Its counts are what it may say of itself; the loss is that of the others, and the record names it."""
    honest, lying = (sites(tmp_path / name, one_name=one_name) for name in ("a", "b"))
    honest.fit(1, progress=False)
    record, right = saying(lying, [12, loss, 5, 12, 11]), honest.records[0]
    assert record["unmeasured"] == {"ward-1": COUNTED}
    assert "unmeasured" not in right
    assert "diverged" not in record
    assert record["clients"]["accuracy"][1] == 5 / 12
    if one_name:
        assert record["groups"]["all"]["undefined"] == 1
        assert record["groups"]["all"]["n"] == 48
        assert math.isfinite(record["groups"]["all"]["loss"])
    else:
        assert record["groups"]["ward-1"] == {"accuracy": 5 / 12, "n": 12, "undefined": 1}
        assert record["groups"]["ward-0"] == right["groups"]["ward-0"]


@pytest.mark.parametrize("sums", [[12, nan, 5, 12, 12], [12, 1e300, 12, 12, 12]])
def test_a_loss_that_is_no_number_where_all_have_a_prediction_is_a_lie(sums: list[float], tmp_path: Path) -> None:
    record = saying(sites(tmp_path), sums)
    assert record["unmeasured"] == {"ward-1": UNUSABLE}
    assert (record["groups"]["all"]["n"], record["clients"]["accuracy"][1]) == (36, None)


@in_one("wide", [2.0**62, 2.0**61])
@in_one("wrong", [("right", "true", "chosen"), ("true", "chosen"), ("true",), ("chosen",)])
def test_counts_whose_sum_wraps_around_are_refused(wide: float, wrong: tuple[str, ...]) -> None:
    """Several that add up to 2^64, which is 0 in 64 bits, and n more."""
    n, others = 12.0, int(2.0**64 / wide)
    counts = [[n, *[wide if name in wrong else 0.0] * others] for name in ("right", "true", "chosen")]
    with pytest.raises(ValueError, match="counts"):
        ClassTally.from_vector(
            torch.tensor([n, 1.0, *counts[0], *counts[1], *counts[2]], dtype=torch.float64), 1 + others
        )


@pytest.mark.parametrize("errors", [(nan, nan), (math.inf, 1e200), (math.inf, math.inf)])
def test_errors_that_are_no_numbers_are_those_of_the_site_alone(errors: tuple[float, float], tmp_path: Path) -> None:
    record = saying(sites(tmp_path, NUMBERS), [12, 1.0, *errors, 3.0])
    assert record["unmeasured"] == {"ward-1": COUNTED}
    assert all(math.isfinite(record["groups"]["all"][name]) for name in ("rmse", "mae", "loss"))
    assert record["groups"]["all"]["n"] == 36
    assert record["clients"]["rmse"][1] is None or not math.isfinite(record["clients"]["rmse"][1])
    assert all(math.isfinite(record["clients"]["rmse"][m]) for m in (0, 2, 3))


@pytest.mark.parametrize("sums", [[12, 1.0, 4.0, 100.0, 3.0], [12, 1.0, 400.0, 1.0, 3.0], [12, nan, 4.0, 5.0, 3.0]])
def test_errors_that_cannot_go_together(sums: list[float], tmp_path: Path) -> None:
    assert saying(sites(tmp_path, NUMBERS), sums)["unmeasured"] == {"ward-1": UNUSABLE}


@pytest.mark.parametrize("error", [1e13, 1e100, 1e150])
def test_errors_that_no_training_gives_are_a_lie(error: float, tmp_path: Path) -> None:
    """One site's finite but absurd errors, which go together, do not become those of all."""
    record = saying(sites(tmp_path, NUMBERS), [12, 1.0, 12 * error**2, 12 * error, 3.0])
    assert record["unmeasured"] == {"ward-1": UNUSABLE}
    assert record["groups"]["all"]["n"] == 36
    assert record["groups"]["all"]["rmse"] < 100


@pytest.mark.parametrize("task", ["classification", NUMBERS])
def test_a_model_that_diverged_everywhere_is_shown(task: str, tmp_path: Path) -> None:
    """Where the loss of most is none, the model is at fault: nobody is left out, and the record is that of a run that diverged."""
    sums = [12, nan, 5, 12, 0] if task == "classification" else [12, nan, nan, nan, 3.0]
    sums[2] = 0 if task == "classification" else nan
    record = saying(sites(tmp_path, task), sums, NAMES[:3])
    assert "unmeasured" not in record
    assert not math.isfinite(record["groups"]["all"]["loss"] or nan)
    assert record["diverged"] == "its test loss is not a finite number"


def test_half_of_the_sites_without_a_loss_are_named(tmp_path: Path) -> None:
    record = saying(sites(tmp_path), [12, nan, 5, 12, 11], NAMES[:2])
    assert record["unmeasured"] == {"ward-0": COUNTED, "ward-1": COUNTED}
    assert math.isfinite(record["groups"]["all"]["loss"])


def test_broken_samples_of_one_site_are_its_own_matter(tmp_path: Path) -> None:
    """A site that is honest: one of its samples holds NaN, so the model has no output there."""

    def torn(m: int, own: Task) -> Task:
        (name, (x, y)), *_ = own.test.items()
        return replace(
            own, test={name: (torch.where(torch.arange(12)[:, None] == m, nan, x), y)} if m == 2 else own.test
        )

    for task in ("classification", NUMBERS):
        fed = sites(tmp_path / task[:5], task, change=torn)
        fed.fit(1, progress=False)
        [record] = fed.records
        assert record["unmeasured"] == {"ward-2": COUNTED}
        assert math.isfinite(record["groups"]["all"]["loss"])
        assert "diverged" not in record


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_the_number_of_each_site_follows_from_its_scores(method: str, tmp_path: Path) -> None:
    """Of one model nothing is said twice, so that nothing can differ."""
    fields: list[Any] = []

    def watch(kind: str, site: str, answer: Parcel) -> Parcel:
        fields.extend([answer.fields] if kind == "evaluate" else [])
        return answer

    fed = bent(sites(tmp_path, method=method), watch)
    fed.fit(1, progress=False)
    assert fields
    assert not any("own" in told for told in fields)
    assert fed.records[0]["clients"]["accuracy"] == [of["scores"]["all"]["sums"][2] / 12 for of in fields]


def test_a_site_has_the_same_samples_of_a_class_in_every_round(tmp_path: Path) -> None:
    fed = sites(tmp_path, measures=("accuracy", "rates"))
    counted = 0

    def bend(kind: str, site: str, answer: Parcel) -> Parcel:
        nonlocal counted
        if kind != "evaluate" or site != "ward-3":
            return answer
        counted += 1
        n, loss, *_ = answer.fields["scores"]["all"]["sums"]
        true = [6, 6] if counted == 1 else [5, 7]
        return Parcel({"scores": {"all": {"sums": [n, loss, 2, 2, *true, *true]}}})

    bent(fed, bend).fit(2, progress=False)
    assert "unmeasured" not in fed.records[0]
    assert fed.records[1]["unmeasured"] == {"ward-3": "sent other samples of the classes than before"}


# what is held out
def test_what_is_held_out_is_told_of_as_tests_are(tmp_path: Path) -> None:
    """Nothing of fewer than least-group samples."""
    told: list[Any] = []

    def watch(kind: str, site: str, answer: Parcel) -> Parcel:
        told.extend([answer.fields["found"]] if kind == "evaluate.validation" else [])
        return answer

    for least, sent in ((1, 4), (4, 4), (5, 0)):
        told.clear()
        fed = bent(sites(tmp_path / str(least), validation=0.2, node={"least-group": least}), watch)
        if sent:
            fed.fit(1, progress=False)
            assert fed.records[0]["validation"]["n"] == 4 * 4
        else:
            with pytest.raises(RunError, match=r"validation=0\.2: no site .* or not the least-group samples"):
                fed.fit(1, progress=False)
        assert len([x for x in told if x is not None]) == sent


def test_one_site_without_a_loss_does_not_take_it_from_the_validation(tmp_path: Path) -> None:
    for name, task, sums in (("a", "classification", [4, nan, 1, 4, 3]), ("b", NUMBERS, [4, nan, nan, nan, 1.0])):
        record = saying(sites(tmp_path / name, task, validation=0.2), sums, kind="evaluate.validation")
        found = record["validation"]
        assert math.isfinite(found["loss"])
        assert all(math.isfinite(of["loss"]) for of in found["groups"].values())
        assert all(math.isfinite(found["clients"]["loss"][m]) for m in (0, 2, 3))
        assert not math.isfinite(found["clients"]["loss"][1] or nan)


def test_what_sites_reach_alone_is_in_the_unit_of_the_target() -> None:
    """Also where an error is larger than one."""
    data = [(x, 100 * y) for x, y in (rows(20, m, NUMBERS) for m in range(3))]
    given: Any = {"task": "regression(centre=100, scale=200)", "tests": {"all": data[0]}, "collaborative": True}
    net = nn.Linear(3, 1)
    alone = in_process(net, data, "fedavg", eq.SGD(0.001), **given).standalone(2)
    assert min(alone["standalone_test"] or [0]) > 1
    simulated = eq.Federation(net, data, "fedavg", eq.SGD(0.001), **given).standalone(2, progress=False)
    assert alone["standalone_test"] == simulated["standalone_test"]


# sensitive attributes
@pytest.mark.parametrize("lacks", [1, 3])
def test_a_site_without_sensitive_attributes_is_named(lacks: int, tmp_path: Path) -> None:
    def some(m: int, own: Task) -> Task:
        return own if m == lacks else replace(own, train=(*own.train, torch.arange(20) % 2))

    with pytest.raises(
        RunError, match=f"ward-{lacks} has other sensitive attributes \\(none\\) than most sites \\(1\\)"
    ):
        sites(tmp_path, change=some)


def test_a_site_with_sensitive_attributes_among_others_without(tmp_path: Path) -> None:
    def one(m: int, own: Task) -> Task:
        return replace(own, train=(*own.train, torch.zeros(20, 2, dtype=torch.int64))) if m == 2 else own

    with pytest.raises(RunError, match=r"ward-2 has other sensitive attributes \(2\) than most sites \(none\)"):
        sites(tmp_path, change=one)


def test_values_of_sensitive_attributes_are_agreed_on_by_codes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def named(values: tuple[str, ...]) -> Callable[[int, Task], Task]:
        def change(m: int, own: Task) -> Task:
            own = replace(own, train=(*own.train, torch.arange(20) % 2))
            return replace(own, attributes={"sex": values if m == 1 else ("female", "male")})

        return change

    fed = sites(tmp_path / "a", change=named(("female", "male")))
    told = [site.agreement for site in fed.population.sites.members]  # type: ignore[union-attr]
    assert len({tuple(of.items()) for of in told}) == 1
    assert not any("male" in str(of) for of in told)
    with pytest.raises(RunError, match="ward-1 has other values of sensitive attributes"):
        sites(tmp_path / "b", change=named(("male", "female")))
    with pytest.raises(RunError, match=r"connected and able to take part: .*none"):  # whose log has the reason
        sites(tmp_path / "c", change=lambda m, own: replace(own, attributes={"sex": ("f", "m")}))
    assert "the samples have 0, found sex" in caplog.text
