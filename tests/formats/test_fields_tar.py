"""Masks, boxes and other further fields in tar shards: ours, those of others, and damaged ones."""

import gzip
import io
import json
import math
import subprocess
import tarfile
import warnings

import contract_sets as sets
import pyarrow as pa
import pytest
import webdataset as wds
from given import Given, bare, of_reader, schema_of

from smallfiles import sources
from smallfiles.errors import DamagedFileError, FormatError, SmallfilesError, SourceError
from smallfiles.fields import as_text, further_files, value_table
from smallfiles.formats import tar
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.tar import index
from smallfiles.manifest import Manifest
from smallfiles.pack import PackConfig, pack
from smallfiles.pack.verifying import verify
from smallfiles.samples import BlobField
from smallfiles.sources.record import FolderStore

KEYS = ("a.jpg", "b.v2.jpg", "日本/c.png", "50%.jpg", "cls.jpg", "e/f.jpg")
BLOBS = (BlobField("mask", ".png"), BlobField("png", ".png"), BlobField("Depth-1", ".npy"))
NAN = math.nan
VALUES = value_table(
    {
        "age": [1.5, NAN, None, -0.0, math.inf, 1e-300],
        "boxes": [[[1.0, 2.0]], [], None, [[NAN], []], [[-math.inf]], [None]],
        "count": [0, None, -(2**63), 2**63 - 1, 5, 6],
        "name": ['a "b"\n', "", None, "日本", "nan", "\\"],
        "offset": pa.array([0.1, None, NAN, 1, 2, 3], pa.float32()),
        "ok": [True, None, False, True, True, False],
        "words": [["nan"], [], None, ["é", None], [""], ["x"]],
    }
)
VARIANTS = {"x.tar": tar.Options(), "x.tars": tar.Options(max_count=2)}


def samples(target="label", *, metas=True):
    """Six samples with three further files each, in another order than their values."""
    for number, row in enumerate((3, 0, 1, 2, 5, 4)):
        label = -1 if number % 2 else number
        yield Given(
            KEYS[number],
            b"\xff\xd8" + bytes(700 * number),
            label if target == "label" else [f"é {n}" for n in range(number % 3)],
            {"n": [number, None]} if metas and number % 3 == 0 else None,
            (b"mask%d" % number, b"", bytes(9000 * (number % 2))),
            row,
        )


def write(out, some=None, options=None, target="label", **changes):
    some = [*samples(target)] if some is None else some
    made = schema_of(some, **{"metas": True, "blobs": BLOBS, "values": VALUES, **changes})
    return tar.write(bare(some), out, schema=made, options=options or tar.Options()).path


def facts(reader):
    """All fields of all samples, the values as texts that no other value has."""
    rows = [
        (s.key, bytes(s.data), s.target, s.meta, [bytes(blob) for blob in s.blobs]) for s in of_reader(reader)
    ]
    table = sets.further(reader)
    values = {name: as_text(table[name].combine_chunks()).to_pylist() for name in table.column_names}
    return rows, values, further_files(reader.fields)


def expected(target):
    some = list(samples(target))
    rows = [(s.key, s.data, s.target, s.meta, list(s.blobs)) for s in some]
    taken = VALUES.take([s.row for s in some])
    values = {name: as_text(taken[name].combine_chunks()).to_pylist() for name in VALUES.column_names}
    return rows, values, {blob.name: blob.suffix for blob in BLOBS}


def drop_indexes(path):
    found = [*path.parent.glob(f"*{index.SUFFIX}"), *path.glob(f"*{index.SUFFIX}")]
    assert found
    for file in found:
        file.unlink()


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(("target", "came"), [("label", ()), ("captions", ()), ("captions", ("json", "txt"))])
@pytest.mark.parametrize("name", VARIANTS)
def test_all_fields_come_back_bit_by_bit_with_and_without_the_index(tmp_path, name, target, came, indexed):
    path = write(tmp_path / name, options=VARIANTS[name], target=target, member_suffixes=came)
    if not indexed:
        drop_indexes(path)
    with warnings.catch_warnings(action="error"):
        reader = tar.open(path)
        assert facts(reader) == expected(target)
    assert reader.info()["indexed"] == indexed
    assert sets.further(reader).schema.equals(VALUES.schema)
    every = [len(data) for s in samples() for data in (s.data, *s.blobs)]
    assert reader.info()["bytes"] == sum(every)


@pytest.mark.parametrize("name", ["x.tar", "x.tars"])
def test_the_files_of_a_sample_are_announced_together_before_any_is_read(tmp_path, monkeypatch, name):
    some = list(samples())
    reader = tar.open(write(tmp_path / name, some, tar.Options(max_count=2)))
    fields, asked = ["", *(blob.name for blob in BLOBS)], []
    monkeypatch.setattr(ByteFile, "prefetch", lambda file, *place: asked.append((file.path, *place)))
    order = (5, 0, 3, 3, -6)
    found = reader.read_fields(order, fields)
    expected = [[some[n].data for n in order], *([some[n].blobs[i] for n in order] for i in range(3))]
    assert [[*map(bytes, each)] for each in found] == expected
    ends = [(reader.span(n), reader.span(n, fields[-1])) for n in (0, 3, 5)]
    assert asked == [(path, start, stop) for (path, start, _), (_, _, stop) in ends]
    assert reader.read_fields([], fields) == [[], [], [], []]


def test_shards_are_cut_by_the_bytes_of_all_files(tmp_path):
    few = [Given(f"{n}.jpg", b"x", 0, None, (bytes(60_000),)) for n in range(4)]
    options = tar.Options(max_bytes=130_000)
    path = write(tmp_path / "x.tars", few, options, blobs=BLOBS[:1], values=None)
    assert tar.open(path).shard_sizes() == (2, 2)


@pytest.mark.parametrize("blobs", [("mask", "Mask"), ("png", "PNG")])
def test_fields_that_differ_only_in_case_are_refused_since_others_read_them_as_one(tmp_path, blobs):
    fields = tuple(BlobField(name, ".png") for name in blobs)
    with pytest.raises(FormatError, match="differ only in case"):
        few = [Given("a.jpg", b"x", blobs=(b"", b""))]
        write(tmp_path / "x.tar", few, blobs=fields, values=None)


# Other programs


def test_webdataset_and_tar_see_members_named_by_their_fields(tmp_path, need_tool):
    path = write(tmp_path / "x.tar")
    found = list(wds.WebDataset(str(path), shardshuffle=False))
    for number, (theirs, ours) in enumerate(zip(found, samples(), strict=True)):
        first = "png" if number == 2 else "jpg"
        other = "png.png" if number == 2 else "png"  # a name that the first file does not have
        own = {name for name in theirs if name[0] != "_"}
        assert own == {
            first,
            "mask.png",
            other,
            "depth-1.npy",
            "json",
            *(["cls"] if ours.target >= 0 else []),
        }
        assert (theirs[first], theirs["mask.png"], theirs["depth-1.npy"]) == (
            ours.data,
            ours.blobs[0],
            ours.blobs[2],
        )
        values = json.loads(theirs["json"], parse_constant=pytest.fail)  # JSON that every program reads
        assert values.get("meta") == ours.meta
        assert {*values} - {"meta"} == {*VALUES.column_names}
    assert json.loads(found[0]["json"])["boxes"] == [["nan"], []]
    done = subprocess.run([need_tool("tar", "tar"), "-tf", path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:5] == ["a.jpg", "a.mask.png", "a.png", "a.Depth-1.npy", "a.cls"]


def put(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data.encode()))
    return path


def numbered(*suffixes, count=3, **odd):
    """Members of so many samples, each holding its own name; `odd` are those of the first alone."""
    every = {f"{n}.{suffix}": f"{n}.{suffix}" for n in range(count) for suffix in suffixes if suffix != "cls"}
    labels = {f"{n}.cls": str(n) for n in range(count) if "cls" in suffixes}
    return every | labels | {f"0.{suffix}": text for suffix, text in odd.items()}


FOREIGN = {  # suffixes of the members of each sample: that of the first file, and the fields
    "a mask": (("cls", "seg.png", "jpg"), "jpg", {"seg": "seg.png"}),
    "a second picture": (("png", "jpg"), "jpg", {"png": "png"}),
    "input before a name in front of it": (("input.jpg", "a.jpg"), "input.jpg", {"a": "a.jpg"}),
    "img before a JPEG": (("img.png", "depth.jpg"), "img.png", {"depth": "depth.jpg"}),
    "a JPEG before others": (("x.jpeg", "y.png", "z.webp"), "x.jpeg", {"y": "y.png", "z": "z.webp"}),
    "arrays, sounds, boxes": (
        ("jpg", "cls", "npy", "wav", "boxes.json", "xml"),
        "jpg",
        {"npy": "npy", "wav": "wav", "boxes": "boxes.json", "xml": "xml"},
    ),
    "two kinds of one name": (("jpg", "m.png", "m.npy"), "jpg", {"m_png": "m.png", "m_npy": "m.npy"}),
    "a name that labels have": (("jpg", "label.png"), "jpg", {"label_png": "label.png"}),
    "two dots": (("jpg", "cls", "left.mask.png"), "jpg", {"left_mask": "left.mask.png"}),
    "sounds": (("cls", "input.wav", "clean.wav"), "input.wav", {"clean": "clean.wav"}),
}


@pytest.mark.parametrize("where", ["in.tar", "in.tars", "in"])
@pytest.mark.parametrize("what", FOREIGN)
def test_further_members_of_others_are_fields_whichever_way_they_are_opened_and_packed(tmp_path, what, where):
    suffixes, first, fields = FOREIGN[what]
    shards = ["in.tar"] if where == "in.tar" else [f"{where}/00000.tar", f"{where}/00001.tar"]
    for number, shard in enumerate(shards):
        members = numbered(*suffixes)
        put(tmp_path / shard, {f"{number}{name}": text for name, text in members.items()})
    source = sources.load(tmp_path / where)
    assert set(source.manifest.blobs) == {*fields}
    assert where == "in.tars" or any("further files of each sample" in note for note in source.notes)
    packed = pack(source, tmp_path / "o.tars", PackConfig(check="none", verify="full")).path
    readers = [tar.open(packed)] if where == "in" else [tar.open(packed), tar.open(tmp_path / where)]
    with warnings.catch_warnings(action="ignore"):
        for reader in readers:
            assert [key.rpartition("/")[2].partition(".")[2] for key in reader.keys().to_pylist()] == [
                first
            ] * len(reader)
            for n in range(len(reader)):
                stem = reader.key(n).rpartition("/")[2].partition(".")[0][1:]
                found = {name: bytes(reader.blob(name).read(n)).decode() for name in fields}
                assert found == {name: f"{stem}.{suffix}" for name, suffix in fields.items()}
                assert reader.target(n) == (int(stem) if "cls" in suffixes else -1)


REFUSED = {  # members, and the sentence
    "a mask for some": (
        numbered("jpg") | {"0.seg.png": "m"},
        r"has seg\.png beside its images|masks are next to their pictures",
    ),
    "arrays alone, which may be labels": (numbered("jpg", "npy"), "has npy.npy beside its images"),
    "which of two pictures": (numbered("left.png", "right.png"), "share one stem"),
    "two pictures in class folders": (
        {f"{name}/{n}.{suffix}": "x" for name in ("cat", "dog") for n in (1, 2) for suffix in ("jpg", "png")},
        "share one stem",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_members_that_may_be_something_else_are_refused(tmp_path, what):
    members, said = REFUSED[what]
    path = put(tmp_path / "x.tar", members)
    for read in (sources.load, lambda path: len(tar.open(path))):
        with pytest.raises(SmallfilesError, match=said):
            read(path)


def test_a_member_that_only_some_have_is_left_aside_with_its_count(tmp_path):
    path = put(tmp_path / "x.tar", numbered("jpg", "cls", **{"seg.png": "m"}))
    source = sources.load(path)
    assert source.manifest.blobs == ()
    said = "left aside, since not all samples have it, or a field cannot have its name: seg.png (1 of 3)"
    assert said in source.notes
    put(tmp_path / "in/0.tar", {"0.jpg": "x", "0.cls": "1", "0.seg.png": "m", "0.npy": "a"})
    put(tmp_path / "in/1.tar", {"1.jpg": "x", "1.cls": "1", "1.npy": "a"})
    put(tmp_path / "in/2.tar", {})  # takes no field away
    with pytest.warns(UserWarning, match=r"since not all shards have it: seg \(\.png\)"):
        assert further_files(tar.open(tmp_path / "in").fields) == {"npy": ".npy"}


def test_a_shard_of_ours_loses_no_field_that_shards_of_others_lack(tmp_path):
    put(tmp_path / "in/0.tar", numbered("jpg", "mask.png"))
    put(tmp_path / "in/1.tar", {"7.jpg": "x"})
    drop_indexes(
        write(
            tmp_path / "in/2.tar", blobs=BLOBS[:1], values=None, some=[Given("8.jpg", b"x", 0, None, (b"m",))]
        )
    )
    with pytest.raises(FormatError, match=r"different fields: label .* and label .*mask \(\.png\)"):
        len(tar.open(tmp_path / "in"))


def test_a_set_without_samples_keeps_its_fields_without_the_index_too(tmp_path):
    path = write(tmp_path / "x.tar", [])
    drop_indexes(path)
    assert sets.further(tar.open(path)).schema.equals(VALUES.schema)
    assert further_files(tar.open(path).fields) == {blob.name: blob.suffix for blob in BLOBS}


def test_further_members_of_a_compressed_tar_of_others_are_left_aside_as_before(tmp_path):
    members = numbered("a.png", "jpg", "cls")  # the mask comes before its image
    path = put(tmp_path / "x.tar", members)
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    source = sources.load(tmp_path / "x.tar.gz")
    assert any("left aside, since the tar is compressed: a.png" in note for note in source.notes)
    packed = pack(source, tmp_path / "o.tar", PackConfig(check="none")).path
    assert [(bytes(s.data), s.target) for s in of_reader(tar.open(packed))] == [
        (b"%d.jpg" % n, n) for n in range(3)
    ]


def test_pictures_in_class_folders_keep_their_masks_and_labels(tmp_path):
    path = put(
        tmp_path / "x.tar",
        {
            f"{name}/{n}.{end}": f"{name}{end}"
            for name in ("cat", "dog")
            for n in (1, 2)
            for end in ("jpg", "seg.png")
        },
    )
    source = sources.load(path)
    assert (source.manifest.classes, source.manifest.targets.to_pylist()) == (("cat", "dog"), [0, 0, 1, 1])
    with pytest.warns(UserWarning, match="further files"):
        assert [bytes(blob) for s in tar.open(path) for blob in s.blobs[1:]] == [b"catseg.png"] * 2 + [
            b"dogseg.png"
        ] * 2


# Packed again


@pytest.mark.parametrize("name", ["x.tar", "x.tars"])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_tar_that_is_packed_again_is_the_same_set(tmp_path, name, indexed):
    folder = tmp_path / "d"
    folder.mkdir()
    for key in ("0", "1", "2"):
        (folder / f"{key}.jpg").write_bytes(b"x" + key.encode())
        (folder / f"{key}-m.png").write_bytes(b"m" + key.encode())
    manifest = Manifest.from_columns(
        [f"{n}.jpg" for n in range(3)],
        [-1, 0, 1],
        blobs={"mask": [f"{n}-m.png" for n in range(3)]},
        values={"age": [0.5, None, 1.0], "boxes": [[], [[1.0]], [[2.0]]]},
    )
    source = sources.Source(manifest, FolderStore(folder), "folder", (), folder)
    config = PackConfig(check="none", verify="full", shuffle=1)
    path = pack(source, tmp_path / name, config).path
    assert verify(path, source).verdict == "intact"
    if not indexed:
        drop_indexes(path)
    again = sources.load(path)
    assert again.manifest.digest == manifest.digest
    assert verify(pack(again, tmp_path / f"again-{name}", config).path, source).verdict == "intact"
    if name == "x.tar":
        assert sources.load(path, kind="tarball").manifest.digest == manifest.digest


# Damage


def without(path, name):
    """Cut a member out, and fill the end of the tar with zeros."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    at = [member.name for member in members].index(name)
    start, stop = members[at].offset, members[at + 1].offset
    whole = path.read_bytes()
    path.write_bytes(whole[:start] + whole[stop:] + bytes(stop - start))


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("a.mask.png", r"the sample a\.jpg has no member \.mask\.png"),
        ("a.jpg", r"the sample a\.mask\.png has no member \.mask\.png"),
        ("a.json", r"the sample a\.jpg has no member \.json"),
    ],
)
def test_a_shard_without_index_that_lacks_a_field_is_refused(tmp_path, member, said):
    path = write(tmp_path / "x.tar")
    drop_indexes(path)
    without(path, member)
    with pytest.raises(DamagedFileError, match=said):
        len(tar.open(path))


def test_a_shard_without_index_that_lost_a_label_says_so(tmp_path):
    path = write(tmp_path / "x.tar", [Given(f"{n}.jpg", b"x", n) for n in range(3)], blobs=(), values=None)
    drop_indexes(path)
    without(path, "1.cls")
    with pytest.warns(UserWarning, match=r"1 sample without a target: label -1 \(1\.jpg\)"):
        assert [sample.target for sample in of_reader(tar.open(path))] == [0, -1, 2]


OBJECT = b'{"age":"nan","boxes":[],"count":null,"name":"","offset":null,"ok":null,"words":[]}'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"count":5', b'"count":x', r"holds .* expected a JSON object with the values age, boxes"),
        (b'"count":5', b'"count" ', r"holds .* expected a JSON object with the values age, boxes"),
        (b'"count":5', b'"conut":5', "a JSON object with the values"),
        (b'"ok":true', b'"ok":1234', "a value of the field 'ok' is no bool"),
        (b'"meta":{', b'"meta":[', "a JSON object"),
        (b'{"n":[0,null]}', b"[0]", "a JSON object"),
        (b'"captions":["\xc3\xa9 0"]', b'"captions":"e 0"', "a JSON object"),
        (b'"captions":["\xc3\xa9 0"]', b'"captions":[0]', "a JSON object"),
        (OBJECT, b"[]", "a JSON object"),
        (b'"double"', b'"dauble"', "the type of a field is 'dauble'"),
    ],
)
def test_values_in_a_shard_without_index_that_are_not_as_recorded_are_refused(tmp_path, old, new, said):
    path = write(tmp_path / "x.tar", target="captions" if b"captions" in old else "label")
    drop_indexes(path)
    whole = path.read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new.ljust(len(old)), 1))
    with pytest.raises(DamagedFileError, match=rf"x\.tar is damaged.*{said}"):
        len(tar.open(path))


@pytest.mark.parametrize("name", ["blob.mask.offset", "value.age", "offset", "label"])
@pytest.mark.parametrize("change", ["drop", "text", "null"])
def test_an_index_without_the_columns_that_its_record_names_is_refused(tmp_path, name, change):
    path = index.index_path(write(tmp_path / "x.tar"))
    with pa.ipc.open_file(path) as file:
        table = file.read_all()
    column = table.column_names.index(name)
    other = "value.age" if name != "value.age" else "label"
    odd = pa.array([""] * len(table)) if change == "text" else pa.nulls(len(table), table[other].type)
    table = table.remove_column(column) if change == "drop" else table.set_column(column, name, odd)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_batch(table.combine_chunks().to_batches()[0])
    with pytest.raises(DamagedFileError, match=rf"cannot be read as an index .*{name.split('.')[-2:][0]}"):
        len(tar.open(tmp_path / "x.tar"))


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    "other", [{"blobs": ()}, {"values": None}, {"blobs": (BlobField("mask", ".jpg"), *BLOBS[1:])}]
)
def test_shards_with_different_fields_do_not_mix(tmp_path, other, indexed):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/0.tar")
    blobs = other.get("blobs", BLOBS)
    rest = [Given(f"z{s.key}", s.data, 0, None, s.blobs[: len(blobs)], s.row) for s in samples()]
    write(tmp_path / "in/1.tar", rest, **other)
    if not indexed:
        drop_indexes(tmp_path / "in")
    with pytest.raises(FormatError, match=r"shards with different fields: .*mask \(\.png\)"):
        len(tar.open(tmp_path / "in"))


def test_unlabelled_pictures_with_masks_need_no_permission_but_say_so(tmp_path):
    path = put(tmp_path / "x.tar", numbered("jpg", "mask.png"))
    assert "no targets: label -1 for all" in sources.load(path).notes
    with pytest.raises(SourceError, match=r"expected one folder per class, or a \.cls"):
        sources.load(put(tmp_path / "y.tar", numbered("jpg")))
