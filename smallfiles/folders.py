"""Interpret the names of files and folders, check which may be keys, and define the options of sources.

A key is a relative, normalised POSIX path that stays inside its folder. All code that reads names from
outside (manifests, tar members, archives) or writes files by name checks them here first, so that no hostile
`../../.bashrc` leaves its folder.

The traps: `Path("/data") / "/etc/passwd"` is `/etc/passwd`, and `os.path.normpath` silently repairs names
that must be refused. Nothing is repaired here. And `valid`, `validation` and `val` are one split, and a
folder called `test` may be a class. All sources and formats share these rules. Notebook 02 shows the layouts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from smallfiles.errors import SourceError, UsageError, is_utf8
from smallfiles.options import check, flag_of, option
from smallfiles.progress import plural

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp", ".tif", ".tiff", ".gif")
_ARRAYS = [".npy", ".npz", ".pt", ".pth", ".safetensors", ".pkl", ".h5", ".hdf5", ".nc", ".mat", ".raw"]
_MEDIA = [".wav", ".flac", ".mp3", ".ogg", ".opus", ".mp4", ".avi", ".mkv", ".mov", ".jp2", ".exr", ".svg"]
_SCIENCE = [".pdb", ".cif", ".fits", ".dcm", ".nii", ".mha", ".root", ".las", ".ply", ".obj", ".pcd", ".edf"]
DATA_SUFFIXES = frozenset([*_ARRAYS, *_MEDIA, *_SCIENCE, ".nii.gz"])
_UNREAD_PICTURES = [".heic", ".heif", ".avif", ".jxl", ".dng", ".cr2", ".nef", ".arw", ".tga", ".psd"]
_UNREAD_MEDIA = [".m4a", ".aac", ".wma", ".aiff", ".webm", ".wmv", ".flv"]
LIKELY_SAMPLES = DATA_SUFFIXES.union(IMAGE_SUFFIXES, _UNREAD_PICTURES, _UNREAD_MEDIA)
"""Suffixes of files that are samples in all likelihood, also if no program here can read them."""
_TEXT_SUFFIXES = frozenset([".txt", ".json"])
FILE_SUFFIXES = (*IMAGE_SUFFIXES, *sorted(DATA_SUFFIXES | _TEXT_SUFFIXES))
"""Suffixes of the files of samples, whatever is in them."""
_COMPANIONS = _TEXT_SUFFIXES | {".cls", ".csv", ".tsv", ".xml", ".md", ".html", ".yaml", ".log"}
"""Files that may be labels or documents of others."""


MAX_COMPONENT_BYTES = 255


def key_problem(key: str) -> str | None:
    """Say what is wrong with `key` as a sample's name, or None if nothing is.

    A name that is checked once, where it comes in, can be joined to any folder later.

    Args:
        key: The proposed key.

    Returns:
        Half a sentence that fits after the key ("is an absolute path"), or None.
    """
    if not key:
        return "is empty"
    if "\0" in key:
        return "contains a NUL byte"
    if "\n" in key:  # a list of names, one a line, would hold other names
        return "contains a line break"
    if key.startswith("/"):
        return "is an absolute path"
    parts = key.split("/")
    if ".." in parts:
        return "leaves its folder through '..'"
    if "" in parts or "." in parts:
        return "is not normalised (an empty or '.' component)"
    return None if is_utf8(key) else "is not valid UTF-8"


def is_writable_name(key: str) -> bool:
    """Check whether a file with this name can exist on Linux (each component has at most 255 bytes).

    A packed file can contain longer names. Only unpacking them onto a file system fails.
    """
    parts = key.encode("utf-8", "surrogatepass").split(b"/")
    return all(len(part) <= MAX_COMPONENT_BYTES for part in parts)


def suffix_of(name: str) -> str:
    """Return the suffix of a file name. `.nii.gz` counts as one suffix."""
    lower = name.lower()
    return lower[-7:] if lower.endswith(".nii.gz") else Path(name).suffix


def by_suffix(names: Iterable[str]) -> Counter[str]:
    """Count the files with each suffix."""
    return Counter(suffix_of(name) or "suffix-less" for name in names)


def in_words(counts: Counter[str], most: int = 3) -> str:
    """Return the counts as text, such as `3 .csv files, 1 .md file, 2 other files`."""
    shown = counts.most_common(most)
    rest = counts.total() - sum(count for _, count in shown)
    named = [plural(count, f"{suffix} file") for suffix, count in shown]
    return ", ".join(named + [plural(rest, "other file")] * bool(rest)) or "no files"


def data_suffix(counts: Mapping[str, int]) -> str | None:
    """Return the suffix of most files in a set without images: of data files, or else of texts.

    Return None if no such suffix has the majority.

    Args:
        counts: Number of files with each suffix.
    """
    found: Counter[str] = Counter()
    for suffix, count in counts.items():
        found[suffix.lower()] += count
    if found.keys() & DATA_SUFFIXES:
        found = Counter({suffix: count for suffix, count in found.items() if suffix not in _COMPANIONS})
    for suffix, count in found.most_common(1):
        if suffix in DATA_SUFFIXES | _TEXT_SUFFIXES and count > 1 and 2 * count > found.total():
            return suffix
    return None


SERVICE_FOLDERS = ("__macosx", "@eadir", "thumbs", "thumbnails", "#recycle", "$recycle.bin", "lost+found")
"""Folders that file managers and storage appliances create (lower case); neither classes nor samples."""

_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLITS |= dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "val")
_FILLERS = frozenset({"image", "images", "img", "imgs", "set", "data", "dataset", "split", "seg"})
_NUMBERED = re.compile(r"\d{5}")
_GROUND_TRUTH = re.compile(r"(?i)ground[ _-]?truth")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")


def words_of(name: str) -> list[str]:
    """Split a name into words in lower case.

    `trainImages` and `train2017` contain the word `train`. `GroundTruth` is one word.
    """
    return [word.lower() for word in _WORD.findall(_GROUND_TRUTH.sub("_groundtruth", name))]


def canonical_split(name: str, siblings: Iterable[str] = ()) -> str | None:
    """Return `train`, `val`, or `test` for a usual name of these splits (`train2017`), or else None.

    Args:
        name: Name of a folder.
        siblings: All folders of that level; words in all of their names are ignored (`stage1_train`).
    """
    names = [set(words_of(each)) for each in siblings]
    shared = set.intersection(*names) - _SPLITS.keys() if len(names) > 1 else set()
    words = [word for word in words_of(name) if word not in _FILLERS | shared]
    if _NUMBERED.search(name):
        return None  # a shard
    return _SPLITS.get(words[0]) if len(words) == 1 else None


def is_ignored(path: str, patterns: Iterable[str]) -> bool:
    """Check whether a path, relative to the data set, matches one of the patterns of `--ignore`.

    A pattern describes a name, a path, or the end of a path. A pattern for a folder covers all its content.
    """
    return any(
        fnmatchcase(path, start + pattern.removeprefix("./").rstrip("/"))
        for pattern in patterns
        for start in ("", "*/")
    )


def is_hidden(name: str) -> bool:
    """Check whether a file or folder with this name does not belong to the data."""
    return name.startswith(".") or name.lower() in SERVICE_FOLDERS


def choose_split(found: list[str], wanted: str | None, where: object) -> tuple[str, tuple[str, ...]]:
    """Choose one of the splits of a source: the requested one, the only one, or train.

    Args:
        found: Names of the splits as the source spells them; not empty.
        wanted: The requested split, or None.
        where: The source, for the message.

    Returns:
        The chosen name as the source spells it, and notes.

    Raises:
        SourceError: It does not exist, or none was requested and there is no train split.
    """
    names = ", ".join(found)
    if wanted is None and len(found) == 1:
        return found[0], ()
    fitting = _fitting(found, wanted or "train")
    if len(fitting) == 1:
        note = f"splits found: {names}; {fitting[0]} was taken since none was requested"
        return fitting[0], (note,) if wanted is None else ()
    if wanted is not None and not fitting:
        raise SourceError(
            f"{where} has no split {wanted!r}",
            expected=f"one of its splits: {names}",
            next_step="Choose one of these",
        )
    raise SourceError(
        f"{where} has several splits ({', '.join(fitting or found)})",
        expected="the name of one of them",
        next_step=f"Choose one, for example --split {(fitting or found)[0]}",
    )


def _fitting(found: list[str], wanted: str) -> list[str]:
    """Return the splits with exactly this name, or else all whose names mean the same split."""
    exact = [name for name in found if name == wanted] or [name for name in found if name.lower() == wanted]
    return exact or [n for n in found if canonical_split(n, found) == (canonical_split(wanted) or wanted)]


def one_or_several(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return texts as a tuple. A single text becomes one entry, not one per letter.

    Raises:
        UsageError: The value is neither a text nor a collection of texts.
    """
    texts = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(
            repr(given),
            expected="a text, or several in a list",
            next_step='Write it as "name" or ["name", "name"]',
        )
    return texts


_READING = {"split", "unlabelled", "suffixes", "ignore"}
_TREES = _READING | {"kind", "labels", "strict", "follow_links"}
SUPPORTED = {
    **dict.fromkeys(("class folders", "a folder with a table", "a folder of archives"), _TREES | {"columns"}),
    "ImageNet in folders": _TREES,
    "ImageNet in tars": _TREES - {"follow_links"},
    "Flickr30K": _TREES - {"unlabelled"},
    "a table": {"split", "root", "columns", "unlabelled", "strict", "follow_links"},
    "a table with files inside": {"split", "columns", "unlabelled", "strict", "follow_links", "ignore"},
    "a folder with boxes": _TREES,
    "a tar": _TREES - {"follow_links"} | {"columns"},
    "a manifest": {"split", "root", "follow_links"},
    "a packed output": {"split", "where"},
    "packed shards": {"split", "ignore", "where"},
    "packed files": {"split", "follow_links", "ignore", "where"},
    "shards of others": _READING | {"where"},
}
"""Which fields of `SourceOptions` each reader supports. `sizes` is a hint. A new reader adds a row."""


@dataclass(frozen=True)
class SourceOptions:
    """How a source is read; every field has a default that suits the usual case, and most are flags.

    Args:
        kind: How to read the source; `auto` recognises it.
        split: `train`, `val`, `test` or a name the source uses; None takes the only one, or train.
        root: For a manifest or a table: the folder (or tar) that its paths are relative to.
        labels: Where labels are, if not next to the data: a table, devkit, LOC csv, captions, splits, or
            a JSON of COCO.
        columns: `NAME=SPEC`: the column of a table that is a field (`image`, `label`, `captions`, `mask`, or
            any name of a value); a SPEC with braces is a template of paths, such as `images/{id}.jpg`. In a
            folder without a table, the further files of each image: `mask=masks/{stem}.png`, also with
            `{name}` and `{dir}`; and which files are the images, if not all others: `image=images/{name}`,
            or `image=a/{id}_0.png` with `mask=b/{id}.png`. A single text is one of them.
        unlabelled: Give every sample the label -1 instead of requiring class folders.
        strict: Refuse what would otherwise be left out with a note.
        suffixes: Which files are samples; case does not matter.
        follow_links: Follow links, also those of files, that lead out of the folder; else they are refused.
        ignore: Patterns of files and folders that are not part of the data, such as `*.csv` or `meta/*`. A
            single text is one of them.
        where: A condition on the values of a packed set, such as `label == 'cat' and age > 40`.
        sizes: Also look up the size of every file: one metadata operation per file, many in flight.
    """

    kind: Literal["auto", "folder", "imagenet", "flickr30k", "tarball"] = option(
        "auto", "kind of the data set; auto recognises it", flag="source"
    )
    split: str | None = option(None, "which split to take (train, val, test)")
    root: Path | None = option(None, "root of the paths in a manifest or table", metavar="DIR")
    labels: Path | None = option(None, "table or file with labels or captions, if not next to the data")
    columns: tuple[str, ...] = option(
        (),
        "column of a table or template of paths that is a field: label=species, mask=m/{id}.png; in a folder "
        "the path of a further file by {stem}, {name} and {dir} of the first, e.g. mask=masks/{stem}.png or "
        "mask={dir}/../masks/{stem}.png (and image=images/{name} if others are no images; or "
        "image=a/{id}_0.png with mask=b/{id}.png); repeatable",
        flag="field",
        metavar="NAME=SPEC",
        many=True,
    )
    unlabelled: bool = option(False, "give every sample the label -1 instead of requiring class folders")
    strict: bool = option(False, "refuse what would otherwise be left out with a note")
    suffixes: tuple[str, ...] = option(
        IMAGE_SUFFIXES,
        "suffix of the samples, if these are not recognised; repeatable",
        flag="suffix",
        metavar=".X",
        many=True,
    )
    follow_links: bool = option(False, "follow links that lead out of the folder; they are refused otherwise")
    ignore: tuple[str, ...] = option(
        (),
        "files or folders that are not part of the data, such as '*.csv' or 'meta/*'; repeatable",
        metavar="PATTERN",
        many=True,
    )
    where: str | None = option(None, "samples of a packed set with these values", metavar="CONDITION")
    sizes: bool = True

    def __post_init__(self) -> None:
        for name in ("columns", "suffixes", "ignore"):
            object.__setattr__(self, name, one_or_several(getattr(self, name)))
        check(self)
        dotted = (f".{suffix.lower().removeprefix('.')}" for suffix in self.suffixes)
        object.__setattr__(self, "suffixes", tuple(dotted) or IMAGE_SUFFIXES)

    def refuse_unsupported(self, reader: str, where: object) -> None:
        """Refuse options that a reader would silently ignore.

        Args:
            reader: A key of `SUPPORTED`.
            where: The source, for the message.

        Raises:
            SourceError: An option was given that this reader does not support.
        """
        changed = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        if extra := sorted(_FLAGS[name] for name in changed & _FLAGS.keys() - SUPPORTED[reader]):
            raise SourceError(
                f"{', '.join(extra)} was given, but has no effect on {where}, which is read as {reader}",
                expected=f"at most {', '.join(sorted(_FLAGS[name] for name in SUPPORTED[reader]))}",
                next_step=f"Leave {', '.join(extra)} out, or make a manifest with the targets you want",
            )


_FLAGS = {name: flag_of(SourceOptions, name) for name in set().union(*SUPPORTED.values())}
