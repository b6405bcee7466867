"""Batches, and the iterators of loaders that make them: what can be asked of them without changing them."""

from __future__ import annotations

import os
import sys
import threading
from array import array
from collections.abc import Iterator
from hashlib import sha1
from itertools import islice
from typing import Any, cast

from .moments import guarded, shm

_LAUNCHED = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_COVERING = "SequentialSampler RandomSampler DistributedSampler SeedableRandomSampler EpochBatches"
_INSTALLED = ("site-packages", "dist-packages", "smallfiles_hooks")
_KNOWN = ("torch.utils.data.", "accelerate.", "lightning.", "webdataset.")


def arrays(batch: Any) -> Iterator[Any]:
    """Yield the arrays in a batch, however deeply they are nested."""
    if hasattr(batch, "shape"):
        yield batch
    elif callable(values := getattr(batch, "values", None)) or isinstance(batch, (list, tuple)):
        for part in values() if callable(values) else batch:
            if not isinstance(part, (str, bytes, int, float)):
                yield from arrays(part)


def nbytes(batch: Any) -> int:
    """Return the bytes of the arrays in a batch."""
    return sum(int(getattr(each, "nbytes", 0) or 0) for each in arrays(batch))


def samples(batch: Any) -> int:
    """Length of the first array in a batch; where there is none, of the batch itself."""
    found = next((int(each.shape[0]) for each in arrays(batch) if len(each.shape)), 0)
    return found or (len(batch) if isinstance(batch, (list, tuple)) else 0)


def samplers_of(sampler: Any) -> Iterator[Any]:
    """Yield the sampler of a loader, and the samplers that it wraps."""
    while sampler is not None:
        yield sampler
        within = (getattr(sampler, name, None) for name in ("batch_sampler", "_batch_sampler", "sampler"))
        sampler = next((each for each in within if each is not None), None)


def keeps_order(sampler: Any) -> bool:
    """Check that a sampler and those that it wraps come from known libraries, and not from the program."""
    return all(type(each).__module__.startswith(_KNOWN) for each in samplers_of(sampler))


def cuda() -> Any:
    """Return torch.cuda if the program uses it, or None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def moment() -> Any:
    """Record an event at this place in the queue of the GPU. Return None without a GPU."""
    if (gpu := cuda()) is None:
        return None
    event = gpu.Event(enable_timing=True)
    event.record()
    return event


def length(iterator: Any) -> int | None:
    """Return the number of batches of an epoch, or None if the loader does not know it."""
    return cast("int | None", guarded(str, len, iterator))


def facts(iterator: Any) -> dict[str, Any]:
    """Return the settings of the loader, and the resources of the process."""
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
    """Return how many batches are requested from workers before they are needed."""
    return int((getattr(iterator, "_num_workers", 0) or 0) * (getattr(iterator, "_prefetch_factor", 2) or 2))


def at_rest(iterator: Any) -> bool:
    """Check whether the workers have made all requested batches."""
    queues = {id(each): each for each in (iterator._worker_result_queue, iterator._data_queue)}
    made = sum(len(task) > 1 for task in iterator._task_info.values())
    return bool(made + sum(each.qsize() for each in queues.values()) >= iterator._tasks_outstanding)


def digest(value: bytes) -> int:
    """Return 64 bits of a hash that is equal in all processes."""
    return int.from_bytes(sha1(value, usedforsecurity=False).digest()[:8], "little", signed=True)


def place() -> dict[str, int]:
    """Return rank and number of ranks, by torch.distributed, by JAX, or by the launcher."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return {"rank": torch.distributed.get_rank(), "world": torch.distributed.get_world_size()}
    jax: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(jax, "client", None) is not None:
        return {"rank": jax.process_id, "world": jax.num_processes}
    launched = next((name for name in _LAUNCHED if os.environ.get(name, "").isdigit()), None)
    size = next((os.environ[name] for name in _SIZES if name in os.environ), "1")
    return {"rank": int(os.environ[launched]) if launched else 0, "world": int(size)}


def site() -> str:
    """Return the line of the program that asks for batches: the first one outside of installed packages."""
    frame = sys._getframe(2)
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _INSTALLED):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def sampler_facts(samplers: list[Any], count: int | None) -> dict[str, Any]:
    """Return what a sampler of `count` samples does; the last one is within all others."""
    last = samplers[-1] if samplers else None
    name, replacement = type(last).__name__, bool(getattr(last, "replacement", False))
    covers = name in _COVERING.split() and not replacement and bool(count)
    if name == "RandomSampler":
        covers = covers and getattr(last, "num_samples", count) == count
    shuffles = getattr(last, "shuffle", {"SequentialSampler": False, "RandomSampler": True}.get(name))
    return {"covers": covers, "shuffles": shuffles, "replacement": replacement}


def loader_facts(iterator: Any) -> dict[str, Any]:
    """Return what is known about a loader and its sampler."""
    dataset = iterator._dataset
    samplers = [*islice(samplers_of(getattr(iterator, "_index_sampler", None)), 8)]
    iterable = hasattr(dataset, "__iter__") and not hasattr(type(dataset), "__getitem__")
    iterable = iterable or str(getattr(iterator, "_dataset_kind", "")) == "1"
    more: dict[str, Any] = {"length": length(iterator)}
    if iterable:
        steps = str([type(step).__name__ for step in getattr(dataset, "pipeline", ())])
        more = {"shuffles": stream_shuffles(dataset), "resampled": "Resampled" in steps, "iterable": True}
    else:
        more |= sampler_facts(samplers, length(dataset))
    return whole_facts(
        f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        count=length(dataset),
        view=view_of(dataset),
        batch=getattr(samplers[0] if samplers else None, "batch_size", None),
        workers=getattr(iterator, "_num_workers", 0),
        **more,
    )


def whole_facts(loader: str, **known: Any) -> dict[str, Any]:
    """Return the facts of a loader, of which only some may be known."""
    unknown = dict.fromkeys(("count", "shuffles", "batch", "length"))
    false = dict.fromkeys(("covers", "replacement", "resampled", "iterable"), False)
    torch = sys.modules.get("torch")
    numbers = {"view": 0, "workers": 0, "trains": not torch or torch.is_grad_enabled(), "site": site()}
    return {**place(), "loader": loader, **unknown, **false, **numbers, **known}


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


def node_before(node: Any) -> Any:
    """Return the node whose items a node of torchdata hands on in their order; None if there is none."""
    unordered = type(node).__name__ == "_ParallelMapperImpl" and node.num_workers and not node.in_order
    if unordered or not type(node).__module__.startswith("torchdata.nodes."):
        return None
    within = (getattr(node, name, None) for name in ("root", "_it", "source"))
    return next((each for each in within if hasattr(each, "_smallfiles_node")), None)


def node_facts(node: Any) -> dict[str, Any]:
    """Return what is known about a pipeline of torchdata.nodes, of which this is the last node."""
    nodes = [node]
    while (before := node_before(nodes[-1])) is not None:
        nodes.append(before)
    first, batches = nodes[-1], [each.batch_size for each in nodes if hasattr(each, "batch_size")]
    samplers = [*islice(samplers_of(getattr(first, "sampler", None)), 8)]
    last = samplers[-1] if samplers else None
    data = getattr(last, "data_source", getattr(last, "dataset", None))
    source = next(each for each in (data, last, getattr(first, "iterable", None), first) if each is not None)
    return whole_facts(
        f"torchdata.nodes over {type(source).__qualname__}",
        count=length(data),
        batch=batches[0] if batches else None,
        resampled=getattr(first, "stop_criteria", "ALL_DATASETS_EXHAUSTED") != "ALL_DATASETS_EXHAUSTED",
        **(sampler_facts(samplers, length(data)) if samplers else {}),
    )


_GRAIN = "Source Range Map RandomMap MapWithIndex Filter _WithSeed"
_GRAIN += " Shuffle WindowShuffle Slice Repeat Batch _Sampler"
_COUNTERS = {"index_for_rng", "counter"}


def grain_facts(output: Any) -> tuple[dict[str, Any], Any]:
    """Return the facts of a pipeline of Grain, and its plan: the MapDataset that iterators go through.

    Args:
        output: The last data set of the pipeline.

    Returns:
        None instead of a plan that mixes several, or is made of unknown parts; `parts` names them.
    """
    nodes = [output]
    for node in nodes:
        within = [*node._parents, *getattr(node, "_datasets", ())]
        nodes += [each for each in within if not any(each is one for one in nodes)]
    names = [type(node).__name__.removesuffix("Dataset") for node in nodes]
    sources = [node for name, node in zip(names, nodes, strict=True) if name in ("SourceMap", "RangeMap")]
    plans = [node._parent for name, node in zip(names, nodes, strict=True) if name == "PrefetchIter"]
    strange = [name for name in names if name.endswith("Map") and name[:-3] not in _GRAIN.split()]
    sampler = next((node._sampler for node in nodes if hasattr(node, "_sampler")), None)
    count, kinds = sum(map(len, sources)), [type(getattr(each, "_source", each)) for each in sources]
    return whole_facts(
        f"grain over {', '.join(kind.__qualname__ for kind in kinds)}",
        count=count,
        covers="SliceMap" not in names and getattr(sampler, "_num_records", count) == count,
        shuffles=getattr(sampler, "_shuffle", None) if sampler else "Shuffle" in str(names),
        parts=", ".join(names),
    ), plans[0] if len(plans) == len(sources) == 1 and not strange else None


def grain_places(plan: Any, at: int, count: int) -> list[int]:
    """Return the places of the samples at a position of a plan, counted on through the epochs."""
    name = type(plan).__name__
    if not plan._parents:
        return [at]
    if name == "BatchMapDataset":
        (epoch, batch), length = divmod(at, len(plan)), len(plan._parent)
        places = range(batch * plan._batch_size, min((batch + 1) * plan._batch_size, length))
        return [
            each for place in places for each in grain_places(plan._parent, epoch * length + place, count)
        ]
    if name == "_SamplerMapDataset":
        sampler, shard = plan._sampler, plan._shard_options
        key = sampler[at * shard.shard_count + shard.shard_index].record_key
        return [at // len(getattr(sampler, "_record_keys", plan._parent)) * count + int(key)]
    if not getattr(plan, "_reseed_each_epoch", True):
        epoch, at = divmod(at, len(plan._parent))
        return [epoch * count + place for place in grain_places(plan._parent, at, count)]
    for change in ("_shuffled_index", "_sliced_index"):
        at = getattr(plan, change, int)(at)
    return grain_places(plan._parent, at, count)


def grain_positions(state: Any) -> list[int]:
    """Return how far each worker is, by what a checkpoint holds; nothing for another kind of pipeline."""
    if "next_index" in state:
        return [int(state["next_index"])]
    if "iterators_in_use_states" in state:
        return [at for each in state["iterators_in_use_states"] for at in grain_positions(each)]
    return grain_positions(state["parent"]) if state.keys() - _COUNTERS == {"parent"} else []
