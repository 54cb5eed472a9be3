"""The scenarios heart and adult: what they are made of, whose rows these are, and what a simple model reaches on them."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
import pooled
import pytest
import torch

from equipoise import scenarios
from equipoise.data.tables.coding import Coder
from equipoise.scenarios import tables
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]


def source(name: str) -> pd.DataFrame:
    with resources.as_file(resources.files("equipoise.scenarios") / name) as path:
        return pd.read_csv(path)


def by_row(made: scenarios.Scenario) -> list[tuple[int, np.ndarray[Any, Any], int, tuple[int, ...]]]:
    """Row of the file, inputs, label and codes of every sample, of training and of test sets."""
    parts = [*zip(made.manifest["clients"].values(), made.clients, strict=True)]
    parts += zip(made.manifest["tests"].values(), made.tests.values(), strict=True)
    return [
        (row, np.asarray(data[0][k]), int(data[1][k]), tuple(data[2][k].tolist()))
        for rows, data in parts
        for k, row in enumerate(rows)
    ]


def test_heart_is_four_hospitals_as_documented() -> None:
    made, table = scenarios.load("heart"), source("heart.csv")
    samples = by_row(made)
    assert sorted(row for row, *_ in samples) == list(range(920))
    assert made.client_names == made.client_groups == ("cleveland", "hungarian", "switzerland", "va")
    assert Counter(table.site[row] for row, _, y, _ in samples if y) == dict(
        zip(made.client_names, (139, 106, 115, 149), strict=True)
    )
    assert Counter(table.site[row] for row, *_, s in samples if s == (0,)) == dict(
        zip(made.client_names, (97, 81, 10, 6), strict=True)
    )
    assert made.attributes == {"sex": ("female", "male")}
    assert (made.classes, made.positive) == (("no disease", "disease"), "disease")
    inputs = made.manifest["inputs"]
    for row, x, y, s in samples:
        cells = table.iloc[row]
        assert (y, s) == (int(cells.num > 0), (cells.sex,))
        assert x[inputs.index("sex=1")] == cells.sex
        assert x[inputs.index("chol missing")] == (cells.chol != cells.chol or cells.chol == 0)
        assert [x[inputs.index(f"cp={k}")] for k in range(1, 5)] == [cells.cp == k for k in range(1, 5)]
        assert x[inputs.index("thal missing")] == (cells.thal != cells.thal)
    for client, data in zip(made.client_names, made.clients, strict=True):
        assert {*made.manifest["clients"][client]} <= {*np.flatnonzero(table.site == client).tolist()}
        assert len(data[1]) == len(made.manifest["clients"][client])


def test_adult_is_coded_as_scikit_learn_codes_it() -> None:
    """Against its own transformers, fitted to the training rows."""
    from sklearn.preprocessing import StandardScaler

    made, table = scenarios.load("adult", 1, tests="all"), source("adult.csv.xz")
    train = [row for rows in made.manifest["clients"].values() for row in rows]
    held = made.manifest["tests"]["all"]
    assert sorted([*train, *held]) == list(range(tables.PEOPLE))
    inputs = made.manifest["inputs"]
    x = np.asarray(made.tests["all"][0])
    scaler = StandardScaler().fit(table.loc[train, pooled.NUMBERS])
    np.testing.assert_allclose(
        x[:, [inputs.index(name) for name in pooled.NUMBERS]],
        scaler.transform(table.loc[held, pooled.NUMBERS]),
        atol=1e-5,
    )
    words = [name for name in inputs if "=" in name]
    for name in words:
        column, _, word = name.partition("=")
        assert np.array_equal(x[:, inputs.index(name)], table.loc[held, column] == word), name
    assert np.array_equal(made.tests["all"][1], table.loc[held, "salary"] == ">50K")
    sexes = np.array(made.attributes["sex"])[made.tests["all"][2][:, 0]]
    races = np.array(made.attributes["race"])[made.tests["all"][2][:, 1]]
    assert np.array_equal(sexes, table.loc[held, "sex"])
    assert np.array_equal(races, table.loc[held, "race"])
    assert not {"fnlwgt", "education-num"} & {name.partition("=")[0] for name in inputs}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("heart", {"tests": "groups"}),
        ("heart", {"tests": "all", "server_validation": 0.2, "test": 0.4}),
        ("adult", {"client": "native-country"}),
        ("adult", {"client": "occupation", "clients": 8, "alpha": 0.1, "tests": "groups"}),
    ],
)
def test_the_parts_are_disjoint_and_a_seed_repeats_them(name: str, options: dict[str, Any]) -> None:
    made, again = scenarios.load(name, 3, **options), scenarios.load(name, 3, **options)
    assert made.manifest == again.manifest
    assert json.loads(json.dumps(made.manifest)) == made.manifest
    assert all(torch.equal(a, b) for a, b in zip(made.clients[0], again.clients[0], strict=True))
    rows = [row for part in ("clients", "tests") for mine in made.manifest[part].values() for row in mine]
    assert len(rows) == len({*rows})
    assert made.manifest["clients"] != scenarios.load(name, 4, **options).manifest["clients"]
    known = scenarios.describe(name, **options)
    assert known.sample == made.sample == (len(made.manifest["inputs"]),)
    coder = Coder.of(made.manifest["schema"])
    assert (list(coder.names), coder.schema.digest) == (made.manifest["inputs"], made.manifest["schema"]["sha256"])
    if options.get("tests") != "clients" and made.client_tests:
        assert len(made.client_tests) == len(made.clients)
    if options.get("clients"):
        assert made.client_names == tuple(f"client-{k}" for k in range(1, 9))
        assert set(made.tests) == {
            f"{sex}, {race}" for sex in made.attributes["sex"] for race in made.attributes["race"]
        }
    assert (made.server_validation is not None) == known.has_server_validation == ("server_validation" in options)


def test_a_dirichlet_draw_differs_more_with_a_smaller_alpha() -> None:
    def spread(alpha: float) -> float:
        made = scenarios.load("adult", client="sex", clients=5, alpha=alpha)
        return float(np.std([data[2][:, 0].double().mean() for data in made.clients]))

    assert spread(0.1) > 2 * spread(10)


@pytest.mark.parametrize(
    ("bias", "biased", "drop", "flip"),
    [("Female", 1.0, 0.5, 0.0), ("Female+Male", 0.5, 0.25, 0.5), (["Black", "Female", "White"], 0.9, 0.0, 1.0)],
)
def test_clients_are_unfair_to_the_people_named_in_turn(bias: Any, biased: float, drop: float, flip: float) -> None:
    """As FeDa4Fair's ``drop_data`` and ``flip_data`` do it, with ``int(len(rows) * rate)``; everything else stays."""
    table = source("adult.csv.xz")
    made = scenarios.load("adult", 2, bias=bias, biased=biased, drop=drop, flip=flip)
    samples = {row: y for row, _, y, _ in by_row(made)}
    truth = table.salary == ">50K"
    names = sorted(set(table.workclass))
    against = bias.split("+") if isinstance(bias, str) else bias
    chosen = {name: against[k % len(against)] for k, name in enumerate(names[: round(biased * len(names))])}
    lost = changed = 0
    for name, value in chosen.items():
        mine = table.index[(table.workclass == name) & ((table.sex == value) | (table.race == value)) & truth]
        dropped = int(len(mine) * drop)
        flipped = int((len(mine) - dropped) * flip)
        assert sum(row not in samples for row in mine) == dropped
        assert sum(samples.get(row) == 0 for row in mine) == flipped
        done = {"against": value, "positive": len(mine), "dropped": dropped, "flipped": flipped}
        assert made.manifest["recipe"]["bias"]["clients"][name] == done
        lost, changed = lost + dropped, changed + flipped
    assert len(samples) == tables.PEOPLE - lost
    assert sum(y != truth[row] for row, y in samples.items()) == changed
    assert json.loads(json.dumps(made.manifest)) == made.manifest


def test_a_bias_follows_from_the_seed_and_leaves_the_division_as_it_was() -> None:
    options = {"client": "sex", "clients": 4, "bias": "Male", "drop": 0.3}
    made, again, other = (scenarios.load("adult", seed, **options) for seed in (1, 1, 2))
    assert made.manifest == again.manifest
    assert made.manifest["clients"] != other.manifest["clients"]
    plain = scenarios.load("adult", 1, client="sex", clients=4)
    for name in made.client_names:
        rows = lambda m: {*m.manifest["clients"][name], *m.manifest["tests"][name]}  # noqa: B023, E731
        assert rows(made) < rows(plain)
    assert "bias" not in plain.manifest["recipe"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("heart", {"test": 0.6}, "heart: test must be"),
        ("heart", {"tests": "sites"}, "heart: tests must be"),
        ("heart", {"client": "sex"}, "Unknown option of scenario 'heart': 'client'"),
        ("adult", {"client": "age"}, "Unknown client of scenario adult: 'age'"),
        ("adult", {"client": "fnlwgt"}, "Unknown client of scenario adult: 'fnlwgt'"),
        ("adult", {"clients": 0}, "adult: clients must be"),
        ("adult", {"clients": 10_000}, "adult: .*10000 clients"),
        ("adult", {"clients": 3, "alpha": 0.0}, "adult: alpha must be"),
        ("adult", {"server_validation": 0.9}, "adult: server_validation must be"),
        ("adult", {"bias": "female"}, "Unknown bias of scenario adult: 'female'.*Female"),
        ("adult", {"bias": "Female+Husband"}, "Unknown bias of scenario adult: 'Husband'"),
        ("adult", {"bias": "Male+Male"}, "bias must be different values, at least one; found Male, Male"),
        ("adult", {"bias": []}, "bias must be .*found none"),
        ("adult", {"bias": 3}, "Unknown bias of scenario adult: '3'"),
        ("adult", {"bias": "Male", "drop": 0}, "bias=Male changes nothing with drop=0 and flip=0"),
        ("adult", {"bias": "Male", "drop": 1.5}, "adult: drop must be"),
        ("adult", {"bias": "Male", "biased": 0}, "adult: biased must be"),
        ("adult", {"flip": 0.1, "biased": 0.5}, "biased=0.5, flip=0.1 has no effect without bias"),
    ],
)
def test_an_option_out_of_its_range_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenarios.describe(name, **options)


def test_the_command_shows_the_summary_and_the_card(equipoise: Any) -> None:
    said = " ".join(equipoise("scenarios", "heart").out.split())
    assert tables.HEART.summary in said
    assert "Sensitive attribute sex: female, male." in said
    assert "docs/data-cards.md#heart" in said


@pytest.mark.slow
def test_fedavg_reaches_a_pooled_logistic_regression() -> None:
    """The table of docs/data-cards.md with fewer rounds: half a point of accuracy, 0.005 of the area under the curve."""
    made = scenarios.load("adult", tests="all")
    reference = pooled.pooled(made)
    reached = pooled.federated(made, 0, "mlp(hidden=[])", rounds=40)
    assert reached[0] == pytest.approx(reference[0], abs=0.5)
    assert reached[1] == pytest.approx(reference[1], abs=0.005)
    assert reference[0] > 84
