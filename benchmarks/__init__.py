"""Ours beside other people's software, in one run: `python -m benchmarks TOPIC …`.

The topics, flags and records are those of `smallfiles bench`; what is added here are re-statements of how
others do it, each as its authors teach it, and the loaders of others where they are installed. Nothing
imports this package; the toolbox is told its modules by name. `make bench` and `make bench-peers` run it.
"""

import smallfiles  # noqa: F401, I001 - it says so if this Python is too old

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from smallfiles.measure.workers import WorkFailed

COMPARE = "make bench-peers, or python -m pip install -c requirements.lock -e '.[compare]'"
"""What installs nearly all of them."""

INSTALL = {
    "datasets": "python -m pip install -c requirements.lock datasets",
    "ffcv": "apt-get install libopencv-dev libturbojpeg0-dev pkg-config; "
    "python -m pip install --no-build-isolation ffcv",
    "ratarmount": "apt-get install fuse3; python -m pip install -c requirements.lock ratarmount",
    "streaming": "python -m pip install --no-deps mosaicml-streaming; "
    "python -m pip install brotli catalogue python-snappy transformers zstd",
}
"""By the module, what installs the others."""


def missing(modules: Sequence[str]) -> str:
    """Which of these modules is not installed, and the line that installs it; empty if all are there."""
    for name in modules:
        root = name.partition(".")[0]
        try:
            found = find_spec(name)
        except (ImportError, ValueError):  # the parent of a dotted name is missing
            found = None
        if found is None:
            return f"{root} is not installed: {INSTALL.get(root, COMPARE)}"
    return ""


def needed(name: str) -> Any:
    """A module of others, whose types are not our business.

    Raises:
        WorkFailed: It is not installed; says how to do that.
    """
    why = missing([name])
    if why:
        raise WorkFailed(why)
    return importlib.import_module(name)
