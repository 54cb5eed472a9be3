"""What a site stores of masked sums, in a file that only its owner can read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from equipoise.flower.secagg.masks import MaskError, public_key
from equipoise.system.files import make_private, open_to_others, read_regular, write_atomically
from equipoise.system.seals import open_json, sealed_json, typed

Result = TypeVar("Result")


class UnmaskedSum(NamedTuple):
    """A sum that a site helped to unmask: its round, the transcript of the training, and the sites that took part."""

    round: int
    training: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class SiteMemory:
    """What a site stores of an experiment's masks; the names of the fields are those in its file.

    ``key`` is its private key; ``keys`` and ``sizes`` are the others' public keys and samples, as they were at first sight, and ``run`` is the
    hash of the run's configuration then. ``number``, ``told`` (the transcript), ``used`` (the hash of what it trained by) and ``asked``
    are of the last sum that it took part in, ``sets`` has the sites of all sums of that round, ``opened`` is the last sum that it
    helped to unmask, and ``models`` has the round of every model and training of a sum. ``receipts`` are of its states after the last sum that it helped
    to unmask and after the last that it took part in.
    """

    key: str
    keys: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    number: int = 0
    told: str = ""
    used: str = ""
    asked: UnmaskedSum | None = None
    sets: Sequence[Sequence[str]] = ()
    opened: UnmaskedSum | None = None
    models: Mapping[str, int] = field(default_factory=dict)
    receipts: Sequence[Sequence[Any]] = ()


def change_memory(path: Path, change: Callable[[SiteMemory], tuple[SiteMemory, Result]]) -> Result:
    """Change a site's memory, which is created with a new key if it is missing.

    It is on disk before the result is returned, so no crash makes a site lose what it sent. Two must not change it at once.

    Raises
    ------
    MaskError : the file is damaged, or can be read by others.
    """
    make_private(path.parent)
    before = _read(path)
    after, result = change(before or SiteMemory(secrets.token_bytes(32).hex()))
    if after != before:
        write_atomically(path, sealed_json(asdict(after)), private=True)
    return result


def read_memory(path: Path) -> SiteMemory:
    """A site's memory, unchanged."""
    return change_memory(path, lambda memory: (memory, memory))


def _read(path: Path) -> SiteMemory | None:
    if not path.exists():
        return None
    if open_to_others(path):
        raise MaskError(f"Others can read {path.name} with this site's key. Let only its owner read it (chmod 600).")
    try:
        memory = typed(SiteMemory, open_json(read_regular(path).decode()))
        public_key(memory.key)
        return memory
    except ValueError:
        raise MaskError(
            f"The file {path.name} with this site's key is damaged. Put it back; without it all sites need a new experiment."
        ) from None


def read_peers(path: Path) -> dict[str, str]:
    """The public keys in a JSON file ``{site: public key}``.

    Raises
    ------
    MaskError : it is missing, or not such a file.
    """
    try:
        return typed(dict[str, str], open_json(path.read_bytes().decode()))
    except (OSError, ValueError):
        raise MaskError(
            f"The file of peers, {path.name}, is missing or not of the form {{site: public key}}."
        ) from None
