"""Every sentence, mark and command of a report, read back and checked against numbers that are computed here anew."""

# ruff: noqa: F401 (fixtures are imported)
from __future__ import annotations

import csv
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy import stats
from typer.main import get_command

from equipoise.cli import main as cli
from equipoise.federation.history import History
from equipoise.metrics import definitions
from equipoise.metrics.intervals import Draws, Outcome, difference, interval, resampled
from equipoise.report import latex, markdown
from equipoise.report.html import caption, parts_of_captions
from equipoise.report.layout import every_client, over_clients, paired_tests, sheets
from equipoise.report.provenance import commands
from equipoise.report.sentences import evidence, limits, verdict
from equipoise.report.statistics import Comparison
from equipoise.runs import directory, plan
from equipoise.runs.configuration import RunConfig, configure
from run_helpers import cache

COLUMNS = {column.key: column for column in definitions.GROUPS}
PERCENT = "\u00a0%"
NUMBER = r"[−+]?\d+(?:\.\d+)?"
VALUE = rf"(?:RMSE )?({NUMBER})\u00a0(?:%|kg)"
NAMES = ("north", "south ward", "east", "people of B")
LABELS = ("fedavg", "afl", "fedprox(mu=0.1)+fedheal", "qffl")


def read(text: str) -> float:
    """A number as a report prints it."""
    return float(text.replace("−", "-"))


# --- runs of every kind
@dataclass(frozen=True)
class Study:
    """Runs, and where they come from: "embedded", "own", "python" or "sites"."""

    histories: tuple[History, ...]
    origin: str
    last: int
    guessing: Callable[[History], bool] = lambda history: False


@st.composite
def studies(draw: st.DrawFn) -> Study:
    """Runs that could be: of one or several methods, seeds and groups, with failures, bounds, absences, small groups, many clients."""
    origin = draw(st.sampled_from(["embedded", "own", "python", "sites"]))
    labels = draw(st.lists(st.sampled_from(LABELS), min_size=1, max_size=4, unique=True))
    labels += draw(st.sampled_from([[], ["standalone", "centralised"]])) if origin in ("own", "embedded") else []
    groups = draw(st.sampled_from([NAMES[:1], NAMES[:2], NAMES]))
    seeds = draw(st.sampled_from([1, 1, 2, 3, 4]))
    rounds = draw(st.integers(1, 7))
    first, rest = draw(st.sampled_from([(1, 1), (4, 300), (12, 12), (300, 300), (300, 300)]))
    sizes = np.array([first, *[rest] * (len(groups) - 1)])
    least = draw(st.sampled_from([None, None, 1]))
    clients = draw(st.sampled_from([len(groups), 100]))
    own_tests = draw(st.booleans())
    gone = draw(st.sampled_from([None, *groups])) if origin == "sites" else None
    since = draw(st.integers(0, rounds))
    spread, noise = draw(st.sampled_from([(0.2, 0.01), (0.02, 0.05), (0.0, 0.0)]))
    failing = draw(st.sampled_from([None, None, labels[0], labels[-1]]))
    same = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    level = {label: rng.uniform(-spread, spread, len(groups)) for label in labels}
    histories = []
    for label in labels:
        bound = {"standalone": "lower", "centralised": "upper"}.get(label, "")
        for seed in range(seeds):
            records = []
            diverged = label == failing and (same or seed == 0)
            for t in range(rounds):
                a = np.clip(0.7 + level[label] + noise * rng.normal(size=len(groups)), 0, 1)
                right = np.round(a * sizes) / sizes
                scores = {
                    group: {"accuracy": float(x), "loss": None if diverged else 0.5, "n": int(n)}
                    for group, x, n in zip(groups, right, sizes, strict=True)
                    if not (group == gone and t >= since)
                }
                record: dict[str, Any] = {"round": t, "groups": scores}
                belongs = [groups[m % len(groups)] for m in range(clients)]
                record["clients"] = {"accuracy": [scores[g]["accuracy"] if g in scores else None for g in belongs]}
                if origin == "sites":
                    record |= {"ids": [0], "times": {"site": [1.0], "answered": [2.0]}}
                    if gone and t >= since:
                        record["quarantined"] = [{"client": 1, "name": "c1", "reason": "is not connected"}]
                records.append(record)
            meta: dict[str, Any] = {
                "method": label,
                "seed": seed,
                "rounds": rounds,
                "bound": bound,
                "least_group": least,
            }
            meta |= {
                "client_names": [f"c{m}" for m in range(clients)],
                "scenario": {"python": "", "embedded": "digits"}.get(origin, origin),
            }
            meta |= {
                "client_groups": None if own_tests or origin == "sites" else belongs,
                "client_tests": own_tests and origin != "sites",
            }
            config = {"method": label, "seed": seed, "rounds": rounds, "scenario": meta["scenario"]}
            if origin == "own":
                config["data"] = "people.csv"
                meta["data"] = {"sha256": "a", "rows": str(seed) if same else "b"}
            elif origin == "embedded":
                meta["data"] = {"sha256": str(seed)}
            elif origin == "sites":
                config |= {"engine": "flower", "label": label}
            else:
                meta["first"] = "a" if same else str(seed)
            histories.append(History(records, meta | ({} if origin == "python" else {"config": config})))
    return Study(tuple(histories), origin, 1 if origin == "own" else 5)


# --- the numbers, computed anew
class Truth:
    """What the records say, by method."""

    def __init__(self, study: Study) -> None:
        self.study, self.last = study, study.last
        self.numbers = study.histories[0].meta.get("task") == "regression"
        measure, scale, worst = ("rmse", 1, max) if self.numbers else ("accuracy", 100, min)
        self.top = min if self.numbers else max
        self.labels = list(dict.fromkeys(h.label for h in study.histories))
        least = study.histories[0].meta["least_group"] or 10
        scores = dict.fromkeys(
            (g, s.get("persons", s["n"])) for h in study.histories for r in h.records for g, s in r["groups"].items()
        )
        of_clients = study.histories[0].meta.get("client_names") or ()  # simulated, and no people
        self.groups = [g for g, n in scores if n >= least or g in of_clients]
        self.small = [g for g, n in scores if n < least and g not in of_clients]
        self.bounds = {h.label for h in study.histories if h.meta.get("bound")}
        self.runs: dict[str, list[dict[str, Any]]] = {label: [] for label in self.labels}
        for h in study.histories:
            shown = [r for r in h.records if r["groups"]][-self.last :]
            own = list(dict.fromkeys(g for r in h.records for g in r["groups"] if g in self.groups))
            values = {g: [r["groups"].get(g, {}).get(measure) for r in shown] for g in own}
            means = {g: None if None in v else scale * sum(v) / len(v) for g, v in values.items()}
            known = None not in means.values() and means
            a = list(means.values())
            run = {
                "groups": means,
                "history": h,
                "shown": shown,
                "avg": None,
                "std": None,
                "worst": None,
                "where": None,
            }
            if known:
                run |= {"avg": sum(a) / len(a), "worst": worst(a)}
                run["where"] = worst(means, key=lambda g: round(means[g], 9))
                run["std"] = float(np.std(a, ddof=1)) if len(a) > 1 else None
            run["failed"] = any(s["loss"] is None for r in shown for s in r["groups"].values()) or study.guessing(h)
            self.runs[h.label].append(run)
        self.failed = {label for label, runs in self.runs.items() if any(run["failed"] for run in runs)}
        self.racing = [label for label in self.labels if label not in self.bounds]
        self.seeds = len(self.runs[self.labels[0]])
        self.said: dict[str, str] = {}  # which of equal methods the report says leads
        self.families: dict[str, dict[frozenset[str], tuple[float, float, float, float, bool]]] = {}

    def each(self, label: str, key: str) -> list[float | None]:
        return [run["groups"].get(key[6:]) if key.startswith("group:") else run[key] for run in self.runs[label]]

    def mean(self, label: str, key: str) -> float | None:
        each = self.each(label, key)
        return None if None in each else float(np.mean(each))

    def of_worst_clients(self, label: str, worst: int, clients: int) -> float:
        """The mean accuracy of so many clients with the lowest, of so many that are tested."""
        each = []
        for run in self.runs[label]:
            rows = [r["clients"]["accuracy"] for r in run["history"].records][-self.last :]
            means = [100 * float(np.mean(of)) for of in zip(*rows, strict=True) if None not in of]
            assert len(means) == clients
            assert worst == max(1, clients // 10)
            each.append(float(np.mean(sorted(means)[:worst])))
        return float(np.mean(each))

    def half(self, label: str, key: str) -> float | None:
        """Half of the 95 % interval over the seeds."""
        each = self.each(label, key)
        if len(each) < 2 or None in each:
            return None
        return float(stats.t.ppf(0.975, len(each) - 1) * np.std(each, ddof=1) / math.sqrt(len(each)))

    @cached_property
    def draws(self) -> dict[str, Any]:
        """With one seed: what other test samples might have shown; nothing where a group is missing."""
        runs = [self.runs[label][0] for label in self.racing]
        if (
            self.seeds > 1
            or self.numbers
            or not runs
            or len({tuple(run["groups"]) for run in runs}) > 1
            or any(run["avg"] is None for run in runs)
        ):
            return {}
        scores = {g: run["shown"][-1]["groups"][g] for run in runs for g in run["groups"]}
        n = {g: score.get("persons", score["n"]) for g, score in scores.items()}
        outcomes = [[Outcome(a / 100, n[g]) for g, a in run["groups"].items()] for run in runs]
        return dict(zip(self.racing, resampled(outcomes), strict=True))

    def leading(self, key: str) -> str | None:
        means = {m: mean for m in self.racing if m not in self.failed and (mean := self.mean(m, key)) is not None}
        if len(means) < 2:
            return None
        top = (min if key == "std" else self.top)(means.values())
        ahead = [m for m in means if math.isclose(means[m], top, rel_tol=1e-9, abs_tol=1e-9)]
        return self.said[key] if self.said.get(key) in ahead else ahead[0]  # of equal ones any

    def family(self, key: str) -> dict[frozenset[str], tuple[float, float, float, float, bool]]:
        if key not in self.families:
            self.families[key] = self._family(key)
        return self.families[key]

    def _family(self, key: str) -> dict[frozenset[str], tuple[float, float, float, float, bool]]:
        """Of all pairs that are shown of a column: the difference of the names in order, its interval, p by Holm, told apart."""
        lead, first = self.leading(key), self.racing[0]
        pairs = {frozenset((m, first)) for m in self.racing[1:]}
        if lead:
            ranked = [m for m in self.racing if m not in self.failed and self.mean(m, key) is not None]
            pairs |= {frozenset((lead, m)) for m in ranked if m != lead}
        draws, found, ps = self.draws, {}, {}
        for pair in pairs:
            a, b = sorted(pair)
            if self.mean(a, key) is None or self.mean(b, key) is None:
                continue
            d = np.subtract(self.each(a, key), self.each(b, key))
            p = low = high = math.nan
            if len(d) > 1 and np.std(d) > 1e-9:
                p = float(stats.ttest_1samp(d, 0).pvalue)
                half = float(stats.t.ppf(0.975, len(d) - 1) * np.std(d, ddof=1) / math.sqrt(len(d)))
                low, high = d.mean() - half, d.mean() + half
            ps[pair] = p
            found[pair] = [float(d.mean()), float(low), float(high)]
        order = sorted(p for p in ps.values() if not math.isnan(p))
        result = {}
        for pair, (d, low, high) in found.items():
            p, apart = ps[pair], False
            if not math.isnan(p):
                p = max(min(1.0, (len(order) - i) * q) for i, q in enumerate(order) if q <= p)
                apart = p < 0.05
            if draws:
                a, b = sorted(pair)
                column = COLUMNS[key]
                low, high = (100 * x for x in difference(draws[a], draws[b], column))
                ends = difference(draws[a], draws[b], column, 1 - 0.05 / len(found))
                apart = ends.low > 0 or ends.high < 0
            result[pair] = (d, low, high, p, apart)
        return result

    def best(self, key: str) -> str | None:
        """The leading method, if it can be told apart from all others."""
        lead = self.leading(key)
        if lead is None:
            return None
        family = self.family(key)
        others = [m for m in self.racing if m != lead and m not in self.failed and self.mean(m, key) is not None]
        return lead if all(family[frozenset((lead, m))][4] for m in others) else None

    def untested(self) -> set[str]:
        return {g for runs in self.runs.values() for run in runs for g, a in run["groups"].items() if a is None}


# --- the sentences, read back
def near(text: str, value: float | None) -> bool:
    return value is not None and abs(read(text) - value) <= 0.5 * 10 ** -len(text.partition(".")[2]) + 1e-9


CLAIMS = {
    "the fairest": "std", "the best for the worst group": "worst", "the most accurate": "avg", "the one with the lowest error": "avg",
}  # fmt: skip
SHOWN = {"worst group": "worst", "average": "avg", "STD over groups": "std"}


def check_verdict(text: str, truth: Truth) -> None:
    """The first paragraph: at most five sentences, each of a known form and true."""
    said = re.split(r"(?<=\.) ", text)
    assert 0 < len(said) <= 5
    for sentence in said:
        check_sentence(sentence, truth)
    check_shown(said, truth)
    for key, claim in (
        ("std", " is the fairest"),
        ("worst", " serves the worst group best"),
        ("avg", " is the most accurate"),
    ):
        if key == "avg" or len(truth.groups) > 1:
            winner = truth.best(key)
            assert (winner is not None) == (claim in text), (key, winner, text)
    if truth.seeds == 1 and any(label not in truth.failed for label in truth.racing) and truth.groups:
        assert "one seed proves nothing" in text


def check_shown(said: Sequence[str], truth: Truth) -> None:
    """No gain or loss against the first method is missing, except for lack of room."""
    first, named = (
        truth.racing[0],
        {text.split(": ")[0].split(", ")[-1] for text in said if text.startswith("Against ")},
    )
    shown = {
        label
        for label in truth.racing[1:]
        if not {first, label} & truth.failed
        for key in (SHOWN.values() if len(truth.groups) > 1 else ["avg"])
        if (test := truth.family(key).get(frozenset((first, label)))) and test[4]
    }
    assert named <= shown
    assert named == shown or len(said) == 5
    if shown and len(said) < 5 and (text := next((text for text in said if "method is shown to be" in text), "")):
        keys = [key for claim, key in CLAIMS.items() if claim in text]
        assert not any(
            test[4]
            for key in keys
            for pair, test in truth.family(key).items()
            if first in pair and not pair & truth.failed
        )


def check_sentence(sentence: str, truth: Truth) -> None:
    def match(pattern: str) -> re.Match[str] | None:
        return re.fullmatch(pattern, sentence)

    if found := match(
        rf"(?:With this seed, )?(\S+) is the fairest: its (?:accuracy|RMSE) varies least over (\d+) groups?, by ({NUMBER}) (?:points|kg)\."
    ):
        assert truth.best("std") == found[1]
        assert int(found[2]) == len(truth.groups)
        assert near(found[3], truth.mean(found[1], "std"))
    elif found := match(rf"(?:With this seed, )?(\S+) serves the worst group best: {VALUE} on (.+)\."):
        assert truth.best("worst") == found[1]
        assert near(found[2], truth.mean(found[1], "worst"))
        assert set(re.split(", | and ", found[3])) == set(truth.each(found[1], "where"))
    elif found := match(
        rf"(?:With this seed, )?(\S+) (?:is the most accurate|has the lowest error), at {VALUE}(?: on average)?\."
    ):
        assert truth.best("avg") == found[1]
        assert near(found[2], truth.mean(found[1], "avg"))
    elif found := match(
        rf"Against (\S+), (\S+): (.+?)(?: points| kg) \(95{PERCENT} intervals over the (test samples|seeds)\)\."
    ):
        assert found[1] == truth.racing[0]
        assert not {found[1], found[2]} & truth.failed
        assert (found[4] == "seeds") == (truth.seeds > 1)
        if re.search("(of|over) clients ", found[3]):  # a sentence of its own, of numbers over clients alone
            return
        parts = re.findall(rf"(?:^|, )([a-zA-Z ]+) ({NUMBER}) \[({NUMBER}), ({NUMBER})\]", found[3])
        told = {SHOWN[title] for title, *_ in parts}
        for key in SHOWN.values() if len(truth.groups) > 1 else ["avg"]:
            test = truth.family(key).get(frozenset((found[1], found[2])))
            assert (key in told) == bool(test and test[4])
        for title, *texts in parts:
            d, low, high, *_ = truth.family(SHOWN[title])[frozenset((found[1], found[2]))]
            ends = (d, low, high) if sorted((found[1], found[2]))[0] == found[2] else (-d, -high, -low)
            assert all(map(near, texts, ends))
    elif found := match(r"(No|Neither) method is shown to be (.+)\."):
        claimed = re.split(", | or ", found[2])
        assert all(truth.best(CLAIMS[claim]) is None and truth.leading(CLAIMS[claim]) for claim in claimed)
        assert (found[1] == "Neither") == (len([m for m in truth.racing if m not in truth.failed]) == 2)
    elif found := match(
        r"(.+?) (diverged|(?:is|are) no better than guessing)(?: in (\d+) of (\d+) runs?)?, so (?:its|their) numbers show neither .*"
    ):
        names = re.split(", | and ", found[1])
        assert set(names) == truth.failed or found[1] == f"{len(truth.failed)} methods"
        runs = [run["failed"] for label in truth.failed for run in truth.runs[label]]
        assert (found[3] is None) == all(runs)
        assert not found[3] or (int(found[3]), int(found[4])) == (sum(runs), len(runs))
    elif found := match(
        r"(.+) (?:was|were) not tested in each of the last rounds(?: \(last in round (\d+)\))?, so average, spread .* not known\."
    ):
        assert set(re.split(", | and ", found[1])) == truth.untested()
        last = {r["round"] for h in truth.study.histories for r in h.records if found[1] in r["groups"]}
        assert not found[2] or int(found[2]) == max(last)
    elif sentence.startswith("This is one seed, and one seed proves nothing: another can"):
        assert truth.seeds == 1
    elif sentence == "Two seeds say little about chance: run at least three before you rely on a difference.":
        assert truth.seeds == 2
    elif found := match(r"(?:Only (\S+) is better than guessing with every seed: it|(\S+)) reaches (.+)\."):
        label = found[1] or found[2]
        assert label not in truth.failed
        assert not found[1] or set(truth.racing) - truth.failed == {label}
        parts = re.match(rf"{VALUE} on average over (\d+) groups, with a standard deviation of ({NUMBER}) (?:points|kg) between "
                         rf"them; the (?:lowest|highest) is (.+) at {VALUE}", found[3])  # fmt: skip
        if parts:
            assert near(parts[1], truth.mean(label, "avg"))
            assert int(parts[2]) == len(truth.groups)
            assert near(parts[3], truth.mean(label, "std"))
            lowest = (max if truth.numbers else min)(truth.groups, key=lambda g: truth.mean(label, f"group:{g}"))
            assert near(parts[5], truth.mean(label, f"group:{lowest}"))
            assert near(parts[5], truth.mean(label, f"group:{parts[4]}"))
        else:
            for value, group in re.findall(rf"{VALUE} on (.+?)(?=, \d| and \d|$)", found[3]):
                assert near(value, truth.mean(label, f"group:{group}"))
    elif found := match(
        r"(?:Only (\S+) is better than guessing with every seed: it|\S+) has no group that was tested in each of the last rounds\."
    ):
        assert truth.untested()
        assert not found[1] or set(truth.racing) - truth.failed == {found[1]}
    elif found := match(
        r"Over the worst (client|\d+) of (?:the )?(\d+) clients(?: that are counted, of \d+ clients in all)?, the mean accuracy is (.+)\."
    ):
        worst = 1 if found[1] == "client" else int(found[1])
        for label, value in re.findall(rf"(?:^|, | and )(\S+) ({NUMBER}){PERCENT}", found[3]):
            assert near(value, truth.of_worst_clients(label, worst, int(found[2])))
    elif sentence.startswith("No method was evaluated on any group"):
        assert not truth.groups
        assert not truth.small
    elif sentence.startswith("Every test set has fewer than 10 samples, so no number is shown"):
        assert not truth.groups
        assert truth.small
    else:
        pytest.fail(f"A sentence that nobody checks: {sentence}")


def check_evidence(lines: Sequence[str], truth: Truth) -> None:
    for line in lines:
        if found := re.fullmatch(
            rf"(The [a-z ]+): the (?:lowest|highest) (STD|worst|AVG|accuracy|RMSE) is that of (\S+), ({NUMBER})[^;(]*(?:\((.+?)\))?; (.+)\.",
            line,
        ):
            key = {"STD": "std", "worst": "worst"}.get(found[2], "avg")
            assert CLAIMS[found[1][0].lower() + found[1][1:]] == key
            assert truth.leading(key) == found[3]
            assert near(found[4], truth.mean(found[3], key))
            if key == "worst":
                assert set(re.split(", | and ", found[5])) == set(truth.each(found[3], "where"))
            told, _, not_told = found[6].partition("not distinguishable from ")
            for text, apart in ((told, True), (not_told, False)):
                check_differences(text, found[3], key, truth, apart=apart)
        elif found := re.fullmatch(rf"(\S+), (AVG|STD|worst): ({NUMBER}) \[({NUMBER}), ({NUMBER})\]\.", line):
            key = found[2].lower()
            mean, half = truth.mean(found[1], key), truth.half(found[1], key)
            ends = (
                [100 * x for x in interval(truth.draws[found[1]], COLUMNS[key])]
                if half is None
                else [mean - half, mean + half]
            )  # type: ignore[operator]
            assert near(found[3], mean)
            assert near(found[4], ends[0])
            assert near(found[5], ends[1])
        elif found := re.fullmatch(
            r"(\S+), seeds? ([\d, and]+): (?:training diverged|the global model is no better than guessing) \(.*\)\.",
            line,
        ):
            seeds = [h.seed for h, run in zip(truth.study.histories, (r for runs in truth.runs.values() for r in runs), strict=True)
                     if h.label == found[1] and run["failed"]]  # fmt: skip
            assert [int(x) for x in re.findall(r"\d+", found[2])] == seeds
        elif line.startswith("In brackets"):
            assert ("over the test samples" in line) == (truth.seeds == 1)
            if of := re.search(r"corrected for (?:the )?(\d+) differences", line):
                sizes = {
                    sum(1 for pair in truth.family(key).values() if truth.seeds == 1 or not math.isnan(pair[3]))
                    for key in ("avg", "std", "worst")
                }
                assert int(of[1]) == max(sizes)
        else:
            check_sentence(line, truth)


def check_differences(text: str, lead: str, key: str, truth: Truth, *, apart: bool) -> None:
    """`afl (+1.20 [−0.30, +2.70], Holm p .123, about 9 seeds) and ...`"""
    family = truth.family(key)
    for found in re.finditer(
        rf"([^\s,;]+) \(({NUMBER}) \[({NUMBER}), ({NUMBER})\](?:, (Holm )?p (< )?(\.?\d*\.?\d+))?", text
    ):
        pair = frozenset((lead, found[1]))
        d, low, high, p, told = family[pair]
        if sorted(pair)[0] != lead:
            d, low, high = -d, -high, -low
        assert near(found[2], d)
        assert near(found[3], low)
        assert near(found[4], high)
        assert told == apart
        if found[7] and not found[6]:
            assert abs(float(found[7]) - p) <= 6e-4
            assert bool(found[5]) == (len([1 for of in family.values() if not math.isnan(of[3])]) > 1)


def check_table(found: Comparison, truth: Truth) -> None:
    """Numbers, halves of intervals, brackets and bold marks of the accuracy's table, as text."""
    lines = [line for line in markdown(found).split("\n\n- ")[0].splitlines() if line.startswith("| ")]
    titles = [cell.strip() for cell in lines[0].strip("|").split("|")][1:]
    draws = truth.draws
    for line in lines[1 : 1 + len(truth.labels)]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        label = name.replace("\\", "").removesuffix(" †")
        assert name.endswith(" †") == (label in truth.failed)
        for title, text in zip(titles, cells, strict=True):
            alone = (
                {title: "avg"} if truth.groups == [title] or list(truth.groups) == [title] else {}
            )  # is their average
            key = ({"AVG": "avg", "STD": "std", "worst": "worst"} | alone).get(title, f"group:{title}")
            if title in truth.small:
                assert text == "n < 10"
                continue
            mean = truth.mean(label, key)
            value = text.replace("*", "")
            if mean is None:
                assert value == "–" or (value.startswith("(") and title in truth.untested())
                continue
            number, _, half = value.partition(" ±")
            assert near(number, mean)
            if label in draws:
                column = draws[label]
                if key.startswith("group"):
                    where = [[*truth.runs[label][0]["groups"]].index(title)]
                    column = Draws(column.others[:, where], column.observed[where])
                ends = interval(column, COLUMNS["avg" if key.startswith("group") else key])
                assert (half == "") == math.isnan(ends.low)
                assert not half or near(half, 50 * (ends.high - ends.low))
            else:
                expected = truth.half(label, key)
                assert (half == "") == (expected is None)
                assert not half or near(half, expected)
            if "**" in text:  # of those that lead, and not of all
                key = "avg" if len(truth.groups) == 1 else key  # of one group its column stands for AVG
                family, lead = truth.family(key), truth.leading(key)
                assert label == lead or not family[frozenset((label, str(lead)))][4]
                assert any(of[4] for pair, of in family.items() if lead in pair)


def check_one_p(found: Comparison, truth: Truth) -> None:
    """A difference has one corrected p-value: in the JSON document, the frame, the table of tests, LaTeX and the sentences."""
    frame = found.tests
    for test in [test for test in paired_tests(sheets(found)) if test.name == "tests-accuracy"]:
        table = latex_of(test)
        for label, cells in test.grid.rows:
            for title, cell in zip(test.grid.titles, cells, strict=True):
                if (key := {"AVG": "avg", "STD": "std", "worst": "worst"}.get(title)) is None:
                    continue  # of the spread over clients
                if not cell.ends:
                    continue
                *_, p, _ = truth.family(key)[frozenset((label, truth.racing[0]))]
                document = found["methods"][truth.labels.index(label)]["versus"][key]
                (row,) = frame[(frame.method == label) & (frame.statistic == title)].to_dict("records")
                if math.isnan(p):
                    assert document["holm"] is None
                    continue
                assert document["holm"] == pytest.approx(p)
                assert row["holm"] == pytest.approx(p)
                if lead := found["leaders"].get(key):
                    pair = {label, truth.racing[0]}
                    if lead["leading"] in pair and (other := (pair - {lead["leading"]}).pop()) in lead["versus"]:
                        assert lead["versus"][other]["holm"] == pytest.approx(p)
                if corrected := re.search("Holm (.+)", cell.ends):
                    assert corrected[1] == "< .001" or abs(float(corrected[1]) - p) < 6e-4
                    assert corrected[0].replace("<", "$<$") in table
    for key in ("avg", "std", "worst"):
        assert (found["leaders"].get(key) or {"best": None})["best"] == truth.best(key)
    assert found.best == truth.best("avg")


def latex_of(sheet: Any) -> str:
    from equipoise.report.page import latex_sheet

    return latex_sheet(sheet)


def check_legend(found: Comparison, truth: Truth) -> None:
    text = " ".join(sheets(found)[0].explanations)
    named = re.search(r"The worst group is (.+?)\.(?: |$)", text)
    wheres = {label: Counter(w for w in truth.each(label, "where") if w) for label in truth.labels}
    if len(truth.groups) > 1 and any(wheres.values()):
        assert named
        told: dict[str, Counter[str]] = {}
        for part in named[1].split("; "):
            who, _, labels = part.partition(" for ")
            counts = Counter()
            for name in re.split(r", | and ", who):
                of = re.fullmatch(r"(.+?) \((\d+) seeds?\)", name)
                counts[of[1] if of else name] = int(of[2]) if of else truth.seeds
            for label in re.split(r", ", labels) if labels else [m for m in truth.labels if wheres[m]]:
                told[label] = counts
        for label, counts in wheres.items():
            assert not counts or told[label] == counts
    for group, round_, accuracy in re.findall(
        rf"(?:^|\. )([^.]+?) was not tested in .*?\(last in round (\d+), at ({NUMBER}){PERCENT}\)", text
    ):
        last = [
            r for h in truth.study.histories for r in h.records if group in r["groups"] and r["round"] == int(round_)
        ]
        assert any(near(accuracy, 100 * r["groups"][group]["accuracy"]) for r in last)
    if truth.seeds > 1:
        assert f"±: half of the 95{PERCENT} interval over {truth.seeds} seeds (Student's t)." in text
    else:
        assert ("±" in text) == bool(truth.draws)
    evaluated = [[bool(r["groups"]) for r in h.records] for h in truth.study.histories]
    shown = min(truth.last, max(map(sum, evaluated)))
    last = "after the last round" if all(of[-1] for of in evaluated) else "after the last evaluated round"
    assert (f"mean over the last {shown} evaluated rounds" if shown > 1 else last) in sheets(found)[0].caption


def check_limits(texts: Sequence[str], truth: Truth) -> None:
    origin, histories = truth.study.origin, truth.study.histories
    text = " ".join(texts)
    assert ("small sets that come with Equipoise" in text) == (origin == "embedded")
    draws = {(h.meta.get("data") or {}).get("rows") for h in histories}
    if truth.seeds > 1 and len(truth.labels) > 1:
        assert ("which samples are for testing" in text) == (origin == "own" and len(draws) > 1)
        assert ("the draw of the data" in text) <= (origin == "embedded")
        if origin in ("python", "sites"):
            assert ("the first model" in text) == (origin == "python" and len({h.meta["first"] for h in histories}) > 1)
    if found := re.search(rf"(\d) seeds: half of the 95 % interval is ({NUMBER}) standard deviations", text):
        assert int(found[1]) == truth.seeds
        assert near(found[2], stats.t.ppf(0.975, truth.seeds - 1) / math.sqrt(truth.seeds))
    if found := re.search(r"(\S+) has the lowest STD and the lowest average", text):
        lowest = min(std for m in truth.racing if m not in truth.failed and (std := truth.mean(m, "std")) is not None)
        assert truth.mean(found[1], "std") == pytest.approx(lowest, abs=1e-9)


def check_captions(found: Comparison, truth: Truth) -> None:
    histories, parts = truth.study.histories, parts_of_captions(found)
    texts = [
        caption("spread", parts),
        *(text for sheet in over_clients(found) for text in sheet.explanations),
    ]
    texts += every_client(found).explanations if every_client(Comparison.of(found)) else []  # type: ignore[union-attr]
    for text in texts:
        if " tested " not in text and "predicts with, on" not in text:
            continue
        if truth.study.origin == "sites":
            assert "on the test samples of its own site" in text
        elif histories[0].meta["client_tests"] or len(histories[0].client_names) == len(
            set(histories[0].client_groups)
        ):
            assert "on test samples of its own" in text
        else:
            assert "on the test set of its group" in text
    assert ("95\u00a0% intervals over the seeds" in caption("convergence", parts)) == (truth.seeds > 1)


def check(study: Study) -> None:
    found, truth = Comparison.of(study.histories), Truth(study)
    truth.said = {key: leader["leading"] for key, leader in found["leaders"].items()}
    check_verdict(verdict(found), truth)
    check_evidence(evidence(found), truth)
    check_limits(limits(found), truth)
    check_captions(found, truth)
    if truth.groups:
        check_table(found, truth)
        check_one_p(found, truth)
        check_legend(found, truth)
    assert latex(found).count("{") == latex(found).count("}")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(studies())
def test_every_sentence_is_true(study: Study) -> None:
    check(study)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(studies())
def test_every_sentence_of_many_runs_is_true(study: Study) -> None:
    check(study)


# --- the commands
class Asked(BaseException):
    """The configurations that a command line asks for."""


def asked(line: str, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """What the program would run on this line; it stops before that."""

    def stop(configs: Any, *_: Any, **__: Any) -> None:
        raise Asked(configs if isinstance(configs, list) else [configs])

    program, *words = shlex.split(line)
    assert program == "equipoise"
    with monkeypatch.context() as patch:
        patch.setattr(directory, "check", stop)
        patch.setattr(plan, "compare", stop)
        with pytest.raises(Asked) as found:
            get_command(cli.app).main(words, standalone_mode=False)
    return list(found.value.args[0])


BY_NAME = st.sampled_from([0.5, "photo=0.3", "0.9, street=0.3"])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "rounds": st.integers(1, 50),
        "batch_size": st.integers(1, 64),
        "lr": st.sampled_from([0.1, 1e-5, "step(0.1, every=10, gamma=0.5)"]),
        "epochs": st.integers(1, 4),
        "participation": st.sampled_from([0.3, 1.0]),
        "availability": BY_NAME,
        "joins": st.sampled_from([2, "photo=1"]),
        "dropout": BY_NAME,
        "quorum": st.just(0.3),
        "norm_limit": st.just(50.0),
        "measures": st.sampled_from(["f1, ece", "auc", "rates"]),
        "network": st.just("mlp"),
        "network_options": st.just({"hidden": [8, 4]}),
        "momentum": st.just(0.5),
        "precision": st.just("bf16"),
        "clip": st.just(2.0),
    },
)
ATTACKED = st.sampled_from(
    [{}, {"attack": "alie", "attackers": 0.2}, {"attack": "sign-flip", "attackers": "photo=0.5"}]
)
VALIDATED = st.sampled_from(
    [{}, {"validation": 0.2, "select": "best-validation"}, {"validation": 0.2, "patience": 3, "stop_on": "loss"}]
)
METHODS = st.lists(
    st.sampled_from(["fedavg", "fedprox(mu=0.1)+fedheal", "qffl(q=2.5)", "afl", "standalone", "centralised"]),
    min_size=1, max_size=3, unique=True,
)  # fmt: skip
SCENES = st.sampled_from([
    {"scenario": "digits"}, {"scenario": "digits", "scenario_options": {"clients": 8}},
    {"scenario": "digits-label-skew"}, {"scenario": "own", "scenario_options": {"clients": 3, "alpha": 1.5}},
])  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of people without sites."""
    path = tmp_path_factory.mktemp("own data") / "people.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "label", "group"])
        writer.writerows([[k * 7 % 40 + 0.5, "yes" if k * 7 % 40 > 19 else "no", "fm"[k // 3 % 2]] for k in range(80)])
    return path


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(METHODS, st.integers(1, 3), OPTIONS, ATTACKED, VALIDATED, SCENES)
def test_the_command_is_that_of_the_runs(
    table: Path, monkeypatch: pytest.MonkeyPatch, methods: list[str], seeds: int, options: dict[str, Any],
    attacked: dict[str, Any], validated: dict[str, Any], scene: dict[str, Any],
) -> None:  # fmt: skip
    """Read by the program itself, it asks for the same configurations."""
    chosen = options | attacked | validated | scene
    chosen |= {"data": str(table)} if scene["scenario"] == "own" else {}
    chosen.pop("network_options" if "network" not in chosen else "", None)
    if scene["scenario"] == "own":
        for name in ("availability", "joins", "dropout", "attackers"):
            chosen.pop(name if isinstance(chosen.get(name), str) else "", None)
        chosen.pop("attack" if "attackers" not in chosen else "", None)
    configs = [configure(method, seed=seed, **chosen) for method in methods for seed in range(seeds)]
    runs = [
        History(
            [{"round": 0}],
            {
                "method": c.method,
                "label": c.label,
                "seed": c.seed,
                "scenario": c.scenario,
                "config": {k: v for k, v in c.table().items() if v is not None},
            },
        )
        for c in configs
    ]
    again = [config for line in commands(runs) for config in asked(line, monkeypatch)]
    assert {(c.method, c.seed): c for c in again} == {(c.method, c.seed): c for c in configs}


@given(
    st.sampled_from(["fedavg", "scaffold+fedheal", "fedprox(mu=0.5)"]),
    st.integers(1, 90),
    st.sampled_from([0.1, "cosine(0.1, warmup=5)"]),
    st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_the_command_of_real_sites_is_that_of_their_app(
    method: str, rounds: int, lr: float | str, secure: bool
) -> None:
    pytest.importorskip("flwr")
    from equipoise.flower.deploy.project import overrides
    from equipoise.flower.settings import AppSettings

    made = AppSettings(method=method, rounds=rounds, lr=lr, secure=secure, epochs=3, clip=1.5)
    config = {**made.config(), "method": method, "label": method}
    (line,) = commands([History([{"round": 0}], {"method": method, "config": config})])
    words = shlex.split(line)
    group: Any = get_command(cli.app)
    told = group.commands["flower"].commands["run"].make_context("run", words[3:]).params
    assert words[:3] == ["equipoise", "flower", "run"]
    settings_ = AppSettings.of(overrides(told["config"], made.table()))
    assert {k: v for k, v in settings_.config().items() if k != "run_dir"} == made.config()
