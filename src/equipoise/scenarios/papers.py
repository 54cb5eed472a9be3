"""What the scenarios that read files have in common: normalisation, the record of what was read, and a short memory."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Final

from equipoise.data.contents import Found
from equipoise.data.memory_mapped import labels, shape
from equipoise.scenarios.scenario import Scenario

MEAN: Final = (0.485, 0.456, 0.406)  # the usual ImageNet numbers, per channel
STD: Final = (0.229, 0.224, 0.225)


def manifest(
    name: str,
    seed: int,
    version: int,
    options: Mapping[str, Any],
    found: Mapping[str, Found],
    names: Sequence[str],
    parts: Sequence[Sequence[int]],
    validation: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Record of a scenario that was read from files.

    ``sha256`` is of the labels, the names and the shape of all samples, and of what the reader says about its files. The
    pixels are not in it: there may be gigabytes of them, and files of one size and name rarely differ.

    Parameters
    ----------
    name, seed, version, options : what the scenario was made by; raise ``version`` whenever a part of it changes.
    found : what was read, by name.
    names, parts : the clients, and the positions of each one's samples in the training part of what was read.
    validation : positions of the server's samples, if it has any.
    """
    total = hashlib.sha256()
    for what in sorted(found):
        one = found[what]
        facts = {key: value for key, value in one.about.items() if key != "images"}  # a cached file, named by times
        about = [what, list(shape(one.data)), list(one.classes), one.names, facts]
        total.update(json.dumps(about, sort_keys=True, default=str).encode())
        total.update(labels(one.data).numpy().tobytes())
    held = {} if validation is None else {"validation": list(validation)}
    return {
        "scenario": name,
        "seed": seed,
        "recipe": {"version": version, **options},
        "read": {what: {"samples": len(one), **one.about} for what, one in found.items()},
        "sha256": total.hexdigest(),
        "clients": {who: list(part) for who, part in zip(names, parts, strict=True)},
        **held,
    }


def remembered(build: Callable[..., Scenario]) -> Callable[..., Scenario]:
    """The same function, which gives the last scenarios again instead of reading their files anew.

    A run asks for its scenario several times. Files that change while a program runs are not seen before the folder's own
    time of change says so.
    """

    @wraps(build)
    def recall(seed: int, data: Path, **options: Any) -> Scenario:
        changed = data.stat().st_mtime_ns if data.exists() else 0
        given = tuple(sorted((name, _frozen(value)) for name, value in options.items()))
        return _made(build, seed, data.absolute(), changed, given)

    return recall


@lru_cache(maxsize=2)
def _made(
    build: Callable[..., Scenario], seed: int, data: Path, changed: int, given: tuple[tuple[str, Any], ...]
) -> Scenario:
    return build(seed, data, **dict(given))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
