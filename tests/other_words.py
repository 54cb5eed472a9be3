"""A copy of the package with other words in every message, note and sentence: what it decides must not change."""

import ast
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from zlib import crc32

# words of a sentence, in no code, path, option, tag, placeholder or quotation
SKIPPED = (
    r"`[^`]*`|<[^>]*>|\{[^}]*\}|\[[^\]]*\]|%\(\w+\)\w|https?:\S+|'[^']*'|\"[^\"]*\"|\S*[_/\\=.#$&-]\w\S*|%\w|--?\w\S*"
)
WORDS = re.compile(rf"({SKIPPED})|(?<![\w\\{{<.@:%])([A-Za-z]?[a-z]+)(?![\w({{<@])")
PATTERNS = {"compile", "match", "fullmatch", "search", "sub", "findall", "split", "finditer"}
NAMES = {"PANELS"}  # constants that are names with blanks between them
# arguments that are names with blanks between them, of other libraries or of settings
FOREIGN = {"loc", "marks", "group"}
OTHER = re.compile("[\u0430-\u044f\u0410-\u042f»]")


def said(text: str) -> bool:
    """Whether a text is words, with blanks between them."""
    words = [match for match in WORDS.finditer(text) if match[2]]
    return any(re.fullmatch(r"[,;:.]? ", text[a.end() : b.start()]) for a, b in pairwise(words))


def reworded(text: str, shift: int) -> str:
    """A text with other words: Cyrillic letters, which no code has, so that numbers, names and options stay."""

    def letter(c: str) -> str:
        return chr((0x430 if c.islower() else 0x410) + (ord(c.lower()) - 97 + shift) % 32)

    return WORDS.sub(lambda match: match[1] or "".join(map(letter, match[2])), text)


class Rewording(ast.NodeTransformer):
    """Other words in all sentences of a module, other ones at each place, even where the same words are written twice."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _shift(self, node: ast.expr) -> int:
        return crc32(f"{self.name}:{node.lineno}:{node.col_offset}".encode()) % 32

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)  # a docstring

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return node if getattr(node.targets[0], "id", "") in NAMES else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None and getattr(node.target, "id", "") not in NAMES:
            node.value = self.visit(node.value)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and said(node.value):
            return ast.copy_location(ast.Constant(reworded(node.value, self._shift(node))), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        literal = [part for part in node.values if isinstance(part, ast.Constant)]
        if any(said(str(part.value)) for part in literal):
            for part in literal:
                part.value = reworded(str(part.value), self._shift(node))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                part.value = self.visit(part.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in PATTERNS:  # of foreign texts and of names: they stay as they are
            return node
        made = self.generic_visit(node)
        if called == "Said" and node.args:
            node.args[0] = _begun(node.args[0])
        return made

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg in FOREIGN else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.exc, ast.Call) and node.exc.args:
            node.exc.args[0] = _begun(node.exc.args[0])
        return node


def _begun(text: ast.expr) -> ast.expr:
    """A text that begins with another sign, so that nothing can ask for its beginning."""
    if isinstance(text, ast.JoinedStr):
        text.values.insert(0, ast.Constant("» "))
    elif isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value:
        text.value = f"» {text.value}"
    return text


def copied(package: Path, to: Path) -> None:
    """Copy a package into a folder, with other words."""
    shutil.copytree(package, to / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (to / package.name).rglob("*.py"):
        name = file.relative_to(to).as_posix()
        tree = Rewording(name).visit(ast.parse(file.read_text(encoding="utf-8")))
        file.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")


def differences(ours: object, theirs: object, where: str = "") -> Iterator[str]:
    """Where two documents differ in more than words: in structure, numbers, names; of sentences the numbers count."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        ours, theirs = [*ours.items()], [*theirs.items()]
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        if len(ours) != len(theirs):
            yield f"{where}: {len(ours)} and {len(theirs)} entries"
        for k, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(one, other, f"{where}/{one[0] if isinstance(one, tuple) else k}")
    elif isinstance(ours, str) and isinstance(theirs, str) and OTHER.search(theirs):
        numbers = [re.findall(r"\d+(?:\.\d+)?", text) for text in (ours, theirs)]
        if numbers[0] != numbers[1]:
            yield f"{where}: {ours!r} and {theirs!r}"
    elif ours != theirs:
        yield f"{where}: {ours!r} and {theirs!r}"


# what is played, in a process of either package
TINY = [
    "--scenario",
    "digits(train=[24, 20, 28, 16], test=[20, 20, 20, 20], clients=4)",
    "--network",
    "mlp(hidden=[8])",
    "--batch-size",
    "8",
]
ROUNDS = ["--epochs", "1", "--rounds", "2"]
SUITE = """
title = "Tiny"
about = "For tests."
methods = ["fedavg", "qffl"]
draws = 1
by = "mean"
seeds = 1

[[scenario]]
name = "tiny"
scenario = "digits"
options = { train = [8, 8, 8, 8], test = [10, 10, 10, 10], clients = 4 }
train = { rounds = 1, epochs = 1, batch_size = 8, network = "mlp", network_options = { hidden = [8] } }
"""
EXPERIMENT = """
title = "Two ways"
paper = "Mine"
citation = "Nobody 2026"
about = "A small one."
seeds = 1

[columns]
AVG = "avg"

[[part]]
name = "digits"
title = "Digits"
scenario = "digits"
options = {clients = 4, train = [8, 8, 8, 8], test = [10, 10, 10, 10]}
network = "mlp(hidden=[8])"
train = {rounds = 1, epochs = 1, batch_size = 4, lr = 0.1}
columns = ["AVG"]

[[row]]
name = "Plain"

[[row]]
name = "FedHEAL"
method = "fedheal"
"""
COMMANDS = [
    ["compare", "fedavg", "fedheal", *TINY, *ROUNDS, "--name", "compared", "--json"],
    [
        "tune",
        "fedavg",
        *TINY,
        "--epochs",
        "2",
        "--rounds",
        "4",
        "--lr",
        "0.3",
        "--draws",
        "3",
        "--search",
        "lr=among(0.2, 1e30)",
        "--name",
        "tuned",
        "--json",
    ],
    ["benchmark", "suite.toml", "--name", "suite", "--json"],
    ["reproduce", "experiment.toml", "--json"],
    ["run", "--data", "table.csv", "--set", "client=site", *ROUNDS, "--name", "own", "--json"],
    ["report", "runs/compared", "--json"],
    ["report", "runs/own", "--json"],
    ["export", "runs/own", "--bundle", "model"],
    ["predict", "model", "table.csv", "--output", "predicted.csv"],
    ["status", "runs", "--json"],
    ["status", "runs"],
]


def play(folder: Path, only: Sequence[str] = ()) -> None:
    """Give the commands in a folder; their status and answers, and the files that they leave, as JSON."""
    os.chdir(folder)
    Path("suite.toml").write_text(SUITE)
    Path("experiment.toml").write_text(EXPERIMENT)
    rows = [f"{'ab'[k % 2]},{'no' if k % 3 else 'yes'},{(7 * k) % 40},{k % 3 == 0:d}\n" for k in range(60)]
    Path("table.csv").write_text("site,label,age,tells\n" + "".join(rows))
    answers = []
    for arguments in (words for words in COMMANDS if words[0] in only or not only):
        sys.argv = ["equipoise", *arguments]
        with redirect_stdout(StringIO()) as answer, redirect_stderr(StringIO()) as errors:
            try:
                main()
            except SystemExit as end:
                status = end.code
        answers.append([arguments, status, answer.getvalue(), errors.getvalue()])
    Path("answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    from equipoise.cli.main import main

    play(Path(sys.argv[1]), sys.argv[2:])
