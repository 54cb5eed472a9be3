"""Files that are replaced as a whole, never partly written; and those of a folder that others may have made.

Such a folder may hold links, pipes and devices. What is read is a regular file that is really in the folder. What is written is a
new file, which no link can lead elsewhere.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from equipoise.system.errors import RunError

PART = ".part"  # ends the name of a file that is being written
LITTLE = 1 << 24  # bytes that always fit into memory
MOST, LARGE = 1 << 31, 1 << 40  # bytes of a text, and of tensors, that others may have made
ANYWHERE = Path("/")  # the folder of a file that the user names, or whose content is checked: links may lead to it
STRAIGHT = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no link is followed, no pipe is waited for
PRIVATE = 0o600  # the mode of a file that only its owner may read, where the file system has owners
MOMENT = 0.3  # seconds for which a lock may be held by who only looks whether it is


def cache_directory() -> Path:
    """Folder for files that can be made again: ``$EQUIPOISE_CACHE``, or ``~/.cache/equipoise``."""
    return Path(os.environ.get("EQUIPOISE_CACHE") or Path("~/.cache/equipoise").expanduser())


def write_atomically(
    path: Path, content: str | bytes | Iterable[bytes | memoryview], *, private: bool = False, lasting: bool = True
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
    if private:
        make_private(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        content = content.encode() if isinstance(content, str) else content
        write_new(temporary, content, PRIVATE if private else 0o666)
        temporary.replace(path)
        if private and lasting and os.name == "posix":
            os.fsync(folder := os.open(path.parent, os.O_RDONLY))
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_new(path: Path, content: bytes | Iterable[bytes | memoryview], mode: int = 0o666) -> float:
    """Write a file that does not exist yet, see :func:`open_new`; the time of that on the clock of its file system.

    Raises
    ------
    FileExistsError : it exists.
    """
    with open_new(path, mode) as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_mtime


def real_path(path: Path, folder: Path) -> Path:
    """Where a path below a folder leads, which is also below it.

    Raises
    ------
    RunError : a link leads out of the folder.
    """
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise RunError(f"{path} is a link that leads out of {folder}, and is not followed. Put a copy there instead.")
    return real


def open_regular(path: Path, folder: Path | None = None) -> BinaryIO:
    """Open a regular file to read it.

    Parameters
    ----------
    path : the file.
    folder : a link may not lead out of this folder, by default the one that the file is in.

    Raises
    ------
    OSError : it does not exist, or may not be read.
    RunError : a link leads out of the folder; or it is a pipe or a device.
    """
    real = real_path(path, folder or path.parent)
    file = open(real, "rb", opener=lambda name, flags: os.open(name, flags | STRAIGHT))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise RunError(f"{path} is a pipe or a device. Put a file there instead.")


def read_regular(path: Path, folder: Path | None = None, most: int = MOST) -> bytes:
    """The content of a regular file, as :func:`open_regular` opens it, of at most ``most`` bytes.

    Raises
    ------
    OSError, RunError : see :func:`open_regular`; or it is larger.
    """
    with open_regular(path, folder) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise RunError(f"{path} has more than {most:,} bytes, and Equipoise writes none so large. Get it again.")
        if size > LITTLE:
            import torch  # here, because it takes a second

            from equipoise.system import memory

            if size > (free := memory.free(torch.device("cpu")) or size):
                raise RunError(f"{path} has {size:,} bytes, and {free:,} of the memory are free. It is damaged.")
        return file.read()


def append(path: Path, text: str, *, private: bool = False) -> None:
    """Add a text to the end of a file, which is made if missing; it is on the disk when this returns.

    ``private``: only the owner may read the file, even if others could before.
    """
    mode = PRIVATE if private else 0o666
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags | STRAIGHT, mode)) as file:
        _require_alone(path)
        if private and open_to_others(path):
            path.chmod(PRIVATE)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def make_private(path: Path, mode: int = 0o700) -> None:
    """Make a directory, and those above it, where they are missing: for their owner only, or others with at most this ``mode``."""
    for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        missing.mkdir(mode, exist_ok=True)


def open_to_others(path: Path) -> bool:
    """Whether others than its owner may read a file, as far as the system has modes."""
    return os.name == "posix" and bool(path.stat().st_mode & 0o077)


def open_new(path: Path, mode: int = 0o666) -> BinaryIO:
    """Open a file that does not exist yet to write it; others may do with it at most what ``mode`` and the umask both allow."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def open_private(path: Path) -> BinaryIO:
    """Open a file to write it anew; only its owner may read it, even if others could before. A link in its place is removed."""
    if path.is_symlink():
        path.unlink()
    file = open(path, "wb", opener=lambda name, flags: os.open(name, flags | STRAIGHT, PRIVATE))  # noqa: SIM115
    with contextlib.suppress(OSError):  # where the file system has no owners
        path.chmod(PRIVATE)
    return file


def sweep(directory: Path) -> None:
    """Remove files partly written by killed processes; only for a directory that no other process writes to."""
    for left in directory.glob(f".*{PART}"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False, private: bool = False) -> Iterator[None]:
    """Hold the lock of a file while the block runs; the system frees it when its process ends in any way.

    Parameters
    ----------
    path : the lock file, made if missing; it stays and has the number of the last process that held it.
    wait : until the lock is free.
    private : only the owner may read the file, whatever the umask.
    """
    from filelock import FileLock, Timeout  # here, because it brings asyncio and sqlite3, a tenth of a second

    if path.exists():
        _require_alone(path)
    lock = FileLock(path, mode=PRIVATE) if private else FileLock(path)
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


def require_own(
    directory: Path, holds: str, mark: str, beside: str = "", *, another: str = "Choose another directory"
) -> None:
    """Require that a directory is new, or has the file ``mark`` of what it ``holds``; hidden files, and the folder ``beside``, do not count.

    Raises
    ------
    RunError : it has other files.
    """
    if not directory.exists() or (directory / mark).exists():
        return
    if any(not path.name.startswith(".") and path.name != beside for path in directory.iterdir()):
        raise RunError(f"{directory} is not empty and holds no {holds}. {another}.")


def _require_alone(path: Path) -> None:
    """Require that a file that is changed where it lies has no other name, in a folder that others have not made."""
    if path.stat().st_nlink > 1 and not path.is_dir():
        raise RunError(f"{path} is also another file (a hard link), which would change with it. Put a copy there.")


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, RunError):
        return read_regular(path, most=20).decode().strip() or "unknown"
    return "unknown"
