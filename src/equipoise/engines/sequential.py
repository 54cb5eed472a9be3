"""One client after another: any network, any data."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from equipoise.core.draws import noise, seeded
from equipoise.core.hidden_units import Neurons
from equipoise.core.model import Bound
from equipoise.core.oracle import Oracle
from equipoise.engines.job import Answer, Job
from equipoise.system.tree import tree_map


def sequential(job: Job) -> Iterator[Answer]:
    """Visit the clients in order. A client that raises answers with its error; the others continue."""
    yield from one_by_one(job, Bound(job.model), job.longest_first if job.added else range(len(job.ids)))


def one_by_one(job: Job, bound: Bound, rows: Sequence[int]) -> Iterator[Answer]:
    """Visit the clients at ``rows`` in order, with a copy of the network that no one else uses."""
    for row in rows:
        try:
            yield visit(job, bound, row)
        except Exception as error:  # an error in a user's data or network affects this client only
            yield Answer.failed(row, error)


def visit(job: Job, bound: Bound, row: int) -> Answer:
    """Visit the client at one row of the job."""
    if job.neurons is not None and job.units is not None:
        units = job.units[row]
        if not units.all() and job.neurons.fits(units):
            return _small(job, job.neurons, units, row)
    oracle = Oracle(bound, job.data[row], job.local, job.schedules.of(row), job.model.n_params)
    random = job.model.random or job.data[row].content is None
    with seeded(noise(job.settings.seed, job.t, job.ids[row]) if random else None):
        trained, reports, states, loss = job.visit(oracle, row, [row])
    bound.require_unchanged(trained)
    reports, states = tree_map(lambda leaf: leaf[None], [reports, states])
    return Answer((row,), trained[None], reports, states, losses=loss[None])


def _small(job: Job, neurons: Neurons, units: Tensor, row: int) -> Answer:
    """Visit a client with a submodel by training a smaller network: the same numbers, in less time."""
    model, index = neurons.extract(units)
    part = job.part([row])
    small = replace(part, model=model, received=part.received[:, index], units=None, held=None)
    answer = visit(small, Bound(model), 0)
    trained = part.received.index_copy(1, index, answer.trained)
    return replace(answer.within([row]), trained=trained)
