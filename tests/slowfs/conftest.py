"""A folder to slow down, and whether this machine lets one mount it."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from programs import wait_for

from pysquashfs.mounts import read_mounts
from smallfiles.errors import ResourceError
from smallfiles.slowfs import server

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


@pytest.fixture
def folder(tmp_path):
    for name, size in (("a/1.jpg", 1000), ("a/2.jpg", 70_000), ("b/c d/ü 3.jpg", 0), ("4.jpg", 300_000)):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(i % 251 for i in range(size)))
    return tmp_path / "data"


@pytest.fixture(scope="session")
def not_allowed(tmp_path_factory):
    """What the system says to a mount, if it refuses one; a fault of ours is no refusal."""
    if server.why_not() is not None:
        return server.why_not()
    point = tmp_path_factory.mktemp("may") / "mount"
    point.mkdir()
    try:
        os.close(server.mount(point))
    except ResourceError as error:
        return error.got
    finally:
        server.unmount(point)


@pytest.fixture
def fuse(not_allowed):
    """Skip where FUSE is not allowed; in CI, fail where it is and only the tool is missing."""
    if not_allowed is not None:
        usable = server.DEVICE.exists() and os.access(server.DEVICE, os.R_OK | os.W_OK)
        missing = IN_CI and usable and shutil.which("fusermount3") is None
        pytest.fail(not_allowed) if missing else pytest.skip(not_allowed)


@pytest.fixture(scope="session")
def slow_mounts():
    """A call that returns the points of all slow mounts there are."""
    return lambda: {mount.point for mount in read_mounts() if mount.kind == server.KIND}


@pytest.fixture(autouse=True)
def nothing_stays_mounted(slow_mounts, tmp_path_factory, monkeypatch):
    """No test may leave a slow mount behind; other test processes have theirs in folders of their own."""
    ours = tmp_path_factory.getbasetemp().resolve()
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    wait_for(lambda: not any(Path(point).is_relative_to(ours) for point in slow_mounts()), 20)
