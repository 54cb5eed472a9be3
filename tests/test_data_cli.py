"""The command ``equipoise data``: what it lists, what it says of files, and that it fetches only when told to."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shlex
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import fixture_data as made
from equipoise.cli.data import app
from equipoise.data.contents import Contents
from equipoise.data.sets import catalog, download
from equipoise.data.sets.catalog import WHOLE, Count, SplitCheck, check, counted
from equipoise.data.sets.download import Address, fetch
from helpers import in_one

Write = Callable[[Path], Any]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the fixtures were what was published."""
    for name, splits in {
        "mnist": {"train": counted(*[4] * 10), "test": counted(*[2] * 10)},
        "usps": {"train": Count(40), "test": None},
        "svhn": {"train": counted(*[4] * 10), "test": counted(*[2] * 10), "extra": Count(30)},
        "syn": {"train": Count(40), "test": Count(20)},
    }.items():
        monkeypatch.setitem(catalog.SETS, name, replace(catalog.SETS[name], splits=splits))


# list
@pytest.mark.parametrize("words", [(), ("list",)])
def test_lists_all_sets_with_size_terms_and_where_from(words: tuple[str, ...]) -> None:
    done = ask(*words)
    assert done.exit_code == 0
    told = " ".join(done.stdout.split())  # lines are as long as the terminal
    for name, entry in catalog.SETS.items():
        for text in (name, entry.title, entry.used_by, entry.size, entry.terms, entry.source):
            assert " ".join(text.split()) in told


def test_list_as_json() -> None:
    told = {one["name"]: one for one in json.loads(ask("list", "--json").stdout)}
    assert told.keys() == catalog.SETS.keys()
    assert told["svhn"]["splits"] == {"train": 73257, "test": 26032, "extra": 531131}
    assert told["retina"]["splits"] == {"train": None, "test": None}
    assert len(told["mnist"]["addresses"]) == 4
    assert told["rsna-ich"]["addresses"] == []


# check
@pytest.mark.usefixtures("small")
def test_check_of_complete_sets(tmp_path: Path) -> None:
    made.digits(tmp_path)
    done = ask("check", "--data", str(tmp_path))
    assert done.exit_code == 0, done.stdout
    for line in ("train: OK", "test: OK", "test: nothing to compare with", "extra: missing (no experiment needs it)"):
        assert line in done.stdout
    for name in ("mnist", "usps", "svhn", "syn"):
        assert f"{name}  " in done.stdout
    assert "cifar10" not in done.stdout  # nothing of it is there


@pytest.mark.usefixtures("small")
def test_check_counts_classes_beside_the_published_ones(tmp_path: Path) -> None:
    made.mnist(tmp_path, train=41)
    done = ask("check", "mnist", "--data", str(tmp_path))
    assert done.exit_code == 1
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["class", "train", "published", "test", "published"] in rows
    assert ["0", "5", "4", "2", "2"] in rows
    assert ["1", "4", "4", "2", "2"] in rows
    assert ["together", "41", "40", "20", "20"] in rows
    assert "train: differs, other files\ntest: OK, other files with the same counts\n" in done.stdout
    assert f"equipoise data get mnist --data {tmp_path} --download" in done.stdout


def publish(monkeypatch: pytest.MonkeyPatch, name: str, root: Path) -> None:
    """As if what lies below a folder were what was published."""
    files = []
    for file in catalog.SETS[name].files:
        whole = (root / file.place).read_bytes() if (root / file.place).exists() else b""
        md5 = hashlib.md5(whole, usedforsecurity=False).hexdigest()
        inside = [(root / one).read_bytes() for one in file.unpack] or [
            gzip.decompress(whole) if file.inside else whole
        ]
        sums = tuple(hashlib.md5(one, usedforsecurity=False).hexdigest() for one in inside)
        files.append(replace(file, md5=md5, size=len(whole), inside=sums))
    monkeypatch.setitem(catalog.SETS, name, replace(catalog.SETS[name], files=tuple(files)))


@pytest.mark.usefixtures("small")
def test_check_says_whose_files_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed as published, packed again, or not packed; and other images of the same classes."""
    made.mnist(tmp_path / "published", packed=True)
    publish(monkeypatch, "mnist", tmp_path / "published")
    for folder, write in {
        "published": lambda root: None,
        "again": lambda root: made.mnist(root, packed=True),
        "unpacked": made.mnist,
        "other": lambda root: made.mnist(root, seed=5),
    }.items():
        write(tmp_path / folder)
        if folder == "again":
            for path in (tmp_path / folder).rglob("*.gz"):
                path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1, mtime=1))
        origin = "other files with the same counts" if folder == "other" else "the publisher's files"
        done = ask("check", "mnist", "--data", folder)
        assert f"train: OK, {origin}\ntest: OK, {origin}\n" in done.stdout
        assert done.exit_code == 0
        told = json.loads(ask("check", "mnist", "--data", folder, "--json").stdout)[0]["splits"]
        assert {split["publishers_files"] for split in told.values()} == {folder != "other"}


@pytest.mark.parametrize(
    ("name", "write", "known"),
    [
        ("cifar10", made.cifar10, True),
        ("usps", made.usps, True),
        ("svhn", made.svhn, True),
        ("usps", made.usps_of_the_book, None),
        ("syn", made.syn, None),
        ("synth", made.synth, None),
    ],
)
def test_only_files_with_a_known_checksum_are_judged(
    name: str, write: Write, known: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    judged = {one.genuine for one in check(name, tmp_path) if one.counts}
    assert judged == {None if known is None else False}
    publish(monkeypatch, name, tmp_path)
    assert {one.genuine for one in check(name, tmp_path) if one.counts} == {known}


@pytest.mark.parametrize(
    ("name", "write", "lost"),
    [
        ("mnist", made.mnist, ["MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte"]),
        ("cifar10", made.cifar10, ["cifar-10-batches-py/data_batch_1", "cifar-10-batches-py/data_batch_5"]),
        ("usps", made.usps_of_the_book, ["zip.train.gz"]),
    ],
)
def test_check_names_all_that_a_split_lacks(name: str, write: Write, lost: list[str], tmp_path: Path) -> None:
    write(tmp_path)
    for file in lost:
        (tmp_path / file).unlink()
    (train, *_) = check(name, tmp_path)
    assert train.verdict == "missing"
    asked = ", ".join(lost) if len(lost) > 1 else "usps.bz2 or USPS/usps.bz2 or zip.train.gz or USPS/zip.train.gz or "
    assert (train.problem or "").startswith(f"{name}: expected {asked}")


@pytest.mark.usefixtures("small")
def test_check_names_what_is_there_twice(tmp_path: Path) -> None:
    made.mnist(tmp_path)
    made.mnist(tmp_path, packed=True, seed=9)
    made.usps(tmp_path)
    made.usps_of_the_book(tmp_path / "USPS")
    (tmp_path / "office_caltech_10/caltech10").mkdir(parents=True)
    (tmp_path / "office_caltech_10/caltech").symlink_to("caltech10")
    raw = tmp_path / "MNIST/raw"
    packed = [str(raw / f"train-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1")]
    done = ask("check", "mnist", "--data", str(tmp_path)).stdout
    assert f"also there, and not read: {', '.join(packed)}\n" in done
    told = json.loads(ask("check", "usps", "--data", str(tmp_path), "--json").stdout)[0]["splits"]
    assert told["test"]["not_read"] == [str(tmp_path / "USPS/zip.test.gz")]
    assert [len(files) for files in catalog.copies("office-caltech10", tmp_path, ["caltech"])] == [
        1
    ]  # a link is the same
    assert "not read" not in ask("check", "mnist", "--data", str(made_alone(tmp_path / "alone"))).stdout


def made_alone(root: Path) -> Path:
    made.mnist(root)
    return root


def test_a_part_is_right_or_wrong_whatever_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.office(tmp_path, 1)
    shutil.rmtree(tmp_path / "office_caltech_10/dslr")
    entry = catalog.SETS["office-caltech10"]
    monkeypatch.setitem(
        catalog.SETS, "office-caltech10", replace(entry, splits=dict.fromkeys(entry.splits, counted(*[1] * 10)))
    )
    assert ask("check", "office-caltech10", "--data", str(tmp_path)).exit_code == 1
    assert ask("check", "office-caltech10", "--data", str(tmp_path), "--only-present").exit_code == 0
    assert json.loads(ask("check", "office-caltech10", "--data", str(tmp_path), "--only-present", "--json").stdout)[0][
        "complete"
    ]
    (tmp_path / "office_caltech_10/amazon/mug/frame_0001.jpg").write_bytes(b"")
    assert ask("check", "office-caltech10", "--data", str(tmp_path), "--only-present").exit_code == 1
    shutil.rmtree(tmp_path / "office_caltech_10")
    (tmp_path / "office_caltech_10").mkdir()
    assert (
        ask("check", "office-caltech10", "--data", str(tmp_path), "--only-present").exit_code == 1
    )  # nothing is there


@pytest.mark.usefixtures("small")
def test_check_of_damaged_and_missing_files(tmp_path: Path) -> None:
    made.usps(tmp_path)
    (tmp_path / "usps.bz2").write_bytes(b"")
    (tmp_path / "usps.t.bz2").unlink()
    done = ask("check", "usps", "--data", str(tmp_path))
    assert done.exit_code == 1
    assert f"train: cannot be used\n  {tmp_path}/usps.bz2: " in done.stdout
    assert "test: missing\n  usps: expected usps.t.bz2 or USPS/usps.t.bz2" in done.stdout
    assert catalog.SETS["usps"].source in done.stdout
    assert catalog.SETS["usps"].terms in done.stdout


@pytest.mark.usefixtures("small")
def test_check_of_what_no_experiment_needs(tmp_path: Path) -> None:
    """It may be missing, but if it is there it must be right."""
    made.svhn(tmp_path, extra=30)
    assert ask("check", "svhn", "--data", str(tmp_path)).exit_code == 0
    made.svhn(tmp_path, extra=29)
    assert ask("check", "svhn", "--data", str(tmp_path)).exit_code == 1
    (tmp_path / "extra_32x32.mat").write_bytes(b"")
    assert ask("check", "svhn", "--data", str(tmp_path)).exit_code == 1


@pytest.mark.usefixtures("small")
def test_check_as_json(tmp_path: Path) -> None:
    made.svhn(tmp_path, train=39)
    done = ask("check", "svhn", "--data", str(tmp_path), "--json")
    (told,) = json.loads(done.stdout)
    assert done.exit_code == 1
    assert told["complete"] is False
    train, test, extra = told["splits"].values()
    assert (train["verdict"], test["verdict"], extra["verdict"]) == ("differs", "OK", "missing")
    assert train["found"] == {str(k): 4 - (k == 9) for k in range(10)}
    assert train["images"] == 39
    assert train["published"] == {"images": 40, "classes": {str(k): 4 for k in range(10)}}
    assert extra["found"] is None
    assert "extra_32x32.mat" in extra["problem"]


def test_check_where_nothing_is() -> None:
    done = ask("check")
    assert isinstance(done.exception, ValueError)
    assert str(done.exception).startswith("data: no data set found there.")
    done = ask("check", "minst")
    assert "Did you mean 'mnist'?" in str(done.exception)


def test_sets_without_published_splits_are_compared_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def read(root: Path, split: str) -> Contents:
        y = torch.tensor([0, 1, 1] if split == "train" else [0])
        x = torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8)
        return Contents((x, y), ("healthy", "ill"), parts={"north": (0,), "south": (1, 2)} if split == "train" else {})

    entry = replace(catalog.SETS["rsna-ich"], classes=("healthy", "ill"), read=read, whole=counted(2, 2))
    monkeypatch.setitem(catalog.SETS, "rsna-ich", entry)
    findings = check("rsna-ich", tmp_path)
    assert [(one.split, one.counts, one.verdict) for one in findings] == [
        ("train", (1, 2), "nothing to compare with"),
        ("test", (1, 0), "nothing to compare with"),
        (WHOLE, (2, 2), "OK"),
    ]
    assert findings[0].parts == {"north": 1, "south": 2}
    assert "train: nothing to compare with; 2 lists of clients or sites\n" in ask("check", "rsna-ich").stdout
    assert json.loads(ask("check", "rsna-ich", "--json").stdout)[0]["splits"]["train"]["parts"] == {
        "north": 1,
        "south": 2,
    }
    monkeypatch.setitem(catalog.SETS, "rsna-ich", replace(entry, whole=Count(5)))
    assert check("rsna-ich", tmp_path)[-1].verdict == "differs"
    assert ask("check", "rsna-ich").exit_code == 1


@pytest.mark.parametrize("error", [ImportError("needs pydicom"), PermissionError(13, "Permission denied", "a.dcm")])
def test_check_goes_on_where_a_set_cannot_be_read(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(paths: list[Path]) -> Contents:
        raise error

    made.usps(tmp_path)
    monkeypatch.setitem(catalog.SETS, "usps", replace(catalog.SETS["usps"], read=read))
    done = ask("check", "usps", "--data", str(tmp_path))
    assert done.exit_code == 1
    assert f"train: cannot be used\n  {error}" in done.stdout


@in_one(
    ("found", "published", "there", "verdict"),
    [
        ((2, 3), Count(5), True, "OK"),
        ((2, 3), counted(2, 3), True, "OK"),
        ((2, 3), counted(3, 2), True, "differs"),
        ((2, 3), Count(6), True, "differs"),
        ((2, 3), None, True, "nothing to compare with"),
        (None, Count(5), True, "cannot be used"),
        (None, Count(5), False, "missing"),
    ],
)
def test_verdicts(found: Any, published: Any, there: bool, verdict: str) -> None:
    for needed in (True, False):
        one = SplitCheck("train", ("a", "b"), found, published, needed, there)
        assert one.verdict == verdict
        good = verdict in ("OK", "nothing to compare with") or (verdict == "missing" and not needed)
        assert one.good == good


# get
CONTENT = b"digits " * 100_000


class Server(BaseHTTPRequestHandler):
    """Serves what its class holds; a page may be cut short, hang up or fail."""

    pages: dict[str, bytes]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path not in self.pages:
            self.send_error(404)
            return
        content = self.pages[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) + (self.path == "/early")))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Server]]]:
    handler = type("Own", (Server,), {"pages": {"/file": CONTENT}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=partial(running.serve_forever, poll_interval=0.01), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", handler
        running.shutdown()


def address(base: str, page: str = "/file", content: bytes = CONTENT, **others: Any) -> Address:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Address(base + page, "SET/raw/file.gz", len(content), md5, **others)


def left(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_fetches_checks_and_renames(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    counts: list[int] = []
    path = fetch(address(server[0]), tmp_path / "new", counts.append)
    assert path == tmp_path / "new/SET/raw/file.gz"
    assert path.read_bytes() == CONTENT
    assert counts == sorted(counts)  # it counts what has arrived, up to the whole
    assert len(counts) > len(CONTENT) // download.CHUNK
    assert counts[-1] == len(CONTENT)
    assert left(tmp_path / "new") == ["SET/raw/file.gz"]
    fetch(address(server[0]), tmp_path / "new")  # it is there, whole: nobody is asked again
    assert server[1].asked == ["/file"]


@pytest.mark.parametrize(
    ("page", "served", "words"),
    [
        ("/none", None, "the server answered 404"),
        ("/other", b"x" * len(CONTENT), "gave another file than the published one"),
        ("/short", CONTENT[:-1], "gave another file than the published one"),
        ("/long", CONTENT * 2, f"more than {len(CONTENT)} bytes"),
        ("/early", CONTENT[:1000], "cannot be fetched, or not to its end .*1000 bytes read"),
        ("/empty", b"", "gave another file than the published one"),
    ],
)
def test_another_file_than_the_published_one_is_not_kept(
    page: str, served: bytes | None, words: str, server: tuple[str, type[Server]], tmp_path: Path
) -> None:
    if served is not None:
        server[1].pages[page] = served
    with pytest.raises(OSError, match=words) as error:
        fetch(address(server[0], page), tmp_path)
    assert server[0] + page in str(error.value)
    assert left(tmp_path) == []


def test_no_server_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"http://127.0.0.1:1/file: cannot be fetched, .*refused"):
        fetch(address("http://127.0.0.1:1"), tmp_path)
    assert left(tmp_path) == []


def test_what_is_there_is_never_changed(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    path = tmp_path / "SET/raw/file.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="is there already, and is not the published file"):
        fetch(address(server[0]), tmp_path)
    assert path.read_bytes() == b"mine"
    assert server[1].asked == []


def test_a_stop_leaves_nothing_behind(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(address(server[0]), tmp_path, stop)
    assert left(tmp_path) == []


def archive(**files: bytes) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, content in {**files, "set/../../outside": b"bad", "set/other": b"not asked for"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def test_archive_is_unpacked_as_a_whole(server: tuple[str, type[Server]], tmp_path: Path) -> None:
    packed = archive(**{"set/a": b"1", "set/b": b"2"})
    server[1].pages["/file"] = packed
    wanted = replace(address(server[0], content=packed, unpack=("set/a", "set/b")), place="set.tar.gz")
    fetch(wanted, tmp_path)
    assert left(tmp_path) == ["set.tar.gz", "set/a", "set/b"]
    fetch(wanted, tmp_path)
    (tmp_path / "set/b").unlink()
    with pytest.raises(FileExistsError, match="is there already, and lacks files"):
        fetch(wanted, tmp_path)


@pytest.fixture
def plain(server: tuple[str, type[Server]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    """USPS, as if its address were the test's own server, with small files."""
    written = made.usps(tmp_path / "published")
    files = []
    for file in catalog.SETS["usps"].files:
        content = (tmp_path / "published" / file.place).read_bytes()
        server[1].pages[f"/{file.place}"] = content
        files.append(replace(address(server[0], f"/{file.place}", content), place=file.place, split=file.split))
    splits = {split: Count(len(y)) for split, (_, y) in written.items()}
    monkeypatch.setitem(catalog.SETS, "usps", replace(catalog.SETS["usps"], files=tuple(files), splits=splits))
    return server[1]


def test_get_tells_all_and_fetches_nothing(plain: type[Server]) -> None:
    done = ask("get", "usps", "--data", "sets")
    entry = catalog.SETS["usps"]
    assert done.exit_code == 0
    for text in (entry.terms, entry.source, "Nothing was fetched. Add --download"):
        assert text in done.stdout
    for file in entry.files:
        assert f"sets/{file.place}: " in done.stdout
        assert file.url in done.stdout
        assert file.md5 in done.stdout
    assert plain.asked == []
    assert not Path("sets").exists()


def test_get_with_download_then_check(plain: type[Server]) -> None:
    done = ask("get", "usps", "--data", "sets", "--download")
    assert done.exit_code == 0, done
    assert "equipoise data check usps --data sets" in " ".join(done.stdout.split())
    assert ask("check", "usps", "--data", "sets").exit_code == 0
    again = ask("get", "usps", "--data", "sets", "--download")
    assert again.exit_code == 0
    assert again.stdout.count("is there") == 2
    assert plain.asked == ["/usps.bz2", "/usps.t.bz2"]


def test_get_goes_on_with_the_files_that_are_missing(plain: type[Server]) -> None:
    content = plain.pages.pop("/usps.t.bz2")
    done = ask("get", "usps", "--data", "sets", "--download")
    assert isinstance(done.exception, OSError)
    assert left(Path("sets")) == ["usps.bz2"]
    plain.pages["/usps.t.bz2"] = content
    assert ask("get", "usps", "--data", "sets", "--download").exit_code == 0
    assert plain.asked.count("/usps.bz2") == 1


def test_a_stop_says_what_is_left(plain: type[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(download, "fetch", stop)
    with pytest.raises(SystemExit) as stopped:
        app(["get", "usps", "--data", "sets", "--download"], standalone_mode=False)
    assert stopped.value.__notes__ == [
        "Stopped. Nothing half fetched was kept; the same command fetches what is missing."
    ]


def test_get_one_split(plain: type[Server]) -> None:
    assert ask("get", "usps", "--data", "sets", "--split", "test", "--download").exit_code == 0
    assert left(Path("sets")) == ["usps.t.bz2"]
    assert "Unknown split of usps 'val'" in str(ask("get", "usps", "--split", "val").exception)


@pytest.mark.parametrize(
    "write", [made.usps_of_the_book, lambda root: made.usps(root / "USPS"), lambda root: made.usps(root / "usps")]
)
def test_get_fetches_nothing_that_is_there_in_another_form(write: Write, plain: type[Server]) -> None:
    write(Path("sets"))
    done = ask("get", "usps", "--data", "sets", "--download")
    assert done.exit_code == 0
    assert done.stdout.count("is there\n") == 2
    assert "All files are there. Next: equipoise data check usps --data sets\n" in done.stdout
    assert plain.asked == []
    next(path for path in Path("sets").rglob("*") if "test" in path.name or ".t." in path.name).unlink()
    assert ask("get", "usps", "--data", "sets", "--download").exit_code == 0
    assert plain.asked == ["/usps.t.bz2"]


@in_one(
    ("name", "write"),
    [
        ("mnist", made.mnist),
        ("mnist", lambda root: made.mnist(root, folder="mnist")),
        ("fashion-mnist", lambda root: made.mnist(root, folder="fashion-mnist", packed=True)),
        ("svhn", lambda root: made.svhn(root / "SVHN")),
        ("cifar10", made.cifar10),
        ("cifar10", lambda root: made.cifar10(root / "CIFAR10")),
    ],
)
def test_get_sees_what_check_reads(name: str, write: Write) -> None:
    write(Path("sets"))
    assert all(one.counts for one in check(name, Path("sets")) if one.needed)
    done = ask("get", name, "--data", "sets").stdout
    assert "Nothing was fetched" not in done
    assert done.count("is there, and is not the published file. To fetch that one, first: mv ") == len(
        catalog.SETS[name].files
    ) - (name == "svhn")


def test_get_of_the_folder_of_the_set_itself() -> None:
    made.mnist(Path("sets"))
    for folder in ("sets/MNIST", "sets/MNIST/raw"):
        assert "Nothing was fetched" not in ask("get", "mnist", "--data", folder).stdout


def test_advice_about_a_damaged_file_leads_to_the_published_one(plain: type[Server], tmp_path: Path) -> None:
    """Each command as it was printed, in a folder whose name needs quotes."""
    made.usps(tmp_path / "my sets")
    (tmp_path / "my sets/usps.bz2").write_bytes(b"")
    printed = ask("check", "usps", "--data", str(tmp_path / "my sets")).stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("To fetch it: ")]
    get = shlex.split(line.removeprefix("To fetch it: "))[2:]
    first = ask(*get)
    assert first.exit_code == 0
    assert plain.asked == []
    (line,) = [line for line in first.stdout.splitlines() if "To fetch that one" in line]
    subprocess.run(line.partition(", first: ")[2], shell=True, check=True)
    last = ask(*get).stdout.splitlines()[-1]
    assert plain.asked == ["/usps.bz2"]
    assert ask(*shlex.split(last.partition("Next: ")[2])[2:]).exit_code == 0


def test_get_of_a_set_that_was_fetched_by_hand() -> None:
    made.office(Path("sets"), 1)
    done = ask("get", "office-caltech10", "--data", "sets")
    assert done.exit_code == 0
    assert "is there: sets/office_caltech_10/amazon, " in done.stdout
    shutil.rmtree("sets/office_caltech_10/dslr")
    assert ask("get", "office-caltech10", "--data", "sets").exit_code != 0


def test_get_knows_the_package_of_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(catalog, "INSTALLED", tmp_path)
    told = ask("get", "fashion-mnist").stdout
    assert "on Debian and Ubuntu: apt-get install dataset-fashion-mnist, which is found without --data.\n" in told
    made.mnist(tmp_path, folder="fashion-mnist")
    (line,) = [
        line for line in ask("get", "fashion-mnist", "--data", "my sets").stdout.splitlines() if "It is present" in line
    ]
    Path("my sets").mkdir()
    subprocess.run(line.partition("with other sets: ")[2], shell=True, check=True)
    assert all(one.counts for one in check("fashion-mnist", Path("my sets")))
    assert "apt-get" not in ask("get", "mnist").stdout


def test_get_leaves_out_what_no_experiment_needs() -> None:
    assert "extra" not in ask("get", "svhn").stdout.split("md5", 1)[1]
    assert "extra_32x32.mat: 1.3 GB" in ask("get", "svhn", "--split", "extra").stdout


@in_one("name", [name for name, entry in catalog.SETS.items() if not entry.files])
@in_one("words", [(), ("--download",)])
def test_get_of_a_set_without_plain_addresses(name: str, words: tuple[str, ...]) -> None:
    done = ask("get", name, "--data", "sets", *words)
    assert isinstance(done.exception, ValueError)  # the command line ends with 2
    assert f"{name} has no plain address" in str(done.exception)
    for text in (catalog.SETS[name].source, catalog.SETS[name].terms, f"sets/{catalog.SETS[name].places[0]}"):
        assert text in done.stdout
    assert not Path("sets").exists()


def test_unknown_set() -> None:
    assert "Unknown data set 'cifar'. Did you mean 'cifar10'?" in str(ask("get", "cifar").exception)


@pytest.mark.parametrize(
    ("name", "write"),
    [("mnist", made.mnist), ("svhn", made.svhn), ("office-caltech10", lambda root: made.office(root, 1))],
)
def test_present_recognises_what_is_there(name: str, write: Write, tmp_path: Path) -> None:
    assert not any(catalog.present(known, tmp_path) for known in catalog.SETS)
    write(tmp_path)
    assert [known for known in catalog.SETS if catalog.present(known, tmp_path)] == [name]


# the page
def documented() -> list[list[str]]:
    text = (Path(__file__).parents[1] / "docs/data-sets.md").read_text()
    return [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("equipoise data ")]


@in_one("words", documented())
def test_commands_of_the_page_are_understood(words: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    given = group.commands[words[0]].make_context(words[0], words[1:]).params
    assert given.get("name") is None or given["name"] in catalog.SETS


def test_page_says_what_the_catalogue_says() -> None:
    page = (Path(__file__).parents[1] / "docs/data-sets.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    sets = {row[0].strip("`"): row[1:] for row in rows if len(row) == 6}
    assert sets.keys() == catalog.SETS.keys()
    for name, (used_by, counts, size, source, terms) in sets.items():
        entry = catalog.SETS[name]
        assert (size, terms) == (entry.size, entry.terms)
        assert used_by == entry.used_by.split(" (Digits-5")[0]
        assert (source == "`--download`") == bool(entry.files)
        known = [count.images for count in entry.splits.values() if count]
        assert name == "office-caltech10" or all(f"{images:,}" in counts for images in known)
    places = {row[0].strip("`"): row[1] for row in rows if len(row) == 3}
    assert places.keys() == catalog.SETS.keys()
    for name, text in places.items():
        assert all(
            file.place.split("/")[0].removesuffix(".gz") in text or file.unpack for file in catalog.SETS[name].files
        )
        assert catalog.SETS[name].places[0].split("/")[0] in text
