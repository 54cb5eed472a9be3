"""Other simulators beside Equipoise on the same jobs, as ratios to a plain PyTorch loop.

Every system trains the same clients from the same weights with the same arithmetic, in a process of its own. The others
are installed into environments of their own, benchmarks/peers/.venv, at the first run; later runs need no network.

    python benchmarks/peers/run.py            # print the tables
    python benchmarks/peers/run.py --write    # and keep them in benchmarks/RESULTS.md
    python benchmarks/peers/run.py --check    # do all systems end at the same weights?
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from jobs import JOBS, network  # noqa: E402
from round import keep, machine  # noqa: E402

ENVIRONMENTS = HERE / ".venv"
TORCH = "torch==2.13.0"  # of Equipoise's constraints.txt, so that all systems compute with the same kernels
PATIENCE = 25  # seconds: a process that takes longer stops after a round that counts; see Trial.slow
LIMIT = 300  # seconds: what takes longer has failed
QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "FLWR_TELEMETRY_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
    "PFL_PYTORCH_DEVICE": "cpu",
    "PYTHONWARNINGS": "ignore",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
}


@dataclass(frozen=True)
class System:
    """A simulator: its name for readers, its package, the environment it lives in, how exact it is in float64.

    ``files`` begins with the program, which may need ``before`` it (as a launcher of processes) and ``after`` it; THREADS in
    both is how many. ``clocked`` says whether its processes tell their processor time.
    """

    title: str
    package: str = ""
    environment: str = ""
    files: tuple[str, ...] = ()
    exact: float = 1e-9
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ("--threads", "THREADS")
    clocked: bool = True

    @property
    def label(self) -> str:
        """The name with the version that is installed."""
        if not self.environment:
            return self.title
        pins = (HERE / f"{self.environment}.txt").read_text()
        found = re.search(rf"^{self.package}==(.+)$", pins, re.M)
        return f"{self.title} {found[1] if found else ''}".strip()

    @property
    def lines(self) -> int:
        """Lines of code that a user writes, without docstrings, comments and empty lines."""
        return sum(code_lines(HERE / file) for file in self.files)


SYSTEMS = {
    "loop": System("plain loop", files=("system_loop.py",)),
    "careful": System("careful loop", files=("system_careful.py",)),
    "equipoise": System("Equipoise", files=("system_equipoise.py",)),
    "equipoise-2": System(
        "Equipoise in processes",
        files=("system_equipoise.py",),
        before=("-m", "torch.distributed.run", "--nproc-per-node", "THREADS"),
        after=("--threads", "1", "--engine", "distributed"),
        clocked=False,
    ),
    "pfl": System("pfl-research", "pfl", "simulators", ("system_pfl.py",), 1e-4),  # its updates are float32, always
    "pfl-2": System(
        "pfl-research in processes",
        "pfl",
        "simulators",
        ("system_pfl.py",),
        1e-4,
        ("-m", "torch.distributed.run", "--nproc-per-node", "THREADS"),
        ("--threads", "1"),
    ),
    "flower": System("Flower", "flwr", "flower", ("system_flower.py",), clocked=False),
    "flgo": System("FLGo", "flgo", "simulators", ("system_flgo.py", "flgo_data.py")),
    "flgo-2": System(
        "FLGo in threads",
        "flgo",
        "simulators",
        ("system_flgo.py", "flgo_data.py"),
        after=("--threads", "1", "--parallel", "THREADS"),
    ),
    "fluke": System("fluke", "fluke-fl", "simulators", ("system_fluke.py",)),
}
OURS = [name for name in SYSTEMS if name.startswith("equipoise")]
PEERS = [name for name, system in SYSTEMS.items() if system.environment]


@dataclass
class Trial:
    """One process: seconds of its rounds, the first of which warms up; ``error`` says why it has none."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    wall: float = 0.0
    peak: float = 0.0
    error: str = ""
    ratio: float | None = None
    effort: float | None = None  # processor time over the loop's
    engine: str = ""

    @property
    def round(self) -> float:
        """Seconds of a round."""
        return median(self.seconds[1:])

    @property
    def spent(self) -> float:
        """Processor seconds of a round."""
        return median(self.processor[1:])

    @property
    def slow(self) -> bool:
        """Whether one look is enough: it takes long, and is far from the others."""
        return self.wall > PATIENCE and self.ratio is not None and self.ratio > 2


def code_lines(file: Path) -> int:
    source = file.read_text()
    numbers = {k for k, line in enumerate(source.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            numbers -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(numbers)


# environments
def python(environment: str) -> Path:
    return ENVIRONMENTS / environment / "bin" / "python" if environment else Path(sys.executable)


def install(environment: str) -> str:
    """Make an environment if it is not there as its list of versions says; returns why that failed, or nothing."""
    pins = HERE / f"{environment}.txt"
    stamp, wanted = ENVIRONMENTS / environment / "installed", hashlib.sha256(pins.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    print(f"Installing {environment} into {stamp.parent} (once; it takes minutes) ...", file=sys.stderr)
    pip = [str(python(environment)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(stamp.parent)],
        [*pip, TORCH],  # first and alone, or pip may take a CUDA build for torchvision's sake
        [*pip, "--requirement", str(pins)],
    )
    for step in steps:
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
            return f"cannot be installed here: {(errors or done.stdout.splitlines() or ['no message'])[-1][:200]}"
    stamp.write_text(wanted)
    return ""


# one process
def family(pid: int) -> list[int]:
    """A process and its descendants, where there is /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def resident(pids: Sequence[int]) -> float:
    """Megabytes of memory that processes hold now."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total * os.sysconf("SC_PAGE_SIZE") / 2**20


def end(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def rounds_in(output: Path, word: str = "ROUND") -> list[tuple[float, float]]:
    """Seconds of the rounds that a process has told so far, and the processor's."""
    told = re.findall(rf"^{word} (\S+) (\S+)\n", output.read_text(errors="replace"), re.M)
    return [(float(wall), float(spent)) for wall, spent in told]


def trial(name: str, job: str, rounds: int, threads: int, *extra: str) -> Trial:
    """Run a system once; one that takes long is stopped after a round that counts."""
    system = SYSTEMS[name]
    command = [str(python(system.environment)), *system.before, str(HERE / system.files[0]), "--job", job]
    command += ["--rounds", str(rounds), *system.after, *extra]
    command = [str(threads) if word == "THREADS" else word for word in command]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_"))} | QUIET
    whole, late, found, began = "--check" in extra, False, Trial(), time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "output"
        environment["FLWR_HOME"] = folder
        with output.open("wb") as file:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(0.4)
            pids = family(process.pid)
            found.peak, found.wall = max(found.peak, resident(pids)), time.perf_counter() - began
            enough = not whole and found.wall > PATIENCE and len(rounds_in(output)) > 1
            late = found.wall > LIMIT
            if enough or late:
                end(pids)
                process.wait()
        text, told, others = output.read_text(errors="replace"), rounds_in(output), rounds_in(output, "OTHER")
    found.seconds = [wall for wall, _ in told]
    if system.clocked:  # the mean of the other processes' rounds
        found.processor = [spent + sum(other for _, other in others) / len(told) for _, spent in told]
    found.peak = max([found.peak, *map(float, re.findall(r"^PEAK (\S+)$", text, re.M))])
    found.engine = " ".join(re.findall(r"^ENGINE (.+)$", text, re.M))
    if len(found.seconds) < 2 or (whole and "DONE" not in text):
        said = (text.strip().splitlines() or [f"it ended with code {process.returncode}"])[-1][:200]
        said = "its processes wrote into each other's lines" if said == "DONE" else said
        found.error = f"it took more than {LIMIT} s" if late else said
    return found


# timing
Results = dict[str, dict[str, list[Trial]]]


def measure(
    job: str, names: Sequence[str], options: argparse.Namespace, missing: dict[str, str]
) -> dict[str, list[Trial]]:
    """All trials of a job, one a system in each alternation; failed or slow systems do not come back."""
    rounds = options.rounds or JOBS[job].rounds
    trials: dict[str, list[Trial]] = {n: [Trial(error=missing[n])] if n in missing else [] for n in ("loop", *names)}
    for alternation in range(options.alternations):
        todo = [n for n in names if not any(t.error or t.slow for t in trials[n])]
        first = alternation % max(1, len(todo))
        base = trial("loop", job, rounds, options.threads)
        if base.error:
            raise SystemExit(f"The plain loop failed on {job}: {base.error}")
        trials["loop"].append(base)
        for name in [*todo[first:], *todo[:first]]:
            found = trial(name, job, rounds, options.threads)
            found.ratio = None if found.error else found.round / base.round
            found.effort = None if found.error or not found.processor else found.spent / base.spent
            trials[name].append(found)
            shown = found.error or f"{found.round:.3f} s a round, {found.ratio:.2f} of the loop's"
            print(f"{job}, turn {alternation + 1}: {SYSTEMS[name].title}: {shown}", file=sys.stderr)
    return trials


def spread(values: Sequence[float]) -> str:
    """Median and range."""

    def show(x: float) -> str:
        return f"{x:.3f}" if x < 0.1 else f"{x:.2f}" if x < 10 else f"{x:.1f}"

    return show(median(values)) + (f" ({show(min(values))}-{show(max(values))})" if len(values) > 1 else "")


def lead(trials: dict[str, list[Trial]], others: Sequence[str]) -> list[float]:
    """How many times as fast as the fastest of the others in the same alternation Equipoise is."""
    found = []
    for k, ours in enumerate(trials.get("equipoise", [])):
        peers = [t[k].round for n, t in trials.items() if n in others and len(t) > k and not t[k].error]
        if peers and not ours.error:
            found.append(min(peers) / ours.round)
    return found


def ratios(results: Results, names: Sequence[str]) -> list[tuple[str, ...]]:
    ends = ("careful loop to Equipoise", "fastest peer to Equipoise", "engine")
    rows = [("job", "loop, s", *(SYSTEMS[n].label for n in names), *ends)]
    for job, trials in results.items():
        cells = [spread(q) if (q := [t.ratio for t in trials[n] if t.ratio]) else "none" for n in names]
        ahead = [spread(q) if (q := lead(trials, others)) else "none" for others in (("careful",), PEERS)]
        engine = next((t.engine for t in trials.get("equipoise", [])), "")
        loop = f"{median(t.round for t in trials['loop']):.3f}"
        rows.append((f"{job}: {JOBS[job]}", loop, *cells, *ahead, engine))
    return rows


def efforts(results: Results, names: Sequence[str]) -> list[tuple[str, ...]]:
    rows = [("processor time", *(SYSTEMS[n].title for n in names))]
    for job, trials in results.items():
        cells = [spread(q) if (q := [t.effort for t in trials[n] if t.effort]) else "none" for n in names]
        rows.append((job, *cells))
    return rows


def costs(results: Results, names: Sequence[str]) -> list[tuple[str, ...]]:
    rows = [("peak memory, MB", *(SYSTEMS[n].title for n in ("loop", *names)))]
    for job, trials in results.items():
        peaks = [[t.peak for t in trials[n] if not t.error] for n in ("loop", *names)]
        rows.append((job, *(f"{max(p):,.0f}" if p else "none" for p in peaks)))
    return [*rows, ("lines of code", *(str(SYSTEMS[n].lines) for n in ("loop", *names)))]


def failures(results: Results) -> list[str]:
    """What could not be measured, and why."""
    return [
        f"{SYSTEMS[n].label} on {job}, turn {k}: {t.error}"
        for job, trials in results.items()
        for n in trials
        for k, t in enumerate(trials[n], 1)
        if t.error
    ]


def rich(rows: Sequence[Sequence[str]], title: str) -> Table:
    grid = Table(*rows[0], title=title)
    for column in grid.columns[1:]:
        column.justify = "right"
    for row in rows[1:]:
        grid.add_row(*row)
    return grid


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ("---", *("---:" for _ in head[1:])), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


RESULTS = """# Beside other simulators

Made by `{command}`; do not edit.

{machine}.

{ratios}

FedAvg; one local epoch of SGD with momentum and weight decay; float32 tensors in memory; no evaluation. Every system runs
in processes of its own, and its first round is left out. Threads inside operations: {threads}; the careful loop, pfl-research in processes,
FLGo in threads, Flower, and Equipoise in processes (`torchrun`, the engine `distributed`) train as many clients at a time, each with one
thread. The careful loop is the plain one with what helps by hand: threads,
fused steps, images with their channels innermost, freed memory kept. **loop, s**: median seconds of a round of a plain sequential
PyTorch loop. **systems**: seconds of a round over
those of the loop in the same alternation, median and range of {alternations} alternations (one, for what needs more than
{patience} s and twice the loop's time): less is faster. **fastest peer to Equipoise**: seconds of the fastest other
simulator over Equipoise's, in the same alternation: more than 1 means that Equipoise is faster; **careful loop to Equipoise**: the same of this loop. **engine**: what
`engine="auto"` chose. pfl-research never shuffles a client's samples, the others do; where none does, all end at the same
weights (`--check`).

{efforts}

**processor time** of a round, of all processes of a system, over the plain loop's, in the same way; Flower's are Ray's, and do not tell; nor do those of Equipoise.

{costs}

**peak memory**: all processes of a system together, the largest seen; pages they share count for each. **lines of code**:
of the scripts in `benchmarks/peers`, without the jobs, data and networks that all share.
{failures}"""


# checking
def check(
    job: str, names: Sequence[str], options: argparse.Namespace, missing: dict[str, str]
) -> list[tuple[str, ...]]:
    """Compare the weights that systems end at with the loop's, relative to the largest change in training."""
    start = torch.cat([p.detach().flatten() for p in network(JOBS[job].checked()).parameters()]).numpy()
    rows = []
    with tempfile.TemporaryDirectory() as folder:

        def final(name: str, file: str, *extra: str) -> np.ndarray | str:
            path = Path(folder) / f"{file}.npy"
            run = trial(name, job, options.rounds or 2, options.threads, "--check", "--save", str(path), *extra)
            return run.error or np.load(path)

        loops = {"plain": final("loop", "plain")}
        if {*OURS} & {*names}:
            loops["drawn"] = final("loop", "drawn", "--drawn")  # Equipoise always shuffles: the loop takes its order
        for name in names:
            ours = missing[name] if name in missing else final(name, name)
            loop = loops["drawn" if name in OURS else "plain"]
            if isinstance(ours, str) or isinstance(loop, str):
                verdict = ("", f"FAILED: {ours if isinstance(ours, str) else loop}")
            else:
                difference = float(np.abs(ours - loop).max() / np.abs(loop - start).max())
                verdict = (f"{difference:.1e}", "agrees" if difference < SYSTEMS[name].exact else "DIFFERS")
            print(job, SYSTEMS[name].title, *verdict, file=sys.stderr)
            rows.append((job, SYSTEMS[name].label, *verdict))
    return rows


def chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    names = [name for name in text.replace(" ", "").split(",") if name]
    strange = [name for name in names if name not in known]
    if strange or not names:
        raise SystemExit(f"{what} must be some of {','.join(known)}, with commas between; found {text!r}.")
    return [name for name in known if name in names]


def main() -> None:
    others = [name for name in SYSTEMS if name != "loop"]
    parser = argparse.ArgumentParser(description="Time other simulators and Equipoise beside a plain PyTorch loop.")
    parser.add_argument("--jobs", default=",".join(JOBS), help="which jobs (%(default)s)")
    parser.add_argument("--systems", default=",".join(others), help="which systems beside the loop (%(default)s)")
    parser.add_argument("--alternations", type=int, default=3, help="turns that each system takes (3)")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of a process, the first included (by job)")
    parser.add_argument("--threads", type=int, default=2, help="threads that compute, for every system (2)")
    parser.add_argument("--check", action="store_true", help="compare the weights at the end instead, in float64")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/RESULTS.md")
    options = parser.parse_args()
    if options.rounds == 1 or options.rounds < 0:
        parser.error(f"--rounds must be at least 2, because the first is left out; found {options.rounds}.")
    names, jobs = chosen(options.systems, others, "--systems"), chosen(options.jobs, list(JOBS), "--jobs")
    where = machine()
    reasons = {e: install(e) for e in sorted({SYSTEMS[n].environment for n in names} - {""})}
    missing = {n: reason for n in names if (reason := reasons.get(SYSTEMS[n].environment, ""))}
    for name, reason in missing.items():
        print(f"{SYSTEMS[name].label} {reason}", file=sys.stderr)
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.check:
        rows = [row for job in jobs for row in check(job, names, options, missing)]
        console.print(
            rich([("job", "system", "difference", ""), *rows], "Weights at the end, relative to their change")
        )
        sys.exit(any(row[-1] != "agrees" for row in rows))
    results = {job: measure(job, names, options, missing) for job in jobs}
    if options.json:
        record = {j: {n: [asdict(t) for t in ts] for n, ts in trials.items()} for j, trials in results.items()}
        print(json.dumps({"machine": where, "results": record}, indent=2))
    else:
        console.print(rich(ratios(results, names), "Seconds of a round over the plain loop's"))
        console.print(rich(efforts(results, names), "Processor time of a round over the plain loop's"))
        console.print(rich(costs(results, names), "What it takes"))
        console.print(*failures(results), sep="\n")
    if options.write:
        failed = "".join(f"\nNot measured: {text}." for text in failures(results))
        text = RESULTS.format(
            command=shlex.join(["python", "benchmarks/peers/run.py", *sys.argv[1:]]),
            machine=where,
            ratios=markdown(ratios(results, names)),
            efforts=markdown(efforts(results, names)),
            costs=markdown(costs(results, names)),
            threads=options.threads,
            alternations=options.alternations,
            patience=PATIENCE,
            failures=failed + "\n" if failed else "",
        )
        keep(text, HERE.parent / "RESULTS.md")


if __name__ == "__main__":
    main()
