"""Scenarios: what reaches the network, who holds what, and that training and test sources never meet."""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.sets import catalog
from equipoise.runs import directory as runs
from equipoise.runs.configuration import RunError, configure, option_value
from equipoise.scenarios import CORRUPTIONS, SCENARIOS, Images, describe, digits, load, partition
from equipoise.system.files import cache_directory
from helpers import fast_first, in_one, others_slow

DOMAINS = ("optdigits", "photo", "fonts", "street")
SMALL = {"train": (20, 20, 24, 20), "test": (20, 20, 20, 20), "clients": 8}


@pytest.fixture(autouse=True)
def folder(tmp_path_factory, monkeypatch):
    """One cache for the whole file: never the user's own."""
    path = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("EQUIPOISE_CACHE", str(path))
    return path


@pytest.fixture(scope="module")
def data():
    return digits.generate(0)


# Images


def bytes_like(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_crop_is_the_window_of_the_replicated_image():
    """Against the definition, pixel by pixel, for every one of the 25 offsets."""
    images = Images((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), crop=2)
    x = bytes_like(25, 3, 5, 7)
    shift = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    out = images(x, shift, torch.float64)
    for n, (dy, dx) in enumerate(shift.tolist()):
        for c in range(3):
            for i in range(5):
                for j in range(7):
                    pixel = x[n, c, min(max(i + dy - 2, 0), 4), min(max(j + dx - 2, 0), 6)].item()
                    expected = (pixel / 255 - images.mean[c]) / images.std[c]
                    assert out[n, c, i, j].item() == pytest.approx(expected, abs=1e-12)


def test_without_a_shift_nothing_moves():
    images, x = Images((0.5,), (0.25,), crop=2), bytes_like(4, 3, 6, 6)
    torch.testing.assert_close(images(x), (x / 255 - 0.5) / 0.25)
    assert torch.equal(images(x), images(x, torch.full((4, 2), 2)))


def test_a_stack_of_clients_is_treated_like_each_of_them():
    images, x = digits.TRANSFORM, bytes_like(3, 5, 3, 32, 32)
    shift = torch.randint(0, 5, (3, 5, 2), generator=torch.Generator().manual_seed(1))
    assert torch.equal(images(x, shift), torch.stack([images(x[m], shift[m]) for m in range(3)]))
    assert torch.equal(images(x[0, 0], shift[0, 0]), images(x, shift)[0, 0])


def test_memory_order_does_not_change_the_result():
    images, x, shift = digits.TRANSFORM, bytes_like(4, 3, 8, 8), torch.tensor([[0, 4], [1, 3], [2, 2], [4, 0]])
    last, before = x.contiguous(memory_format=torch.channels_last), x.clone()
    assert torch.equal(images(last, shift), images(x, shift))
    assert torch.equal(images(last), images(x))
    assert images(last, shift).is_contiguous()
    assert torch.equal(x, before)


def test_images_refuses_what_it_would_silently_spoil():
    images, x = Images((0.5,) * 3, (0.2,) * 3, crop=1), bytes_like(4, 3, 8, 8)
    with pytest.raises(TypeError, match=r"expected uint8 pixels, found torch\.float32"):
        images(x.float())
    with pytest.raises(ValueError, match=r"must be \[4, 2\], 2 numbers per image; found \[2\]"):
        images(x, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"expected \[\.\.\., 3, H, W\], found \[4, 1, 8, 8\]"):
        images(x[:, :1])
    with pytest.raises(ValueError, match="one number per channel each; found 1 and 2"):
        Images((0.5,), (0.2, 0.2))
    with pytest.raises(ValueError, match="every std must be > 0"):
        Images((0.5,), (0.0,))
    with pytest.raises(ValueError, match="crop must be a whole number >= 0; found -1"):
        Images((0.5,), (0.2,), crop=-1)


# The digits


def test_sizes_are_those_of_the_benchmark():
    scenario = load("digits", seed=1)
    assert [len(y) for _, y in scenario.clients] == [60] * 10 + [160] * 5 + [60] * 5
    assert {name: len(y) for name, (_, y) in scenario.tests.items()} == dict(zip(DOMAINS, digits.TEST, strict=True))
    assert scenario.client_groups == tuple(d for d in DOMAINS for _ in range(5))
    assert scenario.client_names[:6] == (*(f"optdigits-{k}" for k in range(1, 6)), "photo-1")
    x, y = scenario.clients[0]
    assert x.shape == (60, 3, 32, 32)
    assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
    json.dumps(scenario.manifest)


def test_the_bytes_of_seed_0_are_known(data):
    """A change here changes every published number: raise VERSION, and say so under "Changed results"."""
    assert digits.VERSION == 1
    assert digits.digest(data) == "0039868e0ebb01813fbef561be32a85370b4cb387c6f77cdf8c0a1b6ad26d579"


def test_another_seed_draws_other_data_and_the_same_seed_the_same():
    first, second = (digits.generate(3, SMALL["train"], SMALL["test"]) for _ in range(2))
    other = digits.generate(4, SMALL["train"], SMALL["test"])
    assert digits.digest(first) == digits.digest(second)
    for domain in DOMAINS:
        assert not torch.equal(first[f"{domain}/train/x"], other[f"{domain}/train/x"])
        assert not torch.equal(first[f"{domain}/test/x"], other[f"{domain}/test/x"])
    assert not torch.equal(first["photo/train/sample"], other["photo/train/sample"])


@pytest.mark.parametrize("seed", [0, 1])
def test_training_and_test_share_no_handwriting(data, seed):
    drawn = data if seed == 0 else digits.generate(seed)
    used = torch.cat([drawn[f"{domain}/{split}/sample"] for domain in DOMAINS[:2] for split in digits.SPLITS])
    assert len(used) == 1200
    assert len(used.unique()) == len(used)
    assert used.min() >= 0
    assert used.max() < digits.SAMPLES


def test_training_and_test_share_no_type_family(data):
    families = digits.glyphs()["families"]
    for domain in ("fonts", "street"):
        train, test = (set(families[data[f"{domain}/{split}/font"].numpy()]) for split in digits.SPLITS)
        assert train == {"DejaVu", "STIX"}
        assert test == {"Computer Modern", "Aileron"}


def test_training_and_test_share_no_pixel_of_a_photograph(data):
    seen = {split: np.zeros((2, 427, 640), bool) for split in digits.SPLITS}
    for split, pixels in seen.items():
        for domain in ("photo", "street"):
            for photo, top, left, side, _ in data[f"{domain}/{split}/patch"].tolist():
                assert top + side <= 427
                assert left + side <= 640
                pixels[photo, top : top + side, left : left + side] = True
    assert seen["train"].any()
    assert seen["test"].any()
    assert not (seen["train"] & seen["test"]).any()


def test_the_recorded_patch_is_what_lies_behind_the_digit(data):
    """In a patch of 32 pixels the photograph is copied, so the corners of the image must be its pixels."""
    from sklearn.datasets import load_sample_images

    photos, found = load_sample_images().images, 0
    for x, (photo, top, left, side, mirrored) in zip(
        data["photo/train/x"], data["photo/train/patch"].tolist(), strict=True
    ):
        if side == 32:
            patch = photos[photo][top : top + 32, left : left + 32]
            patch = patch[:, ::-1] if mirrored else patch
            assert x[:, 0, 0].tolist() == patch[0, 0].tolist()
            assert x[:, 31, 31].tolist() == patch[31, 31].tolist()
            found += 1
    assert found > 0


def test_labels_belong_to_their_images(data):
    """The nearest training image names most test digits of the clean domains; shuffled labels would name a tenth."""
    for domain in ("optdigits", "fonts"):
        train, test = (data[f"{domain}/{split}/x"][:, 0].flatten(1).float() for split in digits.SPLITS)
        nearest = torch.cdist(test, train).argmin(1)
        right = data[f"{domain}/train/y"][nearest] == data[f"{domain}/test/y"]
        assert right.float().mean() > 0.8, domain
    for domain in ("fonts", "street"):
        for split in digits.SPLITS:
            counts = data[f"{domain}/{split}/y"].bincount(minlength=10)
            assert counts.max() - counts.min() <= 1


def test_a_domain_does_not_depend_on_the_size_of_another():
    narrow, wide = (digits.generate(0, (20, 20, n, 20), SMALL["test"]) for n in (10, 30))
    assert torch.equal(wide["street/train/x"], narrow["street/train/x"])
    assert torch.equal(wide["photo/test/x"], narrow["photo/test/x"])


def test_the_alike_clients_hold_the_same_images_dealt_evenly():
    skewed, alike = load("digits", seed=1), load("digits-iid", seed=1)
    assert alike.client_groups is None
    assert [len(y) for _, y in alike.clients] == [85] * 20
    assert alike.manifest["sha256"] == skewed.manifest["sha256"]
    dealt = [
        sorted((image.numpy().tobytes(), label.item()) for x, y in s.clients for image, label in zip(x, y, strict=True))
        for s in (skewed, alike)
    ]
    assert dealt[0] == dealt[1]
    assert all(torch.equal(alike.tests[d][0], skewed.tests[d][0]) for d in DOMAINS)


def test_the_manifest_says_where_each_client_came_from():
    scenario = load("digits", seed=2, **SMALL)
    drawn = digits.generate(2, SMALL["train"], SMALL["test"])
    images = torch.cat([drawn[f"{domain}/train/x"] for domain in DOMAINS])
    for name, (x, _) in zip(scenario.client_names, scenario.clients, strict=True):
        assert torch.equal(images[scenario.manifest["clients"][name]], x)
    assert scenario.manifest["sha256"] == digits.digest(drawn)
    assert scenario.manifest["seed"] == 2


def test_the_glyphs_are_small_and_hold_no_pickle():
    file = resources.files("equipoise.scenarios") / "glyphs.npz"
    assert len(file.read_bytes()) < 150_000
    glyphs = digits.glyphs()
    assert glyphs["masks"].shape == (23, 10, 64, 64)
    assert not set(glyphs["families"][glyphs["train"]]) & set(glyphs["families"][~glyphs["train"]])
    assert (glyphs["masks"].reshape(230, -1).max(1) > 200).all()


@pytest.mark.share(4)
def test_scenarios_load_by_name_and_errors_help(monkeypatch, tmp_path):
    monkeypatch.setattr(catalog, "INSTALLED", tmp_path)
    for name, entry in SCENARIOS.items():
        if entry.reads:
            with pytest.raises(ValueError, match=f"scenario {name} reads .*: say where the files are, with --data"):
                load(name)
            continue
        small = {**SMALL, "samples": 90}
        options = {option: value for option, value in small.items() if option in entry.options and "digits" in name}
        scenario = load(name, **options)
        assert scenario.name == name
        assert scenario.summary == SCENARIOS[name].summary
        known = describe(name, **options)
        assert vars(known) == {field: getattr(scenario, field) for field in vars(known)}
    with pytest.raises(ValueError, match=r"Unknown scenario 'digit'\. Did you mean 'digits'\? All: digits, digits-iid"):
        load("digit")
    with pytest.raises(ValueError, match=r"Unknown option of scenario 'digits': 'client'\. Did you mean 'clients'\?"):
        load("digits", client=8)


@pytest.mark.parametrize(
    "name", others_slow(["digits", "digits-iid", "digits-quality", "digits-label-skew", "digits-dir"], fast=(0, 2))
)
def test_a_seed_of_their_own_decides_the_data(name):
    options = {option: value for option, value in SMALL.items() if option in SCENARIOS[name].options}
    fixed, as_ever = load(name, seed=5, data_seed=2, **options), load(name, seed=2, **options)
    assert json.dumps(fixed.manifest) == json.dumps(as_ever.manifest)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(fixed.clients, as_ever.clients, strict=True))
    assert load(name, seed=5, data_seed=None, **options).manifest == load(name, seed=5, **options).manifest
    assert load(name, seed=5, **options).manifest["sha256"] != fixed.manifest["sha256"]
    for wrong in (-1, 0.5, "0", [1]):
        with pytest.raises(ValueError, match="data_seed must be a whole number"):
            describe(name, data_seed=wrong)


def test_runs_with_a_data_seed_share_their_data_and_nothing_else(tmp_path):
    """By the configuration, as the command line, a file and a plan make it; what they have otherwise is of their own seeds."""
    assert option_value("digits-pow", "data_seed", "3") == 3
    small = {"clients": 3, "samples": 90, "test": [10, 10, 20, 20], "data_seed": 1}
    feds = []
    for seed in (0, 1):
        config = configure("fedavg", "digits-pow", scenario_options=small, seed=seed, network="mlp", rounds=2)
        runs.start(config, tmp_path / str(seed))
        assert runs.load(tmp_path / str(seed)).scenario_options == small
        feds.append(runs.federation(runs.load(tmp_path / str(seed)))[0])
    assert feds[0].fingerprint["data"] == feds[1].fingerprint["data"]
    assert not torch.equal(feds[0].model.initial, feds[1].model.initial)
    own = {option: value for option, value in small.items() if option != "data_seed"}
    config = configure("fedavg", "digits-pow", scenario_options=own, seed=1, network="mlp", rounds=2)
    as_ever = runs.federation(config)[0]
    assert as_ever.fingerprint == feds[1].fingerprint
    with pytest.raises(RunError, match="holds a run with other settings"):
        runs.start(config, tmp_path / "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 10}, "multiple of 4, the domains; found 10"),
        ({"train": (300, 300, 800)}, r"train must be 4 positive numbers.*found \[300, 300, 800\]"),
        ({"test": (0, 1, 1, 1)}, "test must be 4 positive numbers"),
        ({"train": (900, 900, 10, 10)}, "1797 handwriting samples in all.*found 2400"),
        ({"train": (1, 9, 9, 9), "clients": 8}, "expected 1 to 1 clients per domain, found 2"),
        ({"seed": -1}, "seed must be a whole number >= 0; found -1"),
        ({"train": 40}, r"train must be a list of whole numbers, such as \[300, 800\]; found 40"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        load("digits", **options)


def test_a_scenario_that_contradicts_itself_is_refused():
    scenario = load("digits", **SMALL)
    x, y = scenario.clients[0]
    for change, message in [
        ({"client_names": ("a",)}, "client_names must have one entry per client: expected 8, found 1"),
        ({"client_groups": ("mnist",) * 8}, r"test groups \(optdigits, photo, fonts, street\); found \['mnist'\]"),
        ({"clients": ((x.int(), y), *scenario.clients[1:])}, "'optdigits-1' must have uint8 images"),
        ({"n_classes": 5}, r"all in 0\.\.4"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(scenario, **change)


# Partitions


def test_iid_deals_everything_once():
    parts = partition.iid(103, 10, seed=0)
    assert sorted(index for part in parts for index in part) == list(range(103))
    assert {len(part) for part in parts} == {10, 11}
    assert parts == partition.iid(103, 10, seed=0)
    assert parts != partition.iid(103, 10, seed=1)


def test_by_domain_mixes_no_domains():
    domains = [0] * 7 + [2] * 12 + [0] * 4 + [1] * 5
    parts = partition.by_domain(domains, 3, seed=0)
    assert sorted(index for part in parts for index in part) == list(range(28))
    assert [{domains[index] for index in part} for part in parts] == [{0}] * 3 + [{1}] * 3 + [{2}] * 3
    assert [len(part) for part in parts] == [4, 4, 3, 2, 2, 1, 4, 4, 4]
    assert parts == partition.by_domain(domains, 3, seed=0)
    assert parts != partition.by_domain(domains, 3, seed=1)


def test_a_client_without_samples_is_an_error():
    with pytest.raises(ValueError, match="expected 1 to 5 clients for 5 samples, found 6"):
        partition.iid(5, 6, seed=0)
    with pytest.raises(ValueError, match="found 0"):
        partition.iid(5, 0, seed=0)
    with pytest.raises(ValueError, match="expected 1 to 2 clients per domain, found 3"):
        partition.by_domain([0, 0, 0, 1, 1], 3, seed=0)
    with pytest.raises(ValueError, match="expected 1 to 0 clients per domain"):
        partition.by_domain([], 1, seed=0)


# The cache


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "new"))
    return tmp_path / "new"


class Maker:
    """Makes the same tensors at every call, and counts the calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"x": torch.arange(100_000).to(torch.uint8), "y": torch.tensor([3, 1, 2])}


def test_kept_tensors_are_read_back(fresh):
    make = Maker()
    first, second = digits.kept("a", make), digits.kept("a", make)
    assert make.calls == 1
    assert digits.digest(first) == digits.digest(second)
    assert {key: value.dtype for key, value in second.items()} == {"x": torch.uint8, "y": torch.int64}
    assert [file.name for file in fresh.iterdir()] == ["a.safetensors"]  # and no part of one
    digits.kept("b", make)
    assert make.calls == 2


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("not tensors at all"),
    ],
    ids=["flipped", "cut", "empty", "text"],
)
def test_a_damaged_file_is_made_again(fresh, damage):
    make = Maker()
    expected = digits.digest(digits.kept("a", make))
    damage(fresh / "a.safetensors")
    assert digits.digest(digits.kept("a", make)) == expected
    assert make.calls == 2
    digits.kept("a", make)
    assert make.calls == 2  # the new file is whole


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "file" / "below"))
    make = Maker()
    assert digits.digest(digits.kept("a", make)) == digits.digest(make())
    assert (tmp_path / "file").read_text() == "in the way"


def test_an_interrupted_write_leaves_nothing(fresh, monkeypatch):
    def fail(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    digits.kept("a", Maker())
    assert list(fresh.iterdir()) == []


def test_the_folder_is_the_chosen_one_or_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("EQUIPOISE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "equipoise"


def test_a_scenario_is_generated_once(fresh, monkeypatch):
    first = load("digits", seed=5, **SMALL)
    monkeypatch.setattr(digits, "generate", lambda *_: pytest.fail("generated although it was kept"))
    second, alike = load("digits", seed=5, **SMALL), load("digits-iid", seed=5, **SMALL)
    assert first.manifest == second.manifest
    assert torch.equal(first.clients[3][0], second.clients[3][0])
    assert alike.manifest["sha256"] == first.manifest["sha256"]
    assert [file.name.rsplit("-", 1)[0] for file in fresh.iterdir()] == ["digits-v1-seed5"]


# Unequal quality


SMALL_QUALITY = SMALL | {"corrupted": 2}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_corrupted_clients_hold_corrupted_images_and_the_others_do_not(corruption):
    bad, good = (load("digits-quality", seed=1, **SMALL_QUALITY, corruption=corruption, severity=k) for k in (5, 0))
    assert bad.client_names == (*(f"clean-{k}" for k in range(1, 7)), "corrupted-1", "corrupted-2")
    assert bad.client_groups == ("clean",) * 6 + ("corrupted",) * 2
    assert list(bad.tests) == ["clean", "corrupted"]
    for group, (x, y), (before, labels) in zip(bad.client_groups, bad.clients, good.clients, strict=True):
        assert torch.equal(y, labels)
        same = (x == before).flatten(1).all(1)
        assert same.all() if group == "clean" else not same.any()
    assert torch.equal(bad.tests["clean"][0], good.tests["corrupted"][0])
    assert torch.equal(bad.tests["clean"][1], bad.tests["corrupted"][1])
    assert not torch.equal(bad.tests["clean"][0], bad.tests["corrupted"][0])
    assert bad.manifest["clients"] == good.manifest["clients"]
    assert bad.manifest["sha256"] != good.manifest["sha256"]


def test_quality_repeats_and_its_manifest_says_where_all_came_from():
    first, again, other = (load("digits-quality", seed=seed, **SMALL_QUALITY) for seed in (2, 2, 3))
    assert first.manifest == again.manifest
    assert json.loads(json.dumps(first.manifest)) == first.manifest
    assert first.manifest["clients"] != other.manifest["clients"]
    for (x, y), (x_again, y_again) in zip(first.clients, again.clients, strict=True):
        assert torch.equal(x, x_again)
        assert torch.equal(y, y_again)
    told = first.manifest["quality"]
    assert (told["corrupted"], told["corruption"], told["severity"]) == (2, "gaussian-noise", 4)
    images, labels = digits.joined(digits.recall(2, SMALL["train"], SMALL["test"]), "train")
    for name, (x, y) in zip(first.client_names, first.clients, strict=True):
        assert torch.equal(labels[first.manifest["clients"][name]], y)
        assert torch.equal(images[first.manifest["clients"][name]], x) == name.startswith("clean")
    assert sorted(k for part in first.manifest["clients"].values() for k in part) == list(range(84))


def test_domains_are_mixed_among_clean_and_corrupted_clients():
    """The partition takes the last of each class, and the images come sorted by domain."""
    scenario = load("digits-quality", seed=0)
    held = {name: np.array(part) // 300 for name, part in scenario.manifest["clients"].items()}
    for group in ("clean", "corrupted"):
        of = np.concatenate([part for name, part in held.items() if name.startswith(group)])
        shares = np.bincount(of, minlength=6)[[0, 1, 5]] / len(of)
        assert (abs(shares - [300 / 1700, 300 / 1700, 200 / 1700]) < 0.05).all()


@pytest.mark.parametrize("corrupted", [0, 1, 4, 8])
def test_from_no_corrupted_client_to_all(corrupted):
    scenario = load("digits-quality", **SMALL | {"corrupted": corrupted})
    assert scenario.client_groups.count("corrupted") == corrupted
    assert sum(len(y) for _, y in scenario.clients) == 84
    assert list(scenario.tests) == ["clean", "corrupted"]


@pytest.mark.parametrize("corrupted", fast_first([1, 2, 4, 6], (2,)))
def test_no_client_is_left_with_next_to_nothing(corrupted):
    scenario = load("digits-quality", seed=corrupted, corrupted=corrupted)
    assert min(len(y) for _, y in scenario.clients) >= 1700 / 20 / 4 - 1
    bad = sum(
        len(y) for group, (_, y) in zip(scenario.client_groups, scenario.clients, strict=True) if group != "clean"
    )
    assert bad / 1700 == pytest.approx(corrupted / 20, abs=0.004)


@in_one(
    ("options", "message"),
    [
        ({"corruption": "motion"}, "Unknown corruption 'motion'. Did you mean 'motion-blur'"),
        ({"severity": 6}, "severity must be a whole number"),
        ({"corrupted": 21}, r"corrupted must be a whole number in 0\.\.20"),
        ({"clients": 0}, "found 0"),
        ({"alpha": 0}, "alpha must be >="),
    ],
)
def test_options_of_quality_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        load("digits-quality", **options)


# Label skew


def test_label_skew_has_one_test_for_all():
    scenario = load("digits-label-skew", seed=1, **SMALL)
    assert scenario.client_groups is None
    assert [len(y) for _, y in scenario.tests.values()] == [80]
    assert scenario.manifest == load("digits-label-skew", seed=1, **SMALL).manifest
    assert json.loads(json.dumps(scenario.manifest)) == scenario.manifest
    images, labels = digits.joined(digits.recall(1, SMALL["train"], SMALL["test"]), "train")
    for name, (x, y) in zip(scenario.client_names, scenario.clients, strict=True):
        assert torch.equal(images[scenario.manifest["clients"][name]], x)
        assert torch.equal(labels[scenario.manifest["clients"][name]], y)
    assert sorted(k for part in scenario.manifest["clients"].values() for k in part) == list(range(84))


def test_label_skew_grows_as_alpha_falls():
    def classes(alpha):
        shares = [y.bincount(minlength=10) / len(y) for _, y in load("digits-label-skew", alpha=alpha).clients]
        return torch.stack(shares).square().sum(1).reciprocal().mean()  # as many equal classes would be as uneven

    assert classes(0.1) < 4.5 < 6 < classes(1.0) < 9.5 < classes(100.0)


def test_many_clients_train_in_turns():
    assert load("digits-label-skew").protocol.participation == 1
    many = load("digits-label-skew", clients=50)
    assert many.protocol.participation == 0.1
    assert configure("fedavg", "digits-label-skew", scenario_options={"clients": 50}).participation == 0.1
    assert configure("fedavg", "digits-label-skew").participation == 1
    assert min(len(y) for _, y in many.clients) >= 10
    with pytest.raises(
        ValueError, match=r"^digits-label-skew: 1700 samples .* 50 clients at alpha=0.05 so that each has 10 or more"
    ):
        load("digits-label-skew", clients=50, alpha=0.05)
    with pytest.raises(ValueError, match="found 0"):
        load("digits-label-skew", clients=0)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("digits-label-skew", {"clients": 2.5}),
        ("digits-iid", {"clients": True}),
        ("digits-quality", {"clients": 8.5}),
        ("digits", {"clients": 8.0}),
        ("diabetes", {"seed": 0.5}),
        ("diabetes", {"seed": -1}),
    ],
)
def test_what_must_be_whole_is_named(name: str, given: dict[str, Any]) -> None:
    ((option, value),) = given.items()
    with pytest.raises(ValueError, match=rf"{option} must be a whole number.*; found {value!r}\."):
        load(name, **given)
