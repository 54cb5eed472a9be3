"""The layout of Yan et al., "Label-efficient self-supervised federated learning" (2023): Retina and COVID-FL."""

import re
from collections.abc import Sequence
from pathlib import Path

from equipoise.data.contents import Contents, DataError
from equipoise.data.decoding import Fit, Load, picture
from equipoise.data.locations import facts, located
from equipoise.data.sets.image_lists import SHOWN, cells, label, mapped, weight

COVID_CLASSES = ("normal", "pneumonia", "COVID-19")
COVID_SIDE = 384  # of FedLD's crops


def read(
    name: str, folder: Path, split: str, classes: Sequence[str], *, clients: str, side: int, load: Load, fit: Fit
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
    load, fit : how an image is read, and brought to that shape.
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
        some = ", ".join(strangers[:SHOWN]) + ", ..." * (len(strangers) > SHOWN)
        raise DataError(
            f"{labels}: {len(strangers)} of {len(names)} images of {split} have no label there: {some}. "
            "Is the file complete?"
        )
    files = [folder / split / image for image in names]
    data = mapped(files, (classes_of[image] for image in names), side, f"{name} {split}", load, fit)
    rank = {image: k for k, image in enumerate(names)}
    rows = {client: tuple(sorted(rank[image] for image in group)) for client, group in parts.items()}
    about = facts([labels, *(path for path in (shipped,) if path.is_file())])
    return Contents(data, tuple(classes), tuple(names), rows, {**about, **weight(files)})


def _listed(path: Path) -> set[str]:
    return {row[0] for _, row in cells(path)}


def _order(path: Path) -> list[tuple[int, str]]:
    """Sorts client_2 before client_10."""
    return [(int(text), "") if text.isdigit() else (0, text) for text in re.split(r"(\d+)", path.as_posix())]


def covid(root: Path, split: str, *, side: int = COVID_SIDE) -> Contents:
    """COVID-FL, chest X-rays of twelve institutions: read the shipped lists; ``parts`` are the twelve institutions, such as ``split_real/bimcv``.

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
    return read("covid-fl", folder, split, COVID_CLASSES, clients=lists, side=side, load=picture, fit="crop")
