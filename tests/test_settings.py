"""Settings are said once: what is made of their fields has all of them."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from typing import Any

import pytest
import tomli_w
from torch import nn

import equipoise as eq
from equipoise.cli.options import TRAINING
from equipoise.core.settings import SIMULATED, RunSettings, Settings, changed, made, meaning
from equipoise.federation.fingerprint import differing
from equipoise.flower.settings import OF_SITES, AppSettings
from equipoise.runs.configuration import RunConfig
from helpers import clients, in_one

KNOWN = (*fields(RunSettings), *fields(Settings))


def test_everything_is_made_of_the_fields() -> None:
    names = {f.name for f in KNOWN}
    assert set(TRAINING) >= names - {"method", "seed"}
    assert set(RunConfig(label="a", scenario="digits", network="mlp").table()) >= names
    assert set(AppSettings().table()) >= {name.replace("_", "-") for name in names - {*OF_SITES, *SIMULATED}}
    for f in KNOWN:
        assert meaning(f)[0].islower()
        assert not meaning(f).endswith(".")
        assert f.default is not None or f.metadata["example"] is not None


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
    assert differing(older, ours) is None
    assert differing(older, {**ours, "precision": "bf16"}) == "precision"
    assert differing(older, {**ours, "epochs": 2}) == "epochs"
