"""Clients that attack in simulation: what they send, who they are, what is recorded and reported, and bad input."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.analysis.decomposition import trace as losses
from equipoise.analysis.reproduced import trace as agreement
from equipoise.core.settings import ATTACKS, COMING, SIMULATED, Settings
from equipoise.core.simulation import LIES, Attackers, z_max
from equipoise.data.memory_mapped import Mapped
from equipoise.data.samples import Absent, read
from equipoise.federation.history import History
from equipoise.federation.round import one_round
from equipoise.flower.settings import AppSettings
from equipoise.metrics.performance import client_std
from equipoise.report.layout import over_clients
from equipoise.report.provenance import commands
from equipoise.report.statistics import Comparison
from equipoise.runs import directory as runs
from helpers import (
    N_CLASSES,
    clients,
    consortium,
    difference,
    federation,
    fitted,
    identical,
    in_one,
    network,
    others_slow,
    samples,
    told,
)
from run_helpers import cache, config, started

__all__ = ["cache"]  # a fixture of this module
NAMES = ("a", "b", "c", "d", "e")
TWO = "client-1=1, client-3=1"
ALL = {"participation": 1.0}


def updates(fed: eq.Federation) -> Tensor:
    """The updates [N, G] that the clients of the next round would send if nobody attacked, each client by itself."""
    trial = replace(fed.trial, attackers=None, settings=replace(fed.trial.settings, participation=1.0, quorum=0.0))
    sent = []

    def watch(job: Any) -> Any:
        for answer in fed.trial.engine(job):
            sent.append((answer.rows[0], answer.trained[0] - job.received[answer.rows[0]]))
            yield answer

    one_round(replace(trial, engine=watch), fed.progress, 1)
    return torch.stack([u for _, u in sorted(sent, key=lambda one: one[0])])


def mean_of(fed: eq.Federation, sent: Tensor) -> Tensor:
    """The model [G] that the plain mean by samples makes of what was sent."""
    sizes = fed.trial.setup.sizes
    return fed.progress.vector + (sizes / sizes.sum()) @ sent


# equations
def naive(attack: str, honest: list[list[float]], own: list[list[float]], scale: float | None) -> list[list[float]]:
    """What the attackers send by plain loops, coordinate by coordinate."""
    n, m = len(honest) + len(own), len(own)
    sent = []
    for mine in own:
        row = []
        for k, x in enumerate(mine):
            known = [h[k] for h in honest] or [o[k] for o in own]
            mean = sum(known) / len(known)
            if attack == "sign-flip":
                row.append(-(1 if scale is None else scale) * x)
            elif attack in ("scaling", "model-replacement"):
                row.append((n / m if scale is None else scale) * x)
            elif attack == "ipm":
                row.append(-(0.1 if scale is None else scale) * mean)
            elif attack == "alie":
                z = z_max(n, m) if scale is None else scale
                row.append(mean - z * math.sqrt(sum((h - mean) ** 2 for h in known) / len(known)))
            else:
                row.append(0.0)
        sent.append(row)
    return sent


@in_one(("attack", "scale"), [(a, s) for a in LIES for s in (None, 1.5) if a != "free-rider" or not s])
def test_what_attackers_send_against_plain_loops(attack: str, scale: float | None) -> None:
    fed = federation("fedavg", attack=attack, attackers=TWO, attack_scale=scale, **ALL)
    assert fed.trial.attackers is not None
    own = [1, 3]
    honest = updates(fed)
    if fed.trial.attackers.attack == "model-replacement":
        honest[own] = updates(federation("fedavg", data=turned(own), **ALL))[own]
    expected = honest.clone()
    expected[own] = torch.tensor(
        naive(attack, honest[[0, 2, 4]].tolist(), honest[own].tolist(), scale), dtype=honest.dtype
    )
    wanted = mean_of(fed, expected)
    fed.fit(1, progress=False)
    assert torch.allclose(fed.progress.vector, wanted, rtol=0, atol=1e-12)
    assert fed.records[0]["attackers"] == own


def test_how_far_little_is_enough() -> None:
    """Of 50 workers 24 are corrupted in the paper: two more are needed, and 24 of 26 others may be nearer."""
    normal = torch.distributions.Normal(0.0, 1.0)
    assert float(normal.cdf(torch.tensor(z_max(50, 24)))) == pytest.approx(24 / 26, abs=1e-6)
    for n in range(1, 40):
        for m in range(1, n):
            s = max(math.floor(n / 2 + 1) - m, 1)
            share = (n - m - s) / (n - m)
            assert math.isfinite(z := z_max(n, m))
            if share > 0:
                assert float(normal.cdf(torch.tensor(z, dtype=torch.float64))) == pytest.approx(share, abs=1e-9)
            else:
                assert z == 0


def turned(who: list[int]) -> list[tuple[Tensor, Tensor]]:
    """The data of all clients, with flipped labels of some."""
    return [(x, N_CLASSES - 1 - y if m in who else y) for m, (x, y) in enumerate(clients())]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto+fedheal"])
def test_flipped_labels_are_those_of_data_with_flipped_labels(method: str) -> None:
    a = fitted(method, 3, attack="label-flip", attackers=TWO)
    b = fitted(method, 3, data=turned([1, 3]), server_validation=samples(70, 2))
    assert identical(a, b)


class Pairs(Dataset[Any]):
    """Another number at every look, so that it is streamed."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.rand(2), row


def test_every_kind_of_data_can_be_flipped(tmp_path: Path) -> None:
    y = torch.tensor([0, 1, 2])
    np.save(tmp_path / "x.npy", np.zeros((3, 1, 2, 2), np.uint8))
    for data in ((torch.zeros(3, 2), y), Pairs(), Mapped(tmp_path / "x.npy", np.arange(3), y)):
        before = read(data, "data", torch.float32, torch.device("cpu"))
        assert not isinstance(before, Absent)
        after = before.flipped(3)
        rows = torch.tensor([2, 0, 1])
        assert (after.content is None) == (before.content is None) == (not isinstance(data, tuple))
        assert after.batch(rows, None).y.tolist() == after.labels(rows).tolist() == [0, 2, 1]
        assert before.labels(rows).tolist() == [2, 0, 1]  # the user's data stay


def test_data_that_are_loaded_when_needed_are_flipped_too() -> None:
    lazy = [eq.Lazy(lambda m=m: clients()[m], len(clients()[m][1])) for m in range(5)]
    a = fitted("fedavg", 3, attack="label-flip", attackers=TWO)
    assert identical(a, fitted("fedavg", 3, data=lazy, attack="label-flip", attackers=TWO))


def test_no_number_of_the_attack_is_forgotten() -> None:
    assert {*LIES, "label-flip"} == {*ATTACKS}


# rounds
@pytest.mark.parametrize("attack", others_slow(ATTACKS, fast=(0, 2, 4, 6)))
def test_engines_agree(attack: str) -> None:
    given = {"attack": attack, "attackers": 0.4, "kind": "batchnorm"}
    a = fitted("fedavg", 3, **given)
    b = fitted("fedavg", 3, engine="stacked", chunk=2, **given)
    c = fitted("fedavg", 3, engine="workers", workers=2, **given)
    assert identical(a, c)
    assert difference(a, b) < 1e-9
    assert (
        [r["attackers"] for r in a.records]
        == [r["attackers"] for r in b.records]
        == [r["attackers"] for r in c.records]
    )
    assert difference(a, fitted("fedavg", 3, kind="batchnorm")) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["label-flip", "alie"])
def test_processes_agree(attack: str) -> None:
    given = {"attack": attack, "attackers": 0.4}
    assert identical(fitted("fedavg", 3, **given), fitted("fedavg", 3, engine="processes", workers=2, **given))


@pytest.mark.parametrize("attack", ["label-flip", "alie", "sign-flip"])
def test_resumed_in_the_middle_it_is_the_same_bit_for_bit(attack: str, tmp_path: Path) -> None:
    given = {"attack": attack, "attackers": 0.4, "availability": 0.8}
    whole = fitted("scaffold", 5, **given)
    part = federation("scaffold", **given)
    part.fit(5, directory=tmp_path, progress=False, on_round=lambda record: record["round"] == 2)
    again = federation("scaffold", **given)
    again.fit(again.resume(tmp_path), progress=False)
    assert identical(whole, again)
    assert told(whole) == told(again)
    with pytest.raises(eq.CheckpointError, match="attack"):
        federation("scaffold", **{**given, "attack": "ipm"}).resume(tmp_path)


@pytest.mark.parametrize("attack", ["label-flip", "scaling", "alie"])
@pytest.mark.parametrize("whom", ["b=1, d=1", 0.4])
def test_renumbering_clients_renumbers_the_attackers(attack: str, whom: Any) -> None:
    order, names = [3, 0, 4, 2, 1], list(NAMES)
    given = {"attack": attack, "attackers": whom, "batch_size": 64, **ALL}
    a = fitted("scaffold", 3, names=names, **given)
    b = fitted("scaffold", 3, names=[names[m] for m in order], data=[clients()[m] for m in order], **given)
    assert a.records[0]["attackers"] == sorted(order[m] for m in b.records[0]["attackers"])
    assert torch.allclose(a.progress.vector, b.progress.vector, rtol=0, atol=1e-9)


def test_without_attack_nothing_changes() -> None:
    a, b = fitted("scaffold", 3), fitted("scaffold", 3, attack=None, attackers=0)
    assert a.trial.attackers is b.trial.attackers is None
    assert identical(a, b)
    assert told(a) == told(b)
    assert "attackers" not in a.records[0]
    assert "hostile" not in a.history.meta


def test_only_attackers_that_take_part_attack_and_alone_they_know_themselves() -> None:
    """In a round without an honest client the mean and the deviation are those of the attackers' own updates."""
    given = {"attack": "ipm", "attackers": TWO, "joins": {"": 1, "client-1": 0, "client-3": 0}}
    fed = federation("fedavg", **given, **ALL)
    start, own = fed.progress.vector.clone(), updates(federation("fedavg", **ALL))[[1, 3]]
    fed.fit(2, progress=False)
    assert [r["attackers"] for r in fed.records] == [[1, 3], [1, 3]]
    once = fitted("fedavg", 1, **given, **ALL)
    assert torch.allclose(once.progress.vector, start - 0.1 * own.mean(0), rtol=0, atol=1e-12)
    some = fitted("fedavg", 8, attack="free-rider", attackers=TWO, participation=0.4)
    assert all(r["attackers"] == [m for m in r["ids"] if m in (1, 3)] for r in some.records)
    assert len({len(r["attackers"]) for r in some.records}) > 1


def test_a_free_rider_moves_nothing_and_says_what_it_is_asked() -> None:
    """Its update is exactly zero, and its report and its state are those of its training."""
    free, plain = (federation("scaffold", **given, **ALL) for given in ({"attack": "free-rider", "attackers": TWO}, {}))
    honest = updates(plain)
    honest[[1, 3]] = 0
    wanted = plain.progress.vector + honest.mean(0)  # scaffold counts clients alike
    for fed in (free, plain):
        fed.fit(1, progress=False)
    assert torch.allclose(free.progress.vector, wanted, rtol=0, atol=1e-12)
    for rule, of in enumerate(plain.progress.clients):
        assert all(torch.equal(x, free.progress.clients[rule][key]) for key, x in of.items())


def test_what_stays_at_a_client_is_not_touched() -> None:
    """Private coordinates stay as they were trained, and outside of a submodel nothing is sent."""
    given = {"kind": "batchnorm", **ALL}
    a, b = fitted("fedbn", 1, attack="sign-flip", attackers=TWO, **given), fitted("fedbn", 1, **given)
    private = a.trial.private
    assert private is not None
    assert private.any()
    assert a.progress.own is not None
    assert b.progress.own is not None
    assert torch.equal(a.progress.own[:, private], b.progress.own[:, private])
    assert not torch.equal(a.progress.vector, b.progress.vector)
    fed = federation("fedsac", attack="alie", attackers=TWO, contribution=[0.1, 0.2, 0.3, 0.4, 0.5], **ALL)
    seen = []
    real = fed.method.rules[0].aggregate
    object.__setattr__(
        fed.method.rules[0], "aggregate", lambda state, cohort: seen.append(cohort) or real(state, cohort)
    )
    fed.fit(2, progress=False)
    for cohort in seen:
        assert cohort.held is not None
        assert not cohort.held.all()
        assert not cohort.updates[~cohort.held[:, : cohort.updates.shape[1]]].any()
        assert cohort.updates[1].any()


def test_running_statistics_are_those_of_training_unless_the_model_is_attacked() -> None:
    plain = fitted("fedavg", 1, kind="batchnorm", **ALL)
    P = plain.model.n_params
    for attack in LIES:
        fed = fitted("fedavg", 1, kind="batchnorm", attack=attack, attackers=TWO, **ALL)
        same = torch.equal(fed.progress.vector[P:], plain.progress.vector[P:])
        assert same == (attack in ("sign-flip", "alie", "ipm"))


def test_the_guard_sees_what_attackers_send() -> None:
    for given, why in (
        ({"attack_scale": 1e30}, "which no training gives"),
        ({"attack_scale": 1e3, "norm_limit": 50.0}, "times as long"),
    ):
        fed = fitted("fedavg", 1, attack="scaling", attackers="client-1=1", **given, **ALL)
        (found,) = fed.records[0]["quarantined"]
        assert found["client"] == 1
        assert why in found["reason"]
        assert fed.records[0]["attackers"] == []


def test_an_honest_client_that_fails_spoils_no_attack() -> None:
    data = clients()
    data[0] = (data[0][0] * math.nan, data[0][1])
    fed = fitted("fedavg", 2, attack="alie", attackers=TWO, data=data, **ALL)
    assert [[q["client"] for q in r["quarantined"]] for r in fed.records] == [[0], [0]]
    assert fed.records[1]["attackers"] == [1, 3]


def test_what_clients_reach_alone_and_bounds_know_no_attack() -> None:
    tests = {"all": samples(20, 1)}
    hostile = {"attack": "label-flip", "attackers": 0.4}
    fed, plain = (federation("fedavg", tests=tests, **given) for given in (hostile, {}))
    assert fed.standalone(2, progress=False) == plain.standalone(2, progress=False)
    for bound in ("standalone", "centralised"):
        a, b = (fitted(bound, 2, tests=tests, **given) for given in (hostile, {}))
        assert identical(a, b)
        assert "hostile" not in a.history.meta


# who attacks
def drawn(n: int, seed: int = 0, groups: list[str] | None = None, **given: Any) -> tuple[int, ...]:
    settings = Settings(attack="ipm", seed=seed, **given)
    found = Attackers.of(settings, [f"client-{m}" for m in range(n)], groups, here=True)
    assert found is not None
    return found.clients


def test_a_share_of_the_clients_is_drawn_each_equally_likely() -> None:
    counts = Counter(m for seed in range(600) for m in drawn(10, seed, attackers=0.29))
    assert all(len(drawn(10, seed, attackers=0.29)) == 2 for seed in range(5))  # rounded down
    assert all(abs(counts[m] - 120) < 4 * math.sqrt(600 * 0.2 * 0.8) for m in range(10))
    assert len(drawn(100, attackers=0.29)) == 29


def test_attackers_by_group_and_by_name() -> None:
    groups = ["north"] * 4 + ["south"] * 6
    found = drawn(10, groups=groups, attackers="south=0.5, client-0=1")
    assert len(found) == 4
    assert found[0] == 0
    assert set(found[1:]) <= set(range(4, 10))
    assert len(drawn(10, groups=groups, attackers="0.25, south=0")) == 1
    assert drawn(10, groups=groups, attackers={"south": 1}) == tuple(range(4, 10))
    assert drawn(10, groups=groups, attackers="south=1, client-4=0") == tuple(range(5, 10))


def test_who_attacks_depends_on_no_other_setting() -> None:
    with_more = drawn(20, 3, attackers=0.2, availability=0.5, dropout=0.1, participation=0.3)
    assert with_more == drawn(20, 3, attackers=0.2)
    assert with_more != drawn(20, 4, attackers=0.2)


# results
def test_numbers_over_clients_are_of_honest_ones() -> None:
    groups = ["north", "north", "south", "south", "south"]
    tests = {"north": samples(20, 7), "south": samples(20, 8)}
    own = [(x, N_CLASSES - 1 - y if m in (1, 3) else y) for m, (x, y) in enumerate(samples(20, m) for m in range(5))]
    given = {"groups": groups, "tests": tests, "client_tests": own, **ALL}
    history = fitted("fedavg", 2, attack="sign-flip", attackers=TWO, collaborative=True, **given).history
    honest = [0, 2, 4]
    assert history.honest_only(np.arange(5)).tolist() == honest
    assert history.group_counts == (1, 2)
    table = history.client_table()[1]
    assert table.shape[1] == 5  # every client is tested
    found = history.summary(1)
    assert found["clients"]["cov"] == pytest.approx(table[-1, honest].std() / table[-1, honest].mean())
    assert abs(table[-1].std() / table[-1].mean() - found["clients"]["cov"]) > 0.01
    assert found["client_std"] == pytest.approx(100 * client_std(list(history.group_table()[1][-1]), (1, 2)).value)
    assert found["collaboration"]["clients"] == 3
    assert found["groups"].keys() == tests.keys()  # all groups, with all their samples
    assert found["avg"] == pytest.approx(100 * history.group_table()[1][-1].mean())
    assert history.contribution is not None
    assert Comparison.of([history], 1)["collaboration"]["clients"] == 3
    evenness = over_clients(Comparison.of([history], 1))[1]
    assert f"{found['clients']['cov']:.4f}" in str(evenness.grid.rows)


def test_the_report_says_who_attacks_and_what_is_measured() -> None:
    tests = {"all": samples(20, 1)}
    runs_ = [
        fitted(m, 1, attack="alie", attackers=0.4, tests=tests, seed=s).history
        for m in ("fedavg", "median")
        for s in (1, 2)
    ]
    notes = Comparison.of([*runs_, *(fitted("fedheal", 1, tests=tests, seed=s).history for s in (1, 2))])["notes"]
    for seed in (1, 2):
        who = ", ".join(f"client-{m}" for m in drawn(5, seed, attackers=0.4))
        assert f"In runs of fedavg and median with seed {seed} these clients attack (alie): {who}." in notes
    assert sum("leave out those that attack" in note for note in notes) == 1
    assert not any("ttack" in note for note in Comparison.of([fitted("fedavg", 1, tests=tests).history])["notes"])


def test_a_run_keeps_who_attacks(tmp_path: Path) -> None:
    chosen = config("fedavg", attack="sign-flip", attackers="fonts=1", attack_scale=2.0, participation=1.0, rounds=1)
    history = runs.execute(started(tmp_path / "run", chosen), progress=False)
    again = History.from_run(tmp_path / "run")
    assert again.meta["hostile"] == history.meta["hostile"] == {"attack": "sign-flip", "scale": 2.0, "clients": [2]}
    assert again.client_groups[2] == "fonts"
    assert again.records[0]["attackers"] == [2]
    assert "attack sign-flip of scale 2 by 1 of 4: fonts-1" in again.meta["header"]
    assert "--attack sign-flip --attackers fonts=1.0 --attack-scale 2.0" in commands([again])[0]
    with pytest.raises(ValueError, match="is less than one client"):
        runs.check(config("fedavg", attack="sign-flip", attackers=0.1))


def test_what_looks_at_training_refuses_clients_that_send_something_else() -> None:
    fed = federation("fedavg", attack="alie", attackers=0.4, tests={"all": samples(9, 1)})
    for trace in (losses, agreement):
        with pytest.raises(ValueError, match=r"^Clients attack here: .* Analyse a run without attack\.$"):
            trace(fed, 2)


# settings
@in_one(
    ("given", "message"),
    [
        ({"attack": "aile", "attackers": 0.2}, r"^attack must be one of label-flip, sign-flip, .*, free-rider, or None; found 'aile'\.$"),
        ({"attack": "alie"}, r"^attackers: some clients must attack, and some not; found 0 of 5\. Try 0\.2\.$"),
        ({"attack": "alie", "attackers": "client-1=0"}, r"^attackers: some clients must attack, and some not; found 0 of 5"),
        ({"attackers": 0.4}, r"^attackers and attack_scale say nothing without attack\. Give one of label-flip"),
        ({"attack_scale": 2.0}, r"^attackers and attack_scale say nothing without attack"),
        ({"attack": "alie", "attackers": 1.2}, r"^attackers must be in \[0, 1\], or by name .*; found 1\.2\.$"),
        ({"attack": "alie", "attackers": -0.1}, r"^attackers must be in \[0, 1\]"),
        ({"attack": "alie", "attackers": 1}, r"^attackers: some clients must attack, and some not; found 5 of 5"),
        ({"attack": "alie", "attackers": 0.1}, r"^attackers: 0\.1 of 5 clients is less than one client\. Give more\.$"),
        ({"attack": "alie", "attackers": "client-4=0.5"}, r"^attackers: client-4=0\.5 of 1 clients is less than one"),
        ({"attack": "alie", "attackers": "client-9=1"}, r"^attackers: no group or client is called 'client-9'\. Did you mean"),
        ({"attack": "alie", "attackers": 0.4, "attack_scale": 0}, r"^attack_scale must be > 0 and finite, or None; found 0\.$"),
        ({"attack": "free-rider", "attackers": 0.4, "attack_scale": 2}, r"^attack_scale=2 has no effect with free-rider"),
        ({"attack": "label-flip", "attackers": 0.4, "attack_scale": 2}, r"^attack_scale=2 has no effect with label-flip"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        federation("fedavg", **given)


def test_sites_attack_by_no_setting() -> None:
    for key, value in (("attack", "alie"), ("attackers", 0.2), ("attack-scale", 2.0)):
        with pytest.raises(ValueError, match=rf"^{key} is for simulation: "):
            AppSettings.of({key: value})
    hostile = {*SIMULATED} - {*COMING}
    assert len(hostile) == 3
    assert not {name.replace("_", "-") for name in hostile} & AppSettings().table().keys()
    with pytest.raises(ValueError, match=r"^attack=alie is for simulation, and sites send what they send"):
        consortium("fedavg", attack="alie", attackers=0.4)
    with pytest.raises(ValueError, match=r"^attack=alie is for simulation"):
        runs.check(config("fedavg", engine="flower-inproc", attack="alie", attackers=0.5))


def test_a_network_of_another_type_keeps_it() -> None:
    fed = fitted(
        "fedavg", 1, net=network().float(), data=[(x.float(), y) for x, y in clients()], attack="alie", attackers=0.4
    )
    assert fed.progress.vector.dtype == torch.float32
