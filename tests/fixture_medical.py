"""Tiny files in the exact on-disk formats of the medical data sets, with the traps of the real ones."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

COVID_CLIENTS = (
    "bimcv", "cohen", "eurorad", "gz", "ml-workgroup", "ricord_c", "rsna-0", "rsna-1", "rsna-2", "rsna-3", "rsna-4", "sirm",
)  # fmt: skip
ISIC_CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
SUBTYPES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural", "any")


def rows(path: Path, lines: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    return path


def picture(path: Path, rng: np.random.Generator, size: tuple[int, int] = (45, 60), mode: str = "RGB") -> Path:
    """Write an image of random pixels; ``size`` is height and width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (*size, 3) if mode == "RGB" else size, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def retina(root: Path, train: int = 20, test: int = 6) -> Path:
    """Retina in the layout of SSL-FL: float arrays in 0..255, header-less lists; one array is 2-D, one has four channels."""
    rng, folder = np.random.default_rng(0), root / "Retina"
    names = {"train": [f"{k}_left.npy" for k in range(train)], "test": [f"{100 + k}_right.npy" for k in range(test)]}
    for split, files in names.items():
        (folder / split).mkdir(parents=True)
        for k, name in enumerate(files):
            shape = {1: (40, 40), 2: (40, 40, 4)}.get(k, (40, 40, 3))
            np.save(folder / split / name, np.clip(128 + 10 * rng.normal(size=shape), 0, 255))
        rows(folder / f"{split}.csv", ([name] for name in files))
    every = [*names["train"], *names["test"]]
    rows(folder / "labels.csv", ((name, float(k % 2)) for k, name in enumerate(every)))
    for split in (1, 2, 3):
        for k in range(5):
            rows(folder / f"5_clients/split_{split}/client_{k + 1}.csv", ([name] for name in names["train"][k::5]))
    rows(folder / "central" / "train.csv", ([name] for name in names["train"]))
    return folder


def kaggle_retina(root: Path, patients: int = 10) -> Path:
    """Kaggle's competition files: two eyes of each patient, grades 0 to 4."""
    rng, folder = np.random.default_rng(1), root / "diabetic-retinopathy-detection"
    names = [f"{k}_{eye}" for k in range(patients) for eye in ("left", "right")]
    for name in names:
        picture(folder / "train" / f"{name}.jpeg", rng, (60, 80))
    rows(folder / "trainLabels.csv", [("image", "level"), *((name, k % 5) for k, name in enumerate(names))])
    return folder


def covid(root: Path, train: int = 24, test: int = 6) -> Path:
    """COVID-FL in the layout of SSL-FL: grey and colour PNG files, twelve institutions."""
    rng, folder = np.random.default_rng(2), root / "COVID-FL"
    names = {"train": [f"tr-{k}.png" for k in range(train)], "test": [f"te-{k}.png" for k in range(test)]}
    for split, files in names.items():
        for k, name in enumerate(files):
            picture(folder / split / name, rng, (48, 40), "L" if k % 2 else "RGB")
        rows(folder / f"{split}.csv", ([name] for name in files))
    every = [*names["train"], *names["test"]]
    rows(folder / "labels.csv", ((name, float(k % 3)) for k, name in enumerate(every)))
    for k, client in enumerate(COVID_CLIENTS):
        rows(folder / f"12_clients/split_real/{client}.csv", ([name] for name in names["train"][k::12]))
    return folder


def isic(root: Path, n: int = 48, ham: bool = False) -> Path:
    """The challenge's files: one-hot floats with a column UNK, ids ending in _downsampled, metadata without lesion_id."""
    rng, folder = np.random.default_rng(3), root / "ISIC2019"
    names = [f"ISIC_{k:07d}" + "_downsampled" * (k % 6 == 5) for k in range(n)]
    for k, name in enumerate(names):
        picture(folder / "ISIC_2019_Training_Input" / f"{name}.jpg", rng, (45 + k % 3, 60))
    header = ("image", *ISIC_CLASSES, "UNK")
    truth = ((name, *(float(j == k % 8) for j in range(9))) for k, name in enumerate(names))
    rows(folder / "ISIC_2019_Training_GroundTruth.csv", [header, *truth])
    lesions = ("BCN_0000001", "HAM_0000002", "MSK4000003", "")
    about = ((name, 55.0 if k % 3 else "", "anterior torso", lesions[k % 4], "female") for k, name in enumerate(names))
    columns = ("image", "age_approx", "anatom_site_general", "lesion_id", "sex")
    rows(folder / "ISIC_2019_Training_Metadata.csv", [columns, *about])
    if ham:
        sources = ("vidir_modern", "rosendahl")
        theirs = ((lesions[1], name, sources[k % 8 > 3]) for k, name in enumerate(names) if k % 4 == 1)
        rows(folder / "HAM10000_metadata", [("lesion_id", "image_id", "dataset"), *theirs])
    return folder


def ready(root: Path, folder: str, ending: str, classes: int, train: int = 20, test: int = 10) -> Path:
    """Images of 224 by 224 that are ready for training, with id lists: FedISM's ``ICH_20`` (png) or ``ISIC2019_20`` (jpg)."""
    rng, top = np.random.default_rng(4), root / folder
    stem = "ID_{:09x}" if ending == "png" else "ISIC_{:07d}"
    for split, n, start in (("train", train, 0), ("test", test, 1000)):
        names = [stem.format(start + 7 * k % 97) for k in range(n)]
        for name in names:
            picture(top / split / "clean" / f"{name}.{ending}", rng, (224, 224), "L" if ending == "png" else "RGB")
        rows(
            top / f"{split}.csv",
            [("id", "class"), *sorted(((name, k % classes) for k, name in enumerate(names)), key=lambda r: r[1])],
        )
    return top


def slices(n: int = 70) -> dict[str, list[int]]:
    """Ids of slices and which of the five subtypes they have: one of them mostly, at times none, or two."""
    rng = np.random.default_rng(5)
    kinds: list[list[int]] = [[], [0], [1], [2], [3], [4], [1, 4]]
    return {f"ID_{rng.integers(16**9):09x}": kinds[k % 7] for k in range(n)}


def rsna(root: Path, n: int = 70, dicom: bool = True) -> Path:
    """The competition's files: six lines for a slice, those of the last slice twice, and a DICOM file for each."""
    folder = root / "rsna-intracranial-hemorrhage-detection"
    found = slices(n)
    lines = [
        (f"{name}_{subtype}", int(k in on if subtype != "any" else bool(on)))
        for name, on in found.items()
        for k, subtype in enumerate(SUBTYPES)
    ]
    rows(folder / "stage_2_train.csv", [("ID", "Label"), *lines, *lines[-6:]])
    (folder / "stage_2_train").mkdir()
    for k, name in enumerate(found if dicom else ()):
        units = np.random.default_rng(k).integers(-1000, 1200, (64, 64))
        write_dicom(
            folder / "stage_2_train" / f"{name}.dcm", units, twelve=k % 5 == 0, multiple=k % 3 == 0, patient=k // 3
        )
    return folder


def write_dicom(path: Path, units: np.ndarray, twelve: bool = False, multiple: bool = False, patient: int = 0) -> Path:
    """A CT slice with the given Hounsfield units.

    ``twelve``: 12 unsigned bits without an intercept, negative values wrapped around; ``multiple``: two window centres.
    """
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[path.name])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    one.SOPClassUID, one.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    one.PatientID, one.Modality = f"ID_{patient:08x}", "CT"
    one.Rows, one.Columns = units.shape
    one.SamplesPerPixel, one.PhotometricInterpretation, one.BitsAllocated = 1, "MONOCHROME2", 16
    one.RescaleSlope = "1"
    if twelve:
        one.BitsStored, one.HighBit, one.PixelRepresentation, one.RescaleIntercept = 12, 11, 0, "0"
        pixels = (units % 4096).astype(np.uint16)  # what the HU rule undoes: pixel + 1000 wraps back below 4096
    else:
        one.BitsStored, one.HighBit, one.PixelRepresentation, one.RescaleIntercept = 16, 15, 1, "-1024"
        pixels = (units + 1024).astype(np.int16)
    one.PixelData = pixels.tobytes()
    one.WindowCenter, one.WindowWidth = (["40", "40"], ["80", "80"]) if multiple else ("30", "80")
    path.parent.mkdir(parents=True, exist_ok=True)
    one.save_as(path, enforce_file_format=True)
    return path
