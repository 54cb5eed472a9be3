"""The user's own code by reference: ``nets.py:build`` in a file, ``mypkg.nets:build`` in a module that Python finds."""

import ast
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from equipoise.system.errors import InputError
from equipoise.system.suggestions import near

# A reference begins at the start of a text or after + , or a blank, and is a path with a slash, a dot or both, a colon, a name.
# So `fedld:released` is none.
NAME = re.compile(r":([A-Za-z_]\w*)(?![\w/])")
PATH = re.compile(r"(?<![^+,\s])(?:~|\.{0,2}/)")  # begins one that may hold any sign but a colon
PLAIN = re.compile(r"(?<![^+,\s])[^+,():=\s]")  # begins one without brackets, = + and ,
PREFIX = "own_code_"  # of the names of modules that were made of files


def references(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Where each reference in a text begins and ends, its file or module, and its name.

    It takes time in proportion to the text, which may be a server's: every part between two colons is looked at once.
    """
    begin = 0
    for name in NAME.finditer(text):
        end = name.start()
        plain = 1 + max(text.rfind(sign, begin, end) for sign in "+,():=")
        starts = [PLAIN.search(text, max(begin, plain), end)]
        if text.endswith(".py", begin, end):
            starts.append(PATH.search(text, begin, end - 4))
        first = min((start.start() for start in starts if start), default=end)
        if not {".", "/"}.isdisjoint(text[first:end]):
            yield first, name.end(), text[first:end], name[1]
        begin = name.end()


def replaced(text: str, change: Callable[[str, str], str]) -> str:
    """A text with every reference changed, given its file or module and its name."""
    parts, begin = list[str](), 0
    for first, end, where, name in references(text):
        parts += text[begin:first], change(where, name)
        begin = end
    return "".join((*parts, text[begin:]))


def split(text: str) -> tuple[str, str]:
    """The reference at the beginning of a text, empty if there is none, and the rest."""
    stripped = text.strip()
    begin, end, *_ = next(references(stripped), (1, 0))
    return ("", text) if begin else (stripped[:end], stripped[end:])


def is_reference(text: str) -> bool:
    """Whether a text is a reference and nothing else."""
    return split(text)[0] == text


def whole(text: str, folder: Path | None = None) -> str:
    """A text with every path of a reference as it holds in any folder; relative ones are below ``folder``, here by default."""

    def absolute(where: str, name: str) -> str:
        path = (folder or Path()) / Path(where).expanduser()
        return f"{path.resolve() if is_file(where) else where}:{name}"

    return replaced(text, absolute)


def moved(text: str, change: Callable[[str], str]) -> str:
    """A text with every file of a reference changed."""

    def instead(where: str, name: str) -> str:
        if not is_file(where):
            return f"{where}:{name}"
        path = change(where)
        plain = path.startswith(("/", "~", "./", "../")) or re.fullmatch(r"[\w./-]+", path)
        return f"{path if plain else f'./{path}'}:{name}"  # else a blank would end the reference

    return replaced(text, instead)


def by_content(text: str, digests: Mapping[str, str]) -> str:
    """A text with the hash of its file in place of every reference's file or module, as far as it is in ``digests``, see :func:`hashes`."""

    def instead(where: str, name: str) -> str:
        ends = tuple(f"/{where.replace('.', '/')}{end}" for end in (".py", "/__init__.py"))
        # an earlier version kept the files of modules
        digest = digests.get(where) or next((entry for file, entry in digests.items() if file.endswith(ends)), "")
        return f"{digest}.py:{name}" if digest else f"{where}:{name}"

    return replaced(text, instead)


def nameless(text: str) -> str:
    """A text without what stands before the colons of its references."""
    return replaced(text, lambda _, name: f":{name}")


def short(text: str) -> str:
    """A text with the files of references without their folders, for labels."""
    return replaced(text, lambda where, name: f"{Path(where).name}:{name}")


def load(reference: str) -> Any:
    """What a reference names. A file is run once for each content that it has; what lies beside it can be imported.

    Raises
    ------
    InputError : there is no such file, module or name, or it cannot be imported, with the reason.
    """
    begin, end, where, name = next(references(reference.strip()), (1, 0, "", ""))
    if begin or end < len(reference.strip()):
        raise InputError(
            f"{reference!r} names no code. Write FILE.py:NAME, or MODULE:NAME with a dot in the module's name."
        )
    module = _module(reference, where)
    if not hasattr(module, name):
        names = [word for word, thing in vars(module).items() if callable(thing) and not word.startswith("_")]
        raise InputError(f"{reference}: there is no {name!r} in {where}.{near(name, names)}")
    return getattr(module, name)


def takes(reference: str) -> list[str]:
    """The parameters of the function or class that a reference names.

    Raises
    ------
    InputError : it is neither.
    """
    function = load(reference)
    if not callable(function):
        raise InputError(f"{reference}: expected a function or a class; found {type(function).__name__}.")
    return list(inspect.signature(function).parameters)


def call(what: str, reference: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call what a reference names, with ``options`` and with those of ``given`` that its signature has, by name.

    Raises
    ------
    InputError : it cannot be called, or raised an error, with the reason.
    """
    parameters = takes(reference)
    try:
        return load(reference)(**{name: value for name, value in given.items() if name in parameters}, **options)
    except Exception as error:  # of the user's code
        also = f", and with {', '.join(given)} where its signature has them" * bool(given)
        more = f" It is called with its options{also}, by name." * isinstance(error, TypeError)
        raise InputError(f"{what} {reference} failed: {reason(error, reference)}.{more}") from error


def hashes(*texts: str | None) -> dict[str, str]:
    """The SHA-256 of the code that references in some texts name, by file or module, and of what it imports from beside it."""
    wheres = dict.fromkeys(where for text in texts for *_, where, _ in references(text or ""))
    digests = {where: digest(where) for where in wheres}
    return digests | {file: digest(file) for where in wheres for file in beside(where) if file not in digests}


def version(text: str) -> str:
    """What tells the code that references in a text name from other code under the same names; empty without references."""
    digests = sorted(hashes(text).values())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:8] if digests else ""


def beside(where: str) -> list[str]:
    """The files that the code of a reference imports, directly or not, from its folder, or the folder of its package.

    They are found by reading, and nothing is run: what is imported under a name made while it runs is not seen.
    """
    first = source(where)
    if first is None:
        return []
    folder = top(where, first)
    if installed(first):
        return []
    packages = first.relative_to(folder).parents if not is_file(where) else ()
    files = {path: None for parent in packages if (path := folder / parent / "__init__.py") != first and path.is_file()}
    waiting = [first, *files]
    while waiting:
        file = waiting.pop()
        new = [path for path in _imported(file, folder) if path not in files and path != first]
        files |= dict.fromkeys(new)
        waiting += new
    return [str(path) for path in sorted(files)]


def top(where: str, file: Path) -> Path:
    """The folder from which the code of a reference in ``file`` imports: its own, or that of its outermost package."""
    return file.parent if is_file(where) else file.parents[where.count(".") + (file.name == "__init__.py")]


def _imported(file: Path, top: Path) -> Iterator[Path]:
    """The files below a folder that one of them imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, MemoryError, RecursionError):  # importing it says what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = () if not node.level else file.relative_to(top).parts[: -node.level]
            module = ".".join((*package, *((node.module,) if node.module else ())))
            names = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            for k in range(1, len(parts) + 1):  # the packages that a module is in, and it
                path = top.joinpath(*parts[:k])
                yield from (p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file())


def source(where: str) -> Path | None:
    """The file of what stands before the colon of a reference; None if there is none.

    Nothing is imported, and what can be imported stays the same.
    """
    if is_file(where):
        path = Path(where).expanduser().resolve()
        return path if path.is_file() else None
    first, *inner = where.split(".")
    try:
        spec = find_spec(first) or PathFinder.find_spec(first, [str(Path.cwd())])
        for name in inner:  # not in one step, which would import the packages
            spec = spec and PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def defining(*things: object) -> list[str]:
    """The SHA-256 of every file in which the classes of some objects are written, but for those of installed packages."""
    modules = {sys.modules.get(type(thing).__module__) for thing in things}
    own = {getattr(x, "__file__", None) or "" for x in modules if x and not x.__name__.startswith("equipoise.")}
    return sorted(digest(file) for file in own - {""} if not installed(Path(file)))


def installed(file: Path) -> bool:
    """Whether a file is of an installed package, whose version says what is in it."""
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def digest(where: str) -> str:
    """SHA-256 of the content of a file, or of a module's file; empty if it cannot be read."""
    path = source(where)
    try:
        return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
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
        raise InputError(f"{file} cannot be read ({error.strerror}). Give the path of a Python file.") from None
    name = PREFIX + hashlib.sha256(f"{path}\n".encode() + source).hexdigest()[:16]
    if name not in sys.modules:
        loader = _Uncached(name, str(path))
        sys.modules[name] = module_from_spec(cast(ModuleSpec, spec_from_loader(name, loader)))
        findable(path.parent)
        try:
            loader.exec_module(sys.modules[name])
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, Exception | SystemExit):
                raise InputError(f"{file} cannot be imported: {reason(error, str(path))}.") from error
            raise
    return sys.modules[name]


class _Uncached(SourceFileLoader):
    """Compiles a file as it is; a cache may hold another of the same second and length."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(reference: str, where: str) -> ModuleType:
    if is_file(where):
        if not where.endswith(".py"):
            raise InputError(f"{reference}: {where} must be a Python file, whose name ends in .py.")
        return run_file(where)
    findable(Path.cwd())
    try:
        return import_module(where)
    except Exception as error:
        raise InputError(
            f"{reference}: {where} cannot be imported: {reason(error, where)}. Install it, start where it lies, or give a file: nets.py:build."
        ) from error


def is_file(where: str) -> bool:
    """Whether what stands before the colon of a reference, or is a key of :func:`hashes`, is a file; else it is a module."""
    return where.endswith(".py") or "/" in where


def findable(folder: Path) -> None:
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
