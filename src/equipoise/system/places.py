"""Paths as they hold in a copied folder, on another machine: relative to the project, which is where a run was started.

A run's configuration is written with such paths and read back with whole ones. In its file, ``project`` says where the project
is as seen from the run.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.system import own_code

PROJECT = "project"  # in the file of a configuration
HUB = "hub:"
# settings, and options in a setting, with references to code, and those that are paths
CODE = (("method",), ("network",), ("optimizer",), ("measures",), ("task",), ("scenario_options", "task"))
PATHS = (("network_options", "weights"), ("scenario_options", "lists"))


def own_state() -> Path:
    """The folder of the user's own state on this machine."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "equipoise"


def absolute(path: str | Path) -> str:
    """A path as it holds in any folder; links in it stay as they are."""
    return os.path.normpath(Path(path).expanduser().absolute())


def portable(path: str | Path, base: Path) -> str:
    """A path relative to the folder ``base``; from ``~`` where it is below the home folder and ``base`` is not."""
    whole, home = Path(os.path.normpath(path)), _home()
    if home is not None and whole.is_relative_to(home) and not base.is_relative_to(home):
        return Path("~", whole.relative_to(home)).as_posix()
    with contextlib.suppress(ValueError):  # on another drive of Windows there is no relative path
        return Path(os.path.relpath(whole, base)).as_posix()
    return whole.as_posix()


def located(path: str, project: Path) -> str:
    """The whole path of a :func:`portable` one: from the project, or else from where we are, or from the root if it led there."""
    expanded = Path(path).expanduser()
    outside = [Path("/", *(part for part in expanded.parts if part != ".."))] * (".." in expanded.parts)
    places = [Path(os.path.normpath(base / expanded)) for base in (project, Path.cwd())] + outside
    return str(next((place for place in places if place.exists()), places[0]))


def written(table: Mapping[str, Any], directory: Path, project: Path) -> dict[str, Any]:
    """The settings of a run that is kept in ``directory``, as its file has them; with its project if any of them needs it."""
    relative = mapped(table, lambda path: portable(path, project))
    needed = table.get("own_code") or relative != dict(table)
    return ({PROJECT: portable(project, directory.absolute())} if needed else {}) | relative


def read(table: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The settings of a run from its file, with whole paths; those of an earlier version have them already."""
    if PROJECT not in table:
        return dict(table)
    project = project_of(table, directory)
    return mapped({k: v for k, v in table.items() if k != PROJECT}, lambda path: located(path, project))


def project_of(table: Mapping[str, Any], directory: Path) -> Path:
    """The project of a run, by the settings in its file; where we are if they do not say it, or it is gone."""
    project = Path(located(str(table.get(PROJECT, "")), directory.absolute())) if table.get(PROJECT) else Path.cwd()
    return project if project.is_dir() else Path.cwd()


def shown(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run from its file, for people: paths relative to the project, in the file of an earlier version to here."""
    rest = {k: v for k, v in table.items() if k != PROJECT}
    return rest if PROJECT in table else mapped(rest, lambda path: portable(path, Path.cwd()) if _whole(path) else path)


def private(document: Any, names: Mapping[str, str] | None = None, project: Path | None = None) -> Any:
    """Text, or all text in a tree of lists and dictionaries, without the folders of the project, where we are, and the user's home.

    Paths that have ``names`` are replaced by these first.
    """
    home = _home()
    folders = dict.fromkeys(map(str, (project or Path.cwd(), Path.cwd())), "")
    folders |= {} if home is None else {str(home): "~/"}
    instead = {**(names or {}), **{f"{folder}{os.sep}": short for folder, short in folders.items() if len(folder) > 1}}

    def without(part: Any) -> Any:
        if isinstance(part, str):
            for path, short in instead.items():
                part = part.replace(path, short)
            return part
        if isinstance(part, Mapping):
            return {without(key): without(value) for key, value in part.items()}
        return [*map(without, part)] if isinstance(part, list | tuple) else part

    return without(document)


def replaced(table: Mapping[str, Any], keys: Iterable[Sequence[str]], change: Callable[[str], str]) -> dict[str, Any]:
    """A table with the texts under some keys changed, if they exist; two keys are a table's and one in it."""
    changed = dict(table)
    for name, *inner in keys:
        value = changed.get(name)
        if inner and isinstance(value, Mapping):
            changed[name] = replaced(value, [inner], change)
        elif not inner and isinstance(value, str):
            changed[name] = change(value)
    return changed


def mapped(table: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """A configuration with every path changed, those in references to code too."""
    changed = replaced(table, CODE, lambda text: own_code.moved(text, change))
    changed = replaced(changed, PATHS, change)
    if isinstance(data := changed.get("data"), str) and not data.startswith(HUB):
        changed["data"] = own_code.moved(data, change) if own_code.is_reference(data) else change(data)
    if isinstance(code := changed.get("own_code"), Mapping):
        changed["own_code"] = {change(file) if own_code.is_file(file) else file: sha for file, sha in code.items()}
    if isinstance(track := changed.get("track"), str):
        tracker, _, place = track.partition(":")
        if _whole(place) or place.startswith(("./", "../", "~")):
            place = change(place)
            changed["track"] = f"{tracker}:{place if place[0] in '/~.' else f'./{place}'}"
    return changed


def _whole(path: str) -> bool:
    return path.startswith("~") or Path(path).is_absolute()


def _home() -> Path | None:
    with contextlib.suppress(RuntimeError):
        return Path.home()
    return None
