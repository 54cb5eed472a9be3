"""What travels between the server and a site: fields as JSON, and tensors by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from equipoise.core import wire
from equipoise.core.rule import Rule, State, overrides
from equipoise.federation.guard import DIAGNOSED
from equipoise.system import seals, text
from equipoise.system.errors import REFUSED, InputError
from equipoise.system.tensor_files import NAMES, as_bytes, from_bytes

Hide = Callable[[Sequence[int]], Tensor | None]
Submodel = tuple[Tensor | None, Tensor | None]  # its hidden units [K] and its coordinates [G], None for all
LOST = "lost"  # key of a site's answer if it lacks the model that was sent last, of which this is a change
KEYS = (LOST, REFUSED, *DIAGNOSED)  # of the errors that a site sends
VERSION = 8  # of these messages: both ends must have the same
LONGEST = 10_000  # characters of any text in them
UNFIT = (AttributeError, KeyError, OverflowError, TypeError, ValueError)  # raised where a message says something else


class CodecError(InputError):
    """A message that is not what the other end must send."""


@dataclass(frozen=True)
class Parcel:
    """The content of a message: ``fields`` are anything that JSON can hold, ``tensors`` have names."""

    fields: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(x.nbytes for x in self.tensors.values())

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors ``name/...``, by what follows."""
        start = f"{name}/"
        return {key.removeprefix(start): x for key, x in self.tensors.items() if key.startswith(start)}

    def records(self) -> RecordDict:
        """The message as Flower sends it."""
        data = {k: Array(NAMES[x.dtype], tuple(x.shape), "bytes", bytes(as_bytes(x))) for k, x in self.tensors.items()}
        fields = json.dumps({"version": VERSION, **self.fields}, allow_nan=True)
        return RecordDict({"fields": ConfigRecord({"json": fields}), "tensors": ArrayRecord(data)})

    @staticmethod
    def of(records: RecordDict) -> Parcel:
        """The content of a message.

        Raises
        ------
        CodecError : it was not made by :meth:`records`, or by another version of it.
        """
        try:
            fields = seals.read_json(str(records.config_records["fields"]["json"]))
            arrays = records.array_records["tensors"]
            if (longest := max(map(len, (*_texts(fields), *arrays)), default=0)) > LONGEST:
                raise CodecError(f"A text in the message has {longest:,} characters, and at most {LONGEST:,} are read.")
            if (version := fields.pop("version")) == VERSION:
                return Parcel(fields, {key: from_bytes(x.data, x.dtype, x.shape) for key, x in arrays.items()})
        except CodecError:
            raise
        except Exception as error:  # from outside: whatever it is, it cannot be read
            raise CodecError(f"The message cannot be read ({type(error).__name__}).") from None
        raise CodecError(
            f"The message is of version {text.name(version)}, and {VERSION} is spoken here: install the same Equipoise everywhere."
        )


def _texts(fields: Any) -> Iterator[str]:
    """Every text in the fields of a message, the names of fields too."""
    left = [fields]
    while left:
        inner = left.pop()
        if isinstance(inner, str):
            yield inner
        elif isinstance(inner, Mapping | list):
            left += inner
            left += inner.values() if isinstance(inner, Mapping) else ()


# trees of tensors, of which what is private stays where it is
def packed(name: str, states: Sequence[State], hide: Hide) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The tensors of one state per rule under ``name/rule/key``, without private coordinates; the whole length of those cut."""
    tensors, cut = {}, {}
    for rule, state in enumerate(states):
        for key, x in state.items():
            where = f"{name}/{rule}/{key}"
            if (hidden := hide(x.shape[-1:])) is not None:
                cut[where] = x.shape[-1]
                x = x[..., ~hidden]
            tensors[where] = x
    return tensors, cut


def unpacked(parcel: Parcel, name: str, n_rules: int, hide: Hide) -> list[State]:
    """What :func:`packed` made, with zeros where coordinates are private.

    Raises
    ------
    CodecError : it does not fit.
    """
    states: list[State] = [{} for _ in range(n_rules)]
    cut = parcel.fields.get("cut", {})
    if not isinstance(cut, dict):
        raise CodecError("it does not say what was cut out.")
    for key, x in parcel.part(name).items():
        rule, _, own = key.partition("/")
        if rule not in map(str, range(n_rules)):
            raise CodecError(f"{name} of rule {rule!r}, and the method has {n_rules} rules.")
        if (n := cut.get(f"{name}/{key}")) is not None:
            hidden = hide((n,))
            if hidden is None or x.shape[-1:] != (int((~hidden).sum()),):
                raise CodecError(f"{name} {own!r} does not have the public coordinates of this network.")
            x = x.new_zeros(*x.shape[:-1], n).masked_scatter(~hidden, x)
        states[int(rule)][own] = x
    return states


def hiding(private: Tensor | None, n_params: int) -> Hide:
    """Which coordinates are private of something that ends in a dimension of a length; None unless that is P or G."""

    def hide(shape: Sequence[int]) -> Tensor | None:
        if private is None or not shape or shape[-1] not in (n_params, len(private)):
            return None
        return private[: shape[-1]]

    return hide


# whole vectors, as changes of what the other end has
def sent(rules: Sequence[Rule], private: Tensor | None, held: Tensor | None) -> tuple[Tensor | None, bool]:
    """The coordinates [G] of a trained model that a site sends, None for all, and whether as the change of what it received."""
    uploads = any(overrides(rule, "upload") for rule in rules)
    masks = [mask for mask in (None if private is None else ~private, None if uploads else held) if mask is not None]
    return torch.stack(masks).all(0) if masks else None, uploads


def change(new: Tensor, base: Tensor | None) -> dict[str, Tensor]:
    """A vector [n] as the shortest change of ``base`` [n], which the other end has; whole where there is none."""
    if base is None or base.shape != new.shape:
        return {"values": new}
    return wire.pack_change(new, base)


def changed(parts: Mapping[str, Tensor], base: Tensor | None, like: Tensor) -> Tensor:
    """The vector that :func:`change` encodes.

    ``like`` [n] has the shape and type it must have.

    Raises
    ------
    CodecError : it does not fit.
    """
    values = parts.get("values")
    if values is None or values.dtype != like.dtype or values.dim() != 1:
        raise CodecError(f"a vector of {like.dtype} was expected, and none is there.")
    if not parts.keys() & {"index", "bits"}:
        if values.shape != like.shape:
            raise CodecError(f"a vector of {len(like)} numbers was expected; found {len(values)}.")
        return values
    if base is None:
        raise CodecError("a change was sent of a model that is not here.")
    try:
        if (index := parts.get("index")) is not None and ((index < 0) | (index >= len(like))).any():
            raise IndexError
        return wire.unpack_change(dict(parts), base)
    except (RuntimeError, IndexError, *UNFIT):
        raise CodecError("a change was sent that does not fit the model.") from None
