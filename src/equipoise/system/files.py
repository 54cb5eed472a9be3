"""Files that are either the old ones or the new ones, never half written."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PART = ".part"  # ends the name of a file that is being written


def cache_directory() -> Path:
    """Folder for what can be made again: ``$EQUIPOISE_CACHE``, or ``~/.cache/equipoise``."""
    chosen = os.environ.get("EQUIPOISE_CACHE")
    return Path(chosen) if chosen else Path("~/.cache/equipoise").expanduser()


def write_atomically(path: str | os.PathLike[str], content: str | bytes, *, private: bool = False) -> Path:
    """Write a file so that a reader, or a crash, sees the old or the new content; return the path.

    Parameters
    ----------
    path : the file to write; missing parent directories are made.
    content : its whole content; text is written as UTF-8.
    private : only the owner may read the file, at any moment.

    Raises
    ------
    OSError : a full disk or a directory that cannot be written; the old file stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        temporary.touch(0o600 if private else 0o666)
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def sweep(directory: Path) -> None:
    """Remove what killed processes left half written; only for a directory that nobody else is writing to."""
    for left in directory.glob(f".*{PART}"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file, which is made where missing and stays; the system frees it when its process ends in any way.

    Raises
    ------
    BlockingIOError : another process holds it; the text is that process's number.
    """
    with path.open("a+") as file:
        try:
            _lock(file.fileno())
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise BlockingIOError(file.read(20).strip() or "unknown") from None
        except OSError:  # a file system without locks: nothing can be promised, and nothing is worse than before
            pass
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextlib.contextmanager
def waited(path: Path) -> Iterator[None]:
    """Hold a lock file as :func:`held` does, after whoever has it."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(held(path))
                break
            except BlockingIOError:
                time.sleep(0.1)
        yield


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
