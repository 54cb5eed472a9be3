"""The documentation says what the code does: its examples run, its commands parse, its tables are those of the code."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from torch import nn

import equipoise as eq
from equipoise import networks, scenarios
from equipoise.cli import main as cli
from equipoise.federation.method import parse, read_value
from equipoise.methods import METHODS
from equipoise.runs import directory as runs
from equipoise.runs.configuration import configure
from equipoise.system.ranges import describe

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


def sections(page: Path, mark: str = "## ") -> dict[str, str]:
    """Text below each heading of a level."""
    parts = re.split(rf"^{mark}(.+)$", page.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


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


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
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


def test_contributing_shows_fedprox() -> None:
    """The worked example is the real file, but for the import of annotations and the remark on a library."""
    shown = blocks(ROOT / "CONTRIBUTING.md", "python")[0]
    real = (ROOT / "src/equipoise/methods/fedprox.py").read_text().replace("from __future__ import annotations\n\n", "")
    assert flat(shown) == flat(re.sub(r"\n    Differs:.*?\n(?=    \"\"\")", "", real, flags=re.S))


# commands
def commands() -> Iterator[Any]:
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield pytest.param(line, id=f"{page.stem}: {line}")


@pytest.mark.parametrize("line", list(commands()))
def test_command_is_understood(line: str) -> None:
    """The subcommand, its options and their types exist, and methods, scenario and network are known."""
    program, *words = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert set(words) <= set(targets)
        return
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
    if words[0] == "methods" and given["name"]:
        assert given["name"] in METHODS
    if "scenario" in given or words[0] == "init":
        name, options = called(given.get("scenario") or ("own" if given.get("data") else "digits"))
        assert name in scenarios.SCENARIOS
        assert options.keys() | bare <= set(inspect.signature(scenarios.SCENARIOS[name].build).parameters)
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
    text = (ROOT / "docs/command-line.md").read_text()
    assert set(group.commands) == set(re.findall(r"^\| `(\w+)` \|", text, flags=re.M))
    nested = {f"flower {name}": command for name, command in group.commands["flower"].commands.items()}
    assert all(f"| `{name} DIR" in text for name in nested)
    for name, command in {**group.commands, **nested}.items():
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("-") and option != "--help":
                    assert f"`{option}`" in text or f"`{option} " in text, f"{name} {option}"


# tables
def method_table() -> str:
    """The table of methods in the README."""
    head = [row("name", "what it does", "paper", "parts"), "|---|---|---|---|"]
    rows = [
        row(f"`{name}`", entry.summary, entry.citation, ", ".join(rule.__name__ for rule in entry.rules))
        for name, entry in METHODS.items()
    ]
    return "\n".join([*head, *rows])


def test_readme_lists_the_methods() -> None:
    found = re.search(r"<!-- methods -->\n(.*?)<!-- /methods -->", (ROOT / "README.md").read_text(), flags=re.S)
    assert found is not None
    assert found[1].strip() == method_table(), f"the table in README.md must be\n\n{method_table()}\n"


@pytest.mark.parametrize("name", METHODS)
def test_method_is_described(name: str) -> None:
    """A section with every hyper-parameter, its default and its values, and every preset."""
    told = sections(ROOT / "docs/methods.md")
    assert name in told, f"docs/methods.md needs a section '## {name}'"
    text, entry = told[name], METHODS[name]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    known = {f.name: f for rule in entry.rules for f in fields(rule)}  # rules of one name may share a parameter
    expected = [row(f"`{n}`", entry.defaults[n], describe(f)) for n, f in known.items()]  # type: ignore[arg-type]
    assert [" | ".join(r.split(" | ")[:3]) + " |" for r in rows] == expected
    assert all(r.split(" | ")[3].strip("| ") for r in rows), "every hyper-parameter needs its meaning"
    presets = text[text.index("Presets:") :].split("\n\n")[0]
    assert set(re.findall(rf"`{re.escape(name)}:([\w-]+)`", presets)) == set(entry.presets or {"paper"})
    for preset, values in entry.presets.items():
        after = presets.split(f"`{name}:{preset}`")[1].split(")")[0]
        assert set(re.findall(r"`([^`]+=[^`]+)`", after)) == {f"{k}={v}" for k, v in values.items()}
    for word in ("State", "raffic", "Differs:"):
        assert word in text
    assert f"\nThe server must see: `{parse(name).sees}`" in text


def test_no_section_without_a_method() -> None:
    assert list(sections(ROOT / "docs/methods.md")) == list(METHODS)


def test_scenarios_and_networks_are_described() -> None:
    text = (ROOT / "docs/scenarios.md").read_text()
    assert all(f"## {name}\n" in text for name in scenarios.SCENARIOS)
    for name, entry in networks.NETWORKS.items():
        (told,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        options = [p.name for p in inspect.signature(entry.build).parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert all(f"`{option}`" in told for option in options)
    p = eq.scenario("digits").protocol
    assert flat(
        f"{p.rounds} rounds, {p.epochs} local epochs, batches of {p.batch_size}, SGD with learning rate {p.lr:g}, "
        f"momentum {p.momentum:g} and weight decay 1e-5"
    ) in flat(text)
    assert p.weight_decay == 1e-5


def test_limits_of_engines_are_those_of_the_code() -> None:
    text = flat((ROOT / "docs/engines.md").read_text())
    choose, stacked = (importlib.import_module(f"equipoise.engines.{name}") for name in ("choose", "stacked"))
    assert f"at most {choose.SMALL:,} parameters" in text
    assert f"to {stacked.MEMORY >> 20} MiB" in text


def test_every_hook_is_described() -> None:
    hooks = [n for n, f in vars(eq.Rule).items() if inspect.isfunction(f) and not n.startswith("_")]
    text = (ROOT / "docs/architecture.md").read_text()
    for hook in hooks:
        names = list(inspect.signature(getattr(eq.Rule, hook)).parameters)[1:]
        assert f"`{hook}({', '.join(names)})`" in text


# the reference
def signature(name: str, what: Callable[..., Any]) -> str:
    """A call as the reference shows it: names and defaults, without annotations."""
    parts, starred = [], False
    for p in inspect.signature(what).parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        value = "" if p.default is p.empty else "=..." if "factory" in repr(p.default) else f"={p.default!r}"
        parts.append(f"{stars}{p.name}{value}")
        starred = starred or p.kind is p.VAR_POSITIONAL
    return f"{name}({', '.join(parts)})"


def resolve(name: str) -> Any:
    if name.startswith("equipoise."):
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)
    if name.startswith("metrics."):
        return getattr(importlib.import_module("equipoise.metrics"), name.removeprefix("metrics."))
    found: Any = eq
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_reference_shows_the_signatures() -> None:
    shown = " ".join(flat(block) for block in blocks(ROOT / "docs/api.md", "text"))
    calls = re.findall(r"[\w.]+\((?:[^()]|\([^()]*\))*\)", shown)
    assert calls == [signature(call.split("(")[0], resolve(call.split("(")[0])) for call in calls]
    text = (ROOT / "docs/api.md").read_text()
    for name in eq.__all__:
        assert f"{name}(" in shown or f"`{name}`" in text, f"docs/api.md says nothing of {name}"


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


nan = torch.full((5, 4), float("nan"))
MESSAGES: dict[str, Callable[[], Any]] = {
    "unknown method": lambda: parse("fedhael"),
    "two set the weights": lambda: parse("afl+fedheal"),
    "unknown hyper-parameter": lambda: parse("fedheal(taw=0.4)"),
    "unknown preset": lambda: parse("fedheal:relesed"),
    "out of range": lambda: parse("fedheal(tau=2)"),
    "not a part": lambda: parse("fedavg+fedheal", {"fphl.tau": 0.4}),
    "lengths": lambda: fit(spoiled((1, "y", torch.zeros(4, dtype=torch.int64)))),
    "labels": lambda: fit(spoiled((0, "y", torch.tensor([0, 1, 2, 0, 1])))),
    "shapes": lambda: fit(spoiled((1, "x", torch.zeros(5, 3)))),
    "empty": lambda: fit(spoiled((0, "x", torch.zeros(0, 4)), (0, "y", torch.zeros(0, dtype=torch.int64)))),
    "groups": lambda: fit(tests={"North": spoiled()[0]}, groups=["North", "South"]),
    "momentum": lambda: fit(net=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2))),
    "dropout": lambda: fit(net=nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 2)), engine="stacked"),
    "quorum": lambda: fit(spoiled((0, "x", nan), (1, "x", nan))),
    "adam": lambda: eq.Adam().travel(torch.ones(1)),
    "settings": other_settings,
    "directory": other_directory,
    "checkpoint": other_checkpoint,
    "no checkpoint": lambda: eq.Federation(nn.Linear(4, 2), spoiled()).resume("empty"),
    "no run": lambda: runs.load(Path("nowhere")),
    "unknown scenario": lambda: eq.scenario("digit"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_message_is_in_the_faq(case: str, elsewhere: Path) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)) as error:
        MESSAGES[case]()
    assert flat(str(error.value)) in [flat(block) for block in blocks(ROOT / "docs/faq.md", "text")], str(error.value)


def test_faq_has_no_other_message() -> None:
    assert len(blocks(ROOT / "docs/faq.md", "text")) == len(MESSAGES)


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


def test_every_page_is_in_the_menu() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(nav(settings["nav"]))
    assert sorted(listed) == [page.name for page in DOCS]
    assert settings["theme"]["font"] is False, "the site must not ask for web fonts"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(), flags=re.M)
            slugs = [re.sub(r"[^\w-]+", "-", title.lower().replace(",", "")).strip("-") for title in titles]
            assert anchor in slugs, f"{page.name}: {link}"


FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/(?:work|home|root|Users|tmp|mnt)/",
    "a word of our workshop": r"(?i)\bdossiers?\b|\bshared/|\bTODO\b|\bFIXME\b",
    "a number of a thread that readers cannot see": r"(?i)\bissues?\b|(?<!\w)#\d+",
    "a word of advertising": r"(?i)\b(?:state-of-the-art|cutting-edge|blazing\w*|seamless\w*|powerful|world-class|unparalleled)\b",
    "something loaded from elsewhere": r"(?i)<script|cdn\.|googleapis",
}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "mkdocs.yml"], ids=lambda page: page.name)
@pytest.mark.parametrize("what", FORBIDDEN)
def test_pages_hold_nothing_that_does_not_belong(page: Path, what: str) -> None:
    found = re.search(FORBIDDEN[what], page.read_text())
    assert found is None, f"{page.name} holds {what}: {found[0]!r}"


def test_adding_a_method_is_short() -> None:
    """The promise of CONTRIBUTING: less than forty lines of code in most files of methods."""
    sizes = {path.stem: _code_lines(path) for path in (ROOT / "src/equipoise/methods").glob("[!_]*.py")}
    assert sum(size < 40 for size in sizes.values()) > len(sizes) / 2, sizes


def _code_lines(path: Path) -> int:
    text = re.sub(r'r?""".*?"""', "", path.read_text().partition("\nCATALOGUE = ")[0], flags=re.S)
    lines = [line.strip() for line in text.splitlines()]
    return sum(bool(line) and not line.startswith(("#", "import ", "from ")) for line in lines)


def test_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{eq.__version__}]" in text
    assert "### Changed results" in text
