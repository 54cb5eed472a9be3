"""What each client of a run gave, from a federation, from the folders of runs, and on a page."""

# ruff: noqa: F401, F811 (fixtures are imported)

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.analysis.contribution import FILE, contributions
from equipoise.federation.worth import OTHERS, SERVER, UNTOLD, contradictions, validation_of
from equipoise.report.contribution import COPY, headline, sentences
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from equipoise.system.errors import InputError, RunError
from run_helpers import equipoise

N = 5
DRAW = torch.Generator().manual_seed(3)
W = torch.randn(6, 3, generator=DRAW, dtype=torch.float64)


def samples(n: int, *, wrong: bool = False) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(n, 6, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (n,), generator=draw) if wrong else (x @ W).argmax(1)


def federation(method: str = "fedavg", **options: object) -> eq.Federation:
    """Five clients, of whom the last has labels at random."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    data = [samples(60 + k, wrong=k == N - 1) for k in range(N)]
    given = {"server_validation": samples(200), "epochs": 5, **options}
    return eq.Federation(net, data, method, eq.SGD(lr=0.1), batch_size=10, **given)  # type: ignore[arg-type]


def loss(fed: eq.Federation) -> float:
    return fed.evaluate(validation_of(fed)[SERVER])["loss"]


def test_values_sum_to_what_all_gained_and_training_is_as_without() -> None:
    fed, other = federation(), federation()
    before = loss(fed)
    worth = eq.ledger(fed, 3)
    other.fit(3, progress=False)
    assert torch.equal(fed.progress.vector, other.progress.vector)
    assert worth.values.shape == (N, 2)
    assert worth.utilities == ("loss", "accuracy")
    assert worth.values[:, 0].sum() == pytest.approx(before - loss(fed), abs=1e-12)
    np.testing.assert_allclose(worth.values, worth.rounds.by_round.sum(0), atol=1e-15)
    assert worth.values[:, 0].argmin() == N - 1, "labels at random are worth least"
    assert worth.rounds.total.evaluations == 3 * 2**N
    assert worth.alike is not None
    assert worth.alike[2] < 1


@pytest.mark.parametrize("evaluator", ["gtg", "loo", "banzhaf", "owen(points=2, count=20)", "comfedsv", "tmr"])
def test_every_evaluator_finds_the_client_with_labels_at_random(evaluator: str) -> None:
    worth = eq.ledger(federation(), 2, evaluator, ["loss"])
    assert worth.values[:, 0].argmin() == N - 1


def test_values_depend_on_the_seed_alone() -> None:
    first, again = (eq.ledger(federation(), 2, "owen", ["loss"]).values for _ in range(2))
    assert np.array_equal(first, again)


def test_groups_are_those_of_the_clients_and_small_ones_count_together() -> None:
    names = {"tests": {"a": samples(30), "b": samples(31)}, "groups": ["a", "a", "a", "a", "b"]}
    fed = federation(validation=0.2, server_validation=None, **names)
    assert {name: data.size for name, data in validation_of(fed).items()} == {"a": 48, "b": 12}
    worth = eq.ledger(fed, 1, utilities=["worst", "std", "gap"])
    assert worth.measured_on == {"a": 48, "b": 12}
    small = federation(validation=0.1, server_validation=None, **names)
    assert {name: data.size for name, data in validation_of(small).items()} == {"a": 24, OTHERS: 6}


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(RunError, match=r"never on test samples.*--validation 0.2") as refused:
        eq.ledger(federation(server_validation=None), 1)
    assert refused.value.kind == UNTOLD
    with pytest.raises(InputError, match="standalone: its clients share no model"):
        eq.ledger(federation("standalone"), 1)
    with pytest.raises(InputError, match="worst compares groups"):
        eq.ledger(federation(), 1, utilities=["worst"])
    with pytest.raises(InputError, match="each once; found loss, loss"):
        eq.ledger(federation(), 1, utilities=["loss", "loss"])
    with pytest.raises(ValueError, match=r"Unknown utility 'lost'. Did you mean 'loss'"):
        eq.ledger(federation(), 1, utilities=["lost"])
    with pytest.raises(ValueError, match="Unknown evaluator 'shapely'"):
        eq.ledger(federation(), 1, "shapely")


def test_a_client_in_no_round_is_missing_and_not_worth_nothing() -> None:
    worth = eq.ledger(federation(participation=0.4), 1)
    assert np.isnan(worth.values[:, 0]).sum() == N - 2
    assert worth.rounds.attended.sum() == 2


def test_a_copy_is_seen_by_its_cosine() -> None:
    data = [samples(60), samples(60), samples(70), samples(80)]
    net = nn.Linear(6, 3).double()
    fed = eq.Federation(net, data, "fedavg", eq.SGD(lr=0.1), steps=4, batch_size=60, server_validation=samples(100))
    worth = eq.ledger(fed, 2, utilities=["loss"])
    assert worth.alike is not None
    assert set(worth.alike[:2]) == {fed.names[0], fed.names[1]}
    assert worth.alike[2] > COPY
    assert worth.values[0, 0] == pytest.approx(worth.values[1, 0], rel=0.1)


def test_first_by_one_utility_and_last_by_another() -> None:
    values = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [np.nan, np.nan]])
    assert [*contradictions("abcd", ["loss", "worst"], values)] == [("a", "loss", "worst"), ("c", "worst", "loss")]
    assert not [*contradictions("ab", ["loss", "worst"], values[:2])]


# runs in folders
@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two methods on four hospitals with two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("qffl", 0), ("qffl", 1)):
        config = configure(method, "heart", rounds=2, seed=seed, validation=0.2)
        runs.start(config, folder / f"{method}-seed{seed}")
        runs.execute(folder / f"{method}-seed{seed}", progress=False)
    return folder


def test_runs_that_differ_by_seeds(hospitals: Path) -> None:
    paths = [hospitals / f"fedavg-seed{k}" for k in range(2)]
    found = contributions(paths, utilities=["loss", "worst"])
    one = contributions(paths[0], utilities=["loss", "worst"])
    assert found.clients == one.clients
    assert len(found.runs) == 2
    np.testing.assert_array_equal(found.values[0], one.mean)
    assert np.isnan(one.half).all()
    assert (found.half >= 0).all()
    assert all(pair[0] != pair[1] for pair in found.indistinguishable())
    assert not one.indistinguishable()
    rewards = found.reward(100.0, floor=5.0)
    assert rewards.amounts.sum() + rewards.left == pytest.approx(100)
    assert rewards.amounts.min() >= 5
    document = found.document()
    assert json.loads(json.dumps(document)) == document
    assert document["runs"] == 2
    assert min(document["got"]) > 0
    assert max(document["got"]) <= 1


def test_what_was_measured_is_read_and_not_measured_again(hospitals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hospitals / "fedavg-seed0"
    first = contributions(path, "loo", ["loss"])
    monkeypatch.setattr(
        "equipoise.analysis.contribution.ledger", lambda *given, **options: pytest.fail("trained again")
    )
    assert contributions(path, "loo", ["loss"]).runs == first.runs
    (path / FILE).write_text("{")
    with pytest.raises(RunError, match=r"contribution.json is damaged. Delete it"):
        contributions(path, "loo", ["loss"])
    (path / FILE).unlink()


def test_runs_of_two_methods_are_refused(hospitals: Path) -> None:
    with pytest.raises(RunError, match="Name runs of one method"):
        contributions([hospitals / "fedavg-seed0", hospitals / "qffl-seed0"])


def test_the_command(hospitals: Path, tmp_path: Path, equipoise: Any) -> None:
    given = [
        "contribution",
        *(str(hospitals / f"qffl-seed{k}") for k in range(2)),
        "--utility",
        "loss",
        "--utility",
        "worst",
    ]
    page = tmp_path / "page.html"
    code, out, _ = equipoise(*given, "--budget", "1000", "--floor", "10", "--output", str(page))
    words = " ".join(out.split())
    assert not code
    assert "gave most and" in words or "do not tell who gave most" in words
    assert "all together" in words
    assert "amount" in words
    assert "not test samples" in words
    html = page.read_text()
    assert "What each client gave" in html
    assert "cleveland" in html
    assert "<svg" in html
    document = json.loads(equipoise(*given, "--json")[1])
    assert document["utilities"] == ["loss", "worst"]
    assert len(document["mean"]) == 4
    assert document["evaluations"] == 2 * 2 * 2**4
    assert headline(document) in words
    assert all(sentence.split(":")[0] in words for sentence in sentences(document))


def test_the_command_refuses_what_has_no_effect(hospitals: Path, equipoise: Any) -> None:
    run = str(hospitals / "qffl-seed0")
    for given, why in (
        (["--floor", "3"], "--floor"),
        (["--json", "--output", "x.html"], "--output"),
        (["--evaluator", "gtgg"], "Did you mean 'gtg'"),
        (["--budget", "10", "--floor", "9"], "floor"),
    ):
        code, _, err = equipoise("contribution", run, "--utility", "loss", *given)
        assert code, given
        assert why in " ".join(err.split()), given
