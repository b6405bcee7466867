"""Trees that have one of everything."""

import os
import subprocess
from pathlib import Path

import numpy as np

LONG = "l" * 251 + ".bin"
RECOMMENDED = [
    *("-noappend", "-no-progress", "-quiet", "-comp", "gzip", "-noD", "-noF", "-no-fragments"),
    *("-no-xattrs", "-all-root", "-mkfs-time", "0", "-all-time", "0", "-no-exports"),
]


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


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout
