"""The grid in one process: what it hands over is what Flower would."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

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
