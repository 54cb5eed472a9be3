"""Arrays x and y: of an ``.npz`` file, of files of PFLlib, MATLAB or LEAF, or of a function."""

import contextlib
import json
import re
import shlex
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from equipoise.data.contents import JSON, LOOK, DataError, check_bytes, check_npz, explain_damage, read_matlab, reason
from equipoise.data.precision import counting, finite, lost, single
from equipoise.data.samples import Lazy
from equipoise.data.tables.columns import SPLITS, Columns, UserData, check_purposes, column, file_totals, together
from equipoise.data.tables.options import WRITTEN, listed
from equipoise.data.tables.roles import groups_of, named_columns, read_roles
from equipoise.data.tables.words import EXACT, Origin
from equipoise.system import own_code
from equipoise.system.files import ANYWHERE, open_regular
from equipoise.system.text import Said, key_of, plural

# Of inputs and labels.
PAIRS = (("{}_images", "{}_labels"), ("x_{}", "y_{}"), ("{}_x", "{}_y"), ("{}_data", "{}_labels"))

Arrays = Mapping[str, NDArray[Any]]
OfClient = tuple[str, str, NDArray[Any], NDArray[Any]]  # part of the data ("": none), client, samples and labels
EXPECTED = (
    "Return a list with (x, y) or a data set for each client, a dictionary of these by the clients' names, or a dictionary of arrays "
    "x [n, ...], y [n] and, if you like, client, group and split [n]"
)
PARTS = ("train", "test")  # folders of PFLlib
PACKED = 15  # a variable of MATLAB
MATLAB_73, HDF = b"MATLAB 7.3", b"\x89HDF"  # begin files of this version, with and without a text before
KEYS = ("users", "num_samples", "user_data", "hierarchies")
BEGIN = re.compile(rb'\s*\{\s*"(?:' + "|".join(KEYS).encode() + rb')"')
LOOKED_AT = 1 << 12  # bytes of a file that may be of LEAF
TEXT = (
    " Networks here take numbers: make them of text in a function of your own, --data my.py:clients. Of names of images make a "
    "table with the columns path, label and client."
)
PICKLED = "pickled"  # kind of errors: an array holds Python objects


def npz(path: Path, columns: Columns) -> UserData:
    """Read arrays: x [n, ...] and y [n], and client, group and split [n] if they exist; or those of MedMNIST and Keras.

    Raises
    ------
    DataError : an array is missing or wrong.
    """
    arrays: Arrays = opened(path)
    if not {"x", columns.image} & arrays.keys():
        arrays = joined(path, arrays)
    return from_arrays(path, arrays, columns, {"file": path.name, "bytes": path.stat().st_size})


def opened(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file, which fit into memory and hold no Python objects."""
    with open_regular(path, ANYWHERE) as file:
        if file.read(2) != b"PK":  # of a zip file
            raise DataError(f"{path} cannot be read: it is no NPZ file. Write it with np.savez(...).")
    with explain_damage(f"{path} cannot be read", "Write it with np.savez(...)."), path.open("rb") as file:
        check_npz(path)
        try:
            archive = np.load(file, allow_pickle=False)
            return {name: x for name in archive.files if isinstance(x := archive[name], np.ndarray)}
        except ValueError as error:
            if "pickle" not in str(error).lower():
                raise
            fault = f"{path}: an array holds Python objects, which are not read because they could run code"
            raise DataError(f"{fault}. Save numbers, or text as np.array(list_of_words).", PICKLED) from None


def joined(path: Path, arrays: Arrays) -> Arrays:
    """Arrays with x, y and split, of those that have a pair of arrays for each part: ``train_images`` and ``train_labels``."""
    forms, parts = _pairs(arrays)
    if not parts:
        return arrays
    if lone := [next(filter(None, pair)) for pair in parts.values() if None in pair]:
        expected = " and ".join(form.format("PART") for form in forms)
        raise DataError(f"{path}: {lone[0]} is there without its pair; expected {expected} for each part.")
    x, y = ([arrays[str(pair[k])] for pair in parts.values()] for k in (0, 1))
    y = [labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels for labels in y]
    if many := [labels.shape for labels in y if labels.ndim != 1]:
        raise DataError(_choice(path, many[0], forms[1].format("")))
    if different := _different(zip(parts, x, strict=True), typed=True):
        raise DataError(f"{path}: {different[0]}")
    used = {name for pair in parts.values() for name in pair}
    made = {"x": np.concatenate(x), "y": np.concatenate([*map(_words, y)])}
    made["split"] = np.repeat(np.array([*parts], object), [*map(len, y)])
    return made | {name: array for name, array in arrays.items() if name not in used | made.keys()}


def _pairs(arrays: Arrays) -> tuple[tuple[str, str], dict[str, list[str | None]]]:
    """How pairs of arrays are called, and those of each part; none if there is none for training."""
    names = {name.lower(): name for name in arrays}
    for forms in PAIRS:
        pairs = {part: [names.get(form.format(part)) for form in forms] for part in SPLITS}
        parts = {part: pair for part, pair in pairs.items() if any(pair)}
        if None not in parts.get("train", [None]):
            return forms, parts
    return PAIRS[0], {}


def _different(samples: Iterable[tuple[str, NDArray[Any]]], *, typed: bool) -> list[str]:
    """A problem if samples differ in shape, or one part of them has bytes; if they are ``typed``, no other types may differ either."""
    first: dict[str, str] = {}
    for name, x in samples:
        first.setdefault(f"{x.dtype if typed or x.dtype == np.uint8 else 'numbers'} {list(x.shape[1:])}", name)
    forms = " and ".join(f"{form} of {name}" for form, name in first.items())
    return [f"samples must be of one type and shape; found {forms}."] * (len(first) > 1)


def _choice(path: Path, shape: tuple[int, ...], labels: str) -> str:
    """What to do with samples of several labels, in columns."""
    new = str(path.with_name(f"{path.stem}-0.npz").absolute())
    code = (
        f"import numpy as np; d = dict(np.load({json.dumps(str(path.absolute()))})); "
        f"d.update({{k: v[:, [0]] for k, v in d.items() if {json.dumps(labels)} in k.lower()}}); np.savez({json.dumps(new)}, **d)"
    )
    return (
        f"{path}: the labels are {list(shape)}, several for each sample, and a sample has one class here. Choose one of them, here that "
        f"of column 0, and give the result with --data {shlex.quote(new)}:\n\npython -c {shlex.quote(code)}\n"
    )


def from_arrays(
    path: Path | str, arrays: Arrays, columns: Columns, about: Mapping[str, Any], form: str = "arrays"
) -> UserData:
    """The user's data in arrays by name; ``path`` and ``form`` say where they are from. Whole numbers of a function stay so."""
    file, names = Path(path).name, list(arrays)
    columns.require_none((*WRITTEN, "keep", "inputs", "unlabelled", "leave_out", "schema"), path, "a table")
    used = named(path, names, columns)
    x_name = used.pop("x")
    _check_roles(path, arrays, x_name, used)
    x = arrays[x_name]
    inputs, input_notes = _inputs(path, x_name, np.ascontiguousarray(x), "function" in about)
    notes = _unused(file, names, (x_name, *used.values())) + input_notes
    groups = groups_of(columns, names, file)

    def origin(name: str) -> Origin:
        return Origin(f"{path}, {name}", partial("{}[{}]".format, name))

    roles, problems, role_notes = read_roles(path, columns, used, groups, arrays.__getitem__, origin)
    notes += role_notes
    if problems:
        raise DataError(together(path, problems))
    numbers = inputs.ndim == 2 and inputs.dtype.kind in "iuf" and "function" not in about
    if which := [f"{x_name}[:, {k}]" for k in (counting(inputs) if numbers else ())]:
        notes.append(f"{file}: {listed(which)} holds only the numbers of the rows. Remove it if it is no feature.")
    return UserData(
        source=str(path),
        layout=f"{form}: {'images' if inputs.dtype == np.uint8 else 'numbers'} {list(inputs.shape[1:])}",
        inputs=inputs,
        names=tuple(f"{x_name}[{k}]" for k in range(len(x))),
        about=about,
        notes=tuple(notes),
        **roles,
    )


def _unused(file: str, names: Iterable[str], used: Collection[str]) -> list[str]:
    """A note on arrays that are not used, if there are any."""
    unused = [name for name in names if name not in used]
    return [f"{file}: {listed(unused)} {'are' if len(unused) > 1 else 'is'} not used."] * bool(unused)


def joined_clients(parts: Sequence[OfClient]) -> dict[str, NDArray[Any]]:
    """The samples of all clients one after another, and whose each is; also the parts of the data, where some have a name."""
    splits, names, samples, labels = zip(*parts, strict=True) if parts else ((), (), (), ())
    sizes = [*map(len, labels)]
    arrays = {"x": np.concatenate([x for x in samples if len(x)] or [np.empty((0, 1))])}
    arrays["y"] = np.concatenate([*map(_words, labels)] or [np.empty(0)])
    arrays["client"] = np.repeat(np.array(names, object), sizes)
    return arrays | ({"split": np.repeat(np.array(splits, object), sizes)} if any(splits) else {})


def _words(cells: NDArray[Any]) -> NDArray[Any]:
    """Cells of which none has the length of the longest, if they are text."""
    return cells.astype(object) if cells.dtype.kind in "US" else cells


def named(path: Path | str, names: Sequence[str], columns: Columns) -> dict[str, str]:
    """The array of the samples, ``"x"``, and that of each role there is."""
    file = Path(path).name
    used = named_columns(columns, names, file)
    used["label"] = column(names, columns.label, "y", file) or column(names, None, "label", file)
    used["x"] = column(names, columns.image, "x", file)
    if lost := next((name for name, role in (("x", "x"), ("y", "label")) if used[role] is None), ""):
        expected = "Expected x [n, ...] and y [n], or others by their names: --set image=NAME --set label=NAME."
        raise DataError(f"{path} has no array {lost}; it holds {listed(names) or 'nothing'}. {expected}")
    check_purposes(used, path)
    return {role: name for role, name in used.items() if name is not None}


def _check_roles(path: Path | str, arrays: Arrays, x_name: str, roles: Mapping[str, str]) -> None:
    """Require an entry per sample in the array of each role."""
    x = arrays[x_name]
    for role, name in roles.items():
        if arrays[name].shape != x.shape[:1]:
            raise DataError(
                f"{path}: {name} has shape {list(arrays[name].shape)} and {x_name} {list(x.shape)}; expected one {role} per sample, [{len(x) if x.ndim else 'n'}]."
            )
        if arrays[name].dtype.kind == "c":
            raise DataError(f"{path}: {name} holds complex numbers; expected words or real numbers.")


def _inputs(path: Path | str, name: str, x: NDArray[Any], function: bool) -> tuple[NDArray[Any], list[str]]:
    """Finite numbers [n, ...], or images uint8 [n, C, H, W] from [n, H, W], [n, H, W, C] or [n, C, H, W]; and notes.

    Of a function numbers become float32, or int64 where they are whole, and their sides stay.
    """
    if x.dtype.kind not in "biuf" or x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{path}: {name} must be numbers [n, ...], at least one each; found {x.dtype} {list(x.shape)}.")

    def where(at: list[int]) -> str:
        return f"{path}: {name}{at}"

    file, notes = Path(path).name, []
    if function and x.dtype.kind in "iu" and x.dtype != np.uint8:
        return x.astype(np.int64), []
    if function and x.dtype != np.uint8:
        rounded = single(x, where)
        if rounding := lost(x, rounded, lambda k: f"number {k} of a sample"):
            notes.append(f"{file}: {rounding} Subtract their mean, in double precision, before you return them.")
        return rounded, notes
    channels_last = x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)
    images = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if channels_last else x
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = x[:, None] if x.ndim == 3 else images
        if images.shape[1] not in (1, 3):
            raise DataError(
                f"{path}: {name} holds bytes {list(x.shape)}: images have 1 or 3 channels, as [n, C, H, W] or [n, H, W, C]."
            )
        return images, []
    if channels_last:
        notes.append(f"{file}: {name} is taken as images with the channels last, and becomes {list(images.shape)}.")
    return finite(images, where), notes


def from_function(reference: str, columns: Columns, seed: int) -> UserData:
    """Call a function, with ``seed`` if its signature has one, and take what it returns as it is: nothing is standardised.

    It returns a list with ``(x, y)``, a ``torch.utils.data.Dataset`` or :class:`Lazy` for each client; or a dictionary of these by
    the clients' names; or a dictionary of arrays as an ``.npz`` file has them. All samples are kept in memory.

    Raises
    ------
    InputError : the function is not there, or fails. DataError : it returns something else.
    """
    returned = own_code.call("data", reference, {"seed": seed}, {})
    if isinstance(returned, Mapping) and {"x", "y"} <= returned.keys():
        _refuse_several(reference, returned["x"])
        arrays = {name: np.asarray(value) for name, value in returned.items()}
    elif not isinstance(returned, Mapping | list | tuple) or not len(returned):
        raise DataError(f"{reference} returned {type(returned).__name__}, or an empty one. {EXPECTED}.")
    else:
        clients: Any = returned
        if not isinstance(returned, Mapping):
            clients = {f"client-{k}": data for k, data in enumerate(returned, start=1)}
        pairs = {str(name): _pair(f"{reference}, {name}", data) for name, data in clients.items()}
        if len(pairs) < len(clients):
            raise DataError(
                f"{reference}: two clients have the same name as text: {listed(map(repr, clients))}. Rename one."
            )
        if different := _different(((name, x) for name, (x, _) in pairs.items()), typed=False):
            raise DataError(f"{reference}: {different[0]}")
        arrays = joined_clients([("", name, x, y) for name, (x, y) in pairs.items()])
    return from_arrays(reference, arrays, columns, {"function": own_code.short(reference)})


def _pair(who: str, data: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The samples and labels of one client."""
    try:
        data = data.load() if isinstance(data, Lazy) else data
        if isinstance(data, Dataset):
            data = zip(*(data[k] for k in range(len(data))), strict=True)  # type: ignore[arg-type]
        x, y = data
        _refuse_several(who, x if isinstance(x, Mapping) else x[0])
        x, y = (np.stack([*map(np.asarray, part)]) for part in (x, y))
    except DataError:
        raise
    except Exception as error:  # of the user's code
        raise DataError(
            f"{who}: {type(data).__name__} cannot be read ({type(error).__name__}: {reason(error)}). {EXPECTED}."
        ) from error
    if y.shape != x.shape[:1]:
        raise DataError(f"{who}: expected x [n, ...] and y [n]; found {list(x.shape)} and {list(y.shape)}.")
    return x, y


def _refuse_several(who: str, x: object) -> None:
    """Require inputs that are one array."""
    if isinstance(x, Mapping):
        fault = f"x is a dictionary of {listed(map(repr, x))}"
        given = "data that a function gives here have one array of inputs"
        todo = "Join them into one, or train in Python, where a network may take several: eq.Federation(net, clients)."
        raise DataError(f"{who}: {fault}, and {given}. {todo}")


def pfllib_files(folder: Path) -> list[Path]:
    """The files ``train/CLIENT.npz`` and, if there are any, ``test/CLIENT.npz`` of a folder."""
    train, test = (sorted((folder / part).glob("*.npz")) for part in PARTS)
    return [*train, *test] if train else []


def from_pfllib(folder: Path, columns: Columns, files: Sequence[Path]) -> UserData:
    """Read a file per client and part, as PFLlib has them, each with arrays x and y."""
    parts: list[OfClient] = []
    problems: list[str] = []
    total = 0
    for path in files:
        try:
            arrays = opened(path)
        except DataError as error:
            if error.kind != PICKLED:
                raise
            raise DataError(_conversion(folder, path)) from None
        purposes = {"x": columns.image, "y": columns.label}
        named = [column([*arrays], asked, usual, path.name) for usual, asked in purposes.items()]
        if None in named:
            problems.append(f"{path.parent.name}/{path.name} holds {', '.join(arrays) or 'nothing'}, expected x and y.")
            continue
        x, y = (arrays[str(name)] for name in named)
        if y.shape != x.shape[:1]:
            problems.append(f"{path.parent.name}/{path.name}: x is {list(x.shape)} and y {list(y.shape)}.")
        parts.append((path.parent.name, path.stem, x, y))
        total += x.nbytes  # there again when all are put together
        check_bytes(folder, total)
    problems += _different(((f"{part}/{client}.npz", x) for part, client, x, _ in parts), typed=True)
    if problems:
        raise DataError(together(folder, problems))
    usual, form = replace(columns, image=None, label=None), "a file per client and part"
    return from_arrays(folder, joined_clients(parts), usual, file_totals(files), form=form)


def _conversion(folder: Path, path: Path) -> str:
    """What to do with the files of PFLlib, whose one array is a pickled dictionary."""
    new = f"{folder.absolute()}.npz"
    code = (
        "import numpy as np, pathlib; "
        f'f = [p for s in ({json.dumps(PARTS[0])}, {json.dumps(PARTS[1])}) for p in sorted(pathlib.Path({json.dumps(str(folder.absolute()))}, s).glob("*.npz"))]; '
        'd = [np.load(p, allow_pickle=True)["data"].item() for p in f]; n = [len(e["y"]) for e in d]; '
        f'np.savez({json.dumps(new)}, x=np.concatenate([e["x"] for e in d]), y=np.concatenate([e["y"] for e in d]), '
        "client=np.repeat([p.stem for p in f], n), split=np.repeat([p.parent.name for p in f], n))"
    )
    return (
        f"{path} holds Python objects, as PFLlib saves them, which are not read because they could run code. If you trust who made them, "
        f"make arrays of them, and give these with --data {shlex.quote(new)}:\n\npython -c {shlex.quote(code)}\n"
    )


def matlab(path: Path, columns: Columns) -> UserData:
    """Read variables of a MATLAB file: x with the samples along its first or last side, y, and client, group and split.

    They are of the class that they have in MATLAB, which stores doubles that are whole as bytes.
    """
    with path.open("rb") as file:
        begin = file.read(len(MATLAB_73))
    if begin == MATLAB_73 or begin.startswith(HDF):
        raise DataError(
            f"{path} is a MATLAB file of version 7.3, which is not read. Save it in MATLAB as one of version 7: load('{path.name}'); save('{path.stem}-v7.mat', '-v7')"
        )
    _check_unpacked(path)
    names, used, content = read_matlab(path, lambda names: named(path, names, columns), mat_dtype=True)
    notes = list[str]()
    arrays = {name: _plain(path, name, content[name]) for name in used.values()}
    # MATLAB has no arrays of one side, and its whole numbers are doubles as a rule
    for name in {*used.values()} - {used["x"]}:
        cells = arrays[name].reshape(-1)
        whole = cells.dtype.kind == "f" and (np.abs(cells) < EXACT).all() and (cells == np.rint(cells)).all()
        arrays[name] = cells.astype(np.int64) if whole else cells
    x, n = arrays[used["x"]], len(arrays[used["label"]])
    if x.shape[-1] == n != x.shape[0]:
        arrays[used["x"]] = np.ascontiguousarray(np.moveaxis(x, -1, 0))
        notes.append(f"{path.name}: {used['x']} {list(x.shape)} has the samples last, as there are {n} labels.")
    elif x.shape[-1] == n == x.shape[0]:
        notes.append(f"{path.name}: {used['x']} {list(x.shape)} has as many rows as columns; rows are samples.")
    own = from_arrays(path, arrays, columns, {"file": path.name, "bytes": path.stat().st_size})
    return replace(own, notes=(*_unused(path.name, names, arrays), *own.notes, *notes))


def _check_unpacked(path: Path) -> None:
    """Require that each variable of a MATLAB file, whose cells may hold any number of others, fits into memory."""
    with path.open("rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])  # none before version 5, which packs nothing
        while order and len(tag := file.read(8)) == 8:
            kind, length = struct.unpack(f"{order}2I", tag)
            begin, size, unpacking = file.tell(), 0, zlib.decompressobj()
            while kind == PACKED and (piece := unpacking.unconsumed_tail or file.read(min(LOOK, length))):
                with contextlib.suppress(zlib.error):  # of a damaged file, which its reader finds
                    size += len(unpacking.decompress(piece, LOOK))
                check_bytes(path, size)
                if file.tell() >= begin + length and not unpacking.unconsumed_tail:
                    break
            file.seek(begin + length)


def _plain(path: Path, name: str, variable: Any) -> NDArray[Any]:
    """A variable of numbers, or of words as cells or as rows of characters."""
    kind = variable.dtype.kind if isinstance(variable, np.ndarray) else ""
    if kind == "U":
        return np.array([word.strip() for word in variable.reshape(-1).tolist()])
    cells = variable.reshape(-1) if kind == "O" else ()
    words = [cell.reshape(-1).tolist() for cell in cells if isinstance(cell, np.ndarray)]
    if words and len(words) == variable.size and all(len(word) == 1 for word in words):
        return np.array([str(word[0]) for word in words], object)
    if not kind or kind not in "biuf":
        todo = f"In MATLAB, {name} = full({name}) makes one of a sparse matrix, and {name} = cellstr({name}) cells of strings."
        raise DataError(f"{path}: {name} is neither an array of numbers nor cells with words. {todo}")
    return variable  # type: ignore[no-any-return]


def _is_leaf(path: Path) -> bool:
    """Whether a file is one of LEAF, by how it begins."""
    with open_regular(path, ANYWHERE) as file:
        return BEGIN.match(file.read(LOOKED_AT)) is not None


def leaf_parts(folder: Path) -> dict[str, list[Path]]:
    """The files of LEAF in a folder, or in its folder ``data``: of ``train`` and ``test``, or else its own, or of ``all_data``."""
    for base in (folder, folder / "data"):
        train, test, whole = (_files(base / name) for name in ("train", "test", "all_data"))
        if train and test:
            return {"train": train, "test": test}
        if every := _files(base) or whole:
            return {"": every}
    return {}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[!.]*.json") if _is_leaf(path))


def from_leaf(path: Path, columns: Columns, files: Mapping[str, Sequence[Path]]) -> UserData:
    """Read the users of all files of LEAF (Caldas et al. 2018), by the part that these belong to (``""``: none), one file at a time."""
    users: list[OfClient] = []
    file_of: dict[tuple[str, str], Path] = {}
    problems: list[str] = []
    parts = [(part, file) for part, part_files in files.items() for file in part_files]
    for part, file in parts:
        for user, x, y in _users(file, problems):
            if (first := file_of.setdefault((part, user), file)) != file:
                problems.append(f"{file.name}, user {user}: also in {first.name}.")
            users.append((part, user, x, y))
        check_bytes(path, sum(x.nbytes for _, _, x, _ in users))  # there again when all are put together
    problems += _different(((f"user {user}", x) for _, user, x, _ in users if len(x)), typed=False)
    if problems:
        raise DataError(together(path, problems) + TEXT * ("text" in map(key_of, problems)))
    about, form = file_totals([file for _, file in parts]), f"users of LEAF, {plural(len(parts), 'file')}"
    return from_arrays(path, joined_clients(users), columns, about, form=form)


def _users(file: Path, problems: list[str]) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Every user of a file, with samples [n, ...] and labels; adds to ``problems`` what is wrong."""
    check_bytes(file, JSON * file.stat().st_size)
    form = '{"users": [...], "num_samples": [...], "user_data": {USER: {"x": [...], "y": [...]}}}'
    with explain_damage(f"{file} cannot be read as JSON of LEAF", f"Expected {form}."):
        content = json.loads(file.read_bytes(), object_pairs_hook=_unique)
        names, data, counts = content["users"], content["user_data"], content.get("num_samples")
        pairs = [(str(user), data[user]["x"], data[user]["y"]) for user in names]
        if counts is None or len(counts) != len(names):
            counts = [None] * len(names)
        if lost := listed(sorted(data.keys() - set(names))):
            problems.append(f"{file.name}: {lost} in user_data, but not in users.")
    for (user, x, y), count in zip(pairs, counts, strict=True):
        samples = _samples(x, y, count)
        if isinstance(samples, str):
            problems.append(Said(f"{file.name}, user {user}: {samples}.", key_of(samples)))
        else:
            yield user, samples, np.array([str(int(k)) if isinstance(k, bool) else str(k) for k in y], object)


def _samples(x: Any, y: Any, count: Any) -> NDArray[Any] | str:
    """The samples [n, ...] of one LEAF user, or why they do not match ``num_samples``."""
    if not isinstance(x, list) or not isinstance(y, list):
        return "x and y must be lists"
    if len(x) != len(y) or count not in (None, len(y)):
        declared = "" if count is None else f", num_samples is {count}"
        return f"{len(x)} samples and {len(y)} labels{declared}"
    if strange := [label for label in y if not isinstance(label, str | int | float)]:
        return f"a label is {str(strange[0])[:40]}, expected a word or a number"
    waiting: list[Any] = [x]
    while waiting:  # before an array gives each number the length of the longest text
        if isinstance(first := waiting.pop(), str):
            return Said(f"x holds text ({first[:40]!r})", "text")
        waiting += first[::-1] if isinstance(first, list) else ()
    try:
        samples = np.array(x)
    except ValueError:  # of different lengths
        samples = np.empty(0, object)
    if samples.dtype.kind not in "biuf":
        return "samples have different lengths, or are no numbers"
    return samples[:, None] if samples.ndim == 1 else samples


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, none of whose names comes twice: JSON would keep the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(a for (a, _), (b, _) in pairwise(sorted(pairs, key=lambda pair: pair[0])) if a == b)
        raise ValueError(f"{twice!r} is there twice")
    return made
