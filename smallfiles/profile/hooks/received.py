"""The audit of one process: which samples it made, and which batches its training loop received.

A worker writes the identities of each batch that it makes, and the process that trains writes from which
worker each batch came that its loop received. A worker's batches arrive in the order in which it made them,
so the two files say together what was received, and nothing travels with the batches. All is written at once,
one call for each batch: a program that is killed leaves what it received until then.

The traps: a random state may be read, and never used. A pipeline may hold samples back in a buffer, so a key
that passes its source does not belong to the sample that leaves it next; keys are counted behind the last
step that handles whole samples. And a hook that raises must not stop the program.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, cast

from . import moments, watch
from .loaders import digest, loader_facts

KEY = "SMALLFILES_AUDIT_KEY"
MADE, GOT, ENDED, DELIVERED, SAVED = 1, 2, 3, 4, 5
INDEX, NAME, FILE, CONTENT = 1, 2, 3, 4
"""The identities of a sample, the best one first."""
NAMED = struct.Struct("=qH")
_NAME_BYTES = 64 << 20
_SHARDS = (".tar", ".tar.gz", ".tgz", ".parquet", ".arrow", ".zip", ".mds", ".mds.zstd", ".jsonl", ".h5")


def content(item: Any, depth: int = 0) -> bytes:
    """Return bytes that differ where two samples differ: of a large array, its head and every n-th byte."""
    if isinstance(item, bytes | bytearray):
        step = max(1, len(item) // 8192)
        return b"%d:" % len(item) + bytes(item[:2048]) + bytes(item[::step])
    if isinstance(item, str | int | float | bool | None):
        return repr(item).encode("utf-8", "surrogatepass")
    if depth < 6 and isinstance(item, dict):
        return b"{" + b",".join(str(key).encode() + content(item[key], depth + 1) for key in item) + b"}"
    if depth < 6 and isinstance(item, list | tuple):
        return b"[" + b",".join(content(each, depth + 1) for each in item) + b"]"
    if type(item).__module__.startswith("torch") and hasattr(item, "untyped_storage"):
        import torch

        plain = item.detach().cpu().contiguous()
        item = plain.flatten().view(torch.uint8).numpy()
        head = str((plain.dtype, tuple(plain.shape))).encode()
        return head + content(item[:: max(1, len(item) // 8192)].tobytes() + item[:2048].tobytes())
    if hasattr(item, "dtype") and hasattr(item, "tobytes"):
        step = max(1, getattr(item, "size", 1) // 8192)
        head = str((item.dtype, item.shape)).encode()
        return head + bytes(item.reshape(-1)[::step].tobytes())
    if hasattr(item, "tobytes") and hasattr(item, "mode"):
        return f"{item.mode}{item.size}".encode() + content(item.tobytes(), depth)
    return (
        content(vars(item), depth + 1)
        if depth < 6 and hasattr(item, "__dict__")
        else repr(type(item)).encode()
    )


def numbers(value: Any) -> list[Any]:
    """Return the parts of a value that is a key, an index, or several of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else [value]


class Recorder:
    """Write what one process receives. A forked process gets a recorder of its own."""

    def __init__(self) -> None:
        self.path = f"{watch.folder}/{os.getpid()}-{time.monotonic_ns()}"
        self.files: dict[str, int] = {}
        self.named = self.passes = self.generation = 0
        self.window: list[tuple[int, int]] = []
        self.opened_now: list[str] = []
        self.shards: set[str] = set()
        self.fetching, self.receiving, self.worker = False, 0, False
        self.last_steps: dict[int, int] = {}
        self.latest: dict[str, Any] = {}

    def write(self, name: str, data: bytes) -> None:
        """Add to one of the files of this process; the program goes on when the disk is full."""
        if name not in self.files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self.files[name] = os.open(f"{self.path}.{name}", flags, 0o600)
        os.write(self.files[name], data)

    def log(self, *values: int) -> None:
        """Write integers."""
        self.write("log", array("q", values).tobytes())

    def say(self, **facts: Any) -> None:
        """Write facts as a line of JSON."""
        self.write("facts", (json.dumps(facts) + "\n").encode())

    def attempt(self, work: Callable[..., Any], *words: Any) -> Any:
        """Record something; what fails is said in the report, and never stops the program."""
        try:
            return work(*words)
        except Exception as error:
            if moments.from_handler(error):
                raise
            with contextlib.suppress(OSError):
                name = getattr(getattr(work, "func", work), "__name__", "hook")
                self.say(failed=f"{name}: {type(error).__name__} {error}")

    def identity(self, value: Any) -> int:
        """Return a key as 64 bits, and write what it is called."""
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        number = digest(text)
        if self.named < _NAME_BYTES:
            self.name(number, text[:300])
        return number

    def name(self, number: int, text: bytes) -> None:
        """Write what a sample is called."""
        self.named += len(text) + NAMED.size
        self.write("names", NAMED.pack(number, len(text)) + text)

    def opened(self, path: Any, flags: Any) -> None:
        """Note a file that the program opens for reading."""
        if flags & 3 or isinstance(path, int):
            return
        name = os.fsdecode(path)
        if name.startswith(watch.SYSTEM) or name.endswith((".py", ".pyc", ".so")):
            return
        name = os.path.abspath(name)
        if self.fetching:
            self.opened_now.append(name)
        if name.endswith(_SHARDS) and name not in self.shards and len(self.shards) < 100_000:
            self.shards.add(name)
            self.say(shard=name)

    # Making batches

    def begin_fetcher(self, fetcher: Any) -> None:
        """A worker, or the training itself, begins to make the batches of a pass."""
        self.generation += 1
        fetcher._smallfiles = {"pass": self.generation, "states": None, "looks": 0}
        self.window.clear()
        original = fetcher.collate_fn

        @functools.wraps(original)
        def collate(data: Any) -> Any:
            if not ours(fetcher.dataset):
                fetcher._smallfiles["items"] = self.attempt(self.items, fetcher, data)
            return original(data)

        fetcher.collate_fn = collate

    def fetched(self, fetch: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        """Make a batch, and write what is in it."""
        about = getattr(fetcher, "_smallfiles", None)
        if self.fetching or about is None or ours(fetcher.dataset):
            return fetch(fetcher, index)
        about["items"], about["index"] = [], index
        if self.worker and about["looks"] < 8:
            self.attempt(self.compare_states, fetcher)
        self.fetching = True
        self.opened_now.clear()
        try:
            batch = fetch(fetcher, index)
        except StopIteration:
            raise
        except Exception:  # the loop receives the error in its place
            self.attempt(self.log, MADE, about["pass"], 0, 0)
            raise
        finally:
            self.fetching = False
        self.attempt(self.made, about["pass"], about["items"] or [])
        return batch

    def made(self, number: int, found: list[tuple[int, Any]]) -> None:
        """Write the identities of a batch: one list for each kind that all of its samples have."""
        words = array("q")
        for kind, values in found or [(0, [])]:
            words.extend((MADE, number, kind, len(values)))
            words.extend(values)
        self.write("log", words.tobytes())

    def items(self, fetcher: Any, data: Any) -> list[tuple[int, Any]]:
        """Return the identities of the samples of a batch, by kind."""
        window, self.window = self.window, []
        samples = list(data) if fetcher.auto_collation else [data]
        if chosen := os.environ.get(KEY):
            values = [part for sample in samples for part in numbers(key_of(chosen, sample))]
            return [(NAME, [self.identity(value) for value in values])]
        if hasattr(fetcher, "dataset_iter"):
            return self.streamed(fetcher, samples, window)
        index = fetcher._smallfiles["index"]
        try:
            return [(INDEX, array("q", index if fetcher.auto_collation else numbers(index)))]
        except (TypeError, OverflowError):
            return [(NAME, [self.identity(each) for each in numbers(index)])]

    def streamed(
        self, fetcher: Any, samples: list[Any], window: list[tuple[int, int]]
    ) -> list[tuple[int, Any]]:
        """Return the identities of samples that came without an index."""
        names = [part for sample in samples for part in key_in(sample)]
        if names and len(names) >= len(samples):
            return [(NAME, [self.identity(name) for name in names])]
        if window and (len(window) == len(samples) or not fetcher.auto_collation):
            return [(window[0][0], [number for _, number in window])]
        found: list[tuple[int, Any]] = []
        files = list(self.opened_now)
        if len(files) == len(samples) == len(set(files)):
            found.append((FILE, [self.identity(name) for name in files]))
        if not fetcher.auto_collation:
            samples = rows_of(samples[0])
        return [*found, (CONTENT, [self.content_of(sample) for sample in samples])]

    def content_of(self, sample: Any) -> int:
        """Return the hash of a sample; a small one is its own name."""
        number = digest(text := content(sample))
        if self.named < _NAME_BYTES and len(text) < 150 and len(shown := repr(sample)) < 100:
            self.name(number, shown.encode("utf-8", "surrogateescape"))
        return number

    def compare_states(self, fetcher: Any) -> None:
        """Note the random states of a worker before its first batch, and which of them it uses."""
        about, states = fetcher._smallfiles, dict(random_states(fetcher.dataset))
        about["looks"] += 1
        if about["states"] is None:
            about["states"] = states
            return
        used = {name: about["states"][name] for name in states if states[name] != about["states"].get(name)}
        used = {name: state for name, state in used.items() if state}
        if used:
            about["looks"] = 8
            self.say(random=used, generation=about["pass"])

    # Receiving them

    def next(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the next batch to the loop, and write that it was received."""
        if self.worker or self.receiving or self.fetching or ours(getattr(iterator, "_dataset", None)):
            return original(iterator)
        about = getattr(iterator, "_smallfiles", None)
        if about is None or (about["got"] and not getattr(iterator, "_num_yielded", 1)):
            about = self.attempt(self.begin_pass, iterator) or {"pass": 0, "got": 0}
            iterator._smallfiles = about
        self.receiving = threading.get_ident()
        self.latest = about
        try:
            batch = original(iterator)
        except StopIteration:
            self.attempt(self.log, ENDED, about["pass"], 0, 0)
            about["ended"] = True
            raise
        finally:
            self.receiving = 0
        about["got"] += 1
        if not getattr(iterator, "_num_workers", 0):
            self.attempt(self.log, GOT, about["pass"], -1, 0)
        return batch

    def processed(
        self, original: Callable[..., Any], iterator: Any, data: Any, worker: int, *more: Any
    ) -> Any:
        """Note from which worker a batch came; an error that a worker sends has its place, too."""
        if about := getattr(iterator, "_smallfiles", None):
            self.attempt(self.log, GOT, about["pass"], worker, 0)
        return original(iterator, data, worker, *more)

    def begin_pass(self, iterator: Any) -> dict[str, Any]:
        """Begin a pass over a loader, with what is known about it."""
        self.passes += 1
        generation = getattr(iterator, "_smallfiles_resets", 0) + 1
        if not getattr(iterator, "_num_workers", 0):
            generation = getattr(iterator._dataset_fetcher, "_smallfiles", {}).get("pass", 0)
        self.say(
            begins=self.passes,
            generation=generation,
            pids=[each.pid for each in getattr(iterator, "_workers", ())],
            **loader_facts(iterator),
        )
        return {"pass": self.passes, "got": 0}

    def shell(self, original: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
        """Count what a loader that reads one batch ahead hands out (Accelerate)."""
        for batch in original(loader):
            if about := self.latest:
                self.attempt(self.log, DELIVERED, about["pass"], about["got"] - (not about.get("ended")), 0)
            yield batch

    def whole(
        self, facts: dict[str, Any], batches: Iterator[Any], ids: Callable[[Any], Any]
    ) -> Iterator[Any]:
        """Record a loader that says itself which samples are in a batch."""
        number = 0
        for batch in batches:
            number = number or self.attempt(self.begin_whole, facts) or 0
            self.attempt(self.got_whole, number, ids, batch)
            yield batch
        if number:
            self.attempt(self.log, ENDED, number, 0, 0)

    def begin_whole(self, facts: dict[str, Any]) -> int:
        """Begin a pass over such a loader."""
        self.passes += 1
        self.say(begins=self.passes, generation=-self.passes, pids=[], **facts)
        return self.passes

    def got_whole(self, number: int, ids: Callable[[Any], Any], batch: Any) -> None:
        """Write which samples a batch has, and that it was received."""
        self.made(-number, [(INDEX, numbers(ids(batch)))])
        self.log(GOT, number, -1, 0)


def ours(dataset: Any) -> bool:
    """Tell whether a data set is of this toolbox, whose batches are recorded where they are handed out."""
    return type(dataset).__module__.startswith("smallfiles.")


def key_in(sample: Any) -> list[Any]:
    """Return the keys that a sample, or a batch of samples, carries."""
    if not isinstance(sample, dict) or "__key__" not in sample:
        return []
    keys, urls = numbers(sample["__key__"]), numbers(sample.get("__url__", ""))
    urls = urls if len(urls) == len(keys) else urls[:1] * len(keys)
    return [f"{url} {key}" if url else key for key, url in zip(keys, urls, strict=True)]


def key_of(chosen: str, sample: Any) -> Any:
    """Return the key that the user chose: a field, or what MODULE:FUNCTION returns for the sample."""
    module, _, name = chosen.partition(":")
    if name:
        return getattr(importlib.import_module(module), name)(sample)
    if isinstance(sample, dict):
        return sample[chosen]
    return sample[int(chosen)] if chosen.lstrip("-").isdigit() else getattr(sample, chosen)


def rows_of(batch: Any) -> list[Any]:
    """Return the samples of a batch that the data set itself made."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    if isinstance(parts, list | tuple) and parts:
        lengths = {len(part) for part in parts if hasattr(part, "__len__")}
        if len(lengths) == 1 and all(hasattr(part, "shape") or isinstance(part, list) for part in parts):
            return [tuple(part[row] for part in parts) for row in range(lengths.pop())]
    return [batch[row] for row in range(len(batch))] if len(getattr(batch, "shape", ())) > 1 else [batch]


def random_states(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield a hash of each random state that a worker may use; none of them is changed."""
    import random

    yield "random", digest(repr(random.getstate()).encode())
    parts = (("numpy.random", "numpy", "random.get_state"), ("torch", "torch", "get_rng_state"))
    for name, module, get in parts:
        if module in sys.modules:
            state: Any = functools.reduce(getattr, get.split("."), cast(Any, sys.modules[module]))()
            yield (
                name,
                digest(repr(state[1].tobytes() if name[0] == "n" else state.numpy().tobytes()).encode()),
            )
    seen: set[int] = set()
    queue: list[tuple[str, Any, int]] = [("dataset", dataset, 0)]
    while queue and len(seen) < 64:
        name, each, depth = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each).__name__ == "Generator" and hasattr(each, "bit_generator"):
            yield name, digest(repr(each.bit_generator.state).encode())
        elif type(each).__name__ == "Generator" and hasattr(each, "get_state"):
            yield name, digest(each.get_state().numpy().tobytes())
        elif type(each).__name__ in ("Random", "RandomState"):
            get_state = each.getstate if hasattr(each, "getstate") else each.get_state
            yield name, digest(repr(get_state()).encode())
        elif depth < 3 and isinstance(each, list | tuple):
            queue += [(f"{name}[{n}]", part, depth + 1) for n, part in enumerate(each[:16])]
        elif depth < 3 and not isinstance(each, type) and hasattr(each, "__dict__"):
            queue += [(f"{name}.{key}", part, depth + 1) for key, part in list(vars(each).items())[:32]]


current = Recorder()
"""The recorder of this process."""


def begin_again() -> None:
    """Begin anew in a forked child, which must not write into its parent's files."""
    global current
    for file in current.files.values():
        with contextlib.suppress(OSError):
            os.close(file)
    current = Recorder()
