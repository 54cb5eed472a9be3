"""What each client of a run was worth, by training the run once more: the same seed gives the same updates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.analysis.decomposition import again, repeats, stored
from equipoise.contribution import evaluators
from equipoise.contribution.checks import indistinguishable, interval, pairs, stability
from equipoise.contribution.rewards import Reward, reward
from equipoise.federation.history import History
from equipoise.federation.worth import Ledger, contradictions, ledger
from equipoise.records.record import Record, large
from equipoise.report.contribution import page
from equipoise.report.page import Page
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunConfig, RunError
from equipoise.runs.plan import Progress
from equipoise.system.files import write_atomically

FILE = "contribution.json"  # what was measured of a run, in its directory
Content = Mapping[str, Any]


@dataclass(frozen=True)
class Contribution:
    """What clients gave in runs that differ by their seeds.

    Parameters
    ----------
    runs : of each run what :func:`measured` gives.
    """

    runs: Sequence[Content]

    @property
    def clients(self) -> list[str]:
        """Their names."""
        return list(self.runs[0]["clients"])

    @property
    def utilities(self) -> list[str]:
        """What the values are of."""
        return list(self.runs[0]["utilities"])

    @property
    def values(self) -> NDArray[np.float64]:
        """The values of each run [B, N, K]; NaN of a client that was in no round."""
        return np.array([run["values"] for run in self.runs], dtype=np.float64)

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean over the runs [N, K]."""
        return np.asarray(self.values.mean(0))

    @property
    def half(self) -> NDArray[np.float64]:
        """Half of the 95 % interval over the runs [N, K]; NaN of a single run."""
        several = interval(self.values) if len(self.runs) > 1 else None
        return np.full_like(self.mean, np.nan) if several is None else several.t * several.error

    def indistinguishable(self, utility: int = 0) -> list[tuple[str, str]]:
        """Pairs of clients whose values several runs do not tell apart, at 5 % corrected for all pairs (Holm)."""
        present = np.flatnonzero(~np.isnan(self.mean[:, utility]))
        tests = pairs(self.values[:, present, utility]) if len(self.runs) > 1 else []
        return [(self.clients[present[i]], self.clients[present[j]]) for i, j in indistinguishable(tests)]

    def stability(self, utility: int = 0) -> float:
        """Mean Kendall tau-b of the rankings of two runs; NaN of a single run."""
        present = ~np.isnan(self.mean[:, utility])
        return stability(self.values[:, present, utility]).kendall

    def document(self) -> dict[str, Any]:
        """Means and intervals over the runs, and what is known of them, as JSON has it."""
        first, kendall = self.runs[0], self.stability()
        every = {name: sum(run[name] for run in self.runs) for name in ("refused", "evaluations", "coalitions")}
        return {
            **{
                name: first[name] for name in ("method", "clients", "utilities", "evaluator", "measured_on", "attended")
            },
            **every,
            "runs": len(self.runs),
            "mean": _numbers(self.mean),
            "half": _numbers(self.half),
            "values": _numbers(self.values),
            "gain": np.mean([run["gain"] for run in self.runs], axis=0).tolist(),
            "alike": [[*pair] for pair in self.indistinguishable()],
            "kendall": None if np.isnan(kendall) else kendall,
            "closest": first["alike"],
            "contradictions": [[*each] for each in contradictions(self.clients, self.utilities, self.mean)],
            "got": None if first["got"] is None else np.mean([run["got"] for run in self.runs], axis=0).tolist(),
            "converged": all(run["converged"] for run in self.runs),
        }

    def page(self) -> Page:
        """The page of these values."""
        return page(self.document())

    def reward(self, budget: float, floor: float = 0.0, cap: float = np.inf, utility: int = 0) -> Reward:
        """A budget shared in proportion to positive values, see :func:`equipoise.contribution.rewards.reward`; clients of no round get the floor."""
        return reward(np.nan_to_num(self.mean[:, utility]), budget, floor, cap)


def measured(worth: Ledger) -> dict[str, Any]:
    """A ledger as JSON has it."""
    total = worth.rounds.total
    return {
        "clients": [*worth.clients],
        "utilities": [*worth.utilities],
        "evaluator": worth.evaluator,
        "measured_on": dict(worth.measured_on),
        "values": _numbers(worth.values),
        "by_round": _numbers(worth.rounds.by_round),
        "attended": worth.rounds.attended.sum(0).astype(int).tolist(),
        "errors": None if total.errors is None else _numbers(total.errors),
        "gain": _numbers(total.gain),
        "gap": _numbers(total.gap),
        "evaluations": total.evaluations,
        "coalitions": total.coalitions,
        "converged": total.converged,
        "refused": worth.refused,
        "notes": {name: note for name, note in total.notes.items() if isinstance(note, int | float | str)},
        "alike": None if worth.alike is None else [*worth.alike],
    }


def contributions(
    directories: Sequence[str | Path] | str | Path,
    evaluator: str = "auto",
    utilities: Sequence[str] = ("loss", "accuracy"),
    *,
    on_round: Progress | None = None,
) -> Contribution:
    """What each client gave in one run, or in runs of one method that differ by their seeds; each is trained once more.

    The result is stored in the directory of a run, and not measured again.

    Parameters
    ----------
    directories : of runs.
    evaluator : of :data:`equipoise.contribution.evaluators.EVALUATORS`, also with options: ``"gtg(within=0.001)"``. ``auto`` is exact for ten
        clients in a round or fewer, and GTG-Shapley for more.
    utilities : ``loss`` (its decrease), ``accuracy``, and of groups ``worst``, ``std``, ``gap``.
    on_round : called after each round with the rounds done and to do.

    Raises
    ------
    RunError : no run there; runs of several methods or other clients; nothing to measure on; a repetition that differs from the run.
    InputError : a utility, or an evaluator, that is not there.
    """
    paths = [Path(each) for each in ([directories] if isinstance(directories, str | Path) else directories)]
    configs = [runs.load(path) for path in paths]
    if len({config.method for config in configs}) > 1:
        raise RunError("What clients give depends on the method, and these runs have several. Name runs of one method.")
    text, total = evaluators.text_of(evaluators.read(evaluator)), sum(config.rounds for config in configs)
    results, done = list[Content](), 0
    for path, config in zip(paths, configs, strict=True):
        key = {"run": runs.identity(config), "evaluator": text, "utilities": [*utilities]}
        if not (result := stored(path / FILE, "result", "about", key)):
            same = repeats(path)

            def check(t: int, record: Record, before: int = done, same: Any = same) -> None:
                same(t, record)
                if on_round is not None:
                    on_round(before + t + 1, total)

            worth = ledger(again(config), config.rounds, evaluator, utilities, on_round=check)
            result = [{"method": config.label, "got": _got(path, config), **measured(worth)}]
            write_atomically(path / FILE, json.dumps({"about": key, "result": result}, indent=1))
        results += result
        done += config.rounds
    if any(result["clients"] != results[0]["clients"] for result in results):
        raise RunError("These runs have other clients. Name runs that differ by their seeds only.")
    return Contribution(results)


def _got(path: Path, config: RunConfig) -> list[float] | None:
    """The accuracy of the model that each client predicts with after the last round, in [0, 1]; None if that is not shown of all of them."""
    records = [record for record in History.from_run(path).records if record.get("clients")][-1:]
    accuracies = [large(record, config.least_group)["clients"].get("accuracy", [None]) for record in records]
    shown = [accuracy for accuracy in (accuracies[0] if accuracies else []) if accuracy is not None]
    return shown if accuracies and len(shown) == len(accuracies[0]) else None


def _numbers(x: NDArray[np.float64]) -> Any:
    """Nested lists, with None for NaN."""
    return np.where(np.isnan(x), None, x.astype(object)).tolist()  # type: ignore[call-overload]
