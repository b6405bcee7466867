"""Text tables: every cell comes back as written, or the table is refused, or a note says what differs."""

import csv
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError

_ALPHABET = "ab0 \",;|\t\n\r'\u00e4"
_ROWS = st.lists(
    st.tuples(st.text(_ALPHABET, max_size=6), st.text(_ALPHABET, max_size=6)), min_size=1, max_size=5
)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    root = tmp_path_factory.mktemp("clips")
    for number in range(8):
        (root / f"{number}.mp3").write_bytes(b"ID3" + bytes([number]) * 50)
    return root


def loaded(root, name, data, **options):
    (root / name).write_bytes(data)
    return sources.load(root / name, unlabelled=True, **options)


def column(source, name):
    return source.manifest.values[name].to_pylist()


def notes(source):
    return "; ".join(source.notes)


def table(*cells, delimiter=","):
    """A table with one column of paths and one called x."""
    lines = [f"path{delimiter}x", *(f"{n}.mp3{delimiter}{cell}" for n, cell in enumerate(cells))]
    return ("\n".join(lines) + "\n").encode()


SENTENCES = [
    "He said hello",
    '"Yes, we are',
    "going home",
    'It was "fine" they said',
    '"Quoted all through"',
    'ends with quote"',
    "last one",
]


def test_a_tsv_with_unbalanced_quotes_keeps_every_row_and_every_quote(clips):
    source = loaded(clips, "validated.tsv", table(*SENTENCES, delimiter="\t"))
    assert column(source, "x") == SENTENCES
    assert re.search(r"validated.tsv .*tabs.*without quoting.*UTF-8.*header", notes(source))


def test_a_tsv_whose_rows_all_parse_with_quoting_is_read_with_it_and_says_what_differs(clips):
    source = loaded(clips, "t.tsv", b'path\tx\n0.mp3\t"a\tb"\n1.mp3\t"c\nd"\n2.mp3\tplain\n')
    assert column(source, "x") == ["a\tb", "c\nd", "plain"]
    assert "with quoting" in notes(source)
    same = loaded(clips, "t.tsv", b'path\tx\n0.mp3\t"a"\n1.mp3\tb\n')
    assert column(same, "x") == ["a", "b"]
    assert re.search(r"1 cell .*differs? without quoting", notes(same))


def test_a_table_that_has_other_rows_with_quoting_than_without_is_refused(clips):
    data = b'path\tx\n0.mp3\t"a\n1.mp3\tb"\n2.mp3\tc\n'
    with pytest.raises(SmallfilesError, match=r"2 rows with quoting and 3 .*without.*\.jsonl"):
        loaded(clips, "t.tsv", data)
    rewritten = "".join(json.dumps({"path": f"{n}.mp3", "x": x}) + "\n" for n, x in enumerate(('"a', 'b"')))
    assert column(loaded(clips, "t.jsonl", rewritten.encode()), "x") == ['"a', 'b"']


@pytest.mark.parametrize("quoted", ['"never closed', '"closed" too early', '"said \\"hi\\""'])
def test_a_csv_with_broken_quoting_is_refused_with_its_line(clips, quoted):
    with pytest.raises(SmallfilesError, match=r"line 3 of .*t.csv.*quot"):
        loaded(clips, "t.csv", table("ok", quoted))


@pytest.mark.parametrize(
    ("header", "first", "second", "expected"),
    [
        ("path|x", "0.mp3|a, with, commas", "1.mp3|b", ["a, with, commas", "b"]),
        ("path|x,y,z", "0.mp3|a", "1.mp3|b", None),
        ("path;x", "0.mp3;a", "1.mp3;b", ["a", "b"]),
    ],
)
def test_the_delimiter_is_the_one_that_gives_every_row_the_same_columns(
    clips, header, first, second, expected
):
    source = loaded(clips, "t.csv", f"{header}\n{first}\n{second}\n".encode())
    if expected:
        assert column(source, "x") == expected
    else:
        assert source.manifest.values.column_names == ["x,y,z"]


def test_two_delimiters_that_both_fit_are_refused(clips):
    with pytest.raises(SmallfilesError, match=r"',' and ';' both"):
        loaded(clips, "t.csv", b"path;a,b\n0.mp3;1,2\n1.mp3;3,4\n")


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
def test_a_byte_order_mark_and_line_ends_of_windows_change_nothing(clips, ends):
    data = b"\xef\xbb\xbf" + f"path,x{ends}0.mp3,a{ends}1.mp3,b{ends}".encode()
    assert column(loaded(clips, "t.csv", data), "x") == ["a", "b"]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize(
    ("encoding", "cure"), [("latin-1", "iconv -f LATIN1"), ("utf-16", "iconv -f UTF-16")]
)
def test_another_encoding_is_refused_with_the_command_that_converts(clips, name, encoding, cure):
    delimiter = "\t" if name.endswith("tsv") else ","
    text = f"path{delimiter}x\n0.mp3{delimiter}B\u00e4r\n"
    with pytest.raises(SmallfilesError, match=cure) as caught:
        loaded(clips, name, text.encode(encoding))
    command = re.search(r"iconv .* > \S+", str(caught.value))[0].rstrip(".")
    import subprocess

    subprocess.run(["bash", "-c", command], cwd=clips, check=True)
    fixed = Path(command.rpartition("> ")[2].strip("'"))
    assert column(sources.load(fixed, unlabelled=True), "x") == ["B\u00e4r"]


def test_an_empty_quoted_text_is_not_a_missing_value(clips, tmp_path):
    source = loaded(clips, "t.csv", b'path,x,n\n0.mp3,"",1\n1.mp3,,""\n2.mp3,a,3\n')
    assert column(source, "x") == ["", None, "a"]
    assert column(source, "n") == [1, None, 3]
    out = tmp_path / "o.arrow"
    assert main(["pack", str(clips / "t.csv"), str(out), "--unlabelled", "--check", "none"]) == 0
    assert formats.open(out).table(["x"])["x"].to_pylist() == ["", None, "a"]


def test_an_empty_quoted_class_is_a_missing_label_and_not_a_class_of_no_name(clips):
    (clips / "t.csv").write_bytes(b'path,label\n0.mp3,""\n1.mp3,a\n')
    source = sources.load(clips / "t.csv")
    assert source.manifest.classes == ("a",) and len(source.manifest) == 1


@pytest.mark.parametrize(
    ("cells", "expected", "said"),
    [
        (["9223372036854775807", "-9223372036854775808"], [2**63 - 1, -(2**63)], ""),
        (["18446744073709551615", "1"], ["18446744073709551615", "1"], "x stays text.*64 bits"),
        (["9007199254740993", "0.5"], ["9007199254740993", "0.5"], "x stays text.*9007199254740993"),
        (["9007199254740992", "0.5"], [9007199254740992.0, 0.5], ""),
        (["1e400", "0.5"], ["1e400", "0.5"], "x stays text.*1e400"),
        (["1e-400", "0.5"], ["1e-400", "0.5"], "x stays text.*1e-400"),
        (["0.12345678901234567890", "0.5"], [0.12345678901234568, 0.5], "x .*rounded.*0.1234567890123456789"),
        (["inf", "0.5"], [float("inf"), 0.5], ""),
        (["007", "1"], ["007", "1"], ""),
        (["1", "", "3"], [1, None, 3], ""),
    ],
)
def test_numbers_of_a_csv_are_exact_or_stay_text_or_are_said_to_be_rounded(clips, cells, expected, said):
    source = loaded(clips, "t.csv", table(*cells))
    assert column(source, "x") == expected
    assert re.search(said, notes(source)) if said else not re.search("stays text|rounded", notes(source))


@pytest.mark.parametrize("numbers", ["9007199254740993 0.5", "18446744073709551615 1", "1e400 1"])
def test_numbers_of_json_lines_that_would_be_rounded_are_refused(clips, numbers):
    lines = (f'{{"path": "{n}.mp3", "x": {x}}}\n' for n, x in enumerate(numbers.split()))
    with pytest.raises(SmallfilesError, match=r"t.jsonl.*(too (big|large)|cannot be held)"):
        loaded(clips, "t.jsonl", "".join(lines).encode())


def test_a_table_without_a_header_is_read_with_numbered_columns_and_else_refused_with_this_cure(clips):
    (clips / "m.csv").write_bytes(b'0|text 0, with comma|t0\n1|"text 1|t1\n')
    with pytest.raises(SmallfilesError, match=r"no header.*--field .*column1"):
        sources.load(clips / "m.csv")
    source = sources.load(clips / "m.csv", columns=("audio={column1}.mp3", "captions=column2"))
    assert source.manifest.paths.to_pylist() == ["0.mp3", "1.mp3"]
    assert source.manifest.targets.to_pylist() == [["text 0, with comma"], ['"text 1']]
    assert re.search(r"'\|'.*without quoting.*without a header", notes(source))


@settings(max_examples=150)
@given(
    rows=_ROWS,
    delimiter=st.sampled_from(",;|\t"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_NONE]),
    ends=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
)
def test_what_a_csv_writer_wrote_is_read_back_or_refused_or_noted(
    clips, rows, delimiter, quoting, ends, mark
):
    path = clips / ("p.tsv" if delimiter == "\t" else "p.csv")
    with path.open("w", newline="", encoding="utf-8-sig" if mark else "utf-8") as file:
        try:
            out = csv.writer(
                file, delimiter=delimiter, quoting=quoting, lineterminator=ends,
                quotechar=None if quoting == csv.QUOTE_NONE else '"',
            )  # fmt: skip
            out.writerow(["path", "x", "y"])
            out.writerows([f"{n}.mp3", f"t{x}", f"{y}t"] for n, (x, y) in enumerate(rows))
        except csv.Error:  # a cell that this dialect cannot write
            return
    try:
        source = sources.load(path, unlabelled=True)
    except SmallfilesError:
        return
    found = list(zip(column(source, "x"), column(source, "y"), strict=True))
    expected = [(f"t{x}", f"{y}t") for x, y in rows]
    assert found == expected or "without quoting" in notes(source)
    assert len(found) == len(expected)
