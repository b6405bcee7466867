"""How many samples of a validation set a model gets right, over all ranks.

The trap: measuring may last longer than what is left of a job, and a signal in the middle of it must not wait
for the next epoch. So it is looked at before each batch. Notebook 08 measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from smallfiles import images
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.progress import progress
from smallfiles.samples import Reader
from smallfiles.training.config import TrainConfig
from smallfiles.training.group import Group, inner
from smallfiles.training.waiting import next_batch

_NAMED = 20


@dataclass
class Faults:
    """Samples that could not be made as they were meant, of one rank.

    Args:
        loader: That of the training, which goes on counting.
        count: How many it had counted before.
        named: How many it had named before.
        measured: Loaders that measured.
    """

    loader: Any
    count: int
    named: int
    measured: list[Any] = field(default_factory=list)

    @classmethod
    def before(cls, loader: Any) -> Faults:
        """Count from now on."""
        return cls(loader, loader.fault_count, len(loader.faults))

    def of_all(self, group: Group) -> tuple[int, list[dict[str, str]]]:
        """How many all ranks have met, and the first of each; every rank must ask."""
        count = self.loader.fault_count - self.count + sum(each.fault_count for each in self.measured)
        own = [*self.loader.faults[self.named :], *(one for each in self.measured for one in each.faults)]
        named = [{"key": each.key, "reason": each.reason} for each in own[:_NAMED]]
        all_ranks = group.gather({"count": count, "named": named})
        return sum(each["count"] for each in all_ranks), [one for each in all_ranks for one in each["named"]]


def evaluate(
    model: nn.Module,
    reader: Reader,
    config: TrainConfig,
    group: Group,
    asked_to_stop: Sequence[int],
    faults: Faults,
) -> float | None:
    """Share of samples whose class is found; each rank looks at its part.

    Args:
        model: On the device of `group`.
        reader: The samples.
        config: Tells size and batch.
        group: The ranks.
        asked_to_stop: Looked at before each batch; None is returned once it holds something.
        faults: Gets what could not be measured.
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
    loader = make_loader(reader, loader_config, transform=transform)
    faults.measured.append(loader)
    batches, shown = iter(loader), None if group.is_first else False
    with torch.inference_mode(), progress(len(loader), "measuring", unit="batches", enabled=shown) as bar:
        while not asked_to_stop and (batch := next_batch(batches, asked_to_stop)) is not None:
            picture = batch["image"].to(group.device).permute(0, 2, 3, 1)
            found = network(images.normalise(picture)).argmax(1).cpu()
            right, seen = right + int((found == batch["target"]).sum()), seen + len(found)
            bar.advance()
    if group.largest(len(asked_to_stop)):
        return None
    right_of_all, all_seen = group.total(right, seen)
    return right_of_all / max(all_seen, 1)
