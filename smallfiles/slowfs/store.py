"""The same delays without a mount: a store whose reads in this process wait.

For machines that do not let users mount. The trap: only what goes through the store is slow; a path
that is opened past it is as fast as ever, so nothing here pretends to have a path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smallfiles.slowfs.config import SlowConfig
from smallfiles.slowfs.delays import Delays, sleep_until

if TYPE_CHECKING:
    from smallfiles.samples import ByteStore


class SlowStore:
    """A store seen through slow storage: a read waits for a look-up, an open and its bytes.

    Args:
        store: Where the bytes are.
        config: The storage to imitate.
    """

    def __init__(self, store: ByteStore, config: SlowConfig | None = None) -> None:
        self.store = store
        self.sequential = store.sequential
        self.config = config or SlowConfig()
        self._delays = Delays(self.config)

    def size(self, path: str) -> int:
        """Bytes of one sample, after a look-up."""
        sleep_until(self._delays.operation("lookup"))
        return self.store.size(path)

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one sample after a look-up and an open; see `ByteStore.read_into`."""
        sleep_until(self._delays.operation("lookup"))
        sleep_until(self._delays.operation("open"))
        got = self.store.read_into(path, buffer)
        sleep_until(self._delays.transfer(min(got, len(buffer))))
        return got

    def counts(self) -> dict[str, int]:
        """How often each operation was asked for, reads, and bytes read, in this process."""
        return self._delays.counts()

    def describe(self) -> str:
        """`slow store (2 ms an operation) over folder /data`."""
        return f"slow store ({self.config.summary()}) over {self.store.describe()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return SlowStore, (self.store, self.config)
