"""The records of rounds: the form they have, and how they are lines of `metrics.jsonl`.

Each line ends with a hash of its own content and of the hash before it, so that a line that was edited, removed or moved
is found.
"""

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from equipoise.metrics.measures import main_in
from equipoise.system import suggestions
from equipoise.system.seals import read_json

Record = dict[str, Any]
_HASH = re.compile(r',"hash":"([0-9a-f]{32})"\}$')


class DamagedLineError(ValueError):
    """A line of `metrics.jsonl` that is not what was written; says what is intact before it.

    Parameters
    ----------
    number : of the line, from 1.
    why : what is wrong.
    before : the records before it.
    """

    def __init__(self, number: int, why: str, before: Sequence[Record]) -> None:
        first, last = (before[0]["round"], before[-1]["round"]) if before else (0, -1)
        intact = f"rounds {first} to {last} are" if first < last else f"round {first} is" if before else "no round is"
        super().__init__(f"line {number} is damaged ({why}); {intact} intact")
        self.number = number


def check(records: Sequence[Record]) -> None:
    """Raise ``ValueError`` unless records follow their form, see `History`, in increasing order of their rounds."""
    for record in records:
        _check(record)
    rounds = [record["round"] for record in records]
    if any(later <= earlier for earlier, later in itertools.pairwise(rounds)):
        raise ValueError(f"rounds must increase from record to record: found {shorten(rounds)}.")
    lengths = clients_evaluated(records)
    if len(lengths) > 1:
        raise ValueError(
            f"every round must hold one accuracy per client of the federation: found {sorted(lengths)} accuracies. "
            "Write null for a client that was not evaluated."
        )


def clients_evaluated(records: Sequence[Record]) -> set[int]:
    """How many clients the records have a main measure of; one number per record, without repetition."""
    return {len(clients[main_in(clients).name]) for record in records if (clients := record.get("clients"))}


def line(record: Record, before: str | None = None) -> str:
    """One record as a line of `metrics.jsonl`, newline included; NaN and infinities become null.

    Parameters
    ----------
    record : the record of one round, see `History`; NumPy and torch numbers are written as plain numbers.
    before : the hash of the line before, empty for the first line; None writes no hash.
    """
    text = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text + "\n" if before is None else f'{text[:-1]},"hash":"{_hash(before, text)}"}}\n'


def lines(records: Iterable[Record]) -> Iterator[str]:
    """All lines of a `metrics.jsonl`, each with its hash."""
    before = ""
    for record in records:
        text = line(record, before)
        before = _HASH.findall(text[:-1])[0]
        yield text


def last_hash(path: Path) -> str:
    """The hash of the last line of a `metrics.jsonl`; empty if it has none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64))
            end = file.read().decode(errors="replace").removesuffix("\n")
    except FileNotFoundError:
        return ""
    return "".join(_HASH.findall(end))


def parse(text: str, rounds: int | None = None) -> tuple[list[Record], list[str]]:
    """The records in the text of a `metrics.jsonl`, and the hash of each; empty hashes in a file of an earlier version.

    An incomplete last line, left by a killed run, is ignored; where a resumed run wrote a round again, the later record
    counts, and its hash follows that of the round before.

    Parameters
    ----------
    text : the whole file.
    rounds : only that many first rounds; what follows them is not looked at.
    """
    records, hashes = list[Record](), list[str]()
    written = text.split("\n")  # the last is empty, or incomplete
    chained = any(map(_HASH.search, written))
    for number, content in enumerate(written, start=1):
        if rounds is not None and rounds <= (records[-1]["round"] + 1 if records else 0):
            break
        if not content.strip():
            continue
        body, given = _opened(content)
        try:
            record = read_json(body)
            _check(record)
            if "hash" in record:
                raise ValueError("its hash is not at its end, as it was written")
        except ValueError as error:
            if number == len(written):
                break
            raise DamagedLineError(number, str(error).rstrip("."), records) from None
        if rounds is not None and record["round"] >= rounds:
            break
        while records and records[-1]["round"] >= record["round"]:
            records.pop()
            hashes.pop()
        if chained and given != _hash(hashes[-1] if hashes else "", body):
            raise DamagedLineError(number, "it does not fit the hash at its end and the line before it", records)
        records.append(record)
        hashes.append(given)
    return records, hashes


def parse_lines(text: str) -> tuple[Record, ...]:
    """The records in the text of a `metrics.jsonl`, as :func:`parse` reads them.

    Raises
    ------
    DamagedLineError : a line is not what was written.
    """
    return tuple(parse(text)[0])


def _opened(content: str) -> tuple[str, str]:
    """The text of a record in a line, and the hash at the line's end; empty if it has none."""
    match = _HASH.search(content)
    return (content, "") if match is None else (content[: match.start()] + "}", match[1])


def _hash(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:32]


def number(value: Any) -> float:
    """A number of a record: NaN for null."""
    return math.nan if value is None else float(value)


def shorten(value: Any) -> str:
    """A value in an error message, in at most 80 characters."""
    return suggestions.shorten(repr(value))


def _check(record: Any) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("round"), int):
        raise ValueError(f'a record needs its round: expected {{"round": 0, ...}}, found {shorten(record)}.')
    where = f"round {record['round']}"
    groups = record.get("groups", {})
    if not isinstance(groups, dict) or any(not isinstance(result, dict) for result in groups.values()):
        raise ValueError(
            f'{where}: expected groups as {{name: {{"accuracy": a, "loss": l}}}}, found {shorten(groups)}.'
        )
    clients = record.get("clients", {"accuracy": []})
    if not isinstance(clients, dict) or not isinstance(clients.get(main_in(clients).name), Sequence):
        raise ValueError(f'{where}: expected clients as {{"accuracy": [one per client]}}, found {shorten(clients)}.')
    validation = record.get("validation", {"groups": {}, "accuracy": 0.0, "loss": 0.0})
    if not isinstance(validation, dict) or not {"groups", main_in(validation).name, "loss"} <= validation.keys():
        raise ValueError(
            f'{where}: expected validation as {{"accuracy": a, "loss": l, "groups": {{...}}}}, found {shorten(validation)}.'
        )
    ids, weights = record.get("ids", []), record.get("weights", [])
    if "weights" in record and len(ids) != len(weights):
        raise ValueError(
            f"{where}: expected one weight per client in ids, found {len(ids)} ids, {len(weights)} weights."
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and torch
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
