"""Other programs read our shards, and we read theirs."""

import gzip
import io
import json
import os
import pickle
import subprocess
import tarfile
import warnings

import contract_sets as sets
import pytest
import webdataset as wds
import zstandard
from given import Given, bare, metas_in, of_reader, schema_of

from smallfiles import sources
from smallfiles.errors import FormatError, SmallfilesError
from smallfiles.formats import tar

IMAGES = [
    Given(f"train/c{i % 3}/photo {i}.v{i % 2}.JPEG", os.urandom(100 * i), i % 3, {"i": i} if i % 2 else None)
    for i in range(40)
]
CAPTIONED = [Given(f"{i}.jpg", b"\xff\xd8" + bytes(i), [f"caption {i}", "ü"]) for i in range(7)]


def write(out, samples, **options):
    schema = schema_of(samples, classes=("é", "b", "c"))
    return tar.write(bare(samples), out, schema=schema, options=tar.Options(**options))


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout.decode()


# Ours, read by others


@pytest.mark.parametrize(("samples", "suffix"), [(IMAGES, "jpeg"), (CAPTIONED, "jpg")])
def test_webdataset_reads_every_sample(tmp_path, samples, suffix):
    write(tmp_path / "x.tar", samples)
    found = list(wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False))
    assert len({sample["__key__"] for sample in found}) == len(samples)
    for sample, s in zip(found, samples, strict=True):
        assert sample[suffix] == s.data
        assert json.loads(sample.get("meta", b"null")) == s.meta
        assert json.loads(sample["cls" if isinstance(s.target, int) else "json"]) == s.target


def test_tarfile_gnu_tar_bsdtar_and_busybox_list_and_unpack_the_same(tmp_path, need_tool):
    path = tmp_path / "x.tar"
    write(path, IMAGES)
    with tarfile.open(path) as archive:
        assert len(archive.getnames()) == 100
    tools = [need_tool("tar", "tar"), need_tool("bsdtar", "libarchive-tools")]
    tools.append(need_tool("busybox", "busybox") + " tar")
    for number, tool in enumerate(tools):
        out = tmp_path / f"out{number}"
        out.mkdir()
        assert len(run(*tool.split(), "-tf", path).splitlines()) == 100
        run(*tool.split(), "-xf", path, "-C", out)
        assert len([file for file in out.rglob("*") if file.is_file()]) == 100
        assert (out / "train/c1/photo 1%2Ev1%2EJPEG.JPEG").read_bytes() == IMAGES[1].data
        assert (out / "train/c1/photo 1%2Ev1%2EJPEG.cls").read_text() == "1"


def test_long_and_unicode_names_are_unpacked_by_gnu_tar(tmp_path, need_tool):
    samples = [Given("d" * 120 + "/日本 " + "ü" * 60 + ".jpg", b"1", 0), Given("é.png", b"22", 1)]
    write(tmp_path / "x.tar", samples)
    run(need_tool("tar", "tar"), "-xf", tmp_path / "x.tar", "-C", tmp_path)
    assert [(tmp_path / s.key).read_bytes() for s in samples] == [b"1", b"22"]


LARGE = [Given(f"{i:04}.jpg", os.urandom(20_000), i, {"i": i}) for i in range(150)]  # three megabytes


def test_tarfile_streams_webdataset_and_hugging_face_read_more_than_a_megabyte(tmp_path):
    hf = pytest.importorskip("datasets", reason="comes with the extra compare")
    path = write(tmp_path / "x.tars", LARGE).files[0]
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        assert sum(m.name.endswith(".jpg") for m in archive) == len(LARGE)
    samples = list(wds.WebDataset(str(path), shardshuffle=False))
    assert [(s["jpg"], int(s["cls"])) for s in samples] == [(s.data, s.target) for s in LARGE]
    rows = hf.load_dataset("webdataset", data_files=str(path), split="train", streaming=True)
    rows = rows.cast_column("jpg", hf.Image(decode=False))
    assert [(row["jpg"]["bytes"], row["cls"]) for row in rows] == [(s.data, s.target) for s in LARGE]


# Theirs, read by us


def test_we_read_what_shardwriter_writes(tmp_path):
    with wds.ShardWriter(str(tmp_path / "x-%06d.tar"), maxcount=15, verbose=0) as writer:
        for s in IMAGES:
            key = f"c{s.target}/{len(s.data)}"
            writer.write({"__key__": key, "jpg": s.data, "cls": s.target, "meta.json": {}})
    reader = tar.open(tmp_path)
    assert sets.facts(reader) == [(f"c{s.target}/{len(s.data)}.jpg", s.data, s.target, None) for s in IMAGES]
    assert (reader.info()["shards"], reader.classes) == (3, ())


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar", "v7"])
def test_we_read_what_gnu_tar_writes_of_a_sorted_folder(tmp_path, form, need_tool):
    tree = tmp_path / "tree"
    expected = []
    for i, suffix in enumerate(["jpg", "PNG", "webp", "jpeg"]):
        stem = f"deep/{'n' * 70 if form in ('gnu', 'posix') else 'n'}/{'s' * 60}{i}"
        (tree / stem).parent.mkdir(parents=True, exist_ok=True)
        (tree / f"{stem}.{suffix}").write_bytes(bytes([i]) * 1000 * i)
        (tree / f"{stem}.cls").write_text(f"{i}\n")
        (tree / f"{stem}.seg.png").write_bytes(b"mask")
        (tree / f"{stem}.json").write_text('{"source": "é"}')
        expected.append((f"{stem}.{suffix}", bytes([i]) * 1000 * i, i, {"source": "é"}))
    (tree / "README").write_text("no dot: left out, as webdataset does")
    (tree / "link.jpg").symlink_to("gone")
    run(
        need_tool("tar", "tar"), f"--format={form}", "--sort=name", "-cf", tmp_path / "x.tar", "-C", tree, "."
    )
    assert sets.facts(tar.open(tmp_path / "x.tar")) == expected


def test_we_read_what_bsdtar_writes(tmp_path, need_tool):
    (tmp_path / "é.jpg").write_bytes(b"data")
    (tmp_path / "é.txt").write_text("one caption\n")
    run(need_tool("bsdtar", "libarchive-tools"), "-cf", tmp_path / "x.tar", "-C", tmp_path, "é.jpg", "é.txt")
    assert sets.facts(tar.open(tmp_path / "x.tar")) == [("é.jpg", b"data", ["one caption"], None)]


def tarfile_of(path, members, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w", format=form) as archive:
        for name, data in members:
            data = data if isinstance(data, bytes) else data.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("a.txt", b"p\nq"), ("a.bin", b"x")], ("a.bin", b"x", ["p", "q"], None)),
        ([("ü" * 120 + ".jpg", b"x")], ("ü" * 120 + ".jpg", b"x", -1, None)),
        ([(".hidden.jpg", b""), ("__x__/a.jpg", b""), ("b.jpg", b"x")], ("b.jpg", b"x", -1, None)),
    ],
)
def test_we_read_the_conventions_of_others(tmp_path, form, members, expected):
    tarfile_of(tmp_path / "x.tar", members, form)
    assert sets.facts(tar.open(tmp_path / "x.tar")) == [expected]


# Both of our readers


def obj(**facts):
    return json.dumps(facts)


RIGHT = {  # members, target of each sample
    "as tarp writes it": ({"a.cls": "3", "a.jpg": "x"}, {"a.jpg": 3}),
    "a member unknown to us": ({"a.jpg": "x", "a.id": "7", "a.cls": " -1\n"}, {"a.jpg": -1}),
    "class in an object": ({"a.jpg": "x", "a.json": obj(**{"class": 3})}, {"a.jpg": 3}),
    "target in an object": ({"a.jpg": "x", "a.json": obj(target=4)}, {"a.jpg": 4}),
    "decimal text as label": ({"a.jpg": "x", "a.json": obj(label="1")}, {"a.jpg": 1}),
    "caption": ({"a.jpg": "x", "a.json": obj(caption="c")}, {"a.jpg": ["c"]}),
    "captions": ({"a.jpg": "x", "a.json": obj(captions=["c", "d"])}, {"a.jpg": ["c", "d"]}),
    "a number alone": ({"a.json": "5", "a.png": "x"}, {"a.png": 5}),
    "a list of captions": ({"a.json": '["p", "q"]', "a.png": "x"}, {"a.png": ["p", "q"]}),
    "a caption a line": ({"a.txt": "p\nq", "a.jpg": "x"}, {"a.jpg": ["p", "q"]}),
    "two suffixes": ({"a.left.jpg": "x", "a.cls": "1"}, {"a.left.jpg": 1}),
    "no escapes of ours": ({"100%41.jpg": "x", "100%41.cls": "1"}, {"100%41.jpg": 1}),
    "all of them": ({"a.cls": "7", "a.jpg": "x", "a.json": '["c"]', "a.txt": "d"}, {"a.jpg": 7}),
    "captions that only later come alone": (
        {"a.jpg": "x", "a.cls": "1", "a.txt": "c", "b.jpg": "y", "b.txt": "d"},
        {"a.jpg": ["c"], "b.jpg": ["d"]},
    ),
    "members apart": ({"0.jpg": "x", "1.jpg": "y", "0.cls": "5", "1.cls": "6"}, {"0.jpg": 5, "1.jpg": 6}),
    "cls and an equal number": ({"a.jpg": "x", "a.cls": "3", "a.json": "3"}, {"a.jpg": 3}),
    "cls beside an object": ({"a.json": obj(label=9), "a.cls": "3", "a.jpg": "x"}, {"a.jpg": 3}),
}
UNCLEAR = {  # members, what both say
    "cls and another number": ([("a.jpg", "x"), ("a.cls", "3"), ("a.json", "4")], "holds 4; expected 3"),
    "labels here, captions there": (
        [("a.jpg", "x"), ("a.cls", "3"), ("b.jpg", "y"), ("b.txt", "c")],
        "samples with labels and samples with captions",
    ),
    "a key that comes again": (
        [("a.jpg", "x"), ("a.cls", "1"), ("b.jpg", "y"), ("b.cls", "2"), ("a.jpg", "z"), ("a.cls", "3")],
        "more than once",
    ),
    "two versions of one stem": (
        [("cat.v2.jpg", "x"), ("cat.v2.cls", "1"), ("cat.v3.jpg", "y"), ("cat.v3.cls", "2")],
        "cat.v2.jpg, cat.v3.jpg share one stem",
    ),
    "a label beyond 64 bits": ([("a.jpg", "x"), ("a.cls", str(1 << 63))], "beyond 64 bits"),
    "a label below 64 bits": ([("a.jpg", "x"), ("a.cls", str(~(1 << 63)))], "beyond 64 bits"),
}


def by_both(path):
    """What the two readers say: (key, data, target, meta) of each sample, or the sentence."""
    found = []
    for read in (_by_formats, _by_sources):
        try:
            found.append(read(path))
        except SmallfilesError as error:
            found.append(str(error))
    return found


def _by_formats(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return sets.facts(tar.open(path))


def _by_sources(path):
    source = sources.load(path)
    rows = []
    columns = source.manifest.columns
    metas = metas_in(columns) if "meta" in columns.column_names else [None] * len(columns)
    for row in range(len(columns)):
        key = source.manifest.path(row)
        buffer = bytearray(source.store.size(key))
        source.store.read_into(key, memoryview(buffer))
        rows.append((key, bytes(buffer), source.manifest.target(row), metas[row]))
    return rows


@pytest.mark.parametrize("what", RIGHT)
def test_shards_and_sources_read_the_same_right_targets(tmp_path, what):
    members, targets = RIGHT[what]
    tarfile_of(tmp_path / "x.tar", members.items())
    beside = json.loads(members.get("a.json", "null"))
    meta = beside if isinstance(beside, dict) else None
    rows = [(key, members[key].encode(), target, meta) for key, target in targets.items()]
    assert by_both(tmp_path / "x.tar") == [rows, rows]
    assert _by_sources(tarfile_of(tmp_path / "x.tar.gz", members.items())) == rows


@pytest.mark.parametrize("what", UNCLEAR)
def test_shards_and_sources_refuse_the_same_in_a_sentence(tmp_path, what):
    members, sentence = UNCLEAR[what]
    first, second = by_both(tarfile_of(tmp_path / "x.tar", members))
    assert sentence in first and first == second


def test_sparse_members_are_refused_by_both(tmp_path, need_tool):
    with (tmp_path / "1.jpg").open("wb") as file:
        file.truncate(1 << 20)
        file.write(b"x" * 4096)
    (tmp_path / "1.cls").write_text("1")
    for version in ("gnu", "posix"):
        path = tmp_path / f"{version}.tar"
        words = ["-S", f"--format={version}", "-cf", path, "-C", tmp_path, "1.jpg", "1.cls"]
        run(need_tool("tar", "tar"), *words)
        assert all("sparse" in said for said in by_both(path))


def test_kinds_of_targets_are_decided_for_all_shards_together(tmp_path):
    tarfile_of(tmp_path / "0.tar", [("a.jpg", b"x"), ("a.cls", "1"), ("a.txt", "c")])
    tarfile_of(tmp_path / "1.tar", [("b.jpg", b"y"), ("b.txt", "d")])
    with pytest.warns(UserWarning, match="the labels are left aside"):
        assert [s.target for s in of_reader(tar.open(tmp_path))] == [["c"], ["d"]]
    tarfile_of(tmp_path / "2.tar", [("c.jpg", b"y"), ("c.cls", "2")])
    with pytest.raises(FormatError, match="samples with labels and samples with captions"):
        len(tar.open(tmp_path))


def test_a_set_without_targets_is_said_once_to_be_unlabelled(tmp_path):
    for number in range(6):
        members = [(f"{number}-{i}.jpg", b"x") for i in range(3)] + [(f"{number}-0.json", '{"by": "me"}')]
        tarfile_of(tmp_path / f"{number}.tar", members)
    with warnings.catch_warnings(record=True, action="always") as said:
        reader = tar.open(tmp_path)
        assert [s.target for s in of_reader(reader)] == [-1] * 18
        assert [s.target for s in of_reader(pickle.loads(pickle.dumps(reader)))] == [-1] * 18
    assert [str(one.message).startswith(f"{tmp_path}: 18 samples without a target") for one in said] == [True]


def test_class_folders_label_where_objects_tell_no_target(tmp_path):
    members = [("cat/1.jpg", b"x"), ("cat/1.json", obj(by="me")), ("dog/2.jpg", b"y"), ("dog/2.json", "{}")]
    source = sources.load(tarfile_of(tmp_path / "x.tar", members)).manifest
    assert source.targets.to_pylist() == [0, 1] and source.classes == ("cat", "dog")
    assert metas_in(source.table) == [{"by": "me"}, {}]


@pytest.mark.parametrize("samples", [IMAGES, CAPTIONED])
def test_our_own_tar_is_a_source_with_its_keys_targets_and_objects(tmp_path, samples):
    path = tmp_path / "x.tar"
    write(path, samples)
    (tmp_path / "x.tar.index.arrow").unlink()
    assert by_both(path) == [sets.facts(samples)] * 2
    for name, compress in (("x.tar.gz", gzip.compress), ("x.tar.zst", zstandard.compress)):
        (tmp_path / name).write_bytes(compress(path.read_bytes()))
        assert _by_sources(tmp_path / name) == sets.facts(samples)


def test_thousands_of_headers_that_announce_each_other_are_no_recursion(tmp_path):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 6
    long = header.tobuf(tarfile.GNU_FORMAT) + b"a.jpg\0".ljust(512, b"\0")
    image, label = tarfile.TarInfo("cut.jpg"), tarfile.TarInfo("a.cls")
    image.size = label.size = 1
    blocks = [image.tobuf(), b"x".ljust(512, b"\0"), label.tobuf(), b"3".ljust(512, b"\0"), bytes(1024)]
    (tmp_path / "x.tar").write_bytes(long * 2000 + b"".join(blocks))
    assert by_both(tmp_path / "x.tar") == [[("a.jpg", b"x", 3, None)]] * 2


@pytest.mark.parametrize("above", ["", "train/", "set/train/"])
def test_class_folders_label_shards_of_others_as_they_label_a_source(tmp_path, above):
    names = [f"{above}{name}" for name in ("dog/1.jpg", "cat/1.jpg", "cat/2.jpg", "ant/9.jpg")]
    members, labels = [(name, name) for name in names], [2, 1, 1, 0]  # as in ImageFolder: sorted by name
    one = tarfile_of(tmp_path / "x.tar", members)
    with tar.open(one) as reader:
        for each in (reader, pickle.loads(pickle.dumps(reader))):
            assert (each.keys().to_pylist(), each.classes) == (names, ("ant", "cat", "dog"))
            assert each.table(["label"], range(0, 4))["label"].to_pylist() == labels
    (tmp_path / "x.tars").mkdir()
    tarfile_of(tmp_path / "x.tars" / "0.tar", members[:2])  # a class that one shard lacks shifts no label
    tarfile_of(tmp_path / "x.tars" / "1.tar", members[2:])
    for path in (one, tmp_path / "x.tars"):
        source = sources.load(path).manifest
        assert (source.targets.to_pylist(), source.classes) == (labels, ("ant", "cat", "dog"))


def test_a_key_in_two_shards_of_others_is_refused_by_name(tmp_path):
    tarfile_of(tmp_path / "0.tar", [("cat/1.jpg", b"x"), ("dog/1.jpg", b"x")])
    tarfile_of(tmp_path / "1.tar", [("cat/2.jpg", b"x"), ("dog/1.jpg", b"x")])
    with pytest.raises(FormatError, match=r"1 key in more than one shard: dog/1\.jpg"):
        len(tar.open(tmp_path))
