from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing import FORMATS, contents

from smallfiles import formats, sources
from smallfiles.errors import DamagedFileError, OutputExistsError, PackError, UsageError
from smallfiles.pack import PackConfig, pack, parse_part
from smallfiles.pack.job import balanced


def small_shards(name):
    return formats.get("tar").Options(max_count=3) if name == "tar" else None


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("n", "count"), [(3, 40), (4, 2)])  # the last with parts of nothing
def test_merged_parts_have_the_bytes_of_a_single_run(name, n, count, source, tmp_path, leftovers):
    whole = PackConfig(options=small_shards(name), shuffle=5)
    source = replace(source, manifest=source.manifest.select(range(count)))
    single, merged = tmp_path / "single" / FORMATS[name], tmp_path / "array" / FORMATS[name]
    pack(source, single, whole)
    for k in range(n, 0, -1):  # the tasks of an array end in any order
        pack(source, merged, replace(whole, part=(k, n)))
        assert not merged.exists()
    report = pack(source, merged, replace(whole, merge=True, verify="full"))
    assert report.samples == count
    assert contents(merged) == contents(single)
    assert leftovers(merged.parent) == [] and not [*merged.parent.glob(f"{merged.name}.p*")]


def test_a_merge_names_the_parts_that_are_missing(source, tmp_path):
    out, merge = tmp_path / "out.arrow", PackConfig(merge=True)
    for k in (1, 4):
        pack(source, out, PackConfig(part=(k, 4)))
    with pytest.raises(PackError, match="lacks 2 of 4 parts: 2, 3"):
        pack(source, out, merge)
    assert not out.exists()


@pytest.mark.parametrize("other", [{"shuffle": 2}, {"resize": 64}], ids=str)
def test_parts_of_other_options_are_not_merged(other, source, tmp_path):
    for k in (1, 2):
        pack(source, tmp_path / "out.tars", PackConfig(part=(k, 2), shuffle=1))
    with pytest.raises(PackError, match="another manifest or with other options"):
        pack(source, tmp_path / "out.tars", PackConfig(merge=True, **{"shuffle": 1, **other}))


@pytest.mark.parametrize("digest", [True, False])
@pytest.mark.parametrize("name", ["arrow", "tar"])
def test_a_part_that_was_damaged_is_not_merged(name, digest, source, tmp_path):
    out = tmp_path / FORMATS[name]
    for k in (1, 2):
        pack(source, out, PackConfig(part=(k, 2), options=small_shards(name), digest=digest))
    folder = tmp_path / f"{out.name}.parts" / "part-00002-of-00002"
    victim = next(p for p in folder.iterdir() if p.suffix in (".arrow", ".tar") and ".index" not in p.name)
    reader = formats.open(victim)
    data, first = bytearray(victim.read_bytes()), bytes(reader.read(0))
    reader.close()
    data[data.index(first) + len(first) // 2] ^= 64
    victim.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"changed after it was written|begins or ends differently"):
        pack(source, out, PackConfig(merge=True, options=small_shards(name), digest=digest))
    assert not out.exists()


@given(st.lists(st.integers(0, 10**6), max_size=80), st.integers(1, 12))
def test_parts_cover_every_sample_once_and_are_balanced(sizes, n):
    array = np.array(sizes, np.int64)
    ranges = [balanced(array, k, n) for k in range(1, n + 1)]
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(sizes)))
    for start, stop in ranges:
        assert array[start:stop].sum() <= array.sum() / n + array.max(initial=0)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_part_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError, match="expected k/n"):
        parse_part(text)


def test_a_skipped_sample_is_skipped_in_parts_too(source, tree, tmp_path):
    for row in (0, 20, 39):
        (tree / source.manifest.path(row)).write_bytes(b"")
    source, single, merged = sources.load(tree), tmp_path / "single.arrow", tmp_path / "merged.arrow"
    pack(source, single, PackConfig(on_error="skip"))
    for k in (1, 2):
        pack(source, merged, PackConfig(part=(k, 2), on_error="skip"))
    report = pack(source, merged, PackConfig(merge=True, on_error="skip"))
    assert report.samples == 37 and len(report.skipped) == 3
    assert merged.read_bytes() == single.read_bytes()


def test_a_merge_of_parts_that_nothing_vouches_for_says_so(source, tmp_path):
    out, trusting = tmp_path / "out.arrow", PackConfig(digest=False, verify="none")
    for k in (1, 2):
        pack(source, out, replace(trusting, part=(k, 2)))
    with pytest.warns(UserWarning, match="2 files of parts packed with --no-digest and --verify none"):
        pack(source, out, replace(trusting, merge=True))


def test_a_merge_that_was_killed_after_publishing_leaves_no_parts(source, tmp_path, monkeypatch):
    out = tmp_path / "out.tars"
    for k in (1, 2):
        pack(source, out, PackConfig(part=(k, 2)))
    killed = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("smallfiles.pack.run.shutil", Mock(rmtree=killed))
        pack(source, out, PackConfig(merge=True))
    assert [*tmp_path.glob("out.tars.parts/*")]
    with pytest.raises(OutputExistsError, match="exists already"):
        pack(source, out, PackConfig(merge=True))
    assert not [*tmp_path.glob("*.parts")]
    assert out.exists()
