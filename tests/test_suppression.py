"""No sum or difference of what is given is about a few people."""

import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import linprog

from equipoise.bundle.card import measures
from equipoise.core.task import CLASSIFICATION
from equipoise.federation.history import History
from equipoise.metrics import class_counts
from equipoise.privacy.suppression import Key, OfClass, Publication, exposed, hidden, shown
from equipoise.report import committee, html
from equipoise.report.layout import sheets
from equipoise.report.statistics import Comparison


def about_few(sums: np.ndarray, person: np.ndarray, least: int) -> bool:
    """Whether any combination of sums over rows [K, n] with coefficients -1, 0, 1 is about fewer people, by trying all."""
    combined = np.array([*itertools.product((-1, 0, 1), repeat=len(sums))]) @ sums
    return any(0 < len(np.unique(person[row != 0])) < least for row in combined)


@pytest.mark.parametrize("seed", range(40))
def test_no_combination_of_sums_by_attribute_is_about_few(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n, least = int(draw.integers(5, 50)), int(draw.integers(2, 7))
    codes = draw.integers(-1, 3, (n, 2))
    if seed % 2:  # the second follows from the first
        codes[:, 1] = codes[:, 0] > 0
    person = draw.integers(0, n, n) if seed % 3 else np.arange(n)
    seen = shown(codes, person, least)
    sums = np.array([np.ones(n, int), *(seen & (codes[:, k] == v) for k in (0, 1) for v in range(3))])
    assert len(np.unique(person)) < least or not about_few(sums, person, least)
    assert shown(codes, person, 1).all()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_exposed_is_what_a_combination_tells(seed: int) -> None:
    """Sets of rows that were given one after the other: whole, without a few, the rest."""
    draw = np.random.default_rng(seed)
    rows, least = np.arange(24), 4
    sums = draw.random((3, 24)) < draw.choice([0.1, 0.5, 0.9], 3)[:, None]
    sums[2] = sums[1] if seed % 3 == 0 else ~sums[1] if seed % 3 == 1 else sums[2]
    if about_few(sums.astype(int), rows, least):
        assert exposed(sums, rows, rows, least).any()


def test_nested_attributes_hide_the_few_in_both() -> None:
    """Two of the youngest: the difference of minors and the other minors."""
    age = np.repeat([0, 1, 2, 3], [2, 40, 38, 60])
    seen = shown(np.stack([age, age > 2], 1), np.arange(140), 10)
    assert not seen[age == 0].any()
    assert (~seen).sum() >= 10
    assert seen[age == 1].all()


def test_small_intersections_that_do_not_follow_stay() -> None:
    a, b = np.repeat([0, 0, 1, 1], [30, 3, 30, 30]), np.repeat([0, 1, 0, 1], [30, 3, 30, 30])
    assert shown(np.stack([a, b], 1), np.arange(93), 10).all()


# counts that are shown together
@dataclass(frozen=True)
class World:
    """People of two sites, by sex and race (the last value of both: unknown) and class: [2, 3, 3, 2], and how many a number must be about."""

    atoms: np.ndarray
    least: int

    @property
    def quantities(self) -> dict[Key, tuple[np.ndarray, int]]:
        """By the key of a count in a run's tables which atoms it adds up, and its value."""
        site, sex, race, case = np.indices(self.atoms.shape)
        where: dict[Key, np.ndarray] = {("test set", SITES[m]): site == m for m in range(2)}
        where |= {("sex", SEXES[a]): sex == a for a in range(2)} | {("race", RACES[b]): race == b for b in range(2)}
        both = {(a, b): (sex == a) & (race == b) for a in range(2) for b in range(2)}
        where |= {("sex and race", f"{SEXES[a]}, {RACES[b]}"): rows for (a, b), rows in both.items()}
        where |= {
            (*key, SITES[m]): rows & (site == m)
            for key, rows in where.items()
            if key[0] != "test set"
            for m in range(2)
        }  # type: ignore[misc]
        counted = {key: rows for key, rows in where.items() if self.atoms[rows].sum()}
        counted |= {OfClass(key, 1): rows & (case == 1) for key, rows in counted.items()}
        return {key: (rows, int(self.atoms[rows].sum())) for key, rows in counted.items()}

    @property
    def known(self) -> list[np.ndarray]:
        """Sums that a report has in other words: all people, all of the class, those of unknown sex or race if they are enough."""
        _, sex, race, case = np.indices(self.atoms.shape)
        unknown = [sex == 2, race == 2, (sex == 2) | (race == 2)]
        return [sex >= 0, case == 1, *(rows for rows in unknown if not 0 < self.atoms[rows].sum() < self.least)]

    def history(self) -> History:
        rows = np.repeat(np.stack([x.ravel() for x in np.indices(self.atoms.shape)], 1), self.atoms.ravel(), axis=0)
        p = torch.from_numpy((rows.sum(1) % 3 == 0).astype(np.int64))
        record: dict[str, Any] = {"round": 0, "groups": {}, "by": {"groups": {}}}
        for m, name in enumerate(SITES):
            _, sex, race, case = rows[rows[:, 0] == m].T
            s = torch.from_numpy(np.stack([np.where(sex == 2, -1, sex), np.where(race == 2, -1, race)], 1))
            y, predicted = torch.from_numpy(case), p[torch.from_numpy(rows[:, 0] == m)]
            counts = class_counts(case, predicted.numpy(), 2)
            accuracy = float((predicted == y).double().mean())
            record["groups"][name] = {"accuracy": accuracy, "loss": 0.5, "n": len(case), "rates": counts}
            record["by"]["groups"][name] = CLASSIFICATION.people(predicted, y, s, 2, joined=True)
        tests = [{"name": name, "size": score["n"], "counts": None} for name, score in record["groups"].items()]
        meta: Any = {
            "method": "fedavg", "least_group": self.least, "classes": ["well", "ill"], "positive": "ill", "client_names": [*SITES],
            "client_groups": [*SITES], "attributes": {"sex": [*SEXES], "race": [*RACES]}, "rounds": 1, "scenario": "own",
            "holdings": {"clients": [{**each, "counts": None, "group": each["name"]} for each in tests], "tests": tests},
        }  # fmt: skip
        return History([record], meta)


SITES, SEXES, RACES = ("north", "south"), ("woman", "man"), ("black", "white")


def worlds(n: int) -> Iterator[World]:
    for seed in range(n):
        draw = np.random.default_rng(seed)
        size = draw.choice([3, 12, 40], (2, 3, 3, 2), p=[0.3, 0.4, 0.3])
        atoms = draw.poisson(size * draw.choice([0.2, 1.0]))
        atoms[:, 2] //= draw.choice([1, 4, 100])
        atoms[:, :, 2] //= draw.choice([1, 4, 100])
        if atoms.sum((1, 2, 3)).min():
            yield World(atoms, int(draw.choice([5, 10, 20])))


def in_document(document: Any) -> set[Key]:
    """The keys of the counts that a report's numbers have."""
    shown: set[Key] = {("test set", name) for name in document["sizes"]}
    parities = {"test set": document["group_fairness"], **document["people"]}
    for division, parity in parities.items():
        (method,) = parity["methods"]
        groups = {(division, name): each for name, each in method["groups"].items()}
        for site, inside in method.get("sites", {}).items():
            groups |= {(division, name, site): each for name, each in inside["groups"].items()}  # type: ignore[misc]
        shown |= {key for key, each in groups.items() if each["n"] is not None}
        shown |= {OfClass(key, 1) for key, each in groups.items() if each["of_class"] is not None}
    return shown


def assert_nothing_follows(world: World, shown: Collection[Key]) -> None:
    """No hidden count is a combination of what is shown, and no small one can have one value only if none is negative."""
    quantities = world.quantities
    rows = np.array([quantities[key][0].ravel() for key in shown] + [known.ravel() for known in world.known], float)
    b, inverse = rows @ world.atoms.ravel(), np.linalg.pinv(rows)
    for key in quantities.keys() - {*shown}:
        count, n = quantities[key][0].ravel().astype(float), quantities[key][1]
        assert np.abs(count - count @ inverse @ rows).max() > 1e-6, (key, n)
        if n < world.least:
            low, high = (linprog(sign * count, A_eq=rows, b_eq=b, method="highs") for sign in (1, -1))
            assert -high.fun - low.fun > 0.5, (key, n)


def in_tables(compared: Comparison) -> set[Key]:
    """The same of the tables of a report, as they are printed and in its page, and of a page for a committee."""
    tables = [[("", *sheet.grid.titles), *((name, *(cell.mean for cell in cells)) for name, cells in sheet.grid.rows)]
              for sheet in sheets(compared.document)]  # fmt: skip
    for table in re.findall(r"<table.*?</table>", committee.render(compared) + html.render(compared), re.S):
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in table.split("<tr")[1:]]
        tables.append([tuple(re.sub(r"<[^>]+>", "", cell).strip() for cell in row) for row in rows])
    divisions = {
        "test set": SITES,
        "sex": SEXES,
        "race": RACES,
        "sex and race": [f"{a}, {b}" for a in SEXES for b in RACES],
    }
    keys = {name: (division, name) for division, names in divisions.items() for name in names}
    printed = set[Key]()
    for head, *body in tables:
        for name, *cells in body:
            for title, cell in zip(head[1:], cells, strict=False):
                if cell[:1].isdigit() and name in keys and title in ("n", "tested"):
                    printed.add(keys[name])
                if cell[:1].isdigit() and name in keys and title in ("of ill", "of class ill"):
                    printed.add(OfClass(keys[name], 1))
                if cell[:1].isdigit() and name == "n" and title in keys:
                    printed.add(keys[title])
    return printed


def test_no_hidden_count_follows_from_what_is_shown_together() -> None:
    """In a report as JSON and in its tables, a page for a committee, and a bundle."""
    for world in worlds(10):
        history = world.history()
        compared = Comparison.of([history])
        shown, printed, bundled = in_document(compared.document), in_tables(compared), measures(history)
        assert printed
        assert printed <= shown
        shown |= {("test set", name) for name, scores in bundled["sets"].items() if scores["n"] is not None}
        groups = {("test set", name): each for name, each in bundled["group_fairness"]["groups"].items()}
        for name, people in bundled["people"].items():
            groups |= {(name, value): each for value, each in people["treated"]["groups"].items()}
        shown |= {key for key, each in groups.items() if each["n"] is not None}
        shown |= {OfClass(key, 1) for key, each in groups.items() if each["of_class"] != [None]}
        assert_nothing_follows(world, shown)
        assert len(world.quantities) > len(shown) > 3


def test_what_follows_from_two_tables_is_hidden() -> None:
    """Men, and men of one race, tell of five others; so do people of a class at a site, and two of three classes."""
    made = Publication(10)
    for key, n in {"men": 100, "women": 50, "men, a": 95, "men, b": 5, "women, a": 30, "women, b": 20}.items():
        made.add(key, n)
    made.total(["men", "women"])
    made.total(["men, a", "men, b", "women, a", "women, b"])
    for whole in ("men", "women"):
        made.total([f"{whole}, a", f"{whole}, b"], whole)
    assert made.hidden() == {"men, a", "men, b", "women, b", "women, a"} or made.hidden() >= {"men, a", "men, b"}
    made = Publication(10)
    made.add("north", 100, {0: (50, 50), 1: (45, 55), 2: (5, 95)})
    classes = {key.c for key in made.hidden() if isinstance(key, OfClass) and not key.others}
    assert 2 in classes
    assert len(classes) > 1


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 40), st.floats(0, 1)), min_size=1),
    st.integers(0, 40),
    st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_of_one_division_the_hidden_are_together_enough(
    parts: dict[str, tuple[int, float]], rest: int, least: int
) -> None:
    made, n = Publication(least), {name: k for name, (k, _) in parts.items()}
    cases = {name: round(k * share) for name, (k, share) in parts.items()}
    for name, k in n.items():
        made.add(name, k, {1: (cases[name], k - cases[name])})
    made.total([*n], rest=rest)
    gone = made.hidden()
    assert hidden(n, least, rest) == {name for name in n if name in gone}
    left = sum(n[name] for name in n if name in gone) + (rest if rest < least else 0)
    assert left == 0 or left >= least or all(name in gone for name, k in n.items() if k)
    assert all(n[name] == 0 or n[name] >= least for name in n if name not in gone)
    away = [name for name in n if OfClass(name, 1) in gone]
    assert all(min(cases[name], n[name] - cases[name]) >= least for name in n if n[name] and name not in away)
    size, positive = (sum(each[name] for name in away) for each in (n, cases))
    others = [name for name in n if n[name] and name not in away]
    assert not others or not size or min(positive, size - positive) >= least
