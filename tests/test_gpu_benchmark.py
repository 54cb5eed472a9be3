"""The GPU benchmark on a CPU: every design trains what the library trains, and what fails is told."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not part of an installed library")
sys.path.insert(0, str(FOLDER))

import gpu  # noqa: E402
import gpu_designs  # noqa: E402
from gpu_designs import BASELINE, CONVOLUTIONS, MANY, Design, switches  # noqa: E402

CPU = torch.device("cpu")
CONVOLUTION, DENSE = gpu.TINY[0], gpu.TINY[1]


def quiet(text: str) -> None:
    pass


@pytest.mark.parametrize(
    ("work", "designs"),
    [
        pytest.param(CONVOLUTION, CONVOLUTIONS, marks=pytest.mark.slow, id="convolution"),
        pytest.param(DENSE, MANY, id="dense"),
    ],
)
def test_every_design_ends_at_the_weights_of_the_librarys_round(work, designs):
    task = work.task(CPU, torch.float64)
    start = task.model.initial
    library = next(d for d in designs if d.name == "equipoise sequential").build(task)
    whole, one = library(None), library(1)
    assert gpu.difference(one, whole, start) > 0.1  # the first step is not the whole round
    kinds = {(d.make, d.channels_last, d.precision == "bf16", min(d.beside, 2)): d for d in designs}
    for design in kinds.values():
        run = design.build(task)
        assert gpu.difference(run(None), whole, start) < 1e-10, str(design)
        assert gpu.difference(run(1), one, start) < 1e-10, str(design)
        assert gpu.difference(run(None), whole, start) < 1e-10, f"{design}, again in the same memory"


def test_a_client_left_out_would_be_noticed():
    task = CONVOLUTION.task(CPU, torch.float64)
    whole = BASELINE.build(task)(None)
    other = replace(task, widths=(*task.widths[:-1], task.widths[-1][:1]))  # its last client stops early
    assert gpu.difference(BASELINE.build(other)(None), whole, task.model.initial) > 1e-3


def test_batches_are_ragged_and_clients_unequal():
    task = CONVOLUTION.task(CPU, torch.float32)
    assert len({w for widths in task.widths for w in widths}) > 2
    assert len({len(widths) for widths in task.widths}) > 1
    assert task.alike(5) == [[0, 1], [2], [3]]
    assert task.alike(1) == [[0], [1], [2], [3]]
    for m, widths in enumerate(task.widths):
        rows = task.rows[m][task.rows[m] >= 0]
        first = sum(task.sizes[:m])
        counts = torch.bincount(rows - first, minlength=task.sizes[m])
        assert len(rows) == sum(widths)
        assert len(counts) == task.sizes[m]  # only its own samples ...
        assert counts.max() == 2  # ... once an epoch


def test_steps_that_run_together_do_not_share_memory():
    task = CONVOLUTION.task(CPU, torch.float64)
    design = Design("two", gpu_designs.branches, channels_last=True, beside=2)
    one, other = gpu_designs.Slot(task, design), gpu_designs.Slot(task, design)
    places = [{t.data_ptr() for t in (*s.tensors, *s.momenta, s.rows, s.step_number)} for s in (one, other)]
    assert not places[0] & places[1]
    one.load([0])
    before = [t.data_ptr() for t in (*one.tensors, *one.momenta)]
    one.step(4)
    one.load([2])
    assert before == [t.data_ptr() for t in (*one.tensors, *one.momenta)]  # what a graph replays stays where it is
    assert any(
        t.is_contiguous(memory_format=torch.channels_last) and t.dim() == 4 and t.shape[1] > 1 for t in one.tensors
    )


def test_the_union_of_intervals():
    assert gpu.covered([]) == 0
    assert gpu.covered([(5, 6), (0, 2), (1, 3), (1, 2), (3, 4)]) == 5


def test_switches_are_put_back():
    before = _precision()
    with switches("fp32"):
        assert _precision() == ("ieee" if NEW else False)
    with pytest.raises(ZeroDivisionError), switches("tf32"):
        raise ZeroDivisionError
    assert before == _precision()


def _precision() -> object:
    return CONV.fp32_precision if NEW else CONV.allow_tf32


NEW = hasattr(torch.backends.cudnn, "conv")
CONV = torch.backends.cudnn.conv if NEW else torch.backends.cudnn


def broken(task, design):
    def run(most):
        raise RuntimeError("no graph today\nand a second line")

    return run


def wrong(task, design):
    run = gpu_designs.plain(task, design)
    return lambda most: run(most) * 1.0001


def late(task, design):
    """Runs in float64 and in the first rounds, then no more."""
    run, calls = gpu_designs.plain(task, design), []

    def counted(most):
        calls.append(most)
        if task.x.dtype == torch.float32 and len(calls) > 2:
            raise RuntimeError("out of memory")
        return run(most)

    return counted


@pytest.mark.slow
def test_what_fails_is_told_and_the_others_go_on():
    designs = (
        BASELINE,
        *(Design(make.__name__, make) for make in (broken, wrong, late)),
        Design("good", gpu_designs.plain),
    )
    results = gpu.measure(DENSE, CPU, 2, float("inf"), designs)
    by_name = {r.design.split(",")[0]: r for r in results}
    assert by_name["broken"].failed == "RuntimeError: no graph today"
    assert "float64 differs" in by_name["wrong"].failed
    assert by_name["wrong"].exact > gpu.EXACT
    assert by_name["late"].failed == "RuntimeError: out of memory"
    for name in ("plain loop", "good"):
        assert by_name[name].failed is None
        assert by_name[name].ratio > 0
        assert by_name[name].exact == 0
    assert by_name["plain loop"].turns == 2
    assert by_name["plain loop"].ratio == 1
    for result in results:
        result.ratio = (
            None if result.ratio is None else {"wrong": 9.0, "good": 2.0}.get(result.design.split(",")[0], 1.0)
        )
    best = gpu.fastest("work", results)
    assert "good" in best  # what is wrong is not the fastest
    assert "2.00" in best
    assert len(gpu.remarks("work", results)) == 4
    assert gpu.table(results).renderables


def test_precision_has_a_bound_of_its_own():
    task = DENSE.task(CPU, torch.float32)
    double = DENSE.task(CPU, torch.float64)
    start, step = double.model.initial, BASELINE.build(double)(1)
    for design in (BASELINE, Design("graph", gpu_designs.branches, "bf16")):
        result = gpu.Result("work", str(design), 4, exact=0.0)
        gpu.prepared(design, task, result, step, start)
        assert result.failed is None
        coarse = design.precision == "bf16"
        assert (result.rounding > 1e-3) == coarse


@pytest.mark.slow
def test_the_command_prints_and_writes(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["gpu.py", "--device", "cpu", "--only", "logistic", "--design", "stack", "--json", "--quick"]
    )
    threads = torch.get_num_threads()
    gpu.main()
    torch.set_num_threads(threads)
    told = json.loads(capsys.readouterr().out)
    found = {r["design"]: r for r in told["results"]}
    assert set(found) == {str(d) for d in MANY if d is BASELINE or "stack" in d.name}
    assert all(r["failed"] is None and r["ratio"] > 0 and r["exact"] < gpu.EXACT for r in found.values())
    assert all(r["busy"] is None and r["kernels"] is None and r["memory"] is None for r in found.values())  # no GPU


def test_the_page_has_a_table_for_each_workload():
    results = [
        gpu.Result("one", "plain loop, default", 4, 1.0, 1.0, 1.0, 2.0, 3, 0.5, 150.0, 1.5, 0.0, 1e-3),
        gpu.Result("one", "graph, tf32", 4, 4.5, 4.25, 4.75, 0.5, 3, 0.9, 140.0, 2.0, 1e-15, 2e-3),
        gpu.Result("two", "plain loop, default", 30, failed="RuntimeError: no"),
    ]
    arguments = gpu.options("", "").parse_args([])
    page = gpu.markdown(results, "a GPU", arguments)
    assert page.startswith("# Speed of a round on a GPU\n")
    assert page.count("\n## ") == 2
    assert "| graph, tf32 | 4.50 | 4.2-4.8 | 0.500 | 90% | 140.0 | 2.00 | 1e-15 | 2e-03 |" in page
    assert "the fastest is graph, tf32, 4.50 times the plain loop (target 4)" in page
    assert "plain loop, default failed: RuntimeError: no" in page
    assert "two: no design passed" in page


def test_it_asks_for_a_gpu_and_keeps_no_times_of_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--device cpu"):
        gpu.place("cuda")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--write"])
    with pytest.raises(SystemExit, match="Leave one out"):
        gpu.main()


def test_the_workloads_are_those_of_the_paper():
    first = gpu.WORKLOADS[0]
    assert sorted(set(first.sizes)) == [72, 100, 600, 732]
    assert len(first.sizes) == 20
    assert (first.batch, first.epochs) == (64, 10)
    assert sum(p.numel() for p in first.network().parameters()) > 4_800_000
    for work in gpu.WORKLOADS:
        short = work.fewer(4, 2)
        assert len(short.sizes) == len(work.sizes) / 2
        assert short.epochs <= 2
