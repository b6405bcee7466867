"""A folder seen through the latency of a parallel file system, on any machine.

    with slowfs.mounted(Path("data"), SlowConfig(latency_s=0.002)) as slow:
        (slow / "cat/1.jpg").read_bytes()      # waits 2 ms for the look-up, 2 ms for the open
        slow.counts()                          # {"lookup": 2, "open": 1, ...}

`open_slow` mounts where that is allowed, and otherwise delays reads in this process.

The trap: it is a model. You choose latency, concurrent operations and bandwidth, while the latency of a
real server grows with its load; the shape of a curve carries over to a cluster, the numbers do not.
Notebook 01 measures on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.slowfs.delays import SlowConfig as SlowConfig
    from smallfiles.slowfs.mounting import SlowFolder as SlowFolder
    from smallfiles.slowfs.mounting import SlowStore as SlowStore
    from smallfiles.slowfs.mounting import mounted as mounted
    from smallfiles.slowfs.mounting import open_slow as open_slow
    from smallfiles.slowfs.points import KIND as KIND
    from smallfiles.slowfs.points import why_not as why_not

__getattr__ = lazy.names(__name__)
