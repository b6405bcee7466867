"""Loaders that bring their own threads and decoders: DALI on the CPU, FFCV, SPDL.

DALI decodes only the part that is cut out; its `antialias` is a triangle like Pillow's. FFCV scales with
OpenCV's area. SPDL's `bilinear` is that of swscale, which widens when it reduces.

The trap: DALI works ahead across epochs too, while nobody looks. What it has ready is taken from it before
the clock starts, as it is not ready any more when the clock stops. Notebook 08 measures with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks import needed
from benchmarks.loaders.material import FILES, listed
from benchmarks.loaders.peer import Peer, Setting, Start
from benchmarks.pipelines import RATIO, SCALE
from smallfiles.images.crops import random_resized, read_header
from smallfiles.measure.loading.steps import Epoch


def _dali(antialias: bool) -> Start:
    @contextlib.contextmanager
    def start(setting: Setting) -> Iterator[Epoch]:
        dali, fn, types = (needed(f"nvidia.dali{name}") for name in ("", ".fn", ".types"))

        def pipeline() -> Any:
            root = str(setting.folder / FILES)
            encoded, labels = fn.readers.file(file_root=root, random_shuffle=True, name="files")
            found = fn.decoders.image_random_crop(
                encoded, random_area=list(SCALE), random_aspect_ratio=list(RATIO), num_attempts=10
            )
            square = [setting.size, setting.size]
            found = fn.resize(found, size=square, interp_type=types.INTERP_LINEAR, antialias=antialias)
            return fn.flip(found, horizontal=fn.random.coin_flip()), labels

        made = dali.pipeline_def(
            pipeline,
            batch_size=setting.batch,
            num_threads=setting.workers,
            device_id=None,
            prefetch_queue_depth=setting.prefetch,
        )
        built = made()
        built.build()
        number = -(-setting.samples // setting.batch)

        def epoch() -> Iterable[int]:
            for _ in range(setting.prefetch):
                built.run()
            return (len(built.run()[1]) for _ in range(number))

        yield epoch

    return start


def _ffcv(raw: bool) -> Start:
    @contextlib.contextmanager
    def start(setting: Setting) -> Iterator[Epoch]:
        loaders, transforms = needed("ffcv.loader"), needed("ffcv.transforms")
        basics, rgb = needed("ffcv.fields.basics"), needed("ffcv.fields.rgb_image")
        square = setting.size, setting.size
        images = [
            rgb.RandomResizedCropRGBImageDecoder(square, SCALE, RATIO),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
        loader = loaders.Loader(
            str(setting.folder / ("raw.beton" if raw else "jpeg.beton")),
            batch_size=setting.batch,
            num_workers=setting.workers,
            order=loaders.OrderOption.RANDOM,
            os_cache=True,
            drop_last=False,
            pipelines={"image": images, "label": [basics.IntDecoder(), transforms.ToTensor()]},
        )
        yield lambda: (len(labels) for _, labels in loader)

    return start


@contextlib.contextmanager
def _spdl(setting: Setting) -> Iterator[Epoch]:
    io, pipelines = needed("spdl.io"), needed("spdl.pipeline")
    paths = np.array(listed(setting.folder)[0])
    rng = np.random.default_rng(0)

    def one(path: str) -> Any:
        with open(path, "rb") as file:  # noqa: PTH123 - making a Path costs as much as a cached open
            data = file.read()
        header = read_header(data)
        assert header is not None
        top, left, height, width = random_resized(header.width, header.height, rng, SCALE, RATIO)
        flip = "hflip," if rng.random() < 0.5 else ""
        scale = f"scale={setting.size}:{setting.size}:flags=bilinear"
        filters = f"crop={width}:{height}:{left}:{top}:exact=1,{scale},{flip}format=pix_fmts=rgb24"
        frames = io.decode_packets(io.demux_image(data), filter_desc=filters)
        return np.asarray(io.to_numpy(io.convert_frames(frames)))

    def epoch() -> Iterable[int]:
        builder = pipelines.PipelineBuilder().add_source([str(path) for path in rng.permutation(paths)])
        builder = builder.pipe(one, concurrency=setting.workers).aggregate(setting.batch)
        pipeline = builder.pipe(np.stack).add_sink(setting.prefetch).build(num_threads=setting.workers)
        with pipeline.auto_stop():
            yield from map(len, pipeline)

    yield epoch


_OF_DALI = ("nvidia.dali", "nvidia.dali.fn")
_OF_FFCV = ("ffcv", "ffcv._libffcv", "numba")

PEERS = (
    Peer("DALI, antialias", FILES, _dali(True), _OF_DALI),
    Peer("DALI, linear", FILES, _dali(False), _OF_DALI),
    Peer("SPDL, antialias", FILES, _spdl, ("spdl.io", "spdl.pipeline")),
    Peer("FFCV, area", "jpeg.beton", _ffcv(False), _OF_FFCV),
    Peer("FFCV raw, area", "raw.beton", _ffcv(True), _OF_FFCV, "raw"),
)
