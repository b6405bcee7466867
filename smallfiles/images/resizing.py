"""Pixels scaled to another size, straight into their place in a batch.

    antialias   a triangle as wide as the reduction: what Pillow and torchvision call bilinear, and what
                published results were trained with
    linear      the four nearest pixels: faster, coarser, what OpenCV calls linear

PyTorch's kernels on uint8 do both, several times as fast as Pillow and equal to it within 1. They work in
one thread. Most other functions of PyTorch start some for a single picture, which on busy cores takes ten
times as long as doing it; so they are not used here.

The trap: with `linear` a reduction of 3 looks at 4 pixels of 9 and leaves out the rest, which makes
fine patterns flicker; a network trained with one filter loses accuracy with another. Notebook 08
teaches it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from smallfiles.errors import UsageError
from smallfiles.images.decoding import Pixels

Filter: TypeAlias = Literal["antialias", "linear"]


def resize(pixels: Pixels, out: Pixels, filter: Filter = "antialias", *, flip: bool = False) -> None:
    """Scale `pixels` to the size of `out`.

    Args:
        pixels: uint8, rows x columns x 3; may be a part of a larger picture.
        out: uint8, rows x columns x 3.
        filter: How new pixels are made of old ones.
        flip: Mirror left and right.
    """
    if pixels.shape == out.shape and not flip:
        out[:] = pixels
        return
    scaled = out if not flip else np.empty_like(out)
    _scale(_tensor(_own(pixels)), _tensor(scaled), filter)
    if flip:
        _mirror(scaled, out)


def check_filter(filter: str) -> None:
    """Refuse a filter that does not exist.

    Raises:
        UsageError: It is not one of `Filter`.
    """
    if filter not in get_args(Filter):
        raise UsageError(
            f"the filter {filter!r} is asked for",
            expected=f"one of {', '.join(get_args(Filter))}",
            next_step="Take antialias, with which published results were trained",
        )


def _mirror(pixels: Pixels, out: Pixels) -> None:
    """Left for right. PyTorch is faster, unless it may share so little work between threads."""
    if torch.get_num_threads() == 1:
        _tensor(out).copy_(_tensor(pixels).flip(3))
        return
    for channel in range(3):
        out[:, ::-1, channel] = pixels[:, :, channel]


def _own(pixels: Pixels) -> Pixels:
    """The same without gaps, and writable, without which PyTorch warns."""
    return pixels if pixels.flags.c_contiguous and pixels.flags.writeable else pixels.copy()


def _tensor(pixels: Pixels) -> torch.Tensor:
    """The same memory as a batch of one, channels first in name and last in memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)


def _scale(source: torch.Tensor, target: torch.Tensor, filter: Filter) -> None:
    size = list(target.shape[2:])
    operators: Any = torch.ops.aten
    if filter == "antialias":
        operators._upsample_bilinear2d_aa.out(source, size, False, None, None, out=target)
    else:
        operators.upsample_bilinear2d.out(source, size, False, None, None, out=target)
