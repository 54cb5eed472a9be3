"""A whole comparison, as a user does it: four methods with three seeds by Equipoise and by other simulators, side by side.

Every system divides its work between two processes, and tests the model in every round. All of it counts: starting, training,
testing, writing, the table. The other simulators are installed as for run.py.

    python benchmarks/peers/whole.py            # print the table
    python benchmarks/peers/whole.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev

import whole_task
from rich.console import Console
from run import (
    HERE,
    QUIET,
    SYSTEMS as SIMULATORS,
    chosen,
    code_lines,
    end,
    family,
    install,
    keep,
    machine,
    markdown,
    python,
    rich,
    spread,
)
from whole_task import BATCH, BETA, LR, METHODS, MU, SEEDS

LIMIT = 600  # seconds: what takes longer has failed
COMMAND = (
    f"equipoise compare {' '.join(METHODS)} --data digits.npz --network 'mlp(hidden=[64])' --rounds ROUNDS --seeds {SEEDS} "
    f"--epochs 1 --batch-size {BATCH} --lr {LR} --momentum 0 --weight-decay 0 "
    f"--set fedprox.mu={MU} --set fedavgm.beta={BETA} --jobs 2 --runs . --name runs"
)


@dataclass(frozen=True)
class System:
    """How a system is started: a script and what it needs beside it, or Equipoise's command."""

    title: str
    files: tuple[str, ...] = ()
    environment: str = ""

    def command(self, rounds: int) -> list[str]:
        """The words of the command that a user types."""
        if self.files:
            return [str(python(self.environment)), str(HERE / self.files[0])]
        return [sys.executable, "-m", *shlex.split(COMMAND.replace("ROUNDS", str(rounds)))]

    @property
    def lines(self) -> str:
        """Lines of code that a user writes."""
        return str(sum(code_lines(HERE / file) for file in self.files)) if self.files else "1 command"


SYSTEMS = {
    "command": System("Equipoise, command line"),
    "python": System("Equipoise, eq.compare", ("whole_equipoise.py",)),
    "pfl": System(SIMULATORS["pfl"].label, ("whole_pfl.py", "whole_table.py"), "simulators"),
    "flgo": System(SIMULATORS["flgo"].label, ("whole_flgo.py", "whole_flgo_data.py", "whole_table.py"), "simulators"),
    "fluke": System(SIMULATORS["fluke"].label, ("whole_fluke.py", "whole_table.py"), "simulators"),
}


@dataclass
class Trial:
    """One comparison: seconds on the clock and of processors, megabytes, and by method mean and STD of the accuracy in percent."""

    wall: float = 0.0
    processor: float = 0.0
    peak: float = 0.0
    accuracy: dict[str, tuple[float, float]] = field(default_factory=dict)
    error: str = ""


def held(pids: Sequence[int]) -> float:
    """Megabytes that processes hold now; what several share is counted once."""
    total = 0
    for pid in pids:
        try:
            total += int(re.findall(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[0])
        except (OSError, IndexError):
            continue
    return total / 1024


def accuracies(folder: Path, output: str) -> dict[str, tuple[float, float]]:
    """By method mean and STD over the seeds after the last round: from Equipoise's records, or the table that a script printed."""
    if not (folder / "runs").is_dir():
        rows = re.findall(rf"^({'|'.join(METHODS)})\s+(\S+)\s+(\S+)$", output, re.M)
        return {method: (float(average), float(spread)) for method, average, spread in rows}
    reached: dict[str, list[float]] = {}
    for path in sorted((folder / "runs").glob("*/metrics.jsonl")):
        groups = json.loads(path.read_text().splitlines()[-1])["groups"]
        values = reached.setdefault(path.parent.name.split("-")[0], [])
        values.append(100 * mean(group["accuracy"] for group in groups.values()))
    return {method: (mean(values), stdev(values)) for method, values in reached.items()}


def trial(name: str, arrays: Path, rounds: int) -> Trial:
    """Run a comparison once."""
    system, found = SYSTEMS[name], Trial()
    changed = ("OMP_", "MKL_", "OPENBLAS_", "PYTHONDONTWRITEBYTECODE")  # libraries have bytecode, whatever is set here
    environment = {k: v for k, v in os.environ.items() if not k.startswith(changed)} | QUIET
    environment |= {"WHOLE_ROUNDS": str(rounds), "WHOLE_ARRAYS": str(arrays)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder, output = Path(place), Path(place) / "output"
        (folder / arrays.name).symlink_to(arrays)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        with output.open("wb") as file:
            process = subprocess.Popen(
                system.command(rounds), cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT
            )
        while process.returncode is None:
            try:
                process.wait(0.25)
            except subprocess.TimeoutExpired:
                found.peak = max(found.peak, held(pids := family(process.pid)))
                if time.perf_counter() - began > LIMIT:
                    end(pids)
        after, found.wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
        found.processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        text = output.read_text(errors="replace")
        found.accuracy = accuracies(folder, text)
    if process.returncode or set(found.accuracy) != set(METHODS):
        found.error = (text.strip().splitlines() or [f"it ended with code {process.returncode}"])[-1][:200]
    return found


Results = dict[str, list[Trial]]


def measure(names: Sequence[str], alternations: int, rounds: int, missing: dict[str, str]) -> Results:
    """All trials, one of a system in each alternation; a first one of a round, which leaves bytecode and read files, does not count."""
    results: Results = {name: [Trial(error=missing[name])] if name in missing else [] for name in names}
    todo = [name for name in names if name not in missing]
    with tempfile.TemporaryDirectory() as folder:
        arrays = Path(folder) / "digits.npz"
        whole_task.save_arrays(arrays)
        for name in todo:
            trial(name, arrays, 1)
        for turn in range(alternations):
            first = turn % max(1, len(todo))
            for name in [*todo[first:], *todo[:first]]:
                results[name].append(found := trial(name, arrays, rounds))
                shown = (
                    found.error or f"{found.wall:.1f} s, {found.processor:.1f} s of processors, {found.peak:,.0f} MB"
                )
                print(f"turn {turn + 1}: {SYSTEMS[name].title}: {shown}", file=sys.stderr)
    return results


def table(results: Results) -> list[tuple[str, ...]]:
    rows = [("system", "seconds", "processor seconds", "peak memory, MB", "lines of code", *METHODS)]
    for name, trials in results.items():
        ended = [trial for trial in trials if not trial.error]
        if not ended:
            rows.append((SYSTEMS[name].title, "none", "none", "none", SYSTEMS[name].lines, *("none" for _ in METHODS)))
            continue
        accuracy = [f"{ended[-1].accuracy[m][0]:.1f} ± {ended[-1].accuracy[m][1]:.1f}" for m in METHODS]
        clocks = spread([t.wall for t in ended]), spread([t.processor for t in ended])
        rows.append(
            (SYSTEMS[name].title, *clocks, f"{max(t.peak for t in ended):,.0f}", SYSTEMS[name].lines, *accuracy)
        )
    return rows


RESULTS = """# A whole comparison

Made by `{command}`; do not edit.

{machine}.

{table}

{methods} with {seeds} seeds, {rounds} rounds each: scikit-learn's digits, {samples} for each of {clients} clients, of classes in proportions that the
client draws from a Dirichlet distribution ({alpha}); an MLP 64-64-10, batch {batch}, one epoch, SGD with learning rate {lr}; FedProx's mu is {mu}, FedAvgM's
momentum {beta}. The model is tested in every round on {tested} digits (by Equipoise's command on each client's {own}). Every system
trains in two processes with one thread each, by `--jobs 2` (Equipoise's command) or Python's `ProcessPoolExecutor` (all others), and begins with its own random
model of a seed.

**seconds**: from the command to its end, importing, testing, writing and the table included, median and range of alternations ({alternations});
**processor seconds**: the same of all its processes; **peak memory**: the largest seen, pages that processes share counted once; **lines of code**: of the
scripts `whole_*.py` in `benchmarks/peers`, without data, network and settings, which all share. Then the accuracy after the last round, mean and STD over
seeds. Equipoise also keeps every run with a checkpoint in every round, and writes the report. Its command:

    {typed}

pfl-research has no FedAvgM: its FedAvg has a central optimiser with momentum instead, and it never shuffles. Its SCAFFOLD (option II) adds the change of the
model to the control variate, and the paper's Algorithm 1 subtracts it: with the other sign, it ends at 87.5 (seed 0, measured once). fluke's FedAvgM leaves out
the first round.
{failures}"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Time whole comparisons by Equipoise and by other simulators.")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which systems (%(default)s)")
    parser.add_argument("--alternations", type=int, default=3, help="turns that each system takes (3)")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of every run (25)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/RESULTS.md")
    options = parser.parse_args()
    names, where = chosen(options.systems, list(SYSTEMS), "--systems"), machine()
    reason = install("simulators") if any(SYSTEMS[name].environment for name in names) else ""
    missing = {name: reason for name in names if reason and SYSTEMS[name].environment}
    results = measure(names, options.alternations, options.rounds, missing)
    failures = [
        f"{SYSTEMS[n].title}, turn {k}: {t.error}" for n, ts in results.items() for k, t in enumerate(ts, 1) if t.error
    ]
    if options.json:
        print(
            json.dumps(
                {"machine": where, "results": {n: [asdict(t) for t in ts] for n, ts in results.items()}}, indent=2
            )
        )
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(
            rich(table(results), f"{len(METHODS)} methods, {SEEDS} seeds, {options.rounds} rounds"), *failures, sep="\n"
        )
    if options.write:
        text = RESULTS.format(
            command=shlex.join(["python", "benchmarks/peers/whole.py", *sys.argv[1:]]),
            machine=where,
            table=markdown(table(results)),
            methods="FedAvg, FedProx, SCAFFOLD and FedAvgM",
            seeds=SEEDS,
            rounds=options.rounds,
            samples=whole_task.SAMPLES,
            clients=whole_task.CLIENTS,
            alpha=whole_task.ALPHA,
            batch=BATCH,
            lr=LR,
            mu=MU,
            beta=BETA,
            tested=whole_task.TESTED,
            own=whole_task.TESTED // whole_task.CLIENTS,
            alternations=options.alternations,
            typed=shlex.join(SYSTEMS["command"].command(options.rounds)[2:]),
            failures="".join(f"\nNot measured: {text}." for text in failures) + "\n" * bool(failures),
        )
        keep(text, HERE.parent / "RESULTS.md")


if __name__ == "__main__":
    main()
