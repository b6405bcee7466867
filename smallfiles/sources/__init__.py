r"""Where manifests and bytes come from: trees, archives and synthetic copies of them.

`load` looks at a path, tells what it is, and returns its manifest together with the store that
its bytes are read from.

    source = sources.load(Path("/data/imagenet"), split="val")
    print(source.kind, len(source.manifest), *source.notes, sep="\n")

The trap: guessing is convenient and sometimes wrong, so `kind` and `notes` say what was guessed.
Notebook 02 teaches it.
"""

from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions
from smallfiles.sources.detection import ManifestConfig, load, read
from smallfiles.sources.record import Source

__all__ = ["IMAGE_SUFFIXES", "ManifestConfig", "Source", "SourceOptions", "load", "read"]
