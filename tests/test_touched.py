"""Files of a run that were edited, cut or damaged after they were written are found and named."""

# ruff: noqa: F401 (fixtures are imported)
from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.federation import checkpoint
from equipoise.records.directory import ORDER, members
from equipoise.records.record import last_hash, line, lines, parse
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunError
from equipoise.system.errors import DamagedError
from equipoise.system.seals import open_json, open_toml, sealed_json, sealed_text
from helpers import federation, samples
from run_helpers import assert_same_run, cache, equipoise, executed, started

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return executed(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A finished run of four rounds, to be hurt."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def flip(path: Path) -> None:
    """One bit of the byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(old: str, new: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        before = path.read_text()
        after = re.sub(old, new, before, count=1)
        assert after != before
        path.write_text(after)

    return change


def without(*numbers: int) -> Callable[[Path], None]:
    """Drop lines, counted from 1."""

    def change(path: Path) -> None:
        kept = [text for k, text in enumerate(path.read_text().splitlines(keepends=True), 1) if k not in numbers]
        path.write_text("".join(kept))

    return change


def swapped(path: Path) -> None:
    one, two, three, four = path.read_text().splitlines(keepends=True)
    path.write_text(one + three + two + four)


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a bit of the configuration": ("config.toml", flip, "its content is not what was written"),
    "another learning rate": ("config.toml", edit(r"lr = 0\.05", "lr = 0.06"), "The records of its rounds are intact"),
    "a configuration cut short": ("config.toml", without(*range(8, 99)), "its content is not what was written"),
    "a bit of the records": ("metrics.jsonl", flip, r"line \d is damaged \(.*\); rounds? 0 (to \d are|is) intact"),
    "another accuracy": ("metrics.jsonl", edit(r'"accuracy":0\.\d', '"accuracy":0.9'), "line 1 is .*; no round is intact"),
    "a line less": ("metrics.jsonl", without(3), "line 3 is damaged .*rounds 0 to 1 are intact"),
    "the last lines less": ("metrics.jsonl", without(3, 4), "lines are missing after line 2; the rounds before are intact"),
    "lines in another order": ("metrics.jsonl", swapped, "line 2 is damaged .*; round 0 is intact"),
    "a bit of the summary": ("summary.json", flip, "The run is intact. Delete this file; `equipoise resume`"),
    "another average": ("summary.json", edit(r'"avg": \d', '"avg": 8'), "The run is intact"),
    "a bit of the manifest": ("manifest.json", flip, "The run is intact. Delete this file and summary.json"),
    "another seed of the data": ("manifest.json", edit('"seed": 0', '"seed": 1'), "The run is intact"),
    "a bit of the checkpoint": ("checkpoint/checkpoint.json", flip, "The records of its rounds are intact"),
    "another round of the checkpoint": ("checkpoint/checkpoint.json", edit('"t": 4', '"t": 3'), "records .* are intact"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_touched_file_is_named_by_every_reader_and_the_rest_is_kept(run: Path, damage: str) -> None:
    name, hurt, expected = DAMAGES[damage]
    hurt(run / name)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for read in (eq.History.from_run, lambda path: runs.execute(path, progress=False)):
        with pytest.raises((ValueError, RunError, eq.CheckpointError)) as error:
            read(run)
        assert str(run / name) in str(error.value)
        assert re.search(expected, str(error.value)), error.value
        assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", [damage for damage, (name, _, _) in DAMAGES.items() if name != "summary.json"])
def test_a_run_with_a_touched_file_does_not_go_on(run: Path, damage: str) -> None:
    name, hurt, _ = DAMAGES[damage]
    (run / "summary.json").unlink()  # as if it had been killed before its end
    hurt(run / name)
    if name == "manifest.json":
        fed = runs.federation(runs.load(run), 1)[0]
        fed.resume(run)
        with pytest.raises(eq.CheckpointError, match=r"manifest.json is damaged .its content .* no round is lost"):
            fed.fit(1, directory=run, progress=False)
        return
    with pytest.raises((RunError, eq.CheckpointError)) as error:
        runs.execute(run, progress=False)
    assert str(run / name) in str(error.value)


def test_what_the_messages_advise_helps(run: Path, whole: Path) -> None:
    for name in ("summary.json", "manifest.json"):
        flip(run / name)
        (run / "summary.json").unlink()
        if name == "manifest.json":
            (run / name).unlink()
        runs.execute(run, progress=False)
        assert_same_run(run, whole)
    edit('"round":2', '"round":7')(run / "metrics.jsonl")
    with pytest.raises(
        ValueError, match=r"line 3 is damaged.* delete line 3 and all that follow, and the folder checkp"
    ):
        eq.History.from_run(run)
    without(3, 4)(run / "metrics.jsonl")
    shutil.rmtree(run / "checkpoint")
    assert [record["round"] for record in eq.History.from_run(run).records] == [0, 1]


def test_a_run_of_an_earlier_version_is_read_and_goes_on(
    run: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without any hash; its records get them when it goes on."""
    (run / "summary.json").unlink()
    edit("^# sha256.*\n", "")(run / "config.toml")
    (run / "metrics.jsonl").write_text(re.sub(',"hash":"[0-9a-f]{32}"', "", (run / "metrics.jsonl").read_text()))
    manifest = open_json((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if k != "contents"}))
    about = checkpoint.about(run / "checkpoint")
    del about["records"], about["fingerprint"]["data"]
    for machine in about["machines"]:
        del machine["source"], machine["equipoise"]
    (run / "checkpoint" / "checkpoint.json").write_text(json.dumps(about))
    assert eq.History.from_run(run).records == eq.History.from_run(whole).records
    runs.execute(run, progress=False)
    assert_same_run(run, whole)
    assert caplog.messages == [
        f"{run} is of an earlier version, which kept no hash of its data: that they are the same could not be checked."
    ]
    assert len(parse((run / "metrics.jsonl").read_text())[1][-1]) == 32


def test_python_runs_have_hashes_too(tmp_path: Path) -> None:
    federation(tests={"a": samples(9, 1)}).fit(2, directory=tmp_path, progress=False)
    without(2)(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"metrics.jsonl: lines are missing after line 1"):
        eq.History.from_run(tmp_path)
    with pytest.raises(eq.CheckpointError, match=r"metrics.jsonl lacks round 1, and the checkpoint is after round 1"):
        federation(tests={"a": samples(9, 1)}).resume(tmp_path)


def test_a_damaged_order_of_a_comparison(run: Path) -> None:
    path = run.parent / ORDER
    path.write_text(sealed_json({"runs": ["run"]}))
    assert members(run.parent) == [run]
    flip(path)
    with pytest.raises(RunError, match=r"comparison.json is damaged. Delete it"):
        members(run.parent)
    path.write_text('["run"]')  # of an earlier version
    assert members(run.parent) == [run]


# the hashes
CONTENT = {"t": 3, "lr": 0.5, "names": ["a", "é\n"], "none": None}


@pytest.mark.parametrize(
    ("text", "opened"),
    [(sealed_json(CONTENT), open_json), (sealed_text('lr = 0.5\n# ä\nname = "x"\n'), open_toml)],
    ids=["json", "text"],
)
def test_no_flipped_bit_of_a_file_gives_another_content(text: str, opened: Callable[[str], Any]) -> None:
    right, refused = opened(text), 0
    for k in range(8 * len(text.encode())):
        content = bytearray(text.encode())
        content[k // 8] ^= 1 << k % 8
        try:
            found = opened(content.decode(errors="replace"))
        except ValueError:
            refused += 1
        else:  # in the name of the hash, which is then not one
            assert {**found, **right} == found
    assert refused > 7 * len(text)


RECORDS = [{"round": t, "groups": {"é": {"accuracy": 0.5 + t / 10, "loss": 1.25}}} for t in range(3)]


def test_no_flipped_bit_of_a_line_gives_another_record() -> None:
    text = "".join(lines(RECORDS))
    assert parse(text)[0] == RECORDS
    last = parse(text)[1][-1]
    for k in range(8 * len(text.encode())):
        content = bytearray(text.encode())
        content[k // 8] ^= 1 << k % 8
        try:
            records, hashes = parse(content.decode(errors="replace"))
        except DamagedError:
            continue
        assert records == RECORDS or (records == RECORDS[:2] and last not in hashes)


def test_a_round_written_again_follows_the_round_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_hash(path) == ""
    path.write_text("".join(lines(RECORDS)))
    assert last_hash(path) == parse(path.read_text())[1][2]
    again = line({"round": 1, "again": True}, parse(path.read_text())[1][0])
    found, hashes = parse(path.read_text() + again + again[:-9])
    assert found == [RECORDS[0], {"round": 1, "again": True}]
    assert hashes[-1] in again
    with pytest.raises(DamagedError, match="line 4"):
        parse(path.read_text() + line({"round": 1}, last_hash(path)))
    with pytest.raises(DamagedError, match="line 4"):
        parse(path.read_text() + line({"round": 3}))  # without a hash
    with pytest.raises(DamagedError, match=r"line 1 is damaged .its hash is not at its end"):
        parse(path.read_text().replace('","hash', '", "hash').replace('},"hash', '}, "hash'))
    assert line({"round": 0}) == '{"round":0}\n'
