"""Networks to train, and their requirements: labels, and equal classes in training and validation.

The traps: batch normalisation takes its statistics from one rank's batch; the small network normalises groups
of channels instead, so that one rank and four compute the same. And if the folders of two sets differ by one
class, the other classes have different numbers: training works, and the accuracy is at chance, without any
error. Notebook 08 trains.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow.compute as pc
import torch
from torch import nn

from smallfiles.errors import FormatError
from smallfiles.samples import Reader
from smallfiles.training import Model

_CHANNELS = (16, 32, 64, 96)


def build(model: Model, classes: int, seed: int) -> nn.Module:
    """A network with weights that depend on the seed alone.

    Args:
        model: Name of the network.
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
    """Four convolutions that each halve the image, then the mean over what remains."""
    layers: list[nn.Module] = []
    before = 3
    for channels in _CHANNELS:
        layers += _block(before, channels, 2)
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Segmenter(nn.Module):
    """Three convolutions that each halve the image, and back up with what each had seen (a small U-Net).

    Args:
        classes: Number of outputs for each pixel.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        sizes = (3, *_CHANNELS[:3])
        pairs = list(itertools.pairwise(sizes))
        self.down = nn.ModuleList(_block(before, after, 2) for before, after in pairs)
        self.up = nn.ModuleList(
            _block(after + before, max(before, 16), 1) for before, after in reversed(pairs)
        )
        self.last = nn.Conv2d(16, classes, 1)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Scores [B, classes, rows, columns] of a picture [B, 3, rows, columns]."""
        seen = [picture]
        for layer in self.down:
            seen.append(layer(seen[-1]))
        found = seen.pop()
        for layer in self.up:
            before = seen.pop()
            found = layer(torch.cat([nn.functional.interpolate(found, before.shape[2:]), before], 1))
        scores: torch.Tensor = self.last(found)
        return scores


def _block(before: int, after: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.GroupNorm(8, after), nn.ReLU()
    )


def class_count(reader: Reader, path: Path) -> int:
    """The number of classes of a set.

    Args:
        reader: The set.
        path: Where it is, for messages.

    Raises:
        FormatError: It is empty, or has captions.
    """
    if not len(reader):
        raise FormatError(
            f"{path} has no samples", expected="at least one", next_step="Name the file of a training set"
        )
    if "label" not in reader.fields:
        raise FormatError(
            f"{path} has captions", expected="labels", next_step="Pack a set with one class per sample"
        )
    if reader.classes:
        return len(reader.classes)
    return 1 + max(0, int(pc.max(reader.table(["label"])["label"]).as_py()))


def check_same_classes(reader: Reader, path: Path, val: Reader, val_path: Path) -> None:
    """Refuse to measure a model on other classes than it learns.

    Args:
        reader: The training set.
        path: Where it is.
        val: The validation set.
        val_path: Where that is.

    Raises:
        FormatError: The sets have different classes.
    """
    classes = class_count(val, val_path)
    if reader.classes and val.classes and tuple(reader.classes) != tuple(val.classes):
        odd = sorted(set(reader.classes) ^ set(val.classes))
        how = f"only one of them has {odd[0]}" if odd else "their order differs"
        raise _different(path, val_path, f"{len(reader.classes)} and {classes} classes, {how}")
    if classes > class_count(reader, path):
        raise _different(path, val_path, f"{class_count(reader, path)} and {classes} classes")


def _different(path: Path, val_path: Path, how: str) -> FormatError:
    return FormatError(
        f"{path} and {val_path} have {how}",
        expected="the same classes in the same order",
        next_step="Split one manifest (Manifest.split_off), and pack both parts",
    )


def check_targets(targets: torch.Tensor, classes: int) -> None:
    """Refuse a batch with a sample without a class, or with a class that the model does not have.

    Args:
        targets: Labels, in CPU memory.
        classes: Number of classes of the model.

    Raises:
        FormatError: It holds such a sample.
    """
    least, most = (int(number) for number in targets.aminmax())
    if least < 0 or most >= classes:
        raise FormatError(
            f"a training sample has the label {least if least < 0 else most}",
            expected=f"a class from 0 to {classes - 1}",
            next_step="Leave samples without a class out of the manifest, and pack it again",
        )
