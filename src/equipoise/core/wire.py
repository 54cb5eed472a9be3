"""Messages: a whole model, a submodel, or the change of a model, in the shortest of a few uncompressed forms.

The simulator counts the bytes of these messages without making them; a deployment sends them.
"""

import numpy as np
import torch
from torch import Tensor

Message = dict[str, Tensor]
INDEX = 4  # bytes of an int32 position


def _bits(mask: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(mask.cpu().numpy()))


def _taken(x: Tensor, mask: Tensor) -> Tensor:
    """``x[mask]``, which takes NumPy a tenth of the time."""
    return torch.from_numpy(x.numpy()[mask.numpy()]) if x.is_cpu and x.dtype != torch.bfloat16 else x[mask]


def _mask(bits: Tensor, n: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=n).astype(bool)).to(bits.device)


def pack_submodel(vector: Tensor, units: Tensor, held: Tensor) -> Message:
    """A client's submodel: ``values`` [entries held] and ``units`` uint8 [ceil(K / 8)], eight hidden units a byte.

    Parameters
    ----------
    vector : whole model [G].
    units : hidden units of the client, boolean [K].
    held : coordinates of the client, boolean [G].
    """
    return {"values": _taken(vector, held), "units": _bits(units)}


def unpack_units(message: Message, n: int) -> Tensor:
    """The hidden units of a submodel, boolean [n]."""
    return _mask(message["units"], n)


def unpack_submodel(message: Message, held: Tensor) -> Tensor:
    """The whole model [G] with zeros where ``held`` [G] is false."""
    values = message["values"]
    return torch.zeros(len(held), dtype=values.dtype, device=values.device).masked_scatter(held, values)


def pack_change(new: Tensor, old: Tensor) -> Message:
    """The entries of ``new`` [G] that differ from ``old`` [G], in the shortest of three forms.

    ``values`` with their positions (``index`` int32), with one bit for every entry (``bits``), or all values.
    """
    changed = new != old
    sizes = _sizes(int(changed.count_nonzero()), len(new), new.element_size())
    form = min(sizes, key=lambda name: sizes[name])
    if form == "all":
        return {"values": new.clone()}
    if form == "index":
        return {"values": _taken(new, changed), "index": changed.nonzero().flatten().int()}
    return {"values": _taken(new, changed), "bits": _bits(changed)}


def unpack_change(message: Message, old: Tensor) -> Tensor:
    """The new model [G], from the old one and what :func:`pack_change` made."""
    values = message["values"]
    if "index" in message:
        return old.index_copy(0, message["index"].long(), values)
    if "bits" in message:
        return old.masked_scatter(_mask(message["bits"], len(old)).to(old.device), values)
    return values.clone()


def _sizes(changed: int, n: int, item: int) -> dict[str, int]:
    return {"index": changed * (item + INDEX), "bits": changed * item + -(-n // 8), "all": n * item}


def change_size(changed: int, n: int, item: int) -> int:
    """Bytes of :func:`pack_change` where ``changed`` of ``n`` entries of ``item`` bytes differ."""
    return min(_sizes(changed, n, item).values())


def submodel_size(entries: int, n_units: int, item: int) -> int:
    """Bytes of :func:`pack_submodel` for ``entries`` of ``item`` bytes in a network of ``n_units`` hidden units."""
    return entries * item + -(-n_units // 8)
