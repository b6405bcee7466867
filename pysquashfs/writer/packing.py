"""Pack items into an image, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pysquashfs.writer.image import ImageWriter
from pysquashfs.writer.output import Output, publishing
from pysquashfs.writer.settings import DEFAULT_BLOCK_BYTES, Settings
from pysquashfs.writer.sources import Item, pieces, read_ahead


@dataclass(frozen=True)
class PackedImage:
    """What was written.

    Args:
        path: The image.
        files: How many files are in it.
        bytes: Of all of them together.
        image_bytes: Of the image.
    """

    path: Path
    files: int
    bytes: int
    image_bytes: int


def pack(
    out: Path,
    items: Iterable[Item],
    *,
    compression: str = "none",
    level: int | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    fragments: bool = False,
    threads: int | None = None,
    overwrite: bool = False,
) -> PackedImage:
    """Pack many small files into one image, in the order of `items`.

    On a parallel file system one open and long reads replace one open per file. Data is stored in the given
    order, so if items are shuffled here, they are later read at full speed in that shuffled order. Equal
    items and settings give equal bytes (times, users and permissions are not stored).

    Memory is needed for the tables after the data: see `ImageWriter`. The 1.28 million files of ImageNet
    need about 120 MB (300 MB if all are in one folder).

    Args:
        out: The image; it appears when it is complete.
        items: (name, bytes or path of a file) pairs; names are relative with `/`. Iterated once.
        compression: "none", "gzip", "zstd", "lz4" or "xz".
        level: Of the compressor.
        block_bytes: A power of two from 4,096 to 1,048,576.
        fragments: Store the ends of files in shared blocks: smaller, and slow to read at random.
        threads: Number of threads that compress; None for all CPUs of this process.
        overwrite: Whether an image of that name may be replaced.

    Returns:
        What was written.

    Raises:
        SquashFSError: A name is not possible in an image or comes twice, a file vanished or changed while it
            was read, `out` exists, or there is no room. Nothing is left behind.

    Example:
        >>> pack(Path("x.sqfs"), [("a/1.txt", b"one"), ("2.jpg", Path("photo.jpg"))])  # doctest: +SKIP
        PackedImage(path=PosixPath('x.sqfs'), files=2, bytes=48213, image_bytes=53248)
    """
    settings = Settings(compression, level, block_bytes, fragments, threads)
    out = Path(out)
    with (
        publishing(out, overwrite=overwrite) as (descriptor, _),
        contextlib.closing(Output(descriptor, out)) as output,
        _writer(output, settings) as writer,
        contextlib.closing(read_ahead(items)) as found,
    ):
        for name, source in found:
            writer.add_pieces(name, pieces(source) if isinstance(source, Path) else [source])
        output.finish(writer.close())
    return PackedImage(out, writer.files, writer.bytes, output.bytes)


@contextlib.contextmanager
def _writer(output: Output, settings: Settings) -> Iterator[ImageWriter]:
    writer = ImageWriter(output.append, settings)
    try:
        yield writer
    finally:
        writer.abandon()
