"""Pictures scaled down before packing, so that no epoch has to do it again.

    jpeg   encoded again: smaller files, a second loss, still decoded in each epoch
    raw    pixels as they are, in a binary PPM (a line of text, then bytes; Pillow and many others open
           it): never decoded again, and 2 to 4 times the bytes

A picture whose shorter side is not longer than asked is never enlarged: its JPEG is kept as it is.

Of a pool that is handed all samples at once the whole data set would be in memory; here no more than a few
for each thread are under way.

The trap: training crops are cut from what was stored. From a shorter side of 256 a crop of 8 % of the
area is 62 pixels wide and is enlarged to 224, where the full picture would have had detail. Say so where
you publish an accuracy. Notebook 08 measures it.
"""

from __future__ import annotations

import dataclasses
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, TypeAlias, get_args

import numpy as np
import simplejpeg
from PIL import Image

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.images.crops import Box
from smallfiles.images.crops import short_side as scaled_size
from smallfiles.images.decoding import Pixels, decode, orientation, to_ppm, turned
from smallfiles.images.faults import ImageError
from smallfiles.images.header import is_jpeg
from smallfiles.images.picture import Picture, open_picture, raw_pixels
from smallfiles.images.resizing import resize
from smallfiles.samples import Buffer, Sample

PixelFormat: TypeAlias = Literal["jpeg", "raw"]

QUALITY = 90
_IN_FLIGHT_EACH = 4
_VALUES = {"1": "single bits", "P": "numbers of a palette", "PA": "numbers of a palette"}


def resize_ahead(
    data: Buffer, short_side: int = 256, store: PixelFormat = "jpeg", quality: int = QUALITY
) -> bytes:
    """Scale a picture down until its shorter side has `short_side` pixels.

    Args:
        data: A picture of any kind that `decode` takes.
        short_side: In pixels; a picture that is smaller stays as it is.
        store: `jpeg` or `raw` (PPM).
        quality: Of the JPEG, 1 to 100.

    Returns:
        The new file.

    Raises:
        ImageError: No complete picture.
        UsageError: An option makes no sense.
    """
    return _resized(data, short_side, store, quality, turn=1)


def _resized(data: Buffer, short: int | None, store: PixelFormat, quality: int, *, turn: int) -> bytes:
    """The new file. No shorter side keeps every picture that needs no turn, without a look at its pixels."""
    check_options(short, store, quality)
    if short is None and turn == 1:
        return bytes(data)
    _refuse_values(data)
    picture = open_picture(data)
    small = short is None or min(picture.width, picture.height) <= short
    if small and turn == 1 and store == "jpeg" and picture.header is not None:
        decode(data)  # a damaged file shall be found now rather than in each epoch
        return bytes(data)
    pixels = np.ascontiguousarray(turned(_scaled(picture, short), turn))
    if store == "raw":
        return to_ppm(pixels)
    encoded: bytes = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420")
    return encoded


def _refuse_values(data: Buffer) -> None:
    """Refuse what is no photograph: scaled and as a JPEG, the classes of a mask would be other classes.

    Raises:
        ImageError: A palette, 1, 16 or 32 bits a pixel.
    """
    if is_jpeg(data) or raw_pixels(data) is not None:
        return
    try:
        with Image.open(io.BytesIO(data)) as found:
            mode = found.mode
    except Exception:  # whoever decodes it says what is wrong with it
        return
    if mode in ("1", "P", "PA", "F") or mode.startswith("I"):
        raise ImageError(
            f"its pixels are {_VALUES.get(mode, 'numbers of 16 or 32 bits')} (mode {mode}), which scaling to "
            "8 bits of red, green and blue would change",
            expected="photographs to scale",
            next_step="Pack these without --resize, or leave them out with --on-error skip",
        )


def check_options(short: int | None, store: str, quality: int) -> None:
    """Refuse what makes no sense before the first picture is read.

    Raises:
        UsageError: An option makes no sense.
    """
    if store not in get_args(PixelFormat) or (short is not None and short < 1) or not 1 <= quality <= 100:
        raise UsageError(
            f"a shorter side of {short}, stored as {store!r} with quality {quality}, is asked for",
            expected="1 pixel or more, jpeg or raw, and a quality of 1 to 100",
            next_step="Start with a shorter side of 256 as jpeg",
        )


def _scaled(picture: Picture, short: int | None) -> Pixels:
    """The pixels of a picture, scaled down if its shorter side is longer than `short`."""
    whole = Box(0, 0, picture.height, picture.width)
    if short is None or min(picture.width, picture.height) <= short:
        return picture.part(whole, picture.height, picture.width)
    columns, rows = scaled_size(picture.width, picture.height, short)
    scaled = np.empty((rows, columns, 3), np.uint8)
    resize(picture.part(whole, rows, columns), scaled)
    return scaled


def resized(
    samples: Iterable[Sample],
    short_side: int | None = 256,
    store: PixelFormat = "jpeg",
    quality: int = QUALITY,
    *,
    on_fault: Callable[[str, ImageError], None] | None = None,
) -> Iterator[Sample]:
    """Scale the pictures of samples ahead, in the order in which they come, turned as their EXIF says.

    Keys stay as they are, also where a file called `.JPEG` then holds a PPM: they are names, and
    programs that open pictures look at the bytes.

    Args:
        samples: Each is copied before the next is drawn.
        short_side: See `resize_ahead`, as for the next two; None only turns pictures.
        store: `jpeg` or `raw`.
        quality: Of a JPEG.
        on_fault: Called with key and error of a sample that cannot be decoded, which is left out then;
            None stops with the error, key included.

    Yields:
        Samples that may be kept.

    Raises:
        ImageError: A picture cannot be decoded.
        UsageError: An option makes no sense.
    """
    check_options(short_side, store, quality)
    threads = machine.usable_cpus()

    def work(data: Buffer) -> bytes:
        return _resized(data, short_side, store, quality, turn=orientation(data))

    under_way: deque[tuple[Sample, Future[bytes]]] = deque()

    def first() -> Iterator[Sample]:
        sample, future = under_way.popleft()
        try:
            data = future.result()
        except ImageError as error:
            if on_fault is None:
                raise _named(sample.key, error) from error
            on_fault(sample.key, _named(sample.key, error))
        else:
            yield dataclasses.replace(sample, data=data)

    with ThreadPoolExecutor(threads, thread_name_prefix="resize") as pool:
        try:
            for sample in samples:
                own = dataclasses.replace(sample, data=bytes(sample.data))
                under_way.append((own, pool.submit(work, own.data)))
                if len(under_way) > threads * _IN_FLIGHT_EACH:
                    yield from first()
            while under_way:
                yield from first()
        finally:
            for _, future in under_way:
                future.cancel()


def _named(key: str, error: ImageError) -> ImageError:
    return ImageError(f"{key}: {error.got}", expected=error.expected, next_step=error.next_step)
