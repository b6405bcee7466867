"""Both ways: everybody reads our images, and we read everybody's."""

import os
import subprocess
import tarfile
from io import BytesIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from squashfs_peers import PACKAGES, TOOLS, by_the_kernel
from squashfs_trees import content, files_of, run

from pysquashfs import SquashFS, pack
from pysquashfs.errors import MissingToolError

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
COMPRESSIONS = ["none", "gzip", "zstd", "lz4", "xz"]
MANY = 100_000
BLOCKS = [4096, 131072, 1 << 20]
PAIRS = [
    pytest.param(name, size, marks=[pytest.mark.slow] if name == "xz" and size > 131072 else [])
    for name in COMPRESSIONS
    for size in BLOCKS
]  # xz takes ten seconds for some noise in large blocks
_kept = {}


def planted(block_bytes):
    """Items of all the sizes at which something changes, by names of all kinds."""
    if block_bytes not in _kept:
        sizes = [
            0,
            1,
            100,
            block_bytes - 1,
            block_bytes,
            block_bytes + 1,
            2 * block_bytes,
            3 * block_bytes + 17,
        ]
        items = {f"{kind}/{size}.bin": content(size, kind) for kind in ("text", "noise") for size in sizes}
        items |= {"n" * 255: b"long", "é/日 本/ü" + "x" * 250: b"far", "d" * 255 + "/a": b"deep", "a-b": b"-"}
        items |= {f"many/{'e' * 200}{i:03d}": bytes([i]) for i in range(200)}  # 40 KB of names: more blocks
        items |= {"twin 1": items["noise/100.bin"], "twin 2": items[f"noise/{block_bytes + 1}.bin"]}
        _kept[block_bytes] = items
    return _kept[block_bytes]


def by_us(image, backend="pure"):
    with SquashFS(image, backend, cache=False) as opened:
        return {name: opened.read(name) for name in opened}


@pytest.fixture(scope="session")
def need_kernel():
    """Skip where no image can be mounted: not root, or no loop devices. CI may lack them too."""
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        pytest.skip("a loop mount needs root and loop devices")
    with open("/proc/filesystems") as known:
        if (
            "squashfs" not in known.read()
            and subprocess.run(["modprobe", "squashfs"], check=False).returncode
        ):
            pytest.skip("this kernel has no squashfs")


# Ours, read by others


@pytest.mark.parametrize("fragments", [False, True])
@pytest.mark.parametrize(("compression", "block_bytes"), PAIRS)
def test_unsquashfs_reads_every_kind_of_image_of_ours(
    tmp_path, need_tool, compression, block_bytes, fragments
):
    tool = need_tool("unsquashfs", PACKAGES["unsquashfs"])
    items = planted(block_bytes)
    chosen = {"compression": compression, "block_bytes": block_bytes, "fragments": fragments}
    pack(tmp_path / "x.sqfs", items.items(), deduplicate=fragments, **chosen)
    assert TOOLS["unsquashfs"](tmp_path / "x.sqfs", tmp_path, tool) == items
    assert by_us(tmp_path / "x.sqfs") == items


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("reader", [name for name in TOOLS if name != "unsquashfs"])
def test_other_tools_read_our_images(tmp_path, need_tool, request, reader, compression):
    tool = need_tool(reader, PACKAGES[reader])
    if reader.startswith("squashfuse"):
        request.getfixturevalue("fuse")
    if (reader, compression) == ("7z", "lz4"):
        pytest.skip("7-Zip has no lz4")
    items = planted(4096)
    for number, fragments in enumerate((False, True)):
        image, scratch = tmp_path / f"{number}.sqfs", tmp_path / f"{number}"
        scratch.mkdir()
        chosen = {"compression": compression, "block_bytes": 4096, "fragments": fragments}
        pack(image, items.items(), deduplicate=fragments, **chosen)
        assert TOOLS[reader](image, scratch, tool) == items


@pytest.mark.parametrize(("compression", "block_bytes"), PAIRS)
def test_the_kernel_reads_our_images(tmp_path, need_kernel, compression, block_bytes):
    items = planted(block_bytes)
    chosen = {"compression": compression, "block_bytes": block_bytes, "fragments": True, "deduplicate": True}
    pack(tmp_path / "x.sqfs", items.items(), **chosen)
    assert by_the_kernel(tmp_path / "x.sqfs", tmp_path) == items


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_libsquashfs_reads_our_images(tmp_path, compression):
    items = planted(4096)
    pack(tmp_path / "x.sqfs", items.items(), compression=compression, block_bytes=4096, fragments=True)
    try:
        assert by_us(tmp_path / "x.sqfs", "libsquashfs") == items
    except (MissingToolError, ModuleNotFoundError) as error:
        pytest.fail(str(error)) if IN_CI else pytest.skip(str(error))


def test_a_folder_of_100_000_files_is_found_by_everybody(tmp_path, need_tool, need_kernel):
    names = [f"{(i * 7919) % MANY:06d}.jpg" for i in range(MANY)]
    pack(tmp_path / "x.sqfs", ((f"d/{name}", name.encode()) for name in names))
    wanted = [f"d/{name}" for name in sorted(names)[:: MANY // 50]]
    with SquashFS(tmp_path / "x.sqfs", cache=False) as image:
        assert len(image) == MANY
        assert [image.read(name) for name in wanted] == [name[2:].encode() for name in wanted]
    unsquashfs = need_tool("unsquashfs", PACKAGES["unsquashfs"])
    listed = run(unsquashfs, "-quiet", "-ls", "-d", "", tmp_path / "x.sqfs").decode().split()
    assert [line for line in listed if line.endswith(".jpg")] == [f"/d/{name}" for name in sorted(names)]
    assert run(unsquashfs, "-cat", tmp_path / "x.sqfs", wanted[33]) == wanted[33][2:].encode()
    rdsquashfs = need_tool("rdsquashfs", PACKAGES["rdsquashfs"])
    assert run(rdsquashfs, "-c", wanted[33], tmp_path / "x.sqfs") == wanted[33][2:].encode()
    folder = tmp_path / "mounted"
    folder.mkdir()
    run("mount", "-t", "squashfs", "-o", "loop,ro", tmp_path / "x.sqfs", folder)
    try:  # the kernel uses the index of the folder for each of these
        assert [(folder / name).read_bytes() for name in wanted] == [name[2:].encode() for name in wanted]
        assert not (folder / "d/0000000.jpg").exists()
        assert len(os.listdir(folder / "d")) == MANY
    finally:
        run("umount", folder)


NAMES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40).filter(
        lambda part: part not in (".", "..")
    ),
    min_size=1,
    max_size=3,
).map("/".join)


@given(
    st.dictionaries(NAMES, st.binary(max_size=9000), max_size=12),
    st.sampled_from(COMPRESSIONS),
    st.booleans(),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_unsquashfs_reads_any_tree(tmp_path_factory, need_tool, tree, compression, fragments):
    tool = need_tool("unsquashfs", PACKAGES["unsquashfs"])
    scratch = tmp_path_factory.mktemp("any")
    folders = {name[:at] for name in tree for at, sign in enumerate(name) if sign == "/"}
    items = {name: data for name, data in tree.items() if name not in folders}
    pack(scratch / "x.sqfs", items.items(), compression=compression, fragments=fragments, block_bytes=4096)
    assert TOOLS["unsquashfs"](scratch / "x.sqfs", scratch, tool) == items


# Theirs, read by us


def tree_of(items, root):
    for name, data in items.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


@pytest.mark.parametrize("fragments", [False, True])
@pytest.mark.parametrize(("compression", "block_bytes"), [pair for pair in PAIRS if pair.values[0] != "none"])
@pytest.mark.parametrize("writer", ["mksquashfs", "gensquashfs", "tar2sqfs"])
def test_we_read_the_images_of_every_tool(tmp_path, need_tool, writer, compression, block_bytes, fragments):
    tool = need_tool(writer, "squashfs-tools" if writer == "mksquashfs" else "squashfs-tools-ng")
    items, out = planted(block_bytes), tmp_path / "x.sqfs"
    block = ["-b", str(block_bytes)]
    if writer == "tar2sqfs":
        stream = BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, data in items.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, BytesIO(data))
        run(
            tool,
            "-q",
            "-c",
            compression,
            *block,
            *([] if fragments else ["-T"]),
            out,
            input=stream.getvalue(),
        )
    else:
        tree = tree_of(items, tmp_path / "tree")
        if writer == "mksquashfs":
            words = ["-noappend", "-quiet", "-no-progress", "-comp", compression, *block]
            run(tool, tree, out, *words, "-always-use-fragments" if fragments else "-no-fragments")
        else:
            run(tool, "-q", "-D", tree, "-c", compression, *block, *([] if fragments else ["-T"]), out)
        assert {name: path.read_bytes() for name, path in files_of(tree).items()} == items
    assert by_us(out) == items
