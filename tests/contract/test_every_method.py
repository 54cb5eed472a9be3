"""The contract of every method and of every base method under every method that weighs clients."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Container, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Cohort, Rule, Setup, State
from equipoise.engines.job import Answer, Engine, Job
from equipoise.engines.sequential import sequential
from equipoise.engines.stacked import Stacks
from equipoise.federation.method import Method, parse
from equipoise.methods import METHODS
from equipoise.testing import ContractError, checks
from equipoise.testing.federations import ROUNDS, SIZES, Subject, moved, stopped_and_resumed
from equipoise.testing.hooks import hooks_are_pure
from helpers import (
    REPRESENTATIVE,
    UNEQUAL,
    KeepHead,
    KeepNorm,
    Portion,
    clients,
    difference,
    fast_first,
    federation,
    fitted,
    identical,
    network,
    samples,
    scripted,
    told,
    watched,
)

BASES = ("fedavg", "fedprox", "scaffold", "moon", "feddyn", "fedproc", "fedproto")
SUMS = [f"{base}+{over}" for base in BASES for over in ("afl", "qffl", "fedheal")]
MORE = [
    "ditto+fedheal(tau=0.6)",
    "moon+scaffold+fedheal-exact",
    "feddyn+fedfv",
    "ditto-personal+fedprox+fphl(tau=0.6)",
    "fedprox+principal",
    "fedproto+margin+fedheal",
    "moon+principal",
    "scaffold+gsam",
    "moon+saga",
    "moon+fedism+",
    "logit-adjust+fedism+:L",
    "scaffold+fairfed",
    "fedprox+fairfed:accuracy",
    "fairfed+reweighing",
    "fairfed:extended+fairgrad",
    "fedprox+fairgrad",
    "scaffold+fedfb+fedheal",
    "fedprox+fedce",
    "moon+fedga",
    "scaffold+fedsac(beta=3)",
    "fedproto+fedsac-no-aggregation(beta=3)",
    "fedprox+cgsv:released",
    "fedproc+fedave(sort_losses=true)",
    "fedprox+cffl(theta_u=0.4)",
    "qffl:full+finetune",
    "term-sample+term",
    "propfair+gifair",
    "finetune(form=every_round)",
    "fedprox+dp+fedheal",
    "moon+dp(clip=0.05, noise=0.1)+cgsv",
    "scaffold+median",
    "trimmed-mean(beta=0.25)+fedprox",
    "fedheal+clipping",
    "moon+multi-krum+clipping",
    "feddyn+geometric-median+fedavgm",
    "afl+geometric-median",
    "fedproto+centred-clipping(tau=0.5, iterations=3)",
]
OF_CLIENTS = [name for name in METHODS if name != "centralised"]  # which has one for all, see test_bounds
NAMES = [*OF_CLIENTS, *SUMS, *MORE]
FEWER = [*OF_CLIENTS, *MORE, "scaffold+qffl", "feddyn+fedheal"]
BATCH_NORM = [
    "fedavg",
    "scaffold",
    "moon",
    "feddyn",
    "fedproc",
    "fedproto",
    "ditto",
    "ditto-personal",
    "qffl",
    "fedce",
    "fedheal:released",
    "scaffold+fedheal",
    "moon+qffl",
    "fedld",
    "fedbn",
    "fedpac",
    "fedpac+fedbn",
    "cgsv",
    "scaffold+cgsv",
    "fedave",
    "moon+fedave",
    "sam",
    "moon+fedism+",
    "fedsac",
    "moon+fedsac",
    "fedsac-no-aggregation",
    "cffl",
    "cffl(theta_u=0.4)+finetune",
    "standalone",
    "fedavg-finetune:fedrac",
    "dp",
    "ditto+dp+fedheal",
    "median",
    "multi-krum",
    "geometric-median",
    "centred-clipping",
    "fedheal+clipping",
    "fedbn+krum",
]
CASES = [(name, "mlp") for name in NAMES] + [(name, "batchnorm") for name in BATCH_NORM]
BATCH_NORM_FAST = (
    "scaffold",
    "moon+qffl",
    "fedbn",
    "fedpac",
    "fedsac",
    "fedheal:released",
    "dp",
    "median",
    "centred-clipping",
)


def cases(names: Iterable[str], fast: Container[str], kind: str = "mlp") -> list[Any]:
    """Cases of a parametrized test; those not in ``fast`` wait for `make test-all`."""
    return [pytest.param(n, kind, id=f"{n}-{kind}", marks=[pytest.mark.slow] * (n not in fast)) for n in names]


every_case = pytest.mark.parametrize(
    ("name", "kind"), cases(NAMES, METHODS) + cases(BATCH_NORM, BATCH_NORM_FAST, "batchnorm")
)
any_case = pytest.mark.parametrize(
    ("name", "kind"), cases(NAMES, REPRESENTATIVE) + cases(BATCH_NORM, ("scaffold", "fedsac"), "batchnorm")
)


@cache
def subject(name: str, kind: str = "mlp") -> Subject:
    """A method with what several checks train."""
    return Subject(name, kind)


def run(name: str, kind: str = "mlp") -> eq.Federation:
    """Three rounds with unequal clients, of which four of five take part. Not to be trained further."""
    return subject(name, kind).run()


# (a) engines
@every_case
@pytest.mark.share(12)
def test_engines_agree(name: str, kind: str) -> None:
    checks.engines_agree(subject(name, kind))


@any_case
def test_workers_give_the_same_bits(name: str, kind: str) -> None:
    checks.workers_give_the_same_bits(subject(name, kind))


@pytest.mark.parametrize(
    ("name", "kind"), cases(FEWER, REPRESENTATIVE) + cases(("scaffold", "moon+qffl"), ("scaffold",), "batchnorm")
)
def test_result_does_not_depend_on_who_stands_beside_whom(name: str, kind: str) -> None:
    checks.neighbours_do_not_matter(subject(name, kind))


@pytest.mark.parametrize("kind", SIZES)
def test_stacks_hold_several_clients(kind: str) -> None:
    """Otherwise the comparison of the engines would say nothing."""
    seen: list[tuple[Job, Answer]] = []
    fitted("scaffold", ROUNDS, kind=kind, sizes=SIZES[kind], engine=watched(seen, Stacks(1)))
    assert max(len(answer.rows) for _, answer in seen) >= 3


# (b) stop and resume
@any_case
@pytest.mark.share(2)
def test_resumed_run_is_the_same_bit_for_bit(name: str, kind: str) -> None:
    checks.resumed_run_is_the_same(subject(name, kind))


# (c) purity
@pytest.mark.parametrize(
    ("name", "engine"), cases(NAMES, REPRESENTATIVE, "sequential") + cases(METHODS, ("scaffold", "fedbn"), "stacked")
)
@pytest.mark.share(2)
def test_hooks_are_pure(name: str, engine: str) -> None:
    hooks_are_pure(subject(name), engine)


# (d) renumbering
IN_ORDER = {
    "fedgh": "fedgh(form=accumulate)",  # as published it projects pair after pair, in the order of the clients
    "iafl": "iafl(kappa=1)",  # it draws by the numbers of the clients
}


@any_case
def test_renumbering_clients_renumbers_the_result(name: str, kind: str) -> None:
    checks.renumbering_renumbers(subject(IN_ORDER.get(name, name), kind))


@any_case
def test_absent_clients_keep_their_states(name: str, kind: str) -> None:
    text = (
        name.replace("+krum", "+krum(m=2)") if name != "krum" else "krum(m=2)"
    )  # of three, two are as near as each other
    checks.absent_clients_do_not_count(subject(IN_ORDER.get(name, text), kind))


@dataclasses.dataclass(frozen=True)
class Five(Rule):
    """Five numbers on the server, as many as there are clients and none of them a client's, or the first a client's, too."""

    first: bool = False

    def server_state(self, setup: Setup) -> State:
        return {"x": torch.zeros(5, dtype=torch.float64)}

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        seen = cohort.updates[0, 0] if self.first else cohort.updates[:, 0].sum()
        return {"x": state["x"] + seen * torch.arange(5)}, cohort


def test_a_state_as_long_as_there_are_clients_need_not_be_theirs() -> None:
    checks.renumbering_renumbers(Subject(Five()))
    with pytest.raises(ContractError, match="server/0/x"):
        checks.renumbering_renumbers(Subject(Five(first=True)))


# (e) text
PRESETS = [f"{name}:{preset}" for name, entry in METHODS.items() for preset in ("paper", *entry.presets)]
ODD = [
    "fedprox(mu=0.125)",
    "fedfv(alpha=0.25, tau=3)",
    "scaffold(eta=0.5, option=1)+fedheal(tau=0.45)",
    "qffl(form=full, lipschitz=3.5)",
    "afl(averaged=true)",
]
ALONE = {entry.rules for entry in METHODS.values()}  # a rule that has a name of its own can be written alone
CLASSES = {cls.__name__: cls for entry in METHODS.values() for cls in entry.rules}


def test_a_method_reads_back() -> None:
    for text in [*NAMES, *PRESETS, *ODD]:
        reads_back(text)


def reads_back(text: str) -> None:
    checks.method_reads_back(Subject(text))
    method = parse(text)
    assert str(parse(str(method))) == str(method)
    if all((type(rule),) in ALONE for rule in method.rules):
        assert parse(str(Method(method.rules))) == method
    assert all(eval(repr(rule), dict(CLASSES)) == rule for rule in method.rules)
    twin = pickle.loads(pickle.dumps(method))
    assert twin == method
    assert parse(str(twin)) == method


def test_methods_that_differ_are_not_equal() -> None:
    assert parse("fedprox(mu=0.5)") != parse("fedprox")
    assert parse("fedheal") != parse("fedheal:released")
    assert parse("fedprox") != parse("scaffold")


# (f) neutral hyper-parameters
class Neutral(NamedTuple):
    """``text`` gives the same models as ``reference`` for ``rounds`` rounds; ``why`` where that is not a neutral value."""

    text: str
    reference: str
    rounds: int = 3
    within: float = 1e-12
    why: str = ""


FIRST = "no neutral value: it differs from its reference from the second round on"
NEUTRAL: dict[str, Neutral] = {
    "fedavg": Neutral("fedavg:uniform", "fedavg", 1, why="itself; with clients of one size, uniform is by samples"),
    "fedprox": Neutral("fedprox(mu=0)", "fedavg"),
    "scaffold": Neutral("scaffold", "fedavg:uniform", 1, why=FIRST),
    "moon": Neutral("moon(mu=0)", "fedavg"),
    "feddyn": Neutral(
        "feddyn(alpha=1e-14, server=false)", "fedavg:uniform", why="alpha > 0, and the server's h does not depend on it"
    ),
    "fednova": Neutral("fednova", "fedavg", why="no neutral value: clients of one size take as many steps"),
    "reweighing": Neutral("reweighing", "fedavg", 1, why="no neutral value: the first round has weights of 1"),
    "fairgrad": Neutral("fairgrad(eta=0)", "fedavg"),
    "fairbatch": Neutral("fairbatch(alpha=0)", "fedavg"),
    "fedfb": Neutral("fedfb(alpha=0)", "fedavg"),
    "fedminmax": Neutral("fedminmax(eta=0)", "fedavg"),
    "fedgft": Neutral("fedgft(gamma=0)", "fedavg", within=1e-15),  # the gradient of fedavg's loss is a formula
    "ffalm": Neutral("ffalm(eta=0, beta=0)", "fedavg"),
    "logofair": Neutral("logofair", "fedavg", within=0, why="it decides, and trains nothing"),
    "thresholds": Neutral("thresholds", "fedavg", within=0, why="it decides, and trains nothing"),
    "fedavgm": Neutral("fedavgm(beta=0)", "fedavg"),
    "fedadam": Neutral(
        "fedadam(beta1=0, beta2=0, tau=1e9, eta=1e9)", "fedavg", within=1e-8, why="tau far above every update"
    ),
    "fedyogi": Neutral(
        "fedyogi(beta1=0, beta2=0, tau=1e9, eta=2e9)", "fedavg", within=1e-8, why="tau far above every update"
    ),
    "fedadagrad": Neutral("fedadagrad(tau=1e9, eta=2e9)", "fedavg", within=1e-8, why="tau far above every update"),
    "fedproc": Neutral("fedproc", "fedavg", 1, why=FIRST),
    "fedproto": Neutral("fedproto(lam=0)", "fedavg"),
    "ditto": Neutral(
        "ditto(lam=0.5)",
        "fedprox(mu=0.5)",
        1,
        why="no neutral value: v is never reset; in the first round it is FedProx",
    ),
    "ditto-personal": Neutral("ditto-personal(lam=0.7)", "fedavg", within=0),
    "afl": Neutral("afl(gamma=0)", "fedavg:uniform"),
    "qffl": Neutral("qffl(q=0)", "fedavg"),
    "term": Neutral("term(t=0)", "fedavg"),
    "term-sample": Neutral("term-sample(t=0)", "fedavg"),
    "propfair": Neutral("propfair(M=1.000001, eps=1, huber=true)", "fedavg"),
    "aaggff": Neutral(
        "aaggff", "fedavg:uniform", within=0.05, why="no neutral value: the first weights are nearly equal"
    ),
    "gifair": Neutral("gifair(coeff=0)", "fedavg"),
    "eagle": Neutral("eagle(lam=0)", "fedavg"),
    "fairfed": Neutral("fairfed(beta=0)", "fedavg"),
    "fedce": Neutral("fedce(floor=2)", "fedavg:uniform"),
    "fedga": Neutral("fedga(d=0)", "fedavg:uniform"),
    "fedfv": Neutral("fedfv(alpha=1, tau=0)", "fedavg:uniform"),
    "fedmgda": Neutral(
        "fedmgda(eps=0.99)",
        "fedmgda(eps=1)",
        why="updates have one length, so nothing gives FedAvg; bounds that wide hold no weight",
    ),
    "fedmdfg": Neutral(
        "fedmdfg(theta=60)", "fedmdfg(theta=90)", why="no neutral value: the angle of these losses is below both"
    ),
    "fedlf": Neutral("fedlf", "fedavg+fedlf", within=0, why="no hyper-parameter; FedAvg adds nothing"),
    "fedpw": Neutral("fedpw(beta=0, rate=0)", "fedavg:uniform"),
    "sam": Neutral("sam(rho=0)", "fedavg"),
    "gsam": Neutral("gsam(rho=0, alpha=0)", "fedavg"),
    "logit-adjust": Neutral("logit-adjust(tau=0)", "fedavg"),
    "saga": Neutral("saga(q=0)", "fedavg:uniform"),
    "fedism": Neutral("fedism(rho=0)", "fedavg:uniform"),
    "fedism+": Neutral("fedism+(rho=0, alpha=0, q=0)", "fedavg:uniform"),
    "fphl": Neutral("fphl(tau=0)", "fedavg"),
    "fael": Neutral("fael(beta=0)", "fedavg"),
    "fael-exact": Neutral("fael-exact(beta=1e-14)", "fedavg", why="beta > 0: without Eq. 10 nothing is left of it"),
    "fedheal": Neutral("fedheal(tau=0, beta=0)", "fedavg"),
    "fedheal-exact": Neutral(
        "fedheal-exact(tau=0, beta=1e-14)", "fedavg", why="beta > 0: without Eq. 10 nothing is left of it"
    ),
    "margin": Neutral("margin(lam=0)", "fedavg"),
    "principal": Neutral("principal(warm_start=true)", "fedavg", 1, why=FIRST),
    "fedld": Neutral("fedld(lam=0, warm_start=true)", "fedavg", 1, why=FIRST),
    "fedgh": Neutral("fedgh:released", "fedavg:uniform", 1, why=FIRST),
    "fedhgd": Neutral("fedhgd", "fedavg:uniform", 1, why=FIRST),
    "fedbn": Neutral("fedbn(by=name)", "fedavg", why="no tensor of these networks has 'bn' in its name"),
    "fedsac": Neutral("fedsac(beta=0)", "fedavg:uniform"),
    "fedrac": Neutral(
        "fedrac", "fedavg:uniform", 1, why="no neutral value: in the first round all hold the whole network"
    ),
    "iafl": Neutral("iafl(kappa=1)", "fedavg:uniform"),
    "fedsac-no-allocation": Neutral("fedsac-no-allocation(beta=0)", "fedavg:uniform"),
    "fedsac-no-aggregation": Neutral("fedsac-no-aggregation(beta=0)", "fedavg"),
    "cffl": Neutral("cffl(clip=1e9)", "fedavg", 1, why=FIRST),
    "standalone": Neutral(
        "standalone", "standalone+afl", within=0, why="nothing is sent: the global model never moves"
    ),
    "finetune": Neutral("finetune", "fedavg", within=0, why="what clients predict with is nothing to the global model"),
    "fedavg-finetune": Neutral("fedavg-finetune", "fedavg", within=0, why="as finetune"),
    "cgsv": Neutral(
        "cgsv(beta=0)",
        "cgsv(beta=1e7)",
        why="updates have one length, so nothing gives FedAvg; without differences in reward all hold the global model",
    ),
    "fedave": Neutral(
        "fedave:contribution(beta=0)",
        "fedave:contribution(beta=1e7)",
        why="as for cgsv, without the divergence of losses",
    ),
    "dp": Neutral("dp(clip=inf, noise=0)", "fedavg", within=0),
    "fedpac": Neutral("fedpac(lam=0)", "fedpac", 1, why="head and features train apart; the first round has no pull"),
    "median": Neutral("median", "trimmed-mean(beta=0.49)", why="no neutral value: of few clients nothing else is left"),
    "trimmed-mean": Neutral("trimmed-mean(beta=0)", "fedavg:uniform"),
    "krum": Neutral("krum(f=0, m=5)", "fedavg:uniform"),
    "multi-krum": Neutral("multi-krum(f=0)", "fedavg:uniform"),
    "geometric-median": Neutral("geometric-median(nu=1e9)", "fedavg"),
    "clipping": Neutral("clipping(c=inf)", "fedavg", within=0),
    "centred-clipping": Neutral("centred-clipping(tau=inf)", "fedavg:uniform"),
}
MORE_NEUTRAL = [
    Neutral("qffl:full(q=0)", "fedavg:uniform"),
    Neutral("qffl(q=0, form=losses)", "fedavg:uniform"),
    Neutral("gifair:released(coeff=0)", "fedavg"),
    Neutral("fairfed:published(beta=0)", "fedavg"),
    Neutral("fairfed:accuracy(beta=0)", "fedavg"),
    Neutral("fairbatch(alpha=0, metric=dp)", "fedavg"),
    Neutral("fedfb(alpha=0, metric=dp)", "fedavg"),
    Neutral("fedminmax(eta=0, groups=cells)", "fedavg"),
    Neutral("ditto(lam=0)", "fedavg", 1),
    Neutral("fedheal:released(tau=0, beta=0)", "fedavg:uniform", 1),
    Neutral("fedprox(mu=0)+fedheal(tau=0, beta=0)", "fedavg"),
    Neutral("moon(mu=0)+qffl(q=0)", "fedavg"),
    Neutral("fedproto(lam=0)+afl(gamma=0)", "fedavg:uniform"),
    Neutral("gsam(rho=0)", "fedavg", within=1e-9, why="lengths are divided by 1e-12 more than they are"),
    Neutral("gsam(alpha=0)", "sam", within=0),
    Neutral("dp(clip=1e9, noise=0)", "fedavg", why="trained less received, and received again: rounding"),
    Neutral("logit-adjust(tau=0)+fedism+(rho=0, alpha=0, q=0)", "fedavg:uniform"),
    Neutral("clipping(c=1e9)", "fedavg", within=0),
    Neutral("fedheal+clipping(c=1e9)", "fedheal", within=0),
    Neutral("centred-clipping(tau=1e9)", "fedavg:uniform"),
]


@cache
def vectors(method: str, rounds: int, kind: str, sizes: tuple[int, ...], **settings: Any) -> list[Tensor]:
    """The global model after each round, every client taking part."""
    fed, seen = federation(method, kind=kind, sizes=sizes, participation=1.0, **settings), []
    fed.fit(rounds, progress=False, on_round=lambda _: seen.append(fed.progress.vector))
    return seen


def neutral_gap(case: Neutral, kind: str) -> float:
    sizes = (16, 16, 16) if case.text in ("fedavg:uniform", "fednova") else UNEQUAL
    a, b = (vectors(text, case.rounds, kind, sizes, engine="stacked") for text in (case.text, case.reference))
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["mlp", pytest.param("batchnorm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", [*NEUTRAL.values(), *MORE_NEUTRAL], ids=lambda case: case.text)
@pytest.mark.share(4)
def test_neutral_value_gives_the_reference(case: Neutral, kind: str) -> None:
    assert neutral_gap(case, kind) <= case.within


@pytest.mark.slow  # that is, that the comparison can fail
@pytest.mark.parametrize(
    "name",
    [
        "fedprox(mu=2)",
        "scaffold",
        "moon(mu=5)",
        "feddyn",
        "fedproc",
        "fedproto",
        "ditto",
        "afl",
        "qffl",
        "term",
        "term-sample(t=1)",
        "propfair",
        "aaggff",
        "aaggff:device",
        "gifair",
        "gifair:released",
        "eagle",
        "fairfed(beta=3)",
        "fairfed:accuracy",
        "fairgrad(eta=1)",
        "fairbatch(alpha=0.1)",
        "fedfb(alpha=0.1)",
        "fedminmax(eta=1)",
        "fedgft",
        "ffalm(beta=1)",
        "fedce",
        "fedga",
        "fedfv",
        "fedmgda",
        "fedmdfg",
        "fedlf",
        "fedpw",
        "sam",
        "gsam",
        "logit-adjust",
        "saga",
        "fedism",
        "fedism+",
        "fphl(tau=0.5)",
        "fael",
        "fedheal-exact",
        "margin(lam=1)",
        "principal",
        "fedld",
        "fedgh",
        "fedhgd",
        "fedpac",
        "cffl",
        "fedrac",
        "iafl",
        "finetune(form=every_round)",
        "dp:clip(clip=0.05)",
        "median",
        "trimmed-mean(beta=0.2)",
        "krum",
        "multi-krum",
        "geometric-median",
        "clipping",
        "centred-clipping",
    ],
)
def test_without_the_neutral_value_it_is_another_method(name: str) -> None:
    """Three rounds move every method away from both kinds of FedAvg, so that the comparison above can fail."""
    for reference in ("fedavg", "fedavg:uniform"):
        assert neutral_gap(Neutral(name, reference), "mlp") > 1e-5


def test_every_method_is_in_the_table() -> None:
    assert NEUTRAL.keys() == set(OF_CLIENTS)


def test_first_round_of_feddyn_is_twice_the_uniform_step() -> None:
    """g = 0, and one full-batch step starts where the regulariser has no gradient: -h / alpha doubles the mean update."""
    one = {"batch_size": 64, "epochs": 1}
    (dyn,), (avg,) = vectors("feddyn", 1, "mlp", UNEQUAL, **one), vectors("fedavg:uniform", 1, "mlp", UNEQUAL, **one)
    start = federation().model.initial
    assert torch.allclose(dyn - start, 2 * (avg - start), rtol=0, atol=1e-14)


# (g) what stays at home, and what is handed out
@pytest.mark.parametrize(
    ("rule", "kind", "over"),
    [
        (KeepHead(), "mlp", "fedavg"),
        (KeepNorm(), "batchnorm", "fedavg"),
        (KeepHead(), "batchnorm", "fedheal"),
        (KeepHead(), "mlp", "scaffold"),
    ],
)
def test_private_coordinates_never_leave(rule: Rule, kind: str, over: str) -> None:
    method = Method((rule, *parse(over).rules))
    checks.private_stays(Subject(method, kind))
    for engine in (sequential, Stacks(1)):
        stays_at_home(method, kind, engine)


@dataclasses.dataclass(frozen=True)
class Sent(Rule):
    """Store the cohorts that the server receives, and change nothing."""

    cohorts: tuple[list[Cohort], ...]

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        self.cohorts[0].append(cohort)
        return state, cohort


def stays_at_home(method: Method, kind: str, engine: Engine) -> None:
    """Private coordinates are in no update, of no absent client changed, and not in the global model."""
    sent = Sent(([],))
    rules = Method((sent, *method.rules), str(method))
    fed = federation(rules, kind=kind, sizes=SIZES[kind], participation=0.6, engine=engine)
    private = fed.trial.private
    assert private is not None
    for _ in range(ROUNDS):
        before = fed.progress.own
        fed.fit(1, progress=False)
        own, cohort = fed.progress.own, sent.cohorts[0][-1]
        changes = torch.cat([cohort.updates, cohort.buffer_updates], 1)
        assert not changes[:, private].any()
        assert changes[:, ~private].any()
        absent = sorted({*range(len(own))} - {*cohort.ids.tolist()})
        assert torch.equal(own[absent], before[absent])
    first, vector = fed.model.initial, fed.progress.vector
    assert torch.equal(vector[private], first[private])
    assert not torch.equal(vector, first)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("rule", "kind"), [(KeepHead(), "mlp"), (KeepNorm(), "batchnorm")])
def test_a_client_predicts_with_its_own_private_part(rule: Rule, kind: str, engine: str) -> None:
    fed = fitted(rule, 3, kind=kind, engine=engine, participation=0.6)
    private = rule.private(fed.model)
    assert 0 < int(private.sum()) < fed.model.size
    x, _ = samples(9, 1)
    a, b = sorted({m for record in fed.records for m in record["ids"]})[:2]
    assert not torch.equal(fed.progress.own[a, private], fed.progress.own[b, private])
    for m in (a, b):
        mine = fed.model.network(torch.where(private, fed.progress.own[m], fed.progress.vector))
        assert torch.equal(fed.logits(x, client=m), mine(x).detach())


def test_a_client_starts_from_its_own_private_part() -> None:
    jobs: list[Job] = []

    def spy(job: Job) -> Iterator[Answer]:
        jobs.append(job)
        yield from sequential(job)

    fed = fitted(KeepHead(), 1, participation=1.0, engine=spy)
    own, vector = fed.progress.own.clone(), fed.progress.vector.clone()
    fed.fit(1, progress=False)
    head = fed.model.head
    assert torch.equal(jobs[1].received[:, head], own[:, head])
    assert torch.equal(jobs[1].received[:, ~head], vector[~head].expand(len(own), -1))


def test_a_share_of_the_step_is_handed_out() -> None:
    """Client m gets (m + 1) / 3 of the step; next round it starts there, and its update is counted from there."""
    G = federation(sizes=(5, 5, 5)).model.size
    updates = [torch.randn(3, G, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in range(2)]
    received: list[Tensor] = []
    answer = scripted(updates)

    def engine(job: Job) -> Iterator[Answer]:
        received.append(job.received)
        yield from answer(job)

    fed = federation(Portion(), sizes=(5, 5, 5), engine=engine, participation=1.0)
    fed.fit(1, progress=False)
    start, first = fed.model.initial, fed.progress.vector
    expected = [start + (m + 1) / 3 * updates[0].mean(0) for m in range(3)]
    assert torch.allclose(first, start + updates[0].mean(0), rtol=0, atol=1e-14)
    for m in range(3):
        assert torch.allclose(fed.progress.given[m], expected[m], rtol=0, atol=1e-14)
    fed.fit(1, progress=False)
    assert torch.equal(received[0], start.expand(3, -1))
    assert torch.allclose(received[1], torch.stack(expected), rtol=0, atol=1e-14)
    assert torch.allclose(fed.progress.vector, first + updates[1].mean(0), rtol=0, atol=1e-13)
    assert fed.personal


@pytest.mark.parametrize(
    "method", [(Portion(),), (KeepHead(),), (Portion(), KeepNorm())], ids=["portion", "head", "both"]
)
def test_what_is_handed_out_and_kept_survives_a_stop(method: tuple[Rule, ...], tmp_path: Path) -> None:
    tests = {"a": samples(40, 1)}
    kind = "batchnorm" if KeepNorm() in method else "mlp"
    make = lambda: federation(method, kind=kind, tests=tests, participation=0.6)  # noqa: E731
    never = make()
    never.fit(5, progress=False)
    again = stopped_and_resumed(tmp_path, make, 5, 2)
    assert identical(never, again)
    assert told(never) == told(again)
    assert (never.progress.given is not None) == (Portion() in method)
    x, _ = samples(9, 1)
    outputs = [never.logits(x, client=m) for m in range(5)]
    assert all(torch.equal(o, again.logits(x, client=m)) for m, o in enumerate(outputs))
    assert not torch.equal(outputs[0], outputs[1])


# (h) the small and the uneven
@pytest.mark.parametrize("name", fast_first(FEWER, REPRESENTATIVE))
def test_one_client(name: str) -> None:
    checks.one_client(subject(name))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *cases(OF_CLIENTS, REPRESENTATIVE),
        ("scaffold+fedheal", "batchnorm"),
        ("moon+qffl", "batchnorm"),
        ("feddyn", "batchnorm"),
    ],
)
def test_a_client_of_one_sample(name: str, kind: str) -> None:
    """It takes part like the others; with BatchNorm, which cannot train on one sample, it is named before the first round."""
    if kind == "batchnorm":
        with pytest.raises(ValueError, match=r"^client-0 has one sample, on which BatchNorm 'norm' cannot be trained"):
            federation(name, sizes=(1, 9, 17, 12), participation=1.0, kind=kind)
    checks.a_client_of_one_sample(subject(name, kind))


@pytest.mark.parametrize("name", fast_first(FEWER, REPRESENTATIVE))
def test_uneven_cohorts_and_batches(name: str) -> None:
    checks.uneven_cohorts_and_batches(subject(name))


@pytest.mark.parametrize("name", fast_first(FEWER, REPRESENTATIVE))
def test_float32_networks(name: str) -> None:
    checks.float32_networks(subject(name))


def test_dropout_is_drawn_for_the_client(tmp_path: Path) -> None:
    """The same after a stop, whatever the user draws in between; a stack cannot draw it and says so."""
    net = torch.nn.Sequential(torch.nn.Dropout(0.3), *network())
    make = lambda: federation("scaffold", net=net)  # noqa: E731
    never = make()
    never.fit(4, progress=False)
    torch.rand(5)
    again = stopped_and_resumed(tmp_path, make, 4, 2)
    assert identical(never, again)
    assert not identical(never, fitted("scaffold", 4, net=network()))
    assert federation("scaffold", net=net, engine="auto").engine_choice.engine == "sequential"
    with pytest.raises(ValueError, match="The stacked engine cannot draw the random numbers"):
        fitted("fedavg", 1, net=net, engine="stacked")


@pytest.mark.parametrize("name", ["fedavg", "moon+fedheal", "fedproto+afl"])
def test_networks_on_images(name: str) -> None:
    """A convolution, which may take its channels in another order, and GroupNorm; both engines, full stacks."""
    data = [(x.reshape(-1, 1, 2, 3), y) for x, y in clients()]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [
            torch.nn.Conv2d(1, 4, 2),
            torch.nn.GroupNorm(2, 4),
            torch.nn.Tanh(),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 3),
        ]
        net = torch.nn.Sequential(*layers).double()
    a, b = (fitted(name, 3, net=net, data=data, engine=e, participation=1.0) for e in ("sequential", "stacked"))
    assert moved(a)
    assert difference(a, b) < 1e-10


def test_the_network_given_is_never_changed() -> None:
    net = network("batchnorm")
    before = {k: v.clone() for k, v in net.state_dict().items()}
    fitted("scaffold+fedheal", 2, net=net)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("kind", ["mlp", pytest.param("batchnorm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.share(2)
def test_a_stack_is_not_visited_one_by_one(method: str, kind: str) -> None:
    checks.stacks_stay_whole(subject(method, kind))
