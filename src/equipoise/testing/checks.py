"""The promises that every method keeps, each as a function that raises :class:`ContractError` where it is broken.

A function takes a :class:`Subject`, and returns a remark or nothing. What does not apply raises :class:`NotApplicableError`.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from inspect import isfunction
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from equipoise.core.catalogue import CatalogueEntry
from equipoise.core.presence import Presence
from equipoise.core.rule import HOOKS, SEES, Cohort, Rule, State, told
from equipoise.core.solver import SGD
from equipoise.core.task import task_of
from equipoise.engines.job import Answer, Engine, Job
from equipoise.engines.sequential import sequential
from equipoise.federation.federation import Federation
from equipoise.federation.method import Method, MethodError, make_rules, parse, read_values, text_of
from equipoise.federation.round import one_round, public
from equipoise.methods import METHODS
from equipoise.records.record import Record
from equipoise.system.suggestions import near, some
from equipoise.testing import sites as between_sites
from equipoise.testing.federations import (
    ROUNDS,
    SIZES,
    Subject,
    client_axes,
    clients,
    consortium,
    differing,
    federation,
    learned,
    moved,
    network,
    stopped_and_resumed,
    watched,
    widest,
)
from equipoise.testing.federations import told as records_of
from equipoise.testing.hooks import TWICE, ContractError, first_difference, hooks_behind, name_of, overriding
from equipoise.testing.sees import CONTRIBUTION, follows_contribution, kept_of_clients, last_round, looked_at

LAST = "Reduce over the last dimensions only: .sum(-1) and out.mean(...), never .sum() or .mean(), as a stack has a dimension more."
WITHIN = 1e-10  # of numbers that should be the same but for the order of sums
ORDER = torch.tensor([3, 0, 4, 2, 1])  # of clients that are numbered anew
stacked_engine = import_module("equipoise.engines.stacked")


class NotApplicableError(Exception):
    """A check says nothing about this method, with the reason."""


def _compare(subject: Subject, a: Federation, b: Federation, within: float, who: str, advice: str) -> None:
    """Require that two runs ended in the same state, up to rounding."""
    where, gap = widest(a, b)
    if not gap <= within:
        hook = first_difference(subject) or hooks_behind(subject.method, where)
        raise ContractError(
            f"{gap:.2g} in {where} after {a.progress.t} rounds", f"{who} agree within {within:g}", advice, hook
        )


def _same_bits(subject: Subject, a: Federation, b: Federation, who: str, advice: str) -> None:
    """Require that two runs ended in the same state and have the same records, bit for bit."""
    names = differing(a.progress.tensors(), b.progress.tensors())
    if names or records_of(a) != records_of(b):
        where = names[0] if names else "records"
        raise ContractError(
            f"another {some(names) or 'record'} after {a.progress.t} rounds",
            f"{who} give the same bits",
            advice,
            hooks_behind(subject.method, where),
        )


# it trains
def hooks_are_spelled(subject: Subject) -> None:
    """No method of a rule's class is a hook but for its spelling, and so is never called."""
    for rule in subject.method.rules:
        for name, value in vars(type(rule)).items():
            own = isfunction(value) and not name.startswith("_") and not hasattr(Rule, name)
            if own and (meant := near(name, HOOKS, 0.8)):
                raise ContractError(
                    f"{name}, which no round calls",
                    f"a hook: {', '.join(HOOKS)}",
                    f"{meant.strip()} Begin the name of a function that is no hook with _.",
                    name_of(type(rule), name),
                )


def it_trains(subject: Subject) -> None:
    """Nobody is quarantined, all numbers are finite, and training changes what is learned."""
    fed = subject.run()
    _nobody_quarantined(subject, [fed])
    _finite(subject, fed)
    _moved(subject, fed)


def _nobody_quarantined(subject: Subject, feds: Iterable[Federation]) -> None:
    bad = [each for fed in feds for record in fed.records for each in record.get("quarantined", ())]
    if bad:
        raise ContractError(
            f"{bad[0]['name']}: {bad[0]['reason']}",
            "every client answers well",
            "Let no hook raise, report what ranges allow, and give every report a row per client.",
            hooks_behind(subject.method, "clients/0"),
        )


def _finite(subject: Subject, fed: Federation) -> None:
    tensors = fed.progress.tensors()
    bad = [key for key, x in tensors.items() if x.is_floating_point() and not bool(x.isfinite().all())]
    if bad:
        raise ContractError(
            f"NaN or infinity in {some(bad)} after {fed.progress.t} rounds",
            "finite numbers",
            "Look for a division by a sum or a spread that can be 0, and for the logarithm of 0.",
            hooks_behind(subject.method, bad[0]),
        )


def _moved(subject: Subject, fed: Federation) -> None:
    if not moved(fed):
        raise ContractError(
            f"a model as it began, after {fed.progress.t} rounds",
            "that training changes the model",
            "Look at what correction, trains, upload and aggregate leave of the update.",
            hooks_behind(subject.method, ""),
        )


# engines
def engines_agree(subject: Subject) -> None:
    """One client after another, and a stack of them, give the same but for rounding."""
    _moved(subject, subject.run())
    _compare(subject, subject.run(), subject.run("stacked"), WITHIN, "engines 'sequential' and 'stacked'", LAST)


def neighbours_do_not_matter(subject: Subject) -> None:
    """Stacks of at most two clients, whose sizes give other padding and other neighbours, change nothing but rounding."""
    size = subject.run().model.size
    seen: list[tuple[Job, Answer]] = []
    with patch.object(stacked_engine, "MEMORY", 2 * stacked_engine.VECTORS * size * 8):
        small = subject.fitted(engine=watched(seen, stacked_engine.stacked))
    if max(len(answer.rows) for _, answer in seen) > 2:
        raise AssertionError("a stack had more than two clients")
    _compare(subject, subject.run(), small, WITHIN, "a client alone and a client beside others", LAST)


def stacks_agree(subject: Subject) -> None:
    """What comes of a client does not depend on the engine, nor on who stands beside it."""
    engines_agree(subject)
    neighbours_do_not_matter(subject)


def stacks_stay_whole(subject: Subject) -> None:
    """A stack of clients is trained as one, and not one after another because a hook cannot be."""
    said = [record for record in warnings_of_stack(subject) if record.name == stacked_engine.__name__]
    if said:
        raise ContractError(
            said[0].getMessage(),
            "that a stack of clients is trained as one",
            "Call no .item() and branch on no tensor in a client hook; use torch.where. " + LAST,
            first_difference(subject),
        )


def warnings_of_stack(subject: Subject) -> list[logging.LogRecord]:
    """What is said while three clients of one size train as a stack for two rounds."""
    noted: list[logging.LogRecord] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            noted.append(record)

    handler = Noting(logging.WARNING)
    logger = logging.getLogger("equipoise")
    logger.addHandler(handler)
    try:
        fed = subject.fitted(2, sizes=(16, 16, 16), participation=1.0, engine="stacked")
    finally:
        logger.removeHandler(handler)
    _nobody_quarantined(subject, [fed])
    return noted


def workers_give_the_same_bits(subject: Subject) -> None:
    """Clients in threads: every state and every record, as if one client came after another."""
    together = subject.fitted(engine="workers", workers=3)
    _same_bits(subject, subject.run(), together, "threads and one client after another", TWICE)


# stop and resume
def resumed_run_is_the_same(subject: Subject) -> None:
    """A run that was stopped, and resumed after others had run, ends as the one that never was, bit for bit."""
    method = subject.method

    def another() -> None:
        subject.fitted(2, seed=4, epochs=1)

    def make() -> Federation:
        return Subject(copy.deepcopy(method), subject.kind).federation()

    never = subject.run()
    with tempfile.TemporaryDirectory() as folder:
        again = stopped_and_resumed(Path(folder), make, ROUNDS, 2, another)
    advice = "Return all that must be remembered as the server's or the client's state: attributes and globals are in no checkpoint."
    _same_bits(subject, never, again, "a resumed run and one that never stopped", advice)


# numbers and order of clients
def renumbering_renumbers(subject: Subject) -> None:
    """Clients with other numbers get the same results: what is left of a number is the order of sums."""
    order = ORDER.tolist()
    data = clients(SIZES[subject.kind])

    def named(job: Job) -> Iterator[Answer]:
        """Random numbers follow the client."""
        yield from sequential(replace(job, ids=tuple(order[m] for m in job.ids)))

    whole: dict[str, Any] = {"batch_size": 64, "participation": 1.0, "epochs": 2, "solver": SGD(0.1), "tests": None}
    a = subject.fitted(**whole, data=data)
    b = subject.fitted(**whole, data=[data[m] for m in order], engine=named)
    _moved(subject, a)
    _same_but_renumbered(subject, a, b)


def _same_but_renumbered(subject: Subject, a: Federation, b: Federation) -> None:
    axes, second = client_axes(a.trial), b.progress.tensors()
    bad = []
    for key, value in a.progress.tensors().items():
        for axis in axes.get(key, [0]):  # what is handed out to each client begins after a round
            value = value.index_select(axis, ORDER)
        if not torch.allclose(value, second[key], rtol=0, atol=1e-9):
            bad.append(key)
    for r, s in zip(a.records, b.records, strict=True):
        weights = torch.tensor([r["weights"][m] for m in ORDER.tolist()])
        bad += ["weights"] * (not torch.allclose(weights, torch.tensor(s["weights"]), rtol=0, atol=1e-9))
    if bad:
        raise ContractError(
            f"another {some(list(dict.fromkeys(bad)))} once clients were numbered {ORDER.tolist()}",
            "the same numbers, in the new order",
            "Treat all clients alike whatever their number: use cohort.ids to look up state, and for nothing else.",
            hooks_behind(subject.method, bad[0]),
        )


@dataclass(frozen=True)
class _Turns:
    """Three of five clients a round, in one order or the other."""

    backwards: bool

    def round(self, t: int, share: float) -> tuple[Tensor, Record]:
        ids = ((0, 1, 3), (2, 3, 4), (0, 2, 4))[t % 3]
        return torch.tensor(ids[::-1] if self.backwards else ids), {}


def absent_clients_do_not_count(subject: Subject) -> None:
    """Where some clients are absent, each entry of a state is the right client's, in whatever order they stand in a round."""
    ends = []
    for backwards in (False, True):
        fed = subject.fitted(1, batch_size=64, contribution=CONTRIBUTION)
        trial = replace(fed.trial, presence=cast(Presence, _Turns(backwards)))
        now = fed.progress
        for _ in range(ROUNDS):
            now, _record = one_round(trial, now, ROUNDS + 1)
        ends.append(now.tensors())
    bad = [key for key, x in ends[0].items() if not torch.allclose(x, ends[1][key], rtol=0, atol=1e-9)]
    bad.sort(key=lambda key: key == "vector")  # a state says more
    if bad:
        raise ContractError(
            f"another {some(bad)} where the same three of five clients stand in another order",
            "the same state, as row k of a cohort is client cohort.ids[k]",
            "Read a state of all clients by state[key][cohort.ids], and write it by index_copy(0, cohort.ids, values).",
            hooks_behind(subject.method, bad[0]),
        )


# text
ALONE = {entry.rules for entry in METHODS.values()}  # a rule that has a name of its own can be written alone


VALUES = "Give every hyper-parameter by number or choice, as a number, a word or true and false, and let the dataclass compare by its fields."


def method_reads_back(subject: Subject) -> None:
    """Text, copies and values of a method give it back."""
    method = subject.method

    def require(same: bool, what: str) -> None:
        if not same:
            raise ContractError(f"another method from {what}", f"that {what} gives back {method}", VALUES)

    for rule in method.rules:
        require(hash(rule) == hash(copy.deepcopy(rule)), f"a copy of {type(rule).__name__}")
        name, _, inside = text_of(rule).partition("(")
        values = read_values(inside.removesuffix(")"), name)
        again = make_rules(CatalogueEntry((type(rule),), "", ""), values, name, name)
        require(again == [rule], f"the text {text_of(rule)!r}")
    for twin in (copy.copy(method), copy.deepcopy(method), Method(method.rules)):
        require(twin == method, "a copy")
    if isinstance(subject.given, str):
        require(parse(str(method)) == method, f"the text {str(method)!r}")
        require(str(parse(str(method))) == str(method), "its text")
    if all((type(rule),) in ALONE for rule in method.rules):
        require(parse(str(Method(method.rules))) == method, "the text of its rules")


# privacy
def private_stays(subject: Subject) -> None:
    """Private coordinates never leave the client: not in the update, not in a report, not into the global model."""
    if subject.method.private(subject.run().model) is None:
        raise NotApplicableError("it keeps no coordinates private")
    for engine in (sequential, stacked_engine.stacked):
        _private_stays(subject, engine)


@dataclass(frozen=True)
class _Sent(Rule):
    """Note what the server is sent, and change nothing."""

    cohorts: tuple[list[Cohort], ...]

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        self.cohorts[0].append(cohort)
        return state, cohort


def _private_stays(subject: Subject, engine: Engine) -> None:
    seen: list[tuple[Job, Answer]] = []
    sent = _Sent(([],))
    settings: dict[str, Any] = subject.setting | {"engine": watched(seen, engine), "participation": 0.6, "tests": None}
    fed = federation(Method((sent, *subject.method.rules), str(subject.method)), **settings)
    private = cast(Tensor, fed.trial.private)

    def require(holds: bool, text: str) -> None:
        if not holds:
            where = " or ".join(name_of(cls, hook) for cls, hook in overriding(subject.method) if hook == "private")
            raise ContractError(text, "that private coordinates stay with their client", "Look at private.", where)

    for _ in range(ROUNDS):
        before = cast(Tensor, fed.progress.own)
        fed.fit(1, progress=False)
        own, cohort = cast(Tensor, fed.progress.own), sent.cohorts[0][-1]
        changes = torch.cat([cohort.updates, cohort.buffer_updates], 1)
        require(not bool(changes[:, private].any()), "private coordinates in the updates that the server sees")
        require(bool(changes[:, ~private].any()) or bool(private.all()), "nothing in the updates that the server sees")
        absent = sorted({*range(len(own))} - {*cohort.ids.tolist()})
        require(torch.equal(own[absent], before[absent]), "other private coordinates of an absent client")
    first, vector = fed.model.initial, fed.progress.vector
    require(torch.equal(vector[private], first[private]), "private coordinates in the global model")
    require(bool(private.all()) or not torch.equal(vector, first), "a global model as it began")
    for job, answer in seen:
        _nothing_shown(fed, job, answer)


def _nothing_shown(fed: Federation, job: Job, answer: Answer) -> None:
    """Require that no report holds the value of a private coordinate that training has changed."""
    private = cast(Tensor, fed.trial.private)
    reports = told(job.rules, answer.reports)
    for k, row in enumerate(answer.rows):
        trained, start = answer.trained[k, private], job.received[row, private]
        secret = torch.cat([x[trained != start] for x in (trained, trained - start)])
        for rule, report in zip(job.rules, reports, strict=True):
            for key, x in report.items():
                shown = public(fed.trial, x)[k]
                if shown.is_floating_point() and bool(torch.isin(shown.flatten(), secret).any()):
                    raise ContractError(
                        f"values of private coordinates in the report {key!r}",
                        "that private coordinates stay with their client",
                        "Leave them out of what finish reports: only vectors of all P or G coordinates are cleared of them.",
                        f"{type(rule).__name__}.finish",
                    )


# the small and the uneven
FEW = "Look for a division by M - 1, by a spread, or by a sum over the other clients, and for what is left of a few when some are cut off."


def one_client(subject: Subject) -> None:
    """A federation of one trains on that client, and its checkpoint holds together."""

    def make() -> Federation:
        return subject.federation(sizes=(13,), participation=1.0, tests=None)

    fed = make()
    fed.fit(ROUNDS, progress=False)
    _moved(subject, fed)
    for record in fed.records:
        if record["weights"] != [1.0]:
            raise ContractError(
                f"the weights {record['weights']}",
                "that the only client has all the weight",
                FEW,
                hooks_behind(subject.method, "server/0"),
            )
    with tempfile.TemporaryDirectory() as folder:
        again = stopped_and_resumed(Path(folder), make, ROUNDS, 1)
    _same_bits(subject, fed, again, "a resumed run and one that never stopped", "See resume.")


def a_client_of_one_sample(subject: Subject) -> None:
    """A client with a single sample takes part like the others."""
    sizes = (9, 17, 12) if subject.kind == "batchnorm" else (1, 9, 17, 12)  # BatchNorm cannot train on one sample
    settings: dict[str, Any] = {"sizes": sizes, "participation": 1.0, "tests": None}
    a, b = (subject.fitted(2, engine=engine, **settings) for engine in ("sequential", "stacked"))
    _nobody_quarantined(subject, [a, b])
    _finite(subject, a)
    _moved(subject, a)
    _compare(subject, a, b, WITHIN, "engines 'sequential' and 'stacked'", LAST)
    if any(record["ids"] != [*range(len(sizes))] for record in a.records):
        raise AssertionError("a client did not take part")


def uneven_cohorts_and_batches(subject: Subject) -> None:
    """Two of five clients a round, batches of 7 that divide none of them: deterministic, and the seed matters."""
    settings: dict[str, Any] = {
        "participation": 0.4,
        "batch_size": 7,
        "epochs": 1,
        "tests": {"a": subject.setting["tests"]["a"]},
    }
    a, b, c = (subject.fitted(seed=seed, **settings) for seed in (11, 11, 12))
    _same_bits(subject, a, b, "two runs with one seed", TWICE)
    if not float((learned(a) - learned(c)).abs().max()) > 1e-6:
        raise ContractError(
            "the same model with the seeds 11 and 12",
            "that another seed, which draws other clients and batches, gives another model",
            "Look for what sets the model to a constant.",
            hooks_behind(subject.method, ""),
        )
    if any(len(record["ids"]) != 2 for record in a.records):
        raise AssertionError("not two clients a round")
    stack = subject.fitted(seed=11, **settings, engine="stacked")
    _compare(subject, a, stack, WITHIN, "engines 'sequential' and 'stacked'", LAST)


def float32_networks(subject: Subject) -> None:
    """No state changes its dtype on the way, nobody is quarantined, and both engines agree as far as float32 goes."""
    net = network(subject.kind).float()
    settings: dict[str, Any] = {"net": net, "tests": None, "epochs": 1}
    a, b = (subject.fitted(2, engine=engine, **settings) for engine in ("sequential", "stacked"))
    fresh, after = subject.federation(**settings).progress.tensors(), a.progress.tensors()
    bad = [key for key, x in fresh.items() if after[key].dtype != x.dtype]
    bad += ["given"] * (after.get("given", after["vector"]).dtype != torch.float32)
    if bad:
        raise ContractError(
            f"another dtype of {some(bad)} after 2 rounds of a float32 network",
            "states and models that keep their dtype",
            "Make state by zeros_like of what it is made of, and give numbers back by .to(x.dtype).",
            hooks_behind(subject.method, bad[0]),
        )
    _nobody_quarantined(subject, [a, b])
    _moved(subject, a)
    _compare(subject, a, b, 1e-3, "engines 'sequential' and 'stacked' with float32", LAST)


# what the server sees
def sees_what_it_states(subject: Subject) -> str:
    """The server looks at no more of single clients than the rule states in ``sees``."""
    method, last = subject.method, last_round(subject.method)
    where = " or ".join(f"{type(rule).__name__}.sees" for rule in method.rules if rule.sees == method.sees)
    advice = f"State what the server must see, one of {', '.join(SEES)}, or combine less of single clients."
    stated = f"no more of single clients than sees = {method.sees!r}"
    if any(need.startswith("contribution") for need in method.needs):
        if method.sees != "matrix":
            raise ContractError(
                "that it needs contributions", "sees = 'matrix', as each model is judged", advice, where
            )
        return "" if follows_contribution(last) else "nothing depends on the contributions that it needs"
    if SEES.index(method.sees) <= SEES.index("sum") and (kept := kept_of_clients(last.trial)):
        raise ContractError(f"an entry for each client in {some(kept)}", stated, advice, where)
    for rule, report in zip(last.trial.method.rules, last.answer.reports, strict=True):
        long = [key for key, x in report.items() if x.dim() != 1] if rule.sees == "scalars+sum" else []
        if long:
            raise ContractError(f"more than one number in {some(long)}", stated, advice, where)
    looks = looked_at(last)
    if SEES.index(looks) > SEES.index(method.sees):
        raise ContractError(f"a server that looks at {looks!r}", stated, advice, where)
    less = SEES.index(looks) < SEES.index(method.sees)
    return f"the server looked at {looks!r} only: if that is always so, state it in sees" if less else ""


# other surroundings
def sites_give_the_same_bits(subject: Subject) -> None:
    """Between sites it gives what the simulator gives, bit for bit."""
    if find_spec("flwr") is None:
        raise NotApplicableError("Flower is not installed: pip install 'equipoise[flower]'")
    if not subject.method.sharing.clients:
        raise NotApplicableError("it has no clients")
    with tempfile.TemporaryDirectory() as folder:
        sites = consortium(subject.method, **subject.setting, states=folder)
        sites.fit(ROUNDS, progress=False)
        bad = between_sites.differences(subject.run(), sites, Path(folder))
    if bad:
        raise ContractError(
            f"another {some(bad)} between sites",
            "the bits of the simulator",
            "Use on the server only what finish reports and stays leaves, and on a client only its state and its message.",
            hooks_behind(subject.method, bad[0]),
        )


def with_numbers() -> dict[str, Any]:
    """A network with one output, and clients whose targets are numbers."""
    data = [(x, x[:, 0] - 2 * x[:, 1] + 0.5 * x[:, 2].square()) for x, _ in clients()]
    return {"net": network(outputs=1), "data": data, "server_validation": data[1], "tests": {"a": data[2]}}


def numbers_to_predict(subject: Subject, task: str = "regression") -> Federation:
    """A rule that asks for no classes trains on a regression, with the same result in both engines."""
    try:
        subject.method.require(task_of(task))
    except MethodError as error:
        raise NotApplicableError(str(error)) from None
    a, b = (subject.fitted(6, engine=engine, task=task, **with_numbers()) for engine in ("sequential", "stacked"))
    _nobody_quarantined(subject, [a, b])
    _finite(subject, a)
    _compare(subject, a, b, 1e-9, "engines 'sequential' and 'stacked'", LAST)
    return a
