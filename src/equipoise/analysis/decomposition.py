"""FedLD's loss decomposition, round by round, of any run."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from equipoise.data.samples import loaded
from equipoise.engines.job import Answer, Job
from equipoise.federation.evaluation import answers, published
from equipoise.federation.federation import Federation
from equipoise.federation.history import History
from equipoise.federation.method import Method, parse
from equipoise.federation.round import one_round
from equipoise.federation.trial import Progression, Trial, begin
from equipoise.metrics.decomposition import decompose
from equipoise.records.record import Record
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.runs.plan import Progress
from equipoise.system.files import read_regular, write_atomically
from equipoise.system.own_code import short
from equipoise.system.ranges import check_whole
from equipoise.system.seals import read_json

FILE = "decomposition.json"  # what was measured of a run, in its directory
# largest relative difference of a client's between a run and its repetition
AGREE: Final[dict[Literal["weights", "losses"], float]] = {"weights": 1e-6, "losses": 1e-3}

Watcher = Callable[[int, Record], None]  # called with each round and its record
Row = dict[str, Any]  # method, round, local, shift, aggregation, total


def trace(
    fed: Federation, rounds: int, every: int = 1, *, others: Sequence[str] = (), on_round: Watcher | None = None
) -> list[Row]:
    r"""Train a federation and split the loss of its global model in every ``every``-th round and in the last.

    The losses are plain mean cross-entropies on the clients' training data, in eval mode, without random crops; a round
    costs :math:`m (m + 1)` passes over a client's data for m participants, and every model must be tried on every
    client's data, so this is for simulation only.

    Parameters
    ----------
    fed : a federation before its first round.
    rounds : >= 1, planned and trained.
    every : >= 1.
    others : texts of methods that are tried for one round from the same global models, as FedLD's Fig. 2 compares them;
        each starts afresh, without what it would remember of earlier rounds, so a rule that waits for a history
        (FedHGD, a warm start) shows its first round.
    on_round : called after each round with its number and its record.

    Returns
    -------
    Rows in the order of the rounds: ``method``, ``round`` (from 0), ``local``, ``shift``, ``aggregation`` (signed) and
    ``total``, which is the loss of the global model.
    """
    check_whole("rounds", rounds, 1)
    check_whole("every", every, 1)
    if fed.progress.t:
        raise ValueError(
            f"trace trains from the first round on; this federation has trained for {fed.progress.t}. Make a new one."
        )
    trial = begun(fed, rounds)
    tried = [(short(text), _with(trial, parse(text))) for text in others]
    own, rows = short(str(trial.method)), list[Row]()
    for t in range(rounds):
        if _due(t, every, rounds):
            for name, other in tried:
                first = published(trial, fed.progress).clone()  # of all clients and all state
                fresh = replace(other, setup=replace(other.setup, initial=first))
                rows.append({"method": name, **_measured(fresh, replace(begin(fresh), t=t), rounds)[2]})
            fed.progress, record, row = _measured(trial, fed.progress, rounds)
            rows.append({"method": own, **row})
        else:
            fed.progress, record = one_round(trial, fed.progress, rounds)
        if on_round is not None:
            on_round(t, record)
    return rows


def _due(t: int, every: int, rounds: int) -> bool:
    """Whether a round is measured."""
    return (t + 1) % every == 0 or t == rounds - 1


def begun(fed: Federation, rounds: int) -> Trial:
    """The trial of a federation that is ready for its first round.

    Raises
    ------
    ValueError : clients attack in it.
    """
    if fed.trial.attackers is not None:
        raise ValueError("Clients attack here: what they train is not what they send. Analyse a run without attack.")
    fed.prepare(rounds, progress=False)
    return fed.trial


def _with(trial: Trial, method: Method) -> Trial:
    """The same trial by another method."""
    method.check(trial.solver)
    if lacking := method.needs_of_server - ({"validation"} if trial.oracle is not None else set()):
        raise ValueError(
            f"{method} cannot be tried for one round from the models of another method: it needs {', '.join(sorted(lacking))}. "
            "Decompose a run of this method."
        )
    return replace(trial, method=method, private=method.private(trial.model))


def _measured(trial: Trial, now: Progression, rounds: int) -> tuple[Progression, Record, Row]:
    """One round, and the terms of its loss."""
    models: dict[int, Tensor] = {}

    def watching(job: Job) -> Iterator[Answer]:
        for answer in trial.engine(job):
            if not answer.error:
                models.update({job.ids[row]: x.clone() for row, x in zip(answer.rows, answer.trained, strict=True)})
            yield answer

    following, record = one_round(replace(trial, engine=watching), now, rounds)
    ids = record["ids"]  # without those in quarantine
    if not ids:
        raise ValueError(
            f"In round {now.t} nobody was there to train, so its loss has no parts. Measure other rounds, by every, or let clients be there."
        )
    cross = torch.stack([_losses(trial, models[m], ids) for m in ids])
    after = _losses(trial, published(trial, following), ids)
    terms = decompose(cross.numpy(), after.numpy(), trial.setup.sizes[ids].cpu().numpy())
    return following, record, {"round": now.t, **terms._asdict(), "total": terms.total}


def _losses(trial: Trial, vector: Tensor, ids: Sequence[int]) -> Tensor:
    """Loss of one whole model [G] on the training data of each client [m]."""
    losses = [answers(trial, vector, [loaded(trial.data[m])], ())[0].tally.mean_loss for m in ids]
    return torch.tensor(losses, dtype=torch.float64)


def decomposition(
    directory: str | Path, every: int = 1, others: Sequence[str] = (), *, on_round: Progress | None = None
) -> list[Row]:
    """Split the loss of a run, round by round, by training it once more: the same seed gives the same local models.

    The results are stored in ``decomposition.json`` in the run's directory, and are not measured again. The run need not be
    finished.

    Parameters
    ----------
    directory : of a run from the command line.
    every : measure every ``every``-th round, and the last.
    others : methods to try for one round from the same models, see :func:`trace`.
    on_round : called after each round with the rounds done and to do.

    Raises
    ------
    ValueError : no run there. RunError : the repetition differs from the run, as with another version of a library.
    """
    path, others = Path(directory), [str(parse(text)) for text in others]
    config = runs.load(path)
    earlier = {_key(row): row for row in stored(path / FILE, "rows", "config", runs.identity(config))}
    names, rounds = [*map(short, others), short(str(parse(config.method)))], config.rounds
    wanted = [(t, name) for t in range(rounds) if _due(t, every, rounds) for name in names]
    if all(key in earlier for key in wanted):
        return [earlier[key] for key in wanted]
    fed, same = again(config), repeats(path)

    def check(t: int, record: Record) -> None:
        same(t, record)
        if on_round is not None:
            on_round(t + 1, rounds)

    rows = trace(fed, rounds, every, others=others, on_round=check)
    merged = earlier | {_key(row): row for row in rows}
    content = {"config": runs.identity(config), "rows": [merged[key] for key in sorted(merged)]}
    write_atomically(path / FILE, json.dumps(content, indent=1))
    return rows


def _key(row: Row) -> tuple[int, str]:
    return int(row["round"]), str(row["method"])


def again(config: RunConfig) -> Federation:
    """The federation of a run, to be trained once more."""
    torch.set_num_threads(config.threads)
    fed, data = runs.federation(config)
    runs.prepare(config, fed, data)
    return fed


def stored(path: Path, what: str, about: str, key: object) -> list[Row]:
    """The content of a file in a run's directory under the name ``what``, if it is ``about`` the same; else nothing.

    Raises
    ------
    RunError : it is damaged.
    """
    if not path.exists():
        return []
    try:
        content = read_json(read_regular(path).decode())
        return list(content[what]) if content[about] == key else []
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path} is damaged. Delete it; it will be measured again.") from None


def repeats(path: Path) -> Watcher:
    """What a round of a repeated run and its record are given to, to require that they are those of the run.

    Raises
    ------
    RunError : by what is returned, if weights or losses of clients are others.
    """
    records = History.from_run(path).records if (path / "metrics.jsonl").exists() else ()
    then = {record["round"]: record for record in records}

    def check(t: int, record: Record) -> None:
        for key, tolerance in AGREE.items():
            both = [dict(zip(r["ids"], r[key], strict=True)) for r in (then.get(t, {}), record) if r.get(key)]
            if len(both) == 2 and not _same(both[0], both[1], tolerance):
                raise RunError(
                    f"{path}: trained again, round {t} gives its clients other {key} than metrics.jsonl has. The versions "
                    "of libraries or the machine have changed since; repeat the run, and analyse that."
                )

    return check


def _same(a: Mapping[int, float | None], b: Mapping[int, float | None], tolerance: float) -> bool:
    def near(x: float | None, y: float | None) -> bool:
        finite = [value for value in (x, y) if value is not None and math.isfinite(value)]  # losses need not be
        return not finite or (len(finite) == 2 and math.isclose(*finite, rel_tol=tolerance, abs_tol=1e-6))

    return a.keys() == b.keys() and all(near(a[m], b[m]) for m in a)
