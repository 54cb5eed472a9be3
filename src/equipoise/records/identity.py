"""What a run is, as far as it was recorded, in what two runs differ, and the words for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from equipoise.records.meta import Content
from equipoise.system.suggestions import shorten

KINDS: Final = ("settings", "code", "data", "first_values", "machine")  # in the order in which they are named
SETTINGS, CODE, DATA, FIRST_VALUES = KINDS[:4]
PARTS: Final = {  # of what is hashed of data, in words
    "inputs": "the training data of the clients",
    "tests": "the test sets",
    "groups": "the groups of the clients",
    "validation": "the validation data",
    "attributes": "the sensitive attributes",
    "weights": "the weights of the first model",
    "labels": "the labels of the clients",
}


class Difference(NamedTuple):
    """A name under which two runs have different values of a kind; None: no value."""

    kind: str
    name: str
    was: Any
    now: Any

    def __str__(self) -> str:
        if self.kind == CODE:
            return f"{self.name} {'has changed since' if self.now else 'is gone'}"
        if self.kind in (DATA, FIRST_VALUES):
            return PARTS.get(self.name, self.name)
        none = "not given" if self.kind == SETTINGS else "missing"
        was, now = (none if value is None else shorten(str(value)) for value in (self.was, self.now))
        return f"{self.name} is {was} there and {now} here"


@dataclass(frozen=True)
class Identity:
    """What a run is.

    Parameters
    ----------
    settings : by name, as they were given.
    code : hashes of the user's code, by file or module.
    data : hashes of what is trained and tested on, such as :data:`PARTS`.
    first_values : hashes of what training starts from.
    machine : the versions of packages, and the processor.
    """

    settings: Content = field(default_factory=dict)
    code: Content = field(default_factory=dict)
    data: Content = field(default_factory=dict)
    first_values: Content = field(default_factory=dict)
    machine: Content = field(default_factory=dict)

    def differences(self, now: "Identity", usual: Mapping[str, Any] | None = None) -> list[Difference]:
        """In what this run, which may be of an earlier version, differs from what is given now.

        A setting that it lacks had its ``usual`` value. Hashes and versions that it lacks were not recorded, and are not compared.
        """
        changes = list[Difference]()
        for kind in KINDS:
            then, its = getattr(self, kind), getattr(now, kind)
            names, lacking = ({**its, **then}, usual or {}) if kind == SETTINGS else (then, {})
            pairs = ((name, then.get(name, lacking.get(name)), its.get(name)) for name in names)
            changes += [Difference(kind, *pair) for pair in pairs if pair[1] != pair[2]]
        return changes


def stated(differences: Sequence[Difference]) -> str:
    """In words, what is other in the first kind of some differences: ``other settings: lr is 0.1 there and 0.2 here``."""
    kind = differences[0].kind
    changes = [change for change in differences if change.kind == kind]
    # labels are a part of the training data
    *most, last = [str(change) for change in changes if change.name != "labels" or len(changes) == 1]
    before = f"{', '.join(most)}{' and ' if kind == DATA else ', '}" if most else ""
    return f"other {kind.replace('_', ' ')}: {before}{last}"
