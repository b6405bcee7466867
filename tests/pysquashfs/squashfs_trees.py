"""Trees that have one of everything."""

import os
import subprocess
from pathlib import Path

import numpy as np

from pysquashfs import info

LONG = "l" * 251 + ".bin"
RECOMMENDED = info.RECOMMENDED.split()[3:]  # without the program, the folder and the image


def content(size, kind, seed=0):
    """Bytes that compress ("text"), do not ("noise"), or are mostly zeros ("holes")."""
    if kind == "noise":
        return np.random.default_rng([size, seed]).bytes(size)
    if kind == "text":
        return (b"%d bottles of text, " % seed * (size // 16 + 1))[:size]
    return bytes(size - 1) + b"!" if size else b""


def plant(root, block_bytes, blocks=3):
    """A tree with files of all the sizes at which something changes."""
    sizes = [0, 1, 100, block_bytes - 1, block_bytes, block_bytes + 1, blocks * block_bytes + 17]
    for kind in ("text", "noise", "holes"):
        (root / kind).mkdir(parents=True)
        for size in sizes:
            (root / kind / f"{size}.bin").write_bytes(content(size, kind))
    deep = root / "a" / "b" / "c" / "d é" / "e"
    deep.mkdir(parents=True)
    (deep / LONG).write_bytes(b"long")
    (root / "a-b").write_bytes(b"sorts before a/b")
    Path(os.fsdecode(os.fsencode(root) + b"/not utf-8 \xff")).write_bytes(b"name")
    (root / "empty folder").mkdir()
    (root / "link").symlink_to("text/100.bin")
    (root / "dangling").symlink_to("/nowhere/at all")
    os.link(root / "noise" / "100.bin", root / "twin.bin")
    return root


def files_of(root):
    """Every regular file below a folder, by path."""
    top = os.fsencode(root)
    return {
        os.fsdecode(os.path.relpath(os.path.join(folder, name), top)): Path(
            os.fsdecode(os.path.join(folder, name))
        )
        for folder, _, names in os.walk(top)
        for name in names
        if not os.path.islink(os.path.join(folder, name))
    }


def reads_as(image, root):
    """All files of an open image, by path, by number, and many at once; all names; all targets."""
    wanted = files_of(root)
    assert list(image.paths) == sorted(wanted, key=os.fsencode)
    for row, (path, file) in enumerate((path, wanted[path]) for path in image):
        data = file.read_bytes()
        assert image.read(path) == image.read_at(row) == b"".join(image.chunks(path)) == data, path
        assert image.stat(path).size == len(data)
    backwards = list(image.paths)[::-1]
    assert image.read_many(backwards, threads=3) == [wanted[path].read_bytes() for path in backwards]
    everything = [os.path.relpath(os.path.join(f, n), root) for f, ds, ns in os.walk(root) for n in ds + ns]
    assert sorted(image.list()) == sorted(everything)
    assert image.stat("link").target == "text/100.bin"
    assert image.stat("dangling").target == "/nowhere/at all"
    assert image.verify().faults == ()


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout
