"""The user's own code by reference: ``nets.py:build`` in a file, ``mypkg.nets:build`` in a module that Python finds."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from equipoise.system.suggestions import near

# At the start of a text or after + , or a blank: a path with a slash, a dot or both, a colon, a name. So `fedld:released` is none.
REFERENCE = re.compile(
    r"(?<![^+,\s])((?:~|\.{0,2}/).+?\.py|(?=[^+,():=]*[./])[^+,():=\s][^+,():=]*):([A-Za-z_]\w*)(?!\w)"
)
PREFIX = "own_code_"  # of the names of modules that were made of files


class OwnCodeError(ValueError):
    """Code of the user's own that is not there, cannot be imported, or is not what was asked for."""


def split(text: str) -> tuple[str, str]:
    """The reference at the beginning of a text, empty if there is none, and the rest."""
    found = REFERENCE.match(text.strip())
    return ("", text) if found is None else (found[0], text.strip()[found.end() :])


def is_reference(text: str) -> bool:
    """Whether a text is a reference and nothing else."""
    return split(text)[0] == text


def whole(text: str, folder: Path | None = None) -> str:
    """A text with every path of a reference as it holds in any folder; relative ones are below ``folder``, here by default."""

    def absolute(found: re.Match[str]) -> str:
        where = found[1]
        path = (folder or Path()) / Path(where).expanduser()
        return f"{path.resolve() if _is_file(where) else where}:{found[2]}"

    return REFERENCE.sub(absolute, text)


def short(text: str) -> str:
    """A text with the files of references without their folders, for labels."""
    return REFERENCE.sub(lambda found: f"{Path(found[1]).name}:{found[2]}", text)


def load(reference: str) -> Any:
    """What a reference names. A file is run once for each content that it has; what lies beside it can be imported.

    Raises
    ------
    OwnCodeError : there is no such file, module or name, or it cannot be imported, with the reason.
    """
    found = REFERENCE.fullmatch(reference.strip())
    if found is None:
        raise OwnCodeError(
            f"{reference!r} names no code. Write FILE.py:NAME, or MODULE:NAME with a dot in the module's name."
        )
    module, name = _module(reference, found[1]), found[2]
    if not hasattr(module, name):
        known = [word for word, thing in vars(module).items() if callable(thing) and not word.startswith("_")]
        raise OwnCodeError(f"{reference}: there is no {name!r} in {found[1]}.{near(name, known)}")
    return getattr(module, name)


def takes(reference: str) -> list[str]:
    """The parameters of the function or class that a reference names.

    Raises
    ------
    OwnCodeError : it is neither.
    """
    function = load(reference)
    if not callable(function):
        raise OwnCodeError(f"{reference}: expected a function or a class; found {type(function).__name__}.")
    return list(inspect.signature(function).parameters)


def call(what: str, reference: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call what a reference names, with ``options`` and with those of ``given`` that its signature has, by name.

    Raises
    ------
    OwnCodeError : it cannot be called, or raised an error, with the reason.
    """
    known = takes(reference)
    try:
        return load(reference)(**{name: value for name, value in given.items() if name in known}, **options)
    except Exception as error:  # of the user's code
        more = f" It is called with its options, and with {', '.join(given)} where its signature has them, by name."
        more = more if isinstance(error, TypeError) else ""
        raise OwnCodeError(f"{what} {reference} failed: {reason(error, reference)}.{more}") from error


def hashes(*texts: str | None) -> dict[str, str]:
    """The SHA-256 of every file in which the references in some texts are."""
    found = [match for text in texts for match in REFERENCE.finditer(text or "")]
    files = [getattr(_module(match[0], match[1]), "__file__", None) for match in found]
    return {file: digest(file) for file in files if file}


def defining(*things: object) -> list[str]:
    """The SHA-256 of every file in which the classes of some objects are written, but for those of installed packages."""
    modules = {sys.modules.get(type(thing).__module__) for thing in things}
    own = {getattr(x, "__file__", None) or "" for x in modules if x and not x.__name__.startswith("equipoise.")}
    return sorted(digest(file) for file in own - {""} if not {"site-packages", "dist-packages"} & {*Path(file).parts})


def digest(file: str) -> str:
    """SHA-256 of a file's content; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def files() -> list[str]:
    """The files that were run, so that another process can run them, too."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith(PREFIX)]


def run_file(file: str) -> ModuleType:
    """The module that a file makes. Its name has the hash of its content, so that a file that changes makes another."""
    path = Path(file).expanduser().resolve()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise OwnCodeError(f"{file} cannot be read ({error.strerror}). Give the path of a Python file.") from None
    name = PREFIX + hashlib.sha256(f"{path}\n".encode() + source).hexdigest()[:16]
    if name not in sys.modules:
        loader = _Uncached(name, str(path))
        sys.modules[name] = module_from_spec(cast(ModuleSpec, spec_from_loader(name, loader)))
        _findable(path.parent)
        try:
            loader.exec_module(sys.modules[name])
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, Exception | SystemExit):
                raise OwnCodeError(f"{file} cannot be imported: {reason(error, str(path))}.") from error
            raise
    return sys.modules[name]


class _Uncached(SourceFileLoader):
    """Compiles a file as it is; a cache may hold another of the same second and length."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(reference: str, where: str) -> ModuleType:
    if _is_file(where):
        if not where.endswith(".py"):
            raise OwnCodeError(f"{reference}: {where} must be a Python file, whose name ends in .py.")
        return run_file(where)
    _findable(Path.cwd())
    try:
        return import_module(where)
    except Exception as error:
        raise OwnCodeError(
            f"{reference}: {where} cannot be imported: {reason(error, where)}. Install it, start where it lies, or give a file: nets.py:build."
        ) from error


def _is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where


def _findable(folder: Path) -> None:
    """Let modules in a folder be imported, here and in worker processes, after all others so that they take no other's place."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def reason(error: BaseException, reference: str) -> str:
    """An error in words, with its line if that is in the file of a reference."""
    file = str(Path(reference.rpartition(".py")[0] + ".py").expanduser().resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError):
        lines = [error.lineno] if error.filename == file else lines
        text = f"{type(error).__name__}: {error.msg}"
    else:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{text.rstrip('.')}{f', line {lines[-1]}' if lines else ''}"
