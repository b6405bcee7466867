"""HDF5 files: what others read of ours, what we read of others', and what an interruption leaves."""

import os
import struct
import subprocess
import time

import contract_sets as sets
import h5py
import juelich_loaders as juelich
import numpy as np
import pytest

from helpers import formats
from helpers.errors import DamagedFileError, FormatError, UsageError
from helpers.formats import hdf5
from helpers.formats.bytefile import ByteFile
from helpers.formats.hdf5 import places
from helpers.samples import Sample, Schema

ITEMS = [(sets.content(n), n * 7 % 1000) for n in range(40)]
SAMPLES = [Sample(f"n{n % 3}/{n}.jpg", data, label) for n, (data, label) in enumerate(ITEMS)]
LAYOUTS = ("blob", "vlen")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "set.h5"


def pack(out, samples=SAMPLES, layout="blob", **more):
    captions = bool(samples) and isinstance(samples[0].target, list)
    schema = sets.schema_of(samples, captions=captions, **more)
    hdf5.write(samples, out, schema=schema, options=hdf5.Options(layout))
    return out


def test_h5py_reads_our_blob(out):
    pack(out, [*SAMPLES, Sample("x", b"1", 1, {"n": 1})])
    with h5py.File(out) as file:
        group = file["train"]
        offsets, keys = group["offsets"][:], group["key_offsets"][:]
        assert group["data"][offsets[3] : offsets[4]].tobytes() == ITEMS[3][0]
        assert group["key_data"][keys[3] : keys[4]].tobytes().decode() == SAMPLES[3].key
        assert group["labels"][3] == ITEMS[3][1]
        assert group["meta_data"][:].tobytes() == b'{"n":1}'
        assert file.attrs["complete"] == 1 and b"smallfiles" in file.attrs["provenance"]
        assert group["data"].chunks is None and group["data"].id.get_offset() >= 0


def test_h5py_reads_captions_by_two_levels_of_borders(out):
    pack(out, [Sample("a", b"1", ["one", "zwölf"]), Sample("b", b"2", []), Sample("c", b"3", ["three"])])
    with h5py.File(out) as file:
        group = file["train"]
        assert group["caption_rows"][:].tolist() == [0, 2, 2, 3]
        borders = group["caption_offsets"][:]
        assert group["caption_data"][borders[1] : borders[2]].tobytes().decode() == "zwölf"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_h5ls_and_h5dump_read_our_file(out, layout, need_tool):
    pack(out, layout=layout)
    listed = subprocess.run(
        [need_tool("h5ls", "hdf5-tools"), "-r", out], capture_output=True, text=True, check=True
    )
    assert f"/train/{'data' if layout == 'blob' else 'images'}" in listed.stdout.replace("  ", " ")
    assert "/train/key_offsets" in listed.stdout
    tool = need_tool("h5dump", "hdf5-tools")
    dataset = "labels" if layout == "blob" else "targets"
    dumped = subprocess.run(
        [tool, "-d", f"/train/{dataset}", out], capture_output=True, text=True, check=True
    )
    numbers = [int(word) for line in dumped.stdout.splitlines() if "):" in line for word in _numbers(line)]
    assert numbers == [label for _, label in ITEMS]


def _numbers(line):
    return line.split("):")[1].replace(",", " ").split()


def test_the_juelich_loader_reads_our_vlen_layout(out):
    pack(out, layout="vlen", split="val")
    loader = juelich.HDF5Loader(out, "val")
    assert [loader[index] for index in range(len(ITEMS))] == ITEMS
    with h5py.File(out) as file:
        assert file["val/targets"].dtype == np.int16
        assert h5py.check_vlen_dtype(file["val/images"].dtype) == np.uint8


@pytest.mark.parametrize("label", [-32769, 32768])
def test_a_label_beyond_16_bits_is_refused_in_the_vlen_layout(out, label):
    with pytest.raises(FormatError, match="from -32768 to 32767"):
        pack(out, [Sample("a.jpg", b"1", label)], "vlen")


def test_captions_are_refused_in_the_vlen_layout(out):
    with pytest.raises(FormatError, match="captions"):
        pack(out, [Sample("a.jpg", b"1", ["text"])], "vlen")


@pytest.mark.parametrize("split", ["train", "val"])
def test_we_read_both_groups_of_what_the_juelich_script_writes(out, split):
    items = {"train": ITEMS, "val": ITEMS[::-1]}
    juelich.write_hdf5(out, items)
    reader = hdf5.open(out, split=split)
    assert [(bytes(reader.read(i)), reader.target(i)) for i in range(len(reader))] == items[split]
    assert reader.keys().to_pylist() == [str(n) for n in range(40)] and reader.key(-1) == "39"
    assert [reader.size(n) for n in range(40)] == [len(data) for data, _ in items[split]]
    assert len(formats.open(out)) == 40  # train, where nobody says which


def test_an_unknown_split_is_refused_with_those_that_are_there(out):
    juelich.write_hdf5(out, {"alpha": ITEMS[:2], "beta": ITEMS[:2]})
    with pytest.raises(FormatError, match="alpha, beta"):
        len(hdf5.open(out))
    with pytest.raises(FormatError, match="'gamma'"):
        len(hdf5.open(out, split="gamma"))


@pytest.mark.parametrize("written", [0, 1, 39])
def test_an_interrupted_juelich_file_is_told_from_a_finished_one(out, written):
    juelich.write_hdf5(out, {"train": ITEMS}, stop_after=written)
    with pytest.raises(DamagedFileError, match=f"last {40 - written} of 40 rows are empty"):
        len(formats.open(out))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupted_file_of_ours_is_told_from_a_finished_one(out, layout):
    def stopping():
        yield from SAMPLES[:20]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hdf5.write(stopping(), out, schema=sets.schema_of(SAMPLES), options=hdf5.Options(layout))
    with pytest.raises(DamagedFileError, match="interrupted"):
        len(formats.open(out))


def test_a_failure_of_the_source_keeps_its_own_words(out):
    def failing():
        yield SAMPLES[0]
        raise ValueError("the source broke")

    for layout in LAYOUTS:
        with pytest.raises(ValueError, match="the source broke"):
            hdf5.write(failing(), out, schema=sets.schema_of(SAMPLES), options=hdf5.Options(layout))
        out.unlink()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schema", [Schema(1, 10, 10), Schema(2, 3, 3)], ids=["count", "bytes"])
def test_more_than_was_planned_is_refused(out, layout, schema):
    samples = [Sample("a.jpg", b"12", 0), Sample("b.jpg", b"34", 0)]
    with pytest.raises(FormatError, match=r"b\.jpg.*room"):
        hdf5.write(samples, out, schema=schema, options=hdf5.Options(layout))


def test_bytes_lie_where_a_block_device_likes_them(out):
    data = os.urandom(100_000)
    pack(out, [Sample("a", data, 0), Sample("b", data, 1)])
    reader = formats.open(out)
    _, start, stop = reader.span(0)
    assert start % 4096 == 0 and out.read_bytes()[start:stop] == data


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("access", ["mmap", "pread", "auto"])
def test_every_way_of_access_reads_the_same(out, layout, access):
    pack(out, layout=layout)
    reader = hdf5.open(out, access=access)
    assert sets.facts(reader) == sets.facts(SAMPLES)
    assert isinstance(reader.read(0), bytes if access == "pread" else memoryview)


def test_small_and_large_rows_share_heaps_and_are_all_found(out):
    sizes = [0, 1, 7, 8, 9, 100, 5000, 70_000, 3, 0, 1 << 20, 2]
    samples = [Sample(f"{n}", os.urandom(size), n) for n, size in enumerate(sizes)]
    pack(out, samples, "vlen")
    assert sets.facts(formats.open(out)) == sets.facts(samples)


def test_rows_after_a_user_block_are_found(tmp_path):
    path = tmp_path / "user.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        group = file.create_group("train")
        images = group.create_dataset("images", (3,), dtype=h5py.vlen_dtype(np.uint8))
        for index in range(3):
            images[index] = np.frombuffer(ITEMS[index][0], np.uint8)
        group.create_dataset("targets", data=np.array([1, 2, 3], "i2"))
    reader = formats.open(path)
    assert [(bytes(reader.read(n)), reader.target(n)) for n in range(3)] == [
        (ITEMS[n][0], n + 1) for n in range(3)
    ]


def test_chunked_data_is_refused_with_the_command_that_mends_it(out):
    with h5py.File(out, "w") as file:
        file.create_dataset("train/data", data=np.zeros(1000, np.uint8), chunks=(100,), compression="gzip")
        file.create_dataset("train/offsets", data=np.array([0, 1000], np.uint64))
        file.create_dataset("train/labels", data=np.array([1]))
    with pytest.raises(FormatError, match="h5repack"):
        len(formats.open(out))


def test_index_columns_may_be_chunked(out):
    with h5py.File(out, "w") as file:
        file.create_dataset("set/data", data=np.arange(100, dtype=np.uint8))
        file.create_dataset("set/offsets", data=np.array([0, 40, 100], np.uint64), chunks=(2,))
        file.create_dataset("set/labels", data=np.array([1, 2]), chunks=(1,), compression="gzip")
    reader = formats.open(out)
    assert [(len(reader.read(n)), reader.target(n)) for n in range(2)] == [(40, 1), (60, 2)]


def test_no_handle_of_the_library_stays_open(out):
    pack(out)
    reader = formats.open(out)
    assert bytes(reader.read(0)) == ITEMS[0][0]
    with h5py.File(out, "r+") as file:  # HDF5 refuses this while the file is open for reading
        file.attrs["note"] = "still mine"


def test_a_lock_held_by_another_process_does_not_matter(out):
    import fcntl

    pack(out)
    with out.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert bytes(formats.open(out).read(1)) == ITEMS[1][0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_of_unequal_length_are_refused(out, layout):
    pack(out, layout=layout)
    with h5py.File(out, "r+") as file:
        name = "labels" if layout == "blob" else "targets"
        del file["train"][name]
        file["train"].create_dataset(name, data=np.arange(39))
    with pytest.raises(DamagedFileError, match="rows"):
        len(formats.open(out))


@pytest.mark.parametrize("name", ["offsets", "labels", "key_data"])
def test_a_missing_column_is_named_or_refused(out, name):
    pack(out)
    with h5py.File(out, "r+") as file:
        del file["train"][name]
    with pytest.raises(DamagedFileError, match=r"set\.h5"):
        sets.facts(formats.open(out))


def test_borders_that_run_backwards_are_refused_by_sample(out):
    pack(out)
    with h5py.File(out, "r+") as file:
        file["train/offsets"][3] = 10**12
    with pytest.raises(DamagedFileError, match="sample 2 are"):
        formats.open(out).read(2)


def test_a_heap_that_is_not_there_is_refused(out):
    pack(out, layout="vlen")
    hurt = out.read_bytes().replace(b"GCOL", b"COAL")
    out.write_bytes(hurt)
    with pytest.raises(DamagedFileError, match="heap"):
        formats.open(out).read(0)


def test_a_long_class_list_does_not_burst_the_attribute(out):
    classes = tuple(f"class number {n} of ImageNet-21k" for n in range(21_841))
    pack(out, classes=classes)
    assert formats.open(out).classes == classes


@pytest.mark.parametrize("split", ["", ".", "/", "a\0b"])
def test_a_split_that_cannot_name_a_group_is_refused(out, split):
    with pytest.raises(UsageError, match="split"):
        pack(out, split=split)


def test_an_unknown_layout_is_refused():
    with pytest.raises(UsageError, match="blob or vlen"):
        hdf5.Options("other")  # type: ignore[arg-type]


def test_the_rows_of_the_library_are_those_of_the_specification():
    assert places._ROW.size == 16 and places._OBJECT.size == 16


def test_rows_that_a_small_file_only_names_take_no_memory(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file.create_group("train")
        group["data"], group["offsets"] = np.zeros(3, np.uint8), np.array([0, 3], np.uint64)
        group.create_dataset("labels", (1 << 40,), np.int64, chunks=(1 << 16,), compression="gzip")
    with pytest.raises(DamagedFileError, match="which are not stored"):
        len(hdf5.open(tmp_path / "x.h5"))


def test_a_heap_that_leads_nowhere_is_given_up_soon(tmp_path):
    heap = b"GCOL" + bytes([1, 0, 0, 0]) + struct.pack("<Q", 40 << 20)
    objects = struct.pack("<HHIQ", 1, 0, 0, 0) * (2 << 20)
    (tmp_path / "x").write_bytes(heap + objects)
    began = time.perf_counter()
    with pytest.raises(DamagedFileError, match="does not hold its row"):
        places.row_place(ByteFile(tmp_path / "x"), struct.pack("<IQI", 5, 0, 2), 0)
    assert time.perf_counter() - began < 1
