"""Checkpoints: tensors in safetensors, the rest in JSON, written so that a crash at any moment leaves a complete one.

State that is stored on disk, a row for each client, is too large to be written each time. The rows that changed since the
last checkpoint go into separate files, which later checkpoints use again. The tensor file has the default row and, under
``NAME:where`` [N], the number of the file with each client's row (-1: the default). Rows of files that are mostly out of
date are written again. The JSON file also has the entries of ``earlier`` checkpoints that are kept, the last first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from equipoise.core.client_rows import Copy, Rows
from equipoise.records.meta import Content, Contribution
from equipoise.system import tensor_files
from equipoise.system.errors import DamagedError, RunError
from equipoise.system.files import read_regular, real_path, sweep, write_atomically
from equipoise.system.seals import open_json, sealed_json

POINTER = "checkpoint.json"
NO_ROWS: Content = {"files": []}
PIECE = 16 << 20  # bytes of rows in a file, so that writing and reading them takes little memory


class CheckpointError(RunError):
    """A checkpoint is missing, damaged, or of another experiment."""


class Kept(TypedDict, total=False):
    """The entry of a checkpoint in the JSON file.

    Attributes
    ----------
    t, rounds : how many rounds are complete, and how many are planned.
    fingerprint : of the run, see `equipoise.federation.fingerprint`.
    records : the hash of the last record.
    best : the round with the best validation, where its state is kept.
    keep : how many checkpoints are kept.
    away : the rounds of the states that sites keep.
    alone, machines : what each client reaches alone, and what computed the rounds.
    tensors, sha256, rows : the files of tensors, and their hashes.
    earlier : the others that are kept, the last first.
    """

    t: int
    rounds: int
    fingerprint: Content
    records: str
    best: int
    keep: int
    away: list[int] | None
    alone: Contribution | None
    machines: list[Content]
    tensors: str
    sha256: str
    rows: Content
    earlier: list[Kept]


def write(directory: Path, tensors: Mapping[str, Tensor | Rows], meta: Kept) -> None:
    """Write a checkpoint; the JSON file, written last, names the files of tensors and their hashes, and has its own.

    The last ``meta["keep"]`` are kept, 1 without it.

    Raises
    ------
    OSError : a full disk or a directory that cannot be written; the previous checkpoint stays valid.
    """
    real_path(directory, directory.parent)
    directory.mkdir(parents=True, exist_ok=True)
    rows = {name: x for name, x in tensors.items() if isinstance(x, Rows)}
    plain = {name: t for name, t in tensors.items() if not isinstance(t, Rows)}
    pointer = meta.copy()
    if rows:
        pointer["rows"], where = _write_rows(directory, rows, meta["t"])
        plain |= where
    content, digest = tensor_files.packed(plain)
    name = f"state-{meta['t']:06d}.safetensors"
    stored = directory / name
    if stored.exists() and hashlib.sha256(read_regular(stored, directory.parent)).hexdigest() != digest:
        name = f"state-{meta['t']:06d}-{digest[:16]}.safetensors"  # the previous checkpoint may need the other
    write_atomically(directory / name, content, private=True, lasting=False)
    pointer |= {"tensors": name, "sha256": digest}
    more = meta.get("keep", 1) - 1
    before = [entry for entry in kept(directory) if entry["t"] < meta["t"]] if more and exists(directory) else []
    keep(directory, [pointer, *before[:more]])


def keep(directory: Path, entries: Sequence[Kept]) -> None:
    """Keep these checkpoints, the last first, and remove the files of others."""
    write_atomically(directory / POINTER, sealed_json({**entries[0], "earlier": entries[1:]}))
    tidy(directory)


def _write_rows(directory: Path, rows: Mapping[str, Rows], t: int) -> tuple[Content, dict[str, Tensor]]:
    """Write the rows that are in no file in use: the entry of the JSON file, and the tensors to store with the others."""
    good = _good(directory, rows)
    every = {(name, m): slot for name, x in rows.items() for m, slot in x.slots.items()}
    files = {
        key: (copy.file, copy.sha256)
        for key, slot in every.items()
        if (copy := slot.copy) is not None and copy.name == key[0] and copy.file in good
    }
    for piece in _pieces([key for key in every if key not in files], rows):
        ids: dict[str, list[int]] = {}
        for name, m in piece:
            ids.setdefault(name, []).append(m)
        values = {name: rows[name][own].cpu() for name, own in ids.items()}
        content, digest = tensor_files.packed(values | {f"{name}:ids": torch.tensor(own) for name, own in ids.items()})
        file = f"rows-{t:06d}-{digest[:16]}.safetensors"  # never the name of a file with other content
        write_atomically(directory / file, content, private=True, lasting=False)
        nbytes = sum(x.nbytes for x in values.values())
        for name, m in piece:
            every[name, m].copy = Copy(directory.resolve(), file, digest, nbytes, name)
            files[name, m] = file, digest
    used = list(dict.fromkeys(files.values()))
    number = {file: k for k, (file, _) in enumerate(used)}
    beside: dict[str, Tensor] = {}
    for name, x in rows.items():
        where = [number[files[name, m][0]] if m in x.slots else -1 for m in range(len(x))]
        beside |= {name: x.default.cpu().clone(), f"{name}:where": torch.tensor(where, dtype=torch.int32)}
    return {"names": list(rows), "files": used}, beside


def _good(directory: Path, rows: Mapping[str, Rows]) -> set[str]:
    """Files in a directory to use again: together they are at most twice the size of the current rows."""
    size, live = dict[str, int](), dict[str, int]()
    directory = directory.resolve()
    for name, x in rows.items():
        for slot in x.slots.values():
            copy = slot.copy
            if copy is not None and copy.name == name and copy.directory == directory:
                size[copy.file] = copy.nbytes
                live[copy.file] = live.get(copy.file, 0) + x.default.nbytes
    good = {file for file in size if (directory / file).is_file()}
    total = sum(x.default.nbytes * len(x.slots) for x in rows.values())
    together = sum(size[file] for file in good)
    for file in sorted(good, key=lambda file: (live[file] / size[file], file)):
        if together <= 2 * total:
            break
        good.remove(file)
        together -= size[file]
    return good


def _pieces(new: Sequence[tuple[str, int]], rows: Mapping[str, Rows]) -> Iterator[list[tuple[str, int]]]:
    """Cut a list of rows into parts of at most ``PIECE`` bytes, or of one row."""
    piece: list[tuple[str, int]] = []
    room = PIECE
    for name, m in new:
        size = rows[name].default.nbytes
        if piece and size > room:
            yield piece
            piece, room = [], PIECE
        piece.append((name, m))
        room -= size
    if piece:
        yield piece


def tidy(directory: Path) -> None:
    """Remove tensors that no checkpoint names and partly written files; only for the process that writes there."""
    named = {
        file for entry in kept(directory) for file in (entry["tensors"], *dict(entry.get("rows", NO_ROWS)["files"]))
    }
    for old in (*directory.glob("state-*.safetensors"), *directory.glob("rows-*.safetensors")):
        if old.name not in named:
            old.unlink(missing_ok=True)
    sweep(directory)


def exists(directory: Path) -> bool:
    """Whether a checkpoint was completed there."""
    return (directory / POINTER).is_file()


def kept(directory: Path, t: int | None = None) -> list[Kept]:
    """The entries of the kept checkpoints in the JSON file, the last first; or that after ``t`` rounds first.

    Raises
    ------
    CheckpointError : missing, damaged or not kept, naming the file or what is kept.
    """
    try:
        last: Kept = open_json(read_regular(directory / POINTER, directory.parent).decode(errors="replace"))
        entries = [last, *last.pop("earlier", [])]
        for meta in entries:
            valid = Path(meta["tensors"]).name == meta["tensors"] and isinstance(meta["sha256"], str)
            valid = valid and all(isinstance(t, int) for t in (meta["t"], meta["rounds"], meta.get("best", 0)))
            if not valid or not isinstance(meta["fingerprint"], dict):
                raise ValueError("t, rounds or fingerprint is not what was written")
            for file, digest in meta.get("rows", NO_ROWS)["files"]:
                if Path(file).name != file or not isinstance(digest, str):
                    raise ValueError("the list of files is not what was written")
    except FileNotFoundError:
        raise _missing(directory, POINTER) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory / POINTER} is damaged ({error}). Put it back, or delete {directory} to start the run again; the records "
            "of its rounds are not lost before that."
        ) from None
    rounds = [entry["t"] for entry in entries]
    if t is not None and t not in rounds:
        which = ", ".join(map(str, sorted(rounds)))
        raise CheckpointError(
            f"{directory} does not keep the state before round {t}. Kept are those before round {which}."
        )
    return entries if t is None else entries[rounds.index(t) :]


def about(directory: Path) -> Kept:
    """The entry of the last checkpoint, see :func:`kept`."""
    return kept(directory)[0]


def read(directory: Path, t: int | None = None) -> tuple[dict[str, Tensor | Rows], Kept]:
    """Read the tensors and the JSON file of a checkpoint; state on disk is :class:`equipoise.core.client_rows.Rows`.

    ``t`` is that of an earlier one.

    Raises
    ------
    CheckpointError : missing, damaged or not kept, naming the file or what is kept.
    OSError : no room for the rows on disk.
    """
    meta = kept(directory, t)[0]
    tensors = _load(directory, meta["tensors"], meta["sha256"])
    if "rows" not in meta:
        return {**tensors}, meta
    try:
        where = {name: tensors.pop(f"{name}:where") for name in meta["rows"]["names"]}
        rows = {name: Rows(tensors[name], len(files)) for name, files in where.items()}
        for number, (file, digest) in enumerate(meta["rows"]["files"]):
            part = _load(directory, file, digest)
            nbytes = sum(part[name].nbytes for name in rows.keys() & part.keys())
            for name in rows.keys() & part.keys():
                ids = part[f"{name}:ids"]
                live = where[name][ids] == number  # later files have the others
                rows[name] = rows[name].index_copy(0, ids[live], part[name][live])
                where[name][ids[live]] = -1
                copy = Copy(directory.resolve(), file, digest, nbytes, name)
                for m in ids[live].tolist():
                    if m in rows[name].slots:  # else it equals the default
                        rows[name].slots[m].copy = copy
        if lost := [name for name, left in where.items() if bool((left >= 0).any())]:
            raise ValueError(f"rows of {lost[0]} are in none of its files")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CheckpointError(
            f"The rows of {directory / POINTER} are damaged ({error}). Delete {directory} to start the run again."
        ) from None
    return {**tensors, **rows}, meta


def _missing(directory: Path, file: str) -> CheckpointError:
    return CheckpointError(
        f"No complete checkpoint in {directory}: {file} is missing. Delete {directory} to start the run again."
    )


def _load(directory: Path, file: str, digest: str) -> dict[str, Tensor]:
    path = directory / file
    try:
        return tensor_files.read(path, digest)
    except FileNotFoundError:
        raise _missing(directory, file) from None
    except DamagedError as error:
        raise CheckpointError(f"{path} is damaged{error}. Delete {directory} to start the run again.") from None
