"""Load the source that a command line names, and tell what was odd about it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.output import say
from smallfiles.folders import SourceOptions
from smallfiles.options import from_args

if TYPE_CHECKING:
    from smallfiles.sources import Source


def load_source(path: Path, arguments: argparse.Namespace) -> Source:
    """A folder, an archive or a manifest with the flags of `add_source_flags`."""
    from smallfiles import sources

    found = sources.read(path, from_args(SourceOptions, arguments))
    for note in found.notes:
        say(f"note: {note}")
    return found
