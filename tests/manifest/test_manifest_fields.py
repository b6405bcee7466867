"""Further files and values of samples in a manifest: each comes back as it was."""

import json

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smallfiles.errors import ManifestError
from smallfiles.fields import as_text, name_problem, stored_type
from smallfiles.manifest import Manifest
from tests.manifest.test_manifest_json import OURS

NUMBERS = st.floats(allow_nan=True) | st.none()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.none()
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.none()
KINDS = {
    pa.int64(): INTEGERS,
    pa.float64(): NUMBERS,
    pa.bool_(): st.booleans() | st.none(),
    pa.string(): TEXTS,
}
KINDS |= {pa.list_(kind): st.none() | st.lists(each, max_size=3) for kind, each in list(KINDS.items())}
KINDS[pa.list_(pa.list_(pa.float64()))] = st.none() | st.lists(
    st.none() | st.lists(NUMBERS, max_size=2), max_size=2
)


@st.composite
def values(draw, count):
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), max_size=4))
    rows = st.lists
    return {
        f"f{number}": pa.array(draw(rows(KINDS[kind], min_size=count, max_size=count)), kind)
        for number, kind in enumerate(kinds)
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("manifests") / "m.json"


def made(fields, blobs=None, paths=("a.jpg", "b.jpg", "c.jpg")):
    return Manifest.from_columns(list(paths), [0] * len(paths), values=fields, blobs=blobs)


@settings(max_examples=100)
@given(values(3))
def test_values_of_every_type_come_back_from_json_bit_by_bit(place, fields):
    manifest = made(fields, {"mask": ["a.png", "b.png", "c.png"]})
    manifest.save(place)
    loaded = Manifest.load(place)
    assert loaded.fields == manifest.fields
    assert loaded.blob_paths("mask").to_pylist() == ["a.png", "b.png", "c.png"]
    for name in fields:
        assert as_text(loaded.values[name].combine_chunks()) == as_text(
            manifest.values[name].combine_chunks()
        )
    assert loaded.digest == manifest.digest
    OURS.validate(json.loads(place.read_text()))


@settings(max_examples=100)
@given(st.sampled_from(list(KINDS)).flatmap(lambda kind: st.tuples(st.just(kind), KINDS[kind], KINDS[kind])))
def test_two_values_have_one_text_only_if_they_are_equal(drawn):
    kind, *both = drawn
    first, second = (as_text(pa.array([value], kind))[0].as_py() for value in both)
    assert (first == second) == (repr(both[0]) == repr(both[1]))


@given(st.integers(1, 2))
def test_the_text_of_a_part_of_a_column_is_that_part_of_the_text(start):
    column = pa.array([[["a"], None], None, [[], ["b", None]]])
    assert as_text(column.slice(start)).to_pylist() == as_text(column).to_pylist()[start:]


def test_a_changed_value_is_another_set_and_the_order_of_fields_is_none():
    base = {"age": [1.5, 2.0, 3.0], "name": ["x", "y", "z"]}
    digests = {
        made(fields).digest
        for fields in (base, base | {"age": [1.5, 2.0, 3.5]}, base | {"name": ["x", "y", None]}, {})
    }
    assert len(digests) == 4
    assert made(dict(reversed(base.items()))).digest == made(base).digest
    assert made({}).digest == Manifest.from_columns(["a.jpg", "b.jpg", "c.jpg"], [0] * 3).digest


@pytest.mark.parametrize(
    ("fields", "blobs", "message"),
    [
        ({"label": [1] * 3}, {}, "the field 'label' is a name that is used for something else"),
        ({"a/b": [1] * 3}, {}, "contains a slash"),
        ({}, {"my mask": ["x.png"] * 3}, "no part of a file name"),
        ({"age": [1, "x", 3]}, {}, "the values of the field 'age' do not form a column"),
        ({"at": [{"x": 1}] * 3}, {}, "have the type struct"),
        ({"age": [1, 2]}, {}, "the columns have different lengths"),
        ({}, {"mask": ["a.png", "b.gif", "c.png"]}, "the files of mask have the suffixes .png, .gif"),
        ({}, {"mask": ["../a.png", "b.png", "c.png"]}, "not usable"),
        ({}, {"mask": ["a.jpg", "b.jpg", "d.jpg"]}, "'a.jpg' is the file of two fields of one sample"),
        ({"mask": [1] * 3}, {"mask": ["a.png", "b.png", "c.png"]}, "a field of files and one of values"),
    ],
)
def test_what_is_no_field_is_refused_by_name(fields, blobs, message):
    with pytest.raises(ManifestError, match=message):
        made(fields, blobs)


@pytest.mark.parametrize(
    ("fields", "column", "message"),
    [
        ({"n": "int64"}, ["1", 2], "a value of the field 'n' is no int64"),
        ({"n": "int64"}, [True, 2], "a value of the field 'n' is no int64"),
        ({"n": "int64"}, [1.5, 2], "a value of the field 'n' is no int64"),
        ({"n": "decimal"}, [1, 2], "the type of a field is 'decimal'"),
        ({"n": 3}, [1, 2], "the type of a field is"),
        ({"m": "int64"}, [1, 2], "lacks the columns 'm'"),
        ({}, [1, 2], "has unknown columns 'n'"),
        (["n"], [1, 2], "has fields of the JSON kind list"),
    ],
)
def test_a_file_whose_columns_are_not_as_it_says_is_refused(tmp_path, fields, column, message):
    document = {
        "format": "smallfiles-manifest",
        "version": 1,
        "target": "label",
        "fields": fields,
        "columns": {"path": ["a", "b"], "label": [0, 1], "n": column},
    }
    (tmp_path / "m.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match=message):
        Manifest.load(tmp_path / "m.json")


def test_rows_that_are_picked_keep_their_fields(tmp_path):
    manifest = made({"age": [1.0, 2.0, 3.0]}, {"mask": ["a.png", "b.png", "c.png"]}).with_sizes([1, 2, 3])
    picked = manifest.select([2, 0])
    assert picked.values["age"].to_pylist() == [3.0, 1.0]
    assert picked.blob_paths("mask").to_pylist() == ["c.png", "a.png"]
    assert picked.fields == {"mask": ".png", "age": "double"}


def test_the_flat_form_is_refused_where_it_would_lose_fields(tmp_path):
    with pytest.raises(ManifestError, match="the flat form would lose the fields age"):
        made({"age": [1, 2, 3]}).save_flat(tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


def test_types_become_those_that_every_format_knows():
    kinds = {
        pa.int8(): pa.int64(),
        pa.float16(): pa.float32(),
        pa.float32(): pa.float32(),
        pa.large_string(): pa.string(),
        pa.date32(): pa.string(),
        pa.list_(pa.int16(), 3): pa.list_(pa.int64()),
        pa.dictionary(pa.int8(), pa.string()): pa.string(),
    }
    assert {kind: stored_type(kind) for kind in kinds} == kinds


def test_a_schema_of_json_refuses_a_wrong_type_of_a_field():
    with pytest.raises(jsonschema.ValidationError):
        OURS.validate(
            {
                **json.loads('{"format":"smallfiles-manifest","version":1,"target":"label"}'),
                "fields": {"n": "struct"},
                "columns": {"path": [], "label": [], "n": []},
            }
        )
    assert name_problem("weight") is None


def test_every_nan_is_one_since_json_keeps_no_sign(place):
    odd = np.frombuffer(np.array([0xFFF8 << 48, 0x7FF8 << 48, 0x7FF8 << 48 | 5], np.uint64), np.float64)
    manifest = made({"x": pa.array(odd, from_pandas=False)})
    manifest.save(place)
    assert Manifest.load(place).digest == manifest.digest
    assert manifest.digest == made({"x": [float("nan")] * 3}).digest
