"""Ways to a training crop: ours, and what one would write without us with Pillow, torchvision or OpenCV.

Each method is a function from bytes to 224 x 224 x 3 uint8, a random resized crop, mirrored half of the time;
or to the whole picture where only decoding is measured. The filter is in the name: a picture scaled with
another filter is another picture (`area` is antialiased too).

The trap: OpenCV gives blue, green, red, and starts threads of its own, unless told not to.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import simplejpeg
from PIL import Image

from smallfiles.images import RandomResizedCrop, resize
from smallfiles.images.crops import Box, random_resized
from smallfiles.images.picture import open_picture
from smallfiles.images.transforms import Filter

Kind: TypeAlias = Literal["decode", "augment"]
One: TypeAlias = Callable[[bytes, np.random.Generator], Any]
Scale: TypeAlias = Callable[[Any, bool], Any]
"""Scales a part of a picture to the square, mirrored or not."""

SIZE = 224
SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Method:
    """A way to measure, in our processes.

    Args:
        name: In records; says the filter.
        kind: What it does.
        make: Gives the function; called once in each process that works.
        modules: What it imports, to know whether it can run here.
    """

    name: str
    kind: Kind
    make: Callable[[], One]
    modules: tuple[str, ...] = ()


def _whole_by_pillow(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGB"))


def _whole_by_torchvision(data: bytes) -> Any:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    encoded = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    return decode_jpeg(encoded, mode=ImageReadMode.RGB).permute(1, 2, 0).numpy()


def _whole_by_opencv(data: bytes) -> Any:
    import cv2

    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)


def _whole_by_turbojpeg(data: bytes) -> Any:
    picture = open_picture(data)
    return picture.part(Box(0, 0, picture.height, picture.width), picture.height, picture.width)


def _whole_by_torchcodec(data: bytes) -> Any:
    from torchcodec.decoders import decode_jpeg

    return decode_jpeg(data).permute(1, 2, 0).numpy()


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "pillow": _whole_by_pillow,
    "torchvision": _whole_by_torchvision,
    "opencv": _whole_by_opencv,
    "simplejpeg": partial(simplejpeg.decode_jpeg, colorspace="RGB"),
    "turbojpeg": _whole_by_turbojpeg,
    "torchcodec": _whole_by_torchcodec,
}
"""Most of the differences between those of one library (libjpeg-turbo is in all of them) lie in what is done
beside decoding: copies, channel orders, a picture object in between."""

_CV, _TV, _TC = ("cv2",), ("torchvision",), ("torchcodec",)


def _plain(decoder: str, scale: Callable[[], Scale]) -> Callable[[], One]:
    """A method of a decoder and something that scales: decode all, cut out, scale."""

    def make() -> One:
        decode = _DECODERS[decoder]
        scaled = scale()

        def one(data: bytes, rng: np.random.Generator) -> Any:
            pixels = decode(data)
            box = random_resized(pixels.shape[1], pixels.shape[0], rng, SCALE, RATIO)
            part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
            return scaled(part, rng.random() < 0.5)

        return one

    return make


def _by_us(filter: Filter) -> Callable[[], Scale]:
    def scaled(part: Any, flip: bool) -> Any:
        out = np.empty((SIZE, SIZE, 3), np.uint8)
        resize(part, out, filter, flip=flip)
        return out

    return lambda: scaled


def _only(decoder: str) -> Method:
    decode = _DECODERS[decoder]
    modules = {"opencv": _CV, "torchvision": _TV, "torchcodec": _TC}.get(decoder, ())
    return Method(decoder, "decode", lambda: lambda data, rng: decode(data), modules)


def _by_opencv(filter: str) -> Callable[[], Scale]:
    def make() -> Scale:
        import cv2

        cv2.setNumThreads(0)
        kind = {"linear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA}[filter]

        def scaled(part: Any, flip: bool) -> Any:
            found = cv2.resize(part, (SIZE, SIZE), interpolation=kind)
            return cv2.flip(found, 1) if flip else found

        return scaled

    return make


def _by_torchvision(antialias: bool) -> Callable[[], Scale]:
    def make() -> Scale:
        import torch
        from torchvision.transforms.v2 import functional

        def scaled(part: Any, flip: bool) -> Any:
            tensor = torch.from_numpy(part).permute(2, 0, 1)
            found = functional.resize(tensor, [SIZE, SIZE], antialias=antialias)
            return functional.horizontal_flip(found) if flip else found

        return scaled

    return make


def _pillow() -> One:
    def one(data: bytes, rng: np.random.Generator) -> Any:
        with Image.open(io.BytesIO(data)) as opened:
            picture = opened.convert("RGB")
        box = random_resized(*picture.size, rng, SCALE, RATIO)
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        found = picture.crop(edges).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if rng.random() < 0.5:
            found = found.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(found)

    return one


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("Pillow, antialias", "augment", _pillow),
        Method("torchvision, antialias", "augment", _plain("torchvision", _by_torchvision(True)), _TV),
        Method("TorchCodec, antialias", "augment", _plain("torchcodec", _by_torchvision(True)), _TC),
        Method("torchvision, linear", "augment", _plain("torchvision", _by_torchvision(False)), _TV),
        Method(
            "simplejpeg + torchvision, antialias", "augment", _plain("simplejpeg", _by_torchvision(True)), _TV
        ),
        Method("simplejpeg + OpenCV, linear", "augment", _plain("simplejpeg", _by_opencv("linear")), _CV),
        Method("OpenCV, linear", "augment", _plain("opencv", _by_opencv("linear")), _CV),
        Method("OpenCV, area", "augment", _plain("opencv", _by_opencv("area")), _CV),
        Method("ours without TurboJPEG 3, antialias", "augment", _plain("simplejpeg", _by_us("antialias"))),
        Method("ours, antialias", "augment", lambda: RandomResizedCrop(SIZE, filter="antialias")),
        Method("ours, linear", "augment", lambda: RandomResizedCrop(SIZE, filter="linear")),
        *map(_only, _DECODERS),
    )
}
"""By the name that the records carry."""
