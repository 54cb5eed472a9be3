"""The contract: what a rule may do in a round, and what it knows.

A **rule** is the unit of composition: a frozen dataclass of hyper-parameters with optional pure hooks, one paper in one
file. A method is an ordered tuple of rules. Hooks store nothing: state is an argument and a result.

Shapes. ``P`` trainable scalars come first in a whole model vector of ``G``; the floating buffers (BatchNorm statistics)
follow. In every hook ``theta`` [..., P] is the trainable part; a whole vector has another name
(``visit.received``, ``visit.trained``). The leading ``...`` is absent for one client and ``[m]`` for a stack of them, so
client hooks reduce over their last dimensions only, and the same code serves every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import isfunction
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import torch
from torch import Tensor

from equipoise.core import client_rows as rows, maths
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.core.solver import Solver
from equipoise.core.task import Gradient as Gradient, Out as Out
from equipoise.records.meta import Sharing
from equipoise.system.ranges import INF, Range, check_fields
from equipoise.system.suggestions import near, require_known

State = dict[str, Tensor]
Presets = Mapping[str, Mapping[str, Any]]  # of a rule: hyper-parameters by the name of each
Needed = TypeVar("Needed")
Sees = Literal["nothing", "sum", "scalars+sum", "matrix"]
SEES: tuple[Sees, ...] = get_args(Sees)  # from least to most, see Declarations.sees


@dataclass(frozen=True)
class Setup:
    """What is known before the first round.

    ``initial`` [G] is the first global model, ``layout`` the sizes of its trainable tensors, ``sizes`` [N] the training
    samples of each client, ``n_features`` the width of the features that enter the classifier (0 if there is none),
    ``head`` [P] true on the classifier, ``neurons`` the network's hidden units where a rule needs them, ``n_validation``
    the batches of the server's validation data, ``asked`` how many clients are selected in a round (None: all).
    ``attributes`` is by the name of each sensitive attribute, in the order of the columns of s, the number of its values; ``positive``
    is the number of the positive class (None: there is none).
    """

    initial: Tensor
    layout: tuple[int, ...]
    sizes: Tensor
    solver: Solver | None = None
    n_classes: int = 0
    n_features: int = 0
    head: Tensor | None = None
    neurons: Neurons | None = None
    n_validation: int = 0
    asked: int | None = None
    attributes: Mapping[str, int] = field(default_factory=dict)
    positive: int | None = None

    @property
    def n_params(self) -> int:
        """Number P of trainable scalars."""
        return sum(self.layout)

    @property
    def theta(self) -> Tensor:
        """The trainable part of ``initial`` [P]."""
        return self.initial[: self.n_params]

    @property
    def n_buffers(self) -> int:
        """Number of scalars in floating buffers."""
        return len(self.initial) - self.n_params

    @property
    def n_clients(self) -> int:
        """Number N of clients in the federation."""
        return len(self.sizes)

    def per_client(self, row: Tensor) -> Tensor:
        """State [N, ...] with the same ``row`` [...] for every client; on disk if most clients are absent and it is large.

        Read rows by ``state[ids]`` and write them by ``state.index_copy(0, ids, values)`` only: state on disk is
        :class:`equipoise.core.client_rows.Rows`, which supports nothing else.
        """
        if self.asked is not None and rows.on_disk(row.nbytes, self.n_clients, self.asked):
            return cast(Tensor, rows.Rows(row, self.n_clients))
        return row.expand(self.n_clients, *row.shape).clone()


def _no_noise() -> Tensor:
    raise ValueError("This visit has no key to draw noise from: give visit_client the keys of its clients.")


@dataclass(frozen=True)
class Trained:
    """What local training did: the parameters ``begun`` [..., P] that it started from, and the whole model ``trained`` [..., G]."""

    begun: Tensor
    trained: Tensor


@dataclass(frozen=True)
class Visit:
    """What one client (or a stack of clients) knows in round ``t``, as one rule sees it.

    ``received`` [..., G] is the model that the server sent, ``state`` and ``message`` are the rule's own, ``oracle`` computes
    on the client's data, ``rounds`` is the planned number of rounds, ``held`` [..., P] marks the client's submodel, if it has
    one: only that is trained. ``shared`` [P] marks the parameters that leave the client; None: all. ``done`` is what local
    training did, in ``upload`` and ``finish``. ``normal()`` gives the client's own standard normal numbers [..., P] for this rule and round, in
    float64, the same at every call.
    """

    received: Tensor
    n_params: int
    state: State
    message: State
    oracle: Oracle
    t: int
    rounds: int
    held: Tensor | None = None
    shared: Tensor | None = None
    done: Trained | None = None
    normal: Callable[[], Tensor] = field(default_factory=lambda: _no_noise)

    @property
    def start(self) -> Tensor:
        """The trainable part of the received model [..., P]."""
        return self.received[..., : self.n_params]

    @property
    def trained(self) -> Tensor:
        """The whole model after local training [..., G]; in ``upload`` and ``finish`` only."""
        return needed(self.done, "a model that is trained, which upload and finish have").trained

    @property
    def begun(self) -> Tensor:
        """The parameters from which local training started [..., P]; in ``upload`` and ``finish`` only."""
        return needed(self.done, "a start of training, which upload and finish have").begun

    @property
    def travel(self) -> Tensor:
        """How far this round's steps along a constant unit gradient move the parameters [..., 1], or each of them [..., P]."""
        return self.oracle.travel.to(self.received.dtype)


@dataclass(frozen=True)
class Briefing:
    """What the server knows when round ``t`` begins, before it sends anything.

    ``vector`` [G] is the global model, ``received`` [M, G] what each of the clients ``ids`` [M] holds, ``sizes`` [N] the
    training samples of all. ``oracle`` computes on the server's own validation data, in batches of
    ``VALIDATION_BATCH`` samples, ``solver`` is the clients' in this round, ``contribution`` [N] is what each client reaches alone (accuracy in [0, 1], float64) and
    ``neurons`` are the network's hidden units: each is None unless a rule :attr:`Declarations.needs` it.
    """

    t: int
    rounds: int
    n_params: int
    vector: Tensor
    received: Tensor
    ids: Tensor
    sizes: Tensor
    seed: int = 0
    oracle: Oracle | None = None
    contribution: Tensor | None = None
    neurons: Neurons | None = None
    solver: Solver | None = None


@dataclass(frozen=True)
class Combine:
    """The step is the sum of the updates by ``weights`` [M]; with a ``mask`` [M, P], of each parameter over the clients that keep it."""

    weights: Tensor
    mask: maths.Mask | None


@dataclass(frozen=True)
class Columns:
    """The step is the sum of the updates by ``weights`` [M, T], which have a column for each tensor."""

    weights: Tensor


@dataclass(frozen=True)
class Given:
    """The step [P] is given: by an optimiser of the server, or as no weights give it."""

    step: Tensor


@dataclass(frozen=True)
class Cohort:
    r"""What the server knows once the M clients of round ``t`` have answered.

    The round ends in one reduction over the updates :math:`u_m`:

    .. math:: \theta^{t+1} = \theta^t + \eta \sum_m W_m u_m + s

    ``theta`` [P] is the broadcast model, ``updates`` [M, P] and ``buffer_updates`` [M, G - P] are trained minus
    received. ``weights`` [M] (convex) say how much each client counts; they average the buffers and, unless
    ``coefficients`` [M] (or [M, T], one column per tensor of ``layout``) or a ``mask`` [M, P] say otherwise, the updates. A
    mask is a boolean tensor or :class:`equipoise.core.maths.Bits`, whose ``dense()`` is one. ``scale`` is eta, ``shift`` [P] is s;
    ``moved`` [P] replaces the whole step (see :meth:`stepped`). :attr:`direction` is which of these holds, as one value.
    ``ids`` [M] are the clients, ``sizes`` [M] their training samples; ``reports`` are this rule's own, each [M, ...].
    ``notes`` are numbers to record with the round; they have no influence.

    ``received`` [M, G] is what each client started from, ``kept`` [M, G] what it holds when the server's reward arrives: the
    same, unless a rule lets clients keep part of their own training. ``held`` [M, G] marks the coordinates of each client's
    submodel, if there are submodels; updates are zero elsewhere. ``oracle``, ``contribution`` [N] : see :class:`Briefing`.
    """

    t: int
    rounds: int
    n_clients: int
    theta: Tensor
    updates: Tensor
    ids: Tensor
    sizes: Tensor
    weights: Tensor
    layout: tuple[int, ...]
    buffer_updates: Tensor
    received: Tensor
    kept: Tensor
    coefficients: Tensor | None = None
    mask: maths.Mask | None = None
    buffer_mask: maths.Mask | None = None
    scale: float = 1.0
    shift: Tensor | None = None
    moved: Tensor | None = None
    reports: State = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    held: Tensor | None = None
    oracle: Oracle | None = None
    contribution: Tensor | None = None
    seed: int = 0

    @property
    def uniform(self) -> Tensor:
        """Equal weights [M]."""
        return torch.full_like(self.weights, 1 / len(self.ids))

    @property
    def direction(self) -> Combine | Columns | Given:
        """What the rules have set, as one value.

        Raises
        ------
        ValueError : a mask, and coefficients for each tensor, which would ignore it.
        """
        if self.moved is not None:
            return Given(self.moved)
        weights = self.weights if self.coefficients is None else self.coefficients
        if weights.dim() == 1:
            return Combine(weights, self.mask)
        if self.mask is not None:
            raise ValueError("coefficients of each tensor [M, T] would ignore the mask [M, P]. Set one of them.")
        return Columns(weights)

    def step(self) -> Tensor:
        """What this round adds to ``theta``: [P]."""
        match self.direction:
            case Given(step):
                return step
            case Combine(weights, mask):
                return self.stepped(maths.combine(self.updates, weights, mask))
            case Columns(weights):
                parts = zip(self.updates.split(self.layout, 1), weights.unbind(1), strict=True)
                return self.stepped(torch.cat([maths.combine(u, w) for u, w in parts]))

    def stepped(self, mean: Tensor) -> Tensor:
        """What ``mean`` [P], instead of the combined updates, adds to ``theta``: with scale and shift, [P]."""
        step = mean if self.scale == 1 else self.scale * mean  # without a copy if the scale is 1
        return step if self.shift is None else step + self.shift

    def directed(self, coefficients: Tensor, absent: Tensor) -> Cohort:
        """The cohort with ``coefficients`` [M + A], or [M + A, T], of its updates and of A earlier ones ``absent`` [A, P], and equal weights."""
        M, shift = len(self.ids), self.shift
        if len(absent):
            c = (self.scale * coefficients[M:]).to(absent.dtype)
            parts = zip(c.unbind(1), absent.split(self.layout, 1), strict=True) if c.dim() == 2 else [(c, absent)]
            earlier = torch.cat([weights @ part for weights, part in parts])
            shift = earlier if shift is None else shift + earlier
        return replace(self, weights=self.uniform, coefficients=coefficients[:M], shift=shift)

    @property
    def counted(self) -> Tensor:
        """Signed weight of each client in the step, with absolute values that sum to one: [M]."""
        if self.coefficients is None:
            return self.weights
        c = self.coefficients
        if c.dim() == 2:
            c = c @ torch.tensor(self.layout, dtype=c.dtype, device=c.device)
        total = c.abs().sum()
        return c / total if total > 0 else c

    def buffer_step(self) -> Tensor:
        """What this round adds to the buffers: a plain convex average, never extrapolated, [G - P]."""
        return maths.combine(self.buffer_updates, maths.simplex(self.weights), self.buffer_mask)


@dataclass(frozen=True)
class Bounds:
    """What is known of a report before it comes; who reports anything else is left out of the round, with its name.

    Parameters
    ----------
    low, high : the least and the largest number of it.
    samples : whether its numbers add up to no more than the client's samples.
    steps : whether it is a distance that the client's steps can go: 0, or from one step's to that of all.
    length : whether it may be only so many times as long as the median of the round, as an update: of the ``"client"``
        or, where it grows with its samples, of a ``"sample"``; empty for a report that is not compared.
    """

    low: float = -INF
    high: float = INF
    samples: bool = False
    steps: bool = False
    length: Literal["", "client", "sample"] = ""

    def __str__(self) -> str:
        return str(Range(self.low, self.high))


# what a rule may declare, and in words what it then sets
OWNS: Mapping[str, str] = {
    "weights": "the weights of the clients",
    "updates": "what the server takes for each update",
    "mask": "which parameters count",
    "start": "where training starts",
    "direction": "the direction of the step",
    "step": "the step of the server",
    "gradient": "where the gradient is taken",
    "submodel": "which part of the network a client gets",
    "upload": "what a client sends",
    "reward": "what each client gets back",
    "use": "what a client does to its model before it predicts",
    "decision": "which class is predicted",
}
WORDS: Mapping[str, Sequence[str]] = {
    "owns": (*OWNS,),
    "needs": ("validation", "contribution", "contribution_on_test", "neurons", "classes", "sensitive"),
    "uses": ("features", "classifier"),
    "sees": SEES,
}


@dataclass(frozen=True)
class Declarations:
    """What a rule declares, each by a class attribute or a property of this name.

    Parameters
    ----------
    owns : what only one rule of a method may set: ``"start"``, ``"gradient"``, ``"updates"`` (what the server takes for each client's
        update), ``"mask"``, ``"weights"`` (of the clients), ``"direction"`` (the coefficients of the updates), ``"submodel"``,
        ``"upload"``, ``"reward"`` (what each client gets), ``"step"`` (what an optimiser of the server makes of it), ``"use"``,
        ``"decision"`` (which class is predicted).
    needs : what the federation must have: ``"validation"`` (the server's own data), ``"contribution"`` (accuracy of each client trained
        alone; measured before the first round), ``"neurons"`` (known hidden units), ``"classes"`` (targets that are classes),
        ``"sensitive"`` (samples with sensitive attributes).
    uses : what of the network the rule uses: ``"features"``, that enter its classifier, and the trained ``"classifier"`` itself.
    sees : what the server must see of single clients, the least that is enough. ``"nothing"``; ``"sum"``, sums over the clients of
        updates and reports, with weights known before the round; ``"scalars+sum"``, also a few numbers of each client before the
        sums, on which the weights may depend; ``"matrix"``, what each client sends: updates, their inner products or signs, a
        model to evaluate. Default: ``"matrix"`` for a rule with a server hook, else ``"sum"``.
    reports : in words, what a client reports of its data besides its update; empty for nothing.
    ranges : the bounds of all that a client reports, by its keys; empty for any finite numbers, under any keys.
    stays : keys of the report that a simulation records, and that a client between machines does not send.
    seals : whether only the update may leave a client, because this rule protects nothing else.
    sharing : what the clients share: models, unless it is nothing, or all their data.
    power : how the weights follow from sums, if the report has no other use; None if they do not.
    mask_buffers : whether the mask also covers BatchNorm's running statistics.

    Raises
    ------
    ValueError : a word that nothing reads, or another type.
    """

    owns: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    sees: Sees = "sum"
    reports: str = ""
    ranges: Mapping[str, Bounds] = field(default_factory=dict)
    stays: frozenset[str] = frozenset()
    seals: bool = False
    sharing: Sharing = Sharing.MODELS
    mask_buffers: bool = False

    def __post_init__(self) -> None:
        for f in fields(self):
            value, usual = getattr(self, f.name), f.default
            if isinstance(usual, frozenset) and isinstance(value, set | list | tuple):
                object.__setattr__(self, f.name, frozenset(value))
            elif isinstance(usual, frozenset | str | bool) and not isinstance(value, type(usual)):
                kind = type(usual).__name__
                raise ValueError(f"{f.name} must be a {kind}; found {value!r}. If it is a hyper-parameter, rename it.")
        for name, words in WORDS.items():
            value = getattr(self, name)
            require_known(f"word in {name}", words, *((value,) if name == "sees" else sorted(value, key=str)))


@dataclass(frozen=True)
class Rule:
    """The hooks of a round, in order of time; each has a default that does nothing.

    It has many methods because each step of a round in which a published method differs from FedAvg is one hook.

    What holds for all rounds is declared: :class:`equipoise.core.rule.Declarations`.
    A rule is final: vary it by composing, not by subclassing.
    """

    @property
    def declared(self) -> Declarations:
        """What the rule declares, from its attributes of the same names.

        Raises
        ------
        ValueError : a word that nothing reads, or another type.
        """
        server = any(overrides(self, hook) for hook in ("prepare", "aggregate", "reward"))
        given: dict[str, Any] = {"sees": "matrix" if server else "sum"}
        given["reports"] = "a report" if overrides(self, "finish") else ""
        given |= {f.name: getattr(self, f.name) for f in fields(Declarations) if hasattr(self, f.name)}
        try:
            return Declarations(**given)
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: {error}") from None

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}: ")
        for f in fields(self):
            if isinstance(value := getattr(self, f.name), list):
                object.__setattr__(self, f.name, tuple(value))

    def check(self, solver: Solver) -> None:
        """Refuse a solver that lacks what the rule needs, with a ``TypeError`` that names the ones to use."""

    def doubt(self, setup: Setup) -> str:
        """Why little can be learnt with this network and these clients, said before the first round; empty if nothing speaks against it."""
        return ""

    # before the first round
    def client_state(self, setup: Setup) -> State:
        """The state of one client before its first visit."""
        return {}

    def server_state(self, setup: Setup) -> State:
        """The server's state before the first round."""
        return {}

    def no_report(self, setup: Setup) -> State:
        """A report of zeros. A rule that needs only the sum of its reports declares it by this, and they can be masked."""
        return {}

    # broadcast (server)
    def prepare(self, state: State, briefing: Briefing) -> State:
        """The server's state when a round begins, before the broadcast."""
        return state

    def submodel(self, state: State, m: int) -> Tensor | None:
        """Hidden units [K] (boolean) of client ``m``'s submodel; None for all."""
        return None

    def message(self, state: State, m: int) -> State:
        """What the server sends to client ``m`` besides its model."""
        return {}

    # on the client
    def private(self, model: Model) -> Tensor | None:
        """Coordinates [G] (boolean) that never leave the client, or None."""
        return None

    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        """The whole model [..., G] from which local training starts."""
        return start

    def trains(self, visit: Visit) -> Tensor | None:
        """Coordinates [..., P] (boolean) that local training may move, or None for all."""
        return None

    def loss(self, out: Out, visit: Visit) -> Tensor | float:
        """A term [...] of the batch loss, from logits, features and labels."""
        return 0.0

    def correction(self, theta: Tensor, visit: Visit) -> Tensor | float:
        """A vector [..., P] added to the gradient of the batch loss at ``theta`` [..., P]."""
        return 0.0

    def gradient(self, grad: Gradient, theta: Tensor, visit: Visit) -> Tensor:
        """The gradient [..., P] to use; for rules that evaluate ``grad`` elsewhere, as SAM does."""
        return grad(theta)

    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        """What is sent [..., P] instead of the update (trained less received)."""
        return update

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        """The report to the server, and the client's new state."""
        return {}, visit.state

    # on the server
    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        """The server's new state, and the cohort with new weights, mask or step: the last rule's cohort gives the step."""
        return state, cohort

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        """What each client gets back: ``given`` [M, G], at first the new global model in every row.

        ``cohort.theta`` is the new global model here. A rule that changes nothing returns ``given`` itself.
        """
        return state, given

    # use
    def deploy(self, received: Tensor, visit: Visit) -> Tensor:
        """The whole model [G] with which a client predicts, from ``received``, its state and the message it would get.

        ``visit.oracle`` has one epoch of the client's data, for a client that trains before it predicts.
        """
        return received

    def publish(self, theta: Tensor, state: State) -> Tensor:
        """The global model [P] that the server evaluates and returns at the end."""
        return theta

    def decide(self, predicted: Tensor, outputs: Tensor, s: Tensor | None, state: State) -> Tensor:
        """The class [n] of each sample, from the one ``predicted`` [n], the outputs [n, C], and the codes ``s`` [n, A] where they are known.

        ``state`` is the server's; for the model with which a client predicts it also has what the client remembers, under other keys. Losses
        and probabilities stay those of the outputs.
        """
        return predicted

    def edges(self, state: State) -> tuple[str, Tensor] | None:
        """The attribute and the least probabilities [A] of the positive class by which :meth:`decide` decides; None if it does otherwise."""
        return None


class LossRule(Rule):
    """A rule whose clients report the mean loss of the received model on their data, ``loss``."""

    reports = "the loss of its data"
    ranges = MappingProxyType({"loss": Bounds(0)})

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        """The loss, and the state as it was."""
        return {"loss": visit.oracle.loss(visit.received)}, visit.state


class CatalogueEntry(NamedTuple):
    """One name of the catalogue: its rules, where they come from, named sets of hyper-parameters.

    ``values`` are the defaults of this name where they are not those of its rules (FedISM is FedISM+ with another radius).
    ``remarks`` are added to the docstrings of the rules. ``printed`` is the name in tables of papers, if not that of its rule.
    """

    rules: tuple[type[Rule], ...]
    summary: str
    citation: str
    presets: Mapping[str, Mapping[str, Any]] = {}
    values: Mapping[str, Any] = {}
    remarks: str = ""
    printed: str = ""

    @property
    def name(self) -> str:
        """The name in tables of papers."""
        return self.printed or "+".join(rule.__name__ for rule in self.rules)

    @property
    def defaults(self) -> dict[str, Any]:
        """Every hyper-parameter of this name with its default."""
        own = {f.name: f.default for rule in self.rules for f in fields(rule)}
        return {**own, **self.values}


def read_per_client(values: Sequence[float], setup: Setup, name: str) -> Tensor:
    """A hyper-parameter with one number for each client, as a tensor [N].

    Raises
    ------
    ValueError : another number of them.
    """
    if len(values) != setup.n_clients:
        raise ValueError(
            f"{name} has {len(values)} numbers, and there are {setup.n_clients} clients. Give one for each client, in their order."
        )
    return torch.as_tensor(values).to(setup.sizes)


UNTIMED = ("check", "doubt", "no_report", "edges")  # functions of a rule that belong to no moment of a round
HOOKS = tuple(  # in order of time
    name for name, value in vars(Rule).items() if isfunction(value) and not name.startswith("_") and name not in UNTIMED
)


def told(rules: Sequence[Rule], reports: Sequence[State]) -> list[State]:
    """The reports to all rules, without what stays with a client that is not simulated."""
    pairs = zip(rules, reports, strict=True)
    return [{k: x for k, x in report.items() if k not in rule.declared.stays} for rule, report in pairs]


def needed(thing: Needed | None, name: str) -> Needed:
    """``thing``, which a rule declared in :attr:`Declarations.needs`.

    Raises
    ------
    ValueError : it is None; a federation checks this before training.
    """
    if thing is None:
        raise ValueError(f"The rule needs {name}, and there is none here.")
    return thing


def overrides(rule: Rule, hook: str) -> bool:
    """Whether a rule defines a hook itself."""
    return getattr(type(rule), hook) is not getattr(Rule, hook)


def uncalled(rule: type[Rule]) -> str:
    """Why a public name of a rule has no effect: a function that is no hook, or nearly the name of a declaration; empty if all have one."""
    classes = rule.__mro__[: rule.__mro__.index(Rule)]
    declared = {f.name for f in fields(Declarations)}
    given = {name: value for cls in classes for name, value in vars(cls).items() if not name.startswith("_")}
    for name in sorted(given.keys() - vars(Rule) - declared - {f.name for f in fields(rule)}):
        value = given[name]
        if isinstance(value, classmethod) or (callable(value) and not isinstance(value, type)):
            return (
                f"{name} is no hook, so no round would call it.{near(name, (*HOOKS, *UNTIMED))} A function of your own begins with an "
                f"underscore: _{name}."
            )
        if advice := near(name, declared, 0.8):
            return f"{name} is no declaration, so nothing would read it.{advice} Otherwise begin it with an underscore: _{name}."
    return ""
