"""What a source is made of.

The trap: a source that repairs silently cannot be trusted. Whatever was odd (a row that was mended,
an image without a caption, folders left aside) stands in `Source.notes`. Notebook 02 reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smallfiles.manifest import Manifest
from smallfiles.samples import ByteStore


@dataclass(frozen=True)
class Source:
    """Samples and where their bytes are.

    Args:
        manifest: Path and target of every sample.
        store: Reads the bytes of a path of the manifest.
        kind: What the path was recognised as.
        notes: What was odd, repaired or left aside, one sentence each.
        root: The folder or tar file that the manifest's paths are relative to.
        resize: How pictures were scaled when this was packed; None if they were not.
    """

    manifest: Manifest
    store: ByteStore
    kind: str
    notes: tuple[str, ...] = ()
    root: Path | None = None
    resize: Mapping[str, Any] | None = None
