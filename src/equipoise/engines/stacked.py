"""Many clients at a time: as one tensor program, for small networks, and over the cores of one machine.

Threads share the cores, so no data is copied or sent.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from textwrap import shorten

from equipoise.core.model import Bound, Stacked
from equipoise.core.oracle import Oracle
from equipoise.data.samples import Samples, stack
from equipoise.engines.job import Answer, Job, draws
from equipoise.engines.processes import can_be_sent
from equipoise.engines.sequential import one_by_one, sequential
from equipoise.system.threads import run_unordered
from equipoise.system.tree import span

log = logging.getLogger(__name__)
MEMORY = 64 << 20  # bytes for the vectors of one stack; larger ones are no faster, and take their memory
ON_DEVICE = 4 << 30  # the same on a GPU, where the cache does not count
VECTORS = 6  # parameters, gradient, momentum, received, trained and one temporary
Visit = Callable[[Sequence[int]], Iterator[Answer]]
FEWEST, MOST = 20, 256  # clients of a stack, by default: smaller stacks waste time, larger ones leave cores idle


def require_stackable(job: Job) -> None:
    """Raise ``ValueError`` for a network with dropout, whose random numbers cannot be those of other engines, or streamed data."""
    if job.model.random:
        raise ValueError(
            "The stacked engine cannot draw the random numbers of dropout or of a transform as the other engines do. "
            "Use engine='sequential'."
        )
    if any(d.content is None for d in job.data):
        raise ValueError(
            "The stacked engine needs every client's data in memory, and some is streamed. Use engine='sequential'."
        )


def stacks(job: Job, chunk: int | None = None) -> list[tuple[int, ...]]:
    """Rows of each stack, the small clients first.

    Clients of a stack have similar sizes, or equal ones where padding would have an influence, as with BatchNorm. Memory and ``chunk`` bound it.
    """
    memory = MEMORY if job.received.device.type == "cpu" else ON_DEVICE
    limit = max(1, memory // (VECTORS * job.model.size * job.received.element_size()))
    limit = limit if chunk is None else min(limit, chunk)
    by_size = sorted(range(len(job.ids)), key=lambda r: job.data[r].size)
    groups: list[list[int]] = []
    for r in by_size:
        if groups and len(groups[-1]) < limit and _alike(job, job.data[groups[-1][0]], job.data[r]):
            groups[-1].append(r)
        else:
            groups.append([r])
    return [tuple(g) for g in groups]


def _alike(job: Job, small: Samples, large: Samples) -> bool:
    if small.content is None or large.content is None or small.content.kind != large.content.kind:
        return False
    if small.size == large.size or job.model.mixes:
        return small.size == large.size
    return -(-large.size // job.settings.batch_size) <= 2 * -(-small.size // job.settings.batch_size)


def _visit(job: Job, together: Stacked, rows: tuple[int, ...]) -> Answer:
    index = span(rows)
    data = stack([job.data[r] for r in rows])
    oracle = Oracle(together, data, job.local, job.schedule(rows), job.model.n_params)
    trained, reports, states, losses = job.visit(oracle, index, rows)
    together.require_unchanged(trained)
    return Answer(rows, trained, reports, states, losses=losses)


# over the cores
@dataclass(frozen=True)
class Workers:
    """Visit clients in ``n`` threads of one core each, the longest first.

    The result does not depend on ``n``: it is that of the sequential engine with one thread inside operations.
    """

    n: int

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers in the order in which they are ready."""
        if draws(job):
            subject = (
                "The network, or the transform of its inputs, draws" if job.model.random else "Streamed data may draw"
            )
            instead = "engine='processes', where every worker has its own, or " if can_be_sent(job.model) else ""
            raise ValueError(
                f"{subject} random numbers in training, for which the threads of engine='workers' have one generator. "
                f"Use {instead}engine='sequential'."
            )
        rows = [(row,) for row in job.longest_first]
        yield from _spread(job, rows, self.n, lambda: partial(one_by_one, job, Bound(job.model)))


@dataclass
class Stacks:
    """Visit stacks of at most ``chunk`` clients in ``n`` threads of one core each.

    The result depends on ``chunk`` by rounding, and not on ``n``. None: a quarter of the clients, from 20 to 256. Every run has
    its own engine, which warns of its first stack that fails.
    """

    n: int
    chunk: int | None = None
    warned: bool = field(default=False, init=False)

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers in the order in which they are ready.

        Raises
        ------
        ValueError : the clients cannot be stacked, see :func:`require_stackable`.
        """
        require_stackable(job)
        chunk = self.chunk
        if chunk is None and job.received.device.type == "cpu":  # a GPU works on one stack at a time: as large as fits
            chunk = min(max(-(-len(job.ids) // 4), FEWEST), MOST)
        rows = stacks(job, chunk)[::-1]
        yield from _spread(job, rows, self.n, lambda: partial(self._together, job, Stacked(job.model)))

    def _together(self, job: Job, network: Stacked, rows: Sequence[int]) -> Iterator[Answer]:
        """Visit the clients at ``rows`` as one stack; if that fails, one by one, so that only the client with the error fails."""
        try:
            yield _visit(job, network, tuple(rows))
        except Exception as error:  # perhaps of one client's data
            if not self.warned:
                self.warned = True
                log.warning(
                    "Clients that cannot be trained as one stack are trained one by one, with the same result (%s). "
                    "This message appears once per run. If it is so in all rounds, engine='workers' is faster.",
                    shorten(f"{type(error).__name__}: {error}", 120, placeholder=" …"),
                )
            yield from (answer.within(rows) for answer in sequential(job.part(rows)))


def _spread(job: Job, parts: Sequence[Sequence[int]], n: int, visitor: Callable[[], Visit]) -> Iterator[Answer]:
    """Visit the clients of each part in one of ``n`` threads, each with its own ``visitor``; on a GPU, in one thread."""
    n = n if job.received.device.type == "cpu" else 1

    def make() -> Callable[[Sequence[int]], list[Answer]]:
        visit = visitor()
        return lambda rows: list(visit(rows))

    for _, answers in run_unordered(parts, make, n):
        yield from answers
