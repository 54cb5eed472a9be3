"""Tables, figures and the HTML page, on histories made up here."""

import io
import json
import math
import re
import statistics
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, strategies as st
from matplotlib.text import Text
from rich.console import Console
from scipy import stats

from equipoise.federation.history import History
from equipoise.federation.method import parse, printed
from equipoise.report import (
    answer,
    comparison,
    draw_all,
    drawing,
    figures_of_clients,
    figures_of_groups,
    latex,
    markdown,
    render,
    rich_table,
    save_all,
    verdict,
    write,
)
from equipoise.report.formatting import Cell, Grid, lines
from equipoise.report.layout import Sheet
from equipoise.report.page import latex_sheet
from equipoise.report.rendering import save_latex
from equipoise.report.sentences import evidence
from equipoise.report.statistics import Comparison

pytestmark = pytest.mark.drawn

GROUPS = {"mnist": 0.93, "usps": 0.88, "svhn": 0.72}


def made_up(method="fedavg", seed=0, *, lift=0.0, rounds=8, clients=True, weights=True, consistency=False, **meta):
    """A run that learns; `lift` moves every group towards 1, the worst most."""
    rng = np.random.default_rng([seed, len(method)])
    names = list(GROUPS) * 2
    records = []
    for t in range(rounds):
        groups = {}
        for group, final in GROUPS.items():
            a = (final + lift * (1 - final)) * (1 - 0.5**t / 2) - 0.01 * rng.random()
            groups[group] = {"accuracy": float(a), "loss": float(2 - 2 * a), "n": 5000}
        record = {"round": t, "seconds": 0.1, "groups": groups, "ids": list(range(6))}
        if clients:
            record["clients"] = {"accuracy": [groups[g]["accuracy"] - 0.01 * m for m, g in enumerate(names)]}
        if weights:
            w = 1 + lift * t * rng.random(6)
            record["weights"] = (w / w.sum()).tolist()
        if consistency:
            record["consistency"] = np.histogram(rng.beta(1 + t, 1, 500), 20, (0, 1))[0].tolist()
            record["kept"] = 0.87
        records.append(record)
    meta = {"scenario": "digits", "rounds": rounds, "client_names": list("abcdef"), "client_groups": names, **meta}
    return History(records, {"method": method, "seed": seed, **meta})


def several(seeds=3, **options):
    lifts = {"fedavg": 0.0, "afl": 0.2, "fedproto+fedheal": 0.5}
    return [
        made_up(method, seed, lift=lift, consistency="heal" in method, **options)
        for seed in range(seeds)
        for method, lift in lifts.items()
    ]


def without_script(html):
    """A page without the one script that all have, which is the file of the package, as it is."""
    script = f"<script>\n{resources.files('equipoise.report').joinpath('page.js').read_text()}</script>"
    assert html.count(script) == 1
    return html.replace(script, "")


def unevaluated(method="fedavg", **meta):
    """A run without anything to draw: its page is quick to make."""
    return History([{"round": 0}], {"method": method, **meta})


class Page(HTMLParser):
    """Text, tables and attributes of a page; fails on a tag that is closed wrongly."""

    VOID = ("meta", "wbr", "br", "link", "input")

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.attributes, self.tables, self.tags = [], "", [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"style", "script"} & set(self.open):
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


# --- the comparison


def test_comparison_against_numpy_and_scipy():
    histories = several(3)
    found = comparison(histories)
    assert (found["scenario"], found["rounds"], found["averaged"], found["seeds"]) == ("digits", 8, 5, [0, 1, 2])
    assert [m["method"] for m in found["methods"]] == ["fedavg", "afl", "fedproto+fedheal"]
    tables = {(h.label, h.seed): 100 * h.group_table()[1][-5:].mean(0) for h in histories}
    stds = {label: [statistics.stdev(tables[label, s]) for s in range(3)] for label in ("fedavg", "afl")}
    afl = found["methods"][1]
    assert afl["std"]["mean"] == pytest.approx(np.mean(stds["afl"]))
    assert afl["std"]["std"] == pytest.approx(np.std(stds["afl"], ddof=1))
    assert afl["groups"]["svhn"]["mean"] == pytest.approx(np.mean([tables["afl", s][2] for s in range(3)]))
    test = stats.ttest_rel(stds["afl"], stds["fedavg"])
    assert afl["versus"]["method"] == "fedavg"
    assert afl["versus"]["seeds"] == 3
    assert afl["versus"]["std"]["difference"] == pytest.approx(np.mean(stds["afl"]) - np.mean(stds["fedavg"]))
    assert afl["versus"]["std"]["p"] == pytest.approx(test.pvalue)
    assert found["methods"][0]["versus"] is None
    json.dumps(found, allow_nan=False)


def test_comparison_pairs_by_seed_not_by_position():
    a, b = several(3)[0::3], several(3)[1::3]
    assert comparison([*a, *reversed(b)]) == comparison([*a, *b])


def test_comparison_of_one_seed_has_no_spread():
    found = comparison(several(1))
    assert found["methods"][1]["avg"]["std"] is None
    assert found["methods"][1]["avg"]["ci95"] is None
    versus = found["methods"][1]["versus"]["avg"]
    assert versus["difference"] == pytest.approx(
        found["methods"][1]["avg"]["mean"] - found["methods"][0]["avg"]["mean"]
    )
    assert (versus["ci95"], versus["p"]) == (None, None)


def test_comparison_uses_common_seeds_and_says_what_is_missing():
    found = comparison([h for h in several(3) if (h.label, h.seed) != ("afl", 1)])
    assert found["methods"][1]["versus"]["seeds"] == 2
    assert found["notes"] == ["afl has no run with seed 1: its numbers are of fewer seeds than those of others."]


def test_comparison_notes_runs_that_stopped():
    stopped = made_up("afl", rounds=3)
    found = comparison([made_up(), History(stopped.records, {**stopped.meta, "rounds": 20})])
    few = "Runs of afl have fewer than 5 evaluated rounds: their mean is over all of these, from the first on."
    assert found["notes"] == ["afl, seed 0, stopped after 3 of 20 rounds.", few]


def test_comparison_notes_runs_that_were_planned_to_be_short():
    found = comparison([made_up(), made_up("afl", rounds=6)])
    assert found["notes"] == ["afl, seed 0, trained for 6 rounds, and others for up to 8."]


def test_comparison_without_clients_or_groups():
    found = comparison([made_up(clients=False), History([{"round": 0}], {"method": "afl", "scenario": "digits"})])
    assert found["methods"][0]["clients"] == {}
    assert found["methods"][1]["avg"]["mean"] is None
    assert found["methods"][1]["groups"]["mnist"] == {"mean": None, "std": None, "ci95": None}
    assert any("same groups" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("histories", "message"),
    [
        ([], "at least one history, found none"),
        ([made_up(), made_up("afl", scenario="office")], "found digits, office"),
        ([made_up(), made_up()], "fedavg with seed 0 is given twice"),
    ],
)
def test_comparison_refuses_what_cannot_be_compared(histories, message):
    with pytest.raises(ValueError, match=message):
        comparison(histories)


def test_labels_tell_variants_of_one_method_apart():
    found = comparison([made_up(), made_up(label="fedavg, small step")])
    assert [m["method"] for m in found["methods"]] == ["fedavg", "fedavg, small step"]


# --- tables as text


def shown(table, width=200):
    file = io.StringIO()
    Console(file=file, width=width, no_color=True).print(table)
    return file.getvalue()


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_table_holds_the_numbers(seeds):
    found = comparison(several(seeds))
    for text in (shown(rich_table(found)), markdown(found), latex(found)):
        for method in found["methods"]:
            for cell in (*method["groups"].values(), method["avg"], method["std"], method["worst"]):
                assert f"{cell['mean']:.2f}" in text
        assert bool(re.search(r"p[=<]\.\d{3}", text)) == (seeds > 1)


def test_best_values_are_bold():
    found = comparison(several(1))
    rows = [line.split(" | ") for line in markdown(found).splitlines() if line.startswith("| ")]
    assert all("**" not in cell for row in rows[:3] for cell in row)
    assert ["**" in cell for cell in rows[3]] == [False] * 4 + [True] * 3  # a group's own column is not tested
    assert latex(found).count(r"\textbf{") == 3


def test_one_method_has_nothing_in_bold():
    found = comparison([made_up()])
    assert "**" not in markdown(found)


def test_lower_std_is_better():
    low, high = made_up("low", lift=0.5), made_up("high")
    row = next(line for line in markdown(comparison([high, low])).splitlines() if line.startswith("| low"))
    assert row.split(" | ")[5].startswith("**")


def test_tables_escape_names():
    history = made_up("a_b|c%", scenario="[red]x&y")
    found = comparison([history])
    assert r"a\_b\textbar{}c\%" in latex(found)
    assert r"x\&y" in latex(found)
    assert r"a_b\|c%" in markdown(found)
    assert "a_b|c%" in shown(rich_table(found))
    assert "[red]x&y" in shown(rich_table(found))


def test_terminal_table_fits_eighty_columns():
    text = shown(rich_table(comparison(several(3))), width=80)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_terminal_table_of_many_groups_is_told_in_parts():
    groups = [f"hospital-{k}" for k in range(12)]
    round_ = {"round": 1, "groups": {name: {"accuracy": k / 20, "loss": 1.0} for k, name in enumerate(groups)}}
    found = comparison([History([round_], {"method": "fedavg", "seed": 0, "scenario": "own"})])
    text = shown(rich_table(found, 80), width=80)
    assert "…" not in text
    assert all(name in text for name in [*groups, "AVG", "STD", "worst"])
    assert text.count("Accuracy of the global model") == text.count("STD: standard deviation") == 1
    assert text.count(" fedavg ") == 3


def test_latex_is_as_a_paper_takes_it():
    """A caption of one sentence, a label, notes below the table, and options of commands in comments only."""
    notes = ["±: half of the interval.", "Nothing was tuned: --tune 16 chooses."]
    text = latex_sheet(Sheet("a b", "H", "Accuracy. After round 3.", Grid(("x",), (("m", (Cell("1"),)),)), notes))
    assert r"\caption{Accuracy.}" in text
    assert r"\label{tab:a-b}" in text
    assert r"\par\smallskip\footnotesize After round 3. $\pm$: half of the interval." in text
    assert text.index(r"\end{tabular}") < text.index("After round 3.") < text.index(r"\end{table}")
    assert text.endswith("\\end{table}\n% Nothing was tuned: --tune 16 chooses.\n")


def test_tables_for_a_paper_have_the_names_that_papers_print(tmp_path):
    """The parameters stay; a label that the user gave, and that of a run without the name, are as they are."""
    texts = ("fedavg", "qffl(q=2)", "fedprox(mu=0.1)+fedism+", "term")
    runs = [made_up(text, printed=printed(parse(text))) for text in texts]
    compared = Comparison.of([*runs[:3], replace(runs[3], meta={**runs[3].meta, "label": "mine"}), made_up("moon")])
    names = ["FedAvg", "q-FFL (q=2)", "FedProx (mu=0.1)+FedISM+", "mine", "moon"]
    first, *tables = [latex(compared), *(path.read_text() for path in save_latex(compared, tmp_path))]
    assert re.findall(r"^    (.*?) &", first.partition(r"\bottomrule")[0], re.MULTILINE) == ["Method", *names, "n"]
    assert not [text for text in tables if re.search(r"^    .*(qffl|fedprox)", text, re.MULTILINE)]
    assert "qffl(q=2) &" in latex(compared.document)


def test_latex_is_balanced():
    text = latex(comparison(several(3)))
    assert text.count("{") == text.count("}")
    body = re.search(r"\\midrule\n(.*)\\bottomrule", text, re.DOTALL).group(1)
    assert [line.count("&") for line in body.splitlines() if "&" in line] == [
        6,
        6,
        6,
        6,
    ]  # the last says how many samples


# --- measures besides the accuracy

AREAS = {
    "balanced": "Balanced accuracy (ACC of FedISM+)",
    "auc": "One-vs-one macro AUC (AUC of FedISM+)",
    "auc_ovr": "One-vs-rest weighted AUC",
}


def with_areas(method, seed=0, *, groups=("clean", "noisy"), lift=0.0, rounds=12, clients=(16, 4), **areas):
    """A run whose first groups are better; areas every fifth round and in the last five."""
    rng = np.random.default_rng([seed, len(method)])
    records = []
    for t in range(rounds):
        results = {}
        for k, group in enumerate(groups):
            a = (0.9 - 0.1 * k * (1 - lift)) * (1 - 0.5 ** (t + 1)) + 0.01 * rng.random()
            results[group] = {"accuracy": a, "loss": 2 - a}
            if (t + 1) % 5 == 0 or t + 1 > rounds - 5:
                results[group] |= {"balanced": a - 0.1, "auc": 0.5 + a / 2, "auc_ovr": a, **areas}
        records.append({"round": t, "groups": results})
    of_clients = [group for group, n in zip(groups, clients, strict=False) for _ in range(n)]
    meta = {"method": method, "seed": seed, "scenario": "digits", "rounds": rounds, "client_groups": of_clients}
    return History(records, meta)


def compared(groups=("clean", "noisy"), seeds=3, **options):
    lifts = {"fedavg": 0.0, "fedism": 0.3, "fedism+": 0.6}
    return [with_areas(m, s, groups=groups, lift=lift, **options) for s in range(seeds) for m, lift in lifts.items()]


FOUR = ("optdigits", "photo", "fonts", "street")
EVERY_SHAPE = [(groups, seeds) for groups in (("all",), ("clean", "noisy"), FOUR) for seeds in (1, 3)]


@pytest.mark.parametrize(("groups", "seeds"), EVERY_SHAPE)
def test_every_measure_has_a_block_like_that_of_the_accuracy(groups, seeds):
    histories = compared(groups, seeds, clients=(5,) * len(groups))
    found = comparison(histories)
    json.dumps(found, allow_nan=False)
    assert list(found["measures"]) == ["accuracy", *AREAS]
    assert found["measures"]["accuracy"] == {
        key: value
        for key, value in found.items()
        if key
        not in ("measures", "collaboration", "group_fairness", "other_rounds", "validation", "own_measures", "spread")
    }
    for name, block in found["measures"].items():
        assert (block["measure"], block["averaged"], block["seeds"]) == (name, 5, list(range(seeds)))
        for method in block["methods"]:
            runs = [h for h in histories if h.label == method["method"]]
            for key in ("avg", "std", "worst", "gap", "client_std"):
                values = [run.summary(measure=name)[key] for run in runs]
                expected = None if values[0] is None else np.mean(values)
                if name != "accuracy":  # means of the rounds, as in the table, so that differences are those seen
                    expected = method["pooled"][key]["mean"]
                assert method[key]["mean"] == (None if expected is None else pytest.approx(expected))
            rows = 100 * np.concatenate([run.group_table(name)[1][-5:] for run in runs])  # [5 x seeds, D]
            pooled = method["pooled"]
            assert pooled["n"] == 5 * seeds
            for k, group in enumerate(groups):
                assert pooled["groups"][group] == pytest.approx({"mean": rows[:, k].mean(), "std": rows[:, k].std()})
            over = {"avg": rows.mean(axis=1), "worst": rows.min(axis=1), "gap": np.ptp(rows, axis=1)}
            over["client_std"] = rows.std(axis=1)  # of equal numbers of clients
            for key, values in over.items():
                assert pooled[key] == pytest.approx({"mean": values.mean(), "std": values.std()}), key


@pytest.mark.parametrize(
    ("groups", "seeds"),
    [EVERY_SHAPE[0], *(pytest.param(*s, marks=pytest.mark.slow) for s in EVERY_SHAPE[1:-1]), EVERY_SHAPE[-1]],
)
def test_every_measure_has_a_table(groups, seeds):
    histories = compared(groups, seeds, clients=(5,) * len(groups))
    found = comparison(histories)
    page = Page(render(histories))
    heads = [table[0] for table in page.tables if tuple(table[0][-len(groups) :]) == tuple(groups)]
    if len(groups) == 1:  # no column measures a spread over one
        assert heads == [["Method", *groups]] * 5
        heads = []
    spread = {1: [], 2: ["gap", "worst"], 4: ["STD", "worst"]}[len(groups)]
    client_std = ["client STD"] * (len(groups) > 1)
    assert not heads or heads == [
        ["Method", "AVG", *spread, *groups],
        *[["Method", "AVG", *spread, *client_std, *groups]] * 2,
        *[["Method", "AVG", "STD", "worst", *groups]] * 2,  # of the main measure, and of the exported model
    ]
    for text in (shown(rich_table(found)), markdown(found), latex(found), page.text):
        for name, title in AREAS.items():
            assert title in " ".join(text.split())
            for method in found["measures"][name]["methods"]:
                for cell in (*method["groups"].values(), method["avg"]):
                    assert f"{cell['mean']:.2f}" in text
                    assert seeds == 1 or f"{cell['ci95']:.2f}" in text
    assert latex(found).count(r"\begin{table}") == markdown(found).count("|---|") == 4
    assert latex(found).count("{") == latex(found).count("}")
    for width in (80, 100):
        text = shown(rich_table(found), width)
        assert "…" not in text
        assert all(len(line) <= width for line in text.splitlines())
        sentence = "±: half of the 95 % interval over 3 seeds (Student's t)."
        assert " ".join(text.split()).count(sentence) == (seeds == 3)  # said once for all tables


def test_the_spread_over_clients_is_shown_where_their_groups_are_known():
    histories = compared()
    without = [History(h.records, {**h.meta, "client_groups": None}) for h in histories]
    assert "client STD" in markdown(comparison(histories))
    assert "client STD" not in markdown(comparison(without))


def test_a_single_value_has_no_spread():
    found = comparison(compared(seeds=1, rounds=1))
    assert found["measures"]["auc"]["methods"][0]["pooled"]["avg"]["std"] is None
    assert "±" not in markdown(found)


def test_an_area_names_the_classes_it_leaves_out():
    histories = [with_areas("fedism", seed, missing=[3, 7]) for seed in range(2)]
    found = comparison(histories)
    note = "clean has no test sample of classes 3, 7, which the AUC leaves out."
    assert note in found["measures"]["auc"]["notes"]
    assert found["notes"] == found["measures"]["balanced"]["notes"] == []
    for text in (shown(rich_table(found)), markdown(found), latex(found), Page(render(histories)).text):
        assert note in " ".join(text.split())


def test_runs_without_a_measure_are_undefined_not_an_error():
    old = History([{"round": 0, "groups": {"clean": {"accuracy": 0.5}}}], {"method": "old", "scenario": "digits"})
    found = comparison([with_areas("fedism"), old])
    block = found["measures"]["auc"]["methods"][1]
    assert block["avg"]["mean"] is block["pooled"]["avg"]["mean"] is None
    assert re.search(r"\| old \| – \|", markdown(found)), markdown(found)


def test_the_verdict_says_when_a_measure_favours_another_method():
    one, two = (
        [h for h in compared(seeds=5) if h.label == label]
        for label in list(dict.fromkeys(h.label for h in compared(seeds=1)))[1:]
    )
    text = verdict(comparison([*one, *two]))
    assert text.startswith("fedism+ is the fairest: its accuracy")
    assert "By " not in text

    def poor(h):
        records = [
            {**r, "groups": {g: {**v, **({"auc": v["auc"] / 2} if "auc" in v else {})} for g, v in r["groups"].items()}}
            for r in h.records
        ]
        return History(records, h.meta)

    text = verdict(comparison([*one, *map(poor, two)]))
    assert "By one-vs-one macro AUC (noisy), fedism serves the worst group best." in text
    assert "By " not in verdict(comparison([one[0], poor(two[0])]))  # one seed has no interval for the AUC


# --- the verdict


def test_verdict_names_the_fairest_and_quotes_the_test():
    found = comparison(several(3))
    text = verdict(found)
    assert text.startswith("fedproto+fedheal is the fairest: its accuracy varies least over 3 groups")
    assert "fedproto+fedheal serves the worst group best" in text
    assert "fedproto+fedheal is the most accurate" in text
    assert "[" not in text.partition("Against ")[0]
    assert "one seed" not in text
    below = " ".join(evidence(found))
    assert below.count(", Holm p < .001)") == 6
    versus = found["leaders"]["std"]["versus"]["fedavg"]
    low, high = (f"{versus[end]:+.2f}".replace("-", "−") for end in ("low", "high"))
    assert f"[{low}, {high}]" in below


def test_verdict_of_one_seed_has_intervals_over_the_test_samples():
    for histories in (several(1), [made_up()]):
        text = verdict(comparison(histories))
        assert "one seed proves nothing" in text
        below = " ".join(evidence(comparison(histories)))
        assert " p " not in below
        assert re.search(r"\[[−+]?\d+\.\d\d, [−+]?\d+\.\d\d\]", below)
    assert verdict(comparison(several(1))).startswith("With this seed, fedproto+fedheal is the fairest")


def test_verdict_names_no_winner_where_methods_cannot_be_told_apart():
    same = [made_up(), made_up("afl", lift=0.002)]
    text = verdict(comparison(same))
    assert text.startswith(
        "Neither method is shown to be the fairest, the best for the worst group or the most accurate."
    )
    for claim in (" is the fairest", "serves the worst group best", " is the most accurate"):
        assert claim not in text


def test_verdict_says_when_a_difference_may_be_chance():
    noise = {"fedavg": [0.80, 0.84, 0.79], "afl": [0.81, 0.79, 0.84]}
    histories = [
        History([{"round": 0, "groups": {"x": {"accuracy": a}, "y": {"accuracy": 0.5}}}], {"method": m, "seed": s})
        for m, accuracies in noise.items()
        for s, a in enumerate(accuracies)
    ]
    found = comparison(histories[::-1])
    assert "Neither method is shown to be the fairest" in verdict(found)
    assert "p .919, more than 1000 seeds)" in " ".join(evidence(found))


def test_verdict_of_two_seeds_asks_for_more():
    assert "Two seeds say little about chance" in verdict(comparison(several(2)))


@pytest.mark.parametrize("ahead", [0.05, 0.2, 0.4])
def test_verdict_of_two_seeds_does_not_deny_the_winner_that_it_names(ahead: float) -> None:
    runs = [
        History(
            [
                {
                    "round": 0,
                    "groups": {g: {"accuracy": 0.4 + ahead * k + s * (1 + k) * 1e-5 * (1 + (g == "y"))} for g in "xy"},
                }
            ],
            {"method": f"m{k}", "seed": s},
        )
        for k in range(2)
        for s in range(2)
    ]
    said = verdict(comparison(runs))
    assert "is the most accurate" in said
    assert "run at least three" in said
    assert "too few" not in said


def test_verdict_of_one_group_does_not_speak_of_fairness():
    runs = [
        History([{"round": 0, "groups": {"all": {"accuracy": a, "n": 1000}}}], {"method": m})
        for m, a in (("a", 0.5), ("b", 0.6))
    ]
    text = verdict(comparison(runs))
    assert "b is the most accurate" in text
    assert "fair" not in text
    assert "b reaches 60.00\u00a0% on all." in verdict(comparison(runs[1:]))
    assert evidence(comparison(runs[1:]))[0].startswith("b, AVG: 60.00 [")


def test_verdict_without_an_evaluation():
    assert "nothing to compare" in verdict(comparison([History([], {"method": "m"})]))


# --- figures


def test_draw_all_draws_what_the_data_allow():
    drawn = ["bars", "tradeoff", "convergence", "losses", "spread", "weights", "measured", "consistency"]
    assert list(draw_all(several(1))) == drawn
    assert list(draw_all(several(2))) == [*drawn[:2], "differences", *drawn[2:]]
    assert list(draw_all([made_up(clients=False, weights=False)])) == ["bars", "convergence", "losses"]
    assert draw_all([History([{"round": 0}], {"method": "m"})]) == {}


def test_bars_show_the_means_and_their_intervals_over_seeds():
    histories = several(3)
    axes = figures_of_groups.bars(Comparison.of(histories)).axes[0]
    heights = [
        [bar.get_height() for bar in container] for container in axes.containers if hasattr(container, "patches")
    ]
    found = comparison(histories)
    for drawn, method in zip(heights, found["methods"], strict=True):
        assert drawn == pytest.approx([cell["mean"] for cell in method["groups"].values()])
    whiskers = axes.collections[0].get_segments()
    cells = found["methods"][0]["groups"].values()
    expected = [min(100, cell["mean"] + cell["ci95"]) - max(0, cell["mean"] - cell["ci95"]) for cell in cells]
    assert [segment[1][1] - segment[0][1] for segment in whiskers] == pytest.approx(expected)
    (lowest, *_), *_ = (
        figures_of_groups.bars(Comparison.of(several(1))).axes[0].collections[0].get_segments()
    )  # over the test samples
    assert lowest[1] == pytest.approx(comparison(several(1))["methods"][0]["intervals"]["groups"][0][0])


def test_bars_lie_when_there_are_many():
    groups = {f"a hospital with a long name {i}": {"accuracy": i / 10} for i in range(5)}
    axes = figures_of_groups.bars(Comparison.of([History([{"round": 0, "groups": groups}], {"method": "m"})])).axes[0]
    assert [bar.get_width() for bar in axes.containers[0]] == pytest.approx([0, 10, 20, 30, 40])
    assert axes.get_xlim() == (0, 100)
    assert [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()] == list(groups)


def test_convergence_shows_average_and_worst_group():
    histories = several(1)
    average, worst = figures_of_groups.convergence(Comparison.of(histories)).axes
    table = 100 * histories[2].group_table()[1]
    np.testing.assert_allclose(average.lines[2].get_ydata(), table.mean(axis=1))
    np.testing.assert_allclose(worst.lines[2].get_ydata(), table.min(axis=1))
    assert len(figures_of_groups.convergence(Comparison.of(several(3))).axes[0].collections) == 3
    assert not average.collections


def test_weights_show_every_client_and_the_mean_of_its_group():
    history = made_up(lift=0.5)
    axes = figures_of_clients.weights(Comparison.of([history])).axes[0]
    table = 100 * history.weights().to_numpy()
    lines = {tuple(np.round(line.get_ydata(), 9)) for line in axes.lines}
    assert {tuple(np.round(column, 9)) for column in table.T} <= lines
    assert tuple(np.round(table[:, [0, 3]].mean(axis=1), 9)) in lines
    assert len(axes.lines) == 6 + 3 + 1


def test_weights_of_partial_participation():
    records = [{"round": t, "ids": [t % 3], "weights": [1.0]} for t in range(6)]
    axes = figures_of_clients.weights(
        Comparison.of([History(records, {"method": "m", "client_groups": ["x", "x", "y"]})])
    ).axes[0]
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 2, 4, 2, 2, 6]


def test_what_methods_measured() -> None:
    """Mean and range of each group over the rounds, the numbers of a round as lines, one scale for a quantity."""
    meta = {"client_groups": ["x", "x", "y"], "seed": 0}
    one = History(
        [
            {"round": 0, "ids": [0, 1, 2], "sharpness": [1.0, 3.0, 4.0], "distance_variance": [0.5, 0.25]},
            {"round": 1, "ids": [1], "sharpness": [5.0], "distance_variance": [0.4, 0.125]},
            {"round": 2, "ids": []},
        ],
        {"method": "a", **meta},
    )
    two = History([{"round": 0, "ids": [0, 1], "sharpness": [None, 0.01]}], {"method": "b", **meta})  # nobody of y
    variance, *sharpness = figures_of_clients.measured(Comparison.of([one, two])).axes
    black, grey = variance.lines
    assert black.get_ydata().tolist() == [0.25, 0.125]
    assert grey.get_ydata().tolist() == [0.5, 0.4]
    x, y = sharpness[0].lines
    assert (x.get_xdata().tolist(), x.get_ydata().tolist()) == ([0, 1], [2.0, 5.0])
    assert (y.get_xdata().tolist(), y.get_ydata().tolist()) == ([0], [4.0])
    corners = sharpness[0].collections[0].get_paths()[0].vertices
    assert {(0.0, 1.0), (0.0, 3.0), (1.0, 5.0)} <= {(round, value) for round, value in corners.tolist()}
    assert [axes.get_yscale() for axes in sharpness] == ["log", "log"]
    assert sharpness[0].get_ylim() == sharpness[1].get_ylim()
    assert sharpness[1].get_ylim()[0] < 0.01
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in sharpness] == ["sharpness S, a", "sharpness S, b"]
    page = render([one])
    assert "FedISM+, Eq. 10" in page
    assert "FedISM+, Eq. 11" not in page
    with pytest.raises(ValueError, match="what a method measured"):
        figures_of_clients.measured(Comparison.of([History([{"round": 0}], {"method": "c"})]))


def test_consistency_is_the_density_of_exact_shares():
    """Every k of n rounds has a bar of its own: an even distribution has no spikes, whatever the rounds."""
    counts = [[10] * 8, [5] * 31]
    records = [
        {"round": t, "ids": [0], "consistency": [9] * 20, "agreement": [of]}
        for t, of in zip((9, 30), counts, strict=True)
    ]
    axes = figures_of_clients.consistency(Comparison.of([History(records, {"method": "m"})])).axes[0]
    for patch, of in zip(axes.patches, counts[::-1], strict=True):
        values, edges, _ = patch.get_data()
        n = len(of) - 1
        np.testing.assert_allclose((edges[1:] + edges[:-1]) / 2, np.arange(n + 1) / n, atol=1e-12)
        np.testing.assert_allclose(values, n / (n + 1))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["round 30", "round 9"]


def test_consistency_of_clients_with_different_numbers_of_rounds():
    record = {"round": 3, "consistency": [1] * 20, "agreement": [[1, 1], [0, 0, 3]]}
    axes = figures_of_clients.consistency(Comparison.of([History([record], {"method": "m"})])).axes[0]
    values, edges, _ = axes.patches[0].get_data()
    np.testing.assert_allclose(edges, [-0.5, -0.25, 0.25, 0.5, 0.75, 1.25, 1.5])
    np.testing.assert_allclose(values, np.array([1, 1, 1, 1, 1 + 3 * 2, 1]) / 5)


def test_consistency_of_older_runs_is_that_of_their_bins():
    histories = [made_up(consistency=True, rounds=12)]
    axes = figures_of_clients.consistency(Comparison.of(histories)).axes[0]
    counts = np.array(histories[0].records[-1]["consistency"])
    drawn = [patch.get_data().values for patch in axes.patches]
    np.testing.assert_allclose(drawn[0], 20 * counts / counts.sum())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["round 11", "round 9"]


def diverged(history):
    """The same run, whose training went wrong after two rounds: everything recorded of it is as such runs record it."""
    records = [
        r
        | {"groups": {g: {"accuracy": 0.1, "loss": 3e12 if r["round"] % 2 else None} for g in r["groups"]}}
        | {"weights": [None] * 6 if r["round"] > 4 else [60, -59, 0, 0, 0, 0], "clients": {"accuracy": [0.1] * 6}}
        if r["round"] > 1
        else r
        for r in history.records
    ]
    return History(records, history.meta)


def test_losses_are_means_over_the_groups():
    axes = figures_of_groups.losses(Comparison.of([made_up()])).axes[0]
    of_groups = [[score["loss"] for score in r["groups"].values()] for r in made_up().records]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.mean(of_groups, axis=1))
    assert axes.get_yscale() == "linear"
    assert figures_of_groups.losses(Comparison.of(several(3))).axes[0].collections
    assert not axes.collections


def test_losses_of_a_diverged_run_are_marked_and_leave_the_others_legible():
    axes = figures_of_groups.losses(Comparison.of([made_up(), diverged(made_up("afl"))])).axes[0]
    end = figures_of_groups.loss_limit([figures_of_groups.loss_curve(run) for run in (made_up(), made_up("afl"))])
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[1] == pytest.approx(end) == pytest.approx(116, abs=10)
    fine, wrong, marks = axes.lines
    assert fine.get_ydata().max() < 2
    assert marks.get_marker() == "^"
    assert marks.get_xdata().tolist() == [2, 3, 4, 5, 6, 7]
    assert set(marks.get_ydata()) == {end} == {wrong.get_ydata().max()}
    page = Page(render([made_up(), diverged(made_up("afl"))])).text
    assert "Triangles: beyond the axis, or not finite (afl). †: diverged, or no better than guessing." in page
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["fedavg", "afl †"]


@pytest.mark.filterwarnings("error:constrained_layout")
@pytest.mark.parametrize("others", [0, 2])
def test_diverged_runs_leave_the_axes_whole(others):
    histories = [diverged(h) if h.label == "afl" and h.seed != 1 else h for h in several(3)]
    histories = [h for h in histories if others or h.label == "afl"]
    bounds = {"bars": 100, "tradeoff": 102, "differences": 100, "convergence": 100, "losses": 130, "weights": 200}
    for name, figure in draw_all(histories).items():
        figure.savefig(io.BytesIO(), format="png", dpi=30)
        for axes in figure.axes if name in bounds else ():
            limits = [*axes.get_ylim(), *(axes.get_xlim() if name in ("differences", "tradeoff") else ())]
            assert np.isfinite(limits).all()
            assert max(limits) <= bounds[name]
            assert min(limits) >= (-bounds[name] if name in ("differences", "weights") else -6)
    weights = figures_of_clients.weights(Comparison.of(histories)).axes[-1 if not others else 1]
    marks = {line.get_marker() for line in weights.lines if line.get_xdata().size and line.get_linestyle() == "None"}
    assert marks == {"^", "v"}


def test_spread_sorts_the_clients():
    history = made_up()
    line = figures_of_clients.spread(Comparison.of([history])).axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), np.sort(100 * history.client_table()[1][-5:].mean(axis=0)))


def test_the_spread_is_that_of_the_rounds_of_the_tables() -> None:
    """Of one round where tables show the exported model, not of the last five."""
    history = made_up()
    line = figures_of_clients.spread(Comparison.of([history], last=1)).axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), np.sort(100 * history.client_table()[1][-1]))


def test_clients_that_share_a_model_and_a_test_set_have_no_order():
    """Then a figure of them would show steps, one per group, and nothing else."""

    def run(accuracies, **meta):
        groups = {"a": {"accuracy": 0.5}, "b": {"accuracy": 0.7}}
        record = {"round": 0, "groups": groups, "clients": {"accuracy": accuracies}}
        return History([record], {"method": "m", "client_groups": ["a", "a", "b", "b"], **meta})

    shared = run([0.5, 0.5, 0.7, 0.7])
    assert "spread" not in draw_all([shared])
    assert "spread" not in draw_all([run([0.6, 0.6, 0.6, None], client_groups=None)])
    assert "spread" in draw_all([run([0.5, 0.51, 0.7, 0.7])])
    assert "spread" in draw_all([shared, run([0.5, 0.5, 0.7, 0.8], label="with models of their own")])


LONG = "fedproto(mu=0.001)+fedheal(tau=0.4,history=exclusive)+qffl(q=0.1)"


@pytest.mark.filterwarnings("error:constrained_layout")
def test_long_names_are_whole_and_inside_the_figure():
    histories = [History(h.records, {**h.meta, "label": LONG * 2} if h.label == "afl" else h.meta) for h in several(2)]
    for name, figure in draw_all(histories).items():
        figure.savefig(io.BytesIO(), format="png", dpi=50)
        texts = [text for text in figure.findobj(Text) if text.get_visible() and "history" in text.get_text()]
        assert texts or name in ("measured", "consistency")  # they are of one method
        for text in texts:
            assert text.get_text().replace("\n", "") == LONG * 2
            box, page = text.get_window_extent(), figure.bbox
            assert box.x0 >= page.x0 - 1, name
            assert box.x1 <= page.x1 + 1, name
            assert box.y1 <= page.y1 + 1, name


@pytest.mark.parametrize("width", [80, 120])
def test_long_names_are_whole_in_the_terminal(width):
    histories = [History(h.records, {**h.meta, "label": LONG} if h.label == "afl" else h.meta) for h in several(2)]
    text = shown(rich_table(comparison(histories), width), width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    head = [line for line in text.splitlines() if "AVG" in line and "mnist" in line]
    assert len(head) == 1  # one table


@given(st.text(st.sampled_from("ab.+,(=-_ "), max_size=60), st.integers(2, 30))
def test_lines_lose_nothing(name, width):
    found = lines(name, width)
    assert all(len(line) <= width for line in found)
    assert "".join(found).replace(" ", "") == name.replace(" ", "")


# --- what the terminal shows


def test_the_terminal_begins_with_the_answer_and_says_what_more_there_is():
    found = comparison(compared(seeds=3))
    text = shown(rich_table(found, 80, details=False, explain=False), 80)
    assert " ".join(text.split()).startswith(answer.headline(found))
    assert text.count("\n method ") == 1
    assert "AUC" not in text
    assert not re.search(r"p[=<]", text)
    assert "STD: standard deviation" not in text
    assert " ".join(text.split()).endswith(
        "Every table and test: --details; what columns mean: --explain; the report has both."
    )
    every = shown(rich_table(found, 80, details=True), 80)
    assert every.count("\n method ") == 4
    assert every.index("AUC") < every.index("Accuracy of the global model")
    assert "STD: standard deviation" in every
    assert re.search(r"p[=<]", every)
    assert "--details" not in every
    assert " ".join(every.split()).endswith(" ".join(verdict(found).split()))


@pytest.mark.parametrize("key", ["collaboration", "group_fairness"])
def test_the_answer_about_people_and_rewards_stands_above_the_groups(key):
    from test_collaborative_report import several as collaborating
    from test_group_report import federation

    found = comparison(collaborating() if key == "collaboration" else [federation().fit(1, progress=False)])
    text = shown(rich_table(found, 100, details=False, explain=False), 100)
    title = "Collab" if key == "collaboration" else "Gap"
    assert text.index(title) < text.index("Accuracy of the global model")


@pytest.mark.parametrize(
    "draw",
    [
        figures_of_groups.bars,
        figures_of_clients.spread,
        figures_of_clients.weights,
        figures_of_clients.consistency,
        figures_of_groups.convergence,
    ],
)
def test_figures_without_data_say_so(draw):
    with pytest.raises(ValueError, match=r"this figure shows .*, which no record of m holds"):
        draw(Comparison.of([History([{"round": 0}], {"method": "m"})]))


def test_figures_take_any_name():
    strange = {"$x": {"accuracy": 0.5}, "_y $\\frac$": {"accuracy": 0.6}, "<b>&": {"accuracy": 0.4}}
    histories = [History([{"round": 0, "groups": strange}], {"method": m}) for m in ("_a", "b$^$")]
    for figure in draw_all(histories).values():
        figure.savefig(io.BytesIO(), format="png")


def test_save_all_writes_every_format(tmp_path):
    paths = save_all([made_up(weights=False, clients=False)], tmp_path / "figures")
    assert [path.name for path in paths] == [
        f"{name}.{end}" for name in ("bars", "convergence", "losses") for end in ("pdf", "png")
    ]
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def test_figures_do_not_touch_pyplot(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)  # another test's library may have
    draw_all(several(1))
    assert "matplotlib.pyplot" not in sys.modules


# --- the page


@pytest.fixture(scope="module")
def html():
    return render(several(1))


def test_page_holds_the_numbers():
    histories = several(3)
    page = Page(render(histories))
    found = comparison(histories)
    table, exported = (t for t in page.tables if t[0] == ["Method", "AVG", "STD", "worst", "mnist", "usps", "svhn"])
    assert table[-1] == ["n", "", "", "", *(f"{found['sizes'][group]:,}" for group in table[0][4:])]
    for row, method in zip(table[1:-1], found["methods"], strict=True):
        assert row[0] == method["method"]
        cells = [method["avg"], method["std"], method["worst"], *method["groups"].values()]
        assert row[1:] == [f"{cell['mean']:.2f} ±{cell['ci95']:.2f}" for cell in cells]
    tested = page.tables[page.tables.index(exported) + 1]
    last = [100 * run.group_table()[1][-1].mean() for run in histories if run.label == "fedavg"]
    assert exported[1][1].startswith(f"{np.mean(last):.2f} ±")
    assert [row[0] for row in tested[1:]] == ["afl", "fedproto+fedheal"]
    assert f"{found['methods'][1]['versus']['std']['difference']:.2f}".replace("-", "−") in tested[1][2]
    assert verdict(found) in page.text
    assert page.tags.count("svg") == page.tags.count("figcaption") == 9 + 3  # of the answer
    for key, title, digits in (
        ("jain", "Jain", 4),
        ("kl", "KL", 4),
        ("std", "STD₀", 2),
        ("worst10", "worst 10\u00a0%", 2),
    ):
        *_, clients = (table for table in page.tables if title in table[0])
        assert clients[1][clients[0].index(title)].startswith(
            f"{found['methods'][0]['clients'][key]['mean']:.{digits}f}"
        )


def test_page_needs_nothing_else(html):
    page = Page(html)
    assert not re.search(r"https?:|//[a-z]|@import|<link|<img|\bsrc=|\bon\w+=", without_script(html))
    references = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert all(value.startswith("#") for value in references)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = {value[1:] for value in references} | {
        target for _, value in page.attributes for target in re.findall(r"url\(#([^)]+)\)", value or "")
    }
    assert used <= set(ids)


def test_page_follows_the_colours_of_the_reader(html):
    assert "prefers-color-scheme: dark" in html
    svg = html[html.index("<svg") : html.rindex("</svg>")]
    assert "currentColor" in svg
    assert drawing.INK not in svg


def test_page_of_one_seed(html):
    page = Page(html)
    assert "one seed proves nothing" in page.text
    measure = next(
        table for table in page.tables if (table[0][0] == "Method" and "client STD" in table[0]) or len(table[0]) > 6
    )
    (ends, *_), shown = comparison(several(1))["methods"][0]["intervals"]["groups"], measure[1][4]
    assert shown.endswith(f" ±{(ends[1] - ends[0]) / 2:.2f}")
    assert "±: half of the 95\u00a0% interval over the test samples of this one seed." in page.text
    assert "Difference to" not in page.text


def test_page_without_clients_or_groups():
    page = Page(render([made_up(clients=False, weights=False)]))
    assert "Spread over the clients" not in page.text
    assert page.tags.count("svg") == 3 + 3  # of the answer
    empty = Page(render([unevaluated()]))
    assert "nothing to compare" in empty.text
    assert "svg" not in empty.tags


def test_page_lists_quarantined_clients_by_name():
    bad = {"client": 3, "name": "photo-3", "reason": "update holds NaN"}
    records = [{"round": t, "quarantined": [bad] if t in (1, 2, 3, 6) else []} for t in range(8)]
    page = Page(render([History(records, {"method": "fedavg"})]))
    table = next(table for table in page.tables if table[0][0] == "Client")
    assert table[1:] == [["photo-3", "update holds NaN", "fedavg", "0", "1–3, 6"]]
    assert "None: every answer that came passed the check." in Page(render([unevaluated()])).text


def test_page_shows_header_lines_once_when_all_runs_share_them():
    shared = render([unevaluated(header=["engine: stacked"]), unevaluated("afl", header=["engine: stacked"])])
    assert shared.count("engine: stacked") == 1
    differing = render([unevaluated(header=["engine: workers"]), unevaluated("afl", header=["engine: stacked"])])
    assert differing.index("fedavg</h4>") < differing.index("engine: workers") < differing.index("afl</h4>")


def test_page_separates_shared_from_differing_settings():
    page = Page(
        render(
            [
                unevaluated(m, seed=s, config={"seed": s, "solver": {"lr": 0.1, "nesterov": True}, "rules": {"tau": t}})
                for m, t in (("fedavg", 0.3), ("afl", 0.4))
                for s in (0, 1)
            ]
        )
    )
    differing = next(table for table in page.tables if table[0][0] == "Setting")
    assert differing == [["Setting", "fedavg", "afl"], ["rules.tau", "0.3", "0.4"]]
    assert page.tables[-1] == [
        ["Setting", "Value"],
        ["seed", "0, 1"],
        ["solver.lr", "0.1"],
        ["solver.nesterov", "true"],
    ]


def test_page_shows_the_recorded_versions():
    assert "torch 2.6.0, 2.7.0" in render(
        [unevaluated(versions={"torch": "2.6.0"}), unevaluated("afl", versions={"torch": "2.7.0"})]
    )


def test_page_escapes_everything_a_user_can_write():
    evil = "<script>alert(1)</script>"
    history = History(
        [
            {
                "round": 0,
                "groups": {evil: {"accuracy": 0.5}, "b": {"accuracy": 0.6}},
                "clients": {"accuracy": [0.5]},
                "ids": [0],
                "weights": [1.0],
                "quarantined": [{"client": 0, "name": evil, "reason": evil}],
                "consistency": [1] * 20,
                "kept": 0.5,
            }
        ],
        {
            "method": evil,
            "scenario": evil,
            "header": [evil],
            "client_groups": [evil],
            "versions": {evil: evil},
            "config": {evil: evil},
        },
    )
    html = without_script(render([history, History(history.records, {**history.meta, "label": evil + "2"})]))
    page = Page(html)
    assert "script" not in page.tags
    assert "<script" not in html.lower()
    assert page.text.count(evil) >= 10


def test_write_is_atomic_and_writes_figures_only_when_asked(tmp_path):
    path = write([unevaluated()], tmp_path / "deep" / "report.html")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    made_up(clients=False, weights=False).report(path, figures=True)
    assert sorted(p.name for p in path.parent.iterdir()) == ["report-figures", "report.html"]
    beside = {p.name for p in (path.parent / "report-figures").iterdir()}
    drawn = {f"{name}.{end}" for name in ("bars", "convergence", "losses") for end in ("pdf", "png")}
    assert beside == {*drawn, "accuracy.tex", "groups.tex"}


def test_write_keeps_the_old_report_when_it_fails(tmp_path):
    path = write([unevaluated()], tmp_path / "report.html")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="given twice"):
        write([unevaluated(), unevaluated()], path)
    assert path.read_bytes() == before


def test_page_survives_numbers_that_are_not_defined():
    records = [
        {"round": 0, "groups": {"a": {"accuracy": None}, "b": {"accuracy": math.nan}}, "clients": {"accuracy": [None]}}
    ]
    page = Page(render([History(records, {"method": "m"}), History(records, {"method": "n"})]))
    assert page.tables[0][1] == ["m", "–", "–", "–", "–", "–"]


def test_notes_of_several_seeds_are_one_sentence():
    runs = [made_up(seed=seed, rounds=3 + seed) for seed in range(3)]
    found = comparison([History(run.records, {**run.meta, "rounds": 9}) for run in runs])
    assert found["notes"][0] == "fedavg, seeds 0, 1 and 2, stopped after 3, 4 and 5 of 9 rounds."


def test_a_step_against_the_mean_is_said():
    runs = [made_up(seed=seed, rounds=4) for seed in range(2)]
    for run, cosines in zip(runs, ((0.5, -0.1, None, -0.2), (0.5, 0.1, None, 0.2)), strict=True):
        for record, cosine in zip(run.records, cosines, strict=True):
            record["step_cosine"] = cosine
    notes = [note for note in comparison(runs)["notes"] if "steps away" in note]
    assert notes == [
        "fedavg, seed 0, steps away from the mean of the clients' updates in 2 of 3 rounds: the cosine between its step and that mean is negative."
    ]
