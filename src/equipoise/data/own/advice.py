"""What to do with columns that do not hold a number in every row: purposes, one line of pandas, or leaving them out."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.data.own.columns import MANY, Columns, listed, option
from equipoise.data.own.words import COMMAS, missing, number_pattern

THOUSANDS = (".", ",", "'", "’", " ", "\u00a0", "\u202f", "_")
CLASSES = {"class", "target", "outcome", "diagnosis", "y"}  # what the column of the class is called
DESCRIBED = 10  # columns whose cells are described
PURPOSES = {
    "label": "if it is the class",
    "client": "if it says whose the rows are (a hospital, a device)",
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
    """Sentences about columns that do not hold a number in every row, and what to do.

    Parameters
    ----------
    wrong : what is wrong with each, by name.
    cells : those of the first of them.
    columns : what the user said of the columns.
    names : of all columns of the table.
    used : the purposes that have a column.
    script : for one line of pandas; None where there is no file.
    points : whether other columns have fractions, so with a point.
    """
    words = {name: ["" if cell is None else str(cell).strip() for cell in every] for name, every in cells.items()}
    signs = {
        name: _signs([word for word in every if not missing(word)], columns.decimal or ".")
        for name, every in words.items()
    }
    declared = script is not None and script.decimal and columns.decimal != ","
    commas = [name for name, every in words.items() if all(missing(word) or COMMAS.fullmatch(word) for word in every)]
    if declared and not points and any(signs[name] == ("", ",") for name in commas):
        rest = [name for name in wrong if name not in commas and name in words]
        return (
            f"a comma stands before the digits of fractions in {listed(commas)}. Say so: {option('decimal', ',')}."
            f"{f' Other cells, too, are no numbers in {listed(rest)}: what to do about them is said then.' * bool(rest)}"
        )
    different = {name: len(set(every)) for name, every in words.items() if signs[name] is None}
    few = {name: n for name, n in different.items() if 1 < n <= min(MANY, len(words[name]) // 2)}
    purposes = [role for role in PURPOSES if role not in used]
    named = [name for name in few if name.casefold() in CLASSES]
    class_ = next((name for name in (*named, *names[-1:], *names[:1]) if name in few), None)
    others = [name for name in wrong if "label" in used or name != class_]
    s = "s" * (len(wrong) > 1)
    said = [
        f"expected a number in every row of a column without another purpose; {len(wrong):,} column{s} "
        f"{'have' if s else 'has'} other cells. {'; '.join(f'{name}: {wrong[name]}' for name in [*wrong][:DESCRIBED])}"
        f"{f'; and {len(wrong) - DESCRIBED:,} columns more' * (len(wrong) > DESCRIBED)}."
    ]
    if commas and declared:
        said.append(
            f"If a comma stands before the digits of fractions: {option('decimal', ',')}; if it stands between thousands, remove it."
        )
    for between in dict.fromkeys(pair[0] for pair in signs.values() if pair and pair[0]):
        which = listed(name for name, pair in signs.items() if pair and pair[0] == between)
        said.append(f"In {which} the sign {between!r} stands between thousands; numbers have none here.")
    candidates = [f"{name} ({n})" for name, n in few.items() if not any(map(missing, words[name]))]
    if candidates and purposes:
        what = "; ".join(f"{option(role, 'COLUMN')} {PURPOSES[role]}" for role in purposes)
        said.append(
            f"Of few words {'are' if len(candidates) > 1 else 'is'} {', '.join(candidates)}. Name a purpose: {what}."
        )
    if others:
        leave = option("leave_out", [*columns.leave_out, *others][:MANY])
        if len(wrong) > MANY:
            leave = "leave_out = [...] in a configuration, which equipoise init writes"
        but = f" ({class_} not, which may be the class)" if len(others) < len(wrong) else ""
        said.append(f"Leave the column{'s' * (len(others) > 1)} out{but}: {leave}; or correct these cells.")
        said += _line(others, signs, few, columns, script)
    return " ".join(said)


def _signs(words: Sequence[str], decimal: str) -> tuple[str, str] | None:
    """The signs between thousands and before fractions with which all words are numbers; None if there are none."""
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
    return [f"{how}; then go on with --data {shlex.quote(script.path)}{further}\n\npython -c {shlex.quote(code)}\n"]


def _quoted(value: str | Sequence[str]) -> str:
    return json.dumps(value, ensure_ascii=False)
