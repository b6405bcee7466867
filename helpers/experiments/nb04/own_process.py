"""A fresh Python that finds this package, for experiments that a notebook's kernel must not run itself.

A kernel has threads, and forking it or letting it wait for a lock may stop it for ever. The trap: the
kernel finds the package through `sys.path`, and a new process does not inherit that. Notebook 04 needs it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOCKING = "HDF5_USE_FILE_LOCKING"


def command(code: str, *arguments: str) -> list[str]:
    """The command line of a new Python that runs `code`.

    Args:
        code: A program; it finds `arguments` in `sys.argv[1:]`.
        *arguments: Texts.
    """
    return [sys.executable, "-c", code, *arguments]


def environment(**more: str) -> dict[str, str]:
    """This process's environment with the package in reach and HDF5's own default for locks.

    Args:
        **more: Variables to set besides.
    """
    root = str(Path(__file__).resolve().parents[3])
    kept = {name: value for name, value in os.environ.items() if name != LOCKING}
    path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, **more}
