"""What the columns of a table seem to be: numbers, categories, dates, or nothing to learn from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from equipoise.data.own.words import missing, number_pattern
from equipoise.data.schema.cells import TRUTH, Words
from equipoise.data.schema.schema import CATEGORY, DATE, NUMBER, Feature

FEW = 50  # different words that are categories whatever the number of rows
ROWS = 20  # of a category on average and at least, where there are more
MOST = 200  # categories
THOUSANDS = (".", ",", "'", "’", " ", "\u00a0", "\u202f", "_")
DIGITS = re.compile(r"[+-]?\d[\d.,'’ _\u00a0\u202f]*(?:[eE][+-]?\d+)?|[+-]?\.\d+")  # what seems to be a number
FORMS = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%d/%m/%Y", "%m/%d/%Y"),
    *("%d %b %Y", "%d %B %Y", "%Y-%m-%dT%H:%M:%SZ"),
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
    if signs := number_signs([*counts], declared):
        if len(signs) > 1:
            return 'numbers whose comma may stand between thousands or before fractions: give thousands = "," or decimal = ","'
        return Feature(name, NUMBER, thousands=signs[0][0], decimal=signs[0][1])
    if {word.casefold() for word in counts} <= {*TRUTH}:
        return Feature(name, NUMBER)
    if forms := date_forms([*counts]):
        if len(forms) > 1:
            return f'dates whose day and month cannot be distinguished: give form = "{forms[0]}" or "{forms[1]}"'
        return Feature(name, DATE, form=forms[0])
    present = sum(counts.values())
    if len(counts) == 1 and present == len(text):
        return "the same in every row"
    numeric = sum(n for word, n in counts.items() if DIGITS.fullmatch(word))
    if 2 * numeric >= present:  # numbers, of which some cells are none: a fault, which reading names
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
            grouped = rf"[+-]?(\d+|\d{{1,3}}({re.escape(between)}\d{{3}})+)({re.escape(before)}\d+)?"
            if all(re.fullmatch(grouped, word, re.ASCII) for word in words):
                return [(between, before)]
    return []


def date_forms(words: Sequence[str]) -> list[str]:
    """The forms in which all words are dates."""
    import pandas as pd

    if not all(8 <= len(word) <= 30 and re.search(r"\d", word) for word in words[:100]):
        return []
    first = pd.Series(list(words[:100]), dtype=object)
    some = [form for form in FORMS if pd.to_datetime(first, format=form, errors="coerce").notna().all()]
    every = pd.Series(list(words), dtype=object)
    return [form for form in some if pd.to_datetime(every, format=form, errors="coerce").notna().all()]
