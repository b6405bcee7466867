"""What a node keeps of pushed shards: the small objects that say where samples are, and shards if asked.

    smallfiles-UID/KEY/data/train.tars/…     manifest and indexes, fetched once a node
    smallfiles-UID/KEY/data/shard-000003.tar a shard, fetched by the first stream that comes to it

Both lie in slots of staging: made under a lock by one process while the others wait, compared with their
digests, listed by `smallfiles staged`, and gone with the processes that read them, also after a `kill -9`.

The trap: an epoch goes through all shards once, in another order each time. With room for half of them a
cache that throws out the oldest one saves 15 % of the requests, and a fixed part saves 50 %; so a fixed
part is kept, as many as fit. Notebook 09 measures it.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from smallfiles import locks, signals
from smallfiles.errors import FormatError, ResourceError
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.output import write_all, writing
from smallfiles.formats.tar import index
from smallfiles.objectstore.catalog import Catalog, Item, read_blocks
from smallfiles.objectstore.client import NoObjectError, Store
from smallfiles.objectstore.config import MANIFEST
from smallfiles.owners import Owner, this_process
from smallfiles.staging import places
from smallfiles.staging.config import StageConfig
from smallfiles.staging.outputs import Member, Output
from smallfiles.staging.run import Make, once
from smallfiles.staging.slots import Slot, let_go, sweep

_ASKED_AT_ONCE = 16
_OPEN_FILES = 64


class NodeCache:
    """Slots of this node for one pushed output.

    Args:
        store: Where the output was pushed to.
        keep_bytes: Shards of so many bytes are kept; 0 keeps none.
        where: `auto`, or a directory of this node.

    Raises:
        NoObjectError: Nothing was pushed there, or not all of it.
        ResourceError: No place has the room.
    """

    def __init__(self, store: Store, keep_bytes: int, where: str | Path) -> None:
        self._url, self._keep_bytes = str(store.place), keep_bytes
        self._owner = this_process()
        self._key = _key_of([store.endpoint, self._url, _etag_of_manifest(store)])
        self._files: dict[str, ByteFile] = {}
        self._kept: set[str] = set()
        passed = []
        found, _ = places.candidates(where, None)
        for place in found:
            try:
                self._place = place
                self._folder = locks.private_folder(place.path, places.folder_kind(place.filesystem))
                sweep(self._folder, spare=self._key)
                _, items = self.begin(store)
                break
            except ResourceError as error:
                passed.append(error.got)
        else:
            raise places.nowhere(self._output(0), passed)
        self._ends: Callable[[], object] | None = _ending(
            self._folder, [self._key, *map(_key_of, items)], self._owner, self
        )

    def begin(self, store: Store) -> tuple[Path, list[Item]]:
        """Have the small objects on this node.

        Returns:
            The folder where they are, and the shards in order.
        """
        slot = Slot(self._folder, self._key)
        folder = slot.data / self._name
        with self._held(slot, self._output(0), partial(self._fetch_small, store)):
            catalog = Catalog.parse((folder / MANIFEST).read_text(encoding="utf-8"), self._url)
        items, room = [item for item in catalog.items if item.is_data], self._keep_bytes
        self._kept = {item.name for item in items if (room := room - item.bytes) >= 0}
        return folder, items

    def keeps(self, item: Item) -> bool:
        """Whether a shard is one of those that are kept on this node."""
        return item.name in self._kept

    def kept(self, item: Item) -> ByteFile | None:
        """A shard from this node, if it is here."""
        if item.name not in self._kept or item.name in self._files:
            return self._files.get(item.name)
        slot = Slot(self._folder, _key_of(item))
        descriptor = locks.try_lock(slot.lock, shared=True, create=False)
        if descriptor is None:
            return None
        try:
            return self._opened(slot, item) if slot.facts() is not None else None
        finally:
            os.close(descriptor)

    def fetched(self, item: Item, store: Store, pool: ThreadPoolExecutor) -> ByteFile:
        """A shard from this node; the first that asks fetches it, while the others wait.

        Args:
            item: Which.
            store: Where it is.
            pool: Fetches several blocks at once.

        Raises:
            ResourceError: There is no room any more.
        """
        found = self.kept(item)
        if found is not None:
            return found
        slot = Slot(self._folder, _key_of(item))
        make = partial(self._fetch_shard, item, store, pool)
        with self._held(slot, self._output(item.bytes), make):
            return self._opened(slot, item)

    def end(self) -> None:
        """Give up what is kept for this process; the last one out removes it."""
        self._files.clear()
        if self._ends is not None:
            self._ends()

    @property
    def _name(self) -> str:
        return self._url.rpartition("/")[2]

    def _output(self, total_bytes: int) -> Output:
        """What staging is to know of it: how much room it takes, and its name for those that wait."""
        source = Path(self._url)
        member = Member(self._name, source, total_bytes, (0, 0, 0, 0), None, is_data=True)
        return Output(source, (member,), self._key, shared=True)

    @contextmanager
    def _held(self, slot: Slot, output: Output, make: Make) -> Iterator[None]:
        """A filled slot, kept as long as the process lives that opened the output, if it did not end yet."""
        use, small = once(slot, output, make), Slot(self._folder, self._key)
        try:
            if slot != small or self._owner.name == str(os.getpid()):
                slot.hold(self._owner)
            yield
        finally:
            use.leave()
            if slot != small and self._owner not in small.holders():
                let_go(slot, self._owner)

    def _opened(self, slot: Slot, item: Item) -> ByteFile:
        if len(self._files) >= _OPEN_FILES:  # each holds a descriptor
            self._files.pop(next(iter(self._files)), None)
        file = self._files[item.name] = ByteFile(slot.data / item.name, "mmap")
        return file

    def _fetch_small(self, store: Store, slot: Slot, _: object) -> tuple[Sequence[str], dict[str, Any]]:
        folder, catalog = slot.copying / self._name, Catalog.read(store)
        if catalog.format != "tar" or not all(
            item.name.endswith(".tar") for item in catalog.items if item.is_data
        ):
            raise FormatError(
                f"{self._url} holds {catalog.name}, which cannot be read in part",
                expected="shards in plain .tar files",
                next_step="Fetch it with smallfiles pull; or pack into .tars, uncompressed",
            )
        small = [item for item in catalog.items if item.name.endswith(index.SUFFIX)]
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            contents = list(
                pool.map(lambda item: read_blocks(store, item, 0, len(item.digest.blocks)), small)
            )
        places.check_room(self._place, self._output(sum(map(len, contents))), StageConfig(leave_bytes=0))
        with writing(folder):
            folder.mkdir()
            (folder / MANIFEST).write_text(catalog.text, encoding="utf-8")
            for item, content in zip(small, contents, strict=True):
                (folder / item.name).write_bytes(content)
        names = [MANIFEST, *(item.name for item in small)]
        return [f"{self._name}/{name}" for name in names], self._facts(sum(map(len, contents)))

    def _fetch_shard(
        self, item: Item, store: Store, pool: ThreadPoolExecutor, slot: Slot, _: object
    ) -> tuple[Sequence[str], dict[str, Any]]:
        places.check_room(self._place, self._output(item.bytes), StageConfig())
        path = slot.copying / item.name

        def place(number: int) -> None:
            write_all(file.fileno(), [read_blocks(store, item, number, 1)], item.span(number, 1)[0], path)

        with writing(path), path.open("wb") as file:
            asked = [pool.submit(place, number) for number in range(len(item.digest.blocks))]
            try:
                for one in asked:
                    one.result()
            finally:
                for one in asked:
                    one.cancel()
                wait(asked)  # none may write into a file that is closed
        return [item.name], self._facts(item.bytes)

    def _facts(self, total_bytes: int) -> dict[str, Any]:
        return {"name": self._name, "source": self._url, "bytes": total_bytes, "verified": True}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}, "_ends": None}


def _ending(folder: Path, keys: Sequence[str], owner: Owner, holder: object) -> Callable[[], object]:
    """Give everything up when the reader goes, its process ends, or a signal ends it."""
    called: list[Callable[[], object]] = []
    pid = os.getpid()

    def end() -> None:
        for each in called:
            signals.remove(each)
        if os.getpid() == pid:  # a forked worker owns nothing
            for key in keys:
                let_go(Slot(folder, key), owner)

    ends = weakref.finalize(holder, end)
    called.append(ends)
    signals.add(ends)
    return ends


def _key_of(facts: Item | Sequence[str]) -> str:
    """The name of a slot: of a place in a state, or of what a shard holds, wherever it lies."""
    if isinstance(facts, Item):
        facts = [facts.name, str(facts.bytes), *facts.digest.blocks]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _etag_of_manifest(store: Store) -> str:
    try:
        return store.head(MANIFEST).etag
    except NoObjectError:
        Catalog.read(store)  # tells what that means
        raise
