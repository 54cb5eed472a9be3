"""No sum or difference of what is given is about a few people."""

import itertools

import numpy as np
import pytest

from equipoise.privacy.differences import exposed, shown


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
