"""squashfs images: other programs see the tree, images of others are read, and damage is found."""

import json
import random
import subprocess

import contract_sets as sets
import pytest
from given import Given, bare, of_reader, schema_of

import pysquashfs
from pysquashfs import parsing, superblock
from pysquashfs.image_file import ImageFile
from pysquashfs.mounting import MountError, mount
from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import DamagedFileError, FormatError
from smallfiles.formats import squashfs
from smallfiles.pack import verify

LAYOUTS = [v for v in sets.VARIANTS if v.format == "squashfs"]
LAYOUTS += [sets.Variant("raw, fragments", "squashfs", ".sqfs", (("fragments", True),))]
PHOTOS = [
    Given(f"c{i % 3}/photo {i}.v{i % 2}.JPEG", random.Random(i).randbytes(977 * i), i % 3) for i in range(40)
]


@pytest.fixture(params=LAYOUTS, ids=lambda variant: variant.name)
def layout(request):
    return request.param


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=120)
    assert done.returncode == 0, (words[0], done.stderr.decode(errors="replace"))


def write(out, samples=PHOTOS, **options):
    schema = schema_of(samples, classes=("ä", "b", "c"), name="photos")
    return squashfs.write(bare(samples), out, schema=schema, options=squashfs.Options(**options)).path


def plant(folder, samples=PHOTOS):
    for sample in samples:
        path = folder / sample.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample.data)
    return folder


def tree_of(folder):
    """Every sample of an unpacked or mounted image."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def facts(samples):
    """Bytes and target of each key."""
    return {key: (data, target) for key, data, target, _ in sets.facts(samples)}


@pytest.fixture
def squash(need_tool):
    def make(tree, image, *words):
        run(
            need_tool("mksquashfs", "squashfs-tools"),
            tree,
            image,
            "-quiet",
            "-no-progress",
            "-noappend",
            *words,
        )
        return image

    return make


@pytest.fixture
def unsquash(need_tool):
    def unpack(image, tree):
        run(need_tool("unsquashfs", "squashfs-tools"), "-quiet", "-no-progress", "-d", tree, image)
        return tree

    return unpack


@pytest.fixture
def odd(layout, tmp_path):
    """Samples with names of all kinds that fit into a path, and their image."""
    samples = [s for s in sets.samples_of(layout) if len(s.key) < 1000]
    layout.write(samples, layout.out(tmp_path), schema_of(samples))
    return samples, layout.out(tmp_path)


# Ours, seen by others


def test_tools_unpack_the_tree_and_an_older_record_survives_when_it_is_packed_again(
    odd, tmp_path, squash, unsquash, need_tool
):
    samples, image = odd
    tree = unsquash(image, tmp_path / "tree")
    (tmp_path / "ng").mkdir()
    run(need_tool("rdsquashfs", "squashfs-tools-ng"), "-q", "-u", "/", "-p", tmp_path / "ng", image)
    run(need_tool("7z", "p7zip-full"), "x", "-bd", f"-o{tmp_path / '7z'}", image)
    for folder in (tree, tmp_path / "ng", tmp_path / "7z"):
        assert tree_of(folder) == {s.key: bytes(s.data) for s in samples}
    sets.plant_old_record(image, tree)
    with formats.open(squash(tree, tmp_path / "again.sqfs", "-noD", "-noF")) as reader:
        assert sets.facts(reader) == sets.facts(samples)


@pytest.mark.parametrize("way", ["kernel", "squashfuse", "squashfuse_ll"])
def test_a_mounted_image_is_the_tree_that_was_packed(odd, way, need_tool):
    samples, image = odd
    if way != "kernel":
        need_tool(way, "squashfuse")
    try:
        with mount(image, way=way) as folder:
            assert tree_of(folder) == {s.key: bytes(s.data) for s in samples}
    except MountError as error:
        pytest.skip(str(error))


def test_the_text_inside_says_how_to_read_the_labels_without_us(tmp_path):
    data = write(tmp_path / "x.sqfs").read_bytes()
    text = data[data.index(b"This image was packed") : data.index(b"ARROW1")].decode()
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    code = "\n".join(lines).replace("print(", "said = (").replace('"x.sqfs"', f'"{tmp_path}/x.sqfs"')
    found = {}
    exec(code, found)
    assert found["table"]["label"].to_pylist() == [s.target for s in PHOTOS]
    assert json.loads(found["said"][1])["schema"]["name"] == "photos" and "pyarrow" in text


# Images of others


@pytest.mark.parametrize(
    ("name", "words"), [("default", []), ("raw", ["-noD", "-noF", "-no-fragments", "-b", "1M"])]
)
def test_an_image_by_mksquashfs_has_its_class_folders_as_labels(tmp_path, squash, name, words):
    image = squash(plant(tmp_path / "tree"), tmp_path / "x.sqfs", *words)
    with formats.open(image) as reader:
        assert facts(reader) == facts(PHOTOS)
        assert reader.classes == ("c0", "c1", "c2") and "label" in reader.fields
        assert reader.info()["layout"].startswith("foreign")
        wanted = [7, 0, 39, 7]
        assert reader.read_many(wanted) == [reader.read(index) for index in wanted]
        assert (reader.span(39) is not None) == (name == "raw")
    assert verify(image).verdict == "unproven"  # it has no digest


@pytest.mark.parametrize("split", ["", "train/"])
def test_a_mounted_image_by_mksquashfs_has_the_same_classes_as_its_file(tmp_path, split, squash):
    wanted = {"ant/3.jpg": 0, "cat/1.jpg": 1, "cat/2.jpg": 1, "dog/1.jpg": 2}
    plant(tmp_path / "tree", [Given(split + name, name.encode(), 0) for name in wanted])
    image = squash(tmp_path / "tree", tmp_path / "x.sqfs")
    with formats.open(image) as reader:
        assert {s.key.removeprefix(split): s.target for s in of_reader(reader)} == wanted
        assert reader.classes == ("ant", "cat", "dog")
    try:
        with mount(image) as point:
            found = sources.load(point).manifest
    except MountError as error:
        pytest.skip(str(error))
    pairs = zip(found.paths.to_pylist(), found.targets.to_pylist(), strict=True)
    assert {key.removeprefix(split): label for key, label in pairs} == wanted
    assert found.classes == ("ant", "cat", "dog")


def image_of(tmp_path, *keys):
    """An image that nobody's table describes."""
    pysquashfs.pack(tmp_path / "x.sqfs", [(key, key.encode()) for key in keys])
    return tmp_path / "x.sqfs"


@pytest.mark.parametrize(
    ("keys", "labels", "classes"),
    [
        (("a/1.jpg", "b/2.jpg", "b/deep/3.jpg"), {"a/1.jpg": 0, "b/2.jpg": 1, "b/deep/3.jpg": 1}, ("a", "b")),
        (("data/a/1.jpg", "data/b/2.jpg"), {"data/a/1.jpg": 0, "data/b/2.jpg": 1}, ("a", "b")),
        (("1.jpg", "2.png"), {"1.jpg": -1, "2.png": -1}, ()),
        (("a/1.jpg", "b/2.jpg", "logo.png", "README.md"), {"a/1.jpg": 0, "b/2.jpg": 1}, ("a", "b")),
        (("a/1.jpg", "b/.2.jpg", ".git/x.jpg", "notes.txt"), {"a/1.jpg": 0}, ("a", "b")),
        (("a.json", "b/c.json"), {"b/c.json": 0}, ("b",)),
        (("test/1.jpg",), {"test/1.jpg": -1}, ()),
        (("test/images/1.jpg",), {"test/images/1.jpg": -1}, ()),
        (("train/b/1.jpg", "val/a/2.jpg"), {"train/b/1.jpg": 1}, ("a", "b")),
        ((), {}, ()),
    ],
)
def test_labels_of_foreign_images_follow_their_folders(tmp_path, keys, labels, classes):
    with formats.open(image_of(tmp_path, *keys)) as reader:
        assert {key: reader.target(n) for n, key in enumerate(reader.keys().to_pylist())} == labels
        assert reader.classes == classes
        assert all(bytes(s.data) == s.key.encode() for s in reader)


def test_another_split_of_a_foreign_image_is_read_when_asked_for(tmp_path):
    image = image_of(tmp_path, "train/b/1.jpg", "val/a/2.jpg", "val/b/3.jpg")
    with squashfs.open(image, split="val") as reader:
        assert [(s.key, s.target) for s in of_reader(reader)] == [("val/a/2.jpg", 0), ("val/b/3.jpg", 1)]
    with pytest.raises(FormatError, match="no split 'test'"):
        len(squashfs.open(image, split="test"))


def test_a_table_whose_files_are_gone_is_refused_by_name(tmp_path, squash, unsquash):
    image = write(tmp_path / "x.sqfs")
    tree = unsquash(image, tmp_path / "tree")
    sets.plant_old_record(image, tree)
    (tree / PHOTOS[4].key).unlink()
    with pytest.raises(DamagedFileError, match=r"y\.sqfs.*photo 4"):
        len(formats.open(squash(tree, tmp_path / "y.sqfs")))
    (tree / PHOTOS[4].key).write_bytes(b"shorter")
    with pytest.raises(DamagedFileError, match="other sizes"):
        len(formats.open(squash(tree, tmp_path / "z.sqfs")))


# How ours is laid out


def test_a_raw_image_opens_without_its_inodes_and_leaves_no_index_beside_it(tmp_path, monkeypatch):
    image = write(tmp_path / "x.sqfs")
    monkeypatch.setattr(parsing, "parse", lambda file: pytest.fail("the inodes were read"))
    with formats.open(image) as reader:
        assert facts(reader) == facts(PHOTOS)
    assert {p.name for p in tmp_path.iterdir()} == {"x.sqfs", "x.sqfs.digest.json"}


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (["x" * 256], "more than 255 bytes"),
        (["ü" * 128 + "/a.jpg"], "more than 255 bytes"),
        (["/".join(["deep"] * 900)], "more than 4,095 bytes"),
        (["a", "a/b.jpg"], "'a'"),
        (["a.jpg", "a.jpg"], "twice"),
    ],
)
def test_keys_that_an_image_cannot_hold_are_refused_with_a_sentence(tmp_path, keys, what):
    samples = [Given(key, b"x", 0) for key in keys]
    with pytest.raises(FormatError, match=what):
        write(tmp_path / "x.sqfs", samples)


# Damage


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_flipped_byte_is_found_by_verify(tmp_path, count, capsys):
    image = write(tmp_path / "x.sqfs", [*PHOTOS, Given("big.bin", random.Random(0).randbytes(5 << 20), 1)])
    whole = bytearray(image.read_bytes())
    block = superblock.read(ImageFile(image))
    marks = [0, 4, 95, 96, block.inode_table - 33, block.inode_table - 1, block.inode_table, len(whole) - 1]
    for place in [*marks, *random.Random(count).choices(range(len(whole)), k=count - len(marks))]:
        with image.open("r+b") as file:
            file.seek(place)
            file.write(bytes([whole[place] ^ 0x10]))
        assert not verify(image).intact, f"byte {place}"
        with image.open("r+b") as file:
            file.seek(place)
            file.write(whole[place : place + 1])
    assert verify(image).intact
    with image.open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"\0\0\0\0\0\0\0\1")
    assert main(["verify", str(image)]) == 1
    said = capsys.readouterr().out
    assert "block 1" in said and "big.bin" in said
