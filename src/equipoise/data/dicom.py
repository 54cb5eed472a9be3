"""Images in DICOM files, by the package ``pydicom`` (extra ``medical``)."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.declared import check_pixels

if TYPE_CHECKING:
    from pydicom import Dataset

MAGIC = slice(128, 132)  # bytes that say DICM


def is_dicom(source: IO[bytes]) -> bool:
    """Whether an open file is one of DICOM, by its content."""
    begin = source.read(MAGIC.stop)
    source.seek(0)
    return begin[MAGIC] == b"DICM"


def package(hint: str = "") -> Any:
    """The package that reads them."""
    try:
        import pydicom
    except ImportError:
        raise DataError(f"DICOM files need the package pydicom: pip install 'equipoise[medical]'.{hint}") from None
    return pydicom


def pixels(source: IO[bytes]) -> tuple[NDArray[Any], NDArray[np.bool_] | None, bool]:
    """Numbers [H, W] in the unit of the file, or colours [H, W, 3]; which of them are padding; and whether the least is white.

    Slope and intercept (or the modality's table) are applied, and no window. Fewer than 8 bits are spread over 0..255, as in a PNG.
    """
    pydicom = package()
    slice_: Dataset = pydicom.dcmread(source)
    if (frames := int(slice_.get("NumberOfFrames") or 1)) > 1:
        raise ValueError(f"it has {frames} frames; save the one that counts in a file of its own")
    check_pixels(int(slice_.Rows), int(slice_.Columns))
    kind = str(slice_.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        raise ValueError("its colours are in a palette; save it as RGB")
    from pydicom import pixels as decoding

    numbers: NDArray[Any] = decoding.pixel_array(slice_)  # type: ignore[attr-defined]
    padding: NDArray[np.bool_] | None = None
    if (first := slice_.get("PixelPaddingValue")) is not None and numbers.ndim == 2:
        low, high = sorted((int(first), int(slice_.get("PixelPaddingRangeLimit", first))))
        padding = (numbers >= low) & (numbers <= high)
    identity = float(slice_.get("RescaleSlope") or 1) == 1 and not float(slice_.get("RescaleIntercept") or 0)
    if numbers.ndim == 2 and not (
        identity and "ModalityLUTSequence" not in slice_
    ):  # which would make doubles of bytes
        # in 64 bits, as pydicom looks up a table in the type of the pixels, where a difference may overflow
        numbers = decoding.apply_modality_lut(numbers.astype(np.int64), slice_)  # type: ignore[attr-defined]
    elif numbers.dtype == np.uint8 and (white := 2 ** int(slice_.BitsStored) - 1) < 255:
        if numbers.max() > white:
            raise ValueError(f"it declares {slice_.BitsStored} bits, and has the number {numbers.max()}")
        numbers = (numbers * (255 / white)).round().astype(np.uint8)
    return numbers, padding, kind == "MONOCHROME1"
