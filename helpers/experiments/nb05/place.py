"""A place of its own for each run, since a cell may run twice and `pack` overwrites nothing.

The trap: deleting what is in the way is one typing mistake away from deleting data. A new folder needs
no deletion; the scratch folder goes when its kernel ends. Notebook 05 packs into such places.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from smallfiles.errors import ResourceError


def fresh_folder(parent: Path) -> Path:
    """Make a new, empty folder.

    Args:
        parent: A folder that may be written to, usually `setup.scratch`.

    Raises:
        ResourceError: It cannot be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    except OSError as error:
        raise ResourceError(
            f"no folder can be made in {parent} ({error.strerror or error})",
            expected="a folder that exists, with space and inodes left",
            next_step="Restart the kernel, which empties its scratch; or run: smallfiles doctor",
        ) from error
