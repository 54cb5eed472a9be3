"""Settings are said once: what is made of their fields has all of them."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from torch import nn

import equipoise as eq
from equipoise.cli.options import TRAINING
from equipoise.core import settings as core_settings
from equipoise.core.settings import (
    SIMULATED,
    RunSettings,
    Settings,
    changed,
    joint,
    made,
    measuring,
    showing,
)
from equipoise.data.tables.options import Options
from equipoise.federation.fingerprint import differences
from equipoise.flower.settings import AppSettings
from equipoise.runs.configuration import Layer, RunConfig, label_of, overrides_of, stacked
from equipoise.system.ranges import marked, meaning, number, setting
from helpers import clients, in_one

KNOWN = (*fields(RunSettings), *fields(Settings))


def test_everything_is_made_of_the_fields() -> None:
    names = {f.name for f in KNOWN}
    assert set(TRAINING) >= names - {"method", "seed"}
    assert set(RunConfig(label="a", scenario="digits", network="mlp").table()) >= names
    assert set(AppSettings().table()) >= {
        name.replace("_", "-") for name in names - {*marked(AppSettings, "local"), *SIMULATED}
    }
    for f in KNOWN:
        assert meaning(f)[0].islower()
        assert not meaning(f).endswith(".")
        assert f.default is not None or f.metadata["example"] is not None


def test_every_mark_is_explained() -> None:
    for cls in (Settings, RunSettings, RunConfig, AppSettings, Options):
        for f in fields(cls):
            assert all(f"``{mark}``" in str(setting.__doc__) for mark in f.metadata.get("marks", ())), f


def test_a_new_setting_is_one_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of itself is found in the command line, TOML, Flower's keys, the documentation, and the identity of a run."""

    @dataclass(frozen=True, kw_only=True)
    class More(RunSettings):
        zeal: float = measuring(number(0.5, 0, 1), "how much a client {does|predicts}")
        gloss: int = showing(number(1, 0), "how much is told")
        herd: int = joint(number(1, 0), "how clients meet", marks="together simulated")

    monkeypatch.setattr(core_settings, "RunSettings", More)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[1] / "tools"), *sys.path])
    names = [
        f"equipoise.{name}"
        for name in (
            "cli.options",
            "cli.init",
            "cli.run",
            "flower.settings",
            "runs.configuration",
            "runs.directory",
            "runs.choosing",
            "runs.experiment",
        )
    ]
    for name in (*names, "pages"):  # read again, with what is declared
        if "." in name:
            package, module = name.rsplit(".", 1)
            monkeypatch.setattr(sys.modules[package], module, import_module(name))
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, import_module(name))
    options, init, choices, app, configuration, directory, choosing, experiment = (sys.modules[name] for name in names)

    assert options.help_of("zeal") == "How much a client does, in [0, 1] [default: 0.5]."
    assert (options.PANEL["zeal"], options.PANEL["herd"]) == ("Evaluation and output", "Clients")
    assert {"zeal", "gloss", "herd"} <= options.TRAINING.keys()
    (tmp_path / "my.toml").write_text("zeal = 0.25\n")
    assert init.read(tmp_path / "my.toml")["zeal"] == 0.25
    assert "how much a client predicts, in [0, 1]" in init._text(None, {}, [], regression=True)
    given = dict.fromkeys(options.TRAINING) | {"config_file": tmp_path / "my.toml", "gloss": 3}
    chosen, _ = choices.read(given).layered("fedavg", 0)
    assert (chosen.zeal, chosen.gloss, chosen.herd) == (0.25, 3, 1)
    assert app.AppSettings.of({"zeal": 0.25}).table()["zeal"] == 0.25
    assert "herd" not in app.AppSettings().table()
    assert "| `--zeal` | how much a client does, in [0, 1] | 0.5 |" in sys.modules["pages"].options()
    with pytest.raises(ValueError, match=r"zeal must be in \[0, 1\]; found 2"):
        choices.read({**given, "zeal": 2}).layered("fedavg", 0)

    directory.start(chosen, tmp_path / "run")
    assert tomllib.loads((tmp_path / "run/config.toml").read_text())["zeal"] == 0.25
    directory.start(replace(chosen, gloss=4), tmp_path / "run")
    with pytest.raises(configuration.RunError, match=r"other settings: zeal is 0\.25 there and 0\.75 here"):
        directory.start(replace(chosen, zeal=0.75), tmp_path / "run")
    assert directory.identity(chosen)["zeal"] == 0.25
    assert {"gloss", "herd"} <= {*directory.OWN}
    assert choosing.conditional(dict.fromkeys(("zeal", "gloss", "herd"), 0.5)).keys() == {"zeal", "herd"}
    assert {"zeal", "gloss", "herd"} <= experiment.TRAINED


@in_one(
    ("change", "words"),
    [
        ({"epochs": 0}, "epochs must be a whole number >= 1; found 0"),
        ({"steps": 1.5}, r"steps must be a whole number >= 1, or None; found 1\.5"),
        ({"participation": 0}, r"participation must be in \(0, 1\]; found 0"),
        ({"quorum": -0.1}, r"quorum must be in \[0, 1\]; found -0\.1"),
        ({"precision": "half"}, "precision must be one of full, bf16; found 'half'"),
        ({"chunk": 0}, "chunk must be a whole number >= 1, or None; found 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        eq.Federation(nn.Linear(6, 3), clients(), **change)


def test_an_unknown_keyword_is_refused_with_the_nearest() -> None:
    for slip, meant in (("epoch", "epochs"), ("test", "tests")):
        with pytest.raises(TypeError, match=f"Unknown keyword '{slip}'. Did you mean '{meant}'"):
            eq.Federation(nn.Linear(6, 3).double(), clients(), **{slip: 1})


def test_a_keyword_wins_over_the_settings() -> None:
    settings = Settings(epochs=3, seed=2)
    assert changed(settings, {"epochs": 5}) == Settings(epochs=5, seed=2)
    fed = eq.Federation(nn.Linear(6, 3).double(), clients(), settings=settings, batch_size=4)
    assert fed.trial.settings == replace(settings, batch_size=4)


def test_a_configuration_survives_its_file() -> None:
    config = RunConfig(label="a", scenario="digits", network="mlp", lr=1, participation=1, steps=3)
    text = tomli_w.dumps({name: value for name, value in config.table().items() if value is not None})
    assert made(RunConfig, tomllib.loads(text)) == config
    assert isinstance(config.lr, float)


def test_a_checkpoint_older_than_a_setting_had_its_default() -> None:
    ours = {"method": "fedavg", **Settings().decisive}
    older = {name: value for name, value in ours.items() if name != "precision"}
    assert differences(older, ours) == []
    assert differences(older, {**ours, "precision": "bf16"}) == [("settings", "precision", "full", "bf16")]
    assert differences(older, {**ours, "epochs": 2}) == [("settings", "epochs", 1, 2)]


def test_a_setting_of_the_local_optimiser_is_one_by_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert core_settings.OF_SOLVER == ("lr", "momentum", "weight_decay", "clip")
    monkeypatch.setattr(core_settings, "OF_SOLVER", (*core_settings.OF_SOLVER, "decay"))
    with pytest.raises(TypeError, match="decay belongs to the local optimiser"):
        changed(None, {"decay": 0.5})


def test_a_meaning_may_be_empty_where_numbers_are_predicted() -> None:
    positive, label = (cls.__dataclass_fields__[name] for cls, name in ((RunSettings, "positive"), (Options, "label")))
    assert meaning(positive).startswith("the class that")
    assert meaning(positive, numbers=True) == ""
    assert meaning(label) == "column of the class, or of the number to predict"
    assert meaning(label, numbers=True) == "column of the number to predict"


def test_a_misspelt_mark_is_refused_where_it_is_given_and_where_it_is_asked() -> None:
    with pytest.raises(ValueError, match=r"no mark 'togehter': expected together, simulated, .*"):
        joint(number(1, 1), "a number", marks="togehter")
    with pytest.raises(ValueError, match="no mark 'loacl'"):
        marked(Settings, "loacl")


def test_later_layers_override_earlier_ones() -> None:
    file = Layer(
        "file", {"scenario": "digits", "data": "a", "scenario_options": {"clients": 4}, "lr": 0.1, "fedprox.mu": 1}
    )
    typed = Layer("typed", {"scenario_options": {"size": 8}, "lr": None, "fedprox.mu": None}, shared=True)
    table = stacked([file, typed])
    assert (table["scenario_options"], table["lr"], table["fedprox.mu"]) == ({"clients": 4, "size": 8}, 0.1, None)
    assert stacked([file, Layer("typed", {"scenario": "label-skew"})]).keys() == {"scenario", "lr", "fedprox.mu"}
    assert overrides_of("fedprox", [file, typed]) == {"fedprox.mu": None}
    assert overrides_of("fedavg", [typed]) == {}
    assert label_of("fedprox", [Layer("typed", {"fedprox.mu": 0.5})]) == "fedprox(mu=0.5)"
