"""A tree of class folders, as torchvision's ImageFolder reads it, and the store that reads its files.

    data/cat/1.jpg  data/dog/2.jpg         classes are the first-level folders, sorted by bytes
    data/train/cat/1.jpg  data/val/...     splits first, classes below
    val/images/val_0.JPEG                  val/val_annotations.txt: val_0.JPEG<TAB>n03444034<TAB>0 0 62 57

The trap: ImageFolder takes any folder for a class. `val/images/` of tiny-imagenet becomes one class
for all, a `train` and a `val` folder become two. Here the first is read through its annotations, the
second as splits. Notebook 02 shows both.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG

import pyarrow as pa

from smallfiles.errors import SourceError, first_few, refuse_shortage
from smallfiles.folders import SourceOptions, canonical_split, choose_split
from smallfiles.manifest import Manifest
from smallfiles.manifest.arrays import column
from smallfiles.manifest.class_folders import Labelled, by_class, unlabelled
from smallfiles.progress import plural
from smallfiles.sources.record import Source
from smallfiles.sources.scanning import Tree, bad_line, lines_of, list_folder, read_text, sizes_of, walk

# Without O_NONBLOCK a named pipe in the tree would stop the run for ever.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class FolderStore:
    """Reads whole files of a folder: one open, one read, one close.

    Each open costs a parallel file system a round trip, so nothing else is asked of it: the size
    is looked at after the read, when the client knows it anyway.

    Args:
        root: What paths are relative to.
    """

    sequential = False

    def __init__(self, root: Path) -> None:
        self.root = Path(root).absolute()
        self._prefix = str(self.root).rstrip("/") + "/"

    def size(self, path: str) -> int:
        """Bytes of one file."""
        try:
            return os.stat(self._prefix + path).st_size  # noqa: PTH116 - a Path would double the cost
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read a whole file into the start of `buffer`; see `ByteStore.read_into`."""
        try:
            descriptor = os.open(self._prefix + path, _FLAGS)
            try:
                got = os.readv(descriptor, (buffer,))
                about = os.fstat(descriptor)
                if about.st_size != got or not S_ISREG(about.st_mode):
                    got = self._rest(path, descriptor, buffer, got)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise self._unreadable(path, error) from error
        return got

    def describe(self) -> str:
        """`folder /data/imagenet`."""
        return f"folder {self.root}"

    def __repr__(self) -> str:
        return f"FolderStore({str(self.root)!r})"

    def _rest(self, path: str, descriptor: int, buffer: memoryview, got: int) -> int:
        """What to do when one read was not the whole file: go on, or say how large it is."""
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


def load(path: Path, options: SourceOptions | None = None) -> Source:
    """Read a tree of class folders.

    The folders of one level are listed, and files sized, with many operations in flight.

    Args:
        path: The root; class folders, or split folders with class folders in them.
        options: See `SourceOptions`.

    Returns:
        Samples in ImageFolder's order, with what was left aside in `notes`.

    Raises:
        SourceError: It is no such tree; the sentence says what was found.
    """
    options = options or SourceOptions()
    below, split, notes = find_split(path, options)
    tree = walk(path, options.suffixes, below=below, follow_links=options.follow_links)
    if not len(tree):
        raise no_images(tree, options)
    if options.strict and tree.notes():
        raise SourceError(
            f"{path} holds more than samples ({'; '.join(tree.notes())})",
            expected="samples alone, since strict was asked for",
            next_step="Remove what does not belong there, or leave out strict",
        )
    found = _labelled(path, tree, below, split, options)
    paths = found.kept(tree.paths(f"{below}/" if below else ""))
    manifest = Manifest.from_columns(
        paths,
        found.labels,
        name=path.absolute().name or "dataset",
        split=split,
        classes=found.classes,
        sizes=sizes_of(path, paths) if options.sizes else None,
    )
    return Source(manifest, FolderStore(path), "folder", notes + found.notes + tree.notes(), path)


def split_folders(path: Path) -> list[str]:
    """The split folders of a tree: all its folders, if all have a split's name; else none."""
    names = list_folder(path).folders
    if not names or any(canonical_split(name) is None for name in names):
        return []
    # A lone class may be called "train" too: then it holds files, and no folders.
    return names if len(names) > 1 or list_folder(path / names[0]).folders else []


def find_split(path: Path, options: SourceOptions) -> tuple[str, str, tuple[str, ...]]:
    """Folder of the split (or none), its canonical name, and notes."""
    found = split_folders(path)
    if found:
        below, notes = choose_split(found, options.split, path)
        return below, canonical_split(below) or below, notes
    own = canonical_split(path.absolute().name)
    if options.split is not None and own is not None and own != canonical_split(options.split):
        raise SourceError(
            f"{path} is the {own} split by its name, and {options.split!r} was asked for",
            expected="a folder that holds this split",
            next_step="Give the folder above it",
        )
    if options.split is None:
        return "", own or "train", ()
    named = canonical_split(options.split) or options.split
    notes = () if own else (f"no split folders found: all of {path} was taken as split {named}",)
    return "", named, notes


def _labelled(path: Path, tree: Tree, below: str, split: str, options: SourceOptions) -> Labelled:
    """Label by first-level folder, else by annotations; else the split is a test split, or refused."""
    names = tree.paths()
    if options.unlabelled:
        return unlabelled(names)
    own = [folder.path for folder in tree.folders if folder.path and "/" not in folder.path]
    if own and not _is_container(tree, own):
        classes, notes = _agreed_classes(path, own, below)
        found = _by_folder(tree, names, classes, options)
        return replace(found, notes=notes + found.notes + _merged(tree))
    if annotated := _by_annotations(tree, names, strict=options.strict):
        return annotated
    if split != "test":
        raise _flat(tree)
    return unlabelled(names)


def _by_folder(tree: Tree, names: pa.StringArray, classes: list[str], options: SourceOptions) -> Labelled:
    """Files outside of any class are left aside, as in ImageFolder."""
    if not any(folder.path and folder.files for folder in tree.folders):
        raise _flat(tree)
    tops = [folder.path.split("/", 1)[0] or None for folder in tree.folders for _ in folder.files]
    return by_class(names, column(tops, pa.string()), classes, "a class folder", strict=options.strict)


def _merged(tree: Tree) -> tuple[str, ...]:
    """Say which classes hold sub-folders that look like classes: `animals/cats`, `animals/dogs`."""
    below: dict[str, list[str]] = {}
    for folder in tree.folders:
        name, slash, rest = folder.path.partition("/")
        if slash and folder.files:
            below.setdefault(name, []).append(rest)
    merged = [f"{name} ({first_few(rest, len(rest), 2)})" for name, rest in below.items() if len(rest) > 1]
    if not merged:
        return ()
    count = plural(len(merged), "class", "classes")
    return (f"{count} made of several sub-folders, merged into one: {first_few(merged, len(merged))}",)


def _agreed_classes(path: Path, own: list[str], below: str) -> tuple[list[str], tuple[str, ...]]:
    """One class list for all splits, so that a class missing in one does not shift its labels."""
    if not below:
        return own, ()
    union = set(own)
    for name in split_folders(path):
        union.update(list_folder(path / name).folders if canonical_split(name) != "test" else ())
    if union == set(own):
        return own, ()
    more = sorted(union - set(own))
    return sorted(union), (f"{plural(len(more), 'class', 'classes')} only in other splits counted too",)


def _is_container(tree: Tree, classes: list[str]) -> bool:
    """Whether the only "class" is a mere container of images."""
    is_split = canonical_split(tree.root.absolute().name) is not None
    return classes == ["images"] and (is_split or _annotations_of(tree.root) is not None)


def _by_annotations(tree: Tree, names: pa.StringArray, *, strict: bool) -> Labelled | None:
    """Label a flat tree by the annotations file in its root, or return None if there is none.

    Classes are all of the data set where they are written beside it, else those that occur.

    Raises:
        SourceError: The file cannot be read or names no image of the tree.
    """
    file = _annotations_of(tree.root)
    if file is None:
        return None
    class_of = _read_annotations(file)
    found = [name for folder in tree.folders for name in folder.files]
    of = column([class_of.get(name) for name in found], pa.string())
    classes = sorted(set(class_of.values()) | set(_all_classes(tree.root)))
    labelled = by_class(names, of, classes, file.name, strict=strict)
    notes = (f"labels read from {file.name}", *labelled.notes)
    if absent := sorted(class_of.keys() - set(found)):
        notes += (f"{plural(len(absent), 'annotated image')} missing: {first_few(absent, len(absent))}",)
    return replace(labelled, notes=notes)


def _annotations_of(root: Path) -> Path | None:
    found = sorted(root.glob("*_annotations.txt"))
    return found[0] if found else None


def _read_annotations(file: Path) -> dict[str, str]:
    found = {}
    for number, line in lines_of(read_text(file)):
        name, tab, rest = line.partition("\t")
        if not tab:
            raise bad_line(file, number, line, "a row such as: val_0.JPEG<TAB>n03444034<TAB>0 0 62 57")
        found[name] = rest.partition("\t")[0]
    return found


def _all_classes(root: Path) -> list[str]:
    """All classes of the data set: `wnids.txt` or the class folders of `train`, beside the split."""
    above = root.absolute().parent
    if (above / "wnids.txt").is_file():
        return read_text(above / "wnids.txt").split()
    return list_folder(above / "train").folders if (above / "train").is_dir() else []


def _flat(tree: Tree) -> SourceError:
    return SourceError(
        f"{tree.root} holds {plural(len(tree), 'image')} outside of any class folder",
        expected="one folder a class",
        next_step="Sort them into class folders, or ask for unlabelled samples (--unlabelled)",
    )


def no_images(tree: Tree, options: SourceOptions) -> SourceError:
    """The sentence for a tree without a single sample."""
    left = [name for folder in tree.folders for name in folder.left]
    more = f" (not followed: {first_few(left, len(left))})" if left else ""
    return SourceError(
        f"{tree.root} is no data set: it holds {tree.contents()}{more}",
        expected=f"files ending in {', '.join(options.suffixes)}",
        next_step="Check the path"
        + (", or allow --follow-links" if left else ", or name the suffixes of your samples with --suffix"),
    )
