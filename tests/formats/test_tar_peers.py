"""Other programs read our shards, and we read theirs."""

import gzip
import io
import json
import os
import subprocess
import tarfile

import numpy as np
import pytest
import webdataset as wds
from torch.utils.data import DataLoader

from helpers.formats import tar
from helpers.samples import Sample, Schema

IMAGES = [
    Sample(f"train/c{i % 3}/photo {i}.v{i % 2}.JPEG", os.urandom(100 * i), i % 3, {"i": i} if i % 2 else None)
    for i in range(40)
]
CAPTIONED = [Sample(f"{i}.jpg", b"\xff\xd8" + bytes(i), [f"caption {i}", "ü"]) for i in range(7)]
SUFFIXES = ["x.tar", "x.tar.gz", "x.tar.zst"]


def write(out, samples, **options):
    kind = "captions" if isinstance(samples[0].target, list) else "label"
    facts = Schema(len(samples), 0, 0, target=kind, classes=("é",), unique_stems=kind == "captions")
    return tar.write(iter(samples), out, schema=facts, options=tar.Options(**options))


def plain(samples):
    return [(s.key, bytes(s.data), s.target, s.meta) for s in samples]


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout.decode()


# Ours, read by others


def members_of(samples):
    """What webdataset should see: (data, suffix -> content of what stands beside)."""
    for s in samples:
        beside = {"meta": json.dumps(s.meta, separators=(",", ":")).encode()} if s.meta else {}
        if isinstance(s.target, int):
            yield bytes(s.data), beside | {"cls": b"%d" % s.target}
        else:
            yield (
                bytes(s.data),
                beside | {"json": json.dumps(s.target, ensure_ascii=False, separators=(",", ":")).encode()},
            )


def seen_by_webdataset(found, suffix):
    return [
        (sample[suffix], {k: v for k, v in sample.items() if k in ("cls", "json", "meta")})
        for sample in found
    ]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize(("samples", "suffix"), [(IMAGES, "jpeg"), (CAPTIONED, "jpg")])
def test_webdataset_reads_every_sample(tmp_path, name, samples, suffix):
    write(tmp_path / name, samples)
    found = list(wds.WebDataset(str(tmp_path / name), shardshuffle=False))
    assert seen_by_webdataset(found, suffix) == list(members_of(samples))
    assert len({sample["__key__"] for sample in found}) == len(samples)


def test_webdataset_workers_read_every_sample_of_a_folder_once(tmp_path):
    write(tmp_path / "x.tars", IMAGES, max_count=10)
    shards = str(tmp_path / "x.tars" / "shard-{000000..000003}.tar")
    dataset = wds.WebDataset(shards, shardshuffle=False).to_tuple("jpeg", "cls")
    found = sorted((data, int(label)) for data, label in DataLoader(dataset, batch_size=None, num_workers=2))
    assert found == sorted((s.data, s.target) for s in IMAGES)


@pytest.mark.parametrize("name", SUFFIXES)
def test_tarfile_gnu_tar_bsdtar_and_busybox_list_and_unpack_the_same(tmp_path, name, need_tool):
    if name.endswith("zst"):
        need_tool("zstd", "zstd")
    write(tmp_path / name, IMAGES)
    if not name.endswith("zst"):  # Python before 3.14 has no zstd
        with tarfile.open(tmp_path / name) as archive:
            listed = archive.getnames()
        assert len(listed) == 100
    tools = [(need_tool("tar", "tar"), ""), (need_tool("bsdtar", "libarchive-tools"), "")]
    if not name.endswith("zst"):  # nor has busybox
        tools.append((need_tool("busybox", "busybox") + " tar", "z" if name.endswith("gz") else ""))
    for number, (tool, unpack) in enumerate(tools):
        out = tmp_path / f"out{number}"
        out.mkdir()
        assert len(run(*tool.split(), f"-t{unpack}f", tmp_path / name).splitlines()) == 100
        run(*tool.split(), f"-x{unpack}f", tmp_path / name, "-C", out)
        assert len([file for file in out.rglob("*") if file.is_file()]) == 100
        assert (out / "train/c1/photo 1%2Ev1%2EJPEG.JPEG").read_bytes() == IMAGES[1].data
        assert (out / "train/c1/photo 1%2Ev1%2EJPEG.cls").read_text() == "1"


def test_long_and_unicode_names_are_unpacked_by_gnu_tar(tmp_path, need_tool):
    samples = [Sample("d" * 120 + "/日本 " + "ü" * 60 + ".jpg", b"1", 0), Sample("é.png", b"22", 1)]
    facts = Schema(2, 3, 2)
    tar.write(iter(samples), tmp_path / "x.tar", schema=facts)
    run(need_tool("tar", "tar"), "-xf", tmp_path / "x.tar", "-C", tmp_path)
    assert [(tmp_path / s.key).read_bytes() for s in samples] == [b"1", b"22"]


def test_dali_reads_shards_by_their_index(tmp_path):
    dali = pytest.importorskip("nvidia.dali", reason="comes with the extra compare")
    long = [Sample("n" * 120 + f"/ä {i}.x.jpg", bytes([i]) * (300 * i + 1), i) for i in range(8)]
    write(tmp_path / "x.tar", long, dali_index=True)

    @dali.pipeline_def(batch_size=8, num_threads=1, device_id=None)
    def pipeline():
        paths = {"paths": [str(tmp_path / "x.tar")], "index_paths": [str(tmp_path / "x.tar.idx")]}
        return tuple(
            dali.fn.readers.webdataset(ext=["jpg", "cls"], missing_component_behavior="error", **paths)
        )

    built = pipeline()
    built.build()
    data, labels = built.run()
    found = [(bytes(np.array(data[i])), bytes(np.array(labels[i]))) for i in range(8)]
    assert found == [(s.data, b"%d" % s.target) for s in long]


# Theirs, read by us


def test_we_read_what_shardwriter_writes(tmp_path):
    with wds.ShardWriter(str(tmp_path / "x-%06d.tar"), maxcount=15, verbose=0) as writer:
        for s in IMAGES:
            writer.write(
                {"__key__": f"c{s.target}/{len(s.data)}", "jpg": s.data, "cls": s.target, "meta.json": {}}
            )
    reader = tar.open(tmp_path)
    assert plain(reader) == [(f"c{s.target}/{len(s.data)}.jpg", s.data, s.target, None) for s in IMAGES]
    assert reader.info()["shards"] == 3
    assert reader.classes == ()


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
    (tree / "link.jpg").symlink_to("deep")
    run(
        need_tool("tar", "tar"), f"--format={form}", "--sort=name", "-cf", tmp_path / "x.tar", "-C", tree, "."
    )
    assert plain(tar.open(tmp_path / "x.tar")) == expected


def test_we_read_what_bsdtar_writes(tmp_path, need_tool):
    (tmp_path / "é.jpg").write_bytes(b"data")
    (tmp_path / "é.txt").write_text("one caption\n")
    run(need_tool("bsdtar", "libarchive-tools"), "-cf", tmp_path / "x.tar", "-C", tmp_path, "é.jpg", "é.txt")
    assert plain(tar.open(tmp_path / "x.tar")) == [("é.jpg", b"data", ["one caption"], None)]


def tarfile_of(path, members, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([("a.cls", b"3"), ("a.jpg", b"x")], ("a.jpg", b"x", 3, None)),  # tarp: as the list said
        ([("a.jpg", b"x"), ("a.id", b"7"), ("a.cls", b" -1\n")], ("a.jpg", b"x", -1, None)),
        ([("a.json", b'{"label": 5}'), ("a.png", b"x")], ("a.png", b"x", 5, {"label": 5})),
        ([("a.json", b"5"), ("a.png", b"x")], ("a.png", b"x", 5, None)),
        ([("a.json", b'["p", "q"]'), ("a.png", b"x")], ("a.png", b"x", ["p", "q"], None)),
        ([("a.txt", b"p\nq"), ("a.bin", b"x")], ("a.bin", b"x", ["p", "q"], None)),
        ([("a.left.jpg", b"x"), ("a.cls", b"1")], ("a.left.jpg", b"x", 1, None)),
        ([("100%41.jpg", b"x"), ("100%41.cls", b"1")], ("100%41.jpg", b"x", 1, None)),  # not ours: no escapes
        ([("ü" * 120 + ".jpg", b"x")], ("ü" * 120 + ".jpg", b"x", -1, None)),
        ([(".hidden.jpg", b""), ("__x__/a.jpg", b""), ("b.jpg", b"x")], ("b.jpg", b"x", -1, None)),
    ],
)
def test_we_read_the_conventions_of_others(tmp_path, form, members, expected):
    for name in ("x.tar", "x.tar.gz"):
        tarfile_of(tmp_path / name, members, form)
        assert plain(tar.open(tmp_path / name)) == [expected]


def test_a_mixed_foreign_set_gives_unknown_targets_where_there_are_none(tmp_path):
    tarfile_of(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.cls", b"1"), ("b.jpg", b"2")])
    assert [s.target for s in tar.open(tmp_path / "x.tar")] == [1, -1]
    tarfile_of(tmp_path / "y.tar", [("a.jpg", b"1"), ("a.txt", b"c"), ("b.jpg", b"2")])
    assert [s.target for s in tar.open(tmp_path / "y.tar")] == [["c"], []]


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tar.zst"])
def test_frames_are_read_as_one_stream_by_the_tools_of_the_format(tmp_path, name, need_tool):
    big = [Sample(f"{i}.json5", json.dumps(list(range(60_000))).encode(), i) for i in range(12)]
    write(tmp_path / name, big)
    tool = need_tool("zstd", "zstd") if name.endswith("zst") else need_tool("gzip", "gzip")
    raw = subprocess.run([tool, "-dc", tmp_path / name], capture_output=True, check=True).stdout
    (tmp_path / "y.tar").write_bytes(raw)
    assert plain(tar.open(tmp_path / "y.tar")) == plain(big)
    assert plain(tar.open(tmp_path / name)) == plain(big)
    if name.endswith("gz"):
        assert gzip.decompress((tmp_path / name).read_bytes()) == raw
