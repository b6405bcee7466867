"""Batches, and the iterators of loaders that make them: what can be asked of them without changing them."""

from __future__ import annotations

import os
import sys
import threading
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from .moments import from_handler, shm

_LAUNCHED = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_COVERING = (
    "SequentialSampler",
    "RandomSampler",
    "DistributedSampler",
    "SeedableRandomSampler",
    "EpochBatches",
)
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


def digest(value: bytes) -> int:
    """Return 64 bits of a hash that is equal in all processes."""
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "little", signed=True)


def place(iterator: Any) -> dict[str, int]:
    """Return rank and number of ranks, by torch.distributed or by the launcher."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return {"rank": torch.distributed.get_rank(), "world": torch.distributed.get_world_size()}
    launched = next((name for name in _LAUNCHED if os.environ.get(name, "").isdigit()), None)
    size = next(
        (os.environ[n] for n in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if n in os.environ), "1"
    )
    return {"rank": int(os.environ[launched]) if launched else 0, "world": int(size)}


def site() -> str:
    """Return the line of the program that asks for batches: the first one outside of installed packages."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if "site-packages" not in name and "dist-packages" not in name and "smallfiles_hooks" not in name:
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def loader_facts(iterator: Any) -> dict[str, Any]:
    """Return what is known about a loader and its sampler."""
    samplers: list[Any] = []
    dataset, sampler = iterator._dataset, getattr(iterator, "_index_sampler", None)
    iterable = hasattr(dataset, "__iter__") and not hasattr(type(dataset), "__getitem__")
    iterable = iterable or str(getattr(iterator, "_dataset_kind", "")) == "1"
    while sampler is not None and len(samplers) < 8:
        samplers.append(sampler)
        within = (getattr(sampler, name, None) for name in ("batch_sampler", "_batch_sampler", "sampler"))
        sampler = next((each for each in within if each is not None), None)
    names = [type(each).__name__ for each in samplers]
    last, count = (samplers[-1] if samplers else None), length(dataset)
    torch = sys.modules["torch"]
    shuffles = getattr(last, "shuffle", "RandomSampler" in names[-1:] or None) if not iterable else None
    if names[-1:] == ["SequentialSampler"]:
        shuffles = None if iterable else False
    replacement = bool(getattr(last, "replacement", False)) and not iterable
    covers = bool(names) and names[-1] in _COVERING and not replacement and not iterable
    if covers and names[-1] == "RandomSampler":
        covers = getattr(last, "num_samples", count) == count
    return {
        **place(iterator),
        "loader": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "samplers": names,
        "count": count if isinstance(count, int) else None,
        "covers": covers and bool(count),
        "view": view_of(dataset),
        "replacement": replacement,
        "shuffles": stream_shuffles(dataset) if iterable else shuffles,
        "resampled": iterable
        and "Resampled" in str([type(s).__name__ for s in getattr(dataset, "pipeline", ())]),
        "batch": getattr(samplers[0] if samplers else None, "batch_size", None),
        "drop_last": bool(getattr(iterator, "_drop_last", False) or getattr(last, "drop_last", False)),
        "workers": getattr(iterator, "_num_workers", 0),
        "length": None if iterable else length(iterator),
        "trains": bool(torch.is_grad_enabled()),
        "iterable": bool(iterable),
        "site": site(),
    }


def view_of(dataset: Any) -> int:
    """Return a number that differs if each rank numbers the samples of a part of its own."""
    if type(dataset).__name__ == "Subset":
        return digest(array("q", dataset.indices).tobytes())
    return digest(str(getattr(dataset, "_fingerprint", "")).encode())


def stream_shuffles(dataset: Any) -> bool | None:
    """Tell whether a data set that is iterated says that it shuffles; None if it does not say."""
    if hasattr(dataset, "pipeline"):
        steps = [getattr(step, "f", step) for step in dataset.pipeline]
        return any("shuffle" in getattr(s, "__name__", type(s).__name__).lower() for s in steps) or None
    step = getattr(dataset, "_ex_iterable", None)  # of datasets
    while step is not None:
        if "Shuffled" in type(step).__name__:
            return True
        step = getattr(step, "ex_iterable", None)
    found = getattr(dataset, "shuffle", None)
    return found if isinstance(found, bool) else None
