"""The user's own data as a federation: folders of images, a table, arrays, or a data set of the Hub."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.memory_mapped import Data, Mapped, take
from equipoise.data.pictures import Pictures, Range, doubtful, faint
from equipoise.data.precision import lost, standardised
from equipoise.data.samples import NOTHING, Draw, at_one_client, held_rows
from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.coding import Coder
from equipoise.data.tables.columns import Column, Columns, UserData, ordered
from equipoise.data.tables.options import SHARE, WRITTEN, Options, listed, several
from equipoise.data.tables.schema import CATEGORY
from equipoise.metrics.classification import RATES, chosen
from equipoise.metrics.groups import positive_class
from equipoise.scenarios import partition
from equipoise.scenarios.scenario import CLASSIFICATION, Described, Description, Images, Protocol, Scenario, kind_of
from equipoise.system import own_code
from equipoise.system.grouping import grouped
from equipoise.system.ranges import check_number, check_option, check_whole
from equipoise.system.suggestions import require_use

VERSION: Final = 1  # raise it whenever the same files give other parts

SUMMARY = "Your own data: a folder per client with a folder per class, a table, arrays, or a data set of the Hub."
PROTOCOL = Protocol(rounds=30, epochs=2, batch_size=32, lr=0.02, momentum=0.9, weight_decay=1e-5)
TRANSFORM = Images(mean=(0.5,), std=(0.25,))
ALPHA, TEST, SIDE = Options.alpha, Options.test, Options.size
MANY = 20  # clients, from which on they are tested together unless the user says otherwise
# bytes of decoded images that are read whole: batches of these cost less, and engines may stack them
IN_MEMORY = 1 << 28
SMALLEST = 8  # side of an image that the network cnn takes
BANDS, LEAST = 10, 10  # of numbers to predict, by which they are divided and drawn as by classes; samples of each
UNTIE = "Subtract what they have in common, divide them into several columns, or give their logarithm."
ALL, COMMON = "all", "common"  # names of test sets that are nobody's own
TESTS = ("groups", "clients", "all")
Ids = NDArray[np.int64]
RowsOf = dict[str, list[int]]  # by the name of a client or a test set
TestSets = tuple[RowsOf, tuple[str, ...] | None]  # rows by name; the set of each client, if each has one


def scenario(data: Path, *, held: Draw = NOTHING, **options: Any) -> Described:
    """Make a federation of what the user has; :func:`equipoise.data.formats.reading.read_user_data` says what that may be.

    Where the data do not say what is for testing, a part of every client's samples is drawn, as evenly over the classes as
    possible, or over bands of the numbers to predict. Numbers are standardised by the mean and standard deviation of all training samples.

    Parameters
    ----------
    data : folder, file, ``hub:OWNER/NAME``, or a function of your own, ``data.py:clients``, which is called with the ``seed`` if its
        signature has one.
    held : what clients hold out of their training rows in the run, see :func:`equipoise.scenarios.load`.
    options : see :class:`equipoise.data.tables.options.Options`.

    Raises
    ------
    DataError : the data are not as they should be. ValueError : an option is out of its range, or does not fit the data.
    """
    given = Options(**options)
    wanted, tests, size, task = columns_of(**options), given.tests, given.size, given.task
    if given.clients is not None:
        check_whole("own: clients", given.clients, 1)
    check_drawn("own", "samples", given.test, given.server_validation, ALL if tests is None else tests)
    check_whole("own: size", size, SMALLEST, meaning=" pixels")
    between, download = edges(given.range), given.download
    own = first = _read(str(data), wanted, download, between)
    require_used(own, given)
    seeded = own_code.is_reference(str(data)) and "seed" in own_code.takes(str(data))
    share: dict[str, Any] = {name: getattr(given, name) for name in SHARE}
    parts = divided(own, 0, **share)  # of any seed: what does not fit is said before a run begins
    test_sets(own, parts, tests)
    sample: tuple[int, ...] = (3, size, size)
    images, levels, coder = True, None, None
    if isinstance(own.inputs, Pictures):
        levels = own.inputs.range
    elif isinstance(own.inputs, np.ndarray):
        sample, images = own.inputs.shape[1:], own.inputs.dtype == np.uint8
    else:
        coder = coder_of(own, parts, held)
        sample, images = (len(coder.names),), False
    chosen_class = None if given.positive is None else check_positive(own, given.positive)
    rates = [RATES] if own.group is not None and not own.regression else []
    description = Description(
        name="own",
        summary=SUMMARY,
        sample=sample,
        transform=replace(TRANSFORM, levels=levels) if images else None,
        n_classes=len(own.classes),
        network="cnn" if images and min(sample[1:]) >= SMALLEST else "mlp",
        protocol=PROTOCOL,
        measures=chosen([*several(given.measures), *rates]),
        has_server_validation=bool(parts.validation),
        classes=own.classes,
        positive=chosen_class,
        task=task or CLASSIFICATION,
    )

    recipe = {"version": VERSION, **share, "tests": tests, "size": size, **({"range": between} if between else {})}

    def build(seed: int) -> Scenario:
        own = _read(str(data), wanted, download, between, seed) if seeded else first
        if (own.classes, own.layout) != (first.classes, first.layout):
            raise DataError(f"{own.source}: seed {seed} gives other classes, or samples of another shape, than seed 0.")
        about = {
            "scenario": "own",
            "seed": seed,
            "recipe": recipe,
            "source": own.source,
            "layout": own.layout,
            "read": {**own.about, **{name: value for name in WRITTEN if (value := getattr(wanted, name))}},
            "classes": list(own.classes),
            **({"task": task} if own.regression else {}),
            **({} if chosen_class is None else {"positive": chosen_class}),
        }
        parts = divided(own, seed, **share)
        return federate(description, about, own, parts, tests, size, held, None if seed else coder)

    return description, build


def _read(source: str, columns: Columns, download: bool, between: Range | None, seed: int = 0) -> UserData:
    """What the user has; of one file or function it is kept, so that a run, which asks several times, reads it once."""
    if own_code.is_reference(source):
        return _kept(source, columns, download, between, tuple(own_code.hashes(source).items()), seed)
    if Path(source).is_file():
        about = Path(source).stat()
        own = _kept(source, columns, download, between, (about.st_size, about.st_mtime_ns))
        stale = (
            isinstance(own.inputs, Pictures) and not own.inputs.current
        )  # the table is the same, and an image is not
        if not stale:
            return own
    return read_user_data(source, columns, download=download, between=between)


@lru_cache(maxsize=2)  # a function's data of the first seed, which describe them, and of that of the run
def _kept(
    source: str, columns: Columns, download: bool, between: Range | None, _changed: tuple[Any, ...], seed: int = 0
) -> UserData:
    return read_user_data(source, columns, download=download, seed=seed, between=between)


def edges(written: str | Sequence[float] | None) -> Range | None:
    """The two numbers of a range, also in one text with a comma; None stays."""
    if written is None:
        return None
    words = written.split(",") if isinstance(written, str) else written
    try:
        low, high = (float(word) for word in words)
        if not -math.inf < low < high < math.inf:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"own: range must be two numbers, the grey level that is black and a larger one that is white, such as 0,4095; found {written!r}."
        ) from None
    return low, high


def check_drawn(name: str, samples: str, test: float, server_validation: float, tests: str) -> None:
    """Check what is drawn of each client's ``samples``, as a scenario calls them."""
    check_number(f"{name}: test", test, 0, 0.5, f", the share of a client's {samples} to test on", above=True)
    check_number(f"{name}: server_validation", server_validation, 0, 0.5, ", the share that the server gets")
    check_option(f"{name}: tests", tests, TESTS)


def require_used(own: UserData, given: Options) -> None:
    """Refuse options of :func:`scenario` that change nothing about these data."""
    require_use({"alpha": own.client is not None and given.alpha != ALPHA}, together="clients that the data name")
    require_use({"test": "test" in (own.split or ()) and given.test != TEST}, together="a part test of the data")
    require_use({"size": given.size != SIDE and not isinstance(own.inputs, Pictures)}, together=own.layout)


def check_positive(own: UserData, positive: str | int) -> str:
    """The name of the class that counts as positive."""
    if own.regression:
        raise DataError(
            f"{own.source}: positive={positive} names a class, and numbers to predict have none. Leave it out."
        )
    try:
        chosen_class = positive_class(positive, own.classes)
    except ValueError as error:
        raise DataError(f"{own.source}: {error}") from None
    assert chosen_class is not None
    return chosen_class.name


def columns_of(**options: Any) -> Columns:
    """How a table is to be read, of the options of :func:`scenario`; others are ignored."""
    lists = ("leave_out", "keep", "not_missing", "inputs")
    values: dict[str, Any] = {f.name: options[f.name] for f in fields(Columns) if f.name in options}
    if values.get("task") is not None:
        values["task"] = kind_of(values["task"])
    if isinstance(values.get("group"), list):
        values["group"] = tuple(values["group"])
    values["schema"] = json.dumps(options["columns"], sort_keys=True) if options.get("columns") else ""
    return Columns(**values | {name: several(values[name]) for name in lists if values.get(name) is not None})


@dataclass(frozen=True)
class Parts:
    """Rows of every client for training and testing, ``common`` ones for testing, and those of the server."""

    train: RowsOf
    test: RowsOf
    common: list[int]
    validation: list[int]
    notes: tuple[str, ...] = ()

    @property
    def training(self) -> list[int]:
        """All rows that some client trains on."""
        return [row for rows in self.train.values() for row in rows]


def divided(
    own: UserData,
    seed: int,
    *,
    clients: int | None = None,
    alpha: float = ALPHA,
    test: float = TEST,
    server_validation: float = 0.0,
) -> Parts:
    """Say which samples each client trains on and is tested on; the parameters are those of :func:`scenario`."""
    y = bands = own.targets  # the class of every sample, of which one must stay for training, and what is drawn evenly
    if own.regression:
        y, bands = np.zeros(len(own), np.int64), partition.bands(y, max(1, min(BANDS, len(own) // LEAST)))
    split = np.array(own.split if own.split is not None else ["train"] * len(own))
    whose = own.client if own.client is not None else _dealt(own, bands, split, seed, clients, alpha)
    if own.client is not None and clients is not None:
        raise DataError(
            f"{own.source} has {len(own.clients)} clients of its own ({listed(own.clients)}), and clients={clients} divides data "
            "that have none. Leave it out."
        )
    strata = bands if own.group is None else np.array([f"{k:02} {g}" for k, g in zip(bands, own.group, strict=True)])
    draw = partial(_drawn, y=y, strata=strata, rng=np.random.default_rng(seed))
    draws = "test" not in split
    people = own.people
    drawn_for_tests, drawn_for_server = np.full((2, people.max() + 1), -1)
    _require_parts(own)
    train, tested = RowsOf(), RowsOf()
    held = np.flatnonzero(split == "validation").tolist()
    if held and server_validation:
        raise DataError(
            f"{own.source} has validation data of its own, and server_validation={server_validation} draws some. Leave it out."
        )
    rows_of = grouped((part, row) for row, part in enumerate(zip(whose, split.tolist(), strict=True)))
    for name in ordered(filter(None, whose)):
        mine, tests = (np.array(rows_of.get((name, part), ()), np.int64) for part in ("train", "test"))
        if draws:
            tests, mine = _drawn_people(people, mine, drawn_for_tests, partial(draw, share=test))
        if server_validation:
            more, mine = _drawn_people(people, mine, drawn_for_server, partial(draw, share=server_validation))
            held += more.tolist()
        if len(mine):
            train[name] = mine.tolist()
        if len(tests):
            tested[name] = tests.tolist()
    _give_back(y, whose, people, train, tested if draws else {}, held)
    parts = Parts(train, tested, rows_of.get(("", "test"), []), sorted(held))
    return replace(parts, notes=tuple(_remarks(own, parts, test if draws else 0)))


def _remarks(own: UserData, parts: Parts, share: float) -> Iterator[str]:
    """Notes on a division, of which a ``share`` of each client was drawn for testing; 0 if the data state what is."""
    train, tested = parts.train, parts.test
    if share:
        noun = "samples" if own.subject is None else "people"
        drawn = f" training {noun}, as no part is called test," if own.split is not None else f" {noun}"
        over = "the numbers to predict" if own.regression else "the classes"
        yield f"{100 * share:g}% of each client's{drawn} were drawn for testing, as evenly over {over} as possible."
    if untested := [] if parts.common else [name for name in train if name not in tested]:
        yield f"{listed(untested)}: no sample to test on, so there is no test set of {'its' if len(untested) == 1 else 'their'} own."
    if untrained := [name for name in tested if name not in train]:
        yield f"{listed(untrained)}: no sample to train on, so {'it is' if len(untrained) == 1 else 'they are'} for testing only."
    rows = [*parts.common, *chain.from_iterable(tested.values())]
    if own.group is not None:
        present = {own.group[row] for row in rows}
        if lost := [name for name in ordered(own.group) if name not in present]:
            yield f"Group {listed(lost)}: no sample to test on, so nothing is measured for {'it' if len(lost) == 1 else 'them'}."
    yield from _in_several_places(own, parts, rows)


def _in_several_places(own: UserData, parts: Parts, tested: list[int]) -> Iterator[str]:
    """Notes on rows that are the same in training and test data, or at several clients, of tables whose rows mostly differ."""
    if not parts.train or (row_of := _alike(own)) is None or 2 * (row_of.max() + 1) < len(own):
        return
    trained = parts.training
    if n := int(np.isin(row_of[tested], row_of[trained]).sum()):
        yield (
            f"{n:,} of {len(tested):,} test rows are the same as a training row, in all columns, so a model may know them by heart. Leave "
            f"copies out{'; or, if they are of one person, name its column, subject' * (own.subject is None)}."
        )
    at = np.unique(np.concatenate([np.unique(row_of[rows]) for rows in parts.train.values()]), return_counts=True)[1]
    if n := int((at > 1).sum()):
        yield f"{n:,} different rows are at several clients for training, the same in all columns."
    people = _people(own, parts.train)
    if n := len({*own.people[trained][np.concatenate([[], *people]) < 0].tolist()}):
        yield f"{n:,} people have training rows at several clients: none of these rows is held out for validation."


def _alike(own: UserData) -> Ids | None:
    """An id per row [n], equal for rows with equal target and inputs; None for images."""
    if isinstance(own.inputs, RawTable):
        columns = [cells.values for cells in own.inputs.columns.values()]
    elif isinstance(own.inputs, np.ndarray) and own.inputs.ndim == 2 and own.inputs.dtype != np.uint8:
        columns = list(own.inputs.T)
    else:
        return None
    rows = np.stack([own.targets, *columns], axis=1, dtype=np.float64) + 0.0  # no zero is negative
    number: dict[bytes, int] = {}
    return np.array([number.setdefault(row.tobytes(), len(number)) for row in rows], np.int64)


def _dealt(own: UserData, y: NDArray[Any], split: NDArray[Any], seed: int, clients: int | None, alpha: float) -> Column:
    """Whose each sample is, of data that do not say it: training samples by a Dirichlet draw, the others nobody's."""
    if clients is None:
        labels = "numbers to predict" if own.regression else f"{len(own.classes)} classes ({listed(own.classes)})"
        raise DataError(
            f"{own.source} does not say whose the samples are: {own.layout}, {labels}. "
            "Put a folder per client above those of the classes, or name the column with --set client=COLUMN; or have the samples "
            "divided among clients, with --set clients=8 (and --set alpha=0.5)."
        )
    rows = np.flatnonzero(split == "train")
    rows = rows[np.sort(np.unique(own.people[rows], return_index=True)[1])]  # one of each person
    with partition.errors_of("own"):
        least = max(1, min(10, len(rows) // (2 * clients)))
        dealt = partition.dirichlet(y[rows], clients, alpha, seed, min_size=least)
    theirs = [(split == "train") & np.isin(own.people, own.people[rows[part]]) for part in dealt]
    return partition.names_of(map(np.flatnonzero, theirs), len(y))


def _drawn_people(people: Ids, rows: Ids, parts: Ids, draw: Callable[[Ids], tuple[Ids, Ids]]) -> tuple[Ids, Ids]:
    """The ``rows`` of a client whose people are drawn, and its others; who is drawn at one client is drawn at all.

    ``draw`` gets one row of each person, and divides these. ``parts`` are changed: 1 of people who are drawn, 0 of others, -1 of those of
    whom no client has decided.
    """
    first = rows[np.sort(np.unique(people[rows], return_index=True)[1])]
    drawn, others = draw(first[parts[people[first]] < 0])
    parts[people[drawn]], parts[people[others]] = 1, 0
    away = parts[people[rows]] == 1
    return rows[away], rows[~away]


def _require_parts(own: UserData) -> None:
    """Require that the column of parts has all rows of a person in one."""
    if own.subject is None or own.split is None:
        return
    parts = grouped(zip(own.subject, own.split, strict=True))
    if several_parts := [name for name, splits in parts.items() if len({*splits}) > 1]:
        raise DataError(
            f"{own.source}: {len(several_parts):,} of {len(parts):,} people ({listed(several_parts)}) have rows in several parts of the "
            "column split. Put all rows of a person into one part, or leave the column out, so that people are drawn."
        )


def _drawn(rows: Ids, y: NDArray[Any], strata: NDArray[Any], share: float, rng: Generator) -> tuple[Ids, Ids]:
    """A share of the rows, at least one of two or more, and the rest.

    Rows in random order within their stratum, one stratum after another, of which every ``1 / share``-th is drawn: so each
    class gives its share, to within one sample. A class of one sample gives none, unless all classes are like that.
    """
    if len(rows) < 2:
        return rows[:0], rows
    alone = np.isin(y[rows], [k for k, n in zip(*np.unique(y[rows], return_counts=True), strict=True) if n < 2])
    pool = rows if alone.all() else rows[~alone]
    order = pool[np.lexsort((rng.random(len(pool)), strata[pool], y[pool]))]
    n = min(max(1, round(share * len(rows))), len(pool) // 2)  # no two neighbours, so that a class of two keeps one
    picked = order[((np.arange(n) + rng.random()) * len(order) / n).astype(np.int64)]
    return np.sort(picked), np.setdiff1d(rows, picked)


def _give_back(
    y: NDArray[Any], whose: Sequence[str], people: Ids, train: RowsOf, drawn: RowsOf, held: list[int]
) -> None:
    """Return a drawn sample of each class that nobody would train on otherwise: of a class with one sample, say."""
    for k in set(y.tolist()) - {int(y[row]) for rows in train.values() for row in rows}:
        first = next((row for rows in (*drawn.values(), held) for row in rows if y[row] == k), None)
        for rows in (*drawn.values(), held) if first is not None else ():
            for row in [row for row in rows if people[row] == people[first]]:
                rows.remove(row)
                train.setdefault(whose[row], []).append(row)
    for name in [name for name, rows in drawn.items() if not rows]:
        del drawn[name]


def test_sets(own: UserData, parts: Parts, tests: str | None) -> TestSets:
    """The named test sets, and for each client the one it belongs to, where each has one."""
    every = sorted([*chain.from_iterable(parts.test.values()), *parts.common])
    if not every:
        raise DataError(
            f"{own.source}: no client has a sample to spare for testing. Every client needs two samples or more."
        )
    few = bool(parts.test) and len(parts.test) <= MANY
    kind = tests or ("groups" if own.group is not None else "clients" if few else "all")
    if kind == "groups":
        return _sets_of_groups(own, parts, every)
    if kind == "clients" and parts.test:
        common = COMMON if COMMON not in parts.test else f"{COMMON} test"
        sets = parts.test | ({common: parts.common} if parts.common else {})
        return sets, tuple(parts.train) if parts.train.keys() <= parts.test.keys() else None
    return {ALL: every}, None


def _sets_of_groups(own: UserData, parts: Parts, every: list[int]) -> TestSets:
    """The test rows of each group, and the group of each client, where each has one."""
    if own.group is None:
        raise DataError(f"{own.source} has no column group, which tests=groups asks for. Name it: --set group=COLUMN.")
    by_group = grouped((own.group[row], row) for row in every)
    mine = [{own.group[row] for row in rows} for rows in parts.train.values()]
    alone = all(len(groups) == 1 and groups <= by_group.keys() for groups in mine)
    return {name: by_group[name] for name in ordered(by_group)}, tuple(map(set.pop, mine)) if alone else None


def federate(
    description: Description,
    about: Mapping[str, Any],
    own: UserData,
    parts: Parts,
    tests: str | None,
    size: int = SIDE,
    held: Draw = NOTHING,
    coder: Coder | None = None,
) -> Scenario:
    """The scenario of these parts, with a record that begins with what is ``about`` it; nothing is learnt of rows that are ``held`` out.

    ``coder`` is the one of these parts, if it was made before.
    """
    sets, of_clients = test_sets(own, parts, tests)
    beside = bool(parts.test) and of_clients != tuple(parts.train)  # clients have rows of their own in other sets
    samples, standard, doubts = _samples(own, size, parts, held, coder)
    standard |= {"held_out": {"share": held[0], "seed": held[1]}} if held[0] else {}
    notes = [*own.notes, *parts.notes, *doubts]

    def tested(part: Callable[[list[int]], Any]) -> tuple[dict[str, Any], tuple[Any, ...] | None]:
        """A part of the samples by test set, and that of each client, if clients have any in other sets."""
        mine = tuple(part(parts.test[name]) if name in parts.test else None for name in parts.train)
        return {name: part(rows) for name, rows in sets.items()}, mine if beside else None

    data, of_each = tested(partial(take, samples))
    return Scenario(
        **vars(description),
        clients=tuple(take(samples, rows) for rows in parts.train.values()),
        client_names=tuple(parts.train),
        client_groups=of_clients,
        client_tests=of_each,
        tests=data,
        server_validation=take(samples, parts.validation) if parts.validation else None,
        attributes=own.values,
        people=tuple(map(torch.from_numpy, _people(own, parts.train))) or None,
        tested=None if own.subject is None else tested(torch.from_numpy(own.people).__getitem__),
        manifest={**about, "sha256": _digest(own), **standard, "notes": notes, "clients": parts.train, "tests": sets},
    )


def _samples(
    own: UserData, size: int, parts: Parts, held: Draw, coder: Coder | None = None
) -> tuple[Data, dict[str, Any], list[str]]:
    """All samples, numbers standardised; what of that is for the record; and doubts about images and on what rounding changed."""
    y = torch.from_numpy(own.targets)
    s = None if own.codes is None else torch.from_numpy(own.codes)
    record, doubts = dict[str, Any](), list[str]()
    if isinstance(own.inputs, Pictures):
        path = own.inputs(size)
        record, doubts = {"side": size}, own.inputs.doubts(path)
        if len(own) * 3 * size * size > IN_MEMORY:
            return Mapped(path, np.arange(len(own)), y, s), record, doubts
        x: NDArray[Any] = np.load(path, allow_pickle=False)
    elif isinstance(own.inputs, RawTable):
        coder = coder or coder_of(own, parts, held)
        x, place = coder(own.inputs.columns), {name: k for k, name in enumerate(coder.names)}
        record = {"schema": coder.as_json(), "inputs": list(coder.names)}
        if numbers := [f.name for f in coder.schema.features if f.kind != CATEGORY]:
            cells = [(own.inputs.columns[name], coder.fitted[name].fill) for name in numbers]
            filled = np.stack([np.where(column.missing, fill, column.values) for column, fill in cells], 1)
            doubts = _rounding(own, filled, x[:, [place[name] for name in numbers]], numbers)
    elif own.inputs.dtype == np.uint8:
        x, doubts = own.inputs, [*doubtful(faint(own.inputs), own.names)]
    elif "function" in own.about:
        x = own.inputs
    else:
        learnt_from = np.concatenate(_learnt_from(own, parts, held))
        x, mean, std = standardised(own.inputs, learnt_from, lambda at: f"{own.source}: standardised, x{at}")
        record = {"standardised": {"mean": mean.flatten().tolist(), "std": std.flatten().tolist()}}
        record["standardised"] |= {"features": list(own.features)} if own.features else {}
        doubts = _rounding(own, own.inputs, x, own.features or [f"number {k}" for k in range(x[0].size)])
    data = torch.from_numpy(x), y
    return data if s is None else (*data, s), record, doubts


def coder_of(own: UserData, parts: Parts, held: Draw = NOTHING) -> Coder:
    """What makes inputs of the columns of a table, fitted to the training rows of every client without those it holds out."""
    assert isinstance(own.inputs, RawTable)
    return Coder.fitted_to(own.inputs, _learnt_from(own, parts, held))


def _learnt_from(own: UserData, parts: Parts, held: Draw) -> list[Ids]:
    """Of every client the rows that it trains on, of which means, categories and all else are learnt."""
    clients = [(name, np.array(rows, np.int64)) for name, rows in parts.train.items()]
    people: Sequence[Ids | None] = _people(own, parts.train) or [None] * len(clients)
    return [
        rows[~held_rows(len(rows), own.targets[rows], *held, name, who)]
        for (name, rows), who in zip(clients, people, strict=True)
    ]


def _people(own: UserData, train: Mapping[str, Sequence[int]]) -> list[Ids]:
    """Of every client the person of each training row, see :func:`at_one_client`; nothing if people are not known."""
    return [] if own.subject is None else at_one_client([own.people[rows] for rows in train.values()])


def _rounding(own: UserData, raw: NDArray[Any], x: NDArray[np.float32], names: Sequence[str]) -> list[str]:
    """A note on numbers that differ, and are the same once they are standardised or coded."""
    sentence = lost(raw, x, lambda k: names[k])
    return [f"{own.source}: {sentence} {UNTIE}"] if sentence else []


def rounding(own: UserData, parts: Parts) -> list[str]:
    """Notes on what coding or standardising changes: numbers that differ, and are then the same; none of image files."""
    return [] if isinstance(own.inputs, Pictures) else _samples(own, SIDE, parts, NOTHING)[2]


def _digest(own: UserData) -> str:
    """Sha256 of what the samples are; of image files their names and sizes, as their pixels may be gigabytes."""
    content = [own.label, own.client, own.group, own.split, own.features, own.names, dict(own.about)]
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    if isinstance(own.inputs, RawTable):
        for name, cells in own.inputs.columns.items():
            total.update(f"[{json.dumps(name)}, {json.dumps(cells.words) if cells.words else '[]'}]".encode())
            total.update(np.ascontiguousarray(cells.values).data)
        total.update(own.inputs.schema.digest.encode())
    elif not isinstance(own.inputs, Pictures):
        total.update(np.ascontiguousarray(own.inputs).data)
    return total.hexdigest()
