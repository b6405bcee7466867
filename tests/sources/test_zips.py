"""Zip files read in place: whole, damaged, hostile, and with labels in a table."""

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from source_sets import contents, refused, rows

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError, SourceError
from smallfiles.formats import bytefile
from smallfiles.pack import PackConfig, pack, verify

TREE = {"dog/1.jpg": b"one", "cat/2.jpg": b"", "cat/ü é.PNG": b"x" * 150_000, "dog/4.jpg": os.urandom(5000)}


def put(path, members, method=zipfile.ZIP_DEFLATED):
    path.parent.mkdir(exist_ok=True, parents=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_class_folders_in_a_zip_are_labels_and_every_format_verifies_against_it(tmp_path, method):
    path = put(tmp_path / "a set.ZIP", {"set/": b"", **{f"set/{k}": v for k, v in TREE.items()}}, method)
    source = sources.load(path)
    assert rows(source) == {"set/dog/1.jpg": 1, "set/cat/2.jpg": 0, "set/cat/ü é.PNG": 0, "set/dog/4.jpg": 1}
    assert contents(source) == {f"set/{name}": data for name, data in TREE.items()}
    assert contents(pickle.loads(pickle.dumps(source))) == contents(source)
    for out in (tmp_path / "o.arrow", tmp_path / "o.tar"):
        pack(source, out, PackConfig(check="none", shuffle=1))
        assert not verify(out, against=sources.load(path)).differences


def test_backslashes_of_windows_are_folders_and_lead_nowhere_else(tmp_path):
    def of_windows(*names):
        members = {zipfile.ZipInfo(name): b"x" for name in names}
        for info in members:
            info.create_system = 0
        return put(tmp_path / "t.zip", members)

    assert rows(sources.load(of_windows("cat\\", "cat\\1.jpg", "dog\\2.jpg"))) == {
        "cat/1.jpg": 0,
        "dog/2.jpg": 1,
    }
    assert "'../1.jpg'" in refused(of_windows("..\\1.jpg"))


def test_what_lies_beside_a_sample_in_a_zip_is_its_target(tmp_path):
    members = {f"{n}.{kind}": data for n in "01" for kind, data in (("jpg", b"x"), ("cls", n.encode()))}
    assert rows(sources.load(put(tmp_path / "t.zip", members))) == {"0.jpg": 0, "1.jpg": 1}


def test_a_folder_of_zips_has_a_class_per_zip_or_labels_from_a_table(tmp_path):
    for name in ("cat", "dog"):
        put(tmp_path / f"in/{name}.zip", {f"{name}{k}.jpg": f"{name}{k}".encode() for k in range(2)})
    source = sources.load(tmp_path / "in")
    assert source.kind == "folder of zips" and source.manifest.classes == ("cat", "dog")
    assert contents(source)["dog/dog1.jpg"] == b"dog1"
    table = "".join(f"{name}{k}.jpg,{k}\n" for name in ("dog", "cat") for k in (0, 1))
    (tmp_path / "t.csv").write_text(f"filename,label\n{table}")
    labelled = sources.load(tmp_path / "in", labels=tmp_path / "t.csv")
    assert rows(labelled) == {f"{c}/{c}{k}.jpg": k for c in ("cat", "dog") for k in (0, 1)}
    source.manifest.save(tmp_path / "m.json")
    assert contents(sources.load(tmp_path / "m.json", root=tmp_path / "in")) == contents(source)


def test_a_table_labels_the_samples_of_a_zip_with_masks_and_values(tmp_path, capsys):
    members = {f"{kind}/{n}.png": f"{kind}{n}".encode() for n in range(4) for kind in ("images", "masks")}
    path = put(tmp_path / "t.zip", members)
    (tmp_path / "t.csv").write_text("id,label,age\n3,b,1.5\n0,a,2.5\n7,a,3.5\n1,b,4.5\n")
    fields = ["--field", "image=images/{id}.png", "--field", "mask=masks/{id}.png"]
    command = [str(path), str(tmp_path / "o.arrow"), "--labels", str(tmp_path / "t.csv"), *fields]
    assert main(["pack", *command, "--check", "none"]) == 0
    said = capsys.readouterr().err
    assert "1 row of the table without a file left out: images/7.png" in said and "images/2.png" in said
    reader = formats.open(tmp_path / "o.arrow")
    assert reader.keys().to_pylist() == [f"images/{n}.png" for n in (0, 1, 3)]
    assert [reader.target(n) for n in range(3)] == [0, 1, 1]
    assert bytes(reader.blob("mask").read(2)) == b"masks3"
    assert reader.table()["age"].to_pylist() == [2.5, 4.5, 1.5]
    assert main(["pack", *command[:1], str(tmp_path / "p.arrow"), *command[2:], "--strict"]) == 1
    assert main(["pack", *command[:1], str(tmp_path / "p.arrow"), *fields]) == 1
    assert "has no table for --field" in capsys.readouterr().err


def test_hostile_names_in_a_zip_are_refused(tmp_path):
    for name in ("../1.jpg", "/etc/1.jpg", "a/../../1.jpg"):
        assert repr(name) in refused(put(tmp_path / "h.zip", {name: b"x"}))
    data = put(tmp_path / "h.zip", {"cat/1.jpg?.exe": b"x"}).read_bytes()  # zipfile would cut it at a NUL
    (tmp_path / "h.zip").write_bytes(data.replace(b"1.jpg?", b"1.jpg\0"))
    assert r"1.jpg\x00.exe" in refused(tmp_path / "h.zip")


def test_what_cannot_be_read_in_place_is_refused_with_the_way(tmp_path):
    assert "rare method: cat/1.jpg" in refused(put(tmp_path / "b.zip", {"cat/1.jpg": b"x"}, zipfile.ZIP_LZMA))
    data = bytearray(put(tmp_path / "c.zip", {"cat/1.jpg": b"x"}).read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 8] |= 1
    (tmp_path / "c.zip").write_bytes(data)
    assert "encrypted" in refused(tmp_path / "c.zip") and "Unzip it" in refused(tmp_path / "c.zip")
    (tmp_path / "c.zip").write_bytes(data[:-30])
    assert "is damaged: as a zip file: File is not a zip file" in refused(tmp_path / "c.zip")


def test_bombs_are_refused_before_anything_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(bytefile, "FREE_BYTES", 1 << 20)
    texts = {f"{n}.json": os.urandom(1000) * 50 for n in range(40)}  # each would be held in memory
    assert "at most 20 times" in refused(put(tmp_path / "texts.zip", texts))
    one, two = zipfile.ZipInfo("cat/1.jpg"), zipfile.ZipInfo("cat/2.jpg")
    with zipfile.ZipFile(tmp_path / "same.zip", "w") as archive:
        archive.writestr(one, b"x" * 1000)
        two.header_offset, two.file_size, two.compress_size = one.header_offset, one.file_size, one.file_size
        two.CRC, two.create_version, two.extract_version = one.CRC, one.create_version, one.extract_version
        archive.filelist.append(two)
    assert "members overlap" in refused(tmp_path / "same.zip")


def test_a_member_larger_than_it_claims_is_never_inflated_beyond_that(tmp_path):
    data = bytearray(put(tmp_path / "t.zip", {"cat/1.jpg": bytes(100_000)}).read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\1\2") + 24, 10)
    (tmp_path / "t.zip").write_bytes(data)
    source = sources.load(tmp_path / "t.zip", unlabelled=True)
    with pytest.raises(SourceError, match="not what its directory says"):
        source.store.read_into("cat/1.jpg", memoryview(bytearray(100)))


def test_no_flipped_byte_of_a_zip_gives_other_data_or_a_foreign_traceback(tmp_path):
    rng = np.random.default_rng(0)
    whole = put(tmp_path / "t.zip", {"cat/1.jpg": b"abc" * 60, "dog/2.jpg": os.urandom(200)}).read_bytes()
    truth = [*contents(sources.load(tmp_path / "t.zip")).values()]
    for _ in range(300):
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        cut = int(rng.integers(99)) if rng.integers(3) == 0 else 0
        (tmp_path / "t.zip").write_bytes(data[: len(data) - cut])
        try:
            found = contents(sources.load(tmp_path / "t.zip", unlabelled=True))
        except SmallfilesError:
            continue
        for name, data in found.items():  # the name itself may have changed
            assert data in truth, name


def test_a_file_that_only_looks_like_a_zip_is_no_source(tmp_path):
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    (tmp_path / "t.npz").write_bytes(file.getvalue())
    assert "is neither a tar file, a zip file" in refused(tmp_path / "t.npz")
