"""Code of the user's own by reference: networks, rules, data and local optimisers, in files and in modules."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.flower import Task
from equipoise.flower.settings import AppSettings
from equipoise.flower.site.site import open_site
from equipoise.flower.site.store import Store
from equipoise.report import provenance
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunError, configure
from equipoise.system import own_code
from equipoise.system.errors import InputError, SiteError
from helpers import in_one
from run_helpers import SCENARIO, TINY, Zygote, assert_same_run, cache, equipoise, executed, records, started, zygote

MINE = """
from dataclasses import dataclass

import torch
from torch import nn

import equipoise as eq
from beside import HALF


@dataclass(frozen=True)
class Prox(eq.Rule):
    mu: float = eq.number(0.01, low=0)

    def correction(self, theta, visit):
        return self.mu * (theta - visit.start)


class Loose(eq.Rule):
    pass


def flat(in_shape, n_classes, width=4):
    size = torch.Size(in_shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, n_classes))


class Net(nn.Module):
    def __init__(self, n_classes, width=4):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, width), nn.Linear(width, n_classes)

    def forward(self, x):
        return self.head(self.hidden(x).relu())


@dataclass(frozen=True)
class Sign:
    lr: float = 0.01

    def init(self, theta):
        return {}

    def step(self, theta, gradient, slots):
        for part, g in zip(theta, gradient):
            part.sub_(self.lr * g.sign())

    def travel(self, steps):
        raise TypeError("not proportional")


def heavy(lr, momentum):
    return eq.SGD(lr, momentum=momentum)


class Bag(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, n_classes)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


def clients(seed):
    every = []
    for k in range(3):
        x = torch.randn(20, 6, generator=torch.Generator().manual_seed(10 * seed + k))
        every.append((x, (x[:, 0] > 0).long()))
    return every


def arrays():
    x = torch.cat([x for x, _ in clients(0)])
    return {"x": x, "y": x[:, 0] > 0, "client": ["North", "South", "Island"] * 20, "group": ["f", "m"] * 30}


def sets():
    return {f"hospital {k}": torch.utils.data.TensorDataset(*one) for k, one in enumerate(clients(0))}


def words():
    return [(torch.arange(50).view(10, 5) % 9, torch.arange(10) % 2) for _ in range(2)]


def broken():
    return [1, 2] if HALF else None


def uneven():
    return [(torch.zeros(3, 2), torch.zeros(4))]


def other_shapes():
    return [(torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(3, 5), torch.ones(3))]


def raises():
    raise KeyError("x")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code, in which we are."""
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "syntax.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "imports.py").write_text("import no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path


# what is a reference
@in_one(
    ("text", "found"),
    [
        ("fedld:released", []),
        ("fedheal:released+mine.py:Prox(mu=0.1)", ["mine.py:Prox"]),
        ("fedheal(tau=.4)+pkg.rules:Prox+a/b.py:C", ["pkg.rules:Prox", "a/b.py:C"]),
        ("/tmp/a+b (1)/mine.py:Prox+fedheal", ["/tmp/a+b (1)/mine.py:Prox"]),
        ("~/mine.py:f", ["~/mine.py:f"]),
        ("hub:owner/name", []),
        ("digits(clients=8)", []),
        ("f1, mine.py:cost", ["mine.py:cost"]),
        ("nets:build", []),
        ("resnet18(weights=/tmp/a.b:c)", []),
        ("/vol:a/my nets.py:build", ["/vol:a/my nets.py:build"]),
        ("/x.py", []),
        ("/.py:net", ["/.py:net"]),
        ("fedavg+ my.pkg:Rule , ./b.py:C", ["my.pkg:Rule", "./b.py:C"]),
    ],
)
def test_what_is_a_reference(text: str, found: list[str]) -> None:
    assert [text[begin:end] for begin, end, *_ in own_code.references(text)] == found
    assert own_code.replaced(text, lambda where, name: f"{where}:{name}") == text


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("nosuch.py:f", "nosuch.py cannot be read (No such file or directory). Give the path of a Python file."),
        ("syntax.py:f", "syntax.py cannot be imported: SyntaxError: invalid syntax, line 2."),
        ("imports.py:f", "imports.py cannot be imported: ModuleNotFoundError: No module named 'no_such_thing', line 1."),
        ("mine.py:Porx", "mine.py:Porx: there is no 'Porx' in mine.py. Did you mean 'Prox'?"),
        ("sub/mine:f", "sub/mine:f: sub/mine must be a Python file, whose name ends in .py."),
        ("no.such:f", "no.such:f: no.such cannot be imported: ModuleNotFoundError: No module named 'no'. Install it, start where it lies, or give a file: "
            "nets.py:build."),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_said_in_one_sentence(folder: Path, reference: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        own_code.load(reference)
    assert str(error.value) == expected


def test_a_file_that_changed_is_other_code(folder: Path) -> None:
    before = own_code.load("mine.py:Prox")
    assert own_code.load(f"{folder}/mine.py:Prox") is before
    (folder / "mine.py").write_text(
        MINE.replace("0.01, low=0", "0.02, low=0")
    )  # of the same length, in the same second
    assert own_code.load("mine.py:Prox")().mu == 0.02
    assert before().mu == 0.01


# networks
def test_a_network_gets_what_its_signature_has(folder: Path) -> None:
    net = eq.network("mine.py:flat", (1, 4, 4), 3, width=5)
    assert [list(p.shape) for p in net.parameters()] == [[5, 16], [5], [3, 5], [3]]
    assert eq.network("mine.py:Net", (6,), 2, seed=3).head.bias.equal(
        eq.network("mine.py:Net", (6,), 2, seed=3).head.bias
    )
    with pytest.raises(
        ValueError,
        match=r"got an unexpected keyword argument 'depth'\. It is called with its options, and with in_shape, n_classes",
    ):
        eq.network("mine.py:flat", depth=3)
    with pytest.raises(ValueError, match=r"mine.py:raises failed: KeyError: 'x', line \d+\.$"):
        eq.network("mine.py:raises")
    with pytest.raises(ValueError, match=r"must give an nn\.Module, .*found \[1, 2\]"):
        eq.network("mine.py:broken")
    with pytest.raises(ValueError, match=r"expected a function or a class; found float"):
        eq.network("beside.py:HALF")


# methods
def test_a_rule_is_a_part_of_a_sum(folder: Path) -> None:
    method = eq.parse("fedheal+mine.py:Prox(mu=0.1)", {"Prox.mu": 0.3})
    assert str(method) == f"fedheal+{folder}/mine.py:Prox(mu=0.3)"
    assert eq.parse(str(method)) == method
    assert str(eq.parse("mine.py:Prox(mu=0.1)") + eq.parse("fedprox")).startswith(
        f"{folder}/mine.py:Prox(mu=0.1)+fedprox"
    )
    assert eq.parse("mine.py:Prox").parts == ("Prox",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mine.py:Loose", "mine.py:Loose: a rule must be a frozen dataclass"),
        ("mine.py:clients", "mine.py:clients must be a class that inherits from equipoise.Rule; found <function"),
        ("mine.py:Sign", "must be a class that inherits from equipoise.Rule; found the class Sign"),
        ("mine.py:Prox(nu=1)", "Prox has no hyper-parameter 'nu'. Did you mean 'mu'? It has: mu."),
        ("mine.py:Prox(mu=-1)", "Prox: mu must be >= 0; found -1."),
        ("mine.py:Prox+mine.py:Prox", "'Prox' appears twice"),
        ("fedhael+mine.py:Prox", "Did you mean 'fedheal'?"),
        ("mine:Prox", "A rule in mine.py: mine.py:MyRule."),
    ],
)
def test_what_is_no_rule_is_refused(folder: Path, text: str, expected: str) -> None:
    with pytest.raises(ValueError) as error:
        eq.parse(text)
    assert expected in str(error.value)


# local optimisers
def test_a_local_optimiser_of_ones_own(folder: Path, tmp_path: Path) -> None:
    sign = configure("fedavg", optimizer="mine.py:Sign", lr=0.002)
    assert repr(sign.solver) == "Sign(lr=0.002)"
    assert (sign.momentum, sign.weight_decay) == (0, 0)  # which it does not take
    assert configure("fedavg", optimizer="mine.py:heavy", lr=0.1, momentum=0.5).solver == eq.SGD(0.1, 0.5)
    with pytest.raises(ValueError, match=r"--weight-decay 0.1: .*mine.py:Sign takes no weight_decay"):
        configure("fedavg", optimizer="mine.py:Sign", weight_decay=0.1)
    with pytest.raises(TypeError, match="must be, or give, a frozen dataclass"):
        _ = configure("fedavg", optimizer="mine.py:broken").solver
    with pytest.raises(ValueError, match="optimizer must be one of sgd, adam, adamw, or a reference"):
        configure("fedavg", optimizer="sign")


# data
def test_data_of_ones_own(folder: Path) -> None:
    seeded = eq.scenario("own", 1, data="mine.py:clients")
    assert seeded.client_names == ("client-1", "client-2", "client-3")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(10))
    assert all((row == x).all(1).any() for row in seeded.clients[0][0])  # as they were given, by the run's seed
    sets = eq.scenario("own", data="mine.py:sets", test=0.5)
    assert [len(y) for _, y in sets.clients] == [10, 10, 10]
    grouped = eq.scenario("own", data="mine.py:arrays")
    assert set(grouped.tests) == {"f", "m"}
    assert grouped.client_names == ("Island", "North", "South")
    executed(folder / "words", configure("fedavg", "own", data="mine.py:words", network="mine.py:Bag", rounds=1))
    assert eq.scenario("own", data="mine.py:words").clients[0][0].dtype == torch.int64  # which an embedding takes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("broken", r"mine.py:broken, client-1: int cannot be read \(.* int object\)\. Return a list with \(x, y\)"),
        ("uneven", r"mine.py:uneven, client-1: expected x \[n, ...\] and y \[n\]; found \[3, 2\] and \[4\]"),
        (
            "other_shapes",
            r"samples must be of one type and shape; found numbers \[2\] of client-1 and numbers \[5\] of client-2",
        ),
        ("raises", r"data mine.py:raises failed: KeyError: 'x', line \d+\.$"),
        ("flat", r"data mine.py:flat failed: TypeError: flat\(\) missing 2 required"),
    ],
)
def test_data_that_are_none_are_refused(folder: Path, name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        eq.scenario("own", data=f"mine.py:{name}")


# runs
OWN = {
    "network": "mine.py:flat",
    "data": "mine.py:clients",
    "optimizer": "mine.py:heavy",
    "momentum": 0.5,
    "rounds": 3,
    "lr": 0.05,
}


def test_every_engine_gives_the_same(folder: Path) -> None:
    found = {}
    for engine in ("sequential", "workers", "stacked", "flower-inproc"):
        executed(Path(engine), configure("fedheal+mine.py:Prox(mu=0.1)", "own", engine=engine, **OWN))
        found[engine] = [list(score.values()) for r in records(Path(engine)) for score in r["groups"].values()]
    numbers = {engine: [x for of in scores for x in of if isinstance(x, float)] for engine, scores in found.items()}
    for engine, of in numbers.items():
        assert of == pytest.approx(numbers["sequential"], abs=1e-5), engine


@pytest.mark.slow
def test_worker_processes_have_the_same_code(folder: Path) -> None:
    here = executed(Path("here"), configure("fedheal+mine.py:Prox(mu=0.1)", "own", engine="sequential", **OWN))
    there = executed(Path("there"), configure("fedheal+mine.py:Prox(mu=0.1)", "own", engine="processes", **OWN))
    assert_same_run(here, there)


def test_a_changed_file_is_noticed_and_a_run_goes_on_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    settings = configure("fedheal+mine.py:Prox(mu=0.1)", "own", **OWN)
    used = [f"{folder}/{name}" for name in ("mine.py", "beside.py")]
    assert settings.own_code == {file: own_code.digest(file) for file in used}
    assert settings.label == "fedheal+mine.py:Prox(mu=0.1)"
    whole, begun = executed(folder / "whole", settings), started(folder / "begun", settings)

    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runs.execute(begun, progress=False, on_round=stop)
    (folder / "mine.py").write_text(MINE + "# more\n")
    for again in (lambda: runs.execute(begun), lambda: runs.trained(whole), lambda: runs.start(settings, begun)):
        with pytest.raises(RunError, match=r"was begun with other code: .*/mine.py has changed since\. Put it back"):
            again()
    (folder / "mine.py").unlink()
    assert "mine.py is gone. Put it back as it was" in equipoise("resume", begun).err
    (folder / "mine.py").write_text(MINE)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    runs.execute(begun, progress=False)
    assert_same_run(whole, begun)
    assert equipoise("export", begun).status == 0
    shown, _ = provenance.settings({"mine": [eq.History.from_run(begun)]})  # in the report
    assert "own_code.mine.py" in dict(shown)


@pytest.mark.slow
def test_death_and_going_on_change_nothing(folder: Path, zygote: Zygote) -> None:
    settings = configure("scaffold+mine.py:Prox(mu=0.1)", "own", **OWN)
    whole = executed(folder / "whole", settings)
    for at in (9, 21):
        directory = started(folder / str(at), settings)
        assert zygote.die(directory, at) != 0
        assert zygote.die(directory) == 0
        assert_same_run(whole, directory)


def test_a_federation_in_python_takes_references_and_notices_a_change(folder: Path) -> None:
    def make() -> eq.Federation:
        data = eq.scenario("own", data="mine.py:clients")
        net = eq.network("mine.py:Net", data.shape, data.n_classes)
        return eq.Federation(net, data.clients, "mine.py:Prox(mu=0.1)", tests=data.tests)

    make().fit(1, directory=folder / "run", progress=False)
    assert make().resume(folder / "run") == 0
    (folder / "mine.py").write_text(MINE + "# more\n")
    with pytest.raises(eq.CheckpointError, match="begun with other code"):
        make().resume(folder / "run")


def test_the_command_line_and_files(folder: Path, equipoise: Any) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "run.toml").write_text(
        'method = "fedheal+../mine.py:Prox"\ndata = "../mine.py:clients"\nnetwork = "../mine.py:flat(width=3)"\n'
        'optimizer = "../mine.py:heavy"\nrounds = 1\n[set]\nProx.mu = 0.2\n'
    )
    of_file = ("run", "--config", "deep/run.toml", "--name", "a", "--no-report")
    assert "deep/run.toml is not of a run begun by you on this machine, and names " in equipoise(*of_file).err
    assert equipoise(*of_file, "--trust").status == 0
    assert equipoise(*of_file).status == 0
    told = runs.load(Path("runs/a"))
    assert told.method == f"fedheal+{folder}/mine.py:Prox(mu=0.2)"
    assert (told.network, told.network_options) == (f"{folder}/mine.py:flat", {"width": 3})
    assert (told.data, told.optimizer) == (f"{folder}/mine.py:clients", f"{folder}/mine.py:heavy")


@pytest.mark.slow
def test_a_comparison_imports_the_same_code(folder: Path, equipoise: Any) -> None:
    (folder / "mypkg").mkdir()
    (folder / "mypkg" / "rules.py").write_text(MINE)
    methods = ("fedavg", "mine.py:Prox", "mypkg.rules:Prox")
    assert equipoise("compare", *methods, *TINY, "--rounds", 1, "--name", "c", "--network", "mine.py:flat").status == 0
    assert records(Path("runs/c/mine.py-Prox-seed0")) == records(Path("runs/c/mypkg.rules-Prox-seed0"))


# sites
def test_a_site_runs_no_code_that_a_server_names(folder: Path) -> None:
    (folder / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    task = Task(nn.Linear(6, 2), (torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64)))
    for method in ("evil.py:Evil", "fedheal+evil.py:Evil", "fedheal + ./evil.py:Evil", f"fedavg+{folder}/evil.py:Evil"):
        with pytest.raises(SiteError, match="runs no code that a server names"):
            open_site("a", task, {"method": method, "solver": {"kind": "SGD"}}, Store.at(folder, "x", "a"))
        with pytest.raises(ValueError, match="sites run no code that a server names"):
            AppSettings(method=method)
    assert not (folder / "ran").exists()
