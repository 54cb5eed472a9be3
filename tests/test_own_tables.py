"""Tables and arrays of a user: labels, clients and groups stay the text they are, numbers keep their digits, files are read as they are written."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image
from sklearn.preprocessing import StandardScaler

import equipoise as eq
from equipoise import scenarios
from equipoise.data.contents import DataError
from equipoise.data.formats import delimited
from equipoise.data.formats.reading import read_user_data
from equipoise.data.precision import standardised
from equipoise.data.tables.cells import RawTable, Words, read_cells
from equipoise.data.tables.coding import Coder
from equipoise.data.tables.columns import Columns, UserData
from equipoise.data.tables.options import several
from equipoise.data.tables.schema import CATEGORY, Feature, Schema
from equipoise.data.tables.words import MISSING, Origin, missing, read_role
from equipoise.runs.configuration import called, option_value
from equipoise.scenarios import partition
from helpers import in_one
from run_helpers import cache, complaints, equipoise

__all__ = ["cache", "equipoise"]

REUSED = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HERE = Origin("here", "sample {}".format)


def write(path: Path, rows: Sequence[Sequence[object]], **how: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, **how).writerows(rows)
    return path


def rows_with(labels: Sequence[object], clients: Sequence[object] = ("a", "b")) -> list[Sequence[object]]:
    return [
        ("v", "label", "client"),
        *((k * 7 % 11, label, clients[k % len(clients)]) for k, label in enumerate(labels)),
    ]


def numbers_of(found: UserData) -> np.ndarray[Any, Any]:
    if isinstance(found.inputs, RawTable):
        return found.inputs.numbers()
    assert isinstance(found.inputs, np.ndarray)
    return found.inputs


# labels, clients and groups
LONG = ["900000000000000103", "900000000000000104", "24700007"]


@pytest.mark.parametrize(
    "codes",
    [
        LONG,
        ["123456789012345678901", "123456789012345678902"],
        ["-900000000000000103", "-900000000000000104"],
        ["007", "07", "7"],
        ["1_12", "11_2", "112"],
        ["1e3", "1000", "10e2"],
        ["１２", "12"],
        ["0x10", "16"],
        ["+1", "1"],
        ["E11.9", "E11.90"],
        ["1.2.3", "1.2.30"],
        ["inf", "infinity"],
        ["yes", "no", "maybe so"],
        ['say "so"', "a;b", "c,d"],
    ],
)
def test_codes_stay_apart(tmp_path: Path, codes: list[str]) -> None:
    words = codes * 6
    found = read_user_data(write(tmp_path / "t.csv", rows_with(words, codes)))
    assert list(found.label) == words
    assert set(found.clients) == set(codes)
    np.savez(tmp_path / "t.npz", x=np.arange(len(words))[:, None] * 7 % 11, y=np.array(words), client=np.array(words))
    again = read_user_data(tmp_path / "t.npz")
    assert again.label == again.client == found.label


@in_one(
    "y",
    [
        np.array([2**62 + 1, 2**62, 5] * 4),
        np.array([2**63 + 1, 2**63, 5] * 4, np.uint64),
        np.array([-5, 0, 127] * 4, np.int8),
        np.array([10**25, 10**25 + 1, 5] * 4, object),
        np.array([b"007", b"07", b"7"] * 4),
        np.array(["2020-01-01", "2020-01-02", "2021-01-01"] * 4, "datetime64[D]"),
    ],
)
def test_arrays_of_labels_stay_what_they_are(y: np.ndarray[Any, Any]) -> None:
    plain = [word.decode() if isinstance(word, bytes) else str(word) for word in y.tolist()]
    assert list(read_role(y, "label", HERE).words) == list(read_role(y, "client", HERE).words) == plain


def test_dates_of_any_unit_are_dates() -> None:
    found = read_role(np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]"), "label", HERE)
    assert [word[:10] for word in found.words] == ["2020-01-01", "2020-01-02"]


@pytest.mark.parametrize(
    ("words", "classes"),
    [
        (["1.0", "0.0", "2.0"], ("0", "1", "2")),
        (["1.00", "-1.0", "+1.0"], ("-1", "1")),
        (["0.000000000000000000e+00", "1.000000000000000000e+00"], ("0", "1")),  # of numpy.savetxt
        (["10.", "9."], ("9", "10")),
        (["1.0", "x"], ("1.0", "x")),
        (["1", "x", "0"], ("0", "1", "x")),
    ],
)
def test_whole_numbers_written_with_a_point(tmp_path: Path, words: list[str], classes: tuple[str, ...]) -> None:
    assert read_user_data(write(tmp_path / "t.csv", rows_with(words * 3))).classes == classes


def test_labels_in_floats_are_whole() -> None:
    for kind in (np.float64, np.float32, np.float16):
        assert read_role(np.array([0, 1, 3], kind), "label", HERE).words == ("0", "1", "3")
    assert read_role(np.array([True, False]), "label", HERE).words == ("1", "0")
    for large in (
        np.array([9e17, 1]),
        np.array([2.0**24 + 2, 1], np.float32),
        [9e17, 1.0],
        ["9.000000000000001e+17", "1.0"],
    ):
        (said,) = read_role(large, "label", HERE).problems
        assert "neighbours are the same. Save names as whole numbers (int64) or as text" in said


@in_one("words", [["0.5", "1.5"], ["0.5", "high"], ["1e-3", "1"], ["0,5", "1,5", "2"], [".5", "1."]])
def test_measurements_are_no_classes(words: list[str]) -> None:
    (said,) = read_role(words, "label", HERE).problems
    assert f"the label is {words[0]} (sample 0" in said
    assert "labels are classes: words or whole numbers" in said


@given(
    st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cf", "Zl", "Zp"]), min_size=1, max_size=6
        ).map(str.strip),
        min_size=2,
        max_size=5,
        unique_by=str.casefold,
    ),
    st.sampled_from([",", ";", "\t", "|"]),
)
@REUSED
def test_any_text_is_a_class(tmp_path: Path, words: list[str], sep: str) -> None:
    """What is written into a table as text is the class, to the letter, unless it is refused."""
    path = write(tmp_path / "t.csv", rows_with(words * 2, words), delimiter=sep)
    if any(map(missing, words)):
        with pytest.raises(DataError, match="the label is missing"):
            read_user_data(path)
        return
    try:
        found = read_user_data(path)
    except DataError as error:
        assert re.search("labels are classes|which is one number|differ only in capital letters", str(error))  # noqa: PT017
        return
    if not all(re.fullmatch(r"[+-]?\d+\.\d*([eE][+-]?\d{1,3})?", word, re.ASCII) for word in words):  # 1.0 is 1
        assert list(found.label) == words * 2
    assert list(found.client or ()) == words * 2


def test_what_becomes_one_name_is_said(tmp_path: Path) -> None:
    found = read_user_data(write(tmp_path / "t.csv", rows_with(["yes", " yes", "no", "no "] * 3, ["a", "a ", "b"])))
    assert found.classes == ("no", "yes")
    assert [note.partition(", ")[2] for note in found.notes] == [
        "column label: 'yes', ' yes' are read as 'yes'.",
        "column label: 'no', 'no ' are read as 'no'.",
        "column client: 'a', 'a ' are read as 'a'.",
    ]
    assert read_role(["1.0", "1.00", "0.0"], "label", HERE).notes == ("here: '1.0', '1.00' are read as '1'.",)
    (said,) = read_role(["007", "07", "8"], "label", HERE).notes
    assert said == "here: '007', '07' are kept apart, although they are one number or look the same."
    (said,) = read_role(["caf\u00e9", "cafe\u0301"], "client", HERE).notes
    assert "look the same" in said
    (said,) = read_role(["1", "1.0", "x"], "label", HERE).problems
    assert "the label is 1 in some samples and 1.0 in others, which is one number" in said


def test_one_list_of_words_for_what_is_missing() -> None:
    for word in (
        "NA",
        "N/A",
        "n/a",
        "NULL",
        "?",
        "None",
        "#N/A",
        "nan",
        "NaN",
        "-nan",
        "<NA>",
        "-",
        "",
        "  ",
        "\u00a0",
        ".",
        "NaT",
        r"\N",
        "#DIV/0!",
    ):
        assert missing(word), word
    for word in ("no", "unknown", "other", "0", "N", "Nan Goldin", "nay", "-1", "+", "missing value?", "nothing"):
        assert not missing(word), word
    assert all(word == word.casefold().strip() for word in MISSING)


@pytest.mark.parametrize("word", ["NA", "n/a", "NULL", "?", "None", "#N/A", "nan", "", " ", "-", "<NA>", ".", r"\N"])
@pytest.mark.parametrize("role", ["label", "client", "group", "v"])
def test_missing_is_refused_with_count_and_lines(tmp_path: Path, word: str, role: str) -> None:
    rows: list[list[object]] = [["v", "label", "client", "group"]]
    rows += [[k * 7 % 11, "ny"[k % 2], "ab"[k % 2], "fm"[k % 2]] for k in range(20)]
    for k in (1, 6, 11, 16):
        rows[k][rows[0].index(role)] = word
    path = write(tmp_path / "t.csv", rows)
    if role == "v":  # a feature may be missing
        inputs = read_user_data(path).inputs
        assert isinstance(inputs, RawTable)
        assert np.flatnonzero(inputs.columns["v"].missing).tolist() == [0, 5, 10, 15]
        return
    with pytest.raises(DataError) as refused:
        read_user_data(path)
    said = str(refused.value)
    assert f"column {role}: the {role} is missing in 4 of 20 samples" in said
    assert "line 2, line 7, line 12 and 1 more" in said
    options = {"label": "--set unlabelled=leave-out", "group": "--set unknown=unknown", "client": ""}
    assert advised(said) == f"not_missing={word}" if word.strip() else options[role] in said


def test_missing_in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for client in ("north", "None"):
        for kind in ("cat", "nan"):
            for k in range(3):
                (tmp_path / "my" / client / kind).mkdir(parents=True, exist_ok=True)
                Image.new("L", (8, 8), 50 * k + 20).save(tmp_path / "my" / client / kind / f"{k}.png")
    with pytest.raises(
        DataError,
        match=r"(?s)\(1\) the label is missing in 6 of 12 samples \('nan'\): .*\(2\) the client is missing in 6 of 12",
    ):
        read_user_data("my")
    assert len(follow(equipoise, ["init", "--data", "my", "--output", "o.toml"])) == 3
    assert read_user_data("my", Columns(not_missing=("nan", "None"))).classes == ("cat", "nan")


@pytest.mark.parametrize("y", [np.array([0, 1, np.nan] * 4), np.array([0, 1, None] * 4), [0, 1, None] * 4])
def test_missing_in_partitions(y: Any) -> None:
    for divide in (partition.dirichlet, partition.mixtures):
        with pytest.raises(
            ValueError, match="the label is missing, NaN or None, in 4 of 12 samples, the first of them 2"
        ):
            divide(y, 2, alpha=10.0, seed=0)  # type: ignore[operator]


def test_missing_in_arrays_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, words = np.arange(12)[:, None] * 7 % 11, np.array(["a", "NA", "b"] * 4)
    for more in ({"y": words}, {"y": np.array([0, 1, np.nan] * 4)}, {"y": words != "a", "client": words}):
        np.savez(tmp_path / "t.npz", x=x, **more)
        with pytest.raises(DataError, match=r"is missing in 4 of 12 samples \('(NA|nan)'\): (y|client)\[\d\]"):
            read_user_data(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", x=x, y=words, client=words)
    assert read_user_data(tmp_path / "t.npz", Columns(not_missing=("NA",))).classes == ("NA", "a", "b")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import numpy as np\ndef clients():\n    return {'x': np.eye(4, dtype='f4'), 'y': ['a', None, 'b', float('nan')]}\n"
    )
    with pytest.raises(DataError, match=r"the label is missing in 2 of 4 samples"):
        read_user_data("mine.py:clients")


def test_a_word_may_be_a_name_on_purpose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    """Namibia, by its code."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", rows_with(["NA", "ZA", "none"] * 8, ["NA", "BW"]))
    commands = follow(equipoise, ["init", "--data", "t.csv", "--output", "o.toml"])
    assert len(commands) == 3
    assert "not_missing=NA,none" in commands[-1]
    found = scenarios.load("own", 0, tmp_path / "t.csv", not_missing=["NA", "none"])
    assert found.manifest["classes"] == ["NA", "ZA", "none"]
    assert set(found.client_names) == {"BW", "NA"}


def follow(equipoise: Any, command: list[str]) -> list[list[str]]:
    """Do what errors say until there is none: the first option that each prints takes the place of one with its name."""
    commands = [command]
    while (done := equipoise(*commands[-1])).status:
        option = advised(done.err)
        kept = [*commands[-1]]
        for k, word in enumerate(kept):
            if word == "--set" and kept[k + 1].partition("=")[0] == option.partition("=")[0]:
                del kept[k : k + 2]
                break
        commands.append([*kept, "--set", option])
        assert len(commands) < 6, done.err
    return commands


def advised(text: str) -> str:
    """The first option that a sentence prints, as a shell reads it."""
    assert "--set " in text, text
    words = shlex.shlex(text.partition("--set ")[2].replace(" \n", "\n"), posix=True)
    words.whitespace_split, words.commenters = True, ""
    word = words.get_token()
    assert word is not None
    return word[:-1] if word[-1] in ".;:" else word


def test_names_that_are_one_name_elsewhere_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(
        "import numpy as np\nx, y = np.eye(4, dtype='f4'), [0, 1, 0, 1]\ndef clients():\n    return {1: (x, y), '1': (x, y)}\n"
    )
    with pytest.raises(DataError, match="two clients have the same name as text: 1, '1'"):
        read_user_data("two.py:clients")
    write(tmp_path / "t.csv", [("v", "Label", "label"), *((k * 7 % 11, k % 2, k % 2) for k in range(12))])
    with pytest.raises(DataError, match=r"'Label' and 'label' could both be the label\. Rename all but one"):
        read_user_data("t.csv")
    assert read_user_data("t.csv", Columns(label="label")).classes == ("0", "1")
    write(tmp_path / "t.csv", rows_with(["a\nb", "a\\nb"] * 6))
    with pytest.raises(DataError, match=r"two names are shown in the same way\. Rename one"):
        read_user_data("t.csv")


def test_options_of_tables_are_refused_elsewhere(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.eye(4), y=np.arange(4) % 2)
    for option, value in (
        ("sep", ";"),
        ("decimal", ","),
        ("encoding", "utf-8"),
        ("keep", ("a",)),
        ("leave_out", ("a",)),
    ):
        with pytest.raises(DataError, match=f"{option} is an option of a table"):
            read_user_data(tmp_path / "t.npz", Columns(**{option: value}))  # type: ignore[arg-type]
    write(tmp_path / "t.csv", rows_with("xy" * 6))
    for wrong, said in (
        ({"sep": "ab"}, "sep must be one sign between cells, or tab or space; found 'ab'"),
        ({"decimal": ";"}, "decimal must be '.' or ','; found ';'"),
        ({"encoding": "latin-99"}, "encoding=latin-99 is none that Python knows"),
        ({"keep": ("w",)}, "Unknown column 'w'"),
    ):
        with pytest.raises(DataError, match=f"(?s){said}"):
            read_user_data(tmp_path / "t.csv", Columns(**wrong))  # type: ignore[arg-type]


def test_numbers_of_a_function_that_single_precision_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(
        "import numpy as np\ndef clients():\n    return {'x': 1.7e9 + np.arange(40.0)[:, None], 'y': np.arange(40) % 2}\n"
    )
    said, same = read_user_data("late.py:clients").notes
    assert "holds the same number in every row" in same
    assert "number 0 of a sample (40 different numbers become 1)" in said


# how a table is written
PLAIN = [
    ("a", "b", "label", "client"),
    *((round(k * 7 % 11 - 0.5, 1), k * 5 % 7, "yn"[k % 2], "nsw"[k % 3]) for k in range(12)),
]


def as_text(**how: Any) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, **how).writerows(PLAIN)
    return file.getvalue()


COMMAS = re.sub(r"(\d)\.(\d)", r"\1,\2", as_text(delimiter=";"))


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("t.csv", as_text().encode(), {}),
        ("t.csv", as_text(quoting=csv.QUOTE_ALL, lineterminator="\n").encode(), {}),
        ("t.csv", as_text(lineterminator="\r").encode(), {}),
        ("t.csv", as_text(delimiter=";").encode("utf-8-sig"), {}),
        ("t.csv", as_text(delimiter="|").encode(), {}),
        ("t.tsv", as_text(delimiter="\t").encode(), {}),
        ("t.csv", as_text(delimiter="\t").encode("utf-16"), {}),
        ("t.csv", as_text().encode("utf-16-le"), {"encoding": "utf-16-le"}),
        ("t.csv", as_text(delimiter="~").encode(), {"sep": "~"}),
        ("t.csv", as_text(delimiter=" ").encode(), {"sep": "space"}),
        ("t.tsv", as_text(delimiter="\t").encode(), {"sep": "tab"}),
        ("t.csv", COMMAS.encode(), {"decimal": ","}),
        ("t.csv", b"sep=;\n" + as_text(delimiter=";").encode(), {}),
        ("t.csv", as_text().replace("\r\n", ",\r\n").encode(), {}),
        ("t.csv", as_text().replace("\r\n", ",\r\n").replace("client,", "client").encode(), {}),
        ("t.csv", as_text().replace(",", ", ").encode(), {}),
        ("t.csv", as_text(quoting=csv.QUOTE_ALL).replace(",", ", ").encode(), {}),
        ("t.csv", ("# made by hand, in 2020\n#\n\n" + as_text() + "\n \n,,,\n# end").encode(), {}),
        ("t.csv.gz", gzip.compress(as_text().encode(), mtime=0), {}),
        ("t.csv.bz2", bz2.compress(as_text().encode()), {}),
        ("t.tsv.xz", lzma.compress(as_text(delimiter="\t").encode()), {}),
        ("T.CSV.GZ", gzip.compress(as_text(delimiter=";").encode("utf-16"), mtime=0), {}),
    ],
)  # fmt: skip
def test_tables_as_programs_write_them(tmp_path: Path, name: str, content: bytes, options: dict[str, str]) -> None:
    (tmp_path / name).write_bytes(content)
    found = read_user_data(tmp_path, Columns(**options))  # type: ignore[arg-type]
    assert found.features == ("a", "b")
    assert numbers_of(found).tolist() == [list(row[:2]) for row in PLAIN[1:]]
    assert list(found.label) == [row[2] for row in PLAIN[1:]]
    assert list(found.client or ()) == [row[3] for row in PLAIN[1:]]


def test_names_of_columns_hold_separators(tmp_path: Path) -> None:
    header = ("Pressure, systolic, mmHg", "Size; long axis", "label", "client", 'says "x"')
    rows = [header, *((k * 7 % 11, k * 5 % 7, k % 2, k % 3, k * 3 % 8) for k in range(12))]
    for sep in ",;\t|":
        found = read_user_data(write(tmp_path / "t.csv", rows, delimiter=sep))
        assert found.features == (header[0], header[1], header[4])
    assert several('"Pressure, systolic, mmHg",x') == ("Pressure, systolic, mmHg", "x")


def test_line_numbers_count_lines_in_cells(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('# c\nlabel,v,client\n\n"two\nlines",1,a\nx,2,a\n\nx,oops,a\n')
    with pytest.raises(DataError, match=r"v: 1 of 3 is no number \('oops' in line 8\)"):
        read_user_data(tmp_path / "t.csv")


@given(
    st.lists(
        st.sampled_from(
            ["a", "b c", "1", ",", ",", "\n", "\n", '"', '""', " ", "\t", "#", ";", "\r\n", "\r", "\u00a0"]
        ),
        max_size=24,
    )
)
@REUSED
def test_both_readings_of_a_file_agree(tmp_path: Path, pieces: list[str]) -> None:
    """Which lines are rows is found by the csv module, and their cells by pandas."""
    path = tmp_path / "t.csv"
    path.write_bytes(f"h,k,m\n1,2,3\n{''.join(pieces)}".encode())
    try:
        table = delimited.read(path, Columns(sep=","))
        cells = table.words(table.names)
    except DataError:
        return
    with path.open(newline="") as file:
        rows = [row[:3] for k, row in enumerate(csv.reader(file)) if k not in table.skipped and "".join(row).strip()]
    expected = [[re.sub(r"\r\n?", "\n", cell) for cell in row] for row in rows]
    assert [list(row) for row in zip(*cells.values(), strict=True)] == expected


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("# one\n# two\n" + as_text() + "# three\n,,,\n,,,\n")
    assert read_user_data(tmp_path / "t.csv").notes == (
        "t.csv: lines that begin with # are comments and left out: 2 above the header, line 16.",
        "t.csv: rows without any content are left out: line 17, line 18.",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,label\n1,x\n2\n3,x\n4,x,y\n5,y\n", "the header has 2 cells, and 2 of 5 rows have another number: line 3 has 1, line 5 has 3"),
        ("a,label\n1,x\n" + "2\n" * 12, r"12 of 13 rows have another number: line 3 has 1, .*line 12 has 1, and 2 lines more"),
        ("a,label\nr1,1,x\nr2,2,y\n", "as R writes them, name their column in the header"),
        ("a,label\n1,x,\n2,y,z\n", r"line 3 has 3\. A cell that holds the separator must be in quotation marks"),
        ("#a,label\n1,x\n2,y\n", "a line that begins with # has as many cells as the line below it"),
        ("a,a,b,b,label\n", "two columns are called 'a', 'b'. Rename one of each"),
        ("a,label\n1\0,x\n", r"line 2 has a NUL.*--set encoding=utf-16-le"),
        ("a,label\n1,\"x\n2,y\n", "a quotation mark is opened and not closed"),
        ("label,client,v\nNA,,1\nx,a,?\n0.5,a,oops\n", r"(?s)has 4 problems:\s\(1\) column label: the label is missing .*\(2\) column label: the label is 0\.5 "
         r".*\(3\) column client: .*\(4\) column v: 1 of 3 is no number \('oops' in line 4\)"),
        ("v,label\n1.5,x\nTrue,y\n", r"v: 1 of 2 is no number \('True' in line 3\)"),
        ("v;w;label\n1,5;oops;x\n0,5;1;y\n", r"column w: 1 of 2 is no number \('oops' in line 2\)\. Correct these cells, or leave the column out: --set leave_out=w\.$"),
        ("v,label\n\"1,234\",x\n\"2,345\",y\n", "column v: more than one reading is possible, '1,234' is 1234"),
        ("v,label\n1.234.567,x\n1 234,y\n", "all 2 are no number"),
    ],
)  # fmt: skip
def test_tables_that_say_all_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    with pytest.raises(DataError, match=f"(?s){said}"):
        read_user_data(tmp_path / "t.csv")


def test_a_decimal_comma_is_never_a_separator_of_thousands(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("v;w;label\n1.234,5;1;x\n0,5;2;y\n")
    for options in (Columns(decimal=","), Columns()):
        assert numbers_of(read_user_data(tmp_path / "t.csv", options)).tolist() == [[1234.5, 1], [0.5, 2]]
    (tmp_path / "t.csv").write_text("v;w;label\n1,5;0.5;x\n0,5;1;y\n")
    assert numbers_of(read_user_data(tmp_path / "t.csv")).tolist() == [[1.5, 0.5], [0.5, 1]]


def test_true_and_false_are_one_and_zero(tmp_path: Path) -> None:
    rows = [("v", "label"), *((bool(k % 3), "xy"[k % 2]) for k in range(8))]
    assert numbers_of(read_user_data(write(tmp_path / "t.csv", rows)))[:, 0].tolist() == [k % 3 > 0 for k in range(8)]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b[: len(b) // 2], "cannot be unpacked"),
        (lambda b: b"x" + b[1:], "cannot be unpacked"),
    ],
)
def test_damaged_compressed_tables(tmp_path: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    for name, pack in (("t.csv.gz", gzip.compress), ("t.csv.xz", lzma.compress), ("t.csv.bz2", bz2.compress)):
        (tmp_path / name).write_bytes(damage(pack(as_text().encode() * 50)))
        with pytest.raises(DataError, match=f"(?s){said}"):
            read_user_data(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "options", "ends_in"),
    [
        (as_text().replace(",y,", ",ä,").encode("latin-1"), [], "encoding=latin-1"),
        (as_text().encode("utf-16-le"), [], "encoding=utf-16-le"),
        (as_text().encode("utf-16-be"), [], "encoding=utf-16-be"),
        (as_text().replace("a,b", "NA,b").replace("0.5", "x").encode(), [], "leave_out=NA"),
        (as_text().replace("a,b", '"a, x",b').replace("0.5", "x").encode(), [], 'leave_out="a, x"'),
        (as_text().replace("a,b", "it's,b").replace("0.5", "x").encode(), [], "leave_out=it's"),
        (as_text().replace("a,b", '"say ""a""",b').replace("0.5", "x").encode(), [], 'leave_out="say ""a"""'),
        (as_text().replace("a,b", "$HOME `x`,b").replace("0.5", "x").encode(), [], "leave_out=$HOME `x`"),
        (as_text().replace("n\r\n", "NULL\r\n").encode(), [], "not_missing=NULL"),
    ],
)  # fmt: skip
def test_advice_works_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any, content: bytes, options: list[str], ends_in: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_bytes(content)
    commands = follow(equipoise, ["init", "--data", "t.csv", *options, "--output", "o.toml"])
    assert commands[-1][-1] == ends_in


def test_a_run_takes_the_options_that_were_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    content = COMMAS.replace("a;b", '"it\'s, 5""";b').replace("0,5", "x").encode()
    (tmp_path / "t.csv").write_bytes(content)
    command = ["--set", "decimal=,", "--rounds", "1", "--no-report", "--name", "x"]
    assert len(follow(equipoise, ["run", "--data", "t.csv", *command])) == 2
    commands = follow(equipoise, ["init", "--data", "t.csv", "--set", "decimal=,", "--output", "o.toml"])
    assert commands[-1][-1] == 'leave_out="it\'s, 5"""'
    run = equipoise("run", "--config", "o.toml", "--rounds", "1", "--no-report", "--name", "y")
    assert (run.status, complaints(run.err)) == (0, [])


# an index is no feature
def test_an_index_is_no_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(PLAIN[1:], columns=PLAIN[0])
    frame.to_csv("t.csv")
    found = read_user_data("t.csv")
    assert found.features == ("a", "b")
    (note,) = found.notes
    assert note.startswith("t.csv: the column Unnamed: 0 is left out")
    assert equipoise("init", "--data", "t.csv", "--set", advised(note), "--output", "o.toml").status == 0
    assert read_user_data("t.csv", Columns(keep=("Unnamed: 0",))).features == ("Unnamed: 0", "a", "b")
    pd.read_csv("t.csv").to_csv("t.csv")  # twice
    assert read_user_data("t.csv").features == ("a", "b")
    frame.reset_index(names="row").to_csv("t.csv", index=False)
    assert read_user_data("t.csv").features == ("a", "b")
    assert read_user_data("t.csv", Columns(keep=("row",))).features == ("row", "a", "b")
    for numbers in (np.arange(1001, 1013), np.arange(12)[::-1], np.arange(12) - 5.0):
        frame.assign(number=numbers).to_csv("t.csv", index=False)
        assert read_user_data("t.csv").features == ("a", "b")
    for name, numbers in {
        "number": np.arange(12) ** 2,
        "year": 2030 - np.arange(12) * 2,
        "ID": np.arange(12) * 5 % 12,
    }.items():
        frame.assign(**{name: numbers}).to_csv("t.csv", index=False)
        found = read_user_data("t.csv")
        assert found.features == ("a", "b", name)
        assert f"the column {name} may number the rows" in found.notes[0]
        assert f"--set leave_out={name}" in found.notes[0]
    frame.assign(rooms=np.arange(12) * 5 % 12).to_csv("t.csv", index=False)
    assert read_user_data("t.csv").notes == ()  # another order says nothing about the rows


def test_columns_that_count_are_said_of_arrays_and_not_of_a_few_rows(tmp_path: Path) -> None:
    x = np.stack([np.arange(12), np.arange(12) * 7 % 11], 1)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(12) % 2)
    assert "x[:, 0] holds only the numbers of the rows" in read_user_data(tmp_path / "t.npz").notes[0]
    few = [("v", "label"), *((k, "xy"[k % 2]) for k in range(5))]
    assert read_user_data(write(tmp_path / "t.csv", few)).features == ("v",)  # by chance, perhaps


# numbers
@given(
    st.lists(
        st.lists(st.floats(-1e30, 1e30, allow_subnormal=True) | st.integers(-(2**53), 2**53), min_size=2, max_size=2),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from([",", ";"]),
)
@REUSED
def test_numbers_are_read_to_the_last_bit(tmp_path: Path, values: list[list[float]], sep: str) -> None:
    rows = [("a", "b", "label"), *((f"{a!r}", f" {b!r} ", "xy"[k % 2]) for k, (a, b) in enumerate(values))]
    found = read_user_data(write(tmp_path / "t.csv", rows, delimiter=sep))
    assert numbers_of(found).tolist() == [[float(a), float(b)] for a, b in values]
    with_word = [*rows[:-1], ("x", *rows[-1][1:])]
    with pytest.raises(DataError, match="a: 1 of"):  # by the other way, cell by cell
        read_user_data(write(tmp_path / "t.csv", with_word, delimiter=sep))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("usual", 1_700_000_000 + np.random.default_rng(0).integers(0, 120, 200).astype(float)),
        ("usual", 2_460_000 + np.random.default_rng(0).random(200).round(4)),
        ("long", 1e15 + np.random.default_rng(0).integers(0, 9, 200).astype(float)),
        ("tiny", np.random.default_rng(0).normal(size=200) * 1e-200),
        ("huge", np.random.default_rng(0).normal(size=200) * 1e30),
    ],
)
def test_standardised_as_scikit_learn_does(tmp_path: Path, kind: str, column: np.ndarray[Any, Any]) -> None:
    rows = [("t", "label", "client"), *((repr(v), k % 2, k % 3) for k, v in enumerate(column.tolist()))]
    write(tmp_path / "t.csv", rows)
    np.savez(tmp_path / "t.npz", x=column[:, None], y=np.arange(200) % 2, client=np.arange(200) % 3)
    for name in ("t.csv", "t.npz"):
        made = scenarios.load("own", 0, tmp_path / name)
        train = np.concatenate([*made.manifest["clients"].values()])
        x = np.concatenate([x.numpy().ravel() for x, _ in made.clients])  # type: ignore[misc]
        exact = column[train].astype(np.longdouble)
        expected = (exact - exact.mean()) / exact.std()
        rounding = float(np.spacing(column.mean()) / exact.std())  # of the mean, which is a double
        assert np.abs(x - expected).max() < 1e-5 + rounding
        if kind == "usual":
            assert np.abs(x - StandardScaler().fit_transform(column[train][:, None]).ravel()).max() < 1e-5
        assert len(np.unique(x)) == len(np.unique(column[train]))
        assert not any("rounding" in note for note in made.manifest["notes"])


def test_constants_are_not_divided() -> None:
    x = np.full((7, 3), 0.1)
    x[6] = 0.2, 0.1, 5.0
    made, mean, std = standardised(x, [0, 1, 2, 3, 4, 5], str)
    assert std.tolist() == [[0, 0, 0]]
    assert mean.tolist() == [[0.1] * 3]
    assert made[:6].tolist() == [[0.0] * 3] * 6
    assert made[6].tolist() == pytest.approx([0.1, 0.0, 4.9])


def test_what_single_precision_loses_is_said(tmp_path: Path, equipoise: Any) -> None:
    fine = np.where(np.arange(100) % 10, np.arange(100) * 1e-3, 1e12)
    tiny = 10.0 ** -np.arange(100)
    plain = np.random.default_rng(0).normal(size=100)
    np.savez(tmp_path / "t.npz", x=np.stack([fine, plain, tiny], 1), y=np.arange(100) % 2, client=np.arange(100) % 2)
    (said,) = (note for note in scenarios.load("own", 0, tmp_path / "t.npz").manifest["notes"] if "rounding" in note)
    assert re.search(r"number 0 \(91 different numbers become 2\), number 2 \(100 different numbers become 1\d\)", said)
    assert "number 1" not in said
    done = equipoise("init", "--data", tmp_path / "t.npz", "--output", tmp_path / "o.toml")
    assert "number 0 (91 different numbers become 2)" in done.out


def test_what_a_network_cannot_tell_apart_is_said(caplog: pytest.LogCaptureFixture) -> None:
    seconds = 1_700_000_000 + torch.arange(60, dtype=torch.float64)
    for x, said in (
        (
            seconds[:, None],
            "client-0: rounding to single precision .*number 0 of a sample \\(60 different numbers become 1\\)",
        ),
        (seconds[:, None].long(), "60 different numbers become 1"),
        (seconds[:, None] - seconds.mean(), ""),
        (torch.randn(60, 1, dtype=torch.float64), ""),
        (torch.randn(60, 1), ""),
    ):
        caplog.clear()
        eq.Federation(torch.nn.Linear(1, 2), [(x, torch.arange(60) % 2)]).fit(1, progress=False)
        assert bool(said) == ("rounding" in caplog.text)
        assert re.search(said, caplog.text)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_whole_numbers_that_double_precision_merges_are_said(tmp_path: Path, name: str) -> None:
    values = [10**17 + k % 5 for k in range(20)]
    if name == "t.csv":
        write(tmp_path / name, [("code", "v", "label"), *((c, k * 7 % 11, "xy"[k % 2]) for k, c in enumerate(values))])
    else:
        parquet(tmp_path / name, code=values, v=[k * 7 % 11 for k in range(20)], label=["x", "y"] * 10)
    (said,) = read_user_data(tmp_path / name).notes
    assert "code: whole numbers of so many digits that different ones are the same in double precision" in said


# Parquet
def parquet(path: Path, **columns: Any) -> Path:
    pytest.importorskip("pyarrow")
    import pandas as pd

    pd.DataFrame(columns).to_parquet(path)
    return path


def test_parquet(tmp_path: Path) -> None:
    import pandas as pd

    path = parquet(
        tmp_path / "t.parquet",
        a=np.arange(12) * 7 % 11,
        b=pd.array([True, False] * 6, "boolean"),
        c=["1.5", " 2 "] * 6,
        label=pd.Categorical(["007", "07", "7"] * 4),
        client=np.array([2**62, 2**62 + 1] * 6),
        group=pd.to_datetime(["2020-01-01", "2020-01-02"] * 6),
    )
    found = read_user_data(path)
    assert found.features == ("a", "b", "c")
    assert numbers_of(found)[:2].tolist() == [[0, 1, 1.5], [7, 0, 2]]
    assert found.clients == (str(2**62), str(2**62 + 1))
    assert set(found.classes) == {"007", "07", "7"}
    assert set(found.group or ()) == {"2020-01-01", "2020-01-02"}


def test_parquet_with_nothing_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas as pd

    whole = pd.array([2**60, 2**60 + 1, None, 5] * 3, "Int64")
    path = parquet(tmp_path / "t.parquet", a=[1.5, 2.5, np.nan, 4.0] * 3, w=["x", "y", "z", None] * 3, label=whole)
    with pytest.raises(
        DataError,
        match=r"column label: the label is missing in 3 of 12 samples: row 3, row 7, row 11",
    ):
        read_user_data(path)
    frame = pd.DataFrame(
        {"v": np.arange(12) * 7 % 11, "label": ["x", "y"] * 6}, index=pd.Index(["n", "s"] * 6, name="client")
    )
    frame.to_parquet(path)
    assert read_user_data(path).clients == ("n", "s")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as a Parquet file"):
        read_user_data(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="need the package pyarrow: pip install pyarrow"):
        read_user_data(path)


# options of the command line
def test_names_are_read_as_they_are_written() -> None:
    for word in ("007", "1e3", "1_2", "NA", "True", "0x10", "1.0", "a b"):
        assert option_value("own", "label", word) == word
    assert option_value("own", "label", repr("a, b")) == "a, b"
    assert option_value("own", "leave_out", "['a, b', 'c']") == ["a, b", "c"]
    assert several(option_value("own", "leave_out", '"a, b",c')) == ("a, b", "c")
    assert option_value("own", "clients", "8") == 8
    assert option_value("own", "download", "true") is True
    assert called("--scenario", "own(label=007, leave_out=['a, b'], clients=3)", "") == (
        "own",
        {"label": "007", "leave_out": ["a, b"], "clients": 3},
    )


def test_columns_called_like_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equipoise: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", [("1e3", "1000", "007"), *((k * 7 % 11, k % 2, "ab"[k % 2]) for k in range(24))])
    chosen = ("--set", "label=1000", "--set", "client=007")
    assert equipoise("run", "--data", "t.csv", *chosen, "--rounds", "1", "--no-report").status == 0
    with pytest.raises(DataError, match=r"Unknown column '1000\.0'"):
        scenarios.load("own", 0, "t.csv", label=1000.0)
    assert eq.scenario("own", data="t.csv", label=1000, client="007").manifest["inputs"] == ["1e3"]


def test_a_wide_table_is_read_in_time_that_grows_with_it(tmp_path: Path) -> None:
    n = 2000
    rows: list[list[object]] = [[f"gene{k}" for k in range(n)] + ["label", "client"]]
    rows += [[*np.random.default_rng(r).normal(size=n).round(3).tolist(), r % 2, r % 3] for r in range(12)]
    made = scenarios.load("own", 0, write(tmp_path / "t.csv", rows))
    assert made.shape == (n,)
    assert torch.isfinite(made.clients[0][0]).all()  # type: ignore[index]


@pytest.mark.parametrize(
    ("label", "classes", "counts"),
    [
        ("num:1", ("< 1", ">= 1"), [4, 8]),
        ("num:0.5,3", ("< 0.5", ">= 0.5 and < 3", ">= 3"), [4, 4, 4]),
        ("score:0.25", ("< 0.25", ">= 0.25"), [6, 6]),
    ],
)
def test_bands_of_a_number_are_classes(tmp_path: Path, label: str, classes: tuple[str, ...], counts: list[int]) -> None:
    rows = [f"{k % 6 // 2 + (k % 6 > 3)},{k % 4 / 8},{k * 7 % 11},{'ab'[k // 6]},{'uv'[k % 2]}" for k in range(12)]
    (tmp_path / "t.csv").write_text("num,score,x,client,w\n" + "\n".join(rows) + "\n")
    own = read_user_data(tmp_path / "t.csv", Columns(label=label))
    assert sorted(own.classes, key=classes.index) == [*classes]
    assert [own.label.count(name) for name in classes] == counts
    assert label.partition(":")[0] not in own.features
    with pytest.raises(DataError, match=r"are classes\. Leave them out, or task=regression"):
        read_user_data(tmp_path / "t.csv", Columns(label=label, task="regression"))
    with pytest.raises(DataError, match=r"label=w:\.\.\. needs a number in every row"):
        read_user_data(tmp_path / "t.csv", Columns(label="w:1"))
    with pytest.raises(DataError, match="edges of the bands in label=num:2,1 must be increasing"):
        read_user_data(tmp_path / "t.csv", Columns(label="num:2,1"))
    with pytest.raises(DataError, match=r"Unknown column 'nom'\. Did you mean 'num'"):
        read_user_data(tmp_path / "t.csv", Columns(label="nom:1"))


@pytest.mark.parametrize("cell", ["", "NA", "nan"])
def test_a_missing_number_with_bands_is_a_missing_label(tmp_path: Path, cell: str) -> None:
    (tmp_path / "t.csv").write_text(f"num,x,client\n0.5,1,a\n2.5,2,a\n{cell},3,b\n")
    with pytest.raises(DataError, match=r"column num: the label is missing in 1 of 3 samples"):
        read_user_data(tmp_path / "t.csv", Columns(label="num:1"))


@pytest.mark.parametrize("rows", [12, 700])
@pytest.mark.parametrize("last", ["1.5", ""])
def test_a_column_that_counts_the_rows_is_left_out_whatever_else_the_table_holds(
    tmp_path: Path, rows: int, last: str
) -> None:
    """A cell far below that is no number makes all columns text, and rows without a label make gaps in the numbers of the rows."""
    table = [("no", "a", "label"), *((k + 1, k * 7 % 11, "yn"[k % 2] if k % 5 else "") for k in range(rows - 1))]
    write(tmp_path / "t.csv", [*table, (rows, last, "y")])
    own = read_user_data(tmp_path / "t.csv", Columns(unlabelled="leave-out"))
    assert own.features == ("a",)
    assert "--set keep=no" in " ".join(own.notes)
    kept = read_user_data(tmp_path / "t.csv", Columns(unlabelled="leave-out", keep=("no",)))
    assert kept.features == ("no", "a")


def test_people_of_unknown_group_join_with_bands_and_with_no_other_group(tmp_path: Path) -> None:
    ages = [30, "", 50, "NA"] * 5
    write(
        tmp_path / "t.csv", [("a", "age", "label"), *((k * 7 % 11, age, "yn"[k % 3 > 0]) for k, age in enumerate(ages))]
    )
    own = read_user_data(tmp_path / "t.csv", Columns(group="age:40", unknown="unstated"))
    assert own.group == ("< 40", "unstated", ">= 40", "unstated") * 5
    assert "10 of 20 samples have no group, and are the group 'unstated'" in " ".join(own.notes)
    assert own.about["groups"]["age"]["unknown"] == "unstated"
    kept = read_user_data(tmp_path / "t.csv", Columns(group="age", unknown="unstated", not_missing=("NA",)))
    assert kept.values == {"age": ("30", "50", "NA", "unstated")}
    with pytest.raises(
        DataError, match=r"unknown=30 would join people whose group is missing and a group of this name"
    ):
        read_user_data(tmp_path / "t.csv", Columns(group="age", unknown="30"))
    with pytest.raises(ValueError, match="unknown has no effect without group=COLUMN"):
        read_user_data(tmp_path / "t.csv", Columns(unknown="unstated"))


def test_numbers_with_a_few_words_may_be_categories(tmp_path: Path) -> None:
    write(
        tmp_path / "t.csv",
        [("a", "livch", "label"), *((k * 7 % 11, [0, 1, 2, "3+"][k % 4], "yn"[k % 3 > 0]) for k in range(20))],
    )
    with pytest.raises(
        DataError, match=r"5 of 20 are no number.*--set 'columns=\{\"livch\": \{\"kind\": \"category\"\}\}'\.$"
    ):
        read_user_data(tmp_path / "t.csv")
    own = read_user_data(tmp_path / "t.csv", Columns(schema='{"livch": {"kind": "category"}}'))
    assert own.features == ("a", "livch")


def test_a_bundle_reads_a_missing_group_as_training_did() -> None:
    from equipoise.bundle.inputs import GroupColumn

    plainly, named = (GroupColumn(column="age", bands=(40.0,), unknown=name) for name in ("", "unstated"))
    assert [plainly.group_of(cell) for cell in ("NA", None, "30")] == ["", "", "< 40"]
    assert [named.group_of(cell) for cell in ("NA", None, "50")] == ["unstated", "unstated", ">= 40"]


@pytest.mark.parametrize("kind", ["datetime64[ms]", "datetime64[ns]", "object"])
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
def test_a_date_that_stands_for_a_missing_one_in_typed_cells(tmp_path: Path, form: str, kind: str) -> None:
    days = pd.Series(pd.date_range("2019-01-05", periods=40, freq="11D").astype("datetime64[ms]"))
    days[::8] = pd.Timestamp("9999-12-31")
    seen = (
        days.dt.date if kind == "object" else days.where(days.dt.year < 9000, pd.Timestamp("1804-05-06")).astype(kind)
    )
    frame = pd.DataFrame({"seen": seen, "label": [*"ab"] * 20, "client": [*"xxyy"] * 10})
    frame.to_parquet(tmp_path / "t.parquet")
    mark = "9999-12-31" if kind == "object" else "1804-05-06"
    column = {"kind": "date", "form": form, "missing_values": [mark]}
    made = eq.scenario("own", 0, data=str(tmp_path / "t.parquet"), columns={"seen": column})
    assert made.manifest["inputs"] == ["seen", "seen missing"]
    x = torch.cat([client[0] for client in made.clients])
    assert int((x[:, 1] > 0.5).sum()) == sum(k % 8 == 0 for rows in made.manifest["clients"].values() for k in rows)


@pytest.mark.parametrize("gap", ["", "NA", "?"])
def test_eight_digits_with_a_gap_may_be_days(tmp_path: Path, gap: str) -> None:
    days = [f"{day:%Y%m%d}" for day in pd.date_range("1950-03-01", periods=30, freq="397D")]
    frame = pd.DataFrame({"born": [*days[:20], gap, *days[20:]], "label": ["a", "b", "a"] * 10 + ["b"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="column born: more than one reading is possible"):
        eq.scenario("own", 0, data=str(tmp_path / "t.csv"), clients=2)
    number = {"born": {"kind": "number"}}
    read = eq.scenario("own", 0, data=str(tmp_path / "t.csv"), clients=2, columns=number)
    assert read.manifest["schema"]["fitted"]["born"]["centre"] > 19_000_000


@pytest.mark.parametrize("words", [("3.1", "3.10", "3.2"), ("0", "00", "5"), ("007", "7", "8")])
def test_numbers_in_place_of_different_categories_are_refused(words: tuple[str, ...]) -> None:
    feature = Feature("code", CATEGORY, categories=words)
    cells = Words.of([*words] * 10)
    raw = RawTable(Schema((feature,), {}), {"code": read_cells(feature, cells, str)[0]})
    coder = Coder.fitted_to(raw, [np.arange(30)])
    assert coder.encode_frame(pd.DataFrame({"code": [*words]}))[0].shape[0] == 3
    with pytest.raises(DataError, match=re.escape("dtype={'code': str}")):
        coder.encode_frame(pd.DataFrame({"code": [float(word) for word in words]}))
    assert (
        len(coder.encode_frame(pd.DataFrame({"code": [float(words[2])]}))[0]) == 1
    )  # no other category is this number


def test_categories_that_pandas_takes_for_gaps_are_noted() -> None:
    feature = Feature("alcohol", CATEGORY, not_missing=("None",))
    cells = Words.of(["None", "some", "much"] * 10)
    raw = RawTable(Schema((feature,), {}), {"alcohol": read_cells(feature, cells, str)[0]})
    coder = Coder.fitted_to(raw, [np.arange(30)])
    assert coder.encode_frame(pd.DataFrame({"alcohol": ["None", "some"]}))[1] == []
    notes = coder.encode_frame(pd.DataFrame({"alcohol": [None, "some", "None"]}))[1]
    assert any(
        "column alcohol: cells that are missing: 1" in note and "keep_default_na=False" in note for note in notes
    )


@pytest.mark.parametrize("kind", [float, Decimal])
def test_fractions_in_place_of_thousands_are_refused(kind: Any) -> None:
    feature = Feature("income", thousands=".", decimal=",")
    cells = Words.of([f"{k}.150" for k in range(100, 130)])
    raw = RawTable(Schema((feature,), {}), {"income": read_cells(feature, cells, str)[0]})
    coder = Coder.fitted_to(raw, [np.arange(30)])
    whole = coder.encode_frame(pd.DataFrame({"income": [kind(100150), kind(120000.5)]}))[0]
    assert whole[0] < whole[1]
    with pytest.raises(DataError, match=r"in training text with .* gave numbers about 1"):
        coder.encode_frame(pd.DataFrame({"income": [kind(100.15), kind(129.129)]}))


@pytest.mark.parametrize(
    "options", [{"group": "inc:33,67"}, {"label": "inc:33"}, {"label": "inc", "task": "regression"}]
)
def test_a_purpose_whose_numbers_other_columns_decide_has_a_note(tmp_path: Path, options: dict[str, str]) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"inc": [f"{x:.3f}" for x in rng.uniform(2, 90, 60)], "x": rng.normal(size=60)})
    frame.assign(label=rng.choice(["a", "b"], 60)).to_csv(tmp_path / "t.csv", index=False)
    made = eq.scenario("own", 0, data=str(tmp_path / "t.csv"), clients=2, **options)
    (note,) = [note for note in made.manifest["notes"] if "column inc:" in note]
    assert note.startswith(f"{tmp_path / 't.csv'}: column inc: '")
    assert note.endswith('thousands = ".", decimal = ",".')
    declared = eq.scenario("own", 0, data=str(tmp_path / "t.csv"), clients=2, decimal=".", **options)
    assert not [note for note in declared.manifest["notes"] if "column inc:" in note]


def test_long_tables_are_read_as_short_ones_are(tmp_path: Path) -> None:
    """Also where a column has two purposes, and lines in cells end as on Windows."""
    rows = [f'{k % 9 / 7:.3f},s{k % 3},{"yn"[k % 2]},"a\r\n{k % 4}"' for k in range(1200)]
    parts = []
    for n in (60, 1200):
        (path := tmp_path / f"{n}.csv").write_bytes("\r\n".join(["v,site,label,c", *rows[:n], ""]).encode())
        parts.append(read_user_data(path, Columns(client="site", group="site")))
    for own in parts:
        assert own.client == own.attributes["site"] == tuple(f"s{k % 3}" for k in range(len(own)))
        assert own.inputs.columns["c"].words == ("a\n0", "a\n1", "a\n2", "a\n3")  # type: ignore[union-attr]
