"""Batches, and the iterators of loaders that make them: what can be asked of them without changing them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from .moments import from_handler, shm

_KNOWN = ("torch.utils.data.", "accelerate.", "lightning.", "webdataset.")


def arrays(batch: Any) -> Iterator[Any]:
    """The arrays in a batch, however nested."""
    if hasattr(batch, "shape"):
        yield batch
    elif callable(values := getattr(batch, "values", None)) or isinstance(batch, (list, tuple)):
        for part in values() if callable(values) else batch:
            if not isinstance(part, (str, bytes, int, float)):
                yield from arrays(part)


def nbytes(batch: Any) -> int:
    """Bytes of the arrays in a batch."""
    return sum(int(getattr(each, "nbytes", 0) or 0) for each in arrays(batch))


def samples(batch: Any) -> int:
    """Length of the first array in a batch; where there is none, of the batch itself."""
    found = next((int(each.shape[0]) for each in arrays(batch) if len(each.shape)), 0)
    return found or (len(batch) if isinstance(batch, (list, tuple)) else 0)


def keeps_order(sampler: Any) -> bool:
    """Whether a sampler, and what it wraps, draws its order alone: none is written by the program."""
    while sampler is not None:
        if not type(sampler).__module__.startswith(_KNOWN):
            return False
        within = (getattr(sampler, name, None) for name in ("batch_sampler", "_batch_sampler", "sampler"))
        sampler = next((each for each in within if each is not None), None)
    return True


def cuda() -> Any:
    """torch.cuda where the program uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def moment() -> Any:
    """An event at this place in the queue of the GPU; None without one."""
    if (gpu := cuda()) is None:
        return None
    event = gpu.Event(enable_timing=True)
    event.record()
    return event


def length(iterator: Any) -> int | None:
    """Batches of an epoch; None where the loader cannot know."""
    try:
        return len(iterator)
    except Exception as error:  # an IterableDataset has none; what a stranger's __len__ raises is not ours
        if from_handler(error):
            raise
        return None


def facts(iterator: Any) -> dict[str, Any]:
    """What the loader is set to, and what the process may use."""
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    return {
        "batch_size": size if isinstance(size, int) else None,
        "threaded": threading.current_thread() is not threading.main_thread(),
        "workers": getattr(iterator, "_num_workers", None),
        "prefetch": getattr(iterator, "_prefetch_factor", None),
        "persistent": getattr(iterator, "_persistent_workers", None),
        "cpus": len(os.sched_getaffinity(0)),
        "cpus_node": os.cpu_count(),
        "gpu": bool(cuda()),
        "shm_bytes": shm()[0],
    }


def asked_ahead(iterator: Any) -> int:
    """Batches that workers are asked for before they are needed."""
    return int((getattr(iterator, "_num_workers", 0) or 0) * (getattr(iterator, "_prefetch_factor", 2) or 2))


def at_rest(iterator: Any) -> bool:
    """Whether all batches that the workers were asked for are made."""
    try:
        made = sum(len(task) > 1 for task in iterator._task_info.values())
        made += iterator._worker_result_queue.qsize()
        if iterator._data_queue is not iterator._worker_result_queue:
            made += iterator._data_queue.qsize()
        return bool(made >= iterator._tasks_outstanding)
    except Exception as error:  # of another version of PyTorch
        if from_handler(error):
            raise
        return True
