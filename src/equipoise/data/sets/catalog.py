"""The data sets of the papers: what each holds, where a user gets it, and how its files are read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from equipoise.data.contents import Contents, DataError
from equipoise.data.locations import MISSING, Files, digest, existing, find, holds, plain, where_from
from equipoise.data.memory_mapped import labels
from equipoise.data.sets import cifar, digits, image_lists, isic, retina, rsna
from equipoise.data.sets.download import Address
from equipoise.system.suggestions import require_known, some

INSTALLED = Path("/usr/share/datasets")  # where Debian and Ubuntu have the data sets of their packages


@dataclass(frozen=True)
class Count:
    """How many images were published.

    Parameters
    ----------
    images : > 0, in all.
    classes : of each class in order; ``None`` if that is not known for certain.
    """

    images: int
    classes: tuple[int, ...] | None = None


def counted(*classes: int) -> Count:
    """A count by class."""
    return Count(sum(classes), classes)


@dataclass(frozen=True)
class DataSet:
    """A line of the catalogue.

    Parameters
    ----------
    title : what people call it.
    used_by : the papers whose experiments use it.
    classes : names of the classes in the order of the labels.
    splits : published counts by split; ``None`` where none is known, or where it depends on how the split is drawn.
    size : how much there is to fetch, in words.
    source : where a user gets it.
    terms : of use, as stated there at the time of writing.
    places : files and folders by which the set is recognised, below the user's folder, in the order in which they are read.
    read : takes the files of a split, or without ``needs`` the user's folder and a split; and options; gives what it found.
    files : plain addresses, if the set has stable ones.
    optional : splits that no experiment needs.
    whole : counts over all splits, where more is known of them than of each.
    needs : by split the files that ``read`` takes, each as the places where it may lie; empty if ``places`` are all that is known.
    astray : what is to be done about files in the user's folder that cannot be read where they lie.
    package : of Debian and Ubuntu, which puts it into ``INSTALLED``.
    """

    title: str
    used_by: str
    classes: tuple[str, ...]
    size: str
    source: str
    places: tuple[str, ...]
    read: Callable[..., Contents] = field(repr=False)
    splits: Mapping[str, Count | None] = field(default_factory=lambda: {"train": None, "test": None})
    terms: str = "none stated"
    files: tuple[Address, ...] = ()
    optional: tuple[str, ...] = ()
    whole: Count | None = None
    needs: Mapping[str, Files] = field(default_factory=dict, repr=False)
    astray: Callable[[Path], str] = field(default=lambda _: "", repr=False)
    package: str | None = None


def _addresses(base: str, *files: tuple[str, int, str, str]) -> tuple[Address, ...]:
    """Files by name, below one address: name, bytes, md5, part."""
    return tuple(Address(f"{base}{file}", file, size, md5, split) for file, size, md5, split in files)


def _idx(folder: str, base: str, *kinds: tuple[str, int, str, str]) -> tuple[Address, ...]:
    """The four files of a set in the idx format: kind, bytes, md5, md5 unpacked."""

    def address(kind: str, size: int, md5: str, unpacked: str) -> Address:
        file, split = f"{kind}-ubyte.gz", "train" if kind.startswith("train") else "test"
        return Address(f"{base}{file}", f"{folder}/raw/{file}", size, md5, split, inside=(unpacked,))

    return tuple(address(*kind) for kind in kinds)


SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        title="MNIST",
        used_by="FedHEAL (Digits)",
        classes=digits.DIGITS,
        splits={
            "train": counted(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            "test": counted(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        },
        size="11.6 MB",
        source="plain addresses; or torchvision's MNIST; or ylecun/mnist on Hugging Face, as idx files",
        terms="CC BY-SA 3.0 or MIT; sources differ",
        places=("MNIST/raw", "MNIST"),
        read=partial(digits.read_idx, classes=digits.DIGITS),
        needs=digits.IDX["mnist"],
        astray=partial(digits.astray, "mnist"),
        files=_idx(
            "MNIST",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ("train-images-idx3", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
            ("train-labels-idx1", 28881, "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
            ("t10k-images-idx3", 1648877, "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            ("t10k-labels-idx1", 4542, "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
        ),
    ),
    "usps": DataSet(
        title="USPS",
        used_by="FedHEAL (Digits)",
        classes=digits.DIGITS,
        splits={
            "train": counted(1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644),
            "test": counted(359, 264, 198, 166, 200, 160, 170, 147, 166, 177),
        },
        size="8.4 MB",
        source="plain addresses (the LIBSVM collection); or torchvision's USPS",
        places=("usps.bz2", "usps.t.bz2", "USPS"),
        read=digits.read_usps,
        needs=digits.USPS,
        files=_addresses(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
            ("usps.bz2", 6579383, "ec16c51db3855ca6c91edd34d0e9b197", "train"),
            ("usps.t.bz2", 1831726, "8ea070ee2aca1ac39742fdd1ef5ed118", "test"),
        ),
    ),
    "svhn": DataSet(
        title="SVHN, cropped digits",
        used_by="FedHEAL (Digits), FedSAC",
        classes=digits.DIGITS,
        splits={
            "train": counted(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
            "test": counted(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
            "extra": counted(45550, 90560, 74740, 60765, 50633, 53490, 41582, 43997, 35358, 34456),
        },
        size="246 MB, and 1.3 GB for extra",
        source="plain addresses; or torchvision's SVHN",
        terms="for non-commercial use",
        places=("train_32x32.mat", "test_32x32.mat", "SVHN"),
        read=digits.read_mat,
        needs=digits.SVHN,
        files=_addresses(
            "http://ufldl.stanford.edu/housenumbers/",
            ("train_32x32.mat", 182040794, "e26dedcc434d2e4c54c9b2d4a06d8373", "train"),
            ("test_32x32.mat", 64275384, "eb5a983be6a315427106f1b164d9cef3", "test"),
            ("extra_32x32.mat", 1329278602, "a93ce644f1a588dc4d68dda5feec44a7", "extra"),
        ),
        optional=("extra",),
    ),
    "syn": DataSet(
        title="SYN, synthetic digits of Roy et al. (2018)",
        used_by="FedHEAL (Digits)",
        classes=digits.DIGITS,
        splits={"train": Count(10000), "test": Count(2000)},
        size="about 50 MB",
        source="Kaggle: prasunroy/synthetic-digits; or the FedHEAL authors' own bundle, see their README",
        terms="those of its Kaggle page; backgrounds from COCO",
        places=("syn", "synthetic_digits"),
        read=image_lists.syn,
        needs=image_lists.SYN,
    ),
    "synth": DataSet(
        title="synthetic digits of Ganin and Lempitsky (2015)",
        used_by="none of the papers (Digits-5 has it in the place of SYN)",
        classes=digits.DIGITS,
        splits={"train": Count(479400), "test": Count(9553)},
        size="913 MB",
        source="the authors' page, or a copy of Digits-5: synth_train_32x32.mat and synth_test_32x32.mat",
        places=("synth_train_32x32.mat", "synth_test_32x32.mat", "synth"),
        read=digits.read_mat,
        needs=digits.SYNTH,
    ),
    "cifar10": DataSet(
        title="CIFAR-10",
        used_by="FedSAC",
        classes=cifar.CLASSES,
        splits={"train": counted(*(5000,) * 10), "test": counted(*(1000,) * 10)},
        size="170 MB",
        source="plain address (the Python version); or torchvision's CIFAR10",
        places=cifar.PLACES,
        read=cifar.read,
        needs=cifar.FILES,
        astray=cifar.astray,
        files=(cifar.ADDRESS,),
    ),
    "fashion-mnist": DataSet(
        title="Fashion-MNIST",
        used_by="FedSAC",
        classes=digits.CLOTHES,
        splits={"train": counted(*(6000,) * 10), "test": counted(*(1000,) * 10)},
        size="31 MB",
        source="plain addresses (the authors' repository); or torchvision's FashionMNIST; or apt-get install dataset-fashion-mnist",
        terms="MIT",
        places=("FashionMNIST/raw", "FashionMNIST"),
        read=partial(digits.read_idx, classes=digits.CLOTHES),
        needs=digits.IDX["fashion-mnist"],
        astray=partial(digits.astray, "fashion-mnist"),
        package="dataset-fashion-mnist",
        files=_idx(
            "FashionMNIST",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ("train-images-idx3", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
            ("train-labels-idx1", 29515, "25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
            ("t10k-images-idx3", 4422102, "bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            ("t10k-labels-idx1", 5148, "bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
        ),
    ),
    "office-caltech10": DataSet(
        title="Office-Caltech10",
        used_by="FedHEAL (Office-Caltech)",
        classes=image_lists.OFFICE,
        splits={
            "amazon": counted(92, 82, 94, 99, 100, 100, 99, 100, 94, 98),
            "caltech": counted(151, 110, 100, 138, 85, 128, 133, 94, 87, 97),
            "dslr": counted(12, 21, 12, 13, 10, 24, 22, 12, 8, 23),
            "webcam": counted(29, 21, 31, 27, 27, 30, 43, 30, 27, 30),
        },
        size="about 100 MB",
        source="Hugging Face: office_caltech_10_dataset.zip of Jemary/FedBN_Dataset",
        terms="for research; no licence stated",
        places=image_lists.OFFICE_FOLDERS,
        read=image_lists.office,
        needs=image_lists.OFFICE_FILES,
    ),
    "retina": DataSet(
        title="Retina, as SSL-FL prepared it",
        used_by="FedLD",
        classes=retina.CLASSES,
        size="several GB",
        source="the SSL-FL authors' repository (rui-yan/SSL-FL on GitHub) links it; or Kaggle: diabetic-retinopathy-detection",
        terms="rules of the Kaggle competition, which you must accept there",
        places=("Retina", "5_clients", "diabetic-retinopathy-detection", "trainLabels.csv"),
        read=retina.read,
    ),
    "covid-fl": DataSet(
        title="COVID-FL, as SSL-FL prepared it",
        used_by="FedLD",
        classes=retina.COVID_CLASSES,
        size="several GB",
        source="the SSL-FL authors' repository (rui-yan/SSL-FL on GitHub) links it",
        terms="those of its eight sources, most of them non-commercial",
        places=("COVID-FL", "12_clients"),
        read=retina.covid,
    ),
    "rsna-ich": DataSet(
        title="RSNA intracranial haemorrhage",
        used_by="FedISM, FedISM+",
        classes=rsna.CLASSES,
        size="about 180 GB",
        source="Kaggle: rsna-intracranial-hemorrhage-detection (a competition's files)",
        terms="non-commercial, with attribution; rules of the competition, which you must accept there",
        places=("ICH_20", "ICH_20-three", "rsna-intracranial-hemorrhage-detection", "stage_2_train.csv"),
        read=rsna.read,
        whole=Count(25000),
    ),
    "isic2019": DataSet(
        title="ISIC 2019",
        used_by="FedISM, FedISM+",
        classes=isic.CLASSES,
        splits={"train": Count(20262), "test": Count(5069)},
        size="9.1 GB",
        source="challenge.isic-archive.com, data of 2019: training input, ground truth and metadata",
        terms="CC BY-NC 4.0",
        places=("ISIC2019_20", *isic.FOLDERS, isic.TRUTH),
        read=isic.read,
        whole=counted(4522, 12875, 3323, 867, 2624, 239, 253, 628),
    ),
}


def data_set(name: str) -> DataSet:
    """A line of the catalogue."""
    require_known("data set", SETS, name)
    return SETS[name]


def read(name: str, root: Path, split: str, **options: Any) -> Contents:
    """Read one split of a data set from the user's files.

    Parameters
    ----------
    name : a key of ``SETS``.
    root : the folder that holds the sets, or the set's own.
    split : a key of the entry's ``splits``.
    options : the reader's own, such as ``lists`` of the medical sets.

    Raises
    ------
    ValueError : there is no such set or split.
    DataError : files that are missing or not what they should be.
    """
    entry = data_set(name)
    require_known(f"split of {name}", entry.splits, split)
    root = root.expanduser()
    if not entry.needs:
        return entry.read(root, split, **options)
    require(root, {name: [split]})
    return entry.read([path for path, *_ in copies(name, root, [split])], **options)


def present(name: str, root: Path) -> bool:
    """Whether anything of a data set is there, complete or not."""
    return find(root, data_set(name).places) is not None or any(copies(name, root, data_set(name).splits))


def copies(name: str, root: Path, splits: Iterable[str]) -> tuple[tuple[Path, ...], ...]:
    """For each file of some splits all that can be taken for it, the one that is read first; none where it is missing."""
    return tuple(tuple(existing(root, places)) for places in _files(name, splits))


def _files(name: str, splits: Iterable[str]) -> Files:
    entry = data_set(name)
    return tuple(places for split in splits for places in entry.needs.get(split, (entry.places,)))


def require(root: Path, wanted: Mapping[str, Iterable[str]]) -> None:
    """Require the files of some splits of data sets, before any is read.

    Parameters
    ----------
    root : the user's folder.
    wanted : splits, by data set.
    """
    lost: dict[str, dict[tuple[str, ...], str]] = {}  # places of files, and the split that needs them
    for name, splits in wanted.items():
        missing = {places: split for split in splits for places in _files(name, [split]) if find(root, places) is None}
        lost |= {name: missing} if missing else {}
    if lost:
        alone, expected = sum(map(len, lost.values())) == 1, list[str]()
        for name, missing in lost.items():
            usual = [" or ".join(places if alone or not data_set(name).needs else places[:1]) for places in missing]
            expected.append(f"{name}: expected {some(usual)}")
        astray = [text for name in lost if (text := data_set(name).astray(root))]
        text = " ".join([f"{'; '.join(expected)} in {root}; {holds(root)}.", *astray, where_from([*lost], root)])
        words = [word for name, missing in lost.items() for word in (name, *missing.values())]
        raise DataError(text, MISSING, lost=words)


def held(name: str, address: Address, root: Path) -> tuple[Path, ...]:
    """The files for which an address need not be fetched, in any form and place that is read; none if one is missing."""
    fetched = {address.place, *address.unpack}
    paths = [find(root, places) for places in _files(name, data_set(name).splits) if fetched & {*places}]
    return () if None in paths else tuple(path for path in paths if path)


def genuine(name: str, path: Path) -> bool | None:
    """Whether a file of a data set is its publisher's, packed again or not; None where no checksum of it is known."""
    stem = plain(path.name.removesuffix(".gz"))
    named = [a for a in data_set(name).files if any(stem in plain(place) for place in (a.place, *a.unpack))]
    published = {md5 for address in named for md5 in (address.md5, *address.inside)}
    forms = {False, path.suffix == ".gz"}
    return any(digest(path, "md5", unpacked=form) in published for form in forms) if published else None


def installed(name: str) -> bool:
    """Whether a package of the system has put a data set into ``INSTALLED``, whole."""
    entry = data_set(name)
    needed = [split for split in entry.splits if split not in entry.optional]
    return entry.package is not None and all(copies(name, INSTALLED, needed))


# what is in the user's files, compared with what was published
Verdict = Literal["OK", "differs", "missing", "cannot be used", "nothing to compare with"]
WHOLE = "together"  # stands for all splits


@dataclass(frozen=True)
class SplitCheck:
    """One split of a data set as it is in the user's files.

    Parameters
    ----------
    split : its name, or ``WHOLE`` for all.
    classes : names of the classes.
    counts : images of each class; ``None`` if it could not be read.
    published : what it should be; ``None`` if nothing is known, or it depends on how the split is drawn.
    needed : whether a set without it is incomplete.
    present : whether any of it is there.
    problem : why it could not be read.
    parts : images of each client or site that the set ships with.
    genuine : whether all of its files are the publisher's; None where no checksums of them are known.
    unread : files that are there, too, and are not read, as the same is there in another form or place.
    """

    split: str
    classes: tuple[str, ...]
    counts: tuple[int, ...] | None
    published: Count | None
    needed: bool = True
    present: bool = True
    problem: str | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    genuine: bool | None = None
    unread: tuple[Path, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What to think of it."""
        if self.counts is None:
            return "cannot be used" if self.present else "missing"
        if self.published is None:
            return "nothing to compare with"
        same = sum(self.counts) == self.published.images and self.published.classes in (None, self.counts)
        return "OK" if same else "differs"

    @property
    def origin(self) -> str:
        """Whose files they are, as far as checksums tell: the end of a sentence, or nothing."""
        other = ", other files" + " with the same counts" * (self.verdict == "OK")
        return "" if self.genuine is None else ", the publisher's files" if self.genuine else other

    @property
    def good(self) -> bool:
        """Whether nothing is wrong with it; what no experiment needs may be missing, but not differ."""
        return self.verdict in ("OK", "nothing to compare with") or (self.verdict == "missing" and not self.needed)


def check(name: str, root: Path) -> tuple[SplitCheck, ...]:
    """Read every split of a data set and count its classes.

    Parameters
    ----------
    name : a key of ``SETS``.
    root : the user's folder.

    Raises
    ------
    ValueError : there is no such set.
    """
    findings = tuple(_findings(name, data_set(name), root))
    whole = data_set(name).whole
    if whole is not None and all(counts := [finding.counts for finding in findings]):
        together = tuple(map(sum, zip(*filter(None, counts), strict=True)))
        findings += (SplitCheck(WHOLE, findings[0].classes, together, whole),)
    return findings


def _findings(name: str, entry: DataSet, root: Path) -> Iterator[SplitCheck]:
    for split, published in entry.splits.items():
        needed = split not in entry.optional
        try:
            contents = read(name, root, split)
        except (DataError, OSError, ImportError) as error:
            present = getattr(error, "kind", "") != MISSING
            yield SplitCheck(split, entry.classes, None, published, needed, present, str(error))
            continue
        counts = torch.bincount(labels(contents.data), minlength=len(contents.classes)).tolist()
        parts = {part: len(rows) for part, rows in contents.parts.items()}
        files = copies(name, root, [split])
        marks = [genuine(name, path) for paths in files for path in paths[:1]]
        all_genuine = None if None in marks or not marks else all(marks)
        unread = tuple(path for paths in files for path in paths[1:])
        yield SplitCheck(
            split, contents.classes, tuple(counts), published, needed, parts=parts, genuine=all_genuine, unread=unread
        )
