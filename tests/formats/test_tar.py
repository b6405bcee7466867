"""Tar shards: names, cuts, indexes, and every way in which a tar can be damaged or hostile."""

import gzip
import io
import json
import os
import random
import resource
import shutil
import tarfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import contract_sets as sets
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from given import Given, bare, of_reader, schema_of
from hypothesis import given, settings
from hypothesis import strategies as st

from smallfiles import cli, formats, sources
from smallfiles.errors import DamagedFileError, FormatError, ResourceError, SourceError, UsageError
from smallfiles.folders import key_problem
from smallfiles.formats import tar
from smallfiles.formats.tar import archive, headers, index
from smallfiles.manifest import Manifest

ODD = [
    Given("train/n01440764/n01440764_1.JPEG", b"\xff\xd8" + bytes(range(256)) * 900, 3),
    Given("a.b/cat.v2.jpg", b"x" * 700, -1, {"box": [1, None, 2.5], "ß": "é\n"}),
    Given("a.b/cat.v3.jpg", b"x" * 512, 2**63 - 1),
    Given(".hidden", b"", -(2**63)),
    Given("__meta__/x.png", b"1", 1, {}),
    Given("carriage\rreturn/x.jpg", b"22", 0),
    Given("100%/50%.jpg", b"333", 0),
    Given("日本語/" + "ü" * 80 + ".webp", b"4444", 5),
    Given("long/" + "n" * 240 + ".jpg", b"55555", 6),
    Given("no suffix at all", b"666666", 7),
    Given("label.cls", b"7777777", 8),
]
CAPTIONS = [
    Given("1.jpg", b"one", ["A dog.", 'Two "quoted", dogs | 犬\nsecond line']),
    Given("2.jpg", b"two", []),
    Given("3.jpg", b"three", [""], {"n": 1}),
]
VARIANTS = [
    ("x.tar", tar.Options()),
    ("x.tars", tar.Options(max_count=4)),
    ("x.tars", tar.Options(max_bytes=5000)),
]


def schema(samples, **changes):
    return schema_of(
        samples, **{"metas": True, "classes": ("a", "b"), "shared_stems": frozenset(), **changes}
    )


def write(out, samples, options=None, **changes):
    return tar.write(bare(samples), out, schema=schema(samples, **changes), options=options)


def drop_indexes(path):
    for file in [path.parent, path][path.is_dir()].glob(f"*{index.SUFFIX}"):
        file.unlink()


keys = (
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=12),
        min_size=1,
        max_size=3,
    )
    .map("/".join)
    .filter(lambda key: key_problem(key) is None)
)
tricky = st.lists(
    st.sampled_from(["a", "b", ".", "%", "/", "_", "__", "\n", "jpg", "cls", "2E", "é"]), min_size=1
)
any_key = st.one_of(keys, tricky.map("".join).filter(lambda key: key_problem(key) is None))


@given(any_key)
def test_every_key_comes_back_from_its_member_name(key):
    from webdataset.tariterators import base_plus_ext  # not above: spawned children need not load torch

    for shared in (set(), {headers.split_key(key)[0]}):
        stem, suffix = headers.split_key(key, shared)
        assert headers.key_of(f"{stem}.{suffix}") == key
        assert base_plus_ext(f"{stem}.{suffix}") == (stem, suffix)
        assert base_plus_ext(f"{stem}.cls") == (stem, "cls")
        assert suffix.lower() not in headers.RESERVED


@given(st.sets(any_key, min_size=2, max_size=6))
def test_different_keys_never_share_a_stem(some):
    shared = Manifest.from_columns(sorted(some), [0] * len(some)).shared_stems()
    assert len({headers.split_key(key, shared)[0] for key in some}) == len(some)


def test_only_keys_that_others_would_join_are_escaped(tmp_path):
    keys = ["cat/1.jpg", "cat/2.jpg", "cat/2.png", "cat/3.v1.jpg", "cat/4.jpg"]
    samples = [Given(key, key.encode(), 0) for key in keys]
    manifest = Manifest.from_columns(keys, [0] * 5, sizes=[9] * 5)
    tar.write(bare(samples), tmp_path / "x.tar", schema=manifest.schema())
    with tarfile.open(tmp_path / "x.tar") as archive:
        stored = [name for name in archive.getnames() if not name.endswith(".cls")]
    assert stored == ["cat/1.jpg", "cat/2%2Ejpg.jpg", "cat/2%2Epng.png", "cat/3%2Ev1%2Ejpg.jpg", "cat/4.jpg"]
    drop_indexes(tmp_path / "x.tar")
    assert read_all(tmp_path / "x.tar") == sets.facts(samples)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("samples", [ODD, CAPTIONS, []], ids=["labels", "captions", "empty"])
def test_everything_comes_back_without_the_index_which_reading_does_not_write(
    tmp_path, name, options, samples
):
    packed = write(tmp_path / name, samples, options)
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == set(packed.files)
    assert tar.open(tmp_path / name).info()["indexed"]
    drop_indexes(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    reader = tar.open(tmp_path / name)
    with warnings.catch_warnings(action="error"):  # each sample has its member, unlabelled ones too
        assert not reader.info()["indexed"]
    assert sets.facts(reader) == sets.facts(samples)
    assert [reader.size(i) for i in range(len(reader))] == [len(s.data) for s in samples]
    assert reader.keys().to_pylist() == [s.key for s in samples]
    if samples:
        assert reader.classes == ("a", "b") and {*schema(samples).values.column_names} - {"meta"} <= {
            *reader.fields
        }
    assert sorted(tmp_path.rglob("*")) == before


def test_captions_one_a_line_come_back_and_line_feeds_are_refused(tmp_path):
    samples = [Given("1.jpg", b"1", ["a", "", "b "]), Given("2.jpg", b"2", []), Given("3.jpg", b"", [""])]
    write(tmp_path / "x.tar", samples, member_suffixes=("txt",))
    drop_indexes(tmp_path / "x.tar")
    assert sets.facts(tar.open(tmp_path / "x.tar")) == sets.facts(samples)
    with pytest.raises(FormatError, match=r"y\.tar has a line feed: 'Two"):
        write(tmp_path / "y.tar", CAPTIONS, member_suffixes=("txt",))


def test_captions_and_an_object_have_a_member_each_and_the_object_stays_as_it_was_written(tmp_path):
    samples = [*CAPTIONS, Given("4.jpg", b"four", ["x"], {"ß": "é", "a": [1.0]})]
    write(tmp_path / "x.tar", samples, member_suffixes=("json",))
    drop_indexes(tmp_path / "x.tar")
    assert sets.facts(tar.open(tmp_path / "x.tar")) == sets.facts(samples)
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert archive.extractfile("4.meta").read().decode() == '{"ß":"é","a":[1.0]}'
        assert "dogs | 犬" in archive.extractfile("1.json").read().decode()


def test_a_key_that_comes_twice_is_refused(tmp_path):
    with pytest.raises(FormatError, match="the same key"):
        write(tmp_path / "x.tar", [Given(key, b"1", 0) for key in ("a.jpg", "b.jpg", "a.jpg")])


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3000), max_size=30), st.integers(1, 20_000), st.integers(1, 6))
def test_shards_are_cut_where_the_plan_says(tmp_path_factory, sizes, max_bytes, max_count):
    out = tmp_path_factory.mktemp("cut") / "x.tars"
    options = tar.Options(max_bytes=max_bytes, max_count=max_count)
    samples = [Given(f"{i}.jpg", bytes(size), i) for i, size in enumerate(sizes)]
    packed = write(out, samples, options)
    borders = tar.plan_shards(np.array(sizes, np.int64), options)
    shards = [file for file in packed.files if file.name.endswith(".tar")]
    assert [file.name for file in shards] == [tar.shard_name(n) for n in range(len(borders))]
    assert [len(tar.open(file)) for file in shards] == [stop - start for start, stop in borders]
    for number, (start, stop) in enumerate(borders):  # a job that writes one shard writes the same bytes
        alone, own = out.parent / shards[number].name, [*bare(samples)][start:stop]
        tar.write_shard(own, alone, schema=schema(samples), options=options)
        assert alone.read_bytes() == shards[number].read_bytes()
        assert index.index_path(alone).read_bytes() == index.index_path(shards[number]).read_bytes()
    shutil.rmtree(out.parent)


@pytest.mark.parametrize(
    ("sizes", "options", "borders"),
    [
        ([], tar.Options(), [(0, 0)]),
        (
            [512] * 4,
            tar.Options(max_bytes=2 * (512 + 2048)),
            [(0, 2), (2, 4)],
        ),  # two headers, a label, one spare
        ([512] * 3, tar.Options(max_bytes=2 * (512 + 2048) - 1), [(0, 1), (1, 2), (2, 3)]),
        ([513, 0], tar.Options(max_bytes=1024 + 2 * 2048 - 1), [(0, 1), (1, 2)]),
        ([513, 0], tar.Options(max_bytes=1024 + 2 * 2048), [(0, 2)]),
        ([1] * 5, tar.Options(max_count=2), [(0, 2), (2, 4), (4, 5)]),
        ([1] * 100_001, tar.Options(), [(0, 100_000), (100_000, 100_001)]),
        ([(1 << 29) - 2048] * 3, tar.Options(), [(0, 2), (2, 3)]),  # 1 GiB
        ([(1 << 29) - 2048, (1 << 29) - 2047], tar.Options(), [(0, 1), (1, 2)]),
    ],
)
def test_a_shard_holds_what_fits_with_its_headers(sizes, options, borders):
    assert tar.plan_shards(np.array(sizes, np.int64), options) == borders


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("a/b.jpg", 0),
        ("x" * 100, 123_456),
        ("x" * 101, 1),
        ("ü.jpg", 7),
        ("big", 8 << 30),
        ("a", (8 << 30) - 1),
    ],
)
def test_headers_are_those_of_tarfile_but_for_time_and_owner(name, size):
    whole, is_plain = headers.member(name, size), name[0] != "ü" and len(name) <= 100 and size < 8 << 30
    assert len(whole) == (512 if is_plain else 1536)
    info = tarfile.TarInfo.frombuf(whole[-512:], "utf-8", "strict")
    assert (info.mtime, info.uid, info.gid, info.mode, info.uname) == (0, 0, 0, 0o644, "")
    with tarfile.open(fileobj=io.BytesIO(whole + bytes(1024))) as archive:
        first = archive.next()
        assert (first.name, first.size) == (name, size)


def test_packing_says_once_which_names_are_escaped(tmp_path, capsys):
    (tmp_path / "set/cat").mkdir(parents=True)
    for name in ("1.jpg", "2.jpg", "2.png"):
        (tmp_path / "set/cat" / name).write_bytes(b"x")
    assert cli.main(["pack", str(tmp_path / "set"), str(tmp_path / "x.tars"), "--check", "none"]) == 0
    said = capsys.readouterr().err
    assert said.count("note: several files have one name up to its first dot (cat/2): only these") == 1


# Damage


@pytest.fixture
def small(tmp_path):
    write(tmp_path / "x.tar", ODD[:4])
    return tmp_path / "x.tar"


def read_all(path, access="mmap"):
    return sets.facts(tar.open(path, access))


def test_a_tar_without_index_cut_at_any_block_is_refused(small):
    whole = small.read_bytes()
    drop_indexes(small)
    for size in range(0, len(whole), 512):
        small.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError, match=r"x\.tar"):
            read_all(small)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_compressed_tar_cut_anywhere_is_refused_as_a_source(tmp_path, compress):
    write(tmp_path / "x.tar", ODD[1:4])
    whole = compress((tmp_path / "x.tar").read_bytes())
    for size in range(0, len(whole), 7):
        (tmp_path / "y.tar.z").write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"y\.tar"):
            archive.index(tmp_path / "y.tar.z")


def test_an_index_of_another_tar_is_refused(tmp_path, small):
    others = [s._replace(data=bytes(len(s.data))) for s in ODD[:4]]
    write(tmp_path / "y.tar", others, name="other")
    other = (tmp_path / "y.tar").read_bytes()
    small.write_bytes(other[: small.stat().st_size].ljust(small.stat().st_size, b"\0"))
    with pytest.raises(DamagedFileError, match="begins or ends differently"):
        read_all(small)
    small.write_bytes(other + bytes(10_240))
    with pytest.raises(DamagedFileError, match="its index was made for"):
        read_all(small)


@pytest.mark.parametrize(
    ("start", "hurt", "said"),
    [(1027, b"\1", "checksum is wrong at byte 1,024"), (1024, bytes(1024), "data after the end")],
)
def test_a_damaged_header_is_named_and_zeros_in_the_middle_do_not_end_a_tar(small, start, hurt, said):
    drop_indexes(small)
    with small.open("r+b") as file:
        file.seek(start)
        file.write(hurt)
    with pytest.raises(DamagedFileError, match=said):
        read_all(small)


def test_a_missing_shard_a_folder_without_any_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(FormatError, match="holds no tar files"):
        len(tar.open(tmp_path))
    with pytest.raises(FormatError, match="cannot be read"):
        len(tar.open(tmp_path / "none.tar"))
    write(tmp_path / "x.tars", ODD, tar.Options(max_count=2))
    (tmp_path / "x.tars" / "shard-000002.tar").unlink()
    with pytest.raises(DamagedFileError, match="lacks the shards 2;"):
        len(tar.open(tmp_path / "x.tars"))


@pytest.mark.parametrize(
    ("labels", "indexed"), [(ODD, True), (ODD, False), ([], False)], ids=["indexed", "bare", "record alone"]
)
def test_shards_of_labels_and_of_captions_do_not_mix(tmp_path, labels, indexed):
    write(tmp_path / "labels.tar", labels)
    write(tmp_path / "captions.tar", CAPTIONS)
    if not indexed:
        drop_indexes(tmp_path / "labels.tar")
    with pytest.raises(FormatError, match=r"different fields: .*captions|with captions"):
        len(tar.open(tmp_path))


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [b"".join(parts)[:70_001]], at))
    write(tmp_path / "x.tar", ODD)
    assert read_all(tmp_path / "x.tar") == sets.facts(ODD)


def test_an_error_of_the_source_leaves_no_descriptor_open(tmp_path):
    def failing():
        yield ODD[0]
        raise KeyError("source")

    before = set(os.listdir("/proc/self/fd"))
    for name in ("x.tar", "x.tars"):
        with pytest.raises(KeyError):
            tar.write(bare(failing()), tmp_path / name, schema=schema(ODD))
    assert set(os.listdir("/proc/self/fd")) == before


# Hostile archives: refused with a sentence, at once, without much memory


def ustar(name=b"a.jpg", size=b"00000000000\0", kind=b"0", data=b"", **fields):
    block = bytearray(headers.member("x", 0))
    block[:100] = name.ljust(100, b"\0")
    block[124:136] = size
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(-len(data) % 512)


HOSTILE = {
    "size beyond the end": ustar(size=b"77777777777\0"),
    "negative base-256 size": ustar(size=b"\xff" * 12),
    "absurd base-256 size": ustar(size=b"\x80" + b"\xff" * 11),
    "size that is no number": ustar(size=b"-0000000001\0"),
    "size of words": ustar(size=b"12_000000_1\0"),
    "huge pax header": ustar(kind=b"x", size=b"77777777777\0"),
    "pax length zero": ustar(kind=b"x", size=b"%011o\0" % 9, data=b"0 path=a\n"),
    "pax length lies": ustar(kind=b"x", size=b"%011o\0" % 9, data=b"99 path=a"),
    "pax without end": ustar(kind=b"x", size=b"%011o\0" % 9, data=b"9999999999999999999999"[:9]),
    "pax size negative": ustar(kind=b"x", size=b"%011o\0" % 11, data=b"11 size=-1\n") + ustar(),
    "pax size huge": ustar(kind=b"x", size=b"%011o\0" % 28, data=b"28 size=9999999999999999999\n") + ustar(),
    "long name beyond the end": ustar(kind=b"L", size=b"00000777777\0"),
    "sparse file": ustar(kind=b"x", size=b"%011o\0" % 22, data=b"22 GNU.sparse.major=1\n") + ustar(),
    "absolute name": ustar(name=b"/etc/passwd.jpg"),
    "name that climbs": ustar(name=b"../../x.jpg"),
    "json that is none": ustar() + ustar(name=b"a.json", size=b"00000000001\0", data=b"{"),
    "json too deep": ustar() + ustar(name=b"a.json", size=b"%011o\0" % 100_000, data=b"[" * 100_000),
    "meta that is no object": ustar() + ustar(name=b"a.meta", size=b"00000000001\0", data=b"1"),
    "text that is no UTF-8": ustar() + ustar(name=b"a.txt", size=b"00000000001\0", data=b"\xff"),
    "not a tar at all": b"\xff\xd8\xff\xe0" * 1000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_tar_is_refused_with_a_sentence(tmp_path, what):
    path = tmp_path / "x.tar"
    path.write_bytes(HOSTILE[what] + bytes(1024))
    for access in ("mmap", "pread"):
        with pytest.raises(FormatError, match=r"x\.tar"):
            read_all(path, access)


@pytest.mark.parametrize("kind", "123456")
def test_a_member_without_data_takes_no_file_away_whatever_size_its_header_states(tmp_path, kind):
    odd = ustar(name=b"x", kind=kind.encode(), size=b"00000001000\0")
    (tmp_path / "x.tar").write_bytes(odd + ustar(size=b"00000000003\0", data=b"abc") + bytes(1024))
    assert archive.index(tmp_path / "x.tar").names.to_pylist() == ["a.jpg"]


def test_a_hard_link_has_the_bytes_that_its_target_had_before_it_was_replaced(tmp_path):
    one, two = (ustar(size=b"00000000003\0", data=data) for data in (b"one", b"two"))
    links = []
    for name, target in ((b"b.jpg", b"a.jpg"), (b"c.jpg", b"gone.")):
        links.append(bytearray(ustar(name=name, kind=b"1")))
        links[-1][157:162], links[-1][148:156] = target, b" " * 8
        links[-1][148:156] = b"%06o\0 " % sum(links[-1])
    (tmp_path / "x.tar").write_bytes(one + b"".join(links) + two + bytes(1024))
    assert {s.key: bytes(s.data) for s in of_reader(tar.open(tmp_path / "x.tar"))} == {
        "a.jpg": b"two",
        "b.jpg": b"one",
    }


@pytest.mark.parametrize("more", [0, 200, 512, 1024])
def test_a_cut_tar_names_the_byte_up_to_which_it_is_whole(tmp_path, more):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("a.jpg", "b.jpg"):
            (tmp_path / name).write_bytes(bytes(700))
            archive.add(tmp_path / name, name)
    whole = 512 + 1024  # a header, and the blocks of 700 bytes
    (tmp_path / "x.tar").write_bytes((tmp_path / "x.tar").read_bytes()[: whole + more])
    with pytest.raises(FormatError, match=f"is cut off: whole up to byte {whole:,}, without an end mark"):
        len(tar.open(tmp_path / "x.tar"))


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tar.zst"])
def test_a_compressed_tar_is_read_in_stored_order_and_a_step_back_is_refused(tmp_path, name):
    files = {f"{i}.jpg": os.urandom(200_000) for i in range(4)}
    write(tmp_path / "x.tar", [Given(key, data, 0) for key, data in files.items()])
    raw = (tmp_path / "x.tar").read_bytes()
    compress = gzip.compress if name.endswith("gz") else zstandard.compress
    frames = [compress(raw[start : start + 1000]) for start in range(0, len(raw), 1000)]  # files span several
    (tmp_path / name).write_bytes(b"".join(frames))
    store, buffer = sources.load(tmp_path / name).store, memoryview(bytearray(200_000))
    for order in ("0123", "0123", "0223"):  # passes over the set, some with gaps
        for key in order:
            assert store.read_into(f"{key}.jpg", buffer) == len(buffer)
            assert buffer == files[f"{key}.jpg"]
    tool = "gzip" if name.endswith("gz") else "zstd"
    with pytest.raises(SourceError, match=rf"compressed; .*stored order.*\({tool} -dk {name}\) or pack it"):
        store.read_into("1.jpg", buffer)


def compressed_by_version_0_1(path, folder):
    """A shard of `folder` as that version compressed it, from a plain one with its index."""
    folder.mkdir()
    batch = pa.ipc.open_file(index.index_path(path)).read_all()
    facts = json.loads(batch.schema.metadata[b"smallfiles.tar"])
    shard = folder / "shard-000000.tar.gz"
    shard.write_bytes(gzip.compress(path.read_bytes()))
    facts |= {"file_bytes": (size := shard.stat().st_size), "frames": [[0, 0], [size, path.stat().st_size]]}
    changed = batch.replace_schema_metadata({b"smallfiles.tar": json.dumps(facts)})
    with pa.ipc.new_file(index.index_path(shard), changed.schema) as writer:
        writer.write(changed)
    return shard


def test_compressed_shards_are_refused_with_the_version_that_reads_them(tmp_path):
    shard = compressed_by_version_0_1(write(tmp_path / "x.tar", ODD).path, tmp_path / "x.tars")
    said = r"compressed.*\(gunzip shard-000000\.tar\.gz\).*smallfiles 0\.1\.0 reads"
    for path in (tmp_path / "x.tars", shard):
        with pytest.raises(FormatError, match=said):
            len(tar.open(path))
    drop_indexes(shard)
    with pytest.raises(FormatError, match=said):
        len(tar.open(shard))
    with pytest.raises(UsageError, match=r"smallfiles 0\.1\.0 reads.*smallfiles pack .*\.tar\.gz"):
        formats.open(shard)


@pytest.mark.parametrize("cure", ["decompress it", "pack it again"])
def test_a_compressed_shard_of_ours_can_be_rescued(tmp_path, cure):
    samples = [Given(f"{n}.jpg", bytes(300 * n), n % 2) for n in range(1, 6)]
    shard = compressed_by_version_0_1(write(tmp_path / "x.tar", samples).path, tmp_path / "x.tars")
    if cure == "decompress it":
        shard.with_suffix("").write_bytes(gzip.decompress(shard.read_bytes()))
        shard.unlink()
        assert read_all(shard.parent) == sets.facts(samples)
        return
    arguments = ["pack", str(shard), str(tmp_path / "y.tars"), "--check", "none"]
    assert cli.main(arguments) == 0
    assert read_all(tmp_path / "y.tars") == sets.facts(samples)


@pytest.mark.parametrize("name", ["y.tar.gz", "y.tar.zst", "y.tgz"])
def test_pack_writes_no_compressed_tar(tmp_path, name, capsys):
    write(tmp_path / "x.tar", ODD[:2])
    for more in ([], ["--format", "tar"]):
        assert cli.main(["pack", str(tmp_path / "x.tar"), str(tmp_path / name), *more]) == 2
        assert "named as a compressed tar" in capsys.readouterr().err
    assert (
        cli.main(["pack", str(tmp_path / "x.tar"), str(tmp_path / "y.tars"), "-O", "compression=gzip"]) == 2
    )
    assert not [*tmp_path.glob("y.*")]


# Readers in processes and threads


@pytest.mark.parametrize("access", ["mmap", "pread"])
def test_threads_share_a_reader_of_many_shards_without_a_descriptor_for_each(tmp_path, access):
    samples = [Given(f"{i}.jpg", os.urandom(3000), i) for i in range(200)]
    write(tmp_path / "x.tars", samples, tar.Options(max_count=1))  # more than are kept open at once
    before = len(os.listdir("/proc/self/fd"))
    reader = tar.open(tmp_path / "x.tars", access)
    assert len(reader) == 200
    assert len(os.listdir("/proc/self/fd")) == before
    order = [*range(200), *random.Random(0).choices(range(200), k=1000)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda i: bytes(reader.read(i)) == samples[i].data, order))
    assert len(os.listdir("/proc/self/fd")) <= before + 128 + 8  # one more that each thread opened
    reader.close()


def test_no_more_shards_stay_open_than_a_process_may_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "_most_open", lambda: 2)
    write(tmp_path / "x.tars", ODD[:5], tar.Options(max_count=1))
    reader, before = tar.open(tmp_path / "x.tars"), len(os.listdir("/proc/self/fd"))
    assert [bytes(reader.read(n)) for n in range(5)] == [sample.data for sample in ODD[:5]]
    assert len(os.listdir("/proc/self/fd")) == before + 2


@pytest.mark.parametrize("size", [2**63 - 1, -1])
def test_sizes_that_a_tar_cannot_have_are_not_summed_up(tmp_path, size):
    write(tmp_path / "x.tar", ODD)
    path = tmp_path / "x.tar"
    found = index.load(path, "mmap")
    index.index_path(path).unlink()
    found.blobs[""] = found.blobs[""]._replace(sizes=np.full(len(found.keys), size))
    index.save(found, path, digest=False)
    with pytest.raises(FormatError, match=r"index\.arrow is damaged: .* an index .sizes beyond"):
        tar.open(path).info()


def test_an_index_whose_keys_are_no_text_is_refused_before_they_are_read(tmp_path):
    path = index.index_path(write(tmp_path / "x.tar", ODD).path)
    path.write_bytes(path.read_bytes().replace(b"no suffix at all", b"no suffix at \xff\xff\xff"))
    with pytest.raises(DamagedFileError, match="cannot be read as an index"):
        len(tar.open(tmp_path / "x.tar"))


def test_a_batch_from_more_shards_than_a_process_may_open_is_read(tmp_path):
    samples = [Given(f"{number:03}.bin", b"%03d" % number, number) for number in range(300)]
    (tmp_path / "many").mkdir()
    for sample in samples:
        write(tmp_path / "many" / f"{sample.key}.tar", [sample])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    reader = tar.open(tmp_path / "many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, limit[1]))
    try:
        whole = reader.read_many(range(299, -1, -1))
        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(lambda start: reader.read_many(range(start, 300, 8)), range(8)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert [bytes(data) for data in reversed(whole)] == [sample.data for sample in samples]
    assert all([bytes(data) for data in parts[n]] == [s.data for s in samples[n::8]] for n in range(8))


def test_too_few_descriptors_are_no_damage(tmp_path):
    write(tmp_path / "x.tar", ODD)
    reader = tar.open(tmp_path / "x.tar")
    limit, free = resource.getrlimit(resource.RLIMIT_NOFILE), os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limit[1]))
    try:
        with pytest.raises(ResourceError, match=r"x\.tar.*Raise the limit \(ulimit -n\)"):
            reader.read(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert bytes(reader.read(0)) == ODD[0].data
