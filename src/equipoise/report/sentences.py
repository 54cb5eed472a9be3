"""What a comparison shows and what it cannot show, in English: captions, legends, the verdict, the limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.metrics.columns import COLLABORATION, PARITY
from equipoise.metrics.statistics import holm
from equipoise.report.formatting import PERCENT, difference, number, plural
from equipoise.report.provenance import data_digest, environment
from equipoise.report.statistics import Comparison, Run, columns_of, tables

if TYPE_CHECKING:
    from equipoise.federation.history import History

Numbers = Mapping[str, Any]


def caption(comparison: Numbers) -> str:
    """What the numbers of a comparison are, in one sentence."""
    last = f"the last {comparison['averaged']} evaluated rounds" if comparison["averaged"] > 1 else "the last round"
    what = f"{comparison['title']} of the global model{_on(comparison)} in percent"
    return f"{what}, mean over {last}."


def legend(comparison: Numbers) -> list[str]:
    """What the columns of a table are, a sentence each."""
    several = len(comparison["seeds"])
    text = [column.explanation for column in columns_of(comparison) if column.explanation]
    if comparison["measure"] != "accuracy":
        if max(method["pooled"]["n"] for method in comparison["methods"]) > 1:
            of = f" and {several} seeds" if several > 1 else ""
            text.append(f"±: standard deviation (ddof 0) over these rounds{of}, pooled as in FedISM+.")
        return text
    return [*text, *_over_seeds(several)]


def collaboration_caption(comparison: Numbers) -> str:
    """What the numbers about contribution and reward are, in a sentence."""
    return f"Collaborative fairness{_on(comparison['collaboration'])}: what every client gets for what it contributes, after the last round."


def collaboration_legend(comparison: Numbers) -> list[str]:
    """What the columns about contribution and reward are, a sentence each."""
    return [
        "fairness: 100 times the Pearson correlation over clients between the accuracy each reaches alone and that of "
        "the model it gets; Spearman: 100 times that of their ranks.",
        "max, mean, min: accuracy of the clients' own models in percent; gain: mean difference to training alone, in "
        "points; worse off: clients for which it is negative.",
        "BCF: percentage of clients that are better off than alone, and whose reward is at most halfway from their "
        "contribution to the best reward; yes: all.",
        "down, up: bytes per client and round in percent of the whole model.",
        *(column.explanation for column in COLLABORATION if column.explanation),
        *_over_seeds(len(comparison["collaboration"]["seeds"])),
    ]


def parity_caption(comparison: Numbers) -> str:
    """What the numbers about the treatment of groups are, in a sentence."""
    return f"Group fairness{_on(comparison['group_fairness'])}: how differently the global model treats the groups, over the last rounds."


def parity_legend(comparison: Numbers) -> list[str]:
    """What the columns about the treatment of groups are, and what to know about them, a sentence each."""
    return [
        "Differences in points between the best and the worst group, lower is fairer: accuracy gap, of the accuracy; "
        "equal opportunity, of the true positive rate; equalised odds, the larger of those of the true and the false positive "
        "rate; demographic parity, of the share of samples predicted as the class.",
        *(column.explanation for column in PARITY if column.explanation),
        *comparison["group_fairness"]["notes"],
        *_over_seeds(len(comparison["group_fairness"]["seeds"])),
    ]


def _on(found: Numbers) -> str:
    """The scenario, where it is known."""
    return f" on {found['scenario']}" if found["scenario"] else ""


def _over_seeds(seeds: int) -> list[str]:
    return [f"±: standard deviation over {seeds} seeds."] if seeds > 1 else []


def verdict(comparison: Numbers) -> str:
    """What a comparison shows, in plain language and without more certainty than the seeds allow."""
    methods, seeds = comparison["methods"], len(comparison["seeds"])
    if all(method["avg"]["mean"] is None for method in methods):
        return "No method was evaluated on all groups in the last rounds, so there is nothing to compare yet."
    if len(methods) == 1:
        text, tests = _of_one(methods[0]), list[float]()
    else:
        text, tests = _of_several(methods)
        text += _objections(comparison)
    text += _rewards(comparison)
    if seeds == 1:
        other = "another can reverse the order" if len(methods) > 1 else "another can give other numbers"
        return f"{text} This is one seed, and one seed proves nothing: {other}. Run at least three."
    if seeds == 2 and tests:
        return f"{text} Two seeds are too few to assess a difference; run at least three."
    if any(p >= 0.05 for p in tests):
        return f"{text} With {seeds} seeds, a difference with p above 0.05 cannot be distinguished from chance."
    return text


def _of_one(method: dict[str, Any]) -> str:
    groups = {group: accuracy["mean"] for group, accuracy in method["groups"].items()}
    text = f"{method['method']} reaches {method['avg']['mean']:.2f}{PERCENT} on average over {plural(len(groups), 'group')}"
    if len(groups) == 1:
        return f"{text}."
    low = min(groups, key=lambda group: groups[group])
    return (
        f"{text}, with a standard deviation of {number(method['std']['mean'])} points between them; "
        f"the worst is {low} at {groups[low]:.2f}{PERCENT}."
    )


def _of_several(methods: list[dict[str, Any]]) -> tuple[str, list[float]]:
    """Sentences about the lowest STD and the best worst group, and the p-values they quote."""
    first, groups = methods[0], plural(len(methods[0]["groups"]), "group")
    sentences: list[str] = []
    tests: list[float] = []

    def against(method: dict[str, Any], key: str, unit: str) -> str:
        if method is first or first[key]["mean"] is None:
            return ""
        text = f", against {first[key]['mean']:.2f}{unit} for {first['method']}"
        corrected = _holm(methods[1:], key)[methods.index(method) - 1] if len(methods) > 2 else None
        if tested := difference(method["versus"][key], corrected):
            tests.append(method["versus"][key]["p"] if corrected is None else corrected)
            return f"{text} (paired difference {tested})"
        return text

    fairest = _extreme(methods, "std", min)
    kindest = _extreme(methods, "worst", max) if len(first["groups"]) > 1 else None
    if fairest is not None:
        who = (
            f"No method is fairer than {first['method']}" if fairest is first else f"{fairest['method']} is the fairest"
        )
        std = fairest["std"]["mean"]
        sentences.append(
            f"{who}: its accuracy varies least over {groups}, by {std:.2f} points (STD){against(fairest, 'std', '')}."
        )
    if kindest is not None:
        who = "It also" if kindest is fairest else kindest["method"]
        worst = kindest["worst"]["mean"]
        sentences.append(
            f"{who} serves the worst group best, at {worst:.2f}{PERCENT}{against(kindest, 'worst', PERCENT)}."
        )
    if fairest is not None and (more := against(fairest, "avg", PERCENT)):
        whose = "Its" if kindest is fairest else "The"
        avg, reference = fairest["avg"]["mean"], first["avg"]["mean"]
        of_whom = "" if kindest is fairest else f" of {fairest['method']}"
        how = "the same" if abs(avg - reference) < 0.005 else "higher" if avg > reference else "lower"
        sentences.append(f"{whose} average accuracy{of_whom} is {how}: {avg:.2f}{PERCENT}{more}.")
    if not sentences:
        top = _extreme(methods, "avg", max) or first
        sentences.append(f"{top['method']} is the most accurate, at {top['avg']['mean']:.2f}{PERCENT} on average.")
    return " ".join(sentences), tests


def _holm(methods: list[dict[str, Any]], key: str) -> list[float]:
    """The p-values of a statistic, corrected for the number of methods."""
    values = [method["versus"][key]["p"] for method in methods]
    return [float(p) for p in holm([math.nan if p is None else p for p in values])]


def _objections(comparison: Numbers) -> str:
    """The measures by which another method serves the worst group best."""
    kindest = _extreme(comparison["methods"], "worst", max)
    measures: dict[str, list[str]] = {}
    for other in tables(comparison)[1:]:
        best = _extreme(other["methods"], "worst", max)
        if len(other["methods"][0]["groups"]) > 1 and best and kindest and best["method"] != kindest["method"]:
            what = other["title"].split(" (")[0]
            measures.setdefault(best["method"], []).append(what[0].lower() + what[1:])
    return "".join(f" By {' and '.join(of)}, {method} serves the worst group best." for method, of in measures.items())


def _rewards(comparison: Numbers) -> str:
    """The method whose rewards follow contributions best, and the reward of its best client."""
    methods = comparison["collaboration"]["methods"] if comparison["collaboration"] else []
    fairest = _extreme([method for method in methods if not method["alone"]], "fairness", max)
    if fairest is None:
        return ""
    highest = _extreme(methods, "max", max) or fairest
    top, best = fairest["max"]["mean"], highest["max"]["mean"]
    text = f" What clients get follows what they contribute best with {fairest['method']}"
    if sum(method["fairness"]["mean"] is not None for method in methods if not method["alone"]) == 1:
        text = f" With {fairest['method']}, what clients get follows what they contribute"
    text += f": fairness {fairest['fairness']['mean']:.2f} of 100, and {top:.2f}{PERCENT} for the best client"
    if highest is fairest:
        return f"{text}{', the highest of all methods' if len(methods) > 1 else ''}."
    return f"{text}, against {best:.2f}{PERCENT} with {highest['method']}."


def _extreme(methods: list[dict[str, Any]], key: str, choose: Callable[..., Any]) -> dict[str, Any] | None:
    known = [method for method in methods if method[key]["mean"] is not None]
    extreme: dict[str, Any] | None = choose(known, key=lambda method: method[key]["mean"], default=None)
    return extreme


def limits(histories: Sequence[History] | Comparison) -> list[str]:
    """What the numbers cannot show, a sentence each: only what applies to these runs."""
    return [*_limits(Comparison.of(histories))]


def _limits(comparison: Comparison) -> Iterator[str]:
    histories = comparison.histories
    n, methods = len(comparison["seeds"]), comparison["methods"]
    if n == 1:
        yield "One seed: no difference here can be distinguished from chance, and no test is possible."
    elif n < 5:
        wide = {2: "9.0", 3: "2.5", 4: "1.6"}[n]
        yield (
            f"{n} seeds: the 95 % interval is ± {wide} standard deviations wide, so only large differences are significant. "
            "A p-value above 0.05 does not mean that methods are equal."
        )
    if len(methods) > 1:
        yield (
            "Seeds change the draw of the data, the first model and the order of samples. The results do not cover other "
            "data, networks or hyper-parameters; a method tuned longer than its rival appears better than it is."
        )
    if all(history.meta.get("config") and not history.meta["config"].get("data") for history in histories):
        yield (
            "The data are the small sets that come with Equipoise, made to compare methods in minutes: the accuracies and "
            "the order of methods may differ on another task."
        )
    rising = [label for label, seeds in comparison.runs.items() if _rises(list(seeds.values()))]
    if rising:
        yield (
            f"Still rising in the end, by more than 1 point from the five rounds before to the last five: "
            f"{', '.join(rising)}. More rounds may change the order."
        )
    known = [method for method in methods if method["std"]["mean"] is not None and method["avg"]["mean"] is not None]
    if len(known) > 1:
        even = min(known, key=lambda method: method["std"]["mean"])
        if even["avg"]["mean"] < max(method["avg"]["mean"] for method in known) - 1 and even["avg"]["mean"] == min(
            method["avg"]["mean"] for method in known
        ):
            yield (
                f"{even['method']} has the lowest STD and the lowest average: a model that is poor on all groups also has "
                "a low STD."
            )
    for seed in comparison["seeds"]:
        digests = {digest for run in histories if run.seed == seed and (digest := data_digest(run))}
        if len(digests) > 1:
            yield f"With seed {seed} not all runs had the same data: their SHA-256 differ. Compare them with care."
    if any(
        ", " in text for name, text in environment(histories) if not name.startswith(("data", "system", "computed"))
    ):
        yield "Not all runs were made with the same source and versions, see Environment."


def _rises(runs: Sequence[Run]) -> bool:
    accuracies = [run.groups["accuracy"][1] for run in runs]
    if any(len(rounds) < 10 for rounds in accuracies):
        return False
    return float(np.mean([100 * (a[-5:].mean() - a[-10:-5].mean()) for a in accuracies])) > 1
