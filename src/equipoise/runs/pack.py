"""Runs in one file for others: settings, code, records, report, versions, hashes; and whether somebody else gets the same numbers."""

import contextlib
import errno
import hashlib
import json
import math
import re
import shlex
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any

import tomli_w

from equipoise.data.contents import JSON, check_bytes, check_zip
from equipoise.engines import distributed
from equipoise.federation import checkpoint
from equipoise.federation.directory import CHECKPOINT, MANIFEST, METRICS
from equipoise.federation.history import History
from equipoise.records.directory import ORDER, manifest, members
from equipoise.records.identity import Identity
from equipoise.records.meta import Content
from equipoise.records.record import lines, parse
from equipoise.report.html import write as write_report
from equipoise.runs import choosing, directory as runs, plan, unchanged
from equipoise.runs.configuration import RunConfig, RunError, whole
from equipoise.system import own_code, places, tree, trust, workers
from equipoise.system.environment import kind, machine, source, versions
from equipoise.system.files import LARGE, read_regular, real_path, write_atomically
from equipoise.system.seals import open_json, sealed_json, sealed_text, typed

FORMAT = 1
ABOUT = "pack.json"  # what else is in the file, with sizes and hashes
RERUN, CONSTRAINTS, REPORT = "rerun.sh", "constraints.txt", "report.html"
KEPT = ("summary.json", "failed.json", "threshold.json")  # of a run, beside its settings, manifest and records
LARGEST = 16 << 20  # bytes of the list of contents
PIECE = 1 << 20  # bytes that are unpacked at a time
MOST = 100_000  # files
TIMES = ("seconds", "hash", "times")  # of a record, which no run has twice
SHOWN = 10  # faults that are named
# what the system says of names that no pack has; EINVAL: the damaged list of files names a place before the file's beginning
DAMAGED = (None, errno.EINVAL, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
OUTSIDE = "elsewhere"  # the folder of code and data that were not in the project
SCRIPT = """#!/bin/sh
# Makes the runs again, in the folder "again". Data that are not in this file: DATA=PATH sh rerun.sh
# The versions that the numbers are of: pip install -c constraints.txt equipoise
# This runs the code that is in this folder. To compare the numbers: equipoise verify FILE.zip --run-code
set -eu
cd "$(dirname "$0")"
for run in {runs}; do
    mkdir -p "again/$run"
    cp "$run/config.toml" "again/$run/config.toml"
    equipoise resume --trust "again/$run" ${{DATA:+--data "$DATA"}}
done
"""


# making one
# of every file, by its name in the pack: what it is, and its bytes, or its place
Contents = dict[str, tuple[str, bytes | Path]]


def _add(contents: Contents, name: str, content: bytes | str | Path, sort: str) -> None:
    """Add a file to what goes into a pack."""
    content = content.encode() if isinstance(content, str) else content
    if name in contents and _bytes(contents[name][1]) != _bytes(content):
        raise RunError(f"Two different files would be {name} in the pack. Rename one of them.")
    contents[name] = sort, content


def pack(directory: Path, output: Path, *, with_data: bool = False, include: Sequence[Path] = ()) -> Content:
    """Write a run, or all runs of a comparison, into one zip file, with the same bytes for the same runs; return what is in it.

    Parameters
    ----------
    directory : of a run or a comparison, all complete.
    output : the file to write.
    with_data : take the user's data and weights in, too; code of the user's own is always in.
    include : more files or folders, which the code reads, such as data of a function.
    """
    paths = members(directory)
    if not paths:
        raise RunError(f"There is no run in {directory}. Give the directory of a run, or of a comparison.")
    contents, entries, project = Contents(), list[Content](), Path.cwd()
    top = f"runs/{directory.absolute().name}"
    for path in paths:
        entry, project = _add_run(contents, path, top if path == directory else f"{top}/{path.name}", with_data)
        entries.append(entry)
    if (directory / ORDER).exists():
        _add(contents, f"{top}/{ORDER}", read_regular(directory / ORDER), "run")
    if (choice := directory / choosing.FOLDER / choosing.TUNING).exists():
        _add(contents, f"{top}/{choosing.FOLDER}/{choosing.TUNING}", read_regular(choice, directory), "choice")
    for path in include:
        _add_tree(contents, path, _inside(path, project), "included")
    _add(contents, f"{top}/{REPORT}", _report(contents, entries), "report")
    if rerun := [shlex.quote(entry["path"]) for entry in entries if entry["again"]]:
        _add(contents, RERUN, SCRIPT.format(runs=" ".join(rerun)), "script")
    _add(contents, CONSTRAINTS, _constraints([entry["versions"] for entry in entries]), "versions")
    listed = {}
    for name, (sort, origin) in sorted(contents.items()):
        content = _bytes(origin)
        listed[name] = {"kind": sort, "bytes": len(content), "sha256": _sha(content)}
    about = {"format": FORMAT, "runs": entries, "files": listed}
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
        for name in (ABOUT, *listed):
            member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            member.external_attr = (0o755 if name == RERUN else 0o644) << 16
            member.compress_type, member.create_system = zipfile.ZIP_DEFLATED, 3
            file.writestr(member, sealed_json(about) if name == ABOUT else _bytes(contents[name][1]))
    packed = made.getvalue()
    write_atomically(output, packed)
    return {**about, "sha256": _sha(packed), "bytes": len(packed)}


def _add_run(contents: Contents, path: Path, where: str, with_data: bool) -> tuple[Content, Path]:
    """Add a run: what is said of it, and its project."""
    of_python = not (path / "config.toml").exists()
    if not of_python and not runs.finished(path):
        raise RunError(f"{path} is not complete. Finish it first: equipoise resume {shlex.quote(str(path))}.")
    history = History.from_run(path)
    names: dict[str, str] = {}  # whole paths, and what they are in the pack
    project, data = Path.cwd(), None
    if not of_python:
        if history.meta["config"].get("engine") == "flower":
            raise RunError(f"{path} is a run between sites, which have their data. It cannot be repeated elsewhere.")
        config, project = runs.load(path), runs.project_of(path)
        names = _code(contents, config, project)
        data = _data(contents, config, project, names, with_data)
        # where the records were sent is nobody's business
        settings = {k: v for k, v in config.table().items() if v is not None and k != "track"}
        inside = places.mapped(settings, lambda path: _named(path, names, project))
        up = "/".join([".."] * len(PurePosixPath(where).parts))
        _add(contents, f"{where}/config.toml", sealed_text(tomli_w.dumps({places.PROJECT: up, **inside})), "run")
    if noted := places.private(manifest(path), names, project):
        _add(contents, f"{where}/{MANIFEST}", sealed_json(noted), "run")
    records = places.private(list(history.records), names, project)
    _add(contents, f"{where}/{METRICS}", "".join(lines(records)), "run")
    for name in KEPT:
        if (path / name).exists():
            _add(contents, f"{where}/{name}", read_regular(path / name), "run")
    entry = {"path": where, "method": history.label, "seed": history.seed, "rounds": len(history)}
    # a program of the user's made those that cannot be made again
    entry |= {"again": not of_python, "data": data, "state": _state(path)}
    entry["versions"] = history.meta.get("versions") or noted.get("versions") or {}
    entry["machines"] = [kind(computer) for computer in history.meta.get("machines") or ()]
    return entry, project


def _code(contents: Contents, config: RunConfig, project: Path) -> dict[str, str]:
    """Add the user's code, where it lies in the project or else in a folder of its own; whole paths, and what they are in the pack."""
    names: dict[str, str] = {}
    for where in config.own_code or {}:
        if (first := own_code.source(where)) is None or own_code.installed(first):
            continue
        if own_code.is_file(where) and where in names:
            continue
        top = own_code.top(where, first)
        for file in (first, *map(Path, own_code.beside(where))):
            name = file.relative_to(top).as_posix()
            if own_code.is_file(where):
                outside = f"{OUTSIDE}/{_sha(first.read_bytes())[:12]}/{name}"
                name = file.relative_to(project).as_posix() if file.is_relative_to(project) else outside
            if _sha(content := file.read_bytes()) not in (config.own_code or {}).values():
                raise RunError(
                    f"{file} is not among the code that the run was begun with. Look at it, and give it with --include if the run needs it."
                )
            names.setdefault(str(file), name)
            _add(contents, names[str(file)], content, "code")
    return names


def _data(
    contents: Contents, config: RunConfig, project: Path, names: dict[str, str], with_data: bool
) -> Content | None:
    """Add the user's data and other files of the settings, if they are to be in; what is said of the data."""
    options = [config.network_options.get("weights"), config.scenario_options.get("lists")]
    for text in (config.data, *options):
        if not isinstance(text, str) or text.startswith(places.HUB) or own_code.is_reference(text):
            continue
        path = Path(text)
        names[text] = _inside(path, project)
        if with_data:
            if not path.exists():
                raise RunError(f"{path} is gone, and --with-data needs it. Put it back, or leave --with-data out.")
            _add_tree(contents, path, names[text], "data")
    if config.data is None:
        return None
    apart = config.data.startswith(places.HUB) or own_code.is_reference(config.data)
    return {"name": _named(own_code.short(config.data), names, project), "inside": with_data or apart}


def _add_tree(contents: Contents, path: Path, name: str, sort: str) -> None:
    """Add a file, or all files of a folder."""
    if not path.exists():
        raise RunError(f"{path} does not exist. Correct --include.")
    inside = sorted(p for p in path.rglob("*") if p.is_symlink() or not p.is_dir()) if path.is_dir() else [path]
    for file in inside:
        inner = "" if file == path else f"/{file.relative_to(path).as_posix()}"
        _add(contents, f"{name}{inner}", real_path(file, path), sort)


def _inside(path: Path, project: Path) -> str:
    """What a file is called in a pack: as in the project, or else in a folder for all others."""
    full = Path(places.absolute(path))
    return full.relative_to(project).as_posix() if full.is_relative_to(project) else f"{OUTSIDE}/{full.name}"


def _named(path: str, names: Mapping[str, str], project: Path) -> str:
    return names.get(path) or (_inside(Path(path), project) if Path(path).is_absolute() else path)


def _report(contents: Contents, entries: Sequence[Mapping[str, Any]]) -> bytes:
    """The report of the runs as they are in the pack; that in their directory may be of an earlier version, which named folders."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (sort, content) in contents.items():
            if sort == "run":
                write_atomically(Path(folder) / name, _bytes(content))
        histories = [History.from_run(Path(folder) / entry["path"]) for entry in entries]
        return write_report(histories, Path(folder) / REPORT).read_bytes()


def _state(path: Path) -> Content | None:
    """The hashes of the tensors after the last round."""
    if not checkpoint.exists(path / CHECKPOINT):
        return None
    last = checkpoint.about(path / CHECKPOINT)
    return {"sha256": last["sha256"], "rows": sorted(digest for _, digest in last.get("rows", {}).get("files", ()))}


def _constraints(versions: Sequence[Mapping[str, str]]) -> str:
    """For pip, the versions that the runs recorded; where they differ, those of the first."""
    first = {name: version for recorded in reversed(versions) for name, version in recorded.items()}
    python = first.pop("python", "of a version that was not recorded")
    text = "".join(f"{name}=={version.partition('+')[0]}\n" for name, version in sorted(first.items()))
    return f"# Python {python}\n{text}"


def _bytes(content: bytes | Path) -> bytes:
    return read_regular(content, most=LARGE) if isinstance(content, Path) else content


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# checking one
@dataclass(frozen=True)
class Difference:
    """How a run that was made again differs: the largest difference of a number, where it is, and what else does."""

    largest: float
    where: str
    other: str = ""


@dataclass(frozen=True)
class Again:
    """A run that was made again: whether it has the same bits, and if not, how it differs; or why it failed."""

    path: str
    same: bool
    difference: Difference | None = None
    failed: str = ""


def opened(path: Path, folder: Path) -> Content:
    """Check a pack and write its files into an empty folder; what it says of itself. Nothing of it is run.

    Names that lead out of the folder, links, files that are not listed, other sizes and other contents are refused before
    anything can go wrong: no more is read than is listed.
    """
    if path.is_dir():
        command = f"equipoise pack {shlex.quote(str(path))}"
        raise RunError(f"{path} is a directory, and a pack is one file. Make it first: {command}")
    try:
        with zipfile.ZipFile(path) as file:
            about, faults = _unpacked(path, file, folder)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist. Give a file that equipoise pack has written.") from None
    except RunError:
        raise
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in DAMAGED:
            raise
        raise RunError(f"{path} is no zip file, or is damaged ({error}). Get it again.") from None
    except (ValueError, zlib.error) as error:
        raise RunError(f"{path} is damaged ({error}). Get it again.") from None
    if faults:
        more = f", and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise RunError(f"{path} is not what was packed: {'; '.join(faults[:SHOWN])}{more}. Get it again.")
    _check_runs(path, folder, about)
    return about


def _unpacked(path: Path, file: zipfile.ZipFile, folder: Path) -> tuple[Content, list[str]]:
    """The list of contents, and why files are refused; they are written only if none is."""
    entries = file.infolist()
    names = {entry.filename for entry in entries}
    if len(entries) > MOST or len(names) < len(entries):
        raise RunError(f"{path} holds too many files, or two of one name. It was not made by equipoise pack.")
    check_zip(file, 0)  # its parts are unpacked a piece at a time
    about = _listed(path, file)
    faults = [fault for entry in entries if (fault := _fault(entry, about["files"]))]
    faults += [f"{name} is missing" for name in about["files"] if name not in names]
    total = sum(int(listed["bytes"]) for listed in about["files"].values())
    if not faults and total > shutil.disk_usage(folder).free:
        raise RunError(f"{path} holds {total:,} bytes, more than are free on the disk of {folder}.")
    for name, listed in about["files"].items() if not faults else ():
        digest = hashlib.sha256()
        with file.open(name) as packed:  # which has no more than the size that is listed
            write_atomically(folder / name, _pieces(packed, digest.update))
        if digest.hexdigest() != listed["sha256"]:
            faults.append(f"{name} was changed")
    return about, faults


def _pieces(file: IO[bytes], look: Callable[[bytes], None]) -> Iterator[bytes]:
    """A file in pieces that take little memory, each of which was looked at."""
    while piece := file.read(PIECE):
        look(piece)
        yield piece


def _listed(path: Path, file: zipfile.ZipFile) -> Content:
    """The list of contents."""
    if ABOUT not in file.namelist():
        raise RunError(f"{path} has no {ABOUT}, so it was not made by equipoise pack.")
    with file.open(ABOUT) as packed:
        text = packed.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise RunError(f"{path}: {ABOUT} is too large. It was not made by equipoise pack.")
    about: Content = open_json(text.decode())
    try:
        if about["format"] != FORMAT:
            raise RunError(
                f"{path} has the format {about['format']!r}, and this version of Equipoise reads {FORMAT}. Use the version that its {CONSTRAINTS} names."
            )
        files, trained = about["files"], about["runs"]
        paths = {run["path"] for run in trained if isinstance(run["path"], str) and isinstance(run["again"], bool)}
        valid = len(paths) == len(trained) and {f"{path}/{METRICS}" for path in paths} <= files.keys()
        valid = valid and all(isinstance(x["sha256"], str) and isinstance(x["bytes"], int) for x in files.values())
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise RunError(f"{path}: {ABOUT} is not what equipoise pack writes. Get it again.")
    return about


def _fault(entry: zipfile.ZipInfo, listed: Mapping[str, Any]) -> str:
    """Why an entry of a zip file is refused; empty if it is not."""
    name = PurePosixPath(entry.filename)
    plain = name.as_posix() == entry.filename and not re.search(r"[\\:\0]|^\s*$", entry.filename)
    if not plain or name.is_absolute() or ".." in name.parts:
        return f"{entry.filename!r} would be written outside of the folder"
    if stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1:
        return f"{entry.filename} is a link, or encrypted"
    if entry.filename != ABOUT and entry.filename not in listed:
        return f"{entry.filename} is not listed"
    if entry.filename != ABOUT and entry.file_size != listed[entry.filename]["bytes"]:
        return f"{entry.filename} has another size"
    return ""


def _check_runs(path: Path, folder: Path, about: Content) -> None:
    """Require that the records are whole, and that the numbers of a run are those of its records."""
    for run in about["runs"]:
        where = folder / run["path"]
        size = sum(file.stat().st_size for file in where.iterdir() if file.suffix != ".html")
        check_bytes(f"{path}, {run['path']}", JSON * size)
        try:
            _, hashes = parse((where / METRICS).read_text(encoding="utf-8"))
            history = History.from_run(where)
            summary = where / "summary.json"
            kept = typed(Content, open_json(summary.read_text(encoding="utf-8")) if summary.exists() else {})
        except (ValueError, OSError) as error:
            raise RunError(f"{path}: a run in it is damaged: {str(error).replace(f'{folder}/', '')}") from None
        if not all(hashes) or len(history) != run["rounds"]:
            raise RunError(f"{path}: the records of {run['path']} are not those that were packed.")
        if unchanged.source(history.meta) != source():  # it may summarise otherwise
            continue
        now = json.loads(json.dumps(history.summary()))
        if other := sorted(key for key in kept.keys() & now.keys() if _text(kept[key]) != _text(now[key])):
            raise RunError(f"{path}: {run['path']}/summary.json does not follow from its records: {', '.join(other)}.")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def code(about: Content) -> dict[str, str]:
    """The files of a pack that would be run if its runs are made again, and may be imported, with their SHA-256."""
    ends = (".py", ".pyc", ".pyd", ".so", ".pth")
    files = about["files"].items()
    return {name: file["sha256"] for name, file in files if file["kind"] == "code" or name.endswith(ends)}


def rerun(about: Content, folder: Path, again: Path, *, data: str | None = None, jobs: int = 1) -> list[Again]:
    """Make the runs of a pack again, in processes of their own, and compare. **This runs the code in it.**

    Parameters
    ----------
    about : what :func:`opened` gave. folder : where it wrote the files. again : an empty folder for the runs.
    data : where the data are, if they are not in the pack.
    jobs : runs at a time.
    """
    repeatable = [run for run in about["runs"] if run["again"]]
    if not repeatable:
        raise RunError(
            "These runs were made by a program in Python, which is not known here: nothing can be run again."
        )
    lacking = [run["data"]["name"] for run in repeatable if run["data"] and not run["data"]["inside"]]
    if lacking and data is None:
        raise RunError(f"The data are not in the pack: say where {lacking[0]} is, with --data PATH.")
    _lay_out(about["files"], [run["path"] for run in repeatable], folder, again)
    moved = whole(data) if data is not None and lacking else None
    cells = [plan.Cell(run["path"], None, again / run["path"]) for run in repeatable]
    with trust.agreed(), workers.Processes(jobs) as where:
        outcomes = plan.run(cells, lambda cell: where.submit(plan.train, str(cell.folder), _workers(cell), data=moved))
        ended = [(outcome.cell.key, outcome.why.replace(f"{again}/", "")) for outcome in outcomes if outcome.why]
        failed = {path: Again(path, False, failed=why) for path, why in ended}
    return [failed.get(run["path"]) or _compared(run, folder, again) for run in repeatable]


def _workers(cell: plan.Cell) -> int | None:
    """One where the run was trained by several processes: one has the same bits."""
    with contextlib.suppress(RunError, ValueError):  # which the process that trains it states
        return 1 if runs.load(cell.folder).engine == distributed.NAME else None
    return None


def _lay_out(files: Mapping[str, Any], paths: Sequence[str], folder: Path, again: Path) -> None:
    """Copy what runs need into an empty folder: all files except records, and of the manifests only the hashes of the data."""
    kept = {f"{path}/{name}" for path in paths for name in ("config.toml", MANIFEST)}
    for name, file in files.items():
        if file["kind"] != "run" or name in kept:
            target = again / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)
    for path in paths:
        contents = manifest(again / path).get("contents")
        write_atomically(again / path / MANIFEST, sealed_json({"contents": contents, "versions": {}}))


def _compared(run: Mapping[str, Any], folder: Path, again: Path) -> Again:
    before, after = _numbers(folder / run["path"]), _numbers(again / run["path"])
    # an earlier version recorded less by sensitive attribute
    after = {name: value for name, value in after.items() if name in before or ": by " not in name}
    pairs = {name: (before.get(name, ...), after.get(name, ...)) for name in before | after}
    unlike = {name: (a, b) for name, (a, b) in pairs.items() if a != b and not (a != a and b != b)}  # NaN
    sizes = {name: abs(a - b) for name, (a, b) in unlike.items() if {type(a), type(b)} <= {int, float}}
    missing = [name for name, pair in unlike.items() if ... in pair]
    others = [*missing, *(name for name in unlike if name not in sizes)]
    if not unlike and run["state"] is not None and _state(again / run["path"]) != run["state"]:
        others = ["the tensors of the last state"]
    if not sizes and not others:
        return Again(run["path"], True)
    where = max(sizes, key=lambda name: (not math.isfinite(sizes[name]), sizes[name]), default="")
    return Again(run["path"], False, Difference(sizes.get(where, 0.0), where, "".join(others[:1])))


def _numbers(path: Path) -> Content:
    """Everything in the records of a run but times, by where it is."""
    rounds = {f"round {record['round']}:": record for record in History.from_run(path).records}
    counted = {t: {name: value for name, value in record.items() if name not in TIMES} for t, record in rounds.items()}
    return {where: x for t, record in counted.items() for where, x in tree.flatten(record, t, " ").items()}


def unlike(about: Content) -> Iterator[str]:
    """In words, in what this machine is not the one that made the runs: versions and processor."""
    here = Identity(machine={**versions(), "the processor": kind(machine())})
    machines = [{"the processor": text} for run in about["runs"] for text in run["machines"] if text]
    made = [*(run["versions"] for run in about["runs"]), *machines]
    yield from dict.fromkeys(str(change) for its in made for change in Identity(machine=its).differences(here))
