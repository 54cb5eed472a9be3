"""Random tables read by Equipoise and by the meaning that was drawn: equal numbers, or a sentence that names the column."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache as once
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.scenarios.shared import join, site_sums
from random_tables import (
    WRITERS,
    Column,
    Table,
    Written,
    by_hand,
    by_pandas,
    coded_numbers,
    declared,
    draw,
    frame_of,
    kinds,
    writers_of,
)
from run_helpers import cache, equipoise

__all__ = ["cache", "equipoise"]

CLOSE = 2e-5  # of inputs, which are float32
NOTED = (
    "number: stand-in",
    "date: stand-in",
    "category: gaps",
)  # of which a note that names the column is enough, if nothing is declared
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


@once
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
    manifest, x = made.manifest, assembled(table, made, 0)
    notes = "\n".join(manifest["notes"])
    train = [row for rows in manifest["clients"].values() for row in rows]
    rest = dict(enumerate(manifest["inputs"]))
    for column in table.columns:
        name = column.name
        mine = {
            k: text
            for k, text in rest.items()
            if text in (name, f"{name} missing", f"{name} other") or text.startswith(f"{name}=")
        }
        rest = {k: text for k, text in rest.items() if k not in mine}
        if not mine:
            found.counts[column.tag, "left out"] += 1
            if name not in notes:
                yield column.tag, f"{name} is left out without a word"
            continue
        inputs = {text.removeprefix(name): x[:, k] for k, text in mine.items()}
        options = written.options.get("columns", {}).get(name, {})
        wrong = [READINGS[kind](column, inputs, train, options) for kind in kinds(column)]
        if None in wrong:
            found.counts[column.tag, "read"] += 1
        elif column.tag in NOTED and not {"missing_values", "not_missing"} & options.keys() and name in notes:
            found.counts[column.tag, "noted"] += 1
        else:
            shown = dict(zip(dict.fromkeys(column.text), range(4), strict=False))
            yield (
                column.tag,
                f"{name} with {[*shown]}, declared {options}, inputs {[*mine.values()][:6]}: {' / '.join(filter(None, wrong))}",
            )
    if rest:
        yield "inputs", f"{[*rest.values()]} are inputs, and no such column was to be one"
    yield from of_roles(table, made, train)


def as_number(
    column: Column, inputs: Mapping[str, Any], train: Sequence[int], options: Mapping[str, Any]
) -> str | None:
    """What is wrong with a column that was coded as a number; None if nothing is."""
    if not {*inputs} <= {"", " missing"} or "" not in inputs:
        return f"coded as {[*inputs][:6]}, not as a number"
    values, gone, (low, high, scale) = coded_numbers(column, train, options)
    made = inputs[""]
    if (
        options.get("scaling") == "robust"
    ):  # whose quantiles are from a sketch: as exact as they are, up to an unknown shift and scale
        present = ~gone
        if len(np.unique(values[present])) < 3:
            return None
        fitted = np.polynomial.polynomial.polyfit(values[present], made[present], 1)
        values, low, high = fitted[0] + fitted[1] * values, -math.inf, math.inf
        if not 0.2 < fitted[1] < 20:
            return f"scaled by {fitted[1]:g} standard deviations"
    flagged = bool(gone[np.array(train)].any())
    if (" missing" in inputs) != flagged:
        return f"missing cells in training: {flagged}; an input that flags them: {' missing' in inputs}"
    if flagged and not np.array_equal(inputs[" missing"] > 0.5, gone):
        return "other cells are missing"
    apart = np.abs(made - values)[~gone] / np.maximum(1, np.abs(values[~gone]))
    if not (apart <= CLOSE).all():
        k = int(np.flatnonzero(~gone)[np.argmax(np.nan_to_num(apart, nan=np.inf))])
        return f"{column.text[k]!r} becomes {made[k]:.6g}, by hand {values[k]:.6g}"
    if gone.any() and not (
        low - CLOSE * max(1, abs(low)) <= made[gone].min() <= made[gone].max() <= high + CLOSE * max(1, abs(high))
    ):
        return f"a missing cell counts as {made[gone].min():.6g}, by hand {low:.6g} to {high:.6g}"
    return None


def as_category(
    column: Column, inputs: Mapping[str, Any], train: Sequence[int], options: Mapping[str, Any]
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


def as_two(column: Column, inputs: Mapping[str, Any], train: Sequence[int], options: Mapping[str, Any]) -> str | None:
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


def of_roles(table: Table, made: Any, train: Sequence[int]) -> Iterator[tuple[str, str]]:
    """What is otherwise about labels, clients, groups, parts and people."""
    label = table.roles["label"]
    y = assembled(table, made, 1)
    for k in np.flatnonzero(np.isfinite(y)).tolist():
        if table.regression:
            if not math.isclose(y[k], label.numbers[k], rel_tol=1e-6):
                yield label.tag, f"label {label.text[k]!r} becomes {y[k]:g}"
                break
        elif not same(made.classes[int(y[k])], label.words[k]):
            yield label.tag, f"label {label.text[k]!r} is of the class {made.classes[int(y[k])]!r}"
            break
    if not table.regression and len(made.classes) != len({*label.words}):
        yield label.tag, f"the classes are {made.classes}"
    if client := table.roles.get("client"):
        for name, rows in made.manifest["clients"].items():
            if strange := [k for k in rows if not same(name, client.words[k])]:
                yield client.tag, f"client {client.words[strange[0]]!r} is {name!r}"
    if split := table.roles.get("split"):
        meant = [k for k, word in enumerate(split.words) if word.casefold().startswith("train")]
        if sorted(train) != meant:
            yield split.tag, "other rows are for training"
    if subject := table.roles.get("subject"):
        tested = {row for rows in made.manifest["tests"].values() for row in rows}
        if both := {subject.words[k] for k in train} & {subject.words[k] for k in tested}:
            yield subject.tag, f"{sorted(both)[:3]} are in training and tests"
    if group := table.roles.get("group"):
        s = assembled(table, made, 2)[:, 0]
        (values,) = made.attributes.values()
        for k in np.flatnonzero(np.isfinite(s)).tolist():
            meant_value = banded(group.numbers[k], table.edges["income"]) if group.numbers else group.words[k]
            if not same(values[int(s[k])], meant_value):
                yield group.tag, f"group {group.text[k]!r} is {values[int(s[k])]!r}, by hand {meant_value!r}"
                break


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
        net, made.clients, "fedavg", eq.SGD(lr=0.05), tests=made.tests, names=made.client_names, groups=made.client_groups,
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
    import torch

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
    where = rng.integers(0, 3, len(table))
    parts = [np.flatnonzero(where == k).tolist() for k in range(3)]
    names = [["hand", "pandas csv", "pandas parquet", "pyarrow", "text parquet"][rng.integers(5)] for _ in parts]
    agreed = declared(table, rng, typed=False, every=True)
    while table.columns:
        columns = {
            column.name: agreed.get(column.name, {"kind": "number" if column.numbers else "category"})
            for column in table.columns
        }
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
                if not answerable(text, table):
                    found.add(table, f"sites {names}", "refusal", f"names no column: {text[:300]}")
                return
            table = table.without(refused)
            continue
        except Exception as error:
            found.add(table, f"sites {names}", "crash", f"{type(error).__name__}: {error}")
            return
        train = [row for row in range(len(table)) if table.roles["split"].words[row].casefold().startswith("train")]
        x = np.full((len(table), len(schema.inputs)), np.nan)
        for rows, (mine, tested) in zip(parts, read_rows, strict=True):
            learnt = [row for row in rows if row in {*train}]
            x[learnt], x[[row for row in rows if row not in {*train}]] = mine[0].numpy(), tested[0].numpy()
        rest = dict(enumerate(schema.inputs))
        for column in table.columns:
            name = column.name
            mine_ = {
                k: text
                for k, text in rest.items()
                if text in (name, f"{name} missing", f"{name} other") or text.startswith(f"{name}=")
            }
            inputs = {text.removeprefix(name): x[:, k] for k, text in mine_.items()}
            wrong = [READINGS[kind](column, inputs, train, columns[name]) for kind in kinds(column)]
            if None in wrong:
                found.counts[column.tag, "read at sites"] += 1
            else:
                shown = [*dict.fromkeys(column.text)][:4]
                found.add(
                    table,
                    f"sites {names}",
                    column.tag,
                    f"{name} with {shown}, declared {columns[name]}: {' / '.join(filter(None, wrong))}",
                )
        return


# tests
def tried(seeds: Sequence[int], folder: Path, *, every: bool) -> Found:
    """Read the tables of some seeds, each by one writer, or by all."""
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
            if not apart and (every or seed % 2 == 0):
                predicted(*result, folder, found, every=every)
        if seed % 5 == 0:
            sites(seed, folder, found)
    return found
