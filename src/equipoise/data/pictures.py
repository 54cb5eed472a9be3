"""The images of a user's data, of any depth: one range of grey levels for the whole data set makes bytes of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.data.contents import DataError, check_pixels, opened, optional_package, reason
from equipoise.data.decoding import ahead, array, bar, colours, dated, finite, kept, levels, resized
from equipoise.system import hashes
from equipoise.system.files import ANYWHERE, open_regular
from equipoise.system.grouping import grouped

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile
    from pydicom import Dataset

VERSION = 2  # of what an image becomes; another one makes every kept file anew
SHOWN = 10  # images that an error lists
NAMED = 3  # images that a note names
FAINT = 16  # grey levels of 256: an image that uses no more is named
LOOKS = 1 << 23  # bytes of which the grey levels in use are counted
SAMPLES, LEAST = 1 << 20, 16  # pixels of all deep images, and of each at least, from which that is found
TAIL = 0.001  # share of pixels at either end that does not count there
ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")  # modes of Pillow

Source = Path | IO[bytes]
Range = tuple[float, float]
Done = TypeVar("Done")
Kept = TypeVar("Kept", "Survey", "Faint")
MAGIC = slice(128, 132)  # bytes that say DICM


@dataclass(frozen=True)
class Stored:
    """What an image file holds, turned as the camera notes.

    Parameters
    ----------
    pixels : bytes, or other numbers, whose range is that of the data set, [H, W] or [H, W, C]; None of bytes that
        were only looked for.
    padding : pixels [H, W] that mean nothing and are black; None: none.
    inverted : the least number is white.
    remark : what of it is not used.
    """

    pixels: NDArray[Any] | None
    padding: NDArray[np.bool_] | None = None
    inverted: bool = False
    remark: str = ""

    @property
    def deep(self) -> bool:
        """Whether its numbers are no bytes."""
        return self.pixels is not None and self.pixels.dtype != np.uint8

    def as_bytes(self, between: Range | None) -> NDArray[np.uint8]:
        """Grey levels or colours as bytes: 0 up to the first number of the range, 255 from the second one on."""
        assert self.pixels is not None
        if between is None:
            return self.pixels
        made = levels(self.pixels, *between)
        if self.inverted:
            made = 255 - made
        if self.padding is not None:
            made[self.padding] = 0
        return made


def stored(source: Source, *, skim: bool = False) -> Stored:
    """Read an image file: any of Pillow's usual formats, ``.npy``, or DICOM by its content.

    Parameters
    ----------
    source : the file, or its content.
    skim : leave the pixels out where they are bytes.

    Raises
    ------
    OSError, ValueError : damaged, too large, of several pages or frames, or of colours with 16 bits; others of the packages.
    """
    if isinstance(source, Path) and source.suffix.lower() == ".npy":
        return _array(source, skim)
    if isinstance(source, Path):  # opened here: in a memory map Pillow would turn a TIFF file wrongly
        with open_regular(source, ANYWHERE) as file:
            return stored(file, skim=skim)
    if is_dicom(source):
        numbers, padding, inverted = dicom_pixels(source)
        if numbers.dtype == np.uint8:
            numbers = 255 - numbers if inverted else numbers
            numbers = numbers if padding is None else np.where(padding, 0, numbers).astype(np.uint8)
            return Stored(None if skim else numbers)
        return Stored(finite(numbers), padding, inverted)
    with opened(source) as image:
        _check_single(image)
        tags = getattr(image, "tag_v2", {})
        kind, sign = tags.get(262), tags.get(339, (1,))[0]  # of TIFF: 0 is white; 1 unsigned, 2 signed, 3 floating
        if image.mode[:1] not in ("I", "F") and not (image.mode == "L" and sign == 2):
            transparent = image.mode in ALPHA or "transparency" in image.info
            remark = "CMYK" if image.mode == "CMYK" else "alpha" * transparent
            if skim:
                return Stored(None, remark=remark)
            _turn(image)
            return Stored(colours(image), remark=remark)
        codec, _, _, coded = image.tile[0]
        _turn(image)
        numbers = np.asarray(image)
        if image.format == "PPM" and codec != "raw":  # Pillow stretched them to 16 bits
            numbers = np.rint(numbers * (float(coded[-1]) / 65535)).astype(np.int32)  # type: ignore[index]
        if (bits := tags.get(258, (0,))[0]) in (8, 32) and image.mode != "F":
            numbers = numbers.view(f"{'iu'[sign == 1]}{bits // 8}")  # Pillow has no type for these
        return Stored(finite(numbers), inverted=kind == 0)


def _check_single(image: ImageFile) -> None:
    """Require one page, and no 16 bits of colour, of which Pillow would drop 8 without a word."""
    if (pages := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":  # a photo with its previews
        raise ValueError(f"it has {pages} pages or frames; save the one that counts in a file of its own")
    if len(image.getbands()) > 1 and ";16" in str([coded for *_, coded in image.tile]):
        raise ValueError("it has 16 bits in each of several channels; save it with 8, or as grey with 16")


def _turn(image: ImageFile) -> None:
    """Turn an image as the camera notes; Pillow turns TIFF files as it opens them."""
    from PIL import ImageOps

    if image.format != "TIFF":
        image.load()  # whose errors count
        with suppress(Exception):  # of a damaged note, which is no part of the image
            ImageOps.exif_transpose(image, in_place=True)


def _array(path: Path, skim: bool) -> Stored:
    open_regular(path, ANYWHERE).close()  # which waits for no pipe
    numbers = array(path)
    if numbers.dtype.kind not in "buif" or numbers.ndim not in (2, 3) or 0 in numbers.shape:
        raise ValueError(f"expected numbers [H, W] or [H, W, C], found {numbers.dtype} {list(numbers.shape)}")
    if numbers.ndim == 3 and numbers.shape[2] not in (1, 3):
        raise ValueError(f"expected 1 or 3 channels, found {list(numbers.shape)}")
    return Stored(None if skim and numbers.dtype == np.uint8 else finite(numbers))


@dataclass(frozen=True)
class Survey:
    """What was found in all images of a data set.

    Parameters
    ----------
    images, deep : how many there are, and how many have other numbers than bytes.
    low, high : the least and the largest of these numbers.
    inner : the numbers between which nearly all of a sample of the pixels are.
    outside : share of the pixels that are outside of the declared range.
    remarks : how many images have what is not used.
    """

    images: int
    deep: int
    low: float = math.inf
    high: float = -math.inf
    inner: Sequence[float] = ()
    outside: float = 0.0
    remarks: Mapping[str, int] = field(default_factory=dict)

    @property
    def stretched(self) -> bool:
        """Whether few pixels make the range so wide that the others are almost of one grey level."""
        return self.deep > 0 and FAINT * (self.inner[1] - self.inner[0]) < self.high - self.low


@dataclass(frozen=True)
class Pictures:
    """The images of a data set. Called with a side in pixels it gives the file of all of them, decoded, for ``Mapped``.

    Parameters
    ----------
    what : what the images are, for errors, and the name of the file of the cache.
    names : of each image, for errors.
    fetch : gives the path or the content of image k.
    dates : gives what changes when any of them does.
    declared : the range of grey levels that the user gives: what is black and what is white; None: bytes as they are, and of
        other numbers the least and the largest of the whole data set.
    """

    what: str
    names: Sequence[str]
    fetch: Callable[[int], Source]
    dates: Callable[[], str]
    declared: Range | None = None

    @cached_property
    def recipe(self) -> str:
        """What changed with any image until this was asked for first."""
        return self.dates()

    @property
    def current(self) -> bool:
        """Whether no image has changed since."""
        return self.recipe == self.dates()

    @cached_property
    def survey(self) -> Survey:
        """A look at every image: the header of one with bytes, all pixels of others; kept in the cache."""
        return _remembered(Survey, self._survey, self.recipe, self.declared)

    @property
    def range(self) -> Range | None:
        """The grey levels that become black and white; None where bytes stay as they are."""
        if self.declared is not None:
            return self.declared
        made = self.survey
        if 0 < made.deep < made.images:
            deep = f"{made.deep} of {made.images} images have grey levels of more than 8 bits, from {made.low:g} to {made.high:g}"
            say = "say what is black and what is white in each of them, for example --set range=0,255"
            fault = f"{self.what}: {deep}, and the others have bytes, so no range is that of all"
            raise DataError(f"{fault}. Convert the images to one depth; or {say}.")
        if made.deep and made.low >= made.high:
            raise DataError(
                f"{self.what}: all pixels of all images are {'padding' if made.low > made.high else f'{made.low:g}'}. There is nothing to learn from them."
            )
        return (made.low, made.high) if made.deep else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the range, and about what is not used."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        survey, (low, high) = self.survey, map(plain, self.range or (0, 255))
        if self.declared is not None:
            share = f"{100 * survey.outside:.3g}% of all pixels"
            yield f"Grey levels from {low} to {high} become 0 to 255; {share} are outside of that and become black or white."
        elif survey.deep:
            least, most = (plain(float(f"{edge:.4g}")) for edge in survey.inner)
            same = f" For the same with other images: --set range={low},{high}." * (not survey.stretched)
            yield f"Grey levels from {low} to {high}, the least and the largest of all {survey.images} images, become 0 to 255.{same}"
            if survey.stretched:
                what = f"nearly all pixels are from {least} to {most}, so the images become almost of one colour"
                yield f"But {what}. If that is what they show: --set range={least},{most}."
        for remark, count in survey.remarks.items():
            yield f"{'1 image has' if count == 1 else f'{count} images have'} {UNUSED[remark]}."

    def __call__(self, side: int) -> Path:
        """The file of all images, uint8 [n, 3, side, side], made unless the cache has it.

        Raises
        ------
        DataError : naming images that cannot be decoded; or the cache cannot be written.
        """
        between = self.range
        stem = f"images-{_hash('images', self.recipe, between, side)}"

        def images() -> Iterator[NDArray[np.uint8]]:
            for made in self._each(lambda source: resized(stored(source).as_bytes(between), (side, side))):
                yield np.zeros((3, side, side), np.uint8) if made is None else made

        return kept(stem, (len(self.names), 3, side, side), images, what=self.what)

    def doubts(self, file: Path) -> list[str]:
        """Sentences about images that show little, from the file of all of them."""
        little = _remembered(Faint, lambda: faint(np.load(file, mmap_mode="r", allow_pickle=False)), file.name)
        return [*doubtful(little, self.names, self.range)]

    def as_trained(self, levels: Range | None) -> tuple[Pictures, list[str]]:
        """The same with the grey levels of the images of a training, None for bytes as they are; and notes on how they differ.

        Raises
        ------
        DataError : images have bytes and those of the training had more, or the reverse.
        """
        made, (low, high) = replace(self, declared=levels), levels or (0, 255)
        survey, byte_levels = made.survey, levels is None or 0 <= low < high <= 255
        if other := survey.deep if levels is None else 0 if byte_levels else survey.images - survey.deep:
            had = "bytes" if levels is None else f"more, from {plain(low)} to {plain(high)}"
            have = "more than 8 bits" if levels is None else "bytes"
            fault = f"{other:,} of {survey.images:,} images have {have}, and those of the training had {had}"
            todo = "Give images as they were there, before any program stretched their grey levels."
            raise DataError(f"{self.what}: {fault}. {todo}")
        least, most = survey.inner or (low, high)
        if survey.outside < 0.5 and FAINT * (most - least) >= high - low:
            return made, []
        doubt = f"{plain(low)} is black and {plain(high)} white, as in the training, so the images become almost of one colour"
        return made, [f"{self.what}: {doubt}. Are their grey levels in the same unit?"]

    def _survey(self) -> Survey:
        look_at = partial(_looked, declared=self.declared, take=max(LEAST, SAMPLES // max(1, len(self.names))))
        every = bar(f"looking at {self.what}, once", len(self.names), self._each(look_at))
        looks = [look for look in every if look is not None]
        numbers = [look for look in looks if look.pixels]
        deep = [look.sample for look in numbers if look.deep and look.sample is not None]
        inner = np.quantile(np.concatenate(deep), (TAIL, 1 - TAIL), method="nearest").tolist() if deep else ()
        return Survey(
            images=len(looks),
            deep=sum(look.deep for look in looks),
            low=min((look.low for look in numbers), default=math.inf),
            high=max((look.high for look in numbers), default=-math.inf),
            inner=inner,
            outside=sum(look.outside for look in looks) / max(1, sum(look.pixels for look in looks)),
            remarks=dict(Counter(look.remark for look in looks if look.remark)),
        )

    def _each(self, make: Callable[[Source], Done]) -> Iterator[Done | None]:
        """What ``make`` gives for every image in turn, None where it cannot.

        Raises
        ------
        DataError : after the last, naming those where it cannot, and why.
        """
        broken: dict[int, str] = {}

        def fetched(k: int) -> Source | Exception:  # by one thread, whatever it is read from
            try:
                return self.fetch(k)
            except Exception as error:
                return error

        def attempt(source: Source | Exception) -> Done | str:
            if isinstance(source, Exception):
                return reason(source)
            try:
                return make(source)
            except DataError:  # a package is missing
                raise
            except Exception as error:  # Pillow, NumPy and pydicom raise many kinds for a damaged file
                return reason(error)

        for k, made in enumerate(ahead(attempt, map(fetched, range(len(self.names))))):
            if isinstance(made, str):
                broken[k] = made
            yield None if isinstance(made, str) else made
        if len(broken) == 1:
            [(k, fault)] = broken.items()
            raise DataError(
                f"{self.what}, {self.names[k]}: this image cannot be decoded ({fault}). Replace or remove it."
            )
        if broken:
            alike = grouped((fault, self.names[k]) for k, fault in [*broken.items()][:SHOWN])
            faults = "; ".join(f"{', '.join(names)}: {fault}" for fault, names in alike.items())
            more = f"; and {len(broken) - SHOWN:,} more" * (len(broken) > SHOWN)
            raise DataError(
                f"{self.what}: {len(broken):,} of {len(self.names):,} images cannot be decoded. {faults}{more}. Replace them by good copies, or remove them."
            )


def _remembered(kind: type[Kept], make: Callable[[], Kept], *about: Any) -> Kept:
    """What ``make`` gives, kept in the cache; ``about`` names all that it depends on."""
    key = _hash(*kind.__annotations__, *about)
    return kind(**json.loads(hashes.remembered(key, key, lambda: json.dumps(asdict(make())))))


UNUSED = {
    "alpha": "an alpha channel, which is left out: colours count as they are stored, also where they are transparent",
    "CMYK": "colours for print (CMYK), which become RGB without a colour profile",
}


def from_files(files: Sequence[Path], what: str, names: Sequence[str]) -> Pictures:
    """The images of files; where their folder is does not matter for the file of the cache."""
    return Pictures(what, names, files.__getitem__, partial(dated, files))


@dataclass(frozen=True)
class _Look:
    deep: bool
    remark: str
    low: float = math.inf
    high: float = -math.inf
    outside: int = 0  # pixels
    pixels: int = 0
    sample: NDArray[np.float64] | None = field(default=None, compare=False)


def _looked(source: Source, declared: Range | None, take: int) -> _Look:
    image = stored(source, skim=declared is None)
    if image.pixels is None:
        return _Look(False, image.remark)
    counted = image.pixels if image.padding is None else image.pixels[~image.padding]
    outside = 0 if declared is None else int(((counted < declared[0]) | (counted > declared[1])).sum())
    if not counted.size:  # all of it is padding
        return _Look(image.deep, image.remark)
    some = counted.reshape(-1)[:: 1 + counted.size // take].astype(np.float64)
    return _Look(image.deep, image.remark, float(counted.min()), float(counted.max()), outside, counted.size, some)


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps([VERSION, *parts]).encode()).hexdigest()[:32]


def plain(number: float) -> float:
    """A number without the fraction that it does not have."""
    return int(number) if float(number).is_integer() else number


@dataclass(frozen=True)
class Faint:
    """Images that show little: how many have one colour, how many others few grey levels, and the first few rows of both.

    ``low`` and ``high`` are the levels between which nearly all pixels of all images are.
    """

    n_flat: int
    n_few: int
    first: Sequence[Sequence[int]]
    low: int
    high: int


def faint(images: NDArray[np.uint8]) -> Faint:
    """Look at the grey levels of images [n, ...], as the network gets them."""
    spread = np.empty(len(images), np.int64)
    counts = np.zeros(256, np.int64)
    step = max(1, images.size // LOOKS)
    for begin in range(0, len(images), 256):
        part = images[begin : begin + 256].reshape(len(images[begin : begin + 256]), -1)
        spread[begin : begin + 256] = part.max(1).astype(int) - part.min(1)
        counts += np.bincount(part.reshape(-1)[::step], minlength=256)
    flat, few = (np.flatnonzero(rows).tolist() for rows in (spread == 0, (spread > 0) & (spread < FAINT)))
    share = counts.cumsum() / max(1, counts.sum())
    edges = (int((share <= TAIL).sum()), int((share < 1 - TAIL).sum()))
    return Faint(len(flat), len(few), (flat[:NAMED], few[:NAMED]), *edges)


def doubtful(faint: Faint, names: Sequence[str], between: Range | None = None) -> Iterator[str]:
    """Sentences about images that are all black, all white or nearly so."""
    faults = "one colour everywhere", f"fewer than {FAINT} of 256 grey levels"
    for n, rows, have in zip((faint.n_flat, faint.n_few), faint.first, faults, strict=True):
        if n:
            more = f" and {n - len(rows):,} more" if n > len(rows) else ""
            named = ", ".join(names[k] for k in rows)
            yield f"{n:,} of {len(names):,} images {'has' if n == 1 else 'have'} {have}: {named}{more}."
    if faint.high - faint.low < FAINT and faint.n_flat < len(names):
        scale, start = (1.0, 0.0) if between is None else ((between[1] - between[0]) / 255, between[0])
        low, high = (f"{start + scale * edge:.4g}" for edge in (faint.low, faint.high + 1))
        few = f"within {faint.high - faint.low + 1} of 256 grey levels, so the images are almost of one colour"
        todo = f"If black and white are elsewhere, say where: --set range={low},{high}."
        yield f"Nearly all pixels of all images are {few}. {todo}"


def is_dicom(source: IO[bytes]) -> bool:
    """Whether an open file is one of DICOM, by its content."""
    begin = source.read(MAGIC.stop)
    source.seek(0)
    return begin[MAGIC] == b"DICM"


def dicom_pixels(source: IO[bytes]) -> tuple[NDArray[Any], NDArray[np.bool_] | None, bool]:
    """Numbers [H, W] in the unit of the file, or colours [H, W, 3]; which of them are padding; and whether the least is white.

    Slope and intercept (or the modality's table) are applied, and no window. Fewer than 8 bits are spread over 0..255, as in a PNG.
    """
    pydicom = optional_package("pydicom", "DICOM files", "'equipoise[medical]'")
    slice_: Dataset = pydicom.dcmread(source)
    if (frames := int(slice_.get("NumberOfFrames") or 1)) > 1:
        raise ValueError(f"it has {frames} frames; save the one that counts in a file of its own")
    check_pixels(int(slice_.Rows), int(slice_.Columns))
    kind = str(slice_.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        raise ValueError("its colours are in a palette; save it as RGB")
    from pydicom import pixels as decoding

    numbers: NDArray[Any] = decoding.pixel_array(slice_)  # type: ignore[attr-defined]
    padding: NDArray[np.bool_] | None = None
    if (first := slice_.get("PixelPaddingValue")) is not None and numbers.ndim == 2:
        low, high = sorted((int(first), int(slice_.get("PixelPaddingRangeLimit", first))))
        padding = (numbers >= low) & (numbers <= high)
    identity = float(slice_.get("RescaleSlope") or 1) == 1 and not float(slice_.get("RescaleIntercept") or 0)
    identity = identity and "ModalityLUTSequence" not in slice_
    if numbers.ndim == 2 and not identity:  # which would make doubles of bytes
        # in 64 bits, as pydicom looks up a table in the type of the pixels, where a difference may overflow
        numbers = decoding.apply_modality_lut(numbers.astype(np.int64), slice_)  # type: ignore[attr-defined]
    elif numbers.dtype == np.uint8 and (white := 2 ** int(slice_.BitsStored) - 1) < 255:
        if numbers.max() > white:
            raise ValueError(f"it declares {slice_.BitsStored} bits, and has the number {numbers.max()}")
        numbers = (numbers * (255 / white)).round().astype(np.uint8)
    return numbers, padding, kind == "MONOCHROME1"
