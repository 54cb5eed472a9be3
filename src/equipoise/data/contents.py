"""What a reader of files found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise.data.memory_mapped import Data, labels
from equipoise.system.errors import InputError


class DataError(InputError):
    """A file or folder that is not what it should be; says which, what was expected and found, and what to do."""


@dataclass(frozen=True)
class Contents:
    """Samples as they lie in the files of a data set, and what else the files say.

    Parameters
    ----------
    data : the samples.
    classes : names of the classes; label k is the k-th.
    names : file name or id of every sample, if it has one.
    parts : natural clients or published splits: the rows of each.
    about : JSON-able facts for the record of a run: which files were read, how large they are.
    """

    data: Data
    classes: tuple[str, ...]
    names: tuple[str, ...] | None = None
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(labels(self.data))
