"""Nothing is decided by our own English: with other words in every sentence, choices, numbers and tables are the same."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import equipoise
import other_words
from other_words import differences, reworded, said

PACKAGE = Path(str(equipoise.__file__)).parent
TEXT = r'[rf]{0,2}"((?! if )(?:[^"\\\n]|\\.)*)"'
CALLS = r"\.(?:startswith|endswith|(?:remove(?:pre|suf)fi)x|r?partition|split|find|match|fullmatch|search|findall|compile)\(\s*\(?\s*"
ASKING = re.compile(
    rf"{CALLS}{TEXT}|{TEXT} (?:not )?in |(?:[=!]=|\bin \(|\bcase) {TEXT}|{CALLS}(?:f\"\{{)?(_?[A-Z][A-Z_]+)\b"
)
CONSTANT = re.compile(r'^(_?[A-Z][A-Z_]+)\b[^=\n,]*= (\(?\s*(?:[rf]*"[^"\n]*",?\s*)+)', re.MULTILINE)
FOREIGN = {  # words of others: of Flower, requests, Python and PyTorch
    "ServerApp failed with exception: ", " for url", "Exit Code:", "can't allocate memory", "allocate memory", "field limit",
    "(INFO|DEBUG) +:|Using SuperLink: |Successfully installed ", r"Math Kernel Library Version (\d[\d.]*)",
}  # fmt: skip
NAMES = {  # of keys and values, each written at more than one place
    "not begun", "own code", "as measured", "not lower", "does not hold", "nothing to compare with", "content of ",
}  # fmt: skip


EARLIER = "_WORDS"  # constants with words that records of earlier versions have instead of keys


def constants(sources: Iterable[str]) -> dict[str, str]:
    """The texts in the constants of all modules, by name."""
    return {match[1]: match[2] for source in sources for match in CONSTANT.finditer(source) if match[1] != EARLIER}


def asked(source: str, named: Mapping[str, str]) -> Iterator[str]:
    """The sentences in a module by which something is decided: they are compared, looked for, cut off, or a pattern."""
    for match in ASKING.finditer(source):
        *texts, name = match.groups()
        text = next(filter(None, texts), "") or named.get(name, "")
        if said(re.sub(r'[()"]', "", text)):
            yield text


def test_no_sentence_of_ours_decides() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    named = constants(sources.values())
    wrong = {path.name: {*asked(source, named)} - FOREIGN - NAMES for path, source in sources.items()}
    assert not {name: texts for name, texts in wrong.items() if texts}


@pytest.mark.parametrize(
    "decision",
    [
        'text.startswith("the column is empty")',
        'x if "a cell is missing" in text else y',
        'why == "training diverged"',
        're.match(r"the (class|number) of", why)',
        "why.startswith(MISSED)",
        'why.removeprefix(f"{path} is missing")',
    ],
)
def test_a_decision_by_words_is_seen(decision: str) -> None:
    named = constants(['MISSED = ("is not connected", "refuses")'])
    assert [*asked(decision, named)]
    assert not [*asked('key_of(why) == MISSED or name.startswith("dp")', named)]


# the whole package with other words
SHIFTING = {
    "seal", "hash", "seconds", "tuning_seconds", "time", "times", "source", "git", "sha256", "contents", "last_round_ended", "chosen", "code", "rows",
    "process",
}  # fmt: skip


def test_other_words_keep_numbers_names_and_placeholders() -> None:
    text = "{name} has %d clients, and `equipoise run --name x` takes 'a b'."
    other = reworded(text, 3)
    assert other != text
    assert (other.format(name="n"), said("not_begun"), said("two words")) == (other.replace("{name}", "n"), False, True)
    assert "`equipoise run --name x`" in other
    assert not [*differences({"a": [text, 1]}, {"a": [other, 1]})]
    assert len([*differences({"a": [text, 1], "b": 1}, {"a": [other, 2], "b": 1})]) == 1
    assert [*differences("9 of 10 clients", reworded("9 of 11 clients", 3))]
    assert len([*differences(["fedavg"], ["fedprox"])]) == 1


def documents(folder: Path) -> dict[str, Any]:
    """What was answered, and what is in files of runs, without what differs from one run to the next."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: plain(value) for key, value in part.items() if key not in SHIFTING}
        return [*map(plain, part)] if isinstance(part, list) else part

    answers: dict[str, Any] = {}
    for words, status, answer, errors in json.loads((folder / "answers.json").read_text()):
        assert status == 0, errors
        answers[" ".join(words[:2])] = plain(json.loads(answer)) if "--json" in words else len(answer.splitlines())
    answers["benchmark suite.toml"].pop("notes")  # which have seconds
    for file in sorted(folder.rglob("metrics.jsonl")):
        answers[file.relative_to(folder).as_posix()] = [*map(plain, map(json.loads, file.read_text().splitlines()))]
    for file in sorted(folder.rglob("chosen.toml")):
        answers[file.relative_to(folder).as_posix()] = plain(tomllib.loads(file.read_text()))
    return answers | {"predicted": (folder / "predicted.csv").read_text()}


@pytest.mark.slow
def test_with_other_words_everything_is_the_same(tmp_path: Path) -> None:
    """Comparisons, a search with a draw that diverges, a suite, an experiment, reports, a bundle and its predictions."""
    other_words.copied(PACKAGE, tmp_path / "words")
    of_package = dict[str, dict[str, Any]]()
    for name, package in (("ours", PACKAGE.parent), ("theirs", tmp_path / "words")):
        (folder := tmp_path / name).mkdir()
        subprocess.run(
            [sys.executable, other_words.__file__, folder], env={**os.environ, "PYTHONPATH": str(package)}, check=True
        )
        of_package[name] = documents(folder)
    assert not [*differences(*of_package.values())]
    (trials,) = (method["trials"] for method in of_package["ours"]["tune fedavg"]["methods"].values())
    assert any("diverged" in str(trial["failed"]) for trial in trials)
