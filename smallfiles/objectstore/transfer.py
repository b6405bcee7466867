"""Packed outputs to an object store and back: several requests in flight, verified, resumable.

A push sends the objects first and their manifest last, so an interrupted push leaves no manifest and thus no
data set. Each block is compared with the digest taken while packing before it is sent, and the server
compares the MD5 of each part. A second push sends only what is missing: it recognises an object by its size
and by the ETag in the manifest, or by its MD5 while there is no manifest; and the store lists the parts of an
unfinished object.

No object is ever replaced: each is created under the condition that none has its name. So two pushes of one
data set may run at once, and another data set is refused. The trap: some servers ignore conditions (rclone).
There, pushes of two data sets that begin at the same moment may replace objects of each other. Sizes and
ETags are compared before the manifest is written, and each reader compares each block with the digest in the
manifest, so a mixture is never read. Notebook 09 teaches it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from smallfiles import formats
from smallfiles.atomic import bytes_and_files_of, check_room, drafted, sweep
from smallfiles.digests import sidecar
from smallfiles.errors import (
    DamagedFileError,
    FormatError,
    OutputExistsError,
    SourceError,
    UsageError,
    first_few,
    writing,
)
from smallfiles.objectstore.access import (
    MANIFEST,
    PART_BYTES,
    Moved,
    StoreUrl,
    TransferConfig,
    without_password,
)
from smallfiles.objectstore.catalog import Catalog, Item, fetch, of_output, read_blocks
from smallfiles.objectstore.client import ConditionError, Entry, NoObjectError, Store
from smallfiles.samples import Buffer
from smallfiles.staging.copying import LocalFiles, Part, move, parts_of
from smallfiles.staging.placement import INODES_TO_LEAVE, Member
from smallfiles.storage import ReadingPool, timeout

_TRIES, _PAUSE_S = 3, 0.5
_md5 = partial(hashlib.md5, usedforsecurity=False)


def push(out: Path | str, url: str | Store, *, config: TransferConfig | None = None) -> Moved:
    """Send a packed output and publish it.

    Args:
        out: A packed file or folder of shards.
        url: `s3://bucket/prefix`, for this data set alone; or a store with keys of its own.
        config: How to send it.

    Returns:
        What was sent, and what was there already.

    Raises:
        OutputExistsError: Another data set is there.
        DamagedFileError: A file is not what was packed.
        SmallfilesError: The store refused, or did not answer.
    """
    config, began = config or TransferConfig(), time.perf_counter()
    out, store = Path(out), url if isinstance(url, Store) else Store(StoreUrl.parse(url))
    with timeout(config.storage_timeout_s):
        catalog, members = of_output(out)
        published = _published(store, catalog)
        target = StoreTarget(store, (published or catalog).items, members)
        was_missing = _send(target, f"push {catalog.name}", config.workers)
        if was_missing or published is None:
            _publish(store, catalog.sent(target.etags), published)
        return _moved(out, store, catalog, max(0, catalog.bytes - target.sent_bytes), began)


def pull(url: str, out: Path | str, *, config: TransferConfig | None = None) -> Moved:
    """Fetch a data set; each block is compared with its digest, and a second run continues.

    Args:
        url: Where it was pushed to.
        out: The packed file or folder to make; with a suffix of the same format.
        config: How to fetch it.

    Returns:
        What was fetched, and what an earlier run had fetched.

    Raises:
        NoObjectError: There is no complete data set.
        FormatError: Its manifest is not one of ours, or has names that must not be written.
        DamagedFileError: The store holds other bytes than were pushed.
        OutputExistsError: `out` exists.
    """
    config = config or TransferConfig()
    with timeout(config.storage_timeout_s):
        return _pull(Store(StoreUrl.parse(url)), Path(out).absolute(), config.workers)


def _pull(store: Store, out: Path, workers: int) -> Moved:
    began, catalog = time.perf_counter(), Catalog.read(store)
    if formats.name_of(out) != catalog.format:
        raise UsageError(
            f"{out.name} does not fit the data set {catalog.name}, format {catalog.format}",
            expected="a suffix of the same format",
            next_step=f"Name it like {catalog.name}",
        )
    sweep(out)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    files = sum(1 + item.sidecar for item in catalog.items)
    check_room(out, catalog.bytes - bytes_and_files_of(out)[0], files + INODES_TO_LEAVE)
    with drafted(out, "pulling") as draft, writing(out):
        paths = [catalog.local(item, draft.main) for item in catalog.items]
        for path in {path for path in draft.main.parent.rglob("*") if not path.is_dir()} - {*paths}:
            path.unlink()  # what an interrupted pull of another data set left
        kept = fetch(store, catalog.items, paths, workers, what=f"pull {catalog.name}", resume=True)
        for item, path in zip(catalog.items, paths, strict=True):
            if item.sidecar:
                item.digest.save(sidecar(path))
        draft.publish()
    return _moved(out, store, catalog, kept, began)


@dataclass(frozen=True)
class Listing:
    """The objects below a URL.

    Args:
        url: Bucket and prefix.
        entries: All objects, the manifest included.
        catalog: The manifest; None if there is none.
        note: Why the data set is not complete; "" if it is.
    """

    url: str
    entries: tuple[Entry, ...]
    catalog: Catalog | None
    note: str

    def as_json(self) -> dict[str, Any]:
        """Return the listing as a dictionary that JSON can store."""
        samples = {item.name: item.samples for item in self.catalog.items} if self.catalog else {}
        objects = [{"name": e.name, "bytes": e.bytes, "samples": samples.get(e.name)} for e in self.entries]
        found: dict[str, Any] = {"url": self.url, "complete": not self.note, "note": self.note}
        if self.catalog is not None:
            found |= {"name": self.catalog.name, "format": self.catalog.format}
            found |= {"samples": self.catalog.samples, "set_digest": self.catalog.set_digest}
        return found | {"bytes": sum(entry.bytes for entry in self.entries), "objects": objects}


def ls(url: str) -> Listing:
    """List the objects below a URL, and compare them with their manifest."""
    store = Store(StoreUrl.parse(url))
    entries = tuple(store.entries())
    catalog = Catalog.read(store) if any(entry.name == MANIFEST for entry in entries) else None
    if catalog is not None:
        wrong = _changed(catalog, entries)
        note = f"missing or not what was sent: {wrong}" if wrong else ""
    elif entries:
        note = f"there is no {MANIFEST}, which a push writes last; the same push continues an interrupted one"
    else:
        note = "nothing is there"
    return Listing(str(store.place), entries, catalog, note)


def _moved(path: Path, store: Store, catalog: Catalog, kept: int, began: float) -> Moved:
    seconds, objects = time.perf_counter() - began, len(catalog.items)
    return Moved(path, str(store.place), objects, catalog.samples, catalog.bytes, kept, seconds)


def _changed(catalog: Catalog, entries: Iterable[Entry]) -> str:
    """Name the objects that are missing or have another size or ETag, for messages, or return ""."""
    there = {entry.name: entry for entry in entries}
    names = [item.name for item in catalog.items if not _is_as_sent(item, there.get(item.name))]
    return first_few(names, len(names)) if names else ""


def _is_as_sent(item: Item, entry: Entry | None) -> bool:
    """Check that an object exists with the size of the item, and with its ETag if that was recorded."""
    return entry is not None and entry.bytes == item.bytes and item.etag in ("", entry.etag)


def _published(store: Store, catalog: Catalog) -> Catalog | None:
    """Return the published manifest of this data set with its ETags, or None if there is none.

    Raises:
        OutputExistsError: The manifest belongs to another data set.
    """
    try:
        text, found = store.get(MANIFEST).decode(errors="replace"), None
    except NoObjectError:
        return None
    with contextlib.suppress(FormatError):
        found = Catalog.parse(text, f"{store.place}/{MANIFEST}")
    if found is None or found.sent({}).text != catalog.sent({}).text:
        raise _taken(store, "another data set")
    return found


def _taken(store: Store, by: str) -> OutputExistsError:
    return OutputExistsError(
        f"{store.place} holds {by}",
        expected="no objects, or those of the same data set",
        next_step="Choose another prefix; or remove what is there with your site's tools, if nobody needs it",
    )


def _send(target: StoreTarget, what: str, workers: int) -> bool:
    """Send all objects that the store does not have; whether there was one.

    Raises:
        OutputExistsError: Some of these names have other objects.
    """
    was_missing, tries, count = False, 0, 0
    while missing := target.find_missing(workers):
        was_missing, tries = True, 1 if len(target.etags) > count else tries + 1
        count, parts = len(target.etags), parts_of(target.items, PART_BYTES, missing)
        try:
            move(parts, target.source, target, what=what, threads=workers)
            break
        except (ConditionError, NoObjectError):  # another push may have sent it meanwhile
            if tries == _TRIES:
                raise
    return was_missing


def _publish(store: Store, catalog: Catalog, published: Catalog | None) -> None:
    """Write the manifest if the store has all that was sent.

    Raises:
        SourceError: It has something else, or does not keep the manifest.
        OutputExistsError: Another data set was published meanwhile.
    """
    changed = _changed(catalog, store.entries())
    for _ in range(_TRIES):
        if changed:  # another push may be replacing an object by the same bytes, where conditions are ignored
            time.sleep(_PAUSE_S)
            changed = _changed(catalog, store.entries())
    _published(store, catalog)
    if changed:
        raise SourceError(
            f"{store.place} does not hold what was sent: {changed}",
            expected="objects of the sizes and ETags that were sent",
            next_step="Run it again when nobody else writes there",
        )
    if published is None or published.text != catalog.text:
        with contextlib.suppress(ConditionError):
            store.put(MANIFEST, catalog.text.encode(), create=published is None)
    if _published(store, catalog) is None:
        raise SourceError(
            f"{store.place}/{MANIFEST} was sent, and {without_password(store.endpoint)} does not have it",
            expected="a server that keeps what it accepts",
            next_step="Run it again; if that does not help, ask those who run the server",
        )


class StoreTarget:
    """Objects of a store as the target of a transfer: each is sent in one request, or in parts.

    The store lists the parts of an unfinished object, so those are not sent again.

    Args:
        store: Where they go.
        items: The objects.
        members: Their files.

    Attributes:
        etags: The ETag of each object in the store, by name.
        sent_bytes: What was sent.
    """

    def __init__(self, store: Store, items: Sequence[Item], members: Sequence[Member]) -> None:
        self.items, self.source = items, LocalFiles(members, shared=True)  # in large pieces
        self.etags: dict[str, str] = {}
        self.sent_bytes = 0
        self._store, self._lock = store, threading.Lock()
        self._begun: dict[int, tuple[str, dict[int, str]]] = {}
        self._beginning = [threading.Lock() for _ in items]

    def find_missing(self, workers: int) -> list[int]:
        """Return the numbers of the objects that the store does not have; `etags` has those of the others.

        Raises:
            OutputExistsError: Some of these names have other objects.
        """
        self._begun.clear()
        entries = {entry.name: entry for entry in self._store.entries()}
        found = [number for number, item in enumerate(self.items) if item.name in entries]
        with ReadingPool(workers, "objects") as pool:
            same = list(pool.map(lambda n: self._is_sent(n, entries[self.items[n].name]), found))
        self.source.close()
        if others := [self.items[number].name for number, fits in zip(found, same, strict=True) if not fits]:
            raise _taken(self._store, f"other objects of these names: {first_few(others, len(others))}")
        self.etags = {self.items[number].name: entries[self.items[number].name].etag for number in found}
        return [number for number, item in enumerate(self.items) if item.name not in entries]

    def _is_sent(self, number: int, entry: Entry) -> bool:
        """Check whether an object in the store has the bytes of the file, by ETag or else block by block."""
        item = self.items[number]
        if entry.etag == self.etags.get(item.name):
            return True
        if item.etag or entry.bytes != item.bytes:
            return _is_as_sent(item, entry)
        parts, whole, of_parts = parts_of(self.items, PART_BYTES, [number]), _md5(), _md5()
        for part in parts:
            data = self._read(part)
            whole.update(data)
            of_parts.update(_md5(data).digest())
        if entry.etag in (whole.hexdigest(), f"{of_parts.hexdigest()}-{len(parts)}"):
            return True
        try:
            for part in parts:  # the ETag may be one of parts of another size, or of encrypted bytes
                read_blocks(self._store, item, part.blocks.start, len(part.blocks))
        except DamagedFileError:
            return False
        return True

    def _read(self, part: Part) -> bytes:
        return b"".join(map(bytes, self.source.pieces(part)))

    def _upload(self, number: int) -> tuple[str, dict[int, str]]:
        """Return the upload of an object that needs several parts, and the ETags of those that were sent."""
        item = self.items[number]
        with self._beginning[number]:
            if number not in self._begun:
                upload, known = "", dict[int, str]()
                parts = parts_of(self.items, PART_BYTES, [number])
                if len(parts) > 1:
                    with contextlib.suppress(NoObjectError):  # what some servers say if there is no upload
                        upload, known = self._store.begun(item.name)
                    if any(_md5(self._read(parts[n - 1])).hexdigest() != etag for n, etag in known.items()):
                        upload, known = "", {}  # an upload of other bytes
                    upload = upload or self._store.begin(item.name)
                self._begun[number] = upload, known
            return self._begun[number]

    def holds(self, part: Part) -> bool:
        """Check whether an earlier run sent a part."""
        return part.number in self._upload(part.file)[1]

    def write(self, part: Part, pieces: Iterable[Buffer]) -> None:
        """Send a part, after all of it was compared with its digest."""
        name, data = self.items[part.file].name, b"".join(map(bytes, pieces))
        upload, etags = self._upload(part.file)
        etags[part.number] = (
            self._store.put_part(name, upload, part.number, data)
            if upload
            else self._store.put(name, data, create=True)
        )
        with self._lock:
            self.sent_bytes += len(data)

    def finish(self, file: int) -> None:
        """Make the parts one object."""
        name, (upload, etags) = self.items[file].name, self._upload(file)
        if upload:
            self._store.complete(name, upload, [etags[number] for number in sorted(etags)])
        self.etags[name] = self._store.head(name).etag if upload else etags[1]

    def close(self) -> None:
        """Do nothing: the connections belong to the store."""
