"""The tools of others under the same contract as our writer."""

import os
import stat
import subprocess

import pytest
from squashfs_trees import content

from pysquashfs import SquashFS, SquashFSError, pack
from pysquashfs.errors import MissingToolError
from pysquashfs.image_file import ImageFile
from pysquashfs.superblock import read as read_superblock

TOOLS = {"mksquashfs": "squashfs-tools", "gensquashfs": "squashfs-tools-ng"}
BLOCK = 4096
ITEMS = {
    f"{kind}/{size}.bin": content(size, kind)
    for kind in ("text", "noise")
    for size in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17)
}
ODD = {
    'q"uo\\te': b"1",
    " spaces /  x ": b"2",
    "#hash": b"3",
    "é/日本": b"4",
    "n" * 255: b"5",
    "a'b$c`d": b"6",
}
CHOSEN = [
    {},
    {"compression": "gzip", "fragments": True},
    {"compression": "zstd", "level": 3, "deduplicate": True},
    {"compression": "lz4", "level": 9},
    {"compression": "xz", "threads": 1},
]


@pytest.fixture(params=TOOLS)
def tool(request, need_tool):
    need_tool(request.param, TOOLS[request.param])
    return request.param


@pytest.fixture
def sources(tmp_path):
    """Items whose bytes come from paths with odd names."""
    folder = tmp_path / 'sour ce "\\'
    folder.mkdir()
    for number, data in enumerate((ITEMS | ODD).values()):
        (folder / f' {number} "\\').write_bytes(data)
    return [(name, folder / f' {number} "\\') for number, name in enumerate(ITEMS | ODD)]


def read_back(path):
    with SquashFS(path, cache=False) as image:
        return {name: image.read(name) for name in image}


@pytest.mark.parametrize("chosen", CHOSEN, ids=str)
def test_a_tool_packs_bytes_and_paths_like_our_writer(tmp_path, tool, sources, chosen):
    for kind, items in (("bytes", list((ITEMS | ODD).items())), ("paths", sources)):
        done = pack(tmp_path / kind, items, tool=tool, block_bytes=BLOCK, **chosen)
        ours = pack(tmp_path / "ours", items, block_bytes=BLOCK, overwrite=True, **chosen)
        assert read_back(tmp_path / kind) == ITEMS | ODD
        assert (done.files, done.bytes) == (ours.files, ours.bytes)
        assert abs(done.image_bytes - ours.image_bytes) <= 8192
        assert done.image_bytes == (tmp_path / kind).stat().st_size
    assert sorted(os.listdir(tmp_path)) == ["bytes", "ours", "paths", 'sour ce "\\']


def test_bytes_between_paths_are_packed(tmp_path, tool, sources):
    items = [(name, path if number % 2 else path.read_bytes()) for number, (name, path) in enumerate(sources)]
    for number in range(2):  # a path first, and bytes first
        pack(tmp_path / "x", items[number:], tool=tool, overwrite=True)
        assert read_back(tmp_path / "x") == dict(list((ITEMS | ODD).items())[number:])


def test_a_tool_stores_no_time_user_or_permissions(tmp_path, tool, sources, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234567890")
    images = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        pack(tmp_path / str(number) / "x", sources, tool=tool)
        images.append((tmp_path / str(number) / "x").read_bytes())
        sources[0][1].chmod(0o600)
        os.utime(sources[0][1], (5, 5))
    pack(tmp_path / "stream", [(name, path.read_bytes()) for name, path in sources], tool=tool)
    for path in (tmp_path / "0/x", tmp_path / "stream"):
        block = read_superblock(ImageFile(path))
        assert (block.mtime_s, block.export_table) == (0, None)
        with SquashFS(path, cache=False) as image:
            found = {(s.uid, s.gid, s.mtime_s) for s in map(image.stat, image.list())}
            assert found == {(0, 0, 0)}
            assert image.stat("é").mode == 0o755
            assert image.info()["share_one_read"] == 1.0
        assert stat.S_IMODE(path.stat().st_mode) & 0o111 == 0
    if tool == "gensquashfs":  # mksquashfs takes the permissions of the files
        assert images[0] == images[1]


def test_nothing_makes_an_empty_image(tmp_path, tool):
    assert pack(tmp_path / "x", [], tool=tool).files == 0
    assert read_back(tmp_path / "x") == {}


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "n" * 256, ""])
def test_bad_names_reach_no_tool(tmp_path, tool, name):
    for source in (b"x", tmp_path / "x"):
        (tmp_path / "x").write_bytes(b"x")
        with pytest.raises(SquashFSError, match="the name"):
            pack(tmp_path / "y", [("fine", source), (name, source)], tool=tool)
        assert os.listdir(tmp_path) == ["x"]


def test_names_that_come_twice_are_refused(tmp_path, tool):
    (tmp_path / "x").write_bytes(b"x")
    for source in (b"x", tmp_path / "x"):
        for names in (("a", "b", "a"), ("a", "a/b"), ("a/b", "a")):
            with pytest.raises(SquashFSError):
                pack(tmp_path / "y", [(name, source) for name in names], tool=tool)
            assert os.listdir(tmp_path) == ["x"]


def test_an_end_of_line_in_a_name_is_packed_or_refused(tmp_path, tool):
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(SquashFSError, match="end of a line"):
        pack(tmp_path / "y", [("a\nb", tmp_path / "x")], tool=tool)
    if tool == "mksquashfs":  # the tar stream takes any name
        pack(tmp_path / "y", [("a\nb", b"x")], tool=tool)
        assert read_back(tmp_path / "y") == {"a\nb": b"x"}


def test_sources_that_vanish_are_told(tmp_path, tool):
    for first in (b"x", tmp_path / "x"):
        (tmp_path / "x").write_bytes(b"x")

        def items(first=first):
            yield "a", first
            yield "b", tmp_path / "gone"

        with pytest.raises(SquashFSError, match="gone cannot be read"):
            pack(tmp_path / "y", items(), tool=tool)

        def vanishing(first=first):
            yield "a", first
            yield "x", tmp_path / "x"
            (tmp_path / "x").unlink()

        if isinstance(first, bytes) and tool == "mksquashfs":
            continue  # the stream has taken it by then
        with pytest.raises(SquashFSError, match=f"{tool} (failed|made)"):
            pack(tmp_path / "y", vanishing(), tool=tool)
        assert os.listdir(tmp_path) == []


def test_an_error_among_the_items_stops_the_tool(tmp_path, tool):
    def items():
        yield "a", bytes(1 << 20)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        pack(tmp_path / "y", items(), tool=tool)
    assert os.listdir(tmp_path) == []


def test_what_a_failing_tool_says_is_passed_on(tmp_path, tool, monkeypatch):
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / tool
    fake.write_text("#!/bin/sh\necho FATAL: the moon is full >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with pytest.raises(SquashFSError, match=rf"{tool} failed with code 3 \(FATAL: the moon is full\)"):
        pack(tmp_path / "y", [("a", bytes(10 << 20))], tool=tool)
    assert os.listdir(tmp_path) == ["bin"]


def test_a_missing_tool_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for tool, package in TOOLS.items():
        with pytest.raises(MissingToolError, match=rf"{tool} is not installed.*apt-get install {package}"):
            pack(tmp_path / "y", [], tool=tool)


def test_a_level_that_a_tool_lacks_is_refused(tmp_path, need_tool):
    need_tool("mksquashfs", "squashfs-tools")
    with pytest.raises(SquashFSError, match="expected no level"):
        pack(tmp_path / "y", [], tool="mksquashfs", compression="xz", level=3)


def test_libsquashfs_writes_through_the_same_door(tmp_path, need_tool):
    from pysquashfs import SquashFS, libsquashfs, pack

    if libsquashfs.available() is None:
        pytest.skip("libsquashfs is not installed")
    unsquashfs = need_tool("unsquashfs", "squashfs-tools")
    items = [(f"d{n % 3}/f{n}", bytes([n]) * (n * 999)) for n in range(150)]
    packed = pack(tmp_path / "x.sqfs", items, compression="gzip", tool="libsquashfs")
    assert (packed.files, packed.bytes) == (150, sum(len(data) for _, data in items))
    with SquashFS(packed.path) as image:
        assert all(image.read(name) == data for name, data in items)
    subprocess.run([unsquashfs, "-quiet", "-no-progress", "-d", tmp_path / "out", packed.path], check=True)
    assert all((tmp_path / "out" / name).read_bytes() == data for name, data in items)
