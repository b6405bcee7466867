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
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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
from smallfiles.formats.output import write_all
from smallfiles.objectstore.catalog import Catalog, Item, of_output, read_blocks
from smallfiles.objectstore.client import ConditionError, Entry, NoObjectError, Store
from smallfiles.objectstore.config import (
    MANIFEST,
    PART_BYTES,
    Moved,
    StoreUrl,
    TransferConfig,
    without_password,
)
from smallfiles.progress import Progress, progress
from smallfiles.staging.copying import create
from smallfiles.storage import ReadingPool, timeout

_INODES_TO_LEAVE = 100
_TRIES, _PAUSE_S = 3, 0.5
_T = TypeVar("_T")
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
    config = config or TransferConfig()
    with timeout(config.storage_timeout_s):
        return _push(Path(out), url if isinstance(url, Store) else Store(StoreUrl.parse(url)), config.workers)


def _push(out: Path, store: Store, workers: int) -> Moved:
    began = time.perf_counter()
    catalog, paths = of_output(out)
    published = _published(store, catalog)
    items = (published or catalog).items
    uploads = [_Upload(store, item, path) for item, path in zip(items, paths, strict=True)]
    etags = _there(store, uploads, workers)
    missing = [each for each in uploads if each.item.name not in etags]
    kept = catalog.bytes - sum(each.item.bytes for each in missing)
    if missing or published is None:
        kept += _send(catalog.name, missing, workers)
        etags |= {each.item.name: each.etag for each in missing}
        _publish(store, catalog.sent(etags), published)
    return _moved(out, store, catalog, kept, began)


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
    began = time.perf_counter()
    catalog = Catalog.read(store)
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
    check_room(out, catalog.bytes - bytes_and_files_of(out)[0], files + _INODES_TO_LEAVE)
    with drafted(out, "pulling") as draft, writing(out):
        kept = _fetch(store, catalog, draft.main, workers)
        for item in catalog.items:
            if item.sidecar:
                path = catalog.local(item, draft.main)
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
        """JSON-ready."""
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
    """Names of objects that are missing or have another size or ETag, for messages; "" if there are none."""
    there = {entry.name: entry for entry in entries}
    names = [item.name for item in catalog.items if not _is_as_sent(item, there.get(item.name))]
    return first_few(names, len(names)) if names else ""


def _is_as_sent(item: Item, entry: Entry | None) -> bool:
    """Whether an object is there, with the size of the item and with its ETag if that was recorded."""
    return entry is not None and entry.bytes == item.bytes and item.etag in ("", entry.etag)


def _published(store: Store, catalog: Catalog) -> Catalog | None:
    """The manifest of this data set as it was published, with ETags; None if there is none.

    Raises:
        OutputExistsError: The manifest is that of another data set.
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


def _there(store: Store, uploads: list[_Upload], workers: int) -> dict[str, str]:
    """Names and ETags of the objects that are in the store already.

    Raises:
        OutputExistsError: Some of these names have other objects.
    """
    entries = {entry.name: entry for entry in store.entries()}
    found = [(each, entries[each.item.name]) for each in uploads if each.item.name in entries]
    with ReadingPool(workers, "objects") as pool:
        same = _results([pool.submit(each.is_sent, entry) for each, entry in found])
    others = [entry.name for (_, entry), fits in zip(found, same, strict=True) if not fits]
    if others:
        raise _taken(store, f"other objects of these names: {first_few(others, len(others))}")
    return {entry.name: entry.etag for _, entry in found}


def _send(name: str, uploads: list[_Upload], workers: int) -> int:
    """Send these objects; returns how many of their bytes an earlier run had sent."""
    count = sum(len(each.parts) for each in uploads)
    with (
        progress(count, f"push {name}", unit="parts") as bar,
        ReadingPool(workers, "objects") as objects,
        ReadingPool(workers, "parts") as parts,  # abandoned first, so that no object waits for its parts
    ):
        return sum(_results([objects.submit(each.send, parts, bar) for each in uploads]))


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


class _Upload:
    """One object that is to be sent.

    Args:
        store: The store to send it to.
        item: Its name and digest.
        path: Its file.
    """

    def __init__(self, store: Store, item: Item, path: Path) -> None:
        self.item, self.etag = item, ""
        self._store, self._path = store, path
        self._step = item.blocks_of(PART_BYTES)
        self.parts = range(1, 1 + max(1, -(-len(item.digest.blocks) // self._step)))

    def is_sent(self, entry: Entry) -> bool:
        """Whether an object of the store has the bytes of the file: by ETag, or else block by block."""
        if self.item.etag or entry.bytes != self.item.bytes:
            return _is_as_sent(self.item, entry)
        whole, parts = _md5(), _md5()
        for number in self.parts:
            data = self._read(number)
            whole.update(data)
            parts.update(_md5(data).digest())
        if entry.etag in (whole.hexdigest(), f"{parts.hexdigest()}-{len(self.parts)}"):
            return True
        try:
            for number in self.parts:  # the ETag may be one of parts of another size, or of encrypted bytes
                read_blocks(self._store, self.item, (number - 1) * self._step, self._step)
        except DamagedFileError:
            return False
        return True

    def send(self, pool: ThreadPoolExecutor, bar: Progress) -> int:
        """Send the object, several parts at once; returns how many bytes of it an earlier run had sent."""
        for _ in range(_TRIES):
            try:
                return self._send(pool, bar)
            except (ConditionError, NoObjectError) as error:  # another push may have sent it meanwhile
                failure = error
            with contextlib.suppress(NoObjectError):
                entry = self._store.head(self.item.name)
                if not self.is_sent(entry):
                    raise _taken(self._store, f"another object of this name: {entry.name}")
                self.etag = entry.etag
                return self.item.bytes
        raise failure

    def _send(self, pool: ThreadPoolExecutor, bar: Progress) -> int:
        """Send it in one request; or in parts, of which an unfinished upload may have some."""
        store, name = self._store, self.item.name
        upload, known = "", dict[int, str]()
        if len(self.parts) > 1:
            with contextlib.suppress(NoObjectError):  # some servers answer so where there is no upload
                upload, known = store.begun(name)
            if any(_md5(self._read(number)).hexdigest() != etag for number, etag in known.items()):
                upload, known = "", {}  # an upload of other bytes
            upload = upload or store.begin(name)

        def send(number: int) -> str:
            data = self._read(number)
            etag = (
                store.put_part(name, upload, number, data) if upload else store.put(name, data, create=True)
            )
            bar.advance(1, len(data))
            return etag

        missing = [number for number in self.parts if number not in known]
        etags = known | dict(zip(missing, pool.map(send, missing), strict=True))
        self.etag = etags[1]
        if upload:
            store.complete(name, upload, [etags[number] for number in self.parts])
            self.etag = store.head(name).etag
        return sum(stop - start for start, stop in map(self._span, known))

    def _span(self, number: int) -> tuple[int, int]:
        return self.item.span((number - 1) * self._step, self._step)

    def _read(self, number: int) -> bytes:
        """A part of the file, compared with its digest."""
        start, stop = self._span(number)
        with self._path.open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        if len(data) < stop - start or self.item.damaged(start, data) is not None:
            raise DamagedFileError(
                f"{self._path} is not what was packed, between the bytes {start:,} and {stop:,}",
                expected="the blocks of its digest",
                next_step="Pack it again, or copy it again from where it is whole; nothing was published",
            )
        return data


def _fetch(store: Store, catalog: Catalog, main: Path, workers: int) -> int:
    """Write all files below the folder of `main`; returns how many bytes an earlier run had written."""
    paths = [catalog.local(item, main) for item in catalog.items]
    for path in [path for path in main.parent.rglob("*") if not path.is_dir()]:
        if path not in paths:
            path.unlink()
    there = [path.exists() for path in paths]
    for item, path in zip(catalog.items, paths, strict=True):
        create(path, item.bytes)
    parts = [
        (item, path, held, block, item.blocks_of(PART_BYTES))
        for item, path, held in zip(catalog.items, paths, there, strict=True)
        for block in range(0, len(item.digest.blocks), item.blocks_of(PART_BYTES))
    ]
    with progress(len(parts), f"pull {catalog.name}", unit="parts") as bar:

        def fetch(item: Item, path: Path, held: bool, block: int, count: int) -> int:
            start, stop = item.span(block, count)
            with path.open("r+b", buffering=0) as file:
                held = held and item.damaged(start, os.pread(file.fileno(), stop - start, start)) is None
                if not held:
                    write_all(file.fileno(), [read_blocks(store, item, block, count)], start, path)
            bar.advance(1, 0 if held else stop - start)
            return stop - start if held else 0

        with ReadingPool(workers, "objects") as pool:
            return sum(_results([pool.submit(fetch, *part) for part in parts]))


def _results(futures: Sequence[Future[_T]]) -> list[_T]:
    """All results in order; the first failure ends the waiting."""
    for done in as_completed(futures):
        done.result()
    return [done.result() for done in futures]
