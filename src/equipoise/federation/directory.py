"""What a federation keeps in a directory: a line per round, a manifest, a checkpoint."""

import itertools
import logging
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from equipoise.federation import checkpoint
from equipoise.federation.checkpoint import CheckpointError, Kept
from equipoise.federation.fingerprint import differences
from equipoise.federation.guard import QuorumError
from equipoise.federation.trial import Progression
from equipoise.records.identity import SETTINGS, Difference, stated
from equipoise.records.meta import Content
from equipoise.records.record import Record, last_hash, line, lines, parse
from equipoise.system import files
from equipoise.system.claims import claimed, has_claim, require_claim
from equipoise.system.errors import DamagedError
from equipoise.system.files import read_regular, real_path, write_atomically
from equipoise.system.places import private
from equipoise.system.seals import open_json, sealed_json

log = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint"
FAILED = "failed.json"  # why the last attempt ended before its time, and who was left out of the round
BEST = "best"  # a folder with the state after the round with the best validation, in its own checkpoint, named by the round
UNKNOWN = "is of an earlier version, which kept no hash of its data: that they are the same could not be checked."


def locking(directory: Path) -> AbstractContextManager[object]:
    """Hold the claim of a run's directory, if whoever executes its configuration in this process does not hold it already."""
    executed = (directory / "config.toml").exists() and has_claim(directory)
    return nullcontext() if executed else claimed(directory)


@contextmanager
def noting_failure(directory: Path) -> Iterator[None]:
    """While the block trains, there is no note of a failure in a run's directory; if it fails, there is one."""
    (directory / FAILED).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        with suppress(OSError):  # a full disk may be what has failed
            if not (directory / FAILED).exists():
                note_failure(directory, error)
        raise


def claim(directory: Path, ours: Content, t: int, records: Sequence[Record]) -> None:
    """Make sure that a directory holds this run and no other, with the records of its ``t`` rounds so far.

    ``ours`` is the run's fingerprint.
    """
    if checkpoint.exists(directory / CHECKPOINT):
        meta = checkpoint.about(directory / CHECKPOINT)
        changes = differences(meta["fingerprint"], ours)
        if meta["t"] != t or changes:
            how = "".join(f" with other {c.name if c.kind == SETTINGS else c.kind}" for c in changes[:1])
            raise ValueError(
                f"{directory} holds another run{how}, at round {meta['t']}, and this federation is at {t}. "
                "Call resume() to continue a run, or choose another directory."
            )
    if records or (directory / METRICS).exists():
        write_atomically(directory / METRICS, "".join(lines(records)))


def write_manifest(directory: Path, meta: Mapping[str, object], machines: Sequence[Content]) -> None:
    """Write what computed the run into its manifest, and all of ``meta`` where there is no manifest yet."""
    path = directory / MANIFEST
    try:
        content = {**open_json(read_regular(path).decode(errors="replace"))} if path.exists() else meta
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}). Put it back, or delete it: it is written again, and no round is lost."
        ) from None
    write_atomically(path, sealed_json({**content, "machines": machines}))


def append(directory: Path, record: Record) -> None:
    """Add the record of a round; it is on the disk before the checkpoint that counts on it. Nobody else may have the run."""
    require_claim(directory)
    files.append(directory / METRICS, line(record, last_hash(directory / METRICS)))


def save(directory: Path, ours: Content, now: Progression, meta: Kept, best: Progression | None = None) -> None:
    """Write a checkpoint, atomically, with the run's fingerprint ``ours`` and what else it is to say.

    The state of the ``best`` round is written first, where no other is; those that no checkpoint names are deleted last. So
    the checkpoint names one that is whole whenever this process is killed.
    """
    last = last_hash(directory / METRICS)  # by which lines that are missing at the end are found
    about: Kept = {"t": now.t, "fingerprint": dict(ours), "records": last, **meta}
    if best is not None:
        about["best"] = best.t
        before = directory / CHECKPOINT
        if not (checkpoint.exists(before) and checkpoint.about(before).get("best") == best.t):
            checkpoint.write(_best(directory, best.t), best.tensors(), {**about, "t": best.t})
    checkpoint.write(directory / CHECKPOINT, now.tensors(), about)
    named = {_best(directory, entry["best"]) for entry in checkpoint.kept(directory / CHECKPOINT) if "best" in entry}
    for old in {*_best(directory, 0).parent.glob("*")} - named:
        shutil.rmtree(old, ignore_errors=True)


def _best(directory: Path, t: int) -> Path:
    real_path(directory / BEST, directory)
    return directory / BEST / f"{t:06d}"


def restore_best(directory: Path, meta: Kept, now: Progression) -> Progression | None:
    """The state of the best round that a checkpoint with ``meta`` names, in the form of ``now``; None before the first round.

    Raises
    ------
    CheckpointError : missing or damaged, or the run was begun without keeping it.
    """
    t = meta.get("best")
    if t is None and meta["t"]:
        raise CheckpointError(
            f"The run in {directory} was begun with select='last', and kept no best model. Go on with that."
        )
    return None if t is None else now.restored(checkpoint.read(_best(directory, t))[0], t)


def restore(directory: Path, ours: Content, now: Progression, t: int | None) -> tuple[Progression, Kept]:
    """The progression of the last checkpoint, or that after ``t`` rounds, in the form of ``now``, and the rest of its entry.

    ``ours`` is the fingerprint of the run that continues.

    Raises
    ------
    CheckpointError : missing, damaged, or of a federation with other settings, code or data, naming what differs.
    """
    tensors, meta = checkpoint.read(directory / CHECKPOINT, t)
    require_none(directory, differences(meta["fingerprint"], ours))
    if "data" not in meta["fingerprint"]:
        log.warning("%s %s", directory, UNKNOWN)
    try:
        return now.restored(tensors, int(meta["t"])), meta
    except KeyError as error:
        raise CheckpointError(
            f"The checkpoint in {directory} lacks {error}. Delete it to start the run again."
        ) from None


def require_none(directory: Path, changes: Sequence[Difference]) -> None:
    """Require that a run goes on as it was begun.

    Raises
    ------
    CheckpointError : naming what differs.
    """
    if changes:
        raise CheckpointError(
            f"The run in {directory} was begun with {stated(changes)}. Give the same again, or choose another directory."
        )


def go_back(directory: Path, t: int) -> None:
    """Let the checkpoint after ``t`` rounds be the last; all records until now stay in a separate file.

    Raises
    ------
    CheckpointError : a later round was of masked sums; or the records are damaged, see :func:`trim`.
    """
    path, last = directory / METRICS, checkpoint.about(directory / CHECKPOINT)
    before = read_regular(path)
    later = trim(path, last["t"], last.get("records", ""))[t:]
    if any(record.get("secure") and record["ids"] for record in later):
        raise CheckpointError(
            f"{directory} cannot go back to round {t}: sites have unmasked a sum of it (secure=true), and no site unmasks "
            "another sum of the same round. Begin a new run."
        )
    if later:
        beside = next(p for k in itertools.count(1) if not (p := directory / f"metrics.{k}.jsonl").exists())
        write_atomically(beside, before)
        log.warning("%s is repeated from round %d on; all records so far are in %s", directory, t, beside)
    (directory / "summary.json").unlink(missing_ok=True)  # the run is not finished
    checkpoint.keep(directory / CHECKPOINT, checkpoint.kept(directory / CHECKPOINT, t))


def note_failure(directory: Path, error: Exception) -> None:
    """Keep an error; and name and reason of every client of a round that did not count, of which the error names a few."""
    about: Content = {"error": str(error) or type(error).__name__, "kind": type(error).__name__}
    if isinstance(error, QuorumError):
        bad = [{"name": name, "reason": reason} for name, reason in error.bad]
        about |= {"round": error.t, "quarantined": bad}
    write_atomically(directory / FAILED, sealed_json(private(about)))


def way_back(directory: Path, records: Sequence[Record]) -> str:
    """A sentence on how to continue from an earlier round, where one is kept and its sums were not masked."""
    earlier = [entry["t"] for entry in checkpoint.kept(directory / CHECKPOINT)[1:]]
    if not earlier or any(record.get("secure") for record in records):
        return ""
    return (
        f" If a round has spoilt the model, continue from before it; kept are the states before round {', '.join(map(str, sorted(earlier)))}: "
        f"equipoise resume {shlex.quote(str(directory))} --from {earlier[0]}; between sites -c 'from-round={earlier[0]}'."
    )


def trim(path: Path, t: int, last: str = "") -> list[Record]:
    """Drop what a killed run wrote to ``metrics.jsonl`` after its last checkpoint, and return the rest.

    ``last`` is the hash of a line that the checkpoint counts on.

    Raises
    ------
    CheckpointError : a line before that is damaged or missing, which no kill explains; the file stays as it is.
    """
    if not path.exists():
        return []
    advice = f"Put the file back, or delete {path.parent / CHECKPOINT} to start the run again."
    try:
        records, hashes = parse(read_regular(path).decode(errors="replace"), t)
    except DamagedError as error:
        raise CheckpointError(f"{path}: {error}. {advice}") from None
    if last and last not in hashes:
        raise CheckpointError(
            f"{path} lacks {_missing(records, t)}, and the checkpoint is after round {t - 1}. {advice}"
        )
    write_atomically(path, "".join(lines(records)))
    return records


def _missing(records: Sequence[Record], t: int) -> str:
    lost = sorted(set(range(t)) - {record["round"] for record in records})
    return f"round {lost[0]}" if lost else "the round that the checkpoint was written after"
