"""Flickr30K: 31,783 photographs with five captions each; one sample per image.

    results.csv              image_name| comment_number| comment      delimiter "| ", no quoting
    results_20130124.token   1000092795.jpg#0<TAB>Two young guys …
    dataset_flickr30k.json   {"images": [{"filename", "split", "sentences": [{"raw"}, …]}, …]}, Karpathy's

The folder of images is found at any depth (archives unpack to `flickr30k_images/flickr30k_images/`). Keys are
bare file names, so that the digest does not depend on the nesting.

The traps: one row per *caption* stores every image five times; here a sample is one image with the list of
its captions. Captions contain commas and quotes, and line 20001 of results.csv lacks its second delimiter,
so that a csv reader makes that caption NaN; here rows are split by hand, and the bad one is repaired and
named. Notebook 03 packs it, and its exercise shows the five usual mistakes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from smallfiles.arrays import column
from smallfiles.errors import SourceError, first_few
from smallfiles.folders import SourceOptions, choose_split
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.sources import declarations
from smallfiles.sources.record import Samples, Source, files_of, noted, refuse_if_strict, source_of
from smallfiles.sources.scanning import Look, Notes, Tree, bad_line, lines_of, read_text, tree_of

CAPTIONS_EACH = 5
ALL = "all"
CSV = "results.csv"
TOKEN = "results_20130124.token"
KARPATHY = "dataset_flickr30k.json"
FILES = (TOKEN, CSV, KARPATHY)
_HEADER = "image_name| comment_number| comment"
_LOST_DELIMITER = re.compile(r"(?P<image>[^|]+)\|\s*(?P<number>\d+)\s+(?P<comment>\S.*)")
_TOKEN_LINE = re.compile(r"[^\t|]+#\d+\t")
_NO_CAPTION = frozenset({"", "nan"})

_Row: TypeAlias = tuple[str, int, str]  # image, number of the caption, caption


def load(path: Path, options: SourceOptions) -> Source:
    """Read Flickr30K.

    Args:
        path: A folder that contains the images and a caption file, at any depth.
        options: `split` may be `all`, and with Karpathy's file also `train`, `val` or `test`. `labels` names
            a caption or split file. `strict` refuses images without captions and captions without images.

    Returns:
        A source with one sample per image. Captions are in the order of their numbers, and images are sorted
        by name.

    Raises:
        SourceError: There are no images or no caption file, or a caption file cannot be read.
    """
    options.refuse_unsupported("Flickr30K", path)
    tree = tree_of(path, options)
    images, notes = _image_folder(tree)
    file, splits, others, chosen = _caption_files(path, images.root, options)
    captions = read(file)
    split_of = None if splits is None else (captions if splits == file else read(splits)).split_of
    names = sorted(name for folder in images.folders for name in folder.files)
    names, split, more = _of_split(names, split_of, path, options)
    more += _left_over(names, captions, split, options)
    kept = [name for name in names if captions.ordered(name)]
    if not kept:
        raise SourceError(
            f"none of the {plural(len(images), 'image')} in {images.root} is named in {file}",
            expected="captions of these images",
            next_step="Check that both are of Flickr30K, and the split",
        )
    found = [captions.ordered(name) for name in kept]
    used = {file, splits, *(each for each in others if read(each).of == captions.of)}
    beside = Files(path, images.paths(), tree.other_paths())
    names_used = [name for name in beside.others.to_pylist() if path / name in used]
    notes += chosen + tuple(captions.notes) + more + declarations.ignored_note(path, tree.ignored(), options)
    notes += declarations.check(beside, beside.samples, options, names_used)
    columns = {"targets": found, "name": "flickr30k", "split": split}
    samples = Samples(column(kept, pa.string()), "flickr30k", columns, notes)
    return source_of(files_of(images, options), samples, options)


def _image_folder(tree: Tree) -> tuple[Tree, Notes]:
    """Return the folder with the most images as a tree, and notes for the user.

    If several folders have equally many images, the one that is least deep is chosen, then the first by name.
    """
    path = tree.root
    holding = [folder for folder in tree.folders if folder.files]
    if not holding:
        raise SourceError(
            f"{path} is no Flickr30K: it holds {tree.contents()}",
            expected="a folder of JPEG files somewhere in it",
            next_step="Check the path, and whether the archive was unpacked",
        )
    holding.sort(key=lambda f: (-len(f.files), f.path.count("/") + bool(f.path), f.path))
    best, *others = holding
    chosen = Tree(path / best.path, (type(best)("", best.files),))
    notes = [f"images are in {chosen.root}"] if best.path else []
    if others:
        left_out = (f"{folder.path or '.'} ({len(folder.files):,})" for folder in others)
        notes.append(f"other folders with images left out: {first_few(left_out, len(others))}")
    return chosen, tuple(notes)


def _caption_files(
    path: Path, images: Path, options: SourceOptions
) -> tuple[Path, Path | None, list[Path], Notes]:
    """Return the file of captions, the split file, the other caption files, and notes for the user.

    Karpathy's split is the file of captions if there is no other. The split file is None if there is none.
    """
    start = options.labels or path
    found = [start] if start.is_file() else Look(start, options.ignore).find(FILES)
    if start.name == KARPATHY:
        found += Look(path, options.ignore).find(FILES)
    if options.labels is None:
        above = path.absolute().parents[:2]
        found += [folder / name for folder in above for name in FILES if (folder / name).is_file()]
    splits = next((file for file in found if file.name == KARPATHY), None)
    texts = sorted((file for file in found if file.name != KARPATHY), key=lambda file: file.name != TOKEN)
    captions = texts[0] if texts else splits
    if captions is None:
        raise SourceError(
            f"{path} has images (in {images}) and no captions",
            expected=f"{TOKEN}, {CSV} or {KARPATHY}",
            next_step="Put one of them next to the images, or give its path (--labels PATH)",
        )
    split_from = f", splits from {splits.name}" if splits not in (None, captions) else ""
    return captions, splits, texts[1:], (f"captions read from {captions.name}{split_from}",)


def _of_split(
    names: list[str], split_of: dict[str, str] | None, path: Path, options: SourceOptions
) -> tuple[list[str], str, Notes]:
    """Return the names of the images in the requested split, the name of the split, and notes.

    All images are returned if no file lists splits.
    """
    if split_of is None:
        if options.split not in (None, ALL):
            raise SourceError(
                f"split {options.split!r} was requested, and {path} has no file that lists its images",
                expected=KARPATHY,
                next_step=f"Put it there, give its path (--labels PATH), or take all (--split {ALL})",
            )
        return names, ALL, ()
    notes = noted([name for name in names if name not in split_of], "image", "in no split")
    if options.split == ALL:
        return names, ALL, notes
    split, more = choose_split(list(dict.fromkeys(split_of.values())), options.split, path)
    absent = {name for name, its in split_of.items() if its == split} - set(names)
    missing = noted(sorted(absent), "image", f"of split {split} missing")
    refuse_if_strict(missing, options, "Flickr30K")
    return [name for name in names if split_of.get(name) == split], split, more + notes + missing


def _left_over(names: list[str], captions: Captions, split: str, options: SourceOptions) -> Notes:
    """Return notes on images without captions, and on captions without images."""
    counts = {name: len(captions.of.get(name, ())) for name in names}
    notes = noted([name for name in names if not counts[name]], "image", "without captions left out")
    if split == ALL:
        notes += noted(sorted(captions.of.keys() - counts), "image", "with captions missing")
    uneven = [name for name in names if counts[name] not in (0, CAPTIONS_EACH)]
    notes += noted(uneven, "image", f"with another number of captions than {CAPTIONS_EACH}")
    refuse_if_strict(notes, options, "Flickr30K")
    return notes


@dataclass
class Captions:
    """The captions of each image by their numbers, and notes on unusual lines.

    Args:
        of: Maps the name of an image to its captions by number.
        split_of: Maps the name of an image to its split, if a file lists it.
        notes: What was repaired or is missing.
    """

    of: dict[str, dict[int, str]] = field(default_factory=dict)
    split_of: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def ordered(self, image: str) -> list[str]:
        """Return the captions of one image in the order of their numbers."""
        return [text for _, text in sorted(self.of.get(image, {}).items())]


def read(path: Path) -> Captions:
    """Read a caption file of any of the three kinds. The kind is recognised by the content.

    Raises:
        SourceError: The file is of none of these kinds, or a line is malformed, which the message names.
    """
    text = read_text(path)
    found = Captions()
    first = text.partition("\n")[0].rstrip("\r")
    if text.lstrip().startswith("{"):
        rows = _karpathy_rows(path, text, found.split_of)
    elif "|" in first and not _TOKEN_LINE.match(first):  # captions in a token file may contain pipes
        rows = _csv_rows(path, text, found.notes)
    else:
        rows = _token_rows(path, text)
    empty, repeated = [], []
    for image, number, caption in rows:
        there = found.of.setdefault(image, {})
        if caption.strip().lower() in _NO_CAPTION:
            empty.append(f"{image}#{number}")
        elif number in there:
            repeated.append(f"{image}#{number}")
        else:
            there[number] = caption.strip()
    found.notes += noted(empty, "empty caption", "left out")
    found.notes += noted(repeated, "caption number", "given twice")
    return found


def _csv_rows(path: Path, text: str, notes: list[str]) -> Iterator[_Row]:
    repaired = []
    for line_number, line in lines_of(text):
        if line_number == 1:
            if line != _HEADER:
                raise bad_line(path, line_number, line, f"the header {_HEADER!r}")
            continue
        image, _, rest = line.partition("|")
        number, delimiter, caption = rest.partition("|")
        if image and delimiter and number.strip().isdecimal():
            yield image.strip(), int(number), caption
        elif match := _LOST_DELIMITER.fullmatch(line):
            repaired.append(line_number)
            yield match["image"].strip(), int(match["number"]), match["comment"]
        else:
            raise bad_line(path, line_number, line, "a row such as: 1000092795.jpg| 0| Two young guys …")
    if repaired:
        rows = f"{plural(len(repaired), 'row')} (line {first_few(repaired)})"
        notes.append(f"{path.name}: lost delimiter repaired in {rows}")


def _token_rows(path: Path, text: str) -> Iterator[_Row]:
    for line_number, line in lines_of(text):
        head, tab, caption = line.partition("\t")
        image, _, number = head.rpartition("#")
        if not tab or not image or not number.isdecimal():
            raise bad_line(path, line_number, line, "a line such as: 1000092795.jpg#0<TAB>Two young guys …")
        yield image, int(number), caption


def _karpathy_rows(path: Path, text: str, split_of: dict[str, str]) -> Iterator[_Row]:
    try:
        for image in json.loads(text)["images"]:
            name = str(image["filename"])
            split_of[name] = str(image["split"])
            for number, sentence in enumerate(image["sentences"]):
                yield name, number, str(sentence["raw"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{path} cannot be read as Karpathy's split ({type(error).__name__}: {error})",
            expected='{"images": [{"filename": …, "split": …, "sentences": [{"raw": …}]}]}',
            next_step=f"Download {KARPATHY} again",
        ) from error
