"""Pixels scaled to another size, straight into their place in a batch.

    antialias   a triangle as wide as the reduction: what Pillow and torchvision call bilinear, and what
                published results were trained with
    linear      the four nearest pixels: faster, coarser, what OpenCV calls linear

PyTorch's kernels on uint8 do both, several times as fast as Pillow and equal to it within 1.

The trap: with `linear` a reduction of 3 looks at 4 pixels of 9 and leaves out the rest, which makes
fine patterns flicker; a network trained with one filter loses accuracy with another. Notebook 08
teaches it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import torch

from helpers.errors import UsageError
from helpers.images.decoding import Pixels

Filter: TypeAlias = Literal["antialias", "linear"]


def resize(pixels: Pixels, out: Pixels, filter: Filter = "antialias", *, flip: bool = False) -> None:
    """Scale `pixels` to the size of `out`.

    Args:
        pixels: uint8, rows x columns x 3; may be a part of a larger picture.
        out: uint8, rows x columns x 3.
        filter: How new pixels are made of old ones.
        flip: Mirror left and right.
    """
    if pixels.shape == out.shape:
        out[:] = _tensor(_own(pixels)).flip(3)[0].permute(1, 2, 0).numpy() if flip else pixels
        return
    target = torch.empty_like(_tensor(out)) if flip else _tensor(out)
    _scale(_tensor(_own(pixels)), target, filter)
    if flip:
        _tensor(out).copy_(target.flip(3))


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
