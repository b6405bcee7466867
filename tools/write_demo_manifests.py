"""Write the manifests of the small synthetic sets that are kept in data_manifests/.

    python tools/write_demo_manifests.py [FOLDER]

Sizes and hashes are left out: the bytes of a JPEG file depend on the encoder's version, names, labels
and captions do not. A test makes them again and compares.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

COUNT = 60


@dataclass(frozen=True)
class Kept:
    """One manifest that is kept."""

    name: str
    layout: str
    split: str
    flat: bool = False


KEPT = (
    Kept("folder.json", "folder", "train"),
    Kept("imagenet_train.json", "kaggle", "train", flat=True),
    Kept("imagenet_val.json", "kaggle", "val"),
    Kept("flickr30k_train.json", "flickr30k", "train"),
)


def write(folder: Path) -> None:
    """Make the sets in a temporary folder and write their manifests into `folder`."""
    from smallfiles import sources
    from smallfiles.manifest import Manifest
    from smallfiles.sources import synthetic

    with tempfile.TemporaryDirectory() as place:
        for layout in dict.fromkeys(kept.layout for kept in KEPT):
            synthetic.make(Path(place) / layout, layout, count=COUNT, seed=0)
        for kept in KEPT:
            found = sources.load(Path(place) / kept.layout, split=kept.split).manifest
            manifest = Manifest.from_columns(
                found.paths, found.targets, name=kept.layout, split=found.split, classes=found.classes
            )
            (manifest.save_flat if kept.flat else manifest.save)(folder / kept.name)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "data_manifests")
