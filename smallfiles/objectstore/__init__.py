"""Packed outputs in an object store: pushed in parallel, verified, and never whole before they are.

    store = Store(Place.parse("s3://course/train"))     # keys and endpoint come from the environment
    data = store.get_range("train-000000.tar", 0, 1 << 20)

The trap: an object store is no file system. It has no folders, no renames and no appends, each request
waits for a network, and a listing shows uploads of which half is missing. Notebook 09 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.objectstore.access import Keys
    from smallfiles.objectstore.client import ConditionError, Entry, NoObjectError, Store
    from smallfiles.objectstore.config import Moved, Place, TransferConfig

__all__ = [
    "ConditionError",
    "Entry",
    "Keys",
    "Moved",
    "NoObjectError",
    "Place",
    "Store",
    "TransferConfig",
]

__getattr__ = lazy.names(
    __name__,
    {
        "access": ["Keys"],
        "client": ["ConditionError", "Entry", "NoObjectError", "Store"],
        "config": ["Moved", "Place", "TransferConfig"],
    },
)
