"""What the columns of a table seem to be: numbers, categories, dates, or nothing to learn from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
from numpy.typing import NDArray

from equipoise.data.tables.cells import Raw, Words, days_between, days_of
from equipoise.data.tables.schema import CATEGORY, DATE, EXPONENT, NUMBER, Feature
from equipoise.data.tables.signs import Signs, respelt, truth_of
from equipoise.data.tables.words import missing

FEW = 50  # different words that are categories whatever the number of rows
ROWS = 20  # of a category on average and at least, where there are more
MOST = 200  # categories
DIGITS = re.compile(r"[+-]?\d[\d.,'’ _\u00a0\u202f]*(?:[eE][+-]?\d+)?|[+-]?\.\d+")  # what seems to be a number
CODE = re.compile(rf"[+-]?0\d+|{EXPONENT}", re.ASCII)  # 007, of which a number would lose the zeros, and 1E1
UNLIKE_CODES = re.compile(r"[.,+-]")  # what numbers have
ZEROS = re.compile(r"[+-]?0\d", re.ASCII)
DAY = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))(?![\d.])", re.ASCII)
FORMS = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%d/%m/%Y", "%m/%d/%Y"),
    *("%d %b %Y", "%d %B %Y", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z"),
    *("%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f%z", "%Y-%m-%dT%H:%M:%S.%f%z"),
)
DIGITS_OF_DAY = "%Y%m%d"
LATEST = 2068  # year of two digits, as Python reads them


@dataclass(frozen=True)
class Guess:
    """What a column may be: its readings, the likeliest first; none if it is left out, for a reason."""

    features: tuple[Feature, ...] = ()
    reason: str = ""


def infer(name: str, raw: Raw, signs: Sequence[Signs] = (), decimal: str | None = None) -> Guess:
    """What a column seems to be.

    Numbers may have a sign between thousands or a comma before their fractions; dates have one form throughout. Up to ``FEW``
    different words are categories; more are if a category has ``ROWS`` rows on average, and then rarer ones are joined.

    Parameters
    ----------
    name, raw : the column.
    signs : with which all its words are numbers, see :func:`equipoise.data.tables.signs.readings`.
    decimal : the sign before fractions, where the user gave it.
    """
    if not isinstance(raw, Words):
        if raw.dtype.kind == "M":
            return Guess((Feature(name, DATE, form=_form_of(raw)),))
        number = Feature(name, NUMBER)
        return Guess((Feature(name, DATE, form=DIGITS_OF_DAY), number) if _are_days(raw) else (number,))
    counts, texts = {word: n for word, n in raw.counts.items() if not missing(word)}, raw.texts
    if not counts:
        return Guess(reason="every cell is missing")
    bare = [*map(signs[0].bare, texts)] if signs else texts
    codes = any(map(CODE.fullmatch, texts))
    if signs and codes and not any(map(ZEROS.match, bare)):
        if not any(map(UNLIKE_CODES.search, bare)):
            return Guess((Feature(name, NUMBER, unit=signs[0].unit), Feature(name, CATEGORY)))
        codes = False
    if signs and not codes and not raw.days:
        features = tuple(
            Feature(name, NUMBER, thousands=each.thousands, decimal=each.decimal, unit=each.unit) for each in signs
        )
        return Guess((*features, Feature(name, CATEGORY)) if len(features) == 1 and respelt(bare) else features)
    if truth := truth_of(counts):
        number = Feature(name, NUMBER, low=0, high=1, truth=truth)
        return Guess((number, Feature(name, CATEGORY)) if len(truth) > 2 else (number,))
    if forms := date_forms(texts):
        return Guess(tuple(Feature(name, DATE, form=form) for form in forms))
    present = sum(counts.values())
    if len(counts) == 1 and present == len(raw):
        return Guess(reason="the same in every row")
    if 2 * sum(n for word, n in counts.items() if DAY.match(word)) > present:
        form = max(FORMS, key=lambda form: _agreeing(texts, form))
        if 2 * _agreeing(texts, form) > len(texts):  # the others are a fault, which reading names
            return Guess((Feature(name, DATE, form=form),))
        return Guess(
            reason='dates of several forms, or of a rare one: write them alike, or give their form, such as form = "%d.%m.%y", and of years '
            f"with two digits the last one, such as latest = {date.today().year}"
        )
    numeric = sum(n for word, n in counts.items() if DIGITS.fullmatch(word))
    if 2 * numeric >= present and not codes:  # numbers, of which some cells are none: a fault, which reading names
        return Guess((Feature(name, NUMBER, decimal=decimal or "."),))
    if len(counts) <= FEW and 2 * len(counts) <= max(present, 4):
        return Guess((Feature(name, CATEGORY),))
    if present >= ROWS * len(counts) and sum(n >= ROWS for n in counts.values()) <= MOST:
        return Guess((Feature(name, CATEGORY, least=ROWS),))
    return Guess(reason=f"text, or names of rows: {len(counts):,} different words in {present:,} rows")


def centuries(feature: Feature, words: Sequence[str]) -> tuple[Feature, ...]:
    """The readings of dates: of years with two digits without a last one two, if some would be in the future."""
    if "%y" not in feature.form or feature.latest is not None:
        return (feature,)
    today = date.today()
    ahead = np.nanmax(days_of(words, feature.form), initial=-np.inf) > (today - date(1970, 1, 1)).days
    return tuple(replace(feature, latest=year) for year in (today.year, LATEST)) if ahead else (feature,)


def _are_days(numbers: NDArray[np.float64]) -> bool:
    """Whether all numbers have the digits of a day of the last or this century, 20201231."""
    present = numbers[~np.isnan(numbers)]
    if len({*present[:FEW].tolist()}) < 2 or present.min() < 19000101 or present.max() > 20991231:
        return False
    months, days = present // 100 % 100, present % 100
    return bool(((present % 1 == 0) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def _form_of(dates: NDArray[np.datetime64]) -> str:
    """The form in which typed dates are written: with times if there are any, and parts of seconds."""
    days = days_between(dates)
    if not (days % 1 > 0).any():
        return "%Y-%m-%d"
    whole = dates == dates.astype("M8[s]")
    return "%Y-%m-%d %H:%M:%S" if whole[~np.isnat(dates)].all() else "%Y-%m-%d %H:%M:%S.%f"


def _agreeing(words: Sequence[str], form: str) -> int:
    """How many words are dates of a form."""
    return int(np.isfinite(days_of(words, form)).sum())


def date_forms(words: Sequence[str]) -> list[str]:
    """The forms in which all words are dates."""
    first = words[:100]
    if not words or not all(8 <= len(word) <= 30 and re.search(r"\d", word) for word in first):
        return []
    days = {form: days_of(words, form) for form in FORMS if _agreeing(first, form) == len(first)}
    different = {values.tobytes(): form for form, values in reversed(days.items()) if np.isfinite(values).all()}
    return [form for form in days if form in different.values()]
