"""The rows whose sums left this machine: the difference of sums of nearly the same rows is about few people."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.privacy.differences import exposed
from equipoise.system import tensor_files
from equipoise.system.errors import DamagedError
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


def cell_codes(cells: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """A number for each cell of some rows of a table [n], by that of its column's name: however capitals, spaces and zeros are written."""
    return {str(_code(_plain(name))): np.array([_code(_plain(cells[name][row])) for row in rows]) for name in cells}


def require_apart(
    rows: NDArray[np.int64],
    cells: Mapping[str, NDArray[np.int64]],
    people: Sequence[str] | None,
    least: int,
    source: str,
) -> None:
    """Store the rows of which sums leave, unless sums of fewer than ``least`` people follow from these and all that left before.

    Parameters
    ----------
    rows, cells : of :func:`row_codes` [n] and :func:`cell_codes`. A row is one that left before if both have the same cells in their tables'
        common columns, which are more than half of either's.
    people : whom each row is about [n]; None: each row is a person.
    source : the table, for the error.

    Raises
    ------
    DataError : they would follow.
    """
    folder = own_state() / "sums"
    make_private(folder)
    with locked(folder / ".lock", wait=True):
        earlier: list[dict[int, int]] = []
        for path in sorted(folder.glob("*.safetensors")):
            try:
                past = tensor_files.read(path)
                earlier.append(dict(zip(past["rows"].tolist(), past["people"].tolist(), strict=True)))
                rows = _matched(rows, cells, past["rows"].numpy(), {name: x.numpy() for name, x in past.items()})
            except (DamagedError, KeyError) as error:
                raise DataError(
                    f"{path} is damaged ({error}). Put a copy back, or delete it if its sums were never sent."
                ) from None
        persons = rows if people is None else np.array([*map(_code, people)], np.int64)
        these = dict(zip(rows.tolist(), persons.tolist(), strict=True))
        whom = {row: who for rows_of in (*earlier, these) for row, who in rows_of.items()}
        every = np.array([*whom], np.int64)
        sums = np.array([np.isin(every, [*rows_of]) for rows_of in (these, *earlier)])
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
        content = {"rows": rows, "people": persons, **cells}
        tensors = {key: torch.from_numpy(x) for key, x in content.items()}
        tensor_files.write(folder / f"{name}.safetensors", tensors, private=True)


def _matched(
    rows: NDArray[np.int64],
    cells: Mapping[str, NDArray[np.int64]],
    past: NDArray[np.int64],
    past_cells: Mapping[str, NDArray[np.int64]],
) -> NDArray[np.int64]:
    """The numbers of rows [n], of those that are among the ``past`` ones [m] theirs."""
    common = [name for name in cells if name in past_cells]
    if 2 * len(common) <= max(len(cells), len(past_cells) - 2):  # which has rows and people, too
        return rows
    table = np.stack([np.concatenate([past_cells[name], cells[name]]) for name in common], 1)
    kinds = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).tolist()
    same, left = {*rows.tolist()} & {*past.tolist()}, defaultdict[int, list[int]](list)
    for kind, row in zip(kinds, past.tolist(), strict=False):
        if row not in same:
            left[kind].append(row)
    pairs = zip(kinds[len(past) :], rows.tolist(), strict=True)
    return np.array([left[kind].pop() if row not in same and left[kind] else row for kind, row in pairs], np.int64)


def _plain(cell: Any) -> str:
    text = str(cell).strip().casefold()
    with suppress(ValueError):
        return repr(float(text.replace(",", ".")))
    return text


def _code(text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True
    )
