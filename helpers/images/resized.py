"""Samples with their pictures scaled ahead, in order, several at a time, and what that cost.

The trap: a pool that is handed all samples at once reads the whole data set into memory; here no more
than a few for each thread are under way. Notebook 08 uses it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from helpers import machine
from helpers.images.ahead import QUALITY, Resized, Store, check_options, resize_one
from helpers.images.faults import ImageError
from helpers.samples import Sample

_IN_FLIGHT_EACH = 4


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
    short_side: int = 256,
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
        short_side: See `resize_ahead`, as for the next three.
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
