"""An audit of any model's predictions: how differently people are treated, without training, as a table, JSON and a page."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.core.task import CLASSIFICATION, Regression
from equipoise.data.formats import predictions
from equipoise.data.formats.predictions import Predictions
from equipoise.data.tables.columns import Columns
from equipoise.data.tables.options import several
from equipoise.metrics.calibration import auc
from equipoise.metrics.definitions import Statistic
from equipoise.metrics.measures import ACCURACY
from equipoise.metrics.performance import gap_between
from equipoise.records.history import History
from equipoise.records.meta import Meta
from equipoise.records.record import Record, Sums
from equipoise.report import document as content, layout, rates, sentences
from equipoise.report.drawing import svg
from equipoise.report.formatting import PERCENT, interval, number, without
from equipoise.report.notes import listed
from equipoise.report.page import SHOWN, Block, Bullets, Page, Picture, Pictures, Section, Table, Text, of_texts
from equipoise.report.statistics import Comparison
from equipoise.system.grouping import grouped
from equipoise.system.ranges import check_number, check_whole
from equipoise.system.suggestions import some

MODEL: Final = "the model"
CLUSTERED: Final = (
    "Intervals take the rows of a person together, by the variance of sums over them, and every n is of people."
)
SITE: Final = "Site"


def audit(
    source: Any,
    *,
    label: str | None = None,
    probability: str | None = None,
    prediction: str | None = None,
    group: str | Sequence[str] | None = None,
    site: str | None = None,
    subject: str | None = None,
    positive: object = None,
    threshold: float | None = None,
    least: int = 30,
    task: str | None = None,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    not_missing: str | Sequence[str] = (),
) -> "Audit":
    """Measure how differently any model treats groups of people, from its predictions for them: a row per person.

    Parameters
    ----------
    source : a table, a ``.csv``, ``.tsv``, ``.xlsx`` or ``.parquet`` file; or a frame of pandas.
    label : column of what is true; by default ``label``.
    probability : column of the probability of the positive class, in [0, 1].
    prediction : column of the predicted class, or of the predicted number. With both, decisions are these.
    group : columns of groups of people, ``"sex"`` or ``["sex", "age:40,60"]``, which divides numbers into bands; by default ``group``. Of
        several their intersection is measured, too.
    site : column of the site, in each of which people are compared, too; by default ``site``, if there is one.
    subject : column of the person whom a row is about; by default ``subject``, if there is one. Of several rows per person
        intervals take these together.
    positive : the class that rates are about; by default the second of two, or the one whose name says so.
    threshold : the positive class is predicted from this probability on, in [0, 1]; by default 0.5. Not with ``prediction``.
    least : people that a number must be about, >= 1: it is counted in the denominator of each rate.
    task : ``"regression"`` of numbers to predict.
    sep, decimal, encoding, not_missing : of a table that is text, as :func:`equipoise.scenario` takes them for own tables.

    Raises
    ------
    ValueError : columns are missing, cells cannot be read, or there is nothing to compare; all problems are listed.
    """
    if task == Regression.name and (prediction is None or probability is not None or positive is not None):
        raise ValueError(
            "task=regression needs prediction, the column of predicted numbers; probability and positive are for classes. Give that one only."
        )
    if threshold is not None and (prediction is not None or probability is None):
        raise ValueError(
            f"threshold={threshold} has no effect: decisions are {'those of prediction' if prediction else 'made of a probability'}. Leave it out."
        )
    threshold = 0.5 if threshold is None else threshold
    check_number("threshold", threshold, 0, 1)
    check_whole("least", least, 1)
    columns = Columns(
        label=label, group=group if group is None or isinstance(group, str) else tuple(group), task=task,
        sep=sep, decimal=decimal, encoding=encoding, not_missing=several(not_missing),
    )  # fmt: skip
    read = predictions.read(
        source, columns, probability=probability, prediction=prediction, site=site, subject=subject, positive=positive, threshold=threshold,
    )  # fmt: skip
    return Audit(read, least, threshold if prediction is None and probability is not None else None)


@dataclass(frozen=True, repr=False)
class Audit:
    """What :func:`audit` measured.

    Parameters
    ----------
    data : the predictions.
    least : people that a number must be about.
    threshold : of the probability; None where predicted classes were given.
    """

    data: Predictions
    least: int
    threshold: float | None

    @cached_property
    def history(self) -> History:
        """The sums as a run's record has them: a test set for every site."""
        data = self.data
        main, task = ("accuracy", CLASSIFICATION) if data.classes else ("rmse", Regression())
        by_site = grouped(zip([""] * len(data) if data.sites is None else data.sites, range(len(data)), strict=True))
        sites = {name: np.array(rows) for name, rows in sorted(by_site.items())}
        about, scores = data.positive, data.scores
        if about is not None and scores is not None and about.number == 0 and len(data.classes) == 2:
            scores = 1 - scores  # records have that of the second class

        def sums(rows: NDArray[np.int64]) -> list[Sums]:
            arrays = (data.predicted, data.y, data.s, scores, data.person)
            p, y, s, second, who = (None if x is None else torch.from_numpy(x[rows]) for x in arrays)
            return task.people(p, y, s, len(data.classes), second, joined=True, person=who)  # type: ignore[arg-type]

        record: dict[str, Any] = {"round": 0, "groups": {}, "by": {"groups": {}}}
        for name, rows in sites.items():
            y, predicted = data.y[rows], data.predicted[rows]
            value = np.mean(y == predicted) if data.classes else np.sqrt(np.mean((y - predicted) ** 2))
            named = {} if data.person is None else {"persons": len(np.unique(data.person[rows]))}
            record["groups"][name] = {main: float(value), "n": len(rows), **named}
            record["by"]["groups"][name] = sums(rows)
        if data.person is not None:  # who may have rows at several sites
            record["by"]["all"] = sums(np.arange(len(data)))
        meta: dict[str, Any] = {
            "method": MODEL, "attributes": {name: [*values] for name, values in data.attributes.items()}, "least_group": self.least,
            "classes": [*data.classes], "positive": data.positive.name if data.positive else None,
            **({} if data.classes else {"task": "regression"}),
        }  # fmt: skip
        return History((cast(Record, record),), cast(Meta, meta))

    @cached_property
    def compared(self) -> Comparison:
        """The numbers as tables and figures of runs take them."""
        return Comparison.of([self.history])

    @cached_property
    def document(self) -> dict[str, Any]:
        """All numbers in plain types; one that too few people are behind is None."""
        data, about = self.data, self.data.positive
        keys = ("treated", "unknown", "sites")
        people = {name: {key: by[key] for key in keys} for name, by in self.history.people(1).items()}  # type: ignore[literal-required]
        return {
            "source": data.source, "n": len(data), "classes": [*data.classes],
            "positive": None if about is None else {"name": about.name, "why": about.why},
            "threshold": self.threshold, "least": self.least, "notes": [*self.notes], "people": people,
        }  # fmt: skip

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What to doubt: several rows of one person, a positive class that was assumed, and predictions that are right less often than chance."""
        data, about = self.data, self.data.positive
        first = np.arange(len(data)) if data.person is None else np.unique(data.person, return_index=True)[1]
        texts = [f"{len(data):,} rows of {len(first):,} people. {CLUSTERED}"] * (len(first) < len(data))
        if about is None:
            return (*texts,)
        texts += [about.sentence] if about.why == "assumed" else []
        ranks = (data.predicted == about.number).astype(float) if data.scores is None else data.scores
        area, ends = auc(ranks[first], data.y[first] == about.number)  # rows of a person are not independent
        if ends[1] < 0.5:
            direction = "its probability is lower" if data.scores is not None else "it is predicted less often"
            texts.append(
                f"Worse than chance: {direction} for people of class {about.name} than for others (AUC {number(100 * area.value, 1)}{PERCENT}). "
                "Is the positive class the other one?"
            )
        return (*texts,)

    @property
    def name(self) -> str:
        """The title of the page."""
        return f"Fairness of the predictions in {Path(self.data.source).name}"

    @cached_property
    def summary(self) -> str:
        """Who is missed how often, and both demographic parity and equal opportunity by every attribute, with their intervals."""
        parts: list[str] = []
        for treated in self.treated:
            if not parts and self.data.positive is not None:
                parts.append(rates.missed(treated.parity))
            gaps = [f"{title} {' '.join(filter(None, texts[:2]))}" for title, texts in self._two_gaps(treated)]
            parts.append(f"By {treated.attribute}: {', '.join(gaps)}.")
        return " ".join(filter(None, parts))

    @property
    def _digits(self) -> int:
        """Digits of gaps."""
        return self.history.main.digits if self.history.main.of_target else 1

    @cached_property
    def treated(self) -> list[content.Treated]:
        """How people are treated, by attribute."""
        return content.treated(self.compared.document)

    @cached_property
    def page(self) -> Page:
        """The page: what differs most, then by attribute the gaps, the rates and every site."""
        gaps = ((treated.attribute, gap) for treated in self.treated for gap in self._two_gaps(treated))
        rows = [(f"{title} by {attribute}", texts) for attribute, (title, texts) in gaps]
        first = of_texts(rows, self._titles, "Gap", kind="numbers")
        sections = [Section(SHOWN, "What the numbers show", [Text(self.summary)]), *self.sections]
        return Page(
            self.name, "Audit", [f"{len(self.data):,} rows"], self.headline, notices=self.notes, sections=sections, folded=True,
            footer="Made by equipoise audit, which trains nothing.", first=[first],
        )  # fmt: skip

    @property
    def headline(self) -> str:
        """The two gaps that summaries have, by the attribute with the largest of them; or that none is estimable."""
        made, unit = list[tuple[float, str]](), "points" if self.data.classes else self.history.main.unit
        for treated in (treated for treated in self.treated if not treated.joined):
            titles, (method,) = rates.two_gaps(treated, self.history.main), treated.parity["methods"]
            gaps = {title: gap for key, title in titles.items() if (gap := content.mean_of(method, key)) is not None}
            texts = [f"{f'{number(gap, self._digits)} {unit}'.rstrip()} in {title}" for title, gap in gaps.items()]
            made += [(max(gaps.values()), f"By {treated.attribute}, the gap is {listed(texts)}.")] if gaps else []
        return max(made)[1] if made else "No gap between groups is estimable: too few people are behind the rates."

    def _two_gaps(self, treated: content.Treated) -> list[tuple[str, list[str]]]:
        """The two gaps that summaries have: titles and texts."""
        keys = rates.two_gaps(treated, self.history.main)
        return [(column.title, texts) for column, texts in self._gaps(treated) if column.key in keys]

    @cached_property
    def sections(self) -> list[Section]:
        """Tables with their sentences: by attribute the gaps, the rates and every site."""
        measure, made = self.history.main, list[Section]()
        for treated in self.treated:
            parity = treated.parity
            gaps = [(column.title, texts) for column, texts in self._gaps(treated)]
            table = of_texts(gaps, self._titles, "Measure", kind="numbers")
            made.append(Section(treated.gaps, treated.gaps_heading, [table, Bullets([*self._said(treated)])]))
            titles = rates.titles(parity, measure) | ({"ppv": "predictive value"} if self.data.positive else {})
            texts = without(rates.explained(parity, measure), "missed", "few")
            if self.data.scores is not None:
                titles |= {"bias": "bias", "calibration_error": "calibration error"}
                texts.append(
                    "Bias: mean probability less share of the positive class, in points: above 0, it is overrated. Calibration error: mean distance of both "
                    "in ten bins of the probability."
                )
            heading = treated.rates_heading(measure)
            blocks: list[Block] = [Table(rates.grid(parity, measure, titles), head=treated.attribute), Bullets(texts)]
            if measure == ACCURACY:
                drawn, caption = svg(treated.rates, rates.figure(parity)), f"{heading}, with 95{PERCENT} intervals."
                blocks.append(Pictures([Picture(treated.rates, heading, drawn, caption)]))
            made.append(Section(treated.rates, heading, blocks))
            for sheet in layout.site_sheets(treated, self.compared.document):
                blocks = [Table(sheet.grid, head=SITE), Bullets(sheet.explanations[:1])]
                made.append(Section(sheet.name, sheet.heading, blocks))
        return [*made, Section("limits", "What this cannot show", [Bullets([*self._limits()])])]

    @property
    def _titles(self) -> tuple[str, ...]:
        return (f"gap{' (points)' * bool(self.data.classes)}", f"95{PERCENT} interval", "lowest", "highest")

    def _gaps(self, treated: content.Treated) -> Iterator[tuple[Statistic, list[str]]]:
        """Every gap: the number, its interval, and the groups that attain it."""
        (method,) = treated.parity["methods"]
        for column in content.gaps_of(treated.parity, self.history.main, calibration=self.data.scores is not None):
            gap = content.mean_of(method, column.key)
            every = cast(Mapping[str, Any], method["groups"])
            by_key = {k: {g: v for g, row in every.items() if (v := row[k]["mean"]) is not None} for k in column.rates}
            values = max(by_key.values(), key=lambda values: gap_between(values.values()) or 0.0, default={})
            texts = [rates.NOT_ESTIMABLE]
            if gap is not None:
                ends = [choose(values, key=values.__getitem__) for choose in (min, max)] if values else []
                texts = [number(gap, self._digits), interval(content.ends_of(method, column.key), self._digits)]
                texts += [f"{g} {number(values[g], self._digits)}" for g in ends]
            yield column, [*texts, "", "", ""][:4]

    def _said(self, treated: content.Treated) -> Iterator[str]:
        """What the gaps are, and what they do not show."""
        yield from sentences.unknown_values(treated)
        parity, few = treated.parity, f"fewer than {self.least}"
        (method,) = parity["methods"]
        skipped = ["differences", "plus-minus", "gaps", "worst-value", "calibration", "without-rate"]  # in the table
        skipped += ["inside"] * (self.data.sites is None)
        yield from without(sentences.of_gaps(self.compared.document, treated)[1:], *skipped)
        rated = {} if parity["positive"] is None else method["groups"]
        if small := [name for name, group in rated.items() if content.rate_of(group, "tpr")["mean"] is None]:
            yield f"Left out of equal opportunity, with {few} people of class {parity['positive']}: {some(small, 10)}."
        if any(content.mean_of(method, column.key) is None for column in content.gaps_of(parity, self.history.main)):
            yield f"{rates.NOT_ESTIMABLE.capitalize()}: {few} people are behind the rate in all groups, or in all but one."

    def _limits(self) -> Iterator[str]:
        data = self.data
        yield from self.notes
        yield f"{len(data):,} rows of {data.source}: intervals are over these people, and over no others, no later time and no other training."
        if self.threshold is not None and data.positive is not None:
            yield f"Class {data.positive.name} is predicted from a probability of {self.threshold:g} on: another threshold gives other numbers."
        yield "Labels are taken for true. If they are themselves unfair, such as past decisions, equal opportunity repeats that."
        yield "If groups differ in how often they are of the class, less difference in demographic parity often means more in equal opportunity: choose by the harm."
        yield f"A number about fewer than {self.least} people is not shown (--least, in Python least=). This hides little: it may follow from others."

    def html(self) -> str:
        """The page, which needs nothing else."""
        return self.page.html()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, atomically; return its path."""
        return self.page.save(path)

    def __repr__(self) -> str:
        return f"Audit({len(self.data):,} people: {self.summary})"
