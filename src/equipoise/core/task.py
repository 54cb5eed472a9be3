"""What the targets of samples mean: the loss of each sample, the prediction, how a model is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from equipoise.metrics.classification import AREAS, CORRECT, MEASURES, classification
from equipoise.metrics.measures import REGRESSION
from equipoise.metrics.regression import Sums
from equipoise.records.record import Score, number
from equipoise.system.ranges import check_fields, choice, text
from equipoise.system.suggestions import unknown


@dataclass(frozen=True)
class Classification:
    """One of C classes for each sample: targets are whole numbers in 0..C - 1, outputs are logits [..., B, C].

    The loss is the cross-entropy, the main measure the accuracy.
    """

    name: ClassVar[str] = "classification"
    measures: ClassVar[tuple[str, ...]] = tuple(MEASURES)
    main: ClassVar[Literal["accuracy"]] = "accuracy"
    output: ClassVar[str] = "logits, one tensor of shape [batch, classes]"
    dtype: ClassVar[torch.dtype] = torch.int64

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample [..., B]."""
        return functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)

    def predictions(self, outputs: Tensor) -> Tensor:
        """The predicted class of each sample [..., B]; -1, no class, where the largest logit is not finite."""
        top, classes = outputs.max(-1)
        return classes.masked_fill(~top.isfinite(), -1)

    def goodness(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How good each prediction is [..., B]: whether it is right, boolean. Its mean is the accuracy."""
        return self.predictions(outputs) == y

    def score(self, outputs: Tensor, y: Tensor, measures: Iterable[str] = ()) -> Score:
        """The main measure, the loss, the number of samples, and other ``measures`` of outputs [n, C] for targets [n]."""
        predicted = self.predictions(outputs)
        right = predicted == y
        score: Score = {
            self.main: float(right.double().mean()),
            "loss": float(self.losses(outputs, y).double().mean()),
            "n": len(y),
        }
        if CORRECT in measures:
            score[CORRECT] = np.packbits(right.cpu().numpy()).tobytes().hex()
        if undefined := int((predicted < 0).sum()):
            score["undefined"] = undefined
        if more := [name for name in measures if name not in score]:
            values = classification(outputs.double().cpu().numpy(), y.cpu().numpy(), more, logits=True)
            score |= cast(Score, {name: values[name] for name in more})
            if values["missing"] and set(AREAS) & set(more):
                score["missing"] = list(values["missing"])
        return score

    def pooled(self, scores: Sequence[Score]) -> Score:
        """The main measure, the loss and the number of samples of several scores together."""
        n = sum(s["n"] for s in scores)
        right = sum(round(number(s[self.main]) * s["n"]) for s in scores)
        return {self.main: right / n, "loss": sum(number(s["loss"]) * s["n"] for s in scores) / n, "n": n}

    def read(self, fields: Mapping[str, Any]) -> Score:
        """The main measure in what others sent.

        Raises
        ------
        KeyError, TypeError, ValueError, OverflowError : it cannot be.
        """
        if not 0 <= (accuracy := float(fields[self.main])) <= 1:
            raise ValueError(accuracy)
        return {self.main: accuracy}

    def guess(self, width: int) -> float:
        """The loss of a model that knows nothing, of so many outputs: ln C. 0 if it is not known."""
        return math.log(width) if width > 1 else 0.0

    def outputs(self, outputs: Tensor) -> Tensor:
        """What measures of one's own are given: probabilities [n, C], in float64."""
        return outputs.double().softmax(-1)

    def misfit(self, width: int) -> str:
        """Why a network with so many outputs does not fit; empty if it does."""
        return "" if width > 1 else "Give it one output per class: two for two classes"

    def fitted(self, targets: Sequence[Tensor]) -> Classification:
        """The task with what it takes from the targets of all clients: nothing."""
        return self

    def __str__(self) -> str:
        return _called(self)


CLASSIFICATION = Classification()


@dataclass(frozen=True)
class Regression:
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
    measures: ClassVar[tuple[str, ...]] = tuple(measure.name for measure in REGRESSION)
    main: ClassVar[Literal["rmse"]] = "rmse"
    output: ClassVar[str] = "predictions, one tensor of shape [batch, 1]"
    dtype: ClassVar[torch.dtype] = torch.float64
    loss: str = choice("squared", "absolute", "huber")
    centre: float | None = None
    scale: float | None = None
    unit: str = text("")

    def __post_init__(self) -> None:
        check_fields(self, "Regression: ")
        for name, value in (("centre", self.centre), ("scale", self.scale)):
            if value is not None and (not math.isfinite(value) or (name == "scale" and value <= 0)):
                raise ValueError(
                    f"Regression: {name} must be a finite number{' > 0' * (name == 'scale')}; found {value!r}."
                )

    def _unit(self) -> tuple[float, float]:
        return 0.0 if self.centre is None else self.centre, 1.0 if self.scale is None else self.scale

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Loss of each sample [..., B]."""
        centre, scale = self._unit()
        losses: Tensor = LOSSES[self.loss](
            outputs.squeeze(-1), ((y - centre) / scale).to(outputs.dtype), reduction="none"
        )
        return losses

    def predictions(self, outputs: Tensor) -> Tensor:
        """The predicted number of each sample [..., B], in the unit of the targets, float64."""
        centre, scale = self._unit()
        return centre + scale * outputs.squeeze(-1).double()

    def goodness(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How good each prediction is [..., B]: minus its squared error."""
        return -(self.predictions(outputs) - y).square()

    def score(self, outputs: Tensor, y: Tensor, measures: Iterable[str] = ()) -> Score:
        """All measures, the loss and the number of samples of outputs [n, 1] for targets [n]."""
        sums = Sums.of(self.predictions(outputs).cpu().numpy(), y.double().cpu().numpy())
        loss = float(self.losses(outputs, y).double().mean())
        return cast(Score, {**sums.measures, "loss": loss, "n": len(y)})

    def pooled(self, scores: Sequence[Score]) -> Score:
        """RMSE, MAE, the loss and the number of samples of several scores together."""
        n = sum(s["n"] for s in scores)
        rmse = math.sqrt(sum(number(s["rmse"]) ** 2 * s["n"] for s in scores) / n)
        mae, loss = (sum(number(s.get(key)) * s["n"] for s in scores) / n for key in ("mae", "loss"))
        return {"rmse": rmse, "mae": mae, "loss": loss, "n": n}

    def read(self, fields: Mapping[str, Any]) -> Score:
        """The measures in what others sent, as far as they are there.

        Raises
        ------
        KeyError, TypeError, ValueError, OverflowError : they cannot be.
        """
        sent = {key: float(fields[key]) for key in (self.main, "mae") if key in (self.main, *fields)}
        if not all(0 <= x < math.inf for x in sent.values()):
            raise ValueError(sent)
        score, r2 = cast(Score, sent), fields.get("r2")
        return {**score, "r2": None if r2 is None else min(1.0, float(r2))} if "r2" in fields else score

    def guess(self, width: int) -> float:
        """The loss of a model that knows nothing: that of the mean, about 1 for squared errors of standardised targets."""
        return 0.0 if self.scale is None else 1.0

    def outputs(self, outputs: Tensor) -> Tensor:
        """What measures of one's own are given: predictions [n], in float64."""
        return self.predictions(outputs)

    def misfit(self, width: int) -> str:
        """Why a network with so many outputs does not fit; empty if it does."""
        return "" if width == 1 else 'Give it one output for task="regression", or leave task out for classes'

    def fitted(self, targets: Sequence[Tensor]) -> Regression:
        """The task with centre and scale, from the targets of all clients where they are not given.

        Raises
        ------
        ValueError : the targets are all the same.
        """
        if self.centre is not None and self.scale is not None:
            return self
        if not targets:
            raise ValueError(
                "task: the targets are not in memory, so say their centre and scale, about mean and standard deviation: "
                "task='regression(centre=150, scale=80)'."
            )
        y = torch.cat([*targets]).double()
        centre, spread = float(y.mean()), float(y.std(unbiased=False))
        if not spread:
            raise ValueError(f"All targets are {centre:g}, so there is nothing to learn. Is it the right column?")
        return replace(
            self,
            centre=centre if self.centre is None else self.centre,
            scale=spread if self.scale is None else self.scale,
        )

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in asdict(self).items() if value not in (None, ""))
        return f"{_called(self)}({given})"


LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "squared": functional.mse_loss,
    "absolute": functional.l1_loss,
    "huber": functional.huber_loss,
}
Task = Classification | Regression


def _called(task: Task) -> str:
    """A built-in task by its name, one that is derived from it by that of its class."""
    return task.name if type(task) in TASKS.values() else type(task).__name__


TASKS: Mapping[str, type[Classification | Regression]] = {"classification": Classification, "regression": Regression}


def task_of(given: Any) -> Task:
    """The task of a name, or of text such as ``"regression(loss=huber)"``.

    Raises
    ------
    ValueError, TypeError : it is none.
    """
    if isinstance(given, Classification | Regression):
        return given
    if not isinstance(given, str):
        raise TypeError(f'task must be a name, such as "regression", or a task; found {type(given).__name__}.')
    name, bracket, rest = given.strip().partition("(")
    if name not in TASKS or (bracket and not rest.endswith(")")):
        raise ValueError(unknown("task", given, TASKS))
    options = dict(piece.partition("=")[::2] for piece in rest.removesuffix(")").split(",") if piece.strip())
    values: dict[str, Any] = {key.strip(): value.strip() for key, value in options.items()}
    try:
        values |= {key: float(value) for key, value in values.items() if key in ("centre", "scale")}
        return TASKS[name](**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"task={given!r}: {error}") from None
