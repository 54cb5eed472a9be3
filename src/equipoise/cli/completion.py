"""The catalogue that ships with the package, and what a shell offers from it for a value that the user has begun to type."""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalogue.json")  # written by tools/describe.py


Offers = list[tuple[str, str]]  # a value and what it is


@cache
def catalogue() -> dict[str, Any]:
    """The description of methods, scenarios and networks, as ``tools/describe.py`` wrote it, read without importing them."""
    described: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return described


def methods(incomplete: str) -> Offers:
    """Names of methods; after a plus sign, the next part of a sum."""
    names = {name: entry["summary"] for name, entry in catalogue()["methods"].items()}
    whole = [(name, summary) for name, summary in names.items() if name.startswith(incomplete)]
    begun, plus, word = incomplete.rpartition("+")
    used = begun.split("+")
    sums = [(f"{begun}+{n}", text) for n, text in names.items() if begun and n.startswith(word) and n not in used]
    return whole + sums * bool(plus)


def _listed(kind: str, incomplete: str) -> Offers:
    return [(name, text) for name, text in catalogue()[kind].items() if name.startswith(incomplete)]


def scenarios(incomplete: str) -> Offers:
    """Names of scenarios."""
    return _listed("scenarios", incomplete)


def networks(incomplete: str) -> Offers:
    """Names of networks."""
    return _listed("networks", incomplete)


def data_sets(incomplete: str) -> Offers:
    """Names of the papers' data sets."""
    return _listed("data_sets", incomplete)


def experiments(incomplete: str) -> list[str]:
    """Experiments that ``equipoise reproduce`` knows."""
    root = Path(__file__).parents[1] / "runs" / "experiments"
    names = (path.relative_to(root).with_suffix("").as_posix() for path in sorted(root.glob("*/*.toml")))
    return [name for name in names if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Directories of runs and of comparisons, at first those in ``runs``; others end in a slash, to complete further."""
    folder, slash, begun = (incomplete or "runs/").rpartition("/")
    try:
        inside = sorted(path.name for path in Path(folder + slash).iterdir() if path.is_dir())
    except OSError:
        return []
    names = [n for n in inside if n.startswith(begun) and (begun.startswith(".") or not n.startswith("."))]
    paths, kept = [folder + slash + name for name in names], ("config.toml", "manifest.json", "comparison.json")
    return [path if any(Path(path, file).exists() for file in kept) else f"{path}/" for path in paths]
