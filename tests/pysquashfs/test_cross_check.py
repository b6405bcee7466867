"""We read the images of all makers, and their tools read ours."""

import itertools
import os

import pytest
from squashfs_peers import PACKAGES, TOOLS, folder_bytes, loop_mount
from squashfs_trees import content, reads_as, run

from pysquashfs import SquashFS, SquashFSError, pack

pytestmark = pytest.mark.usefixtures("backend")

WRITTEN, READ = ["none", "gzip", "zstd"], ["gzip", "zstd", "lz4", "xz"]
MANY = 100_000
BLOCKS = [4096, 131072, 1 << 20]
_kept = {}


def planted(block_bytes):
    """Items of all the sizes at which something changes, by names of all kinds."""
    if block_bytes not in _kept:
        around = (block_bytes - 1, block_bytes, block_bytes + 1)
        sizes = [0, 1, 100, *around, 2 * block_bytes, 3 * block_bytes + 17]
        items = {f"{kind}/{size}.bin": content(size, kind) for kind in ("text", "noise") for size in sizes}
        items |= {"n" * 255: b"long", "é/日 本/ü" + "x" * 250: b"far", "d" * 255 + "/a": b"deep", "a-b": b"-"}
        items |= {f"many/{'e' * 200}{i:03d}": bytes([i]) for i in range(200)}  # 40 KB of names: more blocks
        items |= {"twin 1": items["noise/100.bin"], "twin 2": items[f"noise/{block_bytes + 1}.bin"]}
        _kept[block_bytes] = items
    return _kept[block_bytes]


def by_us(image):
    with SquashFS(image) as opened:
        return {name: opened.read(name) for name in opened}


def check(path, root):
    with SquashFS(path) as image:
        reads_as(image, root)


LAYOUTS = [
    [],
    ["-no-fragments"],
    ["-always-use-fragments", "-no-duplicates"],
    ["-noI", "-noId", "-noD", "-noF", "-no-xattrs"],
    ["-no-sparse", "-no-exports", "-noF"],
]


@pytest.mark.parametrize(
    ("compressor", "block_bytes"),
    [
        pytest.param(name, size, marks=[pytest.mark.slow] if name == "xz" and size > 131072 else [])
        for name in READ
        for size in BLOCKS
    ],  # xz takes ten seconds for some noise in large blocks
)
def test_images_of_all_makers_are_read(trees, mksquashfs, need_tool, tmp_path, compressor, block_bytes):
    tree, tool = trees(block_bytes), need_tool("gensquashfs", "squashfs-tools-ng")
    for number, layout in enumerate(LAYOUTS if block_bytes == 4096 else LAYOUTS[:1]):
        options = ["-comp", compressor, "-b", block_bytes, *layout]
        check(mksquashfs(tree, tmp_path / f"{number}", *options), tree)
    run(tool, "-q", "-D", tree, "-c", compressor, "-b", block_bytes, tmp_path / "x")
    check(tmp_path / "x", tree)
    tar = run("tar", "-C", tree, "--format=pax", "-c", ".")
    by_tar = need_tool("tar2sqfs", "squashfs-tools-ng")
    run(by_tar, "-q", "-c", compressor, "-b", block_bytes, tmp_path / "y", input=tar)
    check(tmp_path / "y", tree)


def test_compressors_that_are_not_known_are_refused(trees, mksquashfs, tmp_path):
    try:
        image = mksquashfs(trees(4096), tmp_path / "x", "-comp", "lzo")
    except AssertionError:
        pytest.skip("this mksquashfs was built without lzo")
    with pytest.raises(SquashFSError, match=r"compressor .?lzo.*(is|does) not support"):
        SquashFS(image)


def test_lzma_is_read_by_the_library_alone(trees, mksquashfs, tmp_path, backend):
    try:
        image = mksquashfs(trees(4096), tmp_path / "x", "-comp", "lzma", "-b", 4096)
    except AssertionError:
        pytest.skip("this mksquashfs was built without lzma")
    if backend == "libsquashfs":
        check(image, trees(4096))
    else:
        with pytest.raises(SquashFSError, match="the compressor 'lzma' is not supported"):
            SquashFS(image)


@pytest.mark.parametrize("fragments", [False, True])
@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize("compression", WRITTEN)
def test_unsquashfs_reads_every_kind_of_image_of_ours(
    tmp_path, need_tool, compression, block_bytes, fragments
):
    tool = need_tool("unsquashfs", PACKAGES["unsquashfs"])
    items = planted(block_bytes)
    chosen = {"compression": compression, "block_bytes": block_bytes, "fragments": fragments}
    pack(tmp_path / "x.sqfs", items.items(), **chosen)
    assert TOOLS["unsquashfs"](tmp_path / "x.sqfs", tmp_path, tool) == items
    assert by_us(tmp_path / "x.sqfs") == items


@pytest.mark.parametrize("compression", WRITTEN)
@pytest.mark.parametrize("reader", [name for name in TOOLS if name != "unsquashfs"])
def test_other_tools_read_our_images(tmp_path, need_tool, request, reader, compression):
    tool = need_tool(reader, PACKAGES[reader])
    if reader.startswith("squashfuse"):
        request.getfixturevalue("fuse")
    items = planted(4096)
    for number, fragments in enumerate((False, True)):
        image, scratch = tmp_path / f"{number}.sqfs", tmp_path / f"{number}"
        scratch.mkdir()
        chosen = {"compression": compression, "block_bytes": 4096, "fragments": fragments}
        pack(image, items.items(), **chosen)
        assert TOOLS[reader](image, scratch, tool) == items


@pytest.mark.parametrize(
    "backend, compression, block_bytes",
    [
        *itertools.product(("python", "libsquashfs"), WRITTEN, BLOCKS),
        ("libsquashfs", "xz", 4096),  # it alone writes that, in ten seconds for noise in large blocks
    ],
    indirect=["backend"],
)
def test_the_kernel_reads_what_both_back_ends_write(tmp_path, need_kernel, backend, compression, block_bytes):
    items = planted(block_bytes)
    chosen = {"compression": compression, "block_bytes": block_bytes, "fragments": True}
    pack(tmp_path / "x.sqfs", items.items(), **chosen, backend=backend)
    with loop_mount(tmp_path / "x.sqfs", tmp_path) as folder:
        assert folder_bytes(folder) == items


def test_a_folder_of_100_000_files_is_found_by_everybody(tmp_path, need_tool, need_kernel):
    names = [f"{(i * 7919) % MANY:06d}.jpg" for i in range(MANY)]
    pack(tmp_path / "x.sqfs", ((f"d/{name}", name.encode()) for name in names))
    wanted = [f"d/{name}" for name in sorted(names)[:: MANY // 50]]
    with SquashFS(tmp_path / "x.sqfs") as image:
        assert len(image) == MANY
        assert [image.read(name) for name in wanted] == [name[2:].encode() for name in wanted]
    unsquashfs = need_tool("unsquashfs", PACKAGES["unsquashfs"])
    listed = run(unsquashfs, "-quiet", "-ls", "-d", "", tmp_path / "x.sqfs").decode().split()
    assert [line for line in listed if line.endswith(".jpg")] == [f"/d/{name}" for name in sorted(names)]
    assert run(unsquashfs, "-cat", tmp_path / "x.sqfs", wanted[33]) == wanted[33][2:].encode()
    with loop_mount(tmp_path / "x.sqfs", tmp_path) as folder:  # it uses the index of the folder for each
        assert [(folder / name).read_bytes() for name in wanted] == [name[2:].encode() for name in wanted]
        assert not (folder / "d/0000000.jpg").exists()
        assert len(os.listdir(folder / "d")) == MANY
