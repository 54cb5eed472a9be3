"""Local optimisers: for one client and for a stack of clients alike.

A vector comes in parts [..., p]: the tensors of the network as autograd gives their gradients, or a single part [..., P].
``step`` works in place on the parameters and on its slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from equipoise.core import rates
from equipoise.core.model import Model
from equipoise.core.rates import LayerRates, Layers, RateLike
from equipoise.system.ranges import check_fields, check_number, number

HEAVY, TERMS = 0.999, 16  # momentum from which on few steps hardly differ from undamped ones; terms of their series
plain_sgd = partial(sgd, fused=True, dampening=0, nesterov=False, maximize=False)
Parts = Sequence[Tensor]
Slots = dict[str, list[Tensor]]  # each with an entry for every part


class Solver(Protocol):
    """The local optimiser of one visit; it keeps no state between visits."""

    @property
    def lr(self) -> RateLike:
        """Learning rate, > 0; a number, or :class:`LayerRates`, when a visit begins."""

    def init(self, theta: Parts) -> Slots:
        """Slots before the first step."""

    def step(self, theta: Parts, gradient: Parts, slots: Slots) -> None:
        """One step, in place on ``theta`` and ``slots``; ``gradient`` is not changed."""

    def travel(self, steps: Tensor) -> Tensor:
        """Distance that ``steps`` steps move the parameters along a constant unit gradient."""


Of = TypeVar("Of", bound=Solver)


def at(solver: Of, t: int, rounds: int, model: Model) -> Of:
    """The solver of round ``t`` of ``rounds``, whose rate is a number, or one for each tensor of a model.

    Raises
    ------
    ValueError : it has no rate there.
    """
    if isinstance(solver.lr, float | int | LayerRates):
        return solver
    now = rates.at(rates.rate(solver.lr), t, rounds)
    values = now.of(model.names, model.head_name) if isinstance(now, Layers) else [now]
    lr = LayerRates(tuple(values), model.layout) if len(set(values)) > 1 else values[0]
    return replace(solver, lr=lr)  # type: ignore[type-var]  # those with a schedule are frozen dataclasses


def proportional(solver: Solver) -> None:
    """Require steps in proportion to the gradient.

    Raises
    ------
    TypeError : those of Adam are not.
    """
    constant = isinstance(solver.lr, float | int)
    (solver if constant else replace(solver, lr=1.0)).travel(torch.ones(1))  # type: ignore[type-var]


def _each(lr: RateLike, parts: Parts) -> list[Any]:
    """The rate of every part: a number, or a vector [p] if it holds tensors with several rates."""
    if not isinstance(lr, LayerRates):
        return [lr] * len(parts)
    return list(lr.rates) if len(parts) == len(lr.rates) else [_vector(lr, parts[0].dtype, parts[0].device)]


@lru_cache(4)
def _vector(lr: LayerRates, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(lr.rates, dtype=torch.float64).repeat_interleave(torch.tensor(lr.sizes)).to(device, dtype)


def checked(solver: Any) -> Solver:
    """The local optimiser that was given, or SGD.

    Raises
    ------
    TypeError : something else, such as an optimiser of PyTorch, which is bound to the tensors of one network.
    """
    if solver is None:
        return SGD()
    if not isinstance(solver, type) and all(hasattr(solver, name) for name in ("lr", "init", "step", "travel")):
        return cast("Solver", solver)
    kind = solver if isinstance(solver, type) else type(solver)
    if issubclass(kind, torch.optim.Optimizer):
        described = f"{kind.__name__} of PyTorch, which belongs to one network's tensors, but every client starts fresh"
    else:
        described = f"the class {kind.__name__}: write {kind.__name__}()" if kind is solver else repr(solver)
    raise TypeError(
        f"solver must be one of equipoise, such as equipoise.SGD(lr=0.01) or equipoise.Adam(); found {described}."
    )


def _clipped(gradient: Parts, clip: float | None) -> list[Tensor]:
    if clip is None:
        return list(gradient)
    norms = torch.cat([torch.linalg.vector_norm(g, dim=-1, keepdim=True) for g in gradient], -1)
    norm = torch.linalg.vector_norm(norms, dim=-1, keepdim=True)
    return [g * (clip / (norm + 1e-6)).clamp(max=1) for g in gradient]


@dataclass(frozen=True)
class SGD:
    r"""Stochastic gradient descent with heavy-ball momentum, as ``torch.optim.SGD``.

    .. math:: b \gets \rho b + g + \lambda \theta, \quad \theta \gets \theta - \eta b

    Parameters
    ----------
    lr : learning rate eta, > 0: a number, a schedule such as :class:`Cosine`, a function of the round, or a table by
        layers, ``{"": 0.01, "head": 0.1}``, see :class:`Layers`; also as text, ``"cosine(0.1, warmup=5)"``.
    momentum : rho, in [0, 1).
    weight_decay : lambda, >= 0.
    clip : largest norm of the gradient, > 0, or None.
    """

    lr: RateLike = 0.01
    momentum: float = number(0.0, 0, 1, below=True)
    weight_decay: float = number(0.0, 0, below=True)
    clip: float | None = number(None, 0, above=True)

    def __post_init__(self) -> None:
        check_fields(self, "SGD: ")
        object.__setattr__(self, "lr", rates.rate(self.lr, "SGD: lr"))

    def init(self, theta: Parts) -> Slots:
        """No slot without momentum."""
        return {"momentum": [torch.zeros_like(part) for part in theta]} if self.momentum else {}

    def step(self, theta: Parts, gradient: Parts, slots: Slots) -> None:
        """Step in place; with one rate in one pass over the vectors."""
        gradient = _clipped(gradient, self.clip)
        if isinstance(self.lr, LayerRates):
            for k, (part, g, lr) in enumerate(zip(theta, gradient, _each(self.lr, theta), strict=True)):
                g = g.add(part, alpha=self.weight_decay)
                g = slots["momentum"][k].mul_(self.momentum).add_(g) if slots else g
                part.sub_(lr * g)
            return
        momenta: list[Tensor | None] = [*slots["momentum"]] if slots else [None] * len(theta)
        lr = cast(float, self.lr)
        plain_sgd([*theta], gradient, momenta, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def travel(self, steps: Tensor) -> Tensor:
        r"""Distance along a constant unit gradient: :math:`\eta [K - \rho (1 - \rho^K)/(1 - \rho)] / (1 - \rho)`."""
        rho, (lr,) = self.momentum, _each(self.lr, [steps])
        distance: Tensor = lr / (1 - rho) * (steps - rho * (1 - rho**steps) / (1 - rho))
        if rho < HEAVY:
            return distance
        few, term = torch.zeros_like(distance), steps * (steps + 1) / 2  # powers of 1 - rho, without differences
        for n in range(TERMS):
            few, term = few + term, term * (rho - 1) * (steps - 1 - n) / (n + 3)
        return torch.where(steps * (1 - rho) < 1, lr * few, distance)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma, Ba, ICLR 2015), or AdamW (Loshchilov, Hutter, ICLR 2019) with ``decoupled`` weight decay.

    Parameters
    ----------
    lr : learning rate, > 0, as of :class:`SGD`.
    betas : decay of the first and second moment, each in [0, 1).
    eps : added to the root of the second moment, >= 0.
    weight_decay : >= 0; part of the gradient, or of the step if ``decoupled``.
    decoupled : AdamW.
    clip : largest norm of the gradient, > 0, or None.
    """

    lr: RateLike = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = number(1e-8, 0, below=True)
    weight_decay: float = number(0.0, 0, below=True)
    decoupled: bool = False
    clip: float | None = number(None, 0, above=True)

    def __post_init__(self) -> None:
        check_fields(self, "Adam: ")
        object.__setattr__(self, "lr", rates.rate(self.lr, "Adam: lr"))
        given: Any = self.betas
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise ValueError(f"Adam: betas must be two numbers, (beta1, beta2); found {self.betas!r}.")
        for name, beta in zip(("beta1", "beta2"), self.betas, strict=True):
            check_number(f"Adam: {name}", beta, 0, 1, below=True)

    def init(self, theta: Parts) -> Slots:
        """Both moments, and the number of steps of each client."""
        moments = {name: [torch.zeros_like(part) for part in theta] for name in ("first", "second")}
        return {**moments, "count": [torch.zeros_like(part[..., :1]) for part in theta]}

    def step(self, theta: Parts, gradient: Parts, slots: Slots) -> None:
        """Step in place."""
        b1, b2 = self.betas
        gradient = _clipped(gradient, self.clip)
        moments = slots["first"], slots["second"], slots["count"]
        parts = zip(theta, gradient, *moments, _each(self.lr, theta), strict=True)
        for part, g, first, second, count, lr in parts:
            if self.weight_decay and self.decoupled:
                part.mul_(1 - lr * self.weight_decay)
            elif self.weight_decay:
                g = g.add(part, alpha=self.weight_decay)
            count.add_(1)
            first.lerp_(g, 1 - b1)
            second.mul_(b2).addcmul_(g, g, value=1 - b2)
            rate = lr * (1 - b2**count).sqrt() / (1 - b1**count)
            part.sub_(rate * first / (second.sqrt() + self.eps * (1 - b2**count).sqrt()))

    def travel(self, steps: Tensor) -> Tensor:
        """Raise ``TypeError``: Adam's steps are not proportional to the gradient."""
        raise TypeError(
            "The method needs a solver whose steps are proportional to the gradient; Adam's are not. Use SGD."
        )
