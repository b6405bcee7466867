"""Networks to train: a small one that learns the synthetic classes in a minute, and ResNets on request.

The trap: batch normalisation takes its statistics from one rank's batch; the small network normalises groups
of channels instead, so that one rank and four compute the same. Notebook 08 trains it.
"""

from __future__ import annotations

import torch
from torch import nn

from smallfiles.training.config import Model

_CHANNELS = (16, 32, 64, 96)


def build(model: Model, classes: int, seed: int) -> nn.Module:
    """A network with weights that depend on the seed alone.

    Args:
        model: Which one.
        classes: Number of outputs.
        seed: Of the weights.
    """
    torch.manual_seed(seed)
    if model == "small":
        return small(classes)
    from torchvision import models

    made: nn.Module = getattr(models, model)(weights=None, num_classes=classes)
    return made


def small(classes: int) -> nn.Module:
    """Four convolutions that halve the image each, then the mean over the rest of it."""
    layers: list[nn.Module] = []
    before = 3
    for channels in _CHANNELS:
        layers += [nn.Conv2d(before, channels, 3, stride=2, padding=1), nn.GroupNorm(8, channels), nn.ReLU()]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
