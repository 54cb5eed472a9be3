"""What a rule says that the server must see is what it must see: the last round of every method is replayed with other answers.

The answers are changed ever less, so that ever more of what the server learns stays as it was. The first change that it does not
notice, in the model, in its state, and in what clients get, tells what it looks at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import cast

import pages
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.maths import Mask
from equipoise.core.rule import SEES, Cohort, Rule, Sees, Setup, State, told
from equipoise.engines.job import Answer, Job
from equipoise.federation import guard
from equipoise.federation.method import Method, parse
from equipoise.federation.round import one_round
from equipoise.federation.trial import Progression, Trial
from equipoise.methods import METHODS
from equipoise.system.tree import flatten, tree_map
from helpers import N_CLASSES, Unstable, client_axes, fast_first, federation, normal, watched

PAGE = Path(__file__).parents[1] / "docs/security.md"
ROUNDS = 3
CONTRIBUTION = (0.5, 0.9, 0.6, 0.4, 0.7)
SUMS = ("scaffold+fedga", "fedproto+qffl", "fedproto+fedheal")
OTHERS = {"cffl": ["cffl(theta_u=0.5)"]}  # forms without a preset of which a site keeps or sends something else
FORMS = {n: [n, *(f"{n}:{preset}" for preset in entry.presets), *OTHERS.get(n, ())] for n, entry in METHODS.items()}
ALL = [
    *(form for name, forms in FORMS.items() if name != "centralised" for form in forms),
    *SUMS,
]  # which has no clients


# one round, and what came of it
@dataclass(frozen=True)
class Look(Rule):
    """Note the cohorts that made the steps, and change nothing."""

    notes: tuple[list[Cohort], ...]

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        self.notes[0].append(cohort)
        return state, given


@dataclass(frozen=True)
class Replay:
    """The last round of a run: what was there ``before`` it, what clients sent, and what the server made of it."""

    trial: Trial
    before: Progression
    answer: Answer
    received: Tensor
    cohort: Cohort

    def outcome(self, updates: Tensor, reports: list[State]) -> dict[str, Tensor]:
        """All that the server holds and hands out after the round, had clients sent these ``updates`` [M, G] and ``reports``."""

        def engine(job: Job) -> Iterator[Answer]:
            yield replace(self.answer, trained=self.received + updates, reports=reports)

        after, _ = one_round(replace(self.trial, engine=engine), self.before, ROUNDS)
        found = {"vector": after.vector, "server": after.server}
        return flatten(found if after.given is None else {**found, "given": after.given})

    def notices(self, updates: Tensor, reports: list[State]) -> bool:
        """Whether the server does anything else than it did."""
        was, now = self.plain, self.outcome(updates, reports)
        assert was.keys() == now.keys()
        return any(not torch.allclose(was[k].double(), now[k].double(), rtol=1e-8, atol=1e-8) for k in was)

    @cached_property
    def plain(self) -> dict[str, Tensor]:
        """What came of the round as it was."""
        return self.outcome(self.updates, self.answer.reports)

    @property
    def updates(self) -> Tensor:
        """What was sent [M, G]."""
        return self.answer.trained - self.received

    @property
    def weights(self) -> Tensor:
        """Weights of the updates in the step [M, T], for each tensor."""
        c = self.cohort.weights if self.cohort.coefficients is None else self.cohort.coefficients
        return c if c.dim() == 2 else c[:, None].expand(-1, len(self.cohort.layout))

    @property
    def pair(self) -> list[int]:
        """Rows of the two clients that counted most."""
        return self.weights.abs().sum(1).topk(2).indices.tolist()

    def counted(self) -> Tensor:
        """Coordinates [G] that both clients of the pair hold and that count in the step."""
        c, shape = self.cohort, self.updates.shape
        held = torch.ones(shape, dtype=torch.bool) if c.held is None else c.held
        masks = (c.mask, c.updates), (c.buffer_mask, c.buffer_updates)
        return (held & torch.cat([dense(mask, x) for mask, x in masks], 1))[self.pair].all(0)


def dense(mask: Mask | None, like: Tensor) -> Tensor:
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    return mask if isinstance(mask, Tensor) else mask.dense().bool()


@cache
def last_round(text: str) -> Replay:
    """The last of the rounds of a method, in which two of five clients are absent and BatchNorm has statistics."""
    seen: list[tuple[Job, Answer]] = []
    look = Look(([],))
    method = Method((*parse(text).rules, look), text)
    settings = {"kind": "batchnorm", "contribution": CONTRIBUTION, "solver": eq.SGD(0.5), "epochs": 1}  # large updates
    fed = federation(method, engine=watched(seen), **settings)
    fed.fit(ROUNDS - 1, progress=False)
    before = fed.progress
    del seen[:]
    one_round(fed.trial, before, ROUNDS)
    jobs, answers = zip(*seen, strict=True)
    assert all(job is jobs[0] for job in jobs)
    assert sorted(row for answer in answers for row in answer.rows) == list(range(len(jobs[0].ids)))
    order = torch.tensor([row for answer in answers for row in answer.rows]).argsort()
    trained, reports, states = (
        tree_map(lambda *x: torch.cat(x)[order], *parts)
        for parts in zip(*((a.trained, a.reports, a.states) for a in answers), strict=True)
    )
    sent = Answer(tuple(range(len(order))), trained, reports, states)
    return Replay(fed.trial, before, sent, jobs[0].received, look.notes[0][-1])


# other answers
def noise(r: Replay, seed: int) -> tuple[Tensor, list[State]]:
    """Nothing is as it was."""
    updates = r.updates + 0.01 * normal(*r.updates.shape, seed=seed)
    return updates, tree_map(lambda x: x.roll(1, 0) + 0.01, r.answer.reports)


def shifted(r: Replay, seed: int) -> tuple[Tensor, list[State]]:
    """The sums are as they were: of the updates by their weights, of the reports as rules add them up."""
    change = 0.05 * normal(r.updates.shape[1], seed=seed) * r.counted()
    rules = zip(r.trial.method.rules, r.answer.reports, strict=True)
    return moved(r, change), [with_sums(report, r.pair) for _, report in rules]


def turned(r: Replay, seed: int) -> tuple[Tensor, list[State]]:
    """The sums are as they were, and so are all reports, and the length of every update and of each of its tensors.

    Two updates are reflected at their weighted sum, so that their products with others are not what they were.
    """
    (i, j), P, on = r.pair, r.cohort.updates.shape[1], r.counted()
    draw = normal(len(on), seed=seed) * on
    updates = moved(r, 0.05 * draw * (torch.arange(len(on)) >= P))
    start = 0
    for n, w in zip(r.cohort.layout, r.weights.T, strict=True):
        part = slice(start, start := start + n)
        total = (w[i] * updates[i, part] + w[j] * updates[j, part]) * on[part]
        v = draw[part] - draw[part] @ total / total.square().sum().clamp(min=1e-300) * total
        if v.norm() > 1e-6:  # one coordinate cannot be turned
            v = v / v.norm()
            updates[r.pair, part] -= 2 * (updates[r.pair, part] @ v)[:, None] * v
    return updates, r.answer.reports


def moved(r: Replay, change: Tensor) -> Tensor:
    """The updates [M, G] with a ``change`` [G] between the pair, by weight."""
    i, j = r.pair
    each = [w.expand(n, -1) for n, w in zip(r.cohort.layout, r.weights.T, strict=True)]
    W = torch.cat([*each, r.cohort.weights.expand(len(change) - sum(r.cohort.layout), -1)]).T
    updates = r.updates
    updates[i] += W[j] * change
    updates[j] -= W[i] * change
    return updates


def with_sums(report: State, pair: list[int]) -> State:
    """Other reports of the pair with the same sums."""
    i, j = pair
    report = {k: x.clone() for k, x in report.items()}
    for k, x in report.items():
        if k != "share":
            x[i] += 0.1
            x[j] -= 0.1
        x[[i, j]] = x[[j, i]]  # who reported which is not seen either
    return report


# with four clients the defaults of these are the plain mean, and Krum's weights, a choice, are not known before the round
OF_FOUR = {"trimmed-mean": "trimmed-mean(beta=0.25)", "krum": "krum(m=2)", "multi-krum": "multi-krum(m=2)"}


@pytest.fixture(autouse=True)
def _any_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed reports need not be such as clients make."""
    monkeypatch.setattr(guard, "out_of_range", lambda *_: {})


def looked_at(text: str) -> Sees:
    """What the server looks at; seeds are several, as what is judged by its accuracy may change without notice."""
    r = last_round(OF_FOUR.get(text, text))
    if "krum" in text:
        r = replace(r, cohort=replace(r.cohort, weights=r.cohort.uniform))
    for sees, change in (("nothing", noise), ("sum", shifted), ("scalars+sum", turned)):
        if not any(r.notices(*change(r, seed)) for seed in range(3)):
            return cast(Sees, sees)
    return "matrix"


# what rules say
@pytest.mark.parametrize("text", fast_first(ALL))
def test_the_server_sees_what_it_must(text: str) -> None:
    """No less would do, and no more is asked for: that each client's model is judged before the first round counts too."""
    method = parse(text)
    if any(need.startswith("contribution") for need in method.needs):
        assert method.sees == "matrix"
        assert follows_contribution(text)
    else:
        assert method.sees == looked_at(text)


def follows_contribution(text: str) -> bool:
    """Whether what clients get depends on what they reach alone, in the first round (submodels) or in the last (rewards)."""
    last = last_round(text)
    other = replace(last.trial, contribution=torch.tensor(CONTRIBUTION, dtype=torch.float64).roll(1))
    for t in (0, ROUNDS - 1):
        r = replace(last, before=replace(last.before, t=t))
        now = replace(r, trial=other).plain
        if any(not torch.equal(r.plain[k], now[k]) for k in now):
            return True
    return False


@pytest.mark.parametrize("text", [text for text in ALL if SEES.index(parse(text).sees) <= SEES.index("sum")])
def test_who_sees_sums_keeps_nothing_of_single_clients(text: str) -> None:
    r = last_round(text)
    assert not kept_of_clients(r.trial)
    assert r.before.given is None


def kept_of_clients(trial: Trial) -> list[str]:
    """What the server keeps with an entry for each client."""
    return [name for name, axes in client_axes(trial).items() if name.startswith("server") and axes]


@dataclass(frozen=True)
class Memory(Rule):
    """A state of the server that has five entries: always, or as there are so many clients here."""

    each: bool

    def server_state(self, setup: Setup) -> State:
        return {"x": torch.zeros(2, setup.n_clients if self.each else 5)}


def test_what_is_kept_of_clients_grows_with_their_number() -> None:
    of = {each: federation(Memory(each)).trial for each in (True, False)}
    assert all(len(e.data) == 5 for e in of.values())
    assert {each: kept_of_clients(e) for each, e in of.items()} == {True: ["server/0/x"], False: []}


@pytest.mark.parametrize("text", [text for text in ALL if parse(text).sees == "scalars+sum"])
def test_scalars_are_few(text: str) -> None:
    """Beside reports that are summed, a client tells one number at a time."""
    r = last_round(text)
    for rule, report in zip(r.trial.method.rules, r.answer.reports, strict=True):
        if rule.sees == "scalars+sum":
            assert all(x.dim() == 1 for x in report.values())


@dataclass(frozen=True)
class Silent(Rule):
    """Act on the server and say nothing of what it sees."""

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, cohort


def test_a_rule_that_says_nothing() -> None:
    assert Silent().sees == "matrix"
    assert Rule().sees == Unstable().sees == "sum"


@pytest.mark.parametrize(
    ("method", "sees"),
    [
        (Method(), "sum"),
        (parse("standalone"), "nothing"),
        (parse("standalone+fedproto"), "sum"),
        (parse("scaffold+saga"), "scalars+sum"),
        (parse("saga+scaffold"), "scalars+sum"),
        (parse("fedproto+fedheal"), "matrix"),
        (Method((Silent(), *parse("fedprox").rules)), "matrix"),
    ],
)
def test_a_sum_sees_the_most_that_a_part_must(method: Method, sees: str) -> None:
    assert method.sees == sees


def test_every_word_is_explained() -> None:
    assert re.findall(r"^\| `([a-z+]+)` \| [a-z]", PAGE.read_text(), flags=re.M)[: len(SEES)] == list(SEES)


# the table of what leaves a site
def table() -> dict[str, list[str]]:
    """The cells of each method's row."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in pages.what_leaves().splitlines()[2:]]
    return {row[0].strip("`"): row[1:] for row in rows}


def test_the_table_has_a_row_for_every_method() -> None:
    assert list(table()) == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_what_leaves_a_site_is_in_the_table(name: str) -> None:
    model, reports, kept, sees = table()[name]
    rounds = [last_round(form) for form in FORMS[name]]
    assert sees.split("`")[1] == parse(name).sees
    assert sent_as(rounds) == {word for word in WORDS if word in model}
    assert named(reports) == shapes(told(r.trial.method.rules, r.answer.reports) for r in rounds)
    assert named(kept) == shapes(r.answer.states for r in rounds)
    assert ("BatchNorm" in kept or "the whole model" in kept) == any(r.trial.private is not None for r in rounds)
    assert (kept == "nothing") == all(not flatten(r.answer.states) and r.trial.private is None for r in rounds)
    assert ("none" in reports) == any(not flatten(r.answer.reports) for r in rounds)


WORDS = ("whole", "nothing", "without", "submodel", "clipped")


def sent_as(rounds: list[Replay]) -> set[str]:
    """What sort of model is sent, in words of the table."""
    words = set()
    for r in rounds:
        private = r.trial.private
        words |= {"nothing" if private.all() else "without"} if private is not None else set()
        words |= {"submodel"} if r.cohort.held is not None else set()
        words |= {"clipped"} if r.trial.method.overriding("upload") else set()
    return words or {"whole"}


def named(cell: str) -> dict[str, str]:
    """Names in a cell with their shapes; ``"x=y"`` and the hyper-parameter of CFFL are none."""
    return {name: shape for name, shape in re.findall(r"`(\w+)`(?: \[(.*?)\])?", cell) if name != "theta_u"}


def shapes(trees: Iterator[list[State]]) -> dict[str, str]:
    """Names of what clients send or keep, with the shape of one client's in letters of the page."""
    found: dict[str, str] = {}
    for tree in trees:
        for path, x in flatten(tree).items():
            shape = ", ".join(LETTERS[n] for n in x.shape[1:])
            assert found.setdefault(path.rpartition("/")[2], shape) == shape
    return found


LETTERS = {N_CLASSES: "C", 7: "D", 24: "h", 80: "P", 94: "G", 1: "1"}  # of the network with BatchNorm
