"""Who has what: counted without reading, drawn before training, and at the beginning of every report."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import equipoise as eq
from equipoise.data.holdings import MOST, examples, holdings
from equipoise.federation.history import History
from equipoise.report import draw_all, render
from equipoise.report.holdings import example_images, marks, sentence, who_has_what
from helpers import in_one, others_slow
from run_helpers import TINY, cache as cache, config, equipoise as equipoise, executed

pytestmark = pytest.mark.drawn

Y = [torch.tensor(y) for y in ([0, 0, 2], [1, 1, 1, 2], [2])]
TESTS = {"a": (torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 2])), "b": (torch.randn(2, 3), torch.tensor([0, 0]))}


def data() -> list[Any]:
    return [(torch.randn(len(y), 3), y) for y in Y]


def federation(clients: Any = None, **more: Any) -> eq.Federation:
    return eq.Federation(nn.Linear(3, 3), clients or data(), tests=TESTS, groups=["a", "b", "b"], **more)


def texts(figure: Any) -> list[str]:
    return [
        t.get_text() for axes in figure.axes for t in (*axes.texts, *axes.get_yticklabels(), *axes.get_xticklabels())
    ]


def test_counts_are_those_of_the_labels() -> None:
    found = federation(names=["x", "y", "z"]).holdings
    assert [one["counts"] for one in found["clients"]] == [[2, 0, 1], [0, 3, 1], [0, 0, 1]]
    assert [(one["name"], one["group"], one["size"]) for one in found["clients"]] == [
        ("x", "a", 3),
        ("y", "b", 4),
        ("z", "b", 1),
    ]
    assert found["tests"] == [
        {"name": "a", "size": 5, "counts": [1, 1, 3]},
        {"name": "b", "size": 2, "counts": [2, 0, 0]},
    ]
    assert json.loads(json.dumps(found)) == found
    assert sentence(found) == "3 clients with 1 to 4 samples each, of 1 to 2 of 3 classes."


class Unread(Dataset[Any]):
    """Samples that change each time, so that they are streamed."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Any:
        return torch.randn(3), row % 3


def test_nothing_is_read_for_it() -> None:
    def never() -> Any:
        raise AssertionError("read")

    fed = federation([data()[0], eq.Lazy(never, 7), Unread()])
    assert [one["counts"] for one in fed.holdings["clients"]] == [[2, 0, 1], None, None]
    assert [one["size"] for one in fed.holdings["clients"]] == [3, 7, 4]
    assert sentence(fed.holdings).endswith("The classes of 2 clients are not known here.")
    assert texts(fed.show()).count("not known") == 2


@pytest.mark.parametrize("n", others_slow([1, 4, 30, 31, 100], fast=(0, 2, 3)))
def test_the_figure_names_few_clients_and_draws_many_as_cells(n: int) -> None:
    known = holdings(
        [f"c{k}" for k in range(n)],
        ["ab"[k % 2] for k in range(n)],
        [(torch.zeros(1), Y[k % 3]) for k in range(n)],
        TESTS,
        3,
    )
    figure = who_has_what(known)
    left, right = figure.axes
    assert ("c0" in texts(figure)) == (n <= 30) == (not left.images)
    assert (f"{n} clients" in texts(figure)) == (n > 30)
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a", "b"] if n > 1 else not figure.legends
    assert figure.get_figheight() < 6
    if n <= 30:  # the area of a circle is in proportion to the samples
        marks = left.collections[0]
        counts = np.array([one["counts"] for one in known["clients"]])
        assert np.allclose(marks.get_sizes() / marks.get_sizes().max(), counts[counts > 0] / counts.max())
    widths = [bar.get_width() for bar in right.patches][:n]
    assert sorted(widths) == pytest.approx(sorted(one["size"] / max(len(y) for y in Y[:n]) for one in known["clients"]))


def test_the_figure_without_classes_groups_or_tests() -> None:
    lazy = [eq.Lazy(lambda: None, k + 1) for k in range(3)]
    known = {
        "clients": [{"name": str(k), "size": of.size, "counts": None, "group": ""} for k, of in enumerate(lazy)],
        "tests": [],
    }
    figure = who_has_what(known)
    assert len(figure.axes) == 1
    assert not figure.legends
    many = holdings(["c"], None, [(torch.zeros(1), torch.arange(62))], {}, 62)
    assert who_has_what(many).axes[0].images  # cells: circles would overlap


def test_classes_have_their_names() -> None:
    figure = who_has_what(federation().holdings | {"classes": ["cat", "dog", "a_long_name_of_a_class_with $"]})
    assert "cat" in texts(figure)
    figure.draw_without_rendering()


def pictures(n: int, channels: int = 3, side: int = 12, scale: float = 1.0) -> Any:
    x = (torch.rand(n, channels, side, side) * 255 * scale).to(torch.uint8)
    return x, torch.arange(n) % 2


def strip(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def test_examples_are_the_first_of_each_class() -> None:
    one, two = pictures(4), pictures(4)
    found = examples(["g", "g"], [one, two])
    image = np.asarray(strip(found["g"]))
    assert image.shape == (12, 6 * 12, 3)
    first, second = (np.asarray(x[row].permute(1, 2, 0)) for x, row in ((one[0], 0), (two[0], 1)))
    assert (image[:, :12] == first).all()
    assert (image[:, 12:24] == second).all()


def test_examples_are_small_and_of_images_only() -> None:
    large = examples([f"g{k}" for k in range(6)], [pictures(3, side=200) for _ in range(6)])
    assert 0 < sum(map(len, large.values())) <= MOST
    assert examples(["g"] * 2, [(torch.rand(3, 5), torch.arange(3)), eq.Lazy(lambda: None, 3)]) == {}
    many = examples([f"g{k}" for k in range(30)], [pictures(1, side=32) for _ in range(30)])
    assert many == {}  # rather none than some of the groups
    x = torch.randn(2, 1, 8, 8)
    grey = np.asarray(strip(examples(None, [(x, torch.arange(2))])[""]))
    assert (grey.min(), grey.max()) == (0, 255)


def test_show_draws_images_when_asked() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.flatten(1))

    fed = eq.Federation(Flat(), [(torch.rand(4, 1, 8, 8), torch.arange(4) % 2)])
    assert fed.show(examples=True).axes[0].images
    assert fed.show()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="these data are none"):
        federation().show(examples=True)


def test_a_report_has_it_and_needs_no_data(tmp_path: Path, equipoise: Any) -> None:
    history = History.from_run(executed(tmp_path / "run", config("fedavg", rounds=1)))
    known = history.meta["holdings"]
    assert sum(one["size"] for one in known["clients"]) == 88
    assert set(known["examples"]) == {"optdigits", "photo", "fonts", "street"}
    page = render([history])
    assert list(draw_all([history]))[:2] == ["data", "examples"]
    assert page.index('<details id="data"') < page.index('id="figure-data"') < page.index('id="figure-examples"')
    assert "4 clients with 16 to 28 samples each" in page
    assert page.count("data:image/png;base64,") >= 4
    drawn = example_images(known)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == list(known["examples"])


def test_reports_of_other_data_hold_no_image(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "d.npz",
        x=np.random.default_rng(0).random((40, 1, 8, 8)),
        y=np.arange(40) % 2,
        client=np.arange(40) % 4,
    )
    own = config("fedavg", scenario="own", scenario_options={}, data=str(tmp_path / "d.npz"), rounds=1)
    page = render([History.from_run(executed(tmp_path / "run", own))])
    assert 'id="figure-data"' in page
    assert 'id="figure-examples"' not in page
    assert "base64" not in page
    fed = federation()
    fed.fit(1, directory=tmp_path / "python", progress=False)
    known = History.from_run(tmp_path / "python").meta["holdings"]
    assert known == fed.holdings
    assert "examples" not in known


def test_a_history_without_it_has_a_report() -> None:
    fed = federation()
    meta = {k: v for k, v in fed.fit(1, progress=False).meta.items() if k != "holdings"}
    page = render([History(tuple(fed.records), meta)])
    assert 'id="data"' not in page


@pytest.mark.parametrize("ending", others_slow(["png", "pdf", "svg"], fast=(2,)))
def test_the_command_line_draws_a_scenario(equipoise: Any, tmp_path: Path, ending: str) -> None:
    done = equipoise("scenarios", TINY[1], "--figure", tmp_path / f"who.{ending}")
    assert done.status == 0, done.err
    assert "4 clients with 16 to 28 samples each" in " ".join(done.out.split())
    assert (tmp_path / f"who.{ending}").stat().st_size > 3000


def test_the_command_line_draws_examples_and_prints_json(equipoise: Any, tmp_path: Path) -> None:
    assert equipoise("scenarios", TINY[1], "--figure", tmp_path / "e.png", "--examples").status == 0
    assert (tmp_path / "e.png").exists()
    found = json.loads(equipoise("scenarios", TINY[1], "--json").out)
    assert [one["size"] for one in found["clients"]] == [24, 20, 28, 16]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["digits", "--figure", "who.xyz"], "ends in .png, .pdf or .svg"),
        (["digits", "--examples"], "without --figure FILE.png. Add that"),
        (["--figure", "who.png"], "without a scenario, such as"),
        (["digit", "--figure", "who.png"], "Did you mean 'digits'?"),
        (["own", "--figure", "who.png"], "--data DIR"),
    ],
)
def test_the_command_line_says_what_is_missing(
    equipoise: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = equipoise("scenarios", *arguments)
    assert done.status == 2
    assert says in done.err
    assert not list(tmp_path.iterdir())


@in_one(
    ("clients", "classes", "said"),
    [(3, 4, "Circles"), (40, 4, "Cells"), (3, 30, "Cells"), (3, 0, "")],
)
def test_the_caption_speaks_of_what_is_drawn(clients: int, classes: int, said: str) -> None:
    each = {"name": "a", "group": "", "size": 5, "counts": [1] * classes or None}
    assert [
        word for word in ("Circles", "Cells") if word in marks({"clients": [each] * clients, "tests": []})
    ] == said.split()


@in_one("classes", [0, 3])
@in_one("clients", [1, 4, 40])
def test_the_words_over_the_panels_do_not_overlap(clients: int, classes: int) -> None:
    each = {"group": "", "size": 50, "counts": [20] * classes or None}
    known = {"clients": [{"name": f"c{k}", **each} for k in range(clients)], "tests": [{"name": "t", **each}]}
    figure = who_has_what(known)
    words = [
        text.get_window_extent()
        for axes in figure.axes
        for text in axes.texts
        if text.get_text() in ("clients", "samples")
    ]
    assert len(words) == 2
    assert not words[0].overlaps(words[1])


def test_clients_that_were_in_no_round_are_named() -> None:
    """Away until after the end in every run; who is away in one of two runs has trained."""
    runs = []
    for seed, joins in enumerate(("z=9", "z=9, y=9")):
        fed = federation(names=["x", "y", "z"], joins=joins, seed=seed)
        fed.fit(2, progress=False)
        runs.append(fed.history)
    assert [run.untrained for run in runs] == [("z",), ("y", "z")]
    document = eq.Comparison.of(runs).document
    assert "1 of 3 clients trained in no round: z. No federated model has learnt from it." in document["notes"]
    everyone = federation(names=["x", "y", "z"])
    everyone.fit(1, progress=False)
    assert everyone.history.untrained == ()
    assert not [note for note in eq.Comparison.of([everyone.history]).document["notes"] if "trained in no" in note]
