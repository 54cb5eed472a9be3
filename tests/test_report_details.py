"""What the report shows beside the comparison: indices, tests, traffic, limits, how to run it again, LaTeX files."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, strategies as st
from scipy import stats

from equipoise.cli import main as cli
from equipoise.federation.history import History
from equipoise.metrics import MEASURES, definitions, holm, spread
from equipoise.metrics.definitions import INDICES, Statistic
from equipoise.metrics.groups import class_counts
from equipoise.metrics.measures import ACCURACY, CLASSIFICATION
from equipoise.metrics.performance import last_rounds
from equipoise.metrics.statistics import half_interval
from equipoise.report import columns, comparison, figures, figures_of_groups, render
from equipoise.report.columns import anchor, hint, terms_of, typeset
from equipoise.report.formatting import size
from equipoise.report.layout import communication, every_client, over_clients, over_groups, paired_tests, sheets
from equipoise.report.provenance import commands, environment, settings as settings_of
from equipoise.report.rendering import save_latex
from equipoise.report.sentences import evidence, limits
from equipoise.report.statistics import Comparison
from equipoise.runs.configuration import RunConfig, called
from helpers import in_one
from test_collaborative_report import made as collaborator
from test_report import Page, compared, made_up, several, without_script

pytestmark = pytest.mark.drawn


# the correction
def test_holm_by_hand() -> None:
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])
    np.testing.assert_allclose(holm([0.02, np.nan, 0.01]), [0.02, np.nan, 0.02])
    assert holm([]).shape == (0,)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_what_the_procedure_rejects(p: list[float]) -> None:
    """From the smallest on, until one is not below its share of 5 %."""
    rejected: set[int] = set()
    for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] * (len(p) - step) >= 0.05:
            break
        rejected.add(i)
    assert {i for i, q in enumerate(holm(p)) if q < 0.05} == rejected
    assert all(q >= a for q, a in zip(holm(p), p, strict=True))


# every index
def test_every_index_of_spread_is_in_a_table_of_the_clients() -> None:
    histories = several(3)
    blocks = over_clients(Comparison.of(histories))
    assert [column.key for column in INDICES] == list(spread([0.5]))
    shown = {title for block in blocks for title in block.grid.titles}
    by_title = {column.title: column for block in columns.blocks_over_clients(ACCURACY) for column in block}
    assert shown == by_title.keys()
    assert {column.key for column in by_title.values()} == {index.key for index in INDICES}
    runs = [h for h in histories if h.label == "afl"]
    found = [spread(last_rounds(run.client_table()[1])) for run in runs]
    for block in blocks:
        (cells,) = (cells for name, cells in block.grid.rows if name == "afl")
        for title, cell in zip(block.grid.titles, cells, strict=True):
            column = by_title[title]
            values = [one[column.key].value for one in found]
            assert cell.mean == f"{np.mean(values):.{column.digits}f}"
            assert cell.half == f"{half_interval(values):.{column.digits}f}"


def test_groups_have_the_same_indices() -> None:
    (block,) = over_groups(Comparison.of(several(1)))
    table = last_rounds(several(1)[0].group_table()[1])
    name, cells = block.grid.rows[0]
    assert name == "fedavg"
    assert cells[block.grid.titles.index("Gini")].mean == f"{spread(table)['gini'].value:.4f}"
    assert (
        over_groups(Comparison.of([History([{"round": 0, "groups": {"all": {"accuracy": 0.5}}}], {"method": "m"})]))
        == []
    )


@in_one("column", [column for block in columns.blocks_over_clients(ACCURACY)[1:] for column in block])
def test_the_direction_of_an_index_is_that_of_evenness(column: Statistic) -> None:
    even, uneven = (spread(a)[column.key].value for a in ([0.6, 0.6, 0.6], [0.3, 0.6, 0.9]))
    (index,) = [index for index in INDICES if index.key == column.key]
    assert TERMS[column.title].better == index.better == ("higher" if even > uneven else "lower")


def test_every_client_is_listed_with_every_method() -> None:
    block = every_client(Comparison.of(several(3)))
    assert block is not None
    assert block.grid.titles == ("fedavg", "afl", "fedproto+fedheal")
    assert [name for name, _ in block.grid.rows] == [
        f"{n} ({g})" for n, g in zip("abcdef", ("mnist", "usps", "svhn") * 2, strict=True)
    ]
    runs = [last_rounds(h.client_table()[1]) for h in several(3) if h.label == "fedavg"]
    assert [cells[0].mean for _, cells in block.grid.rows] == [f"{a:.2f}" for a in 100 * np.mean(runs, axis=0)]
    assert every_client(Comparison.of([made_up(clients=False)])) is None
    crowd = {"round": 0, "clients": {"accuracy": [0.5] * 101}}
    assert every_client(Comparison.of([History([crowd], {"method": "m"})])) is None


# statistical tests
def test_tests_are_those_of_scipy_and_corrected_for_the_methods() -> None:
    histories = several(3)
    (found,) = paired_tests(sheets(comparison(histories)))
    assert found.grid.titles == ("AVG", "STD", "worst")
    worst = {
        label: [100 * last_rounds(h.group_table()[1]).min() for h in histories if h.label == label]
        for label in ("fedavg", "afl", "fedproto+fedheal")
    }
    against = [stats.ttest_rel(worst[label], worst["fedavg"]) for label, _ in found.grid.rows]
    corrected = holm([test.pvalue for test in against])
    for (_, cells), test, q in zip(found.grid.rows, against, corrected, strict=True):
        shown = cells[2]
        low, high = test.confidence_interval(0.95)
        p, by_holm = ("< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0") for p in (test.pvalue, q))
        assert shown.ends == f"[{low:+.2f}, {high:+.2f}], p {p}, Holm {by_holm}".replace("-", "−")
    (one,) = paired_tests(sheets(comparison(several(1))))  # of one seed there are intervals over the test samples
    assert "paired" not in one.caption
    assert all(re.fullmatch(r"\[.+, .+\]", test.ends) for _, cells in one.grid.rows for test in cells)


def test_a_single_test_needs_no_correction() -> None:
    (found,) = paired_tests(sheets(comparison([h for h in several(3) if h.label != "afl"])))
    assert not any("Holm" in test.ends for _, cells in found.grid.rows for test in cells)


def test_the_verdict_quotes_corrected_p_values_of_several_methods() -> None:
    many, two = comparison(several(3)), comparison([h for h in several(3) if h.label != "afl"])
    assert "p by Holm, corrected for the 3 differences of a column" in evidence(many)[-1]
    assert not any("Holm" in text for text in evidence(two))
    assert ", p < .001)" in " ".join(evidence(two))


# traffic
def sending(method: str, down: int, up: int, seed: int = 0) -> History:
    sent = {"down": [down, down], "up": [up, up], "full": 1000}
    return History([{"round": t, "ids": [0, 1], "bytes": sent} for t in range(3)], {"method": method, "seed": seed})


def test_traffic_by_hand() -> None:
    block = communication(
        Comparison.of([sending("fedavg", 1000, 1000), sending("half", 1000, 500), made_up("silent", scenario="")])
    )
    assert block is not None
    rows = {name: [cell.mean.replace("\u00a0", " ") for cell in cells] for name, cells in block.grid.rows}
    assert rows == {
        "fedavg": ["1.00 kB", "1.00 kB", "4.00 kB", "12.0 kB", "1.000"],
        "half": ["1.00 kB", "500 B", "3.00 kB", "9.00 kB", "0.750"],
    }
    assert block.grid.titles[-1] == "times fedavg"
    assert communication(Comparison.of([made_up()])) is None


@in_one(("n", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (93_516_096, "93.5 MB"), (2.5e12, "2.50 TB")])
def test_sizes_have_three_digits(n: float, text: str) -> None:
    assert size(n).replace("\u00a0", " ") == text


# limits
def said(histories: list[History]) -> str:
    return " ".join(limits(histories))


def test_limits_say_what_applies_and_nothing_else() -> None:
    one, three, many = said(several(1)), said(several(3)), said(several(6))
    assert "One seed" in one
    assert "3 seeds: Student's t has 2 degrees of freedom, and half of the 95 % interval is 2.5" in three
    assert f"{stats.t.ppf(0.975, 2) / np.sqrt(3):.1f}" == "2.5"
    assert "seeds:" not in many
    assert "tuned longer" in one
    assert "tuned longer" not in said([made_up()])
    for text in (one, three, many):
        assert not re.search("come with Equipoise|Still rising|SHA-256|same source|fails everywhere", text)


def test_limits_tell_embedded_data_from_files() -> None:
    assert "come with Equipoise" in said([made_up(config={"rounds": 8})])
    assert "come with Equipoise" not in said([made_up(config={"rounds": 8, "data": "my/"})])


def test_limits_warn_of_runs_that_still_rise_and_of_even_failure() -> None:
    def straight(method: str, slope: float, gap: float) -> History:
        groups = [{"a": {"accuracy": 0.3 + slope * t}, "b": {"accuracy": 0.3 + slope * t + gap}} for t in range(12)]
        return History([{"round": t, "groups": g} for t, g in enumerate(groups)], {"method": method})

    text = said([straight("slow", 0.0001, 0.01), straight("fast", 0.02, 0.3)])
    assert "last five: fast." in text
    assert "slow has the lowest STD and the lowest average" in text


def test_limits_see_other_data_and_other_versions() -> None:
    a = made_up(data={"sha256": "aa"}, versions={"torch": "1"})
    b = made_up("afl", data={"sha256": "bb"}, versions={"torch": "2"})
    assert "With seed 0 not all runs had the same data" in said([a, b])
    assert "same source and versions" in said([a, b])
    swapped = [made_up(m, contents={"inputs": x}) for m, x in (("fedavg", "1"), ("afl", "2"))]  # the user's files
    assert "With seed 0 not all runs had the same data" in said(swapped)
    assert dict(environment([a, b])) == {"torch": "1, 2", "data, seed 0: SHA-256": "aa, bb"}


def test_environment_of_a_run_directory(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('method = "fedavg"\nseed = 3\n')
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n')
    (tmp_path / "manifest.json").write_text(
        '{"versions": {"torch": "2.9"}, "machines": [{"round": 0, "system": "Linux", "architecture": "aarch64",'
        ' "processor": "Neoverse", "instructions": "SVE", "torch": "2.9", "linear_algebra": "open", "switches": {},'
        ' "cores": 2, "threads": 1}], "git": "0123456789abcdef", "data": {"sha256": "ff", "clients": {"a": [1, 2]}}}'
    )
    run = History.from_run(tmp_path)
    assert run.meta["data"].keys() == {"sha256", "rows"}
    assert environment([run]) == [
        ("torch", "2.9"),
        ("system", "Linux aarch64"),
        ("computed with", "Neoverse · SVE · torch 2.9 · open · 1 threads"),
        ("git commit", "0123456789ab"),
        ("data, seed 3: SHA-256", "ff"),
    ]


# commands
TERMS = terms_of(CLASSIFICATION)
CONFIG = {"method": "fedprox(mu=0.1)+fedheal", "label": "x", "scenario": "digits", "network": "cnn", "rounds": 4,
          "epochs": 2, "batch_size": 16, "lr": 0.02, "momentum": 0.9, "weight_decay": 1e-05}  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {},
    {"steps": 5, "optimizer": "adam", "momentum": 0.0, "clip": 2.0, "participation": 0.25, "threads": 2},
    {
        "scenario_options": {
            "clients": 8,
            "corruption": "gaussian-noise",
            "domains": ["photo", "street"],
            "name": "none",
        }
    },
    {"network": "mlp", "network_options": {"hidden": [20, 10], "norm": True, "weights": "my file.pt", "depth": None}},
    {"data": "my data/here", "scenario": "own", "engine": "stacked", "chunk": 4, "precision": "bf16", "quorum": 0.2},
]


def understood(line: str) -> dict[str, Any]:
    """The fields a command line asks for, as the program reads it."""
    program, name, *words = shlex.split(line)
    assert program == "equipoise"
    group: Any = typer.main.get_command(cli.app)
    given = group.commands[name].make_context(name, words).params
    fields = ("rounds", "epochs", "steps", "batch_size", "lr", "momentum", "weight_decay", "optimizer", "clip",
              "participation", "engine", "chunk", "precision", "quorum", "threads", "device")  # fmt: skip
    told = {field: given[field] for field in fields if given[field] is not None}
    for field in ("scenario", "network"):
        told[field], told[f"{field}_options"] = called(f"--{field}", given[field], "")
    return {**told, "methods": given.get("methods") or [given["method"]], "data": given["data"],
            "seeds": given.get("seeds"), "seed": given.get("seed")}  # fmt: skip


def configured(**changes: Any) -> History:
    config = {k: v for k, v in RunConfig(**{**CONFIG, **changes}).table().items() if v is not None}
    return History([{"round": 0}], {"method": config["method"], "seed": config["seed"], "config": config})


@in_one("changes", VARIANTS)
def test_the_command_makes_the_same_configuration(changes: dict[str, Any]) -> None:
    (line,) = commands([configured(seed=2, **changes)])
    found = understood(line)
    config = RunConfig(**{**CONFIG, **changes})
    assert (found.pop("methods"), found.pop("seed"), found.pop("seeds")) == ([config.method], 2, None)
    known = {key: value for key, value in found.items() if key in config.table() and value is not None}
    if "steps" not in changes:
        assert known["epochs"] == config.epochs
    again = RunConfig(**{**CONFIG, **known})
    assert replace(again, epochs=config.epochs) == config


def test_a_comparison_is_one_command() -> None:
    runs = [configured(method=m, seed=s) for m in ("fedavg", "afl(lr=0.1)") for s in (0, 1, 2)]
    (line,) = commands(runs)
    found = understood(line)
    assert (list(found["methods"]), found["seeds"]) == (["fedavg", "afl(lr=0.1)"], 3)
    assert len(commands([*runs[:-1], configured(method="afl(lr=0.1)", seed=2, rounds=9)])) == 6
    assert len(commands(runs[:-1])) == 5
    assert commands([made_up()]) == []


def test_the_command_has_the_labels_that_were_given() -> None:
    runs = [configured(method=m) for m in ("fedavg", "afl(lr=0.1)")]
    runs = [History(h.records, {**h.meta, "label": label}) for h, label in zip(runs, ("x", "A's"), strict=True)]
    (line,) = commands(runs)
    *_, option, given = shlex.split(line)
    assert (option, given) == ("--label", "afl(lr=0.1)=A's")  # the other has the label of its configuration
    assert list(understood(line)["methods"]) == ["fedavg", "afl(lr=0.1)"]


# terms
def test_every_title_is_explained() -> None:
    blocks = (
        columns.over_groups(ACCURACY),
        *columns.blocks_over_clients(ACCURACY),
        columns.collaboration(),
        [gap for gap in definitions.PARITY if gap.column],
    )
    titles = {column.title for block in blocks for column in block}
    titles |= {title for k, title in MEASURES.items() if k != "accuracy"}
    assert titles <= TERMS.keys()
    assert len({anchor(title, TERMS) for title in TERMS}) == len(TERMS)
    assert hint("Jain", TERMS).endswith("Higher is better.")
    assert hint("mnist", TERMS) == ""


def test_formulas_are_set_low_and_escaped() -> None:
    assert typeset("Σₖ s_g < aᵢ") == "Σ<sub>k</sub> s<sub>g</sub> &lt; a<sub>i</sub>"


# figures
def test_tradeoff_shows_average_against_std() -> None:
    axes = figures_of_groups.tradeoff(Comparison.of(several(3))).axes[0]
    runs = [100 * last_rounds(h.group_table()[1]) for h in several(3) if h.label == "afl"]
    line = axes.containers[1].lines[0]
    assert line.get_xdata() == pytest.approx([np.mean([a.std(ddof=1) for a in runs])])
    assert line.get_ydata() == pytest.approx([np.mean(runs)])


def test_differences_show_the_intervals_of_the_tests() -> None:
    versus = comparison(several(3))["methods"][1]["versus"]
    figure = figures_of_groups.differences(Comparison.of(several(3)))
    assert [axes.get_xlabel() for axes in figure.axes] == [
        f"difference in {what} (points)" for what in ("AVG", "STD", "worst group")
    ]
    (segment,) = figure.axes[1].containers[0].lines[2][0].get_segments()
    low, high = segment[:, 0]
    assert ((low + high) / 2, (high - low) / 2) == pytest.approx((versus["std"]["difference"], versus["std"]["ci95"]))
    with pytest.raises(ValueError, match="two methods with two seeds"):
        figures_of_groups.differences(Comparison.of(several(1)))


# LaTeX
def rated(method: str, seed: int) -> History:
    """A run that recorded how often each group is chosen, and by what means it was bent."""
    rng = np.random.default_rng([seed, len(method)])
    records = []
    for t in range(3):
        y = rng.integers(0, 2, (2, 40))
        groups = {g: {"accuracy": 0.7, "loss": 1.0, "rates": class_counts(y[k], rng.integers(0, 2, 40), 2)}
                  for k, g in enumerate(("women & men_1", "100 % #2"))}  # fmt: skip
        records.append({"round": t, "groups": groups})
    return History(records, {"method": method, "seed": seed})


RICH = {
    "domains": lambda: several(3),
    "collaboration": lambda: [
        collaborator(m, s, follow=f) for s in (0, 1) for m, f in (("fedavg", 0.3), ("fedsac", 1))
    ],
    "measures": lambda: compared(seeds=2),
    "rates": lambda: [rated(m, s) for s in range(3) for m in ("fed_a{v}g", "b~^\\$")],
    "traffic": lambda: [sending("fedavg", 10, 10)],
}
FILES = {
    "domains": {"accuracy", "groups", "clients-level", "clients-evenness", "every-client", "tests-accuracy"},
    "collaboration": {"accuracy", "collaboration", "clients-level", "clients-evenness", "every-client", "communication",
                      "tests-accuracy", "tests-collaboration"},
    "measures": {"accuracy", "balanced", "auc", "auc-ovr", "groups", "tests-accuracy", "tests-balanced", "tests-auc",
                 "tests-auc-ovr"},
    "rates": {"accuracy", "group-rates", "group-fairness", "groups", "tests-accuracy", "tests-group-fairness"},
    "traffic": {"accuracy", "communication"},
}  # fmt: skip


@pytest.mark.parametrize("which", RICH)
def test_every_table_is_a_file_of_latex(which: str, tmp_path: Path) -> None:
    paths = save_latex(RICH[which](), tmp_path / "deep" / "er")
    assert {path.stem for path in paths} == FILES[which]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        body = re.sub(r"(?m)^%.*$", "", text)
        assert re.findall(r"\\begin\{(\w+)\}", body) == ["table", "tabular"]
        assert re.findall(r"\\end\{(\w+)\}", body) == ["tabular", "table"]
        plain = re.sub(r"\\[\\{}&%$#_]", "", body)
        assert plain.count("{") == plain.count("}")
        assert plain.count("$") % 2 == 0
        assert "%" not in plain
        assert "#" not in plain
        columns = len(re.search(r"\\begin\{tabular\}\{(l?r*)\}", body)[1])  # type: ignore[index]
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(rows) >= 2
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {columns}
        assert not [character for character in body if ord(character) > 255]


def test_the_file_of_a_table_is_that_of_the_library(tmp_path: Path) -> None:
    from equipoise.report import latex

    histories = compared(seeds=2)
    save_latex(histories, tmp_path)
    names = ("accuracy", "balanced", "auc", "auc-ovr")
    assert "\n".join((tmp_path / f"{name}.tex").read_text() for name in names) == latex(comparison(histories))


# the page
@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their figures, which take most of the time."""
    monkeypatch.setattr(figures, "draw_all", lambda histories: {})


@pytest.mark.parametrize("which", RICH)
def test_the_page_leads_everywhere_and_nowhere_else(which: str, request: pytest.FixtureRequest) -> None:
    if which != "measures":  # the figures of one are enough
        request.getfixturevalue("undrawn")
    html = render(RICH[which]())
    page = Page(html)
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = re.findall(r'<a [^>]*href="([^"]+)"', html)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link|<img|\bsrc=", without_script(html))
    assert all(re.search(r'scope="(col|row)"', head) for head in re.findall(r"<th\b[^>]*>", html))
    assert html.count('<svg role="img" aria-labelledby=') + html.count('class="panel"') == page.tags.count("svg")
    for title, shown in re.findall(r'data-hint="([^"]+)">(.*?)</a>', html):
        assert unescape(title) == hint(unescape(shown), TERMS) != ""


@pytest.mark.usefixtures("undrawn")
def test_the_page_explains_what_it_shows_and_no_more() -> None:
    def explained(histories: list[History]) -> set[str]:
        (legend,) = (table for table in Page(render(histories)).tables if table[0][0] == "Measure")
        return {row[0] for row in legend[1:]}

    shown = explained(several(3))
    assert {"AVG", "STD", "Jain", "KL", "p", "Holm p"} <= shown
    assert not {"fairness", "BCF", "equal opportunity", "client STD"} & shown
    assert {"equal opportunity", "accuracy gap"} <= explained(RICH["rates"]())


@pytest.mark.usefixtures("undrawn")
def test_the_page_shows_tests_traffic_and_command() -> None:
    runs = [sending(m, d, 1000, s) for m, d in (("fedavg", 1000), ("half", 500)) for s in (0, 1)]
    runs = [
        History(run.records, {**run.meta, "config": configured(method=run.method, seed=run.seed).meta["config"]})
        for run in runs
    ]
    page = Page(render(runs))
    assert "No test is possible" in page.text
    assert "0.750" in page.text
    assert "equipoise compare fedavg half --scenario digits" in page.text
    assert "One seed: no test is possible." in Page(render(several(1))).text
    assert "not the probability" in Page(render(several(2))).text


def test_a_setting_says_who_chose_it() -> None:
    origins = {"method": "command line", "lr": "command line", "scenario_options": "mine.toml"}
    config = {"method": "fedavg", "lr": 0.05, "rounds": 20, "scenario_options": {"alpha": 0.1}, "origins": origins}
    chosen = History([], {"method": "fedavg", "config": config})
    python = History([], {"method": "fedavg", "config": {**config, "rounds": 9, "origins": {"rounds": "arguments"}}})
    common, differing = settings_of({"fedavg": [chosen], "again": [python]})
    assert common == [
        ("method", "fedavg"),
        ("lr", "0.05 (command line)"),
        ("scenario_options.alpha", "0.1 (mine.toml)"),
    ]
    assert differing == [("rounds", ["20", "9 (arguments)"])]
