"""Names, sums and presets of methods, and every way to get them wrong."""

from __future__ import annotations

import dataclasses
import json

import describe
import pytest
from hypothesis import given, strategies as st

import equipoise as eq
from equipoise.cli.completion import FILE
from equipoise.core.rule import Rule
from equipoise.federation.method import Method, MethodError, parse
from equipoise.methods import METHODS
from equipoise.methods.afl import AFL
from equipoise.methods.clipping import Clipping
from equipoise.methods.ditto import DittoPersonal
from equipoise.methods.fael import FAEL
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedfv import FedFV
from equipoise.methods.fedprox import FedProx
from equipoise.methods.fphl import FPHL
from equipoise.methods.qffl import QFFL
from equipoise.methods.scaffold import Scaffold
from equipoise.system.text import read_value
from helpers import KeepHead, Portion, in_one


def test_a_sum_has_the_rules_of_its_parts() -> None:
    method = parse("fedprox(mu=0.5)+fedheal:released(tau=0.4)")
    prox, fphl, fael = method.rules
    assert prox == FedProx(0.5)
    assert (fphl.tau, fphl.history, fael.carry) == (0.4, "exclusive", "raw")
    assert parse(" fedprox ( mu = 0.5 ) + fedheal ".replace(" (", "(")).rules == parse("fedprox(mu=0.5)+fedheal").rules


@pytest.mark.parametrize("text", ["fael+fphl+fedprox", "fphl+fedprox+fael", "fedprox+fael+fphl"])
def test_masks_come_before_weights_and_both_last(text: str) -> None:
    assert [type(r) for r in parse(text).rules] == [FedProx, FPHL, FAEL]


@pytest.mark.parametrize("text", ["clipping+fedprox+fael", "fedprox+clipping+fael", "fael+fedprox+clipping"])
def test_what_changes_the_updates_comes_first(text: str) -> None:
    assert [type(r) for r in parse(text).rules] == [Clipping, FedProx, FAEL]


def test_rules_of_one_kind_keep_their_order() -> None:
    assert [type(r) for r in parse("scaffold+fedprox").rules] == [Scaffold, FedProx]
    assert [type(r) for r in parse("fedprox+scaffold").rules] == [FedProx, Scaffold]


def test_adding_methods() -> None:
    assert parse("fedprox") + parse("fedheal") == parse("fedprox+fedheal")
    assert str(parse("fedprox(mu=0.5)") + parse("fedheal")) == "fedprox(mu=0.5)+fedheal"
    assert parse(str(parse("scaffold") + parse("fedheal(tau=0.4)"))) == parse("scaffold+fedheal(tau=0.4)")


def test_a_method_as_the_user_has_it() -> None:
    for given_ in ("fedprox", FedProx(), [FedProx()], parse("fedprox")):
        assert Method.of(given_) == Method((FedProx(),))
    assert Method.of(()) == Method(())
    assert str(Method(())) == "fedavg"
    assert str(Method((KeepHead(), FedProx(0.5)))) == "KeepHead+fedprox(mu=0.5)"
    with pytest.raises(
        TypeError, match=r"method must be text such as 'fedavg', a Rule, several Rules, or a Method; found 0\.5"
    ):
        Method.of([FedProx(), 0.5])


def test_overrides_from_elsewhere() -> None:
    assert (
        parse("fedprox+fedheal", {"fedheal.tau": 0.45, "fedprox.mu": 1}).rules
        == parse("fedprox(mu=1)+fedheal(tau=0.45)").rules
    )
    with pytest.raises(
        MethodError,
        match=r"--set fedavg\.x=1: 'fedavg' is not part of 'fedprox'; write PART\.NAME=VALUE with a part out of fedprox, for example fedprox\.mu",
    ):
        parse("fedprox", {"fedavg.x": 1})
    with pytest.raises(MethodError, match="fedprox has no hyper-parameter 'nu'"):
        parse("fedprox", {"fedprox.nu": 1})


@in_one(
    ("text", "message"),
    [
        ("", "The method is empty"),
        ("fedheel", r"Unknown method 'fedheel' in 'fedheel'\. Did you mean 'fedheal'\?"),
        ("fedavg,qffl", r"Unknown method .*Between several methods write blanks\."),
        ("fedproto+fedheel", r"Unknown method 'fedheel' in 'fedproto\+fedheel'\. Did you mean 'fedheal'\?"),
        ("fedprox+", r"Expected '\+' and a method after 'fedprox' in 'fedprox\+'; found '\+'"),
        ("fedprox(mu=1)fedheal", r"Expected '\+' and a method after 'fedprox' in .*; found 'fedheal'"),
        ("fedprox(mu=1", "The bracket after 'fedprox' in .* is not closed"),
        ("fedprox(0.1)", r"fedprox\(0\.1\): write NAME=VALUE"),
        ("fedprox(nu=1)", r"fedprox has no hyper-parameter 'nu'\. Did you mean 'mu'\? It has: mu, form\."),
        (
            "fedheal:realeased",
            r"fedheal has no preset 'realeased'\. Did you mean 'released'\? It has: paper, released, office\.",
        ),
        ("fedheal+afl", "'fedheal' and 'afl' each set the weights of the clients"),
        ("fedfv+fphl", "each set which parameters count"),
        ("qffl+fael", "'qffl' and 'fael' each set the weights of the clients"),
        ("fedprox+fedprox", r"'fedprox' appears twice in the method \(as FedProx\)"),
        ("fedheal+fphl", r"'fphl' appears twice in the method \(as FPHL\)"),
    ],
)
def test_errors_help(text: str, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        parse(text)


@in_one(
    ("make", "message"),
    [
        (lambda: FPHL(tau=1.5), r"FPHL: tau must be in \[0, 1\]; found 1\.5\."),
        (lambda: FPHL(tau="0.3"), r"FPHL: tau must be a number in \[0, 1\]; found '0\.3'\."),
        (lambda: FPHL(tau=None), r"found None\."),
        (lambda: FPHL(tau=True), r"found True\."),
        (lambda: FPHL(tau=float("nan")), r"found nan\."),
        (lambda: FPHL(strict=1), r"FPHL: strict must be true or false; found 1\."),
        (lambda: FedFV(tau=1.0), r"FedFV: tau must be a whole number >= 0; found 1\.0\."),
        (lambda: Scaffold(option=3), r"Scaffold: option must be one of 2, 1; found 3\."),
        (lambda: Scaffold(option=True), r"found True\."),
        (lambda: QFFL(lipschitz=0), r"QFFL: lipschitz must be > 0, or None; found 0\."),
        (lambda: parse("fedavg+fedadam", {"fedadam.eta": -1}), r"^fedadam: eta must be > 0; found -1\."),
        (lambda: parse("fedprox(mu=abc)"), r"^fedprox: mu must be a number >= 0; found 'abc'\."),
        (lambda: AFL(gamma=-1), r"AFL: gamma must be >= 0; found -1\."),
    ],
)
def test_hyper_parameters_know_their_range(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rule_of_ones_own_knows_its_range_too() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(Rule):
        rho: float = eq.number(0.5, low=0, high=1, above=True)
        kind: str = eq.choice("a", "b")

    assert Mine(rho=1).rho == 1
    with pytest.raises(ValueError, match=r"Mine: rho must be in \(0, 1\]; found 0\."):
        Mine(rho=0)
    with pytest.raises(ValueError, match=r"Mine: kind must be one of a, b; found 'c'\."):
        Mine(kind="c")


def test_rules_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FedProx().mu = 2


@given(st.one_of(st.integers(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()))
def test_values_read_back(value: object) -> None:
    assert read_value(str(value)) == value
    assert type(read_value(str(value))) is type(value)
    assert read_value(f" {str(value).lower()} ") == value


@given(mu=st.floats(0, 1e6), q=st.floats(0, 20), tau=st.floats(0, 1))
def test_any_values_read_back(mu: float, q: float, tau: float) -> None:
    for method in (
        Method((FedProx(mu), QFFL(q=q))),
        Method((FPHL(tau=tau), FedProx(mu))),
        parse(f"fedprox(mu={mu})+fphl(tau={tau})"),
    ):
        assert parse(str(method)) == method


def test_every_entry_is_complete() -> None:
    for name, entry in METHODS.items():
        assert entry.summary
        assert entry.citation
        method = parse(name)
        assert [type(r) for r in method.rules] == list(entry.rules)
        for preset, values in entry.presets.items():
            changed = parse(f"{name}:{preset}")
            named = (name, preset) == ("fedism+", "S")  # what the paper calls the default
            assert changed != method or named, f"{name}:{preset} is the default"
            assert values
        assert (parse(f"{name}:paper") == method) is ("paper" not in entry.presets)
        assert all(field.default is not dataclasses.MISSING for r in method.rules for field in dataclasses.fields(r))


def test_which_rules_define_a_hook() -> None:
    method = Method((DittoPersonal(), Portion(), FedAvg()))
    assert method.overriding("deploy") == [0]
    assert method.overriding("reward") == [1]
    assert method.overriding("aggregate") == [1, 2]


def test_the_catalogue_in_git_has_every_default_and_preset() -> None:
    """Also that of a value which no other test needs: whoever changes a default says so in two places."""
    assert json.loads(json.dumps(describe.catalogue())) == json.loads(FILE.read_text(encoding="utf-8"))
