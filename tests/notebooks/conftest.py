"""The build tools are scripts beside the package; the tests import them by name."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools"), str(Path(__file__).resolve().parent)]


@pytest.fixture(scope="session")
def course_cache(tmp_path_factory):
    """One cache for all executed notebooks, so that each data set is drawn once."""
    return tmp_path_factory.mktemp("course")


@pytest.fixture
def participant(course_cache, tmp_path, monkeypatch, repository):
    """The environment of a participant who starts now: small size, nobody else's settings."""
    for name in ("COURSE_DATA", "COURSE_STRICT", "MPLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COURSE_SIZE", "small")
    monkeypatch.setenv("COURSE_CACHE", str(course_cache))
    monkeypatch.setenv("PYTHONPATH", str(repository))
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def forked():
    """Kernels off one process, where not each needs to read the large libraries again."""
    from jupyter_client.provisioning import local_provisioner
    from kernels import Kernels

    kernels = Kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_provisioner, "launch_kernel", kernels)
        yield
    kernels.close()


@pytest.fixture(autouse=True)
def seconds_kept(request):
    """Have the report of a test carry the seconds of what it executed, to whichever process shows them."""
    running = sys.modules.get("running")
    if running is not None:
        running.SECONDS.clear()
    yield
    running = sys.modules.get("running")
    if running is not None:
        request.node.user_properties += running.SECONDS.items()


def pytest_terminal_summary(terminalreporter):
    """Seconds of every notebook that was executed."""
    reports = [each for kind in terminalreporter.stats.values() for each in kind if hasattr(each, "when")]
    seconds = {name: s for each in reports if each.when == "teardown" for name, s in each.user_properties}
    if seconds:
        terminalreporter.section("seconds a notebook")
    for name, taken in sorted(seconds.items()):
        terminalreporter.write_line(f"{taken:6.1f} s  {name}")
