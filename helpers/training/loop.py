"""Epochs of steps: take a batch, normalise it on the device, compute, and note where the time went.

The trap: an epoch ends at another step on another rank, and a rank that computes one step more than the
others waits for them forever. So all ranks take as many steps as the longest; `group.weight` keeps the
gradient right. Notebook 08 trains alone, notebook 10 on many ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from helpers import formats, images
from helpers.errors import FormatError
from helpers.loading import EpochPlan, LoaderConfig, make_loader
from helpers.samples import Reader
from helpers.training import checkpoint
from helpers.training.config import TrainConfig
from helpers.training.group import Group, inner, joined, weight
from helpers.training.models import build
from helpers.training.waiting import Clock


@dataclass(frozen=True)
class EpochReport:
    """One epoch.

    Args:
        epoch: Its number.
        samples: Trained on, by all ranks together, since the epoch or the program began.
        loss: Mean over them.
        accuracy: On the validation set; None without one.
        ranks: For each rank: node, samples, and where its time went.
    """

    epoch: int
    samples: int
    loss: float
    accuracy: float | None
    ranks: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """Of the slowest rank."""
        return max(float(rank["seconds"]) for rank in self.ranks)

    @property
    def waiting_share(self) -> float:
        """Share of its time that the rank which waited most waited for data."""
        return max(float(rank["waiting_share"]) for rank in self.ranks)


@dataclass(frozen=True)
class TrainReport:
    """A training.

    Args:
        epochs: Those that ended, in this run and before it.
        interrupted: It was asked to stop, and wrote a checkpoint if it keeps any.
        resumed_at: Epoch and batch at which this run went on, or None.
    """

    epochs: list[EpochReport]
    interrupted: bool
    resumed_at: tuple[int, int] | None


@dataclass
class _Run:
    """What one rank works with."""

    config: TrainConfig
    group: Group
    loader: Any
    model: nn.Module
    optimizer: torch.optim.Optimizer
    val: Reader | None
    asked_to_stop: Sequence[int]


def train(
    data: Path,
    val: Path | None = None,
    config: TrainConfig | None = None,
    asked_to_stop: Sequence[int] = (),
) -> TrainReport:
    """Train a classifier on a packed file.

    Args:
        data: The training samples, with labels.
        val: Other samples, to measure accuracy on.
        config: How.
        asked_to_stop: Looked at after each step; see `stopping.listening`. Once it holds something, a
            checkpoint is written and training ends.

    Returns:
        Loss, accuracy, throughput, and the share of time spent waiting for data.

    Raises:
        FormatError: The file has no labels.
        ResourceError: The ranks do not meet, or a checkpoint cannot be written.
    """
    config = config or TrainConfig()
    reader = formats.open(data)
    classes = _classes(reader, data)
    with joined() as group:
        others = None if val is None else formats.open(val)
        return _epochs(_run(group, config, reader, others, classes, asked_to_stop))


def _run(
    group: Group,
    config: TrainConfig,
    reader: Reader,
    val: Reader | None,
    classes: int,
    asked_to_stop: Sequence[int],
) -> _Run:
    """Not kept by its caller: the model must be gone before the ranks part (see `joined`)."""
    model = group.wrap(build(config.model, classes, config.loader.seed))
    optimizer = torch.optim.AdamW(model.parameters(), config.rate)
    return _Run(config, group, _loader(reader, config), model, optimizer, val, asked_to_stop)


def _classes(reader: Reader, path: Path) -> int:
    named = len(reader.classes)
    if len(reader) and not isinstance(reader.target(0), int):
        raise FormatError(
            f"{path} has captions", expected="labels", next_step="Pack a set with one class a sample"
        )
    return named or 1 + max((int(reader.target(n)) for n in range(len(reader))), default=0)  # type: ignore[arg-type]


def _loader(reader: Reader, config: TrainConfig) -> Any:
    if config.ring:
        from helpers import ring

        return ring.attach(config.ring)
    return make_loader(reader, config.loader, transform=images.RandomResizedCrop(size=config.size))


def _epochs(run: _Run) -> TrainReport:
    reports, resumed_at = _resume(run)
    first, start = resumed_at or (0, 0)
    for epoch in range(first, run.config.epochs):
        run.loader.set_epoch(epoch)
        report = _epoch(run, epoch, start, reports)
        if report is None:
            return TrainReport(reports, True, resumed_at)
        reports.append(report)
        _keep(run, reports, epoch + 1, 0)
        start = 0
    return TrainReport(reports, False, resumed_at)


def _epoch(run: _Run, epoch: int, start: int, before: Sequence[EpochReport]) -> EpochReport | None:
    """Train one epoch, or what is left of it; None if it was asked to stop."""
    config, group, plan = run.config, run.group, run.loader.plan
    steps = max(plan.batches_per_rank(epoch))
    stop = min(steps, config.max_steps) if config.max_steps else steps
    clock, trained, lost = Clock(group.device), 0, 0.0
    run.model.train()
    batches = clock.batches(iter(run.loader))
    for step in range(start, stop):
        batch = next(batches, None) if step < plan.length(epoch) else None
        size, loss = _step(run, clock, batch, _planned(plan, epoch, step))
        trained, lost = trained + size, lost + loss * size
        ends_early = step + 1 < stop
        if ends_early and group.largest(len(run.asked_to_stop)):
            _keep(run, before, epoch, step + 1)
            return None
        if ends_early and config.every and (step + 1) % config.every == 0:
            _keep(run, before, epoch, step + 1)
    if stop == steps:
        next(batches, None)  # the loader learns that its last batch was used, and ends the pass
    times = clock.summary()
    ranks = group.gather({**dataclasses.asdict(group.where), "samples": trained, **times})
    samples, loss = group.total(trained, lost)
    accuracy = None if run.val is None else evaluate(run.model, run.val, config, group)
    return EpochReport(epoch, int(samples), loss / max(samples, 1), accuracy, ranks)


def _step(run: _Run, clock: Clock, batch: Any, planned: int) -> tuple[int, float]:
    """One step; the number of samples of this rank in it, and their mean loss."""
    device = run.group.device
    size = 0 if batch is None else len(batch["target"])
    if size:
        picture, target = (batch[name].to(device, non_blocking=True) for name in ("image", "target"))
    else:  # nothing left here: keep the others company
        picture = torch.zeros((1, 3, run.config.size, run.config.size), dtype=torch.uint8, device=device)
        target = torch.zeros(1, dtype=torch.int64, device=device)
    clock.begin()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        scores = run.model(images.normalise(picture.permute(0, 2, 3, 1)))
        loss = nn.functional.cross_entropy(scores.float(), target)
    share = weight(size, planned, run.group.where.world_size)
    run.optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss * share)
    run.optimizer.step()
    clock.end()
    # Asking a GPU for the loss waits for the step; the loss of one step in sixteen is enough to report.
    known = device.type == "cpu" or len(clock.steps_s) % 16 == 1
    return size, float(loss.detach()) if known and size else 0.0


def _planned(plan: EpochPlan, epoch: int, step: int) -> int:
    """Samples that all ranks together have in a step."""
    left = (size - step * plan.batch for size in plan.samples_per_rank(epoch))
    return sum(min(plan.batch, max(0, number)) for number in left)


def evaluate(model: nn.Module, reader: Reader, config: TrainConfig, group: Group) -> float:
    """Share of samples whose class is found; each rank looks at its part.

    Args:
        model: On the device of `group`.
        reader: The samples.
        config: Tells size and batch.
        group: The ranks.
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
    with torch.inference_mode():
        for batch in make_loader(reader, loader_config, transform=transform):
            picture = batch["image"].to(group.device).permute(0, 2, 3, 1)
            found = network(images.normalise(picture)).argmax(1).cpu()
            right, seen = right + int((found == batch["target"]).sum()), seen + len(found)
    right_of_all, all_seen = group.total(right, seen)
    return right_of_all / max(all_seen, 1)


def _resume(run: _Run) -> tuple[list[EpochReport], tuple[int, int] | None]:
    """Go on from the last checkpoint, if one is kept."""
    state = None if run.config.checkpoint is None else checkpoint.load(run.config.checkpoint)
    if state is None:
        return [], None
    inner(run.model).load_state_dict(state.model)
    run.optimizer.load_state_dict(state.optimizer)
    epoch, step = int(state.loader["epoch"]), int(state.loader["batch"])
    mine = min(step, run.loader.plan.length(epoch))  # a rank with fewer batches may be through already
    run.loader.load_state_dict({**state.loader, "batch": mine})
    return [EpochReport(**each) for each in state.epochs], (epoch, step)


def _keep(run: _Run, reports: Sequence[EpochReport], epoch: int, step: int) -> None:
    """Write down that the next step is `step` of `epoch`; one rank writes for all."""
    if run.config.checkpoint is None or not run.group.is_first:
        return
    place = {**run.loader.state_dict(), "epoch": epoch, "batch": step}
    written = [dataclasses.asdict(each) for each in reports]
    state = checkpoint.State(inner(run.model).state_dict(), run.optimizer.state_dict(), place, written)
    checkpoint.save(run.config.checkpoint, state)
