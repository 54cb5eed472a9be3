"""Networks that take several tensors by name: the same numbers as of one that takes them side by side, whatever holds or trains them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.data.batch import Batch
from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.samples import Samples, read
from equipoise.federation.checkpoint import CheckpointError
from equipoise.flower import in_process
from equipoise.system.errors import RunError
from helpers import clients, in_one, others_slow, samples

Pair = tuple[Tensor, Tensor]
SIZES = (7, 13, 9, 4, 18)


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(7)
            self.body, self.head = nn.Linear(6, 7).double(), nn.Linear(7, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        given: Tensor = self.head(torch.tanh(self.body(x)))
        return given


class Two(Flat):
    """The same network, of an image [1, 2, 2] and a row of a table [2]."""

    def forward(self, x: Any) -> Tensor:
        return super().forward(torch.cat([x["image"].flatten(1), x["table"]], 1))


def split(data: Pair) -> tuple[dict[str, Tensor], Tensor]:
    x, y = data
    return {"table": x[:, 4:], "image": x[:, :4].reshape(-1, 1, 2, 2)}, y


class Items(Dataset[Any]):
    def __init__(self, data: tuple[Any, Tensor], change: float = 0.0) -> None:
        self.data, self.change = data, change

    def __len__(self) -> int:
        return len(self.data[1])

    def __getitem__(self, row: int) -> Any:
        x, y = self.data
        return {name: leaf[row] + self.change * torch.rand(()) for name, leaf in x.items()}, int(y[row])


def trained(net: nn.Module, form: Callable[[Pair], Any], method: str = "fedavg", **more: Any) -> eq.Federation:
    fed = eq.Federation(
        net,
        [form(d) for d in clients(SIZES)],
        method,
        eq.SGD(0.05, 0.9),
        tests={"near": form(samples(20, 1)), "far": form(samples(30, 4))},
        server_validation=form(samples(12, 9)),
        **{"epochs": 2, "batch_size": 8, "seed": 3, "engine": "sequential"} | more,
    )
    fed.fit(rounds=2)
    return fed


def same(a: eq.Federation, b: eq.Federation) -> None:
    assert torch.equal(a.progress.vector, b.progress.vector)
    assert [r["groups"] for r in a.records] == [r["groups"] for r in b.records]


@pytest.mark.parametrize("engine", ["sequential", "stacked", "workers"])
@pytest.mark.parametrize(
    "method",
    others_slow(["fedavg", "fedheal", "fedproto", "moon", "ditto", "fedpac", "fedsac", "cffl"], fast=(1, 3, 6)),
)
def test_two_inputs_are_the_same_as_one(method: str, engine: str) -> None:
    more = {"validation": 0.2} if method in ("fedavg", "ditto") else {}
    one, two = (trained(net, form, method, engine=engine, **more) for net, form in ((Flat(), tuple), (Two(), split)))
    same(one, two)
    x, y = samples(9, 2)
    both, _ = split((x, y))
    assert torch.equal(one.logits(x, client=1), two.logits(both, client=1))
    assert one.evaluate(x, y) == two.evaluate(both, y)
    assert one.records[-1].get("validation") == two.records[-1].get("validation")


def test_all_ways_to_give_them_are_the_same() -> None:
    expected = trained(Two(), split)
    forms: list[Callable[[Pair], Any]] = [
        lambda d: dict(zip("xy", split(d), strict=True)),
        lambda d: Batch(*split(d)),
        lambda d: Items(split(d)),
        lambda d: eq.Lazy(lambda: split(d), len(d[1])),
        lambda d: ({name: leaf.numpy() for name, leaf in split(d)[0].items()}, d[1].numpy()),
    ]
    for form in forms:
        same(expected, trained(Two(), form))
    same(expected, trained(Two(), lambda d: Items(split(d)), memory=0))  # sample by sample
    same(trained(Flat(), tuple, "centralised"), trained(Two(), split, "centralised"))


def test_between_sites() -> None:
    def tested(form: Callable[[Pair], Any], net: nn.Module) -> eq.Federation:
        tests = {"near": form(samples(20, 1))}
        fed = in_process(net, [form(d) for d in clients(SIZES)], solver=eq.SGD(0.05), tests=tests, seed=3)
        fed.fit(rounds=2)
        return fed

    class Broad(Two):
        """Takes tables of any width."""

        def forward(self, x: Any) -> Tensor:
            return super().forward({**x, "table": x["table"][:, :1].expand(-1, 2)})

    same(tested(tuple, Flat()), tested(split, Two()))
    data: list[Any] = [split(d) for d in clients(SIZES)]
    data[2] = ({"image": data[2][0]["image"], "table": data[2][0]["table"][:, :1]}, data[2][1])
    with pytest.raises(RunError, match=r"shape \{'image': \[1, 2, 2\], 'table': \[1\]\}, \{'image': 'float64'"):
        in_process(Broad(), data, seed=3)


@pytest.mark.parametrize("method", ["fedavg", "fedproto+fedheal"])
def test_a_run_goes_on_where_it_stopped(method: str, tmp_path: Path) -> None:
    def begun(form: Callable[[Pair], Any] = split) -> eq.Federation:
        return eq.Federation(
            Two(), [form(d) for d in clients(SIZES)], method, tests={"near": form(samples(20, 1))}, seed=3
        )

    whole, first, second = begun(), begun(), begun()
    whole.fit(rounds=3)
    first.fit(rounds=1, directory=tmp_path)
    second.resume(tmp_path)
    second.fit(rounds=2)
    same(whole, second)

    def other(d: Pair) -> Any:
        x, y = split(d)
        return {**x, "table": x["table"] + 1e-9}, y

    with pytest.raises(CheckpointError, match="data"):
        begun(other).resume(tmp_path)


def test_their_parts_cannot_be_taken_for_each_other() -> None:
    x, y = samples(4, 1)
    codes = {
        b"".join(map(bytes, Batch(inputs, y).stored()))
        for inputs in (x, {"x": x}, {"a": x, "b": x}, {"a": x}, {"b": x}, {"a": x[:, :3], "b": x[:, 3:]})
    }
    assert len(codes) == 6


def test_parts_of_samples_that_are_read_one_by_one_cannot_be_taken_for_each_other() -> None:
    """Streamed data sets whose parts have other names or shapes, with the same numbers in the same order."""
    x, y = samples(4, 1)
    codes = set[bytes]()
    for inputs in ({"a": x[:, :4], "b": x[:, 4:]}, {"a": x[:, :4], "c": x[:, 4:]}, {"a": x[:, :3], "b": x[:, 3:]},
                   {"a": x[:, :4].reshape(-1, 2, 2), "b": x[:, 4:]}):  # fmt: skip
        data = read(Items((inputs, y)), "A", torch.float64, torch.device("cpu"), memory=1)
        assert isinstance(data, Samples)
        assert data.content is None
        codes.add(b"".join(map(bytes, data.store.stored())))
    assert len(codes) == 4


def test_a_transform_gets_the_dictionary() -> None:
    def twice(x: dict[str, Tensor], shift: Tensor | None) -> dict[str, Tensor]:
        return {**x, "table": 2 * x["table"]}

    def doubled(d: Pair) -> Any:
        x, y = split(d)
        return twice(x, None), y

    same(trained(Two(), split, transform=twice), trained(Two(), doubled))
    images = eq.Images((0.5,), (0.5,), crop=1)
    with pytest.raises(
        ValueError,
        match=r"does not take the data of client-0: .*TypeError: Images: expected images, one tensor; found a dict",
    ):
        trained(Two(), split, transform=images)


def test_whole_numbers_stay_where_a_network_looks_them_up() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(6, 2)

        def forward(self, x: Any) -> Tensor:
            given: Tensor = self.head(torch.cat([self.words(x["words"]).mean(1), x["table"]], 1))
            return given

    draw = torch.Generator().manual_seed(0)
    data = [
        (
            {"words": torch.randint(9, (n, 5), generator=draw), "table": torch.randn(n, 2, generator=draw)},
            torch.arange(n) % 2,
        )
        for n in (6, 9)
    ]
    net = Words()
    results = [
        eq.Federation(net, data, tests={"all": data[0]}, engine=engine, seed=1).fit(rounds=1).records[0]["groups"]
        for engine in ("sequential", "stacked")
    ]
    assert results[0]["all"]["loss"] == pytest.approx(results[1]["all"]["loss"], rel=1e-6)


def test_a_network_may_take_entries_out_of_its_dictionary() -> None:
    class Taking(Two):
        def forward(self, x: Any) -> Tensor:
            return super().forward({"image": x.pop("image"), "table": x.pop("table")})

    for engine in ("sequential", "stacked", "workers"):
        same(trained(Two(), split, engine=engine), trained(Taking(), split, engine=engine))
    same(trained(Two(), split, "fedsac+moon"), trained(Taking(), split, "fedsac+moon"))


X, Y = samples(6, 1)
IMAGE, TABLE = X[:, :4].reshape(-1, 1, 2, 2), X[:, 4:]


@in_one(
    ("given", "message"),
    [
        (
            {"image": IMAGE, "table": TABLE[:5]},
            r"x\['image'\] holds 6 samples and x\['table'\] 5; they must be as many\.",
        ),
        ({"image": IMAGE[:5], "table": TABLE[:5]}, r"x\['image'\] holds 5 samples and y 6 labels; they must"),
        (
            {},
            r"a dictionary of inputs x must have a tensor for each of its names, which are text and not empty; found none\.",
        ),
        ({1: IMAGE}, r"a dictionary .* names, which are text and not empty; found 1\."),
        ({"": IMAGE, "age": IMAGE[:, 0]}, r"a dictionary .* names, which are text and not empty; found '', 'age'\."),
        ({"image": IMAGE, "table": "rows"}, r"x\['table'\] must be a tensor or an array of numbers; found str: words"),
        ({"image": IMAGE, "table": {"a": TABLE}}, r"x\['table'\] must be a tensor or an array of numbers; found dict"),
        ({"image": IMAGE, "table": None}, r"x\['table'\] must be a tensor or an array of numbers; found NoneType"),
        (
            {"image": IMAGE, "table": torch.tensor(1.0)},
            r"x\['table'\] must hold one input per sample, .* number 1\.0\.",
        ),
        ({"image": IMAGE, "table": TABLE + 0j}, r"x\['table'\] holds complex numbers"),
        ({"image": IMAGE, "table": 1e300 * TABLE}, r"x\['table'\]\[0, 0\] is .*too large for the network's float32"),
    ],
)
def test_what_cannot_be(given: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^ward 7: {message}"):
        read((given, Y), "ward 7", torch.float32, torch.device("cpu"))


def test_names_that_differ() -> None:
    def federation(first: Any, other: Any, tests: Any = None, net: nn.Module | None = None) -> eq.Federation:
        return eq.Federation(net or Two(), [(first, Y), (other, Y)], tests={"all": (tests or first, Y)})

    both, renamed = {"image": IMAGE, "table": TABLE}, {"image": IMAGE, "rows": TABLE}
    shapes = (
        r"samples have shape \{.*'rows': \[2\]\}, those of client-0 have \{'image': \[1, 2, 2\], 'table': \[2\]\}\."
    )
    with pytest.raises(ValueError, match=f"client-1: {shapes}"):
        federation(both, renamed)
    with pytest.raises(ValueError, match=f"test set 'all': {shapes}"):
        federation(both, both, renamed)
    with pytest.raises(ValueError, match=r"client-1: samples have shape \[6\], those of client-0 have \{'image'"):
        federation(both, X)
    with pytest.raises(
        ValueError, match=r"does not take the data of client-0: an input of shape \{'image': \[1, 1, 2, 2\]"
    ):
        federation(both, both, net=Flat())
    with pytest.raises(ValueError, match=r"does not take the data of client-0: .* KeyError: 'table'"):
        federation(renamed, renamed)

    class Own(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, row: int) -> Any:
            return ({"a": X[row]} if row < 3 else {"b": X[row]}), 0

    with pytest.raises(
        ValueError, match=r"ward 7: samples have shapes \{'a': \[6\]\} and \{'b': \[6\]\}\. All must agree"
    ):
        read(Own(), "ward 7", torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    "made", ["[one, one]", "{'north': one, 'south': one}", "dict(zip('xy', one))", "[[(one[0], 0), (one[0], 1)]] * 2"]
)
def test_a_function_for_the_command_line_gives_one_array(made: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"import numpy as np\none = ({{'a': np.zeros((4, 2)), 'b': np.zeros((4, 3))}}, np.arange(4) % 2)\n\n\ndef data():\n    return {made}\n"
    )
    with pytest.raises(
        DataError, match=r"x is a dictionary of 'a', 'b', .* one array of inputs\. Join them .*eq\.Federation"
    ):
        read_user_data(f"{file}:data")


def test_tests_of_clients_together() -> None:
    def federation(form: Callable[[Pair], Any], net: nn.Module) -> eq.Federation:
        many = clients([4] * 24)
        fed = eq.Federation(net, [form(d) for d in many], client_tests=[form(d) for d in many], seed=1)
        fed.fit(rounds=1)
        return fed

    same(federation(tuple, Flat()), federation(split, Two()))
    assert torch.isfinite(
        torch.tensor(federation(lambda d: Items(split(d)), Two()).records[0]["groups"]["all"]["loss"])
    )


def test_numbers_that_become_the_same_are_named() -> None:
    data = read(
        ({"image": IMAGE.float(), "time": 1.7e9 + torch.arange(6.0, dtype=torch.float64)[:, None]}, Y),
        "ward 7",
        torch.float32,
        torch.device("cpu"),
    )
    assert isinstance(data, Samples)
    from equipoise.data.samples import rounding

    assert "number 0 of 'time' (6 different numbers become 1)" in rounding(data)
