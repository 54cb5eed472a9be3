"""What the columns of a table seem to be: numbers, categories, dates, or nothing to learn from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from equipoise.data.tables.cells import TRUTH, Words, days_of
from equipoise.data.tables.schema import CATEGORY, DATE, EXPONENT, NUMBER, Feature
from equipoise.data.tables.words import grouped_pattern, missing, number_pattern

FEW = 50  # different words that are categories whatever the number of rows
ROWS = 20  # of a category on average and at least, where there are more
MOST = 200  # categories
THOUSANDS = (".", ",", "'", "’", " ", "\u00a0", "\u202f", "_")
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


def infer(name: str, text: Words, declared: str | None = None) -> Feature | str:
    """What a column of text seems to be, or why it is left out.

    Numbers may have a sign between thousands or a comma before their fractions; dates have one form throughout. Up to ``FEW``
    different words are categories; more are if a category has ``ROWS`` rows on average, and then rarer ones are joined.
    ``declared`` is the sign before fractions, where the user gave it.
    """
    counts = {word: n for word, n in text.counts.items() if not missing(word)}
    if not counts:
        return "every cell is missing"
    unit, codes = unit_of([*counts]), any(map(CODE.fullmatch, counts))
    plain = [word.replace(unit, "").strip() for word in counts] if unit else [*counts]
    signs = number_signs(plain, declared)
    if signs and codes and not any(map(ZEROS.match, plain)):
        if not any(map(UNLIKE_CODES.search, plain)):
            return 'numbers with exponents, or codes such as 1E1: give kind = "number" or kind = "category"'
        codes = False
    if signs and not codes:
        if len(signs) > 1:
            what = f'unit = "{unit}", and ' if unit else ""
            return f'numbers whose comma may stand between thousands or before fractions: give {what}thousands = "," or decimal = ","'
        return Feature(name, NUMBER, thousands=signs[0][0], decimal=signs[0][1], unit=unit)
    if {word.casefold() for word in counts} <= {*TRUTH}:
        return Feature(name, NUMBER, low=0, high=1)
    if forms := date_forms([*counts]):
        if len(forms) > 1:
            return f'dates whose day and month cannot be distinguished: give form = "{forms[0]}" or "{forms[1]}"'
        return Feature(name, DATE, form=forms[0])
    present = sum(counts.values())
    if len(counts) == 1 and present == len(text):
        return "the same in every row"
    if 2 * sum(n for word, n in counts.items() if DAY.match(word)) > present:
        form = max(FORMS, key=lambda form: _agreeing([*counts], form))
        if 2 * _agreeing([*counts], form) > len(counts):  # the others are a fault, which reading names
            return Feature(name, DATE, form=form)
        return (
            'dates of several forms, or of a rare one: write them alike, or give their form, such as form = "%d.%m.%y"'
        )
    numeric = sum(n for word, n in counts.items() if DIGITS.fullmatch(word))
    if 2 * numeric >= present and not codes:  # numbers, of which some cells are none: a fault, which reading names
        return Feature(name, NUMBER, decimal=declared or ".")
    if len(counts) <= FEW and 2 * len(counts) <= max(present, 4):
        return Feature(name, CATEGORY)
    if present >= ROWS * len(counts) and sum(n >= ROWS for n in counts.values()) <= MOST:
        return Feature(name, CATEGORY, least=ROWS)
    return f"text, or names of rows: {len(counts):,} different words in {present:,} rows"


def number_signs(words: Sequence[str], declared: str | None = None) -> list[tuple[str, str]]:
    """The signs between thousands and before fractions with which all words are numbers; two where words do not tell."""
    for decimal in (declared or ".", "."):
        if all(re.fullmatch(number_pattern(decimal), word, re.ASCII) for word in words):
            return [("", decimal)]
    if all(re.fullmatch(r"[+-]?\d{1,3}(,\d{3})?", word, re.ASCII) for word in words):
        return [("", ","), (",", ".")]
    if all(re.fullmatch(number_pattern(","), word, re.ASCII) for word in words):
        return [("", ",")]
    for between in THOUSANDS:
        for before in ".,".replace(between, ""):
            if all(re.fullmatch(grouped_pattern(between, before), word, re.ASCII) for word in words):
                return [(between, before)]
    return []


def unit_of(words: Sequence[str]) -> str:
    """The sign of a currency or of percent that every word has once; empty if there is none."""
    signs = [c for c in words[0] if c in "%‰" or unicodedata.category(c) == "Sc"]
    return next((sign for sign in signs if all(word.count(sign) == 1 for word in words)), "")


def _agreeing(words: Sequence[str], form: str) -> int:
    """How many words are dates of a form."""
    return int(np.isfinite(days_of(words, form)).sum())


def date_forms(words: Sequence[str]) -> list[str]:
    """The forms in which all words are dates."""
    first = words[:100]
    if not all(8 <= len(word) <= 30 and re.search(r"\d", word) for word in first):
        return []
    some = [form for form in FORMS if _agreeing(first, form) == len(first)]
    return [form for form in some if _agreeing(words, form) == len(words)]
