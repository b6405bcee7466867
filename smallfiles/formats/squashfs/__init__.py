"""squashfs: one image that the kernel, FUSE and this package read as a tree of files.

Each sample is a file at its key, so `mount` and `unsquashfs` give the tree back. What a tree cannot say
(targets, order, JSON objects, provenance) stands in the image too, in a folder of its own:

    cat/1.jpg  dog/2.jpg ...        the samples, stored raw one after the other in the order of packing
    .smallfiles/samples.arrow       key, label or captions, meta, and where each sample's bytes begin
    .smallfiles/README.txt          how to read that without this package
    .smallfiles/place               32 bytes, the last of the data: where samples.arrow lies

Images of others are read too: their class folders give the labels.

The trap: squashfs has no checksum of its data, so a flipped byte comes back as if it were right. The
content digest beside the image finds it. Notebook 06 teaches images. Names are those of a file system:
a component has 255 bytes at most, and `a` and `a/b` cannot both exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pysquashfs.errors import MissingToolError, SquashFSError
from pysquashfs.writer.settings import DEFAULT_BLOCK_BYTES, Settings
from smallfiles.errors import UsageError
from smallfiles.formats.bytefile import Access
from smallfiles.formats.squashfs.reading import SquashFSReader
from smallfiles.formats.squashfs.sentences import as_sentences
from smallfiles.formats.squashfs.writing import write_image
from smallfiles.samples import Packed, Sample, Schema

NAME = "squashfs"


@dataclass(frozen=True)
class Options:
    """How to lay out an image. The defaults suit photographs, which do not become smaller.

    Args:
        compression: `none`; or `gzip` or `zstd` for data that compresses (JSON, raw pixels).
        level: Of the compressor; None for its default.
        block_bytes: A power of two from 4,096 to 1,048,576; what is compressed as one.
        fragments: Put the ends of files together: smaller, and slow to read at random.
    """

    compression: Literal["none", "gzip", "zstd"] = "none"
    level: int | None = None
    block_bytes: int = DEFAULT_BLOCK_BYTES
    fragments: bool = False

    def __post_init__(self) -> None:
        if self.compression not in ("none", "gzip", "zstd"):
            raise UsageError(
                f"the compression is {self.compression!r}",
                expected="none, gzip or zstd",
                next_step="Choose none for images, zstd for data that compresses",
            )
        try:
            self.settings()
        except MissingToolError as error:
            with as_sentences():
                raise error
        except SquashFSError as error:
            raise UsageError(error.got, expected=error.expected, next_step=error.next_step) from error

    def settings(self) -> Settings:
        """The same for `pysquashfs`."""
        return Settings(self.compression, self.level, self.block_bytes, self.fragments)


def write(
    samples: Iterable[Sample],
    out: Path,
    *,
    schema: Schema,
    options: Options | None = None,
    digest: bool = True,
) -> Packed:
    """Write samples into one image.

    A million files become one, which costs a parallel file system one open instead of a million; and
    programs that want a tree can mount it.

    Args:
        samples: In the order they shall be stored.
        out: A name that is free.
        schema: What is packed.
        options: Compression and blocks.
        digest: Whether to write the content digest beside it.

    Returns:
        What was written.

    Raises:
        FormatError: A key cannot be a file name, collides with another, or a sample does not fit the schema.
        ResourceError: No space or no permission.
    """
    options = options or Options()
    return write_image(samples, out, schema, options, options.settings(), digest)


def open(path: Path, *, split: str | None = None, access: Access = "auto") -> SquashFSReader:
    """Open an image, ours or any other.

    Args:
        path: The image.
        split: Which split of an image of others, whose folders are splits; the only one or `train` if None.
        access: `mmap`, `pread`, or `auto` to choose by file system; for samples that lie raw.

    Returns:
        The reader; the image is touched at first use.
    """
    return SquashFSReader(path, split, access)
