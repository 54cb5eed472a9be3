"""Networks that remember something from step to step, in ways that a model of a client can hold, and in ways it cannot."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch import Tensor, nn

from helpers import N_CLASSES, N_INPUTS


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(N_INPUTS, 7), nn.Linear(7, N_CLASSES)

    def hidden(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x))


class Warm(Base):
    """A counter of batches, changed in place, by which the hidden units grow."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.head(self.hidden(x) * (self.steps.to(x.dtype) / 20).clamp(max=1))


class Replacing(Warm):
    """The same counter, in the place of which a new tensor is put."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps = self.steps + 1
        return self.head(self.hidden(x) * (self.steps.to(x.dtype) / 20).clamp(max=1))


class Average(Base):
    """A running mean that is replaced in every step and used before it is, and a mark that it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(7, dtype=torch.float64))
        self.register_buffer("begun", torch.tensor(False))
        self.register_buffer("rows", torch.zeros(2, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        out = self.head(h * (1 + self.mean) - torch.where(self.begun, 0.1, 0.0))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            self.begun = torch.ones_like(self.begun)
            self.rows.add_(torch.tensor([1, 2], dtype=torch.int32))
        return out


class Cumulative(Base):
    """BatchNorm whose statistics are the mean over all batches so far, which it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(7, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.a(x))))


class Normed(Base):
    """Weights that are computed from others, with a power iteration and without, in the old way and the new one."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.utils.parametrizations.spectral_norm(self.a)
        self.head = nn.utils.parametrizations.weight_norm(self.head)
        self.b = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.b(self.hidden(x))))


class Shown(Base):
    """Keeps what was computed last, for a look at it, and a table that follows from shapes: no step reads an earlier one's."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None
        self.table: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.last = {"hidden": self.hidden(x), "n": len(x)}
        if 7 not in self.table:
            self.table[7] = torch.linspace(1, 2, 7, dtype=x.dtype)
        return self.head(self.last["hidden"] * self.table[7])


ACCEPTED = {kind.__name__: kind for kind in (Warm, Replacing, Average, Cumulative, Normed, Shown)}


def stateful(name: str) -> nn.Module:
    """A float64 network whose first values are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return ACCEPTED[name]().double()


# what no model holds
class Counting(Base):
    calls = 0
    history: list[float] = []  # noqa: RUF012 (that all networks of the class share it is what is refused)

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.steps, self.scale, self.past = 0, 1.0, list[float]()
        self.ema = torch.zeros(7, dtype=torch.float64)
        self.before = torch.zeros(1, 7, dtype=torch.float64)
        self.nested: dict[str, Any] = {"n": [0]}
        self.counter, self.dice = itertools.count(), random.Random(0)
        self.register_buffer("hidden_mean", torch.zeros(7, dtype=torch.float64), persistent=False)
        self.register_buffer("late", None)
        self.teacher = nn.Parameter(torch.zeros(7, dtype=torch.float64), requires_grad=False)
        self.register_buffer("grown", torch.zeros(0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x)
        if self.training or self.change == "evaluation":
            h = getattr(self, f"_{self.change}")(h)
        return self.head(h)

    def _number(self, h: Tensor) -> Tensor:
        self.steps += 1
        return h * min(1, self.steps / 20)

    _evaluation = _number

    def _tensor(self, h: Tensor) -> Tensor:
        self.ema = 0.9 * self.ema + 0.1 * h.detach().mean(0)
        return h - self.ema

    def _in_place(self, h: Tensor) -> Tensor:
        self.ema.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h

    def _list(self, h: Tensor) -> Tensor:
        self.past.append(float(h.detach().mean()))
        return h * (1 + len(self.past) / 10)

    def _dictionary(self, h: Tensor) -> Tensor:
        self.nested["n"][0] += 1
        return h

    def _read_later(self, h: Tensor) -> Tensor:
        before, self.before = self.before, h.detach()[:1].clone()
        return h + 0.1 * before

    def _graph(self, h: Tensor) -> Tensor:
        before, self.before = self.before, h[:1]
        return h + 0.1 * before

    def _iterator(self, h: Tensor) -> Tensor:
        return h * (1 + next(self.counter))

    def _generator(self, h: Tensor) -> Tensor:
        return h * self.dice.random()

    def _class(self, h: Tensor) -> Tensor:
        type(self).calls += 1
        return h

    def _class_list(self, h: Tensor) -> Tensor:
        self.history.append(1.0)
        return h

    def _buffer_outside(self, h: Tensor) -> Tensor:
        self.hidden_mean += 1
        return h

    def _buffer_late(self, h: Tensor) -> Tensor:
        self.late = h.detach().mean(0)
        return h

    def _buffer_grows(self, h: Tensor) -> Tensor:
        self.grown = torch.cat([self.grown, h.detach()[0, :1]])
        return h

    def _parameter(self, h: Tensor) -> Tensor:
        self.a.weight.data = nn.functional.normalize(self.a.weight.data)
        return h

    def _parameter_in_place(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.a.weight.clamp_(-0.1, 0.1)
        return h

    def _parameter_frozen(self, h: Tensor) -> Tensor:
        self.teacher.data.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h

    def _parameter_late(self, h: Tensor) -> Tensor:
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.ones(7, dtype=torch.float64))
        return h * self.gain

    def _module_late(self, h: Tensor) -> Tensor:
        if not hasattr(self, "more"):
            self.more = nn.Linear(7, 7, dtype=torch.float64)
        return self.more(h)


REFUSED = {  # by what changes: what the message says of it
    "number": r"attribute 'steps' \(changed in training\).*self.register_buffer\('steps', torch.zeros\(\(\), dtype=torch.long\)\)",
    "evaluation": r"attribute 'steps' \(changed in ",
    "tensor": r"attribute 'ema' .*self.register_buffer\('ema', torch.zeros\(\(7,\), dtype=torch.float64\)\)",
    "in_place": "attribute 'ema'",
    "list": "attribute 'past' .*Keep it outside of the network",
    "dictionary": "attribute 'nested'",
    "read_later": "attribute 'before'",
    "graph": "attribute 'before' .*so that a second step fails with RuntimeError",
    "iterator": "attribute 'counter'",
    "generator": "attribute 'dice'",
    "class": "class attribute 'Counting.calls' .*shared by all clients",
    "class_list": "class attribute 'Counting.history'",
    "buffer_outside": "buffer 'hidden_mean' .*not in the state dictionary.* Leave out persistent=False",
    "buffer_late": r"buffer 'late' \(none before a step and float64 \[7\] after it\)",
    "buffer_grows": r"buffer 'grown' \(float64 \[0\] before a step and float64 \[1\] after it\)",
    "parameter": "parameter 'a.weight' .*torch.nn.utils.parametrizations",
    "parameter_in_place": "parameter 'a.weight'",
    "parameter_frozen": "parameter 'teacher' .changed in forward, and not trained.. Make it a buffer",
    "parameter_late": "parameter 'gain' .*call the network once before",
    "module_late": "module 'more' .*call the network once before",
}
