"""Folders whose samples have several files: which are partners, and of which field.

    images/001.jpg       masks/001.png           twins: the same stem, or 001_mask.png; above or below splits
    cat/a.jpg            cat/a.mask.png          side by side, as in a tar that was unpacked; a_mask.png too
    0001/image.jpg       0001/mask.png           one folder per sample, with the same names in each
    --field mask=masks/{stem}.png                or as the user says, also where names differ:
    --field image=imagesTr/{id}_0000.nii.gz --field mask=labelsTr/{id}.nii.gz

    train/images/ train/masks/                   twins may also be inside of splits, and have names such as
    JPEGImages/ SegmentationClass/  HR/ LR/      these: words in the names of folders say what they contain

A field is named after its folder, or the part of the file's name, in the singular: `masks/` is `mask`,
`SegmentationClass/` is `segmentation`. `_image` follows where the name means something else (`label_image`).

The trap: `cat/1.jpg` and `dog/1.jpg` are numbered alike and no partners. So a name must say that a folder or
a file is a part, and at least half of the files must have partners. All else is left to `manifest.listing`,
which refuses what looks like parts. docs/recipes.md has an example.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import (
    as_mask,
    column,
    file_names_of,
    folders_of,
    from_numpy,
    joined,
    scalar,
    stems_of,
    suffixes_of,
)
from smallfiles.errors import SourceError, UsageError, first_few
from smallfiles.fields import RESERVED
from smallfiles.folders import DATA_SUFFIXES, IMAGE_SUFFIXES, SourceOptions, canonical_split, words_of
from smallfiles.manifest.class_folders import Labelled, without_class
from smallfiles.manifest.listing import NEGATIONS, PAIRS, PART_OF_STEM, PARTS, WHOLE
from smallfiles.progress import plural
from smallfiles.sources.record import FIELDS_FLAG, left_out
from smallfiles.sources.roles import filled, parts_of
from smallfiles.sources.scanning import Tree

Rows = npt.NDArray[np.intp]

_MARK_OR_SCALE = rf"({PART_OF_STEM}|x[2348]|(?i:\.jpe?g|\.png))$"
_MARKED = rf"(?s)^(?P<stem>.*[^/])(?P<mark>{PART_OF_STEM})\.[^./]+$"
_DOTTED = r"(?s)^(?P<stem>(?:.*/)?[^/.]+)(?P<mark>\.[A-Za-z][A-Za-z0-9_-]*)\.[^./]+$"
_MAY_BE_PART = rf"({PART_OF_STEM}|\.[A-Za-z][A-Za-z0-9_-]*)\.[^./]+$"
_LEAST_SHARE = 0.5
_BESIDE = "side by side"
_MOST_FILES = 16
"""The most files that a sample with a folder of its own may have. More files are frames, or samples."""


@dataclass(frozen=True)
class Partners:
    """The samples of a tree that have several files each.

    Args:
        firsts: Path of the first file of each sample.
        names: The paths in `firsts` without the folders that only tell the fields apart. Labels are found by
            these.
        blobs: For each additional field, the path of each sample's file. It is null where a sample has no
            file.
        lost: Files that belong to no sample.
        lost_names: For each of the files in `lost`, the name of the sample that it would belong to.
        note: What was recognised, without the number of samples.
        way: How the files of a sample were found, for messages.
        beside: The common stem of each sample's files if they lie side by side. Otherwise, it is None.
    """

    firsts: pa.StringArray
    names: pa.StringArray
    blobs: Mapping[str, pa.StringArray]
    lost: pa.StringArray
    lost_names: pa.StringArray
    note: str
    way: str
    beside: pa.StringArray | None = None

    def side_files(self, tree: Tree, suffix: str) -> pa.StringArray | None:
        """Return the file with this suffix beside each sample. It is null where a sample has no such file.

        Return None if no sample has such a file.
        """
        if self.beside is None:
            return None
        paths = joined(self.beside, scalar(suffix))
        found = _where(pc.is_in(paths, tree.other_paths()), paths)
        return found if found.null_count < len(found) else None

    def complete(self, labels: Labelled, where: Path, *, strict: bool) -> tuple[Labelled, Partners]:
        """Leave out those labelled samples that lack a file.

        Args:
            labels: The labels of `names`.
            where: The tree, for messages.
            strict: Whether to raise an error for incomplete samples, and for files that belong to no sample.

        Returns:
            The labels of the remaining samples, and the partners with the fields that this split has.

        Raises:
            SourceError: No sample is complete, or `strict` is set and something would be left out.
        """
        kept = from_numpy(np.flatnonzero(labels.keep))
        missing = {name: paths.take(kept).is_null() for name, paths in self.blobs.items()}
        bare = [name for name in missing if as_mask(missing[name]).all()] if labels.split == "test" else []
        own = replace(self, blobs={name: paths for name, paths in self.blobs.items() if name not in bare})
        lacking = np.zeros(len(kept), bool)
        odd = left_out(self.lost.filter(self._of_split(labels)), "file", "of no sample")
        for name in own.blobs:
            odd += left_out(self.firsts.take(kept).filter(missing[name]), "sample", f"without {name}")
            lacking |= as_mask(missing[name])
        if (lacking.all() and len(lacking)) or (strict and odd):
            raise unclear(where, "; ".join(odd), "a file of each field for every sample")
        keep = labels.keep.copy()
        keep[keep] = ~lacking
        count = int((~lacking).sum())
        what = plural(count, "pair") if len(own.blobs) == 1 else plural(count, "sample")
        odd = (*(f"the test split has no {name}" for name in bare), *odd)
        all_of_them = without_class(len(kept))  # said before samples were left out
        others = (without_class(count, "sample") if n == all_of_them else n for n in labels.notes)
        notes = (f"{self.note} ({what} {self.way})", *odd, *others)
        return replace(labels, keep=keep, labels=labels.labels[~lacking], notes=notes), own

    def _of_split(self, labels: Labelled) -> pa.BooleanArray:
        """Return a mask of the lost files that do not clearly belong to another split."""
        folders, places = folders_of(self.names), folders_of(self.lost_names)
        ours, others = (folders.take(from_numpy(np.flatnonzero(of))) for of in (labels.keep, ~labels.keep))
        return pc.or_(pc.is_in(places, ours), pc.invert(pc.is_in(places, others)))


@dataclass(frozen=True)
class _Parts:
    """Files that are parts of samples, by sample and field.

    Args:
        files: Paths.
        samples: The name of each file's sample. It is null if the file belongs to no sample.
        rows: The numbers of the files of each field. The name of the field of first files is empty.
        note: What was recognised, without the number of samples.
        way: How the files of a sample were found, for messages.
        apart: A folder outside, whose files belong to no sample. It is empty if there is no such folder.
    """

    files: pa.StringArray
    samples: pa.StringArray
    rows: Mapping[str, Rows]
    note: str
    way: str
    apart: str = ""

    def of(self, name: str) -> tuple[pa.StringArray, pa.StringArray]:
        """Return the files of a field, and the names of their samples."""
        return _take(self.files, self.rows[name]), _take(self.samples, self.rows[name])


def find(path: Path, tree: Tree, options: SourceOptions) -> Partners | None:
    """Recognise samples of several files in a tree, or find the files that the user names.

    Args:
        path: The tree, for messages.
        tree: The contents of the tree.
        options: See `SourceOptions`.

    Returns:
        The samples and their files. It is None if each sample has one file, as far as the names tell.

    Raises:
        SourceError: Files are parts of samples, but it is unclear of which samples.
        UsageError: A template of `--field` makes no sense.
    """
    if options.columns:
        return _named(path, tree, options.columns)
    if options.kind != "auto":
        return None
    files = pa.concat_arrays([tree.paths(), _data_files(tree)])
    for recognise in (_folder_each, _side_by_side, _twins):
        if (parts := recognise(tree, files)) and (found := _matched(path, parts)):
            return found
    return None


def _data_files(tree: Tree) -> pa.StringArray:
    """Return the files of a tree that have the suffix of data, such as arrays, but not that of samples.

    They may be additional files of samples.
    """
    others = tree.other_paths()
    return others.filter(pc.is_in(suffixes_of(others), column(sorted(DATA_SUFFIXES), pa.string())))


def unclear(path: Path, what: str, expected: str) -> SourceError:
    """Return the error for parts of samples that do not fit together."""
    return SourceError(
        f"{path} contains parts of samples that do not fit together: {what}",
        expected=expected,
        next_step=f"Correct the names, or say which files belong together ({FIELDS_FLAG}); or give "
        "one folder at a time, with --unlabelled if there are no class folders in it; or use --source folder "
        "if they are classes",
    )


def _matched(path: Path, parts: _Parts) -> Partners | None:
    """Find the files of each sample.

    Return None if no file has a partner, or if too few samples have a partner beside them.

    Raises:
        SourceError: A sample has several files of one field, or too few samples have a file of each field.
    """
    firsts, keys = parts.of("")
    blobs, few, is_used = {}, [], np.zeros(len(parts.files), bool)
    is_used[parts.rows[""]] = True
    for name in sorted(parts.rows.keys() - {""}):
        files, theirs = parts.of(name)
        found = pc.index_in(keys, theirs)
        count = len(found) - found.null_count
        most = len(keys) if parts.way == _BESIDE else min(len(keys), len(theirs))
        few += [f"only {count:,} of {plural(most, 'file')} have a {name}"] * (count < _LEAST_SHARE * most)
        is_used[parts.rows[name][as_mask(pc.is_in(theirs, keys))]] = True
        blobs[name] = files.take(found)
    if is_used.sum() == len(keys) or (few and parts.way == _BESIDE):
        return None
    if parts.apart or parts.samples.null_count > len(keys):
        other = parts.apart or parts.files.filter(parts.samples.is_null())[0].as_py()
        raise unclear(path, f"{parts.note}, but {other} is of no sample", "only files of samples, or none")
    if few:
        raise unclear(path, f"{parts.note}, but {', '.join(few)}", "files with the same stem")
    for name in parts.rows:
        _refuse_collisions(path, *parts.of(name))
    lost = np.flatnonzero(~is_used)
    lost_names = _take(pc.coalesce(parts.samples, parts.files), lost)
    names = joined(keys, suffixes_of(firsts))
    beside = keys if parts.way == _BESIDE else None
    return Partners(firsts, names, blobs, _take(parts.files, lost), lost_names, parts.note, parts.way, beside)


def _refuse_collisions(path: Path, files: pa.StringArray, samples: pa.StringArray) -> None:
    """Refuse several files of one sample and field. The error names these files."""
    counts = samples.value_counts()
    if len(counts) == len(samples):
        return
    several = next(each["values"] for each in counts.to_pylist() if each["counts"] > 1)
    names = _take(files, _rows(samples, several)).to_pylist()
    raise unclear(path, f"{first_few(names)} are of one sample", "one for each sample and field")


def _folder_each(tree: Tree, files: pa.StringArray) -> _Parts | None:
    """Recognise one folder per sample.

    Most folders have the same few file names. At least one of them is the name of a part, such as `mask`, and
    exactly one is the name of the whole, such as `image`.
    """
    if any(len(folder.files) > _MOST_FILES for folder in tree.folders):
        return None
    folders, bare = folders_of(files), file_names_of(files)
    stems = stems_of(bare)
    count, names = len(folders.unique()), stems.unique()
    if count < 2 or not 1 < len(names) <= _MOST_FILES:
        return None
    rows = {stem: _rows(stems, stem) for stem in names.to_pylist()}
    if min(map(len, rows.values())) * 2 <= count:
        return None
    parts = [stem for stem in rows if is_part(stem)]
    rest = [stem for stem in rows if stem not in parts]
    whole = [stem for stem in rest if WHOLES.intersection(words_of(stem))]
    if not whole and len(rest) == 1:  # a 1.jpg with 1_mask.png is side by side
        whole = [stem for stem in rest if not any(part.startswith(stem) for part in parts)]
    if not parts or len(whole) != 1:
        return None
    fields = {stem: "" if stem in whole else field_name(stem) for stem in [*whole, *rows]}
    said = [f"{bare[int(rows[stem][0])].as_py()} is {name or 'image'}" for stem, name in fields.items()]
    of = {name: rows[stem] for stem, name in fields.items()}
    samples = pc.utf8_rtrim(folders, characters="/")
    return _Parts(files, samples, of, ", ".join(said), "in one folder each")


def _side_by_side(tree: Tree, files: pa.StringArray) -> _Parts | None:
    """Recognise files such as `a_mask.png` or `a.mask.png` beside an `a.jpg`.

    Words other than the usual ones (`mask`) count if each image has such a file.
    """
    if not pc.any(pc.match_substring_regex(files, _MAY_BE_PART)).as_py():
        return None
    stems, is_sample = stems_of(files), np.arange(len(files)) < len(tree)
    bases = marks = pa.nulls(len(files), pa.string())
    for pattern in (_MARKED, _DOTTED):
        found = pc.extract_regex(files, pattern)
        base, mark = pc.struct_field(found, 0), pc.struct_field(found, "mark")
        is_part = pc.is_in(base, stems)
        bases, marks = (pc.coalesce(old, _where(is_part, new)) for old, new in ((bases, base), (marks, mark)))
    if marks.null_count == len(files):
        return None
    suffixes, firsts = suffixes_of(files), np.flatnonzero(as_mask(marks.is_null()) & is_sample)
    usual = _take(suffixes, firsts).unique().to_pylist()
    rows: dict[str, Rows] = {}
    said, taken = [f"{', '.join(f'*{suffix}' for suffix in usual)} is image"], []
    for mark in marks.drop_null().unique().to_pylist():
        here = _rows(marks, mark)
        theirs = _take(suffixes, here).unique().to_pylist()
        of_each = len(here) == len(firsts) and not {*usual} & {*theirs}
        of_each &= mark.lower() not in IMAGE_SUFFIXES
        if of_each or re.fullmatch(PART_OF_STEM, mark):
            name = field_name(mark[1:] if mark[0] == "." else singular(mark[1:].lower()))
            rows[name] = np.append(rows.get(name, here[:0]), here)
            said.append(f"*{mark}{theirs[0]} is {name}")
            taken.append(mark)
    is_part = pc.is_in(marks, column(taken, pa.string()))
    rows[""] = np.flatnonzero(~as_mask(is_part) & is_sample)
    samples = pc.if_else(is_part, bases, stems)
    return _Parts(files, samples, rows, ", ".join(said), _BESIDE) if taken else None


def _twins(tree: Tree, files: pa.StringArray) -> _Parts | None:
    """Recognise folders such as `images/` and `masks/` beside each other, whose files have the same stems."""
    encoded = folders_of(files).dictionary_encode()
    paths = encoded.dictionary.to_pylist()
    if not (found := sites(paths)):
        return None
    places = [place(path, found) for path in paths]
    homes = {path[: path.rstrip("/").rfind("/") + 1] for path, (_, field) in found.items() if not field}
    outside = (path for path, (above, _) in zip(paths, places, strict=True) if above is None)
    apart = next((path for path in outside if homes.isdisjoint(folders_above(path))), "")
    above, of = (column(each, pa.string()).take(encoded.indices) for each in zip(*places, strict=True))
    rows = {name: _rows(of, name) for name in of.unique().drop_null().to_pylist()}
    stems = stems_of(file_names_of(files))
    exact = joined(above, stems)
    short = joined(above, pc.replace_substring_regex(stems, _MARK_OR_SCALE, ""))
    firsts = _take(exact, rows[""])
    names = pc.if_else(pc.or_(pc.is_in(exact, firsts), pc.invert(pc.is_in(short, firsts))), exact, short)
    said = {f"{path.split('/')[-2]}/ is {name or 'image'}": bool(name) for path, (_, name) in found.items()}
    note = ", ".join(sorted(said, key=lambda each: said[each]))
    return _Parts(files, names, rows, note, "by stem", apart)


def _named(path: Path, tree: Tree, columns: Sequence[str]) -> Partners:
    """Find the files that the templates of `--field` name.

    A file that no template names is a first file, unless `image=` says which files are the first ones.

    Raises:
        SourceError: A field has no file at all, or a file would belong to several samples.
        UsageError: A template makes no sense.
    """
    files, templates = tree.paths(), dict(map(_template, columns))
    own = templates.pop("image", "{dir}/{name}")
    if not templates or len(templates) + (f"image={own}" in columns) < len(columns):
        raise _senseless(" --field ".join(columns))
    parts = _parts_of_paths(files, own)
    named = pa.concat_arrays([_filled(template, parts) for template in templates.values()])
    is_first = pc.and_(pc.equal(_filled(own, parts), files), pc.invert(pc.is_in(files, named)))
    firsts = files.filter(pc.fill_null(is_first, False))
    parts = _parts_of_paths(firsts, own)
    there = pa.concat_arrays([files, tree.other_paths()])
    blobs = {}
    for name, template in templates.items():
        wanted = _filled(template, parts)
        blobs[name] = found = _where(pc.is_in(wanted, there), wanted)
        if found.null_count == len(found):
            first = f" ({wanted[0]} for {firsts[0]})" if len(firsts) else ""
            raise SourceError(
                f"no file that --field {name}={template} names is in {path}{first}",
                expected="paths relative to it; {stem}, {name} and {dir} are those of the image",
                next_step="Correct the template",
            )
        _refuse_collisions(path, firsts.filter(found.is_valid()), found.drop_null())
    has_any = _in_folders_with(firsts, blobs.values())
    firsts, blobs = firsts.filter(has_any), {name: found.filter(has_any) for name, found in blobs.items()}
    lost = files.filter(pc.invert(pc.is_in(files, pa.concat_arrays([firsts, *blobs.values()]))))
    names = pc.replace_substring_regex(firsts, rf"(?i)(^|/)({'|'.join(sorted(WHOLES))})/", r"\1")
    note = ", ".join(f"{template} is {name}" for name, template in templates.items())
    return Partners(firsts, names, blobs, lost, lost, note, "by --field")


def _in_folders_with(firsts: pa.StringArray, blobs: Iterable[pa.StringArray]) -> pa.BooleanArray:
    """Return a mask of the files in a folder where some file has a partner, or in a test split."""
    folders = folders_of(firsts)
    known = [folders.filter(found.is_valid()) for found in blobs]
    names = folders.unique().to_pylist()
    tests = [name for name in names if "test" in map(canonical_split, name.split("/"))]
    return pc.is_in(folders, pa.concat_arrays([*known, column(tests, pa.string())]))


def _template(text: str) -> tuple[str, str]:
    name, equals, template = text.partition("=")
    known = parts_of(template)[1::2]
    is_clear = {*known} - {"dir"} and len({*known}) == len(known) and all(map(str.isidentifier, known))
    if not equals or not is_clear:
        raise _senseless(text)
    return name, template


def _senseless(text: str) -> UsageError:
    return UsageError(
        f"--field is {text}, for a folder without a table",
        expected="a further file of each image, such as mask=masks/{stem}.png, where {stem}, {name} and "
        "{dir} are the image's name without suffix, its name and its folder; also image=images/{name}, or "
        "image=a/{id}_0.png with any other name in both",
        next_step="Correct it, or give a table of labels too (--labels)",
    )


def _parts_of_paths(files: pa.StringArray, own: str) -> dict[str, pa.StringArray]:
    """Return what a template may name of each file, by name.

    These are the file's name, stem and folder, and the texts that other names in the template `own` stand
    for.
    """
    name = file_names_of(files)
    known = {"name": name, "stem": stems_of(name), "dir": pc.utf8_rtrim(folders_of(files), characters="/")}
    texts = parts_of(own)
    if not {*texts[1::2]} - known.keys():
        return known
    groups = (re.escape(part) if n % 2 == 0 else rf"(?P<{part}>.+)" for n, part in enumerate(texts))
    found = pc.extract_regex(files, f"(?s)^{''.join(groups)}$")
    return {**known, **{part: pc.struct_field(found, part) for part in texts[1::2] if part not in known}}


def _filled(template: str, parts: Mapping[str, pa.StringArray]) -> pa.StringArray:
    """Return the path that a template names for each file. It is null for a file that lacks a part."""
    if not parts.keys() >= {*parts_of(template)[1::2]}:
        raise _senseless(template)
    found = filled(template, parts.__getitem__)
    found = pc.replace_substring_regex(pc.replace_substring_regex(found, r"(^|/)(\./)+", r"\1"), r"^/+", "")
    for _ in range(template.count("../")):
        found = pc.replace_substring_regex(found, r"[^/]+/\.\./", "", max_replacements=1)
    return found


def _where(condition: pa.BooleanArray, texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(condition, texts, scalar(None))


def _rows(texts: pa.StringArray, text: str) -> Rows:
    return np.flatnonzero(as_mask(pc.is_in(texts, column([text], pa.string()))))


def _take(texts: pa.StringArray, rows: Rows) -> pa.StringArray:
    return texts.take(from_numpy(rows))


WHOLES = WHOLE | PAIRS.keys()
"""Words in the names of folders that contain images."""

_UNIMPORTANT = frozenset({"jpeg", "jpg", "png", "class", "object"})


def sites(paths: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Find the folders of first files and the folders of additional files among other folders.

    Args:
        paths: All folders that contain files, each with a trailing slash.

    Returns:
        For each such folder, how the names of its samples begin, and the name of its field. The name of the
        field of first files is empty.
    """
    below: dict[str, dict[str, None]] = {}
    for above, path in chain.from_iterable(pairwise(folders_above(path)) for path in paths):
        below.setdefault(above, {})[path[len(above) : -1]] = None
    found: dict[str, tuple[str, str]] = {}
    filled = {*paths}
    for prefix, names in below.items():
        for whole, parts in _fields_by_folder([*names]).items():
            keeps_name = canonical_split(whole) or len(names) > 1 + len(parts)
            name = f"{prefix}{whole}/" if keeps_name else prefix
            found[f"{prefix}{whole}/"] = (name, "")
            for part, of in parts.items():
                found[_past_wrappers(f"{prefix}{part}/", f"{prefix}{whole}/", below, filled)] = (name, of)
    return found


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that contain `path`, from the root down to the folder itself.

    The root is the empty text. Each other folder has a trailing slash.
    """
    yield ""
    for match in re.finditer("/", path):
        yield path[: match.end()]


def _past_wrappers(part: str, whole: str, below: Mapping[str, Iterable[str]], filled: set[str]) -> str:
    """Follow a folder of parts that only wraps another folder, as in `annotations/trimaps/`.

    Return the folder that contains the files.
    """
    while part not in filled and len(inside := [*below[part]]) == 1 and inside[0] not in below.get(whole, ()):
        part += f"{inside[0]}/"
    return part


def _fields_by_folder(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the fields of folders of parts, grouped by the folder of images that they belong to.

    Return nothing if a folder of parts could belong to several folders.
    """
    found: dict[str, dict[str, str]] = {}
    for whole in filter(_is_whole, names):
        fields = {name: _field_of(name, whole) for name in names if name != whole}
        several = [*fields.values()]
        parts = {
            name: field if several.count(field) == 1 else field_name("_".join(words_of(name)))
            for name, field in fields.items()
            if field
        }
        if any(parts.keys() & other for other in found.values()):
            return {}
        if parts:
            found[whole] = parts
    return found


def _is_whole(name: str) -> bool:
    found = {*words_of(name)}
    return bool(found & WHOLES or canonical_split(name)) and not found & (PARTS | NEGATIONS)


def is_part(name: str) -> bool:
    """Check by its name whether a folder or a file holds parts of samples."""
    found = {*words_of(name)}
    return bool(found & PARTS) and not found & NEGATIONS


def _field_of(name: str, whole: str) -> str:
    """Return the field of the folder `name` if it has parts of what the folder `whole` contains.

    Return an empty text otherwise.
    """
    own, theirs = words_of(name), words_of(whole)
    known = PARTS.union(*(PAIRS.get(word, ()) for word in theirs))
    marks = [word for word in own if word in known]
    rest = [word for word in own if word not in known | _UNIMPORTANT]
    if not marks or NEGATIONS.intersection(own):
        return ""
    is_same = rest == [word for word in theirs if word not in WHOLES | _UNIMPORTANT]
    return field_name(singular(marks[-1])) if is_same else ""


def singular(word: str) -> str:
    """Return the singular of a word: `mask` for `masks`, and `box` for `boxes`."""
    return word[:-2] if word.endswith("xes") else word.removesuffix("s")


def field_name(name: str) -> str:
    """Turn a name into the name of a field. Append `_image` if the name is reserved for something else."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return f"{name}_image" if name in RESERVED else name


def place(path: str, known: Mapping[str, tuple[str, str]]) -> tuple[str | None, str | None]:
    """Return how the names of the samples in a folder begin, and their field.

    Return None for both if unknown.

    A folder of a split that contains neither counts as a folder of first files.

    Args:
        path: The folder.
        known: The return value of `sites`.
    """
    for above in folders_above(path):
        if found := known.get(above):
            return found[0] + path[len(above) :], found[1]
    names = path.split("/")[:-1]
    is_split = any(map(canonical_split, names)) and not any(map(is_part, names))
    return (path, "") if is_split else (None, None)
