"""The training loop: get a batch, normalise it on the device, compute, and record where the time went.

The trap: ranks may have unequal numbers of batches, and a rank that computes one step more than the others
waits for them forever. So all ranks take as many steps as the longest; the loss of each rank is weighted by
its samples, which keeps the gradient right. And validation may last longer than the rest of a job: signals
are checked before each of its batches too. Notebook 08 trains on one rank, notebook 10 on many.

The step timer says where the time goes: waiting for data, or computing. On a CPU the wait is the time that
the loop spends on getting the next batch. On a GPU, queued work continues meanwhile; there the wait is the
idle time of the GPU itself, measured by events: from the end of the work queued before the request to the
arrival of the batch, plus its copy. Communication between ranks and checkpoints do not count as waiting for
data.

The trap: a loop that takes `time.time()` around a GPU step measures how fast work is queued. Notebook 08
shows the share.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from smallfiles import images, objectstore
from smallfiles.errors import ResourceError, UsageError, first_few
from smallfiles.fields import further_fields
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.loading.dataset import mixture_of, name_of_data
from smallfiles.loading.fields import none_left
from smallfiles.loading.makers import Fault
from smallfiles.loading.plan import EpochPlan
from smallfiles.loading.worker_errors import WorkerDiedError
from smallfiles.progress import plural, progress
from smallfiles.samples import Reader
from smallfiles.selection.draws import drawn
from smallfiles.training import OF_MEASURING, TrainConfig, check_ring, checkpoint
from smallfiles.training.group import Group, joined
from smallfiles.training.tasks import Classify, Task, check_same_classes, task_of

_NAMED = 20


@dataclass(frozen=True)
class EpochReport:
    """The result of one epoch.

    Args:
        epoch: Its number.
        samples: Trained by all ranks together, including those before a resume.
        loss: Mean over them.
        accuracy: On the validation set, as `measure` says; None without one.
        ranks: For each rank: node, samples and times since the epoch or the program began.
        fault_count: Damaged samples in training and validation, since the epoch or the program began.
        faults: The first of them: key and reason.
        measure: `accuracy`, `pixel accuracy` or `mean absolute error`.
    """

    epoch: int
    samples: int
    loss: float
    accuracy: float | None
    ranks: list[dict[str, Any]]
    fault_count: int = 0
    faults: list[dict[str, str]] = field(default_factory=list)
    measure: str = "accuracy"

    @property
    def seconds(self) -> float:
        """Of the slowest rank."""
        return max(float(rank["seconds"]) for rank in self.ranks)

    @property
    def rate(self) -> float:
        """Samples per second of all ranks, in the time of the slowest."""
        return sum(int(rank["samples"]) for rank in self.ranks) / max(self.seconds, 1e-9)

    @property
    def waiting_share(self) -> float:
        """The largest share of time that a rank waited for data."""
        return max(float(rank["waiting_share"]) for rank in self.ranks)


@dataclass(frozen=True)
class TrainReport:
    """The result of a training.

    Args:
        epochs: The finished epochs, of this run and earlier ones.
        interrupted: Whether a signal stopped it; it then wrote a checkpoint if a folder is set.
        resumed_at: Epoch and batch at which this run resumed, or None.
    """

    epochs: list[EpochReport]
    interrupted: bool
    resumed_at: tuple[int, int] | None


class _Run:
    """The objects of one rank, and what is done so far."""

    def __init__(
        self, group: Group, config: TrainConfig, reader: Reader, task: Task, stop: Sequence[int]
    ) -> None:
        self.group, self.config, self.task, self.asked_to_stop = group, config, task, stop
        self.path = reader.path
        torch.manual_seed(config.loader.seed)  # which alone decides the first weights
        self.network = task.network(config.model)
        self.model = group.wrap(self.network)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), config.rate)
        self.loader = _loader(reader, config, group, task)
        self.reports: list[EpochReport] = []
        self.resumed_at: tuple[int, int] | None = None
        self.start = 0  # the first step of a resumed epoch
        self.begun = 0.0, 0.0  # of that epoch: samples, and the sum of their losses


def train(
    data: Path | Mapping[str, float],
    val: Path | None = None,
    config: TrainConfig | None = None,
    asked_to_stop: Sequence[int] = (),
) -> TrainReport:
    """Train a small network on a packed file: to classify, to segment, or to compute a number.

    Args:
        data: The training samples; or the share of each of several sets in every epoch.
        val: Other samples, to measure on.
        config: The settings.
        asked_to_stop: Checked before each step; see `processes.listening`. Once it is not empty, a checkpoint
            is written and training ends.

    Returns:
        Loss, accuracy, throughput, and the share of time spent waiting for data.

    Raises:
        FormatError: A file has nothing to learn, or the two have different classes.
        UsageError: The loader, the ring or the checkpoint is of another data set or model.
        ResourceError: The ranks do not meet, lose each other, or a checkpoint cannot be written.
    """
    config = config or TrainConfig()
    check_ring(config, val is not None)
    if isinstance(data, Mapping):
        reader = mixture_of(data, config.loader)
    else:
        reader = drawn(objectstore.open_anywhere(data), config.loader)
    task = task_of(reader, reader.path, config.target)
    others = None if val is None else objectstore.open_anywhere(val)
    if others is not None and val is not None:
        if isinstance(task, Classify):
            check_same_classes(reader, reader.path, others, val)
        else:
            task_of(others, val, task.field)  # it has the field
    with joined() as group:
        if others is not None:
            EpochPlan(len(others), world_size=group.where.world_size).check_batches(others)
        # Nothing here refers to the run, since its model must be freed before the group.
        return _epochs(_Run(group, config, reader, task, asked_to_stop), others)


def _loader(reader: Reader, config: TrainConfig, group: Group, task: Task) -> Any:
    if config.ring:
        from smallfiles import ring

        loader: Any = ring.attach(config.ring, wait_s=config.wait)
    else:
        fields = _fields(task, reader, images.RandomResizedCrop(size=config.size))
        loader = make_loader(reader, config.loader, fields=fields)
    loader.every_step = True  # steps and batches have equal numbers, also in a checkpoint
    plan, where = loader.plan, group.where
    if (plan.samples, plan.rank, plan.world_size) != (len(reader), where.rank, where.world_size):
        raise UsageError(
            f"the batches are those of rank {plan.rank} of {plan.world_size}, of {plan.samples:,} samples",
            expected=f"those of rank {where.rank} of {where.world_size}, of {len(reader):,} samples",
            next_step="Fill one ring for each rank from the same file, without --rank and --world-size",
        )
    if config.ring and plan.data and plan.data != name_of_data(reader):
        raise UsageError(
            f"ring {config.ring} is filled from another data set than {reader.path}",
            expected="the same data set",
            next_step="Fill the ring from the same file",
        )
    return loader


def _fields(task: Task, reader: Reader, view: Any) -> dict[str, Any]:
    """Return the makers of the fields that a task needs. All other fields stay unread."""
    return dict.fromkeys(further_fields(reader.fields)) | task.makers(view)


def _epochs(run: _Run, val: Reader | None) -> TrainReport:
    _resume(run)
    for epoch in range(run.resumed_at[0] if run.resumed_at else 0, run.config.epochs):
        run.loader.set_epoch(epoch)
        report = _epoch(run, epoch, val)
        if report is None:
            return TrainReport(run.reports, True, run.resumed_at)
        run.reports.append(report)
        _keep(run, epoch + 1, 0)
        run.start, run.begun = 0, (0.0, 0.0)
    return TrainReport(run.reports, False, run.resumed_at)


def _epoch(run: _Run, epoch: int, val: Reader | None) -> EpochReport | None:
    """Train one epoch, or the rest of it; None if a signal stopped it."""
    config, group, plan = run.config, run.group, run.loader.plan
    sizes, own = plan.samples_per_rank(), plan.length()
    steps = -(-max(sizes) // plan.batch)
    stop = min(steps, config.max_steps) if config.max_steps else steps
    clock, trained, lost = StepTimer(group.device), 0, torch.zeros((), device=group.device)

    def sums() -> list[float]:
        mine = run.begun if group.is_first else (0.0, 0.0)
        return group.total(mine[0] + trained, mine[1] + float(lost))

    run.loader.fault_count, run.loader.faults = 0, []
    loaders = [run.loader]
    batches = clock.batches(run.loader)
    planned = [  # samples of all ranks together in each step
        sum(min(plan.batch, max(0, size - step * plan.batch)) for size in sizes)
        for step in range(run.start, stop)
    ]
    with progress(sum(planned), f"epoch {epoch}", enabled=None if group.is_first else False) as shown:
        for step, of_all in enumerate(planned, run.start):
            batch = next_batch(batches, run.asked_to_stop) if step < own else None
            if group.largest(len(run.asked_to_stop)):  # before the step, which all ranks take or none
                _keep(run, epoch, step, sums())
                return None
            size, loss = _step(run, clock, batch, of_all)
            trained, lost = trained + size, lost + loss * size
            if step + 1 < stop and config.every and (step + 1) % config.every == 0:
                _keep(run, epoch, step + 1, sums())
            shown.advance(of_all)
    if stop == steps:
        next(batches, None)  # the loader notices that its last batch was used, and ends the pass
    times = clock.summary()
    ranks = group.gather({**dataclasses.asdict(group.where), "samples": trained, **times})
    samples, loss_sum = sums()
    _check_any(samples, run.path, epoch, group, loaders)
    accuracy = None
    if val is not None:
        _keep(run, epoch, stop, [samples, loss_sum])  # validation may last longer than the job
        accuracy = _evaluate(run, val, loaders)
        if accuracy is None:
            return None
    mean_loss = loss_sum / max(samples, 1)
    faults = _faults(group, loaders)
    return EpochReport(epoch, int(samples), mean_loss, accuracy, ranks, *faults, run.task.measure)


def _step(run: _Run, clock: StepTimer, batch: Any, planned: int) -> tuple[int, torch.Tensor]:
    """Run one step, and return this rank's samples and their mean loss, which stays on the device."""
    device, side = run.group.device, run.config.size
    size = 0 if batch is None else len(batch["index"])
    with clock.copying():
        if size:
            both = batch["image"], run.task.target(batch)
            picture, target = (each.to(device, non_blocking=True) for each in both)
        else:  # no batch left on this rank: take part in the collective step
            picture, target = torch.zeros((1, 3, side, side), dtype=torch.uint8, device=device), None
    run.model.train(size > 1)  # batch normalisation needs the statistics of several samples
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        scores = run.model(images.normalise(picture.permute(0, 2, 3, 1))).float()
        loss = scores.sum() if target is None else run.task.loss(scores, target)
    # The mean over ranks of the weighted losses is the mean over all samples.
    weight = size * run.group.where.world_size / max(planned, 1)
    run.optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss * weight)
    run.optimizer.step()
    return size, loss.detach()


def _resume(run: _Run) -> None:
    """Resume from the last checkpoint, if there is one."""
    folder = run.config.checkpoint
    state = None if folder is None else checkpoint.load(folder)
    place = None if state is None else (int(state.loader["epoch"]), int(state.loader["batch"]))
    places = [each["place"] and tuple(each["place"]) for each in run.group.gather({"place": place})]
    if any(other != place for other in places):
        raise ResourceError(
            f"the ranks find different checkpoints in {folder}: {first_few(places, len(places))}",
            expected="a folder with the same content on all nodes",
            next_step="Keep checkpoints on the shared file system, and start again",
        )
    if state is None or place is None:
        return
    run.loader.load_state_dict(state.loader)
    same = run.loader.schedule.state_dict()["plan"] == state.loader["plan"]
    run.start = place[1] if same else 0  # on another number of ranks: from the first step of the rest
    try:
        run.network.load_state_dict(state.model)
        run.optimizer.load_state_dict(state.optimizer)
        run.reports = [EpochReport(**each) for each in state.epochs]
        fits = _fits(run.optimizer)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        fits = False
    if not fits:
        raise UsageError(
            f"the checkpoint in {folder} is of another model or another number of classes",
            expected=f"one of {run.config.model} with {run.task.outputs} classes",
            next_step="Train with the settings of the run that was stopped, or name another folder",
        )
    for settings in run.optimizer.param_groups:
        settings |= run.optimizer.defaults  # including the learning rate of this run
    run.resumed_at, run.begun = place, state.begun


def _fits(optimizer: torch.optim.Optimizer) -> bool:
    """Check that the optimizer's state of each weight has the shape of the weight."""
    known: tuple[set[str], ...] = (set(), {"step", "exp_avg", "exp_avg_sq"})
    return all(
        set(state) in known
        and all(torch.is_tensor(kept) and kept.shape in ((), weight.shape) for kept in state.values())
        for group in optimizer.param_groups
        for weight in group["params"]
        for state in [optimizer.state[weight]]
    )


def _keep(run: _Run, epoch: int, step: int, begun: Sequence[float] = (0.0, 0.0)) -> None:
    """Write a checkpoint whose next step is `step` of `epoch`; one rank writes for all."""
    if run.config.checkpoint is None or not run.group.is_first:
        return
    place = run.loader.schedule.state_at(epoch, step)
    written = [dataclasses.asdict(each) for each in run.reports]
    model, optimizer = run.network.state_dict(), run.optimizer.state_dict()
    state = checkpoint.State(model, optimizer, place, written, (begun[0], begun[1]))
    checkpoint.save(run.config.checkpoint, state)


def _faults(group: Group, loaders: Sequence[Any]) -> tuple[int, list[dict[str, str]]]:
    """Return the number of damaged samples of all ranks, and the first few. Every rank must call this."""
    named = [{"key": one.key, "reason": one.reason} for each in loaders for one in each.faults]
    own = {"count": sum(each.fault_count for each in loaders), "named": named[:_NAMED]}
    all_ranks = group.gather(own)
    return sum(each["count"] for each in all_ranks), [one for each in all_ranks for one in each["named"]]


def _check_any(samples: float, path: Path, epoch: int, group: Group, loaders: Sequence[Any]) -> None:
    """Refuse an epoch of which all ranks together left out every sample."""
    count, named = (0, []) if samples else _faults(group, loaders)
    if count:
        faults = [Fault(-1, each["key"], each["reason"]) for each in named]
        raise none_left(path, faults, epoch, plural(count, "sample"))


def _evaluate(run: _Run, reader: Reader, loaders: list[Any]) -> float | None:
    """Mean over the samples of what the task measures; each rank measures its part.

    Args:
        run: The model and what it learned.
        reader: The samples.
        loaders: The loader is appended; it counts damaged samples.

    Returns:
        None if a signal stopped it, which is asked before each batch.
    """
    config, group, task, asked_to_stop = run.config, run.group, run.task, run.asked_to_stop
    same = {name: getattr(config.loader, name) for name in OF_MEASURING}
    rank, ranks = group.where.rank, group.where.world_size
    loader_config = LoaderConfig(shuffle=False, rank=rank, world_size=ranks, **same)
    transform = images.CentreCrop(resize=round(config.size * 8 / 7), crop=config.size)
    network, right, seen = run.network.eval(), 0.0, 0
    loader = make_loader(reader, loader_config, fields=_fields(task, reader, transform))
    loaders.append(loader)
    loader.every_step = True  # all ranks check together whether any sample was readable
    batches, shown = iter(loader), None if group.is_first else False
    with torch.inference_mode(), progress(len(loader), "measuring", unit="batches", enabled=shown) as bar:
        while not asked_to_stop and (batch := next_batch(batches, asked_to_stop)) is not None:
            bar.advance()
            if not len(batch["index"]):
                continue
            picture = batch["image"].to(group.device).permute(0, 2, 3, 1)
            scores = network(images.normalise(picture)).cpu()
            right, seen = right + task.right(scores, task.target(batch)), seen + len(scores)
    if group.largest(len(asked_to_stop)):
        return None
    right_of_all, all_seen = group.total(right, seen)
    _check_any(all_seen, reader.path, 0, group, [loader])
    return right_of_all / max(all_seen, 1)


@dataclass
class StepTimer:
    """Times of the steps of one epoch.

    Args:
        device: The device that computes.
    """

    device: torch.device
    began: float = field(default_factory=perf_counter)
    waits_s: list[float] = field(default_factory=list)
    _gaps: list[tuple[Any, Any]] = field(default_factory=list)

    def batches(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of `source`, and time each wait. The first wait includes starting workers."""
        asked, idle = perf_counter(), self._moment()
        batches = iter(source)
        while (batch := next(batches, None)) is not None:
            self.waits_s.append(perf_counter() - asked)
            self._add_gap(idle)
            yield batch
            asked, idle = perf_counter(), self._moment()

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Time the copy of a batch to the device."""
        began = self._moment()
        yield
        self._add_gap(began)

    def _add_gap(self, began: Any) -> None:
        """Let a gap in the work of the GPU end now, unless it belongs to the first batch."""
        if began is not None and len(self.waits_s) > 1:
            self._gaps.append((began, self._moment()))

    def summary(self) -> dict[str, float]:
        """Return seconds, the share of waiting after the first batch, and percentiles of the waits."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        total = perf_counter() - self.began
        first_s, later = sum(self.waits_s[:1]), self.waits_s[1:]
        waited = sum(a.elapsed_time(b) for a, b in self._gaps) / 1000 if self._gaps else sum(later)
        steady = max(total - first_s, 1e-9)
        p50, p99 = np.percentile(later, [50, 99]) if later else (0.0, 0.0)
        return {
            "seconds": total,
            "first_batch_s": first_s,
            "waiting_s": waited,
            "waiting_share": min(1.0, waited / steady),
            "wait_p50_s": float(p50),
            "wait_p99_s": float(p99),
        }

    def _moment(self) -> Any:
        """Record an event at this place in the queue of the GPU. Return None without a GPU."""
        if self.device.type != "cuda":
            return None
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def next_batch(batches: Iterator[Any], asked_to_stop: Sequence[int]) -> Any:
    """Return the next batch, or None at the end.

    Return None, too, if the signal that asks us to stop has ended the workers: Slurm sends signals to all
    processes of a step, not only to its ranks.

    Args:
        batches: Iterator of a loader.
        asked_to_stop: Not empty once such a signal has arrived.
    """
    try:
        return next(batches, None)
    except WorkerDiedError:
        if not asked_to_stop:
            raise
        return None
