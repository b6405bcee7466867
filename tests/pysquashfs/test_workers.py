"""One object, opened in the parent, read in workers of every kind: no wrong byte."""

import gc
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from squashfs_trees import content

from pysquashfs import SquashFS, SquashFSError
from pysquashfs.errors import ClosedError

pytestmark = pytest.mark.usefixtures("backend")

COUNT = 300


def numbered(number):
    return content(1000 + 61 * number, "noise" if number % 2 else "text", number)


@pytest.fixture(scope="module")
def images(mksquashfs, tmp_path_factory):
    """Images of files that differ in every byte they have in common: raw, and with all that is slow."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "t").mkdir()
    for number in range(COUNT):
        (folder / "t" / f"{number:04d}").write_bytes(numbered(number))
    slow = ["-comp", "zstd", "-b", "16384", "-no-duplicates"]
    return [mksquashfs(folder / "t", folder / "raw"), mksquashfs(folder / "t", folder / "zstd", *slow)]


@pytest.fixture(params=[0, 1], ids=["raw", "zstd with fragments"])
def image(images, request):
    return images[request.param]


def test_a_pickle_has_no_handles_and_no_index(image):
    with SquashFS(image) as opened:
        opened.read_many(range(COUNT), threads=2)
        assert len(pickle.dumps(opened)) < 1000
        with pickle.loads(pickle.dumps(opened)) as copy:
            assert copy.read_many(range(COUNT)) == opened.read_many(range(COUNT))
            assert list(copy.paths) == list(opened.paths)


def test_a_pickle_of_an_image_that_was_replaced_is_refused(image, mksquashfs, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(image.read_bytes())
    pickled = pickle.dumps(SquashFS(path))
    path.write_bytes(path.read_bytes() + bytes(4096))
    with pytest.raises(SquashFSError, match="is another image than the one that was opened"):
        pickle.loads(pickled).read_at(0)
    closed = SquashFS(path)
    closed.close()
    with pytest.raises(ClosedError):
        pickle.loads(pickle.dumps(closed)).read_at(0)


def test_closing_while_others_read_gives_whole_bytes_or_a_sentence(image):
    right = [numbered(number) for number in range(COUNT)]
    for _ in range(20):
        opened, wrong = SquashFS(image), []

        def read(opened=opened, wrong=wrong):
            try:
                for row in range(COUNT):
                    if opened.read_at(row) != right[row]:
                        wrong.append(row)
            except ClosedError:
                pass

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        opened.close()
        for thread in threads:
            thread.join()
        assert wrong == []


def read_all(opened, seed):
    rows = np.random.default_rng(seed).permutation(len(opened) * COUNT).tolist()
    return [row for row in rows if opened[row // COUNT].read_at(row % COUNT) != numbered(row % COUNT)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_right_bytes_of_what_the_parent_opened(images, method):
    opened = [SquashFS(path) for path in images]
    first = [image.read_at(0) for image in opened]  # readers that a fork takes along
    for _ in range(2 if method == "fork" else 1):  # the second forks from a parent that has read more
        with get_context(method).Pool(2) as pool:
            assert pool.starmap(read_all, [(opened, seed) for seed in range(2)], chunksize=1) == [[], []]
    assert [image.read_at(0) for image in opened] == first


def test_threads_read_right_bytes_while_others_fork(image):
    right, codes, stop = [numbered(number) for number in range(COUNT)], [], threading.Event()
    rows = np.random.default_rng(0).integers(0, COUNT, 3000).tolist()
    with SquashFS(image) as opened, ThreadPoolExecutor(8) as pool:

        def fork():
            while not stop.is_set() and len(codes) < 10:
                child = os.fork()
                if child == 0:  # the parent has a pool of threads, which a child may not use
                    os._exit(int(opened.read_many(range(20), threads=3) != right[:20]))
                codes.append(os.waitpid(child, 0)[1])

        assert opened.read_many(range(COUNT), threads=4) == right
        forker = threading.Thread(target=fork)
        forker.start()
        assert list(pool.map(opened.read_at, rows)) == [right[row] for row in rows]
        for at in range(0, len(rows), 100):
            some = rows[at : at + 100]
            assert opened.read_many(some, threads=4) == [right[row] for row in some]
        stop.set()
        forker.join()
    assert set(codes) == {0}


def test_no_descriptor_stays_open(image):
    def descriptors():
        gc.collect()
        paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [os.readlink(path) for path in paths if os.path.lexists(path)]

    before = descriptors()
    for _ in range(3):
        with SquashFS(image) as opened:
            opened.read_many(range(COUNT), threads=4)
            list(opened.chunks("0000"))
            opened.verify()
    SquashFS(image).read_at(0)  # never closed
    assert [target for target in descriptors() if str(image) in target] == []
    assert len(descriptors()) <= len(before) + 1
