"""The back end over libsquashfs: when it is chosen, what is missing, and damage read in child processes."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import pytest
from squashfs_crafted import craft
from squashfs_peers import PACKAGES, TOOLS
from squashfs_trees import content
from test_cross_check import by_us, planted
from test_damage import BLOCK, TREE, mutate

from pysquashfs import SquashFS, SquashFSError, cli, compression, pack
from pysquashfs.errors import MissingToolError
from pysquashfs.libsquashfs import library

ROOT = Path(__file__).resolve().parents[2]
ITEMS = {f"{number % 3}/{number}": content(900 + 700 * number, "text", number) for number in range(12)}


def python(code, *arguments, **variables):
    """Run code in another process, without smallfiles."""
    hidden = "import sys; sys.modules['smallfiles'] = None\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **variables},
        timeout=1500,
    )


@pytest.fixture
def image(tmp_path):
    """A path with a space."""
    return pack(tmp_path / "an image.sqfs", ITEMS.items(), compression="gzip", fragments=True).path


# Which back end reads


def test_info_says_which_back_end_is_used_and_why(image, need_library, capsys):
    with SquashFS(image) as opened:
        facts = opened.info()
        assert facts["backend"] == opened.backend == "python"
        assert "as fast as" in facts["backend_reason"]
    for chosen in ("python", "libsquashfs"):
        with SquashFS(image, backend=chosen) as opened:
            assert opened.info()["backend"] == chosen
            assert {name: opened.read(name) for name in opened} == ITEMS
        assert cli.main(["info", str(image), "--backend", chosen, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["backend"] == chosen and "it was requested" in facts["backend_reason"]
        assert cli.main(["verify", str(image), "--backend", chosen]) == 0
    with pytest.raises(SquashFSError, match="there is no back end 'rust'; expected one of auto, python"):
        SquashFS(image, backend="rust")


def test_auto_takes_the_library_where_python_lacks_the_decompressor(tmp_path, need_library, monkeypatch):
    image = pack(tmp_path / "x", ITEMS.items(), compression="zstd").path
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with SquashFS(image) as opened:
        assert opened.info()["backend"] == "libsquashfs"
        assert "the Python package zstandard is not installed" in opened.info()["backend_reason"]
        assert {name: opened.read(name) for name in opened} == ITEMS
    with pytest.raises(MissingToolError, match="pip install zstandard"):
        SquashFS(image, backend="python")
    monkeypatch.setattr(library, "load", lambda: library.recognise(set(), "x"))
    with pytest.raises(MissingToolError, match=r"pip install zstandard, or .*: apt-get install libsquashfs1"):
        SquashFS(image)


# What is missing


def test_everything_else_works_without_the_library(image, tmp_path):
    code = """
from pathlib import Path
from pysquashfs import SquashFS, SquashFSError, pack
image, out = map(Path, sys.argv[1:])
pack(out, [("a", b"one")], compression="zstd")
for path in (image, out):
    with SquashFS(path) as opened:
        assert opened.info()["backend"] == "python" and opened.verify().ok
chosen = {"backend": "libsquashfs"}
for use in (lambda: SquashFS(image, **chosen), lambda: pack(out, [], overwrite=True, **chosen)):
    try:
        use()
    except SquashFSError as error:
        print(error)
assert sorted(path.name for path in out.parent.iterdir()) == ["an image.sqfs", "out.sqfs"]
third = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
third -= {"sitecustomize", "usercustomize"}  # of the system
print(sorted(name for name in third if not name.startswith("_") and sys.modules[name]))
"""
    done = python(code, image, tmp_path / "out.sqfs", PYSQUASHFS_LIBRARY=str(tmp_path / "nothing.so"))
    assert done.returncode == 0, done.stderr
    refusals, modules = done.stdout.splitlines()[:2], done.stdout.splitlines()[2]
    for line in refusals:
        assert "libsquashfs cannot be loaded" in line and "apt-get install libsquashfs1" in line
        assert "dnf install squashfs-tools-ng" in line and 'backend="python"' in line
    allowed = {"cffi", "numpy", "pycparser", "pysquashfs", "zstandard"}
    assert set(json.loads(modules.replace("'", '"'))) <= allowed


def test_the_package_works_alone_with_numpy_and_cffi(image, need_library):
    code = """
for name in ("zstandard", "lz4", "torch", "pyarrow", "xxhash"):
    sys.modules[name] = None
from pysquashfs import SquashFS
with SquashFS(sys.argv[1], backend="libsquashfs") as opened:
    print(len(opened), opened.verify().ok)
"""
    done = python(code, image)
    assert (done.returncode, done.stdout) == (0, f"{len(ITEMS)} True\n"), done.stderr


@pytest.mark.parametrize(
    ("functions", "version"),
    [
        ({"sqfs_open_file"}, "1.0.0 to 1.0.3"),
        ({"sqfs_open_file", "sqfs_block_processor_create_ex"}, "1.0.4 to 1.1"),
        ({"sqfs_open_file", "sqfs_block_processor_create_ex", "sqfs_tree_node_get_path"}, "1.2 or newer"),
        ({"sqfs_open_file", "sqfs_file_open", "sqfs_tree_node_get_path"}, None),
        ({"sqfs_file_open"}, None),
        (set(), None),
    ],
)
def test_a_library_of_unknown_structs_is_refused(functions, version):
    if version is not None:
        assert library.recognise(functions, "x.so") == version
        return
    with pytest.raises(SquashFSError, match=r"the structures of the library x\.so are not known"):
        library.recognise(functions, "x.so")


def test_a_library_that_corrupts_is_not_written_with(tmp_path, need_library, monkeypatch):
    old = library.load()._replace(version="1.1", can_write=False)
    monkeypatch.setattr(library, "load", lambda: old)
    with pytest.raises(SquashFSError, match=r"libsquashfs 1\.1 silently writes damaged images"):
        pack(tmp_path / "x", ITEMS.items(), backend="libsquashfs")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_of_the_library_stays_in_its_thread(image, need_library):
    with SquashFS(image, backend="libsquashfs") as opened:
        reader, told = opened._reader(), []

        def use():
            with pytest.raises(SquashFSError, match="was used outside of its thread") as caught:
                reader.read(0)
            told.append(caught.value)
            assert opened.read_at(0) == ITEMS[opened.paths[0]]

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert len(told) == 1


# Writing


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "xz"])
@pytest.mark.parametrize("block_bytes", [4096, 131072])
def test_everybody_reads_what_the_library_writes(tmp_path, need_library, need_tool, compression, block_bytes):
    items = planted(block_bytes)
    if compression == "xz" and block_bytes > 4096:  # which takes ten seconds for noise
        items = {name: data for name, data in items.items() if len(data) < 5000 or name.startswith("text")}
    for fragments in (False, True):
        image, scratch = tmp_path / f"{fragments}.sqfs", tmp_path / f"{fragments}"
        options = {"compression": compression, "block_bytes": block_bytes, "fragments": fragments}
        written = pack(image, items.items(), **options, backend="libsquashfs")
        assert (written.files, written.bytes) == (len(items), sum(map(len, items.values())))
        assert written.image_bytes == image.stat().st_size
        for backend in ("python", "libsquashfs"):
            with SquashFS(image, backend=backend) as opened:
                assert {name: opened.read(name) for name in opened} == items
                assert opened.verify().ok
        scratch.mkdir()
        assert TOOLS["unsquashfs"](image, scratch, need_tool("unsquashfs", PACKAGES["unsquashfs"])) == items


def test_large_files_and_levels_are_written(tmp_path, need_library):
    (tmp_path / "large").write_bytes(content(3 << 20, "text"))
    sizes = {}
    for level in (1, 9):
        options = {"compression": "gzip", "level": level, "backend": "libsquashfs"}
        image = pack(tmp_path / f"{level}", [("large", tmp_path / "large"), ("none", b"")], **options).path
        assert by_us(image) == {"large": content(3 << 20, "text"), "none": b""}
        sizes[level] = image.stat().st_size
    assert sizes[9] < sizes[1]


@pytest.mark.parametrize(
    ("items", "options", "match"),
    [
        ([("../x", b"")], {}, "leads out of the image"),
        ([("x", b""), ("x", b"")], {}, "comes twice"),
        ([("x", b""), ("x/y", b"")], {}, "comes twice"),
        ([("x", Path("/nowhere"))], {}, "/nowhere cannot be read"),
        (
            [("x", b"")],
            {"compression": "lz4"},
            "with the back end libsquashfs; expected none, gzip, zstd or xz",
        ),
        ([("x", b"")], {"block_bytes": 5000}, "the block size is 5000"),
        ([("x", b"")], {"compression": "xz", "level": 10}, "the level of xz is 10"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, need_library, items, options, match):
    with pytest.raises(SquashFSError, match=match):
        pack(tmp_path / "x.sqfs", items, **options, backend="libsquashfs")
    assert list(tmp_path.iterdir()) == []


def test_python_does_not_write_xz(tmp_path):
    with pytest.raises(SquashFSError, match="with the back end python; expected none, gzip or zstd"):
        pack(tmp_path / "x", [], compression="xz")
    assert compression.LEVELS.keys() >= {"xz"}


def test_a_full_disk_is_a_sentence(need_library):
    with pytest.raises(SquashFSError, match=r"cannot be written|exists already"):
        pack(Path("/dev/full"), ITEMS.items(), backend="libsquashfs")


# Damage, in child processes

FUZZ = """
from pathlib import Path
sys.path[:0] = ["tests/pysquashfs"]
from pysquashfs import SquashFS, SquashFSError

def read(path, backend):
    try:
        with SquashFS(path, backend=backend) as image:
            files = {name: None for name in image}
            for row, name in enumerate(files):
                try:
                    files[name] = image.read_at(row)
                except SquashFSError as error:
                    assert str(error).endswith(".")
            return files, [(path, image.stat(path)) for path in image.list()]
    except SquashFSError as error:
        assert str(path) in str(error), error
        return None

both = refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, file=sys.stderr, flush=True)  # the last one is the one that ended the process
    seen = [read(path, backend) for backend in ("python", "libsquashfs")]
    if None in seen:
        refused += 1
        continue
    (python, entries), (library, by_library) = seen
    both += 1
    if "zstd" in path.name:  # two versions of zstd may decompress a damaged block to different bytes
        continue
    assert entries == by_library, path
    for name, data in python.items():
        assert None in (data, library[name]) or data == library[name], (path, name)
print(both, refused)
"""


def fuzz(seeds, folder, numbers):
    """Read mutated images with both back ends in a child; returns how many were opened by both."""
    folder.mkdir()
    names = sorted(seeds)
    for number in numbers:
        name = names[number % len(names)]
        (folder / f"{number:06d} {name}").write_bytes(mutate(seeds[name], Random(number)))
    done = python(FUZZ, folder)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    both, refused = map(int, done.stdout.split())
    assert both + refused == len(numbers)
    return both


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Small images of every compressor."""
    folder, made = tmp_path_factory.mktemp("seeds"), {"crafted": craft(TREE, tails=[(b"fragment", True)])}
    items = {name: data for name, data in planted(BLOCK).items() if "many/" not in name or name.endswith("7")}
    for name in ("none", "gzip", "zstd", "xz"):
        options = {"compression": name, "block_bytes": BLOCK, "backend": "libsquashfs"}
        for fragments in (False, True):
            path = pack(folder / f"{name}{fragments}", items.items(), fragments=fragments, **options).path
            made[path.name] = path.read_bytes()
    return made


def test_damaged_images_end_no_process_and_give_equal_bytes(need_library, seeds, tmp_path):
    assert 20 < fuzz(seeds, tmp_path / "x", range(400)) < 380


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(20))
def test_20_000_damaged_images_end_no_process(need_library, seeds, tmp_path, part):
    assert fuzz(seeds, tmp_path / "x", range(1000 * part + 1000, 1000 * part + 2000)) > 20
