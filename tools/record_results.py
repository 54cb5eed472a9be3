"""Record what runs give, bit by bit, to show that a change of structure changes no result.

    python tools/record_results.py before.json     # before the change
    python tools/record_results.py after.json      # after it
    cmp before.json after.json

Each entry is the SHA-256 of the global model, of what all clients and the server remember, and of the records without their times.
Only names of the public interface are used, so that the same script runs on both sides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

import equipoise as eq

METHODS = (
    "fedavg",
    "scaffold",
    "moon",
    "ditto",
    "fedproto+fedheal",
    "fedavg+qffl",
    "afl",
    "fedce",
    "fedld",
    "fedism+",
    "fedsac",
    "cgsv",
)
SCENARIOS: dict[str, dict[str, Any]] = {
    "digits": {"clients": 4},
    "digits-label-skew": {"clients": 5},
    "digits-pow": {"clients": 5},
}
ENGINES = ("workers", "stacked")
ROUNDS = 2
SAMPLES = 48  # of each client, so that all of it takes minutes


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def recorded(method: str, scenario: str, engine: str) -> dict[str, str]:
    """The hashes of one run."""
    s = eq.scenario(scenario, seed=0, **SCENARIOS[scenario])
    net = eq.network("mlp", s.shape, s.n_classes, seed=0, hidden=(16,))
    clients = [(x[:SAMPLES], y[:SAMPLES]) for x, y in s.clients]
    tests = {name: (x[:SAMPLES], y[:SAMPLES]) for name, (x, y) in s.tests.items()}
    held = s.server_validation if s.server_validation is not None else next(iter(s.tests.values()))
    fed = eq.Federation(
        net, clients, method, eq.SGD(0.05, 0.9), tests=tests, transform=s.transform, groups=s.client_groups, names=s.client_names,
        server_validation=(held[0][:SAMPLES], held[1][:SAMPLES]), participation=0.8, batch_size=16, seed=1, engine=engine, workers=2,
    )  # fmt: skip
    fed.fit(ROUNDS, progress=False)
    records = [{key: value for key, value in record.items() if key != "seconds"} for record in fed.history.records]
    state = [(name, x.contiguous().numpy().tobytes()) for name, x in sorted(fed.progress.tensors().items())]
    return {
        "model": sha256(fed.progress.vector.numpy().tobytes()),
        "state": sha256(*(name.encode() + content for name, content in state)),
        "records": sha256(json.dumps(records, sort_keys=True).encode()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="where to write the hashes")
    file = parser.parse_args().file
    torch.set_num_threads(1)
    found = {
        f"{method}, {scenario}, {engine}": recorded(method, scenario, engine)
        for scenario in SCENARIOS
        for engine in ENGINES
        for method in METHODS
    }
    file.write_text(json.dumps(found, indent=1))
    print(f"{len(found)} runs: {file}")


if __name__ == "__main__":
    main()
