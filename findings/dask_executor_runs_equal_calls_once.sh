#!/usr/bin/env bash
# distributed 2026.8.0. client.get_executor() is a concurrent.futures.Executor, but an equal call is no second call: while
# a future of the first is held, submit(function, *arguments) and map answer with its result, or its error. Client.submit
# says so (pure=True); the executor does not, and Python's own call the function each time. Code that takes "any executor"
# therefore draws one random number three times, and a call that it repeats because a worker was lost is never repeated.
# Seen: three draws, one value; with the error of the first try also for the second and third, while the function ran once;
# get_executor(pure=False) draws three values.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check distributed==2026.8.0 dask==2026.8.0
"$home/venv/bin/python" -W ignore - "$home/tries" <<'PY' 2> "$home/errors" || { cat "$home/errors"; exit 1; }
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from distributed import Client

client = Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
tries = Path(sys.argv[1])


def unlucky():
    with tries.open("a") as file:
        file.write("x")
    if tries.read_text() == "x":
        raise ConnectionError("a worker was lost")
    return "done"


def draw():
    return random.random()


def draws(executor):
    return len({future.result() for future in [executor.submit(draw) for _ in range(3)]})


usual = client.get_executor()
python, dask, impure = draws(ThreadPoolExecutor(1)), draws(usual), draws(client.get_executor(pure=False))
print(f"values of three draws: Python {python}, Dask {dask}, Dask with pure=False {impure}")
assert (python, dask, impure) == (3, 1, 3)
futures = [usual.submit(unlucky) for _ in range(3)]
errors = [type(future.exception(60)).__name__ for future in futures]
print("three tries:", ", ".join(errors), "- the function ran", len(tries.read_text()), "time")
assert errors == ["ConnectionError"] * 3
assert tries.read_text() == "x"
client.close()
PY
echo "As found: distributed 2026.8.0, the executor of a client runs equal calls once."
