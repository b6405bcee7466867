"""The last step, on the device: uint8 batches to normalised float32.

A float takes four bytes where a pixel took one: sent between processes or to a GPU, uint8 batches cost a
quarter. The trap: done in the workers, normalising is also slower than decoding's own last steps, on
processors that have nothing to spare. Notebook 08 measures it.
"""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt
import torch

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Of red, green and blue over ImageNet, on a scale of 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviations of the same."""
_SCALE = np.array([1 / (255 * each) for each in IMAGENET_STD], np.float32)
_SHIFT = np.array([-mean / each for mean, each in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)], np.float32)


@overload
def normalise(batch: torch.Tensor) -> torch.Tensor: ...


@overload
def normalise(batch: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]: ...


def normalise(batch: torch.Tensor | npt.NDArray[np.uint8]) -> torch.Tensor | npt.NDArray[np.float32]:
    """Subtract ImageNet's mean and divide by its standard deviation, channel by channel.

    Args:
        batch: uint8, [B, rows, columns, channels]; a tensor may lie on any device.

    Returns:
        float32, [B, channels, rows, columns], on the same device. A tensor keeps its order in memory
        (`torch.channels_last`), which convolutions are fastest with.
    """
    if not isinstance(batch, torch.Tensor):
        return normalise(torch.from_numpy(batch)).numpy()
    factor, offset = (torch.from_numpy(values[:, None, None]).to(batch.device) for values in (_SCALE, _SHIFT))
    return batch.permute(0, 3, 1, 2).to(torch.float32).mul_(factor).add_(offset)
