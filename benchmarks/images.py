"""A folder of images that does not fit in memory: what training on it takes, and what streaming costs.

Makes a folder of JPEG files of 224 by 224 pixels, one folder per client and one per class, and trains FedAvg on it for one
round with the command that a user gives, in a process of its own. Then the same training from memory and from the file of
decoded images takes turns on a part of the images, and so does the reading of batches alone.

    python benchmarks/images.py            # print the table; some minutes, 5 GB of disk while it runs
    python benchmarks/images.py --write    # and keep it in benchmarks/RESULTS.md
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from PIL import Image
from rich.table import Table
from round import machine, options, show

import equipoise as eq
from equipoise import scenarios
from equipoise.data.memory_mapped import Mapped, labels, take

IMAGES, SIDE, CLIENTS, CLASSES, BATCH = 20_000, 224, 20, 10, 32
DISTINCT = 211  # images that are made
PART = 100  # images of a client in the comparison with memory
MOST = 2000  # MB beside the model and the matrix of updates
KINDS = ("VmHWM", "RssAnon", "RssFile")  # the peak of all, what the process made, and pages of files


@dataclass(frozen=True)
class Result:
    """Megabytes of memory of the training process, and seconds from disk over seconds from memory."""

    images: int
    peak: float
    anonymous: float
    files: float
    model: float
    matrix: float
    kept: float  # MB of decoded images on disk
    training: float
    training_low: float
    training_high: float
    reading: float

    @property
    def allowed(self) -> float:
        """Most memory that training may take."""
        return MOST + self.model + self.matrix


def image(seed: int) -> bytes:
    """A JPEG file of random colours that change slowly, and noise: it takes as many bytes as a photograph of its size."""
    draw = np.random.default_rng(seed)
    coarse = Image.fromarray(draw.integers(0, 256, (7, 7, 3), dtype=np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )
    noise = draw.integers(-12, 13, (SIDE, SIDE, 1), dtype=np.int16)
    file = io.BytesIO()
    Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def make(folder: Path, n: int) -> None:
    """Write ``n`` files, which repeat a few images: what is in them does not matter here."""
    images = [image(seed) for seed in range(DISTINCT)]
    for i in range(n):
        where = folder / f"client-{i % CLIENTS:02d}" / f"class-{i // CLIENTS % CLASSES}"
        where.mkdir(parents=True, exist_ok=True)
        (where / f"{i:05d}.jpg").write_bytes(images[i % DISTINCT])


def status() -> dict[str, float]:
    """Memory of this process in MB, by kind."""
    lines = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) / 1024 for name, value in lines if name in KINDS}


class Peaks:
    """Largest memory of this process by kind, looked at twenty times a second; that of all kinds together is the system's own."""

    def __enter__(self) -> Peaks:
        self.found, self._over = status(), threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *of: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._over.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            now = status()
            self.found = {kind: max(self.found[kind], now[kind]) for kind in KINDS}


def train(folder: Path, threads: int) -> None:
    """Give the user's command in this process, and print what it took."""
    from equipoise.cli.main import main

    command = f"run --method fedavg --data {folder} --set size={SIDE} --network cnn --rounds 1 --epochs 1 --batch-size {BATCH} "
    command += f"--lr 0.01 --threads {threads} --runs {folder.parent / 'runs'}"
    with Peaks() as peaks:
        try:
            sys.argv = ["equipoise", *shlex.split(command)]
            main()
        except SystemExit as end:
            if end.code:
                raise
    print(json.dumps({**peaks.found, "VmHWM": status()["VmHWM"]}))


def compare(folder: Path, threads: int, alternations: int) -> None:
    """Let training from disk and from memory take turns in this process, and print seconds of both."""
    torch.set_num_threads(threads)
    scenario = scenarios.load("own", 0, folder, size=SIDE)
    streamed = [take(data, range(min(PART, len(labels(data))))) for data in scenario.clients]
    held = [data.gather(range(len(data))) for data in streamed if isinstance(data, Mapped)]
    if len(held) < len(streamed):
        raise SystemExit(
            "The images are few enough to be held in memory: there is nothing to compare. Give more --images."
        )
    network = eq.network("cnn", in_shape=(3, SIDE, SIDE), n_classes=CLASSES)
    draw = np.random.default_rng(0)
    batches = [torch.from_numpy(draw.integers(0, len(held[0].y), BATCH)) for _ in range(100)]
    seconds: dict[str, list[float]] = {"disk": [], "memory": [], "read disk": [], "read memory": []}
    for _ in range(alternations):
        for side, clients in (("disk", streamed), ("memory", held)):
            federation = eq.Federation(
                network, clients, transform=scenario.transform, batch_size=BATCH, epochs=1, seed=0
            )
            start = time.perf_counter()
            federation.fit(1, progress=False)
            seconds[side].append(time.perf_counter() - start)
        for side, read in (("read disk", streamed[0].gather), ("read memory", lambda b: held[0].x.index_select(0, b))):
            start = time.perf_counter()
            for batch in batches:
                read(batch)
            seconds[side].append(time.perf_counter() - start)
    print(json.dumps(seconds))


def child(part: str, folder: Path, cache: Path, *more: str) -> dict:
    """Run a part of this file in a process of its own; what it prints last is JSON."""
    print(f"{part} ...", file=sys.stderr)
    command = [sys.executable, __file__, "--part", part, str(folder), *more]
    environment = {**os.environ, "EQUIPOISE_CACHE": str(cache)}
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return json.loads(said.splitlines()[-1])


def measure(n: int, arguments: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as place:
        folder, cache = Path(place) / "images", Path(place) / "cache"
        print(f"making {n:,} images ...", file=sys.stderr)
        make(folder, n)
        rest = ["--threads", str(arguments.threads), "--alternations", str(arguments.alternations)]
        peaks = child("train", folder, cache, *rest)
        seconds = child("compare", folder, cache, *rest)
        kept = sum(path.stat().st_size for path in cache.rglob("*.npy")) / 2**20
    model = (
        4 * sum(p.numel() for p in eq.network("cnn", in_shape=(3, SIDE, SIDE), n_classes=CLASSES).parameters()) / 2**20
    )
    ratios = [disk / memory for disk, memory in zip(seconds["disk"], seconds["memory"], strict=True)]
    reading = statistics.median(seconds["read disk"]) / statistics.median(seconds["read memory"])
    training = statistics.median(seconds["disk"]) / statistics.median(seconds["memory"])
    return Result(
        n, *(peaks[kind] for kind in KINDS), model, CLIENTS * model, kept, training, min(ratios), max(ratios), reading
    )


def rows(r: Result) -> list[tuple[str, str]]:
    return [
        ("images", f"{r.images:,} of {SIDE} by {SIDE}"),
        ("decoded images on disk, MB", f"{r.kept:,.0f}"),
        ("peak memory, MB", f"{r.peak:,.0f}"),
        ("allowed: 2,000 and the model and the updates, MB", f"{r.allowed:,.0f}"),
        ("model, updates of all clients, MB", f"{r.model:.0f}, {r.matrix:.0f}"),
        ("peak of what the process made, of pages of files, MB", f"{r.anonymous:,.0f}, {r.files:,.0f}"),
        (
            "seconds of a round, from disk over from memory",
            f"{r.training:.2f} ({r.training_low:.2f} to {r.training_high:.2f})",
        ),
        ("seconds of reading batches, from disk over from memory", f"{r.reading:.2f}"),
    ]


def table(results: list[Result]) -> Table:
    grid = Table("what", "", title="Training on a folder of images")
    grid.columns[1].justify = "right"
    for result in results:
        for name, value in rows(result):
            grid.add_row(
                name, value, style="red" if name.startswith("peak memory") and result.peak > result.allowed else None
            )
    return grid


def markdown(results: list[Result], where: str, arguments: argparse.Namespace) -> str:
    return TEXT.format(
        command=shlex.join(["python", "benchmarks/images.py", *sys.argv[1:]]),
        machine=where,
        table="\n".join(f"| {name} | {value} |" for result in results for name, value in rows(result)),
        clients=CLIENTS,
        batch=BATCH,
        part=PART,
        threads=arguments.threads,
        alternations=arguments.alternations,
    )


TEXT = """# Training on a folder of images

Made by `{command}`; do not edit.

{machine}.

| what | |
| --- | ---: |
{table}

`equipoise run --data FOLDER --set size=224 --network cnn`, one round and its evaluation, {clients} clients, batches of {batch}, with
decoding. **peak memory**: the most that the process ever had, by the system's count, libraries included. Pages of files are shared and
given back when memory gets short. The ratios are medians of {alternations} turns with {part} images a client; threads inside operations:
{threads}. The images are in the system's cache then: a slow disk that reads them for the first time takes longer.
"""


def main() -> None:
    parser = options("Memory and speed of training on a folder of images.", "nothing here")
    parser.add_argument("--images", type=int, default=IMAGES, help=f"images of the folder ({IMAGES:,})")
    parser.add_argument("--part", nargs=2, metavar=("PART", "FOLDER"), help="train or compare here, print JSON")
    arguments = parser.parse_args()
    if arguments.part:
        part, folder = arguments.part
        if part == "train":
            train(Path(folder), arguments.threads)
        else:
            compare(Path(folder), arguments.threads, arguments.alternations)
        return
    where = machine()
    show(arguments, where, [measure(arguments.images, arguments)], table, markdown)


if __name__ == "__main__":
    main()
