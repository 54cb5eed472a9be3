"""The product against numbers that were computed elsewhere and checked against released code."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from golden_adapters import ADAPTERS, NOT_OFFERED, SKIPPED
from helpers import in_one

DIRECTORY = Path(os.environ.get("EQUIPOISE_GOLDEN", Path(__file__).parent / "golden"))
ENTRIES: list[dict[str, Any]] = [
    entry for path in sorted(DIRECTORY.glob("*.json")) for entry in json.loads(path.read_text())
]


def mismatches(got: Any, expected: Any, absolute: float, relative: float, where: str = "") -> list[str]:
    """Where ``got`` departs from ``expected``: every number within the tolerance, every expected field there."""
    if isinstance(got, Tensor):
        got = got.tolist()
    if expected is None:
        return [] if got is None else [f"{where}: expected null, found {got!r}"]
    if isinstance(expected, str):
        return [] if got == expected else [f"{where}: expected {expected!r}, found {got!r}"]
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping):
            return [f"{where}: expected fields, found {type(got).__name__}"]
        missing = [f"{where}/{key}: missing" for key in expected if key not in got]
        there = [key for key in expected if key in got]
        return missing + [
            m for key in there for m in mismatches(got[key], expected[key], absolute, relative, f"{where}/{key}")
        ]
    if isinstance(expected, list):
        if not isinstance(got, (list, tuple, range)) or len(got) != len(expected):
            return [f"{where}: expected {len(expected)} entries, found {got!r}"]
        pairs = enumerate(zip(got, expected, strict=True))
        return [m for k, (g, e) in pairs for m in mismatches(g, e, absolute, relative, f"{where}/{k}")]
    if isinstance(got, (bool, int, float)) and abs(got - expected) <= absolute + relative * abs(expected):
        return []
    return [f"{where}: expected {expected!r}, found {got!r}"]


def check(entry: Mapping[str, Any]) -> None:
    """Fail unless the product gives every expected field of an entry."""
    name = entry["id"]
    assert name in ADAPTERS, f"golden entry {name!r} has no adapter in tests/golden_adapters.py"
    problems = mismatches(ADAPTERS[name](entry["inputs"]), entry["expected"], entry["abs"], entry["rel"])
    assert not problems, f"{name}: {len(problems)} differences, first: {problems[:3]}"


def test_there_are_entries() -> None:
    assert ENTRIES, f"no golden entry in {DIRECTORY}"


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["id"] for entry in ENTRIES])
@pytest.mark.share(20)
def test_golden(entry: dict[str, Any]) -> None:
    if entry["id"] in SKIPPED:
        assert entry["optional"] or entry["id"] in NOT_OFFERED, f"{entry['id']} is not optional and must not be skipped"
        pytest.skip(SKIPPED[entry["id"]])
    check(entry)


def test_nothing_is_both_checked_and_skipped() -> None:
    assert not ADAPTERS.keys() & SKIPPED.keys()


# the harness itself can fail
def numbers(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all numbers of a tree."""
    if isinstance(tree, Mapping):
        return [p for k, v in tree.items() for p in numbers(v, (*path, k))]
    if isinstance(tree, list):
        return [p for k, v in enumerate(tree) for p in numbers(v, (*path, k))]
    return [] if tree is None else [path]


def moved(entry: Mapping[str, Any], path: tuple[Any, ...], by: float) -> dict[str, Any]:
    changed = copy.deepcopy(dict(entry))
    at = changed["expected"]
    for key in path[:-1]:
        at = at[key]
    value = at[path[-1]]
    at[path[-1]] = f"not {value}" if isinstance(value, str) else value + by * max(1, abs(value))
    return changed


CHECKED = [entry for entry in ENTRIES if entry["id"] in ADAPTERS]


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=e["id"], marks=[pytest.mark.slow] * (k % 8 > 0)) for k, e in enumerate(CHECKED)]
)
def test_a_perturbed_number_fails(entry: dict[str, Any]) -> None:
    """First, middle and last number of every entry: none of them is left unread."""
    got = ADAPTERS[entry["id"]](entry["inputs"])
    paths = numbers(entry["expected"])
    for path in {paths[0], paths[len(paths) // 2], paths[-1]}:
        wrong = moved(entry, path, 1e-3)
        assert mismatches(got, wrong["expected"], entry["abs"], entry["rel"]), path


def test_unknown_entry_fails() -> None:
    with pytest.raises(AssertionError, match="has no adapter"):
        check({"id": "no.such.entry", "inputs": {}, "expected": {}, "abs": 0, "rel": 0})


@in_one(
    ("got", "expected"),
    [
        ({"a": 1.0}, {"a": 1.0, "b": 2.0}),
        ({"a": [1.0]}, {"a": [1.0, 2.0]}),
        ({"a": float("nan")}, {"a": 1.0}),
        ({"a": None}, {"a": 0.0}),
        ({"a": 0.0}, {"a": None}),
        ([1.0], {"a": 1.0}),
        ({"a": "1"}, {"a": 1.0}),
        ({"a": 1.0}, {"a": [1.0]}),
    ],
)
def test_a_wrong_tree_fails(got: Any, expected: Any) -> None:
    assert mismatches(got, expected, 1e-9, 1e-9)


def test_tolerance_is_absolute_plus_relative() -> None:
    assert not mismatches(100.149, 100.0, 0.05, 0.001)
    assert mismatches(100.151, 100.0, 0.05, 0.001)
