"""What will be packed, in which order and into which files: decided before the first byte moves.

Everything here follows from the manifest and the options alone, so that the parts of a job array agree on the
borders without talking to each other, and a resumed run knows that it is the same. The trap: a border that
depended on what was read would differ from part to part. Notebook 03.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

import smallfiles
from smallfiles import atomic, formats, machine
from smallfiles.arrays import from_numpy, give_back_memory
from smallfiles.digests import name_hashes
from smallfiles.errors import LinkError, PackError, ResourceError, SmallfilesError, UsageError, first_few
from smallfiles.formats.output import paths_in_tree
from smallfiles.manifest import Manifest
from smallfiles.pack import (
    PackConfig,
    PackPlan,
    Rescaled,
    Skipped,
    format_and_options,
    scaling,
    unpackable,
)
from smallfiles.pack.reading import is_latency_bound
from smallfiles.samples import ByteStore, Schema
from smallfiles.sources import Source
from smallfiles.storage import ReadingPool, answered

IN_FLIGHT = 32
ROWS_AT_ONCE = 4096  # strings and futures that exist at once; a million would cost a gigabyte


@dataclass(frozen=True)
class DataFilePlan:
    """The plan of one data file to write.

    Args:
        name: File name.
        start: First sample, counted in the order of packing.
        stop: End of the samples (exclusive).
    """

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Job:
    """A pack run in which everything is decided, with all that writing needs to know.

    Args:
        source: Manifest and bytes.
        out: What will be published in the end.
        target: What this run publishes: `out`, or its part of `out`.
        config: The requested configuration.
        format: Name of the format.
        options: Options of the format.
        order: Manifest rows in the order of packing, int64.
        sizes: Sizes in bytes of each field's files in the order of packing, int64. The name of the default
            field is empty.
        planned: Total size of each sample's files in bytes. If images are scaled, it is an upper bound,
            because no JPEG grows.
        pieces: The data files that this run writes: all of them, or those of its part.
        schema: The schema that a writer is given.
        in_flight: Number of files open at once.
        threads: Number of threads that read, examine and scale.
        skipped: Samples that are known to be missing and were left out.
        digest: Identifies this run. Equal digests mean equal bytes, file by file.
    """

    source: Source
    out: Path
    target: Path
    config: PackConfig
    format: str
    options: Any
    order: np.ndarray
    sizes: Mapping[str, np.ndarray]
    planned: np.ndarray
    pieces: tuple[DataFilePlan, ...]
    schema: Schema
    in_flight: int
    threads: int
    skipped: tuple[Skipped, ...]
    digest: str

    @property
    def sharded(self) -> bool:
        """Whether the output is a folder of shards."""
        return _is_sharded(self.out)

    def values_of(self, piece: DataFilePlan) -> pa.Table:
        """Return the columns of values for the samples of a data file, in the order of the data file."""
        columns, rows = self.source.manifest.columns, self.order[piece.start : piece.stop]
        is_whole = self.config.shuffle is None and len(rows) == len(columns)
        return columns if is_whole else columns.take(from_numpy(rows))

    def plan(self) -> PackPlan:
        """Return what this run would write, and what that saves."""
        samples = sum(piece.stop - piece.start for piece in self.pieces)
        payload = sum(int(self.planned[piece.start : piece.stop].sum()) for piece in self.pieces)
        files = samples * len(self.sizes) if self.format == "files" else len(self.pieces)
        sidecars = 1 if self.format == "files" else len(self.pieces) * (1 + (self.format == "tar"))
        return PackPlan(
            samples=samples,
            payload_bytes=payload,
            files=files,
            inodes_now=samples * len(self.sizes) + _count_folders(self)
            if hasattr(self.source.store, "root")
            else 1,
            inodes_then=files + sidecars + int(self.sharded),
            free_bytes=machine.filesystem(self.out.parent).free_bytes,
            to_do=tuple((piece.start, piece.stop) for piece in self.pieces),
            resize=self.rescaled(payload, payload),
        )

    def rescaled(self, bytes_before: int, bytes_after: int) -> Rescaled | None:
        """Return what scaling did or will do. Return None if images are not scaled and encoded again."""
        scaling = self.config.scaling
        return None if scaling is None else Rescaled(scaling, bytes_before, bytes_after)


def prepare(source: Source, out: Path, config: PackConfig) -> Job:
    """Decide everything about a run: the order and the sizes of samples, and the files to write.

    Raises:
        PackError: The source has no samples, two files would get the same name, or files are missing and
            `on_error` is "stop".
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
    if config.scaling is not None:
        source = scaling.prepared(source, name, config.scaling)
    elif config.resize is not None:
        source = scaling.as_pixels(source, config.resize)
    if name in ("squashfs", "files"):
        _refuse_collisions(source.manifest, out)
    in_flight = _in_flight(source, config)
    manifest, sizes, skipped = _with_sizes(source, config, in_flight)
    order = manifest.order(config.shuffle)
    schema = _schema(manifest, source, config, sizes)
    if config.shuffle is not None:
        sizes = {field: each[order] for field, each in sizes.items()}
    first, *others = sizes.values()
    planned = sum(others, first)
    if name == "tar" and (shared := schema.shared_stems):
        warnings.warn(
            f"several files have one name up to its first dot ({first_few(sorted(shared), len(shared), 3)}): "
            "only these are stored as name%2Ejpg.jpg, which webdataset keeps apart",
            stacklevel=3,
        )
    give_back_memory()
    return Job(
        source=dataclasses.replace(source, manifest=manifest),
        out=out,
        target=out if config.part is None else part_folder(out, config.part),
        config=config,
        format=name,
        options=options,
        order=order,
        sizes=sizes,
        planned=planned,
        pieces=_pieces(out, planned, options, config.part),
        schema=schema,
        in_flight=in_flight,
        threads=machine.usable_cpus() if source.store.sequential and config.scaling else in_flight,
        skipped=skipped,
        digest=_digest(name, options, schema, order, planned, config),
    )


def part_folder(out: Path, part: tuple[int, int]) -> Path:
    """Return the folder of part k of n of `out`."""
    k, n = part
    return out.with_name(out.name + ".parts") / f"part-{k:05d}-of-{n:05d}"


def check_room(job: Job) -> None:
    """Raise ResourceError if the output cannot fit, which is better now than after an hour.

    What an earlier run left is kept or cleared, so its space counts as free. Shards of finished parts are
    linked.
    """
    plan = job.plan()
    bytes_there, files_there = atomic.bytes_and_files_of(job.target)
    linked = job.config.merge and job.sharded
    payload = 0 if linked else int(plan.payload_bytes * 1.01)
    need = max(0, payload + 4096 * plan.inodes_then - bytes_there)
    inodes = max(0, plan.inodes_then - files_there - (plan.inodes_then - 1) * linked)
    atomic.check_room(job.out, need, inodes, "Pack into one file (.arrow, .h5, .tars) instead of many")


def balanced(sizes: np.ndarray, k: int, n: int) -> tuple[int, int]:
    """Return the range of samples in part k of n (from 1). All parts have about the same number of bytes."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    first, last = (int(np.searchsorted(ends, total * i / n, side="left")) for i in (k - 1, k))
    return first if k > 1 else 0, last if k < n else len(sizes)


def _is_sharded(out: Path) -> bool:
    return out.name.endswith(".tars")


def _pieces(
    out: Path, planned: np.ndarray, options: Any, part: tuple[int, int] | None
) -> tuple[DataFilePlan, ...]:
    """Return the plans of the data files that a run writes: of the whole output, or of its part."""
    k, n = part or (1, 1)
    if not _is_sharded(out):
        return (DataFilePlan(out.name, *balanced(planned, k, n)),)
    tar = formats.get("tar")
    borders = tar.plan_shards(planned, options)
    first, last = (len(borders) * i // n for i in (k - 1, k))
    return tuple(DataFilePlan(tar.shard_name(i), *borders[i]) for i in range(first, last))


def _schema(
    manifest: Manifest, source: Source, config: PackConfig, sizes: Mapping[str, np.ndarray]
) -> Schema:
    resize = source.resize if config.scaling is None else config.scaling.record()
    schema = manifest.schema()
    blobs = tuple(blob.holding(sizes[blob.name]) for blob in schema.blobs)
    return dataclasses.replace(
        schema, resize=resize, member_suffixes=source.member_suffixes, blobs=blobs, columns=source.columns
    )


def _digest(
    format: str, options: Any, schema: Schema, order: np.ndarray, sizes: np.ndarray, config: PackConfig
) -> str:
    facts = {
        "version": smallfiles.__version__,
        "format": format,
        "options": dataclasses.asdict(options),
        "manifest": schema.manifest_digest,
        "order": xxhash.xxh3_128_hexdigest(order.data),
        "sizes": xxhash.xxh3_128_hexdigest(sizes.data),
        "rules": [config.on_error, config.check, config.digest],
        "resize": schema.resize and dict(schema.resize),
        "member_suffixes": schema.member_suffixes,
    }
    if schema.fields:
        facts |= {"fields": schema.fields, "columns": schema.columns}
    if schema.first:
        facts["first"] = schema.first
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _refuse_senseless(source: Source, out: Path, config: PackConfig) -> None:
    """Refuse a run that would fail after hours, or whose output would lie inside its source.

    The next walk of such a source would take the output for samples.
    """
    if source.store.sequential and config.shuffle is not None:
        raise UsageError(
            f"a shuffle of {source.store.describe()} was asked for, which is compressed",
            expected="a source that can be read in any order",
            next_step="Decompress it first (gzip -dk, zstd -dk), or pack without --shuffle",
        )
    if source.manifest.blobs and source.store.sequential:
        raise UsageError(
            f"{source.store.describe()}, with several files per sample, is compressed",
            expected="files that can be read in any order",
            next_step="Decompress it first (gzip -dk, zstd -dk)",
        )
    root = None if source.kind in ("manifest", "table") else source.root
    if root and answered(root, root.is_dir) and out.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"the output {out} lies inside the data {root}",
            expected="an output elsewhere, since the data is only read",
            next_step="Give another place for the output",
        )


def _refuse_collisions(manifest: Manifest, out: Path) -> None:
    """Refuse additional files that would have the name of another file.

    It is better to refuse them now than after an hour.
    """
    if not manifest.blobs:
        return
    fields = ((name, manifest.fields.get(name, "")) for name in manifest.blob_fields)
    names = [paths_in_tree(manifest.paths, *field) for field in fields]
    hashes = np.concatenate(list(map(name_hashes, names)))
    each = np.sort(hashes)
    rows = np.flatnonzero(np.isin(hashes, each[1:][each[1:] == each[:-1]]))
    found = [names[row // len(manifest)][row % len(manifest)].as_py() for row in rows.tolist()]
    repeated = [text for text, count in Counter(found).items() if count > 1]
    if repeated:
        raise PackError(
            f"{out} would hold several files of one name: {first_few(repeated, len(repeated))}",
            expected="a name for each, with further files beside the first, as 1.mask.png for 1.jpg",
            next_step="Pack into .arrow, .h5 or .tars, where any name is possible, or rename the samples",
        )


def _in_flight(source: Source, config: PackConfig) -> int:
    if source.store.sequential:
        return 1
    if config.in_flight is not None:
        return config.in_flight
    root = getattr(source.store, "root", None) or getattr(source.store, "path", None)
    parallel = root is not None and machine.is_parallel_filesystem(Path(root))
    waiting = IN_FLIGHT if parallel or is_latency_bound(source.store, source.manifest.paths) else 1
    return max(waiting, machine.usable_cpus()) if config.resize else waiting


def _with_sizes(
    source: Source, config: PackConfig, in_flight: int
) -> tuple[Manifest, dict[str, npt.NDArray[np.int64]], tuple[Skipped, ...]]:
    """Return the manifest with all sizes, the sizes of each field, and the samples that are left out."""
    manifest, store = source.manifest, source.store
    found = {} if manifest.sizes is None else {"": manifest.sizes}
    errors: dict[int, SmallfilesError] = {}
    for name in manifest.blob_fields[len(found) :]:
        found[name], missing = _sizes(store, manifest.blob_paths(name), in_flight)
        errors = missing | errors
    faults = tuple(Skipped(manifest.path(row), errors[row].got) for row in sorted(errors))
    if faults and config.on_error == "stop":
        raise unpackable(faults, len(manifest), store.describe())
    if faults:
        there = np.delete(np.arange(len(manifest)), list(errors))
        manifest, found = manifest.select(there), {name: sizes[there] for name, sizes in found.items()}
    return manifest if manifest.sizes is not None else manifest.with_sizes(found[""]), found, faults


def _sizes(
    store: ByteStore, paths: pa.Array, in_flight: int
) -> tuple[npt.NDArray[np.int64], dict[int, SmallfilesError]]:
    """Look up many sizes at once. Each takes a metadata operation, which only concurrency makes bearable.

    Returns:
        The size of each file in bytes, and the errors of files without a size, by row.
    """

    def ask(path: str) -> int | SmallfilesError:
        try:
            return store.size(path)
        except (ResourceError, LinkError):
            raise
        except SmallfilesError as error:
            return error

    sizes, errors = np.zeros(len(paths), np.int64), {}
    with ReadingPool(in_flight, "pack-stat") as pool:
        for start in range(0, len(paths), ROWS_AT_ONCE):
            for row, found in enumerate(pool.map(ask, paths.slice(start, ROWS_AT_ONCE).to_pylist()), start):
                if isinstance(found, SmallfilesError):
                    errors[row] = found
                else:
                    sizes[row] = found
    return sizes, errors


def _count_folders(job: Job) -> int:
    """Count the folders that hold files of the samples, including those of masks and other fields."""
    manifest, folders = job.source.manifest, set[str]()
    for paths in map(manifest.blob_paths, manifest.blob_fields):
        for start in range(0, len(paths), ROWS_AT_ONCE):
            part = pc.replace_substring_regex(paths.slice(start, ROWS_AT_ONCE), "/?[^/]*$", "")
            folders.update(part.unique().to_pylist())
    return len(folders)
