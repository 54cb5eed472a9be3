"""What a comparison shows and what it cannot show, in English: captions, legends, the verdict, the limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from equipoise.metrics.columns import COLLABORATION, PARITY
from equipoise.report import notes
from equipoise.report.formatting import PERCENT, number, p_value, plural
from equipoise.report.provenance import data_digest, environment
from equipoise.report.statistics import Comparison, Run, columns_of, tables

if TYPE_CHECKING:
    from equipoise.federation.history import History

Numbers = Mapping[str, Any]


def caption(comparison: Numbers) -> str:
    """What the numbers of a comparison are, in one sentence."""
    return f"{comparison['title']} of the global model{_on(comparison)} in percent, {when(comparison)}."


def when(comparison: Numbers) -> str:
    """The rounds that tables and figures are of."""
    n = comparison["averaged"]
    return f"mean over the last {n} evaluated rounds" if n > 1 else f"after {comparison['exported']}"


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
    return f"Collaborative fairness{_on(comparison['collaboration'])}: what every client gets for what it contributes, after {_last(comparison)}."


def _last(comparison: Numbers) -> str:
    """The round after which clients' own models are shown."""
    return "the last round" if comparison["averaged"] > 1 else str(comparison["exported"])


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
    last = "over the last rounds" if comparison["averaged"] > 1 else f"after {comparison['exported']}"
    return f"Group fairness{_on(comparison['group_fairness'])}: how differently the global model treats the groups, {last}."


def parity_legend(comparison: Numbers) -> list[str]:
    """What the columns about the treatment of groups are, and what to know about them, a sentence each."""
    return [
        "Differences in points between the best and the worst group, lower is fairer: accuracy gap, of the accuracy; "
        "equal opportunity, of the true positive rate; equalised odds, the larger of those of the true and the false positive "
        "rate; demographic parity, of the share of samples predicted as the class.",
        *(column.explanation for column in PARITY if column.explanation),
        *_gaps(comparison["group_fairness"]["methods"]),
        *comparison["group_fairness"]["notes"],
        *_over_seeds(len(comparison["group_fairness"]["seeds"])),
    ]


def _gaps(methods: Sequence[Numbers]) -> Iterator[str]:
    """The intervals of the gaps of runs with one seed."""
    for method in methods:
        known = {column.title: ends for column in PARITY if (ends := (method["intervals"] or {}).get(column.key))}
        if known:
            listed = ", ".join(f"{title}{_interval(*ends)}" for title, ends in known.items())
            yield f"{method['method']}, 95{PERCENT} intervals over the test samples: {listed}."


def _on(found: Numbers) -> str:
    """The scenario, where it is known."""
    return f" on {found['scenario']}" if found["scenario"] else ""


def _over_seeds(seeds: int) -> list[str]:
    return [f"±: standard deviation over {seeds} seeds."] if seeds > 1 else []


def verdict(comparison: Numbers) -> str:
    """What a comparison shows, in plain language and without more certainty than seeds and test samples allow."""
    methods, seeds = comparison["methods"], len(comparison["seeds"])
    if all(method["avg"]["mean"] is None for method in methods):
        return "No method was evaluated on all groups in the last rounds, so there is nothing to compare yet."
    sentences = [*failures(comparison)]
    racing = [method for method in methods if not method["bound"]] or methods
    learned = [method for method in racing if not method["failed"]]
    if len(learned) == 1 < len(racing) and learned[0]["bound"] != "lower":  # which is not judged
        sentences.append(f"Only {learned[0]['method']} is better than guessing with every seed.")
    if len(learned) == 1:
        sentences.append(_of_one(learned[0]))
    elif learned:
        sentences += _of_several(comparison, learned)
        sentences += _by_other_measures(comparison)
    sentences += _rewards(comparison)
    if seeds == 2 and len(learned) > 1:
        sentences.append("Two seeds are too few to assess a difference; run at least three.")
    if seeds == 1 and learned:
        other = "another can reverse the order" if len(methods) > 1 else "another can give other numbers"
        sentences.append(f"This is one seed, and one seed proves nothing: {other}. Run at least three.")
    return " ".join(sentences)


def failures(comparison: Numbers) -> list[str]:
    """A sentence for each method that failed with some seed: its numbers are neither fair nor unfair."""
    found = []
    for method in comparison["methods"]:
        whys: dict[str, list[str]] = {}
        for seed, why in method["failed"].items():
            whys.setdefault(why.split(": ")[0], []).append(seed)
        for kind, seeds in whys.items():
            which = f"seed{'s' * (len(seeds) > 1)} {notes.listed(seeds)}"
            why = method["failed"][seeds[0]].split(": ", 1)[1]
            found.append(
                f"{method['method']}, {which}: {kind} ({why}). Its numbers show neither fairness nor unfairness."
            )
    return found


def _of_one(method: dict[str, Any]) -> str:
    if method["avg"]["mean"] is None:
        return f"{method['method']} was not evaluated on all groups in the last rounds."
    groups = {group: accuracy["mean"] for group, accuracy in method["groups"].items()}
    between = method["intervals"]
    text = (
        f"{method['method']} reaches {method['avg']['mean']:.2f}{PERCENT}"
        f"{_interval(*between['avg']) if between and between['avg'] else ''} on average over {plural(len(groups), 'group')}"
    )
    if len(groups) == 1:
        return f"{text}."
    if None in groups.values():
        return f"{text}, not all of which were tested with every seed."
    low = min(groups, key=lambda group: groups[group])
    of_low = between["groups"][list(groups).index(low)] if between else None
    return (
        f"{text}, with a standard deviation of {number(method['std']['mean'])} points"
        f"{_interval(*between['std']) if between and between['std'] else ''} between them; "
        f"the lowest is {low} at {groups[low]:.2f}{PERCENT}{_interval(*of_low) if of_low else ''}."
    )


def _interval(low: float, high: float, *, sign: bool = False) -> str:
    return f" [{number(low, sign=sign)}, {number(high, sign=sign)}]"


def _against(leader: Numbers, label: str) -> str:
    """How the best method compares with another: the difference, its interval, the p-value, and the seeds it would take."""
    found = leader["versus"][label]
    if found["difference"] is None or found["low"] is None:
        return label
    ends = _interval(found["low"], found["high"], sign=True)
    text = f"{label} ({number(found['difference'], sign=True)}{ends}"
    if found["p"] is not None:
        text += f", p {p_value(found['p'])}"
    if not found["apart"] and found["seeds"] > 1:
        text += f", about {n} seeds" if (n := found["seeds_needed"]) else ", more than 1000 seeds"
    return f"{text})"


CLAIMS: Final = (  # of a column: its value, and the sentences where the best is not, and is, told apart from all others
    (
        "std",
        "{:.2f} points (STD)",
        "No method is shown to be the fairest: the accuracy of {best} varies by {value} over {groups}, and it cannot be told apart "
        "from {others}.",
        "{best} is the fairest: its accuracy varies least over {groups}, by {value}, against {others}.",
    ),
    (
        "worst",
        f"{{:.2f}}{PERCENT}",
        "No method is shown to serve the worst group best: {best} reaches {value} there, and cannot be told apart from {others}.",
        "{best} serves the worst group best, at {value}, against {others}.",
    ),
    (
        "avg",
        f"{{:.2f}}{PERCENT} on average",
        "No method is shown to be the most accurate: {best} reaches {value}, and cannot be told apart from {others}.",
        "{best} is the most accurate, at {value}, against {others}.",
    ),
)


def _of_several(comparison: Numbers, learned: list[dict[str, Any]]) -> list[str]:
    """Sentences about the lowest STD, the best worst group and the average, a winner only where it can be told apart."""
    groups, leaders = plural(len(learned[0]["groups"]), "group"), comparison["leaders"]
    by_label = {method["method"]: method for method in learned}
    seed = "With this seed, " if len(comparison["seeds"]) == 1 else ""
    sentences = []
    for key, value, tied, alone in CLAIMS:
        found = leaders.get(key)
        if not found or (key == "worst" and len(learned[0]["groups"]) == 1):
            continue
        words = {"best": found["best"], "value": value.format(by_label[found["best"]][key]["mean"]), "groups": groups}
        if found["tied"]:
            sentences.append(tied.format(**words, others=_all(found, found["tied"])))
        else:
            sentences.append(seed + alone.format(**words, others=_all(found, found["versus"])))
    if not any(" [" in text for text in sentences):  # no interval is known
        return sentences
    if len(comparison["seeds"]) == 1:
        sentences.append(f"In brackets: the difference and its 95{PERCENT} interval over the test samples.")
    else:
        corrected = " by Holm" * (len(learned) > 2)
        seeds = ", and how many seeds would be needed to tell them apart" * any(" seeds)" in text for text in sentences)
        sentences.append(f"In brackets: the difference, its 95{PERCENT} interval over the seeds, p{corrected}{seeds}.")
    return sentences


def _all(leader: Numbers, labels: Iterable[str]) -> str:
    return notes.listed([_against(leader, label) for label in labels])


def _by_other_measures(comparison: Numbers) -> Iterator[str]:
    """The measures by which another method is shown to serve the worst group best."""
    kindest = comparison["leaders"].get("worst")
    measures: dict[str, list[str]] = {}
    for other in tables(comparison)[1:]:
        found = other["leaders"].get("worst")
        if len(other["methods"][0]["groups"]) < 2 or not found or found["tied"]:
            continue
        if kindest is None or kindest["tied"] or found["best"] != kindest["best"]:
            what = other["title"].split(" (")[0]
            measures.setdefault(found["best"], []).append(what[0].lower() + what[1:])
    for method, of in measures.items():
        yield f"By {' and '.join(of)}, {method} serves the worst group best."


def _rewards(comparison: Numbers) -> Iterator[str]:
    """How closely what clients get follows what they contribute, and the reward of the best client."""
    if not (together := comparison["collaboration"]):
        return
    methods = {m["method"]: m for m in together["methods"] if not m["alone"] and m["fairness"]["mean"] is not None}
    if not methods:
        return

    def of(label: str) -> str:
        return f"{label} {methods[label]['fairness']['mean']:.2f}"

    found = together["leaders"].get("fairness")
    top = {label: f"{m['max']['mean']:.2f}{PERCENT} for the best client" for label, m in methods.items()}
    if len(methods) == 1 or len(together["seeds"]) == 1 or not found:
        values = "; ".join(f"{of(label)}, with {top[label]}" for label in methods)
        yield f"Fairness of contribution and reward, of 100: {values}."
    elif found["tied"]:
        yield (
            f"No method is shown to reward contributions best: {of(found['best'])} of 100, with {top[found['best']]}, cannot be "
            f"told apart from {_all(found, found['tied'])}."
        )
    else:
        yield (
            f"What clients get follows what they contribute best with {found['best']}: fairness "
            f"{methods[found['best']]['fairness']['mean']:.2f} of 100, with {top[found['best']]}, against "
            f"{_all(found, found['versus'])}."
        )


def limits(histories: Sequence[History] | Comparison) -> list[str]:
    """What the numbers cannot show, a sentence each: only what applies to these runs."""
    return [*_limits(Comparison.of(histories))]


def _limits(comparison: Comparison) -> Iterator[str]:
    histories = comparison.histories
    n, methods = len(comparison["seeds"]), comparison["methods"]
    if n == 1:
        yield (
            "One seed: intervals are over the test samples of these models, and do not cover another draw of the data, another "
            "first model or another order of samples."
        )
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
    competing = [history for history in histories if not history.bound]
    lengths = sorted({len(history) for history in competing})
    if len(lengths) > 1 and len({history.label for history in competing}) > 1:
        yield (
            f"Not all runs trained for as many rounds ({lengths[0]} to {lengths[-1]}): a difference between methods may come from "
            "the rounds."
        )
    rising = [label for label, seeds in comparison.runs.items() if _rises(list(seeds.values()))]
    if rising:
        yield (
            f"Still rising in the end, by more than 1 point from the five rounds before to the last five: "
            f"{', '.join(rising)}. More rounds may change the order."
        )
    racing = [m for m in methods if not m["failed"] and not m["bound"]]
    known = [m for m in racing if m["std"]["mean"] is not None and m["avg"]["mean"] is not None]
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
        runs = [run for run in histories if run.seed == seed]
        digests = {digest for run in runs if (digest := data_digest(run))}
        read = {tuple(sorted(files.items())) for run in runs if (files := run.meta.get("contents"))}  # the user's files
        if len(digests) > 1 or len(read) > 1:
            yield f"With seed {seed} not all runs had the same data: their SHA-256 differ. Compare them with care."
    if any(
        ", " in text for name, text in environment(histories) if not name.startswith(("data", "system", "computed"))
    ):
        yield "Not all runs were made with the same source and versions, see Environment."


def _rises(runs: Sequence[Run]) -> bool:
    accuracies = [run.accuracies(5)[1] for run in runs]
    if any(len(rounds) < 10 for rounds in accuracies):
        return False
    return float(np.mean([100 * (a[-5:].mean() - a[-10:-5].mean()) for a in accuracies])) > 1
