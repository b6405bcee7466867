"""What a node keeps of pushed shards: the indexes of all, and some of the shards if wanted.

    smallfiles-UID/KEY/data/train.tars/…               indexes, fetched once per node
    smallfiles-UID/KEY/data/train.tars/shard-000003.tar a shard, fetched by the first stream that needs it

They are in one slot of staging: made under a lock by one process while the others wait, compared with their
digests, listed by `smallfiles staged`, and removed with the last reader, also after a `kill -9`.

The trap: each epoch reads all shards once, in another order. With room for half of them, a cache that drops
the oldest shard saves 15 % of the requests, and a fixed part saves 50 %; so a fixed part is kept: as many
shards as fit. One of N nodes meets an Nth of the set per epoch, so there it fills slowly. Notebook 09
measures it.
"""

from __future__ import annotations

import hashlib
import json
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from smallfiles import locks
from smallfiles.digests import adds_to
from smallfiles.errors import FormatError, writing
from smallfiles.formats.bytefile import ByteFile
from smallfiles.formats.tar import index
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.objectstore.catalog import Catalog, Item, fetch
from smallfiles.objectstore.client import Store
from smallfiles.staging import StageConfig, placement
from smallfiles.staging.placement import Member, PackedOutput
from smallfiles.staging.run import facts_of, once, slot_at
from smallfiles.staging.slots import Slot

_IN_FLIGHT = 16
_OPEN_FILES = 64
_PAUSE_S = 0.02


class NodeCache:
    """The slot of this node for one pushed output, as one reader uses it.

    Args:
        store: Where the output was pushed to.
        keep_bytes: Size of the shards that are kept; 0 keeps none.
        where: `auto`, or a directory of this node.

    Raises:
        NoObjectError: Nothing was pushed there, or a push has not ended.
        ResourceError: No place has room.
    """

    def __init__(self, store: Store, keep_bytes: int, where: str | Path) -> None:
        self._url, self._catalog = str(store.place), Catalog.read(store)
        facts = json.dumps([store.endpoint, self._url, self._catalog.text])
        self._key = hashlib.sha256(facts.encode()).hexdigest()[:24]
        self.shards = [item for item in self._catalog.items if item.is_data]
        self._kept = {item.name for item in self.shards if (keep_bytes := keep_bytes - item.bytes) >= 0}
        self._files: dict[str, ByteFile] = {}
        self._end: Callable[[], object] | None = None  # releases the slot
        placement.in_first(where, self._output(0), partial(self._begin_at, store))

    def _begin_at(self, store: Store, place: NodeLocal) -> None:
        self._place = place
        self._slot = slot_at(place, self._key)
        self.begin(store)

    def begin(self, store: Store) -> Path:
        """Fetch the indexes unless they are on this node, and return their folder."""
        if self._end is None or self._slot.facts() is None:  # unpickled; or this worker's parent released it
            use = once(self._slot, self._output(0), partial(self._fetch_small, store))
            self._end = weakref.finalize(self, use.leave)
        return self._folder

    def keeps(self, item: Item) -> bool:
        """Check whether this node keeps a copy of this shard."""
        return item.name in self._kept

    def kept(self, item: Item) -> ByteFile | None:
        """Return the file of a shard if it was fetched to this node, or None."""
        if item.name not in self._kept or item.name in self._files:
            return self._files.get(item.name)
        return self._opened(item) if (self._folder / item.name).exists() else None

    def fetched(self, item: Item, store: Store, in_flight: int) -> ByteFile:
        """Return the file of a shard. The first caller on this node fetches it, while other callers wait.

        Args:
            item: The shard.
            store: The store that has the shard.
            in_flight: How many parts to fetch at once.

        Raises:
            ResourceError: There is no room for the shard.
        """
        draft = self._folder / f"{item.name}.part"
        if self.kept(item) is None:
            with writing(draft), _locked(draft):
                if self.kept(item) is None:
                    placement.check_room(self._place, self._output(item.bytes), StageConfig())
                    fetch(store, [item], [draft], in_flight)
                    draft.rename(self._folder / item.name)
        return self._opened(item)

    def end(self) -> None:
        """Release the slot; the last reader of a node removes it."""
        self._files.clear()
        if self._end is not None:
            self._end()

    def _opened(self, item: Item) -> ByteFile:
        if len(self._files) >= _OPEN_FILES:  # each holds a descriptor
            self._files.pop(next(iter(self._files)), None)
        file = self._files[item.name] = ByteFile(self._folder / item.name, "mmap")
        return file

    @property
    def _name(self) -> str:
        return self._url.rpartition("/")[2]

    @property
    def _folder(self) -> Path:
        return self._slot.data / self._name

    def _output(self, total_bytes: int) -> PackedOutput:
        """Describe the shards for staging: the room that they need, and the name for waiting processes."""
        source = Path(self._url)
        member = Member(self._name, source, total_bytes, (0, 0, 0, 0), None, is_data=True)
        return PackedOutput(source, (member,), self._key, shared=True)

    def _fetch_small(self, store: Store, slot: Slot) -> tuple[Sequence[str], dict[str, Any]]:
        folder, catalog = slot.copying / self._name, self._catalog
        if catalog.format != "tar" or not all(item.name.endswith(".tar") for item in self.shards):
            raise FormatError(
                f"{self._url} holds {catalog.name}, which cannot be read in parts",
                expected="shards in plain .tar files",
                next_step="Fetch it with smallfiles pull; or pack it into .tars, uncompressed",
            )
        small = [each for each in catalog.items if each.name.endswith(index.SUFFIX) or adds_to(each.name)]
        whole = self._output(sum(item.bytes for item in small))
        placement.check_room(self._place, whole, StageConfig(leave_bytes=0))
        with writing(folder):
            folder.mkdir()
        fetch(store, small, [folder / item.name for item in small], _IN_FLIGHT)
        return [f"{self._name}/{item.name}" for item in small], facts_of(whole) | {"verified": True}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}, "_end": None}


@contextmanager
def _locked(draft: Path) -> Iterator[None]:
    """Let no other process write a file meanwhile; it is removed unless it was renamed."""
    lock = draft.with_name(f"{draft.name}.lock")
    while (held := locks.try_lock(lock, shared=False)) is None:
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        draft.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        locks.unlock(held)
