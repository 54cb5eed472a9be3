"""The contract of every method. Each promise is a function that raises :class:`ContractError` if it is broken.

A function takes a :class:`Subject`, and returns a remark or nothing. It raises :class:`NotApplicableError` if it does not apply.
"""

import copy
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from equipoise.core.oracle import Oracle
from equipoise.core.rule import SEES, CatalogueEntry, Rule, State, Trained, Visit
from equipoise.core.simulation import Presence
from equipoise.core.solver import SGD
from equipoise.core.task import task_of
from equipoise.data.batch import Batch
from equipoise.data.samples import Samples
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation.federation import Federation
from equipoise.federation.method import Method, MethodError, make_rules, read_values, text_of
from equipoise.federation.round import one_round, public
from equipoise.records.record import Record
from equipoise.system import calls
from equipoise.system.suggestions import some
from equipoise.system.tree import tree_map
from equipoise.testing import federations
from equipoise.testing.federations import ROUNDS, Subject, clients, differing, federation, moved, told as records_of
from equipoise.testing.hooks import TWICE, ContractError, Hook, first_difference, hooks_behind, name_of, replaced
from equipoise.testing.sees import CONTRIBUTION, follows_contribution, kept_of_clients, last_round, looked_at

LAST = "Reduce over the last dimensions only: .sum(-1) and out.mean(...), never .sum() or .mean(), as a stack has a dimension more."
WITHIN = 1e-10  # the largest difference that another order of sums may make
ORDER = torch.tensor([3, 0, 4, 2, 1])  # of renumbered clients
stacked_engine = import_module("equipoise.engines.stacked")


class NotApplicableError(Exception):
    """A check does not apply to this method, with the reason."""


def _compare(subject: Subject, a: Federation, b: Federation, within: float, runs: str, advice: str) -> None:
    """Require that two runs ended in the same state, up to rounding."""
    where, gap = federations.widest(a, b)
    if not gap <= within:
        hook = first_difference(subject) or hooks_behind(subject.method, where)
        actual = f"{gap:.2g} in {where} after {a.progress.t} rounds"
        raise ContractError(actual, f"{runs} agree within {within:g}", advice, hook)


def _same_bits(subject: Subject, a: Federation, b: Federation, runs: str, advice: str) -> None:
    """Require that two runs ended in the same state and have the same records, bit for bit."""
    names = differing(a.progress.tensors(), b.progress.tensors())
    if names or records_of(a) != records_of(b):
        actual = f"another {some(names) or 'record'} after {a.progress.t} rounds"
        hook = hooks_behind(subject.method, names[0] if names else "records")
        raise ContractError(actual, f"{runs} give the same bits", advice, hook)


def _require_none(subject: Subject, bad: Sequence[str], actual: str, expected: str, advice: str) -> None:
    """Require that no tensor of the state broke a promise; the names of those in ``bad`` stand at ``{}`` in ``actual``."""
    if bad:
        names = some(list(dict.fromkeys(bad)))
        raise ContractError(actual.format(names), expected, advice, hooks_behind(subject.method, bad[0]))


def _needs_clients(subject: Subject) -> None:
    if not subject.method.sharing.clients:
        raise NotApplicableError("all data are pooled, so there are no clients")


# it trains
def it_trains(subject: Subject) -> str:
    """No client is quarantined, all numbers are finite, and training changes the model."""
    fed = subject.run()
    _nobody_quarantined(subject, [fed])
    _finite(subject, fed)
    _moved(subject, fed)
    hint = "" if "sensitive" in subject.method.needs else '. Declare it: needs = frozenset({"sensitive"})'
    return f"only with sensitive attributes, which all data of the checks therefore have{hint}" * subject.people


def _nobody_quarantined(subject: Subject, feds: Iterable[Federation]) -> None:
    bad = [fault for fed in feds for record in fed.records for fault in record.get("quarantined", ())]
    if bad:
        actual, hook = f"{bad[0]['name']}: {bad[0]['reason']}", hooks_behind(subject.method, "clients/0")
        advice = "Raise no error in a hook, report numbers within ranges, and return one row per client."
        raise ContractError(actual, "every client answers well", advice, hook)


def _finite(subject: Subject, fed: Federation) -> None:
    bad = [key for key, x in fed.progress.tensors().items() if x.is_floating_point() and not bool(x.isfinite().all())]
    advice = "Look for a division by a sum or a spread that can be 0, and for the logarithm of 0."
    _require_none(subject, bad, f"NaN or infinity in {{}} after {fed.progress.t} rounds", "finite numbers", advice)


def _moved(subject: Subject, fed: Federation) -> None:
    if not moved(fed):
        actual, hook = f"an unchanged model after {fed.progress.t} rounds", hooks_behind(subject.method, "")
        advice = "Look for a factor of 0 in correction, trains, upload or aggregate."
        raise ContractError(actual, "that training changes the model", advice, hook)


# engines
def engines_agree(subject: Subject) -> None:
    """Engines ``sequential`` and ``stacked`` give the same result, except for rounding."""
    _moved(subject, subject.run())
    _compare(subject, subject.run(), subject.run("stacked"), WITHIN, "engines 'sequential' and 'stacked'", LAST)


def neighbours_do_not_matter(subject: Subject) -> None:
    """Stacks of at most two clients, with different padding and neighbours, give the same result, except for rounding."""
    seen: list[tuple[Job, Answer]] = []
    with patch.object(stacked_engine, "MEMORY", 2 * stacked_engine.VECTORS * subject.run().model.size * 8):
        small = subject.fitted(engine=federations.watched(seen, stacked_engine.Stacks(1)))
    if max(len(answer.rows) for _, answer in seen) > 2:
        raise AssertionError("a stack had more than two clients")
    _compare(subject, subject.run(), small, WITHIN, "a single client and a client in a stack", LAST)


def stacks_agree(subject: Subject) -> None:
    """The result of a client does not depend on the engine, nor on the other clients of its stack."""
    engines_agree(subject)
    neighbours_do_not_matter(subject)


def stacks_stay_whole(subject: Subject) -> None:
    """Clients can be trained as one stack: no hook raises an error there."""
    with patch.object(stacked_engine.log, "warning") as warned:
        fed = subject.fitted(2, sizes=(16, 16, 16), participation=1.0, engine="stacked")
    _nobody_quarantined(subject, [fed])
    if warned.called:
        text, *values = warned.call_args.args
        advice = f"Call no .item() and branch on no tensor in a client hook; use torch.where. {LAST}"
        expected = "clients that can be trained as one stack"
        raise ContractError(text % tuple(values), expected, advice, first_difference(subject))


def workers_give_the_same_bits(subject: Subject) -> None:
    """Threads give the same states and records as a single thread, bit for bit."""
    _same_bits(subject, subject.run(), subject.fitted(engine="workers", workers=3), "several threads and one", TWICE)


# stop and resume
def resumed_run_is_the_same(subject: Subject) -> None:
    """A resumed run, with another run in between, equals an uninterrupted run, bit for bit."""
    method, never = subject.method, subject.run()

    def another() -> None:
        subject.fitted(2, seed=4, epochs=1)

    def make() -> Federation:
        return federation(copy.deepcopy(method), **subject.setting)

    with tempfile.TemporaryDirectory() as folder:
        again = federations.stopped_and_resumed(Path(folder), make, ROUNDS, 2, another)
    advice = "Return everything that later rounds need as state of the server or the client. Attributes and globals are in no checkpoint."
    _same_bits(subject, never, again, "a resumed and an uninterrupted run", advice)


# numbers and order of clients
def renumbering_renumbers(subject: Subject) -> None:
    """Renumbering the clients renumbers the results, except for rounding, as the order of sums changes."""
    _needs_clients(subject)
    order, data = ORDER.tolist(), clients(subject.sizes, people=subject.people)

    def named(job: Job) -> Iterator[Answer]:
        """Random numbers follow the client."""
        yield from sequential(replace(job, ids=tuple(order[m] for m in job.ids)))

    whole: dict[str, Any] = {"batch_size": 64, "participation": 1.0, "epochs": 2, "tests": None}
    whole["solver"] = SGD(federations.RATES.get(subject.kind, 0.1))
    a = subject.fitted(**whole, data=data)
    b = subject.fitted(**whole, data=[data[m] for m in order], engine=named)
    _moved(subject, a)
    _same_but_renumbered(subject, a, b)


def _same_but_renumbered(subject: Subject, a: Federation, b: Federation) -> None:
    axes, second = federations.client_axes(a.trial), b.progress.tensors()
    bad = []
    for key, value in a.progress.tensors().items():
        for axis in axes.get(key, [0]):  # "given" begins after a round
            value = value.index_select(axis, ORDER)
        if not torch.allclose(value, second[key], rtol=0, atol=1e-9):
            bad.append(key)
    for r, s in zip(a.records, b.records, strict=True):
        weights = torch.tensor([r["weights"][m] for m in ORDER.tolist()])
        bad += ["weights"] * (not torch.allclose(weights, torch.tensor(s["weights"]), rtol=0, atol=1e-9))
    actual = f"a different {{}} with the clients in the order {ORDER.tolist()}"
    advice = "Use cohort.ids to look up state only: the number of a client must not change how it is treated."
    _require_none(subject, bad, actual, "the same results, in the new order", advice)


def _three_of_five(backwards: bool, t: int, share: float) -> tuple[Tensor, Record]:
    """Three of five clients a round, in one order or the other."""
    ids = ((0, 1, 3), (2, 3, 4), (0, 2, 4))[t % 3]
    return torch.tensor(ids[::-1] if backwards else ids), {}


def absent_clients_do_not_count(subject: Subject) -> None:
    """With absent clients, each entry of the state belongs to the right client, in any order of the cohort."""
    _needs_clients(subject)
    ends = []
    for backwards in (False, True):
        fed = subject.fitted(1, batch_size=64, contribution=CONTRIBUTION)
        trial = replace(fed.trial, presence=cast(Presence, SimpleNamespace(round=partial(_three_of_five, backwards))))
        now = fed.progress
        for _ in range(ROUNDS):
            now, _record = one_round(trial, now, ROUNDS + 1)
        ends.append(now.tensors())
    bad = [key for key, x in ends[0].items() if not torch.allclose(x, ends[1][key], rtol=0, atol=1e-9)]
    bad.sort(key=lambda key: key == "vector")  # a state is more specific
    actual = "a different {} with the same three of five clients in reverse order"
    expected = "the same state, since row k of a cohort is client cohort.ids[k]"
    advice = "Read state of all clients by state[key][cohort.ids], and write it by index_copy(0, cohort.ids, values)."
    _require_none(subject, bad, actual, expected, advice)


# text
VALUES = "Declare every hyper-parameter by number or choice: a number, a word, or true or false. Do not change how the dataclass compares."


def method_reads_back(subject: Subject) -> None:
    """The text and the copies of a method equal the method."""
    method = subject.method

    def require(same: bool, twin_name: str) -> None:
        if not same:
            raise ContractError(f"{twin_name} is a different method", f"{twin_name} equals {method}", VALUES)

    for rule in method.rules:
        require(hash(rule) == hash(copy.deepcopy(rule)), f"a copy of {type(rule).__name__}")
        name, pairs, _ = calls.read(text_of(rule))
        again = make_rules(CatalogueEntry((type(rule),), "", ""), read_values(pairs or (), name), name, name)
        require(again == [rule], f"the text {text_of(rule)!r}")
    for twin in (copy.copy(method), copy.deepcopy(method), Method(method.rules)):
        require(twin == method, "a copy")


# privacy
def private_stays(subject: Subject) -> None:
    """No report and no sent coordinate follows from private coordinates alone, be it scaled, shifted, or a round later.

    ``finish`` and ``upload`` are called again with different private coordinates, and with different samples. A number that the
    former change and the latter never do is no measurement on the client's data, but shows what is private.
    """
    trial = subject.run().trial
    private, n_params = trial.private, trial.model.n_params
    if private is None:
        raise NotApplicableError("no coordinates are private")
    follows: dict[str, tuple[Tensor, Tensor, str]] = {}
    # by the state after a visit, the state after the same visit with different private coordinates
    states: dict[bytes, State] = {}

    def key(state: State) -> bytes:
        return b"".join(x.numpy().tobytes() for x in state.values())

    def change(x: Tensor) -> Tensor:
        whole = x.dim() > 0 and x.shape[-1] in (n_params, len(private))
        return x + 0.1 * federations.normal(x.shape[-1]) * private[: x.shape[-1]] if whole else x

    def noting(cls: type[Rule], hook: str, original: Hook) -> Hook:
        def sent_by(rule: Rule, vector: Tensor, visit: Visit) -> tuple[dict[str, Tensor], State]:
            if hook == "upload":
                return {"update": original(rule, vector, visit).masked_fill(private[:n_params], 0)}, {}
            report, state = original(rule, vector, visit)
            sent = {f"report {k!r}": public(trial, x[None]) for k, x in report.items() if k not in rule.declared.stays}
            return sent, state

        def noted(rule: Rule, vector: Tensor, visit: Visit) -> Any:
            result, (sent, state) = original(rule, vector, visit), sent_by(rule, vector, visit)
            before = states.get(key(visit.state)) or tree_map(change, visit.state)
            done = None if visit.done is None else Trained(change(visit.done.begun), change(visit.done.trained))
            secret = replace(visit, received=change(visit.received), state=before, done=done)
            other, states[key(state)] = sent_by(rule, change(vector), secret)
            others = (replace(visit, oracle=_other_samples(visit.oracle, seed)) for seed in range(3))
            samples = [sent_by(rule, vector, with_others)[0] for with_others in others]
            for name, x in sent.items():
                by_secret, by_samples, _ = follows.get(name, (x != x, x != x, ""))
                by_samples = torch.stack([by_samples, *(x != each[name] for each in samples)]).any(0)
                follows[name] = by_secret | (x != other[name]), by_samples, name_of(cls, hook)
            return result

        return noted if hook in ("finish", "upload") else original

    with replaced(subject.method, noting):
        subject.fitted(participation=1.0)
    for name, (by_secret, by_samples, hook) in follows.items():
        if bool((by_secret & ~by_samples).any()):
            actual = f"private coordinates in the {name}, changed or not"
            advice = "Compute it from the other coordinates. Equipoise clears private ones only in vectors of all P or G coordinates."
            raise ContractError(actual, "private coordinates stay with their client", advice, hook)


def _other_samples(oracle: Oracle, seed: int) -> Oracle:
    """The same questions about other samples."""
    source = cast(Samples, oracle.source)
    batch = cast(Batch, source.content)
    x = cast(Tensor, batch.x)
    store = replace(batch, x=x + federations.normal(*x.shape, seed=seed), y=batch.y.flip(0))
    return Oracle(oracle.evaluator, replace(source, store=store), oracle.solver, oracle.schedule, oracle.n_params)


# the small and the uneven
FEW = "Look for a division by M - 1, n - 1, a spread or a sum over the other clients, and for an empty selection of few clients."


def one_client(subject: Subject) -> None:
    """A federation of one client trains, and can be resumed."""
    _needs_clients(subject)

    def make() -> Federation:
        return subject.federation(sizes=(13,), participation=1.0, tests=None)

    fed = make()
    fed.fit(ROUNDS, progress=False)
    _moved(subject, fed)
    for record in fed.records:
        if record["weights"] != [1.0]:
            actual, hook = f"the weights {record['weights']}", hooks_behind(subject.method, "server/0")
            raise ContractError(actual, "the weight 1 for the only client", FEW, hook)
    with tempfile.TemporaryDirectory() as folder:
        again = federations.stopped_and_resumed(Path(folder), make, ROUNDS, 1)
    _same_bits(subject, fed, again, "a resumed and an uninterrupted run", "See the check resume.")


def a_client_of_one_sample(subject: Subject) -> None:
    """A client with a single sample takes part like the others."""
    _needs_clients(subject)
    sizes = (9, 17, 12) if subject.kind == "batchnorm" else (1, 9, 17, 12)  # BatchNorm cannot train on one sample
    settings: dict[str, Any] = {"sizes": sizes, "participation": 1.0, "tests": None}
    a, b = subject.in_both_engines(2, **settings)
    _nobody_quarantined(subject, [a, b])
    _finite(subject, a)
    _moved(subject, a)
    _compare(subject, a, b, WITHIN, "engines 'sequential' and 'stacked'", LAST)
    if any(record["ids"] != [*range(len(sizes))] for record in a.records):
        raise AssertionError("a client did not take part")


def uneven_cohorts_and_batches(subject: Subject) -> None:
    """Rounds of two of five clients, with uneven batches, are deterministic, and depend on the seed."""
    _needs_clients(subject)
    settings: dict[str, Any] = {"participation": 0.4, "batch_size": 7, "epochs": 1, "tests": None}
    a, b, c = (subject.fitted(seed=seed, **settings) for seed in (11, 11, 12))
    _same_bits(subject, a, b, "two runs with one seed", TWICE)
    if not float((federations.learned(a) - federations.learned(c)).abs().max()) > 1e-6:
        actual, advice = "the same model with the seeds 11 and 12", "Look for a model or a step that is a constant."
        expected = "a different model for a different seed, which selects different clients and batches"
        raise ContractError(actual, expected, advice, hooks_behind(subject.method, ""))
    if any(len(record["ids"]) != 2 for record in a.records):
        raise AssertionError("not two clients a round")
    stack = subject.fitted(seed=11, **settings, engine="stacked")
    _compare(subject, a, stack, WITHIN, "engines 'sequential' and 'stacked'", LAST)


def float32_networks(subject: Subject) -> None:
    """No state changes its dtype, no client is quarantined, and both engines agree within the precision of float32."""
    net = federations.network(subject.kind).float()
    settings: dict[str, Any] = {"net": net, "tests": None, "epochs": 1}
    a, b = subject.in_both_engines(2, **settings)
    fresh, after = subject.federation(**settings).progress.tensors(), a.progress.tensors()
    bad = [key for key, x in fresh.items() if after[key].dtype != x.dtype]
    bad += ["given"] * (after.get("given", after["vector"]).dtype != torch.float32)
    actual = "a different dtype of {} after 2 rounds of a float32 network"
    advice = "Create state by torch.zeros_like of the tensor that it stores, and convert results by .to(x.dtype)."
    _require_none(subject, bad, actual, "states and models that keep their dtype", advice)
    _nobody_quarantined(subject, [a, b])
    _moved(subject, a)
    _compare(subject, a, b, 1e-3, "engines 'sequential' and 'stacked' with float32", LAST)


# what the server sees
def sees_what_it_states(subject: Subject) -> str:
    """The server uses no more of single clients than the rule declares in ``sees``."""
    _needs_clients(subject)
    method, last = subject.method, last_round(subject.method, subject.people)
    where = " or ".join(f"{type(rule).__name__}.sees" for rule in method.rules if rule.declared.sees == method.sees)
    advice = f"Declare what the server must see, one of {', '.join(SEES)}, or use less of single clients."
    stated = f"no more of single clients than sees = {method.sees!r}"
    if any(need.startswith("contribution") for need in method.needs):
        if method.sees != "matrix":
            raise ContractError("a need for contributions", "sees = 'matrix', as each model is judged", advice, where)
        return "the results do not depend on the contributions that the rule needs" * (not follows_contribution(last))
    if SEES.index(method.sees) <= SEES.index("sum") and (entries := kept_of_clients(last.trial)):
        raise ContractError(f"an entry for each client in {some(entries)}", stated, advice, where)
    for rule, report in zip(last.trial.method.rules, last.answer.reports, strict=True):
        long = [key for key, x in report.items() if x.dim() != 1] if rule.declared.sees == "scalars+sum" else []
        if long:
            raise ContractError(f"more than one number in {some(long)}", stated, advice, where)
    looks = looked_at(last)
    if SEES.index(looks) > SEES.index(method.sees):
        raise ContractError(f"a server that uses {looks!r}", stated, advice, where)
    less = SEES.index(looks) < SEES.index(method.sees)
    return f"the server used {looks!r} only: if that always holds, declare it in sees" if less else ""


# other surroundings
def sites_give_the_same_bits(subject: Subject) -> None:
    """Sites give the same bits as the simulator."""
    _needs_clients(subject)
    if find_spec("flwr") is None:
        raise NotApplicableError("Flower is not installed: pip install 'equipoise[flower]'")
    with tempfile.TemporaryDirectory() as folder:
        sites = federations.consortium(subject.method, **subject.setting, states=folder)
        sites.fit(ROUNDS, progress=False)
        bad = federations.site_differences(subject.run(), sites, Path(folder))
    advice = "Use on the server only reports that stays does not keep at the site, and on a client only its state and message."
    _require_none(subject, bad, "a different {} between sites", "the bits of the simulator", advice)


def with_numbers(people: bool = False) -> dict[str, Any]:
    """A network with one output, and clients whose targets are numbers."""
    data = [(x, x[:, 0] - 2 * x[:, 1] + 0.5 * x[:, 2].square(), *s) for x, _, *s in clients(people=people)]
    sets = {"server_validation": data[1][:2], "tests": {"a": data[2]}}
    # numbers have no positive class
    return {"net": federations.network(outputs=1), "data": data, "positive": None, **sets}


def numbers_to_predict(subject: Subject, task: str = "regression") -> Federation:
    """A rule that needs no classes trains on a regression, with the same result in both engines."""
    try:
        subject.method.require(task_of(task))
    except MethodError as error:
        raise NotApplicableError(str(error)) from None
    a, b = subject.in_both_engines(6, task=task, **with_numbers(subject.people))
    _nobody_quarantined(subject, [a, b])
    _finite(subject, a)
    _compare(subject, a, b, 1e-9, "engines 'sequential' and 'stacked'", LAST)
    return a
