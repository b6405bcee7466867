"""Other programs that read images: each gives a dictionary of names and bytes."""

import contextlib
import os
import subprocess
import time

from squashfs_trees import run

PACKAGES = {"unsquashfs": "squashfs-tools", "squashfuse_ll": "squashfuse", "7z": "p7zip-full"}


def folder_bytes(root):
    """Every regular file below a folder: name in it, and content."""
    found, top = {}, os.fsencode(root)
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.fsdecode(os.path.relpath(path, top))] = file.read()
    return found


def by_unsquashfs(image, scratch, tool):
    run(tool, "-quiet", "-no-progress", "-processors", "2", "-d", scratch / "unsquashed", image)
    return folder_bytes(scratch / "unsquashed")


def by_7z(image, scratch, tool):
    run(tool, "x", f"-o{scratch / 'seven'}", image)
    return folder_bytes(scratch / "seven")


def _by_fuse(image, scratch, tool):
    folder = scratch / "fuse"
    folder.mkdir()
    server = subprocess.Popen([tool, "-f", str(image), str(folder)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(500):
            if os.path.ismount(folder):
                break
            time.sleep(0.01)
        assert os.path.ismount(folder)
        return folder_bytes(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=False, stderr=subprocess.DEVNULL)
        server.wait(timeout=20)


@contextlib.contextmanager
def loop_mount(image, scratch):
    """A mount by the kernel, as root."""
    folder = scratch / "loop"
    folder.mkdir()
    run("mount", "-t", "squashfs", "-o", "loop,ro", image, folder)
    try:
        yield folder
    finally:
        run("umount", folder)


TOOLS = {"unsquashfs": by_unsquashfs, "squashfuse_ll": _by_fuse, "7z": by_7z}
