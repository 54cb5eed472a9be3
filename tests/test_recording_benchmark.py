"""The benchmark of records leaves records out, and the rest as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not part of an installed library")
sys.path.insert(0, str(FOLDER))

import recording  # noqa: E402

from equipoise.federation import directory  # noqa: E402
from equipoise.system.claims import claimed  # noqa: E402
from helpers import federation, samples  # noqa: E402


def test_rounds_without_records_are_kept_and_go_on(tmp_path: Path) -> None:
    kept, made = {}, {}
    for name in ("with", "without"):
        fed, path = federation(tests={"a": samples(20, 1)}), tmp_path / name
        with claimed(path), recording.unrecorded() if name == "without" else recording.ExitStack():
            for _ in range(3):  # the second checkpoint reads the first
                fed.fit(1, progress=False)
                directory.append(path, fed.records[-1])
                fed.save(path)
        kept[name], made[name] = (path / "metrics.jsonl").read_text(), fed
    assert all(made["with"].records[-1]["losses"])
    assert not any(made["without"].records[-1]["losses"])
    assert '"hash"' in kept["with"]
    assert '"hash"' not in kept["without"]
    assert torch.equal(made["with"].progress.vector, made["without"].progress.vector)
