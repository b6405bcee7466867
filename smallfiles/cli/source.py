"""Load the source that a command line names, and tell what was odd about it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from smallfiles.cli.output import say

if TYPE_CHECKING:
    from smallfiles.sources import Source


def load_source(path: Path, arguments: argparse.Namespace) -> Source:
    """A folder, an archive or a manifest with the flags of `add_source_flags`."""
    from smallfiles import sources

    found = sources.load(
        path,
        arguments.source,
        split=arguments.split,
        root=arguments.root,
        labels=arguments.labels,
        label_order=arguments.label_order,
        unlabelled=arguments.unlabelled,
        suffixes=tuple(arguments.suffix or sources.IMAGE_SUFFIXES),
        strict=arguments.strict,
        follow_links=arguments.follow_links,
        allow_truncated=arguments.allow_truncated,
    )
    for note in found.notes:
        say(f"note: {note}")
    return found
