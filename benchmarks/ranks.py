"""Processes by ``torch.distributed`` against threads: the same rounds in turn, the memory of each process, and what more ranks would take.

    python benchmarks/ranks.py J2 --rounds 9
    python benchmarks/ranks.py J2 --rounds 9 --model

The jobs are those of ``benchmarks/peers``. Rank 1 is this program again, and stays where the first federation is made.

With ``--model`` the shares of a round are measured, too: training by one thread, the server's half, a checkpoint, and, from rounds in
which clients do one step with one sample, what a client's answer takes to come. With n ranks a round then takes the longer of training M / n
clients and of getting the answers of the others, then the server's half and the checkpoint.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

import equipoise as eq
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential

sys.path.append(str(Path(__file__).parent / "peers"))
from jobs import JOBS, LR, MOMENTUM, WEIGHT_DECAY, data, network

RANKS = (2, 4, 16, 64)


class Timed:
    """The engine `sequential`, with the seconds that it took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, job: Job) -> Iterator[Answer]:
        """The answers of the clients."""
        began = time.perf_counter()
        answers = [*sequential(job)]
        self.seconds.append(time.perf_counter() - began)
        yield from answers


def most(process: int) -> int:
    """The most memory that a process has had, in MiB."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) >> 10


def timed(federation: eq.Federation, **how: Any) -> float:
    """Seconds of a round."""
    began = time.perf_counter()
    federation.fit(1, progress=False, **how)
    return time.perf_counter() - began


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of rounds of each engine, in turn, and of the parts of one by a single thread."""
    job, n, one = JOBS[options.job], options.ranks, Timed()
    clients = [(x[:1], y[:1]) for x, y in data(job)] if options.short else data(job)

    def make(engine: Any) -> eq.Federation:
        solver = eq.SGD(lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        how = {"batch_size": job.batch, "participation": job.share, "engine": engine, "workers": n}
        return eq.Federation(network(job), clients, "fedavg", solver, **how)

    engines = {"distributed": "distributed", "workers": "workers"}
    engines |= {"one": one, "kept": Timed()} if options.model else {}
    federations = {name: make(engine) for name, engine in engines.items()}
    seconds: dict[str, list[float]] = {name: [] for name in federations}
    with tempfile.TemporaryDirectory() as folder:
        for t in range(options.rounds + 1):
            for name, federation in federations.items():
                how = {"directory": folder} if name == "kept" else {}
                seconds[name] += [timed(federation, **how)] * (t > 0)
    first, *others = (federation.progress.vector for federation in federations.values())
    children = federations["distributed"].trial.engine.children
    return {
        "job": f"{job}; {federations['workers'].model.n_params:,} parameters; load {os.getloadavg()[0]:.1f}",
        "clients": job.cohort,
        "seconds": seconds,
        "training": median(one.seconds[1:]) if options.model else None,
        "same bits": all(torch.equal(first, other) for other in others),
        "memory": {"rank 0, and workers": most(os.getpid())}
        | {f"rank {k}": most(child.pid) for k, child in enumerate(children, 1)},
    }


def show(found: dict[str, Any]) -> None:
    """Print what was measured."""
    print(found["job"])
    both = {name: found["seconds"][name] for name in ("distributed", "workers")}
    for engine, seconds in both.items():
        print(f"{engine:12} median {median(seconds):.3f} s, {min(seconds):.3f} to {max(seconds):.3f} s")
    ratios = [a / b for a, b in zip(*both.values(), strict=True)]
    ratio = median(both["distributed"]) / median(both["workers"])
    print(f"distributed / workers: {ratio:.2f}; median of rounds side by side {median(ratios):.2f}; ", end="")
    print(f"same bits: {found['same bits']}")
    print("most memory in MiB:", ", ".join(f"{name} {x}" for name, x in found["memory"].items()))


def show_model(found: dict[str, Any], short: dict[str, Any], ranks: int) -> None:
    """Print the shares of a round, and what rounds with more ranks would take."""
    M, training = found["clients"], found["training"]
    server = max(0.0, median(found["seconds"]["one"]) - training)
    disk = max(0.0, median(found["seconds"]["kept"]) - median(found["seconds"]["one"]))
    away = M - math.ceil(M / ranks)
    least = median(short["seconds"]["one"]) - short["training"] * away / M
    answer = max(0.0, median(short["seconds"]["distributed"]) - least) / away
    print(
        f"of a round by one thread: training {training:.3f} s, server {server:.4f} s, checkpoint {disk:.4f} s; ", end=""
    )
    print(f"an answer of another rank {1e3 * answer:.2f} ms")
    for n in (1, *RANKS):
        own = math.ceil(M / n)
        took = max(training * own / M, (M - own) * answer) + server + disk
        whole = training + server + disk
        measured = f", measured {median(found['seconds']['distributed']) + disk:.3f}" if n == ranks else ""
        print(f"{n:3} ranks: {took:8.3f} s a round{measured}, {whole / took:5.1f} times as fast as one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each, after one that is not counted")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--model", action="store_true", help="measure the shares of a round, and compute those of more ranks"
    )
    parser.add_argument("--short", action="store_true", help="clients have one sample")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options)
    if options.json:
        print(json.dumps(found))
        return
    show(found)
    if options.model:
        words = [options.job, "--rounds", str(options.rounds), "--ranks", str(options.ranks)]
        words += ["--model", "--short", "--json"]
        told = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
        show_model(found, json.loads(told.stdout.splitlines()[-1]), options.ranks)


if __name__ == "__main__":
    main()
