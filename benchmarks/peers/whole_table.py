"""What a user of a simulator without comparisons writes: every method with every seed in two processes, and the table."""

from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import mean, stdev

import torch
from whole_task import METHODS, SEEDS


def compare(run):
    """Print mean and STD over the seeds of the test accuracy after the last round, in percent."""
    torch.set_num_threads(1)
    cells = list(product(METHODS, range(SEEDS)))
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        reached = dict(zip(cells, pool.map(run, *zip(*cells, strict=True)), strict=True))
    for method in METHODS:
        values = [100 * reached[method, seed][-1] for seed in range(SEEDS)]
        print(f"{method:10} {mean(values):6.2f} {stdev(values):6.2f}", flush=True)
