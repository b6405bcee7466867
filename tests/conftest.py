"""What every test shares: no network, no windows, the same random examples each time in CI."""

import os

# Before anything imports the libraries that read them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_NUM_THREADS", "2")
# Tests start some hundred processes, which would all compile the same modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Slurm is installed here for the tests of jobs; that makes no login node of this machine.
os.environ["SMALLFILES_LOGIN_OK"] = "1"

import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

settings.register_profile(
    "default", deadline=None, derandomize=IN_CI, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


# jsonschema would build a grammar of URIs from it, for two seconds; it goes without.
sys.modules["rfc3987_syntax"] = None

# What a script starts in the background ignores Control-C, and what `nohup` starts ignores the end of the
# terminal. So would all that tests start and interrupt.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(scope="session")
def repository():
    """Root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def need_tool():
    """Path of a command that a test needs: skip where it is missing, but fail in CI."""

    def find(name, package):
        path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
        if path is None:
            message = f"the command {name} is missing (package {package})"
            pytest.fail(message) if IN_CI else pytest.skip(message)
        return path

    return find


def pytest_collection_modifyitems(items):
    """Three processes share the tests, a file each: the long ones first, so that all end at the same time."""
    first = ["jobs_run", "execute", "execute_solutions", "execute_exercises", "contract", "push_and_pull"]
    first += [
        "training",
        "streaming",
        "client",
        "kill",
        "cortx",
        "recipes",
        "jupyterlab",
        "ring_kills",
        "ring_cli",
    ]

    def rank(item):
        name = item.path.stem.removeprefix("test_")
        return first.index(name) if name in first else len(first)

    items.sort(key=rank)


def pytest_runtest_logreport(report):
    """Keep what was skipped and why: `.ci/run` runs that again, with more rights."""
    kept = os.environ.get("SKIPPED_TESTS")
    if kept and report.skipped and "PYTEST_XDIST_WORKER" not in os.environ:  # the controller hears of all
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        with open(kept, "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\t{' '.join(reason.split())}\n")


def pytest_sessionfinish():
    """HDF5 crashes the end of a process that leaves a file open through a Python file object."""
    h5py = sys.modules.get("h5py")
    if h5py is not None:
        kinds = h5py.h5f.OBJ_FILE | h5py.h5f.OBJ_GROUP | h5py.h5f.OBJ_DATASET
        for held in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, kinds):
            if held.valid:  # closing a file closes all that is in it
                h5py.File(held).close()
