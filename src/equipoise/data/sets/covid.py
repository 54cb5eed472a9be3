"""COVID-FL: chest X-rays of twelve institutions (Yan et al. 2023)."""

from pathlib import Path

from equipoise.data.contents import Contents
from equipoise.data.decoding import picture
from equipoise.data.locations import located
from equipoise.data.sets import sslfl

NAME = "covid-fl"
CLASSES = ("normal", "pneumonia", "COVID-19")
SIDE = 384  # of FedLD's crops


def read(root: Path, split: str, *, side: int = SIDE) -> Contents:
    """Read the shipped lists of SSL-FL; ``parts`` are the twelve institutions, such as ``split_real/bimcv``.

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
    folder = located(NAME, root, ("COVID-FL/labels.csv", "12_clients")).parent
    lists = "12_clients/split_real/*.csv"
    return sslfl.read(NAME, folder, split, CLASSES, clients=lists, side=side, load=picture, fit="crop")
