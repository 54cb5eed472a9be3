"""Watching the hooks of a rule: which of them is impure, raises an error, or treats a stack of clients differently."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from equipoise.core.model import Bound
from equipoise.core.rule import HOOKS, Briefing, Cohort, Out, Rule, Setup, State, Visit, overrides
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import visit
from equipoise.federation.method import Method
from equipoise.federation.round import CLIENT_HOOKS
from equipoise.testing.federations import ROUNDS, Subject, differing, identical

SERVER_HOOKS = ("server_state", "prepare", "message", "aggregate", "reward")
OF_STATES = {"clients": ("client_state", *CLIENT_HOOKS), "server": SERVER_HOOKS}
Hook = Callable[..., Any]
Results = dict[str, dict[str, Tensor]]  # of hooks, by their names


class ContractError(AssertionError):
    """A rule breaks a promise.

    Parameters
    ----------
    found : the actual result.
    expected : the expected result.
    advice : what to do.
    hook : the hook concerned, such as ``Mine.aggregate``; empty if the fault is in no hook.
    """

    def __init__(self, found: str, expected: str, advice: str, hook: str = "") -> None:
        super().__init__(found, expected, advice, hook)
        self.found, self.expected, self.advice, self.hook = found, expected, advice, hook

    def __str__(self) -> str:
        lines = {"hook": self.hook, "expected": self.expected, "found": self.found, "do": self.advice}
        return "\n".join(f"  {name:<10}{text}" for name, text in lines.items() if text)


class Raised(NamedTuple):
    """An error of a hook."""

    hook: str
    error: Exception


def overriding(method: Method) -> list[tuple[type[Rule], str]]:
    """Every hook that a rule of a method defines."""
    return [(type(rule), hook) for rule in method.rules for hook in HOOKS if overrides(rule, hook)]


def name_of(cls: type[Rule], hook: str) -> str:
    """What a hook is called in a message."""
    return f"{cls.__name__}.{hook}"


def hooks_behind(method: Method, path: str) -> str:
    """The hooks that can have made a tensor of a run, given by its path, such as ``server/0/loss``."""
    part, _, rest = path.partition("/")
    index = rest.partition("/")[0]
    rules = (method.rules[int(index)],) if part in OF_STATES and index.isdigit() else method.rules
    hooks = OF_STATES.get(part, HOOKS)
    return " or ".join(name_of(type(rule), hook) for rule in rules for hook in hooks if overrides(rule, hook))


@contextmanager
def replaced(method: Method, instead: Callable[[type[Rule], str, Hook], Hook]) -> Iterator[None]:
    """Every hook that the rules of a method define, replaced by what is given ``instead``."""
    with ExitStack() as stack:
        for cls, hook in overriding(method):
            original = getattr(cls, hook)
            stack.enter_context(patch.object(cls, hook, wraps(original)(instead(cls, hook, original))))
        yield


@contextmanager
def noting_errors(method: Method) -> Iterator[list[Raised]]:
    """The errors that hooks raise. A round leaves such a client out and continues."""
    errors: list[Raised] = []

    def noting(cls: type[Rule], hook: str, original: Hook) -> Hook:
        def noted(self: Rule, *args: Any) -> Any:
            try:
                return original(self, *args)
            except Exception as error:
                errors.append(Raised(name_of(cls, hook), error))
                raise

        return noted

    with replaced(method, noting):
        yield errors


# purity
def leaves(value: Any, name: str = "") -> dict[str, Tensor]:
    """Every tensor a hook is given or gives back, by its path."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, (Visit, Briefing, Cohort, Out, Setup)):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "oracle"}
    parts = value.items() if isinstance(value, dict) else ()
    return {k: t for key, part in parts for k, t in leaves(part, f"{name}/{key}").items()}


def copied(value: Any) -> dict[str, Tensor]:
    """Copies of all tensors in what a hook is given or gives back."""
    return {k: t.detach().clone() for k, t in leaves(value).items()}


def form(state: State) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of each entry."""
    return {k: (t.shape, t.dtype) for k, t in state.items()}


IN_PLACE = "Create new tensors: x + 1 instead of x += 1, index_copy instead of x[i] = ..., a new dictionary instead of state[key] = ..."
TWICE = (
    "Store nothing in attributes, globals or defaults: return it as state. Draw noise by visit.normal(), which depends on the seed, "
    "never by torch.randn."
)


def supervised(cls: type[Rule], hook: str, original: Hook, called: set[str], broken: list[ContractError]) -> Hook:
    """The hook, called twice with the same arguments and watched. ``broken`` stores errors that a round blames on one client."""
    where = name_of(cls, hook)
    pure = "a hook that does not change its arguments, and returns the same for the same arguments"

    def require(holds: bool, text: str, advice: str, expected: str = pure) -> None:
        if not holds:
            broken.append(ContractError(f"{where} {text}", expected, advice, where))
            raise broken[-1]

    def checked(self: Rule, *args: Any) -> Any:
        called.add(where)
        itself, before = repr(self), copied(args)
        first = original(self, *args)
        require(not differing(before, copied(args)), "changed its arguments", IN_PLACE)
        result = copied(first)
        second = original(self, *args)
        require(not differing(result, copied(second)), "returned a different result the second time", TWICE)
        require(not differing(result, copied(first)), "changed its earlier result", IN_PLACE)
        require(not differing(before, copied(args)), "changed its arguments the second time", IN_PLACE)
        require(repr(self) == itself, "changed the rule", TWICE)
        if error := misfit(cls, hook, args, first):
            broken.append(error)
            raise error
        return second

    return checked


STATE = "Return every key of the state, with the shape and dtype that client_state or server_state gave it."
# the argument whose shape a hook returns
LIKE = {"begin": 0, "correction": 0, "gradient": 1, "upload": 0, "deploy": 0, "publish": 0}
SAID = "Return what eq.Rule states for this hook. The page Architecture lists all hooks."


def _is_state(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(x, Tensor) for x in value.values())


def _expected(hook: str, args: Sequence[Any], result: object) -> str:
    """The form that a hook should have returned instead of ``result``; empty if that is right."""
    first, second = result if isinstance(result, tuple) and len(result) == 2 else (None, None)
    right, form = True, ""
    if hook in ("client_state", "server_state", "message", "prepare"):
        right, form = _is_state(result), "a dictionary of tensors"
    elif hook == "finish":
        right, form = _is_state(first) and _is_state(second), "(report, state), two dictionaries of tensors"
    elif hook == "aggregate":
        right = _is_state(first) and isinstance(second, Cohort)
        form = "(state, cohort), a dictionary of tensors and a Cohort"
    elif hook in ("private", "trains", "submodel"):
        right, form = result is None or _is_mask(result), "a boolean tensor, or None"
        if hook == "private":
            right = right and getattr(result, "shape", (args[0].size,)) == (args[0].size,)
            form = f"None, or a boolean tensor with one entry for each of the {args[0].size} coordinates of the model, buffers too"
    elif hook == "reward":
        right = _is_state(first) and isinstance(second, Tensor) and second.shape == args[2].shape
        form = f"(state, given), a dictionary of tensors and a tensor of shape {list(args[2].shape)}"
    elif hook in LIKE and not (hook == "correction" and isinstance(result, int | float)):
        shape = args[LIKE[hook]].shape
        right, form = isinstance(result, Tensor) and result.shape == shape, f"a tensor of shape {list(shape)}"
    return "" if right else form


def _is_mask(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _described(value: object) -> str:
    """The result of a hook in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    if isinstance(value, dict):
        return f"a dictionary of {', '.join(f'{key}: {_described(x)}' for key, x in value.items()) or 'nothing'}"
    return f"({', '.join(map(_described, value))})" if isinstance(value, tuple) else type(value).__name__


def _states(hook: str, args: Sequence[Any], result: Any) -> tuple[State, State]:
    """The state that a hook was given, as it was before and as it is after."""
    if hook == "finish":
        return args[1].state, result[1]
    if hook in ("aggregate", "reward"):
        return args[0], result[0]
    return (args[0], result) if hook == "prepare" else ({}, {})


def misfit(cls: type[Rule], hook: str, args: Sequence[Any], result: object) -> ContractError | None:
    """The error in the form of a hook's result; None if it is right."""
    where = name_of(cls, hook)
    if expected := _expected(hook, args, result):
        return ContractError(f"{where} returned {_described(result)}", expected, SAID, where)
    begun, ended = _states(hook, args, result)
    if form(begun) != form(ended):
        actual = f"{where} changed the form of its state from {_described(begun)} to {_described(ended)}"
        return ContractError(actual, "a state with the same keys, shapes and dtypes as at the start", STATE, where)
    return None


def hooks_return_what_they_should(subject: Subject) -> None:
    """Every hook returns the tensors, of the shapes, that :class:`equipoise.Rule` states."""
    broken: list[ContractError] = []

    def checking(cls: type[Rule], hook: str, original: Hook) -> Hook:
        def checked(self: Rule, *args: Any) -> Any:
            result = original(self, *args)
            if error := misfit(cls, hook, args, result):
                broken.append(error)
                raise error
            return result

        return checked

    with suppress(Exception), replaced(subject.method, checking):  # the next check reports errors of hooks
        subject.fitted(2, epochs=1)
    if broken:
        raise broken[0]


def hooks_are_pure(subject: Subject, engine: str = "sequential") -> None:
    """Every hook is called, changes none of its arguments, and returns the same when called again."""
    method = subject.method
    settings: dict[str, Any] = {"engine": engine, "epochs": 1}
    called, broken = set[str](), list[ContractError]()
    try:
        with replaced(method, lambda cls, hook, original: supervised(cls, hook, original, called, broken)):
            fed = subject.fitted(ROUNDS, **settings)
    finally:
        if broken:
            raise broken[0]
    if silent := sorted({name_of(cls, hook) for cls, hook in overriding(method)} - called):
        actual, expected = f"{', '.join(silent)} was never called", f"a call of every hook in {ROUNDS} rounds"
        advice = "Remove the hook, or the rule of the sum that prevents its call."
        raise ContractError(actual, expected, advice, silent[0])
    if not identical(fed, subject.fitted(ROUNDS, **settings)):
        hook = hooks_behind(method, "")
        raise ContractError("a different result if hooks are called twice", "the same result, bit for bit", TWICE, hook)


# which hook
def first_difference(subject: Subject) -> str:
    """The first hook, in order of time, with different results for a stack and for single clients; empty if there is none."""
    apart: list[Results] = []
    stack: Results = {}
    notes: list[Results] = [{}]

    def noting(cls: type[Rule], hook: str, original: Hook) -> Hook:
        def noted(self: Rule, *args: Any) -> Any:
            result = original(self, *args)
            notes[-1].setdefault(name_of(cls, hook), copied(result))
            return result

        return noted

    def alone(job: Job) -> Iterator[Answer]:
        bound = Bound(job.model)
        for row in range(len(job.ids)):
            apart.append({})
            notes.append(apart[-1])
            yield visit(job, bound, row)

    sizes = (13, 13, 13) if subject.kind == "batchnorm" else (9, 12, 13)  # of one stack, in its order
    settings: dict[str, Any] = {"sizes": sizes, "participation": 1.0, "epochs": 1}
    with replaced(subject.method, noting):
        subject.fitted(1, **settings, engine=alone)
        notes.append(stack)
        subject.fitted(1, **settings, engine="stacked")
    order = [name_of(cls, hook) for hook in CLIENT_HOOKS for cls, other in overriding(subject.method) if hook == other]
    return next((hook for hook in order if not _alike(stack.get(hook), [results.get(hook) for results in apart])), "")


def _alike(together: dict[str, Tensor] | None, apart: Iterable[dict[str, Tensor] | None]) -> bool:
    """Whether the rows of the result for a stack equal the results for single clients."""
    singles = [result for result in apart if result is not None]
    if together is None or not singles:
        return together is None and not singles
    if any(result.keys() != together.keys() for result in singles):
        return False
    rows = {key: torch.stack([result[key] for result in singles]) for key in together}
    return all(x.shape == rows[key].shape and torch.allclose(x, rows[key], atol=1e-10) for key, x in together.items())
