"""Tar files read in place: against Python's tarfile and the tar command, whole, cut and hostile."""

import bz2
import gzip
import lzma
import multiprocessing
import os
import pickle
import resource
import string
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from source_sets import contents, refused, rows, tar_bytes

from smallfiles import sources
from smallfiles.errors import SourceError
from smallfiles.folders import canonical_split, is_hidden


def special(path: Path, *infos: tarfile.TarInfo) -> Path:
    put(path, tar_bytes({"cat/1.jpg": b"abc"}))
    with tarfile.open(path, "a") as archive:
        for info in infos:
            archive.addfile(info)
    return path


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


TREE = {"dog/1.jpg": b"one", "cat/2.jpg": b"", "cat/sub/3.PNG": b"x" * 1500, "dog/4.jpg": bytes(512)}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_class_folders_in_a_tar_are_labels_and_order_is_the_archives(tmp_path, format):
    source = sources.load(put(tmp_path / "set.tar", tar_bytes(TREE, format)))
    assert rows(source) == {"dog/1.jpg": 1, "cat/2.jpg": 0, "cat/sub/3.PNG": 0, "dog/4.jpg": 1}
    assert list(rows(source)) == list(TREE)
    assert source.manifest.classes == ("cat", "dog") and source.manifest.name == "set"
    assert source.manifest.sizes.tolist() == [3, 0, 1500, 512]
    assert contents(source) == TREE and not source.store.sequential


_PART = st.text(string.ascii_letters + "0123456789 _-é漢ß#%", min_size=1, max_size=60).filter(
    lambda name: not (name.startswith("__") or is_hidden(name) or canonical_split(name))
)
_NAME = st.builds(lambda parts, stem: "/".join([*parts, f"x{stem}.jpg"]), st.lists(_PART, max_size=5), _PART)
_MEMBERS = st.dictionaries(_NAME, st.binary(max_size=1100), min_size=1, max_size=8)


@settings(max_examples=80)
@given(_MEMBERS, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_what_tarfile_writes_is_read_back(tmp_path_factory, members, format):
    path = put(tmp_path_factory.mktemp("tar") / "t.tar", tar_bytes(members, format))
    assert contents(sources.load(path, unlabelled=True)) == members


def test_members_of_eight_gigabytes_are_indexed(tmp_path):
    path = tmp_path / "huge.tar"
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):  # base-256 and a pax record
        info = tarfile.TarInfo("a/huge.jpg")
        info.size = 9 << 30
        header = info.tobuf(format)
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + info.size)  # sparse on disk
            file.seek(0, os.SEEK_END)
            file.write(bytes(1024))
        assert sources.load(path, unlabelled=True).manifest.sizes.tolist() == [9 << 30]


@pytest.mark.parametrize("side", ["cls", "txt"])
def test_splits_of_samples_with_side_files_are_not_mixed(tmp_path, side):
    members = {
        f"{split}/{k}.{kind}": b"7" if side == "cls" else b"a dog"
        for split in ("train", "val")
        for k in "12"
        for kind in ("jpg", side)
    }
    path = put(tmp_path / "t.tar", tar_bytes(members))
    source = sources.load(path)
    assert list(rows(source)) == ["train/1.jpg", "train/2.jpg"]
    assert "train was taken" in " ".join(source.notes)
    assert list(rows(sources.load(path, split="val"))) == ["val/1.jpg", "val/2.jpg"]


def test_a_tar_of_tars_is_read_in_place(tmp_path):
    inner = {wnid: tar_bytes({f"{wnid}_{k}.jpg": f"{wnid}{k}".encode() for k in (1, 2)}) for wnid in "ba"}
    outer = {f"{name}.tar": data for name, data in inner.items()} | {"c/9.jpg": b"beside"}
    source = sources.load(put(tmp_path / "t.tar", tar_bytes(outer)))
    assert rows(source) == {"b/b_1.jpg": 1, "b/b_2.jpg": 1, "a/a_1.jpg": 0, "a/a_2.jpg": 0, "c/9.jpg": 2}
    assert contents(source)["a/a_2.jpg"] == b"a2" and contents(source)["c/9.jpg"] == b"beside"


def test_tars_may_be_nested_and_compressed_outside_and_a_cut_one_is_named(tmp_path):
    inner = tar_bytes(
        {"out.tar": tar_bytes({"cat.tar": tar_bytes({"1.jpg": b"deep"})}), "out/dog/2.jpg": b"x"}
    )
    for path in (put(tmp_path / "t.tar", inner), put(tmp_path / "t.tgz", gzip.compress(inner))):
        source = sources.load(path)
        assert contents(source) == {"out/cat/1.jpg": b"deep", "out/dog/2.jpg": b"x"}
        assert source.manifest.classes == ("cat", "dog")
    cut = {"cat.tar": tar_bytes({"1.jpg": b"x" * 700})[:1536]}
    assert "t.tar:cat.tar is damaged: it is cut off" in refused(put(tmp_path / "t.tar", tar_bytes(cut)))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_a_compressed_tar_is_a_stream_in_its_own_order(tmp_path, compress):
    source = sources.load(put(tmp_path / "t.tar.z", compress(tar_bytes(TREE))))
    assert source.store.sequential
    assert contents(source) == TREE
    assert contents(source) == TREE  # a second pass starts again at the first
    small = memoryview(bytearray(1))
    assert source.store.read_into("dog/1.jpg", small) == 3  # told the size, and may come again
    assert source.store.read_into("dog/1.jpg", memoryview(bytearray(3))) == 3
    assert pickle.loads(pickle.dumps(source.store)).read_into("dog/1.jpg", memoryview(bytearray(3))) == 3


CLASS_TARS = {
    wnid: {f"{wnid}_{k}.JPEG": f"{wnid}{k}".encode() for k in (1, 2)} for wnid in ("n02084071", "n01440764")
}


def class_tars(folder: Path, **more: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, members in (CLASS_TARS | more).items():
        put(folder / f"{name}.tar", tar_bytes(members))
    return folder


def test_a_folder_of_class_tars_is_read_in_place(tmp_path):
    folder = class_tars(tmp_path / "winter21_whole")
    source = sources.load(folder)
    whole = {f"{wnid}/{name}": data for wnid, held in CLASS_TARS.items() for name, data in held.items()}
    assert source.kind == "folder of tars" and source.manifest.classes == ("n01440764", "n02084071")
    assert rows(source) == {name: int(name.startswith("n02")) for name in sorted(whole)}
    assert contents(source) == whole and contents(pickle.loads(pickle.dumps(source))) == whole
    around = tar_bytes({f"{wnid}.tar": tar_bytes(held) for wnid, held in sorted(CLASS_TARS.items())})
    assert sources.load(put(tmp_path / "t.tar", around)).manifest.digest == source.manifest.digest


def test_a_manifest_finds_its_samples_in_a_folder_of_class_tars_or_beside_them(tmp_path):
    folder = class_tars(tmp_path / "in")
    source = sources.load(folder)
    source.manifest.save(tmp_path / "m.json")
    assert contents(sources.load(tmp_path / "m.json", root=folder)) == contents(source)
    (folder / "m.json").write_text('{"cat/1.jpg": 0}')
    assert sources.load(folder / "m.json", root=folder).store.describe() == f"folder {folder}"


def test_more_class_tars_than_a_process_may_open_are_read(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = {f"n{k:08}": {"1.jpg": str(k).encode()} for k in range(300)}
    folder = class_tars(tmp_path / "in", **many)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limit[1]))
    try:
        found = contents(sources.load(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert len(found) == 304 and found["n00000299/1.jpg"] == b"299"


def test_files_next_to_class_tars_are_left_out_or_refused(tmp_path):
    folder = class_tars(tmp_path / "in", empty={}, none={"readme.txt": b"no image"})
    put(folder / "words.txt", b"n01\tcat")
    source = sources.load(folder)
    assert source.manifest.classes == ("n01440764", "n02084071")
    assert "left out: 1 file other than tars" in source.notes
    assert "1 file other than tars" in refused(folder, strict=True)
    put(folder / "1.jpg", b"x")  # images of its own: the tars are what lies beside
    assert "1 image outside of any class folder" in refused(folder)


def test_a_class_tar_that_shrank_since_it_was_indexed_is_refused(tmp_path):
    store = sources.load(class_tars(tmp_path / "in")).store
    put(tmp_path / "in/n01440764.tar", b"")
    with pytest.raises(SourceError, match=r"n01440764\.tar is damaged: it is empty"):
        store.read_into("n01440764/n01440764_1.JPEG", memoryview(bytearray(99)))


def test_broken_links_and_devices_are_left_aside_with_a_note(tmp_path):
    infos = []
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        infos.append(tarfile.TarInfo(f"cat/{len(infos)}.jpg"))
        infos[-1].type, infos[-1].linkname = kind, "cat/1.jpg"
    source = sources.load(special(tmp_path / "t.tar", *infos))
    assert list(rows(source)) == ["cat/1.jpg"]
    told = " ".join(source.notes)
    assert "not followed: cat/0.jpg (a broken link)" in told
    for kind in ("device", "named pipe"):
        assert f"1 {kind}" in told


def test_archives_joined_by_cat_are_refused_with_the_way_out(tmp_path):
    one = tar_bytes({"cat/1.jpg": b"a"})
    said = refused(put(tmp_path / "t.tar", one + tar_bytes({"cat/2.jpg": b"b"})))
    assert "data after the end" in said and "tar -xif" in said


def test_a_webdataset_sample_without_a_target_is_told_or_refused(tmp_path):
    path = put(tmp_path / "t.tar", tar_bytes({"0.jpg": b"a", "0.cls": b"7", "1.jpg": b"b"}))
    source = sources.load(path)
    assert rows(source) == {"0.jpg": 7, "1.jpg": -1} and "1 sample without a target" in source.notes[0]
    assert "1 sample without a target: 1.jpg" in refused(path, strict=True)


def test_an_archive_that_changed_since_it_was_indexed_and_a_name_that_is_not_in_it_are_refused(tmp_path):
    path = put(tmp_path / "t.tar", tar_bytes(TREE))
    store = sources.load(path).store
    assert store.read_into("cat/sub/3.PNG", memoryview(bytearray(10))) == 1500  # larger than its room
    with pytest.raises(SourceError, match=r"cat/9\.jpg is missing in tar .*t\.tar"):
        store.size("cat/9.jpg")
    put(path, tar_bytes(TREE) + bytes(512))
    with pytest.raises(SourceError, match="when it was indexed"):
        store.read_into("dog/1.jpg", memoryview(bytearray(9)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_store_travels_to_other_processes(tmp_path, method):
    source = sources.load(put(tmp_path / "t.tar", tar_bytes(TREE)))
    contents(source)  # opened before the fork
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(contents, (source,)) == TREE


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_table_labels_the_samples_of_a_tar_in_its_own_order(tmp_path, compress):
    path = put(tmp_path / "t.tar", compress(tar_bytes({f"x/{k}.jpg": k.encode() for k in "abc"})))
    put(tmp_path / "t.csv", b"filename,label\nc.jpg,2\na.jpg,0\nb.jpg,1\n")
    source = sources.load(path, labels=tmp_path / "t.csv")
    assert rows(source) == {"x/a.jpg": 0, "x/b.jpg": 1, "x/c.jpg": 2}
    assert contents(source) == {f"x/{k}.jpg": k.encode() for k in "abc"}
