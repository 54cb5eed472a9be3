"""Run directories: what is in them, what they can be made again from, and what is refused."""

# ruff: noqa: F401 (fixtures are imported)
from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn import metrics
from torch import nn

import equipoise as eq
from equipoise.core.model import Bound
from equipoise.federation import checkpoint
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError, configure
from equipoise.system import files
from equipoise.system.seals import open_json
from helpers import others_slow
from run_helpers import SIZES, assert_same_run, cache, config, executed, records, started, tensors

FILES = {"config.toml", "manifest.json", "metrics.jsonl", "checkpoint/checkpoint.json", "summary.json"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return executed(tmp_path_factory.mktemp("runs") / "run")


def listing(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


# what a run leaves
def test_a_run_leaves_what_is_documented_and_no_pickle(run: Path) -> None:
    runs_state = {"checkpoint/state-000004.safetensors"}
    assert listing(run) == FILES | runs_state
    for name in listing(run):
        content = (run / name).read_bytes()
        assert not content.startswith((b"\x80", b"PK")), f"{name} may be a pickle or an archive of one"
        if not name.endswith(".safetensors"):
            assert b"\x80\x04\x95" not in content
            content.decode()
    json.loads((run / "manifest.json").read_text())
    json.loads((run / "checkpoint/checkpoint.json").read_text())
    assert load_file(run / "checkpoint/state-000004.safetensors").keys() >= {"vector"}


def test_the_manifest_tells_where_the_numbers_come_from(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["versions"].keys() >= {"python", "equipoise", "torch", "numpy"}
    assert manifest["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    (machine,) = manifest["machines"]
    assert (machine["round"], machine["cores"], machine["threads"]) == (0, os.cpu_count(), 1)
    assert machine["torch"] == torch.__version__
    assert manifest["client_names"] == ["optdigits-1", "photo-1", "fonts-1", "street-1"]
    assert manifest["client_groups"] == ["optdigits", "photo", "fonts", "street"]
    assert manifest["data"]
    assert manifest["header"][0].startswith(
        "method scaffold+fedheal · 4 clients, 3 a round · 1 local epochs of batch 8"
    )
    assert manifest["header"][-1] == "1 processor thread, cpu"


def test_the_metrics_have_a_line_for_every_round(run: Path) -> None:
    found = records(run)
    assert [record["round"] for record in found] == [0, 1, 2, 3]
    assert all(len(record["ids"]) == len(record["weights"]) == 3 for record in found)
    assert all(record["groups"].keys() == {"optdigits", "photo", "fonts", "street"} for record in found)


def test_the_summary_is_that_of_the_history(run: Path) -> None:
    history = eq.History.from_run(run)
    assert open_json((run / "summary.json").read_text()) == history.summary()
    assert history.method == history.label == "scaffold+fedheal"
    assert (history.scenario, history.seed, len(history)) == ("digits", 0, 4)


def test_a_run_without_git_is_a_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_same_run(run, executed(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["git"] is None


def test_every_round_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    history = runs.execute(
        started(tmp_path / "run"), progress=False, on_round=lambda record: told.append(record["round"])
    )
    assert told == [record["round"] for record in history.records] == [0, 1, 2, 3]


# the configuration
def test_the_configuration_is_complete_and_makes_the_same_run_again(run: Path, tmp_path: Path) -> None:
    written = tomllib.loads((run / "config.toml").read_text())
    assert written.keys() == {f.name for f in fields(RunConfig)} - {
        "attack",
        "attack_scale",
        "clip",
        "steps",
        "chunk",
        "data",
        "on",
        "devices",
        "track",
        "head",
        "patience",
        "time_limit",
        "norm_limit",
        "own_code",
        "measures",
        "positive",
        "report",
        "left_out",
        "tuned",
        "origins",
    }  # None, which TOML cannot say
    (tmp_path / "config.toml").write_bytes((run / "config.toml").read_bytes())
    runs.execute(tmp_path, progress=False)
    assert_same_run(run, tmp_path)


@pytest.mark.parametrize(
    "changes",
    others_slow(
        [
            {"method": "fedprox+afl", "optimizer": "adamw", "momentum": 0.0, "lr": 0.01, "weight_decay": 0.1},
            {"clip": 0.5, "engine": "stacked"},
            {
                "method": "fedprox(mu=0.1)+fphl(history=exclusive, strict=True)",
                "seed": 3,
                "quorum": 0.25,
                "norm_limit": 50.0,
            },
            {"scenario": "digits-iid", "network": "cnn", "network_options": {"width": 4}, "rounds": 1},
        ],
        fast=(1, 2),
    ),
)
def test_every_setting_survives_the_file(tmp_path: Path, changes: dict[str, Any]) -> None:
    one = executed(tmp_path / "one", config(**changes))
    assert runs.load(one) == config(**changes)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "config.toml").write_bytes((one / "config.toml").read_bytes())
    runs.execute(tmp_path / "two", progress=False)
    assert_same_run(one, tmp_path / "two")


def test_the_settings_decide_the_result(run: Path, tmp_path: Path) -> None:
    other = executed(tmp_path / "run", config(seed=1))
    assert not torch.equal(tensors(run)["vector"], tensors(other)["vector"])


def test_what_is_not_chosen_is_the_scenarios() -> None:
    found = configure("fedheal", "digits", scenario_options=SIZES)
    protocol = eq.scenario("digits", **SIZES).protocol
    assert (found.rounds, found.epochs, found.batch_size) == (protocol.rounds, protocol.epochs, protocol.batch_size)
    assert (found.lr, found.momentum, found.weight_decay) == (protocol.lr, protocol.momentum, protocol.weight_decay)
    assert (found.network, found.label, found.method, found.seed) == ("cnn", "fedheal", "fedheal", 0)
    assert found.solver == eq.SGD(protocol.lr, protocol.momentum, protocol.weight_decay)


def test_choices_and_overrides_count() -> None:
    found = configure(
        "fedprox+fedheal",
        overrides={"fedheal.tau": 0.5, "fedprox.mu": 1},
        scenario_options=SIZES,
        rounds=3,
        optimizer="adam",
        clip=None,
    )
    assert found.method == found.label == "fedprox(mu=1)+fedheal(tau=0.5)"
    assert (found.rounds, found.optimizer, found.momentum, found.lr) == (3, "adam", 0.0, 0.001)
    assert found.solver == eq.Adam(0.001, weight_decay=found.weight_decay)
    assert configure("fedavg", scenario_options=SIZES, optimizer="adamw", lr=0.5).solver == eq.Adam(
        0.5, weight_decay=found.weight_decay, decoupled=True
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds = [", "config.toml is damaged"),
        (b"\xff\xfe", "config.toml is damaged"),
        ("", "label is missing"),
        ("speed = 3", "Unknown setting 'speed'."),
        ("rounds = 0", "rounds must be a whole number >= 1; found 0"),
        ('rounds = "many"', "rounds must be a whole number >= 1; found 'many'"),
        ("lr = nan", "lr must be > 0 and finite, or a schedule such as cosine(0.1, warmup=5); found nan"),
        ("participation = 1.5", "participation must be in (0, 1]; found 1.5"),
    ],
)
def test_a_damaged_configuration_is_refused(run: Path, tmp_path: Path, text: str | bytes, expected: str) -> None:
    path = tmp_path / "config.toml"
    if isinstance(text, bytes):
        path.write_bytes(text)
    elif expected.endswith("damaged") or not text:
        path.write_text(text)
    else:
        name = text.split(" ")[0]
        kept = [line for line in (run / "config.toml").read_text().splitlines() if not line.startswith(f"{name} =")]
        path.write_text("\n".join([text, *kept]))
    with pytest.raises(RunError) as error:
        runs.execute(tmp_path, progress=False)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


# directories
def test_a_directory_is_taken_by_the_same_run_only(run: Path, tmp_path: Path) -> None:
    runs.start(config(), run)
    with pytest.raises(
        RunError,
        match=r"other settings: rounds is 4 there and 5 here, --set clients is 4 there and 3 here, --set alpha is not given there and 1 "
        r"here\. Choose another --name, or delete it",
    ):
        runs.start(config(rounds=5, scenario_options={**config().scenario_options, "clients": 3, "alpha": 1}), run)
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        runs.start(config(), tmp_path)
    assert listing(tmp_path) == {"diary.txt"}


def test_tuples_read_back_as_lists_are_the_same_settings(tmp_path: Path) -> None:
    settings = config(network_options={"hidden": (8,)})
    runs.start(settings, tmp_path)
    runs.start(settings, tmp_path)


def test_a_finished_run_is_read_and_not_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: (run / name).stat().st_mtime_ns for name in listing(run)}
    monkeypatch.setattr(eq.Federation, "fit", None)
    assert len(runs.execute(run, progress=False)) == 4
    assert {name: (run / name).stat().st_mtime_ns for name in listing(run)} == before


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(ValueError, match=r"is not a run: it has no config.toml"):
            runs.execute(path, progress=False)


def test_a_name_is_one_plain_folder_name(tmp_path: Path) -> None:
    for name in ("a", "a-b_c.d+e=1", "x" * 120):
        assert runs.place(tmp_path, name, "unused") == tmp_path / name
    for name in ("", ".", "..", "...", "a/b", "/a", "a b", "ä", "-a", "a\n", "x" * 121, "*", "a\\b"):
        with pytest.raises(ValueError, match="a run's name may hold") as error:
            runs.place(tmp_path, name, "unused")
        example = str(error.value).split("for example ")[1].rstrip(".").strip("'")
        assert runs.place(tmp_path, example, "unused") == tmp_path / example


def test_without_a_name_a_free_one_is_found(tmp_path: Path) -> None:
    for expected in ("run", "run-2", "run-3"):
        path = runs.place(tmp_path, None, "run")
        assert path == tmp_path / expected
        path.mkdir()


def test_a_slug_is_a_short_folder_name_of_its_own() -> None:
    assert runs.slug("fedprox(mu=0.1)+fedheal:office") == "fedprox-mu=0.1-+fedheal-office"
    one, two = ("+".join([f"fedprox(mu={k})"] * 20 + [end]) for k, end in ((1, "afl"), (1, "qffl")))
    assert len(runs.slug(one)) < 140
    assert runs.slug(one) != runs.slug(two)


# files
def test_a_sweep_removes_what_was_half_written_and_nothing_else(tmp_path: Path) -> None:
    for name in (".config.toml.17.part", ".lock", "mine.part", "config.toml"):
        (tmp_path / name).write_text("")
    files.sweep(tmp_path)
    assert listing(tmp_path) == {".lock", "mine.part", "config.toml"}


def test_a_checkpoint_keeps_every_bit_of_every_kind(tmp_path: Path) -> None:
    values = {
        "a/0": torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45]),
        "b": torch.arange(6).view(2, 3).T,
        "c": torch.zeros(0, 3, dtype=torch.float64),
        "d": torch.tensor(True),
        "e": torch.ones(2).expand(3, 2),
    }
    checkpoint.write(tmp_path, values, {"t": 7, "rounds": 9, "fingerprint": {"ü": [1]}})
    found, meta = checkpoint.read(tmp_path)
    assert found.keys() == values.keys()
    for name, value in values.items():
        assert found[name].shape == value.shape
        assert found[name].dtype == value.dtype
        assert found[name].contiguous().numpy().tobytes() == value.contiguous().numpy().tobytes()
    assert (meta["t"], meta["rounds"], meta["fingerprint"]) == (7, 9, {"ü": [1]})
    assert listing(tmp_path) == {"checkpoint.json", "state-000007.safetensors"}


# the Python interface as the documentation shows it
class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def hospital(seed: int, n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator) + seed / 4
    return x, x[:, :3].argmax(1)


def test_the_python_interface(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, clients = Own(), [hospital(seed) for seed in range(4)]
    untouched = {k: v.clone() for k, v in net.state_dict().items()}
    tests = {"hospital A": hospital(10), "hospital B": hospital(11)}
    fed = eq.Federation(
        net, clients, "ditto-personal+fedheal", eq.SGD(lr=0.1, momentum=0.9), tests=tests, epochs=2, batch_size=8
    )
    history = fed.fit(rounds=6, directory=tmp_path / "run", progress=False)
    frame = history.frame()
    assert list(frame.columns) == ["round", "group", "accuracy", "loss"]
    assert len(frame) == 6 * 2
    assert frame.accuracy.iloc[-2:].mean() > 0.6
    assert history.report(tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    x, y = hospital(12)
    assert fed.predict(x).shape == y.shape
    assert fed.evaluate(x, y)["accuracy"] == pytest.approx(float((fed.predict(x) == y).float().mean()))
    assert all(torch.equal(v, untouched[k]) for k, v in net.state_dict().items())  # the user's net is copied
    for client in (None, 2):
        net.load_state_dict(fed.state_dict(client=client))
        with torch.no_grad():
            assert torch.equal(net(x), fed.logits(x, client=client))
            assert torch.equal(fed.network(client=client)(x), fed.logits(x, client=client))
    assert not torch.equal(fed.logits(x, client=2), fed.logits(x))
    again = eq.Federation(
        Own(), clients, "ditto-personal+fedheal", eq.SGD(lr=0.1, momentum=0.9), tests=tests, epochs=2, batch_size=8
    )
    assert again.resume(tmp_path / "run") == 0
    assert torch.equal(again.logits(x), fed.logits(x))
    assert again.history.frame().equals(frame)


# measures besides the accuracy
ALL = ("accuracy", "balanced", "auc", "auc_ovr")


def measured(measures: Any = ALL, method: str = "fedavg", **options: Any) -> eq.Federation:
    torch.manual_seed(0)
    tests = {"A": hospital(10), "B": hospital(11)}
    clients = [hospital(seed) for seed in range(3)]
    settings: dict[str, Any] = {"tests": tests, "groups": ["A", "B", "B"], "batch_size": 8, **options}
    return eq.Federation(Own(), clients, method, eq.SGD(lr=0.1), measures=measures, **settings)


def test_measures_are_those_of_scikit_learn_on_the_rounds_that_count(tmp_path: Path) -> None:
    fed = measured()
    history = fed.fit(11, directory=tmp_path, progress=False)
    assert history.measures == ALL
    assert [record["round"] for record in history.records if "auc" in record["groups"]["A"]] == [4, 6, 7, 8, 9, 10]
    assert all(result.keys() >= {"accuracy", "loss"} for r in history.records for result in r["groups"].values())
    x, y = hospital(10)
    p, last = torch.softmax(fed.logits(x).double(), 1).numpy(), history.records[-1]["groups"]["A"]
    assert last["accuracy"] == pytest.approx(metrics.accuracy_score(y, p.argmax(1)))
    assert last["balanced"] == pytest.approx(metrics.balanced_accuracy_score(y, p.argmax(1)))
    assert last["auc"] == pytest.approx(metrics.roc_auc_score(y, p, multi_class="ovo", average="macro"))
    assert last["auc_ovr"] == pytest.approx(metrics.roc_auc_score(y, p, multi_class="ovr", average="weighted"))
    kept = {key: value for key, value in last.items() if key not in ("rates", "correct")}
    assert fed.evaluate()["A"] == kept
    assert fed.evaluate(x, y) == kept
    right = np.unpackbits(np.frombuffer(bytes.fromhex(last["correct"]), np.uint8), count=last["n"])
    assert (right == (p.argmax(1) == y.numpy())).all()
    assert [r["round"] for r in history.records if "correct" in r["groups"]["A"]] == [6, 7, 8, 9, 10]
    assert sum(last["rates"]["right"]) == right.sum()
    assert eq.History.from_run(tmp_path).records == history.records
    assert eq.History.from_run(tmp_path).meta["measures"] == history.meta["measures"] == list(ALL)


@pytest.mark.parametrize("method", ["fedavg", "ditto-personal"])
def test_measures_change_nothing_else(method: str) -> None:
    plain, more = measured((), method), measured(method=method)
    plain.fit(6, progress=False)
    more.fit(6, progress=False)
    assert torch.equal(plain.progress.vector, more.progress.vector)
    for one, two in zip(plain.records, more.records, strict=True):
        kept = {g: {k: v for k, v in result.items() if k in one["groups"][g]} for g, result in two["groups"].items()}
        assert one == {**two, "groups": kept, "seconds": one["seconds"]}


def test_a_test_set_is_passed_once_whatever_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, seen, forward = measured(), [], Bound.forward

    def counted(self: Bound, *given: Any) -> Any:
        seen.append(1)
        return forward(self, *given)

    monkeypatch.setattr(Bound, "forward", counted)
    assert set(fed.evaluate()["A"]) == {"loss", "n", *ALL}
    assert len(seen) == 2  # sets


def test_measures_are_recorded_after_a_resume(tmp_path: Path) -> None:
    whole = measured().fit(7, progress=False)
    measured(()).fit(7, directory=tmp_path, progress=False)  # begun without them, its checkpoint serves all the same
    again = measured()
    again.resume(tmp_path)
    assert again.history.measures == ("accuracy",)
    again.fit(2, directory=tmp_path, progress=False)
    assert [record["round"] for record in again.records if "auc" in record["groups"]["A"]] == [7, 8]
    assert [r["groups"]["A"]["accuracy"] for r in again.records[:7]] == [
        r["groups"]["A"]["accuracy"] for r in whole.records
    ]


def test_classes_that_a_test_set_lacks_are_recorded() -> None:
    x, y = hospital(10)
    history = measured(["auc"], tests={"A": (x[y != 1], y[y != 1]), "B": (x[y == 2], y[y == 2])}).fit(1, progress=False)
    results = history.records[0]["groups"]
    assert results["A"]["missing"] == [1]
    assert 0 <= results["A"]["auc"] <= 1
    assert results["B"]["missing"] == [0, 1]
    assert history.summary(measure="auc")["groups"]["B"] is None


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown measure 'balancd'\. Did you mean 'balanced'\?"):
        measured(["balancd"])


def test_a_script_run_twice_does_not_overwrite_its_run(tmp_path: Path) -> None:
    def make() -> eq.Federation:
        torch.manual_seed(0)
        return eq.Federation(Own(), [hospital(0), hospital(1)])

    whole = make()
    whole.fit(4, directory=tmp_path / "whole", progress=False)
    make().fit(2, directory=tmp_path / "parts", progress=False)
    again = make()
    with pytest.raises(
        ValueError, match=r"holds another run, at round 2, and this federation is at 0. Call resume\(\)"
    ):
        again.fit(2, directory=tmp_path / "parts", progress=False)
    assert again.resume(tmp_path / "parts") == 0
    again.fit(2, directory=tmp_path / "parts", progress=False)
    assert [record["round"] for record in records(tmp_path / "parts")] == [0, 1, 2, 3]
    assert all(torch.equal(a, tensors(tmp_path / "parts")[k]) for k, a in tensors(tmp_path / "whole").items())


def test_methods_of_the_documentation_run(tmp_path: Path) -> None:
    for method in (
        "fedavg",
        eq.Method.of("fedproto") + eq.Method.of("fedheal"),
        eq.METHODS["fedprox"].rules[0](mu=0.1),
    ):
        fed = eq.Federation(Own(), [hospital(0), hospital(1)], method, tests={"all": hospital(2)})
        assert fed.fit(2, progress=False).summary()["avg"] is not None


def test_the_scenarios_network_comes_with_its_options() -> None:
    """Another choice of network is that network as it is, not with options meant for another."""
    config = configure("fedavg", "digits-quality")
    assert (config.network, config.network_options) == ("cnn", {"norm": "batch", "width": 8})
    assert configure("fedavg", "digits-quality", network="cnn").network_options == {}
    assert configure("fedavg", "digits").network_options == {}
