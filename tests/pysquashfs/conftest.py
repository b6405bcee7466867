"""Images of planted trees by the tools of others."""

import os
import subprocess

import pytest
from squashfs_trees import RECOMMENDED, plant, run


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """Block size -> a planted tree."""
    kept = {}

    def tree(block_bytes):
        if block_bytes not in kept:
            kept[block_bytes] = plant(tmp_path_factory.mktemp(f"tree{block_bytes}"), block_bytes)
        return kept[block_bytes]

    return tree


@pytest.fixture(scope="session")
def mksquashfs(need_tool):
    """Make an image of a folder with `mksquashfs`; these options replace the recommended ones."""

    def make(folder, out, *options):
        defaults = ["-noappend", "-no-progress", "-quiet", "-processors", "2", "-mem", "64M"]
        run(need_tool("mksquashfs", "squashfs-tools"), folder, out, *(options or RECOMMENDED), *defaults)
        return out

    return make


@pytest.fixture
def fuse(need_tool):
    """Skip where FUSE cannot work; in CI only where the machine has no /dev/fuse."""
    need_tool("squashfuse_ll", "squashfuse")
    need_tool("fusermount3", "fuse3")
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("/dev/fuse is not open to this user")
    if os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("this container may not mount")
