import contextlib
import io
import json
import posixpath
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smallfiles import formats
from smallfiles.cli import main
from smallfiles.errors import FormatError, printable
from smallfiles.folders import is_writable_name, key_problem
from smallfiles.manifest.columns import SUSPICIOUS_PATH
from smallfiles.samples import Sample, Schema

TRICKY = st.text(st.sampled_from("/.\0a\né "), max_size=8)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("a\nb", "a line break"),
        ("..\n", "a line break"),
        ("/etc/passwd", "absolute"),
        ("/", "absolute"),
        ("..", "leaves its folder"),
        ("../a", "leaves its folder"),
        ("a/../b", "leaves its folder"),
        ("a/..", "leaves its folder"),
        (".", "not normalised"),
        ("./a", "not normalised"),
        ("a//b", "not normalised"),
        ("a/", "not normalised"),
        ("a/./b", "not normalised"),
        ("\ud800", "UTF-8"),
    ],
)
def test_a_bad_key_is_described(key, words):
    assert words in key_problem(key)


@pytest.mark.parametrize(
    "key", ["a", "a/b.jpg", ".hidden", "a/.b/..c/d..", "...", " ", "a\rb", "ü/漢字.jpg", "-rf", "x" * 5000]
)
def test_an_unusual_but_harmless_key_is_allowed(key):
    assert key_problem(key) is None


@pytest.mark.parametrize("suffix", [suffixes[0] for suffixes in formats.suffixes().values()])
def test_no_format_stores_a_key_with_a_line_break(tmp_path, suffix):
    write = formats.get(formats.name_of(tmp_path / f"x{suffix}")).write
    with pytest.raises(FormatError, match=r"a\\nb.* a line break"):
        write([Sample("a\nb.jpg", (b"x",), 0)], tmp_path / f"x{suffix}", schema=Schema(1, 1, 1))


@given(st.one_of(TRICKY, ANY_TEXT))
def test_an_allowed_key_is_what_normalising_it_gives_and_stays_in_its_folder(key):
    if key_problem(key) is None:
        assert posixpath.normpath(key) == key
        assert posixpath.join("/root", key).startswith("/root/")


@given(st.lists(st.one_of(TRICKY, ANY_TEXT), max_size=20))
def test_the_vectorised_check_of_manifests_agrees_with_key_problem(keys):
    suspicious = pc.match_substring_regex(pa.array(keys, pa.string()), SUSPICIOUS_PATH).to_pylist()
    assert suspicious == [key_problem(key) is not None for key in keys]


@pytest.mark.parametrize(
    ("key", "writable"),
    [
        ("a" * 255, True),
        ("a" * 256, False),
        ("ü" * 127, True),
        ("ü" * 128, False),
        ("b/" + "a" * 256 + "/c", False),
        ("\ud800", True),  # half a pair, which UTF-8 cannot hold
    ],
)
def test_a_component_beyond_255_bytes_cannot_be_written(key, writable):
    assert is_writable_name(key) is writable


@pytest.mark.parametrize(
    "bad", ["\x1b[2J", "\r", "\n", "\x07", "\x7f", "\x9b31m", "\u202e", "\u2028", "\u2066"]
)
def test_no_control_character_of_a_name_reaches_the_terminal(bad, tmp_path, capsys):
    key = f"c/a{bad}b.jpg"
    table = pa.table(
        {"key": [key], "image": [b"\xff\xd8\xff data \xff\xd9"], "label": pa.array([0], pa.int64())}
    )
    with pa.OSFile(str(tmp_path / "x.arrow"), "w") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "tree/c").mkdir(parents=True)
    (tmp_path / "tree/c/other.jpg").write_bytes(b"\xff\xd8\xff data \xff\xd9")
    (tmp_path / "m.json").write_text(json.dumps({key: 0}))
    for command in (
        ["inspect", "x.arrow"],
        ["inspect", "x.arrow", "--json"],
        ["verify", "x.arrow", "--against", "tree"],
        ["verify", "x.arrow", "--against", "tree", "--json"],
        ["pack", "m.json", "y.arrow", "--root", "tree"],
    ):
        main([str(tmp_path / word) if "." in word or word == "tree" else word for word in command])
        told = "".join(capsys.readouterr())
        assert "c/a" in told and f"a{bad}b" not in told, command
        assert bad == "\n" or bad not in told, command


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_no_control_character_of_a_path_or_a_word_reaches_the_terminal(tmp_path, capsys, monkeypatch):
    bad = "\x1b[2J"
    (tmp_path / "tree/c").mkdir(parents=True)
    (tmp_path / "tree/c/1.jpg").write_bytes(b"\xff\xd8\xff data \xff\xd9")
    out = str(tmp_path / f"a{bad}.arrow")
    for command in (
        ["pack", str(tmp_path / "tree"), out],
        ["inspect", out],
        ["verify", out],
        ["manifest", str(tmp_path / "tree"), str(tmp_path / f"{bad}.json")],
        ["pack", str(tmp_path / "tree"), out, f"--{bad}"],
        ["inspect", out, out],
        [bad],
    ):
        with contextlib.suppress(SystemExit):
            main(command)
        told = "".join(capsys.readouterr())
        assert "[2J" in told and bad not in told, command
    main(["stage", out, "--to", str(tmp_path / "there")])
    there = capsys.readouterr().out
    assert bad in there  # for $(...)
    monkeypatch.setattr(sys, "stdout", Terminal())
    main(["stage", out, "--to", str(tmp_path / "there")])
    assert sys.stdout.getvalue() == printable(there.rstrip("\n")) + "\n"


def test_what_can_be_read_stays_as_it_is():
    for text in ("cat/1.jpg", "é 漢 🐈.jpg", "back\\slash", "a\u200db"):
        assert printable(text) == text
    assert printable("a\x1b\x9b\u202eb") == "a\\x1b\\x9b\\u202eb"
