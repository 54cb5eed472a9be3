"""Hidden units of a network: the coordinates that belong to them, and smaller networks with some of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core.copies import copied, tensors
from equipoise.core.model import Model, narrow

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Group:
    """Hidden units of one layer, or of several whose channels a residual sum adds up.

    ``size`` is their number. ``rows`` are the modules that make them: dimension 0 of everything these own (weight,
    bias, scale, shift, running statistics). ``columns`` are the modules that read them: dimension 1 of their weights.
    Where an image was flattened, each unit has several rows or columns in a row.
    """

    name: str
    size: int
    rows: tuple[str, ...]
    columns: tuple[str, ...]


Cut = tuple[int, int]  # number of a group, and how many neighbouring entries each of its units has


class Neurons:
    """The hidden units of a network.

    Unit numbers 0 ... K - 1 run through the groups in the order of the network.

    Parameters
    ----------
    model : the network.
    groups : its hidden units; see :func:`equipoise.submodels.discovery.find`, which also checks them.
    left_out : layers whose units cannot be removed one by one, and why; every submodel has all of them.

    Attributes
    ----------
    names : names of the groups; ``sizes`` goes with them.
    n : number K of units.
    extractable : whether :meth:`extract` gives a network that computes the same.

    Raises
    ------
    ValueError : a group whose modules do not exist, or do not fit its size.
    """

    def __init__(self, model: Model, groups: Sequence[Group], left_out: Mapping[str, str] | None = None) -> None:
        self.model = model
        self.groups = tuple(groups)
        self.left_out = dict(left_out or {})
        self.names = tuple(g.name for g in groups)
        self.sizes = tuple(g.size for g in groups)
        self.n = sum(self.sizes)
        self.extractable = False
        self._modules = modules = dict(model.net.named_modules(remove_duplicate=False))
        self._rows: dict[int, Cut] = {}  # by the identity of a tensor of the network
        self._columns: dict[int, Cut] = {}
        for k, group in enumerate(self.groups):
            for name in group.rows:
                for tensor in own_tensors(modules[name]):
                    _claim(self._rows, tensor, k, group, name, 0)
            for name in group.columns:
                _claim(self._columns, _weight(group, name, modules[name]), k, group, name, 1)
        by_name, start, self._plan = tensors(model.net), 0, []
        for name, shape in zip(model.tensors, (*model.shapes, *model.buffer_shapes), strict=True):
            stop, key = start + shape.numel(), id(by_name[name])
            self._plan.append((start, stop, shape, self._rows.get(key), self._columns.get(key)))
            start = stop

    def __repr__(self) -> str:
        return f"Neurons({', '.join(f'{g.name}: {g.size}' for g in self.groups)})"

    def held(self, units: Tensor) -> Tensor:
        """Coordinates [..., G] of the submodels of ``units`` [..., K]: those with both ends among these units.

        Inputs, outputs, the bias of the outputs and what belongs to no unit are always held. Wang, Wang, Lyu, Peng, Yang,
        Wen, Yu, Wang, Fan, KDD 2024, the mask of equation 8.
        """
        return self._marked(self._parts(units), self._parts(units))

    def ends(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates [..., G] of which the row, and of which the column, belongs to one of ``units`` [..., K] or to none."""
        return self._marked(self._parts(units), None), self._marked(None, self._parts(units))

    def _parts(self, units: Tensor) -> list[Tensor]:
        if units.shape[-1:] != (self.n,):
            raise ValueError(
                f"Hidden units must be marked by [..., {self.n}] booleans, one for each; found shape {tuple(units.shape)}."
            )
        return list(units.bool().split(self.sizes, -1))

    def _marked(self, rows: list[Tensor] | None, columns: list[Tensor] | None) -> Tensor:
        """Coordinates whose row belongs to a unit in ``rows`` and whose column to a unit in ``columns``; None is all."""
        some = next(p[0] for p in (rows, columns) if p)
        out = torch.ones(*some.shape[:-1], self.model.size, dtype=torch.bool, device=some.device)
        for start, stop, shape, row, column in self._plan:
            mask = None
            if row is not None and rows is not None:
                mask = rows[row[0]].repeat_interleave(row[1], -1)[..., :, None, None]
            if column is not None and columns is not None:
                other = columns[column[0]].repeat_interleave(column[1], -1)[..., None, :, None]
                mask = other if mask is None else mask & other
            if mask is not None:
                cut = (shape[0], shape[1] if column is not None else 1, -1)
                out[..., start:stop].unflatten(-1, cut).copy_(mask)
        return out

    def fits(self, units: Tensor) -> bool:
        """Whether a network of the units [K] can be extracted: convolutions need one channel at least."""
        parts = self._parts(units)
        return self.extractable and all(
            part.any() or all(type(self._modules[name]) is nn.Linear for name in (*group.rows, *group.columns))
            for part, group in zip(parts, self.groups, strict=True)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Build it again in another process: it refers to tensors by identity, which cannot be pickled."""
        return _remade, (self.model, self.groups, self.left_out, self.extractable)

    def extract(self, units: Tensor) -> tuple[Model, Tensor]:
        """The smaller network with ``units`` [K], and the index of its vector [G'] in that of the whole network.

        The index [G'] (int64) has the parameters first, then the buffers, each in the small network's order:
        ``small.initial == model.initial[index]``.
        """
        parts, modules = self._parts(units), self._modules
        for part, group in zip(parts, self.groups, strict=True):
            kinds = {type(modules[name]).__name__ for name in (*group.rows, *group.columns)} - {"Linear"}
            if kinds and not part.any():
                raise ValueError(
                    f"Group {group.name!r} has no unit left, and {', '.join(sorted(kinds))} needs one; "
                    "keep a unit, or mask the whole network: vector * held(units)."
                )
        places = [part.nonzero().flatten() for part in parts]

        def cut(tensor: Tensor, row: Cut | None, column: Cut | None) -> Tensor:
            if row is not None:
                tensor = tensor[_run(places[row[0]], row[1]).to(tensor.device)]
            return tensor if column is None else tensor[:, _run(places[column[0]], column[1]).to(tensor.device)]

        net = copied(self.model.net)
        for name, module in net.named_modules():
            original = modules[name]
            for attribute, tensor in tensors(original, recurse=False).items():
                row, column = self._rows.get(id(tensor)), self._columns.get(id(tensor))
                if row is None and column is None:
                    continue
                small = cut(tensor.detach(), row, column).clone()
                if isinstance(tensor, nn.Parameter):
                    small = nn.Parameter(small, requires_grad=tensor.requires_grad)
                setattr(module, attribute, small)
                _resize(module, attribute, small, row is not None, column is not None)
        every = torch.arange(self.model.size, device=units.device)
        index = [cut(every[a:b].view(shape), row, column).flatten() for a, b, shape, row, column in self._plan]
        model = Model(net, self.model.head_name, self.model.random, self.model.observed, self.model.task)
        model.channels_last = self.model.channels_last and not any(map(narrow, net.modules()))
        model.bf16 = self.model.bf16
        return model, torch.cat(index)


def _remade(model: Model, groups: Sequence[Group], left_out: Mapping[str, str], extractable: bool) -> Neurons:
    neurons = Neurons(model, groups, left_out)
    neurons.extractable = extractable
    return neurons


def _run(places: Tensor, times: int) -> Tensor:
    """Entries [k * times] that belong to the units at ``places`` [k]."""
    return (places[:, None] * times + torch.arange(times, device=places.device)).flatten()


def own_tensors(module: nn.Module) -> list[Tensor]:
    """The floating parameters and buffers of a module itself, without numbers and without those of modules inside it."""
    return [t for t in tensors(module, recurse=False).values() if t.is_floating_point() and t.dim()]


def _weight(group: Group, name: str, module: nn.Module) -> Tensor:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() < 2:
        raise ValueError(
            f"Group {group.name!r}: {name!r} ({type(module).__name__}) cannot read its units, as it has no weight matrix; "
            "name linear or convolutional layers."
        )
    return weight


def _claim(taken: dict[int, Cut], tensor: Tensor, k: int, group: Group, name: str, dim: int) -> None:
    """Note that a dimension of a tensor runs over the units of a group."""
    if tensor.shape[dim] % group.size or not tensor.shape[dim]:
        raise ValueError(
            f"Group {group.name!r} has {group.size} units, which does not fit {name!r}: "
            f"dimension {dim} of a tensor of shape {tuple(tensor.shape)} must be {group.size} or a multiple of it."
        )
    claim = (k, tensor.shape[dim] // group.size)
    if taken.setdefault(id(tensor), claim) != claim:
        verb = ("made", "read")[dim]
        raise ValueError(f"Group {group.name!r}: the units {verb} by {name!r} belong to another group already.")


def _resize(module: nn.Module, attribute: str, small: Tensor, rows: bool, columns: bool) -> None:
    """Set the size attributes of a layer."""
    if rows:
        for name in ("out_features", "out_channels", "num_features", "num_parameters"):
            if hasattr(module, name):
                setattr(module, name, len(small))
    if columns:
        for name in ("in_features", "in_channels"):
            if hasattr(module, name):
                setattr(module, name, small.shape[1])
    if rows and attribute == "weight" and getattr(module, "groups", 1) > 1:  # a depthwise convolution
        module.groups = module.in_channels = len(small)  # type: ignore[assignment]
