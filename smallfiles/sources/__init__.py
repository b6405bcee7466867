r"""Where manifests and bytes come from: trees, archives and synthetic copies of them.

`load` looks at a path, tells what it is, and returns its manifest together with the store that
its bytes are read from.

    source = sources.load(Path("/data/imagenet"), split="val")
    print(source.kind, len(source.manifest), *source.notes, sep="\n")

`from_dataset` takes what torchvision, or a class of your own, gives by number.

The trap: guessing is convenient and sometimes wrong, so `kind` and `notes` say what was guessed.
Notebook 02 teaches it.
"""

from typing import TYPE_CHECKING

from smallfiles import lazy
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions
from smallfiles.sources.detection import ManifestConfig, load, read
from smallfiles.sources.record import Source

if TYPE_CHECKING:
    from smallfiles.sources.dataset import from_dataset

__all__ = ["IMAGE_SUFFIXES", "ManifestConfig", "Source", "SourceOptions", "from_dataset", "load", "read"]

__getattr__ = lazy.names(__name__)
