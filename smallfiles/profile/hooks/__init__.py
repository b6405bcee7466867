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
from typing import Any

from . import loaders, moments, received, watch

AUDITS = received.KEY in os.environ
"""Whether this is the audit, and not the profile."""


def _patch_torch(module: Any) -> None:
    """Watch the parts of a DataLoader."""
    for fetcher in (module._utils.fetch._MapDatasetFetcher, module._utils.fetch._IterableDatasetFetcher):
        if AUDITS:
            _after(fetcher, "__init__", lambda self, *words, **more: received.current.begin_fetcher(self))
        _wrap(fetcher, "fetch", "fetched")
    _wrap(module._BaseDataLoaderIter, "__next__", "next")
    _patch_workers(module._MultiProcessingDataLoaderIter, module._utils.worker)


def _patch_stateful(module: Any) -> None:
    """The same for a StatefulDataLoader, which has workers of its own and the fetchers of PyTorch."""
    worker = sys.modules[module._worker_loop.__module__]
    _wrap(module._StatefulBaseDataLoaderIter, "__next__", "next")
    _patch_workers(module._StatefulMultiProcessingDataLoaderIter, worker)
    module._worker_loop = worker._worker_loop


def _patch_workers(several: Any, worker: Any) -> None:
    """Watch each worker, and how long their start takes."""
    from multiprocessing import parent_process

    loop, init = worker._worker_loop, several.__init__

    @functools.wraps(loop)
    def worker_loop(*words: Any, **more: Any) -> Any:
        if AUDITS:
            received.current.worker = True
            return loop(*words, **more)
        parent = parent_process()
        watch.begin("worker").facts["parent"] = parent.pid if parent else os.getppid()
        try:
            return loop(*words, **more)
        finally:
            watch.current.write()

    @functools.wraps(init)
    def timed_init(self: Any, *words: Any, **more: Any) -> None:
        began = time.perf_counter()
        init(self, *words, **more)
        self._smallfiles_init_s = time.perf_counter() - began

    worker._worker_loop = worker_loop
    if AUDITS:
        _after(several, "_reset", _resets, before=True)
        _wrap(several, "_process_data", "processed")
    else:
        several.__init__ = timed_init


def _wrap(kind: Any, name: str, method: str) -> None:
    """Call a method of a class through a method of what records this process, which gets it first."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def wrapped(*words: Any, **more: Any) -> Any:
        recorder = received.current if AUDITS else watch.current
        return getattr(recorder, method)(functools.partial(original, **more) if more else original, *words)

    setattr(kind, name, wrapped)


def _after(kind: Any, name: str, work: Callable[..., Any], before: bool = False) -> None:
    """Call `work` with the arguments of a method or function, before or after it."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def wrapped(*words: Any, **more: Any) -> Any:
        if before:
            received.current.attempt(functools.partial(work, **more), *words)
        result = original(*words, **more)
        if not before:
            received.current.attempt(functools.partial(work, **more), *words)
        return result

    setattr(kind, name, wrapped)


def _resets(iterator: Any, loader: Any, first_iter: bool = False) -> None:
    if not first_iter:
        iterator._smallfiles_resets = getattr(iterator, "_smallfiles_resets", 0) + 1


def _patch_webdataset(module: Any) -> None:
    """Note the keys behind each step of a pipeline; those behind the last step that has any are used."""
    invoke = module.DataPipeline.invoke

    @functools.wraps(invoke)
    def invoked(self: Any, step: Any, *words: Any, **more: Any) -> Any:
        samples = invoke(self, step, *words, **more)
        at = next((n for n, each in enumerate(self.pipeline) if each is step), 0)
        return _noting_keys(samples, id(self), at) if hasattr(samples, "__next__") else samples

    module.DataPipeline.invoke = invoked


def _noting_keys(samples: Iterator[Any], pipeline: int, step: int) -> Iterator[Any]:
    for sample in samples:
        if received.current.fetching and isinstance(sample, dict) and isinstance(sample.get("__key__"), str):
            received.current.attempt(_note_key, received.key_in(sample)[0], pipeline, step)
        yield sample


def _note_key(key: str, pipeline: int, step: int) -> None:
    last = received.current.last_steps.get(pipeline, -1)
    if step > last:
        received.current.last_steps[pipeline] = step
        received.current.window = []
    if step >= last:
        received.current.window.append((received.NAME, received.current.identity(key)))


def _noting(value: Callable[..., Any]) -> Callable[..., None]:
    def note(dataset: Any, at: Any) -> None:
        if received.current.fetching and (index := value(at)) is not None:
            received.current.window.append((received.INDEX, int(index)))

    return note


def _patch_ours(module: Any) -> None:
    deliver = module.Loader._deliver

    @functools.wraps(deliver)
    def delivered(self: Any, *words: Any) -> Iterator[Any]:
        plan = self.plan
        about = {
            **loaders.place(self),
            **{"loader": "smallfiles.make_loader", "samplers": [], "count": None, "covers": False},
            **{"replacement": False, "shuffles": bool(plan.shuffle), "resampled": False, "batch": plan.batch},
            **{"drop_last": False, "view": 0, "workers": self.num_workers, "length": None, "trains": True},
            **{"iterable": False, "site": "", "drawn": plan.epoch_samples if plan.parts else None},
        }
        return received.current.whole(about, deliver(self, *words), lambda batch: batch["index"])

    module.Loader._deliver = delivered


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.utils.data.dataloader": _patch_torch,
    "torchdata.stateful_dataloader.stateful_dataloader": _patch_stateful,
}
_PATCHES |= (
    {
        "torch.serialization": lambda module: _after(
            module, "save", lambda *words, **more: received.current.log(received.SAVED, 0, 0, 0), before=True
        ),
        "accelerate.data_loader": lambda module: _wrap(module.DataLoaderShard, "__iter__", "shell"),
        "webdataset.pipeline": _patch_webdataset,
        "streaming.base.dataset": lambda module: _after(
            module.StreamingDataset,
            "__getitem__",
            _noting(lambda at: at if not isinstance(at, slice) else None),
        ),
        "litdata.streaming.dataset": lambda module: _after(
            module.StreamingDataset, "__getitem__", _noting(lambda at: getattr(at, "index", None))
        ),
        "smallfiles.loading.loader": _patch_ours,
    }
    if AUDITS
    else {"nvidia.dali.plugin.pytorch": lambda module: _wrap(module.DALIGenericIterator, "__next__", "next")}
)


class _Finder:
    """Patches a module right after its import."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        patch = _PATCHES.pop(name, None)
        spec = importlib.util.find_spec(name) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            try:
                patch(module)
            except Exception as error:  # another version: the program runs, and the report says it
                watch.current.facts["unpatched"] = f"{name}: {type(error).__name__} {error}"

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _audit(event: str, words: Any) -> None:
    try:  # what an audit hook raises fails the open; at the end of Python even our imports are gone
        if event == "open":
            watch.current.opened(*words)
            if AUDITS:
                received.current.opened(words[0], words[2])
    except Exception as error:
        if moments.from_handler(error):
            raise


def install() -> None:
    """Watch this process, and call on the site's own `sitecustomize`."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != watch.folder]
    own = sys.modules.pop("sitecustomize")
    try:
        if os.path.isdir(watch.folder):
            sys.addaudithook(_audit)
            sys.meta_path.insert(0, _Finder)
            os.register_at_fork(before=lambda: watch.current.stop_looking(), after_in_child=watch.begin_again)
            os.register_at_fork(after_in_child=received.begin_again)
            atexit.register(lambda: watch.current.write())
            watch.current.write()  # so that it is known, however the process ends
        importlib.import_module("sitecustomize")  # the site's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own
