"""Every sentence of every page about people is of a known form, and its numbers are computed again from the rows behind them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray
from scipy import stats

import equipoise as eq
from equipoise.metrics import class_counts
from equipoise.metrics.intervals import wilson
from equipoise.report import committee
from equipoise.report.layout import Sheet, over_clients, over_groups, paired_tests, sheets
from equipoise.report.page import Text, bullets_of, tables_of
from equipoise.report.sentences import evidence, limits, verdict
from equipoise.report.statistics import Comparison
from helpers import rate_gaps
from pages_of_people import IN_FORCE, SITES, People, people
from test_true_sentences import NUMBER, Study, Truth, check_evidence, near, read

SPACE = "\u00a0"
RATES = {
    "accuracy gap": "accuracy",
    "equal opportunity": "tpr",
    "demographic parity": "selection_rate",
    "predictive parity": "ppv",
}
ERRORS = {"RMSE gap": "rmse", "MAE gap": "mae", "mean error gap": "error", "prediction gap": "prediction"}


class Rows:
    """What the rows say, of any part of them, method and seed."""

    def __init__(self, drawn: People) -> None:
        self.drawn, self.C = drawn, len(drawn.classes)
        self.c = 1 if drawn.classes == ("no", "yes") else None
        self.parts = {SITES[k]: drawn.site == k for k in np.unique(drawn.site)}
        self.sexes = {"fm"[k]: drawn.sex == k for k in (0, 1) if (drawn.sex == k).any()}
        study = Study(tuple(drawn.histories), "own", 1, lambda history: bool(history.failure(1)))
        self.truth = Truth(study)

    def division(self, by: str) -> dict[str, NDArray[np.bool_]]:
        return self.sexes if by == "sex" else self.parts

    def group(self, name: str) -> NDArray[np.bool_]:
        return {**self.parts, **self.sexes}[name]

    def count(self, rows: NDArray[np.bool_]) -> int:
        """How many people they are about: as many as rows, if people are not named."""
        person = self.drawn.person
        return int(rows.sum()) if person is None else len(np.unique(person[rows]))

    def of_class(self, name: str, c: int | None = None) -> NDArray[np.bool_]:
        return self.group(name) & (self.drawn.y == (self.c if c is None else c))

    def rate(
        self, key: str, rows: NDArray[np.bool_], label: str, seed: int, c: int | None = None, least: int | None = None
    ) -> float | None:
        """A rate of some rows in percent, an error in its unit; None of too few."""
        y, p, c = self.drawn.y, self.drawn.predicted[label, seed], self.c if c is None else c
        least = self.drawn.least if least is None else least
        if not self.C:
            error = (p - y)[rows]
            numbers = {
                "rmse": math.sqrt((error**2).mean()),
                "mae": abs(error).mean(),
                "error": error.mean(),
                "prediction": p[rows].mean(),
            }
            return float(numbers[key]) if self.count(rows) >= least else None
        about = rows & {"tpr": y == c, "fpr": y != c, "ppv": p == c}.get(key, rows)
        hits = {"accuracy": p == y}.get(key, p == c)
        if key == "ppv":
            hits = y == c
        return 100 * float(hits[about].mean()) if self.count(about) >= least else None

    def gap(
        self, key: str, by: str, label: str, seed: int, least: int = 1, within: NDArray[np.bool_] | bool = True
    ) -> float | None:
        """The gap of a rate between the groups that have it; of the worst recall between groups of the same classes."""
        groups = [rows & within for rows in self.division(by).values()]
        groups = [rows for rows in groups if self.count(rows) >= least and rows.any()]
        if key == "worst_recall":
            recalls = [
                {c: r for c in range(self.C) if (r := self.rate("tpr", rows, label, seed, c)) is not None}
                for rows in groups
            ]
            every = set().union(*recalls)
            values = [min(of.values()) for of in recalls if of.keys() == every and every]
        elif least > 1 and self.C:  # inside sites, where each rate needs as many
            y = self.drawn.y
            groups = [rows for rows in groups if self.count(rows & {"tpr": y == self.c}.get(key, rows)) >= least]
            values = [r for rows in groups if (r := self.rate(key, rows, label, seed)) is not None]
        else:
            values = [r for rows in groups if (r := self.rate(key, rows, label, seed)) is not None]
        return max(values) - min(values) if len(values) > 1 else None

    def mean(self, key: str, by: str, label: str) -> float | None:
        values = [v for seed in self.drawn.seeds if (v := self.of_title(key, by, label, seed)) is not None]
        return float(np.mean(values)) if values else None

    def of_title(self, title: str, by: str, label: str, seed: int) -> float | None:
        """A gap by the title of its column."""
        if title == "worst recall":
            return self.gap("worst_recall", by, label, seed)
        if title == "equalised odds":
            both = [self.gap(key, by, label, seed) for key in ("tpr", "fpr")]
            return None if None in both else max(both)  # type: ignore[type-var]
        if title == "selection ratio":
            values = [
                r
                for rows in self.division(by).values()
                if (r := self.rate("selection_rate", rows, label, seed)) is not None
            ]
            return 100 * min(values) / max(values) if len(values) > 1 and max(values) > 0 else None
        return self.gap({**RATES, **ERRORS}[title], by, label, seed)

    def few(self, name: str, what: str) -> set[int]:
        """How many people of a group are behind a gap, as a sentence says what they are, with any seed."""
        rows, y, taken = self.group(name), self.drawn.y, " taken for class yes"
        about = {" of class yes": y == 1, " not of class yes": y != 1, "": np.ones(len(y), bool)}
        told = (self.drawn.predicted[self.drawn.labels[0], seed] == 1 for seed in self.drawn.seeds)
        return {self.count(rows & which) for which in (told if what == taken else [about[what]])}


# the forms of sentences
Check = Callable[[re.Match[str], Rows, str, str], None]
FORMS: list[tuple[re.Pattern[str], Check]] = []


def form(pattern: str) -> Callable[[Check], Check]:
    """What checks sentences of a form: its match, the rows, where it stands, and by what people are divided there."""

    def add(check: Check) -> Check:
        FORMS.append((re.compile(pattern.replace(" %", f"{SPACE}%"), re.DOTALL), check))
        return check

    return add


@form(
    r"Of 100 test samples of (the class that it recognises worst|class yes), (\S+) misses (.+?)(?:, the most and the fewest of (\d+) groups)?"
    r"((?:; \S+ [\d–][^;.]*)*)(?:; of (?:some class|the class that it recognises worst|class yes) there are (?:fewer than (\d+)|(none)) in group (.+))?\."
)
def misses(found: re.Match[str], rows: Rows, _: str, by: str) -> None:
    many, label, seeds = found[1] != "class yes", found[2], rows.drawn.seeds
    named = re.findall(r"(\d+) in group ([\w ]+?)(?:, class (\w+),)? \((\d+) to (\d+)\)", found[3])
    assert named
    assert label == rows.truth.labels[0]
    shown = {}
    for missed, group, name, low, high in named:
        c = rows.drawn.classes.index(name) if many else rows.c
        recall, ends = recall_of(rows, group, label, c)
        shown[group] = recall
        assert abs(100 - recall - int(missed)) <= 0.5 + 1e-9, (group, name)
        if many:
            assert (
                recall <= min(r for k in range(rows.C) if (r := recall_of(rows, group, label, k)[0]) is not None) + 1e-9
            )
        if rows.drawn.person is None:
            assert abs(100 - ends[1] - int(low)) <= 0.5 + 1e-6
            assert abs(100 - ends[0] - int(high)) <= 0.5 + 1e-6
    assert all(a <= b + 1e-9 for a, b in pairwise(shown.values()))
    others = [text.split(" ", 1) for text in found[5].split("; ")[1:]]
    assert {label, *(name for name, _ in others)} == {*rows.truth.labels}  # no method is left out
    for other, text in others:
        for value, group in zip(re.split(", | and ", text), shown, strict=True):
            of = re.fullmatch(r"(\d+|–)(?: \(class (\w+)\))?", value)
            assert of
            recall = (
                None
                if of[1] == "–"
                else recall_of(rows, group, other, rows.drawn.classes.index(of[2]) if many else rows.c)[0]
            )
            assert (recall is None) == (of[1] == "–")
            assert recall is None or abs(100 - recall - int(of[1])) <= 0.5 + 1e-9
    for group in re.split(", | and ", found[8] or "") if found[8] else ():
        least = int(found[6]) if found[6] else 1
        assert any(rows.count(rows.of_class(group, c)) < least for c in (range(rows.C) if many else [rows.c])), group
    assert len(seeds) >= 1


def recall_of(rows: Rows, group: str, label: str, c: int | None) -> tuple[Any, Any]:
    """The recall of a class in a group over the seeds, and its interval: the wider of Wilson's, its ends averaged, and Student's."""
    each = [rows.rate("tpr", rows.group(group), label, seed, c) for seed in rows.drawn.seeds]
    if None in each:
        return None, None
    n = int(rows.of_class(group, c).sum())
    low, high = np.mean([[100 * end for end in wilson(r / 100, n)] for r in each], axis=0)  # type: ignore[operator]
    mean = float(np.mean(each))
    if len(each) > 1:
        half = stats.t.ppf(0.975, len(each) - 1) * np.std(each, ddof=1) / math.sqrt(len(each))
        low, high = max(0.0, min(low, mean - half)), min(100.0, max(high, mean + half))
    return mean, (low, high)


TITLE = "accuracy gap|equal opportunity|equalised odds|demographic parity|selection ratio|predictive parity|worst recall|RMSE gap|MAE gap|mean error gap|prediction gap"


@form(r"(\S+), 95 % intervals over the test samples(?: of one seed, ends averaged over the seeds)?: (.+)\.")
def gaps_have_intervals(found: re.Match[str], rows: Rows, _: str, by: str) -> None:
    for title, low, high in re.findall(rf"({TITLE}) \[({NUMBER}), ({NUMBER})\]", found[2]):
        assert read(low) <= rows.mean(title, by, found[1]) + 1e-2 <= read(high) + 2e-2 or len(rows.drawn.seeds) > 1
        if rows.C and rows.drawn.person is None and title != "worst recall":
            key = {"accuracy gap": "accuracy_gap"}.get(title, title.replace(" ", "_")).replace(
                "selection_ratio", "demographic_parity_ratio"
            )
            ends = []
            for seed in rows.drawn.seeds:
                counts = {
                    g: class_counts(rows.drawn.y[m], rows.drawn.predicted[found[1], seed][m], rows.C)
                    for g, m in rows.division(by).items()
                }
                each = rate_gaps(counts, rows.c, least=rows.drawn.least)[key]
                ends += [[100 * each.low, 100 * each.high]] * math.isfinite(each.low)
            assert near(low, np.mean([a for a, _ in ends]))
            assert near(high, np.mean([b for _, b in ends]))


@form(
    r"With fewer than 30 people in a group, (read the intervals, not the numbers|chance alone can make the numbers|or if nobody .+, nothing is shown): (.+)\."
)
def few_people(found: re.Match[str], rows: Rows, _: str, by: str) -> None:
    label, several = rows.drawn.labels[0], len(rows.drawn.seeds) > 1
    for title, less, n, what, group in re.findall(
        rf"({TITLE}) \((?:(<|at most) )?(\d+)( of class yes| not of class yes| taken for class yes|) in ([\w ]+)\)",
        found[2],
    ):
        gap = rows.mean(title, by, label)
        assert (gap is None) == found[1].endswith("nothing is shown"), title
        sizes = rows.few(group, what)
        if less:
            assert min(sizes) < rows.drawn.least if less == "<" else min(sizes) <= int(n)
        elif not (several and what == " taken for class yes"):
            assert int(n) in sizes, title
        assert min(sizes) < 30 or several


@form(
    r"([\w ]+) has (?:fewer than (\d+) (?:test samples|people)|no test sample) of class(?:es)? ([\w, ]+?)(?:, so| with \d of \d seeds, so) it has no .+ and is left out\."
)
def left_out(found: re.Match[str], rows: Rows, _: str, by: str) -> None:
    for name in found[3].split(", "):
        assert rows.count(rows.of_class(found[1], rows.drawn.classes.index(name))) < int(found[2] or 1)


@form(r"By sex, (\S+)'s gaps are (.+?)(?:; the people of one test set alone leave (.+) \(95 % interval\))?\.")
def gaps_of_the_first(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    parts = re.findall(r"(not estimable|[\d.]+)(?: points| kg)? in (equal opportunity|demographic parity|accuracy|worst recall|mean error|MAE)"
                       r"(?: \((only )?(?:(<|at most) )?(\d+)( of class yes| not of class yes|) in ([\w ]+)\))?", found[2])  # fmt: skip
    assert len(parts) == 2
    for value, title, only, less, n, what, group in parts:
        title = title if title in RATES or title == "worst recall" else f"{title} gap"
        gap = rows.mean(title, "sex", found[1])
        assert (gap is None) == (value == "not estimable"), title
        assert gap is None or near(value, gap)
        assert bool(only) == bool(group and gap is not None)
        if group and not less:
            assert {int(n)} == rows.few(group, what)
        elif group:
            assert min(rows.few(group, what)) < max(rows.drawn.least, int(n) + 1)


@form(r"By sex, no gap in .+ is estimable: too few people\.")
def no_gap(_: re.Match[str], rows: Rows, __: str, ___: str) -> None:
    titles = ("accuracy gap", "worst recall") if rows.c is None else ("equal opportunity", "demographic parity")
    assert all(
        rows.mean(title, "sex", rows.drawn.labels[0]) is None
        for title in (titles if rows.C else ("mean error gap", "MAE gap"))
    )


@form(r"They are (.+), and one seed tests no difference\.")
def gaps_of_others(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    named = re.findall(r"(not estimable|[\d.]+) and (not estimable|[\d.]+) with (\S+?)(?=,| and |$)", found[1])
    assert named
    check_pairs([(label, values) for *values, label in named], rows)


@form(r"Paired over seeds \(Holm, p < 0\.05\), in brackets the gaps in .+: (.+)\.")
def changes_of_gaps(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    check_pairs(
        [
            (a, [b, c])
            for a, b, c in re.findall(r"(\S+) \((not estimable|[\d.]+) and (not estimable|[\d.]+)\)", found[1])
        ],
        rows,
    )


def check_pairs(named: Sequence[tuple[str, Sequence[str]]], rows: Rows) -> None:
    titles = ("accuracy gap", "worst recall") if rows.c is None else ("equal opportunity", "demographic parity")
    for label, values in named:
        for title, value in zip(titles if rows.C else ("mean error gap", "MAE gap"), values, strict=True):
            gap = rows.mean(title, "sex", label)
            assert (gap is None) == (value == "not estimable")
            assert gap is None or near(value, gap), (label, title)


@form(r"Calibration of (\S+), mean probability less share of the class in points: (.+?); calibration gap (.+)\.")
def calibration(found: re.Match[str], rows: Rows, _: str, by: str) -> None:
    biases = {}
    for value, group in re.findall(rf"({NUMBER}) in ([\w ]+?)(?=,|$)", found[2]):
        m = rows.group(group)
        biases[group] = 100 * np.mean(
            [(rows.drawn.scores[found[1], seed][m] - rows.drawn.y[m]).mean() for seed in rows.drawn.seeds]
        )
        assert near(value, biases[group])
    assert found[3] == "–" or len(rows.drawn.seeds) > 1 or near(found[3], max(biases.values()) - min(biases.values()))


@form(r"Largest gap inside a site between groups of 30 people or more, (\S+): (.+)\.")
def inside(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    for part in found[2].split("; "):
        of = re.fullmatch(
            rf"({TITLE}) (?:({NUMBER}) in (.+?)|not estimable)(?:, (\d+)(?: to \d+)? of (\d+) sites (?:has|have) too few people)?",
            part,
        )
        assert of, part
        key, each = {**RATES, **ERRORS}[of[1]], []
        for seed in rows.drawn.seeds:
            gaps = {
                name: rows.gap(key, "sex", found[1], seed, max(30, rows.drawn.least), m)
                for name, m in rows.parts.items()
            }
            each += [{name: gap for name, gap in gaps.items() if gap is not None}]
        largest = [max(gaps.values()) for gaps in each if gaps]
        assert bool(of[2]) == bool(largest)
        assert not largest or near(of[2], float(np.mean(largest))), (part, each)
        assert not of[4] or int(of[4]) == len(rows.parts) - max(map(len, each))


@form(r"The gap of all people hides sites with a larger one in .+, beyond chance: .+\.")
def hidden(_: re.Match[str], rows: Rows, __: str, ___: str) -> None:
    assert len(rows.parts) > 1


@form(r"The worst (group|value of sex) is (.+)\.")
def worst(found: re.Match[str], rows: Rows, where: str, by: str) -> None:
    measure = where.partition(".")[0]
    groups, least = (rows.sexes, rows.drawn.least) if found[1] == "value of sex" else (rows.parts, 1)
    key = {"rmse": "rmse", "mae": "mae", "accuracy": "accuracy"}.get(measure, "rmse" if not rows.C else "accuracy")
    if measure == "r2":
        return
    for part in found[2].split("; "):
        who, _, labels = part.partition(" for ")
        counts = Counter(
            {
                name: int(n or len(rows.drawn.seeds))
                for name, n in re.findall(r"(\w[\w ]*?)(?: \((\d+) seeds?\))?(?:, | and |$)", who)
            }
        )
        for label in labels.split(", ") if labels else rows.drawn.labels:
            each = Counter[str]()
            for seed in rows.drawn.seeds:
                values = {
                    g: v for g, m in groups.items() if (v := rows.rate(key, m, label, seed, least=least)) is not None
                }
                if len(values) > 1:
                    each[(min if rows.C else max)(values, key=lambda g: round(values[g], 9))] += 1
            assert each == counts, (part, each)


@form(
    r"By (R²|MAE) \((.+)\), (\S+) serves the worst group best\.|The worst group by (R²|MAE) \((.+)\): the (?:highest|lowest) is that of (\S+); distinguishable from .+"
)
def by_another_measure(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    measure, groups, winner = (found[k] or found[k + 3] for k in (1, 2, 3))
    y, drawn = rows.drawn.y, rows.drawn.predicted

    def better(m: NDArray[np.bool_], label: str, seed: int) -> float:
        error = (drawn[label, seed] - y)[m]
        return 1 - (error**2).sum() / ((y[m] - y[m].mean()) ** 2).sum() if measure == "R²" else -abs(error).mean()

    each = {
        label: [min((better(m, label, seed), name) for name, m in rows.parts.items()) for seed in rows.drawn.seeds]
        for label in rows.truth.racing
        if label not in rows.truth.failed
    }
    assert winner == max(each, key=lambda label: np.mean([value for value, _ in each[label]]))
    assert {*re.split(", | and ", groups)} == {name for _, name in each[winner]}


@form(r"Every test set has fewer than (\d+) samples, so no number is shown: .+")
def nothing(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert all(m.sum() < int(found[1]) == rows.drawn.least for m in rows.parts.values())


@form(r"Hyper-parameters in force: (.+)\.")
def in_force(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert found[1] == "; ".join(f"{label}: {IN_FORCE[label]}" for label in rows.truth.labels if label in IN_FORCE)


@form(r"Of (fewer than (\d+)|\d+) test samples? sex is not known: they are in no row, and in no gap\.")
def unknown(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    size = rows.count(rows.drawn.sex < 0)
    assert size < int(found[2]) if found[2] else int(found[1]) == size


@form(r"(fedavg|afl|qffl|ditto|fedprox\(mu=0\.1\))(?: †)?: (.+)\.")
def differences(found: re.Match[str], rows: Rows, where: str, by: str) -> None:
    """`afl: AVG +1.2 [..., ...], Holm p=.03; ...` of the main measure, and of gaps."""
    main = where.startswith(("accuracy.", "rmse."))
    for part in found[2].split("; "):
        of = re.fullmatch(
            rf"(.+?) (?:({NUMBER}) \[({NUMBER}), ({NUMBER})\](?:, (Holm )?p(<\.001|=(\.\d+|1\.000)))?|the difference is ({NUMBER}) in every seed|no difference .+)",
            part,
        )
        assert of, part
        title, first = of[1], rows.truth.racing[0]
        if main:
            key = {"AVG": "avg", "STD": "std", "worst": "worst"}.get(title, "avg")
            each = np.subtract(rows.truth.each(found[1], key), rows.truth.each(first, key))
        elif re.fullmatch(TITLE, title):
            pairs = [
                [rows.of_title(title, by, label, seed) for seed in rows.drawn.seeds] for label in (found[1], first)
            ]
            each = np.array([a - b for a, b in zip(*pairs, strict=True) if a is not None and b is not None])
        else:
            return  # of another measure, computed again with the table of that measure
        shown = of[2] or of[8]
        assert near(shown, float(each.mean())) if shown else abs(each.mean()) < 0.5 * 10**-2, part
        if of[2] and len(each) > 1:
            half = stats.t.ppf(0.975, len(each) - 1) * np.std(each, ddof=1) / math.sqrt(len(each))
            assert near(of[3], each.mean() - half)
            assert near(of[4], each.mean() + half)


@form(r"n: (test samples|people)\.")
def counted(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    every = np.ones(len(rows.drawn.y), bool)
    assert (found[1] == "people") == any(rows.count(m) < m.sum() for m in (*rows.parts.values(), every)), found[0]


@form(r"In brackets: 95 % intervals?(?: over the .+|, the range .+)")
def brackets(*_: Any) -> None:
    """Whether there are any, `check_brackets` looks at the table."""


@form(
    r"±: half of the 95 % interval over (?:(\d+) seeds \(Student's t\)|the test samples of this one seed)\.|One seed: there is no spread over seeds\."
)
def half(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert int(found[1] or 1) == len(rows.drawn.seeds)


@form(
    r"n < (\d+): a (?:rate|number) about so few is not shown.*|n < (\d+)(?: with some seed)?: a number about so few.*|A number about fewer than (\d+) people is .+"
)
def least(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert int(found[1] or found[2] or found[3]) == rows.drawn.least


@form(
    r"(?:Before the threshold was chosen: )?(?:† )?(\S+), seeds? .+: the global model is no better than guessing \(.+\)\."
)
def failed(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert found[1] in rows.truth.failed


@form(r"The positive class is yes(?:\.|: an assumption.*)")
def positive(_: re.Match[str], rows: Rows, __: str, ___: str) -> None:
    assert rows.c == 1


@form(
    r"One seed: intervals are over the test samples of these models, and do not cover what another seed changes: .+\."
)
def one_seed(_: re.Match[str], rows: Rows, __: str, ___: str) -> None:
    assert len(rows.drawn.seeds) == 1
    assert rows.C or len(rows.sexes) > 1


@form(r"No interval over the test samples(, except of gaps between people)?: .+")
def no_interval(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert not rows.C
    assert len(rows.drawn.seeds) == 1
    gaps = rows.drawn.attributes and any(rows.mean(title, "sex", rows.drawn.labels[0]) is not None for title in ERRORS)
    assert bool(found[1]) == bool(gaps)


@form(
    r"(\d) seeds: Student's t has (\d) degrees? of freedom, and half of the 95.% interval is ([\d.]+) standard deviations, .+"
)
def few_seeds(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    n = len(rows.drawn.seeds)
    assert (int(found[1]), int(found[2])) == (n, n - 1)
    assert near(found[3], stats.t.ppf(0.975, n - 1) / math.sqrt(n))


@form(r"(\S+) has the lowest STD and the (?:lowest|highest) average: .+")
def even(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    learned = {m: rows.truth.mean(m, "std") for m in rows.truth.racing if m not in rows.truth.failed}
    assert learned[found[1]] == pytest.approx(min(v for v in learned.values() if v is not None), abs=1e-9)


@form(
    r"The model learnt from ([\d,]+|fewer than \d+) rows of (\d) sites?: (.+)\.|It was tested on ([\d,]+|fewer than \d+) rows that it had not seen(?:: (.+))?\."
)
def held(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    times = 3 if found[1] else 1
    total, each = found[1] or found[4], found[3] or found[5] or ""
    assert total.startswith("fewer") or int(total.replace(",", "")) == times * len(rows.drawn.y)
    for n, name in re.findall(r"(fewer than [\d,]+ people|[\d,]+) of ([a-z ]+?)(?:,|$)", each):
        size, shown = times * rows.parts[name].sum(), int(n.removeprefix("fewer than ").split()[0].replace(",", ""))
        assert rows.count(rows.parts[name]) < shown if n.startswith("fewer") else size == shown


@form(r"The fewest people behind a rate above are (at most )?([\d,]+)(: with so few, intervals are wide)?\.")
def fewest(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    n, y = int(found[2].replace(",", "")), rows.drawn.y
    every = [rows.count(m & about) for m in [*rows.parts.values(), *rows.sexes.values()] for about in (y == 1, y != 1)]
    assert any(size <= n if found[1] else size == n for size in every if size >= rows.drawn.least)
    assert bool(found[3]) == (n < 100)


@form(r"Hardly in the test rows, with fewer than (\d+) people, so nothing is shown about them here: (.+)\.")
def hardly(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert all(rows.count(rows.group(name)) < int(found[1]) for name in re.split("; |, | and ", found[2]))


@form(r"Methods? (.+?): 1 round(?:, (\d+) runs)?\.")
def made(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert int(found[2] or 1) == len(rows.drawn.predicted)


@form(
    r"This was a simulation on one machine: (\d) sites? trained as if each kept its rows, and the rows were in one place\."
)
def simulated(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert int(found[1]) == len(rows.parts)


@form(r"Numbers are means over (\d) runs that differ in their random seed\.")
def means(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert int(found[1]) == len(rows.drawn.seeds)


# those without a number of their own: what they state depends on the kind of the runs only
STATIC = re.compile("|".join((
    r"[\w² -]+ of the global model on own(?: in percent| in kg)?, after the last round\.", r"STD: standard deviation .+", r"gap: the .+",
    r"(?:Rates|Errors) by (?:group|sex) on own: .+", r"Group fairness on own: .+", r"Fairness by sex on own: .+", r"Differences (?:in|are) .+",
    r"Selection (?:ratio|rate): .+", r"(?:True|False)-positive rate: .+", r"Recall of the worst class: .+", r"Mean error: .+",
    r"Compare one class with all others.+", r"Choose the other with .+", r"This protects nobody for certain: .+",
    r"Nothing was tuned: .+", r"`--tune 16` .+", r"Some people have several rows.+", r"Every number n of test samples is of people, .+",
    r"–: this number, taken from all, would tell .+",
    r"Seeds change .+", r"The results do not cover .+", r"[\w² ]+: differences to \S+\.", r"Mean, 95.% interval, p-value.+",
    r"A p-value above 0\.05 does not mean .+", r"[\w² ]+: differences to \S+, paired by seed\.", r"Evenness over the groups\.",
    r"With the 95.% interval over the test samples of one seed\.", r"[\w²]+ of the global model, every group counting the same.+",
    r"In (?:percent|kg); the variance .+", r"Inside every site by sex\.", r"How the people of every site are treated.+",
    r"Demographic parity: the gap of the selection rate; .+", r"Gaps are of the mean absolute error, .+", r"–: not estimable, .+",
    r"Its numbers show neither .+", r"This is one seed, and one seed proves nothing.+", r"Two seeds say little about chance.+",
    r"One seed: no number here shows .+", r"All \d clients are tested together.+", r"To know it, give each .+",
    r"Two methods are distinguishable if .+", r"A committee needs it: .+", r"Not stated.+", r"To state it, .+", r"It predicts .+", r"Below, a person of .+",
    r"Not in the data: .+", r"None was chosen: .+", r"Several runs are shown .+", r"None: the .+", r"That suits a task .+", r"Choose it: .+",
    r"A report of a single run .+", r"Groups of people: .+", r"People by anything but sex\.", r"Whether .+", r"What people do .+", r"Sites that send .+",
    r"Other methods, networks and settings\.", r"The data have the SHA-256 .+", r"The research report, .+",
    r"Labels are taken for true\.", r"If they are themselves unfair, .+", r"If groups differ in how often .+", r"This hides little: .+",
    r"Is the positive class the other one\?", r"The settings of .+ were taken as given, which may favour a method\.",
)), re.DOTALL)  # fmt: skip


BEGINS = re.compile(r"(?<=\.) (?=[A-Z†`]|\d methods|fedavg|afl|qffl|ditto|fedprox)")


def parts(text: str) -> list[str]:
    """The sentences of a paragraph."""
    return BEGINS.split(text)


def check_text(text: str, rows: Rows, where: str, by: str = "") -> None:
    if not text:
        return
    for pattern, check in FORMS:
        if found := pattern.fullmatch(text):
            check(found, rows, where, by)
            return
    if STATIC.fullmatch(text):
        return
    try:
        check_evidence([text], rows.truth)
    except pytest.fail.Exception:
        pytest.fail(f"A sentence that nobody checks, of {where}: {text}")


def check_brackets(sheet: Sheet) -> None:
    """No sentence below a table is about intervals, ± or p-values that the table does not have."""
    text, cells = " ".join(sheet.sentences), [cell for _, row in sheet.grid.rows for cell in row]
    numbers = any(cell.mean[0].isdigit() for cell in cells if cell.mean)
    assert ("±: half" in text) <= (any(cell.half for cell in cells) or not numbers), (sheet.name, text)
    assert any(cell.half for cell in cells) <= ("±" in text), (sheet.name, text)
    if sheet.name.startswith(("group-rates", "people")) and not sheet.name.endswith(("gaps", "sites")):
        assert ("In brackets" in text) == any(cell.ends for cell in cells), (sheet.name, text)
    assert bool(sheet.differences) == bool(sheet.test)


def pages(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """Where a sentence is, by what people are divided there, and the sentence."""
    found = Comparison.of(rows.drawn.histories)
    rows.truth.said = {key: leader["leading"] for key, leader in found["leaders"].items()}
    document = found.document
    yield from (("verdict", "group", text) for text in parts(verdict(document)))
    yield from (("evidence", "group", part) for text in evidence(document) for part in parts(text))
    yield from (("limits", "", part) for text in limits(found) for part in parts(text))
    measured = sheets(document)
    for sheet in [*measured, *paired_tests(measured), *over_groups(found), *over_clients(found)]:
        check_brackets(sheet)
        by = "sex" if sheet.name.startswith("people") else "group"
        for text in (sheet.caption, *sheet.sentences, *sheet.test, *sheet.differences):
            yield from ((f"{sheet.name}.", by, part) for part in parts(text))
    for section in committee.page(found).sections:
        ends = [cell for table in tables_of(section) for _, row in table.grid.rows for cell in row]
        said = [*bullets_of(section), *(block.text for block in section.blocks if isinstance(block, Text))]
        if section.name == "missed":
            caption = " ".join(b.text for b in section.blocks if isinstance(b, Text) and b.kind == "caption")
            assert ("In brackets" in caption) == any(cell.ends and not cell.half for cell in ends)
            assert ("±" in caption) == any(cell.half for cell in ends)
        for text in said:
            yield from ((f"committee {section.name}", "group", part) for part in parts(text))


def of_audit(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """The sentences of an audit of what the first method predicts."""
    drawn = rows.drawn
    label, names = drawn.labels[0], np.array(drawn.classes or ("",))
    told = drawn.predicted[label, 0]
    table = pd.DataFrame({
        "label": names[drawn.y] if rows.C else drawn.y, "prediction": names[told] if rows.C else told,
        "sex": np.array(["f", "m", None], dtype=object)[drawn.sex],
    })  # fmt: skip
    made = eq.audit(
        table, prediction="prediction", group="sex", positive="yes" if rows.c else None, least=drawn.least, task=None if rows.C else "regression",
    )  # fmt: skip
    yield from (("audit", "sex", part.replace("the model", label)) for part in parts(made.summary))
    yield ("audit", "sex", made.headline)
    for section in made.sections:
        cells = [cell for table in tables_of(section) for _, row in table.grid.rows for cell in row]
        text = " ".join(bullets_of(section))
        assert section.title == "What this cannot show" or ("In brackets" in text) <= any(cell.ends for cell in cells)
        every = (part for text in bullets_of(section) for part in parts(text))
        yield from (("audit", "sex", part.replace("the model", label)) for part in every)


@form(r"By sex: (.+)\.")
def of_summary(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    for title, value in re.findall(rf"({TITLE}) (not estimable|{NUMBER})", found[1]):
        gap = rows.of_title(title, "sex", rows.drawn.labels[0], 0)
        assert (gap is None) == (value == "not estimable")
        assert gap is None or near(value, gap)


OF_HEADLINE = {
    "equal opportunity": "",
    "demographic parity": "",
    "accuracy": " gap",
    "worst recall": "",
    "mean error": " gap",
    "MAE": " gap",
}


@form(r"By sex, the gap is (.+)\.")
def of_headline(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    said = re.findall(rf"({NUMBER})(?: points)? in ({'|'.join(OF_HEADLINE)})", found[1])
    assert said
    for value, title in said:
        assert near(value, rows.of_title(title + OF_HEADLINE[title], "sex", rows.drawn.labels[0], 0))


@form(r"No gap between groups is estimable: too few people are behind the rates\.")
def none_estimable(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    titles = [*OF_HEADLINE][:2] if rows.c else [*OF_HEADLINE][2:4] if rows.C else [*OF_HEADLINE][4:]
    every = (rows.of_title(title + OF_HEADLINE[title], "sex", rows.drawn.labels[0], 0) for title in titles)
    assert all(gap is None for gap in every)


@form(r"Left out of equal opportunity, with fewer than (\d+) people of class yes: (.+)\.")
def without_rate(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert int(found[1]) == rows.drawn.least
    assert {*re.split("; |, | and ", found[2])} == {
        name for name in rows.sexes if rows.of_class(name).sum() < rows.drawn.least
    }


@form(r"Not estimable: fewer than (\d+) people are behind the rate in all groups, or in all but one\.")
def not_estimable(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    titles = (
        [*RATES, "equalised odds", "selection ratio"]
        if rows.c
        else ["accuracy gap", "worst recall"]
        if rows.C
        else [*ERRORS]
    )
    assert any(rows.of_title(title, "sex", rows.drawn.labels[0], 0) is None for title in titles)


@form(r"([\d,]+) rows of the frame: intervals are over these people, .+")
def audited(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    assert int(found[1].replace(",", "")) == len(rows.drawn.y)


@form(r"Worse than chance: it is predicted less often for people of class yes than for others \(AUC ([\d.]+) %\)\.")
def worse_than_chance(found: re.Match[str], rows: Rows, _: str, __: str) -> None:
    p, y = rows.drawn.predicted[rows.drawn.labels[0], 0] == 1, rows.drawn.y == 1
    assert near(found[1], 100 * (0.5 + (p[y].mean() - p[~y].mean()) / 2))


def check(drawn: People) -> None:
    rows = Rows(drawn)
    for where, by, text in pages(rows):
        check_text(text, rows, where, by)
    told = drawn.predicted[drawn.labels[0], 0]
    if drawn.person is None and len(rows.sexes) == 2 and (not rows.C or {*told} <= {*drawn.y} > {drawn.y[0]}):
        alone = Rows(
            replace(drawn, predicted={key: p for key, p in drawn.predicted.items() if key == (drawn.labels[0], 0)})
        )
        for where, by, text in of_audit(alone):
            check_text(text, alone, where, by)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(people())
def test_every_sentence_about_people_is_true(drawn: People) -> None:
    check(drawn)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(people())
def test_every_sentence_about_people_of_many_runs_is_true(drawn: People) -> None:
    check(drawn)
