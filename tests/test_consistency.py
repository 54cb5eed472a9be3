"""How steadily the parameters of a layer are pushed one way: against loops over the updates, and the figure of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from equipoise.analysis import reproduced as analysis
from equipoise.analysis.reproduced import drawn
from equipoise.engines.job import Answer, Job
from equipoise.federation.history import History
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunError
from helpers import federation, watched, write_records
from test_analysis import run_of

ROUNDS = 12


@pytest.mark.parametrize(("participation", "layer"), [(1.0, ""), (0.6, "2.bias")])
def test_windows_typed_out(participation: float, layer: str) -> None:
    """Eq. 7 in loops, with the rounds of the window as history and its last round as the present one."""
    seen: list[tuple[Job, Answer]] = []
    fed = federation("fedavg", participation=participation, engine=watched(seen))
    found = analysis.trace(fed, ROUNDS, layer)
    sizes = list(fed.model.layout)
    k = list(fed.model.names).index(layer) if layer else sizes.index(max(sizes))
    start, end = sum(sizes[:k]), sum(sizes[: k + 1])
    rising: dict[tuple[int, int], list[bool]] = {}
    for job, answer in seen:
        for row, trained in zip(answer.rows, answer.trained, strict=True):
            change = (trained - job.received[row])[start:end].tolist()
            rising[job.t, job.ids[row]] = [x >= 0 for x in change]
    assert [(w["layer"], w["first"], w["end"]) for w in found] == [
        (fed.model.names[k], *span) for span in ((0, 10), (0, 12), (2, 12))
    ]
    for window in found:
        expected: dict[int, list[int]] = {}
        for m in range(5):
            there = [t for t in range(window["first"], window["end"]) if (t, m) in rising]
            if not there or there[-1] != window["end"] - 1:
                continue
            n = len(there)
            counts = expected.setdefault(n, [0] * (n + 1))
            for i in range(end - start):
                counts[sum(rising[t, m][i] == rising[there[-1], m][i] for t in there)] += 1
        assert window["agreement"] == [expected[n] for n in sorted(expected)]
        assert sum(map(sum, window["agreement"])) > 0


def test_of_a_run_it_is_kept_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_of(tmp_path / "run")
    runs.execute(path, progress=False)
    before = (path / "metrics.jsonl").read_bytes()
    figure = drawn({"draw": "consistency"}, {("p", "FedAvg"): [path], ("p", "other"): [tmp_path / "none"]})["p"]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["rounds 0 to 2"]  # all windows are the same
    values, edges, _ = figure.axes[0].patches[0].get_data()
    assert float(values @ (edges[1:] - edges[:-1])) == pytest.approx(1)
    assert (path / "metrics.jsonl").read_bytes() == before
    monkeypatch.setattr(analysis, "trace", lambda *_: pytest.fail("it is known"))
    (window,) = analysis.consistency(path)
    assert len(window["agreement"][0]) == 4
    with pytest.raises(pytest.fail.Exception):
        analysis.consistency(path, "output.bias")  # another layer is not
    (path / "consistency.json").write_text("{")
    with pytest.raises(RunError, match=r"is damaged\. Delete it"):
        analysis.consistency(path)


def test_a_repetition_that_differs_is_refused(tmp_path: Path) -> None:
    path = run_of(tmp_path / "run")
    runs.execute(path, progress=False)
    history = History.from_run(path)
    history.records[1]["losses"][0] *= 1.01  # FedAvg's weights tell nothing of the training
    write_records(history, path / "metrics.jsonl")
    shutil.rmtree(path / "checkpoint")
    with pytest.raises(RunError, match="round 1 gives its clients other losses than metrics"):
        analysis.consistency(path)
    assert not (path / "consistency.json").exists()


def test_no_such_layer() -> None:
    with pytest.raises(ValueError, match=r"layer.*nowhere"):
        analysis.trace(federation("fedavg"), 1, "nowhere")
