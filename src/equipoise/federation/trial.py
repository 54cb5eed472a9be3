"""A run of a method: what of it does not change, and what it remembers from round to round."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from equipoise.core.attacks import Attackers
from equipoise.core.client_rows import Rows
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.presence import Presence
from equipoise.core.rule import Setup, State
from equipoise.core.settings import Settings
from equipoise.core.solver import Solver
from equipoise.data.samples import Absent, Samples
from equipoise.engines.job import Engine
from equipoise.federation.method import Method
from equipoise.system.tree import aligned, flatten, tree_map, unflatten

RECEIPT = {  # of a state that a client keeps where it is: the round it is from (-1: none yet), and the hash of it
    "round": torch.tensor(-1),
    "sha256": torch.zeros(32, dtype=torch.uint8),
}


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


@dataclass(frozen=True)
class Progression:
    """All that a run remembers after ``t`` rounds: a tree of tensors, which is the checkpoint.

    ``vector`` [G] is the global model; ``clients`` and ``server`` hold one dictionary per rule, client values [N, ...];
    of clients that are away there is one dictionary of receipts instead.
    ``given`` [N, G] is what each client was handed, if a rule rewards them differently, and ``sent`` [N] the bytes that
    took; ``own`` [N, G] is what each trained, if a rule keeps coordinates private; ``norms`` [N, 25] are the lengths of each client's
    last updates, NaN before the first, where ``norm_limit`` is set. What there is of every client may be
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
    kept = [{**RECEIPT}] if trial.away else [rule.client_state(trial.setup) for rule in rules]
    clients = tree_map(trial.setup.per_client, kept)
    server = [rule.server_state(trial.setup) for rule in rules]
    own = None if trial.private is None or trial.away else trial.setup.per_client(trial.setup.initial)
    return Progression(0, trial.setup.initial.clone(), clients, server, None, own)
