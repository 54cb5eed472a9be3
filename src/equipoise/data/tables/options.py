"""The options of the user's own data, each with its meaning and an example; and how they are typed and read."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from equipoise.system.ranges import marked, setting
from equipoise.system.suggestions import some

CELLS = "as the cells are written, if that is one way"
SHOWN = 5  # names in a sentence
THOUSANDS = (".", ",", "'", "’", " ", "\u00a0", "\u202f", "_")  # signs between them
LEAVE_OUT = "leave-out"  # rows without a label


def stated(meaning: str, example: Any = None, usual: str = "none", default: Any = None, marks: str = "") -> Any:
    """A field with its meaning, an example, and what holds without it."""
    return setting(field(default=default), meaning, usual, example=example, marks=marks)


agreed = partial(stated, marks="agreed")
column = partial(stated, marks="agreed column")
written = partial(stated, marks="written")
dividing = partial(stated, marks="share")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the options of the scenario ``own`` are.

    Parameters
    ----------
    clients : >= 1, among so many the training data are divided, if they do not say whose they are: by classes, in regression
        by ten bands of the numbers to predict, with shares from a Dirichlet distribution.
    alpha : >= 0.01; the lower, the more the divided clients differ.
    test : in (0, 0.5], share of a client's samples that is drawn for testing; at least one of two or more.
    server_validation : in [0, 0.5], share of its training samples that is drawn for the server, for methods that need such.
    tests : what a test set is: ``"groups"``, by the values of the column group; ``"clients"``; ``"all"``, one for all. By
        default groups if there is such a column, then clients, up to 20 of them.
    size : >= 8, side of images in pixels.
    measures : recorded in addition to the accuracy, names of ``metrics.MEASURES`` or ``"rates"``, which are recorded in
        any case where there is a column group.
    label, client, split, subject, image : names of columns that differ from the usual ones. The rows of one ``subject``, a person, are all
        for training, all for testing or all held out.
    group : columns of groups, ``"sex"`` or ``["sex", "race"]``; ``"age:40,60"`` divides numbers into bands. Test sets are by the values of
        all, and each is a sensitive attribute.
    leave_out : columns that are no features.
    positive : the class that true-positive rates are about. By default that of two which names tell (1, yes, true, positive, case),
        else the second of two, which is then said; of more classes each.
    range : two numbers, the grey levels of image files that become black and white. By default 0 and 255 of images with 8 bits, and
        of others the least and the largest of all images.
    keep : columns that are features, although they have no name or count the rows; without it these are left out, with a note.
    not_missing : words such as NA that are names of classes, clients or groups, and not said to be missing.
    inputs : the columns that may be features; by default all that have no other purpose. ``equipoise init`` writes them down.
    unlabelled : ``"leave-out"``: rows without a label are left out; by default they are an error.
    unknown : the name of a group for people whose group is missing; by default such a row is an error.
    sep, decimal, thousands, encoding : of a table that is text: the sign between cells, ``"."`` or ``","`` before the digits of a
        fraction, the sign between thousands, and how letters are written, ``"latin-1"`` for one; by default what the first lines show,
        what the cells allow if that is one reading, and UTF-8.
    download : whether a data set of the Hub may be downloaded.
    columns : what columns of a table are, by name, where that is not what it seems: ``{"zip": {"kind": "category", "least": 20}}``; see
        :class:`equipoise.data.tables.schema.Feature`.
    task : what labels are: ``"regression"``, numbers to predict, as in ``"regression(loss=huber)"``, or ``"classification"``, classes;
        by default classes.
    data_seed : decides the division of the data, instead of the seed of a run.
    """

    clients: int | None = dividing(
        "number of clients among whom data without clients are divided", 8, "as the data have them"
    )
    alpha: float = dividing(
        "of that division, >= 0.01: the lower, the more the clients' {classes|numbers} differ", default=0.5
    )
    test: float = dividing(
        "share of a client's samples that is drawn for testing if the data have no part test, in (0, 0.5]", default=0.2
    )
    server_validation: float = dividing(
        "share of its training samples that is drawn for the server, for methods that need them, in [0, 0.5]",
        default=0.0,
    )
    tests: str | None = stated(
        "what a test set is: groups, clients or all", "clients", "groups if there are any, else clients if few"
    )
    size: int = stated("side of images in pixels, >= 8", default=64)
    measures: str | Sequence[str] = stated("measured in addition to the accuracy", default=())
    label: str | None = column("column of {the class, or of |}the number to predict")
    client: str | None = column("column of the client", marks="column")
    group: str | Sequence[str] | None = column(
        "column of groups, between which fairness is measured; several: sex,race; bands of numbers: age:40,60"
    )
    split: str | None = column("column with train, test or validation")
    subject: str | None = column(
        "column of the person whom a row is about: all rows of a person are for training, testing or validation"
    )
    image: str | None = column("column of image files", marks="column")
    leave_out: str | Sequence[str] = agreed("columns that are no features", ["id"], default=())
    positive: str | int | None = stated("the class that true-positive rates are about, by its name", "yes")
    range: str | Sequence[float] | None = stated(
        "grey levels of image files that become black and white",
        [0, 4095],
        "bytes as they are; of deeper images the least and the largest of all",
    )
    keep: str | Sequence[str] = agreed(
        "columns that are features, although they have no name or count the rows", ["id"], default=()
    )
    not_missing: str | Sequence[str] = agreed(
        "words that are names of {classes, |}clients or groups here, such as NA", ["NA"], default=()
    )
    inputs: str | Sequence[str] | None = stated(
        "the columns that may become inputs; no other column does, whatever else changes",
        ["age"],
        "all that have no other purpose",
    )
    unlabelled: str | None = agreed('rows without a label: "leave-out"', "leave-out", "an error")
    unknown: str | None = agreed("the name of a group for people whose group is missing", "unknown", "an error")
    sep: str | None = written("the sign between the cells of a table: , ; tab ...", ";", "found in the first lines")
    decimal: str | None = written("the sign before the digits of a fraction: . or ,", ",", CELLS)
    thousands: str | None = written("the sign between thousands: . , ' or a blank", ".", CELLS)
    encoding: str | None = written("how letters are written: utf-8, latin-1, utf-16 ...", "latin-1", "utf-8")
    download: bool = stated("whether a data set of the Hub may be downloaded", default=False)
    task: str | None = agreed(
        "what the labels of your own data are: classification (classes), regression (numbers to predict, also with their unit, "
        "regression(unit=mmHg)), or your own, mine.py:Counts"
    )
    columns: Mapping[str, Any] | None = agreed("what columns of a table are, by name; in this file the table [columns]")
    data_seed: int | None = stated(
        "seed for dividing the data, so that runs of several seeds share a division", 0, "the seed"
    )


AGREED, WRITTEN, COLUMNS, SHARE = (marked(Options, mark) for mark in ("agreed", "written", "column", "share"))


def listed(words: Iterable[str]) -> str:
    """The first words, and how many more there are."""
    return some(list(words), SHOWN)


def option(name: str, value: str | Sequence[str]) -> str:
    """An option of the command line as one types it; of several names those with commas are in quotation marks, as :func:`several` reads them."""
    if not isinstance(value, str):
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(value)
        value = line.getvalue() if [*value] != ["none"] else '"none"'
    elif value == "none" or value.startswith(("'", '"', "[", "(")):  # which would be read as Python writes them
        value = repr(value)
    typed = f"{name}={value}"
    return f"--set {shlex.quote(typed)}" if typed[-1].isalnum() else f"--set {shlex.quote(typed + ' ')[:-2]}'"


def several(words: str | Sequence[str]) -> tuple[str, ...]:
    """Names that may be given as a list, or in one text with commas, as on the command line."""
    if not isinstance(words, (list, tuple)):
        words = next(csv.reader([str(words)], skipinitialspace=True), [])
    return tuple(str(word).strip() for word in words if str(word).strip())
