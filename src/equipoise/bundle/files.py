"""The files of a bundle: their hashes are written with them, and they are read only if they are what was written."""

import hashlib
import html
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.records.threshold import USES_GROUP
from equipoise.system.errors import InputError
from equipoise.system.files import ANYWHERE, LARGE, open_new, read_regular
from equipoise.system.seals import open_json, sealed_json

FORMAT = 2  # raise it whenever an earlier Equipoise cannot read what is written: 1 had no decision
ABOUT, SCHEMA, WEIGHTS, GRAPH = "bundle.json", "schema.json", "model.safetensors", "model.onnx"
CARDS = ("README.md", "card.html")  # may be edited: no prediction depends on them
KEPT = "THISFOLDER"  # the name of a bundle until it is taken home
AGAIN = "Write the bundle again: equipoise export RUN --bundle DIR."


def require_free(folder: Path) -> None:
    """Require that a bundle would replace nothing."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists, and a bundle replaces nothing. Give the name of a new folder.")


def write(folder: Path, about: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write a bundle as a whole: its files, and what it is, with their SHA-256."""
    require_free(folder)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    _write(folder, {**files, ABOUT: sealed_json({"format": FORMAT, **about, "files": hashes}).encode()})


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder as a whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        for name, content in files.items():
            with open_new(part / name, 0o644) as file:
                file.write(content)
        part.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def take(folder: Path, home: Path) -> None:
    """Copy a bundle that is as it was written: the files that it lists, and no others."""
    require_free(home)
    names = [ABOUT, *read(folder)["files"]]
    copied = {name: read_regular(folder / name, folder, LARGE) for name in names if (folder / name).exists()}
    name = json.dumps(home.absolute().name, ensure_ascii=False)[1:-1]
    for card in {*CARDS} & {*copied}:  # as they may be edited
        title = html.escape(name) if card.endswith(".html") else name
        copied[card] = copied[card].replace(KEPT.encode(), title.encode())
    _write(home, copied)


def cautions(folder: Path) -> list[str]:
    """What whoever predicts with a bundle must know first: that the model is of no use, or decides by groups of people."""
    about = read(folder)
    failure, attribute = about["measures"].get("failure"), (about.get("decision") or {}).get("attribute")
    useless = [f"The model is of no use: {failure}."] if failure else []
    return useless + ([USES_GROUP.format(attribute)] if attribute else [])


def read(folder: Path) -> dict[str, Any]:
    """What a bundle is, after all files that predictions depend on were compared with their SHA-256.

    Raises
    ------
    InputError : no bundle, of a later format, or edited, naming the file.
    """
    path = folder / ABOUT
    try:
        text = read_regular(path, ANYWHERE).decode()  # the cache of the hub has links
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"{folder} is not a bundle: it has no {ABOUT}. Write one: equipoise export RUN --bundle DIR."
        ) from None
    try:
        about = open_json(text) if text.startswith('{\n "seal": "') else None
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise InputError(f"{path} was edited: its content is not what was written. {AGAIN}")
    if about.get("format") not in (1, FORMAT):
        raise InputError(
            f"{path} has format {about.get('format')}, and this Equipoise reads {FORMAT}. Install the newest Equipoise."
        )
    for name, digest in about["files"].items():
        if name in CARDS:
            continue
        file = folder / name
        if file.name != name or not file.is_file():
            raise InputError(f"{file} is missing, which the bundle needs. {AGAIN}")
        if (content := read_regular(file, ANYWHERE, LARGE)).startswith(b"version https://git-lfs"):
            raise InputError(f"{file} is a pointer of Git LFS, and its content was not fetched: git lfs pull.")
        if hashlib.sha256(content).hexdigest() != digest:
            raise InputError(f"{file} was edited: its content is not what was written. {AGAIN}")
    return about
