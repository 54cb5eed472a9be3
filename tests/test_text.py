"""Text and files of others: names that would steer a terminal, formulas, and files that declare more than there is."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import random
import re
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.table import Table
from rich.text import Text
from scipy.io import savemat
from torch import nn

import equipoise as eq
from equipoise import scenarios
from equipoise.cli import console, main as cli
from equipoise.data.contents import DataError
from equipoise.data.decoding import array as pixels_of, image, resized
from equipoise.data.formats import table
from equipoise.data.formats.reading import read_user_data
from equipoise.data.sets import digits
from equipoise.data.sets.digits import read_mat
from equipoise.data.tables import reading, words as cells
from equipoise.data.tables.columns import Columns, ordered
from equipoise.flower.server.sites import Known
from equipoise.networks.resnet import read_tensors
from equipoise.records.directory import _WORDS
from equipoise.report import html, rendering
from equipoise.report.statistics import Comparison
from equipoise.system import calls, memory, suggestions, text
from equipoise.system.suggestions import some
from equipoise.system.terminal import Terminal

pytestmark = pytest.mark.drawn

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe"


def test_signs_that_steer_are_written_out() -> None:
    assert text.visible(EVIL) == text.visible(text.visible(EVIL)) == SHOWN
    assert text.visible("a\nb\tc") == r"a\nb\tc"
    assert text.visible("a\nb\tc\r", lines=True) == "a\nb\tc\\r"
    assert text.visible("naïve Zürich 東京 می\u200cخواهم 👩\u200d👧") == "naïve Zürich 東京 می\u200cخواهم 👩\u200d👧"
    assert text.visible("lost\udc80\u2028") == r"lost\udc80\u2028"
    assert text.name("x" * 500) == "x" * 199 + "…" == text.name(text.name("x" * 500))


def test_names_with_commas_are_told_apart() -> None:
    assert some(["No, unknown", "Yes, Yes"]) == "No, unknown; Yes, Yes"
    assert some(["a,b", "c"]) == "a,b, c"  # no comma that looks like one between names
    assert some(["a", "b", "c, d"], 2) == "a, b and 1 more"
    assert some(["c, d", "b", "a"], 2) == "c, d; b and 1 more"


def test_markdown_and_cells() -> None:
    assert text.markdown("a|b `c` <img src=x> [l](http://x)\n") == r"a\|b \`c\` \<img src=x> [l\](http://x)\\n"
    assert text.markdown("p < .05, in [0, 1], x<1 **bold**") == "p < .05, in [0, 1], x<1 **bold**"
    assert [text.cell(c) for c in ("=1+1", "+x", "-x", "@x", "\tx", "a;=1", " =1", '"=1', "\n=1", "\uff1d1")] == [
        *("ʼ=1+1", "ʼ+x", "ʼ-x", "ʼ@x", "\tx", "a;ʼ=1", " ʼ=1", '"ʼ=1', "\nʼ=1", "ʼ\uff1d1"),
    ]
    assert [text.cell(c) for c in ("-1.5", "a=b", "", -1.5, None)] == ["-1.5", "a=b", "", -1.5, None]
    assert [text.cell(c) for c in "=+-@"] == [*"=+-@"]  # a sign alone is no formula
    assert text.cell("-1", first=True) == "ʼ-1"  # -1,2+A1 is one where a comma is no separator
    assert text.formulas(["+", "a", 3, -1.5, None]) == []
    (said,) = text.formulas(["=A1", "+", "-B2", "-3"])
    assert "such as '=A1'" in said


def test_no_cell_is_a_formula_with_any_separator_and_all_are_read_as_they_were() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        words = [
            "".join(rng.choices("=+-@;|\t\n\r ,\"'a1.ʼ\u00a0\ufeff\uff1d\u2028", k=rng.randint(0, 8))) for _ in "abc"
        ]
        written = text.csv_text([words])
        assert [*map(text.plain_cell, next(csv.reader(io.StringIO(written, newline=""))))] == words
        for sep in ";\t|":
            for row in csv.reader(io.StringIO(written, newline=""), delimiter=sep):
                assert not any(cell.lstrip(' "\u00a0\ufeff\n\r\t')[:1] in {*"=+-@\uff1d"} for cell in row), written


def test_names_of_a_table_that_we_wrote_are_read_as_they_were(tmp_path: Path) -> None:
    names = ["=A1", "'=A1", "ʼ=A1", "a;=B", "-1", "+", "x\n@y", "07"]
    for copies in (1, 300):  # cells of small tables are read otherwise
        rows = [[name, "+-"[k % 2] + "A", k / 7] for k, name in enumerate(names * copies)]
        path = tmp_path / f"{copies}.csv"
        path.write_text(text.csv_text([["=client", "-label", "x"], *rows]), newline="")
        own = read_user_data(path, Columns(client="=client", label="-label"))
        assert own.client == tuple(name.replace("\n", r"\n") for name in names * copies)
        assert own.classes == ("+A", "-A")
    path.write_text("client,label,x\n'=A1,a,1\n=A1,b,2\n")  # of other programs
    assert read_user_data(path).clients == ("'=A1", "=A1")


def slower(action: Callable[[str], object], make: Callable[[int], str], n: int = 2000) -> float:
    """How often as long a text of eight times the length takes."""

    def least(word: str) -> float:
        began = []
        for _ in range(3):
            began.append(-time.process_time_ns())
            action(word)
            began[-1] += time.process_time_ns()
        return min(began)

    return least(make(8 * n)) / max(least(make(n)), 20_000)


@pytest.mark.parametrize(
    ("action", "make"),
    [
        (cells.NUMBER.fullmatch, lambda n: "1" * n + "z"),
        (cells.WHOLE.fullmatch, lambda n: "1" * n + "z"),
        (reading.DIGITS.fullmatch, lambda n: "1 " * n + "z"),
        (reading.key_of, lambda n: "a" * n + "é"),
        (lambda text: cells.unit_of([text, text]), lambda n: "%" * n),
        (lambda text: table.UNSTORED.search(text.encode()), lambda n: "<c " * n),
        (lambda text: table.UNSTORED.search(text.encode()), lambda n: "<c ><f>" * n),
        (re.compile(_WORDS["leak"]).match, lambda n: "data: x" + ": the column a tells " * n),
        (calls.pairs, lambda n: "a" * n),
        (calls.read, lambda n: "f(" + "(" * n),
        (lambda text: suggestions.near(text, [text[::-1] + "a"]), lambda n: "ab" * n),
        (text.cell, lambda n: "\n" * n),
        (text.cell, lambda n: "ʼ" * n),
        (text.plain_cell, lambda n: "ʼ;" * n),
    ],
)
def test_long_text_takes_time_in_proportion_to_its_length(action: Any, make: Any) -> None:
    assert slower(action, make) < 32  # 8, or 64 where it grows with the square


def test_numbers_of_more_digits_than_python_reads(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{word},{k}\n" for k, word in enumerate(["1" * 5000, "2", "1" * 5000 + ".0", "2"] * 5))
    path.write_text(f"label,x\n{rows}")
    with pytest.raises(DataError):  # which classes are words of other names, or a label is a number to predict
        read_user_data(path)
    assert ordered(["a" + "1" * 5000, "1" * 5000, "2"])[0] == "2"


def test_a_packed_table_is_read_no_further_than_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.xz"
    path.write_bytes(lzma.compress(b"x,label\n" + b"1,a\n2,b\n" * 40_000, preset=1))
    read_user_data(path)
    monkeypatch.setenv("EQUIPOISE_MEMORY", "4MiB")
    with pytest.raises(DataError, match=r"t\.csv\.xz would take .* MiB of memory, and at most 2\.0 MiB"):
        read_user_data(path)
    path.write_bytes(lzma.compress(b"x,label\n" + b"\n" * 100_000, preset=1))
    with pytest.raises(DataError, match=r"would take .* MiB of memory"):
        read_user_data(path)


def test_words_that_parquet_repeats_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"x": np.arange(4000.0), "label": ["a", "b"] * 2000, "w": ["w" * 10_000] * 4000}).to_parquet(path)
    assert path.stat().st_size < 100_000
    monkeypatch.setenv("EQUIPOISE_MEMORY", "8MiB")
    with pytest.raises(DataError, match=r"t\.parquet, column w would take 38\.1 MiB of memory"):
        read_user_data(path)


def test_zip_files_are_unpacked_by_deflate_only(tmp_path: Path) -> None:
    for kind in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr("x.npy", npy((1,)))
        with pytest.raises(DataError, match="expected is deflate"):
            read_user_data(path)


def test_weights_are_read_if_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.pt"
    torch.save({"a": torch.zeros(100_000)}, path)
    assert read_tensors(path)["a"].shape == (100_000,)
    monkeypatch.setenv("EQUIPOISE_MEMORY", "100KiB")
    with pytest.raises(DataError, match=r"w\.pt would take 39\d\.\d KiB"):
        read_tensors(path)


def test_a_narrow_image_is_not_made_a_long_one() -> None:
    with pytest.raises(ValueError, match="it has 64 x 5,000,000 pixels"):
        resized(np.zeros((78_125, 1), np.uint8), (64, 64), "crop")
    with pytest.raises(ValueError, match="it has 20,000 x 20,000 pixels"):
        resized(np.zeros((4, 4), np.uint8), (20_000, 20_000))


def test_the_terminal_keeps_its_own_colours_only() -> None:
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, width=200)
    table = Table(EVIL)
    table.add_row(Text(EVIL, style="bold"))
    terminal.print("[bold]own[/]", EVIL, highlight=False)
    terminal.print(table)
    printed = file.getvalue()
    assert "\x1b[1mown" in printed
    assert not {"\x07", "\x9b", "\u202e"} & set(printed)
    assert "\x1b]" not in printed
    assert "\x1b[2J" not in printed
    assert isinstance(console.out, Terminal)
    assert isinstance(console.err, Terminal)


def test_names_are_safe_in_the_record_and_on_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "svg", lambda name, figure: "")
    monkeypatch.setattr(html.drawings, "draw_all", lambda *_: {})
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    evil = EVIL + "|`<script>alert(1)</script>"
    fed = eq.Federation(nn.Linear(3, 2), [(x, y)] * 2, names=[evil, "b"], groups=[evil, evil], tests={evil: (x, y)})
    history = fed.fit(1, progress=False)
    shown = SHOWN + "|`<script>alert(1)</script>"
    assert history.client_names[0] == history.meta["client_groups"][0] == shown
    assert list(history.records[0]["groups"]) == [shown]
    old = type(history)(  # a run of an earlier version
        tuple({**r, "groups": {evil: r["groups"][shown]}} for r in history.records),
        {**history.meta, "client_names": [evil, "b"], "client_groups": [evil, evil]},
    )
    for one in (history, old):
        compared = Comparison.of([one])
        pages = [rendering.markdown(compared), rendering.latex(compared), html.render(compared)]
        assert not any(c in page for page in pages for c in "\x1b\x07\x9b\u202e")
        assert "<script>alert" not in pages[0].replace(r"\<script", "")
        assert "<script>alert" not in pages[2]


def test_names_in_own_data_and_of_sites(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"label,client,a\n{EVIL},c\x1b[2J,1\nok,d,2\nok,c\x1b[2J,2\n")
    own = read_user_data(path)
    assert own.classes == (SHOWN, "ok")
    assert own.clients == (r"c\x1b[2J", "d")
    path.write_text(f"label,a\n{'x' * 300}1,1\n{'x' * 300}2,2\n")
    with pytest.raises(DataError, match="two names begin with the same 200 characters"):
        read_user_data(path)
    site = {"name": EVIL, "size": 1, "shape": [3], "dtype": "float32", "tests": [EVIL], "structure": {}}
    assert (Known.of(site).name, Known.of(site).tests) == (SHOWN, (SHOWN,))


def test_full_memory_is_no_defect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for error in (
        MemoryError("Unable to allocate 8.00 TiB for an array"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ):

        def full(*_: Any, error: BaseException = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(cli, "commands", lambda full=full: full)
        for words, less in {
            "compare fedavg": "fewer --jobs, a smaller --participation, a smaller --batch-size, smaller images (--set size=32)",
            "run": "fewer --workers, a smaller --participation",
            "reproduce fedism/table1": "Take less at a time: fewer --jobs. equipoise run",  # it has none of the others
            "data check": "equipoise run",
        }.items():
            monkeypatch.setattr("sys.argv", ["equipoise", *words.split()])
            with pytest.raises(SystemExit) as ended:
                cli.main()
            said = capsys.readouterr().err
            assert ended.value.code == 1
            assert "defect" not in said
            assert f"equipoise {words.split()[0]} needs more memory than there is ({str(error)[:30]}" in said
            assert less in said


# files that declare more than they hold
def png(path: Path, width: int, height: int) -> Path:
    """A file of a few bytes that declares so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    return path


def npy(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(8)


def test_an_image_of_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = png(tmp_path / "a.png", 12_000, 12_000)
    with pytest.raises(
        DataError, match=r"has 12,000 x 12,000 pixels; at most 100,000,000 .*set EQUIPOISE_PIXELS=144000000"
    ):
        image(path, (8, 8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    monkeypatch.setenv("EQUIPOISE_PIXELS", "144000000")
    with pytest.raises(DataError, match=r"cannot be decoded .*(truncated|incomplete|broken)"):  # now it is read
        image(path, (8, 8))
    monkeypatch.setenv("EQUIPOISE_PIXELS", "many")
    with pytest.raises(DataError, match="EQUIPOISE_PIXELS=many: expected a number of pixels"):
        image(path, (8, 8))


def test_a_renamed_eps_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    started = []
    monkeypatch.setattr("subprocess.check_call", lambda command, **_: started.append(command))
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", "gs", raising=False)  # Pillow 10 has none
    with pytest.raises(DataError, match="cannot be decoded"):
        image(path, (8, 8))
    assert not started


def test_arrays_that_declare_more_than_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy((1 << 40,)))
    with pytest.raises(
        DataError, match=r"a\.npz, x would take 8\.0 TiB of memory, and at most .* set EQUIPOISE_MEMORY=17592186044416"
    ):
        read_user_data(path)
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    np.savez(path, x=np.zeros((40, 1)), y=np.zeros(40))
    with pytest.raises(DataError, match=r"a\.npz would take .* of memory, and at most 500\.0 B are taken"):
        read_user_data(path)
    single = tmp_path / "a.npy"
    single.write_bytes(npy((1 << 20, 1 << 20), "|u1"))
    with pytest.raises((ValueError, OSError), match=r"mmap length|declares"):
        pixels_of(single)
    with single.open("r+b") as file:  # a file with a hole has this size, and takes no room
        file.write(npy((20_000, 20_000), "|u1")[:-8])
        file.truncate(file.tell() + 20_000**2)
    with pytest.raises(ValueError, match="it has 20,000 x 20,000 pixels; at most 100,000,000 are decoded"):
        pixels_of(single)
    mat = tmp_path / "train_32x32.mat"
    savemat(mat, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1))})
    mat.write_bytes(mat.read_bytes().replace(struct.pack("<4i", 32, 32, 3, 2), struct.pack("<4i", 32, 32, 3, 1 << 30)))
    with pytest.raises(DataError, match=r"train_32x32\.mat would take 3\.0 TiB of memory"):
        read_mat([mat])


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_that_declare_more_than_fits(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    for sides, content, message in (
        ((1 << 20, 1 << 12, 1 << 12), b"", r"would take 16\.0 TiB of memory"),
        ((1, 2, 2), bytes(1 << 20), "= 4 bytes, and there are 262144 or more"),
    ):
        whole = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sides) + content
        path.write_bytes(gzip.compress(whole) if packed else whole)
        with pytest.raises(DataError, match=message):
            digits.array(path, 3)


def test_tables_of_endless_cells_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("label,a\n0,1\n1," + "9" * 200_000 + "\n")
    with pytest.raises(DataError, match=r"t\.csv, line 3: a cell has more than 131,072 characters"):
        read_user_data(path)
    monkeypatch.setattr("equipoise.data.contents.LINE", 1000)
    with pytest.raises(DataError, match=r"t\.csv, line 3 has more than 1,000 characters"):
        read_user_data(path)


# numbers that do not stay what they are
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            np.array([[1.0, 2.0], [3.0, 1e308]]),
            r"a\.npz: x\[1, 1\] is 1e\+308, too large for float32, in 1 sample in all",
        ),
        (np.array([[1.0, 2.0], [np.nan, 1e308]]), r"x\[1, 0\] is not a finite number, in 1 sample in all"),
        (np.ones((2, 2)) * 1j, "x must be numbers .* found complex128"),
    ],
)
def test_numbers_of_a_file_that_do_not_fit(tmp_path: Path, x: Any, message: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=np.arange(2))
    with pytest.raises(DataError, match=message):
        read_user_data(path)
    np.savez(path, x=np.ones((2, 2)), y=np.arange(2) * 1j)
    with pytest.raises(DataError, match="y holds complex numbers"):
        read_user_data(path)


def test_numbers_that_standardising_makes_infinite(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.array([[0.0], [1e-30]] * 6 + [[3e38]])
    np.savez(path, x=x, y=np.arange(13) % 2, client=["a"] * 13, split=["train"] * 12 + ["test"])
    with pytest.raises(
        DataError, match=r"a\.npz: standardised, x\[12, 0\] is .*, too large for float32, in 1 sample in all"
    ):
        scenarios.load("own", 0, path)


def test_a_line_is_said_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("runs/[a]/x[/] :smile: 1.0")
    assert capsys.readouterr().out == "runs/[a]/x[/] :smile: 1.0\n"
