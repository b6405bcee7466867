"""What one would write without us: decode all, cut out, scale, with Pillow, torchvision or OpenCV.

Each is a random resized crop of 224 x 224, mirrored half of the time. The filter is in the name: a picture
scaled with another filter is another picture (`area` is antialiased too).

The trap: OpenCV gives blue, green, red, and starts threads of its own, unless told not to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smallfiles.images.crops import random_resized
from smallfiles.measure.decoding import RATIO, SCALE, SIZE, Method, One, Scale, plain


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
    import io

    from PIL import Image

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


_CV = ("cv2",)
_TV = ("torchvision",)

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("Pillow, antialias", "augment", _pillow),
        Method("torchvision, antialias", "augment", plain("torchvision", _by_torchvision(True)), _TV),
        Method("torchvision, linear", "augment", plain("torchvision", _by_torchvision(False)), _TV),
        Method(
            "simplejpeg + torchvision, antialias", "augment", plain("simplejpeg", _by_torchvision(True)), _TV
        ),
        Method("simplejpeg + OpenCV, linear", "augment", plain("simplejpeg", _by_opencv("linear")), _CV),
        Method("OpenCV, linear", "augment", plain("opencv", _by_opencv("linear")), _CV),
        Method("OpenCV, area", "augment", plain("opencv", _by_opencv("area")), _CV),
    )
}
"""By the name that the records carry."""
