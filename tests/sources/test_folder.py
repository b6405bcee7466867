"""Class folders: what ImageFolder says, and what it gets wrong."""

import os
import pickle
import socket
import string
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import bound_by_modes
from source_sets import plant, refused, rows

from smallfiles import sources
from smallfiles.errors import SourceError, printable
from smallfiles.folders import canonical_split, is_hidden
from smallfiles.sources import imagenet
from smallfiles.sources.record import FolderStore
from smallfiles.sources.scanning import Look

_NAME = st.text(string.ascii_letters + string.digits + "-_ ~#éß漢", min_size=1, max_size=6).filter(
    lambda name: name == name.strip() and not is_hidden(name) and not canonical_split(name)
)
_FILE = st.tuples(
    _NAME, st.lists(_NAME, max_size=2), _NAME, st.sampled_from([".jpg", ".JPEG", ".png", ".Tif", ".webp"])
)


@settings(max_examples=60)
@given(st.lists(_FILE, min_size=1, max_size=12, unique_by=lambda f: (f[0], *f[1], f[2]).__repr__()))
def test_a_tree_reads_as_torchvision_reads_it(tmp_path_factory, files):
    from torchvision.datasets import ImageFolder

    root = tmp_path_factory.mktemp("tree")
    files += [(top, [], "1", ".jpg") for top in ("one", "other")]  # a lone folder would be a wrapper
    for top, middle, stem, suffix in files:
        plant(root, "/".join([top, *(f"{name}.d" for name in middle), stem + suffix]))
    theirs = ImageFolder(str(root))
    ours = sources.load(root)
    assert (ours.kind, ours.root, list(ours.manifest.classes)) == ("folder", root, theirs.classes)
    expected = [(os.path.relpath(path, root), label) for path, label in theirs.samples]
    assert list(rows(ours).items()) == expected


def test_sizes_come_with_the_scan_unless_not_wanted_and_suffixes_are_chosen(tmp_path):
    plant(tmp_path, "a/1.jpg", data=b"123")
    plant(tmp_path, "b/2.jpg", "b/3.npy", data=b"")
    assert sources.load(tmp_path).manifest.sizes.tolist() == [3, 0]
    assert sources.load(tmp_path, sizes=False).manifest.sizes is None
    assert list(rows(sources.load(tmp_path, suffixes=("npy",)))) == ["b/3.npy"]


@pytest.mark.parametrize("asked", ["val", "validation", "valid"])
def test_a_split_may_be_asked_for_by_its_usual_names(tmp_path, asked):
    plant(tmp_path, "Train/cat/1.jpg", "validation/cat/2.jpg")
    source = sources.load(tmp_path, split=asked)
    assert rows(source) == {"validation/cat/2.jpg": 0} and source.manifest.split == "val"


def test_a_path_that_is_a_split_is_not_taken_for_another_and_one_without_splits_for_any(tmp_path):
    plant(tmp_path, "train/cat/1.jpg", "tree/cat/1.jpg")
    assert sources.load(tmp_path / "train").manifest.split == "train"
    assert "is the train split" in refused(tmp_path / "train", split="val")
    source = sources.load(tmp_path / "tree", split="val")
    assert rows(source) == {"cat/1.jpg": 0} and source.manifest.split == "val"
    assert "no split folders found" in source.notes[0]


def test_tiny_imagenet_val_does_not_become_one_class(tmp_path):
    plant(tmp_path, "train/n02/images/n02_0.JPEG", "train/n01/images/n01_0.JPEG")
    plant(tmp_path, "val/images/val_0.JPEG", "val/images/val_1.JPEG", "val/images/val_2.JPEG")
    (tmp_path / "val/val_annotations.txt").write_text(
        "val_0.JPEG\tn02\t0\t0\t62\t57\nval_1.JPEG\tn01\t0\t0\t9\t9\nval_7.JPEG\tn01\t0\t0\t9\t9\n"
    )
    assert imagenet.recognises(Look(tmp_path / "val"))
    for source in (sources.load(tmp_path, split="val"), sources.load(tmp_path / "val")):
        labels = {path.rpartition("/")[2]: label for path, label in rows(source).items()}
        assert labels == {"val_0.JPEG": 1, "val_1.JPEG": 0}
        assert source.manifest.classes == ("n01", "n02")
        told = " ".join(source.notes)
        assert "1 image not in val_annotations.txt left out: val_2.JPEG" in told
        assert "missing: val_7.JPEG" in told


def test_a_link_to_its_own_parent_ends(tmp_path):
    plant(tmp_path, "cat/1.jpg")
    (tmp_path / "cat/again").symlink_to(tmp_path)
    (tmp_path / "cat/self").symlink_to(".")
    for follow in (False, True):
        source = sources.load(tmp_path, follow_links=follow)
        assert list(rows(source)) == ["cat/1.jpg"]
        assert any("cat/again (a link to a folder that contains it)" in note for note in source.notes)


def test_folders_that_link_to_each_other_end(tmp_path):
    plant(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "a/b").symlink_to(tmp_path / "b")
    (tmp_path / "b/a").symlink_to(tmp_path / "a")
    assert list(rows(sources.load(tmp_path))) == ["a/1.jpg", "a/b/2.jpg", "b/2.jpg", "b/a/1.jpg"]
    assert len(sources.load(tmp_path, follow_links=True).manifest) < 50


def test_linked_files_are_samples_and_broken_links_and_loops_are_named(tmp_path):
    plant(tmp_path, "tree/.pool/1.jpg")
    cat = tmp_path / "tree/cat"
    cat.mkdir(parents=True)
    for name, target in {
        "1.jpg": tmp_path / "tree/.pool/1.jpg",
        "2.jpg": tmp_path / "pool/gone.jpg",
        "self.jpg": "self.jpg",
        "ping": "pong",
        "pong": "ping",
    }.items():
        (cat / name).symlink_to(target)
    os.mkfifo(cat / "3.jpg")
    source = sources.load(tmp_path / "tree")
    assert list(rows(source)) == ["cat/1.jpg"]
    told = " ".join(source.notes)
    assert "cat/2.jpg (a broken link)" in told and "cat/3.jpg (neither a file nor a folder)" in told
    assert told.count("leads to itself") == 3


@pytest.mark.parametrize("data", [b"", b"12345"])
@pytest.mark.parametrize("at_once", [2, 100], ids=["short reads", "whole"])
def test_a_store_reads_whole_files_and_tells_the_size_where_room_is_small(
    tmp_path, monkeypatch, data, at_once
):
    plant(tmp_path, "a/1.jpg", data=data)
    store = pickle.loads(pickle.dumps(FolderStore(tmp_path)))
    assert store.size("a/1.jpg") == len(data) and store.describe() == f"folder {tmp_path}"
    readv = os.readv
    monkeypatch.setattr(os, "readv", lambda fd, buffers: readv(fd, (buffers[0][:at_once],)))
    for room in (0, 1, 4, 5, 8):
        buffer = bytearray(room)
        assert store.read_into("a/1.jpg", memoryview(buffer)) == len(data)
        assert room < len(data) or bytes(buffer[: len(data)]) == data


@pytest.mark.timeout(20)
def test_what_is_no_readable_file_is_refused_by_name_and_never_hangs(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        server.bind("socket.jpg")
    store = FolderStore(tmp_path)
    for name in ("pipe", "folder", "loop", "zero", "socket", "missing", "a\0b", "x" * 300):
        with pytest.raises(SourceError) as caught:
            store.read_into(f"{name}.jpg", memoryview(bytearray(16)))
        assert printable(f"{name}.jpg") in caught.value.got
    with pytest.raises(SourceError, match="is missing"):
        store.size("missing.jpg")


def test_an_unreadable_file_is_refused_by_name(tmp_path):
    plant(tmp_path, "1.jpg")
    (tmp_path / "1.jpg").chmod(0)
    with pytest.raises(SourceError, match=r"1\.jpg cannot be read \(Permission denied\)"):
        bound_by_modes(FolderStore(tmp_path).read_into, "1.jpg", memoryview(bytearray(16)))


def test_threads_read_without_leaking_descriptors(tmp_path):
    for k in range(20):
        plant(tmp_path, f"{k}.jpg", data=bytes([k]) * 1000)
    store = FolderStore(tmp_path)
    before = len(os.listdir("/proc/self/fd"))

    def read(k: int) -> bool:
        buffer = bytearray(1001)
        return store.read_into(f"{k}.jpg", memoryview(buffer)) == 1000 and buffer[999] == k

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, np.random.default_rng(0).integers(0, 20, 1200)))
    assert len(os.listdir("/proc/self/fd")) == before


def test_strict_refuses_what_would_be_left_aside(tmp_path):
    plant(tmp_path, "cat/1.jpg")
    assert len(sources.load(tmp_path, strict=True).manifest) == 1
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    plant(tmp_path, "cat/notes.txt")
    sentence = refused(tmp_path, strict=True)
    assert "pipe.jpg" in sentence and "1 .txt file" in sentence
    assert "stray.jpg" in refused(plant(tmp_path / "other", "cat/1.jpg", "stray.jpg"), strict=True)
