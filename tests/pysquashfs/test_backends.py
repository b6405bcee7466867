"""One contract, two back ends: every image of every maker reads alike, in workers of every kind."""

import io
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from squashfs_trees import content, reads_as, run

from pysquashfs import SquashFS, SquashFSError, pack
from pysquashfs.errors import DamagedImageError

BACKENDS = ["pure", "libsquashfs"]
COMPRESSORS = ["gzip", "zstd", "lz4", "xz"]
BLOCKS = [4096, 131072, 1 << 20]
LAYOUTS = [
    [],
    ["-no-fragments"],
    ["-always-use-fragments", "-no-duplicates"],
    ["-noI", "-noId", "-noD", "-noF", "-no-xattrs"],
    ["-no-sparse", "-no-exports", "-noF"],
]
COUNT = 200


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "libsquashfs":
        request.getfixturevalue("need_libsquashfs")
    return request.param


def check(path, root):
    """Both back ends, since making the image is what takes long."""
    for backend in BACKENDS:
        with SquashFS(path, backend=backend, cache=False) as image:
            reads_as(image, root)


# All of them where it is quick; of large blocks, which take long to compress, one layout each.
PAIRS = [
    pytest.param(name, size, marks=[pytest.mark.slow] if (name, size) == ("xz", 1 << 20) else [])
    for name in COMPRESSORS
    for size in BLOCKS
]


@pytest.mark.parametrize(("compressor", "block_bytes"), PAIRS)
def test_images_of_mksquashfs(need_libsquashfs, trees, mksquashfs, tmp_path, compressor, block_bytes):
    for number, layout in enumerate(LAYOUTS if block_bytes == 4096 else LAYOUTS[:1]):
        options = ["-comp", compressor, "-b", block_bytes, *layout]
        check(mksquashfs(trees(block_bytes), tmp_path / f"{number}", *options), trees(block_bytes))


@pytest.mark.parametrize(("compressor", "block_bytes"), PAIRS)
def test_images_of_gensquashfs(need_libsquashfs, trees, need_tool, tmp_path, compressor, block_bytes):
    tool = need_tool("gensquashfs", "squashfs-tools-ng")
    run(tool, "-q", "-D", trees(block_bytes), "-c", compressor, "-b", block_bytes, tmp_path / "x")
    check(tmp_path / "x", trees(block_bytes))


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_images_of_tar2sqfs(need_libsquashfs, trees, need_tool, tmp_path, compressor):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(trees(4096), arcname=".")
    tool = need_tool("tar2sqfs", "squashfs-tools-ng")
    run(tool, "-q", "-c", compressor, "-b", 4096, tmp_path / "x", input=stream.getvalue())
    check(tmp_path / "x", trees(4096))


@pytest.mark.parametrize("compressor", ["lzo", "lzma"])
def test_compressors_that_neither_knows_are_refused(backend, trees, mksquashfs, tmp_path, compressor):
    """The library of squashfs-tools-ng leaves lzo to its tools, because of its licence."""
    try:
        image = mksquashfs(trees(4096), tmp_path / "x", "-comp", compressor)
    except AssertionError:
        pytest.skip(f"this mksquashfs was built without {compressor}")
    with pytest.raises(SquashFSError, match=f"the compressor '{compressor}' is not supported"):
        SquashFS(image, backend=backend)


def test_auto_is_what_measured_quickest_and_says_so(tmp_path):
    path = pack(tmp_path / "x", [("a", b"1")]).path
    with SquashFS(path) as image:
        assert image.backend == "pure"
        assert "backend='pure'" in repr(image)
    with pytest.raises(SquashFSError, match=r"one of auto, pure, libsquashfs"):
        SquashFS(path, backend="fuse")


def numbered(number):
    return content(1000 + 71 * number, "noise" if number % 2 else "text", number)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The same files, raw, and with all that is slow: small compressed blocks, shared fragments."""
    folder = tmp_path_factory.mktemp("images")
    items = [(f"{number:03}", numbered(number)) for number in range(COUNT)]
    slow = pack(folder / "zstd", items, compression="zstd", block_bytes=8192, fragments=True).path
    return [pack(folder / "raw", items).path, slow]


def read_all(opened, seed):
    rows = np.random.default_rng(seed).permutation(len(opened) * COUNT).tolist()
    return [row for row in rows if opened[row // COUNT].read_at(row % COUNT) != numbered(row % COUNT)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_right_bytes_of_what_the_parent_opened(need_libsquashfs, images, method):
    opened = [SquashFS(path, backend=name) for name in BACKENDS for path in images]
    first = [image.read_at(0) for image in opened]  # readers that a fork takes along
    for _ in range(2 if method == "fork" else 1):  # the second forks from a parent that has read more
        with get_context(method).Pool(2) as pool:
            assert pool.starmap(read_all, [(opened, seed) for seed in range(2)], chunksize=1) == [[], []]
    assert [image.read_at(0) for image in opened] == first


def test_threads_read_right_bytes_while_others_fork(backend, images):
    right = [numbered(number) for number in range(COUNT)]
    for path in images:
        with SquashFS(path, backend=backend) as image, ThreadPoolExecutor(8) as pool:
            rows = np.random.default_rng(0).integers(0, COUNT, 3000).tolist()
            stop, codes = threading.Event(), []

            def fork(image=image, stop=stop, codes=codes):
                while not stop.is_set() and len(codes) < 10:
                    child = os.fork()
                    if child == 0:  # the parent has a pool of threads, which a child may not use
                        os._exit(int(image.read_many(range(20), threads=3) != right[:20]))
                    codes.append(os.waitpid(child, 0)[1])

            assert image.read_many(range(COUNT), threads=4) == right
            forker = threading.Thread(target=fork)
            forker.start()
            wrong = sum(
                data != right[row] for row, data in zip(rows, pool.map(image.read_at, rows), strict=True)
            )
            for at in range(0, len(rows), 100):
                some = rows[at : at + 100]
                wrong += image.read_many(some, threads=4) != [right[row] for row in some]
            stop.set()
            forker.join()
            assert (wrong, set(codes)) == (0, {0})


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_damaged_block_is_named_by_both_and_the_other_files_are_read(backend, tmp_path, compression):
    files = {f"{number}": content(4000, "text", number) for number in range(9)}
    path = pack(tmp_path / "x", files.items(), compression=compression, block_bytes=4096).path
    with SquashFS(path, backend=backend, cache=False) as image:
        row, start = image.row("4"), int(image.index.files.start[image.row("4")])
        stored = int(image.index.words[image.index.files.first_word[row]])
    damaged = bytearray(path.read_bytes())
    damaged[start : start + stored] = b"\xff" * stored
    path.write_bytes(damaged)
    with SquashFS(path, backend=backend, cache=False) as image:
        with pytest.raises(DamagedImageError, match=str(path)):
            image.read("4")
        for name in files.keys() - {"4"}:
            assert image.read(name) == files[name]


def test_a_fragment_that_is_too_short_gives_no_bytes_of_others(backend, tmp_path):
    """The library fills what is missing with zeros; nobody may take them for data."""
    items = [(f"{number}", content(300, "text", number)) for number in range(9)]
    path = pack(tmp_path / "x", items, compression="gzip", fragments=True).path
    with SquashFS(path, backend=backend, cache=False) as image:
        image.index.files.fragment_offset[4] += 60_000
        with pytest.raises(DamagedImageError):
            image.read_at(4)
        assert image.read_at(3) == items[3][1]


def test_a_block_that_is_too_short_gives_no_zeros(backend, tmp_path):
    path = pack(
        tmp_path / "x", [("a", content(3000, "text")), ("b", content(3000, "text", 1))], compression="gzip"
    ).path
    with SquashFS(path, backend=backend, cache=False) as image:
        image.index.files.size[0] += 1
        with pytest.raises(DamagedImageError):
            image.read_at(0)
        assert image.read_at(1) == content(3000, "text", 1)


def test_a_size_that_is_a_bomb_is_refused_by_both(backend, tmp_path):
    path = pack(tmp_path / "x", [("a", bytes(10_000_000))], compression="gzip", block_bytes=1 << 20).path
    with SquashFS(path, backend=backend, cache=False) as image:
        assert image.read_at(0) == bytes(10_000_000)
        image._backend()._limit = 1 << 20
        with pytest.raises(DamagedImageError, match="claims 10,000,000 bytes"):
            image.read_at(0)
