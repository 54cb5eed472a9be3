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

    Slope and intercept (or the modality's table) are applied, and no window.
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
    # which would make doubles of bytes
    if numbers.ndim == 2 and not (identity and "ModalityLUTSequence" not in slice_):
        numbers = decoding.apply_modality_lut(numbers, slice_)  # type: ignore[attr-defined]
    return numbers, padding, kind == "MONOCHROME1"
