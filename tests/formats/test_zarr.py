"""zarr beside its own library: it reads what was written here, and what it wrote is read here."""

import itertools
import json
import multiprocessing
import warnings

import contract_sets as sets
import numpy as np
import pytest

from smallfiles import formats
from smallfiles.errors import FormatError, MissingPackageError, UsageError
from smallfiles.pack import verify

zarr = pytest.importorskip("zarr")


def write_ours(path, chunk=1000, shard=5000):
    module, samples = formats.get("zarr"), sets.samples_of(sets.BY_NAME["zarr"])
    options = module.Options(chunk_bytes=chunk, shard_bytes=shard)
    module.write(samples, path, schema=sets.schema_of(samples), options=options)
    return samples


def write_theirs(path, data, **how):
    root = zarr.create_group(path)
    borders = np.cumsum([0, *map(len, data)]).astype("u8")
    total = np.frombuffer(b"".join(data), "u1")
    root.create_array("data", shape=total.shape, dtype="u1", **how)[:] = total
    root.create_array(
        "offsets", data=borders, chunks=(7,)
    )  # compressed and in several pieces, as zarr likes it
    root.create_array("labels", data=np.arange(len(data), dtype="i4"))
    return path


@pytest.mark.parametrize(("chunk", "shard"), [(1000, 5000), (128, 1 << 20), (50, 50)])
def test_the_zarr_library_reads_all_arrays_of_ours(tmp_path, chunk, shard):
    samples = write_ours(tmp_path / "x.zarr", chunk, shard)
    root = zarr.open_group(tmp_path / "x.zarr", mode="r")
    with warnings.catch_warnings(action="error"):  # zarr names what is not its own
        assert {"data", "offsets", "labels"} < set(root.array_keys())
    borders = root["offsets"][:].tolist()
    found = [root["data"][first:last].tobytes() for first, last in itertools.pairwise(borders)]
    assert found == [sample.data for sample in samples]
    assert root["labels"][:].tolist() == [sample.target for sample in samples]
    keys, ends = root["key_data"][:].tobytes(), root["key_offsets"][:]
    assert [keys[a:b].decode() for a, b in itertools.pairwise(ends)] == [s.key for s in samples]
    assert root["data"].attrs["smallfiles"]["schema"]["count"] == len(samples)
    assert root["data"].shards == (min(shard, -(-borders[-1] // chunk) * chunk),)


@pytest.mark.parametrize(
    "how",
    [
        {"chunks": (100,), "shards": (1000,), "compressors": None},
        {"chunks": (1 << 20,), "compressors": None},
        {"chunks": (500,), "compressors": None},
    ],
    ids=["shards", "one-chunk", "chunks"],
)
def test_what_the_zarr_library_wrote_is_read_in_workers_too(tmp_path, how):
    data = [bytes([1 + n]) * (37 * n) for n in range(40)]
    reader = formats.open(write_theirs(tmp_path / "x.zarr", data, **how))
    assert [bytes(one) for one in reader.read_many(range(40))] == data
    assert reader.targets(0, 40) == list(range(40)) and reader.key(3) == "3"
    with multiprocessing.get_context("fork").Pool(2) as pool:  # the library's thread does not live there
        found = pool.map_async(sets.checksums, [(reader, [n]) for n in range(40)]).get(60)
        fresh = formats.open(tmp_path / "x.zarr")
        assert pool.map_async(sets.checksums, [(fresh, [n]) for n in range(40)]).get(60) == found


@pytest.mark.parametrize("how", [{}, {"chunks": (100,), "shards": (1000,)}], ids=["chunks", "shards"])
def test_compressed_samples_are_refused_in_a_sentence(tmp_path, how):
    write_theirs(tmp_path / "x.zarr", [b"a" * 5000], **how)
    with pytest.raises(FormatError, match=r"data is not stored as samples are \(compressed"):
        len(formats.open(tmp_path / "x.zarr"))


def test_a_missing_library_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch):
    write_theirs(tmp_path / "x.zarr", [b"a" * 50] * 30, compressors=None)
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    with pytest.raises(MissingPackageError, match=r"zarr is not installed.*\[formats\]"):
        len(formats.open(tmp_path / "x.zarr"))


def test_a_sample_in_two_shards_has_no_span_and_one_in_a_shard_has(tmp_path):
    samples = write_ours(tmp_path / "x.zarr", 100, 300)
    reader = formats.open(tmp_path / "x.zarr")
    assert {reader.span(n) is None for n in range(len(samples))} == {True, False}
    assert reader.read(1) == samples[1].data


def test_a_killed_writer_leaves_no_group(tmp_path):
    samples = sets.samples_of(sets.BY_NAME["zarr"])

    def breaking():
        yield from samples[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        formats.get("zarr").write(breaking(), tmp_path / "x.zarr", schema=sets.schema_of(samples))
    with pytest.raises(FormatError, match=r"no zarr\.json of a group"):
        len(formats.open(tmp_path / "x.zarr"))


def test_a_changed_shard_size_or_index_is_refused(tmp_path):
    write_ours(tmp_path / "x.zarr")
    path = tmp_path / "x.zarr" / "data" / "zarr.json"
    node = json.loads(path.read_text())
    node["chunk_grid"]["configuration"]["chunk_shape"] = [10_000]
    path.write_text(json.dumps(node))
    with pytest.raises(FormatError, match="chunks one after the other"):
        formats.open(tmp_path / "x.zarr").read(0)


def test_senseless_shards_are_refused():
    for chunk, shard in ((0, 1), (10, 5), (10, 15), (1, 1 << 41)):
        with pytest.raises(UsageError, match="multiple of the chunks"):
            formats.get("zarr").Options(chunk_bytes=chunk, shard_bytes=shard)


def test_a_group_that_says_more_than_ours_is_not_called_intact(tmp_path):
    write_ours(tmp_path / "x.zarr")
    assert verify(tmp_path / "x.zarr").verdict == "intact"
    path = tmp_path / "x.zarr" / "zarr.json"
    path.write_text(path.read_text().replace("{}", '{"by":"me"}'))
    assert verify(tmp_path / "x.zarr").verdict == "unproven"
