"""Where objects are, how they are moved, and what a transfer did: small records.

    StoreUrl.parse("s3://course/train").key("train-000000.tar")     # train/train-000000.tar in bucket course

The trap: `s3://bucket/train` is not a folder. It is the beginning of names, and the names of
`s3://bucket/train-old` begin with the same letters; so a prefix always ends in a slash here. Notebook 09
teaches it.

Short, since the command line imports it at every start.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smallfiles.errors import UsageError
from smallfiles.keys import key_problem
from smallfiles.options import Settings, option
from smallfiles.storage import timeout_option

MANIFEST = "smallfiles.json"
PART_BYTES = 16 << 20
"""The most that one request sends or fetches, about."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


@dataclass(frozen=True)
class StoreUrl:
    """A bucket and a prefix.

    Args:
        bucket: Name of the bucket.
        prefix: What all names begin with, without the slash at its end; empty for the whole bucket.
    """

    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> StoreUrl:
        """Read `s3://bucket/prefix`.

        Raises:
            UsageError: It has another form.
        """
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        prefix = prefix.removesuffix("/")
        problem = key_problem(prefix) if prefix else None
        if not url.startswith("s3://") or not _BUCKET.fullmatch(bucket) or problem:
            raise UsageError(
                f"{without_password(url)} is not a URL of an object store"
                + (f": it {problem}" if problem else ""),
                expected="s3://BUCKET/PREFIX",
                next_step="Write it like s3://course/train",
            )
        return cls(bucket, prefix)

    def key(self, name: str) -> str:
        """The full name of an object."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".removesuffix("/")


def without_password(url: str) -> str:
    """A URL for messages, without `USER:PASSWORD@`."""
    return re.sub(r"//[^/\s]*@", "//", url)


@dataclass(frozen=True)
class TransferConfig(Settings):
    """How to move objects.

    Args:
        workers: Requests in flight.
        storage_timeout_s: How long to wait for a store or a file system that does not answer.
    """

    workers: int = option(8, "requests in flight", least=1, most=256)
    storage_timeout_s: float = timeout_option()

    def to_cli(self, verb: str, source: str, target: str) -> str:
        """The command that does the same."""
        return self.command(verb, source, target)


@dataclass(frozen=True)
class Moved:
    """What a push or a pull did.

    Args:
        path: What was pushed, or what a pull wrote.
        url: Where it is in the store.
        objects: Number of objects without the manifest.
        samples: Number of samples in them.
        bytes: Size of all objects.
        kept_bytes: Size of what was there already, with the same content.
        seconds: How long it took.
    """

    path: Path
    url: str
    objects: int
    samples: int
    bytes: int
    kept_bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second over the network."""
        return (self.bytes - self.kept_bytes) / max(self.seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        record = asdict(self) | {"path": str(self.path), "seconds": round(self.seconds, 3)}
        return record | {"bytes_per_s": round(self.rate)}
