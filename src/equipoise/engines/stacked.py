"""Many clients as one tensor program: for small networks and many clients."""

import logging
from collections.abc import Callable, Iterator, Sequence
from textwrap import shorten

from equipoise.core.model import Model, Stacked
from equipoise.core.oracle import Oracle
from equipoise.data.samples import Samples, stack
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.system.tree import span

log = logging.getLogger(__name__)
MEMORY = 64 << 20  # bytes for the vectors of one stack; larger ones are no faster, and take their memory
ON_DEVICE = 4 << 30  # the same on a GPU, where the cache does not count
VECTORS = 6  # parameters, gradient, momentum, received, trained and one temporary


def stacked(job: Job) -> Iterator[Answer]:
    """Visit the clients in stacks of similar size.

    Raises
    ------
    ValueError : a network with dropout, whose random numbers cannot be those of the sequential engine, or streamed data.
    """
    require_stackable(job)
    together = Together(job.model, warn)
    for rows in stacks(job):
        yield from together(job, rows)


class Together:
    """Visits clients as one stack; if that fails, one by one, so that only the client with the error fails.

    ``failed`` is called with the error of each stack that fails.
    """

    def __init__(self, model: Model, failed: Callable[[Exception], None]) -> None:
        self.network, self.failed = Stacked(model), failed

    def __call__(self, job: Job, rows: Sequence[int]) -> Iterator[Answer]:
        """Visit the clients at ``rows``."""
        try:
            yield _visit(job, self.network, tuple(rows))
        except Exception as error:  # perhaps of one client's data
            self.failed(error)
            yield from (answer.within(rows) for answer in sequential(job.part(rows)))


def warn(error: Exception) -> None:
    """Say that clients cannot be trained as one stack."""
    reason = shorten(f"{type(error).__name__}: {error}", 120, placeholder=" …")
    log.warning(
        "Clients that cannot be trained as one stack are trained one by one, with the same result (%s). "
        "This message appears once per run. If it is so in all rounds, engine='workers' is faster.",
        reason,
    )


def require_stackable(job: Job) -> None:
    """Raise ``ValueError`` if the clients cannot be stacked, see :func:`stacked`."""
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
