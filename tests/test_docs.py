"""The documentation says what the code does: its examples run, its commands parse, its tables are those of the code."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import claims
import defaults
import docstrings
import leaderboard
import pages
import pytest
import torch
import typer
import yaml
from stored import DATA, grid, stored
from torch import nn

import browser
import equipoise as eq
from equipoise import networks, scenarios
from equipoise.cli import main as cli
from equipoise.federation.method import parse
from equipoise.methods import METHODS
from equipoise.report.figures import PLOTS
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from equipoise.system.text import read_value
from helpers import in_one

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
name_of = lambda page: page.stem  # noqa: E731


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks of a language, those in lists too."""
    found = re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", page.read_text(), flags=re.M | re.S)
    return [textwrap.dedent(match[2]) for match in found]


def flat(text: str) -> str:
    return " ".join(text.split())


# Python
@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def elsewhere(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and a cache that is thrown away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(cache))
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=name_of(page),
            marks=[pytest.mark.slow] * (page.name not in ("README.md", "own-method.md", "own-task.md")),
        )
        for page in PAGES
        if blocks(page, "python")
    ],
)
def test_python_runs(page: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of a page, one after the other in one namespace, as a reader would type them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for number, block in enumerate(blocks(page, "python")):
            exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)
    assert "Error" not in capsys.readouterr().err


def test_readme_example_shows_what_it_says(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    exec(blocks(ROOT / "README.md", "python")[0], {})
    assert re.match(
        r"History\(fedprox\+fedheal, seed 0, 20 rounds: avg [\d.]+, std [\d.]+, worst [\d.]+ \(\w+\)\)",
        capsys.readouterr().out,
    )


# commands
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=name_of)
def test_commands_are_understood(page: Path, elsewhere: Path) -> None:
    for block in blocks(page, "python"):
        if named := re.match(r"# (\w+\.py)\n", block):
            (elsewhere / named[1]).write_text(block)
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                understand(line)


def test_the_pods_of_a_job_take_the_parts_of_a_suite() -> None:
    (block,) = blocks(ROOT / "docs" / "cluster.md", "yaml")
    spec = yaml.safe_load(block)["spec"]
    ((shell, flag, text),) = [pod["command"] for pod in spec["template"]["spec"]["containers"]]
    for index in range(spec["completions"]):
        script = f"equipoise() {{ printf '%s ' equipoise \"$@\"; }}; {text}"
        environment = {**os.environ, "JOB_COMPLETION_INDEX": str(index)}
        line = subprocess.run([shell, flag, script], env=environment, capture_output=True, text=True, check=True).stdout
        understand(line)
        assert line.split()[-1] == f"{index + 1}/{spec['completions']}"


def understand(line: str) -> None:
    """The subcommand, its options and their types exist, and methods, scenario and network are known."""
    program, *words = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert set(words) <= set(targets)
        return
    if program == "torchrun":
        words = words[words.index("-m") :]
        assert words[:2] == ["-m", "equipoise"]
        program, *words = words[1:]
    assert program == "equipoise"
    group: Any = typer.main.get_command(cli.app)
    if words == ["--help"]:
        return
    command = group.commands[words[0]]
    if words[1:] == ["--help"]:
        return
    given = command.make_context(words[0], [word for word in words[1:] if word != "--debug"]).params
    texts = given.get("methods") or [given["method"] or "fedavg"] if words[0] in ("run", "compare") else []
    pairs = dict(pair.split("=", 1) for pair in given.get("set_") or ())
    used: set[str] = set()
    for text in texts:
        own = {k: read_value(v) for k, v in pairs.items() if k.split(".")[0] in parse(text).parts}
        parse(text, own)
        used |= own.keys()
    bare = {key for key in pairs if "." not in key}  # options of the scenario
    assert used == set(pairs) - bare
    if words[0] == "methods" and given["name"] and not given["check"]:
        assert given["name"] in METHODS
    if "scenario" in given or words[0] == "init":
        name, options = called(given.get("scenario") or ("own" if given.get("data") else "digits"))
        assert name in scenarios.SCENARIOS
        assert options.keys() | bare <= scenarios.SCENARIOS[name].options.keys()
    if given.get("network"):
        name, options = called(given["network"])
        networks.build(name, **options)


def called(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``name`` or ``name(key=value)``."""
    name, _, inside = text.removesuffix(")").partition("(")
    pairs = (pair.split("=") for pair in inside.split(",") if pair)
    return name, {key.strip(): read_value(value) for key, value in pairs}


def test_every_option_is_described() -> None:
    group: Any = typer.main.get_command(cli.app)
    text = pages.on_page_markdown((ROOT / "docs/command-line.md").read_text())
    shown = {name for name, command in group.commands.items() if not command.hidden}
    assert shown == set(re.findall(r"^\| `(\w+)` \|", text, flags=re.M))
    nested = {f"flower {name}": command for name, command in group.commands["flower"].commands.items()}
    assert all(f"| `{name} " in text for name in nested)
    for name, command in {**group.commands, **nested}.items():
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("-") and option != "--help":
                    assert f"`{option}`" in text or f"`{option} " in text, f"{name} {option}"


# what is generated


def test_every_generated_part_stands_on_a_page() -> None:
    text = "".join(page.read_text() for page in DOCS)
    assert all(text.count(f"<!-- {name} -->") == 1 for name in pages.GENERATED)


def test_every_stored_table_stands_on_a_page_and_every_page_finds_its_tables() -> None:
    text = "".join(page.read_text() for page in DOCS)
    shown, linked = set(pages.STORED.findall(text)), set(re.findall(r"\]\((data/[\w-]+\.csv)\)", text))
    assert shown | linked == {f"data/{path.name}" for path in DATA.iterdir()}
    assert "<!-- data/" not in pages.on_page_markdown((ROOT / "docs/defaults.md").read_text())
    assert pages.on_page_markdown("<!-- data/defaults.csv -->").count("\n") == len(stored("defaults"))


def test_tables_of_results_are_what_the_stored_ones_give() -> None:
    """Those of claims and of real data have their tests next to their experiments."""
    text = leaderboard.PAGE.read_text()
    assert text == leaderboard.page(text, "fair-small", stored("fair-small overall"))
    text = defaults.PAGE.read_text()
    assert text == claims.filled(text, "defaults", grid(defaults.summary(stored("defaults"))))


def test_every_hyper_parameter_and_difference_is_in_a_docstring() -> None:
    for name, entry in METHODS.items():
        for parameter in entry.defaults:
            assert pages.meaning(entry.rules, parameter), f"{name}: the docstring says nothing of {parameter}"
        for rule in entry.rules:
            assert "Differs" in pages.facts(rule), f"the docstring of {rule.__name__} needs a line 'Differs: ...'"


def test_every_formula_becomes_mathml() -> None:
    """An error names the formula. Those of modules and functions that are on no page are read too."""
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for formula in re.findall(r":math:`([^`]*)`", text):
        docstrings.mathml(formula)
    for formula in re.findall(r"^ *\.\. math::(.*(?:\n +\S.*)*)", text, flags=re.M):
        docstrings.displayed(formula)


def test_sections_of_a_docstring() -> None:
    before, (parameters, returns), after = docstrings.parts(
        """One line.

        Parameters
        ----------
        mu, lam : strengths,
            >= 0.
        form
            A name above its meaning.

        Returns
        -------
        What it is.

        Differs: nothing.
        """
    )
    assert before == "One line."
    assert parameters.items == {"mu, lam": "strengths, >= 0.", "form": "A name above its meaning."}
    assert returns.text == "What it is."
    assert after == "Differs: nothing."


def test_limits_of_engines_are_those_of_the_code() -> None:
    text = flat((ROOT / "docs/engines.md").read_text())
    choose, stacked = (importlib.import_module(f"equipoise.engines{name}") for name in ("", ".stacked"))
    assert f"at most {choose.SMALL:,} parameters" in text
    assert f"to {stacked.MEMORY >> 20} MiB" in text


def test_every_name_is_on_the_page_of_the_interface() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert not [name for name in eq.__all__ if f"::: equipoise.{name}\n" not in text and f"`{name}" not in text]


def test_every_hook_is_described() -> None:
    hooks = [n for n, f in vars(eq.Rule).items() if inspect.isfunction(f) and not n.startswith("_")]
    text = (ROOT / "docs/architecture.md").read_text()
    for hook in hooks:
        names = list(inspect.signature(getattr(eq.Rule, hook)).parameters)[1:]
        assert f"`{hook}({', '.join(names)})`" in text


# messages
def spoiled(*changes: tuple[int, str, Any]) -> list[tuple[Any, Any]]:
    """Two clients of five samples, with some parts replaced: (client, x or y, value)."""
    data = [[torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64)] for _ in range(2)]
    for client, what, value in changes:
        data[client]["xy".index(what)] = value
    return [(x, y) for x, y in data]


def fit(data: Any = None, net: nn.Module | None = None, method: str = "fedavg", **settings: Any) -> None:
    given = {"engine": "sequential", "solver": eq.SGD(0.1)} | settings
    fed = eq.Federation(net or nn.Linear(4, 2), data or spoiled(), method, given.pop("solver"), **given)
    fed.fit(1, progress=False)


def other_checkpoint() -> None:
    eq.Federation(nn.Linear(4, 2), spoiled(), "fedprox").fit(1, directory="my-run", progress=False)
    eq.Federation(nn.Linear(4, 2), spoiled(), "fedavg").resume("my-run")


def other_directory() -> None:
    for _ in range(2):
        eq.Federation(nn.Linear(4, 2), spoiled()).fit(1, directory="my-run", progress=False)


def other_settings() -> None:
    for epochs in (1, 2):
        runs.start(configure("fedavg", epochs=epochs), Path("runs/mine"))


class Counting(nn.Linear):
    """Counts its steps where no client's model has them."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return super().forward(x)


nan = torch.full((5, 4), float("nan"))
MESSAGES: dict[str, Callable[[], Any]] = {
    "two set the weights": lambda: parse("afl+fedheal"),
    "not a part": lambda: parse("fedavg+fedheal", {"fphl.tau": 0.4}),
    "labels": lambda: fit(spoiled((0, "y", torch.tensor([0, 1, 2, 0, 1])))),
    "groups": lambda: fit(tests={"North": spoiled()[0]}, groups=["North", "South"]),
    "state": lambda: fit(net=Counting()),
    "classifier": lambda: fit(
        net=nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 2, 1), nn.Flatten()), method="fedpac"
    ),
    "quorum": lambda: fit(spoiled((0, "x", nan), (1, "x", nan))),
    "diverged": lambda: fit(solver=eq.SGD(1e30)),
    "adam": lambda: eq.Adam().travel(torch.ones(1)),
    "settings": other_settings,
    "directory": other_directory,
    "checkpoint": other_checkpoint,
}


@pytest.mark.parametrize("case", MESSAGES)
def test_message_is_in_the_faq(case: str, elsewhere: Path) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        MESSAGES[case]()
    message = flat(str(error.value))
    shown = [flat(block) for block in blocks(ROOT / "docs/faq.md", "text")]
    short = [text.removesuffix("...") for text in shown if text.endswith("...")]  # long lists
    assert message in shown or any(message.startswith(text) for text in short), message


def test_faq_has_no_other_message() -> None:
    assert len(blocks(ROOT / "docs/faq.md", "text")) == len(MESSAGES)


# how pages are written
PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"]
WORDS = 35
SENTENCE_ENDS = re.compile(r"(?<=[.!?])[)*\"]* +(?=[A-Z\[*(\"])")


def prose(page: Path) -> str:
    """The text of a page; code is X, a link its words, and blocks of code, formulas and comments are gone."""
    text = re.sub(r"^ *```.*?^ *```$|\$\$.*?\$\$|<!--.*?-->", "\n\n", page.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`]*`", "X", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text))


def sentences(page: Path) -> Iterator[str]:
    """Each sentence of the paragraphs, list items and cells of tables."""
    rows = r"^ *\|.*\|$"
    cells = [cell for row in re.findall(rows, prose(page), flags=re.M) for cell in re.split(r"(?<!\\)\|", row)]
    parts = re.split(rf"\n\s*\n|^ *(?:[-*]|\d+\.) +|^ *#+ .*$|{rows}", prose(page), flags=re.M)
    for part in [*parts, *cells]:
        yield from SENTENCE_ENDS.split(flat(part))


@in_one("page", PROSE)
def test_sentences_are_short(page: Path) -> None:
    sizes = {sentence: sum(bool(re.search(r"\w", word)) for word in sentence.split()) for sentence in sentences(page)}
    long = [f"{size} words: {sentence}" for sentence, size in sizes.items() if size > WORDS]
    if long:
        pytest.fail("\n".join([f"{page.name}: at most {WORDS} words in a sentence", *long]), pytrace=False)


def phrases() -> dict[str, str]:
    """The phrases that CONTRIBUTING excludes, each with its plain form."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("a test reads this table")[2].partition("\n\nAnd")[0]
    rows = re.findall(r"^\| (`.+`) \| (.+) \|$", table, flags=re.M)
    return {phrase: plain for cell, plain in rows for phrase in re.findall(r"`([^`]+)`", cell)}


@in_one("page", PROSE)
def test_pages_are_in_plain_english(page: Path) -> None:
    """What a program has written between two marks is not looked at."""
    written = re.sub(r"<!-- ([^/].*?) -->.*?<!-- /\1 -->", "", page.read_text(), flags=re.S)
    text = flat(re.sub(r"```.*?```|`[^`]*`", " X ", written, flags=re.S))
    assert len(phrases()) > 40
    dialect = [
        f"{text[max(0, place.start() - 40) : place.end() + 40]!r}: write {plain}"
        for phrase, plain in phrases().items()
        for place in re.finditer(rf"(?<![\w\"]){re.escape(phrase)}\b", text)
    ]
    if dialect:
        pytest.fail("\n".join([f"{page.name} (see How we write in CONTRIBUTING.md):", *dialect]), pytrace=False)


@in_one("page", PROSE)
def test_rows_of_a_table_have_its_columns(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "X", page.read_text(), flags=re.M | re.S)
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        cells = {row: len(re.split(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(set(cells.values())) == 1, f"{page.name}: {cells}"


# the site
def nav(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from nav(value)
    else:
        for value in entry:
            yield from nav(value)


def test_every_figure_is_in_the_gallery() -> None:
    text = (ROOT / "docs/gallery.md").read_text()
    assert set(re.findall(r"assets/gallery/(\w+)\.png", text)) == set(PLOTS)
    assert {path.stem for path in (ROOT / "docs/assets/gallery").iterdir()} == set(PLOTS)


def test_every_page_is_in_the_menu() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(nav(settings["nav"]))
    notebooks = [f"notebooks/{path.stem}.md" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")]
    assert sorted(listed) == sorted([*(page.name for page in DOCS), *notebooks])
    assert settings["theme"]["font"] is False, "the site must not ask for web fonts"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """In the repository; MkDocs checks anchors of the site."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and page not in DOCS:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.M)
            slugs = [re.sub(r"[^\w-]+", "-", title.lower().replace(",", "")).strip("-") for title in titles]
            assert anchor in slugs, f"{page.name}: {link}"


@pytest.mark.slow
@browser.needs_chromium
def test_the_site_opens_from_disk(tmp_path: Path) -> None:
    """Without any network: nothing is loaded from a host, no page has a message on the console, search finds a method."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    for page in tmp_path.glob("*.html"):
        text = page.read_text()
        assert re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//", text) is None, page.name
        assert "math::" not in re.sub(r"<code.*?</code>", "", text, flags=re.S), page.name
    assert any(
        link.endswith("methods.html?h=scaffold#scaffold")
        for link in browser.searched(tmp_path / "index.html", "scaffold")
    )


FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(?:work|home|root|Users|tmp|mnt)/",
    "a word of our workshop": r"(?i)\bdossiers?\b|\bshared/|\bTODO\b|\bFIXME\b",
    "a number of a thread that readers cannot see": r"(?<!/)\bissues?\b|Issue \d|(?<!\w)#\d+",
    "a word of advertising": r"(?i)\b(?:state-of-the-art|cutting-edge|blazing\w*|seamless\w*|powerful|world-class|unparalleled)\b",
    "something loaded from elsewhere": r"(?i)<script|cdn\.|googleapis",
}


def test_pages_hold_nothing_that_does_not_belong() -> None:
    for page in [*PAGES, ROOT / "mkdocs.yml"]:
        for what, pattern in FORBIDDEN.items():
            found = re.search(pattern, page.read_text())
            assert found is None, f"{page.name} holds {what}: {found[0]!r}"


def test_adding_a_method_is_short() -> None:
    """The promise of CONTRIBUTING: less than forty lines of code in most files of methods."""
    sizes = {path.stem: _code_lines(path) for path in (ROOT / "src/equipoise/methods").glob("[!_]*.py")}
    assert sum(size < 40 for size in sizes.values()) > len(sizes) / 2, sizes


def _code_lines(path: Path) -> int:
    text = re.sub(r'r?""".*?"""', "", re.split(r"\n(?:PRESETS: Presets|CATALOGUE) = ", path.read_text())[0], flags=re.S)
    lines = [line.strip() for line in text.splitlines()]
    return sum(bool(line) and not line.startswith(("#", "import ", "from ")) for line in lines)


def test_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{eq.__version__}]" in text
    assert "### Changed results" in text


def test_every_paper_of_the_catalogue_is_on_the_page_of_citations() -> None:
    entries = [" ".join(row) for row in stored("papers")[1:]]
    assert "<!-- data/papers.csv -->" in (ROOT / "docs" / "citing.md").read_text()
    for name, entry in METHODS.items():
        for citation in re.split("; ", entry.citation):
            if (year := re.search(r"\b(19|20)\d\d\b", citation)) is None:
                continue  # the usual upper bound
            author = re.split(r" et al|,|:", citation)[0]
            assert any(author in each and year[0] in each for each in entries), f"{name}: {citation}"
