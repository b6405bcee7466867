"""Packed outputs to an object store and back: several requests in flight, verified, resumable.

A push sends the objects first and their manifest last, and looks whether that is there. Each part travels
with its MD5, which the server compares; each block was compared with the digest taken while packing before
it left. What the server says of the whole object at the end must fit too. A second push finds what is there
already by size and by the ETag that the manifest has of it, or by MD5 while there is none, parts of an
unfinished object included. While it runs, `smallfiles.json.uploading` (the same manifest) says so.

Two pushes of one data set at once write equal bytes, so either may finish first. Another data set is
refused: at the beginning by that object, at the end by the MD5 of every object. The trap: servers without
conditional writes (rclone) let both begin within one round trip; then at least one of them ends in a
sentence and without a manifest. Notebook 09 teaches it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
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
)
from smallfiles.formats.output import write_all, writing
from smallfiles.objectstore.catalog import Catalog, Item, of_output, read_blocks, spread
from smallfiles.objectstore.client import ConditionError, Entry, NoObjectError, Store
from smallfiles.objectstore.config import (
    MANIFEST,
    PART_BYTES,
    Moved,
    StoreUrl,
    TransferConfig,
    without_password,
)
from smallfiles.progress import progress
from smallfiles.staging.copying import create

_CLAIM = f"{MANIFEST}.uploading"
_INODES_TO_LEAVE = 100
_TRIES = 3
_LOOKS_S = (0.0, 0.3, 1.5)  # another push of the same may be writing the same bytes at this moment
_T = TypeVar("_T")


def push(out: Path | str, url: str | Store, *, config: TransferConfig | None = None) -> Moved:
    """Send a packed output and publish it.

    Args:
        out: A packed file or folder of shards.
        url: `s3://bucket/prefix`; this data set alone lies there. Or a store that has keys of its own.
        config: How.

    Returns:
        What was sent, and what was there already.

    Raises:
        OutputExistsError: Another data set is there.
        DamagedFileError: A file is not what was packed.
        SmallfilesError: The store refused, or did not answer.
    """
    began, config = time.perf_counter(), config or TransferConfig()
    store = url if isinstance(url, Store) else Store(StoreUrl.parse(url))
    catalog, paths = of_output(Path(out))
    published = _published(store, catalog)
    kept = None if published is None else _all_there(store, published, paths)
    if kept is None:
        kept = _send_all(store, published or catalog, paths, config.workers)
    return _moved(Path(out), store, catalog, kept, began)


def pull(url: str, out: Path | str, *, config: TransferConfig | None = None) -> Moved:
    """Fetch a data set; each block is compared with its digest, and a second run goes on.

    Args:
        url: What it was pushed to.
        out: The packed file or folder to make; its suffix says the same format.
        config: How.

    Returns:
        What was fetched, and what an earlier run had fetched.

    Raises:
        NoObjectError: No data set is complete there.
        FormatError: Its manifest is none of ours, or names what must not be written.
        DamagedFileError: The store holds other bytes than were pushed.
        OutputExistsError: `out` exists.
    """
    began, config, out = time.perf_counter(), config or TransferConfig(), Path(out).absolute()
    store = Store(StoreUrl.parse(url))
    catalog = Catalog.read(store)
    if formats.name_of(out) != catalog.format:
        raise UsageError(
            f"{out.name} is no name for what is there: {catalog.name}, format {catalog.format}",
            expected="a suffix of the same format",
            next_step=f"Name it like {catalog.name}",
        )
    sweep(out)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    files = sum(1 + item.sidecar for item in catalog.items)
    check_room(out, catalog.bytes - bytes_and_files_of(out)[0], files + _INODES_TO_LEAVE)
    with drafted(out, "pulling") as draft, writing(out):
        kept = _fetch(store, catalog, draft.main, config.workers)
        for item in catalog.items:
            if item.sidecar:
                path = catalog.local(item, draft.main)
                item.digest.save(sidecar(path))
        draft.publish()
    return _moved(out, store, catalog, kept, began)


@dataclass(frozen=True)
class Listing:
    """What lies at a place.

    Args:
        url: The place.
        entries: All objects there, the manifest included.
        catalog: What the manifest says; None without one.
        note: Why it is not complete; "" if it is.
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
    """List a place, and compare it with its manifest."""
    store = Store(StoreUrl.parse(url))
    entries = tuple(store.entries())
    there = {entry.name: entry for entry in entries}
    catalog = Catalog.read(store) if MANIFEST in there else None
    note = ""
    if catalog is not None:
        wrong = [item.name for item in catalog.items if not _is_as_sent(item, there.get(item.name))]
        note = f"missing or not what was sent: {first_few(wrong, len(wrong))}" if wrong else ""
    elif _CLAIM in there:
        note = "an upload is under way or was interrupted: the same push goes on with it"
    else:
        note = (
            f"no {MANIFEST} is there, so this is not what smallfiles push wrote"
            if entries
            else "nothing is there"
        )
    return Listing(str(store.place), entries, catalog, note)


def _moved(path: Path, store: Store, catalog: Catalog, kept: int, began: float) -> Moved:
    seconds, objects = time.perf_counter() - began, len(catalog.items)
    return Moved(path, str(store.place), objects, catalog.samples, catalog.bytes, kept, seconds)


def _is_as_sent(item: Item, entry: Entry | None) -> bool:
    """Whether an object is there with the size, and the ETag if that was recorded, of then."""
    return entry is not None and entry.bytes == item.bytes and item.etag in ("", entry.etag)


def _published(store: Store, catalog: Catalog) -> Catalog | None:
    """The manifest of this data set with the ETags of when it was sent; None if there is none.

    Raises:
        OutputExistsError: It is that of another data set.
    """
    text, found = _text(store, MANIFEST), None
    if text is not None:
        with contextlib.suppress(FormatError):
            found = Catalog.parse(text, f"{store.place}/{MANIFEST}")
        if found is None or found.sent({}).text != catalog.sent({}).text:
            raise _taken(store, "another data set")
    return found


def _text(store: Store, name: str) -> str | None:
    try:
        return store.get(name).decode(errors="replace")
    except NoObjectError:
        return None


def _taken(store: Store, by: str) -> OutputExistsError:
    return OutputExistsError(
        f"{store.place} holds {by}",
        expected="a place where nothing is, or the same data set",
        next_step="Choose another prefix; or remove what is there with your site's tools, if nobody needs it",
    )


def _all_there(store: Store, published: Catalog, paths: list[Path]) -> int | None:
    """The bytes of what was published before, if it is all there still."""
    there = {entry.name: entry for entry in store.entries()}
    uploads = [
        _Upload(store, item, path, there.get(item.name), False)
        for item, path in zip(published.items, paths, strict=True)
    ]
    if not all(each.is_there() for each in uploads):
        return None
    if _CLAIM in there:  # of a push that was killed at its very end
        store.delete(_CLAIM)
    return published.bytes


def _send_all(store: Store, catalog: Catalog, paths: list[Path], workers: int) -> int:
    """Send and publish; the bytes that were there already."""
    resumed = _claim(store, catalog)
    for tries_left in reversed(range(_TRIES)):
        there = {entry.name: entry for entry in store.entries()}
        uploads = [
            _Upload(store, item, path, there.get(item.name), resumed)
            for item, path in zip(catalog.items, paths, strict=True)
        ]
        found = [each for each in uploads if each.entry is not None and not resumed]
        others = [each.item.name for each in found if not each.is_there()]
        if others:  # they may stay if they have the right bytes, and are never written over
            raise _taken(store, f"other objects of these names: {first_few(others, len(others))}")
        try:
            kept = _send(catalog, uploads, workers)
            _check(store, catalog, uploads)
            break
        except NoObjectError:  # it went away, perhaps by another push of the same
            if not tries_left:
                raise
            resumed = True
    final = catalog.sent({each.item.name: each.entry.etag for each in uploads if each.entry is not None})
    with contextlib.suppress(ConditionError):
        store.put(MANIFEST, final.text.encode(), create=not any(item.etag for item in catalog.items))
    _refuse_others(store, catalog)
    if _published(store, catalog) is None:
        raise SourceError(
            f"{store.place}/{MANIFEST} was sent, and {without_password(store.endpoint)} does not have it",
            expected="a server that keeps what it took",
            next_step="Run it again; if that does not help, ask those who run the server",
        )
    store.delete(_CLAIM)
    return kept


def _check(store: Store, catalog: Catalog, uploads: list[_Upload]) -> None:
    """Whether what is there now is what was sent.

    Raises:
        NoObjectError: Something is missing.
        OutputExistsError: Another data set comes here.
        SourceError: Somebody wrote other bytes.
    """
    now = {entry.name: entry for entry in store.entries()}
    _refuse_others(store, catalog)
    changed = [each for each in uploads if now.get(each.item.name) != each.entry]
    for each in changed:
        each.entry = now.get(each.item.name) or store.head(each.item.name)
        if not each.is_there():
            raise SourceError(
                f"{store.place}: somebody else wrote {each.item.name} meanwhile",
                expected="one data set for each place",
                next_step="Run it again when nobody else writes there",
            )


def _claim(store: Store, catalog: Catalog) -> bool:
    """Say which data set comes here; whether that was said before, by an earlier run or one at work."""
    said = _text(store, _CLAIM) is not None
    if not said:
        with contextlib.suppress(ConditionError):
            store.put(_CLAIM, catalog.sent({}).text.encode(), create=True)
    _refuse_others(store, catalog)
    return said


def _refuse_others(store: Store, catalog: Catalog) -> None:
    """Refuse a place to which another data set comes, or came meanwhile.

    Where the server heeds no conditions, two pushes may both begin. Who publishes looks for the other's claim
    afterwards; and who claims looks for a manifest after that: so one of them sees the other.
    """
    if _text(store, _CLAIM) not in (None, catalog.sent({}).text):
        raise _taken(store, "an unfinished upload of another data set")
    _published(store, catalog)


class _Upload:
    """One object on its way; its parts are sent by several threads.

    Args:
        store: Where to.
        item: What it holds.
        path: Its file.
        entry: What was there at first; then what was sent, as the server sees it.
        resumed: Whether an earlier run may have begun it.
    """

    def __init__(self, store: Store, item: Item, path: Path, entry: Entry | None, resumed: bool) -> None:
        self.item, self.entry = item, entry
        self._store, self._path, self._resumed = store, path, resumed
        self._lock = threading.Lock()
        self._step = item.blocks_of(PART_BYTES)
        self._count = max(1, -(-len(item.digest.blocks) // self._step))
        self._left = set(range(1, self._count + 1))
        self._known: dict[int, str] = {}
        self._etags: dict[int, str] = {}
        self._upload = ""
        self._begun = self._whole = False

    def is_there(self) -> bool:
        """Whether the object has the bytes of the file: by the ETag of when it was sent, or else by MD5."""
        if self.entry is None or not _is_as_sent(self.item, self.entry):
            return False
        if self.item.etag:
            return True
        _, dash, count = self.entry.etag.partition("-")
        step = self._step if dash else len(self.item.digest.blocks)
        starts = range(0, max(1, len(self.item.digest.blocks)), max(1, step))
        if dash and count != str(len(starts)):
            return False
        whole, parts = hashlib.md5(usedforsecurity=False), hashlib.md5(usedforsecurity=False)
        for block in range(0, max(1, len(self.item.digest.blocks)), self._step):
            data = self._read(block)
            whole.update(data)
            parts.update(hashlib.md5(data, usedforsecurity=False).digest())
        return self.entry.etag == (f"{parts.hexdigest()}-{count}" if dash else whole.hexdigest())

    def send(self, block: int) -> int:
        """Send the part that begins with a block; how many of its bytes were there already."""
        with self._lock:
            if not self._begun:
                self._begin()
        if self._whole:
            start, stop = self.item.span(block, self._step)
            return stop - start
        data, number = self._read(block), block // self._step + 1
        kept = 0
        try:
            if self._count == 1:
                self._store.put(self.item.name, data)
            elif self._known.get(number) == hashlib.md5(data, usedforsecurity=False).hexdigest():
                self._etags[number], kept = self._known[number], len(data)
            else:
                self._etags[number] = self._store.put_part(self.item.name, self._upload, number, data)
            with self._lock:
                self._left.discard(number)
                if not self._left and not self._whole:
                    self._end()
        except NoObjectError:  # another push of the same has just completed it
            with self._lock:
                self._whole = self._whole or self._was_completed()
                if not self._whole:
                    raise
        return kept

    def _was_completed(self) -> bool:
        for pause in _LOOKS_S:
            time.sleep(pause)
            with contextlib.suppress(NoObjectError):
                self.entry = self._store.head(self.item.name)
                if self.is_there():
                    return True
        return False

    def _begin(self) -> None:
        self._begun, self._whole = True, self.is_there()
        if self._count > 1 and not self._whole:
            if self._resumed:
                with contextlib.suppress(NoObjectError):  # it was ended while we asked
                    self._upload, self._known = self._store.begun(self.item.name)
            self._upload = self._upload or self._store.begin(self.item.name)

    def _end(self) -> None:
        if self._count > 1:
            etags = [self._etags[number] for number in range(1, self._count + 1)]
            self._store.complete(self.item.name, self._upload, etags)
        self.entry, self._whole = self._store.head(self.item.name), True
        if self.entry.bytes != self.item.bytes:
            raise SourceError(
                f"{self._store.place}/{self.item.name} has {self.entry.bytes:,} bytes in the store",
                expected=f"the {self.item.bytes:,} bytes that were sent",
                next_step="Run it again; if that does not help, ask those who run the server",
            )

    def _read(self, block: int) -> bytes:
        """A part of the file, compared with its digest."""
        start, stop = self.item.span(block, self._step)
        with self._path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), stop - start, start)
            while len(data) < stop - start and (
                more := os.pread(file.fileno(), stop - start - len(data), start + len(data))
            ):
                data += more
        if len(data) < stop - start or self.item.damaged(start, data) is not None:
            raise DamagedFileError(
                f"{self._path} is not what was packed, between the bytes {start:,} and {stop:,}",
                expected="the blocks of its digest",
                next_step="Pack it again, or copy it again from where it is whole; nothing was published",
            )
        return data


def _send(catalog: Catalog, uploads: list[_Upload], workers: int) -> int:
    """Send all that is not there; the bytes that were."""
    parts = spread(catalog.items, workers, PART_BYTES)
    with progress(len(parts), f"push {catalog.name}", unit="parts") as bar:

        def send(part: tuple[int, int]) -> int:
            index, block = part
            kept = uploads[index].send(block)
            start, stop = catalog.items[index].span(block, catalog.items[index].blocks_of(PART_BYTES))
            bar.advance(1, stop - start - kept)
            return kept

        return sum(_in_flight(send, parts, workers))


def _fetch(store: Store, catalog: Catalog, main: Path, workers: int) -> int:
    """Write all files below the folder of `main`; the bytes that an earlier run had written."""
    paths = [catalog.local(item, main) for item in catalog.items]
    for path in [path for path in main.parent.rglob("*") if not path.is_dir()]:
        if path not in paths:
            path.unlink()
    there = [path.exists() for path in paths]
    for item, path in zip(catalog.items, paths, strict=True):
        create(path, item.bytes)
    parts = spread(catalog.items, workers, PART_BYTES)
    with progress(len(parts), f"pull {catalog.name}", unit="parts") as bar:

        def fetch(part: tuple[int, int]) -> int:
            index, block = part
            item, count = catalog.items[index], catalog.items[index].blocks_of(PART_BYTES)
            start, stop = item.span(block, count)
            with paths[index].open("r+b", buffering=0) as file:
                held = (
                    there[index] and item.damaged(start, os.pread(file.fileno(), stop - start, start)) is None
                )
                if not held:
                    data = read_blocks(store, item, block, count)
                    write_all(file.fileno(), [data], start, paths[index])
            bar.advance(1, 0 if held else stop - start)
            return stop - start if held else 0

        return sum(_in_flight(fetch, parts, workers))


def _in_flight(work: Callable[[_T], int], items: Iterable[_T], workers: int) -> list[int]:
    """The results of all, so many at once; the first failure ends it."""
    with ThreadPoolExecutor(workers, "objects") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [done.result() for done in as_completed(futures)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
