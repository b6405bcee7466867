"""Loaders of others that decode and augment in threads of their own: DALI, FFCV, SPDL.

Each takes encoded pictures and a number of threads and gives a function that runs through all of them
once, in batches, with the random resized crop that its authors offer. They come with no data set of
ours: DALI and SPDL get the same bytes from memory, FFCV writes its own file first, encoded again with
the quality that gives the same mean size.

The trap: a loader that works ahead does so between two runs as well, and seems twice as fast as it is.

DALI's `antialias` is a triangle like Pillow's, FFCV takes OpenCV's area, SPDL's `bilinear` is
that of swscale, which widens when it reduces. All three are antialiased. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from benchmarks import needed
from benchmarks.pipelines import RATIO, SCALE, SIZE, Kind
from smallfiles.images.crops import random_resized, read_header

Epoch: TypeAlias = Callable[[], int]
"""Runs through all pictures once; returns how many."""

BATCH = 64
_QUALITIES = (95, 92, 90, 87, 85, 80, 75, 70, 60, 50)
_MEASURED = 20


@dataclass(frozen=True)
class Peer:
    """A loader of others that decodes in threads of its own.

    Args:
        name: In records; says the filter.
        modules: What it imports.
        start: Gives its epoch for as long as the block lasts.
        kind: What it does.
    """

    name: str
    modules: tuple[str, ...]
    start: Callable[[Sequence[bytes], int], contextlib.AbstractContextManager[Epoch]]
    kind: Kind = "augment"


def _dali(antialias: bool) -> Callable[..., contextlib.AbstractContextManager[Epoch]]:
    @contextlib.contextmanager
    def start(files: Sequence[bytes], threads: int) -> Iterator[Epoch]:
        dali = needed("nvidia.dali")
        fn, types = needed("nvidia.dali.fn"), needed("nvidia.dali.types")
        arrays = [np.frombuffer(data, np.uint8) for data in files]
        batches = [arrays[at : at + BATCH] for at in range(0, len(arrays), BATCH)]

        def pipeline() -> Any:
            encoded = fn.external_source(
                source=lambda number: batches[number % len(batches)], dtype=types.UINT8, no_copy=True
            )
            found = fn.decoders.image_random_crop(
                encoded, random_area=list(SCALE), random_aspect_ratio=list(RATIO), num_attempts=10
            )
            found = fn.resize(found, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=antialias)
            return fn.flip(found, horizontal=fn.random.coin_flip())

        # By default it works ahead, also between runs, where no clock would see it.
        at_once = {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1}
        settings = {"batch_size": BATCH, "num_threads": threads, "device_id": None}
        made = dali.pipeline_def(pipeline, **settings, **at_once)
        built = made()
        built.build()
        yield lambda: sum(len(built.run()[0]) for _ in batches)

    return start


@contextlib.contextmanager
def _spdl(files: Sequence[bytes], threads: int) -> Iterator[Epoch]:
    io_of_spdl, pipelines = needed("spdl.io"), needed("spdl.pipeline")
    rng = np.random.default_rng(0)

    def one(data: bytes) -> Any:
        header = read_header(data)
        assert header is not None
        top, left, height, width = random_resized(header.width, header.height, rng, SCALE, RATIO)
        flip = "hflip," if rng.random() < 0.5 else ""
        filters = f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear,{flip}"
        frames = io_of_spdl.decode_packets(
            io_of_spdl.demux_image(data), filter_desc=f"{filters}format=pix_fmts=rgb24"
        )
        return np.asarray(io_of_spdl.to_numpy(io_of_spdl.convert_frames(frames)))

    def epoch() -> int:
        builder = pipelines.PipelineBuilder().add_source(files).pipe(one, concurrency=threads)
        pipeline = builder.aggregate(BATCH).add_sink(2).build(num_threads=threads)
        with pipeline.auto_stop():
            return sum(len(batch) for batch in pipeline)

    yield epoch


@contextlib.contextmanager
def _ffcv(files: Sequence[bytes], threads: int) -> Iterator[Epoch]:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip
    from ffcv.writer import DatasetWriter

    with tempfile.TemporaryDirectory(prefix="smallfiles-bench-") as folder:
        path = Path(folder) / "set.beton"
        field = RGBImageField(write_mode="jpg", jpeg_quality=quality_of(files))
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            writer = DatasetWriter(str(path), {"image": field, "label": IntField()}, num_workers=1)
            writer.from_indexed_dataset(_Decoded(files))
        images = [RandomResizedCropRGBImageDecoder((SIZE, SIZE), SCALE, RATIO), RandomHorizontalFlip()]
        loader = Loader(
            str(path),
            batch_size=BATCH,
            num_workers=threads,
            order=OrderOption.RANDOM,
            drop_last=False,
            pipelines={"image": images, "label": None},
        )
        yield lambda: sum(len(batch[0]) for batch in loader)


@dataclass(frozen=True)
class _Decoded:
    files: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return Image.open(io.BytesIO(self.files[index])).convert("RGB"), index


def quality_of(files: Sequence[bytes]) -> int:
    """The JPEG quality that gives about the mean size of these files."""
    chosen = files[:_MEASURED]
    wanted = sum(map(len, chosen))

    def apart(quality: int) -> int:
        total = 0
        for data in chosen:
            out = io.BytesIO()
            with Image.open(io.BytesIO(data)) as picture:
                picture.convert("RGB").save(out, "JPEG", quality=quality)
            total += out.tell()
        return abs(total - wanted)

    return min(_QUALITIES, key=apart)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("DALI, antialias", ("nvidia.dali",), _dali(True)),
        Peer("DALI, linear", ("nvidia.dali",), _dali(False)),
        Peer("FFCV, area", ("ffcv", "ffcv._libffcv"), _ffcv),
        Peer("SPDL, antialias", ("spdl.io", "spdl.pipeline"), _spdl),
    )
}
"""By the name that the records carry."""
