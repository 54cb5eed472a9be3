"""The user's own data: a folder of images, a table, arrays, or a data set of the Hugging Face Hub."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from equipoise.data.contents import DataError
from equipoise.data.pictures import Pictures, Range, plain
from equipoise.data.tables.checks import doubts
from equipoise.data.tables.columns import INTEGER, OF_TABLES, Column, Columns, UserData
from equipoise.data.tables.options import listed
from equipoise.data.tables.words import alike, missing
from equipoise.system import own_code, text
from equipoise.system.suggestions import require_use

HUB = "hub:"
USUAL = Columns()
MEASURED = 20  # different whole numbers, from which on labels may be measurements, also where they are those from 0 up
PICKLED = "It may hold Python objects, which are not read because they could run code. Save arrays: np.savez('data.npz', x=x, y=y)."
SAVED = "Save the table as .xlsx or CSV from the program that wrote it."
ADVICE = {  # what to do with files that are not read, by their ending
    **dict.fromkeys((".pt", ".pth", ".pkl", ".pickle", ".joblib"), PICKLED),
    **dict.fromkeys((".npy", ".h5", ".hdf5"), "Save inputs and labels together: np.savez('data.npz', x=x, y=y)."),
    **dict.fromkeys((".xls", ".xlsm", ".ods", ".sav", ".dta", ".arff", ".rds"), SAVED),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "Unpack it, and give the folder."),
}


def read_user_data(
    source: str | Path, columns: Columns = USUAL, *, download: bool = False, seed: int = 0, between: Range | None = None
) -> UserData:
    """Read the user's data.

    ======================= ============================================================================================
    ``DIR``                 ``CLIENT/CLASS/image.jpg``; with a folder ``train``, ``test`` or ``val`` outermost or just above
                            the classes; ``CLASS/image.jpg`` for data that are still to be divided
    ``DIR``                 with exactly one table or ``.npz`` file in it: that file
    ``table.csv``           a row per sample: ``label``, and ``path`` (of an image) or columns of numbers; ``client``, ``group``
                            and ``split``; also ``.tsv``, packed as ``.csv.gz``, ``.bz2`` or ``.xz``, ``.parquet`` and ``.xlsx``
    ``arrays.npz``          arrays ``x`` and ``y``; ``client``, ``group`` and ``split``; ``train_images``, ``train_labels``,
                            ``test_images`` and so on, as of MedMNIST; ``.mat`` of MATLAB with such variables
    ``DIR``, ``users.json`` users of LEAF: JSON files, also in ``train`` and ``test`` or ``all_data``
    ``DIR``                 ``train/CLIENT.npz`` and ``test/CLIENT.npz``, each with ``x`` and ``y``
    ``hub:OWNER/NAME``      a data set of the Hugging Face Hub that is on this machine, or may be downloaded
    ``data.py:clients``     a function of your own, also ``mypkg.data:clients``, see :func:`equipoise.data.formats.arrays.from_function`
    ======================= ============================================================================================

    Parameters
    ----------
    source : one of these.
    columns : the names of the columns, where they differ from the usual ones.
    download : whether a data set of the Hub may be downloaded.
    seed : for a function that takes one.
    between : of images in files, the grey levels that become black and white; None: bytes stay, and of other numbers the
        least and the largest of all images.
    """
    try:
        return _ranged(_checked(_source(source, columns, download, seed), columns), between)
    except MemoryError as error:
        error.add_note(f"It was reading {source}.")
        raise


def _source(source: str | Path, columns: Columns, download: bool, seed: int) -> UserData:
    if (address := str(source)).startswith(HUB):
        from equipoise.data.formats.hub import read as from_hub

        return from_hub(address.removeprefix(HUB), columns, download=download)
    if download:
        raise DataError(f"download=true is for data sets of the Hub ({HUB}OWNER/NAME), not for {source}. Leave it out.")
    if own_code.is_reference(address):
        from equipoise.data.formats.arrays import from_function

        return from_function(address, columns, seed)
    path = Path(source).expanduser()
    if not path.exists():
        function, options = own_code.split(address)
        if function and options.startswith("("):
            file, _, name = function.rpartition(":")
            seed_ = "seed=seed" * ("seed" in own_code.takes(function))
            arguments = ", ".join(filter(None, (options.strip("() "), seed_)))
            todo = f"Add a function that has them to {file}, 'def mine(seed): return {name}({arguments})', and give {file}:mine."
            raise DataError(f"{address}: data take no options in brackets. {todo}")
        raise DataError(
            f"{path} does not exist. Give a folder, a .csv, .xlsx, .parquet or .npz file, {HUB}OWNER/NAME, or a function: data.py:clients."
        )
    return _read(path, columns)


def _read(path: Path, columns: Columns) -> UserData:
    from equipoise.data.formats import arrays, folders, table

    readers = {**dict.fromkeys(table.SUFFIXES, table.read), ".npz": arrays.npz, ".mat": arrays.matlab}

    def reader(file: Path) -> Callable[[Path, Columns], UserData] | None:
        return table.read if table.is_text(file) else readers.get(file.suffix.lower())

    if path.is_file():
        if path.suffix.lower() == ".json":
            return arrays.from_leaf(path, columns, {"": [path]})
        if (read := reader(path)) is None:
            advice = f" {ADVICE[path.suffix.lower()]}" if path.suffix.lower() in ADVICE else ""
            endings = ", ".join([*readers, ".json of LEAF"])
            raise DataError(f"{path}: expected a folder, or a file that ends in {endings}; text may be packed.{advice}")
        return read(path, columns)
    if parts := arrays.leaf_parts(path):
        return arrays.from_leaf(path, columns, parts)
    if client_files := arrays.pfllib_files(path):
        return arrays.from_pfllib(path, columns, client_files)
    inside = sorted(file for file in path.iterdir() if reader(file) and not file.name.startswith("."))
    if len(inside) > 1:
        raise DataError(f"{path} has several tables ({listed(file.name for file in inside)}). Give one with --data.")
    if inside:
        return _read(inside[0], columns)
    columns.require_none(OF_TABLES, path, "a table, and this is a folder of images")
    return folders.read(path, columns)


def _ranged(own: UserData, between: Range | None) -> UserData:
    """The data with a look at all images, where these are in files, and what that says."""
    if not isinstance(own.inputs, Pictures):
        if between is not None:
            raise DataError(f"{own.source}: range is for images in files, and these are {own.layout}. Leave it out.")
        return own
    images = own.inputs if between is None else replace(own.inputs, declared=between)
    about = {} if images.range is None else {"range": [plain(edge) for edge in images.range]}
    return replace(own, inputs=images, about={**own.about, **about}, notes=(*own.notes, *images.notes))


def _checked(own: UserData, columns: Columns) -> UserData:
    """Check what training needs, for all kinds of data, and note what is doubtful about columns of numbers."""
    if not len(own):
        raise DataError(f"{own.source} holds no sample.")
    present_words = {f"not_missing={word}": not missing(word) for word in columns.not_missing}
    require_use(present_words, together="a word that never marks a missing cell")
    require_use({"unknown": columns.unknown and not own.attributes}, without="group=COLUMN")
    if columns.unknown and not any(columns.unknown in words for words in own.attributes.values()):
        own = replace(own, notes=(*own.notes, f"{own.source}: no group is missing, so none is {columns.unknown!r}."))
    client = None if own.client is None else _named(own, own.client)
    attributes = {text.name(name): _named(own, words) for name, words in own.attributes.items()}
    label = _named(own, own.label)
    own = replace(own, label=label, client=client, attributes=attributes, regression=columns.regression)
    if len({*(own.group or ())}) < len({*zip(*attributes.values(), strict=True)}):
        raise DataError(f"{own.source}: two groups have the same name as text. Rename a value of {listed(attributes)}.")
    groups = [("group", words) for words in attributes.values()]
    classes = () if own.regression else own.label
    for what, names in (("class", classes), ("client", own.client), ("subject", own.subject), *groups):
        for problem in alike(own.source, names or (), what):
            raise DataError(problem)
    if not own.regression and len(own.classes) < 2 and not columns.agreed:
        raise DataError(
            f"{own.source}: all {len(own)} samples are of one class, {own.classes[0]!r}. There is nothing to learn."
        )
    _check_training(own)
    numbers = _doubtful_classes(own) if columns.task is None else ()
    return replace(own, notes=(*own.notes, *numbers, *doubts(own, columns)))


def _doubtful_classes(own: UserData) -> Iterator[str]:
    """A note on classes that may be numbers to predict."""
    if all(map(INTEGER.fullmatch, own.classes)):
        many, whole = len(own.classes), sorted(map(int, own.classes))
        if MEASURED <= many > len(own) // 10 or (many > 2 and whole != [*range(many)]):
            numbers = f"{many:,} different whole numbers from {whole[0]:,} to {whole[-1]:,}, each of which is a class"
            todo = 'If they are numbers to predict, such as days or points: --task regression, in Python task="regression".'
            yield f"{own.source}: the labels are {numbers}. {todo}"


def _check_training(own: UserData) -> None:
    """Require that everything can be learnt from the training data, where parts are named."""
    if own.split is None:
        return
    trained = {label for label, split in zip(own.label, own.split, strict=True) if split == "train"}
    if not trained:
        raise DataError(f"{own.source}: no sample is marked as train, so there is nothing to train on.")
    if own.regression and len(trained) < 2:
        raise DataError(
            f"{own.source}: the number to predict is {trained.pop()} in all training samples, so there is nothing to learn."
        )
    if strangers := [name for name in own.classes if name not in trained]:
        where = f"{'is' if len(strangers) == 1 else 'are'} in the test or validation data but in no training data"
        todo = "Add training samples, or remove these."
        raise DataError(f"{own.source}: {listed(map(repr, strangers))} {where}, so no model can learn it. {todo}")


def _named(own: UserData, words: Column) -> Column:
    """Names of classes, clients or groups, safe to print."""
    safe = {word: text.name(word) for word in dict.fromkeys(words)}
    if len(set(safe.values())) < len(safe):
        fault = "are shown in the same way. Rename one"
        if any(len(name) == text.LONGEST for name in safe.values()):
            fault = f"begin with the same {text.LONGEST} characters. Shorten them"
        raise DataError(f"{own.source}: two names {fault}.")
    return tuple(safe[word] for word in words)
