"""Local optimisers on flat vectors: for one client ``[P]`` and for a stack ``[m, P]`` alike.

``step`` may work in place on the parameters and on its own slots; both belong to the local run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.sgd import sgd

Slots = dict[str, Tensor]


class Solver(Protocol):
    """An optimiser of one visit; nothing is kept between visits."""

    @property
    def lr(self) -> float:
        """Learning rate, > 0."""
        ...

    def init(self, theta: Tensor) -> Slots:
        """Slots before the first step."""
        ...

    def step(self, theta: Tensor, gradient: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """One step; ``gradient`` may be overwritten."""
        ...

    def travel(self, steps: Tensor) -> Tensor:
        """How far ``steps`` steps along a constant unit gradient move the parameters."""
        ...


def _check_rate(solver: str, lr: float, clip: float | None) -> None:
    if not 0 < lr < float("inf"):
        raise ValueError(f"{solver}: lr must be > 0 and finite; found {lr:g}.")
    if clip is not None and not clip > 0:
        raise ValueError(f"{solver}: clip must be > 0, or None; found {clip:g}.")


def _check(solver: str, **values: tuple[float, float, float]) -> None:
    for name, (value, low, high) in values.items():
        if not low <= value < high:
            bound = f"in [{low:g}, {high:g})" if high < float("inf") else f">= {low:g}"
            raise ValueError(f"{solver}: {name} must be {bound}; found {value:g}.")


def _clipped(gradient: Tensor, clip: float | None) -> Tensor:
    if clip is None:
        return gradient
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return gradient * (clip / (norm + 1e-6)).clamp(max=1)


@dataclass(frozen=True)
class SGD:
    r"""Stochastic gradient descent with heavy-ball momentum, as ``torch.optim.SGD``.

    .. math:: b \gets \rho b + g + \lambda \theta, \quad \theta \gets \theta - \eta b

    Parameters
    ----------
    lr : learning rate eta, > 0.
    momentum : rho, in [0, 1).
    weight_decay : lambda, >= 0.
    clip : largest norm of the gradient, > 0, or None.
    """

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        inf = float("inf")
        _check_rate("SGD", self.lr, self.clip)
        _check("SGD", momentum=(self.momentum, 0, 1), weight_decay=(self.weight_decay, 0, inf))

    def init(self, theta: Tensor) -> Slots:
        """No slot without momentum."""
        return {"momentum": torch.zeros_like(theta)} if self.momentum else {}

    def step(self, theta: Tensor, gradient: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """Step in place, in one pass over the vectors."""
        sgd(
            [theta],
            [_clipped(gradient, self.clip)],
            [slots.get("momentum")],
            fused=True,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0,
            nesterov=False,
            maximize=False,
        )
        return theta, slots

    def travel(self, steps: Tensor) -> Tensor:
        r"""Distance along a constant unit gradient: :math:`\eta [K - \rho (1 - \rho^K)/(1 - \rho)] / (1 - \rho)`."""
        rho = self.momentum
        return self.lr / (1 - rho) * (steps - rho * (1 - rho**steps) / (1 - rho))


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma, Ba, ICLR 2015), or AdamW (Loshchilov, Hutter, ICLR 2019) with ``decoupled`` weight decay.

    Parameters
    ----------
    lr : learning rate, > 0.
    betas : decay of the first and second moment, each in [0, 1).
    eps : added to the root of the second moment, > 0.
    weight_decay : >= 0; part of the gradient, or of the step if ``decoupled``.
    decoupled : AdamW.
    clip : largest norm of the gradient, > 0, or None.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        inf = float("inf")
        _check_rate("Adam", self.lr, self.clip)
        first, second = self.betas
        _check(
            "Adam",
            beta1=(first, 0, 1),
            beta2=(second, 0, 1),
            weight_decay=(self.weight_decay, 0, inf),
            eps=(self.eps, 0, inf),
        )

    def init(self, theta: Tensor) -> Slots:
        """Both moments and the number of steps of each client."""
        count = torch.zeros(*theta.shape[:-1], 1, dtype=theta.dtype, device=theta.device)
        return {"first": torch.zeros_like(theta), "second": torch.zeros_like(theta), "count": count}

    def step(self, theta: Tensor, gradient: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """Step in place."""
        gradient = _clipped(gradient, self.clip)
        if self.weight_decay and self.decoupled:
            theta = theta.mul_(1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient.add_(theta, alpha=self.weight_decay)
        b1, b2 = self.betas
        count = slots["count"].add_(1)
        first = slots["first"].lerp_(gradient, 1 - b1)
        second = slots["second"].mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        rate = self.lr * (1 - b2**count).sqrt() / (1 - b1**count)
        return theta.sub_(rate * first / (second.sqrt() + self.eps * (1 - b2**count).sqrt())), slots

    def travel(self, steps: Tensor) -> Tensor:
        """Adam has none: its steps do not grow with the gradient."""
        raise TypeError(
            "SCAFFOLD needs a solver whose steps are proportional to the gradient; Adam's are not. Use SGD."
        )
