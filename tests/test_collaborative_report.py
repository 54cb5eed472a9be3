"""The table, the figures and the page about contribution and reward, on histories made up here."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from rich.console import Console
from scipy import stats

from equipoise.federation.history import History
from equipoise.metrics import definitions
from equipoise.report import (
    comparison,
    draw_all,
    drawing,
    figures_of_clients,
    latex,
    markdown,
    render,
    rich_table,
    verdict,
)
from equipoise.report.columns import collaboration
from equipoise.report.layout import Grid, sheets
from equipoise.report.sentences import evidence
from equipoise.report.statistics import Comparison
from test_report import Page, made_up

N = 6
UNITS = {"names": ["0", "2"], "sizes": [8, 5]}
FULL = 1000
NEW = ["plane", "contributions", "clients", "neurons"]


def bits(table: np.ndarray) -> list[str]:
    return [np.packbits(row).tobytes().hex() for row in table]


def held(share: np.ndarray, seed: int) -> np.ndarray:
    """Nested sets of units: the larger the share, the more of one order."""
    order = np.random.default_rng(seed).permutation(13)
    table = np.zeros((len(share), 13), dtype=bool)
    for m, part in enumerate(share):
        table[m, order[: max(1, int(13 * part))]] = True
    return table


def made(method: str, seed: int = 0, *, n: int = N, follow: float = 1.0, rounds: int = 6, **meta: Any) -> History:
    """A run whose rewards follow contribution as much as asked; `follow` 0 is one model for all."""
    rng = np.random.default_rng([seed, *method.encode()])
    c = np.random.default_rng(seed).permutation(np.linspace(0.5, 0.8, n))
    share = np.exp(3 * (c - c.max()))
    final = 0.82 + 0.1 * follow * (c - 0.5) + 0.01 * max(0, follow * (1 - follow)) * rng.standard_normal(n)
    final = final + 0.02 * rng.random()
    down = np.zeros(n) if method == "standalone" else share if method == "fedsac" else np.ones(n)
    if method == "standalone":
        final = c
    records: list[dict[str, Any]] = []
    for t in range(rounds):
        sent = (FULL * down).astype(int).tolist()
        record = {
            "round": t,
            "groups": {"all": {"accuracy": float(final.max())}},
            "clients": {"accuracy": (final * (1 - 0.4 * 0.5**t * (t < rounds - 1))).tolist()},
            "ids": list(range(n)),
            "bytes": {"down": sent, "up": sent, "full": FULL},
        }
        if method == "fedsac":
            record["units"] = {"held": [], **({"bits": bits(held(share, seed + t))} if t % 3 == 0 else {})}
        records.append(record)
    told = {"contribution": {"standalone_test": c.tolist()}, "scenario": "digits-pow", "rounds": rounds, **meta}
    return History(records, {"method": method, "seed": seed, "units": UNITS, **told})


METHODS = {"fedavg": 0.0, "standalone": 1.0, "fedavg+finetune": 0.3, "fedsac": 1.0}


def several(seeds: int = 3, **options: Any) -> list[History]:
    return [made(m, seed, follow=f, **options) for seed in range(seeds) for m, f in METHODS.items()]


def shown(found: Any, width: int = 200) -> str:
    file = io.StringIO()
    Console(file=file, width=width, no_color=True).print(rich_table(found))
    return file.getvalue()


def of(found: Any, method: str) -> Any:
    return next(m for m in found["collaboration"]["methods"] if m["method"] == method)


def collaboration_grid(found: Any) -> Grid | None:
    return next((sheet.grid for sheet in sheets(found) if sheet.name == "collaboration"), None)


def cells_of(histories: list[History]) -> dict[str, Any]:
    """Cells of the first method by column."""
    content = collaboration_grid(comparison(histories))
    assert content is not None
    return dict(zip((column.key for column in collaboration()), content.rows[0][1], strict=True))


# the comparison
def test_comparison_is_the_summaries_over_seeds() -> None:
    histories = several()
    found = comparison(histories)
    json.dumps(found, allow_nan=False)
    block = found["collaboration"]
    assert (block["scenario"], block["seeds"], block["clients"]) == ("digits-pow", [0, 1, 2], N)
    assert [m["method"] for m in block["methods"]] == list(METHODS)
    for method in block["methods"]:
        summaries = [h.summary()["collaboration"] for h in histories if h.label == method["method"]]
        columns = {
            **{key: [s[key] for s in summaries] for key in ("fairness", "spearman", "max", "mean", "min")},
            **{key: [s[key] for s in summaries] for key in ("fairness_mean", "fairness_oracle")},
            "gain": [s["gain"]["mean"] for s in summaries],
            "worse_off": [s["gain"]["worse_off"] for s in summaries],
            "bcf": [None if s["fairness"] is None else s["bcf"]["rate"] for s in summaries],
            "down": [100 * s["bytes"]["down"] / FULL for s in summaries],
            "up": [100 * s["bytes"]["up"] / FULL for s in summaries],
        }
        assert {statistic.key for statistic in definitions.COLLABORATION} <= set(columns)
        for key, values in columns.items():
            if None in values:
                assert method[key] == {"mean": None, "std": None, "ci95": None}, key
            else:
                assert method[key]["mean"] == pytest.approx(np.mean(values)), key
                assert method[key]["std"] == pytest.approx(np.std(values, ddof=1)), key
    assert of(found, "fedavg")["fairness"]["mean"] is None
    assert of(found, "fedsac")["fairness"]["mean"] == pytest.approx(100)
    assert 20 < of(found, "fedsac")["down"]["mean"] < 90
    assert [m["alone"] for m in block["methods"]] == [False, True, False, False]


def test_differences_are_paired_by_seed() -> None:
    found = comparison(several())
    tops = [
        [h.summary()["collaboration"]["max"] for h in several() if h.label == label] for label in ("fedsac", "fedavg")
    ]
    versus = of(found, "fedsac")["versus"]
    assert versus["max"]["difference"] == pytest.approx(np.mean(tops[0]) - np.mean(tops[1]))
    assert versus["max"]["p"] == pytest.approx(stats.ttest_rel(*tops).pvalue)
    assert versus["fairness"] == dict.fromkeys(("difference", "ci95", "low", "high", "p", "holm")) | {
        "family": 1,
        "seeds": 3,
        "apart": False,
    }
    assert of(found, "fedavg")["versus"] is None
    assert f"max {versus['max']['difference']:+.2f}" in markdown(found)


def test_runs_without_contributions_have_no_table() -> None:
    assert comparison([made_up()])["collaboration"] is None
    assert collaboration_grid(comparison([made_up()])) is None
    assert "ollaborat" not in shown(comparison([made_up()])) + Page(render([made_up()])).text


def test_notes() -> None:
    notes = " ".join(comparison(several(1))["collaboration"]["notes"])
    assert "Fairness of fedavg is not defined: all clients have the same accuracy" in notes
    assert "Add finetune" not in notes  # it is there
    plain = [made("afl", follow=0.0), made("fedsac")]
    assert comparison(plain)["collaboration"]["notes"][0].endswith(
        "Add finetune, as in afl+finetune, to compare the clients after local training."
    )
    named_like_a_word = [made("all"), made("afl", follow=0.0)]
    assert "as in afl+finetune" in comparison(named_like_a_word)["collaboration"]["notes"][0]
    assert "Clients of standalone receive nothing" in notes
    assert "is unreliable" not in notes
    assert comparison([made("fedsac")])["collaboration"]["notes"] == []
    assert "over 3 clients is unreliable" in comparison([made("fedsac", n=3)])["collaboration"]["notes"][0]
    plain = made("fedavg", contribution=None)
    assert (
        "standalone accuracies of fedavg are not known"
        in comparison([plain, made("fedsac")])["collaboration"]["notes"][0]
    )
    other = made("cffl", contribution={"standalone_test": np.linspace(0.4, 0.5, N).tolist()})
    assert "With seed 0 the runs have different" in comparison([other, made("fedsac")])["collaboration"]["notes"][0]
    for used, what in {
        "standalone_val": "validation data",
        "standalone_test": "on the test set, which training",
        "given": "that the user gave",
    }.items():
        contribution = made("fedsac").meta["contribution"] | {"used": used}
        note = comparison([made("cffl"), made("fedsac", contribution=contribution)])["collaboration"]["notes"]
        assert len(note) == 1
        assert note[0].startswith("fedsac rewarded contributions ")
        assert what in note[0]
    equal = made("fedsac", contribution={"standalone_test": [0.5] * N})
    assert "reach the same accuracy alone" in comparison([equal])["collaboration"]["notes"][0]


# the tables
@pytest.mark.parametrize("seeds", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_every_table_holds_the_numbers(seeds: int) -> None:
    histories = several(seeds)
    found = comparison(histories)
    page = Page(render(histories))
    titles = [column.title for column in collaboration()]
    table = next(t for t in page.tables if "fairness" in t[0])
    assert table[0] == ["Method", *titles]
    for text in (shown(found), markdown(found), latex(found), page.text):
        for method in found["collaboration"]["methods"]:
            for column in collaboration():
                key, digits = column.key, column.digits
                cell = method[key]
                if cell["mean"] is not None and not (key == "bcf" and method["satisfied"]):
                    number = f"{abs(cell['mean']):.{digits}f}"
                    assert number in text
                    assert seeds == 1 or f"{cell['ci95']:.{digits}f}" in text
    assert latex(found).count("{") == latex(found).count("}")
    assert re.search(r"fedavg & -- & -- &", latex(found))
    assert re.search(r"\| fedavg \| – \| – \|", markdown(found))
    assert table[1][:3] == ["fedavg", "–", "–"]


def test_the_terminal_fits_eighty_columns() -> None:
    histories = several()
    for label in ("fedavg+finetune", "a-method-with-a-rather-long-name+finetune"):
        named = [History(h.records, {**h.meta, "label": label} if h.method == "fedsac" else h.meta) for h in histories]
        named = [h for h in named if h.method != "fedavg+finetune"]
        text = shown(comparison(named), 80)
        assert "…" not in text
        assert all(len(line) <= 80 for line in text.splitlines())


def test_the_best_is_bold_but_not_what_is_so_by_construction() -> None:
    """Standalone has a fairness of 100 because reward is contribution; bytes are not a contest."""
    found = comparison([made("standalone"), made("cffl", follow=0.3), made("cgsv", follow=0.5)])
    content = collaboration_grid(found)
    assert content is not None
    cells = {name: dict(zip(content.titles, row, strict=True)) for name, row in content.rows}
    assert cells["standalone"]["fairness"].mean == "100.00"
    assert not cells["standalone"]["fairness"].best
    assert not cells["standalone"]["Spearman"].best
    assert not any(row["fairness"].best for row in cells.values())  # one seed: neither can be told from the other
    found = comparison(
        [made(m, seed, follow=f) for seed in range(5) for m, f in (("standalone", 1), ("cffl", 0.3), ("cgsv", 1))]
    )
    rows = collaboration_grid(found).rows
    assert [name for name, row in rows if row[0].best] == ["cgsv"]
    assert not any(row[way].best for row in cells.values() for way in ("down", "up"))


def test_negative_numbers_have_a_minus_sign_and_zero_has_none() -> None:
    bad = made("fedsac", follow=-1.0)
    cells = cells_of([bad])
    assert cells["fairness"].mean == "−100.00"
    assert "$-$100.00" in latex(comparison([bad]))
    alone = made("standalone")
    exact = [{**r, "clients": {"accuracy": [a - 1e-9 for a in alone.contribution]}} for r in alone.records]
    cells = cells_of([History(exact, alone.meta)])
    assert cells["gain"].mean == "0.00"


def test_bounds_are_yes_only_without_a_violation() -> None:
    def with_rewards(reward: list[float], seed: int) -> History:
        meta = {"method": "m", "seed": seed, "contribution": {"standalone_test": [0.5, 0.6, 0.8, 0.81, 0.82]}}
        return History([{"round": 0, "clients": {"accuracy": reward}}], meta)

    good, bad = [0.6, 0.7, 0.84, 0.853, 0.9], [0.6, 0.7, 0.79, 0.853, 0.9]

    def bcf(*runs: History) -> Any:
        return cells_of(list(runs))["bcf"]

    assert bcf(with_rewards(good, 0), with_rewards(good, 1)).text == "yes"
    assert bcf(with_rewards(good, 0), with_rewards(bad, 1)).mean == "90.0"
    assert bcf(with_rewards([0.9] * 5, 0)).text == "–"  # one model for all has no fairness to bound


def test_without_bytes_there_is_no_share() -> None:
    history = made("fedsac")
    records = [{**r, "bytes": {k: v for k, v in r["bytes"].items() if k != "full"}} for r in history.records]
    for changed in (records, [{k: v for k, v in r.items() if k != "bytes"} for r in records]):
        method = of(comparison([History(changed, history.meta)]), "fedsac")
        assert (method["down"]["mean"], method["up"]["mean"], method["alone"]) == (None, None, False)


def test_verdict() -> None:
    found = comparison(several(6))
    text = verdict(found)
    assert "What clients get follows what they contribute best with fedsac: fairness 100.00 of 100" in text
    top = of(found, "fedsac")["max"]["mean"]
    assert f"with {top:.2f}\u00a0% for the best client." in text
    (below,) = (line for line in evidence(found) if line.startswith("Rewards"))
    assert "fedsac; distinguishable from fedavg+finetune (" in below
    assert "standalone" not in below
    one = verdict(comparison(several(1)))
    assert "Fairness of contribution and reward: fedavg+finetune" in one
    assert "best with" not in one
    assert "contribute" not in verdict(comparison([made_up(), made_up("afl")]))
    assert "contribut" not in verdict(comparison([made("fedavg", follow=0.0)]))
    assert "Fairness of contribution and reward: fedsac 100.00 of 100" in verdict(comparison([made("fedsac")]))


# the figures
def test_draw_all_draws_them_where_the_data_exist() -> None:
    assert [name for name in draw_all(several(1)) if name in NEW] == NEW
    assert [name for name in draw_all([made("cffl")]) if name in NEW] == NEW[:3]
    assert not set(draw_all([made_up("afl"), made("fedavg", contribution=None, scenario="digits")])) & set(NEW)
    unknown = made("cffl")
    records = [{**r, "clients": {"accuracy": [None, *r["clients"]["accuracy"][1:]]}} for r in unknown.records]
    assert not set(draw_all([History(records, unknown.meta)])) & set(NEW)


@pytest.mark.parametrize(
    "draw",
    [
        figures_of_clients.contributions,
        figures_of_clients.plane,
        figures_of_clients.clients,
        figures_of_clients.neurons,
    ],
)
def test_figures_without_data_say_so(draw: Any) -> None:
    with pytest.raises(ValueError, match=r"this figure shows .*, which no record of m holds"):
        draw(Comparison.of([History([{"round": 0, "clients": {"accuracy": [0.5]}}], {"method": "m"})]))


def test_contributions_stand_beside_rewards() -> None:
    histories = several()
    panels = figures_of_clients.contributions(Comparison.of(histories)).axes
    assert [axes.get_title(loc="left") for axes in panels] == list(METHODS)
    for axes, run in zip(panels, histories, strict=False):
        order = np.argsort(run.contribution)
        alone, owned = ([bar.get_height() for bar in container] for container in axes.containers)
        assert alone == pytest.approx(100 * run.contribution[order])
        assert owned == pytest.approx(100 * run.client_table()[1][-1][order])
        assert [label.get_text() for label in axes.get_xticklabels()] == [str(m) for m in order]
        found = run.summary()["collaboration"]["fairness"]
        assert axes.get_title(loc="right") == ("–" if found is None else f"{found:.1f}")
        low, high = axes.get_ylim()
        assert 0 <= low < min(alone + owned)
        assert max(alone + owned) < high <= 100


def test_contributions_of_many_clients_are_marks_on_the_bars() -> None:
    run = made("fedsac", n=60)
    axes = figures_of_clients.contributions(Comparison.of([run])).axes[0]
    (bars,) = axes.containers
    order = np.argsort(run.contribution)
    assert [bar.get_height() for bar in bars] == pytest.approx(100 * run.client_table()[1][-1][order])
    (marks,) = axes.collections
    assert [segment[0][1] for segment in marks.get_segments()] == pytest.approx(100 * run.contribution[order])
    assert axes.get_xticks().size == 0


def test_plane_has_a_point_per_method() -> None:
    histories = several()
    axes = figures_of_clients.plane(Comparison.of(histories)).axes[0]
    found = comparison(histories)
    drawn = {container.get_label(): container for container in axes.containers}
    assert list(drawn) == [m for m in METHODS if m != "fedavg"]
    for label, container in drawn.items():
        point, _, (across, along) = container
        method = of(found, label)
        assert point.get_xydata()[0] == pytest.approx([method["fairness"]["mean"], method["max"]["mean"]])
        assert np.ptp(across.get_segments()[0][:, 0]) == pytest.approx(2 * method["fairness"]["ci95"])
        assert np.ptp(along.get_segments()[0][:, 1]) == pytest.approx(2 * method["max"]["ci95"])
    (line,) = [line for line in axes.lines if line.get_label() == "fedavg"]
    assert line.get_ydata() == pytest.approx([of(found, "fedavg")["max"]["mean"]] * 2)
    assert axes.get_xlim()[1] <= 104
    assert all(not container[2] for container in figures_of_clients.plane(Comparison.of(several(1))).axes[0].containers)


def test_clients_are_coloured_by_what_they_reach_alone() -> None:
    histories = several(1)
    *panels, bar = figures_of_clients.clients(Comparison.of(histories)).axes
    assert len(panels) == len(METHODS)
    colors = {}
    for axes, run in zip(panels, histories, strict=True):
        order = np.argsort(run.contribution)
        assert len(axes.lines) == N
        for line, m in zip(axes.lines, order, strict=True):
            np.testing.assert_allclose(line.get_ydata(), 100 * run.client_table()[1][:, m])
            colors.setdefault(m, to_rgba(line.get_color()))
            assert to_rgba(line.get_color()) == colors[m]  # of one client in every panel
    red = [colors[m][0] for m in order]
    assert red == sorted(red)
    assert len(set(colors.values())) == N
    assert bar.get_xlim() == pytest.approx([100 * min(histories[0].contribution), 100 * max(histories[0].contribution)])


def test_clients_over_many_rounds_keep_the_last() -> None:
    run = made("fedsac", rounds=1000)
    line = figures_of_clients.clients(Comparison.of([run])).axes[0].lines[0]
    assert len(line.get_xdata()) <= 201
    assert line.get_xdata()[-1] == 999


def test_neurons_show_who_holds_what() -> None:
    run = made("fedsac")
    _, table = figures_of_clients.unit_table(run)
    axes = figures_of_clients.neurons(Comparison.of([made("fedavg", follow=0.0), run])).axes[0]
    bars = [bar for container in axes.containers for bar in container]
    blue = [bar for bar in bars if bar.get_facecolor() == to_rgba(drawing.PALETTE[0])]
    order = np.argsort(run.contribution)
    for row, m in enumerate(order):
        widths = [bar.get_width() for bar in blue if bar.get_y() < row < bar.get_y() + bar.get_height()]
        assert sum(widths) == table[m].sum()
        assert len(widths) == sum(table[m, part].any() for part in (slice(0, 8), slice(8, 13)))  # nested: one stretch
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0 (8)", "2 (5)"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(m) for m in order]
    grey = [bar for bar in bars if bar.get_facecolor() == to_rgba(drawing.FAINT)]
    assert sum(bar.get_width() for bar in grey) == N * 13


def test_neurons_that_are_not_nested() -> None:
    table = np.random.default_rng(0).random((30, 13)) < 0.5
    table[0] = False
    records = [{"round": 0, "units": {"held": [], "bits": bits(table)}}]
    axes = figures_of_clients.neurons(Comparison.of([History(records, {"method": "m", "units": UNITS})])).axes[0]
    bars = [bar for container in axes.containers for bar in container]
    blue = [bar for bar in bars if bar.get_facecolor() == to_rgba(drawing.PALETTE[0])]
    assert sum(bar.get_width() for bar in blue) == table.sum()
    assert len(axes.get_yticks()) == 0
    left = [table[:, :8].sum(0).max(), table[:, 8:].sum(0).max()]
    edge = 8 + 0.02 * 13
    for first, most in zip((0, edge), left, strict=True):
        assert sum(bar.get_x() == pytest.approx(first) for bar in blue) == most  # the unit most clients hold is first


@pytest.mark.slow
def test_figures_of_odd_runs() -> None:
    """Equal contributions, one client, one round, names that matplotlib would read."""
    runs = [
        made("fedsac", contribution={"standalone_test": [0.5] * N}),
        made("_a$^$", rounds=1),
        made("fedsac", n=1),
        made("cffl", n=60, follow=0.5),
    ]
    for run in runs:
        for figure in draw_all([run]).values():
            figure.savefig(io.BytesIO(), format="png")


# the page
def test_page_shows_all_of_it() -> None:
    histories = several()
    html = render(histories)
    page = Page(html)
    assert "Collaborative fairness" in page.text
    for name in NEW:
        assert f'id="caption-{name}"' in html
    assert (
        "up and right is better. Crosses: 95\u00a0% intervals over the seeds (Student's t). Dashed: methods whose"
        in page.text
    )
    assert "Dashed: methods whose" not in Page(render([made("fedsac")])).text
    differences = [t for t in page.tables if t[0] == ["Method", "fairness", "max", "mean"]]
    assert [row[0] for row in differences[0][1:]] == ["standalone", "fedavg+finetune", "fedsac"]
    assert "Fairness of fedavg is not defined" in page.text
    references = [value for name, value in page.attributes if name in ("href", "src", "xlink:href")]
    assert all(value.startswith("#") for value in references)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert "<image" not in html
    assert len(html) < 1_000_000
