"""The types of records say what runs write, and their descriptions name every key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest
import torch
from docstrings import parts

import equipoise as eq
from equipoise.federation import checkpoint
from equipoise.federation.checkpoint import Kept
from equipoise.metrics import definitions
from equipoise.records import history, meta, record, results
from equipoise.records.directory import read
from equipoise.records.meta import Meta
from equipoise.records.record import Record, Score, Validation, line, parse_lines
from equipoise.records.results import Collaboration, GroupFairness
from helpers import in_one

TYPES = [
    x
    for room in (record, meta, results, checkpoint)
    for x in vars(room).values()
    if is_typeddict(x) and x.__module__ == room.__name__
]


def unfit(value: Any, form: Any, where: str = "") -> list[str]:
    """Where a value does not have a form: typed dictionaries, mappings, sequences, unions and plain types."""
    if form is Any or isinstance(value, form if isinstance(form, type) and not is_typeddict(form) else ()):
        return []
    if is_typeddict(form) and isinstance(value, dict):
        hints = get_type_hints(form)
        strange = [f"{where}.{key}" for key in value if key not in hints]
        return strange + [e for key, x in value.items() if key in hints for e in unfit(x, hints[key], f"{where}.{key}")]
    origin, args = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        return [] if any(not unfit(value, arg) for arg in args) else [f"{where}: {value!r}"]
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return [e for key, x in value.items() for e in unfit(x, args[1], f"{where}.{key}")]
    if origin in (list, Sequence) and isinstance(value, list | tuple):
        return [e for k, x in enumerate(value) for e in unfit(x, args[0], f"{where}[{k}]")]
    return [] if form is float and type(value) is int else [f"{where}: {value!r}"]


def test_what_does_not_fit_is_found() -> None:
    assert unfit({"round": 0, "groups": {"a": {"accuracy": None, "n": 3}}}, Record) == []
    assert unfit({"round": "0"}, Record) == [".round: '0'"]
    assert unfit({"round": 0, "groups": {"a": {"acuracy": 1.0}}}, Record) == [".groups.a.acuracy"]
    assert unfit({"bytes": {"down": [1.5], "up": [], "full": 1}}, Record) == [".bytes.down[0]: 1.5"]


@in_one("form", TYPES)
def test_descriptions_name_every_key(form: Any) -> None:
    _, sections, _ = parts(form.__doc__)
    described = [name for section in sections for names in section.items for name in names.split(", ")]
    own = form.__annotations__ if form is Validation else get_type_hints(form)
    own = [key for key in own if form is not Validation or key not in Score.__annotations__]
    assert not described or set(described) == set(own), "one line in the docstring per key, and no other"


def data(n: int = 24) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 4, generator=draw), torch.arange(n) % 2) for _ in range(4)]


RUNS: dict[str, dict[str, Any]] = {
    "fedheal": {"measures": ("auc", "rates", lambda p, y: float(y.mean()))},
    "fedism": {"validation": 0.25},
    "fedsac": {"collaborative": True, "contribution_rounds": 2, "server_validation": data(8)[0]},
    "cgsv+ditto": {"client_tests": data(8)},
    "fedld": {"availability": 0.6, "dropout": 0.2, "solver": eq.SGD(lr=eq.Cosine(0.1))},
    "clipping": {"attack": "sign-flip", "attackers": 0.5},
    "standalone": {},
    "centralised": {"validation": 0.25},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", RUNS)
def test_runs_write_what_the_types_say(method: str, tmp_path: Any) -> None:
    about = {"seed": 1, "epochs": 1, "groups": ["a", "b", "a", "b"], "tests": {"a": data()[0], "b": data()[1]}}
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    fed = eq.Federation(net, data(), method, **about | RUNS[method])
    fed.fit(rounds=2, directory=tmp_path / "run", progress=False)
    written = parse_lines("".join(line(one) for one in fed.records))
    assert [unfit(one, Record) for one in written] == [[], []]
    assert "groups" in written[-1]
    assert unfit(fed.history.meta, Meta) == []
    _, found = read(tmp_path / "run")
    assert unfit(found, Meta) == []
    assert unfit(checkpoint.about(tmp_path / "run" / "checkpoint"), Kept) == []
    summary = json.loads(json.dumps(fed.history.summary()))
    for part, form in (("collaboration", Collaboration), ("group_fairness", GroupFairness)):
        statistics = {statistic.key for statistic in (*definitions.COLLABORATION, *definitions.PARITY)}
        own = {
            key: x for key, x in (summary[part] or {}).items() if key in get_type_hints(form) or key not in statistics
        }
        assert unfit(own, form) == []
    assert (summary["collaboration"] is not None) == (method == "fedsac")


def test_a_client_in_quarantine_and_a_result_without_a_number() -> None:
    broken = [*data()[:3], (torch.full((24, 4), math.inf), torch.arange(24) % 2)]
    fed = eq.Federation(torch.nn.Linear(4, 2), broken, quorum=0.5, tests={"a": data()[0], "b": broken[3]})
    fed.fit(rounds=1, progress=False)
    (one,) = parse_lines(line(fed.records[0]))
    assert unfit(one, Record) == []
    assert one["quarantined"][0]["client"] == 3
    assert one["groups"]["b"]["undefined"] == 24


def test_records_of_regression_are_read() -> None:
    """As they are written where the target is a number: no accuracy, and the RMSE in its place."""
    written: Record = {
        "round": 0,
        "groups": {"a": {"rmse": 2.0, "mae": 1.5, "r2": None, "loss": 4.0, "n": 9}},
        "clients": {"rmse": [2.0, None], "n": [9, 0]},
        "validation": {"rmse": 3.0, "mae": 2.0, "loss": 9.0, "n": 4, "groups": {}, "clients": {"rmse": [3.0, None]}},
    }
    assert unfit(written, Record) == []
    run = history.History((written,), {"method": "fedavg", "task": "regression", "unit": "kg"})
    assert parse_lines(line(run.records[0])) == run.records
    with pytest.raises(ValueError, match="one per client"):
        history.History(({"round": 0, "clients": {"mae": [1.0]}},), {"method": "fedavg"})  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match="expected validation"):
        history.History(({"round": 0, "validation": {"loss": 1.0, "groups": {}}},), {"method": "fedavg"})
