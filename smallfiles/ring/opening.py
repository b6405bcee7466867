"""Two ways to a ring: fill it from here, or attach to one that another program fills.

The trap: both name rings per rank (`train.0`, `train.1`), so filler and trainer must agree on who is which
rank; both ask torchrun or SLURM, in the same place. Notebook 08 teaches the ring.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from smallfiles.loading.batches import BatchMaker
from smallfiles.loading.dataset import name_of_data
from smallfiles.loading.plan import EpochPlan
from smallfiles.machine.ranks import ranks
from smallfiles.ring.book import Position
from smallfiles.ring.config import Copy, RingConfig
from smallfiles.ring.filler import Filler
from smallfiles.ring.folder import SHARED_MEMORY, path_of
from smallfiles.ring.link import Link
from smallfiles.ring.loader import RingLoader
from smallfiles.ring.order import description
from smallfiles.ring.own import OwnFiller


def ring_name(name: str, rank: int, world_size: int) -> str:
    """The name of a rank's ring: ranks have their own."""
    return name if world_size == 1 else f"{name}.{rank}"


def _naming_data(maker: BatchMaker, plan: EpochPlan) -> EpochPlan:
    """A plan that says which data set it is of, also if it was made by hand."""
    return plan if plan.data else replace(plan, data=name_of_data(maker.reader))


def open_ring(
    maker: BatchMaker,
    plan: EpochPlan,
    config: RingConfig | None = None,
    *,
    start: tuple[int, int] | None = None,
) -> RingLoader:
    """A ring that this process fills itself, by processes of its own.

    The batches are those that a `DataLoader` over the same maker and plan gives, so many of them ahead
    that a slow read or an evaluation does not stop the GPU.

    Args:
        maker: Makes batches.
        plan: This rank's share of each epoch.
        config: Size, producers and name; None takes the defaults.
        start: Epoch and batch to begin at, from a checkpoint.

    Raises:
        OutputExistsError: A ring of this name lives.
        ResourceError: The ring does not fit in memory.
        RingError: Its producers cannot be started.
    """
    config = config or RingConfig()
    if config.name is not None:
        config = replace(config, name=ring_name(config.name, plan.rank, plan.world_size))
    filler = Filler(
        maker, _naming_data(maker, plan), config, start=Position(*start) if start is not None else None
    )
    own = OwnFiller(filler)
    try:
        link = Link(path_of(config.where, filler.name), wait_s=config.wait_s, own_filler=lambda: own.error)
        return RingLoader(link, config.copy, own)
    except BaseException:
        own.end()
        raise


def attach(
    name: str,
    *,
    rank: int | None = None,
    where: Path = SHARED_MEMORY,
    wait_s: float = 300.0,
    copy: Copy = "none",
    expect: tuple[BatchMaker, EpochPlan] | None = None,
) -> RingLoader:
    """A ring that another program fills: it may have begun before, or begin later, or be replaced.

    Training goes on at the first batch that no trainer of this ring was done with.

    Args:
        name: Of the ring, as the filler was given it.
        rank: Number of this process; None asks torchrun or SLURM.
        where: The folder in memory that the filler uses.
        wait_s: How long to wait for a filler to come, or to come back.
        copy: Views of the slots, copies, or copies in pinned memory.
        expect: What the ring must hold; None takes what is there.

    Raises:
        RingError: Nobody fills this ring, it feeds another trainer, or it holds something else.
    """
    place = ranks()
    named = ring_name(name, place.rank if rank is None else rank, place.world_size if rank is None else 2)
    identity = None
    if expect is not None:
        maker, plan = expect[0], _naming_data(*expect)
        layout = maker.layout(min(plan.batch, max(plan.samples, 1)))
        identity = description(plan, layout, None)["identity"]
    return RingLoader(Link(path_of(where, named), wait_s=wait_s, identity=identity), copy)
