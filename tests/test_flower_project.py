"""A new project, its certificates, and what a check finds wrong with them; the processes are in test_flower_loopback.py."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, parse_config_args
from torch.utils.data import Dataset

from equipoise.cli import flower as flower_cli, main as cli
from equipoise.federation.method import Method
from equipoise.flower import InProcessGrid, Task, make_client_app
from equipoise.flower.app import check_positive, check_site
from equipoise.flower.deploy import certificates as certs, checks, local, project, superlink
from equipoise.flower.deploy.certificates import make_certificates
from equipoise.flower.server.consortium import description
from equipoise.flower.server.sites import Exchange, Sites
from equipoise.flower.settings import AppSettings
from equipoise.runs import directory as runs
from equipoise.runs.configuration import FLOWER, configure
from equipoise.system.errors import InputError, RunError
from helpers import in_one
from run_helpers import equipoise

__all__ = ["equipoise"]

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of Flower


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for one host and two sites; nobody changes them."""
    directory = tmp_path_factory.mktemp("certs")
    make_certificates(directory, ["fl.example.org", "10.1.2.3"], ["hospital-0", "hospital-1"], days=90)
    return directory


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project; nobody changes it."""
    directory = tmp_path_factory.mktemp("projects") / "my-app"
    project.init(directory, 3)
    return directory


def wrong(findings: list[checks.CheckResult]) -> dict[str, str]:
    return {each.what: each.text for each in findings if not each.ok}


# certificates
def test_certificates_are_what_tls_asks_for(made: Path) -> None:
    ca, server = (x509.load_pem_x509_certificate((made / name).read_bytes()) for name in ("ca.crt", "server.pem"))
    server.verify_directly_issued_by(ca)
    basic = x509.BasicConstraints
    assert ca.extensions.get_extension_for_class(basic).value == basic(ca=True, path_length=0)
    assert not server.extensions.get_extension_for_class(basic).value.ca
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1"]
    above = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    issuer = server.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert issuer.key_identifier == above
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [purpose.dotted_string for purpose in purposes] == ["1.3.6.1.5.5.7.3.1"]  # serverAuth
    assert 88 <= (server.not_valid_after_utc - datetime.now(UTC)).days <= 90


def test_keys_are_what_flower_asks_for(made: Path) -> None:
    key = serialization.load_ssh_private_key((made / "hospital-0").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    assert serialization.load_ssh_public_key((made / "hospital-0.pub").read_bytes()) == key.public_key()
    private = {"ca.key", "server.key", "hospital-0", "hospital-1"}
    assert {path.name for path in made.iterdir() if stat.S_IMODE(path.stat().st_mode) == 0o600} == private
    assert {path.name for path in made.iterdir()} == private | {
        "ca.crt",
        "server.pem",
        "hospital-0.pub",
        "hospital-1.pub",
    }


def test_certificates_can_be_read(made: Path) -> None:
    server = certs.read(made / "server.pem")
    assert certs.hosts_of(server) == ["fl.example.org", "localhost", "10.1.2.3", "127.0.0.1"]
    assert certs.days_left(server) in (89, 90)
    for host in certs.hosts_of(server):
        assert certs.problems(made / "server.pem", made / "ca.crt", host) == []


def test_what_is_wrong_with_certificates_is_told(made: Path, tmp_path: Path) -> None:
    server, ca = made / "server.pem", made / "ca.crt"
    (text,) = certs.problems(server, ca, "other.example.org")
    assert "does not stand for other.example.org" in text
    (late,) = certs.problems(server, ca, "10.1.2.3", now=datetime.now(UTC) + timedelta(days=91))
    assert "server.pem ended on" in late
    early = certs.problems(server, ca, "10.1.2.3", now=datetime.now(UTC) - timedelta(days=1))
    assert len(early) == 2
    assert all("clock" in text for text in early)
    make_certificates(tmp_path, ["10.1.2.3"])
    (foreign,) = certs.problems(server, tmp_path / "ca.crt", "10.1.2.3")
    assert "was not signed by" in foreign
    assert any("not the certificate of an authority" in text for text in certs.problems(server, server, "10.1.2.3"))
    for bad, words in (("missing", "No such file"), ("README", "no certificate")):
        (tmp_path / "README").write_text("hello")
        with pytest.raises(InputError, match=words):
            certs.read(tmp_path / bad)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a.example.org"], ["one"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for hosts, sites in ((["a.example.org"], []), ([], ["two", "one"])):
        with pytest.raises(InputError, match="exists already"):
            make_certificates(tmp_path, hosts, sites)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_server_certificate_is_renewed_by_the_same_authority(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a.example.org"])
    old, authority = (tmp_path / "server.pem").read_bytes(), (tmp_path / "ca.crt").read_bytes()
    for name in ("server.pem", "server.key"):
        (tmp_path / name).unlink()
    assert make_certificates(tmp_path, ["b.example.org"]) == [tmp_path / "server.pem", tmp_path / "server.key"]
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != old
    assert certs.problems(tmp_path / "server.pem", tmp_path / "ca.crt", "b.example.org") == []
    for name in ("server.pem", "server.key", "ca.key"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match="signing needs both"):
        make_certificates(tmp_path, ["b.example.org"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hosts": ["https://fl.example.org"]}, "neither a host name nor an IP address"),
        ({"hosts": [], "sites": ["../evil"]}, "cannot name a site"),
        ({"hosts": [], "sites": ["a.pub"]}, "cannot name a site"),
        ({"hosts": [], "sites": ["a", "a"]}, "needs a different name"),
        ({"hosts": [], "sites": []}, "nothing to make"),
        ({"days": 0}, "days must be in 1..3650"),
    ],
)
def test_bad_names_make_nothing(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        make_certificates(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_what_is_wrong_with_keys_is_told(tmp_path: Path) -> None:
    make_certificates(tmp_path, (), ["one", "two"])
    assert certs.key_problems(tmp_path / "one") == []
    (tmp_path / "one").chmod(0o644)
    assert "chmod 600" in certs.key_problems(tmp_path / "one")[0]
    (tmp_path / "one").chmod(0o600)
    (tmp_path / "one.pub").write_bytes((tmp_path / "two.pub").read_bytes())
    assert "not the public half" in certs.key_problems(tmp_path / "one")[0]
    other = ed25519.Ed25519PrivateKey.generate()
    ssh = serialization.PrivateFormat.OpenSSH
    (tmp_path / "three").write_bytes(other.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption()))
    assert "not an elliptic-curve (ECDSA) key" in certs.key_problems(tmp_path / "three")[0]
    (tmp_path / "four").write_text("hello")
    assert "OpenSSH format" in certs.key_problems(tmp_path / "four")[0]
    assert "No such file" in certs.key_problems(tmp_path / "five")[0]


# the project
def test_flower_takes_a_new_project(app: Path) -> None:
    config, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["config"]["min-sites"] == 3
    assert project.problems(project.settings(app)) == []
    assert b"mytask.py" in build_fab_from_disk(app)


def test_a_site_sends_no_keys_states_or_logs(tmp_path: Path) -> None:
    """What lies in a project's folder, but is not its code, is not in the bundle."""
    base = tmp_path / "app"
    project.init(base)
    for name in (
        "certs/notes.md",
        "local/site-0.toml",
        "runs/flower/summary.json",
        "data/a.json",
        "site.toml",
        "states/x.json",
    ):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("private 4711")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(base))) as bundle:
        sent = set(bundle.namelist())
        assert not any(b"private 4711" in bundle.read(name) for name in sent)
    assert sent == {
        ".info/CONTENT",
        "LICENSE",
        "README.md",
        "compose.yaml",
        "myapp.py",
        "mytask.py",
        "pyproject.toml",
    }


def test_the_task_gives_every_site_its_own_digits(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = importlib.util.spec_from_file_location("mytask", app / "mytask.py")
    assert where is not None
    assert where.loader is not None
    module = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    server = module.task({}, {"seed": 0})
    assert server.train is None
    assert server.test is None
    tasks = [module.task({"partition-id": k, "site": f"site-{k}"}, {"seed": 0}) for k in range(20)]
    content = {task.train[0].numpy().tobytes() for task in tasks}
    assert len(content) == 20, "no two sites share data"
    tests = [task.test[0].numpy().tobytes() for task in tasks]
    assert len(set(tests[:4])) == 4, "the first four sites see four domains"


def test_compose_and_service_fit_the_project(app: Path) -> None:
    services = yaml.safe_load((app / "compose.yaml").read_text())["services"]
    assert list(services) == ["superlink", "site-0", "site-1", "site-2"]
    for k in range(3):
        words = shlex.split(services[f"site-{k}"]["command"])
        told = words[words.index("--node-config") + 1]
        assert f'site="site-{k}" partition-id={k} num-partitions=3' in told
        assert words[words.index("--auth-supernode-private-key") + 1] == f"/certs/site-{k}"
    assert "--enable-supernode-auth" in services["superlink"]["command"]
    assert "--insecure" not in (app / "compose.yaml").read_text() + (app / "README.md").read_text()
    assert services["superlink"]["ports"] == ["127.0.0.1:8000:8000"]
    assert "ca.key" not in (app / "compose.yaml").read_text()


def test_commands_of_the_readme_exist(app: Path) -> None:
    group: Any = typer.main.get_command(cli.app)
    found = [line.strip() for line in (app / "README.md").read_text().splitlines() if line.startswith("    ")]
    commands = [shlex.split(line, comments=True) for line in found if line.startswith("equipoise ")]
    assert len(commands) >= 6
    for _, flower, name, *words in commands:
        group.commands[flower].commands[name].make_context(name, words)


def test_a_project_is_never_overwritten(app: Path) -> None:
    before = {path: path.read_bytes() for path in app.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match="nothing is overwritten"):
        project.init(app)
    assert {path: path.read_bytes() for path in app.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("name", ["my_app", "1app", "a" * 33])
def test_a_name_that_flower_refuses_is_refused_first(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a Flower app"):
        project.init(tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("site", ["superlink", "run", "a b", "../x", ""])
def test_a_site_needs_a_plain_name(site: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a site"):
        project.init(tmp_path / "app", ["site-0", site])
    with pytest.raises(ValueError, match="cannot name a site"):
        local.LocalFederation(tmp_path / "local", tmp_path / "app", ["site-0", site])


# settings
def test_changes_are_read_as_values(app: Path) -> None:
    known = project.settings(app)
    texts = ['rounds=40 method="fedheal(tau=0.4)" lr=1', "momentum=0.5 sites='b, a'"]
    assert project.overrides(texts, known) == {
        "rounds": 40, "method": "fedheal(tau=0.4)", "lr": 1.0, "momentum": 0.5, "sites": "b, a",
    }  # fmt: skip
    mine = {"mine": False, "opt.lr": 0.1, "opt.kind": "sgd", "n": 3}
    texts = ["mine=true opt.lr=0.2 n=2.5", "opt.kind=1 n='a b'", "mine=1e-3"]
    assert repr(project.overrides(texts[:1], mine)) == repr({"mine": True, "opt.lr": 0.2, "n": 2.5})
    assert repr(project.overrides(texts[1:], mine)) == repr({"opt.kind": "1", "n": "a b", "mine": 0.001})
    schedule = project.overrides(['lr="cosine(0.1, warmup=5)"', "wait=60"], known)
    assert project.problems({**known, **schedule}) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("round=40", "no such key.*Did you mean 'rounds'"),
        ("opt.lr=0.2", "no such key"),
        ("rounds", "expected NAME=VALUE"),
        ("rounds=1 hello", "expected NAME=VALUE"),
    ],
)
def test_changes_that_cannot_be_made_are_told(text: str, words: str, app: Path) -> None:
    with pytest.raises(ValueError, match=words):
        project.overrides([text], project.settings(app))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "fedhael"}, "fedheal"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": "many"}, "rounds must be a whole number >= 1; found 'many'"),
        ({"rounds": 2.5}, "rounds must be a whole number"),
        ({"momentum": "fast"}, "momentum must be"),
        ({"wait": True}, "wait must be"),
        ({"secure": 1}, "secure must be true or false"),
        ({"optimizer": "adma"}, "optimizer"),
        ({"sites": "a,b"}, "sites names 2 of them, and min-sites is 3"),
        ({"batchsize": 3}, "batch-size"),
    ],
)
def test_settings_that_cannot_run_are_told(change: dict[str, Any], words: str, app: Path) -> None:
    (text,) = project.problems({**project.settings(app), **change})
    assert words in text


@pytest.mark.parametrize(
    "change",
    [
        {"wait": 60},
        {"lr": 1},
        {"lr": "cosine(0.1, warmup=5)"},
        {"momentum": 0},
        {"deadline": 5, "poll": 1},
        {"mine": 3},
    ],
)
def test_what_a_run_takes_is_no_fault(change: dict[str, Any], app: Path) -> None:
    config = {**project.settings(app), **change}
    assert project.problems(config) == []
    AppSettings.of(config)


def test_tables_of_settings_are_the_keys_that_an_app_receives(tmp_path: Path) -> None:
    base = tmp_path / "app"
    project.init(base)
    about = base / "pyproject.toml"
    plain = project.settings(base)
    about.write_text(
        about.read_text()
        + "\n[tool.flwr.app.config.opt]\nlr = 0.1\nnesterov = true\n[tool.flwr.app.config.opt.warm]\nup = 3\n"
    )
    expected = {**plain, "opt.lr": 0.1, "opt.nesterov": True, "opt.warm.up": 3}
    assert project.settings(base) == expected
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(base))) as bundle:
        bundle.extractall(tmp_path / "sent")
    assert get_fused_config_from_dir(tmp_path / "sent", {"opt.lr": 1}) == {
        **expected,
        **project.overrides(["opt.lr=1"], expected),
    }
    about.write_text(about.read_text() + "\nlist = [1]\n")
    with pytest.raises(RunError, match="list needs to be of type"):
        project.settings(base)


def test_a_folder_without_an_app_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a Flower app"):
        project.settings(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(RunError, match=r"has no \[tool.flwr.app\]"):
        project.settings(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project")
    with pytest.raises(RunError, match="cannot be read"):
        project.settings(tmp_path)


# a site's data, without a run
NODE = {"site": "north", "state-dir": "/never/written"}
CONFIG = AppSettings(method="fedavg").table()


def net() -> torch.nn.Module:
    return torch.nn.Linear(2, 3)


def given(x: Any = ((0.0, 1.0),) * 4, y: Any = (0, 1, 2, 0), **more: Any) -> Task:
    return Task(net(), (torch.tensor(x), torch.tensor(y)), **more)


class Stored(Dataset[Any]):
    """Samples that are read when they are needed, as they are others each time; of label 7."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, row: int) -> Any:
        return torch.rand(2), 7


def test_what_is_shown_of_a_site_is_what_it_sends(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"features": ["age", "sex"], "classes": ["a", "b", "c"], "scaling": [1]}
    stated["measures"] = ("auc",)
    client = make_client_app(
        lambda node, config: given(test={"a": (torch.ones(5, 2), torch.zeros(5).long())}, **stated)
    )
    found = check_site(client, "north", NODE, CONFIG)
    assert all(ok for ok, _ in found.values())
    assert found.pop("data")[1] == "4 samples of shape [2], float32; test sets: a"
    codes = {what: code for what, (_, code) in found.items()}
    run = AppSettings.of(CONFIG)
    told = description(Method.of("fedavg"), run.solver, run.settings, ("accuracy",), "another-run")
    node = NODE | {"state-dir": str(tmp_path)}
    roster = Sites(Exchange(InProcessGrid(client, [node], CONFIG), told))
    (site,) = roster.gather(1, (), 0.0)
    assert {what: code for what, code in codes.items() if what != "all of these"} == {
        what: code for what, code in site.agreement.items() if what != "samples"
    }
    assert codes.keys() >= {"features", "classes", "scaling", "measures", "parameters", "Equipoise version"}
    other = check_site(make_client_app(lambda node, config: given(**stated | {"scaling": [2]})), "north", NODE, CONFIG)
    differing = {what for what, code in codes.items() if other[what][1] != code}
    assert differing == {"scaling", "all of these"}
    assert not Path("/never").exists()


def raising(node: Any, config: Any) -> Task:
    raise FileNotFoundError(f"no patients of {node['site']}")


def leaving(node: Any, config: Any) -> Task:
    sys.exit("cannot go on")


@in_one(
    ("task", "words"),
    [
        (raising, r":raising failed: FileNotFoundError: no patients of north, line \d+\."),
        (leaving, r":leaving failed: SystemExit: cannot go on, line \d+\."),
        (lambda node, config: Task(net()), "has no training data: its task gives train=None"),
        (lambda node, config: {"net": net()}, "AttributeError"),
        (lambda node, config: given(y=(0, 1, 2, 3)), r"labels must be in 0\.\.2, because the network has 3 outputs"),
        (
            lambda node, config: given(y=(0, 1, -(2**63), 0)),
            r"labels must be in 0\.\.2, .*; found NaN that was made a whole number\. Look for labels",
        ),
        (
            lambda node, config: given(x=((0.0, 1.0, 2.0),) * 4),
            r"The network does not take the data of north: .*\[1, 3\]",
        ),
        (
            lambda node, config: given(x=((0.0, float("nan")), *((0.0, 1.0),) * 3)),
            "training data of north: 1 of the first 4 samples",
        ),
        (
            lambda node, config: given(test=(torch.full((2, 2), torch.inf), torch.zeros(2).long())),
            "test set 'north': 2 of the first 2 samples hold NaN",
        ),
        (
            lambda node, config: given(test={"b": (torch.ones(2, 2), torch.tensor([0, 9]))}),
            "test set 'b': labels must be in",
        ),
        (lambda node, config: Task(net(), Stored()), r"training data of north: labels must be in 0\.\.2"),
        (lambda node, config: given(features=["age"]), r"features: a sample has the shape \[2\]"),
        (lambda node, config: given(classes=["ill", "ill", "well"]), "found 3 names, 2 of them different"),
        (partial(raising, config={}), ":task failed: TypeError"),
    ],
)
def test_what_a_site_would_stumble_over_is_told_beforehand(task: Any, words: str) -> None:
    ((what, (ok, text)),) = check_site(make_client_app(task), "north", NODE, CONFIG).items()
    assert (what, ok) == ("data", False)
    assert re.search(words, text)
    assert "\n" not in text


@in_one(("positive", "said"), [("sick", True), ("ill", False), ("2", True), ("", False)])
@in_one("broken", [True, False])
def test_a_positive_class_that_is_none_is_told_beforehand(positive: str, said: bool, broken: bool) -> None:
    """Also where no data can be read."""

    def task(node: Any, config: Any) -> Task:
        if node and broken:
            raise FileNotFoundError("no patients")
        return given(classes=["ill", "so so", "well"])

    text = check_positive(make_client_app(task), {**CONFIG, "positive": positive})
    assert bool(text) == said
    assert ("ill, so so, well" in text) == said


def test_a_site_that_accepts_one_method_is_checked_with_it() -> None:
    client = make_client_app(lambda node, config: given(), method="fedprox(mu=0.1)")
    assert check_site(client, "north", NODE, {**CONFIG, "method": "fedprox(mu=0.1)"})["data"][0]
    well, words = check_site(client, "north", NODE, CONFIG)["method"]
    assert not well
    assert "runs of fedprox(mu=0.1) only" in words
    assert "method = fedavg" in words
    assert "not looked at" in check_site(ClientApp(), "north", NODE, CONFIG)["data"][1]


def test_the_data_of_sites_are_checked_from_the_command_line(equipoise: Any, tmp_path: Path) -> None:
    base = tmp_path / "app"
    project.init(base)
    (base / "mytask.py").write_text(
        "import os, torch\nfrom equipoise.flower import Task\n\n\ndef task(node, config):\n"
        "    print('patient 4711')\n    assert config['method'] == 'fedheal'\n    x = torch.zeros(6, 2)\n"
        "    x[0, 0] = node['data-first']\n    return Task(torch.nn.Linear(2, 2), (x, torch.zeros(6).long()), classes=['no', 'yes'])\n"
    )
    states = tmp_path / "states"
    nodes = "".join(
        f"[{name}]\ndata-first = {x}\nstate-dir = '{states}'\n" for name, x in (("a", "0"), ("b", "'x'"), ("c", "nan"))
    )
    (tmp_path / "sites.toml").write_text(nodes)
    done = equipoise("flower", "check", base, "--node-config", tmp_path / "sites.toml", "--json")
    assert done.status == 1
    found = {each["what"]: each for each in json.loads(done.out)["findings"]}
    assert {what for what, each in found.items() if not each["ok"]} == {"b: data", "c: data"}
    assert found["a: data"]["text"] == "6 samples of shape [2], float32; test sets: none"
    assert re.fullmatch("[0-9a-f]{12}", found["a: classes"]["text"])
    assert re.fullmatch("[0-9a-f]{12}", found["a: all of these"]["text"])
    assert found["b: data"]["text"].startswith("mytask:task failed: TypeError: can't assign a str")
    assert found["b: data"]["text"].endswith(", line 9.")
    assert "c: parameters" not in found
    assert "4711" not in done.out
    assert not states.exists()


# checks
@pytest.mark.slow
def test_all_is_well(app: Path, made: Path, tmp_path: Path) -> None:
    told = {"site-0": {"site": "site-0", "state-dir": str(tmp_path / "new"), "data-path": str(made)}}
    findings = checks.check(
        app, certificates=made, hosts=["fl.example.org"], node_configs=told, keys=[made / "hospital-0"]
    )
    assert wrong(findings) == {}
    assert {"flwr", "torch", "settings", "bundle", "apps", "certificates", "key hospital-1"} <= {
        f.what for f in findings
    }
    assert not (tmp_path / "new").exists(), "a check changes nothing"


@pytest.mark.parametrize(
    ("installed", "ok", "words"),
    [
        ("1.41.0", True, "1.41.0"),
        ("1.42.3", True, "1.42.3"),
        ("1.43.0", True, "newer than 1.42"),
        ("2.0.0.dev1", True, "newer than 1.42"),
        ("1.40.9", False, "too old. Install 1.41"),
        ("0.19.0", False, "too old. Install 1.41"),
    ],
)
def test_an_untested_flower_is_told_and_an_old_one_refused(
    installed: str, ok: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "version", lambda name: installed)
    (flower,) = (result for result in checks.check() if result.what == "flwr")
    assert flower.ok == ok
    assert words in flower.text


@pytest.mark.slow
def test_an_app_that_cannot_start_is_told(tmp_path: Path) -> None:
    base = tmp_path / "app"
    project.init(base)
    (base / "mytask.py").write_text("import nothing_of_that_name\n")
    (base / "LICENSE").unlink()
    found = wrong(checks.check(base, config={"rounds": 0}))
    assert "icense" in found["bundle"]
    assert "rounds" in found["settings"]
    (base / "LICENSE").write_text("free")
    found = wrong(checks.check(base))
    assert "nothing_of_that_name" in found["apps"]
    assert "Flower sends no" not in found["apps"]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("lib/helpers.py", "from lib.helpers import X"),
        ("env/lib/deep.py", "import env.lib.deep"),
        ("parts/__init__.py", "import parts"),
        ("pkg/data/sets.py", "import pkg.data.sets"),  # data/ is in .gitignore
        ("test_helpers.py", "import test_helpers"),
        ("pkg/network_test.py", "from pkg import network_test"),
        ("link.py", "import link"),
        ("linked/net.py", "import linked.net"),
        ("weights.npz", "from pathlib import Path\nPath(__file__).with_name('weights.npz').read_bytes()"),
        ("pkg/words.txt", "from pathlib import Path\n(Path(__file__).parent / 'pkg' / 'words.txt').read_text()"),
    ],
)
def test_what_flower_does_not_send_is_missing_in_a_check(
    file: str, code: str, tmp_path: Path, monkeypatch: Any
) -> None:
    base = tmp_path / "app"
    project.init(base)
    for path in (file, "pkg/__init__.py"):
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        (base / path).write_text("X = 1\n")
    if "link" in file:  # to what is outside
        part = base / file.split("/")[0]
        part.rename(tmp_path / part.name)
        part.symlink_to(tmp_path / part.name)
    (base / "myapp.py").write_text(f"{code}\nclient = server = 1\n")
    monkeypatch.chdir(base)  # from where it could be imported
    found = wrong(checks.check(Path()))
    assert found.keys() == {"apps"}
    assert f"Flower sends no {file.split('/')[0] if 'link' in file else file}:" in found["apps"]
    assert not [*base.rglob("__pycache__")], "a check changes nothing"


def test_nodes_that_cannot_start_are_told(tmp_path: Path) -> None:
    told = {"a": {"data-path": str(tmp_path / "nothing"), "state-dir": "states", "list": [1]}, "b": {}}
    found = wrong(checks.check(node_configs=told))
    assert "a: data-path" not in found
    assert "list needs to be of type" in found["a: node config"]
    del told["a"]["list"]
    found = wrong(checks.check(node_configs=told))
    assert "does not exist" in found["a: data-path"]
    assert "must be a whole path" in found["a: state-dir"]
    assert "is missing" in found["b: state-dir"]
    (tmp_path / "file").write_text("")
    assert (
        "cannot be written"
        in wrong(checks.check(node_configs={"c": {"state-dir": str(tmp_path / "file")}}))["c: state-dir"]
    )


def test_certificates_that_do_not_fit_are_told(made: Path, tmp_path: Path) -> None:
    assert "does not stand for 10.9.9.9" in wrong(checks.check(certificates=made, hosts=["10.9.9.9"]))["certificates"]
    assert "holds no ca.crt" in wrong(checks.check(certificates=tmp_path))["certificates"]
    make_certificates(tmp_path, ["localhost"], ["one"], days=3)
    (tmp_path / "one").chmod(0o640)
    (tmp_path / "server.key").chmod(0o640)
    findings = checks.check(certificates=tmp_path)
    assert wrong(findings).keys() == {"key one", "server.key"}
    assert "It ends in 2 days" in next(f.text for f in findings if f.what == "certificates")


def test_a_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "Stop what listens there" in wrong(checks.check(ports=[port]))[f"port {port}"]
    assert wrong(checks.check(ports=[port])) == {}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


class Server:
    """Something on a port: an HTTP server that knows ``/health``, over TLS if it has a certificate."""

    def __init__(self, certificate: Path | None) -> None:
        import ssl
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/health" else 404)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(HTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass

        self.server = Quiet(("127.0.0.1", 0), Answer)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "server.pem", certificate / "server.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def secure(made: Path) -> Iterator[Server]:
    server = Server(made)
    yield server
    server.close()


@pytest.fixture
def plain() -> Iterator[Server]:
    server = Server(None)
    yield server
    server.close()


def connected(home: Path, **told: Any) -> dict[str, str]:
    import tomli_w

    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "it", "it": told}}))
    return wrong(checks.check(connection="it"))


def test_a_server_that_is_there_is_found(home: Path, made: Path, secure: Server, plain: Server) -> None:
    assert connected(home, address=secure.address, **{"root-certificates": str(made / "ca.crt")}) == {}
    assert connected(home, address=plain.address, insecure=True) == {}


def test_a_server_that_is_not_what_it_should_be_is_told(
    home: Path, made: Path, secure: Server, plain: Server, tmp_path: Path
) -> None:
    make_certificates(tmp_path / "other", ["localhost"])
    other, ca = {"root-certificates": str(tmp_path / "other" / "ca.crt")}, {"root-certificates": str(made / "ca.crt")}
    assert "does not prove who it is" in connected(home, address=secure.address, **other)["connection it"]
    assert "does not speak TLS" in connected(home, address=plain.address, **ca)["connection it"]
    assert "No SuperLink answers" in connected(home, address=secure.address, insecure=True)["connection it"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{free.getsockname()[1]}"
    assert "Nothing answers" in connected(home, address=gone, **ca)["connection it"]
    assert "does not exist" in connected(home, address=gone, **{"root-certificates": "nowhere.crt"})["connection it"]
    assert "Known: it" in wrong(checks.check(connection="else"))["connection else"]
    (home / "config.toml").write_text("[superlink")
    assert "cannot be read" in wrong(checks.check(connection="it"))["connection it"]


# the programs
def test_what_flower_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "flwr"
    answer = {"success": False, "error-message": "[code: 15] Invalid run configuration."}
    script.write_text(f"#!/bin/sh\necho 'Loading project configuration...'\necho '{json.dumps(answer)}'\n")
    script.chmod(0o755)
    monkeypatch.setattr(superlink, "program", lambda name: str(script))
    link = superlink.SuperLink("it", dict(os.environ))
    with pytest.raises(RunError, match=r"code: 15\] Invalid run configuration"):
        link.submit(tmp_path)
    script.write_text("#!/bin/sh\necho oh no >&2\nexit 1\n")
    with pytest.raises(RunError, match="oh no"):
        link.outcome(1)
    script.write_text("#!/bin/sh\nexec sleep 5\n")
    with pytest.raises(RunError, match=r"no answer in 0.1 s"):
        link.call("ls", patience=0.1)


def test_flower_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'equipoise\[flower\]'"):
        superlink.program("flwr")


def test_a_directory_has_one_federation_at_a_time(tmp_path: Path) -> None:
    one = local.LocalFederation(tmp_path, tmp_path)
    other = local.LocalFederation(tmp_path, tmp_path)
    with local.locked(tmp_path / ".lock"), pytest.raises(RunError, match="runs a federation"):
        other.start()
    one.stop()  # nothing is running: nothing happens


def test_a_server_that_cannot_start_is_told_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\necho the port is taken\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(local, "program", lambda name: str(script))
    with (
        pytest.raises(RunError, match=r"(?s)superlink ended with status 3.*the port is taken"),
        local.LocalFederation(tmp_path / "local", tmp_path),
    ):
        pass


# the command line
@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing an app takes seconds; what it finds is tested above."""
    monkeypatch.setattr(checks, "_apps", lambda *_: [checks.CheckResult("apps", True, "")])


@pytest.mark.usefixtures("swift")
def test_init_and_check_from_the_command_line(equipoise: Any, tmp_path: Path, home: Path) -> None:
    done = equipoise("flower", "init", tmp_path / "app", "--sites", 2)
    assert done.status == 0, done.err
    assert "equipoise flower up" in done.out
    again = equipoise("flower", "init", tmp_path / "app")
    assert again.status == 2
    assert "nothing is overwritten" in again.err
    checked = equipoise("flower", "check", tmp_path / "app", "--json")
    assert checked.status == 0, checked.out
    assert json.loads(checked.out)["ok"] is True
    bad = equipoise("flower", "check", "--connection", "nowhere")
    assert bad.status == 1
    assert "wrong" in bad.out


def test_certs_from_the_command_line(equipoise: Any, tmp_path: Path) -> None:
    assert equipoise("flower", "certs", tmp_path, "--site", "hospital-0").status == 0
    assert {path.name for path in tmp_path.iterdir()} == {"hospital-0", "hospital-0.pub"}
    assert equipoise("flower", "certs", tmp_path, "--host", "fl.example.org").status == 0
    assert equipoise("flower", "certs", tmp_path, "--host", "fl.example.org").status == 2
    nothing = equipoise("flower", "certs", tmp_path)
    assert nothing.status == 2
    assert "--host NAME" in nothing.err


@pytest.mark.parametrize(
    ("text", "sites"),
    [
        ('site = "a"\nn = 3\n[db]\npath = "/x"\n[db.pool]\nidle = 0.5\nwait = true\n', ["a"]),
        ('k = 1\ndb.path = "/x"\n', ["node"]),
        ("", ["node"]),
        ('[a]\nk = 1\n[a.db]\npath = "/x"\n[b]\nk = 2\n', ["a", "b"]),
    ],
)
def test_node_configs_are_those_of_flower(text: str, sites: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    """A file of one site is what a SuperNode reads; of several, each table is."""
    file, seen = tmp_path / "node.toml", dict[str, Any]()
    file.write_text(text)
    monkeypatch.setattr(checks, "_node", lambda name, node: [seen.update({name: node})][:0])
    checks.check(node_configs=flower_cli._nodes(file))
    assert list(seen) == sites
    if len(sites) == 1:
        assert seen[sites[0]] == parse_config_args([str(file)])
    else:
        assert seen == {"a": {"k": 1, "db.path": "/x"}, "b": {"k": 2}}


@pytest.mark.usefixtures("swift")
def test_up_checks_before_it_starts(equipoise: Any, app: Path, tmp_path: Path) -> None:
    told = tmp_path / "nodes.toml"
    told.write_text('[north]\ndata-path = "/nothing/there"\n[south]\n')
    done = equipoise("flower", "up", app, "--node-config", told, "--check")
    assert done.status == 1
    assert "north: data-path" in done.out
    started = equipoise("flower", "up", app, "--node-config", told)
    assert started.status == 1
    assert "Nothing was started" in started.err
    assert not (app / "local").exists()
    assert equipoise("flower", "up", app, "--check", "-c", "rounds=2").status == 0
    strangers = equipoise("flower", "up", app, "--node-config", told, "--sites", 2)
    assert strangers.status == 2
    assert "has settings of north, south" in strangers.err
    told.write_text('site = "north"\n')
    assert "a table per site" in equipoise("flower", "up", app, "--node-config", told).err
    lost = equipoise("flower", "up", app, "--node-config", tmp_path / "none.toml")
    assert lost.status == 2
    assert "none.toml cannot be read: No such file" in lost.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("min-sites=5", "there will be 3 sites only"),
        ('sites="site-0,site-1,site-7"', "sites names site-7"),
        ("secure=true", "secure=true: fedheal cannot be used"),
    ],
)
@pytest.mark.usefixtures("swift")
def test_up_does_not_wait_for_what_cannot_come(change: str, words: str, equipoise: Any, app: Path) -> None:
    done = equipoise("flower", "up", app, "-c", change)
    assert done.status == 1
    assert words in done.err


def test_run_needs_a_connection(equipoise: Any, app: Path, home: Path) -> None:
    assert equipoise("flower", "run", app, "nowhere", "-c", "round=1").status == 2
    failed = equipoise("flower", "run", app, "nowhere")
    assert failed.status == 1
    assert "has no [superlink.nowhere]" in failed.err or "Put [superlink.nowhere]" in failed.err
    assert not (home / "config.toml").exists(), "Flower writes one where it finds none"
    wrong = equipoise("flower", "run", app, "nowhere", "-c", "method='fedhael'")
    assert "Did you mean 'fedheal'" in wrong.err


def test_who_stops_a_command_is_told_what_is_left() -> None:
    with pytest.raises(KeyboardInterrupt) as stop, flower_cli.stopping("Run 7 goes on."):
        raise KeyboardInterrupt
    assert stop.value.__notes__ == ["Run 7 goes on."]
    with pytest.raises(ValueError, match="bad") as error, flower_cli.stopping("Run 7 goes on."):
        raise ValueError("bad")
    assert not hasattr(error.value, "__notes__")


def test_what_the_server_says_is_shown_as_it_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    with flower_cli.progress(tmp_path, log, 3, True, str) as look:
        look()
        log.write_text("Using SuperLink: x\n\x1b[92mINFO \x1b[0m:      Start\nround 1: [a] 3 sites\nround")
        look()
        with log.open("a") as file:
            file.write(" 2: 3 sites\nERROR :     ServerApp raised an exception\nTraceback\n")
        look()
    shown = capsys.readouterr()
    assert (shown.out + shown.err).splitlines() == ["round 1: [a] 3 sites", "round 2: 3 sites"]


def test_a_run_that_failed_is_an_error() -> None:
    flower_cli.check_outcome(superlink.Outcome(1, "finished:completed", "N/A"), None)
    for outcome, words in (
        (superlink.Outcome(1, "finished:failed", "no sites"), "The run failed: no sites"),
        (superlink.Outcome(1, "finished:stopped", "N/A"), "The run failed: finished:stopped"),
    ):
        with pytest.raises(RunError, match=words):
            flower_cli.check_outcome(outcome, Path("run.log"))


def test_the_end_of_a_log_is_told_from_where_flower_gives_up() -> None:
    log = "one\n\n\x1b[92mINFO\x1b[0m two\nERROR : Exit Code: 305\nFailed to activate.\nthree\n"
    assert superlink.last_lines(log).splitlines() == ["ERROR : Exit Code: 305", "Failed to activate.", "three"]
    assert superlink.last_lines("one\n\n\x1b[92mINFO\x1b[0m two\n", 1) == "INFO two"


def test_templates_hold_no_paths_of_a_machine() -> None:
    for path in (Path(project.__file__).parent / "templates").iterdir():
        assert "/work" not in path.read_text()
        assert path.suffix == ".j2"


def test_the_version_of_flower_is_said_once() -> None:
    about = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert about["project"]["optional-dependencies"]["flower"][0] == f"flwr>={superlink.FLWR[0]}"


def test_a_run_between_sites_is_not_taken_for_a_simulation(equipoise: Any, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('method = "fedavg"\nengine = "flower"\nscenario = "sites"\nsteps = 0\n')
    for command in ("resume", "export"):
        done = equipoise(command, tmp_path)
        assert done.status == 1
        assert "is a run between sites: continue it with the command that began it" in done.err


def test_what_is_foretold_of_messages_is_said(tmp_path: Path) -> None:
    config = configure("fedavg", "digits", rounds=1, steps=1, participation=0.1, engine=FLOWER)
    plan = runs.plan(config, tmp_path, progress=False)
    assert (plan.engine, plan.workers) == (FLOWER, 1)
    assert "messages" in plan.why


def test_a_program_interrupted_while_it_starts_is_known_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the start of a program and the moment it is known would leave it running for ever."""
    begin, begun = subprocess.Popen, list[Any]()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore

    def interrupted(arguments: list[str], **more: Any) -> Any:
        begun.append(begin(["sleep", "60"], **more))
        signal.raise_signal(signal.SIGINT)
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    monkeypatch.setattr(local, "program", str)
    here = local.LocalFederation(tmp_path, tmp_path, patience=1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            here.launch("site-0", "sleep", ["60"])
    finally:
        signal.signal(signal.SIGINT, before)
    here.stop()
    assert begun[0].poll() is not None
