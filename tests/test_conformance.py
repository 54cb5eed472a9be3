"""The kit that checks rules: a good rule passes, and for every check a broken rule fails it with a sentence that helps."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Cohort, Out, Rule, Setup, State, Visit
from equipoise.federation.method import Method
from equipoise.testing import CHECKS, Conformance, RuleError, check_rule, conformance as kit, parametrize_with_checks
from run_helpers import equipoise

Given = tuple[State, Cohort]


# good rules
@dataclass(frozen=True)
class Prox(Rule):
    """Stay near the received model."""

    mu: float = eq.number(0.01, low=0)

    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return self.mu * (theta - visit.start)


@dataclass(frozen=True)
class Loudest(Rule):
    """Weigh clients by a running mean of their loss."""

    owns = frozenset({"weights"})
    sees = "scalars+sum"
    beta: float = eq.number(0.5, low=0, high=1)

    def server_state(self, setup: Setup) -> State:
        return {"loss": torch.zeros_like(setup.sizes)}

    def finish(self, theta: Tensor, visit: Visit) -> Given:
        return {"loss": visit.oracle.loss(visit.received)}, visit.state

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        i = cohort.ids
        loss = (1 - self.beta) * state["loss"][i] + self.beta * cohort.reports["loss"].to(cohort.weights.dtype)
        return {"loss": state["loss"].index_copy(0, i, loss)}, replace(cohort, weights=loss / loss.sum())


@dataclass(frozen=True)
class Head(Rule):
    """Every client keeps its own classifier."""

    def private(self, model: eq.Model) -> Tensor:
        return model.head


# one broken rule for each check
@dataclass(frozen=True)
class OnlyReport(Rule):
    def finish(self, theta: Tensor, visit: Visit) -> Any:
        return {"loss": visit.oracle.loss(visit.received)}


@dataclass(frozen=True)
class Number(Rule):
    def finish(self, theta: Tensor, visit: Visit) -> Any:
        return {"loss": 3.0}, visit.state


@dataclass(frozen=True)
class OnlyCohort(Rule):
    def aggregate(self, state: State, cohort: Cohort) -> Any:
        return cohort


@dataclass(frozen=True)
class Short(Rule):
    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return theta[..., :5]


@dataclass(frozen=True)
class ShortMask(Rule):
    def private(self, model: eq.Model) -> Tensor:
        return torch.zeros(model.n_params, dtype=torch.bool)


@dataclass(frozen=True)
class NewState(Rule):
    def finish(self, theta: Tensor, visit: Visit) -> Given:
        return {}, {"last": theta}


@dataclass(frozen=True)
class Raises(Rule):
    def finish(self, theta: Tensor, visit: Visit) -> Given:
        return {"loss": visit.state["loss"]}, visit.state


@dataclass(frozen=True)
class Frozen(Rule):
    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        return 0 * update


@dataclass(frozen=True)
class NotANumber(Rule):
    def finish(self, theta: Tensor, visit: Visit) -> Given:
        return {"loss": visit.oracle.loss(visit.received).log().log()}, visit.state


@dataclass(frozen=True)
class InPlace(Rule):
    def client_state(self, setup: Setup) -> State:
        return {"visits": torch.zeros(1)}

    def finish(self, theta: Tensor, visit: Visit) -> Given:
        visit.state["visits"] += 1
        return {}, visit.state


@dataclass(frozen=True)
class Noisy(Rule):
    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return torch.randn_like(theta)


@dataclass(frozen=True)
class Listed(Rule):
    pull: Any = 0.1

    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return self.pull["x"] * theta


@dataclass(frozen=True)
class WholeSum(Rule):
    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return 0.1 * (theta - visit.start).abs().sum() * theta


@dataclass(frozen=True)
class Pairs(Rule):
    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return theta * (1.1 if theta.shape[0] == 2 else 1.0)


@dataclass(frozen=True)
class Item(Rule):
    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return theta * 0.1 if (theta - visit.start).norm(dim=-1).item() > 0.1 else 0 * theta


@dataclass(frozen=True)
class Threaded(Rule):
    def correction(self, theta: Tensor, visit: Visit) -> Tensor:
        return theta * (1.0 if threading.current_thread() is threading.main_thread() else 1.1)


MEMORY: dict[int, Tensor] = {}


@dataclass(frozen=True)
class Remembers(Rule):
    sees = "sum"

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        step = cohort.step()
        MEMORY[cohort.t] = step
        return state, cohort if cohort.t == 0 else replace(cohort, shift=0.1 * MEMORY[cohort.t - 1])


@dataclass(frozen=True)
class Favourites(Rule):
    owns = frozenset({"weights"})
    sees = "sum"

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        weights = 1.0 + cohort.ids.to(cohort.weights.dtype)
        return state, replace(cohort, weights=weights / weights.sum())


@dataclass(frozen=True)
class ByPosition(Rule):
    owns = frozenset({"weights"})
    sees = "scalars+sum"

    def server_state(self, setup: Setup) -> State:
        return {"loss": torch.ones_like(setup.sizes)}

    def finish(self, theta: Tensor, visit: Visit) -> Given:
        return {"loss": visit.oracle.loss(visit.received)}, visit.state

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        M = len(cohort.ids)
        loss = state["loss"][:M] / 2 + cohort.reports["loss"].to(cohort.weights.dtype)
        return {"loss": torch.cat([loss, state["loss"][M:]])}, replace(cohort, weights=loss / loss.sum())


@dataclass(frozen=True)
class Leaks(Rule):
    def private(self, model: eq.Model) -> Tensor:
        return model.head

    def finish(self, theta: Tensor, visit: Visit) -> Given:
        return {"bias": theta[..., -3:]}, visit.state


@dataclass(frozen=True)
class Others(Rule):
    owns = frozenset({"weights"})

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        weights = (1 - cohort.weights) / (len(cohort.ids) - 1)
        return state, replace(cohort, weights=weights)


@dataclass(frozen=True)
class Spread(Rule):
    def finish(self, theta: Tensor, visit: Visit) -> Given:
        n = visit.oracle.source.sizes.to(theta.dtype)
        return {"spread": visit.oracle.loss(visit.received) / (n - 1)}, visit.state


@dataclass(frozen=True)
class Trimmed(Rule):
    owns = frozenset({"step"})

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        updates = cohort.updates.sort(0).values
        return state, replace(cohort, moved=(updates[1:-1] if len(updates) > 1 else updates).mean(0))


@dataclass(frozen=True)
class Double(Rule):
    sees = "sum"

    def server_state(self, setup: Setup) -> State:
        return {"last": torch.zeros(setup.n_params, dtype=torch.float64)}

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        return {"last": cohort.step()}, cohort


@dataclass(frozen=True)
class Peeks(Rule):
    owns = frozenset({"weights"})
    sees = "sum"

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        length = cohort.updates.norm(dim=1)
        return state, replace(cohort, weights=length / length.sum())


@dataclass(frozen=True)
class StaysAtHome(Rule):
    owns = frozenset({"weights"})
    stays = frozenset({"loss"})

    def finish(self, theta: Tensor, visit: Visit) -> Given:
        return {"loss": visit.oracle.loss(visit.received)}, visit.state

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        loss = cohort.reports["loss"].to(cohort.weights.dtype)
        return state, replace(cohort, weights=loss / loss.sum())


@dataclass(frozen=True)
class CountsClasses(Rule):
    def loss(self, out: Out, visit: Visit) -> Tensor:
        return 0.1 * out.mean((out.logits.argmax(-1) != out.y).to(out.logits.dtype) * out.logits[..., 1])


# branches that only some updates and some data reach
@dataclass(frozen=True)
class ClipsStack(Rule):
    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        return update * (1 / update.norm()).clamp(max=1)


@dataclass(frozen=True)
class ClipsIf(Rule):
    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        return update / update.norm() if update.norm() > 1 else update


@dataclass(frozen=True)
class ClipsInPlace(Rule):
    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        length = update.norm(dim=-1, keepdim=True)
        if bool((length > 1).any()):
            update /= length.clamp(min=1)
        return update


@dataclass(frozen=True)
class ClipsByPosition(Rule):
    owns = frozenset({"weights"})

    def aggregate(self, state: State, cohort: Cohort) -> Given:
        weights = cohort.weights
        if cohort.updates.norm(dim=1).max() > 2:
            weights = torch.arange(1.0, len(weights) + 1, dtype=weights.dtype)
        return state, replace(cohort, weights=weights / weights.sum())


@dataclass(frozen=True)
class DropsTiny(Rule):
    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        return update * (update.norm() > 0.02)


@dataclass(frozen=True)
class ByPeople(Rule):
    def loss(self, out: Out, visit: Visit) -> Tensor | float:
        return 0.0 if out.s is None else (out.s[..., 0] == 1).double().mean() * out.mean(out.logits.square().mean(-1))


@dataclass(frozen=True)
class Rarer(Rule):
    """Count people of the second value of the first attribute more."""

    times: float = eq.number(3.0, low=0)

    def loss(self, out: Out, visit: Visit) -> Tensor:
        assert out.s is not None
        more = (self.times - 1) * (out.s[..., 0] == 1)
        return out.mean(more * out.task.losses(out.logits, out.y))


@dataclass(frozen=True)
class Shows(Head):
    """Report something that is made of private coordinates."""

    how: str = eq.choice("scaled", "shifted", "squashed", "last", "by size")

    def client_state(self, setup: Setup) -> State:
        return {"bias": torch.zeros(3, dtype=setup.theta.dtype)}

    def finish(self, theta: Tensor, visit: Visit) -> Given:
        bias = theta[..., -3:]
        reports = {
            "scaled": 2 * bias,
            "shifted": bias + 1,
            "squashed": bias.tanh(),
            "last": -visit.state["bias"],
            "by size": bias.sum(-1) / visit.oracle.source.sizes,
        }
        return {self.how: reports[self.how]}, {"bias": bias}


@dataclass(frozen=True)
class Uploads(Head):
    """Move a private coordinate into those that are sent."""

    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        return update + update[..., -1:]


@dataclass(frozen=True)
class Measures(Head):
    """What may be reported: measurements on the data, whatever model they are made with, and other coordinates."""

    def finish(self, theta: Tensor, visit: Visit) -> Given:
        report = {
            "loss": visit.oracle.loss(visit.received),
            "accuracy": visit.oracle.accuracy(visit.trained),
            "update": 2 * (theta - visit.start),
            "first": theta[..., :5].norm(dim=-1),
        }
        return report, visit.state


BROKEN: dict[
    str, tuple[Rule, str, str]
] = {  # the rule that fails a check and no other, the hook, what is found or to be done
    "returns": (OnlyReport(), "OnlyReport.finish", r"\(report, state\), two dictionaries of tensors"),
    "trains": (Raises(), "Raises.finish", "KeyError: 'loss'"),
    "pure": (InPlace(), "InPlace.finish", "x \\+ 1 instead of x \\+= 1"),
    "text": (Listed({"x": 0.1}), "", "unhashable type: 'dict'.*every hyper-parameter by number or choice"),
    "stack": (Item(), "Item.correction", r"no \.item\(\)"),
    "engines": (WholeSum(), "WholeSum.correction", "over the last dimensions only"),
    "workers": (Threaded(), "Threaded.correction", "several threads and one"),
    "resume": (Remembers(), "Remembers.aggregate", "Attributes and globals are in no checkpoint"),
    "renumbering": (Favourites(), "Favourites.aggregate", "the number of a client must not change"),
    "absent": (ByPosition(), "ByPosition.aggregate", r"state\[key\]\[cohort\.ids\]"),
    "private": (Leaks(), "Leaks.finish", "private coordinates in the report 'bias'"),
    "one client": (Others(), "Others.aggregate", "division by M - 1"),
    "one sample": (Spread(), "Spread.finish", "infinity"),
    "uneven": (Trimmed(), "Trimmed.aggregate", "not finite"),
    "float32": (Double(), "Double.aggregate", "zeros_like"),
    "sees": (Peeks(), "Peeks.sees", "uses 'scalars\\+sum'|uses 'matrix'"),
    "sites": (StaysAtHome(), "StaysAtHome.aggregate", "KeyError: 'loss'"),
    "regression": (CountsClasses(), "CountsClasses.loss", "IndexError"),
}
ALSO = [  # frequent errors, and the first check that reports them
    (Number(), "returns", "Number.finish", r"\(a dictionary of loss: float, a dictionary of nothing\)"),
    (OnlyCohort(), "returns", "OnlyCohort.aggregate", "returned Cohort"),
    (Short(), "returns", "Short.correction", r"expected  a tensor of shape \[73\]"),
    (ShortMask(), "returns", "ShortMask.private", "of the 94 coordinates of the model, buffers too"),
    (NewState(), "returns", "NewState.finish", "every key of the state"),
    (Frozen(), "trains", "Frozen.upload", "an unchanged model"),
    (NotANumber(), "trains", "NotANumber.finish", "holds NaN"),
    (Pairs(), "engines", "Pairs.correction", "a client in a stack"),
    (Noisy(), "pure", "Noisy.correction", r"visit\.normal\(\)"),
    (ClipsStack(), "engines", "ClipsStack.upload", "with large steps"),
    (ClipsIf(), "engines", "ClipsIf.upload", "with large steps"),
    (ClipsInPlace(), "pure", "ClipsInPlace.upload", "changed its arguments [(]with large steps"),
    (ClipsByPosition(), "absent", "ClipsByPosition.aggregate", "with large steps"),
    (DropsTiny(), "engines", "DropsTiny.upload", "with small steps"),
    (ByPeople(), "engines", "ByPeople.loss", "sensitive attributes"),
    (Uploads(), "private", "Uploads.upload", "private coordinates in the update"),
    *(
        (Shows(how), "private", "Shows.finish", f"private coordinates in the report '{how}'")
        for how in ("scaled", "shifted", "squashed", "last", "by size")
    ),
]


@pytest.mark.slow
def test_good_rules_pass() -> None:
    """Weights, a penalty and private layers together; what they need is there, and nothing is left out."""
    conformance = check_rule(Method((Prox(mu=0.1), Head(), Loudest())), progress=False)
    assert conformance.broken == conformance.skipped == {}
    assert len(conformance.outcomes) == len(CHECKS) >= 12
    assert sum(each.seconds for each in conformance.outcomes) > 0


def broken(rule: Rule, leave: Callable[[str], bool] = lambda _: False) -> Conformance:
    """What came of the checks of a rule, without those to ``leave`` out."""
    skip = {check.name: "of another test" for check in CHECKS if leave(check.name)}
    with pytest.raises(RuleError) as raised:
        check_rule(rule, skip=skip, progress=False)
    return raised.value.conformance


def test_every_check_can_fail() -> None:
    assert list(BROKEN) == [check.name for check in CHECKS]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told_what_to_do(name: str) -> None:
    rule, hook, text = BROKEN[name]
    error = broken(rule, lambda other: other != name).broken[name]
    assert hook in error.hook
    assert re.search(text, str(error), flags=re.S), str(error)


@dataclass(frozen=True)
class Said(Rarer):
    """Declares that it reads s."""

    needs = frozenset({"sensitive"})


def test_a_rule_that_needs_sensitive_attributes_has_them() -> None:
    chosen = ("trains", "renumbering", "sees", "sites", "regression")
    skip = {check.name: "for speed" for check in CHECKS if check.name not in chosen}
    conformance = check_rule(Rarer(), skip=skip, progress=False)
    remark = next(each.remark for each in conformance.outcomes if each.check.name == "trains")
    said = "only with sensitive attributes, which all data of the checks therefore have"
    assert remark == f'{said}. Declare it: needs = frozenset({{"sensitive"}})'
    conformance = check_rule(Said(), skip=skip, progress=False)
    assert next(each.remark for each in conformance.outcomes if each.check.name == "trains") == said


def test_measurements_with_private_coordinates_are_no_leak() -> None:
    assert (
        not check_rule(Measures(), skip=leaving("private"), progress=False).skipped.keys() - leaving("private").keys()
    )


def test_checks_that_are_not_run_are_counted() -> None:
    conformance = broken(Raises())
    assert list(conformance.document) == ["returns", "trains"]
    first, *lines = str(conformance).splitlines()
    assert first.startswith(f"{Raises.__name__}: 1 passed, 1 failed, 0 skipped in ")
    assert first.endswith(f"; {len(CHECKS) - 2} were not run, as trains failed")
    assert "skipped" not in "".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_fails_that_check_and_no_other(name: str) -> None:
    conformance = broken(BROKEN[name][0])
    assert list(conformance.broken) == [name], str(conformance)


@pytest.mark.parametrize(("rule", "name", "hook", "text"), ALSO, ids=lambda value: type(value).__name__)
def test_what_is_often_done(rule: Rule, name: str, hook: str, text: str) -> None:
    error = broken(rule, lambda other: other not in ("returns", "trains", name)).broken[name]
    assert hook in error.hook
    assert re.search(text, str(error), flags=re.S), str(error)


# ways to call it
@parametrize_with_checks([Prox(mu=2)])
def test_as_a_test_of_ones_own(rule: Rule, check: Callable[[Rule], None]) -> None:
    assert rule == Prox(mu=2)
    check(rule)


def test_cases_are_named() -> None:
    names = [case.id for case in parametrize_with_checks([Prox(mu=2), "fedheal"]).args[1]]
    assert len(set(names)) == 2 * len(CHECKS)
    assert {"Prox(mu=2)-one-client", "fedheal-sees"} <= set(names)


def leaving(name: str) -> dict[str, str]:
    """All checks but one, and why they are left out."""
    return {check.name: "for speed" for check in CHECKS if check.name != name}


def test_what_does_not_apply_is_skipped_with_the_reason() -> None:
    assert check_rule("fedavg", skip=leaving("private")).skipped["private"] == "no coordinates are private"
    assert "there are no clients" in check_rule("centralised", skip=leaving("renumbering")).skipped["renumbering"]
    assert "cffl needs classes" in check_rule("cffl", skip=leaving("regression")).skipped["regression"]


def test_a_wrong_name_is_told() -> None:
    with pytest.raises(ValueError, match=r"Unknown check 'renumber'\. Did you mean 'renumbering'\?"):
        check_rule(Prox(), skip={"renumber": "it need not hold"})


def test_less_than_is_stated_is_a_remark() -> None:
    outcome = next(each for each in check_rule(Silent(), skip=leaving("sees")).outcomes if each.check.name == "sees")
    assert outcome.remark == "the server used 'sum' only: if that always holds, declare it in sees"


@dataclass(frozen=True)
class Silent(Rule):
    def aggregate(self, state: State, cohort: Cohort) -> Given:
        return state, cohort


def test_slow_checks_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kit, "SLOW", 0.0)
    check_rule(Prox(), skip=leaving("engines"))
    assert (
        capsys.readouterr().err
        == "still checking engines: a stack of clients and single clients give the same result\n"
    )


OWN = """
from dataclasses import dataclass
import equipoise as eq
@dataclass(frozen=True)
class Prox(eq.Rule):
    mu: float = eq.number(0.01, low=0)
    def correction(self, theta, visit):
        return self.mu * (theta - visit.start)
@dataclass(frozen=True)
class Wrong(eq.Rule):
    def finish(self, theta, visit):
        return {"loss": visit.los}, visit.state
"""


def test_on_the_command_line(equipoise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tuple(check for check in CHECKS if check.name in ("returns", "trains", "text", "private"))
    monkeypatch.setattr(kit, "CHECKS", chosen)
    (tmp_path / "mine.py").write_text(OWN)
    good = equipoise("methods", f"{tmp_path}/mine.py:Prox(mu=2)", "--check")
    assert (good.status, good.err) == (0, "")
    assert "3 passed, 0 failed, 1 skipped" in good.out
    bad = equipoise("methods", f"{tmp_path}/mine.py:Wrong", "--check")
    assert bad.status == 1
    assert bad.err == f"error: {tmp_path}/mine.py:Wrong fails trains.\n"
    assert "hook      Wrong.finish" in bad.out
    assert "AttributeError: 'Visit' object has no attribute 'los'" in bad.out
    document = json.loads(equipoise("methods", f"{tmp_path}/mine.py:Wrong", "--check", "--json").out)
    outcomes = [each["outcome"] for each in document[f"{tmp_path}/mine.py:Wrong"].values()]
    assert outcomes == ["passed", "failed"]
    nothing = equipoise("methods", "--check")
    assert (nothing.status, nothing.out) == (2, "")
    assert nothing.err.startswith("error: --check needs a method")
