"""Text that a server sends to a site: of bounded length, read in time in proportion to it, and harmless in the site's log."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Message

import equipoise as eq
from equipoise.core.settings import Settings
from equipoise.core.solver import SGD
from equipoise.federation.method import LONGEST, Method, MethodError, parse
from equipoise.flower.app import make_client_app
from equipoise.flower.codec import LONGEST as LONGEST_TEXT, VERSION, CodecError, Parcel, _texts
from equipoise.flower.grid import InProcessGrid
from equipoise.flower.server.consortium import description
from equipoise.flower.site.task import Task
from equipoise.system import own_code
from equipoise.system.logs import Harmless, logging_as
from equipoise.system.text import read_value
from helpers import in_one, others_slow

FORGED = "\nERROR a, train: forged line \x1b[2J\x1b]0;title\x07 \u202egnp.exe\r"
NETWORK = eq.network("mlp", (8,), 2, seed=0)
X, Y = torch.randn(12, 8), torch.arange(12) % 2


def told(method: str = "fedavg") -> dict[str, Any]:
    """What a server says of an experiment."""
    return description(Method.of(method), SGD(lr=0.05), Settings(batch_size=4, seed=0), ("accuracy",), "run")


def asked(
    tmp_path: Any, experiment: Any, task: Callable[..., Task] | None = None, kind: str = "query.describe", **fields: Any
) -> tuple[str, str]:
    """What a site with one method answers as an error to a message, and what its log says."""
    client = make_client_app(task or (lambda *_: Task(NETWORK, train=(X, Y))), "fedavg")
    grid = InProcessGrid(client, [{"site": "a", "state-dir": str(tmp_path)}], {})
    log, said = logging.getLogger("equipoise"), io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log.addHandler(handler)
    try:
        content = Parcel({"experiment": experiment, **fields}).records()
        (number,) = grid.push_messages([Message(content, 1, kind, ttl=60.0, group_id="1")])
        (reply,) = grid.pull_messages([number])
    finally:
        log.removeHandler(handler)
    return str(Parcel.of(reply.content).fields.get("error", "")), said.getvalue()


def crash(*_: Any) -> Task:
    """A site's task whose error repeats what a server said."""
    try:
        raise KeyError(FORGED)
    except KeyError:
        raise ValueError(f"no such data: {FORGED}") from None


@pytest.mark.parametrize("key", ["method", "name", "kind", "solver", "measures", "seed"])
@pytest.mark.parametrize("failing", [False, True])
def test_no_text_of_a_server_begins_a_line_of_a_sites_log(tmp_path: Any, key: str, failing: bool) -> None:
    experiment = told()
    if key == "solver":
        experiment["solver"] = {**experiment["solver"], "kind": f"SGD{FORGED}"}
    else:
        experiment[key] = f"fedavg{FORGED}" if key != "measures" else [f"accuracy{FORGED}"]
    said = asked(tmp_path, experiment, crash if failing else None)[1]
    assert "\x1b" not in said
    assert not {"\x07", "\r", "\u202e"} & {*said}
    assert not any(line.startswith("ERROR") and "forged" in line for line in said.split("\n")[1:])
    assert failing is ("no such data" in said)


def test_a_shown_text_says_what_it_was(tmp_path: Any) -> None:
    error, said = asked(tmp_path, {**told(), "method": f"fedavg{FORGED}"})
    assert r"forged line \x1b[2J" in said
    assert "takes part in runs of fedavg only, and the server has method = fedavg" in error


def test_records_of_other_libraries_stay_as_they_are() -> None:
    with logging_as("text", {}):
        pass
    make = logging.getLogRecordFactory()
    assert isinstance(make, Harmless)
    assert not isinstance(make.make, Harmless)
    of = {
        name: make(name, logging.INFO, "", 1, "%s", ("\x1b",), None) for name in ("flwr", "equipoisest", "equipoise.x")
    }
    assert [record.getMessage() for record in of.values()] == ["\x1b", "\x1b", r"\x1b"]
    with logging_as("json", {}):
        assert logging.getLogRecordFactory() is make


def test_a_traceback_can_be_read_and_forges_nothing() -> None:
    with logging_as("text", {}):
        pass
    try:
        crash()
    except ValueError:
        record = logging.getLogRecordFactory()("equipoise.flower", 40, "", 1, "at %s", ("a",), sys.exc_info())
    lines = logging.Formatter("%(message)s").format(record).split("\n")
    assert lines[0] == "at a"
    assert all(line.startswith("  ") for line in lines[1:])
    assert any("test_server_text.py" in line for line in lines)


# bounded
@pytest.mark.parametrize(
    "fields",
    [
        {"a": "x" * 100_000},
        {"a": {"b": [1, ["x" * 100_000]]}},
        {"x" * 100_000: 1},
        {"a": [{"x" * 100_000: {}}]},
    ],
)
def test_a_longer_text_is_refused_in_a_sentence(fields: dict[str, Any], tmp_path: Any) -> None:
    with pytest.raises(CodecError, match="A text in the message has 100,000 characters, and at most 10,000 are read"):
        Parcel.of(Parcel(fields).records())
    error, said = asked(tmp_path, told(), **fields)
    assert "100,000 characters" in error
    assert len(said) < 200


def test_a_longer_name_of_a_tensor_is_refused() -> None:
    with pytest.raises(CodecError, match="100,000 characters"):
        Parcel.of(Parcel({}, {"x" * 100_000: torch.zeros(1)}).records())
    just = Parcel({"a": "x" * LONGEST_TEXT}, {"t": torch.zeros(1)})
    assert Parcel.of(just.records()).fields == just.fields


@pytest.mark.parametrize("depth", [50_000])
def test_deep_nesting_in_a_message_is_a_sentence(depth: int, tmp_path: Any) -> None:
    records = Parcel({}).records()
    text = f'{{"version": {VERSION}, "a": ' + "[" * depth + "]" * depth + "}"
    records.config_records["fields"]["json"] = text
    with pytest.raises(CodecError, match="cannot be read"):
        Parcel.of(records)
    records.config_records["fields"]["json"] = json.dumps({"version": VERSION, "a": [[[["x"]]]]})
    assert Parcel.of(records).fields == {"a": [[[["x"]]]]}


@pytest.mark.parametrize(
    "sign", [" ", "[", "]", "(", ",", "+", "a ", "/a ", "~ ", "./", ".py ", ":x", "a.b:", "fedavg+", "="]
)
@pytest.mark.parametrize("length", others_slow([40_000, 400_000], fast=(0,)))
def test_reading_long_text_looks_at_each_part_once(sign: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: how many characters all searches span together."""
    text, spans = sign * (length // len(sign)), list[int]()

    class Counted(str):
        def rfind(self, sub: str, start: int = 0, end: int = sys.maxsize) -> int:  # type: ignore[override]
            spans.append(end - start)
            return super().rfind(sub, start, end)

    class Watched:
        def __init__(self, pattern: Any) -> None:
            self.pattern = pattern

        def search(self, text: str, begin: int, end: int) -> Any:
            spans.append(max(0, end - begin))
            return self.pattern.search(text, begin, end)

    monkeypatch.setattr(own_code, "PATH", Watched(own_code.PATH))
    monkeypatch.setattr(own_code, "PLAIN", Watched(own_code.PLAIN))
    list(own_code.references(Counted(f"{text}.py:x")))
    assert sum(spans) <= 8 * (length + 10)
    with pytest.raises(MethodError, match=f"has .* characters, and at most {LONGEST:,} are read|is empty"):
        parse(text)


@in_one("sign", ["(", "[", "-", "~", "not ", "{", "9", "+"])
def test_values_that_python_cannot_parse_are_words(sign: str) -> None:
    text = sign * (LONGEST // len(sign))
    assert read_value(f"{text}1") == f"{text}1"


def test_nested_fields_are_refused_and_each_text_is_passed_once() -> None:
    inner: Any = ["a"] * 3
    for _ in range(90):
        inner = [inner, {"b": inner}] if isinstance(inner[0], str) else [inner]
    assert sorted({*_texts(inner)}) == ["a", "b"]
    assert len([*_texts(inner)]) == 7
    assert Parcel.of(Parcel({"x": inner}).records()).fields == {"x": inner}
    for _ in range(20):
        inner = [inner]
    with pytest.raises(CodecError, match="cannot be read"):
        Parcel.of(Parcel({"x": inner}).records())
