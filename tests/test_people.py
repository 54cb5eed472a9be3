"""What a model does to people with each value of a sensitive attribute: in records, summaries and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.flower import in_process
from equipoise.records.record import Record, parse
from helpers import UNEQUAL, clients, federation, network, samples

SOLVER = eq.SGD(0.05)
NAMES = {"sex": ["f", "m"], "age": ["young", "middle", "old"]}


def codes(n: int, seed: int) -> Tensor:
    """Two attributes, of two and three values, some of which are not known."""
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randint(-1, k, (n,), generator=draw) for k in (2, 3)], 1)


def people(sizes: tuple[int, ...] = UNEQUAL) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(x, y, codes(len(y), 10 + k)) for k, (x, y) in enumerate(clients(sizes))]


def evaluated(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return (*samples(n, seed), codes(n, seed))


def counted(predicted: Tensor, y: Tensor, s: Tensor) -> list[dict[str, Any]]:
    """The sums of classes, one sample after another."""
    every = []
    for k in range(s.shape[1]):
        values = sorted({int(code) for code in s[:, k]} - {-1})
        of: dict[str, Any] = {name: [[0] * 3 for _ in values] for name in ("right", "true", "chosen")}
        unknown = 0
        for p, t, code in zip(predicted.tolist(), y.tolist(), s[:, k].tolist(), strict=True):
            if code < 0:
                unknown += 1
                continue
            row = values.index(code)
            of["right"][row][t] += p == t
            of["true"][row][t] += 1
            of["chosen"][row][p] += 1
        every.append({"value": values, **of, **({"unknown": unknown} if unknown else {})})
    return every


def last(fed: eq.Federation) -> Record:
    fed.fit(2, progress=False)
    return fed.records[-1]


def test_a_record_has_the_sums_of_a_plain_loop() -> None:
    tests = {"a": evaluated(31, 1), "b": evaluated(17, 2), "without": samples(9, 3)}
    fed = federation(data=people(), tests=tests, groups=["a"] * len(UNEQUAL))
    by = last(fed)["by"]
    expected = {name: counted(fed.predict(x), y, s) for name, (x, y, *rest) in tests.items() for s in rest}
    assert by == {"groups": expected}
    assert expected.keys() == {"a", "b"}


@pytest.mark.parametrize(("method", "own"), [("fedavg", True), ("ditto", True), ("ditto", False), ("standalone", True)])
def test_a_record_has_the_sums_of_every_client(method: str, own: bool) -> None:
    N = len(UNEQUAL)
    mine: list[Any] = [evaluated(9 + m, m) for m in range(N)]
    mine[1] = None
    a = evaluated(31, 1)
    fed = federation(method, data=people(), tests={"a": a}, client_tests=mine if own else None, groups=["a"] * N)
    by = last(fed)["by"]
    assert ("groups" in by) == (method != "standalone")
    for m, found in enumerate(by["clients"]):
        if (of := mine[m] if own else a) is None:
            assert found is None
        else:
            assert found == counted(fed.predict(of[0], client=None if method == "fedavg" else m), of[1], of[2])


def test_a_record_of_numbers_has_their_sums() -> None:
    def numbers(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        x, y = samples(n, seed)
        return x, y.double() * 3 - 0.5, codes(n, seed)

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(samples(1, 0)[0].flatten(1).shape[1], 1)).double()
    tests = {"a": numbers(31, 1)}
    fed = eq.Federation(net, [numbers(12, k) for k in range(3)], tests=tests, task="regression", batch_size=4)
    (of_sex, of_age) = last(fed)["by"]["groups"]["a"]
    x, y, s = tests["a"]
    error = fed.predict(x) - y
    for k, found in enumerate((of_sex, of_age)):
        assert found["value"] == [*range(2 + k)]
        assert found["unknown"] == int((s[:, k] < 0).sum())
        for row, value in enumerate(found["value"]):
            those = s[:, k] == value
            assert found["n"][row] == int(those.sum())
            sums = [found[key][row] for key in ("squares", "absolute", "error", "target")]  # type: ignore[literal-required]
            expected = [of[those].sum() for of in (error.square(), error.abs(), error, y)]
            assert np.allclose(sums, expected, rtol=1e-12, atol=1e-12)


def test_samples_without_attributes_leave_no_trace() -> None:
    fed = federation(data=clients(), tests={"a": samples(20, 1)})
    assert "by" not in last(fed)
    assert "attributes" not in fed.history.meta


def test_only_costly_rounds_have_them() -> None:
    fed = federation(data=people(), tests={"a": evaluated(20, 1)})
    fed.fit(14, progress=False)
    assert [r["round"] for r in fed.records if "by" in r] == [4, 9, 10, 11, 12, 13]


def test_a_set_without_them_joins_one_with_them() -> None:
    """A client of its own model is tested on two sets, of which only one has attributes."""
    a, bare = evaluated(20, 1), samples(9, 2)
    fed = federation("ditto", data=people(), tests={"a": a, "bare": bare})
    for m, found in enumerate(last(fed)["by"]["clients"]):
        expected = counted(fed.predict(a[0], client=m), a[1], a[2])
        for of in expected:
            of["unknown"] = of.get("unknown", 0) + 9
        assert found == expected


def test_a_run_that_is_resumed_has_the_same(tmp_path: Path) -> None:
    whole, stopped = (federation(data=people(), tests={"a": evaluated(20, 1)}, attributes=NAMES) for _ in range(2))
    whole.fit(4, directory=tmp_path / "whole", progress=False)
    stopped.fit(4, directory=tmp_path / "parts", progress=False, on_round=lambda record: record["round"] == 1)
    again = federation(data=people(), tests={"a": evaluated(20, 1)}, attributes=NAMES)
    again.fit(again.resume(tmp_path / "parts"), directory=tmp_path / "parts", progress=False)
    each = [parse((tmp_path / name / "metrics.jsonl").read_text())[0] for name in ("whole", "parts")]
    assert each[0][-1]["by"] == each[1][-1]["by"] == whole.records[-1]["by"]
    assert eq.History.from_run(tmp_path / "parts").meta["attributes"] == NAMES


def test_sites_are_as_the_simulation_where_the_server_has_the_test_sets() -> None:
    """And no site tells a sum by attribute: of test sets that sites have, there is none."""
    tests = {"a": evaluated(20, 1)}
    options: dict[str, Any] = {"tests": tests, "seed": 3, "batch_size": 8, "attributes": NAMES}
    here = eq.Federation(network(), people(), "fedavg", SOLVER, **options)
    away = in_process(network(), people(), "fedavg", SOLVER, **options)
    assert last(here)["by"] == last(away)["by"]
    assert here.history.meta["attributes"] == away.history.meta["attributes"] == NAMES


# names
def test_names_of_attributes_are_kept_once() -> None:
    fed = federation(data=people(), tests={"a": evaluated(20, 1)}, attributes=NAMES)
    assert fed.history.meta["attributes"] == NAMES
    assert "young" not in json.dumps(last(fed))
    assert federation(data=people()).history.meta["attributes"] == {"s[0]": [], "s[1]": []}
    one = [(x, y, s[:, 0]) for x, y, s in people()]
    assert federation(data=one).history.meta["attributes"] == {"s": []}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sex": ["f", "m"]}, "the samples have 2, found sex"),
        ([["f", "m"], ["a", "b", "c"]], "the samples have 2, found none"),
        ({"sex": ["f"], "age": ["a", "b", "c"]}, r"attributes\['sex'\] must hold a different name for each code from 0 to 1; found f"),
        ({"sex": ["f", "m"], "age": ["a", "b", "a"]}, r"attributes\['age'\] must hold a different name for each code from 0 to 2; found a, b, a"),
        ({"sex": "fm", "age": ["a", "b", "c"]}, r"attributes\['sex'\] must be a list with a name for each of the values; found 'fm'"),
    ],
)  # fmt: skip
def test_names_that_cannot_be(given: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        federation(data=people(), attributes=given)


def test_names_where_there_are_no_attributes() -> None:
    with pytest.raises(ValueError, match="the samples have 0, found sex"):
        federation(data=clients(), attributes={"sex": ["f", "m"]})
