"""The rows whose sums left this machine: the difference of sums of nearly the same rows is about few people."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.privacy.differences import exposed
from equipoise.system import tensor_files
from equipoise.system.files import locked, make_private
from equipoise.system.places import own_state


def row_codes(cells: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> NDArray[np.int64]:
    """A number for each of some rows of a table [n], from all its cells in any order of columns; the second of two equal rows has its own."""
    names, seen, codes = sorted(cells), Counter[str](), list[int]()
    for row in rows:
        text = json.dumps([[name, str(cells[name][row])] for name in names])
        seen[text] += 1
        codes.append(_code(f"{seen[text]} {text}"))
    return np.array(codes, np.int64)


def require_apart(rows: NDArray[np.int64], people: Sequence[str] | None, least: int, source: str) -> None:
    """Store the rows of which sums leave, unless sums of fewer than ``least`` people follow from these and all that left before.

    Parameters
    ----------
    rows : of :func:`row_codes` [n].
    people : whom each row is about [n]; None: each row is a person.
    source : the table, for the error.

    Raises
    ------
    DataError : they would follow.
    """
    folder = own_state() / "sums"
    person = rows if people is None else np.array([*map(_code, people)], np.int64)
    make_private(folder)
    with locked(folder / ".lock", wait=True):
        whom, sets = dict(zip(rows.tolist(), person.tolist(), strict=True)), [{*rows.tolist()}]
        for path in sorted(folder.glob("*.safetensors")):
            try:
                past = tensor_files.read(path)
                before = dict(zip(past["rows"].tolist(), past["people"].tolist(), strict=True))
            except (tensor_files.DamagedError, KeyError) as error:
                raise DataError(
                    f"{path} is damaged ({error}). Put a copy back, or delete it if its sums were never sent."
                ) from None
            whom, sets = before | whom, [*sets, {*before}]
        every = np.array([*whom], np.int64)
        sums = np.array([np.isin(every, [*each]) for each in sets])
        if (sums[1:] == sums[0]).all(1).any():
            return
        person = np.array([*whom.values()], np.int64)
        now, before_now = (exposed(each, np.arange(len(every)), person, least) for each in (sums, sums[1:]))
        if (now & ~before_now).any():
            raise DataError(
                f"{source}: these sums, with those that were made here before, would tell of fewer than {least} people. Give an earlier file "
                f"again, or use its rows and options. If an earlier file was never sent, delete its rows in {folder}."
            )
        name = hashlib.sha256(np.sort(rows).tobytes()).hexdigest()[:16]
        content = {
            "rows": torch.from_numpy(rows),
            "people": torch.from_numpy(np.array([whom[row] for row in rows.tolist()])),
        }
        tensor_files.write(folder / f"{name}.safetensors", content, private=True)


def _code(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True
    )
