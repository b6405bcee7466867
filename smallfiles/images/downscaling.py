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
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import simplejpeg

from smallfiles import machine
from smallfiles.errors import UsageError
from smallfiles.images.crops import Box
from smallfiles.images.crops import short_side as scaled_size
from smallfiles.images.decoding import Pixels, decode, orientation, to_ppm, turned
from smallfiles.images.faults import ImageError
from smallfiles.images.picture import Picture, open_picture
from smallfiles.images.resizing import resize
from smallfiles.samples import Buffer, Sample

Store: TypeAlias = Literal["jpeg", "raw"]

QUALITY = 90
_GAP = 2.0
_IN_FLIGHT_EACH = 4


@dataclass(frozen=True)
class Resized:
    """One picture that was scaled ahead.

    Args:
        data: The new file.
        kept: True if these are the old bytes.
        error: Mean absolute difference to the scaled pixels before they were encoded, of 255;
            None unless it was asked for.
    """

    data: bytes
    kept: bool
    error: float | None = None


def resize_ahead(
    data: Buffer, short_side: int = 256, store: Store = "jpeg", quality: int = QUALITY, *, exif: bool = False
) -> bytes:
    """Scale a picture down until its shorter side has `short_side` pixels.

    Args:
        data: A picture of any kind that `decode` takes.
        short_side: In pixels; a picture that is smaller stays as it is.
        store: `jpeg` or `raw` (PPM).
        quality: Of the JPEG, 1 to 100.
        exif: Turn the picture as its EXIF orientation says; that note is lost in any case.

    Returns:
        The new file.

    Raises:
        ImageError: No complete picture.
        UsageError: An option makes no sense.
    """
    return resize_one(data, short_side, store, quality, exif=exif).data


def resize_one(
    data: Buffer, short: int | None, store: Store, quality: int, *, exif: bool = False, measure: bool = False
) -> Resized:
    """What `resize_ahead` does, with what it did; `measure` decodes the result again for its error.

    No shorter side keeps the bytes of every picture that needs no turn, without a look at its pixels.
    """
    check_options(short, store, quality)
    turn = orientation(data) if exif else 1
    if short is None and turn == 1:
        return Resized(bytes(data), kept=True)
    picture = open_picture(data)
    small = short is None or min(picture.width, picture.height) <= short
    if small and turn == 1 and store == "jpeg" and picture.header is not None:
        decode(data)  # a damaged file shall be found now rather than in each epoch
        return Resized(bytes(data), kept=True, error=0.0 if measure else None)
    pixels = np.ascontiguousarray(turned(_scaled(picture, short), turn))
    if store == "raw":
        return Resized(to_ppm(pixels), kept=False, error=0.0 if measure else None)
    encoded: bytes = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420")
    error = float(np.abs(decode(encoded) - pixels.astype(np.int16)).mean()) if measure else None
    return Resized(encoded, kept=False, error=error)


def check_options(short: int | None, store: str, quality: int) -> None:
    """Refuse what makes no sense before the first picture is read.

    Raises:
        UsageError: An option makes no sense.
    """
    if store not in get_args(Store) or (short is not None and short < 1) or not 1 <= quality <= 100:
        raise UsageError(
            f"a shorter side of {short}, stored as {store!r} with quality {quality}, is asked for",
            expected="1 pixel or more, jpeg or raw, and a quality of 1 to 100",
            next_step="Start with a shorter side of 256 as jpeg",
        )


def _scaled(picture: Picture, short: int | None) -> Pixels:
    """The pixels of a picture, scaled down if its shorter side is longer than `short`."""
    whole = Box(0, 0, picture.height, picture.width)
    if short is None or min(picture.width, picture.height) <= short:
        return picture.part(whole, picture.height, picture.width, None)
    columns, rows = scaled_size(picture.width, picture.height, short)
    scaled = np.empty((rows, columns, 3), np.uint8)
    resize(picture.part(whole, rows, columns, _GAP), scaled)
    return scaled


@dataclass
class ResizeReport:
    """What scaling ahead did, filled while samples pass.

    Args:
        samples: Handed on.
        kept: Of them those that were small enough already and kept their bytes.
        bytes_before: Encoded bytes that came in.
        bytes_after: Encoded bytes that went out.
        error: Mean absolute difference, of 255, between scaled pixels and what is decoded from the new
            files, over every `measure_every`-th sample; scaling itself is not counted.
        measured: Number of samples behind `error`.
    """

    samples: int = 0
    kept: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    error: float = 0.0
    measured: int = 0

    def add(self, before: int, done: Resized) -> None:
        """Count one sample."""
        self.samples += 1
        self.kept += done.kept
        self.bytes_before += before
        self.bytes_after += len(done.data)
        if done.error is not None:
            self.measured += 1
            self.error += (done.error - self.error) / self.measured


def resized(
    samples: Iterable[Sample],
    short_side: int | None = 256,
    store: Store = "jpeg",
    quality: int = QUALITY,
    *,
    exif: bool = False,
    threads: int | None = None,
    report: ResizeReport | None = None,
    measure_every: int = 100,
    on_fault: Callable[[str, ImageError], None] | None = None,
) -> Iterator[Sample]:
    """Scale the pictures of samples ahead, in the order in which they come.

    Keys stay as they are, also where a file called `.JPEG` then holds a PPM: they are names, and
    programs that open pictures look at the bytes.

    Args:
        samples: Each is copied before the next is drawn.
        short_side: See `resize_ahead`, as for the next three; None only turns pictures.
        store: `jpeg` or `raw`.
        quality: Of a JPEG.
        exif: Turn pictures as their EXIF orientation says.
        threads: At work; None takes the usable CPUs.
        report: Filled while samples pass.
        measure_every: Of which samples the loss by encoding is measured.
        on_fault: Called with key and error of a sample that cannot be decoded, which is left out then;
            None stops with the error, key included.

    Yields:
        Samples that may be kept.

    Raises:
        ImageError: A picture cannot be decoded.
        UsageError: An option makes no sense.
    """
    check_options(short_side, store, quality)
    report = ResizeReport() if report is None else report
    workers = threads or machine.usable_cpus()

    def work(number: int, sample: Sample) -> Resized:
        return resize_one(
            sample.data, short_side, store, quality, exif=exif, measure=number % measure_every == 0
        )

    under_way: deque[tuple[Sample, Future[Resized]]] = deque()

    def first() -> Iterator[Sample]:
        sample, future = under_way.popleft()
        try:
            done = future.result()
        except ImageError as error:
            if on_fault is None:
                raise _named(sample.key, error) from error
            on_fault(sample.key, error)
            return
        report.add(len(sample.data), done)
        yield dataclasses.replace(sample, data=done.data)

    with ThreadPoolExecutor(workers, thread_name_prefix="resize") as pool:
        try:
            for number, sample in enumerate(samples):
                own = dataclasses.replace(sample, data=bytes(sample.data))
                under_way.append((own, pool.submit(work, number, own)))
                if len(under_way) > workers * _IN_FLIGHT_EACH:
                    yield from first()
            while under_way:
                yield from first()
        finally:
            for _, future in under_way:
                future.cancel()


def _named(key: str, error: ImageError) -> ImageError:
    return ImageError(f"{key}: {error.got}", expected=error.expected, next_step=error.next_step)
