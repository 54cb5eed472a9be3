"""Corruptions: what they do to a byte, that they repeat, and that they leave the argument alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from equipoise.scenarios import CORRUPTIONS, corruption
from equipoise.scenarios.corruption import gaussian_noise, motion_blur, motion_kernel
from helpers import in_one

both = pytest.mark.parametrize("name", CORRUPTIONS)


def images(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@both
@pytest.mark.parametrize("severity", range(1, 6))
def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(name, severity):
    x = images(6, 3, 32, 32)
    kept = x.clone()
    first, again, other = (CORRUPTIONS[name](x, severity, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, kept)
    assert (first.dtype, first.shape) == (torch.uint8, x.shape)


@both
def test_severity_nought_returns_the_images(name):
    x = images(2, 1, 4, 4)
    assert CORRUPTIONS[name](x, 0, 0) is x


@both
def test_a_higher_severity_changes_more(name):
    x = images(20, 3, 64, 64)
    change = [(CORRUPTIONS[name](x, k, 0).float() - x.float()).square().mean().item() for k in range(6)]
    assert change == sorted(set(change))


@both
def test_a_grey_image_stays_grey_beside_a_coloured_one(name):
    grey, coloured = images(1, 1, 16, 16).repeat(1, 3, 1, 1), images(1, 3, 16, 16)
    made = CORRUPTIONS[name](torch.cat([grey, coloured]), 4, 0)
    assert (made[0] == made[0, :1]).all()
    assert not (made[1] == made[1, :1]).all()
    assert torch.equal(CORRUPTIONS[name](torch.cat([coloured, coloured]), 4, 0)[1], made[1])


@both
def test_chunks_do_not_show(name, monkeypatch):
    x = images(10, 3, 8, 8)
    whole = CORRUPTIONS[name](x, 2, 0)
    monkeypatch.setattr(corruption, "CHUNK", 3)
    assert torch.equal(CORRUPTIONS[name](x, 2, 0), whole)


@both
def test_no_image_is_no_error(name):
    assert CORRUPTIONS[name](images(0, 3, 8, 8), 3, 0).shape == (0, 3, 8, 8)


@both
@given(value=st.integers(0, 255), severity=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_every_value_stays_a_byte(name, value, severity, seed):
    x = torch.full((1, 1, 5, 7), value, dtype=torch.uint8)
    made = CORRUPTIONS[name](x, severity, seed)
    assert made.shape == x.shape
    if name == "motion-blur":
        assert torch.equal(made, x)  # an even image has no edge to smear


@both
@pytest.mark.parametrize(
    ("severity", "seed", "message"),
    [
        (6, 0, r"severity must be a whole number in 0\.\.5; found 6"),
        (-1, 0, "found -1"),
        (2.5, 0, r"found 2\.5"),
        ("3", 0, "found '3'"),
        (3, -1, "seed must be a whole number in"),
        (3, 2**32, "seed must be a whole number in"),
    ],
)
def test_what_is_out_of_range_is_named(name, severity, seed, message):
    with pytest.raises(ValueError, match=message):
        CORRUPTIONS[name](images(1, 3, 4, 4), severity, seed)


@both
def test_other_than_bytes_is_refused(name):
    with pytest.raises(TypeError, match=r"expected uint8 images \[n, C, H, W\], found torch.float32"):
        CORRUPTIONS[name](torch.zeros(1, 3, 4, 4), 1, 0)
    with pytest.raises(TypeError, match=r"found torch.uint8 \[3, 4, 4\]"):
        CORRUPTIONS[name](images(3, 4, 4), 1, 0)


def test_noise_pixel_by_pixel():
    """Against the released recipe: one legacy stream over images of [H, W, C], truncated."""
    x = images(3, 3, 5, 4)
    rng = np.random.RandomState(7)
    for image, made in zip(x, gaussian_noise(x, 2, 7), strict=True):
        hwc = image.permute(1, 2, 0).numpy()
        expected = np.uint8(np.clip(hwc / 255 + rng.normal(size=hwc.shape, scale=0.12), 0, 1) * 255)
        assert made.permute(1, 2, 0).tolist() == expected.tolist()


@in_one("severity", range(1, 6))
def test_noise_has_the_spread_of_its_severity(severity):
    x = torch.full((4, 3, 64, 64), 128, dtype=torch.uint8)
    made = gaussian_noise(x, severity, 0)
    inside = (made > 0) & (made < 255)
    spread = (made.double() - 127.5)[inside].std() / 255
    sigma = corruption.SIGMA[severity - 1]
    normal = torch.distributions.Normal(0.0, 1.0)
    bound = torch.tensor(0.5 / sigma)
    cut = 2 * bound * normal.log_prob(bound).exp() / (2 * normal.cdf(bound) - 1)  # of a normal cut off at the bounds
    assert spread.item() == pytest.approx(sigma * (1 - cut.item()) ** 0.5, rel=0.02)


@pytest.mark.parametrize(("severity", "side"), [(1, 224), (3, 24), (5, 16), (5, 224)])
def test_blur_is_the_weighted_sum_of_moved_images(severity, side):
    """Against the definition, pixel by pixel."""
    x = images(2, 2, 12, 15)
    made = motion_blur(x, severity, 3, side=side)
    weights = motion_kernel(severity)
    angles = np.deg2rad(np.random.RandomState(3).uniform(-45, 45, 2))
    for image, out, angle in zip(x.numpy(), made, angles, strict=True):
        expected = np.zeros(image.shape)
        for i, weight in enumerate(weights):
            length = i * 12 / side
            dx, dy = (int(np.ceil(length * f(angle) - 0.5)) for f in (np.cos, np.sin))
            for row in range(12):
                for column in range(15):
                    from_ = min(max(row - dy, 0), 11), min(max(column - dx, 0), 14)
                    expected[:, row, column] += weight * image[:, *from_]
        assert np.abs(out.numpy() - expected).max() <= 0.5 + 1e-9


def test_blur_has_lengths_in_proportion_to_the_image():
    """An edge blurred in an image of twice the side is the same edge at twice the scale, up to a pixel of rounding."""
    profile = {}
    for side in (112, 224):
        x = torch.zeros(1, 1, side, side, dtype=torch.uint8)
        x[..., side // 2 :] = 255
        row = motion_blur(x, 5, 0)[0, 0, side // 2].double()
        profile[side] = row.reshape(112, -1).mean(1)
    assert (profile[112] - profile[224]).abs().max() < 10
    assert (profile[112] - (torch.arange(112) >= 56) * 255).abs().max() > 50


def test_blur_refuses_a_side_of_nothing():
    with pytest.raises(ValueError, match="side must be a whole number >= 1 pixels; found 0"):
        motion_blur(images(1, 1, 4, 4), 1, 0, side=0)


@in_one("severity", range(1, 6))
def test_the_kernel_sums_to_one_and_falls(severity):
    weights = motion_kernel(severity)
    assert len(weights) == 2 * corruption.BLUR[severity - 1][0] + 1
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(weights) < 0).all()
