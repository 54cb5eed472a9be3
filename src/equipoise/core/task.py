"""What the targets of samples mean: the loss of each sample, the prediction, how a model is judged."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equipoise.core.tally import ClassTally, NumberTally, Tally
from equipoise.metrics.calibration import sums_of_scores
from equipoise.metrics.classification import AREAS, CORRECT, RATES, classification
from equipoise.metrics.failure import guesses, ranks
from equipoise.metrics.groups import by_person, class_counts, moments
from equipoise.metrics.measures import TASKS as MEASURES_OF
from equipoise.records.record import Score, Sums
from equipoise.system import calls, own_code
from equipoise.system.errors import InputError
from equipoise.system.ranges import check_fields, choice, text
from equipoise.system.suggestions import unknown
from equipoise.system.text import read_value

Gradient = Callable[[Tensor], Tensor]  # of the loss on a batch, by the parameters


class Task(ABC):
    """What the targets of samples mean.

    ``output`` describes the network's output, ``dtype`` is that of targets, ``sums`` are kept of samples; of the ``measures`` models are
    judged by the first, ``main``.
    """

    name: ClassVar[str]
    measures: ClassVar[tuple[str, ...]]
    main: ClassVar[str]
    output: ClassVar[str]
    dtype: ClassVar[torch.dtype]
    sums: ClassVar[type[Tally]]

    def __str__(self) -> str:
        given = _options(self)
        return f"{_called(self)}({given})" if given else _called(self)

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample [..., B]."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """What is predicted of each sample [..., B]."""

    def slope(self, outputs: Tensor, y: Tensor, ok: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """The mean loss [...] and its gradient by the outputs [..., B, C], where there is a formula; false in ``ok`` [..., B] is padding."""
        return None

    def tally(self, outputs: Tensor, y: Tensor, ok: Tensor | None = None, predicted: Tensor | None = None) -> Tally:
        """What outputs [..., B, C] are for targets [..., B], as sums from which all measures but those of :meth:`whole` follow.

        False in ``ok`` [..., B] is padding. ``predicted`` [..., B] replaces :meth:`predictions`.
        """
        losses = self.losses(outputs, y).double()
        predicted = self.predictions(outputs) if predicted is None else predicted
        present = torch.ones_like(y, dtype=torch.bool) if ok is None else ok
        # divided by n, the mean again
        loss = losses.mean(-1) * losses.shape[-1] if ok is None else losses.where(ok, 0).sum(-1)
        return self.sums.of(loss, predicted, y, present, outputs.shape[-1])

    def people(
        self,
        predicted: Tensor,
        y: Tensor,
        s: Tensor,
        width: int,
        probability: Tensor | None = None,
        *,
        joined: bool = False,
        person: Tensor | None = None,
    ) -> list[Sums]:
        """What a record keeps of predictions [n] for targets [n] by each of the sensitive attributes s [n, A], -1 where one is not known.

        With the probability [n] of the second of two classes also what its calibration follows from; one that is no number counts in none.
        If ``joined``, the last sums are by all of several attributes together. ``person`` [n] is whom each row is about, if several may be
        about one.
        """
        classes, targets, codes = (x.cpu().numpy() for x in (predicted, y, s))
        persons = None if person is None else person.cpu().numpy()
        every = list[Sums]()
        for column in [*codes.T, *([codes] if joined and codes.shape[1] > 1 else ())]:
            rows = (column >= 0) if column.ndim == 1 else (column >= 0).all(1)
            values, value = np.unique(column[rows], axis=0, return_inverse=True)
            value = value.reshape(-1)
            who = None if persons is None else persons[rows]
            sums = self.sums.sums_by_value(classes[rows], targets[rows], value, len(values), width, who)
            sums_of_attribute: Sums = {"value": values.tolist(), **sums}
            if probability is not None:
                p, true = probability.cpu().numpy()[rows], targets[rows] == 1
                finite = np.isfinite(p)
                scores = sums_of_scores(p[finite], true[finite], value[finite], len(values))
                sums_of_attribute["scores"] = scores.round(6).tolist()
                large = np.stack([np.ones(finite.sum()), (p - true)[finite]], -1)
                scored = moments(*by_person(large, value[finite], None if who is None else who[finite]), len(values))
                sums_of_attribute["scored"], sums_of_attribute["bias"] = scored[0], scored[1].round(6).tolist()
            if not rows.all():
                unknown = int((~rows).sum()) if persons is None else len({*persons[~rows].tolist()})
                sums_of_attribute["unknown"] = unknown
            every.append(sums_of_attribute)
        return every

    def whole(self, outputs: Tensor, predicted: Tensor, y: Tensor, measures: Iterable[str]) -> Score:
        """Those of the measures that are no sums over the samples: none."""
        return {}

    def useless(self, outputs: Tensor, predicted: Tensor, y: Tensor) -> str | None:
        """Why a model is no better than a guess, by outputs [n, C], predictions [n] and targets [n] of a test set; empty if it is better.

        None, the default: judged as :mod:`equipoise.metrics.failure` does.
        """
        return None

    @abstractmethod
    def outputs(self, outputs: Tensor) -> Tensor:
        """The inputs of the user's own measures for each sample, in float64."""

    def guess(self, width: int) -> float:
        """The loss of a model that knows nothing, of so many outputs; 0 if it is not known."""
        return 0.0

    @abstractmethod
    def misfit(self, width: int) -> str:
        """Why a network with so many outputs does not fit; empty if it does."""

    def fitted(self, targets: Sequence[Tensor]) -> Self:
        """The task with what it takes from the targets of all clients.

        Raises
        ------
        ValueError : nothing can be learnt from them.
        """
        return self


@dataclass(frozen=True)
class Classification(Task):
    """One of C classes for each sample: targets are whole numbers in 0..C - 1, outputs are logits [..., B, C].

    The loss is the cross-entropy, the main measure the accuracy.
    """

    name: ClassVar[str] = "classification"
    measures: ClassVar[tuple[str, ...]] = tuple(measure.name for measure in MEASURES_OF[name])
    main: ClassVar[str] = measures[0]
    output: ClassVar[str] = "logits, one tensor of shape [batch, classes]"
    dtype: ClassVar[torch.dtype] = torch.int64
    sums: ClassVar[type[Tally]] = ClassTally

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample [..., B]."""
        outputs, labels = outputs.flatten(0, -2), y.flatten()  # by default PyTorch ignores labels of -100
        return functional.cross_entropy(outputs, labels, reduction="none", ignore_index=NO_LABEL).view(y.shape)

    def slope(self, outputs: Tensor, y: Tensor, ok: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """The mean cross-entropy [...], and its gradient by the logits: probabilities less 1 at the labels, over the samples."""
        if type(self).losses is not Classification.losses:
            return None
        logs, at = outputs.log_softmax(-1), y.unsqueeze(-1)
        losses = logs.gather(-1, at).squeeze(-1).neg_()
        gradient = logs.exp_().scatter_add_(-1, at, logs.new_full((1,), -1.0).expand(at.shape))
        if ok is None:
            return losses.mean(-1), gradient.div_(y.shape[-1])
        share = ok.to(outputs) / ok.sum(-1, keepdim=True).clamp(min=1)
        return (losses * share).sum(-1), gradient.mul_(share.unsqueeze(-1))

    def predictions(self, outputs: Tensor) -> Tensor:
        """The predicted class of each sample [..., B]; -1, no class, where the largest logit is not finite."""
        top, classes = outputs.max(-1)
        return classes.masked_fill(~top.isfinite(), -1)

    def whole(self, outputs: Tensor, predicted: Tensor, y: Tensor, measures: Iterable[str]) -> Score:
        """Those of the measures that are no sums over the samples: which ones are right, and areas under the ROC curve.

        With counts that are no better than a guess also how well each class is ranked.
        """
        score: Score = {}
        if RATES in measures and bool(outputs.isfinite().all()):
            p, labels = self.outputs(outputs).cpu().numpy(), y.cpu().numpy()
            if guesses([{"": {RATES: class_counts(labels, predicted.cpu().numpy(), outputs.shape[-1])}}]):
                score["ranks"] = ranks(p, labels)
        if CORRECT in measures:
            score[CORRECT] = np.packbits((predicted == y).cpu().numpy()).tobytes().hex()
        if areas := [name for name in measures if name in AREAS]:
            values = classification(outputs.double().cpu().numpy(), y.cpu().numpy(), areas, logits=True)
            score |= cast(Score, {name: values[name] for name in areas})
            if values["missing"]:
                score["missing"] = list(values["missing"])
        return score

    def guess(self, width: int) -> float:
        """The loss of a model that knows nothing, of so many outputs: ln C. 0 if it is not known."""
        return math.log(width) if width > 1 else 0.0

    def outputs(self, outputs: Tensor) -> Tensor:
        """The inputs of the user's own measures: probabilities [n, C], in float64."""
        return outputs.double().softmax(-1)

    def misfit(self, width: int) -> str:
        """Why a network with so many outputs does not fit; empty if it does."""
        return "" if width > 1 else "Give it one output per class: two for two classes"


NO_LABEL = -(1 << 62)
CLASSIFICATION = Classification()


@dataclass(frozen=True)
class Regression(Task):
    r"""A number for each sample: targets are numbers [n], outputs [..., B, 1].

    .. math:: \hat y = \mu + s f(x), \qquad \ell = e^2, \; |e| \text{ or } h(e), \quad e = f(x) - (y - \mu) / s

    The loss is that of numbers of about unit size, whatever the unit of y; measures are in the unit of y. The main measure is the root
    mean squared error.

    Parameters
    ----------
    loss : ``"squared"``, ``"absolute"``, or ``"huber"``: e^2 / 2 up to 1, and beyond it abs(e) - 1/2 (Huber 1964).
    unit : of the targets, for tables and axes.
    centre, scale : mu and s > 0; None takes mean and standard deviation of the targets of all clients, which must be in memory.

    Raises
    ------
    ValueError : another loss, or numbers that cannot be.
    """

    name: ClassVar[str] = "regression"
    measures: ClassVar[tuple[str, ...]] = tuple(measure.name for measure in MEASURES_OF[name])
    main: ClassVar[str] = measures[0]
    output: ClassVar[str] = "predictions, one tensor of shape [batch, 1]"
    dtype: ClassVar[torch.dtype] = torch.float64
    sums: ClassVar[type[Tally]] = NumberTally
    loss: str = choice("squared", "absolute", "huber")
    centre: float | None = None
    scale: float | None = None
    unit: str = text("")

    def __post_init__(self) -> None:
        check_fields(self, "Regression: ")
        for name, value, least in (("centre", self.centre, ""), ("scale", self.scale, " > 0")):
            if value is not None and (not math.isfinite(value) or (least and value <= 0)):
                raise ValueError(f"Regression: {name} must be a finite number{least}; found {value!r}.")

    def _unit(self) -> tuple[float, float]:
        return 0.0 if self.centre is None else self.centre, 1.0 if self.scale is None else self.scale

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample [..., B]."""
        centre, scale = self._unit()
        return LOSSES[self.loss](outputs.squeeze(-1), ((y - centre) / scale).to(outputs.dtype), reduction="none")

    def predictions(self, outputs: Tensor) -> Tensor:
        """The predicted number of each sample [..., B], in the unit of the targets, float64."""
        centre, scale = self._unit()
        return centre + scale * outputs.squeeze(-1).double()

    def guess(self, width: int) -> float:
        """The loss of a model that knows nothing: that of the mean, about 1 for squared errors of standardised targets."""
        return 0.0 if self.scale is None else 1.0

    def outputs(self, outputs: Tensor) -> Tensor:
        """The inputs of the user's own measures: predictions [n], in float64."""
        return self.predictions(outputs)

    def misfit(self, width: int) -> str:
        """Why a network with so many outputs does not fit; empty if it does."""
        return "" if width == 1 else 'Give it one output for task="regression", or leave task out for classes'

    def fitted(self, targets: Sequence[Tensor]) -> Self:
        """The task with centre and scale, from the targets of all clients where they are not given.

        Raises
        ------
        ValueError : all targets are equal.
        """
        if self.centre is not None and self.scale is not None:
            return self
        if not targets:
            raise ValueError(
                "task: the targets are not in memory, so say their centre and scale, about mean and standard deviation: "
                "task='regression(centre=150, scale=80)'."
            )
        y = torch.cat([*targets]).double()
        mean, spread = float(y.mean()), float(y.std(unbiased=False))
        if not spread:
            raise ValueError(f"All targets are {mean:g}, so there is nothing to learn. Is it the right column?")
        centre = mean if self.centre is None else self.centre
        return replace(self, centre=centre, scale=spread if self.scale is None else self.scale)


LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "squared": functional.mse_loss,
    "absolute": functional.l1_loss,
    "huber": functional.huber_loss,
}
TASKS: Mapping[str, type[Classification | Regression]] = {task.name: task for task in (Classification, Regression)}


@dataclass(frozen=True)
class Out:
    """One batch and what the network computed from it.

    ``logits`` [..., B, C], ``features`` [..., B, D] (the inputs of the classifier), labels ``y`` [..., B], ``ok``
    [..., B], 0 where a stacked batch is padded, or None without padding. ``ask`` gives logits and features of the
    same batch at another whole model vector [..., G], in eval mode and without gradient. ``s`` [..., B, A] are the codes of
    sensitive attributes, -1 for unknown; None where clients have none.
    """

    logits: Tensor
    features: Tensor
    y: Tensor
    ok: Tensor | None
    ask: Callable[[Tensor], tuple[Tensor, Tensor]]
    task: Task = CLASSIFICATION
    s: Tensor | None = None

    def mean(self, values: Tensor) -> Tensor:
        """Mean of one number per sample [..., B] over the batch, without padding: [...]."""
        return values.mean(-1) if self.ok is None else (values * self.ok).sum(-1) / self.ok.sum(-1).clamp(min=1)

    @cached_property
    def losses(self) -> Tensor:
        """Loss of each sample [..., B]."""
        return self.task.losses(self.logits, self.y)

    @cached_property
    def cross_entropy(self) -> Tensor:
        """Mean loss of the batch, one number per client [...]: the cross-entropy, or what else the task has."""
        return self.mean(self.losses)


def _called(task: Task) -> str:
    """A built-in task by its name, one that is derived from it by that of its class."""
    return task.name if type(task) in TASKS.values() else type(task).__name__


def _options(task: Task) -> str:
    """What a task was made with, as text: a checkpoint and sites tell by it one task from another of the same class."""
    members = [pair for cls in type(task).__mro__ for pair in vars(cls).items()]
    cached = {name for name, member in members if isinstance(member, cached_property)}
    given = {key: str(value) for key, value in vars(task).items() if key not in cached and not callable(value)}
    return ", ".join(f"{key}={value}" for key, value in given.items() if value not in ("None", ""))


def task_of(given: Any) -> Task:
    """The task of a name, of text such as ``"regression(loss=huber)"``, or of the user's own class, ``"mine.py:Counts"``.

    Raises
    ------
    ValueError, TypeError : it is none.
    """
    if isinstance(given, Task):
        return given
    if not isinstance(given, str):
        raise TypeError(f'task must be a name, such as "regression", or a task; found {type(given).__name__}.')
    reference, rest = own_code.split(given)
    call = calls.read(rest)
    name = call.name
    values: dict[str, Any] = {key or value: value for key, value in filter(any, call.pairs or ())}
    if call.complete and reference and not name:
        return _own(reference, {key: read_value(value) for key, value in values.items()})
    if not call.complete or name not in TASKS:
        raise ValueError(unknown("task", given, TASKS))
    allowed = [option.name for option in fields(TASKS[name])]
    if strange := [key for key in values if key not in allowed]:
        raise ValueError(f"task={given!r}: {unknown('option', strange[0], allowed)}")
    try:
        values |= {key: float(value) for key, value in values.items() if key in ("centre", "scale")}
        return TASKS[name](**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"task={given!r}: {error}") from None


def _own(reference: str, options: Mapping[str, Any]) -> Task:
    """The task that a reference names, or that the class makes which it names."""
    loaded = own_code.load(reference)
    task = own_code.call("task", reference, {}, options) if isinstance(loaded, type) or options else loaded
    if not isinstance(task, Task):
        raise InputError(
            f"task {reference}: expected a class derived from eq.Classification or eq.Regression; found {type(task).__name__}."
        )
    return task
