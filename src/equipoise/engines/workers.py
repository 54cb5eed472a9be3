"""Clients spread over the cores of one machine, in threads: no data is copied or sent."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from equipoise.core.model import Model
from equipoise.engines.job import Answer, Job, draws
from equipoise.engines.processes import can_be_sent
from equipoise.engines.sequential import OneByOne
from equipoise.engines.stacked import Together, require_stackable, stacks, warn
from equipoise.system.threads import run_unordered

# clients of a stack, by default: smaller stacks waste time, larger ones leave cores idle
FEWEST, MOST = 20, 256


@dataclass(frozen=True)
class Workers:
    """Visit clients in ``n`` threads of one core each, the longest first.

    The result does not depend on ``n``: it is that of the sequential engine with one thread inside operations.
    """

    n: int

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers in the order in which they are ready."""
        if draws(job):
            what = (
                "The network, or the transform of its inputs, draws" if job.model.random else "Streamed data may draw"
            )
            instead = "engine='processes', where every worker has its own, or " if can_be_sent(job.model) else ""
            raise ValueError(
                f"{what} random numbers in training, for which the threads of engine='workers' have one generator. "
                f"Use {instead}engine='sequential'."
            )
        yield from _spread(job, [(row,) for row in job.longest_first], OneByOne, self.n)


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
        ValueError : the clients cannot be stacked, as for :func:`equipoise.engines.stacked.stacked`.
        """
        require_stackable(job)
        if job.received.device.type != "cpu":  # a GPU works on one stack at a time: as large as fits
            chunk = self.chunk
        else:
            chunk = self.chunk or min(max(-(-len(job.ids) // 4), FEWEST), MOST)
        yield from _spread(job, stacks(job, chunk)[::-1], partial(Together, failed=self._failed), self.n)

    def _failed(self, error: Exception) -> None:
        if not self.warned:
            self.warned = True
            warn(error)


def _spread(
    job: Job, parts: Sequence[Sequence[int]], kind: Callable[[Model], OneByOne | Together], n: int
) -> Iterator[Answer]:
    """Visit the clients of each part in one of ``n`` threads; on a GPU, in one thread."""
    n = n if job.received.device.type == "cpu" else 1

    def make() -> Callable[[Sequence[int]], list[Answer]]:
        visitor = kind(job.model)
        return lambda rows: list(visitor(job, rows))

    for _, answers in run_unordered(parts, make, n):
        yield from answers
