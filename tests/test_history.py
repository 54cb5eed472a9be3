"""A history: what it holds, what it reads back, what it says when something is wrong."""

import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, strategies as st

from equipoise.federation.history import History
from equipoise.metrics.groups import POSITIVE_CLASS
from equipoise.records.directory import all_members, members
from equipoise.records.meta import LEAK, REPEATED
from equipoise.records.record import line
from equipoise.system.files import write_atomically
from equipoise.system.text import key_of
from helpers import in_one, write_records

RECORDS = (
    {
        "round": 0,
        "seconds": 1.5,
        "groups": {"photo": {"accuracy": 0.5, "loss": 1.5}, "sketch": {"accuracy": 0.3, "loss": 2.0}},
        "clients": {"accuracy": [0.5, 0.25, 0.75]},
        "ids": [0, 2],
        "weights": [0.75, 0.25],
    },
    {"round": 1, "seconds": 1.0, "ids": [1, 2], "weights": [0.5, 0.5]},  # no evaluation
    {
        "round": 2,
        "groups": {"photo": {"accuracy": 0.7, "loss": 1.0}, "sketch": {"accuracy": 0.4, "loss": 1.9}},
        "clients": {"accuracy": [0.7, 0.35, None]},
        "ids": [0, 1, 2],
        "weights": [0.2, 0.3, 0.5],
    },
)
META = {
    "method": "fedheal",
    "scenario": "toy",
    "seed": 3,
    "rounds": 3,
    "client_names": ["a", "b", "c"],
    "client_groups": ["photo", "sketch", "photo"],
}


@pytest.fixture
def history():
    return History(RECORDS, META)


def test_frame(history):
    frame = history.frame()
    assert list(frame.columns) == ["round", "group", "accuracy", "loss"]
    assert frame.values.tolist() == [
        [0, "photo", 0.5, 1.5],
        [0, "sketch", 0.3, 2.0],
        [2, "photo", 0.7, 1.0],
        [2, "sketch", 0.4, 1.9],
    ]


def test_clients(history):
    frame = history.clients()
    assert list(frame.columns) == ["round", "client", "name", "group", "accuracy"]
    assert frame.iloc[:4].values.tolist() == [
        [0, 0, "a", "photo", 0.5],
        [0, 1, "b", "sketch", 0.25],
        [0, 2, "c", "photo", 0.75],
        [2, 0, "a", "photo", 0.7],
    ]
    assert math.isnan(frame.accuracy.iloc[-1])


def test_weights_are_missing_where_a_client_was_away(history):
    frame = history.weights()
    assert frame.index.tolist() == [0, 1, 2]
    assert frame.columns.tolist() == [0, 1, 2]
    expected = [[0.75, math.nan, 0.25], [math.nan, 0.5, 0.5], [0.2, 0.3, 0.5]]
    np.testing.assert_array_equal(frame.to_numpy(), expected)


def test_summary_averages_rounds_before_groups(history):
    found = history.summary()
    photo, sketch = 60.0, 35.0
    assert found["groups"] == pytest.approx({"photo": photo, "sketch": sketch})
    assert found["avg"] == pytest.approx(47.5)
    assert found["std"] == pytest.approx(statistics.stdev([photo, sketch]))
    assert (found["worst"], found["worst_group"]) == (pytest.approx(35), "sketch")
    assert (found["rounds"], found["averaged"]) == (3, [0, 2])
    assert history.summary(last=1)["groups"] == pytest.approx({"photo": 70, "sketch": 40})
    assert history.summary(last=1)["averaged"] == [2]


def test_summary_of_clients():
    found = History(RECORDS[:1], META).summary()["clients"]
    assert found["mean"] == pytest.approx(50)
    assert found["gap"] == pytest.approx(50)
    assert found["variance"] == pytest.approx((0 + 625 + 625) / 3)
    assert found["jain"] == pytest.approx(1.5**2 / (3 * (0.25 + 0.0625 + 0.5625)))


def measured(accuracy, auc=None, **more):
    return {"accuracy": accuracy, "loss": 1.0, **({} if auc is None else {"balanced": auc - 0.1, "auc": auc}), **more}


@pytest.fixture
def with_areas():
    """Four rounds of two groups; the areas are there in the second and the fourth. Three clients of four are clean."""
    records = [
        {"round": 0, "groups": {"clean": measured(0.5), "noisy": measured(0.3)}},
        {"round": 1, "groups": {"clean": measured(0.6, 0.8), "noisy": measured(0.5, 0.7)}},
        {"round": 2, "groups": {"clean": measured(0.9), "noisy": measured(0.8)}},
        {"round": 3, "groups": {"clean": measured(0.7, 0.9), "noisy": measured(0.6, 0.6)}},
    ]
    groups = ["clean", "clean", "noisy", "clean"]
    return History(records, {"method": "fedism", "client_groups": groups, "measures": ["accuracy", "balanced", "auc"]})


def test_measures_have_tables_of_their_own_rounds(with_areas):
    assert with_areas.measures == ("accuracy", "balanced", "auc")
    assert with_areas.group_counts == (3, 1)
    rounds, table = with_areas.group_table("auc")
    assert rounds == [1, 3]
    np.testing.assert_array_equal(table, [[0.8, 0.7], [0.9, 0.6]])
    assert with_areas.group_table()[0] == [0, 1, 2, 3]
    rounds, table = with_areas.group_table("auc_ovr")
    assert (rounds, table.shape) == ([], (0, 2))
    with pytest.raises(ValueError, match=r"Unknown measure 'acu'\. Did you mean 'auc'"):
        with_areas.group_table("acu")


def test_summary_of_a_measure(with_areas):
    found = with_areas.summary(measure="auc")
    assert found["groups"] == pytest.approx({"clean": 85, "noisy": 65})
    assert (found["avg"], found["worst"], found["gap"]) == pytest.approx((75, 65, 20))
    assert found["std"] == pytest.approx(statistics.stdev([85, 65]))
    assert found["client_std"] == pytest.approx(math.sqrt(3 / 16) * 20)
    assert (found["worst_group"], found["clients"], found["averaged"]) == ("noisy", {}, [1, 3])
    assert (found["rounds"], found["last"], found["best"]) == (4, pytest.approx(75), pytest.approx(75))
    assert with_areas.summary(1, "balanced")["groups"] == pytest.approx({"clean": 80, "noisy": 50})
    assert with_areas.summary(measure="auc_ovr")["groups"] == {"clean": None, "noisy": None}


def test_last_and_best_round(with_areas):
    found = with_areas.summary()
    assert (found["last"], found["best"]) == (pytest.approx(65), pytest.approx(85))
    one = History([{"round": t, "groups": {"all": {"accuracy": a}}} for t, a in enumerate((0.3, 0.6, 0.5))], META)
    assert [one.summary()[key] for key in ("avg", "last", "best")] == pytest.approx([140 / 3, 50, 60])


def test_clients_without_a_group_have_no_std_between_groups(with_areas):
    for groups in (None, [], ["clean", "clean", "", "noisy"], ["clean", "elsewhere"]):
        history = History(with_areas.records, {"method": "m", "client_groups": groups})
        assert history.group_counts is None
        assert history.summary(measure="auc")["client_std"] is None


def test_frame_has_a_column_for_every_measure(with_areas):
    frame = with_areas.frame()
    assert list(frame.columns) == ["round", "group", "accuracy", "loss", "balanced", "auc"]
    assert frame.iloc[2].tolist() == [1, "clean", 0.6, 1.0, pytest.approx(0.7), 0.8]
    assert math.isnan(frame.auc.iloc[0])


def test_measures_survive_the_files(tmp_path, with_areas):
    run = make_run(tmp_path, with_areas.records)
    (run / "manifest.json").write_text(json.dumps({"measures": ["accuracy", "balanced", "auc"]}))
    found = History.from_run(run)
    assert found.meta["measures"] == ["accuracy", "balanced", "auc"]
    assert found.measures == with_areas.measures
    assert History(RECORDS, META).measures == ("accuracy",)
    assert History([], META).measures == ()


def test_summary_says_none_where_nothing_is_defined(history):
    found = history.summary()
    known = history.client_table()[1].mean(axis=0)
    assert np.isnan(known).sum() == 1  # one client was not evaluated, so the spread is over the others
    assert found["clients"]["mean"] == pytest.approx(100 * np.nanmean(known))
    assert (found["clients_counted"], found["small_clients"]) == (len(known) - 1, 0)
    one = History([{"round": 0, "groups": {"all": {"accuracy": 0.5}}}], {"method": "m"}).summary()
    assert (one["avg"], one["std"], one["worst_group"]) == (50, None, "all")
    empty = History([], {"method": "m"}).summary()
    numbers = ("avg", "std", "worst", "worst_group", "gap", "client_std", "last", "best", "failure")
    expected = {**dict.fromkeys(numbers), "groups": {}, "clients": {}}
    nothing = ("collaboration", "group_fairness", "validation", "selected_round", "stopped_round", "stopped")
    assert empty == {
        **expected,
        "rounds": 0,
        "averaged": [],
        "sizes": {},
        "small_groups": [],
        "least_group": 10,
        "clients_counted": 0,
        "small_clients": 0,
        **dict.fromkeys(nothing),
    }
    json.dumps([found, one, empty], allow_nan=False)


def test_empty_frames_keep_their_columns():
    history = History([], {"method": "m"})
    assert list(history.frame().columns) == ["round", "group", "accuracy", "loss"]
    assert history.clients().empty
    assert history.weights().empty


def test_repr(history):
    assert repr(history) == "History(fedheal on toy, seed 3, 3 rounds: avg 47.5, std 17.7, worst 35.0 (sketch))"
    assert repr(History([{"round": 0}], {"method": "m"})) == "History(m, seed 0, 1 round: not evaluated)"


def test_names_of_unnamed_clients():
    history = History([{"round": 0, "ids": [0, 2], "weights": [0.5, 0.5]}], {"method": "m", "client_names": ["a"]})
    assert history.client_names == ("a", "1", "2")
    assert history.client_groups == ("", "", "")


def test_history_is_frozen(history):
    with pytest.raises(AttributeError):
        history.records = ()


def make_run(tmp_path, records=RECORDS, config='method = "fedheal"\nscenario = "toy"\nseed = 3\nrounds = 3\n'):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(config, encoding="utf-8")
    write_records(History(records, META), run / "metrics.jsonl")
    return run


def test_from_run_reads_what_was_written(tmp_path, history):
    run = make_run(tmp_path)
    (run / "manifest.json").write_text(json.dumps({"client_names": ["a", "b", "c"], "versions": {"torch": "2.6"}}))
    (run / "summary.json").write_text(json.dumps({"header": ["engine: stacked"], "rounds": 99}))
    found = History.from_run(run)
    assert found.records == history.records
    assert found.meta["config"]["seed"] == 3
    assert {k: found.meta[k] for k in ("method", "scenario", "seed", "rounds")} == {
        "method": "fedheal",
        "scenario": "toy",
        "seed": 3,
        "rounds": 3,  # the configuration has the last word
    }
    assert found.client_names == ("a", "b", "c")
    assert found.meta["versions"] == {"torch": "2.6"}
    assert found.meta["header"] == ["engine: stacked"]


def test_lines_about_runs_of_versions_without_keys_have_them(tmp_path, history):
    run = make_run(tmp_path)
    leak = "data: t.csv: the column a tells the class of all 9 samples. Leave it out."
    lines = {leak: LEAK, "The positive class is b.": POSITIVE_CLASS, str(REPEATED): REPEATED.key, "3 clients": ""}
    (run / "manifest.json").write_text(json.dumps({"header": ["method /a/b/mine.py:Prox · 3 clients", *lines]}))
    header = History.from_run(run).meta["header"]
    assert [key_of(line) for line in header] == ["", *lines.values()]
    assert header == ["method mine.py:Prox · 3 clients", *lines]
    (run / "manifest.json").write_text(json.dumps({"header": [*lines], "header_keys": ["", LEAK]}))
    meta = History.from_run(run).meta
    assert [key_of(line) for line in meta["header"]] == ["", LEAK, "", ""]
    assert "header_keys" not in meta


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_from_run_ignores_a_torn_last_line(tmp_path, history, cut):
    run = make_run(tmp_path)
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - cut])
    assert History.from_run(run).records == history.records[:2]


def test_from_run_accepts_a_complete_last_line_without_newline(tmp_path, history):
    run = make_run(tmp_path)
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert History.from_run(run).records == history.records


def test_from_run_takes_the_later_record_of_a_resumed_run(tmp_path):
    run = make_run(tmp_path)
    first, *_ = (run / "metrics.jsonl").read_text().splitlines()
    again = line({"round": 1, "train_loss": 0.1}, json.loads(first)["hash"])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(again + line({"round": 2, "train_loss": 0.2}, json.loads(again)["hash"]))
    found = History.from_run(run)
    assert [record["round"] for record in found.records] == [0, 1, 2]
    assert [record.get("train_loss") for record in found.records] == [None, 0.1, 0.2]


def test_from_run_keeps_strange_names_in_one_line(tmp_path):
    record = {"round": 0, "quarantined": [{"client": 0, "name": "a\u2028b\n\x85é", "reason": "x"}]}
    assert History.from_run(make_run(tmp_path, [record])).records == (record,)


def test_from_run_without_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"config\.toml does not exist\. This is not the directory of a run"):
        History.from_run(tmp_path / "nowhere")
    run = make_run(tmp_path)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"metrics\.jsonl does not exist\. The run has not finished"):
        History.from_run(run)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.toml", "seed = 3\n", r"config\.toml: expected a line such as method.*found the keys seed"),
        ("config.toml", "method = \n", r"config\.toml: "),
        ("metrics.jsonl", '{"round":0}\n{"rou\n{"round":2}\n', r"metrics\.jsonl: line 2 is damaged"),
        (
            "metrics.jsonl",
            '{"round":0}\n{"loss":1}\n{"round":2}\n',
            r"line 2 is damaged \(a record needs its round.*; round 0 is intact",
        ),
        ("metrics.jsonl", '{"round":0,"ids":[1],"weights":[]}\n', "1 ids, 0 weights"),
        ("manifest.json", "[1]", r"manifest\.json: expected a JSON object, found \[1\]"),
    ],
)
def test_from_run_names_the_file_and_the_fault(tmp_path, name, content, message):
    run = make_run(tmp_path)
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        History.from_run(run)


@in_one(
    ("records", "meta", "message"),
    [
        ([], {}, 'meta\\["method"\\]'),
        ([{"round": 1}, {"round": 0}], {"method": "m"}, r"must increase from record to record: found \[1, 0\]"),
        ([{"loss": 1}], {"method": "m"}, "needs its round"),
        ([{"round": 0, "groups": {"a": 0.5}}], {"method": "m"}, "round 0: expected groups as"),
        ([{"round": 0, "clients": [0.5]}], {"method": "m"}, "round 0: expected clients as"),
        (
            [{"round": 0, "clients": {"accuracy": [1]}}, {"round": 1, "clients": {"accuracy": [1, 1]}}],
            {"method": "m"},
            r"found \[1, 2\] accuracies",
        ),
    ],
)
def test_malformed_records(records, meta, message):
    with pytest.raises(ValueError, match=message):
        History(records, meta)


def test_line_is_one_line_of_strict_json():
    record = {"round": 1, "groups": {"a\n": {"accuracy": math.nan}}, "weights": np.array([0.5, np.inf]), "ids": (1, 2)}
    text = line(record)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    expected = {"round": 1, "groups": {"a\n": {"accuracy": None}}, "weights": [0.5, None], "ids": [1, 2]}
    assert json.loads(text, parse_constant=pytest.fail) == expected


@given(
    st.lists(
        st.fixed_dictionaries(
            {"groups": st.dictionaries(st.text(), st.fixed_dictionaries({"accuracy": st.floats(0, 1)}))}
        ),
        max_size=5,
    ),
    st.integers(0, 400),
)
def test_any_prefix_of_the_file_gives_a_prefix_of_the_records(tmp_path_factory, bodies, cut):
    records = [{"round": t, **body} for t, body in enumerate(bodies)]
    run = make_run(tmp_path_factory.mktemp("runs"), records)
    path = run / "metrics.jsonl"
    content = path.read_bytes()[:cut]
    path.write_bytes(content)
    found = History.from_run(run).records
    assert found == tuple(records[: len(found)])
    assert len(found) >= content.count(b"\n")


def test_write_atomically_keeps_the_old_file_when_it_fails(tmp_path):
    path = write_atomically(tmp_path / "new" / "file.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_runs_in_a_folder_are_those_with_a_configuration_and_those_from_python(tmp_path):
    for name in (
        "b/config.toml",
        "a/manifest.json",
        "a/metrics.jsonl",
        "d/config.toml",
        "d/manifest.json",
        "c/manifest.json",
    ):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).touch()
    runs = [tmp_path / "runs" / name for name in "abd"]
    assert members(tmp_path / "runs") == runs
    assert all_members([runs[1], tmp_path / "runs"]) == [runs[1], *runs]
    with pytest.raises(ValueError, match=r"No run in .*/c, .*/nowhere: expected"):
        all_members([runs[1], tmp_path / "runs/c/c", tmp_path / "nowhere"])
