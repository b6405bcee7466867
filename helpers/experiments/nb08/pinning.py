"""What pinned memory does for the copy to a GPU, where there is one.

The trap: without a GPU, `pin_memory=True` only warns; with one, a loader that pins in its own thread takes
part of a CPU for it. Notebook 08 measures it where it can.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

_ROUNDS = 10


def summary(batch: torch.Tensor) -> str:
    """A sentence on copying this batch to the GPU, from pageable and from pinned memory.

    Args:
        batch: In the memory of the CPU.
    """
    if not torch.cuda.is_available():
        return (
            "There is no GPU that PyTorch can use here, so nothing is copied and nothing is pinned. "
            "`make_loader` pins by itself where there is one."
        )
    rates = [batch.nbytes / median(_copies(each)) / 1e9 for each in (batch.contiguous(), batch.pin_memory())]
    return (
        f"To the GPU at {rates[0]:.1f} GB/s from ordinary memory and {rates[1]:.1f} GB/s from pinned memory, "
        f"**{rates[1] / rates[0]:.1f} times**; `make_loader` pins by itself where there is a GPU."
    )


def _copies(batch: torch.Tensor) -> list[float]:
    times = []
    for _ in range(_ROUNDS + 1):
        torch.cuda.synchronize()
        began = perf_counter()
        batch.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        times.append(perf_counter() - began)
    return times[1:]
