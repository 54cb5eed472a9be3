"""The papers' scenarios on their data: sizes and parts as published, on labels of full size; images from tiny real files."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner, Result

import fixture_data
import fixture_medical
from equipoise.cli.main import app
from equipoise.data.contents import Contents, DataError
from equipoise.data.memory_mapped import Mapped, labels
from equipoise.data.sets import catalog
from equipoise.runs import directory as runs, plan as plans
from equipoise.runs.configuration import called, configure
from equipoise.runs.experiment import read_experiment
from equipoise.runs.reproduce import plan
from equipoise.scenarios import SCENARIOS, Images, Scenario, describe, load, papers, partition
from equipoise.scenarios.corruption import corrupted
from equipoise.system import workers
from equipoise.system.errors import InputError
from helpers import others_slow
from run_helpers import InProcess

GOLDEN = {
    entry["id"]: entry
    for name in ("fedsac", "partitions")
    for entry in json.loads((Path(__file__).parent / f"golden/{name}.json").read_text())
}
REAL = [name for name, entry in SCENARIOS.items() if entry.reads and name != "own"]
# Images of each class of DSLR, which sum to its 157; nearly one of each class in what a client gets.
DSLR = (12, 21, 12, 13, 10, 24, 22, 12, 8, 23)
ICH = (438, 4101, 2597, 4291, 8571)  # training slices of FedISM's lists, by class
ICH_TEST = (110, 1026, 650, 1073, 2143)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(folder))
    return folder


def found(y: Any, n_classes: int = 10, **more: Any) -> Contents:
    """Samples of one pixel that take no memory, with the labels given."""
    y = torch.as_tensor(np.asarray(y), dtype=torch.int64)
    return Contents(
        (torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(y), 1, 1, 1), y), tuple("abcdefghij"[:n_classes]), **more
    )


def by_class(counts: Sequence[int]) -> torch.Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


def spread(n: int, n_classes: int = 10) -> torch.Tensor:
    return torch.arange(n) % n_classes


Reads = Callable[[dict[tuple[str, str], Contents]], None]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Have the catalogue find what a test says, whatever the folder."""

    def say(sets: dict[tuple[str, str], Contents]) -> None:
        monkeypatch.setattr(catalog, "read", lambda name, root, split, **options: sets[name, split])
        monkeypatch.setattr(papers, "require", lambda data, wanted: None)

    return say


def parts(scenario: Scenario) -> list[list[int]]:
    return list(scenario.manifest["clients"].values())


def joined(some: Sequence[Sequence[int]]) -> list[int]:
    return [row for part in some for row in part]


def sizes(scenario: Scenario) -> list[int]:
    assert list(scenario.sizes) == [len(part) for part in parts(scenario)]
    return list(scenario.sizes)


# protocols
PROTOCOLS = {  # rounds, epochs, steps, batch, rate, momentum, decay, optimizer, network
    "fedheal-digits": (200, 10, None, 64, 1e-3, 0.9, 1e-5, "sgd", "resnet10"),
    "fedheal-office": (200, 10, None, 16, 1e-3, 0.9, 1e-5, "sgd", "resnet10"),
    "fedld-retina": (200, 1, None, 50, 0.01, 0.5, 5e-4, "sgd", "resnet50"),
    "fedld-covid": (200, 1, None, 50, 0.005, 0.5, 5e-4, "sgd", "resnet50"),
    "fedism-rsna": (300, 1, None, 32, 3e-4, 0.0, 5e-4, "adam", "resnet18"),
    "fedism-isic": (300, 1, None, 32, 3e-4, 0.0, 5e-4, "adam", "resnet18"),
    "fedsac-cifar10": (200, 1, 15, 32, 0.03, 0.0, 0.0, "sgd", "mlp"),
    "fedsac-svhn": (500, 1, 20, 64, 0.05, 0.0, 0.0, "sgd", "mlp"),
    "fedsac-fashion": (200, 1, 20, 32, 0.05, 0.0, 0.0, "sgd", "mlp"),
}


def everything(n: int = 100) -> dict[tuple[str, str], Contents]:
    """All data sets, small."""
    lists = {f"split_{k}/client_{j}": tuple(range(j, 60, 5)) for k in (1, 2, 3) for j in range(5)}
    sites = {f"split_real/site-{j}": tuple(range(j, 60, 12)) for j in range(12)}
    centres = {f"centre-{j}": tuple(range(j, 60, 6)) for j in range(6)}
    splits = ("train", "test")
    return {
        **{
            (name, split): found(spread(10 * n))
            for name in ("mnist", "usps", "svhn", "syn", "synth")
            for split in splits
        },
        **{(name, split): found(spread(10 * n)) for name in ("cifar10", "fashion-mnist") for split in splits},
        **{("office-caltech10", domain): found(by_class([40] * 10)) for domain in fixture_data.DOMAINS},
        **{("retina", split): found(spread(60, 2), 2, parts=lists) for split in splits},
        **{("covid-fl", split): found(spread(60, 3), 3, parts=sites) for split in splits},
        **{("rsna-ich", split): found(spread(n, 5), 5) for split in splits},
        **{("isic2019", split): found(spread(n, 8), 8, parts=centres) for split in splits},
    }


SMALL = {name: {"samples": 85} for name in ("fedsac-cifar10", "fedsac-svhn", "fedsac-fashion")}


def test_every_scenario_has_a_protocol() -> None:
    assert list(PROTOCOLS) == REAL


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_scenario_is_trained_as_its_paper_does(name: str, reads: Reads, tmp_path: Path) -> None:
    reads(everything())
    scenario = load(name, 0, tmp_path, **SMALL.get(name, {}))
    p = scenario.protocol
    told = (p.rounds, p.epochs, p.steps, p.batch_size, p.lr, p.momentum, p.weight_decay, p.optimizer, scenario.network)
    assert told == PROTOCOLS[name]
    assert scenario.name == name
    assert scenario.summary == SCENARIOS[name].summary


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if "fedsac" not in name and name != "fedheal-office"])
def test_what_comes_from_outside_of_an_image_is_black(name: str, reads: Reads, tmp_path: Path) -> None:
    """As in the papers' transforms: a grey image keeps its grey or becomes black, in training."""
    reads(everything())
    change = load(name, 0, tmp_path, **SMALL.get(name, {})).transform
    assert isinstance(change, Images)
    size = change.size or 32
    grey = torch.full((16, 3, size, size), 200, dtype=torch.uint8)
    drawn = [torch.randint(0, k, (16,), generator=torch.Generator().manual_seed(k)) for k in change.chances]
    made = change(grey, torch.stack(drawn, 1))
    black, kept = (change(torch.full_like(grey[:1], value)) for value in (0, 200))
    corners = made[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    dark = torch.isclose(corners, black[:, :, :1, 0], atol=1e-3)
    assert dark.any()
    assert (dark | torch.isclose(corners, kept[:, :, :1, 0], atol=1e-3)).all()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_scenario_repeats_and_can_be_recorded(name: str, reads: Reads, tmp_path: Path) -> None:
    """The same seed gives the same parts, from another folder, too; other labels another hash."""
    sets = everything()
    reads(sets)
    (tmp_path / "other").mkdir()
    first, again = (load(name, 3, folder, **SMALL.get(name, {})) for folder in (tmp_path, tmp_path / "other"))
    assert first is not again
    assert json.dumps(first.manifest) == json.dumps(again.manifest)
    assert [labels(x).tolist() for x in first.clients] == [labels(x).tolist() for x in again.clients]
    reads({key: found(labels(one.data).flip(0), len(one.classes), parts=one.parts) for key, one in sets.items()})
    (tmp_path / "third").mkdir()
    assert load(name, 3, tmp_path / "third", **SMALL.get(name, {})).manifest["sha256"] != first.manifest["sha256"]


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "fedld-covid"])
def test_another_seed_makes_other_clients(name: str, reads: Reads, tmp_path: Path) -> None:
    reads(everything())
    options = {**SMALL, "fedld-retina": {"clients": 5}}.get(name, {})
    assert parts(load(name, 0, tmp_path, **options)) != parts(load(name, 1, tmp_path, **options))


def test_a_scenario_is_read_once(reads: Reads, tmp_path: Path) -> None:
    """A run asks for it several times; other options or a changed folder are read."""
    sets = everything()
    reads(sets)
    first = load("fedism-rsna", 0, tmp_path)
    assert load("fedism-rsna", 0, tmp_path) is first
    assert load("fedism-rsna", 0, tmp_path, corrupted=6) is not first
    (tmp_path / "new").touch()
    os.utime(tmp_path, ns=(1, 1))
    assert load("fedism-rsna", 0, tmp_path) is not first


def test_what_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fedism-rsna reads rsna-ich: say where the files are, with --data DIR"):
        load("fedism-rsna")
    with pytest.raises(ValueError, match=r"Unknown option of scenario 'fedsac-svhn': 'scenes'\. Did you mean 'scene'"):
        load("fedsac-svhn", 0, tmp_path, scenes="pow")
    with pytest.raises(DataError, match="retina"):
        load("fedld-retina", 0, tmp_path)


# FedHEAL
FULL = {"mnist": 60_000, "usps": 7_291, "svhn": 73_257, "syn": 10_000, "synth": 479_400}


def full_digits() -> dict[tuple[str, str], Contents]:
    return {
        (name, split): found(spread(n if split == "train" else 20))
        for name, n in FULL.items()
        for split in ("train", "test")
    }


def test_digits_have_the_sizes_of_the_paper(reads: Reads, tmp_path: Path) -> None:
    reads(full_digits())
    scenario = load("fedheal-digits", 0, tmp_path)
    assert sizes(scenario) == [600] * 5 + [72] * 5 + [732] * 5 + [100] * 5
    assert scenario.client_names[4:6] == ("mnist-5", "usps-1")
    assert scenario.client_groups == ("mnist",) * 5 + ("usps",) * 5 + ("svhn",) * 5 + ("syn",) * 5
    assert list(scenario.tests) == ["mnist", "usps", "svhn", "syn"]
    for first in range(0, 20, 5):  # the clients of a domain share nothing
        taken = joined(parts(scenario)[first : first + 5])
        assert len(set(taken)) == len(taken)
    known = [labels(one.data) for (_, split), one in full_digits().items() if split == "train"][:4]
    assert parts(scenario) == partition.domain_samples(known, np.repeat(range(4), 5).tolist(), 0.01, 0)


@pytest.mark.parametrize("size", [32, 16, 5])
def test_digits_reach_the_network_as_in_the_paper(size: int, tmp_path: Path) -> None:
    """Grey images become three equal channels, small ones are enlarged as Pillow does it, none is mirrored."""
    written = {name: getattr(fixture_data, name)(tmp_path, 60, 20) for name in ("mnist", "usps", "svhn", "syn")}
    scenario = load("fedheal-digits", 0, tmp_path, clients=4, share=0.2, size=size)
    assert scenario.shape == (3, size, size)
    assert isinstance(scenario.transform, Images)
    assert scenario.transform.crop == size // 8
    for k, name in enumerate(written):
        pixels, y = written[name]["train"]
        part = parts(scenario)[k]
        assert labels(scenario.clients[k]).tolist() == y[part].tolist()
        assert len(part) == 12
        for image, row in zip(scenario.clients[k][0], part, strict=True):
            whole = pixels[row].repeat(4 - pixels.shape[1], axis=0)[:3].transpose(1, 2, 0)
            resized = Image.fromarray(np.ascontiguousarray(whole)).resize((size, size), Image.Resampling.BILINEAR)
            expected = np.asarray(resized).transpose(2, 0, 1)
            assert image.tolist() == expected.tolist(), name
        assert len(labels(scenario.tests[name])) == 20
        assert tuple(scenario.tests[name][0].shape[1:]) == (3, size, size)


def commands(error: object) -> list[list[str]]:
    """The words of the commands that an error advises."""
    return [shlex.split(text) for text in re.findall(r"`equipoise ([^`]*)`", str(error))]


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("folder", others_slow(["sets", "my sets"], fast=(1,)))
@pytest.mark.parametrize(
    ("name", "make", "lost", "rest"),
    [
        ("fedheal-digits", fixture_data.digits, ("usps*", "syn"), "mnist+svhn"),
        ("fedheal-digits", fixture_data.digits, ("usps.t.bz2",), "mnist+svhn+syn"),
        ("fedheal-digits", fixture_data.digits, ("MNIST/raw/t10k-labels*", "*.mat", "usps*"), "syn"),
        ("fedheal-office", fixture_data.office, ("*/caltech", "*/webcam"), "amazon+dslr"),
    ],
)
def test_all_missing_domains_are_named_at_once_and_the_advice_works(
    name: str, make: Callable[[Path], Any], lost: Sequence[str], rest: str, folder: str, tmp_path: Path
) -> None:
    root = tmp_path / folder
    make(root)
    gone = [path for pattern in lost for path in root.glob(pattern)]
    for path in gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError) as error:
        describe(name, root)
    assert all(path.name.removesuffix("-ubyte") in str(error.value) for path in gone if path.parent == root)
    *gets, compare = commands(error.value)
    assert compare[:2] == ["compare", "fedavg"]
    assert f"{name}(domains={rest})" in compare
    options = dict(zip(compare[3::2], compare[4::2], strict=True))
    scenario, given = called("--scenario", options["--scenario"], "")
    assert configure("fedheal", scenario, data=options["--data"], scenario_options=given).scenario == name
    for words in gets:
        assert words[:2] == ["data", "get"]
        assert str(root) in asked(*words).stdout


def test_reproduce_says_of_all_parts_what_is_missing_and_which_can_be_run(tmp_path: Path) -> None:
    """Every command that it prints is one that the command line understands, and the last one can be run."""
    for name, make, there in (
        ("fedsac/table2", fixture_data.fashion, "fashion"),
        ("fedheal/table2", fixture_data.office, "office"),
        ("fedheal/table5", lambda root: [fixture_data.mnist(root), fixture_data.usps(root)], ""),
    ):
        root = tmp_path / name / "my sets"
        make(root)
        reads = {set_ for part in read_experiment(name).part for set_ in SCENARIOS[part.scenario].reads}
        error = asked("reproduce", name, "--data", str(root)).exception
        assert isinstance(error, InputError)
        gets = [words[2] for words in commands(error) if words[:2] == ["data", "get"]]
        have = {known for known in catalog.SETS if all(catalog.copies(known, root, catalog.SETS[known].splits))}
        assert sorted(gets) == sorted(reads - have - {"svhn"} | (reads & {"svhn"}))
        last = commands(error)[-1]
        assert (last[0] == "reproduce") == bool(there)
        if there:
            group: Any = typer.main.get_command(app)
            given = group.commands["reproduce"].make_context("reproduce", last[1:]).params
            planned = plan(given["name"], tmp_path / "runs", data=given["data"], parts=given["part"], seeds=1).runs
            assert {run.part for run in planned} == {*given["part"]}
            assert all(run.part.startswith(there) for run in planned)
        else:
            assert [words for words in commands(error) if words[0] == "compare"]


@pytest.mark.parametrize(
    ("name", "stands"),
    [("fedism/table3", False), ("claims/fedheal-real", False), ("fedheal/table2", True), ("fedsac/table7", True)],
)
def test_stand_ins_are_advised_where_there_are_some(name: str, stands: bool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="say where they are, with --data DIR") as error:
        plan(name, tmp_path)
    assert ("with --embedded." in str(error.value)) == stands
    if stands:
        assert plan(name, tmp_path, embedded=True, seeds=1).runs
    else:
        with pytest.raises(InputError, match="there is no embedded stand-in for these data"):
            plan(name, tmp_path, embedded=True, seeds=1)


def test_a_whole_set_names_all_that_it_lacks(tmp_path: Path) -> None:
    written = fixture_data.cifar10(tmp_path)
    assert written
    for file in ("data_batch_2", "data_batch_4", "test_batch"):
        (tmp_path / "cifar-10-batches-py" / file).unlink()
    with pytest.raises(
        DataError,
        match=r"^cifar10: expected \S*data_batch_2, \S*data_batch_4, \S*test_batch in .*; found there: .*\. `equipoise",
    ):
        describe("fedsac-cifar10", tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match="must be unpacked first: tar -xzf"):
        describe("fedsac-cifar10", tmp_path)


def test_some_domains_will_do_and_a_missing_one_is_named(tmp_path: Path) -> None:
    fixture_data.mnist(tmp_path)
    fixture_data.svhn(tmp_path)
    with pytest.raises(DataError, match=r"usps.*To continue without.*domains=mnist\+svhn,"):
        load("fedheal-digits", 0, tmp_path, share=0.1)
    scenario = load("fedheal-digits", 0, tmp_path, domains="svhn+mnist", share=0.1)
    assert scenario.client_groups == ("svhn",) * 5 + ("mnist",) * 5
    assert load("fedheal-digits", 0, tmp_path, domains=["mnist"], share=0.1, clients=2).client_names == (
        "mnist-1",
        "mnist-2",
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedheal-digits", {"domains": ["mnist", "swhn"]}, r"domain of fedheal-digits: 'swhn'\. Did you mean 'svhn'"),
        ("fedheal-digits", {"domains": ["mnist", "mnist"]}, "must be different ones"),
        ("fedheal-digits", {"clients": 6}, "clients must be a multiple of 4, the domains; found 6"),
        ("fedheal-digits", {"clients": 0}, "clients must be a multiple of 4"),
        ("fedheal-digits", {"share": 0.3}, r"client 4 takes 18000 of the 6000 samples that are left of domain mnist"),
        ("fedheal-digits", {"share": 1.5}, r"share must be in \(0, 1\]"),
        ("fedheal-digits", {"size": -16}, r"fedheal-digits: size must be a whole number >= 1; found -16"),
        (
            "fedheal-office",
            {"domains": "caltech+webcan"},
            r"domain of fedheal-office: 'webcan'\. Did you mean 'webcam'",
        ),
        ("fedheal-office", {"domains": "dslr", "clients": 0}, "clients must be a multiple of 1, the domains; found 0"),
        ("fedheal-office", {"share": 0.01}, r"client 1 takes 3 of the 320 samples that are left of domain caltech"),
        ("fedheal-office", {"size": 0}, r"fedheal-office: size must be a whole number >= 1; found 0"),
        ("fedheal-office", {"size": 64.5}, r"fedheal-office: size must be a whole number >= 1; found 64\.5"),
        ("fedheal-office", {"size": "64px"}, r"fedheal-office: size must be a whole number >= 1; found '64px'"),
    ],
)
def test_options_of_fedheal_out_of_range_are_named(
    name: str, options: dict[str, Any], message: str, reads: Reads, tmp_path: Path
) -> None:
    reads(everything() | full_digits())
    with pytest.raises(ValueError, match=message):
        load(name, 0, tmp_path, **options)


COUNTS = {"caltech": 1123, "amazon": 958, "webcam": 295, "dslr": 157}


def office_labels(domain: str) -> torch.Tensor:
    """Sorted by class, as the files are; the shares of the classes are those of DSLR."""
    return by_class(DSLR) if domain == "dslr" else (torch.arange(COUNTS[domain]) * 10) // COUNTS[domain]


@pytest.mark.parametrize("seed", range(5))
def test_office_has_the_sizes_of_the_paper_and_all_classes(seed: int, reads: Reads, tmp_path: Path) -> None:
    reads({("office-caltech10", domain): found(office_labels(domain)) for domain in COUNTS})
    scenario = load("fedheal-office", seed, tmp_path)
    told = GOLDEN["partition.fedheal.office.sizes"]["expected"]
    assert sizes(scenario) == [told["per_client"][domain] for domain in COUNTS for _ in range(5)]
    assert {d: len(labels(test)) for d, test in scenario.tests.items()} == told["n_test"]
    assert {len(labels(client).unique()) for client in scenario.clients} == {10}
    for first in range(0, 20, 5):
        taken = joined(parts(scenario)[first : first + 5])
        assert len(set(taken)) == len(taken), "no image belongs to two clients"
        assert max(row % 10 for row in taken) <= 7, "no test image is for training"


def test_office_overlaps_as_the_released_code_does(reads: Reads, tmp_path: Path) -> None:
    """Where a class is missing from a client, its image comes from all of the domain."""
    reads({("office-caltech10", domain): found(office_labels(domain)) for domain in COUNTS})
    scenario = load("fedheal-office", 1, tmp_path, paper_overlap=True)
    train = [partition.every_tenth(n)[0] for n in COUNTS.values()]
    known = [office_labels(domain)[rows] for domain, rows in zip(COUNTS, train, strict=True)]
    drawn = partition.domain_samples(known, np.repeat(range(4), 5).tolist(), 0.1, 1, cover=True)
    assert parts(scenario) == [[train[k // 5][row] for row in part] for k, part in enumerate(drawn)]
    dslr = joined(parts(scenario)[15:])
    assert len(set(dslr)) < len(dslr)


@pytest.mark.parametrize("size", others_slow([None, 64, 33, 1], fast=(0, 2)))
def test_office_reads_its_images(size: int | None, tmp_path: Path) -> None:
    fixture_data.office(tmp_path)
    options = {} if size is None else {"size": size}
    scenario = load("fedheal-office", 0, tmp_path, clients=4, share=0.2, **options)
    side = size or 192
    assert scenario.shape == describe("fedheal-office", **options).shape == (3, side, side)
    assert scenario.sizes == (16,) * 4
    assert all(isinstance(client, Mapped) for client in scenario.clients)
    rows = scenario.manifest["clients"]["dslr-1"]
    files = sorted((tmp_path / "office_caltech_10" / "dslr").glob("*/*.jpg"))
    for image, row in zip(scenario.clients[3].gather(range(16)).x, rows, strict=True):
        whole = Image.open(files[row]).convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
        assert image.tolist() == np.asarray(whole).transpose(2, 0, 1).tolist()


def test_office_has_the_same_parts_at_any_size(tmp_path: Path) -> None:
    fixture_data.office(tmp_path)
    one, other = (load("fedheal-office", 3, tmp_path, clients=4, share=0.2, size=size) for size in (16, 40))
    assert parts(one) == parts(other)
    assert one.manifest["sha256"] != other.manifest["sha256"], "a run that saw images of another size saw other data"


# FedLD
@pytest.mark.parametrize("case", ["100", "1.0", "0.5"])
def test_retina_is_drawn_as_the_published_splits_were(case: str, reads: Reads, tmp_path: Path) -> None:
    entry = GOLDEN[f"partition.retina.alpha{case}"]
    given = entry["inputs"]
    reads({("retina", split): found(given["labels"], 2) for split in ("train", "test")})
    scenario = load("fedld-retina", 0, tmp_path, clients=given["K"], alpha=given["alpha"])
    assert parts(scenario) == entry["expected"]["parts"]


def test_retina_takes_the_published_lists(reads: Reads, tmp_path: Path) -> None:
    lists = {
        **{f"split_1/client_{j}": tuple(range(j, 60, 5)) for j in range(5)},
        **{f"split_3/client_{j}": tuple(range(12 * j, 12 * j + 12)) for j in range(5)},
    }
    reads({("retina", split): found(spread(60, 2), 2, parts=lists) for split in ("train", "test")})
    scenario = load("fedld-retina", 0, tmp_path, split=3)
    assert parts(scenario) == [list(range(12 * j, 12 * j + 12)) for j in range(5)]
    assert scenario.client_names[0] == "client_0"
    assert scenario.client_groups is None
    assert parts(load("fedld-retina", 0, tmp_path)) == parts(load("fedld-retina", 5, tmp_path, split=1))
    with pytest.raises(
        DataError, match=r"a folder split_2/ next to the images; found split_1, split_3.*clients=5, alpha=0.5"
    ):
        load("fedld-retina", 0, tmp_path, split=2)
    with pytest.raises(ValueError, match="split must be 1, 2 or 3; found 4"):
        load("fedld-retina", 0, tmp_path, split=4)
    with pytest.raises(ValueError, match=r"split=1 is a published partition, and clients and alpha draw one"):
        load("fedld-retina", 0, tmp_path, split=1, alpha=0.5)


@pytest.mark.parametrize("alpha", [100.0, 1.0, 0.5])
def test_fifty_clients_train_in_turns(alpha: float, reads: Reads, tmp_path: Path) -> None:
    reads({("retina", split): found(spread(9000, 2), 2) for split in ("train", "test")})
    scenario = load("fedld-retina", 0, tmp_path, clients=50, alpha=alpha)
    assert scenario.protocol.participation == 0.1
    assert min(scenario.sizes) >= 10
    assert sorted(joined(parts(scenario))) == list(range(9000))
    few = load("fedld-retina", 0, tmp_path, alpha=alpha)
    assert few.protocol.participation == 1
    assert len(few.clients) == 5


def test_each_institution_is_a_client(reads: Reads, tmp_path: Path) -> None:
    reads(everything())
    scenario = load("fedld-covid", 0, tmp_path)
    assert scenario.client_names == tuple(f"site-{k}" for k in range(12))
    assert scenario.n_classes == 3
    assert parts(scenario)[11] == [11, 23, 35, 47, 59]
    assert list(scenario.tests) == ["test"]


def test_retina_trains_on_its_files(tmp_path: Path) -> None:
    folder = fixture_medical.retina(tmp_path)
    scenario = load("fedld-retina", 0, tmp_path, split=2, size=32)
    assert describe("fedld-retina", size=32).shape == scenario.shape
    assert scenario.shape == (3, 32, 32)
    assert scenario.client_names == tuple(f"client_{k}" for k in range(1, 6))
    names = catalog.read("retina", tmp_path, "train").names
    listed = (folder / "5_clients/split_2/client_3.csv").read_text().split()
    assert names is not None
    assert {names[row] for row in scenario.manifest["clients"]["client_3"]} == set(listed)
    trained("fedld-retina", tmp_path, {"split": 2, "size": 32})


def test_retina_from_kaggle_has_no_lists(tmp_path: Path) -> None:
    fixture_medical.kaggle_retina(tmp_path)
    with pytest.raises(DataError, match=r"found no lists.*draw a partition: clients=5"):
        load("fedld-retina", 0, tmp_path)
    scenario = load("fedld-retina", 0, tmp_path, clients=2, alpha=100.0)
    strict = load("fedld-retina", 0, tmp_path, clients=2, alpha=100.0, positive_from=4)
    diseased = [sum(int(labels(client).sum()) for client in s.clients) for s in (scenario, strict)]
    assert diseased[0] > diseased[1] > 0


def test_institutions_train_on_their_files(tmp_path: Path) -> None:
    fixture_medical.covid(tmp_path)
    scenario = load("fedld-covid", 0, tmp_path, size=24)
    assert describe("fedld-covid", size=24).shape == scenario.shape
    assert scenario.shape == (3, 24, 24)
    assert scenario.client_names == tuple(sorted(fixture_medical.COVID_CLIENTS))
    trained("fedld-covid", tmp_path, {"size": 24})


def trained(name: str, data: Path, options: dict[str, Any], **choices: Any) -> None:
    """One round of the scenario's own training with a small network, from images on disk."""
    config = configure(
        "fedavg", name, network="cnn", data=str(data), scenario_options=options, rounds=1, epochs=1, **choices
    )
    fed, scenario = runs.federation(config)
    assert all(isinstance(client, Mapped) for client in scenario.clients)
    fed.fit(1, progress=False)
    accuracy = fed.records[0]["groups"]
    assert set(accuracy) == set(scenario.tests)


# FedISM
def noisy(n: int, n_classes: int, side: int = 4, seed: int = 0) -> Contents:
    x = torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Contents((x, spread(n, n_classes)), tuple("abcdefgh"[:n_classes]))


def on_disk(one: Contents, path: Path) -> Contents:
    np.save(path, one.data[0].numpy())
    return Contents(Mapped(path, np.arange(len(one)), labels(one.data)), one.classes)


def test_quality_repeats_the_released_partition(reads: Reads, tmp_path: Path) -> None:
    entry = GOLDEN["partition.fedism.quality"]
    given = entry["inputs"]
    y = torch.tensor(given["labels"])
    reads({("rsna-ich", "train"): found(y, int(y.max()) + 1), ("rsna-ich", "test"): found(y, int(y.max()) + 1)})
    scenario = load(
        "fedism-rsna", given["seed"] - 2024, tmp_path, clients=given["K"], corrupted=given["m"], recipe="released"
    )
    assert parts(scenario) == entry["expected"]["parts"]


@pytest.mark.parametrize(("corrupted", "total"), [(1, 1001), (2, 2000), (4, 3999), (6, 5998)])
@pytest.mark.parametrize("recipe", ["shuffled", "released"])
def test_as_many_slices_are_corrupted_as_in_the_paper(
    corrupted: int, total: int, recipe: str, reads: Reads, tmp_path: Path
) -> None:
    reads({("rsna-ich", "train"): found(by_class(ICH), 5), ("rsna-ich", "test"): found(by_class(ICH_TEST), 5)})
    scenario = load("fedism-rsna", 0, tmp_path, corrupted=corrupted, recipe=recipe, severity=0)
    assert sum(sizes(scenario)) == 19_998
    assert sum(scenario.sizes[20 - corrupted :]) == total
    assert sorted(joined(parts(scenario))) == list(range(19_998))
    assert scenario.client_groups == ("clean",) * (20 - corrupted) + ("corrupted",) * corrupted
    assert {len(labels(test)) for test in scenario.tests.values()} == {5002}


def test_shuffled_clients_do_not_follow_the_order_of_the_files(reads: Reads, tmp_path: Path) -> None:
    """In the order of the files, the last of each class are corrupted."""
    reads({("rsna-ich", split): found(spread(1000, 5), 5) for split in ("train", "test")})
    last = {
        recipe: [
            row for part in parts(load("fedism-rsna", 0, tmp_path, recipe=recipe, severity=0))[16:] for row in part
        ]
        for recipe in ("released", "shuffled")
    }
    assert min(last["released"]) == 800
    assert len([row for row in last["shuffled"] if row < 800]) > 100


@pytest.mark.parametrize("name", ["fedism-rsna", "fedism-isic"])
@pytest.mark.parametrize("corruption", others_slow(["gaussian-noise", "motion-blur"], fast=(1,)))
def test_corrupted_clients_hold_corrupted_images(name: str, corruption: str, reads: Reads, tmp_path: Path) -> None:
    """In memory and on disk alike: the same bytes; the clean clients' images and the clean test are as they were."""
    of, n = SCENARIOS[name].reads[0], 8 if name == "fedism-isic" else 5
    made = {(of, "train"): noisy(200, n, side=24), (of, "test"): noisy(60, n, side=24, seed=1)}
    told: dict[str, Any] = {"clients": 8, "corrupted": 3, "corruption": corruption}
    reads(made)
    memory = load(name, 0, tmp_path, **told)
    reads({key: on_disk(one, tmp_path / f"{key[1]}.npy") for key, one in made.items()})
    (tmp_path / "disk").mkdir()
    disk = load(name, 0, tmp_path / "disk", **told)
    assert all(isinstance(data, Mapped) for data in (*disk.clients, *disk.tests.values()))
    assert memory.manifest["recipe"]["severity"] == {"gaussian-noise": 3, "motion-blur": 1}[corruption]
    x, _ = made[of, "train"].data
    for k, (client, streamed, part) in enumerate(zip(memory.clients, disk.clients, parts(memory), strict=True)):
        assert torch.equal(client[0], streamed.gather(range(len(part))).x)
        assert labels(client).tolist() == labels(streamed).tolist() == labels(made[of, "train"].data)[part].tolist()
        same = (client[0] == x[part]).flatten(1).all(1)
        assert same.all() if k < 5 else not same.any()
    clean, bad = memory.tests["clean"], memory.tests["corrupted"]
    assert torch.equal(clean[0], made[of, "test"].data[0])
    assert torch.equal(clean[1], bad[1])
    assert not (clean[0] == bad[0]).flatten(1).all(1).any()
    assert torch.equal(bad[0], disk.tests["corrupted"].gather(range(60)).x)


def test_an_image_is_corrupted_alike_whoever_has_it(tmp_path: Path, cache: Path) -> None:
    one = on_disk(noisy(40, 5), tmp_path / "images.npy")
    every = corrupted(one.data, range(40), "gaussian-noise", 3, 7, "every")
    some = corrupted(one.data, [30, 2, 11], "gaussian-noise", 3, 7, "some")
    assert torch.equal(some.gather(range(3)).x, every.gather([30, 2, 11]).x)
    assert labels(some).tolist() == labels(one.data)[[30, 2, 11]].tolist()
    other = corrupted(one.data, [30, 2, 11], "gaussian-noise", 3, 8, "some")
    assert not torch.equal(some.gather(range(3)).x, other.gather(range(3)).x)
    difference = every.gather(range(40)).x.double() - one.data.gather(range(40)).x.double()
    assert len({tuple(image.flatten().tolist()) for image in difference}) == 40, "no two images have the same noise"


def test_corrupted_copies_are_made_once_and_again_if_damaged(tmp_path: Path, cache: Path) -> None:
    one = on_disk(noisy(10, 5), tmp_path / "images.npy")
    first = corrupted(one.data, range(10), "gaussian-noise", 3, 7, "some images")
    expected = first.gather(range(10)).x
    (kept,) = cache.glob("*.npy")
    made = kept.stat().st_mtime_ns
    assert corrupted(one.data, range(10), "gaussian-noise", 3, 7, "some images").path == kept
    assert kept.stat().st_mtime_ns == made
    kept.write_bytes(kept.read_bytes()[:-20])
    assert torch.equal(
        corrupted(one.data, range(10), "gaussian-noise", 3, 7, "some images").gather(range(10)).x, expected
    )
    corrupted(one.data, range(10), "gaussian-noise", 2, 7, "some images")
    assert len(list(cache.glob("*.npy"))) == 2


def test_severity_0_and_no_corrupted_client_leave_the_images(reads: Reads, tmp_path: Path, cache: Path) -> None:
    made = {("rsna-ich", split): on_disk(noisy(60, 5), tmp_path / f"{split}.npy") for split in ("train", "test")}
    reads(made)
    plain = load("fedism-rsna", 0, tmp_path, clients=4, corrupted=2, severity=0)
    assert torch.equal(plain.tests["corrupted"].gather(range(60)).x, plain.tests["clean"].gather(range(60)).x)
    assert not list(cache.glob("*.npy"))
    nobody = load("fedism-rsna", 0, tmp_path, clients=4, corrupted=0)
    assert nobody.client_groups == ("clean",) * 4
    assert load("fedism-rsna", 0, tmp_path, clients=4, corrupted=4).client_groups == ("corrupted",) * 4


def test_centres_are_clients_with_tests_of_their_own(reads: Reads, tmp_path: Path) -> None:
    reads(everything())
    scenario = load("fedism-isic", 0, tmp_path, clients="centre")
    assert scenario.client_names == scenario.client_groups == tuple(f"centre-{k}" for k in range(6))
    assert list(scenario.tests) == list(scenario.client_names)
    assert parts(scenario)[5] == list(range(5, 60, 6))
    with pytest.raises(ValueError, match=r"with clients=centre images stay .*found corrupted=4"):
        load("fedism-isic", 0, tmp_path, clients="centre", corrupted=4)
    with pytest.raises(ValueError, match="nothing is divided or corrupted, and alpha, severity would do nothing"):
        load("fedism-isic", 0, tmp_path, clients="centre", alpha=0.5, severity=3)
    with pytest.raises(ValueError, match="clients must be a whole number or 'centre'; found 'center'"):
        load("fedism-isic", 0, tmp_path, clients="center")
    (tmp_path / "bare").mkdir()
    reads({("isic2019", split): found(spread(60, 8), 8) for split in ("train", "test")})
    with pytest.raises(DataError, match=r"needs to know where each image comes from"):
        load("fedism-isic", 0, tmp_path / "bare", clients="centre")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruption": "gaussian"}, r"corruption of fedism-rsna: 'gaussian'\. Did you mean 'gaussian-noise'"),
        ({"recipe": "exact"}, r"recipe of fedism-rsna: 'exact'\."),
        ({"severity": 6}, r"severity must be a whole number in 0\.\.5; found 6"),
        ({"corrupted": 21}, r"corrupted must be a whole number in 0\.\.20"),
        ({"clients": 400}, "expected 1 to 100 clients for 100 samples, found 400"),
    ],
)
def test_options_of_fedism_out_of_range_are_named(
    options: dict[str, Any], message: str, reads: Reads, tmp_path: Path
) -> None:
    reads(everything())
    with pytest.raises(ValueError, match=message):
        load("fedism-rsna", 0, tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "folder", "ending", "classes"),
    [("fedism-rsna", "ICH_20", "png", 5), ("fedism-isic", "ISIC2019_20", "jpg", 8)],
)
def test_fedism_trains_on_its_files(name: str, folder: str, ending: str, classes: int, tmp_path: Path) -> None:
    fixture_medical.ready(tmp_path, folder, ending, classes)
    options = {"clients": 2, "corrupted": 1, "size": 24, "alpha": 100.0}
    scenario = load(name, 0, tmp_path, **options)
    assert (scenario.shape, sum(scenario.sizes)) == ((3, 24, 24), 20)
    images = scenario.tests["corrupted"].gather(range(10)).x
    assert torch.equal(images[:, 0], images[:, 1]) == (name == "fedism-rsna"), "grey images stay grey"
    trained(name, tmp_path, options)


def test_skin_lesions_are_divided_by_centre(tmp_path: Path) -> None:
    fixture_medical.isic(tmp_path, n=96)
    scenario = load("fedism-isic", 0, tmp_path, clients="centre", size=24)
    assert describe("fedism-isic", clients="centre", size=24).shape == scenario.shape
    assert scenario.client_names == ("BCN", "HAM", "MSK4")
    trained("fedism-isic", tmp_path, {"clients": "centre", "size": 24})


# FedSAC
def cifar(n: int = 50_000) -> dict[tuple[str, str], Contents]:
    return {("cifar10", "train"): found(spread(n)), ("cifar10", "test"): found(spread(10_000))}


def test_sizes_grow_as_in_the_paper(reads: Reads, tmp_path: Path) -> None:
    reads(cifar())
    scenario = load("fedsac-cifar10", 0, tmp_path)
    assert sizes(scenario) == GOLDEN["partition.pow.sizes.case1"]["expected"]["sizes_released"]
    held = scenario.manifest["validation"]
    assert torch.equal(labels(scenario.server_validation).bincount(), torch.full((10,), 500))
    taken = joined(parts(scenario))
    assert len(set(taken)) == len(taken) == 20_000
    assert not set(taken) & set(held)
    assert scenario.collaborative
    assert list(scenario.tests) == ["test"]
    exact = load("fedsac-cifar10", 0, tmp_path, recipe="exact")
    assert sizes(exact) == GOLDEN["partition.pow.sizes.case1"]["expected"]["sizes_exact"]
    assert sum(load("fedsac-cifar10", 0, tmp_path, clients=20).sizes) == 40_000


def test_classes_grow_as_in_the_paper(reads: Reads, tmp_path: Path) -> None:
    reads(cifar())
    scenario = load("fedsac-cifar10", 0, tmp_path, scene="cla")
    assert sizes(scenario) == [2000] * 10
    counts = [labels(client).bincount(minlength=10).tolist() for client in scenario.clients]
    assert counts == GOLDEN["partition.cla.case1"]["expected"]["counts"]
    assert all(len(set(part)) == 2000 for part in parts(scenario))
    assert not set(joined(parts(scenario))) & set(scenario.manifest["validation"])
    twice = load("fedsac-cifar10", 0, tmp_path, scene="cla", recipe="released")
    assert any(len(set(part)) < 2000 for part in parts(twice))


@pytest.mark.parametrize(
    ("clients", "samples"), others_slow([(10, None), (10, 2000), (20, None), (60, None)], fast=(1, 2))
)
@pytest.mark.parametrize("recipe", ["mixtures", "released", "plain"])
def test_shares_use_what_there_is(clients: int, samples: int | None, recipe: str, reads: Reads, tmp_path: Path) -> None:
    reads(cifar())
    options = {"scene": "dir", "clients": clients, "samples": samples, "alpha": 2.0, "recipe": recipe}
    if recipe == "released" and samples is not None:
        with pytest.raises(
            ValueError, match=r"fedsac-cifar10\(recipe=released\) divides all images .* leave samples=2000 out"
        ):
            load("fedsac-cifar10", 0, tmp_path, **options)
        return
    scenario = load("fedsac-cifar10", 0, tmp_path, **options)
    taken, held = joined(parts(scenario)), scenario.manifest["validation"]
    assert len(set(taken)) == len(taken) == sum(sizes(scenario)) == (45_000 if samples is None else clients * samples)
    assert len(held) == 5000
    assert not set(taken) & set(held)
    assert min(scenario.sizes) >= 10


def test_the_released_division_is_that_of_its_seeds(reads: Reads, tmp_path: Path) -> None:
    """FLGo 0.0.15, line by line, after FedRAC's seeds: mixtures near the classes' shares, and each class cut by them in order."""
    train = cifar()
    reads(train)
    order = torch.randperm(50_000, generator=torch.Generator().manual_seed(12)).tolist()[:45_000]
    y = labels(train["cifar10", "train"].data)[order].tolist()
    names = list(dict.fromkeys(y))
    prior = np.array([y.count(name) for name in names]) / len(y)
    np.random.seed(97)  # noqa: NPY002
    q = [np.random.dirichlet(1.5 * prior) for _ in range(10)]  # noqa: NPY002
    loops, most, turn = 0, 1e-6, 0
    while True:
        if loops >= 500:
            loops, most = 0, most * 10
        error = ((np.mean(q, axis=0) - prior) ** 2).sum()
        if error <= most:
            break
        others = np.sum(q, axis=0) - q[turn]
        new = [np.random.dirichlet(1.5 * prior) for _ in range(10)]  # noqa: NPY002
        errors = [(((others + one) / (others + one).sum() - prior) ** 2).sum() for one in new]
        if min(errors) < error:
            q[turn] = new[int(np.argmin(errors))]
        turn, loops = (turn + 1) % 10, loops + 1
    expected: list[list[int]] = [[] for _ in range(10)]
    for k, name in enumerate(names):
        members = [place for place, c in zip(order, y, strict=True) if c == name]
        share = np.array(q)[:, k] / np.array(q)[:, k].sum()
        for part, cut in zip(
            expected, np.split(members, (np.cumsum(share) * len(members)).astype(int)[:-1]), strict=True
        ):
            part.extend(cut.tolist())
    scenario = load("fedsac-cifar10", 3, tmp_path, scene="dir", alpha=1.5, recipe="released", data_seed=0)
    assert [sorted(part) for part in parts(scenario)] == [sorted(part) for part in expected]
    other = load("fedsac-cifar10", 3, tmp_path, scene="dir", alpha=1.5, recipe="released")
    assert parts(other) != parts(scenario)


def test_shares_are_more_alike_the_higher_alpha(reads: Reads, tmp_path: Path) -> None:
    reads(cifar(10_000))

    def unevenness(alpha: float | None) -> float:
        scenario = load("fedsac-cifar10", 0, tmp_path, scene="dir", samples=900, alpha=alpha)
        share = torch.stack(
            [labels(client).bincount(minlength=10) / len(labels(client)) for client in scenario.clients]
        )
        return float(share.std(0).mean())

    assert unevenness(0.5) > unevenness(None) > unevenness(3.0)
    assert unevenness(None) == unevenness(1.0)
    for recipe in ("capped", "mixtures"):
        assert sum(load("fedsac-cifar10", 0, tmp_path, scene="dir", samples=900, recipe=recipe).sizes) == 9000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scene": "power"}, r"scene of fedsac-cifar10: 'power'\. Did you mean 'pow'"),
        ({"recipe": "plain"}, r"recipe of fedsac-cifar10\(scene=pow\): 'plain'"),
        ({"holdout": "none"}, r"holdout of fedsac-cifar10: 'none'"),
        ({"alpha": 1.0}, r"alpha=1\.0 belongs to scene=dir; pow has none"),
        ({"clients": 23}, r"23 clients of 2000 images on average need 46000, and 45000 are left of the 50000"),
        ({"scene": "dir", "samples": 5000}, r"10 clients of 5000 images"),
        ({"clients": 0}, "clients and samples must be >= 1; found clients=0"),
        ({"scene": "cla", "samples": 5000}, r"client 1 needs 5000 different samples of class 0"),
        ({"scene": "dir", "alpha": 0.0}, "alpha must be >="),
    ],
)
def test_options_of_fedsac_out_of_range_are_named(
    options: dict[str, Any], message: str, reads: Reads, tmp_path: Path
) -> None:
    reads(cifar())
    with pytest.raises(ValueError, match=message):
        load("fedsac-cifar10", 0, tmp_path, **options)


@pytest.mark.parametrize(("name", "shape"), [("cifar10", (3, 32, 32)), ("svhn", (3, 32, 32)), ("fashion", (1, 28, 28))])
def test_fedsac_trains_on_its_files(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    written = getattr(fixture_data, name)(tmp_path, 400, 30)
    options = {"samples": 85, "clients": 4}
    scenario = load(f"fedsac-{name}", 0, tmp_path, **options)
    assert scenario.shape == shape
    assert len(labels(scenario.tests["test"])) == 30
    x, y = written["train"]
    for (images, kinds), part in zip(scenario.clients, parts(scenario), strict=True):
        assert torch.equal(images, torch.from_numpy(x[part]))
        assert kinds.tolist() == y[part].tolist()
    config = configure("fedavg", f"fedsac-{name}", data=str(tmp_path), scenario_options=options, rounds=2, steps=2)
    assert (config.network, config.network_options) == ("mlp", {"hidden": [200, 200]})
    fed, _ = runs.federation(config)
    fed.fit(1, progress=False)
    assert len(fed.records) == 1


def test_a_comparison_reads_its_files_once_per_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods come before seeds in the order of a comparison, and the runs on the same data follow one another."""
    fixture_data.cifar10(tmp_path / "data", 400, 30)
    reads: list[str] = []
    read = catalog.read

    def counted(name: str, root: Path, split: str, **options: Any) -> Contents:
        reads.append(split)
        return read(name, root, split, **options)

    monkeypatch.setattr(catalog, "read", counted)
    monkeypatch.setattr(workers, "Worker", InProcess)
    small = {"network": "mlp", "network_options": {"hidden": [4]}, "rounds": 1, "steps": 1}
    configs = [
        configure(
            method,
            "fedsac-cifar10",
            data=str(tmp_path / "data"),
            seed=seed,
            scenario_options={"samples": 85, "clients": 4},
            **small,
        )
        for method in ("fedavg", "fedprox", "afl", "fedheal")
        for seed in range(3)
    ]
    assert reads == []  # a configuration needs none
    histories = plans.compare(configs, tmp_path / "runs", jobs=1)
    assert reads == ["train", "test"] * 3  # those of the first seed before any run, to see that the network suits them
    assert [(h.label, h.seed) for h in histories] == [(c.label, c.seed) for c in configs]


def test_adam_is_recommended_and_another_optimizer_has_its_own_rate(reads: Reads, tmp_path: Path) -> None:
    reads(everything())

    def chosen(scenario: str, **choices: Any) -> tuple[str, float, float, float]:
        config = configure("fedavg", scenario, network="mlp", data=str(tmp_path), **choices)
        return config.optimizer, config.lr, config.momentum, config.weight_decay

    assert chosen("fedism-rsna") == ("adam", 3e-4, 0.0, 5e-4)
    assert chosen("fedism-rsna", optimizer="adamw") == ("adamw", 3e-4, 0.0, 5e-4)
    assert chosen("fedism-rsna", optimizer="sgd", momentum=0.9) == ("sgd", 0.01, 0.9, 5e-4)
    assert chosen("fedld-covid", optimizer="adam") == ("adam", 0.001, 0.0, 5e-4)
    with pytest.raises(ValueError, match=r"--momentum belongs to SGD; adam has its own"):
        chosen("fedism-rsna", momentum=0.9)
