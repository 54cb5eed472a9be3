"""Fetch a file from a plain address: whole and checked, or not at all."""

import tarfile
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.data.locations import digest
from equipoise.system.files import PART

CHUNK = 1 << 16
TIMEOUT = 60.0  # seconds without a byte
HEADERS = {"User-Agent": "equipoise", "Accept-Encoding": "identity"}  # the file as it is published, not packed again


@dataclass(frozen=True)
class Address:
    """Where a file can be had, and which.

    Parameters
    ----------
    url : its address.
    place : where it goes, below the user's folder.
    size : bytes.
    md5 : of the whole file, in hexadecimal, as its publishers or torchvision give it.
    split : the split that needs it; ``None`` if all do.
    unpack : files of this archive that go beside it, all in one folder; empty if it is none.
    inside : md5 of each of them, or of what is packed in the file.
    """

    url: str
    place: str
    size: int
    md5: str
    split: str | None = None
    unpack: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


def fetch(address: Address, root: Path, on_bytes: Callable[[int], object] = int) -> Path:
    """Put a file into its place below ``root``, and unpack it if it is an archive.

    It is written beside its place, checked, and then renamed. What is there already is never changed.

    Parameters
    ----------
    address : what to fetch.
    root : the user's folder; made if missing.
    on_bytes : called with the number of bytes that have arrived so far, after each piece.

    Returns
    -------
    The file's path.

    Raises
    ------
    OSError : no answer, one that ends too early, or another file than the published one; nothing of it is kept.
    FileExistsError : another file is in its place.
    OSError : the folder cannot be written, or is full.
    """
    path = root / address.place
    if not path.exists():
        _fetch(address, path, on_bytes)
    elif digest(path, "md5") != address.md5:
        raise FileExistsError(
            f"{path} is there already, and is not the published file (md5 {digest(path, 'md5')}, expected {address.md5}). Move it away"
        )
    if address.unpack:
        _unpack(path, address.unpack)
    return path


@dataclass
class _Progress:
    """What pooch calls as the pieces of a file arrive: an answer that does not end is cut off here."""

    address: Address
    on_bytes: Callable[[int], object]
    total: int = 0  # what the server promises
    done: int = 0

    def update(self, nbytes: int) -> None:
        self.done += nbytes
        if self.done >= self.address.size + CHUNK:
            raise ValueError(f"more than {self.address.size} bytes")
        self.on_bytes(min(self.done, self.address.size))

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _fetch(address: Address, path: Path, on_bytes: Callable[[int], object]) -> None:
    import pooch  # with requests, only where something is fetched
    import requests

    pooch.get_logger().setLevel("ERROR")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:

            def close(answer: requests.Response, *_: Any, **__: Any) -> None:
                stack.callback(answer.close)

            progress, hooks = _Progress(address, on_bytes), {"response": close}
            load = pooch.HTTPDownloader(progress, CHUNK, headers=HEADERS, timeout=TIMEOUT, hooks=hooks)
            part = stack.enter_context(tempfile.TemporaryDirectory(prefix=".", suffix=PART, dir=path.parent))
            made = pooch.retrieve(address.url, f"md5:{address.md5}", path.name, part, downloader=load)
            Path(made).replace(path)
    except requests.HTTPError as error:
        raise OSError(f"{address.url}: the server answered {str(error).partition(' for url')[0]}") from None
    except requests.RequestException as error:
        raise OSError(f"{address.url}: cannot be fetched, or not to its end ({error}). Nothing was kept") from None
    except ValueError as error:  # too long, or another checksum
        reason = str(error).split(". ")[0]
        raise OSError(f"{address.url}: gave another file than the published one ({reason}). Nothing was kept") from None


def _unpack(archive: Path, names: tuple[str, ...]) -> None:
    """Take some files, all in one folder, out of a checked archive; the folder appears whole or not at all."""
    if all((archive.parent / name).exists() for name in names):
        return
    folder = archive.parent / Path(names[0]).parent
    if folder.exists():
        raise FileExistsError(f"{folder} is there already, and lacks files of {archive}. Move it away")
    with tempfile.TemporaryDirectory(prefix=".", suffix=PART, dir=archive.parent) as temporary:
        inside = Path(temporary) / folder.name
        inside.mkdir()
        with tarfile.open(archive) as tar:
            for name in names:
                source = tar.extractfile(name)
                assert source is not None  # of an archive with the published checksum
                (inside / Path(name).name).write_bytes(source.read())
        inside.replace(folder)
