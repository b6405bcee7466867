"""Find samples with equal bytes: pictures that a set holds twice, or that training and validation share.

    found = find(train, val)        found.shared        found.title(0)

A sample is compared by the bytes of its first file. A model that was trained on a picture of the validation
set scores too well there, and no other check of the data shows why.

The trap: a picture that was scaled, cropped, or saved again has other bytes, so it is not found. Where
several pictures show one patient, only a split by patient separates them. Notebook 13 measures how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from smallfiles.arrays import column, from_numpy, one_chunk, scalar, to_numpy
from smallfiles.contact_sheet import COLUMNS, ROWS
from smallfiles.fields import further_files
from smallfiles.progress import plural, progress
from smallfiles.samples import UNLABELLED, Reader

Numbers: TypeAlias = npt.NDArray[np.int64]

_AT_ONCE = 64
"""Samples that are requested together, as in streams."""
_GROUPS_SHOWN, _SAMPLES_SHOWN = 10, 4


@dataclass(frozen=True)
class Duplicates:
    """Groups of samples with equal bytes.

    Args:
        readers: The set, and the one that it was compared with, if any.
        members: Numbers of the samples, group by group. Those of the second set follow those of the first.
        borders: Where each group begins in `members`, and where the last one ends.
        recorded: Whether the SHA-256 that packing recorded were compared, and no file was read.
    """

    readers: tuple[Reader, ...]
    members: Numbers
    borders: Numbers
    recorded: bool

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.borders) - 1

    @property
    def doubled(self) -> int:
        """Number of samples of the first set whose bytes another sample of it has, too."""
        return int(self._own[self._own > 1].sum())

    @property
    def shared(self) -> int:
        """Number of samples of the first set whose bytes a sample of the second one has, too."""
        return int(self._own[self._own < np.diff(self.borders)].sum())

    @property
    def _own(self) -> Numbers:
        """Number of samples of the first set in each group."""
        return _summed(self.members < len(self.readers[0]), self.borders[:-1])

    @cached_property
    def values(self) -> pa.Table:
        """The class and the stored split of each member, as texts; null where it has none."""
        places, tables, start = list[Numbers](), list[pa.Table](), 0
        for reader in self.readers:
            rows = self.members - start
            places.append(np.flatnonzero((rows >= 0) & (rows < len(reader))))
            tables.append(_values(reader, rows[places[-1]]))
            start += len(reader)
        return pa.concat_tables(tables).take(from_numpy(np.argsort(np.concatenate(places))))

    def mixed(self) -> dict[str, int]:
        """Count the groups with several labels, and with several splits, where the sets have them."""
        found = {}
        for name in self.values.column_names:
            texts, starts = one_chunk(self.values[name]), self.borders[:-1]
            codes = to_numpy(pc.fill_null(texts.dictionary_encode().indices.cast(pa.int64()), scalar(-1)))
            lowest = np.minimum.reduceat(np.where(codes < 0, len(codes), codes), starts)
            if texts.null_count < len(texts):
                found[name] = int((lowest < np.maximum.reduceat(codes, starts)).sum())
        return found

    def samples(self, group: int, most: int | None = None) -> list[tuple[Reader, int, dict[str, Any]]]:
        """Return the set, the number, and the facts of the samples of a group, of `most` at most."""
        found, first = list[tuple[Reader, int, dict[str, Any]]](), self.readers[0]
        for at in range(*self.borders[group : group + 2].tolist())[:most]:
            row = int(self.members[at])
            reader, row = (first, row) if row < len(first) else (self.readers[1], row - len(first))
            facts = {"set": str(reader.path), "key": reader.key(row)} | self.values.slice(at, 1).to_pylist()[
                0
            ]
            found.append((reader, row, facts))
        return found

    def title(self, group: int) -> str:
        """Name the samples of a group in one line."""
        names = []
        for reader, _, facts in self.samples(group, _SAMPLES_SHOWN):
            about = ", ".join(filter(None, (facts["label"], facts["split"])))
            place = "" if reader is self.readers[0] else f"{reader.path.name}: "
            names.append(f"{place}{facts['key']}" + (f" ({about})" if about else ""))
        more = int(self.borders[group + 1] - self.borders[group]) - len(names)
        return " = ".join(names) + (f" = {more:,} more" if more else "")

    def drawn(self, seed: int) -> list[tuple[str, list[tuple[Reader, int]]]]:
        """Choose groups for a contact sheet; each has a title, and the set and the number of its samples."""
        chosen = np.sort(np.random.default_rng(seed).permutation(self.groups)[:ROWS]).tolist()
        return [(self.title(n), [each[:2] for each in self.samples(n, COLUMNS)]) for n in chosen]

    def record(self) -> dict[str, Any]:
        """Return the counts and all groups, JSON-ready."""
        counts = {name: getattr(self, name) for name in ("doubled", "shared", "recorded")}
        counts |= {f"groups_with_several_{name}s": count for name, count in self.mixed().items()}
        groups = [[facts for *_, facts in self.samples(number)] for number in range(self.groups)]
        return {"field": next(iter(self.readers[0].fields)), **counts, "groups": groups}

    def lines(self) -> Iterator[str]:
        """Say in sentences what was found, and name the first groups."""
        reader, *others = self.readers
        samples = f"{plural(len(reader), 'sample')} of {reader.path.name} have the same bytes as"
        yield f"{_number(self.doubled)} of {samples} another sample of this set"
        for other in others:
            theirs = f"a sample of {other.path.name} ({plural(len(other), 'sample')})"
            yield f"{_number(self.shared)} of {samples} {theirs}"
        if self.groups:
            several = [f", {count:,} of them with several {name}s" for name, count in self.mixed().items()]
            yield f"samples with the same bytes form {plural(self.groups, 'group')}{''.join(several)}"
        if further_files(reader.fields):
            yield f"only the first file of each sample was compared, the field {next(iter(reader.fields))}"
        if self.recorded:
            yield "the SHA-256 that were recorded while packing were compared, and no file was read"
        yield from (f"  {self.title(number)}" for number in range(min(self.groups, _GROUPS_SHOWN)))
        if self.groups > _GROUPS_SHOWN:
            yield f"  … and {self.groups - _GROUPS_SHOWN:,} more groups; --json names all of them"


def find(reader: Reader, other: Reader | None = None) -> Duplicates:
    """Find samples of a set whose bytes are there twice, or in another set, too.

    Args:
        reader: The set.
        other: Another one. Samples that only this one has twice are not reported.

    Returns:
        The groups, in the order of their first samples.

    Raises:
        SmallfilesError: A sample cannot be read.
    """
    readers = (reader,) if other is None else (reader, other)
    known = [hashes for each in readers if (hashes := _recorded(each)) is not None]
    recorded = len(known) == len(readers)
    hashes = np.concatenate(known if recorded else [_hashed(each) for each in readers])
    order = np.lexsort(hashes.T)
    starts = np.flatnonzero(np.append(True, (hashes[order[1:]] != hashes[order[:-1]]).any(1)))
    sizes = np.diff(np.append(starts, len(order)))
    wanted = np.repeat((sizes > 1) & (_summed(order < len(reader), starts) > 0), sizes)
    first = np.repeat(order[starts], sizes)[wanted]  # of its group, since the sort is stable
    by_first = np.argsort(first, kind="stable")
    borders = np.flatnonzero(np.diff(first[by_first], prepend=-1))
    return Duplicates(readers, order[wanted][by_first], np.append(borders, len(first)), recorded)


def _number(count: int) -> str:
    return f"{count:,}" if count else "none"


def _summed(chosen: npt.NDArray[np.bool_], starts: Numbers) -> Numbers:
    """Count the chosen entries from each start to the next one."""
    return np.add.reduceat(chosen.astype(np.int64), starts)


def _recorded(reader: Reader) -> npt.NDArray[np.uint64] | None:
    """Return the first 128 bits of each recorded SHA-256; None if a sample has none."""
    found = np.empty((len(reader), 2), np.uint64)
    for row in range(len(reader)):
        digest = reader.sha256(row)
        if digest is None:
            return None
        found[row] = np.frombuffer(bytes.fromhex(digest[:32]), np.uint64)
    return found


def _hashed(reader: Reader) -> npt.NDArray[np.uint64]:
    """Return 128 bits of xxh3 of each sample, read in stored order."""
    found = np.empty((len(reader), 2), np.uint64)
    with progress(len(reader), f"hash {reader.path.name}") as bar:
        for start in range(0, len(reader), _AT_ONCE):
            blobs = reader.read_many(range(start, min(start + _AT_ONCE, len(reader))))
            digests = b"".join(map(xxhash.xxh3_128_digest, blobs))
            found[start : start + len(blobs)] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
            bar.advance(len(blobs), bytes=sum(map(len, blobs)))
    return found


def _values(reader: Reader, rows: Numbers) -> pa.Table:
    """Return the class and the stored split of some samples, as texts."""
    found = {name: pa.nulls(len(rows), pa.string()) for name in ("label", "split")}
    if "label" in reader.fields:
        labels = to_numpy(one_chunk(reader.table(["label"], rows)["label"]))
        values, numbers = np.unique(labels, return_inverse=True)
        names = dict(enumerate(reader.classes)) | {UNLABELLED: None}
        texts = column([names.get(each, str(each)) for each in values.tolist()], pa.string())
        found["label"] = texts.take(from_numpy(numbers.astype(np.int64)))
    if reader.fields.get("split") == "string":
        found["split"] = one_chunk(reader.table(["split"], rows)["split"])
    return pa.table(found)
