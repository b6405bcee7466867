"""A folder to slow down, and whether this machine lets one mount it."""

import os

import pytest

from helpers.machine.mounts import read_mounts
from helpers.slowfs import points

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


@pytest.fixture
def folder(tmp_path):
    for name, size in (("a/1.jpg", 1000), ("a/2.jpg", 70_000), ("b/c d/ü 3.jpg", 0), ("4.jpg", 300_000)):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(i % 251 for i in range(size)))
    return tmp_path / "data"


@pytest.fixture
def fuse():
    """Skip where FUSE is not allowed; in CI, fail where it is and only the tool is missing."""
    reason = points.why_not()
    if reason is None:
        return
    usable = points.DEVICE.exists() and os.access(points.DEVICE, os.R_OK | os.W_OK)
    pytest.fail(reason) if IN_CI and usable else pytest.skip(reason)


@pytest.fixture(autouse=True)
def nothing_stays_mounted():
    """No test may leave a slow mount behind."""
    before = slow_mounts()
    yield
    assert slow_mounts() <= before


def slow_mounts():
    return {mount.point for mount in read_mounts() if mount.kind == points.KIND}
