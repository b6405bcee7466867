"""What will be packed, in which order and into which files: decided before the first byte moves.

Everything here follows from the manifest and the options alone, so that the parts of a job array
agree on the borders without talking to each other, and a resumed run knows that it is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import statistics
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

import smallfiles
from pysquashfs.waiting import AT_ONCE_S, Watch
from smallfiles import atomic, formats, machine
from smallfiles.arrays import from_numpy, give_back_memory
from smallfiles.atomic import bytes_and_files_of
from smallfiles.errors import PackError, SmallfilesError, UsageError, first_few
from smallfiles.manifest import Manifest
from smallfiles.pack.config import PackConfig, PackPlan, Skipped, format_and_options
from smallfiles.pack.resizing import Rescaled, Scaling, Trial, expected_sizes, try_out
from smallfiles.samples import ByteStore, Schema
from smallfiles.sources import Source

IN_FLIGHT = 32
_TRIED = 24
ROWS_AT_ONCE = 4096  # strings and futures that exist at once; a million would cost a gigabyte


@dataclass(frozen=True)
class Piece:
    """One data file to write.

    Args:
        name: File name.
        start: First sample, counted in the order of packing.
        stop: One after the last.
    """

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Job:
    """A pack run, fully decided.

    Args:
        source: Manifest and bytes.
        out: What will be published.
        config: As asked for.
        format: Name of the format.
        options: Options of the format.
        order: Manifest rows in the order of packing, int64.
        sizes: Their bytes in that order, int64.
        schema: What writers are told.
        in_flight: Files open at once.
        skipped: Samples that are known to be missing and were left out.
        planned: Bytes of each in the output, as far as they are known; int64, in the order of packing.
        trial: What scaling did to a few pictures, if pictures are scaled.
    """

    source: Source
    out: Path
    config: PackConfig
    format: str
    options: Any
    order: np.ndarray
    sizes: np.ndarray
    schema: Schema
    in_flight: int
    skipped: tuple[Skipped, ...]
    planned: np.ndarray
    trial: Trial | None = None

    @property
    def scaling(self) -> Scaling | None:
        """How pictures are scaled; None leaves them."""
        return self.config.scaling

    @property
    def sharded(self) -> bool:
        """Whether the output is a folder of shards."""
        return self.out.name.endswith(".tars")

    def rows(self, start: int, stop: int) -> pa.Table:
        """Rows of the manifest for a range of the order of packing."""
        return self.source.manifest.table.take(from_numpy(self.order[start:stop]))

    def pieces(self) -> list[Piece]:
        """All data files of the whole output, in order."""
        if not self.sharded:
            return [Piece(self.out.name, 0, len(self.order))]
        tar = formats.get("tar")
        borders = tar.plan_shards(self.planned, self.options)
        return [Piece(tar.shard_name(n, self.options), *border) for n, border in enumerate(borders)]

    def pieces_of_part(self) -> list[Piece]:
        """The data files that this run writes: all of them, or those of its part."""
        if self.config.part is None:
            return self.pieces()
        k, n = self.config.part
        if self.sharded:
            pieces = self.pieces()
            first, last = (len(pieces) * i // n for i in (k - 1, k))
            return pieces[first:last]
        return [Piece(self.out.name, *balanced(self.planned, k, n))]

    def digest(self) -> str:
        """Names this run: equal digests mean equal bytes, file by file."""
        facts = {
            "version": smallfiles.__version__,
            "format": self.format,
            "options": dataclasses.asdict(self.options),
            "manifest": self.schema.manifest_digest,
            "order": xxhash.xxh3_128_hexdigest(self.order.data),
            "sizes": xxhash.xxh3_128_hexdigest(self.sizes.data),
            "parts": self.config.part[1] if self.config.part else 1,
            "rules": [self.config.on_error, self.config.check, self.config.digest],
        }
        if self.schema.member_suffixes:
            facts["came_as"] = self.schema.member_suffixes
        if self.scaling is not None:
            facts["resize"] = self.scaling.record()
            facts["planned"] = xxhash.xxh3_128_hexdigest(self.planned.data)
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()

    def plan(self) -> PackPlan:
        """What this run would write, and what that saves."""
        pieces = self.pieces_of_part()
        samples = sum(piece.stop - piece.start for piece in pieces)
        source_bytes, payload = (
            sum(int(sizes[piece.start : piece.stop].sum()) for piece in pieces)
            for sizes in (self.sizes, self.planned)
        )
        files = samples if self.format == "files" else len(pieces)
        beside = 1 if self.format == "files" else len(pieces) * (1 + (self.format == "tar"))
        return PackPlan(
            samples=samples,
            payload_bytes=payload,
            files=files,
            inodes_now=samples + len(_folders(self)) if hasattr(self.source.store, "root") else 1,
            inodes_then=files + beside + int(self.sharded),
            free_bytes=machine.filesystem(self.out.parent).free_bytes,
            to_do=tuple((piece.start, piece.stop) for piece in pieces),
            resize=self.rescaled(source_bytes, payload),
        )

    def rescaled(self, bytes_before: int, bytes_after: int) -> Rescaled | None:
        """What scaling did or will do, if it is asked for."""
        return None if self.scaling is None else Rescaled(self.scaling, bytes_before, bytes_after, self.trial)


def balanced(sizes: np.ndarray, k: int, n: int) -> tuple[int, int]:
    """Range of part k of n (from 1), cut so that all parts have about the same number of bytes."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    first, last = (int(np.searchsorted(ends, total * i / n, side="left")) for i in (k - 1, k))
    return first if k > 1 else 0, last if k < n else len(sizes)


def prepare(source: Source, out: Path, config: PackConfig) -> Job:
    """Decide a run: order, sizes, files.

    Raises:
        PackError: Sources are missing and `on_error` is "stop".
        UsageError: Format or options make no sense.
    """
    name, options = format_and_options(config, out)
    if not len(source.manifest):
        raise PackError(
            f"{source.store.describe()} gives no samples",
            expected="at least one, since an empty set is nearly always a wrong path or split",
            next_step="Look at the manifest, or choose another --split",
        )
    _refuse_senseless(source, out, config)
    in_flight = _in_flight(source, config)
    manifest, skipped = _with_sizes(source, config, in_flight)
    source = dataclasses.replace(source, manifest=manifest)
    order = manifest.order(config.shuffle)
    sizes = manifest.sizes
    assert sizes is not None  # _with_sizes saw to it
    schema = dataclasses.replace(
        manifest.schema(), resize=source.resize, member_suffixes=source.member_suffixes
    )
    if name == "tar" and (shared := schema.shared_stems):
        warnings.warn(
            f"several files have one name up to its first dot ({first_few(sorted(shared), len(shared), 3)}): "
            "only these are stored as name%2Ejpg.jpg, which webdataset keeps apart",
            stacklevel=3,
        )
    planned = sizes = sizes if config.shuffle is None else sizes[order]
    trial = None
    if config.scaling is not None:
        trial = try_out(config.scaling, manifest, source.store)
        planned = expected_sizes(config.scaling, trial, sizes)
        schema = dataclasses.replace(schema, resize=config.scaling.record())
    give_back_memory()
    return Job(source, out, config, name, options, order, sizes, schema, in_flight, skipped, planned, trial)


def part_folder(out: Path, part: tuple[int, int]) -> Path:
    """Where part k of n of `out` lives."""
    k, n = part
    return out.with_name(out.name + ".parts") / f"part-{k:05d}-of-{n:05d}"


def check_room(job: Job) -> None:
    """Raise ResourceError if the output cannot fit; better now than after an hour.

    What an earlier run left is kept or cleared, so its room counts; shards of finished parts are linked.
    """
    plan = job.plan()
    target = job.out if job.config.part is None else part_folder(job.out, job.config.part)
    bytes_there, files_there = bytes_and_files_of(target)
    linked = job.config.merge and job.sharded
    payload = 0 if linked else int(plan.payload_bytes * 1.01)
    need = max(0, payload + 4096 * plan.inodes_then - bytes_there)
    inodes = max(0, plan.inodes_then - files_there - (plan.inodes_then - 1) * linked)
    if job.scaling is not None:  # scaled pictures lie in a spool until their data file is written
        need += max((int(job.planned[start:stop].sum()) for start, stop in plan.to_do), default=0)
    atomic.check_room(job.out, need, inodes, "Pack into one file (.arrow, .h5, .tars) instead of many")


def _refuse_senseless(source: Source, out: Path, config: PackConfig) -> None:
    """Refuse what would fail after hours, or make the next walk take our output for samples."""
    if source.store.sequential and config.shuffle is not None:
        raise UsageError(
            f"a shuffle of {source.store.describe()} was asked for, which is compressed",
            expected="a source that can be read in any order",
            next_step="Decompress it first (gzip -dk, zstd -dk), or pack without --shuffle",
        )
    walked = source.root is not None and source.root.is_dir() and source.kind not in ("manifest", "table")
    if walked and source.root and out.resolve().is_relative_to(source.root.resolve()):
        raise UsageError(
            f"the output {out} lies inside the data {source.root}",
            expected="an output elsewhere, since the data is only read",
            next_step="Give another place for the output",
        )


def _in_flight(source: Source, config: PackConfig) -> int:
    if source.store.sequential:
        return 1
    if config.in_flight is not None:
        return config.in_flight
    root = getattr(source.store, "root", None) or getattr(source.store, "path", None)
    waits = (root is not None and machine.is_parallel_filesystem(Path(root))) or _waits(source)
    return IN_FLIGHT if waits else 1


def _waits(source: Source) -> bool:
    """Whether files must be waited for; where they are in memory, a thread only costs."""
    paths, buffer, waited_s = source.manifest.paths, memoryview(bytearray(1)), []
    for row in np.linspace(0, len(paths) - 1, _TRIED).astype(int).tolist():
        path, watch = paths[row].as_py(), Watch()
        with contextlib.suppress(SmallfilesError):  # reported when it is packed
            source.store.read_into(path, buffer)
        waited_s.append(watch.waited_s())
    return statistics.median(waited_s) > AT_ONCE_S


def _with_sizes(source: Source, config: PackConfig, in_flight: int) -> tuple[Manifest, tuple[Skipped, ...]]:
    manifest = source.manifest
    if manifest.sizes is not None:
        return manifest, ()
    sizes, errors = _sizes(source.store, manifest.paths, in_flight)
    faults = tuple(Skipped(manifest.path(row), error.got) for row, error in errors.items())
    if faults and config.on_error == "stop":
        raise unpackable(faults, len(manifest), source.store.describe())
    if faults:
        there = np.delete(np.arange(len(manifest)), list(errors))
        manifest, sizes = manifest.select(there), sizes[there]
    return manifest.with_sizes(sizes), faults


def _sizes(
    store: ByteStore, paths: pa.Array, in_flight: int
) -> tuple[npt.NDArray[np.int64], dict[int, SmallfilesError]]:
    """Ask for many sizes at once: a metadata operation each, which only concurrency makes bearable."""

    def ask(path: str) -> int | SmallfilesError:
        try:
            return store.size(path)
        except SmallfilesError as error:
            return error

    sizes, errors = np.zeros(len(paths), np.int64), {}
    with ThreadPoolExecutor(in_flight, thread_name_prefix="pack-stat") as pool:
        for start in range(0, len(paths), ROWS_AT_ONCE):
            for row, found in enumerate(pool.map(ask, paths.slice(start, ROWS_AT_ONCE).to_pylist()), start):
                if isinstance(found, SmallfilesError):
                    errors[row] = found
                else:
                    sizes[row] = found
    return sizes, errors


def unpackable(faults: Sequence[Skipped], total: int, where: str) -> PackError:
    """The sentence for sources that cannot be packed; it carries the whole list as `faults`."""
    listed = first_few((fault.reason for fault in faults), len(faults))
    error = PackError(
        f"{len(faults):,} of {total:,} samples from {where} cannot be packed: {listed}",
        expected="samples that can all be read",
        next_step="Mend or remove them, or leave them out with --on-error skip"
        if len(faults) < total
        else "Check that this is where the files are (--root says it), or mend them",
    )
    error.faults = tuple(faults)
    return error


def _folders(job: Job) -> set[str]:
    paths = job.source.manifest.paths
    parts = (paths.slice(start, ROWS_AT_ONCE) for start in range(0, len(paths), ROWS_AT_ONCE))
    return {
        folder
        for part in parts
        for folder in pc.replace_substring_regex(part, "/?[^/]*$", "").unique().to_pylist()
    }
