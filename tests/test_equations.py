"""Equations of docstrings as text for a terminal."""

from __future__ import annotations

import re

import describe
from equations import plain_equation
from hypothesis import given, strategies as st

from equipoise.methods import METHODS
from helpers import in_one


@in_one(
    ("latex", "text"),
    [
        (r"\frac{\mu}{2} \lVert \theta - \theta^t \rVert^2", "μ / 2 ‖ θ − θᵗ ‖²"),
        (r"\theta^{t+1}", "θᵗ⁺¹"),
        (r"\tfrac1N \sum_{m \in S_t} p_m", "1 / N Σ_(m ∈ S_t) p_m"),
        (r"\frac{a + b}{c}", "(a + b) / c"),
        (r"\operatorname*{argmin}_p \overline{\Delta}", "argmin_p Δ̄"),
        (r"x_{m,i}^{(r)}", "x_(m,i)^(r)"),
        (r"\text{keep} \iff c \ge \tau", "keep ⇔ c ≥ τ"),
        (r"\nobodyknows{x}", "nobodyknowsx"),
        ("x^", "x"),
    ],
)
def test_an_equation_reads_as_text(latex: str, text: str) -> None:
    assert plain_equation(latex) == text


@given(st.text(alphabet="ab_^{}\\ fract-&", max_size=60))
def test_no_text_is_too_odd(latex: str) -> None:
    plain_equation(latex)


def test_nothing_of_latex_is_left_in_the_catalogue() -> None:
    rules = {rule for entry in METHODS.values() for rule in entry.rules}
    left = {rule.__name__: re.findall(r"\\[a-z]+|math:|\{\{", describe.plain(rule)) for rule in rules}
    assert {name: found for name, found in left.items() if found} == {}
