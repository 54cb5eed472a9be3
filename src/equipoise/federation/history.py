"""What a run measured, round by round, and the numbers that summarise it."""

import itertools
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.metrics.classification import MEASURES, RATES
from equipoise.metrics.collaborative import (
    bounded_fairness,
    client_range,
    collaboration_gain,
    collaborative_fairness,
    rank_fairness,
)
from equipoise.metrics.communication import full_model, traffic
from equipoise.metrics.groups import parity
from equipoise.metrics.performance import (
    Value,
    avg_std_worst,
    best_round,
    client_std,
    gap,
    last_rounds,
    mean,
    spread,
)
from equipoise.system.files import write_atomically
from equipoise.system.suggestions import unknown

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Any]
Parsed = TypeVar("Parsed")
Table = NDArray[np.float64]

ROWS = ("clients", "tests", "validation")  # of the data in a manifest: which sample went where
_META = (
    "method",
    "label",
    "scenario",
    "seed",
    "rounds",
    "client_names",
    "client_groups",
    "measures",
    "contribution",
    "units",
    "header",
    "versions",
    "machines",
    "git",
    "data",
)


@dataclass(frozen=True, repr=False)
class History:
    """The records of one run, one per round, and what the run was.

    Parameters
    ----------
    records
        One dictionary per round, in increasing order of `"round"`; exactly what a line of `metrics.jsonl` holds.
        Accuracies are fractions in [0, 1]; the sizes of the weights sum to 1, and some may be negative (FedFV, FedLD).  Keys, all optional but the first:

        - `"round"`: counts from 0; `"seconds"`: wall time of the round.
        - `"groups"`: `{group: {"accuracy": a, "loss": l}}`, the global model on each named test set.  Absent on rounds
          without an evaluation.  In some rounds also other measures, names of `equipoise.metrics.MEASURES`, and
          `"missing"`, the classes an AUC leaves out because the test set has none of them; and `"rates"`, counts per class,
          see `equipoise.metrics.class_counts`.
        - `"clients"`: `{"accuracy": [N]}`, the model each client predicts with on the test set of its own group.
        - `"ids"` and `"weights"`: the clients that took part and the weight each counted with.
        - `"quarantined"`: `[{"client": m, "name": str, "reason": str}]`.
        - `"kept"`: share of the update entries that FPHL kept.
        - `"consistency"`: 20 counts, the histogram over [0, 1] of FedHEAL's update consistency.
        - `"bytes"`: `{"down": [M], "up": [M], "full": int}`, what the clients in ids received and sent, and the size of
          the whole model.
        - `"units"`: where clients hold parts of the model, `{"held": [[hidden units of each group] per client]}`, and in
          rounds in which they changed `"bits"`: per client the hexadecimal digits of `numpy.packbits` over all units.
    meta
        `"method"`, and optionally `"label"` (what reports call the run; the method by default), `"scenario"`, `"seed"`,
        `"rounds"` (how many were planned), `"client_names"` [N], `"client_groups"` [N], `"measures"` (what was to be
        recorded), `"contribution"` (`{"standalone_test": [N]}`, the accuracy each client reaches alone; `"used"`: what the method was
        told, `"standalone_val"`, `"standalone_test"` or `"given"`), `"units"`
        (`{"names": [...], "sizes": [...]}`, the groups of hidden units), `"header"` (lines about the run), `"versions"`
        (`{package: version}`), `"git"` (commit of the source), `"machines"` (from which `"round"` on what computed it) and `"data"` (what is known of the samples, with
        their `"sha256"`) as a manifest has them, `"config"`.

    Raises
    ------
    ValueError
        A record or the meta data does not follow this form.
    """

    records: tuple[Record, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", tuple(self.records))
        if not isinstance(self.meta.get("method"), str):
            raise ValueError(
                f'a history needs the name of its method: expected meta["method"] to be a string such as "fedavg", '
                f"found {self.meta.get('method')!r}."
            )
        for record in self.records:
            _check(record)
        rounds = [record["round"] for record in self.records]
        if any(later <= earlier for earlier, later in itertools.pairwise(rounds)):
            raise ValueError(f"rounds must increase from record to record: found {_shorten(rounds)}.")
        lengths = {len(record["clients"]["accuracy"]) for record in self.records if "clients" in record}
        if len(lengths) > 1:
            raise ValueError(
                f"every round must hold one accuracy per client of the federation: found {sorted(lengths)} accuracies. "
                "Write null for a client that was not evaluated."
            )
        told = self.meta.get("contribution")
        if told is not None and not (isinstance(told, Mapping) and _accuracies(told.get("standalone_test"))):
            raise ValueError(
                'expected meta["contribution"] as {"standalone_test": [one accuracy per client]}, '
                f"found {_shorten(told)}."
            )
        if self.contribution is not None and not lengths <= {len(self.contribution)}:
            raise ValueError(
                f"there must be one contribution per client of the federation: expected {lengths.pop()}, "
                f"found {len(self.contribution)}."
            )

    @classmethod
    def from_run(cls, path: str | os.PathLike[str]) -> "History":
        """Read a run directory: `config.toml`, `metrics.jsonl` and, where present, `manifest.json`, `summary.json`.

        A line cut off at the end of `metrics.jsonl`, which a killed run leaves behind, is ignored; where a resumed run
        wrote a round again, the later record counts.

        Parameters
        ----------
        path
            The run directory.

        Raises
        ------
        ValueError
            There is no run there, or a file in it cannot be understood.
        """
        run = Path(path)
        config: Record = {}
        if (run / "config.toml").exists() or not (run / "manifest.json").exists():  # a run from Python has no config
            config = _read(run / "config.toml", tomllib.loads, "This is not the directory of a run; pass runs/<name>.")
        known: Record = {}
        for name in ("summary.json", "manifest.json"):
            if (run / name).exists():
                known |= _read(run / name, _parse_object, "")
        found = (
            known | config | {key: known.get(key) for key in ("contribution", "units", "data")}
        )  # what it found, not was told
        if isinstance(found["data"], dict):  # which sample went to which client is in the manifest only
            found["data"] = {key: value for key, value in found["data"].items() if key not in ROWS}
        meta = {key: found[key] for key in _META if found.get(key) is not None}
        for key in ("method", "scenario"):
            if isinstance(meta.get(key), dict):  # a table [scenario] with a name and options
                meta[key] = meta[key].get("name")
        if not isinstance(meta.get("method"), str):
            raise ValueError(
                f'{run / "config.toml"}: expected a line such as method = "fedavg", '
                f"found the keys {', '.join(sorted(config)) or 'none'}. Add the method the run was made with."
            )
        records = _read(run / "metrics.jsonl", _parse_lines, "The run has not finished its first round.")
        try:
            return cls(records, meta | {"config": config})
        except ValueError as error:
            raise ValueError(f"{run / 'metrics.jsonl'}: {error}") from None

    def to_jsonl(self, path: str | os.PathLike[str]) -> Path:
        """Write the records as `metrics.jsonl` holds them, atomically; return the path.

        Parameters
        ----------
        path
            The file to write, replaced if it exists.
        """
        return write_atomically(path, "".join(line(record) for record in self.records))

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.meta["method"])

    @property
    def label(self) -> str:
        """What tables and figures call this run: `meta["label"]`, or the method."""
        return str(self.meta.get("label") or self.method)

    @property
    def scenario(self) -> str:
        """Name of the scenario; empty when unknown."""
        return str(self.meta.get("scenario") or "")

    @property
    def seed(self) -> int:
        """Seed of the run; 0 when unknown."""
        return int(self.meta.get("seed") or 0)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the test sets, in the order of their first appearance."""
        return tuple(dict.fromkeys(group for record in self.records for group in record.get("groups", ())))

    @property
    def client_names(self) -> tuple[str, ...]:
        """One name per client of the federation; its number where the run gave none."""
        names = [str(name) for name in self.meta.get("client_names") or ()]
        return tuple(names + [str(m) for m in range(len(names), self._size())])

    @property
    def client_groups(self) -> tuple[str, ...]:
        """The group of each client of the federation; empty strings where unknown."""
        groups = [str(group) for group in self.meta.get("client_groups") or ()]
        return tuple(groups + [""] * (self._size() - len(groups)))

    def _size(self) -> int:
        """Clients in the federation, as far as the run tells."""
        named = (len(self.meta.get(key) or ()) for key in ("client_names", "client_groups"))
        evaluated = (len(record["clients"]["accuracy"]) for record in self.records if "clients" in record)
        active = (1 + max(record["ids"]) for record in self.records if record.get("ids"))
        return max((*named, *evaluated, *active), default=0)

    @property
    def contribution(self) -> Table | None:
        """The accuracy in [0, 1] that each client reaches alone, on the test set; shape [N], None where not known."""
        found = (self.meta.get("contribution") or {}).get("standalone_test")
        return np.array([_number(a) for a in found]) if found else None

    @property
    def measures(self) -> tuple[str, ...]:
        """What was recorded of the global model on some group, in the order of `equipoise.metrics.MEASURES`."""
        results = [result for record in self.records for result in record.get("groups", {}).values()]
        return tuple(name for name in MEASURES if any(name in result for result in results))

    @property
    def group_counts(self) -> tuple[int, ...] | None:
        """Clients of each group of `groups`; None where the group of some client is not known."""
        found = self.client_groups
        return tuple(found.count(group) for group in self.groups) if found and set(found) <= set(self.groups) else None

    def group_table(self, measure: str = "accuracy") -> tuple[list[int], Table]:
        """Rounds with an evaluation, and how well the global model did on every group in them.

        Parameters
        ----------
        measure
            A name of `equipoise.metrics.MEASURES`; some are evaluated in some rounds only.

        Returns
        -------
        The rounds [R] and the values in [0, 1], shape [R, D], NaN where a group was not evaluated; groups are in
        the order of `groups`.

        Raises
        ------
        ValueError
            There is no such measure.
        """
        if measure not in MEASURES:
            raise ValueError(unknown("measure", measure, MEASURES))
        records = [record for record in self.records if record.get("groups")]
        if measure != "accuracy":
            records = [record for record in records if any(measure in result for result in record["groups"].values())]
        cells = [[_number(record["groups"].get(g, {}).get(measure)) for g in self.groups] for record in records]
        return [record["round"] for record in records], np.array(cells).reshape(len(cells), len(self.groups))

    def client_table(self) -> tuple[list[int], Table]:
        """Rounds with an evaluation of the clients, and the accuracy of the model each client predicts with.

        Returns
        -------
        The rounds [R] and the accuracies in [0, 1], shape [R, N], NaN where a client was not evaluated.
        """
        records = [record for record in self.records if "clients" in record]
        cells = [[_number(a) for a in record["clients"]["accuracy"]] for record in records]
        return [record["round"] for record in records], np.array(cells).reshape(len(cells), -1 if cells else 0)

    def unit_table(self) -> tuple[int, NDArray[np.bool_]] | None:
        """The round in which the clients' hidden units last changed, and who has held which since.

        Returns
        -------
        The round and a table [N, K], units in the order of the groups of `meta["units"]`; None where clients hold the
        whole model, or the run did not record it.
        """
        sizes = (self.meta.get("units") or {}).get("sizes") or ()
        for record in reversed(self.records) if sizes else ():
            if rows := record.get("units", {}).get("bits"):
                bits = [np.unpackbits(np.frombuffer(bytes.fromhex(row), np.uint8))[: sum(sizes)] for row in rows]
                return record["round"], np.array(bits, dtype=bool)
        return None

    def frame(self) -> "pd.DataFrame":
        """The global model on every group: one row per round and group, columns `round, group, accuracy, loss`.

        Other measures that were recorded have a column each, NaN in rounds without them.
        """
        import pandas as pd

        columns = ["accuracy", "loss", *(name for name in self.measures if name != "accuracy")]
        rows = [
            (record["round"], group, *(_number(result.get(name)) for name in columns))
            for record in self.records
            for group, result in record.get("groups", {}).items()
        ]
        return pd.DataFrame(rows, columns=["round", "group", *columns])

    def clients(self) -> "pd.DataFrame":
        """The clients' models: one row per round and client, columns `round, client, name, group, accuracy`."""
        import pandas as pd

        rounds, table = self.client_table()
        rows = [
            (t, m, name, group, accuracy)
            for t, row in zip(rounds, table, strict=True)
            for m, (name, group, accuracy) in enumerate(
                zip(self.client_names, self.client_groups, row.tolist(), strict=False)
            )
        ]
        return pd.DataFrame(rows, columns=["round", "client", "name", "group", "accuracy"])

    def weights(self) -> "pd.DataFrame":
        """The weight of every client in every round, `[rounds, N]`, NaN where it did not take part.

        The index holds the rounds, the columns the numbers of the clients.
        """
        import pandas as pd

        records = [record for record in self.records if "weights" in record]
        table = np.full((len(records), self._size()), math.nan)
        for row, record in zip(table, records, strict=True):
            row[record["ids"]] = [_number(weight) for weight in record["weights"]]
        index = pd.Index([record["round"] for record in records], name="round", dtype="int64")
        return pd.DataFrame(table, index=index, columns=pd.RangeIndex(self._size(), name="client"))

    def summary(self, last: int = 5, measure: str = "accuracy") -> dict[str, Any]:
        """AVG, STD and worst group of the global model, and the spread over clients, in percent.

        Every group is averaged over the last evaluated rounds first; AVG is the mean over groups, STD the standard
        deviation with ddof 1 (FedHEAL, Table 2).  Clients are reduced in the same order.

        Parameters
        ----------
        last
            How many of the last evaluated rounds to average, at least 1.
        measure
            A name of `equipoise.metrics.MEASURES`.

        Returns
        -------
        Plain types, ready for JSON, `None` where a number is not defined: `avg`, `std`, `worst`, `worst_group`; `gap`,
        the best group less the worst; `client_std`, the standard deviation (ddof 0) over clients that each have the
        value of their group; `last` and `best`, the mean over groups in the last and in the best evaluated round;
        `groups` (`{group: value}`), `clients` (see `equipoise.metrics.spread`, of the accuracy; empty for another
        measure and when no client was evaluated), `rounds` (how many were run), `averaged` (the rounds the groups were
        averaged over), `collaboration` (what clients get for what they contribute; None for another measure, and unless
        contributions are known and clients were evaluated), `group_fairness` (see there; None for another measure).

        `collaboration` is of the last `round` the clients were evaluated in: `fairness` and `spearman` (100 x), `max`,
        `mean`, `min`, `gain` (`{"mean", "std" (ddof 0), "worse_off"}`), `bcf` (`{"rate" (percent of the clients),
        "satisfied", "lower_violations", "upper_violations", "literal_upper_violations", "lower_margin",
        "upper_margin"}`, margins are the worst), `clients` (how many). Besides, `fairness_mean` over the last rounds and
        `fairness_oracle`, the best of all rounds, which picks the round by the test data. `bytes`: `{"down", "up",
        "full"}`, mean over clients and rounds and the whole model, None where not recorded.

        Raises
        ------
        ValueError
            There is no such measure, or `last` is below 1.
        """
        rounds, table = self.group_table(measure)
        fairness = avg_std_worst(table, last)
        of_groups = last_rounds(table, last)
        groups = dict(zip(self.groups, of_groups.tolist(), strict=True))
        clients = last_rounds(self.client_table()[1], last) if measure == "accuracy" else np.empty(0)
        return {
            "avg": _percent(fairness.avg),
            "std": _percent(fairness.std),
            "worst": _percent(fairness.worst),
            "worst_group": min(groups, key=lambda group: groups[group]) if fairness.worst.defined else None,
            "gap": _percent(gap(of_groups)),
            "client_std": _percent(client_std(of_groups, self.group_counts)),
            "last": _percent(mean(table[-1] if len(table) else [])),
            "best": _percent(best_round(table)),
            "groups": {group: _percent(Value(a, math.isfinite(a))) for group, a in groups.items()},
            "clients": {k: v.value if v.defined else None for k, v in spread(clients).items()} if clients.size else {},
            "rounds": len(self.records),
            "averaged": rounds[-last:],
            "collaboration": self._collaboration(last) if measure == "accuracy" else None,
            "group_fairness": self.group_fairness(last) if measure == "accuracy" else None,
        }

    def group_fairness(self, last: int = 5, positive: int | None = None) -> dict[str, Any] | None:
        """How differently the global model treats the groups: gaps in accuracy and in the rates of its decisions.

        See `equipoise.metrics.parity`; a rate is over the last rounds in which the counts were recorded.

        Parameters
        ----------
        last
            How many of the last evaluated rounds to average, at least 1.
        positive
            The class that counts as positive; by default the second of two, and every one of more.

        Returns
        -------
        Plain types in percent, `None` where a number is not defined: `accuracy_gap`, `equal_opportunity`, `equalised_odds`,
        `demographic_parity`; `of_class`, in which class each of the last three is; `groups`, `{group: {"accuracy", "tpr",
        "fpr", "selection_rate"}}` with one number per class in `classes`; `undefined`, `[group, rate, class]` of rates about
        no sample; `averaged`, the rounds.  None where no counts were recorded for two groups (`measures=("rates",)`).

        Raises
        ------
        ValueError
            `last` is below 1, `positive` is no class, or the counts are damaged.
        """
        if last < 1:
            raise ValueError(f"last must be at least 1 round: found {last}.")
        counted = [
            (
                record["round"],
                {g: of[RATES] for g, of in record.get("groups", {}).items() if isinstance(of.get(RATES), dict)},
            )
            for record in self.records
        ]
        chosen = [(t, of) for t, of in counted if of][-last:]
        every: dict[str, list[Mapping[str, list[int]]]] = {}
        for _, groups in chosen:
            for name, of in groups.items():
                every.setdefault(name, []).append(of)
        if len(every) < 2:
            return None
        summed = {
            name: {key: np.sum([one[key] for one in found], axis=0).tolist() for key in ("right", "true", "chosen")}
            for name, found in every.items()
        }
        found = parity(summed, positive)
        return {
            "accuracy_gap": _percent(found.accuracy),
            "equal_opportunity": _percent(found.equal_opportunity),
            "equalised_odds": _percent(found.equalised_odds),
            "demographic_parity": _percent(found.demographic_parity),
            "of_class": dict(found.widest),
            "classes": list(found.classes),
            "groups": {
                name: {
                    "accuracy": _percent(rates.accuracy),
                    **{
                        key: [_percent(getattr(rates, key)[c]) for c in found.classes]
                        for key in ("tpr", "fpr", "selection_rate")
                    },
                }
                for name, rates in found.rates.items()
            },
            "undefined": [list(one) for one in found.undefined],
            "averaged": [t for t, _ in chosen],
        }

    def _collaboration(self, last: int) -> dict[str, Any] | None:
        contribution, (rounds, table) = self.contribution, self.client_table()
        if contribution is None or not table.size:
            return None
        reward = table[-1]
        fairness = [collaborative_fairness(contribution, row) for row in table]
        gain, bounds = collaboration_gain(contribution, reward), bounded_fairness(contribution, reward)
        top, middle, bottom = client_range(reward)
        return {
            "round": rounds[-1],
            "clients": len(reward),
            "fairness": _or_none(fairness[-1]),
            "spearman": _or_none(rank_fairness(contribution, reward)),
            "fairness_mean": _or_none(mean([one.value for one in fairness[-last:]])),
            "fairness_oracle": max((one.value for one in fairness if one.defined), default=None),
            "max": _percent(top),
            "mean": _percent(middle),
            "min": _percent(bottom),
            "gain": {
                "mean": _percent(gain.mean),
                "std": _percent(gain.std),
                "worse_off": gain.worse_off if gain.mean.defined else None,
            },
            "bcf": {
                "rate": _percent(bounds.rate),
                "satisfied": bounds.satisfied,
                "lower_violations": list(bounds.lower_violations),
                "upper_violations": list(bounds.upper_violations),
                "literal_upper_violations": list(bounds.literal_upper_violations),
                "lower_margin": _percent(bounds.worst_lower),
                "upper_margin": _percent(bounds.worst_upper),
            },
            "bytes": self._bytes(),
        }

    def _bytes(self) -> dict[str, float | None] | None:
        if not any(record.get("bytes", {}).get("down") for record in self.records):
            return None
        down, up = traffic(self.records)
        return {"down": down, "up": up, "full": _or_none(full_model(self.records))}

    def report(self, path: str | os.PathLike[str], *, figures: bool = False) -> Path:
        """Write the report of this run, one self-contained HTML file; return its path.

        Parameters
        ----------
        path
            The file to write, replaced if it exists.
        figures
            Also write every figure as PDF and PNG, and every table as LaTeX, into `<stem>-figures/` beside it.
        """
        from equipoise.report.html import write

        return write([self], path, figures=figures)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        where = f" on {self.scenario}" if self.scenario else ""
        found = self.summary()
        numbers = [f"{key} {found[key]:.1f}" for key in ("avg", "std", "worst") if found[key] is not None]
        worst = f" ({found['worst_group']})" if found["worst"] is not None else ""
        return (
            f"History({self.label}{where}, seed {self.seed}, {len(self)} round{'s' * (len(self) != 1)}: "
            f"{', '.join(numbers) or 'not evaluated'}{worst})"
        )


def line(record: Record) -> str:
    """One record as a line of `metrics.jsonl`, newline included; NaN and infinities become null.

    Parameters
    ----------
    record
        The record of one round, see `History`; NumPy and torch numbers are written as plain numbers.
    """
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _check(record: Any) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("round"), int):
        raise ValueError(f'a record needs its round: expected {{"round": 0, ...}}, found {_shorten(record)}.')
    where = f"round {record['round']}"
    groups = record.get("groups", {})
    if not isinstance(groups, dict) or any(not isinstance(result, dict) for result in groups.values()):
        raise ValueError(
            f'{where}: expected groups as {{name: {{"accuracy": a, "loss": l}}}}, found {_shorten(groups)}.'
        )
    clients = record.get("clients", {"accuracy": []})
    if not isinstance(clients, dict) or not isinstance(clients.get("accuracy"), Sequence):
        raise ValueError(f'{where}: expected clients as {{"accuracy": [one per client]}}, found {_shorten(clients)}.')
    ids, weights = record.get("ids", []), record.get("weights", [])
    if "weights" in record and len(ids) != len(weights):
        raise ValueError(
            f"{where}: expected one weight per client in ids, found {len(ids)} ids, {len(weights)} weights."
        )


def _accuracies(found: Any) -> bool:
    return found is None or (
        isinstance(found, Sequence) and all(a is None or isinstance(a, int | float) for a in found)
    )


def _parse_lines(text: str) -> tuple[Record, ...]:
    records: list[Record] = []
    lines = text.split("\n")  # what follows the last newline is empty, or torn
    for number, content in enumerate(lines, start=1):
        if not content.strip():
            continue
        try:
            record = json.loads(content)
            _check(record)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"line {number} is damaged: {error} Remove the line, or run again.") from None
        while records and records[-1]["round"] >= record["round"]:
            records.pop()
        records.append(record)
    return tuple(records)


def _parse_object(text: str) -> Record:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object, found {_shorten(content)}.")
    return content


def _read(path: Path, parse: Callable[[str], Parsed], hint: str) -> Parsed:
    try:
        return parse(path.read_bytes().decode(errors="replace"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist. {hint}".rstrip()) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and torch
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _percent(value: Value) -> float | None:
    return 100 * value.value if value.defined else None


def _or_none(value: Value) -> float | None:
    return value.value if value.defined else None


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
