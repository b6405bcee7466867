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
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeAlias, cast

from . import watch
from .loaders import digest, grain_facts, grain_places, grain_positions, loader_facts, node_before, node_facts

KEY = "SMALLFILES_AUDIT_KEY"
MADE, GOT, ENDED, DELIVERED, SAVED, SKIPPED = 1, 2, 3, 4, 5, 6
INDEX, NAME, FILE, CONTENT = 1, 2, 3, 4
"""The identities of a sample, the best one first."""
Identities: TypeAlias = list[tuple[int, Any]]
"""Identities of the samples of a batch, by kind."""
NAMED = struct.Struct("=qH")
_NAME_BYTES = 64 << 20
_WHOLE_BYTES, _END_BYTES, _WORDS = 4096, 512, 128
_SHARDS = (".tar", ".tar.gz", ".tgz", ".parquet", ".arrow", ".zip", ".mds", ".mds.zstd", ".jsonl", ".h5")


def sampled(data: Any) -> bytes:
    """Return the bytes of a buffer; of a large one its size, its ends, and words at equal distances."""
    view = memoryview(data).cast("B")
    if view.nbytes <= _WHOLE_BYTES:
        return view.tobytes()
    words = view[: view.nbytes & ~7].cast("Q")
    step = len(words) // _WORDS | 1  # odd, so that it does not stay in one column of a picture
    return b"%d:" % view.nbytes + view[:_END_BYTES] + view[-_END_BYTES:] + words[::step].tobytes()


def content(item: Any, depth: int = 0) -> bytes:
    """Return bytes that differ where two samples differ: of a large array, some of them."""
    if isinstance(item, bytes | bytearray):
        return sampled(item)
    if isinstance(item, str | int | float | bool | None):
        return repr(item).encode("utf-8", "surrogatepass")
    if depth < 6 and isinstance(item, dict):
        return b"{" + b",".join(str(key).encode() + content(item[key], depth + 1) for key in item) + b"}"
    if depth < 6 and isinstance(item, list | tuple):
        return b"[" + b",".join(content(each, depth + 1) for each in item) + b"]"
    if hasattr(item, "dtype") and hasattr(item, "shape"):
        head = f"{item.dtype}{tuple(item.shape)}".encode()
        if hasattr(item, "untyped_storage"):
            import torch

            item = item.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        if item.dtype.hasobject:
            return head + content(item.tolist(), depth + 1)
        return head + sampled(item if item.flags.c_contiguous and item.ndim else item.tobytes())
    if hasattr(item, "tobytes") and hasattr(item, "mode"):
        return f"{item.mode}{item.size}".encode() + sampled(item.tobytes())
    if depth < 6 and hasattr(item, "__dict__"):
        return content(vars(item), depth + 1)
    return repr(type(item)).encode()


def numbers(value: Any) -> list[Any]:
    """Return the parts of a value that is a key, an index, or several of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else [value]


class Recorder(watch.Watch):
    """Write what one process receives."""

    def __init__(self) -> None:
        super().__init__()
        self.named = self.passes = self.generation = 0
        self.windows = defaultdict[int, list[tuple[int, int]]](list)
        self.opened_now: list[str] = []
        self.shards: set[str] = set()
        self.receiving, self.worker, self.arrival = 0, False, GOT
        self.pipeline: dict[tuple[int, int], int] = {}
        self.latest: dict[str, Any] = {}
        self.lengths: dict[tuple[Any, ...], dict[int | None, int]] = {}

    def log(self, *values: int) -> None:
        """Write integers."""
        self.add("log", array("q", values).tobytes())

    def say(self, **facts: Any) -> None:
        """Write facts as a line of JSON."""
        self.add("facts", (json.dumps(facts) + "\n").encode())

    def fail(self, text: str) -> None:
        """Say what could not be recorded, unless the disk is full."""
        with contextlib.suppress(OSError):
            self.say(failed=text)

    def identity(self, value: Any) -> int:
        """Return a key as 64 bits, and write what it is called."""
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        return self.name(digest(text), text[:300])

    def name(self, number: int, text: bytes) -> int:
        """Write what a sample is called, while there are not too many names, and return its number."""
        if self.named < _NAME_BYTES:
            self.named += len(text) + NAMED.size
            self.add("names", NAMED.pack(number, len(text)) + text)
        return number

    def note_key(self, key: str, step: tuple[int, int]) -> None:
        """Note a key that passes a step of a pipeline."""
        order = self.pipeline.setdefault(step, len(self.pipeline))
        self.windows[order].append((NAME, self.identity(key)))

    def opened(self, path: Any, mode: Any, flags: Any) -> None:
        """Note a file that the program opens for reading."""
        super().opened(path, mode, flags)
        if (name := watch.name_of(path, flags)) is None:
            return
        name = os.path.abspath(name)
        if self.fetching:
            self.opened_now.append(name)
        if name.endswith(_SHARDS) and name not in self.shards and len(self.shards) < 100_000:
            self.shards.add(name)
            self.say(shard=name)

    # Making batches

    def begin_fetcher(self, fetcher: Any) -> None:
        """Record that a worker, or the training itself, begins to make the batches of a pass."""
        if self.fetching or ours(fetcher.dataset):  # a loader inside a loader has no number
            return
        self.generation += 1
        fetcher._smallfiles = {"pass": self.generation, "states": None, "looks": 0}
        self.windows.clear()
        original = fetcher.collate_fn

        @functools.wraps(original)
        def collate(data: Any) -> Any:
            fetcher._smallfiles["items"] = self.attempt(self.items, fetcher, data)
            return original(data)

        fetcher.collate_fn = collate

    def fetched(self, fetch: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        """Make a batch, and write what is in it."""
        about = getattr(fetcher, "_smallfiles", None)
        if self.fetching or about is None:
            return fetch(fetcher, index)
        about["items"], about["index"] = [], index
        if self.worker and about["looks"] < 8:
            self.attempt(self.compare_states, fetcher)
        self.fetching = 1
        self.opened_now.clear()
        try:
            batch = fetch(fetcher, index)
        except Exception as error:  # the loop receives an error in the place of a batch
            if not isinstance(error, StopIteration):
                self.attempt(self.log, MADE, about["pass"], 0, 0)
            raise
        finally:
            self.fetching = 0
        self.attempt(self.made, about["pass"], about["items"] or [])
        return batch

    def made(self, number: int, found: Identities) -> None:
        """Write the identities of a batch: one list for each kind that all of its samples have."""
        words = array("q")
        for kind, values in found or [(0, [])]:
            words.extend((MADE, number, kind, len(values)))
            words.extend(values)
        self.add("log", words.tobytes())

    def items(self, fetcher: Any, data: Any) -> Identities:
        """Return the identities of the samples of a batch, by kind."""
        window = self.windows[max(self.windows)] if self.windows else []
        self.windows = defaultdict(list)
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

    def streamed(self, fetcher: Any, samples: list[Any], window: list[tuple[int, int]]) -> Identities:
        """Return the identities of samples that came without an index."""
        names = [part for sample in samples for part in key_in(sample)]
        if names and len(names) >= len(samples):
            return [(NAME, [self.identity(name) for name in names])]
        if window and (len(window) == len(samples) or not fetcher.auto_collation):
            return [(window[0][0], [number for _, number in window])]
        found: Identities = []
        files = list(self.opened_now)
        if len(files) == len(samples) == len(set(files)):
            found.append((FILE, [self.identity(name) for name in files]))
        if not fetcher.auto_collation:
            samples = rows_of(samples[0])
        return [*found, (CONTENT, [self.content_of(sample) for sample in samples])]

    def content_of(self, sample: Any) -> int:
        """Return the hash of a sample; a small one is its own name."""
        number = digest(text := content(sample))
        if len(text) < 150 and len(shown := repr(sample)) < 100:
            self.name(number, shown.encode("utf-8", "surrogateescape"))
        return number

    def compare_states(self, fetcher: Any) -> None:
        """Note the random states of a worker before its first batch, and which of them it uses."""
        about, states = fetcher._smallfiles, dict(random_states(fetcher.dataset))
        about["looks"] += 1
        first = about["states"] = about["states"] or states
        if used := {name: first[name] for name in states if first.get(name, states[name]) != states[name]}:
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
        self.receiving, self.latest = threading.get_ident(), about
        # A StatefulDataLoader that resumes asks itself for the batches that were received before.
        skips = sys._getframe(2).f_globals["__name__"].startswith("torchdata.")
        self.arrival = SKIPPED if skips else GOT
        try:
            batch = original(iterator)
        except StopIteration:
            self.attempt(self.log, ENDED, about["pass"], 0, 0)
            about["ended"] = True
            raise
        finally:
            self.receiving = 0
        about["got"] += not skips
        if not getattr(iterator, "_num_workers", 0):
            self.attempt(self.log, self.arrival, about["pass"], -1, 0)
        return batch

    def processed(self, original: Any, iterator: Any, data: Any, worker: int, *more: Any) -> Any:
        """Note from which worker a batch came; an error that a worker sends has its place, too."""
        if about := getattr(iterator, "_smallfiles", None):
            self.attempt(self.log, self.arrival, about["pass"], worker, 0)
        return original(iterator, data, worker, *more)

    def begin_pass(self, iterator: Any) -> dict[str, Any]:
        """Begin a pass over a loader, with what is known about it."""
        generation = getattr(iterator, "_smallfiles_resets", 0)
        if not getattr(iterator, "_num_workers", 0):
            generation = getattr(iterator._dataset_fetcher, "_smallfiles", {}).get("pass", 0)
        pids = [each.pid for each in getattr(iterator, "_workers", ())]
        return {"pass": self.begin(loader_facts(iterator), generation, pids), "got": 0}

    def begin(self, facts: dict[str, Any], generation: int = 0, pids: list[int] | None = None) -> int:
        """Begin a pass; what this process calls the n-th length of a loader is so in other ranks, too."""
        self.passes += 1
        lengths = self.lengths.setdefault(tuple(facts[name] for name in ("loader", "batch", "site")), {})
        facts["same"] = lengths.setdefault(facts["count"], len(lengths))
        self.say(begins=self.passes, generation=generation or -self.passes, pids=pids or [], **facts)
        return self.passes

    def shell(self, original: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
        """Count what a loader that reads one batch ahead hands out (Accelerate)."""
        for batch in original(loader):
            if about := self.latest:
                self.attempt(self.log, DELIVERED, about["pass"], about["got"] - (not about.get("ended")), 0)
            yield batch

    def whole(self, facts: dict[str, Any], batches: Iterator[Any], ids: Any) -> Iterator[Any]:
        """Record a loader whose batches name their samples."""
        number = 0
        for batch in batches:
            number = number or self.attempt(self.begin, facts) or 0
            self.attempt(self.got, number, batch, ids)
            yield batch
        if number:
            self.attempt(self.log, ENDED, number, 0, 0)

    def got(self, number: int, batch: Any, ids: Callable[[Any], Any], kind: int = INDEX) -> None:
        """Write which samples a batch of such a loader has, and that it was received."""
        self.made(-number, [(kind, numbers(ids(batch)))])
        self.log(GOT, number, -1, 0)


class Node:
    """Know the samples in the items that a node of torchdata.nodes has handed out to the next node.

    A sampler, or another node that stands first, says which samples they are. The other nodes keep the order,
    although each of them may run ahead in a thread of its own. A node that mixes several, or that is not of
    torchdata, counts as a first one, whose items are identified by key or content.
    """

    busy: ClassVar[set[int]] = set()
    """Threads that are inside of a node."""

    def __init__(self, node: Any, state: Any = None) -> None:
        node._smallfiles_node, self.node, self.number = self, node, 0
        self.out = deque[tuple[int, list[int]]](maxlen=1 << 16)
        self.skipped = state.get("steps_since_snapshot", 0) if isinstance(state, dict) else 0
        self.batch: tuple[int, list[int]] = (0, [])

    def take(self, item: Any) -> tuple[int, list[int]]:
        """Return how the samples in an item that the node is about to hand out are identified, and which."""
        name, before = type(self.node).__name__, node_before(self.node)
        if name == "SamplerWrapper" and isinstance(item, int):
            return INDEX, [item]
        if before is None:
            keys = [watch.current.identity(key) for key in key_in(item)]
            return (NAME, keys) if keys else (CONTENT, [watch.current.content_of(item)])
        out: deque[tuple[int, list[int]]] = before._smallfiles_node.out
        while self.skipped:  # a node that resumes asks for what it had handed out since its last snapshot
            self.skipped -= bool(out.popleft())
        if name == "Batcher":
            parts = [out.popleft() for _ in item]
            return parts[0][0], [number for _, numbers in parts for number in numbers]
        if name == "Unbatcher":
            if self.node._batch_idx == 1 or not self.batch[1]:
                self.batch = out.popleft()
            return self.batch[0], self.batch[1][self.node._batch_idx - 1 : self.node._batch_idx]
        return out.popleft()

    def stop(self, error: BaseException, is_last: bool) -> None:
        """Write that the loop received all, or forget the samples of an item that became an error."""
        before = node_before(self.node)
        if isinstance(error, StopIteration):
            if is_last and self.number:
                watch.current.log(ENDED, self.number, 0, 0)
        elif before is not None and (out := before._smallfiles_node.out):
            out.popleft() if getattr(self.node, "num_workers", 0) else out.clear()

    def hand_out(self, item: Any, is_held: bool, is_last: bool) -> None:
        """Note the samples of an item for the next node, or write that the loop received them."""
        found = self.out.popleft() if is_held else self.take(item)
        if not is_last:
            self.out.append(found)
            return
        if chosen := os.environ.get(KEY):
            found = NAME, [watch.current.identity(each) for each in numbers(key_of(chosen, item))]
        self.number = self.number or watch.current.begin(node_facts(self.node))
        watch.current.got(self.number, found[1], list, found[0])


def next_item(original: Callable[[Any], Any], node: Any) -> Any:
    """Return the next item of a node of torchdata to the loop, or to the next node."""
    thread, is_held = threading.get_ident(), getattr(node, "_cached_item", None) is not None
    is_outer = thread not in Node.busy
    is_last = is_outer and not sys._getframe(2).f_globals["__name__"].startswith("torchdata.")
    Node.busy.add(thread)
    try:
        item = original(node)
    except BaseException as error:
        if about := getattr(node, "_smallfiles_node", None):
            watch.current.attempt(about.stop, error, is_last)
        raise
    finally:
        if is_outer:
            Node.busy.discard(thread)
    if about := getattr(node, "_smallfiles_node", None):
        watch.current.attempt(about.hand_out, item, is_held, is_last)
    return item


class Grain:
    """Record an iterator of Grain. It may run through several epochs, of which each becomes a pass.

    Its plan is a function of the position, and its state says how far it is. What filters reject counts as
    received, too.
    """

    def __init__(self, output: Any) -> None:
        self.facts, self.plan = grain_facts(output)
        self.done: list[int] = []
        self.passes: dict[int, list[int]] = {}  # by epoch: its number and its batches

    def next(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the next batch to the loop, and write which samples are in it."""
        try:
            batch = original(iterator)
        except StopIteration:
            for number, _ in self.passes.values():
                watch.current.attempt(watch.current.log, ENDED, number, 0, 0)
            raise
        if self.facts:
            watch.current.attempt(self.received, iterator, batch)
        return batch

    def move(self, iterator: Any) -> dict[int, list[int]]:
        """Return the samples since the last state, by epoch."""
        if type(iterator).__name__ == "_DataLoaderStateDatasetIterator":  # whose own state is another one
            iterator = iterator._parent
        found, count = defaultdict[int, list[int]](list), self.facts["count"]
        before, self.done = self.done, grain_positions(iterator.get_state())
        for worker, end in enumerate(self.done):
            for at in range(before[worker] if before else 0, end):
                for place in grain_places(self.plan, worker + at * len(self.done), count):
                    found[place // count].append(place % count)
        return found

    def received(self, iterator: Any, batch: Any) -> None:
        """Write which samples a batch has; with a key, they belong to its last epoch."""
        found, kind = self.move(iterator) if self.plan else {}, INDEX
        if chosen := os.environ.get(KEY):
            keys = [watch.current.identity(each) for each in numbers(key_of(chosen, batch))]
            found, kind = {max(found, default=0): keys}, NAME
        elif not found:
            parts, self.facts = self.facts["parts"], {}
            raise ValueError(f"which samples a pipeline of Grain's {parts} hands out is not known")
        for epoch, values in sorted(found.items()):
            if epoch not in self.passes:
                self.passes[epoch] = [watch.current.begin(self.facts | {"workers": len(self.done)}), 0]
            watch.current.got(self.passes[epoch][0], values, list, kind)
            self.passes[epoch][1] += 1
            if self.passes[epoch][1] == len(self.done) + 1 and epoch - 1 in self.passes:
                watch.current.log(ENDED, self.passes[epoch - 1][0], 0, 0)  # no worker is in it any more


def ours(dataset: Any) -> bool:
    """Tell whether a data set is of this toolbox, whose batches are recorded where they are handed out."""
    return type(dataset).__module__.startswith("smallfiles.")


def key_in(sample: Any) -> list[Any]:
    """Return the keys that a sample, or a batch of samples, carries."""
    sample = sample[-1] if isinstance(sample, tuple) and sample else sample  # Energon: worker, number, batch
    names = ("__key__", "__url__")  # an object of Energon has slots
    found = [sample.get(name) if isinstance(sample, dict) else getattr(sample, name, None) for name in names]
    if found[0] is None:
        return []
    keys, urls = (numbers("" if each is None else each) for each in found)
    urls = urls if len(urls) == len(keys) else urls[:1] * len(keys)
    return [f"{url} {key}" if url else key for key, url in zip(keys, urls, strict=True)]


def key_of(chosen: str, sample: Any) -> Any:
    """Return the key that the user chose: a field, or what MODULE:FUNCTION returns for the sample."""
    module, _, name = chosen.partition(":")
    if name:
        return getattr(importlib.import_module(module), name)(sample)
    if isinstance(sample, list) and isinstance(next(iter(sample), None), dict | tuple):  # a batch of samples
        return [key_of(chosen, each) for each in sample]
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


def state_of(each: Any) -> Any:
    """Return the state of a random generator; None for anything else."""
    if type(each).__name__ not in ("Generator", "Random", "RandomState", "module"):
        return None
    found = (getattr(each, get) for get in ("getstate", "get_state", "get_rng_state") if hasattr(each, get))
    generator = getattr(each, "bit_generator", None)
    return next(found, lambda: generator and generator.state)()


def random_states(dataset: Any) -> Iterator[tuple[str, int]]:
    """Yield a hash of each random state that a worker may use; none of them is changed."""
    names = ("random", "numpy.random", "torch")
    queue = [(name, cast(Any, sys.modules[name]), 3) for name in names if name in sys.modules]
    queue.append(("dataset", dataset, 0))
    seen: set[int] = set()
    while queue and len(seen) < 64:
        name, each, depth = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if (state := state_of(each)) is not None:
            yield name, digest(content(state))
        elif depth < 3 and isinstance(each, list | tuple):
            queue += [(f"{name}[{n}]", part, depth + 1) for n, part in enumerate(each[:16])]
        elif depth < 3 and not isinstance(each, type) and hasattr(each, "__dict__"):
            queue += [(f"{name}.{key}", part, depth + 1) for key, part in list(vars(each).items())[:32]]
