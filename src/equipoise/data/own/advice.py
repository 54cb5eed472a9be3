"""What to do with columns that do not hold a number in every row: purposes, one line of pandas, or leaving them out."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.data.own.columns import MANY, Columns, listed, option
from equipoise.data.own.words import COMMAS, missing, number_pattern
from equipoise.system.suggestions import some

THOUSANDS = (".", ",", "'", "’", " ", "\u00a0", "\u202f", "_")
CLASSES = {"class", "target", "outcome", "diagnosis", "y"}  # what the column of the class is called
DESCRIBED = 10  # columns whose cells are described
PURPOSES = {
    "label": "if it is the class",
    "client": "if it names the owner of the rows (a hospital, a device)",
    "group": "if it is a group of people, between which fairness is measured",
}


@dataclass(frozen=True)
class Script:
    """How pandas reads a table with its cells as text, and writes it to ``path``; whether its decimal sign can be declared."""

    read: str
    write: str
    path: str
    decimal: bool = False


def refusal(
    wrong: Mapping[str, str],
    cells: Mapping[str, Sequence[Any]],
    columns: Columns,
    names: Sequence[str],
    used: Mapping[str, object],
    script: Script | None,
    points: bool = True,
) -> str:
    """A list of the columns that do not hold a number in every row, and of what to do.

    Parameters
    ----------
    wrong : the fault of each, by name.
    cells : those of the first of them.
    columns : the user's options of the columns.
    names : of all columns of the table.
    used : the purposes that have a column.
    script : for one line of pandas; None without a file.
    points : whether other columns have fractions, with a point.
    """
    words = {name: _words(every) for name, every in cells.items()}
    signs = {name: _signs(every, columns.decimal or ".") for name, every in words.items()}
    commas = [
        name
        for name, every in words.items()
        if any("," in word for word in every) and all(map(COMMAS.fullmatch, filter(_given, every)))
    ]
    declared = script is not None and script.decimal and columns.decimal != ","
    if declared and not points and any(signs[name] == ("", ",") for name in commas):
        return _decimal_commas(commas, [name for name in words if name in wrong])
    few = _few(words, signs)
    advice = []
    if commas and declared:
        advice.append(
            f"If a comma is before the digits of fractions: {option('decimal', ',')}; if it is between thousands, remove it."
        )
    advice += [*_thousands(signs), *_purposes(few, words, used)]
    kept = None if "label" in used else _class(few, names)
    named = "label" in used or any(name.casefold() in CLASSES for name in few)
    if len(few) > 1 and not named:  # any of these may be the class, which is no feature
        advice.append("Name the label first; advice about the other columns follows then.")
    elif others := [name for name in wrong if name != kept]:
        advice += [_left_out(others, wrong, kept, columns), *_line(others, signs, few, columns, script)]
    return "\n".join([*_expected(wrong), *(f"- {text}" for text in advice)])


def _words(cells: Sequence[object]) -> list[str]:
    """Cells as text without blanks around it."""
    return ["" if cell is None else str(cell).strip() for cell in cells]


def _given(word: str) -> bool:
    return not missing(word)


def _decimal_commas(commas: Sequence[str], wrong: Sequence[str]) -> str:
    """What to do with fractions that are written with a comma, in some of the columns that are wrong."""
    rest = [name for name in wrong if name not in commas]
    more = f" Other cells, too, are no numbers in {listed(rest)}: advice about them follows then." * bool(rest)
    return f"a comma is before the digits of fractions in {listed(commas)}. Declare it: {option('decimal', ',')}.{more}"


def _few(words: Mapping[str, Sequence[str]], signs: Mapping[str, tuple[str, str] | None]) -> dict[str, int]:
    """How many different words the columns have that may name classes, clients or groups."""
    different = {name: len({*every}) for name, every in words.items() if signs[name] is None}
    return {name: n for name, n in different.items() if 1 < n <= min(MANY, len(words[name]) // 2)}


def _expected(wrong: Mapping[str, str]) -> list[str]:
    """What was expected of columns, and lines with the fault of each."""
    have = "s have" if len(wrong) > 1 else " has"
    each = [f"  {name}: {wrong[name]}" for name in [*wrong][:DESCRIBED]]
    more = [f"  and {len(wrong) - DESCRIBED:,} columns more"] * (len(wrong) > DESCRIBED)
    what = (
        f"expected a number in every row of a column without another purpose; {len(wrong):,} column{have} other cells:"
    )
    return [what, *each, *more]


def _thousands(signs: Mapping[str, tuple[str, str] | None]) -> list[str]:
    """What stands between thousands, and in which columns."""
    columns: dict[str, list[str]] = {}
    for name, pair in signs.items():
        if pair and pair[0]:
            columns.setdefault(pair[0], []).append(name)
    return [
        f"In {listed(which)} the sign {between!r} is between thousands: remove it."
        for between, which in columns.items()
    ]


def _purposes(few: Mapping[str, int], words: Mapping[str, Sequence[str]], used: Mapping[str, object]) -> list[str]:
    """Purposes that are free, for columns of few different words, none of which is missing."""
    few = {name: n for name, n in few.items() if not any(map(missing, words[name]))}
    purposes = [f"{option(role, 'COLUMN')} {why}" for role, why in PURPOSES.items() if role not in used]
    if not few or not purposes:
        return []
    which = some([f"{name} ({n})" for name, n in few.items()])
    return [f"Few different words: {which}. Name a purpose: {'; '.join(purposes)}."]


def _class(few: Mapping[str, int], names: Sequence[str]) -> str | None:
    """The column of few words that may be the class: by its name, or the last or the first one."""
    named = [name for name in few if name.casefold() in CLASSES]
    return next((name for name in (*named, *names[-1:], *names[:1]) if name in few), None)


def _left_out(others: Sequence[str], wrong: Mapping[str, str], kept: str | None, columns: Columns) -> str:
    """How to leave out the others of the columns that are wrong than the one that is kept."""
    how = option("leave_out", [*columns.leave_out, *others][:MANY])
    if len(wrong) > MANY:
        how = "leave_out = [...] in a configuration, which equipoise init writes"
    but = f" ({kept} not, which may be the class)" if len(others) < len(wrong) else ""
    return f"Leave the column{'s' * (len(others) > 1)} out{but}: {how}; or correct these cells."


def _signs(words: Sequence[str], decimal: str) -> tuple[str, str] | None:
    """The signs between thousands and before fractions with which all words but missing ones are numbers; None if there are none."""
    words = [*filter(_given, words)]
    if not words:
        return None
    if all(re.fullmatch(number_pattern(decimal), word, re.ASCII) for word in words):
        return "", decimal
    if all(COMMAS.fullmatch(word) for word in words):  # thousands, perhaps
        return None if all(re.fullmatch(r"[+-]?\d{1,3}(,\d{3})?", word, re.ASCII) for word in words) else ("", ",")
    for between in THOUSANDS:
        for before in ".,".replace(between, ""):
            grouped = rf"[+-]?(\d+|\d{{1,3}}({re.escape(between)}\d{{3}})+)({re.escape(before)}\d+)?"
            if all(re.fullmatch(grouped, word, re.ASCII) for word in words):
                return between, before
    return None


def _line(
    others: Sequence[str],
    signs: Mapping[str, tuple[str, str] | None],
    few: Mapping[str, int],
    columns: Columns,
    script: Script | None,
) -> list[str]:
    """One line of pandas, which makes these columns numbers, and how to go on with what it writes."""
    text = [name for name in others if name in few]
    written: dict[tuple[str, str], list[str]] = {}
    for name in others:
        if pair := signs.get(name):
            written.setdefault(pair, []).append(name)
    if not text and not written:
        return []
    how = "Or make numbers of them, of gaps the median of their column, and of text a column for each word"
    if script is None:
        return [f"{how} (pandas: fillna, get_dummies), and give the result as a table."]
    steps = ["import pandas as pd", f"t = {script.read}"]
    for (between, before), every in written.items():
        plain = f'.str.replace({_quoted(between)}, "")' * bool(between) + f'.str.replace({_quoted(before)}, ".")' * (
            before != "."
        )
        steps += [
            f"n = {_quoted(every)}",
            f't[n] = t[n].apply(lambda c: pd.to_numeric(c.astype(str){plain}, errors="coerce"))',
            "t[n] = t[n].fillna(t[n].median())",
        ]
    if text:
        steps.append(f"t = t.join(pd.get_dummies(t[{_quoted(text)}], dtype=int))")
    left = [*columns.leave_out, *(name for name in others if not signs.get(name))]
    further = f" {option('leave_out', left[:MANY])}" if left else ""
    code = "; ".join([*steps, script.write])
    return [f"{how}; then continue with --data {shlex.quote(script.path)}{further}\n\npython -c {shlex.quote(code)}\n"]


def _quoted(value: str | Sequence[str]) -> str:
    return json.dumps(value, ensure_ascii=False)
