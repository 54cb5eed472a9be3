"""Compare what is in the user's files with what was published."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from equipoise.data.contents import DataError
from equipoise.data.locations import MISSING
from equipoise.data.memory_mapped import labels
from equipoise.data.sets import catalog
from equipoise.data.sets.catalog import Count

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
    name : a key of ``catalog.SETS``.
    root : the user's folder.

    Raises
    ------
    ValueError : there is no such set.
    """
    findings = tuple(_findings(name, catalog.data_set(name), root))
    whole = catalog.data_set(name).whole
    if whole is not None and all(counts := [finding.counts for finding in findings]):
        together = tuple(map(sum, zip(*filter(None, counts), strict=True)))
        findings += (SplitCheck(WHOLE, findings[0].classes, together, whole),)
    return findings


def _findings(name: str, entry: catalog.DataSet, root: Path) -> Iterator[SplitCheck]:
    for split, published in entry.splits.items():
        needed = split not in entry.optional
        try:
            contents = catalog.read(name, root, split)
        except (DataError, OSError, ImportError) as error:
            present = getattr(error, "kind", "") != MISSING
            yield SplitCheck(split, entry.classes, None, published, needed, present, str(error))
            continue
        counts = torch.bincount(labels(contents.data), minlength=len(contents.classes)).tolist()
        parts = {part: len(rows) for part, rows in contents.parts.items()}
        files = catalog.copies(name, root, [split])
        marks = [catalog.genuine(name, path) for of_file in files for path in of_file[:1]]
        genuine = None if None in marks or not marks else all(marks)
        unread = tuple(path for of_file in files for path in of_file[1:])
        yield SplitCheck(
            split, contents.classes, tuple(counts), published, needed, parts=parts, genuine=genuine, unread=unread
        )
