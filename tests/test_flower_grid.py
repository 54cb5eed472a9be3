"""The grid in one process: what it hands over is what Flower would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.flower import InProcessGrid
from equipoise.flower.grid import quick

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


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_as_flower_reads_them(name: str) -> None:
    sent = Array(ARRAYS[name])
    got = quick(RecordDict({"a": ArrayRecord({"x": sent})})).array_records["a"]["x"]
    one, two = sent.numpy(), got.numpy()
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    assert one.tobytes() == two.tobytes()
    assert got == sent
    assert sent == got
    two[...] = two[...]  # it may be written to, and is the reader's own
    assert not np.shares_memory(two, got.numpy())
    assert got.object_id == sent.object_id


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", Array(np.zeros(3)).data[:-1], Array(np.zeros(4)).data])
def test_bytes_that_are_no_such_array_end_as_with_flower(data: bytes) -> None:
    sent = Array("float64", (3,), "numpy.ndarray", data)
    got = quick(RecordDict({"a": ArrayRecord({"x": sent})})).array_records["a"]["x"]

    def read(array: Array) -> Any:
        try:
            return array.numpy().tolist()
        except (ValueError, EOFError):
            return "not an array"

    assert read(got) == read(sent)


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
