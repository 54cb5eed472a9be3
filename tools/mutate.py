"""Whether the tests notice wrong code: small changes, one at a time, and the tests that run the changed line.

    python tools/mutate.py                                  # a sample of 300 changes, about an hour
    python tools/mutate.py --folder a --like b/mutants.jsonl  # the changes of another run, as far as their lines exist
    python tools/mutate.py --show 17                          # what change 17 is

The fast tests run once, and the lines that each of them executes are recorded. Then every change is made to a copy of the package, and the
tests of its statement run until the first fails, quick ones that execute few lines first. A process that has collected all tests is forked for every change, and the
functions get their changed code; what the import executes takes a new process. What is done already is kept in the folder.

A change is killed if a test fails, survives if none does, and is not covered if no test executes its statement in the test's own process.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/equipoise"
AREAS = ("core", "methods", "engines", "federation/round.py")
FAST = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "--hypothesis-seed=0")
ASSERTED = {"strict", "device", "stacklevel", "example"}  # what no test on one processor can see
RAISED = 9  # status of a fork that could not exchange the code
OUTCOMES = ("killed", "timed out", "survived", "not covered")

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


# what can be changed


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `statement`, `scope`, `kind` and `nth` find it again when lines have moved."""

    path: str
    scope: str
    statement: str
    kind: str
    nth: int
    first: int
    last: int
    imported: bool  # the statement is executed by the import
    span: tuple[int, int, int, int]
    text: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return self.path, self.scope, self.statement, self.kind, self.nth


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The changes of one node: what kind, and the node instead."""

    def other(**fields: Any) -> ast.AST:
        changed = copy.copy(node)
        for name, value in fields.items():
            setattr(changed, name, value)
        return changed

    match node:
        case ast.Compare(ops=[operator, *rest]) if type(operator) in COMPARISONS:
            yield "comparison", other(ops=[COMPARISONS[type(operator)](), *rest])
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            yield "arithmetic", other(op=OPERATORS[type(operator)]())
        case ast.BoolOp(op=operator):
            yield "boolean", other(op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign removed", operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant + 1", ast.Constant(value + 1)
            yield "constant - 1", ast.Constant(value - 1)
        case ast.Call(args=[first, second, *rest]) if not any(isinstance(a, ast.Starred) for a in (first, second)):
            yield "arguments swapped", other(args=[second, first, *rest])
        case ast.IfExp(body=body, orelse=alternative):
            yield "branches swapped", other(body=alternative, orelse=body)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "nothing returned", other(value=None)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            yield "statement deleted", ast.Pass()
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "statement deleted", ast.Pass()
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in ASSERTED:
                yield f"{keyword.arg}= dropped", other(keywords=[k for k in node.keywords if k is not keyword])


def mutants(path: str, source: str) -> list[Mutant]:
    """All changes of a file, in the order of its lines."""
    every: list[Mutant] = []
    counted: Counter[tuple[str, str, str]] = Counter()

    def visit(node: ast.AST, scope: tuple[str, ...], statement: ast.stmt | None, inside: bool) -> None:
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None and isinstance(node, ast.stmt | ast.expr):
            body = getattr(statement, "body", None)
            last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
            for kind, changed in changes(node):
                text = ast.unparse(statement).split("\n")[0] if body else ast.unparse(statement)
                name = ".".join(scope)
                counted[name, text, kind] += 1
                span = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
                instead = ast.unparse(ast.fix_missing_locations(changed))
                if isinstance(node, ast.expr):
                    instead = f"({instead})"
                where = (statement.lineno, max(last, statement.lineno))
                every.append(
                    Mutant(path, name, text, kind, counted[name, text, kind], *where, not inside, span, instead)
                )
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in ASSERTED):
            return  # the parts of a formatted string have no position
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "bases", "decorator_list") or isinstance(node, ast.Raise):
                continue
            if isinstance(node, ast.If) and field == "body" and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            defines = isinstance(node, ast.FunctionDef | ast.ClassDef) and field == "body"
            deeper = (*scope, node.name) if defines else scope  # type: ignore[attr-defined]
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, deeper, statement, inside or (defines and isinstance(node, ast.FunctionDef)))

    visit(ast.parse(source), (), None, False)
    return every


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the change; positions are in bytes, as `ast` has them."""
    lines = source.encode().split(b"\n")
    top, left, bottom, right = mutant.span
    before = b"\n".join([*lines[: top - 1], lines[top - 1][:left]])
    after = b"\n".join([lines[bottom - 1][right:], *lines[bottom:]])
    text, fewer = mutant.text.encode(), bottom - top - mutant.text.count("\n")  # lines keep their numbers
    return (
        before + (text[:-1] + b"\n" * fewer + text[-1:] if text.endswith(b")") else text + b"\n" * fewer) + after
    ).decode()


def sources(tree: Path) -> dict[str, str]:
    """The files to change, relative to the package."""
    package = tree / PACKAGE
    paths = [
        p for area in AREAS for p in ([package / area] if area.endswith(".py") else (package / area).rglob("*.py"))
    ]
    return {str(path.relative_to(package)): path.read_text() for path in sorted(paths)}


def draw(every: list[Mutant], number: int, seed: int, like: Path | None) -> list[Mutant]:
    """A sample of expressions with a change of each, or the same changes as in another run."""
    if like is None:
        chance, by_place = random.Random(seed), defaultdict(list)
        for mutant in every:
            by_place[mutant.path, mutant.span].append(mutant)
        return [chance.choice(by_place[place]) for place in chance.sample(list(by_place), min(number, len(by_place)))]
    by_key = {mutant.key: mutant for mutant in every}
    wanted = [json.loads(line)["mutant"] for line in like.read_text().splitlines()]
    keys = [tuple(m[name] for name in ("path", "scope", "statement", "kind", "nth")) for m in wanted]
    return [by_key[key] for key in keys if key in by_key]


# which test executes which line: a plugin of pytest


class Recorder:
    """Lines that every passed test executes; those of a fixture or a cached call count for all tests that use it."""

    def __init__(self, package: Path, target: Path) -> None:
        self.prefix, self.target = f"{package}/", target
        self.names = {f"{package}/{path}": path for path in sources(package.parents[1])}
        self.places: dict[CodeType, str | None] = {}
        self.lines: set[tuple[str, int]] = set()
        self.of_fixtures: dict[int, set[tuple[str, int]]] = {}
        self.tests: dict[str, tuple[float, set[tuple[str, int]]]] = {}
        functools.cache = self.remembering(functools.cache)  # type: ignore[assignment]

    def called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        try:
            place = self.places[code]
        except KeyError:
            place = self.places[code] = self.names.get(code.co_filename)
        if place is None:
            return None

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                self.lines.add((place, frame.f_lineno))
            return line

        return line

    @contextmanager
    def apart(self) -> Iterator[set[tuple[str, int]]]:
        outer, self.lines = self.lines, set()
        try:
            yield self.lines
        finally:
            outer |= self.lines
            self.lines = outer

    def remembering(self, cache: Callable[..., Any]) -> Callable[..., Any]:
        def cached(function: Callable[..., Any]) -> Callable[..., Any]:
            @cache
            def compute(*values: Any, **named: Any) -> Any:
                with self.apart() as lines:
                    return function(*values, **named), lines

            @functools.wraps(function)
            def call(*values: Any, **named: Any) -> Any:
                result, lines = compute(*values, **named)
                self.lines |= lines
                return result

            call.cache_clear, call.cache_info = compute.cache_clear, compute.cache_info  # type: ignore[attr-defined]
            return call

        return cached

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        with self.apart() as lines:
            result = yield
        self.of_fixtures[id(fixturedef)] = lines
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        self.lines, begun = set(), time.perf_counter()
        threading.settrace(self.called)
        sys.settrace(self.called)
        try:
            result = yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                self.lines |= self.of_fixtures.get(id(definition), set())
        self.tests[item.nodeid] = (time.perf_counter() - begun, self.lines)
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self.tests[report.nodeid] = (-1.0, set())

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Any:
        tests = {name: (seconds, lines) for name, (seconds, lines) in self.tests.items() if seconds >= 0 and lines}
        by_line: dict[str, list[int]] = defaultdict(list)
        for index, (_, lines) in enumerate(tests.values()):
            for path, line in lines:
                by_line[f"{path}:{line}"].append(index)
        recorded = {"tests": [(name, seconds) for name, (seconds, _) in tests.items()], "lines": by_line}
        self.target.write_text(json.dumps(recorded))
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """With `-p mutate`, the lines are recorded, or only some tests run."""
    if target := os.environ.get("MUTATE_RECORD"):
        config.pluginmanager.register(Recorder(Path.cwd() / PACKAGE, Path(target)))
    if names := os.environ.get("MUTATE_CHOSEN"):
        config.pluginmanager.register(Chosen(json.loads(names)))


class Coverage:
    """What was recorded: the tests of a statement, quick and narrow ones first."""

    def __init__(self, path: Path) -> None:
        recorded = json.loads(path.read_text())
        self.tests: list[tuple[str, float]] = [tuple(test) for test in recorded["tests"]]
        self.lines: dict[str, list[int]] = recorded["lines"]
        self.breadth = Counter(index for tests in self.lines.values() for index in tests)  # lines that a test executes

    def of_lines(self, path: str, first: int, last: int) -> set[int]:
        return {test for line in range(first, last + 1) for test in self.lines.get(f"{path}:{line}", ())}

    def candidates(self, mutant: Mutant, most: int, bad: set[str]) -> tuple[bool, list[tuple[str, float]]]:
        """Whether a test executes the statement, and the tests to run: of the statement, else of its file."""
        chosen = self.of_lines(mutant.path, mutant.first, mutant.last) if not mutant.imported else set()
        covered = bool(chosen) or mutant.imported
        if not chosen:
            chosen = self.of_lines(mutant.path, 1, 10_000)
        if not covered:
            most //= 3
        ranks: Counter[str] = Counter()
        ordered = []
        for index in sorted(chosen, key=lambda index: self.tests[index][1] * self.breadth[index]):
            name, seconds = self.tests[index]
            if name in bad:
                continue
            function = name.split("[")[0]  # one case of every test, then the second of every test
            ordered.append((ranks[function], len(ordered), name, seconds))
            ranks[function] += 1
        return covered, [(name, seconds) for *_, name, seconds in sorted(ordered)[:most]]


# running the tests of a change


class Chosen:
    """Only these tests, in this order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.places), key=lambda item: self.places[item.nodeid])


def codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Code objects inside a code object, by name and line."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from codes(constant)


def exchange(path: Path, text: str) -> bool:
    """Give every function of a file the code it has in the text; false if a function cannot take it, or there is none."""
    gc.unfreeze()  # what is frozen, as by the tests after their collection, is not among the objects
    changed, exchanged = dict(codes(compile(text, str(path), "exec"))), False
    try:
        for function in gc.get_objects():
            if type(function) is FunctionType and function.__code__.co_filename == str(path):
                code = function.__code__
                function.__code__ = changed[code.co_qualname, code.co_firstlineno]
                exchanged |= function.__code__.co_code != code.co_code or function.__code__.co_consts != code.co_consts
    except (KeyError, ValueError):  # a lambda is gone, or the variables of an outer function that it uses
        return False
    return exchanged


class Trials:
    """The tests of changes, in forks of a session that has collected all tests: a change takes little more than its tests."""

    def __init__(self, tree: Path, coverage: Coverage, most: int) -> None:
        self.tree, self.coverage, self.most = tree, coverage, most
        self.log = tree.parent / "log.txt"
        self.good: set[str] = set()  # tests that failed with a change, and pass without
        self.bad: set[str] = set()  # tests that fail in a fork anyway
        self.items: dict[str, pytest.Item] = {}
        self.session: pytest.Session | None = None
        self.judge_all: Callable[[], None] = lambda: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        self.temporary = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self.judge_all()
        return True

    def judge(self, number: int, mutant: Mutant) -> dict[str, Any]:
        """Make the change, run its tests until one fails, and undo it."""
        covered, tests = self.coverage.candidates(mutant, self.most, self.bad)
        path = self.tree / PACKAGE / mutant.path
        source, written, begun = path.read_text(), path.stat().st_mtime, time.monotonic()
        text = mutated(source, mutant)
        try:
            path.write_text(text)
            os.utime(path, (written, written + 10 * (number + 1)))  # bytecode is kept by second and size of a file
            direct = covered and not mutant.imported
            outcome = self.fork(tests, lambda: exchange(path, text)) if direct else "not exchanged"
            if outcome == "not exchanged":
                outcome = self.anew(tests)
        finally:
            path.write_text(source)
            os.utime(path, (written, written))
        lines = self.log.read_text(errors="replace").splitlines()
        killer = next((line for line in reversed(lines) if line.startswith(("FAILED ", "ERROR "))), "")[:200]
        if (
            outcome == "killed"
            and direct
            and (name := killer.partition(" ")[2]) in self.items
            and name not in self.good
        ):
            if self.fork([(name, 1.0)], lambda: True) == "killed":
                self.bad.add(name)
                return self.judge(number, mutant)
            self.good.add(name)
        if outcome == "survived" and not covered:
            outcome = "not covered"
        seconds = round(time.monotonic() - begun, 1)
        return {
            "outcome": outcome,
            "tests": len(tests),
            "killer": killer if outcome == "killed" else "",
            "seconds": seconds,
        }

    def fork(self, tests: Sequence[tuple[str, float]], change: Callable[[], bool]) -> str:
        """Run tests in a fork of this process."""
        limit = self.limit(tests)
        child = os.fork()
        if not child:
            code = RAISED
            try:
                os.setsid()
                bound(limit)
                output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                code = self.run([self.items[name] for name, _ in tests if name in self.items]) if change() else RAISED
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        outcome = awaited(child, limit)
        for folder in self.temporary.iterdir():
            if "cache" not in folder.name:
                shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def run(self, items: list[pytest.Item]) -> int:
        assert self.session is not None
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.session.testsfailed:
                print(f"\nFAILED {item.nodeid}")
                return 1
        return 0

    def anew(self, tests: Sequence[tuple[str, float]]) -> str:
        """Run tests in a new process, for what the import executes."""
        files = list(dict.fromkeys(name.split("::")[0] for name, _ in tests))
        environment = {**os.environ, "PYTHONPATH": f"{self.tree}/src:{Path(__file__).parent}"}
        environment["MUTATE_CHOSEN"] = json.dumps([name for name, _ in tests])
        limit = self.limit(tests)
        with self.log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *FAST, "-x", "-p", "mutate", *files],
                cwd=self.tree, env=environment, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=lambda: bound(limit),
            )  # fmt: skip
        outcome, process.returncode = awaited(process.pid, limit), 0
        return outcome

    @staticmethod
    def limit(tests: Sequence[tuple[str, float]]) -> float:
        """Seconds of processor time."""
        return 30 + 5 * sum(seconds for _, seconds in tests)


def bound(limit: float) -> None:
    """What a process may use."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))


def awaited(child: int, limit: float) -> str:
    """The outcome of a process, which is ended if it takes too long."""
    begun, status = time.monotonic(), None
    while status is None and time.monotonic() - begun < 6 * limit:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else None
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # it, or what it left behind
    if status is None:
        os.waitpid(child, 0)
        return "timed out"
    if os.WIFSIGNALED(status):
        return "timed out" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
    return {0: "survived", 5: "survived", RAISED: "not exchanged"}.get(os.waitstatus_to_exitcode(status), "killed")


def table(results: Sequence[dict[str, Any]]) -> str:
    """Outcomes by package, in Markdown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for row in (result["mutant"]["path"].split("/")[0], "all"):
            counts[row][result["outcome"]] += 1
    lines = [f"| | {' | '.join(OUTCOMES)} | share killed |", f"|---|{'---:|' * (len(OUTCOMES) + 1)}"]
    for row in sorted(counts, key=lambda row: (row == "all", row)):
        of_row = counts[row]
        share = (of_row["killed"] + of_row["timed out"]) / of_row.total()
        lines.append(f"| {row} | {' | '.join(str(of_row[o]) for o in OUTCOMES)} | {share:.0%} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants", help="where the copy and the results lie")
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", type=int, default=24, help="the most tests that are run for one change")
    parser.add_argument("--like", type=Path, help="the results of another run, whose changes are made again")
    parser.add_argument("--show", type=int, help="print one change instead")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve()
    tree, recorded, results = folder / "tree", folder / "covered.json", folder / "mutants.jsonl"
    if not tree.exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.splitlines():
            (folder / "copying" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "copying" / name)
        (folder / "copying").rename(tree)
    texts = sources(tree)
    every = [mutant for path, source in texts.items() for mutant in mutants(path, source)]
    drawn = draw(every, options.mutants, options.seed, options.like)
    if options.show is not None:
        mutant = drawn[options.show]
        print(f"{mutant.path}:{mutant.first} {mutant.scope} ({mutant.kind})\n{mutant.statement}\n-> {mutant.text}")
        return
    if not recorded.exists():
        environment = {
            **os.environ,
            "PYTHONPATH": f"{tree}/src:{Path(__file__).parent}",
            "MUTATE_RECORD": str(recorded),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([sys.executable, "-m", "pytest", *FAST, "-p", "mutate"], cwd=tree, env=environment, check=False)
    finished = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    print(f"{len(every)} changes are possible, {len(drawn)} are drawn, {len(finished)} are done.", flush=True)
    trials = Trials(tree, Coverage(recorded), options.tests)

    def judge_all() -> None:
        with results.open("a") as file:
            for number in range(len(finished), len(drawn)):
                mutant = drawn[number]
                result = trials.judge(number, mutant)
                finished.append({"number": number, **result, "mutant": asdict(mutant)})
                file.write(json.dumps(finished[-1]) + "\n")
                file.flush()
                print(
                    number,
                    result["outcome"],
                    f"{mutant.path}:{mutant.first}",
                    mutant.kind,
                    result["seconds"],
                    flush=True,
                )

    trials.judge_all = judge_all
    if len(finished) < len(drawn):
        os.chdir(tree)
        os.environ["PYTHONPATH"] = f"{tree}/src"
        sys.path.insert(0, f"{tree}/src")
        pytest.main(
            [*FAST, "-s", f"--basetemp={folder}/temporary", "-W", "ignore::pytest.PytestAssertRewriteWarning"],
            plugins=[trials],
        )
    print(table(finished))
    for result in finished:
        if result["outcome"] in ("survived", "not covered"):
            m = result["mutant"]
            print(f"\n{result['number']}: {result['outcome']}, {m['path']}:{m['first']} in {m['scope']}, {m['kind']}")
            print(f"    {m['statement']}\n    -> {m['text']}")


if __name__ == "__main__":
    main()
