"""The samples of one data file: read ahead, examined, scaled if that was asked for, and counted.

A format draws its samples from a `Feed` and holds no more than it is writing.

The trap: some files are laid out by the size of all samples and of the largest, which is not known before
images are scaled. Those wait in a nameless file next to the output, which is gone in any case. Notebook 03.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from smallfiles.arrays import from_numpy
from smallfiles.errors import ResourceError, SmallfilesError, writing
from smallfiles.images.faults import ImageError
from smallfiles.pack.compare import joint_checksum
from smallfiles.pack.config import Scaling, Skipped
from smallfiles.pack.examine import examiner
from smallfiles.pack.job import ROWS_AT_ONCE, Job, Piece
from smallfiles.pack.reading import Read, Scale, read_in_order
from smallfiles.progress import Progress
from smallfiles.samples import Buffer, Sample

_SHOWN_AT_ONCE = 32
_BUFFER_BYTES = 1 << 20


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
        sizes: Bytes of each, int64 (likewise).
        kept: Whether each was handed on, bool.
    """

    def __init__(self, job: Job, piece: Piece, progress: Progress) -> None:
        self._job, self.piece, self._progress = job, piece, progress
        scaling = job.config.scaling
        own = slice(piece.start, piece.stop)
        first = self._read_ahead(
            job.source.manifest.paths,
            job.sizes[own],
            scale=None if scaling is None else _scale(scaling, has_parts=job.has_parts),
            planned=None if scaling is None else job.planned[own],
        )
        further = [
            self._read_ahead(
                job.source.manifest.blob_paths(name),
                sizes[own],
                scale=None if scaling is None else _scale_further(scaling, job.schema.fields[name]),
            )
            for name, sizes in job.blob_sizes.items()
        ]
        self._reads: Iterator[tuple[Read, ...]] = zip(first, *further, strict=True)
        count = piece.stop - piece.start
        self.skipped: list[Skipped] = []
        self.exif_rotated = 0
        self.checksums = np.zeros(count, np.uint64)
        self.sizes = np.zeros(count, np.int64)
        self.kept = np.zeros(count, bool)

    def _read_ahead(self, paths: pa.StringArray, sizes: np.ndarray, **scaling: Any) -> Iterator[Read]:
        """The files of one field, in the order of the piece."""
        job = self._job
        return read_in_order(
            job.source.store,
            _Paths(job, self.piece, paths),
            sizes,
            threads=job.threads,
            examine=examiner(job.config.check),
            checksums=job.config.verify != "none",
            **scaling,
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
        """
        seen = seen_bytes = 0
        for reads, key in zip(self._reads, self._keys(), strict=True):
            read, error, checksum, size = reads[0], reads[0].error, reads[0].checksum, len(reads[0].data)
            blobs: tuple[Buffer, ...] = (read.data,)
            if len(reads) > 1:
                error, checksum = _first_error(reads), joint_checksum([each.checksum for each in reads])
                blobs = tuple(each.data for each in reads)
                size = sum(map(len, blobs))
            seen, seen_bytes = seen + 1, seen_bytes + size
            if seen == _SHOWN_AT_ONCE:
                self._progress.advance(seen, bytes=seen_bytes)
                seen = seen_bytes = 0
            if error is not None:
                self._skip(key, error)
                continue
            self.exif_rotated += read.exif_rotated
            self.checksums[read.position] = checksum
            self.sizes[read.position] = size
            self.kept[read.position] = True
            yield Sample(key, blobs, read.position)
        self._progress.advance(seen, bytes=seen_bytes)

    @contextlib.contextmanager
    def spooled(self, folder: Path) -> Iterator[Iterator[Sample]]:
        """The same samples, all of them made before the first is handed on: `sizes` are known then.

        Args:
            folder: Where they wait, in a file without a name.
        """
        with contextlib.ExitStack() as stack:
            with writing(folder):
                file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES))
                os.fchmod(file.fileno(), 0o600)
            for sample in self.samples():
                with writing(folder):
                    file.write(sample.data)
            with writing(folder):
                file.seek(0)
            kept = compress(enumerate(self._keys()), self.kept)
            sizes = self.sizes[self.kept].tolist()
            yield (Sample(key, (file.read(size),), row) for (row, key), size in zip(kept, sizes, strict=True))

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
        if isinstance(error, ResourceError):  # no fault of the sample
            raise error
        self.skipped.append(Skipped(key, error.got))
        if self._job.config.on_error == "stop":
            raise SampleFault


def _first_error(reads: tuple[Read, ...]) -> SmallfilesError | None:
    return next((read.error for read in reads if read.error is not None), None)


def _scale(scaling: Scaling, *, has_parts: bool) -> Scale:
    """Scale first files; one that EXIF turns is refused where a mask or boxes would not turn with it."""
    from smallfiles.images import resize_ahead  # imports PyTorch, which other packing does not need
    from smallfiles.images.decoding import orientation

    def scale(data: memoryview) -> bytes:
        if has_parts and orientation(data) > 1:
            raise ImageError(
                "its EXIF says to turn it, and its mask or boxes would not turn with it",
                expected="images that are stored upright, if they are scaled with masks or boxes",
                next_step="Turn both first, pack without --resize, or leave it out with --on-error skip",
            )
        return resize_ahead(data, scaling.short_side, scaling.store, scaling.quality)

    return _named(scale)


def _scale_further(scaling: Scaling, suffix: str) -> Scale | None:
    """Scale photographs like first files, PNGs by their nearest pixels; None for texts, which stay."""
    from smallfiles.images import resize_values

    short_side = scaling.short_side
    if suffix == ".png":
        return _named(lambda data: resize_values(data, short_side))
    return _scale(scaling, has_parts=True) if suffix in (".jpg", ".jpeg") else None


def _named(scale: Callable[[memoryview], bytes]) -> Scale:
    """The same with errors that name the file."""

    def named(path: str, data: memoryview) -> bytes:
        try:
            return scale(data)
        except SmallfilesError as error:
            raise type(error)(
                f"{path}: {error.got}", expected=error.expected, next_step=error.next_step
            ) from error

    return named


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
