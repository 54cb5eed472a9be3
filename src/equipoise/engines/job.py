"""The input and the output of an engine: a job and its answers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from equipoise.core.client import visit_client
from equipoise.core.draws import Schedule, key, schedule
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Rule, State
from equipoise.core.settings import Settings
from equipoise.core.solver import Solver, at
from equipoise.data.samples import Samples
from equipoise.system.errors import CODE, out_of_memory
from equipoise.system.text import Said, key_of
from equipoise.system.tree import flatten, numbered, span, tree_map

FAULTS = (
    AssertionError, AttributeError, ImportError, IndexError, KeyError, NameError, NotImplementedError, RuntimeError, TypeError
)  # fmt: skip
# fields of a job that have an entry for each client, and are given to its visit
VISITED = ("received", "states", "messages", "held")
OUT_OF_MEMORY = "memory ran out"  # how the reason of such an answer begins; what to do follows a colon


@dataclass(frozen=True)
class Job:
    """The client side of one round.

    ``ids`` are the M clients, ``received`` [M, G] the models they start from (a view where all get the same),
    ``states`` and ``messages`` one dictionary per rule with values [M, ...], ``data`` their samples. ``private`` [G] marks
    what never leaves a client. ``chances`` are those of each sample's random numbers, see :func:`equipoise.core.draws.chances`.
    Where clients get submodels, ``units`` [M, K] are the hidden units of each and ``held`` [M, G] the coordinates;
    ``neurons`` are given if a smaller network may be trained instead of the masked one. Clients draw the noise that
    protects them from ``secret``: at least 32 random bytes, known to the client alone and used once. With None it is drawn
    from the seed, which protects no client: for simulation only. Where answers are ``added`` as they come, those with most samples
    should come first.
    """

    model: Model
    rules: tuple[Rule, ...]
    solver: Solver
    settings: Settings
    t: int
    rounds: int
    chances: tuple[int, ...]
    ids: tuple[int, ...]
    received: Tensor
    states: list[State]
    messages: list[State]
    data: Sequence[Samples]
    private: Tensor | None = None
    units: Tensor | None = None
    held: Tensor | None = None
    neurons: Neurons | None = None
    secret: bytes | None = None
    added: bool = False

    @property
    def local(self) -> Solver:
        """The local optimiser with the learning rate of this round."""
        return at(self.solver, self.t, self.rounds, self.model)

    def schedule(self, rows: Sequence[int]) -> Schedule:
        """The batches of the clients at ``rows``."""
        s, single = self.settings, self.model.batch_norm
        ids, sizes = [self.ids[r] for r in rows], [self.data[r].size for r in rows]
        return schedule(
            s.seed, self.t, ids, sizes, s.epochs, s.batch_size, chances=self.chances, drop_single=single, steps=s.steps
        ).to(self.received.device)

    def keys(self, rows: Sequence[int]) -> tuple[bytes, ...]:
        """The keys from which the clients at ``rows`` draw their noise."""
        return tuple(key(self.settings.seed, self.t, self.ids[r], self.secret) for r in rows)

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors that have an entry for each client, from which :func:`fields_of` makes fields."""
        return flatten(self._trees("units", *VISITED))

    @cached_property
    def schedules(self) -> Schedule:
        """The batches of all clients."""
        return self.schedule(range(len(self.ids)))

    @property
    def longest_first(self) -> list[int]:
        """Rows by number of samples to train on, most first: parallel workers then finish at about the same time."""
        samples = self.schedules.counts.sum(1).tolist()
        return sorted(range(len(self.ids)), key=lambda row: -samples[row])

    def part(self, rows: Sequence[int]) -> Job:
        """The job of the clients at ``rows``."""
        ids, data = tuple(self.ids[r] for r in rows), [self.data[r] for r in rows]
        return replace(self, ids=ids, data=data, **self._entries(span(rows), "units", *VISITED))

    def visit(
        self, oracle: Oracle, index: slice | int | list[int], rows: Sequence[int]
    ) -> tuple[Tensor, list[State], list[State], Tensor]:
        """What :func:`visit_client` returns for the clients at ``rows``, which are the entries ``index`` of the tensors."""
        part = self._entries(index, *VISITED)
        sent = part["received"], part["states"], part["messages"]
        return visit_client(
            self.rules, oracle, self.t, self.rounds, *sent, self.private, part["held"], partial(self.keys, rows)
        )

    def _entries(self, index: slice | int | list[int], *names: str) -> dict[str, Any]:
        """The entries ``index`` of tensors that have one for each client, by the names of the fields."""
        entries = tree_map(lambda leaf: leaf[index], self._trees(*names))
        return {name: entries.get(name) for name in names}

    def _trees(self, *names: str) -> dict[str, Any]:
        return {name: tree for name in names if (tree := getattr(self, name)) is not None}


def fields_of(leaves: Mapping[str, Tensor], n_rules: int) -> dict[str, Any]:
    """The fields of a job that have an entry for each client, from :attr:`Job.leaves`."""
    fields: dict[str, Any] = {name: leaves.get(name) for name in ("received", "units", "held")}
    return fields | {name: numbered(leaves, name, n_rules) for name in ("states", "messages")}


@dataclass(frozen=True)
class Answer:
    """What the clients at ``rows`` of a job sent: trained models [m, G] and, per rule, reports and states [m, ...].

    ``losses`` [m] are the mean cross-entropies of their training, if the engine reports them. ``error`` is the reason if they sent nothing, and ``cause`` the exception.
    """

    rows: tuple[int, ...]
    trained: Tensor
    reports: list[State]
    states: list[State]
    error: str | None = None
    cause: Exception | None = None
    losses: Tensor | None = None

    def within(self, rows: Sequence[int]) -> Answer:
        """The same answer, for a job in which its clients are at ``rows``."""
        return replace(self, rows=tuple(rows[row] for row in self.rows))

    def sent(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What another process needs of one client's answer for :meth:`of`: its error in words, or its tensors."""
        if self.error is not None:
            trace = "".join(traceback.format_exception(self.cause)) if self.cause else self.error
            return {"error": str(self.error), "key": key_of(self.error), "trace": trace}, {}
        tree = {"trained": self.trained[0], "reports": self.reports, "states": self.states, "losses": self.losses}
        return {}, {name: x.detach() for name, x in flatten(tree).items()}

    @staticmethod
    def of(row: int, words: Mapping[str, str], leaves: Mapping[str, Tensor], n_rules: int) -> Answer:
        """The answer of the client at a row, as :meth:`sent` gave it."""
        if words:
            error = Said(words["error"], words["key"])
            return Answer((row,), torch.empty(0), [], [], error, RuntimeError(words["trace"]))
        reports, states = (numbered(leaves, name, n_rules) for name in ("reports", "states"))
        return Answer((row,), leaves["trained"][None], reports, states, losses=leaves["losses"])

    @staticmethod
    def failed(row: int, error: Exception) -> Answer:
        """The answer of a client that raised."""
        words = Said(f"{type(error).__name__}: {error}", CODE * (type(error) in FAULTS))
        if out_of_memory(error):
            first = words.strip().splitlines()[0]
            words = Said(f"{OUT_OF_MEMORY}: take a smaller batch size, or fewer workers ({first})", OUT_OF_MEMORY)
        return Answer((row,), torch.empty(0), [], [], words, error)


Engine = Callable[[Job], Iterator[Answer]]


def draws(job: Job) -> bool:
    """Whether training may draw random numbers, for which each client needs its own generator."""
    return job.model.random or any(d.content is None for d in job.data)
