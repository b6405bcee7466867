"""Images of planted trees by the tools of others."""

import os
import subprocess

import pytest
from squashfs_trees import RECOMMENDED, plant, run

from pysquashfs import backends
from pysquashfs.libsquashfs import available


@pytest.fixture(params=["python", "libsquashfs"])
def backend(request, monkeypatch):
    """Both back ends one after the other, for every image that the test opens."""
    if request.param == "libsquashfs":
        request.getfixturevalue("need_library")
    monkeypatch.setattr(backends, "choose", lambda image, requested: (request.param, "of the test"))
    return request.param


@pytest.fixture(scope="session")
def need_library():
    """Skip where libsquashfs is not installed; in CI, fail."""
    if available() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("libsquashfs1 is not installed")


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
