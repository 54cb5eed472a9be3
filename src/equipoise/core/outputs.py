"""The outputs of a model on data sets, in blocks, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.draws import seeded
from equipoise.core.model import Bound
from equipoise.core.oracle import EVALUATION_BATCH
from equipoise.core.tally import Tally
from equipoise.core.task import Classification, Task
from equipoise.data.samples import Samples, at_once, in_cache
from equipoise.metrics.calibration import Decision
from equipoise.metrics.classification import CORRECT, RATES
from equipoise.metrics.groups import Counts
from equipoise.records.record import Score, Sums
from equipoise.system.threads import run_in_order


@dataclass(frozen=True)
class Outputs:
    """What a model gives for samples, ``values`` [n, C], what is ``predicted`` of each [n], their targets ``y`` [n], and codes of their attributes ``s`` [n, A].

    Every measure of predictions follows from ``predicted``: what the task makes of the values, then the method or a threshold, see :meth:`decided`.
    ``person`` is whom each sample is about [n]; None: each is about another.
    """

    task: Task
    values: Tensor
    predicted: Tensor
    y: Tensor
    s: Tensor | None = None
    person: Tensor | None = None

    @staticmethod
    def joined(parts: Sequence[Outputs]) -> Outputs:
        """What a model gives for samples in several parts."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*((part.values, part.predicted, part.y) for part in parts), strict=True)
        values, predicted, y = (torch.cat(column) for column in columns)
        A = max(0 if part.s is None else part.s.shape[-1] for part in parts)
        unknown = (y.new_full((len(part.y), A), -1, dtype=torch.int64) for part in parts)
        s = [rows if part.s is None else part.s for part, rows in zip(parts, unknown, strict=True)]
        return Outputs(parts[0].task, values, predicted, y, torch.cat(s) if A else None, _persons(parts))

    def take(self, rows: Tensor | slice) -> Outputs:
        """The outputs for some samples, those that are true in ``rows`` [n], or those in a slice."""
        s, person = (None if x is None else x[rows] for x in (self.s, self.person))
        return Outputs(self.task, self.values[rows], self.predicted[rows], self.y[rows], s, person)

    def codes(self, attribute: int) -> Tensor:
        """The codes [n] of the sensitive attribute of a number; -1 where one is not known."""
        return self.y.new_full(self.y.shape, -1, dtype=torch.int64) if self.s is None else self.s[:, attribute]

    def decided(self, decision: Decision, positive: int, attributes: Iterable[str]) -> Outputs:
        """The same with the decisions between two classes by the probability of the ``positive`` one, and by attributes of these names."""
        by = [*attributes].index(decision.attribute) if decision.attribute else None
        scores, codes = self.given[0][:, positive], None if by is None else self.codes(by).cpu().numpy()
        classes = torch.where(torch.from_numpy(decision(scores, codes)).to(self.y.device), positive, 1 - positive)
        return replace(self, predicted=classes.where(self.predicted >= 0, self.predicted))

    @cached_property
    def tally(self) -> Tally:
        """The sums from which most measures follow."""
        return self.task.tally(self.values, self.y, predicted=self.predicted)

    def people(self, *, joined: bool) -> list[Sums] | None:
        """The sums by sensitive attribute that a record keeps, and if ``joined`` by all of them together; None without attributes."""
        if self.s is None:
            return None
        width = self.values.shape[-1]
        two = isinstance(self.task, Classification) and width == 2
        probability = self.task.outputs(self.values)[:, 1] if two else None
        return self.task.people(self.predicted, self.y, self.s, width, probability, joined=joined, person=self.person)

    @cached_property
    def given(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The inputs of users' own measures: probabilities [n, C], or what the task gives, targets [n], and what is predicted [n]."""
        return self.task.outputs(self.values).cpu().numpy(), self.y.cpu().numpy(), self.predicted.cpu().numpy()

    def score(self, measures: Iterable[str] = ()) -> Score:
        """The main measure, the loss, the number of samples, and other measures, with which the task may test whether the model is of use."""
        score = self.tally.score(measures) | self.task.whole(self.values, self.predicted, self.y, measures)
        score |= {} if self.person is None else self._person_score(self.person, score)
        if measures and (reason := self.task.useless(self.values, self.predicted, self.y)) is not None:
            score["useless"] = reason
        return cast(Score, {key: score[key] for key in Score.__annotations__ if key in score})  # type: ignore[literal-required]

    def _person_score(self, person: Tensor, score: Score) -> Score:
        """What a score has in addition if people are named: how many they are, and the sums over their rows."""
        order, visits = person.argsort(stable=True), person.unique(return_counts=True)[1].tolist()
        named: dict[str, Any] = {"persons": len(visits)}
        if CORRECT in score:
            named |= self.task.whole(self.values[order], self.predicted[order], self.y[order], (CORRECT,))
            named["visits"] = visits
        if isinstance(score.get(RATES), Mapping):
            named[RATES] = self.counts
        return cast(Score, named)

    @cached_property
    def counts(self) -> Counts:
        """What `equipoise.metrics.class_counts` returns of a classifier, and the sums over people, if they are named."""
        leaves = (self.predicted, self.y, torch.zeros_like(self.y), self.person)
        predicted, y, value, person = (None if x is None else x.cpu().numpy() for x in leaves)
        sums = self.task.sums.sums_by_value(predicted, y, value, 1, self.values.shape[-1], person)  # type: ignore[arg-type]
        return {key: sums_of_value[0] for key, sums_of_value in cast(Mapping[str, Any], sums).items()}


def _persons(parts: Sequence[Outputs]) -> Tensor | None:
    """Whom each sample in several parts is about [n]; of a part that does not tell, each about another; None if no part tells."""
    named = [part.person for part in parts if part.person is not None]
    if not named:
        return None
    first, n = 1 + max(int(person.max()) for person in named), sum(len(part.y) for part in parts)
    rows = torch.arange(first, first + n, device=named[0].device).split([len(part.y) for part in parts])
    return torch.cat([own if part.person is None else part.person for part, own in zip(parts, rows, strict=True)])


def overlapping(parts: Sequence[Outputs]) -> bool:
    """Whether the people of several parts are not the sum of those of each: some are in two, or in parts that do not tell."""
    named = [part.person.unique() for part in parts if part.person is not None]
    return bool(named) and (len(named) < len(parts) or len(every := torch.cat(named)) > len(every.unique()))


def outputs_of(bound: Bound, vector: Tensor, sets: Sequence[Samples], workers: int = 1) -> list[Outputs]:
    """The outputs of a whole vector [G] on each data set, computed by so many workers, on which no bit depends."""
    model, random = bound.model, bound.model.random or any(d.content is None for d in sets)
    width = [at_once(d, in_cache(d, EVALUATION_BATCH)) for d in sets]
    parts = [torch.arange(d.size, device=vector.device).split(w) for d, w in zip(sets, width, strict=True)]
    blocks = [(d, rows) for d, several in zip(sets, parts, strict=True) for rows in several]
    n = 1 if random or vector.device.type != "cpu" else min(workers, len(blocks))
    used = {bound}

    def make() -> Callable[[tuple[Samples, Tensor]], Outputs]:
        mine = bound if n == 1 else Bound(model)
        used.add(mine)

        def outputs(block: tuple[Samples, Tensor]) -> Outputs:
            batch = block[0].batch(block[1], None)
            values, _ = mine.forward(vector[: model.n_params], vector[model.n_params :].clone(), batch.x)
            return Outputs(model.task, values, model.task.predictions(values), batch.y, batch.s)

        return outputs

    with seeded(0 if random else None):  # a data set or a transform may draw random numbers
        results = iter(run_in_order(blocks, make, n))
    for evaluator in used:
        evaluator.require_unchanged(vector)
    every = [Outputs.joined(list(islice(results, len(several)))) for several in parts]
    people = [None if d.people is None else torch.from_numpy(d.people).to(vector.device) for d in sets]
    return [replace(outputs, person=person) for outputs, person in zip(every, people, strict=True)]
