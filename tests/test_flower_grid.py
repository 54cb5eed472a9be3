"""The grid in one process: what it hands over is what Flower would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.flower import InProcessGrid
from equipoise.flower.grid import SLOWLY_READ, SLOWLY_WRITTEN, copied, read, written

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
def test_arrays_are_written_and_read_as_flower_does(name: str) -> None:
    sent, got = SLOWLY_WRITTEN(ARRAYS[name]), written(ARRAYS[name])
    assert got == sent
    assert type(got) is type(sent)
    assert got.object_id == sent.object_id
    one, two = SLOWLY_READ(sent), read(got)
    assert one.dtype == two.dtype
    assert one.shape == two.shape
    assert one.tobytes() == two.tobytes()
    two[...] = two[...]  # it may be written to, and is the reader's own
    assert not np.shares_memory(two, read(got))


def test_what_cannot_be_written_is_refused_as_by_flower() -> None:
    for function in (SLOWLY_WRITTEN, written):
        with pytest.raises(ValueError, match="allow_pickle"):
            function(np.array([{}]))
    later = np.ones(3)
    array = written(later)
    later += 1  # what was sent stays as it was
    assert read(array).tolist() == [1, 1, 1]


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", Array(np.zeros(3)).data[:-1], Array(np.zeros(4)).data])
def test_bytes_that_are_no_such_array_end_as_with_flower(data: bytes) -> None:
    def outcome(how: Any) -> Any:
        try:
            return how(Array("float64", (3,), "numpy.ndarray", data)).tolist()
        except (ValueError, EOFError) as error:
            return str(error)

    assert outcome(read) == outcome(SLOWLY_READ)
    with pytest.raises(TypeError, match="Unsupported serialization type"):
        read(Array("float64", (3,), "else", data))


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
