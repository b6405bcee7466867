"""The samples of one data file: read ahead, examined, scaled if that was asked for, and counted.

A format draws its samples from a `Feed` and holds no more than it is writing. Notebook 03.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from smallfiles.arrays import from_numpy
from smallfiles.errors import LinkError, ResourceError, SmallfilesError
from smallfiles.pack.compare import joint_checksum
from smallfiles.pack.config import Skipped
from smallfiles.pack.examine import examiner
from smallfiles.pack.job import ROWS_AT_ONCE, Job, Piece
from smallfiles.pack.reading import Read, read_in_order
from smallfiles.pack.scaling import scale_of
from smallfiles.progress import Progress
from smallfiles.samples import Sample

_SHOWN_AT_ONCE = 32


class SampleFault(Exception):
    """Stops a writer from inside its own input."""


class Feed:
    """The samples of one data file.

    Args:
        job: The run.
        piece: The data file.
        progress: Advanced by every sample.

    Attributes:
        piece: The data file.
        skipped: Samples that cannot be packed, in order.
        exif_rotated: How many say in EXIF that viewers should turn them.
        checksums: xxh3 of each sample of the piece, uint64 (0 for one that was left out).
        kept: Whether each was handed on, bool.
    """

    def __init__(self, job: Job, piece: Piece, progress: Progress) -> None:
        self._job, self.piece, self._progress = job, piece, progress
        fields = [self._read_ahead(field, sizes) for field, sizes in job.sizes.items()]
        self._reads: Iterator[tuple[Read, ...]] = zip(*fields, strict=True)
        count = piece.stop - piece.start
        self.skipped: list[Skipped] = []
        self.exif_rotated = 0
        self.checksums = np.zeros(count, np.uint64)
        self.kept = np.zeros(count, bool)

    def _read_ahead(self, field: str, sizes: np.ndarray) -> Iterator[Read]:
        """Read the files of one field, in the order of the piece."""
        job, manifest, scaling = self._job, self._job.source.manifest, self._job.config.scaling
        return read_in_order(
            job.source.store,
            _Paths(job, self.piece, manifest.blob_paths(field)),
            sizes[self.piece.start : self.piece.stop],
            threads=job.threads,
            examine=examiner(job.config.check),
            scale=None if scaling is None else scale_of(scaling, manifest, field),
            checksums=job.config.verify != "none",
        )

    def _keys(self) -> Iterator[str]:
        """The keys of the piece, a few thousand at a time."""
        keys, count = _Paths(self._job, self.piece, self._job.source.manifest.paths), len(self.kept)
        for start in range(0, count, ROWS_AT_ONCE):
            yield from keys[start : min(start + ROWS_AT_ONCE, count)]

    def samples(self) -> Iterator[Sample]:
        """All that can be packed, in order.

        Raises:
            SampleFault: One cannot be packed, and `on_error` is "stop".
            ResourceError: Reading failed for another reason than the sample.
            LinkError: It is a link out of the source.
        """
        seen = seen_bytes = 0
        for reads, key in zip(self._reads, self._keys(), strict=True):
            position, blobs = reads[0].position, tuple(read.data for read in reads)
            seen, seen_bytes = seen + 1, seen_bytes + sum(map(len, blobs))
            if seen == _SHOWN_AT_ONCE:
                self._progress.advance(seen, bytes=seen_bytes)
                seen = seen_bytes = 0
            if error := _first_error(reads):
                self._skip(key, error)
                continue
            self.exif_rotated += reads[0].exif_rotated
            self.checksums[position] = joint_checksum([read.checksum for read in reads])
            self.kept[position] = True
            yield Sample(key, blobs, position)
        self._progress.advance(seen, bytes=seen_bytes)

    def faults_ahead(self, until_s: float) -> list[Skipped]:
        """Faults so far and further on, found without writing, so that one run names many bad samples.

        Args:
            until_s: When to stop looking (`time.monotonic`).
        """
        for reads in self._reads:
            if error := _first_error(reads):
                row = int(self._job.order[self.piece.start + reads[0].position])
                self.skipped.append(Skipped(self._job.source.manifest.path(row), error.got))
            if time.monotonic() > until_s:
                break
        return self.skipped

    def _skip(self, key: str, error: SmallfilesError) -> None:
        if isinstance(error, ResourceError | LinkError):  # no fault of the sample
            raise error
        self.skipped.append(Skipped(key, error.got))
        if self._job.config.on_error == "stop":
            raise SampleFault


def _first_error(reads: tuple[Read, ...]) -> SmallfilesError | None:
    for read in reads:
        if read.error is not None:
            return read.error
    return None


class _Paths:
    """Paths of a piece, made into strings a few thousand at a time."""

    def __init__(self, job: Job, piece: Piece, paths: pa.StringArray) -> None:
        self._job, self._piece, self._paths = job, piece, paths
        self._first = 0
        self._names: list[str] = []

    def __getitem__(self, span: slice) -> list[str]:
        first, last = span.start - self._first, span.stop - self._first
        if first < 0 or last > len(self._names):
            begin = self._piece.start + span.start
            end = min(max(begin + ROWS_AT_ONCE, self._piece.start + span.stop), self._piece.stop)
            rows = from_numpy(self._job.order[begin:end])
            self._first, self._names = span.start, self._paths.take(rows).to_pylist()
            first, last = 0, span.stop - span.start
        return self._names[first:last]
