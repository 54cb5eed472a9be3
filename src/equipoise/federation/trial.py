"""A run of a method: what of it does not change, in words for a reader too, and what it remembers from round to round."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar, cast

import torch
from torch import Tensor

from equipoise.core.client_rows import Rows
from equipoise.core.draws import cohort_size
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Cohort, Setup, State
from equipoise.core.settings import COMING, SIMULATED, Settings, simulated
from equipoise.core.simulation import Attackers, Presence
from equipoise.core.solver import Solver
from equipoise.data.samples import Absent, Samples
from equipoise.engines import EngineChoice
from equipoise.engines.job import Engine
from equipoise.federation.method import Method, MethodError, require_own_weights
from equipoise.records.meta import Content
from equipoise.system import own_code
from equipoise.system.environment import code, kind, machine, release
from equipoise.system.suggestions import some
from equipoise.system.text import plural
from equipoise.system.tree import aligned, flatten, tree_map, unflatten

log = logging.getLogger(__name__)

RECEIPT = {  # of a state that a client keeps where it is: the round it is from (-1: none yet), and the hash of it
    "round": torch.tensor(-1),
    "sha256": torch.zeros(32, dtype=torch.uint8),
}

Site = TypeVar("Site", str, int)


@dataclass(frozen=True)
class Trial:
    """Everything about a run that does not change: see :class:`equipoise.Federation` for the meaning of each.

    ``oracle`` answers questions about the server's validation data, ``contribution`` [N] is what each client reaches alone, ``neurons``
    are the network's hidden units; each is None where no rule needs it. ``presence`` has the available clients (None: all), ``attackers``
    those that attack. ``workers`` is how many cores evaluation may use, ``rounds`` how many are planned, as far as known. Clients that
    are ``away`` keep their state and their private coordinates where they are. Where answers are ``summed``, a mean over the clients
    replaces what each sent.
    """

    model: Model
    bound: Bound
    method: Method
    solver: Solver
    engine: Engine
    setup: Setup
    data: tuple[Samples | Absent, ...]
    names: tuple[str, ...]
    private: Tensor | None
    settings: Settings
    chances: tuple[int, ...]
    oracle: Oracle | None = None
    contribution: Tensor | None = None
    neurons: Neurons | None = None
    presence: Presence | None = None
    attackers: Attackers | None = None
    workers: int = 1
    away: bool = False
    summed: bool = False
    rounds: int = 0

    @cached_property
    def labels(self) -> str:
        """Hash of the labels of all clients, as far as they are known without reading samples."""
        total = hashlib.sha256()
        for d in self.data:
            if d.shape_and_labels is not None:
                total.update(d.shape_and_labels[1].cpu().numpy().tobytes())
        return total.hexdigest()

    @cached_property
    def factors(self) -> Tensor | None:
        """The factors of the clients' updates in their mean [N], if the server needs no more of them than this mean; otherwise None."""
        try:
            own = own_weights(self, dict(enumerate(self.setup.sizes.tolist())))
        except (MethodError, ArithmeticError):
            return None
        return self.setup.sizes.new_tensor([*own.values()])

    def header(self, choice: EngineChoice) -> list[str]:
        """Method, training, network, engine, BatchNorm and hidden units, a line each."""
        model, s, head = self.model, self.settings, self.model.head_name
        asked = cohort_size(len(self.data), s.participation)
        local = f"{s.epochs} local epochs" if s.steps is None else f"{s.steps} local steps"
        dtype = str(model.initial.dtype).removeprefix("torch.")
        features = f"features enter {head!r}" if head else "no classifier, so the logits are its features"
        method = own_code.short(str(self.method))
        lines = [
            f"method {method} · {plural(len(self.data), 'client')}, {asked} a round · {local} of batch {s.batch_size} · {self.solver}",
            f"network of {model.n_params:,} trainable parameters ({dtype}{', autocast to bf16' if model.bf16 else ''}); {features}",
            f"engine {choice.engine}: {choice.why}",
            f"BatchNorm: {self._batch_norm()}",
        ]
        if model.whole:
            treatment = "kept by each client" if self._kept() else "averaged by client weight and rounded"
            lines.append(f"whole numbers of the network: {some(model.whole)}, {treatment}")
        if self.presence is not None:
            coming = ", ".join(f"{name} {value}" for name, value in simulated(s, COMING).items())
            lines.append(f"clients come and go, drawn from the seed: {coming}")
        if (attackers := self.attackers) is not None:
            attack = f"attack {attackers.attack}{f' of scale {attackers.scale:g}' if attackers.scale else ''}"
            names = some([self.names[m] for m in attackers.clients])
            lines.append(f"{attack} by {len(attackers.clients)} of {len(self.data)}: {names}")
        here = [name for name in SIMULATED if self.presence is None or name not in COMING]
        if not self.method.sharing.federated and (idle := simulated(s, here)):
            settings = ", ".join(f"{name} {value}" for name, value in idle.items())
            lines.append(f"without effect here, as it is no federated learning: {settings}")
        if self.neurons is not None:
            sizes = ", ".join(f"{name} {n}" for name, n in zip(self.neurons.names, self.neurons.sizes, strict=True))
            shared = [f"{name} is everybody's ({reason})" for name, reason in self.neurons.left_out.items()]
            lines.append("; ".join([f"hidden units: {sizes}", *shared]))
        return lines

    def _batch_norm(self) -> str:
        """What happens to the running statistics."""
        model = self.model
        if not model.batch_norm:
            return "none in this network"
        if self._kept():
            treatment = "kept by each client; the global model is tested with their mean"
        else:
            masked = any(rule.declared.mask_buffers for rule in self.method.rules)
            treatment = f"averaged by client weight and {'masked like parameters' if masked else 'not masked'}"
        n = model.size - model.n_params - model.n_whole
        return f"{n:,} running statistics, {treatment}; a last batch of one sample is left out"

    def _kept(self) -> bool:
        """Whether all buffers stay with each client."""
        return self.private is not None and bool(self.private[self.model.n_params :].all())

    def machines(self, earlier: Sequence[Content], t: int) -> list[Content]:
        """What computed the rounds, each machine with its first one; this machine computes those from ``t`` on.

        A run that another kind of processor, or another version of Equipoise, began continues with a warning.
        """
        here = {"round": t, **machine(self.model.initial.device), **code()}
        if not earlier:
            return [here]
        before, since = earlier[-1], f"{self.method}, seed {self.settings.seed}: rounds before {t} were computed"
        if kind(before) != kind(here):
            text = "%s with %s; here it is %s, so from here on the last bits may differ."
            log.warning(text, since, kind(before), kind(here))
        if release(before) != release(here):
            text = (
                "%s by Equipoise %s, and those from here on by %s: results may differ. "
                "Start another run for results of one version."
            )
            log.warning(text, since, release(before) or "of an earlier version", release(here))
        same = kind(before) == kind(here) and release(before) == release(here)
        return list(earlier) if same else [*earlier, here]


@dataclass(frozen=True)
class Progression:
    """All that a run remembers after ``t`` rounds: a tree of tensors, which is the checkpoint.

    ``vector`` [G] is the global model; ``clients`` and ``server`` hold one dictionary per rule, client values [N, ...];
    of clients that are away there is one dictionary of receipts instead.
    ``given`` [N, G] is what each client was handed, if a rule rewards them differently, and ``sent`` [N] the bytes that
    took; ``own`` [N, G] is what each trained, if a rule keeps coordinates private; ``norms`` [N, 25] are the lengths of each client's
    last updates, NaN before the first, where lengths are limited. What there is of every client may be
    :class:`equipoise.core.client_rows.Rows`, see :meth:`equipoise.Setup.per_client`.
    """

    t: int
    vector: Tensor
    clients: list[State]
    server: list[State]
    given: Tensor | None = None
    own: Tensor | None = None
    sent: Tensor | None = None
    norms: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("vector", "clients", "server", "given", "own"):
            object.__setattr__(self, name, aligned(getattr(self, name)))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its path."""
        tree = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "t"}
        return flatten({name: part for name, part in tree.items() if part is not None})

    def restored(self, tensors: Mapping[str, Tensor | Rows], t: int) -> Progression:
        """The same, with the values of a checkpoint; ``KeyError`` names a missing one."""
        leaves = {name: x.to(self.vector.device) for name, x in tensors.items()}
        tree = {"vector": self.vector, "clients": self.clients, "server": self.server}
        here = {**tree, "own": self.own} if self.own is not None else tree
        back = tree_map(_as_before, here, unflatten(here, leaves))
        given, sent, norms = (cast("Tensor | None", leaves.get(name)) for name in ("given", "sent", "norms"))
        return Progression(t, back["vector"], back["clients"], back["server"], given, back.get("own"), sent, norms)


def _as_before(old: Tensor | Rows, new: Tensor | Rows) -> Tensor | Rows:
    """The values of a checkpoint, in memory or on disk as they are in this federation."""
    if isinstance(new, Rows):
        return new if isinstance(old, Rows) else new[:].to(old.device)
    return old.index_copy(0, torch.arange(len(old)), new.to(old.dtype)) if isinstance(old, Rows) else new


def begin(trial: Trial) -> Progression:
    """What is remembered before the first round."""
    rules = trial.method.rules
    of_clients = [{**RECEIPT}] if trial.away else [rule.client_state(trial.setup) for rule in rules]
    clients = tree_map(trial.setup.per_client, of_clients)
    server = [rule.server_state(trial.setup) for rule in rules]
    own = None if trial.private is None or trial.away else trial.setup.per_client(trial.setup.initial)
    return Progression(0, trial.setup.initial.clone(), clients, server, None, own)


def cohort_of(
    trial: Trial, now: Progression, rounds: int, ids: Tensor, received: Tensor, updates: Tensor, held: Tensor | None
) -> Cohort:
    """What the server knows once clients have answered: ``updates`` [M, G] of what they ``received`` [M, G], as far as it is known."""
    P, sizes = trial.model.n_params, trial.setup.sizes[ids]
    return Cohort(
        t=now.t,
        rounds=rounds,
        n_clients=trial.setup.n_clients,
        theta=now.vector[:P],
        updates=updates[:, :P],
        ids=ids,
        sizes=sizes,
        weights=sizes / sizes.sum(),
        layout=trial.model.layout,
        buffer_updates=updates[:, P:],
        received=received,
        kept=received,
        held=held,
        seed=trial.settings.seed,
        oracle=trial.oracle,
        contribution=trial.contribution,
    )


def own_weights(trial: Trial, sizes: Mapping[Site, float]) -> dict[Site, float]:
    """The factor of each site's update: its samples, or one; no number of a different site or of the server.

    Raises
    ------
    MethodError : the rules weigh differently, or do more than weigh.
    """
    require_own_weights(trial.method)
    n, vector = len(sizes), trial.setup.initial
    samples = torch.tensor([*sizes.values()], dtype=torch.float64)
    # which class is positive is the server's choice, on which no weight of a site depends
    setup = replace(trial.setup, sizes=samples, positive=0)
    of_sites = replace(trial, setup=setup, oracle=None, contribution=None)
    received, zero = vector.expand(n, -1), torch.zeros_like(vector).expand(n, -1)
    cohort = cohort_of(of_sites, Progression(0, vector, [], []), 1, torch.arange(n), received, zero, None)
    for rule in trial.method.rules:
        reports = {key: x.expand(n, *x.shape) for key, x in rule.no_report(setup).items()}
        _, cohort = rule.aggregate(rule.server_state(setup), replace(cohort, reports=reports))
    if any(x is not None for x in (cohort.coefficients, cohort.mask, cohort.buffer_mask)):
        raise MethodError("secure=true: a rule of the method does more than weigh the updates. Set secure=false.")
    for own in (samples, torch.ones_like(samples)):
        if torch.allclose(cohort.weights.double(), own / own.sum(), rtol=1e-6, atol=0):
            return dict(zip(sizes, own.tolist(), strict=True))
    raise MethodError("secure=true: the method weighs a site by more than its own samples. Set secure=false.")
