"""Retina: photographs of the eye, normal or diseased (Kaggle diabetic retinopathy; splits of Yan et al. 2023)."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import Contents, DataError
from equipoise.data.decoding import array, picture
from equipoise.data.locations import facts, find, located
from equipoise.data.sets import sslfl
from equipoise.data.sets.image_lists import divided, label, mapped, table, weight

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
        return sslfl.read(NAME, folder, split, CLASSES, clients=lists, side=side, load=array, fit="stretch")
    classes = {}
    for row in table(grades, ("image", "level")):
        grade = label(row["level"], GRADES, f"{grades}: {row['image']}")
        classes[row["image"]] = int(grade >= positive_from)
    if not classes:
        raise DataError(f"{grades}: expected images under the header image,level; found none.")
    chosen = divided(classes, test, np.random.default_rng([seed, 1]), group=lambda name: name.split("_")[0])[split]
    if not chosen:
        raise DataError(f"{grades}: {len(classes)} images are too few for a {split} part.")
    files = [grades.parent / "train" / f"{name}.jpeg" for name in chosen]
    data = mapped(files, chosen.values(), side, f"{NAME} {split}", fundus)
    about = {**facts([grades]), "positive_from": positive_from, "test": test, "seed": seed, **weight(files)}
    return Contents(data, CLASSES, tuple(chosen), about=about)


def fundus(path: Path) -> NDArray[np.uint8]:
    """A photograph of the eye without its slow changes of light, on grey 128 (after Graham, winner of the Kaggle competition).

    ``4 x - 4 blur(x) + 128`` with a Gaussian blur of a thirtieth of the image. The published normalisation of Retina, whose
    standard deviations are 0.03 to 0.05, fits images of this kind and no plain photographs.
    """
    from PIL import Image, ImageFilter

    image = Image.fromarray(picture(path)).resize((2 * SIDE, 2 * SIDE), Image.Resampling.BILINEAR)
    sharp, soft = (np.asarray(x, np.int16) for x in (image, image.filter(ImageFilter.GaussianBlur(2 * SIDE / 30))))
    return (4 * (sharp - soft) + 128).clip(0, 255).astype(np.uint8)
