"""The command ``equipoise privacy``."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.cli import completion, console
from equipoise.cli.options import option
from equipoise.privacy.accounting import ACCOUNT, SENSITIVITY, account, answers, noise_for, spent, together
from equipoise.system.files import read_regular
from equipoise.system.own_code import replaced


def privacy(
    run: Path | None = option(
        None,
        "Directory of a run with `dp`, or the state-dir of a site with an account of its own.",
        "[RUN]",
        autocompletion=completion.runs,
    ),
    noise: float | None = option(None, "The noise z of `dp`: gives epsilon.", min=0),
    epsilon: float | None = option(None, "The epsilon wanted: gives the noise z.", min=0),
    rounds: int | None = option(None, "Rounds in which a client answers [default: 1].", "--rounds -r", min=1),
    delta: float = option(1e-5, "In (0, 1); well below one over the number of clients."),
) -> Iterator[object]:
    """Account for the noise of `dp`: epsilon, for all data of one client, from its noise or the other way round."""
    if run is not None and (run / ACCOUNT).exists() and noise is None and rounds is None:
        rows = [_own(account(run / ACCOUNT), delta, epsilon)]
    elif sum(option is not None for option in (run, noise, epsilon)) != 1 or (run is not None and rounds is not None):
        raise ValueError(
            "equipoise privacy: expected a RUN, or --noise or --epsilon with --rounds; for example "
            "equipoise privacy --noise 1.1 --rounds 40."
        )
    elif run is not None:
        rows = [_completed(row, delta) for row in _of(run)]
    else:
        asked = {"noise": noise} if epsilon is None else {"epsilon": epsilon}
        rows = [_completed({"answers": rounds or 1, **asked}, delta)]
    yield rows
    cells = [_cells(row) for row in rows]
    console.print_table(cells[0], (texts.values() for texts in cells), right=[*cells[0]])
    console.say(
        f"(epsilon, {delta:g})-differential privacy of all data of one client that answered so often. replace: compared with any "
        "other data of as many samples; zero-out: with an update of zero."
    )


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a row by the titles of their columns: a number that each relation has is one for each."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        cells |= {f"{name}, {r}": v for r, v in value.items()} if isinstance(value, dict) else {name: value}
    return {title: "infinite" if v is None else v if isinstance(v, str) else f"{v:.6g}" for title, v in cells.items()}


def _of(run: Path) -> list[dict[str, Any]]:
    """For each number of answers in a run, how many clients gave as many; between sites, how many each may have given."""
    from equipoise.methods.dp import DP
    from equipoise.records.record import line, parse_lines

    history = eq.History.from_run(run)
    method = replaced(history.method, lambda *_: "own")  # whose code is not run, and whose folder may be called a+dp
    part = re.search(r"(?<![^+ ])dp\b(:\w+)?(\([^)]*\))?", method)
    noise = next((rule.noise for rule in eq.parse(part[0]).rules if isinstance(rule, DP)), None) if part else None
    if noise is None:
        raise ValueError(f"{run}: its method {history.method} adds no noise. Give a run with dp in its method.")
    old = [parse_lines(read_regular(path).decode()) for path in run.glob("metrics.*.jsonl")]
    again = {line(r): r for records in old for r in records if r not in history.records}  # rounds that were done again
    counts = answers([*history.records, *again.values()])
    if not counts:
        raise ValueError(f"{run} has no complete round yet. Go on with it first.")
    if history.meta["config"].get("engine") == "flower":
        secure = any(record.get("secure") for record in history.records)  # a round is done again with the same answers
        vain = history.meta.get("unfinished", 0) * (not secure) + (not (run / "summary.json").exists())
        return [{"site": s, "answers": counts[m] + vain, "noise": noise} for m, s in enumerate(history.client_names)]
    many = Counter(counts.values())
    return [{"clients": many[k], "answers": k, "noise": noise} for k in sorted(many, reverse=True)]


def _own(given: dict[float, int], delta: float, budget: float | None) -> dict[str, Any]:
    """A site's own account: its answers by their noise, what they have spent, and what is left of a budget."""
    epsilon = {r: together(given, delta, r) for r in SENSITIVITY}
    left = {} if budget is None else {"left": max(0.0, budget - epsilon["replace"])}
    return {"answers": {str(z): n for z, n in given.items()}, "epsilon": epsilon, **left}


def _completed(row: dict[str, Any], delta: float) -> dict[str, Any]:
    """A row with what it lacks, for each relation: epsilon, or the noise."""
    if "noise" in row:
        values = {r: spent(row["noise"], row["answers"], delta, r) for r in SENSITIVITY}
        return {**row, "epsilon": {r: None if math.isinf(value) else value for r, value in values.items()}}
    return {**row, "noise": {r: noise_for(row["epsilon"], row["answers"], delta, r) for r in SENSITIVITY}}
