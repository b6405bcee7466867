"""The sequence of batches over several epochs, and the record of what a ring holds (notebook 08)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from smallfiles.errors import UsageError
from smallfiles.loading.batches import Layout
from smallfiles.loading.plan import EpochPlan, SampleOrder
from smallfiles.ring.state import END, Position


class BatchOrder:
    """The batches of one rank in order of training.

    Args:
        plan: The rank's share of each epoch.
        epochs: How many epochs there are; None for no limit.
    """

    def __init__(self, plan: EpochPlan, epochs: int | None) -> None:
        self.plan, self.epochs = plan, epochs
        self.length = plan.length()
        self._batches = lru_cache(maxsize=2)(plan.batches)  # producers work on two epochs at most
        if not self.length:
            raise UsageError(
                f"rank {plan.rank} of {plan.world_size} gets no batch of the {plan.samples:,} samples",
                expected="at least one batch for each rank",
                next_step="Use fewer ranks, or a smaller batch",
            )

    def first(self, epoch: int = 0) -> Position:
        """The first batch of an epoch."""
        return END if self.epochs is not None and epoch >= self.epochs else Position(epoch, 0)

    def after(self, position: Position) -> Position:
        """The batch that follows."""
        if position.batch + 1 < self.length:
            return Position(position.epoch, position.batch + 1)
        return self.first(position.epoch + 1)

    def indices(self, position: Position) -> SampleOrder:
        """The samples of a batch."""
        return self._batches(position.epoch)[position.batch]

    def total(self, most: int) -> int:
        """Number of all batches, counted up to `most`."""
        return most if self.epochs is None else min(most, self.epochs * self.length)


def description(plan: EpochPlan, layout: Layout, epochs: int | None) -> dict[str, Any]:
    """What a ring holds, as JSON values, with an identity that only an equal ring has."""
    shapes = {name: [list(shape), dtype.str] for name, (shape, dtype) in layout.items()}
    content = {"plan": asdict(plan), "layout": shapes}
    text = json.dumps(content, sort_keys=True)
    return {**content, "epochs": epochs, "identity": hashlib.sha256(text.encode()).hexdigest()}


def plan_of(record: dict[str, Any]) -> EpochPlan:
    """The plan in a description."""
    fields = dict(record["plan"])
    return EpochPlan(**{**fields, "shards": tuple(fields["shards"])})
