"""Every fault of a manifest is told by name, with the count and the first few."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from smallfiles.errors import ManifestError, SourceError
from smallfiles.manifest import Manifest


def summary(*arguments, **more):
    with pytest.raises(ManifestError) as caught:
        Manifest.from_columns(*arguments, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/etc/passwd", "'/etc/passwd' is an absolute path"),
        ("../../.bashrc", "'../../.bashrc' leaves its folder through '..'"),
        ("a//b", "'a//b' is not normalised"),
        ("./a", "'./a' is not normalised"),
        ("", "'' is empty"),
        ("a\0", "NUL"),
        ("\ud800", "not valid UTF-8: '\\ud800' (row 1)"),
        (5, "not of string type: 5 (row 1)"),
        (b"a", "not of string type: b'a' (row 1)"),
        (None, "not of string type: None (row 1)"),
        (Path("a"), "not of string type: PosixPath('a') (row 1)"),
    ],
)
def test_a_bad_path_is_named(path, words):
    assert words in summary(["good", path], [0, 0])


def test_many_bad_paths_are_counted_and_the_first_few_named_and_cut():
    message = summary([f"/data/{row}.jpg" for row in range(1000)] + ["good"], [0] * 1001)
    assert message.startswith("1,000 paths are not usable: '/data/0.jpg' is an absolute path, '/data/1.jpg'")
    assert "and 995 more" in message
    assert "Make the paths relative" in message
    message = summary(["/" + "x" * 10**6], [0])
    assert len(message) < 500 and "1,000,003 characters" in message


def test_paths_given_more_than_once_are_named_once():
    message = summary(["b", "a", "c", "a", "b", "a"], [0] * 6)
    assert message.startswith("2 paths are given more than once: 'a', 'b';")
    many = [f"{row:07d}" for row in range(250_000)]
    assert "1 path is given more than once: '0199999'" in summary([*many, "0199999"], [0] * 250_001)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (True, "not of integer type: True ('b')"),
        (np.bool_(True), "not of integer type"),
        (1.0, "not of integer type: 1.0 ('b')"),
        (float("nan"), "not of integer type: nan ('b')"),
        (np.float32(1), "not of integer type"),
        ("1", "not of integer type: '1' ('b')"),
        (None, "not of integer type: None ('b')"),
        ([1], "not of integer type: [1] ('b')"),
        (3, "outside the class list: 3 ('b'); expected labels from 0 to 2, or -1 for unknown"),
        (-2, "outside the class list: -2 ('b')"),
        (2**31, "outside the class list: 2147483648 ('b')"),
        (2**63, "too large: 9223372036854775808 ('b')"),
        (10**4000, "a number of more than 30 digits ('b')"),
    ],
)
def test_a_bad_label_is_named_with_its_path(label, words):
    assert words in summary(["a", "b"], [0, label], classes=["x", "y", "z"])


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0.0, 1.0]),
        np.array([False, True]),
        np.array([0, 2**63], np.uint64),
        np.array([[0, 1]]),
        pa.array([0, None]),
        pa.array([0.0, 1.0]),
        pa.array([False, True]),
        pa.array([0, 2**63], pa.uint64()),
        pa.array(["0", "1"]),
    ],
    ids=str,
)
def test_an_array_of_something_else_is_no_label_column(labels):
    assert summary(["a", "b"], labels)
    assert "outside the range of 32 bits: -2147483649 ('a')" in summary(["a"], [-(2**31) - 1])


@pytest.mark.parametrize(
    "captions", ["text", ["x", None], [1], [["x"]], [b"x"], ["\ud800"], None, 5, {"a": 1}], ids=repr
)
def test_captions_that_are_no_list_of_strings_are_named(captions):
    message = summary(["a", "b"], values={"captions": [["fine"], captions]})
    known = (
        "1 list is not of captions"
        if isinstance(captions, list)
        else "1 sample is without a list of captions"
    )
    assert known in message and "('b')" in message


@pytest.mark.parametrize(
    "captions",
    [pa.array([["x"], None]), pa.array([["x"], [None]]), pa.array([[1], [2]]), pa.array([[b"\xff"], [b"x"]])],
    ids=str,
)
def test_an_arrow_column_of_something_else_is_no_caption_column(captions):
    assert "aptions" in summary(["a", "b"], values={"captions": captions})


@pytest.mark.parametrize(
    ("column", "words", "values"),
    [
        ("sizes", "1 size is", (-1, 1.5, True, "1", 2**63)),
        ("sha256", "1 sha256 is", ("", "0" * 63, "0" * 64 + "\n", "A" * 64, 5, b"0" * 64)),
        (
            "metas",
            "1 meta entry is not a JSON object",
            ([], "x", 1, {1: 2}, {"a": float("nan")}, {"a": b"x"}),
        ),
    ],
)
def test_a_bad_size_sha256_or_meta_entry_is_named(column, words, values):
    for value in values:
        message = summary(["a", "b"], [0, 0], **{column: [None, value]})
        assert words in message and "('b')" in message


def test_arrow_meta_must_hold_json_objects_and_keeps_half_a_surrogate_pair(tmp_path):
    assert (
        Manifest.from_columns(["a", "b"], [0, 0], metas=pa.array(['{"x": 1}', None])).table["meta"][0].as_py()
        == '{"x":1}'
    )
    for text in ("[]", "{", "5", '"x"'):
        assert "not a JSON object" in summary(["a"], [0], metas=pa.array([text]))
    Manifest.from_columns(["a"], [0], metas=[{"x": "\ud800"}]).save(tmp_path / "m.json")
    assert Manifest.load(tmp_path / "m.json").table["meta"][0].as_py() == '{"x":"\\ud800"}'


def test_columns_of_different_length_are_told_with_their_lengths():
    assert "path 2, label 1, bytes 3" in summary(["a", "b"], [0], sizes=[1, 2, 3])


@pytest.mark.parametrize("header", [{"name": "a\0b"}, {"classes": ["\ud800"]}, {"root_hint": 1}], ids=str)
def test_a_bad_header_is_refused(header):
    assert summary(["a"], [0], **header)


def test_arrow_paths_that_are_not_utf8_or_null_are_refused():
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))
    assert "malformed" in summary(broken, [0])
    assert "not of string type: None (row 1)" in summary(pa.array(["a", None]), [0, 0])
    assert "not of string type: 1 (row 0)" in summary(pa.array([1]), [0])


OURS = {
    "format": "smallfiles-manifest",
    "version": 1,
    "target": "label",
    "columns": {"path": ["a", "b"], "label": [0, 1]},
}


def loaded_message(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ManifestError) as caught:
        Manifest.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" \n\t ", "is empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "byte order mark"),
        (b'{"a\xff": 1}', "not UTF-8 from byte 3"),
        ("a.jpg 1\n", "is not JSON"),
        ("[1, 2]", "a JSON list"),
        ('"a"', "a JSON string"),
        ("5", "a JSON number"),
        ("null", "a JSON null"),
        ("true", "a JSON truth value"),
        ('{"a": 1,\n "b": 2', "ends in the middle"),
        ('{"a": 1,\n "b', "starting at line 2, column 2"),
        ('{"a": 1,\n "b": 2,}', "is not JSON"),
        ('{"a": 1,\n "b": oops}', "line 2, column 7"),
        ('{"a": 1} x', "is not JSON"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1, "b": 2, "a": 1}', "1 path is given more than once: 'a'"),
        ('{"a": ' + "9" * 5000 + "}", "too long to read"),
        ('{"a": 1e400}', "not of integer type: inf"),
        ('{"\\ud800": 1}', "not valid UTF-8"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_that_is_no_manifest_is_told_with_its_name(tmp_path, content, words):
    assert words in loaded_message(tmp_path / "m.json", content)


@pytest.mark.parametrize("save", [Manifest.save, Manifest.save_flat])
def test_every_cut_of_a_manifest_file_is_refused_by_name(tmp_path, save):
    save(Manifest.from_columns(["a", "é"], [0, 1], classes=["x", "y"], sizes=[1, None]), tmp_path / "m.json")
    content = (tmp_path / "m.json").read_bytes().rstrip()
    for stop in range(len(content)):
        loaded_message(tmp_path / "cut.json", content[:stop])


def test_a_missing_file_and_a_folder_are_told_with_their_name(tmp_path):
    for path in (tmp_path / "gone.json", tmp_path):
        with pytest.raises(ManifestError, match=f"{path} cannot be read"):
            Manifest.load(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "sha256:" + "0" * 64}, "but its rows have sha256:"),
        ({"count": 3}, "declares 3 samples but has 2 paths"),
        ({"version": 99}, "has the version 99"),
        ({"format": "parquet"}, "has the format 'parquet'"),
        ({"columns": {"path": ["a"], "label": [0, 1]}}, "path 1, label 2"),
        ({"columns": {"path": ["a"], "label": [0], "box": [0]}}, "unknown columns 'box'"),
        ({"columns": []}, "columns of the JSON kind list"),
        ({"license": "CC0"}, "unknown entries 'license'"),
        ({"classes": ["x"]}, "1 label is outside the class list: 1 ('b')"),
    ],
)
def test_a_file_that_contradicts_itself_is_told_with_its_name(tmp_path, change, words):
    assert words in loaded_message(tmp_path / "m.json", json.dumps({**OURS, **change}))


@pytest.mark.parametrize("old", ['"a"', '"b"', "0\n", "1\n"])
def test_any_changed_path_or_label_is_found_by_the_digest(tmp_path, old):
    path = tmp_path / "m.json"
    Manifest.from_columns(["a", "b"], [1, 0]).save(path)
    text = path.read_text().replace("1,\n0\n", "1\n,0\n")
    assert old in text
    assert "Restore the file" in loaded_message(path, text.replace(old, old.replace(old.strip('"\n'), "7")))


def test_a_duplicate_key_deep_in_a_file_is_told(tmp_path):
    text = json.dumps({**OURS, "columns": {**OURS["columns"], "meta": [{"k": 1}, None]}})
    assert "'k'" in loaded_message(tmp_path / "m.json", text.replace('{"k": 1}', '{"k": 1, "k": 2}'))


class Store:
    """A store with one of each kind of file."""

    def __init__(self, sequential=False):
        self.sequential = sequential

    def size(self, path):
        if path.startswith("gone"):
            raise SourceError(f"/data/{path} is missing", expected="a file", next_step="Look")
        if path.startswith("forbidden"):
            raise PermissionError(13, "Permission denied")
        return 0 if path.startswith("empty") else 5

    def read_into(self, path, buffer):
        assert len(buffer) == 1
        return self.size(path)

    def describe(self):
        return "folder /data"


@pytest.mark.parametrize("sequential", [True, False])
def test_files_that_are_missing_unreadable_or_empty_are_named_and_others_pass(sequential):
    paths = [f"{kind}{row}.jpg" for row in range(2) for kind in ("fine", "gone", "empty", "forbidden")]
    with pytest.raises(ManifestError) as caught:
        Manifest.from_columns(paths, [0] * 8).check_files(Store(sequential))
    message = str(caught.value)
    told = "6 of 8 files in folder /data cannot be used: /data/gone0.jpg is missing, empty0.jpg"
    assert message.startswith(told) and "and 1 more" in message
    assert "forbidden0.jpg cannot be read (Permission denied)" in message
    for count in (0, 5000):
        Manifest.from_columns([f"fine{row}" for row in range(count)], [0] * count).check_files(Store())
