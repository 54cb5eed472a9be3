"""A user's project: the files that Flower ships to the sites, and those that start them."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from equipoise.federation.method import Method, require_own_weights
from equipoise.flower.deploy import certificates, superlink
from equipoise.flower.settings import AppSettings
from equipoise.scenarios.shared import SharedSchema
from equipoise.system import files, seals
from equipoise.system.errors import RunError
from equipoise.system.suggestions import near, some
from equipoise.system.text import read_value

# in the order of reading
NAMES = (
    "README.md", "mytask.py", "myapp.py", "pyproject.toml", "compose.yaml", "site.service", "LICENSE", ".gitignore"
)  # fmt: skip
FILES = {name: f"{name.removeprefix('.')}.j2" for name in NAMES}
# of the digits
PROTOCOL: dict[str, Any] = {"method": "fedheal", "epochs": 2, "lr": 0.02, "momentum": 0.9, "weight_decay": 1e-5}
TASK, SCHEMA = "mytask.py", "schema.json"
LONGEST = 32  # characters of an app's name, says Flower


def init(
    directory: str | Path,
    sites: int | Sequence[str] = 3,
    schema: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a new project that works as it is: a federation of ``sites`` on the embedded digits, or on a table of each site.

    Parameters
    ----------
    directory : made if missing; its name becomes the app's: a letter, then letters, digits and hyphens, 32 at most.
    sites : how many (``site-0``, ...), or their names.
    schema : of the tables of all sites, a file of ``equipoise schema join``; it becomes part of the project.
    settings : of the run, by the names of :class:`equipoise.flower.settings.AppSettings`; None: those for the digits.

    Returns
    -------
    The files written.

    Raises
    ------
    ValueError : a name or number that cannot be used, or a file that is there already; nothing is written then.
    """
    base = Path(directory)
    name = base.resolve().name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name) or len(name) > LONGEST:
        raise ValueError(
            f"{name!r} cannot name a Flower app: it must begin with a letter and hold up to {LONGEST} letters, digits and hyphens. "
            "Choose another directory, for example my-federation."
        )
    names = certificates.site_names(sites)
    if len(names) < 2:
        raise ValueError(f"A federation needs at least two sites; found {len(names)}.")
    if existing := [file for file in FILES if (base / file).exists()]:
        raise ValueError(
            f"{base} holds {', '.join(existing)} already, and nothing is overwritten. Choose another directory."
        )
    chosen = AppSettings(**{**(PROTOCOL if settings is None else settings), "min_sites": len(names)}).table()
    if wrong := problems(chosen):
        raise ValueError(" ".join(wrong))
    about: dict[str, Any] = {"name": name, "schema": schema is not None, "sites": names, "year": datetime.now(UTC).year}
    about |= {"lowest": superlink.FLWR[0], "method": chosen["method"], "config": tomli_w.dumps(chosen).strip()}
    texts = {file: _rendered(template, about) for file, template in FILES.items()}
    if schema is not None:
        SharedSchema.load(schema)  # which states what is wrong with it
        texts |= {TASK: _rendered("mytable.py.j2", about), SCHEMA: Path(schema).read_text(encoding="utf-8")}
    return [files.write_atomically(base / file, text) for file, text in texts.items()]


def settings(directory: str | Path) -> dict[str, Any]:
    """The run configuration of a project, as its apps receive it: tables in its ``pyproject.toml`` become keys with points.

    Raises
    ------
    RunError : there is no Flower app, or a value that none can have.
    """
    from equipoise.flower.internals import flatten_dict  # Flower may be missing where a project is only written

    path = Path(directory) / "pyproject.toml"
    try:
        return flatten_dict(seals.open_toml(files.read_regular(path).decode())["tool"]["flwr"]["app"].get("config"))
    except (OSError, KeyError, ValueError) as error:
        flaw = "has no [tool.flwr.app]" if isinstance(error, KeyError) else f"cannot be read ({error})"
        raise RunError(
            f"{directory} is not a Flower app: {path} {flaw}. Make one: equipoise flower init DIR."
        ) from None


def problems(config: Mapping[str, Any], present: Sequence[str] = ()) -> list[str]:
    """Why a run could not begin with a configuration, one sentence each; empty if it can.

    ``present`` are the names of all sites there will be, if that is known.
    """
    try:
        run = AppSettings.of(config)
        method = Method.of(run.method)
        method.check(run.solver)
        if run.secure:
            require_own_weights(method)
    except (ValueError, TypeError) as error:
        return [str(error)]
    faults = []
    if run.names and len(run.names) < run.min_sites:
        faults.append(f"sites names {len(run.names)} of them, and min-sites is {run.min_sites}.")
    if present and (strangers := [name for name in run.names if name not in present]):
        faults.append(f"sites names {', '.join(strangers)}; there will be {some(present)} only.")
    if present and run.min_sites > len(present):
        faults.append(f"min-sites is {run.min_sites}, and there will be {len(present)} sites only: {some(present)}.")
    return faults


def overrides(texts: Sequence[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Read ``rounds=40 method="fedavg"`` as changes of the run configuration ``config``; text needs no quotes where it has no blanks.

    Raises
    ------
    ValueError : a key that is not there, or no value, in the user's own words.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        pairs = re.findall(r"([^\s=]+)=('[^']*'|\"[^\"]*\"|\S+)", text)
        if not pairs or re.sub(r"\s", "", "".join(f"{k}={v}" for k, v in pairs)) != re.sub(r"\s", "", text):
            raise ValueError(f"--config {text}: expected NAME=VALUE with blanks between them, for example 'rounds=40'.")
        for key, value in pairs:
            if key not in config:
                raise ValueError(
                    f"--config {key}: the project's pyproject.toml has no such key in [tool.flwr.app.config].{near(key, config)}"
                )
            number, word = read_value(value), value[1:-1] if value[0] in ("'", '"') else value
            text_wanted = isinstance(config[key], str) or not isinstance(number, bool | int | float)
            changes[key] = word if text_wanted else number
    return changes


def _rendered(template: str, about: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    text = (Path(__file__).parent / "templates" / template).read_text(encoding="utf-8")
    made = Environment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return made.from_string(text).render(about)
