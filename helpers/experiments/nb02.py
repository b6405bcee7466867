"""Notebook 02: a manifest as long as one likes, with paths as long as ImageNet's.

The trap: short names would make the list of paths look cheap; those of ImageNet have about 50 characters.
"""

from __future__ import annotations

from pathlib import Path

from smallfiles.manifest import Manifest

IMAGENET = 1_281_167
"""Training images of ImageNet-1k."""


def long_manifest(folder: Path, rows: int) -> Path:
    """A manifest of so many images of a thousand classes, written at the first call.

    Args:
        folder: Where to write it.
        rows: Number of images.
    """
    path = folder / f"{rows}.json"
    if not path.exists():
        names = [f"ILSVRC/Data/CLS-LOC/train/n{n % 1000:08d}/n{n % 1000:08d}_{n}.JPEG" for n in range(rows)]
        Manifest.from_columns(names, [n % 1000 for n in range(rows)]).save(path)
    return path
