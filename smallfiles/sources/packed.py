"""Any packed output as a source: repack it in another format, compare with it, or unpack it (`x.files`).

The trap: the folders of unpacked files do not carry all targets, since a class without images has no folder
and captions have none at all. So targets come from the manifest in the folder, or from the columns of the
packed file. Notebook 03 makes one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles import formats
from smallfiles.arrays import joined, scalar, suffixes_of
from smallfiles.digests import added_fields
from smallfiles.errors import SourceError, UsageError, refuse_shortage, summary_of
from smallfiles.fields import further_files, name_problem
from smallfiles.folders import IMAGE_SUFFIXES, SourceOptions
from smallfiles.formats.files import MANIFEST
from smallfiles.formats.reader import TableReader
from smallfiles.formats.table import recorded_columns, recorded_member_suffixes
from smallfiles.formats.tar.archive import Archive
from smallfiles.formats.tar.streams import compression_of
from smallfiles.manifest import Manifest
from smallfiles.manifest.document import FORMAT
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED, Blob, Buffer, Reader
from smallfiles.selection.reader import Selected, choose
from smallfiles.sources import declarations
from smallfiles.sources.record import FolderStore, NamedStore, Source, refuse_other_split
from smallfiles.sources.tarball import TarStore

_HEAD_BYTES = 1024
BLOB_MARK = "\x1f"
"""Separates the key of a sample from the name of an additional field.

No file name contains this character.
"""
PIXELS = "npy"
"""How the record of a packed file marks images that were stored as pixels. Their keys end in `.npy`."""
_NOT_PACKED = ("files", "tar")
"""Formats whose suffix does not show that this package wrote a file."""


def format_of(path: Path) -> str | None:
    """Return the format of a packed output. Return None for anything that this package did not write.

    Args:
        path: A file or folder that exists.
    """
    if path.is_dir():
        if path.name.endswith((".tars", ".lmdb", ".zarr")):
            return formats.name_of(path)
        is_ours = path.name.endswith(".files") or FORMAT.encode() in _head(path / MANIFEST)
        return "files" if is_ours else None
    if _is_our_tar(path):
        return "tar"
    try:
        name = formats.name_of(path)
    except UsageError:
        return None
    return None if name in _NOT_PACKED else name


def _head(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


class PackedStore(NamedStore):
    """Reads the samples of a packed output by their keys.

    Args:
        reader: A reader that `smallfiles.formats.open` returned.
    """

    kind = "packed file"

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader.path)
        self._reader = reader

    def _names(self) -> pa.StringArray:
        return self._reader.keys()

    def _find(self, path: str) -> tuple[Blob, int]:
        """Return the field and the number of the sample that a path names."""
        key, mark, field = path.rpartition(BLOB_MARK)
        if not mark:
            return self._reader, self._row(path)
        return self._reader.blob(field.partition(".")[0]), self._row(key)

    def size(self, path: str) -> int:
        """Return the size of one file of a sample in bytes."""
        blob, row = self._find(path)
        return blob.size(row)

    def _bytes(self, path: str) -> Buffer:
        blob, row = self._find(path)
        return blob.read(row)


def load(path: Path, format: str, options: SourceOptions) -> Source:
    """Make a source of a packed file, with its targets, classes, captions and JSON objects.

    Args:
        path: The packed file or folder of shards. Plain files are not read here, but by their manifest.
        format: The format that `format_of` returned.
        options: Only `split`, `where` and, for shards of other programs, `unlabelled` and `suffixes` are
            used. Labels come from the file.

    Raises:
        SourceError: Another split was requested, or shards of another program have no labels.
        FormatError: The packed file is damaged.
        ManifestError: Its keys or targets cannot be those of a data set.
    """
    what = "packed shards" if format == "tar" and path.is_dir() else "a packed output"
    what = "shards of others" if _is_foreign_tar(path, format) else what
    options.refuse_unsupported(what, path)
    reader = _open(path, format, options)
    record = (about := reader.info()).get("provenance") or {}
    schema = record.get("schema", {})
    if options.split is not None and reader.fields.get("split") == "string":
        reader, schema = choose(reader, split=options.split), schema | {"split": options.split}
    reader = choose(reader, where=options.where)
    refuse_other_split(path, schema.get("split", options.split), options.split, "packed file")
    with summary_of(path):
        manifest = _manifest(reader, schema, options.split)
    notes: tuple[str, ...] = ()
    if "label" in reader.fields and not pc.any(pc.not_equal(manifest.targets, scalar(UNLABELLED))).as_py():
        pictured = any(suffix in IMAGE_SUFFIXES for suffix in further_files(reader.fields).values())
        if _is_foreign_tar(path, format) and not (options.unlabelled or pictured):
            raise SourceError(
                f"{path} contains {plural(len(manifest), 'image')} without labels",
                expected="a .cls, .txt or .json member for each image, or class folders",
                next_step="Pack them without labels (--unlabelled), or give a manifest with their labels",
            )
        notes = (f"{path.name} has no targets: label {UNLABELLED} for all",)
    member_suffixes = recorded_member_suffixes(record) or tuple(about.get("member_suffixes", ()))
    more = (resize_of(reader), member_suffixes, recorded_columns(record))
    source = Source(manifest, PackedStore(reader), f"packed {format}", notes, path, *more)
    if not (format == "tar" and path.is_dir()):
        return source
    unread = reader.unread() if isinstance(reader, TableReader) else ()
    return with_names_beside(source, (), options, unread)


def with_names_beside(
    source: Source, used: Sequence[str], options: SourceOptions, ignored: Sequence[Archive] = ()
) -> Source:
    """Refuse files that name the samples of a packed folder without belonging to it.

    Args:
        source: The samples.
        used: Files that belong to the packed folder.
        options: Options that say which files are ignored.
        ignored: Members of the folder's shards that belong to no field.
    """
    assert source.root is not None
    keys, root = source.manifest.paths, source.root
    stores = {archive.path.name: TarStore(archive) for archive in ignored}
    members = [f"{archive.path.name}/{name}" for archive in ignored for name in archive.names.to_pylist()]

    def head(path: str) -> bytes:
        shard, _, name = path.partition("/")
        return stores[shard].head(name) if shard in stores else FolderStore(root).head(path)

    others = declarations.names_beside(root, used, options, members)
    files = Files(root, keys, others, inside=head, labels_flag="", classes_flag="")
    return replace(source, notes=(*source.notes, *declarations.check(files, keys, options)))


def _open(path: Path, format: str, options: SourceOptions) -> Reader:
    more: dict[str, Any] = {}
    if options.split is not None and format in ("hdf5", "squashfs"):  # these may hold several
        more = {"split": options.split}
    elif _is_foreign_tar(path, format):
        more = {"unlabelled": options.unlabelled}
        if options.suffixes != IMAGE_SUFFIXES:
            more["suffixes"] = options.suffixes
    reader: Reader = formats.get(format).open(path, **more) if more else formats.open(path, format)
    return reader


def _is_foreign_tar(path: Path, format: str) -> bool:
    """Check whether these are shards that other software wrote."""
    return format == "tar" and path.is_dir() and not any(map(_is_our_tar, sorted(path.glob("*.tar"))[:1]))


def _is_our_tar(path: Path) -> bool:
    if path.with_name(path.name + ".index.arrow").is_file():
        return compression_of(path) is None  # version 0.1.0 compressed shards, which are only sources now
    head = _head(path)
    return head[156:157] == b"g" and b" comment=smallfiles " in head


def _manifest(reader: Reader, schema: Mapping[str, Any], split: str | None) -> Manifest:
    values = dict(zip((table := reader.table()).column_names, table.columns, strict=True))
    return Manifest.from_columns(
        reader.keys(),
        name=str(schema.get("name", reader.path.name.partition(".")[0] or "dataset")),
        split=str(schema.get("split", split or "train")),
        classes=reader.classes,
        sizes=np.fromiter(map(reader.size, range(len(reader))), np.int64, len(reader)),
        blobs={name: _blob_paths(reader, name, each) for name, each in further_files(reader.fields).items()},
        values=values,
        first="" if name_problem(first := next(iter(reader.fields))) else first,
    )


def _blob_paths(reader: Reader, name: str, suffix: str) -> pa.StringArray:
    """Return the paths by which `PackedStore` finds the files of an additional field."""
    return joined(reader.keys(), scalar(f"{BLOB_MARK}{name}{suffix}"))


def flags_of(reader: Reader) -> dict[str, Any]:
    """Return the fields of `SourceOptions` with which the source was read, as far as the output shows them.

    Thus a packed file can be compared with its source without knowing how it was packed.

    Args:
        reader: A reader of the output.
    """
    record = reader.info().get("provenance") or {}
    found: dict[str, Any] = {"columns": columns} if (columns := recorded_columns(record)) else {}
    split = record.get("schema", {}).get("split", "train")
    if split != "train":  # which is the default where there are several
        found["split"] = str(split)
    keys = reader.keys()
    if (resize_of(reader) or {}).get("store") == PIXELS:
        keys = pc.replace_substring_regex(keys, r"\.npy$", "")
    suffixes = set(suffixes_of(keys).unique().to_pylist())
    if others := sorted(suffixes - {*IMAGE_SUFFIXES, ""}):
        images = IMAGE_SUFFIXES if suffixes & {*IMAGE_SUFFIXES} else ()
        found["suffixes"] = (*images, *others)
    if "label" in reader.fields and not reader.classes:
        labels = reader.table(["label"])["label"].unique().to_pylist()
        found |= {"unlabelled": True} if {UNLABELLED}.issuperset(labels) else {}
    return found


def with_added_fields(manifest: Manifest, path: Path) -> Manifest:
    """Return the manifest of plain files together with the values that `annotate` added to them."""
    if not added_fields(path):
        return manifest
    with closing(formats.open(path, "files")) as reader:
        table, more = manifest.table, reader.added()
    for name in sorted(more):
        table = table.append_column(name, more[name])
    return replace(manifest, table=table)


def selected(manifest: Manifest, path: Path, where: str | None) -> Manifest:
    """Return the samples of plain files for which a condition is true.

    Without a condition, return all samples.
    """
    if where is None:
        return manifest
    with closing(formats.open(path, "files")) as reader:
        chosen = choose(reader, where=where)
        return manifest.select(chosen.rows) if isinstance(chosen, Selected) else manifest


def resize_of(reader: Reader) -> dict[str, Any] | None:
    """Return how pictures were scaled before packing. Return None if they were not scaled."""
    record = (reader.info().get("provenance") or {}).get("resize")
    return record if isinstance(record, dict) else resize_sidecar(reader.path)


def resize_sidecar(path: Path) -> dict[str, Any] | None:
    """Read the record of scaling that lies beside plain files, which cannot contain it.

    Return None if there is no such record.
    """
    try:
        record = json.loads(path.with_name(path.name + ".resized.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse_shortage(error, path)
        return None
    return record if isinstance(record, dict) else None
