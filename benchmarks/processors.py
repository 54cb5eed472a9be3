"""How far the same run differs where libraries take other instructions, as they do on other processors.

Each run is a process of its own with switches of torch, oneDNN and MKL set; all are compared with the first, which has none.

    python benchmarks/processors.py            # print the table
    python benchmarks/processors.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from round import machine, options, show
from safetensors.torch import load_file
from torch import Tensor

from equipoise.system.environment import PORTABLE, SWITCHES

SETS: dict[str, dict[str, str]] = {
    "none": {},
    "none, again": {},
    "torch without AVX": {"ATEN_CPU_CAPABILITY": "default"},
    "torch with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "torch with AVX-512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "oneDNN without AVX": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "oneDNN with AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL AUTO,STRICT": {"MKL_CBWR": "AUTO,STRICT"},
    "MKL AVX2": {"MKL_CBWR": "AVX2"},
    "MKL COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    "torch and oneDNN with AVX2, MKL COMPATIBLE": PORTABLE,
    "all without AVX": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
    },
}
RUNS = (("fedavg", ""), ("fedheal", "mlp"))


@dataclass(frozen=True)
class Result:
    """Largest difference of a parameter and of a number in the table (percentage points), and processor time, over no switch."""

    run: str
    switches: str
    parameters: float
    table: float
    time: float


def trained(method: str, network: str, rounds: int, switches: dict[str, str], base: Path) -> tuple[Tensor, dict, float]:
    """The global model [G] that a run ends at, its summary, and the processor time it took in seconds."""
    command = [
        "run",
        "-m",
        method,
        "-s",
        "digits",
        "--rounds",
        str(rounds),
        "--json",
        "--runs",
        str(base),
        "--name",
        "x",
    ]
    command += ["--network", network] if network else []
    clean = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "equipoise", *command], env=clean | switches, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (file,) = (base / "x" / "checkpoint").glob("state-*.safetensors")
    summary = json.loads((base / "x" / "summary.json").read_text())
    return load_file(file)["vector"], summary, after.ru_utime - before.ru_utime


def compared(method: str, network: str, rounds: int) -> list[Result]:
    """The run with every set of switches, beside the one without."""
    found = {}
    for name, switches in SETS.items():
        if name.endswith("AVX-512") and torch.backends.cpu.get_cpu_capability() != "AVX512":
            continue
        print(f"{method} {network} {name} ...", file=sys.stderr)
        with tempfile.TemporaryDirectory() as base:
            found[name] = trained(method, network, rounds, switches, Path(base))
    vector, summary, seconds = found["none"]
    return [
        Result(
            f"{method}, {network or 'cnn'}",
            name,
            float((v - vector).abs().max()),
            max(
                abs(s[key] - summary[key])
                if key != "groups"
                else max(abs(s[key][g] - x) for g, x in summary[key].items())
                for key in ("avg", "std", "worst", "groups")
            ),
            t / seconds,
        )
        for name, (v, s, t) in found.items()
        if name != "none"
    ]


COLUMNS = ("run", "switches", "parameters", "table", "time")


def row(result: Result) -> tuple[str, ...]:
    difference = f"{result.parameters:.0e}" if result.parameters else "same bits"
    return result.run, result.switches, difference, f"{result.table:.2f}", f"{result.time:.2f}"


def table(results: list[Result]) -> Table:
    found = Table(box=None, pad_edge=False, header_style="bold")
    for k, column in enumerate(COLUMNS):
        found.add_column(column, justify="right" if k > 1 else "left")
    for result in results:
        found.add_row(*row(result))
    return found


def markdown(results: list[Result], where: str, arguments: object) -> str:
    lines = [COLUMNS, ("---", "---", "---:", "---:", "---:"), *map(row, results)]
    grid = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return RESULTS.format(
        command=shlex.join(["python", "benchmarks/processors.py", *sys.argv[1:]]), machine=where, table=grid
    )


RESULTS = """# The same run with other instructions

Made by `{command}`; do not edit.

{machine}.

{table}

Runs of `digits`, seed 0, 25 rounds. **parameters**: largest difference of an entry of the global model from that of the run
without switches; **table**: largest difference of AVG, STD, worst and the groups' accuracies, in percentage points;
**time**: processor time of the whole command over that without switches, one run each.
"""


def main() -> None:
    parser = options("Compare a run with itself under other instructions.", "runs")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of each run (25)")
    arguments = parser.parse_args()
    where, results = machine(), []
    for method, network in RUNS:
        if arguments.only.lower() in f"{method}, {network or 'cnn'}":
            results += compared(method, network, arguments.rounds)
    show(arguments, where, results, table, markdown)


if __name__ == "__main__":
    main()
