"""A round that spoilt the model is not the end: earlier checkpoints are kept, and the run goes on from before it."""

# ruff: noqa: F401, F811 (fixtures are imported)
from __future__ import annotations

import json
import logging
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import nn

import equipoise as eq
from equipoise import CheckpointError, QuorumError
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import sequential
from equipoise.federation import checkpoint
from equipoise.flower import Task
from equipoise.flower.codec import Parcel
from equipoise.runs import directory as runs
from helpers import consortium, federation, identical, others_slow, samples, told
from run_helpers import TINY, Zygote, assert_same_run, cache, config, equipoise, executed, records, started, zygote
from test_flower import Changed, Machines, instead, task

Engine = Callable[[Job], Iterator[Answer]]
BAD, ROUND = 2, 3  # who spoils the model, and when


def spoiling(change: Callable[[Job, Answer], Answer], when: int = ROUND) -> Engine:
    def engine(job: Job) -> Iterator[Answer]:
        for answer in sequential(job):
            yield change(job, answer) if (job.t, job.ids[answer.rows[0]]) == (when, BAD) else answer

    return engine


def longer(job: Job, answer: Answer) -> Answer:
    """A billion times as far from what was received, and within the range of numbers."""
    start = job.received[list(answer.rows)]
    return replace(answer, trained=start + 1e9 * (answer.trained - start))


def gone(job: Job, answer: Answer) -> Answer:
    return Answer.failed(answer.rows[0], RuntimeError("gone"))


def steep() -> nn.Module:
    """Whose gradients grow with the square of its values: from a model that is far off, nobody can train."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)).double()


def three(
    change: Callable[[Job, Answer], Answer] | None = longer, method: str = "scaffold", **given: Any
) -> eq.Federation:
    engine = sequential if change is None else spoiling(change)
    return federation(method, net=steep(), sizes=(9, 8, 7), engine=engine, participation=1.0, **given)


def spoilt(directory: Path, keep: int = 3, method: str = "scaffold", **given: Any) -> str:
    """A run whose third client spoils the model; what its end says."""
    with pytest.raises(QuorumError) as error:
        three(method=method, **given).fit(8, directory=directory, progress=False, keep_checkpoints=keep)
    return str(error.value)


def content(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def without_reasons(fed: eq.Federation) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "quarantined"} for record in told(fed)]


# in Python
@pytest.mark.parametrize("method", others_slow(["scaffold", "moon+fedheal", "ditto-personal"], fast=(1,)))
def test_a_run_goes_on_from_before_the_round_that_spoilt_it(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the answer had never come; nothing of what happened is lost."""
    said = spoilt(tmp_path, method=method)
    assert said.startswith(
        "training diverged in 3 of 3 clients in round 4: lower the learning rate (0.05), or look for what spoilt the model before round 4. "
    )
    assert said.endswith(
        " If a round has spoilt the model, continue from before it; kept are the states before round 2, 3: "
        f"equipoise resume {tmp_path} --from 3; between sites -c 'from-round=3'."
    )
    assert [one["t"] for one in checkpoint.kept(tmp_path / "checkpoint")] == [4, 3, 2]
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = three(method=method, norm_limit=100.0)
    assert again.resume(tmp_path, from_round=ROUND) == 5
    assert f"is repeated from round 3 on; all records so far are in {tmp_path / 'metrics.1.jsonl'}" in caplog.text
    assert (tmp_path / "metrics.1.jsonl").read_bytes() == before
    again.fit(5, directory=tmp_path, progress=False, keep_checkpoints=3)
    never = three(gone, method=method)
    never.fit(8, progress=False)
    assert torch.equal(again.progress.vector, never.progress.vector)
    ours = {k: x for k, x in again.progress.tensors().items() if k != "norms"}
    assert ours.keys() == never.progress.tensors().keys()
    assert all(torch.equal(x, never.progress.tensors()[k]) for k, x in ours.items())
    assert without_reasons(again) == without_reasons(never)
    (refused,) = again.records[ROUND]["quarantined"]
    assert (refused["client"], "of the round, and norm_limit is 100" in refused["reason"]) == (BAD, True)
    assert [record["round"] for record in eq.History.from_run(tmp_path).records] == list(range(8))


def test_what_is_not_kept_is_told_and_nothing_changes(tmp_path: Path) -> None:
    spoilt(tmp_path)
    before = content(tmp_path)
    for t in (0, 1, 5, -1):
        with pytest.raises(
            CheckpointError, match=f"does not keep the state before round {t}. Kept are those before round 2, 3, 4."
        ):
            three().resume(tmp_path, from_round=t)
    with pytest.raises(CheckpointError, match="with other settings: method"):
        three(method="fedavg").resume(tmp_path, from_round=2)
    assert content(tmp_path) == before
    file = tmp_path / "checkpoint" / checkpoint.kept(tmp_path / "checkpoint", 2)[0]["tensors"]
    file.write_bytes(file.read_bytes()[:-1])
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match="is damaged"):
        three().resume(tmp_path, from_round=2)
    assert content(tmp_path) == before
    assert three().resume(tmp_path, from_round=3) == 5


def test_one_checkpoint_is_kept_unless_more_are_asked_for(tmp_path: Path) -> None:
    assert "--from" not in spoilt(tmp_path, keep=1)
    assert len([*(tmp_path / "checkpoint").glob("*.safetensors")]) == 1
    with pytest.raises(ValueError, match="keep_checkpoints must be a whole number >= 1; found 0"):
        three().fit(1, keep_checkpoints=0)


def test_a_run_may_go_back_again(tmp_path: Path) -> None:
    """Also where it is finished, and to the round in which it is."""
    fed = three(None)
    fed.fit(5, directory=tmp_path, progress=False, keep_checkpoints=4)
    (tmp_path / "summary.json").write_text("{}")
    again = three(None)
    for number, t in enumerate((5, 4, 2), start=0):
        assert again.resume(tmp_path, from_round=t) == 5 - t
        assert len([*tmp_path.glob("metrics.*.jsonl")]) == number
        assert len(again.records) == t
    assert not (tmp_path / "summary.json").exists()
    again.fit(3, directory=tmp_path, progress=False, keep_checkpoints=4)
    assert identical(again, fed)
    assert told(again) == told(fed)
    assert [one["t"] for one in checkpoint.kept(tmp_path / "checkpoint")] == [5, 4, 3, 2]
    fewer = three(None)
    fewer.resume(tmp_path)
    fewer.fit(1, directory=tmp_path, progress=False)
    assert len([*(tmp_path / "checkpoint").glob("*.safetensors")]) == 1


def test_the_best_round_is_that_of_the_rounds_that_count(tmp_path: Path) -> None:
    given: dict[str, Any] = {"validation": 0.3, "select": "best-validation"}
    fed = three(None, **given)
    fed.fit(6, directory=tmp_path, progress=False, keep_checkpoints=6)
    for t in (5, 3, 1):
        again, short = three(None, **given), three(None, **given)
        again.resume(tmp_path, from_round=t)
        short.fit(t, progress=False)
        assert again.best is not None
        assert short.best is not None
        assert again.best.t == short.best.t
        assert torch.equal(again.chosen.vector, short.chosen.vector)
    again.fit(5, directory=tmp_path, progress=False)
    assert torch.equal(again.chosen.vector, fed.chosen.vector)
    assert len([*(tmp_path / "best").glob("*")]) == 1


# killed
def whole(directory: Path) -> list[int]:
    """The rounds of the checkpoints that are kept, each of which can be read."""
    found = [one["t"] for one in checkpoint.kept(directory / "checkpoint")]
    for t in found:
        assert checkpoint.read(directory / "checkpoint", t)[1]["t"] == t
    return found


@pytest.mark.parametrize("step", [61, pytest.param(2, marks=pytest.mark.slow)])
def test_death_at_any_moment_leaves_complete_checkpoints(zygote: Zygote, tmp_path: Path, step: int) -> None:
    settings = config(keep_checkpoints=3)
    reference = executed(tmp_path / "whole", settings)
    assert whole(reference) == [4, 3, 2]
    seen = set()
    for at in range(3, 1000, step):
        directory = started(tmp_path / str(at), settings)
        if zygote.die(directory, at) == 0:
            break
        if checkpoint.exists(directory / "checkpoint"):
            seen.add(len(whole(directory)))
        assert zygote.die(directory) == 0
        assert whole(directory) == [4, 3, 2]
        assert records(directory) == records(reference)
        names = [sorted(path.name for path in (d / "checkpoint").iterdir()) for d in (directory, reference)]
        assert names[0] == names[1]
    assert 3 in seen


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_death_while_a_run_goes_back_loses_nothing(zygote: Zygote, tmp_path: Path, step: int) -> None:
    reference = executed(tmp_path / "whole", config(keep_checkpoints=3))
    lines = (reference / "metrics.jsonl").read_bytes()
    back = set()
    for at in range(4, 25, step):
        directory = tmp_path / str(at)
        shutil.copytree(reference, directory)
        zygote.begin(directory=str(directory), at=at, from_round=2)
        assert zygote.end() == signal.SIGKILL
        back.add(whole(directory)[-1] == 2 and whole(directory)[0] < 4)
        kept = [path.read_bytes() for path in directory.glob("metrics*.jsonl")]
        assert lines in kept
        runs.execute(directory, progress=False)
        assert records(directory) == records(reference)
        assert (directory / "summary.json").read_text() == (reference / "summary.json").read_text()
    assert back == {False, True}


# the command line
SOURCE = """
import torch
from torch import nn

def steep(in_shape, n_classes):
    return nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, n_classes))

def clients(seed):
    draw = torch.Generator().manual_seed(seed)
    x = [torch.randn(40, 6, generator=draw) for _ in range(4)]
    x[3] = 1e5 * x[3]  # in another unit
    return {name: (each, (each[:, 0] > 0).long()) for name, each in zip(("a", "b", "c", "late"), x)}
"""


def test_a_command_goes_back_and_leaves_out_who_spoilt_the_model(equipoise: Any, tmp_path: Path) -> None:
    """A client whose data are in another unit joins in round 3."""
    (tmp_path / "mine.py").write_text(SOURCE)
    given = [
        "run",
        "-m",
        "scaffold",
        "--data",
        f"{tmp_path / 'mine.py'}:clients",
        "--network",
        f"{tmp_path / 'mine.py'}:steep",
    ]
    given += ["--rounds", 6, "--joins", "late=3", "--lr", 0.5, "--runs", tmp_path, "--json", "--keep-checkpoints", 3]
    run = tmp_path / "x"
    found = equipoise(*given, "--name", "x")
    assert (found.status, found.out) == (1, "")
    assert f"equipoise resume {run} --from 3;" in found.err
    wrong = equipoise("resume", run, "--from", 0)
    assert wrong.err == (
        f"error: {run / 'checkpoint'} does not keep the state before round 0. Kept are those before round 2, 3, 4.\n"
    )
    found = equipoise("resume", run, "--from", 3, "--norm-limit", 50, "--json")
    assert found.status == 0, found.err
    assert json.loads(found.out)
    assert equipoise(*given, "--name", "y", "--norm-limit", 50).status == 0
    one, two = (checkpoint.read(tmp_path / name / "checkpoint")[0] for name in ("x", "y"))
    assert all(torch.equal(one[k], two[k]) for k in one if k != "norms")  # known from round 3 on, and from the first
    assert records(run) == records(tmp_path / "y")
    assert [q["name"] for q in records(run)[3]["quarantined"]] == ["late"]
    assert (run / "summary.json").read_text() == (tmp_path / "y" / "summary.json").read_text()
    assert eq.History.from_run(run).meta["config"]["norm_limit"] == 50
    assert equipoise("resume", run, "--json").status == 0


def test_what_was_answered_in_rounds_given_up_counts_as_answered(equipoise: Any, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    run = executed(tmp_path / "run", config("fedavg+dp(clip=1, noise=1)", keep_checkpoints=3, participation=1.0))
    runs.execute(run, progress=False, from_round=2)
    (row,) = json.loads(equipoise("privacy", run, "--json").out)
    assert (row["clients"], row["answers"]) == (4, 4 + 2)


# between sites
def of_site(node: Mapping[str, Any], run: Mapping[str, Any]) -> Task:
    return replace(task(node, run), net=steep())


def poisoning(kind: str, site: str, reply: Message) -> Message:
    if (kind, site, reply.metadata.group_id) != ("train", "south", "3"):
        return reply
    parcel = Parcel.of(reply.content)
    values = {**parcel.tensors, "model/values": parcel.tensors["model/values"] * 1e9}
    return instead(reply, Parcel(parcel.fields, values).records())


def test_sites_go_back_with_their_states(tmp_path: Path) -> None:
    """They keep those of the checkpoints that are kept, and no more."""
    machines = Machines(tmp_path / "a", of_site, rounds=6, **{"norm-limit": 1e12})
    with pytest.raises(QuorumError, match=r"in 3 of 3 .* the states before round 2, 3: .* -c 'from-round=3'"):
        machines.serve(Changed(machines, poisoning))
    states = [sorted(path.name for path in folder.glob("state-*")) for folder in (tmp_path / "a/states").glob("*/*")]
    assert (
        states == [[f"state-{t:06d}.safetensors" for t in (0, 1, 2, 3)]] * 3
    )  # of three checkpoints, and one to remove
    machines.config |= {"from-round": 1}
    with pytest.raises(CheckpointError, match="Kept are those before round 2, 3, 4"):
        machines.serve()
    machines.config |= {"from-round": 3, "norm-limit": 100.0, "quorum": 0.4}
    history = machines.serve(Changed(machines, poisoning))
    other = Machines(tmp_path / "b", of_site, rounds=6)
    never = other.serve(Changed(other, poisoning))
    assert [q["name"] for q in history.records[3]["quarantined"]] == ["south"]
    shown = ("ids", "weights", "losses", "groups", "clients", "quarantined")
    for ours, theirs in zip(history.records, never.records, strict=True):
        assert {k: ours.get(k) for k in shown} == {k: theirs.get(k) for k in shown}
    one, two = (checkpoint.read(m.run / "checkpoint")[0]["vector"] for m in (machines, other))
    assert torch.equal(one, two)
    assert (machines.run / "metrics.1.jsonl").exists()
    states = [sorted(path.name for path in folder.glob("state-*")) for folder in (tmp_path / "a/states").glob("*/*")]
    assert all(len(names) <= 4 for names in states)
    machines.config |= {"from-round": 0, "norm-limit": 50.0}  # finished: nothing is done
    assert len(machines.serve().records) == 6


def test_a_site_that_was_away_keeps_the_state_that_every_checkpoint_names(tmp_path: Path) -> None:
    fed = consortium("ditto-personal", states=tmp_path / "states", tests={"t": samples(30, 8)}, participation=0.5)
    fed.fit(6, directory=tmp_path / "run", progress=False, keep_checkpoints=4)
    never = told(fed)
    again = consortium("ditto-personal", states=tmp_path / "states", tests={"t": samples(30, 8)}, participation=0.5)
    assert again.resume(tmp_path / "run", from_round=3) == 3
    again.fit(3, directory=tmp_path / "run", progress=False, keep_checkpoints=4)
    one, two = ([{k: v for k, v in r.items() if k != "sent"} for r in records] for records in (told(again), never))
    assert one == two
    assert not any("quarantined" in record for record in one)


def test_masked_rounds_are_not_gone_back_to(tmp_path: Path) -> None:
    """A site unmasks one sum of a round; another would be refused by all."""
    given: dict[str, Any] = {"participation": 1.0, "states": tmp_path / "states", "secure": True, "norm_limit": 2.0}
    fed = consortium("fedavg", server_validation=None, **given)
    fed.fit(4, directory=tmp_path / "run", progress=False, keep_checkpoints=3)
    assert fed.progress.norms is None  # the server sees no length
    before = content(tmp_path / "run")
    again = consortium("fedavg", server_validation=None, **given)
    with pytest.raises(CheckpointError, match="cannot go back to round 2: sites have unmasked a sum of it"):
        again.resume(tmp_path / "run", from_round=2)
    assert content(tmp_path / "run") == before
    assert again.resume(tmp_path / "run", from_round=4) == 0
    again.fit(1, directory=tmp_path / "run", progress=False, keep_checkpoints=3)
    assert len(again.records[-1]["ids"]) == 5
