"""`sources.load`: what a path is, said aloud, and one sentence when it is nothing."""

import os
from pathlib import Path

import pytest
from programs import bound_by_modes
from source_sets import contents, plant, refused, rows, tar_bytes

from smallfiles import sources
from smallfiles.errors import ManifestError, SourceError, UsageError
from smallfiles.manifest import Manifest


def make_tar(path: Path, *names: str) -> Path:
    path.write_bytes(tar_bytes({name: name.encode() for name in names}))
    return path


def test_a_path_is_recognised_for_what_it_is(tmp_path):
    plant(tmp_path / "tiny", "wnids.txt", "train/n01440764/images/1.JPEG", "train/n01443537/images/2.JPEG")
    (tmp_path / "tiny/wnids.txt").write_text("n01440764\n")
    plant(tmp_path / "flickr", "flickr30k_images/flickr30k_images/1.jpg")
    captions = "image_name| comment_number| comment\n1.jpg| 0| A dog .\n"
    (tmp_path / "flickr/flickr30k_images/results.csv").write_text(captions)
    make_tar(tmp_path / "any.tar", "cat/1.jpg")
    make_tar(tmp_path / "wds.tar", "1.jpg", "1.txt")
    make_tar(tmp_path / "renamed.tar", "n01440764/n01440764_1.JPEG")
    for name, kind in {
        "tiny": "tiny-imagenet",
        "flickr": "flickr30k",
        "any.tar": "tarball",
        "wds.tar": "webdataset tar",
        "renamed.tar": "imagenet, official tar",
    }.items():
        source = sources.load(tmp_path / name)
        assert source.kind == kind
        assert [len(data) for data in contents(source).values()] == source.manifest.sizes.tolist()


def test_a_kind_that_is_asked_for_is_not_guessed(tmp_path):
    plant(tmp_path, "train/n01440764/1.JPEG")
    tar = make_tar(tmp_path / "t.tar", "n01440764/n01440764_1.JPEG")
    assert (sources.load(tmp_path, "folder").kind, sources.load(tar, "tarball").kind) == ("folder", "tarball")
    for kind in ("folder", "flickr30k"):
        with pytest.raises(SourceError, match="is a file"):
            sources.load(tar, kind)
    with pytest.raises(SourceError, match="is not a folder of tar or zip files only"):
        sources.load(tmp_path, "tarball")
    with pytest.raises(UsageError, match="folder, imagenet, flickr30k, tarball"):
        sources.load(tmp_path, "imagnet")


def test_a_manifest_finds_its_bytes_by_its_hint_beside_it_or_by_root(tmp_path):
    plant(tmp_path / "data", "cat/1.jpg", "dog/2.jpg")
    manifest = sources.load(tmp_path / "data").manifest
    manifest.save(tmp_path / "data/beside.json")
    manifest.save(tmp_path / "away.json")
    manifest.save_flat(tmp_path / "data/flat.json")
    for path, root in (
        ("data/beside.json", None),
        ("away.json", tmp_path / "data"),
        ("data/flat.json", None),
    ):
        source = sources.load(tmp_path / path, root=root)
        assert source.kind == "manifest" and rows(source) == {"cat/1.jpg": 0, "dog/2.jpg": 1}
        assert source.store.size("cat/1.jpg") > 0 and source.root is not None
    tar = make_tar(tmp_path / "t.tar", "cat/1.jpg", "dog/2.jpg")
    for kept, hint in ((manifest, "data"), (sources.load(tar).manifest, "t.tar")):
        Manifest(kept.table, kept.name, "train", kept.classes, hint).save(tmp_path / "hinted.json")
        assert list(contents(sources.load(tmp_path / "hinted.json"))) == ["cat/1.jpg", "dog/2.jpg"]
    with pytest.raises(SourceError, match=r"the data of .*hinted\.json is not at .*gone"):
        sources.load(tmp_path / "hinted.json", root=tmp_path / "gone")
    assert "is of split 'train'" in refused(tmp_path / "hinted.json", split="val")


def test_a_juelich_manifest_reads_the_kaggle_tree_and_tells_its_label_order(tmp_path):
    key = "ILSVRC/Data/CLS-LOC/train/n03146219/n03146219_8050.JPEG"
    plant(tmp_path, key)
    (tmp_path / "imagenet_train.json").write_text(f'{{"{key}": 524}}')
    source = sources.load(tmp_path / "imagenet_train.json")
    assert rows(source) == {key: 524} and source.store.size(key) > 0
    assert sources.imagenet.check_label_order(source.manifest) == "sorted"


@pytest.mark.timeout(30)
def test_what_is_no_data_set_gets_one_sentence(tmp_path):
    plant(tmp_path / "csvs", "a.csv", "b.csv", "c.csv")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "void.tar").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.tar")
    for name, told in {
        "csvs": "3 .csv files and no images",
        "empty": "no images",
        "missing/deeper": f"does not exist (but {tmp_path} does)",
        "notes.txt": "is neither a tar file, a zip file nor a manifest",
        "void.tar": "is neither a tar file",
        "pipe.tar": "neither a file nor a folder",
    }.items():
        with pytest.raises(SourceError) as caught:
            sources.load(tmp_path / name)
        assert told in str(caught.value) and name.partition("/")[0] in str(caught.value)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ManifestError):
        sources.load(tmp_path / "bad.json")


def test_a_folder_that_may_not_be_listed_is_named(tmp_path):
    plant(tmp_path, "cat/1.jpg")
    (tmp_path / "cat").chmod(0)
    with pytest.raises(SourceError, match="cat cannot be inspected"):
        bound_by_modes(sources.load, tmp_path)
    (tmp_path / "cat").chmod(0o700)
