"""A tree of class folders, as torchvision's ImageFolder reads it, and the store that reads its files.

    data/cat/1.jpg  data/dog/2.jpg         classes are the first-level folders, sorted by bytes
    data/train/cat/1.jpg  data/val/...     splits first, classes below; wrappers above either are passed over
    val/images/val_0.JPEG                  val/val_annotations.txt: val_0.JPEG<TAB>n03444034<TAB>0 0 62 57

The trap: ImageFolder takes any folder for a class: `val/images/` of tiny-imagenet becomes a single one, and
`train/` and `val/` become two, as do `images/` and `masks/`. Here the first is labelled by its annotations,
the second are splits, and the third are samples of two files (see `pairing`). Notebook 02 shows more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column, from_numpy
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions
from smallfiles.manifest.class_folders import Labelled, by_class, by_folder
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.sources import declarations, record
from smallfiles.sources.pairing import Partners
from smallfiles.sources.pairing import find as find_partners
from smallfiles.sources.record import Samples, Source
from smallfiles.sources.scanning import (
    Notes,
    Tree,
    bad_line,
    in_flight,
    lines_of,
    list_folder,
    read_text,
    tree_of,
)

_ANNOTATIONS = "_annotations.txt"
_CLASS_NUMBER = re.compile(r"\s*-?\d{1,9}\s*", re.ASCII)


def load(path: Path, options: SourceOptions) -> Source:
    """Read a tree of class folders.

    The folders of one level are listed, and the sizes of files are read, with many operations in flight.

    Args:
        path: The root, which contains class folders, or split folders with class folders in them.
        options: See `SourceOptions`.

    Returns:
        A source with the samples in the order of ImageFolder. Its `notes` list what was left out.

    Raises:
        SourceError: The path is not such a tree. The message describes what was found.
    """
    options.refuse_unsupported("class folders", path)
    tree, taken, notes = find_samples(path, options)
    files = record.files_of(tree, options)
    if (partners := find_partners(path, tree, taken)) is not None:
        return _with_partners(tree, files, partners, taken, notes)
    record.refuse_if_strict(tree.notes(), taken, path)
    found = _labelled(files, taken)
    annotations = files.others.filter(pc.ends_with(files.others, _ANNOTATIONS)).to_pylist()
    notes += found.notes
    if found.classes and not found.annotated:
        listed = first_few(found.classes)
        notes += (f"{plural(len(found.classes), 'class', 'classes')} from the names of folders: {listed}",)
    return _source(files, found, taken, notes + tree.notes(), used=annotations if found.annotated else ())


def _with_partners(
    tree: Tree, files: Files, partners: Partners, options: SourceOptions, notes: Notes
) -> Source:
    """Make a source whose samples have several files.

    Labels come from class folders, or from .cls files beside the samples, or are unknown.
    """
    path, bare = files.where, Files(files.where, partners.names)
    found = labels_of(bare, options)
    if partners.beside is None and len(found.classes) in (1, len(partners.names)):
        found = labels_of(bare, replace(options, unlabelled=True))  # a wrapper, or one folder per sample
    found, partners = partners.complete(found, path, strict=options.strict)
    metas, labels = (partners.side_files(tree, suffix) for suffix in (".json", ".cls"))
    if labels is not None and len(found.classes) < 2 and not options.unlabelled:
        numbers, notes = _labels_in(path, found.kept(labels)), (*notes, "labels read from .cls files")
        found = replace(found, labels=numbers, classes=())
    else:
        labels = None
    notes += found.notes
    if found.classes:
        classes = first_few(found.classes)
        notes += (f"labels from folders: {classes} (not with --unlabelled)",)
    used = [*partners.blobs.values(), partners.firsts, partners.lost, metas, labels]
    tree = tree.without(pa.chunked_array([each for each in used if each is not None]))
    record.refuse_if_strict(tree.notes(), options, path)
    files = replace(files, samples=partners.firsts, others=tree.other_paths())
    more = {"metas": metas, **partners.blobs}
    return _source(files, found, options, notes + tree.notes(), more)


def labels_of(files: Files, options: SourceOptions) -> Labelled:
    """Label files by their folders, as far as the options request labels."""
    return by_folder(
        files,
        options.split,
        no_classes=options.unlabelled,
        strict=options.strict,
        trusted=options.kind != "auto",
    )


def _source(
    files: Files,
    found: Labelled,
    options: SourceOptions,
    notes: Notes,
    more: Mapping[str, pa.StringArray | None] | None = None,
    used: Sequence[str] = (),
) -> Source:
    """Make a source of the samples that are kept, in the order of ImageFolder: by class, then by path."""
    order = np.argsort(found.labels, kind="stable")
    rows = from_numpy(np.flatnonzero(found.keep)[order])
    blobs = {name: paths.take(rows) for name, paths in (more or {}).items() if paths is not None}
    metas = blobs.pop("metas", None)
    columns: dict[str, Any] = {
        "name": files.where.absolute().name or "dataset",
        "targets": found.labels[order],
        "split": found.split,
        "classes": found.classes,
        "metas": None if metas is None else _texts_in(files.where, metas),
        "blobs": blobs,
        "first": record.given_first("image", options),
    }
    samples = Samples(files.samples.take(rows), "folder", columns, notes, used=used)
    return record.source_of(files, samples, options)


def _texts_in(root: Path, files: pa.StringArray) -> pa.StringArray:
    """Read the text of each file, with many reads in flight.

    The text is null where the name of the file is null.
    """

    def text(name: str | None) -> str | None:
        return None if name is None else read_text(root / name)

    return column(in_flight(text, files.to_pylist()), pa.string())


def _labels_in(root: Path, files: pa.StringArray) -> npt.NDArray[np.int32]:
    """Read the class number in each file.

    Raises:
        SourceError: A sample has no file, or the file holds no number.
    """
    texts = _texts_in(root, files).to_pylist()
    for name, text in zip(files.to_pylist(), texts, strict=True):
        if not _CLASS_NUMBER.fullmatch(text or ""):
            what = "not every sample has one" if text is None else f"{name} holds {text[:40]!r}"
            raise SourceError(
                f"{root} has .cls files beside its samples, but {what}",
                expected="a class number in a .cls file for each sample",
                next_step="Correct them, or pack the samples without (--unlabelled)",
            )
    return np.array([int(text) for text in texts], np.int32)


def find_samples(path: Path, options: SourceOptions) -> tuple[Tree, SourceOptions, Notes]:
    """Walk a tree, and find its images.

    Without images, take the most common other kind of data file as samples.

    Returns:
        The tree, the options with the suffixes of the samples, and notes for the user.

    Raises:
        SourceError: There are no images, and no other suffix is clearly that of the samples.
    """
    tree = tree_of(path, options)
    options, notes = (options, ()) if len(tree) else record.with_data_suffix(options, tree.others())
    if notes:
        tree = tree_of(path, options)
    if not len(tree):
        raise no_images(tree, options)
    return tree, options, (*notes, *declarations.ignored_note(path, tree.ignored(), options))


def _labelled(files: Files, options: SourceOptions) -> Labelled:
    """Label samples by class folders, or else by annotations. Only a test split may have neither."""
    found = labels_of(files, options)
    if found.classes or options.unlabelled:
        return found
    own = found.kept(files.samples)
    if annotated := _by_annotations(files.where / found.below, own, strict=options.strict):
        keep = found.keep.copy()
        keep[keep] = annotated.keep
        return replace(annotated, keep=keep, split=found.split)
    if found.split != "test":
        declarations.check(files, own, options)
        raise no_classes(files.where, len(own), "one folder per class", options)
    return found


def _by_annotations(root: Path, names: pa.StringArray, *, strict: bool) -> Labelled | None:
    """Label a flat folder by the annotations file in it or above it. Return None if there is no such file.

    The classes are those that are listed for the whole data set, and those that occur in the file.

    Raises:
        SourceError: The file cannot be read, or names no image of the tree.
    """
    root = root.parent if root.name == "images" else root
    file = next(iter(sorted(root.glob(f"*{_ANNOTATIONS}"))), None)
    if file is None:
        return None
    class_of = _read_annotations(file)
    found = [name.rpartition("/")[2] for name in names.to_pylist()]
    of = column([class_of.get(name) for name in found], pa.string())
    classes = sorted(set(class_of.values()) | set(_all_classes(root)))
    labelled = by_class(names, of, classes, file.name, strict=strict)
    absent = record.noted(sorted(class_of.keys() - set(found)), "annotated image", "missing")
    return replace(
        labelled, annotated=True, notes=(f"labels read from {file.name}", *labelled.notes, *absent)
    )


def _read_annotations(file: Path) -> dict[str, str]:
    found = {}
    for number, line in lines_of(read_text(file)):
        name, tab, rest = line.partition("\t")
        if not tab:
            raise bad_line(file, number, line, "a row such as: val_0.JPEG<TAB>n03444034<TAB>0 0 62 57")
        found[name] = rest.partition("\t")[0]
    return found


def _all_classes(root: Path) -> list[str]:
    """Return all classes of the data set. They come from files or folders beside the folder of the split.

    These are `wnids.txt`, or else the class folders of `train`. Return none if there is neither.
    """
    above = root.absolute().parent
    if (above / "wnids.txt").is_file():
        return read_text(above / "wnids.txt").split()
    return list_folder(above / "train").folders if (above / "train").is_dir() else []


def no_classes(where: Path, count: int, expected: str, options: SourceOptions) -> SourceError:
    """Return the error for samples without any label."""
    labels = "give a table of labels (--labels)" if where.is_dir() else "make a manifest with their labels"
    what = "image" if options.suffixes == IMAGE_SUFFIXES else "sample"
    return SourceError(
        f"{where} holds {plural(count, what)} outside of any class folder",
        expected=expected,
        next_step=f"Sort them into class folders, {labels}, or pack them without (--unlabelled)",
    )


def no_images(tree: Tree, options: SourceOptions) -> SourceError:
    """Return the error for a tree without samples."""
    left = [name for folder in tree.folders for name in folder.left]
    more = f" (not followed: {first_few(left)})" if left else ""
    return no_samples(tree.root, tree.contents() + more, options)


def no_samples(where: Path, contents: str, options: SourceOptions) -> SourceError:
    """Return the error for a source without samples."""
    return SourceError(
        f"{where} is no data set: it holds {contents}",
        expected=f"files ending in {', '.join(options.suffixes)}",
        next_step="Check the path, or name the suffixes of your samples (--suffix)",
    )
