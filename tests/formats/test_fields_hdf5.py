"""Further fields in HDF5 files: what comes back, what others read, and what is refused."""

import random

import contract_sets as sets
import h5py
import numpy as np
import pyarrow as pa
import pytest
from given import Given, bare, schema_of

from smallfiles import formats
from smallfiles.errors import DamagedFileError, FormatError
from smallfiles.fields import as_text, value_table
from smallfiles.formats import hdf5
from smallfiles.samples import BlobField

COUNT = 9
ODD_NAN = np.array([0x7FF8_0000_0000_0123], np.int64).view(np.float64)[0]
COLUMNS = {
    "offsets": [1.5, float("nan"), float("inf"), -0.0, None, 5e-324, ODD_NAN, 7, 8],
    "age": pa.array([None, *range(8)], pa.int64()),
    "age_valid": pa.array([0.1, None, *[3] * 7], pa.float32()),
    "labels in words": ["", None, "Ünïcødé 🐦", 'a\n"b', "x", "y", "ok", "日本", "z"],
    "日本": [True, False, None, True, True, False, False, True, None],
    "boxes": [[[1.0, 2, 3, 4]], [], None, [[], None], [[0.5, None]], [], [], [[9.0]] * 3, [[]]],
    "tags": [["a", None, "é"], [], None, [""], ["b"], [], ["c"] * 5, [None], ["d"]],
    "bits": [[True, None], [], [False], None, [], [], [True] * 9, [], []],
    "nothing": pa.array([None] * COUNT, pa.list_(pa.int64())),
}
BLOBS = {"mask": 40, "wave-1": 90_000, "empty": 0}


def made(count=COUNT, columns=COLUMNS):
    """Samples with three further files each, and their schema."""
    chance = random.Random(1)
    samples = [
        Given(f"{n}.jpg", chance.randbytes(n * 50), n, None, tuple(map(chance.randbytes, sizes)), n)
        for n, sizes in enumerate([[size + n * (size > 0) for size in BLOBS.values()] for n in range(count)])
    ]
    blobs = tuple(BlobField(name, ".png") for name in BLOBS)
    return samples, schema_of(samples, blobs=blobs, values=value_table(columns))


@pytest.fixture
def out(tmp_path):
    samples, schema = made()
    hdf5.write(bare(samples), tmp_path / "set.h5", schema=schema)
    return tmp_path / "set.h5"


@pytest.fixture
def few(tmp_path):
    samples, schema = made(columns={name: COLUMNS[name] for name in ("age", "日本", "boxes", "tags")})
    hdf5.write(bare(samples), tmp_path / "set.h5", schema=schema)
    return tmp_path / "set.h5"


def facts(reader):
    """All that a reader gives of further fields."""
    files = {
        name: [bytes(data) for data in map(reader.blob(name).read, range(len(reader)))] for name in BLOBS
    }
    values = sets.further(reader)
    return files, {name: as_text(values[name].combine_chunks()) for name in values.column_names}


def under_a_null(kind, values):
    """A column whose first value is null, with something in its memory all the same."""
    _, *buffers = pa.array(values, kind).buffers()
    return pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\2"), *buffers])


def test_equal_values_give_equal_bytes_whatever_else_lies_in_their_memory(tmp_path):
    lists = pa.array([[5, 6], [1]])
    odd = {
        "lists": pa.ListArray.from_arrays(lists.offsets, lists.values, mask=pa.array([True, False])),
        "numbers": under_a_null(pa.int64(), [7, 9]),
        "part": pa.array([0, 1, 2, 3])[1:3],
        "texts": under_a_null(pa.string(), ["x", "y"]),
        "words": pa.array(["é", "a", "bc", "d"])[1:3],
    }
    plain = {
        "lists": [None, [1]],
        "numbers": [None, 9],
        "part": [1, 2],
        "texts": [None, "y"],
        "words": ["a", "bc"],
    }
    for name, columns in (("odd", odd), ("plain", plain)):
        samples, schema = made(2, columns)
        hdf5.write(bare(samples), tmp_path / name, schema=schema)
    assert (tmp_path / "odd").read_bytes() == (tmp_path / "plain").read_bytes()


def test_h5py_reads_every_array_by_its_plain_name(out):
    samples, _ = made()
    with h5py.File(out) as file:
        fields = file["train/fields"]
        assert set(fields) == {*COLUMNS, *BLOBS}
        borders = fields["mask/offsets"][:]
        assert fields["mask/data"][borders[4] : borders[5]].tobytes() == samples[4].blobs[0]
        assert fields["wave-1/data"].chunks is None and fields["mask/data"].dtype == np.uint8
        assert fields["age/data"][:].tolist() == [0, *range(8)] and fields["age/valid"][0] == 0
        assert fields["offsets/data"].dtype == np.float64 and fields["age_valid/data"].dtype == np.float32
        assert np.isnan(fields["offsets/data"][1]) and fields["日本/data"][:4].tolist() == [1, 0, 0, 1]
        assert fields["boxes/offsets"][:3].tolist() == [0, 1, 1]
        assert fields["boxes/offsets_2"][:2].tolist() == [0, 4]
        assert fields["boxes/data"][:4].tolist() == [1, 2, 3, 4]
        texts = fields["labels in words"]
        assert texts["data"][texts["offsets"][2] : texts["offsets"][3]].tobytes().decode() == "Ünïcødé 🐦"


def test_a_file_of_a_sample_for_which_no_room_was_planned_is_refused(tmp_path):
    samples, schema = made()
    samples[-1] = Given("more.jpg", b"", 0, None, (b"x" * 1000, *samples[-1].blobs[1:]), 8)
    with pytest.raises(FormatError, match=r"more\.jpg.*room"):
        hdf5.write(bare(samples), tmp_path / "set.h5", schema=schema)


def places_of(out):
    """Where in the file the small arrays of the fields are."""
    found = []
    with h5py.File(out) as file:
        for name, group in file["train/fields"].items():
            for each, array in group.items():
                if array.size and not (name in BLOBS and each == "data"):
                    found += range(array.id.get_offset(), array.id.get_offset() + array.nbytes)
    return found


def test_every_flipped_bit_in_the_arrays_of_fields_is_refused(few):
    out, whole, chance = few, few.read_bytes(), random.Random(2)
    for place in chance.choices(places_of(out), k=200):
        hurt = bytearray(whole)
        hurt[place] ^= 1 << chance.randrange(8)
        out.write_bytes(hurt)
        with pytest.raises(DamagedFileError, match=r"set\.h5 is damaged: its field .* cannot be read"):
            facts(formats.open(out))


def test_flipped_bits_in_what_describes_a_file_give_the_same_fields_or_a_sentence(few):
    """Behind the last sample there are only small things: names, sizes, types, the record."""
    out, expected, whole, chance = few, facts(formats.open(few)), few.read_bytes(), random.Random(3)
    with h5py.File(out) as file:
        bulk = file["train/fields/wave-1/data"]
        start, stop = bulk.id.get_offset(), bulk.id.get_offset() + bulk.size
    for place in chance.choices([*range(start), *range(stop, len(whole))], k=100):
        hurt = bytearray(whole)
        hurt[place] ^= 1 << chance.randrange(8)
        out.write_bytes(hurt)
        try:
            found = facts(formats.open(out))
        except FormatError:
            continue
        assert found[1] == expected[1] and found[0].keys() == expected[0].keys(), place


def mended(out, name, **arrays):
    """Replace arrays of a field and write the checksum that belongs to them; None removes one."""
    with h5py.File(out, "r+") as file:
        group = file[f"train/fields/{name}"]
        kind = formats.open(out).info()["provenance"]["fields"][name]
        for each, values in arrays.items():
            values = values(group[each][:]) if callable(values) else values
            if each in group:
                del group[each]
            if values is not None:
                group[each] = values
        hashed = {each: group[each][:] for each in group if not (name in BLOBS and each == "data")}
        group["checksum"][:] = hdf5.layout.with_checksum(kind, hashed)["checksum"]


NINE = np.arange(COUNT)


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("age", {"data": NINE[:8]}),
        ("age", {"data": NINE * 1.0}),
        ("age", {"data": NINE.astype(">i8")}),
        ("age", {"valid": np.full(COUNT, 2, np.uint8)}),
        ("age", {"valid": np.ones(8, np.uint8)}),
        ("age", {"data": None}),
        ("日本", {"data": np.full(COUNT, 3, np.uint8)}),
        *[
            (name, {"offsets": change})
            for name in ("labels in words", "boxes")
            for change in (
                lambda old: old[::-1],
                lambda old: old[[0, 1, 2, 7, 4, 5, 6, 3, 8, 9]],  # the last stays as it is
                lambda old: old + np.eye(10, dtype=np.uint64)[3] * np.uint64(2**32),  # the same in 32 bits
                lambda old: np.append(old[:9], np.uint64(2**63 + 7)),
            )
        ],
        ("labels in words", {"data": lambda old: old | 0xF8}),
        ("boxes", {"offsets_2": None}),
        ("mask", {"offsets": np.append(NINE, 10**6).astype(np.uint64)}),
        ("mask", {"offsets": np.arange(10, dtype=np.uint64)[::-1]}),
        ("mask", {"offsets": np.array([*NINE, 2**64 - 1], np.uint64)}),
        ("mask", {"offsets": NINE}),
        ("mask", {"offsets": np.arange(9, dtype=np.uint64)}),
    ],
)
def test_arrays_that_make_no_sense_are_refused_even_with_the_right_checksum(out, name, arrays):
    mended(out, name)
    facts(formats.open(out))
    mended(out, name, **arrays)
    with pytest.raises(DamagedFileError, match=r"set\.h5"):
        facts(formats.open(out))


@pytest.mark.parametrize(
    "lost", ["fields", "fields/age", "fields/mask", "fields/mask/data", "fields/age/checksum"]
)
def test_a_file_that_lost_a_field_is_refused(out, lost):
    with h5py.File(out, "r+") as file:
        del file["train"][lost]
    with pytest.raises(DamagedFileError, match=r"set\.h5"):
        facts(formats.open(out))


def test_a_file_that_lost_the_record_of_its_fields_is_refused(out):
    with h5py.File(out, "r+") as file:
        del file.attrs["provenance"]
    with pytest.raises(
        DamagedFileError, match=r"it has the fields age, .* and 7 more, and its record has none"
    ):
        len(formats.open(out))


def test_a_record_that_says_another_suffix_is_refused_when_files_are_read(out):
    with h5py.File(out, "r+") as file:
        file.attrs["provenance"] = np.bytes_(bytes(file.attrs["provenance"]).replace(b".png", b".npy"))
    with pytest.raises(DamagedFileError, match=r"its field mask cannot be read"):
        formats.open(out).blob("mask").read(0)


def test_fields_in_another_file_are_refused(out, tmp_path):
    with h5py.File(out, "r+") as file:
        file["train"].move("fields/age/data", "kept")
        file["train/fields/age/data"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
    with pytest.raises(FormatError, match="any file of this machine"):
        len(formats.open(out))
