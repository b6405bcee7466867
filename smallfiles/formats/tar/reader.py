"""Read samples at random from one tar or a folder of shards.

With its index, a shard opens in well under a millisecond, and a read is one slice of a memory map. Without
one (tars of other programs) all headers are read once; readers never write files. Compressed shards are
refused. If no member of a tar has a label, class folders give the labels, or tars inside the tar.

The traps: webdataset streams shards and never seeks, which is right for object stores and disks; random
access pays off in memory, on node-local flash and for staged data. And shards are tars too: training on the
"classes" `00000` and `00001` gives nothing. So a tar is a class only if its name can be that of a class
(ImageNet's `n01440764.tar`, `cat.tar`) and it contains only images; in all other cases the user must say so.
Notebook 05 teaches the layout, and reads ImageNet's tar of tars.
"""

from __future__ import annotations

import contextlib
import re
import resource
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import from_numpy
from smallfiles.errors import FormatError, SourceError, first_few, raised_as
from smallfiles.fields import META, TARGETS
from smallfiles.formats.bytefile import Access, ByteFile, damaged
from smallfiles.formats.table import ByteSource, Column, Extents, Place, SampleTable
from smallfiles.formats.tar import archive, fields, grouping, index
from smallfiles.formats.tar.fields import Annotated
from smallfiles.formats.tar.shards import NAME
from smallfiles.formats.tar.streams import cannot_read, cannot_seek
from smallfiles.manifest.class_folders import Labelled, by_folder
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.storage import ReadingPool, answered

_WNID = re.compile(r"n\d{8}")
_COUNTED = re.compile(r"[0-9a-f-]{16,}|\d+")  # hashes too

_NUMBERED = re.compile(r"shard-(\d{6,})\.tar")
_COMPRESSED = (".tar.gz", ".tar.zst", ".tgz")
_MOST_OPEN_SHARDS = 128


def label(
    files: Files,
    annotated: Sequence[Annotated],
    split: str | None = None,
    *,
    named_by_tars: bool = False,
    strict: bool = False,
) -> Labelled:
    """Label the samples of archives by their folders.

    Args:
        files: The names in all archives.
        annotated: The archives; none has targets.
        split: The requested split; None takes the only one, or train.
        named_by_tars: Whether the user said that each tar, and each folder, is a class.
        strict: Ignore no sample.

    Returns:
        Labels, -1 if there are no folders.

    Raises:
        SourceError: Other members may be the targets, the tars may be shards, the folders contain parts
            of samples, several images share a stem, or the split is not there.
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


def refuse_unknown(annotated: Sequence[Annotated], path: Path) -> None:
    """Raise SourceError if members without a known meaning may be the targets of the samples."""
    further = not _are_pictured(annotated)
    if kinds := [kind for one in annotated for kind in sorted(one.beside if further else one.unknown)]:
        found = list(dict.fromkeys(kinds))
        raise SourceError(
            f"{path} has {first_few(found, len(found), 3)} beside its images, which is no target here",
            expected="a class number in a .cls, captions in a .txt, or either in a .json",
            next_step="Number the classes in a manifest and pack that with --root and this tar, or take the "
            "images without targets (--unlabelled)",
        )


def ignored_folders(annotated: Sequence[Annotated], kind: str, path: Path) -> tuple[str, ...]:
    """A note on folders that look like classes although captions are the targets."""
    if kind == "label" or any(one.data.is_ours for one in annotated):
        return ()
    found = by_folder(Files(path, pa.concat_arrays([one.data.names for one in annotated])), trusted=True)
    tars = {name for one in annotated for name in one.data.inside}
    folders = [name for name in found.classes if name not in tars]
    if len(folders) < 2:
        return ()
    return (f"captions are the targets: the folders {first_few(folders, len(folders))} are not classes",)


def _are_pictured(annotated: Sequence[Annotated]) -> bool:
    """Whether each sample has a further picture, a mask for example: then it need not have another target."""
    return all(one.pictured for one in annotated if len(one.data.names))


def _unknown(annotated: Sequence[Annotated]) -> str:
    kinds = {kind for one in annotated for kind in one.beside}
    kinds |= {"json" for one in annotated if any(one.metas)}
    return first_few(sorted(kinds), len(kinds), 3)


def _are_names(tars: Sequence[str]) -> bool:
    """Whether the names of tars can be those of classes: names of shards differ only in a number."""
    kinds = {_COUNTED.sub("#", name) for name in tars}
    return all(map(_WNID.fullmatch, tars)) or len(kinds) > 1 or not any("#" in kind for kind in kinds)


def _most_open() -> int:
    """Shards that one process keeps open: at most a quarter of its descriptors."""
    return max(2, min(_MOST_OPEN_SHARDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))


class Shards:
    """What one process has opened: the indexes of all shards, and the data of those read last."""

    def __init__(self, paths: list[Path], indexes: list[index.Index], access: Access) -> None:
        self.most_open = _most_open()
        # A view of a mapping keeps a descriptor of its shard, and a batch may need a thousand shards.
        self.spread = access == "auto" and len(paths) > self.most_open
        self.paths, self.indexes, self._access = paths, indexes, "pread" if self.spread else access
        self.starts = [0, *accumulate(len(found.keys) for found in indexes)]
        self.first = next((found for found in indexes if len(found.keys)), indexes[0])
        has_meta = any(found.values[META].null_count < len(found.keys) for found in indexes)
        values = self.first.values.items()
        self.kinds = {name: each.type for name, each in values if name != META or has_meta}
        self._stores: dict[int, ByteSource] = {}

    def place(self, position: int) -> tuple[int, int]:
        """Shard and row of a sample."""
        number = bisect_right(self.starts, position) - 1
        return number, position - self.starts[number]

    def store(self, number: int) -> ByteSource:
        """The data of a shard, opened at first use."""
        store = self._stores.get(number)
        if store is None:
            found = self.indexes[number]
            store = ByteFile(self.paths[number], self._access)
            index.check_bound(store, found)
            if len(self._stores) >= self.most_open:
                with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread did
                    self._stores.pop(next(iter(self._stores)))
            self._stores[number] = store
        return store

    def span(self, position: int, field: str = "") -> tuple[int, int, int]:
        """Return shard, first byte, and end of the file of one sample and field; the default has no name."""
        number, row = self.place(position)
        places = self.indexes[number].blobs[field]
        start = places.offsets.item(row)
        return number, start, start + places.sizes.item(row)


class Members(Extents):
    """The members of one field of all shards.

    Args:
        shards: The shards.
        field: Its name in the indexes; empty for the default field.
        suffix: Of the members.
    """

    def __init__(self, shards: Shards, field: str, suffix: str = "") -> None:
        super().__init__(suffix)
        self._shards, self._field = shards, field

    def place(self, row: int) -> Place:
        """Return where the member of one sample is.

        Raises:
            DamagedFileError: The shard ends before.
        """
        shards = self._shards
        number, start, stop = shards.span(row, self._field)
        store = shards.store(number)
        if not 0 <= start <= stop <= store.size:
            key = shards.indexes[number].keys[row - shards.starts[number]]
            what = f"it lacks bytes {start:,} to {stop:,}, where its index has {key}"
            raise damaged(shards.paths[number], what)
        return store, start, stop

    def size(self, row: int) -> int:
        """Return the number of bytes, from the index: the shard is not opened."""
        _, start, stop = self._shards.span(row, self._field)
        return stop - start

    def span(self, row: int) -> tuple[Path, int, int] | None:
        """Return file and byte range."""
        number, start, stop = self._shards.span(row, self._field)
        return self._shards.paths[number], start, stop

    def total_bytes(self) -> int:
        shards = self._shards
        pairs = zip(shards.paths, shards.indexes, strict=True)
        return sum(index.field_bytes(path, found, self._field) for path, found in pairs if len(found.keys))


class TarTable(SampleTable):
    """The samples of all shards.

    Args:
        path: The tar, or the folder of shards.
        shards: What was opened.
        classes: From the folders in tars of other programs.
        facts: More for `info`.
    """

    format = NAME
    outlives_fork = True

    def __init__(self, path: Path, shards: Shards, classes: tuple[str, ...], **facts: Any) -> None:
        blobs = {name: Members(shards, name, each.suffix) for name, each in shards.first.blobs.items()}
        size = sum(found.file_bytes for found in shards.indexes)
        super().__init__(path, shards.starts[-1], blobs, shards.indexes[0].provenance, size)
        self.shards, self._classes, self._facts = shards, classes, facts

    @property
    def classes(self) -> tuple[str, ...]:
        return super().classes or self._classes

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        return self.shards.kinds

    def load(self, name: str) -> pa.ChunkedArray:
        indexes = self.shards.indexes
        if name == "key":
            return pa.chunked_array([found.keys for found in indexes])
        return pa.chunked_array(
            [found.values[name] for found in indexes if len(found.keys)], self.kinds[name]
        )

    def column(self, name: str) -> Column:
        return super().column(name) if name == "key" else self.load(name)  # over the memory of the indexes

    def key(self, row: int) -> str:
        number, row = self.shards.place(row)
        return str(self.shards.indexes[number].keys[row].as_py())

    def take(self, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Column]:
        """Return some rows, shard by shard: Arrow would first join the columns of all."""
        shards, order = self.shards, np.argsort(rows, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        cuts = np.searchsorted(rows[order], shards.starts)
        parts = [
            (found.values, from_numpy(rows[order[first:last]] - start))
            for found, start, first, last in zip(shards.indexes, shards.starts, cuts, cuts[1:], strict=False)
            if first < last
        ]
        some = {name: [values[name].take(own) for values, own in parts] for name in names}
        nothing = {name: shards.first.values[name].slice(0, 0) for name in names}
        return {name: pa.concat_arrays([nothing[name], *some[name]]).take(from_numpy(back)) for name in names}

    def parts(self, rows: list[int]) -> list[list[int]]:
        """Divide where there are very many shards: each opens one in addition to those that are kept."""
        few = max(1, self.shards.most_open // 8) if self.shards.spread else max(1, len(rows))
        return [rows[start : start + few] for start in range(0, len(rows), few)]

    def shard_sizes(self) -> tuple[int, ...]:
        return tuple(len(found.keys) for found in self.shards.indexes)

    def about(self) -> dict[str, Any]:
        return {
            "layout": "webdataset",
            "target": next(name for name in TARGETS if name in self.kinds),
            "shards": len(self.shards.paths),
            **self._facts,
        }


class Locate:
    """Opens shards; it keeps the indexes that it made, because a scan is not cheap.

    Args:
        access: `mmap`, `pread`, or `auto` (mmap, except on parallel file systems).
        suffixes: In tars of other programs: which members are samples (lower case with the dot).
        unlabelled: In tars of other programs: ignore targets.
    """

    def __init__(self, access: Access, suffixes: tuple[str, ...], unlabelled: bool) -> None:
        self._access, self._suffixes, self._unlabelled = access, suffixes, unlabelled
        self._scanned: dict[Path, index.Index] = {}
        self._classes: tuple[str, ...] = ()
        self._member_suffixes: tuple[str, ...] = ()

    def __call__(self, path: Path) -> TarTable:
        """Open one tar, or a folder of shards.

        Raises:
            FormatError: It is damaged, or the shards do not belong together.
        """
        paths = _shard_paths(path)
        if len(paths) > 4:  # on a parallel file system each open is a request
            with ReadingPool(16, "index") as pool:
                found = list(pool.map(self._index, paths))
        else:
            found = [self._index(each) for each in paths]
        annotated, notes = fields.in_common([one for one in found if isinstance(one, fields.Annotated)])
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
            self._scanned[one.data.path] if isinstance(one, fields.Annotated) else one for one in found
        ]
        if len(annotated) > 1:
            _refuse_repeated(annotated, path)
        if len({tuple(sorted(each.fields.items())) for each in indexes if len(each.keys)}) > 1:
            raise _mixed(path, indexes)
        _warn(path, annotated, notes)
        shards = Shards(paths, indexes, self._access)
        facts = {"access": self._access, "member_suffixes": list(self._member_suffixes)}
        table = TarTable(path, shards, self._classes, indexed=not self._scanned, **facts)
        table.unread = [one.others for one in annotated if one.others]
        return table

    def _index(self, path: Path) -> index.Index | fields.Annotated:
        try:
            file_bytes = answered(path, path.stat).st_size
        except OSError as error:
            raise cannot_read(path, error) from error
        if answered(path, index.index_path(path).exists):
            found = index.load(path, self._access)
            index.check_size(path, file_bytes, found)
            return found
        if path in self._scanned:
            return self._scanned[path]
        scanned = archive.index(path, at_random=True)
        return fields.read(scanned, self._suffixes, targets=not self._unlabelled)


def _warn(path: Path, annotated: list[fields.Annotated], notes: tuple[str, ...]) -> None:
    """Warn once about everything that is odd in tars of other programs."""
    more = [note for one in annotated for note in one.data.notes + one.notes]
    more += [note for one in annotated[:1] for note in one.further_files()]
    if every := dict.fromkeys([*notes, *more]):
        warnings.warn(f"{path}: {'; '.join(every)}", stacklevel=6)


def _mixed(path: Path, indexes: list[index.Index]) -> FormatError:
    """The error for shards with different further fields."""
    found = [sorted(each.fields.items()) for each in indexes if len(each.keys)]
    told = [", ".join(f"{name} ({kind})" for name, kind in each) or "none" for each in found]
    shown = " and ".join([*dict.fromkeys(told)][:2])
    return FormatError(
        f"{path} holds shards with different fields: {shown}",
        expected="shards of one data set",
        next_step="Move them into a folder for each set",
    )


def _by_folder(
    annotated: list[fields.Annotated], path: Path
) -> tuple[list[fields.Annotated], tuple[str, ...], tuple[str, ...]]:
    """Label shards without targets by the class folders in all of them, as sources do.

    Returns:
        The samples, the classes, and notes; all unlabelled if there are no such folders.
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


def _refuse_repeated(annotated: list[fields.Annotated], path: Path) -> None:
    """Refuse a key that is in two shards, since it would name two samples."""
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
