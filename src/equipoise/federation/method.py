"""Methods: sums of rules, their names, what cannot be summed, and which servers need only sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from equipoise.core.model import Model
from equipoise.core.rule import OWNS, SEES, CatalogueEntry, Rule, Sees, overrides, uncalled
from equipoise.core.solver import Solver
from equipoise.core.task import Task
from equipoise.methods import ALIASES, METHODS
from equipoise.records.meta import Sharing
from equipoise.system import calls, own_code
from equipoise.system.errors import InputError
from equipoise.system.suggestions import near, shorten
from equipoise.system.text import read_value


class MethodError(InputError):
    """A method does not exist, or its rules cannot be combined."""


LONGEST = 10_000  # characters of a method's text
AFTER = ("", "+", ":", "(", " ")  # what may follow a name
NOTHING = ""
ORDER = ("updates", NOTHING, "start", "mask", "weights", "direction", "step", "use")  # of rules by what they own


@dataclass(frozen=True)
class Method:
    """An ordered tuple of rules.

    A rule that changes the updates comes first, then those that own nothing, then those that set the mask, then those that set
    the weights (which read the mask), then those that set the direction (which read the weights), then an optimiser of the server.
    Rules of one kind stay in the given order, so only for them ``a + b`` and ``b + a`` may differ.

    Parameters
    ----------
    rules : the rules. An empty tuple is FedAvg.
    text : the method as text; :func:`parse` gives it back.
    parts : for each rule the name of the part it came from, for errors.
    typed : the hyper-parameters whose values were written, by ``part.name``; tuning leaves them as they are.

    Raises
    ------
    MethodError : a rule that appears twice, or two rules that own the same thing.
    """

    rules: tuple[Rule, ...] = ()
    text: str = field(default="", compare=False)
    parts: tuple[str, ...] = field(default=(), compare=False, repr=False)
    typed: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = self.parts or tuple(type(r).__name__ for r in self.rules)
        paired = sorted(zip(self.rules, parts, strict=True), key=lambda pair: _rank(pair[0]))
        object.__setattr__(self, "rules", tuple(rule for rule, _ in paired))
        object.__setattr__(self, "parts", tuple(part for _, part in paired))
        object.__setattr__(self, "text", self.text or "+".join(map(text_of, self.rules)) or "fedavg")
        for k, (rule, part) in enumerate(paired):
            _check_class(type(rule), part)
            for other, elsewhere in paired[:k]:
                if type(rule) is type(other):
                    raise MethodError(
                        f"{part!r} appears twice in the method (as {type(rule).__name__}). Keep one of them."
                    )
                if both := rule.declared.owns & other.declared.owns:
                    raise MethodError(f"{elsewhere!r} and {part!r} each set {OWNS[min(both)]}. Keep one of them.")
        for rule, part in paired:
            if rule.declared.seals:
                self._sealed(part)
            if not rule.declared.sharing.clients:
                self._whole(part)

    def _whole(self, by: str) -> None:
        """Refuse a rule that keeps something of single clients, together with ``by``, which has one client with all data."""
        for rule, part in zip(self.rules, self.parts, strict=True):
            if _is_personal(rule):
                raise MethodError(
                    f"{part!r} keeps or changes something of each client, and {by!r} has one client with the data of all. Leave one out."
                )

    def _sealed(self, by: str) -> None:
        """Refuse a rule whose clients send more than the update, which is all that the rule ``by`` protects."""
        for rule, part in zip(self.rules, self.parts, strict=True):
            sent = rule.declared.reports
            if any(need.startswith("contribution") for need in rule.declared.needs):
                sent = sent or "its accuracy when it trains alone"
            if overrides(rule, "upload") and not rule.declared.seals:
                sent = sent or "something instead of its update"
            if sent:
                raise MethodError(
                    f"{part!r} lets each client send {sent}, which {by!r} does not protect: it clips and hides the update only. "
                    f"Leave out {part!r}, or use {by!r} without noise, which guarantees no privacy: {by}(noise=0)."
                )

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: Method) -> Method:
        own = own_code.references
        texts = (text_of(m.rules[0]) if len(m.rules) == 1 and not any(own(m.text)) else m.text for m in (self, other))
        return Method(self.rules + other.rules, "+".join(texts), self.parts + other.parts, self.typed | other.typed)

    def private(self, model: Model) -> Tensor | None:
        """Coordinates [G] (boolean) that never leave a client, by any of the rules; None if there are none."""
        kept = [p for rule in self.rules if (p := rule.private(model)) is not None]
        return torch.stack(kept).any(0).to(model.initial.device) if kept else None

    @property
    def uses(self) -> frozenset[str]:
        """What of the network its rules use."""
        return frozenset().union(*(rule.declared.uses for rule in self.rules))

    @property
    def needs(self) -> frozenset[str]:
        """What the federation must have, by any of the rules."""
        return frozenset().union(*(rule.declared.needs for rule in self.rules))

    @property
    def needs_of_server(self) -> frozenset[str]:
        """Of these, what is not a property of the clients' samples."""
        return self.needs - {"classes", "sensitive"}

    def require(self, task: Task) -> None:
        """Refuse a task that has no classes, where a rule counts them, or measures accuracy.

        Raises
        ------
        MethodError : naming the rule.
        """
        of_classes = {"classes", "contribution", "contribution_on_test"}
        for rule, part in zip(self.rules, self.parts, strict=True):
            if rule.declared.needs & of_classes and task.dtype.is_floating_point:
                raise MethodError(
                    f"{part} needs classes, and a {task.name} has none. Leave it out, or choose another method."
                )

    @property
    def sees(self) -> Sees:
        """What the server must see of single clients: the most that any rule needs."""
        return max((rule.declared.sees for rule in self.rules), key=SEES.index, default="sum")

    @property
    def sharing(self) -> Sharing:
        """What the clients share, see :class:`equipoise.core.rule.Declarations`."""
        every = (rule.declared.sharing for rule in self.rules)
        return next((sharing for sharing in every if not sharing.federated), Sharing.MODELS)

    def check(self, solver: Solver) -> None:
        """Refuse a solver that lacks what a rule needs.

        Raises
        ------
        TypeError : from the rule, saying which to use instead.
        """
        for rule in self.rules:
            rule.check(solver)

    @staticmethod
    def of(method: str | Rule | Method | Iterable[Rule]) -> Method:
        """A method from text, one rule, several rules, or a method."""
        if isinstance(method, Method):
            return method
        if isinstance(method, str):
            return parse(method)
        given: Any = method  # whatever a user gives
        rules = tuple(given) if isinstance(given, Iterable) and not isinstance(given, type) else (given,)
        for rule in rules:
            if not isinstance(rule, Rule):
                shown = f"the class {rule.__name__}: write {rule.__name__}()" if isinstance(rule, type) else repr(rule)
                more = " Join names by +, such as 'fedprox+fedheal'." if isinstance(rule, str) else ""
                raise TypeError(
                    f"method must be text such as 'fedavg', a Rule, several Rules, or a Method; found {shown}.{more}"
                )
        return Method(rules)

    def overriding(self, hook: str) -> list[int]:
        """Positions of the rules that define a hook."""
        return [k for k, rule in enumerate(self.rules) if overrides(rule, hook)]

    @property
    def differing(self) -> bool:
        """Whether clients may predict with different models."""
        return self.own_decisions or not self.sharing.global_model or any(map(_is_personal, self.rules))

    @property
    def own_decisions(self) -> bool:
        """Whether what is predicted depends on the state of the client that predicts."""
        return any(overrides(rule, "decide") and overrides(rule, "client_state") for rule in self.rules)


def _check_class(rule: type[Rule], part: str) -> None:
    if "__dataclass_params__" not in vars(rule):
        raise MethodError(
            f"{part}: a rule must be a frozen dataclass, which shows its hyper-parameters. Decorate it with @dataclass(frozen=True)."
        )
    if wrong := uncalled(rule):
        raise MethodError(f"{part}: {wrong}")


def _is_personal(rule: Rule) -> bool:
    """Whether a rule keeps or changes something of each client, so that they predict with different models."""
    return any(overrides(rule, hook) for hook in ("private", "submodel", "deploy")) or "reward" in rule.declared.owns


def in_force(method: Method) -> str:
    """Every hyper-parameter, and what the published form has otherwise, by the presets; empty if there are none."""
    parts: dict[str, dict[str, object]] = {}
    for rule, part in zip(method.rules, method.parts, strict=True):
        name = part if part in METHODS else _called(type(rule))
        parts.setdefault(name, {}).update((f.name, getattr(rule, f.name)) for f in fields(rule))
    texts = []
    for name, values in parts.items():
        presets = METHODS[name].presets if name in METHODS else {}
        form = presets.get("published", presets.get("paper", {}))
        other = _listed({key: value for key, value in form.items() if values[key] != value})
        published = f" (not the published form, which has {other})" * bool(other)
        texts += [f"{name} " * (len(parts) > 1) + _listed(values) + published] * bool(values)
    return " + ".join(texts)


def printed(method: Method) -> str:
    """The method as papers print it, `q-FFL (q=2)+FedHEAL`; its text, if that names rules which are in no catalogue."""
    try:
        pieces = [*_pieces(method.text)]
    except MethodError:
        return method.text
    named = ((METHODS[name].name if name in METHODS else name.rpartition(":")[2], given) for name, _, given in pieces)
    return "+".join(f"{name} {_inside(given)}".rstrip() for name, given in named)


def _listed(values: Mapping[str, object]) -> str:
    """Hyper-parameters as :func:`read_values` reads them."""
    texts = {key: str([*value] if isinstance(value, tuple) else value) for key, value in values.items()}
    return ", ".join(f"{key}={shorten(text)}" for key, text in texts.items())


def _rank(rule: Rule) -> int:
    return max((ORDER.index(what) for what in rule.declared.owns if what in ORDER), default=ORDER.index(NOTHING))


def text_of(rule: Rule) -> str:
    """A rule as text, with the values that differ from its defaults."""
    return _called(type(rule)) + _inside({f.name: v for f in fields(rule) if (v := getattr(rule, f.name)) != f.default})


def _called(rule: type[Rule]) -> str:
    """The name of a rule in the catalogue, or that of its class."""
    return next((n for n, e in METHODS.items() if e.rules == (rule,) and not e.values), rule.__name__)


def _inside(values: Mapping[str, object]) -> str:
    """Hyper-parameters in brackets, as :func:`read_values` reads them; nothing if there are none."""
    return f"({_listed(values)})" if values else ""


def parse(text: str, overrides: Mapping[str, object] | None = None) -> Method:
    """Read a method: ``"fedproto(lam=2)+fedheal:released"``.

    Parameters
    ----------
    text : names joined by ``+``; each may take ``:preset`` and ``(name=value, ...)``. A name may be a reference to a rule of
        your own, ``mine.py:Prox`` or ``mypkg.rules:Prox``, which is called ``Prox`` from then on.
    overrides : hyper-parameters by name, ``{"fedheal.tau": 0.4}``, which replace those in the text.

    Raises
    ------
    MethodError : an unknown name, preset or hyper-parameter (with a suggestion), or rules that cannot be added.
    ValueError : a hyper-parameter out of its range.
    """
    pieces = list(_pieces(text))
    rest = dict(overrides or {})
    rules: list[Rule] = []
    parts: list[str] = []
    texts: list[str] = []
    typed = {*rest}
    for written, preset, given in pieces:
        entry, name = METHODS.get(written) or _own(written), written.rpartition(":")[2]
        values = {**entry.values, **_preset(written, preset), **given}
        own = [key for key in rest if key.startswith(f"{name}.")]
        values |= {key.removeprefix(f"{name}."): rest.pop(key) for key in own}
        made = make_rules(entry, values, written, name)
        rules += made
        parts += [name] * len(made)
        typed |= {f"{name}.{key}" for key in given}
        changed = {k: v for k, v in values.items() if v != entry.defaults[k]}
        texts.append(own_code.whole(written) + _inside(changed))
    if rest:
        key = next(iter(rest))
        names = [written.rpartition(":")[2] for written, _, _ in pieces]
        example = f"{names[0]}.{next(iter(f.name for rule in rules[:1] for f in fields(rule)), 'x')}"
        raise MethodError(
            f"--set {key}={rest[key]}: {key.split('.', 1)[0]!r} is not part of {text!r}; "
            f"write PART.NAME=VALUE with a part out of {', '.join(names)}, for example {example}."
        )
    return Method(tuple(rules), "+".join(texts), tuple(parts), frozenset(typed))


def make_rules(entry: CatalogueEntry, values: Mapping[str, object], written: str, name: str) -> list[Rule]:
    """The rules of an entry with hyper-parameters, as a user has ``written`` it, by its ``name``."""
    defaults = entry.defaults
    for key in values:
        if key not in defaults:
            raise MethodError(
                f"{name} has no hyper-parameter {key!r}.{near(key, defaults)} It has: {', '.join(defaults) or 'none'}."
            )
    try:
        return [rule(**{f.name: values[f.name] for f in fields(rule) if f.name in values}) for rule in entry.rules]
    except TypeError as error:  # a value without a default
        raise MethodError(f"{written}: {error}. Give it in brackets, or give it a default in the class.") from None
    except ValueError as error:  # which names the class
        owner, _, fault = str(error).partition(": ")
        raise ValueError(f"{name}: {fault}" if owner in {r.__name__ for r in entry.rules} else str(error)) from None


def _own(reference: str) -> CatalogueEntry:
    """The entry of a user's own rule."""
    rule = own_code.load(reference)
    if not isinstance(rule, type) or not issubclass(rule, Rule):
        shown = f"the class {rule.__name__}" if isinstance(rule, type) else repr(rule)
        raise MethodError(f"{reference} must be a class that inherits from equipoise.Rule; found {shown}.")
    _check_class(rule, reference)
    return CatalogueEntry((rule,), "", "")


def _preset(name: str, preset: str | None) -> Mapping[str, object]:
    if preset is None:
        return {}
    presets: dict[str, Mapping[str, object]] = {"paper": {}, **METHODS[name].presets}
    if preset not in presets:
        raise MethodError(f"{name} has no preset {preset!r}.{near(preset, presets)} It has: {', '.join(presets)}.")
    return presets[preset]


def _pieces(text: str) -> Iterable[tuple[str, str | None, dict[str, object]]]:
    """Split a method's text into (name, preset, values); the longest known name is taken, because one may end in ``+``."""
    rest = text.strip()
    if not rest:
        raise MethodError("The method is empty. All names: equipoise methods.")
    if len(rest) > LONGEST:
        raise MethodError(f"The method has {len(rest):,} characters, and at most {LONGEST:,} are read. Shorten it.")
    names = sorted([*METHODS, *ALIASES], key=len, reverse=True)
    while True:
        begins = (n for n in names if rest.startswith(n) and rest[len(n) : len(n) + 1] in AFTER)
        name = next(begins, None) or own_code.split(rest)[0]
        if not name:
            raise MethodError(_no_such_method(rest, text))
        rest = rest[len(name) :].lstrip()
        name = ALIASES.get(name, name)
        preset = None
        if rest.startswith(":") and name in METHODS:
            end = min((k for k in (rest.find("+"), rest.find("(")) if k > 0), default=len(rest))
            preset, rest = rest[1:end].strip(), rest[end:]
        given: dict[str, object] = {}
        if rest.startswith("("):
            _, pairs, after = calls.read(rest)
            if after is None:
                raise MethodError(f"The bracket after {name!r} in {text!r} is not closed.")
            given, rest = read_values(pairs or (), name), after
        yield name, preset, given
        rest = rest.strip()
        if not rest:
            return
        if not rest.startswith("+") or len(rest) == 1:
            raise MethodError(f"Expected '+' and a method after {name!r} in {text!r}; found {rest!r}.")
        rest = rest[1:].lstrip()


def _no_such_method(rest: str, text: str) -> str:
    """That the ``rest`` of a method's text begins with no method, and what may be meant."""
    word = rest.split("+")[0].split(":")[0].split("(")[0].strip()
    file = f"{word.removesuffix('.py')}.py"
    own = f" A rule in {file}: {file}:MyRule." if word == file or rest[len(word) :].startswith(":") else ""
    own = own or " Between several methods write blanks." * ("," in word)
    return f"Unknown method {word!r} in {text!r}.{near(word, METHODS)} All names: equipoise methods.{own}"


def read_values(pairs: Iterable[tuple[str, str]], name: str) -> dict[str, object]:
    """Hyper-parameters from the pairs in the brackets after a ``name``."""
    given: dict[str, object] = {}
    for key, value in filter(any, pairs):
        if not key:
            raise MethodError(f"{name}({value}): write NAME=VALUE.")
        if key in given:
            raise MethodError(f"{name}: {key!r} is given twice. Keep one of them.")
        given[key] = read_value(value)
    return given


# methods whose server needs only a sum of the updates
def require_own_weights(method: Method) -> None:
    """Require that the server of a method needs only a sum, in which each site's weight follows from its own samples.

    Raises
    ------
    MethodError : it does not.
    """
    for rule, part in zip(method.rules, method.parts, strict=True):
        if why := more_than_sums(rule):
            can = [name for name in METHODS if not any(more_than_sums(r()) for r in METHODS[name].rules)]
            raise MethodError(
                f"secure=true: {part} cannot be used, because {why}, and the server sees sums only. Usable methods, "
                f"also in sums: {', '.join(can)}. Choose among them, or set secure=false."
            )


def more_than_sums(rule: Rule) -> str:
    """Why a rule cannot be used if the server sees sums only; empty if it can."""
    if rule.declared.sees == "nothing":
        return "nothing is summed in it"
    if rule.declared.sees == "scalars+sum":
        return (
            "it weighs a site by the reports of others, and a server that sends a site such a weight learns its update"
        )
    if rule.declared.sees != "sum":
        return "the server must see what each site sends"
    if rule.declared.reports and not overrides(rule, "no_report"):
        return f"every site reports {rule.declared.reports.removeprefix('its ')} to the server, and no_report does not define its form"
    return ""
