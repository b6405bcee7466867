"""Tar shards in the layout of webdataset, with an index for random access beside each.

`x.tar` is one file, `x.tars` a folder of `shard-000000.tar`, … . Every program that reads tar reads them:
webdataset, DALI, tarfile, `tar xf`. Compressed tars are sources only: `open` refuses them, since no sample of
them can be read at random.

How a sample is found: `LocateShards` opens the index of each shard. The `TarTable` of `index` finds shard and
row, and its columns say where the files of the sample begin and how long they are. They come from the index
file beside the tar (`index.load`), or from a scan of its headers (`archive.index`, `fields.read`). If no
member of a tar has a label, class folders give the labels, or tars inside the tar. Readers never write files.

The traps: most tools take a tar that was cut at a block boundary for a complete one. `open` refuses it, with
or without the index. webdataset streams shards and never seeks, which is right for object stores and disks;
random access pays off in memory, on node-local flash and for staged data. And shards are tars too: training
on the "classes" `00000` and `00001` gives nothing. So a tar is a class only if its name can be that of a
class (ImageNet's `n01440764.tar`, `cat.tar`) and it contains only images; in all other cases the user must
say so. Notebook 05 teaches this format, and reads ImageNet's tar of tars.

Source of the layout: webdataset, "The WebDataset Format" (members of a sample share a stem).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from smallfiles.errors import DamagedFileError, FormatError, SourceError, first_few, raised_as
from smallfiles.formats.bytefile import Access, damaged
from smallfiles.formats.reader import TableReader
from smallfiles.formats.tar import archive, fields, grouping, index
from smallfiles.formats.tar.fields import TarSamples
from smallfiles.formats.tar.grouping import DATA_SUFFIXES
from smallfiles.formats.tar.shards import NAME, plan_shards, shard_name, write_folder, write_shard
from smallfiles.formats.tar.shards import TarOptions as Options
from smallfiles.formats.tar.streams import cannot_read, cannot_seek
from smallfiles.manifest.class_folders import Labelled, by_folder
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.samples import Packed, Sample, Schema
from smallfiles.storage import ReadingPool, answered

__all__ = ["NAME", "Options", "open", "plan_shards", "shard_name", "write", "write_shard"]


_FOLDER = re.compile(r"\.tars(\.|$)")


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Pack samples into one tar, or into a folder of shards if the name of `out` ends in `.tars`.

    One open and one long sequential read replace a thousand small ones, which is what a parallel file
    system is built for.

    Args:
        samples: The samples, in the order in which they are stored. Their keys are unique.
        out: A file or folder that does not exist yet.
        schema: What is packed.
        options: How to write.
        digest: Whether to write content digests beside the files.

    Returns:
        What was written.

    Raises:
        OutputExistsError: `out` exists.
        FormatError: A sample cannot be stored in the way that `options` and `schema` require.
    """
    options = options or Options()
    if _FOLDER.search(out.name):
        return write_folder(samples, out, schema=schema, options=options, digest=digest)
    return write_shard(samples, out, schema=schema, options=options, digest=digest)


def open(
    path: Path | str,
    access: Access = "auto",
    *,
    suffixes: tuple[str, ...] = DATA_SUFFIXES,
    unlabelled: bool = False,
) -> TableReader:
    """Open a tar or a folder of tars for random access, with or without indexes.

    Args:
        path: A tar, or a folder of tars, that this package or another program wrote.
        access: `mmap`, `pread`, or `auto` (mmap, except on parallel file systems).
        suffixes: Suffixes of the members that are samples (lower case with the dot). This applies only to
            tars of other programs.
        unlabelled: Whether to ignore targets and give each sample the label -1. This applies only to tars of
            other programs.
    """
    return TableReader(Path(path), LocateShards(access, suffixes, unlabelled))


_WNID = re.compile(r"n\d{8}")
_COUNTED = re.compile(r"[0-9a-f-]{16,}|\d+")  # hashes too

_NUMBERED = re.compile(r"shard-(\d{6,})\.tar")
_COMPRESSED = (".tar.gz", ".tar.zst", ".tgz")


def label(
    files: Files,
    annotated: Sequence[TarSamples],
    split: str | None = None,
    *,
    named_by_tars: bool = False,
    strict: bool = False,
) -> Labelled:
    """Label the samples of archives by their folders.

    Args:
        files: The names of the files in all archives.
        annotated: The archives. None of them has targets.
        split: The requested split. If it is None, the only split is used, or train.
        named_by_tars: Whether the user said that each tar, and each folder, is a class.
        strict: Whether to fail instead of ignoring a sample.

    Returns:
        The labels. Each is -1 if there are no folders.

    Raises:
        SourceError: Other members may be the targets, the tars may be shards, the folders contain parts of
            samples, several images share a stem, or the split does not exist.
    """
    path, more = files.where, _unknown(annotated)
    tars = sorted({name for one in annotated for name in one.data.inside})
    shards = len(tars) > 1 and not _are_names(tars)
    found = (
        None
        if shards and not named_by_tars
        else by_folder(files, split, strict=strict, trusted=named_by_tars)
    )
    tars = tars if found is None else [name for name in tars if name in found.classes]
    if found is None and _are_pictured(annotated):
        return by_folder(files, split, no_classes=True, strict=strict)
    if found is None or (tars and not named_by_tars and (more or len(found.classes) < 2)):
        why = f"{more} beside the images" if more else "nothing that labels the images"
        raise SourceError(
            f"{path} holds {plural(len(tars), 'tar')} ({first_few(tars, len(tars), 3)}) with {why}",
            expected="a .cls, .txt or .json member for each image, or tars of only images that are named "
            "as classes",
            next_step="If each tar is one class, say so with --source tarball; if these are shards without "
            "labels, take them with --unlabelled",
        )
    if not found.classes and found.split != "test":
        refuse_unknown(annotated, path)
    if found.classes and (rivals := next((one for one in annotated if one.rivals), None)):
        with raised_as(FormatError, SourceError):  # each may be a picture of the class
            raise grouping.shared_stem(rivals.data, rivals.rivals)
    return found


def refuse_unknown(annotated: Sequence[TarSamples], path: Path) -> None:
    """Raise SourceError if members without a known meaning may be the targets of the samples."""
    further = not _are_pictured(annotated)
    if kinds := [kind for one in annotated for kind in sorted(one.beside if further else one.unknown)]:
        found = list(dict.fromkeys(kinds))
        raise SourceError(
            f"{path} has {first_few(found, len(found), 3)} beside its images, and none is a known target",
            expected="a class number in a .cls, captions in a .txt, or either in a .json",
            next_step="Number the classes in a manifest and pack that with --root and this tar, or take the "
            "images without targets (--unlabelled)",
        )


def ignored_folders(annotated: Sequence[TarSamples], kind: str, path: Path) -> tuple[str, ...]:
    """Return a note on folders that look like classes but are ignored because captions are the targets.

    Return an empty tuple if there are no such folders.
    """
    if kind == "label" or any(one.data.is_ours for one in annotated):
        return ()
    found = by_folder(Files(path, pa.concat_arrays([one.data.names for one in annotated])), trusted=True)
    tars = {name for one in annotated for name in one.data.inside}
    folders = [name for name in found.classes if name not in tars]
    if len(folders) < 2:
        return ()
    return (f"captions are the targets: the folders {first_few(folders, len(folders))} are not classes",)


def _are_pictured(annotated: Sequence[TarSamples]) -> bool:
    """Check whether each sample has an additional picture, such as a mask.

    Then it does not need another target.
    """
    return all(one.pictured for one in annotated if len(one.data.names))


def _unknown(annotated: Sequence[TarSamples]) -> str:
    kinds = {kind for one in annotated for kind in one.beside}
    kinds |= {"json" for one in annotated if any(one.metas)}
    return first_few(sorted(kinds), len(kinds), 3)


def _are_names(tars: Sequence[str]) -> bool:
    """Check whether the names of tars can be names of classes. Names of shards differ only in a number."""
    kinds = {_COUNTED.sub("#", name) for name in tars}
    return all(map(_WNID.fullmatch, tars)) or len(kinds) > 1 or not any("#" in kind for kind in kinds)


class LocateShards:
    """Opens a tar or a folder of shards, and keeps the indexes that it made, because a scan is not cheap.

    Args:
        access: `mmap`, `pread`, or `auto` (mmap, except on parallel file systems).
        suffixes: Suffixes of the members that are samples (lower case with the dot). This applies only to
            tars of other programs.
        unlabelled: Whether to ignore targets. This applies only to tars of other programs.
    """

    def __init__(self, access: Access, suffixes: tuple[str, ...], unlabelled: bool) -> None:
        self._access, self._suffixes, self._unlabelled = access, suffixes, unlabelled
        self._scanned: dict[Path, index.Index] = {}
        self._classes: tuple[str, ...] = ()
        self._member_suffixes: tuple[str, ...] = ()

    def __call__(self, path: Path) -> index.TarTable:
        """Open one tar, or a folder of shards.

        Raises:
            FormatError: A tar is damaged, or the shards do not belong together.
        """
        paths = _shard_paths(path)
        if len(paths) > 4:  # on a parallel file system each open is a request
            with ReadingPool(16, "index") as pool:
                found = list(pool.map(self._index, paths))
        else:
            found = [self._index(each) for each in paths]
        annotated, notes = fields.in_common([one for one in found if isinstance(one, fields.TarSamples)])
        if annotated:
            kind, said = fields.target_kind(annotated, path)
            notes += said
            if not (self._unlabelled or any(any(one.kinds) or one.data.is_ours for one in annotated)):
                annotated, self._classes, more = _by_folder(annotated, path)
                notes += more
            self._member_suffixes = tuple(sorted({word for one in annotated for word in one.member_suffixes}))
            notes += ignored_folders(annotated, kind, path)
            notes += () if self._unlabelled else fields.unlabelled(annotated, kind)
        for one in annotated:
            self._scanned[one.data.path] = index.of_annotated(one, kind, self._access)
        indexes = [
            self._scanned[one.data.path] if isinstance(one, fields.TarSamples) else one for one in found
        ]
        if len(annotated) > 1:
            _refuse_repeated(annotated, path)
        if len({tuple(sorted(each.fields.items())) for each in indexes if len(each.keys)}) > 1:
            raise _mixed(path, indexes)
        _warn(path, annotated, notes)
        shards = index.Shards(paths, indexes, self._access)
        facts = {"access": self._access, "member_suffixes": list(self._member_suffixes)}
        table = index.TarTable(path, shards, self._classes, indexed=not self._scanned, **facts)
        table.unread = [one.others for one in annotated if one.others]
        return table

    def _index(self, path: Path) -> index.Index | fields.TarSamples:
        try:
            file_bytes = answered(path, path.stat).st_size
        except OSError as error:
            raise cannot_read(path, error) from error
        try:  # asking first whether the index exists would cost a request for each shard
            found = index.load(path, self._access)
            index.check_size(path, file_bytes, found)
            return found
        except DamagedFileError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        if path in self._scanned:
            return self._scanned[path]
        scanned = archive.index(path, at_random=True)
        return fields.read(scanned, self._suffixes, targets=not self._unlabelled)


def _warn(path: Path, annotated: list[fields.TarSamples], notes: tuple[str, ...]) -> None:
    """Warn once about everything that is unusual in tars of other programs."""
    more = [note for one in annotated for note in one.data.notes + one.notes]
    more += [note for one in annotated[:1] for note in one.further_files()]
    if every := dict.fromkeys([*notes, *more]):
        warnings.warn(f"{path}: {'; '.join(every)}", stacklevel=6)


def _mixed(path: Path, indexes: list[index.Index]) -> FormatError:
    """Return the error for shards that have different fields."""
    found = [sorted(each.fields.items()) for each in indexes if len(each.keys)]
    told = [", ".join(f"{name} ({kind})" for name, kind in each) or "none" for each in found]
    shown = " and ".join([*dict.fromkeys(told)][:2])
    return FormatError(
        f"{path} holds shards with different fields: {shown}",
        expected="shards of one data set",
        next_step="Move them into a folder for each set",
    )


def _by_folder(
    annotated: list[fields.TarSamples], path: Path
) -> tuple[list[fields.TarSamples], tuple[str, ...], tuple[str, ...]]:
    """Label shards without targets by the class folders in all of them, as sources do.

    Returns:
        The labelled samples, the names of the classes, and notes for the user. If there are no class folders,
        the samples are returned unlabelled.
    """
    names = pa.concat_arrays([one.data.names for one in annotated])
    with raised_as(SourceError, FormatError):
        found = label(Files(path, names, classes_flag="pack --source tarball"), annotated)
    if not found.classes:
        return annotated, (), ()
    labels, kept, start = found.labels.tolist(), [], 0
    for one in annotated:
        keep = found.keep[start : start + len(one.data.names)]
        own, labels = labels[: keep.sum()], labels[keep.sum() :]
        kept.append(replace(one.select(keep), labels=own, captions=[None] * len(own)))
        start += len(keep)
    return kept, found.classes, found.notes


def _refuse_repeated(annotated: list[fields.TarSamples], path: Path) -> None:
    """Refuse a key that occurs in two shards, because it would name two samples."""
    keys = pa.concat_arrays([one.data.names for one in annotated])
    again = archive.repeated(keys)
    if len(again):
        raise FormatError(
            f"{path} has {plural(len(again), 'key')} in more than one shard: {first_few(again, len(again))}",
            expected="each key once in a set",
            next_step="Give the samples unique names, or pack the shards one by one",
        )


def _shard_paths(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    try:
        shown = sorted(p for p in path.iterdir() if p.name[0] != ".")
    except OSError as error:
        raise cannot_read(path, error) from error
    if compressed := [p for p in shown if p.name.endswith(_COMPRESSED)]:
        raise cannot_seek(compressed[0])
    paths = [p for p in shown if p.name.endswith(".tar")]
    if not paths:
        raise FormatError(
            f"{path} holds no tar files",
            expected="shards such as shard-000000.tar",
            next_step="Check the path, or make shards with: smallfiles pack",
        )
    numbers = [int(match[1]) for p in paths if (match := _NUMBERED.fullmatch(p.name))]
    if numbers and len(numbers) != numbers[-1] - numbers[0] + 1:
        missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
        raise damaged(
            path,
            f"it lacks the shards {first_few(missing, len(missing))}",
            f"all shards from {numbers[0]} to {numbers[-1]}, each once",
            "Copy or pack the missing shards again",
        )
    return paths
