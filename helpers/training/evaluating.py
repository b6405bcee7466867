"""How many samples of a validation set a model gets right, over all ranks.

The trap: measuring may last longer than what is left of a job, and a signal in the middle of it must not wait
for the next epoch. So it is looked at before each batch. Notebook 08 measures.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from helpers import images
from helpers.loading import LoaderConfig, make_loader
from helpers.samples import Reader
from helpers.training.config import TrainConfig
from helpers.training.group import Group, inner
from helpers.training.waiting import next_batch


def evaluate(
    model: nn.Module, reader: Reader, config: TrainConfig, group: Group, asked_to_stop: Sequence[int] = ()
) -> float | None:
    """Share of samples whose class is found; each rank looks at its part.

    Args:
        model: On the device of `group`.
        reader: The samples.
        config: Tells size and batch.
        group: The ranks.
        asked_to_stop: Looked at before each batch; None is returned once it holds something.
    """
    where = group.where
    loader_config = LoaderConfig(
        batch=config.loader.batch,
        shuffle=False,
        workers=config.loader.workers,
        mode=config.loader.mode,
        on_error=config.loader.on_error,
        rank=where.rank,
        world_size=where.world_size,
    )
    transform = images.CentreCrop(resize=round(config.size * 8 / 7), crop=config.size)
    network = inner(model).eval()
    right = seen = 0
    batches = iter(make_loader(reader, loader_config, transform=transform))
    with torch.inference_mode():
        while not asked_to_stop and (batch := next_batch(batches, asked_to_stop)) is not None:
            picture = batch["image"].to(group.device).permute(0, 2, 3, 1)
            found = network(images.normalise(picture)).argmax(1).cpu()
            right, seen = right + int((found == batch["target"]).sum()), seen + len(found)
    if group.largest(len(asked_to_stop)):
        return None
    right_of_all, all_seen = group.total(right, seen)
    return right_of_all / max(all_seen, 1)
