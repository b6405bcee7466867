"""The files and folders of a source, and signs that its folders are not classes but parts of samples.

    images/ masks/      trainA/ trainB/      HR/ LR/      cat/train/ cat/val/      0001/{image,mask}.png

In a folder, samples of several files are recognised before (see `sources.pairing`); what is unclear comes
here. A refusal needs two signs: a known name, and the contents or names of the files. One sign alone is only
noted: `cat/001.jpg` and `dog/001.jpg` are numbered alike, `normal/` and `tumour/` share patients, and
`with_mask/` is a class.

The traps: splitting a million names is slow, so only the thousands of folders are split. And opening a file
is a round trip on a parallel file system, so only a few headers are read, and only where names give a reason.
 Notebook 02 shows the layouts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column, file_names_of, folders_of, from_numpy, stems_of, to_numpy
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split, words_of
from smallfiles.progress import plural
from smallfiles.samples import ByteStore

_CONTAINERS = frozenset({"image", "images", "img", "imgs", "jpeg", "jpg", "png", "picture", "pictures"})
_CONTAINERS |= {"photo", "photos", "data", "dataset"}
HEAD_BYTES = 1 << 16
"""Bytes that are enough of a picture to contain its header."""


@dataclass(frozen=True)
class Files:
    """The names of all files in a source.

    Args:
        where: The source, for messages. Its name may be that of a split.
        samples: Names of the files that are samples.
        others: Names of other files.
        folders: Folders that are listed by themselves, including empty folders.
        look: Returns the first bytes of a sample. It is None if reading them costs too much.
        classes_flag: The flag that declares the folders to be classes nevertheless.
        declared: Whether the user says which files are samples.
        fields_flag: The flag that says which files belong to one sample. It is empty if there is no such
            flag.
        store: Reads the samples.
        sizes: Size of each sample in bytes, if the listing has the sizes.
        inside: Returns the first bytes of another file inside an archive. It is None for a folder.
        labels_flag: The flag that names a table of labels. It is empty if there is no such flag.
    """

    where: Path
    samples: pa.StringArray
    others: pa.StringArray = field(default_factory=lambda: column([], pa.string()))
    folders: Sequence[str] = ()
    look: Callable[[str], bytes] | None = None
    classes_flag: str = "--source folder"
    fields_flag: str = ""
    declared: bool = False
    store: ByteStore | None = None
    sizes: npt.NDArray[np.int64] | None = None
    inside: Callable[[str], bytes] | None = None
    labels_flag: str = "--labels"


class Folders:
    """The folders that contain samples. A prefix is empty, or ends with a slash.

    Args:
        files: The names of all files.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        found = folders_of(files.samples).dictionary_encode()
        self._paths: list[str] = found.dictionary.to_pylist()
        self._codes: npt.NDArray[np.int32] = to_numpy(found.indices)

    def below(self, prefix: str) -> dict[str, set[str]]:
        """Return the folders in a folder, sorted, each with the names of its sub-folders.

        The names contain the empty text if the folder contains files itself.
        """
        found: dict[str, set[str]] = {}
        for path in self._paths:
            if path.startswith(prefix) and path != prefix:
                top, _, rest = path[len(prefix) :].partition("/")
                found.setdefault(top, set()).add(rest.partition("/")[0])
        return dict(sorted(found.items()))

    def empty_below(self, prefix: str) -> set[str]:
        """Return the folders in a folder that contain no files at any depth."""
        filled, named = (
            {path[len(prefix) :].partition("/")[0] for path in paths if path.startswith(prefix)}
            for paths in (self.others(), self.files.folders)
        )
        return named - filled - {""}

    def others(self) -> list[str]:
        """Return the folders of files that are not samples."""
        found: list[str] = folders_of(self.files.others).unique().to_pylist()
        return found

    def wrapper(self, prefix: str) -> str | None:
        """Return the only folder in a folder if it wraps the classes or contains unlabelled samples.

        Otherwise, return None.
        """
        tops = self.below(prefix)
        if len(tops) != 1:
            return None
        ((top, deep),) = tops.items()
        is_container = bool(canonical_split(top)) or _CONTAINERS.issuperset(words_of(top) or ("",))
        return top if "" not in deep or is_container or len(deep) > 2 else None

    def past_wrappers(self, prefix: str) -> str:
        """Return the first folder, from `prefix` down, that contains several folders or samples."""
        while (top := self.wrapper(prefix)) is not None:
            prefix += f"{top}/"
        return prefix

    def inside(self, prefix: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the samples in a folder, at any depth."""
        paths = np.array([path.startswith(prefix) for path in self._paths], bool)
        kept: npt.NDArray[np.bool_] = paths[self._codes] if len(paths) else np.ones(0, bool)
        return kept

    def names(self, prefix: str) -> pa.StringArray:
        """Return the names of the samples in a folder, at any depth."""
        return self.files.samples.take(from_numpy(np.flatnonzero(self.inside(prefix))))


PARTS = frozenset(
    {"mask", "masks", "label", "labels", "annotation", "annotations", "annot", "annots", "gt", "groundtruth"}
    | {"truth", "trimaps", "segmentation", "segmentations", "bbox", "bboxes", "boxes", "depth", "depths"}
    | {"xml", "xmls", "json", "jsons", "caption", "captions"}
)
WHOLE = frozenset(
    {"image", "images", "img", "imgs", "photo", "photos", "picture", "pictures", "rgb", "frames", "input"}
    | {"jpegimages"}
)
PAIRS = {
    "hr": {"lr"},
    "images": {"target", "targets"},
    "input": {"target", "targets", "output", "outputs", "gt"},
}
NEGATIONS = frozenset({"no", "not", "non", "with", "without"})
_DOMAIN = re.compile(r"(?i:train|test|val|valid)_?([AB])")
PART_OF_STEM = r"(?i:[ _.-](?:mask|masks|seg|segmentation|gt|groundtruth|label|labels|depth))"
"""Pattern for the end of a file's stem that shows that the file belongs to another file."""

_MARKED = PART_OF_STEM + r"\.[^./]+$"
_CLIPS = frozenset({"clip", "video", "seq", "sequence", "shot", "scene", "take", "frames"})
_TEXTS = (".txt", ".cls")
_PHOTOGRAPHS = frozenset({"RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
_SCALE = re.compile(r"x[2348]$")
_FOLDERS_LOOKED_AT = 8
_NAMES_LOOKED_AT = 256
_FILES_LOOKED_AT = 2
_LEAST_SHARE = 0.5


def examine(folders: Folders, below: str, *, trusted: bool = False, labels: bool = True) -> tuple[str, ...]:
    """Look for signs that the folders in a folder are not classes.

    Args:
        folders: The folders of a source.
        below: Where the classes would be. It is empty, or ends with a slash.
        trusted: Whether the user declared the folders to be classes.
        labels: Whether labels are wanted. Otherwise, only files that are not samples matter.

    Returns:
        Notes on a single sign, or on signs that the user overrides.

    Raises:
        SourceError: There are two signs.
    """
    found = _found(folders, below, labels)
    if found is None:
        return _single(folders, below) if labels else ()
    what, cure = found
    if trusted:
        return (f"{what}: taken as classes as requested",)
    files = folders.files
    raise SourceError(
        f"{files.where} contains no classes: {what}",
        expected="one folder per class",
        next_step=f"{cure}, or use {files.classes_flag} if they are classes",
    )


def _found(folders: Folders, below: str, labels: bool) -> tuple[str, str] | None:
    """Return a message on two signs, and advice. Return None if there are fewer than two signs."""
    tops = folders.below(below)
    names = list(tops)
    cure = "Give one folder at a time, with --unlabelled if there are no class folders in it"
    flag = folders.files.fields_flag
    fields = f", or say which files are those of one sample ({flag})" if flag else ""
    if len(names) > 1:
        if parts := _domains(names) or _parted(folders, below, names):
            return parts, cure + fields
        if _are_split_inside(tops):
            what = f"{_listed(names)} each contain splits ({_listed(_inside(tops))})"
            return what, "Put the splits above" + fields
    if marked := _marked(folders, below):
        return (
            f"masks are next to their pictures ({_listed(marked)})",
            "Move these into a folder of their own" + fields,
        )
    if len(names) > 1 and (parts := _samples(folders, below, tops)):
        return parts, (
            "Sort the pictures into one folder and the rest into another, with one mask made of several "
            "(numpy.maximum of k * mask k, say)" + fields
        )
    if labels and len(names) > 1 and _are_clips(folders, below, names):
        what = f"{_listed(names)} by their names and those of their files each hold the frames of a sample"
        return what, 'Write each into one file, as numpy.save("1.npy", numpy.stack(frames)), and pack these'
    if labels and names and (texts := _texts_of_pictures(folders, below)):
        what = f"class folders contain texts with the names of their pictures ({_listed(texts)})"
        return what, "Move the texts away, or make a manifest with their contents"
    return None


def _domains(names: Sequence[str]) -> str | None:
    """Return a message if the names are never classes: `trainA`, `trainB`; `image_2`, `image_3`.

    Otherwise, return None.
    """
    matches = [_DOMAIN.fullmatch(name) for name in names]
    letters = {match[1].upper() for match in matches if match}
    if all(matches) and len(letters) == 2:
        return f"{_listed(names)} are two domains"
    if all(WHOLE & set(words_of(name)) for name in names):
        return f"{_listed(names)} are parts of samples or of a set"
    return None


def _parted(folders: Folders, below: str, names: Sequence[str]) -> str | None:
    """Return a message if some folders hold masks, labels or smaller pictures of what other folders hold.

    Otherwise, return None.
    """
    parts, rest, is_pair = _split(names)
    if not parts or not rest:
        return None
    if all(WHOLE & set(words_of(name)) for name in rest):
        return f"{_listed(rest)} and {_listed(parts)} by their names are parts of samples"
    same = any(_share(folders, f"{below}{a}/", f"{below}{b}/", is_pair) for a in parts[:4] for b in rest[:4])
    names_are = f"{_listed(rest)} and {_listed(parts)} by their names"
    if same:
        return f"{names_are} and those of their files are parts of samples"
    modes = [{_mode(folders, f"{below}{name}/") for name in side[:4]} for side in (rest, parts)]
    if "photographs" in modes[0] and modes[1] == {"pictures of one channel"}:
        return f"{names_are} and contents ({_listed(modes[0])}, {_listed(modes[1])}) are parts of samples"
    return None


def _split(names: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Return the folders that are named like parts, the other folders, and a flag.

    The flag says whether one of the other folders is named like a whole, such as `images`.
    """
    words = {name: set(words_of(name)) | {"".join(words_of(name))} for name in names}
    parts = [name for name in names if words[name] & PARTS and not words[name] & NEGATIONS]
    whole = [name for name in names if words[name] & WHOLE]
    for one, others in PAIRS.items():
        second = [name for name in names if words[name] & others]
        if second and any(one in words[name] for name in names):
            return second, [name for name in names if name not in second], True
    rest = [name for name in names if name not in parts]
    return parts, rest, any(name in rest for name in whole)


def _share(folders: Folders, one: str, other: str, counters_too: bool) -> bool:
    """Check whether most files of one folder have the same names as files in another.

    Names that only count are not enough, unless `counters_too` is set.
    """
    ours, theirs = _stems(folders, one), _stems(folders, other)
    both = ours & theirs
    enough = len(both) >= max(1, _LEAST_SHARE * min(len(ours), len(theirs)))
    return enough and (counters_too or not _are_counters(both))


def _stems(folders: Folders, prefix: str) -> set[str]:
    """Return the stems of the alphabetically first files in a folder, without the scale of smaller ones."""
    return {_SCALE.sub("", name.rpartition(".")[0]) for name in _files(folders, prefix)}


def _files(folders: Folders, prefix: str) -> list[str]:
    """Return the file names of the alphabetically first samples in a folder, without their folders."""
    names = file_names_of(folders.names(prefix))
    found: list[str] = names.take(pc.array_sort_indices(names)[:_NAMES_LOOKED_AT]).to_pylist()
    return found


def _twins(files: Sequence[str]) -> list[str]:
    """Return the files that have the stem of the file before them, such as a picture and its mask."""
    return [b for a, b in pairwise(files) if a != b and a.rpartition(".")[0] == b.rpartition(".")[0]]


def _are_counters(stems: Iterable[str]) -> bool:
    patterns = {re.sub(r"\d+", "#", stem) for stem in stems}
    return len(patterns) == 1 and "#" in patterns.pop()


def _mode(folders: Folders, prefix: str) -> str:
    """Return the kind of the pictures in a folder, judging by the headers of two of them."""
    from PIL import Image

    from smallfiles.images.decoding import PILLOW_RAISES

    look, found = folders.files.look, set()
    if look is None:
        return "files"
    for name in folders.names(prefix).slice(0, _FILES_LOOKED_AT).to_pylist():
        try:
            with Image.open(io.BytesIO(look(name))) as picture:
                found.add("photographs" if picture.mode in _PHOTOGRAPHS else "pictures of one channel")
        except PILLOW_RAISES:
            found.add("other files")
    return found.pop() if len(found) == 1 else "files of several kinds"


def _inside(tops: dict[str, set[str]]) -> list[str]:
    return sorted(set(chain.from_iterable(tops.values())) - {""})


def _are_split_inside(tops: dict[str, set[str]]) -> bool:
    """Check whether each folder contains splits: `cat/train`, `cat/val`."""
    splits = [{canonical_split(name) for name in deep} - {None} for deep in tops.values()]
    return all(splits) and len(set().union(*splits)) > 1


def _samples(folders: Folders, below: str, tops: dict[str, set[str]]) -> str | None:
    """Return a message if each folder holds one sample. Otherwise, return None.

    This is the case if all folders have the same entries, and one of these is named like a part.
    """
    few = list(tops)[:_FOLDERS_LOOKED_AT]
    held = [set(_files(folders, f"{below}{top}/")) if "" in tops[top] else tops[top] for top in few]
    are_alike = len(held[0]) > 1 and all(names == held[0] for names in held)
    if not are_alike or not any(PARTS & set(words_of(name.partition(".")[0])) for name in held[0]):
        return None
    return f"{_listed(tops)} each contain the parts of one sample ({_listed(sorted(held[0]))})"


def _are_clips(folders: Folders, below: str, names: Sequence[str]) -> bool:
    """Check whether each folder holds the frames of one sample.

    This is the case if the folders are called `clip1`, `clip2` and so on, and all hold numbered files.
    """
    few = [_stems(folders, f"{below}{name}/") for name in names[:_FOLDERS_LOOKED_AT]]
    are_numbered = all(len(stems) > 1 and _are_counters(stems) for stems in few)
    return are_numbered and _are_counters(names) and all(_CLIPS & {*words_of(name)} for name in names)


def _marked(folders: Folders, below: str) -> list[str]:
    """Return files such as `1_mask.png` that lie beside a `1.png`."""
    names = folders.names(below)
    marked = names.filter(pc.match_substring_regex(names, _MARKED)).slice(0, _NAMES_LOOKED_AT)
    if not len(marked):
        return []
    stems = stems_of(names)
    bases = pc.replace_substring_regex(marked, _MARKED, "")
    found: list[str] = marked.filter(pc.is_in(bases, stems)).to_pylist()
    return found


def _texts_of_pictures(folders: Folders, below: str) -> list[str]:
    """Return files such as `1.txt` that lie beside a `1.jpg`. They hold captions or boxes."""
    others = folders.files.others
    ends = [pc.ends_with(pc.utf8_lower(others), suffix) for suffix in _TEXTS]
    texts = others.filter(pc.and_(pc.starts_with(others, below), pc.or_(*ends)))
    if not len(texts):
        return []
    found: list[str] = texts.filter(pc.is_in(stems_of(texts), stems_of(folders.names(below)))).to_pylist()
    return found


def _single(folders: Folders, below: str) -> tuple[str, ...]:
    """Return notes on single signs."""
    names = list(folders.below(below))
    prefixes = [f"{below}{name}/" for name in names[:_FOLDERS_LOOKED_AT]]
    few = [_stems(folders, prefix) for prefix in prefixes]
    notes = []
    if twins := [name for prefix in prefixes for name in _twins(_files(folders, prefix))]:
        notes.append(f"files that differ only in their suffix are separate samples: {_listed(twins)}")
    if parts := _split(names)[0]:
        notes.append(f"taken for {plural(len(parts), 'class', 'classes')} despite the name: {_listed(parts)}")
    if len(few) > 1 and len(few[0]) > 1 and all(stems == few[0] for stems in few):
        notes.append(f"the same file names in {_listed(names)}: taken for classes, not for parts of samples")
    return tuple(notes)


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return first_few(found, len(found), 4)
