"""What runs inside the watched program: a clock around `next`, counters, and a sampling thread.

    watch     the measurements of a process, for `profile`
    received  the samples that the training loop of a process received, for `audit`
    loaders   what can be asked of a batch, and of the iterator that made it
    moments   what the kernel and a stack say about one moment

A copy of this folder and a `sitecustomize` that installs it come first on PYTHONPATH, so each Python of the
program runs it: ranks, and workers that are forked, spawned or come from a fork server. It uses the standard
library only, because the program's Python may have no `smallfiles`; classes of PyTorch are wrapped when the
program imports them. Each process writes its own file, renamed when complete, at its start, several times
per second and at its end. Each step goes into a mapped file at once, so that a program that is killed, or
becomes another program by `exec`, leaves what was measured.

The traps: a site may have a `sitecustomize` of its own, which is called on. The audit hook sees each `open`
of Python code, and none of C++ code; therefore the thread also asks the kernel in which call a worker is
blocked. And batches that are collected ahead must not change what the program computes: nothing may be drawn
earlier from the random generators of its process. A signal handler of the program may raise an exception
while the main thread runs our code, which must not swallow it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

from . import loaders, moments, received, watch

Around: TypeAlias = str | Callable[..., Any]
"""A function that wraps another one, which it gets first and calls; a name is a method of the recorder."""
AUDITS = received.KEY in os.environ
"""Whether this is the audit, and not the profile."""


def _wrap(module: Any, place: str, around: Around) -> None:
    """Call a method or function of a module through `around`."""
    *owners, name = place.split(".")
    owner = functools.reduce(getattr, owners, module)
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*words: Any, **more: Any) -> Any:
        call = getattr(watch.current, around) if isinstance(around, str) else around
        return call(functools.partial(original, **more) if more else original, *words)

    setattr(owner, name, wrapped)


def _after(work: Callable[..., Any]) -> Around:
    """Return what calls `work` with the arguments of a method or function after it."""

    def around(original: Callable[..., Any], *words: Any) -> Any:
        result = original(*words)
        watch.current.attempt(work, *words)
        return result

    return around


def _work(loop: Callable[..., Any], *words: Any) -> Any:
    from multiprocessing import parent_process

    if AUDITS:
        watch.current.worker = True
        return loop(*words)
    parent = parent_process()
    watch.begin("worker").facts["parent"] = parent.pid if parent else os.getppid()
    try:
        return loop(*words)
    finally:
        watch.current.write()


def _start(init: Callable[..., Any], iterator: Any, *words: Any) -> None:
    """Measure how long the start of the workers takes."""
    began = time.perf_counter()
    init(iterator, *words)
    iterator._smallfiles_init_s = time.perf_counter() - began


def _resets(iterator: Any, *more: Any) -> None:
    iterator._smallfiles_resets = getattr(iterator, "_smallfiles_resets", 0) + 1


def _invoke(invoke: Callable[..., Any], pipeline: Any, step: Any, *words: Any) -> Any:
    """Note the keys behind each step of a pipeline; those behind the last step that has any are used."""
    samples = invoke(pipeline, step, *words)
    at = next((n for n, each in enumerate(pipeline.pipeline) if each is step), 0)
    return _noting_keys(samples, (id(pipeline), at)) if hasattr(samples, "__next__") else samples


def _noting_keys(samples: Iterator[Any], step: tuple[int, int]) -> Iterator[Any]:
    for sample in samples:
        if watch.current.fetching and isinstance(sample, dict) and isinstance(sample.get("__key__"), str):
            watch.current.attempt(watch.current.note_key, received.key_in(sample)[0], step)
        yield sample


def _saves(value: Any = None, *more: Any) -> None:
    if not type(value).__name__.endswith("Storage"):  # which is a tensor that is pickled
        watch.current.log(received.SAVED, 0, 0, 0)


def _note(dataset: Any, at: Any) -> None:
    """Note an index, which LitData wraps."""
    if watch.current.fetching and not isinstance(at, slice):
        watch.current.windows[0].append((received.INDEX, int(getattr(at, "index", at))))


def _deliver(deliver: Callable[..., Any], loader: Any, *words: Any) -> Any:
    plan = loader.plan
    more = {"shuffles": bool(plan.shuffle), "batch": plan.batch, "workers": loader.num_workers, "site": ""}
    drawn = plan.epoch_samples if plan.parts else None
    about = loaders.whole_facts("smallfiles.make_loader", **more, drawn=drawn)
    return watch.current.whole(about, deliver(loader, *words), lambda batch: batch["index"])


def _begin_grain(begin: Callable[..., Any], output: Any) -> Any:
    """Watch the iterator that the loop gets, and none of those below it, or in a worker."""
    iterator, frame = begin(output), cast(Any, sys._getframe())
    while frame.f_code.co_filename.endswith("dataset/dataset.py") or frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    if "grain/_src/python/dataset/" not in frame.f_code.co_filename and not watch.current.fetching:
        watch.current.attempt(_watch_grain, iterator, output)
    return iterator


def _watch_grain(iterator: Any, output: Any) -> None:
    kind, recorder = type(iterator), received.Grain(output)

    def moved(self: Any, state: Any) -> None:
        kind.set_state(self, state)
        watch.current.attempt(recorder.move, self)

    more = {"__next__": lambda self: recorder.next(kind.__next__, self), "set_state": moved}
    iterator.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **more})


_TORCH, _STATEFUL = "torch.utils.data.", "torchdata.stateful_dataloader."
_SEVERAL = f"{_STATEFUL}stateful_dataloader:_StatefulMultiProcessingDataLoaderIter"
_begin_fetcher = _after(lambda fetcher, *more: watch.current.begin_fetcher(fetcher))
_PLACES: dict[str, Around] = {
    f"{_TORCH}_utils.fetch:_MapDatasetFetcher.fetch": "fetched",
    f"{_TORCH}_utils.fetch:_IterableDatasetFetcher.fetch": "fetched",
    f"{_TORCH}_utils.worker:_worker_loop": _work,
    f"{_TORCH}dataloader:_BaseDataLoaderIter.__next__": "next",
    f"{_STATEFUL}worker:_worker_loop": _work,
    f"{_STATEFUL}stateful_dataloader:_StatefulBaseDataLoaderIter.__next__": "next",
}
"""Where the hooks are in the loaders, as `module:name`, and what is called there."""
if AUDITS:
    _PLACES |= {
        f"{_TORCH}_utils.fetch:_MapDatasetFetcher.__init__": _begin_fetcher,
        f"{_TORCH}_utils.fetch:_IterableDatasetFetcher.__init__": _begin_fetcher,
        f"{_TORCH}dataloader:_MultiProcessingDataLoaderIter._reset": _after(_resets),
        f"{_TORCH}dataloader:_MultiProcessingDataLoaderIter._process_data": "processed",
        f"{_SEVERAL}._reset": _after(_resets),
        f"{_SEVERAL}._process_data": "processed",
        "torch.serialization:save": _after(_saves),
        "accelerate.data_loader:DataLoaderShard.__iter__": "shell",
        "webdataset.pipeline:DataPipeline.invoke": _invoke,
        "streaming.base.dataset:StreamingDataset.__getitem__": _after(_note),
        "litdata.streaming.dataset:StreamingDataset.__getitem__": _after(_note),
        "torchdata.nodes.base_node:BaseNode.__next__": received.next_item,
        "torchdata.nodes.base_node:BaseNode.reset": _after(received.Node),
        "grain._src.python.dataset.dataset:_OutputIterDataset.__iter__": _begin_grain,
        "smallfiles.loading.loader:Loader._deliver": _deliver,
    }
else:
    _PLACES |= {
        f"{_TORCH}dataloader:_MultiProcessingDataLoaderIter.__init__": _start,
        f"{_SEVERAL}.__init__": _start,
        "nvidia.dali.plugin.pytorch:DALIGenericIterator.__next__": "next",
    }


class _Finder:
    """Patches a module right after its import."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        places = {place: _PLACES.pop(place) for place in [*_PLACES] if place.startswith(f"{name}:")}
        spec = importlib.util.find_spec(name) if places else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            try:
                for place, around in places.items():
                    _wrap(module, place.partition(":")[2], around)
            except Exception as error:  # another version: the program runs, and the report says it
                watch.current.facts["unpatched"] = f"{name}: {type(error).__name__} {error}"

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _audit(event: str, words: Any) -> None:
    try:  # what an audit hook raises fails the open; at the end of Python even our imports are gone
        if event == "open":
            watch.current.opened(*words)
    except Exception as error:
        if moments.from_handler(error):
            raise


def install() -> None:
    """Watch this process, and call on the site's own `sitecustomize`."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != watch.folder]
    own = sys.modules.pop("sitecustomize")
    try:
        if os.path.isdir(watch.folder):
            watch.current = received.Recorder() if AUDITS else watch.current
            sys.addaudithook(_audit)
            sys.meta_path.insert(0, _Finder)
            os.register_at_fork(before=lambda: watch.current.stop_looking(), after_in_child=watch.begin_again)
            atexit.register(lambda: watch.current.write())
            watch.current.write()  # so that it is known, however the process ends
        importlib.import_module("sitecustomize")  # the site's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own
