"""Images scaled while they are packed (`--resize`): JPEGs encoded again, or arrays of pixels (`--pixels`).

The size of a JPEG is known only when it is encoded, so formats plan with that of its source, which is never
less. The size of an array follows from the header of its image. So a source of pixels (`as_pixels`) has
exact sizes, and everything else treats it like any other source of `.npy` files. `Image` and its transforms
cut crops out of such a file without decoding it, and `Array` reads images of one shape.

The trap: training crops are cut from what was stored; see `smallfiles.images.downscaling`. Notebook 08.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from smallfiles.arrays import joined, scalar
from smallfiles.contents import NPY_SUFFIX
from smallfiles.errors import SmallfilesError, UsageError, first_few
from smallfiles.images.decoding import ImageError
from smallfiles.manifest import Manifest
from smallfiles.pack import Scaling
from smallfiles.pack.reading import Scale, changed
from smallfiles.samples import Buffer, ByteStore
from smallfiles.sources import Source
from smallfiles.sources.annotations.boxes import columns_to_scale, picture_size, scale_boxes
from smallfiles.sources.packed import PIXELS

_HEADER_BYTES = 128
"""Number of bytes before the pixels in a `.npy` file. It is always the same, because the shape is short."""
_SCALED_SUFFIXES = (".png", ".jpg", ".jpeg", ".txt", ".json")


def prepared(source: Source, format: str, scaling: Scaling) -> Source:
    """Return the source with its boxes scaled to the images' new sizes.

    Raises:
        UsageError: The format does not allow scaling, or additional files or keypoints cannot be scaled.
    """
    if format == "hdf5":
        raise UsageError(
            "images are to be scaled into HDF5, which needs the size of each before it writes the first",
            expected="another format, or images that are scaled already",
            next_step="Pack with --resize into .arrow, and pack that file into .h5; or add --pixels",
        )
    fields = {name: source.manifest.fields[name] for name in source.manifest.blobs}
    odd = [f"{name} ({suffix})" for name, suffix in fields.items() if suffix not in _SCALED_SUFFIXES]
    if odd:
        raise UsageError(
            f"images are to be scaled, and have further files that cannot be: {first_few(odd, len(odd))}",
            expected="masks in PNG, photographs in JPEG, and texts, which stay as they are",
            next_step="Convert them, or pack without --resize",
        )
    return scale_boxes(source, scaling.short_side)


def has_parts(manifest: Manifest) -> bool:
    """Check whether images have additional files or boxes that must fit them."""
    return bool(manifest.blobs or columns_to_scale(manifest.values.column_names))


def scale_of(scaling: Scaling, manifest: Manifest, field: str) -> Scale | None:
    """Return the function that scales the files of a field. Return None for texts, which are not changed.

    The PNGs of all fields except the default one are masks, which are scaled by their nearest pixels. EXIF
    must not turn a photograph that belongs to a mask or to boxes.
    """
    from smallfiles.images import (
        resize_ahead,
        resize_values,
    )  # import PyTorch, which other packing does not need
    from smallfiles.images.decoding import orientation

    suffix, stays_upright = manifest.fields[field] if field else "", has_parts(manifest)
    if suffix == ".png":
        return _named(lambda data: resize_values(data, scaling.short_side))
    if suffix not in ("", ".jpg", ".jpeg"):
        return None

    def scale(data: Buffer) -> bytes:
        if stays_upright and orientation(data) > 1:
            raise ImageError(
                "its EXIF says to turn it, and its mask or boxes would not turn with it",
                expected="images that are stored upright, if they are scaled with masks or boxes",
                next_step="Turn both first, pack without --resize, or leave it out with --on-error skip",
            )
        return resize_ahead(data, scaling.short_side, scaling.quality)

    return _named(scale)


def _named(scale: Callable[[Buffer], bytes]) -> Scale:
    """Return a function that scales like `scale`, and whose errors name the file."""

    def named(path: str, data: Buffer) -> bytes:
        try:
            return scale(data)
        except SmallfilesError as error:
            raise type(error)(
                f"{path}: {error.got}", expected=error.expected, next_step=error.next_step
            ) from error

    return named


def as_pixels(source: Source, short_side: int) -> Source:
    """Return a source of `.npy` files, each with the pixels of an image. Its keys get this suffix.

    Args:
        source: A source of images without masks or boxes that would have to be scaled with them.
        short_side: Shorter side of the scaled images in pixels. Smaller images keep their size.

    Raises:
        UsageError: Images have masks or boxes, or can only be read in stored order.
    """
    manifest = source.manifest
    if has_parts(manifest) or source.store.sequential:
        odd = "have masks or boxes" if has_parts(manifest) else "are compressed as a whole"
        raise UsageError(
            f"the images of {source.store.describe()} are to be stored as pixels, and {odd}",
            expected="images alone, which can be read in any order",
            next_step="Pack without --pixels",
        )
    table = manifest.table.drop_columns([*{"bytes", "sha256"}.intersection(manifest.table.column_names)])
    table = table.set_column(0, "path", joined(manifest.paths, scalar(NPY_SUFFIX)))
    manifest, store = replace(manifest, table=table), PixelStore(source.store, short_side)
    return replace(source, manifest=manifest, store=store, resize={"short_side": short_side, "store": PIXELS})


class PixelStore:
    """Reads the images of another store as `.npy` files of their scaled pixels.

    Args:
        store: The store of the encoded images.
        short_side: Shorter side of the scaled images in pixels. Smaller images keep their size.
    """

    sequential = False

    def __init__(self, store: ByteStore, short_side: int) -> None:
        self._store, self._short_side = store, short_side
        self.describe = store.describe
        if hasattr(store, "root"):
            self.root = store.root

    def size(self, path: str) -> int:
        """Return the size of one `.npy` file in bytes. It follows from the header of the image."""
        from smallfiles.images.crops import short_side as scaled_size

        width, height, _ = picture_size(self._store, path.removesuffix(NPY_SUFFIX)) or (0, 0, False)
        if not min(width, height):
            return len(self._file(path))  # names what is wrong with it
        if min(width, height) > self._short_side:
            width, height = scaled_size(width, height, self._short_side)
        return _HEADER_BYTES + 3 * height * width

    def read_into(self, path: str, buffer: memoryview) -> int:
        """Read one file into the start of `buffer`. See `ByteStore.read_into`."""
        data = self._file(path)
        if len(data) <= len(buffer):
            buffer[: len(data)] = data
        return len(data)

    def _file(self, path: str) -> bytes:
        key = path.removesuffix(NPY_SUFFIX)
        data = memoryview(bytearray(self._store.size(key)))
        if (got := self._store.read_into(key, data)) != len(data):
            raise changed(self._store, key, got, len(data))
        return _named(self._npy)(key, data)

    def _npy(self, data: Buffer) -> bytes:
        from smallfiles.images import scaled_pixels

        np.save(out := io.BytesIO(), scaled_pixels(data, self._short_side))
        return out.getvalue()
