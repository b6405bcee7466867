"""Damaged and hostile images: a sentence each time, soon, and in little memory."""

import time
import tracemalloc
import zlib

import pytest
from squashfs_crafted import BLOCK, Node, craft, file, folder, symlink
from squashfs_trees import content

from pysquashfs import SquashFS, SquashFSError, backends, image_file, layout, pack, parsing
from pysquashfs.errors import DamagedImageError
from smallfiles.measure.workers import peak_memory

pytestmark = pytest.mark.usefixtures("backend")
python_only = pytest.mark.parametrize("backend", ["python"], indirect=True)

MIB = 1 << 20
TREE = folder((b"a", file(b"hello")), (b"b", folder((b"c", file(b"x" * 10_000)), (b"l", symlink(b"../a")))))


def refused(path, image, match):
    """The image is refused, when it is opened or when it is read; in other words by libsquashfs."""
    path.write_bytes(image)
    by_library = backends.choose(path, "auto")[0] == "libsquashfs"  # of the fixture
    tracemalloc.start()
    began_s = time.process_time()
    with pytest.raises(SquashFSError, match=None if by_library else match) as caught:  # noqa: SIM117
        with SquashFS(path) as opened:
            for row in range(len(opened)):
                opened.read_at(row)
            opened.list()
    used_s, peak_bytes = time.process_time() - began_s, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert used_s < 5  # tracemalloc makes it several times slower
    assert peak_bytes < 320 * MIB


def test_the_crafted_image_is_right_when_nothing_lies(tmp_path):
    (tmp_path / "x").write_bytes(craft(TREE))
    with SquashFS(tmp_path / "x") as image:
        assert image.list() == ["a", "b", "b/c", "b/l"]
        assert [image.read("a"), image.read("b/c")] == [b"hello", b"x" * 10_000]
        assert image.stat("b/l").target == "../a"
        assert image.verify().ok


@pytest.mark.parametrize("name", [b"..", b".", b"../up", b"/etc/passwd", b"a/b", b"a\0b", b"\0", b"/"])
@pytest.mark.parametrize("kind", [file, folder, lambda: symlink(b"/")], ids=["file", "folder", "symlink"])
def test_names_that_leave_their_folder_are_refused(tmp_path, name, kind):
    image = craft(folder((b"ok", folder((name, kind()), (b"good", file())))))
    refused(tmp_path / "x", image, "names something .* in b'ok/'; expected names that stay in their folder")


@pytest.mark.parametrize(
    "second", [file(b"2"), symlink(b"/etc"), folder()], ids=["file", "symlink", "folder"]
)
def test_two_entries_of_one_name_are_refused(tmp_path, second):
    image = craft(folder((b"f", folder((b"same", file(b"1")), (b"other", file()), (b"same", second)))))
    refused(tmp_path / "x", image, "has two entries named b'f/same'")


def test_loops_of_folders_are_refused(tmp_path):
    inner, outer, shared = folder(), folder(), folder((b"f", file()))
    inner.entries.append((b"self", inner))
    refused(tmp_path / "x", craft(folder((b"d", inner))), "b'd/self' is reached twice")
    outer.entries.append((b"d", folder((b"root", outer))))
    refused(tmp_path / "x", craft(outer), "b'd/root' is reached twice")
    refused(tmp_path / "x", craft(folder((b"one", shared), (b"two", shared))), "b'two' is reached twice")


def test_deep_folders_are_walked_without_recursion_and_absurd_ones_refused(tmp_path):
    def chain(depth):
        node = folder((b"f", file(b"deep")))
        for _ in range(depth):
            node = folder((b"d", node))
        return node

    (tmp_path / "x").write_bytes(craft(chain(1000)))
    with SquashFS(tmp_path / "x") as image:
        assert image.read("d/" * 1000 + "f") == b"deep"
    refused(
        tmp_path / "x", craft(chain(2100)), "has more than 4,096 bytes; expected paths that Linux can open"
    )


def test_paths_that_would_fill_the_memory_are_refused(tmp_path):
    one = file()
    node = folder(*((b"%05d" % number, one) for number in range(90_000)))
    for _ in range(15):
        node = folder((b"d" * 255, node))
    refused(tmp_path / "x", craft(node), "bytes of paths; expected no bomb")


@pytest.mark.parametrize(
    ("node", "match"),
    [
        (file(size=0xFFFF_FFFF, words=[]), "expected sizes of all its blocks"),
        (file(words=[], size=10 * BLOCK), "overlap or are cut off"),
        (file(b"abc", start=1 << 31), "lies outside of its"),
        (file(b"abc", start=0xFFFF_FFFF), "lies outside of its"),
        (file(b"abc", words=[0xFEFF_FFFF]), "a block has more than 4,096 bytes"),
        (file(b"abc", words=[2]), "does not decompress"),
        (file(b"abc", words=[layout.DATA_RAW | 2]), "gives 2 bytes; expected 3"),
        (file(b"abc", words=[layout.DATA_RAW | 4]), "gives 4 bytes; expected 3"),
        (file(zlib.compress(bytes(100 * MIB)), size=4000, words=[4000]), "more than 4,096 bytes|cut off"),
        (file(size=5, words=[], fragment=7), "a fragment beyond its table of 0"),
        (file(uid=9), "an owner beyond its table of 1 ids"),
        (symlink(b"x", size=100_000), "a symlink of more than 65,535 bytes"),
        (symlink(b"x", size=50_000), "overlap or are cut off"),
        (folder(listing=(0, 0, 60_000)), "has .* bytes; expected .* which its folders count"),
        (folder((b"in", file()), listing=(0, 9000, 4)), "holds nothing at block 0, offset 9,000"),
        (folder((b"in", file()), listing=(77, 0, 4)), "holds nothing at block 77"),
        (folder((b"in", file()), listing=(0, 5, 4)), "damaged listing of the folder b'b/'"),
        (file(claimed_kind=layout.DIRECTORY), "says of an inode what it is not"),
        (folder(claimed_kind=layout.FILE), "says of an inode what it is not"),
        (file(claimed_kind=0), "says of an inode what it is not"),
        (file(claimed_kind=15), "says of an inode what it is not"),
    ],
    ids=str,
)
def test_inodes_that_lie_are_refused(tmp_path, node, match):
    refused(tmp_path / "x", craft(folder((b"a", file(b"first")), (b"b", node), (b"c", file(b"last")))), match)


TAIL = {"size": 5, "words": [], "fragment": 0}


@pytest.mark.parametrize(
    ("node", "content", "raw", "match"),
    [
        (file(**TAIL, fragment_offset=4095), b"abcde", True, "ends outside of its fragment"),
        (file(**TAIL, fragment_offset=0xFFFF_FFFF), b"abcde", True, "ends outside of its fragment"),
        (file(**TAIL, fragment_offset=1), b"abcde", True, "ends before byte 6"),
        (file(**TAIL), b"no zlib", False, "does not decompress"),
        (file(**TAIL), zlib.compress(b"abcde")[:-5], False, "does not decompress"),
        (file(**TAIL), zlib.compress(bytes(10_000)), False, "more than 4,096 bytes"),
        (file(**TAIL), bytes(5000), True, "a fragment lies outside of the image"),
    ],
)
def test_fragments_that_lie_are_refused(tmp_path, node, content, raw, match):
    refused(tmp_path / "x", craft(folder((b"f", node)), tails=[(content, raw)]), match)


def test_a_fragment_is_read_when_it_is_right(tmp_path):
    tail, both = Node(**TAIL, fragment_offset=2), Node(data=b"z" * BLOCK, size=BLOCK + 3, fragment=1)
    image = craft(
        folder((b"both", both), (b"tail", tail)),
        tails=[(zlib.compress(b"--hello"), False), (b"end", True)],
    )
    (tmp_path / "x").write_bytes(image)
    with SquashFS(tmp_path / "x") as opened:
        assert opened.read("tail") == b"hello"
        assert opened.read("both") == b"z" * BLOCK + b"end"


def test_metadata_that_expands_without_end_is_refused(tmp_path):
    refused(tmp_path / "x", craft(TREE, bombs=30_000), "grows to more than .* bytes; expected no bomb")


def test_a_file_of_holes_larger_than_the_image_is_read_piece_by_piece_only(tmp_path):
    size = 1200 * MIB
    image = craft(folder((b"holes", file(size=size, words=[0] * (size // BLOCK), start=96))))
    refused(tmp_path / "x", image, r"holes claims 1,258,291,200 bytes .* piece by piece with chunks\(\)")
    with SquashFS(tmp_path / "x") as opened:
        assert sum(map(len, opened.chunks("holes"))) == size


@pytest.mark.parametrize(
    ("claims", "match"),
    [
        ({"magic": 0x68737173}, "expected a squashfs image"),
        ({"major": 3, "minor": 1}, "of version 3.1"),
        ({"block_bytes": 0}, "its block size is 0"),
        ({"block_bytes": 1 << 30, "block_log": 30}, "its block size is 1,073,741,824"),
        ({"block_bytes": 5000}, "its block size is 5,000"),
        ({"block_log": 65535}, "to the power of 65535"),
        ({"compressor": 0}, "its compressor has the number 0"),
        ({"compressor": 3}, "the compressor 'lzo' is not supported"),
        ({"bytes_used": 1 << 62}, "it is cut off"),
        ({"bytes_used": 0}, "starts at byte"),
        ({"inode_table": layout.ABSENT}, "it has no inode table"),
        ({"inode_table": 1 << 60}, "its inode table starts at byte"),
        ({"inode_table": 0}, "its inode table starts at byte 0"),
        ({"directory_table": 96}, "lies before its inode table"),
        ({"id_table": 1 << 40}, "its id table starts"),
        ({"ids": 0}, "an owner beyond"),
        ({"ids": 65535}, "the list of ids|ids are not one after another"),
        ({"fragments": 0xFFFF_FFFF}, "the list of fragments|fragments are not one after another"),
        ({"fragments": 1, "fragment_table": layout.ABSENT}, "has no table of them"),
        ({"root": 0}, "a root that is no folder"),
        ({"root": 0xFFFF_FFFF_FFFF}, "holds nothing at block"),
        ({"root": 1 << 63}, "holds nothing at block"),
    ],
    ids=str,
)
def test_superblocks_that_lie_are_refused(tmp_path, claims, match):
    refused(tmp_path / "x", craft(TREE, **claims), match)


def test_every_truncation_is_refused(tmp_path):
    image = craft(TREE)
    used = layout.SUPERBLOCK.unpack(image[:96])[12]
    for length in [*range(0, used, 97), used - 1]:
        refused(tmp_path / "x", image[:length], r"expected (a squashfs image|the whole file)")


@pytest.mark.parametrize("local", [True, False], ids=["mapped", "pread"])
def test_an_image_cut_while_it_is_open_is_told(tmp_path, monkeypatch, local):
    monkeypatch.setattr(image_file, "is_local", lambda descriptor: local)
    (tmp_path / "x").write_bytes(craft(TREE))
    with SquashFS(tmp_path / "x") as image:
        image.read("a")
        with (tmp_path / "x").open("r+b") as opened:
            opened.truncate(100)
        with pytest.raises(DamagedImageError, match="the file became shorter"):
            image.read("b/c")


def test_verify_names_damaged_files_and_says_what_it_cannot_see(mksquashfs, tmp_path):
    (tmp_path / "t").mkdir()
    for number in range(20):
        (tmp_path / "t" / f"{number:02d}").write_bytes(b"%d" % number * 5000)
    packed, raw = tmp_path / "packed", tmp_path / "raw"
    mksquashfs(tmp_path / "t", packed, "-comp", "gzip", "-no-fragments", "-b", "4096")
    mksquashfs(tmp_path / "t", raw)
    with SquashFS(packed) as image:
        end_of_block = 96 + int(image.index.words[0]) - 1  # its checksum
    for path, place in ((packed, end_of_block), (raw, 50_000)):
        image = bytearray(path.read_bytes())
        image[place] ^= 1
        path.write_bytes(image)
    with SquashFS(packed) as image:
        report = image.verify()
        assert not report.ok and len(report.faults) == 1
        assert "block at byte 96" in report.faults[0]
        assert (report.unchecked_bytes, report.notes) == (0, ())
    with SquashFS(raw) as image:
        report = image.verify()
        assert report.ok and report.unchecked_bytes == report.bytes == 150_000
        assert "squashfs stores no checksum of data" in report.notes[0]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_damaged_block_is_named_and_the_other_files_are_read(tmp_path, compression):
    files = {f"{number}": content(4000, "text", number) for number in range(9)}
    path = pack(tmp_path / "x", files.items(), compression=compression, block_bytes=BLOCK).path
    with SquashFS(path) as image:
        row, start = image.row("4"), int(image.index.files.start[image.row("4")])
        stored = int(image.index.words[image.index.files.first_word[row]])
    damaged = bytearray(path.read_bytes())
    damaged[start : start + stored] = b"\xff" * stored
    path.write_bytes(damaged)
    with SquashFS(path) as image:
        with pytest.raises(DamagedImageError, match=str(path)):
            image.read("4")
        assert all(image.read(name) == files[name] for name in files.keys() - {"4"})


def test_the_type_of_a_file_is_not_part_of_its_permissions(tmp_path):
    image = craft(folder((b"f", file(b"1"))))
    at = layout.SUPERBLOCK.unpack(image[:96])[15] + 4  # after the header of the block, and the type
    (tmp_path / "x").write_bytes(image[:at] + (0o120644).to_bytes(2, "little") + image[at + 2 :])
    with SquashFS(tmp_path / "x") as opened:
        assert (opened.stat("f").kind, opened.stat("f").mode) == ("file", 0o644)


# Mutations


@pytest.fixture(scope="module")
def seeds(trees, mksquashfs, tmp_path_factory):
    """Small images of all kinds, to be damaged."""
    folder_, made = tmp_path_factory.mktemp("seeds"), {}
    variants = {
        "raw metadata": ["-noI", "-noId", "-comp", "gzip"],
        "raw metadata, raw data": ["-noI", "-noId", "-noD", "-noF", "-no-fragments", "-comp", "gzip"],
        "gzip": ["-comp", "gzip"],
        "zstd": ["-comp", "zstd", "-always-use-fragments"],
        "lz4": ["-comp", "lz4", "-noI"],
        "xz": ["-comp", "xz", "-noI", "-no-fragments"],
    }
    for name, options in variants.items():
        path = mksquashfs(
            trees(BLOCK), folder_ / name.replace(" ", "_"), "-b", str(BLOCK), "-nopad", *options
        )
        made[name] = path.read_bytes()
    return made | {"crafted": craft(TREE, tails=[(b"fragment", True)])}


def mutate(image, random):
    """One to six changes: a bit, a byte, a whole number of a tempting value, or the end cut off."""
    image = bytearray(image)
    tables = layout.SUPERBLOCK.unpack(image[:96])[15]  # where the metadata starts
    for _ in range(random.randint(1, 6)):
        low = min(random.choices([0, tables, 96], [1, 8, 3])[0], len(image) - 1)
        at = random.randrange(low, len(image) if low else 96)
        kind = random.randrange(5)
        if kind == 0:
            image[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            image[at] = random.randrange(256)
        elif kind == 2:
            value = random.choice([0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF, len(image), random.getrandbits(32)])
            image[at : at + 4] = value.to_bytes(4, "little")
        elif kind == 3:
            size, source = random.randrange(1, 64), random.randrange(len(image))
            image[at : at + size] = image[source : source + size]
        elif random.random() < 0.1:
            del image[random.randrange(97, len(image)) :]
    return bytes(image)


def use(path):
    """Everything that one can ask of an image."""
    with SquashFS(path) as image:
        for item in image.list():
            image.stat(item)
        for row in range(len(image)):
            try:
                image.read_at(row)
            except SquashFSError:
                continue
        image.info()
        image.verify()
        image.read_many(range(len(image)), threads=2)


def fuzz(seeds, path, numbers):
    """Counts of what happened to images damaged by these seeds."""
    from random import Random

    refused, slowest_s, names = 0, 0.0, sorted(seeds)
    with peak_memory() as taken:
        for number in numbers:
            name = names[number % len(names)]
            path.write_bytes(mutate(seeds[name], Random(number)))
            began_s = time.process_time()
            try:
                use(path)
            except SquashFSError:
                refused += 1
            except BaseException:
                print(f"seed {number} of the image {name!r}")
                raise
            slowest_s = max(slowest_s, time.process_time() - began_s)
            assert slowest_s < 2, f"seed {number} of the image {name!r} took {slowest_s:.1f} s"
    assert taken[0] < 700 << 20
    print(f"seeds {numbers}: {refused} refused, slowest {slowest_s:.2f} s, took {taken[0] >> 20} MiB")
    return refused


@pytest.fixture
def without_net(monkeypatch):
    """Faults that nobody thought of become a sentence too, but not here."""
    monkeypatch.setattr(parsing, "parse", parsing._parse)


@python_only
def test_mutated_images_give_sentences_only(seeds, tmp_path, without_net):
    assert 200 < fuzz(seeds, tmp_path / "x", range(700)) < 700


@python_only
def test_a_fault_that_nobody_thought_of_is_a_sentence(tmp_path, monkeypatch):
    def fail(*args):
        raise IndexError("in the depth")

    monkeypatch.setattr(parsing.directories, "walk", fail)
    refused(tmp_path / "x", craft(TREE), r"its tables make no sense \(IndexError: in the depth\)")


@python_only
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_mutated_images_give_sentences_only(seeds, tmp_path, part, without_net):
    assert fuzz(seeds, tmp_path / "x", range(10_000 + 1000 * part, 11_000 + 1000 * part)) > 200
