"""The contract of every method and of every base method under every method that weighs clients."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import HOOKS, Briefing, Cohort, Out, Rule, Setup, State, Visit, overrides
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation.method import Method, parse
from equipoise.methods import METHODS
from helpers import (
    REPRESENTATIVE,
    UNEQUAL,
    KeepHead,
    KeepNorm,
    Portion,
    client_axes,
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
    "fedprox+fedce",
    "moon+fedga",
    "scaffold+fedsac(beta=3)",
    "fedproto+fedsac-no-aggregation(beta=3)",
    "fedprox+cgsv:released",
    "fedproc+fedave(sort_losses=true)",
    "fedprox+cffl(theta_u=0.4)",
    "qffl:full+finetune",
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
ROUNDS = 3
TESTS = {"a": samples(40, 1), "b": samples(20, 3)}
SIZES = {"mlp": UNEQUAL, "batchnorm": (9, 13, 9, 13, 9)}  # BatchNorm forbids padding: equal sizes make its stacks

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
stacked_engine = importlib.import_module("equipoise.engines.stacked")


@cache
def run(name: str, kind: str = "mlp", engine: str = "sequential") -> eq.Federation:
    """Three rounds with unequal clients, of which four of five take part. Not to be trained further."""
    return fitted(name, ROUNDS, kind=kind, sizes=SIZES[kind], engine=engine, tests=TESTS)


def learned(fed: eq.Federation) -> Tensor:
    """The global model [G], or those at home [N, G] where nothing leaves it."""
    private, own = fed.trial.private, fed.progress.own
    return own if own is not None and private is not None and bool(private.all()) else fed.progress.vector


def moved(fed: eq.Federation) -> bool:
    """Whether training changed what is learned by more than rounding."""
    return float((learned(fed) - fed.model.initial).abs().max()) > 1e-3


# (a) engines
@every_case
def test_engines_agree(name: str, kind: str) -> None:
    assert moved(run(name, kind))
    assert difference(run(name, kind), run(name, kind, "stacked")) < 1e-10


@any_case
def test_workers_give_the_same_bits(name: str, kind: str) -> None:
    """Clients in threads: every state and every record, as if one client came after another."""
    together = fitted(name, ROUNDS, kind=kind, sizes=SIZES[kind], engine="workers", workers=3, tests=TESTS)
    assert identical(run(name, kind), together)
    assert told(run(name, kind)) == told(together)


@pytest.mark.parametrize(
    ("name", "kind"), cases(FEWER, REPRESENTATIVE) + cases(("scaffold", "moon+qffl"), ("scaffold",), "batchnorm")
)
def test_result_does_not_depend_on_who_stands_beside_whom(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks of at most two clients, of which the sizes give other padding and other neighbours."""
    size = run(name, kind).model.size
    monkeypatch.setattr(stacked_engine, "MEMORY", 2 * stacked_engine.VECTORS * size * 8)
    seen: list[tuple[Job, Answer]] = []
    spy = watched(seen, stacked_engine.stacked)
    small = fitted(name, ROUNDS, kind=kind, sizes=SIZES[kind], engine=spy)
    assert max(len(answer.rows) for _, answer in seen) == 2
    assert difference(run(name, kind), small) < 1e-10


@pytest.mark.parametrize("kind", SIZES)
def test_stacks_hold_several_clients(kind: str) -> None:
    """Otherwise the comparison of the engines would say nothing."""
    seen: list[tuple[Job, Answer]] = []
    fitted("scaffold", ROUNDS, kind=kind, sizes=SIZES[kind], engine=watched(seen, stacked_engine.stacked))
    assert max(len(answer.rows) for _, answer in seen) >= 3


# (b) stop and resume
class KilledError(Exception):
    """The run is killed here."""


def stopped_and_resumed(directory: Path, make: Callable[[], eq.Federation], rounds: int, at: int) -> eq.Federation:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == at - 1:
            raise KilledError

    with pytest.raises(KilledError):
        make().fit(rounds, directory=directory, progress=False, on_round=stop)
    fresh = make()
    rest = fresh.resume(directory)
    assert (fresh.progress.t, rest) == (at, rounds - at)
    fresh.fit(rest, directory=directory, progress=False)
    return fresh


@any_case
def test_resumed_run_is_the_same_bit_for_bit(name: str, kind: str, tmp_path: Path) -> None:
    tests = {"a": samples(40, 1), "b": samples(20, 3)}
    again = stopped_and_resumed(
        tmp_path, lambda: federation(name, kind=kind, sizes=SIZES[kind], tests=tests), ROUNDS, 2
    )
    never = run(name, kind)
    assert identical(never, again)
    assert told(never) == told(again)


# (c) purity
def leaves(value: Any, name: str = "") -> dict[str, Tensor]:
    """Every tensor a hook is given or gives back, by its path."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, dict):
        return {k: t for key, part in value.items() for k, t in leaves(part, f"{name}/{key}").items()}
    if isinstance(value, (list, tuple)):
        return {k: t for key, part in enumerate(value) for k, t in leaves(part, f"{name}/{key}").items()}
    if isinstance(value, (Visit, Briefing, Cohort, Out, Setup)):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "oracle"}
        return leaves(parts, name)
    return {}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def copied(value: Any) -> dict[str, Tensor]:
    return {k: t.detach().clone() for k, t in leaves(value).items()}


def shape(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {k: (t.shape, t.dtype) for k, t in state.items()}


def supervised(cls: type[Rule], hook: str, called: set[str]) -> Callable[..., Any]:
    """The hook, called twice on the same arguments and watched."""
    original = getattr(cls, hook)

    def checked(self: Rule, *args: Any) -> Any:
        where = f"{cls.__name__}.{hook}"
        called.add(where)
        itself, before = repr(self), copied(args)
        first = original(self, *args)
        assert same(before, copied(args)), f"{where} changed its arguments"
        kept = copied(first)
        second = original(self, *args)
        assert same(kept, copied(second)), f"{where} gave another result the second time"
        assert same(kept, copied(first)), f"{where} changed what it gave before"
        assert same(before, copied(args)), f"{where} changed its arguments the second time"
        assert repr(self) == itself
        if hook == "finish":
            assert shape(first[1]) == shape(args[1].state), f"{where}: the client's state changed its shape"
        if hook in ("aggregate", "reward"):
            assert shape(first[0]) == shape(args[0]), f"{where}: the server's state changed its shape"
        if hook == "prepare":
            assert shape(first) == shape(args[0]), f"{where}: the server's state changed its shape"
        return second

    return checked


@pytest.mark.parametrize(
    ("name", "engine"), cases(NAMES, REPRESENTATIVE, "sequential") + cases(METHODS, ("scaffold", "fedbn"), "stacked")
)
def test_hooks_are_pure(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"engine": engine, "tests": {"a": samples(20, 1)}, "epochs": 1}
    called: set[str] = set()
    rules = parse(name).rules
    expected = {f"{type(r).__name__}.{hook}" for r in rules for hook in HOOKS if overrides(r, hook)}
    for cls, hook in {(type(r), hook) for r in rules for hook in HOOKS if overrides(r, hook)}:
        monkeypatch.setattr(cls, hook, supervised(cls, hook, called))
    fed = fitted(name, 3, **settings)
    assert called == expected
    monkeypatch.undo()
    assert identical(fed, fitted(name, 3, **settings))


def test_the_supervision_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Careless(Rule):
        def server_state(self, setup: Setup) -> State:
            return {"x": torch.zeros(1)}

        def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
            state["x"] += 1
            return state, cohort

    monkeypatch.setattr(Careless, "aggregate", supervised(Careless, "aggregate", set()))
    with pytest.raises(AssertionError, match=r"Careless\.aggregate changed its arguments"):
        fitted(Careless(), 1)


# (d) renumbering
IN_ORDER = {
    "fedgh": "fedgh(form=accumulate)",  # as published it projects pair after pair, in the order of the clients
    # the noise is each client's own, by its number
    "dp": "dp(clip=0.05, noise=0)",
    "fedprox+dp+fedheal": "fedprox+dp(clip=0.05, noise=0)+fedheal",
    "moon+dp(clip=0.05, noise=0.1)+cgsv": "moon+dp(clip=0.05, noise=0)+cgsv",
    "ditto+dp+fedheal": "ditto+dp(clip=0.05, noise=0)+fedheal",
}


@any_case
def test_renumbering_clients_renumbers_the_result(name: str, kind: str) -> None:
    """Full batches and full participation: what is left of a client's number is the order of sums."""
    check_renumbering(IN_ORDER.get(name, name), kind)


def check_renumbering(method: Any, kind: str = "mlp") -> None:
    order, data = [3, 0, 4, 2, 1], clients()
    whole = {"batch_size": 64, "participation": 1.0, "epochs": 2, "solver": eq.SGD(0.1)}
    a, b = (fitted(method, 3, kind=kind, data=d, **whole) for d in (data, [data[m] for m in order]))
    assert moved(a)
    one, two = a.progress.tensors(), b.progress.tensors()
    assert one.keys() == two.keys()
    axes = client_axes(a.trial)
    for key, value in one.items():
        for axis in axes.get(key, [0]):  # what is handed out to each client begins after a round
            value = value.index_select(axis, torch.tensor(order))
        assert torch.allclose(value, two[key], rtol=0, atol=1e-9), key
    for r, s in zip(a.records, b.records, strict=True):
        assert [r["weights"][m] for m in order] == pytest.approx(s["weights"], abs=1e-9)


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
    check_renumbering(Five())
    with pytest.raises(AssertionError, match="server/0/x"):
        check_renumbering(Five(first=True))


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
    method = parse(text)
    assert parse(str(method)) == method
    assert str(parse(str(method))) == str(method)
    for rule in method.rules:
        assert eval(repr(rule), dict(CLASSES)) == rule
        assert hash(rule) == hash(copy.deepcopy(rule))
    for twin in (copy.copy(method), copy.deepcopy(method), pickle.loads(pickle.dumps(method))):
        assert twin == method
        assert parse(str(twin)) == method
    again = Method(method.rules)  # without the text it was read from
    assert again == method
    if all((type(rule),) in ALONE for rule in method.rules):
        assert parse(str(again)) == method


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
    "fairfed": Neutral("fairfed(beta=0)", "fedavg"),
    "fedce": Neutral("fedce(floor=2)", "fedavg:uniform"),
    "fedga": Neutral("fedga(d=0)", "fedavg:uniform"),
    "fedfv": Neutral("fedfv(alpha=1, tau=0)", "fedavg:uniform"),
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
    Neutral("fairfed:published(beta=0)", "fedavg"),
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
def test_neutral_value_gives_the_reference(case: Neutral, kind: str) -> None:
    assert neutral_gap(case, kind) <= case.within


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
        "fairfed",
        "fedce",
        "fedga",
        "fedfv",
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
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("rule", "kind", "over"),
    [
        (KeepHead(), "mlp", "fedavg"),
        (KeepNorm(), "batchnorm", "fedavg"),
        (KeepHead(), "batchnorm", "fedheal"),
        (KeepHead(), "mlp", "scaffold"),
    ],
)
def test_private_coordinates_never_leave(rule: Rule, kind: str, over: str, engine: str) -> None:
    seen: list[Cohort] = []

    @dataclasses.dataclass(frozen=True)
    class Spy(Rule):
        def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
            seen.append(cohort)
            return state, cohort

    method = Method((Spy(), rule, *parse(over).rules))
    fed = federation(method, kind=kind, engine=engine, participation=0.6)
    private = rule.private(fed.model)
    P = fed.model.n_params
    assert 0 < int(private.sum()) < fed.model.size
    visited: set[int] = set()
    for _ in range(3):
        before = fed.progress.own
        fed.fit(1, progress=False)
        cohort = seen[-1]
        sent = torch.cat([cohort.updates, cohort.buffer_updates], 1)
        assert not sent[:, private].any()
        assert sent[:, ~private].any()
        ids = set(cohort.ids.tolist())
        visited |= ids
        for m in range(len(UNEQUAL)):
            kept = torch.equal(fed.progress.own[m, private], before[m, private])
            assert kept == (m not in ids)
    assert torch.equal(fed.progress.vector[private], fed.model.initial[private])
    assert not torch.equal(fed.progress.vector[:P], fed.model.initial[:P])
    x, _ = samples(9, 1)
    a, b = sorted(visited)[:2]
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
def test_one_client(name: str, tmp_path: Path) -> None:
    """A federation of one trains on that client, and its checkpoint holds together."""
    make = lambda: federation(name, sizes=(13,), participation=1.0)  # noqa: E731
    fed = make()
    fed.fit(3, progress=False)
    assert moved(fed)
    assert all(r["weights"] == [1.0] for r in fed.records)
    assert identical(fed, stopped_and_resumed(tmp_path, make, 3, 1))


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
    settings = {"sizes": (1, 9, 17, 12), "participation": 1.0, "kind": kind}
    if kind == "batchnorm":
        with pytest.raises(ValueError, match=r"^client-0 has one sample, on which BatchNorm 'norm' cannot be trained"):
            federation(name, **settings)
        settings |= {"sizes": (9, 17, 12)}
    a, b = (fitted(name, 2, engine=e, **settings) for e in ("sequential", "stacked"))
    assert all(bool(t.isfinite().all()) for t in a.progress.tensors().values() if t.is_floating_point())
    assert moved(a)
    assert difference(a, b) < 1e-10
    for record in a.records:
        assert record["ids"] == [*range(len(settings["sizes"]))]
        assert "quarantined" not in record


@pytest.mark.parametrize("name", fast_first(FEWER, REPRESENTATIVE))
def test_uneven_cohorts_and_batches(name: str) -> None:
    """Two of five clients a round, batches of 7 that divide none of them: deterministic, and the seed matters."""
    settings = {"participation": 0.4, "batch_size": 7, "epochs": 1, "tests": {"a": samples(40, 1)}}
    a, b, c = (fitted(name, 3, seed=seed, **settings) for seed in (11, 11, 12))
    assert identical(a, b)
    assert told(a) == told(b)
    assert float((learned(a) - learned(c)).abs().max()) > 1e-6
    assert all(len(r["ids"]) == 2 for r in a.records)
    assert difference(a, fitted(name, 3, seed=11, **settings, engine="stacked")) < 1e-10


@pytest.mark.parametrize("name", fast_first(FEWER, REPRESENTATIVE))
def test_float32_networks(name: str) -> None:
    """No state changes its dtype on the way, nobody is quarantined, and both engines agree as far as float32 goes."""
    a, b = (fitted(name, 2, net=network().float(), engine=e, epochs=1) for e in ("sequential", "stacked"))
    fresh = federation(name, net=network().float()).progress.tensors()
    after = a.progress.tensors()
    assert {k: after[k].dtype for k in fresh} == {k: v.dtype for k, v in fresh.items()}
    assert after["vector"].dtype == after.get("given", after["vector"]).dtype == torch.float32
    assert not any("quarantined" in r for r in (*a.records, *b.records))
    assert moved(a)
    assert difference(a, b) < 1e-3


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
def test_a_stack_is_not_visited_one_by_one(method: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    fed = federation(method, kind=kind, sizes=(16, 16, 16), participation=1.0, engine="stacked")
    fed.fit(2, progress=False)
    expected = ["equipoise.methods.fedbn"] if (method, kind) == ("fedbn", "mlp") else []  # which has no BatchNorm
    expected += ["equipoise.federation.federation"] * (method == "trimmed-mean")  # which trims nothing of three clients
    assert [record.name for record in caplog.records] == expected
    assert not any("quarantined" in record for record in fed.records)
