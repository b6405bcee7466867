"""Arrow files: what others read of ours, what we read of others', and where a batch ends."""

import json
import random

import contract_sets as sets
import duckdb
import juelich_loaders as juelich
import numpy as np
import pyarrow as pa
import pytest
from given import Given, bare, schema_of

from smallfiles import formats
from smallfiles.errors import DamagedFileError, FormatError, UsageError
from smallfiles.fields import value_table
from smallfiles.formats import arrow
from smallfiles.formats.arrow import foreign, writing
from smallfiles.formats.bytefile import ByteFile
from smallfiles.measure.workers import peak_memory
from smallfiles.samples import Sample, Schema

ITEMS = [(sets.content(n), n * 7 % 1000) for n in range(40)]
SAMPLES = [Given(f"n{n % 3}/{n}.jpg", data, label) for n, (data, label) in enumerate(ITEMS)]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "set.arrow"


def pack(out, samples=SAMPLES, **options):
    schema = schema_of(samples, name="birds", classes=tuple(map(str, range(1000))))
    arrow.write(bare(samples), out, schema=schema, options=arrow.Options(**options))
    return out


def save(out, options=None, **columns):
    table = pa.table(columns)
    with pa.ipc.new_file(str(out), table.schema, options=options) as writer:
        writer.write_table(table)


def rows_of(path):
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]


def test_pyarrow_and_duckdb_read_our_columns_and_types(out):
    pack(out)
    table = pa.ipc.open_file(out.read_bytes()).read_all()
    table.validate(full=True)
    assert table.schema.names == ["key", "label", "data"]
    assert [str(kind) for kind in table.schema.types] == ["string", "int64", "binary"]
    assert table["data"].to_pylist() == [data for data, _ in ITEMS]
    assert table["key"].to_pylist() == [sample.key for sample in SAMPLES]
    with duckdb.connect() as connection:
        connection.register("birds", table)
        counted = connection.execute("SELECT count(*), sum(octet_length(data)), max(label) FROM birds")
        assert counted.fetchone() == (40, sum(len(data) for data, _ in ITEMS), max(n for _, n in ITEMS))
    out.unlink()
    pack(out, [Given("a.jpg", b"1", ["one", "two\nlines"], {"n": 1}), Given("b.jpg", b"2", [])])
    table = pa.ipc.open_file(out.read_bytes()).read_all()
    assert table["captions"].to_pylist() == [["one", "two\nlines"], []]
    assert table["meta"].to_pylist() == ['{"n":1}', None]


def test_hugging_face_datasets_reads_our_file(out, tmp_path):
    import datasets  # takes seconds, so only where it is used

    pack(out)
    how = {"data_files": {"train": str(out)}, "cache_dir": str(tmp_path / "cache"), "split": "train"}
    loaded = datasets.load_dataset("arrow", **how)
    assert [row["data"] for row in loaded] == [data for data, _ in ITEMS]
    assert loaded["label"][:] == [label for _, label in ITEMS]
    assert loaded.features["label"].names == [*map(str, range(1000))]
    as_pictures = loaded.cast_column("data", datasets.Image(decode=False))
    assert [row["data"]["bytes"] for row in as_pictures] == [data for data, _ in ITEMS]


def test_the_juelich_loader_reads_our_juelich_layout(out):
    pack(out, layout="juelich")
    loader = juelich.ArrowLoader(out)
    assert [loader[index] for index in range(len(ITEMS))] == ITEMS
    schema = pa.ipc.open_file(out.read_bytes()).schema
    assert schema.field("image_data").type == pa.binary() and schema.field("label").type == pa.uint16()


def test_we_read_what_the_juelich_script_writes(out):
    juelich.write_arrow(out, ITEMS)
    reader = formats.open(out)
    assert [(bytes(reader.read(i)), reader.target(i)) for i in range(len(reader))] == ITEMS
    assert reader.keys().to_pylist() == [str(n) for n in range(40)] and reader.key(3) == "3"
    assert reader.classes == () and reader.info()["provenance"] == {}


def test_we_read_a_stream_of_hugging_face_datasets_with_images_as_structs(tmp_path):
    import datasets  # takes seconds, so only where it is used

    images = [{"bytes": data, "path": f"{n}.jpg"} for n, (data, _) in enumerate(ITEMS)]
    names = datasets.ClassLabel(names=["crane", "maillot"])
    features = datasets.Features({"image": datasets.Image(decode=False), "label": names})
    rows = {"image": images, "label": [n % 2 for n in range(40)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    (path,) = (tmp_path / "saved").glob("*.arrow")
    reader = formats.open(path)
    assert [bytes(data) for data in reader.read_many(range(40))] == [data for data, _ in ITEMS]
    assert reader.table(["label"])["label"].to_pylist()[:4] == [0, 1, 0, 1]
    assert reader.classes == ("crane", "maillot")


@pytest.mark.parametrize(
    "columns",
    [
        {"jpg": [b"1", b"22"], "cls": pa.array([3, 4], pa.int32()), "__key__": ["a", "b"]},
        {"x": pa.array([b"1", b"22"], pa.large_binary()), "y": pa.array([3, 4], pa.uint8())},
        {"x": pa.chunked_array([[b"1"], [b"22"]]), "label": pa.chunked_array([[3], [4]]), "z": [1.5, 2.5]},
    ],
    ids=["webdataset-names", "by-type", "chunked"],
)
def test_we_read_foreign_tables_with_one_binary_and_one_integer_column(out, columns):
    save(out, **columns)
    reader = formats.open(out)
    assert [(bytes(reader.read(n)), reader.target(n)) for n in range(2)] == [(b"1", 3), (b"22", 4)]
    assert reader.keys().to_pylist() == (["a", "b"] if "__key__" in columns else ["0", "1"])


def test_nulls_and_missing_labels_of_foreign_tables_are_unknown_labels(out):
    save(out, jpg=[b"1", b"2"], label=pa.array([5, None], pa.int16()))
    assert [formats.open(out).target(n) for n in range(2)] == [5, -1]
    save(out, jpg=[b"1", b"2"])
    assert formats.open(out).target(0) == -1


def test_a_table_without_images_and_a_compressed_one_are_refused_with_advice(out):
    save(out, x=[1.5], y=["text"])
    with pytest.raises(FormatError, match="binary column"):
        len(formats.open(out))
    save(out, pa.ipc.IpcWriteOptions(compression="zstd"), jpg=[b"abc" * 1000], label=[1])
    with pytest.raises(FormatError, match="without compression"):
        formats.open(out).read(0)


def test_batches_are_cut_by_rows_and_by_bytes(out):
    sizes = [400, 400, 400, 1500, 10, 10, 10, 10, 10, 0]
    samples = [Given(f"{n}", b"x" * size, 0) for n, size in enumerate(sizes)]
    pack(out, samples, rows_per_batch=4, max_batch_bytes=1000)
    assert rows_of(out) == [2, 1, 1, 4, 2]
    assert sets.facts(formats.open(out)) == sets.facts(samples)


CUTS = foreign.Cuts(64, 1000, 100)


@pytest.mark.parametrize(
    ("bodies", "cuts", "asked", "count"),
    [
        ([900] * 20_000, CUTS, [19_999], 19_999 * 64 + 1),
        ([900, 901, 900], CUTS, [1, 2], 64 + 2),  # the second may have been cut by bytes
        ([901] * 3, foreign.Cuts(1, 1000, 100), [2], 3),
        ([1] * 4096, None, [*range(4096)], 4096),
        ([1] * 4097, None, np.linspace(0, 4096, 64).astype(int).tolist(), 4097),
    ],
)
def test_opening_asks_those_headers_alone_that_may_have_another_number_of_rows(bodies, cuts, asked, count):
    known = []
    found = foreign.row_counts(
        np.array(bodies), cuts, lambda some: known.extend(some.tolist()) or np.ones(len(some), np.int64)
    )
    assert (found.sum(), known) == (count, asked)


def write_uneven(path, rows_of_batch, **more):
    """A file of others with batches of such lengths; row n holds the bytes and the label n."""
    schema = pa.schema([("image_data", pa.binary()), ("label", pa.uint16())])
    row = 0
    with pa.ipc.new_file(str(path), schema, **more) as writer:
        for rows in rows_of_batch:
            numbers = range(row, row + rows)
            writer.write_batch(pa.record_batch([[b"%d" % n for n in numbers], list(numbers)], schema=schema))
            row += rows
    return row


def test_several_files_of_one_saved_set_are_one_set_in_their_recorded_order(tmp_path):
    files = [{"filename": "b.arrow"}, {"filename": "a.arrow"}]
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": files}))
    for name, first in (("b", 0), ("a", 5)):
        numbers = range(first, first + 5)
        save(tmp_path / f"{name}.arrow", image_data=[b"%d" % n for n in numbers], label=[*numbers])
    reader = arrow.open(tmp_path, access="pread")
    assert (len(reader), reader.shard_sizes(), reader.key(7)) == (10, (5, 5), "7")
    assert [bytes(data) for data in reader.read_many([7, 0, 4, 5])] == [b"7", b"0", b"4", b"5"]
    assert reader.table(["label"])["label"].to_pylist() == [*range(10)] and reader.info()["bytes"] == 10


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("usual", [2, 7])
def test_uneven_batches_of_others_are_all_found_however_many_there_are(out, usual, legacy):
    batches = [usual] * 5000
    for number in (17, 701, 4242, 4998):
        batches[number] = number % 5 + 8
    batches[3] = 0
    count = write_uneven(out, batches, options=pa.ipc.IpcWriteOptions(use_legacy_format=legacy))
    reader = formats.open(out)
    assert len(reader) == count
    assert all(reader.read(n) == b"%d" % n and reader.target(n) == n for n in (0, *range(7, count, 13)))


def test_a_foreign_file_of_a_million_single_rows_is_sampled_and_checked_when_read(tmp_path):
    path = tmp_path / "x.arrow"
    write_uneven(path, [1] * 701 + [2] + [1] * 4299)
    assert 701 not in np.linspace(0, 5000, foreign._READ_SOME).astype(int)
    reader = formats.open(path)
    assert bytes(reader.read(5)) == b"5"
    with pytest.raises(FormatError, match="2 rows in record batch 701, and one in the others") as caught:
        reader.read(701)
    assert not isinstance(caught.value, DamagedFileError)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", ["cat", "dog"]),
        ("label", [1.0, 2.0]),
        ("label", pa.array(["cat", "dog"]).dictionary_encode()),
        ("target", [True, False]),
        ("label", [[1, 2], [3]]),
        ("caption", [1.0, 2.0]),
    ],
    ids=["string", "float", "dictionary", "bool", "list", "caption"],
)
@pytest.mark.parametrize("beside", [{}, {"id": [7, 8]}], ids=["alone", "beside-integers"])
def test_targets_of_a_type_that_says_no_label_are_refused_never_unknown(out, name, values, beside):
    save(out, jpg=[b"1", b"2"], **beside, **{name: values})
    with pytest.raises(FormatError, match=f"has the column {name} of type"):
        formats.open(out).target(0)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_string_a_row_is_one_caption(out, kind):
    save(out, jpg=[b"1", b"2", b"3"], id=[7, 8, 9], caption=pa.array(["a cat", None, ""], kind))
    reader = formats.open(out)
    assert "captions" in reader.fields
    assert [reader.target(n) for n in range(3)] == [["a cat"], [], [""]]


@pytest.mark.parametrize(
    ("largest", "batch_bytes", "expected"),
    [(1001, 10, "large_binary"), (500, 900, "binary"), (500, 5000, "large_binary")],
)
def test_the_column_becomes_large_where_two_gigabytes_may_be_passed(
    out, monkeypatch, largest, batch_bytes, expected
):
    monkeypatch.setattr(writing, "BINARY_LIMIT", 1000)
    samples = [Given(f"{n}", bytes([n]) * largest, n) for n in range(5)]
    pack(out, samples, max_batch_bytes=batch_bytes)
    assert str(pa.ipc.open_file(out.read_bytes()).schema.field("data").type) == expected
    assert sets.facts(formats.open(out)) == sets.facts(samples)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 64])
def test_more_than_two_gigabytes_in_one_sample_and_in_one_batch(tmp_path, rows):
    big = memoryview(bytearray((2 << 30) + 5))
    big[-1] = 7
    half = big[: (1 << 30) + 9]
    samples = [
        Given("big", big, 1),
        Given("half1", half, 2),
        Given("half2", half, 3),
        Given("small", b"x", 4),
    ]
    out = tmp_path / "big.arrow"
    options = arrow.Options(rows_per_batch=rows, max_batch_bytes=3 << 30)
    arrow.write(bare(samples), out, schema=schema_of(samples), options=options, digest=False)
    for access in ("mmap", "pread"):
        reader = arrow.open(out, access=access)
        assert [reader.size(n) for n in range(4)] == [len(s.data) for s in samples]
        assert bytes(reader.read(0)[-3:]) == b"\0\0\7" and bytes(reader.read(3)) == b"x"
    out.unlink()


def test_a_sample_larger_than_the_schema_says_is_refused(out):
    with pytest.raises(FormatError, match="at most 3"):
        arrow.write([Sample("a.jpg", (b"1234",), 0)], out, schema=Schema(1, 3, 3))


def test_parallel_file_systems_are_read_by_pread(out, monkeypatch):
    pack(out)
    monkeypatch.setattr("smallfiles.formats.bytefile.is_parallel_filesystem", lambda path: True)
    assert isinstance(arrow.open(out).read(0).obj, bytes)


def test_a_stream_that_was_cut_between_two_messages_is_refused(out, tmp_path):
    pack(out, rows_per_batch=4)
    table = pa.ipc.open_file(out.read_bytes()).read_all()
    path = tmp_path / "stream.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    assert len(arrow.open(path)) == 40
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DamagedFileError, match="does not end"):
        len(arrow.open(path))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"rows":0,"bytes":1,"largest":1}', b'{"rows":"x"}', None])
def test_a_rule_of_cutting_that_makes_no_sense_is_not_believed(text):
    assert foreign.Cuts.loads(text) is None


def test_a_rule_of_cutting_is_believed_up_to_as_many_rows_as_a_batch_may_have():
    for rows, believed in ((0, False), (1, True), (1 << 20, True), ((1 << 20) + 1, False)):
        found = foreign.Cuts.loads(b'{"rows":%d,"bytes":7,"largest":5}' % rows)
        assert found == (foreign.Cuts(rows, 7, 5) if believed else None)


def rewrite(path):
    """Write a file again, record batch by record batch, as a program does that does not know our table."""
    with pa.ipc.open_file(path.read_bytes()) as old:
        batches = [old.get_batch(number) for number in range(old.num_record_batches)]
        with pa.ipc.new_file(str(path), old.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)


def test_batches_that_were_not_met_are_announced_before_they_are_looked_into(out, monkeypatch):
    samples = [Given(f"{n}.jpg", bytes([n]) * 500_000, n) for n in range(12)]
    arrow.write(bare(samples), out, schema=schema_of(samples), options=arrow.Options(rows_per_batch=4))
    rewrite(out)
    asked = []
    monkeypatch.setattr(ByteFile, "prefetch", lambda file, start, stop: asked.append((start, stop)))
    reader = arrow.open(out)
    reader.read(9)  # meets the last batch
    asked.clear()
    data = reader.read_many([5, 0, 9])
    assert [bytes(each) for each in data] == [samples[n].data for n in (5, 0, 9)]
    heads, places = asked[:2], asked[-3:]
    whole = pa.py_buffer(out.read_bytes())
    keys = [pa.ipc.open_file(whole).get_batch(n).column("key").buffers()[1] for n in (0, 1)]
    offsets = [buffer.address - whole.address for buffer in keys]
    assert places == [reader.span(n)[1:] for n in (0, 5, 9)]
    for (start, stop), offset in zip(heads, offsets, strict=True):
        assert start <= offset < stop <= start + (66 << 10)


def test_a_sample_larger_than_a_batch_is_not_copied(out):
    data = [b"", b"abc", b"x" * (128 << 20), b"", b"de"]
    schema = Schema(len(data), sum(map(len, data)), 128 << 20)
    with peak_memory() as taken:
        samples = (Sample(str(number), (some,), number) for number, some in enumerate(data))
        arrow.write(samples, out, schema=schema, digest=False)
    with pa.memory_map(str(out)) as file:
        found = pa.ipc.open_file(file).read_all()["data"]
        assert [len(some.as_buffer()) for some in found] == [0, 3, 128 << 20, 0, 2]
        assert found[3].as_py() + found[4].as_py() == b"de"
    assert taken[0] < 64 << 20


@pytest.mark.parametrize("again", [False, True])
def test_values_of_some_rows_are_those_of_the_column(tmp_path, again):
    """Rows from many record batches, of every type, with and without missing values."""
    count, chance = 300, random.Random(1)
    columns = {
        "whole": [chance.choice([None, n]) for n in range(count)],
        "dense": [n * 3 for n in range(count)],
        "truth": [chance.choice([None, True, False]) for _ in range(count)],
        "small": pa.array([n / 7 for n in range(count)], pa.float32()),
        "words": [chance.choice([None, "", "ü" * (n % 5)]) for n in range(count)],
        "boxes": [chance.choice([None, [], [[1.0, None], None, [float(n)]]]) for n in range(count)],
        "tags": [chance.choice([[], ["a", None, "日本"], None]) for _ in range(count)],
    }
    samples = [Given(f"{n}.jpg", b"x", n, None, (), n) for n in range(count)]
    schema = schema_of(samples, values=value_table(columns))
    arrow.write(bare(samples), tmp_path / "x.arrow", schema=schema, options=arrow.Options(rows_per_batch=7))
    if again:
        rewrite(tmp_path / "x.arrow")
    reader = formats.open(tmp_path / "x.arrow")
    rows = [chance.randrange(-count, count) for _ in range(100)]
    for some in (rows, [], [0]):
        whole = reader.table().take(pa.array([row % count for row in some], pa.int64()))
        assert reader.table(None, some).to_pylist() == whole.to_pylist()
    with pytest.raises(UsageError, match="no field 'mask' of values"):
        reader.table(["mask"])


@pytest.mark.parametrize("count", [40, 20_000])
def test_opening_takes_few_requests_however_many_samples_there_are(out, count, monkeypatch):
    samples = [Given(f"a long folder/{n:09}.jpg", b"%d" % n, n) for n in range(count)]
    pack(out, samples, rows_per_batch=1)
    asked = []
    for name in ("fetch", "read_into"):
        real = getattr(ByteFile, name)
        monkeypatch.setattr(ByteFile, name, lambda *args, real=real: asked.append(args[1:]) or real(*args))
    with arrow.open(out, access="pread") as reader:
        assert len(reader) == count and len(asked) <= 4
        assert reader.read(7) == b"7" and len(asked) <= 7
        assert len(reader.read_many([3, 30, 17])) == 3 and len(asked) <= 10  # one for each sample
        assert reader.target(7) == 7 and len(asked) <= 12


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_a_file_without_its_table_is_looked_up_batch_by_batch(out, access):
    pack(out, rows_per_batch=4)
    with arrow.open(out, access=access) as reader:
        expected = sets.facts(reader), reader.fields, reader.classes
    rewrite(out)
    with arrow.open(out, access=access) as reader:
        assert (sets.facts(reader), reader.fields, reader.classes) == expected
        assert reader.info()["batches"] == 10
