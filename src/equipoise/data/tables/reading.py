"""A table's columns as a reader gives them, with the schema that they suggest or that a user wrote."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.precision import counting
from equipoise.data.tables import words as spelling
from equipoise.data.tables.cells import DIGITS_OF_DAY, Cells, Place, Raw, RawTable, Words, days_of, read_cells, word_of
from equipoise.data.tables.checks import odd_zeros
from equipoise.data.tables.columns import MANY, Columns, require_columns
from equipoise.data.tables.options import listed, option
from equipoise.data.tables.schema import CATEGORY, DATE, EXPONENT, NUMBER, Feature, Schema, kind_of, plain
from equipoise.data.tables.words import Signs

SIGNS = ("thousands", "unit")
SIGNS_OF_NOTHING = ("-", "--", "*", ".")  # which may be names
CODES = 10  # different whole numbers that may be codes of categories
INDEX = "it holds nothing but the numbers of the rows"
COUNT = re.compile(r"\s*(0|-?[1-9]\d{0,14})(\.0+)?\s*", re.ASCII)
DECISIVE = {"kind", "thousands", "decimal", "form", "latest", "truth", "categories"}  # options that choose a reading
# what pandas, pyarrow and R call a column without a name
NAMELESS = re.compile(r"(Unnamed: [\d.]+|__index_level_\d+__|\.\.\.\d+)?")
FEW = 50  # different words that are categories whatever the number of rows
ROWS = 20  # of a category on average and at least, where there are more
MOST = 200  # categories
ZEROS_IN_WORDS = ("none", "nil", "NONE")  # which may mean 0
# what seems to be a number
DIGITS = re.compile(r"\(?[+\u2212-]?\d[\d.,'’ _\u00a0\u202f]*(?:[eE][+-]?\d+)?[)-]?|[+-]?\.\d+")
# 007 and 01.11, of which a number would lose the zeros, and 1E1
CODE = re.compile(rf"[+-]?0\d[\d.]*|{EXPONENT}", re.ASCII)
ZEROS = re.compile(r"[+-]?0\d", re.ASCII)
DAY = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2}))(?![\d.])", re.ASCII)
FORMS = (
    "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%d/%m/%Y", "%m/%d/%Y",
    "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d %b %Y", "%d %B %Y", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z",
    "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f%z", "%Y-%m-%dT%H:%M:%S.%f%z",
)  # fmt: skip
LATEST = 2068  # year of two digits, as Python reads them
RawColumns = Mapping[str, Raw]  # of a table, by name
Features = tuple[Feature, ...]  # readings of a column
Signed = tuple[Mapping[str, Sequence[Signs]], str]  # see :func:`signs_in`


def read_raw(
    source: str, names: Sequence[str], raw: RawColumns, options: Columns, at: Place, texts: Signed, counts: Set[str]
) -> tuple[RawTable, list[str], list[str]]:
    """The columns of a table, what is wrong with them, and what is left out and why.

    Parameters
    ----------
    source : what the table is called.
    names, raw : its columns, and those that may become inputs.
    options : what the user said of columns, such as ``schema``, options of :class:`Feature` by name.
    at : the place of a row.
    texts : of columns of text, see :func:`signs_in`.
    counts : columns that count the rows.
    """
    if options.agreed:
        return _agreed(source, raw, options, at)
    features, left, notes, written = [], {}, list[str](), json.loads(options.schema or "{}")
    choices = dict[str, Features]()
    if unused := [name for name in names if name in written and name not in raw]:
        why = f"as no input is made of {'them' if unused[1:] else 'it'}"
        notes.append(f"{source}: {listed(unused)}: options under [columns] are not used, {why}.")
    problems, (signs, shown) = [*_idle(options.keep, raw, counts)], texts
    for name, cells in raw.items():
        guess = Guess(reason=INDEX)
        if name not in counts or name in options.keep:
            guess = infer(name, cells, signs.get(name, ()), shown, options.decimal)
        if not guess.features:
            left[name] = guess.reason
            continue
        fitting, dropped = _fitting(name, guess, written.get(name, {}))
        feature = fitting[0]
        if isinstance(cells, Words):
            notes += [f"{source}: {note}" for note in _doubts(feature, cells, options.not_missing, dropped)]
            feature = _with_names(feature, cells, options.not_missing)
        features.append(feature)
        choices |= {name: fitting} if len(fitting) > 1 else {}
    schema = Schema(tuple(features), left).merged(written)
    several = several_readings(schema, raw)
    schema = schema.merged({name: readings[0].written() for name, readings in several.items()})
    table, wrong = _read(schema, raw, options, at)
    if options.choose:
        others = {name: readings[1:] for name, readings in (choices | several).items()}
        table = replace(table, others=others, examples=examples_of(raw))
    else:
        problems += [question(readings, raw[name]) for name, readings in (choices | several).items()]
    return table, problems + wrong, [*notes, *_reasons(schema.left_out, options.keep, source)]


def _with_names(feature: Feature, cells: Words, names: Sequence[str]) -> Feature:
    """A feature with the categories that usually mark missing cells, and are ``names`` here."""
    words = (word for word in cells.counts if spelling.missing(word) and word in names)
    return replace(feature, not_missing=tuple(words)) if feature.kind == CATEGORY else feature


def _reasons(columns: Mapping[str, str], keep: Sequence[str], source: str) -> Iterator[str]:
    """Why columns are left out: those that count the rows together, and each other one."""
    if counting_rows := [name for name, why in columns.items() if why == INDEX]:
        yield left_out(counting_rows, keep, source, INDEX)
    todo = "To use it: give its kind under [columns] in the file that `equipoise init` writes."
    others = [(name, why) for name, why in columns.items() if why != INDEX]
    yield from (f"{source}: the column {name} is left out: {why}. {todo}" for name, why in others)


def _idle(keep: Sequence[str], raw: RawColumns, counts: Set[str]) -> Iterator[str]:
    """Problems with names under ``keep`` that change nothing."""
    for name in keep:
        if name not in raw or (name not in counts and not NAMELESS.fullmatch(name)):
            why = "has a name, and does not count the rows" if name in raw else "is in leave_out, or not among inputs"
            yield f"column {name}: keep={name} has no effect, as the column {why}. Leave it out."


def _fitting(name: str, guess: Guess, written: Mapping[str, object]) -> tuple[Features, Features]:
    """The readings of a column that fit the options which a user wrote, and those that no option but only other columns exclude."""
    decided = {key: value for key, value in dict(written).items() if key in DECISIVE}
    signs_decided = decided.keys() - {"kind"}
    possible = guess.features + guess.dropped * bool(signs_decided)
    fitting = tuple(f for f in possible if all(getattr(f, key) == value for key, value in decided.items()))
    if fitting:
        return fitting, guess.dropped * (not signs_decided)
    return (Feature(name) if {*SIGNS, "decimal"} & signs_decided else guess.features[0],), ()


def signs_in(raw: RawColumns, options: Columns, text: bool) -> Signed:
    """The readings of each column of text as numbers; and the sign before fractions that the table shows.

    ``text`` : whether the table has no types of its own, so that its numbers were text, too.
    """
    words = {name: cells.texts for name, cells in raw.items() if isinstance(cells, Words)}
    numbers = (cells for cells in raw.values() if text and not isinstance(cells, Words))
    fractions = (options.decimal or ".") * any((cells % 1 > 0).any() for cells in numbers)
    columns = {name: spelling.readings(texts, options.thousands, options.decimal) for name, texts in words.items()}
    shown = spelling.shown_by([(signs, words[name]) for name, signs in columns.items()], fractions)
    return columns, shown


def by_other_columns(feature: Feature, dropped: Sequence[Feature], raw: Words) -> str:
    """That a column of numbers, which alone could be read in other ways, is read as the other columns are."""
    cell, value, *others = ways_of([feature, *dropped], raw)
    ways = ", or ".join(f"{other}: {written_as(reading)}" for other, reading in zip(others, dropped, strict=True))
    return f"column {feature.name}: {cell} is {value}, by the sign before fractions in other columns. If it is {ways}."


def agreed_and_dropped(name: str, signs: Sequence[Signs], shown: str) -> list[Features]:
    """The readings of a column as numbers that agree with the sign that the table shows, and those that do not."""
    agreed = spelling.agreeing(signs, shown)
    parts = agreed, [reading for reading in signs if reading not in agreed]
    return [tuple(Feature(name, NUMBER, **reading.changed()) for reading in part) for part in parts]


def several_readings(schema: Schema, raw: RawColumns) -> dict[str, Features]:
    """By column the readings that are left of its kind, where there are several."""
    text = {feature: raw[feature.name] for feature in schema.features if feature.kind != NUMBER}
    every = {feature.name: readings_of(feature, cells) for feature, cells in text.items() if isinstance(cells, Words)}
    return {name: several for name, several in every.items() if several}


def question(features: Sequence[Feature], raw: Raw, *, role: bool = False) -> str:
    """Why a column needs a choice of the user: what one of its cells is by each reading; of a ``role`` only the table has options."""
    raw = raw if isinstance(raw, Words) else Words.of(map(word_of, raw.tolist()))
    cell, *values = ways_of(features, raw)
    ways = [f"{cell} is {value}: {written_as(feature)}" for value, feature in zip(values, features, strict=True)]
    name, why = features[0].name, "more than one reading is possible"
    written = f"Write one under [columns] in the file that `equipoise init` writes, {key_of(name)} = {{ {written_as(features[0])} }}."
    todo = [written] * (not role)
    if all(feature.kind == NUMBER for feature in features):
        signs = [option("thousands", f.thousands) if f.thousands else option("decimal", f.decimal) for f in features]
        todo.append(f"For all columns: {' or '.join(signs)}.")
    if listed_words := {word for feature in features for word in feature.categories}:
        same = next(words for words in spelling.same_numbers(raw.counts) if listed_words.intersection(words))
        cells = [f"{word!r} in {raw.counts[word]:,} cells" for word in same]
        why += f", as {' and '.join(cells)} are one number"
        todo.append("Or write it in one way in all cells.")
    return f"column {name}: {why}, {', or '.join(ways)}. {' '.join(todo)}"


def ways_of(features: Sequence[Feature], raw: Words) -> list[str]:
    """A cell in quotation marks, and what it is by each reading."""
    words = [*raw.present]
    columns = [(feature, read_cells(feature, Words.from_text(words), str)[0]) for feature in features]
    values = [[show_cell(feature, cells, k) for feature, cells in columns] for k in range(len(words))]
    k = next((k for k, ways in enumerate(values) if len({*ways}) > 1), 0)
    return [repr(words[k]), *values[k]]


def show_cell(feature: Feature, cells: Cells, k: int) -> str:
    """Show a cell of a column as it is read."""
    value = cells.values[k]
    if np.isnan(value) or (cells.words and value < 0):
        return "missing"
    return cells.words[value] if cells.words else day(value) if feature.kind == DATE else f"{value:.12g}"


def written_as(feature: Feature) -> str:
    """A column's options as TOML has them."""
    options = feature.written() | ({"decimal": feature.decimal} if feature.kind == NUMBER and not feature.truth else {})
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in options.items())


def counting_columns(raw: RawColumns) -> set[str]:
    """The names of columns that count the rows: of numbers, or of text, as which all columns are read if one has another cell far below."""
    numbers = {name: cells for name, cells in raw.items() if isinstance(cells, np.ndarray) and cells.dtype.kind != "M"}
    for name, cells in raw.items():
        if isinstance(cells, Words) and len(cells.words) == len(cells) and all(map(COUNT.fullmatch, cells.words)):
            numbers[name] = np.array([*map(float, cells.words)])[cells.codes]
    return {name for name, x in numbers.items() if counting(x[:, None])}


def nameless(names: Sequence[str], keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Columns without a name, or with the one that programs give to an index without a name; and all others, with those of ``keep``."""
    unnamed = {name: None for name in names if NAMELESS.fullmatch(name) and name not in keep}
    return [*unnamed], [name for name in names if name not in unnamed]


def left_out(columns: Sequence[str], before: Sequence[str], source: str, why: str) -> str:
    """A note on columns that are left out, as ``why`` says of each, with the option that puts them back beside those of ``before``."""
    are, features = ("s {} are", "they are features") if len(columns) > 1 else (" {} is", "it is a feature")
    todo = option("keep", [*before, *columns][:MANY])
    return f"{source}: the column{are.format(listed(columns))} left out: {why}. If {features}: {todo}."


def _agreed(source: str, raw: RawColumns, options: Columns, at: Place) -> tuple[RawTable, list[str], list[str]]:
    """The columns that several sites agreed on, wherever they are in this table."""
    schema = Schema.of(json.loads(options.schema))
    require_columns([*raw], schema.names, source, "the schema names")
    table, problems = _read(schema, raw, options, at)
    problems += [question(several, raw[name]) for name, several in several_readings(schema, raw).items()]
    rest = [name for name in raw if name not in {*schema.names, *schema.left_out}]
    return table, problems, [f"{source}: {listed(rest)}: not in the schema, and not used."] * bool(rest)


def _read(schema: Schema, raw: RawColumns, options: Columns, at: Place) -> tuple[RawTable, list[str]]:
    """The cells of all columns of a schema, and what is wrong with them."""
    columns, problems, faulty, few = dict[str, Cells](), list[str](), list[str](), list[str]()
    for feature in schema.features:
        name, cells = feature.name, raw[feature.name]
        columns[name], wrong = read_cells(feature, cells, at)
        problems += wrong
        faulty += [name] * bool(wrong)
        if wrong and feature.kind == NUMBER and not feature.truth and isinstance(cells, Words):
            few += [name] * (len(cells.counts) <= min(CODES, len(cells) // 2))
    if faulty:
        apart = option("leave_out", [*options.leave_out, *faulty][:MANY])
        problems[-1] += f" Correct these cells, or leave the column{'s' * (len(faulty) > 1)} out: {apart}."
    if few and not options.schema:
        kinds = json.dumps({name: {"kind": CATEGORY} for name in few}, ensure_ascii=False)
        problems[-1] += f" If its words are categories: {option('columns', kinds)}."
    return RawTable(schema, columns), problems


def _doubts(feature: Feature, text: Words, names: Sequence[str], dropped: Sequence[Feature]) -> Iterator[str]:
    """Notes on words that mark missing cells and may be ``names`` or 0, on categories that look alike, and on readings that were dropped."""
    lost, advice, pairs = list[str](), "", ""
    if feature.kind == NUMBER:
        lost, advice = sorted({*ZEROS_IN_WORDS} & text.counts.keys()), "0, write 0"
    elif feature.kind == CATEGORY:
        words = (word for word in text.counts if spelling.missing(word) and word not in names)
        lost = [word for word in words if word.isalpha() or word in SIGNS_OF_NOTHING]
        advice = f"a category: {option('not_missing', [*names, *lost])}"
        pairs = listed(f"{first!r} and {other!r}" for first, other in spelling.twins(text.present))
    if lost:
        cells = sum(text.counts[word] for word in lost)
        yield f"column {feature.name}: {listed(map(repr, lost))} in {cells:,} cells marks a missing cell. If it is {advice}."
    if pairs:
        differ = f"{pairs} differ only in capital letters or spaces, and are different categories"
        yield f"column {feature.name}: {differ}. Write them alike if they are the same."
    if dropped:
        yield by_other_columns(feature, dropped, text)


def described(feature: Feature, cells: Cells) -> str:
    """What is in a column, in a line: the range of its numbers, or its most frequent categories; and how many cells are missing."""
    gone, n = int(cells.missing.sum()), len(cells.values)
    if feature.kind == CATEGORY:
        counts = Counter(cells.counts).most_common()
        text = f"{len(counts)} categories: {listed(f'{word} {n:,}' for word, n in counts)}"
    elif gone < n:
        low, high = np.nanmin(cells.values), np.nanmax(cells.values)
        present = cells.values[~cells.missing]
        zeros = odd_zeros(present) if feature.kind == NUMBER else None
        text = f"{day(low)} to {day(high)}" if feature.kind == DATE else f"{low:g} to {high:g}"
        text += f", 0 in {zeros[0]:,} rows and next {zeros[1]:g}: missing? then missing_values = [0]" if zeros else ""
        if (few := len(np.unique(present))) <= CODES and not (present % 1).any():
            text += f', {few} whole numbers: if they are codes, kind = "category"' * (few > 2)
    else:
        text = "nothing"
    return text + f"; {gone:,} missing" * (gone > 0)


def examples_of(raw: RawColumns) -> dict[str, dict[int, str]]:
    """Of columns of text two rows with different cells, as they are written."""
    rows = dict[str, dict[int, str]]()
    for name, cells in raw.items():
        if isinstance(cells, Words):
            present = [k for k in range(len(cells.words)) if not spelling.missing(cells.words[k])][:2]
            rows[name] = {int(np.argmax(cells.codes == k)): cells.words[k].strip() for k in present}
    return rows


def reading_of(feature: Feature, table: RawTable) -> str:
    """Two cells of a column as they are written and as they are read, and what else the column may be."""
    cells = table.columns[feature.name]
    present = np.flatnonzero(~cells.missing)[:2].tolist()
    examples = table.examples.get(feature.name) or {k: f"{cells.values[k]:.12g}" for k in present}

    pairs = ", ".join(f"{word} -> {show_cell(feature, cells, k)}" for k, word in examples.items())
    return pairs + "".join(f", or {written_as(other)}" for other in table.others.get(feature.name, ()))


def day(days: float) -> str:
    """The date of so many days since 1970."""
    return str(np.datetime64(int(days), "D"))


def key_of(name: str) -> str:
    """A column's name as a key of TOML."""
    return name if re.fullmatch(r"[_-]*+[A-Za-z0-9][A-Za-z0-9_-]*", name) else json.dumps(name, ensure_ascii=False)


def signed(schema: str) -> set[str]:
    """The columns of a schema that are read as text: their numbers have signs, 2.000 may be two thousand; or are codes, 1E1."""
    written = {name: options for name, options in json.loads(schema or "{}").items() if isinstance(options, dict)}
    return {name for name, column in written.items() if any(map(column.get, SIGNS)) or kind_of(column) == CATEGORY}


@dataclass(frozen=True)
class Guess:
    """What a column may be: its readings, the likeliest first; none if it is left out, for a reason.

    ``dropped`` are readings against which other columns speak.
    """

    features: Features = ()
    reason: str = ""
    dropped: Features = ()


def infer(name: str, raw: Raw, signs: Sequence[Signs], shown: str, decimal: str | None) -> Guess:
    """What a column seems to be.

    Numbers may have a sign between thousands or a comma before their fractions; dates have one form throughout. Up to ``FEW``
    different words are categories; more are if a category has ``ROWS`` rows on average, and then rarer ones are joined.

    Parameters
    ----------
    name, raw : the column.
    signs, shown : with which all its words are numbers, see :func:`equipoise.data.tables.words.readings`; the sign that the table shows.
    decimal : the sign before fractions, where the user gave it.
    """
    if not isinstance(raw, Words):
        return Guess(_of_typed(name, raw))
    if not (counts := raw.present):
        return Guess(reason="every cell is missing")
    bare, unit = ([*map(signs[0].bare, raw.texts)], signs[0].unit) if signs else (raw.texts, "")
    of_words = any(map(str.isalpha, unit))  # 4 doors, which may be categories, too
    codes = any(map(CODE.fullmatch, bare if of_words else raw.texts))
    forms = date_forms(raw.texts) if of_words or raw.days else []
    if reason := _unlike(raw, forms, unit):
        return Guess(reason=reason)
    numeric = signs and not (of_words and (codes or forms or len(counts) == 1))  # 007A
    if numeric and codes and not any(map(ZEROS.match, bare)):
        if not {*".,+-"} & {*"".join(bare)}:  # which numbers have
            return Guess((Feature(name, unit=unit), *_as_categories(name, raw)))
        codes = False
    if not numeric or codes or raw.days:
        return _of_words(name, raw, codes, decimal)
    return _of_numbers(name, raw, bare, of_words, agreed_and_dropped(name, signs, shown))


def _of_numbers(name: str, raw: Words, bare: Sequence[str], of_words: bool, readings: Sequence[Features]) -> Guess:
    """What a column of text seems to be whose words are numbers: also dates with their digits, or categories."""
    features, dropped = readings
    if len(features) > 1:
        return Guess(features)
    if all(map(str.isdigit, raw.texts)) and _are_days(np.array([*map(float, raw.texts)])):
        return Guess((Feature(name, DATE, form=DIGITS_OF_DAY), *features))
    categories = _as_categories(name, raw) if spelling.respelt(bare) or (of_words and _are_few(raw.present)) else ()
    return Guess((*features, *categories), dropped=dropped)


def _unlike(raw: Words, forms: Sequence[str], unit: str) -> str:
    """Why a column cannot be used of which some cells have a type, and its text is of ``forms`` of dates or has a unit."""
    if raw.days and forms and not forms[0].startswith("%Y"):  # 03/01 became the first of March, and 13/01 stayed
        return "some cells are dates and others text, perhaps day for month: write all as text"
    return f"some cells are numbers and others text with {unit!r}: write them alike" * bool(raw.numbers and unit)


def _of_typed(name: str, raw: NDArray[Any]) -> Features:
    """The readings of a column of dates or numbers."""
    if raw.dtype.kind == "M":
        return (Feature(name, DATE, form=_form_of(raw)),)
    return (*[Feature(name, DATE, form=DIGITS_OF_DAY)] * _are_days(raw), Feature(name))


def _of_words(name: str, raw: Words, codes: bool, decimal: str | None) -> Guess:
    """What a column of text seems to be that has no reading as numbers; ``codes`` are some of its words."""
    counts = raw.present
    present = sum(counts.values())
    if truth := spelling.truth_of(counts):
        number = Feature(name, low=0, high=1, truth=truth)
        return Guess((number, *[Feature(name, CATEGORY)] * (len(truth) > 2)))
    if forms := date_forms(raw.texts):
        return Guess(tuple(Feature(name, DATE, form=form) for form in forms))
    if len(counts) == 1 and present == len(raw):
        return Guess(reason="the same in every row")
    if 2 * sum(n for word, n in counts.items() if DAY.match(word)) > present:
        return _of_dates(name, raw.texts)
    units = spelling.units_of(counts)
    numeric = units.total() + sum(n for word, n in counts.items() if DIGITS.fullmatch(word))
    if 2 * numeric >= present and not codes:  # numbers, of which some cells are none: a fault, which reading names
        unit = max(units, key=units.__getitem__, default="")
        return Guess((Feature(name, decimal=decimal or _usual_decimal(counts), unit=unit),))
    frequent = present >= ROWS * len(counts) and sum(n >= ROWS for n in counts.values()) <= MOST
    few = _are_few(counts)
    if few or frequent:
        return Guess((Feature(name, CATEGORY, least=1 if few else ROWS),))
    return Guess(reason=f"text, or names of rows: {len(counts):,} different words in {present:,} rows")


def _of_dates(name: str, texts: Sequence[str]) -> Guess:
    """What a column is of which most words are dates, and not all of one form."""
    form = max(FORMS, key=lambda form: _agreeing(texts, form))
    if 2 * _agreeing(texts, form) > len(texts):  # the others are a fault, which reading names
        return Guess((Feature(name, DATE, form=form),))
    return Guess(
        reason='dates of several forms, or of a rare one: write them alike, or give their form, such as form = "%d.%m.%y", and of years '
        f"with two digits the last one, such as latest = {date.today().year}"
    )


def _usual_decimal(words: Iterable[str]) -> str:
    """The sign before fractions that more words seem to have."""
    commas = sum(("," in word and "." not in word) - ("." in word) for word in words)
    return "," if commas > 0 else "."


def _are_few(counts: Mapping[str, int]) -> bool:
    """Whether different words are categories whatever the number of rows."""
    return len(counts) <= FEW and 2 * len(counts) <= max(sum(counts.values()), 4)


def readings_of(feature: Feature, raw: Words) -> Features:
    """What the options of dates or categories leave open, the likeliest reading first; nothing if they leave nothing open.

    Years of two digits without a last one may be in two centuries, if some would be in the future. A number that is written in several ways,
    250 and 250.0, may be one category or several, or the whole column numbers, if no categories are listed.
    """
    if "%y" in feature.form and feature.latest is None:
        last = np.nanmax(days_of(raw.texts, feature.form), initial=-np.inf)
        ahead = last > (date.today() - date(1970, 1, 1)).days
        return (replace(feature, latest=date.today().year), replace(feature, latest=LATEST)) if ahead else ()
    if feature.kind != CATEGORY or feature.categories:
        return ()
    present = (word for word in raw.counts if word in feature.not_missing or not spelling.missing(word))
    named = {word: raw.counts[word] for word in present if plain(word) not in feature.missing_values}
    if not (same := spelling.same_numbers(named)):
        return ()
    spelled = set[str]().union(*same)
    together = Counter[str]()
    for word, n in named.items():
        together[plain(word)] += n
    counts = [together] * all(len({*map(plain, words)}) == 1 for words in same) + [Counter(named)]
    lists = [tuple(sorted(word for word in words if words[word] >= feature.least)) for words in counts]
    numbers = [Feature(feature.name)] * all(map(spelling.NUMBER.fullmatch, named))
    return (*(replace(feature, categories=words) for words in lists), *numbers) if spelled & {*sum(lists, ())} else ()


def _as_categories(name: str, raw: Words) -> list[Feature]:
    """The readings of a column as categories."""
    plainly = Feature(name, CATEGORY)
    return [f for f in readings_of(plainly, raw) if f.kind == CATEGORY] or [plainly]


def _are_days(numbers: NDArray[np.float64]) -> bool:
    """Whether all numbers have the digits of a day of the last or this century, 20201231."""
    if len(numbers) and abs(numbers[0] - 20000101) > 1000000:  # of most columns one number is enough
        return False
    present = numbers[~np.isnan(numbers)]
    if len({*present[:FEW].tolist()}) < 2 or present.min() < 19000101 or present.max() > 20991231:
        return False
    months, days = present // 100 % 100, present % 100
    return bool(((present % 1 == 0) & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


def _form_of(dates: NDArray[np.datetime64]) -> str:
    """The form in which typed dates are written: with times if there are any, and parts of seconds."""
    dates = dates[~np.isnat(dates)]
    if (dates == dates.astype("M8[D]")).all():
        return "%Y-%m-%d"
    return "%Y-%m-%d %H:%M:%S" if (dates == dates.astype("M8[s]")).all() else "%Y-%m-%d %H:%M:%S.%f"


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
