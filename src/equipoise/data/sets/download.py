"""Fetch a file from a plain address: whole and checked, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from equipoise.data.locations import digest
from equipoise.system.files import PART

CHUNK = 1 << 16
TIMEOUT = 60.0  # seconds without a byte


class FetchError(OSError):
    """An address that does not answer, or answers with something else than the published file."""


@dataclass(frozen=True)
class Address:
    """Where a file can be had, and which.

    Parameters
    ----------
    url : its address.
    place : where it goes, below the user's folder.
    size : bytes.
    md5 : of the whole file, in hexadecimal, as its publishers or torchvision tell it.
    split : the split that needs it; ``None`` if all do.
    unpack : files of this archive that go beside it, all in one folder; empty if it is none.
    """

    url: str
    place: str
    size: int
    md5: str
    split: str | None = None
    unpack: tuple[str, ...] = ()

    def there(self, root: Path) -> bool:
        """Whether nothing is left to do below ``root``; what is in the files is not looked at."""
        places = [root / name for name in self.unpack] or [root / self.place]
        return all(path.exists() for path in places)


def fetch(address: Address, root: Path, on_bytes: Callable[[int], object] = int) -> Path:
    """Put a file into its place below ``root``, and unpack it if it is an archive.

    It is written beside its place, checked, and then renamed. What is there already is never changed.

    Parameters
    ----------
    address : what to fetch.
    root : the user's folder; made if missing.
    on_bytes : called with the number of bytes of each piece that arrived.

    Returns
    -------
    The file's path.

    Raises
    ------
    FetchError : no answer, one that ends too early, or another file than the published one; nothing of it is kept.
    FileExistsError : another file is in its place.
    OSError : the folder cannot be written, or is full.
    """
    path = root / address.place
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(address, path, on_bytes)
    elif digest(path, "md5") != address.md5:
        raise FileExistsError(
            f"{path} is there already, and is not the published file (md5 {digest(path, 'md5')}, expected {address.md5}). "
            "Move it away"
        )
    if address.unpack:
        _unpack(path, address.unpack)
    return path


def _fetch(address: Address, path: Path, on_bytes: Callable[[int], object]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    md5, size = hashlib.md5(usedforsecurity=False), 0
    try:
        with closing(_chunks(address.url)) as chunks, part.open("wb") as file:
            for chunk in chunks:
                md5.update(chunk)
                size += len(chunk)
                file.write(chunk)
                on_bytes(len(chunk))
                if size > address.size:
                    break
            file.flush()
            os.fsync(file.fileno())
        if md5.hexdigest() != address.md5:
            found = f"more than {address.size}" if size > address.size else f"{size} of {address.size}"
            raise FetchError(
                f"{address.url}: gave another file than the published one ({found} bytes, md5 {md5.hexdigest()}, expected "
                f"{address.md5}). Nothing of it was kept"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _chunks(url: str) -> Generator[bytes, None, None]:
    """What an address sends, in pieces; every failure of the network is one error that names the address."""
    try:
        with urlopen(Request(url, headers={"User-Agent": "equipoise"}), timeout=TIMEOUT) as answer:
            while chunk := answer.read(CHUNK):
                yield chunk
    except HTTPError as error:
        error.close()
        raise FetchError(f"{url}: the server answered {error.code} {error.reason}") from None
    except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
        raise FetchError(f"{url}: cannot be fetched ({getattr(error, 'reason', None) or error})") from None


def _unpack(archive: Path, names: tuple[str, ...]) -> None:
    """Take some files, all in one folder, out of a checked archive; the folder appears whole or not at all."""
    folder = archive.parent / Path(names[0]).parent
    if all((archive.parent / name).exists() for name in names):
        return
    if folder.exists():
        raise FileExistsError(f"{folder} is there already, and lacks files of {archive}. Move it away")
    with tempfile.TemporaryDirectory(prefix=".", suffix=PART, dir=archive.parent) as temporary:
        inside = Path(temporary) / folder.name
        inside.mkdir()
        with tarfile.open(archive) as tar:
            for name in names:
                source = tar.extractfile(name)
                if source is None:
                    raise FetchError(f"{archive}: {name} is no file in it")
                with source, (inside / Path(name).name).open("wb") as file:
                    shutil.copyfileobj(source, file)
        inside.replace(folder)
