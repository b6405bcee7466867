"""Packed outputs as sources: no label, class, caption or JSON object is lost on the way back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from given import of_reader
from source_sets import plant

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import ManifestError, SmallfilesError, SourceError, UsageError
from smallfiles.loading.fields import field_batches
from smallfiles.loading.makers import Ragged
from smallfiles.manifest import Manifest
from smallfiles.pack import PackConfig, pack, verify
from smallfiles.sources import Source

OUTPUTS = ("x.files", "x.arrow", "x.h5", "x.tar", "x.tars", "x.sqfs", "x.lmdb")
KEYS = [f"{name}/{n}.jpg" for name in ("b", "d", "f") for n in range(5)]
CLASSES = ("a", "b", "c", "d", "e", "f")  # a, c and e are empty, so the labels are 1, 3, 5


def jpeg(key: str) -> bytes:
    return b"\xff\xd8\xff" + key.encode() * 40 + b"\xff\xd9"


def truth(tmp_path: Path, kind: str) -> tuple[Source, dict[str, object]]:
    """A source, and what it is as plain Python, by key."""
    targets = {
        "labels": [CLASSES.index(key[0]) for key in KEYS],
        "captions": [[f"a {key}", "é"][: n % 3] for n, key in enumerate(KEYS)],
    }[kind]
    metas = [{"n": n, "word": "ü"} if n % 3 else None for n in range(len(KEYS))]
    for key in KEYS:
        plant(tmp_path / "tree", key, data=jpeg(key))
    classes = CLASSES if kind == "labels" else ()
    whole = Manifest.from_columns(KEYS, targets, name="mixed", split="val", classes=classes, metas=metas)
    whole.select(np.random.default_rng(3).permutation(len(KEYS))).save(tmp_path / "m.json")
    known = {key: (jpeg(key), target, meta) for key, target, meta in zip(KEYS, targets, metas, strict=True)}
    return sources.load(tmp_path / "m.json", root=tmp_path / "tree"), known


def held(out: Path) -> dict[str, object]:
    reader = formats.open(out)
    return {s.key: (bytes(s.data), s.target, s.meta) for s in of_reader(reader)}


@pytest.mark.parametrize("kind", ["labels", "captions"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_packed_output_packs_again_with_all_that_it_holds(name: str, kind: str, tmp_path: Path) -> None:
    source, known = truth(tmp_path, kind)
    out = tmp_path / name
    pack(source, out)
    again = sources.load(out)
    assert again.kind == f"packed {formats.name_of(out)}"
    assert again.manifest.classes == source.manifest.classes
    assert (again.manifest.name, again.manifest.split) == ("mixed", "val")
    pack(again, tmp_path / "again.arrow", PackConfig(verify="full"))
    assert held(tmp_path / "again.arrow") == known
    assert verify(tmp_path / "again.arrow", again).intact
    pack(source, tmp_path / "direct.arrow")
    assert (tmp_path / "direct.arrow").read_bytes() == (tmp_path / "again.arrow").read_bytes()


def test_other_labels_in_a_packed_output_are_found_by_verify(tmp_path: Path) -> None:
    source, _ = truth(tmp_path, "labels")
    pack(source, tmp_path / "x.h5")
    kept = source.manifest
    labels = [0, *kept.targets.to_pylist()[1:]]
    wrong = Manifest.from_columns(kept.paths, labels, classes=CLASSES, metas=kept.table["meta"])
    pack(dataclasses.replace(source, manifest=wrong), tmp_path / "wrong.arrow")
    report = verify(tmp_path / "wrong.arrow", sources.load(tmp_path / "x.h5"))
    assert report.verdict == "differs"
    assert report.differences == [f"{kept.path(0)} has another label in the source"]


def test_renamed_plain_files_are_still_read_by_their_manifest(tmp_path: Path) -> None:
    source, _ = truth(tmp_path, "labels")
    pack(source, tmp_path / "x.files")
    (tmp_path / "x.files").rename(tmp_path / "photos")
    again = sources.load(tmp_path / "photos")
    assert again.kind == "packed files" and again.manifest.classes == CLASSES
    assert sources.load(tmp_path / "photos", "folder").manifest.classes == ("b", "d", "f")
    (tmp_path / "photos/manifest.json").unlink()
    (tmp_path / "photos").rename(tmp_path / "y.files")
    with pytest.raises(SmallfilesError, match=r"manifest\.json"):
        sources.load(tmp_path / "y.files")


def test_another_manifest_in_a_folder_is_a_file_like_any_other(tmp_path: Path) -> None:
    truth(tmp_path, "labels")
    (tmp_path / "tree/manifest.json").write_text('{"name": "a web app"}')
    assert sources.load(tmp_path / "tree").kind == "folder"


def test_a_manifest_of_a_packed_file_finds_its_bytes_there(tmp_path: Path) -> None:
    source, known = truth(tmp_path, "labels")
    pack(source, tmp_path / "x.arrow")
    assert main(["manifest", str(tmp_path / "x.arrow"), "-o", str(tmp_path / "x.json")]) == 0
    assert main(["pack", str(tmp_path / "x.json"), str(tmp_path / "y.h5")]) == 0
    assert held(tmp_path / "y.h5") == known


def test_a_file_by_pyarrow_alone_packs_with_its_labels(tmp_path: Path) -> None:
    table = pa.table({"image": [b"one", b"two"], "label": pa.array([3, 1], pa.int64())})
    with pa.OSFile(str(tmp_path / "x.arrow"), "w") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    pack(sources.load(tmp_path / "x.arrow"), tmp_path / "y.h5")
    assert sorted((data, target) for data, target, _ in held(tmp_path / "y.h5").values()) == [
        (b"one", 3),
        (b"two", 1),
    ]


def test_what_a_packed_source_cannot_give_is_refused(tmp_path: Path) -> None:
    source, _ = truth(tmp_path, "labels")
    pack(source, tmp_path / "x.arrow")
    pack(source, tmp_path / "x.files")
    for name in ("x.arrow", "x.files", "m.json"):
        with pytest.raises(SourceError, match="unlabelled"):
            sources.load(tmp_path / name, unlabelled=True, root=tmp_path / "tree")
    for name in ("x.arrow", "x.files"):
        with pytest.raises(SourceError, match="'train' was requested"):
            sources.load(tmp_path / name, split="train")
    with pytest.raises(SourceError, match=r"nothing\.jpg is missing"):
        sources.load(tmp_path / "x.arrow").store.size("nothing.jpg")


def test_scaled_pictures_stay_marked_and_their_bytes_are_compared(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "tree/c").mkdir(parents=True)
    Image.new("RGB", (64, 64), (200, 30, 30)).save(tmp_path / "tree/c/a.jpg")
    pack(sources.load(tmp_path / "tree"), tmp_path / "x.arrow", PackConfig(resize=32))
    small = sources.load(tmp_path / "x.arrow")
    pack(small, tmp_path / "y.h5")
    record = formats.open(tmp_path / "y.h5").info()["provenance"]["resize"]
    assert record == {"short_side": 32, "store": "jpeg", "quality": 90}
    pack(small, tmp_path / "y.files")
    assert sources.load(tmp_path / "y.files").resize == record
    (tmp_path / "y.h5.digest.json").unlink()
    assert verify(tmp_path / "y.h5", small).intact  # the bytes were compared
    assert verify(tmp_path / "y.h5", sources.load(tmp_path / "tree")).verdict == "unproven"


def test_a_hint_that_leaves_the_manifests_folder_must_be_allowed(tmp_path: Path) -> None:
    plant(tmp_path, "secret/passwd", "here/data/passwd", data=b"root:x:0:0")
    document = {"format": "smallfiles-manifest", "version": 1, "target": "label"}
    document["columns"] = {"path": ["passwd"], "label": [0]}
    manifest = tmp_path / "here/m.json"
    for hint in ("../secret", "data/../../secret", ".."):
        manifest.write_text(json.dumps({**document, "root_hint": hint}))
        with pytest.raises(SourceError, match=r"outside of its own folder.*--root"):
            sources.load(manifest)
        assert sources.load(manifest, root=tmp_path / "secret").store.size("passwd") == 10
    manifest.write_text(json.dumps({**document, "root_hint": "data"}))
    assert sources.load(manifest).store.size("passwd") == 10


@pytest.mark.parametrize("suffix", ["arrow", "h5"])
def test_labels_beyond_64_bits_are_refused_by_name(suffix: str, tmp_path: Path) -> None:
    out, label = tmp_path / f"x.{suffix}", 2**64 - 1
    if suffix == "arrow":
        table = pa.table({"key": ["a"], "label": pa.array([label], pa.uint64()), "data": [jpeg("a")]})
        with pa.ipc.new_file(str(out), table.schema) as writer:
            writer.write_table(table)
    else:
        data = np.frombuffer(jpeg("a"), np.uint8)
        with h5py.File(out, "w") as file:
            group = file.create_group("train")
            group["data"], group["offsets"] = data, np.array([0, len(data)], np.uint64)
            group["labels"] = np.array([label], np.uint64)
    for read in (sources.load, verify):
        with pytest.raises(SmallfilesError, match=rf"x\.{suffix}: 1 label is too large: {label} \(row 0\)"):
            read(out)


def test_a_zarr_store_is_refused_with_the_way_to_read_it(tmp_path):
    store = tmp_path / "x.zarr"
    store.mkdir()
    for use in (formats.open, sources.load, lambda path: formats.name_of(path)):
        with pytest.raises(UsageError, match=r"only the zarr library reads.*zarr\.open_group"):
            use(store)


@pytest.mark.parametrize("name", ["m.json", *OUTPUTS])
def test_the_first_file_keeps_the_name_that_it_was_given(name: str, tmp_path: Path) -> None:
    for key in KEYS:
        plant(tmp_path, key, data=jpeg(key))
    (tmp_path / "t.csv").write_text("filename,species\n" + "".join(f"{key},{key[0]}\n" for key in KEYS))
    named, plain = tmp_path / name, tmp_path / f"plain-{name}"
    command = "manifest" if name == "m.json" else "pack"
    for out, field in ((named, "photo"), (plain, "image")):
        given = ("--field", f"{field}=filename", "--field", "label=species")
        where = ("-o", str(out)) if command == "manifest" else (str(out),)
        assert main([command, str(tmp_path / "t.csv"), *where, *given]) == 0
    pack(sources.load(named), tmp_path / "again.arrow")
    pack(sources.load(plain), tmp_path / "usual.arrow")
    pack(sources.load(tmp_path / "t.csv"), tmp_path / "derived.arrow")
    again = formats.open(tmp_path / "again.arrow")
    assert list(again.fields) == ["photo", "label"] and bytes(again.blob("photo").read(0)) == jpeg(KEYS[0])
    assert field_batches(again).make([0], 0).arrays["photo"].tobytes() == jpeg(KEYS[0])
    assert "view" in field_batches(again, {"view": Ragged()}).make([0], 0).arrays
    assert (tmp_path / "usual.arrow").read_bytes() == (tmp_path / "derived.arrow").read_bytes()
    if command == "pack":
        assert list(formats.open(named).fields) == ["photo", "label"]


def test_a_manifest_whose_first_file_has_the_name_of_another_field_is_refused(tmp_path: Path) -> None:
    for first, got in (
        ("age", "and another field are called"),
        ("label", "used for something else"),
        (3, "text"),
    ):
        with pytest.raises(ManifestError, match=got):
            Manifest.from_columns(["a.jpg"], [1], values={"age": [3]}, first=first)
