"""The grid in one process: what it hands over is what Flower would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto

from equipoise.flower import InProcessGrid


def test_what_goes_to_many_is_not_shared_by_them() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["a"].to_numpy_ndarrays(keep_input=False)
        told = message.content.config_records["told"]
        told["list"].append(2)  # type: ignore[union-attr]
        return Message(RecordDict({"a": ArrayRecord(arrays), "told": told}), reply_to=message)

    grid = InProcessGrid(app, [{}] * 3, {})
    sent = RecordDict({"a": ArrayRecord([np.ones(2)]), "told": ConfigRecord({"list": [1]})})
    replies = grid.send_and_receive([Message(sent, node, "train") for node in grid.get_node_ids()])
    assert [reply.content.array_records["a"]["0"].numpy().tolist() for reply in replies] == 3 * [[1, 1]]
    assert list(sent.array_records["a"]) == ["0"]  # which a receiver has emptied of its own
    assert replies[0].content.config_records["told"]["list"] == [1, 2]
    assert sent.config_records["told"]["list"] == [1]


def test_an_app_that_is_not_ours() -> None:
    """Clients answer in turn with what is theirs; the sender's records stay as they are; a failure is an error reply."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["site"] == "c":
            raise RuntimeError("no data")
        x = message.content.array_records["a"]["x"].numpy()
        x += float(context.run_config["add"])
        told = ConfigRecord({"site": context.node_config["site"]})
        return Message(RecordDict({"a": ArrayRecord([x]), "told": told}), reply_to=message)

    grid = InProcessGrid(app, [{"site": name} for name in "abc"], {"add": 2})
    sent = RecordDict({"a": ArrayRecord({"x": Array(np.ones(2))})})
    one, two, three = grid.send_and_receive([Message(sent, node, "train") for node in grid.get_node_ids()])
    assert [m.content.config_records["told"]["site"] for m in (one, two)] == ["a", "b"]
    assert one.content.array_records["a"]["0"].numpy().tolist() == [3.0, 3.0]
    assert two.content.array_records["a"]["0"].numpy().tolist() == [3.0, 3.0]
    assert type(sent.array_records["a"]["x"]) is Array
    assert three.error.code == 2
    assert "no data" in str(three.error.reason)


def echo(record: Any) -> InProcessGrid:
    """A site that answers each message with a record."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"m": record}), reply_to=message)

    return InProcessGrid(app, [{"site": "a"}], {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf, about the truth values among whole numbers
@pytest.mark.parametrize(
    "record",
    [
        MetricRecord({"flags": [1, True]}),
        MetricRecord({"mixed": [0.5, 0.25], "large": 2**63, "empty": []}),
        ConfigRecord({"words": ["a", "b"], "bytes": b"\x00", "truths": [True, False], "none": []}),
        ConfigRecord({"numbers": [1, True], "sizes": [2**63, 1]}),
        ArrayRecord({"x": Array(np.ones((2, 3), "float16")), "mask": Array(np.zeros(0, bool))}),
    ],
)
def test_a_record_arrives_as_between_machines(record: Any) -> None:
    grid = echo(record)
    (reply,) = grid.send_and_receive([Message(RecordDict({"sent": record}), 1, "query")])
    arrived, between = dict(reply.content["m"]), dict(message_from_proto(message_to_proto(reply)).content["m"])
    assert repr(arrived) == repr(between)
    assert repr(dict(Message(RecordDict({"m": record}), 1, "query").content["m"])) == repr(dict(record))  # which stays


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [1, 2**64]])
def test_a_number_that_flower_cannot_send_is_refused(value: Any) -> None:
    (reply,) = echo(ConfigRecord({"k": value})).send_and_receive([Message(RecordDict(), 1, "query")])
    assert reply.has_error()
    with pytest.raises(ValueError, match="range"):
        echo(ConfigRecord()).push_messages([Message(RecordDict({"c": ConfigRecord({"k": value})}), 1, "query")])


def test_configs_and_states_are_those_of_flower() -> None:
    """Tables become keys with points, nothing but plain values is accepted, and a site that fails keeps its state."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        seen.append((dict(context.node_config), dict(context.run_config), dict(context.state)))
        context.node_config["site"] = "other"
        context.state["n"] = MetricRecord({"n": [1, True]})
        if len(seen) == 2:
            raise RuntimeError("no data")
        context.state["n"] = MetricRecord({"n": [len(seen)]})
        return Message(RecordDict(), reply_to=message)

    seen: list[Any] = []
    node = {"site": "a", "db": {"path": "/x", "pool": {"size": 2, "idle": 0.5, "wait": True}}}
    grid = InProcessGrid(app, [node], {"opt": {"lr": 0.1}, "rounds": 2})
    for _ in range(3):
        grid.send_and_receive([Message(RecordDict(), 1, "query")])
    flat = {"site": "a", "db.path": "/x", "db.pool.size": 2, "db.pool.idle": 0.5, "db.pool.wait": True}
    assert [(node, run) for node, run, _ in seen] == [(flat, {"opt.lr": 0.1, "rounds": 2})] * 3
    assert [state.get("n", {"n": []})["n"] for *_, state in seen] == [[], [1], [1]]
    for wrong in ({"list": [1]}, {"table": {"nothing": None}}):
        with pytest.raises(ValueError, match="needs to be of type"):
            InProcessGrid(app, [wrong], {})
