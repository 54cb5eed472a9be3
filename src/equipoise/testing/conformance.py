"""All checks of a rule, and their outcomes."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Timer
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from equipoise.federation import diagnosis
from equipoise.federation.guard import ServerError
from equipoise.system import threads
from equipoise.system.suggestions import require_known
from equipoise.testing import checks, hooks
from equipoise.testing.checks import NotApplicableError
from equipoise.testing.federations import Given, Subject
from equipoise.testing.hooks import ContractError, Raised, hooks_are_pure, hooks_behind, noting_errors

if TYPE_CHECKING:
    from pytest import MarkDecorator  # noqa: PT013 (a type, where pytest need not be installed)

SLOW = 2.0  # seconds after which a check is named while it runs
WHERE = {"mlp": "", "batchnorm": " (on a network with BatchNorm)"}  # by the kind of a subject
WHERE |= {"small": " (with small steps)", "large": " (with large steps and sensitive attributes)"}
BOTH = ("mlp", "batchnorm")
SCALES = ("mlp", "large", "small")  # a branch of a rule may depend on the length of an update
EVERY = (*SCALES, "batchnorm")


@dataclass(frozen=True)
class Check:
    """One promise of a rule, to be called with the rule.

    Parameters
    ----------
    name : what it is called.
    promise : what it asks for, a sentence.
    function : raises :class:`ContractError` if the promise is broken; returns a remark, or nothing.
    kinds : the networks and steps with which it runs, see :class:`equipoise.testing.federations.Subject`.
    hint : what to do about an error that the check does not expect.
    """

    name: str
    promise: str
    function: Callable[[Subject], object]
    kinds: tuple[str, ...] = ("mlp",)
    hint: str = "Correct what the error names. Python shows the traceback above, the command line with --debug."

    def __str__(self) -> str:
        return self.name

    def __call__(self, rule: Given | Subject) -> str:
        """Check a rule.

        Returns
        -------
        A remark, empty if there is none.

        Raises
        ------
        ContractError : the promise is broken.
        NotApplicableError : it does not apply to this rule.
        """
        subject = rule if isinstance(rule, Subject) else Subject(rule)
        remarks, reasons = list[str](), list[str]()
        for kind in self.kinds:
            try:
                remark = self._on(subject.on(kind))
                remarks += [remark] if isinstance(remark, str) and remark else []
            except NotApplicableError as error:
                reasons.append(str(error))
        if len(reasons) == len(self.kinds):
            raise NotApplicableError(reasons[0])
        return "; ".join(dict.fromkeys(remarks))

    def _on(self, subject: Subject) -> object:
        """Check a rule on one kind of network. Every other error is a broken promise, too."""
        plain = patch.object(diagnosis, "explained", lambda _, problems: dict(problems))  # what the guard saw, not why
        with warnings.catch_warnings(), plain, noting_errors(subject.method) as errors:
            warnings.simplefilter("ignore")
            try:
                return self.function(subject)
            except NotApplicableError:
                raise
            except Exception as error:
                raise self._broken(subject, error, errors) from error

    def _broken(self, subject: Subject, error: Exception, errors: Sequence[Raised]) -> ContractError:
        """The broken promise, from the error of a check and the errors that hooks raised before."""
        actual, expected, advice = f"{type(error).__name__}: {error}", self.promise, self.hint
        hook = hooks_behind(subject.method, "server") if isinstance(error, ServerError) else ""
        if isinstance(error, ContractError):
            actual, expected, advice, hook = error.found, error.expected, error.advice, error.hook
        if errors and not hook.startswith(errors[0].hook):
            hook, raised = errors[0]
            actual = f"{type(raised).__name__}: {raised}"
        return ContractError(actual + WHERE[subject.kind], expected, advice, hook)


CHECKS = (
    Check("returns", "every hook returns what eq.Rule states", hooks.hooks_return_what_they_should, EVERY),
    Check("trains", "training raises no error, gives finite numbers, and changes the model", checks.it_trains),
    Check("pure", "hooks do not change their arguments, and return the same when called again", hooks_are_pure, SCALES),
    Check("text", "text and copies of the method equal the method", checks.method_reads_back, hint=checks.VALUES),
    Check("stack", "clients can be trained as one stack", checks.stacks_stay_whole, SCALES),
    Check("engines", "a stack of clients and single clients give the same result", checks.stacks_agree, EVERY),
    Check("workers", "threads give the same bits as a single thread", checks.workers_give_the_same_bits),
    Check("resume", "a resumed run is the same, bit for bit", checks.resumed_run_is_the_same, BOTH),
    Check("renumbering", "the numbering of the clients does not matter", checks.renumbering_renumbers, SCALES),
    Check(
        "absent",
        "absent clients keep their state, and the order of the others does not matter",
        checks.absent_clients_do_not_count,
        SCALES,
    ),
    Check("private", "private coordinates stay with their client", checks.private_stays, (*BOTH, "large")),
    Check("one client", "a federation of one client trains", checks.one_client, hint=checks.FEW),
    Check("one sample", "a client of one sample takes part", checks.a_client_of_one_sample, hint=checks.FEW),
    Check(
        "uneven",
        "rounds of two clients and uneven batches depend on the seed only",
        checks.uneven_cohorts_and_batches,
        hint=checks.FEW,
    ),
    Check("float32", "every dtype is kept with a float32 network", checks.float32_networks),
    Check("sees", "the server uses no more than sees declares", checks.sees_what_it_states),
    Check("sites", "sites give the same bits as the simulator", checks.sites_give_the_same_bits),
    Check("regression", "a rule that needs no classes trains on a regression", checks.numbers_to_predict),
)
FIRST = ("returns", "trains")  # if one fails, the others have nothing to compare


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check: ``broken`` if it failed, ``skipped`` with a reason, or a ``remark``."""

    check: Check
    seconds: float
    broken: ContractError | None = None
    skipped: str = ""
    remark: str = ""

    @property
    def word(self) -> str:
        """``"failed"``, ``"skipped"`` or ``"passed"``."""
        return "failed" if self.broken else "skipped" if self.skipped else "passed"

    @property
    def document(self) -> dict[str, object]:
        """The same for JSON."""
        parts = vars(self.broken) if self.broken else {}
        return {"promise": self.check.promise, "outcome": self.word, "remark": self.skipped or self.remark, **parts}

    def __str__(self) -> str:
        text = self.skipped or self.remark
        return f"{self.word:<8} {self.check.name:<12} {self.check.promise}{f'  ({text})' if text else ''}"


@dataclass(frozen=True)
class Conformance:
    """The outcomes of the checks of a rule that were run. Its text has a line for each, and the failures in full."""

    method: str
    outcomes: tuple[Outcome, ...]

    @property
    def broken(self) -> dict[str, ContractError]:
        """The failures by the name of the check."""
        return {outcome.check.name: outcome.broken for outcome in self.outcomes if outcome.broken is not None}

    @property
    def skipped(self) -> dict[str, str]:
        """The reasons of skipped checks, by name."""
        return {outcome.check.name: outcome.skipped for outcome in self.outcomes if outcome.skipped}

    @property
    def document(self) -> dict[str, dict[str, object]]:
        """The outcome of every check by name, for JSON."""
        return {outcome.check.name: outcome.document for outcome in self.outcomes}

    def __str__(self) -> str:
        skipped, failed, seconds = len(self.skipped), self.broken, sum(outcome.seconds for outcome in self.outcomes)
        lines = [str(outcome) for outcome in self.outcomes]
        for outcome in self.outcomes:
            if outcome.broken:
                lines += ["", f"{outcome.check.name}: {outcome.check.promise}", str(outcome.broken)]
        count = f"{len(self.outcomes) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped in {seconds:.0f} s"
        if left := len(CHECKS) - len(self.outcomes):
            count += f"; {left} were not run, as {self.outcomes[-1].check.name} failed"
        return "\n".join([f"{self.method}: {count}", *lines])


class RuleError(AssertionError):
    """A rule breaks a promise. ``conformance`` has the outcomes of all checks; its text is the message."""

    def __init__(self, conformance: Conformance) -> None:
        super().__init__(str(conformance))
        self.conformance = conformance


def check_rule(rule: Given, *, skip: Mapping[str, str] | None = None, progress: bool = True) -> Conformance:
    """Test a rule against the contract of all methods in the catalogue, on small artificial data in float64.

    Parameters
    ----------
    rule : a rule, ``Mine(mu=0.1)``; or a method, also as text, ``"fedheal+mine.py:Mine"``.
    skip : checks to leave out, by name, each with the reason, such as ``{"renumbering": "it projects pair after pair"}``.
    progress : print a line on the standard error for every check that takes longer than two seconds.

    Returns
    -------
    The outcome of every check. Printed, it has a line for each.

    Raises
    ------
    RuleError : a check failed. The message has the check, the hook, the expected and the actual result, and what to do.
    """
    leave = dict(skip or {})
    require_known("check", [check.name for check in CHECKS], *leave)
    subject, outcomes = Subject(rule), list[Outcome]()
    quiet = patch.multiple(logging.getLogger("equipoise"), handlers=[logging.NullHandler()], propagate=False)
    with threads.one_thread(), quiet:  # runs of rules that may be wrong log nothing
        for check in CHECKS:
            reason = leave.get(check.name, "")
            outcome = Outcome(check, 0.0, skipped=reason) if reason else _outcome(check, subject, progress)
            outcomes.append(_once(outcome, outcomes))
            if outcome.broken and check.name in FIRST:
                break
    conformance = Conformance(str(subject.method), tuple(outcomes))
    if conformance.broken:
        raise RuleError(conformance) from next(iter(conformance.broken.values()))
    return conformance


def _once(outcome: Outcome, before: Sequence[Outcome]) -> Outcome:
    """The outcome of a check, skipped if an earlier check has failed in the same hook with the same advice."""
    error = outcome.broken
    for earlier in before:
        if error and earlier.broken and (earlier.broken.hook, earlier.broken.advice) == (error.hook, error.advice):
            return replace(outcome, broken=None, skipped=f"same cause as {earlier.check.name}")
    return outcome


def _outcome(check: Check, subject: Subject, progress: bool) -> Outcome:
    start = time.perf_counter()
    telling = Timer(SLOW, lambda: sys.stderr.write(f"still checking {check.name}: {check.promise}\n"))
    telling.daemon = True
    if progress:
        telling.start()
    result: dict[str, Any] = {}
    try:
        result["remark"] = check(subject)
    except NotApplicableError as error:
        result["skipped"] = str(error)
    except ContractError as error:
        result["broken"] = error
    finally:
        telling.cancel()
    return Outcome(check, time.perf_counter() - start, **result)


def parametrize_with_checks(rules: Iterable[Given]) -> MarkDecorator:
    """Decorate a pytest function that runs every check of every rule: ``def test_mine(rule, check): check(rule)``.

    Parameters
    ----------
    rules : rules such as ``Mine(mu=2)``, or methods.
    """
    import pytest  # for those who test with it

    def skipping(check: Check, subject: Subject) -> Callable[[Given], None]:
        def run(rule: Given) -> None:
            try:
                check(subject if rule is subject.given else rule)
            except NotApplicableError as error:
                pytest.skip(str(error))

        return run

    cases = [
        pytest.param(subject.given, skipping(check, subject), id=f"{subject.method}-{check.name.replace(' ', '-')}")
        for subject in map(Subject, rules)
        for check in CHECKS
    ]
    return pytest.mark.parametrize(("rule", "check"), cases)
