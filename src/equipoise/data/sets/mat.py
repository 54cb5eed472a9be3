"""Digits in MATLAB files: SVHN, and the synthetic digits of Ganin and Lempitsky (2015)."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError
from equipoise.data.declared import check_bytes
from equipoise.data.locations import facts, of_the_system
from equipoise.data.sets.idx import DIGITS

CHUNK = 256  # images turned at a time
SVHN = {split: ((f"{split}_32x32.mat", f"SVHN/{split}_32x32.mat"),) for split in ("train", "test", "extra")}
SYNTH = {
    split: (tuple(f"{at}synth_{split}_32x32.mat" for at in ("", "synth/", "syn/")),) for split in ("train", "test")
}


def read(paths: Sequence[Path]) -> Contents:
    """Images uint8 [n, 3, 32, 32] of one file: ``X`` uint8 [H, W, 3, n], the images last, and ``y`` [n, 1], where 10 is the digit 0."""
    from scipy.io import loadmat, whosmat

    (path,) = paths
    try:
        for _, shape, kind in whosmat(path):
            check_bytes(path, math.prod(shape) * (1 if kind == "uint8" else 8))
        content = loadmat(path, variable_names=["X", "y"])
        images, digits = content["X"], content["y"].reshape(-1)
    except KeyError as error:
        raise DataError(f"{path}: expected the variables X and y; {error} is missing. Get it again.") from None
    except DataError:
        raise
    except Exception as error:  # SciPy raises many kinds for a damaged file
        if of_the_system(error):
            raise
        raise DataError(
            f"{path}: cannot be read as a MATLAB 5 file ({type(error).__name__}: {error}). "
            "It is damaged or cut short: get it again."
        ) from None
    if images.ndim == 3:  # MATLAB drops a last dimension of one
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.size == 0:
        raise DataError(f"{path}: expected X to be uint8 32 x 32 x 3 x n; found {images.dtype} {list(images.shape)}.")
    if len(digits) != images.shape[3] or not np.isin(digits, range(11)).all():
        raise DataError(f"{path}: expected y to be a label 1..10 for each of the {images.shape[3]} images.")
    y = torch.from_numpy(digits.astype(np.int64) % 10)
    return Contents((torch.from_numpy(_upright(images)), y), DIGITS, about=facts([path]))


def _upright(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn [H, W, C, n] as MATLAB stores it into [n, C, H, W], in place: a second copy would be gigabytes."""
    turned = images.transpose(3, 2, 1, 0)  # [n, C, W, H], and in the order of the bytes
    if not (turned.flags.c_contiguous and turned.flags.writeable):
        turned = turned.copy()
    for begin in range(0, len(turned), CHUNK):
        part = turned[begin : begin + CHUNK]
        part[...] = part.transpose(0, 1, 3, 2).copy()
    return turned
