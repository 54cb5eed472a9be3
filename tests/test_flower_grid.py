"""The grid in one process: what it hands over is what Flower would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.flower import InProcessGrid
from equipoise.flower.grid import copied

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(2.5),
    "bool": np.array([True, False]),
    "empty": np.zeros((0, 4), dtype=np.int64),
    "by columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big end first": np.arange(3, dtype=">i4"),
    "complex": np.array([1j]),
    "fields": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "text": np.array(["ab", "c"]),
    "half": np.ones(5, dtype=np.float16),
}


def handed(array: Array) -> Array:
    """The array as its receiver has it."""
    return copied(RecordDict({"a": ArrayRecord({"x": array})})).array_records["a"]["x"]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_as_flower_does(name: str) -> None:
    sent = Array(ARRAYS[name])
    got = handed(sent)
    assert got == sent
    assert sent == got
    assert got.object_id == sent.object_id
    one, two = sent.numpy(), got.numpy()
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    assert one.tobytes() == two.tobytes()
    two[...] = two[...]  # it may be written to, and is the reader's own
    assert not np.shares_memory(two, got.numpy())


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", Array(np.zeros(3)).data[:-1], Array(np.zeros(4)).data])
def test_bytes_that_are_no_such_array_end_as_with_flower(data: bytes) -> None:
    def outcome(array: Array) -> Any:
        try:
            return array.numpy().tolist()
        except (ValueError, EOFError) as error:
            return str(error)

    sent = Array("float64", (3,), "numpy.ndarray", data)
    assert outcome(handed(sent)) == outcome(sent)
    with pytest.raises(TypeError, match="Unsupported serialization type"):
        handed(Array("float64", (3,), "else", data)).numpy()


def test_records_are_the_receivers_own() -> None:
    sent = RecordDict({"a": ArrayRecord([np.ones(2)]), "told": ConfigRecord({"list": [1], "x": 1})})
    got = copied(sent)
    assert got == sent
    got.array_records["a"].to_numpy_ndarrays(keep_input=False)  # which empties the record
    got.config_records["told"]["list"].append(2)  # type: ignore[union-attr]
    got.config_records["told"]["x"] = 2
    assert list(sent.array_records["a"]) == ["0"]
    assert dict(sent.config_records["told"]) == {"list": [1], "x": 1}


def test_what_goes_to_many_is_not_shared_by_them() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["a"].to_numpy_ndarrays(keep_input=False)
        return Message(RecordDict({"a": ArrayRecord(arrays)}), reply_to=message)

    grid = InProcessGrid(app, [{}] * 3, {})
    sent = RecordDict({"a": ArrayRecord([np.ones(2)])})
    replies = grid.send_and_receive([Message(sent, node, "train") for node in grid.get_node_ids()])
    assert [reply.content.array_records["a"]["0"].numpy().tolist() for reply in replies] == 3 * [[1, 1]]


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
