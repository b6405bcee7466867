"""Which epoch comes next, and at which batch it begins.

The trap: a sampler that relies on `set_epoch` repeats the same order in every epoch if the call is forgotten
(pytorch#31771). This one advances by itself, and `set_epoch` only corrects it. Persistent workers see
neither, so each sample number sent to them carries its epoch. Notebook 10 teaches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler

from smallfiles.errors import UsageError
from smallfiles.loading.plan import Earlier, EpochPlan

EPOCH_BIT = 40
"""From this bit on, the number of a sample holds its epoch."""
_GRID = ("world_size", "batch", "streams")
"""What may change when an epoch is resumed: ranks, samples in a batch, workers of a stream."""
_MANY = 4096
"""Ranks, streams and resumptions that are plausible for any set, however small."""


class Schedule:
    """The position in the sequence of epochs, in the trainer's process.

    Args:
        plan: The share of this rank in each epoch.

    Attributes:
        epoch: Of the next pass.
        start: The batch that it begins with.
        at: Epoch and number of delivered batches of the current pass; None between two passes.
    """

    def __init__(self, plan: EpochPlan) -> None:
        self.epoch = 0
        self.start = 0
        self.at: tuple[int, int] | None = None
        self._whole, self._rest = plan, (-1, plan)

    @property
    def plan(self) -> EpochPlan:
        """The plan of the current epoch, or else of the next."""
        return self.plan_of((self.at or (self.epoch,))[0])

    def plan_of(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch, or of its rest if it was begun on another number of ranks."""
        return self._rest[1] if epoch == self._rest[0] else self._whole

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next pass; from its first batch, unless it is already the next."""
        self.at = None
        if epoch != self.epoch:
            self.start_at(epoch, 0)

    def start_at(self, epoch: int, batch: int) -> None:
        """Make this epoch the next pass, from this batch on.

        Raises:
            UsageError: The epoch has fewer batches.
        """
        length = self.plan_of(epoch).length()
        if epoch < 0 or not 0 <= batch <= length:
            raise UsageError(
                f"epoch {epoch} should begin at batch {batch}",
                expected=f"an epoch of 0 or more and a batch from 0 to {length}",
                next_step="Resume with the batch size and number of ranks of the run that was stopped",
            )
        self.epoch, self.start, self.at = epoch, batch, None

    def take(self) -> tuple[int, int]:
        """Epoch and first batch of the pass that begins now; advances to the next epoch."""
        taken = self.epoch, self.start
        self.epoch, self.start = self.epoch + 1, 0
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training: epoch, delivered batches, and the settings they depend on."""
        epoch, batch = self.at or (self.epoch, self.start)
        if batch and batch >= self.plan_of(epoch).length():
            epoch, batch = epoch + 1, 0
        return self.state_at(epoch, batch)

    def state_at(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return the state of a schedule whose next batch is this batch."""
        earlier = [list(each) for each in self.plan_of(epoch).earlier]
        return {"epoch": epoch, "batch": batch, "plan": self._whole.depends_on(), "earlier": earlier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next pass continue where the schedule that returned this state was.

        On another number of ranks, or with batches of another size, it covers the samples of that epoch that
        no rank had read.

        Raises:
            UsageError: The state is of another data set, seed or order.
        """
        then, earlier = self._checked(state)
        epoch, batch = int(state["epoch"]), int(state["batch"])
        if batch >= 0 and any(then[name] != getattr(self._whole, name) for name in _GRID):
            grid = Earlier(then["world_size"], then["batch"], then["streams"], batch)
            earlier, batch = (*earlier, grid), 0
        self._rest = (epoch, self._whole.rest(earlier))
        # A rank with one batch fewer than others has finished when they are at their last.
        most = max(self.plan_of(epoch).batches_per_rank())
        self.start_at(epoch, min(batch, self.plan_of(epoch).length()) if batch <= most else batch)

    def _checked(self, state: dict[str, Any]) -> tuple[dict[str, Any], tuple[Earlier, ...]]:
        """Return the settings on which a state depends and the earlier parts of its epoch, or refuse it."""
        now, then = self._whole.depends_on(), state.get("plan")
        try:
            like = now | {name: int(then[name]) for name in _GRID}  # type: ignore[index]
            earlier = tuple(Earlier(*map(int, each)) for each in state.get("earlier", ()))
        except (TypeError, ValueError, KeyError):
            then, like, earlier = None, now, ()
        grid = Earlier(like["world_size"], like["batch"], like["streams"], 0)
        _check_possible((grid, *earlier), self._whole.samples)
        if bool(like["streams"]) != bool(now["streams"]):  # read in another order
            like["streams"] = now["streams"]
        if then != like:
            names = [name for name in now if not isinstance(then, dict) or then.get(name) != like[name]]
            before = {name: then.get(name) for name in names} if isinstance(then, dict) else "unknown"
            raise UsageError(
                f"the state is of a loader with {before}",
                expected=f"{ ({name: now[name] for name in names}) }, as this one has",
                next_step="Resume with the data set and the settings of the run that was stopped",
            )
        return like, earlier


def _check_possible(grids: Sequence[Earlier], samples: int) -> None:
    """Refuse numbers that no training wrote: memory and time of resuming grow with them."""
    for grid in grids:
        ranks, streams = grid.world_size, grid.streams
        possible = min(ranks, grid.batch) >= 1 and min(streams, grid.batches) >= 0 and streams <= _MANY
        if not possible or ranks * max(streams, 1) > max(samples, _MANY) or len(grids) > _MANY:
            raise UsageError(
                f"the state says that {ranks:,} ranks with {streams:,} streams read {grid.batches:,} batches "
                f"of {grid.batch:,} samples each, in one of {len(grids):,} parts of an epoch",
                expected=f"numbers that a set of {samples:,} samples can have",
                next_step="The file is damaged or was edited: resume from another, or start over",
            )


class EpochBatches(Sampler[list[int]]):
    """A batch sampler: lists of numbers that carry their epoch.

    Args:
        plan: The share of this rank in each epoch.
    """

    drop_last = False  # for Accelerate; the plan has already dropped what it drops

    def __init__(self, plan: EpochPlan) -> None:
        self.schedule = Schedule(plan)
        self.batch_size = plan.batch

    @property
    def sampler(self) -> EpochBatches:
        """Itself: Lightning and Accelerate look for `set_epoch` here."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next pass."""
        self.schedule.set_epoch(epoch)

    def __len__(self) -> int:
        return self.schedule.plan.length()

    def __iter__(self) -> Iterator[list[int]]:
        # torch makes two iterators per pass and uses one: do nothing before the first batch.
        epoch, start = self.schedule.take()
        for batch in self.schedule.plan_of(epoch).batches(epoch)[start:]:
            yield (batch | (epoch << EPOCH_BIT)).tolist()
