import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from given import metas_in
from hypothesis import given
from hypothesis import strategies as st

from smallfiles import arrays
from smallfiles.digests import set_digest
from smallfiles.errors import ManifestError, UsageError
from smallfiles.manifest import Manifest
from smallfiles.samples import UNLABELLED, Schema


def labelled(count, classes=4, **more):
    paths = [f"class{row % classes}/{row:05d}.jpg" for row in range(count)]
    labels = [row % classes for row in range(count)]
    names = [f"class{label}" for label in range(classes)]
    return Manifest.from_columns(paths, labels, classes=names, **more)


def captioned(count):
    return Manifest.from_columns(
        [f"{row}.jpg" for row in range(count)], [[f"picture {row}", "ü\n"][: row % 3] for row in range(count)]
    )


def rows(manifest):
    return [(manifest.path(row), manifest.target(row)) for row in range(len(manifest))]


@pytest.mark.parametrize(
    ("targets", "is_in_order"),
    [
        ([0, 0, 1, 2], True),
        ([2, 2, 0, 1, 1], True),
        ([0, 1, 0], False),
        ([0, 1, 0, 1, 2], False),
        ([1, 1, 1], False),
        ([["a"], ["b"], ["c"]], False),
    ],
)
def test_a_set_is_in_the_order_of_its_classes_if_the_samples_of_each_are_adjacent(targets, is_in_order):
    paths = [f"{row}.jpg" for row in range(len(targets))]
    assert Manifest.from_columns(paths, targets).in_class_order == is_in_order


def test_columns_come_back_as_they_were_given():
    manifest = Manifest.from_columns(
        ["a.jpg", "b/c.jpg", "b/d"],
        [1, 0, UNLABELLED],
        name="pets",
        split="val",
        classes=["cat", "dog"],
        root_hint="../pets",
        sizes=[3, 0, None],
        sha256=["0" * 64, None, "f" * 64],
        metas=[{"a": [1, None, "ü"]}, None, {}],
    )
    assert rows(manifest) == [("a.jpg", 1), ("b/c.jpg", 0), ("b/d", -1)]
    assert metas_in(manifest.table) == [{"a": [1, None, "ü"]}, None, {}]
    assert (manifest.name, manifest.split, manifest.classes) == ("pets", "val", ("cat", "dog"))
    assert (manifest.root_hint, manifest.target_kind) == ("../pets", "label")
    assert "meta" in manifest.columns.column_names and manifest.sizes is None


def test_the_table_has_the_promised_types_and_one_chunk_a_column():
    table = labelled(10, sizes=range(10), sha256=["a" * 64] * 10, metas=[{}] * 10).table
    names, types = (
        ["path", "label", "bytes", "sha256", "meta"],
        ["string", "int32", "int64", "string", "string"],
    )
    assert (table.column_names, [str(kind) for kind in table.schema.types]) == (names, types)
    assert str(captioned(3).table.schema.field("captions").type) == "list<item: string>"
    assert all(column.num_chunks == 1 for column in table.columns)


@pytest.mark.parametrize(
    "labels",
    [
        (0, 1, -1),
        [np.int64(0), 1, np.int8(-1)],
        np.array([0, 1, -1], np.int8),
        np.array([0, 9, 1, 9, -1, 9], np.int64)[::2],
        pa.array([0, 1, -1], pa.int16()),
        pa.chunked_array([[0], [1, -1]], pa.int64()),
    ],
)
@pytest.mark.parametrize(
    "paths",
    [
        ("a", "b", "ü"),
        np.array(["a", "b", "ü"]),
        pa.array(["a", "b", "ü"], pa.large_string()),
        pa.chunked_array([["a"], [], ["b", "ü"]]),
        pa.array(["x", "a", "b", "ü"]).slice(1),
    ],
)
def test_lists_numpy_and_arrow_columns_make_the_same_manifest(paths, labels):
    assert Manifest.from_columns(paths, labels) == Manifest.from_columns(["a", "b", "ü"], [0, 1, -1])


@pytest.mark.parametrize(
    "captions",
    [
        [("x", "y"), [], ("ü\n",)],
        pa.array([["x", "y"], [], ["ü\n"]], pa.large_list(pa.large_string())),
        pa.chunked_array([[["x", "y"]], [[], ["ü\n"]]]),
    ],
)
def test_captions_of_any_container_make_the_same_manifest(captions):
    manifest = Manifest.from_columns(["a", "b", "c"], captions)
    assert manifest.target_kind == "captions"
    assert rows(manifest) == [("a", ["x", "y"]), ("b", []), ("c", ["ü\n"])]


def test_a_caller_who_changes_an_array_later_does_not_change_the_manifest():
    labels, sizes = np.array([0, 1]), np.array([5, 6])
    manifest = Manifest.from_columns(["a", "b"], labels, sizes=sizes)
    labels[:] = sizes[:] = 9
    assert manifest.targets.to_pylist() == [0, 1]
    assert manifest.sizes.tolist() == [5, 6]
    with pytest.raises(ValueError, match="read-only"):
        manifest.sizes[0] = 1


def test_an_empty_set_is_a_manifest_of_either_kind():
    for kind in ("label", "captions"):
        empty = Manifest.from_columns([], values={kind: []}, sizes=[])
        assert (len(empty), empty.target_kind) == (0, kind)
        assert empty.schema().count == empty.schema().largest_bytes == 0
        assert len(empty.slice(0, 2)) == len(empty.split_off(0.5, seed=0)[1]) == 0
        assert empty.order(1).tolist() == []


def test_the_digest_is_the_set_digest_and_ignores_order_sizes_and_names_unlike_equality():
    manifest = labelled(20)
    assert manifest.digest == set_digest(manifest.paths, manifest.columns)
    for other in (
        manifest.select(manifest.order(3)),
        labelled(20, split="val"),
        labelled(20, sizes=range(20)),
    ):
        assert other.digest == manifest.digest and other != manifest
    assert labelled(19).digest != manifest.digest
    assert manifest == labelled(20) != "labelled"


@pytest.mark.parametrize("manifest", [labelled(7, sizes=range(7), metas=[{"a": 1}] * 7), captioned(7)])
def test_a_pickled_manifest_is_the_same_and_a_pickled_slice_small(manifest):
    digest, _, _ = manifest.digest, manifest.paths, manifest.targets
    copy = pickle.loads(pickle.dumps(manifest))
    assert (copy, copy.digest, copy.path(3)) == (manifest, digest, manifest.path(3))
    many = labelled(20_000)
    assert len(pickle.dumps(many.slice(0, 100))) < len(pickle.dumps(many)) / 50


def test_sizes_can_be_filled_in_later():
    manifest = labelled(3, metas=[None, {"a": 1}, None], sha256=["0" * 64, None, "1" * 64])
    sized = manifest.with_sizes([1, 2, 3])
    assert sized.sizes.tolist() == [1, 2, 3]
    assert sized.table.column_names == ["path", "label", "bytes", "sha256", "meta"]
    assert sized.with_sizes(np.array([4, 5, 6])).sizes.tolist() == [4, 5, 6]
    assert (sized.table["meta"][1].as_py(), sized.digest) == ('{"a":1}', manifest.digest)
    with pytest.raises(ManifestError, match="different lengths: path 3, bytes 2"):
        manifest.with_sizes([1, 2])
    with pytest.raises(ManifestError, match=r"-1 \('class1/00001.jpg'\)"):
        manifest.with_sizes([1, -1, 3])


def test_select_takes_rows_in_the_order_asked_for():
    manifest = labelled(6, sizes=range(6))
    chosen = manifest.select([4, 0, 3])
    assert rows(chosen) == [rows(manifest)[row] for row in (4, 0, 3)]
    assert chosen.sizes.tolist() == [4, 0, 3]
    assert chosen.classes == manifest.classes
    assert len(manifest.select([])) == 0
    assert all(column.num_chunks == 1 for column in manifest.select([]).table.columns)


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("select", ([6],), "outside: 6"),
        ("select", ([-1],), "outside: -1"),
        ("select", ([1, 1],), "twice"),
        ("select", ([0.0],), "float"),
        ("select", ([[0]],), "row numbers"),
        *[("slice", ranks, "rank") for ranks in ((2, 2), (-1, 2), (0, 0))],
        *[("split_off", (fraction, 0), "fraction") for fraction in (-0.1, 1.1, float("nan"))],
        *[("order", (seed,), "seed") for seed in (-1, 1.5, True, "1")],
    ],
)
def test_rows_ranks_fractions_and_seeds_that_make_no_sense_are_refused(method, given, words):
    with pytest.raises(UsageError, match=words):
        getattr(labelled(6), method)(*given)


@given(st.integers(0, 200), st.integers(1, 30))
def test_slices_by_rank_hold_every_sample_exactly_once_and_differ_by_one_at_most(count, world_size):
    manifest = labelled(count)
    slices = [manifest.slice(rank, world_size) for rank in range(world_size)]
    assert sorted(row for part in slices for row in rows(part)) == sorted(rows(manifest))
    lengths = {len(part) for part in slices}
    assert max(lengths) - min(lengths) <= 1


@given(st.lists(st.integers(-1, 5), max_size=120), st.floats(0, 1), st.integers(0, 2**40))
def test_splitting_off_keeps_all_samples_and_the_share_of_each_class(labels, fraction, seed):
    manifest = Manifest.from_columns([f"{row}.jpg" for row in range(len(labels))], labels)
    rest, part = manifest.split_off(fraction, seed)
    assert (rest.split, part.split) == ("train", "val")
    assert len(part) == round(fraction * len(labels))
    assert sorted(rows(rest) + rows(part)) == sorted(rows(manifest))
    place = {path: row for row, path in enumerate(manifest.paths.to_pylist())}
    for side in (rest, part):
        places = [place[path] for path in side.paths.to_pylist()]
        assert places == sorted(places)
    drawn, members = Counter(part.targets.to_pylist()), Counter(labels)
    assert all(abs(drawn[label] - fraction * count) < 1 for label, count in members.items())
    assert manifest.split_off(fraction, seed)[1] == part


def test_the_drawn_part_depends_on_the_seed_and_captions_can_be_split_too():
    digests = {labelled(100).split_off(0.2, seed)[1].digest for seed in (1, 2)}
    assert len(digests) == 2 and len(captioned(10).split_off(0.3, seed=0)[1]) == 3


def test_the_order_is_a_known_function_of_the_seed():
    manifest = labelled(10)
    assert manifest.order(None).tolist() == list(range(10))
    assert manifest.order(0).tolist() == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]  # must not change between versions
    assert manifest.order(7).tolist() == np.random.Generator(np.random.PCG64(7)).permutation(10).tolist()
    assert manifest.order(0).dtype == np.int64


@pytest.mark.parametrize(
    ("paths", "shared"),
    [
        (["a.jpg"], set()),
        (["a.jpg", "b.jpg"], set()),
        (["a.jpg", "a.png", "c.png"], {"a"}),
        (["a.1.jpg", "a.2.jpg"], {"a"}),
        (["a.jpg", "a"], {"a"}),
        (["x.y/a.jpg", "x.z/a.jpg"], set()),
        ([".a", ".b"], {""}),
        (["a\r.jpg", "a\r.png"], {"a\r"}),
        (["b.jpg", "a.jpg", "b.png"], {"b"}),
    ],
)
def test_stems_end_at_the_first_dot_of_the_file_name(paths, shared):
    assert Manifest.from_columns(paths, [0] * len(paths)).shared_stems() == shared


def test_sizes_add_up_to_what_a_file_can_have():
    largest = 2**63 - 1
    assert labelled(3, sizes=[largest - 1, 1, None]).sizes is None
    with pytest.raises(ManifestError, match="the sizes add up to 18,446,744,073,709,551,614 bytes"):
        labelled(2, sizes=[largest, largest])


def test_the_schema_tells_counts_and_sizes_of_what_will_be_written():
    manifest = labelled(4, sizes=[5, 9, 0, 1], name="n", split="s", metas=[None, None, {}, None])
    facts = {"name": "n", "split": "s", "classes": manifest.classes, "manifest_digest": manifest.digest}
    assert manifest.schema() == Schema(4, 15, 9, **facts)
    assert manifest.schema().values.column_names == ["label", "meta"]
    with pytest.raises(ManifestError, match="size of every sample"):
        labelled(4).schema()


def test_a_manifest_is_loaded_without_importing_pandas(tmp_path):
    labelled(50, sizes=range(50)).save(tmp_path / "m.json")
    code = (
        "import sys; from pathlib import Path; from smallfiles.manifest import Manifest;"
        "m = Manifest.load(Path(sys.argv[1])); m.path(3), m.target(3), m.sizes, m.slice(0, 2), m.order(1);"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.json")], check=True)


VALUES = {
    pa.string(): st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    pa.list_(pa.string()): st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=3
    ),
    pa.int64(): st.none() | st.integers(-(2**63), 2**63 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_column_is_what_arrow_makes_of_its_values(kind):
    @given(st.lists(VALUES[kind], max_size=20))
    def check(values):
        found, expected = arrays.column(values, kind), pa.array(values, kind)
        found.validate(full=True)
        assert found.equals(expected)
        stored = [pa.record_batch([column], ["x"]).serialize().to_pybytes() for column in (found, expected)]
        assert stored[0] == stored[1]

    check()


def test_strings_and_numbers_that_grow_are_those_that_were_added():
    texts, numbers = arrays.GrowingStrings(), arrays.GrowingNumbers(pa.int64())
    parts = [["a", "", "é"], [], ["x" * 9000], ["b", "c"]]
    for part in parts:
        texts.add(part)
        texts.extend(pa.array(["skipped", *part, "skipped"], pa.string()).slice(1, len(part)))
        numbers.extend(pa.array([0, *map(len, part)], pa.int64()).slice(1))
    assert texts.finish().to_pylist() == [text for part in parts for text in part * 2]
    assert numbers.finish().to_pylist() == [1, 0, 1, 9000, 1, 1]
