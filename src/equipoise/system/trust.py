"""Whether the user has agreed to what a configuration names: code that would be run, files and addresses that would be used.

A run that was begun on this machine is known by the hash of its configuration, wherever it lies now. To what others have written
``--trust`` agrees, for one command.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.system import files, own_code, places, suggestions, text
from equipoise.system.errors import RunError

log = logging.getLogger(__name__)

VARIABLE = "EQUIPOISE_TRUST"  # in the environment, so that the processes that a command starts know it: hashes, or
EVERYTHING = "everything"
SHOWN, LONGEST = 5, 300  # names in a message, and characters of each, which end in the file's


@contextmanager
def agreed(more: str = EVERYTHING) -> Iterator[None]:
    """Let the user agree to ``more`` while the block runs; what is agreed to in it is forgotten after it."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = f"{before} {more}".strip()
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def named(settings: Any) -> list[str]:
    """What is named anywhere in some settings that would be imported or contacted: references to code, and addresses."""
    if isinstance(settings, str):
        code = [f"{where}:{name}" for *_, where, name in own_code.references(settings)]
        return code or [settings] * settings.startswith(places.HUB)
    if isinstance(settings, Mapping):  # keys are methods in a file of chosen settings
        settings = [*settings, *settings.values()]
    return [name for entry in settings for name in named(entry)] if isinstance(settings, list) else []


def require(path: Path, names: Sequence[str], content: bytes) -> None:
    """Require that a file that ``names`` something has a known ``content``, or that the user agrees, who is told the names.

    Raises
    ------
    RunError : neither.
    """
    if not names or known(content) or (consent := f"said:{_key(content)}") in _agreed():
        return
    listed = suggestions.some([text.visible(name)[-LONGEST:] for name in dict.fromkeys(names)], SHOWN)
    if EVERYTHING not in _agreed():
        raise RunError(
            f"{path} is not of a run begun by you on this machine, and names {listed}: if you trust that, give the same command again "
            f"with --trust (in Python: {VARIABLE}={EVERYTHING} in the environment)."
        )
    log.warning("%s is not of a run begun by you on this machine, and names %s", path, listed)
    _agree(consent)  # once


def require_file(path: Path, settings: Any, *more: str) -> None:
    """The same of a file of settings that is no run's, which names ``more``; from then on it is known, until it names something else.

    Raises
    ------
    RunError : as for :func:`require`.
    """
    if names := [*named(settings), *more]:
        require(path, names, settings_file(path, names))
        enter(settings_file(path, names))


def settings_file(path: Path, names: Sequence[str]) -> bytes:
    """What is known of a file of settings: where it lies, and what it names."""
    return repr([str(path.resolve()), *sorted({*names})]).encode()


def known(content: bytes) -> bool:
    """Whether a content was begun on this machine."""
    return _key(content) in (*_agreed(), *_begun())


def enter(content: bytes) -> None:
    """Keep that a content was begun on this machine; where the user's folder cannot be written, until this process ends."""
    key = _key(content)
    if key in _begun():
        return
    try:
        files.make_private((path := _registry()).parent)
        files.append(path, f"{key}\n", private=True)
    except (OSError, RuntimeError):
        _agree(key)


def _registry() -> Path:
    return places.own_state() / "begun"


def _begun() -> list[str]:
    try:
        return _registry().read_text(encoding="ascii", errors="replace").split()
    except (OSError, RuntimeError):  # there is none, or no home
        return []


def _agree(key: str) -> None:
    os.environ[VARIABLE] = " ".join([*_agreed(), key])


def _agreed() -> list[str]:
    return os.environ.get(VARIABLE, "").split()


def _key(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
