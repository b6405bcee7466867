"""Find samples with equal bytes: pictures that a set holds twice, or that training and validation share.

    found = find(train, val)        found.shared        found.title(0)

A sample is compared by the bytes of its first file. A model that was trained on a picture of the validation
set scores too well there, and no other check of the data shows why.

The trap: a picture that was scaled, cropped, or saved again has other bytes, so it is not found. Where
several pictures show one patient, only a split by patient separates them. Notebook 13 measures how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
Texts: TypeAlias = pa.StringArray

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
        own = self._own
        return int(own[own > 1].sum())

    @property
    def shared(self) -> int:
        """Number of samples of the first set whose bytes a sample of the second one has, too."""
        own = self._own
        return int(own[own < np.diff(self.borders)].sum())

    @property
    def _own(self) -> Numbers:
        """Number of samples of the first set in each group."""
        return _summed(self.members < len(self.readers[0]), self.borders[:-1])

    @cached_property
    def labels(self) -> Texts:
        """The class of each member; null where it has none."""
        return self._texts(_labels)

    @cached_property
    def splits(self) -> Texts:
        """The stored split of each member; null where it has none."""
        return self._texts(_splits)

    def _texts(self, of: Callable[[Reader, Numbers], Texts]) -> Texts:
        """One text for each member, from the set that it is in."""
        places, texts, start = list[Numbers](), list[Texts](), 0
        for reader in self.readers:
            rows = self.members - start
            places.append(np.flatnonzero((rows >= 0) & (rows < len(reader))))
            texts.append(of(reader, rows[places[-1]]))
            start += len(reader)
        return pa.concat_arrays(texts).take(from_numpy(np.argsort(np.concatenate(places))))

    @property
    def _known(self) -> list[tuple[str, Texts]]:
        """The labels and the splits, if at least one member has them."""
        both = (("labels", self.labels), ("splits", self.splits))
        return [(name, texts) for name, texts in both if texts.null_count < len(texts)]

    def mixed(self, texts: Texts) -> int:
        """Count the groups whose members have several of these texts; a missing text differs from none."""
        codes = to_numpy(pc.fill_null(texts.dictionary_encode().indices.cast(pa.int64()), scalar(-1)))
        lowest = np.minimum.reduceat(np.where(codes < 0, len(codes), codes), self.borders[:-1])
        return int((lowest < np.maximum.reduceat(codes, self.borders[:-1])).sum())

    def samples(self, group: int, most: int | None = None) -> list[tuple[Reader, int, dict[str, Any]]]:
        """Return the set, the number, and the facts of the samples of a group.

        Args:
            group: Its number.
            most: Of this many samples at most.
        """
        start, stop = self.borders[group : group + 2].tolist()
        found = list[tuple[Reader, int, dict[str, Any]]]()
        for at in range(start, stop if most is None else min(stop, start + most)):
            row, first = int(self.members[at]), len(self.readers[0])
            reader, row = (self.readers[0], row) if row < first else (self.readers[1], row - first)
            facts = {"set": str(reader.path), "key": reader.key(row)}
            found.append(
                (reader, row, facts | {"label": self.labels[at].as_py(), "split": self.splits[at].as_py()})
            )
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
        counts: dict[str, Any] = {name: getattr(self, name) for name in ("doubled", "shared", "recorded")}
        counts |= {f"groups_with_several_{name}": self.mixed(texts) for name, texts in self._known}
        groups = [[facts for *_, facts in self.samples(number)] for number in range(self.groups)]
        return {"field": next(iter(self.readers[0].fields)), **counts, "groups": groups}

    def lines(self) -> Iterator[str]:
        """Say in sentences what was found, and name the first groups."""
        reader, *others = self.readers
        samples = f"{plural(len(reader), 'sample')} of {reader.path.name}"
        count = f"{self.doubled:,}" if self.doubled else "none"
        yield f"{count} of {samples} have the same bytes as another sample of this set"
        for other in others:
            count = f"{self.shared:,}" if self.shared else "none"
            theirs = f"a sample of {other.path.name} ({plural(len(other), 'sample')})"
            yield f"{count} of {samples} have the same bytes as {theirs}"
        if self.groups:
            said = "".join(
                f", {self.mixed(texts):,} of them with several {name}" for name, texts in self._known
            )
            yield f"samples with the same bytes form {plural(self.groups, 'group')}{said}"
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


def _labels(reader: Reader, rows: Numbers) -> Texts:
    if "label" not in reader.fields:
        return pa.nulls(len(rows), pa.string())
    labels = to_numpy(one_chunk(reader.table(["label"], rows)["label"]))
    values, numbers = np.unique(labels, return_inverse=True)
    classes = reader.classes
    names = [classes[each] if 0 <= each < len(classes) else str(each) for each in values.tolist()]
    named = column([None if each == str(UNLABELLED) else each for each in names], pa.string())
    return named.take(from_numpy(numbers.astype(np.int64)))


def _splits(reader: Reader, rows: Numbers) -> Texts:
    if reader.fields.get("split") != "string":
        return pa.nulls(len(rows), pa.string())
    return one_chunk(reader.table(["split"], rows)["split"])
