"""FedHEAL's scenarios: digits and office photographs of four domains, each client seeing one.

Chen, Huang and Ye, "Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity" (CVPR 2024),
and its released code where the paper is silent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from equipoise.data.contents import DataError, Found
from equipoise.data.decoding import resized
from equipoise.data.memory_mapped import Data, Mapped, labels, take
from equipoise.data.sets import catalog
from equipoise.scenarios import partition
from equipoise.scenarios.papers import MEAN, STD, manifest
from equipoise.scenarios.scenario import Images, Protocol, Scenario
from equipoise.system.suggestions import unknown

VERSION = 1  # raise it whenever a part changes

DIGITS = ("mnist", "usps", "svhn", "syn")
READABLE = (*DIGITS, "synth")  # Ganin's digits: often taken for the paper's, which are Roy's
OFFICE = ("caltech", "amazon", "webcam", "dslr")
EACH = 5  # clients of a domain

SIDE = 32  # of a digit, pixels
OFFICE_SIDE = 192

DIGITS_TRANSFORM = Images(MEAN, STD, crop=4, pad="zero")
OFFICE_TRANSFORM = Images(MEAN, STD, flip=True)
NETWORK = {"width": 64}
DIGITS_PROTOCOL = Protocol(rounds=200, epochs=10, batch_size=64, lr=0.001, momentum=0.9, weight_decay=1e-5)
OFFICE_PROTOCOL = replace(DIGITS_PROTOCOL, batch_size=16)

SUMMARY_DIGITS = "FedHEAL's digits: MNIST, USPS, SVHN and SYN, five clients each."
SUMMARY_OFFICE = "FedHEAL's office objects: Caltech, Amazon, webcam and DSLR, five clients each."


def digits(
    seed: int, data: Path, *, domains: str | Sequence[str] = DIGITS, clients: int | None = None, share: float = 0.01
) -> Scenario:
    """Digits of four data sets; the clients of one share nothing, and everybody is tested on all of its test images.

    Parameters
    ----------
    seed : in 0..2**32 - 1; decides which images a client has.
    data : the folder that holds the data sets.
    domains : some of mnist, usps, svhn, syn and synth, in the order of reports, or one text of them with "+" between.
    clients : a multiple of the number of domains; five for each if None.
    share : in (0, 1], of a domain's training images, that one client has. 0.01 makes 600, 72, 732 and 100.

    Raises
    ------
    ValueError if an option is out of its range, or a domain has too few images. DataError if a domain is not there.
    """
    chosen = tuple(domains.split("+")) if isinstance(domains, str) else tuple(domains)
    for domain in chosen:
        if domain not in READABLE:
            raise ValueError(unknown("domain of fedheal-digits:", domain, READABLE))
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"fedheal-digits: domains must be different ones, at least one; found {', '.join(chosen)}.")
    train = {domain: _one(domain, data, "train", chosen) for domain in chosen}
    tests = {domain: _one(domain, data, "test", chosen) for domain in chosen}
    who, parts = _divide("fedheal-digits", {d: labels(one.data) for d, one in train.items()}, clients, share, seed)
    return Scenario(
        name="fedheal-digits",
        summary=SUMMARY_DIGITS,
        clients=tuple(_rgb(take(train[d].data, part)) for d, part in zip(who, parts, strict=True)),
        client_names=_names(who),
        client_groups=who,
        tests={domain: _rgb(one.data) for domain, one in tests.items()},
        transform=DIGITS_TRANSFORM,
        n_classes=10,
        network="resnet10",
        network_options=NETWORK,
        protocol=DIGITS_PROTOCOL,
        manifest=manifest(
            "fedheal-digits",
            seed,
            VERSION,
            {"domains": chosen, "share": share},
            {f"{d}/train": one for d, one in train.items()} | {f"{d}/test": one for d, one in tests.items()},
            _names(who),
            parts,
        ),
    )


def office(
    seed: int, data: Path, *, clients: int | None = None, share: float = 0.1, paper_overlap: bool = False
) -> Scenario:
    """Photographs of ten kinds of office objects; of every ten images of a domain, eight are for training.

    A client that lacks a class gets an image of it for one of a class of which it has several. As released, that image
    is drawn from all of the domain, so that another client may have it, too; here it is one that nobody has, as long as
    there is any.

    Parameters
    ----------
    seed : in 0..2**32 - 1; decides which images a client has.
    data : the folder that holds the data set.
    clients : a multiple of four; five for each domain if None.
    share : in (0, 1], of a domain's training images, that one client has. 0.1 makes 89, 76, 23 and 12.
    paper_overlap : draw the images that complete a client as the released code does.

    Raises
    ------
    ValueError if an option is out of its range, or a domain has too few images. DataError if the data are not there.
    """
    found = {domain: catalog.read("office-caltech10", data, domain) for domain in OFFICE}
    split = {domain: partition.every_tenth(len(one)) for domain, one in found.items()}
    known = {domain: labels(one.data)[split[domain][0]] for domain, one in found.items()}
    who, drawn = _divide("fedheal-office", known, clients, share, seed, cover=True, overlap=paper_overlap)
    parts = [[split[d][0][k] for k in part] for d, part in zip(who, drawn, strict=True)]
    return Scenario(
        name="fedheal-office",
        summary=SUMMARY_OFFICE,
        clients=tuple(take(found[d].data, part) for d, part in zip(who, parts, strict=True)),
        client_names=_names(who),
        client_groups=who,
        tests={domain: take(one.data, split[domain][1]) for domain, one in found.items()},
        transform=OFFICE_TRANSFORM,
        n_classes=10,
        network="resnet10",
        network_options=NETWORK,
        protocol=OFFICE_PROTOCOL,
        manifest=manifest(
            "fedheal-office",
            seed,
            VERSION,
            {"share": share, "paper_overlap": paper_overlap},
            found,
            _names(who),
            parts,  # positions among all images of the domain
        ),
    )


def _divide(
    name: str,
    known: Mapping[str, Tensor],
    clients: int | None,
    share: float,
    seed: int,
    *,
    cover: bool = False,
    overlap: bool = True,
) -> tuple[tuple[str, ...], list[list[int]]]:
    """The domain of every client, those of a domain together, and the positions of its samples in the domain."""
    total = EACH * len(known) if clients is None else clients
    if total < 1 or total % len(known):
        raise ValueError(f"{name}: clients must be a multiple of {len(known)}, the domains; found {clients}.")
    who = tuple(domain for domain in known for _ in range(total // len(known)))
    number = [list(known).index(domain) for domain in who]
    return who, partition.domain_samples(
        list(known.values()), number, share, seed, names=tuple(known), cover=cover, overlap=overlap
    )


def _names(who: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{domain}-{1 + who[:k].count(domain)}" for k, domain in enumerate(who))


def _one(domain: str, data: Path, split: str, chosen: Sequence[str]) -> Found:
    try:
        return catalog.read(domain, data, split)
    except DataError as error:
        rest = "+".join(other for other in chosen if other != domain)
        if not rest:
            raise
        raise DataError(f"{error} To go on without it, which is not what the paper did: domains={rest}.") from None


def _rgb(data: Data) -> tuple[Tensor, Tensor]:
    """Images in memory, three channels, as large as digits are here."""
    x, y = data.gather(range(len(data))) if isinstance(data, Mapped) else data
    if x.shape[1:] != (3, SIDE, SIDE):
        pixels = x.permute(0, 2, 3, 1).numpy()
        x = torch.stack([torch.from_numpy(resized(image, (SIDE, SIDE))) for image in pixels])
    return x, y
