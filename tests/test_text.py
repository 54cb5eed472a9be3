"""Text and files of others: names that would steer a terminal, formulas, and files that declare more than there is."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
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
from equipoise.data.decoding import array as pixels_of, image
from equipoise.data.formats.reading import read_user_data
from equipoise.data.sets import idx
from equipoise.data.sets.mat import read as read_mat
from equipoise.flower.server.roster import Known
from equipoise.report import html, rendering
from equipoise.report.statistics import Comparison
from equipoise.system import memory, text
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
    assert [text.cell(c) for c in ("=1+1", "+x", "-x", "@x", "\tx", "\rx")] == [
        "'=1+1",
        "'+x",
        "'-x",
        "'@x",
        "'\tx",
        "'\rx",
    ]
    assert [text.cell(c) for c in ("-1.5", "a=b", "", -1.5, None)] == ["-1.5", "a=b", "", -1.5, None]
    assert [text.cell(c) for c in "=+-@"] == [*"=+-@"]  # a sign alone is no formula
    assert text.formulas(["+", "a", 3, -1.5, None]) == []
    (said,) = text.formulas(["=A1", "+", "-B2", "-3"])
    assert said.startswith("2 cells of the file: '=A1', for example.")


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
        DataError, match=r"declares 12,000 x 12,000 pixels, and at most 100,000,000 .*set EQUIPOISE_PIXELS=144000000"
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
        DataError, match=r"a\.npz, x declares 8\.0 TiB of numbers, and at most .* set EQUIPOISE_MEMORY=17592186044416"
    ):
        read_user_data(path)
    monkeypatch.setattr(memory, "free", lambda device: 1000)
    np.savez(path, x=np.zeros((40, 1)), y=np.zeros(40))
    with pytest.raises(DataError, match=r"a\.npz declares .* of numbers, and at most 500\.0 B are read"):
        read_user_data(path)
    single = tmp_path / "a.npy"
    single.write_bytes(npy((1 << 20, 1 << 20), "|u1"))
    with pytest.raises((ValueError, OSError), match=r"mmap length|declares"):
        pixels_of(single)
    with single.open("r+b") as file:  # a file with a hole has this size, and takes no room
        file.write(npy((20_000, 20_000), "|u1")[:-8])
        file.truncate(file.tell() + 20_000**2)
    with pytest.raises(ValueError, match="it declares 20,000 x 20,000 pixels, and at most 100,000,000 are decoded"):
        pixels_of(single)
    mat = tmp_path / "train_32x32.mat"
    savemat(mat, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1))})
    mat.write_bytes(mat.read_bytes().replace(struct.pack("<4i", 32, 32, 3, 2), struct.pack("<4i", 32, 32, 3, 1 << 30)))
    with pytest.raises(DataError, match=r"train_32x32\.mat declares 3\.0 TiB of numbers"):
        read_mat([mat])


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_that_declare_more_than_fits(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    for sides, content, message in (
        ((1 << 20, 1 << 12, 1 << 12), b"", r"declares 16\.0 TiB of numbers"),
        ((1, 2, 2), bytes(1 << 20), "= 4 bytes, and there are 262144 or more"),
    ):
        whole = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sides) + content
        path.write_bytes(gzip.compress(whole) if packed else whole)
        with pytest.raises(DataError, match=message):
            idx.array(path, 3)


def test_tables_of_endless_cells_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("label,a\n0,1\n1," + "9" * 200_000 + "\n")
    with pytest.raises(DataError, match=r"t\.csv, line 3: a cell has more than 131,072 characters"):
        read_user_data(path)
    monkeypatch.setattr("equipoise.data.declared.LINE", 1000)
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
        (np.ones((2, 2)) * 1j, "x must hold numbers .* found complex128"),
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
