"""Both JSON shapes: out and in, and against their JSON Schemas."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallfiles.errors import ManifestError
from smallfiles.folders import key_problem
from smallfiles.manifest import Manifest

SCHEMAS = Path(__file__).resolve().parents[2] / "data_manifests"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
TRICKY = st.text(st.sampled_from(['"', "\\", ",", " ", "\n", "]", "}", "1", ":", "é", "/", "🦉"]), max_size=8)
PATH = st.one_of(TEXT, TRICKY).filter(lambda text: key_problem(text) is None)
TEXTS = st.lists(st.one_of(TEXT, TRICKY), max_size=3)
META = st.dictionaries(
    TEXT, st.recursive(st.none() | st.booleans() | st.integers() | TEXT | TRICKY, st.lists), max_size=3
)


@st.composite
def manifests(draw):
    paths = draw(st.lists(PATH, max_size=12, unique=True))

    def column(entry):
        return st.lists(entry, min_size=len(paths), max_size=len(paths))

    captions = draw(st.booleans())
    classes = [] if captions else draw(st.lists(TEXT.filter(lambda t: "\0" not in t), max_size=3))
    label = st.integers(-1, len(classes) - 1) if classes else st.integers(-(2**31), 2**31 - 1)
    return Manifest.from_columns(
        paths,
        values={"captions": draw(column(TEXTS))} if captions else {"label": draw(column(label))},
        classes=classes,
        name=draw(st.sampled_from(["dataset", 'a "name",\n"path": [\n', "ü"])),
        sizes=draw(st.none() | column(st.none() | st.integers(0, (2**63 - 1) // 12))),
        sha256=draw(st.none() | column(st.none() | st.sampled_from(["0" * 64, "9af" + "b" * 61]))),
        metas=draw(st.none() | column(st.none() | META)),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("manifests") / "m.json"


def schema(name):
    text = (SCHEMAS / name).read_text()
    jsonschema.Draft202012Validator.check_schema(json.loads(text))
    return jsonschema.Draft202012Validator(json.loads(text))


OURS, FLAT = schema("manifest.schema.json"), schema("manifest-flat.schema.json")


@settings(max_examples=50)
@given(manifests())
def test_our_shape_comes_back_exactly_and_fits_its_schema(place, manifest):
    manifest.save(place)
    assert Manifest.load(place) == manifest
    OURS.validate(json.loads(place.read_text()))


def test_numbers_that_json_does_not_have_come_back_also_in_lists(place):
    values = {"boxes": [[[float("nan")], []], None], "words": [["nan"], [None]], "x": [float("-inf"), 0.5]}
    manifest = Manifest.from_columns(["a.jpg", "b.jpg"], [0, 1], values=values)
    manifest.save(place)
    json.loads(place.read_text(), parse_constant=pytest.fail)
    assert Manifest.load(place).digest == manifest.digest


@settings(max_examples=50)
@given(manifests())
def test_the_flat_shape_keeps_paths_and_targets_and_fits_its_schema(place, manifest):
    manifest.save_flat(place)
    loaded = Manifest.load(place)
    assert loaded.paths.equals(manifest.paths)
    if len(manifest):  # an empty object does not tell its kind
        assert loaded.targets.equals(manifest.targets)
    assert loaded.classes == ()
    FLAT.validate(json.loads(place.read_text()))


@pytest.mark.parametrize(
    "dump", [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"ensure_ascii": False}]
)
@pytest.mark.parametrize("target", [7, ["a 1, ", '"', "]"], []])
def test_a_flat_file_of_any_json_writer_is_read(place, dump, target):
    found = {f'path {row}, "{row}": 1,é{row}.jpg': target for row in range(10)}
    place.write_text(json.dumps(found, **dump))
    loaded = Manifest.load(place)
    assert dict(zip(loaded.paths.to_pylist(), loaded.targets.to_pylist(), strict=True)) == found


@pytest.mark.parametrize(
    "dump", [{}, {"indent": 2}, {"indent": 0}, {"separators": (",", ":")}, {"sort_keys": True}]
)
def test_our_shape_rewritten_by_another_json_tool_is_the_same_manifest(place, dump):
    metas = [{"path": [1, [2]]}, None]
    manifest = Manifest.from_columns(["b", "a"], [["x"], []], name="n", metas=metas, sizes=[1, 2])
    manifest.save(place)
    place.write_text(json.dumps(json.loads(place.read_text()), **dump))
    assert Manifest.load(place) == manifest
    place.write_text(json.dumps(MINIMAL, **dump))
    assert Manifest.load(place) == Manifest.from_columns(["a"], [0])
    OURS.validate(MINIMAL)


MINIMAL = {
    "format": "smallfiles-manifest",
    "version": 1,
    "target": "label",
    "columns": {"path": ["a"], "label": [0]},
}


HIDDEN = '{\n"format": "smallfiles-manifest",\n"version": 1,\n"target": "label",\n%s\n}'
"""Columns in places where only a careless reader would look for them."""


@pytest.mark.parametrize(
    "body",
    [
        '"path": [\n"a"\n],\n"columns": {"path": [], "label": []}',
        '"name": {\n"path": [\n"a"\n]},\n"columns": {"path": [], "label": []}',
        '"classes": [{\n"path": [\n"a"\n]}],\n"columns": {"path": [], "label": []}',
        '"columns": {\n"path": [\n"a"\n],\n"path": [\n"b"\n],\n"label": [\n0,\n1\n]}',
        '"columns": {\n"path": [\n"a"\n],\n"label": [\n0\n],\n"label": []}',
        '"columns": {"label": [0],\n"x": {\n"path": [\n"a"\n]}}',
        '"columns": {\n"path": [\n"a"\n]\n, "label": [0]}, "columns": {\n"path": [\n"a"\n]\n, "label": [0]}',
    ],
)
def test_columns_in_the_wrong_place_or_twice_are_never_taken(place, body):
    place.write_text(HIDDEN % body)
    with pytest.raises(ManifestError):
        Manifest.load(place)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"version": "1"},
        {"target": "boxes"},
        {"target": "captions"},
        {"name": 3},
        {"split": None},
        {"classes": "ab"},
        {"classes": [1]},
        {"class": ["a"]},
        {"root_hint": "/data"},
        {"digest": 5},
        {"digest": "md5:00"},
        {"count": -1},
        {"columns": {"path": ["a"]}},
        {"columns": {"label": [0]}},
        {"columns": {"path": ["a"], "label": [0], "weight": [1]}},
        {"columns": {"path": ["a"], "label": [0], "captions": [["x"]]}},
        {"columns": {"path": "a", "label": [0]}},
        {"columns": {"path": [1], "label": [0]}},
        {"columns": {"path": ["a", "a"], "label": [0, 0]}},
        *[
            {"columns": {"path": [path], "label": [0]}}
            for path in ("", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a\0")
        ],
        *[{"columns": {"path": ["a"], "label": [label]}} for label in (True, 0.5, "0", None, 2**31, [0])],
        *[{"columns": {"path": ["a"], "label": [0], "bytes": [size]}} for size in (-1, 0.5, "1")],
        *[
            {"columns": {"path": ["a"], "label": [0], "sha256": [value]}}
            for value in ("0", "G" * 64, "A" * 64, 5)
        ],
        *[{"columns": {"path": ["a"], "label": [0], "meta": [meta]}} for meta in ([], "x", 1)],
    ],
    ids=str,
)
def test_schema_and_loader_refuse_the_same_faults_of_our_shape(place, change):
    wrong = {**MINIMAL, **change}
    assert not OURS.is_valid(wrong)
    place.write_text(json.dumps(wrong))
    with pytest.raises(ManifestError, match=r"m\.json"):
        Manifest.load(place)


FLAT_KEYS = ("/a", "a/..", "")
FLAT_VALUES = (True, 0.5, "1", None, {"label": 1}, [1], ["x", None], 2**31)
FLAT_FAULTS = [{key: 1} for key in FLAT_KEYS] + [{"a": value} for value in FLAT_VALUES]


@pytest.mark.parametrize("flat", [*FLAT_FAULTS, {"a": 1, "b": ["x"]}], ids=str)
def test_schema_and_loader_refuse_the_same_faults_of_the_flat_shape(place, flat):
    assert not FLAT.is_valid(flat)
    place.write_text(json.dumps(flat))
    with pytest.raises(ManifestError, match=r"m\.json"):
        Manifest.load(place)


@given(st.one_of(PATH, TEXT, TRICKY, st.text(st.sampled_from("./\0\na"), max_size=6)))
def test_the_path_pattern_of_the_schemas_agrees_with_key_problem(path):
    for columns, validator in (
        ({path: 0}, FLAT),
        ({**MINIMAL, "columns": {"path": [path], "label": [0]}}, OURS),
    ):
        assert validator.is_valid(columns) == (key_problem(path) is None)


def test_one_entry_stands_on_each_line_so_that_versions_can_be_compared(place):
    Manifest.from_columns(["a", "b"], [0, 1], metas=[None, {"x": [1, 2]}]).save(place)
    lines = place.read_text().splitlines()
    for line in ('"a",', '"b"', "0,", "1", "null,", '{"x":[1,2]}'):
        assert line in lines
    assert place.read_bytes().endswith(b"}\n")


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "m.json"
    Manifest.from_columns(["a"], [0]).save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ManifestError, match=r"m\.json cannot be written \(No space left"):
        Manifest.from_columns(["b"], [0]).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.json"]


def test_a_save_into_no_folder_or_onto_a_folder_is_refused_by_name(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "gone" / "m.json", tmp_path / "folder"):
        for save in (Manifest.from_columns(["a"], [0]).save, Manifest.from_columns(["a"], [0]).save_flat):
            with pytest.raises(ManifestError, match=f"{path} cannot be written"):
                save(path)
    assert os.listdir(tmp_path) == ["folder"]
