"""Files that are replaced as a whole, never partly written."""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from equipoise.system.errors import RunError

PART = ".part"  # ends the name of a file that is being written
MOMENT = 0.3  # seconds for which a lock may be held by who only looks whether it is


def cache_directory() -> Path:
    """Folder for files that can be made again: ``$EQUIPOISE_CACHE``, or ``~/.cache/equipoise``."""
    chosen = os.environ.get("EQUIPOISE_CACHE")
    return Path(chosen) if chosen else Path("~/.cache/equipoise").expanduser()


def write_atomically(
    path: str | os.PathLike[str],
    content: str | bytes | Iterable[bytes | memoryview],
    *,
    private: bool = False,
    lasting: bool = True,
) -> Path:
    """Write a file so that a reader, or a crash, sees the old or the new content; return the path.

    Parameters
    ----------
    path : the file to write; missing parent directories are made.
    content : its whole content, or the parts of it in order; text is written as UTF-8.
    private : only the owner may read the file, at any moment, and the directories that are made for it; and not even a power
        failure brings the old content back, if it is ``lasting``.

    Raises
    ------
    OSError : a full disk or a directory that cannot be written; the old file stays, as it does if the parts raise an error.
    """
    path = Path(path)
    if private:
        make_private(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with open_private(temporary) if private else temporary.open("wb") as file:
            content = content.encode() if isinstance(content, str) else content
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        if private and lasting and os.name == "posix":
            os.fsync(folder := os.open(path.parent, os.O_RDONLY))
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def make_private(path: Path) -> None:
    """Make a directory, and those above it, where they are missing, for their owner only."""
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(0o700, exist_ok=True)


def open_private(path: Path) -> BinaryIO:
    """Open a file to write it anew; only its owner may read it, even if others could before, where the file system has owners."""
    file = open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
    with contextlib.suppress(OSError):
        path.chmod(0o600)
    return file


def sweep(directory: Path) -> None:
    """Remove files partly written by killed processes; only for a directory that no other process writes to."""
    for left in directory.glob(f".*{PART}"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file while the block runs; the system frees it when its process ends in any way.

    Parameters
    ----------
    path : the lock file, made if missing; it stays and has the number of the last process that held it.
    wait : until the lock is free.
    """
    from filelock import FileLock, Timeout  # here, because it brings asyncio and sqlite3, a tenth of a second

    lock = FileLock(path)
    try:
        lock.acquire(timeout=-1 if wait else MOMENT, poll_interval=0.1)
    except Timeout:
        raise BlockingIOError(_holder(path)) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # else a file system without locks, where no lock can help
            raise
    with lock if lock.is_locked else contextlib.nullcontext():
        with contextlib.suppress(OSError):  # Windows does not allow writing to a locked file
            path.write_text(str(os.getpid()))
        yield


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory, which is made if it is missing, while the block runs.

    Raises
    ------
    RunError : naming the process that holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with locked(directory / ".lock"):
            yield
    except BlockingIOError as error:
        raise RunError(f"Process {error} is at {directory} already. Wait until it ends, or stop it first.") from None


def holder(path: Path) -> str | None:
    """The number of the process that holds a lock, ``"unknown"`` if it says none; None if nobody does. The file stays as it is."""
    try:
        import fcntl

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment, less than who wants it waits
    except BlockingIOError:
        return _holder(path)
    except ImportError:  # on Windows, where the file of a lock that is held cannot be read
        return None if not path.exists() or _holder(path) != "unknown" else "unknown"
    except OSError:  # no such file, or a file system without locks
        return None
    return None


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()[:20].strip() or "unknown"
    return "unknown"
