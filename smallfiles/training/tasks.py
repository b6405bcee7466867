"""Networks, and what they learn of a sample: its class, the class of each pixel, or a number.

    Classify   the label                       cross-entropy, share of samples that are right
    Segment    a mask beside the image         cross-entropy of each pixel, share of pixels that are right
    Regress    a number, or a list of numbers  squared error, mean absolute error

Each names its `field`, the `outputs` of its network for a sample or pixel, and its `measure`. `makers` are
those of the fields that it needs, `target` is what the network should compute, checked and in CPU memory,
`loss` a mean over samples, and `right` the sum of what is measured.

The traps: a network takes any whole number for a class, and 37.5 years become 37 without an error. So what is
learned follows from the type of the field, and is said. Batch normalisation takes its statistics from one
rank's batch; the small network normalises groups of channels instead, so that one rank and four compute the
same. And if the folders of two sets differ by one class, the other classes have different numbers: training
works, and the accuracy is at chance, without any error. Notebooks 08 and 13 train.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import nn

from smallfiles.arrays import one_chunk, spread
from smallfiles.errors import FormatError, UsageError, first_few
from smallfiles.fields import further_fields, is_blob
from smallfiles.images.decoding import ImageError
from smallfiles.loading.makers import Image, Mask, Value, class_numbers
from smallfiles.samples import UNLABELLED, Reader
from smallfiles.training import Model

IGNORED = 255
"""The class of pixels that are not learned, as in VOC."""
_MASKS = 64


class Classify:
    """The class of a sample.

    Args:
        reader: The training set.
        path: Where it is, for messages.
    """

    field, measure = "label", "accuracy"

    def __init__(self, reader: Reader, path: Path) -> None:
        self.outputs = class_count(reader, path)

    def makers(self, view: Any) -> dict[str, Any]:
        return {"image": Image(view)}

    def network(self, model: Model) -> nn.Module:
        return build(model, self.outputs)

    def target(self, batch: Any) -> torch.Tensor:
        target: torch.Tensor = batch["target"]
        least, most = (int(number) for number in target.aminmax())
        if least < 0 or most >= self.outputs:
            raise FormatError(
                f"a training sample has the label {least if least < 0 else most}",
                expected=f"a class from 0 to {self.outputs - 1}",
                next_step="Leave samples without a class out of the manifest, and pack it again",
            )
        return target

    def loss(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores, target)

    def right(self, scores: torch.Tensor, target: torch.Tensor) -> float:
        return float((scores.argmax(1) == target).sum())


class Segment:
    """The class of each pixel, from a mask; 255 is not learned.

    Args:
        reader: The training set.
        field: The field of masks.
    """

    measure = "pixel accuracy"

    def __init__(self, reader: Reader, field: str) -> None:
        self.field = field
        self.outputs = len(reader.classes) or _most_classes(reader, field)

    def makers(self, view: Any) -> dict[str, Any]:
        return {"image": Image(view), self.field: Mask(view)}

    def network(self, model: Model) -> nn.Module:
        if model != "small":
            raise UsageError(
                f"the model {model} was asked for, to learn the masks in {self.field}",
                expected="small, the only one here that computes a class for each pixel",
                next_step="Leave --model out",
            )
        return Segmenter(self.outputs)

    def target(self, batch: Any) -> torch.Tensor:
        target: torch.Tensor = batch[self.field].long()
        most = int(target[target != IGNORED].amax()) if bool((target != IGNORED).any()) else 0
        if most >= self.outputs:
            raise FormatError(
                f"a mask in {self.field} has the class {most}",
                expected=f"classes from 0 to {self.outputs - 1}, as some masks have, or {IGNORED}",
                next_step="Name all classes in the manifest, and pack it again",
            )
        return target

    def loss(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        of_pixels = nn.functional.cross_entropy(scores, target, ignore_index=IGNORED, reduction="sum")
        return of_pixels / (target != IGNORED).sum().clamp(min=1)

    def right(self, scores: torch.Tensor, target: torch.Tensor) -> float:
        known = target != IGNORED
        shares = ((scores.argmax(1) == target) & known).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)
        return float(shares.sum())


class Regress:
    """A number, or several, of each sample; learned with mean 0 and spread 1, measured as they are.

    Args:
        reader: The training set.
        field: The field of numbers, or of lists of one length.
        path: Where the set is, for messages.
    """

    measure = "mean absolute error"

    def __init__(self, reader: Reader, field: str, path: Path) -> None:
        self.field = field
        column = one_chunk(reader.table([field])[field])
        found = Value().bound(column).columns(field, column)
        numbers = found.get(field)
        if column.null_count or numbers is None or len(found) > 1 or not np.isfinite(numbers).all():
            raise FormatError(
                f"the field {field} of {path} is no finite number, or list of one length, in every sample",
                expected="numbers to learn",
                next_step="Leave the others out of the manifest, and pack it again",
            )
        numbers = numbers.astype(np.float64).reshape(len(reader), -1)
        self.outputs = numbers.shape[1]
        self.mean, spread = (torch.tensor(of(0), dtype=torch.float32) for of in (numbers.mean, numbers.std))
        self.spread = torch.where(spread > 0, spread, 1.0)

    def makers(self, view: Any) -> dict[str, Any]:
        return {"image": Image(view), self.field: Value()}

    def network(self, model: Model) -> nn.Module:
        return build(model, self.outputs)

    def target(self, batch: Any) -> torch.Tensor:
        numbers: torch.Tensor = batch[self.field].float().reshape(len(batch["index"]), -1)
        return (numbers - self.mean) / self.spread

    def loss(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(scores, target)

    def right(self, scores: torch.Tensor, target: torch.Tensor) -> float:
        return float(((scores - target).abs().cpu() * self.spread).mean(1).sum())


Task: TypeAlias = Classify | Segment | Regress


def task_of(reader: Reader, path: Path, field: str = "") -> Task:
    """Choose what to learn: the named field, or else the label, or else the only mask or number.

    Args:
        reader: The training set.
        path: Path of the set, for messages.
        field: Name of the field; if it is empty, it is chosen.

    Raises:
        UsageError: The field does not exist, or several are possible and none was named.
        FormatError: The field cannot be learned.
    """
    fields = further_fields(reader.fields)
    masks = [name for name, kind in fields.items() if kind in (".png", ".gif", ".tif", ".bmp")]
    values = reader.table([name for name, kind in fields.items() if not is_blob(kind)], []).schema
    numbers = [each.name for each in values if _is_number(each.type)]
    further = [*masks, *(each.name for each in values if pa.types.is_floating(each.type))]
    if not field and (not further or "label" not in reader.fields or reader.classes or _is_labelled(reader)):
        field = "label"
    elif not field and len(further) == 1:
        field = further[0]
    if field in masks:
        return Segment(reader, field)
    if field in numbers:
        return Regress(reader, field, path)
    if field == "label":
        return Classify(reader, path)
    known = [*masks, *numbers]
    raise UsageError(
        f"{path} has no field {field!r} to learn" if field else f"{path} has no labels, and several fields",
        expected=f"one of label, {first_few(known, len(known))}" if known else "label",
        next_step="Name one with --target",
    )


def _is_labelled(reader: Reader) -> bool:
    some = reader.table(["label"], spread(len(reader), 1024))["label"].unique().to_pylist()
    return some not in ([], [UNLABELLED])


def _is_number(type_: pa.DataType) -> bool:
    type_ = type_.value_type if pa.types.is_list(type_) else type_
    return bool(pa.types.is_floating(type_) or pa.types.is_integer(type_))


def _most_classes(reader: Reader, field: str) -> int:
    """Return one more than the largest class in some masks that are spread over the set."""
    masks, most = reader.blob(field), 1
    for row in spread(len(reader), _MASKS):
        try:
            classes = class_numbers(masks.read(row))
        except ImageError:
            continue  # reported when it is trained on
        most = max(most, int(classes[classes != IGNORED].max(initial=0)))
    return most + 1


_CHANNELS = tuple(itertools.pairwise((3, 16, 32, 64, 96)))
"""Channels before and after each convolution."""


def build(model: Model, classes: int) -> nn.Module:
    """Build a network. Its weights depend only on the seed of torch.

    The small one has four convolutions that each halve the image, then the mean over what remains.

    Args:
        model: Name of the network.
        classes: Number of outputs.
    """
    if model == "small":
        layers = [layer for channels in _CHANNELS for layer in _block(*channels, 2)]
        last = nn.Linear(_CHANNELS[-1][1], classes)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
    from torchvision import models

    made: nn.Module = getattr(models, model)(weights=None, num_classes=classes)
    return made


class Segmenter(nn.Module):
    """Three convolutions that each halve the image, and back up with what each had seen (a small U-Net).

    Args:
        classes: Number of outputs for each pixel.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        pairs = _CHANNELS[:3]
        self.down = nn.ModuleList(_block(before, after, 2) for before, after in pairs)
        self.up = nn.ModuleList(
            _block(after + before, max(before, 16), 1) for before, after in reversed(pairs)
        )
        self.last = nn.Conv2d(16, classes, 1)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return scores [B, classes, rows, columns] for pictures [B, 3, rows, columns]."""
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
    """Return the number of classes of a set.

    Args:
        reader: The set.
        path: Path of the set, for messages.

    Raises:
        FormatError: The set is empty, or has captions.
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
    classes, val_classes = class_count(reader, path), class_count(val, val_path)
    how = ""
    if reader.classes and val.classes and tuple(reader.classes) != tuple(val.classes):
        odd = sorted(set(reader.classes) ^ set(val.classes))
        how = f", only one of them has {odd[0]}" if odd else ", their order differs"
    if how or val_classes > classes:
        raise FormatError(
            f"{path} and {val_path} have {classes} and {val_classes} classes{how}",
            expected="the same classes in the same order",
            next_step="Split one manifest (Manifest.split_off), and pack both parts",
        )
