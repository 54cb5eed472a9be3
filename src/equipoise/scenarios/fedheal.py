"""FedHEAL's scenarios: digits and office photographs of four domains, each client seeing one.

Chen, Huang and Ye, "Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity" (CVPR 2024),
and its released code where the paper is silent.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from equipoise.data.contents import Contents, DataError
from equipoise.data.decoding import resized
from equipoise.data.memory_mapped import Data, Mapped, labels, take
from equipoise.scenarios import papers, partition
from equipoise.scenarios.papers import MEAN, STD
from equipoise.scenarios.scenario import Described, Description, Divided, Images, Protocol, Scenario, choose
from equipoise.system.ranges import check_whole

VERSION = 1  # raise it whenever a part changes

DIGITS = ("mnist", "usps", "svhn", "syn")
READABLE = (*DIGITS, "synth")  # Ganin's digits: often taken for the paper's, which are Roy's
OFFICE = ("caltech", "amazon", "webcam", "dslr")
EACH = 5  # clients of a domain

SIDE = 32  # of a digit, pixels
OFFICE_SIDE = 192

OFFICE_TRANSFORM = Images(MEAN, STD, flip=True)
NETWORK = {"width": 64}
DIGITS_PROTOCOL = Protocol(rounds=200, epochs=10, batch_size=64, lr=0.001, momentum=0.9, weight_decay=1e-5)
OFFICE_PROTOCOL = replace(DIGITS_PROTOCOL, batch_size=16)

SUMMARY_DIGITS = "FedHEAL's digits: MNIST, USPS, SVHN and SYN, five clients each."
SUMMARY_OFFICE = "FedHEAL's office objects: Caltech, Amazon, webcam and DSLR, five clients each."


def digits(
    data: Path | None,
    *,
    domains: str | Sequence[str] = DIGITS,
    clients: int | None = None,
    share: float = 0.01,
    size: int = SIDE,
) -> Described:
    """Digits of four data sets; the clients of one share nothing, and everybody is tested on all of its test images.

    Parameters
    ----------
    data : the folder that holds the data sets.
    domains : some of mnist, usps, svhn, syn and synth, in the order of reports, or one text of them with "+" between.
    clients : a multiple of the number of domains; five for each if None.
    share : in (0, 1], of a domain's training images, that one client has. 0.01 makes 600, 72, 732 and 100.
    size : >= 1, side in pixels of what the network sees; training pads an eighth of it on each side.

    Raises
    ------
    ValueError if an option is out of its range, or a domain has too few images. DataError if a domain is not there.
    """
    chosen, groups = _groups("fedheal-digits", domains, READABLE, clients, share, size)
    with _without("fedheal-digits", data, chosen):
        papers.require(data, dict.fromkeys(chosen, ("train", "test")))
    transform = Images(MEAN, STD, crop=size // 8, pad="zero")
    description = _described("fedheal-digits", SUMMARY_DIGITS, size, transform, DIGITS_PROTOCOL)

    def read(domain: str, split: str) -> Contents:
        with _without("fedheal-digits", data, chosen, domain):
            return papers.read(domain, data, split)

    def build(seed: int) -> Scenario:
        train, test = ({domain: read(domain, split) for domain in chosen} for split in ("train", "test"))
        parts = _drawn({domain: labels(contents.data) for domain, contents in train.items()}, groups, share, seed)
        files = {f"{domain}/train": contents for domain, contents in train.items()}
        files |= {f"{domain}/test": contents for domain, contents in test.items()}
        clients = (_rgb(take(train[d].data, part), size) for d, part in zip(groups, parts, strict=True))
        tests = {domain: _rgb(contents.data, size) for domain, contents in test.items()}
        recipe = {"version": VERSION, "domains": chosen, "share": share, "size": size}
        made = Divided(parts, tests, groups=groups, clients=clients, recipe=recipe)
        return papers.scenario(description, seed, files, made)

    return description, build


def office(
    data: Path | None,
    *,
    domains: str | Sequence[str] = OFFICE,
    clients: int | None = None,
    share: float = 0.1,
    paper_overlap: bool = False,
    size: int = OFFICE_SIDE,
) -> Described:
    """Photographs of ten kinds of office objects; of every ten images of a domain, eight are for training.

    A client that lacks a class gets an image of it for one of a class of which it has several. As released, that image
    is drawn from all of the domain, so that another client may have it, too; here it is one that nobody has, as long as
    there is any.

    Parameters
    ----------
    data : the folder that holds the data set.
    domains : some of caltech, amazon, webcam and dslr, in the order of reports, or one text of them with "+" between.
    clients : a multiple of the number of domains; five for each if None.
    share : in (0, 1], of a domain's training images, that one client has. 0.1 makes 89, 76, 23 and 12.
    paper_overlap : draw the images that complete a client as the released code does.
    size : >= 1, side in pixels of the images, as they are kept and as the network sees them.

    Raises
    ------
    ValueError if an option is out of its range, or a domain has too few images. DataError if a domain is not there.
    """
    chosen, groups = _groups("fedheal-office", domains, OFFICE, clients, share, size)
    with _without("fedheal-office", data, chosen):
        papers.require(data, {"office-caltech10": chosen})
    description = _described("fedheal-office", SUMMARY_OFFICE, size, OFFICE_TRANSFORM, OFFICE_PROTOCOL)

    def build(seed: int) -> Scenario:
        images = {domain: papers.read("office-caltech10", data, domain, side=size) for domain in chosen}
        split = {domain: partition.every_tenth(len(contents)) for domain, contents in images.items()}
        train = {domain: labels(contents.data)[split[domain][0]] for domain, contents in images.items()}
        drawn = _drawn(train, groups, share, seed, cover=True, overlap=paper_overlap)
        # Positions are those among all images of the domain.
        parts = [[split[d][0][k] for k in part] for d, part in zip(groups, drawn, strict=True)]
        clients = (take(images[d].data, part) for d, part in zip(groups, parts, strict=True))
        tests = {domain: take(contents.data, split[domain][1]) for domain, contents in images.items()}
        some = {} if chosen == OFFICE else {"domains": chosen}
        recipe = {"version": VERSION, "share": share, "paper_overlap": paper_overlap, "size": size, **some}
        made = Divided(parts, tests, groups=groups, clients=clients, recipe=recipe)
        return papers.scenario(description, seed, images, made)

    return description, build


def _described(name: str, summary: str, side: int, transform: Images, protocol: Protocol) -> Description:
    return Description(
        name=name,
        summary=summary,
        sample=(3, side, side),
        transform=transform,
        n_classes=10,
        network="resnet10",
        network_options=NETWORK,
        protocol=protocol,
    )


def _groups(
    name: str, asked: str | Sequence[str], choices: Sequence[str], clients: int | None, share: float, size: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The domains that were asked for, and the domain of every client, those of a domain together."""
    domains = choose(asked, choices, f"domain of {name}:", f"{name}: domains must be different ones")
    total = EACH * len(domains) if clients is None else clients
    if total < 1 or total % len(domains):
        raise ValueError(f"{name}: clients must be a multiple of {len(domains)}, the domains; found {clients}.")
    if not 0 < share <= 1:
        raise ValueError(f"{name}: share must be in (0, 1]; found {share}.")
    check_whole(f"{name}: size", size, 1)
    return domains, tuple(domain for domain in domains for _ in range(total // len(domains)))


def _drawn(train: Mapping[str, Tensor], groups: Sequence[str], share: float, seed: int, **how: bool) -> list[list[int]]:
    """The positions of each client's samples in its domain."""
    number = [list(train).index(domain) for domain in groups]
    return partition.domain_samples(list(train.values()), number, share, seed, names=tuple(train), **how)


@contextmanager
def _without(name: str, data: Path | None, chosen: Sequence[str], *read: str) -> Iterator[None]:
    """Add to an error about missing files of domains how to run without those domains, or without those ``read``."""
    try:
        yield
    except DataError as error:
        lost = {*read, *error.fields.get("lost", ())}
        rest = "+".join(domain for domain in chosen if domain not in lost)
        if not rest:
            raise
        words = ["compare", "fedavg", "fedheal", "--scenario", f"{name}(domains={rest})", "--data", str(data)]
        raise DataError(
            f"{error} To continue without, unlike the paper: domains={rest}, as in `equipoise {shlex.join(words)}`."
        ) from None


def _rgb(data: Data, side: int) -> tuple[Tensor, Tensor]:
    """Images in memory, three channels, so many pixels high and wide."""
    x = data.images(range(len(data))) if isinstance(data, Mapped) else data[0]
    if x.shape[1:] != (3, side, side):
        pixels = x.permute(0, 2, 3, 1).numpy()
        x = torch.stack([torch.from_numpy(resized(image, (side, side))) for image in pixels])
    return x, labels(data)
