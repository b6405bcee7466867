"""Flickr30K: 31,783 photographs with five captions each, one sample an image.

The images' folder is found however deep it is nested (archives unpack to
`flickr30k_images/flickr30k_images/`, sometimes twice). Keys are the bare file names, so that the set
has one digest whatever the nesting.

The trap: one row a *caption* stores every image five times. Here a sample is one image with the list
of its captions. Notebook 03 packs it, and its exercise makes the five usual mistakes visible.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import SourceOptions, choose_split
from smallfiles.manifest import Manifest
from smallfiles.progress import plural
from smallfiles.sources.flickr30k.captions import CSV, KARPATHY, TOKEN, Captions, read
from smallfiles.sources.folder import FolderStore
from smallfiles.sources.record import Source
from smallfiles.sources.scanning import Tree, list_folder, sizes_of, walk

__all__ = ["Captions", "load", "read", "recognises"]

CAPTIONS_EACH = 5
ALL = "all"
_DEPTH = 3
_MANY = 8


@dataclass(frozen=True)
class _Files:
    """The caption files that are used.

    Args:
        captions: `.token`, `results.csv`, or Karpathy's split when there is no other.
        splits: Karpathy's split, if there is one.
        notes: Which ones were chosen among several.
    """

    captions: Path
    splits: Path | None
    notes: tuple[str, ...]


def recognises(path: Path) -> bool:
    """Whether one of the caption files stands in a folder or a few levels below it."""
    return bool(_find(path, (CSV, TOKEN, KARPATHY)))


def load(path: Path, options: SourceOptions | None = None) -> Source:
    """Read Flickr30K.

    Args:
        path: A folder that holds the images and a caption file, at any depth.
        options: `split` may be `all`; with Karpathy's file also `train`, `val`, `test`. `labels` says
            where a caption or split file is, `strict` refuses images without captions and the reverse.

    Returns:
        One sample an image, captions in the order of their numbers, images sorted by name.

    Raises:
        SourceError: No images, no caption file, or one that cannot be read.
    """
    options = options or SourceOptions()
    images, notes = _image_folder(path, options)
    files = _caption_files(path, images.root, options)
    captions = read(files.captions)
    names = sorted({name for folder in images.folders if not folder.path for name in folder.files})
    names, split, more = _of_split(names, files, captions, path, options)
    joined = _joined(names, captions, split, options)
    kept = [name for name in names if captions.ordered(name)]
    if not kept:
        raise _nothing_joined(images, files.captions)
    manifest = Manifest.from_columns(
        kept,
        [captions.ordered(name) for name in kept],
        name="flickr30k",
        split=split,
    )
    if options.sizes:
        manifest = manifest.with_sizes(sizes_of(images.root, manifest.paths))
    notes += files.notes + tuple(captions.all_notes()) + more + joined
    return Source(manifest, FolderStore(images.root), "flickr30k", notes, images.root)


def _image_folder(path: Path, options: SourceOptions) -> tuple[Tree, tuple[str, ...]]:
    """The folder with most images; among equals the least deep, then the first by name."""
    tree = walk(path, options.suffixes, follow_links=options.follow_links)
    holding = [folder for folder in tree.folders if folder.files]
    if not holding:
        raise SourceError(
            f"{path} is no Flickr30K: it holds {tree.contents()}",
            expected="a folder of JPEG files somewhere in it",
            next_step="Check the path, and whether the archive was unpacked",
        )
    holding.sort(key=lambda f: (-len(f.files), f.path.count("/") + bool(f.path), f.path))
    best = holding[0]
    chosen = Tree(path / best.path, (type(best)("", best.files),))
    notes = [f"images are in {chosen.root}"] if best.path else []
    if others := holding[1:]:
        told = (f"{folder.path or '.'} ({len(folder.files):,})" for folder in others)
        notes.append(f"other folders with images left aside: {first_few(told, len(others))}")
    return chosen, tuple(notes)


def _find(path: Path, names: tuple[str, ...]) -> list[Path]:
    """Caption files in a folder and below it, least deep first; class trees are not searched."""
    found: list[Path] = []
    level = [path]
    for _ in range(_DEPTH + 1):
        deeper = []
        for folder in level:
            listed = list_folder(folder)
            found += [folder / name for name in names if name in listed.files]
            deeper += [folder / name for name in listed.folders] if len(listed.folders) <= _MANY else []
        level = deeper
    return found


def _caption_files(path: Path, images: Path, options: SourceOptions) -> _Files:
    if options.labels is not None and options.labels.is_file():
        is_split = options.labels.name == KARPATHY
        given, found = [options.labels], _find(path, (TOKEN, CSV, KARPATHY)) if is_split else []
    else:
        places = [options.labels] if options.labels else [path, *path.absolute().parents[:2]]
        given, found = [], _find(places[0], (TOKEN, CSV, KARPATHY))
        found += [p / n for p in places[1:] for n in (TOKEN, CSV, KARPATHY) if (p / n).is_file()]
    found = [*given, *found]
    splits = [file for file in found if file.name == KARPATHY]
    texts = sorted((f for f in found if f.name != KARPATHY), key=lambda f: f.name != TOKEN)
    if not found:
        raise SourceError(
            f"{path} has images (in {images}) and no captions",
            expected=f"{TOKEN}, {CSV} or {KARPATHY}",
            next_step="Put one of them beside the images, or say where it is with labels (--labels PATH)",
        )
    captions = (texts or splits)[0]
    notes = [f"captions read from {captions.name}"]
    notes += [
        f"{other} says something else and was left aside" for other in texts if _differs(other, captions)
    ]
    return _Files(captions, splits[0] if splits else None, tuple(notes))


def _differs(other: Path, chosen: Path) -> bool:
    return other.name == chosen.name and other.read_bytes() != chosen.read_bytes()


def _of_split(
    names: list[str], files: _Files, captions: Captions, path: Path, options: SourceOptions
) -> tuple[list[str], str, tuple[str, ...]]:
    """The images of the split that was asked for; all of them where nothing says who is in which."""
    if files.splits is None:
        if options.split not in (None, ALL):
            raise SourceError(
                f"split {options.split!r} was asked for, and {path} has no file that says what is in it",
                expected=KARPATHY,
                next_step=f"Put it there, say where it is (--labels PATH), or ask for all (--split {ALL})",
            )
        return names, ALL, ()
    split_of = (captions if files.splits == files.captions else read(files.splits)).split_of
    unlisted = [name for name in names if name not in split_of]
    notes: tuple[str, ...] = ()
    if unlisted:
        notes = (f"{plural(len(unlisted), 'image')} in no split: {first_few(unlisted, len(unlisted))}",)
    if options.split == ALL:
        return names, ALL, notes
    split, more = choose_split(list(dict.fromkeys(split_of.values())), options.split, path)
    absent = sorted({name for name, its in split_of.items() if its == split} - set(names))
    if absent:
        notes += (
            f"{plural(len(absent), 'image')} of split {split} missing: {first_few(absent, len(absent))}",
        )
    return [name for name in names if split_of.get(name) == split], split, more + notes


def _joined(names: list[str], captions: Captions, split: str, options: SourceOptions) -> tuple[str, ...]:
    """What a join of images and captions leaves over, on either side."""
    bare = [name for name in names if not captions.ordered(name)]
    orphans = sorted(captions.of.keys() - set(names)) if split == ALL else []
    uneven = [n for n in names if len(captions.ordered(n)) not in (0, CAPTIONS_EACH)]
    told = [
        f"{plural(len(found), 'image')} {what}: {first_few(found, len(found))}"
        for found, what in (
            (bare, "without captions left aside"),
            (orphans, "with captions missing"),
            (uneven, f"with another number of captions than {CAPTIONS_EACH}"),
        )
        if found
    ]
    if options.strict and told:
        raise SourceError(
            "; ".join(told),
            expected=f"{CAPTIONS_EACH} captions for each image and an image for each caption",
            next_step="Fetch what is missing, or leave out strict",
        )
    return tuple(told)


def _nothing_joined(images: Tree, captions: Path) -> SourceError:
    return SourceError(
        f"none of the {plural(len(images), 'image')} in {images.root} is named in {captions}",
        expected="captions of these images",
        next_step="Check that both are of Flickr30K, and the split",
    )
