"""Packed outputs in an object store: pushed in parallel, verified, and published only when complete.

    with serving(Path("store")):                 # or another store, which the environment names
        push("train.tars", "s3://course/train")
        pull("s3://course/train", "copy.tars")
        reader = open("s3://course/train")       # for make_loader(reader, LoaderConfig(order="stream"))

The trap: an object store is not a file system. It has no folders, no renames and no appends, each request
waits for a network, and a listing does not show that a push was interrupted. Notebook 09 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.objectstore.access import Keys as Keys
    from smallfiles.objectstore.access import Moved as Moved
    from smallfiles.objectstore.access import StoreUrl as StoreUrl
    from smallfiles.objectstore.access import TransferConfig as TransferConfig
    from smallfiles.objectstore.catalog import Catalog as Catalog
    from smallfiles.objectstore.client import NoObjectError as NoObjectError
    from smallfiles.objectstore.client import Store as Store
    from smallfiles.objectstore.server import Server as Server
    from smallfiles.objectstore.server import serving as serving
    from smallfiles.objectstore.streaming import RemoteTar as RemoteTar
    from smallfiles.objectstore.streaming import open as open
    from smallfiles.objectstore.streaming import open_anywhere as open_anywhere
    from smallfiles.objectstore.transfer import Listing as Listing
    from smallfiles.objectstore.transfer import ls as ls
    from smallfiles.objectstore.transfer import pull as pull
    from smallfiles.objectstore.transfer import push as push

__getattr__ = lazy.names(__name__)
