"""LMDB beside liblmdb: it reads and changes what was written here, and what it wrote is read here."""

import os
import warnings

import contract_sets as sets
import numpy as np
import pytest
from given import Given, bare, schema_of

from smallfiles import formats
from smallfiles.errors import FormatError
from smallfiles.samples import Schema

lmdb = pytest.importorskip("lmdb")
PICTURE = b"\xff\xd8\xff"


def write_ours(path, count):
    samples = [Given(f"{n}.jpg", sets.content(n) * (n % 30), n) for n in range(count)]
    formats.get("lmdb").write(bare(samples), path, schema=schema_of(samples))
    return samples


def read_all_at_once(reader):
    return reader.read_many(range(len(reader)))


def write_theirs(path, entries, *, subdir=False, **more):
    with lmdb.open(str(path), subdir=subdir, map_size=1 << 28, max_dbs=2, **more) as env:
        for key, value in entries:
            with env.begin(write=True) as txn:
                txn.put(key, value)
    return path


@pytest.mark.parametrize("count", [0, 1, 119, 120, 500, 20_000])
def test_liblmdb_reads_every_entry_of_ours_by_key(tmp_path, count):
    samples = write_ours(tmp_path / "x.lmdb", count)
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, readonly=True, lock=False) as env:
        with env.begin() as txn:
            assert [txn.get(b"%010d" % n) for n in range(count)] == [sample.data for sample in samples]
            assert np.frombuffer(txn.get(b"labels"), "<i8").tolist() == list(range(count))
            keys = [key for key, _ in txn.cursor()]
            assert keys == sorted(keys) and len(keys) == txn.stat()["entries"] == count + 4
        pages = env.stat()
        told = sum(pages[kind] for kind in ("branch_pages", "leaf_pages", "overflow_pages"))
        assert 4096 * (told + 2) == 4096 * (env.info()["last_pgno"] + 1) == os.path.getsize(env.path())
    assert sorted(os.listdir(tmp_path)) == ["x.lmdb", "x.lmdb.digest.json"]


def test_liblmdb_goes_on_writing_into_ours(tmp_path):
    samples = write_ours(tmp_path / "x.lmdb", 700)
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, map_size=1 << 28) as env:
        with env.begin(write=True) as txn:
            for n in range(0, 700, 2):
                txn.delete(b"%010d" % n)
            txn.put(b"%010d" % 1, b"new" * 5000)
        with env.begin(write=True) as txn:
            kept = [txn.get(b"%010d" % n) for n in range(3, 700, 2)]
            assert kept == [samples[n].data for n in range(3, 700, 2)]
            for key in [key for key, _ in txn.cursor()]:  # joins pages until the tree is empty
                assert txn.delete(key)
        assert env.stat()["entries"] == 0


@pytest.mark.parametrize("subdir", [False, True], ids=["file", "folder"])
def test_a_database_of_others_is_read_by_its_keys_and_said_to_have_no_targets(tmp_path, subdir):
    chance = np.random.default_rng(0)
    names = [f"n{n % 7:08d}/{chance.integers(1 << 40)}.jpg" for n in range(3000)]
    data = {name.encode(): PICTURE + chance.bytes(int(chance.integers(9000))) for name in names}
    out = write_theirs(tmp_path / "x.lmdb", data.items(), subdir=subdir, sync=False)
    with pytest.warns(UserWarning, match="3,000 samples without a target: label -1"):
        reader = formats.open(out)
        assert len(reader) == 3000
    assert reader.keys().to_pylist() == sorted(names)
    assert all(reader.read(n) == data[reader.key(n).encode()] for n in range(3000))
    assert (
        set(reader.table(["label"], range(0, 3000))["label"].to_pylist()) == {-1}
        and reader.info()["layout"] == "foreign"
    )


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([(b"0", PICTURE), (b"__keys__", b"\x80\x04]\x94.")], "__keys__"),
        ([(b"image-000000001", PICTURE), (b"label-000000001", b"text")], "label-000000001"),
        ([], "no entries"),
    ],
    ids=["pickles", "texts", "empty"],
)
def test_what_is_not_a_set_of_images_is_refused_by_its_key(tmp_path, entries, word):
    out = write_theirs(tmp_path / "x.lmdb", entries)
    with pytest.raises(FormatError, match=word):
        len(formats.open(out))


@pytest.mark.parametrize(("count", "asked"), [(1000, len), (9000, list), (9000, read_all_at_once)])
@pytest.mark.parametrize(
    ("key", "size"), [("__len__", 6), ("__keys__", 1 << 20), ("__meta__", 90), ("m", 90)]
)
def test_an_entry_that_is_no_image_is_never_handed_out_wherever_it_lies(tmp_path, key, size, count, asked):
    chance = np.random.default_rng(0)
    entries = {f"{n:06}": PICTURE + bytes(int(chance.integers(200))) for n in range(count)}
    if key == "m":  # between the images, neither small nor large
        key = f"{count // 3:06}"
    entries[key] = b"\x80\x04]".ljust(size, b".")
    with (
        lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, map_size=1 << 28) as env,
        env.begin(write=True) as txn,
    ):
        for name, value in entries.items():
            txn.put(name.encode(), value)
    with pytest.raises(FormatError, match=f"{key}'?, which is no encoded image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked(formats.open(tmp_path / "x.lmdb"))


def test_a_database_in_a_database_is_refused(tmp_path):
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, max_dbs=2) as env:
        inner = env.open_db(b"inner")
        with env.begin(write=True) as txn:
            txn.put(b"a", PICTURE, db=inner)
    with pytest.raises(FormatError, match="nested databases"):
        len(formats.open(tmp_path / "x.lmdb"))


def test_a_tree_that_names_a_page_twice_is_refused(tmp_path):
    write_ours(tmp_path / "x.lmdb", 500)
    whole = bytearray((tmp_path / "x.lmdb").read_bytes())
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, readonly=True, lock=False) as env:
        root = env.info()["last_pgno"] * 4096
    nodes = [int.from_bytes(whole[root + at : root + at + 2], "little") for at in (16, 18)]
    whole[root + nodes[1] : root + nodes[1] + 4] = whole[root + nodes[0] : root + nodes[0] + 4]
    (tmp_path / "x.lmdb").write_bytes(whole)
    with pytest.raises(FormatError, match="the same page twice"):
        len(formats.open(tmp_path / "x.lmdb"))


def test_a_sample_of_4_gib_is_refused_before_it_is_written(tmp_path):
    large = memoryview(bytearray(1)).cast("B")

    class Huge:
        def __len__(self):
            return 1 << 32

    with pytest.raises(FormatError, match=r"huge\.jpg.*4,294,967,296 bytes"):
        formats.get("lmdb").write(
            bare([Given("a.jpg", large), Given("huge.jpg", Huge())]),  # type: ignore[arg-type]
            tmp_path / "x.lmdb",
            schema=Schema(2, 1 << 33, 1 << 32),
        )
