"""Hashes of large files and folders, remembered, so that they are read again only where something changed."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from equipoise.system import files, seals

log = logging.getLogger(__name__)

FILE = "hashes.json"  # in the cache
MOST = 1000  # entries in it, the newest
SETTLED = 2.0  # seconds since the last change of a file: one that is younger may change again without another time


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal.

    Raises
    ------
    OSError : it cannot be read.
    """

    def make() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return remembered(str(path.absolute()), stamp(path), make)


def stamp(path: Path) -> str | None:
    """What changes with a file, or with any file of a folder: names, sizes and times; None where that would not be certain.

    Raises
    ------
    OSError : it cannot be looked at.
    """
    total, newest = hashlib.sha256(), 0.0
    for name, about in _files(path):
        newest = max(newest, about.st_mtime, about.st_ctime)
        total.update(json.dumps([name, about.st_size, about.st_mtime_ns, about.st_ctime_ns]).encode())
    return total.hexdigest() if time.time() - newest > SETTLED else None


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    if not path.is_dir():
        yield "", path.stat()
        return
    seen = set[str]()
    for folder, inner, names in os.walk(path, followlinks=True):
        seen.add(os.path.realpath(folder))
        # links in a circle
        inner[:] = sorted(name for name in inner if os.path.realpath(Path(folder, name)) not in seen)
        for name in sorted(names):
            try:
                yield os.path.relpath(Path(folder, name), path), Path(folder, name).stat()
            except FileNotFoundError:  # a link to nothing
                continue


def remembered(key: str, stamp: str | None, make: Callable[[], str]) -> str:
    """What ``make`` gives, or gave when the stamp was the same; None as stamp asks it always.

    A cache that is damaged or cannot be written costs only the time.
    """
    if stamp is None:
        return make()
    path = files.cache_directory() / FILE
    cache = _kept(path)
    if cache.get(key, ["", ""])[0] == stamp:
        return cache[key][1]
    made = make()
    try:
        cache = {name: entry for name, entry in _kept(path).items() if name != key} | {key: [stamp, made]}
        files.write_atomically(path, seals.sealed_json({"hashes": dict(list(cache.items())[-MOST:])}))
    except OSError as error:
        log.info("%s cannot be written (%s): going on without it.", path, error)
    return made


def _kept(path: Path) -> dict[str, list[str]]:
    try:
        return dict(seals.open_json(path.read_text(encoding="utf-8"))["hashes"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}
