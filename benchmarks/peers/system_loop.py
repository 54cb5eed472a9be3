"""The plain loop: what a careful person writes in an afternoon. Tensors in memory, no loader, torch's own optimiser."""

import numpy as np
import torch
from jobs import LR, MOMENTUM, WEIGHT_DECAY, Clock, arguments, data, finish, network
from torch.nn import functional

options = arguments()
job, clock = options.job, Clock()
clients, net, server = data(job), network(job), network(job)
draw = np.random.default_rng(1)


def order(t: int, client: int) -> torch.Tensor:
    """The order in which a client's samples are used."""
    if options.drawn:  # by Equipoise, which always shuffles: to check that it ends at the same weights
        from equipoise.core.draws import schedule

        index = schedule(0, t, [client], [job.samples], 1, job.batch, drop_single=False).index.flatten()
        return index[index >= 0]
    return torch.arange(job.samples) if options.check else torch.randperm(job.samples)


clock.mark()
for t in range(options.rounds):
    cohort = draw.choice(job.clients, job.cohort, replace=False) if job.share < 1 else range(job.clients)
    average = {k: torch.zeros_like(v) for k, v in server.state_dict().items() if v.is_floating_point()}
    for i in cohort:
        net.load_state_dict(server.state_dict())
        optimiser = torch.optim.SGD(net.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY)
        x, y = clients[i]
        for rows in order(t, i).split(job.batch):
            optimiser.zero_grad()
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
        for k, v in net.state_dict().items():
            if k in average:
                average[k].add_(v, alpha=1 / job.cohort)
    server.load_state_dict({**server.state_dict(), **average})
    clock.mark()
finish(options, server.parameters())
