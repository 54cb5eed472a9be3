"""The commands ``equipoise data``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.padding import Padding

from equipoise.cli import completion
from equipoise.cli.console import out, print_json, print_table, progress_bar, say, stopping
from equipoise.cli.options import Json, add, option
from equipoise.system.suggestions import require_known, some

if TYPE_CHECKING:
    from equipoise.data.sets.catalog import DataSet, SplitCheck
    from equipoise.data.sets.download import Address

app = typer.Typer(
    name="data",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    help="The data sets of the papers: list them, check your files, fetch those that have plain addresses.",
    epilog="Start with `equipoise data list`, then `equipoise data check mnist --data data`.",
)

FOLDER = option(Path("data"), "The folder with your data sets, or a set's own.", "--data -d", metavar="DIR")


@app.callback()
def _main(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        listed()


@add(app, "`equipoise data list --json`", name="list")
def listed() -> Iterator[object]:
    """List the data sets: who uses them, how large they are, where to get them and on what terms."""
    from equipoise.data.sets import catalog

    yield [_as_dict(name, entry) for name, entry in catalog.SETS.items()]
    for name, entry in catalog.SETS.items():
        out.print(f"[bold]{name}[/]  {escape(entry.title)}", highlight=False)
        facts = {"used by": entry.used_by, "size": entry.size, "from": entry.source, "terms": entry.terms}
        for what, text in facts.items():
            out.print(Padding(f"{what}: {escape(text)}", (0, 0, 0, 4)), highlight=False)
    out.print("Your files: equipoise data check NAME --data DIR. Fetch: equipoise data get NAME --data DIR --download.")


def _as_dict(name: str, entry: DataSet) -> dict[str, Any]:
    return {
        "name": name,
        **{key: getattr(entry, key) for key in ("title", "used_by", "classes", "size", "source", "terms", "places")},
        "splits": {split: count and count.images for split, count in entry.splits.items()},
        "addresses": [file.url for file in entry.files],
    }


@add(app, "`equipoise data check svhn --data data`", name="check")
def checked(
    name: str | None = option(
        None, "A data set [default: all that are in the folder].", "[NAME]", autocompletion=completion.data_sets
    ),
    data: Path = FOLDER,
    only_present: bool = option(False, "A part of a set will do: it is no error that a split is missing."),
    json_: Json = False,
) -> None:
    """Read your files and compare their class counts with the published numbers; status 0 only if all is complete.

    Every file is read, and compared with the publisher's checksum where that is known. Image files are decoded on the way,
    once: a run finds them decoded.
    """
    from equipoise.data.sets import catalog

    names = [each for each in catalog.SETS if catalog.present(each, data)] if name is None else [name]
    if not names:
        raise ValueError(f"{data}: no data set found there. See what is looked for: equipoise data list --json.")
    results = {each: catalog.check(each, data.expanduser()) for each in names}
    if only_present:  # a set of which nothing is there lacks all of it
        some_present = {each: parts for each, parts in results.items() if any(part.counts for part in parts)}
        results |= {n: tuple(replace(part, needed=part.present) for part in parts) for n, parts in some_present.items()}
    if json_:
        print_json([_record(each, catalog.SETS[each], parts) for each, parts in results.items()])
    for each, parts in () if json_ else results.items():
        _show(each, catalog.SETS[each], parts, data)
    if not all(part.good for part in chain(*results.values())):
        raise typer.Exit(1)


def _record(name: str, entry: DataSet, parts: tuple[SplitCheck, ...]) -> dict[str, Any]:
    splits = {}
    for part in parts:
        counts, published = part.counts and dict(zip(part.classes, part.counts, strict=True)), None
        if part.published:
            classes = part.published.classes and dict(zip(part.classes, part.published.classes, strict=True))
            published = {"images": part.published.images, "classes": classes}
        read: dict[str, Any] = {"verdict": part.verdict, "found": counts, "images": part.counts and sum(part.counts)}
        read |= {"published": published, "problem": part.problem, "parts": dict(part.parts)}
        unread = [str(path) for path in part.unread]
        splits[part.split] = {**read, "publishers_files": part.genuine, "not_read": unread}
    complete = all(part.good for part in parts)
    return {"name": name, "complete": complete, "splits": splits, "source": entry.source, "terms": entry.terms}


def _show(name: str, entry: DataSet, parts: tuple[SplitCheck, ...], data: Path) -> None:
    """One set in words and numbers; a count that differs is followed by the published one."""
    out.print(f"[bold]{name}[/]  {escape(entry.title)}, in {escape(str(data))}", highlight=False)
    if present := [part for part in parts if part.counts is not None]:
        _show_counts(present)
    for part in parts:
        colour = {"OK": "green", "nothing to compare with": "dim"}.get(part.verdict, "red" if not part.good else "dim")
        lists = f"; {len(part.parts)} lists of clients or sites" * bool(part.parts)
        idle = " (no experiment needs it)" * (part.split in entry.optional)
        out.print(f"{part.split}: [{colour}]{part.verdict}[/]{part.origin}{lists}{idle}", highlight=False)
        if part.problem and not part.good:
            say(f"  {part.problem}")
        if part.unread:
            say(f"  also there, and not read: {some([*map(str, part.unread)])}")
    if not all(part.good for part in parts):
        out.print(f"Where to get it: {escape(entry.source)}. Terms: {escape(entry.terms)}.", soft_wrap=True)
        if entry.files:
            say(f"To fetch it: {_get(name, data)} --download")
    out.print()


def _show_counts(parts: list[SplitCheck]) -> None:
    """Images of each class, next to the published numbers if there are any."""
    titles, columns = ["class"], [[*map(escape, parts[0].classes), "together"]]
    for part in parts:
        counts = [*(part.counts or ()), sum(part.counts or ())]
        titles.append(part.split)
        columns.append([f"{n:,}" for n in counts])
        if part.published is not None:
            published = [*(part.published.classes or [None] * (len(counts) - 1)), part.published.images]
            titles.append("published")
            pairs = zip(counts, published, strict=True)
            columns[-1] = [f"{n:,}" if k in (None, n) else f"[red]{n:,}[/]" for n, k in pairs]
            columns.append(["" if k is None else f"{k:,}" for k in published])
    print_table(titles, zip(*columns, strict=True), right=titles[1:], whole=titles[:1])


def _get(name: str, data: Path, command: str = "get") -> str:
    return shlex.join(["equipoise", "data", command, name, "--data", str(data)])


@add(app, "`equipoise data get mnist --data data --download`")
def get(
    name: str = option(..., "A data set; see `equipoise data list`.", "NAME", autocompletion=completion.data_sets),
    data: Path = FOLDER,
    split: list[str] | None = option(None, "Only this split. Repeatable [default: all that experiments need]."),
    wanted: bool = option(False, "Fetch the files now, and accept nothing for you.", "--download"),
) -> None:
    """Say where a data set comes from, how large it is, on what terms, and where its files belong; fetch it on request."""
    from equipoise.data.sets import catalog

    entry = catalog.data_set(name)
    require_known(f"split of {name}", entry.splits, *(split or ()))
    splits = split or [part for part in entry.splits if part not in entry.optional]
    files = [file for file in entry.files if file.split is None or file.split in splits]
    out.print(f"[bold]{name}[/]  {escape(entry.title)}, {escape(entry.size)}", highlight=False)
    out.print(f"from: {escape(entry.source)}\nterms: {escape(entry.terms)}", soft_wrap=True, highlight=False)
    root = data.expanduser()
    if entry.package:
        link = shlex.join(["ln", "-s", f"{catalog.INSTALLED}/{name}", str(data / name)])
        installed = f" It is present; to use it with other sets: {link}" * catalog.installed(name)
        say(f"on Debian and Ubuntu: apt-get install {entry.package}, which is found without --data.{installed}")
    if not files:
        copies = catalog.copies(name, root, splits)
        if all(copies):
            say(f"is there: {some([str(path) for path, *_ in copies])}\nNext: {_get(name, data, 'check')}")
            return
        say(f"put it at: {' or '.join(str(data / place) for place in entry.places)}")
        raise ValueError(
            f"{name} has no plain address: fetch it by hand, from the place named above, on the terms of that place. "
            f"Then: {_get(name, data, 'check')}"
        )
    missing: list[Address] = []
    for file in files:
        if held := catalog.held(name, file, root):
            place, state = (held[0].parent if len(held) > 1 else held[0]), "is there"
            if any(catalog.genuine(name, path) is False for path in held):
                move = shlex.join(["mv", str(place), f"{place}.other"])
                state = f"is there, and is not the published file. To fetch that one, first: {move}"
        else:
            place, state = data / file.place, decimal(file.size)
            missing.append(file)
        say(f"{place}: {state}\n    {file.url}, md5 {file.md5}")
    if missing and not wanted:
        out.print("Nothing was fetched. Add --download to fetch these files from these addresses.")
        return
    if missing:
        _fetch(missing, root)
    published = ", with the published checksums" * (missing == files)
    say(f"All files are there{published}. Next: {_get(name, data, 'check')}")


def _fetch(files: list[Address], root: Path) -> None:
    from equipoise.data.sets import download

    left = "Stopped. Nothing half fetched was kept; the same command fetches what is missing."
    with stopping(left), progress_bar("bytes") as bar:
        for file in files:
            task = bar.add_task(Path(file.place).name, total=file.size)
            download.fetch(file, root, lambda done, task=task: bar.update(task, completed=done))  # type: ignore[misc]
