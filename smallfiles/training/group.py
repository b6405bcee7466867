"""The ranks of one training: started by torchrun or srun, or a single one; one code path for all.

Ranks may have unequal numbers of batches. A rank without batches continues with an empty one: its loss has
weight zero, so that no rank waits for it forever and the gradient stays that of the global batch.

The trap: if batches differ in size, a gradient averaged over ranks is not the gradient of the global batch;
the weight of each rank's loss corrects it. Notebook 10 trains on four ranks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from smallfiles.errors import ResourceError, first_line
from smallfiles.machine.ranks import Ranks, process_group, ranks, rendezvous

_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class Group:
    """This rank among the others.

    Args:
        where: Its number, and the number of ranks.
        device: The device it computes on.
    """

    where: Ranks
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and writes for all."""
        return self.where.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model so that gradients are averaged over all ranks."""
        model = model.to(self.device).to(memory_format=torch.channels_last)
        if self.where.world_size == 1:
            return model
        return nn.parallel.DistributedDataParallel(
            model, [self.device] if self.device.type == "cuda" else None
        )

    def largest(self, number: int) -> int:
        """Return the largest of the ranks' numbers. Every rank must call this."""
        if self.where.world_size == 1:
            return number
        held = torch.tensor([number], device=self.device)
        dist.all_reduce(held, dist.ReduceOp.MAX)
        return int(held.item())

    def total(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all ranks. Every rank must call this."""
        every = [each["numbers"] for each in self.gather({"numbers": numbers})]
        return [float(sum(of_ranks)) for of_ranks in zip(*every, strict=True)]

    def gather(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the records of all ranks in order. Every rank must call this. Values must fit into JSON.

        The records travel as text. Torch's own function would unpickle data from the network, and a pickle is
        a program.
        """
        text = json.dumps(record).encode()
        if self.where.world_size == 1:
            return [json.loads(text)]
        own = torch.zeros(self.largest(len(text)), dtype=torch.uint8)
        own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        own = own.to(self.device)
        found = [torch.empty_like(own) for _ in range(self.where.world_size)]
        dist.all_gather(found, own)
        return [json.loads(bytes(each.cpu().numpy()).rstrip(b"\0")) for each in found]


@contextlib.contextmanager
def joined() -> Iterator[Group]:
    """Join the other ranks, and leave the group at the end.

    A process group that the program has initialised is used, and stays.

    Raises:
        ResourceError: They were not started, cannot be reached, or were lost.
    """
    where = ranks()
    cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", where.local_rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
    if where.world_size == 1 or process_group() is not None:
        yield Group(where, device)
        return
    address, port = rendezvous()
    if address in ("localhost", "127.0.0.1", "::1"):  # all ranks are on this machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=where.rank,
            world_size=where.world_size,
            timeout=_PATIENCE,
        )
    except (RuntimeError, ValueError) as error:  # DistNetworkError and its like are RuntimeErrors
        raise ResourceError(
            f"rank {where.rank} of {where.world_size} did not meet the others at {address}:{port}: "
            f"{first_line(error)}",
            expected=f"{where.world_size} ranks that reach {address}",
            next_step="Check that all tasks started and that all nodes resolve the name of the first node",
        ) from None
    try:
        yield Group(where, device)
        dist.barrier()  # a rank that leaves early closes connections that others still use
    except RuntimeError as error:
        if not _is_network_error(error):
            raise
        raise ResourceError(
            f"rank {where.rank} of {where.world_size} lost the others: {first_line(error)}",
            expected="ranks that all run to the end, each on its own GPU if there are any",
            next_step="Look in the log for the rank that failed first, and for the reason",
        ) from None
    finally:
        gc.collect()  # a model that still refers to the group would keep its threads, and abort at exit
        dist.destroy_process_group()


def _is_network_error(error: RuntimeError) -> bool:
    """Check by its text whether an error comes from the network. Gloo raises plain RuntimeErrors."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "nccl", "by peer"))
