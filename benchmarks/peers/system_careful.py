"""The careful loop: the plain one with what helps on a CPU, by hand. Clients in threads of one core, fused steps, images with
their channels innermost, and freed memory kept by the C library.
"""

import ctypes
import platform
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, local

import numpy as np
import torch
from jobs import LR, MOMENTUM, WEIGHT_DECAY, Clock, arguments, data, finish, network
from torch import nn
from torch.nn import functional

options = arguments()
job, clock = options.job, Clock()
torch.set_num_threads(1)
if platform.libc_ver()[0] == "glibc":
    for name, value in ((-3, 32 << 20), (-1, 1 << 30), (-2, 64 << 20)):  # mmap threshold, trim threshold, top pad
        ctypes.CDLL(None).mallopt(name, value)
server, clients = network(job), data(job)
last = torch.channels_last if any(isinstance(m, nn.Conv2d) for m in server.modules()) else torch.contiguous_format
clients = [(x.contiguous(memory_format=last), y) if x.dim() == 4 else (x, y) for x, y in clients]
draw, lock, mine = np.random.default_rng(1), Lock(), local()


def visit(i: int, begin: dict[str, torch.Tensor], average: dict[str, torch.Tensor]) -> None:
    """Train a client, and add its weights to the average."""
    if not hasattr(mine, "net"):
        mine.net = network(job).to(memory_format=last)
    mine.net.load_state_dict(begin)
    optimiser = torch.optim.SGD(mine.net.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True)
    x, y = clients[i]
    rows = torch.arange(job.samples) if options.check else torch.randperm(job.samples)
    for part in rows.split(job.batch):
        optimiser.zero_grad()
        functional.cross_entropy(mine.net(x.index_select(0, part)), y[part]).backward()
        optimiser.step()
    with lock, torch.no_grad():
        for k, v in mine.net.state_dict().items():
            if k in average:
                average[k].add_(v, alpha=1 / job.cohort)


with ThreadPoolExecutor(options.threads) as pool:
    clock.mark()
    for _ in range(options.rounds):
        cohort = draw.choice(job.clients, job.cohort, replace=False) if job.share < 1 else range(job.clients)
        begin = server.state_dict()
        average = {k: torch.zeros_like(v) for k, v in begin.items() if v.is_floating_point()}
        list(pool.map(lambda i, begin=begin, average=average: visit(i, begin, average), cohort))
        server.load_state_dict({**begin, **average})
        clock.mark()
finish(options, server.parameters())
