"""Tables at several sites: each gives sums of its training rows, and all code their rows by the one schema that the sums give."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.contents import DataError
from equipoise.data.formats.reading import read_user_data
from equipoise.data.formats.table import opened
from equipoise.data.samples import Draw, OfPeople, held_rows
from equipoise.data.tables.cells import RawTable
from equipoise.data.tables.checks import DIFFERENT, SHARES, shortened, unlike, unlike_words
from equipoise.data.tables.coding import Coder, Sums, add_up_all, learn
from equipoise.data.tables.columns import Columns, UserData, numbered, ordered
from equipoise.data.tables.options import AGREED, WRITTEN, listed
from equipoise.data.tables.reading import key_of
from equipoise.data.tables.schema import CATEGORY, LEFT_OUT, NUMBER, Schema
from equipoise.data.tables.words import same_numbers, twins
from equipoise.privacy.suppression import enough, exposed
from equipoise.scenarios.own import Parts, columns_of, divided
from equipoise.system import calls, tensor_files
from equipoise.system.environment import versions
from equipoise.system.errors import DamagedError
from equipoise.system.files import ANYWHERE, locked, make_private, read_regular, write_atomically
from equipoise.system.grouping import grouped
from equipoise.system.places import own_state
from equipoise.system.ranges import check_number
from equipoise.system.seals import open_json, sealed_json, typed
from equipoise.system.text import noun

log = logging.getLogger(__name__)

FORMAT: Final = 4  # of both files
LEAST = 10  # training rows of a category or a bin whose count leaves a site
SITE = "site"  # the one client of a table

Codes = NDArray[np.int64]
Cells = Mapping[str, Codes]  # by the number of a column's name
Rows = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class SharedSchema:
    """What all sites agree on before the first round: how their tables become inputs, and the names of classes.

    Parameters
    ----------
    coder : makes inputs of rows.
    classes : their names, in the order of their numbers; none in regression.
    values : by the name of each sensitive attribute the names of its values, in the order of their codes.
    centre, scale : of numbers to predict, the mean and standard deviation of all training rows.
    options : how tables are read: the label, the groups, what is left out.
    rows : training rows of every site.
    seed, test : of the draw of test rows, where no column states them: the same as when the sums were made.
    validation : share of its training rows that each site holds out in runs, of which nothing was learnt; drawn by ``seed``.
    sites : their names, where they hold rows out, as the draw depends on them.
    """

    coder: Coder
    classes: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]
    centre: float
    scale: float
    options: Mapping[str, Any]
    rows: tuple[int, ...]
    seed: int = 0
    test: float = 0.2
    validation: float = 0.0
    sites: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs of the network, in order."""
        return self.coder.names

    @property
    def task(self) -> str:
        """The task, with the centre and scale of numbers to predict."""
        if self.classes:
            return "classification"
        options = calls.read(str(self.options.get("task") or "")).pairs or ()  # such as loss=huber
        own = [*filter(any, options), ("centre", repr(self.centre)), ("scale", repr(self.scale))]
        return f"regression({', '.join(map('='.join, own))})"

    def read(self, data: str | Path, **written: Any) -> tuple[Rows, Rows]:
        """The training and test rows of a site's table: ``(x, y)``, or ``(x, y, s)`` with sensitive attributes.

        Parameters
        ----------
        data : the table; its columns are matched by name.
        written : ``sep``, ``decimal``, ``encoding`` of this table.

        Raises
        ------
        DataError : the table is not as the schema says, or has a class or value that no site named.
        """
        train, tested = (d.data if isinstance(d, OfPeople) else d for d in self.samples(data, **written))
        return train, tested

    def samples(self, data: str | Path, **written: Any) -> tuple[Rows | OfPeople, Rows | OfPeople]:
        """The same with the people of the rows, if the schema has the column ``subject``."""
        own, parts = _site(data, {**self.options, **written}, self.seed, self.test)
        assert isinstance(own.inputs, RawTable)
        for note in self.coder.notes(own.inputs.columns, own.source):
            log.warning("%s: %s", own.source, note)
        x = torch.from_numpy(self.coder(own.inputs.columns))
        y = torch.from_numpy(own.targets if own.regression else _codes(own, "class", own.label, self.classes))
        columns = [_codes(own, name, words, self.values[name]) for name, words in own.attributes.items()]
        s = (torch.from_numpy(np.stack(columns, 1)),) if columns else ()
        train, tested = (torch.tensor(rows.get(SITE, []), dtype=torch.int64) for rows in (parts.train, parts.test))
        mine, tests = (tuple(part[rows] for part in (x, y, *s)) for rows in (train, tested))
        if own.subject is None:
            return mine, tests
        return OfPeople(mine, own.people[train.numpy()]), OfPeople(tests, own.people[tested.numpy()])

    def doubt(self, held: Draw, site: str) -> str:
        """Why something was learnt of rows that a site holds out in a run, and what to do; empty if nothing was."""
        if not held[0] or (held == (self.validation, self.seed) and site in self.sites):
            return ""
        made = f"{self.validation:g} of {listed(self.sites)} by seed {self.seed}" if self.sites else "nothing"
        return (
            f"holds out {held[0]:g} of its training rows by seed {held[1]}, and the schema was made with {made} held out, so it was learnt "
            f"from rows for validation. Run with validation = 0, or write validation = {held[0]:g} into the file of all sites and make "
            f"the schema again: equipoise schema sums TABLE --config FILE --seed {held[1]} --site {site}"
        )

    def save(self, path: str | Path) -> None:
        """Write a sealed JSON file."""
        content = vars(self) | {"coder": self.coder.as_json(), "format": FORMAT}
        write_atomically(Path(path), sealed_json(content))

    @staticmethod
    def load(path: str | Path) -> SharedSchema:
        """Read what :meth:`save` wrote.

        Raises
        ------
        DataError : no such file, or one that was changed.
        """
        content = _opened(Path(path), "coder", "equipoise schema join SUMS...")
        return typed(SharedSchema, content | {"coder": Coder.of(content["coder"])})


def site_sums(
    data: str | Path,
    options: Mapping[str, Any],
    *,
    seed: int = 0,
    test: float = 0.2,
    least: int = LEAST,
    validation: float = 0.0,
    site: str | None = None,
) -> dict[str, Any]:
    """What a site gives of its table: sums over its training rows, as JSON has them.

    Parameters
    ----------
    data : the site's table.
    options : of the scenario ``own``, as ``equipoise init`` writes them; ``columns`` is the schema of all sites.
    seed, test : where no column says what is for testing, a share ``test`` in (0, 0.5] is drawn.
    least : >= 1, training rows of a category, of a class, or of a bin of the sketch, whose count leaves the site.
    validation, site : in [0, 1), the share of its training rows that the site holds out in runs, of which it gives no sums; and its
        name there, on which the draw depends.

    Raises
    ------
    DataError : there is no schema, the table is not as it says, it has fewer training rows than ``least``, rows are held out of a
        site without a name, or sums of nearly the same rows were made before.
    """
    check_number("validation", validation, 0, 1, ", the share of its training rows that a site holds out", below=True)
    if validation and site is None:
        raise DataError(
            f"validation={validation:g} holds rows out by the site's name, which is missing: give it with --site NAME."
        )
    own, parts = _site(data, options, seed, test)
    assert isinstance(own.inputs, RawTable)
    for note in own.notes:  # for the site alone
        log.warning("%s", note)
    rows = np.array(parts.training, np.int64)
    people = None if own.subject is None else own.people[rows]
    rows = rows[~held_rows(len(rows), own.targets[rows], validation, seed, str(site), people)]
    if not enough(len(rows), least):
        raise DataError(
            f"{data} has {len(rows)} training rows, and numbers about fewer than {least} do not leave a site: it cannot take part, "
            f"unless its people allow it with --least {max(1, len(rows))}."
        )
    _require_apart(Path(data), options, own, rows, least)
    sums = add_up_all(own.inputs, [rows])
    numbers = {name: np.unique(column.points, return_counts=True)[1] for name, column in sums.items()}
    if telling := [name for name, counts in numbers.items() if len(counts) == 2 and not enough(counts.min(), least)]:
        log.warning(
            "%s: column%s %s: two numbers, of which fewer than %d rows have one, and the sum tells how many. If that must not leave this "
            'site, make it kind = "%s" in the file of all sites.',
            *(data, "s" * (len(telling) > 1), listed(telling), least, CATEGORY),
        )
    values = {name: _words([words[row] for row in rows], least) for name, words in own.attributes.items()}
    draw = {"least": least, "seed": seed, "test": test, "rows": len(rows), "validation": validation}
    return {
        "format": FORMAT,
        "options": {name: options[name] for name in AGREED if options.get(name)},
        "columns": {name: _content(column.suppressed(least)) for name, column in sums.items()},
        "label": _content(_label(own, rows, least)),
        "values": {name: _content(counts) for name, counts in values.items()},
        **draw,
        "site": site if validation else None,
        "versions": versions(),
    }


def _label(own: UserData, rows: NDArray[np.int64], least: int) -> Sums:
    """The sums of what is to be predicted of some rows: of numbers, or of the classes that ``least`` rows have."""
    if not own.regression:
        return _words([own.label[row] for row in rows], least)
    y = own.targets[rows]
    return Sums(len(y), len(y), float(y.sum()), float(y.std()))


def join(sums: Mapping[str, Mapping[str, Any]]) -> SharedSchema:
    """The schema of all sites, from the sums of each, by the name of its file.

    Raises
    ------
    DataError : no sums, sums of other options or columns, or fewer than two classes in all.
    """
    reference = _require_joinable(sums)
    schema = Schema.of(reference["options"]["columns"])
    sites = [*sums.values()]
    parts = [{name: Sums(**column) for name, column in site["columns"].items()} for site in sites]
    label = Sums.over([Sums(**site["label"]) for site in sites])
    regression = str(reference["options"].get("task", "")).startswith("regression")
    classes = () if regression else ordered(filter(None, label.words))
    if not regression and len(classes) < 2:
        raise DataError(
            f"{listed(sums)}: fewer than two classes have as many training rows as a site names: {classes}."
        )
    words = {name: {word for site in sites for word in site["values"][name]["words"]} for name in reference["values"]}
    values = {name: ordered(filter(None, words_of_sites)) for name, words_of_sites in words.items()}
    rows = tuple(int(site["rows"]) for site in sites)
    columns = {name: Sums.over([part[name] for part in parts]) for name in schema.names}
    categories = {name: {word for part in parts for word in part[name].words} for name in schema.names}
    _require_one_spelling({"class": classes, **values, **categories}, schema.names)
    coder = Coder(schema, learn(schema, columns))
    centre, scale = label.mean, label.deviation or 1.0
    names = tuple(str(site["site"]) for site in sites if site["site"])
    draw = reference["seed"], reference["test"], reference["validation"], names
    return SharedSchema(coder, classes, values, centre, scale, dict(reference["options"]), rows, *draw)


def _require_joinable(sums: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Require sums of different sites with the same options, and cells in every column; the first of them."""
    if not sums:
        raise DataError("No sums of a site were given.")
    (first, reference), *others = sums.items()
    files = [*sums]
    if twice := [name for k, name in enumerate(files) if sums[name] in [sums[other] for other in files[:k]]]:
        raise DataError(f"{listed(twice)}: the same sums as another file. Give those of every site once.")
    same = ("options", "seed", "test", "validation")
    if different := [name for name, other in others if any(other.get(key) != reference[key] for key in same)]:
        every = set[str]().union(*(site["columns"] for site in sums.values()))
        lost = {name: ordered(every - site["columns"].keys()) for name, site in sums.items()}
        lacks = [f" {name} has no sums of {listed(columns)}." for name, columns in lost.items() if columns]
        raise DataError(
            f"{listed(different)}: made with other options than {first}.{''.join(lacks[:10])} All sites need the same file for --config, and "
            "the same --seed."
        )
    if empty := [column for column in reference["columns"] if len(lacking(sums, column)) == len(sums)]:
        lines = ", ".join(f'{key_of(column)} = {{ kind = "{LEFT_OUT}" }}' for column in empty)
        raise DataError(
            f"{noun('column', len(empty))} {listed(empty)}: no site has {reference['least']} training cells or more that are not missing. Write in "
            f"the file of all sites, below [columns]: {lines}. Then make the sums again."
        )
    return reference


def _require_one_spelling(names: Mapping[str, Iterable[str]], columns: Sequence[str]) -> None:
    """Require names that a reader can distinguish, and that are not the same number, except in ``columns``."""
    for name, words in names.items():
        spelled = sorted(filter(None, words))
        same_number = [] if name in columns else same_numbers(spelled)
        if pairs := [*twins(spelled), *(group[:2] for group in same_number)]:
            spellings = listed(f"{a!r} and {b!r}" for a, b in pairs)
            raise DataError(
                f"{name}: {spellings} differ only in capital letters, spaces or zeros between sites. Write them in one way."
            )


def lacking(sums: Mapping[str, Mapping[str, Any]], column: str) -> list[str]:
    """The sites that give no sums of a column, as every training cell is missing there, or all but a few are."""
    return [name for name, site in sums.items() if not site["columns"][column]["present"]]


def unlike_sites(sums: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Notes on columns that are in another unit at a site, from the sums of each, by its name."""
    notes: list[str] = []
    for feature in Schema.of(next(iter(sums.values()))["options"]["columns"]).features:
        of_sites = {name: Sums(**site["columns"][feature.name]) for name, site in sums.items()}
        of_sites = {name: column for name, column in of_sites.items() if enough(column.present, LEAST)}
        if feature.kind == CATEGORY:
            notes += unlike_words(feature.name, {name: column.words for name, column in of_sites.items()}, "site")
        elif feature.kind == NUMBER and feature.scaling != "log":
            many = np.array([len({point for column in of_sites.values() for point in column.points}) >= DIFFERENT])
            quantiles = {name: np.array(column.quantile(*SHARES))[:, None] for name, column in of_sites.items()}
            notes += unlike([feature.name], quantiles, "site", many) if quantiles else []
    return shortened(notes)


def load_sums(path: Path) -> dict[str, Any]:
    """The sums of a site in a file."""
    return _opened(path, "columns", "equipoise schema sums TABLE")


def _opened(path: Path, key: str, how: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = open_json(read_regular(path, ANYWHERE).decode())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Make it: {how}.") from None
    except ValueError as error:
        raise DataError(f"{path} was changed or is damaged ({error}). Make it again: {how}.") from None
    if content.pop("format", None) != FORMAT or key not in content:
        raise DataError(f"{path} is another file, or one of another version of Equipoise. Make it: {how}.")
    return content


def _site(data: str | Path, options: Mapping[str, Any], seed: int, test: float) -> tuple[UserData, Parts]:
    """A site's table by the schema of all sites, and which of its rows are for training."""
    if not options.get("columns"):
        raise DataError(
            "The options have no columns: all sites need one schema. Write it at one of them: equipoise init --data TABLE."
        )
    written = {name: options[name] for name in (*AGREED, *WRITTEN) if name in options}
    own = read_user_data(data, replace(columns_of(**written), agreed=True))
    if not isinstance(own.inputs, RawTable):
        raise DataError(f"{data}: a schema is for tables, and this is {own.layout}.")
    own = replace(own, client=(SITE,) * len(own))
    return own, divided(own, seed, test=test)


def _require_apart(path: Path, options: Mapping[str, Any], own: UserData, rows: NDArray[np.int64], least: int) -> None:
    """Require that sums over some rows of a table tell of no few people, with all sums that were made before."""
    written = {name: options[name] for name in WRITTEN if name in options}
    table = opened(path if path.is_file() else path / own.about["file"], Columns(**written))
    place = {table.at(k): k for k in range(len(table))}
    cells, places = table.words(table.names), [place[own.names[row]] for row in rows.tolist()]
    people = None if own.subject is None else [own.subject[row] for row in rows.tolist()]
    require_apart(row_codes(cells, places), cell_codes(cells, places), people, least, str(path))


def _codes(own: UserData, what: str, words: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    if strange := ordered({*words} - {*names}):
        raise DataError(
            f"{own.source}: {what} {listed(map(repr, strange))} is not in the schema, whose values are {listed(names)}. Too few "
            "training rows of any site have it: remove these rows, or join the sums again with a lower --least."
        )
    return numbered(words, names)


def _content(sums: Sums) -> dict[str, Any]:
    """Sums as JSON has them."""
    return sums._asdict() | {"words": dict(sums.words)}


def _words(words: Sequence[str], least: int) -> Sums:
    return Sums(len(words), len(words), words=Counter(words)).suppressed(least)


# the rows whose sums left this machine: the difference of sums of nearly the same rows is about few people
def row_codes(cells: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> Codes:
    """A number for each of some rows of a table [n], from all its cells in any order of columns; the second of two equal rows has its own."""
    names, seen, codes = sorted(cells), Counter[str](), list[int]()
    for row in rows:
        text = json.dumps([[name, str(cells[name][row])] for name in names])
        seen[text] += 1
        codes.append(_code(f"{seen[text]} {text}"))
    return np.array(codes, np.int64)


def cell_codes(cells: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, Codes]:
    """A number for each cell of some rows of a table [n], by that of its column's name: however capitals, spaces and zeros are written."""
    return {str(_code(_plain(name))): np.array([_code(_plain(cells[name][row])) for row in rows]) for name in cells}


def require_apart(rows: Codes, cells: Cells, people: Sequence[str] | None, least: int, source: str) -> None:
    """Store the rows of which sums leave, unless sums of fewer than ``least`` people follow from these and all that left before.

    Parameters
    ----------
    rows, cells : of :func:`row_codes` [n] and :func:`cell_codes`. A row is one that left before if both have the same cells in their tables'
        common columns, which are more than half of either's.
    people : whom each row is about [n]; None: each row is a person.
    source : the table, for the error.

    Raises
    ------
    DataError : they would follow.
    """
    folder = own_state() / "sums"
    make_private(folder)
    with locked(folder / ".lock", wait=True):
        earlier: list[dict[int, int]] = []
        for path in sorted(folder.glob("*.safetensors")):
            try:
                past = tensor_files.read(path)
                earlier.append(dict(zip(past["rows"].tolist(), past["people"].tolist(), strict=True)))
                rows = _matched(rows, cells, past["rows"].numpy(), {name: x.numpy() for name, x in past.items()})
            except (DamagedError, KeyError) as error:
                raise DataError(
                    f"{path} is damaged ({error}). Put a copy back, or delete it if its sums were never sent."
                ) from None
        persons = rows if people is None else np.array([*map(_code, people)], np.int64)
        these = dict(zip(rows.tolist(), persons.tolist(), strict=True))
        whom = {row: who for rows_of in (*earlier, these) for row, who in rows_of.items()}
        every = np.array([*whom], np.int64)
        sums = np.array([np.isin(every, [*rows_of]) for rows_of in (these, *earlier)])
        if (sums[1:] == sums[0]).all(1).any():
            return
        person = np.array([*whom.values()], np.int64)
        now, before_now = (exposed(given, np.arange(len(every)), person, least) for given in (sums, sums[1:]))
        if (now & ~before_now).any():
            raise DataError(
                f"{source}: these sums, with those that were made here before, would tell of fewer than {least} people. Give an earlier file "
                f"again, or use its rows and options. If an earlier file was never sent, delete its rows in {folder}."
            )
        name = hashlib.sha256(np.sort(rows).tobytes()).hexdigest()[:16]
        content = {"rows": rows, "people": persons, **cells}
        tensors = {key: torch.from_numpy(x) for key, x in content.items()}
        tensor_files.write(folder / f"{name}.safetensors", tensors, private=True)


def _matched(rows: Codes, cells: Cells, past: Codes, past_cells: Cells) -> Codes:
    """The numbers of rows [n], of those that are among the ``past`` ones [m] theirs."""
    common = [name for name in cells if name in past_cells]
    if 2 * len(common) <= max(len(cells), len(past_cells) - 2):  # which has rows and people, too
        return rows
    table = np.stack([np.concatenate([past_cells[name], cells[name]]) for name in common], 1)
    kinds = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1).tolist()
    same = {*rows.tolist()} & {*past.tolist()}
    left = grouped((kind, row) for kind, row in zip(kinds, past.tolist(), strict=False) if row not in same)
    pairs = zip(kinds[len(past) :], rows.tolist(), strict=True)
    return np.array([left[kind].pop() if row not in same and left.get(kind) else row for kind, row in pairs], np.int64)


def _plain(cell: Any) -> str:
    text = str(cell).strip().casefold()
    with suppress(ValueError):
        return repr(float(text.replace(",", ".")))
    return text


def _code(text: str) -> int:
    code = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(code, "little", signed=True)
