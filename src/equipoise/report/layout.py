"""Tables laid out for reading: which columns and rows, and every number as text."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from textwrap import shorten
from typing import Any, Final, cast

import numpy as np

from equipoise.metrics.communication import full_model, overhead, traffic
from equipoise.metrics.definitions import INDICES, OWN, Statistic, spread, two_stated
from equipoise.metrics.groups import ESTIMABLE
from equipoise.metrics.measures import ACCURACY, Measure
from equipoise.metrics.performance import last_rounds, or_none
from equipoise.privacy.suppression import enough
from equipoise.records.history import ATTENDANCE, History
from equipoise.report import document as content, formatting, rates, sentences
from equipoise.report.columns import blocks_over_clients, collaboration, spread_of
from equipoise.report.document import Numbers, columns_of, gaps_of, interval_of, measure_of, tables
from equipoise.report.formatting import FAILED, PERCENT, UNDEFINED, Cell, Grid, cell_of, corrected, difference, number
from equipoise.report.sites import at_sites
from equipoise.report.statistics import COUNTED, Comparison, Run, over_seeds

FEW_VALUES: Final = 3  # values of an attribute whose rates at every site are shown
MANY: Final = 100  # clients: more are in the figure only


@dataclass(frozen=True)
class Sheet:
    """A table with its caption and the sentences below it.

    Parameters
    ----------
    name : of its file, and of its place on a page.
    heading : on a page.
    caption : what the numbers are, in a sentence.
    grid : the table.
    explanations : sentences about the columns.
    notes : sentences about these runs.
    test : what the differences are, if any is shown.
    differences : to the first method, a sentence per method.
    totals : how many of the last columns sum up the others.
    narrow : whether it takes all of a terminal.
    prose : whether its cells are sentences.
    tests : the same differences with their p-values, a table with a row per method; rows are missing where nothing is tested.
    corrected : whether any p-value is one by Holm.
    head : title of the names of the rows.
    narrow_titles : in a narrow terminal, by title.
    """

    name: str
    heading: str
    caption: str
    grid: Grid
    explanations: Sequence[str] = ()
    notes: Sequence[str] = ()
    test: Sequence[str] = ()
    differences: Sequence[str] = ()
    totals: int = 0
    narrow: bool = False
    prose: bool = False
    tests: "Sheet | None" = None
    corrected: bool = False
    head: str = "Method"
    narrow_titles: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """The sentences below the table."""
        return [*self.explanations, *self.notes]


def sheets(comparison: content.Document) -> list[Sheet]:
    """The tables of a comparison: every measure, then what clients get for what they give, then the treatment of groups."""
    parts = (_client_sheets, _rate_sheets, _own_measure_sheets, _validation_sheet)
    made = chain(map(_measure_sheet, tables(comparison)), *(part(comparison) for part in parts))
    stated = sentences.in_force(comparison)
    return [replace(sheet, explanations=[*sheet.explanations, *stated]) for sheet in made]


def _client_sheets(comparison: content.Document) -> Iterator[Sheet]:
    """The main measure over the clients, and what clients get for what they contribute."""
    if spread := comparison["spread"]:
        columns, texts = spread_of(measure_of(comparison)), sentences.of_spread(comparison, spread)
        yield _compared("spread", "Spread over the clients", texts, spread, columns)
    if rewards := comparison["collaboration"]:
        texts = sentences.of_collaboration(comparison, rewards)
        sheet = _compared("collaboration", "Collaborative fairness", texts, rewards, collaboration())
        yield replace(sheet, notes=rewards["notes"], narrow=True)


def _rate_sheets(comparison: content.Document) -> Iterator[Sheet]:
    """How groups are treated, those of the test sets and those of sensitive attributes: their rates, and the gaps between them."""
    measure = measure_of(comparison)
    for treated in content.treated(comparison):
        parity = treated.parity
        by_group, (caption, *texts) = rates.grid(parity, measure), sentences.of_rates(comparison, treated)
        head = (treated.attribute or "Group") if len(parity["methods"]) == 1 else f"Method, {treated.noun}"
        sheet = Sheet(treated.rates, treated.rates_heading(measure), caption, by_group, texts, narrow=True, head=head)
        yield replace(sheet, narrow_titles=rates.narrow(by_group.titles))
        columns, texts = gaps_of(parity, measure), sentences.of_gaps(comparison, treated)
        yield replace(_compared(treated.gaps, treated.gaps_heading, texts, parity, columns), narrow=True)
        yield from site_sheets(treated, comparison)


def _own_measure_sheets(comparison: content.Document) -> Iterator[Sheet]:
    """The measures of the user's own, a table each."""
    for k, (name, measure) in enumerate(comparison["own_measures"].items(), start=1):
        columns = _had(measure["methods"], OWN)
        worst = "neither way is better"
        if measure["better"]:
            worst = f"worst: that of the worst group, {measure['better']} is better"
        text = (
            f"{name} of the global model, in its own unit, the mean over the last rounds that have it, {comparison['averaged']} at most. AVG "
            f"and STD: mean and standard deviation (ddof 1) over the groups; {worst}. Differences are not tested."
        )
        explanations = [*sentences.worst_named(measure["methods"]), *sentences.plus_minus_of(comparison)]
        notes = [f"Not defined for {where}: {reason}." for where, reason in [*measure["undefined"].items()][:1]]
        sheet = _block(f"measure-{k}", f"Measure {name}", lay_out(measure["methods"], columns), text, *explanations)
        yield replace(sheet, notes=notes)


def _validation_sheet(comparison: content.Document) -> Iterator[Sheet]:
    """The models on what clients hold out of their own samples."""
    if not (table := comparison["validation"]):
        return
    several, measure = len(_groups(comparison["methods"])) > 1, measure_of(comparison)
    columns = [
        Statistic("round", digits=0),
        Statistic(measure.name, title="validation", digits=measure.digits),
        Statistic("worst", title="its worst", digits=measure.digits),
        Statistic("loss", title="its loss", digits=4),
        Statistic("test", title="test AVG", digits=measure.digits),
        *[Statistic("test_worst", title="test worst", digits=measure.digits)] * several,
    ]
    text = (
        f"The model of {comparison['exported']}{_exported(comparison)}: {measure.noun}{measure.words} and loss{measure.loss} on the samples that "
        "clients hold out of their own, all samples counting the same, with personal models where clients have such; "
        f"worst: the clients of the worst group, or the worst 10{PERCENT} of the clients where they belong to no groups. "
        f"Beside it the {measure.noun} of the global model on the test sets."
    )
    named = sentences.worst_named(table["methods"], name="The worst group of clients")
    named += sentences.worst_named(table["methods"], "test_worst_groups", "The worst test set")
    explanations = [*named, *sentences.plus_minus_of(comparison), *_marked(table["methods"])]
    yield _block("validation", "Validation", lay_out(table["methods"], columns), text, *explanations)


def _marked(methods: Sequence[content.Row]) -> list[str]:
    """What the mark of failed methods means, if there are any."""
    return ["†: diverged in these rounds, or no better than guessing."] * any(m["failed"] for m in methods)


def _exported(comparison: content.Document) -> str:
    """That a model is the one that `equipoise export` writes, which runs between sites do not have."""
    return ", which is exported" if comparison["exports"] else ""


def other_rounds(comparison: content.Document) -> Sheet | None:
    """The exported model, or the mean over rounds, whichever the first table does not show; `None` if they are the same."""
    if not (other := comparison["other_rounds"]):
        return None
    between = comparison["group_fairness"]
    parity = [] if between is None else _had(other["methods"], gaps_of(between))
    exported = other["averaged"] == 1
    which = _exported(comparison)
    model = "The exported model" if which else f"The model of {comparison['exported']}"
    heading = model if exported else "Mean over the last rounds"
    text = f"The model of {comparison['exported']}{which}; the other tables show the mean over several rounds."
    if not exported:
        text = f"Mean over the last {other['averaged']} evaluated rounds, as papers have it; the other tables show the model of "
        text += f"{comparison['exported']}{which}."
    texts = [*sentences.worst_named(other["methods"]), *sentences.plus_minus_of(comparison), *_marked(other["methods"])]
    over, groups = _of_one_group([c for c in columns_of(comparison) if c.key != "client_std"], other["methods"])
    columns, measure = over + parity, measure_of(comparison)
    grid = lay_out(other["methods"], columns, groups, digits=measure.digits)
    sheet = _block("other-rounds", heading, grid, text, *texts)
    return replace(sheet, caption=f"{heading}: {measure.noun}{measure.words}.", totals=len(columns) if groups else 0)


def _of_one_group(columns: list[Statistic], methods: Sequence[content.Row]) -> tuple[list[Statistic], list[str]]:
    """The statistics over groups and the groups that a table shows: of one group its name for their average, which is the same."""
    groups = _groups(methods)
    if len(groups) == 1 and all(content.mean_of(method, "avg") is not None for method in methods):
        return [replace(column, title=groups[0]) if column.key == "avg" else column for column in columns], []
    return columns, groups


def over_groups(compared: Comparison) -> list[Sheet]:
    """Every index of spread over the groups, of the global model; empty unless there are several."""
    if max(len(history.groups) for history in compared.histories) < 2:
        return []
    measure = compared.measure
    methods = []
    for label, seeds in compared.runs.items():
        values = (last_rounds(run.groups[measure.name][1], compared.last) for run in seeds.values())
        indices = [spread(of_seed, measure) for of_seed in values if of_seed.size]
        methods.append(_indices(label, seeds, [{key: or_none(x) for key, x in row.items()} for row in indices]))
    # The STD over groups has ddof 1 and is in the table of the measure.
    _, distance, evenness = blocks_over_clients(measure)
    columns = [*(column for column in distance if column.key != "std"), *evenness]
    text = (
        f"{measure.title} of the global model, every group counting the same whatever its size.{_units(measure)}"
        f"{', the' if measure.unit else ' The'} angle in degrees, entropy and KL in nats."
    )
    over = sentences.plus_minus_of(compared.document)
    return _filled(_block("groups", "Evenness over the groups", lay_out(methods, columns), text, *over))


def _units(measure: Measure) -> str:
    """In what indices are that have the unit of the measure, or its square."""
    return f" In {measure.words.removeprefix(' in ')}; the variance{measure.squared}" if measure.unit else ""


def over_clients(compared: Comparison) -> list[Sheet]:
    """Every index of spread over the clients, each with the model it predicts with; empty if none was evaluated."""
    methods = []
    for label, seeds in compared.runs.items():
        indices = [clients for run in seeds.values() if (clients := run.summary["clients"])]
        if any(run.clients[1].size for run in seeds.values()):
            methods.append(_indices(label, seeds, indices, personal=True))
    if not methods:
        return []
    over_all = sentences.left_out(compared) + "".join(f" {text}" for text in sentences.plus_minus_of(compared.document))
    measure = compared.measure
    level, distance, evenness = blocks_over_clients(measure)
    units = f"{_units(measure)}{'.' * bool(measure.unit)}"
    of_level = f"Every client is tested with the model it predicts with, on {sentences.tested_on(compared.histories)}.{units}{over_all}"
    of_evenness = f"Relative to the mean, so that a method with low {measure.plural} does not appear more even. The angle in degrees, entropy and KL in nats.{over_all}"
    return _filled(
        _block("clients-level", "Level and distance over the clients", lay_out(methods, [*level, *distance]), of_level),
        _block("clients-evenness", "Evenness over the clients", lay_out(methods, evenness), of_evenness),
    )


def _filled(*tables: Sheet) -> list[Sheet]:
    """The tables in which there is any number."""
    return [sheet for sheet in tables if any(cell.mean != UNDEFINED for _, cells in sheet.grid.rows for cell in cells)]


def every_client(compared: Comparison) -> Sheet | None:
    """The main measure of every client with every method, or `None` for very many clients, and when none was evaluated."""
    runs = compared.runs_with(lambda run: bool(run.clients[1].size))
    sizes = {run.clients[1].shape[1] for seeds in runs.values() for run in seeds}
    if len(sizes) != 1 or max(sizes) > MANY:
        return None
    columns, measure = [], compared.measure
    for seeds in runs.values():
        of_seeds = measure.scale * np.array([last_rounds(run.clients[1], compared.last) for run in seeds])  # [seeds, N]
        columns.append([over_seeds(values) for values in of_seeds.T.tolist()])
    first, rows = next(iter(runs.values()))[0].history, []
    sized = [run.history for run in chain(*runs.values()) if run.history.client_sizes is not None]
    for m, (name, group) in enumerate(zip(first.client_names, first.client_groups, strict=True)):
        few, tests = _tests_of(sized, m, first.least_group)
        numbers = (_cell(column[m], measure.digits) for column in columns)
        cells = [Cell(f"n < {first.least_group}")] * len(columns) if few and first.at_sites else numbers
        rows.append((f"{name} ({group})" if group not in name else name, (*[tests] * bool(sized), *cells)))
    text = f"{measure.title}{measure.words} of the model that each client predicts with, on {sentences.tested_on(compared.histories)}."
    explanations = [*sentences.other_clients(compared.histories), *sentences.plus_minus_of(compared.document)]
    titles = (*["n"] * bool(sized), *runs)
    return _block("every-client", "Every client", Grid(titles, tuple(rows)), text, *explanations, head="Client")


def _tests_of(runs: Sequence[History], m: int, least: int) -> tuple[bool, Cell]:
    """Whether a client has, in some run, tests of too few people; and how many test samples it has, a dash where that is not shown."""
    samples = [int(n[m]) for run in runs if (n := run.client_sizes) is not None]
    few = any(n and not enough(n, least) for n in samples)
    hidden = not few and any(run.shown_client_sizes[m] is None for run in runs)
    return few, Cell(UNDEFINED if hidden or not runs else _test_samples(samples, least))


def people_of_clients(comparison: Comparison) -> Iterator[Sheet]:
    """The main measure of every client's model for each value of a sensitive attribute, and the gap within the client."""
    measure, names = measure_of(comparison.document), comparison.histories[0].client_names
    for treated in content.treated(comparison.document):
        methods = [method for method in treated.parity["methods"] if method.get("clients")]
        if not methods or {len(method["clients"]) for method in methods} != {len(names)} or len(names) > MANY:
            continue
        values, several, few = [*methods[0]["groups"]], len(methods) > 1, f"< {treated.parity['least']}"
        titles = [f"n {value}" for value in values]
        titles += [f"{m['method']}, {part}" if several else part for m in methods for part in (*values, "gap")]
        clients = zip(names, *(method["clients"] for method in methods), strict=True)
        rows = [(name, (*_cells_of(client, values, few, measure.digits),)) for name, *client in clients]
        text = (
            f"{measure.title}{measure.words} of the model that each client predicts with, on {sentences.tested_on(comparison.histories)}, by {treated.attribute}; "
            f"gap: the largest less the smallest. n: {treated.parity['counted']}; n {few}: no number is shown."
        )
        grid, texts = Grid((*titles,), (*rows,)), sentences.plus_minus_of(comparison.document)
        heading = f"Every client by {treated.attribute}"
        yield _block(f"{treated.rates}-clients", heading, grid, text, *texts, head="Client")


def _cells_of(client: Sequence[Mapping[str, Any]], values: Sequence[str], few: str, digits: int) -> Iterator[Cell]:
    """The test samples of a client for each value, then the numbers for each value of every method's model, and their gap."""
    for value in values:
        sizes = [n for inside in client for n in inside["groups"].get(value, {"n": ()})["n"]]
        untold = any(inside["groups"].get(value, {"mean": 0})["mean"] is None for inside in client)
        yield Cell(few if untold else UNDEFINED if None in sizes else _test_samples(sizes or [0], 0))
    for inside in client:
        yield from (_value_cell(inside["groups"].get(value), few, digits) for value in values)
        yield _cell(inside["gap"], digits)


def site_sheets(treated: content.Treated, comparison: content.Document) -> Iterator[Sheet]:
    """How the people of every site are treated, by value of a sensitive attribute: rates, or errors of numbers, of one method, of several the gaps."""
    parity, measure = treated.parity, measure_of(comparison)
    methods = [method for method in parity["methods"] if method.get("sites")]
    sites = list(dict.fromkeys(site for method in methods for site in method["sites"]))
    if not 1 < len(sites) <= MANY:
        return
    numbers = measure != ACCURACY
    gaps = {column.key: column.title for column in two_stated(gaps_of(parity, measure))}
    shown = ("n", "mae", "error") if numbers else ("n", "selection_rate", "of_class", "tpr")
    titles = {**rates.TITLES, **rates.OF_NUMBERS, "n": "n", "of_class": f"of {parity['positive']},"}
    values = [*methods[0]["groups"]] if len(methods) == 1 and len(methods[0]["groups"]) <= FEW_VALUES else []
    digits = measure.digits if measure.of_target else 1

    def cells(site: str) -> Iterator[Cell]:
        """The gaps of every method, then for some values the numbers and rates of the first."""
        for method in methods:
            inside = method["sites"][site]["gaps"] if site in method["sites"] else {}
            yield from (_cell(inside[key], digits) if inside else Cell(UNDEFINED) for key in gaps)
        groups = methods[0]["sites"][site]["groups"] if values else {}
        for key, about in pairwise((*shown, "")):
            for of_value in map(groups.get, values):
                if of_value is None:
                    yield Cell(UNDEFINED)
                elif key in COUNTED:  # how many people the next is about
                    yield rates.count(of_value[key], of_value[about], parity["least"])
                else:
                    yield _cell(of_value[key], digits)

    rows = tuple((site, tuple(cells(site))) for site in sites)
    head = [f"{method['method']}, {gap}" if len(methods) > 1 else gap for method in methods for gap in gaps.values()]
    head += [f"{titles[key]} {value}" for key in shown for value in values]
    meaning = (
        ", in percent. Demographic parity: the gap of the selection rate; equal opportunity: of the true-positive rate"
    )
    if numbers:
        meaning = f"{measure.words}. Gaps are of the mean absolute error, and of the mean error, predicted less true"
    text = f"How the people of every site are treated by {treated.attribute}{meaning}. –: a gap without two groups of {ESTIMABLE} people or more, "
    text += f"or a number of fewer than {treated.parity['least']}."
    heading, over = f"Inside every site by {treated.attribute}", sentences.plus_minus_of(comparison)
    yield Sheet(f"{treated.rates}-sites", heading, f"{heading}.", Grid((*head,), rows), [text, *over], head="Site")


def _value_cell(inside: Any, few: str, digits: int) -> Cell:
    """The main measure of a client's people with one value; that they are too few, or a dash where there are none."""
    if inside is None:
        return Cell(UNDEFINED)
    return Cell(f"n {few}") if inside["mean"] is None else _cell(inside, digits)


def _test_samples(runs: Sequence[int], least: int) -> str:
    """How many test samples a client has, from the fewest to the most over the runs; no number below ``least``."""
    low, high = min(runs), max(runs)
    if not high:
        return UNDEFINED
    fewest = f"< {least}" if any(n and not enough(n, least) for n in runs) else f"{low:,}"
    return fewest if low == high or not enough(high, least) else f"{fewest} to {high:,}"


def communication(compared: Comparison) -> Sheet | None:
    """Bytes sent: per client and round, per round, in the whole run, and relative to the first method."""
    sending = compared.runs_with(lambda run: any(r.get("bytes", {}).get("down") for r in run.history.records))
    if not (runs := {label: [run.history for run in seeds] for label, seeds in sending.items()}):
        return None
    first = next(iter(runs))

    # bytes of every round, all clients and both ways
    sent = {
        label: [[sum(r["bytes"]["down"] + r["bytes"]["up"]) for r in run.records if r.get("bytes")] for run in seeds]
        for label, seeds in runs.items()
    }
    totals = {label: float(np.mean([*map(sum, rounds)])) for label, rounds in sent.items()}
    rows = []
    for label, seeds in runs.items():
        down, up = np.mean([traffic(run.records) for run in seeds], axis=0)
        per_round = float(np.mean([sum(rounds) / len(rounds) for rounds in sent[label]]))
        times = f"{overhead(totals[label], totals[first]):.3f}" if totals[first] else UNDEFINED
        rows.append((label, (*map(formatting.size, (down, up, per_round, totals[label])), times)))
    full = full_model(runs[first][0].records)
    whole = f" The whole model takes {formatting.size(full.value)}." if full.defined else ""
    text = (
        f"Mean over clients, rounds and seeds; kB are 1000 bytes.{whole} Counted from the tensors that a client gets and "
        "sends: its part of the model without private coordinates, and the method's messages and reports. What a network adds "
        "(headers, encryption) or saves (compression) is not counted, nor are the clients' measurements for this report."
    )
    titles = ("to a client, per round", "from a client, per round", "all, per round", "whole run", f"times {first}")
    return _block("communication", "Communication", formatting.grid_of(rows, titles), text)


def time(compared: Comparison) -> Sheet | None:
    """Rounds and seconds of the runs, as measured while they were made."""
    rows = []
    for label, seeds in compared.runs.items():
        runs = [[r["seconds"] for r in run.history.records if "seconds" in r] for run in seeds.values()]
        if all(runs):
            totals, rounds = [sum(seconds) for seconds in runs], [len(seconds) for seconds in runs]
            means = float(np.mean(totals)), float(np.sum(totals) / np.sum(rounds))
            rows.append((label, (f"{np.mean(rounds):.0f}", *map(formatting.brief, means))))
    text = (
        "Wall time of training and testing, mean over the seeds, on the machine that made the runs. Runs that shared it with others took longer: "
        "compare methods only where they ran alike."
    )
    grid = formatting.grid_of(rows, ("rounds", "seconds, whole run", "seconds, per round"))
    return _block("time", "Time", grid, text) if rows else None


def attended(comparison: Comparison) -> dict[str, np.typing.NDArray[np.float64]]:
    """Percent of the rounds that the clients of a group, or each client, spent as each of `ATTENDANCE`; empty if all are always there."""
    by_name = defaultdict[str, list[np.typing.NDArray[np.float64]]](list)
    for history in comparison.histories:
        table = history.attendance
        by = history.client_groups if len(set(history.client_groups)) > 1 else history.client_names
        for name, rounds in zip(by, () if table is None else table.T, strict=False):
            by_name[name].append(100 * np.bincount(rounds, minlength=len(ATTENDANCE)) / len(rounds))
    return {name: np.mean(shares, axis=0) for name, shares in by_name.items()}


def who_was_there(comparison: Comparison) -> Sheet | None:
    """How often clients trained, were late, failed or were away; None where all are always there."""
    if not (shares := attended(comparison)):
        return None
    text = (
        "Percent of the rounds, mean over clients and runs. Who is there follows from the seed and the settings, not from the training, so "
        "it is the same for all methods that have the same. Groups also differ in their data: the table alone does not say what "
        "absence does to one. The same runs with all clients there would show that."
    )
    rows = ((name, [number(float(x), 1) for x in row]) for name, row in shares.items())
    head = "Group" if len(set(comparison.histories[0].client_groups)) > 1 else "Client"
    return _block("presence", "Who was there", formatting.grid_of(rows, ATTENDANCE), text, head=head)


def every_site(comparison: Comparison) -> Sheet | None:
    """How every site of a deployed run did; None of simulations, and for very many sites."""
    rows, several = [], len(comparison.histories) > 1
    for history in comparison.histories:
        for site in at_sites(history.records, history.client_names):
            columns = [*zip(*site.answers, strict=True)][1:] or ((), ())
            seconds = [[x for x in column if x is not None] for column in columns]
            times = [number(float(np.median(column))) if column else UNDEFINED for column in seconds]
            left_out = str(len(site.left_out)), shorten((site.left_out or [UNDEFINED])[-1], 60, placeholder=" …")
            name = f"{site.name}, {history.label}, seed {history.seed}" if several else site.name
            rows.append((name, (str(len(site.answers)), *times, *map(formatting.size, site.sent), *left_out)))
    text = (
        "Rounds in which a site's answer counted, and medians over them: seconds of its training, as it reports, and from request to answer, as "
        "the server measures; the difference is transfer and waiting. Bytes of all tensors in messages, also for tests. A site is left out of "
        "a round if it is not connected, fails, is late, or sends what cannot be used."
    )
    grid = formatting.grid_of(rows, ("rounds", "training, s", "answered, s", "down", "up", "left out", "last reason"))
    return _block("sites", "Sites", grid, text, head="Site") if 0 < len(rows) <= MANY else None


def paired_tests(measured: Sequence[Sheet]) -> list[Sheet]:
    """Paired tests against the first method, of each of :func:`sheets`, with p-values corrected for the number of differences."""
    return [tests for sheet in measured if (tests := sheet.tests) and tests.grid.rows]


def _had(methods: Sequence[content.Row], columns: Sequence[Statistic]) -> list[Statistic]:
    """The columns of which some method has a number; of the others it is not known."""
    return [column for column in columns if any(column.key in method for method in methods)]


def _groups(methods: Sequence[content.Row]) -> list[str]:
    """The groups of all methods, in the order of their first appearance."""
    return list(dict.fromkeys(group for method in methods for group in cast(Mapping[str, object], method["groups"])))


def lay_out(
    methods: Sequence[content.Row],
    columns: Sequence[Statistic],
    groups: Sequence[str] = (),
    leaders: Mapping[str, content.Leader] | None = None,
    digits: int = 2,
) -> Grid:
    """Numbers over seeds as a table, a row per method; a dash where a method does not have a number.

    Parameters
    ----------
    methods : with their `method`, and under the key of each column `{"mean", "ci95"}`.
    columns : what to show.
    groups : whose values are to the left of the columns.
    leaders : by key of a column, the leading method. It is marked as best where a test tells it apart from every other; otherwise, and
        in a column without, which is not tested, nothing is marked.
    digits : of the values of the groups, behind the point.
    """
    shown = [(group, [_group(method, group, digits) for method in methods]) for group in groups]
    for column in columns:
        leader = (leaders or {}).get(column.key)
        shown.append((column.title, [_statistic(method, column, leader) for method in methods]))
    rows = zip(*(cells for _, cells in shown), strict=True) if shown else [()] * len(methods)
    return Grid(tuple(title for title, _ in shown), tuple(zip(map(_named, methods), rows, strict=True)))


def _named(method: content.Row) -> str:
    """The name of a method as rows have it, with a mark if it failed."""
    return f"{method['method']}{FAILED * bool(method.get('failed'))}"


def _group(method: content.Row, group: str, digits: int) -> Cell:
    """The value of a group; in brackets that of its last test, where it was not tested in all of the averaged rounds."""
    values = content.number_of(cast(content.Row, method["groups"]), group)
    if values["mean"] is None:
        untested = cast(Sequence[content.Untested], method.get("untested", ()))
        last = np.array([content.last_of(test) for test in untested if test["group"] == group], float)  # None is NaN
        return Cell(f"({number(float(last.mean()), digits)})" if len(last) and np.isfinite(last).all() else UNDEFINED)
    return Cell(number(values["mean"], digits), _half(values, interval_of(method, group), digits))


def _half(values: content.OverSeeds, ends: Sequence[float] | None, digits: int) -> str:
    """Half of the 95 % interval: over seeds, with one seed over the test samples; nothing where neither is known."""
    half = values["ci95"] if values["ci95"] is not None else (ends[1] - ends[0]) / 2 if ends else None
    return "" if half is None else number(half, digits)


def _statistic(method: content.Row, column: Statistic, leader: content.Leader | None) -> Cell:
    """The number of a column; of bounds that every client is within, that they are."""
    values, digits = content.number_of(method, column.key), column.digits
    mean = number(values["mean"], digits)
    half = "" if mean == UNDEFINED else _half(values, content.ends_of(method, column.key), digits)
    if column.key == "bcf" and method.get("satisfied"):
        mean, half = "yes", ""
    return Cell(mean, half, leader is not None and method["method"] == leader["best"])


def _cell(values: content.OverSeeds, digits: int) -> Cell:
    return Cell(number(values["mean"], digits), _half(values, None, digits))


def _measure_sheet(table: content.OfMeasure) -> Sheet:
    """Values of every group and the statistics over them."""
    methods, name = table["methods"], table["measure"].replace("_", "-")
    columns, groups = _of_one_group(columns_of(table), methods)
    grid = _with_sizes(table, lay_out(methods, columns, groups, table["leaders"], measure_of(table).digits))
    notes = [*(f"{FAILED.strip()} {text}" for text in sentences.failures(table)), *table["notes"]]
    tests = _paired_tests(name, table["title"], methods, columns_of(table))
    sheet = _compared(name, f"{table['title']} on every group", sentences.of_measure(table), table, columns, grid)
    return replace(sheet, notes=notes, totals=len(columns) if groups else 0, tests=tests)


def _with_sizes(of_measure: content.OfMeasure, grid: Grid) -> Grid:
    """A table with a column for each group that is too small, and below a row of how many test samples each group has."""
    groups, small, few = _groups(of_measure["methods"]), of_measure["small"], f"< {of_measure['least']}"
    n = len(groups)
    rows = [(name, (*cells[:n], *[Cell(f"n {few}")] * len(small), *cells[n:])) for name, cells in grid.rows]
    if of_measure["sizes"] or small:
        sizes = [of_measure["sizes"].get(group) for group in groups]
        texts = [UNDEFINED if n is None else f"{n:,}" if isinstance(n, int) else f"{n[0]:,}–{n[1]:,}" for n in sizes]
        rows.append(("n", tuple(map(Cell, (*texts, *[few] * len(small), *([""] * (len(grid.titles) - n)))))))
    return Grid((*grid.titles[:n], *small, *grid.titles[n:]), tuple(rows))


def _compared(
    name: str,
    heading: str,
    texts: list[str],
    table: content.Table,
    columns: Sequence[Statistic],
    grid: Grid | None = None,
) -> Sheet:
    """A table, if not a ``grid`` of its own, with its differences to the first method; its caption is the first of some ``texts``."""
    methods, lines = cast(Sequence[content.Row], cast(content.Row, table)["methods"]), []
    for method in methods:
        shown = ((c, content.test_of(method, c.key)) for c in columns)
        if parts := [f"{c.title} {text}" for c, test in shown if test and (text := difference(test, c.digits))]:
            lines.append(f"{_named(method)}: {'; '.join(parts)}.")
    tested = f"with the 95{PERCENT} interval over the test samples of this one seed"
    if any(versus["seeds"] > 1 for method in methods if (versus := cast(content.Versus | None, method["versus"]))):
        holm = " (by Holm: corrected for the number of differences, which the interval is not)"
        tested = f"paired by seed: mean, 95{PERCENT} interval, p-value of the paired t-test"
        tested += holm * any(map(corrected, content.tests_of(methods, columns)))
    about = f"Differences are to {methods[0]['method']}, {tested}."
    grid = grid or lay_out(methods, columns, leaders=table["leaders"])
    titles = {c.title: c.narrow for c in columns if c.narrow}
    sheet = Sheet(name, heading, texts[0], grid, texts[1:], test=[about] if lines else [], differences=lines)
    return replace(sheet, narrow_titles=titles, tests=_paired_tests(name, heading, methods, columns))


def _block(name: str, heading: str, grid: Grid, *texts: str, head: str = "Method") -> Sheet:
    return Sheet(name, heading, f"{heading}.", grid, [" ".join(texts)], head=head)


def _indices(label: str, seeds: Mapping[int, Run], indices: Sequence[Numbers], *, personal: bool = False) -> Numbers:
    """Every index over the seeds; where clients have ``personal`` models, the failure of the global one is none of theirs."""
    failed = any(run.failure for run in seeds.values() if not (personal and run.history.meta.get("personal")))
    row = {"method": label, "failed": failed, "bound": next(iter(seeds.values())).history.sharing}
    return row | {column.key: over_seeds([numbers[column.key] for numbers in indices]) for column in INDICES}


def _paired_tests(name: str, heading: str, methods: Sequence[content.Row], columns: Sequence[Statistic]) -> Sheet:
    """Differences to the first method: of every method the mean, the 95 % interval, and of several seeds the p-values."""
    columns = [column for column in columns if any(content.test_of(method, column.key) for method in methods)]
    tests = content.tests_of(methods, columns)
    rows, by_holm, paired = [], any(map(corrected, tests)), any(test["p"] is not None for test in tests)
    for method in methods:
        cells = tuple(cell_of(content.test_of(method, column.key), column.digits) for column in columns)
        if any(cell.ends for cell in cells):
            rows.append((str(method["method"]), cells))
    caption = f"{heading}: differences to {methods[0]['method']}{', paired by seed' * paired}."
    explanation = f"With the 95{PERCENT} interval over the test samples of one seed."
    if paired:
        explanation = f"Mean, 95{PERCENT} interval, p-value of the paired t-test{', and that by Holm' * by_holm}."
    grid = Grid(tuple(column.title for column in columns), tuple(rows))
    return Sheet(f"tests-{name}", heading, caption, grid, [explanation], corrected=by_holm)
