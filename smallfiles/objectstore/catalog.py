"""The manifest object of a data set: names, samples, and the digest of each block of each object.

It is called `smallfiles.json` and is written last, so a data set is published at the moment when it appears.
One request for it describes the whole set; a listing takes a request per thousand objects, and cannot tell an
interrupted push from a complete one. Equal data sets have equal manifests, except for ETags, which the store
gives.

The trap: names in it come from a bucket that others may write to. Each is checked before it is joined to a
folder, and each block is compared with its hash before it is used. Notebook 09 teaches it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smallfiles import formats
from smallfiles.digests import SIDECAR_SUFFIX, SIDECARS, ContentDigest, adds_to, digest_file
from smallfiles.errors import DamagedFileError, FormatError, printable
from smallfiles.folders import is_writable_name, key_problem
from smallfiles.objectstore.access import MANIFEST, PART_BYTES
from smallfiles.objectstore.client import NoObjectError, Store
from smallfiles.samples import Buffer
from smallfiles.staging import placement
from smallfiles.staging.copying import NewFiles, Part, move, parts_of, span

_KIND = "smallfiles objects"
_VERSION = 1


@dataclass(frozen=True)
class Item:
    """One object.

    Args:
        name: After the prefix.
        digest: Of its content.
        samples: How many samples it holds; 0 for the small files of a packed one.
        sidecar: Whether its file has a digest file.
        etag: The ETag that the store gave it; "" before it is sent.
    """

    name: str
    digest: ContentDigest
    samples: int = 0
    sidecar: bool = True
    etag: str = ""

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.digest.file_bytes

    @property
    def is_data(self) -> bool:
        """Whether it is a packed file, and not one of its small files."""
        return not (self.name.endswith(SIDECARS) or adds_to(self.name))

    def damaged(self, start: int, data: Buffer) -> int | None:
        """Return the first block that differs from what was packed, or None.

        `start` is the offset at which `data` and a block begin.
        """
        step, view = self.digest.block_bytes, memoryview(data)
        for offset in range(0, len(view), step):
            number = (start + offset) // step
            if not self.digest.block_is_intact(number, view[offset : offset + step]):
                return number
        return None


@dataclass(frozen=True)
class Catalog:
    """What a data set in an object store consists of.

    Args:
        name: Name of the packed file or folder.
        format: Name of its format.
        is_folder: Whether it is a folder of shards.
        items: Its objects; each packed file comes before its small files.
        provenance: The record of how it was packed; {} without one.
    """

    name: str
    format: str
    is_folder: bool
    items: tuple[Item, ...]
    provenance: dict[str, Any]

    @property
    def samples(self) -> int:
        """Number of samples in all objects."""
        return sum(item.samples for item in self.items)

    @property
    def bytes(self) -> int:
        """Size of all objects in bytes."""
        return sum(item.bytes for item in self.items)

    @property
    def set_digest(self) -> str:
        """The digest of the set of samples; "" if the packed file has none."""
        schema = self.provenance.get("schema")
        return str(schema.get("manifest_digest", "")) if isinstance(schema, dict) else ""

    @property
    def text(self) -> str:
        """The content of the manifest object."""
        objects = [
            {
                "name": item.name,
                "samples": item.samples,
                "sidecar": item.sidecar,
                "digest": item.digest.record(),
                **({"etag": item.etag} if item.etag else {}),
            }
            for item in self.items
        ]
        record = {
            "kind": _KIND,
            "version": _VERSION,
            "name": self.name,
            "format": self.format,
            "folder": self.is_folder,
            "samples": self.samples,
            "bytes": self.bytes,
            "set_digest": self.set_digest,
            "objects": objects,
            "provenance": self.provenance,
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n"

    def sent(self, etags: Mapping[str, str]) -> Catalog:
        """Return the catalog with these ETags. With {}, two catalogs can be compared without their ETags."""
        return replace(self, items=tuple(replace(item, etag=etags.get(item.name, "")) for item in self.items))

    def local(self, item: Item, out: Path) -> Path:
        """Return the path of an object's file for a packed file or folder at `out`."""
        if self.is_folder and not self._is_beside(item.name):
            return out / item.name
        return out.with_name(out.name + item.name[len(self.name) :])

    def _is_beside(self, name: str) -> bool:
        """Check whether a name belongs to a small file next to the packed file or folder."""
        return name in {self.name + suffix for suffix in SIDECARS} or adds_to(name) == self.name

    @classmethod
    def read(cls, store: Store) -> Catalog:
        """Read the manifest of a store.

        Raises:
            NoObjectError: There is none: nothing was pushed there, or the push has not ended.
            FormatError: It is not one of ours, or has names that must not be used.
        """
        try:
            text = store.get(MANIFEST).decode(errors="replace")
        except NoObjectError:
            raise NoObjectError(
                f"{store.place} has no {MANIFEST}, so no data set is complete there",
                expected="what smallfiles push wrote",
                next_step=f"Check the name, or list what is there: smallfiles ls {store.place}",
            ) from None
        return cls.parse(text, f"{store.place}/{MANIFEST}")

    @classmethod
    def parse(cls, text: str, where: str) -> Catalog:
        """Read the content of a manifest object, and check each name in it."""
        try:
            record = json.loads(text)
            items = tuple(
                Item(
                    str(one["name"]),
                    ContentDigest.of_record(one["digest"], where),
                    int(one["samples"]),
                    bool(one["sidecar"]),
                    str(one.get("etag", "")),
                )
                for one in record["objects"]
            )
            name, provenance = str(record["name"]), record["provenance"]
            found = cls(name, str(record["format"]), bool(record["folder"]), items, dict(provenance))
            if record["kind"] != _KIND or record["version"] != _VERSION:
                raise ValueError(f"{record['kind']!r}, version {record['version']}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(
                f"{where} is not a manifest of ours ({type(error).__name__}: {printable(str(error))[:200]})",
                expected=f"{_KIND}, version {_VERSION}",
                next_step="Push the data set again, or use the version of this package that wrote it",
            ) from error
        found._refuse_odd_names(where)
        return found

    def _refuse_odd_names(self, where: str) -> None:
        names = [item.name for item in self.items]
        for name in (self.name, *names):
            problem = key_problem(name)
            if problem is None and "/" in name:
                problem = "leads into a folder"
            elif problem is None and not is_writable_name(name):
                problem = "is too long"
            elif problem is None and printable(name) != name:
                problem = "has characters that no name of ours has"
            known = self.is_folder or name == self.name or self._is_beside(name)
            if problem or name.startswith(".") or not known:
                raise _odd(f"{where} has the name {name!r}, which {problem or 'is not one of a data set'}")
        if len(set(names)) < len(names):
            raise _odd(f"{where} has a name twice")


def _odd(got: str) -> FormatError:
    return FormatError(
        got,
        expected="plain names of packed files, each once",
        next_step="Do not use this data set, and ask who wrote it; no file was written",
    )


def of_output(out: Path) -> tuple[Catalog, list[placement.Member]]:
    """Make the catalog of a packed output, and return it with the files in the order of its items.

    Raises:
        SmallfilesError: The output does not exist, is damaged, or is a tree of small files.
    """
    found = placement.find_output(out)
    names = {member.name for member in found.members}
    members = [each for each in found.members if not _is_digest_of_one(each.name, names)]
    items: list[Item] = []
    provenance: dict[str, Any] = {}
    for member in members:
        samples = 0
        name = member.name.rpartition("/")[2]
        if member.is_data and not adds_to(name):
            with closing(formats.open(member.source)) as reader:
                samples = len(reader)
                provenance = provenance or reader.info().get("provenance") or {}
        digest = member.digest or digest_file(member.source)
        items.append(Item(name, digest, samples, member.digest is not None))
    format, is_folder = formats.name_of(found.source), found.source.is_dir()
    catalog = Catalog(found.name, format, is_folder, tuple(items), provenance)
    catalog._refuse_odd_names(str(out))
    return catalog, members


def _is_digest_of_one(name: str, names: set[str]) -> bool:
    return name.endswith(SIDECAR_SUFFIX) and name.removesuffix(SIDECAR_SUFFIX) in names


def read_blocks(store: Store, item: Item, block: int, count: int) -> bytearray:
    """Read some blocks of an object, and compare each with its hash.

    Blocks that were damaged on the way are read once more.

    Raises:
        DamagedFileError: The store holds other bytes.
    """
    start, stop = span(item, block, count)
    for _ in range(2):
        data = store.get_range(item.name, start, stop)
        number = item.damaged(start, data)
        if number is None:
            return data
    assert number is not None
    raise DamagedFileError(
        f"{store.place}/{item.name}: block {number} of {len(item.digest.blocks)} is not what was packed",
        expected=f"bytes from {number * item.digest.block_bytes:,} on with the hash in the manifest",
        next_step="Remove that object and push the data set again",
    )


class StoreObjects:
    """Objects of a store as the source of a transfer.

    Args:
        store: Where they are.
        items: The objects.
    """

    def __init__(self, store: Store, items: Sequence[Item]) -> None:
        self._store, self._items = store, items

    def pieces(self, part: Part) -> Iterator[Buffer]:
        """Yield the bytes of a part, which come in one request; a damaged block is read once more."""
        if part.blocks:
            yield read_blocks(self._store, self._items[part.file], part.blocks.start, len(part.blocks))

    def finish(self, file: int) -> None:
        """Do nothing: each request compares the ETag."""

    def close(self) -> None:
        """Do nothing: the connections belong to the store."""


def fetch(
    store: Store,
    items: Sequence[Item],
    paths: Sequence[Path],
    threads: int,
    *,
    what: str = "",
    resume: bool = False,
) -> int:
    """Write objects to files.

    Args:
        store: Where the objects are.
        items: The objects.
        paths: The files.
        threads: How many parts to fetch at once.
        what: The text of the progress bar; without one, nothing is shown.
        resume: Whether blocks of an earlier run that match their digest are kept.

    Returns:
        How many bytes an earlier run had written.
    """
    target = NewFiles(items, paths, resume=resume)
    return move(parts_of(items, PART_BYTES), StoreObjects(store, items), target, what=what, threads=threads)
