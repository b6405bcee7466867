"""A tree of class folders, as torchvision's ImageFolder reads it, and the store that reads its files.

    data/cat/1.jpg  data/dog/2.jpg         classes are the first-level folders, sorted by bytes
    data/train/cat/1.jpg  data/val/...     splits first, classes below; wrappers above either are passed over
    val/images/val_0.JPEG                  val/val_annotations.txt: val_0.JPEG<TAB>n03444034<TAB>0 0 62 57

The trap: ImageFolder takes any folder for a class: `val/images/` of tiny-imagenet becomes a single one, and
`train/` and `val/` become two, as do `images/` and `masks/`. Here the first is labelled by its annotations,
the second are splits, and the third are samples of two files (see `partners`). Notebook 02 shows more.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from stat import S_ISREG

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column, from_numpy
from smallfiles.errors import SourceError, first_few, refuse_shortage
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions
from smallfiles.links import Boundary
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import Labelled, by_class, by_folder
from smallfiles.manifest.listing import HEAD_BYTES, Files
from smallfiles.progress import plural
from smallfiles.sources import declarations
from smallfiles.sources.declarations import Beside
from smallfiles.sources.partners import FLAGS, Partners
from smallfiles.sources.partners import find as find_partners
from smallfiles.sources.record import Source, noted, refuse_if_strict, with_data_suffix
from smallfiles.sources.roles import given_first
from smallfiles.sources.scanning import (
    Tree,
    bad_line,
    in_flight,
    lines_of,
    list_folder,
    read_text,
    sizes_of,
    walk,
)
from smallfiles.storage import answered, remember

_ANNOTATIONS = "_annotations.txt"
_CLASS_NUMBER = re.compile(r"\s*-?\d{1,9}\s*", re.ASCII)

# Without O_NONBLOCK a named pipe in the tree would block the run for ever.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class FolderStore:
    """Reads whole files of a folder: one open, one read, one close.

    Each open is a round trip on a parallel file system. The size is checked after the read, when the client
    already has it.

    Args:
        root: What paths are relative to.
        follow_links: Allow links that lead out of it.
    """

    sequential = False

    def __init__(self, root: Path, *, follow_links: bool = False) -> None:
        self.root = Path(root).absolute()
        self._prefix = str(self.root).rstrip("/") + "/"
        remember(self.root)
        self._boundary = Boundary(self.root, follow_links=follow_links)
        self._flags = _FLAGS if follow_links else _FLAGS | os.O_NOFOLLOW

    def size(self, path: str) -> int:
        """Bytes of one file."""
        try:
            return answered(self._prefix + path, self._boundary.stat, path).st_size
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read a whole file into the start of `buffer`; see `ByteStore.read_into`."""
        try:
            return answered(self._prefix + path, self._read_into, path, buffer)
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def _read_into(self, path: str, buffer: memoryview) -> int:
        self._boundary.check_folder_of(path)
        descriptor = self._opened(path)
        try:
            got = os.readv(descriptor, (buffer,))
            about = os.fstat(descriptor)
            if about.st_size != got or not S_ISREG(about.st_mode):
                got = self._rest(path, descriptor, buffer, got)
            return got
        finally:
            os.close(descriptor)

    def _opened(self, path: str) -> int:
        try:
            return os.open(self._prefix + path, self._flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        descriptor = os.open(self._prefix + path, _FLAGS)  # a link
        try:
            self._boundary.check(path)
        except SourceError:
            os.close(descriptor)
            raise
        return descriptor

    def describe(self) -> str:
        """`folder /data/imagenet`."""
        return f"folder {self.root}"

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def _rest(self, path: str, descriptor: int, buffer: memoryview, got: int) -> int:
        """Complete a short read, or return the size of a file larger than the buffer."""
        about = os.fstat(descriptor)
        if not S_ISREG(about.st_mode):
            raise self._bad(path, "is no regular file", "a file that can be read to its end")
        while got < len(buffer):
            more = os.readv(descriptor, (buffer[got:],))
            if more == 0:
                return got
            got += more
        return max(got, about.st_size)

    def _unreadable(self, path: str, error: OSError | ValueError) -> SourceError:
        refuse_shortage(error, self._prefix + path)
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ENOENT:
            return self._bad(path, "is missing", "every file that the manifest names")
        if number == errno.EISDIR:
            return self._bad(path, "is a folder", "a file")
        reason = os.strerror(number) if number else str(error)
        return self._bad(path, f"cannot be read ({reason})", "a file that you may read")

    def _bad(self, path: str, what: str, expected: str) -> SourceError:
        return SourceError(
            f"{self._prefix}{path} {what}",
            expected=expected,
            next_step="Check the file (ls -l), or make the manifest again if the data changed",
        )


def load(path: Path, options: SourceOptions) -> Source:
    """Read a tree of class folders.

    The folders of one level are listed, and files sized, with many operations in flight.

    Args:
        path: The root; class folders, or split folders with class folders in them.
        options: See `SourceOptions`.

    Returns:
        Samples in the order of ImageFolder; `notes` lists what was left out.

    Raises:
        SourceError: It is no such tree; the message describes what was found.
    """
    options.refuse_unsupported("class folders", path)
    declared = options.suffixes != IMAGE_SUFFIXES
    tree, options, notes = find_samples(path, options)
    partners = find_partners(path, tree, options)
    if partners is not None:
        return _with_partners(path, tree, partners, options, notes)
    refuse_if_strict(tree.notes(), options, path)
    names, others = tree.paths(), tree.other_paths()
    found = _labelled(path, tree, names, options, declared)
    used = others.filter(pc.ends_with(others, _ANNOTATIONS)).to_pylist() if found.annotated else []
    notes += found.notes
    if found.classes and not found.annotated:
        listed = first_few(found.classes, len(found.classes))
        notes += (f"{plural(len(found.classes), 'class', 'classes')} from the names of folders: {listed}",)
    notes += tree.notes()
    notes += declarations.check(Beside(path, others, names, found.kept(names), used), options)
    return _source(path, names, found, options, notes)


def _with_partners(
    path: Path, tree: Tree, partners: Partners, options: SourceOptions, notes: tuple[str, ...]
) -> Source:
    """Samples of several files; labels are those of class folders, of .cls files beside them, or unknown."""
    label = partial(by_folder, Files(path, partners.names), options.split, strict=options.strict)
    found = label(no_classes=options.unlabelled, trusted=options.kind != "auto")
    if partners.beside is None and len(found.classes) in (1, len(partners.names)):
        found = label(no_classes=True)  # a wrapper, or one folder per sample
    found, partners = partners.complete(found, path, strict=options.strict)
    metas, labels = (partners.side_files(tree, suffix) for suffix in (".json", ".cls"))
    if labels is not None and len(found.classes) < 2 and not options.unlabelled:
        numbers, notes = _labels_in(path, found.kept(labels)), (*notes, "labels read from .cls files")
        found = replace(found, labels=numbers, classes=())
    else:
        labels = None
    if found.classes:
        classes = first_few(found.classes, len(found.classes))
        found = replace(
            found, notes=(*found.notes, f"labels from folders: {classes} (not with --unlabelled)")
        )
    used = [*partners.blobs.values(), partners.firsts, partners.lost, metas, labels]
    tree = tree.without(pa.chunked_array([each for each in used if each is not None]))
    refuse_if_strict(tree.notes(), options, path)
    notes += found.notes + tree.notes()
    kept = found.kept(partners.firsts)
    notes += declarations.check(Beside(path, tree.other_paths(), partners.firsts, kept), options)
    return _source(path, partners.firsts, found, options, notes, partners.blobs, metas)


def _source(
    path: Path,
    names: pa.StringArray,
    found: Labelled,
    options: SourceOptions,
    notes: tuple[str, ...],
    blobs: Mapping[str, pa.StringArray] | None = None,
    metas: pa.StringArray | None = None,
) -> Source:
    """The samples that are kept, in the order of ImageFolder: by class, then by path."""
    order = np.argsort(found.labels, kind="stable")
    rows = from_numpy(np.flatnonzero(found.keep)[order])
    paths = names.take(rows)
    manifest = Manifest.from_columns(
        paths,
        found.labels[order],
        name=path.absolute().name or "dataset",
        split=found.split,
        classes=found.classes,
        sizes=sizes_of(path, paths, follow_links=options.follow_links) if options.sizes else None,
        metas=None if metas is None else _texts_in(path, metas.take(rows)),
        blobs={name: files.take(rows) for name, files in (blobs or {}).items()},
        first=given_first("image", options),
    )
    store = FolderStore(path, follow_links=options.follow_links)
    return Source(manifest, store, "folder", notes, path)


def _texts_in(root: Path, files: pa.StringArray) -> pa.StringArray:
    """The text of each file, null where there is none, with many reads in flight."""

    def text(name: str | None) -> str | None:
        return None if name is None else read_text(root / name)

    return column(in_flight(text, files.to_pylist()), pa.string())


def _labels_in(root: Path, files: pa.StringArray) -> npt.NDArray[np.int32]:
    """The class number in each file.

    Raises:
        SourceError: There is no file for a sample, or no number in it.
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


def find_samples(path: Path, options: SourceOptions) -> tuple[Tree, SourceOptions, tuple[str, ...]]:
    """Walk a tree of images, or else of most of its data files; with the suffixes taken, and notes.

    Raises:
        SourceError: There are no images, and no other suffix is clear.
    """
    tree = walk(path, options.suffixes, follow_links=options.follow_links, ignore=options.ignore)
    options, notes = (options, ()) if len(tree) else with_data_suffix(options, tree.others())
    if notes:
        tree = walk(path, options.suffixes, follow_links=options.follow_links, ignore=options.ignore)
    if not len(tree):
        raise no_images(tree, options)
    return tree, options, (*notes, *declarations.ignored_note(tree, options))


def _labelled(
    path: Path, tree: Tree, names: pa.StringArray, options: SourceOptions, declared: bool
) -> Labelled:
    """Label by class folder, or else by annotations; only a test split may have neither."""
    look = partial(_head, path)
    files = Files(path, names, tree.other_paths(), tree.empty(), look, fields_flag=FLAGS, declared=declared)
    found = by_folder(
        files,
        options.split,
        no_classes=options.unlabelled,
        strict=options.strict,
        trusted=options.kind != "auto",
    )
    if found.classes or options.unlabelled:
        return found
    own = found.kept(names)
    if annotated := _by_annotations(path / found.below, own, strict=options.strict):
        keep = found.keep.copy()
        keep[keep] = annotated.keep
        return replace(annotated, keep=keep, split=found.split)
    if found.split != "test":
        declarations.check(Beside(path, tree.other_paths(), names, own), options)
        raise no_classes(path, len(own), "one folder per class", options)
    return found


def _head(root: Path, name: str) -> bytes:
    """The first bytes of a file: enough for the header of a picture."""

    def read() -> bytes:
        with (root / name).open("rb") as file:
            return file.read(HEAD_BYTES)

    return answered(root / name, read)


def _by_annotations(root: Path, names: pa.StringArray, *, strict: bool) -> Labelled | None:
    """Label a flat folder by the annotations file in it or above it; None if there is none.

    Classes are those listed for the whole data set, or else those that occur.

    Raises:
        SourceError: The file cannot be read or names no image of the tree.
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
    absent = noted(sorted(class_of.keys() - set(found)), "annotated image", "missing")
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
    """All classes of the data set: from `wnids.txt` or the class folders of `train`, next to the split."""
    above = root.absolute().parent
    if (above / "wnids.txt").is_file():
        return read_text(above / "wnids.txt").split()
    return list_folder(above / "train").folders if (above / "train").is_dir() else []


def no_classes(where: Path, count: int, expected: str, options: SourceOptions) -> SourceError:
    """The error for samples without any label."""
    labels = "give a table of labels (--labels)" if where.is_dir() else "make a manifest with their labels"
    what = "image" if options.suffixes == IMAGE_SUFFIXES else "sample"
    return SourceError(
        f"{where} holds {plural(count, what)} outside of any class folder",
        expected=expected,
        next_step=f"Sort them into class folders, {labels}, or pack them without (--unlabelled)",
    )


def no_images(tree: Tree, options: SourceOptions) -> SourceError:
    """The error for a tree without samples."""
    left = [name for folder in tree.folders for name in folder.left]
    more = f" (not followed: {first_few(left, len(left))})" if left else ""
    return SourceError(
        f"{tree.root} is no data set: it holds {tree.contents()}{more}",
        expected=f"files ending in {', '.join(options.suffixes)}",
        next_step="Check the path, or name the suffixes of your samples (--suffix)",
    )
