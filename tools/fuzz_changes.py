"""How a message can be changed: its fields, its tensors, and what holds them; for `tools/fuzz_messages.py`."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import strategies as st

from equipoise.flower.codec import VERSION
from equipoise.system.tensor_files import NAMES as TYPE_NAMES, TYPES, as_bytes, from_bytes

NAMES = ("../../x", "/etc/passwd", "a/../../b", "..", "~", "CON", "x" * 5000, "\x1b[2J", "\u202e", "\ud800", "\x00", "")
NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    0.5,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    2**31,
    2**53,
    2**63,
    2**64,
    -(2**63),
    10**300,
    10**4000,
)
WORDS = (
    "correct",
    "rates",
    "values",
    "fedavg",
    "ditto+fedbn",
    "fedavg+dp(clip=1, noise=1)",
    "standalone",
    "rules.py:Rule",
    "cosine(0.1)",
    "SGD",
    "south=0.3",
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    {"": None},
    "0",
    "nan",
    "1e400",
    "00" * 32,
    "zz" * 32,
    "00" * 500_000,
)
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "uint16", "bool", "complex64")
WORDS_FOR_TYPES = (*TYPES, "F8_E4M3", "float32", "<U3", "O", "object", "", "F32 ")
SHAPES = ((), (0,), (1,), (3,), (1, 1), (2, 0), (1,) * 40, (10**12,), (2**62, 4), (-1,), (2**31, 2**31))


@dataclass(frozen=True)
class Change:
    """One change: ``how`` is a key of :data:`CHANGES`, ``where`` picks what it is made to, ``value`` is what it needs."""

    how: str
    where: int
    value: Any


@dataclass
class Draft:
    """A message that is being changed: its fields as JSON, its arrays, the text or records that replace them."""

    fields: Any
    arrays: dict[str, Array]
    text: str | None = None
    record: RecordDict | None = None

    @staticmethod
    def of(content: RecordDict) -> Draft:
        """From a right message."""
        fields = json.loads(str(content.config_records["fields"]["json"]))
        return Draft(fields, dict(content.array_records["tensors"].items()))

    def records(self) -> RecordDict:
        """As Flower carries it."""
        if self.record is not None:
            return self.record
        text = json.dumps(self.fields) if self.text is None else self.text
        return RecordDict({"fields": ConfigRecord({"json": text}), "tensors": ArrayRecord(dict(self.arrays))})


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in a tree of JSON, as the list or dictionary it is in and its key there."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from places(tree[key])


def _picked(draft: Draft, where: int) -> tuple[Any, Any]:
    found = list(places(draft.fields)) or [([draft.fields], 0)]
    return found[where % len(found)]


# fields
def _drop(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    parent, key = _picked(draft, where)
    del parent[key]


def _rename(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    parent, key = _picked(draft, where)
    if isinstance(parent, dict):
        parent[str(value)] = parent.pop(key)
    else:
        parent[key] = {str(value): parent[key]}


def _double(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    """The same field twice, with another value the second time: JSON allows it."""
    parent, key = _picked(draft, where)
    if isinstance(parent, list):
        parent.append(parent[key])
    else:
        draft.text = json.dumps(draft.fields)[:-1] + f", {json.dumps(str(key))}: {json.dumps(value)}}}"


def _replace(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    parent, key = _picked(draft, where)
    parent[key] = copy.deepcopy(value)


def _nest(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    parent, key = _picked(draft, where)
    for _ in range((1, 2, 100)[where % 3]):
        parent[key] = [parent[key]]


def _bury(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    """Deeper than any reader can follow."""
    draft.text = json.dumps(draft.fields)[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"


def _shift(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    """A number, a little or much larger; a sign of a text, another one, so that a receipt or a key is not the same."""
    numbers = [
        (p, k) for p, k in places(draft.fields) if isinstance(p[k], int | float | str) and not isinstance(p[k], bool)
    ]
    if not numbers:
        return
    parent, key = numbers[where % len(numbers)]
    step, old = (where % 7) - 3, parent[key]
    if isinstance(old, str):
        at = where % max(1, len(old))
        parent[key] = old[:at] + ("0" if old[at : at + 1] != "0" else "1") + old[at + 1 :]
    else:
        parent[key] = (old + step, old * step, -old, old * 10**9)[where % 4]


def _foreign(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    """A value of another message: of another round, site, run or kind."""
    parent, key = _picked(draft, where)
    theirs = list(places(others[where % len(others)].fields))
    same = [(p, k) for p, k in theirs if k == key] or theirs
    p, k = same[where // 7 % len(same)]
    parent[key] = copy.deepcopy(p[k])


# tensors
def _name(draft: Draft, where: int) -> str | None:
    return list(draft.arrays)[where % len(draft.arrays)] if draft.arrays else None


def _drop_tensor(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    if (name := _name(draft, where)) is not None:
        del draft.arrays[name]


def _add_tensor(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    names = (
        "model/index",
        "model/bits",
        "model/units",
        "model/values",
        "messages/0/x",
        "messages/9/x",
        "reports/0/x",
        "initial",
        "global",
        "masked",
    )
    draft.arrays[names[where % len(names)]] = _made(where, value)


def _rename_tensor(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    if (name := _name(draft, where)) is not None:
        draft.arrays[name[: where % (len(name) + 1)] + "x"] = draft.arrays.pop(name)


def _replace_tensor(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    """Another type, shape, length, or numbers that no training gives."""
    if (name := _name(draft, where)) is not None:
        draft.arrays[name] = _made(where, value, draft.arrays[name])


def _foreign_tensor(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    other = others[where % len(others)]
    if (name := _name(draft, where)) is not None and (theirs := _name(other, where // 7)) is not None:
        draft.arrays[name] = other.arrays[theirs]


def _flip(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    if (name := _name(draft, where)) is not None:
        old = draft.arrays[name]
        data = bytearray(old.data)
        if data:
            data[where % len(data)] ^= 1 << (where // 11 % 8)
        draft.arrays[name] = Array(old.dtype, old.shape, old.stype, bytes(data))


def _lie(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    """What is said of an array is not what it is: its shape, its type, the form of its bytes, or its header."""
    if (name := _name(draft, where)) is None:
        return
    old, shape, dtype = draft.arrays[name], SHAPES[where % len(SHAPES)], WORDS_FOR_TYPES[where % len(WORDS_FOR_TYPES)]
    draft.arrays[name] = (
        Array(old.dtype, shape, old.stype, old.data),
        Array(dtype, old.shape, old.stype, old.data),
        Array(old.dtype, old.shape, "pickle", old.data),
        Array(old.dtype, old.shape, old.stype, old.data[: where % 100]),
        Array(old.dtype, shape, old.stype, _header(shape, "<f8") + old.data[-8:]),
        Array("object", (1,), old.stype, _header((1,), "|O") + pickle.dumps([print])),
    )[where // 7 % 6]


def _header(shape: tuple[int, ...], kind: str) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


def _made(where: int, value: Any, like: Array | None = None) -> Array:
    try:
        x = np.arange(float(where % 50)) if like is None else from_bytes(like.data, like.dtype, like.shape).numpy()
    except Exception:  # an array that was made to lie before
        x = np.arange(3.0)
    if x.dtype.kind not in "fiub":
        return _sent(x)
    fill = value if isinstance(value, int | float) and abs(value) < 1e300 else math.nan
    with np.errstate(all="ignore"):
        forms: tuple[Callable[[], Any], ...] = (
            lambda: x.astype(DTYPES[where // 7 % 10]),
            lambda: x[..., None],
            lambda: x.reshape(-1)[: where // 7 % (x.size + 1)],
            lambda: np.concatenate([x.reshape(-1)] * 2),
            lambda: np.full(x.shape, fill, dtype=np.float64).astype(x.dtype),
            lambda: x * 1e30 if x.dtype.kind == "f" else x * 0 - 1,
            lambda: np.where(np.arange(x.size).reshape(x.shape) == where % max(x.size, 1), math.nan, x).astype(x.dtype),
            lambda: x[None].repeat(3, 0),
            lambda: -x if x.dtype.kind != "b" else ~x,
            lambda: np.zeros((0, 5), x.dtype),
        )
        try:
            return _sent(forms[where % len(forms)]())
        except Exception:  # a number that the type cannot hold
            return _sent(np.zeros(3, x.dtype))


def _sent(x: Any) -> Array:
    """Numbers as messages hold them."""
    made = torch.from_numpy(np.ascontiguousarray(x))
    return Array(TYPE_NAMES[made.dtype], tuple(made.shape), "bytes", bytes(as_bytes(made)))


# what holds them
def _envelope(draft: Draft, where: int, value: Any, others: Sequence[Draft]) -> None:
    """Another version, JSON that is none, records that are missing or of another kind."""
    whole = json.dumps(draft.fields)
    text = (
        whole[: where % len(whole)],
        whole + "}",
        json.dumps([draft.fields]),
        json.dumps(value),
        json.dumps({**draft.fields, "version": value} if isinstance(draft.fields, dict) else value),
        whole.replace('"version"', '"Version"'),
        whole[:-1] + ', "version": 1e400}',
        whole[:-1] + ', "y": ' + "9" * 10_000 + "}",
        "\x00" + whole,
        "",
    )
    arrays = ArrayRecord(dict(draft.arrays))
    records: tuple[Callable[[], RecordDict], ...] = (
        lambda: RecordDict({"tensors": arrays}),
        lambda: RecordDict({"fields": ConfigRecord({"json": whole})}),
        lambda: RecordDict({}),
        lambda: RecordDict({"fields": arrays, "tensors": arrays}),
        lambda: RecordDict({"fields": ConfigRecord({"json": VERSION}), "tensors": arrays}),
        lambda: RecordDict({"fields": ConfigRecord({"json": [whole]}), "tensors": arrays}),
        lambda: RecordDict({"fields": ConfigRecord({"json": b"\xff\xfe"}), "tensors": arrays}),
    )
    k = where % (len(text) + len(records))
    if k < len(text):
        draft.text = text[k]
    else:
        draft.record = records[k - len(text)]()


CHANGES: dict[str, Callable[[Draft, int, Any, Sequence[Draft]], None]] = {
    "drop": _drop,
    "rename": _rename,
    "double": _double,
    "replace": _replace,
    "nest": _nest,
    "bury": _bury,
    "shift": _shift,
    "foreign": _foreign,
    "drop tensor": _drop_tensor,
    "add tensor": _add_tensor,
    "rename tensor": _rename_tensor,
    "replace tensor": _replace_tensor,
    "foreign tensor": _foreign_tensor,
    "flip": _flip,
    "lie": _lie,
    "envelope": _envelope,
}
OFTEN = ("replace", "shift", "foreign", "replace tensor", "flip", "lie")  # drawn twice as often as the others

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=4), of, max_size=3),
    max_leaves=4,
)
CHANGE = st.builds(
    Change,
    st.sampled_from((*CHANGES, *OFTEN)),
    st.integers(0, 10**6),
    st.sampled_from((*NAMES, *NUMBERS, *WORDS, *OTHERS)) | JSON,
)


def change(content: RecordDict, changes: Sequence[Change], others: Sequence[Draft]) -> RecordDict:
    """A message with these changes, one after the other; ``others`` are right messages that lend it parts."""
    draft = Draft.of(content)
    for one in changes:
        if draft.record is None and draft.text is None:
            CHANGES[one.how](draft, one.where, one.value, others)
    return draft.records()
