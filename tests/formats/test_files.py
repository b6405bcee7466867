"""Plain files under the contract: names, collisions, and trees that somebody else made."""

import hashlib
import json
import os

import pytest
from given import Given, bare, schema_of

from smallfiles import formats
from smallfiles.errors import DamagedFileError, FormatError
from smallfiles.formats import files
from smallfiles.manifest import Manifest

SAMPLES = [Given("a/1.jpg", b"one", 0), Given("a/b/2.jpg", b"two", 1), Given("3", b"three", 1)]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "set.files"


def pack(out, samples=SAMPLES, **more):
    return files.write(bare(samples), out, schema=schema_of(samples), **more)


def test_samples_lie_at_their_keys_beside_a_manifest(out):
    pack(out)
    found = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert found == {"a/1.jpg", "a/b/2.jpg", "3", "manifest.json", "manifest.json.digest.json"}
    assert (out / "a/b/2.jpg").read_bytes() == b"two"
    assert json.loads((out / "manifest.json").read_text())["target"] == "label"
    assert Manifest.load(out / "manifest.json").paths.to_pylist() == [s.key for s in SAMPLES]


@pytest.mark.parametrize("digest", [True, False])
def test_the_manifest_keeps_the_hash_of_each_sample_when_digests_are_taken(out, digest):
    pack(out, digest=digest)
    reader = formats.open(out)
    expected = [hashlib.sha256(s.data).hexdigest() if digest else None for s in SAMPLES]
    assert [reader.sha256(n) for n in range(3)] == expected


@pytest.mark.parametrize(
    ("first", "second"), [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b"), ("a", "a"), ("a", "a/b/c")]
)
def test_names_that_collide_are_refused_by_name(out, first, second):
    with pytest.raises(FormatError, match=r"collides|same|twice"):
        pack(out, [Given(first, b"1", 0), Given(second, b"2", 0)])


@pytest.mark.parametrize("key", ["x" * 256, "a/" + "ü" * 128, "/".join(["y" * 200] * 25), "manifest.json"])
def test_names_that_no_file_can_have_are_refused_by_name(out, key):
    with pytest.raises(FormatError, match="expected a name that a file can have"):
        pack(out, [Given(key, b"1", 0)])


@pytest.mark.parametrize("key", ["../x", "/x", "a/../../x"])
def test_nothing_is_written_outside_of_the_folder(out, key):
    with pytest.raises(FormatError, match=r"leaves its folder|absolute"):
        pack(out, [Given(key, b"1", 0)])
    assert [p.name for p in out.parent.iterdir()] == ["set.files"] and not [*out.iterdir()]


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "0 of 3"), (b"tw", "2 of 3"), (b"two!", "more than 3 of 3"), (None, "No such file")],
)
def test_a_file_of_another_size_and_a_missing_one_are_refused_by_name(out, content, told, monkeypatch):
    pack(out)
    (out / "a/b/2.jpg").unlink()
    if content is not None:
        (out / "a/b/2.jpg").write_bytes(content)
    reader, read = formats.open(out), os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 2)))  # and goes on
    with pytest.raises(DamagedFileError, match=rf"a/b/2\.jpg is damaged: .*{told}"):
        reader.read(1)
    assert reader.read(2) == b"three"


def test_a_folder_without_a_manifest_and_a_damaged_manifest_are_refused(out):
    out.mkdir()
    with pytest.raises(FormatError, match=r"holds no manifest\.json"):
        len(formats.open(out))
    (out / "manifest.json").write_text('{"format": ')
    with pytest.raises(DamagedFileError, match=r"manifest\.json"):
        len(formats.open(out))


def test_a_file_whose_size_the_manifest_does_not_have_is_read_whole(out):
    pack(out, digest=False)
    record = json.loads((out / "manifest.json").read_text())
    record["columns"]["bytes"][1] = None
    (out / "manifest.json").write_text(json.dumps(record))
    (out / "a/b/2.jpg").write_bytes(b"another")
    reader = formats.open(out)
    assert [(bytes(reader.read(n)), reader.size(n)) for n in (1, 2)] == [(b"another", 7), (b"three", 5)]
