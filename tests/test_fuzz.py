"""Changed messages, as `tools/fuzz_messages.py` draws them: a hundred here, ten thousand by `make fuzz`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("flwr")

import fuzz_messages as fuzz
from fuzz_changes import Change, Draft, places
from fuzz_messages import Case

from equipoise.flower.server import scores
from equipoise.flower.site import site, store
from helpers import in_one


def case(kind: str, fields: Mapping[str, Any], run: str = "scaffold") -> Case:
    """The last recorded message of a kind with some fields, given by their paths, replaced."""
    number = max(k for k, one in enumerate(fuzz.recorded()) if (one.run, one.kind) == (run, kind))
    draft = Draft.of(fuzz.recorded()[number].content)
    changes = []
    for path, value in fields.items():
        parent: Any = draft.fields
        *way, last = path.split("/")
        for key in way:
            parent = parent[key]
        where = next(k for k, (p, key) in enumerate(places(draft.fields)) if p is parent and key == last)
        changes.append(Change("replace", where, copy.deepcopy(value)))
    return Case("site", number, tuple(changes))


@pytest.mark.parametrize(
    ("side", "messages"),
    [
        ("site", 20),
        ("server", 2),
        pytest.param("site", 2000, marks=pytest.mark.slow),
        pytest.param("server", 200, marks=pytest.mark.slow),
    ],
)
@pytest.mark.share(5)
def test_changed_messages_break_no_promise(side: str, messages: int) -> None:
    wrong: list[Any] = []

    def use(case: Case) -> None:
        *_, broken = fuzz.verdict(case)
        wrong.extend((case, what) for what in broken)

    fuzz.drawn(side, messages, 0, use)
    assert wrong == []


@in_one(
    ("kind", "fields"),
    [
        ("train", {"t": None}),
        ("train", {"receipt": [-1, "00" * 32], "t": None}),  # nothing is removed for a training that fails
        ("train", {"saved": "0"}),
        ("query.finish", {"saved": None}),
        ("evaluate", {"measures": ["correct"]}),
        ("evaluate", {"measures": [["accuracy"]]}),
        ("train.alone", {"experiment/method": "net.py:Rule"}),
    ],
)
def test_a_refused_message_changes_nothing(kind: str, fields: dict[str, Any]) -> None:
    assert fuzz.at_site(case(kind, fields)) == (kind, "refused", [])


@in_one("name", ["../../x", "/x", "\ud800", "x" * 5000])
def test_no_name_leads_out_of_the_state_directory(name: str) -> None:
    kind, _, broken = fuzz.at_site(case("query.keys", {"experiment/name": name}, "fedavg, masked"))
    assert (kind, broken) == ("query.keys", [])


def tells(error: Exception) -> str:
    return fuzz.SECRET


def broken_scores(*_: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("where", "name", "instead", "tried", "said"),
    [
        (
            store,
            "_plain",
            str,
            lambda: case("query.keys", {"experiment/name": "../../y"}, "fedavg, masked"),
            "outside of the state directory",
        ),
        (site, "harmless", tells, lambda: case("train", {"t": None}), "the answer tells 'patient-4711'"),
        (
            scores.Tested,
            "of",
            broken_scores,
            lambda: Case("server", fuzz.answers().index(("scaffold", "ward-a", 2)), (Change("drop", 0, None),)),
            "the server ends with ZeroDivisionError",
        ),
    ],
)
def test_a_broken_promise_is_noticed(
    where: Any, name: str, instead: Any, tried: Callable[[], Case], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tried()
    fuzz.right_end("scaffold"), fuzz.end_without("scaffold", "ward-a", 2)  # to compare with
    monkeypatch.setattr(where, name, instead)
    assert any(said in what for what in fuzz.verdict(one)[2])
