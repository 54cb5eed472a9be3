"""FedLD's scenarios: retina photographs with label skew, and chest X-rays of twelve institutions.

Zeng et al., "Tackling Data Heterogeneity in Federated Learning via Loss Decomposition" (MICCAI 2024), on the data of SSL-FL
(Yan et al., IEEE TMI 2023).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.data.contents import Contents, DataError
from equipoise.data.memory_mapped import labels
from equipoise.data.sets import retina as retina_files
from equipoise.scenarios import papers, partition
from equipoise.scenarios.papers import MEAN, STD
from equipoise.scenarios.scenario import Described, Divided, Images, Protocol

VERSION = 1  # raise it whenever a part changes

SPLITS = (1, 2, 3)  # Dirichlet alphas 100, 1.0 and 0.5, among five clients
RELEASED_SEED = 2022  # of the generator of the published splits
MANY = 50  # clients from which on a tenth of them trains in a round
LEAST = 10  # images of a client of a drawn partition, where there are as many for each
# the released code has no limit; with alpha 0.01 one draw in hundreds gives each of five clients enough
REDRAWS = 10_000
SIDE = 384  # of what the network sees, pixels

# Training crops a share of the area, turns (what comes from outside is black) and mirrors. The released code: SGD's momentum and weight decay are not in the paper.
RETINA_MEAN, RETINA_STD = (0.5007, 0.5010, 0.5019), (0.0342, 0.0535, 0.0484)
RETINA_AREA, COVID_AREA = (0.6, 1.0), (0.8, 1.2)
DEGREES = 10.0
RETINA_PROTOCOL = Protocol(rounds=200, epochs=1, batch_size=50, lr=0.01, momentum=0.5, weight_decay=5e-4)
COVID_PROTOCOL = replace(RETINA_PROTOCOL, lr=0.005)
TRAINED: Mapping[str, Any] = {"network": "resnet50", "measures": ("accuracy", "balanced", "auc")}

SUMMARY_RETINA = "FedLD's retina photographs, normal or diseased; clients differ in their shares of both."
SUMMARY_COVID = "FedLD's chest X-rays of COVID-FL; each of twelve institutions is a client."


def retina(
    data: Path | None,
    *,
    split: int | None = None,
    clients: int | None = None,
    alpha: float | None = None,
    positive_from: int = 1,
    size: int = SIDE,
) -> Described:
    """Retina photographs, divided as published or by the generator of the published splits; one test set for all.

    The seed decides a drawn partition, and 0 is that of the published ones.

    Parameters
    ----------
    data : the folder that holds the data set.
    split : 1, 2 or 3, the published lists of five clients, of growing skew. 1 if neither it nor a drawn partition is asked for.
    clients, alpha : draw a partition instead, a capped Dirichlet: so many clients (5 if None; the paper also has 50, of which
        a tenth trains in a round), and alpha >= 0.01 (0.5 if None), the lower the more the clients differ.
    positive_from : in 1..4, the lowest grade that counts as diseased, for those who have Kaggle's files and no published lists.
    size : side in pixels of what the network sees.

    Raises
    ------
    ValueError if an option is out of its range, or options contradict each other. DataError if the data are not there, or
    hold no such split.
    """
    drawn = clients is not None or alpha is not None
    if drawn and split is not None:
        raise ValueError(
            f"fedld-retina: split={split} is a published partition, and clients and alpha draw one. Give one of the two."
        )
    if not drawn and split not in (None, *SPLITS):
        raise ValueError(f"fedld-retina: split must be 1, 2 or 3; found {split!r}.")
    if not 1 <= positive_from < retina_files.GRADES:
        raise ValueError(
            f"fedld-retina: positive_from must be in 1..{retina_files.GRADES - 1}; found {positive_from!r}."
        )
    number, evenness = 5 if clients is None else clients, 0.5 if alpha is None else alpha
    if drawn and number > 0:  # how many there can be depends on the files
        partition.check("fedld-retina", number, number, evenness)

    def divide(train: Contents, _: Contents, seed: int) -> Divided:
        if not drawn:
            return _published("fedld-retina", train, f"split_{split or 1}/", {"split": split or 1, "size": size})
        y, draw = labels(train.data), RELEASED_SEED + seed
        least = LEAST if len(y) >= LEAST * number else max(1, len(y) // (2 * number))
        parts = partition.retina(y, number, evenness, draw, min_size=least, redraws=REDRAWS)
        recipe = {"alpha": evenness, "cap": True, "min_size": least, "size": size}
        return Divided(parts, recipe={"version": VERSION, **recipe})

    side, reading = retina_files.SIDE, {"positive_from": positive_from}
    transform = Images(RETINA_MEAN, RETINA_STD, pad="zero", area=RETINA_AREA, rotate=DEGREES, flip=True, size=size)
    protocol = replace(RETINA_PROTOCOL, participation=0.1 if number >= MANY else 1.0)
    fields = {"sample": (3, side, side), "transform": transform, "protocol": protocol, **TRAINED}
    return papers.from_splits("fedld-retina", "retina", SUMMARY_RETINA, data, divide, reading, **fields)


def covid(data: Path | None, *, size: int = SIDE) -> Described:
    """Chest X-rays (normal, pneumonia, COVID-19), one client for each institution that they come from; one test set for all.

    Nothing is drawn, so the seed changes nothing.

    Parameters
    ----------
    data : the folder that holds the data set.
    size : side in pixels of the images, as they are kept and as the network sees them.

    Raises
    ------
    ValueError if the size is out of range. DataError if the data are not there, or do not say where they come from.
    """

    def divide(train: Contents, _: Contents, __: int) -> Divided:
        return _published("fedld-covid", train, "split_real/", {"size": size})

    transform = Images(MEAN, STD, pad="zero", area=COVID_AREA, rotate=DEGREES, flip=True, size=size)
    fields = {"sample": (3, size, size), "transform": transform, "protocol": COVID_PROTOCOL, **TRAINED}
    return papers.from_splits("fedld-covid", "covid-fl", SUMMARY_COVID, data, divide, {"side": size}, **fields)


def _published(name: str, train: Contents, prefix: str, recipe: Mapping[str, Any]) -> Divided:
    """The division whose lists came with the data, below a prefix."""
    parts = {part.removeprefix(prefix): list(rows) for part, rows in train.parts.items() if part.startswith(prefix)}
    if not parts:
        folders = sorted({part.split("/")[0] for part in train.parts})
        raise DataError(
            f"{name}: expected lists of the clients' images in a folder {prefix} next to the images; found "
            f"{', '.join(folders) or 'no lists'}. Put them there"
            + (", or draw a partition: clients=5, alpha=0.5." if name == "fedld-retina" else ".")
        )
    if empty := [client for client, rows in parts.items() if not rows]:
        raise DataError(f"{name}: the list of {empty[0]} in {prefix} names no image. Each client needs one at least.")
    return Divided([*parts.values()], names=[*parts], recipe={"version": VERSION, **recipe})
