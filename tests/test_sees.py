"""What a rule says that the server must see is what it must see: see ``equipoise.testing.sees``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pages
import pytest
import torch

from equipoise.core.rule import SEES, Cohort, Rule, Sees, Setup, State, told
from equipoise.federation.method import Method, parse
from equipoise.methods import METHODS
from equipoise.system.tree import flatten
from equipoise.testing import sees
from helpers import N_CLASSES, Unstable, fast_first, federation, in_one

PAGE = Path(__file__).parents[1] / "docs/security.md"
SUMS = ("scaffold+fedga", "fedproto+qffl", "fedproto+fedheal")
OTHERS = {
    "cffl": ["cffl(theta_u=0.5)"],
    "fairbatch": ["fairbatch(metric=dp)"],
}  # forms without a preset of which a site keeps or sends something else
FORMS = {n: [n, *(f"{n}:{preset}" for preset in entry.presets), *OTHERS.get(n, ())] for n, entry in METHODS.items()}
ALL = [
    *(form for name, forms in FORMS.items() if name != "centralised" for form in forms),
    *SUMS,
]  # which has no clients


@cache
def last_round(text: str) -> sees.Replay:
    return sees.last_round(parse(text))


# with few clients the defaults of these are the plain mean, or weights at their bounds; Krum's, a choice, are not known before the round
OF_FEW = {
    "fedmgda:flgo": "fedmgda:flgo(eps=0.5)",
    "trimmed-mean": "trimmed-mean(beta=0.25)",
    "krum": "krum(m=2)",
    "multi-krum": "multi-krum(m=2)",
}


def looked_at(text: str) -> Sees:
    r = last_round(OF_FEW.get(text, text))
    return sees.looked_at(replace(r, cohort=replace(r.cohort, weights=r.cohort.uniform)) if "krum" in text else r)


# what rules say
@pytest.mark.parametrize("text", fast_first(ALL))
def test_the_server_sees_what_it_must(text: str) -> None:
    """No less would do, and no more is asked for: that each client's model is judged before the first round counts too."""
    method = parse(text)
    if any(need.startswith("contribution") for need in method.needs):
        assert method.sees == "matrix"
        assert sees.follows_contribution(last_round(text))
    else:
        assert method.sees == looked_at(text)


@in_one("text", [text for text in ALL if SEES.index(parse(text).sees) <= SEES.index("sum")])
def test_who_sees_sums_keeps_nothing_of_single_clients(text: str) -> None:
    r = last_round(text)
    assert not sees.kept_of_clients(r.trial)
    assert r.before.given is None


@dataclass(frozen=True)
class Memory(Rule):
    """A state of the server that has five entries: always, or as there are so many clients here."""

    each: bool

    def server_state(self, setup: Setup) -> State:
        return {"x": torch.zeros(2, setup.n_clients if self.each else 5)}


def test_what_is_kept_of_clients_grows_with_their_number() -> None:
    of = {each: federation(Memory(each)).trial for each in (True, False)}
    assert all(len(e.data) == 5 for e in of.values())
    assert {each: sees.kept_of_clients(e) for each, e in of.items()} == {True: ["server/0/x"], False: []}


@in_one("text", [text for text in ALL if parse(text).sees == "scalars+sum"])
def test_scalars_are_few(text: str) -> None:
    """Beside reports that are summed, a client tells one number at a time, or a few of its cells."""
    r = last_round(text)
    for rule, report in zip(r.trial.method.rules, r.answer.reports, strict=True):
        if rule.declared.sees == "scalars+sum":
            assert all(x.dim() == 1 or x.shape[1:] in OF_CELLS for x in report.values())


@dataclass(frozen=True)
class Silent(Rule):
    """Act on the server and say nothing of what it sees."""

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, cohort


def test_a_rule_that_says_nothing() -> None:
    assert Silent().declared.sees == "matrix"
    assert Rule().declared.sees == Unstable().declared.sees == "sum"


@in_one(
    ("method", "most"),
    [
        (Method(), "sum"),
        (parse("standalone"), "nothing"),
        (parse("standalone+fedproto"), "sum"),
        (parse("scaffold+saga"), "scalars+sum"),
        (parse("saga+scaffold"), "scalars+sum"),
        (parse("fedproto+fedheal"), "matrix"),
        (Method((Silent(), *parse("fedprox").rules)), "matrix"),
    ],
)
def test_a_sum_sees_the_most_that_a_part_must(method: Method, most: str) -> None:
    assert method.sees == most


def test_every_word_is_explained() -> None:
    assert re.findall(r"^\| `([a-z+]+)` \| [a-z]", PAGE.read_text(), flags=re.M)[: len(SEES)] == list(SEES)


# the table of what leaves a site
@cache
def table() -> dict[str, list[str]]:
    """The cells of each method's row."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in pages.what_leaves().splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_the_table_has_a_row_for_every_method() -> None:
    assert list(table()) == list(METHODS)


@in_one("name", METHODS)
def test_what_leaves_a_site_is_in_the_table(name: str) -> None:
    model, reports, kept, sees = table()[name]
    rounds = [last_round(form) for form in FORMS[name]]
    assert sees.split("`")[1] == parse(name).sees
    assert sent_as(rounds) == {word for word in WORDS if word in model}
    assert named(reports) == shapes(told(r.trial.method.rules, r.answer.reports) for r in rounds)
    assert named(kept) == shapes(r.answer.states for r in rounds)
    assert ("BatchNorm" in kept or "the whole model" in kept) == any(r.trial.private is not None for r in rounds)
    assert (kept == "nothing") == all(not flatten(r.answer.states) and r.trial.private is None for r in rounds)
    assert ("none" in reports) == any(not flatten(r.answer.reports) for r in rounds)


WORDS = ("whole", "nothing", "without", "submodel", "clipped")


def sent_as(rounds: list[sees.Replay]) -> set[str]:
    """What sort of model is sent, in words of the table."""
    words = set()
    for r in rounds:
        private = r.trial.private
        words |= {"nothing" if private.all() else "without"} if private is not None else set()
        words |= {"submodel"} if r.cohort.held is not None else set()
        words |= {"clipped"} if r.trial.method.overriding("upload") else set()
    return words or {"whole"}


def named(cell: str) -> dict[str, str]:
    """Names in a cell with their shapes; ``"x=y"`` and the hyper-parameter of CFFL are none."""
    return {name: shape for name, shape in re.findall(r"`(\w+)`(?: \[(.*?)\])?", cell) if name != "theta_u"}


def shapes(trees: Iterator[list[State]]) -> dict[str, str]:
    """Names of what clients send or keep, with the shape of one client's in letters of the page."""
    found: dict[str, str] = {}
    for tree in trees:
        for path, x in flatten(tree).items():
            cell = x.shape[1:3] in OF_CELLS
            shape = ", ".join([*CELLS * cell, *(LETTERS[n] for n in x.shape[3 if cell else 1 :])])
            assert found.setdefault(path.rpartition("/")[2], shape) == shape
    return found


CELLS, OF_CELLS = "RA", {(2, 2), (N_CLASSES, 2)}  # rows, all classes or two, and groups
LETTERS = {
    N_CLASSES: "C",
    7: "D",
    24: "h",
    80: "P",
    94: "G",
    1: "1",
    2: "A",
    31: "31",
    100: "B",
}  # of the network with BatchNorm
