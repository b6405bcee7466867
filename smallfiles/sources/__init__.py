r"""Where manifests and bytes come from: trees, archives, tables and synthetic copies of them.

`load` recognises what a path is and returns its manifest together with the store that reads its bytes.

    source = sources.load(Path("/data/imagenet"), split="val")
    print(source.kind, len(source.manifest), *source.notes, sep="\n")

`from_dataset` reads a data set of torchvision, of Hugging Face, or an object with `len` and `[i]`.

    detection   recognises a path by the names in its first folders, and calls one reader
    listers     scanning (folders), tarball (tar, zip, squashfs), tables (rows that name files),
                inline (rows that hold files), packed (what `pack` wrote)
    rules       tables and roles (a table names the samples), `manifest.class_folders` (folders are classes
                and splits), pairing (files with one stem are one sample)
    adapters    imagenet, flickr30k and annotations (COCO, YOLO, Pascal VOC) return samples of the same lists
    record      `source_of` is the last step of all readers: it makes the manifest, and `declarations` refuses
                other files that name the samples

To add a layout of folders: a module with `load(path, options) -> Source`, which ends in `source_of`; a row of
`detection._LAYOUTS` before "folder", with what names in the first folders hint at it; its name in
`folders.SourceOptions.kind`; and a row of `folders.SUPPORTED` with the options that it supports. A layout of
boxes: a module like `annotations.voc` with `recognises` and `read`, a line in `annotations._readers`, and the
names of its folders in the hint of `boxes` in `_LAYOUTS`.

The trap: a guess may be wrong, so `kind` and `notes` state every guess. Notebook 02 teaches it.
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
