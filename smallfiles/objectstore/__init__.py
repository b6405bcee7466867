"""Packed outputs in an object store: pushed in parallel, verified, and never whole before they are.

    with serving(Path("store")):                        # or a store elsewhere: the environment says which
        push("train.tars", "s3://course/train")
        pull("s3://course/train", "copy.tars")
        reader = open("s3://course/train")          # for make_loader(reader, LoaderConfig(order="stream"))

The trap: an object store is no file system. It has no folders, no renames and no appends, each request
waits for a network, and a listing shows uploads of which half is missing. Notebook 09 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.objectstore.access import Keys
    from smallfiles.objectstore.catalog import Catalog, Item, read_blocks
    from smallfiles.objectstore.client import ConditionError, Entry, NoObjectError, Store
    from smallfiles.objectstore.config import Moved, Place, TransferConfig
    from smallfiles.objectstore.server import Server, serving
    from smallfiles.objectstore.streaming import RemoteTar, open, open_anywhere, open_store
    from smallfiles.objectstore.transfer import Listing, ls, pull, push

__all__ = [
    "Catalog",
    "ConditionError",
    "Entry",
    "Item",
    "Keys",
    "Listing",
    "Moved",
    "NoObjectError",
    "Place",
    "RemoteTar",
    "Server",
    "Store",
    "TransferConfig",
    "ls",
    "open",
    "open_anywhere",
    "open_store",
    "pull",
    "push",
    "read_blocks",
    "serving",
]

__getattr__ = lazy.names(
    __name__,
    {
        "access": ["Keys"],
        "catalog": ["Catalog", "Item", "read_blocks"],
        "client": ["ConditionError", "Entry", "NoObjectError", "Store"],
        "config": ["Moved", "Place", "TransferConfig"],
        "server": ["Server", "serving"],
        "streaming": ["RemoteTar", "open", "open_anywhere", "open_store"],
        "transfer": ["Listing", "ls", "pull", "push"],
    },
)
