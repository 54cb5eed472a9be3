"""`eq.compare`: methods and seeds from Python, as a comparison that can be gone on with; and what shows itself in a notebook."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.federation import standing
from equipoise.records.directory import members
from equipoise.runs import RunError
from equipoise.system.terminal import Terminal
from helpers import Twice
from run_helpers import equipoise as equipoise

METHODS = ["fedavg", "fedprox(mu=1)"]


def part(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + 0.3 * seed > 0.5).long()


pytestmark = pytest.mark.drawn  # pages of a notebook


def net() -> nn.Module:
    return nn.Linear(4, 2)


CLIENTS = [part(20, k) for k in range(3)]
GIVEN: dict[str, Any] = {
    "tests": {"a": part(300, 7), "b": part(400, 1)},
    "groups": ["a", "b", "b"],
    "solver": eq.SGD(0.1),
    "batch_size": 8,
    "rounds": 2,
    "progress": False,
}


def compared(
    methods: Any = METHODS, seeds: Any = 2, clients: Any = CLIENTS, start: Any = net, **more: Any
) -> eq.Comparison:
    return eq.compare(start, clients, methods, seeds, **{**GIVEN, **more})


def records(found: eq.Comparison) -> list[Any]:
    return [[{k: v for k, v in r.items() if k != "seconds"} for r in h.records] for h in found.histories]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fairgrad(attribute=sx)", "Unknown attribute 'sx'"),
        ("reweighing(attribute=sex*age)", "Unknown attribute 'age'"),
        ("ffalm(attribute=sex)", "'sex' has 3"),
    ],
)
def test_groups_that_are_not_there_are_told_before_any_method_trains(method: str, said: str, tmp_path: Path) -> None:
    people = [(x, y, torch.arange(len(y)) % 3) for x, y in CLIENTS]
    with pytest.raises(ValueError, match=said):
        compared(["fedavg", method], 1, people, directory=tmp_path / "c", attributes={"sex": ["f", "m", "x"]})
    assert not (tmp_path / "c").exists()


def test_every_run_is_the_federation_on_its_own() -> None:
    found = compared()
    assert [(h.label, h.seed, len(h)) for h in found.histories] == [
        (label, seed, 2) for seed in (0, 1) for label in METHODS
    ]
    torch.manual_seed(1)
    given = {k: v for k, v in GIVEN.items() if k not in ("rounds", "progress")}
    fed = eq.Federation(net(), CLIENTS, METHODS[1], seed=1, **given)
    fed.fit(2, progress=False)
    alone = [{k: v for k, v in r.items() if k != "seconds"} for r in fed.records]
    assert records(found)[3] == alone


def test_table_tests_and_words_say_the_same() -> None:
    found = compared(seeds=3, solver=eq.SGD(0.5), rounds=5)
    table = found.table
    assert list(table.index) == METHODS
    by_hand = [
        100 * np.mean([[s["accuracy"] for s in r["groups"].values()] for r in h.records]) for h in found.histories
    ]
    assert table["AVG", "mean"]["fedavg"] == pytest.approx(np.mean(by_hand[::2]))
    assert table["AVG", "std"]["fedavg"] == pytest.approx(np.std(by_hand[::2], ddof=1))
    assert {"a", "b", "worst", "STD"} < set(table.columns.get_level_values(0))
    tests = found.tests.set_index(["method", "statistic"]).loc["fedprox(mu=1)", "AVG"]
    assert tests["difference"] == pytest.approx(np.mean(by_hand[1::2]) - np.mean(by_hand[::2]))
    assert tests["low"] <= tests["difference"] <= tests["high"]
    assert found["leaders"]["avg"]["leading"] == table["AVG", "mean"].idxmax()
    assert found.best == found["leaders"]["avg"]["best"]
    assert (found.best is None) == ("is the most accurate" not in found.verdict)
    assert found.verdict.startswith("Neither method") or "fedavg" in found.verdict
    assert "fedprox(mu=1)" in str(found)
    assert "\x1b" not in str(found)
    assert repr(found) == "Comparison(fedavg, fedprox(mu=1); 3 seeds, 5 rounds)"


def test_one_method_has_no_leader_and_no_test() -> None:
    found = compared(["fedavg"], seeds=[4])
    assert found.best is None
    assert found.tests.empty
    assert found["seeds"] == [4]


def test_p_values_are_corrected_for_the_methods() -> None:
    tests = compared([*METHODS, "fedprox(mu=3)"], seeds=3, start=lambda seed: net()).tests
    assert (tests["holm"].dropna() >= tests["p"].dropna()).all()


@dataclass(frozen=True)
class Same(eq.Rule):
    """FedAvg by another name."""


def test_methods_may_have_labels_and_be_rules(tmp_path: Path) -> None:
    found = compared({"mine": Same(), "base": "fedavg"}, seeds=1, directory=tmp_path / "c")
    assert list(found.runs) == ["mine", "base"]
    assert found.table.loc["mine"].equals(found.table.loc["base"])
    assert [eq.History.from_run(path).label for path in members(tmp_path / "c")] == ["mine", "base"]


def test_the_first_model() -> None:
    """A module is taken as it is; a function makes another for every seed, the same whenever it is called."""

    def weights(start: Any) -> list[torch.Tensor]:
        seen = []

        class Watching(eq.Rule):
            """Sees the first model."""

        for seed in (0, 1):
            from equipoise.runs.sweep import _network

            seen.append(next(_network(start, seed).parameters()).detach())
        return seen

    module = net()
    assert all(torch.equal(w, module.weight) for w in weights(module))
    one, two = weights(net)
    assert not torch.equal(one, two)
    again = weights(lambda seed: nn.Linear(4, 2))
    assert torch.equal(one, again[0])
    assert torch.equal(two, again[1])
    widths: list[int] = []

    def build(width: int = 3, *, seed: int = 9) -> nn.Module:
        widths.append(seed)
        return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))

    weights(build)
    assert widths == [0, 1]
    before = torch.random.get_rng_state()
    weights(net)
    assert torch.equal(torch.random.get_rng_state(), before)


KILLED = """
import os, signal, sys
import test_python_compare as t
from equipoise.federation import directory as files
save, left = files.save, [int(sys.argv[2])]
def dying(*given):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return save(*given)
files.save = dying
t.compared(directory=sys.argv[1])
"""


def test_an_executor_trains_the_same_runs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dropping = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    here = compared(start=dropping, directory=tmp_path / "here")
    with Twice(4) as on:
        there = compared(start=dropping, directory=tmp_path / "there", on=on)
        assert records(there) == records(here)
        assert [(h.label, h.seed) for h in there.histories] == [(h.label, h.seed) for h in here.histories]
        more = compared(start=dropping, directory=tmp_path / "there", on=on, seeds=3)  # two of three are complete
        assert records(more)[:4] == records(here)
        assert records(compared(on=on)) == records(compared())  # without a directory


def test_processes_train_the_runs_of_a_comparison() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as on:
        found = compared(start=nn.Linear(4, 2), seeds=1, on=on)
    assert [h.label for h in found.histories] == METHODS


def test_what_fails_elsewhere_is_named(tmp_path: Path) -> None:
    far = [(1e3 * x, y) for x, y in CLIENTS]
    with Twice(2) as on, pytest.raises(eq.QuorumError, match=r"^fedavg, seed 0: training diverged in 3 of 3 clients"):
        compared(clients=far, solver=eq.SGD(1e30), seeds=1, on=on)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"on": "slurm"}, r"on must be an object with submit\(function, \*arguments\).*found 'slurm'"),
        ({"on": SimpleNamespace(submit=lambda *_: 3)}, "on.submit must return a Future of Python; found int"),
        ({"on": ThreadPoolExecutor(1), "tune": 2}, r"on: give a directory that all processes share"),
    ],
)
def test_what_is_no_executor_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        compared(**change)


def test_a_killed_comparison_goes_on_bit_for_bit(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", KILLED, str(tmp_path / "c"), "6"]  # in the last round of the second run
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode == -9
    assert len(list((tmp_path / "c").glob("*-seed*"))) == 2
    found, whole = compared(directory=tmp_path / "c"), compared()
    assert records(found) == records(whole)
    assert found.table.equals(whole.table)
    again = compared(directory=tmp_path / "c")
    assert records(again) == records(whole)
    rounds = (tmp_path / "c" / "fedavg-seed0" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in rounds] == [0, 1]


def test_a_directory_grows_and_is_read_by_the_command_line(tmp_path: Path, equipoise: Any) -> None:
    base = tmp_path / "c"
    compared(["fedavg"], seeds=1, directory=base)
    found = compared(METHODS, seeds=2, directory=base)
    assert sorted(path.name for path in members(base)) == sorted(
        ["fedavg-seed0", "fedavg-seed1", "fedprox-mu=1-seed0", "fedprox-mu=1-seed1"]
    )
    done = equipoise("report", base, "--output", tmp_path / "r.html", "--json")
    assert json.loads(done.out)["methods"][0]["avg"]["mean"] == pytest.approx(found["methods"][0]["avg"]["mean"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 3}, "rounds is 2 there and 3 here"),
        ({"solver": eq.SGD(0.2)}, "solver is SGD(lr=0.1"),
        ({"epochs": 2}, "epochs is 1 there and 2 here"),
        ({"clients": [part(20, k + 1) for k in range(3)]}, "begun with other data"),
        ({"start": lambda: nn.utils.skip_init(nn.Linear, 4, 2).requires_grad_()}, "other first values: the network"),
        ({"start": lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))}, "parameters"),
        ({"methods": {"fedavg": "fedprox(mu=1)"}}, "other settings: method is fedavg there and fedprox(mu=1) here"),
    ],
)
def test_finished_runs_are_taken_only_if_they_are_the_same(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    compared(["fedavg"], seeds=1, directory=tmp_path / "c")
    if change.get("start") and says.startswith("other first"):
        change = {"start": lambda: _constant(net())}
    with pytest.raises(eq.CheckpointError) as error:
        compared(**{"methods": ["fedavg"], "seeds": 1, "directory": tmp_path / "c", **change})
    assert says in str(error.value)


def _constant(module: nn.Module) -> nn.Module:
    for p in module.parameters():
        nn.init.constant_(p, 0.5)
    return module


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"methods": []}, "at least one"),
        ({"methods": ["fedavg", "fedavg"]}, "each once; found fedavg."),
        ({"methods": "fedavg"}, "methods must be a list"),
        ({"methods": None}, "methods must be a list"),
        ({"methods": ["fedavgg"]}, "Did you mean 'fedavg'?"),
        ({"seeds": 0}, "seeds must be a whole number >= 1"),
        ({"seeds": []}, "a list of different seeds"),
        ({"seeds": [1, 1]}, "a list of different seeds"),
        ({"seeds": [-1]}, "seeds must be a whole number >= 0"),
        ({"rounds": 0}, "rounds must be a whole number >= 1"),
        ({"last": 0}, "last must be a whole number >= 1"),
        ({"seed": 3}, "takes no seed: give seeds=[...]"),
        ({"epoch": 3}, "Did you mean 'epochs'?"),
        ({"start": nn.Linear}, "this needs in_features, out_features"),
        ({"start": 3}, "net must be an nn.Module"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        compared(**{"directory": tmp_path / "c", **change})
    assert says in str(error.value)
    assert not list(tmp_path.glob("c/*/*"))


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="holds no comparison"):
        compared(directory=tmp_path)
    base = tmp_path / "c"
    compared(["fedavg"], seeds=1, directory=base)
    (base / "fedavg-seed1").mkdir()
    (base / "fedavg-seed1" / "config.toml").write_text("")
    with pytest.raises(RunError, match="is a run of the command line"):
        compared(["fedavg"], seeds=2, directory=base)


def test_clients_may_be_a_generator() -> None:
    assert records(compared(clients=(c for c in CLIENTS))) == records(compared())


def test_figures_and_report(tmp_path: Path) -> None:
    found = compared()
    assert found.figure("tradeoff").axes
    with pytest.raises(ValueError, match="Did you mean 'bars'"):
        found.figure("bar")
    page = found.report(tmp_path / "r.html").read_text()
    assert page.index('id="figure-data"') > page.index('<section id="accuracy">')


# scikit-learn's habits
def test_probabilities_scores_and_names() -> None:
    given = {k: v for k, v in GIVEN.items() if k not in ("rounds", "progress")}
    fed = eq.Federation(net(), CLIENTS, **given)
    assert repr(fed) == "Federation(fedavg, Linear with 10 parameters, 3 clients, 0 rounds)"
    fed.fit(1, progress=False)
    assert repr(fed).startswith("Federation(fedavg, Linear with 10 parameters, 3 clients, 1 rounds, a ")
    x, y = GIVEN["tests"]["a"]
    assert torch.allclose(fed.predict_proba(x), fed.logits(x).softmax(1))
    assert torch.equal(fed.predict_proba(x).argmax(1), fed.predict(x))
    assert fed.score(x, y) == pytest.approx((fed.predict(x) == y).double().mean().item())
    assert fed.score(torch.utils.data.TensorDataset(x, y), client=1) == fed.score(x, y, client=1)


# notebooks
def test_pages_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {k: v for k, v in GIVEN.items() if k not in ("rounds", "progress")}
    torch.manual_seed(0)
    fed = eq.Federation(net(), CLIENTS, "fedavg", names=["<b>", "c", "d"], **given)
    before = fed._repr_html_()
    assert "<svg" in before
    assert "samples each" in before
    assert "<b>" not in before
    history = fed.fit(1, progress=False)
    both = compared({"<i>x</i>": "fedavg", "y": "fedprox"})._repr_html_()
    assert "&lt;i&gt;" in both
    assert "<i>" not in both
    for page in (fed._repr_html_(), history._repr_html_(), both):
        assert "<table" in page
        assert "<svg" in page
        assert "currentColor" in page  # the ink of the page, light or dark
        assert len(page) < 60_000
    untested = eq.Federation(net(), CLIENTS).fit(1, progress=False)
    assert "Comparison(fedavg; 1 seed, 1 round)" in untested._repr_html_()


def test_the_bar_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython's display stands in: one output, replaced with every round."""
    import IPython.display

    shown: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            shown.append(page.data)

    def display(page: Any, display_id: bool) -> Handle:
        assert display_id
        assert not shown
        shown.append(page.data)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(standing, "Terminal", lambda **given: Terminal(**given, force_jupyter=True))
    compared(["fedavg"], seeds=1, progress=True)
    assert 'value="2" max="2"' in shown[-1]
    assert "fedavg, seed 0 2/2 a " in shown[-1]


def test_runs_may_stop_early_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    given = {"rounds": 8, "validation": 0.3, "solver": eq.SGD(0.5), "directory": tmp_path / "c", "seeds": 1}
    stop = eq.EarlyStopping(1)
    found = compared(["fedavg"], stop=stop, **given)
    (history,) = found.histories
    assert 0 < len(history) < 8
    assert history.stopped
    assert found["notes"][0].startswith(f"fedavg, seed 0, stopped after {len(history)} of 8 rounds: ")
    again = compared(["fedavg", "fedprox(mu=1)"], stop=stop, **given)
    assert records(again)[0] == records(found)[0]
    for other in (eq.EarlyStopping(3), None, lambda records: False):
        with pytest.raises(
            eq.CheckpointError, match=r"was begun with other settings: stop is EarlyStopping\(patience=1, .* here"
        ):
            compared(["fedavg"], stop=other, **given)
    with pytest.raises(ValueError, match="EarlyStopping needs"):
        compared(["fedavg"], stop=stop, seeds=1)
