"""The manifest: the samples of a data set with their targets, as one columnar table.

Walking a million files is slow on a parallel file system. So a tree is walked once, and every later step
reads its manifest, one JSON file. There are two forms: the flat `{path: label}` of the Jülich course, and
ours with a header and columns (data_manifests/README.md describes both).

The traps: a Python dict of 1.28 million paths costs hundreds of megabytes, and forked workers copy it page by
page, since reading a Python object writes its reference count. Workers share the table, which contains no
Python objects. A path must be unique and must not leave its folder. So every `Manifest` is made by
`from_columns`, which checks; operations that only pick rows do not check again. And `random.shuffle` and
`np.random.seed` share hidden state with every library. A separate generator gives the same rows on each rank
and each machine. Notebook 02 teaches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from smallfiles.arrays import from_numpy, give_back_memory, one_chunk, plain_allocator, to_numpy
from smallfiles.digests import set_digest
from smallfiles.errors import (
    ManifestError,
    ResourceError,
    SmallfilesError,
    UsageError,
    first_few,
    refuse_shortage,
    summary_of,
)
from smallfiles.fields import META, check_names, name_of_first
from smallfiles.manifest import columns as checks
from smallfiles.manifest.document import read_document, write_columns, write_flat
from smallfiles.samples import OWN_TYPES, BlobField, ByteStore, Meta, Schema
from smallfiles.storage import ReadingPool

__all__ = ["Manifest"]


Rows = npt.NDArray[np.int64]
_IN_FLIGHT, _SLICE = 16, 4096  # files at a time; a million futures would cost a gigabyte
_NAMED = 5


def generator(seed: int) -> np.random.Generator:
    """Return a separate random generator. It is explicitly PCG64, because the default of NumPy may change."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise UsageError(
            f"the seed {seed!r}", expected="a whole number from 0 on", next_step="Choose another seed"
        )
    return np.random.Generator(np.random.PCG64(int(seed)))


def shuffled(count: int, seed: int | None) -> Rows:
    """Return all row numbers in an order that depends only on the seed. None keeps the stored order."""
    if seed is None:
        return np.arange(count, dtype=np.int64)
    mixed: Rows = generator(seed).permutation(count).astype(np.int64, copy=False)
    return mixed


def checked_rows(indices: Sequence[int] | Rows, count: int) -> Rows:
    """Convert row numbers to an array. Check that each is within the table and that none is repeated."""
    rows = np.asarray(indices if len(indices) else [], dtype=None if len(indices) else np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise UsageError(
            f"rows of type {rows.dtype}", expected="a list of row numbers", next_step="Give whole numbers"
        )
    outside = rows[(rows < 0) | (rows >= count)]
    if len(outside):
        raise UsageError(
            f"{len(outside):,} row numbers are outside: {first_few(outside, len(outside))}",
            expected=f"numbers from 0 to {count - 1}",
            next_step="Check the length of the manifest",
        )
    if len(np.unique(rows)) != len(rows):
        raise UsageError(
            "a row number is given twice", expected="each row once", next_step="Remove the repeats"
        )
    return np.asarray(rows, np.int64)


def rows_of_rank(count: int, rank: int, world_size: int) -> Rows:
    """Return the row numbers of one rank: every `world_size`-th row, beginning at `rank`."""
    if not 0 <= rank < world_size:
        raise UsageError(
            f"rank {rank} of {world_size}",
            expected="a rank from 0 to one less than the number of processes",
            next_step="Take both from SLURM_PROCID and SLURM_NTASKS",
        )
    return np.arange(rank, count, world_size, dtype=np.int64)


def drawn_rows(count: int, fraction: float, seed: int, labels: Rows | None) -> npt.NDArray[np.bool_]:
    """Mark the given fraction of the rows. If labels are given, mark this fraction of the rows of each label.

    The total is the rounded share of the whole. The shares of the classes are rounded by largest remainder,
    so that small classes are not all left out.
    """
    if not 0 <= fraction <= 1:
        raise UsageError(
            f"a fraction of {fraction}", expected="a share from 0 to 1", next_step="Give 0.1 for a tenth"
        )
    mixed = shuffled(count, seed)
    drawn = np.zeros(count, dtype=np.bool_)
    if labels is None:
        drawn[mixed[: round(fraction * count)]] = True
        return drawn
    _, group, members = np.unique(labels, return_inverse=True, return_counts=True)
    by_group = mixed[np.argsort(group[mixed], kind="stable")]
    first = np.repeat(np.cumsum(members) - members, members)
    place = np.arange(count) - first
    drawn[by_group[place < np.repeat(_quotas(members, fraction), members)]] = True
    return drawn


def _quotas(members: Rows, fraction: float) -> Rows:
    share = members * fraction
    quotas: Rows = np.floor(share).astype(np.int64)
    missing = round(fraction * int(members.sum())) - int(quotas.sum())
    quotas[np.argsort(quotas - share, kind="stable")[:missing]] += 1
    return quotas


Indices = Sequence[int] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Manifest:
    """The samples of a data set as a table that is immutable, columnar, and cheap to share between processes.

    Make a manifest with `from_columns`, `load` or `smallfiles.sources`, which check their input.

    Args:
        table: Columns `path` (string) and `label` (int32) or `captions` (list of strings). The columns
            `bytes` (int64), `sha256` (hexadecimal) and `meta` (JSON objects as text) are optional, and null
            where unknown. The paths of additional files and additional values follow, named after their
            fields. Each column is one chunk.
        name: Name of the data set.
        split: `train`, `val`, `test` or another word.
        classes: Class names in label order, which also name the numbers in `box_labels`. It is empty if they
            are unknown.
        root_hint: Folder or archive that the paths are relative to. It is itself relative to the manifest
            file, and empty if unknown.
        blobs: Names of the fields of additional files, such as masks, in their order.
        first: Name of the field of the first file. It is empty if the name follows from the suffix.
    """

    table: pa.Table = field(hash=False)
    name: str = "dataset"
    split: str = "train"
    classes: tuple[str, ...] = ()
    root_hint: str = ""
    blobs: tuple[str, ...] = ()
    first: str = ""

    @classmethod
    def from_columns(
        cls,
        paths: Any,
        targets: Any = None,
        *,
        name: str = "dataset",
        split: str = "train",
        classes: Sequence[str] = (),
        root_hint: str = "",
        sizes: Any = None,
        sha256: Any = None,
        metas: Sequence[Meta | None] | pa.Array | None = None,
        blobs: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        first: str = "",
    ) -> Manifest:
        """Make a manifest from columns, after checking them.

        Args:
            paths: Relative, normalised, unique POSIX paths, as strings or an Arrow array.
            targets: Integer labels (-1 is unknown) or lists of strings. It is None if they are among
                `values`.
            name: Name of the data set.
            split: Which part of the data set this is.
            classes: Class names in label order.
            root_hint: Folder or archive that the paths are relative to, itself relative to the manifest file.
            sizes: Size of each sample in bytes, or None where unknown.
            sha256: SHA-256 of each sample as 64 hexadecimal digits, or None where unknown.
            metas: JSON object of each sample, or None for a sample without an object.
            blobs: Paths of additional files of each sample, by the name of their field.
            values: Additional values of each sample, by name: integers, floats, truth values, texts, lists.
                Labels, captions and JSON objects may be given here too, as `label`, `captions` and `meta`.
            first: Name of the field of `paths`. The default follows from their suffix.

        Raises:
            ManifestError: A column is wrong. The message says what is wrong, with the count and the first few
                cases.
        """
        checks.check_header(name, split, classes, root_hint)
        blobs, values = blobs or {}, dict(values or {})
        if targets is not None:
            check_names(values)
            values[checks.target_name(targets)] = targets
        if metas is not None:
            values[META] = metas
        facts = {"bytes": sizes, "sha256": sha256}
        table = checks.checked_table(paths, values, len(classes), facts, blobs)
        checks.check_first(first, (*blobs, *values))
        if len(table) and first == name_of_first(table["path"][0].as_py()):
            first = ""
        manifest = cls(table, name, split, tuple(classes), root_hint, tuple(sorted(blobs)), first)
        # Sorting is expensive; the search for repeated paths and the digest share it.
        order = checks.checked_order(manifest.paths)
        manifest.__dict__["digest"] = set_digest(manifest.paths, manifest.columns, order)
        return manifest

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest in either JSON form.

        Args:
            path: The JSON file.

        Raises:
            ManifestError: The file is missing, damaged or inconsistent.
        """
        path = Path(path)
        with plain_allocator():
            document = read_document(path)
            give_back_memory()  # of parsing, before sorting needs more
            with summary_of(path):
                manifest = cls.from_columns(**document.arguments)
        document.check_digest(path, manifest.digest)
        give_back_memory()
        return manifest

    def save(self, path: Path) -> None:
        """Write header and columns as JSON. An incomplete file never has the final name.

        Args:
            path: The JSON file. It is replaced if it exists.

        Raises:
            ManifestError: The file cannot be written.
        """
        header = {name: getattr(self, name) for name in ("name", "split", "classes", "root_hint")}
        header |= {"target": self.target_kind, "digest": self.digest, "count": len(self)}
        header |= {"fields": self.fields} if self.fields else {}
        header |= {"first": self.first} if self.first else {}
        write_columns(Path(path), header, self.table)

    def save_flat(self, path: Path) -> None:
        """Write the flat form `{path: target}` of the Jülich course, without header, sizes and meta.

        Args:
            path: The JSON file. It is replaced if it exists.

        Raises:
            ManifestError: The file cannot be written, or there are additional fields.
        """
        if self.fields:
            raise ManifestError(
                f"the flat form would lose the fields {first_few(self.fields, len(self.fields))}",
                expected="paths and targets alone",
                next_step="Write the other form: smallfiles manifest, without --flat",
            )
        write_flat(Path(path), self.paths, self.targets)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getstate__(self) -> dict[str, Any]:
        # The arrays of `paths`, `targets` and `columns` are part of the table and would be pickled twice.
        twice = ("paths", "targets", "columns")
        return {name: value for name, value in self.__dict__.items() if name not in twice}

    def __repr__(self) -> str:
        what = f"{len(self.classes)} classes" if self.target_kind == "label" else "captions"
        return f"Manifest({self.name!r}, {self.split!r}, {len(self):,} samples, {what})"

    @property
    def target_kind(self) -> str:
        """Whether samples carry `label` or `captions`."""
        return "label" if "label" in self.table.column_names else "captions"

    @cached_property
    def paths(self) -> pa.StringArray:
        """The paths of all samples as an Arrow array."""
        return one_chunk(self.table.column("path"))

    @cached_property
    def targets(self) -> pa.Array:
        """The labels (int32) or captions (lists of strings) of all samples as an Arrow array."""
        return one_chunk(self.table.column(self.target_kind))

    @cached_property
    def columns(self) -> pa.Table:
        """The columns of values: `label` (int64) or `captions`, `meta` if a sample has it, and all others."""
        kind, table, found = self.target_kind, self.table, self.values
        if META in table.column_names and table[META].null_count < len(table):
            found = found.add_column(0, META, table[META])
        return found.add_column(0, kind, self.targets.cast(OWN_TYPES[kind]))

    @property
    def values(self) -> pa.Table:
        """The columns of additional values, without labels, captions and JSON objects."""
        return self.table.drop_columns([*(set(self.table.column_names) & {*checks.COLUMNS}), *self.blobs])

    @cached_property
    def fields(self) -> dict[str, str]:
        """The suffix or the Arrow type of each additional field, by the name of the field.

        A field of files has a suffix, and a field of values has an Arrow type.
        """
        blobs = {name: checks.suffix_of(name, self.blob_paths(name)) for name in self.blobs}
        return blobs | {each.name: str(each.type) for each in self.values.schema}

    @property
    def blob_fields(self) -> tuple[str, ...]:
        """Names of all fields of files. The default field comes first, and its name is empty."""
        return "", *self.blobs

    def blob_paths(self, name: str) -> pa.StringArray:
        """Return the paths of the files of a field as an Arrow array."""
        return one_chunk(self.table.column(name or "path"))

    @property
    def in_class_order(self) -> bool:
        """Whether there are several classes, and the samples of each class are adjacent."""
        labels = to_numpy(self.targets) if self.target_kind == "label" else np.zeros(0)
        changes = int(np.count_nonzero(np.diff(labels)))
        return changes > 0 and changes + 1 == len(np.unique(labels))

    def path(self, index: int) -> str:
        """Return the path of one sample."""
        return str(self.paths[index].as_py())

    def target(self, index: int) -> Any:
        """Return the label or the captions of one sample."""
        return self.targets[index].as_py()

    @property
    def sizes(self) -> npt.NDArray[np.int64] | None:
        """The size of each sample in bytes. It is None if any size is unknown."""
        if "bytes" not in self.table.column_names or self.table.column("bytes").null_count:
            return None
        return to_numpy(one_chunk(self.table.column("bytes")))

    @cached_property
    def digest(self) -> str:
        """The set digest, which identifies the data set independently of the order of its rows."""
        return set_digest(self.paths, self.columns)

    def with_sizes(self, sizes: Any) -> Manifest:
        """Return the manifest with the size in bytes of each sample filled in."""
        checks.check_lengths([("path", self.paths), ("bytes", sizes)])
        column = checks.size_column(sizes, checks.by_path(self.paths))
        columns = {old: self.table.column(old) for old in self.table.column_names} | {"bytes": column}
        names = [
            *(known for known in checks.COLUMNS if known in columns),
            *self.blobs,
            *self.values.column_names,
        ]
        table = pa.table({known: columns[known] for known in names})
        filled = replace(self, table=table)
        filled.__dict__["digest"] = self.digest  # keys and targets are the same
        return filled

    def select(self, indices: Indices) -> Manifest:
        """Return a manifest of the samples in these rows, in this order.

        Args:
            indices: Row numbers, without repeats.

        Raises:
            UsageError: A row does not exist or is named twice.
        """
        rows = checked_rows(indices, len(self))
        return replace(self, table=self.table.take(from_numpy(rows)).combine_chunks())

    def split_off(self, fraction: float, seed: int) -> tuple[Manifest, Manifest]:
        """Draw a part of the set for validation. The same seed draws the same part.

        If there are labels, this fraction of each class is drawn, so that rare classes are in both parts.

        Args:
            fraction: Fraction of the samples to draw, from 0 to 1.
            seed: Determines which samples are drawn.

        Returns:
            The remaining samples and the drawn samples, both in stored order.
        """
        labels = to_numpy(self.targets) if self.target_kind == "label" else None
        drawn = drawn_rows(len(self), fraction, seed, labels)
        rest, part = self.select(np.flatnonzero(~drawn)), self.select(np.flatnonzero(drawn))
        return rest, replace(part, split="val")

    def slice(self, rank: int, world_size: int) -> Manifest:
        """Return the samples of one of several processes. Each sample goes to exactly one process.

        Every `world_size`-th row is taken, so that each rank gets its share of every class of a sorted set.
        Lengths differ by at most one. Ranks that run in step must agree on one length.

        Raises:
            UsageError: There is no such rank.
        """
        return self.select(rows_of_rank(len(self), rank, world_size))

    def order(self, seed: int | None) -> npt.NDArray[np.int64]:
        """Return the row numbers in an order that depends only on the seed. None keeps the stored order."""
        return shuffled(len(self), seed)

    def shared_stems(self) -> frozenset[str]:
        """Return the stems that several paths share. A stem ends at the first dot of the file name.

        webdataset groups the members of a tar by their stem, so samples with a shared stem would become one
        sample.
        """
        return checks.shared_stems(self.paths)

    def schema(self) -> Schema:
        """Return the information that a writer needs before the first sample arrives.

        Raises:
            ManifestError: Some sizes are not known yet.
        """
        sizes = self.sizes
        if sizes is None:
            raise ManifestError(
                f"the manifest {self.name!r} does not have the size of every sample",
                expected="all sizes, since formats lay out their file once",
                next_step="Add them with manifest.with_sizes",
            )
        about = {name: getattr(self, name) for name in ("name", "split", "classes", "first")}
        return Schema(
            *(len(sizes), int(sizes.sum()), int(sizes.max(initial=0)), self.columns, self.shared_stems()),
            manifest_digest=self.digest,
            blobs=tuple(BlobField(name, self.fields[name]) for name in self.blobs),
            **about,
        )

    def check_files(self, store: ByteStore) -> None:
        """Open every file before hours of packing, and name the files that are missing, unreadable or empty.

        Each check is a round trip on a parallel file system, so many are in flight.

        Raises:
            ManifestError: There are such files. The message gives their number and the first few.
            ResourceError: The storage does not answer, or this machine has no more file descriptors. Then no
                file is at fault.
        """
        for paths in map(self.blob_paths, self.blob_fields):
            problems = _problems(paths, store)
            if examples := [*islice(problems, _NAMED)]:
                count = len(examples) + sum(1 for _ in problems)
                raise ManifestError(
                    f"{count:,} of {len(paths):,} files in {store.describe()} cannot be used: "
                    f"{first_few(examples, count, _NAMED)}",
                    expected="a readable file with at least one byte for each path",
                    next_step="Check the root folder, restore the files, or leave them out of the manifest",
                )


def _problems(paths: pa.StringArray, store: ByteStore) -> Iterator[str]:
    with ReadingPool(1 if store.sequential else _IN_FLIGHT) as pool:
        for start in range(0, len(paths), _SLICE):
            names = paths.slice(start, _SLICE).to_pylist()
            yield from filter(None, pool.map(lambda name: _problem(name, store), names))


def _problem(path: str, store: ByteStore) -> str | None:
    try:
        # Reading one byte opens the file; looking up its size would not.
        size = store.size(path) if store.sequential else store.read_into(path, memoryview(bytearray(1)))
    except ResourceError:
        raise
    except SmallfilesError as error:
        return error.got
    except OSError as error:
        refuse_shortage(error, path)
        return f"{path} cannot be read ({error.strerror or error})"
    return None if size > 0 else f"{path} is empty"
