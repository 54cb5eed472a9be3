"""Sentences about limits of the comparison of runs; every table and page shows them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import numpy as np

from equipoise.metrics.measures import Measure
from equipoise.privacy.suppression import enough
from equipoise.records.criteria import COLLABORATION, CRITERIA, LAST, LEAVE_OUT, ORACLE
from equipoise.records.history import History
from equipoise.records.meta import LEAK, OF_DATA, REPEATED, TOGETHER, Tuned
from equipoise.report.document import Measured, Numbers, means_of
from equipoise.report.formatting import brief, number
from equipoise.system.environment import code, kind, release
from equipoise.system.grouping import grouped
from equipoise.system.suggestions import some
from equipoise.system.text import Said, key_of, noun, plural

Runs = Mapping[str, Mapping[int, History]]  # by label and seed
NumbersOfRuns = Mapping[str, Mapping[int, Numbers]]

_CONTRIBUTIONS: Final = {  # the contributions that a method used
    "standalone_val": "measured on the server's validation data; the table measures them on the test set",
    "standalone_test": "measured on the test set, which training should not use",
    "given": "that the user gave; the table uses them as the accuracies reached alone",
}
FOLLOWS: Final = "–: this number, taken from all, would tell of fewer than {}."
UNPROTECTED: Final = "This protects nobody for certain: what is not shown may follow from other numbers, and the files of a run hold exact counts."
NOTHING: Final = "Nothing was tuned: {}, which may favour one of the methods. `--tune 16` (tune=16 in Python) chooses both for each on held-out training samples."
UNTUNED: Final = "untuned"  # the key of that sentence
UNEQUAL: Final = "unequal"  # of one about methods with fewer seeds than others
CHANGED: Final = "changed"  # of one about settings that are not those that were chosen
ALIKE: Final = "the learning rate is the same for all, and hyper-parameters are as given"
AS_GIVEN: Final = "learning rates and hyper-parameters are as given"
FEW_CLIENTS: Final = 5  # clients: a correlation of fewer is unreliable


def run_notes(runs: Runs) -> Iterator[str]:
    """Warnings about single runs, and differences between runs."""
    histories = [run for _, run in _each(runs)]
    rounds = max(map(len, histories))
    yield from leaks(histories)
    yield from repeated(histories)
    for label, seeds in runs.items():
        yield from warnings(label, seeds.values(), rounds)
    all_seeds = {run.seed for run in histories}
    for label, seeds in runs.items():
        if missing := sorted(all_seeds - set(seeds)):
            text = f"{label} has no run with seed {', '.join(map(str, missing))}: its numbers are of fewer seeds than those of others."
            yield Said(text, UNEQUAL)
    yield from never_trained(histories)
    yield from attacks(runs)
    for part in (never_tested, unmeasured, without_model):
        yield from (f"{label}, seed {run.seed}: {text}" for label, run in _each(runs) for text in part(run))
    together = [run for run in histories if run.sharing.federated and len(run.groups) == 1 and not run.spreads]
    if together and (n := max(len(run.client_names) for run in together)) > 1:
        yield (
            f"All {n} clients are tested together, with one model on one test set: how they differ is not known. To know it, give each test samples "
            "of its own (client_tests in Python), or groups."
        )
    if len({frozenset(run.groups) for run in histories}) > 1:
        yield "Not all runs were evaluated on the same groups; AVG, STD and worst are not comparable between them."
    yield from mixed_machines(histories)
    yield from releases(histories)


def leaks(histories: Iterable[History]) -> list[str]:
    """Columns of the user's data that give the label away, each once, as the header of a run states them."""
    lines = (line for run in histories for line in run.meta.get("header") or () if key_of(line) == LEAK)
    return [Said(text, LEAK) for text in dict.fromkeys(line.removeprefix(OF_DATA) for line in lines)]


def repeated(histories: Iterable[History]) -> list[str]:
    """That rows are not independent, where some are of one person."""
    stated = {key_of(line): line for run in histories for line in run.meta.get("header") or ()}
    return [stated[text.key] for text in (REPEATED, TOGETHER) if text.key in stated][:1]


def never_trained(histories: Iterable[History]) -> Iterator[str]:
    """Clients of a simulation that were in no round of any run: away, or never selected."""
    federated = [run for run in histories if run.sharing.federated]
    names = dict.fromkeys(name for run in federated for name in run.client_names)
    if absent := [name for name in names if all(name in run.untrained for run in federated)]:
        count = f"{len(absent)} of {plural(len(names), 'client')}"
        yield f"{count} trained in no round: {some(absent)}. No federated model has learnt from {'it' if len(absent) == 1 else 'them'}."


def _each(runs: Runs) -> Iterator[tuple[str, History]]:
    """Every run with the label of its method."""
    return ((label, run) for label, seeds in runs.items() for run in seeds.values())


def bound_notes(runs: Runs, methods: Sequence[Measured], measure: Measure) -> Iterator[str]:
    """What rows are that are no method, and whether they bound the methods here."""
    average = means_of([method for method in methods if not method["failed"]], "avg")
    racing = {m["method"]: average[m["method"]] for m in methods if not m["bound"] and m["method"] in average}
    for label, run in ((label, next(iter(seeds.values()))) for label, seeds in runs.items()):
        if not run.sharing.federated:
            yield from _bound_note(label, run, racing, average.get(label), measure)


def _bound_note(
    label: str, run: History, racing: Mapping[str, float], average: float | None, measure: Measure
) -> Iterator[str]:
    upper = not run.sharing.clients
    highest = max if upper == (measure.better == "higher") else min
    rival = highest(racing, key=lambda method: racing[method], default="") if average is not None else ""
    crossed = average is not None and bool(rival) and highest(average, racing[rival]) != average
    own = {*run.client_groups} <= {*run.groups, *run.small_groups}  # a group is one of clients
    drawn = any(len(r.get("ids", ())) < len(run.client_names) for r in run.records)
    model = "one model trained on all data in one place" if upper else "what each client reaches alone"
    model += ", in the rounds in which it took part" * (drawn and not upper)
    model += " (a group's number is the mean over its clients, each with its own model)" * (own and not upper)
    article = f"{'an' if upper else 'a'} {run.sharing} bound, " * ((upper or own) and not crossed)
    yield f"{label} is {article}{model}: no method of federated learning, so in no verdict and no test."
    if not upper and not own:
        where = " What clients reach on their own samples is in the table over clients."
        yield (
            f"A group's number of {label} is no lower bound: it is the mean over the models of all clients, each tested on the group's samples "
            f"of all clients.{where * bool(run.meta.get('client_tests'))}"
        )
    elif crossed:
        side, consequence = ("below" if upper else "above", f"it is no {run.sharing} bound")
        if measure.better == "lower":
            side, consequence = f"{'worse' if upper else 'better'} than", "it bounds nothing"
        reason = ": its learning rate and rounds are not chosen for it" * upper
        both = " and ".join(number(value, measure.digits) for value in (average, racing[rival]))
        yield f"Here {label} is {side} {rival} (AVG {both}), so {consequence}{reason}."


def never_tested(run: History) -> Iterator[str]:
    """Real sites that have no number: with too few test samples, without a score that they send, or away whenever models were tested."""
    columns = run.client_table()[1].T if run.at_sites else ()
    trained = {m for record in run.records if "clients" in record for m in record.get("ids", ())}
    few = np.zeros(len(columns), dtype=bool) if run.client_sizes is None else run.tested_on_few
    untested = [m for m, column in enumerate(columns) if not np.isfinite(column).any()]
    reasons = ["few" if few[m] else "trained" if m in trained else "away" for m in untested]
    for reason, sites in grouped(zip(reasons, untested, strict=True)).items():
        have, were, pronoun = ("have", "were", "them") if len(sites) > 1 else ("has", "was", "it")
        ends = {
            "few": f"{have} too few test samples to show (n < {run.least_group}), so no {run.main.noun} here is that of such a site alone",
            "trained": f"trained, but sent no score of a test: no {run.main.noun} here is that of such a site",
            "away": f"{were} never tested, so no number here is about {pronoun}",
        }
        yield f"{some([run.client_names[m] for m in sites])} {ends[reason]}."


def unmeasured(run: History) -> Iterator[str]:
    """Real sites of which scores do not count, or not all of them."""
    counts = Counter(reason for record in run.records for reason in record.get("unmeasured", {}).items())
    for (name, reason), n in counts.items():
        yield f"in {n} of {len(run.records)} rounds {name} was not measured as others were: it {reason}."


def without_model(run: History) -> Iterator[str]:
    """Real sites that were away at the end of their run."""
    if names := list(run.meta.get("without_model") or ()):
        are, pronoun = ("they are", "them") if len(names) > 1 else ("it is", "it")
        yield f"{some(names)} did not get the model at the end of the run. When {are} back, the command that began the run, given again, sends it to {pronoun}."


def size_notes(runs: Runs, last: int) -> Iterator[str]:
    """Groups that were tested on fewer samples in the last rounds than in others, as where some of several sites are away."""
    for label, run in _each(runs):
        evaluated = [record for record in run.records if record.get("groups")]
        for group in run.groups:
            sizes = {r["round"]: r["groups"][group]["n"] for r in evaluated if r["groups"].get(group, {}).get("n")}
            most = max(sizes.values(), default=0)
            shown = [record["round"] for record in evaluated[-last:]]
            if fewer := [t for t in shown if sizes.get(t, most) < most]:
                missing = {most - sizes[t] for t in fewer}  # of few it would tell how many an absent site has
                tells = enough(min(missing), run.least_group)
                down, top = (f" (down to {most - max(missing)})", f" ({most})") if tells else ("", "")
                rounds = f"in {len(fewer)} of {len(shown)} shown rounds"
                yield f"{label}, seed {run.seed}: {rounds} {group} was tested on fewer samples{down} than in others{top}."


def attacks(runs: Runs) -> Iterator[str]:
    """Who attacks in the runs of which methods, and what is measured then."""
    texts: dict[str, list[str]] = {}
    for label, run in _each(runs):
        if attack := run.meta.get("hostile"):
            clients = some([run.client_names[m] for m in attack["clients"]])
            text = f"with seed {run.seed} these clients attack ({attack['attack']}): {clients}"
            texts.setdefault(text, []).append(label)
    yield from (f"In runs of {listed(labels)} {text}." for text, labels in texts.items())
    if texts:
        yield "Groups are tested with all their test samples; tables of indices over clients leave out those that attack."


def warnings(label: str, runs: Iterable[History], rounds: int) -> Iterator[str]:
    """Warnings about the runs of a method, by what happened to them; ``rounds`` are those of the longest run of all methods."""
    happened = defaultdict[tuple[str, str], list[tuple[int, int]]](list)
    for run in runs:
        planned = int(run.meta.get("rounds") or rounds)
        if run.stopped or len(run) < planned:
            of_planned = f" of {planned}" if len(run) < planned else ""
            end = f"{of_planned} rounds{f': {run.stopped}' if run.stopped else ''}."
            happened["stopped after", end].append((run.seed, len(run)))
        elif len(run) < rounds:
            happened["trained for", f" rounds, and others for up to {rounds}."].append((run.seed, len(run)))
        cosines = [cosine for r in run.records if (cosine := r.get("step_cosine")) is not None]
        if against := sum(cosine < 0 for cosine in cosines):
            end = f" of {len(cosines)} rounds: the cosine between its step and that mean is negative."
            happened["steps away from the mean of the clients' updates in", end].append((run.seed, against))
        if (best := run.selected_round) is not None:
            end = f", which has the best validation {run.main.noun}."
            happened["exports the model of round", end].append((run.seed, best))
    for (event, end), pairs in happened.items():
        which = f"{noun('seed', len(pairs))} {listed([str(seed) for seed, _ in pairs])}"
        yield f"{label}, {which}, {event} {listed([str(n) for _, n in pairs])}{end}"


def short_notes(evaluated: Mapping[str, Iterable[int]], last: int) -> Iterator[str]:
    """A sentence about methods with runs of fewer than ``last`` evaluated rounds, which are given by label."""
    if short := [label for label, rounds in evaluated.items() if any(0 < n < last for n in rounds)]:
        finding = f"Runs of {listed(short)} have fewer than {last} evaluated rounds"
        yield f"{finding}: their mean is over all of these, from the first on."


def mixed_machines(histories: Iterable[History]) -> Iterator[str]:
    """A sentence if runs, or parts of one, were computed with different processors or libraries, as far as recorded."""
    machines = [machine for run in histories for machine in run.meta.get("machines") or ()]
    kinds = dict.fromkeys(text for machine in machines if (text := kind(machine)))
    if len(kinds) > 1:
        yield f"Computed with different processors or libraries ({'; '.join(kinds)}): the last bits of each step differ, and such differences increase in training."


def releases(histories: Iterable[History]) -> Iterator[str]:
    """A sentence if runs were not computed by one version of Equipoise, this one, as far as recorded."""
    machines = [machine for run in histories for machine in run.meta.get("machines") or ()]
    versions = list(dict.fromkeys(release(machine) or "an earlier one" for machine in machines))
    ours = release(code())
    if len(versions) > 1:
        yield f"Computed by different versions of Equipoise ({'; '.join(versions)}): results may differ between them."
    elif versions and versions != [ours]:
        yield f"Computed by another version of Equipoise ({versions[0]}) than this one ({ours}), which may give other results."


def alone(seeds: Mapping[int, Numbers]) -> bool:
    """Whether the clients of a method receive nothing; by seed, the numbers of `equipoise.metrics.definitions.COLLABORATION`."""
    return all(summary["down"] == 0 for summary in seeds.values())


def equal_rewards(rewards: Mapping[str, Iterable[Numbers]]) -> list[str]:
    """The methods whose rewards do not differ at all; by label, what summaries say of collaboration. So the next three."""
    return [name for name, rows in rewards.items() if any(s["max"] is not None and s["max"] == s["min"] for s in rows)]


def alike(rewards: Mapping[str, Iterable[Numbers]]) -> str:
    """A sentence if rewards do not differ at all."""
    equal, same = equal_rewards(rewards), "all clients have the same accuracy, as they do with one model"
    return f"Fairness of {listed(equal)} is not defined: {same}." if equal else ""


def faint(rewards: Mapping[str, Iterable[Numbers]]) -> str:
    """A sentence if rewards differ by less than two standard errors of a difference, where a correlation may be of noise."""
    texts = []
    for label, summaries in rewards.items():
        if narrow := [s for s in summaries if s["range"] and s["noise"] is not None and s["range"] < s["noise"]]:
            least = min(narrow, key=lambda s: s["range"])
            samples = f"{least['range'] * least['tested'] / 100:.0f} of {least['tested']:,} test samples"
            texts.append(f"{label} {least['range']:.2f} of {least['noise']:.2f} points ({samples})")
    finding = "Rewards differ by less than two standard errors of a difference between accuracies, so their fairness may be noise"
    return f"{finding}: {'; '.join(texts)}." if texts else ""


def measured_alone(rewards: Mapping[str, Iterable[Numbers]]) -> str:
    """A sentence about how exactly it is known what clients reach alone."""
    reached = [s["alone"] for numbers in rewards.values() for s in numbers if s["alone"]["noise"] is not None]
    if not reached:
        return ""
    rounds, spreads = reached[0]["rounds"], [numbers["spread"] for numbers in reached if numbers["spread"] is not None]
    between = f", between which it has a standard deviation of {fmean(spreads):.2f} points" if spreads else ""
    accuracy = "the accuracy after the last round of training alone"
    if rounds > 1:
        accuracy = f"the mean over the last {rounds} rounds of training alone{between}"
    error, span = (fmean(numbers[key] for numbers in reached) for key in ("noise", "range"))
    return f"What a client reaches alone is {accuracy}; its standard error over test samples is {error:.2f} points, and clients span {span:.2f}."


def collaboration_notes(runs: Runs, rewards: NumbersOfRuns) -> Iterator[str]:
    """Warnings about the fairness of contribution and reward."""
    if without := [label for label in runs if label not in rewards]:
        yield f"The standalone accuracies of {listed(without)} are not known: no fairness of contribution and reward."
    n = min((summary["clients"] for seeds in rewards.values() for summary in seeds.values()), default=FEW_CLIENTS)
    if n < FEW_CLIENTS:
        yield f"A correlation over {plural(n, 'client')} is unreliable (over two it is 100 or −100): measure fairness over {FEW_CLIENTS} clients or more."
    summaries = {label: [*seeds.values()] for label, seeds in rewards.items()}
    if equal := equal_rewards(summaries):
        hint = f" Add finetune, as in {equal[0]}+finetune, to compare the clients after local training."
        yield alike(summaries) + hint * (not any("finetune" in label for label in rewards))
    yield from filter(None, (faint(summaries), measured_alone(summaries)))
    every = [run.contribution for _, run in _each(runs) if run.contribution is not None]
    if any(len(set(contribution.tolist())) < 2 for contribution in every):
        yield "All clients reach the same accuracy alone, so their contributions do not differ."
    if nothing := [label for label, seeds in rewards.items() if alone(seeds)]:
        yield f"Clients of {listed(nothing)} receive nothing: their reward is their contribution, so fairness means nothing here."
    yield from _contributions(runs, rewards)


def _contributions(runs: Runs, rewards: NumbersOfRuns) -> Iterator[str]:
    """Which contributions methods used, and of which seeds runs have different ones."""
    rewarding = ((label, run) for label, run in _each(runs) if run.seed in rewards.get(label, ()))
    by = grouped(((run.meta.get("contribution") or {}).get("used"), label) for label, run in rewarding)
    for used in [used for used in _CONTRIBUTIONS if used in by]:
        yield f"{listed([*dict.fromkeys(by[used])])} rewarded contributions {_CONTRIBUTIONS[used]}."
    for seed in sorted({seed for seeds in rewards.values() for seed in seeds}):
        if len({tuple(seeds[seed]["contribution"]) for seeds in rewards.values() if seed in seeds}) > 1:
            yield f"With seed {seed} the runs have different standalone accuracies: compare their fairness with care."


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def class_names(names: Iterable[str]) -> str:
    """Some classes by name: `class a`, or `classes a, b`."""
    classes = [*names]
    return f"class{'es' * (len(classes) > 1)} {', '.join(classes)}"


def parity_notes(runs: Runs, rates: NumbersOfRuns) -> Iterator[str]:
    """Remarks on group fairness; ``rates`` has by label and seed what `History.group_fairness` returned, where not None."""
    every = [gaps for seeds in rates.values() for gaps in seeds.values()]
    rated = [run for label in rates for run in runs[label].values()]
    named = next((names for run in rated if (names := run.classes)), ())

    def name(c: int) -> str:
        return named[c] if c < len(named) else str(c)

    several = max(len(gaps["classes"]) for gaps in every) > 1
    if several:
        yield "Compare one class with all others: --positive CLASS, in Python positive=."
    else:
        yield from dict.fromkeys(positive.sentence for run in rated if (positive := run.positive) is not None)
    least, n = max((run.least_group for run in rated), default=1), len({run.seed for run in rated})
    fewer = "no test sample" if least == 1 else f"fewer than {least} {rated[0].counted}"
    rate = "recall of a worst class" if several else "true positive rate"
    for group, classes in _without_rate(rates, several).items():
        which = class_names(map(name, sorted(classes)))
        k = len(set.union(*classes.values()))
        with_seeds = ", so" if k == n else f" with {k} of {n} seeds, so"
        text = f"{group} has {fewer} of {which}{with_seeds} it has no {rate} there and is left out."
        yield Said(text, "without-rate")
    if without := [label for label in runs if label not in rates]:
        yield f"{listed(without)} recorded no rates."


def _without_rate(rates: NumbersOfRuns, several: bool) -> dict[str, dict[int, set[int]]]:
    """By group and class the seeds with which it has no true positive rate; of several classes only those that another group has."""
    absent: dict[str, dict[int, set[int]]] = {}
    for seed, gaps in ((seed, gaps) for seeds in rates.values() for seed, gaps in seeds.items()):
        without_rate = [(group, c) for group, rate, c in gaps["undefined"] if rate == "tpr"]
        elsewhere = {c for c in gaps["classes"] if any((group, c) not in without_rate for group in gaps["groups"])}
        for group, c in without_rate:
            if c in elsewhere or not several:
                absent.setdefault(group, {}).setdefault(c, set()).add(seed)
    return absent


def undefined_notes(measure: Measure, runs: Sequence[Sequence[str]]) -> Iterator[str]:
    """On which groups a measure is not defined, which ``runs`` names for each run, and what has no value then."""
    groups = list(dict.fromkeys(group for undefined in runs for group in undefined))
    if groups:
        n = sum(map(bool, runs))
        part = f" in {n} of {len(runs)} runs" * (n < len(runs))
        whole = "all its" if len(groups) == 1 else "within each, all"
        reason = f": {whole} {measure.varying} are the same" if measure.varying else ""
        yield (
            f"{measure.noun[0].upper()}{measure.noun[1:]} is not defined for {listed(groups)}{part}{reason}. AVG, STD and worst are over all "
            "groups, so they are not defined either."
        )


def unrecorded_notes(measure: Measure, labels: Sequence[str]) -> Iterator[str]:
    """The methods that did not record a measure, as one does not that has a model per client."""
    if labels:
        yield f"{listed(labels)} recorded no {measure.noun} on the groups, so {'its row is' if len(labels) == 1 else 'their rows are'} empty."


def area_notes(histories: Sequence[History]) -> Iterator[str]:
    """The classes that an area under the ROC curve leaves out."""
    scores = (record.get("groups", {}) for run in histories for record in run.records)
    results = (item for groups in scores for item in groups.items())
    for group, classes in grouped((group, c) for group, result in results for c in result.get("missing") or ()).items():
        which = class_names(map(str, sorted({*classes})))
        yield f"{group} has no test sample of {which}, which the AUC leaves out."


def settings_of(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Chosen settings in a line, by the names of ``--set``; the values of the ``defaults`` if these were chosen."""
    values = ", ".join(f"{name}={value}" for name, value in (settings or defaults).items())
    return values if settings else ": ".join(filter(None, ("the defaults", values)))


def chosen_by(by: str, draws: int, validation: float, *rounds: int) -> str:
    """By what settings were chosen, on which data, and over which last ones of so many rounds, in two sentences."""
    place = f"on {100 * validation:g} % of each client's training samples"
    choice = {
        ORACLE: f"Chosen by test data, which makes every number here too good: {CRITERIA[by]}",
        COLLABORATION: f"Chosen by {CRITERIA[by]}",
        LEAVE_OUT: f"Chosen by {CRITERIA[by]}, among draws with the best mean {place}",
    }.get(by, f"Chosen by {CRITERIA[by]}, {place}")
    last = " or ".join(str(n) for n in sorted({min(LAST, n) for n in rounds or (LAST,)}))
    return f"{choice}; {plural(draws, 'draw')} for each method. Scores are over the last {last} round{'s' * (last != '1')}."


def cost_of_choice(seconds: float, rounds: int, runs: int | None = None) -> str:
    """What choosing took, in a sentence."""
    time = f"{brief(seconds / 60)} processor minutes" if seconds >= 60 else f"{brief(seconds)} processor seconds"
    return f"Choosing cost {'' if runs is None else f'{runs:,} runs, '}{rounds:,} rounds, {time}."


SHARED: Final = "Draws are shared: methods that have a setting of one name, such as lr, try the same values of it."


def none_of_use(label: str, draws: int) -> str:
    """That all draws of a method are of no use, and what follows."""
    return f"{label}: none of its draws ({draws}) is of use, so the defaults are taken, and nothing is learnt of its settings."


def marked(label: str, by: str | None) -> str:
    """The label of a method as rows show it: if its settings were chosen by test data, with a mark."""
    return f"{label} ({ORACLE})" if by == ORACLE else label


def _without_tuning(histories: Sequence[History]) -> list[str]:
    """That nothing was tuned, of several methods whose settings are recorded."""
    federated = [run for run in histories if run.sharing.federated]
    recorded = all(run.meta.get("config") or run.meta.get("first") for run in histories)
    if len({run.label for run in federated}) < 2 or not recorded:
        return []
    rates = {str((run.meta.get("config") or {}).get("lr")) for run in federated}
    alike = len(rates) == 1 and "None" not in rates  # runs from Python do not record it
    return [Said(NOTHING.format(ALIKE if alike else AS_GIVEN), UNTUNED)]


def tuning_notes(histories: Sequence[History]) -> list[str]:
    """What the first screen of a comparison states about tuning; nothing of a single method."""
    every: list[tuple[str, Tuned]] = []
    for history in histories:
        if history.tuned and (history.label, history.tuned) not in every:
            every.append((history.label, history.tuned))
    if not every:
        return _without_tuning(histories)
    ways = grouped(((t["by"], t["draws"], t["validation"], t["rounds"]), label) for label, t in every)
    if len(ways) == 1:
        lines = [chosen_by(*next(iter(ways)))]
    else:
        lines = ["Methods were not tuned alike, so a difference between them may be one of tuning."]
        lines += [f"{listed([*dict.fromkeys(whose)])}: {chosen_by(*way)}" for way, whose in ways.items()]
    costs = [sum(values) for values in zip(*((t["seconds"], t["trained"], t["runs"]) for _, t in every), strict=True)]
    lines.append(cost_of_choice(float(costs[0]), int(costs[1]), int(costs[2])))
    values = [f"{label} ({settings_of(t['settings'], t.get('defaults', {}))})" for label, t in every]
    lines.append(f"Chosen: {'; '.join(values)}.")
    lines += [none_of_use(label, t["draws"]) for label, t in every if t.get("useless") == t["draws"]]
    if changed := [f"{label} ({', '.join(t['changed'])})" for label, t in every if t.get("changed")]:
        lines.append(Said(f"Changed after the choice: {'; '.join(changed)}.", CHANGED))
    if untuned := sorted({run.label for run in histories if not run.tuned}):
        lines.append(f"Not tuned: {', '.join(untuned)}.")
    return lines
