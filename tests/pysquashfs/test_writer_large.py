"""Images beyond 4 GiB, and of very many files."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from squashfs_peers import PACKAGES
from squashfs_trees import run

from pysquashfs import SquashFS
from pysquashfs.writer import ImageWriter, Settings

MIB = 1 << 20
ZEROS = bytes(MIB)


class Sparse:
    """A file that is written from end to end, where zeros take no time and no space."""

    def __init__(self, path):
        self.file = path.open("wb")

    def append(self, pieces):
        for piece in pieces:
            if getattr(piece, "obj", None) is ZEROS:
                self.file.seek(len(piece), os.SEEK_CUR)
            else:
                self.file.write(piece)

    def finish(self, superblock):
        with self.file:
            self.file.seek(0)
            self.file.write(superblock)


def sparse_image(path, settings, items):
    """`items` are names with bytes, or with how many MiB of zeros they have."""
    sink = Sparse(path)
    writer = ImageWriter(sink.append, settings)
    for name, data in items:
        if isinstance(data, int):
            writer.add_pieces(name, (ZEROS for _ in range(data)))
        else:
            writer.add(name, data)
    sink.finish(writer.close())


@pytest.fixture(scope="module")
def gain_beyond(tmp_path_factory):
    """An image whose data passes 4 GiB, with a file before, one of more than 4 GiB, and some behind."""
    path = tmp_path_factory.mktemp("large") / "x.sqfs"
    items = [("a/first", b"1" * 5000), ("big", 4100), ("a/behind", b"2" * 5000), ("z", b"3"), ("zero", b"")]
    sparse_image(path, Settings(), items)
    yield path
    path.unlink()


SMALL = {"a/first": b"1" * 5000, "a/behind": b"2" * 5000, "z": b"3", "zero": b""}


def test_we_read_beyond_4_gib(gain_beyond):
    with SquashFS(gain_beyond) as image:
        assert {name: image.read(name) for name in SMALL} == SMALL
        assert image.stat("big").size == 4100 * MIB
        files = image.index.files
        assert int(files.start[image.row("a/behind")]) > 4 << 30
        assert image.info()["share_one_read"] == 1.0


def test_tools_read_beyond_4_gib(gain_beyond, need_tool):
    unsquashfs = need_tool("unsquashfs", PACKAGES["unsquashfs"])
    for name in ("a/behind", "z"):
        assert run(unsquashfs, "-cat", gain_beyond, name) == SMALL[name]
    assert str(4100 * MIB) in run(unsquashfs, "-lls", gain_beyond).decode()


def test_the_kernel_reads_beyond_4_gib(gain_beyond, tmp_path):
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("a loop mount needs root and loop devices")
    folder = tmp_path / "loop"
    folder.mkdir()
    run("mount", "-t", "squashfs", "-o", "loop,ro", gain_beyond, folder)
    try:
        assert {name: (folder / name).read_bytes() for name in SMALL} == SMALL
        with (folder / "big").open("rb") as file:
            file.seek(4099 * MIB)
            assert file.read() == ZEROS
    finally:
        run("umount", folder)


def test_compressed_data_beyond_4_gib_of_a_file_is_counted(tmp_path, need_tool):
    size = 64 << 20  # what is compressed is not sparse, so a smaller one that has many blocks
    settings = Settings("zstd", level=1, block_bytes=4096)
    sparse_image(tmp_path / "x.sqfs", settings, [("big", size // MIB), ("small", b"s")])
    with SquashFS(tmp_path / "x.sqfs") as image:
        assert image.stat("big").size == size
        assert sum(map(len, image.chunks("big"))) == size
        assert image.read("small") == b"s"
    assert run(need_tool("unsquashfs", "squashfs-tools"), "-cat", tmp_path / "x.sqfs", "small") == b"s"


COUNT_FILES = r"""
import re, sys
from pathlib import Path
from pysquashfs.writer import ImageWriter

def peak_kib():  # that of getrusage outlives exec: it is that of whoever started us
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])

count, folders = int(sys.argv[1]), int(sys.argv[2])
writer = ImageWriter(lambda pieces: None)
before = peak_kib()
for i in range(count):
    wnid = f"n{i % folders:08d}"
    writer.add(f"ILSVRC/Data/CLS-LOC/train/{wnid}/{wnid}_{(i * 7919) % count}.JPEG", b"x")
writer.close()
print((peak_kib() - before) >> 10)
"""


@pytest.mark.parametrize("count", [40_000, pytest.param(1_281_167, marks=pytest.mark.slow)])
@pytest.mark.parametrize("folders", [1000, 1])
def test_memory_is_bounded_for_very_many_files(count, folders, repository):
    gc.collect()
    command = [sys.executable, "-c", COUNT_FILES, str(count), str(folders)]
    used_mib = int(run(*command, cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)}))
    per_file = 120 if folders > 1 else 250  # the largest folder is sorted as objects
    assert used_mib * MIB < count * per_file + 8 * MIB


def test_nothing_heavy_is_imported_to_pack(repository):
    heavy = {"torch", "cffi", "pyarrow", "smallfiles", "helpers"}
    code = f"import sys, pysquashfs.writer; print({heavy} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, check=True)
    assert found.stdout.strip() == b"set()"
