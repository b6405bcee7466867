"""HDF5 files: what others read of ours, what we read of others', and what an interruption leaves."""

import fcntl
import os
import re
import signal
import struct
import subprocess
from pathlib import Path

import contract_sets as sets
import h5py
import juelich_loaders as juelich
import numpy as np
import pytest
from given import Given, bare, of_reader, schema_of

from smallfiles import formats
from smallfiles.errors import DamagedFileError, FormatError, UsageError
from smallfiles.formats import hdf5
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.hdf5 import layout
from smallfiles.samples import Schema

ITEMS = [(sets.content(n), n * 7 % 1000) for n in range(40)]
SAMPLES = [Given(f"n{n % 3}/{n}.jpg", data, label) for n, (data, label) in enumerate(ITEMS)]
LAYOUTS = ("blob", "vlen")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "set.h5"


def pack(out, samples=SAMPLES, layout="blob", **more):
    schema = schema_of(samples, **more)
    hdf5.write(bare(samples), out, schema=schema, options=hdf5.Options(layout))
    return out


COLUMNS = {
    "data": np.frombuffer(b"onetwo", np.uint8),
    "offsets": np.array([0, 3, 6], np.uint64),
    "labels": np.array([1, 2]),
    "key_data": np.frombuffer(b"ab", np.uint8),
    "key_offsets": np.array([0, 1, 2], np.uint64),
}


def by_h5py(out, **others):
    """A file of ours by h5py alone, some columns of which are other ones."""
    with h5py.File(out, "w") as file:
        for name, values in (COLUMNS | others).items():
            file[f"train/{name}"] = values


def test_h5py_reads_our_blob(out):
    pack(out, [*SAMPLES, Given("x", b"1", 1, {"n": 1})])
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
    pack(out, [Given("a", b"1", ["one", "zwölf"]), Given("b", b"2", []), Given("c", b"3", ["three"])])
    with h5py.File(out) as file:
        group = file["train"]
        assert group["caption_rows"][:].tolist() == [0, 2, 2, 3]
        borders = group["caption_offsets"][:]
        assert group["caption_data"][borders[1] : borders[2]].tobytes().decode() == "zwölf"


@pytest.mark.parametrize(
    ("layout", "data", "labels"), [("blob", "data", "labels"), ("vlen", "images", "targets")]
)
def test_h5ls_and_h5dump_read_our_file(out, layout, data, labels, need_tool):
    pack(out, layout=layout)
    ls, dump = (need_tool(tool, "hdf5-tools") for tool in ("h5ls", "h5dump"))
    listed = subprocess.run([ls, "-r", out], capture_output=True, text=True, check=True).stdout
    assert f"/train/{data} " in listed and "/train/key_offsets" in listed
    words = [dump, "-d", f"/train/{labels}", out]
    dumped = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    numbers = re.findall(r"\d+", " ".join(re.findall(r"\): (.*)", dumped)))
    assert [int(number) for number in numbers] == [label for _, label in ITEMS]


def test_the_juelich_loader_reads_our_vlen_layout(out):
    pack(out, layout="vlen", split="val")
    loader = juelich.HDF5Loader(out, "val")
    assert [loader[index] for index in range(len(ITEMS))] == ITEMS
    with h5py.File(out) as file:
        assert file["val/targets"].dtype == np.int16
        assert h5py.check_vlen_dtype(file["val/images"].dtype) == np.uint8


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


def test_a_file_of_another_kind_is_not_called_damaged(out):
    out.write_bytes(b"ARROW1" + bytes(2000))
    with pytest.raises(FormatError, match="is not an HDF5 file"):
        len(formats.open(out))


@pytest.mark.parametrize("written", [0, 1, 39])
def test_an_interrupted_juelich_file_is_told_from_a_finished_one(out, written):
    juelich.write_hdf5(out, {"train": ITEMS}, stop_after=written)
    with pytest.raises(DamagedFileError, match=f"last {40 - written} of 40 rows are empty"):
        len(formats.open(out))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_file_of_ours_is_told_from_a_finished_one(out, layout, error):
    def stopping():
        yield from SAMPLES[:20]
        raise error("the source broke")

    with pytest.raises(error, match="the source broke"):
        hdf5.write(bare(stopping()), out, schema=schema_of(SAMPLES), options=hdf5.Options(layout))
    with pytest.raises(DamagedFileError, match="writing it was interrupted"):
        len(formats.open(out))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schema", [Schema(1, 10, 10), Schema(2, 3, 3)], ids=["count", "bytes"])
def test_more_than_was_planned_is_refused(out, layout, schema):
    samples = [Given("a.jpg", b"12", 0), Given("b.jpg", b"34", 0)]
    with pytest.raises(FormatError, match=r"b\.jpg.*room"):
        hdf5.write(bare(samples), out, schema=schema, options=hdf5.Options(layout))


def test_bytes_lie_where_a_block_device_likes_them(out):
    data = os.urandom(100_000)
    pack(out, [Given("a", data, 0), Given("b", data, 1)])
    _, start, stop = formats.open(out).span(0)
    assert start % 4096 == 0 and out.read_bytes()[start:stop] == data


def test_objects_that_differ_in_the_order_of_their_names_give_equal_bytes(tmp_path):
    for name, one in (("x.h5", {"a": 1, "b": {"c": 2, "d": 3}}), ("y.h5", {"b": {"d": 3, "c": 2}, "a": 1})):
        pack(tmp_path / name, [Given("x", b"1", 1, one)])
    assert (tmp_path / "x.h5").read_bytes() == (tmp_path / "y.h5").read_bytes()


def test_index_columns_may_be_chunked(out):
    with h5py.File(out, "w") as file:
        file.create_dataset("set/data", data=np.zeros(2000, np.uint8))
        file.create_dataset("set/offsets", data=np.arange(2001, dtype=np.uint64), chunks=(2,))
        file.create_dataset("set/labels", data=np.repeat([1, 2], 1000), chunks=(2000,), compression="gzip")
    reader = formats.open(out)
    assert [(len(reader.read(n)), reader.target(n)) for n in (0, 1999)] == [(1, 1), (1, 2)]


@pytest.mark.parametrize("how", [{}, {"locking": False}], ids=str)
def test_a_file_that_others_have_open_or_locked_is_read_and_may_be_written(out, how):
    pack(out)
    with h5py.File(out, "r", **how), formats.open(out) as reader:
        assert bytes(reader.read(0)) == ITEMS[0][0]
    with out.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        reader = formats.open(out)
        assert bytes(reader.read(1)) == ITEMS[1][0]
    with h5py.File(out, "r+") as file:  # HDF5 refuses this while the file is open for reading
        file.attrs["note"] = "still mine"
    assert bytes(reader.read(2)) == ITEMS[2][0]


@pytest.mark.parametrize("driver", ["sec2", "stdio"])
def test_a_reader_does_not_read_through_a_handle_that_the_process_has_open_already(out, tmp_path, driver):
    with h5py.File(out, "w") as file:
        file.create_dataset("set/data", data=np.arange(100, dtype=np.uint8))
        file.create_dataset("set/offsets", data=np.array([0, 40, 100], np.uint64), chunks=(2,))
        file["set/labels"] = np.array([1, 2])
    (tmp_path / "other").write_bytes(bytes(out.stat().st_size))
    with h5py.File(out, driver=driver) as held, (tmp_path / "other").open("rb") as other:
        links = Path("/proc/self/fd").iterdir()
        of_hdf5 = next(int(link.name) for link in links if os.path.realpath(link) == os.path.realpath(out))
        os.dup2(other.fileno(), of_hdf5)  # as if another process had moved its offset
        assert [len(data) for data in map(formats.open(out).read, (0, 1))] == [40, 60]
        assert held


@pytest.mark.parametrize(
    ("layout", "name", "new", "told"),
    [
        ("blob", "labels", np.arange(39), "rows"),
        ("vlen", "targets", np.arange(39), "rows"),
        ("blob", "offsets", np.array([0, 1, 10**12, *range(38)], np.uint64), "sample 1 are"),
        *[("blob", name, None, r"set\.h5") for name in ("offsets", "labels", "key_data")],
    ],
)
def test_columns_that_are_missing_or_do_not_fit_are_refused(out, layout, name, new, told):
    pack(out, layout=layout)
    with h5py.File(out, "r+") as file:
        del file["train"][name]
        if new is not None:
            file["train"].create_dataset(name, data=new)
    with pytest.raises(DamagedFileError, match=told):
        sets.facts(formats.open(out))


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


def test_rows_that_a_small_file_only_names_take_no_memory(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file.create_group("train")
        group["data"], group["offsets"] = np.zeros(3, np.uint8), np.array([0, 3], np.uint64)
        group.create_dataset("labels", (1 << 40,), np.int64, chunks=(1 << 16,), compression="gzip")
    with pytest.raises(DamagedFileError, match="which are not stored"):
        len(hdf5.open(tmp_path / "x.h5"))


@pytest.mark.parametrize(
    ("count", "written", "said"),
    [
        (1 << 40, 0, "images names .* rows, which are not stored"),
        (1 << 40, 1, "images names .* rows, which are not stored"),
        (1 << 27, 1, "images names .* rows, which are not stored"),
        (20_000, 1, "its columns have 3, 20000 "),  # so many may be stored
    ],
)
def test_encoded_rows_that_a_small_file_only_names_take_no_memory(tmp_path, count, written, said):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        group = file.create_group("train")
        group["targets"] = np.zeros(3, np.int8)
        rows = group.create_dataset("images", (count,), h5py.vlen_dtype(np.uint8), chunks=(4,))
        for row in range(written):
            rows[row] = np.zeros(5, np.uint8)
    with pytest.raises(DamagedFileError, match=said):
        len(hdf5.open(tmp_path / "x.h5"))


@pytest.mark.parametrize(
    ("length", "number", "heap_bytes", "cut", "found"),
    [
        (5, 7, 37, 0, True),
        (4, 7, 37, 0, True),  # a shorter row in a longer object
        (6, 7, 38, 0, False),  # a longer one would be of the object behind it
        (5, 8, 37, 0, False),
        (5, 7, 36, 0, False),  # the heap ends one byte before its object
        (5, 7, 37, 1, False),  # the file does
    ],
)
def test_a_row_lies_within_its_object_its_heap_and_the_file(tmp_path, length, number, heap_bytes, cut, found):
    heap = b"GCOL" + bytes([1, 0, 0, 0]) + struct.pack("<Q", heap_bytes)
    content = b"before" + heap + struct.pack("<HHIQ", 7, 1, 0, 5) + b"there"
    (tmp_path / "x").write_bytes(content[: len(content) - cut])
    file, row = ByteFile(tmp_path / "x"), struct.pack("<IQI", length, 2, number)
    if found:
        start, stop = layout.row_place(file, row, 4)
        assert content[start:stop] == b"there"[:length]
    else:
        with pytest.raises(DamagedFileError, match="does not hold its row"):
            layout.row_place(file, row, 4)


@pytest.mark.parametrize(
    "before", [struct.pack("<HHIQ", 1, 0, 0, 0) * (1 << 16), bytes(16)], ids=["many", "free"]
)
def test_a_heap_that_leads_nowhere_is_given_up_soon(tmp_path, before):
    """Behind as many objects as a heap may have, or its free space, it is not looked for."""
    heap = b"GCOL" + bytes([1, 0, 0, 0]) + struct.pack("<Q", 40 << 20)
    (tmp_path / "x").write_bytes(heap + before + struct.pack("<HHIQ", 2, 1, 0, 5) + b"there")
    with pytest.raises(DamagedFileError, match="does not hold its row"):
        layout.row_place(ByteFile(tmp_path / "x"), struct.pack("<IQI", 5, 0, 2), 0)


KINDS = ("storage", "virtual", "unlimited", "link", "soft")


def lead_away(path, other, name, kind):
    """A file of ours by h5py alone, whose column `name` lies in the file `other`."""
    by_h5py(path)
    with h5py.File(path, "r+") as file:
        group, values = file["train"], COLUMNS[name]
        del group[name]
        shape, endless = values.shape, (None,) if kind == "unlimited" else None
        if kind == "storage":
            group.create_dataset(name, shape, values.dtype, external=[(str(other), 0, values.nbytes)])
        elif kind in ("virtual", "unlimited"):
            layout = h5py.VirtualLayout(shape, values.dtype, maxshape=endless)
            whole = slice(0, h5py.UNLIMITED) if endless else slice(None)
            layout[whole] = h5py.VirtualSource(other, name, shape, values.dtype, maxshape=endless)[whole]
            group.create_virtual_dataset(name, layout)
        elif kind == "link":
            group[name] = h5py.ExternalLink(str(other), name)
        else:
            file["away"] = h5py.ExternalLink(str(other), "/")
            group[name] = h5py.SoftLink(f"/away/{name}")


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("kind", KINDS)
def test_columns_in_other_files_are_refused(out, tmp_path, kind, name):
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file.create_dataset(name, data=COLUMNS[name], maxshape=(None,))
    lead_away(out, other if kind != "storage" else tmp_path / "raw", name, kind)
    (tmp_path / "raw").write_bytes(COLUMNS[name].tobytes())
    with pytest.raises(FormatError, match=rf"set\.h5 has {name} as a .*any file of this machine"):
        sets.facts(formats.open(out))


def test_a_pipe_in_the_place_of_another_file_keeps_nobody_waiting(out, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the library waits in C
        refused = 0
        for kind in KINDS:
            lead_away(out, tmp_path / "pipe", "key_data", kind)
            signal.alarm(5)
            try:
                sets.facts(formats.open(out))
            except FormatError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(KINDS)


@pytest.mark.parametrize("note", ["by hand", 3])
def test_files_of_others_may_have_an_attribute_of_our_name(out, note):
    by_h5py(out)
    with h5py.File(out, "r+") as file:
        file.attrs["provenance"] = note
    assert sets.facts(formats.open(out)) == [("a", b"one", 1, None), ("b", b"two", 2, None)]


def test_links_beside_the_samples_are_left_alone(out, tmp_path):
    away = h5py.ExternalLink(str(tmp_path / "nothing"), "/x")
    by_h5py(out, other=away)
    with h5py.File(out, "r+") as file:
        file["other"] = away
    assert sets.facts(formats.open(out)) == [("a", b"one", 1, None), ("b", b"two", 2, None)]
    with h5py.File(out, "w") as file:
        file["train"] = away
    with pytest.raises(FormatError, match="has train as a link"):
        len(formats.open(out))


@pytest.mark.parametrize("userblock", [0, 512, 4096, 1 << 20])
@pytest.mark.parametrize("chunks", [None, (7,)])
def test_files_of_others_may_have_chunks_and_any_user_block(out, userblock, chunks):
    with h5py.File(out, "w", userblock_size=userblock) as file:
        kind = h5py.vlen_dtype(np.uint8)
        images = file.create_dataset("train/images", (40,), kind, chunks=chunks)
        for index, (data, _) in enumerate(ITEMS):
            images[index] = np.frombuffer(data, np.uint8)
        file["train/targets"] = np.array([label for _, label in ITEMS], np.int16)
    reader = formats.open(out)
    assert [(bytes(reader.read(n)), reader.target(n)) for n in range(40)] == ITEMS


@pytest.mark.parametrize("column", ["data", "images"])
def test_the_advised_command_makes_a_file_that_opens(out, need_tool, tmp_path, column):
    need_tool("h5repack", "hdf5-tools")
    with h5py.File(out, "w") as file:
        for name in ("data", "offsets", "labels") if column == "data" else ():
            chunks = {"chunks": (2,), "compression": "gzip"} if name == "data" else {}
            file.create_dataset(f"train/{name}", data=COLUMNS[name], **chunks)
        if column == "images":
            kind = {"dtype": h5py.vlen_dtype(np.uint8), "chunks": (2,), "compression": "gzip"}
            images = file.create_dataset("train/images", (2,), **kind)
            images[0], images[1] = COLUMNS["data"][:3], COLUMNS["data"][3:]
            file["train/targets"] = COLUMNS["labels"]
    with pytest.raises(FormatError) as caught:
        len(formats.open(out))
    command = re.search(r"h5repack .* OLD NEW", str(caught.value))[0]
    mended = tmp_path / "new.h5"
    subprocess.run(command.replace("OLD", str(out)).replace("NEW", str(mended)).split(), check=True)
    assert [(bytes(s.data), s.target) for s in of_reader(formats.open(mended))] == [(b"one", 1), (b"two", 2)]


@pytest.mark.parametrize("stored", [16, 304, 336])
def test_rows_whose_stored_size_contradicts_their_number_are_damaged(out, stored):
    with h5py.File(out, "w") as file:
        images = file.create_dataset("train/images", (20,), h5py.vlen_dtype(np.uint8))
        for row in range(20):
            images[row] = COLUMNS["data"][:3]
        file["train/targets"] = np.arange(20)
    data = out.read_bytes()
    assert data.count(struct.pack("<Q", 320)) == 1  # 16 bytes for each row
    out.write_bytes(data.replace(struct.pack("<Q", 320), struct.pack("<Q", stored)))
    with pytest.raises(DamagedFileError, match=f"has {stored} bytes for 20 rows"):
        len(formats.open(out))


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_rows_at_short_addresses_are_not_called_damaged_and_the_advised_copy_opens(out, tmp_path, chunks):
    sizes = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    sizes.set_sizes(4, 8)
    with h5py.File(h5py.h5f.create(bytes(out), fcpl=sizes)) as file:
        images = file.create_dataset("train/images", (2,), h5py.vlen_dtype(np.uint8), chunks=chunks)
        images[0], images[1] = COLUMNS["data"][:3], COLUMNS["data"][3:]
        file["train/targets"] = COLUMNS["labels"]
    with pytest.raises(
        FormatError, match=r"addresses of another size .* new\[name\] = old\[name\]\[\.\.\.\]"
    ):
        len(formats.open(out))
    with h5py.File(out) as old, h5py.File(tmp_path / "new.h5", "w") as new:
        for name in ("train/images", "train/targets"):
            new[name] = old[name][...]
    assert [bytes(sample.data) for sample in of_reader(formats.open(tmp_path / "new.h5"))] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("labels", np.array([1.0, 2.0])),
        ("labels", np.array([[1, 2], [3, 4]])),
        ("data", np.arange(6, dtype=np.int32)),
        ("data", np.zeros((2, 3), np.uint8)),
    ],
    ids=["float", "matrix", "wide", "pictures"],
)
def test_columns_of_another_kind_are_refused_not_called_damaged(out, name, values):
    by_h5py(out, **{name: values})
    with pytest.raises(FormatError, match=f"has /train/{name} as ") as caught:
        len(formats.open(out))
    assert not isinstance(caught.value, DamagedFileError)


@pytest.mark.parametrize("wrong", [[0, 2**32 + 1, 2], [0, 2, 1], [2**63, 1, 2], [0, 2**31, 2], [5, 5, 2]])
def test_borders_of_keys_that_make_no_sense_are_refused(out, wrong):
    by_h5py(out, key_offsets=np.array(wrong, np.uint64))
    for use in (sets.facts, lambda reader: reader.keys().to_pylist()):
        with pytest.raises(DamagedFileError, match=r"set\.h5"):
            use(formats.open(out))


PIXELS = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
ROWS_OF_ROWS = np.empty((1, 1), h5py.vlen_dtype(np.uint8))
ROWS_OF_ROWS[0, 0] = np.zeros(5, np.uint8)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"images": PIXELS, "labels": np.arange(3)}, "holds images, labels outside of any group"),
        ({"x_train": PIXELS, "y_train": np.arange(3)}, "holds x_train, y_train outside of any group"),
        ({"train/images": PIXELS, "train/labels": np.arange(3)}, r"of shape \(3, 8, 8, 3\)"),
        ({"train/images": ROWS_OF_ROWS, "train/labels": np.arange(1)}, r"of shape \(1, 1\)"),
        ({"train/images/0": PIXELS, "train/labels": np.arange(3)}, "has /train/images as no data set"),
        ({"train/pixels": PIXELS, "train/labels": np.arange(3)}, "has no samples of split 'train'"),
        ({}, "holds nothing"),
    ],
)
def test_pixels_of_others_are_refused_with_the_way_to_pack_them(out, held, told):
    with h5py.File(out, "w") as file:
        for name, values in held.items():
            file[name] = values
    with pytest.raises(FormatError, match=f"{told}.*smallfiles.sources.from_dataset"):
        len(formats.open(out))


def test_encoded_rows_without_targets_are_not_called_damaged(out):
    with h5py.File(out, "w") as file:
        rows = file.create_dataset("train/images", (1,), h5py.vlen_dtype(np.uint8))
        rows[0] = np.frombuffer(b"x", np.uint8)
        file["train/label"] = [7]
    with pytest.raises(FormatError, match=r"has images, label in train, and no targets.*group\.move"):
        len(formats.open(out))
    with h5py.File(out, "a") as file:
        file["train"].move("label", "targets")
    assert formats.open(out).target(0) == 7
