"""One client after another: any network, any data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np

from equipoise.client import visit_client
from equipoise.data.samples import Stream
from equipoise.draws import NOISE, bits, seeded
from equipoise.engines.job import Answer, Job
from equipoise.model import Bound
from equipoise.oracle import Oracle
from equipoise.tree import tree_map


def sequential(job: Job) -> Iterator[Answer]:
    """Visit the clients in order. A client that raises answers with its error; the others go on."""
    bound = Bound(job.model)
    for row in range(len(job.ids)):
        try:
            yield visit(job, bound, row)
        except Exception as error:  # whatever a user's data or network raises concerns this client only
            yield Answer.failed(row, error)


def visit(job: Job, bound: Bound, row: int) -> Answer:
    """Visit the client at one row of the job."""
    oracle = Oracle(bound, job.data[row], job.solver, job.plan([row]).of(0), job.model.n_params)
    seed = int(bits(job.seed, job.t, [job.ids[row]], NOISE, np.zeros((1, 1), np.int64))[0, 0] >> np.uint64(1))
    draws = job.model.random or isinstance(job.data[row], Stream)
    with seeded(seed) if draws else nullcontext():
        trained, reports, states = visit_client(
            job.rules,
            oracle,
            job.t,
            job.rounds,
            job.received[row],
            job.take(job.states, row),
            job.take(job.messages, row),
            job.private,
        )
    reports, states = tree_map(lambda leaf: leaf[None], [reports, states])
    return Answer((row,), trained[None], reports, states)
