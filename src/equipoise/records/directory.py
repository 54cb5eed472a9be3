"""Reading the directory of a run, and finding those of several."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from equipoise.metrics.groups import POSITIVE_CLASS
from equipoise.records.meta import LEAK, REPEATED, TOGETHER, Content, Meta
from equipoise.records.record import Record, parse, shorten
from equipoise.records.threshold import FILE, Chosen
from equipoise.system import own_code, places
from equipoise.system.errors import DamagedError, RunError
from equipoise.system.files import read_regular, real_path
from equipoise.system.seals import open_json, open_toml
from equipoise.system.text import Said

ORDER = "comparison.json"  # in a directory of several runs: which they are, the reference first
CONDITIONS = "conditions.json"  # in the directory of a suite: under which all its results were reached
# in a directory in which settings were chosen: which, and the runs that chose them
CHOSEN, TRIALS = "chosen.toml", "trials"

Parsed = TypeVar("Parsed")

_AGAIN = {  # what helps where a file is not what was written; all others are untouched by it
    "config.toml": "The records of its rounds are intact. Put the file back, or delete the directory and run again.",
    "summary.json": "The run is intact. Delete this file; `equipoise resume` of the directory writes it again.",
    "manifest.json": "The run is intact. Delete this file and summary.json; resuming the run writes both again.",
    FILE: "The run is intact. Delete this file, and give the command equipoise threshold again.",
    "checkpoint.json": "The records of its rounds are intact. Put the file back, or delete the folder checkpoint to read them.",
}
LOST = "Put the file back, or begin in another folder."
# of these a manifest has what was measured, a configuration only the request
MEASURED = ("contribution", "units", "data", "measures", "task")
_WORDS = {  # of lines about runs of versions that wrote no keys
    LEAK: r"data: (?>.*?: the columns? ).+ tells?(?:, each alone,)? the (?:class|number to predict)\b.*$",
    POSITIVE_CLASS: "The positive class is ",
    REPEATED.key: re.escape(REPEATED),
    TOGETHER.key: re.escape(TOGETHER),
}
ROWS = ("clients", "tests", "validation")  # of the data in a manifest: which sample went where
_META = [key for key in Meta.__annotations__ if key not in ("config", "small_groups", "threshold")]  # in these files


def members(base: Path) -> list[Path]:
    """Runs inside a directory: those of its comparison in the order they were named, else by name."""
    if any((base / name).exists() for name in ("config.toml", "manifest.json")):  # a run from Python has no config
        return [base]
    if (base / ORDER).exists():
        try:
            order = open_json(read_regular(base / ORDER).decode(errors="replace"))
            names = order["runs"] if isinstance(order, dict) else order
            if not all(Path(name).name == name for name in names):
                raise ValueError(names)
        except (ValueError, TypeError, KeyError):
            raise RunError(
                f"{base / ORDER} is damaged. Delete it: the same command writes it again, and no run is lost."
            ) from None
        runs = [base / name for name in names]
    else:
        of_python = (path.parent for path in base.glob("*/manifest.json") if (path.parent / "metrics.jsonl").exists())
        runs = sorted({*(path.parent for path in base.glob("*/config.toml")), *of_python})
    for run in runs:
        real_path(run, base)
    return runs


def comparisons(base: Path) -> list[Path]:
    """The comparisons inside a folder, then its single runs; empty if the folder has no comparison, or is one."""
    inside = [] if (base / ORDER).exists() else sorted(path.parent for path in base.glob(f"*/{ORDER}"))
    return [*inside, *members(base)] if inside else []


def all_members(directories: Sequence[Path]) -> list[Path]:
    """Runs inside several directories, as `members`.

    Raises
    ------
    ValueError : a directory holds no run, or only runs that chose settings.
    """
    for directory in directories:
        base = directory.parent if directory.name == TRIALS else directory
        if (base / CHOSEN).exists():
            raise ValueError(
                f"The runs in {base} chose settings, and have no results on test data. How they did is in {base / 'tuning.html'}."
            )
    runs = [members(directory) for directory in directories]
    if empty := [str(directory) for directory, inside in zip(directories, runs, strict=True) if not inside]:
        pages = [
            path for base in empty for path in (Path(base, "index.html"), Path(base, "report.html")) if path.exists()
        ]
        made = f" Its page is {pages[0]}; the runs of a reproduction are in reproduce/cells." if pages else ""
        raise ValueError(f"No run in {', '.join(empty)}: expected directories with a config.toml.{made}")
    return [run for inside in runs for run in inside]


def read(run: Path) -> tuple[tuple[Record, ...], Meta]:
    """The records and the meta data that a run directory holds."""
    config: Content = {}
    if (run / "config.toml").exists() or not (run / "manifest.json").exists():  # a run from Python has no config
        hint = "This is not the directory of a run; pass runs/<name>."
        config = places.shown(_opened(run / "config.toml", open_toml, hint))
    noted = stored(run / "summary.json") | manifest(run)
    merged = noted | config | {key: noted.get(key) for key in MEASURED}
    if isinstance(merged["data"], dict):  # which sample went to which client is in the manifest only
        rows = [merged["data"].get(key) for key in ROWS]
        merged["data"] = {key: value for key, value in merged["data"].items() if key not in ROWS}
        if any(rows):
            merged["data"]["rows"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    meta = {key: merged[key] for key in _META if merged.get(key) is not None}
    for key in ("method", "scenario"):
        if isinstance(meta.get(key), dict):  # a table [scenario] with a name and options
            meta[key] = meta[key].get("name")
    if not isinstance(meta.get("method"), str):
        raise ValueError(
            f'{run / "config.toml"}: expected a line such as method = "fedavg", '
            f"found the keys {', '.join(sorted(config)) or 'none'}. Add the method the run was made with."
        )
    if isinstance(header := meta.get("header"), list):
        keys = meta.pop("header_keys", None)
        read = (
            zip(header, [*keys, *[""] * len(header)], strict=False) if isinstance(keys, list) else map(_earlier, header)
        )
        meta["header"] = [Said(str(line), str(key)) for line, key in read]
    chosen = {"threshold": _opened(run / FILE, _parse_threshold, "")} if (run / FILE).exists() else {}
    return _records(run), cast(Meta, meta | {"config": config} | chosen)


def manifest(run: Path) -> Content:
    """What was noted about a run; empty before it trains."""
    return stored(run / "manifest.json")


def stored(path: Path) -> Content:
    """The content of a JSON file that was written here; empty without it.

    Raises
    ------
    ValueError : it is damaged, and what helps.
    """
    return _opened(path, _parse_object, "") if path.exists() else {}


def _earlier(line: object) -> tuple[str, str]:
    """A line about a run of a version that wrote no keys, which had the whole path of a rule's file, and its key by its words."""
    text = str(line)
    keys = (key for key, words in _WORDS.items() if re.match(words, text))
    if text.startswith(method := "method "):
        text = method + own_code.short(text.removeprefix(method))  # a path may have blanks
    return text, next(keys, "")


def _failure(run: Path) -> str:
    """Why a run failed, if it did."""
    path = run / "failed.json"
    about = _opened(path, _parse_object, "", run) if path.exists() else {}
    return f" It failed: {about['error']}" if about.get("error") else ""


def _records(run: Path) -> tuple[Record, ...]:
    """All records of a run, which must have the line that its checkpoint counts on."""
    path, pointer = run / "metrics.jsonl", run / "checkpoint" / "checkpoint.json"
    # read first, because another process may be at the run
    last = _opened(pointer, _parse_object, "", run).get("records") if pointer.exists() else None
    try:
        records, hashes = _opened(path, parse, f"The run has not finished its first round.{_failure(run)}")
    except DamagedError as error:
        raise ValueError(
            f"{path}: {error}. Put the file back, or run again. To read what is intact, delete line {error.fields['number']} "
            "and all that follow, and the folder checkpoint."
        ) from None
    if last and last not in hashes:
        raise ValueError(
            f"{path}: lines are missing after line {len(records)}; the rounds before are intact. Put the file back, or run again. "
            "To read what is intact, delete the folder checkpoint."
        )
    return tuple(records)


def _parse_object(text: str) -> Content:
    content = open_json(text)
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object, found {shorten(content)}.")
    return content


def _parse_threshold(text: str) -> Content:
    content = _parse_object(text)
    if missing := sorted(Chosen.__annotations__.keys() - content.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}. {_AGAIN[FILE]}")
    return content


def _opened(path: Path, parse: Callable[[str], Parsed], hint: str, folder: Path | None = None) -> Parsed:
    try:
        text = read_regular(path, folder).decode(errors="replace")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist. {hint}".rstrip()) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        return parse(text)
    except DamagedError as error:
        if "number" in error.fields:  # of a line
            raise
        raise ValueError(f"{path}: {error}. {_AGAIN.get(path.name, LOST)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
