"""Random tables read by Equipoise and by the meaning that was drawn: equal numbers, or a sentence that names the column."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise.cli.init import read as configuration
from equipoise.scenarios.shared import join, site_sums
from random_tables import (
    WRITERS,
    Column,
    Table,
    Written,
    by_hand,
    coded_numbers,
    declared,
    draw,
    frame_of,
    kinds,
    writers_of,
)
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

Inputs = Mapping[str, np.ndarray[Any, Any]]  # of a column, by what follows its name
Learnt = tuple[float, ...]  # centre and scale
TIMES = ("date: %H:%M", "date: %H:%M:%S")  # of a day, which nothing dates
CLOSE = 2e-5  # of inputs, which are float32
NOTED = (
    "number: stand-in",
    "date: stand-in",
    "category: gaps",
)  # of which a note that names the column is enough, if nothing is declared
BY_OTHERS = "by the sign before fractions in other columns"  # a note states that, and what else the column may be
OF_TABLES = (
    "decimal",
    "thousands",
    "encoding",
    "sep",
    "separator",
)  # options that a refusal may name instead of a column


@dataclass
class Found:
    """What happened to tables: differences without a word, and how often columns of a tag were read, left out or refused."""

    silent: list[str] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, table: Table, how: str, tag: str, what: str) -> None:
        """Note a difference."""
        self.silent.append(f"seed {table.seed} ({how}) {tag}: {what}")


def takes_excel(folder: Path) -> bool:
    """Whether Equipoise reads sheets."""
    if find_spec("openpyxl") is None:
        return False
    path = folder / "empty.xlsx"
    path.write_bytes(b"")
    try:
        eq.scenario("own", data=str(path))
    except ValueError as error:
        return "expected a folder, or a file that ends in" not in str(error)
    return True


def named(text: str, columns: Iterable[Column]) -> list[str]:
    """The columns that a sentence names."""
    return [column.name for column in columns if column.name in text]


def answerable(text: str, table: Table) -> bool:
    """Whether a refusal names a column with a purpose, one of its words, or an option of the table."""
    words = {repr(str(word)) for column in table.roles.values() for word in column.words}
    return bool(named(text, table.roles.values())) or any(name in text for name in (*OF_TABLES, *words))


def read(table: Table, writer: str, folder: Path, found: Found) -> tuple[Table, Written, Any] | None:
    """The table without the columns that are refused, as a file, and what Equipoise makes of it; None if it is refused for another reason."""
    while table.columns:
        written = WRITERS[writer](table, folder, np.random.default_rng([table.seed, 2]))
        try:
            return table, written, eq.scenario("own", 0, data=str(written.path), **{**table.options, **written.options})
        except ValueError as error:
            text = str(error)
        except Exception as error:  # no sentence, which a user cannot act on
            found.add(table, written.how, "crash", f"{type(error).__name__}: {error}")
            return None
        refused = {*named(text, table.columns)}
        found.counts.update((column.tag, "refused") for column in table.columns if column.name in refused)
        if not refused:
            roles = named(text, table.roles.values())
            found.counts.update((column.tag, "refused") for column in table.roles.values() if column.name in roles)
            if not answerable(text, table):
                found.add(table, written.how, "refusal", f"names no column: {text[:300]}")
            return None
        table = table.without(refused)
    return None


def assembled(table: Table, made: Any, k: int) -> np.ndarray[Any, Any]:
    """Tensor ``k`` of all samples, in the order of the file; NaN of those that are in no part."""
    parts = [*zip(made.manifest["clients"].values(), made.clients, strict=True)]
    parts += [(rows, made.tests[name]) for name, rows in made.manifest["tests"].items()]
    shape = parts[0][1][k].shape[1:]
    every = np.full((len(table), *shape), np.nan)
    for rows, tensors in parts:
        every[rows] = tensors[k].numpy()
    return every


def differences(table: Table, written: Written, made: Any, found: Found) -> Iterator[tuple[str, str]]:
    """By tag, what Equipoise read otherwise than it was meant, and did not state."""
    manifest = made.manifest
    fitted = {name: (each["centre"], each["scale"]) for name, each in manifest["schema"]["fitted"].items()}
    train = [row for rows in manifest["clients"].values() for row in rows]
    read_as = Read(manifest["inputs"], assembled(table, made, 0), train, fitted, "\n".join(manifest["notes"]))
    yield from of_columns(table, read_as, written.options.get("columns", {}), found)
    s = assembled(table, made, 2) if "group" in table.roles else None
    yield from of_samples(table, assembled(table, made, 1), s, made.classes, made.attributes)
    yield from of_parts(table, manifest, train)


@dataclass(frozen=True)
class Read:
    """What became of the columns: names of inputs, inputs of all rows, rows for training, centre and scale of each column, and notes."""

    names: Sequence[str]
    x: np.ndarray[Any, Any]
    train: Sequence[int]
    fitted: Mapping[str, Learnt]
    notes: str


def of_columns(
    table: Table, made: Read, declared_: Mapping[str, Mapping[str, Any]], found: Found, where: str = ""
) -> Iterator[tuple[str, str]]:
    """What is otherwise about the columns that become inputs."""
    rest = dict(enumerate(made.names))
    for column in table.columns:
        name, options = column.name, declared_.get(column.name, {})
        usual = (name, f"{name} missing", f"{name} other")
        mine = {k: text for k, text in rest.items() if text in usual or text.startswith(f"{name}=")}
        rest = {k: text for k, text in rest.items() if k not in mine}
        if not mine:
            found.counts[column.tag, f"left out{where}"] += 1
            if name not in made.notes:
                yield column.tag, f"{name} is left out without a word"
            continue
        inputs = {text.removeprefix(name): made.x[:, k] for k, text in mine.items()}
        wrong = [READINGS[kind](column, inputs, made.train, options, made.fitted[name]) for kind in kinds(column)]
        if None in wrong:
            found.counts[column.tag, f"read{where}"] += 1
        elif (
            column.tag in NOTED and not {"missing_values", "not_missing"} & options.keys() and name in made.notes
        ) or any(f"column {name}: " in note and BY_OTHERS in note for note in made.notes.splitlines()):
            found.counts[column.tag, "noted"] += 1
        else:
            shown = [*dict.fromkeys(column.text)][:4]
            yield (
                column.tag,
                f"{name} with {shown}, declared {dict(options)}, inputs {[*mine.values()][:6]}: {' / '.join(filter(None, wrong))}",
            )
    if rest:
        yield "inputs", f"{[*rest.values()]} are inputs, and no such column was to be one"


def as_number(
    column: Column, inputs: Inputs, train: Sequence[int], options: Mapping[str, Any], learnt: Learnt
) -> str | None:
    """What is wrong with a column that was coded as a number; None if nothing is."""
    if not {*inputs} <= {"", " missing"} or "" not in inputs:
        return f"coded as {[*inputs][:6]}, not as a number"
    meant, made = coded_numbers(column, train, options), inputs[""]
    gone = meant.gone
    flagged = bool(gone[np.array(train)].any())
    if (" missing" in inputs) != flagged:
        return f"missing cells in training: {flagged}; an input that flags them: {' missing' in inputs}"
    if flagged and not np.array_equal(inputs[" missing"] > 0.5, gone):
        return "other cells are missing"
    centre, scale = learnt
    if options.get("scaling") == "robust":  # by quantiles of a sketch, which have no single right value
        meant = replace(
            meant,
            values=(meant.values - centre) / scale,
            low=(meant.low - centre) / scale,
            high=(meant.high - centre) / scale,
        )
        if not meant.low <= 0 <= meant.high and not gone.all():
            return f"centred on {centre:g}, by hand {centre + meant.low * scale:g} to {centre + meant.high * scale:g}"
    elif not (
        math.isclose(scale, meant.scale, rel_tol=1e-6)
        and (column.tag in TIMES or abs(centre - meant.centre) <= 1e-6 * max(abs(meant.centre), meant.scale))
    ):
        return f"centre {centre:.8g} and scale {scale:.8g}, by hand {meant.centre:.8g} and {meant.scale:.8g}"
    apart = np.abs(made - meant.values)[~gone] / np.maximum(1, np.abs(meant.values[~gone]))
    if not (apart <= CLOSE).all():
        k = int(np.flatnonzero(~gone)[np.argmax(np.nan_to_num(apart, nan=np.inf))])
        return f"{column.text[k]!r} becomes {made[k]:.6g}, by hand {meant.values[k]:.6g}"
    low, high = meant.low - CLOSE * max(1, abs(meant.low)), meant.high + CLOSE * max(1, abs(meant.high))
    if gone.any() and not low <= made[gone].min() <= made[gone].max() <= high:
        return f"a missing cell counts as {made[gone].min():.6g}, by hand {low:.6g} to {high:.6g}"
    return None


def as_category(
    column: Column, inputs: Inputs, train: Sequence[int], options: Mapping[str, Any], learnt: Learnt
) -> str | None:
    """What is wrong with a column that was coded by its words; None if nothing is."""
    shown = {text[1:]: values for text, values in inputs.items() if text.startswith("=")}
    if not shown or len(shown) + (" missing" in inputs) != len(inputs):
        return f"coded as {[*inputs][:6]}, not by its words"
    cells = np.array(column.words, object)
    gone = np.array([cell is None for cell in cells])
    trained = {*cells[train]} - {None}
    usual = (
        {*Counter(cell for cell in cells[train] if cell is not None)}
        if options.get("missing") == "most-frequent"
        else {*cells}
    )
    if len(shown) < len(trained) - (len(trained) == 2 and " missing" not in inputs):
        return f"{len(trained)} words become {len(shown)} inputs"
    for word, values in shown.items():
        if word not in trained and word in options.get("categories", ()):  # a category that no row for training has
            continue
        meant = [other for other in trained if other == word] or [
            other for other in trained if numeric(other) is not None and numeric(other) == numeric(word)
        ]
        if len(meant) != 1:
            return f"an input of {word!r}, which no cell means"
        rows = ~gone & np.isin(cells, [*trained])
        if not np.array_equal(values[rows] > 0.5, cells[rows] == meant[0]) or not np.isin(values[rows], [0, 1]).all():
            return f"the input of {word!r} is not 1 for its cells alone"
    if gone.any():
        flagged = " missing" in inputs
        if flagged and not np.array_equal(inputs[" missing"] > 0.5, gone):
            return "other cells are missing"
        if gone[train].any() and not flagged and len(usual) == len({*cells}):
            return "missing cells are not flagged"
    return None


def as_two(
    column: Column, inputs: Inputs, train: Sequence[int], options: Mapping[str, Any], learnt: Learnt
) -> str | None:
    """What is wrong with a column of two words that was coded as a number, which loses nothing; None if nothing is."""
    if not {*inputs} <= {"", " missing"} or "" not in inputs:
        return "not as two numbers"
    cells = np.array(column.words, object)
    each = [{*inputs[""][cells == word].round(5).tolist()} for word in {*column.words} - {None}]
    return None if sum(map(len, each)) == len(set().union(*each)) == len(each) else f"its words become {each}"


READINGS = {"number": as_number, "category": as_category, "two": as_two}


def numeric(word: str) -> float | None:
    """A word as a number."""
    try:
        return float(word)
    except ValueError:
        return None


def same(word: str, meant: Any) -> bool:
    """Whether a name that Equipoise gives is what was meant; a whole number may be written with a point by a program."""
    return word == str(meant) or (word.endswith(".0") and numeric(word) == numeric(str(meant)))


def of_samples(
    table: Table, y: Any, s: Any, classes: Sequence[str], values: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """What is otherwise about labels and groups."""
    label, group = table.roles["label"], table.roles.get("group")
    for k in np.flatnonzero(np.isfinite(y)).tolist():
        if table.regression:
            if not math.isclose(y[k], label.numbers[k], rel_tol=1e-6):
                yield label.tag, f"label {label.text[k]!r} becomes {y[k]:g}"
                break
        elif not same(classes[int(y[k])], label.words[k]):
            yield label.tag, f"label {label.text[k]!r} is of the class {classes[int(y[k])]!r}"
            break
    if not table.regression and len(classes) != len({*label.words}):
        yield label.tag, f"the classes are {classes}"
    if group is not None:
        (names,) = values.values()
        for k in np.flatnonzero(np.isfinite(s[:, 0])).tolist():
            meant = banded(group.numbers[k], table.edges["income"]) if group.numbers else group.words[k]
            if not same(names[int(s[k, 0])], meant):
                yield group.tag, f"group {group.text[k]!r} is {names[int(s[k, 0])]!r}, by hand {meant!r}"
                break


def of_parts(table: Table, manifest: Mapping[str, Any], train: Sequence[int]) -> Iterator[tuple[str, str]]:
    """What is otherwise about clients, parts and people."""
    if client := table.roles.get("client"):
        for name, rows in manifest["clients"].items():
            if strange := [k for k in rows if not same(name, client.words[k])]:
                yield client.tag, f"client {client.words[strange[0]]!r} is {name!r}"
    split = table.roles.get("split")
    if split and sorted(train) != [k for k, word in enumerate(split.words) if word.casefold().startswith("train")]:
        yield split.tag, "other rows are for training"
    if subject := table.roles.get("subject"):
        tested = {row for rows in manifest["tests"].values() for row in rows}
        if both := {subject.words[k] for k in train} & {subject.words[k] for k in tested}:
            yield subject.tag, f"{sorted(both)[:3]} are in training and tests"


def banded(number: float, edges: Sequence[float]) -> str:
    """The name of a band, as the documentation has it."""
    k = sum(number >= edge for edge in edges)
    return " and ".join(
        [f">= {edge:g}" for edge in edges[k - 1 : k] if k] + [f"< {edge:g}" for edge in edges[k : k + 1]]
    )


# from a table to predictions
def federation(made: Any) -> eq.Federation:
    """One round of training."""
    net = eq.network("mlp", made.shape, made.outputs, seed=0, hidden=[5])
    fed = eq.Federation(
        net, made.clients, "fedavg", eq.SGD(lr=1e-9), tests=made.tests, names=made.client_names, groups=made.client_groups,
        classes=made.classes or None, attributes=made.attributes or None, transform=made.transform, task=made.task,
    )  # fmt: skip
    fed.fit(1, progress=False)
    return fed


def outputs(model: Any, table: Any) -> np.ndarray[Any, Any]:
    """Probabilities, or numbers to predict."""
    made: np.ndarray[Any, Any] = np.asarray(
        model.predict_proba(table) if hasattr(model, "classes_") else model.predict(table), np.float64
    )
    return made


def predicted(table: Table, written: Written, made: Any, folder: Path, found: Found, *, every: bool = False) -> None:
    """The same rows, written otherwise and given to a bundle: the same predictions, or a sentence that names the column."""
    fed = federation(made)
    place = folder / f"m{table.seed}-{len([*folder.iterdir()])}"
    fed.save_bundle(place, data=made.manifest, use="For tests.")
    model = eq.load(place)
    x = assembled(table, made, 0)
    rows = np.flatnonzero(np.isfinite(x).all(1))
    given = torch.from_numpy(x[rows].astype(np.float32))
    meant = (fed.predict(given) if table.regression else fed.predict_proba(given)).double().numpy()
    for how, content, lossy in others(table, written, folder, every=every):
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            try:
                probabilities = outputs(model, content)[rows]
            except ValueError as error:
                text = str(error)
                found.counts["predict", "refused"] += 1
                if not named(text, table.columns) and not any(name in text for name in OF_TABLES):
                    found.add(table, f"{written.how}, then {how}", "predict", f"refusal names no column: {text[:300]}")
                continue
            except Exception as error:
                found.add(table, f"{written.how}, then {how}", "crash", f"{type(error).__name__}: {error}")
                continue
        apart = np.abs(probabilities - meant).max() / (1 if not table.regression else np.abs(meant).max())
        if apart <= 1e-5:
            found.counts["predict", "read"] += 1
        elif lossy and named("\n".join(str(note.message) for note in noted), table.columns):
            found.counts["predict", "noted"] += 1
        else:
            found.add(table, f"{written.how}, then {how}", "predict", f"{apart:.2g} apart ({tags(table)})")


def tags(table: Table) -> str:
    """What columns were drawn."""
    return ", ".join(f"{column.name} {column.tag}" for column in table.columns)


def others(table: Table, written: Written, folder: Path, *, every: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """The same rows otherwise: how, what is given to the bundle, and whether the writer loses something."""
    rng = np.random.default_rng([table.seed, 3])
    place = folder / "other"
    place.mkdir(exist_ok=True)
    for k in range(8) if every else {int(rng.integers(8)), int(rng.integers(8))}:
        if k < 4:
            style = ("usual", "nullable", "object", "decimal")[k]
            yield f"a frame, {style}", frame_of(table, rng, style, roles=False), False
        elif k == 4:
            yield "lists", {column.name: [*column.typed] for column in table.columns}, False
        elif k == 5 and written.sep:
            encoding = next(name for name in ("latin-1", "utf-16", "utf-8-sig", "utf-8") if written.how.endswith(name))
            yield (
                "read by pandas",
                pd.read_csv(written.path, sep=written.sep, encoding=encoding, decimal=table.decimal),
                True,
            )
        elif (
            k == 6 and not {"sep", "encoding", "decimal"} & written.options.keys() and written.how.startswith("by hand")
        ):
            yield "a text file", by_hand(table, place, rng).path, False
        else:
            name = ["pandas parquet", "pyarrow"][rng.integers(2)]
            yield name, WRITERS[name](table, place, rng).path, False


# between sites
def sites(seed: int, folder: Path, found: Found) -> None:
    """Parts of a table at several sites, each written in its own way, under one schema."""
    table = draw(seed, sites=True, rows=90)
    rng = np.random.default_rng([seed, 4])
    trained = np.array([word.casefold().startswith("train") for word in table.roles["split"].words])
    where = np.empty(len(table), np.int64)
    for rows_of_part in (np.flatnonzero(trained), np.flatnonzero(~trained)):  # every site has rows of both
        where[rng.permutation(rows_of_part)] = np.arange(len(rows_of_part)) % 3
    parts = [np.flatnonzero(where == k).tolist() for k in range(3)]
    names = [["hand", "pandas csv", "pandas parquet", "pyarrow", "text parquet"][rng.integers(5)] for _ in parts]
    agreed = declared(table, rng, typed=False, every=True)
    while table.columns:
        columns = {
            column.name: agreed.get(column.name, {"kind": "number" if column.numbers else "category"})
            for column in table.columns
        }
        columns |= {column.name: agreed[column.name] for column in table.roles.values() if column.name in agreed}
        options = {**table.options, "columns": columns}
        options.pop("clients", None)
        files = []
        for k, (rows, name) in enumerate(zip(parts, names, strict=True)):
            (folder / f"{k}").mkdir(exist_ok=True)
            files.append(WRITERS[name](table.take(rows), folder / f"{k}", np.random.default_rng([seed, 5, k])))
        try:
            own = [{**file.options, "columns": columns} for file in files]
            sums = {f"site {k}": site_sums(file.path, {**options, **own[k]}, least=1) for k, file in enumerate(files)}
            schema = join(sums)
            how = [{name: value for name, value in file.options.items() if name != "columns"} for file in files]
            read_rows = [schema.read(file.path, **how[k]) for k, file in enumerate(files)]
        except ValueError as error:
            text = str(error)
            refused = {*named(text, table.columns)}
            found.counts.update((column.tag, "refused at a site") for column in table.columns if column.name in refused)
            if not refused:
                if not answerable(text, table) and not any(f"site {k}" in text for k in range(3)):
                    found.add(table, f"sites {names}", "refusal", f"names no column: {text[:300]}")
                return
            table = table.without(refused)
            continue
        except Exception as error:
            found.add(table, f"sites {names}", "crash", f"{type(error).__name__}: {error}")
            return
        train = np.flatnonzero(trained).tolist()
        every = []
        for k, tensors in enumerate(read_rows[0][0]):  # x, y, and s if there is a group
            whole = np.full((len(table), *tensors.shape[1:]), np.nan)
            for rows, parts_of_site in zip(parts, read_rows, strict=True):
                for mine, chosen in zip(parts_of_site, (True, False), strict=True):
                    whole[[row for row in rows if trained[row] == chosen]] = mine[k].numpy()
            every.append(whole)
        fitted = {name: (each.centre, each.scale) for name, each in schema.coder.fitted.items()}
        made = Read(schema.inputs, every[0], train, fitted, "")
        apart = [*of_columns(table, made, columns, found, " at sites")]
        apart += of_samples(table, every[1], every[2] if len(every) > 2 else None, schema.classes, schema.values)
        for tag, what in apart:
            found.add(table, f"sites {names}", tag, what)
        return


# tests
def tried(seeds: Sequence[int], folder: Path, *, every: bool = False) -> Found:
    """Read the tables of some seeds, each by one writer or by all, give a quarter of them to a bundle again, and divide an eighth among sites."""
    found = Found()
    excel = takes_excel(folder)
    for seed in seeds:
        table = draw(seed)
        choices = [*writers_of(table, excel)]
        for writer in choices if every else choices[seed % len(choices) :][:1]:
            if (result := read(table, writer, folder, found)) is None:
                continue
            apart = [*differences(*result, found)]
            for tag, what in apart:
                found.add(table, result[1].how, tag, what)
            if not apart and (every or seed % 4 == 0):
                predicted(*result, folder, found, every=every)
        if seed % 8 == 0:
            sites(seed, folder, found)
    return found


def require_no_difference(found: Found, folder: Path) -> None:
    """No table was read otherwise than it was meant without a sentence that names the column; and most were read."""
    assert not found.silent, "\n".join([f"files in {folder}; draw(seed) makes the table", *found.silent])
    columns = Counter(
        happened.removesuffix(" at sites")
        for (tag, happened), n in found.counts.items()
        for _ in range(n)
        if tag != "predict"
    )
    assert columns["read"] > columns["refused"] + columns["refused at a site"]
    assert found.counts["predict", "read"] > found.counts["predict", "refused"]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 15))
def test_random_tables_are_read_as_they_were_meant(first: int, tmp_path: Path) -> None:
    require_no_difference(tried(range(first, first + 15), tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_two_thousand_random_tables_are_read_as_they_were_meant(first: int, tmp_path: Path) -> None:
    require_no_difference(tried(range(first, first + 100), tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5000, 5100, 10))
def test_every_writer_and_every_form_of_rows_to_predict(first: int, tmp_path: Path) -> None:
    require_no_difference(tried(range(first, first + 10), tmp_path, every=True), tmp_path)


def typed(options: Mapping[str, Any]) -> list[str]:
    """Options as one types them."""
    texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in options.items()}
    return [word for name, text in texts.items() for word in ("--set", f"{name}={text}")]


def commanded(seed: int, folder: Path, equipoise: Any) -> int:
    """A table from `init` to predictions of other files, by the command line; how many files were predicted."""
    found = Found()
    if (result := read(draw(seed), "hand", folder, found)) is None or found.silent or [*differences(*result, found)]:
        return 0
    table, written, _ = result
    options = typed({**table.options, **written.options})
    assert (done := equipoise("init", "--data", written.path, *options, "-o", f"{seed}.toml")).status == 0, done.err
    choices = configuration(Path(f"{seed}.toml"))
    data = eq.scenario("own", 0, data=choices["data"], **choices["scenario_options"])
    declared_columns = choices["scenario_options"]["columns"]
    assert not [
        *differences(table, replace(written, options={**written.options, "columns": declared_columns}), data, found)
    ]
    run = (
        "run",
        "--config",
        f"{seed}.toml",
        "--rounds",
        1,
        "--lr",
        1e-9,  # of numbers that are not scaled
        "--network",
        "mlp(hidden=[5])",
        "--name",
        f"r{seed}",
        "--no-report",
    )
    assert (done := equipoise(*run)).status == 0, done.err
    assert (done := equipoise("export", f"runs/r{seed}", "--bundle", f"m{seed}")).status == 0, done.err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cells that are missing in no row of training
        meant = outputs(eq.load(f"m{seed}"), written.path)
    rng = np.random.default_rng([seed, 6])
    (folder / "other").mkdir(exist_ok=True)
    predictions = 0
    for name in ("hand", "pandas csv", "pyarrow", "pandas parquet"):
        other = WRITERS[name](table, folder / "other", rng)
        how = typed({key: value for key, value in other.options.items() if key != "columns"})
        done = equipoise("predict", f"m{seed}", other.path, "-o", f"p{seed}.csv", "--force", *how)
        if done.status:
            assert named(done.err, table.columns) or answerable(done.err, table), done.err
            continue
        made = (
            pd.read_csv(f"p{seed}.csv")
            .filter(regex="^prediction$" if table.regression else "^probability")
            .to_numpy(np.float64)
        )
        assert np.abs(made.reshape(meant.shape) - meant).max() <= 1e-5 * max(1, np.abs(meant).max()), (
            seed,
            name,
            tags(table),
        )
        predictions += 1
    return predictions


def test_commands_read_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert commanded(9008, tmp_path, equipoise) > 0


@pytest.mark.slow
def test_commands_read_random_tables_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sum(commanded(seed, tmp_path, equipoise) for seed in range(9000, 9040)) > 20
