"""Codes of sensitive attributes: they are beside the labels wherever samples are, and leave no site."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import equipoise as eq
from equipoise import scenarios
from equipoise.core import draws
from equipoise.core.rule import Out, Visit
from equipoise.data.batch import Batch
from equipoise.data.memory_mapped import Mapped
from equipoise.data.samples import Absent, Samples, divided, joined, loaded, read, stack
from equipoise.engines.processes import Processes
from equipoise.federation.checkpoint import CheckpointError
from equipoise.federation.fingerprint import differences
from equipoise.federation.method import Method
from equipoise.flower import in_process
from equipoise.flower.codec import Parcel
from equipoise.flower.secagg import site as masked_site
from equipoise.flower.site.site import Site
from equipoise.scenarios import own as own_scenario
from equipoise.system.errors import RunError
from helpers import UNEQUAL, clients, federation, in_one, network, samples

SOLVER = eq.SGD(0.05)
WEIGHTS = torch.tensor([[0.5, 3.0], [2.0, 0.0], [1.0, 4.0]], dtype=torch.float64)  # [y, s]


@dataclass(frozen=True)
class Weighted(eq.Rule):
    """Weigh samples by their label and the first of their attributes; those of whom it is unknown count once."""

    def loss(self, out: Out, visit: Visit) -> Tensor:
        assert out.s is not None
        s = out.s[..., 0]
        weights = torch.where(s < 0, 1.0, WEIGHTS[out.y, s.clamp(min=0)])
        return out.mean((weights - 1) * out.task.losses(out.logits, out.y))


def codes(n: int, seed: int, A: int = 2) -> Tensor:
    return torch.randint(-1, 2, (n, A), generator=torch.Generator().manual_seed(seed))


def people(sizes: tuple[int, ...] = UNEQUAL) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(x, y, codes(len(y), k)) for k, (x, y) in enumerate(clients(sizes))]


class Items(Dataset[Any]):
    """Samples that are streamed, as each is another time its input with a last bit of noise."""

    def __init__(self, data: tuple[Any, ...], change: float = 0.0) -> None:
        self.data, self.change = data, change

    def __len__(self) -> int:
        return len(self.data[1])

    def __getitem__(self, row: int) -> Any:
        x, y, s = (part[row] for part in self.data)
        return {"x": x + self.change * torch.rand(()), "y": int(y), "s": s.tolist()}


def taken(data: Any, **settings: Any) -> Samples:
    found = read(data, "ward 7", torch.float64, torch.device("cpu"), **settings)
    assert not isinstance(found, Absent)
    return found


def test_all_ways_to_give_them_are_the_same() -> None:
    x, y, s = people()[0]
    one = s[:, 0]
    ways: list[tuple[Any, Tensor]] = [
        ((x, y, s), s),
        ([x, y, s.tolist()], s),
        ({"x": x, "y": y, "s": s}, s),
        (Batch(x, y, s), s),
        (TensorDataset(x, y, s), s),
        (Items((x, y, s)), s),
        ((x, y, one), one[:, None]),
        ((x.numpy(), y.numpy(), one.numpy().astype(float)), one[:, None]),
        ((x, y, one.numpy().astype(np.int8)), one[:, None]),
        ((x, y, one > 0), (one > 0).long()[:, None]),
    ]
    for data, expected in ways:
        got = taken(data)
        assert got.content is not None
        assert got.content.s is not None
        assert got.content.s.dtype == torch.int64
        assert torch.equal(got.content.s, expected)
        assert got.attributes == expected.shape[1]
    for none in ((x, y), (x, y, None), {"x": x, "y": y}, TensorDataset(x, y)):
        assert taken(none).attributes == 0


@in_one(
    ("s", "message"),
    [
        ([0, 1, -2, 0], r"hold codes of sensitive attributes.* found \[4\] of torch.int64, with -2\."),
        ([0.0, 0.5, 1.0, 0.0], r"found \[4\] of torch.float64, with 0.5\."),
        ([0.0, np.nan, 1.0, 0.0], r"found \[4\] of torch.float64, with nan\."),
        ([0, 1, 0], r"for n = 4 samples; found \[3\] of torch.int64\."),
        (torch.zeros(4, 2, 1), r"found \[4, 2, 1\] of torch.float32\."),
        (torch.zeros(4, 0), r"found \[4, 0\] of torch.float32\."),
        (torch.zeros(4) + 0j, r"found \[4\] of torch.complex64\."),
        (["f", "m", "f", "f"], r"be a tensor or an array of numbers; found list: words\. Number the values, in"),
    ],
)
def test_codes_that_cannot_be(s: Any, message: str) -> None:
    x, y = samples(4, 1)
    with pytest.raises((TypeError, ValueError), match=f"^ward 7: s must .*{message}"):
        taken((x, y, s))


def test_an_index_is_no_sensitive_attribute(tmp_path: Path) -> None:
    n = 1001
    x, y, s = torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64), torch.arange(n)
    message = r"^ward 7: s\[:, {}\] has 1,001 different values\. s holds codes of sensitive attributes, such as sex or age band, of at most"
    for data, k in (
        ((x, y, s), 0),
        ({"x": x, "y": y, "s": torch.stack([s % 2, s + 10**6], 1)}, 1),
        (TensorDataset(x, y, s), 0),
    ):
        with pytest.raises(ValueError, match=message.format(k)):
            taken(data)
    assert taken((x[:1000], y[:1000], s[:1000])).attributes == 1
    assert taken((x, y, s - 1)).attributes == 1  # a code of -1 is no value


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_samples_of_a_data_set_that_cannot_be(memory: int) -> None:
    x, y = samples(4, 1)
    for s in ([0, 1, 2.5, 0], [0, 1, "f", 0], [[0], [0], [0, 1], [0]], [0, 1, -2, 0]):
        data = [(x[k], int(y[k]), s[k]) for k in range(4)]

        class Own(Dataset[Any]):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, row: int, data: Any = data) -> Any:
                return data[row]

        with pytest.raises((TypeError, ValueError), match=r"sample 2: s must|some samples have 2 sensitive attributes"):
            taken(Own(), memory=memory).batch(torch.arange(4), None)


def test_all_clients_have_as_many() -> None:
    data: list[Any] = people()
    data[3] = data[3][:2]
    with pytest.raises(
        ValueError,
        match=r"as many sensitive attributes s; found none: client-3; 2: client-0, client-1, client-2 and 1 more",
    ):
        federation(data=data)
    data[3] = (*data[3], codes(len(data[3][1]), 0, 1))
    with pytest.raises(ValueError, match=r"found 1: client-3; 2: client-0"):
        federation(data=data)
    lazy = [eq.Lazy(lambda one=one: one, len(one[1])) for one in data]
    fed = federation(data=lazy, participation=1.0)
    fed.fit(1, progress=False)
    (left_out,) = fed.records[0]["quarantined"]
    assert left_out["client"] == 3
    assert "must have as many sensitive attributes s; found 1: client-3; 2: client-0." in left_out["reason"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 3), st.data())
def test_every_leaf_of_a_stack_is_its_clients(sizes: list[int], A: int, data: st.DataObject) -> None:
    each = [taken((x, y, codes(len(y), k, A) if A else None)) for k, (x, y) in enumerate(clients(sizes))]
    B = data.draw(st.integers(1, 5))
    rows = torch.tensor([data.draw(st.lists(st.integers(0, n - 1), min_size=B, max_size=B)) for n in sizes])
    whole, one = stack(each).batch(rows, None), joined(each)
    assert whole.leaves.keys() == {"x", "y", *(["s"] if A else [])}
    begins = torch.tensor([0, *sizes]).cumsum(0)
    for m, client in enumerate(each):
        alone = client.batch(rows[m], None).leaves
        there = one.batch(rows[m] + begins[m], None).leaves
        assert all(torch.equal(leaf[m], alone[name]) for name, leaf in whole.leaves.items())
        assert all(torch.equal(leaf, alone[name]) for name, leaf in there.items())
    assert [len(one.store), stack(each).size] == [sum(sizes), max(sizes)]


# training
def naive(data: list[tuple[Tensor, Tensor, Tensor]], rounds: int) -> Tensor:
    """FedAvg on weighted losses, step by step."""
    net = network()
    theta = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    sizes = [len(y) for _, y, _ in data]
    for t in range(rounds):
        plan = draws.schedule(3, t, range(len(data)), sizes, 2, 8, drop_single=False)
        trained = []
        for m, (x, y, s) in enumerate(data):
            torch.nn.utils.vector_to_parameters(theta.clone(), net.parameters())
            for batch in plan.index[m]:
                if len(rows := batch[batch >= 0]):
                    weights = torch.tensor([1.0 if s[k, 0] < 0 else WEIGHTS[y[k], s[k, 0]] for k in rows])
                    loss = (weights * functional.cross_entropy(net(x[rows]), y[rows], reduction="none")).mean()
                    grads = torch.autograd.grad(loss, list(net.parameters()))
                    with torch.no_grad():
                        for p, g in zip(net.parameters(), grads, strict=True):
                            p -= SOLVER.lr * g
            trained.append(torch.nn.utils.parameters_to_vector(net.parameters()).detach())
        theta = sum((n / sum(sizes)) * one for n, one in zip(sizes, trained, strict=True))  # type: ignore[assignment]
    return theta


@pytest.fixture(scope="module")
def expected() -> Tensor:
    return naive(people(), 2)


@pytest.fixture(scope="module")
def pool() -> Processes:
    return Processes(1)


FORMS: Mapping[str, Any] = {
    "tensors": lambda one: one,
    "mappings": lambda one: dict(zip("xys", one, strict=True)),
    "streamed": lambda one: Items(one, 1e-15),
    "lazy": lambda one: eq.Lazy(lambda: one, len(one[1])),
}
WAYS = [("sequential", kind) for kind in FORMS] + [("stacked", "tensors"), ("stacked", "lazy")]
WAYS += [(engine, kind) for engine in ("processes", "sites") for kind in ("tensors", "streamed")] + [
    ("workers", "tensors")
]


@pytest.mark.parametrize(("engine", "kind"), WAYS)
def test_a_rule_sees_them_as_a_plain_loop_does(engine: str, kind: str, expected: Tensor, pool: Processes) -> None:
    data = [FORMS[kind](one) for one in people()]
    options: dict[str, Any] = {"epochs": 2, "batch_size": 8, "seed": 3}
    if engine == "sites":
        fed = in_process(network(), data, Method.of(Weighted()), SOLVER, **options)
    else:
        options |= {"engine": pool if engine == "processes" else engine, "workers": 2}
        fed = eq.Federation(network(), data, Weighted(), SOLVER, **options)
    fed.fit(2, progress=False)
    assert "quarantined" not in fed.records[-1]
    assert float((fed.progress.vector - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("kind", ["tensors", "streamed"])
def test_one_client_with_the_data_of_all_has_them(kind: str) -> None:
    fed = federation("centralised", data=[FORMS[kind](one) for one in people()])
    whole = fed.trial.data[0]
    assert not isinstance(whole, Absent)
    s = whole.batch(torch.arange(whole.size), None).s
    assert s is not None
    assert torch.equal(s, torch.cat([one[2] for one in people()]))


# splits
@pytest.mark.parametrize("kind", ["tensors", "streamed", "lazy", "mapped"])
def test_what_is_held_out_keeps_them(kind: str, tmp_path: Path) -> None:
    n = 40
    x, y, s = torch.arange(4.0 * n).double().view(n, 4), torch.arange(n) % 3, torch.arange(2 * n).view(n, 2)
    forms = FORMS | {"mapped": lambda one: on_disk(tmp_path, n, one[1], one[2])}
    data = read(forms[kind]((x, y, s)), "ward 7", torch.float64, torch.device("cpu"))
    for part in divided(data, 0.25, 3, "ward 7"):
        assert part is not None
        there = loaded(part)
        batch = there.batch(torch.arange(there.size), None)
        rows = (batch.x.flatten(1)[:, 0] / 4).round().long() % n
        assert batch.s is not None
        assert torch.equal(batch.s, s[rows])
        assert torch.equal(batch.y, y[rows])
        flipped = there.flipped(3).batch(torch.arange(there.size), None)
        assert torch.equal(flipped.y, 2 - y[rows])
        assert flipped.s is not None
        assert torch.equal(flipped.s, s[rows])


def on_disk(tmp_path: Path, n: int, y: Tensor, s: Tensor) -> Mapped:
    """Images on disk, whose first pixels say four times which they are."""
    x = np.zeros((n, 1, 2, 2), np.uint8)
    x[:, 0, 0, 0] = 4 * np.arange(n)
    np.save(tmp_path / "x.npy", x)
    return Mapped(tmp_path / "x.npy", np.arange(n), y, s)


def test_images_on_disk_go_to_other_processes_with_them(tmp_path: Path) -> None:
    data = on_disk(tmp_path, 9, torch.arange(9) % 3, torch.arange(9)[:, None])
    sent = pickle.loads(pickle.dumps(data.take([5, 2])))
    assert sent.gather([1, 0]).s.tolist() == [[2], [5]]
    assert [s.tolist() for _, _, s in [sent[0], sent[1]]] == [[5], [2]]
    assert sent[1][2].tolist() == [2]
    bare = on_disk(tmp_path, 9, torch.arange(9), None)  # type: ignore[arg-type]
    assert len(bare[0]) == 2


def test_many_tests_of_clients_keep_them_together() -> None:
    data = people((6,) * 21)
    for form in (lambda one: one, lambda one: dict(zip("xys", one, strict=True)), lambda one: TensorDataset(*one)):
        fed = federation(data=data, client_tests=[form(one) for one in data])
        (whole,) = fed.tests.sets.values()
        assert whole.s is not None
        assert torch.equal(whole.s, torch.cat([one[2] for one in data]))


def test_test_sets_may_lack_them_but_not_differ() -> None:
    data, (x, y) = people(), samples(9, 1)
    federation(data=data, tests={"a": (x, y)})
    federation(data=clients(), tests={"a": (x, y, codes(9, 1))})
    with pytest.raises(ValueError, match=r"found 1: test set 'b'; 2: test set 'a'"):
        federation(data=clients(), tests={"a": (x, y, codes(9, 1)), "b": (x, y, codes(9, 1, 1))})
    with pytest.raises(ValueError, match=r"found 1: server_validation; 2: client-0"):
        federation(data=data, server_validation=(x, y, codes(9, 1, 1)))
    with pytest.raises(ValueError, match=r"found 1: test set 'client-2', .*2: test set 'client-0', "):
        federation(data=clients(), client_tests=[(x, y, codes(9, 1)), None, (x, y, codes(9, 1, 1)), None, None])
    with pytest.raises(ValueError, match=r"found 1: test set 'a'; 2: client-0"):
        federation(data=data, tests={"a": (x, y, codes(9, 1, 1))})


# what a run was begun with
def test_other_attributes_are_other_data(tmp_path: Path) -> None:
    data = people()
    fed = federation(data=data)
    fed.fit(1, directory=tmp_path, progress=False)
    federation(data=data).resume(tmp_path)
    others = [(x, y, s.flip(0)) for x, y, s in data]
    with pytest.raises(CheckpointError, match="begun with other data: the sensitive attributes\\."):
        federation(data=others).resume(tmp_path)


def test_a_run_of_a_version_without_them_goes_on() -> None:
    ours = federation(data=people()).fingerprint
    before = {**ours, "data": {key: code for key, code in ours["data"].items() if key != "attributes"}}
    assert differences(before, ours) == []


def test_attributes_that_come_later_and_those_of_lazy_clients_are_other_data(tmp_path: Path) -> None:
    federation(data=clients()).fit(1, directory=tmp_path / "without", progress=False)
    with pytest.raises(CheckpointError, match="the sensitive attributes\\."):
        federation(data=people()).resume(tmp_path / "without")

    def lazy(data: list[tuple[Tensor, Tensor, Tensor]]) -> list[eq.Lazy]:
        return [eq.Lazy(lambda one=one: one, len(one[1])) for one in data]

    federation(data=lazy(people())).fit(1, directory=tmp_path / "lazy", progress=False)
    with pytest.raises(CheckpointError, match="the sensitive attributes\\."):
        federation(data=lazy([(x, y, s.flip(0)) for x, y, s in people()])).resume(tmp_path / "lazy")


# own tables and scenarios
def rows(n: int = 60) -> list[str]:
    return [f"{k % 2},{'abc'[k % 3]},{('f', 'm', 'x')[k // 3 % 3]},{k / 7:.4f},{k * k % 11}" for k in range(n)]


@pytest.mark.parametrize("column", ["group", "sex"])
def test_the_group_of_a_table_is_an_attribute(column: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join([f"label,client,{column},u,v", *rows()]))
    made = scenarios.load("own", 0, tmp_path / "t.csv", **({} if column == "group" else {"group": column}))
    assert made.attributes == {column: ("f", "m", "x")}
    of = {name: k for k, name in enumerate("fmx")}
    for where, part in (*made.manifest["clients"].items(), *made.manifest["tests"].items()):
        data = dict(zip(made.client_names, made.clients, strict=True)).get(where) or made.tests[where]
        assert len(data) == 3
        assert data[2].tolist() == [[of["fmx"[row // 3 % 3]]] for row in part]


def test_the_group_of_images_is_one_in_memory_and_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    lines = ["image,label,client,group"]
    for k in range(24):
        Image.fromarray(np.full((9, 9), 10 * k, np.uint8)).save(tmp_path / f"{k}.png")
        lines.append(f"{k}.png,{k % 2},{'ab'[k // 12]},{'old' if k % 3 else 'new'}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    whole = scenarios.load("own", 0, tmp_path / "t.csv", size=8, image="image")
    monkeypatch.setattr(own_scenario, "IN_MEMORY", 100)
    mapped = scenarios.load("own", 0, tmp_path / "t.csv", size=8, image="image")
    assert whole.attributes == mapped.attributes == {"group": ("new", "old")}
    for one, other in zip(mapped.clients, whole.clients, strict=True):
        assert isinstance(one, Mapped)
        assert one.s is not None
        assert len(other) == 3
        assert torch.equal(one.s, other[2])
        assert len(one.s.unique()) == 2


def test_the_sex_of_people_with_diabetes_is_an_attribute() -> None:
    made = scenarios.load("diabetes", 0)
    assert made.attributes == {"sex": ("1", "2")}
    for name, data in made.tests.items():
        assert len(data) == 3
        assert data[2].unique().tolist() == [["sex-1", "sex-2"].index(name)]
    assert all(len(data) == 3 and data[2].shape == (len(data[1]), 1) for data in made.clients)
    fed = eq.Federation(
        eq.network("mlp", in_shape=(10,), n_classes=1), made.clients, tests=made.tests, task="regression"
    )
    assert all(data.attributes == 1 for data in (*fed.inputs.data, *fed.tests.sets.values()))


# sites
def messages(monkeypatch: pytest.MonkeyPatch, method: Any, data: list[Any], **given: Any) -> list[Parcel]:
    """All that sites send in a run."""
    sent: list[Parcel] = []
    answer = masked_site.answer

    def noting(site: Site, kind: str, asked: Parcel) -> Parcel:
        sent.append(answer(site, kind, asked))
        return sent[-1]

    with monkeypatch.context() as patch:
        patch.setattr(masked_site, "answer", noting)
        in_process(network(), data, Method.of(method), SOLVER, seed=3, batch_size=8, tests={"a": data[0]}, **given).fit(
            2, progress=False
        )
    assert len(sent) > 2 * len(data)
    return sent


@pytest.mark.parametrize("method", ["fedavg", "scaffold+fedheal", "ditto"])
def test_sites_send_the_same_without_them(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte: but receipts, which have salt, and how many attributes there are, of which all sites tell a code."""
    with_, without = (messages(monkeypatch, method, data, validation=0.2) for data in (people(), clients()))
    for one, other in zip(with_, without, strict=True):
        if "agreement" in one.fields:
            told = one.fields["agreement"]
            assert told.pop("sensitive attributes") == "2"
            assert other.fields["agreement"].pop("sensitive attributes") == "none"
        fields = [
            json.dumps({k: v for k, v in of.fields.items() if k not in ("seconds", "receipt")}) for of in (one, other)
        ]
        assert fields[0] == fields[1]
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(x, other.tensors[name]) for name, x in one.tensors.items())


@pytest.mark.parametrize("secure", [False, True])
def test_a_rule_that_sees_them_sends_a_model_and_nothing_else(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seeing = (messages(monkeypatch, method, people(), secure=secure) for method in ("fedavg", Weighted()))
    for one, other in zip(plain, seeing, strict=True):
        assert one.fields.keys() == other.fields.keys()
        assert {name: (x.shape, x.dtype) for name, x in one.tensors.items()} == {
            name: (x.shape, x.dtype) for name, x in other.tensors.items()
        }


@pytest.mark.parametrize(
    ("method", "sums"),
    [
        ("fairgrad", {"n": (2, 2), "right": (2, 2)}),
        ("fedgft(least_count=3)", {"n": (2, 2), "chance": (2, 2)}),
        ("fairfed", {"n": (2, 2), "right": (2, 2), "accuracy": ()}),
        ("reweighing:local", {}),
    ],
)
def test_a_rule_for_groups_sends_sums_by_cell(
    method: str, sums: dict[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups nothing leaves a site but these sums, without cells of few people. Masked, they do not travel in the clear either: see test_flower_masked."""
    about: dict[str, Any] = {"attributes": {"a": ["0", "1"], "b": ["0", "1"]}, "positive": 1}
    plain, sent = (messages(monkeypatch, m, people(), **about) for m in ("fedavg", method))
    for one, other in zip(plain, sent, strict=True):
        assert one.fields.keys() == other.fields.keys()
        assert all(other.tensors[name].shape == x.shape for name, x in one.tensors.items())
        more = {name.rpartition("/")[2]: x for name, x in other.tensors.items() if name not in one.tensors}
        assert {name: x.shape for name, x in more.items()} in ({}, sums)
        assert "least_count" not in method or all(k == 0 or k >= 3 for k in more.get("n", torch.zeros(1)).flatten())


def test_sites_have_as_many_attributes() -> None:
    data: list[Any] = people()
    data[2] = (*data[2][:2], codes(len(data[2][1]), 0, 1))
    with pytest.raises(RunError, match="client-2 has other sensitive attributes"):
        in_process(network(), data, "fedavg", SOLVER)
