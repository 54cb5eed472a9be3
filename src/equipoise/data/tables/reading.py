"""A table's columns as a reader gives them, with the schema that they suggest or that a user wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from equipoise.data.tables.cells import Cells, Place, Raw, RawTable, Words, days_of, read_cells, word_of
from equipoise.data.tables.checks import odd_zeros
from equipoise.data.tables.columns import MANY, Columns, listed, option, require_columns
from equipoise.data.tables.inference import Guess, centuries, infer
from equipoise.data.tables.numbers import LEAST, counting
from equipoise.data.tables.schema import CATEGORY, DATE, NUMBER, Feature, Schema
from equipoise.data.tables.signs import Signs, agreeing, readings, shown_by
from equipoise.data.tables.words import missing, twins

SIGNS = ("thousands", "unit")
SIGNS_OF_NOTHING = ("-", "--", "*", ".")  # which may be names
CODES = 10  # different whole numbers that may be codes of categories
INDEX = "it holds nothing but the numbers of the rows"
COUNT = re.compile(r"\s*(0|-?[1-9]\d{0,14})(\.0+)?\s*", re.ASCII)
DECISIVE = {"kind", "thousands", "decimal", "form", "latest", "truth", "categories"}  # options that choose a reading
# what pandas, pyarrow and R call a column without a name
NAMELESS = re.compile(r"(Unnamed: [\d.]+|__index_level_\d+__|\.\.\.\d+)?")


def read_raw(
    source: str,
    raw: Mapping[str, Raw],
    options: Columns,
    at: Place,
    signs: Mapping[str, Sequence[Signs]],
    counts: Set[str],
    apart: Sequence[str] = (),
) -> tuple[RawTable, list[str], list[str]]:
    """The columns of a table, what is wrong with them, and what is left out and why.

    Parameters
    ----------
    source : what the table is called.
    raw : its columns, without those that have another purpose.
    options : what the user said of columns, such as ``schema``, options of :class:`Feature` by name.
    at : the place of a row.
    signs : the readings of columns of text as numbers.
    counts : columns that count the rows.
    apart : columns of the table that are no inputs, whatever options say of them.
    """
    if options.agreed:
        return _agreed(source, raw, options, at)
    features, left, notes, written = [], {}, list[str](), json.loads(options.schema or "{}")
    if unused := [name for name in apart if name in written]:
        notes.append(
            f"{source}: {listed(unused)}: options under [columns] are not used, as no input is made of {'them' if unused[1:] else 'it'}."
        )
        written = {name: column for name, column in written.items() if name not in unused}
    others, problems = dict[str, tuple[Feature, ...]](), list[str]()
    for name in options.keep:
        if name not in raw or (name not in counts and not NAMELESS.fullmatch(name)):
            why = "has a name, and does not count the rows" if name in raw else "is in leave_out, or not among inputs"
            problems.append(f"column {name}: keep={name} has no effect, as the column {why}. Leave it out.")
    counts = counts - {*options.keep}
    for name, cells in raw.items():
        guess = Guess(reason=INDEX) if name in counts else infer(name, cells, signs.get(name, ()), options.decimal)
        if not guess.features:
            left[name] = guess.reason
            continue
        decided = {key: value for key, value in dict(written.get(name, {})).items() if key in DECISIVE}
        fitting = [
            f
            for f in guess.features
            if all(getattr(f, key) == value for key, value in decided.items() if key != "kind")
        ]
        feature = (fitting or guess.features)[0]
        if isinstance(cells, Words) and feature.kind == CATEGORY:
            feature, said = _named(source, feature, cells, options.not_missing)
            notes += said
        features.append(feature)
        if (
            isinstance(cells, Words)
            and len(guess.features) == 1
            and feature.kind == NUMBER
            and not decided
            and not feature.truth
        ):
            notes += other_readings(source, feature, cells, options)
        if len(guess.features) > 1 and not decided:
            others[name] = guess.features[1:]
            problems += [question(guess.features, cells)] * (not options.choose)
    schema = Schema(tuple(features), left).merged(written)
    for feature in schema.features:
        cells = raw[feature.name]
        if "%y" in feature.form and isinstance(cells, Words) and len(dated := centuries(feature, cells.texts)) > 1:
            problems.append(question(dated, cells))
    table, wrong = _read(schema, raw, options, at)
    table = replace(table, others=others, examples=examples_of(raw) if options.choose else {})
    return table, problems + wrong, notes + notes_of(source, schema, options.keep)


def signs_in(raw: Mapping[str, Raw], options: Columns, text: bool) -> tuple[dict[str, list[Signs]], str]:
    """The readings of columns as numbers, which agree with each other; and the sign before fractions that the table shows.

    ``text`` : whether the table has no types of its own, so that its numbers were text, too.
    """
    words = {name: cells.texts for name, cells in raw.items() if isinstance(cells, Words)}
    numbers = (cells for cells in raw.values() if text and not isinstance(cells, Words))
    fractions = (options.decimal or ".") * any((cells % 1 != 0).any() for cells in numbers)
    columns = {name: readings(texts, options.thousands, options.decimal) for name, texts in words.items()}
    shown = shown_by([(signs, words[name]) for name, signs in columns.items()], fractions)
    return {name: agreeing(signs, shown) for name, signs in columns.items()}, shown


def other_readings(source: str, feature: Feature, raw: Words, options: Columns) -> list[str]:
    """A note on a column of numbers which alone could be read in two ways, and was read as the other columns are."""
    signs = readings(raw.texts, options.thousands, options.decimal)
    if len(signs) < 2:
        return []
    every = [Feature(feature.name, NUMBER, **each.changed()) for each in signs]
    chosen, *others = sorted(every, key=lambda each: each.decimal != feature.decimal)
    said, *possible = ways_of([chosen, *others], raw)
    ways = ", or ".join(
        f"{way.split(' is ')[1]}: {written_as(each)}" for way, each in zip(possible, others, strict=True)
    )
    return [f"{source}: column {feature.name}: {said}, by the sign before fractions in other columns. If it is {ways}."]


def question(features: Sequence[Feature], raw: Raw, *, role: bool = False) -> str:
    """Why a column needs a choice of the user: what one of its cells is by each reading; of a ``role`` only the table has options."""
    raw = raw if isinstance(raw, Words) else Words.of(map(word_of, raw.tolist()))
    ways = [f"{way}: {written_as(feature)}" for way, feature in zip(ways_of(features, raw), features, strict=True)]
    name, todo = features[0].name, []
    if not role:
        todo = [
            f"Write one under [columns] in the file that `equipoise init` writes, {key_of(name)} = {{ {written_as(features[0])} }}."
        ]
    if all(feature.kind == NUMBER for feature in features):
        signs = [option("thousands", f.thousands) if f.thousands else option("decimal", f.decimal) for f in features]
        todo.append(f"For all columns: {' or '.join(signs)}.")
    return f"column {name}: more than one reading is possible, {', or '.join(ways)}. {' '.join(todo)}"


def ways_of(features: Sequence[Feature], raw: Words) -> list[str]:
    """A cell, the same for all readings, and what it is by each."""

    def values(words: Sequence[str], feature: Feature) -> list[str]:
        if feature.kind == CATEGORY:
            return [*words]
        if feature.kind == DATE:
            return [day(days) for days in days_of(words, feature.form, feature.latest)]
        signs, truth = Signs(feature.thousands, feature.decimal, feature.unit), [*map(str.casefold, feature.truth)]
        return [
            str(truth.index(word.casefold()) % 2) if word.casefold() in truth else f"{signs.number(word):.12g}"
            for word in words
        ]

    words = raw.texts
    read = [values(words, feature) for feature in features]
    k = next((k for k in range(len(words)) if len({each[k] for each in read}) > 1), 0)
    return [f"{words[k]!r} is {each[k]}" for each in read]


def written_as(feature: Feature) -> str:
    """A column's options as TOML has them."""
    options = feature.written() | ({"decimal": feature.decimal} if feature.kind == NUMBER and not feature.truth else {})
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in options.items())


def counting_columns(raw: Mapping[str, Raw]) -> set[str]:
    """The names of columns that count the rows: of numbers, or of text, as which all columns are read if one has another cell far below."""
    numbers = {name: cells for name, cells in raw.items() if isinstance(cells, np.ndarray) and cells.dtype.kind != "M"}
    for name, cells in raw.items():
        if isinstance(cells, Words) and len(cells.words) == len(cells) and all(map(COUNT.fullmatch, cells.words)):
            numbers[name] = np.array([*map(float, cells.words)])[cells.codes]
    return {
        name
        for name, x in numbers.items()
        if len(x) >= LEAST and abs(x[-1] - x[0]) == len(x) - 1 and counting(x[:, None])
    }


def nameless(names: Sequence[str], keep: Sequence[str]) -> tuple[list[str], list[str]]:
    """Columns without a name, or with the one that programs give to an index without a name; and all others, with those of ``keep``."""
    unnamed = {name: None for name in names if NAMELESS.fullmatch(name) and name not in keep}
    return [*unnamed], [name for name in names if name not in unnamed]


def left_out(columns: Sequence[str], before: Sequence[str], source: str, why: str) -> str:
    """A note on columns that are left out, as ``why`` says of each, with the option that puts them back beside those of ``before``."""
    s = "s" * (len(columns) > 1)
    return (
        f"{source}: the column{s} {listed(columns)} {'are' if s else 'is'} left out: {why}. "
        f"If {'they are features' if s else 'it is a feature'}: {option('keep', [*before, *columns][:MANY])}."
    )


def _agreed(source: str, raw: Mapping[str, Raw], options: Columns, at: Place) -> tuple[RawTable, list[str], list[str]]:
    """The columns that several sites agreed on, wherever they are in this table."""
    schema = Schema.of(json.loads(options.schema))
    require_columns([*raw], schema.names, source, "the schema names")
    table, problems = _read(schema, raw, options, at)
    if rest := [name for name in raw if name not in {*schema.names, *schema.left_out}]:
        return table, problems, [f"{source}: {listed(rest)}: not in the schema, and not used."]
    return table, problems, []


def _read(schema: Schema, raw: Mapping[str, Raw], options: Columns, at: Place) -> tuple[RawTable, list[str]]:
    """The cells of all columns of a schema, and what is wrong with them."""
    columns, problems = {}, list[str]()
    faulty = []
    for feature in schema.features:
        columns[feature.name], wrong = read_cells(feature, raw[feature.name], at)
        problems += wrong
        faulty += [feature.name] * bool(wrong)
    if faulty:
        s = "s" * (len(faulty) > 1)
        problems[-1] += (
            f" Correct these cells, or leave the column{s} out: {option('leave_out', [*options.leave_out, *faulty][:MANY])}."
        )
    numbers = [f.name for f in schema.features if f.name in faulty and f.kind == NUMBER and not f.truth]
    few = [
        name
        for name in numbers
        if isinstance(cells := raw[name], Words) and len(cells.counts) <= min(CODES, len(cells) // 2)
    ]
    if few and not options.schema:
        kinds = json.dumps({name: {"kind": CATEGORY} for name in few}, ensure_ascii=False)
        problems[-1] += f" If its words are categories: {option('columns', kinds)}."
    return RawTable(schema, columns), problems


def _named(source: str, feature: Feature, text: Words, names: Sequence[str]) -> tuple[Feature, list[str]]:
    """A column of categories with those of ``names`` that usually mark missing cells, and notes on words with two meanings."""
    words = [word for word in text.counts if missing(word)]
    kept = tuple(word for word in words if word in names)
    notes = []
    if lost := [word for word in words if (word.isalpha() or word in SIGNS_OF_NOTHING) and word not in names]:
        cells = sum(text.counts[word] for word in lost)
        notes.append(
            f"{source}: column {feature.name}: {listed(map(repr, lost))} in {cells:,} cells marks a missing cell. "
            f"If it is a category: {option('not_missing', [*names, *lost])}."
        )
    if same := [*twins(word for word in text.counts if not missing(word))]:
        pairs = listed(f"{first!r} and {other!r}" for first, other in same)
        notes.append(
            f"{source}: column {feature.name}: {pairs} differ only in capital letters or spaces, and are different categories. "
            "Write them alike if they are the same."
        )
    return replace(feature, not_missing=kept), notes


def notes_of(source: str, schema: Schema, keep: Sequence[str]) -> list[str]:
    """Sentences on the columns that are left out, and how to put them back."""
    counts = [name for name, why in schema.left_out.items() if why == INDEX]
    notes = [left_out(counts, keep, source, INDEX)] if counts else []
    return notes + [
        f"{source}: the column {name} is left out: {why}. To use it: give its kind under [columns] in the file that `equipoise init` writes."
        for name, why in schema.left_out.items()
        if why != INDEX
    ]


def described(feature: Feature, cells: Cells) -> str:
    """What is in a column, in a line: the range of its numbers, or its most frequent categories; and how many cells are missing."""
    gone, n = int(cells.missing.sum()), len(cells.values)
    if feature.kind == CATEGORY:
        counts = np.bincount(cells.values[cells.values >= 0], minlength=len(cells.words))
        order = np.argsort(-counts, kind="stable").tolist()
        said = f"{len(cells.words)} categories: {listed(f'{cells.words[k]} {counts[k]:,}' for k in order)}"
    elif gone < n:
        low, high = np.nanmin(cells.values), np.nanmax(cells.values)
        present = cells.values[~cells.missing]
        zeros = odd_zeros(present) if feature.kind == NUMBER else None
        said = f"{day(low)} to {day(high)}" if feature.kind == DATE else f"{low:g} to {high:g}"
        said += f", 0 in {zeros[0]:,} rows and next {zeros[1]:g}: missing? then missing_values = [0]" if zeros else ""
        if (few := len(np.unique(present))) <= CODES and not (present % 1).any():
            said += f', {few} whole numbers: if they are codes, kind = "category"' * (few > 2)
    else:
        said = "nothing"
    return said + f"; {gone:,} missing" * (gone > 0)


def examples_of(raw: Mapping[str, Raw]) -> dict[str, dict[int, str]]:
    """Of columns of text two rows with different cells, as they are written."""
    rows = dict[str, dict[int, str]]()
    for name, cells in raw.items():
        if isinstance(cells, Words):
            present = [k for k in range(len(cells.words)) if not missing(cells.words[k])][:2]
            rows[name] = {int(np.argmax(cells.codes == k)): cells.words[k].strip() for k in present}
    return rows


def reading_of(feature: Feature, table: RawTable) -> str:
    """Two cells of a column as they are written and as they are read, and what else the column may be."""
    cells = table.columns[feature.name]
    present = np.flatnonzero(~cells.missing)[:2].tolist()
    examples = table.examples.get(feature.name) or {k: f"{cells.values[k]:.12g}" for k in present}

    def read(k: int) -> str:
        value = cells.values[k]
        if cells.missing[k]:
            return "missing"
        return cells.words[value] if cells.words else day(value) if feature.kind == DATE else f"{value:.12g}"

    shown = ", ".join(f"{word} -> {read(k)}" for k, word in examples.items())
    return shown + "".join(f", or {written_as(other)}" for other in table.others.get(feature.name, ()))


def day(days: float) -> str:
    """The date of so many days since 1970."""
    return str(np.datetime64(int(days), "D"))


def key_of(name: str) -> str:
    """A column's name as a key of TOML."""
    return (
        name if re.fullmatch(r"[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*", name) else json.dumps(name, ensure_ascii=False)
    )


def signed(schema: str) -> set[str]:
    """The columns of a schema that are read as text: their numbers have signs, 2.000 may be two thousand; or are codes, 1E1."""
    written = {name: options for name, options in json.loads(schema or "{}").items() if isinstance(options, dict)}
    return {name for name, column in written.items() if any(map(column.get, SIGNS)) or column.get("kind") == CATEGORY}
