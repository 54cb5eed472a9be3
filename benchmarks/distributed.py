"""Two processes by ``torch.distributed`` against two threads: the same rounds in turn, and the memory of each process.

    python benchmarks/distributed.py J2 --rounds 9

The jobs are those of ``benchmarks/peers``. Rank 1 is this program again, and stays where the first federation is made.
"""

import argparse
import os
import re
import statistics
import sys
import time
from pathlib import Path

import torch

import equipoise as eq

sys.path.append(str(Path(__file__).parent / "peers"))
from jobs import JOBS, LR, MOMENTUM, WEIGHT_DECAY, data, network


def most(process: int) -> int:
    """The most memory that a process has had, in MiB."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each, after one that is not counted")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    job, n = JOBS[options.job], options.ranks
    torch.set_num_threads(1)

    def make(engine: str) -> eq.Federation:
        solver = eq.SGD(lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        how = {"batch_size": job.batch, "participation": job.share, "engine": engine, "workers": n}
        return eq.Federation(network(job), data(job), "fedavg", solver, **how)

    federations = {engine: make(engine) for engine in ("distributed", "workers")}
    seconds: dict[str, list[float]] = {engine: [] for engine in federations}
    for t in range(options.rounds + 1):
        for engine, federation in federations.items():
            began = time.perf_counter()
            federation.fit(1, progress=False)
            seconds[engine] += [time.perf_counter() - began] * (t > 0)
    first, second = (federation.progress.vector for federation in federations.values())
    medians = {engine: statistics.median(each) for engine, each in seconds.items()}
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    print(job, f"{federations['workers'].model.n_params:,} parameters", f"load {os.getloadavg()[0]:.1f}", sep="; ")
    for engine, median in medians.items():
        print(f"{engine:12} median {median:.3f} s, {min(seconds[engine]):.3f} to {max(seconds[engine]):.3f} s")
    print(
        f"distributed / workers: {medians['distributed'] / medians['workers']:.2f}; "
        f"median of rounds side by side {statistics.median(ratios):.2f}; same bits: {torch.equal(first, second)}"
    )
    children = federations["distributed"].trial.engine.children
    each = ", ".join(f"rank {child.rank} {most(child.process.pid)}" for child in children)
    print(f"most memory in MiB: rank 0 {most(os.getpid())} (also of workers), {each}")


if __name__ == "__main__":
    main()
