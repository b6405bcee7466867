import hashlib
import json
import os
import random

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from smallfiles import digests
from smallfiles.digests import BlockHasher, ContentDigest, digest_file, set_digest
from smallfiles.errors import DamagedFileError, FormatError, UsageError

KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=20, unique=True)
LABELS = st.integers(-(2**63), 2**63 - 1)
CAPTIONS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=4)
BLOCK = 64  # small blocks in tests: every border is reached with few bytes


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(digests, "BLOCK_BYTES", BLOCK)


def defined(rows):
    """The definition in the docstring of `set_digest`, word for word."""
    text = b""
    for key, target in sorted(rows, key=lambda row: row[0].encode()):
        told = (
            str(target)
            if isinstance(target, int)
            else json.dumps(target, ensure_ascii=False, separators=(",", ":"))
        )
        text += key.encode() + b"\0" + told.encode() + b"\n"
    return "sha256:" + hashlib.sha256(text).hexdigest()


def of_rows(rows, kind):
    name = "captions" if pa.types.is_list(kind) else "label"
    keys = pa.array([key for key, _ in rows], pa.string())
    return set_digest(keys, {name: pa.array([target for _, target in rows], kind)})


@given(st.data(), KEYS, st.booleans(), st.integers(0, 9))
def test_the_set_digest_is_as_defined_whatever_the_order(data, keys, captions, seed):
    kind, targets = (pa.list_(pa.string()), CAPTIONS) if captions else (pa.int64(), LABELS)
    rows = [(key, data.draw(targets)) for key in keys]
    mixed = random.Random(seed).sample(rows, len(rows))
    assert of_rows(rows, kind) == of_rows(mixed, kind) == defined(rows)


def test_integer_widths_and_slices_of_arrays_give_the_same_set_digest(monkeypatch):
    monkeypatch.setattr(digests, "_ROWS_AT_ONCE", 3)
    keys = [f"k{number % 7}/{number}" for number in range(20)]
    labels = list(range(20))
    expected = defined(list(zip(keys, labels, strict=True)))
    for kind in (pa.uint8(), pa.int16(), pa.int32(), pa.int64()):
        padded_keys, padded = pa.array(["x", *keys, "y"]), pa.array([0, *labels, 0], kind)
        assert set_digest(padded_keys.slice(1, 20), {"label": padded.slice(1, 20)}) == expected


def pieces(data, seed):
    """`data` cut anywhere, empty pieces included."""
    rng = random.Random(seed)
    borders = sorted(rng.choices(range(len(data) + 1), k=rng.randrange(6)))
    return [data[start:stop] for start, stop in zip([0, *borders], [*borders, len(data)], strict=True)]


@given(st.integers(0, 5 * BLOCK), st.integers(0, 2 * BLOCK), st.integers(0, 10**6))
def test_a_digest_taken_while_writing_equals_that_of_the_file(tmp_path_factory, size, start, seed):
    path = tmp_path_factory.getbasetemp() / "written"
    header, body = os.urandom(start), os.urandom(size)
    hasher = BlockHasher(start)
    for number, piece in enumerate(pieces(body, seed)):
        hasher.update(
            [piece, bytearray(piece), memoryview(piece), np.frombuffer(piece, np.uint8).data][number % 4]
        )
    path.write_bytes(header + body)
    assert hasher.finish(path) == digest_file(path)


@pytest.mark.parametrize("start", [0, BLOCK])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_of_a_file_that_was_written_in_order_only_what_came_before_is_read_back(
    tmp_path, monkeypatch, size, start
):
    path, body = tmp_path / "file", os.urandom(size)
    path.write_bytes(bytes(start) + body)
    expected, hasher, honest, asked = digest_file(path), BlockHasher(start), digests.read_block, []
    hasher.update(body)
    monkeypatch.setattr(digests, "read_block", lambda *words: asked.append(words[1]) or honest(*words))
    assert hasher.finish(path) == expected and asked == [*range(start // BLOCK)]


@given(st.binary(min_size=1, max_size=4 * BLOCK), st.integers(0, 4 * BLOCK), st.integers(0, 5 * BLOCK))
@example(bytes(3 * BLOCK), 2 * BLOCK + 5, 0)  # cut within a block that was hashed as a whole
@example(bytes(3 * BLOCK), 3 * BLOCK, BLOCK + 1)  # written again up to the first byte of a block
def test_a_file_that_was_cut_went_on_or_was_rewritten_is_digested_as_it_is(
    tmp_path_factory, body, size, rewritten
):
    path = tmp_path_factory.getbasetemp() / "cut"
    count = min(rewritten, len(body))
    for kept, again in (
        (body[:size].ljust(size, b"\0"), 0),
        (bytes(byte ^ 0xFF for byte in body[:count]) + body[count:], count),
    ):
        hasher = BlockHasher()
        hasher.update(body)
        path.write_bytes(kept)
        assert hasher.finish(path, again) == digest_file(path)


def test_every_single_flipped_byte_is_found_in_its_block_and_several_are_told_in_order(tmp_path, monkeypatch):
    path = tmp_path / "file"
    body = os.urandom(3 * BLOCK + 5)
    path.write_bytes(body)
    digest, pread = digest_file(path), os.pread
    with path.open("r+b", buffering=0) as file:
        for at in range(len(body)):
            os.pwrite(file.fileno(), bytes([body[at] ^ (1 << at % 8)]), at)
            assert digest.damaged_blocks(path) == [at // BLOCK]
            os.pwrite(file.fileno(), body[at : at + 1], at)
    for short in (lambda length, at: min(length, 7), lambda length, at: length if at % BLOCK else 1):
        monkeypatch.setattr(
            os, "pread", lambda descriptor, length, at, short=short: pread(descriptor, short(length, at), at)
        )
        assert digest.damaged_blocks(path) == []  # short reads of a network file system are no damage
    path.write_bytes(bytes(BLOCK) + body[BLOCK : 2 * BLOCK] + bytes(BLOCK + 5))
    assert digest.damaged_blocks(path) == [0, 2, 3]


@pytest.mark.parametrize("change", [-1, 1, -2 * BLOCK, BLOCK])
def test_a_shorter_or_longer_file_is_refused_with_both_sizes(tmp_path, change):
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * BLOCK))
    digest, size = digest_file(path), 3 * BLOCK + change
    path.write_bytes(bytes(size))
    with pytest.raises(DamagedFileError, match=rf"{size} bytes; expected the {3 * BLOCK} bytes"):
        digest.damaged_blocks(path)


def test_a_missing_file_is_told_with_its_path(tmp_path):
    gone = tmp_path / "gone"
    for look in (ContentDigest(0, ()).damaged_blocks, digest_file):
        with pytest.raises(DamagedFileError, match="gone cannot be read"):
            look(gone)


@pytest.mark.parametrize("size", [0, 1, BLOCK, 2 * BLOCK + 1])
def test_a_saved_content_digest_comes_back(tmp_path, size):
    path = tmp_path / "x.arrow"
    path.write_bytes(bytes(size))
    digest = digest_file(path)
    digest.save(digests.sidecar(path))
    assert digests.sidecar(path).name == "x.arrow.digest.json"
    assert ContentDigest.load(digests.sidecar(path)) == digest
    assert len(digest.blocks) == -(-size // BLOCK)


GOOD = {"algorithm": "xxh3_128", "block_bytes": 64, "file_bytes": 65, "blocks": ["00", "11"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        "\ufeff{}",
        json.dumps({**GOOD, "file_bytes": -1, "blocks": []}),
        json.dumps({**GOOD, "file_bytes": 1.5}),
        json.dumps({**GOOD, "file_bytes": True, "blocks": ["00"]}),
        json.dumps({**GOOD, "file_bytes": 10**30, "block_bytes": 10**30}),
        json.dumps({**GOOD, "block_bytes": 0}),
        json.dumps({**GOOD, "block_bytes": (1 << 26) + 1, "blocks": ["00"]}),
        json.dumps({**GOOD, "blocks": ["00"]}),
        json.dumps({**GOOD, "blocks": None}),
        json.dumps({**GOOD, "algorithm": "md5"}),
        b"\xff\xfe\x00",
        None,
    ],
)
def test_a_malformed_or_missing_content_digest_is_refused_by_name(tmp_path, text):
    path = tmp_path / "x.digest.json"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    readable = "" if isinstance(text, str) else " cannot be read as a content digest"
    with pytest.raises(FormatError, match=rf"x\.digest\.json{readable}"):
        ContentDigest.load(path)


@pytest.mark.parametrize("size", [1, 64, 1 << 26])
def test_a_content_digest_of_the_smallest_and_largest_block_is_read(size):
    fields = {"block_bytes": size, "blocks": ["00"] * -(-65 // size)}
    assert ContentDigest.of_record(GOOD | fields, "x").record() == GOOD | fields


def test_further_values_follow_the_target_in_the_order_of_their_names(monkeypatch):
    monkeypatch.setattr(digests, "_ROWS_AT_ONCE", 2)
    values = {"meta": ["{}"] * 3, "who": ["x", "y", "z"], "label": [5, 6, 7], "age": [1, 2, 3]}
    table = pa.table(values)
    rows = [("a", 6, "y", 2), ("b", 7, "z", 3), ("c", 5, "x", 1)]
    lines = "".join(f'{key}\0{label}\0age={age}\0who="{who}"\n' for key, label, who, age in rows)
    assert set_digest(pa.array([*"cab"]), table) == "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize("rows", [2, 3, 4096])
def test_keys_and_names_are_hashed_as_defined(monkeypatch, rows):
    monkeypatch.setattr(digests, "_ROWS_AT_ONCE", rows)
    keys = pa.array(["a", "é", "", "x" * 300, "b"])
    joined = b"".join(key.encode() + b"\0" for key in keys.to_pylist())
    assert digests.key_digest(keys) == "xxh3_128:" + xxhash.xxh3_128_hexdigest(joined)
    assert digests.name_hashes(keys).tolist() == [
        xxhash.xxh3_64_intdigest(key.encode()) for key in keys.to_pylist()
    ]


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([], range(0)),
        (["b"], range(1)),
        (["a", "b", "ü"], range(3)),
        (["b", "a"], [1, 0]),
        (["a", "c", "b"], [0, 2, 1]),
    ],
)
def test_nothing_is_sorted_if_the_keys_are_in_order(keys, order):
    found = digests.byte_order(pa.array(keys, pa.string()))
    assert found == order if isinstance(order, range) else found.to_pylist() == order


def test_small_files_beside_a_packed_one_belong_to_it(tmp_path):
    packed = tmp_path / "x.arrow"
    added = ["x.arrow.age.fields.arrow", "x.arrow.who-2.fields.arrow"]
    others = ["y.arrow.age.fields.arrow", "x.arrow.fields.arrow", "x.arrow.a.b.fields.arrow.idx"]
    for name in (*added[::-1], *others):
        (tmp_path / name).touch()
    assert digests.added_fields(packed) == [tmp_path / name for name in added]
    assert digests.added_fields(packed, ["x.arrow", added[1]]) == [tmp_path / added[1]]
    assert digests.added_fields(tmp_path / "gone/x.arrow") == []
    assert [digests.adds_to(name) for name in ("x.arrow", *added)] == [None, "x.arrow", "x.arrow"]
    beside = [
        tmp_path / f"x.arrow{suffix}" for suffix in (*digests.SIDECARS, ".age.fields.arrow.digest.json")
    ]
    for path in (packed, *beside):
        digests.refuse_sidecar(path)  # there is no x.arrow
    packed.touch()
    digests.refuse_sidecar(packed)
    for path in beside:
        with pytest.raises(UsageError, match=r"belongs to x\.arrow; expected the packed file"):
            digests.refuse_sidecar(path)


@pytest.mark.timeout(20)
def test_a_pipe_of_the_name_of_a_digest_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.digest.json")
    with pytest.raises(FormatError, match="no plain file"):
        ContentDigest.load(tmp_path / "x.digest.json")


def test_the_kept_digest_of_a_known_file_does_not_change(tmp_path, monkeypatch):
    """Files that were packed with an earlier version must stay verifiable."""
    monkeypatch.undo()
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 20_000)
    assert digests.BLOCK_BYTES == 4 << 20
    assert digest_file(path).blocks == KNOWN_BLOCKS
    assert of_rows([("b/2.jpg", 1), ("a/1.jpg", 0)], pa.int32()) == KNOWN_SET


KNOWN_BLOCKS = ("83426414488f2c18fc8ac74b334706be", "39ac3d75c934c2676ad72a107a3cee03")
KNOWN_SET = "sha256:69a83c132b69ecb507dc529440804b74407529689bad1367ecd59254c92339dd"
