"""The records of rounds: the form they have, and how they are lines of `metrics.jsonl`.

Each line ends with a hash of its own content and of the hash before it, so that a line that was edited, removed or moved
is found.
"""

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

from equipoise.metrics.groups import Counts
from equipoise.metrics.measures import Measure, main_in
from equipoise.privacy.suppression import enough
from equipoise.system import suggestions
from equipoise.system.errors import DamagedError
from equipoise.system.files import open_regular
from equipoise.system.seals import read_json

_HASH = re.compile(r',"hash":"([0-9a-f]{32})"\}$')


class Score(TypedDict, total=False):
    """How one model does on one data set; a number that is not defined, or not finite, is null.

    Attributes
    ----------
    accuracy : share of the samples whose class is predicted, in [0, 1].
    balanced, auc, auc_ovr : other measures of `equipoise.metrics.MEASURES`, in [0, 1], where they were asked for, in some rounds.
    rmse, mae : of regression, in the unit of the target: root of the mean squared error, mean absolute error.
    r2 : of regression, the share of the target's variance that is explained, at most 1; null of a target that is constant.
    loss : mean loss; of classification the cross-entropy in nats.
    n : samples.
    persons : how many people these are about, if people are named.
    undefined : samples for which the model's output is not finite, where there are any: no prediction, never right.
    missing : classes that an AUC leaves out, because the test set has none of them.
    rates : counts per class, see `equipoise.metrics.class_counts`, in some rounds; null of a model whose outputs are not finite. If people are
        named, also `persons`, `moments` and `people` of `Sums`.
    correct : which samples are right, as hexadecimal digits of `numpy.packbits`, in the last rounds.
    visits : if people are named, how many samples each has, in the order of `correct`, which then has one person after another.
    ranks : by class how well its probability ranks samples, see `equipoise.metrics.failure.ranks`, where counts are no better than a guess.
    useless : why the model is no better than a guess by the test of the user's own task; empty if it is better.
    """

    accuracy: float | None
    rmse: float | None
    mae: float | None
    r2: float | None
    loss: float | None
    n: int
    persons: int
    correct: str
    visits: list[int]
    undefined: int
    balanced: float | None
    auc: float | None
    auc_ovr: float | None
    rates: Counts | float | None
    missing: list[int]
    ranks: list[list[float]]
    useless: str


class Clients(TypedDict, total=False):
    """One number per client of the federation, [N], in the order of the clients; null for one that was not tested.

    Attributes
    ----------
    accuracy, rmse, loss : of the model that each client predicts with, see `Score`.
    n : samples on which each client is tested, or the people of these if they are named, where these are its own; 0 for none.
    """

    accuracy: list[float | None]
    rmse: list[float | None]
    loss: list[float | None]
    n: list[int]


class Sums(TypedDict, total=False):
    """What one model does on the samples with each value of a sensitive attribute: sums of a row [V] each, from which measures follow.

    Attributes
    ----------
    value : the codes of the values, of those that there are; by all attributes together a list of codes each.
    unknown : samples, or named people, of which the value is not known; they are in no sum.
    right, true, chosen : of classification, counts per class [V, C], see `equipoise.metrics.class_counts`.
    scores : of two classes, samples, sums of the probability of the second, and how many are of it, in ten bins of it [V, 3, 10].
    n : of regression, samples.
    persons, moments : of regression, and of people with several rows: people [V], and sums over them of the products of their sums, from which
        variances follow, see `equipoise.metrics.groups`.
    people : of classification, if people have several rows: how many of them each rate is about [V, C, 6], see `equipoise.metrics.groups`.
    scored, bias : as these, of the samples with a probability, and of probability less class.
    squares, absolute, error, target : of regression, sums of the squares and sizes of the errors, of the errors (predicted less true), and
        of the targets.
    """

    value: list[int] | list[list[int]]
    unknown: int
    right: list[list[int]]
    true: list[list[int]]
    chosen: list[list[int]]
    scores: list[list[list[float]]]
    persons: list[int]
    moments: list[Any]
    people: list[list[list[int]]]
    scored: list[int]
    bias: list[Any]
    n: list[int]
    squares: list[float]
    absolute: list[float]
    error: list[float]
    target: list[float]


class People(TypedDict, total=False):
    """Sums by sensitive attribute, one of `Sums` for each attribute, and of several with few groups one by all of them together.

    Attributes
    ----------
    groups : of the global model on each test set whose samples have attributes.
    all : of the global model on all test sets together, if some person is in several of them.
    clients : of the model that each client predicts with [N], where that is its own, or its test set is; null for one that was not tested.
    """

    groups: dict[str, list[Sums]]
    all: list[Sums]
    clients: list[list[Sums] | None]


class Validation(Score, total=False):
    """The model each client predicts with, on what the clients hold out of their own samples: the score of all of these together.

    Attributes
    ----------
    groups : `{group: score}`, by the groups that clients belong to.
    clients : by client.
    by : where samples have sensitive attributes, sums over all samples by the values of each, in rounds with costly evaluations.
    """

    groups: dict[str, Score]
    clients: Clients
    by: list[Sums]


class Sent(TypedDict):
    """Bytes to clients and from them, one number each."""

    down: list[int]
    up: list[int]


class Bytes(Sent):
    """Bytes that the clients in `ids` received and sent [M], and that the whole model has."""

    full: int


class Record(TypedDict, total=False):
    """One round, exactly as a line of `metrics.jsonl` holds it; only `round` is in every record. A rule may note more.

    Attributes
    ----------
    round : counts from 0.
    ids, weights : the clients whose answers were used [M], and the weight each counted with: sizes sum to 1, some may be negative (FedFV, FedLD).
    losses : mean loss in training of each of these clients; not of sites, which keep it.
    groups : `{group: {"accuracy": a, "loss": l, "n": n}}`, the global model on each test set, in rounds with an evaluation; of regression
        `rmse`, `mae` and `r2`; in some rounds other measures and counts.
    measures : `{name: {"better", "groups": {group: value}, "clients": [N], "all", "undefined": {where: why}}}`, measures that are none of
        `equipoise.metrics.MEASURES`, in some rounds: which way is better, if either, the values, and where and why there is none.
    diverged : why the test loss is that of a training that diverged, see `equipoise.metrics.failure`.
    clients : `{"accuracy": [N]}`, of regression `{"rmse": [N]}`: the model each client predicts with, on its own test set or that of its
        group; null for one that was not tested; of test sets of their own also `"n"` [N].
    by : where samples have sensitive attributes, sums by the values of each, in rounds with costly evaluations, see `People`; of sites
        only if their node-config has `least-count`.
    validation : `{"accuracy", "loss", "n", "groups": {group: {...}}, "clients": {"accuracy": [N], "loss": [N]}}`, the model each client
        predicts with, on what the clients hold out of their own samples.
    stopped : in the last round, why training ended before its planned rounds.
    absent, late, dropped : ids of the clients that a simulation let be away, take too long, or fail in the middle.
    attackers : those of `ids` that attacked, where a simulation lets clients attack.
    unmeasured : of sites that were tested, `{name: why}`: whose scores do not count, or not all of them.
    quarantined : `[{"client": m, "name": str, "reason": str, "key": str}]`, whose answer was not used, why, and a key of some reasons; earlier
        versions wrote no key.
    lr : learning rate of the round, a number or by tensor, where it changes over the rounds.
    bytes : `{"down": [M], "up": [M], "full": int}`, what the clients in `ids` received and sent, and the size of the whole model.
    units : where clients hold parts of the model: `{"held": [[hidden units of each group] per client]}`, and in rounds in which they
        changed `"bits"`, per client the hexadecimal digits of `numpy.packbits` over all units.
    kept : of FPHL, share of the update entries that are kept.
    consistency : of FPHL, 20 counts: the histogram over [0, 1] of FedHEAL's update consistency.
    agreement : of FPHL, up to 400 numbers: for clients that took part n times, how many update entries agree with 0, 1, ..., n of these rounds.
    distances : of FAEL and FAEL-exact, per client in `ids`: d of FedHEAL's Eq. 11, the squared length of its (kept) update; with
        `distance=norms` the sum of lengths.
    distance_variance : of FAEL and FAEL-exact: variance of the squared distances between clients' models and their mean, FedHEAL's Eq. 10,
        `[by samples, by the weights used]`; of FAEL not where all updates together have more than 2²⁴ entries.
    sharpness, perturbed_loss : of SAGA (FedISM+), per client in `ids`: S and L at the round's search distance; L of variant S in simulation
        only, and neither with masked sums.
    reputation : of FedSAC (Eq. 6, at most 100), CGSV, CFFL and FedAVE, per client in `ids`.
    likeness : of FedAVE, per client in `ids`.
    importance : of FedSAC, in rounds in which it is measured: of every hidden unit, in the order of `units` in the manifest; null where not finite.
    principal_axes, principal_tie : of `principal` (FedLD): how many axes are kept, and whether the result jumps nearby.
    eigenvalues : of `principal` (FedLD): of the clients' inner products divided by their number, largest first, summed over the tensors.
    step_length, step_cosine : of `principal` (FedLD): length of the step over that of the plain mean of the updates, and cosine with it,
        null for a step of 0.
    clipped : of `clipping`: how many updates were shortened.
    qffl_largest_h : of q-FedAvg: the largest client's share of Σ h.
    sent : of sites, by kind of message `{"down": [N], "up": [N]}`: bytes of the tensors in the messages.
    times : of sites, `{"site": [M], "answered": [M]}`: seconds of training, as the clients in `ids` say, and until they answered.
    secure : of masked sums: true.
    seconds : wall time of the round.
    hash : in the file: of the line, and of the hash in the line before; always the last key.
    """

    round: int
    ids: list[int]
    weights: list[float | None]
    losses: list[float | None]
    groups: dict[str, Score]
    measures: dict[str, dict[str, Any]]
    diverged: str
    clients: Clients
    by: People
    validation: Validation
    stopped: str
    absent: list[int]
    late: list[int]
    dropped: list[int]
    attackers: list[int]
    unmeasured: dict[str, str]
    quarantined: list[dict[str, Any]]
    lr: float | dict[str, float]
    bytes: Bytes
    units: dict[str, list[Any]]
    kept: float
    consistency: list[int]
    agreement: list[list[int]]
    distances: list[float | None]
    distance_variance: list[float | None]
    sharpness: list[float | None]
    perturbed_loss: list[float | None]
    reputation: list[float | None]
    likeness: list[float | None]
    importance: list[float | None]
    principal_axes: int
    principal_tie: bool
    eigenvalues: list[float | None]
    step_length: float | None
    step_cosine: float | None
    clipped: int
    qffl_largest_h: float | None
    sent: dict[str, Sent]
    times: dict[str, list[float | None]]
    secure: bool
    seconds: float
    hash: str


def check(records: Sequence[Record]) -> None:
    """Raise ``ValueError`` unless records follow their form, see `History`, in increasing order of their rounds."""
    for record in records:
        _check(record)
    rounds = [record["round"] for record in records]
    if any(later <= earlier for earlier, later in itertools.pairwise(rounds)):
        raise ValueError(f"rounds must increase from record to record: found {shorten(rounds)}.")
    lengths = clients_evaluated(records)
    if len(lengths) > 1:
        raise ValueError(
            f"every round must hold one accuracy per client of the federation: found {sorted(lengths)} accuracies. "
            "Write null for a client that was not evaluated."
        )


def without(record: Record, keys: Collection[str]) -> Record:
    """A record without some of its keys."""
    return cast(Record, {key: value for key, value in record.items() if key not in keys})


def large(record: Record, least: int, simulated: Collection[str] = ()) -> Record:
    """A record without scores of test sets, and of clients, that are about fewer than ``least`` people; clients that are ``simulated`` are no people."""
    enough_people = {
        name: scores
        for name, scores in record.get("groups", {}).items()
        if name in simulated or enough(scores.get("persons", scores.get("n", least)), least)
    }
    shown: Any = {**record, "groups": enough_people} if "groups" in record else {**record}
    clients: Any = record.get("clients", {})
    if "n" in clients and not simulated:
        sizes = [enough(n, least) for n in clients["n"]]
        shown["clients"] = {
            key: [x if many else None for x, many in zip(values, sizes, strict=True)] for key, values in clients.items()
        }
    return cast(Record, shown)


def clients_evaluated(records: Sequence[Record]) -> set[int]:
    """How many clients the records have a main measure of; one number per record, without repetition."""
    return {len(by_client(clients, main_in(clients))) for record in records if (clients := record.get("clients"))}


def judged_by(records: Sequence[Record]) -> Measure | None:
    """The main measure that the last evaluated of some records holds; None where none was evaluated."""
    for record in reversed(records):
        for scores in (record.get("clients"), *record.get("groups", {}).values()):
            if scores and (main := main_in(scores)).name in scores:
                return main
    return None


def by_client(clients: Clients, measure: Measure) -> Sequence[float | None]:
    """A measure of every client; none where it was not measured."""
    return cast(Sequence[float | None], clients.get(measure.name, ()))


def line(record: Record, before: str | None = None) -> str:
    """One record as a line of `metrics.jsonl`, newline included; NaN and infinities become null.

    Parameters
    ----------
    record : the record of one round, see `History`; NumPy and torch numbers are written as plain numbers.
    before : the hash of the line before, empty for the first line; None writes no hash.
    """
    text = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text + "\n" if before is None else f'{text[:-1]},"hash":"{_hash(before, text)}"}}\n'


def lines(records: Iterable[Record]) -> Iterator[str]:
    """All lines of a `metrics.jsonl`, each with its hash."""
    before = ""
    for record in records:
        text = line(record, before)
        before = _HASH.findall(text[:-1])[0]
        yield text


def last_hash(path: Path) -> str:
    """The hash of the last line of a `metrics.jsonl`; empty if it has none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64))
            end = file.read().decode(errors="replace").removesuffix("\n")
    except FileNotFoundError:
        return ""
    return "".join(_HASH.findall(end))


def parse(text: str, rounds: int | None = None) -> tuple[list[Record], list[str]]:
    """The records in the text of a `metrics.jsonl`, and the hash of each; empty hashes in a file of an earlier version.

    An incomplete last line, left by a killed run, is ignored; where a resumed run wrote a round again, the later record
    counts, and its hash follows that of the round before.

    Parameters
    ----------
    text : the whole file.
    rounds : only that many first rounds; what follows them is not looked at.
    """
    records, hashes = list[Record](), list[str]()
    written = text.split("\n")  # the last is empty, or incomplete
    chained = any(map(_HASH.search, written))
    for number, content in enumerate(written, start=1):
        if rounds is not None and rounds <= (records[-1]["round"] + 1 if records else 0):
            break
        if not content.strip():
            continue
        body, given = _opened(content)
        try:
            record = read_json(body)
            _check(record)
            if "hash" in record:
                raise ValueError("its hash is not at its end, as it was written")
        except ValueError as error:
            if number == len(written):
                break
            raise _damaged(number, str(error).rstrip("."), records) from None
        if rounds is not None and record["round"] >= rounds:
            break
        while records and records[-1]["round"] >= record["round"]:
            records.pop()
            hashes.pop()
        if chained and given != _hash(hashes[-1] if hashes else "", body):
            raise _damaged(number, "it does not fit the hash at its end and the line before it", records)
        records.append(record)
        hashes.append(given)
    return records, hashes


def _damaged(number: int, why: str, before: Sequence[Record]) -> DamagedError:
    """The error of a line, from 1, that differs from what was written; it states what is intact ``before`` it."""
    first, last = (before[0]["round"], before[-1]["round"]) if before else (0, -1)
    intact = f"rounds {first} to {last} are" if first < last else f"round {first} is" if before else "no round is"
    return DamagedError(f"line {number} is damaged ({why}); {intact} intact", number=number)


def parse_lines(text: str) -> tuple[Record, ...]:
    """The records in the text of a `metrics.jsonl`, as :func:`parse` reads them.

    Raises
    ------
    DamagedError : a line is not what was written.
    """
    return tuple(parse(text)[0])


def _opened(content: str) -> tuple[str, str]:
    """The text of a record in a line, and the hash at the line's end; empty if it has none."""
    match = _HASH.search(content)
    return (content, "") if match is None else (content[: match.start()] + "}", match[1])


def _hash(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:32]


def number(value: Any) -> float:
    """A number of a record: NaN for null."""
    return math.nan if value is None else float(value)


def shorten(value: object) -> str:
    """A value in an error message, in at most 80 characters."""
    return suggestions.shorten(repr(value))


def _check(record: object) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("round"), int):
        raise ValueError(f'a record needs its round: expected {{"round": 0, ...}}, found {shorten(record)}.')
    where = f"round {record['round']}"
    groups = record.get("groups", {})
    if not isinstance(groups, dict) or any(not isinstance(result, dict) for result in groups.values()):
        raise ValueError(
            f'{where}: expected groups as {{name: {{"accuracy": a, "loss": l}}}}, found {shorten(groups)}.'
        )
    clients = record.get("clients", {"accuracy": []})
    if not isinstance(clients, dict) or not isinstance(clients.get(main_in(clients).name), Sequence):
        raise ValueError(f'{where}: expected clients as {{"accuracy": [one per client]}}, found {shorten(clients)}.')
    validation = record.get("validation", {"groups": {}, "accuracy": 0.0, "loss": 0.0})
    if not isinstance(validation, dict) or not {"groups", main_in(validation).name, "loss"} <= validation.keys():
        raise ValueError(
            f'{where}: expected validation as {{"accuracy": a, "loss": l, "groups": {{...}}}}, found {shorten(validation)}.'
        )
    ids, weights = record.get("ids", []), record.get("weights", [])
    if "weights" in record and len(ids) != len(weights):
        raise ValueError(
            f"{where}: expected one weight per client in ids, found {len(ids)} ids, {len(weights)} weights."
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and torch
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
