"""Learning rates: one number, one that changes over the rounds, or one for each part of the network."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from equipoise.system import calls
from equipoise.system.ranges import Range, check_fields, number
from equipoise.system.suggestions import near, unknown

LOOK = 1000  # rounds whose values identify a user's function
POSITIVE = Range(0, above=True, below=True)


class Formula:
    """A schedule whose parameters are in their ranges; it is shown as the text that makes it."""

    def __post_init__(self) -> None:
        check_fields(cast(Any, self), f"{type(self).__name__.lower()}: ")

    def __repr__(self) -> str:
        return text(cast(Any, self))


@dataclass(frozen=True, repr=False)
class Cosine(Formula):
    r"""Half a cosine from ``lr`` to ``final``, after a linear warm-up; ``CosineAnnealingLR`` after ``LinearLR`` of PyTorch.

    .. math:: \eta_t = \eta \frac{t + 1}{w} \; (t < w), \qquad
        \eta_t = \eta_T + \frac{\eta - \eta_T}{2} \Big(1 + \cos \pi \frac{t - w}{T - w}\Big) \; (t \ge w)

    Loshchilov, Hutter, SGDR, ICLR 2017, Eq. 5, without restarts.

    Parameters
    ----------
    lr : the largest rate eta, > 0.
    warmup : rounds w of the warm-up, >= 0.
    final : the rate eta_T towards which it falls, >= 0.
    rounds : T, > w; None: the planned rounds of the run.
    """

    lr: float = number(0.1, 0, above=True, below=True)
    warmup: int = number(0, 0)
    final: float = number(0.0, 0, below=True)
    rounds: int | None = number(None, 1, whole=True)

    def __call__(self, t: int, rounds: int) -> float:
        """The rate of round ``t``."""
        if t < self.warmup:
            return self.lr * (t + 1) / self.warmup
        last = rounds if self.rounds is None else self.rounds
        if t >= last:
            raise ValueError(f"ends after {last} rounds, and the run has {rounds}")
        share = (t - self.warmup) / (last - self.warmup)
        return self.final + (self.lr - self.final) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True, repr=False)
class Step(Formula):
    r"""A rate that is multiplied by ``gamma`` after every so many rounds; ``StepLR`` of PyTorch.

    .. math:: \eta_t = \eta \gamma^{\lfloor t / k \rfloor}

    Parameters
    ----------
    lr : the first rate eta, > 0.
    every : rounds k between changes, >= 1.
    gamma : in (0, 1].
    """

    lr: float = number(0.1, 0, above=True, below=True)
    every: int = number(10, 1)
    gamma: float = number(0.1, 0, 1, above=True)

    def __call__(self, t: int, rounds: int) -> float:
        """The rate of round ``t``."""
        return float(self.lr * self.gamma ** (t // self.every))


@dataclass(frozen=True, repr=False)
class Exponential(Formula):
    r"""A rate that is multiplied by ``gamma`` after every round; ``ExponentialLR`` of PyTorch.

    .. math:: \eta_t = \eta \gamma^t

    Parameters
    ----------
    lr : the first rate eta, > 0.
    gamma : in (0, 1].
    """

    lr: float = number(0.1, 0, above=True, below=True)
    gamma: float = number(0.95, 0, 1, above=True)

    def __call__(self, t: int, rounds: int) -> float:
        """The rate of round ``t``."""
        return float(self.lr * self.gamma**t)


@dataclass(frozen=True, repr=False)
class Function:
    """A user's function of the round ``t``; its values identify it."""

    function: Callable[[int], float]

    def __call__(self, t: int, rounds: int) -> float:
        """The rate of round ``t``."""
        return self.function(t)

    def __repr__(self) -> str:
        values = []
        for t in range(LOOK):
            try:
                values.append(float(self.function(t)))
            except Exception:  # beyond its rounds
                break
        digest = hashlib.sha256(repr(values).encode()).hexdigest()[:16]
        return f"Function({', '.join(f'{v:g}' for v in values[:3])}, ..., {digest})"


@dataclass(frozen=True, repr=False)
class Layers:
    """A rate for each part of the network: ``layers(0.01, head=0.1, blocks=0)``.

    Parameters
    ----------
    rates : pairs of a prefix of parameter names and a rate or schedule; the longest prefix counts, ``""`` is for all others,
        ``"head"`` the classifier. What has the rate 0 is frozen: it is neither trained nor sent, and BatchNorm there keeps its
        statistics.
    """

    rates: tuple[tuple[str, Any], ...]

    def __post_init__(self) -> None:
        if "" not in dict(self.rates):
            raise ValueError(
                'layers: give the rate of all other parameters first, layers(0.01, head=0.1), or {"": 0.01, ...}.'
            )
        if len(dict(self.rates)) < len(self.rates):
            names = [prefix or "all others" for prefix, _ in self.rates]
            raise ValueError(f"layers: give the rate of each part once; found {', '.join(names)}.")
        if all(rate == 0 for _, rate in self.rates):
            raise ValueError("layers: all rates are 0, so that nothing would be trained. Give one part a rate above 0.")

    def __repr__(self) -> str:
        return f"layers({', '.join(f'{name}={rate!r}' if name else repr(rate) for name, rate in self.rates)})"

    def of(self, names: Sequence[str], head: str | None) -> list[Any]:
        """The rate of each parameter or module of some names, in a network whose classifier is called ``head``."""
        rates = {(head if prefix == "head" and head else prefix): rate for prefix, rate in self.rates}
        longest = sorted(rates, key=len, reverse=True)
        return [next(rates[p] for p in longest if not p or n == p or n.startswith(f"{p}.")) for n in names]

    def check(self, names: Sequence[str]) -> None:
        """Require that every prefix is one of some parameter.

        Raises
        ------
        ValueError : there is none; names those there are.
        """
        parts = list(dict.fromkeys(".".join(n.split(".")[:k]) for n in names for k in range(1, n.count(".") + 2)))
        for prefix, _ in self.rates:
            if prefix not in ("", "head", *parts):
                tops = dict.fromkeys(n.split(".")[0] for n in names)
                raise ValueError(
                    f"lr: no parameter of the network begins with {prefix!r}.{near(prefix, ('head', *parts))} "
                    f"It has: head, {', '.join(tops)}."
                )


@dataclass(frozen=True)
class LayerRates:
    """The rates of one round: one for each of the network's trainable tensors, which have these sizes."""

    rates: tuple[float, ...]
    sizes: tuple[int, ...]


SCHEDULES = {kind.__name__.lower(): kind for kind in (Cosine, Step, Exponential)}
Schedule = Cosine | Step | Exponential | Function
Rate = float | Schedule | Layers | LayerRates
RateLike = Rate | str | Mapping[str, Any] | Callable[[int], float]  # as :func:`rate` takes it


def rate(given: Any, owner: str = "lr") -> Rate:
    """A learning rate as the user gives it: a number, text, a schedule, a function of the round, or a table by prefix.

    Raises
    ------
    ValueError : naming what was given, what was expected, and what to do.
    """
    if isinstance(given, str):
        return read(given, owner)
    if isinstance(given, Mapping):
        if strange := [prefix for prefix in given if not isinstance(prefix, str)]:
            raise ValueError(f"{owner}: a table of rates has names of parameters as keys; found {strange[0]!r}.")
        return Layers(tuple((prefix, _layer_rate(value, owner)) for prefix, value in given.items()))
    if isinstance(given, Schedule | Layers | LayerRates):
        return given
    if callable(given):
        return Function(given)
    if given not in POSITIVE:
        raise ValueError(f"{owner} must be {POSITIVE}, or a schedule such as cosine(0.1, warmup=5); found {given!r}.")
    return float(given)


def _layer_rate(given: Any, owner: str) -> float | Schedule:
    if given == 0 and not isinstance(given, bool):
        return 0.0
    result = rate(given, owner)
    if isinstance(result, Layers | LayerRates):
        raise ValueError(f"{owner}: layers cannot stand inside layers; found {given!r}.")
    return result


def read(text: str, owner: str = "lr") -> Rate:
    """A learning rate from text: ``0.01``, ``cosine(0.1, warmup=5)``, ``layers(0.01, head=step(0.1, every=10))``.

    Raises
    ------
    ValueError : text that is none of these.
    """
    call = calls.read(text)
    name, pairs = call.name, call.pairs
    if pairs is None:
        try:
            return rate(float(name), owner)
        except ValueError:
            raise ValueError(
                f"{owner} must be a number > 0, or a schedule such as cosine(0.1, warmup=5); found {text!r}."
            ) from None
    if name not in (*SCHEDULES, "layers"):
        raise ValueError(f"{owner} {text!r}: {unknown('schedule', name, (*SCHEDULES, 'layers'))}")
    if not call.complete:
        raise ValueError(f"{owner} {text!r}: close the bracket, {text})")
    if ("", "") in pairs:
        raise ValueError(f"{owner} {text!r}: there is nothing between two commas or brackets.")
    if name == "layers":
        return Layers(tuple((key, _layer_rate(_number(value), owner)) for key, value in pairs))
    names = [f.name for f in fields(SCHEDULES[name])]
    values: dict[str, Any] = {}
    for key, value in pairs:
        key = key or "lr"
        if key not in names or key in values:
            raise ValueError(f"{owner} {text!r}: {unknown(f'parameter of {name}', key, names)} Give each once.")
        values[key] = _number(value)
    if "lr" not in values:
        raise ValueError(f"{owner} {text!r}: say from which rate it starts, {name}(0.1).")
    return SCHEDULES[name](**values)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def text(rate: Rate) -> str:
    """The text that :func:`read` reads back.

    Raises
    ------
    ValueError : a function of Python, which has none.
    """
    if isinstance(rate, Layers):
        return f"layers({', '.join(f'{name}={text(r)}' if name else text(r) for name, r in rate.rates)})"
    if isinstance(rate, float | int):
        return f"{rate:g}" if float(f"{rate:g}") == rate else repr(rate)
    name = next((name for name, kind in SCHEDULES.items() if isinstance(rate, kind)), None)
    if name is None:
        raise ValueError(
            "a learning rate that is a function of Python has no text. Use a schedule such as cosine(0.1)."
        )
    first, *others = fields(cast(Any, rate))
    more = [f"{f.name}={getattr(rate, f.name)}" for f in others if getattr(rate, f.name) != f.default]
    return f"{name}({', '.join([text(getattr(rate, first.name)), *more])})"


def scaled(lr: Rate, factor: float) -> Rate:
    """A learning rate times a factor, with three significant digits: of a schedule all rates, of layers each.

    Raises
    ------
    ValueError : a function of Python, which has no factor.
    """
    if isinstance(lr, float | int):
        return _product(lr, factor)
    if isinstance(lr, Layers):
        return Layers(tuple((prefix, r and scaled(r, factor)) for prefix, r in lr.rates))
    if isinstance(lr, Cosine):
        return replace(lr, lr=_product(lr.lr, factor), final=_product(lr.final, factor))
    if isinstance(lr, Step | Exponential):
        return replace(lr, lr=_product(lr.lr, factor))
    raise ValueError("lr: a function of Python cannot be tuned. Give a number, or a schedule such as cosine(0.1).")


def _product(value: float, factor: float) -> float:
    return float(f"{value * factor:.3g}")


def at(lr: Rate, t: int, rounds: int) -> float | Layers:
    """The rate of round ``t`` of ``rounds``; of layers those of each.

    Raises
    ------
    ValueError : it is not a number above 0 there, or ends before.
    """
    if isinstance(lr, Layers):
        return Layers(tuple((prefix, r and at(r, t, rounds)) for prefix, r in lr.rates))
    if isinstance(lr, LayerRates):
        raise ValueError("the rates of one round have no other round.")
    if isinstance(lr, float | int):
        return float(lr)
    try:
        value = float(lr(t, rounds))
    except ValueError as error:
        raise ValueError(f"lr {lr}: the schedule {error}. Give it as many rounds.") from None
    if not (0 < value < math.inf):
        raise ValueError(f"lr {lr}: the rate must be > 0 and finite in every round; in round {t} it is {value}.")
    return value


def check_rounds(lr: Rate, rounds: int) -> None:
    """Require a rate in every round of a run.

    Raises
    ------
    ValueError : see :func:`at`; a warm-up that is as long as the run, or longer.
    """
    for part in [r for _, r in lr.rates] if isinstance(lr, Layers) else [lr]:
        if isinstance(part, Cosine) and part.warmup >= (last := min(rounds, part.rounds or rounds)):
            raise ValueError(
                f"lr {text(part)}: a warm-up of {part.warmup} rounds leaves none of {last}. Make it shorter."
            )
    if not isinstance(lr, float):
        for t in range(rounds):
            at(lr, t, rounds)
