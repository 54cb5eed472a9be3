"""One reader of ``name(key=value, ...)``: what it accepts, and hostile text."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest

from equipoise.core import rates
from equipoise.core.task import Regression, task_of
from equipoise.federation.method import parse
from equipoise.runs.configuration import called
from equipoise.scenarios.scenario import kind_of
from equipoise.system import calls, search
from helpers import in_one


@in_one(
    ("text", "call"),
    [
        ("cnn", ("cnn", None, "")),
        (" cnn ( width = 4 , norm = batch ) ", ("cnn", [("width", "4"), ("norm", "batch")], "")),
        ("cnn()", ("cnn", [("", "")], "")),
        ("own(group=sex, label=007)", ("own", [("group", "sex"), ("label", "007")], "")),
        (
            "own(label='a, (b', leave_out=['a, b', 'c'])",
            ("own", [("label", "'a, (b'"), ("leave_out", "['a, b', 'c']")], ""),
        ),
        ("layers(0.01, head=step(0.1, every=10))", ("layers", [("", "0.01"), ("head", "step(0.1, every=10)")], "")),
        ("x(a=/data/net (1).pth)", ("x", [("a", "/data/net (1).pth")], "")),
        ("x(a=1)+y(b=2)", ("x", [("a", "1")], "+y(b=2)")),
        ("x(a=1))", ("x", [("a", "1")], ")")),
        ("x(a=Côte d'Ivoire)", ("x", [("a", "Côte d'Ivoire")], "")),
        ("x(a=(1", ("x", [("a", "(1")], None)),
        ("x(a=1]", ("x", [("a", "1]")], None)),
    ],
)
def test_a_call_is_read(text: str, call: Any) -> None:
    assert calls.read(text) == call


def test_every_reader_takes_what_it_took() -> None:
    assert parse("fedproto(lam=2)+fedheal:released(tau=0.4)").rules == (
        *parse("fedproto(lam=2)").rules,
        *parse("fedheal:released(tau=0.4)").rules,
    )
    assert task_of("regression(loss=huber, unit=mm(Hg))").unit == "mm(Hg)"
    assert isinstance(task_of("regression( loss=huber )"), Regression)
    assert (kind_of("regression(loss=huber)"), kind_of(" classification ")) == ("regression", "classification")
    assert rates.read("cosine(0.1, warmup=5)") == rates.Cosine(0.1, warmup=5)
    assert search.read("x", "log( 0.001,1)") == search.log_uniform(0.001, 1)
    assert search.read("x", "among([1, 2], 'a,b')") == search.among([1, 2], "a,b")
    assert search.read("x", "none,true,inf,word") == search.among(None, True, math.inf, "word")
    assert called("--scenario", "mine.py:make(size=[1, 2], way=a b)", "") == (
        "mine.py:make",
        {"size": [1, 2], "way": "a b"},
    )


@pytest.mark.parametrize("sign", ["(", "[", "x(", "(a=", "'", '"', "\ud800", "a=\ud800,", "-", ",", "=", ")"])
def test_hostile_text_has_one_clear_error_or_is_a_word(sign: str) -> None:
    """Whatever its length and depth, no reader recurses, and each raises what the user can read."""
    for inside in (sign * 3, sign * 1000):
        for text in (
            inside,
            f"f({inside}",
            f"f(a={inside})",
            f"cosine(0.1, {inside})",
            f"regression({inside})",
            f"fedprox(mu={inside})",
        ):
            for read in (
                parse,
                task_of,
                kind_of,
                rates.read,
                lambda t: called("--network", t, ""),
                lambda t: search.read("x", t),
            ):
                with suppress(ValueError, TypeError):  # of which those that are expected are kinds
                    read(text)  # type: ignore[operator]
