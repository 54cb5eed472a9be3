"""The records of rounds: the form they have, and how they are lines of `metrics.jsonl`."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]


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
    """How many clients the records have an accuracy of; one number per record, without repetition."""
    return {len(record["clients"]["accuracy"]) for record in records if "clients" in record}


def line(record: Record) -> str:
    """One record as a line of `metrics.jsonl`, newline included; NaN and infinities become null.

    Parameters
    ----------
    record : the record of one round, see `History`; NumPy and torch numbers are written as plain numbers.
    """
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def parse_lines(text: str) -> tuple[Record, ...]:
    """The records in the text of a `metrics.jsonl`.

    An incomplete last line, left by a killed run, is ignored; where a resumed run wrote a round again, the later record
    counts.

    Raises
    ------
    ValueError : a line is damaged.
    """
    records: list[Record] = []
    lines = text.split("\n")  # the last is empty, or incomplete
    for number, content in enumerate(lines, start=1):
        if not content.strip():
            continue
        try:
            record = json.loads(content)
            _check(record)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"line {number} is damaged: {error} Remove the line, or run again.") from None
        while records and records[-1]["round"] >= record["round"]:
            records.pop()
        records.append(record)
    return tuple(records)


def number(value: Any) -> float:
    """A number of a record: NaN for null."""
    return math.nan if value is None else float(value)


def shorten(value: Any) -> str:
    """A value in an error message, in at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
    if not isinstance(clients, dict) or not isinstance(clients.get("accuracy"), Sequence):
        raise ValueError(f'{where}: expected clients as {{"accuracy": [one per client]}}, found {shorten(clients)}.')
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
