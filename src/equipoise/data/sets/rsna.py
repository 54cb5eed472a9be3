"""RSNA intracranial haemorrhage: CT slices with exactly one of five kinds of bleeding (Kaggle 2019; FedISM's selection)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError, check_pixels, explain_damage, optional_package
from equipoise.data.decoding import Load, levels, picture
from equipoise.data.locations import facts, find, located
from equipoise.data.sets.image_lists import contents, divided, ids, sample
from equipoise.system.suggestions import require_known

if TYPE_CHECKING:
    from pydicom import Dataset

NAME = "rsna-ich"
CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
SUBTYPES = (*CLASSES, "any")
DAMAGED = frozenset({"ID_6431af929"})  # its file is known to be cut short
TABLE = ("rsna-intracranial-hemorrhage-detection/stage_2_train.csv", "stage_2_train.csv")
SIDE = 224
DRAWN = 25_000  # slices of FedISM's experiments
TEST = 0.2
WINDOWS = {  # centre and width in Hounsfield units, of each channel
    "brain": ((40.0, 80.0),),
    "three": ((40.0, 80.0), (80.0, 200.0), (40.0, 380.0)),  # brain, subdural, soft tissue
}


def read(
    root: Path,
    split: str,
    *,
    window: str = "brain",
    lists: str | Path | None = None,
    n: int = DRAWN,
    seed: int = 0,
    group_by: str | None = None,
    side: int = SIDE,
) -> Contents:
    """Read slices that are PNG files already, or else the competition's DICOM files (extra ``medical``).

    The PNG files are ``ICH_20/{train,test}/clean/<id>.png`` beside the lists ``ICH_20/{train,test}.csv``, as FedISM's code
    has them, or ``ICH_20-three`` for the other window; ``tools/convert_rsna.py`` makes them. Of the competition's files, slices
    with exactly one subtype count, ``n`` of which are drawn, each class with its share, and divided 8 to 2.

    Parameters
    ----------
    root : the folder with the data sets, or that of this one.
    split : train or test.
    window : "brain", or "three" windows as three channels. The published text names none: it is our choice. PNG files are
        taken as they are.
    lists : folder with ``train.csv`` and ``test.csv`` of lines ``id,class``, such as those of FedISM's code, in place of a
        draw.
    n : >= 5, slices that are drawn.
    seed : >= 0, decides the draw.
    group_by : "PatientID" keeps the slices of a patient in one part, which the published lists do not; it reads the header
        of every drawn slice.
    side : the images become ``side`` by ``side``.

    Raises
    ------
    DataError : the files are missing or damaged, or DICOM files without pydicom. ValueError : an option is unknown or out of
    its range.
    """
    clean = find(root, (f"{folder(window)}/train/clean",))
    load: Load = picture
    if clean is not None:  # PNG files
        ready = clean.parent.parent
        chosen, about = _listed(ready if lists is None else lists, group_by)
        files = [ready / split / "clean" / f"{name}.png" for name in chosen[split]]
    else:
        table = located(NAME, root, (*TABLE, f"{folder(window)}/train/clean"))
        chosen, about = selected(table, lists, n, seed, group_by)
        files = [table.parent / "stage_2_train" / f"{name}.dcm" for name in chosen[split]]
        load = loader(window)
    about = {"window": window, **about}
    return contents(f"{NAME} {split} {window}", files, chosen[split], CLASSES, side, about, load=load)


def folder(window: str) -> str:
    """The folder of the PNG files of a window."""
    return "ICH_20" if window == "brain" else f"ICH_20-{window}"


def loader(window: str) -> Load:
    """What reads a DICOM file.

    Raises
    ------
    ValueError : an unknown window. DataError : no pydicom.
    """
    require_known(f"window of {NAME}", WINDOWS, window)
    _pydicom()
    return {"brain": brain, "three": three}[window]


Chosen = Mapping[str, Mapping[str, int]]  # classes by id of each split
Selection = tuple[Chosen, dict[str, Any]]  # and what to record


def selected(table: Path, lists: str | Path | None, n: int, seed: int, group_by: str | None) -> Selection:
    """The slices of each split, and what to record."""
    if lists is not None:
        return _listed(lists, group_by)
    if n < len(CLASSES) or group_by not in (None, "PatientID"):
        raise ValueError(
            f"{NAME}: n must be at least {len(CLASSES)}, and group_by PatientID or nothing; found {n} and {group_by!r}."
        )
    drawn = _drawn(table, table.stat().st_mtime_ns, n, seed, group_by)
    draw = {"n": n, "seed": seed, "group_by": group_by, "left out": sorted(DAMAGED)}
    return drawn, {**draw, **facts([table])}


def _listed(lists: str | Path, group_by: str | None) -> Selection:
    """The slices that lists name, and what to record."""
    if group_by is not None:
        raise ValueError(
            f"{NAME}: group_by={group_by} is about slices that are drawn, and the lists in {lists} name them. Leave one out."
        )
    paths = {split: Path(lists).expanduser() / f"{split}.csv" for split in ("train", "test")}
    return {split: ids(path, len(CLASSES)) for split, path in paths.items()}, facts(paths.values())


@lru_cache(maxsize=2)
def _drawn(table: Path, changed: int, n: int, seed: int, group_by: str | None) -> Chosen:
    rng = np.random.default_rng([seed, 2])
    candidates = single(table)
    if not candidates:
        raise DataError(f"{table}: expected slices with exactly one subtype; found none.")
    drawn = sample(candidates, n, rng)
    return divided(drawn, TEST, rng, None if group_by is None else partial(_patient, table.parent / "stage_2_train"))


def single(table: Path) -> dict[str, int]:
    """Classes by id, as ``ID_`` and nine digits, of the slices with exactly one of the five subtypes.

    The file has six lines ``ID_<slice>_<subtype>,<0 or 1>`` for a slice, some of them twice; the damaged slice is left out.
    """
    bit = {subtype: 1 << k for k, subtype in enumerate(SUBTYPES)}
    seen: dict[str, int] = {}  # six bits that say which lines there were, above six that say which are 1
    with table.open(encoding="utf-8-sig") as lines:
        header = lines.readline().strip()
        if header != "ID,Label":
            raise DataError(f"{table}: expected a first line 'ID,Label', found '{header[:60]}'.")
        for number, line in enumerate(lines, 2):
            whole, _, label = (text := line.strip()).rpartition(",")
            name, _, subtype = whole.rpartition("_")
            if subtype not in bit or label not in ("0", "1"):
                if not text:
                    continue
                raise DataError(f"{table}, line {number}: expected ID_<slice>_<subtype>,<0 or 1>, found '{text[:60]}'.")
            seen[name] = seen.get(name, 0) | bit[subtype] << 6 | bit[subtype] * (label == "1")
    for name, bits in seen.items():
        if bits >> 6 != 63:
            raise DataError(
                f"{table}: expected {len(SUBTYPES)} lines for a slice, found {(bits >> 6).bit_count()} for {name}. Is the file complete?"
            )
    subtypes = {name: bits & 31 for name, bits in seen.items() if name not in DAMAGED}
    return {name: bits.bit_length() - 1 for name, bits in subtypes.items() if bits.bit_count() == 1}


def brain(path: Path) -> NDArray[np.uint8]:
    """A DICOM slice in the brain window, [H, W]."""
    return windowed(hounsfield(_pydicom().dcmread(path)), *WINDOWS["brain"][0])


def three(path: Path) -> NDArray[np.uint8]:
    """A DICOM slice in the windows of the brain, of subdural blood and of soft tissue, [H, W, 3]."""
    units = hounsfield(_pydicom().dcmread(path))
    return np.stack([windowed(units, *window) for window in WINDOWS["three"]], axis=2)


def windowed(units: NDArray[np.float64], centre: float, width: float) -> NDArray[np.uint8]:
    """Grey levels: 0 from ``centre - width / 2`` down, 255 from ``centre + width / 2`` up, linear between."""
    return levels(units, centre - width / 2, centre + width / 2)


def hounsfield(slice_: Dataset) -> NDArray[np.float64]:
    """Hounsfield units: pixel times slope plus intercept.

    Some files of 12 unsigned bits have no intercept, and wrapped their negative values around: 1000 is added to these and
    what reaches 4096 wraps back, so that 0 is -1000 units.
    """
    check_pixels(int(slice_.Rows), int(slice_.Columns))
    pixels = slice_.pixel_array.astype(np.float64)
    slope, intercept = float(slice_.RescaleSlope), float(slice_.RescaleIntercept)
    if slice_.BitsStored == 12 and slice_.PixelRepresentation == 0 and int(intercept) > -100:
        pixels = (pixels + 1000) % 4096
        intercept = -1000.0
    return pixels * slope + intercept


def _patient(folder: Path, name: str) -> str:
    path, dcmread = folder / f"{name}.dcm", _pydicom().dcmread
    if not path.is_file():
        raise DataError(
            f"{path}: its PatientID cannot be read, as the file is missing. Is the data set unpacked completely?"
        )
    with explain_damage(f"{path}: its PatientID cannot be read", ""):  # pydicom raises many kinds
        return str(dcmread(path, stop_before_pixels=True, specific_tags=["PatientID"]).PatientID)


def _pydicom() -> Any:
    hint = f" The PNG files of {NAME}, in ICH_20, do not."
    return optional_package("pydicom", "DICOM files", "'equipoise[medical]'", hint)
