"""What it costs to orchestrate clients: Flower's apps in this process beside Flower's own simulation on Ray.

The echo job is an app of Flower as anybody would write it, the same on all sides: clients send the weights back, the server
stacks them and takes the mean. Nothing is trained, so what a round takes beyond a plain loop over the clients is orchestration.
The second job trains: the sites of this library, asked through Flower's messages in this process, beside its simulator.
Sides take turns, each time in a process of their own, so that what else the machine does touches all.

    python benchmarks/flower.py            # print the table
    python benchmarks/flower.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Group
from rich.table import Table
from round import machine, options, show
from torch import nn

Weights = list[NDArray[Any]]
Shapes = list[tuple[int, ...]]

MODELS: dict[str, Shapes] = {
    "small": [(32, 16), (32,), (10, 32), (10,)],  # a dense network with one hidden layer
    "large": [(512, 512)] * 19 + [(512,)] * 20,
}
CLIENTS = (10, 20)
ECHO = ("plain loop", "the app alone", "in process", "Ray")
TRAINING = ("simulator", "sites")
METHODS = ("fedavg", "scaffold")
TARGET = 50  # times less overhead than Ray
WARM = 2  # rounds that are not timed
ROUNDS = {("small", "Ray"): 20, ("large", "Ray"): 6, ("small", ""): 100, ("large", ""): 6}


def size(model: str) -> int:
    """Parameters of a model."""
    return sum(int(np.prod(shape)) for shape in MODELS[model])


# the echo job
def mean(updates: list[Weights], shapes: Shapes) -> Weights:
    """What the server does with the clients' answers."""
    flat = np.stack([np.concatenate([x.ravel() for x in update]) for update in updates]).mean(0)
    found, at = [], 0
    for shape in shapes:
        found.append(flat[at : at + (n := int(np.prod(shape)))].reshape(shape))
        at += n
    return found


def timed(start: Weights, rounds: int, one_round: Callable[[Weights], Weights]) -> list[float]:
    """Seconds of each round."""
    weights, seconds = start, []
    for _ in range(rounds):
        began = time.perf_counter()
        weights = one_round(weights)
        seconds.append(time.perf_counter() - began)
    if not all(np.allclose(a, b, atol=1e-4) for a, b in zip(start, weights, strict=True)):
        raise SystemExit("The echo came back changed.")
    return seconds


def echo(side: str, model: str, clients: int, rounds: int) -> list[float]:
    """Seconds of each round of the echo job."""
    shapes = MODELS[model]
    start = [np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate(shapes)]
    if side == "plain loop":
        return timed(start, rounds, lambda ps: mean([[p.copy() for p in ps] for _ in range(clients)], shapes))
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    from equipoise.flower.grid import SLOWLY_READ, SLOWLY_WRITTEN, InProcessGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    client, server, seconds = ClientApp(), ServerApp(), []

    @client.train()
    def train(message: Message, _: Context) -> Message:
        weights = [x.copy() for x in message.content.array_records["weights"].to_numpy_ndarrays()]
        content = RecordDict({"weights": ArrayRecord(weights), "metrics": MetricRecord({"n": 1.0})})
        return Message(content, reply_to=message)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(0.1)

        def one_round(weights: Weights) -> Weights:
            content = RecordDict({"weights": ArrayRecord(weights)})
            replies = list(grid.send_and_receive([Message(content, node, "train") for node in nodes]))
            if len(replies) != clients or any(reply.has_error() for reply in replies):
                raise SystemExit("A client did not answer.")
            return mean([r.content.array_records["weights"].to_numpy_ndarrays() for r in replies], shapes)

        seconds.extend(timed(start, rounds, one_round))

    here = InProcessGrid(client, [{}] * clients, {})
    if side != "in process":  # Flower's own functions, as without the grid
        for name, function in (("from_numpy_ndarray", SLOWLY_WRITTEN), ("numpy", SLOWLY_READ)):
            setattr(Array, name, function)
    context = here.contexts[1]
    if side == "in process":
        server(here, context)
    elif side == "the app alone":  # its functions with Flower's messages, and nobody between them
        alone: Any = here
        alone.send_and_receive = lambda messages: [train(message, context) for message in messages]
        server(alone, context)
    else:
        import ray

        ray.init(
            "local", include_dashboard=False, logging_level=logging.ERROR
        )  # and not a cluster that happens to be there
        run_simulation(server, client, clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    return seconds


# the training job
def training(side: str, method: str, model: str, clients: int, rounds: int) -> list[float]:
    """Seconds of each round of a method, in one step per client."""
    import equipoise as eq
    from equipoise.flower import in_process

    width, deep = (16, []) if model == "small" else (512, [512] * 18)
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Linear(width, 32 if model == "small" else 512), nn.ReLU()]
    for n in deep:
        parts += [nn.Linear(n, n), nn.ReLU()]
    net = nn.Sequential(*parts, nn.Linear(32 if model == "small" else 512, 10))
    data = [(torch.randn(8, width), torch.randint(10, (8,))) for _ in range(clients)]
    if side == "simulator":
        made = eq.Federation(net, data, method, tests={"all": data[0]}, engine="sequential")
    else:
        made = in_process(net, data, method, tests={"all": data[0]}, states=tempfile.mkdtemp())
    made.fit(rounds, progress=False)
    return [record["seconds"] for record in made.records]


@dataclass(frozen=True)
class Result:
    """Median milliseconds of a round by side, and the shortest and the longest."""

    job: str
    model: str
    clients: int
    milliseconds: dict[str, tuple[float, float, float]]

    def overhead(self, side: str, beside: str) -> float:
        """Milliseconds per client and round, beyond another side."""
        return (self.milliseconds[side][0] - self.milliseconds[beside][0]) / self.clients

    @property
    def ratio(self) -> float:
        """Overhead on Ray over that in this process."""
        return self.overhead("Ray", "plain loop") / max(self.overhead("in process", "plain loop"), 1e-6)


def measure(jobs: list[tuple[str, str, int]], alternations: int, threads: int) -> list[Result]:
    """Let the sides take turns."""
    found: dict[tuple[str, str, int], dict[str, list[float]]] = {job: {} for job in jobs}
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    for turn in range(alternations):
        for name, model, clients in jobs:
            for side in ECHO if name == "echo" else TRAINING:
                print(f"turn {turn + 1} of {alternations}: {name}, {model}, {clients}, {side} ...", file=sys.stderr)
                rounds = WARM + ROUNDS.get((model, side), ROUNDS[model, ""])
                point = [name, side, model, str(clients), str(rounds)]
                command = [sys.executable, __file__, "--point", *point, "--threads", str(threads)]
                told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
                seconds = json.loads(told.splitlines()[-1])[WARM:]
                found[name, model, clients].setdefault(side, []).append(1e3 * statistics.median(seconds))
    return [
        Result(*job, {side: (statistics.median(t), min(t), max(t)) for side, t in sides.items()})
        for job, sides in found.items()
    ]


def number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.0f}"


def ranged(times: tuple[float, float, float]) -> str:
    return f"{number(times[0])} ({number(times[1])} to {number(times[2])})"


ECHO_COLUMNS = ("parameters", "clients", *(f"{side}, ms" for side in ECHO), "overhead here", "on Ray", "times less")
TRAINING_COLUMNS = ("method", "parameters", "clients", *(f"{side}, ms" for side in TRAINING), "overhead")


def rows(results: list[Result], echo: bool) -> list[tuple[str, ...]]:
    """A row of cells for each result of the echo job, or of the others."""
    found = []
    for r in results:
        if (r.job == "echo") != echo:
            continue
        about = (f"{size(r.model):,}", str(r.clients), *(ranged(t) for t in r.milliseconds.values()))
        if echo:
            over = (number(r.overhead("in process", "plain loop")), number(r.overhead("Ray", "plain loop")))
            found.append((*about, *over, f"{r.ratio:.0f}"))
        else:
            found.append((r.job, *about, number(r.overhead("sites", "simulator"))))
    return found


def table(results: list[Result]) -> Any:
    grids = []
    for columns, echo in ((ECHO_COLUMNS, True), (TRAINING_COLUMNS, False)):
        grid = Table(*columns, title="Echo: overhead in ms per client and round" if echo else "Training")
        for cells in rows(results, echo):
            grid.add_row(*cells)
        if grid.row_count:
            grids.append(grid)
    return Group(*grids)


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    def lines(columns: tuple[str, ...], echo: bool) -> str:
        cells = [columns, ("---", *["---:"] * (len(columns) - 1)), *rows(results, echo)]
        return "\n".join("| " + " | ".join(row) + " |" for row in cells)

    return TEXT.format(
        command=shlex.join(["python", "benchmarks/flower.py", *sys.argv[1:]]),
        machine=where,
        echo=lines(ECHO_COLUMNS, True),
        training=lines(TRAINING_COLUMNS, False),
        target=TARGET,
        alternations=arguments.alternations,
        threads=arguments.threads,
    )


TEXT = """# Orchestration through Flower

Made by `{command}`; do not edit.

{machine}.

{echo}

An app of Flower whose clients send back the weights and whose server takes their mean, unchanged on all sides; medians of
{alternations} turns of each side, in milliseconds, each the median of a process of its own (range of the turns in brackets).
**plain loop**: the same on arrays, without Flower. **the app alone**: the app's two functions called by hand with Flower's
messages; what this takes more than the plain loop is the app's own conversion of arrays to bytes and back. **in process**: by
`equipoise.flower.InProcessGrid`, which makes and reads these bytes faster. **Ray**: by Flower's simulation, one client per processor; starting it, which takes
seconds, is not counted. **overhead**: what a round takes beyond the plain loop, per client; **times less**: Ray's over that in process (target: {target}).

{training}

One step per client. **simulator**: `equipoise.Federation` with the sequential engine; **sites**: the same federation through
messages, with the sites' states in files and threads inside operations: {threads}; **overhead**: the difference, in milliseconds
per client and round.
"""


def main() -> None:
    parser = options("Time of orchestration through Flower: in this process and on Ray.", "jobs")
    parser.add_argument(
        "--point", nargs=5, metavar=("JOB", "SIDE", "MODEL", "CLIENTS", "ROUNDS"), help="measure here, print JSON"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.point:
        job, side, model, clients, rounds = arguments.point
        about = (model, int(clients), int(rounds))
        print(json.dumps(echo(side, *about) if job == "echo" else training(side, job, *about)))
        return
    where = machine()
    jobs = [("echo", model, n) for model in MODELS for n in CLIENTS]
    jobs += [(method, model, CLIENTS[0]) for method in METHODS for model in MODELS]
    jobs = [job for job in jobs if arguments.only.lower() in " ".join(map(str, job))]
    show(arguments, where, measure(jobs, arguments.alternations, arguments.threads), table, markdown)


if __name__ == "__main__":
    main()
