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
from collections.abc import Callable
from typing import Any

from . import moments, received, watch


def _patch_torch(module: Any) -> None:
    """Put clocks around the parts of a DataLoader."""
    for fetcher in (module._utils.fetch._MapDatasetFetcher, module._utils.fetch._IterableDatasetFetcher):
        _wrap(fetcher, "fetch", lambda *words: watch.current.fetched(*words))
    _patch_next(module._BaseDataLoaderIter)
    _patch_workers(module._MultiProcessingDataLoaderIter, module._utils.worker)


def _patch_stateful(module: Any) -> None:
    """The same for a StatefulDataLoader, which has workers of its own and the fetchers of PyTorch."""
    worker = sys.modules[module._worker_loop.__module__]
    _patch_next(module._StatefulBaseDataLoaderIter)
    _patch_workers(module._StatefulMultiProcessingDataLoaderIter, worker)
    module._worker_loop = worker._worker_loop


def _patch_workers(several: Any, worker: Any) -> None:
    """Watch each worker, and how long their start takes."""
    from multiprocessing import parent_process

    loop, init = worker._worker_loop, several.__init__

    @functools.wraps(loop)
    def worker_loop(*words: Any, **more: Any) -> Any:
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

    worker._worker_loop, several.__init__ = worker_loop, timed_init


def _patch_next(kind: Any) -> None:
    _wrap(kind, "__next__", lambda *words: watch.current.next(*words))


def _wrap(kind: Any, name: str, measured: Callable[..., Any]) -> None:
    """Call a method of a class through `measured`, which gets it first."""
    original = getattr(kind, name)
    setattr(kind, name, functools.wraps(original)(lambda *words: measured(original, *words)))


_PATCHES: dict[str, Callable[[Any], None]] = {
    "torch.utils.data.dataloader": _patch_torch,
    "torchdata.stateful_dataloader.stateful_dataloader": _patch_stateful,
    "nvidia.dali.plugin.pytorch": lambda module: _patch_next(module.DALIGenericIterator),
}
if received.KEY in os.environ:
    _PATCHES = received.PATCHES


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
            if _PATCHES is received.PATCHES:
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
