"""Clip and noise on the client: the rule against plain loops, its noise, what it refuses, and what it is worth."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

import equipoise as eq
from equipoise.core import draws
from equipoise.core.client import _sent, visit_client
from equipoise.core.rule import Rule, State, Visit
from equipoise.engines import Stacks, Workers
from equipoise.engines.job import Answer, Job
from equipoise.engines.processes import Processes
from equipoise.engines.sequential import sequential
from equipoise.federation.guard import QuorumError
from equipoise.federation.method import MethodError, parse
from equipoise.methods import METHODS
from equipoise.methods.dp import DP
from equipoise.privacy import accounting as privacy
from helpers import (
    KeepHead,
    fast_first,
    federation,
    fitted,
    in_one,
    network,
    normal,
    oracle_of,
    others_slow,
    samples,
    scripted,
    visit_of,
    watched,
)
from run_helpers import TINY, cache, equipoise

KEY = draws.key(0, 0, 0)


def visit(width: int, keys: tuple[bytes, ...] = (KEY,), shared: Tensor | None = None) -> Visit:
    oracle = oracle_of(network(), *samples(4, 1), eq.SGD(1.0))
    drawn = lambda: torch.stack([draws.normal(k, "DP", width) for k in keys]).squeeze(0)  # noqa: E731
    return replace(visit_of(oracle, torch.zeros(width, dtype=torch.float64)), normal=drawn, shared=shared)


def by_hand(update: Tensor, clip: float, noise: float, drawn: Tensor) -> list[float]:
    length = math.sqrt(sum(float(u) ** 2 for u in update))
    factor = min(1.0, clip / length)
    return [float(u) * factor + noise * clip * float(e) for u, e in zip(update, drawn, strict=True)]


# the rule
@in_one("clip", [0.1, 2.0, 50.0])
@in_one("noise", [0.0, 0.7])
def test_upload_against_a_plain_loop(clip: float, noise: float) -> None:
    """One client alone and a stack of three, of which one is short and one is long."""
    keys = tuple(draws.key(1, 2, m) for m in range(3))
    updates = torch.stack([0.01 * normal(40), normal(40, seed=1), 30 * normal(40, seed=2)])
    expected = [by_hand(u, clip, noise, draws.normal(k, "DP", 40)) for u, k in zip(updates, keys, strict=True)]
    together = DP(clip, noise).upload(updates, visit(40, keys))
    for u, k, row, want in zip(updates, keys, together, expected, strict=True):
        assert row.tolist() == pytest.approx(want, abs=1e-12)
        assert DP(clip, noise).upload(u, visit(40, (k,))).tolist() == pytest.approx(want, abs=1e-12)


def test_what_is_sent_is_never_longer_than_clip_and_short_updates_are_left_alone() -> None:
    long, short = 10 * normal(1000), 1e-3 * normal(1000)
    assert float(DP(0.5, 0).upload(long.float(), visit(1000)).double().norm()) == pytest.approx(0.5, rel=1e-6)
    assert torch.equal(DP(0.5, 0).upload(short, visit(1000)), short)
    zero = torch.zeros(1000, dtype=torch.float64)
    assert torch.equal(DP(0.5, 0).upload(zero, visit(1000)), zero)
    huge = torch.full((1000,), 3e38)  # its square is no float32
    assert float(DP(0.5, 0).upload(huge, visit(1000)).norm()) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_does_not_tell(bad: float) -> None:
    update = normal(9)
    update[4] = bad
    assert torch.equal(DP(2.0, 0.5).upload(update, visit(9)), 0.5 * 2.0 * draws.normal(KEY, "DP", 9))
    assert DP(2.0, 0).upload(update, visit(9)).tolist() == [0.0] * 9


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_a_round_against_a_plain_loop(kind: str) -> None:
    """Trained as by FedAvg; then clipped, noised and averaged by hand, with the noise of (seed, round, client)."""
    seen: list[tuple[Job, Answer]] = []
    settings: dict[str, Any] = {"kind": kind, "sizes": (9, 13, 9), "participation": 1.0, "seed": 5}
    plain = fitted("fedavg", 1, engine=watched(seen), **settings)
    fed, (C, z) = fitted("dp(clip=0.05, noise=0.4)", 1, **settings), (0.05, 0.4)
    P, start = fed.model.n_params, plain.model.initial
    step = torch.zeros(P, dtype=torch.float64)
    for m, (_, answer) in enumerate(seen):
        update = (answer.trained[0] - start)[:P]
        assert float(update.norm()) > C
        sent = by_hand(update, C, z, draws.normal(draws.key(5, 0, m), "DP", P))
        step += (9, 13, 9)[m] / 31 * torch.tensor(sent, dtype=torch.float64)
    assert torch.allclose(fed.progress.vector[:P], start[:P] + step, rtol=0, atol=1e-12)


def test_running_statistics_stay_at_home_where_there_is_noise() -> None:
    seen: list[tuple[Job, Answer]] = []
    make = partial(fitted, kind="batchnorm", sizes=(9, 13, 9), participation=1.0)
    fed = make("dp(clip=0.2, noise=0.1)", 2, engine=watched(seen))
    P = fed.model.n_params
    assert torch.equal(fed.progress.vector[P:], fed.model.initial[P:])
    private = fed.trial.private
    assert private is not None
    assert private.tolist() == [k >= P for k in range(fed.model.size)]
    assert not torch.equal(fed.progress.own[0, P:], fed.progress.own[1, P:])
    free = make("dp(clip=0.2, noise=0)", 2)
    assert free.trial.private is None
    assert not torch.equal(free.progress.vector[P:], free.model.initial[P:])


def test_what_stays_at_home_does_not_count() -> None:
    """The head of each client is private: what else is sent has length C, as if there were no head."""
    seen: list[tuple[Job, Answer]] = []
    fed = fitted((DP(0.05, 0), KeepHead()), 1, participation=1.0, engine=watched(seen))
    head = KeepHead().private(fed.model)
    for _, answer in seen:
        update = answer.trained[0] - fed.model.initial
        assert float(update[~head].norm()) == pytest.approx(0.05, rel=1e-9)
        assert float(update[head].norm()) > 0.05  # trained, and not clipped


def test_the_server_sees_the_noised_update_whatever_its_rule() -> None:
    """With the same answers the server does the same: nothing else of a client reaches it."""
    a, b = (
        fitted(method, 1, participation=1.0, sizes=(9, 9, 9), engine=scripted([torch.stack(rows)]))
        for method, rows in (
            ("dp+fedheal", [normal(federation().model.size, seed=m) for m in range(3)]),
            ("fedheal", [normal(federation().model.size, seed=m) for m in range(3)]),
        )
    )
    assert torch.equal(a.progress.vector, b.progress.vector)


# hyper-parameters
def test_noise_that_drowns_what_is_learnt_is_said_before_training(caplog: pytest.LogCaptureFixture) -> None:
    theta = torch.zeros(10_000)
    setup = eq.Setup(theta, (10_000,), torch.ones(4))
    assert not DP(noise=0.19).doubt(setup)  # noise z C sqrt(P / M) = 9.5 C
    assert " of 4 clients is about 10 times as long" in DP(noise=0.2).doubt(setup)
    assert "with noise=0.02, " in DP(noise=0.2).doubt(setup)
    assert " of 1 client is about 20 times" in DP(noise=0.2).doubt(replace(setup, asked=1))
    assert not DP(noise=0).doubt(setup)
    data = [(torch.randn(4, 50), torch.arange(4) % 2)] * 2
    fed = eq.Federation(torch.nn.Linear(50, 2), data, "dp(noise=5)", eq.SGD(lr=0.1))
    fed.fit(1, progress=False)
    assert [text for text in caplog.messages if "noise" in text] == [
        "dp(noise=5): the noise in the mean of 2 clients is about 36 times as long as an update may be, so little or nothing can be "
        "learnt. It would be as long with noise=0.14, which protects less; more clients in a round or a smaller network bring it down, too."
    ]
    caplog.clear()
    fed.fit(1, progress=False)
    assert not caplog.messages


def test_values() -> None:
    assert parse("dp(clip=inf, noise=0)").rules == (DP(math.inf, 0),)
    assert parse(str(parse("dp(clip=inf, noise=0)"))) == parse("dp(clip=inf, noise=0)")
    for text, message in (
        ("dp(clip=0)", r"dp: clip must be > 0; found 0\."),
        ("dp(noise=-1)", r"dp: noise must be >= 0; found -1\."),
        (
            "dp(clip=1e-7)",
            r"dp: clip=1e-07 times noise=1 must be >= 9\.54e-07 in float32\.",
        ),
        ("dp(noise=1e-7)", r"dp: clip=1 times noise=1e-07 must be >= 9\.54e-07 in float32\."),
        (
            "dp(clip=1e30, noise=1e-10)",
            r"clip=1e\+30 times noise=1e-10 must be >= 9\.54e\+23",
        ),
        ("dp(clip=1e-200, noise=1e-200)", r"noise=1e-200 must be >= 9\.54e-07"),
        ("dp(clip=inf, noise=0.5)", r"dp: noise=0\.5 is a multiple of clip, which must be finite then; found inf\."),
    ):
        with pytest.raises(ValueError, match=message):
            parse(text)


@in_one(("clip", "noise"), [(1e-6, 1.0), (1.0, 1e-6), (1e-3, 1e-3), (1e9, 1e-6)])
def test_the_least_noise_is_in_what_float32_sends(clip: float, noise: float) -> None:
    """Of every coordinate, beside weights of up to one; as much as was drawn, within the distance of float32 numbers."""
    n = 2000
    start = torch.linspace(-1, 1, n)
    drawn = draws.normal(KEY, "DP", n)
    update = DP(clip, noise).upload(torch.zeros(n), replace(visit(n), normal=lambda: drawn))
    assert update.dtype == torch.float64
    trained = torch.cat([start, torch.zeros(1)])
    rule = DP(clip, noise)
    sent = _sent([(rule, replace(visit(n), normal=lambda: drawn))], trained, start, None)
    assert sent.dtype == torch.float32
    moved = sent[:n].double() - start.double()
    assert float((moved != 0).double().mean()) > 0.95
    assert float(moved.std()) == pytest.approx(clip * noise, rel=0.1)


def test_noise_is_rounded_once() -> None:
    """What is sent is the float32 number next to the exact sum, which noise and update in float32 would miss."""
    n = 500
    trained, start, drawn = normal(n, seed=1).float(), normal(n).float(), draws.normal(KEY, "DP", n)
    sent = _sent([(DP(3.0, 0.01), replace(visit(n), normal=lambda: drawn))], trained, start, None)
    update = (trained - start).double()
    exact = start.double() + update * min(1, 3 / float(update.norm())) + 0.03 * drawn
    assert torch.equal(sent, exact.float())


# what else a client would tell
def told_by(method: str) -> dict[str, bool]:
    """For each rule of a method whether its clients report anything in three rounds."""
    seen: list[tuple[Job, Answer]] = []
    fed = fitted(method, 3, epochs=1, participation=1.0, engine=watched(seen), tests={"a": samples(20, 1)})
    return {
        type(rule).__name__: any(answer.reports[k] for _, answer in seen) for k, rule in enumerate(fed.method.rules)
    }


@pytest.mark.parametrize("name", fast_first(METHODS))
def test_rules_say_what_they_report(name: str) -> None:
    """In no form does a rule report something that it does not own up to, and in one at least it does report what it says."""
    forms = [told_by(name), *(told_by(f"{name}:{preset}") for preset in METHODS[name].presets)]
    for rule in METHODS[name].rules:
        assert any(form[rule.__name__] for form in forms) == bool(rule().declared.reports)


def test_noise_is_refused_where_something_else_is_told() -> None:
    for name in METHODS:
        is_refused(name)


def is_refused(name: str) -> None:
    rules = parse(name).rules
    leaks = any(r.declared.reports or r.declared.needs & {"contribution", "contribution_on_test"} for r in rules)
    if name == "centralised":
        with pytest.raises(MethodError, match="has one client with the data of all"):
            parse(f"{name}+dp")
    elif "upload" in parse(name).rules[0].declared.owns:
        with pytest.raises(MethodError, match=r"each set what a client sends|appears twice"):
            parse(f"{name}+dp")
    elif not leaks:
        assert DP() in parse(f"{name}+dp").rules
    else:
        with pytest.raises(MethodError, match=f"'{name.replace('+', '[+]')}' lets each client send .*'dp' does not"):
            parse(f"{name}+dp")
        with pytest.raises(MethodError, match="'dp' does not protect"):
            parse(f"dp+{name}")
        assert parse(f"{name}+dp:clip").rules  # which promises nothing


def test_messages_name_what_would_leak() -> None:
    for text, told in (
        ("fedproto+dp", "its class prototypes"),
        ("scaffold+dp", "its control variate"),
        ("dp+afl", "the loss of its data"),
        ("fedsac+dp", "its accuracy when it trains alone"),
    ):
        with pytest.raises(MethodError, match=rf"send {told}, which 'dp' does not protect.*dp\(noise=0\)\."):
            parse(text)


@dataclass(frozen=True)
class Teller(Rule):
    """Reports the loss; without ``reports`` said, that is taken to be something."""

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {"loss": visit.oracle.loss(visit.received)}, visit.state


@dataclass(frozen=True)
class Liar(Rule):
    reports = ""

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        return {"loss": visit.oracle.loss(visit.received)}, visit.state


@dataclass(frozen=True)
class Adder(Rule):
    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        return update + visit.trained[..., : visit.n_params]


def test_rules_of_a_user() -> None:
    with pytest.raises(MethodError, match="'Teller' lets each client send a report, which 'DP' does not protect"):
        eq.Method((DP(), Teller()))
    with pytest.raises(MethodError, match="'Adder' lets each client send something instead of its update"):
        eq.Method((DP(), Adder()))
    with pytest.raises(QuorumError, match="Liar declares no reports, and reports loss"):
        fitted((DP(), Liar()), 1)


# the noise
ROWS = {
    "one": draws.normal(KEY, "DP", 200_000),
    "round": draws.normal(draws.key(0, 1, 0), "DP", 200_000),
    "client": draws.normal(draws.key(0, 0, 1), "DP", 200_000),
    "seed": draws.normal(draws.key(1, 0, 0), "DP", 200_000),
    "rule": draws.normal(KEY, "PD", 200_000),
    "secret": draws.normal(draws.key(0, 0, 0, b"\0" * 32), "DP", 200_000),
}


@pytest.mark.parametrize("name", ROWS)
def test_noise_is_normal(name: str) -> None:
    z = ROWS[name].numpy()
    n = len(z)
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs(stats.skew(z)) < 4 * math.sqrt(6 / n)
    assert abs(stats.kurtosis(z)) < 4 * math.sqrt(24 / n)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    counted = (abs(z) > 3.5).sum()  # the tails are what delta is about
    expected = 2 * stats.norm.sf(3.5) * n
    assert abs(counted - expected) < 4 * math.sqrt(expected)


@in_one("name", [name for name in ROWS if name != "one"])
def test_noise_of_others_is_independent(name: str) -> None:
    a, b = ROWS["one"], ROWS[name]
    n = len(a)
    for f in (torch.Tensor.double, torch.Tensor.square, torch.Tensor.abs):
        x, y = f(a) - f(a).mean(), f(b) - f(b).mean()
        assert abs(float((x * y).mean() / (x.std() * y.std()))) < 4 / math.sqrt(n)


def test_coordinates_are_independent() -> None:
    """Neighbours, and both numbers of a pair of Box and Muller, which share a radius."""
    z = ROWS["one"]
    for lag in (1, 2, draws.PAIRS, 2 * draws.PAIRS):
        for f in (torch.Tensor.double, torch.Tensor.square, torch.Tensor.abs):
            x, y = f(z[:-lag]) - f(z).mean(), f(z[lag:]) - f(z).mean()
            assert abs(float((x * y).mean() / f(z).var())) < 4 / math.sqrt(len(x))
    assert len(torch.unique(z)) == len(z)


def test_noise_does_not_depend_on_how_much_is_drawn_or_by_how_many() -> None:
    threads = torch.get_num_threads()
    try:
        for n in (1, draws.PAIRS, 2 * draws.PAIRS + 1):
            for many in (1, 3):
                torch.set_num_threads(many)
                assert torch.equal(draws.normal(KEY, "DP", n), ROWS["one"][:n])
    finally:
        torch.set_num_threads(threads)


def test_a_secret_is_long() -> None:
    with pytest.raises(ValueError, match=r"at least 32 random bytes.*found 31"):
        draws.key(0, 0, 0, b"s" * 31)


def test_a_rule_without_keys_says_so() -> None:
    oracle = oracle_of(network(), *samples(4, 1), eq.SGD(1.0))
    with pytest.raises(ValueError, match="no key to draw noise from"):
        visit_client([DP()], oracle, 0, 1, torch.zeros(oracle.n_params, dtype=torch.float64), [{}], [{}])


def jobs_of(method: str) -> Job:
    seen: list[tuple[Job, Answer]] = []
    fitted(method, 1, participation=1.0, engine=watched(seen), epochs=1)
    return seen[0][0]


def sent(job: Job, engine: Any) -> Tensor:
    rows = {answer.rows: answer.trained for answer in engine(job)}
    ordered = sorted((row, trained[k]) for rows, trained in rows.items() for k, row in enumerate(rows))
    return torch.stack([x for _, x in ordered])


def test_a_secret_takes_the_place_of_the_seed_in_every_engine() -> None:
    """Who knows the seed and all else cannot tell the noise; the batches are still those of the seed."""
    job = jobs_of("dp(clip=1e-6, noise=1e6)")
    secret = replace(job, secret=b"s" * 32)
    public, hidden = sent(job, sequential), sent(secret, sequential)
    assert not torch.allclose(public, hidden, rtol=0, atol=1e-2)
    assert torch.equal(sent(replace(job, secret=b"s" * 32), sequential), hidden)
    other = sent(replace(job, secret=b"t" * 32), sequential)
    assert float((other - hidden).abs().median()) > 0.3
    assert torch.equal(sent(secret, Workers(2)), hidden)
    assert torch.allclose(sent(secret, Stacks(2)), hidden, rtol=0, atol=1e-10)
    quiet = jobs_of("dp(noise=0)")
    assert torch.equal(sent(quiet, sequential), sent(replace(quiet, secret=b"s" * 32), sequential))


@pytest.mark.slow
def test_a_secret_reaches_other_processes() -> None:
    secret = replace(jobs_of("dp(clip=1e-6, noise=1e6)"), secret=b"s" * 32)
    assert torch.equal(sent(secret, Processes(1)), sent(secret, sequential))


# what it is worth
@pytest.mark.parametrize("relation", privacy.SENSITIVITY)
@pytest.mark.parametrize(
    ("noise", "rounds", "delta"),
    [(1.1, 40, 1e-5), (8.0, 40, 1e-5), (30.0, 1, 1e-6), (0.5, 3, 1e-9), (50.0, 1000, 0.01)],
)
def test_epsilon_is_that_of_the_closed_form(
    noise: float, rounds: int, delta: float, relation: privacy.Relation
) -> None:
    mu = {"replace": 2, "zero-out": 1}[relation] * math.sqrt(rounds) / noise
    epsilon = privacy.spent(noise, rounds, delta, relation)
    tail = stats.norm.logcdf(-epsilon / mu - mu / 2)
    assert stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + tail) == pytest.approx(delta, rel=1e-6)
    assert privacy.noise_for(epsilon, rounds, delta, relation) == pytest.approx(noise, rel=1e-5)


def test_epsilon_against_an_integral() -> None:
    """delta is the integral of max(0, p - e^epsilon q) over the answers of two clients whose updates are +C and -C."""
    z, epsilon = 2.0, privacy.spent(2.0, 1, 1e-4)
    p, q = (stats.norm(mean, z).pdf for mean in (1.0, -1.0))
    delta, _ = integrate.quad(lambda x: max(0.0, p(x) - math.exp(epsilon) * q(x)), 0, 40, limit=400, epsabs=1e-14)
    assert delta == pytest.approx(1e-4, rel=1e-5)


@pytest.mark.parametrize(("noise", "rounds"), [(4.0, 1), (20.0, 25), (6.0, 4)])
def test_epsilon_against_numerical_composition(noise: float, rounds: int) -> None:
    """The answers composed one by one by the accountant of dp-accounting, which knows nothing of our reduction."""
    import dp_accounting
    from dp_accounting import pld

    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), rounds)
    found = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    assert privacy.spent(noise, rounds, 1e-5, "zero-out") == pytest.approx(found, rel=1e-3)
    half = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise / 2), rounds)
    assert privacy.spent(noise, rounds, 1e-5) == pytest.approx(
        pld.PLDAccountant().compose(half).get_epsilon(1e-5), rel=1e-3
    )


# an audit: what an attacker can prove
RUNS, DELTA, CERTAIN = 1_000_000, 1e-3, 0.999
LONG = torch.tensor([30.0, -40.0], dtype=torch.float64)  # an update of length 50, which must be clipped
Mechanism = Callable[[DP, Tensor, Visit], Tensor]


@functools.cache
def noise_of(answers: int, client: str) -> Tensor:
    """The library's noise for two coordinates of each answer in each run [runs, answers, 2]."""
    runs = RUNS // answers
    return draws.normal(KEY, client, runs * answers * 2).view(runs, answers, 2)


def proved(
    epsilon: float, relation: privacy.Relation, answers: int = 1, mechanism: Mechanism = DP.upload
) -> tuple[float, float]:
    """The least epsilon that the answers to an attacker prove, and the stated one.

    The attacker knows the client's update, and must distinguish it from its opposite ("replace") or from no update ("zero-out"). It
    takes the length of the mean answer along the update, with the threshold of the best test. The rates of true and false positives in many
    runs, with the bounds of Clopper and Pearson, prove epsilon >= log((TPR - delta) / FPR).
    """
    rule = DP(clip=2.0, noise=privacy.noise_for(epsilon, answers, DELTA, relation))
    other = -LONG if relation == "replace" else torch.zeros_like(LONG)
    lengths = []
    for update, client in ((LONG, "with"), (other, "without")):
        drawn = noise_of(answers, client)
        seen = replace(visit(2), normal=lambda drawn=drawn: drawn)
        lengths.append(mechanism(rule, update.expand(drawn.shape), seen).mean(1) @ LONG / LONG.norm() / rule.clip)
    apart, spread = privacy.SENSITIVITY[relation], float(lengths[1].var())  # the attacker can run the mechanism, too
    threshold = 1 - apart / 2 + epsilon * spread / apart  # where the likelihoods have the ratio e^epsilon
    hits, alarms = (int((length > threshold).sum()) for length in lengths)
    runs = len(lengths[0])
    true = stats.beta.ppf(1 - CERTAIN, hits, runs - hits + 1) if hits else 0.0
    false = stats.beta.ppf(CERTAIN, alarms + 1, runs - alarms) if alarms < runs else 1.0
    bound = math.log((true - DELTA) / false) if true > DELTA else 0.0
    return bound, privacy.spent(rule.noise, answers, DELTA, relation)


@pytest.mark.parametrize("relation", privacy.SENSITIVITY)
@pytest.mark.parametrize(("epsilon", "answers"), others_slow([(1.0, 1), (4.0, 1), (1.0, 2)], fast=(1, 2)))
def test_an_attack_proves_nearly_the_stated_epsilon_and_no_more(
    epsilon: float, answers: int, relation: privacy.Relation
) -> None:
    bound, stated = proved(epsilon, relation, answers)
    assert stated == pytest.approx(epsilon, rel=1e-5)
    assert 0.8 * stated <= bound <= stated


def weak_noise(rule: DP, update: Tensor, visit: Visit) -> Tensor:
    return DP(rule.clip, 0.75 * rule.noise).upload(update, visit)


def no_clipping(rule: DP, update: Tensor, visit: Visit) -> Tensor:
    return update + rule.noise * rule.clip * visit.normal()


def clipped_per_coordinate(rule: DP, update: Tensor, visit: Visit) -> Tensor:
    return update.clamp(-rule.clip, rule.clip) + rule.noise * rule.clip * visit.normal()


@pytest.mark.parametrize("mechanism", [weak_noise, no_clipping, clipped_per_coordinate])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_an_attack_finds_a_wrong_mechanism(epsilon: float, mechanism: Mechanism) -> None:
    bound, stated = proved(epsilon, "replace", mechanism=mechanism)
    assert bound > stated


def test_epsilon_at_the_ends() -> None:
    assert privacy.spent(0.0, 3, 1e-5) == math.inf
    assert privacy.spent(0.0, 0, 1e-5) == privacy.spent(1.0, 0, 1e-5) == 0.0
    assert privacy.noise_for(1.0, 0, 1e-5) == 0.0
    assert privacy.spent(100.0, 1, 0.5) == 0.0  # delta alone is enough
    assert privacy.spent(0.05, 200, 1e-5) > 1e5
    assert privacy.spent(2.0, 8, 1e-5) == pytest.approx(privacy.spent(1.0, 2, 1e-5), rel=1e-9)
    assert privacy.spent(2.0, 4, 1e-5) > privacy.spent(2.0, 3, 1e-5) > privacy.spent(2.1, 3, 1e-5)


@in_one(
    ("values", "message"),
    [
        ((-1.0, 1, 0.1), r"noise must be >= 0; found -1\.0"),
        ((1.0, -1, 0.1), "answers must be >= 0; found -1"),
        ((1.0, 1, 0.0), r"delta must be in \(0, 1\); found 0\.0"),
        ((math.nan, 1, 0.1), "noise must be >= 0; found nan"),
    ],
)
def test_values_out_of_range(values: tuple[float, int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        privacy.spent(*values)
    with pytest.raises(ValueError, match="must be"):
        privacy.noise_for(*values)


def test_without_the_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ValueError, match=r"pip install 'equipoise\[privacy\]'"):
        privacy.spent(1.0, 1, 1e-5)


def test_answers_are_counted_per_client() -> None:
    """Who was turned down has answered."""
    records = [
        {"ids": [0, 2]},
        {"ids": [2], "quarantined": [{"client": 1, "name": "b", "reason": "loss"}]},
    ]
    assert privacy.answers(records) == {0: 1, 1: 1, 2: 2}
    fed = fitted("dp", 3, participation=0.5)
    assert sum(privacy.answers(fed.records).values()) == sum(len(r["ids"]) for r in fed.records)


# the command line
def test_the_command(equipoise: Any) -> None:
    ended = equipoise("privacy", "--noise", "1.1", "--rounds", "40", "--json")
    assert ended.status == 0
    (row,) = json.loads(ended.out)
    assert row["epsilon"] == {r: pytest.approx(privacy.spent(1.1, 40, 1e-5, r)) for r in privacy.SENSITIVITY}
    ended = equipoise("privacy", "--epsilon", "8", "-r", "40", "--delta", "1e-6", "--json")
    (row,) = json.loads(ended.out)
    assert row == {
        "answers": 40,
        "epsilon": 8.0,
        "noise": {r: privacy.noise_for(8, 40, 1e-6, r) for r in privacy.SENSITIVITY},
    }
    ended = equipoise("privacy", "--noise", "0")
    assert ended.out.count("infinite") == 2
    assert "(epsilon, 1e-05)-differential privacy of all data of one client" in ended.out


@pytest.mark.parametrize(
    "words", [("--noise", "1", "--epsilon", "3"), (), ("somewhere", "--noise", "1"), ("somewhere", "--rounds", "3")]
)
def test_the_command_needs_one_question(words: tuple[str, ...], equipoise: Any) -> None:
    ended = equipoise("privacy", *words)
    assert ended.status == 2
    assert "expected a RUN, or --noise or --epsilon with --rounds" in ended.err


def test_the_command_reads_a_run(tmp_path: Path, equipoise: Any) -> None:
    base = ("--runs", str(tmp_path), "--no-report")
    assert (
        equipoise(
            "run", *TINY, "-m", "dp(noise=3)+fedheal", "-r", "3", "--participation", "0.5", "--name", "a", *base
        ).status
        == 0
    )
    rows = json.loads(equipoise("privacy", str(tmp_path / "a"), "--json").out)
    assert sum(row["clients"] * row["answers"] for row in rows) == 6
    for row in rows:
        assert row["noise"] == 3
        assert row["epsilon"]["replace"] == pytest.approx(privacy.spent(3, row["answers"], 1e-5))
    assert equipoise("run", *TINY, "-m", "fedavg", "-r", "1", "--name", "b", *base).status == 0
    path = tmp_path / "b" / "config.toml"
    settings = path.read_text().partition("\n")[2]  # without its hash
    for method in ("fedavg", "/a+dp/mine.py:Prox", "fedavg+./my dp(noise=3)+dp.py:Prox"):
        path.write_text(re.sub("^method = .*$", f'method = "{method}"', settings, flags=re.M))
        ended = equipoise("privacy", str(tmp_path / "b"))
        assert ended.status == 2
        assert "adds no noise" in ended.err


def test_no_key_is_made_unless_a_rule_draws_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.engines import job

    asked: list[int] = []
    made = job.key
    monkeypatch.setattr(
        job, "key", lambda seed, t, client, secret=None: asked.append(client) or made(seed, t, client, secret)
    )
    data = [(torch.randn(6, 3), torch.arange(6) % 2) for _ in range(3)]
    for engine in ("sequential", "stacked"):
        eq.Federation(torch.nn.Linear(3, 2), data, "fedprox", engine=engine).fit(1, progress=False)
        assert asked == []
        eq.Federation(torch.nn.Linear(3, 2), data, "dp", engine=engine).fit(1, progress=False)
        assert sorted(asked) == [0, 1, 2]
        asked.clear()
