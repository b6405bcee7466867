"""ImageNet as a tree of files: Kaggle's, or prepared with one folder per class in train and val.

    ILSVRC/Data/CLS-LOC/{train/<wnid>/, val/ (flat), test/ (flat)}   Kaggle, LOC_* files next to ILSVRC
    train/<wnid>/  val/<wnid>/                                       prepared

Keys of the Kaggle tree begin with `ILSVRC/Data/CLS-LOC/`, as in the Jülich manifests, whichever level of the
tree is given.

The trap: a tree whose extraction was interrupted looks like a complete one. So it is compared with the
lists in `ImageSets`, where they exist. Notebook 02 teaches it.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from smallfiles.arrays import column
from smallfiles.errors import first_few
from smallfiles.folders import SourceOptions, canonical_split
from smallfiles.progress import plural
from smallfiles.sources import declarations, folder
from smallfiles.sources.declarations import Beside
from smallfiles.sources.imagenet.labels import WNID, find_label_files, label, manifest_of
from smallfiles.sources.record import Source, chosen_split
from smallfiles.sources.scanning import Tree, lines_of, list_folder, read_text, sizes_of, walk

_BOXES = "ILSVRC/Annotations"
_DATA = ("ILSVRC", "Data", "CLS-LOC")
_LISTS = {"train": "train_cls.txt", "val": "val.txt", "test": "test.txt"}


def find_kaggle(path: Path) -> tuple[Path, str | None] | None:
    """The root of Kaggle's tree if `path` is at any of its levels, and the split that `path` is, if any."""
    path = path.absolute()
    if path.joinpath(*_DATA).is_dir():
        return path, None
    for depth in range(1, 5):
        inner = path.parts[-depth:]
        if inner[:3] == _DATA[:depth] and path.joinpath(*_DATA[depth:]).is_dir():
            return path.parents[depth - 1], inner[3] if depth == 4 else None
    return None


def load_tree(path: Path, options: SourceOptions) -> Source:
    """Read one split of an ImageNet tree.

    Raises:
        SourceError: No such split, no images, or no labels for them.
    """
    options.refuse_unsupported("ImageNet in folders", path)
    kaggle = find_kaggle(path)
    root, own = kaggle or (path, None)
    below, split, notes = _find_split(root, "/".join(_DATA) if kaggle else "", own, options)
    tree = walk(root, options.suffixes, below=below, follow_links=options.follow_links, ignore=options.ignore)
    if not len(tree):
        raise folder.no_images(tree, options)
    above = tree.root.absolute()
    label_files = find_label_files([root, above.parent, above.parent.parent, above], options.labels)
    names = tree.paths(f"{below}/" if below else "")
    found = label(names, split, label_files, options, _classes_of_train(above))
    paths = found.kept(names)
    sizes = sizes_of(root, paths, follow_links=options.follow_links) if options.sizes else None
    notes += found.notes + tree.notes() + declarations.ignored_note(tree, options) * bool(tree.ignored())
    beside = [f"{below}/{name}".lstrip("/") for name in tree.other_paths().to_pylist()]
    beside += [name for name in list_folder(root, options.ignore).files if not name.startswith("LOC_")]
    others = column([name for name in beside if not name.lower().endswith(options.suffixes)], pa.string())
    notes += declarations.check(Beside(root, others, names, paths), options)
    if kaggle and (root / _BOXES).is_dir():
        notes += (f"{_BOXES} has boxes, which are not read",)
    if kaggle:
        notes += _compared_with_list(root / "ILSVRC/ImageSets/CLS-LOC" / _LISTS.get(split, ""), tree)
    kind = "imagenet, Kaggle tree" if kaggle else "imagenet, prepared tree"
    store = folder.FolderStore(root, follow_links=options.follow_links)
    return Source(manifest_of(found, paths, split, sizes), store, kind, notes, root)


def _find_split(
    root: Path, below: str, own: str | None, options: SourceOptions
) -> tuple[str, str, tuple[str, ...]]:
    """Folder of the split, its canonical name, and notes; there may be other folders too."""
    found = [name for name in list_folder(root / below).folders if canonical_split(name)]
    name, split, notes = chosen_split(found, options.split or own, root / below if found else root)
    return f"{below}/{name}".lstrip("/") if name else "", split, notes


def _classes_of_train(split: Path) -> list[str]:
    """Class folders of the train split, so that labels of all splits agree."""
    train = split.parent / "train"
    names = list_folder(train).folders if train != split and train.is_dir() else []
    return [name for name in names if WNID.fullmatch(name)]


def _compared_with_list(listing: Path, tree: Tree) -> tuple[str, ...]:
    """Images that `ImageSets/CLS-LOC` lists and the tree lacks."""
    if not listing.is_file():
        return ()
    listed = [line.partition(" ")[0] for _, line in lines_of(read_text(listing))]
    if len(listed) == len(tree):
        return ()
    there = {path.as_py().rpartition(".")[0] for path in tree.paths()}
    missing = sorted(set(listed) - there)
    return (
        f"{listing.name} lists {plural(len(listed), 'image')} and {len(tree):,} are there"
        + (f"; missing: {first_few(missing, len(missing))}" if missing else ""),
    )
