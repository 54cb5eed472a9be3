"""Which way of training a round's clients is fastest on one GPU, as multiples of a plain PyTorch loop on the same GPU.

What to do on a machine with an NVIDIA GPU: install a CUDA build of PyTorch (2.9 or newer) and this project
(``pip install -e .``), leave the GPU to this program, and run

    python benchmarks/gpu.py            # eight minutes: print the table
    python benchmarks/gpu.py --write    # and keep it in benchmarks/RESULTS.md

Without installing, ``PYTHONPATH=src`` does where torch, NumPy, rich and safetensors are there. ``--only "width 64"`` takes one
workload and ``--design graph`` the designs with that word; all designs of a workload together hold some 40 GB, so a smaller
GPU wants fewer at a time. ``--quick`` takes about two minutes. ``--device cpu`` runs every design at a tiny size, with plain
calls in place of graphs and streams: its results mean something, its times do not.

Each design is first checked: in float64 a short round must end at the weights of the plain loop, and after one step of each
client its rounding may not exceed what its precision explains. A design that fails, or does not run, says so in the table, and
the others go on. Then the designs take turns, the plain loop first in each.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from gpu_designs import BASELINE, CONVOLUTIONS, MANY, Design, Round, Task
from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from round import keep, machine, options, show
from torch import Tensor, nn

from equipoise.networks import build

EXACT = 1e-9  # largest difference of the weights after a short float64 round, relative to the largest change in it
# Largest error of the update after one step of each client, relative to its size: it tells wrong from coarse. A ReLU whose
# input is nearly zero may switch, which alone is 1e-3 or more; TF32 keeps 10 bits and bfloat16 7.
ROUNDING = {"fp32": 0.02, "default": 0.1, "tf32": 0.1, "bf16": 0.5}
PROFILED = 4  # steps of each client under the profiler
WORTH = 1.5  # a design that is not so many times as fast as the plain loop has one turn: it decides nothing


@dataclass(frozen=True)
class Workload:
    """A network and the clients of a round; ``target`` is the speed-up that this library aims at."""

    name: str
    network: Callable[[], nn.Module]
    sizes: tuple[int, ...]
    batch: int
    epochs: int
    shape: tuple[int, ...]
    designs: tuple[Design, ...]
    target: float

    def task(self, device: torch.device, dtype: torch.dtype) -> Task:
        """Its clients on a device."""
        net = self.network().to(device, dtype)
        return Task.of(net, self.sizes, self.batch, self.epochs, self.shape, 10)

    def fewer(self, share: int, every: int) -> Workload:
        """A share of the samples of every so-many-th client, in at most two epochs."""
        sizes = tuple(max(4, size // share) for size in self.sizes[::every])
        return replace(self, sizes=sizes, epochs=min(2, self.epochs))

    def __str__(self) -> str:
        return f"{self.name}, {len(self.sizes):,} clients, batch {self.batch}, {self.epochs} epochs"


IMAGE, ROW = (3, 32, 32), (60,)
DIGITS = tuple(size for size in (600, 72, 732, 100) for _ in range(5))  # FedHEAL: MNIST, USPS, SVHN, SYN


def _resnet(width: int, shape: tuple[int, ...]) -> Callable[[], nn.Module]:
    return lambda: build("resnet10", shape, width=width)


def _mlp(*hidden: int) -> Callable[[], nn.Module]:
    return lambda: build("mlp", ROW, hidden=hidden)


WORKLOADS = (
    Workload("ResNet-10, width 64", _resnet(64, IMAGE), DIGITS, 64, 10, IMAGE, CONVOLUTIONS, 4),
    Workload("ResNet-10, width 16", _resnet(16, IMAGE), DIGITS, 64, 10, IMAGE, CONVOLUTIONS, 4),
    Workload("MLP 60-32-10", _mlp(32), (20,) * 1000, 10, 1, ROW, MANY, 30),
    Workload("logistic regression 60-10", _mlp(), (20,) * 1000, 10, 1, ROW, MANY, 30),
)
SMALL = (3, 8, 8)
TINY = (  # what --device cpu runs: the same shapes of trouble, such as ragged batches and clients of several sizes
    Workload("ResNet-10, width 2", _resnet(2, SMALL), (6, 6, 3, 7), 4, 2, SMALL, CONVOLUTIONS, 4),
    Workload("MLP 60-32-10", _mlp(32), (6,) * 12, 4, 2, ROW, MANY, 30),
    Workload("logistic regression 60-10", _mlp(), (6,) * 12, 4, 2, ROW, MANY, 30),
)


@dataclass
class Result:
    """How a design went; None is what was not or cannot be measured. ``ratio`` > 1 is faster than the plain loop.

    ``busy`` is the share of time in which the GPU computes, ``kernels`` how many it runs for a step of a client, ``memory`` the
    most the design takes beside data in GiB, ``exact`` and ``rounding`` the differences in float64 and in float32.
    """

    workload: str
    design: str
    target: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    seconds: float | None = None
    turns: int = 0
    busy: float | None = None
    kernels: float | None = None
    memory: float | None = None
    exact: float | None = None
    rounding: float | None = None
    failed: str | None = None
    times: list[float] = field(default_factory=list)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clock(run: Round, device: torch.device, most: int | None = None) -> float:
    """Seconds of one round, until the device has done it."""
    wait(device)
    began = time.perf_counter()
    run(most)
    wait(device)
    return time.perf_counter() - began


def difference(found: Tensor, expected: Tensor, start: Tensor) -> float:
    """Largest difference of weights, relative to the largest change."""
    return float((found - expected).abs().max() / (expected - start).abs().max())


def error(found: Tensor, expected: Tensor, start: Tensor) -> float:
    """Size of the difference of vectors, relative to that of the change, whose rounding in ``found`` does not count."""
    begun = start.to(found.dtype).double()
    return float(((found.double() - begun) - (expected - start)).norm() / (expected - start).norm())


def exactness(
    work: Workload, designs: tuple[Design, ...], device: torch.device, say: Callable[[str], None]
) -> dict[Design, float | str]:
    """What each design's short float64 round differs from the plain loop's; a text says why there is no number."""
    short = work.fewer(4, 2 if len(work.sizes) <= 100 else 20) if device.type == "cuda" else work
    task = short.task(device, torch.float64)
    expected = BASELINE.build(task)(None)
    found: dict[Design, float | str] = {}
    for design in designs:
        say(f"{design}: float64")
        found[design] = guarded(lambda d=design: difference(d.build(task)(None), expected, task.model.initial))
        tidy(device)
    return found


def guarded(run: Callable[[], float]) -> float | str:
    """What it gives, or why it gives nothing."""
    try:
        return run()
    except Exception as problem:  # a design that does not run must not stop the others
        return reason(problem)


def reason(problem: Exception) -> str:
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0][:120] if text else ''}"


def tidy(device: torch.device) -> None:
    gc.collect()  # graphs and their memory may hang in cycles
    if device.type == "cuda":
        with suppress(RuntimeError):  # a GPU that a design has lost says so again where it is used
            torch.cuda.empty_cache()


def profiled(run: Round, task: Task) -> tuple[float, float]:
    """Share of time in which the device computes, and kernels per step of a client, over the first steps of each.

    The kernels' times are the profiler's, the whole time is taken without it.
    """
    most = min(PROFILED, task.fewest)
    whole = statistics.median(clock(run, task.device, most) for _ in range(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        clock(run, task.device, most)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Mem", "Optimizer."))
    ]
    return covered(spans) / 1e6 / whole, len(spans) / (most * len(task.sizes))


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def measure(
    work: Workload, device: torch.device, alternations: int, deadline: float, designs: tuple[Design, ...]
) -> list[Result]:
    """Check the designs, then let them take turns until each had as many as were asked for, or time is up."""

    def say(text: str) -> None:
        print(f"  {text} ...", file=sys.stderr)

    exact = exactness(work, designs, device, say)
    double = work.task(device, torch.float64)
    start, step = double.model.initial, BASELINE.build(double)(1)
    del double
    task = work.task(device, torch.float32)
    results = {d: Result(str(work), str(d), work.target) for d in designs}
    going: dict[Design, Round] = {}
    for design, result in results.items():
        say(f"{design}: float32")
        if isinstance(exact[design], str):
            result.failed = str(exact[design])
            continue
        result.exact = float(exact[design])
        try:
            going[design] = prepared(design, task, result, step, start)
        except Exception as problem:  # what was found out before stays
            result.failed = reason(problem)
            tidy(device)
    if BASELINE in going:
        turns(going, results, device, alternations, deadline, say)
    return list(results.values())


def prepared(design: Design, task: Task, result: Result, step: Tensor, start: Tensor) -> Round:
    """Set the design up, and note its rounding, memory and use of the device."""
    device = task.device
    tidy(device)
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    run = design.build(task)
    P = task.model.n_params  # statistics of BatchNorm move more than parameters, and would hide them
    result.rounding = error(run(1)[:P], step[:P], start[:P])
    run(max(map(len, task.widths)) // task.epochs)  # every batch size was seen
    wait(device)
    if device.type == "cuda":
        result.memory = (torch.cuda.max_memory_allocated(device) - before) / 2**30
        result.busy, result.kernels = profiled(run, task)
    if not result.exact < EXACT:
        result.failed = f"float64 differs by {result.exact:.0e}, expected < {EXACT:g}"
    if not result.rounding < ROUNDING[design.precision]:
        result.failed = (
            f"{design.precision} differs by {result.rounding:.0e}, expected < {ROUNDING[design.precision]:g}"
        )
    return run


def turns(
    going: dict[Design, Round],
    results: dict[Design, Result],
    device: torch.device,
    alternations: int,
    deadline: float,
    say: Callable[[str], None],
) -> None:
    """Let the designs take turns, the first of all whatever the time; who is not much faster than the plain loop has one."""
    for turn in range(alternations):
        if turn and time.perf_counter() > deadline:
            break
        say(f"turn {turn + 1} of {alternations}")
        for design in list(going):
            try:
                took = clock(going[design], device)
            except Exception as problem:
                results[design].failed = reason(problem)
                del going[design]
                if design is BASELINE:
                    return
                continue
            results[design].times.append(took)
            if design is not BASELINE and WORTH * took > results[BASELINE].times[-1]:
                del going[design]
    plain = results[BASELINE].times
    for result in results.values():
        if result.times:
            ratios = [a / b for a, b in zip(plain, result.times, strict=False)]
            result.ratio = statistics.median(plain[: len(result.times)]) / statistics.median(result.times)
            result.low, result.high = min(ratios), max(ratios)
            result.seconds, result.turns = statistics.median(result.times), len(result.times)


COLUMNS = ("design", "times", "range", "s", "busy", "kernels", "GiB", "float64", "float32")


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def row(result: Result) -> tuple[str, ...]:
    spread = "" if result.low is None else f"{result.low:.1f}-{result.high:.1f}"
    return (
        result.design,
        _shown(result.ratio, ".2f"),
        spread,
        _shown(result.seconds, ".3f"),
        _shown(result.busy, ".0%"),
        _shown(result.kernels, ".1f"),
        _shown(result.memory, ".2f"),
        _shown(result.exact, ".0e"),
        _shown(result.rounding, ".0e"),
    )


def of_each(results: list[Result]) -> dict[str, list[Result]]:
    """The results of each workload."""
    return {work: [r for r in results if r.workload == work] for work in dict.fromkeys(r.workload for r in results)}


def table(results: list[Result]) -> Group:
    """A table for each workload."""
    grids = []
    for work, found in of_each(results).items():
        grid = Table(title=work, caption="\n".join(remarks(work, found)), box=SIMPLE)
        for name in COLUMNS:
            grid.add_column(name, justify="left" if name == "design" else "right", no_wrap=True)
        for result in found:
            reached = result.ratio is not None and result.ratio >= result.target
            grid.add_row(*row(result), style="red" if result.failed else "green" if reached else None)
        grids.append(grid)
    return Group(*grids)


def fastest(work: str, results: list[Result]) -> str:
    """The fastest design of a workload that passed, and the target."""
    passed = [r for r in results if r.ratio is not None and not r.failed]
    if not passed:
        return f"{work}: no design passed."
    best = max(passed, key=lambda r: r.ratio or 0)
    return f"{work}: the fastest is {best.design}, {best.ratio:.2f} times the plain loop (target {best.target:g})."


def remarks(work: str, results: list[Result]) -> list[str]:
    """What stands under a table: the fastest design, and why others failed."""
    return [fastest(work, results), *(f"{r.design} failed: {r.failed}" for r in results if r.failed)]


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    heads = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1))]
    tables = []
    for work, found in of_each(results).items():
        rows = "\n".join("| " + " | ".join(cells) + " |" for cells in (*heads, *map(row, found)))
        tables.append("\n".join([f"## {work}\n", rows, "", *(f"- {line}" for line in remarks(work, found))]))
    return RESULTS.format(
        command=shlex.join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        machine=where,
        tables="\n\n".join(tables),
        alternations=arguments.alternations,
        profiled=PROFILED,
        worth=WORTH,
        exact=EXACT,
        rounding=", ".join(f"{name} {most:g}" for name, most in ROUNDING.items()),
    )


RESULTS = """# Speed of a round on a GPU

Made by `{command}`; do not edit.

{machine}.

{tables}

**times**: median seconds of a FedAvg round by the first design, a plain sequential PyTorch loop on the same device,
over those of the design, in up to {alternations} turns that all take one after another (a design that is not {worth} times
as fast has one); **s**: those of the design; **range**: the same for single turns. Data lie on the device, float32, and batches are drawn
before the clock starts, except for `equipoise`, whose round is the whole one of the library. **default** is PyTorch's own
precision: TF32 in convolutions, float32 in products. **busy**: time in which at least one kernel runs (by the
profiler, the first {profiled} steps of each client) over the time these steps take without the profiler; **kernels**: for a
step of one client. **GiB**: the most memory the design takes beside the data. **float64**: largest difference of the weights from
the plain loop's after a short round in float64, relative to the largest change, < {exact:g} where a design passed. **float32**:
size of the error of the update after one step of each client, against the plain loop in float64, relative to the update;
allowed are {rounding}.
"""


def place(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "This benchmark needs a GPU that PyTorch can use; torch.cuda.is_available() says no. Install a CUDA build of PyTorch on a "
            "machine with an NVIDIA GPU, or check the designs at a tiny size with --device cpu."
        )
    return torch.device(device)


def main() -> None:
    parser = options("Time ways to train a FedAvg round on one GPU, beside a plain PyTorch loop.", "workloads")
    parser.add_argument(
        "--design", default="", help="designs whose name contains this text; the plain loop always runs"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny sizes, to check the designs"
    )
    parser.add_argument("--minutes", type=float, default=8, help="about how long all may take (8)")
    parser.add_argument(
        "--quick", action="store_true", help="two epochs, a tenth of the clients with tiny models, two turns"
    )
    arguments = parser.parse_args()
    device = place(arguments.device)
    if arguments.write and device.type == "cpu":
        raise SystemExit(
            "--write keeps timings of a GPU, and --device cpu times nothing that means something. Leave one out."
        )
    torch.set_num_threads(arguments.threads)
    where = machine()
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}; {where}"
    works = [w for w in (TINY if device.type == "cpu" else WORKLOADS) if arguments.only.lower() in str(w).lower()]
    if arguments.quick:
        arguments.alternations = min(2, arguments.alternations)
        works = [replace(w, epochs=min(2, w.epochs), sizes=w.sizes[: max(20, len(w.sizes) // 10)]) for w in works]
    results: list[Result] = []
    deadline, whole = time.perf_counter(), sum(len(w.designs) for w in works)
    for work in works:
        print(f"{work} ...", file=sys.stderr)
        wanted = tuple(d for d in work.designs if d is BASELINE or arguments.design.lower() in str(d).lower())
        deadline += 60 * arguments.minutes * len(work.designs) / whole
        try:
            results += measure(work, device, arguments.alternations, deadline, wanted)
        except RuntimeError as problem:  # a GPU that is lost or full; what was measured is not
            print(f"  stopped: {reason(problem)}", file=sys.stderr)
        tidy(device)
        if arguments.write:  # as those to come may be cut short
            keep(markdown(results, where, arguments), Path(__file__).with_name("RESULTS.md"))
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
