"""Retina: photographs of the eye, normal or diseased (Kaggle diabetic retinopathy; splits of Yan et al. 2023)."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError
from equipoise.data.decoding import array, picture
from equipoise.data.locations import facts, find, located
from equipoise.data.sets.image_lists import SHOWN, cells, contents, divided, label, table
from equipoise.system.suggestions import some

NAME = "retina"
CLASSES = ("normal", "diseased")
GRADES = 5  # of diabetic retinopathy, 0 is none
SHIPPED = ("Retina/labels.csv", "5_clients")
KAGGLE = ("diabetic-retinopathy-detection/trainLabels.csv", "trainLabels.csv")
SIDE = 256  # what the released code makes of every image before it crops


def read(
    root: Path, split: str, *, side: int = SIDE, positive_from: int = 1, test: float = 0.2, seed: int = 0
) -> Contents:
    """Read the shipped lists of SSL-FL, or else Kaggle's ``trainLabels.csv`` with its images in ``train``.

    Of the shipped lists, ``parts`` are the clients ``split_1/client_1`` to ``split_3/client_5`` (Dirichlet 100, 1 and 0.5).
    From Kaggle's file, the two classes, the test part (whole patients, both eyes) and the preparation of the photographs
    (:func:`fundus`) are our choice: no published text has them.

    Parameters
    ----------
    root : the folder with the data sets, or that of this one.
    split : train or test.
    side : the images become ``side`` by ``side``, whatever their shape.
    positive_from : in 1..4, lowest grade that counts as diseased; of Kaggle's file only.
    test : in (0, 1), share of the test part; of Kaggle's file only.
    seed : >= 0, decides the test part; of Kaggle's file only.
    """
    if not 1 <= positive_from < GRADES or not 0 < test < 1:
        raise ValueError(
            f"retina: positive_from must be in 1..{GRADES - 1} and test in (0, 1); found {positive_from} and {test}."
        )
    grades = find(root, KAGGLE)
    if grades is None or find(root, SHIPPED) is not None:
        folder = located(NAME, root, (*SHIPPED, KAGGLE[0])).parent
        lists = "5_clients/split_*/client_*.csv"
        return read_shipped(NAME, folder, split, CLASSES, lists, side, load=array)
    rows = table(grades, ("image", "level"))
    levels = {row["image"]: label(row["level"], GRADES, f"{grades}: {row['image']}") for row in rows}
    classes = {name: int(level >= positive_from) for name, level in levels.items()}
    if not classes:
        raise DataError(f"{grades}: expected images under the header image,level; found none.")
    chosen = divided(classes, test, np.random.default_rng([seed, 1]), group=lambda name: name.split("_")[0])[split]
    if not chosen:
        raise DataError(f"{grades}: {len(classes)} images are too few for a {split} part.")
    files = [grades.parent / "train" / f"{name}.jpeg" for name in chosen]
    about = {**facts([grades]), "positive_from": positive_from, "test": test, "seed": seed}
    return contents(f"{NAME} {split}", files, chosen, CLASSES, side, about, load=fundus)


def fundus(path: Path) -> NDArray[np.uint8]:
    """A photograph of the eye without its slow changes of light, on grey 128 (after Graham, winner of the Kaggle competition).

    ``4 x - 4 blur(x) + 128`` with a Gaussian blur of a thirtieth of the image. The published normalisation of Retina, whose
    standard deviations are 0.03 to 0.05, fits images of this kind and no plain photographs.
    """
    from PIL import Image, ImageFilter

    image = Image.fromarray(picture(path)).resize((2 * SIDE, 2 * SIDE), Image.Resampling.BILINEAR)
    sharp, soft = (np.asarray(x, np.int16) for x in (image, image.filter(ImageFilter.GaussianBlur(2 * SIDE / 30))))
    return (4 * (sharp - soft) + 128).clip(0, 255).astype(np.uint8)


# the layout of Yan et al., "Label-efficient self-supervised federated learning" (2023): Retina and COVID-FL
COVID_CLASSES = ("normal", "pneumonia", "COVID-19")
COVID_SIDE = 384  # of FedLD's crops


def read_shipped(
    name: str, folder: Path, split: str, classes: Sequence[str], clients: str, side: int, **how: Any
) -> Contents:
    """Read one split of a data set of that layout, sorted by file name.

    ``labels.csv`` has lines ``file,label``, the label written as a float, and no header; ``train.csv``, ``test.csv`` and the
    lists of the clients have one file a line.

    Parameters
    ----------
    name : of the data set, for errors.
    folder : holds ``labels.csv``.
    split : train or test.
    classes : names of the classes.
    clients : pattern of the clients' lists below the folder; ``split_1/client_1.csv`` makes the part ``split_1/client_1``.
    side : the images become ``side`` by ``side``.
    how : an image is read, and brought to that shape, see :func:`equipoise.data.decoding.decoded`.
    """
    labels = folder / "labels.csv"
    classes_of = {}
    for number, row in cells(labels):
        if len(row) < 2:
            raise DataError(f"{labels}, line {number}: expected file,label, found '{','.join(row)}'.")
        classes_of[row[0]] = label(row[1], len(classes), f"{labels}, line {number}")
    shipped = folder / f"{split}.csv"
    lists = sorted(folder.glob(clients), key=_order) if split == "train" else []
    if not shipped.is_file() and not lists:
        raise DataError(f"{shipped}: expected the list of the images of this split; there is no such file.")
    parts = {f"{path.parent.name}/{path.stem}": _listed(path) for path in lists}
    # A client's list counts even if the list of all images forgot some of it.
    listed = set().union(*parts.values(), _listed(shipped) if shipped.is_file() else ())
    names = sorted(listed)
    if not names:
        raise DataError(f"{shipped}: expected one image a line; the file is empty.")
    if strangers := [image for image in names if image not in classes_of]:
        raise DataError(
            f"{labels}: {len(strangers)} of {len(names)} images of {split} have no label there: {some(strangers, SHOWN)}. Is the file complete?"
        )
    files, chosen = [folder / split / image for image in names], {image: classes_of[image] for image in names}
    rank = {image: k for k, image in enumerate(names)}
    rows = {client: tuple(sorted(rank[image] for image in group)) for client, group in parts.items()}
    about = facts([labels, *(path for path in (shipped,) if path.is_file())])
    return contents(f"{name} {split}", files, chosen, classes, side, about, rows, **how)


def _listed(path: Path) -> set[str]:
    return {row[0] for _, row in cells(path)}


def _order(path: Path) -> list[tuple[int, str]]:
    """Sorts client_2 before client_10."""
    return [(int(text), "") if text.isdigit() else (0, text) for text in re.split(r"(\d+)", path.as_posix())]


def covid(root: Path, split: str, *, side: int = COVID_SIDE) -> Contents:
    """COVID-FL, chest X-rays of twelve institutions: read_shipped the shipped lists; ``parts`` are the twelve institutions, such as ``split_real/bimcv``.

    Images keep their shape: the shorter side becomes ``side`` and the longer one is cut on both sides, as the published test
    does. That training crops from the same square, and not from the whole image, is our choice.

    Parameters
    ----------
    root : the folder with the data sets, or that of this one.
    split : train or test, which is one for all institutions.
    side : the images become ``side`` by ``side``.

    Raises
    ------
    DataError : the files are missing or damaged.
    """
    folder = located("covid-fl", root, ("COVID-FL/labels.csv", "12_clients")).parent
    lists = "12_clients/split_real/*.csv"
    return read_shipped("covid-fl", folder, split, COVID_CLASSES, lists, side, fit="crop")
